"""A timeout of 0 means "what is there now": a signal that is there is taken, and nothing is begun for nothing."""

from __future__ import annotations

import asyncio

import pytest

from holdfast import Context, InvalidValue, step, workflow
from holdfast.testing import TestEngine
from waiting import eventually_async
from watching import suspended


async def by_timeout_of_ctx(ctx):
    return await ctx.wait_for_signal("word", timeout=0)


async def by_asyncio_timeout(ctx):
    async with asyncio.timeout(0):
        return await ctx.wait_for_signal("word")


async def by_timeout_in_the_past(ctx):
    async with asyncio.timeout_at(asyncio.get_running_loop().time() - 5):
        return await ctx.wait_for_signal("word")


async def by_wait_for(ctx):
    return await asyncio.wait_for(ctx.wait_for_signal("word"), 0)


WAYS = [by_timeout_of_ctx, by_asyncio_timeout, by_timeout_in_the_past, by_wait_for]


@pytest.mark.parametrize("poll", WAYS, ids=lambda way: way.__name__)
def test_a_poll_takes_a_signal_that_is_there_and_ends_where_there_is_none(url, played, engine_on, poll):
    """The signal is sent by a step: it is in the store when the workflow polls, whether its hint has come or not."""

    @workflow
    async def polling(ctx: Context) -> list[str]:
        found = []
        for word in ("one", "two"):
            await ctx.step("send", send, ctx.run_id, word)
            found.append(await poll(ctx))
        try:
            found.append(await poll(ctx))
        except TimeoutError:
            found.append("nothing")
        return found

    async def send(run, word):
        await engines[0].signal(run, "word", word)

    engines = []

    async def story():
        async with engine_on(url, [polling]) as engine:
            engines.append(engine)
            handle = await engine.start(polling)
            assert await handle.result(timeout=20) == ["one", "two", "nothing"]

    played(story)


def test_all_signals_that_wait_are_taken_at_once_and_replayed_alike(url, played, engine_on):
    @workflow
    async def collecting(ctx: Context) -> list[list[int]]:
        await ctx.wait_for_signal("go")
        found = [await ctx.signals("word", type=int)]
        found.append(await ctx.signals("word"))
        await ctx.wait_for_signal("end")  # parked and replayed here
        found.append(await ctx.signals("word", type=int))
        return found

    async def story():
        async with engine_on(url, [collecting], park_after=0.01) as engine:
            handle = await engine.start(collecting)
            for n in range(3):
                await handle.signal("word", n)
            await handle.signal("go")
            await eventually_async(lambda: parked(handle, 7))
            for n in (7, 8):
                await handle.signal("word", n)
            await handle.signal("end")
            assert await handle.result(timeout=20) == [[0, 1, 2], [], [7, 8]]

    async def parked(handle, entries):
        return await suspended(handle) and (await handle.info()).entries >= entries

    played(story)


def test_a_step_under_a_timeout_of_0_is_not_begun(url, played, engine_on):
    begun = []

    @step
    def effect() -> None:
        begun.append(1)

    @workflow
    async def impatient(ctx: Context) -> str:
        for wait in (asyncio.wait_for, within):
            try:
                await wait(effect(), 0)
            except TimeoutError:
                continue
            return "it came"
        return "it did not"

    async def within(call, seconds):
        async with asyncio.timeout(seconds):
            await call

    async def story():
        async with engine_on(url, [impatient]) as engine:
            assert await (await engine.start(impatient)).result(timeout=20) == "it did not"

    played(story)
    assert begun == []


def test_a_lock_that_is_free_is_taken_under_a_timeout_of_0_and_one_that_is_held_is_not(url, played, engine_on):
    @workflow
    async def trying(ctx: Context, key: str) -> str:
        try:
            async with asyncio.timeout(0), ctx.mutex(key):
                return "taken"
        except TimeoutError:
            return "busy"

    @workflow
    async def holding(ctx: Context) -> None:
        async with ctx.mutex("held", scope="global"):
            await ctx.wait_for_signal("go")

    @workflow
    async def trying_held(ctx: Context) -> str:
        try:
            async with asyncio.timeout(0), ctx.mutex("held", scope="global"):
                return "taken"
        except TimeoutError:
            return "busy"

    async def story():
        async with engine_on(url, [trying, holding, trying_held]) as engine:
            assert await (await engine.start(trying, "free")).result(timeout=20) == "taken"
            holder = await engine.start(holding)
            await eventually_async(lambda: has_lock(holder))
            assert await (await engine.start(trying_held)).result(timeout=20) == "busy"
            await holder.signal("go")
            await holder.result()

    async def has_lock(handle):
        return bool((await handle.info()).locks)

    played(story)


