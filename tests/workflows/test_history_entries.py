"""runs.history: what a run has recorded, for Python; the command line shows the same entries."""

from __future__ import annotations

from contextlib import suppress
from datetime import timedelta

import pytest
from waiting import eventually_async, until_status

from holdfast import AsyncClient, Client, Context, Retry, StepFailed, WorkflowFailed, workflow
from holdfast.errors import UnknownRun


@workflow
async def child(ctx: Context) -> str:
    return "of the child"


@workflow
async def everything(ctx: Context, item: int) -> str:
    tried = []

    def second_time():
        tried.append(1)
        if len(tried) < 2:
            raise ValueError("not yet")
        return {"item": item}

    await ctx.step("charge", second_time, retry=Retry(max_attempts=3, initial=0.001))
    with suppress(StepFailed):
        await ctx.step("broken", lambda: 1 // 0)
    await ctx.sleep(0.001)
    async with ctx.mutex("printer"):
        await ctx.child(child)
    await ctx.wait_for_signal("go")
    return "done"


def short(entries):
    return [(entry.number, entry.kind, entry.name, entry.attempts) for entry in entries]


KEY = "workflow/everything/printer"
WANTED = [
    (1, "attempt", "charge", 1), (2, "step", "charge", 2), (3, "failed", "broken", 1), (4, "timer", "1", None),
    (5, "lock", KEY, None), (6, "child", "r/child", None), (7, "lock released", KEY, None),
    (8, "signal", "go", None),
]  # fmt: skip


def test_the_history_of_a_run_names_what_it_has_recorded(url, played, engine_on):
    async def scenario():
        async with engine_on(url, [everything, child], park_after=0.05) as engine:
            assert await engine.history((await engine.start(child, id="empty", delay=60)).id) == ()
            handle = await engine.start(everything, 7, id="r")

            async def waits():
                return len(await engine.history("r")) == 7

            await eventually_async(waits)
            assert short(await engine.history("r")) == WANTED[:7], "also of a run that has not ended"
            await handle.signal("go", {"by": "ann"})
            assert await handle.result(20) == "done"
            entries = await engine.history("r")
            assert short(entries) == WANTED
            attempt, charged, broken, _, lock, ended, _, signal = entries
            assert (attempt.error.type, attempt.error.message, attempt.value) == ("ValueError", "not yet", None)
            assert (charged.value, charged.error, charged.arrived_at) == ({"item": 7}, None, None)
            assert broken.error.type == "ZeroDivisionError"
            assert (list(lock.value), ended.value["status"]) == (["token"], "completed")
            assert signal.value == {"by": "ann"}
            assert signal.arrived_at - timedelta(seconds=1) <= signal.at
            info = await engine.get("r")
            near = timedelta(seconds=1)  # a worker knows the time of a server's clock about
            assert all(info.created_at - near <= entry.at <= info.ended_at + near for entry in entries)

    played(scenario)


def test_the_history_of_a_kept_run_and_of_a_cancelled_run_is_read_by_both_clients(played, engine_on, tmp_path):
    url = f"sqlite:///{tmp_path}/hf.db"

    @workflow
    async def waits(ctx: Context) -> None:
        await ctx.wait_for_signal("go")

    async def scenario():
        async with engine_on(url, [waits]) as engine, AsyncClient(url) as other:
            handle = await engine.start(waits, id="r")
            await until_status(engine, "r", "running")
            await handle.cancel("why not")
            with pytest.raises(WorkflowFailed):
                await handle.result(20)
            await engine.start(waits, id="r", on_existing="replace_ended")
            (entry,) = await other.runs.history("r~1")
            assert (entry.kind, entry.name, entry.value) == ("cancel", "requested", "why not")
            with pytest.raises(UnknownRun):
                await engine.history("nobody")

    played(scenario)
    with Client(url) as hf:
        assert [entry.kind for entry in hf.runs.history("r~1")] == ["cancel"]
