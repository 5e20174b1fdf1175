"""The locks that belong to a run: asked for in the same step as its journal is written, and given back with its end.

A lock does not know what a run is. An attempt of a run is one like others, whose id tells the run and the number of
its ask; it needs no sign of life to wait, and holds until it is given back, or for its ttl. When it is offered what it
waits for, that is an event for its run, in the same step: a run that nobody drives becomes due.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

from ..errors import RecordUnreadable
from . import lock
from . import outcomes as out
from .asks import Ask, Said, asker_of, attempt_of
from .record import EMPTY, Holder, Label
from .run import Event, Locks, Run
from .run_book import Book
from .run_parts import post


def ask(book: Book, now: int, run: Run, asks: Sequence[Ask]) -> tuple[tuple[Said, ...], Locks, tuple[str, ...]]:
    """Carry out what a run asks of locks. Returns what they said, what it has then, and who was offered something."""
    has = dict(run.locks)
    said = []
    woken: tuple[str, ...] = ()
    for one in asks:
        outcome = _carried_out(book, now, run.id, one)
        woken += outcome.woken
        said.append(_said(one, outcome))
        if said[-1].what in ("granted", "queued"):
            has[one.number] = one.key
        else:
            has.pop(one.number, None)
    return tuple(said), tuple(sorted(has.items())), woken


def said_before(book: Book, now: int, run: str, asks: Sequence[Ask]) -> tuple[Said, ...]:
    """What came of asks that were carried out already, as far as it can still be seen. Nothing is changed."""
    return tuple(_seen(book, now, run, one) for one in asks)


def give_back(book: Book, now: int, run: Run) -> tuple[str, ...]:
    """Give back everything that a run has or waits for. Returns whom to tell."""
    woken: tuple[str, ...] = ()
    for number, key in run.locks:
        with suppress(RecordUnreadable):  # it is refused to everybody, and left as it is
            woken += _carried_out(book, now, run.id, Ask(number=number, key=key, give=True)).woken
    return woken + tell(book, now, woken)


def held(book: Book, now: int, run: Run) -> tuple[tuple[int, int], ...]:
    """Which of its asks a run holds at this moment, each with its token.

    What is only offered is not held yet, and what cannot be read is not known to be.
    """
    found: list[tuple[int, int]] = []
    for number, key in run.locks:
        with suppress(RecordUnreadable):
            record, _ = lock.settle(book.lock(key) or EMPTY, now, offers=False)
            found += [(number, holder.token) for holder in record.holders if _is(holder, run.id, number)]
    return tuple(found)


def tell(book: Book, now: int, woken: Iterable[str]) -> tuple[str, ...]:
    """Runs that were offered something hear of it by an event. Returns whom to tell of that."""
    hints: tuple[str, ...] = ()
    for attempt in woken:
        if (asker := asker_of(attempt)) is None:
            continue
        name, number = asker
        with suppress(RecordUnreadable):  # one that is damaged must not keep others from giving back what they have
            run = book.run(name)
            if run is not None and run.living:
                hints += post(book, now, run, Event(kind="lock", name=str(number))).woken
    return hints


def _carried_out(book: Book, now: int, run: str, asked: Ask) -> out.Outcome:
    before, attempt = book.lock(asked.key) or EMPTY, attempt_of(run, asked.number)
    if asked.give:
        after, outcome = lock.abandon(before, now, id=attempt, ttl=0)
    else:
        after, outcome = lock.acquire(
            before,
            now,
            id=attempt,
            label=Label(name=f"run {run}"),
            kind=asked.kind,
            permits=asked.permits,
            weight=asked.weight,
            ttl=asked.ttl,
            queue=True,
            waiter_ttl=None,
        )
    if after is not before:
        book.put_lock(asked.key, after)
    return outcome


def _said(asked: Ask, outcome: out.Outcome) -> Said:
    match outcome:
        case out.Granted():
            return Said(number=asked.number, what="granted", token=outcome.token, floor=outcome.floor)
        case out.Queued():
            return Said(number=asked.number, what="queued")
        case out.Abandoned():
            return Said(number=asked.number, what="given")
        case out.Mismatch():
            return Said(number=asked.number, what="mismatch", found=outcome.found)
        case out.TooHeavy():
            return Said(number=asked.number, what="too_heavy")
        case _:
            return Said(number=asked.number, what="unknown")


def _seen(book: Book, now: int, run: str, asked: Ask) -> Said:
    if asked.give:
        return Said(number=asked.number, what="given")
    record, _ = lock.settle(book.lock(asked.key) or EMPTY, now, offers=False)
    for holder in record.holders:
        if _is(holder, run, asked.number):
            return Said(number=asked.number, what="granted", token=holder.token, floor=lock.floor(record))
    known = {holder.id for holder in record.holders} | {waiter.id for waiter in record.waiters}
    waits = attempt_of(run, asked.number) in known
    return Said(number=asked.number, what="queued" if waits else "unknown")


def _is(holder: Holder, run: str, number: int) -> bool:
    return holder.id == attempt_of(run, number) and not holder.offered
