"""Cancelling ends a run in every state; its cleanup is recorded, for half a minute."""

from __future__ import annotations

import asyncio
import threading
from importlib import import_module

import pytest
from waiting import eventually_async

from holdfast import AsyncClient, Context, Retry, WorkflowFailed, step, workflow
from holdfast.commands.runs import ReadRun
from holdfast.testing import TestEngine


@step
async def tidy(what: str) -> str:
    return what


async def history(engine, run):
    """The entries of a journal, as text."""
    seen = await engine._worker.execute(ReadRun(run=run, history=True))
    return seen.claim.entries


async def ends(handle, status="cancelled", within=10):
    with pytest.raises(WorkflowFailed) as caught:
        await handle.result(within)
    assert caught.value.status == status
    return caught.value


# -- in every state -------------------------------------------------------------------------------------------


def test_a_running_async_step_is_cancelled_and_a_cleanup_step_is_recorded(url, played, engine_on):
    notified = []

    async def forever():
        notified.append("begun")
        try:
            await asyncio.Event().wait()
        finally:
            notified.append("stopped")

    @workflow
    async def runtime(ctx: Context) -> None:
        try:
            await ctx.step("for ever", forever, retry=Retry(max_attempts=5))
        finally:
            notified.append(await tidy("tidied"))

    async def scenario():
        async with engine_on(url, [runtime]) as engine:
            handle = await engine.start(runtime, id="r")
            await eventually_async(lambda: notified)
            await handle.cancel()
            await handle.cancel()
            await ends(handle)
            return await history(engine, "r")

    entries = played(scenario)
    assert notified == ["begun", "stopped", "tidied"]
    assert ['"kind":"cancel"' in entries[1], '"tidied"' in entries[2], len(entries)] == [True, True, 3]


def test_a_cancelled_sync_step_continues_in_its_thread_and_the_run_does_not_wait_for_it(url, played, engine_on):
    begun, release, over = threading.Event(), threading.Event(), threading.Event()
    later = []

    def blocks():
        begun.set()
        release.wait(30)
        over.set()
        return "too late"

    @workflow
    async def runtime(ctx: Context) -> None:
        try:
            await ctx.step("blocks", blocks)
        finally:
            later.append(await tidy("tidied"))
        later.append("never")

    async def scenario():
        async with engine_on(url, [runtime]) as engine:
            handle = await engine.start(runtime, id="r")
            await asyncio.to_thread(begun.wait, 30)
            await handle.cancel()
            try:
                await ends(handle)
                assert not over.is_set(), "no thread can be stopped"
            finally:
                release.set()
            await asyncio.to_thread(over.wait, 30)
            return await history(engine, "r")

    entries = played(scenario)
    assert later == ["tidied"]
    assert not any("too late" in entry for entry in entries)


@pytest.mark.parametrize("parked", [False, True])
def test_a_sleeping_or_waiting_run_is_cancelled_in_memory_and_when_parked(url, played, engine_on, parked):
    @workflow
    async def sleeps(ctx: Context) -> None:
        try:
            await ctx.sleep("1 day")
        finally:
            await tidy("from the sleep")

    @workflow
    async def waits(ctx: Context) -> None:
        try:
            await ctx.wait_for_signal("never")
        finally:
            await tidy("from the wait")

    async def scenario():
        async with engine_on(url, [sleeps, waits], park_after=0.02 if parked else 60) as engine, AsyncClient(url) as hf:
            handles = [await engine.start(flow, id=flow.name) for flow in (sleeps, waits)]
            for handle in handles:
                await eventually_async(lambda handle=handle: _has_status(handle, "suspended" if parked else "running"))
            for handle in handles:
                await hf.runs.cancel(handle.id)
                await ends(handle)
            return [await history(engine, handle.id) for handle in handles]

    for entries, words in zip(played(scenario), ("from the sleep", "from the wait"), strict=True):
        assert words in entries[-1]


async def _has_status(handle, status):
    return await handle.status() == status


def test_a_run_without_a_driver_is_cancelled_by_the_next_driver(url, played, engine_on):
    @workflow
    async def sleeps(ctx: Context) -> None:
        await tidy("first")
        try:
            await ctx.sleep("1 day")
        finally:
            await tidy("last")

    async def scenario():
        async with AsyncClient(url) as hf:
            async with engine_on(url, [sleeps], park_after=0.02) as engine:
                handle = await engine.start(sleeps, id="r")
                await eventually_async(lambda: _has_status(handle, "suspended"))
            await hf.runs.cancel("r")
            assert (await hf.runs.get("r")).status == "suspended"
            async with engine_on(url, [sleeps]) as engine:
                await ends(engine.handle("r"))
                return await history(engine, "r")

    assert '"last"' in played(scenario)[-1]


def test_children_and_grandchildren_are_cancelled_also_those_that_are_not_awaited(url, played, engine_on):
    notified = []

    async def forever(name):
        try:
            await asyncio.Event().wait()
        finally:
            notified.append(name)

    @workflow
    async def leaf(ctx: Context, name: str) -> None:
        await ctx.step("for ever", forever, name)

    @workflow
    async def branch(ctx: Context) -> None:
        await ctx.child(leaf, "awaited", id="awaited")

    @workflow
    async def root(ctx: Context) -> None:
        await ctx.start_child(leaf, "beside", id="beside")
        await ctx.child(branch, id="branch")

    async def scenario():
        async with engine_on(url, [leaf, branch, root]) as engine:
            handle = await engine.start(root, id="root")
            for run in ("beside", "awaited"):
                await eventually_async(lambda run=run: _steps(engine, run))
            await handle.cancel()
            for run in ("root", "branch", "beside", "awaited"):
                await ends(engine.handle(run))

    played(scenario)
    assert sorted(notified) == ["awaited", "beside"]


