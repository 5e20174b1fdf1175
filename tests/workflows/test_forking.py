"""runs.fork: a new run with the history of another one up to a step, which continues by itself."""

from __future__ import annotations

import asyncio

import pytest
from waiting import eventually_async, until_blocked, until_status

from holdfast import AsyncClient, Client, Concurrency, Context, Retry, WorkflowFailed, current_step, step, workflow
from holdfast.errors import InvalidOption, RunExists, UnknownRun, WorkflowLimitExceeded


class Shop:
    """A workflow that can fail, and the idempotency keys of the steps that were really executed."""

    def __init__(self):
        self.keys = []
        self.broken = set()

    def note(self, value):
        self.keys.append(current_step().idempotency_key)
        if current_step().step_id in self.broken:
            raise ValueError("broken")
        return value


@pytest.fixture
def shop():
    return Shop()


@pytest.fixture
def order(shop):
    @step
    async def charge(what: str) -> str:
        return shop.note(f"{what} paid")

    @workflow
    async def order(ctx: Context, name: str) -> list[str]:
        seen = [str(ctx.random()), str(ctx.uuid4()), str(ctx.now())]
        await ctx.step("reserve", shop.note, name)
        seen += [str(ctx.random()), str(ctx.now())]
        signal = await ctx.wait_for_signal("packed")
        seen += [signal, str(ctx.random()), str(ctx.now())]
        seen.append(await charge(name))
        await charge("fee")
        seen.append(await ctx.wait_for_signal("sent"))
        return seen

    return order


async def recorded(engine, run, step):
    return any(f'"id":"{step}"' in entry for entry in (await engine.export(run)).entries)


async def completed(engine, order, name="r"):
    handle = await engine.start(order, "ann", id=name)
    await handle.signal("packed", "in a box")
    await handle.signal("sent", "by mail")
    return await handle.result(20)


def test_a_fork_keeps_what_is_before_the_step_and_executes_the_rest_under_its_own_keys(
    url, played, engine_on, shop, order
):
    async def scenario():
        async with engine_on(url, [order]) as engine:
            first = await completed(engine, order)
            shop.keys.clear()
            info = await engine.fork("r", from_step="charge#2", id="again")
            assert (info.id, info.workflow, info.parent) == ("again", "order", None)
            await eventually_async(lambda: shop.keys)
            await engine.signal("again", "sent", "by boat")
            second = await engine.handle("again", order).result(20)
            assert second == [*first[:-1], "by boat"], "the same random numbers, times, signal and first charge"
            assert shop.keys == ["again:charge#2"]
            assert (await engine.get("r")).result == first

    played(scenario)


def test_a_run_that_failed_is_forked_from_its_failure(url, played, engine_on, shop, order):
    async def scenario():
        shop.broken.add("charge")
        async with engine_on(url, [order]) as engine:
            with pytest.raises(WorkflowFailed, match="broken"):
                await completed(engine, order)
            shop.broken.clear()
            shop.keys.clear()
            fork = await engine.fork("r")
            await engine.signal(fork.id, "sent", "late")
            assert (await engine.handle(fork.id, order).result(20))[-2:] == ["ann paid", "late"]
            assert shop.keys == [f"{fork.id}:charge", f"{fork.id}:charge#2"]
            assert (await engine.get("r")).status == "failed"

    played(scenario)


def test_failed_attempts_of_a_step_are_not_kept(url, played, engine_on, shop):
    @workflow
    async def flow(ctx: Context) -> str:
        await ctx.step("first", shop.note, 1)
        return await ctx.step("second", shop.note, "done", retry=Retry(max_attempts=2, initial=0.01))

    async def scenario():
        shop.broken.add("second")
        async with engine_on(url, [flow]) as engine:
            handle = await engine.start(flow, id="r")
            with pytest.raises(WorkflowFailed):
                await handle.result(20)
            shop.broken.clear()
            shop.keys.clear()
            fork = await engine.fork("r", from_step="second")
            assert await engine.handle(fork.id).result(20) == "done"
            assert shop.keys == [f"{fork.id}:second"]
            assert not any('"kind":"attempt"' in entry for entry in (await engine.export(fork.id)).entries)

    played(scenario)


def test_a_living_run_is_forked_and_continues_undisturbed(url, played, engine_on, shop, order):
    async def scenario():
        async with engine_on(url, [order], park_after=0.05) as engine:
            handle = await engine.start(order, "ann", id="r")
            await handle.signal("packed", "in a box")
            await eventually_async(lambda: len(shop.keys) == 3)
            await until_status(engine, "r", "suspended")
            fork = await engine.fork("r", from_step="charge")
            for run in ("r", fork.id):
                await engine.signal(run, "sent", run)
                assert (await engine.handle(run).result(20))[-1] == run
            assert shop.keys[3:] == [f"{fork.id}:charge", f"{fork.id}:charge#2"]

    played(scenario)


