"""Heartbeats, off the user's event loop: one thread per client renews all of its leases in one batch.

The heartbeat thread has its own batcher and connection. So no lease is lost because of a blocked loop, a CPU-bound
step or an exhausted pool. While a renewal is in progress the thread continues to check deadlines: a store that does
not answer must not delay the report that a lease is lost. The thread stops renewing a lease whose holder no longer
exists or is blocked: its lease object was garbage-collected, its event loop is closed or was blocked for longer than
`max_stall`, or its thread has ended. The heartbeat thread also executes operations for finalisers, and sends the
commands of `give_back.py`.
"""

from __future__ import annotations

import logging
import math
import random
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import NoReturn

from ..commands import Abandon, Cleanup, Failed, Renew, Swept
from ..errors import ClientClosed, HoldfastError, StoreContended
from ..events import Events
from ..platform import elapsed, start_thread
from ..rules import lock_outcomes as out
from ..rules.lock import OFFER_LIFE
from ..validation import MICROSECONDS
from .batcher import Batcher
from .callbacks import orphaned_callbacks, run_orphaned_callbacks
from .give_back import IDLE_SECONDS, OpenOffers, PendingAbandons
from .grant import LocalGrant
from .loop_probe import LoopProbe
from .notifier import Notifier

EARLY = 0.25
"""A lease is renewed up to this part of its interval early, to be sent together with the others."""
SPREAD = 0.25
"""A round of renewals is up to this part of the interval early, at random: clients that acquired leases of one lock at
the same moment do not renew them at the same moment."""
ACTIVE_SECONDS = 1.0
"""While leases are being added the thread checks this often, so that few of them have to wake it."""
FIRST_CLEANUP = (60.0, 600.0)
CLEANUP_EVERY = 3_600.0
JOIN_SECONDS = 15.0
RETRY_SOON_SECONDS = 0.5
"""Seconds until a renewal is tried again if a caller waits for it, or if its record was locked by another client."""
ERROR_PAUSE_SECONDS = 0.1
"""Seconds that the thread pauses after an internal error, so that it does not spin."""

_log = logging.getLogger("holdfast")


class Renewal:
    """A lease that the heartbeat thread renews, and its holder: an event loop (by its probe) or a thread."""

    __slots__ = (
        "dropped",
        "handle",
        "held",
        "interval",
        "lent",
        "max_failures",
        "max_stall",
        "neglected",
        "notifiers",
        "probe",
        "renew_at",
        "thread",
    )

    def __init__(
        self,
        held: LocalGrant,
        *,
        interval: float,
        max_failures: int,
        max_stall: float,
        probe: LoopProbe | None,
        since: float,
        handle: Callable[[], object | None],
        lent: bool = False,
    ) -> None:
        self.held = held
        self.lent = lent  # owned by another component and only renewed here: not released when the client is closed
        self.interval = interval
        self.max_failures = max_failures
        self.max_stall = max_stall
        self.probe = probe
        self.thread = threading.current_thread() if probe is None else None
        self.renew_at = since + interval
        self.dropped = False  # set by the finaliser of the user's lease, which emits the warning itself
        self.handle = handle  # a weak reference to the user's lease, for the case that its finaliser was interrupted
        self.neglected = ""
        self.notifiers: list[Notifier] = []  # set when the next renewal is answered

    def why_neglected(self, now: float, silences: dict[LoopProbe, float]) -> str:
        """Why this lease has no working holder any more; empty if it has one. Each loop is probed once per round."""
        if self.dropped or self.handle() is None:
            return "it was dropped without being released"
        if self.probe is not None:
            if self.probe.stopped:
                return "its event loop is closed"
            silent = silences.get(self.probe)
            if silent is None:
                silent = silences[self.probe] = self.probe.silent_for(now)
            if silent > self.max_stall:
                return f"its event loop has been blocked for {silent:.1f} s (max_stall is {self.max_stall:g} s)"
        elif self.thread is not None and not self.thread.is_alive():
            return "the thread that acquired it has ended"
        return ""


