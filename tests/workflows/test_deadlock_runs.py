"""Runs that wait for each other in a cycle: the youngest of them gets the error, and no run that can still continue."""

from __future__ import annotations

import asyncio

import pytest
from inspect_runs import each_inside, suspended, waits
from waiting import eventually_async

from holdfast import AsyncClient, workflow
from holdfast.errors import DeadlockDetected, WouldDeadlock
from holdfast.workflow import lock_sweeper as patrol


def pairing():
    """A workflow that holds one lock, and requests another after a signal."""

    @workflow(name="pair")
    async def pair(ctx, keys: list[str]) -> str:
        async with ctx.mutex(keys[0]):
            await ctx.wait_for_signal("go")
            try:
                async with ctx.mutex(keys[1]):
                    return "both"
            except DeadlockDetected:
                return "scenario"

    return pair


@pytest.mark.parametrize("lease", [None, "1 minute"])
def test_the_youngest_run_of_a_deadlock_gets_the_error(url, engine_on, played, lease):
    @workflow(name="pair")
    async def pair(ctx, keys: list[str]) -> str:
        async with ctx.mutex(keys[0], scope="global", lease=lease):
            await ctx.wait_for_signal("go")
            try:
                async with ctx.mutex(keys[1], scope="global", lease=lease):
                    return "both"
            except DeadlockDetected as error:
                return f"{error.key}: {error}"

    async def scenario():
        async with engine_on(url, [pair]) as engine:
            events = []
            engine.events.subscribe(lambda event: events.append(event.name))
            handles = await each_inside(engine, pair, one=[*"ab"], two=[*"ba"])
            for handle in handles:
                await handle.signal("go")
            results = [await handle.result() for handle in handles]
        assert results[0] == "both"
        assert results[1].startswith("a: deadlock: this run waits for 'a'")
        assert "one holds 'a' and waits for 'b'; two holds 'b' and waits for 'a'" in results[1]
        assert "deadlock_detected" in events

    played(scenario)


def test_parked_runs_are_part_of_a_cycle(url, engine_on, played):
    pair = pairing()

    async def scenario():
        async with engine_on(url, [pair], park_after=0.02) as engine, AsyncClient(url) as hf:
            one, two = await each_inside(engine, pair, one=[*"ab"], two=[*"ba"])
            await two.signal("go")
            await waits_and_is_parked(hf, two)
            await one.signal("go")
            assert [await handle.result() for handle in (two, one)] == ["scenario", "both"]

    async def waits_and_is_parked(hf, handle):
        await waits(hf, "workflow/pair/a")
        await eventually_async(lambda: suspended(handle))

    played(scenario)


def test_a_cycle_of_three_runs_in_two_engines_is_found(url, engine_on, played):
    if url.startswith("memory"):
        pytest.skip("each engine has a memory of its own")

    @workflow(name="ring")
    async def ring(ctx, keys: list[str]) -> str:
        async with ctx.mutex(keys[0]):
            await ctx.wait_for_signal("go")
            async with ctx.mutex(keys[1]):
                return "both"

    async def scenario():
        async with engine_on(url, [ring]) as one, engine_on(url, [ring]) as two:
            handles = await each_inside(one, ring, ab=[*"ab"])
            handles += await each_inside(two, ring, bc=[*"bc"])
            handles += await each_inside(one, ring, ca=[*"ca"])
            for handle in handles:
                await handle.signal("go")
            ends = [await asyncio.gather(handle.result(), return_exceptions=True) for handle in handles]
        assert sum(end == ["both"] for end in ends) == 2
        assert sum("DeadlockDetected" in str(end) for end in ends) == 1

    played(scenario)


def test_a_task_that_requests_its_own_lock_again_is_refused_at_once(url, engine_on, played):
    @workflow(name="twice")
    async def twice(ctx, kind: str) -> str:
        lock = ctx.mutex("a") if kind == "mutex" else ctx.rwlock("b").read()
        async with lock:
            try:
                async with ctx.mutex("a") if kind == "mutex" else ctx.rwlock("b").write():
                    return "in"
            except WouldDeadlock:
                return "scenario"

    async def scenario():
        async with engine_on(url, [twice]) as engine:
            for kind in ("mutex", "rwlock"):
                assert await (await engine.start(twice, kind)).result() == "scenario"

    played(scenario)


def test_a_run_that_waits_for_itself_gets_the_error(url, engine_on, played, monkeypatch):
    monkeypatch.setattr(patrol, "PAGE_SECONDS", 600)  # not by the sweep

    @workflow(name="twice")
    async def twice(ctx, _none: None) -> str:
        async def inner():
            async with ctx.mutex("a"):
                return "in"

        async with ctx.mutex("a"):
            try:
                return await asyncio.create_task(inner())
            except DeadlockDetected:
                return "scenario"

    async def scenario():
        async with engine_on(url, [twice]) as engine:
            assert await (await engine.start(twice)).result() == "scenario"

    played(scenario)


