"""Sleeps, timeouts and retries: by the clock of the store, across replays, counted once."""

from __future__ import annotations

import asyncio
import threading
from datetime import timedelta

import pytest
from waiting import eventually_async

from holdfast import AsyncClient, Context, Retry, WorkflowFailed, current_step, step, workflow
from holdfast.testing import TestEngine


async def _has_status(hf, run, status):
    return (await hf.runs.get(run)).status == status


async def _has_entries(hf, run, many):
    return (await hf.runs.get(run)).entries == many


# -- sleeping ---------------------------------------------------------------------------------------------------


def test_a_sleep_ends_at_its_time_whichever_engine_drives_the_run(url, played, engine_on):
    """The time at which it ends is the same after a replay; it does not begin again."""

    @workflow
    async def sleeps(ctx: Context) -> str:
        await ctx.sleep("1 day")
        return "slept"

    async def scenario():
        async with AsyncClient(url) as hf:
            due = []
            for _ in range(3):
                async with engine_on(url, [sleeps], park_after=0.02) as engine:
                    if not due:
                        await engine.start(sleeps, id="r")
                    else:
                        await engine.resume("r")
                    await eventually_async(lambda: _has_status(hf, "r", "suspended"))
                    due.append((await hf.runs.get("r")).due_at)
            return due, (await hf.runs.get("r")).created_at

    due, created = played(scenario)
    assert len(set(due)) == 1
    assert due[0] > created


def test_the_timeout_of_a_run_begins_when_it_is_first_driven(url, played, engine_on):
    @workflow
    async def sleeps(ctx: Context) -> None:
        await ctx.sleep("1 day")

    @workflow
    async def waits(ctx: Context) -> None:
        await ctx.wait_for_signal("never", timeout="1 day")

    async def scenario():
        async with AsyncClient(url) as hf:
            for flow in (sleeps, waits):
                await hf.runs.start(flow, id=flow.name)
            found = []
            for _ in range(2):
                async with engine_on(url, [sleeps, waits], park_after=0.02):
                    for run in ("sleeps", "waits"):
                        await eventually_async(lambda run=run: _has_status(hf, run, "suspended"))
                found += [await hf.runs.get(run) for run in ("sleeps", "waits")]
            return found

    for run in played(scenario):
        assert run.created_at < run.started_at
        assert run.due_at - run.started_at == timedelta(days=1)


def test_a_restarted_workflow_begins_its_timeout_again():
    @workflow(retry=Retry(max_attempts=2, initial="1 hour", max_delay="1 day", jitter=False))
    async def flow(ctx: Context) -> str:
        begun = ctx.now()
        if ctx.attempt == 1:
            raise ValueError("again")
        await ctx.sleep("30 minutes")
        return str(ctx.now() - begun)

    async def scenario():
        async with TestEngine([flow]) as engine:
            handle = await engine.start(flow)
            await engine.advance("89 minutes")
            assert await handle.status() == "running"
            await engine.advance("1 minute")
            return await handle.result(5)

    assert asyncio.run(scenario()) == "0:30:00"


def test_a_run_whose_sleep_ended_without_a_worker_continues_at_once(url, played, engine_on):
    @workflow
    async def sleeps(ctx: Context) -> bool:
        before = ctx.now()
        await ctx.sleep(0.3)
        return (ctx.now() - before).total_seconds() >= 0.3

    async def scenario():
        async with AsyncClient(url) as hf:
            async with engine_on(url, [sleeps]) as engine:
                await engine.start(sleeps, id="r")
            assert (await hf.runs.get("r")).status == "suspended"
            await asyncio.sleep(0.3)
            async with engine_on(url, [sleeps]) as engine:
                return await engine.handle("r").result(10)

    assert played(scenario) is True


def test_a_signal_in_time_is_not_followed_by_its_timeout_and_one_too_late_is_kept():
    @workflow
    async def waits(ctx: Context) -> list[str]:
        got = []
        for _ in range(2):
            try:
                got.append(await ctx.wait_for_signal("word", timeout="1 hour"))
            except TimeoutError:
                got.append("nobody")
        await ctx.sleep("1 day")
        got.append(await ctx.wait_for_signal("word"))
        return got

    async def scenario():
        async with TestEngine([waits]) as engine:
            handle = await engine.start(waits)
            await engine.advance("59 minutes")
            await handle.signal("word", "in time")
            await engine.advance("59 minutes")
            assert await handle.status() == "running"
            await engine.advance("1 hour")
            await handle.signal("word", "too late")
            await engine.advance("1 day")
            return await handle.result(5)

    assert asyncio.run(scenario()) == ["in time", "nobody", "too late"]


