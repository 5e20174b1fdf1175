"""Acquire + release: one caller against two bare commits, a hundred tasks against one, and the peers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from common import Figure, alternate, bare, commit, folder, median, ratio

from holdfast import AsyncClient, Client

PAIRS = 1_500


def bare_commits(path: Path) -> Callable[[], float]:
    """Two commits of one row of a lock record's size, as durable as ours: the floor."""
    connection = bare(path)

    def measure() -> float:
        start = time.perf_counter()
        for number in range(PAIRS * 2):
            commit(connection, "k", number)
        return (time.perf_counter() - start) / PAIRS

    return measure


def sync_pairs(client: Client) -> Callable[[], float]:
    lock = client.lock("bench", ttl=30)

    def measure() -> float:
        start = time.perf_counter()
        for _ in range(PAIRS):
            with lock:
                pass
        return (time.perf_counter() - start) / PAIRS

    return measure


def async_pairs(url: str, tasks: int, pairs: int) -> Callable[[], float]:
    async def work(client: AsyncClient, number: int) -> None:
        for _ in range(pairs):
            async with client.lock(f"bench:{number}", ttl=30):
                pass

    async def main() -> float:
        async with AsyncClient(url) as client:
            await work(client, 0)
            start = time.perf_counter()
            await asyncio.gather(*(work(client, number) for number in range(tasks)))
            return tasks * pairs / (time.perf_counter() - start)

    return lambda: asyncio.run(main())


def peers(where: Path) -> dict[str, Callable[[], float]]:
    """What people use today on one machine. None of them is durable, fair, fenced or renewed."""
    import diskcache  # noqa: PLC0415
    import filelock  # noqa: PLC0415
    import portalocker  # noqa: PLC0415

    cache = diskcache.Cache(str(where / "diskcache"))
    makers = {
        "filelock": lambda: filelock.FileLock(where / "filelock"),
        "portalocker": lambda: portalocker.Lock(where / "portalocker", timeout=1),
        "diskcache.Lock": lambda: diskcache.Lock(cache, "bench"),
    }

    def measure(make: Callable[[], object]) -> Callable[[], float]:
        def run() -> float:
            start = time.perf_counter()
            for _ in range(PAIRS):
                with make():  # type: ignore[attr-defined]
                    pass
            return (time.perf_counter() - start) / PAIRS

        return run

    return {name: measure(make) for name, make in makers.items()}


def figures() -> list[Figure]:
    with folder() as where:
        url = f"sqlite:///{where}/hf.db"
        with Client(url) as client:
            others = peers(where)
            mine, floor, *rest = alternate(sync_pairs(client), bare_commits(where / "bare.db"), *others.values())
        one, hundred = alternate(async_pairs(url, 1, 300), async_pairs(url, 100, 20))
    beside = ", ".join(
        f"{name} {median(values) * 1e6:.0f} µs (we take {ratio(mine, values):.1f} x)"
        for name, values in zip(others, rest, strict=True)
    )
    return [
        Figure(
            "sqlite, sync, one caller: acquire + release",
            ratio(mine, floor),
            1.6,
            "x two bare commits",
            f"{median(mine) * 1e6:.0f} µs against {median(floor) * 1e6:.0f} µs; beside it {beside}",
        ),
        Figure(
            "sqlite, 100 async tasks on distinct keys",
            ratio(hundred, one),
            8,
            "x one async caller",
            f"{median(hundred):.0f} pairs/s against {median(one):.0f} pairs/s",
            at_least=True,
        ),
    ]
