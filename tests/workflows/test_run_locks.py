"""Locks inside runs: they belong to the run, survive crashes and sleeps, and end with it."""

from __future__ import annotations

import asyncio
import sqlite3

import pytest
from inspect_runs import held, suspended, waits
from waiting import eventually_async, until_blocked

from holdfast import AsyncClient, Engine, LeaseLost, LockTimeout, Retry, WorkflowFailed, guard, workflow
from holdfast.errors import InvalidOption, KindMismatch
from holdfast.testing import TestEngine


class Trace:
    """Records which runs hold the lock, outside the store."""

    def __init__(self):
        self.printed, self.inside, self.most, self.tokens = [], 0, 0, []
        self.gate = asyncio.Event()

    def enter(self, who, token=0):
        self.printed.append(who)
        self.tokens.append(token)
        self.inside += 1
        self.most = max(self.most, self.inside)

    def leave(self):
        self.inside -= 1

    async def entered(self, times=1):
        return len(self.printed) >= times


@pytest.fixture
def trace():
    return Trace()


def in_turn(trace, **options):
    """A workflow that does a step and sleeps inside a mutex."""

    @workflow(name="turn")
    async def turn(ctx, who: str) -> int:
        async with ctx.mutex("account", **options) as lease:
            await ctx.step("enter", trace.enter, who, lease.token)
            await ctx.sleep(0.02)
            await ctx.step("leave", trace.leave)
        return lease.token

    return turn


def test_one_run_at_a_time_holds_a_mutex_in_order_of_arrival_with_rising_tokens(url, engine_on, played, trace):
    turn = in_turn(trace)

    async def scenario():
        async with engine_on(url, [turn]) as engine, AsyncClient(url) as hf:
            handles = []
            for number in range(6):
                handles.append(await engine.start(turn, f"{number}"))
                if number:
                    await waits_or_over(hf, number)
            tokens = [await handle.result() for handle in handles]
            assert await hf.locks.list("workflow/") == []
        assert trace.printed == [f"{number}" for number in range(6)]
        assert trace.most == 1
        assert tokens == sorted(set(tokens)) == trace.tokens

    async def waits_or_over(hf, number):
        await eventually_async(lambda: arrived(hf, number))

    async def arrived(hf, number):
        info = await hf.locks.inspect("workflow/turn/account")
        known = len(trace.printed) + (0 if info is None else len(info.waiters))
        return known > number

    played(scenario)


def test_a_waiting_run_is_parked_and_woken_when_it_gets_the_lock(url, engine_on, played, trace):
    turn = in_turn(trace, scope="global")

    async def scenario():
        async with engine_on(url, [turn], park_after=0.05) as engine, AsyncClient(url) as hf:
            lease = await hf.lock("account").acquire()
            handle = await engine.start(turn, "a")
            await waits(hf, "account")
            await eventually_async(lambda: suspended(handle))
            await lease.release()
            assert await handle.result(timeout=10) > lease.token

    played(scenario)


def test_a_process_waits_for_a_run_and_a_run_for_a_process(url, engine_on, played, trace):
    @workflow(name="long")
    async def long(ctx, _none: None) -> str:
        async with ctx.mutex("account", scope="global"):
            return await ctx.wait_for_signal("go")

    async def scenario():
        async with engine_on(url, [long]) as engine, AsyncClient(url) as hf:
            handle = await engine.start(long)
            await eventually_async(lambda: held(hf, "account"))
            info = await hf.locks.inspect("account")
            assert info.holders[0].owner == f"run {handle.id}"
            with pytest.raises(LockTimeout, match=handle.id):
                await hf.lock("account").acquire(wait=0)
            waiting = asyncio.create_task(hf.lock("account").acquire(wait=10))
            await waits(hf, "account")
            await handle.signal("go", "went")
            assert await handle.result() == "went"
            await (await waiting).release()

    played(scenario)


