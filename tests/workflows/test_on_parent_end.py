"""What the end of a parent does to its children: by default, and with on_parent_end="cancel" or "abandon"."""

from __future__ import annotations

import asyncio

import pytest
from waiting import eventually_async, until_status

from holdfast import Context, Retry, WorkflowFailed, workflow
from holdfast.errors import InvalidOption
from holdfast.testing import TestEngine


@workflow
async def child(ctx: Context) -> str:
    return await ctx.wait_for_signal("go")


@workflow(timeout=3600)
async def parent(ctx: Context, plan: dict) -> str:
    """Starts a child in its first generation, and ends as its plan says."""
    if "continued" not in plan:
        await ctx.start_child(child, id="c", on_parent_end=plan.get("policy"))
        if plan["how"] == "continues":
            raise ctx.continue_as_new({**plan, "continued": True, "how": plan["then"]})
    if plan["how"] == "fails":
        raise ValueError
    if plan["how"] != "completes":
        await ctx.sleep("1 day")
    return "done"


async def end_of_the_child(engine, plan):
    handle = await engine.start(parent, plan, id="p")
    await engine.settle()
    if plan["how"] == "stops" or plan.get("then") == "stops":
        await handle.cancel("enough")
    await engine.advance("2 hours")
    assert not (await handle.info()).living
    return (await engine.get("c")).status


WAYS = ["completes", "fails", "stops", "expires"]
CONTINUES, CANCELLED = "running", "cancelled"
TABLE = {
    None: [CONTINUES, CONTINUES, CANCELLED, CANCELLED],
    "cancel": [CANCELLED] * 4,
    "abandon": [CONTINUES] * 4,
}


@pytest.mark.parametrize("generations", [1, 2])
@pytest.mark.parametrize(
    ("policy", "how", "wanted"),
    [(policy, how, wanted) for policy, row in TABLE.items() for how, wanted in zip(WAYS, row, strict=True)],
)
def test_the_end_of_a_parent_does_this_to_its_children(policy, how, wanted, generations, played):
    plan = {"policy": policy, "how": how} if generations == 1 else {"policy": policy, "how": "continues", "then": how}

    async def scenario():
        async with TestEngine([parent, child]) as engine:
            assert await end_of_the_child(engine, plan) == wanted
            if wanted == CONTINUES:
                await engine.signal("c", "go", "on")
                assert await engine.handle("c").result(20) == "on"

    played(scenario)


@pytest.mark.parametrize(("policy", "wanted"), [(None, "suspended"), ("cancel", "cancelled"), ("abandon", "suspended")])
def test_a_run_that_is_given_up_does_this_to_its_children(policy, wanted, url, played, engine_on):
    async def scenario():
        async with engine_on(url, [parent, child], park_after=0.05) as engine:
            await engine.start(parent, {"policy": policy, "how": "sleeps"}, id="p")
            for run in "pc":
                await there(engine, run)
                await until_status(engine, run, "suspended")
            await engine.fail("p", "given up")
            await until_status(engine, "c", wanted)
            if wanted == "cancelled":
                assert (await engine.get("c")).cancel_reason == "cancelled by the parent run p: it is failed"

    played(scenario)


async def there(engine, run):
    async def is_there():
        return bool((await engine.list(prefix=run)).runs)

    await eventually_async(is_there)


@pytest.mark.parametrize("policy", [None, "cancel", "abandon"])
def test_an_attempt_that_fails_cancels_its_children_in_any_case(policy, played):
    """The next attempt starts others in their place."""

    @workflow(retry=Retry(max_attempts=2, initial=10))
    async def tries(ctx: Context) -> str:
        await ctx.start_child(child, on_parent_end=policy)
        if ctx.attempt == 1:
            raise ValueError
        return "done"

    async def scenario():
        async with TestEngine([tries, child]) as engine:
            handle = await engine.start(tries, id="p")
            await engine.advance(60)
            assert await handle.result() == "done"
            assert (await engine.get("p/child")).status == "cancelled"
            later = (await engine.get("p/child.attempt-2")).status
            assert later == ("cancelled" if policy == "cancel" else "running")

    played(scenario)


