"""Heartbeats, off the user's event loop: one thread a client renews everything in one statement.

The keeper has its own lane and connection, so a blocked loop, a CPU-bound step or an exhausted pool costs a
healthy holder nothing. While a renewal is under way it goes on watching the deadlines: a store that does
not answer must not delay the news that a lease is lost. It stops renewing what nobody looks after any
more: a lease that was dropped, one whose loop is closed or stuck for longer than `max_stall`, one whose
thread has ended. It also carries out what finalisers must not do themselves, and sees to it that abandoned
attempts are really given back.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import threading
import time
import warnings
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import NoReturn

from ..commands import Abandon, Cleanup, Failed, Renew, Settle, Swept
from ..errors import ClientClosed, HoldfastError, StoreContended
from ..events import Events
from ..platform import after_fork_in_child, elapsed, start_thread
from ..rules import lock_outcomes as out
from ..rules.lock import OFFER_LIFE
from ..validation import MICROSECONDS
from .batcher import Batcher
from .grant import LocalGrant
from .notifier import Notifier

EARLY = 0.25
"""A lease is renewed up to this part of its interval early, to go along with the others."""
SPREAD = 0.25
"""A round of renewals comes up to this part of the interval early, by chance: clients that took leases of one lock at
the same moment do not renew them at the same moment."""
IDLE = 60.0
"""Seconds after which the keeper looks around although nothing is due."""
LIVELY = 1.0
"""As long as leases come and go it looks around this often, so that hardly any of them has to wake it."""
FIRST_CLEANUP = (60.0, 600.0)
CLEANUP_EVERY = 3_600.0
JOIN_SECONDS = 15.0
RETRY_ASKED = 0.5
"""Seconds until a renewal is tried again that somebody waits for, or whose record somebody else had."""
RETRY_DEBT = 1.0
"""Seconds until something that could not be given back is tried again."""

LATER = 0.02
"""Seconds after the end of an offer at which it is looked at, whatever the store's clock rounds."""

BREATH = 0.1
"""Seconds that the keeper rests after a fault of its own, so that it does not spin."""

_log = logging.getLogger("holdfast")

_orphaned_callbacks: deque[Callable[[], None]] = deque()
after_fork_in_child(_orphaned_callbacks.clear)


def run_orphaned_callbacks() -> None:
    """Run the errands that came to a keeper that does not run, or no longer. Whoever passes by does it.

    Never call it in a finaliser: it takes locks. Twice is harmless to every errand, and so is an interrupt here.
    """
    while _orphaned_callbacks:
        with suppress(IndexError, ValueError):  # another thread was here first
            callback = _orphaned_callbacks[0]
            try:
                callback()
            except Exception:
                _log.exception("an errand that was left over failed")
            _orphaned_callbacks.remove(callback)


