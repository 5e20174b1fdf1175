"""Liveness of an event loop, measured from another thread.

`LoopProbe` schedules a call on the loop and measures how long the loop takes to run it. It references the loop weakly,
so a loop can be garbage-collected. The users of the probe, the heartbeat thread and the local queues, decide what to
do if a loop is blocked.
"""

from __future__ import annotations

import asyncio
import weakref
from contextlib import suppress


class LoopProbe:
    """Measures for how long an event loop has not run."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._sent_at: float | None = None

    @property
    def stopped(self) -> bool:
        """Whether the loop is closed, or was collected."""
        loop = self._loop()
        return loop is None or loop.is_closed()

    def silent_for(self, now: float) -> float:
        """For how many seconds a call to the loop has been pending; schedules a call if none is pending."""
        sent_at = self._sent_at  # read once: the loop may answer at any moment
        if sent_at is not None:
            return now - sent_at
        self._sent_at = now
        loop = self._loop()
        if loop is not None:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(self._answer)
        return 0.0

    def _answer(self) -> None:
        self._sent_at = None
