"""The waiting, without I/O: generators that yield "submit this" and "wait for that, at most so long".

`runners.py` drives them, from a thread or from an event loop, so nothing is written twice. A flow that is
cancelled, timed out, closed or interrupted in the middle gives back what it may have got.
"""

from __future__ import annotations

import random
from collections.abc import Generator
from datetime import UTC, datetime
from typing import Any, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from ..commands import Abandon, Acquire, Command, ListDueRecords, ListLocks, ListRecords, LockCommand
from ..commands.runs import CountRuns, ListOwnedRuns, ListRuns, ListWorkers, ReadRun
from ..errors import (
    ClientClosed,
    KindMismatch,
    LockTimeout,
    NeverFits,
    QueueFull,
    StoreContended,
    StoreError,
    StoreUnavailable,
)
from ..platform import elapsed
from ..rules import lock_outcomes as out
from ..rules.lock import OFFER_LIFE
from ..rules.lock_record import Holder
from ..stores.contract import Role
from ..validation import MICROSECONDS
from .grant import local_deadline
from .notifier import Notifier

RESEND_AFTER = (0.05, 0.2, 0.6, 1.5)
"""Seconds between the attempts to reach a store that did not answer; jittered, then the error is raised."""
CONTENDED_AFTER = 0.1
"""Seconds until a record that somebody else had is asked for again; jittered."""
RESEND_FOR = 5.0
"""Seconds after which a store that made us wait is not asked again, but for once where it is unknown what it did."""
CONTENDED_FOR = 30.0
"""Seconds for which a caller that waits for a lock asks for its record while others have it. A record that many change
is had in the end; one that an open transaction keeps is worth an error."""
SIGNS_OF_LIFE = 3
"""A waiter shows itself this many times within the time that its place is kept."""
LONG_WAIT = 30.0
"""Seconds of waiting after which it is said aloud, once."""
SOONEST_LOOK = 0.005
"""No waiter looks again sooner than this, except when it is told to."""
STAGGER = 0.01
"""How much later each further place in the queue looks for an expired holder, so that they do not all come."""
SECOND_IN_LINE = 1
"""The position of the waiter that looks once an offer: the offer to the first one may be missed."""
NEAR = 4
"""A waiter that is not sent hints and has fewer than this many before it polls `LOOKS_PER_OFFER` times an offer."""
LOOKS_PER_OFFER = 3
SEES_ITS_OFFER = 0.7
"""The share of an offer after which one further back looks again, so that it sees an offer that comes now."""
SOONEST_HAND_OVER = 0.005
"""Seconds that a hand-over among waiters that poll takes, at least: one further back may look so much later."""
SOONEST_POLL = 0.02
"""Seconds between two polls of the first in line, at least; of the second twice, and so on."""
POLL_SHARE = 0.25
"""Between two polls passes this share of the time for which the youngest holder has held the lock."""

LONG_READS = (ListLocks, ListRecords, ListDueRecords, ListRuns, CountRuns, ListWorkers, ListOwnedRuns, ReadRun)
"""Reads that may be about many rows: no acquire of the same client waits for them.

Not among them is `ReadNextDue`: it reads one row for each type and worker, and a worker asks it before every claim.
"""

SHAPING = (out.Granted, out.Queued, out.Busy, out.TooManyWaiters)
"""Answers to an attempt that may have changed the number of permits."""

T = TypeVar("T")


class Submit(msgspec.Struct, frozen=True):
    """Send this command; the answer is its outcome."""

    command: Command
    role: Role = "commands"


class Wait(msgspec.Struct, frozen=True):
    """Wait until the flag is set, for at most so many seconds; the answer is whether it is set."""

    flag: Notifier
    timeout: float | None


Flow = Generator[Submit | Wait, Any, T]


class FlowServices(Protocol):
    """What a waiting flow needs of its client."""

    def listen(self, command: Acquire) -> Notifier:
        """A flag that is set when there is a hint for the attempt."""

    @property
    def listens(self) -> bool:
        """Whether hints are sent to this client, so that it need not look for itself."""

    def expect(self, id: str, *, eager: bool) -> bool:
        """The attempt waits from now on. True if hints were not flowing before: look once more."""

    def forget(self, id: str) -> None:
        """The attempt waits no longer."""

    def give_back(self, command: Abandon) -> None:
        """Send this without waiting, and see to it that it arrives."""

    def offered(self, key: str) -> None:
        """A lock was offered to a waiter: look at it again when the offer has run out."""

    def permits_changed(self, command: Acquire, before: int) -> None:
        """This attempt changed the number of permits."""

    def long_wait(self, command: Acquire, waited: float, outcome: out.Queued) -> None:
        """Somebody has waited for long."""


