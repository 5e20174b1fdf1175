"""A timeout of 0 polls: an existing signal is taken, and no step is begun in vain."""

from __future__ import annotations

import asyncio

import pytest
from inspect_runs import suspended
from waiting import eventually_async

from holdfast import Context, step, workflow
from holdfast.errors import InvalidValue
from holdfast.testing import TestEngine


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


async def by_wait_for_of_a_task_that_has_begun(ctx):
    task = asyncio.create_task(ctx.wait_for_signal("word"))
    await asyncio.sleep(0)
    return await asyncio.wait_for(task, 0)


async def by_wait_for_of_a_shield(ctx):
    return await asyncio.wait_for(asyncio.shield(ctx.wait_for_signal("word")), 0)


async def by_wait_for_of_what_gather_returns(ctx):
    (word,) = await asyncio.wait_for(asyncio.gather(ctx.wait_for_signal("word")), 0)
    return word


async def by_wait_for_of_a_future_that_another_task_sets(ctx):
    future = asyncio.get_running_loop().create_future()

    async def pass_on():
        future.set_result(await ctx.wait_for_signal("word"))

    task = asyncio.create_task(pass_on())
    try:
        return await asyncio.wait_for(future, 0)
    finally:
        task.cancel()


async def by_asyncio_wait(ctx):
    task = asyncio.create_task(ctx.wait_for_signal("word"))
    await asyncio.wait({task}, timeout=0)
    if not task.done():
        raise TimeoutError
    return task.result()


async def by_as_completed(ctx):
    return await next(iter(asyncio.as_completed([ctx.wait_for_signal("word")], timeout=0)))


WAYS = [
    by_timeout_of_ctx,
    by_asyncio_timeout,
    by_timeout_in_the_past,
    by_wait_for,
    by_wait_for_of_a_task_that_has_begun,
    by_wait_for_of_a_shield,
    by_wait_for_of_what_gather_returns,
    by_wait_for_of_a_future_that_another_task_sets,
    by_asyncio_wait,
    by_as_completed,
]


@pytest.mark.parametrize("poll", WAYS, ids=lambda way: way.__name__)
def test_a_poll_takes_an_existing_signal_and_ends_if_there_is_none(url, played, engine_on, poll):
    """The signal is sent by a step: it is in the store when the workflow polls, and no hint of it arrives."""

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

    async def scenario():
        async with engine_on(url, [polling]) as engine:
            engines.append(engine)
            engine._worker._notified = lambda runs: None
            handle = await engine.start(polling)
            assert await handle.result(timeout=20) == ["one", "two", "nothing"]

    played(scenario)


def test_all_existing_signals_are_taken_at_once_and_replayed_equally(url, played, engine_on):
    @workflow
    async def collecting(ctx: Context) -> list[list[int]]:
        await ctx.wait_for_signal("go")
        found = [await ctx.signals("word", type=int)]
        found.append(await ctx.signals("word"))
        await ctx.wait_for_signal("end")  # parked and replayed here
        found.append(await ctx.signals("word", type=int))
        return found

    async def scenario():
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

    played(scenario)


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

    async def scenario():
        async with engine_on(url, [impatient]) as engine:
            assert await (await engine.start(impatient)).result(timeout=20) == "it did not"

    played(scenario)
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

    async def scenario():
        async with engine_on(url, [trying, holding, trying_held]) as engine:
            assert await (await engine.start(trying, "free")).result(timeout=20) == "taken"
            holder = await engine.start(holding)
            await eventually_async(lambda: has_lock(holder))
            assert await (await engine.start(trying_held)).result(timeout=20) == "busy"
            await holder.signal("go")
            await holder.result()

    async def has_lock(handle):
        return bool((await handle.info()).locks)

    played(scenario)


def test_polls_in_a_test_engine_end_without_advancing_the_clock(played):
    @workflow
    async def polling(ctx: Context) -> list[str]:
        await ctx.wait_for_signal("go")
        return await ctx.signals("word")

    async def scenario():
        async with TestEngine([polling]) as engine:
            handle = await engine.start(polling)
            await handle.signal("word", "there")
            await handle.signal("go")
            assert await handle.result(timeout=20) == ["there"]

    played(scenario)


def test_a_poll_ends_although_the_clock_was_set_back(played, engine_on):
    """The time of the workflow is that of its last entry: the store's may be behind it."""

    @workflow
    async def polling(ctx: Context) -> list[str]:
        await ctx.step("set the clock back", set_back)
        return await ctx.signals("word")

    def set_back():
        engines[0]._worker._offset -= 3_600_000_000

    engines = []

    async def scenario():
        async with engine_on("memory://", [polling]) as engine:
            engines.append(engine)
            engine._worker._sync = lambda now, force=False: None
            assert await (await engine.start(polling)).result(timeout=20) == []

    played(scenario)


def test_a_polling_task_does_not_prevent_the_steps_of_other_tasks(url, played, engine_on):
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

    async def scenario():
        async with engine_on(url, [both]) as engine:
            assert await (await engine.start(both)).result(timeout=20) > 0

    played(scenario)


async def signals_within_timeout(ctx):
    async with asyncio.timeout(0):
        return await ctx.signals("word")


async def signals_within_wait_for(ctx):
    return await asyncio.wait_for(ctx.signals("word"), 0)


async def signals_within_two(ctx):
    async with asyncio.timeout(0), asyncio.timeout(0):
        return await ctx.signals("word")


async def signals_of_a_task_that_has_begun(ctx):
    task = asyncio.create_task(ctx.signals("word"))
    await asyncio.sleep(0)
    return await asyncio.wait_for(task, 0)


