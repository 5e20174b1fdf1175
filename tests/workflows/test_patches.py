"""ctx.patched: old histories take the old branch, new runs the new one, and every replay decides in the same way."""

from __future__ import annotations

import pytest
from inspect_runs import suspended
from waiting import eventually_async

from holdfast import AsyncClient, Context, Engine, Retry, WorkflowFailed, workflow
from holdfast.errors import InvalidKey, NotInWorkflow
from holdfast.testing import TestEngine
from holdfast.workflow import journal as j

PARKS = {"park_after": 0.02}


@pytest.fixture
def database(tmp_path):
    return f"sqlite:///{tmp_path}/runs.db"


def names(claims):
    """A step body that appends what it is called with."""

    def record(name):
        claims.append(name)
        return name

    return record


def released(done, *, patch):
    """Two releases of one workflow: `patch` is None, "patched" or "deprecate"."""
    record = names(done)

    @workflow(name="order")
    async def order(ctx: Context) -> str:
        await ctx.step("reserve", record, "reserve")
        await ctx.wait_for_signal("go")
        if patch == "deprecate":
            ctx.deprecate_patch("invoice")
        if patch == "deprecate" or (patch and ctx.patched("invoice")):
            await ctx.step("invoice", record, "invoice")
        else:
            await ctx.step("charge", record, "charge")
        await ctx.wait_for_signal("end")
        again = patch == "deprecate" or (patch is not None and ctx.patched("invoice"))
        return "new" if again else "old"

    return order


async def entries_of(engine, run):
    claim, _ = await engine._run(engine._ready().see(run, history=True))
    return [j.decode_entry(text) for text in claim.entries[1:]]


async def markers(engine, run):
    return [entry.name for entry in await entries_of(engine, run) if isinstance(entry, j.Patched)]


async def parked(handle, entries):
    info = await handle.info()
    return info.status == "suspended" and info.entries == entries


def test_a_run_that_passed_the_place_with_old_code_takes_the_old_branch_to_its_end(url, played, engine_on):
    done = []
    old, new = released(done, patch=None), released(done, patch="patched")

    async def scenario():
        async with engine_on(url, [old], **PARKS) as engine:
            handle = await engine.start(old, id="r")
            await handle.signal("go")
            await eventually_async(lambda: parked(handle, 4))
        async with engine_on(url, [new], **PARKS) as engine:
            await engine.signal("r", "end")
            assert await engine.handle("r").result(timeout=20) == "old"
            assert await markers(engine, "r") == []

    played(scenario)
    assert done == ["reserve", "charge"]


def test_a_run_that_reaches_the_place_with_new_code_takes_the_new_branch_in_every_replay(url, played, engine_on):
    done = []
    old, new = released(done, patch=None), released(done, patch="patched")

    async def scenario():
        async with engine_on(url, [old], **PARKS) as engine:
            handle = await engine.start(old, id="r")
            await eventually_async(lambda: suspended(handle))
        for signal in ("go", "end"):  # each engine replays what was before
            async with engine_on(url, [new], **PARKS) as engine:
                handle = engine.handle("r")
                if signal == "end":
                    assert await markers(engine, "r") == ["invoice"]
                await handle.signal(signal)
                if signal == "go":
                    await eventually_async(lambda handle=handle: parked(handle, 5))
                else:
                    assert await handle.result(timeout=20) == "new"

    played(scenario)
    assert done == ["reserve", "invoice"]


def test_a_new_run_takes_the_new_branch_at_its_first_line_and_after_a_move(database, played, engine_on):
    claims = []

    @workflow
    async def first(ctx: Context) -> bool:
        taken = ctx.patched("begin")
        claims.append(taken)
        await ctx.wait_for_signal("end")
        return taken

    async def scenario():
        async with engine_on(database, [first], **PARKS) as engine:
            handle = await engine.start(first, id="r")
            await eventually_async(lambda: suspended(handle))
            assert await markers(engine, "r") == ["begin"]
        async with engine_on(database, [first]) as engine:
            await engine.signal("r", "end")
            assert await engine.handle("r").result(timeout=20) is True

    played(scenario)
    assert set(claims) == {True}
    assert len(claims) > 1


