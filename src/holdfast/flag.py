"""A flag that threads and event loops can wait for alike.

It is set from any thread, stays set until it is cleared, and costs nothing while nobody waits.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress

running_loop = asyncio._get_running_loop  # noqa: SLF001  (the documented one raises, which costs more than all else here)
"""The event loop that runs in this thread, or None."""


class Flag:
    """A latch that any thread may set and any thread or event loop may wait for."""

    __slots__ = ("__weakref__", "_lock", "_set", "_watchers")

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._set = False
        self._watchers: list[Callable[[], None]] | None = None

    def is_set(self) -> bool:
        """Whether it is set now."""
        return self._set

    def set(self) -> None:
        """Set it and wake everyone who waits."""
        with self._lock:
            self._set = True
            watchers, self._watchers = self._watchers, None
        for watcher in watchers or ():
            watcher()

    def clear(self) -> None:
        """Make it unset again."""
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Block this thread until the flag is set, for at most `timeout` seconds. Returns whether it is set."""
        bell = threading.Lock()
        bell.acquire()
        if self._watch(bell.release):
            return True
        try:
            bell.acquire(timeout=-1 if timeout is None else max(0.0, min(timeout, threading.TIMEOUT_MAX)))
        finally:
            self._unwatch(bell.release)
        return self._set

    async def wait_async(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109  (as `wait`)
        """Wait on this event loop, without blocking it."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()

        def ring() -> None:
            with suppress(RuntimeError):  # the loop was closed: nobody is left to be told
                loop.call_soon_threadsafe(_finish, future)

        if self._watch(ring):
            return True
        timer = None if timeout is None else loop.call_later(max(0.0, timeout), _finish, future)
        try:
            await future
        finally:
            if timer is not None:
                timer.cancel()
            self._unwatch(ring)
        return self._set

    def _watch(self, watcher: Callable[[], None]) -> bool:
        """Be called once when the flag is set; True if it is set already."""
        with self._lock:
            if self._set:
                return True
            if self._watchers is None:
                self._watchers = []
            self._watchers.append(watcher)
            return False

    def _unwatch(self, watcher: Callable[[], None]) -> None:
        with self._lock:
            if self._watchers is not None:
                with suppress(ValueError):
                    self._watchers.remove(watcher)


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
