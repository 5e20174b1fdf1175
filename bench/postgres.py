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

    statement = "SELECT holdfast.execute_one('bench', $1, NULL, 40, '[]')"

    async def one(pool: asyncpg.Pool, kind: str, command: dict[str, object]) -> dict[str, int]:
        reply = await pool.fetchval(statement, json.dumps([kind, command]))
        answer: dict[str, int] = json.loads(reply)[1][0][0][1]
        return answer

    async def work(pool: asyncpg.Pool, number: int) -> None:
        key = f"pool:{number}"
        take = {
            "key": key, "id": f"bench.{number}", "label": {"name": "bench"}, "kind": "item", "permits": 1, "weight": 1,
            "ttl": 30_000_000, "queue": False, "waiter_ttl": None, "delay": 0,
        }  # fmt: skip
        for _ in range(TURNS):
            granted = await one(pool, "Acquire", take)
            await one(pool, "Release", {"key": key, "id": take["id"], "token": granted["token"]})

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
