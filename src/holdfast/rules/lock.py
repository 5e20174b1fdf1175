"""The rules for every lock: pure functions from a record, a request and the time to a new record.

Each rule is a method of `LockState`, which is a record in its working form (see `working_record.py`). Any number of
rules may be applied to it, one after the other. The functions at the end of this module are the same rules for one
command. Every rule settles the record first and last. So after a release the next waiter gets its offer in the same
atomic step. Every grant has a token that is higher than all tokens before it and follows the clock. A holder or
waiter whose `expires_at` equals `now` has expired. A rule that changes nothing returns the same record object.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Concatenate, ParamSpec

from msgspec.structs import replace

from . import lock_outcomes as out
from .lock_record import EMPTY, Forced, Holder, Kind, Label, LockRecord, Tombstone, Waiter
from .working_record import HINTED_AFTER_A_MISS, MAX_TOMBSTONES, OFFER_LIFE, RETENTION, WorkingRecord, next_token

__all__ = [
    "HINTED_AFTER_A_MISS",
    "MAX_TOMBSTONES",
    "MAX_WAITERS",
    "OFFER_LIFE",
    "RETENTION",
    "LockState",
    "Step",
    "abandon",
    "acquire",
    "floor",
    "force_release",
    "next_token",
    "pass_over",
    "release",
    "removable",
    "renew",
    "settle",
    "transfer",
]  # fmt: skip

MAX_WAITERS = 10_000
"""How many waiters one key may have, not counting those that do not expire."""

P = ParamSpec("P")
Step = tuple[LockRecord, out.Outcome]


class LockState(WorkingRecord):
    """A record at one moment, with a method for each rule.

    `overflowed` is the waiter that the last `acquire` counted but did not list: the caller stores it.
    """

    __slots__ = ("overflowed",)

    overflowed: Waiter | None

    def answer(self, rule: Callable[[LockState], out.Outcome]) -> out.Outcome:
        """Apply one rule. The outcome also lists the attempts that it granted or hinted."""
        self.woken, self.hinted = [], []
        outcome = rule(self)
        if self.woken or self.hinted:
            return replace(outcome, woken=(*outcome.woken, *self.woken), hinted=(*outcome.hinted, *self.hinted))
        return outcome

    def acquire(
        self,
        *,
        id: str,
        label: Label,
        kind: Kind,
        permits: int,
        weight: int,
        ttl: int | None,
        queue: bool,
        waiter_ttl: int | None,
        delay: int = 0,
        listens: bool = False,
        listed: int | None = None,
    ) -> out.Outcome:
        """Grant a permit, confirm an offer, queue the attempt, or refuse it.

        The same attempt, sent again, gets the same grant (and its full ttl), or keeps its position. Only a new
        attempt changes the number of permits. `listed` is how many waiters that do not expire the record may list:
        a further one is only counted in the overflow (`overflowed`), and the caller stores it.
        """
        self.overflowed = None
        self.settle()
        held = self.holders.get(id)
        if held is not None:
            return self._confirm(held, ttl=ttl, delay=delay)
        waiting = self.waiters.get(id)
        refusal = self._refusal(id, kind, permits, weight, waiting)
        if refusal is not None:
            return refusal
        permits_before = None
        if waiting is None and (permits != self.permits or kind != self.kind):
            permits_before = self.permits if permits != self.permits and self.fence else None
            self.reshape(kind, permits)
            self.hand_over()
        me = Waiter(
            id=id,
            label=label,
            since=self.now if waiting is None else waiting.since,
            ttl=waiter_ttl,
            expires_at=self._ends_after(waiter_ttl) if waiting is None else self._prolonged(waiting, waiter_ttl),
            weight=weight if waiting is None else waiting.weight,
            delay=delay,
            number=self.next_number if waiting is None else waiting.number,
            missed=0 if waiting is None else waiting.missed,
            listens=listens,
            unknown=None if waiting is None else waiting.unknown,
        )
        position = self.ahead_of(me.number) if self.line or self.overflow is not None else 0
        if not position and me.weight <= self.free and not self.closed_until:
            return self._grant(me, ttl, permits_before)
        if waiting is not None or (queue and (waiter_ttl is None or self._has_room())):
            if waiting is None and listed is not None and self._is_listed_to_the_full(listed):
                self.overflowed = me
            return self._wait(me, position, permits_before)
        if queue:
            return out.TooManyWaiters(waiting=self.waiting, permits_before=permits_before)
        return out.Busy(
            holders=self.held,
            waiting=self.waiting,
            now=self.now,
            retry_in=self._until(self.soonest()),
            permits_before=permits_before,
        )

    def _refusal(self, id: str, kind: Kind, permits: int, weight: int, waiting: Waiter | None) -> out.Outcome | None:
        """The refusal of an attempt that does not hold, whatever is free; None if it is not refused."""
        stone = self.tombstones.get(id) if self.tombstones else None
        if stone is not None:
            return out.TooHeavy(permits=self.permits) if stone.reason == "never_fits" else out.Gone()
        if self.kind != kind and (self.holders or self.waiting):
            return out.Mismatch(found=self.kind)
        if waiting is None and weight > permits:
            return out.TooHeavy(permits=permits)
        return None

    def _has_room(self) -> bool:
        """Whether the queue has room for one more waiter that expires."""
        waiters = self.waiters
        return len(waiters) < MAX_WAITERS or sum(one.ttl is not None for one in waiters.values()) < MAX_WAITERS

    def _is_listed_to_the_full(self, most: int) -> bool:
        """Whether a new waiter that does not expire goes into the overflow: after the first, every later one does."""
        return self.overflow is not None or sum(one.ttl is None for one in self.waiters.values()) >= most

    def _prolonged(self, place: Waiter, ttl: int | None) -> int | None:
        """Until when a position is kept after this sign of life. One that was prolonged just now stays as it is."""
        ends = place.expires_at
        if ends is None or ttl is None or place.ttl != ttl or place.passed or (ends - self.now) * 5 < ttl * 3:
            return self._ends_after(ttl)
        return ends

    def _grant(self, me: Waiter, ttl: int | None, permits_before: int | None) -> out.Granted:
        token = self.next_token
        self.leave(me.id)
        self.fence = token
        expires_at = self._ends_after(ttl)
        self.hold(
            Holder(
                id=me.id,
                label=me.label,
                token=token,
                since=self.now,
                ttl=ttl,
                expires_at=expires_at,
                weight=me.weight,
                delay=me.delay,
                unknown=me.unknown,
            )
        )
        self.settle()
        return out.Granted(
            token=token, floor=self.floor, since=self.now, expires_at=expires_at, permits_before=permits_before
        )

    def _wait(self, me: Waiter, position: int, permits_before: int | None) -> out.Queued:
        if self.overflowed is None:
            self.queue(me)
        else:
            self.overflow_with(me.number)
        self.settle()
        return out.Queued(
            position=position,
            holders=self.held,
            now=self.now,
            recheck_in=self._until(self.soonest() if self.waiting else None),
            permits_before=permits_before,
        )

    def _confirm(self, held: Holder, *, ttl: int | None, delay: int) -> out.Granted:
        confirmed = replace(
            held,
            ttl=ttl,
            expires_at=self._ends_after(ttl),
            offered=False,
            place=None,
            delay=delay,
            since=self.now if held.offered else held.since,
        )
        self.hold(confirmed)
        self.settle()
        return out.Granted(
            token=confirmed.token, floor=self.floor, since=confirmed.since, expires_at=confirmed.expires_at
        )

    def renew(self, *, id: str, token: int | None, ttl: int | None) -> out.Outcome:
        """Prolong a grant of this attempt and token; that confirms an offer. An expired grant stays expired."""
        self.settle()
        held = self._held_by(id, token)
        if held is None:
            return out.NotHolder()
        longer = replace(held, ttl=ttl, expires_at=self._ends_after(ttl), offered=False, place=None)
        self.hold(longer)
        self.settle()
        return out.Renewed(floor=self.floor, expires_at=longer.expires_at)

    def release(self, *, id: str, token: int | None) -> out.Outcome:
        """End a grant of this attempt and token, and offer the free permits to the queue."""
        self.settle()
        if self._held_by(id, token) is None:
            return out.NotHolder()
        self.let_go(id)
        self.settle()
        return out.Released()

    def pass_over(self, *, id: str, token: int) -> out.Outcome:
        """End an offer of this attempt and token that is not confirmed yet, as if it had expired."""
        self.settle()
        held = self.holders.get(id)
        if held is None or held.token != token or held.place is None:
            return out.NotHolder()
        self.let_go(id)
        self.miss([held])
        self.settle()
        return out.PassedOver()

    def abandon(self, *, id: str, ttl: int, overflowed: bool = False) -> out.Outcome:
        """Remove an attempt by its id alone, whether it holds or waits, and refuse it for one ttl.

        `overflowed`: the caller knows that it is counted in the overflow.
        """
        self.settle()
        was = "nothing"
        if self.let_go(id) is not None:
            was = "holder"
        elif self.leave(id) is not None:
            was = "waiter"
        elif overflowed:
            self.leave_overflow()
            was = "waiter"
        if ttl > 0:
            self.keep_out(Tombstone(id=id, ttl=ttl, expires_at=self.now + ttl))
        else:
            self.forget(id)
        self.settle()
        return out.Abandoned(was=was)

    def transfer(self, *, id: str, token: int | None, to_id: str, to_label: Label, ttl: int | None) -> out.Outcome:
        """Transfer a grant to another attempt in one step, under a new and higher token."""
        self.settle()
        held = self._held_by(id, token)
        target = self.holders.get(to_id)
        if held is None and target is not None and target.via == id:
            return self._transferred(target)
        if held is None:
            return out.NotHolder()
        if target is not None:
            return out.TargetHolds()
        fresh = self.next_token
        successor = replace(
            held,
            id=to_id,
            label=to_label,
            token=fresh,
            since=self.now,
            ttl=ttl,
            expires_at=self._ends_after(ttl),
            via=id,
            offered=False,
            place=None,
        )
        self.let_go(id)
        self.leave(to_id)
        self.fence = fresh
        self.hold(successor)
        self.settle()
        return self._transferred(successor)

    def _transferred(self, holder: Holder) -> out.Transferred:
        return out.Transferred(token=holder.token, floor=self.floor, since=holder.since, expires_at=holder.expires_at)

    def force_release(self, *, by: str, reason: str) -> out.Outcome:
        """Remove every holder for an operator. The record stores who did it and why; the last token stays."""
        self.settle()
        put_out = self.held
        if not put_out:
            return out.ForceReleased(holders=(), now=self.now)
        self.forced = Forced(at=self.now, by=by, reason=reason, holders=tuple(str(one.label) for one in put_out))
        for holder in put_out:
            self.let_go(holder.id)
        self.settle()
        return out.ForceReleased(holders=put_out, now=self.now)

    def settled(self, *, leaving: bool = False) -> out.Outcome:
        """Remove expired entries and offer the free permits. `leaving`: hint the waiters behind an offer."""
        self.settle()
        ends = [holder.expires_at for holder in self.held if holder.place is not None]
        if leaving and ends:
            mortal = [waiter.id for waiter in self.waiters.values() if waiter.ttl is not None]
            self.hinted += mortal[:HINTED_AFTER_A_MISS]
        return out.Settled(offer_ends_in=self._until(min((end for end in ends if end is not None), default=None)))

    def inspect(self) -> out.Outcome:
        """Return the record as it would be after settling. Nothing is changed and nothing is offered."""
        record = self.record()
        return out.LockSeen(record=None if record == EMPTY else settle(record, self.now, offers=False)[0], now=self.now)

    def _held_by(self, id: str, token: int | None) -> Holder | None:
        """The grant of this attempt that has not expired; only a `lease` may be named by its owner alone."""
        held = self.holders.get(id)
        if held is None or (token is None and self.kind != "lease"):
            return None
        return held if token is None or held.token == token else None

    def _ends_after(self, ttl: int | None) -> int | None:
        return None if ttl is None else self.now + ttl

    def _until(self, moment: int | None) -> int | None:
        return None if moment is None else max(0, moment - self.now)


def settle(record: LockRecord, now: int, *, offers: bool = True) -> tuple[LockRecord, tuple[str, ...]]:
    """Remove expired entries, then offer free permits to the queue in order. Returns the attempts with an offer.

    With `offers=False` nothing is offered: a free permit stays free until the first waiter acquires it.
    """
    lock = LockState(record, now, offers=offers)
    lock.settle()
    return lock.record(), tuple(lock.woken)


def floor(record: LockRecord) -> int:
    """The lowest token among the holders; if there is no holder, the last token."""
    return min((holder.token for holder in record.holders), default=record.fence)


def removable(record: LockRecord, now: int, *, retention: int = RETENTION) -> bool:
    """Whether a record may be removed: it has no holder or waiter, and its fence is long behind the clock.

    A token that follows the clock will then be higher than any that this key ever issued.
    """
    record, _ = settle(record, now)
    return (
        record.idle
        and not record.tombstones
        and not record.closed_until
        and not record.unknown  # written by a newer version, which alone may remove it
        and record.fence < now - retention
        and (record.forced is None or record.forced.at < now - retention)
    )


def _alone(rule: Callable[Concatenate[LockState, P], out.Outcome]) -> Callable[Concatenate[LockRecord, int, P], Step]:
    """A rule as a function of a record and the time."""

    def decided(record: LockRecord, now: int, /, *args: P.args, **asked: P.kwargs) -> Step:
        lock = LockState(record, now)
        outcome = lock.answer(lambda one: rule(one, *args, **asked))
        return lock.record(), outcome

    return decided


acquire = _alone(LockState.acquire)
renew = _alone(LockState.renew)
release = _alone(LockState.release)
pass_over = _alone(LockState.pass_over)
abandon = _alone(LockState.abandon)
transfer = _alone(LockState.transfer)
force_release = _alone(LockState.force_release)
