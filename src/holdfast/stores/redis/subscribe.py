"""Hints through Redis pub/sub: a subscription with a thread of its own.

The scripts publish the ids of attempts that were granted something, on one channel per client. The thread sends nothing
while it waits, except a rare PING that detects a broken connection. Whenever the subscription begins, also again after
an error, every waiter gets a hint: one may have been missed. While there is no subscription, waiters poll, and their
records do not say that they listen. Hints may be lost; safety does not depend on them.
"""

from __future__ import annotations

import logging
import os
import random
import socket
import threading
from contextlib import suppress

from ...platform import start_thread
from ..contract import Hint
from ..local_hints import HintReceiver
from .connection import RedisAddress, RedisPyConnection
from .keys import Layout

PING_SECONDS = 12.0
"""Seconds without a message before a PING is sent."""
ANSWER_SECONDS = 5.0
"""Seconds to wait for the answer to a PING."""
RETRY_SECONDS = (0.05, 5.0)
"""The first pause after an error, and the longest one; each is jittered."""
JOIN_SECONDS = 5.0

log = logging.getLogger("holdfast.stores")


class RedisWatch(HintReceiver):
    """A running subscription to the hints of one channel."""

    def __init__(self, place: RedisAddress, layout: Layout, channel: str, on_hint: Hint) -> None:
        super().__init__(on_hint)
        self.polls = True  # until the server has confirmed the subscription
        self._place = place
        self._index, self._channel = layout.index, layout.channel(channel)
        self._pid = os.getpid()
        self._connection: RedisPyConnection | None = None
        self._swapping = threading.Lock()
        self._thread: threading.Thread | None = threading.Thread(target=self._run, name="holdfast-wake", daemon=True)
        try:
            start_thread(self._thread)
        except RuntimeError as error:  # waiters poll then
            self._thread = None
            log.warning(
                "no thread could be started to receive hints (%s): waiters poll, so a lock may be granted later",
                error,
            )

    def expect(self, id: str, *, eager: bool) -> None:
        """Nothing to prepare: the server sends all hints of the channel."""

    def forget(self, id: str) -> None:
        """Nothing to undo."""

    def close(self) -> None:
        """End the subscription, its thread and its connection."""
        self._closed.set()
        if os.getpid() != self._pid:  # the thread and its connection belong to the parent
            return
        with self._swapping:
            connection = self._connection
            listening = None if connection is None else connection._sock  # noqa: SLF001  (the driver cannot interrupt)
        if listening is not None:
            with suppress(OSError):
                socket.socket.shutdown(listening, socket.SHUT_RDWR)  # below TLS, which another thread is using
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(JOIN_SECONDS)

    def _run(self) -> None:
        pause = RETRY_SECONDS[0]
        while not self._closed.is_set():
            try:
                connection = self._subscribe()
                pause = RETRY_SECONDS[0]
                self.polls = False
                self.hint(None)
                self._listen(connection)
            except Exception as error:  # after any error, subscribe again
                if not self._closed.is_set():
                    log.debug("the subscription to %s was interrupted (%s)", self._place.name, error)
            finally:
                self.polls = True
                self._drop()
            self._closed.wait(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, RETRY_SECONDS[1])

    def _subscribe(self) -> RedisPyConnection:
        connection = self._place.open(self._index, protocol=2)
        with self._swapping:
            self._connection = connection
        if not self._closed.is_set():  # `close` may have run before the connection existed
            connection.send_command("SUBSCRIBE", self._channel, check_health=False)
            connection.read_response(disable_decoding=True)
        return connection

    def _listen(self, connection: RedisPyConnection) -> None:
        asked = False
        while not self._closed.is_set():
            if not connection.can_read(timeout=ANSWER_SECONDS if asked else PING_SECONDS):
                if asked:
                    raise TimeoutError("no answer to PING")
                connection.send_command("PING", check_health=False)
                asked = True
                continue
            message = connection.read_response(disable_decoding=True)
            asked = False
            if isinstance(message, list) and message[0] == b"message":
                self.hint(message[2].decode(errors="replace").split("\n"))

    def _drop(self) -> None:
        with self._swapping:
            connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(Exception):
                connection.disconnect()
