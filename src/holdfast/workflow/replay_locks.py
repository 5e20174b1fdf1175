"""What the code of a run has asked for: its locks, each at a place of its own, the same in every life.

An ask goes to the store with the next record, and so does giving back. What the store says comes as an entry of the
journal, like everything that is delivered: granted with a token, refused, or lost. During a replay nothing is asked:
what was granted is in the journal, and what is still waited for is asked for again at its end, by the same number.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from ..errors import DeadlockDetected, HoldfastError, KindMismatch, LeaseLost, NeverFits, WouldDeadlock
from ..locks.cancel_scope import Cancellable
from ..rules.runs.lock_requests import LockRequest
from . import journal as j

if TYPE_CHECKING:
    from .replay import Replay

ASKS_OF_AN_ATTEMPT = 1_000_000
"""How far the numbers of two attempts of a workflow are apart."""


class RunLease:
    """A lock that belongs to a run, as its code sees it. `token` and `floor` are for the guard at the write.

    It outlives crashes, moves to other workers and days of sleep, and ends with its block, or at the latest with the
    run. It is lost only where it was taken with `lease=` and not renewed in time, or by an operator's force.
    """

    __slots__ = ("_block", "floor", "key", "lost", "token")

    def __init__(self, key: str, token: int, floor: int) -> None:
        self.key, self.token, self.floor = key, token, floor
        self.lost = False
        self._block: RunLockScope | None = None

    def __repr__(self) -> str:
        return f"<RunLease {self.key!r} token={self.token}{' lost' if self.lost else ''}>"

    def check(self) -> None:
        """Raise `LeaseLost` if it was lost."""
        if self.lost:
            raise self._loss()

    def _loss(self) -> LeaseLost:
        return LeaseLost(
            f"the lock {self.key!r} (token {self.token}) of this run is lost. Another holder may be at work: stop, and "
            "let the fence refuse what is under way.",
            key=self.key,
            token=self.token,
            reason="it was not renewed in time, or an operator released it by force",
        )

    def _lose(self) -> None:
        self.lost = True
        if self._block is not None:
            self._block.fire()


class RunLockScope(Cancellable):
    """The inside of an `async with`, cancelled when its lock is lost."""

    __slots__ = ("lease", "place")

    def __init__(self, place: PendingLock, lease: RunLease) -> None:
        super().__init__()
        self.place, self.lease = place, lease
        lease._block = self  # noqa: SLF001

    def leave(self, error: BaseException | None) -> None:
        """Leave the block; our own cancellation becomes `LeaseLost`."""
        self.lease._block = None  # noqa: SLF001
        if self.left_by_loss(error):
            raise self.lease._loss() from error  # noqa: SLF001


class PendingLock:
    """One ask, until it is given back. Its future is the grant."""

    __slots__ = ("ask", "deadlock", "future", "lease", "task")

    def __init__(self, ask: LockRequest, future: asyncio.Future[RunLease]) -> None:
        self.ask, self.future = ask, future
        self.task = asyncio.current_task()
        self.lease: RunLease | None = None
        self.deadlock = ""  # what is known of a circle that it is part of

    @property
    def waits(self) -> bool:
        """Whether nothing has come of it yet."""
        return not self.future.done()


class ReplayLocks:
    """What the code of one run has asked for and not given back."""

    def __init__(self, code: Replay) -> None:
        self._code = code
        self._count = ASKS_OF_AN_ATTEMPT * (code.attempt - 1)
        self._given: dict[int, str] = {}  # given back in a replay, before the journal says so
        self.places: dict[int, PendingLock] = {}
        self.lock_requests: dict[int, LockRequest] = {}  # what goes to the store with the next record

    async def take(self, **wanted: Any) -> PendingLock:
        """Ask, and wait until it is granted."""
        code = self._code
        if code.over:
            await code.out()
        code.check()
        ask = LockRequest(number=self._count + 1, **wanted)
        self._check_again(ask)
        self._count += 1
        place = self.places[ask.number] = PendingLock(ask, code.loop.create_future())
        if not code.replaying:
            self.lock_requests[ask.number] = ask
        try:
            await place.future
        except BaseException:
            self.give(place)
            raise
        return place

    def _check_again(self, ask: LockRequest) -> None:
        """A task that is inside and asks again would wait for itself, or behind those who wait for it."""
        task = asyncio.current_task()
        for place in self.places.values():
            if place.lease is not None and place.task is task and place.ask.key == ask.key and ask.kind != "semaphore":
                raise WouldDeadlock(
                    f"this task of the run is inside {ask.key!r} already and would wait for itself: leave it first, or "
                    "pass the lease on"
                )

    def give(self, place: PendingLock) -> None:
        """Give it back, or wait no longer. On the way out of a process nothing is given: it is the run's."""
        code, number = self._code, place.ask.number
        if code.over or self.places.pop(number, None) is None:
            return
        if code.replaying:
            if place.lease is not None:
                self._given[number] = place.ask.key
            return
        self.lock_requests[number] = LockRequest(number=number, key=place.ask.key, give=True)
        if place.lease is not None:
            code.note(j.LockGiven(at=code.loop.now, number=number))

    def give_all(self) -> None:
        """Nothing of it is wanted any more."""
        for place in list(self.places.values()):
            self.give(place)

    def replayed(self, stored: tuple[tuple[int, str], ...]) -> None:
        """The history is told: what it left open is asked for again, and what it gave back is given back."""
        for number, key in stored:
            if number not in self.places:
                self.lock_requests[number] = LockRequest(number=number, key=key, give=True)
        for number in self._given:
            self._code.note(j.LockGiven(at=self._code.loop.now, number=number))
        self._given.clear()
        for number, place in self.places.items():
            if place.waits:
                self.lock_requests[number] = place.ask

    # -- what is delivered ------------------------------------------------------------------------------

    def granted(self, entry: j.LockGranted) -> str:
        """A lock was granted. Returns what the code does instead of waiting for it, if it does."""
        place = self.places.get(entry.number)
        if place is None or not place.waits or place.ask.key != entry.key:
            return "another lock" if self.places else "no lock"
        lease = place.lease = RunLease(entry.key, entry.token, entry.floor)
        place.future.set_result(lease)
        return ""

    def refused(self, entry: j.LockRefused) -> str:
        """A lock cannot be had. Returns what the code does instead of waiting for it, if it does."""
        place = self.places.get(entry.number)
        if place is None or not place.waits:
            return "another lock" if self.places else "no lock"
        place.future.set_exception(_error(place.ask.key, entry))
        return ""

    def lost(self, number: int) -> None:
        """A lock was lost. One that was given back meanwhile is none of its code's business."""
        place = self.places.get(number)
        if place is not None and place.lease is not None:
            place.lease._lose()  # noqa: SLF001

    def given(self, number: int) -> str:
        """A lock was given back here, in an earlier life. Returns what the code does instead, if it does."""
        if self._given.pop(number, None) is None:
            return "that lock, which it has not given back"
        return ""


def _error(key: str, entry: j.LockRefused) -> HoldfastError:
    match entry.why:
        case "deadlock":
            return DeadlockDetected(f"waiting for {key!r} would never end: {entry.detail}", key=key)
        case "mismatch":
            return KindMismatch(f"{key!r} is in use as another kind of lock: {entry.detail}")
        case _:
            return NeverFits(f"{key!r} can never be had: {entry.detail}")
