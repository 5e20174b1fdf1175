"""Where asyncio iterates over a set, the order is the same in every replay."""

from __future__ import annotations

import asyncio

import pytest
from inspect_runs import suspended
from waiting import eventually_async

from holdfast import Context, WorkflowFailed, step, workflow


@step
async def work(n: int) -> int:
    await asyncio.sleep(0)
    return n


async def helper(n):
    return await work(n)


async def bare(ctx):
    return [await done for done in asyncio.as_completed([work(n) for n in range(8)])]


async def nested(ctx):
    return [await done for done in asyncio.as_completed(tuple(helper(n) for n in range(8)), timeout=60)]


async def mixed(ctx):
    tasks = [asyncio.create_task(helper(n)) if n % 2 else helper(n) for n in range(8)]
    return [await done for done in asyncio.as_completed([*tasks, tasks[0]])]


async def of_tasks(ctx):
    return [await done for done in asyncio.as_completed({asyncio.create_task(work(n)) for n in range(8)})]


async def waited(ctx):
    tasks = [asyncio.create_task(helper(n)) for n in range(8)]
    done, _ = await asyncio.wait(tasks)
    return [task.result() for task in done]


async def first_of_several(ctx):
    tasks = {asyncio.create_task(helper(n)) for n in range(8)}
    found = []
    while tasks:
        done, tasks = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        found += [await work(task.result() + 100) for task in done]
    return found


async def cancelled_group(ctx):
    async def cleaning(n):
        try:
            await ctx.sleep("1 day")
        finally:
            await work(n)

    async def failing():
        await work(99)
        raise ValueError

    try:
        async with asyncio.TaskGroup() as group:
            for n in range(8):
                group.create_task(cleaning(n))
            group.create_task(failing())
    except* ValueError:
        pass
    return [await work(n) for n in range(3)]


async def waited_gatherings(ctx):
    done, _ = await asyncio.wait([asyncio.gather(helper(n), helper(n + 10)) for n in range(8)])
    return [await work(sum(one.result())) for one in done]


async def gatherings_that_are_done(ctx):
    pairs = [asyncio.gather(helper(n), asyncio.gather(helper(n + 10))) for n in range(8)]
    await asyncio.gather(*pairs)
    return [await work((await done)[0]) for done in asyncio.as_completed(pairs)]


async def gatherings_and_tasks(ctx):
    left = {asyncio.gather(helper(n)) if n % 2 else asyncio.create_task(helper(n)) for n in range(8)}
    found = []
    while left:
        done, left = await asyncio.wait(left, timeout=60, return_when=asyncio.FIRST_COMPLETED)
        found += [await work(len(str(one.result()))) for one in done]
        found += [await work(int(isinstance(one, asyncio.Task))) for one in left]
    return found


async def polled(ctx):
    found = []
    for n in range(3):
        task = asyncio.create_task(helper(n))
        await asyncio.sleep(0)
        for poll in (asyncio.shield(task), asyncio.gather(task, ctx.signals("none")), task):
            try:
                await asyncio.wait_for(poll, 0)
                found.append(n)
            except (TimeoutError, asyncio.CancelledError):
                found.append(-1)
    tasks = [asyncio.create_task(helper(n)) for n in range(8)]
    done, left = await asyncio.wait(tasks, timeout=0)
    return [*found, *[await one for one in done], *[await one for one in left]]


PROGRAMS = [
    bare,
    nested,
    mixed,
    of_tasks,
    waited,
    first_of_several,
    cancelled_group,
    waited_gatherings,
    gatherings_that_are_done,
    gatherings_and_tasks,
    polled,
]


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_every_replay_has_the_same_order(url, played, engine_on, program):
    """The objects of every replay have other addresses: an order by address differs within a few replays."""

    @workflow
    async def ordered(ctx: Context) -> list[int]:
        found = await program(ctx)
        for _ in range(6):
            await ctx.wait_for_signal("again")
        return found

    rubbish = []

    async def scenario():
        async with engine_on(url, [ordered], park_after=0.01) as engine:
            handles = [await engine.start(ordered) for _ in range(5)]
            for _ in range(6):
                for handle in handles:
                    await eventually_async(lambda handle=handle: suspended(handle))
                    rubbish.append([helper(0) for _ in range(7 * len(rubbish) % 13)])
                    await handle.signal("again")
            results = [await handle.result(timeout=20) for handle in handles]
            assert all(len(result) >= 3 for result in results)

    played(scenario)
    for coroutines in rubbish:
        for coroutine in coroutines:
            coroutine.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # its coroutines are never awaited
