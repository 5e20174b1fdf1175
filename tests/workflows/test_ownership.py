"""Which engine drives a run: one at a time; records of a former driver are refused."""

from __future__ import annotations

import asyncio
import sqlite3
import time
from contextlib import closing

import pytest
from waiting import eventually_async

from holdfast import (
    AsyncClient,
    Client,
    Context,
    RunLocked,
    StoreUnavailable,
    WorkflowFailed,
    current_step,
    step,
    workflow,
)
from holdfast.commands import ForceRelease
from holdfast.errors import InvalidOption, RunExists, UnknownRun, WouldDeadlock
from holdfast.rules.runs.record import worker_key
from holdfast.runtime import failpoints


class BlockingStep:
    """A step that blocks until the test continues it, and counts its executions."""

    def __init__(self):
        self.bodies, self.inside, self.most, self.open = 0, 0, 0, asyncio.Event()

    async def __call__(self) -> int:
        self.bodies += 1
        self.inside += 1
        self.most = max(self.most, self.inside)
        try:
            await self.open.wait()
        finally:
            self.inside -= 1
        return self.bodies


def waiting(crowd):
    async def wait() -> int:
        return await crowd()

    @workflow
    async def waits(ctx: Context, _: None) -> int:
        return await ctx.step("wait", wait)

    return waits


async def end_lease(engine):
    """Release the worker's lease by force: as if it had expired, while the process continues."""
    worker = engine._worker
    await worker.execute(ForceRelease(key=worker_key(worker.id), by="test", reason="test"))


def test_only_the_new_engine_records_a_run_that_it_took_over(url, played, engine_on):
    async def scenario():
        crowd = BlockingStep()
        flow = waiting(crowd)
        refused = []
        async with engine_on(url, [flow], name="first", worker_ttl=60) as first:
            first._client.events.subscribe(lambda event: refused.append(event.name))
            await first.start(flow, None, id="r")
            await eventually_async(lambda: crowd.bodies == 1)
            before = (await first.get("r")).holder
            first._worker._notified_elsewhere = lambda ids: None
            async with engine_on(url, [flow], name="second", worker_ttl=60) as second:
                driver = first._worker.drivers["r"]
                await end_lease(first)
                await eventually_async(lambda: crowd.bodies == 2)
                crowd.open.set()
                assert await second.handle("r").result() == 2
                await driver.finished.wait()
                seen = await second.get("r")
                assert seen.entries == 2
        return before, refused

    before, refused = played(scenario)
    assert before == "first"
    assert "run_refused" in refused or "worker_lost" in refused or "lease_lost" in refused


def test_a_driver_whose_record_was_refused_begins_no_step(url, played, engine_on):
    begun = []

    def made(name, door):
        async def wait() -> None:
            await door.wait()

        @workflow(name="two")
        async def two(ctx: Context) -> str:
            await ctx.step("wait", wait)
            await ctx.step("go on", begun.append, name)
            return name

        return two

    async def nothing():
        return 60.0

    async def scenario():
        shut, open_ = asyncio.Event(), asyncio.Event()
        open_.set()
        one, other = made("first", shut), made("second", open_)
        async with engine_on(url, [one], name="first", worker_ttl=60) as first:
            await first.start(one, id="r")
            await eventually_async(lambda: "r" in first._worker.drivers)
            first._worker._poll = nothing  # it would find this too, within a second
            async with engine_on(url, [other], name="second", worker_ttl=60) as second:
                driver = first._worker.drivers["r"]
                await end_lease(first)
                assert await second.handle("r", other).result() == "second"
                shut.set()
                await driver.finished.wait()
                assert driver.left == "refused"

    played(scenario)
    assert begun == ["second"]


