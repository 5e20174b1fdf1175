"""Plain steps when there are more of them than threads: an attempt begins when a thread is free."""

from __future__ import annotations

import asyncio
import threading
from contextlib import contextmanager, suppress

import pytest
from waiting import eventually_async

from holdfast import Context, Retry, workflow
from holdfast.commands import ForceRelease
from holdfast.commands.runs import ReadRun
from holdfast.rules.runs.record import worker_key

LENGTH = 0.25


async def record_of(engine):
    """The record of the run in the store."""
    return (await engine._worker.execute(ReadRun(run="r"))).claim.run


def steps_of(engine):
    """The steps of the runs that an engine drives."""
    return [driver._steps for driver in engine._worker.drivers.values()]


@contextmanager
def no_thread_is_free(engine):
    """Occupy all threads of an engine until the block is left."""
    pool, leave = engine._worker._threads, threading.Event()
    try:
        occupied = threading.Barrier(pool._max_workers + 1)
        for _ in range(pool._max_workers):
            pool.submit(lambda: (occupied.wait(20), leave.wait(20)))
        occupied.wait(20)
        yield
    finally:
        leave.set()


@pytest.mark.parametrize("option", ["timeout", "heartbeat_timeout"])
def test_the_time_of_a_plain_step_begins_when_a_thread_is_free(url, played, engine_on, option):
    bodies = []

    @workflow
    async def flow(ctx: Context) -> None:
        retry = Retry(max_attempts=3, initial=0.001)
        await ctx.step("work", bodies.append, "work", retry=retry, **{option: LENGTH})

    async def scenario():
        async with engine_on(url, [flow]) as engine:
            with no_thread_is_free(engine):
                handle = await engine.start(flow, id="r")
                await eventually_async(lambda: any(steps.running for steps in steps_of(engine)))
                over = asyncio.Event()
                asyncio.get_running_loop().call_later(4 * LENGTH, over.set)
                await over.wait()
                assert not bodies
            await handle.result()
            assert bodies == ["work"]
            assert (await record_of(engine)).length == 2, "no attempt has failed"

    played(scenario)


def test_heartbeats_are_sent_for_a_step_that_waits_for_a_thread(url, played, engine_on):
    if url.startswith("memory"):
        pytest.skip("the store of one process")
    bodies, events = [], []

    @workflow
    async def flow(ctx: Context) -> None:
        await ctx.step("work", bodies.append, "work", heartbeat_timeout=4 * LENGTH)

    async def scenario():
        async with engine_on(url, [flow]) as engine:
            with no_thread_is_free(engine):
                handle = await engine.start(flow, id="r")
                while not (first := (await record_of(engine)).heartbeats):
                    await asyncio.sleep(0.01)
                async with engine_on(url, [flow]) as other:
                    other.events.subscribe(lambda event: events.append(event.name))
                    while (await record_of(engine)).heartbeats[0].at < first[0].expires_at + 1_000_000:
                        await asyncio.sleep(0.01)
                    assert not bodies
                    assert "heartbeat_missed" not in events
            await handle.result()
            run = await record_of(engine)
            assert (bodies, run.claims, run.heartbeats) == (["work"], 1, ())

    played(scenario)


@pytest.mark.parametrize("options", [{}, {"timeout": 20}, {"heartbeat_timeout": 20}])
def test_a_plain_step_that_the_code_gave_up_before_a_thread_was_free_is_not_run(tmp_path, played, engine_on, options):
    bodies = []

    @workflow
    async def flow(ctx: Context) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(0.1):
                await ctx.step("given up", bodies.append, "given up", **options)
        await ctx.wait_for_signal("go")
        await ctx.step("next", bodies.append, "next")

    async def scenario():
        async with engine_on(f"sqlite:///{tmp_path}/s.db", [flow]) as engine:
            with no_thread_is_free(engine):
                handle = await engine.start(flow, id="r")
                await eventually_async(lambda: any(steps._threads for steps in steps_of(engine)))
                await eventually_async(lambda: not any(steps.busy for steps in steps_of(engine)))
            await handle.signal("go")
            await handle.result()
            assert bodies == ["next"]

    played(scenario)


@pytest.mark.parametrize("options", [{}, {"timeout": 20}, {"heartbeat_timeout": 20}])
def test_a_plain_step_of_a_run_that_was_lost_before_a_thread_was_free_is_not_run_here(
    tmp_path, played, engine_on, options
):
    bodies, url = [], f"sqlite:///{tmp_path}/s.db"

    @workflow
    async def flow(ctx: Context) -> None:
        await ctx.step("work", bodies.append, "work", **options)

    async def scenario():
        async with engine_on(url, [flow]) as engine:
            with no_thread_is_free(engine):
                handle = await engine.start(flow, id="r")
                await eventually_async(lambda: any(steps._threads for steps in steps_of(engine)))
                async with engine_on(url, [flow]) as other:
                    worker = engine._worker
                    await other._worker.execute(ForceRelease(key=worker_key(worker.id), by="test", reason="test"))
                    await handle.result()
                await eventually_async(lambda: not steps_of(engine))
        assert bodies == ["work"]

    played(scenario)
