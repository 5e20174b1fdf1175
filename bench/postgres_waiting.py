"""PostgreSQL: the hand-over of a lock to a process that waits, and eight processes that want one lock all the time.

The floor of a hand-over is a token that two processes pass to each other: a commit with a notification, and a commit.
As a script this is one of the processes: `turns` takes the lock as often as it can and prints how often, `floor` passes
the token.
"""

from __future__ import annotations

import os
import select
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psycopg
from common import RECORD, Figure, alternate, folder, median, ratio, spawn
from handover import HANDOVERS, p50, p99, played

from holdfast import Client
from holdfast.testing import servers

BLOCKS = 5
PROCESSES = 8
SECONDS = 4.0


def turns(url: str) -> None:
    """Take and release one lock until the time is over."""
    with Client(url) as client:
        lock = client.lock("wanted", ttl=30)
        print("ready", flush=True)
        sys.stdin.readline()
        end, count = time.monotonic() + SECONDS, 0
        while time.monotonic() < end:
            with lock:
                count += 1
    print(count, flush=True)


def floor(url: str, shared: str, me: str, other: str) -> None:
    """As `handover.pingpong`, with the least that a release and the acquire that confirms it can be."""
    note = Path(shared)
    db = psycopg.connect(url, autocommit=True, prepare_threshold=0)
    db.execute(f"LISTEN {me}")
    commit = "UPDATE ball SET n = %s, v = %s WHERE k = 'ball'"
    print("ready", flush=True)
    sys.stdin.readline()
    for turn in range(HANDOVERS):
        if turn or me != "first":
            _heard(db)
        db.execute(commit, (turn, RECORD))
        got = time.monotonic_ns()
        released, by = note.read_text().split()
        if int(by) not in (0, os.getpid()):
            print((got - int(released)) / 1e6, flush=True)
        time.sleep(0.003)  # the other one waits by now
        note.write_text(f"{time.monotonic_ns()} {os.getpid()}")
        db.execute(f"WITH done AS ({commit} RETURNING 1) SELECT pg_notify('{other}', '') FROM done", (turn, RECORD))


def _heard(db: psycopg.Connection) -> None:
    """Wait for a notification."""
    pg = db.pgconn
    pg.consume_input()
    while pg.notifies() is None:
        select.select([pg.socket], [], [], 30)
        pg.consume_input()


def handover_ms(url: str) -> Callable[[], list[float]]:
    def measure() -> list[float]:
        with folder() as where:
            note = where / "note"
            note.write_text("0 0")
            return played([spawn("handover.py", "pingpong", url, note) for _ in range(2)])

    return measure


def floor_ms(url: str) -> Callable[[], list[float]]:
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("CREATE TABLE ball (k text PRIMARY KEY, n bigint, v text)")
        db.execute("INSERT INTO ball VALUES ('ball', 0, %s)", (RECORD,))

    def measure() -> list[float]:
        names = ("first", "second")
        with folder() as where:
            note = where / "note"
            note.write_text("0 0")
            return played(
                [spawn("postgres_waiting.py", "floor", url, note, me, other) for me, other in (names, names[::-1])]
            )

    return measure


def turns_a_second(url: str) -> float:
    return sum(played([spawn("postgres_waiting.py", "turns", url) for _ in range(PROCESSES)])) / SECONDS


def figures() -> list[Figure]:
    everything: list[float] = []
    by_hand: list[float] = []
    with servers.postgres() as server:
        with Client(server.url) as client, client.lock("wanted"):
            pass
        mine, least = alternate(
            p50(handover_ms(server.url), everything), p50(floor_ms(server.url), by_hand), rounds=BLOCKS
        )
        rates = [turns_a_second(server.url) for _ in range(BLOCKS)]
    return [
        Figure(
            f"{server.kind} {server.version}: hand-over to a waiting process, p50",
            median(mine),
            2,
            "ms",
            f"{len(everything)} hand-overs, p99 {p99(everything):.2f} ms; floor, commit + NOTIFY + commit by hand: "
            f"{median(least):.2f} ms (we take {ratio(mine, least):.1f} x)",
        ),
        Figure(
            f"{server.kind} {server.version}: {PROCESSES} processes on one lock",
            median(rates),
            400,
            "acquires and releases a second",
            f"rounds of {min(rates):.0f} to {max(rates):.0f}",
            at_least=True,
        ),
    ]


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
