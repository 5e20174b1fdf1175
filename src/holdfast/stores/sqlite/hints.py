"""Hints between processes on one SQLite file: which attempts may have been granted.

Each watch has a datagram socket `<db>-wake/<channel>`; the process that makes a grant sends the ids there, after the
commit and after the end of its turn. A datagram wakes only the process that it is for; watching the file (inotify,
data_version) would wake all processes at every commit. Where there are no such sockets a thread polls `PRAGMA
data_version`; it polls often only while the head of a queue waits in this process. Hints may be lost: safety does not
depend on them.
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import select
import socket
import sqlite3
import stat
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from ...errors import HoldfastError
from ...platform import after_fork_in_child, start_thread
from ..contract import Hint
from ..local_hints import HintReceiver, LocalHints
from .file import Handle
from .side_files import PRIVATE, check_may_listen, open_wake_folder, share_socket

MAX_DATAGRAM = 32_768
CHECK_SECONDS = 5.0
FRESH_SECONDS = 60.0
POLL_SECONDS = 0.5
EAGER_POLL_SECONDS = 0.01
JOIN_SECONDS = 5.0
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_UNFINISHED = ".new-"

log = logging.getLogger("holdfast.stores")

_local_hints: LocalHints[_Watch] = LocalHints()


class HintSender:
    """Sends hints for one file, and opens watches on it."""

    def __init__(self, database: Path, *, poll: bool) -> None:
        self._database = database
        self._folder = Path(f"{database}-wake")
        self._sends = hasattr(socket, "AF_UNIX")  # also where this process itself polls
        self._poll = poll or not self._sends
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None

    def watch(self, channel: str, on_hint: Hint) -> _Watch:
        """Subscribe to a channel."""
        if not self._poll:
            try:
                return SocketWatch(self._database, channel, on_hint)
            except OSError as error:
                log.info("no socket for hints could be opened next to %s (%s): polling instead", self._database, error)
        return PollingWatch(self._database, channel, on_hint)

    def send(self, woken: Mapping[str, list[str]]) -> list[str]:
        """Send each channel its ids. Returns the ids whose process has ended; any other error is ignored."""
        unheard = []
        for channel, ids in woken.items():
            if not _local_hints.send(self._folder, channel, ids) and self._sends and not self._send_to(channel, ids):
                unheard += ids
        return unheard

    def _send_to(self, channel: str, ids: list[str]) -> bool:
        """Send a datagram. False only if the process that listened there has ended without closing its watch.

        A full buffer belongs to a process that is slow or paused, and a missing file to one that polls or has closed
        its watch. The file of a crashed process stays until the next watch is opened: it shows every sender that no
        process listens.
        """
        name = _name(channel)
        message = "\n".join(ids).encode()
        if len(message) > MAX_DATAGRAM:
            message = b""  # an empty datagram means: any attempt, all must check
        with self._lock, suppress(OSError), _opened(self._database) as folder:
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
                self._socket.setblocking(False)  # noqa: FBT003
            try:
                self._socket.sendto(message, _address(self._folder, folder, name))
            except ConnectionRefusedError:
                return False
        return True

    def close(self) -> None:
        """Close the sender's socket."""
        with self._lock:
            if self._socket is not None:
                self._socket.close()
                self._socket = None


class _Watch(HintReceiver):
    """A subscription; other threads of this process pass their hints to it directly."""

    def __init__(self, database: Path, channel: str, on_hint: Hint) -> None:
        super().__init__(on_hint)
        self._database, self._channel = database, channel
        self._folder = Path(f"{database}-wake")
        self._thread = threading.Thread(target=self._run, name="holdfast-wake", daemon=True)

    def _start(self) -> None:
        _local_hints.add(self._folder, self._channel, self)
        start_thread(self._thread)

    def _leave(self) -> None:
        self._closed.set()
        _local_hints.remove(self._folder, self._channel, self)

    def _join(self) -> None:
        if self._thread is not threading.current_thread():
            self._thread.join(JOIN_SECONDS)

    def expect(self, id: str, *, eager: bool) -> None:
        """Nothing to prepare: datagrams arrive without it."""

    def forget(self, id: str) -> None:
        """Nothing to undo."""

    def close(self) -> None:
        """End the subscription and its thread."""
        raise NotImplementedError

    def leave_to_parent(self) -> None:
        """In a forked child: close what belongs to the parent, without changing its files."""

    def _run(self) -> None:
        raise NotImplementedError


