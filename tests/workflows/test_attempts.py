"""@workflow(retry=...): delays between attempts, cancellation during a delay, and children of two attempts that do not
overlap."""

from __future__ import annotations

import asyncio

import pytest
from inspect_runs import suspended
from waiting import eventually_async

from holdfast import Retry, WorkflowFailed, workflow
from holdfast.errors import StoreUnusable
from holdfast.testing import TestEngine
from holdfast.workflow import loop, worker_host

LONG = Retry(max_attempts=4, initial="1 hour", jitter=False, max_delay="1 hour")
SHORT = Retry(max_attempts=4, initial="10 ms")


async def living(engine, run):
    return (await engine.get(run)).living


async def there(engine, run):
    return any(found.id == run for found in (await engine.list(prefix=run)).runs)


async def children_of(engine, run):
    return {found.id: found.status for found in (await engine.list()).runs if found.parent == run}


def test_a_signal_during_the_delay_between_attempts_does_not_end_it(url, played, engine_on):
    attempts = []

    @workflow(retry=LONG)
    async def failing(ctx, _none: None) -> None:
        attempts.append(ctx.attempt)
        raise ValueError("not yet")

    async def scenario():
        async with engine_on(url, [failing]) as engine:
            handle = await engine.start(failing)
            await eventually_async(lambda: suspended(handle))
            before = await handle.info()
            for n in range(3):
                claims = await claims_of(engine, handle.id)
                await handle.signal("go", n)
                await eventually_async(lambda claims=claims: claimed_and_parked(engine, handle, claims))
            after = await handle.info()
            assert (after.status, after.due_at, after.entries) == ("suspended", before.due_at, before.entries)
            assert attempts == [1]
            await handle.cancel()

    async def claims_of(engine, run):
        claim, _ = await engine._run(engine._ready().see(run))
        return claim.run.claims

    async def claimed_and_parked(engine, handle, claims):
        return await claims_of(engine, handle.id) > claims and await suspended(handle)

    played(scenario)


def test_a_cancel_during_the_delay_between_attempts_ends_the_run(url, played, engine_on):
    attempts = []

    @workflow(retry=LONG)
    async def failing(ctx, _none: None) -> None:
        attempts.append(ctx.attempt)
        raise ValueError("not yet")

    async def scenario():
        async with engine_on(url, [failing]) as engine:
            handle = await engine.start(failing)
            await eventually_async(lambda: suspended(handle))
            await handle.cancel()
            with pytest.raises(WorkflowFailed, match="cancelled in the pause between two attempts"):
                await handle.result(timeout=20)
            assert (await handle.info()).status == "cancelled"
            assert attempts == [1]

    played(scenario)


def test_signals_that_arrived_during_the_delay_are_read_by_the_next_attempt(url, played, engine_on):
    @workflow(retry=Retry(max_attempts=2, initial="300 ms", jitter=False))
    async def failing(ctx, _none: None) -> list[str]:
        if ctx.attempt == 1:
            raise ValueError("not yet")
        return [await ctx.wait_for_signal("go"), await ctx.wait_for_signal("go")]

    async def scenario():
        async with engine_on(url, [failing]) as engine:
            handle = await engine.start(failing)
            await handle.signal("go", "one")
            await handle.signal("go", "two")
            assert await handle.result(timeout=20) == ["one", "two"]

    played(scenario)


class Own(Exception):
    """A user's own exception."""


@pytest.mark.parametrize("raised", [Own, PermissionError])
def test_an_exception_that_is_not_retried_ends_the_workflow_also_if_a_step_raises_it(url, played, engine_on, raised):
    runs = []

    def work():
        runs.append(1)
        raise raised("no use in trying again")

    @workflow(retry=Retry(max_attempts=3, initial=0, give_up_on=raised))
    async def once(ctx, _none: None) -> None:
        await ctx.step("work", work)

    async def scenario():
        async with engine_on(url, [once]) as engine:
            handle = await engine.start(once)
            with pytest.raises(WorkflowFailed, match="no use in trying again"):
                await handle.result(timeout=20)

    played(scenario)
    assert len(runs) == 1


