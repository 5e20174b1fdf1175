"""Three means of waking a process when another one has committed to a SQLite file: why ours is a datagram.

A datagram goes to the right process alone. inotify on the log wakes every waiter at every commit, and each has
to look whether it is the one. Polling asks `data_version` again and again. Here all three are made of bare parts.

As a script it is one of the waiters: `datagram`, `inotify` or `polling`; it prints each number that it finds
in its row, and when it knew.
"""

from __future__ import annotations

import ctypes
import os
import random
import select
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, chdir, contextmanager, suppress
from threading import Timer

from common import ROUNDS, Figure, alternate, bare, commit, cpu_seconds, folder, median, ratio, spawn

COMMITS = 200
OTHERS = 20
PAUSE_SECONDS = (0.001, 0.005)  # by chance, so that nobody's polling keeps in step with the commits
POLL_SECONDS = 0.01
CHECK_SECONDS = 2.0
EARLY_SECONDS = 0.1
PATIENCE_SECONDS = 20.0
IN_MODIFY = 2
PR_SET_PDEATHSIG = 1


def inotify_of(path: str) -> int:
    """A descriptor that can be read after each write to the file; OSError where there is no such thing."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "inotify_init1"):
        raise OSError("no inotify on this platform")
    events = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if events < 0 or libc.inotify_add_watch(events, os.fsencode(path), IN_MODIFY) < 0:
        raise OSError(ctypes.get_errno(), "inotify refused")
    return events


class Row:
    """The row that one waiter waits for."""

    def __init__(self, where: str, key: str) -> None:
        os.chdir(where)  # the name of a socket must be short
        self._db = bare("bare.db")
        self._key, self._seen, self._version = key, 0, 0
        self.look()

    def read(self) -> None:
        (number,) = self._db.execute("SELECT n FROM t WHERE k = ?", (self._key,)).fetchone()
        if number != self._seen:
            print(number, time.monotonic_ns(), flush=True)
            self._seen = number

    def look(self) -> bool:
        """Read the row, if anybody has committed anything since the last look."""
        (version,) = self._db.execute("PRAGMA data_version").fetchone()
        if version == self._version:
            return False
        self._version = version
        self.read()
        return True


def datagram(where: str, key: str) -> None:
    row = Row(where, key)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bell:
        bell.bind(key)
        bell.settimeout(CHECK_SECONDS)
        print("ready", flush=True)
        while True:
            with suppress(TimeoutError):
                bell.recv(1)
            row.read()


def inotify(where: str, key: str) -> None:
    """The log is written before it is synced, and only then can the commit be seen: who comes early looks again."""
    row = Row(where, key)
    events = inotify_of("bare.db-wal")
    poll = select.poll()
    poll.register(events, select.POLLIN)
    print("ready", flush=True)
    while True:
        until = time.monotonic() + EARLY_SECONDS if poll.poll(CHECK_SECONDS * 1_000) else 0
        while True:
            with suppress(BlockingIOError):
                os.read(events, 65_536)
            if row.look() or time.monotonic() >= until:
                break
            poll.poll(1)


def polling(where: str, key: str) -> None:
    row = Row(where, key)
    print("ready", flush=True)
    while True:
        row.look()
        time.sleep(POLL_SECONDS)


MEANS = (datagram, inotify, polling)


class Crowd:
    """The right waiter and the others, all waiting by one means on a file of their own; stopped between rounds."""

    def __init__(
        self, db: sqlite3.Connection, waiters: list[subprocess.Popen[str]], knock: Callable[[], object]
    ) -> None:
        self._db, self._waiters, self._knock = db, waiters, knock
        self._number = 0
        self.p50s: list[float] = []

    def signal(self, number: signal.Signals) -> None:
        for waiter in self._waiters:
            waiter.send_signal(number)

    def round(self) -> float:
        """The CPU time (ms) that all of them spent on the commits of a round."""
        self.signal(signal.SIGCONT)
        time.sleep(0.1)  # what was missed meanwhile is looked at now
        before = self._cpu_seconds()
        committed: dict[int, int] = {}
        for _ in range(COMMITS):
            self._number += 1
            commit(self._db, "0", self._number)
            committed[self._number] = time.monotonic_ns()
            self._knock()
            time.sleep(random.uniform(*PAUSE_SECONDS))
        self.p50s.append(median(self._latencies(committed)))
        time.sleep(0.02)  # the others have seen the last commit as well
        spent = self._cpu_seconds() - before
        self.signal(signal.SIGSTOP)
        return spent * 1_000

    def _cpu_seconds(self) -> float:
        return sum(cpu_seconds(waiter.pid) for waiter in self._waiters)

    def _latencies(self, committed: dict[int, int]) -> list[float]:
        """From each commit's end until the right one had read its number, or a later one, in ms."""
        right = self._waiters[0]
        latencies: list[float] = []
        watchdog = Timer(PATIENCE_SECONDS, right.kill)
        watchdog.start()
        try:
            while committed:
                line = right.stdout.readline()
                if not line:
                    raise RuntimeError(f"{right.args} never heard of the last commit")
                number, known = map(int, line.split())
                heard = [one for one in committed if one <= number]
                latencies.extend((known - committed.pop(one)) / 1e6 for one in heard)
        finally:
            watchdog.cancel()
        return latencies


@contextmanager
def crowd(means: str) -> Iterator[Crowd]:
    with folder() as where, socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bell:
        db = bare(where / "bare.db")
        for number in range(OTHERS + 1):
            commit(db, str(number), 0)
        waiters = [spawn("wakeups.py", means, where, number) for number in range(OTHERS + 1)]
        try:
            for waiter in waiters:
                waiter.stdout.readline()
            if means == "datagram":
                with chdir(where):
                    bell.connect("0")
            here = Crowd(db, waiters, (lambda: bell.send(b"")) if means == "datagram" else lambda: None)
            here.signal(signal.SIGSTOP)
            yield here
        finally:
            for waiter in waiters:
                waiter.kill()
            for waiter in waiters:
                waiter.communicate()
            db.close()


def figures() -> list[Figure]:
    try:
        os.close(inotify_of(__file__))
    except OSError as error:
        print(f"left out: datagram against inotify ({error})", flush=True)
        return []
    names = [means.__name__ for means in MEANS]
    with ExitStack() as stack:
        crowds = [stack.enter_context(crowd(name)) for name in names]
        spent = alternate(*(here.round for here in crowds))
    each = "; ".join(
        f"{name}: known after {median(here.p50s):.2f} ms (p50), {median(cpu):.0f} ms of CPU"
        for name, here, cpu in zip(names, crowds, spent, strict=True)
    )
    return [
        Figure(
            f"sqlite, CPU of {OTHERS} waiters: datagram over inotify",
            ratio(spent[0], spent[1]),
            1,
            "x",
            f"{ROUNDS} rounds of {COMMITS} commits for 1 waiter beside {OTHERS} others. {each}",
        )
    ]


if __name__ == "__main__":
    # Nobody else would end a stopped waiter if the bench itself were killed.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    globals()[sys.argv[1]](*sys.argv[2:])
