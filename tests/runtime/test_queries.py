"""Reads that may take long use a separate connection: they do not delay locks."""

from __future__ import annotations

import asyncio
import threading

import pytest

from holdfast import AsyncClient, Client, Context, Engine, workflow
from holdfast.commands import Acquire, ListLocks
from holdfast.commands.runs import CountRuns, ListOwnedRuns, ListRuns, ReadRun
from holdfast.runtime.flows import send
from holdfast.runtime.runners import run
from holdfast.workflow import lock_sweeper as patrol
from holdfast.workflow.queries import RunQueries

READS = {
    "runs": (ListRuns, lambda hf: hf.runs.list()),
    "history": (ReadRun, lambda hf: run(RunQueries(hf, max_bytes=100).see("r", history=True), hf.runtime.batchers)),
    "count": (CountRuns, lambda hf: run(send(CountRuns()), hf.runtime.batchers)),
    "locks": (ListLocks, lambda hf: hf.locks.list()),
}


@pytest.mark.parametrize("read", READS)
def test_a_slow_read_delays_no_acquire_of_the_same_client(url, plan, read):
    """The list is in progress until the lock has been acquired and released."""
    kind, ask = READS[read]
    under_way, go_on = threading.Event(), threading.Event()
    order = []

    def before(commands):
        if any(isinstance(command, kind) for command in commands):
            under_way.set()
            if not go_on.wait(10):
                order.append("the read had to give way")

    plan.before = before
    with Client(url) as hf:
        hf.runs.start("wf", 1, id="r")

        def reading():
            ask(hf)
            order.append("read")

        reader = threading.Thread(target=reading)
        reader.start()
        assert under_way.wait(20)
        with hf.lock("k", ttl=5):
            order.append("acquired")
        order.append("released")
        go_on.set()
        reader.join()
    assert order == ["acquired", "released", "read"]
    assert plan.count(Acquire) == 1


@workflow
async def waiting(ctx: Context) -> str:
    return await ctx.wait_for_signal("go")


@workflow
async def short(ctx: Context) -> int:
    return await ctx.step("one", lambda: 1)


@pytest.mark.parametrize("kind", [ListLocks, ListOwnedRuns], ids=lambda kind: kind.__name__)
def test_a_slow_read_of_an_engine_delays_neither_an_acquire_nor_a_claim_of_its_client(url, plan, monkeypatch, kind):
    """While the engine searches for deadlocks or lists its runs, locks are acquired and runs are claimed."""
    monkeypatch.setattr(patrol, "PAGE_SECONDS", 0)
    armed, under_way, go_on = threading.Event(), threading.Event(), threading.Event()
    order = []

    def before(commands):
        if armed.is_set() and any(isinstance(command, kind) for command in commands):
            under_way.set()
            if not go_on.wait(10):
                order.append("the read had to give way")

    def after(commands):
        if under_way.is_set() and "read" not in order and any(isinstance(command, kind) for command in commands):
            order.append("read")

    plan.before, plan.after = before, after

    async def scenario():
        async with AsyncClient(url) as hf, Engine(hf, workflows=[waiting, short], grace=1) as engine:
            handle = await engine.start(waiting)
            runs = hf.runs
            await runs.result(await runs.start("short"), timeout=20)  # the first start lists the workers
            armed.set()
            await handle.signal("go", "gone")
            assert await asyncio.to_thread(under_way.wait, 20)
            async with hf.lock("k", ttl=5):
                order.append("acquired")
            assert await runs.result(await runs.start("short"), timeout=20) == 1  # claimed by the engine
            order.append("ran")
            go_on.set()
            assert await handle.result(timeout=20) == "gone"

    asyncio.run(scenario())
    assert order == ["acquired", "ran", "read"]
