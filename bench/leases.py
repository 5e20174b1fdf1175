"""Ten thousand leases of one heartbeat thread, and heartbeats beside saturating writers; both beside bare SQLite.

As a script it is one of the writers: `saturate` takes and releases its own lock as fast as it can,
`bare_saturate` writes bare commits.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from common import RECORD, ROUNDS, Figure, alternate, bare, commit, finish, folder, median, ratio, resident_bytes, spawn

from holdfast import AsyncClient, Client
from holdfast.events import Event

LEASES = 10_000
WRITERS = 8
ROUND_SECONDS = 4.0
BEAT_SECONDS = 0.1


async def hold_many(client: AsyncClient, ttl: float) -> list[object]:
    return list(await asyncio.gather(*(client.lock(f"lease:{n}", ttl=ttl).acquire() for n in range(LEASES))))


def bare_renewal(path: Path) -> Callable[[], float]:
    """One statement that moves the expiry of as many rows of a lock record's size, in ms: the floor of a round."""
    db = bare(path)
    db.execute("PRAGMA cache_size = -16384")  # as ours: the rows do not fit into the default
    db.execute("CREATE TABLE leases (key TEXT PRIMARY KEY, expires_at INTEGER, record TEXT) WITHOUT ROWID")
    keys = json.dumps([f"lease:{n}" for n in range(LEASES)])
    db.execute("INSERT INTO leases SELECT value, 0, ? FROM json_each(?)", (RECORD, keys))

    def measure() -> float:
        start = time.perf_counter()
        db.execute("BEGIN IMMEDIATE")
        db.execute(
            "UPDATE leases SET expires_at = ? WHERE key IN (SELECT value FROM json_each(?))", (time.time_ns(), keys)
        )
        db.execute("COMMIT")
        return (time.perf_counter() - start) * 1_000

    return measure


def renewal_rounds() -> tuple[list[float], list[float], float, int]:
    """How long whole rounds took, and the floor after each of them (ms); bytes a lease, threads of ours."""
    rounds: list[float] = []
    floors: list[float] = []

    part = {"leases": 0, "ms": 0.0}

    def note(event: Event) -> None:
        """Leases that were taken far apart stay in groups for good: a round is over when all have had their turn."""
        if event.name != "leases_renewed":
            return
        part["leases"] += event.fields["leases"]
        part["ms"] += event.fields["seconds"] * 1_000
        if part["leases"] >= LEASES:
            if part["leases"] == LEASES:  # while the groups form, some are counted twice
                rounds.append(part["ms"])
            part.update(leases=0, ms=0.0)

    async def main() -> tuple[float, int]:
        with folder() as where:
            async with AsyncClient(f"sqlite:///{where}/hf.db") as client:
                client.events.subscribe(note)
                before = resident_bytes()
                leases = await hold_many(client, ttl=3)
                grown = resident_bytes() - before
                floor = bare_renewal(where / "bare.db")
                while len(floors) < ROUNDS + 1:
                    await asyncio.sleep(0.05)
                    if len(floors) < len(rounds):
                        floors.append(floor())  # the next round is most of a second away
                names = [thread.name for thread in threading.enumerate() if thread.name == "holdfast-renewals"]
                assert all(lease.valid for lease in leases)  # type: ignore[attr-defined]
                return grown / LEASES, len(names)

    grown, threads = asyncio.run(main())
    return rounds[1 : ROUNDS + 1], floors[1:], grown, threads


def kept_beside_cpu_bound_threads() -> tuple[int, int]:
    """How many of the leases (ttl=5) are alive after twelve seconds beside two busy threads; rounds seen."""
    stop = threading.Event()
    seen: list[int] = []

    def burn() -> None:
        number = 0
        while not stop.is_set():
            number += 1

    async def main() -> int:
        with folder() as where:
            async with AsyncClient(f"sqlite:///{where}/hf.db") as client:
                client.events.subscribe(lambda event: seen.append(1) if event.name == "leases_renewed" else None)
                leases = await hold_many(client, ttl=5)
                burners = [threading.Thread(target=burn) for _ in range(2)]
                for burner in burners:
                    burner.start()
                try:
                    await asyncio.sleep(12)
                    return sum(lease.valid for lease in leases)  # type: ignore[attr-defined]
                finally:
                    stop.set()
                    for burner in burners:
                        burner.join()

    return asyncio.run(main()), len(seen)


def told_to_end() -> threading.Event:
    done = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), done.set()), daemon=True).start()
    return done


