"""The session of `advisory=true`: one session of the process, to which its grants are tied.

The session holds an advisory lock with a random 64-bit number, and each grant carries that number. While the session
exists no other session can share the lock; when it ends, by a crash or by the loss of its connection, every client that
reads such a grant sees that the grant has ended. Two sessions with the same number would only delay each other. A
process that loses the session has lost the leases, and is notified at once.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
from collections.abc import Callable
from contextlib import suppress
from weakref import WeakSet

from ...errors import StoreUnusable
from ...platform import after_fork_in_child, start_thread
from .session import Connect, Session, readable

PROOF_SECONDS = 2.0
"""How often an idle session is checked."""
JOIN_SECONDS = 5.0

Severed = Callable[[str], None]

log = logging.getLogger("holdfast.stores")


class AdvisorySession:
    """The session of one store, opened when it is first needed and again after it was lost."""

    def __init__(self, connect: Connect, *, timeout: float) -> None:
        self._connect, self._timeout = connect, timeout
        self._lock = threading.Lock()
        self._session: _WatchedSession | None = None
        self._callbacks: list[Severed] = []

    def on_severed(self, callback: Severed) -> None:
        """Register a callback that is called with the reason whenever the session is lost."""
        self._callbacks.append(callback)

    def number(self) -> int:
        """The number of the session, which is opened if there is none."""
        with self._lock:
            if self._session is None or self._session.severed:
                self._session = _WatchedSession(Session(self._connect, timeout=self._timeout), self._lost)
            return self._session.number

    def holds(self, number: int) -> bool:
        """Whether the session with this number still exists."""
        session = self._session
        return session is not None and session.number == number and not session.severed

    def close(self) -> None:
        """End the session, and with it all grants that are still tied to it."""
        with self._lock:
            session, self._session = self._session, None
        if session is not None:
            session.close()

    def _lost(self, reason: str) -> None:
        for callback in list(self._callbacks):
            try:
                callback(reason)
            except Exception:
                log.exception("a callback for a lost session failed")


_sessions: WeakSet[_WatchedSession] = WeakSet()


def _let_go_after_fork() -> None:
    """Close the sockets: a child that kept one would keep the session open after the parent has ended."""
    for session in list(_sessions):
        with suppress(OSError):
            os.close(session.socket)
    _sessions.clear()


after_fork_in_child(_let_go_after_fork)


class _WatchedSession:
    """One session with its number, and the thread that notices its end."""

    def __init__(self, session: Session, lost: Severed) -> None:
        self.severed = False
        self._session, self._lost = session, lost
        try:
            if session.pooled:
                raise StoreUnusable(  # noqa: TRY301  (one place closes)
                    "advisory=true needs a direct session, and this connection goes through a pooler. Set ?listen= to "
                    "the address of the server itself (?listen=postgresql%3A//host:5432/db), or remove advisory=true."
                )
            self.number = _number(session)
        except BaseException:
            session.close()
            raise
        self.socket = session.connection.pgconn.socket
        self._closed = False
        _sessions.add(self)
        self._bell, self._ring = os.pipe()
        self._thread = threading.Thread(target=self._watch, name="holdfast-anchor", daemon=True)
        try:
            start_thread(self._thread)
        except BaseException:  # no thread could be started, so the end of the session would not be noticed
            os.close(self._ring)
            os.close(self._bell)
            session.close()
            raise

    def close(self) -> None:
        """End the session and its thread."""
        self._closed = True
        with suppress(OSError):
            os.write(self._ring, b".")
        if self._thread is not threading.current_thread():
            self._thread.join(JOIN_SECONDS)

    def _watch(self) -> None:
        reason = "the thread that checked the session has ended"
        try:
            self._hold_on()
        except Exception as error:  # any error ends the session and all grants that are tied to it
            reason = " ".join(str(error).split())
        finally:
            self.severed = True
            _sessions.discard(self)
            self._session.close()
            os.close(self._bell)
            os.close(self._ring)
            if not self._closed:
                self._lost(f"the session that it was tied to was lost: {reason}")

    def _hold_on(self) -> None:
        pg = self._session.connection.pgconn
        while not self._closed:
            ready = readable((pg.socket, self._bell), PROOF_SECONDS)
            if self._closed:
                return
            if ready:
                pg.consume_input()
            else:
                self._session.ask(b"SELECT 1")


def _number(session: Session) -> int:
    """A random number that no other session has, locked so that no other session can share it."""
    while True:
        number = secrets.randbits(63)
        if session.ask(b"SELECT pg_try_advisory_lock($1)", (str(number).encode(),)) == b"t":
            return number
