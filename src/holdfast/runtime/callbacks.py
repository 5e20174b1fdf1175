"""Callbacks that must not be called in the thread in which they are requested.

`Callbacks` is the thread that calls functions of the user, such as `on_lost`, so that a slow function delays other
callbacks but no heartbeat. Orphaned callbacks are internal callbacks that were queued while no heartbeat thread was
running, for example by a finaliser, which must not acquire locks. Other threads of the process call them when they
next open a client or wait for a lock.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from ..platform import after_fork_in_child, start_thread

_log = logging.getLogger("holdfast")

orphaned_callbacks: deque[Callable[[], None]] = deque()
after_fork_in_child(orphaned_callbacks.clear)


def run_orphaned_callbacks() -> None:
    """Run callbacks that were queued while no heartbeat thread was running.

    Never call it in a finaliser, because it takes locks. Every orphaned callback may be run twice, and an interrupt
    in this function does no harm.
    """
    while orphaned_callbacks:
        with suppress(IndexError, ValueError):  # another thread was faster
            callback = orphaned_callbacks[0]
            try:
                callback()
            except Exception:
                _log.exception("an orphaned callback failed")
            orphaned_callbacks.remove(callback)


class Callbacks:
    """Calls functions of the user in a thread of its own, which exists only while there are calls to make.

    A call that takes long delays the calls after it, but no heartbeat.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: deque[Callable[[], None]] = deque()
        self._thread: threading.Thread | None = None

    def add(self, call: Callable[[], None]) -> None:
        """Make this call soon, after the calls that were added before. If no thread can be started, it stays queued."""
        with self._lock:
            self._calls.append(call)
            if self._thread is not None and self._thread.is_alive():
                return
            self._thread = threading.Thread(target=self._serve, name="holdfast-on-lost", daemon=True)
            try:
                start_thread(self._thread)
            except RuntimeError:
                self._thread = None
                _log.exception(
                    "no thread could be started to call on_lost: %d calls wait until the next callback",
                    len(self._calls),
                )

    def _serve(self) -> None:
        while True:
            with self._lock:
                if self._thread is not threading.current_thread():  # an interrupted start left a second thread
                    return
                if not self._calls:
                    self._thread = None
                    return
                call = self._calls.popleft()
            call()