@pytest.mark.parametrize("named", [True, False])
def test_a_failed_child_is_started_again_in_the_next_attempt(url, played, engine_on, named):
    runs = []

    @workflow
    async def below(ctx, _none: None) -> str:
        return await ctx.step("work", work)

    def work():
        runs.append(1)
        if len(runs) < 3:
            raise ValueError("broken")
        return "done"

    @workflow(retry=SHORT)
    async def above(ctx, _none: None) -> str:
        return await ctx.child(below, id=f"{ctx.run_id}.child" if named else None)

    async def scenario():
        async with engine_on(url, [above, below]) as engine:
            handle = await engine.start(above, id="above")
            assert await handle.result(timeout=20) == "done"
            found = await children_of(engine, "above")
            if named:
                assert found == {"above.child": "completed"}
            else:
                assert found == {
                    "above/below": "failed",
                    "above/below.attempt-2": "failed",
                    "above/below.attempt-3": "completed",
                }

    played(scenario)
    assert len(runs) == 3


@pytest.mark.parametrize("named", [True, False])
def test_retry_by_hand_after_the_last_attempt_revives_the_child_that_failed_in_it(url, played, engine_on, named):
    runs, broken = [], [True]

    @workflow
    async def below(ctx, _none: None) -> str:
        return await ctx.step("work", work)

    def work():
        runs.append(1)
        if broken[0]:
            raise ValueError("broken")
        return "done"

    @workflow(retry=Retry(max_attempts=2, initial=0))
    async def above(ctx, _none: None) -> str:
        return await ctx.child(below, id=f"{ctx.run_id}.child" if named else None)

    async def scenario():
        async with engine_on(url, [above, below]) as engine:
            handle = await engine.start(above, id="above")
            with pytest.raises(WorkflowFailed, match="broken"):
                await handle.result(timeout=20)
            broken[0] = False
            await engine.retry("above")
            assert await handle.result(timeout=20) == "done"
            found = await children_of(engine, "above")
            last = "above.child" if named else "above/below.attempt-2"
            assert found.pop(last) == "completed"
            assert set(found.values()) <= {"failed"}  # what the first attempt started stays as it was

    played(scenario)
    assert len(runs) == 3


@pytest.mark.parametrize("named", [True, False])
def test_a_running_child_is_cancelled_and_awaited_before_the_next_attempt(url, played, engine_on, named):
    """Its cleanup takes a while: the second child begins when the first one has ended, though the delay is short."""
    inside, most, leave = [], [], asyncio.Event()

    @workflow
    async def below(ctx, _none: None) -> str:
        await ctx.step("enter", enter)
        try:
            return await ctx.wait_for_signal("go")
        finally:
            await ctx.step("leave", go_out)

    def enter():
        inside.append(1)
        most.append(len(inside))

    async def go_out():
        await leave.wait()
        inside.pop()

    @workflow(retry=SHORT)
    async def above(ctx, _none: None) -> str:
        child = await ctx.start_child(below, id=f"{ctx.run_id}.child" if named else None)
        if ctx.attempt == 1:
            await ctx.wait_for_signal("fail")
            raise ValueError("the first attempt")
        return await child.result()

    async def scenario():
        async with engine_on(url, [above, below]) as engine:
            handle = await engine.start(above, id="above")
            first = "above.child" if named else "above/below"
            await eventually_async(lambda: entered(1))
            await handle.signal("fail")
            await eventually_async(lambda: waits_for_children_alone(handle))
            assert await living(engine, first)
            leave.set()
            await eventually_async(lambda: entered(2))
            await engine.handle(first if named else "above/below.attempt-2").signal("go", "gone")
            assert await handle.result(timeout=20) == "gone"

    async def entered(times):
        return len(most) >= times

    async def waits_for_children_alone(handle):
        info = await handle.info()
        return info.status == "suspended" and info.due_at is None and info.entries >= 3

    played(scenario)
    assert most == [1, 1]