def test_a_fork_can_be_forked_retried_and_restarted(url, played, engine_on, shop, order):
    async def scenario():
        async with engine_on(url, [order]) as engine:
            first = await completed(engine, order)
            shop.broken.add("charge#2")
            await engine.fork("r", from_step="charge#2", id="f")
            with pytest.raises(WorkflowFailed):
                await engine.handle("f").result(20)
            shop.broken.clear()
            await engine.fork("f", id="g")
            await engine.retry("f")
            for run in "fg":
                await engine.signal(run, "sent", "by mail")
                assert await engine.handle(run, order).result(20) == first
            shop.keys.clear()
            await engine.restart("f")
            await engine.signal("f", "packed", "new")
            await engine.signal("f", "sent", "new")
            assert (await engine.handle("f", order).result(20))[0] != first[0]
            assert shop.keys == ["f:reserve", "f:charge", "f:charge#2"]

    played(scenario)


def test_a_fork_begins_before_a_lock_that_was_held_at_the_step(url, played, engine_on, shop):
    @workflow
    async def flow(ctx: Context) -> str:
        async with ctx.mutex("early", scope="execution"):
            await ctx.step("first", shop.note, 1)
        async with ctx.mutex("till", scope="global"):
            await ctx.step("inside", shop.note, 2)
            await ctx.step("charge", shop.note, 3)
        return "done"

    async def scenario():
        async with engine_on(url, [flow]) as engine, AsyncClient(url) as hf:
            handle = await engine.start(flow, id="r")
            await handle.result(20)
            shop.keys.clear()
            async with hf.lock("till") if not url.startswith("memory") else asyncio.Lock():
                await engine.fork("r", from_step="charge", id="f")
                if not url.startswith("memory"):
                    await eventually_async(lambda: waits(hf))
                    assert shop.keys == []
            await engine.handle("f").result(20)
            assert shop.keys == ["f:inside", "f:charge"]

    async def waits(hf):
        return (await hf.locks.inspect("till")).waiters

    played(scenario)


@pytest.mark.parametrize("awaited", [True, False])
def test_children_that_have_ended_keep_their_results_and_others_are_started_anew(url, played, engine_on, shop, awaited):
    @workflow
    async def below(ctx: Context, name: str) -> str:
        await ctx.step("work", shop.note, name)
        return ctx.run_id if name == "done" else await ctx.wait_for_signal("go")

    @workflow
    async def above(ctx: Context) -> list[str]:
        done = await ctx.start_child(below, "done")
        waiting = await ctx.start_child(below, "waiting")
        if awaited:
            await done.result()
        await ctx.wait_for_signal("go")
        await ctx.step("charge", shop.note, "x")
        return [await done.result(), await waiting.result()]

    async def scenario():
        async with engine_on(url, [above, below]) as engine:
            handle = await engine.start(above, id="r")
            await eventually_async(lambda: len(shop.keys) == 2)
            await engine.handle("r/below").result(20)
            await handle.signal("go")
            await eventually_async(lambda: recorded(engine, "r", "charge"))
            shop.keys.clear()
            await engine.fork("r", from_step="charge", id="f")
            await eventually_async(lambda: len(shop.keys) == 2)
            assert sorted(shop.keys) == ["f/below#2:work", "f:charge"]
            await engine.signal("f/below#2", "go", "own child")
            assert await engine.handle("f").result(20) == ["r/below", "own child"]
            assert (await engine.get("r/below#2")).living, "the child of the other run is not touched"
            await engine.fork("f", from_step="charge", id="g")
            await eventually_async(lambda: "g/below#2:work" in shop.keys)
            await engine.signal("g/below#2", "go", "its own")
            assert await engine.handle("g").result(20) == ["r/below", "its own"]

    played(scenario)


def test_a_child_that_was_cancelled_before_the_step_is_not_started_to_be_cancelled(url, played, engine_on, shop):
    @workflow
    async def below(ctx: Context) -> str:
        return await ctx.wait_for_signal("go")

    @workflow
    async def above(ctx: Context) -> str:
        child = await ctx.start_child(below)
        try:
            async with asyncio.timeout(0.05):
                await child.result()
        except TimeoutError:
            pass
        return await ctx.step("charge", shop.note, "done")

    async def scenario():
        async with engine_on(url, [above, below]) as engine:
            await (await engine.start(above, id="r")).result(20)
            await engine.fork("r", from_step="charge", id="f")
            assert await engine.handle("f").result(20) == "done"
            with pytest.raises(UnknownRun):
                await engine.get("f/below")

    played(scenario)


