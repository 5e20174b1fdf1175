"""The time of a SQLite store: each process has a clock of its own, and all share the clock that stamps files.

A process compares the two when it opens the store, every few seconds while it writes, and whenever its own clock has
jumped. While its clock is off by more than a second it uses the time stamps instead: so it takes no lease from other
processes, and loses none of its own. It also reports the difference in the table `clocks`, and emits an event. Other
processes read that table and emit the event too, so that every log, and `holdfast doctor`, names the process whose
clock is wrong. A process whose clock is right writes nothing.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
import time
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from ...platform import HOST, elapsed, host_clock
from ...validation import MICROSECONDS
from ..contract import Clock
from .write_turns import WriteTurn

TOLERANCE = 1.0
"""Seconds by which a clock may be off."""
COARSE = 2.0
"""Seconds by which a time stamp may be too early, on file systems that store whole seconds only."""
LOOK_SECONDS = 5.0
"""Seconds between two comparisons of a clock."""
FORGOTTEN_AFTER = 600 * MICROSECONDS
"""A report that was not repeated for this long is ignored: its process has ended."""

REPORT = "INSERT OR REPLACE INTO clocks (process, name, host, pid, ahead, at) VALUES (?, ?, ?, ?, ?, ?)"
WITHDRAW = "DELETE FROM clocks WHERE process = ? OR at < ?"
DIFFERING = "SELECT process, name, host, pid, ahead FROM clocks WHERE at >= ? ORDER BY name, host, pid, process"


class ClockDifference(NamedTuple):
    """A process whose clock is so many seconds ahead of the store's host; negative: behind it."""

    process: str
    name: str
    host: str
    pid: int
    ahead: float

    def __str__(self) -> str:
        return f"{self.name} ({self.host}, process {self.pid}): {abs(self.ahead):.1f} s {_side(self.ahead)}"


def _side(ahead: float) -> str:
    return "ahead" if ahead > 0 else "behind"


OnDifferingClock = Callable[[ClockDifference], None]


class Clocks:
    """The clock of this process, and the reported clocks of other processes, for one store."""

    def __init__(self, clock: Clock, turn: WriteTurn) -> None:
        self._clock = clock
        self._turn: WriteTurn | None = turn
        self._process = secrets.token_hex(8)
        self._name = ""
        self._callback: OnDifferingClock | None = None
        self.reported = False
        self._known: set[str] = set()
        self.new_differences: list[ClockDifference] = []
        # The clock of a test differs on purpose.
        self._compares = clock is host_clock and os.utime in os.supports_fd
        self.look_at = 0.0 if self._compares else float("inf")
        self._differs = False
        self._began = float("-inf")  # the time of this process's clock when `elapsed` was 0, at the last comparison

    def now(self) -> int:
        """The time of the store: the clock of this process or, where that differs, the time stamp of a file."""
        now = self._clock()
        if self._compares and (self._differs or abs(now / MICROSECONDS - elapsed() - self._began) > TOLERANCE):
            with suppress(OSError):
                before, (stamp, _) = self._differs, self._compared()
                if self._differs != before:
                    self.look_at = 0.0  # reported after this write
                if self._differs:
                    return stamp
        return now

    def on_differing(self, name: str, callback: OnDifferingClock) -> None:
        """Register a callback for every process whose clock begins to differ; `name` is the name of this client."""
        self._name, self._callback = name, callback

    def look(self, db: sqlite3.Connection) -> None:
        """Compare, and queue an event for each newly reported process. In the turn to write, not in a transaction."""
        self.look_at = time.monotonic() + LOOK_SECONDS
        with suppress(OSError):
            stamp, ahead = self._compared()
            if self._differs or self.reported:
                self._report(db, stamp, ahead)
            found = [ClockDifference(*row) for row in db.execute(DIFFERING, (stamp - FORGOTTEN_AFTER,))]
            self.new_differences += [one for one in found if one.process not in self._known]
            self._known = {one.process for one in found}

    def notify(self) -> None:
        """Call the callback for each clock that began to differ. Not in the turn to write: it may take long."""
        while self.new_differences:
            one = self.new_differences.pop()
            if self._callback is not None:
                self._callback(one)

    def withdraw(self, db: sqlite3.Connection) -> None:
        """Delete the entry of this process. In the turn to write."""
        if self.reported:
            self.reported = False
            db.execute(WITHDRAW, (self._process, 0))

    def close(self) -> None:
        """Stop comparing."""
        self._compares, self._turn = False, None

    def _report(self, db: sqlite3.Connection, stamp: int, ahead: float) -> None:
        self.reported = self._differs
        if self.reported:
            db.execute(REPORT, (self._process, self._name, HOST, os.getpid(), ahead, stamp))
        else:
            db.execute(WITHDRAW, (self._process, stamp - FORGOTTEN_AFTER))

    def _compared(self) -> tuple[int, float]:
        """The time of the clock that stamps files, and by how many seconds this process's clock is ahead of it."""
        turn = self._turn
        if turn is None:
            raise OSError("the store is closed")
        before = self._clock()
        stamp = turn.stamp()
        after = self._clock()
        ahead = (before - stamp if stamp < before else min(0, after - stamp)) / MICROSECONDS
        self._differs = not -TOLERANCE <= ahead <= TOLERANCE + (0.0 if stamp % MICROSECONDS else COARSE)
        self._began = after / MICROSECONDS - elapsed()
        return stamp, ahead


def differing(db: sqlite3.Connection, now: int) -> list[ClockDifference]:
    """The processes whose clocks differ, for callers that only read."""
    return [ClockDifference(*row) for row in db.execute(DIFFERING, (now - FORGOTTEN_AFTER,))]