def test_a_completed_child_with_an_explicit_id_gives_its_result_to_the_next_attempt(url, played, engine_on):
    runs = []

    @workflow
    async def below(ctx, n: int) -> int:
        return await ctx.step("work", work, n)

    def work(n):
        runs.append(n)
        return n * 10

    @workflow(retry=SHORT)
    async def above(ctx, _none: None) -> list[int]:
        found = [await ctx.child(below, 1, id="paid once"), await ctx.child(below, 2)]
        if ctx.attempt < 3:
            raise ValueError("later")
        return found

    async def scenario():
        async with engine_on(url, [above, below]) as engine:
            handle = await engine.start(above)
            assert await handle.result(timeout=20) == [10, 20]

    played(scenario)
    assert sorted(runs) == [1, 2, 2, 2]  # one without an id is a part of its attempt, as a step is


def test_a_child_with_an_explicit_id_cannot_get_another_input_in_a_later_attempt(url, played, engine_on):
    @workflow
    async def below(ctx, n: int) -> int:
        return n

    @workflow(retry=Retry(max_attempts=2, initial=0))
    async def above(ctx, _none: None) -> int:
        found = await ctx.child(below, ctx.attempt, id="child")
        if ctx.attempt == 1:
            raise ValueError("later")
        return found

    async def scenario():
        async with engine_on(url, [above, below]) as engine:
            handle = await engine.start(above)
            with pytest.raises(WorkflowFailed, match=r"with another workflow or input.*ctx\.attempt"):
                await handle.result(timeout=20)
            assert (await engine.get("child")).result == 1

    played(scenario)


@pytest.mark.parametrize("url", ["sqlite", "postgres", "valkey"], indirect=True)
def test_a_crash_in_the_delay_or_in_a_later_attempt_starts_no_child_twice(url, played, engine_on):
    """The engine is discarded repeatedly; each attempt has one child, and that of the last attempt is used again."""
    runs = []

    @workflow
    async def below(ctx, n: int) -> int:
        runs.append(n)
        if n < 3:
            raise ValueError("broken")
        return await ctx.wait_for_signal("go")

    @workflow(retry=SHORT)
    async def above(ctx, _none: None) -> int:
        return await ctx.child(below, ctx.attempt)

    async def scenario():
        async with engine_on(url, [above, below], grace=0) as engine:
            await engine.start(above, id="above")
        for _ in range(20):
            async with engine_on(url, [above, below], grace=0) as engine:
                with_child = await there(engine, "above/below.attempt-3")
                if with_child and await suspended_or_running(engine):
                    break
                await asyncio.sleep(0.05)
        async with engine_on(url, [above, below]) as engine:
            await eventually_async(lambda: there(engine, "above/below.attempt-3"))
            await engine.handle("above/below.attempt-3").signal("go", 7)
            assert await engine.handle("above").result(timeout=20) == 7
            assert set(await children_of(engine, "above")) == {
                "above/below",
                "above/below.attempt-2",
                "above/below.attempt-3",
            }

    async def suspended_or_running(engine):
        return (await engine.get("above")).status in ("suspended", "running")

    played(scenario)


def test_restart_after_several_attempts_begins_with_the_first_and_its_child(url, played, engine_on):
    runs, broken = [], [True]

    @workflow
    async def below(ctx, n: int) -> int:
        return await ctx.step("work", work, n)

    def work(n):
        runs.append(n)
        if broken[0] or n < 2:
            raise ValueError("broken")
        return n

    @workflow(retry=Retry(max_attempts=2, initial=0))
    async def above(ctx, _none: None) -> int:
        return await ctx.child(below, ctx.attempt)

    async def scenario():
        async with engine_on(url, [above, below]) as engine:
            handle = await engine.start(above, id="above")
            with pytest.raises(WorkflowFailed, match="broken"):
                await handle.result(timeout=20)
            assert runs == [1, 2]
            broken[0] = False
            await engine.restart("above")
            assert await handle.result(timeout=20) == 2
            assert runs == [1, 2, 1, 2]

    played(scenario)


