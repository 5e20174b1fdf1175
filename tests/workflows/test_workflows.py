"""Runs in use: steps, time, signals, children, failures, and error messages."""

from __future__ import annotations

import asyncio
import logging
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from enum import Enum
from importlib import import_module
from uuid import UUID

import pytest

from holdfast import Client, Context, Engine, Retry, StepFailed, WorkflowFailed, current_step, step, workflow
from holdfast.errors import (
    InvalidKey,
    InvalidOption,
    InvalidValue,
    InvalidWorkflow,
    NotInWorkflow,
    RunEnded,
    RunExists,
    RunResultTimeout,
    StepTimeout,
    UnknownRun,
    WorkflowNotRegistered,
)


@step
async def add(a: int, b: int) -> int:
    return a + b


@workflow
async def chain(ctx: Context, n: int) -> int:
    total = 0
    for _ in range(n):
        total = await ctx.step("add", add, total, 1)
    return total


def ran(played, engine_on, url, flow, *args, **options):
    """Start one run and return its result."""

    async def scenario():
        async with engine_on(url, [flow], **options) as engine:
            return await (await engine.start(flow, *args)).result()

    return played(scenario)


def failure(played, engine_on, url, flow, *args):
    with pytest.raises(WorkflowFailed) as caught:
        ran(played, engine_on, url, flow, *args)
    return caught.value


# -- steps --------------------------------------------------------------------------------------------------


def test_a_run_returns_the_result_of_its_code(url, played, engine_on):
    assert ran(played, engine_on, url, chain, 5) == 5


def test_steps_are_async_or_sync_and_can_read_their_idempotency_keys(url, played, engine_on):
    def plain(x):
        return [current_step().idempotency_key, current_step().attempt, x]

    async def other(x, *, y):
        return [current_step().step_id, x, y]

    @workflow
    async def flow(ctx, _):
        return [
            await ctx.step("charge", plain, 1),
            await ctx.step("charge", plain, 2),
            await ctx.step("o", other, 3, y=4),
        ]

    async def scenario():
        async with engine_on(url, [flow]) as engine:
            return await (await engine.start(flow, None, id="run-7")).result()

    assert played(scenario) == [["run-7:charge", 1, 1], ["run-7:charge#2", 1, 2], ["o", 3, 4]]


def test_a_step_is_a_plain_function_outside_a_run_and_in_the_body_of_another_step(url, played, engine_on):
    @step
    async def outer(x: int) -> int:
        return await add(x, 1) + 100

    @workflow
    async def flow(ctx, x: int) -> int:
        return await outer(x)

    assert asyncio.run(add(1, 2)) == 3
    assert ran(played, engine_on, url, flow, 5) == 106


def test_parallel_steps_with_equal_names_get_each_its_own_result(url, played, engine_on):
    async def slow(x):
        await asyncio.sleep(0.02 * (3 - x))
        return x

    @workflow
    async def flow(ctx, _):
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(ctx.step("s", slow, x)) for x in range(3)]
        return [task.result() for task in tasks]

    assert ran(played, engine_on, url, flow, None) == [0, 1, 2]


def test_asyncio_works_in_a_workflow(url, played, engine_on):
    @workflow
    async def flow(ctx, _):
        queue: asyncio.Queue[int] = asyncio.Queue()

        async def fill():
            for n in range(3):
                await asyncio.sleep(0.001)
                await queue.put(await ctx.step("make", add, n, n))

        filling = asyncio.create_task(fill())
        got = [await queue.get() for _ in range(3)]
        await filling
        async with asyncio.Lock(), asyncio.Semaphore(2):
            pass
        done, pending = await asyncio.wait(
            [asyncio.create_task(asyncio.sleep(60)), asyncio.create_task(ctx.sleep(0.01))],
            return_when=asyncio.FIRST_COMPLETED,
        )
        for task in pending:
            task.cancel()
        try:
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()
        except TimeoutError:
            got.append(-1)
        return [*got, len(done), len(pending)]

    assert ran(played, engine_on, url, flow, None) == [0, 2, 4, -1, 1, 1]


