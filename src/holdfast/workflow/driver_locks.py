"""The locks of a run that this process drives: the store's answers about them, and the renewal of leases.

A lock without a lease needs no renewal. A lock with a lease is renewed by the client's heartbeat thread, independently
of the event loop, while the run is driven; its loss is delivered to the run's code.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import msgspec

from ..commands import Renew
from ..errors import HoldfastError, StoreUnavailable
from ..platform import elapsed
from ..rules.lock_outcomes import Outcome, Renewed
from ..rules.runs.lock_requests import LockAnswer, LockRequest, attempt_of
from ..rules.runs.record import Run, RunEvent
from ..runtime.grant import LocalGrant
from . import journal as j
from .driver_host import RETRY_SECONDS, DriverHost
from .replay_locks import PendingLock, ReplayLocks

_KINDS = {
    "mutex": "a mutex",
    "semaphore": "a semaphore",
    "rw": "a read-write lock",
    "hold": "a hold",
    "lease": "a lease",
}

MakeEntry = Callable[[], j.AnyEntry | None]
"""Returns the entry to deliver, at the moment of its delivery; None: the code does not wait for it any more."""


class DriverLocks:
    """The locks of one run, for its driver. Entries are delivered through `deliver`, in order."""

    def __init__(
        self, host: DriverHost, run: Run, deliver: Callable[[Sequence[MakeEntry]], None], advance: Callable[[], None]
    ) -> None:
        self._host, self._run, self._deliver, self._advance = host, run, deliver, advance
        self._renewed: dict[int, Callable[[], None]] = {}  # functions that end the renewals, by lock
        self._left = False
        self.replay_locks: ReplayLocks

    @property
    def leased(self) -> bool:
        """Whether the run holds a lock that must be renewed."""
        return any(
            lock.request.ttl is not None and lock.lease is not None and not lock.lease.lost
            for lock in self.replay_locks.pending.values()
        ) or any(lock.ttl is not None for lock in self.replay_locks.carried.values())

    def begin(self, held: Sequence[tuple[int, int]], events: Sequence[RunEvent]) -> None:
        """After a replay: deliver losses, and request the locks that the code waits for, with the same numbers."""
        tokens = dict(held)
        self.replay_locks.replayed(self._run.locks)
        for number, lock in self.replay_locks.pending.items():
            if lock.lease is None or lock.lease.lost:
                continue
            if tokens.get(number) != lock.lease.token:
                self._lost(lock)
            elif lock.request.ttl is not None:
                self._check(lock)
        for number, carried in self.replay_locks.carried.items():
            if carried.ttl is not None and number in tokens:
                self._keep(carried, tokens[number])
        for event in events:
            if event.kind == "deadlock":
                self.receive(event)

    def receive(self, event: RunEvent) -> None:
        """An event about a lock: if the run waits for it (an offer, a deadlock), request it again; else check it."""
        lock = self.replay_locks.pending.get(int(event.name))
        if lock is None:
            return
        if lock.waits:
            if event.kind == "deadlock":
                lock.deadlock = event.payload
            self.replay_locks.lock_requests[lock.request.number] = lock.request
        elif lock.lease is not None and not lock.lease.lost and event.kind == "lock":
            self._check(lock)

    def answered(self, answers: Sequence[LockAnswer], sent: float) -> None:
        """The store has answered requests that were sent at that time."""
        makers: list[MakeEntry] = []
        for answer in answers:
            lock = self.replay_locks.pending.get(answer.number)
            if lock is None or not lock.waits:
                continue
            if answer.what == "unknown":
                self._host.later(RETRY_SECONDS, partial(self._request_again, lock))
            elif answer.what == "granted":
                makers.append(partial(self._granted, lock, answer, sent))
            elif answer.what != "queued" or lock.deadlock:
                makers.append(partial(self._refused, lock, answer))
        self._deliver(makers)

    def leave(self) -> None:
        """The run is not driven here any more: it keeps its locks, and this process stops renewing them."""
        self._left = True
        for stop in self._renewed.values():
            stop()
        self._renewed.clear()

    def releasing(self, lock_requests: Iterable[LockRequest]) -> None:
        """These requests are being sent: stop renewing the locks that they release."""
        for request in lock_requests:
            if request.give and (stop := self._renewed.pop(request.number, None)) is not None:
                stop()

    def _request_again(self, lock: PendingLock) -> None:
        if not self._left and lock.waits and self.replay_locks.pending.get(lock.request.number) is lock:
            self.replay_locks.lock_requests[lock.request.number] = lock.request
            self._advance()

    def _granted(self, lock: PendingLock, answer: LockAnswer, sent: float) -> j.AnyEntry | None:
        if not lock.waits:
            return None
        if lock.request.ttl is not None:
            self._renew(lock, answer.token, answer.floor, sent)
        return j.LockGranted(
            at=self._host.now(), number=answer.number, key=lock.request.key, token=answer.token, floor=answer.floor
        )

    def _refused(self, lock: PendingLock, answer: LockAnswer) -> j.AnyEntry | None:
        if not lock.waits:
            return None
        request = lock.request
        if answer.what == "mismatch":
            detail = f"{_KINDS.get(answer.found, answer.found)}, and not {_KINDS[request.kind]}"
            return j.LockRefused(at=self._host.now(), number=request.number, why="mismatch", detail=detail)
        if answer.what == "too_heavy":
            detail = f"{request.weight} of {request.permits} permits were requested"
            return j.LockRefused(at=self._host.now(), number=request.number, why="too_heavy", detail=detail)
        detail = msgspec.json.decode(lock.deadlock, type=str)
        return j.LockRefused(at=self._host.now(), number=request.number, why="deadlock", detail=detail)

    def _keep(self, carried: j.CarriedLock, token: int) -> None:
        """Renew a lock with a lease that an earlier generation has left, until this one asks for it."""
        if self._left or self.replay_locks.carried.get(carried.number) is not carried or carried.ttl is None:
            return
        again = partial(self._keep, carried, token)
        pause = carried.ttl / 3_000_000

        def answered(outcome: Outcome | HoldfastError) -> None:
            if isinstance(outcome, Renewed):
                self._host.later(pause, again)
            elif isinstance(outcome, StoreUnavailable):
                self._host.later(RETRY_SECONDS, again)

        attempt = attempt_of(self._run.id, carried.number)
        self._host.send(Renew(key=carried.key, id=attempt, token=token, ttl=carried.ttl), answered)

    # -- leases -----------------------------------------------------------------------------------------

    def _renew(self, lock: PendingLock, token: int, floor: int, sent: float) -> None:
        """Renew the lock from now on."""
        request = lock.request
        assert request.ttl is not None  # noqa: S101
        held = LocalGrant(
            key=request.key,
            id=attempt_of(self._run.id, request.number),
            owner=f"run {self._run.id}",
            token=token,
            floor=floor,
            ttl=request.ttl,
            sent=sent,
            expires_at=0,
        )
        this = weakref.ref(self)

        def over(held: LocalGrant) -> None:
            locks = this()
            if locks is not None and held.state == "lost":
                locks._host.call_threadsafe(partial(locks._lost, lock))  # noqa: SLF001

        held.when_over(over)
        self._renewed[request.number] = self._host.renew(held, self)

    def _check(self, lock: PendingLock) -> None:
        """Check by a renewal whether the run still holds the lock. A lease is renewed from then on."""
        request, lease = lock.request, lock.lease
        if self._left or lease is None or self.replay_locks.pending.get(request.number) is not lock:
            return
        sent = elapsed()

        def answered(outcome: Outcome | HoldfastError) -> None:
            if self._left or self.replay_locks.pending.get(request.number) is not lock:
                return
            if isinstance(outcome, Renewed):
                if request.ttl is not None and request.number not in self._renewed:
                    self._renew(lock, lease.token, lease.floor, sent)
            elif isinstance(outcome, StoreUnavailable):
                self._host.later(RETRY_SECONDS, partial(self._check, lock))
            else:
                self._lost(lock)

        attempt = attempt_of(self._run.id, request.number)
        self._host.send(Renew(key=request.key, id=attempt, token=lease.token, ttl=request.ttl), answered)

    def _lost(self, lock: PendingLock) -> None:
        number = lock.request.number
        self._renewed.pop(number, None)
        if not self._left and self.replay_locks.pending.get(number) is lock:
            self._deliver([lambda: j.LockLost(at=self._host.now(), number=number)])
