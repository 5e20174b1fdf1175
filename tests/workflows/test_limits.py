"""Limits in use: how many runs at a time, how many starts in a period, and what happens to a start beyond them."""

from __future__ import annotations

import asyncio
import pickle
from dataclasses import dataclass

import pytest
from waiting import eventually_async

from holdfast import (
    Client,
    Concurrency,
    Context,
    Engine,
    Rate,
    StepFailed,
    WorkflowConcurrencyLimitExceededError,
    WorkflowFailed,
    workflow,
)
from holdfast.errors import (
    InvalidOption,
    WorkflowDefinitionRequired,
    WorkflowLimitExceeded,
    WorkflowQueueFull,
    WorkflowRateLimitExceeded,
)


@dataclass
class Order:
    customer: str
    number: int = 0


def waiting(**options):
    """A workflow whose runs wait for a signal."""

    @workflow(**({"name": "order"} | options))
    async def order(ctx: Context, order: Order) -> int:
        await ctx.wait_for_signal("go")
        return order.number

    return order


async def go(engine, *runs):
    for run in runs:
        await engine.signal(run, "go")


async def until(engine, run, status):
    async with asyncio.timeout(10):
        while (await engine.get(run)).status != status:
            await asyncio.sleep(0.01)


def test_a_start_beyond_the_limit_is_rejected_with_the_reason(played, engine_on, url):
    order = waiting(concurrency=Concurrency(max=2, key="customer"))

    async def scenario():
        async with engine_on(url, [order]) as engine:
            first = await engine.start(order, Order("ann", 1))
            assert first.admission.outcome == "admitted"
            await engine.start(order, Order("ann", 2))
            with pytest.raises(WorkflowConcurrencyLimitExceededError, match="Nothing was changed") as caught:
                await engine.start(order, Order("ann", 3), id="third")
            assert not (await engine.list(prefix="third")).runs
            await engine.start(order, Order("bob", 4))
            await first.signal("go")
            assert await first.result() == 1
            await engine.start(order, Order("ann", 5))
            return caught.value

    error = played(scenario)
    assert (error.workflow_type, error.partition_key, error.limit, error.retry_after) == ("order", "ann", 2, None)
    assert error.retryable
    assert pickle.loads(pickle.dumps(error)).partition_key == "ann"


def test_queued_runs_are_executed_in_order_of_arrival(played, engine_on, url):
    ran = []

    @workflow(concurrency=Concurrency(max=1, on_excess="queue"))
    async def one_by_one(ctx: Context, number: int) -> int:
        await ctx.step("note", ran.append, number)
        return number

    async def scenario():
        async with engine_on(url, [one_by_one]) as engine:
            handles = [await engine.start(one_by_one, number) for number in range(20)]
            return [await handle.result() for handle in handles]

    assert played(scenario) == ran == list(range(20))


def test_a_queued_run_is_admitted_when_another_run_ends(played, engine_on, url):
    order = waiting(concurrency=Concurrency(max=1, on_excess="queue", max_queue=2))

    async def scenario():
        async with engine_on(url, [order]) as engine:
            await engine.start(order, Order("ann", 1), id="a")
            handle = await engine.start(order, Order("ann", 2), id="b")
            assert (handle.admission.outcome, handle.admission.limit, await handle.status()) == (
                "queued", "concurrency", "queued",
            )  # fmt: skip
            await engine.start(order, Order("ann", 3), id="urgent", priority=9)
            with pytest.raises(WorkflowQueueFull):
                await engine.start(order, Order("ann", 4))
            assert [run.id for run in (await engine.list(status="queued")).runs] == ["urgent", "b"]
            await go(engine, "a")
            await until(engine, "urgent", "running")
            assert (await engine.get("b")).status == "queued"
            await engine.cancel("b")
            assert (await engine.get("b")).status == "cancelled"
            await go(engine, "urgent")

    played(scenario)


def test_a_skipped_start_gets_a_handle_of_the_existing_run(played, engine_on, url):
    order = waiting(concurrency=Concurrency(max=1, on_excess="skip"))

    async def scenario():
        async with engine_on(url, [order]) as engine:
            first = await engine.start(order, Order("ann", 1))
            second = await engine.start(order, Order("ann", 2))
            assert (second.id, second.admission.outcome) == (first.id, "skipped")
            await go(engine, first.id)
            assert await second.result() == 1

    played(scenario)


