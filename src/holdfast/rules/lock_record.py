"""The lock record: one stored form for every lock, semaphore, read-write lock, hold and lease.

All times are integer microseconds of the store's clock; all durations are integer microseconds. The record is a
stored format: fields that this version does not know are kept in `unknown` and written back unchanged. A record that
cannot be read is refused with an error that names it; it is never treated as an empty record.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from ..errors import RecordUnreadable

Kind = Literal["mutex", "hold", "semaphore", "rw", "lease", "run", "worker"]


class Label(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A label that is shown in lists and messages. No rule depends on it."""

    name: str
    host: str = ""
    pid: int = 0
    unknown: dict[str, Any] | None = None

    def __str__(self) -> str:
        return f"{self.name} ({self.host}:{self.pid})" if self.host else self.name


class Waiter(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One waiter in the queue. Its position is kept for `ttl` after its last sign of life.

    Waiters are in the order of their `number`, which counts arrivals. `missed` counts the offers that expired
    unconfirmed. A waiter that is `passed` over keeps its position, but gets no offer and blocks nobody until its next
    command. `listens`: hints are sent to the waiter's process, so a hint that nobody receives shows that it has ended.
    """

    id: str
    label: Label
    since: int
    ttl: int | None
    expires_at: int | None
    weight: int = 1
    delay: int = 0
    number: int = 0
    missed: int = 0
    passed: bool = False
    listens: bool = False
    unknown: dict[str, Any] | None = None


class Holder(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One grant. An `offered` one is not confirmed yet.

    When an offer expires, its waiter goes back to its `place` in the queue.
    """

    id: str
    label: Label
    token: int
    since: int
    ttl: int | None
    expires_at: int | None
    weight: int = 1
    offered: bool = False
    delay: int = 0
    via: str = ""
    place: Waiter | None = None
    unknown: dict[str, Any] | None = None


class Tombstone(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """An attempt that is refused when it is sent again: it was abandoned, or can never fit."""

    id: str
    ttl: int
    expires_at: int
    reason: Literal["abandoned", "never_fits"] = "abandoned"
    unknown: dict[str, Any] | None = None


class Forced(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The last forced release: by whom, why, and which holders were removed."""

    at: int
    by: str
    reason: str
    holders: tuple[str, ...] = ()
    unknown: dict[str, Any] | None = None


class Overflow(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Runs that wait for the lock and are not listed in its record: how many, and their lowest and highest number.

    Each of them is in its own run's record (`rules/runs/lock_queue.py`). `first` may be too low.
    """

    count: int
    first: int
    last: int
    unknown: dict[str, Any] | None = None


class LockRecord(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """The record of one key. The default is the record of a key that was never used.

    `overflow`: more runs wait than are listed among the `waiters`.
    """

    kind: Kind = "mutex"
    permits: int = 1
    fence: int = 0
    version: int = 0
    holders: tuple[Holder, ...] = ()
    waiters: tuple[Waiter, ...] = ()
    tombstones: tuple[Tombstone, ...] = ()
    closed_until: int = 0
    closed_for: int = 0
    due_at: int | None = None
    forced: Forced | None = None
    overflow: Overflow | None = None
    unknown: dict[str, Any] | None = None

    @property
    def idle(self) -> bool:
        """There is no holder and no waiter."""
        return not self.holders and not self.waiters and self.overflow is None

    @property
    def waiting(self) -> int:
        """How many attempts wait, listed here or not."""
        return len(self.waiters) + (0 if self.overflow is None else self.overflow.count)


EMPTY = LockRecord()

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(LockRecord)
_PARTS: dict[str, type[msgspec.Struct]] = {
    "holders": Holder,
    "waiters": Waiter,
    "place": Waiter,
    "tombstones": Tombstone,
    "forced": Forced,
    "overflow": Overflow,
    "label": Label,
}


def encode(record: LockRecord) -> bytes:
    """Write a record as readable JSON."""
    text = _encoder.encode(record)
    if b'"unknown":{' not in text:
        return text
    return _encoder.encode(_raise_unknown(msgspec.json.decode(text)))


def decode(key: str, text: bytes | str) -> LockRecord:
    """Read a record, or raise `RecordUnreadable` that names the key."""
    try:
        try:
            return _decoder.decode(text)
        except msgspec.ValidationError:
            value = msgspec.json.decode(text)
            return msgspec.convert(_sink_unknown(value, LockRecord), LockRecord)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise RecordUnreadable(
            f"the stored record of the lock {key!r} cannot be read ({error}). It was left untouched and the "
            "lock is refused. It may come from a newer version, or be damaged: upgrade, or inspect it by hand.",
            key=key,
        ) from error


def _sink_unknown(value: Any, shape: type[msgspec.Struct]) -> Any:
    """Move the fields that the shape does not have into its `unknown`."""
    if isinstance(value, list):
        return [_sink_unknown(item, shape) for item in value]
    if not isinstance(value, dict):
        return value
    known: dict[str, Any] = {}
    unknown: dict[str, Any] = {}
    for name, item in value.items():
        if name in shape.__struct_fields__ and name != "unknown":
            known[name] = _sink_unknown(item, _PARTS[name]) if name in _PARTS and item is not None else item
        else:
            unknown[name] = item
    if unknown:
        known["unknown"] = unknown
    return known


def _raise_unknown(value: Any) -> Any:
    """Put the fields of `unknown` back to where they were found."""
    if isinstance(value, list):
        return [_raise_unknown(item) for item in value]
    if not isinstance(value, dict):
        return value
    result = {name: _raise_unknown(item) for name, item in value.items() if name != "unknown"}
    result.update(value.get("unknown") or {})
    return result