def test_polls_need_no_moving_of_the_clock_in_a_test_engine(played):
    @workflow
    async def polling(ctx: Context) -> list[str]:
        await ctx.wait_for_signal("go")
        return await ctx.signals("word")

    async def story():
        async with TestEngine([polling]) as engine:
            handle = await engine.start(polling)
            await handle.signal("word", "there")
            await handle.signal("go")
            assert await handle.result(timeout=20) == ["there"]

    played(story)


def test_a_poll_ends_although_the_clock_was_set_back(played, engine_on):
    """The time of the workflow is that of its last entry: the store's may be behind it."""

    @workflow
    async def polling(ctx: Context) -> list[str]:
        await ctx.step("set the clock back", set_back)
        return await ctx.signals("word")

    def set_back():
        engines[0]._worker._offset -= 3_600_000_000

    engines = []

    async def story():
        async with engine_on("memory://", [polling]) as engine:
            engines.append(engine)
            engine._worker._sync = lambda now, force=False: None
            assert await (await engine.start(polling)).result(timeout=20) == []

    played(story)


def test_a_branch_that_polls_does_not_keep_the_steps_of_others_from_beginning(url, played, engine_on):
    @workflow
    async def both(ctx: Context) -> int:
        polls = 0

        async def poll():
            nonlocal polls
            while not done:
                await ctx.signals("word")
                polls += 1

        done: list[int] = []
        polling = asyncio.create_task(poll())
        await asyncio.sleep(0)
        done.append(await ctx.step("work", int))
        await polling
        return polls

    async def story():
        async with engine_on(url, [both]) as engine:
            assert await (await engine.start(both)).result(timeout=20) > 0

    played(story)


async def signals_within_timeout(ctx):
    async with asyncio.timeout(0):
        return await ctx.signals("word")


async def signals_within_wait_for(ctx):
    return await asyncio.wait_for(ctx.signals("word"), 0)


async def signals_within_two(ctx):
    async with asyncio.timeout(0), asyncio.timeout(0):
        return await ctx.signals("word")


@pytest.mark.parametrize("poll", [signals_within_timeout, signals_within_wait_for, signals_within_two])
def test_signals_that_were_taken_within_a_timeout_of_0_are_not_lost(url, played, engine_on, poll):
    @workflow
    async def polling(ctx: Context) -> list[list[int]]:
        await ctx.wait_for_signal("go")
        return [await poll(ctx), await poll(ctx)]

    async def story():
        async with engine_on(url, [polling]) as engine:
            handle = await engine.start(polling)
            for n in range(3):
                await handle.signal("word", n)
            await handle.signal("go")
            assert await handle.result(timeout=20) == [[0, 1, 2], []]

    played(story)


def test_two_branches_that_poll_both_go_on(url, played, engine_on):
    @workflow
    async def polling(ctx: Context) -> list[int]:
        async def poll(name):
            return sum([len(await ctx.signals(name)) for _ in range(20)])

        return await asyncio.gather(poll("a"), poll("b"))

    async def story():
        async with engine_on(url, [polling]) as engine:
            assert await (await engine.start(polling)).result(timeout=20) == [0, 0]

    played(story)


def test_a_signal_that_cannot_be_read_takes_no_others_along(url, played, engine_on):
    @workflow
    async def reading(ctx: Context) -> list[list[int] | str]:
        await ctx.wait_for_signal("go")
        found = [await ctx.signals("word", type=int)]
        try:
            await ctx.signals("word", type=int)
        except InvalidValue:
            found.append("unfit")
        found.append(await ctx.signals("word", type=int))
        return found

    async def story():
        async with engine_on(url, [reading]) as engine:
            handle = await engine.start(reading)
            for word in (1, "bad", 3):
                await handle.signal("word", word)
            await handle.signal("go")
            assert await handle.result(timeout=20) == [[1], "unfit", [3]]

    played(story)
