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
from ..rules import run as rule
from ..rules import run_outcomes as told
from ..rules.asks import Ask
from ..rules.run import Finish, NewRun, Scalar, Then
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
    PublishTerms,
    RecordRun,
    ReviveRun,
    RunCommand,
    RunsOutlook,
    SeeRun,
    SeeTerms,
    StartRun,
    WatchRun,
)
from .shared import at_least_one

MAX_PAGE = 2**31 - 2

KNOWN = frozenset(
    {
        StartRun, ClaimRuns, RecordRun, PostEvent, ReviveRun, WatchRun, SeeRun, ListRuns, CountRuns, OwnedRuns,
        RunsOutlook, ListWorkers, EnlistWorker, DismissWorker, PublishTerms, SeeTerms,
    }
)  # fmt: skip
DECODERS: dict[str, msgspec.json.Decoder[Any]] = {
    kind.__name__: msgspec.json.Decoder(kind)
    for kind in (
        told.Started, told.RunTaken, told.Claimed, told.WorkerGone, told.Recorded, told.Refused, told.Posted,
        told.RunSeen, told.RunPage, told.Census, told.Owned, told.Outlook, told.WorkersSeen, told.Enlisted,
        told.Limited, told.TermsDiffer, told.TermsPublished,
    )
}  # fmt: skip

_json = msgspec.json.Encoder()


class _Born(msgspec.Struct, frozen=True):
    now: int
    woken: tuple[str, ...] = ()


_born = msgspec.json.Decoder(_Born)


Row = str | tuple[str, str, str]
"""The row of a run, by its id, or that of a slot, by its address; that of a lock: `("lock", "", key)`."""


class Taken(msgspec.Struct, frozen=True):
    """Which row somebody else has; of a worker or of what is just being made it is not said."""

    row: Row | None = None


def kind_of(command: RunCommand) -> str:
    """The kind of part that a command goes into: "records", "starts", or "runs" for all that has no short way.

    Nearly all commands only add to a journal, and park or end the run perhaps. A start that knows of limits has none.
    """
    if type(command) is RecordRun:
        simple = not (command.children or command.asks) and command.stuck is None and command.attributes is None
        simple = simple and command.swap is None
        return "records" if simple else "runs"
    if type(command) is StartRun:
        return "runs" if command.new.places or command.new.terms or command.new.priority else "starts"
    return "runs"


def has_one_row(command: RunCommand) -> bool:
    """Whether a command needs its run's row and no other: one that ends a run needs its parent's too."""
    return isinstance(command, RecordRun) and kind_of(command) == "records" and not _may_end(command)


def names_of(command: RecordRun | StartRun) -> tuple[object, ...]:
    """What a command is about: with others that are about something else it may be carried out in one statement."""
    if isinstance(command, RecordRun):
        _check(command.run)
        return (command.run,)
    new = command.new
    _check(new.id, new.type, new.key)
    return (new.id, (rule.workflow_of(new.type), new.key)) if new.key else (new.id,)


def records(commands: Sequence[RecordRun]) -> list[object]:
    """Such records as one part; each of them of another run."""
    for command in commands:
        _check(command.run, command.request, *command.entries)
    return [
        "records",
        [
            (one.run, one.fence, one.at, one.request, one.seen, one.entries)
            if one.then is None
            else (one.run, one.fence, one.at, one.request, one.seen, one.entries, _then(one.then))
            for one in commands
        ],
        {"runs": [one.run for one in commands], "ends": [one.run for one in commands if _may_end(one)]},
    ]


def _then(then: Then) -> tuple[object, ...]:
    return ("finish", then.status, then.result) if isinstance(then, Finish) else ("park", then.due_at)


def starts(commands: Sequence[StartRun]) -> list[object]:
    """Starts as one part; each of another run, and each with another key."""
    for command in commands:
        new = command.new
        _check(command.worker, new.id, new.type, new.input, new.request, new.key, new.parent, new.root)
    return [
        "starts",
        [
            (new.id, one.worker, new.type, new.input, new.request, new.key, new.parent, new.root, _text(new.attributes))
            for one in commands
            for new in (one.new,)
        ],
        {"gives": list({one.worker for one in commands if one.worker})},
    ]


