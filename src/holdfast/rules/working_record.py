"""A lock record while commands are decided on it: holders and waiters by id, changed in place.

It is read once, settled once, changed by any number of commands, and written once. So a batch of a thousand commands
about one key costs about one pass over the record. `settle` removes expired holders and waiters, and offers free
permits to the queue. The waiter confirms an *offer* by sending its command again.

**Offers that expire.** An offer lasts for `OFFER_LIFE`, doubled for each offer that this waiter has missed before, and
never longer than the waiter's position is kept. A waiter that misses its offer goes back to its position and is passed
over: it gets no offer and blocks no other waiter until its next sign of life. The processes of the next waiters may
have ended as well. So all waiters are passed over together and the first few get a hint: the first of them that sends
its command gets the free permit. So a permit stays unused for the time of one offer, not of one offer per crashed
waiter. Waiters that do not expire get offers that do not expire.

**Overflow.** Thousands of runs may wait for one lock. Only the first of them are listed in the record. The others are
counted in `overflow`, and `more` reads the next of them when it is their turn. Later waiters are served after them.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import TypeVar

from msgspec.structs import replace

from .lock_record import Forced, Holder, Kind, LockRecord, Overflow, Tombstone, Waiter

MAX_TOMBSTONES = 64
RETENTION = 7 * 86_400 * 1_000_000
OFFER_LIFE = 1_000_000
"""Microseconds after which a first offer expires unless it is confirmed."""
MAX_DOUBLINGS = 20
HINTED_AFTER_A_MISS = 16
"""How many waiters are hinted together after an offer was missed."""

More = Callable[[Overflow], tuple[Sequence[Waiter], Overflow | None]]
"""Takes the next waiters out of the overflow. Returns them in their order, and the overflow that is left."""

Mortal = TypeVar("Mortal", Holder, Waiter, Tombstone)


class WorkingRecord:
    """The parts of one record at one moment, and the changes that were made to them."""

    __slots__ = (
        "_before",
        "_ends",
        "_held",
        "_places",
        "_settled",
        "_touched",
        "closed_for",
        "closed_until",
        "fence",
        "forced",
        "hinted",
        "holders",
        "kind",
        "line",
        "load",
        "more",
        "now",
        "offers",
        "overflow",
        "permits",
        "tombstones",
        "waiters",
        "woken",
    )

    def __init__(self, record: LockRecord, now: int, *, offers: bool = True, more: More | None = None) -> None:
        self.now = now
        self.offers = offers  # False: nothing is offered, a free permit stays free until the first waiter acquires it
        self.more = more  # None: the overflow is left as it is
        self.read(record)

    def read(self, record: LockRecord) -> None:
        """Begin with this record."""
        self._before = record
        self.kind: Kind = record.kind
        self.permits = record.permits
        self.fence = record.fence
        self.closed_until = record.closed_until
        self.closed_for = record.closed_for
        self.forced: Forced | None = record.forced
        self.overflow = record.overflow
        self.holders: dict[str, Holder] = {}  # in the order of their tokens
        self.waiters: dict[str, Waiter] = {}  # in the order of their numbers
        self.tombstones = {stone.id: stone for stone in record.tombstones} if record.tombstones else {}
        self.line: list[tuple[int, str]] = []  # the waiters that are not passed over, in the same order
        self.load = 0
        self._places: dict[str, int] = {}  # the numbers of the waiters that have an offer
        for holder in record.holders:
            self.holders[holder.id] = holder
            self.load += holder.weight
            if holder.place is not None:
                self._places[holder.id] = holder.place.number
        if record.waiters:
            self.waiters = {waiter.id: waiter for waiter in record.waiters}
            self.line = [(waiter.number, waiter.id) for waiter in self.waiters.values() if not waiter.passed]
        self._held: tuple[Holder, ...] | None = record.holders
        self._ends: list[tuple[int, str]] | None = None  # a heap; its entries for what has changed since are ignored
        self._settled = self._touched = False
        self.woken: list[str] = []
        self.hinted: list[str] = []

    def record(self) -> LockRecord:
        """The record to write: if nothing has changed, the same object that was read, otherwise its next version."""
        before = self._before
        if not self._touched:
            return before
        holders, waiters, stones = self.held, tuple(self.waiters.values()), tuple(self.tombstones.values())
        if (
            holders == before.holders
            and waiters == before.waiters
            and self.fence == before.fence
            and stones == before.tombstones
            and (self.kind, self.permits) == (before.kind, before.permits)
            and (self.closed_until, self.forced, self.overflow) == (before.closed_until, before.forced, before.overflow)
        ):
            return before
        return LockRecord(
            kind=self.kind,
            permits=self.permits,
            fence=self.fence,
            version=before.version + 1,
            holders=holders,
            waiters=waiters,
            tombstones=stones,
            closed_until=self.closed_until,
            closed_for=self.closed_for,
            due_at=self.soonest() if self.waiting else None,
            forced=self.forced,
            overflow=self.overflow,
            unknown=before.unknown,
        )

    # ---------------------------------------------------------------- what can be seen

    @property
    def held(self) -> tuple[Holder, ...]:
        """The holders, as they are stored."""
        if self._held is None:
            self._held = tuple(self.holders.values())
        return self._held

    @property
    def free(self) -> int:
        """How many permits are free."""
        return self.permits - self.load

    @property
    def waiting(self) -> int:
        """How many attempts wait, listed in the record or not."""
        return len(self.waiters) + (0 if self.overflow is None else self.overflow.count)

    @property
    def floor(self) -> int:
        """The lowest token among the holders; if there is no holder, the last token."""
        for holder in self.holders.values():
            return holder.token
        return self.fence

    @property
    def next_token(self) -> int:
        """The token of the next grant: above every earlier one, and not behind the clock."""
        return next_token(self.fence, self.now)

    @property
    def next_number(self) -> int:
        """The number of the next arrival: above those of all waiters, and of all that may go back to their position."""
        last = max(self._places.values()) if self._places else -1
        if self.overflow is not None:
            last = max(last, self.overflow.last)
        for waiter in reversed(self.waiters.values()):
            return max(last, waiter.number) + 1
        return last + 1

    def ahead_of(self, number: int) -> int:
        """How many eligible waiters arrived before this number; of those in the overflow, the largest count."""
        ahead = bisect_left(self.line, (number, ""))
        if self.overflow is not None and number > self.overflow.first:
            ahead += min(self.overflow.count, number - self.overflow.first)
        return ahead

    def soonest(self) -> int | None:
        """The earliest moment at which time alone can change the record."""
        ends = self._ends
        if ends is None:
            things: list[Holder | Waiter] = [*self.holders.values(), *self.waiters.values()]
            ends = self._ends = [(one.expires_at, one.id) for one in things if one.expires_at is not None]
            heapify(ends)
        while ends and not self._ends_at(*ends[0]):
            heappop(ends)
        if self.closed_until:
            return min(self.closed_until, ends[0][0]) if ends else self.closed_until
        return ends[0][0] if ends else None

    def _ends_at(self, moment: int, id: str) -> bool:
        thing = self.holders.get(id) or self.waiters.get(id)
        return thing is not None and thing.expires_at == moment

    # ---------------------------------------------------------------- changes

    def hold(self, holder: Holder) -> None:
        """Write a holder, new or changed. A new one has the highest token."""
        known = self.holders.get(holder.id)
        if known == holder:
            return
        self._touched, self._held = True, None
        self.holders[holder.id] = holder
        self.load += holder.weight - (0 if known is None else known.weight)
        if holder.place is not None:
            self._places[holder.id] = holder.place.number
        elif self._places:
            self._places.pop(holder.id, None)
        self._mind(holder)

    def let_go(self, id: str) -> Holder | None:
        """Remove a holder."""
        holder = self.holders.pop(id, None)
        if holder is not None:
            self._touched, self._held = True, None
            self.load -= holder.weight
            self._places.pop(id, None)
        return holder

    def queue(self, waiter: Waiter) -> None:
        """Write a waiter at its position, or a new one at the end. It can get an offer."""
        known = self.waiters.get(waiter.id)
        if known == waiter:
            return
        self._touched = True
        self.waiters[waiter.id] = waiter
        if known is None or known.passed:
            insort(self.line, (waiter.number, waiter.id))
        self._mind(waiter)

    def leave(self, id: str) -> Waiter | None:
        """Remove a waiter from the queue."""
        waiter = self.waiters.pop(id, None)
        if waiter is not None:
            self._touched = True
            if not waiter.passed:
                entry = (waiter.number, id)
                place = bisect_left(self.line, entry)
                # A record that no rule has written may be out of order.
                del self.line[place if self.line[place : place + 1] == [entry] else self.line.index(entry)]
        return waiter

    def overflow_with(self, number: int) -> None:
        """Count one more waiter that is not listed here; it has the highest number."""
        self._touched = True
        known = self.overflow
        self.overflow = (
            Overflow(1, number, number) if known is None else replace(known, count=known.count + 1, last=number)
        )

    def leave_overflow(self) -> None:
        """Count one waiter less."""
        self._touched = True
        if self.overflow is not None:
            left = self.overflow.count - 1
            self.overflow = replace(self.overflow, count=left) if left > 0 else None

    def keep_out(self, stone: Tombstone) -> None:
        """Refuse this attempt from now on. The oldest of too many tombstones is removed."""
        self._touched = True
        self.tombstones.pop(stone.id, None)
        self.tombstones[stone.id] = stone
        while len(self.tombstones) > MAX_TOMBSTONES:
            del self.tombstones[next(iter(self.tombstones))]

    def forget(self, id: str) -> None:
        """Refuse this attempt no longer."""
        self._touched |= self.tombstones.pop(id, None) is not None

    def reshape(self, kind: Kind, permits: int) -> None:
        """Set the kind (of an idle record) and the number of permits. Waiters that can no longer fit are removed."""
        self._touched = True
        self.kind, self.permits = kind, permits
        for waiter in [one for one in self.waiters.values() if one.weight > permits]:
            self.leave(waiter.id)
            self._never_fits(waiter)

    def _never_fits(self, waiter: Waiter) -> None:
        """Remember why a waiter was removed. One that does not expire is hinted: it sends no signs of life."""
        if waiter.ttl is None:
            self.hinted.append(waiter.id)
        ttl = waiter.ttl or RETENTION
        self.keep_out(Tombstone(id=waiter.id, ttl=ttl, expires_at=self.now + ttl, reason="never_fits"))

    def _mind(self, thing: Holder | Waiter) -> None:
        """Note when a holder or waiter expires. One that has expired already is removed by the next settling."""
        ends = thing.expires_at
        if ends is not None:
            if ends <= self.now:
                self._settled = False
            if self._ends is not None:
                heappush(self._ends, (ends, thing.id))

    # ---------------------------------------------------------------- time, and what follows from it

    def settle(self) -> None:
        """Remove expired entries, then offer free permits to the queue in order; once for each time."""
        if not self._settled:
            self._settled = True
            self._end_what_has_ended()
        self.hand_over()

    def hand_over(self) -> None:
        """Offer free permits to the eligible waiters in order. The first that does not fit blocks those behind it."""
        if not self.offers or self.closed_until:
            return
        while self.free > 0:
            line = self.line
            if self.overflow is not None and not (line and line[0][0] < self.overflow.first):
                if self.more is None:
                    return
                self._take_from_overflow(*self.more(self.overflow))
                continue
            if not line:
                return
            head = self.waiters[line[0][1]]
            if head.weight > self.free:
                return
            self.leave(head.id)
            self.fence = self.next_token
            self.hold(_offer(head, self.fence, self.now))
            self.woken.append(head.id)

    def _take_from_overflow(self, waiters: Sequence[Waiter], left: Overflow | None) -> None:
        """List these waiters here, at their positions."""
        self._touched = True
        self.overflow = left if waiters else None
        for waiter in waiters:
            if waiter.weight > self.permits:
                self._never_fits(waiter)
            else:
                self.queue(waiter)
        self.waiters = _in_order(self.waiters)

    def miss(self, offers: Sequence[Holder]) -> None:
        """Put the waiters of these expired offers back to their positions. The first one that acquires gets the permit.

        Nothing else tells whose process has ended, so from here on only waiters that send their command again get
        offers.
        """
        for offer in offers:
            place = None if offer.place is None else _lowered(offer.place, self.now)
            if place is None:
                continue
            if place.weight > self.permits:
                self._never_fits(place)
            else:
                self.waiters[place.id] = replace(place, missed=place.missed + 1, passed=True)
                self._mind(place)
        self._touched = True
        self.waiters = _in_order(self.waiters)
        called = [one for one in self.waiters.values() if not one.passed and one.ttl is not None]
        for waiter in called:
            self.waiters[waiter.id] = replace(waiter, passed=True)
        self.hinted += [waiter.id for waiter in called[:HINTED_AFTER_A_MISS]]
        self.line = [(waiter.number, waiter.id) for waiter in self.waiters.values() if not waiter.passed]

    def _end_what_has_ended(self) -> None:
        now = self.now
        missed = []
        for holder in _strayed(self.holders.values(), now):
            lowered = _lowered(holder, now)
            if lowered is not None:
                self.hold(lowered)
                continue
            self.let_go(holder.id)
            if holder.offered:
                missed.append(holder)
            elif holder.delay and holder.expires_at is not None:
                self.closed_until = max(self.closed_until, holder.expires_at + holder.delay)
                self.closed_for = max(self.closed_for, holder.delay)
        if self.waiters:
            for waiter in _strayed(self.waiters.values(), now):
                lowered_place = _lowered(waiter, now)
                if lowered_place is None:
                    self.leave(waiter.id)
                else:
                    self.waiters[waiter.id] = lowered_place
                    self._touched = True
                    self._mind(lowered_place)
        if self.tombstones:
            for stone in _strayed(self.tombstones.values(), now):
                self._touched = True
                lowered_stone = _lowered(stone, now)
                if lowered_stone is None:
                    del self.tombstones[stone.id]
                else:
                    self.tombstones[stone.id] = lowered_stone
        if self.closed_until:
            self._reopen()
        if missed:
            self.miss(missed)

    def _reopen(self) -> None:
        """End a lock-delay that is over; a clock step does not prolong it."""
        until = min(self.closed_until, self.now + self.closed_for)
        if until <= self.now:
            until = self.closed_for = 0
        if until != self._before.closed_until:
            self._touched = True
        self.closed_until = until


def next_token(fence: int, now: int) -> int:
    """The token of the next grant: above every earlier one, and not behind the clock."""
    return max(fence + 1, now)


def _offer(waiter: Waiter, token: int, now: int) -> Holder:
    """The offer to a waiter. It expires only if the waiter does."""
    ttl, expires_at = waiter.ttl, waiter.expires_at
    if ttl is not None and expires_at is not None:
        ttl = min(ttl, OFFER_LIFE << min(waiter.missed, MAX_DOUBLINGS))
        expires_at = min(expires_at, now + ttl)
    return Holder(
        id=waiter.id,
        label=waiter.label,
        token=token,
        since=now,
        ttl=ttl,
        expires_at=expires_at,
        weight=waiter.weight,
        offered=True,
        delay=waiter.delay,
        place=None if ttl is None else waiter,
        unknown=waiter.unknown,
    )


def _strayed(things: Iterable[Mortal], now: int) -> list[Mortal]:
    """Those that have expired, and those whose expiry a clock step has moved beyond their ttl."""
    return [
        thing
        for thing in things
        if thing.expires_at is not None and not now < thing.expires_at <= now + (thing.ttl or 0)
    ]


def _lowered(thing: Mortal, now: int) -> Mortal | None:
    """The holder or waiter with its expiry at most one ttl from now; None if it has expired."""
    expires_at = thing.expires_at
    if expires_at is None:
        return thing
    ends = min(expires_at, now + (thing.ttl or 0))
    if ends <= now:
        return None
    lowered = thing if ends == expires_at else replace(thing, expires_at=ends)
    if isinstance(lowered, Holder) and lowered.place is not None:
        place = _lowered(lowered.place, now)
        return lowered if place is lowered.place else replace(lowered, place=place)
    return lowered


def _in_order(waiters: dict[str, Waiter]) -> dict[str, Waiter]:
    return dict(sorted(waiters.items(), key=lambda item: item[1].number))