class Grant(msgspec.Struct, frozen=True):
    """A grant, and the local moment before it was asked for: its ttl counts from there."""

    outcome: out.Granted
    sent: float


def send(command: Command, *, until: float | None = None, role: Role | None = None) -> Flow[tuple[out.Outcome, bool]]:
    """Submit; where the store does not answer, submit again. Also tells whether an earlier try is ambiguous.

    What may take long goes by the connection for queries, unless `role` says otherwise.
    """
    if role is None:
        role = "queries" if isinstance(command, LONG_READS) else "commands"
    sent = elapsed()
    try:
        return (yield Submit(command, role)), False
    except StoreUnavailable as error:
        return (yield from _send_again(command, error, sent, until, role))


def _send_again(
    command: Command,
    error: StoreUnavailable,
    since: float,
    until: float | None,
    role: Role = "commands",
    *,
    contended_for: float = RESEND_FOR,
) -> Flow[tuple[out.Outcome, bool]]:
    """Try a few times more, for `RESEND_FOR` seconds, and not after `until`.

    While it is unknown what a try has done, `until` does not count, and there is one more try in any case. A record
    that somebody else has at this moment is asked for again and again, for `contended_for` seconds.
    """
    ambiguous = error.ambiguous
    pauses = iter(RESEND_AFTER)
    first = True
    while True:
        contended = isinstance(error, StoreContended)
        pause = CONTENDED_AFTER if contended else next(pauses, None)
        patience = since + (contended_for if contended else RESEND_FOR)
        late = patience if until is None or ambiguous else min(until, patience)
        if pause is None or (elapsed() + pause >= late and not (ambiguous and first)):
            raise error
        first = False
        yield Wait(Notifier(), pause * random.uniform(0.5, 1.0))
        try:
            return (yield Submit(command, role)), ambiguous
        except StoreUnavailable as again:
            ambiguous = again.ambiguous = ambiguous or again.ambiguous
            error = again


def acquire(services: FlowServices, command: Acquire, wait: float | None, *, told: bool = False) -> Flow[Grant]:
    """Take a lock, waiting for at most `wait` seconds (None: for ever; 0: try once).

    A grant whose time ran out on the way here is asked for again: the same attempt gets its full ttl.
    """
    started = elapsed()
    until = None if wait is None else started + wait
    trace = True  # whether the store may know of this attempt
    known = False  # whether it has said so
    hint = services.listen(command)
    try:
        while True:
            hint.clear()
            command = _as_it_listens(services, command)
            sent = elapsed()
            try:  # as `send` does it; without a generator of its own, because this is what happens most
                outcome = yield Submit(command)
            except StoreUnavailable as error:
                outcome, _ = yield from _send_again(command, error, sent, until, contended_for=CONTENDED_FOR)
            known = True
            now = elapsed()
            if isinstance(outcome, SHAPING) and outcome.permits_before is not None:
                services.permits_changed(command, outcome.permits_before)
            if isinstance(outcome, out.Granted):
                if command.ttl is None or now < local_deadline(sent, command.ttl):
                    return Grant(outcome, sent)
                if until is None or now < until:
                    continue
                raise timed_out(command, (), 0, None)  # noqa: TRY301  (one place gives back)
            if not isinstance(outcome, out.Queued):
                trace = False
                raise refusal(command, outcome)  # noqa: TRY301
            if services.expect(command.id, eager=outcome.position == 0):
                continue
            if not told and now - started >= LONG_WAIT:
                told = True
                services.long_wait(command, now - started, outcome)
            if until is not None and now >= until:
                yield from _leave_queue(services, command)
                trace = False
                raise timed_out(command, outcome.holders, outcome.now, outcome.position)  # noqa: TRY301
            pause = _look_again_in(command, outcome)
            if not told:
                pause = min(pause, max(SOONEST_LOOK, started + LONG_WAIT - now))
            yield Wait(hint, pause if until is None else min(pause, until - now))
    except BaseException as error:
        never_arrived = isinstance(error, StoreError) and not error.ambiguous and not known
        if trace and not never_arrived:
            services.give_back(_abandon(command))
        raise
    finally:
        services.forget(command.id)