def test_the_marker_is_stored_before_the_effect_of_the_new_branch_begins(played):
    seen = []

    async def scenario():
        async with AsyncClient("memory://") as hf:

            async def effect() -> None:
                seen.extend(await markers(engine, "r"))

            @workflow
            async def one(ctx: Context) -> None:
                if ctx.patched("new"):
                    await ctx.step("effect", effect)

            async with Engine(hf, workflows=[one]) as engine:
                await (await engine.start(one, id="r")).result(timeout=20)

    played(scenario)
    assert seen == ["new"]


def test_a_run_that_was_driven_before_its_marker_was_stored_takes_the_old_branch(database, played, engine_on):
    """The first claim recorded nothing: it may have been of old code, whose first step is under way."""

    @workflow
    async def one(ctx: Context) -> bool:
        return ctx.patched("new")

    async def scenario():
        async with AsyncClient(database) as hf:
            await hf.runs.start("one", id="r")
        old = workflow(name="one")(waiting)
        async with engine_on(database, [old], **PARKS) as engine:
            await eventually_async(lambda: suspended(engine.handle("r")))
        async with engine_on(database, [one]) as engine:
            await engine.signal("r", "any")
            assert await engine.handle("r").result(timeout=20) is False

    async def waiting(ctx):
        await ctx.wait_for_signal("never")

    played(scenario)


def test_a_patch_that_is_no_longer_asked_for_leaves_its_marker_without_effect(database, played, engine_on):
    done = []
    new, after = released(done, patch="patched"), released(done, patch="deprecate")

    async def scenario():
        async with engine_on(database, [new], **PARKS) as engine:
            handle = await engine.start(new, id="r")
            await handle.signal("go")
            await eventually_async(lambda: parked(handle, 5))
        async with engine_on(database, [after], **PARKS) as engine:
            await engine.signal("r", "end")
            assert await engine.handle("r").result(timeout=20) == "new"
            assert await markers(engine, "r") == ["invoice"]

    played(scenario)
    assert done == ["reserve", "invoice"]


def test_a_deprecated_patch_records_its_marker_for_processes_that_still_ask(database, played, engine_on):
    done = []
    after, new = released(done, patch="deprecate"), released(done, patch="patched")

    async def scenario():
        async with engine_on(database, [after], **PARKS) as engine:
            handle = await engine.start(after, id="r")
            await handle.signal("go")
            await eventually_async(lambda: parked(handle, 5))
        async with engine_on(database, [new], **PARKS) as engine:
            await engine.signal("r", "end")
            assert await engine.handle("r").result(timeout=20) == "new"

    played(scenario)
    assert done == ["reserve", "invoice"]


def test_a_deprecated_patch_never_refuses_an_old_history(database, played, engine_on):
    @workflow(name="one")
    async def old(ctx: Context) -> None:
        await ctx.wait_for_signal("end")

    @workflow(name="one")
    async def after(ctx: Context) -> str:
        ctx.deprecate_patch("gone")
        await ctx.wait_for_signal("end")
        return "ended"

    async def scenario():
        async with engine_on(database, [old], **PARKS) as engine:
            handle = await engine.start(old, id="r")
            await eventually_async(lambda: suspended(handle))
        async with engine_on(database, [after]) as engine:
            await engine.signal("r", "end")
            assert await engine.handle("r").result(timeout=20) == "ended"
            assert await markers(engine, "r") == []

    played(scenario)


@pytest.mark.parametrize("how", ["retry", "restart"])
@pytest.mark.parametrize("inside", [False, True], ids=["", "in a lock"])
def test_a_run_that_is_retried_or_restarted_by_hand_takes_the_new_branch_again(played, how, inside):
    """A retry removes the block of an open lock, with the marker in it; the place is reached again then."""
    broken, branches = [True], []

    def work():
        if broken[0]:
            raise ValueError("broken")

    @workflow
    async def one(ctx: Context) -> str:
        if inside:
            async with ctx.mutex("lock"):
                return await main(ctx)
        return await main(ctx)

    async def main(ctx):
        branches.append(ctx.patched("new"))
        await ctx.step("work", work)
        return "done"

    async def scenario():
        async with TestEngine([one]) as engine:
            handle = await engine.start(one, id="r")
            with pytest.raises(WorkflowFailed):
                await handle.result(timeout=20)
            broken[0] = False
            await getattr(engine, how)("r")
            assert await handle.result(timeout=20) == "done"
            assert await markers(engine, "r") == ["new"]

    played(scenario)
    assert set(branches) == {True}


