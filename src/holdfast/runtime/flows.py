"""Acquiring and releasing without I/O: generators that yield "submit this command" and "wait for this notifier".

`runners.py` drives them, from a thread or from an event loop, so no flow is written twice. If a flow is cancelled,
times out, is closed or interrupted, it gives back a grant that it may have received.
"""

from __future__ import annotations

import random
from collections.abc import Generator
from typing import Any, Protocol, TypeVar

import msgspec
from msgspec.structs import replace

from ..commands import Abandon, Acquire, Command, ListDueRecords, ListLocks, ListRecords, LockCommand
from ..commands.runs import CountRuns, ListOwnedRuns, ListRuns, ListWorkers, ReadRun, ReadStream
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
from ..validation import MICROSECONDS, time_of
from .grant import local_deadline
from .notifier import Notifier

RESEND_AFTER = (0.05, 0.2, 0.6, 1.5)
"""Seconds between tries to reach a store that did not answer; jittered, then the error is raised."""
CONTENDED_AFTER = 0.1
"""Seconds until a command is sent again whose record was locked by another client; jittered."""
RESEND_FOR = 5.0
"""Seconds after which a command is not sent again, except once if the outcome of a try is unknown."""
CONTENDED_FOR = 30.0
"""Seconds for which an acquire or a release is sent again while other transactions have the record locked. The record
of a lock that many callers use is free in the end; one that an open transaction keeps locked is worth an error."""
SIGNS_OF_LIFE = 3
"""A waiter polls this many times within the time for which its position is kept."""
LONG_WAIT = 30.0
"""Seconds of waiting after which the event `wait_long` is emitted, once."""
MIN_PAUSE = 0.005
"""The shortest time in seconds between two polls of a waiter that is not notified."""
STAGGER = 0.01
"""Seconds by which each further position polls later for an expired holder, so that not all waiters poll at once."""
SECOND_IN_QUEUE = 1
"""The position of the waiter that polls once per offer: the first waiter may miss its offer."""
NEAR = 4
"""A waiter without notifications that has fewer waiters than this before it polls `POLLS_PER_OFFER` times per offer."""
POLLS_PER_OFFER = 3
FAR_POLL_SHARE = 0.7
"""The share of an offer after which a waiter further back polls again, so that it sees an offer made meanwhile."""
MIN_HAND_OVER = 0.005
"""Seconds that a hand-over among polling waiters takes, at least: each position further back may poll so much later."""
MIN_POLL = 0.02
"""Seconds between two polls of the first waiter, at least; twice that for the second, and so on."""
POLL_SHARE = 0.25
"""The pause between two polls, as a share of the time for which the youngest holder has held the lock."""

LONG_READS = (
    ListLocks, ListRecords, ListDueRecords, ListRuns, CountRuns, ListWorkers, ListOwnedRuns, ReadRun, ReadStream,
)  # fmt: skip
"""Reads that may return many rows: no acquire of the same client waits for them.

`ReadNextDue` is not one of them: it reads one row for each type and worker, and a worker sends it before every claim.
"""

MAY_CHANGE_PERMITS = (out.Granted, out.Queued, out.Busy, out.TooManyWaiters)
"""Outcomes of an attempt that may have changed the number of permits."""

T = TypeVar("T")


class Submit(msgspec.Struct, frozen=True):
    """Send this command; the flow is resumed with its outcome."""

    command: Command
    role: Role = "commands"


class Wait(msgspec.Struct, frozen=True):
    """Wait until the notifier is set, for at most so many seconds; the flow is resumed with whether it is set."""

    flag: Notifier
    timeout: float | None


Flow = Generator[Submit | Wait, Any, T]


class FlowServices(Protocol):
    """The methods of a client that a waiting flow calls."""

    def listen(self, command: Acquire) -> Notifier:
        """A notifier that is set when the attempt is notified."""

    @property
    def listens(self) -> bool:
        """Whether this client receives notifications, so that it need not poll."""

    def expect(self, id: str, *, eager: bool) -> bool:
        """The attempt waits from now on. True if notifications may have been missed: send the command once more."""

    def forget(self, id: str) -> None:
        """The attempt waits no longer."""

    def give_back(self, command: Abandon) -> None:
        """Send this without waiting, and again until it is answered."""

    def offered(self, key: str) -> None:
        """A lock was offered to a waiter: settle it when the offer has ended."""

    def permits_changed(self, command: Acquire, before: int) -> None:
        """This attempt changed the number of permits."""

    def long_wait(self, command: Acquire, waited: float, outcome: out.Queued) -> None:
        """A caller has waited for long."""