def _leave_queue(services: FlowServices, command: Acquire) -> Flow[None]:
    left, _ = yield from send(_abandon(command))
    if left.woken:  # it had been offered the lock at this moment, and the next waiter is now
        services.offered(command.key)


def _as_it_listens(services: FlowServices, command: Acquire) -> Acquire:
    listens = services.listens
    return command if command.listens is listens else replace(command, listens=listens)


def _look_again_in(command: Acquire, outcome: out.Queued) -> float:
    """When to ask again without a hint: for a sign of life, or when something in the way may have expired.

    A waiter that nobody hints must see its own offer before it runs out. Whether an offer to another waiter ran out is
    looked at by the client that made it (`FlowServices.offered`), and by the second in line, because that client may
    have ended.
    """
    offer = OFFER_LIFE / MICROSECONDS
    pause = (command.waiter_ttl or 10 * MICROSECONDS) / MICROSECONDS / SIGNS_OF_LIFE
    if not command.listens:
        further_back = offer * SEES_ITS_OFFER + SOONEST_HAND_OVER * outcome.position
        pause = min(pause, _poll_in(outcome), offer / LOOKS_PER_OFFER if outcome.position < NEAR else further_back)
    elif outcome.position == SECOND_IN_LINE:
        pause = min(pause, offer)
    pause *= random.uniform(0.8, 1.0)
    if outcome.recheck_in is None:
        return pause
    expiry = outcome.recheck_in / MICROSECONDS + SOONEST_LOOK + STAGGER * outcome.position
    return min(pause, expiry)


def _poll_in(outcome: out.Queued) -> float:
    """When a waiter that nobody hints polls again: soon while a lock changes hands often, seldom while it is held long.

    The first in line waits beyond the release for a share of the time for which the lock was held. Who is further back
    looks before its turn can have come.
    """
    held = outcome.now - max((holder.since for holder in outcome.holders), default=outcome.now)
    return max(SOONEST_POLL, held / MICROSECONDS * POLL_SHARE) * (outcome.position + 1)


def _abandon(command: Acquire) -> Abandon:
    ttl = max(command.ttl or 0, command.waiter_ttl or 0, 10 * MICROSECONDS)
    return Abandon(key=command.key, id=command.id, ttl=ttl)


def release(services: FlowServices, command: LockCommand) -> Flow[bool]:
    """Give a grant back. False if it was not held any more when the first try arrived.

    After an ambiguous try, "not held" is what a successful one looks like from here.
    """
    outcome, ambiguous = yield from send(command)
    if outcome.woken or ambiguous:
        services.offered(command.key)
    return isinstance(outcome, out.Released) or ambiguous


def refusal(command: Acquire, outcome: out.Outcome) -> Exception:
    """The error that tells a caller why it does not get the lock."""
    if isinstance(outcome, out.Busy):
        return timed_out(command, outcome.holders, outcome.now, None)
    if isinstance(outcome, out.Mismatch):
        return KindMismatch(
            f"the key {command.key!r} is in use as a lock of kind {outcome.found!r}, not {command.kind!r}: "
            "use another key, or the same kind everywhere",
            key=command.key,
            wanted=command.kind,
            found=outcome.found,
        )
    if isinstance(outcome, out.TooHeavy):
        return NeverFits(
            f"a weight of {command.weight} never fits into the {outcome.permits} permits of {command.key!r}"
        )
    if isinstance(outcome, out.TooManyWaiters):
        return QueueFull(key=command.key, waiting=outcome.waiting)
    return ClientClosed(f"the client was closed while {command.key!r} was waited for")


def timed_out(command: Acquire, holders: tuple[Holder, ...], now: int, position: int | None) -> LockTimeout:
    """The error for a lock that was not free in time, with who holds it and for how long."""
    holder = str(holders[0].label) if holders else None
    ends = holders[0].expires_at if holders else None
    age = max(0, now - holders[0].since) / MICROSECONDS if holders else None
    by = f"held by {holder} for {age:.1f} s" if holders else "not handed over yet"
    place = "" if position is None else f"; this caller was at place {position + 1} in the queue"
    return LockTimeout(
        f"{command.key!r} was not free in time: {by}{place}",
        key=command.key,
        holder=holder,
        age=age,
        position=position,
        expires_at=None if ends is None else datetime.fromtimestamp(ends / MICROSECONDS, UTC),
    )
