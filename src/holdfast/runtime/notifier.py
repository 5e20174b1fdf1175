"""A flag that threads and event loops can wait for alike.

It is set from any thread, stays set until it is cleared, and costs nothing while nobody waits. It has no lock,
so a finaliser that ends a waiting may come in at any point: whoever wants to be woken first puts itself on the
list and then looks at the flag; whoever sets it first sets it and then looks at the list.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable
from contextlib import suppress

running_loop = asyncio._get_running_loop  # noqa: SLF001  (the documented one raises, which costs more than all else here)
"""The event loop that runs in this thread, or None."""
FOR_EVER = 100 * 365 * 86_400.0
"""Seconds that nobody waits out."""


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
        """Set it and wake everyone who waits. Interrupted, it is finished by whoever sets it again."""
        self._set = True
        if self._watchers:
            self._wake()

    def _wake(self) -> None:
        for watcher in tuple(self._watchers):
            watcher()  # first: one that was taken out and not woken would wait for ever
            self._unwatch(watcher)

    def clear(self) -> None:
        """Make it unset again."""
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Block this thread until the flag is set, for at most `timeout` seconds. Returns whether it is set."""
        bell = threading.Lock()
        bell.acquire()

        def ring() -> None:
            with suppress(RuntimeError):  # rung before
                bell.release()

        if self._watch(ring):
            return True
        try:
            bell.acquire(timeout=-1 if timeout is None else max(0.0, min(timeout, threading.TIMEOUT_MAX)))
        finally:
            self._unwatch(ring)
        return self._set

    async def wait_async(self, timeout: float | None = None) -> bool:  # noqa: ASYNC109  (as `wait`)
        """Wait on this event loop, without blocking it.

        The loop keeps the one who waits alive, by a timer; the flag does not: when the loop is gone, so is he.
        """
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        waiting = weakref.ref(future)

        def ring() -> None:
            future = waiting()
            if future is not None:
                with suppress(RuntimeError):  # the loop was closed: nobody is left to be told
                    future.get_loop().call_soon_threadsafe(_finish, future)

        if self._watch(ring):
            return True
        timer = loop.call_later(FOR_EVER if timeout is None else max(0.0, timeout), _finish, future)
        try:
            await future
        finally:
            timer.cancel()
            self._unwatch(ring)
        return self._set

    def _watch(self, watcher: Callable[[], None]) -> bool:
        """Be called once when the flag is set; True if it is set already."""
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
