"""Commands about runs on their way to PostgreSQL, and what comes back.

The stories of `rules/runs.py` have a native form in the server (postgresql_run_commands.sql and its neighbours); here
commands become what that takes. Attributes go as JSON text, because a NUL in one of them would be refused as jsonb.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from ..commands import Failed
from ..errors import RecordUnreadable
from ..rules import run_outcomes as told
from ..rules.run import Finish, NewRun, Scalar
from ..rules.slot import Swap
from ..run_commands import (
    ClaimRuns,
    CountRuns,
    DismissWorker,
    EnlistWorker,
    ListRuns,
    ListWorkers,
    OwnedRuns,
    PostEvent,
    RecordRun,
    ReviveRun,
    RunCommand,
    RunsOutlook,
    SeeRun,
    StartRun,
    WatchRun,
)
from .shared import at_least_one

MAX_PAGE = 2**31 - 2

KNOWN = frozenset(
    {
        StartRun, ClaimRuns, RecordRun, PostEvent, ReviveRun, WatchRun, SeeRun, ListRuns, CountRuns, OwnedRuns,
        RunsOutlook, ListWorkers, EnlistWorker, DismissWorker,
    }
)  # fmt: skip
DECODERS: dict[str, msgspec.json.Decoder[Any]] = {
    kind.__name__: msgspec.json.Decoder(kind)
    for kind in (
        told.Started, told.RunTaken, told.Claimed, told.WorkerGone, told.Recorded, told.Refused, told.Posted,
        told.RunSeen, told.RunPage, told.Census, told.Owned, told.Outlook, told.WorkersSeen, told.Enlisted,
    )
}  # fmt: skip

_json = msgspec.json.Encoder()


Row = str | tuple[str, str, str]
"""The row of a run, by its id, or that of a slot, by its address."""


class Taken(msgspec.Struct, frozen=True):
    """Which row somebody else has; of a worker or of what is just being made it is not said."""

    row: Row | None = None


def is_simple(command: RunCommand) -> bool:
    """Whether a command only adds to a journal, as nearly all of them do."""
    return (
        type(command) is RecordRun
        and command.then is None
        and not command.children
        and command.attributes is None
        and command.swap is None
    )


def simple_part(commands: Sequence[RecordRun]) -> list[object]:
    """Simple records as one part; each of them of another run."""
    for command in commands:
        _check(command.run, command.request, *command.entries)
    return [
        "records",
        [(one.run, one.fence, one.at, one.request, one.seen, one.entries) for one in commands],
        {"runs": [one.run for one in commands]},
    ]


def part(commands: Sequence[RunCommand]) -> list[object]:
    """Any commands about runs as one part, with the rows that must be ours before the clock is read."""
    rows: dict[str, list[str]] = {"runs": [], "ends": [], "gives": [], "leaves": []}
    for command in commands:
        if isinstance(command, RecordRun | PostEvent | ReviveRun | WatchRun):
            rows["runs"].append(command.run)
            if _may_end(command):
                rows["ends"].append(command.run)
        elif isinstance(command, ClaimRuns):
            rows["runs"] += command.runs
            rows["gives"].append(command.worker)
        elif isinstance(command, StartRun) and command.worker:
            rows["gives"].append(command.worker)
        elif isinstance(command, DismissWorker):
            rows["leaves"].append(command.worker)
    return ["runs", [_sent(command) for command in commands], rows]


def _may_end(command: RunCommand) -> bool:
    if isinstance(command, PostEvent):
        return command.event.kind == "cancel"
    return isinstance(command, RecordRun) and isinstance(command.then, Finish)


def _sent(command: RunCommand) -> tuple[str, object]:
    """A command as the server takes it."""
    kind = type(command)
    if kind not in KNOWN:
        raise TypeError(f"{kind.__name__} is not a command that this store can carry out")
    if isinstance(command, RecordRun):
        _check(command.run, command.request, *command.entries)
        attributes = None if command.attributes is None else _text(command.attributes)
        children = [_new(child) for child in command.children]
        _check_swap(command.swap)
        return "RecordRun", {**msgspec.structs.asdict(command), "attributes": attributes, "children": children}
    if isinstance(command, StartRun):
        _check(command.worker)
        return "StartRun", {"new": _new(command.new), "worker": command.worker}
    if isinstance(command, ClaimRuns):
        _check(command.worker, *command.runs, *(text for pair in command.types for text in pair))
        return "ClaimRuns", msgspec.structs.replace(command, limit=_most(command.limit))
    if isinstance(command, ListRuns):
        return "ListRuns", _listing(command)
    _check(*(value for name in _TEXTS if (value := getattr(command, name, "")) is not None))
    if isinstance(command, PostEvent):
        _check(command.event.name, command.event.payload, command.event.key)
    return kind.__name__, command


_TEXTS = ("run", "id", "request", "worker", "name")


def _new(new: NewRun) -> dict[str, object]:
    _check(new.id, new.type, new.input, new.request, new.key, new.parent, new.root)
    return {**msgspec.structs.asdict(new), "attributes": _text(new.attributes)}


def _listing(command: ListRuns) -> dict[str, object]:
    wanted = command.wanted
    _check(wanted.workflow, wanted.prefix, *wanted.statuses)
    return {
        "statuses": wanted.statuses,
        "workflow": wanted.workflow,
        "prefix": wanted.prefix,
        "since": wanted.since,
        "until": wanted.until,
        "attributes": [(_text(name), _text(value)) for name, value in wanted.attributes.items()],
        "after": command.after,
        "limit": _most(command.limit),
    }


def _check_swap(swap: Swap | None) -> None:
    if swap is not None:
        _check(*swap.address, swap.expected, *(() if swap.value is None else (swap.value,)))


def _text(value: dict[str, Scalar] | Scalar) -> str:
    return _json.encode(value).decode()


def _most(limit: int) -> int:
    return min(at_least_one(limit), MAX_PAGE)


def _check(*texts: object) -> None:
    """JSON would make text of a number, and one run of two."""
    for text in texts:
        if type(text) is not str:
            raise TypeError(f"{text!r} is not text")


def name_of(command: RunCommand) -> str:
    """The run that a command is about, for people; or its worker."""
    if isinstance(command, StartRun):
        return command.new.id
    found: str = getattr(command, "run", "") or getattr(command, "worker", "")
    return found


def unread(error: Exception) -> Failed:
    """The answer where a stored run is not one that this version can read."""
    return Failed(
        error=RecordUnreadable(
            f"a stored run cannot be read ({error}). It was left untouched. It may be damaged: inspect it by hand."
        )
    )