def test_an_expired_timeout_ends_a_run_whose_child_does_not_end(played):
    """The children of the failed attempt are awaited, but not for longer than the whole workflow may take."""

    @workflow
    async def below(ctx, _none: None) -> None:
        while True:
            try:
                await ctx.sleep("1 day")
            except asyncio.CancelledError:
                await ctx.sleep("20 seconds")

    @workflow(retry=Retry(max_attempts=3, initial=1, jitter=False), timeout="10 seconds")
    async def above(ctx, _none: None) -> None:
        await ctx.start_child(below)
        await ctx.sleep(1)
        raise ValueError("broken")

    async def scenario():
        async with TestEngine([above, below]) as engine:
            handle = await engine.start(above)
            await engine.advance("12 seconds")
            assert (await handle.info()).status == "timed_out"

    played(scenario)


@pytest.mark.parametrize("url", ["sqlite", "postgres", "valkey"], indirect=True)
def test_a_child_that_failed_in_this_attempt_is_not_started_again_after_a_crash(url, played, engine_on):
    """The second attempt's child fails while the parent has no driver: that is the second attempt's failure."""
    runs = []

    @workflow
    async def below(ctx, _none: None) -> str:
        await ctx.wait_for_signal("go")
        runs.append(ctx.run_id)
        raise ValueError("broken")

    @workflow(retry=Retry(max_attempts=2, initial=0))
    async def above(ctx, _none: None) -> str:
        return await ctx.child(below, id="child")

    async def scenario():
        async with engine_on(url, [above, below]) as engine:
            await engine.start(above, id="above")
            await eventually_async(lambda: there(engine, "child"))
            await engine.handle("child").signal("go")
            await eventually_async(lambda: second(engine))
        async with engine_on(url, [below]) as engine:
            await engine.handle("child").signal("go")
            with pytest.raises(WorkflowFailed, match="broken"):
                await engine.handle("child").result(timeout=20)
        async with engine_on(url, [above, below]) as engine:
            with pytest.raises(WorkflowFailed, match="broken"):
                await engine.handle("above").result(timeout=20)
            assert not await living(engine, "child")

    async def second(engine):
        """The child was retried, and claimed again."""
        claim, _ = await engine._run(engine._ready().see("child"))
        return claim.run.living and claim.run.claims == 2

    played(scenario)
    assert runs == ["child", "child"]


@pytest.mark.parametrize("url", ["sqlite", "postgres"], indirect=True)
def test_a_transaction_that_a_failed_attempt_requested_is_not_executed(url, played, engine_on):
    """While a running child is being cancelled, the attempt has ended: nothing of it is recorded any more."""
    done = []

    @workflow
    async def below(ctx, _none: None) -> None:
        await ctx.wait_for_signal("never")

    @workflow(retry=Retry(max_attempts=2, initial=0))
    async def above(ctx, _none: None) -> list[int]:
        if ctx.attempt == 1:
            await ctx.start_child(below)
            await asyncio.gather(ctx.transaction("first", fails), ctx.transaction("second", writes, ctx.attempt))
        return [await ctx.transaction("second", writes, ctx.attempt)]

    def fails(connection):
        raise ValueError("broken")

    def writes(connection, attempt):
        done.append(attempt)
        return attempt

    async def scenario():
        async with engine_on(url, [above, below]) as engine:
            handle = await engine.start(above)
            assert await handle.result(timeout=20) == [2]

    played(scenario)
    assert done == [2]


