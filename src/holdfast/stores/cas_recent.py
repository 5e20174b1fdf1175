"""What a client remembers of a compare-and-swap store: the locks that it wrote last, and a lower bound of the time.

A lock that is still as this client left it can be released or renewed by one conditional write, without reading it
first; the stamp in the condition shows whether it is. The time of such a decision is a lower bound of the service's
time: the last reading, and the time that has passed since its reply arrived. So no expiry becomes too late. The
record is read first if the grant may have expired by the upper bound, or if the command would change anything except
its own grants. Shared by the connections of a store, because heartbeats use their own.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import NamedTuple

from ..platform import elapsed
from ..rules.lock_record import LockRecord
from .cas_adapter import StampedText
from .contract import Clock

MOST_REMEMBERED = 10_000
"""How many locks are remembered, at most; the one that was written first is forgotten first."""
MAX_AGE = 60.0
"""Seconds for which a reading of the clock is used."""
DRIFT = 1_000
"""This host's clock may be slower than the service's by one part in so many."""
MICROSECONDS = 1_000_000


class TimeBounds(NamedTuple):
    """What the service's clock shows now, at least and at most."""

    low: int
    high: int


class _Reading(NamedTuple):
    now: int
    sent: float
    arrived: float


class OwnWrite(NamedTuple):
    """A lock as this client wrote it, and the time at which that was decided."""

    found: StampedText
    record: LockRecord
    now: int


class RecentWrites:
    """The last own writes, and the last reading of the clock. Used by any thread."""

    def __init__(self, clock: Clock | None) -> None:
        """`clock` replaces the service's clock in tests: it can be read at any time."""
        self._clock = clock
        self._lock = threading.Lock()
        self._writes: OrderedDict[str, OwnWrite] = OrderedDict()
        self._reading: _Reading | None = None

    def note_reading(self, now: int, sent: float) -> None:
        """The reply with this reading of the service's clock has just arrived; the request was sent then."""
        self._reading = _Reading(now, sent, elapsed())

    def bounds(self) -> TimeBounds | None:
        """What the service's clock shows now; None where no reading is recent enough."""
        if self._clock is not None:
            now = self._clock()
            return TimeBounds(now, now)
        reading = self._reading
        if reading is None:
            return None
        present = elapsed()
        least, most = present - reading.arrived, (present - reading.sent) * (1 + 1 / DRIFT)
        if not 0 <= least <= MAX_AGE:
            return None
        return TimeBounds(reading.now + int(least * MICROSECONDS), reading.now + int(most * MICROSECONDS) + 1)

    def get(self, key: str) -> OwnWrite | None:
        """The lock as this client wrote it; None where that is not known."""
        return self._writes.get(key)

    def note_write(self, key: str, found: StampedText, record: LockRecord, now: int) -> None:
        """This client has written the record. Only one that somebody holds and nobody waits for is remembered."""
        if not record.holders or record.waiters or record.closed_until:
            self.forget(key)
            return
        with self._lock:
            self._writes.pop(key, None)
            self._writes[key] = OwnWrite(found, record, now)
            if len(self._writes) > MOST_REMEMBERED:
                self._writes.popitem(last=False)

    def forget(self, key: str, stamp: str | None = None) -> None:
        """The record is not as this client wrote it any more; with a stamp, only if that was the write."""
        with self._lock:
            known = self._writes.get(key)
            if known is not None and stamp in (None, known.found.stamp):
                del self._writes[key]
