"""Every error in the code of a workflow or a step ends as a failed step or a failed run, and is never lost."""

from __future__ import annotations

import asyncio
import sys
from contextlib import suppress
from typing import Any

import pytest
from waiting import until_blocked

from holdfast import AsyncClient, Client, Context, Retry, StepFailed, WorkflowFailed, step, workflow
from holdfast.commands.runs import ClaimRuns, RecordRun
from holdfast.errors import InvalidOption, InvalidWorkflow, StoreUnavailable, StoreUnusable
from holdfast.testing import TestEngine
from holdfast.workflow.replay import Replay


class NoText(Exception):
    def __str__(self):
        raise ZeroDivisionError


def next_of_nothing() -> int:
    return next(iter([]))


def raises_no_text() -> None:
    raise NoText


def raises_system_exit() -> None:
    sys.exit(3)


async def raises_system_exit_async() -> None:
    sys.exit(3)


async def needs(_argument: int) -> None:
    pass


@pytest.mark.parametrize(
    "body",
    [next_of_nothing, raises_no_text, raises_system_exit, raises_system_exit_async, needs],
    ids=lambda body: body.__name__,
)
@pytest.mark.parametrize("timeout", [None, 5])
def test_a_step_that_fails_in_an_unusual_way_has_failed_and_the_engine_continues(played, engine_on, body, timeout):
    @workflow
    async def odd(ctx: Context) -> str:
        try:
            await ctx.step("odd", body, timeout=timeout)
        except StepFailed as error:
            return error.kind
        return "nothing"

    async def scenario():
        async with engine_on("memory://", [odd]) as engine:
            kinds = [await (await engine.start(odd)).result(10) for _ in range(2)]
            assert kinds[0] == kinds[1] != "nothing"
            return kinds[0]

    assert "Timeout" not in played(scenario)


@pytest.mark.parametrize("how", ["exits", "is raises_no_text", "in a child task"])
def test_a_workflow_that_fails_in_an_unusual_way_has_failed_and_the_engine_continues(played, engine_on, how):
    async def go() -> None:
        sys.exit(3)

    @workflow
    async def odd(ctx: Context, how: str) -> None:
        await ctx.sleep(0.01)
        if how == "exits":
            sys.exit(3)
        if how == "is raises_no_text":
            raise NoText
        await asyncio.create_task(go())

    async def scenario():
        async with engine_on("memory://", [odd]) as engine:
            for _ in range(2):
                with pytest.raises(WorkflowFailed, match=r"SystemExit|NoText"):
                    await (await engine.start(odd, how)).result(10)

    played(scenario)


def test_a_transaction_that_raises_stop_iteration_has_failed(tmp_path, played, engine_on):
    @workflow
    async def odd(ctx: Context) -> None:
        await ctx.transaction("odd", lambda _connection: next(iter([])))

    async def scenario():
        async with engine_on(f"sqlite:///{tmp_path}/t.db", [odd]) as engine:
            with pytest.raises(WorkflowFailed, match="StopIteration"):
                await (await engine.start(odd)).result(10)

    played(scenario)


@pytest.mark.parametrize("name", ["charge#2", "#", "a#b"])
def test_a_step_name_that_could_equal_a_generated_one_is_refused(played, engine_on, name):
    with pytest.raises(InvalidOption, match="#"):
        step(name)(len)
    with pytest.raises(InvalidOption, match="#"):

        @workflow(name=name)
        async def named(ctx: Context) -> None: ...

    @workflow
    async def two(ctx: Context) -> None:
        await ctx.step(name, len, "x")

    async def scenario():
        async with engine_on("memory://", [two]) as engine:
            with pytest.raises(WorkflowFailed, match="#"):
                await (await engine.start(two)).result(10)

    played(scenario)


def test_options_are_checked_when_they_are_given():
    for wrong in (lambda: step(retry=3)(len), lambda: step(timeout=-1)(len), lambda: step(timeout="soon")(len)):
        with pytest.raises(InvalidOption):
            wrong()
    with pytest.raises(InvalidOption, match="Retry"):

        @workflow(retry=3)
        async def tries(ctx: Context) -> None: ...

    with pytest.raises(InvalidOption):
        Retry(factor=float("nan"))
    with pytest.raises(InvalidWorkflow):

        @workflow
        async def named(ctx: Context, *, amount: int) -> None: ...

    with pytest.raises(InvalidWorkflow, match="generator"):

        @step
        async def many():
            yield 1


