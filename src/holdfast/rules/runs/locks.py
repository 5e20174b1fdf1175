"""The locks that belong to a run: asked for in the same step as its journal is written, and given back with its end.

A lock does not know what a run is. An attempt of a run is one like others, whose id tells the run and the number of
its ask; it needs no sign of life to wait, and holds until it is given back, or for its ttl. When it is offered what it
waits for, that is an event for its run, in the same step: a run that nobody drives becomes due.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress

from msgspec.structs import replace

from ...errors import RecordUnreadable
from .. import lock
from .. import lock_outcomes as out
from ..lock_record import EMPTY, Holder, LockRecord
from . import lock_queue
from .helpers import post
from .lock_queue import OverflowReader, label_of
from .lock_requests import Ask, Said, asker_of, attempt_of
from .record import Event, Locks, LockWait, Run
from .repository import Book


def ask(book: Book, now: int, run: Run, asks: Sequence[Ask]) -> tuple[tuple[Said, ...], Locks, tuple[str, ...]]:
    """Carry out what a run asks of locks. Returns what they said, what it has then, and who was offered something."""
    has = dict(run.locks)
    said = []
    woken: tuple[str, ...] = ()
    for one in asks:
        current = book.run(run.id) or run  # an earlier ask may have moved it up in a queue
        outcome = _carried_out(book, now, current, one)
        woken += outcome.notified
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
            outcome = _given_back(book, now, run, Ask(number=number, key=key, give=True))
            woken += outcome.notified
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


def _carried_out(book: Book, now: int, run: Run, asked: Ask) -> out.Outcome:
    wait = _wait_of(run, asked)
    if asked.give:
        if wait is not None:  # before the queue moves up, or it might be its turn
            book.save(replace(run, waits=tuple(one for one in run.waits if one is not wait)))
        return _given_back(book, now, run, asked)
    if wait is not None:
        return out.Queued(position=0, holders=(), now=now, recheck_in=None)
    before = book.lock(asked.key) or EMPTY
    reader = OverflowReader(book, asked.key)
    working = lock.Lock(before, now, more=reader)
    outcome = working.answer(
        lambda one: one.acquire(
            id=attempt_of(run.id, asked.number),
            label=label_of(run.id),
            kind=asked.kind,
            permits=asked.permits,
            weight=asked.weight,
            ttl=asked.ttl,
            queue=True,
            waiter_ttl=None,
            listed=lock_queue.LISTED,
        )
    )
    reader.save()
    if (waiter := working.overflowed) is not None:
        entry = LockWait(asked.key, waiter.number, asked.number, waiter.since, waiter.weight)
        current = book.run(run.id) or run
        book.save(replace(current, waits=(*current.waits, entry)))
    _write(book, asked.key, working.record(), before)
    return outcome


def _given_back(book: Book, now: int, run: Run, asked: Ask) -> out.Outcome:
    """Give back what a run has or waits for. Its own record no longer says that it waits."""
    before = book.lock(asked.key) or EMPTY
    reader = OverflowReader(book, asked.key)
    working = lock.Lock(before, now, more=reader)
    overflowed = _wait_of(run, asked) is not None
    outcome = working.answer(lambda one: one.abandon(id=attempt_of(run.id, asked.number), ttl=0, overflowed=overflowed))
    reader.save()
    _write(book, asked.key, working.record(), before)
    return outcome


def _wait_of(run: Run, asked: Ask) -> LockWait | None:
    """The place of an ask in a queue that does not list it."""
    return next((wait for wait in run.waits if (wait.key, wait.ask) == (asked.key, asked.number)), None)


def _write(book: Book, key: str, after: LockRecord, before: LockRecord) -> None:
    if after is not before:
        book.put_lock(key, after)


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
    current = book.run(run)
    waits = attempt_of(run, asked.number) in known or (current is not None and _wait_of(current, asked) is not None)
    return Said(number=asked.number, what="queued" if waits else "unknown")


def _is(holder: Holder, run: str, number: int) -> bool:
    return holder.id == attempt_of(run, number) and not holder.offered
