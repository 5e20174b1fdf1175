"""`ctx.state`: values that a run keeps and shares, changed exactly once despite crashes."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from holdfast import AsyncClient, Client, Context, Engine, StepFailed, workflow
from holdfast.commands.runs import RecordRun
from holdfast.errors import InvalidKey, StoreUnavailable
from holdfast.state import DurableMutex, initial_lock_record
from holdfast.testing import TestEngine


class Basket(msgspec.Struct):
    items: list[str] = []
    at: datetime | None = None


@workflow
async def every_method(ctx: Context) -> list[Any]:
    n = ctx.state.workflow("n", initial=10)
    things = ctx.state.workflow("things", initial=[])
    settings = ctx.state.workflow("settings")
    seen: list[Any] = [await n.get(), await n.increment(), await n.decrement(by=3), await n.update(lambda v: v * 2)]
    seen += [await things.append("a"), await things.append("b"), await things.append("c")]
    seen += [await things.remove_first(), await things.remove_last(), await things.get()]
    seen += [await settings.get(), await settings.merge({"mode": "slow"}), await settings.merge({"n": 1})]
    await n.set(5)
    seen.append(await n.get())
    await n.delete()
    seen.append(await n.get())
    return seen


EVERY_ANSWER = [
    10, 11, 8, 16, ["a"], ["a", "b"], ["a", "b", "c"], "a", "c", ["b"], None, {"mode": "slow"},
    {"mode": "slow", "n": 1}, 5, None,
]  # fmt: skip


def test_each_state_method_has_the_same_result_as_outside_a_run(url, played, engine_on):
    async def scenario():
        async with engine_on(url, [every_method]) as engine:
            assert await (await engine.start(every_method)).result() == EVERY_ANSWER

    played(scenario)


def test_a_value_is_shared_with_other_runs_and_with_clients(url, played, engine_on):
    @workflow
    async def counts(ctx: Context) -> int:
        return await ctx.state.workflow("n", initial=0).increment()

    @workflow
    async def others(ctx: Context) -> int:
        return await ctx.state.workflow("n", initial=100).increment()

    async def scenario():
        async with engine_on(url, [counts, others]) as engine, AsyncClient(url) as hf:
            assert await (await engine.start(counts)).result() == 1
            assert await hf.state.workflow("counts", "n").increment(by=5) == 6
            assert await (await engine.start(counts)).result() == 7
            assert await (await engine.start(others)).result() == 101, "another workflow has a slot of its own"
            assert await hf.state.workflow("counts", "n").get() == 7

    played(scenario)


def test_execution_state_is_shared_with_children_and_session_state_is_not(url, played, engine_on):
    @workflow
    async def child(ctx: Context, name: str) -> Any:
        ctx.state.session("mine", initial=0).increment()
        await ctx.state.execution("log", initial=[]).append(name)
        return ctx.state.session("mine").get()

    @workflow
    async def parent(ctx: Context) -> list[Any]:
        ctx.state.session("mine", initial=10).increment()
        first = await ctx.child(child, "a")
        second = await ctx.child(child, "b")
        return [await ctx.state.execution("log").get(), first, second, ctx.state.session("mine").get()]

    async def scenario():
        async with engine_on(url, [parent, child]) as engine:
            for _ in range(2):
                assert await (await engine.start(parent)).result() == [["a", "b"], 1, 1, 11]

    played(scenario)


def test_a_hundred_runs_on_two_engines_lose_no_change(url, played, engine_on):
    @workflow
    async def counts(ctx: Context) -> int:
        n = ctx.state.workflow("n", initial=0)
        await n.increment()
        return await n.update(lambda value: value + 1)

    async def scenario():
        async with engine_on(url, [counts], name="one") as one, engine_on(url, [counts], name="two") as two:
            handles = [await (one, two)[n % 2].start(counts) for n in range(100)]
            await asyncio.gather(*(handle.result() for handle in handles))
            async with AsyncClient(url) as hf:
                assert await hf.state.workflow("counts", "n").get() == 200

    played(scenario)


def test_a_typed_value_has_its_type_in_every_replay(url, played, engine_on):
    @workflow
    async def fills(ctx: Context) -> list[str]:
        basket = ctx.state.execution("basket", type=Basket)
        assert await basket.get() is None
        made = await basket.update(lambda _: Basket(["apple"], datetime(2026, 1, 2, tzinfo=UTC)))
        await ctx.wait_for_signal("go")
        again = await basket.get()
        assert isinstance(made, Basket)
        assert isinstance(again, Basket)
        assert again == made
        return again.items

    async def scenario():
        async with engine_on(url, [fills]) as engine:
            await engine.start(fills, id="r")
            async with AsyncClient(url) as hf:
                while await hf.state.execution("r", "basket").get() is None:
                    await asyncio.sleep(0.01)
        async with engine_on(url, [fills]) as engine:
            await engine.signal("r", "go")
            assert await engine.handle("r", fills).result() == ["apple"]

    with Client(url) as hf:
        hf.locks.list()  # a memory store exists as long as a client has it open
        played(scenario)


class Unlucky(Engine):
    """An engine whose first record that writes a slot is executed, and its reply is lost."""

    lost = 0

    async def __aenter__(self):
        engine = await super().__aenter__()
        worker, send = self._worker, self._worker.send

        def losing(command, answer):
            def answered(outcome):
                if isinstance(command, RecordRun) and command.swap is not None and not self.lost:
                    self.lost += 1
                    outcome = StoreUnavailable("the answer was lost", ambiguous=True)
                answer(outcome)

            send(command, answered)

        worker.send = losing
        return engine


def test_a_lost_answer_does_not_change_the_value_twice(url, played):
    @workflow
    async def counts(ctx: Context) -> int:
        return await ctx.state.workflow("n", initial=0).increment()

    async def scenario():
        async with Unlucky(url, workflows=[counts], worker_ttl=5, grace=1) as engine:
            assert await (await engine.start(counts)).result() == 1
            assert engine.lost == 1
            assert await (await engine.start(counts)).result() == 2

    played(scenario)


def test_an_exception_of_an_update_function_fails_the_step_and_changes_nothing(url, played, engine_on):
    def never(value):
        raise ValueError(f"not {value}")

    @workflow
    async def tries(ctx: Context) -> list[Any]:
        n = ctx.state.workflow("n", initial=3)
        caught = []
        for attempt in (lambda: n.update(never), lambda: n.append(1), lambda: n.set(object())):
            try:
                await attempt()
            except Exception as error:
                caught.append(type(error).__name__)
        return [*caught, await n.get()]

    async def scenario():
        async with engine_on(url, [tries]) as engine:
            assert await (await engine.start(tries)).result() == [StepFailed.__name__, "StepFailed", "InvalidValue", 3]

    played(scenario)


def test_an_update_that_changes_nothing_is_decided_by_the_current_value(played, engine_on):
    """The run before has added one item, and a client a second one: the next run computes from the first."""

    @workflow
    async def puts(ctx: Context) -> None:
        await ctx.state.workflow("things", initial=[]).update(lambda _: [])

    @workflow(name="puts", version="2")
    async def takes(ctx: Context) -> Any:
        return await ctx.state.workflow("things", initial=[]).remove_first()

    async def scenario():
        async with engine_on("memory://takes", [puts, takes]) as engine, AsyncClient("memory://takes") as hf:
            things = hf.state.workflow("puts", "things")
            send = engine._worker.send

            def meanwhile(command, answer):
                """When the first run's record has its outcome, a client adds an item."""

                def answered(outcome):
                    if isinstance(command, RecordRun) and command.swap is not None and not seen:
                        seen.append(command)
                        put = asyncio.ensure_future(things.append("a"))
                        put.add_done_callback(lambda _: answer(outcome))
                    else:
                        answer(outcome)

                send(command, answered)

            seen: list[RecordRun] = []
            engine._worker.send = meanwhile
            first, second = await engine.start(puts), await engine.start(takes)
            await first.result()
            return await second.result()

    assert played(scenario) == "a"


