"""start(timeout=, delay=): a run with a timeout of its own, and one that begins later."""

from __future__ import annotations

import sqlite3
from datetime import timedelta

import pytest
from waiting import until_status

from holdfast import AsyncClient, Client, Concurrency, Context, WorkflowFailed, workflow
from holdfast.errors import InvalidOption, RunEnded
from holdfast.testing import TestEngine


@workflow
async def order(ctx: Context, item: str) -> str:
    return item


@workflow(timeout=600)
async def waits(ctx: Context) -> str:
    return await ctx.wait_for_signal("go")


@workflow
async def free(ctx: Context) -> str:
    return await ctx.wait_for_signal("go")


async def statuses(engine, *runs):
    return [(await engine.get(run)).status for run in runs]


# -- timeout ------------------------------------------------------------------------------------------------------


def test_the_timeout_of_a_start_is_used_instead_of_that_of_the_workflow(played):
    async def scenario():
        async with TestEngine([waits, free]) as engine:
            await engine.start(waits, id="own")
            await engine.start(waits, id="short", timeout="1 minute")
            await engine.start(waits, id="long", timeout=timedelta(hours=1))
            await engine.start(free, id="free", timeout=60)
            assert [(await engine.get(run)).timeout for run in ("own", "short", "long")] == [None, 60.0, 3600.0]
            await engine.advance(61)
            assert await statuses(engine, "own", "short", "long", "free") == [
                "running", "timed_out", "running", "timed_out",
            ]  # fmt: skip
            await engine.advance(600)
            assert await statuses(engine, "own", "long") == ["timed_out", "running"]
            await engine.advance(3600)
            assert await statuses(engine, "long") == ["timed_out"]

    played(scenario)


def test_a_retry_a_restart_a_fork_and_the_next_generation_keep_the_timeout(played):
    @workflow
    async def goes_on(ctx: Context, n: int) -> str:
        if n:
            raise ctx.continue_as_new(n - 1)
        await ctx.step("first", lambda: 1)
        return await ctx.wait_for_signal("go")

    async def scenario():
        async with TestEngine([goes_on]) as engine:
            for run in ("retried", "restarted", "forked"):
                await engine.start(goes_on, 1, id=run, timeout=60)
            await engine.advance(50)
            await engine.fork("forked", from_step="first", id="fork")
            await engine.advance(11)
            assert await statuses(engine, "retried", "restarted", "forked", "fork") == [*["timed_out"] * 3, "running"]
            await engine.retry("retried")
            await engine.restart("restarted")
            await engine.advance(30)
            assert await statuses(engine, "retried", "restarted") == ["running", "running"], "it begins again"
            await engine.advance(31)
            assert await statuses(engine, "retried", "restarted", "fork") == ["timed_out"] * 3

    played(scenario)


def test_a_timeout_of_a_start_ends_the_run_on_every_store(url, played, engine_on):
    async def scenario():
        async with engine_on(url, [free]) as engine:
            handle = await engine.start(free, id="r", timeout=0.05)
            with pytest.raises(WorkflowFailed) as caught:
                await handle.result(20)
            assert caught.value.status == "timed_out"

    played(scenario)


# -- delay --------------------------------------------------------------------------------------------------------


def test_a_delayed_run_begins_when_its_delay_is_over(played):
    async def scenario():
        async with TestEngine([order]) as engine:
            began = engine.now()
            handle = await engine.start(order, "x", id="r", delay="1 hour")
            info = await handle.info()
            assert (info.status, info.started_at, info.holder) == ("pending", None, None)
            assert info.starts_at == info.due_at == began + timedelta(hours=1)
            await engine.advance("59 minutes")
            assert await engine.resume("r") == await handle.info(), "resume does not begin it earlier"
            assert (await handle.info()).status == "pending"
            await engine.advance("2 minutes")
            assert await handle.result() == "x"
            info = await handle.info()
            assert (info.started_at, info.starts_at) == (began + timedelta(hours=1), None)

    played(scenario)


def test_a_delay_is_kept_on_every_store_and_zero_is_none(url, played, engine_on):
    async def scenario():
        async with engine_on(url, [order]) as engine:
            assert await (await engine.start(order, "now", delay=0)).result(20) == "now"
            handle = await engine.start(order, "later", id="r", delay=0.3)
            assert (await handle.info()).status == "pending"
            assert await handle.result(20) == "later"
            info = await handle.info()
            assert info.started_at - info.created_at >= timedelta(seconds=0.3)

    played(scenario)


def test_signals_to_a_delayed_run_are_kept_and_its_timeout_counts_from_its_begin(played):
    async def scenario():
        async with TestEngine([free]) as engine:
            handle = await engine.start(free, id="r", delay=600, timeout=60)
            await handle.signal("go", "early")
            await engine.start_or_signal(free, id="r", name="go", payload="too", delay=5)
            assert (await handle.info()).status == "pending"
            silent = await engine.start(free, id="s", delay=600, timeout=60)
            await engine.advance(650)
            assert await handle.result() == "early"
            assert (await silent.info()).status == "running"
            await engine.advance(11)
            assert (await silent.info()).status == "timed_out"

    played(scenario)