async def signals_within_a_gathering(ctx):
    (found,) = await asyncio.wait_for(asyncio.gather(ctx.signals("word")), 0)
    return found


async def signals_within_a_gathering_within_timeout(ctx):
    async with asyncio.timeout(0):
        (found,) = await asyncio.gather(ctx.signals("word"))
        return found


async def signals_within_a_group(ctx):
    async with asyncio.timeout(0), asyncio.TaskGroup() as group:
        task = group.create_task(ctx.signals("word"))
    return task.result()


async def signals_within_another_wait_for(ctx):
    async with asyncio.timeout(0):
        return await asyncio.wait_for(ctx.signals("word"), 60)


async def signals_within_a_shield(ctx):
    return await asyncio.wait_for(asyncio.shield(ctx.signals("word")), 0)


async def signals_of_several_tasks(ctx):
    tasks = [asyncio.create_task(ctx.signals("word"))]
    done, _ = await asyncio.wait(tasks, timeout=0)
    return done.pop().result()


AROUND = [
    signals_within_timeout,
    signals_within_wait_for,
    signals_within_two,
    signals_of_a_task_that_has_begun,
    signals_within_a_gathering,
    signals_within_a_gathering_within_timeout,
    signals_within_a_group,
    signals_within_another_wait_for,
    signals_within_a_shield,
    signals_of_several_tasks,
]


@pytest.mark.parametrize("poll", AROUND, ids=lambda way: way.__name__)
def test_signals_that_were_taken_within_a_timeout_of_0_are_not_lost(url, played, engine_on, poll):
    @workflow
    async def polling(ctx: Context) -> list[list[int]]:
        await ctx.wait_for_signal("go")
        return [await poll(ctx), await poll(ctx)]

    async def scenario():
        async with engine_on(url, [polling]) as engine:
            handle = await engine.start(polling)
            for n in range(3):
                await handle.signal("word", n)
            await handle.signal("go")
            assert await handle.result(timeout=20) == [[0, 1, 2], []]

    played(scenario)


async def wait_for_shielded(task):
    try:
        await asyncio.wait_for(asyncio.shield(task), 0)
    except TimeoutError:
        return
    raise AssertionError


async def shielded_within_timeout(task):
    try:
        async with asyncio.timeout(0):
            await asyncio.shield(task)
    except TimeoutError:
        return
    raise AssertionError


async def waited_for(task):
    _, pending = await asyncio.wait({task}, timeout=0)
    assert pending == {task}


@pytest.mark.parametrize("poll", [wait_for_shielded, shielded_within_timeout, waited_for], ids=lambda way: way.__name__)
def test_a_poll_ends_although_a_shielded_task_polls_forever(url, played, engine_on, poll):
    @workflow
    async def watching(ctx: Context) -> int:
        async def poll_forever():
            while True:
                await ctx.signals("word")

        task = asyncio.create_task(poll_forever())
        for _ in range(3):
            await poll(task)
        task.cancel()
        return 3

    async def scenario():
        async with engine_on(url, [watching]) as engine:
            assert await (await engine.start(watching)).result(timeout=20) == 3

    played(scenario)


def test_tasks_that_wait_for_each_other_do_not_prevent_the_end_of_a_poll(played, engine_on):
    @workflow
    async def waiting(ctx: Context) -> list[str]:
        tasks = {}

        async def wait_for(name):
            await asyncio.sleep(0)
            try:
                async with asyncio.timeout(0):
                    return await asyncio.shield(tasks[name])
            except TimeoutError:
                return "gave up"

        tasks |= {"a": asyncio.create_task(wait_for("b")), "b": asyncio.create_task(wait_for("a"))}
        return await asyncio.gather(*tasks.values())

    async def scenario():
        async with engine_on("memory://", [waiting]) as engine:
            assert await (await engine.start(waiting)).result(timeout=20) == ["gave up", "gave up"]

    played(scenario)


def test_two_polling_tasks_both_continue(url, played, engine_on):
    @workflow
    async def polling(ctx: Context) -> list[int]:
        async def poll(name):
            return sum([len(await ctx.signals(name)) for _ in range(20)])

        return await asyncio.gather(poll("a"), poll("b"))

    async def scenario():
        async with engine_on(url, [polling]) as engine:
            assert await (await engine.start(polling)).result(timeout=20) == [0, 0]

    played(scenario)


def test_an_unreadable_signal_does_not_affect_other_signals(url, played, engine_on):
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

    async def scenario():
        async with engine_on(url, [reading]) as engine:
            handle = await engine.start(reading)
            for word in (1, "bad", 3):
                await handle.signal("word", word)
            await handle.signal("go")
            assert await handle.result(timeout=20) == [[1], "unfit", [3]]

    played(scenario)


def test_what_a_cancelled_call_of_signals_has_received_is_read_by_the_next_one(url, played, engine_on):
    @workflow
    async def polls(ctx, _none: None):
        await ctx.wait_for_signal("begin")
        first = asyncio.create_task(ctx.signals("n"))
        await ctx.wait_for_signal("now")
        first.cancel()
        await asyncio.wait([first])
        one = await ctx.wait_for_signal("n")
        return [one, *(await ctx.signals("n"))]

    async def scenario():
        async with engine_on(url, [polls]) as engine:
            handle = await engine.start(polls)
            for name, payload in (("n", 1), ("n", 2), ("now", None), ("begin", None)):
                await handle.signal(name, payload)
            return await handle.result()

    assert played(scenario) == [1, 2]
