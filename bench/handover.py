"""Hand-over between processes, and what waiting costs.

As a script it is one of the processes: `pingpong` takes the lock again and again and prints how long after
the other's release it got it; `wait` only waits.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from pathlib import Path

from common import ROUNDS, Figure, finish, folder, median, spawn

from holdfast import Client

HANDOVERS = 100
WAITERS = 50
WATCHED_SECONDS = 5.0


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


def wait(url: str) -> None:
    with Client(url) as client:
        print("ready", flush=True)
        try:
            client.lock("held", ttl=30).acquire(wait=60)
        except TimeoutError:
            return


def handover_ms() -> list[float]:
    with folder() as where:
        note = where / "note"
        note.write_text("0 0")
        players = [spawn("handover.py", "pingpong", f"sqlite:///{where}/hf.db", note) for _ in range(2)]
        for player in players:
            player.stdout.readline()
        for player in players:
            player.stdin.write("\n")
            player.stdin.flush()
        return [float(line) for player in players for line in finish(player).split()]


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def waiting_cost() -> float:
    """The part of one core that fifty waiting processes use together, in percent."""
    with folder() as where:
        url = f"sqlite:///{where}/hf.db"
        with Client(url) as client:
            lease = client.lock("held", ttl=30).acquire()
            waiting = [spawn("handover.py", "wait", url) for _ in range(WAITERS)]
            try:
                for process in waiting:
                    process.stdout.readline()
                while len(client.locks.inspect("held").waiters) < WAITERS:
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
    rounds = [handover_ms() for _ in range(ROUNDS)]
    p50s = [statistics.median(values) for values in rounds]
    everything = sorted(value for values in rounds for value in values)
    cost = [waiting_cost() for _ in range(ROUNDS)]
    return [
        Figure(
            "sqlite, hand-over between two processes, p50",
            median(p50s),
            15,
            "ms",
            f"{len(everything)} hand-overs in {ROUNDS} rounds, p99 {everything[int(len(everything) * 0.99)]:.2f} ms",
        ),
        Figure(
            f"sqlite, {WAITERS} waiting processes together",
            median(cost),
            10,
            "% of one core",
            f"{ROUNDS} rounds of {WATCHED_SECONDS:g} s, the worst {max(cost):.2f} %",
        ),
    ]


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