class LoopProbe:
    """The heartbeat of an event loop, as the keeper hears it. Weak: it keeps no loop alive."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._asked_at: float | None = None

    @property
    def stopped(self) -> bool:
        """Whether the loop is closed for good, or gone."""
        loop = self._loop()
        return loop is None or loop.is_closed()

    def silent_for(self, now: float) -> float:
        """For how long the loop has owed an answer; asks it if nothing is owed."""
        asked_at = self._asked_at  # the loop may answer at any moment
        if asked_at is not None:
            return now - asked_at
        self._asked_at = now
        loop = self._loop()
        if loop is not None:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._answer)
        return 0.0

    def _answer(self) -> None:
        self._asked_at = None


class Renewal:
    """A lease in the keeper's care, and who looks after it: an event loop (by its pulse) or a thread."""

    __slots__ = (
        "asked",
        "dropped",
        "handle",
        "held",
        "interval",
        "lent",
        "max_failures",
        "max_stall",
        "neglected",
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
        self.lent = lent  # it is somebody else's, and only renewed here: not given back when the client is closed
        self.interval = interval
        self.max_failures = max_failures
        self.max_stall = max_stall
        self.probe = probe
        self.thread = threading.current_thread() if probe is None else None
        self.renew_at = since + interval
        self.dropped = False  # set by the finaliser of the user's handle, which has warned then
        self.handle = handle  # a weak reference to it, for a finaliser that was interrupted
        self.neglected = ""
        self.asked: list[Notifier] = []  # who waits for the answer to its next renewal

    def why_neglected(self, now: float, silences: dict[LoopProbe, float]) -> str:
        """Why nobody looks after this lease any more; empty while somebody does. Each loop is asked once a round."""
        if self.dropped or self.handle() is None:
            return "it was dropped without being released"
        if self.probe is not None:
            if self.probe.stopped:
                return "its event loop is closed"
            silent = silences.get(self.probe)
            if silent is None:
                silent = silences[self.probe] = self.probe.silent_for(now)
            if silent > self.max_stall:
                return f"its event loop has been stuck for {silent:.1f} s (max_stall is {self.max_stall:g} s)"
        elif self.thread is not None and not self.thread.is_alive():
            return "the thread that took it has ended"
        return ""


class _PendingAbandon:
    """An attempt that must be given back, until it has expired by itself."""

    __slots__ = ("command", "retry_at", "until")

    def __init__(self, command: Abandon, until: float) -> None:
        self.command = command
        self.until = until
        self.retry_at = until


class Callbacks:
    """A thread for what users want to be told: made when there is something to tell, gone afterwards.

    One that takes long delays the others that are told, and nobody's heartbeat.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: deque[Callable[[], None]] = deque()
        self._thread: threading.Thread | None = None

    def add(self, call: Callable[[], None]) -> None:
        """Make this call soon, after those that were added before. Where no thread can be had, with the next one."""
        with self._lock:
            self._calls.append(call)
            if self._thread is not None and self._thread.is_alive():
                return
            self._thread = threading.Thread(target=self._serve, name="holdfast-on-lost", daemon=True)
            try:
                start_thread(self._thread)
            except RuntimeError:
                self._thread = None
                _log.exception("nobody can be told by a callback now: %d calls wait for the next", len(self._calls))

    def _serve(self) -> None:
        while True:
            with self._lock:
                if self._thread is not threading.current_thread():  # interrupted, it was started once too often
                    return
                if not self._calls:
                    self._thread = None
                    return
                call = self._calls.popleft()
            call()


class Heartbeats:
    """One thread that keeps the leases of one client alive, and tells when one is lost."""

    def __init__(
        self, heartbeats: Batcher, commands: Batcher, events: Events, retention: int, *, rest: Callable[[], None]
    ) -> None:
        """`rest` is called whenever the keeper looks around: it closes what nobody has used for long."""
        self._rest = rest
        self._heartbeats = heartbeats
        self._commands = commands
        self._events = events
        self._retention = retention
        self._renewals: dict[str, Renewal] = {}
        self._abandons: dict[str, _PendingAbandon] = {}
        self._offers: dict[str, float] = {}  # by key: when the last offer of this client has run out
        self._changes: deque[tuple[Renewal, int, float, Notifier]] = deque()
        self._mail: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._wake_at = 0.0
        self._lively = False  # whether a lease has come since the last look
        self._pace = _random_pace()
        self._renewing = False
        self.retired = False  # whether what is held is being given back: nothing more is taken into care
        self._stopping = False
        self._serving = False  # whether the thread reads the mail
        self._clean_at = elapsed() + random.uniform(*FIRST_CLEANUP)
        self._thread: threading.Thread | None = None
        self._started = False
        self._lock = threading.RLock()  # a signal handler may come in while its thread has it

    def start(self) -> None:
        """Make sure that the thread runs. Where none can be had, that is raised and nothing has changed."""
        if self._started:
            return
        with self._lock:
            if self._thread is None and not self._stopping:
                thread = threading.Thread(target=self._serve, name="holdfast-keeper", daemon=True)
                start_thread(thread)  # interrupted within, it may run or not: only the first to come here serves
                self._thread = thread
            self._started = self._thread is not None

    def keep(self, renewal: Renewal) -> None:
        """Renew this lease until it ends. Once its client is being closed it is given back, and that is raised."""
        renewal.renew_at -= renewal.interval * (1 - self._pace)
        self._renewals[renewal.held.id] = renewal
        if self.retired:
            self._refuse(renewal)
        self._lively = True
        self.start()
        if min(renewal.renew_at, renewal.held.deadline) < self._wake_at:
            self._mail.put(None)

    def look_after(self, key: str) -> None:
        """A lock was offered to a waiter just now: settle it when that has run out, for the waiter may be dead."""
        self._look_in(key, OFFER_LIFE / MICROSECONDS)

    def _look_in(self, key: str, seconds: float) -> None:
        self._offers[key] = look_at = elapsed() + seconds + LATER
        if look_at < self._wake_at:
            self._mail.put(None)

    def open_offers(self) -> list[str]:
        """The keys of the locks that this client has offered to waiters and would look at again."""
        return list(self._offers)

    def renew_for(self, renewal: Renewal, ttl: int, interval: float) -> Notifier:
        """Renew this lease now, and from now on for this ttl. The flag is set when that is answered, or it is over.

        Renewals of one lease never overtake each other: its ttl changes only while none is under way.
        """
        answered = Notifier()
        renewal.held.when_over(lambda _held: answered.set())
        self.start()
        self.soon(lambda: self._changes.append((renewal, ttl, interval, answered)))
        return answered

    def drop(self, held: LocalGrant) -> None:
        """This lease is over."""
        self._renewals.pop(held.id, None)

    def lose_all(self, reason: str) -> None:
        """Everything in the keeper's care is lost. On the keeper's thread."""
        for renewal in list(self._renewals.values()):
            self._lose(renewal, reason)

    def retire(self) -> list[LocalGrant]:
        """Take nothing more into care; what is there and the client's own is the caller's to give back."""
        self.retired = True  # first: whoever comes from here on sees it, whoever came before is in the list
        return [renewal.held for renewal in list(self._renewals.values()) if not renewal.lent]

    def _refuse(self, renewal: Renewal) -> NoReturn:
        """A grant that came while its client was being closed: nobody would watch over it."""
        held = renewal.held
        self.drop(held)
        held.lose("its client was closed")
        if not renewal.lent:
            self._commands.enqueue((Abandon(key=held.key, id=held.id, ttl=held.ttl),))
        raise ClientClosed(f"the client was closed while {held.key!r} was taken: it was given back")

    def soon(self, callback: Callable[[], None]) -> None:
        """Run this on the keeper's thread, or where none runs by whoever passes by.

        Never waits and takes no lock, so a finaliser may call it. It may be run twice.
        """
        self._mail.put(callback)
        if not self._serving:
            _orphaned_callbacks.append(callback)

    def give_back(self, command: Abandon) -> None:
        """Send an Abandon, and again until it is answered or pointless. Safe in a finaliser."""
        self.soon(lambda: self._add_abandon(command))

    def stop(self) -> None:
        """End the thread; what was mailed before is done before."""
        with self._lock:
            self._stopping = True
            thread = self._thread
        self._mail.put(None)
        if thread is not None and thread is not threading.current_thread():
            thread.join(JOIN_SECONDS)

    # -- the thread ---------------------------------------------------------------------------------

    def _serve(self) -> None:
        with self._lock:
            if self._thread not in {None, threading.current_thread()}:
                return
            self._thread = threading.current_thread()
        self._serving = True
        self._work()
        self._serving = False  # whoever has an errand from here on leaves it to those who pass by
        with suppress(Empty):
            while True:
                callback = self._mail.get_nowait()
                if callback is not None:
                    _orphaned_callbacks.append(callback)
        run_orphaned_callbacks()

    def _work(self) -> None:
        while True:
            try:
                self._wake_at = math.inf  # whoever comes while it looks around must ring
                self._wake_at = self._look_around()
                callback = self._mail.get(timeout=max(0.001, self._wake_at - elapsed()))
                while True:
                    if callback is not None:
                        callback()
                    callback = self._mail.get_nowait()
            except Empty:
                if self._stopping:
                    return
            except BaseException:  # whatever it is, it must not end everybody's heartbeats
                _log.exception("the keeper stumbled and goes on")
                time.sleep(BREATH)

    def _look_around(self) -> float:
        """Lose what is over, renew what is due, and tell when to look again."""
        now = elapsed()
        wake_at = now + (LIVELY if self._lively else IDLE)
        self._lively = False
        if not self._renewing:
            self._make_changes(now)
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
        wake_at = min(wake_at, self._resend_abandons(now), self._look_at_offers(now))
        self._rest()
        if now >= self._clean_at:
            self._clean_at = now + CLEANUP_EVERY
            self._clean("")
        return wake_at

    def _look_at_offers(self, now: float) -> float:
        """Settle the locks whose last offer has run out; tell when the next one does.

        While this client goes on giving a lock to others it is in good hands, and nothing is sent.
        """
        due = [key for key, look_at in list(self._offers.items()) if look_at <= now]
        for key in due:
            self._offers.pop(key, None)
        if due:

            def done(outcomes: list[out.Outcome] | None, _error: HoldfastError | None) -> None:
                for key, outcome in zip(due, outcomes or (), strict=False):
                    if isinstance(outcome, out.Settled) and outcome.offer_ends_in is not None:  # longer than the first
                        self._look_in(key, outcome.offer_ends_in / MICROSECONDS)

            self._commands.enqueue([Settle(key=key) for key in due], done)
        return min(list(self._offers.values()), default=math.inf)

    def _make_changes(self, now: float) -> None:
        while self._changes:
            renewal, ttl, interval, answered = self._changes.popleft()
            if ttl < renewal.held.ttl:
                renewal.held.shorten(now, ttl)
            renewal.held.ttl, renewal.interval, renewal.renew_at = ttl, interval, now
            renewal.asked.append(answered)

    def _renew(self, due: list[Renewal], sent: float) -> None:
        commands = [
            Renew(key=renewal.held.key, id=renewal.held.id, token=renewal.held.token, ttl=renewal.held.ttl)
            for renewal in due
        ]

        def done(outcomes: list[out.Outcome] | None, error: HoldfastError | None) -> None:
            try:
                for place, renewal in enumerate(due):
                    self._judge(renewal, sent, None if outcomes is None else outcomes[place], error)
            finally:
                self._renewing = False  # last: a ttl that changed in between would be taken for the one that was sent
            if outcomes is not None:
                self._events.emit("leases_renewed", leases=len(due), seconds=elapsed() - sent)
            self._mail.put(None)

        self._renewing = True
        self._pace = _random_pace()
        for renewal in due:
            renewal.renew_at = sent + renewal.interval * self._pace
        if not self._heartbeats.enqueue(commands, done):
            self._renewing = False

    def _judge(self, renewal: Renewal, sent: float, outcome: out.Outcome | None, error: HoldfastError | None) -> None:
        """Renewed, lost or unknown; unknown never prolongs anything."""
        held = renewal.held
        if isinstance(outcome, out.Renewed) and outcome.expires_at is not None:
            held.renewed(sent, held.ttl, outcome.expires_at, outcome.floor)
            while renewal.asked:
                renewal.asked.pop().set()
        elif self._renewals.get(held.id) is not renewal:  # its holder is giving it back at this moment
            return
        elif isinstance(outcome, out.NotHolder):
            self._lose(renewal, "the store gave it to somebody else, or it was released by force")
        elif held.state == "held":
            trouble = outcome.error if isinstance(outcome, Failed) else error
            if renewal.asked or isinstance(trouble, StoreContended):
                # Somebody waits, or somebody else has the record: try again soon, which is no further failure.
                renewal.renew_at = min(renewal.renew_at, elapsed() + RETRY_ASKED)
            else:
                held.failures += 1
            self._events.emit(
                "renewal_unknown",
                key=held.key,
                owner=held.owner,
                token=held.token,
                failures=held.failures,
                error=str(trouble),
            )
            if held.failures >= renewal.max_failures:
                self._lose(renewal, f"{held.failures} renewals in a row failed: {trouble}")

    def _lose(self, renewal: Renewal, reason: str) -> None:
        self._renewals.pop(renewal.held.id, None)
        renewal.held.lose(reason)

    def _neglect(self, renewal: Renewal, reason: str) -> None:
        """Renew no longer; the lease is lost when its time runs out."""
        renewal.neglected = reason
        held = renewal.held
        self._events.emit("lease_neglected", key=held.key, owner=held.owner, token=held.token, reason=reason)
        if renewal.dropped:  # its finaliser has warned
            return
        with suppress(ResourceWarning):  # where warnings are errors, this thread is not the one to fail
            warnings.warn(f"the lease on {held.key!r} is not renewed any more: {reason}", ResourceWarning, stacklevel=2)

    # -- what others leave to it ----------------------------------------------------------------------

    def _add_abandon(self, command: Abandon) -> None:
        now = elapsed()
        self._abandons[command.id] = pending = _PendingAbandon(command, now + command.ttl / MICROSECONDS)
        self._send_abandon(pending)

    def _send_abandon(self, pending: _PendingAbandon) -> None:
        command = pending.command

        def done(outcomes: list[out.Outcome] | None, error: HoldfastError | None) -> None:
            if outcomes is not None and isinstance(outcomes[0], out.Abandoned):
                self._abandons.pop(command.id, None)
                if outcomes[0].woken:
                    self.look_after(command.key)
                return
            trouble = outcomes[0].error if outcomes is not None and isinstance(outcomes[0], Failed) else error
            self._events.emit("give_back_failed", key=command.key, attempt=command.id, error=str(trouble))
            pending.retry_at = elapsed() + RETRY_DEBT
            self._mail.put(None)

        pending.retry_at = pending.until
        if not self._commands.enqueue((command,), done):
            self._abandons.pop(command.id, None)

    def _resend_abandons(self, now: float) -> float:
        """Send again what was not answered; after one ttl it has expired by itself. Tells when to look again."""
        wake_at = now + IDLE
        for pending in list(self._abandons.values()):
            if now >= pending.until:
                self._abandons.pop(pending.command.id, None)
            elif now >= pending.retry_at:
                self._send_abandon(pending)
            wake_at = min(wake_at, pending.retry_at)
        return wake_at

    def _clean(self, after: str) -> None:
        def done(outcomes: list[out.Outcome] | None, _error: HoldfastError | None) -> None:
            if outcomes is None or not isinstance(outcomes[0], Swept):
                return
            swept = outcomes[0]
            if swept.changed:
                self._events.emit("records_removed", removed=swept.changed)
            following = swept.next
            if following is not None:
                self._mail.put(lambda: self._clean(following))

        self._commands.enqueue((Cleanup(after=after, retention=self._retention),), done)


def _random_pace() -> float:
    """The part of its interval after which a lease is renewed; one for all leases of a client, which go together."""
    return random.uniform(1 - SPREAD, 1)
