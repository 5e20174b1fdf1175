"""One grant as its holder sees it: held, ended or lost, by a local deadline that compares no clocks.

The deadline is the moment *before* the request was sent, plus the ttl, less a margin, on a clock that also
counts suspended time. A renewal that was answered moves it; an unknown outcome never does. Once it has
passed the grant is lost here, whatever the store says later.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Literal

from ..platform import elapsed
from ..validation import MICROSECONDS
from .notifier import Notifier

DRIFT = 0.01
"""The part of a ttl by which two clocks may drift apart while it runs."""
LATENESS = 0.002
"""Seconds that a holder may need to notice that its time is over."""

_log = logging.getLogger("holdfast")

State = Literal["held", "ended", "lost"]


def local_deadline(sent: float, ttl: int) -> float:
    """When a grant that was asked for at `sent` must be given up here, at the latest."""
    length = ttl / MICROSECONDS
    return sent + length - length * DRIFT - LATENESS


class LocalGrant:
    """A grant that this process got. Thread-safe; the first to end or lose it decides."""

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
        """Whether it may be acted upon now. Judged by the clock, even if nobody has noticed yet."""
        return self.state == "held" and elapsed() < self.deadline and os.getpid() == self._pid

    @property
    def inherited(self) -> bool:
        """Whether this process got it by fork: then the parent holds it, and this process nothing."""
        return os.getpid() != self._pid

    def remaining(self) -> float:
        """Seconds for which it may still be acted upon."""
        return max(0.0, self.deadline - elapsed()) if self.valid else 0.0

    def expiry(self) -> datetime:
        """When it expires in the store, by the store's clock."""
        return datetime.fromtimestamp(self.expires_at / MICROSECONDS, UTC)

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
        """A renewal to a shorter ttl is about to be sent: from here on it may end so early, answered or not."""
        with self._lock:
            if self.state == "held":
                self.ttl = ttl
                self.deadline = min(self.deadline, local_deadline(sent, ttl))

    def judge(self) -> bool:
        """Whether it is held; past its deadline it is lost, by whoever looks first."""
        if self.valid:
            return True
        if self.state == "held" and elapsed() >= self.deadline:
            self.lose("its time ran out before a renewal was answered")
        return False

    def lose(self, reason: str) -> bool:
        """It is lost. True for the first one to say so."""
        return self._finish("lost", reason)

    def end(self) -> bool:
        """It is given back by its holder. True for the first one to say so."""
        return self._finish("ended", "")

    def when_over(self, listener: Callable[[LocalGrant], None]) -> None:
        """Call this once when it has been lost or given back; at once if it already is."""
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
            self._tell()
        except BaseException:  # interrupted on the way: nobody may be left untold
            if first:
                self._tell()
            raise
        return True

    def _tell(self) -> None:
        self.over.set()
        for listener in self._listeners:
            try:
                listener(self)
            except Exception:  # whatever one of them does, the others are told
                _log.exception("somebody who was told of the end of a lease failed")
        self._listeners = []