def test_a_run_holds_its_lock_through_the_end_of_its_worker_and_days_of_sleep(url, engine_on, played, trace):
    if url.startswith("memory"):
        pytest.skip("what is in memory ends with the engine")

    @workflow(name="long")
    async def long(ctx, _none: None) -> int:
        async with ctx.mutex("account", scope="global") as lease:
            await ctx.step("enter", trace.enter, "a", lease.token)
            await ctx.wait_for_signal("go")
            return lease.token

    async def scenario():
        async with AsyncClient(url) as hf:
            async with engine_on(url, [long]) as engine:
                run = (await engine.start(long)).id
                await eventually_async(trace.entered)
            with pytest.raises(LockTimeout):
                await hf.lock("account").acquire(wait=0)
            async with engine_on(url, [long]) as engine:
                handle = engine.handle(run)
                await handle.signal("go")
                assert await handle.result() == trace.tokens[0]
            async with hf.lock("account", wait=0) as lease:
                assert lease.token > trace.tokens[0]
        assert len(trace.printed) == 1

    played(scenario)


@pytest.mark.parametrize("end", ["return", "raise", "cancel", "cancel while it waits", "timeout"])
def test_a_lock_is_released_however_its_run_ends(url, engine_on, played, end):
    @workflow(name="ends", timeout=0.3 if end == "timeout" else None)
    async def ends(ctx, _none: None) -> None:
        lock = ctx.mutex("account", scope="global")
        await lock.__aenter__()  # and never left
        if end == "raise":
            raise ValueError("no")
        if end != "return":
            await ctx.wait_for_signal("go")

    async def scenario():
        async with engine_on(url, [ends]) as engine, AsyncClient(url) as hf:
            ahead = await hf.lock("account").acquire() if "waits" in end else None
            handle = await engine.start(ends)
            if "cancel" in end:
                await (waits(hf, "account") if ahead is not None else eventually_async(lambda: held(hf, "account")))
            if "cancel" in end:
                await handle.cancel()
            if end == "return":
                await handle.result()
            else:
                with pytest.raises(WorkflowFailed):
                    await handle.result()
            info = await hf.locks.inspect("account")
            assert not info.waiters
            if ahead is not None:
                await ahead.release()
            async with hf.lock("account", wait=0):
                pass

    played(scenario)


def test_a_restarted_run_releases_its_locks(url, engine_on, played, trace):
    @workflow(name="again")
    async def again(ctx, _none: None) -> int:
        async with ctx.mutex("account", scope="global") as lease:
            await ctx.step("enter", trace.enter, "x", lease.token)
            await ctx.wait_for_signal("go")
        return lease.token

    async def scenario():
        async with engine_on(url, [again], park_after=0.05) as engine:
            handle = await engine.start(again)
            await eventually_async(lambda: suspended(handle))
            await engine.restart(handle.id)
            await eventually_async(lambda: trace.entered(2))
            await handle.signal("go")
            assert await handle.result() == trace.tokens[1] > trace.tokens[0]

    async def suspended(handle):
        return await handle.status() == "suspended" and trace.printed

    played(scenario)


def test_as_many_runs_hold_a_semaphore_as_it_has_permits(url, engine_on, played, trace):
    @workflow(name="some")
    async def some(ctx, who: int) -> None:
        async with ctx.semaphore("vendor", permits=3) as lease:
            assert lease.floor <= lease.token
            await ctx.step("enter", trace.enter, who)
            await ctx.sleep(0.01)
            await ctx.step("leave", trace.leave)

    async def scenario():
        async with engine_on(url, [some]) as engine:
            handles = [await engine.start(some, number) for number in range(10)]
            for handle in handles:
                await handle.result()
        assert (len(trace.printed), trace.most) == (10, 3)

    played(scenario)