class Grant(msgspec.Struct, frozen=True):
    """A grant, and the local time before its command was sent, from which its ttl counts."""

    outcome: out.Granted
    sent: float


def send(
    command: Command, *, until: float | None = None, role: Role | None = None, contended_for: float = RESEND_FOR
) -> Flow[tuple[out.Outcome, bool]]:
    """Submit a command, again if the store does not answer. Also returns whether an earlier try is ambiguous.

    Commands that may take long use the connection for queries, unless `role` is given.
    """
    if role is None:
        role = "queries" if isinstance(command, LONG_READS) else "commands"
    sent = elapsed()
    try:
        return (yield Submit(command, role)), False
    except StoreUnavailable as error:
        return (yield from _send_again(command, error, sent, until, role, contended_for=contended_for))


def _send_again(
    command: Command,
    error: StoreUnavailable,
    since: float,
    until: float | None,
    role: Role = "commands",
    *,
    contended_for: float = RESEND_FOR,
) -> Flow[tuple[out.Outcome, bool]]:
    """Send the command a few more times, for `RESEND_FOR` seconds, and not after `until`.

    While the outcome of a try is unknown, `until` does not count, and there is one more try in any case. A command
    whose record is locked by another client is sent again for `contended_for` seconds.
    """
    ambiguous = error.ambiguous
    pauses = iter(RESEND_AFTER)
    first = True
    while True:
        contended = isinstance(error, StoreContended)
        pause = CONTENDED_AFTER if contended else next(pauses, None)
        give_up_at = since + (contended_for if contended else RESEND_FOR)
        late = give_up_at if until is None or ambiguous else min(until, give_up_at)
        if pause is None or (elapsed() + pause >= late and not (ambiguous and first)):
            raise error
        first = False
        yield Wait(Notifier(), pause * random.uniform(0.5, 1.0))
        try:
            return (yield Submit(command, role)), ambiguous
        except StoreUnavailable as again:
            ambiguous = again.ambiguous = ambiguous or again.ambiguous
            error = again


def acquire(services: FlowServices, command: Acquire, wait: float | None, *, reported: bool = False) -> Flow[Grant]:
    """Acquire a lock, waiting for at most `wait` seconds (None: no limit; 0: try once).

    If the local deadline of a grant has passed when it arrives, the same attempt is sent again and gets its full ttl.
    """
    started = elapsed()
    until = None if wait is None else started + wait
    may_be_stored = True  # whether the store may have a record of this attempt
    known = False  # whether the store has answered it
    notifier = services.listen(command)
    try:
        while True:
            notifier.clear()
            command = _with_listens(services, command)
            sent = elapsed()
            try:  # as in `send`, without a generator of its own, because this is the most frequent case
                outcome = yield Submit(command)
            except StoreUnavailable as error:
                outcome, _ = yield from _send_again(command, error, sent, until, contended_for=CONTENDED_FOR)
            known = True
            now = elapsed()
            if isinstance(outcome, MAY_CHANGE_PERMITS) and outcome.permits_before is not None:
                services.permits_changed(command, outcome.permits_before)
            if isinstance(outcome, out.Granted):
                if command.ttl is None or now < local_deadline(sent, command.ttl):
                    return Grant(outcome, sent)
                if until is None or now < until:
                    continue
                raise timed_out(command, (), 0, None)  # noqa: TRY301  (one place abandons the attempt)
            if not isinstance(outcome, out.Queued):
                may_be_stored = False
                raise refusal(command, outcome)  # noqa: TRY301
            if services.expect(command.id, eager=outcome.position == 0):
                continue
            if not reported and now - started >= LONG_WAIT:
                reported = True
                services.long_wait(command, now - started, outcome)
            if until is not None and now >= until:
                yield from _leave_queue(services, command)
                may_be_stored = False
                raise timed_out(command, outcome.holders, outcome.now, outcome.position)  # noqa: TRY301
            pause = _pause_before_poll(command, outcome)
            if not reported:
                pause = min(pause, max(MIN_PAUSE, started + LONG_WAIT - now))
            yield Wait(notifier, pause if until is None else min(pause, until - now))
    except BaseException as error:
        never_arrived = isinstance(error, StoreError) and not error.ambiguous and not known
        if may_be_stored and not never_arrived:
            services.give_back(_abandon(command))
        raise
    finally:
        services.forget(command.id)


