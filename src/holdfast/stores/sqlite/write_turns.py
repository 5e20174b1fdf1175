"""Turns to write to a SQLite file.

SQLite's own busy handler sleeps ever longer and starves late writers; so a writer first takes a turn. Within a process
all connections to one file share one `WriteTurn`: heartbeats first, the others in order of arrival. Between processes a
turn is a lock on the small file `<db>-turn`, tried again about every millisecond. Turns are only about fairness: safety
depends on SQLite's own locks, and a process that is killed in its turn loses it at once, because the kernel releases
its file lock.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from weakref import WeakValueDictionary, finalize

from ...errors import StoreUnavailable, StoreUnusable
from ...platform import FileLock, after_fork_in_child, elapsed
from .side_files import open_turn

PATIENCE_SECONDS = 10.0
RETRY_SECONDS = (0.000_5, 0.001_5)
URGENT_RETRY_SECONDS = (0.000_1, 0.000_3)

_registry_lock = threading.Lock()
_turns: WeakValueDictionary[str, WriteTurn] = WeakValueDictionary()


def turn_for(database: Path) -> WriteTurn:
    """The `WriteTurn` that all connections of this process to this file share, as long as one of them uses it."""
    with _registry_lock:
        turn = _turns.get(str(database))
        if turn is None:
            turn = _turns[str(database)] = WriteTurn(database)
        return turn


def pause(*, urgent: bool) -> None:
    """Wait a short random time before trying again, so that two waiting writers do not retry in lockstep."""
    time.sleep(random.uniform(*(URGENT_RETRY_SECONDS if urgent else RETRY_SECONDS)))


class _Place:
    """A position in the queue of this process. The lock `handed_over` is released when the turn is handed over."""

    __slots__ = ("handed_over", "taker")

    def __init__(self, taker: object) -> None:
        self.taker = taker
        self.handed_over = threading.Lock()
        self.handed_over.acquire()


class WriteTurn:
    """The turn to write. `give` is safe to call at any time: it ends only the caller's own turn."""

    def __init__(self, database: Path) -> None:
        self._database = database
        self.path = Path(f"{database}-turn")
        self._mutex = threading.Lock()
        self._taker: object | None = None
        self._urgent: deque[_Place] = deque()
        self._others: deque[_Place] = deque()
        self._file = FileLock(open_turn(database))
        self._end = finalize(self, self._file.close)
        self._end.atexit = False  # clients release their locks at exit, and need a turn for that

    def take(self, taker: object, *, urgent: bool, deadline: float) -> None:
        """Wait for the turn until the deadline, then raise. The caller must call `give` in either case."""
        if not self._end.alive:
            raise StoreUnusable(
                f"this connection to {self._database} belongs to the parent process of a fork. Open a new client in "
                "this process."
            )
        with self._mutex:
            place = None
            if self._taker is None:
                self._taker = taker
            else:
                place = _Place(taker)
                (self._urgent if urgent else self._others).append(place)
        if place is not None and not place.handed_over.acquire(timeout=max(0.0, deadline - elapsed())):
            raise StoreUnavailable(
                "timed out waiting for the turn to write: other threads of this process were writing, or waiting for "
                f"{self.path}, all the time. Nothing was done; the call can be repeated."
            )
        while not self._file.try_lock():
            if elapsed() >= deadline:
                raise StoreUnavailable(
                    f"timed out waiting for the turn to write: {self._holder()} has locked {self.path} for too long. "
                    "It may be stopped, in a debugger, or blocked by a stalled disk. Nothing was done; the call can be "
                    "repeated. Let that process continue, or end it: its lock is released when it ends."
                )
            pause(urgent=urgent)

    def give(self, taker: object) -> None:
        """Hand the turn to the next writer, or leave the queue for it."""
        with self._mutex:
            if self._taker is not taker:
                self._leave_queue(taker)
                return
            try:  # noqa: SIM105  (called for every write, and suppress() costs more than the rest)
                self._file.unlock()  # harmless where it was not locked yet
            except OSError:
                pass
            queue = self._urgent or self._others
            if queue:
                place = queue.popleft()
                place.handed_over.release()  # first: an interrupt in between must not leave a writer waiting
                self._taker = place.taker
            else:
                self._taker = None

    def _leave_queue(self, taker: object) -> None:
        for queue in (self._urgent, self._others):
            for place in [place for place in queue if place.taker is taker]:
                queue.remove(place)

    def stamp(self) -> int:
        """Let the system stamp the turn file, and return the time in microseconds; `OSError` if that fails."""
        return self._file.stamp()

    def leave_to_parent(self) -> None:
        """In a forked child: close the file without unlocking it, because the lock belongs to the parent."""
        self._mutex, self._taker = threading.Lock(), None
        self._end()

    def _holder(self) -> str:
        """The process that holds the file lock, where the system reports it."""
        with suppress(OSError, ValueError, IndexError):
            status = self.path.stat()
            wanted = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
            for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
                fields = line.split()
                if fields[1] == "FLOCK" and fields[5] == wanted:
                    return f"process {fields[4]}"
        return "another process"


def _reset_after_fork() -> None:
    global _registry_lock, _turns  # the lock may be held by a thread that is not in this process
    inherited = list(_turns.values())
    _registry_lock, _turns = threading.Lock(), WeakValueDictionary()
    for turn in inherited:
        turn.leave_to_parent()


after_fork_in_child(_reset_after_fork)