def test_readers_share_and_a_writer_is_alone(url, engine_on, played, trace):
    @workflow(name="doc")
    async def doc(ctx, what: str) -> None:
        side = ctx.rwlock("doc").write() if what == "write" else ctx.rwlock("doc").read()
        async with side:
            await ctx.step("enter", trace.enter, what)
            await ctx.wait_for_signal("go")
            await ctx.step("leave", trace.leave)

    async def scenario():
        async with engine_on(url, [doc]) as engine, AsyncClient(url) as hf:
            readers = [await engine.start(doc, "read") for _ in range(2)]
            await eventually_async(lambda: inside(2))
            writer = await engine.start(doc, "write")
            await waits(hf, "workflow/doc/doc")
            late = await engine.start(doc, "read")
            await waits(hf, "workflow/doc/doc", 2)
            for handle in readers:
                await handle.signal("go")
            await eventually_async(lambda: trace.entered(3))
            assert (trace.printed, trace.inside) == (["read", "read", "write"], 1)
            await writer.signal("go")
            await late.signal("go")
            await late.result()

    async def inside(many):
        return trace.inside == many

    played(scenario)


def test_several_locks_are_acquired_in_one_order_whatever_order_they_are_named_in(url, engine_on, played, trace):
    @workflow(name="transfer")
    async def transfer(ctx, keys: list[str]) -> list[str]:
        async with ctx.locks(*keys, scope="global") as leases:
            await ctx.step("enter", trace.enter, keys)
            await ctx.sleep(0.01)
            await ctx.step("leave", trace.leave)
        return list(leases)

    async def scenario():
        async with engine_on(url, [transfer]) as engine:
            handles = [await engine.start(transfer, [*"abc"] if number % 2 else [*"cba"]) for number in range(6)]
            for handle in handles:
                assert await handle.result() == ["a", "b", "c"]
        assert (len(trace.printed), trace.most) == (6, 1)

    played(scenario)


@pytest.mark.parametrize(("scope", "together"), [("workflow", 1), ("execution", 2), ("global", 1)])
def test_a_scope_determines_which_runs_share_a_key(url, engine_on, played, scope, together):
    trace = Trace()
    keys = {
        "workflow": ["workflow/turn/account"],
        "execution": ["execution/a/account", "execution/b/account"],
        "global": ["account"],
    }[scope]

    @workflow
    async def turn(ctx, who: str) -> None:
        async with ctx.mutex("account", scope=scope) as lease:
            await ctx.step("enter", trace.enter, who, lease.token)
            await ctx.wait_for_signal("go")
            await ctx.step("leave", trace.leave)

    async def scenario():
        async with engine_on(url, [turn]) as engine, AsyncClient(url) as hf:
            handles = [await engine.start(turn, name, id=name) for name in ("a", "b")]
            await eventually_async(lambda: trace.entered(together))
            held = [item.key for item in await hf.locks.list() if item.key.endswith("account")]
            assert sorted(held) == keys
            for handle in handles:
                await handle.signal("go")
                await handle.result()
        assert len(trace.printed) == 2
        assert trace.most == together

    played(scenario)


def test_a_run_and_its_children_share_the_keys_of_their_execution(url, engine_on, played, trace):
    @workflow(name="part")
    async def part(ctx, who: str) -> None:
        async with ctx.mutex("seat", scope="execution"):
            await ctx.step("enter", trace.enter, who)
            await ctx.sleep(0.01)
            await ctx.step("leave", trace.leave)

    @workflow(name="whole")
    async def whole(ctx, _none: None) -> None:
        await asyncio.gather(ctx.child(part, "a"), ctx.child(part, "b"), part(ctx, "c"))

    async def scenario():
        async with engine_on(url, [whole, part]) as engine:
            await (await engine.start(whole)).result()
        assert (sorted(trace.printed), trace.most) == (["a", "b", "c"], 1)

    played(scenario)


def test_two_tasks_of_one_run_exclude_each_other(url, engine_on, played, trace):
    @workflow(name="tasks")
    async def tasks(ctx, _none: None) -> None:
        async def one(who):
            async with ctx.mutex("seat"):
                await ctx.step("enter", trace.enter, who)
                await ctx.sleep(0.01)
                await ctx.step("leave", trace.leave)

        await asyncio.gather(*(one(who) for who in "abc"))

    async def scenario():
        async with engine_on(url, [tasks]) as engine:
            await (await engine.start(tasks)).result()
        assert (trace.printed, trace.most) == (["a", "b", "c"], 1)

    played(scenario)