class Heartbeats:
    """The thread that renews the leases of one client, and reports a lease that is lost."""

    def __init__(
        self, heartbeats: Batcher, commands: Batcher, events: Events, retention: int, *, close_idle: Callable[[], None]
    ) -> None:
        """`close_idle` is called with every check: it closes a connection that was not used for long."""
        self._close_idle = close_idle
        self._heartbeats = heartbeats
        self._commands = commands
        self._events = events
        self._retention = retention
        self._renewals: dict[str, Renewal] = {}
        self._offers = OpenOffers(commands, self._wake_before)
        self._abandons = PendingAbandons(commands, events, wake=self._wake, offered=self.recheck_offer)
        self._ttl_changes: deque[tuple[Renewal, int, float, Notifier]] = deque()
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._wake_at = 0.0
        self._active = False  # whether a lease was added since the last check
        self._pace = _random_pace()
        self._renewing = False
        self.retired = False  # whether the client's leases are being released: no lease is accepted any more
        self._stopping = False
        self._serving = False  # whether the thread reads the queue
        self._clean_at = elapsed() + random.uniform(*FIRST_CLEANUP)
        self._thread: threading.Thread | None = None
        self._started = False
        self._lock = threading.RLock()  # reentrant: a signal handler may run while its thread holds the lock

    def start(self) -> None:
        """Make sure that the thread runs. If no thread can be started, that error is raised and nothing has changed."""
        if self._started:
            return
        with self._lock:
            if self._thread is None and not self._stopping:
                thread = threading.Thread(target=self._serve, name="holdfast-renewals", daemon=True)
                start_thread(thread)  # if it is interrupted, the thread may run or not: only one of them serves
                self._thread = thread
            self._started = self._thread is not None

    def keep(self, renewal: Renewal) -> None:
        """Renew this lease until it ends. If the client is being closed, release it and raise `ClientClosed`."""
        renewal.renew_at -= renewal.interval * (1 - self._pace)
        self._renewals[renewal.held.id] = renewal
        if self.retired:
            self._refuse(renewal)
        self._active = True
        self.start()
        self._wake_before(min(renewal.renew_at, renewal.held.deadline))

    def recheck_offer(self, key: str) -> None:
        """A lock was offered to a waiter now: settle it when the offer has ended, as the waiter may have crashed."""
        self._offers.add(key, OFFER_LIFE / MICROSECONDS)

    def open_offers(self) -> list[str]:
        """The keys of the locks that this client has offered to waiters and would settle again."""
        return self._offers.keys()

    def renew_for(self, renewal: Renewal, ttl: int, interval: float) -> Notifier:
        """Renew this lease now, and from now on for this ttl. The notifier is set when it was answered, or has ended.

        Renewals of one lease never overtake each other: its ttl changes only while none is in progress.
        """
        answered = Notifier()
        renewal.held.when_over(lambda _held: answered.set())
        self.start()
        self.call_soon(lambda: self._ttl_changes.append((renewal, ttl, interval, answered)))
        return answered

    def drop(self, held: LocalGrant) -> None:
        """Stop renewing this lease."""
        self._renewals.pop(held.id, None)

    def lose_all(self, reason: str) -> None:
        """All leases of the client are lost. Called on the heartbeat thread."""
        for renewal in list(self._renewals.values()):
            self._lose(renewal, reason)

    def retire(self) -> list[LocalGrant]:
        """Accept no lease any more. Returns the leases that the client owns, which the caller must release."""
        self.retired = True  # first: a lease added later sees the flag, a lease added before is in the list
        return [renewal.held for renewal in list(self._renewals.values()) if not renewal.lent]

    def _refuse(self, renewal: Renewal) -> NoReturn:
        """Give back a grant that arrived while its client was being closed: it would not be renewed."""
        held = renewal.held
        self.drop(held)
        held.lose("its client was closed")
        if not renewal.lent:
            self._commands.enqueue((Abandon(key=held.key, id=held.id, ttl=held.ttl),))
        raise ClientClosed(f"the client was closed while {held.key!r} was being acquired. The lock was released again.")

    def call_soon(self, callback: Callable[[], None]) -> None:
        """Run this on the heartbeat thread, or as an orphaned callback where that thread does not run.

        Never waits and takes no lock, so a finaliser may call it. The callback may be run twice.
        """
        self._queue.put(callback)
        if not self._serving:
            orphaned_callbacks.append(callback)

    def give_back(self, command: Abandon) -> None:
        """Send an Abandon, and again until it is answered or the attempt has expired. Safe in a finaliser."""
        self.call_soon(lambda: self._abandons.add(command))

    def stop(self) -> None:
        """End the thread. Callbacks that were queued before this call are run first."""
        with self._lock:
            self._stopping = True
            thread = self._thread
        self._wake()
        if thread is not None and thread is not threading.current_thread():
            thread.join(JOIN_SECONDS)

    # -- the thread ---------------------------------------------------------------------------------

    def _wake(self) -> None:
        self._queue.put(None)

    def _wake_before(self, moment: float) -> None:
        if moment < self._wake_at:
            self._wake()

    def _serve(self) -> None:
        with self._lock:
            if self._thread not in {None, threading.current_thread()}:
                return
            self._thread = threading.current_thread()
        self._serving = True
        self._work()
        self._serving = False  # callbacks that are added from here on are orphaned
        with suppress(Empty):
            while True:
                callback = self._queue.get_nowait()
                if callback is not None:
                    orphaned_callbacks.append(callback)
        run_orphaned_callbacks()

    def _work(self) -> None:
        while True:
            try:
                self._wake_at = math.inf  # a lease that is added during the check must wake the thread
                self._wake_at = self._check()
                callback = self._queue.get(timeout=max(0.001, self._wake_at - elapsed()))
                while True:
                    if callback is not None:
                        callback()
                    callback = self._queue.get_nowait()
            except Empty:
                if self._stopping:
                    return
            except BaseException:  # no error may end the heartbeats of all leases
                _log.exception("internal error in the heartbeat thread, which continues")
                time.sleep(ERROR_PAUSE_SECONDS)

    def _check(self) -> float:
        """Report leases whose deadline has passed, renew leases that are due. Returns when to check again."""
        now = elapsed()
        wake_at = now + (ACTIVE_SECONDS if self._active else IDLE_SECONDS)
        self._active = False
        if not self._renewing:
            self._change_ttls(now)
        due: list[Renewal] = []
        silences: dict[LoopProbe, float] = {}
        for renewal in list(self._renewals.values()):
            held = renewal.held
            if held.state != "held":
                self._renewals.pop(held.id, None)
                continue
            if now >= held.deadline:
                self._lose(renewal, renewal.neglected or "its time ran out before a renewal was answered")
                continue
            wake_at = min(wake_at, held.deadline)
            if renewal.neglected:
                continue
            if reason := renewal.why_neglected(now, silences):
                self._neglect(renewal, reason)
                continue
            if renewal.renew_at <= now + renewal.interval * EARLY:
                due.append(renewal)
            else:
                wake_at = min(wake_at, renewal.renew_at)
            if renewal.probe is not None:
                wake_at = min(wake_at, now + renewal.max_stall)
        if due and not self._renewing:
            self._renew(due, now)
        wake_at = min(wake_at, self._abandons.send_due(now), self._offers.settle_ended(now))
        self._close_idle()
        if now >= self._clean_at:
            self._clean_at = now + CLEANUP_EVERY
            self._clean("")
        return wake_at

    def _change_ttls(self, now: float) -> None:
        while self._ttl_changes:
            renewal, ttl, interval, answered = self._ttl_changes.popleft()
            if ttl < renewal.held.ttl:
                renewal.held.shorten(now, ttl)
            renewal.held.ttl, renewal.interval, renewal.renew_at = ttl, interval, now
            renewal.notifiers.append(answered)

    def _renew(self, due: list[Renewal], sent: float) -> None:
        commands = [
            Renew(key=renewal.held.key, id=renewal.held.id, token=renewal.held.token, ttl=renewal.held.ttl)
            for renewal in due
        ]

        def done(outcomes: list[out.Outcome] | None, error: HoldfastError | None) -> None:
            try:
                for place, renewal in enumerate(due):
                    self._apply(renewal, sent, None if outcomes is None else outcomes[place], error)
            finally:
                # Last: otherwise a ttl that was changed meanwhile would be mistaken for the ttl that was sent.
                self._renewing = False
            if outcomes is not None:
                self._events.emit("leases_renewed", leases=len(due), seconds=elapsed() - sent)
            self._wake()

        self._renewing = True
        self._pace = _random_pace()
        for renewal in due:
            renewal.renew_at = sent + renewal.interval * self._pace
        if not self._heartbeats.enqueue(commands, done):
            self._renewing = False

    def _apply(self, renewal: Renewal, sent: float, outcome: out.Outcome | None, error: HoldfastError | None) -> None:
        """Apply the outcome of a renewal: renewed, lost or unknown. An unknown outcome never extends the lease."""
        held = renewal.held
        if isinstance(outcome, out.Renewed) and outcome.expires_at is not None:
            held.renewed(sent, held.ttl, outcome.expires_at, outcome.floor)
            while renewal.notifiers:
                renewal.notifiers.pop().set()
        elif self._renewals.get(held.id) is not renewal:  # its holder is releasing it at this moment
            return
        elif isinstance(outcome, out.NotHolder):
            self._lose(renewal, "the store granted it to another holder, or it was released by force")
        elif held.state == "held":
            trouble = outcome.error if isinstance(outcome, Failed) else error
            if renewal.notifiers or isinstance(trouble, StoreContended):
                # A caller waits, or another client has the record locked: retry soon, and do not count a failure.
                renewal.renew_at = min(renewal.renew_at, elapsed() + RETRY_SOON_SECONDS)
            else:
                held.failures += 1
            fields = {"key": held.key, "owner": held.owner, "token": held.token, "failures": held.failures}
            self._events.emit("renewal_unknown", **fields, error=str(trouble))
            if held.failures >= renewal.max_failures:
                self._lose(renewal, f"{held.failures} renewals in a row failed: {trouble}")

    def _lose(self, renewal: Renewal, reason: str) -> None:
        self._renewals.pop(renewal.held.id, None)
        renewal.held.lose(reason)

    def _neglect(self, renewal: Renewal, reason: str) -> None:
        """Renew no longer; the lease is lost at its deadline."""
        renewal.neglected = reason
        held = renewal.held
        self._events.emit("lease_neglected", key=held.key, owner=held.owner, token=held.token, reason=reason)
        if renewal.dropped:  # its finaliser has emitted the warning
            return
        with suppress(ResourceWarning):  # where warnings are errors, this thread must not fail
            warnings.warn(
                f"the lease on {held.key!r} is not renewed any more: {reason}. It expires in the store at most one "
                "ttl after its last renewal.",
                ResourceWarning,
                stacklevel=2,
            )

    def _clean(self, after: str) -> None:
        def done(outcomes: list[out.Outcome] | None, _error: HoldfastError | None) -> None:
            if outcomes is None or not isinstance(outcomes[0], Swept):
                return
            swept = outcomes[0]
            if swept.changed:
                self._events.emit("records_removed", removed=swept.changed)
            following = swept.next
            if following is not None:
                self._queue.put(lambda: self._clean(following))

        self._commands.enqueue((Cleanup(after=after, retention=self._retention),), done)


def _random_pace() -> float:
    """The part of its interval after which a lease is renewed; the same for all leases of a client."""
    return random.uniform(1 - SPREAD, 1)
