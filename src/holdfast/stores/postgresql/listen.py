"""Hints through LISTEN/NOTIFY: which attempts may have been granted by another process.

Each watch has a connection of its own that listens on one channel; the transaction that makes a grant notifies it.
Grants by this same process are passed on directly. LISTEN does not work through a pooler: there the head of a queue
polls about once a second instead. Hints may be lost: safety does not depend on them.
"""

from __future__ import annotations

import hashlib
import logging
import os
import random
import threading
from contextlib import suppress

import msgspec

from ...platform import after_fork_in_child, start_thread
from ..contract import Hint
from ..local_hints import HintReceiver, LocalHints
from .session import Connect, Session, readable

POLL_SECONDS = 1.0
"""How often the head of a queue polls where LISTEN does not work."""
PROOF_SECONDS = 20.0
"""How often an idle connection is checked."""
RECONNECT_SECONDS = (0.1, 5.0)
"""Pauses between attempts to listen again: they double from the first to the second, and are jittered."""
JOIN_SECONDS = 5.0

log = logging.getLogger("holdfast.stores")

local_hints: LocalHints[Listening] = LocalHints()
_ids = msgspec.json.Decoder(list[str])


def _named_in(text: bytes) -> list[str] | None:
    """The attempts that a notification names; None: any attempt, all must check."""
    try:
        return _ids.decode(text) if text else None
    except msgspec.MsgspecError:  # any client of the database may notify
        return None


def _forget_after_fork() -> None:
    local_hints.forget()


after_fork_in_child(_forget_after_fork)


class Listening(HintReceiver):
    """A subscription, with a thread and a connection of its own."""

    def __init__(
        self,
        identity: str,
        namespace: str,
        channel: str,
        on_hint: Hint,
        *,
        connect: Connect | None,
        timeout: float,
        look_every: float | None = None,
    ) -> None:
        super().__init__(on_hint)
        self._identity, self._channel = identity, channel
        digest = hashlib.md5(f"{namespace}.{channel}".encode(), usedforsecurity=False).hexdigest()
        self._listen = f'LISTEN "holdfast_{digest}"'
        self._connect, self._timeout = connect, timeout
        self.polls = connect is None
        self._look_every = look_every
        self._eager: set[str] = set()
        self._bell, self._ring = os.pipe()
        os.set_blocking(self._ring, False)
        self._ringing = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="holdfast-listen", daemon=True)
        local_hints.add(identity, channel, self)
        try:
            start_thread(self._thread)
        except BaseException:  # no thread could be started, or an interrupt: close both ends of the pipe
            self._leave()
            if self._thread.ident is None:
                os.close(self._bell)
                os.close(self._ring)
                self._ring = -1
            raise

    def expect(self, id: str, *, eager: bool) -> None:
        """Poll for the head of a queue more often, where LISTEN does not work."""
        if eager:
            self._eager.add(id)
            if self._look_every is not None:
                self._rouse()
        else:
            self._eager.discard(id)

    def forget(self, id: str) -> None:
        """This attempt waits no longer."""
        self._eager.discard(id)

    def close(self) -> None:
        """End the subscription, its thread and its connection."""
        if self._closed.is_set():
            return
        self._leave()
        if self._thread is not threading.current_thread():
            self._thread.join(JOIN_SECONDS)

    def _rouse(self) -> None:
        """Wake the thread, if it still runs."""
        with self._ringing, suppress(OSError):
            os.write(self._ring, b".")

    def _leave(self) -> None:
        self._closed.set()
        local_hints.remove(self._identity, self._channel, self)
        self._rouse()

    def _run(self) -> None:
        pause, longest = RECONNECT_SECONDS
        warned = False  # only the first interruption is logged as a warning
        try:
            while not self._closed.is_set():
                try:
                    if self._connect is None or not self._listened():
                        self._poll()
                        return
                    pause = RECONNECT_SECONDS[0]
                except Exception as error:  # after any error, connect and listen again
                    log.log(
                        logging.INFO if warned else logging.WARNING,
                        "LISTEN was interrupted (%s): trying again. Until then waiters poll, so a lock may be granted "
                        "later",
                        " ".join(str(error).split()),
                    )
                    warned = True
                    self._closed.wait(pause * random.uniform(0.5, 1.0))
                    pause = min(2 * pause, longest)
        finally:
            with self._ringing:
                os.close(self._bell)
                os.close(self._ring)
                self._ring = -1

    def _listened(self) -> bool:
        """Listen until closed. False if the connection goes through a pooler; raises when the connection is lost."""
        assert self._connect is not None  # noqa: S101  (the caller has checked)
        session = Session(self._connect, timeout=self._timeout)
        try:
            if session.pooled:
                log.warning(
                    "LISTEN/NOTIFY does not work through a connection pooler: the head of a queue polls every %g s "
                    "instead. Add the address of the server itself to the URL: ?listen=postgresql%%3A//host:5432/db",
                    POLL_SECONDS,
                )
                return False
            session.ask(self._listen.encode())
            self.hint(None)  # earlier notifications were missed
            self._receive(session)
        finally:
            session.close()
        return True

    def _receive(self, session: Session) -> None:
        pg = session.connection.pgconn
        while not self._closed.is_set():
            pause = self._look_every if self._look_every is not None and self._eager else PROOF_SECONDS
            ready = readable((pg.socket, self._bell), pause)
            if self._closed.is_set():
                return
            if self._bell in ready:
                os.read(self._bell, 100)
            if not ready and self._eager and self._look_every is not None:
                self.hint(tuple(self._eager))
            elif not ready:
                session.ask(b"SELECT 1")
            pg.consume_input()
            while (notification := pg.notifies()) is not None:
                self.hint(_named_in(notification.extra))

    def _poll(self) -> None:
        self.polls = True
        while not self._closed.wait(self._look_every or POLL_SECONDS):
            if self._eager:
                self.hint(tuple(self._eager))