@pytest.mark.parametrize("what", ["connect", "thread", "shell"])
def test_real_io_in_workflow_code_says_what_to_do_instead(url, played, engine_on, what):
    @workflow
    async def flow(ctx, _):
        if what == "connect":
            await asyncio.open_connection("127.0.0.1", 1)
        elif what == "thread":
            await asyncio.to_thread(print)
        else:
            await asyncio.create_subprocess_shell("true")

    error = failure(played, engine_on, url, flow, None)
    assert error.kind == "holdfast.errors.NotInWorkflow"
    assert "ctx.step(" in error.detail


def test_code_that_never_awaits_is_a_failed_run_and_stops_no_other(url, played, engine_on, monkeypatch):
    monkeypatch.setattr(import_module("holdfast.workflow.loop"), "MAX_TURNS", 1_000)

    @workflow
    async def spins(ctx, step_first):
        if step_first:
            await ctx.step("add", add, 1, 1)
        while True:
            await asyncio.sleep(0)

    async def scenario():
        async with engine_on(url, [spins, chain]) as engine:
            for step_first in (False, True):
                with pytest.raises(WorkflowFailed, match="endless loop"):
                    await (await engine.start(spins, step_first)).result(10)
            return await (await engine.start(chain, 2)).result()

    assert played(scenario) == 2


# -- failures -----------------------------------------------------------------------------------------------


def test_a_failed_step_is_caught_by_its_builtin_exception_type(url, played, engine_on):
    @workflow
    async def flow(ctx, _):
        try:
            await ctx.step("divide", lambda: 1 / 0)
        except ZeroDivisionError as error:
            return [type(error).__mro__[1].__name__, error.kind, error.step, error.detail, "1 / 0" in error.traceback]

    assert ran(played, engine_on, url, flow, None) == [
        "StepFailed",
        "ZeroDivisionError",
        "divide",
        "division by zero",
        True,
    ]


def test_the_error_of_a_failed_run_has_type_message_and_traceback(url, played, engine_on):
    class DeclinedError(Exception):
        pass

    @workflow
    async def flow(ctx, _):
        def charge():
            raise DeclinedError("no money")

        await ctx.step("charge", charge)

    error = failure(played, engine_on, url, flow, None)
    assert (error.status, error.detail) == ("failed", "no money")
    assert error.kind.endswith("DeclinedError")
    assert "in charge" in error.traceback


def test_a_step_is_retried_by_its_policy(url, played, engine_on):
    tries = []

    @step(retry=Retry(max_attempts=4, initial=0.005, factor=1))
    def flaky():
        tries.append(current_step().attempt)
        if len(tries) < 3:
            raise ConnectionError("away")
        return "here"

    @workflow
    async def flow(ctx, _):
        return await flaky()

    assert ran(played, engine_on, url, flow, None) == "here"
    assert tries == [1, 2, 3]


def test_an_exception_excluded_from_retries_is_not_retried(url, played, engine_on):
    tries = []

    async def bad():
        tries.append(1)
        raise KeyError("x")

    @workflow
    async def flow(ctx, _):
        await ctx.step("bad", bad, retry=Retry(max_attempts=5, initial=0.001, give_up_on=(LookupError,)))

    assert failure(played, engine_on, url, flow, None).kind == "KeyError"
    assert len(tries) == 1


@pytest.mark.parametrize("sync", [True, False])
def test_a_step_that_takes_too_long_is_a_timeout(url, played, engine_on, sync):
    async def slow():
        await asyncio.sleep(5)

    def blocking():
        time.sleep(0.5)

    @workflow
    async def flow(ctx, _):
        try:
            await ctx.step("slow", blocking if sync else slow, timeout=0.02)
        except TimeoutError as error:
            return error.kind

    assert ran(played, engine_on, url, flow, None) == f"{StepTimeout.__module__}.StepTimeout"


