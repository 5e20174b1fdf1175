"""Listing and inspecting locks, and releasing them by force: for operators, dashboards and the command line."""

from __future__ import annotations

from datetime import datetime

import msgspec

from ..commands import Cleanup, ForceRelease, Inspect, ListLocks, LockPage, Swept
from ..commands.runs import PostEvent
from ..errors import InvalidOption
from ..rules import lock_outcomes as out
from ..rules.lock_record import EMPTY, Holder, LockRecord, Waiter
from ..rules.runs.lock_requests import run_of_attempt
from ..rules.runs.record import RunEvent
from ..runtime.base import BaseClient
from ..runtime.flows import Flow, Submit, send
from ..runtime.runners import run, run_async
from ..validation import MICROSECONDS, checked_key, time_of

MAX_REASON = 1_000


class HolderInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A holder: since when, and for how long at most. `offered`: the holder has not confirmed the grant yet."""

    owner: str
    host: str
    pid: int
    token: int
    weight: int
    since: datetime
    age: float
    time_left: float | None
    offered: bool


class WaiterInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A waiter, and since when it waits. Position 0 is next.

    `time_left` is how long its position is kept without another poll (None: until it leaves by itself).
    """

    owner: str
    host: str
    pid: int
    position: int
    weight: int
    since: datetime
    age: float
    time_left: float | None


class ForcedInfo(msgspec.Struct, frozen=True, kw_only=True):
    """The last forced release: when, by whom, why, and which holders lost the lock."""

    at: datetime
    by: str
    reason: str
    holders: tuple[str, ...]


class LockInfo(msgspec.Struct, frozen=True, kw_only=True):
    """One lock as it is now. `error` is set when its record cannot be read.

    `waiters` lists all waiters, but of waiting runs only the first ones (32 or more); `waiting` counts all.
    """

    key: str
    kind: str = ""
    permits: int = 1
    fence: int = 0
    holders: tuple[HolderInfo, ...] = ()
    waiters: tuple[WaiterInfo, ...] = ()
    waiting: int = 0
    forced: ForcedInfo | None = None
    error: str = ""

    @property
    def held(self) -> bool:
        """Whether the lock is held."""
        return bool(self.holders)


def _age(since: int, now: int) -> float:
    return max(0, now - since) / MICROSECONDS


def _time_left(expires_at: int | None, now: int) -> float | None:
    return None if expires_at is None else max(0, expires_at - now) / MICROSECONDS


def _holder(holder: Holder, now: int) -> HolderInfo:
    return HolderInfo(
        owner=holder.label.name,
        host=holder.label.host,
        pid=holder.label.pid,
        token=holder.token,
        weight=holder.weight,
        since=time_of(holder.since),
        age=_age(holder.since, now),
        time_left=_time_left(holder.expires_at, now),
        offered=holder.offered,
    )


def _waiter(waiter: Waiter, position: int, now: int) -> WaiterInfo:
    return WaiterInfo(
        owner=waiter.label.name,
        host=waiter.label.host,
        pid=waiter.label.pid,
        position=position,
        weight=waiter.weight,
        since=time_of(waiter.since),
        age=_age(waiter.since, now),
        time_left=_time_left(waiter.expires_at, now),
    )


def _info(key: str, record: LockRecord | None, now: int, error: str = "") -> LockInfo:
    record = record or EMPTY
    forced = record.forced
    return LockInfo(
        key=key,
        kind=record.kind if record != EMPTY else "",
        permits=record.permits,
        fence=record.fence,
        holders=tuple(_holder(holder, now) for holder in record.holders),
        waiters=tuple(_waiter(waiter, place, now) for place, waiter in enumerate(record.waiters)),
        waiting=record.waiting,
        forced=None
        if forced is None
        else ForcedInfo(at=time_of(forced.at), by=forced.by, reason=forced.reason, holders=forced.holders),
        error=error,
    )


