"""retry and restart by hand: the cause of the end does not end the run again, and its children continue with it."""

from __future__ import annotations

import asyncio

import pytest
from inspect_runs import each_inside, held, suspended
from waiting import eventually_async, until_blocked

from holdfast import AsyncClient, Retry, RunLocked, WorkflowFailed, workflow


async def living(engine, run):
    return (await engine.get(run)).living


async def ended(engine, run):
    return (await engine.get(run)).ended_at is not None


def listening():
    @workflow(name="below")
    async def below(ctx, _none: None) -> str:
        return await ctx.wait_for_signal("go")

    return below


@pytest.mark.parametrize("how", ["retry", "restart"])
@pytest.mark.parametrize("why", ["cancelled", "timed_out"])
def test_a_child_that_was_cancelled_with_its_parent_is_retried_with_it(url, played, engine_on, how, why):
    below = listening()

    @workflow(name="above", timeout=1 if why == "timed_out" else None)
    async def above(ctx, _none: None) -> str:
        return await ctx.child(below, id="child")

    async def scenario():
        async with engine_on(url, [above, below]) as engine:
            handle = await engine.start(above)
            await eventually_async(lambda: there(engine))
            if why == "cancelled":
                await handle.cancel()
            with pytest.raises(WorkflowFailed, match=why):
                await handle.result()
            await eventually_async(lambda: ended(engine, "child"))
            await getattr(engine, how)(handle.id)
            await eventually_async(lambda: living(engine, "child"))
            await engine.handle("child").signal("go", "went on")
            assert await handle.result(timeout=20) == "went on"

    async def there(engine):
        return [run.id for run in (await engine.list()).runs if run.id == "child"]

    played(scenario)


@pytest.mark.parametrize("how", ["retry", "restart"])
@pytest.mark.parametrize("late", ["it completes", "it fails", "it is still there"])
def test_a_child_that_ended_after_its_parent_failed_is_delivered_when_the_parent_is_retried(
    url, played, engine_on, how, late
):
    """Of two children one fails, and their parent with it; the other ends while the parent is not running."""
    broken = {"first": True, "second": late == "it fails"}

    @workflow(name="below")
    async def below(ctx, name: str) -> str:
        if name == "second":
            await ctx.wait_for_signal("go")
        return await ctx.step("work", work, name)

    def work(name):
        if broken[name]:
            raise ValueError(f"{name} is broken")
        return name

    @workflow(name="above")
    async def above(ctx, _none: None) -> list[str]:
        return await asyncio.gather(*(ctx.child(below, name, id=name) for name in ("first", "second")))

    async def scenario():
        async with engine_on(url, [above, below]) as engine:
            handle = await engine.start(above)
            with pytest.raises(WorkflowFailed, match="first is broken"):
                await handle.result()
            if late != "it is still there":
                await engine.handle("second").signal("go")
                await eventually_async(lambda: ended(engine, "second"))
            broken.update(first=False, second=False)
            await getattr(engine, how)(handle.id)
            if late == "it is still there" or how == "restart":
                await eventually_async(lambda: living(engine, "second"))
                await engine.handle("second").signal("go")
            assert await handle.result(timeout=20) == ["first", "second"]

    played(scenario)


def test_a_cancelled_run_that_failed_during_cleanup_is_not_cancelled_again_by_retry(url, played, engine_on):
    below = listening()

    @workflow(name="above")
    async def above(ctx, _none: None) -> str:
        try:
            return await ctx.wait_for_signal("go")
        except asyncio.CancelledError:
            await ctx.step("clean up", broken)
            raise

    def broken():
        raise ValueError("it cannot be cleaned up")

    async def scenario():
        async with engine_on(url, [above, below]) as engine:
            handle = await engine.start(above)
            await eventually_async(lambda: begun(engine, handle.id))
            await handle.cancel()
            with pytest.raises(WorkflowFailed):
                await handle.result()
            await engine.retry(handle.id)
            await handle.signal("go", "went on")
            assert await handle.result(timeout=20) == "went on"

    async def begun(engine, run):
        return (await engine.get(run)).started_at

    played(scenario)


def test_a_retried_run_after_a_deadlock_acquires_its_locks_again(url, played, engine_on):
    @workflow(name="pair")
    async def pair(ctx, keys: list[str]) -> str:
        async with ctx.mutex(keys[0]):
            await ctx.wait_for_signal("go")
            async with ctx.mutex(keys[1]):
                return "both"

    async def scenario():
        async with engine_on(url, [pair]) as engine:
            one, two = await each_inside(engine, pair, one=[*"ab"], two=[*"ba"])
            for handle in (one, two):
                await handle.signal("go")
            with pytest.raises(WorkflowFailed, match="DeadlockDetected"):
                await two.result()
            assert await one.result() == "both"
            await engine.retry(two.id)
            assert await two.result(timeout=20) == "both"

    played(scenario)


def test_a_retried_run_that_lost_its_lock_acquires_it_again(url, played, engine_on):
    @workflow(name="forced")
    async def forced(ctx, _none: None) -> int:
        async with ctx.mutex("a", scope="global") as lease:
            await ctx.wait_for_signal("go")
            return lease.token

    async def scenario():
        async with engine_on(url, [forced]) as engine, AsyncClient(url) as hf:
            handle = await engine.start(forced)
            await eventually_async(lambda: held(hf, "a"))
            before = (await hf.locks.inspect("a")).holders[0].token
            await hf.locks.force_release("a", reason="a test")
            with pytest.raises(WorkflowFailed, match="LeaseLost"):
                await handle.result()
            await engine.retry(handle.id)
            await handle.signal("go")
            assert await handle.result(timeout=20) > before

    played(scenario)