@pytest.mark.parametrize("what", ["a coroutine", "a number", "a retry"])
def test_a_call_of_a_function_that_is_no_step_fails_the_run_with_what_to_do(played, engine_on, what):
    async def fetch() -> int:
        return 1

    @workflow
    async def calls(ctx: Context, what: str) -> None:
        if what == "a retry":
            await ctx.step("x", fetch, retry=3)
        await ctx.step("x", fetch() if what == "a coroutine" else 5)

    async def scenario():
        async with engine_on("memory://", [calls]) as engine:
            with pytest.raises(WorkflowFailed, match=r"ctx.step\(name, function, \*args\)|Retry\(max_attempts"):
                await (await engine.start(calls, what)).result(10)

    played(scenario)


def test_calling_a_workflow_function_directly_is_refused():
    @workflow
    async def alone(ctx: Context) -> None: ...

    with pytest.raises(InvalidWorkflow, match=r"engine\.start"):
        alone(None)


@pytest.mark.parametrize("what", ["lock", "state", "runs", "engine", "sync"])
def test_holdfasts_own_calls_in_workflow_code_are_refused_before_they_do_anything(tmp_path, played, engine_on, what):
    url = f"sqlite:///{tmp_path}/own.db"

    async def scenario():
        async with engine_on(url, []) as _, AsyncClient(url) as hf:

            @workflow
            async def other(ctx: Context) -> None: ...

            @workflow
            async def calls(ctx: Context) -> None:
                if what == "lock":
                    async with hf.lock("a"):
                        pass
                elif what == "state":
                    await hf.state("n", initial=0).increment()
                elif what == "runs":
                    await hf.runs.start("other", id="made")
                elif what == "engine":
                    await engine.start(other, id="made")
                else:
                    with Client(url) as sync:
                        sync.locks.list()

            async with engine_on(url, [calls, other]) as engine:
                with pytest.raises(WorkflowFailed, match="NotInWorkflow"):
                    await (await engine.start(calls)).result(10)
                assert [run.id for run in (await engine.list(prefix="made")).runs] == []
                assert await hf.state("n").get() is None

    played(scenario)


@pytest.mark.parametrize("what", ["now", "session", "state", "step", "sleep", "signal", "child"])
def test_ctx_in_the_body_of_a_step_is_refused(played, engine_on, what):
    @workflow
    async def other(ctx: Context) -> None: ...

    @workflow
    async def nests(ctx: Context) -> None:
        async def body() -> None:
            match what:
                case "now":
                    ctx.now()
                case "session":
                    ctx.state.session("n", initial=0).increment()
                case "state":
                    await ctx.state.workflow("n", initial=0).increment()
                case "step":
                    await ctx.step("inner", len, "x")
                case "sleep":
                    await ctx.sleep(1)
                case "signal":
                    await ctx.wait_for_signal("x")
                case "child":
                    await ctx.child(other)

        await ctx.step("outer", body)

    async def scenario():
        async with engine_on("memory://", [nests, other]) as engine:
            with pytest.raises(
                WorkflowFailed, match=r"NotInWorkflow.*ctx can be used only in the code of its workflow"
            ):
                await (await engine.start(nests)).result(10)

    played(scenario)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # it catches its own cancellation, too
def test_code_that_catches_every_exception_does_not_stop_other_runs_when_its_run_is_parked(played, engine_on):
    @workflow
    async def swallows(ctx: Context) -> None:
        while True:
            with suppress(BaseException):  # as people write it: `except:`
                await ctx.wait_for_signal("never")

    @workflow
    async def other(ctx: Context) -> int:
        return 1

    async def scenario():
        async with engine_on("memory://", [swallows, other], park_after=0.02) as engine:
            handle = await engine.start(swallows)
            while await handle.status() != "suspended":
                await asyncio.sleep(0.01)
            return await (await engine.start(other)).result(10)

    assert played(scenario) == 1


def test_a_missing_input_is_the_default(played, engine_on):
    @workflow
    async def greets(ctx: Context, name: str = "you") -> str:
        return f"hello {name}"

    @workflow
    async def parent(ctx: Context) -> str:
        return await ctx.child(greets)

    async def scenario():
        async with engine_on("memory://", [greets, parent]) as engine:
            results = [await (await engine.start(flow)).result() for flow in (greets, parent)]
            assert results == ["hello you"] * 2
            assert await (await engine.start(greets, "me")).result() == "hello me"

    played(scenario)


