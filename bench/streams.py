"""Streams of runs: how many items a second pass from steps to readers, and what a written stream costs a replay.

Ten runs, each of them with a step that writes as fast as it may and a reader that follows it to the end, share one
engine. A run whose step has written 100,000 items is woken again and again, and replayed each time, in turn with a run
that has written none.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

from common import Figure, alternate, folder, median, ratio

from holdfast import Context, Engine, current_step, workflow
from holdfast.testing import servers

RUNS = 10
ITEMS = 4_000
"""Of each run."""
LONG = 100_000
WAKES = 20
PLACES = ("sqlite", "postgres")


async def speak(items: int) -> int:
    stream = current_step().stream("tokens")
    for n in range(items):
        await stream.write(f"token {n}")
    return items


@workflow
async def speaks(ctx: Context, items: int) -> int:
    return await ctx.step("speak", speak, items)


@workflow
async def answers(ctx: Context, items: int) -> None:
    await ctx.step("speak", speak, items)
    async for request in ctx.updates("ask"):
        request.reply()


@contextmanager
def place(kind: str) -> Iterator[str]:
    if kind == "postgres":
        with servers.postgres() as server:
            yield server.url
    else:
        with folder() as home:
            yield f"sqlite:///{home}/streams.db"


async def passed(url: str) -> float:
    """Items a second, from the start of the runs until every reader has seen all of them."""
    async with Engine(url, workflows=[speaks]) as engine:

        async def read(run: str) -> int:
            return len([item async for item in engine.stream(run, "tokens")])

        begun = time.perf_counter()
        handles = [await engine.start(speaks, ITEMS) for _ in range(RUNS)]
        seen = await asyncio.gather(*(read(handle.id) for handle in handles))
        took = time.perf_counter() - begun
    if seen != [ITEMS] * RUNS:
        raise RuntimeError(f"readers have seen {seen} items")
    return RUNS * ITEMS / took


async def speak_and_park(url: str) -> None:
    async with Engine(url, workflows=[answers], park_after=0.02) as engine:
        for run, items in (("long", LONG), ("none", 0)):
            await engine.start(answers, items, id=run)
        await parked(engine, "long")


async def parked(engine: Engine, run: str) -> None:
    while (await engine.get(run)).status != "suspended":
        await asyncio.sleep(0.01)


def wakes(url: str, run: str) -> float:
    """Seconds until a parked run has been claimed, replayed, and has answered; the median of some times."""

    async def wake() -> float:
        took = []
        async with Engine(url, workflows=[answers], park_after=0.02) as engine:
            for _ in range(WAKES):
                await parked(engine, run)
                begun = time.perf_counter()
                await engine.update(run, "ask")
                took.append(time.perf_counter() - begun)
        return median(took)

    return asyncio.run(wake())


def figures() -> list[Figure]:
    return [figure for kind in PLACES for figure in on(kind)]


def on(kind: str) -> list[Figure]:
    with place(kind) as url:
        (rates,) = alternate(lambda: asyncio.run(passed(url)))
        asyncio.run(speak_and_park(url))
        long, none = alternate(lambda: wakes(url, "long"), lambda: wakes(url, "none"))
    rate = f"{RUNS} runs with {ITEMS:,} items each, {min(rates):,.0f} to {max(rates):,.0f} a second"
    times = f"{median(long) * 1_000:.1f} ms, without items {median(none) * 1_000:.1f} ms"
    return [
        Figure(f"{kind}: items from steps to readers", median(rates), 10_000, "items/s", rate, at_least=True),
        Figure(f"{kind}: replay of a run whose step wrote {LONG:,} items", ratio(long, none), 1.2, "x", times),
    ]