def born(command: StartRun, body: msgspec.Raw) -> told.Started:
    """The answer to a start of which the server has only said that it is new, and when that was."""
    new = _born.decode(body)
    return told.Started(run=rule.start(command.new, new.now, command.worker), fresh=True, now=new.now, woken=new.woken)


def part(commands: Sequence[RunCommand]) -> list[object]:
    """Any commands about runs as one part, with what must be ours before the clock is read: rows, and places."""
    rows: dict[str, list[str]] = {"runs": [], "ends": [], "gives": [], "leaves": []}
    locks: list[str] = []
    counts: dict[str, list[object]] = {"places": [], "enters": [], "publishes": []}
    for command in commands:
        if isinstance(command, RecordRun | PostEvent | ReviveRun | WatchRun):
            rows["runs"].append(command.run)
            if _may_end(command):
                rows["ends"].append(command.run)
            elif isinstance(command, ReviveRun):
                counts["enters"].append(command.run)
            if isinstance(command, RecordRun):
                locks += [ask.key for ask in command.asks]
        elif isinstance(command, StartRun):
            if command.worker:
                rows["gives"].append(command.worker)
            if command.new.places:
                counts["places"].append((rule.workflow_of(command.new.type), command.new.places))
        elif isinstance(command, PublishTerms):
            counts["publishes"].append(command.workflow)
        elif isinstance(command, ClaimRuns):
            rows["runs"] += command.runs
            rows["gives"].append(command.worker)
        elif isinstance(command, DismissWorker):
            rows["leaves"].append(command.worker)
    sent = [_sent(command) for command in commands]
    more = {"counts": counts} if any(counts.values()) else {}
    return ["runs", sent, rows | more | ({"locks": locks} if locks else {})]


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
        _check_asks(command.asks)
        return "RecordRun", {**msgspec.structs.asdict(command), "attributes": attributes, "children": children}
    if isinstance(command, StartRun):
        _check(command.worker)
        return "StartRun", {"new": _new(command.new), "worker": command.worker}
    if isinstance(command, PublishTerms):
        return "PublishTerms", _published(command)
    if isinstance(command, ClaimRuns):
        _check(command.worker, *command.runs, *(text for pair in command.types for text in pair))
        return "ClaimRuns", msgspec.structs.replace(command, limit=_most(command.limit))
    if isinstance(command, ListRuns):
        return "ListRuns", _listing(command)
    _check(*(value for name in _TEXTS if (value := getattr(command, name, "")) is not None))
    if isinstance(command, PostEvent):
        _check(command.event.name, command.event.payload, command.event.key)
    return kind.__name__, command


_TEXTS = ("run", "id", "request", "worker", "name", "workflow")


def _new(new: NewRun) -> dict[str, object]:
    _check(new.id, new.type, new.input, new.request, new.key, new.parent, new.root, new.terms)
    _check(*(text for place in new.places for text in place))
    return {**msgspec.structs.asdict(new), "attributes": _text(new.attributes)}


def _published(command: PublishTerms) -> dict[str, object]:
    """Terms with what tells them apart, so that the server need not find that out."""
    terms = command.terms
    _check(command.workflow, *(limit.name for limit in terms.limits))
    return {"workflow": command.workflow, "terms": terms, "version": terms.version, "digest": terms.digest}


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


def _check_asks(asks: Sequence[Ask]) -> None:
    for ask in asks:
        _check(ask.key, ask.kind)
        if type(ask.number) is not int:
            raise TypeError(f"{ask.number!r} is not a whole number")


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
    """The run that a command is about, for people; or its worker, or its workflow."""
    if isinstance(command, StartRun):
        return command.new.id
    found: str = getattr(command, "run", "") or getattr(command, "worker", "") or getattr(command, "workflow", "")
    return found


def unread(error: Exception) -> Failed:
    """The answer where a stored run is not one that this version can read."""
    return Failed(
        error=RecordUnreadable(
            f"a stored run cannot be read ({error}). It was left untouched. It may be damaged: inspect it by hand."
        )
    )
