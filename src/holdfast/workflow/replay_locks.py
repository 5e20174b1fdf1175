"""The locks that the code of a run has requested, each with a number that is the same in every replay.

Requests and releases are sent to the store with the next record. The store's answer becomes an entry of the journal,
like everything that is delivered: granted with a token, refused, or lost. During a replay no lock is requested:
grants are in the journal. At the end of the replay, the locks for which the code still waits are requested again,
with the same number.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ..errors import DeadlockDetected, HoldfastError, KindMismatch, LeaseLost, NeverFits, WouldDeadlock
from ..locks.cancel_scope import Cancellable
from ..rules.runs.lock_requests import LockRequest
from . import journal as j

if TYPE_CHECKING:
    from .replay import Replay

REQUESTS_PER_ATTEMPT = 1_000_000
"""The numbers of each attempt of a workflow begin this much above the numbers of the previous attempt."""


class RunLease:
    """A lock that belongs to a run, as its code sees it. Pass `token` and `floor` to the guard at the write.

    The lock is kept during crashes, moves to other workers and days of sleep. It ends with its block, or at the
    latest with the run. It is lost only if it has a `lease=` that was not renewed in time, or if an operator releases
    it by force.
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
            f"the lock {self.key!r} (token {self.token}) of this run was lost. Another holder may be writing: stop. "
            "The fence refuses writes that are already on their way.",
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

    __slots__ = ("lease", "lock")

    def __init__(self, lock: PendingLock, lease: RunLease) -> None:
        super().__init__()
        self.lock, self.lease = lock, lease
        lease._block = self  # noqa: SLF001

    def leave(self, error: BaseException | None) -> None:
        """Leave the block; a cancellation because of the loss becomes `LeaseLost`."""
        self.lease._block = None  # noqa: SLF001
        if self.left_by_loss(error):
            raise self.lease._loss() from error  # noqa: SLF001


class PendingLock:
    """One request, until the lock is released. Its future is the grant."""

    __slots__ = ("deadlock", "future", "lease", "request", "task")

    def __init__(self, request: LockRequest, future: asyncio.Future[RunLease]) -> None:
        self.request, self.future = request, future
        self.task = asyncio.current_task()
        self.lease: RunLease | None = None
        self.deadlock = ""  # the description of a deadlock that it is part of, as JSON text

    @property
    def waits(self) -> bool:
        """Whether the request was neither granted nor refused yet."""
        return not self.future.done()


