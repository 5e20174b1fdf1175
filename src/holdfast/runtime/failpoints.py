"""Named points just before and just after each commit about a run, at which a test can end the process.

Every command that changes a run has a name here, and a test that covers all names fails if one was never reached.
These points cost no time unless a test has set `reached`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from ..commands import Command
from ..commands.answers import AnswerApproval, PostUpdate, WatchUpdate
from ..commands.purging import PurgeRuns, PurgeTree
from ..commands.runs import (
    BlockRun,
    ClaimRuns,
    FailRun,
    ForkRun,
    ImportRun,
    PostEvent,
    PublishLimits,
    RecordHeartbeat,
    RecordRun,
    RegisterWorker,
    ReviveRun,
    StartOrSignal,
    StartRun,
    UnblockRun,
    UnregisterWorker,
    WatchRun,
    WatchStream,
    WriteStream,
)
from ..rules.runs.record import Continue, Ending, Finish, Park

When = Literal["before", "after"]

KINDS = (
    "start", "fork", "import", "claim", "record", "record children", "take", "give", "park", "continue", "finish",
    "signal", "update", "approve", "cancel", "revive", "block", "unblock", "fail", "purge", "watch", "enlist",
    "dismiss", "publish", "state", "transaction", "stream", "follow", "heartbeat",
)  # fmt: skip
NAMES = tuple(f"{when} {kind}" for kind in KINDS for when in ("before", "after"))

_PLAIN: dict[type[Command], str] = {
    StartRun: "start",
    StartOrSignal: "start",
    ForkRun: "fork",
    ImportRun: "import",
    ClaimRuns: "claim",
    ReviveRun: "revive",
    BlockRun: "block",
    UnblockRun: "unblock",
    FailRun: "fail",
    WatchRun: "watch",
    RegisterWorker: "enlist",
    UnregisterWorker: "dismiss",
    PostUpdate: "update",
    WatchUpdate: "watch",
    AnswerApproval: "approve",
    PublishLimits: "publish",
    PurgeRuns: "purge",
    PurgeTree: "purge",
    WriteStream: "stream",
    WatchStream: "follow",
    RecordHeartbeat: "heartbeat",
}
_BY_ENDING: dict[type[Ending], str] = {Park: "park", Continue: "continue", Finish: "finish"}

reached: Callable[[str], None] | None = None
"""The function of a test that is called at each point, with the point's name."""


def kind_of(command: Command) -> str | None:
    """The kind of commit of a command; None if the command is not about a run."""
    if isinstance(command, RecordRun):
        return _kind_of_record(command)
    if isinstance(command, PostEvent):
        return "cancel" if command.event.kind == "cancel" else "signal"
    return _PLAIN.get(type(command))


def _kind_of_record(command: RecordRun) -> str:
    if command.swap is not None:
        return "state"
    if command.then is not None:
        return _BY_ENDING[type(command.then)]
    if command.children:
        return "record children"
    if command.lock_requests:
        return "give" if all(ask.give for ask in command.lock_requests) else "take"
    return "record"


def reach(when: When, commands: Sequence[Command]) -> None:
    """Called before these commands are committed, and after."""
    if reached is not None:
        for command in commands:
            kind = kind_of(command)
            if kind is not None:
                reached(f"{when} {kind}")


def reach_transaction(when: When) -> None:
    """Called before a transaction of the user that contains a record is committed, and after."""
    if reached is not None:
        reached(f"{when} transaction")