# -- leases -----------------------------------------------------------------------------------------------------


def test_a_lock_with_a_lease_is_kept_while_its_run_is_driven(url, engine_on, played):
    @workflow(name="leased")
    async def leased(ctx, _none: None) -> str:
        async with ctx.mutex("a", scope="global", lease=1.5) as lease:
            await ctx.sleep(3.5)
            lease.check()
            return "kept"

    async def scenario():
        async with engine_on(url, [leased], park_after=0.05) as engine, AsyncClient(url) as hf:
            handle = await engine.start(leased)
            await eventually_async(lambda: held(hf, "a"))
            for _ in range(10):
                await asyncio.sleep(0.25)
                with pytest.raises(LockTimeout):
                    await hf.lock("a").acquire(wait=0)
            assert await handle.result() == "kept"

    played(scenario)


def test_a_run_gets_an_error_when_its_lock_with_a_lease_was_lost(url, engine_on, played):
    @workflow(name="leased")
    async def leased(ctx, _none: None) -> str:
        try:
            async with ctx.mutex("a", scope="global", lease=0.4) as lease:
                await ctx.wait_for_signal("go")
                return "kept"
        except LeaseLost:
            assert lease.lost
            return "lost"

    async def scenario():
        async with engine_on(url, [leased]) as engine, AsyncClient(url) as hf:
            handle = await engine.start(leased)
            await eventually_async(lambda: held(hf, "a"))
            await hf.locks.force_release("a", reason="a test")
            assert await handle.result() == "lost"

    played(scenario)


def test_a_driven_run_gets_an_error_when_its_lock_was_released_by_force(url, engine_on, played, trace):
    @workflow(name="forced")
    async def forced(ctx, _none: None) -> str:
        try:
            async with ctx.mutex("a", scope="global"):
                await ctx.step("enter", trace.enter, "in")
                await ctx.wait_for_signal("never")
        except LeaseLost:
            return "lost"
        return "kept"

    async def scenario():
        async with engine_on(url, [forced]) as engine, AsyncClient(url) as hf:
            handle = await engine.start(forced)
            await eventually_async(trace.entered)
            await hf.locks.force_release("a", reason="a test")
            assert await handle.result() == "lost"

    played(scenario)


def test_closing_a_client_releases_no_lock_of_a_run(tmp_path, played):
    """The engine uses a separate client, which is closed first, as at the end of a process."""
    url = f"sqlite:///{tmp_path}/locks.db"

    @workflow(name="leased")
    async def leased(ctx, _none: None) -> None:
        async with ctx.mutex("a", scope="global", lease="1 minute"):
            await ctx.wait_for_signal("go")

    async def scenario():
        async with AsyncClient(url) as hf:
            mine = AsyncClient(url)
            engine = Engine(mine, workflows=[leased], worker_ttl=5, grace=1)
            await engine.open()
            handle = await engine.start(leased)
            await eventually_async(lambda: held(hf, "a"))
            await mine.close()
            await engine.close()
            assert (await hf.locks.inspect("a")).holders[0].owner == f"run {handle.id}"

    played(scenario)


def test_a_sweep_does_not_park_a_run_that_has_a_lock_with_a_lease(url, engine_on, played):
    if url.startswith("memory"):
        pytest.skip("what is in memory ends with the engine")

    @workflow(name="leased")
    async def leased(ctx, _none: None) -> str:
        async with ctx.mutex("a", scope="global", lease=1):
            return await ctx.wait_for_signal("go")

    async def scenario():
        async with engine_on(url, [leased]) as engine, AsyncClient(url) as hf:
            run = (await engine.start(leased)).id
            await eventually_async(lambda: held(hf, "a"))
        async with engine_on(url, [leased], recover=False) as engine, AsyncClient(url) as hf:
            await engine.sweep()
            await asyncio.sleep(1.5)
            assert (await hf.locks.inspect("a")).holders
            await engine.signal(run, "go", "kept")
            await engine.sweep()
            assert await engine.handle(run).result(timeout=10) == "kept"

    played(scenario)