def test_cancel_oldest_cancels_the_oldest_run_for_the_newest(played, engine_on, url):
    order = waiting(concurrency=Concurrency(max=1, on_excess="cancel_oldest"))

    async def scenario():
        async with engine_on(url, [order]) as engine:
            first = await engine.start(order, Order("ann", 1))
            second = await engine.start(order, Order("ann", 2))
            assert second.admission.outcome == "replaces"
            with pytest.raises(WorkflowFailed) as caught:
                await first.result()
            assert caught.value.status == "cancelled"
            await go(engine, second.id)
            assert await second.result() == 2

    played(scenario)


def test_the_newest_run_is_recorded_as_cancelled(played, engine_on, url):
    order = waiting(concurrency=Concurrency(max=1, on_excess="cancel_newest"))

    async def scenario():
        async with engine_on(url, [order]) as engine:
            first = await engine.start(order, Order("ann", 1))
            second = await engine.start(order, Order("ann", 2))
            with pytest.raises(WorkflowFailed, match="ConcurrencyLimit") as caught:
                await second.result()
            assert (caught.value.status, second.admission.outcome) == ("cancelled", "cancelled")
            await go(engine, first.id)
            assert await first.result() == 1

    played(scenario)


def test_a_rate_limit_rejects_further_starts_within_its_period(played, engine_on, url):
    order = waiting(rate=Rate(2, per="1 minute", key="customer"))

    async def scenario():
        async with engine_on(url, [order]) as engine:
            for number in range(2):
                await engine.start(order, Order("ann", number))
            with pytest.raises(WorkflowRateLimitExceeded, match="try again in") as caught:
                await engine.start(order, Order("ann", 3))
            assert 0 < caught.value.retry_after <= 60
            await engine.start(order, Order("bob", 4))

    played(scenario)


def test_starts_beyond_a_rate_limit_are_queued_and_begin_later(played, engine_on, url):
    @workflow(rate=Rate(2, per=0.5, on_excess="queue"))
    async def paced(ctx: Context) -> float:
        return ctx.now().timestamp()

    async def scenario():
        async with engine_on(url, [paced]) as engine:
            handles = [await engine.start(paced) for _ in range(4)]
            assert [handle.admission.outcome for handle in handles] == ["admitted", "admitted", "delayed", "delayed"]
            return [await handle.result() for handle in handles]

    times = played(scenario)
    assert times[2] - times[0] >= 0.5
    assert times[3] - times[1] >= 0.5


def test_of_several_limits_the_error_names_the_one_that_applied(played, engine_on, url):
    order = waiting(
        concurrency=[Concurrency(max=3, on_excess="queue", name="all"), Concurrency(max=1, key="customer")],
        rate=Rate(100, per="1 hour"),
    )

    async def scenario():
        async with engine_on(url, [order]) as engine:
            await engine.start(order, Order("ann"))
            with pytest.raises(WorkflowConcurrencyLimitExceededError) as caught:
                await engine.start(order, Order("ann"))
            assert (caught.value.name, caught.value.partition_key) == ("concurrency:customer", "ann")
            for customer in ("bob", "cid"):
                await engine.start(order, Order(customer))
            handle = await engine.start(order, Order("dan"))
            assert (handle.admission.limit, handle.admission.max) == ("all", 3)

    played(scenario)


# -- by name ---------------------------------------------------------------------------------------------------


def test_a_start_by_name_obeys_the_limits_that_an_engine_has_published(played, engine_on, url, monkeypatch):
    order = waiting(concurrency=Concurrency(max=1, key="customer"))

    async def scenario():
        async with engine_on(url, [order]) as engine:
            with Client(url) as client:
                client.runs.start("order", {"customer": "ann"})
                with pytest.raises(WorkflowConcurrencyLimitExceededError):
                    client.runs.start("order", {"customer": "ann"})
                client.runs.start("order", {"customer": "bob"})
                with pytest.raises(InvalidOption, match="has no 'customer'"):
                    client.runs.start("order", {"name": "ann"})
            with pytest.raises(WorkflowConcurrencyLimitExceededError):
                await engine.start("order", Order("bob"))

    played(scenario)


def test_the_input_itself_can_be_the_key(played, engine_on, url):
    @workflow(concurrency=Concurrency(max=1, key="."))
    async def rebuild(ctx, customer: str) -> None:
        await ctx.wait_for_signal("go")

    async def scenario():
        async with engine_on(url, [rebuild]) as engine:
            await engine.start(rebuild, "ann")
            with pytest.raises(WorkflowConcurrencyLimitExceededError) as refused:
                await engine.start(rebuild, "ann")
            assert (refused.value.partition_key, refused.value.name) == ("ann", "concurrency:input")
            await engine.start(rebuild, "bob")
            with Client(url) as client:
                with pytest.raises(WorkflowConcurrencyLimitExceededError):
                    client.runs.start("rebuild", "bob")
                with pytest.raises(InvalidOption, match="a key is text, a whole number"):
                    client.runs.start("rebuild", {"customer": "bob"})

    played(scenario)


