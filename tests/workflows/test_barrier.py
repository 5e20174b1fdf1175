"""What was delivered is durable before the next effect begins, and before a client gets the result."""

from __future__ import annotations

import asyncio

import pytest
from waiting import until_blocked

from holdfast import Context, Retry, WorkflowFailed, current_step, step, workflow
from holdfast.commands.runs import RecordRun
from holdfast.errors import NonDeterminismError, StoreUnavailable


class HeldRecords:
    """Holds the records of an engine's runs back until `let_go`."""

    def __init__(self, engine) -> None:
        self._send = engine._worker.send
        self.kept: list[tuple[object, object]] = []
        self.open = False
        engine._worker.send = self.send

    def send(self, command, answer):
        if isinstance(command, RecordRun) and not self.open:
            self.kept.append((command, answer))
        else:
            self._send(command, answer)

    def let_go(self):
        self.open = True
        for command, answer in self.kept:
            self._send(command, answer)


async def some_turns():
    for _ in range(50):
        await asyncio.sleep(0)
    await asyncio.sleep(0.02)


def test_a_step_begins_only_when_earlier_results_are_recorded(url, played, engine_on):
    done = []

    @workflow
    async def two(ctx: Context) -> list[str]:
        await ctx.step("first", done.append, "first")
        await ctx.step("second", done.append, "second")
        return done

    async def scenario():
        async with engine_on(url, [two]) as engine:
            held = HeldRecords(engine)
            handle = await engine.start(two)
            while not held.kept:
                await asyncio.sleep(0.01)
            await some_turns()
            assert done == ["first"], "its result is not durable: a crash would run it again, after the second"
            assert (await handle.info()).status == "running"
            held.let_go()
            assert await handle.result() == ["first", "second"]

    played(scenario)


def test_a_record_is_sent_again_after_an_outage_and_no_step_begins_meanwhile(url, played, engine_on):
    done, tries = [], []

    @workflow
    async def two(ctx: Context) -> int:
        await ctx.step("first", done.append, 1)
        await ctx.step("second", done.append, 2)
        return len(done)

    async def scenario():
        async with engine_on(url, [two]) as engine:
            send = engine._worker.send

            def away(command, answer):
                if isinstance(command, RecordRun) and len(tries) < 2:
                    tries.append(list(done))
                    engine._worker.later(0, lambda: answer(StoreUnavailable("away")))
                else:
                    send(command, answer)

            engine._worker.send = away
            assert await (await engine.start(two)).result() == 2

    played(scenario)
    assert tries == [[1], [1]]
    assert done == [1, 2]


@pytest.mark.parametrize("change", ["other-arguments", "another-step", "fewer-steps"])
def test_an_error_about_changed_code_shows_the_history_and_the_code(tmp_path, played, engine_on, change):
    url = f"sqlite:///{tmp_path}/h.db"

    def made(changed):
        @workflow(name="orders")
        async def orders(ctx: Context) -> int:
            if not changed:
                await ctx.step("charge", abs, -5)
            elif change == "other-arguments":
                await ctx.step("charge", abs, -6)
            elif change == "another-step":
                await ctx.step("refund", abs, -5)
            await ctx.wait_for_signal("go")
            return 1

        return orders

    async def scenario():
        first, second = made(changed=False), made(changed=True)
        async with engine_on(url, [first], park_after=0.05) as engine:
            handle = await engine.start(first, id="r")
            while await handle.status() != "suspended":
                await asyncio.sleep(0.01)
        async with engine_on(url, [second]) as engine:
            await engine.signal("r", "go")
            blocked = await until_blocked(engine, "r")
            assert blocked.reason.type == f"holdfast.errors.{NonDeterminismError.__name__}"
            assert "charge" in blocked.reason.message
            assert (await engine.get("r")).entries == 2, "the history is as it was"
        async with engine_on(url, [first]) as engine:
            return await engine.handle("r", first).result()

    assert played(scenario) == 1