def test_run_locks_show_the_engines_ownership_and_refuse_a_driven_run(url, played, engine_on):
    async def scenario():
        crowd = BlockingStep()
        flow = waiting(crowd)
        async with engine_on(url, [flow], name="me") as engine, AsyncClient(url) as client:
            handle = await engine.start(flow, None, id="r")
            await eventually_async(lambda: crowd.bodies == 1)
            lock = await client.run_locks.get("waits", "r")
            assert lock.holder == "me"
            assert lock.token > 0
            assert lock.expires_at is not None
            assert not await client.run_locks.try_acquire("waits", "r")
            with pytest.raises(RunLocked, match="me"):
                async with client.run_locks.guard("waits", "r"):
                    pass
            assert await client.run_locks.try_acquire("other", "r")
            crowd.open.set()
            await handle.result()
            assert await client.run_locks.get("waits", "r") is None
            assert await client.run_locks.try_acquire("waits", "r")

    played(scenario)


def test_a_run_with_a_run_lock_is_not_driven_until_it_is_released(url, played, engine_on):
    @workflow
    async def quick(ctx: Context, _: None) -> str:
        return "done"

    async def scenario():
        async with AsyncClient(url) as client:
            await client.runs.start("quick", None, id="r")
            assert await client.run_locks.try_acquire("quick", "r")
            async with engine_on(url, [quick]) as engine:
                assert (await engine.resume("r")).status == "pending"
                with pytest.raises(RunLocked):
                    await engine.restart("r")
                await client.run_locks.release("quick", "r")
                return await engine.handle("r").result(10)

    assert played(scenario) == "done"


def test_resume_returns_the_state_of_a_run_that_is_driven_elsewhere(url, played, engine_on):
    async def scenario():
        crowd = BlockingStep()
        flow = waiting(crowd)
        async with engine_on(url, [flow], name="first") as first, engine_on(url, [flow], name="second") as second:
            handle = await first.start(flow, None, id="r")
            await eventually_async(lambda: crowd.bodies == 1)
            seen = await second.resume("r")
            assert (seen.status, seen.holder) == ("running", "first")
            with pytest.raises(RunLocked, match="first"):
                await second.restart("r")
            resumed = [asyncio.create_task(first.resume("r")) for _ in range(3)]
            crowd.open.set()
            assert {(await one).status for one in resumed} == {"completed"}
            assert await handle.result() == 1
            assert crowd.most == 1

    played(scenario)


def test_clients_start_signal_and_wait_without_any_of_the_code(url, played, engine_on):
    @workflow
    async def greet(ctx: Context, name: str) -> str:
        return f"{await ctx.wait_for_signal('greeting')} {name}"

    def from_a_script():
        with Client(url) as client:
            run = client.runs.start("greet", "world", idempotency_key="once", attributes={"who": "script"})
            assert client.runs.start("greet", "again", idempotency_key="once") == run
            client.runs.signal(run, "greeting", "hello")
            result = client.runs.result(run, timeout=10)
            assert client.runs.get(run).status == "completed"
            assert [one.id for one in client.runs.list(attributes={"who": "script"}).runs] == [run]
            with pytest.raises(UnknownRun):
                client.runs.cancel("nobody")
            return result

    async def scenario():
        async with engine_on(url, [greet]) as engine:
            assert await asyncio.to_thread(from_a_script) == "hello world"
            handle = await engine.start_or_signal(greet, "you", id="x", name="greeting", payload="hi")
            assert await handle.result() == "hi you"

    played(scenario)


def test_runs_and_signals_without_a_hint_are_found_by_polling(url, played, engine_on):
    """A new run, a signal to a run that is driven, a signal to a parked run: no hint is sent."""

    @workflow
    async def listens(ctx: Context, _: None) -> str:
        return await ctx.wait_for_signal("word")

    async def scenario():
        async with engine_on(url, [listens], park_after=0.1) as engine, AsyncClient(url) as client:
            engine._worker._unsubscribe()
            driven = await engine.start(listens, None)
            await client.runs.signal(driven.id, "word", "driven")
            assert await driven.result() == "driven"
            fresh = await client.runs.start("listens", None)
            await eventually_async(lambda: _has_status(engine, fresh, "suspended"))
            await client.runs.signal(fresh, "word", "parked")
            return await client.runs.result(fresh)

    assert played(scenario) == "parked"