@pytest.mark.parametrize("lease", [None, 0.3])
def test_a_lock_lost_while_its_run_has_no_driver_is_delivered_as_lost(url, engine_on, played, lease):
    if url.startswith("memory"):
        pytest.skip("what is in memory ends with the engine")

    @workflow(name="leased")
    async def leased(ctx, _none: None) -> str:
        try:
            async with ctx.mutex("a", scope="global", lease=lease):
                await ctx.wait_for_signal("go")
                return "kept"
        except LeaseLost:
            return "lost"

    async def scenario():
        async with AsyncClient(url) as hf:
            async with engine_on(url, [leased]) as engine:
                run = (await engine.start(leased)).id
                await eventually_async(lambda: held(hf, "a"))
            if lease is None:
                await hf.locks.force_release("a", reason="a test")
            async with hf.lock("a", wait=5):
                await hf.runs.signal(run, "go")
                async with engine_on(url, [leased]) as engine:
                    assert await engine.handle(run).result() == "lost"

    played(scenario)


# -- others -----------------------------------------------------------------------------------------------------


def test_a_run_behind_a_crashed_client_continues_without_commands_of_other_clients(url, engine_on, played, trace):
    turn = in_turn(trace, scope="global")

    async def scenario():
        async with engine_on(url, [turn], park_after=0.05) as engine:
            async with AsyncClient(url) as hf:
                lease = await hf.lock("account", ttl=1, max_renew_failures=1).acquire()
                hf.runtime.heartbeats.drop(lease._held)  # it is not renewed any more, as if its process had crashed
                handle = await engine.start(turn, "a")
                assert await handle.result(timeout=10) > lease.token
                lease._held.end()

    played(scenario)


def test_waiting_for_a_lock_may_have_a_timeout(url, engine_on, played):
    @workflow(name="patient")
    async def patient(ctx, _none: None) -> str:
        try:
            async with asyncio.timeout(0.2), ctx.mutex("a", scope="global"):
                return "in"
        except TimeoutError:
            return await ctx.wait_for_signal("go")

    async def scenario():
        async with engine_on(url, [patient]) as engine, AsyncClient(url) as hf, hf.lock("a"):
            handle = await engine.start(patient)
            await waits(hf, "a")
            await eventually_async(lambda: nobody(hf))
            await handle.signal("go", "too late")
            assert await handle.result() == "too late"

    async def nobody(hf):
        return not (await hf.locks.inspect("a")).waiters

    played(scenario)


def test_a_retry_of_a_run_that_failed_while_it_held_a_lock_acquires_it_again(url, engine_on, played, trace):
    @workflow(name="fails")
    async def fails(ctx, _none: None) -> int:
        await ctx.step("before", trace.printed.append, "before")
        async with ctx.mutex("a", scope="global") as lease:
            await ctx.step("enter", trace.enter, "in", lease.token)
            await ctx.step("work", work)
        return lease.token

    def work():
        if len(trace.tokens) == 1:
            raise ValueError("not yet")

    async def scenario():
        async with engine_on(url, [fails]) as engine, AsyncClient(url) as hf:
            handle = await engine.start(fails)
            with pytest.raises(WorkflowFailed):
                await handle.result()
            async with hf.lock("a", wait=0):
                pass
            await engine.retry(handle.id)
            assert await handle.result() == trace.tokens[1] > trace.tokens[0]
        assert trace.printed == ["before", "in", "in"]

    played(scenario)


def test_a_retry_begins_before_all_blocks_whose_end_is_removed(url, engine_on, played, trace):
    """One block ended while another was open, in which the run failed: the kept history must contain neither."""
    broken = [True]

    @workflow(name="overlap")
    async def overlap(ctx, _none: None) -> str:
        first = ctx.mutex("a", scope="global")
        await first.__aenter__()
        async with ctx.mutex("b", scope="global"):
            await first.__aexit__(None, None, None)
            await ctx.step("work", work)
        return "done"

    def work():
        if broken.pop():
            broken.append(False)
            raise ValueError("not yet")

    async def scenario():
        async with engine_on(url, [overlap]) as engine:
            handle = await engine.start(overlap)
            with pytest.raises(WorkflowFailed, match="not yet"):
                await handle.result()
            await engine.retry(handle.id)
            assert await handle.result() == "done"

    played(scenario)