@pytest.mark.parametrize("collect", [set, iter], ids=["a set", "a generator"])
def test_a_set_of_coroutines_is_refused_with_what_to_write(played, engine_on, collect):
    @workflow
    async def unordered(ctx: Context) -> list[int]:
        return [await done for done in asyncio.as_completed(collect([work(n) for n in range(3)]))]

    async def scenario():
        async with engine_on("memory://", [unordered]) as engine:
            with pytest.raises(WorkflowFailed, match=r"asyncio\.as_completed\(\[f\(x\) for x in xs\]\)") as failed:
                await (await engine.start(unordered)).result()
            assert failed.value.kind == "holdfast.errors.NotInWorkflow"

    played(scenario)


def own_futures(count):
    futures = [asyncio.Future() for _ in range(count)]
    for n, future in enumerate(futures):
        future.set_result(n)
    return futures


async def wait_for_own_futures(count):
    done, _ = await asyncio.wait(own_futures(count))
    return [one.result() for one in done]


async def wait_for_own_tasks(count):
    loop = asyncio.get_running_loop()
    done, _ = await asyncio.wait([asyncio.Task(helper(n), loop=loop) for n in range(count)])
    return [one.result() for one in done]


async def own_futures_as_completed(count):
    return [await one for one in asyncio.as_completed(own_futures(count))]


async def own_future_and_another_as_completed(count):
    other = asyncio.get_running_loop().create_future()
    other.set_result(0)
    return [await one for one in asyncio.as_completed([other, *own_futures(count - 1)])]


@pytest.mark.parametrize(
    "program",
    [wait_for_own_futures, wait_for_own_tasks, own_futures_as_completed, own_future_and_another_as_completed],
)
def test_futures_that_the_loop_did_not_create_are_refused_with_what_to_write(played, engine_on, program):
    """A single future has no order that could differ."""

    @workflow
    async def waiting(ctx: Context, count: int) -> list[int]:
        return await program(count)

    async def scenario():
        async with engine_on("memory://", [waiting]) as engine:
            assert await (await engine.start(waiting, 1)).result() == [0]
            with pytest.raises(WorkflowFailed, match=r"asyncio\.get_running_loop\(\)\.create_future\(\)") as failed:
                await (await engine.start(waiting, 2)).result()
            assert failed.value.kind == "holdfast.errors.NotInWorkflow"

    played(scenario)


async def of_the_running_loop():
    return asyncio.all_tasks()


async def of_this_loop():
    return asyncio.all_tasks(asyncio.get_running_loop())


@pytest.mark.parametrize("ask", [of_the_running_loop, of_this_loop])
def test_all_tasks_is_refused_in_workflow_code_and_works_everywhere_else(played, engine_on, ask):
    """In a step, and beside the engine, it returns the tasks there; those of workflow code are not among them."""

    @step
    async def around() -> list[str]:
        return [type(task).__module__ for task in await ask()]

    @workflow
    async def asking(ctx: Context) -> None:
        assert set(await around()) == {"_asyncio"}
        other = asyncio.create_task(ctx.sleep("1 day"))
        await asyncio.sleep(0)
        for task in await ask():
            task.cancel()
        await other

    async def scenario():
        async with engine_on("memory://", [asking]) as engine:
            with pytest.raises(WorkflowFailed, match=r"Keep a list of the tasks.*asyncio\.TaskGroup") as failed:
                await (await engine.start(asking)).result()
            assert failed.value.kind == "holdfast.errors.NotInWorkflow"
            assert asyncio.current_task() in await ask()
            assert {type(task) for task in await ask()} == {asyncio.Task}

    played(scenario)


def test_the_future_of_gather_can_be_cancelled_and_shielded(played, engine_on):
    @workflow
    async def gathering(ctx: Context) -> list[int]:
        both = asyncio.gather(ctx.sleep("1 day"), ctx.sleep("2 days"))
        await asyncio.sleep(0)
        both.cancel()
        with pytest.raises(asyncio.CancelledError):
            await both
        return [*await asyncio.shield(asyncio.gather(work(1), work(2))), *await asyncio.gather()]

    async def scenario():
        async with engine_on("memory://", [gathering]) as engine:
            assert await (await engine.start(gathering)).result(timeout=20) == [1, 2]

    played(scenario)