def test_a_workflow_is_retried_with_an_empty_history(url, played, engine_on):
    bodies = []

    async def one(attempt):
        bodies.append(attempt)

    @workflow(retry=Retry(max_attempts=3, initial=0.01))
    async def flow(ctx, _):
        await ctx.step("one", one, ctx.attempt)
        if ctx.attempt < 3:
            raise ValueError("not yet")
        return ctx.attempt

    assert ran(played, engine_on, url, flow, None) == 3
    assert bodies == [1, 2, 3]


def test_a_run_that_takes_too_long_is_timed_out(url, played, engine_on):
    @workflow(timeout=0.1)
    async def flow(ctx, _):
        await ctx.sleep(60)

    error = failure(played, engine_on, url, flow, None)
    assert (error.status, error.kind) == ("timed_out", "TimeoutError")
    assert str(error).endswith("is timed_out: TimeoutError: its timeout of 0.1 s has expired.")


def test_a_timeout_of_0_ends_runs_and_async_steps_at_their_first_wait_and_plain_steps_always(url, played, engine_on):
    began = []

    async def body(name, *, wait):
        began.append(name)
        if wait:
            await asyncio.sleep(60)
            began.append("never")
        return name

    @workflow
    async def steps(ctx: Context) -> list:
        found = [await ctx.step("ready", body, "ready", wait=False, timeout=0)]
        for name, function, given in (("waits", body, {"wait": True}), ("plain", time.sleep, {})):
            try:
                await ctx.step(name, function, *([name] if given else [0.01]), timeout=0, **given)
            except StepFailed as error:
                found.append(error.kind)
        return found

    @workflow
    async def waits(ctx: Context) -> None:
        await ctx.sleep(60)
        began.append("never")

    @workflow
    async def ready(ctx: Context) -> str:
        return "done"

    async def scenario():
        async with engine_on(url, [steps, waits, ready]) as engine:
            assert await (await engine.start(ready, timeout=0)).result(20) == "done"
            handle = await engine.start(steps)
            assert await handle.result(20) == ["ready", *["holdfast.errors.StepTimeout"] * 2]
            with pytest.raises(WorkflowFailed, match="is timed_out: TimeoutError: its timeout of 0 s has expired"):
                await (await engine.start(waits, timeout=0)).result(20)
            assert began == ["ready", "waits"]

    played(scenario)


# -- values -------------------------------------------------------------------------------------------------


class Colour(Enum):
    RED = "red"


@dataclass
class Order:
    id: int
    when: datetime
    price: Decimal
    tag: UUID
    colour: Colour
    blob: bytes
    parts: tuple[int, ...]


ORDER = Order(1, datetime(2026, 1, 2, tzinfo=UTC), Decimal("1.50"), UUID(int=7), Colour.RED, b"\x00\xff", (1, 2))


def test_values_are_typed_by_the_annotations(url, played, engine_on):
    @step
    async def same(order: Order) -> Order:
        return order

    @workflow
    async def flow(ctx, order: Order) -> Order:
        assert isinstance(order, Order)
        again = await same(order)
        assert again == order
        return again

    assert ran(played, engine_on, url, flow, ORDER) == ORDER


def test_a_value_that_cannot_be_encoded_fails_at_the_call_with_its_path(url, played, engine_on):
    async def scenario():
        async with engine_on(url, [chain]) as engine:
            with pytest.raises(InvalidValue, match=r"the input of 'chain'"):
                await engine.start(chain, "five")
            with pytest.raises(InvalidValue, match=r"a\[1\]\.b"):
                await engine.start("elsewhere", {"a": [1, {"b": object()}]})
            with pytest.raises(InvalidValue, match="bytes, and the limit is"):
                await engine.start("elsewhere", "x" * 2_000_000)
            assert (await engine.list()).runs == ()

    played(scenario)