def saturate(url: str) -> None:
    with Client(url) as client:
        lock = client.lock(f"writer:{os.getpid()}", ttl=30)
        print("ready", flush=True)
        done = told_to_end()
        pairs = 0
        while not done.is_set():
            with lock:
                pairs += 1
        print(pairs * 2, flush=True)


def bare_saturate(path: str) -> None:
    db = bare(path)
    print("ready", flush=True)
    done = told_to_end()
    commits = 0
    while not done.is_set():
        with suppress(sqlite3.OperationalError):  # starved for ten seconds: it tries again
            commit(db, f"writer:{os.getpid()}", commits + 1)
            commits += 1
    print(commits, flush=True)


class BesideWriters:
    """Heartbeats of each round (ms) while eight processes write as fast as they can, and the commits of those."""

    def __init__(self, writer: str, beat: Callable[[Path], list[float]], file: Callable[[Path], object]) -> None:
        self._writer, self._beat, self._file = writer, beat, file
        self.beats: list[float] = []
        self.commits = 0

    def worst(self) -> float:
        """The worst heartbeat of a round."""
        with folder() as where:
            writers = [spawn("leases.py", self._writer, self._file(where)) for _ in range(WRITERS)]
            for writer in writers:
                writer.stdout.readline()
            beats = self._beat(where)
            for writer in writers:  # all at once: one that is starved by the others would be long in ending
                writer.stdin.write("\n")
                writer.stdin.flush()
            self.commits += sum(int(finish(writer).split()[-1]) for writer in writers)
        self.beats += beats
        return max(beats)


def url_in(where: Path) -> str:
    return f"sqlite:///{where}/hf.db"


def heartbeats(where: Path) -> list[float]:
    beats: list[float] = []
    with Client(url_in(where)) as client, client.lock("heart", ttl=30, renew_every=BEAT_SECONDS, wait=10):
        client.events.subscribe(
            lambda event: beats.append(event.fields["seconds"] * 1_000) if event.name == "leases_renewed" else None
        )
        time.sleep(ROUND_SECONDS)
        return list(beats)


def bare_file(where: Path) -> Path:
    bare(where / "bare.db").close()  # those that make the file at the same time would be in each other's way
    return where / "bare.db"


def bare_heartbeats(where: Path) -> list[float]:
    """Bare commits as often as our heartbeats, with nothing but SQLite's own busy handler to wait by."""
    beats: list[float] = []
    db = bare(where / "bare.db")
    end = time.monotonic() + ROUND_SECONDS
    while (start := time.monotonic()) < end:
        with suppress(sqlite3.OperationalError):  # given up after ten seconds; it counts for what it took
            commit(db, "heart", time.monotonic_ns())
        took = time.monotonic() - start
        beats.append(took * 1_000)
        time.sleep(max(0, BEAT_SECONDS - took))
    db.close()
    return beats


def figures() -> list[Figure]:
    rounds, floors, grown, threads = renewal_rounds()
    alive, seen = kept_beside_cpu_bound_threads()
    mine = BesideWriters("saturate", heartbeats, url_in)
    plain = BesideWriters("bare_saturate", bare_heartbeats, bare_file)
    worst, plain_worst = alternate(mine.worst, plain.worst)
    return [
        Figure(
            f"sqlite, {LEASES} leases, one renewal round",
            median(rounds),
            150,
            "ms",
            f"{len(rounds)} rounds, worst {max(rounds):.0f} ms; floor, one bare UPDATE of as many rows: "
            f"{median(floors):.0f} ms (we take {ratio(rounds, floors):.1f} x), worst {max(floors):.0f} ms; "
            f"{threads} heartbeat thread; {grown / 1024:.2f} KiB a lease",
        ),
        Figure(
            f"sqlite, {LEASES} leases with ttl=5 beside two CPU-bound threads",
            alive,
            LEASES,
            "alive after 12 s",
            f"{seen} renewal rounds",
            at_least=True,
        ),
        Figure(
            f"sqlite, worst heartbeat beside {WRITERS} saturating writer processes",
            max(worst),
            300,
            "ms",
            f"{len(mine.beats)} heartbeats, median {median(mine.beats):.1f} ms, median of the rounds' worst "
            f"{median(worst):.0f} ms, {mine.commits} commits of the writers; bare commits with SQLite's busy handler: "
            f"worst {max(plain_worst):.0f} ms, {len(plain.beats)} heartbeats, median {median(plain.beats):.1f} ms, "
            f"median of the rounds' worst {median(plain_worst):.0f} ms (we take {ratio(worst, plain_worst):.2g} x), "
            f"{plain.commits} commits of the writers",
        ),
    ]


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
