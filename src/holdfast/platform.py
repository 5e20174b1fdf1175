"""The differences between operating systems, in one place, each with a fallback.

A clock that also counts the time during which the machine was suspended, the file lock behind SQLite's turns, fork
hooks, and the kinds of file system. All other modules use this one for them.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_BUSY = {errno.EACCES, errno.EAGAIN, errno.EWOULDBLOCK, getattr(errno, "EDEADLOCK", errno.EDEADLK)}

HOST = socket.gethostname()

_NETWORK_FILE_SYSTEMS = {
    "nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "fuse.glusterfs", "fuse.sshfs",
    "lustre", "beegfs", "ocfs2", "gfs2", "fuse.s3fs", "fuse.gcsfuse", "webdav", "fuse.rclone", "virtiofs",
}  # fmt: skip


def _choose_clock() -> Callable[[], float]:
    """CLOCK_BOOTTIME continues while the machine sleeps, as leases do. Other systems use the monotonic clock."""
    boottime = getattr(time, "CLOCK_BOOTTIME", None)
    if boottime is not None:
        with suppress(OSError):
            time.clock_gettime(boottime)
            return partial(time.clock_gettime, boottime)
    return time.monotonic


elapsed = _choose_clock()
"""Seconds since a fixed moment; never steps, and counts suspended time where the system supports it."""


def host_clock() -> int:
    """The host's wall clock in microseconds."""
    return time.time_ns() // 1_000


def start_thread(thread: threading.Thread) -> None:
    """Start a thread. An interrupt is raised as an interrupt.

    CPython waits in `start` until the thread runs. A Ctrl-C that occurs while its lock is being released there is
    replaced by a `RuntimeError` about that lock, which no caller expects.
    """
    try:
        thread.start()
    except RuntimeError as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise error.__context__ from None
        raise


def after_fork_in_child(hook: Callable[[], None]) -> None:
    """Run the hook in every forked child of this process. Without fork there is nothing to do."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=hook)


def around_fork(*, before: Callable[[], None], in_parent: Callable[[], None], in_child: Callable[[], None]) -> None:
    """Run these before every fork of this process, and on both sides after it."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=before, after_in_parent=in_parent, after_in_child=in_child)


class FileLock:
    """An exclusive lock between processes on one small file. The kernel releases it when the process ends."""

    def __init__(self, file: Path | int) -> None:
        """Lock this file, which is created if needed, or an open file descriptor, which is closed with the lock."""
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0)
        self._fd = file if isinstance(file, int) else os.open(file, flags, 0o666)

    def try_lock(self) -> bool:
        """Take the lock if it is free."""
        try:
            if fcntl is not None:
                fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            else:
                _windows_lock(self._fd, lock=True)
        except OSError as error:
            if error.errno in _BUSY:
                return False
            raise
        return True

    def unlock(self) -> None:
        """Release the lock."""
        if fcntl is not None:
            fcntl.flock(self._fd, fcntl.LOCK_UN)
        else:
            _windows_lock(self._fd, lock=False)

    def stamp(self) -> int:
        """Set the timestamp of the file to the system's current time, and return it in microseconds."""
        os.utime(self._fd)
        return os.fstat(self._fd).st_mtime_ns // 1_000

    def close(self) -> None:
        """Close the file, which also releases the lock."""
        os.close(self._fd)


def _windows_lock(fd: int, *, lock: bool) -> None:
    import msvcrt  # noqa: PLC0415  (only Windows has it)

    mode: int = getattr(msvcrt, "LK_NBLCK" if lock else "LK_UNLCK")
    os.lseek(fd, 0, os.SEEK_SET)
    getattr(msvcrt, "locking")(fd, mode, 1)  # noqa: B009  (unknown to type checkers elsewhere)


def network_file_system(path: Path, mounts: Path = Path("/proc/self/mounts")) -> str | None:
    """The name of the network file system of a path; None if it is on a local one, or this is not known."""
    if not sys.platform.startswith("linux"):
        return None
    best, kind = "", ""
    with suppress(OSError):
        for line in mounts.read_text(errors="replace").splitlines():
            fields = line.split()
            if len(fields) < 3:  # noqa: PLR2004
                continue
            point = fields[1].replace("\\040", " ")
            below = str(path) == point or str(path).startswith(point.rstrip("/") + "/")
            if below and len(point) >= len(best):
                best, kind = point, fields[2]
    return kind if kind in _NETWORK_FILE_SYSTEMS else None