def _leave_queue(services: FlowServices, command: Acquire) -> Flow[None]:
    left, _ = yield from send(_abandon(command))
    if left.woken:  # it had just been offered the lock, which is now offered to the next waiter
        services.offered(command.key)


def _with_listens(services: FlowServices, command: Acquire) -> Acquire:
    listens = services.listens
    return command if command.listens is listens else replace(command, listens=listens)


def _pause_before_poll(command: Acquire, outcome: out.Queued) -> float:
    """Seconds until the next poll without a notification: to keep the position, or when something may have expired.

    A waiter without notifications must see its own offer before it ends. Whether an offer to another waiter has ended
    is checked by the client that made it (`FlowServices.offered`), and by the second waiter, because that client may
    have ended.
    """
    offer = OFFER_LIFE / MICROSECONDS
    pause = (command.waiter_ttl or 10 * MICROSECONDS) / MICROSECONDS / SIGNS_OF_LIFE
    if not command.listens:
        further_back = offer * FAR_POLL_SHARE + MIN_HAND_OVER * outcome.position
        pause = min(
            pause, _poll_interval(outcome), offer / POLLS_PER_OFFER if outcome.position < NEAR else further_back
        )
    elif outcome.position == SECOND_IN_QUEUE:
        pause = min(pause, offer)
    pause *= random.uniform(0.8, 1.0)
    if outcome.recheck_in is None:
        return pause
    expiry = outcome.recheck_in / MICROSECONDS + MIN_PAUSE + STAGGER * outcome.position
    return min(pause, expiry)


def _poll_interval(outcome: out.Queued) -> float:
    """Seconds until a waiter without notifications polls again: few if the lock changes hands often, else more.

    The delay of the first waiter after a release is a share of the time for which the lock was held. A waiter further
    back polls before its turn can have come.
    """
    held = outcome.now - max((holder.since for holder in outcome.holders), default=outcome.now)
    return max(MIN_POLL, held / MICROSECONDS * POLL_SHARE) * (outcome.position + 1)


def _abandon(command: Acquire) -> Abandon:
    ttl = max(command.ttl or 0, command.waiter_ttl or 0, 10 * MICROSECONDS)
    return Abandon(key=command.key, id=command.id, ttl=ttl)


def release(services: FlowServices, command: LockCommand) -> Flow[bool]:
    """Release a grant. False if it was not held any more when the first try arrived.

    After an ambiguous try, "not held" is also the answer if that try succeeded.
    """
    outcome, ambiguous = yield from send(command, contended_for=CONTENDED_FOR)
    if outcome.woken or ambiguous:
        services.offered(command.key)
    return isinstance(outcome, out.Released) or ambiguous


def refusal(command: Acquire, outcome: out.Outcome) -> Exception:
    """The error that explains to a caller why it does not get the lock."""
    if isinstance(outcome, out.Busy):
        return timed_out(command, outcome.holders, outcome.now, None)
    if isinstance(outcome, out.Mismatch):
        return KindMismatch(
            f"the key {command.key!r} is used for a lock of kind {outcome.found!r}, not {command.kind!r}. Nothing was "
            "changed. Use another key, or the same kind everywhere",
            key=command.key,
            wanted=command.kind,
            found=outcome.found,
        )
    if isinstance(outcome, out.TooHeavy):
        return NeverFits(
            f"the weight {command.weight} is larger than the {outcome.permits} permits of {command.key!r}: it could "
            "never be granted. Use a smaller weight, or more permits."
        )
    if isinstance(outcome, out.TooManyWaiters):
        return QueueFull(key=command.key, waiting=outcome.waiting)
    return ClientClosed(f"the client was closed while a caller waited for {command.key!r}. The caller holds nothing.")


def timed_out(command: Acquire, holders: tuple[Holder, ...], now: int, position: int | None) -> LockTimeout:
    """The error for a lock that was not free in time, with its holder and for how long it has been held."""
    holder = str(holders[0].label) if holders else None
    ends = holders[0].expires_at if holders else None
    age = max(0, now - holders[0].since) / MICROSECONDS if holders else None
    by = f"held by {holder} for {age:.1f} s" if holders else "not handed over yet"
    place = "" if position is None else f"; this caller was at position {position + 1} in the queue"
    return LockTimeout(
        f"{command.key!r} was not free in time: {by}{place}",
        key=command.key,
        holder=holder,
        age=age,
        position=position,
        expires_at=None if ends is None else time_of(ends),
    )
