"""One state that a hundred tasks change, and readers that share a read-write lock."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

from common import Figure, alternate, folder, median, ratio

from holdfast import AsyncClient
from holdfast.commands import SwapSlot

TASKS = 100
CHANGES = 40
"""Of each task."""
READS = 10


def bare_changes(path: Path) -> Callable[[], float]:
    """Changes a second of one row, each read and written in a transaction of its own, as durable as ours: the floor."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("CREATE TABLE IF NOT EXISTS t (k TEXT PRIMARY KEY, v INTEGER) WITHOUT ROWID")
    connection.execute("INSERT INTO t VALUES ('k', 0)")
    changes = TASKS * CHANGES // 4

    def measure() -> float:
        start = time.perf_counter()
        for _ in range(changes):
            connection.execute("BEGIN IMMEDIATE")
            (value,) = connection.execute("SELECT v FROM t WHERE k = 'k'").fetchone()
            connection.execute("UPDATE t SET v = ? WHERE k = 'k'", (value + 1,))
            connection.execute("COMMIT")
        return changes / (time.perf_counter() - start)

    return measure


class Counted:
    """Changes a second of one state by all tasks together; how many writes that took."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.writes = self.changes = 0

    def __call__(self) -> float:
        return asyncio.run(self._measure())

    async def _measure(self) -> float:
        async with AsyncClient(self._url) as client:
            state = client.state("bench", initial=0)
            batcher = client.runtime.batchers["commands"]
            submit = batcher.submit

            def counting(command: object) -> object:
                self.writes += isinstance(command, SwapSlot)
                return submit(command)  # type: ignore[arg-type]

            batcher.submit = counting  # type: ignore[method-assign,assignment]

            async def work() -> None:
                for _ in range(CHANGES):
                    await state.increment()

            start = time.perf_counter()
            await asyncio.gather(*(work() for _ in range(TASKS)))
            self.changes += TASKS * CHANGES
            return TASKS * CHANGES / (time.perf_counter() - start)


def takers(url: str, kind: str) -> Callable[[], float]:
    """Times a second that a hundred tasks take one lock, as its readers or one at a time, and hold it for a moment."""

    async def main() -> float:
        async with AsyncClient(url) as client:

            async def work() -> None:
                for _ in range(READS):
                    lock = client.rwlock("doc").read() if kind == "readers" else client.lock("one")
                    async with lock:
                        await asyncio.sleep(0.001)

            start = time.perf_counter()
            await asyncio.gather(*(work() for _ in range(TASKS)))
            return TASKS * READS / (time.perf_counter() - start)

    return lambda: asyncio.run(main())


def figures() -> list[Figure]:
    with folder() as where:
        url = f"sqlite:///{where}/hf.db"
        counted = Counted(url)
        ours, floor = alternate(counted, bare_changes(where / "bare.db"))
        shared, alone = alternate(takers(url, "readers"), takers(url, "one"))
    return [
        Figure(
            f"sqlite, {TASKS} tasks changing one state, over bare changes of one row",
            ratio(ours, floor),
            1,
            "x",
            f"{median(ours):.0f} changes/s against {median(floor):.0f}; {counted.changes} changes took "
            f"{counted.writes} compare-and-swaps, {counted.writes - counted.changes} of them again after a conflict",
            at_least=True,
        ),
        Figure(
            f"sqlite, {TASKS} readers of one read-write lock, over as many users of one lock",
            ratio(shared, alone),
            1,
            "x",
            f"{median(shared):.0f} reads/s against {median(alone):.0f}, each held for a millisecond",
            at_least=True,
        ),
    ]
