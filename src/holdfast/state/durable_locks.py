"""Locks that are stored in a state: `DurableMutex` and `DurableSemaphore`, for holders that sleep for days.

They follow the rules of every other lock with one difference: nothing is handed over. A release or an expiry makes a
permit free, and only the first waiter can acquire it, by its own next try: a run that sleeps must not be granted a
lease that expires before it wakes. The caller passes its identity and the time, so a replayed workflow decides the same
again.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, NamedTuple, TypeVar, overload

import msgspec

from ..errors import InvalidOption, InvalidValue, KindMismatch, QueueFull
from ..rules import lock_outcomes as out
from ..rules.lock import LockState
from ..rules.lock_record import EMPTY, Label, LockRecord, decode, encode
from ..validation import MICROSECONDS, Duration, checked_count, checked_key, checked_ttl, seconds
from .atomic import KEEP, AsyncState, SyncState

MIN_WAITER_SECONDS = 30
MAX_SKEW = 3_600 * MICROSECONDS
"""How much the clocks of two callers may differ, in microseconds."""
MAX_EPOCH_SECONDS = 32_503_680_000
"""The year 3000: a larger number of seconds is a number of milliseconds."""

A = TypeVar("A")
Slot = SyncState[Any] | AsyncState[Any]
When = float | datetime


class AcquireAttempt(NamedTuple):
    """The result of a try. Position 0 is the next waiter; -1 is a holder."""

    acquired: bool
    position: int


class _DefaultWaiterTtl:
    """Stands for the default waiter_ttl, which depends on the lease."""


_AS_GIVEN = _DefaultWaiterTtl()


def initial_lock_record() -> dict[str, Any]:
    """The initial value of a state for a lock: no holders and no waiters.

    >>> initial_lock_record()
    {'kind': 'semaphore', 'holders': [], 'waiters': []}
    """
    return {"kind": "semaphore", "holders": [], "waiters": []}


class DurableSemaphore:
    """A number of permits in a state, acquired by name: first come, first served.

    A granted permit lasts for `lease` unless it is renewed. A waiter keeps its position for `waiter_ttl` after its last
    try (by default the larger of 30 seconds and the lease; None: no limit).

    >>> from holdfast import Client
    >>> with Client("memory://") as hf:
    ...     slot = hf.state("vendor-api:lock", initial=initial_lock_record())
    ...     limit = DurableSemaphore(permits=1, lease=30)
    ...     limit.try_acquire(slot, holder_id="a", now=0), limit.try_acquire(slot, holder_id="b", now=1)
    (AcquireAttempt(acquired=True, position=-1), AcquireAttempt(acquired=False, position=0))
    """

    def __init__(
        self, permits: int = 1, *, lease: Duration = 30, waiter_ttl: Duration | _DefaultWaiterTtl | None = _AS_GIVEN
    ) -> None:
        self._permits = checked_count(permits, what="permits")
        self._lease = checked_ttl(lease, what="lease")
        self._waiter_ttl = waiter_ttl
        self._waiter_ttl_of(self._lease)  # raises here if waiter_ttl is invalid

    def __repr__(self) -> str:
        return f"<{type(self).__name__} permits={self._permits} lease={self._lease / MICROSECONDS:g}>"

    @overload
    def try_acquire(
        self, slot: SyncState[Any], *, holder_id: str, now: When, lease: Duration | None = None
    ) -> AcquireAttempt: ...
    @overload
    def try_acquire(
        self, slot: AsyncState[Any], *, holder_id: str, now: When, lease: Duration | None = None
    ) -> Awaitable[AcquireAttempt]: ...
    def try_acquire(
        self, slot: Slot, *, holder_id: str, now: When, lease: Duration | None = None
    ) -> AcquireAttempt | Awaitable[AcquireAttempt]:
        """Acquire a permit, or queue. A holder that tries again keeps its permit, for a full lease from now."""
        me, moment, ttl = checked_key(holder_id, what="holder_id"), _moment(now), self._ttl(lease)

        def decide(record: LockRecord, at: int) -> tuple[LockRecord, AcquireAttempt]:
            lock = LockState(record, at, offers=False)
            outcome = lock.acquire(
                id=me,
                label=Label(name=me),
                kind="semaphore",
                permits=self._permits,
                weight=1,
                ttl=ttl,
                queue=True,
                waiter_ttl=self._waiter_ttl_of(ttl),
            )
            if isinstance(outcome, out.Mismatch):
                raise KindMismatch(
                    f"the state {slot.key!r} holds a lock of kind {outcome.found!r}. Use another key",
                    key=slot.key,
                    wanted="semaphore",
                    found=outcome.found,
                )
            if isinstance(outcome, out.TooManyWaiters):
                raise QueueFull(key=slot.key, waiting=outcome.waiting)
            if isinstance(outcome, out.Queued):
                return lock.record(), AcquireAttempt(acquired=False, position=outcome.position)
            assert isinstance(outcome, out.Granted)  # noqa: S101  (weight 1 always fits, and nothing is abandoned here)
            return lock.record(), AcquireAttempt(acquired=True, position=-1)

        return _on(slot, "try_acquire", moment, decide, AcquireAttempt)

    @overload
    def release(self, slot: SyncState[Any], *, holder_id: str, now: When) -> None: ...
    @overload
    def release(self, slot: AsyncState[Any], *, holder_id: str, now: When) -> Awaitable[None]: ...
    def release(self, slot: Slot, *, holder_id: str, now: When) -> Awaitable[None] | None:
        """Release the permit, or the position in the queue. Nothing happens for a caller that has neither."""
        me, moment = checked_key(holder_id, what="holder_id"), _moment(now)

        def decide(record: LockRecord, at: int) -> tuple[LockRecord, None]:
            lock = LockState(record, at, offers=False)
            lock.abandon(id=me, ttl=0)
            return lock.record(), None

        return _on(slot, "release", moment, decide, None)

    @overload
    def renew(self, slot: SyncState[Any], *, holder_id: str, now: When, lease: Duration | None = None) -> bool: ...
    @overload
    def renew(
        self, slot: AsyncState[Any], *, holder_id: str, now: When, lease: Duration | None = None
    ) -> Awaitable[bool]: ...
    def renew(self, slot: Slot, *, holder_id: str, now: When, lease: Duration | None = None) -> bool | Awaitable[bool]:
        """Renew a permit for a full lease from now. False if its lease has expired: then it must be acquired again."""
        me, moment, ttl = checked_key(holder_id, what="holder_id"), _moment(now), self._ttl(lease)

        def decide(record: LockRecord, at: int) -> tuple[LockRecord, bool]:
            token = next((holder.token for holder in record.holders if holder.id == me), 0)
            lock = LockState(record, at, offers=False)
            renewed = isinstance(lock.renew(id=me, token=token, ttl=ttl), out.Renewed)
            return lock.record() if renewed else record, renewed

        return _on(slot, "renew", moment, decide, bool)

    @overload
    def inspect(self, slot: SyncState[Any]) -> LockRecord | None: ...
    @overload
    def inspect(self, slot: AsyncState[Any]) -> Awaitable[LockRecord | None]: ...
    def inspect(self, slot: Slot) -> LockRecord | Awaitable[LockRecord | None] | None:
        """The record as it is stored, or None. Changes nothing."""
        if isinstance(slot, AsyncState):
            return _inspect_async(slot)
        value = slot.get()
        return None if value is None else _record(slot, value)

    def _ttl(self, lease: Duration | None) -> int:
        return self._lease if lease is None else checked_ttl(lease, what="lease")

    def _waiter_ttl_of(self, ttl: int) -> int | None:
        """For how long a position in the queue is kept, in microseconds."""
        if self._waiter_ttl is None:
            return None
        if isinstance(self._waiter_ttl, _DefaultWaiterTtl):
            return max(MIN_WAITER_SECONDS * MICROSECONDS, ttl)
        return checked_ttl(self._waiter_ttl, what="waiter_ttl")


class DurableMutex(DurableSemaphore):
    """One permit in a state: `DurableSemaphore(permits=1)` under another name."""

    def __init__(self, *, lease: Duration = 30, waiter_ttl: Duration | _DefaultWaiterTtl | None = _AS_GIVEN) -> None:
        super().__init__(permits=1, lease=lease, waiter_ttl=waiter_ttl)


async def _inspect_async(slot: AsyncState[Any]) -> LockRecord | None:
    value = await slot.get()
    return None if value is None else _record(slot, value)


def _on(
    slot: Slot, name: str, moment: int, decide: Callable[[LockRecord, int], tuple[LockRecord, A]], kind: Any
) -> A | Awaitable[A]:
    """Apply a decision to the record in a state; awaitable if the state is async."""
    if not isinstance(slot, SyncState | AsyncState):
        raise InvalidOption(f"slot must be a state, as returned by client.state(...), not {type(slot).__name__}")
    if slot._typed:  # noqa: SLF001  (same package)
        raise InvalidOption(f"the state {slot.key!r} has a type: a state that holds a lock must be made without type=")

    def on_value(value: Any) -> tuple[object, A]:
        before = EMPTY if value is None else _record(slot, value)
        after, answer = decide(before, _monotonic(before, moment))
        return (KEEP if after is before else msgspec.json.decode(encode(after))), answer

    decided = slot._decided(on_value)  # noqa: SLF001  (same package)
    return slot._do(decided) if isinstance(slot, SyncState) else slot._do(name, decided, kind)  # noqa: SLF001


def _monotonic(record: LockRecord, moment: int) -> int:
    """The time of a state, to which each caller brings its own clock: it does not go back.

    A caller whose clock is behind, or that replays earlier calls, would otherwise shorten the leases of others. A time
    that differs by more than `MAX_SKEW` comes from a wrong clock, and is not followed.
    """
    ends = [(holder.expires_at, holder.ttl) for holder in record.holders]
    ends += [(waiter.expires_at, waiter.ttl) for waiter in record.waiters]
    seen = [expires_at - (ttl or 0) for expires_at, ttl in ends if expires_at is not None]
    return max([moment, *(at for at in seen if at <= moment + MAX_SKEW)])


def _record(slot: Slot, value: Any) -> LockRecord:
    if not isinstance(value, dict) or (value and not value.keys() & set(LockRecord.__struct_fields__)):
        raise InvalidValue(
            f"the state {slot.key!r} holds {type(value).__name__}, not a lock: use another key, or delete the state"
        )
    return decode(slot.key, msgspec.json.encode(value))


def _moment(now: When) -> int:
    """The time in microseconds."""
    if isinstance(now, datetime):
        if now.tzinfo is None:
            raise InvalidOption("now must have a time zone: pass datetime.now(UTC), or seconds since 1970")
        now = now.timestamp()
    if isinstance(now, bool) or not isinstance(now, int | float) or not math.isfinite(now) or now < 0:
        raise InvalidOption(f"now cannot be {now!r}: pass seconds since 1970, or a datetime with its time zone")
    if now > MAX_EPOCH_SECONDS:
        raise InvalidOption(f"now={now!r} is after the year 3000: pass seconds, not milliseconds")
    return round(seconds(now) * MICROSECONDS)
