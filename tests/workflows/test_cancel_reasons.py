"""The reason of a cancel: in the code of the run, in its error, and in what is shown of it. The first one counts."""

from __future__ import annotations

import asyncio

import pytest
from waiting import eventually_async, until_status

from holdfast import AsyncClient, Client, Concurrency, Context, Retry, WorkflowFailed, step, workflow
from holdfast.errors import InvalidOption
from holdfast.testing import TestEngine


@step
async def note(text: str) -> str:
    return text


@workflow
async def sleeper(ctx: Context) -> None:
    await ctx.sleep("1 day")


@workflow
async def telling(ctx: Context) -> list[str | None]:
    """Returns what it knows about its cancel."""
    found = [ctx.cancel_reason]
    try:
        await ctx.sleep("1 day")
    except asyncio.CancelledError as error:
        found += [str(error), ctx.cancel_reason]
        await note("tidied")
        await ctx.wait_for_signal("go")
    return [*found, ctx.cancel_reason]


async def there(engine, run):
    """Wait until a run was started."""

    async def is_there():
        return bool((await engine.list(prefix=run)).runs)

    await eventually_async(is_there)


async def failure(handle):
    with pytest.raises(WorkflowFailed) as caught:
        await handle.result(20)
    return caught.value


def test_the_reason_of_a_cancel_is_in_the_run_in_its_error_and_in_its_info(url, played, engine_on):
    async def scenario():
        async with engine_on(url, [sleeper], park_after=0.05) as engine:
            handle = await engine.start(sleeper, id="r")
            await until_status(engine, "r", "suspended")
            await handle.cancel("the order was withdrawn é")
            error = await failure(handle)
            assert error.status == "cancelled"
            assert str(error) == (
                "the run 'r' of 'sleeper' is cancelled: asyncio.exceptions.CancelledError: the workflow code was "
                "cancelled: the order was withdrawn é."
            )
            assert (await handle.info()).cancel_reason == "the order was withdrawn é"
            assert (await engine.retry("r")).cancel_reason is None, "the retry forgets the cancel"

    played(scenario)


def test_the_code_reads_the_reason_and_reads_the_same_in_a_replay(url, played, engine_on):
    async def scenario():
        async with engine_on(url, [telling], park_after=0.05) as engine:
            handle = await engine.start(telling, id="r")
            await handle.cancel("why not")
            await handle.cancel("another reason")
            await until_status(engine, "r", "suspended")
            await handle.signal("go")
            assert await handle.result(20) == [None, "why not", "why not", "why not"]
            assert (await handle.info()).cancel_reason == "why not"

    played(scenario)


def test_a_cancel_without_a_reason_has_none(url, played, engine_on):
    async def scenario():
        async with engine_on(url, [telling]) as engine:
            handle = await engine.start(telling, id="r")
            await handle.cancel()
            await engine.cancel("r", reason="too late: the first cancel counts")
            await handle.signal("go")
            assert await handle.result(20) == [None, "", None, None]
            assert (await handle.info()).cancel_reason is None

    played(scenario)


def test_a_run_that_is_cancelled_before_it_begins_has_the_reason(played, engine_on, tmp_path):
    url = f"sqlite:///{tmp_path}/hf.db"
    with Client(url) as hf:
        hf.runs.start("sleeper", id="r")
        hf.runs.cancel("r", reason="not needed")
        with pytest.raises(WorkflowFailed, match=r"cancelled before it began: not needed\.$"):
            hf.runs.result("r", 1)
        assert hf.runs.get("r").cancel_reason == "not needed"

    async def scenario():
        async with AsyncClient(url) as hf:
            await hf.runs.start("sleeper", id="s")
            await hf.runs.cancel("s", reason="nor this")
            assert (await hf.runs.get("s")).cancel_reason == "nor this"

    played(scenario)


def test_children_have_the_reason_of_their_parent(url, played, engine_on):
    @workflow
    async def middle(ctx: Context) -> None:
        await ctx.child(sleeper)

    @workflow
    async def top(ctx: Context) -> None:
        await ctx.child(middle)

    async def scenario():
        async with engine_on(url, [top, middle, sleeper], park_after=0.05) as engine:
            handle = await engine.start(top, id="t")
            await there(engine, "t/middle/sleeper")
            await until_status(engine, "t/middle/sleeper", "suspended")
            await handle.cancel("enough")
            await failure(handle)
            low = await until_status(engine, "t/middle/sleeper", "cancelled")
            assert low.cancel_reason == ("cancelled by the parent run t/middle: cancelled by the parent run t: enough")

    played(scenario)


