"""PostgreSQL: one caller against two bare single-row commits, a hundred tasks against a pool of ten, and a hand-over.

The floor of one caller is a prepared upsert of a row of a lock record's size, committed alone, by the same driver. The
floor of a hundred is the very statements that Holdfast sends for one caller, sent by asyncpg through a pool of ten.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable

import psycopg
from common import RECORD, Figure, alternate, median, ratio

from holdfast import AsyncClient, Client
from holdfast.stores.postgresql.fast_path import statement_named
from holdfast.stores.postgresql.statements import placed
from holdfast.testing import servers

BLOCKS = 9
PAIRS = 300
TASKS = 100
TURNS = 20
POOL = 10


def bare_commits(url: str) -> Callable[[], float]:
    """Two commits of one row, prepared: the least that a lock and its release can cost."""
    db = psycopg.connect(url, autocommit=True, prepare_threshold=0)
    db.execute("CREATE TABLE IF NOT EXISTS bare (k text PRIMARY KEY, n bigint, v text)")
    db.execute("INSERT INTO bare VALUES ('k', 0, %s) ON CONFLICT DO NOTHING", (RECORD,))

    def measure() -> float:
        start = time.perf_counter()
        for number in range(2 * PAIRS):
            db.execute("UPDATE bare SET n = %s, v = %s WHERE k = %s", (number, RECORD, "k"))
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


def our_tasks(url: str) -> Callable[[], float]:
    """Pairs a second of a hundred tasks, each with a key of its own."""

    async def work(client: AsyncClient, number: int) -> None:
        lock = client.lock(f"bench:{number}", ttl=30)
        for _ in range(TURNS):
            async with lock:
                pass

    async def main() -> float:
        async with AsyncClient(url) as client:
            await work(client, 0)
            start = time.perf_counter()
            await asyncio.gather(*(work(client, number) for number in range(TASKS)))
            return TASKS * TURNS / (time.perf_counter() - start)

    return lambda: asyncio.run(main())


def pooled_tasks(url: str) -> Callable[[], float]:
    """The same statements, one a command, by asyncpg through a pool of ten."""
    import asyncpg  # noqa: PLC0415

    statement = placed(statement_named("hold"), "holdfast").decode()

    async def one(pool: asyncpg.Pool, *command: object) -> list[int]:
        row = await pool.fetchrow(statement, "default", json.dumps([command]), None)
        answer: list[int] = json.loads(row[1])
        return answer

    async def work(pool: asyncpg.Pool, number: int) -> None:
        key, name = f"bench:{number}", f"pool.{number}"  # keys that our tasks have made
        for _ in range(TURNS):
            token, *_ = await one(pool, "Acquire", key, name, None, 30_000_000, "mutex", 1, {"name": "bench"})
            await one(pool, "Release", key, name, token)

    async def main() -> float:
        async with asyncpg.create_pool(url, min_size=POOL, max_size=POOL) as pool:
            await work(pool, 0)
            start = time.perf_counter()
            await asyncio.gather(*(work(pool, number) for number in range(TASKS)))
            return TASKS * TURNS / (time.perf_counter() - start)

    return lambda: asyncio.run(main())


def figures() -> list[Figure]:
    with servers.postgres() as server:
        with Client(server.url) as client:
            with client.lock("bench"):
                pass
            mine, floor = alternate(sync_pairs(client), bare_commits(server.url), rounds=BLOCKS)
        ours, theirs = alternate(our_tasks(server.url), pooled_tasks(server.url), rounds=BLOCKS)
    return [
        Figure(
            f"{server.kind} {server.version}, sync, one caller: acquire + release",
            ratio(mine, floor),
            1.35,
            "x two bare commits of one row",
            f"{median(mine) * 1e6:.0f} µs against {median(floor) * 1e6:.0f} µs",
        ),
        Figure(
            f"{server.kind} {server.version}, 100 async tasks on distinct keys",
            ratio(ours, theirs),
            4,
            "x the same statements on an asyncpg pool of ten",
            f"{median(ours):.0f} pairs/s against {median(theirs):.0f} pairs/s",
            at_least=True,
        ),
    ]
