"""Plays workflows on one store when it is told to, and prints how long it took: Holdfast, or DBOS beside it.

Started by `runs.py` as a process of its own: `runner.py holdfast|dbos URL`. Each line of its input is a
task; the answer is a line of JSON. One after another: RUNS runs of STEPS steps, seconds a step. At once: MANY runs of
STEPS steps, seconds in all. Start: for each run the seconds until the call returned and until its first step began.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from itertools import count
from typing import Any

from common import resident_bytes

RUNS, STEPS, MANY, STARTS = 20, 10, 100, 200
PARKED = 10_000
AT_A_TIME, IN_LINE, FEWER_IN_LINE = 10, 500, 60

begun: dict[int, float] = {}
"""When the first step of each run began."""
numbers = count(1)


async def timed(work: Awaitable[Any]) -> float:
    start = time.perf_counter()
    await work
    return time.perf_counter() - start


async def holdfast(url: str) -> None:
    from holdfast import Concurrency, Context, Engine, workflow  # noqa: PLC0415  (each peer in its own process)

    async def body(n: int) -> int:
        return n

    async def first(n: int) -> int:
        begun[n] = time.perf_counter()
        return n

    @workflow
    async def flow(ctx: Context, n: int) -> int:
        for step in range(STEPS):
            await ctx.step("step", body, step)
        return n

    @workflow
    async def single(ctx: Context, n: int) -> int:
        return await ctx.step("first", first, n)

    @workflow
    async def waits(ctx: Context, n: int) -> int:
        await ctx.wait_for_signal("go")
        return n

    @workflow(concurrency=Concurrency(max=AT_A_TIME, on_excess="queue"))
    async def queued(ctx: Context, n: int) -> int:
        return await ctx.step("step", body, n)

    workflows = [flow, single, waits, queued]
    async with Engine(url, workflows=workflows, park_after=0.2, max_active_runs=2_000) as engine:

        async def play(n: int) -> int:
            return await (await engine.start(flow, n)).result()

        async def start(n: int) -> Callable[[], Awaitable[Any]]:
            return (await engine.start(single, n)).result

        async def parked() -> list[float]:
            """Memory before and after 10,000 more runs that wait for a signal."""

            async def put(amount: int) -> int:
                for _ in range(amount // 100):
                    await asyncio.gather(*(engine.start(waits, next(numbers)) for _ in range(100)))
                while engine.active_runs:
                    await asyncio.sleep(0.05)
                gc.collect()
                return resident_bytes()

            before = await put(2 * PARKED)  # what the store keeps for itself has reached its limit by then
            return [before, await put(PARKED)]

        await serve(play, start, {"parked": parked, "in_line": partial(in_line, engine, queued)})


async def in_line(engine: Any, queued: Any) -> float:
    """Runs a second, of which all but a few wait behind a limit."""

    async def all_of_them() -> None:
        handles = await asyncio.gather(*(engine.start(queued, next(numbers)) for _ in range(IN_LINE)))
        await asyncio.gather(*(handle.result() for handle in handles))

    return IN_LINE / await timed(all_of_them())


async def dbos(url: str) -> None:
    from dbos import DBOS  # noqa: PLC0415

    DBOS(config={"name": "bench", "system_database_url": url, "log_level": "CRITICAL", "run_admin_server": False})

    @DBOS.step()
    async def body(n: int) -> int:
        return n

    @DBOS.step()
    async def first(n: int) -> int:
        begun[n] = time.perf_counter()
        return n

    @DBOS.workflow()
    async def flow(n: int) -> int:
        for step in range(STEPS):
            await body(step)
        return n

    @DBOS.workflow()
    async def single(n: int) -> int:
        return await first(n)

    async def start(n: int) -> Callable[[], Awaitable[Any]]:
        return (await DBOS.start_workflow_async(single, n)).get_result

    async def in_dbos_line() -> float:
        async def all_of_them() -> None:
            handles = [await DBOS.enqueue_workflow_async("line", single, next(numbers)) for _ in range(FEWER_IN_LINE)]
            for handle in handles:
                await handle.get_result()

        return FEWER_IN_LINE / await timed(all_of_them())

    DBOS.launch()
    await DBOS.register_queue_async("line", global_concurrency=AT_A_TIME)
    await serve(flow, start, {"in_line": in_dbos_line})
    DBOS.destroy()


async def serve(
    play: Callable[[int], Awaitable[int]],
    start: Callable[[int], Awaitable[Callable[[], Awaitable[Any]]]],
    others: dict[str, Callable[[], Awaitable[Any]]],
) -> None:
    async def one_after_another() -> float:
        async def all_of_them() -> None:
            for _ in range(RUNS):
                await play(next(numbers))

        return await timed(all_of_them()) / RUNS / STEPS

    async def at_once() -> float:
        async def all_of_them() -> None:
            await asyncio.gather(*(play(next(numbers)) for _ in range(MANY)))

        return await timed(all_of_them())

    async def starts() -> list[tuple[float, float]]:
        found = []
        for _ in range(STARTS):
            number = next(numbers)
            called = time.perf_counter()
            result = await start(number)
            returned = time.perf_counter()
            await result()
            found.append((returned - called, begun.pop(number) - called))
        return found

    tasks = {"one": one_after_another, "many": at_once, "starts": starts} | others
    await play(next(numbers))
    loop = asyncio.get_running_loop()
    print("ready", flush=True)
    while task := (await loop.run_in_executor(None, sys.stdin.readline)).strip():
        print(json.dumps(await tasks[task]()), flush=True)


if __name__ == "__main__":
    _, who, where = sys.argv
    asyncio.run(holdfast(where) if who == "holdfast" else dbos(where))
