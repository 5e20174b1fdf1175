"""A harness for the rules of a lock: one record, one clock, and a check of all invariants after every step."""

from __future__ import annotations

from holdfast.rules.lock import OFFER_LIFE, LockState
from holdfast.rules.lock_record import EMPTY, Label, LockRecord

from .invariants import Asked, step_violations, violations

SECOND = 1_000_000
MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
DAY = 24 * HOUR
T0 = 1_790_000_000 * SECOND  # tokens follow the clock, so test clocks start at values of our time
TTL = 30 * SECOND
PATIENCE = 5 * SECOND  # how long a waiter's position is kept after its last sign of life
OFFER = OFFER_LIFE


class LockHarness:
    def __init__(self, record: LockRecord = EMPTY, *, offers: bool = True, now: int = T0):
        self.record = record
        self.now = now
        self.offers = offers

    def later(self, length: int) -> LockHarness:
        """Let time pass, or step the clock back."""
        self.now += length
        return self

    def acquire(
        self, id, *, kind="mutex", permits=1, weight=1, ttl=TTL, queue=False, waiter_ttl=PATIENCE, delay=0, label="",
        listens=False,
    ):  # fmt: skip
        return self._step(
            Asked(verb="Acquire", id=id), LockState.acquire, id=id, label=Label(label or id), kind=kind,
            permits=permits, weight=weight, ttl=ttl, queue=queue, waiter_ttl=waiter_ttl, delay=delay, listens=listens,
        )  # fmt: skip

    def wait(self, id, **options):
        return self.acquire(id, queue=True, **options)

    def renew(self, id, token, *, ttl=TTL):
        return self._step(Asked(verb="Renew", id=id, token=token), LockState.renew, id=id, token=token, ttl=ttl)

    def release(self, id, token):
        return self._step(Asked(verb="Release", id=id, token=token), LockState.release, id=id, token=token)

    def pass_over(self, id, token):
        return self._step(Asked(verb="PassOver", id=id, token=token), LockState.pass_over, id=id, token=token)

    def abandon(self, id, *, ttl=TTL):
        return self._step(Asked(verb="Abandon", id=id), LockState.abandon, id=id, ttl=ttl)

    def transfer(self, id, token, to_id, *, ttl=TTL):
        asked = Asked(verb="Transfer", id=id, token=token, to_id=to_id)
        return self._step(asked, LockState.transfer, id=id, token=token, to_id=to_id, to_label=Label(to_id), ttl=ttl)

    def force_release(self, *, by="operator", reason="stuck"):
        return self._step(Asked(verb="ForceRelease"), LockState.force_release, by=by, reason=reason)

    def settle(self):
        """Settle the record. Returns the attempts that got an offer."""
        return self._step(Asked(verb="Settle"), LockState.settled).woken

    def holder(self, id):
        return next((holder for holder in self.record.holders if holder.id == id), None)

    def waiter(self, id):
        return next((waiter for waiter in self.record.waiters if waiter.id == id), None)

    @property
    def holding(self) -> list[str]:
        return [holder.id for holder in self.record.holders]

    @property
    def waiting(self) -> list[str]:
        return [waiter.id for waiter in self.record.waiters]

    @property
    def passed(self) -> list[str]:
        """The waiters that were passed over."""
        return [waiter.id for waiter in self.record.waiters if waiter.passed]

    def _step(self, asked, rule, **fields):
        before = self.record
        lock = LockState(before, self.now, offers=self.offers)
        answer = lock.answer(lambda lock: rule(lock, **fields))
        self.record = lock.record()
        problems = step_violations(before, asked, self.record, answer, self.now)
        problems += violations(self.record, self.now, offers=self.offers)
        assert not problems, problems
        return answer
