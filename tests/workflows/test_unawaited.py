"""A call without `await` does nothing, warns with its name, and does not affect the run."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import warnings
from datetime import UTC, datetime

import pytest
from waiting import PATIENCE

from holdfast import Context, step, workflow


@step
async def charge(amount: int) -> int:
    return amount


@step("named by hand")
def plain(amount: int) -> int:
    return amount


@workflow
async def other(ctx: Context, n: int) -> int:
    return n


CALLS = {
    "Context.step": lambda ctx: ctx.step("forgotten", charge, 1),
    "Context.transaction": lambda ctx: ctx.transaction("forgotten", lambda connection: None),
    "Context.sleep": lambda ctx: ctx.sleep("1 day"),
    "Context.sleep_until": lambda ctx: ctx.sleep_until(datetime(2999, 1, 1, tzinfo=UTC)),
    "Context.signals": lambda ctx: ctx.signals("forgotten"),
    "Context.wait_for_signal": lambda ctx: ctx.wait_for_signal("forgotten", timeout="1 day"),
    "Context.child": lambda ctx: ctx.child(other, 1),
    "Context.start_child": lambda ctx: ctx.start_child(other, 1),
    "Context.approve": lambda ctx: ctx.approve("forgotten"),
    "Context.set_details": lambda ctx: ctx.set_details("forgotten"),
    "Context.set_attributes": lambda ctx: ctx.set_attributes(forgotten=True),
    "AsyncState.set": lambda ctx: ctx.state.workflow("forgotten").set(1),
    "AsyncState.get": lambda ctx: ctx.state.execution("forgotten").get(),
    "charge": lambda ctx: charge(1),
    "named by hand": lambda ctx: plain(1),
}


def test_every_call_that_must_be_awaited_is_listed_here():
    names = {
        f"Context.{name}"
        for kind in Context.__mro__
        for name, member in vars(kind).items()
        if not name.startswith("_") and asyncio.iscoroutinefunction(member)
    }
    assert names - {"Context.call"} == {name for name in CALLS if name.startswith("Context.")}


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_was_not_awaited_warns_by_its_name_and_changes_nothing(name, played, engine_on):
    @workflow
    async def forgets(ctx: Context, amount: int) -> list[int]:
        first = await charge(amount)
        CALLS[name](ctx)
        return [first, await charge(amount), await ctx.child(other, 3)]

    async def scenario():
        async with engine_on("memory://", [forgets, other]) as engine:
            handle = await engine.start(forgets, 7, id="r")
            result = await handle.result()
            info = await handle.info()
            assert (info.status, info.entries, info.attributes) == ("completed", 4, {})
            assert sorted(run.id for run in (await engine.list()).runs) == ["r", "r/other"]
            return result

    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert played(scenario) == [7, 7, 3]
        gc.collect()
    assert [str(one.message) for one in seen if one.category is RuntimeWarning] == [
        f"coroutine '{name}' was never awaited"
    ]


def test_the_warning_is_shown_without_any_setting():
    script = """
import asyncio
from holdfast import Engine, step, workflow

@step
async def charge():
    return 1

@workflow
async def forgets(ctx):
    ctx.sleep(5)
    charge()
    return "done"

async def main():
    async with Engine("memory://", workflows=[forgets]) as engine:
        print(await (await engine.start(forgets)).result())

asyncio.run(main())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE, check=True)
    assert done.stdout == "done\n"
    assert "RuntimeWarning: coroutine 'Context.sleep' was never awaited" in done.stderr
    assert "RuntimeWarning: coroutine 'charge' was never awaited" in done.stderr