def test_a_step_whose_result_cannot_be_recorded_fails_and_is_not_retried(url, played, engine_on):
    tries = []

    def odd():
        tries.append(1)
        return object()

    @workflow
    async def flow(ctx, _):
        await ctx.step("odd", odd, retry=Retry(max_attempts=3, initial=0.001))

    assert failure(played, engine_on, url, flow, None).kind == "holdfast.errors.InvalidValue"
    assert len(tries) == 1


# -- time ---------------------------------------------------------------------------------------------------


def test_time_and_random_numbers_are_the_same_in_every_replay(url, played, engine_on):
    seen = []

    @workflow
    async def flow(ctx, _):
        before = ctx.now()
        await ctx.sleep("30 ms")
        facts = [str(before), str(ctx.now()), ctx.random(), str(ctx.uuid4()), ctx.run_id, ctx.workflow_name]
        seen.append(facts)
        await ctx.wait_for_signal("go")
        assert ctx.now() - before >= timedelta(milliseconds=30)
        return facts

    async def scenario():
        async with engine_on(url, [flow], park_after=0.05) as engine:
            handle = await engine.start(flow, None)
            while await handle.status() != "suspended":
                await asyncio.sleep(0.01)
            await handle.signal("go")
            return await handle.result()

    facts = played(scenario)
    assert len(seen) == 2
    assert seen[0] == seen[1] == facts


def test_sleep_until_needs_a_time_zone(url, played, engine_on):
    @workflow
    async def flow(ctx, _):
        try:
            await ctx.sleep_until(datetime(2026, 1, 1))  # noqa: DTZ001
        except InvalidOption as error:
            await ctx.sleep_until(datetime(2026, 1, 1, tzinfo=UTC))
            return str(error)

    assert "time zone" in ran(played, engine_on, url, flow, None)


def test_the_log_is_silent_on_replay(url, played, engine_on, caplog):
    caplog.set_level(logging.INFO, "holdfast.run")

    @workflow
    async def flow(ctx, _):
        ctx.log.info("begun")
        await ctx.wait_for_signal("go")
        ctx.log.info("done")

    async def scenario():
        async with engine_on(url, [flow], park_after=0.02) as engine:
            handle = await engine.start(flow, None, id="r")
            while await handle.status() != "suspended":
                await asyncio.sleep(0.01)
            await handle.signal("go")
            await handle.result()

    played(scenario)
    assert [record.getMessage() for record in caplog.records] == ["[r] begun", "[r] done"]


# -- signals and children -----------------------------------------------------------------------------------


def test_signals_are_read_in_order_and_counted_once_by_their_key(url, played, engine_on):
    @workflow
    async def flow(ctx, n: int) -> list[int]:
        return [await ctx.wait_for_signal("n") for _ in range(n)]

    async def scenario():
        async with engine_on(url, [flow]) as engine:
            handle = await engine.start(flow, 3)
            await engine.signal(handle.id, "other", 0)
            for n in (1, 1, 2, 3):
                await engine.signal(handle.id, "n", n, idempotency_key=f"k{n}")
            return await handle.result()

    assert played(scenario) == [1, 2, 3]


def test_waiting_for_a_signal_may_time_out(url, played, engine_on):
    @workflow
    async def flow(ctx, _):
        try:
            await ctx.wait_for_signal("never", timeout=0.05)
        except TimeoutError:
            return "nobody came"

    assert ran(played, engine_on, url, flow, None) == "nobody came"


def test_children_run_beside_their_parent_and_their_failures_are_raised_there(url, played, engine_on):
    @workflow
    async def broken(ctx, _):
        raise ValueError("broken")

    @workflow
    async def parent(ctx, _):
        first = await ctx.start_child(chain, 2)
        second = await ctx.child(chain, 3, id="own-id")
        try:
            await ctx.child(broken, None)
        except WorkflowFailed as error:
            return [await first.result(), second, first.id, error.kind, error.run_id]

    async def scenario():
        async with engine_on(url, [parent, chain, broken]) as engine:
            result = await (await engine.start(parent, None, id="p")).result()
            assert (await engine.get("own-id")).parent == "p"
            return result

    assert played(scenario) == [2, 3, "p/chain", "ValueError", "p/broken"]