def test_a_bad_key_is_refused(played, engine_on):
    @workflow
    async def tries(ctx: Context) -> None:
        with pytest.raises(InvalidKey):
            ctx.state.workflow("")
        with pytest.raises(InvalidKey):
            ctx.state.session("a\n")

    async def scenario():
        async with engine_on("memory://", [tries]) as engine:
            await (await engine.start(tries)).result()

    played(scenario)


def test_the_durable_mutex_works_on_a_slot_of_a_run(played):
    entered = []

    @workflow
    async def transfers(ctx: Context) -> None:
        mutex = DurableMutex(lease=60)
        slot = ctx.state.workflow("account-42:lock", initial=initial_lock_record())
        while not (await mutex.try_acquire(slot, holder_id=ctx.run_id, now=ctx.now())).acquired:
            await ctx.sleep("5 seconds")
        try:
            await ctx.step("enter", entered.append, ctx.run_id)
            await ctx.sleep("10 seconds")
            await ctx.step("leave", entered.append, ctx.run_id)
        finally:
            await mutex.release(slot, holder_id=ctx.run_id, now=ctx.now())

    async def scenario():
        async with TestEngine(workflows=[transfers]) as engine:
            handles = [await engine.start(transfers, id=name) for name in "abc"]
            for _ in range(12):
                await engine.advance("5 seconds")
            for handle in handles:
                await handle.result()

    played(scenario)
    assert len(entered) == 6
    assert entered[0::2] == entered[1::2], "nobody entered before the one before had left"