def test_the_children_of_earlier_generations_end_with_a_run_that_ends_in_the_pause_between_attempts(played):
    @workflow(retry=Retry(max_attempts=2, initial=600))
    async def tries(ctx: Context, n: int) -> None:
        if n == 0:
            await ctx.start_child(child, id="c", on_parent_end="cancel")
            await ctx.start_child(child, id="other", on_parent_end="abandon")
            raise ctx.continue_as_new(1)
        raise ValueError

    async def scenario():
        async with TestEngine([tries, child]) as engine:
            handle = await engine.start(tries, 0, id="p")
            await engine.settle()
            assert (await engine.get("c")).living
            await handle.cancel()
            await engine.settle()
            assert [(await engine.get(run)).status for run in ("p", "c", "other")] == [
                "cancelled", "cancelled", "running",
            ]  # fmt: skip

    played(scenario)


def test_a_child_is_cancelled_in_the_step_that_ends_its_parent(url, played, engine_on):
    """No engine needs to live after that step, and none is asked to send the cancel."""

    @workflow
    async def ends(ctx: Context) -> str:
        await ctx.start_child(child, id="begun", on_parent_end="cancel")
        await ctx.start_child(child, id="later", on_parent_end="cancel", delay=3600)
        await ctx.wait_for_signal("end")
        return "done"

    async def scenario():
        async with engine_on(url, [ends, child], park_after=0.05) as engine:
            handle = await engine.start(ends, id="p")
            await there(engine, "begun")
            await until_status(engine, "begun", "suspended")
            await handle.signal("end")
            assert await handle.result(20) == "done"
            assert (await engine.get("later")).status == "cancelled", "one that has not begun has ended already"
            assert (await engine.get("begun")).cancel_reason == "cancelled by the parent run p: it is completed"
            await until_status(engine, "begun", "cancelled")

    played(scenario)


def test_a_cancelled_wait_does_not_cancel_an_abandoned_child_and_its_handle_does(played):
    @workflow
    async def waits(ctx: Context) -> str:
        handle = await ctx.start_child(child, on_parent_end="abandon")
        try:
            async with asyncio.timeout(60):
                await handle.result()
        except TimeoutError:
            await ctx.wait_for_signal("cancel it")
        await handle.cancel()
        try:
            await handle.result()
        except WorkflowFailed as error:
            return error.status
        return "completed"

    async def scenario():
        async with TestEngine([waits, child]) as engine:
            run = await engine.start(waits, id="p")
            await engine.advance(100)
            assert (await engine.get("p/child")).living
            await run.signal("cancel it")
            assert await run.result() == "cancelled"

    played(scenario)


def test_an_abandoned_child_is_a_tree_of_its_own_for_a_purge(url, played, engine_on):
    @workflow
    async def leaves(ctx: Context) -> str:
        await ctx.start_child(child, id="c", on_parent_end="abandon")
        return "done"

    async def scenario():
        async with engine_on(url, [leaves, child]) as engine:
            assert await (await engine.start(leaves, id="p")).result(20) == "done"
            assert (await engine.purge(older_than=0)).runs == 1, "the parent is removed, though its child has not ended"
            await engine.signal("c", "go", "on")
            assert await engine.handle("c").result(20) == "on"
            assert (await engine.purge(older_than=0)).runs == 1, "and the child by itself"
            assert (await engine.list()).runs == ()

    played(scenario)


def test_an_abandoned_child_stays_while_its_parent_may_ask_for_it(url, played, engine_on):
    @workflow
    async def waits(ctx: Context) -> list[str]:
        handle = await ctx.start_child(child, id="c", on_parent_end="abandon")
        await ctx.wait_for_signal("ask")
        return [await handle.result()]

    async def scenario():
        async with engine_on(url, [waits, child], park_after=0.05) as engine:
            run = await engine.start(waits, id="p")
            await there(engine, "c")
            await engine.signal("c", "go", "once")
            assert await engine.handle("c").result(20) == "once"
            assert (await engine.purge(older_than=0)).runs == 0
            await run.signal("ask")
            assert await run.result(20) == ["once"], "it was not started a second time"
            assert (await engine.purge(older_than=0)).runs == 2

    played(scenario)


def test_a_policy_is_cancel_or_abandon(played, engine_on):
    @workflow
    async def wrong(ctx: Context) -> None:
        await ctx.start_child(child, on_parent_end="keep")

    async def scenario():
        async with engine_on("memory://", [wrong, child]) as engine:
            with pytest.raises(WorkflowFailed, match="on_parent_end='keep'") as caught:
                await (await engine.start(wrong)).result(20)
            assert caught.value.kind == f"holdfast.errors.{InvalidOption.__name__}"

    played(scenario)