def test_a_signal_without_a_hint_reaches_a_run_that_is_in_memory(url, played, engine_on):
    @workflow
    async def listens(ctx: Context, _: None) -> str:
        return await ctx.wait_for_signal("word")

    async def scenario():
        async with engine_on(url, [listens], park_after=600) as engine, AsyncClient(url) as client:
            engine._worker._unsubscribe()
            driven = await engine.start(listens, None)
            await client.runs.signal(driven.id, "word", "driven")
            return await driven.result(20)

    assert played(scenario) == "driven"


async def _has_status(engine, run, status):
    return (await engine.get(run)).status == status


def test_a_signal_that_arrives_before_the_outcome_of_a_start_is_delivered(url, played, engine_on):
    @workflow
    async def listens(ctx: Context, _: None) -> str:
        return await ctx.wait_for_signal("word")

    async def scenario():
        async with engine_on(url, [listens]) as engine:
            asking = engine._queries
            start = asking.start

            def answered_late(new, worker, **more):
                """The first reply is lost; a signal arrives before the start is sent again."""
                yield from start(new, worker, **more)
                yield from asking.signal(new.id, "word", "early", None)
                return (yield from start(new, worker, **more))

            asking.start = answered_late
            return await (await engine.start(listens, None)).result()

    assert played(scenario) == "early"


def test_a_child_is_cancelled_although_the_store_is_unavailable_for_a_while(played, engine_on, monkeypatch):
    @workflow
    async def sleeps(ctx: Context, _: None) -> None:
        await ctx.sleep(3_600)

    @workflow
    async def parent(ctx: Context, _: None) -> None:
        await ctx.child(sleeps, None)

    words = []

    def away(point):
        if point == "before cancel":
            words.append(point)
            if len(words) in (2, 3):  # the first one is the caller's, to the parent
                raise StoreUnavailable("away")

    monkeypatch.setattr(failpoints, "reached", away)

    async def scenario():
        async with engine_on("memory://", [parent, sleeps]) as engine:
            handle = await engine.start(parent, None, id="p")
            await eventually_async(lambda: "p/sleeps" in engine._worker.drivers)
            await handle.cancel()
            with pytest.raises(WorkflowFailed, match="cancelled"):
                await engine.handle("p/sleeps").result(10)
            assert len(words) == 4

    played(scenario)


def test_start_or_signal_sends_the_signal_to_the_existing_run(url, played, engine_on):
    @workflow
    async def two(ctx: Context, _: None) -> list[int]:
        return [await ctx.wait_for_signal("n"), await ctx.wait_for_signal("n")]

    async def scenario():
        async with engine_on(url, [two]) as engine:
            for n in (1, 2):
                handle = await engine.start_or_signal(two, None, id="x", name="n", payload=n)
            return await handle.result()

    assert played(scenario) == [1, 2]


# -- on a database that users have tables in ------------------------------------------------------------------


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "app.db"
    Client(f"sqlite:///{path}").close()
    with closing(sqlite3.connect(path)) as db, db:
        db.execute("CREATE TABLE payments (amount INTEGER)")
    return path


@workflow
async def nothing(ctx: Context, _: None) -> str:
    return "done"


