"""What an idle engine costs while runs sleep: with a hundred thousand of them no more than with a thousand.

As a script it is the engine: `sleepers.py URL` opens one, lets it come to rest, and prints its CPU seconds a second and
the bytes of memory that it uses.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from common import Figure, finish, folder, median, ratio, resident_bytes, spawn

from holdfast import Context, Engine, workflow
from holdfast import commands as c
from holdfast.commands import runs as r
from holdfast.rules.lock_record import Label
from holdfast.rules.runs.record import NewRun, Park, worker_key
from holdfast.stores import open_store
from holdfast.testing import servers

FEW, MANY = 1_000, 100_000
BATCH = 1_000
ROUNDS = 5
REST, WATCHED = 1.5, 4.0
LATER = 10**15
"""Microseconds: about thirty years."""


@workflow
async def sleeps(ctx: Context) -> None:
    await ctx.sleep("10000 days")


def put(url: str, amount: int) -> None:
    """Let so many runs sleep, as an engine would have left them."""
    store = open_store(url, namespace="default")
    connection = store.connect("commands")
    lease = c.Acquire(key=worker_key("w.1"), id="w.1", label=Label(name="w"), kind="worker", ttl=10**10)
    connection.execute([lease])
    connection.execute([r.RegisterWorker(worker="w.1", name="w", types=("sleeps",))])
    for first in range(0, amount, BATCH):
        names = [f"run-{n:06}" for n in range(first, first + BATCH)]
        started = connection.execute(
            [
                r.StartRun(new=NewRun(id=name, type="sleeps", input="null", request=f"s.{name}"), worker="w.1")
                for name in names
            ]
        )
        connection.execute(
            [
                r.RecordRun(run=run.id, fence=run.fence, at=1, request="1.1", then=Park(run.created_at + LATER))
                for run in (outcome.run for outcome in started)  # type: ignore[attr-defined]
            ]
        )
    connection.execute([r.UnregisterWorker(worker="w.1")])
    connection.close()
    store.close()


@contextmanager
def place(kind: str, amount: int) -> Iterator[str]:
    if kind == "sqlite":
        with folder() as home:
            url = f"sqlite:///{home}/sleepers.db"
            put(url, amount)
            yield url
    else:
        with servers.postgres() as server:
            put(server.url, amount)
            yield server.url


def figures() -> list[Figure]:
    return [figure for kind in ("sqlite", "postgres") for figure in on(kind)]


def on(kind: str) -> list[Figure]:
    with place(kind, FEW) as few, place(kind, MANY) as many:
        seen: dict[str, list[tuple[float, float]]] = {few: [], many: []}
        for _ in range(ROUNDS):
            for url, found in seen.items():
                cpu, memory = finish(spawn("sleepers.py", url)).split()
                found.append((float(cpu), float(memory)))
    costs = {url: [cpu for cpu, _ in found] for url, found in seen.items()}
    memories = {url: median([memory for _, memory in found]) for url, found in seen.items()}
    return [
        Figure(
            f"{kind}, an idle engine beside {MANY:,} sleeping runs",
            ratio(costs[many], costs[few]),
            1.25,
            f"x its CPU beside {FEW:,}",
            f"{median(costs[many]) * 1e3:.2f} ms a second against {median(costs[few]) * 1e3:.2f} ms; memory "
            f"{memories[many] / 1e6:.1f} MB against {memories[few] / 1e6:.1f} MB",
        )
    ]


async def rest(url: str) -> None:
    async with Engine(url, workflows=[sleeps]):
        await asyncio.sleep(REST)
        before, begun = time.process_time(), time.perf_counter()
        await asyncio.sleep(WATCHED)
        spent = (time.process_time() - before) / (time.perf_counter() - begun)
        print(spent, resident_bytes())


if __name__ == "__main__":
    asyncio.run(rest(sys.argv[1]))