def test_a_start_by_name_is_refused_if_the_key_of_a_limit_is_a_function(played, engine_on, url):
    order = waiting(concurrency=Concurrency(max=1, key=lambda order: order.customer.lower(), name="each"))

    async def scenario():
        async with engine_on(url, [order]) as engine:
            await engine.start(order, Order("ann"))
            with pytest.raises(WorkflowConcurrencyLimitExceededError):
                await engine.start(order, Order("ANN"))
            with Client(url) as client:
                with pytest.raises(WorkflowDefinitionRequired, match="by a function"):
                    client.runs.start("order", {"customer": "bob"})
                client.runs.start(order, Order("bob"))
                with pytest.raises(WorkflowConcurrencyLimitExceededError):
                    client.runs.start(order, Order("Bob"))

    played(scenario)


def test_without_an_engine_the_limits_of_the_workflow_definition_apply(url):
    order = waiting(concurrency=Concurrency(max=1))
    with Client(url) as client:
        client.runs.start(order, Order("ann"))
        with pytest.raises(WorkflowConcurrencyLimitExceededError):
            client.runs.start("order", {"customer": "bob"})


def test_the_newest_limits_apply_and_raising_one_admits_queued_runs(played, engine_on, url):
    def limited(max, version):
        return waiting(concurrency=Concurrency(max=max, on_excess="queue", version=version))

    async def scenario():
        async with engine_on(url, [limited(1, 1)]) as engine:
            for run in "abc":
                await engine.start("order", Order(run), id=run)
            assert (await engine.get("b")).status == "queued"
            async with Engine(engine._client, workflows=[limited(2, 2)], recover=False) as newer:
                await until(newer, "b", "running")
                assert (await newer.get("c")).status == "queued"
            seen = []
            engine.events.subscribe(seen.append)
            async with Engine(engine._client, workflows=[limited(9, 1)], recover=False) as older:
                assert (await older.get("c")).status == "queued"
            assert [event.fields for event in seen if event.name == "limits_outdated"] == [
                {"workflow": "order", "version": 1}
            ]

    played(scenario)


# -- limit keys ------------------------------------------------------------------------------------------------


def test_retry_and_restart_are_admitted_like_a_start(played, engine_on, url):
    @workflow(concurrency=Concurrency(max=1))
    async def fails(ctx: Context, how: str) -> None:
        if how == "badly":
            raise ValueError
        await ctx.wait_for_signal("go")

    async def scenario():
        async with engine_on(url, [fails]) as engine:
            handle = await engine.start(fails, "badly", id="failed")
            with pytest.raises(WorkflowFailed):
                await handle.result()
            await engine.start(fails, "well", id="living")
            for again in (engine.retry, engine.restart):
                with pytest.raises(WorkflowConcurrencyLimitExceededError):
                    await again("failed")
            assert (await engine.get("failed")).status == "failed"

    played(scenario)


def test_a_rejected_child_fails_where_it_is_awaited_and_is_not_started_later(played, engine_on, url):
    order = waiting(concurrency=Concurrency(max=1))

    @workflow
    async def parent(ctx: Context) -> str:
        try:
            await ctx.child(order, Order("bob"))
        except StepFailed as error:
            await ctx.wait_for_signal("on")
            return error.kind
        return "started"

    async def scenario():
        async with engine_on(url, [order, parent]) as engine:
            await engine.start(order, Order("ann"), id="first")
            handle = await engine.start(parent, id="parent")
            await until(engine, "parent", "running")
            await asyncio.sleep(0.2)
        async with engine_on(url, [order, parent]) as engine:
            await go(engine, "first")
            await engine.handle("first").result()
            await engine.signal("parent", "on")
            assert await engine.handle("parent").result() == "holdfast.errors.WorkflowConcurrencyLimitExceededError"
            assert [run.id for run in (await engine.list(workflow="order")).runs] == ["first"]
        return handle

    if url.startswith("memory"):
        pytest.skip("what is in memory ends with the engine")
    played(scenario)