def test_a_new_attempt_of_a_workflow_acquires_the_lock_again(url, engine_on, played, trace):
    @workflow(name="fails", retry=Retry(max_attempts=2, initial=0.01))
    async def fails(ctx, _none: None) -> int:
        async with ctx.mutex("a", scope="global") as lease:
            await ctx.step("enter", trace.enter, "in", lease.token)
            if ctx.attempt == 1:
                raise ValueError("not yet")
        return lease.token

    async def scenario():
        async with engine_on(url, [fails]) as engine:
            handle = await engine.start(fails)
            assert await handle.result() == trace.tokens[1] > trace.tokens[0]

    played(scenario)


def test_a_key_of_another_kind_is_refused(url, engine_on, played):
    @workflow(name="kinds")
    async def kinds(ctx, _none: None) -> str:
        try:
            async with ctx.semaphore("a", permits=2, scope="global"):
                return "in"
        except KindMismatch as error:
            return str(error)

    async def scenario():
        async with engine_on(url, [kinds]) as engine, AsyncClient(url) as hf, hf.lock("a"):
            assert "another kind" in await (await engine.start(kinds)).result()

    played(scenario)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda ctx: ctx.mutex(""),
        lambda ctx: ctx.mutex("a", scope="planet"),
        lambda ctx: ctx.semaphore("a", permits=0),
        lambda ctx: ctx.mutex("a", lease=0),
        lambda ctx: ctx.locks(),
    ],
)
def test_invalid_lock_options_are_refused_at_the_call(played, wrong):
    @workflow(name="wrong")
    async def wrongly(ctx, _none: None) -> str:
        try:
            wrong(ctx)
        except (InvalidOption, ValueError) as error:
            return str(error)
        return ""

    async def scenario():
        async with TestEngine([wrongly]) as engine:
            return await (await engine.start(wrongly)).result()

    assert played(scenario)


def test_the_token_of_a_runs_lock_can_be_used_with_the_guard(played, tmp_path):
    @workflow(name="guarded")
    async def guarded(ctx, _none: None) -> None:
        async with ctx.mutex("invoice") as lease:
            await ctx.step("write", write, lease)

    def write(lease):
        with sqlite3.connect(tmp_path / "app.db") as db:
            guard(db, "invoice", lease)

    async def scenario():
        async with TestEngine([guarded]) as engine:
            await (await engine.start(guarded)).result()

    played(scenario)
    with sqlite3.connect(tmp_path / "app.db") as db:
        assert db.execute("SELECT count(*) FROM holdfast_fences").fetchone() == (1,)


def test_in_a_test_engine_a_lease_is_kept_however_far_time_is_moved(played):
    @workflow(name="leased")
    async def leased(ctx, _none: None) -> str:
        async with ctx.mutex("a", lease=1) as lease:
            await ctx.sleep("3 days")
            lease.check()
            return "kept"

    async def scenario():
        async with TestEngine([leased]) as engine:
            handle = await engine.start(leased)
            await engine.advance("3 days")
            return await handle.result()

    assert played(scenario) == "kept"


def test_code_that_acquires_other_locks_than_before_is_detected(url, engine_on, played, trace):
    if url.startswith("memory"):
        pytest.skip("what is in memory ends with the engine")
    keys = ["a"]

    @workflow(name="changed")
    async def changed(ctx, _none: None) -> None:
        async with ctx.mutex(keys[0]):
            await ctx.step("enter", trace.enter, "in")
            await ctx.wait_for_signal("go")

    async def scenario():
        async with engine_on(url, [changed]) as engine:
            run = (await engine.start(changed)).id
            await eventually_async(trace.entered)
        keys[0] = "b"
        async with engine_on(url, [changed]) as engine:
            assert "does not follow its history" in (await until_blocked(engine, run)).reason.message
            assert (await engine.get(run)).locks == ("workflow/changed/a",)

    played(scenario)