@pytest.mark.parametrize("attempt", [1, 2])
def test_an_unrelated_run_with_the_id_of_a_child_is_not_cancelled(url, played, engine_on, monkeypatch, attempt):
    """The child is refused, because its id is in use. Its cancel is requested before that is known."""

    @workflow
    async def victim(ctx, _none: None) -> str:
        return await ctx.wait_for_signal("go")

    @workflow(retry=Retry(max_attempts=attempt, initial=0))
    async def above(ctx, _none: None) -> None:
        if ctx.attempt < attempt:
            raise ValueError("the first attempt")
        child = await ctx.start_child(victim, id="victim")
        waiting = asyncio.create_task(child.result())
        await asyncio.sleep(0)
        waiting.cancel()
        await ctx.step("effect", int)

    async def scenario():
        async with engine_on(url, [above, victim]) as engine:
            slow(engine)
            theirs = await engine.start(victim, id="victim")
            await (await engine.start(above)).result(timeout=20)
            await theirs.signal("go", "alive")
            assert await theirs.result(timeout=20) == "alive"

    def slow(engine):
        """Lookups of children take a while."""
        reclaim = engine._worker.reclaim
        monkeypatch.setattr(
            engine._worker, "reclaim", lambda *args: engine._worker._loop.call_later(0.2, reclaim, *args)
        )

    played(scenario)


def test_a_run_in_an_endless_loop_cancels_no_unrelated_run(url, played, engine_on, monkeypatch):
    monkeypatch.setattr(loop, "MAX_TURNS", 1_000)

    @workflow
    async def victim(ctx, _none: None) -> str:
        return await ctx.wait_for_signal("go")

    @workflow
    async def above(ctx, _none: None) -> None:
        child = await ctx.start_child(victim, id="victim")
        waiting = asyncio.create_task(child.result())
        await asyncio.sleep(0)
        waiting.cancel()
        while True:
            await asyncio.sleep(0)

    async def scenario():
        async with engine_on(url, [above, victim]) as engine:
            theirs = await engine.start(victim, id="victim")
            with pytest.raises(WorkflowFailed, match="endless loop"):
                await (await engine.start(above)).result(timeout=20)
            await theirs.signal("go", "alive")
            assert await theirs.result(timeout=20) == "alive"

    played(scenario)


@pytest.mark.parametrize(
    "error", [StoreUnusable("it is broken"), RuntimeError("a mistake of ours")], ids=["store", "other"]
)
def test_a_child_that_cannot_be_looked_up_does_not_fail_the_run(url, played, engine_on, monkeypatch, error):
    """The run is released, and continues when it is claimed again."""
    broken = [True]

    @workflow
    async def below(ctx, _none: None) -> str:
        return "done"

    @workflow(retry=Retry(max_attempts=2, initial=0))
    async def above(ctx, _none: None) -> str:
        if ctx.attempt == 1:
            raise ValueError("the first attempt")
        return await ctx.child(below)

    def lookup(*args):
        if broken:
            broken.pop()
            raise error
        return (yield from original(*args))

    original = worker_host.reclaim
    monkeypatch.setattr(worker_host, "reclaim", lookup)

    async def scenario():
        async with engine_on(url, [above, below]) as engine:
            assert await (await engine.start(above)).result(timeout=20) == "done"

    played(scenario)
    assert not broken


@pytest.mark.parametrize("named", [True, False])
@pytest.mark.parametrize("attempts", [1, 2])
def test_a_restarted_run_does_not_get_the_result_of_a_child_with_another_input(url, played, engine_on, named, attempts):
    given = ["old"]

    @workflow
    async def below(ctx, word: str) -> str:
        return word.upper()

    @workflow(retry=Retry(max_attempts=attempts, initial=0))
    async def above(ctx, _none: None) -> str:
        word = await ctx.step("read", lambda: given[0])
        if ctx.attempt < attempts:
            raise ValueError("not yet")
        return await ctx.child(below, word, id="child" if named else None)

    async def scenario():
        async with engine_on(url, [above, below]) as engine:
            handle = await engine.start(above)
            assert await handle.result(timeout=20) == "OLD"
            await engine.restart(handle.id)
            assert await handle.result(timeout=20) == "OLD"
            given[0] = "new"
            await engine.restart(handle.id)
            with pytest.raises(WorkflowFailed, match=r"with another workflow or input.*before it was restarted"):
                await handle.result(timeout=20)

    played(scenario)