def test_a_start_within_a_transaction_is_committed_with_it_or_not_at_all(file, played, engine_on):
    async def scenario():
        async with engine_on(f"sqlite:///{file}", [nothing]) as engine:
            with closing(sqlite3.connect(file, isolation_level=None, check_same_thread=False)) as db:
                for end in ("ROLLBACK", "COMMIT"):
                    db.execute("BEGIN IMMEDIATE")
                    db.execute("INSERT INTO payments VALUES (1)")
                    handle = await engine.start(nothing, None, id=end, connection=db)
                    db.execute(end)
                with pytest.raises(InvalidOption, match="BEGIN"):
                    await engine.start(nothing, None, connection=db)
                db.execute("BEGIN IMMEDIATE")
                with pytest.raises(RunExists):
                    await engine.start(nothing, None, id="COMMIT", connection=db)
                db.execute("ROLLBACK")
            assert await handle.result(5) == "done"
            with pytest.raises(UnknownRun):
                await engine.get("ROLLBACK")
            with closing(sqlite3.connect(":memory:", check_same_thread=False)) as db:
                db.execute("BEGIN")
                with pytest.raises(InvalidOption, match="in memory"):
                    await engine.start(nothing, None, connection=db)
            with pytest.raises(InvalidOption, match=r"closed database\. Pass an open connection"):
                await engine.start(nothing, None, connection=db)

    played(scenario)


def test_a_start_within_a_transaction_needs_a_store_with_transactions(played, engine_on):
    async def scenario():
        async with engine_on("memory://", [nothing]) as engine:
            with pytest.raises(InvalidOption, match="idempotency_key"):
                await engine.start(nothing, None, connection=object())

    played(scenario)


def transacting(work):
    @workflow
    async def pays(ctx: Context, amount: int) -> object:
        return await ctx.transaction("pay", work, amount)

    return pays


def paid(file):
    with closing(sqlite3.connect(file)) as db:
        return [row[0] for row in db.execute("SELECT amount FROM payments")]


def test_writes_of_a_transaction_are_committed_with_its_record(file, played, engine_on):
    def pay(connection, amount):
        connection.execute("INSERT INTO payments VALUES (?)", (amount,))
        return current_step().idempotency_key

    flow = transacting(pay)

    async def scenario():
        async with engine_on(f"sqlite:///{file}", [flow]) as engine:
            return await (await engine.start(flow, 7, id="r")).result()

    assert played(scenario) == "r:pay"
    assert paid(file) == [7]


@pytest.mark.parametrize("fault", ["raises", "away", "unknown", "locks", "unwritable"])
def test_a_failed_transaction_leaves_nothing(file, played, engine_on, fault):
    with Client(f"sqlite:///{file}") as client:

        def pay(connection, amount):
            connection.execute("INSERT INTO payments VALUES (?)", (amount,))
            if fault == "raises":
                raise ValueError("no")
            if fault in ("away", "unknown"):  # the user's own connection, not one of the store
                raise StoreUnavailable("another store is away", ambiguous=fault == "unknown")
            if fault == "locks":
                client.lock("x").acquire()
            return object()

        flow = transacting(pay)

        async def scenario():
            async with engine_on(f"sqlite:///{file}", [flow]) as engine:
                with pytest.raises(WorkflowFailed) as caught:
                    await (await engine.start(flow, 7)).result()
                return caught.value.kind

        kinds = {
            "raises": "ValueError",
            "away": "holdfast.errors.StoreUnavailable",
            "unknown": "holdfast.errors.StoreUnavailable",
            "locks": f"{WouldDeadlock.__module__}.WouldDeadlock",
            "unwritable": "holdfast.errors.InvalidValue",
        }
        assert played(scenario) == kinds[fault]
    assert paid(file) == []


def within(connection, file):
    with connection:
        pass