def test_no_step_begins_while_a_worker_drains(tmp_path, played, engine_on):
    url, done = f"sqlite:///{tmp_path}/d.db", []

    async def slow(n: int) -> None:
        await asyncio.sleep(0.1)
        done.append(n)

    @workflow
    async def three(ctx: Context) -> int:
        for n in range(3):
            await ctx.step("slow", slow, n)
        return len(done)

    async def scenario():
        async with engine_on(url, [three], grace=10) as engine:
            await engine.start(three, id="r")
            while not engine._worker.drivers["r"]._steps.running:
                await asyncio.sleep(0.005)
        assert done == [0], "the step that was under way has ended, and no other has begun"
        async with engine_on(url, [three]) as engine:
            return await engine.handle("r", three).result(10)

    assert played(scenario) == 3
    assert done == [0, 1, 2]


def test_a_new_attempt_with_a_short_delay_begins_without_waiting_for_a_poll(played, engine_on):
    """Four attempts ten milliseconds apart: a worker that polled once a second would need three seconds."""
    tries = []

    @workflow(retry=Retry(max_attempts=4, initial="10 ms", factor=1))
    async def fails(ctx: Context) -> None:
        tries.append(asyncio.get_running_loop().time())
        raise ValueError("again")

    async def scenario():
        async with engine_on("memory://", [fails]) as engine:
            looks = []
            look = engine._worker._poll

            async def counted():
                looks.append(1)
                return min(await look(), 3_600.0) if len(tries) >= 4 else max(await look(), 3_600.0)

            engine._worker._poll = counted  # it polls when it is woken, and otherwise not for an hour
            with pytest.raises(WorkflowFailed, match="again"):
                await (await engine.start(fails)).result(20)

    played(scenario)
    assert len(tries) == 4


def test_advance_also_passes_through_the_sleep_of_a_child():
    @workflow
    async def child(ctx: Context) -> str:
        await ctx.sleep("2 days")
        return "awake"

    @workflow
    async def parent(ctx: Context) -> str:
        return await ctx.child(child)

    async def scenario():
        async with TestEngine([parent, child]) as engine:
            handle = await engine.start(parent)
            await engine.advance("2 days")
            return await handle.result(5)

    for _ in range(5):
        assert asyncio.run(scenario()) == "awake"


