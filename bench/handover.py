"""Hand-over between processes, and what waiting costs, each beside the same done by hand with bare parts.

As a script it is one of the processes: `pingpong` takes the lock again and again and prints how long after
the other's release it got it; `wait` only waits. `bare_pingpong` and `block` are their floors.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from common import ROUNDS, Figure, alternate, bare, commit, cpu_seconds, finish, folder, median, ratio, spawn

from holdfast import Client

HANDOVERS = 100
WAITERS = 50
WATCHED_SECONDS = 3.0


def pingpong(url: str, shared: str) -> None:
    """Note the moment of each release in a file; the other one reads it when it has the lock."""
    note = Path(shared)
    with Client(url) as client:
        lock = client.lock("ball", ttl=30)
        print("ready", flush=True)
        sys.stdin.readline()
        for _ in range(HANDOVERS):
            with lock:
                got = time.monotonic_ns()
                released, by = note.read_text().split()
                if int(by) not in (0, os.getpid()):
                    print((got - int(released)) / 1e6, flush=True)
                time.sleep(0.003)  # the other one is in the queue by now
                note.write_text(f"{time.monotonic_ns()} {os.getpid()}")


def bare_pingpong(where: str, me: str, other: str) -> None:
    """The least that a release and the acquire that confirms it can cost: a commit, a datagram and a commit."""
    os.chdir(where)  # the name of a socket must be short
    note = Path("note")
    db = bare("bare.db")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bell:
        bell.bind(me)
        bell.settimeout(30)
        print("ready", flush=True)
        sys.stdin.readline()
        for turn in range(HANDOVERS):
            if turn or me != "first":
                bell.recv(1)
            commit(db, "ball", time.monotonic_ns())
            got = time.monotonic_ns()
            released, by = note.read_text().split()
            if int(by) not in (0, os.getpid()):
                print((got - int(released)) / 1e6, flush=True)
            time.sleep(0.003)  # as above
            note.write_text(f"{time.monotonic_ns()} {os.getpid()}")
            commit(db, "ball", time.monotonic_ns())
            with suppress(ConnectionRefusedError):  # after the very last turn nobody is there any more
                bell.sendto(b"", other)


def wait(url: str) -> None:
    with Client(url) as client:
        print("ready", flush=True)
        try:
            client.lock("held", ttl=30).acquire(wait=60)
        except TimeoutError:
            return


def block(url: str) -> None:
    """As `wait`, but nothing is asked for: what such a process costs anyway."""
    with Client(url):
        print("ready", flush=True)
        sys.stdin.readline()


def played(players: list[subprocess.Popen[str]]) -> list[float]:
    """Let them begin when all are there; what they measured, in ms."""
    for player in players:
        player.stdout.readline()
    for player in players:
        player.stdin.write("\n")
        player.stdin.flush()
    return [float(line) for player in players for line in finish(player).split()]


def handover_ms() -> list[float]:
    with folder() as where:
        note = where / "note"
        note.write_text("0 0")
        return played([spawn("handover.py", "pingpong", f"sqlite:///{where}/hf.db", note) for _ in range(2)])


def bare_handover_ms() -> list[float]:
    with folder() as where:
        (where / "note").write_text("0 0")
        bare(where / "bare.db").close()  # two that make the file at the same time would be in each other's way
        names = ("first", "second")
        return played([spawn("handover.py", "bare_pingpong", where, me, other) for me, other in (names, names[::-1])])


def p50(measure: Callable[[], list[float]], everything: list[float]) -> Callable[[], float]:
    """A measure whose rounds give their p50s, and leave all that they measured behind."""

    def run() -> float:
        values = measure()
        everything.extend(values)
        return median(values)

    return run


def p99(values: list[float]) -> float:
    return sorted(values)[int(len(values) * 0.99)]


def waiting_cost(how: str, queued: int) -> float:
    """The part of one core that fifty processes use together, in percent, when so many of them are in the queue."""
    with folder() as where:
        url = f"sqlite:///{where}/hf.db"
        with Client(url) as client:
            lease = client.lock("held", ttl=30).acquire()
            waiting = [spawn("handover.py", how, url) for _ in range(WAITERS)]
            try:
                for process in waiting:
                    process.stdout.readline()
                while len(client.locks.inspect("held").waiters) < queued:
                    time.sleep(0.05)
                time.sleep(1)
                before = sum(cpu_seconds(process.pid) for process in waiting)
                start = time.monotonic()
                time.sleep(WATCHED_SECONDS)
                spent = sum(cpu_seconds(process.pid) for process in waiting) - before
                watched = time.monotonic() - start
            finally:
                for process in waiting:
                    process.kill()
                for process in waiting:
                    process.communicate()
            lease.release()
    return spent / watched * 100


def figures() -> list[Figure]:
    everything: list[float] = []
    by_hand: list[float] = []
    mine, floor = alternate(p50(handover_ms, everything), p50(bare_handover_ms, by_hand))
    cost, idle = alternate(lambda: waiting_cost("wait", WAITERS), lambda: waiting_cost("block", 0))
    # Blocked processes may well use less than the clock can tell.
    beside = f"we use {median(cost) / median(idle):.1f} x" if median(idle) else "too little for a ratio"
    return [
        Figure(
            "sqlite, hand-over between two processes, p50",
            median(mine),
            15,
            "ms",
            f"{len(everything)} hand-overs in {ROUNDS} rounds, p99 {p99(everything):.2f} ms; floor, commit + datagram "
            f"+ commit by hand: {median(floor):.2f} ms (we take {ratio(mine, floor):.1f} x), p99 {p99(by_hand):.2f} ms",
        ),
        Figure(
            f"sqlite, {WAITERS} waiting processes together",
            median(cost),
            10,
            "% of one core",
            f"{ROUNDS} rounds of {WATCHED_SECONDS:g} s, the worst {max(cost):.2f} %; floor, the same processes blocked "
            f"on a pipe: {median(idle):.2f} % ({beside}), the worst {max(idle):.2f} %",
        ),
    ]


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