class BaseLocks:
    """The flows of listing, inspecting and releasing by force."""

    def __init__(self, client: BaseClient) -> None:
        self._client = client

    def _list(self, prefix: str) -> Flow[list[LockInfo]]:
        found: list[LockInfo] = []
        after: str | None = ""
        while after is not None:
            page, _ = yield from send(ListLocks(prefix=prefix, after=after), role="queries")
            assert isinstance(page, LockPage)  # noqa: S101  (the command's only answer)
            found += [
                _info(item.key, item.record, page.now, item.error)
                for item in page.items
                if item.error or (item.record is not None and not item.record.idle)
            ]
            after = page.next
        return found

    def _inspect(self, key: str) -> Flow[LockInfo]:
        seen, _ = yield from send(Inspect(key=checked_key(key)), role="queries")
        assert isinstance(seen, out.LockSeen)  # noqa: S101  (the command's only answer)
        return _info(key, seen.record, seen.now)

    def _force_release(self, key: str, reason: str) -> Flow[tuple[HolderInfo, ...]]:
        if not isinstance(reason, str) or not reason.strip() or len(reason) > MAX_REASON:
            raise InvalidOption(
                f"a forced release needs a reason, a text of at most {MAX_REASON} characters: it is stored with the "
                "lock and shown by `holdfast locks show`. Nothing was released."
            )
        by = str(self._client.label(None))
        done = yield Submit(ForceRelease(key=checked_key(key), by=by, reason=reason))
        assert isinstance(done, out.ForceReleased)  # noqa: S101  (the command's only answer)
        self._client.events.emit(
            "force_released", key=key, by=by, reason=reason, holders=[str(holder.label) for holder in done.holders]
        )
        for asker in (run_of_attempt(holder.id) for holder in done.holders):
            if asker is not None:  # the lock of a run is not renewed: notify the run, so that it checks
                yield from send(PostEvent(run=asker[0], event=RunEvent(kind="lock", name=str(asker[1]))))
        return tuple(_holder(holder, done.now) for holder in done.holders)

    def _cleanup(self) -> Flow[int]:
        removed, after = 0, ""
        while True:
            swept, _ = yield from send(Cleanup(after=after, retention=self._client.retention))
            assert isinstance(swept, Swept)  # noqa: S101  (the command's only answer)
            removed += swept.changed
            if swept.next is None:
                return removed
            after = swept.next


class Locks(BaseLocks):
    """`client.locks`: holders and waiters of locks."""

    def list(self, prefix: str = "") -> list[LockInfo]:
        """Every lock that is held or has waiters, in order of its key."""
        return run(self._list(prefix), self._client.runtime.batchers)

    def inspect(self, key: str) -> LockInfo:
        """One lock: its holders with token, age and time left, its waiters in order. Changes nothing."""
        return run(self._inspect(key), self._client.runtime.batchers)

    def force_release(self, key: str, *, reason: str) -> tuple[HolderInfo, ...]:
        """Remove every holder. Caller and reason are stored; the last token stays; the next waiters get the lock."""
        return run(self._force_release(key, reason), self._client.runtime.batchers)

    def cleanup(self) -> int:
        """Remove records that were not used for longer than the client's retention. Returns how many."""
        return run(self._cleanup(), self._client.runtime.batchers)


class AsyncLocks(BaseLocks):
    """`client.locks` of an async client."""

    async def list(self, prefix: str = "") -> list[LockInfo]:
        """Every lock that is held or has waiters, in order of its key."""
        return await run_async(self._list(prefix), self._client.runtime.batchers)

    async def inspect(self, key: str) -> LockInfo:
        """One lock: its holders with token, age and time left, its waiters in order. Changes nothing."""
        return await run_async(self._inspect(key), self._client.runtime.batchers)

    async def force_release(self, key: str, *, reason: str) -> tuple[HolderInfo, ...]:
        """Remove every holder. Caller and reason are stored; the last token stays; the next waiters get the lock."""
        return await run_async(self._force_release(key, reason), self._client.runtime.batchers)

    async def cleanup(self) -> int:
        """Remove records that were not used for longer than the client's retention. Returns how many."""
        return await run_async(self._cleanup(), self._client.runtime.batchers)
