"""Notifications from other processes through a change stream.

A write that grants something lists the attempts in its document, and the change stream delivers only such writes, so a
waiting client receives nothing else. Whenever the stream begins, also again after an error, every waiter checks once.
Where the deployment has no change streams, or the user may not open one, waiters poll.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Collection

from ...platform import start_thread
from .client import SharedClient
from .layout import Document

AWAIT_MS = 500
"""Milliseconds that the server waits for a change before it answers; closing waits for that answer."""
RETRY_SECONDS = (0.1, 10.0)
"""The first pause after an error, and the longest one; each is jittered."""
JOIN_SECONDS = 5.0

log = logging.getLogger("holdfast.stores")


class MongoSubscription:
    """A change stream in a thread of its own."""

    def __init__(self, shared: SharedClient, notified: Callable[[Collection[str] | None], None]) -> None:
        self.live = False
        self._shared, self._notified = shared, notified
        self._closed = threading.Event()
        self._thread: threading.Thread | None = threading.Thread(target=self._run, name="holdfast-wake", daemon=True)
        try:
            start_thread(self._thread)
        except RuntimeError as error:  # waiters poll then
            self._thread = None
            log.warning(
                "no thread could be started to receive hints (%s): waiters poll, so a lock may be granted later", error
            )

    def close(self) -> None:
        """End the thread and its change stream."""
        self._closed.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(JOIN_SECONDS)

    def _run(self) -> None:
        pause = RETRY_SECONDS[0]
        while not self._closed.is_set():
            try:
                self._listen()
                pause = RETRY_SECONDS[0]
            except Exception as error:  # after any error, open the stream again
                if self.live:
                    pause = RETRY_SECONDS[0]
                if not self._closed.is_set():
                    log.debug("the change stream was interrupted (%s)", error)
            finally:
                self.live = False
            self._closed.wait(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, RETRY_SECONDS[1])

    def _listen(self) -> None:
        wanted: list[Document] = [
            {"$match": {"operationType": {"$in": ["insert", "replace"]}, "fullDocument.woken.0": {"$exists": True}}},
            {"$project": {"fullDocument.woken": 1}},
        ]
        with (
            self._shared.request(writing=False) as collection,
            collection.watch(wanted, max_await_time_ms=AWAIT_MS) as stream,
        ):
            self.live = True
            self._notified(None)
            while not self._closed.is_set() and stream.alive:
                change = stream.try_next()
                woken = ((change or {}).get("fullDocument") or {}).get("woken")
                if isinstance(woken, list):
                    self._notified([attempt for attempt in woken if isinstance(attempt, str)])