def test_a_run_of_old_code_that_is_restarted_takes_the_new_branch_and_one_that_is_retried_does_not(
    database, played, engine_on
):
    broken = [True]

    def work():
        if broken[0]:
            raise ValueError("broken")

    def release(*, new):
        @workflow(name="one")
        async def one(ctx: Context) -> str:
            branch = "new" if new and ctx.patched("new") else "old"
            await ctx.step("work", work)
            return branch

        return one

    async def scenario():
        async with engine_on(database, [release(new=False)]) as engine:
            for run in ("retry", "restart"):
                with pytest.raises(WorkflowFailed):
                    await (await engine.start("one", id=run)).result(timeout=20)
        broken[0] = False
        async with engine_on(database, [release(new=True)]) as engine:
            for run, branch in (("retry", "old"), ("restart", "new")):
                await getattr(engine, run)(run)
                assert await engine.handle(run).result(timeout=20) == branch

    played(scenario)


def test_a_later_attempt_takes_the_branch_of_the_attempts_before_it(database, played, engine_on):
    """Its steps have the same keys as theirs: another branch would have an effect besides theirs."""
    branches = []

    def release(*, new):
        @workflow(name="one", retry=Retry(max_attempts=3, initial="1 second", jitter=False))
        async def one(ctx: Context) -> str:
            branches.append((ctx.attempt, new and ctx.patched("new")))
            if ctx.attempt == 1:
                raise ValueError("not yet")
            await ctx.wait_for_signal("end")
            return "new" if new and ctx.patched("new") else "old"

        return one

    async def scenario():
        async with engine_on(database, [release(new=False)], **PARKS) as engine:
            handle = await engine.start("one", id="r")
            await eventually_async(lambda: suspended(handle))
        for signal in (None, "end"):
            async with engine_on(database, [release(new=True)], **PARKS) as engine:
                if signal is None:
                    await eventually_async(lambda: parked(engine.handle("r"), 3))
                    assert await markers(engine, "r") == []
                else:
                    await engine.signal("r", signal)
                    assert await engine.handle("r").result(timeout=20) == "old"

    played(scenario)
    assert set(branches) == {(1, False), (2, False)}


def test_a_later_attempt_takes_the_new_branch_that_an_earlier_one_has_taken(database, played, engine_on):
    branches = []

    @workflow(name="one", retry=Retry(max_attempts=3, initial="10 ms", jitter=False))
    async def one(ctx: Context) -> None:
        branches.append((ctx.attempt, ctx.patched("new")))
        if ctx.attempt < 3:
            raise ValueError("not yet")

    async def scenario():
        async with engine_on(database, [one]) as engine:
            handle = await engine.start(one, id="r")
            await handle.result(timeout=20)
            assert await markers(engine, "r") == ["new", "new", "new"]

    played(scenario)
    assert branches == [(1, True), (2, True), (3, True)]


def test_an_attempt_that_old_code_began_after_a_rollback_keeps_the_old_branch(database, played, engine_on):
    """The marker of an earlier attempt does not count for it."""

    def release(*, new, fails=False):
        @workflow(name="one", retry=Retry(max_attempts=3, initial="1 second", jitter=False))
        async def one(ctx: Context) -> str:
            branch = "new" if new and ctx.patched("new") else "old"
            if fails:
                raise ValueError("not yet")
            await ctx.step(branch, str)
            await ctx.wait_for_signal("end")
            return branch

        return one

    async def scenario():
        async with engine_on(database, [release(new=True, fails=True)], **PARKS) as engine:
            handle = await engine.start("one", id="r")
            await eventually_async(lambda: suspended(handle))
            assert await markers(engine, "r") == ["new"]
        async with engine_on(database, [release(new=False)], **PARKS) as engine:
            await eventually_async(lambda: parked(engine.handle("r"), 5))
        async with engine_on(database, [release(new=True)], **PARKS) as engine:
            await engine.signal("r", "end")
            assert await engine.handle("r").result(timeout=20) == "old"

    played(scenario)


def test_a_patch_needs_a_name_and_the_code_of_the_workflow(played):
    refused = []

    @workflow
    async def one(ctx: Context) -> None:
        for call in (ctx.patched, ctx.deprecate_patch):
            with pytest.raises(InvalidKey):
                call("")

        def body():
            for call in (ctx.patched, ctx.deprecate_patch):
                try:
                    call("name")
                except NotInWorkflow as error:
                    refused.append(error)

        await ctx.step("body", body)

    async def scenario():
        async with TestEngine([one]) as engine:
            await (await engine.start(one)).result(timeout=20)

    played(scenario)
    assert len(refused) == 2
