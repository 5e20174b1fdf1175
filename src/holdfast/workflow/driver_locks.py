"""The locks of a run that is driven here: what the store said of them, and keeping those that have a lease.

A lock without a lease needs nobody to keep it. One with a lease is in the care of the client's keeper while the run is
driven, which does not depend on the event loop; when it is lost, that is delivered to the run's code.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
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
from .driver_host import DriverHost
from .replay_locks import PendingLock, ReplayLocks

RETRY_SECONDS = 0.2
"""How long the first renewal of a lock waits that found the store away, and an ask of which nothing is known."""

_KINDS = {
    "mutex": "a mutex",
    "semaphore": "a semaphore",
    "rw": "a read-write lock",
    "hold": "a hold",
    "lease": "a lease",
}

Make = Callable[[], j.AnyEntry | None]
"""Makes what is to be delivered, at the moment when it can be; None: it is too late for it."""


class DriverLocks:
    """The locks of one run, for its driver. What is to be delivered goes through `deliver`, in its order."""

    def __init__(
        self, host: DriverHost, run: Run, deliver: Callable[[Sequence[Make]], None], again: Callable[[], None]
    ) -> None:
        self._host, self._run, self._deliver, self._again = host, run, deliver, again
        self._renewed: dict[int, Callable[[], None]] = {}  # how to end the renewal of each
        self._left = False
        self.replay_locks: ReplayLocks

    @property
    def leased(self) -> bool:
        """Whether it has a lock that must be renewed."""
        return any(
            place.ask.ttl is not None and place.lease is not None and not place.lease.lost
            for place in self.replay_locks.places.values()
        )

    def begin(self, held: Sequence[tuple[int, int]], events: Sequence[RunEvent]) -> None:
        """After a replay: tell what is lost, and ask for what is waited for, by the same numbers as before."""
        tokens = dict(held)
        self.replay_locks.replayed(self._run.locks)
        for number, place in self.replay_locks.places.items():
            if place.lease is None or place.lease.lost:
                continue
            if tokens.get(number) != place.lease.token:
                self._lost(place)
            elif place.ask.ttl is not None:
                self._look(place)
        for event in events:
            if event.kind == "deadlock":
                self.hear(event)

    def hear(self, event: RunEvent) -> None:
        """Something is to be known of a lock. It is offered, or the run is in a circle: ask again. It is lost: look."""
        place = self.replay_locks.places.get(int(event.name))
        if place is None:
            return
        if place.waits:
            if event.kind == "deadlock":
                place.deadlock = event.payload
            self.replay_locks.lock_requests[place.ask.number] = place.ask
        elif place.lease is not None and not place.lease.lost and event.kind == "lock":
            self._look(place)

    def answers(self, answers: Sequence[LockAnswer], sent: float) -> None:
        """The store has answered asks that were sent at that moment."""
        made: list[Make] = []
        for one in answers:
            place = self.replay_locks.places.get(one.number)
            if place is None or not place.waits:
                continue
            if one.what == "unknown":
                self._host.later(RETRY_SECONDS, partial(self._ask_again, place))
            elif one.what == "granted":
                made.append(partial(self._granted, place, one, sent))
            elif one.what != "queued" or place.deadlock:
                made.append(partial(self._refused, place, one))
        self._deliver(made)

    def leave(self) -> None:
        """The run is driven here no more: its locks stay its own, and nobody here renews them."""
        self._left = True
        for stop in self._renewed.values():
            stop()
        self._renewed.clear()

    def given(self, lock_requests: Sequence[LockRequest]) -> None:
        """These are being given back: they are not kept any more."""
        for one in lock_requests:
            if one.give and (stop := self._renewed.pop(one.number, None)) is not None:
                stop()

    def _ask_again(self, place: PendingLock) -> None:
        if not self._left and place.waits and self.replay_locks.places.get(place.ask.number) is place:
            self.replay_locks.lock_requests[place.ask.number] = place.ask
            self._again()

    def _granted(self, place: PendingLock, answers: LockAnswer, sent: float) -> j.AnyEntry | None:
        if not place.waits:
            return None
        if place.ask.ttl is not None:
            self._keep(place, answers.token, answers.floor, sent)
        return j.LockGranted(
            at=self._host.now(), number=answers.number, key=place.ask.key, token=answers.token, floor=answers.floor
        )

    def _refused(self, place: PendingLock, answers: LockAnswer) -> j.AnyEntry | None:
        if not place.waits:
            return None
        ask = place.ask
        if answers.what == "mismatch":
            detail = f"{_KINDS.get(answers.found, answers.found)}, and not {_KINDS[ask.kind]}"
            return j.LockRefused(at=self._host.now(), number=ask.number, why="mismatch", detail=detail)
        if answers.what == "too_heavy":
            detail = f"{ask.weight} of {ask.permits} permits were asked for"
            return j.LockRefused(at=self._host.now(), number=ask.number, why="too_heavy", detail=detail)
        detail = msgspec.json.decode(place.deadlock, type=str)
        return j.LockRefused(at=self._host.now(), number=ask.number, why="deadlock", detail=detail)

    # -- leases -----------------------------------------------------------------------------------------

    def _keep(self, place: PendingLock, token: int, floor: int, sent: float) -> None:
        """Have it renewed from now on."""
        ask = place.ask
        assert ask.ttl is not None  # noqa: S101
        held = LocalGrant(
            key=ask.key,
            id=attempt_of(self._run.id, ask.number),
            owner=f"run {self._run.id}",
            token=token,
            floor=floor,
            ttl=ask.ttl,
            sent=sent,
            expires_at=0,
        )
        this = weakref.ref(self)

        def over(held: LocalGrant) -> None:
            holding = this()
            if holding is not None and held.state == "lost":
                holding._host.elsewhere(partial(holding._lost, place))  # noqa: SLF001

        held.when_over(over)
        self._renewed[ask.number] = self._host.renew(held, self)

    def _look(self, place: PendingLock) -> None:
        """See whether the run still has it; and one with a lease, of which nobody here knows how long, is renewed."""
        ask, lease = place.ask, place.lease
        if self._left or lease is None or self.replay_locks.places.get(ask.number) is not place:
            return
        sent = elapsed()

        def answered(outcome: Outcome | HoldfastError) -> None:
            if self._left or self.replay_locks.places.get(ask.number) is not place:
                return
            if isinstance(outcome, Renewed):
                if ask.ttl is not None and ask.number not in self._renewed:
                    self._keep(place, lease.token, lease.floor, sent)
            elif isinstance(outcome, StoreUnavailable):
                self._host.later(RETRY_SECONDS, partial(self._look, place))
            else:
                self._lost(place)

        command = Renew(key=ask.key, id=attempt_of(self._run.id, ask.number), token=lease.token, ttl=ask.ttl)
        self._host.send(command, answered)

    def _lost(self, place: PendingLock) -> None:
        self._renewed.pop(place.ask.number, None)
        if not self._left and self.replay_locks.places.get(place.ask.number) is place:
            self._deliver([lambda: j.LockLost(at=self._host.now(), number=place.ask.number)])
