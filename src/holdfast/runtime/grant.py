"""The state of one grant in the holder's process: held, ended or lost, by a local deadline that compares no clocks.

The deadline is the time *before* the request was sent, plus the ttl, minus a margin, on a clock that also counts the
time during which the machine was suspended. A renewal that was answered extends it; a renewal with an unknown outcome
never does. After the deadline the grant counts as lost, whatever the store answers later.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from datetime import datetime
from typing import Literal

from ..platform import elapsed
from ..validation import MICROSECONDS, time_of
from .notifier import Notifier

DRIFT = 0.01
"""The part of a ttl by which two clocks may drift apart while it runs."""
LATENESS = 0.002
"""Seconds that a holder may need to detect that its deadline has passed."""

_log = logging.getLogger("holdfast")

State = Literal["held", "ended", "lost"]


def local_deadline(sent: float, ttl: int) -> float:
    """The latest time until which the holder may use a grant whose request was sent at `sent`."""
    length = ttl / MICROSECONDS
    return sent + length - length * DRIFT - LATENESS


class LocalGrant:
    """A grant that this process received. Thread-safe; the first call that ends or loses it decides."""

    __slots__ = (
        "__weakref__",
        "_listeners",
        "_lock",
        "_pid",
        "deadline",
        "expires_at",
        "failures",
        "floor",
        "id",
        "key",
        "over",
        "owner",
        "reason",
        "state",
        "token",
        "ttl",
    )

    def __init__(
        self, *, key: str, id: str, owner: str, token: int, floor: int, ttl: int, sent: float, expires_at: int
    ) -> None:
        self.key = key
        self.id = id
        self.owner = owner
        self.token = token
        self.floor = floor
        self.ttl = ttl
        self.deadline = local_deadline(sent, ttl)
        self.expires_at = expires_at
        self.failures = 0
        self.state: State = "held"
        self.reason = ""
        self.over = Notifier()
        self._listeners: list[Callable[[LocalGrant], None]] = []
        self._lock = threading.Lock()
        self._pid = os.getpid()

    @property
    def valid(self) -> bool:
        """Whether the grant may be used now. Decided by the clock, even if the loss has not been reported yet."""
        return self.state == "held" and elapsed() < self.deadline and os.getpid() == self._pid

    @property
    def inherited(self) -> bool:
        """Whether this process inherited it by fork: then the parent holds it, and this process does not."""
        return os.getpid() != self._pid

    def remaining(self) -> float:
        """Seconds for which the grant may still be used."""
        return max(0.0, self.deadline - elapsed()) if self.valid else 0.0

    def expiry(self) -> datetime:
        """When it expires in the store, by the store's clock."""
        return time_of(self.expires_at)

    def renewed(self, sent: float, ttl: int, expires_at: int, floor: int) -> None:
        """A renewal that was sent at that moment has been answered."""
        with self._lock:
            if self.state == "held":
                self.ttl = ttl
                self.deadline = max(self.deadline, local_deadline(sent, ttl))
                self.expires_at = expires_at
                self.floor = floor
                self.failures = 0

    def shorten(self, sent: float, ttl: int) -> None:
        """A renewal to a shorter ttl is about to be sent: from now on the grant may end that early, answered or not."""
        with self._lock:
            if self.state == "held":
                self.ttl = ttl
                self.deadline = min(self.deadline, local_deadline(sent, ttl))

    def judge(self) -> bool:
        """Whether the grant is held; after its deadline the first call marks it as lost."""
        if self.valid:
            return True
        if self.state == "held" and elapsed() >= self.deadline:
            self.lose("its time ran out before a renewal was answered")
        return False

    def lose(self, reason: str) -> bool:
        """Mark it as lost. True for the first call that ends it."""
        return self._finish("lost", reason)

    def end(self) -> bool:
        """Mark it as released by its holder. True for the first call that ends it."""
        return self._finish("ended", "")

    def when_over(self, listener: Callable[[LocalGrant], None]) -> None:
        """Call this once when the grant has been lost or released; at once if it already is."""
        with self._lock:
            if self.state == "held":
                self._listeners.append(listener)
                return
        listener(self)

    def _finish(self, state: State, reason: str) -> bool:
        if self.inherited:
            return False
        first = False
        try:
            with self._lock:
                if self.state != "held":
                    return False
                self.state, self.reason, first = state, reason, True
            self._notify()
        except BaseException:  # interrupted: every listener must still be notified
            if first:
                self._notify()
            raise
        return True

    def _notify(self) -> None:
        self.over.set()
        for listener in self._listeners:
            try:
                listener(self)
            except Exception:  # an error of one listener must not affect the others
                _log.exception("a listener for the end of a lease failed")
        self._listeners = []