def test_a_cancel_that_arrives_with_the_failure_ends_the_run(url, played, engine_on):
    """It is in the inbox when the delay begins, and no other event would wake the run during the delay."""

    @workflow(retry=LONG)
    async def failing(ctx, _none: None) -> None:
        await ctx.wait_for_signal("go")
        raise ValueError("no")

    async def scenario():
        async with engine_on(url, [failing]) as engine:
            handles = [await engine.start(failing) for _ in range(5)]
            for handle in handles:
                await asyncio.gather(handle.signal("go"), handle.cancel())
            for handle in handles:
                with pytest.raises(WorkflowFailed, match="cancelled"):
                    await handle.result(timeout=20)

    played(scenario)


def imports(runs, *, retried="top", named_middle=False, own_leaf=False, deep=False):
    """The workflows of an import: `top` is retried, `mid` has one child per file, and the file "b" fails once."""
    again = Retry(max_attempts=3, initial=0)

    @workflow
    async def leaf(ctx, file: str) -> str:
        return await ctx.step("work", work, file)

    def work(file):
        runs.append(file)
        if file == "b" and runs.count("b") == 1:
            raise ValueError("broken")
        return file.upper()

    @workflow(retry=again if deep and retried == "starter" else None)
    async def low(ctx, files: list[str]) -> list[str]:
        begin = f"{ctx.run_id}/" if own_leaf else ""
        return [await ctx.child(leaf, file, id=f"{begin}import-{file}") for file in files]

    @workflow(retry=again if not deep and retried == "starter" else None)
    async def mid(ctx, files: list[str]) -> list[str]:
        return await ctx.child(low, files) if deep else await low(ctx, files)

    @workflow(retry=again if retried == "top" else None)
    async def top(ctx, files: list[str]) -> list[str]:
        return await ctx.child(mid, files, id=f"{ctx.run_id}.mid" if named_middle else None)

    return [top, mid, low, leaf]


@pytest.mark.parametrize("deep", [False, True])
def test_a_grandchild_with_an_explicit_id_below_a_child_without_is_refused_in_the_next_attempt(
    url, played, engine_on, deep
):
    """It is the child of a run that has ended, and only that run would get its end: it is not changed."""
    runs = []

    async def scenario():
        async with engine_on(url, imports(runs, deep=deep)) as engine:
            handle = await engine.start("top", ["a", "b"], id="top")
            notified = (
                r"was started by 'top/mid.*Put retry= on the workflow.*give the run 'top/mid' an id=.*put ctx\.run_id"
            )
            with pytest.raises(WorkflowFailed, match=notified):
                await handle.result(timeout=20)
            below = "/low" if deep else ""
            assert await children_of(engine, "top/mid" + below) == {"import-a": "completed", "import-b": "failed"}
            assert await children_of(engine, f"top/mid.attempt-2{below}") == {}

    played(scenario)
    assert runs == ["a", "b"]


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize(
    "way",
    [{"retried": "starter"}, {"named_middle": True}, {"own_leaf": True}],
    ids=["who starts the child tries again", "the run in between has an id", "each attempt has children of its own"],
)
def test_the_advice_of_that_refusal_works(url, played, engine_on, way, deep):
    runs = []

    async def scenario():
        async with engine_on(url, imports(runs, deep=deep, **way)) as engine:
            handle = await engine.start("top", ["a", "b"], id="top")
            assert await handle.result(timeout=20) == ["A", "B"]

    played(scenario)
    assert runs == (["a", "b", "b"] if "retried" in way else ["a", "b", "a", "b"])


def test_a_run_that_has_the_id_of_a_child_is_distinguished_from_a_child_of_an_earlier_attempt(url, played, engine_on):
    """Its id looks like an earlier attempt's child, but another run has started it."""

    async def scenario():
        async with engine_on(url, imports([])) as engine:
            await (await engine.start("leaf", "a", id="import-a")).result(timeout=20)
            with pytest.raises(WorkflowFailed, match="another run with the id 'import-a', which this run did not"):
                await (await engine.start("top", ["a"], id="top")).result(timeout=20)

    played(scenario)