def test_a_child_whose_id_is_in_use_is_an_error_in_its_parent(url, played, engine_on):
    @workflow
    async def parent(ctx, _):
        try:
            await ctx.child(chain, 1, id="taken")
        except StepFailed as error:
            return error.kind

    async def scenario():
        async with engine_on(url, [parent, chain]) as engine:
            await engine.start(chain, 1, id="taken")
            return await (await engine.start(parent, None)).result()

    assert played(scenario) == "holdfast.errors.RunExists"


# -- cancelling ---------------------------------------------------------------------------------------------


def test_cancel_ends_a_running_step_a_sleep_a_parked_run_and_children(url, played, engine_on):
    notified = []

    async def forever():
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            notified.append("step")
            raise

    @workflow
    async def works(ctx, _):
        await ctx.step("for ever", forever)

    @workflow
    async def sleeps(ctx, _):
        try:
            await ctx.sleep(60)
        finally:
            notified.append(await ctx.step("tidy", add, 20, 1))

    @workflow
    async def parent(ctx, _):
        await ctx.child(works, None)

    async def scenario():
        async with engine_on(url, [works, sleeps, parent], park_after=0.05) as engine:
            handles = [await engine.start(flow, None, id=flow.name) for flow in (works, sleeps, parent)]
            while await handles[1].status() != "suspended" or (await engine.list(status="running")).runs == ():
                await asyncio.sleep(0.01)
            for handle in handles:
                await handle.cancel()
            for handle in [*handles, engine.handle("parent/works")]:
                with pytest.raises(WorkflowFailed) as caught:
                    await handle.result(10)
                assert caught.value.status == "cancelled"

    played(scenario)
    assert sorted(notified, key=str) == [21, "step", "step"]


def test_cancel_ends_children_that_are_not_awaited(url, played, engine_on):
    @workflow
    async def sleeps(ctx: Context) -> None:
        await ctx.sleep(60)

    @workflow
    async def parent(ctx: Context) -> None:
        await ctx.start_child(sleeps)
        await ctx.sleep(60)

    async def scenario():
        async with engine_on(url, [sleeps, parent]) as engine:
            handle = await engine.start(parent, id="p")
            while not (await engine.list(prefix="p/")).runs:
                await asyncio.sleep(0.01)
            await handle.cancel()
            with pytest.raises(WorkflowFailed, match="cancelled"):
                await engine.handle("p/sleeps").result(10)

    played(scenario)


def test_a_workflow_may_complete_although_it_was_cancelled(url, played, engine_on):
    @workflow
    async def flow(ctx, _):
        try:
            await ctx.sleep(60)
        except asyncio.CancelledError:
            return "tidied up"

    async def scenario():
        async with engine_on(url, [flow]) as engine:
            handle = await engine.start(flow, None)
            await handle.cancel()
            return await handle.result()

    assert played(scenario) == "tidied up"


# -- asking -------------------------------------------------------------------------------------------------


def test_bad_input_gets_a_clear_error_and_changes_nothing(url, played, engine_on):
    async def scenario():
        async with engine_on(url, [chain]) as engine:
            handle = await engine.start(chain, 1, id="a")
            await handle.result()
            with pytest.raises(RunExists, match="'a'"):
                await engine.start(chain, 1, id="a")
            for bad in ("", "x" * 600, "a\x00"):
                with pytest.raises(ValueError, match="run id"):
                    await engine.start(chain, 1, id=bad)
            with pytest.raises(RunEnded, match="completed"):
                await engine.signal("a", "late")
            with pytest.raises(RunEnded):
                await engine.cancel("a")
            for ask in (engine.get, engine.cancel, engine.resume, engine.retry, engine.restart):
                with pytest.raises(UnknownRun, match="'nobody'"):
                    await ask("nobody")
            with pytest.raises(UnknownRun):
                await engine.signal("nobody", "x")
            with pytest.raises(InvalidOption, match="completed"):
                await engine.retry("a")
            with pytest.raises(InvalidOption, match="no status"):
                await engine.list(status="sleeping")
            with pytest.raises(InvalidOption, match="page of runs"):
                await engine.list(after="x")
            assert [run.id for run in (await engine.list()).runs] == ["a"]

    played(scenario)