def test_waiting_for_a_signal_times_out_after_a_replay_too(url, played, engine_on):
    @workflow
    async def waits(ctx: Context) -> str:
        try:
            return await ctx.wait_for_signal("never", timeout=0.3)
        except TimeoutError:
            return "nobody"

    async def scenario():
        async with engine_on(url, [waits]) as engine:
            await engine.start(waits, id="r")
        async with engine_on(url, [waits]) as engine:
            return await engine.handle("r").result(10)

    assert played(scenario) == "nobody"


# -- the timeout of a workflow ------------------------------------------------------------------------------------


def test_the_timeout_of_a_workflow_continues_while_it_is_parked_and_after_a_replay(url, played, engine_on):
    @workflow(timeout=0.4)
    async def waits(ctx: Context) -> None:
        try:
            await ctx.wait_for_signal("never")
        finally:
            await ctx.step("tidy", lambda: None)

    async def scenario():
        async with AsyncClient(url) as hf:
            async with engine_on(url, [waits], park_after=0.02) as engine:
                await engine.start(waits, id="r")
                await eventually_async(lambda: _has_status(hf, "r", "suspended"))
                due = (await hf.runs.get("r")).due_at
            async with engine_on(url, [waits], park_after=0.02) as engine:
                with pytest.raises(WorkflowFailed) as caught:
                    await engine.handle("r").result(10)
            info = await hf.runs.get("r")
            assert caught.value.status == info.status == "timed_out"
            assert (due - info.started_at).total_seconds() == pytest.approx(0.4)
            return info.entries

    assert played(scenario) == 4, "the input, its beginning, the end of its time, and the step on the way out"


def test_the_timeout_of_a_workflow_covers_all_its_attempts():
    retry = Retry(max_attempts=100, initial="20 minutes", factor=1, max_delay="1 day", jitter=False)

    @workflow(timeout="1 hour", retry=retry)
    async def fails(ctx: Context) -> None:
        raise ValueError(f"attempt {ctx.attempt}")

    async def scenario():
        async with TestEngine([fails]) as engine:
            handle = await engine.start(fails)
            await engine.advance("39 minutes")
            assert await handle.status() == "suspended"
            await engine.advance("2 minutes")
            with pytest.raises(WorkflowFailed) as caught:
                await handle.result(5)
            return caught.value.status, caught.value.detail

    assert asyncio.run(scenario()) == ("timed_out", "attempt 3"), "the fourth would begin after an hour"


@pytest.mark.parametrize("how", ["retry", "restart"])
def test_a_run_that_is_retried_by_hand_has_its_full_timeout_again(how):
    broken = [True]

    @workflow(timeout="1 hour")
    async def flow(ctx: Context) -> str:
        if broken[0]:
            raise ValueError("broken")
        await ctx.sleep("59 minutes")
        return "mended"

    async def scenario():
        async with TestEngine([flow]) as engine:
            handle = await engine.start(flow)
            await engine.advance("1 day")
            assert await handle.status() == "failed"
            broken[0] = False
            await (engine.retry if how == "retry" else engine.restart)(handle.id)
            await engine.advance("59 minutes")
            return await handle.result(5)

    assert asyncio.run(scenario()) == "mended"


@pytest.mark.parametrize("first", ["step", "transaction"])
def test_the_time_that_a_run_sees_is_the_same_after_a_retry_by_hand(tmp_path, played, engine_on, first):
    """The time that was an argument of a step before the retry is the same after it."""
    url = f"sqlite:///{tmp_path}/runs.db"
    broken, begun = [True], []

    def last():
        if broken[0]:
            raise ValueError("broken")
        return "mended"

    @workflow(timeout="1 hour")
    async def flow(ctx: Context) -> str:
        begun.append(ctx.now())
        if first == "transaction":
            await ctx.transaction("one", lambda connection, when: None, begun[-1].isoformat())
        await ctx.step("two", lambda when: None, begun[-1].isoformat())
        return await ctx.step("last", last)

    async def scenario():
        async with AsyncClient(url) as hf, engine_on(url, [flow]) as engine:
            await hf.runs.start(flow, id="r")
            with pytest.raises(WorkflowFailed, match="broken"):
                await engine.handle("r").result(10)
            before = await hf.runs.get("r")
            broken[0] = False
            await hf.runs.retry("r")
            assert await engine.handle("r").result(10) == "mended"
            return before, await hf.runs.get("r")

    before, after = played(scenario)
    assert before.started_at < after.started_at, "it has all its time again"
    assert set(begun) == {before.started_at}