def test_start_or_signal_delays_the_run_that_it_starts(played):
    async def scenario():
        async with TestEngine([free]) as engine:
            handle = await engine.start_or_signal(free, id="r", name="go", payload="x", delay=600, timeout=60)
            info = await handle.info()
            assert (info.status, info.timeout, info.starts_at) == ("pending", 60.0, info.due_at)
            await engine.advance(601)
            assert await handle.result() == "x"

    played(scenario)


def test_a_cancel_ends_a_delayed_run_at_once(url, played, engine_on):
    async def scenario():
        async with engine_on(url, [order]) as engine:
            handle = await engine.start(order, "x", id="r", delay=3600)
            await handle.cancel("not needed")
            with pytest.raises(WorkflowFailed, match="before it began: not needed"):
                await handle.result(20)
            with pytest.raises(RunEnded):
                await handle.signal("go")
            await engine.retry("r")
            assert await handle.result(20) == "x", "a retry begins it at once"

    played(scenario)


def test_a_restart_begins_a_delayed_run_at_once(url, played, engine_on):
    async def scenario():
        async with engine_on(url, [order]) as engine:
            handle = await engine.start(order, "x", id="r", delay=3600)
            await engine.restart("r")
            assert await handle.result(20) == "x"

    played(scenario)


def test_a_delayed_run_holds_its_place_in_limits(played):
    @workflow(concurrency=Concurrency(1, on_excess="queue"))
    async def limited(ctx: Context, item: str) -> str:
        return item

    async def scenario():
        async with TestEngine([limited]) as engine:
            await engine.start(limited, "a", id="a", delay=600)
            await engine.start(limited, "b", id="b")
            await engine.start(limited, "c", id="c", delay=1200)
            await engine.settle()
            assert await statuses(engine, "a", "b", "c") == ["pending", "queued", "queued"]
            await engine.advance(601)
            assert await statuses(engine, "a", "b", "c") == ["completed", "completed", "pending"]
            await engine.advance(600)
            assert await statuses(engine, "c") == ["completed"]

    played(scenario)


def test_children_have_timeouts_and_delays(played):
    @workflow
    async def parent(ctx: Context) -> str:
        began = ctx.now()
        value = await ctx.child(order, "x", delay="1 hour")
        assert ctx.now() - began >= timedelta(hours=1)
        child = await ctx.start_child(free, timeout=60)
        with pytest.raises(WorkflowFailed) as caught:
            await child.result()
        return f"{value} {caught.value.status}"

    async def scenario():
        async with TestEngine([parent, order, free]) as engine:
            handle = await engine.start(parent)
            await engine.advance("2 hours")
            assert await handle.result() == "x timed_out"

    played(scenario)


def test_both_clients_start_delayed_runs_also_in_a_transaction(played, tmp_path):
    url = f"sqlite:///{tmp_path}/hf.db"
    with Client(url) as hf:
        hf.runs.start("order", "x", id="r", delay=60, timeout="5 minutes")
        info = hf.runs.get("r")
        assert (info.status, info.timeout, info.starts_at) == ("pending", 300.0, info.created_at + timedelta(minutes=1))
        hf.runs.start_or_signal("order", "x", id="s", name="go", delay=60, timeout=7)
        assert (hf.runs.get("s").timeout, hf.runs.get("s").starts_at) == (7.0, hf.runs.get("s").due_at)
        connection = sqlite3.connect(tmp_path / "hf.db", isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        hf.runs.start("order", "x", id="t", delay=60, connection=connection)
        connection.execute("COMMIT")
        connection.close()
        assert hf.runs.get("t").starts_at is not None

    async def scenario():
        async with AsyncClient(url) as hf:
            await hf.runs.start("order", "x", id="a", delay=60, timeout=7)
            await hf.runs.start_or_signal("order", "x", id="b", name="go", delay=60, timeout=7)
            for run in "ab":
                assert ((await hf.runs.get(run)).timeout, (await hf.runs.get(run)).status) == (7.0, "pending")

    played(scenario)


def test_a_delayed_run_is_exported_and_imported(played, engine_on, tmp_path):
    async def scenario():
        async with engine_on("memory://", [order]) as engine:
            await engine.start(order, "x", id="r", delay=3600, timeout=70)
            history = await engine.export("r")
        async with engine_on(f"sqlite:///{tmp_path}/hf.db", [order]) as engine:
            assert (await engine.import_(history)).status == "cancelled"
            await engine.retry("r")
            info = await until_status(engine, "r", "completed")
            assert (info.timeout, info.starts_at) == (70.0, None)
            await engine.import_(history, id="s", run=True)
            assert (await until_status(engine, "s", "completed")).timeout == 70.0

    played(scenario)


def test_a_duration_must_not_be_negative(played, engine_on):
    async def scenario():
        async with engine_on("memory://", [order]) as engine:
            for wrong in ({"delay": -1}, {"timeout": "soon"}):
                with pytest.raises(InvalidOption, match=next(iter(wrong))):
                    await engine.start(order, "x", **wrong)

    played(scenario)