def test_a_plain_function_is_refused_as_a_workflow_and_two_cannot_have_one_name():
    with pytest.raises(InvalidWorkflow, match="async def"):

        @workflow
        def flow(ctx, _): ...

    with pytest.raises(InvalidWorkflow, match="context"):

        @workflow
        async def nothing(): ...

    with pytest.raises(InvalidOption, match="called 'chain'"):
        Engine("memory://", workflows=[chain, chain])


def test_a_start_with_the_same_idempotency_key_is_the_same_run(url, played, engine_on):
    async def scenario():
        async with engine_on(url, [chain]) as engine:
            handles = await asyncio.gather(*(engine.start(chain, n, idempotency_key="once") for n in range(5)))
            assert len({handle.id for handle in handles}) == 1
            return len((await engine.list()).runs)

    assert played(scenario) == 1


def test_runs_are_listed_by_workflow_status_and_attributes(url, played, engine_on):
    @workflow
    async def flow(ctx, customer: str) -> None:
        await ctx.set_attributes(customer=customer, vip=customer == "acme")

    async def scenario():
        async with engine_on(url, [flow, chain]) as engine:
            for customer in ("acme", "globex", "acme"):
                await (await engine.start(flow, customer)).result()
            await (await engine.start(chain, 1, id="x-1", attributes={"n": 5})).result()
            found = await engine.list(attributes={"customer": "acme", "vip": True}, status="completed", workflow=flow)
            assert len(found.runs) == 2
            assert [run.id for run in (await engine.list(prefix="x-")).runs] == ["x-1"]
            assert (await engine.list(until=datetime(2020, 1, 1, tzinfo=UTC))).runs == ()
            page = await engine.list(limit=3)
            assert len(page.runs) == 3
            assert len((await engine.list(limit=3, after=page.next)).runs) == 1

    played(scenario)


NO_QUESTIONS = [
    ({"since": "2 hours"}, InvalidOption, "timedelta"),
    ({"until": 5}, InvalidOption, "until=5 is not a datetime"),
    ({"since": datetime(2026, 1, 1)}, InvalidOption, "time zone"),  # noqa: DTZ001
    ({"after": 5}, InvalidOption, "`next` of a page"),
    ({"after": "1:"}, InvalidOption, "`next` of a page"),
    ({"after": "٣:x"}, InvalidOption, "`next` of a page"),
    ({"after": "1:\ud800"}, InvalidKey, "surrogate"),
    ({"attributes": 5}, InvalidOption, "dict"),
    ({"status": 5}, InvalidOption, "pending"),
    ({"status": [5]}, InvalidOption, "pending"),
    ({"prefix": 5}, InvalidKey, "text"),
    ({"prefix": "\udc80"}, InvalidKey, "surrogate"),
    ({"limit": 10**30}, InvalidOption, "page after the other"),
    ({"limit": 0}, InvalidOption, "at least 1"),
]


@pytest.mark.parametrize(("options", "error", "words"), NO_QUESTIONS)
def test_an_invalid_filter_is_refused_with_the_valid_ones(played, engine_on, options, error, words):
    async def scenario():
        async with engine_on("memory://", []) as engine:
            with pytest.raises(error, match=words):
                await engine.list(**options)

    played(scenario)
    with Client("memory://") as hf, pytest.raises(error, match=words):
        hf.runs.list(**options)


@pytest.mark.parametrize("attributes", [[1], [], "ann", 5])
def test_attributes_that_are_no_dict_are_refused(played, engine_on, attributes):
    async def scenario():
        async with engine_on("memory://", [chain]) as engine:
            with pytest.raises(InvalidOption, match="no dict of names and values"):
                await engine.start(chain, 1, attributes=attributes)

    played(scenario)