# -- the timeout of an attempt, and further attempts --------------------------------------------------------------


@pytest.mark.parametrize("sync", [True, False])
def test_each_attempt_of_a_step_has_its_own_timeout(url, played, engine_on, sync):
    tries = []

    async def slow() -> str:
        tries.append(current_step().attempt)
        if len(tries) < 3:
            await asyncio.sleep(60)
        return "in time"

    def blocking() -> str:
        tries.append(current_step().attempt)
        if len(tries) < 3:
            over.wait(10)
        return "in time"

    over = threading.Event()

    @workflow
    async def flow(ctx: Context) -> str:
        retry = Retry(max_attempts=3, initial=0.01)
        return await ctx.step("slow", blocking if sync else slow, timeout=0.2, retry=retry)

    async def scenario():
        async with engine_on(url, [flow]) as engine:
            try:
                return await (await engine.start(flow)).result(10)
            finally:
                over.set()

    assert played(scenario) == "in time"
    assert tries == [1, 2, 3]


def test_failed_attempts_and_the_delay_after_them_survive_the_engine(url, played, engine_on):
    tries = []

    @step(retry=Retry(max_attempts=3, initial=0.2, factor=1, jitter=False))
    async def flaky() -> int:
        tries.append(current_step().attempt)
        raise ConnectionError("away")

    @workflow
    async def flow(ctx: Context) -> None:
        await flaky()

    async def scenario():
        async with AsyncClient(url) as hf:
            await hf.runs.start(flow, id="r")
            for life in range(1, 3):
                async with engine_on(url, [flow]):
                    await eventually_async(lambda many=life + 1: _has_entries(hf, "r", many))
            async with engine_on(url, [flow]) as engine:
                with pytest.raises(WorkflowFailed, match="away") as caught:
                    await engine.handle("r").result(10)
                return caught.value.kind

    assert played(scenario) == "ConnectionError"
    assert tries == [1, 2, 3]


class DeclinedError(Exception):
    pass


class BlockedError(DeclinedError):
    pass


@pytest.mark.parametrize(
    ("error", "give_up_on", "times"),
    [
        (DeclinedError, (), 3),
        (DeclinedError, (DeclinedError,), 1),
        (BlockedError, (DeclinedError,), 1),
        (DeclinedError, (BlockedError,), 3),
        (KeyError, (OSError, LookupError), 1),
        (DeclinedError, DeclinedError, 1),
    ],
)
@pytest.mark.parametrize("where", ["step", "workflow"])
def test_exceptions_that_are_not_retryable_are_not_retried(error, give_up_on, times, where):
    tries = []
    retry = Retry(max_attempts=3, initial=60, give_up_on=give_up_on)

    async def fails():
        tries.append(1)
        raise error("no")

    @workflow(name="step")
    async def in_a_step(ctx: Context) -> None:
        await ctx.step("fails", fails, retry=retry)

    @workflow(name="workflow", retry=retry)
    async def itself(ctx: Context) -> None:
        await fails()

    flow = in_a_step if where == "step" else itself

    async def scenario():
        async with TestEngine([flow]) as engine:
            handle = await engine.start(flow)
            await engine.advance("1 hour")
            with pytest.raises(WorkflowFailed) as caught:
                await handle.result(5)
            return caught.value.kind

    assert asyncio.run(scenario()).endswith(error.__name__)
    assert len(tries) == times


def test_a_timeout_of_an_attempt_can_be_excluded_from_retries(played, engine_on):
    tries = []

    async def slow():
        tries.append(1)
        await asyncio.sleep(60)

    @workflow
    async def flow(ctx: Context) -> str:
        try:
            await ctx.step("slow", slow, timeout=0.02, retry=Retry(max_attempts=3, give_up_on=(TimeoutError,)))
        except TimeoutError as error:
            return error.kind

    async def scenario():
        async with engine_on("memory://", [flow]) as engine:
            return await (await engine.start(flow)).result(10)

    assert played(scenario) == "holdfast.errors.StepTimeout"
    assert len(tries) == 1