def test_a_handle_gives_its_child_a_reason_and_the_parent_gets_it_back(url, played, engine_on):
    @workflow
    async def parent(ctx: Context) -> str:
        child = await ctx.start_child(telling)
        await ctx.wait_for_signal("go")
        await child.cancel("no room")
        other = await ctx.start_child(sleeper)
        await other.cancel("no time")
        await child.signal("go")
        found = await child.result()
        with pytest.raises(WorkflowFailed) as caught:
            await other.result()
        return f"{found[-1]}; {caught.value.detail}"

    async def scenario():
        async with engine_on(url, [parent, sleeper, telling]) as engine:
            handle = await engine.start(parent, id="p")
            await there(engine, "p/telling")
            await until_status(engine, "p/telling", "running")
            await handle.signal("go")
            told = await handle.result(20)
            assert told.startswith("cancelled by the parent run p: no room; ")
            assert told.endswith("cancelled by the parent run p: no time")

    played(scenario)


def test_children_of_a_run_that_times_out_or_whose_attempt_fails_have_that_as_the_reason(played):
    @workflow(timeout=60)
    async def slow(ctx: Context) -> None:
        await ctx.child(sleeper)

    @workflow(retry=Retry(max_attempts=2, initial=5))
    async def failing(ctx: Context) -> None:
        await ctx.start_child(sleeper)
        await ctx.sleep(1)
        raise ValueError

    async def scenario():
        async with TestEngine([slow, failing, sleeper]) as engine:
            await engine.start(slow, id="s")
            await engine.start(failing, id="f")
            await engine.advance(70)
            assert (await engine.get("s")).cancel_reason is None, "a timeout is no cancel"
            reasons = [(await engine.get(f"{run}/sleeper")).cancel_reason for run in "sf"]
            assert reasons == [
                "cancelled by the parent run s: its timeout has expired",
                "cancelled by the parent run f: its attempt 1 has failed",
            ]

    played(scenario)


def test_a_run_that_a_limit_has_cancelled_has_that_as_the_reason(url, played, engine_on):
    @workflow(concurrency=Concurrency(1, on_excess="cancel_oldest"))
    async def limited(ctx: Context) -> list[str | None]:
        try:
            await ctx.sleep("1 day")
        except asyncio.CancelledError:
            return [ctx.cancel_reason]
        return []

    async def scenario():
        async with engine_on(url, [limited]) as engine:
            old = await engine.start(limited, id="old")
            await until_status(engine, "old", "running")
            await engine.start(limited, id="new")
            reason = "the limit 'concurrency' was full when the run 'new' started"
            assert await old.result(20) == [reason]
            assert (await old.info()).cancel_reason == reason

    played(scenario)


def test_the_error_of_a_run_that_fails_while_it_is_cancelled_names_the_reason(url, played, engine_on):
    @workflow
    async def broken(ctx: Context) -> None:
        try:
            await ctx.sleep("1 day")
        finally:
            raise ValueError("cannot tidy")

    async def scenario():
        async with engine_on(url, [broken]) as engine:
            handle = await engine.start(broken, id="r")
            await eventually_async(lambda: "r" in engine._worker.drivers)
            await handle.cancel("shop closed")
            assert str(await failure(handle)).endswith("ValueError: cannot tidy (shop closed).")
            assert str(await failure(engine.handle("r"))).endswith("ValueError: cannot tidy (shop closed).")

    played(scenario)


def test_a_cancel_in_the_pause_between_two_attempts_has_a_reason(played):
    @workflow(retry=Retry(max_attempts=2, initial=60))
    async def failing(ctx: Context) -> None:
        raise ValueError

    async def scenario():
        async with TestEngine([failing]) as engine:
            handle = await engine.start(failing, id="r")
            await engine.settle()
            await handle.cancel("given up")
            error = await failure(handle)
            assert str(error).endswith("in the pause between two attempts: given up.")
            assert (await handle.info()).cancel_reason == "given up"

    played(scenario)


def test_a_reason_is_text_of_limited_length(played, engine_on):
    async def scenario():
        async with engine_on("memory://", [sleeper]) as engine:
            handle = await engine.start(sleeper, id="r")
            for wrong in (7, "x" * 2_001):
                with pytest.raises(InvalidOption, match="reason"):
                    await handle.cancel(wrong)
            assert (await handle.info()).living
            await handle.cancel("x" * 2_000)
            await failure(handle)

    played(scenario)
