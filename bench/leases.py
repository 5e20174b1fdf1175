"""Ten thousand leases in one keeper's care, and its heartbeat beside saturating writers.

As a script it is one of the writers: `saturate` takes and releases its own lock as fast as it can.
"""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import time
from pathlib import Path

from common import ROUNDS, Figure, finish, folder, median, spawn

from holdfast import AsyncClient, Client, Event

LEASES = 10_000
WRITERS = 8
ROUND_SECONDS = 4.0


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def hold_many(client: AsyncClient, ttl: float) -> list[object]:
    return list(await asyncio.gather(*(client.lock(f"lease:{n}", ttl=ttl).acquire() for n in range(LEASES))))


def renewal_rounds() -> tuple[list[float], float, int]:
    """How long whole rounds took (ms), bytes a lease, threads of ours."""
    rounds: list[float] = []

    def note(event: Event) -> None:
        if event.name == "leases_renewed" and event.fields["leases"] == LEASES:
            rounds.append(event.fields["seconds"] * 1_000)

    async def main() -> tuple[float, int]:
        with folder() as where:
            async with AsyncClient(f"sqlite:///{where}/hf.db") as client:
                client.events.subscribe(note)
                before = resident_bytes()
                leases = await hold_many(client, ttl=3)
                grown = resident_bytes() - before
                while len(rounds) < ROUNDS + 1:
                    await asyncio.sleep(0.05)
                names = [thread.name for thread in threading.enumerate() if "keeper" in thread.name]
                assert all(lease.valid for lease in leases)  # type: ignore[attr-defined]
                return grown / LEASES, len(names)

    grown, threads = asyncio.run(main())
    return rounds[1:], grown, threads


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


def saturate(url: str) -> None:
    with Client(url) as client:
        lock = client.lock(f"writer:{os.getpid()}", ttl=30)
        print("ready", flush=True)
        done = threading.Event()
        threading.Thread(target=lambda: (sys.stdin.read(), done.set()), daemon=True).start()
        pairs = 0
        while not done.is_set():
            with lock:
                pairs += 1
        print(pairs, flush=True)


def heartbeats_beside_writers() -> tuple[list[list[float]], int]:
    """Each round's heartbeats (ms) while eight processes write as fast as they can; commits of theirs."""
    rounds: list[list[float]] = []
    with folder() as where:
        url = f"sqlite:///{where}/hf.db"
        with Client(url) as client:
            writers = [spawn("leases.py", "saturate", url) for _ in range(WRITERS)]
            for writer in writers:
                writer.stdout.readline()
            beats: list[float] = []
            client.events.subscribe(
                lambda event: beats.append(event.fields["seconds"] * 1_000) if event.name == "leases_renewed" else None
            )
            with client.lock("heart", ttl=30, renew_every=0.1, wait=10):
                for _ in range(ROUNDS):
                    beats.clear()
                    time.sleep(ROUND_SECONDS)
                    rounds.append(list(beats))
            commits = sum(int(finish(writer).split()[-1]) for writer in writers) * 2
    return rounds, commits


def figures() -> list[Figure]:
    rounds, grown, threads = renewal_rounds()
    alive, seen = kept_beside_cpu_bound_threads()
    beats, commits = heartbeats_beside_writers()
    worst = [max(values) for values in beats]
    return [
        Figure(
            f"sqlite, {LEASES} leases, one renewal round",
            median(rounds),
            150,
            "ms",
            f"{len(rounds)} rounds, worst {max(rounds):.0f} ms; {threads} keeper; {grown / 1024:.2f} KiB a lease",
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
            f"{sum(map(len, beats))} heartbeats, median {median([v for values in beats for v in values]):.1f} ms, "
            f"median of the rounds' worst {median(worst):.0f} ms, {commits} commits of the writers",
        ),
    ]


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