# -- what is refused -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Concurrency(max=0), "max"),
        (lambda: Concurrency(max=1, on_excess="drop"), "reject, skip"),
        (lambda: Concurrency(max=1, key="a..b"), "path"),
        (lambda: Concurrency(max=1, key=""), "key"),
        (lambda: Concurrency(max=1, name="a/b"), "letters, digits"),
        (lambda: Concurrency(max=1, version=-1), "version"),
        (lambda: Concurrency(max=1, max_queue=0), "max_queue"),
        (lambda: Concurrency(max=1, max_queue=3), "no run waits"),
        (lambda: Rate(1, per=0), "longer than 0"),
        (lambda: Rate(1, per="1 minute", on_excess="skip"), "not one of reject, queue"),
        (lambda: waiting(concurrency=3), "Concurrency"),
        (lambda: waiting(concurrency=Rate(1, per=1)), "Concurrency"),
        (lambda: waiting(concurrency=[Concurrency(max=1), Concurrency(max=2)]), "another name"),
    ],
)
def test_an_invalid_limit_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_priority_is_a_whole_number(tmp_path):
    with Client(f"sqlite:///{tmp_path}/x.db") as client, pytest.raises(InvalidOption, match="priority"):
        client.runs.start("order", priority="high")


def test_every_limit_error_has_one_base_class():
    for kind in (WorkflowConcurrencyLimitExceededError, WorkflowRateLimitExceeded, WorkflowQueueFull):
        assert issubclass(kind, WorkflowLimitExceeded)


@pytest.mark.parametrize("on_excess", ["skip", "cancel_newest"])
def test_a_signal_with_a_rejected_start_is_not_delivered(url, played, engine_on, on_excess):
    expected = "another run is kept" if on_excess == "skip" else "recorded as cancelled"

    @workflow(name="talk", concurrency=Concurrency(max=1, on_excess=on_excess))
    async def talk(ctx, who: str) -> str:
        return f"{who} heard {await ctx.wait_for_signal('say')}"

    async def scenario():
        async with engine_on(url, [talk]) as engine:
            ann = await engine.start(talk, "ann", id="ann")
            with pytest.raises(WorkflowConcurrencyLimitExceededError, match=expected) as caught:
                await engine.start_or_signal(talk, "bob", id="bob", name="say", payload="a secret of bob's")
            assert (caught.value.workflow_type, caught.value.limit) == ("talk", 1)
            await engine.start_or_signal(talk, "ann", id="ann", name="say", payload="hello")
            assert await ann.result() == "ann heard hello"

    played(scenario)


@dataclass
class Request:
    customer: str


def test_a_function_as_the_key_gets_the_input_of_the_workflow(url, played, engine_on):
    @workflow(name="ask", concurrency=Concurrency(max=1, key=lambda request: request.customer))
    async def ask(ctx, request: Request) -> str:
        return request.customer

    async def scenario():
        async with engine_on(url, [ask]) as engine:
            for given in (Request("ann"), {"customer": "ann"}):
                handle = await engine.start(ask, given)
                assert (await handle.result(), handle.admission.outcome) == ("ann", "admitted")

    played(scenario)


def test_an_exception_of_a_key_function_is_reported_with_the_limit(url, played, engine_on):
    @workflow(name="ask", concurrency=Concurrency(max=1, key=lambda request: request["missing"], name="each"))
    async def ask(ctx, request: dict[str, str]) -> None:
        pass

    async def scenario():
        async with engine_on(url, [ask]) as engine:
            with pytest.raises(InvalidOption, match=r"limit 'each' of 'ask'.*KeyError\('missing'\)"):
                await engine.start(ask, {})

    played(scenario)


@pytest.mark.parametrize("parked", [False, True])
def test_a_rejected_child_may_be_started_again_with_its_id(url, played, engine_on, parked):
    @workflow(name="below", concurrency=Concurrency(max=1))
    async def below(ctx, _none: None) -> str:
        return await ctx.wait_for_signal("go")

    @workflow(name="above")
    async def above(ctx, _none: None) -> str:
        try:
            return await ctx.child(below, id="child")
        except StepFailed:
            await ctx.wait_for_signal("again")
            return await ctx.child(below, id="child")

    async def scenario():
        async with engine_on(url, [above, below], park_after=0.01 if parked else 60) as engine:
            first = await engine.start(below)
            handle = await engine.start(above, id="above")
            await eventually_async(lambda: refused(engine))
            await first.signal("go", "done")
            await first.result()
            await handle.signal("again")
            await eventually_async(lambda: there(engine))
            await engine.handle("child").signal("go", "let in")
            assert await handle.result(timeout=20) == "let in"

    async def refused(engine):
        run = await engine.get("above")
        return run.entries > 1 and (not parked or run.status == "suspended")

    async def there(engine):
        return "child" in [run.id for run in (await engine.list()).runs]

    played(scenario)