@pytest.mark.parametrize("workflows", [None, "chain", 5])
def test_an_engine_wants_a_list_of_workflows(workflows):
    with pytest.raises(InvalidOption, match=r"workflows=\[\.\.\.\]"):
        Engine("memory://", workflows=workflows)
    with pytest.raises(InvalidOption, match=r"workflows=\[\.\.\.\]"):
        Engine("memory://", workflows=chain)


def test_waiting_for_a_result_may_have_a_timeout(url, played, engine_on):
    @workflow
    async def flow(ctx, _):
        await ctx.sleep(60)

    async def scenario():
        async with engine_on(url, [flow]) as engine:
            handle = await engine.start(flow, None)
            with pytest.raises(RunResultTimeout, match="The run continues"):
                await handle.result(0.05)
            assert await handle.status() == "running"

    played(scenario)


# -- driving ------------------------------------------------------------------------------------------------


def test_a_retried_run_continues_where_it_failed_and_a_restarted_one_from_the_beginning(url, played, engine_on):
    bodies, broken = [], [True]

    def first():
        bodies.append("first")

    def second():
        bodies.append("second")
        if broken[0]:
            raise ValueError("broken")
        return "mended"

    @workflow
    async def flow(ctx, _):
        await ctx.step("first", first)
        return await ctx.step("second", second)

    async def scenario():
        async with engine_on(url, [flow]) as engine:
            handle = await engine.start(flow, None)
            with pytest.raises(WorkflowFailed):
                await handle.result()
            broken[0] = False
            await engine.retry(handle.id)
            assert await handle.result() == "mended"
            assert bodies == ["first", "second", "second"]
            await engine.restart(handle.id)
            assert await handle.result() == "mended"
            assert bodies[3:] == ["first", "second"]

    played(scenario)


@pytest.mark.parametrize("how", ["retry", "restart", "child first"])
def test_a_run_that_failed_because_of_its_child_is_retried_with_it(url, played, engine_on, how):
    bodies, broken = [], [True]

    def first():
        bodies.append("first")

    def second():
        bodies.append("second")
        if broken[0]:
            raise ValueError("broken")
        return "mended"

    @workflow
    async def below(ctx, _):
        return await ctx.step("second", second)

    @workflow
    async def above(ctx, _):
        await ctx.step("first", first)
        return await ctx.child(below, None)

    async def scenario():
        async with engine_on(url, [above, below]) as engine:
            handle = await engine.start(above, None, id="r")
            with pytest.raises(WorkflowFailed, match="broken"):
                await handle.result()
            broken[0] = False
            if how == "child first":
                await engine.retry("r/below")
                assert await engine.handle("r/below").result() == "mended"
            await (engine.restart if how == "restart" else engine.retry)("r")
            assert await handle.result(10) == "mended"

    played(scenario)
    assert bodies == ["first", "second", *(["first"] if how == "restart" else []), "second"]


def test_a_run_that_timed_out_has_its_full_timeout_when_it_is_retried(url, played, engine_on):
    slow = [True]

    async def wait():
        if slow[0]:
            await asyncio.sleep(60)

    @workflow(timeout=0.5)
    async def flow(ctx, _):
        await ctx.step("wait", wait)
        return "in time"

    async def scenario():
        async with engine_on(url, [flow]) as engine:
            handle = await engine.start(flow, None)
            with pytest.raises(WorkflowFailed, match="timed_out"):
                await handle.result()
            slow[0] = False
            await asyncio.sleep(0.3)
            await engine.retry(handle.id)
            return await handle.result(10)

    assert played(scenario) == "in time"


