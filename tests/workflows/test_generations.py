"""`raise ctx.continue_as_new(input)`: what the next generation of a run keeps, and what it begins without."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress

import pytest
from msgspec.structs import replace
from waiting import PATIENCE, eventually, eventually_async, until_status

from holdfast import AsyncClient, Client, Concurrency, Context, Rate, WorkflowFailed, current_step, step, workflow
from holdfast.errors import (
    DeadlockDetected,
    InvalidOption,
    InvalidValue,
    LockTimeout,
    RunEnded,
    WorkflowLimitExceeded,
)
from holdfast.rules.runs.record import Continue
from holdfast.runtime import failpoints
from holdfast.testing import TestEngine
from holdfast.workflow import Retry, driver
from holdfast.workflow.children import Children
from holdfast.workflow.worker import Worker


def shared(url):
    """Skip a store whose records end with its engine."""
    if url.startswith("memory"):
        pytest.skip("what is in memory ends with the engine")


def test_each_generation_begins_with_its_input_an_empty_history_and_keys_of_its_own(url, played, engine_on):
    keys, seen = [], []

    @step
    async def charge(n: int) -> int:
        keys.append(current_step().idempotency_key)
        return n

    @workflow
    async def counting(ctx: Context, n: int = 1) -> str:
        await charge(n)
        seen.append((n, ctx.generation, ctx.attempt, ctx.history_length))
        if n < 3:
            raise ctx.continue_as_new(n + 1)
        return f"{n} generations"

    async def scenario():
        async with engine_on(url, [counting]) as engine:
            handle = await engine.start(counting, 1, id="r", idempotency_key="k", attributes={"customer": "ann"})
            assert await handle.result() == "3 generations", "of the last end"
            run = await engine.get("r")
            assert (run.status, run.generation, run.idempotency_key) == ("completed", 3, "k")
            assert run.attributes == {"customer": "ann"}
            assert (await engine.export("r")).entries[0] == "3"
            same = await engine.start(counting, 1, idempotency_key="k")
            assert same.id == "r"
        assert keys == ["r:charge", "r~2:charge", "r~3:charge"]
        assert seen == [(1, 1, 1, 2), (2, 2, 1, 2), (3, 3, 1, 2)]

    played(scenario)


def test_unread_signals_stay_in_their_order_and_one_key_counts_once_in_all_generations(url, played, engine_on):
    @workflow
    async def inbox(ctx: Context, read: list[int]) -> list[int]:
        if len(read) == 6:
            return read
        found = [await ctx.wait_for_signal("n"), await ctx.wait_for_signal("n")]
        raise ctx.continue_as_new([*read, *found])

    async def scenario():
        async with engine_on(url, [inbox], park_after=0.05) as engine:
            handle = await engine.start(inbox, [], id="r")
            for n in (1, 2, 3):
                await handle.signal("n", n, idempotency_key=f"key {n}")
            await eventually_async(lambda: generation(engine, "r", 2))
            for n in (1, 2, 3, 3, 1):  # the first two were read by another generation
                await handle.signal("n", 100 + n, idempotency_key=f"key {n}")
            await until_status(engine, "r", "suspended")
            for n in (4, 5, 6):
                await handle.signal("n", n, idempotency_key=f"key {n}")
            assert await handle.result() == [1, 2, 3, 4, 5, 6]
            for n in (1, 6):
                await handle.signal("n", n, idempotency_key=f"key {n}")  # known, also to the run that has ended
            with pytest.raises(RunEnded):
                await handle.signal("n", 7, idempotency_key="key 7")

    played(scenario)


async def generation(engine, run, number):
    return (await engine.get(run)).generation >= number


def test_the_lock_of_an_open_block_is_carried_and_entered_again_with_the_same_token(url, played, engine_on):
    tokens = []

    @workflow
    async def holding(ctx: Context, n: int) -> str:
        async with ctx.mutex("till", scope="global") as lease, ctx.mutex(f"only {n}", scope="global"):
            tokens.append((n, lease.token))  # also in a replay
            await ctx.wait_for_signal("go")
            if n < 3:
                raise ctx.continue_as_new(n + 1)
        await ctx.wait_for_signal("go")
        return "done"

    async def scenario():
        async with engine_on(url, [holding], park_after=0.05) as engine, AsyncClient(url) as hf:
            handle = await engine.start(holding, 1, id="r")
            for n in (1, 2, 3):
                await eventually_async(lambda n=n: generation(engine, "r", n))
                await until_status(engine, "r", "suspended")
                assert "till" in (await engine.get("r")).locks
                if not url.startswith("memory"):
                    with pytest.raises(LockTimeout):
                        await hf.lock("till", wait=0).acquire()
                await handle.signal("go")
            await eventually_async(lambda: holds(engine, "r", "only 1", "only 2"))
            # What the last generation has not asked for is kept until the end.
            await handle.signal("go")
            assert await handle.result() == "done"
            assert (await engine.get("r")).locks == ()
        assert {n for n, _ in tokens} == {1, 2, 3}
        assert len({token for _, token in tokens}) == 1, tokens

    played(scenario)


async def holds(engine, run, *keys):
    return set((await engine.get(run)).locks) == set(keys)


def test_children_that_live_stay_children_and_later_generations_give_theirs_other_ids(url, played, engine_on):
    @workflow
    async def slow(ctx: Context, name: str) -> str:
        await ctx.wait_for_signal("go")
        return name

    @workflow
    async def parent(ctx: Context, n: int) -> str:
        child = await ctx.start_child(slow, f"child {n}")
        if n == 1:
            raise ctx.continue_as_new(2)
        return await child.result()

    async def scenario():
        async with engine_on(url, [slow, parent], park_after=0.05) as engine:
            handle = await engine.start(parent, 1, id="r")
            await eventually_async(lambda: exists(engine, "r~2/slow"))
            await until_status(engine, "r/slow", "suspended")
            await engine.signal("r/slow", "go")
            await engine.signal("r~2/slow", "go")
            assert await handle.result() == "child 2"
            assert await engine.handle("r/slow").result() == "child 1"
            second = await engine.start(parent, 1, id="s")
            await eventually_async(lambda: exists(engine, "s~2/slow"))
            await second.cancel()
            with pytest.raises(WorkflowFailed):
                await second.result()
            for child in ("s/slow", "s~2/slow"):
                await until_status(engine, child, "cancelled")

    played(scenario)


async def exists(engine, run):
    return any(one.id == run for one in (await engine.list(prefix=run)).runs)


def test_steps_that_are_running_are_cancelled_or_waited_for(url, played, engine_on):
    order = []

    @step
    def blocking(n: int) -> int:
        order.append(("begins", n))
        time.sleep(0.2)
        order.append(("ends", n))
        return n

    @step
    async def endless(n: int) -> None:
        try:
            await asyncio.sleep(1_000)
        finally:
            order.append(("cancelled", n))

    @step
    async def quick() -> None:
        await asyncio.sleep(0.05)

    @workflow
    async def racing(ctx: Context, n: int) -> int:
        if n == 1:
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(blocking(n))
                    group.create_task(endless(n))
                    await quick()
                    raise ctx.continue_as_new(2)
            finally:
                order.append(("left", n))
                await quick()  # begins nothing
                order.append(("never", n))
        order.append(("next", n))
        return n

    async def scenario():
        async with engine_on(url, [racing]) as engine:
            assert await (await engine.start(racing, 1, id="r")).result() == 2
        assert ("never", 1) not in order
        assert order.index(("next", 2)) > order.index(("ends", 1)), order
        assert order.index(("next", 2)) > order.index(("cancelled", 1)), order

    played(scenario)


def test_a_signal_that_comes_while_a_step_is_waited_for_is_read_by_the_next_generation(url, played, engine_on):
    begun, go = threading.Event(), threading.Event()

    @step
    def blocking() -> None:
        begun.set()
        assert go.wait(20)

    @workflow
    async def waiting(ctx: Context, n: int) -> list[int]:
        if n == 1:
            task = asyncio.ensure_future(blocking())
            await ctx.wait_for_signal("continue")
            assert not task.done()
            raise ctx.continue_as_new(2)
        return await ctx.signals("n")

    async def scenario():
        async with engine_on(url, [waiting]) as engine:
            handle = await engine.start(waiting, 1, id="r")
            await asyncio.to_thread(begun.wait, 20)
            await handle.signal("continue")
            await eventually_async(lambda: has_ended(engine, "r"))
            await handle.signal("n", 7)
            await eventually_async(lambda: asyncio.sleep(0, engine._worker.drivers["r"].seen == 2))
            go.set()
            assert await handle.result() == [7]

    async def has_ended(engine, run):
        return isinstance(engine._worker.drivers[run].end, Continue)

    played(scenario)


def test_the_id_of_another_run_that_a_child_was_refused_is_not_cancelled_by_a_later_generation(url, played, engine_on):
    @workflow
    async def other(ctx: Context, n: int) -> str:
        await ctx.wait_for_signal("go")
        return "alive"

    @workflow
    async def parent(ctx: Context, n: int) -> None:
        if n == 1:
            await ctx.start_child(other, 1, id="other")
            raise ctx.continue_as_new(2)
        await ctx.wait_for_signal("never")

    async def scenario():
        async with engine_on(url, [other, parent], park_after=0.05) as engine:
            theirs = await engine.start(other, 1, id="other")
            handle = await engine.start(parent, 1, id="r")
            await eventually_async(lambda: generation(engine, "r", 2))
            await handle.cancel()
            with pytest.raises(WorkflowFailed, match="cancelled"):
                await handle.result()
            await theirs.signal("go")
            assert await theirs.result() == "alive"

    played(scenario)


def test_a_cancel_that_the_generation_has_not_received_is_received_by_the_next_one(url, played, engine_on, monkeypatch):
    monkeypatch.setattr(Worker, "_notified", lambda self, runs: None)  # the worker learns of events by its records

    async def scenario():
        @step
        async def cancel() -> None:
            await engine.cancel("r")

        @workflow
        async def twice(ctx: Context, n: int) -> str:
            if n == 1:
                await cancel()
                raise ctx.continue_as_new(2)
            await ctx.sleep(1_000)
            return "never"

        async with engine_on(url, [twice]) as engine:
            handle = await engine.start(twice, 1, id="r")
            with pytest.raises(WorkflowFailed, match="cancelled"):
                await handle.result()
            run = await engine.get("r")
            assert (run.status, run.generation) == ("cancelled", 2)

    played(scenario)


def test_a_cancelled_run_does_not_continue(url, played, engine_on):
    @workflow
    async def stubborn(ctx: Context, n: int) -> str:
        try:
            await ctx.sleep(1_000)
        except asyncio.CancelledError:
            raise ctx.continue_as_new(n + 1) from None
        return "never"

    async def scenario():
        async with engine_on(url, [stubborn]) as engine:
            handle = await engine.start(stubborn, 1, id="s")
            await handle.cancel()
            with pytest.raises(WorkflowFailed, match="cancelled"):
                await handle.result()
            run = await engine.get("s")
            assert (run.status, run.generation) == ("cancelled", 1)

    played(scenario)


def test_a_signal_that_comes_with_the_end_makes_the_run_continue(url, played, engine_on, monkeypatch):
    monkeypatch.setattr(Worker, "_notified", lambda self, runs: None)  # the worker learns of events by its records
    read = []

    async def scenario():
        @step
        async def signal() -> None:
            await engine.signal("r", "n", 7)

        @workflow(on_unread="continue")
        async def returning(ctx: Context, who: str) -> None:
            read.extend(await ctx.signals("n"))
            if not read:
                await signal()

        async with engine_on(url, [returning]) as engine:
            handle = await engine.start(returning, "ann", id="r")
            await handle.result()
            assert (await engine.get("r")).generation == 2
        assert read == [7]

    played(scenario)


def test_a_signal_that_comes_while_the_run_waits_for_a_step_before_it_continues_is_kept(url, played, engine_on):
    async def scenario():
        begun, go = asyncio.Event(), asyncio.Event()

        @step
        async def stubborn() -> None:
            begun.set()
            while not go.is_set():
                with suppress(asyncio.CancelledError):
                    await go.wait()

        @workflow
        async def rounds(ctx: Context, n: int) -> list[int]:
            if n == 1:
                slow = asyncio.create_task(stubborn())
                await ctx.step("quick", begun.wait)
                slow.cancel()
                raise ctx.continue_as_new(2)
            return await ctx.signals("n")

        async with engine_on(url, [rounds]) as engine:
            handle = await engine.start(rounds, 1, id="r")
            drivers = engine._worker.drivers
            await eventually_async(lambda: "r" in drivers and drivers["r"].end is not None)
            await handle.signal("n", 7)
            await eventually_async(lambda: "r" in drivers and drivers["r"]._seen == 1)
            go.set()
            assert await handle.result() == [7]

    played(scenario)


@pytest.mark.parametrize("on_unread", ["continue", "fail"])
def test_a_signal_that_comes_with_the_last_record_before_the_end_is_not_passed_over(
    url, played, engine_on, monkeypatch, on_unread
):
    begun, finish, read = threading.Event(), threading.Event(), []

    @step
    async def first() -> None:
        """Its result is recorded while the second step ends."""
        await eventually_async(begun.is_set)

    @step
    def second() -> None:
        begun.set()
        finish.wait(PATIENCE)

    @workflow(name="returning", on_unread=on_unread)
    async def returning(ctx: Context, who: str) -> None:
        read.extend(await ctx.signals("n"))
        if not read:
            await asyncio.gather(first(), second())

    async def scenario():
        async with engine_on(url, [returning]) as engine:

            def reached(point: str) -> None:
                if point == "before record" and begun.is_set() and not finish.is_set():
                    finish.set()
                    eventually(lambda: engine._worker.drivers["r"].end is not None)
                    with Client(url) as hf:
                        hf.runs.signal("r", "n", 7)

            monkeypatch.setattr(failpoints, "reached", reached)
            handle = await engine.start(returning, "ann", id="r")
            if on_unread == "fail":
                with pytest.raises(WorkflowFailed, match="SignalsUnread"):
                    await handle.result()
            else:
                await handle.result()
                assert read == [7]
                assert (await engine.get("r")).generation == 2

    played(scenario)


def test_timeout_retry_and_attempt_begin_anew_and_a_failed_attempt_keeps_the_generation(url, played, engine_on):
    tries = []

    @workflow(timeout="1 hour", retry=Retry(max_attempts=2, initial=0.01))
    async def flaky(ctx: Context, n: int) -> str:
        tries.append((n, ctx.generation, ctx.attempt))
        if ctx.attempt == 1:
            raise ValueError("once in each generation")
        if n == 1:
            raise ctx.continue_as_new(2)
        return "done"

    async def scenario():
        async with engine_on(url, [flaky]) as engine:
            assert await (await engine.start(flaky, 1, id="r")).result() == "done"
            assert (await engine.get("r")).generation == 2
        assert list(dict.fromkeys(tries)) == [(1, 1, 1), (1, 1, 2), (2, 2, 1), (2, 2, 2)]

    played(scenario)


def test_each_generation_has_the_whole_timeout(played):
    @workflow(timeout="1 hour")
    async def slow(ctx: Context, n: int) -> int:
        await ctx.sleep("50 minutes" if n < 3 else "70 minutes")
        if n < 4:
            raise ctx.continue_as_new(n + 1)
        return n

    async def scenario():
        async with TestEngine([slow]) as engine:
            handle = await engine.start(slow, 1)
            await engine.advance("101 minutes")
            info = await handle.info()
            assert (info.living, info.generation) == (True, 3)
            await engine.advance("61 minutes")
            assert (await handle.info()).status == "timed_out"

    played(scenario)


def test_a_parent_and_callers_hear_only_of_the_last_end_and_limits_count_the_run_once(url, played, engine_on):
    @workflow(concurrency=Concurrency(1, on_excess="queue"))
    async def looping(ctx: Context, n: int) -> int:
        if n < 4:
            raise ctx.continue_as_new(n + 1)
        return n

    @workflow
    async def parent(ctx: Context, n: int) -> int:
        return await ctx.child(looping, n, id="child")

    async def scenario():
        async with engine_on(url, [looping, parent]) as engine:
            first = await engine.start(parent, 1, id="p")
            second = await engine.start(looping, 1, id="q")
            assert await first.result() == 4
            assert await second.result() == 4
            assert (await engine.get("child")).generation == 4

    played(scenario)


def test_a_limit_on_starts_does_not_count_a_run_again_that_continues(url, played, engine_on):
    @workflow(rate=Rate(max=2, per="1 hour"))
    async def looping(ctx: Context, n: int) -> int:
        if n < 4:
            raise ctx.continue_as_new(n + 1)
        return n

    async def scenario():
        async with engine_on(url, [looping]) as engine:
            for _ in range(2):
                assert await (await engine.start(looping, 1)).result() == 4
            with pytest.raises(WorkflowLimitExceeded):
                await engine.start(looping, 1)

    played(scenario)


def test_state_of_the_tree_and_permits_of_a_semaphore_stay_with_a_run_that_continues(url, played, engine_on):
    tokens = []

    @workflow
    async def adding(ctx: Context, n: int) -> int:
        async with ctx.semaphore("gate", permits=2, scope="global") as lease:
            tokens.append(lease.token)
            total = await ctx.state.execution("total", initial=0).increment()
            if n < 3:
                raise ctx.continue_as_new(n + 1)
        return total

    async def scenario():
        async with engine_on(url, [adding]) as engine:
            assert await (await engine.start(adding, 1)).result() == 3
        assert len(set(tokens)) == 1

    played(scenario)


@pytest.mark.parametrize("how", ["cancelled", "another task", "returned"])
def test_signals_that_a_call_has_received_and_not_returned_are_read_by_the_next_generation(url, played, engine_on, how):
    @workflow(on_unread="continue")
    async def inbox(ctx: Context, read: list[int]) -> list[int]:
        if ctx.generation == 2:
            return [*(await ctx.signals("n")), await ctx.wait_for_signal("last")]
        await ctx.wait_for_signal("begin")
        call = asyncio.create_task(ctx.signals("n"))
        await ctx.wait_for_signal("now")  # `call` has received a signal, and polls for another one
        assert not call.done()
        if how == "another task":
            raise ctx.continue_as_new([])
        call.cancel()
        await asyncio.wait([call])
        if how == "cancelled":
            raise ctx.continue_as_new([])
        return []

    async def scenario():
        async with engine_on(url, [inbox]) as engine:
            handle = await engine.start(inbox, [], id="r")
            for name, payload in (("n", 1), ("n", 2), ("now", None), ("begin", None), ("n", 3), ("last", 4)):
                await handle.signal(name, payload)
            assert await handle.result() == [1, 2, 3, 4]

    played(scenario)


def test_a_long_history_is_reported_once(url, played, engine_on, monkeypatch):
    monkeypatch.setattr(driver, "LONG_HISTORY", 4)
    events = []

    @workflow
    async def long(ctx: Context, n: int) -> int:
        for _ in range(6):
            await ctx.step("count", len, "x")
        return ctx.history_length

    async def scenario():
        async with engine_on(url, [long]) as engine:
            engine.events.subscribe(lambda event: events.append(event) if event.name == "history_long" else None)
            assert await (await engine.start(long, 1, id="r")).result() == 7
        (event,) = events
        assert (event.fields["run"], event.fields["workflow"], event.fields["entries"]) == ("r", "long", 4)

    played(scenario)


def test_a_run_continues_with_its_newest_code(url, played, engine_on):
    shared(url)

    def release(version):
        @workflow(name="service", version=version)
        async def service(ctx: Context, n: int) -> str:
            await ctx.wait_for_signal("go")
            if n == 1:
                raise ctx.continue_as_new(2)
            return version

        return service

    async def scenario():
        one, two = release("1"), release("2")
        async with engine_on(url, [one], park_after=0.05) as engine:
            handle = await engine.start(one, 1, id="r")
            await until_status(engine, "r", "suspended")
        async with engine_on(url, [one, two], park_after=0.05) as engine:
            handle = engine.handle("r")
            await handle.signal("go")
            await eventually_async(lambda: generation(engine, "r", 2))
            await handle.signal("go")
            assert await handle.result() == "2"

    played(scenario)


def test_restart_and_retry_of_a_later_generation_stay_in_it(url, played, engine_on):
    calls, fail = [], [True]

    @step
    async def work(n: int) -> int:
        calls.append(current_step().idempotency_key)
        if n == 2 and fail:
            raise ValueError("not yet")
        return n

    @workflow
    async def two(ctx: Context, n: int) -> str:
        await ctx.step("first", len, "abc")
        await work(n)
        if n == 1:
            raise ctx.continue_as_new(2)
        return ctx.run_id

    async def scenario():
        async with engine_on(url, [two]) as engine:
            handle = await engine.start(two, 1, id="r")
            with pytest.raises(WorkflowFailed):
                await handle.result()
            fail.clear()
            await engine.retry("r")
            assert await handle.result() == "r"
            await engine.restart("r")
            assert await handle.result() == "r"
            run = await engine.get("r")
            assert (run.generation, run.status) == (2, "completed")
        assert calls == ["r:work", "r~2:work", "r~2:work", "r~2:work"]

    played(scenario)


def test_signals_that_are_unread_when_the_workflow_returns(url, played, engine_on):
    events = []

    def reading(on_unread):
        @workflow(name=f"reads-{on_unread}", on_unread=on_unread)
        async def reads(ctx: Context, who: str) -> list[int]:
            await ctx.step("begin", len, who)
            first = await ctx.wait_for_signal("n")
            return [first, *(await ctx.signals("n"))]

        return reads

    async def scenario():
        flows = {on_unread: reading(on_unread) for on_unread in ("keep", "continue", "fail")}
        async with engine_on(url, list(flows.values()), park_after=0.05) as engine:
            engine.events.subscribe(lambda event: events.append(event) if event.name == "signals_unread" else None)
            for on_unread, flow in flows.items():
                handle = await engine.start(flow, "ann", id=on_unread)
                await handle.signal("misspelt", 0)
                await handle.signal("n", 1)
            assert await engine.handle("keep").result() == [1]
            with pytest.raises(WorkflowFailed, match=r"SignalsUnread.*misspelt"):
                await engine.handle("fail").result()
            await eventually_async(lambda: generation(engine, "continue", 2))
            await engine.signal("continue", "n", 2)
            assert await engine.handle("continue").result() == [2]
            run = await engine.get("continue")
            assert (run.status, run.generation) == ("completed", 2), "it read nothing of what it began with"
            await eventually_async(lambda: asyncio.sleep(0, len(events) == 2))
            assert {(event.fields["run"], *event.fields["signals"]) for event in events} == {
                ("continue", "misspelt"),
                ("fail", "misspelt"),
            }
            history = await engine.export("fail")
            assert [event.name for event in history.events] == ["misspelt", "n"], "a retry can read them"

    played(scenario)


def test_a_run_with_on_unread_continue_serves_each_signal_that_was_accepted(url, played, engine_on):
    served = []

    @step
    async def answer(message: int) -> None:
        served.append((current_step().idempotency_key, message))

    @workflow(on_unread="continue")
    async def chat(ctx: Context, who: str) -> None:
        await answer(await ctx.wait_for_signal("message"))

    async def scenario():
        async with engine_on(url, [chat], park_after=0.05) as engine:
            sent = []
            await engine.start(chat, "ann", id="r")
            for n in range(40):
                try:
                    await engine.signal("r", "message", n)
                    sent.append(n)
                except RunEnded:
                    break
            await until_status(engine, "r", "completed")
        assert [message for _, message in served] == sent
        assert len({key for key, _ in served}) == len(sent)

    played(scenario)


def test_what_continue_as_new_and_ids_refuse(url, played, engine_on):
    @workflow
    async def bad_input(ctx: Context, n: int) -> None:
        raise ctx.continue_as_new("text" * 10_000_000)

    @workflow
    async def no_input(ctx: Context) -> None:
        raise ctx.continue_as_new(1)

    async def scenario():
        async with engine_on(url, [bad_input, no_input]) as engine:
            for handle in (await engine.start(bad_input, 1), await engine.start(no_input)):
                with pytest.raises(WorkflowFailed, match="InvalidValue"):
                    await handle.result()
            for name in ("order~2", "a/b~17"):
                with pytest.raises(InvalidOption, match="generation"):
                    await engine.start(bad_input, 1, id=name)
            for name in ("order~2x", "order~", "~a"):
                assert (await engine.start(bad_input, 1, id=name)).id == name

    played(scenario)
    with pytest.raises(InvalidOption, match="on_unread"):
        workflow(on_unread="drop")(bad_input.function)
    with pytest.raises(InvalidOption, match="child runs"):
        workflow(name="order~2")(bad_input.function)
    assert issubclass(InvalidValue, Exception)


@pytest.mark.parametrize("scope", ["workflow", "execution", "global"])
def test_a_later_generation_that_began_with_a_lock_can_be_forked(url, played, engine_on, scope):
    calls, numbers = [], {}

    @step
    async def work(n: int) -> int:
        calls.append(current_step().idempotency_key)
        return n

    @workflow
    async def two(ctx: Context, n: int) -> int:
        async with ctx.mutex("till", scope=scope):
            await work(n)
            numbers.setdefault(ctx.run_id, []).append(ctx.random())
            if n == 1:
                raise ctx.continue_as_new(2)
        await ctx.step("last", len, "abc")
        return n

    async def scenario():
        async with engine_on(url, [two]) as engine:
            assert await (await engine.start(two, 1, id="r")).result() == 2
            await engine.fork("r", from_step="last", id="f")
            assert await engine.handle("f").result() == 2
            run = await engine.get("f")
            assert (run.status, run.generation) == ("completed", 2)
        assert calls == ["r:work", "r~2:work"], "the fork has the result"
        assert numbers["f"][-1] == numbers["r"][-1]

    played(scenario)


def test_a_carried_lock_for_reading_does_not_become_one_for_writing(url, played, engine_on):
    writing = []

    @workflow
    async def reader(ctx: Context, n: int) -> None:
        lock = ctx.rwlock("doc", scope="global")
        if n == 1:
            async with lock.read():
                await ctx.wait_for_signal("go")
                raise ctx.continue_as_new(2)
        async with lock.write():
            writing.append(ctx.run_id)
            await ctx.wait_for_signal("go")

    async def scenario():
        async with engine_on(url, [reader], park_after=0.05) as engine:
            handles = [await engine.start(reader, 1, id=name) for name in ("a", "b")]
            for handle in handles:
                await handle.signal("go")
            for handle in handles:
                await eventually_async(lambda run=handle.id: generation(engine, run, 2))
            await eventually_async(lambda: asyncio.sleep(0, bool(writing)))
            (first,) = set(writing)
            await engine.signal(first, "go")
            await engine.handle(first).result()
            other = "b" if first == "a" else "a"
            await eventually_async(lambda: asyncio.sleep(0, other in writing))
            await engine.signal(other, "go")
            await engine.handle(other).result()

    played(scenario)


def test_a_carried_lock_with_a_lease_is_renewed_until_it_is_asked_for(url, played, engine_on):
    tokens = []

    @workflow
    async def leased(ctx: Context, n: int) -> None:
        if n == 2:
            await ctx.sleep(1.5)  # longer than the lease
        async with ctx.mutex("till", scope="global", lease=0.6) as lease:
            tokens.append(lease.token)
            if n == 1:
                raise ctx.continue_as_new(2)

    async def scenario():
        async with engine_on(url, [leased], park_after=0.05) as engine:
            await (await engine.start(leased, 1, id="r")).result()
        assert len(set(tokens)) == 1

    played(scenario)


def test_a_signal_that_comes_while_a_child_is_cancelled_makes_the_run_continue(url, played, engine_on, monkeypatch):
    answers, read = [], []
    real = Children._cancel

    def slow(self, child, payload):  # the answer to the cancel comes after the signal
        answers.append(lambda: real(self, child, payload))

    monkeypatch.setattr(Children, "_cancel", slow)

    @workflow
    async def child(ctx: Context, n: int) -> None:
        await ctx.wait_for_signal("never")

    @workflow(on_unread="continue")
    async def parent(ctx: Context, n: int) -> None:
        read.extend(await ctx.signals("n"))
        if not read:
            try:
                async with asyncio.timeout(0.01):
                    await ctx.child(child, 1)
            except TimeoutError:
                pass

    async def scenario():
        async with engine_on(url, [child, parent]) as engine:
            handle = await engine.start(parent, 1, id="r")
            await eventually_async(lambda: asyncio.sleep(0, bool(answers)))
            await handle.signal("n", 7)
            await eventually_async(lambda: asyncio.sleep(0, engine._worker.drivers["r"].seen >= 1))
            while answers:
                answers.pop()()
            await handle.result()
        assert read == [7]

    played(scenario)


def test_the_end_of_a_child_of_an_earlier_generation_is_not_that_of_a_new_one(url, played, engine_on):
    @workflow
    async def report(ctx: Context, n: int) -> int:
        await ctx.wait_for_signal("go")
        return n

    @workflow
    async def parent(ctx: Context, n: int) -> int:
        if n == 1:
            await ctx.start_child(report, 1, id="report")
            raise ctx.continue_as_new(2)
        await ctx.wait_for_signal("now")
        return await ctx.child(report, 2, id="report")

    async def scenario():
        async with engine_on(url, [report, parent], park_after=0.05) as engine:
            handle = await engine.start(parent, 1, id="r")
            await eventually_async(lambda: generation(engine, "r", 2))
            await engine.signal("report", "go")
            assert await engine.handle("report").result() == 1
            await handle.signal("now")
            with pytest.raises(WorkflowFailed, match="RunExists"):
                await handle.result()

    played(scenario)


def test_a_deadlock_through_a_carried_lock_is_found(url, played, engine_on):
    @workflow
    async def wants(ctx: Context, n: int) -> str:
        try:
            async with ctx.mutex("till", scope="global"):
                return "locked"
        except DeadlockDetected:
            return "deadlock"

    @workflow
    async def keeps(ctx: Context, n: int) -> str:
        if n == 1:
            async with ctx.mutex("till", scope="global"):
                raise ctx.continue_as_new(2)
        return await ctx.child(wants, 1)

    async def scenario():
        async with engine_on(url, [wants, keeps]) as engine:
            assert await (await engine.start(keeps, 1)).result() == "deadlock"

    played(scenario)


def test_an_imported_run_continues_in_its_generation_and_forks_take_no_id_of_one(url, played, engine_on):
    keys = []

    @step
    async def charge() -> None:
        keys.append(current_step().idempotency_key)

    @workflow
    async def two(ctx: Context, n: int) -> None:
        if n == 1:
            raise ctx.continue_as_new(2)
        async with ctx.mutex("tree", scope="execution"):
            pass
        await ctx.wait_for_signal("go")
        await charge()

    async def scenario():
        async with engine_on(url, [two], park_after=0.05) as engine:
            handle = await engine.start(two, 1, id="r")
            await eventually_async(lambda: generation(engine, "r", 2))
            await handle.signal("go")
            await handle.result()
            for refused in (engine.fork("r", from_step="charge", id="f~2"), engine.import_("none", id="f~2")):
                with pytest.raises((InvalidOption, InvalidValue)):
                    await refused
            await engine.fork("r", from_step="charge", id="f")
            await engine.handle("f").result()
            history = await engine.export("r")
            living = replace(history.run, status="running", ended_at=None, result=None, length=len(history.entries) - 1)
            await engine.purge(older_than=0)
            await engine.import_(replace(history, run=living, entries=history.entries[:-1]), run=True)
            await engine.handle("r").result()
            assert (await engine.get("r")).generation >= 2
        assert keys[:2] == ["r~2:charge", "f~2:charge"]
        assert keys[2] in ("r~2:charge", "r~3:charge")

    played(scenario)