class ReplayLocks:
    """The locks that the code of one run has requested and not released."""

    def __init__(self, code: Replay) -> None:
        self._code = code
        continued = code.continued
        first = 0 if continued is None else continued.first_lock
        self._count = first + REQUESTS_PER_ATTEMPT * (code.attempt - 1)
        self.carried = {} if continued is None else {lock.number: lock for lock in continued.locks}
        """The locks of earlier generations that this one has not asked for, by their numbers."""
        self._released: dict[int, str] = {}  # released in a replay, before its entry is delivered
        self.pending: dict[int, PendingLock] = {}
        self.lock_requests: dict[int, LockRequest] = {}  # sent to the store with the next record

    async def acquire(self, **options: Any) -> PendingLock:
        """Request a lock, and wait until it is granted."""
        code = self._code
        if code.over:
            await code.out()
        code.check()
        request = LockRequest(number=self._count + 1, **options)
        self._check_reentry(request)
        carried = self._take_carried(request)
        if carried is None:
            self._count += 1
        else:
            request = replace(request, number=carried)
        lock = self.pending[request.number] = PendingLock(request, code.loop.create_future())
        if not code.replaying:
            self.lock_requests[request.number] = request
        try:
            await lock.future
        except BaseException:
            self.release(lock)
            raise
        return lock

    def _take_carried(self, request: LockRequest) -> int | None:
        """The number of such a lock that the run has kept from an earlier generation.

        A lock of this key that was requested in another way, such as for reading, is released: it does not become the
        lock that is requested now.
        """
        for number, lock in list(self.carried.items()):
            if lock.key == request.key:
                del self.carried[number]
                if (lock.kind, lock.weight) == (request.kind, request.weight):
                    return number
                if not self._code.replaying:
                    self.lock_requests[number] = LockRequest(number=number, key=lock.key, give=True)
        return None

    def _check_reentry(self, request: LockRequest) -> None:
        """Refuse a task that requests a lock which it holds: it would wait for itself, or for those behind it."""
        task, key = asyncio.current_task(), request.key
        for lock in self.pending.values():
            held = lock.lease is not None and lock.task is task
            if held and lock.request.key == key and request.kind != "semaphore":
                raise WouldDeadlock(
                    f"this task of the run holds {key!r} already and would wait for itself. Nothing was changed. Leave "
                    "its block first, or pass the lease on."
                )

    def release(self, lock: PendingLock) -> None:
        """Release a lock, or stop waiting for it. When a process leaves the run, the run keeps its locks.

        A run that continues as new keeps the locks that it has, too.
        """
        code, number = self._code, lock.request.number
        if code.continuing is not None and lock.lease is not None and not lock.lease.lost:
            return
        if code.over or self.pending.pop(number, None) is None:
            return
        if code.replaying:
            if lock.lease is not None:
                self._released[number] = lock.request.key
            return
        self.lock_requests[number] = LockRequest(number=number, key=lock.request.key, give=True)
        if lock.lease is not None:
            code.note(j.LockGiven(at=code.loop.now, number=number))

    def release_all(self) -> None:
        """Release all locks, and stop waiting for any."""
        for lock in list(self.pending.values()):
            self.release(lock)

    def replayed(self, stored: tuple[tuple[int, str], ...]) -> None:
        """After a replay: request again what the code still waits for, and release what the code has released."""
        for number, key in stored:
            if number not in self.pending and number not in self.carried:
                self.lock_requests[number] = LockRequest(number=number, key=key, give=True)
        for number in self._released:
            self._code.note(j.LockGiven(at=self._code.loop.now, number=number))
        self._released.clear()
        for number, lock in self.pending.items():
            if lock.waits:
                self.lock_requests[number] = lock.request

    # -- deliveries -------------------------------------------------------------------------------------

    def granted(self, entry: j.LockGranted) -> str:
        """A lock was granted. Returns what the code waits for instead, if it does not wait for this lock."""
        lock = self.pending.get(entry.number)
        if lock is None or not lock.waits or lock.request.key != entry.key:
            return "another lock" if self.pending else "no lock"
        lease = lock.lease = RunLease(entry.key, entry.token, entry.floor)
        lock.future.set_result(lease)
        return ""

    def refused(self, entry: j.LockRefused) -> str:
        """A lock was refused. Returns what the code waits for instead, if it does not wait for this lock."""
        lock = self.pending.get(entry.number)
        if lock is None or not lock.waits:
            return "another lock" if self.pending else "no lock"
        lock.future.set_exception(_error(lock.request.key, entry))
        return ""

    def lost(self, number: int) -> None:
        """A lock was lost. The loss of a lock that was released meanwhile is ignored."""
        lock = self.pending.get(number)
        if lock is not None and lock.lease is not None:
            lock.lease._lose()  # noqa: SLF001

    def released(self, number: int) -> str:
        """A lock was released at this point of the history. Returns what the code does instead, if it did not."""
        if self._released.pop(number, None) is None:
            return "that lock, which it has not released"
        return ""


def _error(key: str, entry: j.LockRefused) -> HoldfastError:
    match entry.why:
        case "deadlock":
            return DeadlockDetected(
                f"deadlock: this run waits for {key!r}, behind runs that wait for it ({entry.detail}). It is the "
                "youngest run in the cycle that waits for a lock, so its wait was refused. Leave the blocks of other "
                "locks, and try again.",
                key=key,
            )
        case "mismatch":
            return KindMismatch(f"{key!r} is in use as another kind of lock: {entry.detail}")
        case _:
            return NeverFits(f"{key!r} can never be granted: {entry.detail}")