FORBIDDEN = {
    "with": within,
    "commit": lambda connection, file: connection.commit(),
    "rollback": lambda connection, file: connection.rollback(),
    "COMMIT": lambda connection, file: connection.execute("COMMIT"),
    "script": lambda connection, file: connection.executescript("DELETE FROM payments; SELECT 1"),
    "ATTACH": lambda connection, file: connection.execute(f"ATTACH '{file}.other' AS other"),
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_forbidden_calls_within_a_transaction_are_refused_with_what_to_do_instead(file, played, engine_on, what):
    def pay(connection, amount):
        connection.execute("INSERT INTO payments VALUES (?)", (amount,))
        FORBIDDEN[what](connection, file)

    flow = transacting(pay)

    async def scenario():
        async with engine_on(f"sqlite:///{file}", [flow]) as engine:
            with pytest.raises(WorkflowFailed) as caught:
                await (await engine.start(flow, 7)).result()
            return caught.value

    failure = played(scenario)
    assert failure.kind == "holdfast.errors.InvalidOption"
    assert "use execute() for each statement" in failure.detail
    assert "not authorized" in failure.traceback, "the traceback names the place too"
    assert paid(file) == []


def test_the_users_own_sqlite_error_is_raised_unchanged(file, played, engine_on):
    def pay(connection, amount):
        connection.execute("INSERT INTO nowhere VALUES (?)", (amount,))

    def fail(connection, amount):
        raise sqlite3.DatabaseError("of another place")

    async def scenario(flow):
        async with engine_on(f"sqlite:///{file}", [flow]) as engine:
            with pytest.raises(WorkflowFailed) as caught:
                await (await engine.start(flow, 7)).result()
            return caught.value.kind

    assert played(scenario, transacting(pay)) == "sqlite3.OperationalError"
    assert played(scenario, transacting(fail)) == "sqlite3.DatabaseError"


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_transaction_during_an_outage_is_made_once(file, played, engine_on, monkeypatch, moment):
    """Before its commit it is repeated; after the commit the journal shows that it was made."""
    attempts, lost = [], []

    def pay(connection, amount):
        connection.execute("INSERT INTO payments VALUES (?)", (amount,))
        attempts.append(current_step().attempt)

    def away(point):
        if point == f"{moment} transaction" and len(lost) < 2:
            lost.append(point)
            raise StoreUnavailable("away", ambiguous=moment == "after")

    monkeypatch.setattr(failpoints, "reached", away)
    flow = transacting(pay)

    async def scenario():
        async with engine_on(f"sqlite:///{file}", [flow]) as engine:
            await (await engine.start(flow, 7)).result()

    played(scenario)
    assert paid(file) == [7]
    assert attempts == ([1, 1, 1] if moment == "before" else [1])


def test_steps_beside_a_transaction_wait_for_it_and_nothing_is_lost(file, played, engine_on):
    @step
    async def beside(n: int) -> int:
        await asyncio.sleep(0.001 * n)
        return n

    def pay(connection, amount):
        connection.execute("INSERT INTO payments VALUES (?)", (amount,))
        time.sleep(0.02)  # meanwhile the steps beside it end
        return amount

    seen = []

    @workflow
    async def both(ctx: Context, _: None) -> list[int]:
        calls = [beside(n) for n in range(5)] + [ctx.transaction("pay", pay, n) for n in range(3)]
        return await asyncio.gather(*calls)

    async def scenario():
        async with engine_on(f"sqlite:///{file}", [both]) as engine:
            engine.events.subscribe(seen.append)
            return await (await engine.start(both, None)).result()

    assert played(scenario) == [0, 1, 2, 3, 4, 0, 1, 2]
    assert [event.name for event in seen if event.name == "run_refused"] == []
    assert sorted(paid(file)) == [0, 1, 2]


def test_two_engines_of_one_client_both_get_hints_also_after_one_of_them_is_closed(played, engine_on, url):
    """Without a hint a run without a driver would wait for the next poll, a second later."""

    @workflow
    async def waits(ctx: Context) -> str:
        return await ctx.wait_for_signal("go", type=str)

    async def scenario():
        async with AsyncClient(url) as client:
            received = []
            async with engine_on(client, [waits]) as staying:
                staying._worker._notified = received.append
                staying._worker._wake.clear()
                async with engine_on(client, [], recover=False):
                    pass
                await client.runs.start("waits", id="r")
                async with asyncio.timeout(10):
                    while not received:
                        await asyncio.sleep(0.01)
            return received

    assert ["r"] in played(scenario)
