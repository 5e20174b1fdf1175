"""`TestEngine`: time is virtual, and steps can be replaced."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from holdfast import Context, Retry, WorkflowFailed, step, workflow
from holdfast.errors import InvalidOption
from holdfast.testing import TestEngine

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


@step(retry=Retry(max_attempts=3, initial=60, jitter=False))
async def send(name: str) -> str:
    raise ConnectionError("no network in a test")


@workflow
async def remind(ctx: Context, name: str) -> list[str]:
    begun = ctx.now()
    await ctx.sleep("30 days")
    sent = await send(name)
    return [sent, str(ctx.now() - begun)]


@workflow
async def parent(ctx: Context, _: None) -> list[str]:
    return await ctx.child(remind, "child")


def test_a_sleep_of_days_takes_no_real_time():
    async def scenario():
        async with TestEngine([remind, parent], start=BEGIN) as engine:
            engine.mock(send, "sent")
            handles = [await engine.start(remind, "a"), await engine.start(parent, None)]
            await engine.advance("29 days")
            assert [await handle.status() for handle in handles] == ["running", "running"]
            await engine.advance("1 day")
            assert engine.now() == BEGIN + timedelta(days=30)
            return [await handle.result(5) for handle in handles]

    assert asyncio.run(scenario()) == [["sent", "30 days, 0:00:00"]] * 2


def test_retries_wait_in_the_engines_time_and_a_mock_may_fail_or_be_a_function():
    tries = []

    def flaky(name):
        tries.append(name)
        if len(tries) < 3:
            raise TimeoutError("away")
        return "at last"

    async def scenario():
        async with TestEngine([remind]) as engine:
            engine.mock("send", flaky)
            handle = await engine.start(remind, "a")
            await engine.advance("30 days")
            assert len(tries) == 1
            await engine.advance(60)
            assert len(tries) == 2
            await engine.advance(120)
            assert (await handle.result(5))[0] == "at last"
            engine.mock("send", ValueError("refused"))
            other = await engine.start(remind, "b")
            await engine.advance("31 days")
            with pytest.raises(WorkflowFailed, match="refused"):
                await other.result(5)

    asyncio.run(scenario())


def test_signals_and_timeouts_of_a_workflow_are_in_the_engines_time():
    @workflow(timeout="1 hour")
    async def waits(ctx: Context, _: None) -> str:
        return await ctx.wait_for_signal("go")

    async def scenario():
        async with TestEngine([waits]) as engine:
            notified, late = await engine.start(waits, None), await engine.start(waits, None)
            await engine.advance("59 minutes")
            await notified.signal("go", "on")
            assert await notified.result(5) == "on"
            await engine.advance("800 days")
            with pytest.raises(WorkflowFailed) as caught:
                await late.result(5)
            assert caught.value.status == "timed_out"

    asyncio.run(scenario())


def test_runs_that_are_due_at_the_same_moment_may_end_each_other():
    @workflow
    async def sleeps(ctx: Context) -> str:
        await ctx.sleep(60)
        return "slept"

    @workflow
    async def above(ctx: Context) -> str:
        try:
            async with asyncio.timeout(60):
                return await ctx.child(sleeps)
        except TimeoutError:
            return "too late"

    async def scenario():
        async with TestEngine([sleeps, above]) as engine:
            handles = [await engine.start(above) for _ in range(10)]
            await engine.advance(60)
            return [await handle.result(5) for handle in handles]

    assert set(asyncio.run(scenario())) <= {"too late", "slept"}


def test_the_beginning_needs_a_time_zone():
    with pytest.raises(InvalidOption, match="time zone"):
        TestEngine([remind], start=datetime(2026, 1, 1))  # noqa: DTZ001
