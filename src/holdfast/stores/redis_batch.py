"""A batch of commands as the script reads it, and the outcomes as the script tells them.

A command that cannot be written down fails here, alone. What the script left to the client, because a record is not
exactly as this version writes it, is decided here by the rules themselves and written by a compare-and-swap: so fields
of a newer version survive, and what cannot be read is refused by name and left as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, get_args

import msgspec

from .. import commands as c
from ..errors import HoldfastError, RecordUnreadable
from ..rules import outcomes as out
from ..rules.outcomes import Outcome
from ..rules.record import EMPTY, Holder, Kind, LockRecord, decode
from ..rules.slot import Conflict, SlotSeen, Swapped
from . import redis_runs
from . import redis_script as s
from .redis_keys import slot_name
from .shared import end_of_prefix, failed, listed

Row = tuple[Any, ...]
Answer = Any
"""A number, or a list whose first two places are a number and the attempts that were granted by it."""

_encoder = msgspec.msgpack.Encoder()
_json = msgspec.json.Encoder()
_KINDS = frozenset(get_args(Kind))
_holders = msgspec.json.Decoder(tuple[Holder, ...])


# ---------------------------------------------------------------------------------------- commands


def _acquire(command: c.Acquire) -> Row:
    if command.kind not in _KINDS:
        raise ValueError(f"there is no kind of lock {command.kind!r}")
    return (
        s.ACQUIRE,
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
    )


def _transfer(command: c.Transfer) -> Row:
    label = _json.encode(command.to_label).decode()
    return s.TRANSFER, command.key, command.id, command.token, command.to_id, label, command.ttl


def _list_locks(command: c.ListLocks) -> Row:
    end = end_of_prefix(command.prefix)
    first = f"({command.after}" if command.after >= command.prefix and command.after else f"[{command.prefix}"
    return s.LIST_LOCKS, command.limit, first, "+" if end is None else f"({end}"


def _swap(command: c.SwapSlot) -> Row:
    name = slot_name(command.address)
    request, expected, version = command.request, command.expected, command.version
    return s.SWAP_SLOT, name, request, expected, version, command.value, command.acked, command.reserve


_ROWS: dict[type[c.Command], Callable[[Any], Row]] = {
    c.Acquire: _acquire,
    c.Renew: lambda command: (s.RENEW, command.key, command.id, command.token, command.ttl),
    c.Release: lambda command: (s.RELEASE, command.key, command.id, command.token),
    c.Abandon: lambda command: (s.ABANDON, command.key, command.id, command.ttl),
    c.Transfer: _transfer,
    c.ForceRelease: lambda command: (s.FORCE_RELEASE, command.key, command.by, command.reason),
    c.Settle: lambda command: (s.SETTLE, command.key),
    c.Inspect: lambda command: (s.INSPECT, command.key),
    c.ListLocks: _list_locks,
    c.SettleDue: lambda command: (s.SETTLE_DUE, command.limit),
    c.Cleanup: lambda command: (s.CLEANUP, command.limit, command.after, command.retention),
    c.ReadSlot: lambda command: (s.READ_SLOT, slot_name(command.address)),
    c.SwapSlot: _swap,
    **redis_runs.ROWS,
}


def row_of(command: c.Command) -> Row:
    """The command as the script reads it."""
    write = _ROWS.get(type(command))
    if write is None:
        raise TypeError(f"{type(command).__name__} is not a command that this store knows")
    return write(command)


def pack(rows: Sequence[Row]) -> bytes:
    """The batch as one argument of the script."""
    return _encoder.encode(rows)


def pack_commands(commands: Sequence[c.Command]) -> bytes | None:
    """All of the commands; None if one of them cannot be written down."""
    try:
        return _encoder.encode([_ROWS[type(command)](command) for command in commands])
    except Exception:  # whichever it is: it is looked for one by one
        return None


def reason_against(command: c.Command) -> Outcome | None:
    """The failure of a command that cannot be written down."""
    try:
        pack([row_of(command)])
    except Exception as error:  # a bad command fails alone
        return failed(command, error)
    return None


# ---------------------------------------------------------------------------------------- outcomes


class Reply(msgspec.Struct, frozen=True):
    """What the script answered: the moment at which it decided, a row for each command, and the stored texts."""

    now: int
    answers: list[Answer]
    texts: Sequence[bytes]


_reply = msgspec.msgpack.Decoder(tuple[int, list[Any]])


def read_reply(reply: object) -> Reply:
    """Take the script's answer apart. Raises `ValueError` if it is none."""
    if type(reply) is bytes:
        return Reply(*_reply.decode(reply), ())
    if type(reply) is list and reply and type(reply[0]) is bytes:
        return Reply(*_reply.decode(reply[0]), reply)
    raise ValueError(f"an answer of type {type(reply).__name__}")


