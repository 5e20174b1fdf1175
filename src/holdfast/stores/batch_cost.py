"""How much work a command is for a store, and how a batch is divided so that no step takes long.

A step is what a server does without interruption: a script on Redis, during which no other client is served; a
statement or a transaction on PostgreSQL, which keeps its rows locked. The estimate uses the command alone, before
anything is read. A single command is always one step, however much work it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..commands import Command, LockCommand, ReadSlot, SwapSlot
from ..commands.purging import CountPurgeable, LookAtTree, PurgeRuns, PurgeTree
from ..commands.runs import (
    ClaimRuns,
    ForkRun,
    ImportRun,
    ListOwnedRuns,
    PostEvent,
    PublishLimits,
    ReadRun,
    ReadStream,
    RecordHeartbeat,
    RecordRun,
    ReviveRun,
    StartOrSignal,
    StartRun,
    UnregisterWorker,
    WatchStream,
    WriteStream,
)
from ..rules.runs.record import Continue, Finish, NewRun, RunEvent

AT_ONCE = 1_000
"""The largest work of several commands in one step: about ten milliseconds of a server's time.

1,000 commands about locks, 250 starts of runs, or one claim of 250 runs.
"""
OF_A_LOCK = 1
"""The work of a command about one lock or one state slot: its record is read and written."""
OF_A_RUN = 4
"""The work of starting, ending, claiming or notifying one run: its row, its lists, and an entry or an event."""
OF_ENTRIES = 2
"""The work of adding a few entries to a journal."""
OF_A_HISTORY = 50
"""The work of reading the whole journal and inbox of a run, whose length is not known before."""
OF_A_PAGE = 25
"""The work of reading a page of a stream."""
BYTES = 2_048
"""How many bytes in a command count as much work as a lock."""


def parts_of(commands: Sequence[Command]) -> Sequence[range]:
    """The indexes of the commands that go together: consecutive parts, each of at most `AT_ONCE` or of one command."""
    if len(commands) <= 1:
        return (range(len(commands)),) if commands else ()
    parts, first, total = [], 0, 0
    for place, command in enumerate(commands):
        work = work_of(command)
        if place > first and total + work > AT_ONCE:
            parts.append(range(first, place))
            first, total = place, 0
        total += work
    parts.append(range(first, len(commands)))
    return parts


def work_of(command: Command) -> int:
    """An estimate of the work of one command, also of one whose values have the wrong type."""
    if isinstance(command, LockCommand):
        return OF_A_LOCK
    estimate = _ESTIMATES.get(type(command))
    try:
        return OF_A_RUN if estimate is None else estimate(command)
    except (TypeError, ValueError, AttributeError):  # the command will fail alone
        return OF_A_RUN


def _record(command: RecordRun) -> int:
    entries = command.entries
    work = OF_ENTRIES + len(entries) // 4 + _weight(*entries)
    work += sum(OF_A_RUN + _weight(*items.values) for items in command.streams)
    if command.children or command.lock_requests or command.then is not None or command.swap is not None:
        runs = len(command.children) + isinstance(command.then, Finish)
        work += OF_A_HISTORY * isinstance(command.then, Continue)
        locks = len(command.lock_requests) + (command.swap is not None)
        work += OF_A_RUN * runs + OF_A_LOCK * locks + _weight(*(child.input for child in command.children))
    return work


def _start(new: NewRun) -> int:
    return (OF_A_HISTORY if new.on_existing == "replace_ended" else OF_A_RUN) + _weight(new.input)


def _history(entries: Sequence[str], events: Sequence[RunEvent]) -> int:
    work = OF_A_RUN + len(entries) // 4 + OF_A_LOCK * len(events)
    return work + _weight(*entries, *(event.payload for event in events))


def _weight(*texts: str) -> int:
    return sum(map(len, texts)) // BYTES


_ESTIMATES: dict[type[Command], Callable[[Any], int]] = {
    ReadSlot: lambda _: OF_A_LOCK,
    SwapSlot: lambda command: OF_A_LOCK + _weight(command.value or ""),
    StartRun: lambda command: _start(command.new),
    StartOrSignal: lambda command: OF_A_HISTORY + _weight(command.new.input, command.event.payload),
    ForkRun: lambda command: _history(command.past.entries, command.past.events) + _weight(command.new.input),
    ImportRun: lambda command: _history(command.entries, command.events),
    PostEvent: lambda command: OF_A_RUN + _weight(command.event.payload),
    RecordRun: _record,
    RecordHeartbeat: lambda command: OF_A_RUN + _weight(command.details or ""),
    ClaimRuns: lambda command: OF_A_RUN * max(1, len(command.runs) or int(command.limit)),
    ReviveRun: lambda _: OF_A_HISTORY,
    ReadRun: lambda command: OF_A_HISTORY if command.history else OF_A_RUN,
    WriteStream: lambda command: OF_A_RUN + _weight(*command.values),
    ReadStream: lambda _: OF_A_PAGE,
    WatchStream: lambda _: OF_A_RUN,
    PublishLimits: lambda _: AT_ONCE,  # these are about any number of runs
    UnregisterWorker: lambda _: AT_ONCE,
    CountPurgeable: lambda _: AT_ONCE,
    PurgeRuns: lambda _: AT_ONCE,
    LookAtTree: lambda _: AT_ONCE,
    PurgeTree: lambda _: AT_ONCE,
    ListOwnedRuns: lambda _: AT_ONCE,
}