def test_engines_skip_unknown_workflows_and_versions_and_emit_an_event(url, played, engine_on):
    @workflow(name="order", version="2")
    async def second(ctx, _):
        return 2

    @workflow(name="order", version="1")
    async def first(ctx, _):
        return 1

    async def scenario():
        async with engine_on(url, [second], recover=False) as engine:
            old = await engine.start(first, None)
            strange = await engine.start("strange", {"x": 1})
            named = await engine.start("order", None)
            assert await named.result() == 2
            assert await engine.unclaimed() == {"order@1": 1, "strange@*": 1}
            with pytest.raises(WorkflowNotRegistered, match="strange") as caught:
                await engine.recover_all()
            assert caught.value.types == {"order@1": 1, "strange@*": 1}
            assert await engine.sweep() == 0
            assert await old.status() == await strange.status() == "pending"
            async with engine_on(url, [first]):
                assert await old.result() == 1

    played(scenario)


def test_a_full_engine_parks_waiting_runs_to_claim_due_ones(url, played, engine_on):
    @workflow
    async def child(ctx, _):
        return await ctx.step("one", add, 1, 1)

    @workflow
    async def parent(ctx, _):
        async with ctx.mutex("m", scope="global"):
            return await ctx.child(child, None)

    async def scenario():
        async with engine_on(url, [parent, child], max_active_runs=1, park_after=3_600) as engine:
            handles = [await engine.start(parent, None) for _ in range(3)]
            return [await handle.result(30) for handle in handles]

    assert played(scenario) == [2, 2, 2]


def test_a_run_that_cannot_be_parked_does_not_prevent_others_from_being_parked(url, played, engine_on):
    @workflow
    async def leased(ctx, _):
        async with ctx.mutex("m", lease=30):
            return await ctx.wait_for_signal("go")

    @workflow
    async def child(ctx, _):
        return await ctx.step("one", add, 1, 1)

    @workflow
    async def parent(ctx, _):
        await ctx.wait_for_signal("go")
        return await ctx.child(child, None)

    async def scenario():
        async with engine_on(url, [leased, parent, child], max_active_runs=3, park_after=3_600) as engine:
            first = await engine.start(leased, None)
            handles = [await engine.start(parent, None) for _ in range(2)]
            for handle in handles:
                await handle.signal("go")
            results = [await handle.result(30) for handle in handles]
            await first.signal("go", 3)
            return [*results, await first.result(30)]

    assert played(scenario) == [2, 2, 3]


def test_a_sweep_drives_due_runs_once(url, played, engine_on):
    @workflow
    async def flow(ctx, _):
        await ctx.step("one", add, 1, 1)
        await ctx.sleep(0.2)
        return "slept"

    async def scenario():
        async with engine_on(url, [flow], recover=False, max_active_runs=1) as engine:
            await engine.start(flow, None, id="busy")
            handle = await engine.start(flow, None, id="other")
            assert await handle.status() == "pending"
            await engine.handle("busy").result()
            assert await engine.sweep() == 1
            assert await handle.status() == "suspended"
            await asyncio.sleep(0.25)
            assert await engine.sweep() == 1
            return await handle.result(1)

    assert played(scenario) == "slept"


def test_closing_an_engine_releases_its_runs_and_another_engine_continues(tmp_path, played, engine_on):
    url = f"sqlite:///{tmp_path}/x.db"

    @workflow
    async def flow(ctx, _):
        await ctx.step("one", add, 1, 1)
        return await ctx.wait_for_signal("go")

    async def scenario():
        async with engine_on(url, [flow], worker_ttl=60) as engine:
            await engine.start(flow, None, id="r")
            await asyncio.sleep(0.05)
        async with engine_on(url, [flow], worker_ttl=60) as engine:
            assert (await engine.get("r")).entries == 2
            await engine.signal("r", "go", "on")
            return await engine.handle("r", flow).result(5)

    assert played(scenario) == "on"


def test_transactions_need_a_store_that_supports_them(played, engine_on):
    @workflow
    async def flow(ctx, _):
        await ctx.transaction("t", lambda connection: None)

    error = failure(played, engine_on, "memory://", flow, None)
    assert error.kind == f"{NotInWorkflow.__module__}.NotInWorkflow"