class SocketWatch(_Watch):
    """Listens on a datagram socket next to the database."""

    def __init__(self, database: Path, channel: str, on_hint: Hint) -> None:
        super().__init__(database, channel, on_hint)
        self._name = _name(channel)
        check_may_listen(database)
        _sweep(database)
        self._socket = self._bind()
        self._ending, self._end = os.pipe()  # closing one end wakes the thread that polls the other
        self._start()

    def _bind(self) -> socket.socket:
        """Bind under a temporary name, then rename: a socket with its final name can always be connected to.

        Between the creation of the file and the moment when it can be connected to, it looks like the socket of a
        process that has ended.
        """
        unfinished = f"{_UNFINISHED}{os.getpid()}-{threading.get_ident():x}"
        bound = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            bound.setblocking(False)  # noqa: FBT003
            with suppress(OSError):  # Linux takes the file's mode from here, less the umask
                os.fchmod(bound.fileno(), PRIVATE)
            with _opened(self._database, make=True) as folder:
                with suppress(FileNotFoundError):
                    os.unlink(unfinished, dir_fd=folder)
                bound.bind(_address(self._folder, folder, unfinished))
                share_socket(folder, unfinished, self._database)
                os.rename(unfinished, self._name, src_dir_fd=folder, dst_dir_fd=folder)
        except BaseException:
            bound.close()
            raise
        return bound

    def _run(self) -> None:
        while not self._closed.is_set():
            poll = select.poll()
            poll.register(self._socket, select.POLLIN)
            poll.register(self._ending, select.POLLIN)
            if not poll.poll(CHECK_SECONDS * 1000):
                self._rebind_if_missing()
            with suppress(OSError):
                while not self._closed.is_set():
                    message = self._socket.recv(MAX_DATAGRAM)
                    self.hint(message.decode(errors="replace").split("\n") if message else None)

    def _rebind_if_missing(self) -> None:
        """Bind again if the file was deleted: without its file the socket would never receive anything."""
        if not self._shows_life() and self._database.exists():
            with suppress(OSError):
                fresh = self._bind()
                old, self._socket = self._socket, fresh
                old.close()

    def _shows_life(self) -> bool:
        """Update the time of the socket's file, see _sweep. Returns whether it exists and is a socket, not a link."""
        with suppress(OSError), _opened(self._database) as folder:
            there = stat.S_ISSOCK(os.stat(self._name, dir_fd=folder, follow_symlinks=False).st_mode)
            with suppress(OSError):
                os.utime(self._name, dir_fd=folder, follow_symlinks=False)
            return there
        return False

    def close(self) -> None:
        """End the thread, close the socket and remove its file."""
        if self._closed.is_set():
            return
        self._leave()
        os.close(self._end)
        self._join()
        os.close(self._ending)
        self._socket.close()
        with suppress(OSError), _opened(self._database) as folder:
            os.unlink(self._name, dir_fd=folder)

    def leave_to_parent(self) -> None:
        """Close the copy of the socket; otherwise it would still accept datagrams after the parent has ended."""
        if not self._closed.is_set():
            self._closed.set()
            self._socket.close()
            os.close(self._end)
            os.close(self._ending)


class PollingWatch(_Watch):
    """Polls whether the file has changed; often only while the head of a queue waits in this process."""

    polls = True

    def __init__(self, database: Path, channel: str, on_hint: Hint) -> None:
        super().__init__(database, channel, on_hint)
        self._handle = Handle(database)
        self._eager: set[str] = set()
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._start()

    def expect(self, id: str, *, eager: bool) -> None:
        """Poll often from now on, if this attempt is the head of a queue."""
        with self._lock:
            (self._eager.add if eager else self._eager.discard)(id)
        if eager:
            self._changed.set()

    def forget(self, id: str) -> None:
        """Poll rarely again, if no other attempt is the head of a queue."""
        with self._lock:
            self._eager.discard(id)

    def _run(self) -> None:
        seen: object = None
        while not self._closed.is_set():
            with suppress(sqlite3.Error, HoldfastError):  # the next command raises the error
                with self._handle.active:
                    db = self._handle.ready()
                    # A new connection starts counting again: that counts as a change too.
                    version = (id(db), db.execute("PRAGMA data_version").fetchone()[0])
                if seen not in (None, version):
                    self.hint(None)
                seen = version
            if self._eager:
                self._closed.wait(EAGER_POLL_SECONDS)
            else:
                self._changed.wait(POLL_SECONDS)
                self._changed.clear()

    def close(self) -> None:
        """End the thread and close its connection."""
        self._leave()
        self._changed.set()
        self._join()
        self._handle.close()

    def leave_to_parent(self) -> None:
        """The thread does not exist in this process; the hook of `Handle` takes care of the connection."""
        self._closed.set()


def _name(channel: str) -> str:
    """The file name of a channel. A name that could leave the folder, or is too long, is replaced by its hash."""
    if _PLAIN_NAME.fullmatch(channel):
        return channel
    return "h-" + hashlib.sha256(channel.encode(errors="replace")).hexdigest()[:32]


@contextmanager
def _opened(database: Path, *, make: bool = False) -> Iterator[int]:
    """A checked descriptor of the folder of the sockets: its path may be replaced at any moment."""
    folder = open_wake_folder(database, make=make)
    try:
        yield folder
    finally:
        os.close(folder)


def _address(path: Path, folder: int, name: str) -> str:
    """The address of a socket in the open folder: through its descriptor or, where that is not possible, by path."""
    if sys.platform.startswith("linux"):
        return f"/proc/self/fd/{folder}/{name}"
    return str(path / name)  # if it is too long, the call fails and the caller polls


def _sweep(database: Path) -> None:
    """Remove the sockets of processes that crashed.

    A socket file of the last minute is kept: as long as the waiters of a crashed process keep their positions, senders
    must find the file, because a refused connection shows them that the process has ended.
    """
    path = Path(f"{database}-wake")
    with suppress(OSError), _opened(database) as folder, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
        for name in os.listdir(folder):  # noqa: PTH208  (a descriptor)
            with suppress(OSError):
                status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                if time.time() - status.st_mtime < FRESH_SECONDS:
                    continue
                try:
                    probe.connect(_address(path, folder, name))
                except ConnectionRefusedError:
                    os.unlink(name, dir_fd=folder)


def _reset_after_fork() -> None:
    for watch in _local_hints.forget():
        watch.leave_to_parent()


after_fork_in_child(_reset_after_fork)
