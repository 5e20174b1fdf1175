"""`ChildHandle.signal` and `.cancel`: what a run sends to its children, once each."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing

import pytest
from waiting import eventually_async, until_status

from holdfast import Context, Retry, WorkflowFailed, workflow
from holdfast.commands import ForceRelease
from holdfast.commands.runs import ReadRun
from holdfast.errors import RunEnded
from holdfast.rules.runs.record import worker_key


@workflow
async def reader(ctx: Context, count: int) -> list[str]:
    found = [await ctx.wait_for_signal("said") for _ in range(count)]
    if count > 1:
        await ctx.wait_for_signal("over")
    return found + await ctx.signals("said")


@workflow
async def sleeper(ctx: Context) -> None:
    await ctx.sleep("1 day")


async def crash(engine) -> None:
    worker = engine._worker
    lease = worker._lease
    await worker.execute(ForceRelease(key=worker_key(worker.id), by="test", reason="crash"))
    worker._loop.call_soon(worker._lost, lease)


async def events(engine, run):
    seen = await engine._worker.execute(ReadRun(run=run, history=True))
    return [(event.kind, event.name, event.key) for event in seen.claim.events]


def test_a_child_gets_the_signals_of_its_parent_in_order(url, played, engine_on):
    @workflow
    async def parent(ctx: Context) -> list[str]:
        child = await ctx.start_child(reader, 3)
        for word in ("a", "b", "c"):
            await child.signal("said", word)
        await child.signal("over")
        return await child.result()

    async def scenario():
        async with engine_on(url, [parent, reader], park_after=0.05) as engine:
            assert await (await engine.start(parent, id="p")).result(20) == ["a", "b", "c"]
            keys = [key for kind, _, key in await events(engine, "p/reader") if kind == "signal"]
            assert keys == [
                "signal/p:signal#reader.said", "signal/p:signal#reader.said#2", "signal/p:signal#reader.said#3",
                "signal/p:signal#reader.over",
            ]  # fmt: skip

    played(scenario)


def test_a_signal_is_sent_once_though_the_parent_is_replayed(url, played, engine_on):
    @workflow
    async def parent(ctx: Context) -> list[str]:
        child = await ctx.start_child(reader, 2)
        await child.signal("said", "a")
        await ctx.wait_for_signal("go")
        await child.signal("said", "b")
        await ctx.wait_for_signal("go")
        await child.signal("over")
        return await child.result()

    async def scenario():
        async with engine_on(url, [parent, reader]) as engine:
            handle = await engine.start(parent, id="p")
            for _ in range(2):
                await eventually_async(lambda: "p" in engine._worker.drivers)
                await crash(engine)
                await handle.signal("go")
            assert await handle.result(20) == ["a", "b"]
            assert [kind for kind, _, _ in await events(engine, "p/reader")] == ["signal"] * 3

    played(scenario)


def test_a_signal_to_a_child_that_has_ended_raises_also_in_a_replay(url, played, engine_on):
    @workflow
    async def parent(ctx: Context) -> list[str]:
        child = await ctx.start_child(reader, 0)
        await child.result()
        found = []
        try:
            await child.signal("said", "late")
        except RunEnded as error:
            found += [str(error), error.run_id, error.status]
        await ctx.wait_for_signal("go")
        return found

    async def scenario():
        async with engine_on(url, [parent, reader], park_after=0.05) as engine:
            handle = await engine.start(parent, id="p")
            await until_status(engine, "p", "suspended")
            await handle.signal("go")
            assert await handle.result(20) == [
                "the child 'p/reader' has ended (completed). The signal 'said' was not sent.", "p/reader", "completed",
            ]  # fmt: skip

    played(scenario)


def test_neither_a_signal_nor_a_cancel_is_sent_to_another_run_that_has_the_id(url, played, engine_on):
    @workflow
    async def parent(ctx: Context) -> str:
        child = await ctx.start_child(reader, 1, id="taken")
        try:
            await child.signal("said", "not for you")
        except RunEnded as error:
            await child.cancel()
            return str(error)
        return "sent"

    async def scenario():
        async with engine_on(url, [parent, reader]) as engine:
            other = await engine.start(reader, 1, id="taken")
            assert "was not started" in await (await engine.start(parent, id="p")).result(20)
            await other.signal("said", "hello")
            assert await other.result(20) == ["hello"]
            assert [kind for kind, _, _ in await events(engine, "taken")] == ["signal"]

    played(scenario)


def test_a_handle_cancels_its_child_once(url, played, engine_on):
    @workflow
    async def parent(ctx: Context) -> str:
        child = await ctx.start_child(sleeper)
        await child.cancel()
        await child.cancel()
        try:
            await child.result()
        except WorkflowFailed as error:
            await child.cancel()
            return error.status
        return "completed"

    async def scenario():
        async with engine_on(url, [parent, sleeper], park_after=0.05) as engine:
            assert await (await engine.start(parent, id="p")).result(20) == "cancelled"
            assert (await engine.get("p/sleeper")).status == "cancelled"
            assert len(await events(engine, "p/sleeper")) == 1

    played(scenario)


def test_signals_that_are_sent_at_the_same_time_all_arrive(url, played, engine_on):
    @workflow
    async def parent(ctx: Context) -> list[str]:
        children = [await ctx.start_child(reader, 1) for _ in range(3)]
        await asyncio.gather(*(child.signal("said", str(n)) for n, child in enumerate(children)))
        return [word for child in children for word in await child.result()]

    async def scenario():
        async with engine_on(url, [parent, reader]) as engine:
            assert await (await engine.start(parent)).result(20) == ["0", "1", "2"]

    played(scenario)


def test_a_fork_sends_the_signals_to_its_own_child(url, played, engine_on):
    keep = []

    @workflow
    async def parent(ctx: Context) -> list[str]:
        child = await ctx.start_child(reader, 2)
        await child.signal("said", "a")
        await child.signal("said", "b")
        await ctx.step("then", lambda: keep.append(ctx))
        await ctx.wait_for_signal("go")
        await child.signal("over")
        return await child.result()

    async def scenario():
        async with engine_on(url, [parent, reader], park_after=0.05) as engine:
            await engine.start(parent, id="p")
            await until_status(engine, "p", "suspended")
            await engine.fork("p", from_step="then", id="f")
            await engine.signal("f", "go")
            assert await engine.handle("f", parent).result(20) == ["a", "b"]
            assert len(await events(engine, "p/reader")) == 2

    played(scenario)


def test_a_later_attempt_of_a_workflow_sends_no_signal_twice_to_a_child_that_it_keeps(url, played, engine_on):
    tried = []

    @workflow(retry=Retry(max_attempts=2, initial=0.01))
    async def parent(ctx: Context) -> list[str]:
        child = await ctx.start_child(reader, 1, id="kept")
        await child.signal("said", "a")
        found = await child.result()

        def fail_once():
            tried.append(1)
            if len(tried) == 1:
                raise ValueError

        await ctx.step("fail", fail_once)
        return found

    async def scenario():
        async with engine_on(url, [parent, reader]) as engine:
            assert await (await engine.start(parent, id="p")).result(20) == ["a"]
            assert len(await events(engine, "kept")) == 1

    played(scenario)


def test_names_with_number_signs_do_not_collide(played, engine_on):
    @workflow
    async def hears(ctx: Context) -> list[str]:
        return [await ctx.wait_for_signal(name) for name in ("x", "x", "x#2")]

    @workflow
    async def parent(ctx: Context) -> list[str]:
        child = await ctx.start_child(hears)
        await asyncio.gather(child.signal("x", "1"), child.signal("x", "2"), child.signal("x#2", "3"))
        return await child.result()

    async def scenario():
        async with engine_on("memory://", [parent, hears]) as engine:
            assert sorted(await (await engine.start(parent)).result(20)) == ["1", "2", "3"]

    played(scenario)


def test_a_signal_that_cannot_be_encoded_is_an_error_of_the_workflow(played, engine_on):
    @workflow
    async def parent(ctx: Context) -> None:
        child = await ctx.start_child(reader, 0)
        await child.signal("said", object())

    async def scenario():
        async with engine_on("memory://", [parent, reader]) as engine:
            with pytest.raises(WorkflowFailed, match="the signal 'said'"):
                await (await engine.start(parent)).result(20)

    played(scenario)


def test_each_generation_sends_its_signals_to_a_child_that_it_starts_again(url, played, engine_on):
    @workflow
    async def parent(ctx: Context, n: int) -> list[str]:
        child = await ctx.start_child(reader, 1)
        await child.signal("said", str(n))
        found = await child.result()
        if n < 2:
            raise ctx.continue_as_new(n + 1)
        return found

    async def scenario():
        async with engine_on(url, [parent, reader]) as engine:
            assert await (await engine.start(parent, 1, id="p")).result(20) == ["2"]
            assert [key for _, _, key in await events(engine, "p~2/reader")] == ["signal/p~2:signal#reader.said"]

    played(scenario)


def test_a_child_whose_record_is_damaged_is_not_signalled_and_does_not_keep_its_parent(tmp_path, played, engine_on):
    @workflow
    async def parent(ctx: Context) -> str:
        child = await ctx.start_child(sleeper)
        await ctx.wait_for_signal("go")
        try:
            await child.signal("said", "a")
        except RunEnded as error:
            return str(error)
        return "sent"

    async def scenario():
        async with engine_on(f"sqlite:///{tmp_path}/s.db", [parent, sleeper]) as engine:
            handle = await engine.start(parent, id="p")
            await started(engine, "p/sleeper")
            damage_children(tmp_path)
            await handle.signal("go")
            answer = await handle.result(20)
            assert answer.startswith("the record of the child 'p/sleeper' cannot be read: a stored run cannot be read")
            assert answer.endswith("The signal 'said' was not sent.")

    played(scenario)


@pytest.mark.parametrize("by_its_handle", [True, False])
def test_a_child_whose_record_is_damaged_does_not_keep_a_parent_that_cancels_it(
    tmp_path, played, engine_on, caplog, by_its_handle
):
    @workflow
    async def parent(ctx: Context) -> None:
        child = await ctx.start_child(sleeper)
        await ctx.wait_for_signal("go")
        await child.cancel()

    async def scenario():
        async with engine_on(f"sqlite:///{tmp_path}/s.db", [parent, sleeper]) as engine:
            handle = await engine.start(parent, id="p")
            await started(engine, "p/sleeper")
            damage_children(tmp_path)
            await (handle.signal("go") if by_its_handle else handle.cancel())
            await until_status(engine, "p", "completed" if by_its_handle else "cancelled")
            assert "the child p/sleeper of the run p was not cancelled: a stored run cannot be read" in caplog.text

    played(scenario)


def test_a_parked_run_with_a_damaged_child_continues(tmp_path, played, engine_on):
    @workflow
    async def parent(ctx: Context) -> str:
        child = await ctx.start_child(sleeper)
        await ctx.wait_for_signal("go")
        await child.cancel()
        return "done"

    async def scenario():
        async with engine_on(f"sqlite:///{tmp_path}/s.db", [parent, sleeper], park_after=0.05) as engine:
            handle = await engine.start(parent, id="p")
            await until_status(engine, "p", "suspended")
            await started(engine, "p/sleeper", "suspended")
            damage_children(tmp_path)
            await handle.signal("go")
            assert await handle.result(20) == "done"

    played(scenario)


async def started(engine, run, status="running"):
    async def is_there():
        return bool((await engine.list(prefix=run)).runs)

    await eventually_async(is_there)
    await until_status(engine, run, status)


def damage_children(tmp_path):
    with closing(sqlite3.connect(tmp_path / "s.db")) as db, db:
        db.execute("UPDATE runs SET record = '{' WHERE id LIKE 'p/%'")
