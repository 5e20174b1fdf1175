"""A second, naive implementation of the lock: lists that are changed in place, without regard to speed.

It shares no code with `holdfast.rules.lock`. Where the two disagree on any history, one of them is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class One:
    """A holder or a waiter."""

    id: str
    weight: int
    delay: int
    ttl: int | None
    end: int | None
    token: int = 0
    offered: bool = False
    given_by: str = ""
    number: int = 0
    missed: int = 0
    passed: bool = False
    place: tuple | None = None  # of an offer: the ttl and the expiry of the position that its waiter returns to

    @property
    def expires(self) -> bool:
        return self.ttl is not None


@dataclass
class Model:
    offers: bool = True
    kind: str = "mutex"
    permits: int = 1
    fence: int = 0
    holders: list[One] = field(default_factory=list)
    queue: list[One] = field(default_factory=list)
    stones: list[list] = field(default_factory=list)  # [id, end, ttl, reason]
    closed_until: int = 0
    closed_for: int = 0
    arrivals: int = 0
    woken: list[str] = field(default_factory=list)
    hinted: list[str] = field(default_factory=list)
    now: int = 0

    def view(self) -> tuple:
        """The visible state of the lock, in the form of `view` in test_histories.py."""
        ends = [one.end for one in self.holders + self.queue if one.end is not None]
        if self.closed_until:
            ends.append(self.closed_until)
        return (
            self.kind,
            self.permits,
            self.fence,
            [
                (one.id, one.token, one.weight, one.ttl, one.end, one.offered, one.delay, one.place)
                for one in self.holders
            ],
            [(one.id, one.weight, one.ttl, one.end, one.delay, one.missed, one.passed) for one in self.queue],
            [tuple(stone) for stone in self.stones],
            (self.closed_until, self.closed_for),
            min(ends, default=None) if self.queue else None,
        )

    def settle(self):
        now = self.now
        for one in self.holders:
            if one.end is not None and one.end <= now and one.delay > 0 and not one.offered:
                self.closed_until = max(self.closed_until, one.end + one.delay)
                self.closed_for = max(self.closed_for, one.delay)
        late = [one for one in self.holders if one.end is not None and one.end <= now and one.offered]
        self.holders = [one for one in self.holders if one.end is None or one.end > now]
        self.queue = [one for one in self.queue if one.end is None or one.end > now]
        self.stones = [stone for stone in self.stones if stone[1] > now]
        for one in self.holders + self.queue:
            if one.end is not None:
                one.end = min(one.end, now + one.ttl)
            if one.place:
                one.place = (one.place[0], min(one.place[1], now + one.place[0]))
        for stone in self.stones:
            stone[1] = min(stone[1], now + stone[2])
        self.closed_until = min(self.closed_until, now + self.closed_for)
        if self.closed_until <= now:
            self.closed_until = self.closed_for = 0
        if late:
            self.miss(late)
        self.hand_over()

    def hand_over(self):
        while self.offers and not self.closed_until:
            heads = [one for one in self.queue if not one.passed][:1]
            if not heads or heads[0].weight > self.free():
                return
            one = heads[0]
            self.queue.remove(one)
            if one.expires:
                one.place = (one.ttl, one.end)
                one.ttl = min(one.ttl, 1_000_000 * 2**one.missed)
                one.end = min(one.end, self.now + one.ttl)
            self.grant(one, offered=True)
            self.woken.append(one.id)

    def miss(self, late):
        called = [one for one in self.queue if one.expires and not one.passed]
        self.hinted += [one.id for one in called[:16]]
        for one in called:
            one.passed = True
        for one in late:
            (one.ttl, one.end), one.place, one.offered = one.place, None, False
            one.missed, one.passed = one.missed + 1, True
            if one.end <= self.now:
                continue
            if one.weight > self.permits:
                self.stones = [*self.stones, [one.id, self.now + one.ttl, one.ttl, "never_fits"]][-64:]
            else:
                self.queue.append(one)
        self.queue.sort(key=lambda one: one.number)

    def free(self) -> int:
        return self.permits - sum(one.weight for one in self.holders)

    def grant(self, one: One, *, offered: bool = False) -> One:
        self.fence = self.fence + 1 if self.fence >= self.now else self.now
        one.token, one.offered = self.fence, offered
        self.holders.append(one)
        return one

    def end(self, ttl):
        return None if ttl is None else self.now + ttl

    def find(self, among: list[One], id: str) -> One | None:
        return ([one for one in among if one.id == id] or [None])[0]

    def do(self, now: int, verb: str, **asked) -> tuple:
        """Execute a command. Returns the name and the compared fields of its outcome, and the woken and hinted
        attempts."""
        self.now, self.woken, self.hinted = now, [], []
        self.settle()
        name, *details = getattr(self, verb)(**asked)
        self.settle()
        return name, tuple(details), tuple(self.woken), tuple(self.hinted)

    def acquire(self, *, id, kind, permits, weight, ttl, queue, waiter_ttl, delay):  # noqa: PLR0911 - as many answers
        held, one = self.find(self.holders, id), self.find(self.queue, id)
        stone = ([stone for stone in self.stones if stone[0] == id] or [None])[0]
        if held:
            held.ttl, held.end, held.offered, held.delay, held.place = ttl, self.end(ttl), False, delay, None
            return "Granted", held.token, held.end
        if stone:
            return ("TooHeavy", self.permits) if stone[3] == "never_fits" else ("Gone",)
        if kind != self.kind and (self.holders or self.queue):
            return "Mismatch", self.kind
        if one:
            fresh = one.expires and one.ttl == waiter_ttl and not one.passed and 5 * (one.end - self.now) >= 3 * one.ttl
            one.ttl, one.end = waiter_ttl, one.end if fresh else self.end(waiter_ttl)
            one.delay, one.passed = delay, False
            return self.enter_or_stay(one, ttl)
        if weight > permits:
            return "TooHeavy", permits
        self.reshape(kind, permits)
        blocked = [other for other in self.queue if not other.passed]
        if not queue and (blocked or weight > self.free() or self.closed_until):
            return "Busy", [other.token for other in self.holders], len(self.queue)
        self.arrivals += 1
        self.queue.append(One(id, weight, delay, waiter_ttl, self.end(waiter_ttl), number=self.arrivals))
        return self.enter_or_stay(self.queue[-1], ttl)

    def enter_or_stay(self, one, ttl):
        eligible = [other for other in self.queue if not other.passed]
        if eligible[0] is one and one.weight <= self.free() and not self.closed_until:
            self.queue.remove(one)
            one.ttl, one.end = ttl, self.end(ttl)
            return "Granted", self.grant(one).token, one.end
        return "Queued", eligible.index(one)

    def reshape(self, kind, permits):
        self.kind = kind
        if permits == self.permits:
            return
        self.permits = permits
        for one in [one for one in self.queue if one.weight > permits]:
            self.queue.remove(one)
            length = one.ttl or 7 * 24 * 3600 * 1_000_000
            self.hinted += [] if one.expires else [one.id]
            self.stones.append([one.id, self.now + length, length, "never_fits"])
        self.stones = self.stones[-64:]
        self.settle()

    def rightful(self, id, token) -> One | None:
        held = self.find(self.holders, id)
        if held and (token == held.token or (token is None and self.kind == "lease")):
            return held
        return None

    def renew(self, *, id, token, ttl):
        held = self.rightful(id, token)
        if not held:
            return ("NotHolder",)
        held.ttl, held.end, held.offered, held.place = ttl, self.end(ttl), False, None
        return "Renewed", held.end

    def release(self, *, id, token):
        held = self.rightful(id, token)
        if not held:
            return ("NotHolder",)
        self.holders.remove(held)
        return ("Released",)

    def pass_over(self, *, id, token):
        held = self.find(self.holders, id)
        if not held or held.token != token or not held.place:
            return ("NotHolder",)
        self.holders.remove(held)
        self.miss([held])
        return ("PassedOver",)

    def abandon(self, *, id, ttl):
        was = "holder" if self.find(self.holders, id) else "waiter" if self.find(self.queue, id) else "nothing"
        self.holders = [one for one in self.holders if one.id != id]
        self.queue = [one for one in self.queue if one.id != id]
        self.stones = [stone for stone in self.stones if stone[0] != id]
        self.stones = [*self.stones, [id, self.now + ttl, ttl, "abandoned"]][-64:]
        return "Abandoned", was

    def transfer(self, *, id, token, to_id, ttl):
        held, target = self.rightful(id, token), self.find(self.holders, to_id)
        if held and target:
            return ("TargetHolds",)
        if target and target.given_by == id:
            return "Transferred", target.token, target.end
        if not held:
            return ("NotHolder",)
        self.holders.remove(held)
        self.queue = [one for one in self.queue if one.id != to_id]
        given = self.grant(One(to_id, held.weight, held.delay, ttl, self.end(ttl), given_by=id))
        return "Transferred", given.token, given.end

    def force_release(self):
        gone, self.holders = [one.id for one in self.holders], []
        return "ForceReleased", gone

    def just_settle(self):
        return ("Settled",)