def _moment(value: int | bool) -> int | None:  # noqa: FBT001  (false is the script's None)
    return None if value is False else value


def _after(now: int, ttl: int | None) -> int | None:
    return None if ttl is None else now + ttl


def _granted(command: c.Acquire, answer: Answer, reply: Reply) -> Outcome:
    if answer == s.GRANTED:
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


def _renewed(command: c.Renew, answer: Answer, reply: Reply) -> Outcome:
    if answer == s.RENEWED:
        return out.Renewed(floor=command.token or 0, expires_at=_after(reply.now, command.ttl))
    _, woken, floor, ends = answer
    return out.Renewed(floor=floor, expires_at=_moment(ends), woken=tuple(woken))


def _released(_command: c.Command, answer: Answer, _reply: Reply) -> Outcome:
    return _RELEASED if answer == s.RELEASED else out.Released(woken=tuple(answer[1]))


def _queued(_command: c.Command, answer: Answer, reply: Reply) -> Outcome:
    _, woken, position, holders, recheck_in, before = answer
    return out.Queued(
        position=position,
        holders=_holders.decode(reply.texts[holders]),
        now=reply.now,
        recheck_in=_moment(recheck_in),
        woken=tuple(woken),
        permits_before=_moment(before),
    )


def _busy(_command: c.Command, answer: Answer, reply: Reply) -> Outcome:
    _, woken, holders, waiting, retry_in, before = answer
    return out.Busy(
        holders=_holders.decode(reply.texts[holders]),
        waiting=waiting,
        now=reply.now,
        retry_in=_moment(retry_in),
        woken=tuple(woken),
        permits_before=_moment(before),
    )


def _transferred(_command: c.Command, answer: Answer, _reply: Reply) -> Outcome:
    _, woken, token, floor, since, ends = answer
    return out.Transferred(token=token, floor=floor, since=since, expires_at=_moment(ends), woken=tuple(woken))


def _force_released(_command: c.Command, answer: Answer, reply: Reply) -> Outcome:
    _, woken, holders = answer
    return out.ForceReleased(holders=_holders.decode(reply.texts[holders]), now=reply.now, woken=tuple(woken))


def _seen(command: c.Inspect, answer: Answer, reply: Reply) -> Outcome:
    record = EMPTY if answer == s.SEEN else decode(command.key, reply.texts[answer[2]])
    return command.apply(record, reply.now)[1]


def key_texts(answer: Answer, reply: Reply) -> list[tuple[str, bytes]]:
    """The keys and the texts of a page."""
    start, count = answer[2] + 1, answer[3]
    found = reply.texts[start : start + 2 * count]
    return [(key.decode(errors="replace"), text) for key, text in zip(found[::2], found[1::2], strict=True)]


def readable(key: str, text: bytes) -> LockRecord | RecordUnreadable:
    """The record, or why it cannot be read."""
    try:
        return decode(key, text)
    except RecordUnreadable as error:
        return error


def following(place: int | bool, reply: Reply) -> str | None:  # noqa: FBT001
    """Where the next page begins."""
    return None if place is False else reply.texts[place].decode(errors="replace")


