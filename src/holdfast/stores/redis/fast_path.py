"""The fast path: which commands go to the script locks.lua, how they are encoded, and how its answers are decoded.

Commands that cannot be encoded, and those that the script declines, are left to the rules in Python (record_source.py).
The order of commands is kept: see `asked`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Sequence
from typing import Any, NamedTuple, get_args

import msgspec

from ...commands import Acquire, Command, LockCommand, Release, Renew
from ...commands.runs import RecordRun, StartRun
from ...rules import lock_outcomes as out
from ...rules.lock_outcomes import Outcome
from ...rules.lock_record import Holder
from ...rules.runs import record as rule
from ...rules.runs.outcomes import Recorded, Started
from ...rules.runs.record import Finish, NewRun
from ..native_fields import KnownFields
from .codec import check_run, fields_of
from .keys import BARE as NAMES
from .opcodes import (
    ACQUIRE,
    DECLINED,
    FINISH,
    GRANTED,
    QUEUED,
    RECORD,
    RECORDED,
    RELEASE,
    RELEASED,
    RENEW,
    RENEWED,
    START,
    STARTED,
)
from .writing import sets_of

Row = tuple[Any, ...]
Answer = Any
"""A number, or a list that begins with a number and the attempts that were granted something."""

ENDS = frozenset(get_args(rule.End))
NOW = 1
"""A placeholder for the time, which only the script knows."""
KNOWN: dict[type[msgspec.Struct], Collection[str]] = {
    Acquire: {
        "key", "id", "label", "kind", "permits", "weight", "ttl", "queue", "waiter_ttl", "delay", "listens",
    },
    Renew: {"key", "id", "token", "ttl"},
    Release: {"key", "id", "token"},
    RecordRun: {"run", "fence", "at", "request", "entries", "seen", "then"},
    Finish: {"status", "result"},
    StartRun: {"new", "worker"},
    NewRun: {"id", "type", "input", "request", "root", "attributes", "code"},
}  # fmt: skip
_known = KnownFields(KNOWN)

_PLAIN = frozenset((str, int, float, bool, type(None)))
_TEXTS = frozenset((str,))
_encoder = msgspec.msgpack.Encoder()
_json = msgspec.json.Encoder()
_holders = msgspec.json.Decoder(tuple[Holder, ...])
_reply = msgspec.msgpack.Decoder(list[Any])


def _acquire(command: Acquire) -> Row:
    return (
        ACQUIRE,
        command.key,
        command.id,
        _json.encode(command.label).decode(),
        command.kind,
        command.permits,
        command.weight,
        command.ttl,
        command.queue,
        command.waiter_ttl,
        command.delay,
        command.listens,
    )


def _record(command: RecordRun) -> Row | None:
    """Entries for the journal only, or with the end of the run."""
    row = command.run, command.fence, command.at, command.request, command.entries, command.seen
    end = command.then
    if end is None:
        return RECORD, *row
    if not isinstance(end, Finish) or not _known.cover(end):
        return None
    if end.status not in ENDS or not _is_record(row) or type(end.result) is not str:
        return None
    return FINISH, *row, end.status, end.result


def _is_record(row: Row) -> bool:
    """Whether the values have the right types; if there are only entries, the script checks them itself."""
    return tuple(map(type, row)) == (str, int, int, str, tuple, int) and all(type(entry) is str for entry in row[4])


def _start(command: StartRun) -> Row | None:
    """A start for a worker, of a run without parent, key and limits: encoded as it is stored, without the time."""
    new, worker = command.new, command.worker
    if not _known.cover(new):
        return None
    texts = (new.id, new.type, new.input, new.request, new.root, worker)
    if not worker or any(type(text) is not str for text in texts):
        return None
    run = rule.start(new, NOW, worker)
    fields = fields_of(run)
    check_run(run, fields)
    if any(fields.pop(name) != str(NOW) for name in ("created_at", "fence", "started_at")):
        return None
    timed, ordered = [NAMES.by_age], [NAMES.by_id]
    sets: list[str] = []
    for name, how in sets_of(NAMES, run).items():
        (sets if how is None else ordered if how == "0" else timed).append(name)
    flat = tuple(part for field in fields.items() for part in field)
    return START, new.id, worker, run.workflow, new.input, flat, tuple(timed), tuple(ordered), tuple(sets), new.type


_ROWS: dict[type[Command], Callable[[Any], Row | None]] = {
    Acquire: _acquire,
    Renew: lambda command: (RENEW, command.key, command.id, command.token, command.ttl),
    Release: lambda command: (RELEASE, command.key, command.id, command.token),
    RecordRun: _record,
    StartRun: _start,
}


class ScriptCall(NamedTuple):
    """A batch for the script, and the indexes of its commands among all commands."""

    payload: bytes
    places: list[int]


def asked(commands: Sequence[Command], ends: Container[str] = ()) -> ScriptCall | None:
    """The part of a batch that goes to the script; None: nothing. `ends` are runs whose ends it would decline.

    After a command about a lock that was left out, all later commands about this lock are left out too. Once a
    command about a lock is left out, no later command about a run goes to the script either. Once a command about a run
    is left out, no later command at all does. The reason: the rules may have to notify a run first.
    """
    rows: list[Row] = []
    places: list[int] = []
    left_out: set[str] = set()
    for place, command in enumerate(commands):
        write, row = _ROWS.get(type(command)), None
        of_a_lock = isinstance(command, LockCommand)
        if of_a_lock and type(command.key) is not str:  # type: ignore[attr-defined]
            break
        if write is not None and _known.cover(command) and not (command.key in left_out if of_a_lock else left_out):  # type: ignore[attr-defined]
            try:
                row = write(command)
            except Exception:  # any error that a value of the wrong type causes: the rules report it
                row = None
        if row is not None and row[0] == FINISH and row[1] in ends:
            row = None
        if row is not None and _plain(row):
            rows.append(row)
            places.append(place)
        elif of_a_lock:
            left_out.add(command.key)  # type: ignore[attr-defined]
        else:
            break
    if not rows:
        return None
    try:
        return ScriptCall(_encoder.encode(rows), places)
    except Exception:  # one of the commands cannot be encoded: the rules let it fail alone
        return None


def _plain(row: Row) -> bool:
    """Whether the script can read a row: texts and numbers, and entries that are texts."""
    for value in row:
        if type(value) not in _PLAIN and not (type(value) is tuple and _TEXTS.issuperset(map(type, value))):
            return False
    return True


class ScriptReply(msgspec.Struct, frozen=True):
    """The answer of the script: the moment of its decisions, a row for each command, and stored texts."""

    now: int
    answers: list[Answer]
    texts: Sequence[bytes]
    unheard: tuple[str, ...] = ()
    """The attempts whose hints no process received."""


def read_reply(reply: object) -> ScriptReply:
    """Decode the answer of the script. Raises `ValueError` if it is invalid."""
    packed = reply[0] if type(reply) is list and reply else reply
    if type(packed) is not bytes:
        raise ValueError(f"an answer of type {type(reply).__name__}")
    now, answers, *unheard = _reply.decode(packed)
    ids = tuple(attempt for message in unheard[0] for attempt in message.split("\n")) if unheard else ()
    return ScriptReply(now, answers, reply if type(reply) is list else (), ids)


def _moment(value: int | bool) -> int | None:  # noqa: FBT001  (false is the script's None)
    return None if value is False else value


def _after(now: int, ttl: int | None) -> int | None:
    return None if ttl is None else now + ttl


def _granted(command: Acquire, answer: Answer, reply: ScriptReply) -> Outcome:
    if answer == GRANTED:
        now = reply.now
        return out.Granted(token=now, floor=now, since=now, expires_at=_after(now, command.ttl))
    _, woken, token, floor, since, ends, before = answer
    return out.Granted(
        token=token,
        floor=floor,
        since=since,
        expires_at=_moment(ends),
        woken=tuple(woken),
        permits_before=_moment(before),
    )


def _renewed(command: Renew, _answer: Answer, reply: ScriptReply) -> Outcome:
    return out.Renewed(floor=command.token or 0, expires_at=_after(reply.now, command.ttl))


def _released(_command: Command, answer: Answer, _reply: ScriptReply) -> Outcome:
    return _RELEASED if answer == RELEASED else out.Released(woken=tuple(answer[1]))


def _queued(_command: Command, answer: Answer, reply: ScriptReply) -> Outcome:
    _, woken, position, holders, recheck_in, before = answer
    return out.Queued(
        position=position,
        holders=_holders.decode(reply.texts[holders]),
        now=reply.now,
        recheck_in=_moment(recheck_in),
        woken=tuple(woken),
        permits_before=_moment(before),
    )


def _recorded(_command: Command, _answer: Answer, reply: ScriptReply) -> Outcome:
    return Recorded(done=True, events=(), now=reply.now)


def _started(command: StartRun, _answer: Answer, reply: ScriptReply) -> Outcome:
    return Started(run=rule.start(command.new, reply.now, command.worker), fresh=True, now=reply.now)


_RELEASED = out.Released()
_READERS: dict[int, Callable[[Any, Answer, ScriptReply], Outcome]] = {
    GRANTED: _granted,
    RENEWED: _renewed,
    RELEASED: _released,
    QUEUED: _queued,
    RECORDED: _recorded,
    STARTED: _started,
}


def outcome_of(command: Command, answer: Answer, reply: ScriptReply) -> Outcome | None:
    """The outcome for a row of the script's answer; None: the script declined the command."""
    kind = answer if type(answer) is int else answer[0]
    return None if kind == DECLINED else _READERS[kind](command, answer, reply)
