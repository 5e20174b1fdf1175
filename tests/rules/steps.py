"""One step of a lock, as the invariants of `invariants.py` see it: which attempts took part, and what each may get."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from holdfast.rules import lock_outcomes as out
from holdfast.rules.lock_record import Holder, LockRecord, Tombstone, Waiter

Expiring = TypeVar("Expiring", Holder, Waiter, Tombstone)


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """A command in plain values, because the commands are in a layer above. `verb` is the command's name."""

    verb: str
    id: str = ""
    token: int | None = None
    to_id: str = ""

    @classmethod
    def of(cls, command: object) -> Asked:
        """The compared fields of any command of a lock.

        >>> Asked.of(Asked(verb="", id="a", token=7))
        Asked(verb='Asked', id='a', token=7, to_id='')
        """
        return cls(
            verb=type(command).__name__,
            id=getattr(command, "id", ""),
            token=getattr(command, "token", None),
            to_id=getattr(command, "to_id", ""),
        )


class Change:
    """One step, and values derived from it that several invariants need."""

    __slots__ = (
        "after", "answer", "asked", "before", "called", "direct", "fresh", "holding", "left", "line", "missed", "named",
        "now", "queue", "stones",
    )  # fmt: skip

    def __init__(self, before: LockRecord, asked: Asked, after: LockRecord, answer: out.Outcome, now: int) -> None:
        self.before, self.asked, self.after, self.answer, self.now = before, asked, after, answer, now
        self.holding = {holder.id: holder for holder in living(before.holders, now)}
        self.stones = {stone.id: stone for stone in living(before.tombstones, now)}
        self._line_up()
        tokens = {holder.token for holder in before.holders}
        self.fresh = [holder for holder in after.holders if holder.token not in tokens]
        staying = {waiter.id for waiter in after.waiters}
        self.left = [waiter for waiter in self.queue.values() if waiter.id not in staying]
        # The attempts that this step may change, and the one that it granted other than by an offer.
        self.named: set[str] = set()
        if isinstance(answer, out.Granted | out.Queued | out.Renewed | out.Released | out.Abandoned | out.PassedOver):
            self.named = {asked.id}
        elif isinstance(answer, out.Transferred) and answer.token not in tokens:
            self.named = {asked.id, asked.to_id}
        elif isinstance(answer, out.ForceReleased):
            self.named = {*self.holding, *answer.woken}
        self.direct = ""
        if isinstance(answer, out.Granted | out.Transferred) and answer.token not in tokens:
            self.direct = asked.to_id or asked.id
            if isinstance(answer, out.Granted) and asked.id in answer.woken:
                self.direct = ""

    def _line_up(self) -> None:
        """The waiters of this step, those that could get an offer, and those that were hinted after a missed offer."""
        lapsed = [one for one in self.before.holders if one.offered and one.id not in self.holding]
        self.missed: dict[str, Waiter | None] = {one.id: one.place for one in lapsed}
        missed = bool(lapsed)
        waiting = living(self.before.waiters, self.now)
        if isinstance(self.answer, out.PassedOver) and self.asked.id in self.holding:
            self.missed[self.asked.id] = self.holding[self.asked.id].place
        self.line = [one for one in waiting if not one.passed and not (missed and one.ttl is not None)]
        self.called: list[Waiter] = []
        if missed or isinstance(self.answer, out.PassedOver):
            eligible = [one for one in waiting if not one.passed and one.ttl is not None]
            self.called = [one for one in eligible if one.id not in self.answer.woken]
        back = [lowered(one, self.now) for one in self.missed.values() if one is not None]
        fits = [
            replace(one, missed=one.missed + 1, passed=True)
            for one in back
            if one.expires_at is not None and one.expires_at > self.now and one.weight <= self.before.permits
        ]
        self.queue = {one.id: one for one in sorted([*waiting, *fits], key=lambda one: one.number)}


def everyone(record: LockRecord) -> list[Holder | Waiter]:
    """All holders and all waiters."""
    return [*record.holders, *record.waiters]


def living(things: tuple[Expiring, ...], now: int) -> list[Expiring]:
    """Those that have not expired."""
    return [thing for thing in things if thing.expires_at is None or thing.expires_at > now]


def lowered(thing: Expiring, now: int) -> Expiring:
    """The thing with its end at most one ttl from now, whatever the clock was set to."""
    if isinstance(thing, Holder) and thing.place is not None:
        thing = replace(thing, place=lowered(thing.place, now))
    if thing.ttl is None or thing.expires_at is None or thing.expires_at <= now + thing.ttl:
        return thing
    return replace(thing, expires_at=now + thing.ttl)


def place_of(waiter: Waiter) -> tuple[object, ...]:
    """What a waiter keeps when it acquires again."""
    return waiter.since, waiter.weight, waiter.number, waiter.missed, waiter.unknown


def identity_of(holder: Holder) -> tuple[object, ...]:
    """What a holder keeps for as long as it holds."""
    return holder.id, holder.label, holder.token, holder.weight, holder.via, holder.unknown


def floor(holders: Iterable[Holder], fence: int) -> int:
    """The lowest token, or the fence."""
    return min((holder.token for holder in holders), default=fence)


def load(record: LockRecord) -> int:
    """How many permits are taken."""
    return sum(holder.weight for holder in record.holders)