def test_when_one_run_fails_and_others_are_still_in_a_cycle_they_get_the_error_too(url, engine_on, played, monkeypatch):
    """The oldest run holds a mutex that five readers request, and requests what they read: all of them must fail."""
    monkeypatch.setattr(patrol, "PAGE_SECONDS", 600)  # not by the sweep

    @workflow(name="both")
    async def both(ctx, what: str) -> str:
        reads = what == "reads"
        doc, mutex = ctx.rwlock("doc"), ctx.mutex("m")
        async with doc.read() if reads else mutex:
            await ctx.wait_for_signal("go")
            async with mutex if reads else doc.write():
                return "both"

    async def scenario():
        async with engine_on(url, [both]) as engine, AsyncClient(url) as hf:
            handles = [await engine.start(both, "writes")]
            await asyncio.sleep(0.01)
            handles += [await engine.start(both, "reads") for _ in range(5)]
            await eventually_async(lambda: inside(hf))
            for handle in handles:
                await handle.signal("go")
            ends = [await asyncio.gather(handle.result(), return_exceptions=True) for handle in handles]
        assert ends[0] == ["both"]
        assert sum("DeadlockDetected" in str(end) for end in ends) == 5

    async def inside(hf):
        return len((await hf.locks.inspect("workflow/both/doc")).holders) == 5

    played(scenario)


def test_a_run_that_can_still_continue_is_not_in_a_deadlock(url, engine_on, played):
    """One of the two waits for a signal as well, and releases its lock when it arrives."""

    @workflow(name="waits_for_a_signal")
    async def waits_for_a_signal(ctx, keys: list[str]) -> str:
        async with ctx.mutex(keys[0]):
            await ctx.wait_for_signal("go")
            if keys[0] == "b":
                return await ctx.wait_for_signal("enough")
            async with ctx.mutex(keys[1]):
                return "both"

    async def scenario():
        async with engine_on(url, [waits_for_a_signal]) as engine, AsyncClient(url) as hf:
            one, two = await each_inside(engine, waits_for_a_signal, one=[*"ab"], two=[*"ba"])
            for handle in (one, two):
                await handle.signal("go")
            await waits(hf, "workflow/waits_for_a_signal/b")
            await asyncio.sleep(0.3)
            assert await one.status() in ("running", "suspended")
            await two.signal("enough", "let go")
            assert [await handle.result() for handle in (two, one)] == ["let go", "both"]

    played(scenario)


def test_a_run_that_also_waits_for_a_signal_is_not_in_a_deadlock(url, engine_on, played):
    """Two runs wait for each other's lock, and each also for a signal: either could continue."""

    @workflow(name="beside")
    async def beside(ctx, keys: list[str]) -> str:
        async with ctx.mutex(keys[0]):
            await ctx.wait_for_signal("go")
            lock, word = (asyncio.create_task(one) for one in (both(ctx, keys[1]), ctx.wait_for_signal("enough")))
            done, _ = await asyncio.wait([lock, word], return_when=asyncio.FIRST_COMPLETED)
            lock.cancel()
            return str(done.pop().result())

    async def both(ctx, key):
        async with ctx.mutex(key):
            return "both"

    async def scenario():
        async with engine_on(url, [beside]) as engine, AsyncClient(url) as hf:
            handles = await each_inside(engine, beside, one=[*"ab"], two=[*"ba"])
            for handle in handles:
                await handle.signal("go")
            for key in "ab":
                await waits(hf, f"workflow/beside/{key}")
            await asyncio.sleep(0.3)
            await handles[0].signal("enough", "let go")
            assert [await handle.result() for handle in handles] == ["let go", "both"]

    played(scenario)


def test_a_cycle_that_appears_when_a_client_releases_is_found_by_the_sweep(url, engine_on, played, monkeypatch):
    """A client that reads blocks the writer, beside a run; when it releases, only the two runs are left, in a cycle."""
    monkeypatch.setattr(patrol, "PAGE_SECONDS", 600)  # by the sweep that is called below

    @workflow(name="reads")
    async def reads(ctx, _none: None) -> str:
        async with ctx.rwlock("doc", scope="global").read():
            await ctx.wait_for_signal("go")
            async with ctx.mutex("a", scope="global"):
                return "both"

    @workflow(name="writes")
    async def writes(ctx, _none: None) -> str:
        async with ctx.mutex("a", scope="global"):
            try:
                async with ctx.rwlock("doc", scope="global").write():
                    return "both"
            except DeadlockDetected:
                return "scenario"

    async def scenario():
        async with engine_on(url, [reads, writes]) as engine, AsyncClient(url) as hf:
            outside = await hf.rwlock("doc").read().acquire()
            reader = await engine.start(reads)
            await eventually_async(lambda: inside(hf))
            writer = await engine.start(writes)
            await waits(hf, "doc")
            await reader.signal("go")
            await waits(hf, "a")
            await asyncio.sleep(0.2)
            await outside.release()
            await asyncio.sleep(0.2)
            assert await writer.status() in ("running", "suspended")
            await engine.sweep()
            assert [await handle.result() for handle in (writer, reader)] == ["scenario", "both"]

    async def inside(hf):
        return len((await hf.locks.inspect("doc")).holders) == 2

    played(scenario)