def test_failed_attempts_are_counted_across_replays(tmp_path, played, engine_on):
    url, tries = f"sqlite:///{tmp_path}/h.db", []

    @step(retry=Retry(max_attempts=3, initial=0.5, factor=1, jitter=False))
    def fails() -> None:
        tries.append(current_step().attempt)
        raise ConnectionError("away")

    @workflow
    async def stubborn(ctx: Context) -> None:
        await fails()

    async def scenario():
        async with engine_on(url, [stubborn]) as engine:
            await engine.start(stubborn, id="r")
            while not tries:
                await asyncio.sleep(0.005)
        async with engine_on(url, [stubborn]) as engine:
            with pytest.raises(WorkflowFailed, match="away"):
                await engine.handle("r").result()

    played(scenario)
    assert tries == [1, 2, 3]


def test_sets_of_tasks_have_the_same_order_in_every_replay(url, played, engine_on):
    """`asyncio.wait` takes a set: the order must not depend on memory addresses."""

    @workflow
    async def waits(ctx: Context, n: int) -> list[str]:
        tasks = {asyncio.ensure_future(ctx.step(f"s{place}", str, place)) for place in range(n)}
        order = [task.get_name() for task in tasks]
        await asyncio.wait(tasks)
        return order

    async def scenario():
        async with engine_on(url, [waits]) as engine:
            junk, seen = [], []
            for n in range(5):
                seen.append(await (await engine.start(waits, 20)).result())
                junk.append([object() for _ in range(n * 7)])
            assert all(order == seen[0] for order in seen)

    played(scenario)


@pytest.mark.parametrize("run", range(3))
def test_a_child_and_attributes_are_in_the_store_before_the_next_effect_begins(url, played, engine_on, run):
    seen = []

    @workflow
    async def below(ctx: Context) -> None:
        await ctx.wait_for_signal("go")

    @workflow
    async def above(ctx: Context) -> None:
        await ctx.start_child(below, id="child")
        await ctx.step("look at the child", look, "child")
        await ctx.set_attributes(colour="red")
        await ctx.step("look at the attributes", look, ctx.run_id)

    async def look(name):
        info = await engines[0].get(name)
        seen.append((info.id, info.attributes))

    engines = []

    async def scenario():
        async with engine_on(url, [above, below]) as engine:
            engines.append(engine)
            handle = await engine.start(above, id="above")
            await handle.result(timeout=20)
            assert seen == [("child", {}), ("above", {"colour": "red"})]

    played(scenario)


def test_a_step_after_a_child_waits_until_the_child_is_recorded(url, played, engine_on):
    done = []

    @workflow
    async def below(ctx: Context) -> None:
        pass

    @workflow
    async def above(ctx: Context) -> None:
        await ctx.start_child(below)
        await ctx.step("effect", done.append, "effect")

    async def scenario():
        async with engine_on(url, [above, below]) as engine:
            held = HeldRecords(engine)
            handle = await engine.start(above)
            while not held.kept:
                await asyncio.sleep(0.01)
            await some_turns()
            assert done == []
            held.let_go()
            await handle.result()
            assert done == ["effect"]

    played(scenario)


def test_a_poll_does_not_end_before_the_store_was_read(url, played, engine_on):
    @workflow
    async def polling(ctx: Context) -> str:
        await ctx.step("send", send, ctx.run_id)
        return await ctx.wait_for_signal("word", timeout=0)

    async def send(run):
        await engines[0].signal(run, "word", "there")

    engines = []

    async def scenario():
        async with engine_on(url, [polling]) as engine:
            engine._worker._notified = lambda runs: None  # as if every hint were late
            engines.append(engine)
            held = HeldRecords(engine)
            handle = await engine.start(polling)
            while not held.kept:
                await asyncio.sleep(0.01)
            await some_turns()
            held.let_go()
            assert await handle.result(timeout=20) == "there"

    played(scenario)