def _page(_command: c.Command, answer: Answer, reply: Reply) -> Outcome:
    items = tuple(listed(key, readable(key, text), reply.now) for key, text in key_texts(answer, reply))
    return c.Page(items=items, next=following(answer[4], reply), now=reply.now)


def _swept(_command: c.Command, answer: Answer, reply: Reply) -> Outcome:
    _, woken, seen, changed, place, _strange = answer
    return c.Swept(seen=seen, changed=changed, next=following(place, reply), woken=tuple(woken))


def _value(answer: Answer, reply: Reply) -> tuple[str, str | None]:
    last, value = answer[3], answer[4]
    return reply.texts[last].decode(), None if value is False else reply.texts[value].decode()


def _slot_seen(_command: c.Command, answer: Answer, reply: Reply) -> Outcome:
    last, value = _value(answer, reply)
    return SlotSeen(version=answer[2], last=last, value=value)


def _conflict(_command: c.Command, answer: Answer, reply: Reply) -> Outcome:
    last, value = _value(answer, reply)
    return Conflict(version=answer[2], last=last, value=value, wait=answer[5], decided=answer[6])


def _bad(command: c.Command, answer: Answer, _reply: Reply) -> Outcome:
    return failed(command, ValueError(answer[2]))


def _unreadable(command: c.Command, answer: Answer, _reply: Reply) -> Outcome:
    what = answer[3] or "record of the lock"
    key = answer[4] or getattr(command, "key", "")
    if what == "state":
        key = getattr(getattr(command, "swap", command), "address", ("", "", ""))[2]
    return c.Failed(
        error=RecordUnreadable(
            f"the stored {what} {key!r} cannot be read ({answer[2]}). It was left untouched. It may be damaged: "
            "inspect it by hand.",
            key=key,
        )
    )


_RELEASED = out.Released()
_READERS: dict[int, Callable[[Any, Answer, Reply], Outcome]] = {
    s.GRANTED: _granted,
    s.RENEWED: _renewed,
    s.RELEASED: _released,
    s.NOT_HELD: lambda _, answer, __: out.NotHeld(woken=tuple(answer[1])),
    s.QUEUED: _queued,
    s.BUSY: _busy,
    s.ABANDONED: lambda _, answer, __: out.Abandoned(was=answer[2], woken=tuple(answer[1])),
    s.TRANSFERRED: _transferred,
    s.TARGET_HOLDS: lambda _, answer, __: out.TargetHolds(woken=tuple(answer[1])),
    s.MISMATCH: lambda _, answer, __: out.Mismatch(found=answer[2], woken=tuple(answer[1])),
    s.TOO_HEAVY: lambda _, answer, __: out.TooHeavy(permits=answer[2], woken=tuple(answer[1])),
    s.GONE: lambda _, answer, __: out.Gone(woken=tuple(answer[1])),
    s.FORCE_RELEASED: _force_released,
    s.SETTLED: lambda _, answer, __: out.Settled(woken=tuple(answer[1])),
    s.PAGE: _page,
    s.SWEPT: _swept,
    s.SLOT_SEEN: _slot_seen,
    s.SWAPPED: lambda _, answer, __: Swapped(version=answer[2]),
    s.CONFLICT: _conflict,
    s.BAD: _bad,
    s.UNREADABLE: _unreadable,
    s.SEEN: _seen,
}


def _of_runs(read: Callable[[Any, Answer, Any, int], Outcome]) -> Callable[[Any, Answer, Reply], Outcome]:
    return lambda command, answer, reply: read(command, answer, reply.texts, reply.now)


_READERS |= {number: _of_runs(read) for number, read in redis_runs.READERS.items()}


def outcome_of(command: c.Command, answer: Answer, reply: Reply) -> Outcome:
    """The outcome that a row of the script's answer stands for."""
    try:
        return _READERS[answer if type(answer) is int else answer[0]](command, answer, reply)
    except HoldfastError as error:
        return c.Failed(error=error)
    except (ValueError, msgspec.MsgspecError) as error:  # somebody has written into the records by hand
        return failed(command, error)