def test_a_signal_that_is_not_awaited_does_not_hide_a_cycle(url, engine_on, played):
    pair = pairing()

    async def scenario():
        async with engine_on(url, [pair], park_after=300) as engine, AsyncClient(url) as hf:
            one, two = await each_inside(engine, pair, one=[*"ab"], two=[*"ba"])
            await two.signal("go")
            await waits(hf, "workflow/pair/a")
            await two.signal("whatever")
            await one.signal("go")
            assert [await handle.result() for handle in (two, one)] == ["scenario", "both"]

    played(scenario)


# -- through children -------------------------------------------------------------------------------------------


def inner_of(scope, lease=None):
    @workflow(name="inner")
    async def inner(ctx, key: str) -> str:
        try:
            async with ctx.mutex(key, scope=scope, lease=lease):
                return "in"
        except DeadlockDetected as error:
            return str(error)

    return inner


@pytest.mark.parametrize("lease", [None, "1 minute"])
def test_a_child_that_requests_a_lock_of_its_parent_gets_the_error(url, engine_on, played, monkeypatch, lease):
    monkeypatch.setattr(patrol, "PAGE_SECONDS", 600)  # not by the sweep
    inner = inner_of("execution", lease)

    @workflow(name="outer")
    async def outer(ctx, _none: None) -> str:
        async with ctx.mutex("a", scope="execution", lease=lease):
            return await ctx.child(inner, "a")

    async def scenario():
        async with engine_on(url, [outer, inner]) as engine:
            message = await (await engine.start(outer, id="out")).result()
        key = "'execution/out/a'"
        assert f"out holds {key} and waits for the child out/inner; out/inner waits for {key}" in message

    played(scenario)


def test_a_cycle_through_a_parked_run_without_locks_is_found(url, engine_on, played):
    """The child awaits a grandchild that requests what the outermost run holds; the child begins to await it late."""
    inner = inner_of("global")

    @workflow(name="middle")
    async def middle(ctx, _none: None) -> str:
        handle = await ctx.start_child(inner, "a", id="last")
        await ctx.wait_for_signal("go")
        return await handle.result()

    @workflow(name="outer")
    async def outer(ctx, _none: None) -> str:
        async with ctx.mutex("a", scope="global"):
            return await ctx.child(middle, id="middle")

    async def scenario():
        async with engine_on(url, [outer, middle, inner], park_after=0.05) as engine, AsyncClient(url) as hf:
            handle = await engine.start(outer)
            await waits(hf, "a")
            await engine.handle("middle").signal("go")
            assert "waits for the child last" in await handle.result()

    played(scenario)


def test_all_children_that_request_a_lock_of_their_parent_get_the_error(url, engine_on, played):
    inner = inner_of("execution")

    @workflow(name="outer")
    async def outer(ctx, _none: None) -> list[str]:
        async with ctx.mutex("a", scope="execution"):
            return await asyncio.gather(*(ctx.child(inner, "a", id=f"child-{n}") for n in range(4)))

    async def scenario():
        async with engine_on(url, [outer, inner]) as engine:
            results = await (await engine.start(outer)).result()
        assert ["waits for the child" in result for result in results] == [True] * 4

    played(scenario)


def test_a_parent_that_also_waits_for_another_child_or_a_timer_can_still_continue(url, engine_on, played):
    inner = inner_of("execution")

    @workflow(name="other")
    async def other(ctx, _none: None) -> str:
        return await ctx.wait_for_signal("go")

    @workflow(name="outer")
    async def outer(ctx, beside: str) -> str:
        async with ctx.mutex("a", scope="execution"):
            first = await ctx.start_child(inner, "a")
            second = ctx.child(other, id=f"other-{beside}") if beside == "child" else ctx.sleep(1)
            tasks = [asyncio.create_task(one) for one in (first.result(), second)]
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        return await first.result()

    async def scenario():
        async with engine_on(url, [outer, inner, other], park_after=0.05) as engine, AsyncClient(url) as hf:
            handles = {beside: await engine.start(outer, beside, id=beside) for beside in ("child", "sleep")}
            for beside in handles:
                await waits(hf, f"execution/{beside}/a")
            await asyncio.sleep(0.3)
            await engine.handle("other-child").signal("go", "it goes on")
            assert [await handle.result() for handle in handles.values()] == ["in", "in"]

    played(scenario)


def test_a_child_that_could_not_be_started_and_is_not_awaited_does_not_hide_a_cycle(
    url, engine_on, played, monkeypatch
):
    monkeypatch.setattr(patrol, "PAGE_SECONDS", 600)  # not by the sweep
    inner = inner_of("execution")

    @workflow(name="outer")
    async def outer(ctx, _none: None) -> str:
        async with ctx.mutex("a", scope="execution", lease="1 minute"):
            await ctx.start_child(inner, "a", id="taken")
            return await ctx.child(inner, "a")

    async def scenario():
        async with engine_on(url, [outer, inner]) as engine:
            await engine.start(inner, "a", id="taken")
            assert "waits for the child" in await (await engine.start(outer)).result()

    played(scenario)