async def _steps(engine, run):
    driver = engine._worker.drivers.get(run)
    return driver is not None and driver._steps.running


# -- half a minute ----------------------------------------------------------------------------------------------


@workflow
async def lingers(ctx: Context, seconds: int) -> str:
    try:
        await ctx.sleep("1 day")
    finally:
        await ctx.sleep(seconds)
        await tidy("at the end")


@workflow
async def stays(ctx: Context) -> None:
    while True:
        try:
            await ctx.sleep("1 hour")
        except asyncio.CancelledError:
            await tidy("no, I stay")


def test_finally_blocks_have_half_a_minute():
    async def scenario():
        async with TestEngine([lingers]) as engine:
            handle = await engine.start(lingers, 29)
            await engine.advance("1 hour")
            await handle.cancel()
            await engine.advance(28.9)
            assert await handle.status() == "running"
            await engine.advance(0.1)
            await ends(handle)
            return await history(engine, handle.id)

    assert "at the end" in asyncio.run(scenario())[-1]


def test_after_half_a_minute_a_cancelled_run_is_ended_whatever_its_code_does():
    async def scenario():
        async with TestEngine([lingers, stays]) as engine:
            slow, stubborn = await engine.start(lingers, 31), await engine.start(stays)
            await engine.advance("1 minute")
            for handle in (slow, stubborn):
                await handle.cancel()
            await engine.advance(29.9)
            assert [await handle.status() for handle in (slow, stubborn)] == ["running", "running"]
            await engine.advance(0.2)
            for handle in (slow, stubborn):
                error = await ends(handle)
                assert error.detail == "the workflow did not end within the time that it has after its cancellation."
            assert not engine._worker.drivers
            return [await history(engine, handle.id) for handle in (slow, stubborn)]

    slow, stubborn = asyncio.run(scenario())
    assert not any("at the end" in entry for entry in slow)
    assert "no, I stay" in stubborn[-1]


def test_a_cleanup_step_that_takes_too_long_is_cancelled_with_the_run():
    notified = []

    async def forever():
        notified.append("begun")
        try:
            await asyncio.Event().wait()
        finally:
            notified.append("stopped")

    @workflow
    async def hangs(ctx: Context) -> None:
        try:
            await ctx.sleep("1 day")
        finally:
            await ctx.step("for ever", forever)

    async def scenario():
        async with TestEngine([hangs]) as engine:
            handle = await engine.start(hangs)
            await handle.cancel()
            await eventually_async(lambda: notified)
            engine._now += 30_000_000  # the step is in progress: `advance` would wait for it
            engine._worker.drivers[handle.id].tick()
            await ends(handle)

    asyncio.run(scenario())
    assert notified == ["begun", "stopped"]


def test_a_parked_cancelled_run_is_ended_after_half_a_minute_too(played, engine_on, monkeypatch):
    """On a real clock; the half minute is shortened."""
    monkeypatch.setattr(import_module("holdfast.workflow.replay"), "GRACE", 300_000)

    async def scenario():
        async with engine_on("memory://", [lingers], park_after=0.02) as engine:
            handle = await engine.start(lingers, 3_600)
            await handle.cancel()
            error = await ends(handle)
            assert error.detail == "the workflow did not end within the time that it has after its cancellation."
            return (await handle.info()).entries

    assert played(scenario) == 2


def test_a_timed_out_workflow_also_has_half_a_minute_for_cleanup():
    @workflow(timeout="1 hour")
    async def limited(ctx: Context, seconds: int) -> None:
        try:
            await ctx.sleep("1 day")
        finally:
            await ctx.sleep(seconds)
            await tidy("at the end")

    async def scenario():
        async with TestEngine([limited]) as engine:
            good, late = await engine.start(limited, 10), await engine.start(limited, 40)
            await engine.advance("59 minutes")
            assert [await handle.status() for handle in (good, late)] == ["running", "running"]
            await engine.advance("1 minute")
            await engine.advance(29.9)
            await ends(good, "timed_out")
            assert await late.status() == "running"
            await engine.advance(0.1)
            await ends(late, "timed_out")
            return [await history(engine, handle.id) for handle in (good, late)]

    good, late = asyncio.run(scenario())
    assert "at the end" in good[-1]
    assert not any("at the end" in entry for entry in late)


@pytest.mark.parametrize("how", ["bare", "swallowed"])
def test_a_run_that_continues_without_waiting_for_anything_can_be_cancelled(url, played, engine_on, how):
    """Its code never waits, so that no generation would receive the cancel."""

    @workflow(name="below")
    async def below(ctx) -> None:
        await ctx.wait_for_signal("never")

    @workflow(name="endless")
    async def endless(ctx, number: int) -> None:
        if number == 1:
            await ctx.start_child(below, id="below")
            await ctx.sleep("1 ms")
        asked = ctx.continue_as_new(number + 1)
        if how == "bare":
            raise asked

    async def scenario():
        async with engine_on(url, [endless, below]) as engine:
            handle = await engine.start(endless, 1, id="r")

            async def has_continued():
                return (await engine.get("r")).generation > 3

            await eventually_async(has_continued)
            await handle.cancel("enough")
            with pytest.raises(WorkflowFailed, match="enough"):
                await handle.result(20)
            assert (await engine.get("r")).status == "cancelled"
            with pytest.raises(WorkflowFailed, match="cancelled"):
                await engine.handle("below").result(20)

    played(scenario)