def test_another_input_is_used_and_blocks_a_run_whose_kept_steps_do_not_fit(url, played, engine_on, shop, order):
    async def scenario():
        async with engine_on(url, [order]) as engine:
            await completed(engine, order)
            fork = await engine.fork("r", from_step="reserve", input="bob")
            await engine.signal(fork.id, "packed", "boxed")
            await engine.signal(fork.id, "sent", "by mail")
            assert "bob paid" in await engine.handle(fork.id, order).result(20)
            await engine.fork("r", from_step="charge", input="bob", id="unfit")
            reason = (await until_blocked(engine, "unfit")).reason.message
            assert "The run is a fork" in reason
            assert "reserve" in reason

    played(scenario)


def test_the_last_attempt_of_a_workflow_is_forked(url, played, engine_on, shop):
    @workflow(retry=Retry(max_attempts=3, initial=0.01))
    async def flow(ctx: Context) -> list:
        chance = ctx.random()
        await ctx.step("only first" if ctx.attempt == 1 else "work", shop.note, ctx.attempt)
        if ctx.attempt == 1:
            raise ValueError("once")
        return [ctx.attempt, chance, await ctx.step("charge", shop.note, "x")]

    async def scenario():
        async with engine_on(url, [flow]) as engine:
            first = await (await engine.start(flow, id="r")).result(20)
            shop.keys.clear()
            await engine.fork("r", from_step="charge", id="f")
            assert await engine.handle("f").result(20) == first
            assert shop.keys == ["f:charge"]
            with pytest.raises(InvalidOption, match="belongs to an earlier attempt"):
                await engine.fork("r", from_step="only first")

    played(scenario)


def test_what_cannot_be_forked_is_refused_and_starts_nothing(url, played, engine_on, shop, order):
    @workflow
    async def counting(ctx: Context) -> int:
        await ctx.state.execution("count", 0, type=int).update(lambda count: count + 1)
        return await ctx.step("charge", shop.note, 1)

    async def scenario():
        async with engine_on(url, [order, counting]) as engine:
            await completed(engine, order)
            with pytest.raises(InvalidOption, match=r"no recorded step 'pay'. It has 'reserve', 'signal:packed'"):
                await engine.fork("r", from_step="pay")
            with pytest.raises(InvalidOption, match="is completed: from_step= must name"):
                await engine.fork("r")
            with pytest.raises(UnknownRun):
                await engine.fork("nobody", from_step="charge")
            with pytest.raises(RunExists):
                await engine.fork("r", from_step="charge", id="r")
            await engine.start("elsewhere", id="unborn")
            with pytest.raises(InvalidOption, match="no steps yet"):
                await engine.fork("unborn", from_step="charge")
            await (await engine.start(counting, id="c")).result(20)
            with pytest.raises(InvalidOption, match="uses the state 'count' of the scope 'execution'"):
                await engine.fork("c", from_step="charge")
            assert {run.id for run in (await engine.list()).runs} == {"r", "unborn", "c"}

    played(scenario)


def test_a_fork_is_admitted_like_a_start(url, played, engine_on, shop):
    @workflow(concurrency=Concurrency(max=1, on_excess="reject"))
    async def limited(ctx: Context) -> str:
        await ctx.step("charge", shop.note, 1)
        return await ctx.wait_for_signal("go")

    async def scenario():
        async with engine_on(url, [limited], park_after=0.05) as engine:
            await engine.start(limited, id="r")
            await until_status(engine, "r", "suspended")
            with pytest.raises(WorkflowLimitExceeded):
                await engine.fork("r", from_step="charge", id="f")
            await engine.signal("r", "go", "done")
            await engine.handle("r").result(20)
            await engine.fork("r", from_step="charge", id="f")
            await eventually_async(lambda: "f:charge" in shop.keys)

    played(scenario)


def test_a_fork_takes_the_branches_of_patches_that_the_other_run_took(url, played, engine_on, shop):
    patched = [False]

    @workflow
    async def flow(ctx: Context) -> str:
        if patched[0] and ctx.patched("check"):
            await ctx.step("check", shop.note, 1)
        await ctx.step("charge", shop.note, 1)
        return await ctx.step("ship", shop.note, "shipped")

    async def scenario():
        async with engine_on(url, [flow]) as engine:
            await (await engine.start(flow, id="r")).result(20)
            patched[0] = True
            shop.keys.clear()
            await engine.fork("r", from_step="ship", id="f")
            assert await engine.handle("f").result(20) == "shipped"
            await engine.fork("r", from_step="charge", id="g")
            assert await engine.handle("g").result(20) == "shipped"
            assert shop.keys == ["f:ship", "g:check", "g:charge", "g:ship"]

    played(scenario)


def test_a_sync_client_forks(tmp_path, played, engine_on, shop, order):
    url = f"sqlite:///{tmp_path}/runs.db"

    async def scenario():
        async with engine_on(url, [order]) as engine:
            await completed(engine, order)

    played(scenario)
    with Client(url) as hf:
        info = hf.runs.fork("r", from_step="charge", input="bob", id="f")
        assert (info.status, info.entries) == ("pending", 4)
        assert [run.id for run in hf.runs.list().runs] == ["f", "r"]
