"""`ctx.set_details`: what a run says about itself, which everybody reads without a replay."""

from __future__ import annotations

import pytest
from waiting import eventually_async, until_status

from holdfast import Context, WorkflowFailed, workflow
from holdfast.testing import TestEngine
from holdfast.workflow.context_requests import DETAILS_BYTES


@workflow
async def staged(ctx: Context, ends: str) -> str:
    await ctx.set_details({"stage": "begun"})
    await ctx.wait_for_signal("go")
    await ctx.set_details({"stage": "on the way"})
    await ctx.set_details({"stage": "last"})
    if ends == "fails":
        raise ValueError("as planned")
    return ends


@pytest.mark.parametrize("ends", ["returns", "fails"])
def test_the_last_details_stay_after_the_end(ends, url, played, engine_on):
    async def scenario():
        async with engine_on(url, [staged], park_after=0.05) as engine:
            handle = await engine.start(staged, ends, id="r")
            await until_status(engine, "r", "suspended")
            assert (await handle.info()).details == {"stage": "begun"}
            await handle.signal("go")
            if ends == "fails":
                with pytest.raises(WorkflowFailed):
                    await handle.result(20)
            else:
                await handle.result(20)
            assert (await handle.info()).details == {"stage": "last"}
            assert [run.details for run in (await engine.list(prefix="r")).runs] == [{"stage": "last"}]

    played(scenario)


@pytest.mark.parametrize("again", [False, True])
def test_details_stay_across_generations_until_the_code_sets_others(again, url, played, engine_on):
    @workflow
    async def rounds(ctx: Context, n: int = 1) -> int:
        if n == 1 or again:
            await ctx.set_details([n])
        if n == 1:
            raise ctx.continue_as_new(2)
        return n

    async def scenario():
        async with engine_on(url, [rounds]) as engine:
            handle = await engine.start(rounds, 1)
            assert await handle.result(20) == 2
            assert (await handle.info()).details == [2 if again else 1]

    played(scenario)


def test_details_have_at_most_64_kib_as_json(played):
    kept = "x" * (DETAILS_BYTES - 2)

    @workflow
    async def large(ctx: Context) -> None:
        await ctx.set_details(kept)
        await ctx.set_details("é" * (DETAILS_BYTES // 2))

    async def scenario():
        assert DETAILS_BYTES == 64 * 1024
        async with TestEngine([large]) as engine:
            handle = await engine.start(large)
            with pytest.raises(WorkflowFailed, match="details of a run") as failed:
                await handle.result(20)
            assert "the limit is 65,536" in failed.value.detail
            assert (await handle.info()).details == kept

    played(scenario)


def test_none_is_a_value_of_details(url, played, engine_on):
    @workflow
    async def clears(ctx: Context) -> None:
        await ctx.set_details({"stage": "begun"})
        await ctx.wait_for_signal("go")
        await ctx.set_details(None)
        await ctx.wait_for_signal("end")

    async def scenario():
        async with engine_on(url, [clears], park_after=0.05) as engine:
            handle = await engine.start(clears, id="r")
            await until_status(engine, "r", "suspended")
            assert (await handle.info()).details == {"stage": "begun"}
            await handle.signal("go")

            async def cleared() -> bool:
                return (await handle.info()).details is None

            await eventually_async(cleared)
            await handle.signal("end")
            await handle.result(20)
            assert (await handle.info()).details is None

    played(scenario)


def test_a_restarted_run_has_no_details_until_its_code_sets_some(played):
    begun: list[int] = [1]

    @workflow
    async def waits(ctx: Context) -> None:
        await ctx.wait_for_signal(f"go {begun[-1]}")
        await ctx.set_details(begun[-1])

    async def scenario():
        async with TestEngine([waits]) as engine:
            handle = await engine.start(waits, id="r")
            await handle.signal("go 1")
            await handle.result(20)
            begun.append(2)
            await engine.restart("r")
            await engine.settle()
            assert (await handle.info()).details is None
            await handle.signal("go 2")
            await engine.handle("r").result(20)
            assert (await handle.info()).details == 2

    played(scenario)
