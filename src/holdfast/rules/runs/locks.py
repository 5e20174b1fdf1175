"""Locks that belong to a run: requested in the same step as its journal is written, and released when it ends.

The rules of locks do not distinguish runs from other callers. An attempt of a run is like any other attempt; its id
contains the run and the number of the request. It waits without signs of life, and holds the lock until it releases
it, or for its ttl. An offer to the attempt adds an event to the inbox of its run, in the same step. So a run that no
worker drives becomes due.
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
from .lock_requests import LockAnswer, LockRequest, attempt_of, run_of_attempt
from .record import Locks, LockWait, Run, RunEvent
from .repository import RunRepository


def ask(
    repo: RunRepository, now: int, run: Run, lock_requests: Sequence[LockRequest]
) -> tuple[tuple[LockAnswer, ...], Locks, tuple[str, ...]]:
    """Carry out the lock requests of a run. Returns the answers, its locks afterwards, and the attempts to notify."""
    has = dict(run.locks)
    answers = []
    woken: tuple[str, ...] = ()
    for one in lock_requests:
        current = repo.run(run.id) or run  # an earlier request may have changed its position in a queue
        outcome = _carried_out(repo, now, current, one)
        woken += outcome.notified
        answers.append(_answer(one, outcome))
        if answers[-1].what in ("granted", "queued"):
            has[one.number] = one.key
        else:
            has.pop(one.number, None)
    return tuple(answers), tuple(sorted(has.items())), woken


def answers_before(
    repo: RunRepository, now: int, run: str, lock_requests: Sequence[LockRequest]
) -> tuple[LockAnswer, ...]:
    """The answers to requests that were carried out before, as far as the records show them. Nothing is changed."""
    return tuple(_seen(repo, now, run, one) for one in lock_requests)


def give_back(repo: RunRepository, now: int, run: Run) -> tuple[str, ...]:
    """Release every lock that a run holds or waits for. Returns the attempts to notify."""
    woken: tuple[str, ...] = ()
    for number, key in run.locks:
        with suppress(RecordUnreadable):  # an unreadable record is left as it is
            outcome = _given_back(repo, now, run, LockRequest(number=number, key=key, give=True))
            woken += outcome.notified
    return woken + notify_offered(repo, now, woken)


def held(repo: RunRepository, now: int, run: Run) -> tuple[tuple[int, int], ...]:
    """The requests that a run holds at this moment, each with its token.

    An offer is not held yet; of a record that cannot be read it is not known.
    """
    found: list[tuple[int, int]] = []
    for number, key in run.locks:
        with suppress(RecordUnreadable):
            record, _ = lock.settle(repo.lock(key) or EMPTY, now, offers=False)
            found += [(number, holder.token) for holder in record.holders if _is(holder, run.id, number)]
    return tuple(found)


def notify_offered(repo: RunRepository, now: int, woken: Iterable[str]) -> tuple[str, ...]:
    """Post an event to each run that has an offer. Returns the hints to send."""
    hints: tuple[str, ...] = ()
    for attempt in woken:
        if (asker := run_of_attempt(attempt)) is None:
            continue
        name, number = asker
        with suppress(RecordUnreadable):  # a damaged run must not stop others from giving back their locks
            run = repo.run(name)
            if run is not None and run.living:
                hints += post(repo, now, run, RunEvent(kind="lock", name=str(number))).woken
    return hints


def _carried_out(repo: RunRepository, now: int, run: Run, asked: LockRequest) -> out.Outcome:
    wait = _wait_of(run, asked)
    if asked.give:
        if wait is not None:  # before the next waiters are served, because it may be one of them
            repo.save(replace(run, waits=tuple(one for one in run.waits if one is not wait)))
        return _given_back(repo, now, run, asked)
    if wait is not None:
        return out.Queued(position=0, holders=(), now=now, recheck_in=None)
    before = repo.lock(asked.key) or EMPTY
    reader = OverflowReader(repo, asked.key)
    working = lock.LockState(before, now, more=reader)
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
        current = repo.run(run.id) or run
        repo.save(replace(current, waits=(*current.waits, entry)))
    _write(repo, asked.key, working.record(), before)
    return outcome


def _given_back(repo: RunRepository, now: int, run: Run, asked: LockRequest) -> out.Outcome:
    """Give back what a run holds or waits for, and remove the wait from its record."""
    before = repo.lock(asked.key) or EMPTY
    reader = OverflowReader(repo, asked.key)
    working = lock.LockState(before, now, more=reader)
    overflowed = _wait_of(run, asked) is not None
    outcome = working.answer(lambda one: one.abandon(id=attempt_of(run.id, asked.number), ttl=0, overflowed=overflowed))
    reader.save()
    _write(repo, asked.key, working.record(), before)
    return outcome


def _wait_of(run: Run, asked: LockRequest) -> LockWait | None:
    """The position of a request in a queue whose record does not list it."""
    return next((wait for wait in run.waits if (wait.key, wait.ask) == (asked.key, asked.number)), None)


def _write(repo: RunRepository, key: str, after: LockRecord, before: LockRecord) -> None:
    if after is not before:
        repo.put_lock(key, after)


def _answer(asked: LockRequest, outcome: out.Outcome) -> LockAnswer:
    match outcome:
        case out.Granted():
            return LockAnswer(number=asked.number, what="granted", token=outcome.token, floor=outcome.floor)
        case out.Queued():
            return LockAnswer(number=asked.number, what="queued")
        case out.Abandoned():
            return LockAnswer(number=asked.number, what="given")
        case out.Mismatch():
            return LockAnswer(number=asked.number, what="mismatch", found=outcome.found)
        case out.TooHeavy():
            return LockAnswer(number=asked.number, what="too_heavy")
        case _:
            return LockAnswer(number=asked.number, what="unknown")


def _seen(repo: RunRepository, now: int, run: str, asked: LockRequest) -> LockAnswer:
    if asked.give:
        return LockAnswer(number=asked.number, what="given")
    record, _ = lock.settle(repo.lock(asked.key) or EMPTY, now, offers=False)
    for holder in record.holders:
        if _is(holder, run, asked.number):
            return LockAnswer(number=asked.number, what="granted", token=holder.token, floor=lock.floor(record))
    known = {holder.id for holder in record.holders} | {waiter.id for waiter in record.waiters}
    current = repo.run(run)
    waits = attempt_of(run, asked.number) in known or (current is not None and _wait_of(current, asked) is not None)
    return LockAnswer(number=asked.number, what="queued" if waits else "unknown")


def _is(holder: Holder, run: str, number: int) -> bool:
    return holder.id == attempt_of(run, number) and not holder.offered