def test_an_error_in_the_runtime_itself_blocks_the_run(played, engine_on, monkeypatch):
    """An unexpected one: a result cannot be delivered."""

    @workflow
    async def steps(ctx: Context) -> int:
        return await ctx.step("one", len, "x")

    async def scenario():
        async with engine_on("memory://", [steps]) as engine:
            monkeypatch.setattr(Replay, "deliver", lambda _code, _entry: 1 // 0)
            run = (await engine.start(steps)).id
            assert (await until_blocked(engine, run)).reason.type == "ZeroDivisionError"

    played(scenario)


def test_a_child_whose_id_would_be_too_long_is_refused(played, engine_on):
    @workflow
    async def child(ctx: Context) -> None: ...

    @workflow
    async def parent(ctx: Context) -> None:
        await ctx.child(child)

    async def scenario():
        async with engine_on("memory://", [parent, child]) as engine:
            with pytest.raises(WorkflowFailed, match="bytes"):
                await (await engine.start(parent, id="x" * 512)).result(10)

    played(scenario)


# -- further cases ------------------------------------------------------------------------------------------------


def test_an_idle_worker_finds_runs_of_a_claim_whose_reply_was_lost(url, played, engine_on):
    @workflow
    async def quick(ctx: Context) -> int:
        return 1

    async def scenario():
        async with engine_on(url, [quick]) as engine, AsyncClient(url) as hf:
            ask, lost = engine._worker.execute, []

            async def losing(command):
                outcome = await ask(command)
                if isinstance(command, ClaimRuns) and not lost:
                    lost.append(command)
                    raise StoreUnavailable("the answer was lost", ambiguous=True)
                return outcome

            engine._worker.execute = losing
            run = await hf.runs.start("quick")
            assert await hf.runs.result(run, timeout=20) == 1
            assert lost

    played(scenario)


def test_a_worker_that_drives_a_run_a_second_time_does_not_repeat_the_names_of_its_records(url, played, engine_on):
    done = []

    @workflow
    async def three(ctx: Context) -> list[str]:
        for name in "abc":
            await ctx.step(name, done.append, name)
        return done

    async def scenario():
        async with engine_on(url, [three]) as engine:
            send, refused = engine._worker.send, []

            def unusable(command, answer):
                if isinstance(command, RecordRun) and len(done) == 2 and not refused:
                    refused.append(command)
                    engine._worker.later(0, lambda: answer(StoreUnusable("for a moment")))
                else:
                    send(command, answer)

            engine._worker.send = unusable
            handle = await engine.start(three)
            await handle.result(20)
            assert refused
            assert (await handle.info()).entries == 4

    played(scenario)
    assert done == ["a", "b", "b", "c"], "what was not recorded is done again, once, and nothing before its time"


def test_a_child_whose_id_is_in_use_raises_every_time_it_is_awaited(url, played, engine_on):
    @workflow
    async def kid(ctx: Context) -> None: ...

    @workflow
    async def parent(ctx: Context) -> list[str]:
        child = await ctx.start_child(kid, id="taken")
        await ctx.step("meanwhile", asyncio.sleep, 0.05)
        printed = []
        for _ in range(2):
            try:
                await child.result()
            except StepFailed as error:
                printed.append(error.kind)
        return printed

    async def scenario():
        async with engine_on(url, [parent, kid]) as engine:
            await (await engine.start(kid, id="taken")).result()
            return await (await engine.start(parent)).result(10)

    assert played(scenario) == ["holdfast.errors.RunExists"] * 2


def test_the_result_of_a_child_may_be_awaited_several_times(url, played, engine_on):
    @workflow
    async def kid(ctx: Context) -> int:
        return await ctx.step("one", len, "x")

    @workflow
    async def parent(ctx: Context) -> list[int]:
        child = await ctx.start_child(kid)
        both = await asyncio.gather(child.result(), child.result())
        return [*both, await child.result()]

    async def scenario():
        async with engine_on(url, [parent, kid]) as engine:
            return await (await engine.start(parent)).result(10)

    assert played(scenario) == [1, 1, 1]


def test_an_update_function_that_raises_system_exit_has_failed_and_the_slot_is_free(played, engine_on):
    @workflow
    async def raises_system_exit(ctx: Context, how: str) -> Any:
        n = ctx.state.workflow("n", initial=0)
        try:
            return await n.update(lambda value: sys.exit(3) if how == "leave" else value + 1)
        except StepFailed as error:
            return error.kind

    async def scenario():
        async with engine_on("memory://", [raises_system_exit]) as engine:
            first, second = (
                await engine.start(raises_system_exit, "leave"),
                await engine.start(raises_system_exit, "stay"),
            )
            return await first.result(10), await second.result(10)

    assert played(scenario) == ("SystemExit", 1)


def test_no_more_runs_are_active_than_the_maximum(played, engine_on):
    door = asyncio.Event()

    @workflow
    async def waits(ctx: Context) -> None:
        await ctx.step("wait", door.wait)

    async def scenario():
        async with engine_on("memory://", [waits], max_active_runs=5) as engine:
            handles = await asyncio.gather(*(engine.start(waits) for _ in range(20)))
            most = engine.active_runs
            door.set()
            for handle in handles:
                await handle.result(20)
            return most

    assert played(scenario) <= 5


def test_a_step_that_is_slow_to_stop_does_not_delay_a_sweep(played, engine_on):
    async def slow_to_stop() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.2)

    @workflow
    async def gives_up(ctx: Context) -> None:
        try:
            async with asyncio.timeout(0.05):
                await ctx.step("slow", slow_to_stop)
        except TimeoutError:
            await ctx.wait_for_signal("never")

    async def scenario():
        async with (
            engine_on("memory://sweeps", [gives_up], recover=False) as engine,
            AsyncClient("memory://sweeps") as hf,
        ):
            await hf.runs.start("gives_up")
            async with asyncio.timeout(10):
                return await engine.sweep()

    assert played(scenario) == 1


@pytest.mark.filterwarnings("ignore:.*never awaited:RuntimeWarning")
def test_a_step_that_was_not_awaited_is_named_where_its_coroutine_is_returned(played, engine_on):
    @step
    def count(n: int) -> int:
        return n

    @workflow
    async def forgets(ctx: Context, n: int) -> int:
        return count(n)

    async def scenario():
        async with engine_on("memory://", [forgets]) as engine:
            with pytest.raises(WorkflowFailed, match="is a coroutine: await the call"):
                await (await engine.start(forgets, 1)).result(10)

    played(scenario)
