"""A flag that both threads and event loops can wait for.

Any thread may set it. It stays set until it is cleared, and costs no time while there is no waiter. It has no lock,
so a finaliser may set it at any point. No notification is lost: a waiter first adds itself to the list and then reads
the flag; a setter first sets the flag and then reads the list.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress

running_loop = asyncio._get_running_loop  # noqa: SLF001  (the documented function raises, which costs more)
"""The event loop that runs in this thread, or None."""
FOREVER = 100 * 365 * 86_400.0
"""Seconds that stand for no limit."""


class Notifier:
    """A latch that any thread may set and any thread or event loop may wait for."""

    __slots__ = ("__weakref__", "_set", "_watchers")

    def __init__(self) -> None:
        self._set = False
        self._watchers: list[Callable[[], None]] = []

    def is_set(self) -> bool:
        """Whether it is set now."""
        return self._set

    def set(self) -> None:
        """Set it and wake all waiters. If it is interrupted, setting it again finishes the work."""
        self._set = True
        if self._watchers:
            self._wake()

    def _wake(self) -> None:
        for watcher in tuple(self._watchers):
            watcher()  # first: a waiter that was removed and not woken would wait forever
            self._unwatch(watcher)

    def clear(self) -> None:
        """Make it unset again."""
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Block this thread until the flag is set, for at most `timeout` seconds. Returns whether it is set."""
        lock = threading.Lock()
        lock.acquire()

        def wake() -> None:
            with suppress(RuntimeError):  # woken before
                lock.release()

        if self._watch(wake):
            return True
        try:
            lock.acquire(timeout=-1 if timeout is None else max(0.0, min(timeout, threading.TIMEOUT_MAX)))
        finally:
            self._unwatch(wake)
        return self._set

    async def wait_async(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109  (as `wait`)
        """Wait on this event loop, without blocking it.

        Only the loop references the waiter, by a timer, so closing the loop lets it be collected.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        waiting = weakref.ref(future)

        def wake() -> None:
            future = waiting()
            if future is not None:
                with suppress(RuntimeError):  # the loop was closed, and its waiter with it
                    future.get_loop().call_soon_threadsafe(_finish, future)

        if self._watch(wake):
            return True
        timer = loop.call_later(FOREVER if timeout is None else max(0.0, timeout), _finish, future)
        try:
            await future
        finally:
            timer.cancel()
            self._unwatch(wake)
        return self._set

    def _watch(self, watcher: Callable[[], None]) -> bool:
        """Call this once when the flag is set; True if it is set already."""
        self._watchers.append(watcher)
        if not self._set:
            return False
        self._unwatch(watcher)
        return True

    def _unwatch(self, watcher: Callable[[], None]) -> None:
        with suppress(ValueError):
            self._watchers.remove(watcher)


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
