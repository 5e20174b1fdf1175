"""A run whose code does not fit its history is blocked: it keeps everything, and continues when the code fits again."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

import pytest
from waiting import eventually_async, until_blocked, until_status

from holdfast import AsyncClient, Client, Concurrency, Context, WorkflowFailed, step, workflow
from holdfast.errors import (
    DeadlockDetected,
    InvalidOption,
    InvalidValue,
    LockTimeout,
    RunEnded,
    RunLocked,
    RunResultTimeout,
)
from holdfast.workflow import blocked_runs
from holdfast.workflow.worker import Worker


class Shop:
    """The code of two releases: the second one has a step more, before the signal."""

    def __init__(self):
        self.charged = []

    def release(self, *, bad, **options):
        @step
        async def charge(order: str) -> str:
            self.charged.append(order)
            return f"{order} paid"

        @workflow(name="order", **options)
        async def order(ctx: Context, name: str) -> str:
            async with ctx.mutex("till" if name == "ann" else name, scope="global"):
                if bad:
                    await ctx.step("check", len, name)
                receipt = await charge(name)
                await ctx.wait_for_signal("packed")
            return receipt

        return order


@pytest.fixture
def shop():
    return Shop()


async def parked(engine, handle):
    await until_status(engine, handle.id, "suspended")


def shared(url):
    """Skip a store whose records end with its engine."""
    if url.startswith("memory"):
        pytest.skip("what is in memory ends with the engine")


def test_a_bad_deploy_blocks_and_the_roll_back_continues_each_run_once(url, played, engine_on, shop):
    shared(url)
    good, bad = shop.release(bad=False), shop.release(bad=True)

    async def scenario():
        async with engine_on(url, [good], park_after=0.05) as engine:
            await parked(engine, await engine.start(good, "ann", id="r"))
        async with engine_on(url, [bad], version="2.0") as engine, AsyncClient(url) as hf:
            seen = []
            engine.events.subscribe(lambda event: seen.append(event) if event.name == "run_blocked" else None)
            await engine.signal("r", "packed")
            why = await until_blocked(engine, "r")
            assert (why.tries, why.code) == (1, "2.0")
            assert "There the step 'charge' ended; the code waits for the steps ['check']" in why.reason.message
            run = await engine.get("r")
            assert (run.entries, run.locks, run.holder) == (3, ("till",), None), "nothing was recorded"
            with pytest.raises(LockTimeout):
                await hf.lock("till", wait=0).acquire()
            assert [event.fields["run"] for event in seen] == ["r"]
            with pytest.raises(RunResultTimeout, match=r"status: blocked.*charge.*keeps its history and its locks"):
                await engine.handle("r").result(0.01)
        async with engine_on(url, [good], version="1.0") as engine:
            assert await engine.handle("r", good).result(20) == "ann paid"
            run = await engine.get("r")
            assert (run.code, run.blocked) == ("1.0", None)
        assert shop.charged == ["ann"]

    played(scenario)


def test_an_engine_with_code_that_fits_takes_over_at_once_during_a_rolling_deploy(
    url, played, engine_on, shop, monkeypatch
):
    """Without a hint the run would be tried again later."""
    shared(url)
    for pause in ("WITH_HINTS", "WITHOUT_HINTS"):
        monkeypatch.setattr(blocked_runs, pause, 3_600.0)
    good, bad = shop.release(bad=False), shop.release(bad=True)

    async def scenario():
        async with engine_on(url, [good], park_after=0.05) as engine:
            await parked(engine, await engine.start(good, "ann", id="r"))
        async with engine_on(url, [bad]) as new, engine_on(url, [good], recover=False) as old:
            await new.signal("r", "packed")
            await until_blocked(new, "r")
            assert (await old.resume("r")).status == "completed"
        names = [f"s{n}" for n in range(6)]  # the hints about them are sent to both engines
        async with engine_on(url, [good], park_after=0.05) as engine:
            for name in names:
                await parked(engine, await engine.start(good, name, id=name))
        async with engine_on(url, [bad]) as new, engine_on(url, [good]) as old:
            for name in names:
                await new.signal(name, "packed")
            for name in names:
                assert await old.handle(name, good).result(20) == f"{name} paid"
        assert shop.charged == ["ann", *names]

    played(scenario)


def test_an_engine_finds_a_blocked_run_that_no_hint_was_sent_for(url, played, engine_on, shop, monkeypatch):
    """A hint may be lost, and some stores send none to other processes. Not found, it would wait for a minute."""
    shared(url)
    monkeypatch.setattr(Worker, "_may_try", lambda self, runs: None)
    monkeypatch.setattr(blocked_runs, "WITH_HINTS", 0.2)
    good, bad = shop.release(bad=False), shop.release(bad=True)

    async def scenario():
        async with engine_on(url, [good], park_after=0.05) as engine:
            await parked(engine, await engine.start(good, "ann", id="r"))
        async with engine_on(url, [bad]) as new:
            await new.signal("r", "packed")
            await until_blocked(new, "r")
            await new.retry("r")  # the old code is open when the run is blocked again
            async with engine_on(url, [good]) as old:
                assert await old.handle("r", good).result(20) == "ann paid"
        names = [f"s{n}" for n in range(6)]
        async with engine_on(url, [good], park_after=0.05) as engine:
            for name in names:
                await parked(engine, await engine.start(good, name, id=name))
        async with engine_on(url, [bad]) as new, engine_on(url, [good]) as old:
            for name in names:
                await new.signal(name, "packed")
            for name in names:
                assert await old.handle(name, good).result(20) == f"{name} paid"
        assert shop.charged == ["ann", *names]

    played(scenario)


def test_an_engine_tries_a_blocked_run_once_when_it_opens_and_not_again(url, played, engine_on, shop):
    shared(url)
    good, bad = shop.release(bad=False), shop.release(bad=True)

    async def scenario():
        async with engine_on(url, [good], park_after=0.05) as engine:
            for name in ("a", "b", "c"):
                await parked(engine, await engine.start(good, name, id=name))
        async with AsyncClient(url) as hf:
            for name in ("a", "b", "c"):
                await hf.runs.signal(name, "never read")
        for tries in (1, 2, 3):
            async with engine_on(url, [bad]) as engine:

                async def tried(often=tries, engine=engine):
                    runs = [(await engine.get(name)).blocked for name in ("a", "b", "c")]
                    return all(run is not None and run.tries == often for run in runs)

                await eventually_async(tried)
                assert await engine.sweep() == 0
                await engine.signal("a", "packed")
                assert (await engine.get("a")).status == "blocked", "signals do not wake it"
        async with engine_on(url, [good]) as engine:
            await until_status(engine, "a", "completed")
            for name in ("b", "c"):
                await engine.signal(name, "packed")
                assert await engine.handle(name).result(20) == f"{name} paid"
        assert sorted(shop.charged) == ["a", "b", "c"]

    played(scenario)


@dataclass
class Receipt:
    text: str


@dataclass
class LongReceipt:
    text: str
    number: int


def reading(what, type, caught):
    """A workflow that records a value of one kind, and reads it again after a signal."""

    @step(name="print")
    async def receipt():
        return {"text": "x"}

    receipt.function.__annotations__["return"] = type

    @workflow(name="child")
    async def child(ctx):
        return {"text": "x"}

    child.output_type = type

    @workflow(name="reader")
    async def reader(ctx, _none: None) -> list[str]:
        if what == "step":
            await receipt()
        elif what == "child":
            await ctx.child(child)
        else:
            try:
                await ctx.wait_for_signal("receipt", type=type)
            except InvalidValue as error:
                caught.append(str(error))
                await ctx.wait_for_signal("receipt", type=type)
        await ctx.wait_for_signal("go")
        return caught

    return [reader, child]


@pytest.mark.parametrize("what", ["step", "child", "signal"])
def test_a_recorded_value_that_the_code_can_no_longer_read_blocks_the_run(url, played, engine_on, what):
    shared(url)

    async def scenario():
        first = reading(what, Receipt if what == "signal" else dict, [])
        async with engine_on(url, first, park_after=0.05) as engine:
            handle = await engine.start(first[0], id="r")
            await handle.signal("receipt", {"text": "x"})

            async def received():
                run = await engine.get("r")
                return run.status == "suspended" and run.entries == 2

            await eventually_async(received)
        async with engine_on(url, reading(what, LongReceipt, [])) as engine:
            await engine.signal("r", "go")
            assert "number" in (await until_blocked(engine, "r")).reason.message
        async with engine_on(url, first) as engine:
            assert await engine.handle("r").result(20) == []

    played(scenario)


def test_a_signal_that_cannot_be_read_when_it_arrives_is_an_error_in_the_workflow_and_in_every_replay(
    url, played, engine_on
):
    shared(url)
    caught = []
    flows = reading("signal", LongReceipt, caught)

    async def scenario():
        async with engine_on(url, flows, park_after=0.05) as engine:
            handle = await engine.start(flows[0], id="r")
            await handle.signal("receipt", {"text": "x"})
            await eventually_async(lambda: caught)
            await parked(engine, handle)
        caught.clear()
        async with engine_on(url, flows) as engine:
            await engine.signal("r", "receipt", {"text": "x", "number": 1})
            await engine.signal("r", "go")
            assert len(await engine.handle("r").result(20)) == 1
            assert len(caught) == 1, "the replay raised the same error"

    played(scenario)


def test_a_run_that_never_began_because_of_its_input_fails_if_its_workflow_says_so(url, played, engine_on):
    @workflow(unreadable_input="fail")
    async def picky(ctx: Context, number: int) -> int:
        return number

    async def scenario():
        async with engine_on(url, [picky]) as engine, AsyncClient(url) as hf:
            async with asyncio.timeout(20):
                run = await hf.runs.start("picky", "text") if not url.startswith("memory") else None
            handle = engine.handle(run) if run else await engine.start("elsewhere", "text")
            if run:
                with pytest.raises(WorkflowFailed, match="the input of the run"):
                    await handle.result(20)

    played(scenario)
    with pytest.raises(InvalidOption, match="unreadable_input"):
        workflow(unreadable_input="ignore")(picky.function)


@pytest.mark.parametrize("begun", ["signal", "child", "closed-in-a-step"])
def test_a_run_that_has_begun_is_blocked_even_if_its_workflow_fails_unreadable_inputs(url, played, engine_on, begun):
    """Such a run has no entry in its history, and may have begun an effect."""
    shared(url)
    entered = asyncio.Event()

    @workflow(name="below")
    async def below(ctx: Context) -> str:
        return await ctx.wait_for_signal("go")

    async def charge() -> None:
        entered.set()
        await asyncio.Event().wait()

    def release(kind):
        async def picky(ctx: Context, order) -> str:
            if begun == "child":
                return await ctx.child(below, id="below")
            if begun == "closed-in-a-step":
                await ctx.step("charge", charge)
            return await ctx.wait_for_signal("go", type=str)

        picky.__annotations__["order"] = kind
        return workflow(unreadable_input="fail")(picky)

    async def scenario():
        old, new = release(Receipt), release(LongReceipt)
        async with engine_on(url, [old, below], park_after=0.05) as engine:
            handle = await engine.start(old, Receipt("x"), id="r")
            if begun == "closed-in-a-step":
                await entered.wait()
                await engine.close(grace=0)
            else:
                await parked(engine, handle)
        async with engine_on(url, [new, below]) as engine:
            await engine.signal("below" if begun == "child" else "r", "go", "x")
            await until_blocked(engine, "r")

    played(scenario)


def test_a_result_of_a_child_that_new_code_is_first_to_read_and_cannot_read_blocks_the_parent(url, played, engine_on):
    shared(url)

    def release(kind):
        async def function(ctx: Context):
            await ctx.wait_for_signal("go")
            return kind("x")

        function.__annotations__["return"] = kind
        child = workflow(name="child")(function)

        @workflow(name="parent")
        async def parent(ctx: Context) -> str:
            async with ctx.mutex("till", scope="global"):
                return (await ctx.child(child, id="c")).text

        return parent, child

    async def scenario():
        (old, old_child), (new, new_child) = release(Receipt), release(LongReceipt)
        async with engine_on(url, [old, old_child], park_after=0.05) as engine:
            await parked(engine, await engine.start(old, id="r"))
        async with engine_on(url, [old_child]) as engine:
            await engine.signal("c", "go")
            await until_status(engine, "c", "completed")
        async with engine_on(url, [new, new_child]) as engine:
            assert "number" in (await until_blocked(engine, "r")).reason.message
            assert (await engine.get("r")).locks == ("till",)
        async with engine_on(url, [old, old_child]) as engine:
            assert await engine.handle("r").result(20) == "x"

    played(scenario)


def test_a_later_generation_is_blocked_even_if_its_workflow_fails_unreadable_inputs(url, played, engine_on):
    shared(url)

    def release(kind):
        async def picky(ctx: Context, order) -> str:
            if ctx.generation == 1:
                raise ctx.continue_as_new(order)
            return await ctx.wait_for_signal("go")

        picky.__annotations__["order"] = kind
        return workflow(unreadable_input="fail")(picky)

    async def scenario():
        async with engine_on(url, [release(Receipt)], park_after=0.05) as engine:
            await parked(engine, await engine.start("picky", Receipt("x"), id="r"))
        async with engine_on(url, [release(LongReceipt)]) as engine:
            await engine.signal("r", "go", "x")
            await until_blocked(engine, "r")

    played(scenario)


def test_blocked_runs_are_tried_some_at_a_time_and_behind_runs_that_are_due(
    tmp_path, played, engine_on, shop, monkeypatch
):
    monkeypatch.setattr(blocked_runs, "AT_ONCE", 2)
    url = f"sqlite:///{tmp_path}/runs.db"
    good, bad = shop.release(bad=False), shop.release(bad=True)
    claims = []

    async def scenario():
        async with engine_on(url, [good], park_after=0.05) as engine:
            for n in range(5):
                await parked(engine, await engine.start(good, f"c{n}", id=f"r{n}"))
        async with engine_on(url, [bad]) as engine:
            for n in range(5):
                await engine.signal(f"r{n}", "packed")
                await until_blocked(engine, f"r{n}")
        async with AsyncClient(url) as hf:
            due = await hf.runs.start("order", "new")
        claim = Worker.claim

        async def noted(worker, *, limit, runs=(), untried=False):
            drivers = await claim(worker, limit=limit, runs=runs, untried=untried)
            claims.append((untried, [driver.run.id for driver in drivers]))
            return drivers

        monkeypatch.setattr(Worker, "claim", noted)
        async with engine_on(url, [good]) as engine:
            for n in range(5):
                await engine.handle(f"r{n}").result(20)
        found = [(untried, runs) for untried, runs in claims if runs]
        assert found[0] == (False, [due]), "a run that is due comes first"
        assert [len(runs) for untried, runs in found if untried] == [2, 2, 1]

    played(scenario)


def test_a_timer_of_a_blocked_run_ends_when_the_code_fits(url, played, engine_on):
    shared(url)

    def release(*, bad):
        @workflow(name="timed")
        async def timed(ctx: Context) -> str:
            await ctx.step("check" if bad else "reserve", len, "x")
            try:
                async with asyncio.timeout(0.3):
                    await ctx.wait_for_signal("go")
            except TimeoutError:
                return "late"
            return "in time"

        return timed

    async def scenario():
        async with engine_on(url, [release(bad=False)], park_after=0.05) as engine:
            await parked(engine, await engine.start("timed", id="r"))
        async with engine_on(url, [release(bad=True)]) as engine:
            await until_blocked(engine, "r")
        async with engine_on(url, [release(bad=False)]) as engine:
            assert await engine.handle("r").result(20) == "late"

    played(scenario)


def test_time_that_a_run_is_blocked_does_not_count_for_its_timeout(url, played, engine_on, shop):
    shared(url)
    good, bad = shop.release(bad=False, timeout=4), shop.release(bad=True, timeout=4)

    async def scenario():
        async with engine_on(url, [good], park_after=0.05) as engine:
            await parked(engine, await engine.start(good, "ann", id="r"))
        async with engine_on(url, [bad]) as engine:
            await until_blocked(engine, "r") if await engine.signal("r", "other") is None else None
            started = (await engine.get("r")).started_at

            async def late():
                clock = await engine.start("clock")
                return ((await engine.get(clock.id)).created_at - started).total_seconds() > 5

            await eventually_async(late)
        async with engine_on(url, [good]) as engine:
            await engine.signal("r", "packed")
            assert await engine.handle("r").result(20) == "ann paid"

    played(scenario)


def test_a_lock_with_a_lease_ends_while_its_run_is_blocked(url, played, engine_on):
    shared(url)

    def release(step):
        @workflow(name="leased")
        async def leased(ctx: Context, _: None) -> None:
            async with ctx.mutex("till", scope="global", lease=1):
                await ctx.step(step, len, "x")
                await ctx.wait_for_signal("go")

        return leased

    good, bad = release("first"), release("second")

    async def scenario():
        async with engine_on(url, [good], park_after=0.05) as engine:
            await engine.start(good, id="r")
            await eventually_async(lambda: recorded(engine, "r", 3))
        async with engine_on(url, [bad]) as engine, AsyncClient(url) as hf:
            await until_blocked(engine, "r")
            async with hf.lock("till", wait=20):
                assert (await engine.get("r")).status == "blocked"
        async with engine_on(url, [good]) as engine:
            with pytest.raises(WorkflowFailed, match="LeaseLost"):
                await engine.handle("r").result(20)

    played(scenario)


async def recorded(engine, run, entries):
    return (await engine.get(run)).entries >= entries


def test_a_blocked_run_is_not_chosen_to_end_a_deadlock(url, played, engine_on):
    """The other run of the cycle waits: only code that fits the younger one can end the deadlock."""
    shared(url)

    def pair(step):
        @workflow(name="pair")
        async def locks(ctx: Context, keys: list[str]) -> str:
            async with ctx.mutex(keys[0], scope="global"):
                await ctx.step(step if keys[0] == "b" else "first", len, "x")
                await ctx.wait_for_signal("go")
                try:
                    async with ctx.mutex(keys[1], scope="global"):
                        return "both"
                except DeadlockDetected:
                    return "deadlock"

        return locks

    good, bad = pair("first"), pair("second")

    async def scenario():
        async with engine_on(url, [good], park_after=0.05) as engine:
            for name, keys in (("older", ["a", "b"]), ("younger", ["b", "a"])):
                await parked(engine, await engine.start(good, keys, id=name))
            await engine.signal("younger", "go")
            await eventually_async(lambda: waits(engine, "younger"))
            await until_status(engine, "younger", "suspended")
        async with engine_on(url, [bad], park_after=0.05) as engine:
            await engine.signal("younger", "other")
            await until_blocked(engine, "younger")
            await engine.signal("older", "go")
            await eventually_async(lambda: waits(engine, "older"))
            await until_status(engine, "older", "suspended")
            await engine._worker.lock_sweeper.sweep_all()
            assert [(await engine.get(run)).status for run in ("older", "younger")] == ["suspended", "blocked"]
            for run in ("older", "younger"):
                assert not [one for one in (await engine.export(run)).events if one.kind == "deadlock"]
        async with engine_on(url, [good]) as engine:
            assert await engine.handle("younger").result(20) == "deadlock"
            assert await engine.handle("older").result(20) == "both"

    played(scenario)


async def waits(engine, run):
    return len((await engine.get(run)).locks) == 2


def test_a_cancel_of_a_blocked_run_is_delivered_when_the_code_fits(url, played, engine_on, shop):
    shared(url)
    good, bad = shop.release(bad=False), shop.release(bad=True)

    async def scenario():
        async with engine_on(url, [good], park_after=0.05) as engine:
            await parked(engine, await engine.start(good, "ann", id="r"))
        async with engine_on(url, [bad]) as engine:
            await engine.signal("r", "other")
            await until_blocked(engine, "r")
            await engine.cancel("r")
            assert (await engine.get("r")).status == "blocked"
        async with engine_on(url, [good]) as engine:
            with pytest.raises(WorkflowFailed, match="cancelled"):
                await engine.handle("r").result(20)

    played(scenario)


def test_a_blocked_run_that_is_retried_is_tried_at_once(url, played, engine_on, shop):
    good, bad = shop.release(bad=False), shop.release(bad=True)
    released = {"code": bad}

    @workflow(name="order")
    async def order(ctx: Context, name: str) -> str:
        return await released["code"].function(ctx, name)

    async def scenario():
        released["code"] = good
        async with engine_on(url, [order], park_after=0.05) as engine:
            await parked(engine, await engine.start(order, "ann", id="r"))
            released["code"] = bad
            await engine.signal("r", "packed")
            await until_blocked(engine, "r")
            released["code"] = good
            await engine.retry("r")
            assert await engine.handle("r").result(20) == "ann paid"
        assert shop.charged == ["ann"]

    played(scenario)


def test_giving_up_a_blocked_run_frees_its_locks_and_notifies_its_parent(url, played, engine_on, shop):
    shared(url)
    good, bad = shop.release(bad=False), shop.release(bad=True)

    def family(order):
        @workflow(name="parent")
        async def parent(ctx: Context) -> str:
            try:
                return await ctx.child(order, "ann", id="r")
            except WorkflowFailed as error:
                return f"{error.status}: {error.detail}"

        return [parent, order]

    async def scenario():
        async with engine_on(url, family(good), park_after=0.05) as engine:
            await engine.start("parent", id="p")
            await eventually_async(lambda: shop.charged)
            await until_status(engine, "r", "suspended")
        async with engine_on(url, family(bad)) as engine, AsyncClient(url) as hf:
            await engine.signal("r", "packed")
            await until_blocked(engine, "r")
            assert (await hf.runs.fail("r", "refunded by hand")).status == "failed"
            assert await engine.handle("p").result(20) == "failed: refunded by hand"
            assert (await hf.locks.inspect("till")).holders == ()
            with pytest.raises(RunEnded):
                await hf.runs.fail("r", "again")

    played(scenario)


def test_a_run_that_is_driven_cannot_be_given_up(played, engine_on, shop):
    good = shop.release(bad=False)

    async def scenario():
        async with engine_on("memory://", [good]) as engine:
            handle = await engine.start(good, "ann")
            await eventually_async(lambda: shop.charged)
            with pytest.raises(RunLocked, match="Cancel it"):
                await engine.fail(handle.id, "no")

    played(scenario)


def test_a_run_that_was_given_up_and_is_retried_waits_for_the_child_that_it_left(url, played, engine_on):
    shared(url)
    bad = []

    @workflow(name="below")
    async def below(ctx: Context) -> str:
        return await ctx.wait_for_signal("go")

    @workflow(name="above")
    async def above(ctx: Context) -> str:
        await ctx.step("second" if bad else "first", len, "x")
        child = await ctx.start_child(below, id="child")
        await ctx.wait_for_signal("go")
        return await child.result()

    async def scenario():
        async with engine_on(url, [above, below], park_after=0.05) as engine:
            await parked(engine, await engine.start(above, id="r"))
            await until_status(engine, "child", "suspended")
            bad.append(1)
            await engine.signal("r", "go")
            await until_blocked(engine, "r")
            await engine.fail("r", "stop")
            await engine.signal("child", "go", "from the child")
            await until_status(engine, "child", "completed")
            bad.clear()
            await engine.retry("r")
            assert await engine.handle("r").result(20) == "from the child"

    played(scenario)


def test_a_start_that_cancels_the_oldest_run_waits_for_it_while_it_is_blocked(url, played, engine_on, shop):
    shared(url)
    limit = Concurrency(max=1, on_excess="cancel_oldest")
    good, bad = (shop.release(bad=one, concurrency=limit) for one in (False, True))

    async def scenario():
        async with engine_on(url, [good], park_after=0.05) as engine:
            await parked(engine, await engine.start(good, "ann", id="r"))
        async with engine_on(url, [bad]) as engine:
            await engine.signal("r", "other")
            await until_blocked(engine, "r")
            await engine.start(bad, "bob", id="s")
            assert [(await engine.get(run)).status for run in "rs"] == ["blocked", "queued"]
        async with engine_on(url, [good]) as engine:
            await until_status(engine, "r", "cancelled")
            await until_status(engine, "s", "running")

    played(scenario)


def test_a_sync_client_sees_why_a_run_is_blocked_and_gives_it_up(tmp_path, played, engine_on, shop):
    url = f"sqlite:///{tmp_path}/runs.db"
    good, bad = shop.release(bad=False), shop.release(bad=True)

    async def scenario():
        async with engine_on(url, [good], park_after=0.05) as engine:
            await parked(engine, await engine.start(good, "ann", id="r"))
        async with engine_on(url, [bad]) as engine:
            await engine.signal("r", "packed")
            await until_blocked(engine, "r")

    played(scenario)
    with Client(url) as hf:
        (run,) = hf.runs.list(status="blocked").runs
        assert "charge" in run.blocked.reason.message
        assert hf.runs.retry("r").status == "pending"
        assert hf.runs.fail("r", "no longer needed").error.message == "no longer needed"