def test_a_retried_run_that_met_a_lock_of_another_kind_requests_it_again(url, played, engine_on):
    @workflow(name="counts")
    async def counts(ctx, _none: None) -> str:
        async with ctx.semaphore("a", permits=2, scope="global"):
            return "in"

    async def scenario():
        async with engine_on(url, [counts]) as engine, AsyncClient(url) as hf:
            async with hf.lock("a"):
                handle = await engine.start(counts)
                with pytest.raises(WorkflowFailed, match="KindMismatch"):
                    await handle.result()
            await engine.retry(handle.id)
            assert await handle.result(timeout=20) == "in"

    played(scenario)


def family(kind, broken, begun):
    """A parent that fails after its child has completed, and the child."""

    @workflow(name="below")
    async def below(ctx, _none: None) -> str:
        begun.append(ctx.run_id)
        return "result"

    async def above(ctx, number) -> str:
        got = await ctx.child(below, id="child")
        if broken:
            raise ValueError("after the child")
        return got

    above.__annotations__["number"] = kind
    return [workflow(name="above")(above), below]


@pytest.mark.parametrize("url", ["sqlite", "postgres", "valkey"], indirect=True)
@pytest.mark.parametrize("why", ["cancelled", "unreadable"])
def test_a_restarted_run_that_ended_before_its_first_record_starts_its_children_again(url, played, engine_on, why):
    broken, begun = [True], []

    async def scenario():
        async with engine_on(url, family(int, broken, begun)) as engine:
            handle = await engine.start("above", 7, id="parent")
            with pytest.raises(WorkflowFailed, match="after the child"):
                await handle.result()
        broken.clear()
        if why == "cancelled":
            async with AsyncClient(url) as client:
                await client.runs.restart("parent")
                await client.runs.cancel("parent")
        else:
            async with engine_on(url, family(list[str], broken, begun)) as engine:
                await engine.restart("parent")
                assert "the input of the run" in (await until_blocked(engine, "parent")).reason.message
        async with engine_on(url, family(int, broken, begun)) as engine:
            if why == "cancelled":  # a blocked run is tried by an engine that opens
                await engine.retry("parent")
            assert await engine.handle("parent").result(timeout=20) == "result"
            assert begun == ["child", "child"]

    played(scenario)


@pytest.mark.parametrize("how", ["retry", "restart"])
def test_a_run_is_not_retried_while_a_child_that_was_cancelled_with_it_still_cleans_up(url, played, engine_on, how):
    @workflow(name="below")
    async def below(ctx, _none: None) -> str:
        try:
            return await ctx.wait_for_signal("go")
        except asyncio.CancelledError:
            await ctx.wait_for_signal("cleaned up")
            raise

    @workflow(name="above")
    async def above(ctx, _none: None) -> str:
        return await ctx.child(below, id="child")

    async def scenario():
        async with engine_on(url, [above, below]) as engine:
            handle = await engine.start(above)
            await eventually_async(lambda: there(engine))
            await handle.cancel()
            with pytest.raises(WorkflowFailed, match="cancelled"):
                await handle.result()
            with pytest.raises(RunLocked, match=r"'child' of the run .* is still cleaning up. Nothing was changed"):
                await getattr(engine, how)(handle.id)
            assert (await handle.info()).status == "cancelled"
            await engine.handle("child").signal("cleaned up")
            await eventually_async(lambda: ended(engine, "child"))
            await getattr(engine, how)(handle.id)
            await eventually_async(lambda: living(engine, "child"))
            await engine.handle("child").signal("go", "went on")
            assert await handle.result(timeout=20) == "went on"

    async def there(engine):
        """Whether the child has begun: before that a cancel ends it at once."""
        return [run.id for run in (await engine.list()).runs if run.id == "child" and run.started_at is not None]

    played(scenario)


def test_a_run_is_not_restarted_while_a_child_of_a_failed_attempt_still_cleans_up(url, played, engine_on):
    """It was cancelled in the pause between two attempts."""
    begun = []

    @workflow(name="below")
    async def below(ctx, _none: None) -> str:
        begun.append(ctx.run_id)
        try:
            return await ctx.wait_for_signal("go")
        except asyncio.CancelledError:
            await ctx.wait_for_signal("cleaned up")
            raise

    @workflow(name="above", retry=Retry(max_attempts=2, initial="1 hour"))
    async def above(ctx, _none: None) -> str:
        await ctx.start_child(below, id="child")
        await ctx.wait_for_signal("fail")
        raise ValueError("not yet")

    async def scenario():
        async with engine_on(url, [above, below]) as engine:
            handle = await engine.start(above)
            await eventually_async(lambda: begun)
            await handle.signal("fail")
            await eventually_async(lambda: suspended(handle))
            await handle.cancel()
            with pytest.raises(WorkflowFailed, match="cancelled"):
                await handle.result()
            with pytest.raises(RunLocked, match="still cleaning up"):
                await engine.restart(handle.id)
            await engine.handle("child").signal("cleaned up")
            await eventually_async(lambda: ended(engine, "child"))
            assert (await engine.restart(handle.id)).living

    played(scenario)
