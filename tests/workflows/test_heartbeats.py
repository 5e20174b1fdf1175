"""Heartbeats of steps: how a long step shows that it works, and what the next attempt finds."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress
from datetime import timedelta

import msgspec
import pytest
from waiting import eventually_async, until_status

from holdfast import Context, Retry, current_step, step, workflow
from holdfast.commands import ForceRelease
from holdfast.commands.runs import ReadRun, RecordHeartbeat, RecordRun
from holdfast.errors import AttemptEnded, InvalidOption, InvalidValue, WorkflowFailed
from holdfast.rules.runs.heartbeat_records import StepHeartbeat
from holdfast.rules.runs.record import worker_key
from holdfast.testing import TestEngine
from holdfast.testing.faults import planned
from holdfast.workflow.step_heartbeats import MAX_DETAILS
from holdfast.workflow.step_runner import StepRunner

SOON = Retry(max_attempts=3, initial=0.001)


async def record_of(engine, run="r"):
    """The record of a run in the store."""
    seen = await engine._worker.execute(ReadRun(run=run))
    return seen.claim.run


async def end_lease(engine):
    """Release the worker's lease by force: as if it had expired, while the process continues."""
    worker = engine._worker
    await worker.execute(ForceRelease(key=worker_key(worker.id), by="test", reason="test"))


@pytest.mark.parametrize("sync", [True, False])
def test_the_next_attempt_has_the_details_of_the_last_heartbeat(url, played, engine_on, sync):
    seen = []

    def work() -> str:
        info = current_step()
        seen.append(info.heartbeat_details)
        for page in range(100):
            info.heartbeat({"page": page, "attempt": info.attempt})
            info.heartbeat()
        if info.attempt < 3:
            raise ConnectionError("lost")
        return "done"

    async def work_async() -> str:
        return work()

    @workflow
    async def importing(ctx: Context) -> str:
        return await ctx.step("work", work if sync else work_async, retry=SOON)

    async def scenario():
        async with engine_on(url, [importing]) as engine:
            handle = await engine.start(importing, id="r")
            assert await handle.result() == "done"
            assert seen == [None, {"page": 99, "attempt": 1}, {"page": 99, "attempt": 2}]
            found = await record_of(engine)
            assert (found.heartbeats, found.due_at) == ((), None)

    played(scenario)


def test_another_process_has_the_details_after_a_crash(url, played, engine_on):
    if url.startswith("memory"):
        pytest.skip("the store of one process")
    seen = []

    async def work() -> str:
        seen.append(current_step().heartbeat_details)
        current_step().heartbeat([1, None])
        if len(seen) == 1:
            await asyncio.sleep(60)
        return "done"

    @workflow
    async def importing(ctx: Context) -> str:
        return await ctx.step("work", work)

    async def scenario():
        async with engine_on(url, [importing]) as one, engine_on(url, [importing]) as other:
            handle = await one.start(importing, id="r")

            async def stored():
                return [(beat.details, beat.expires_at) for beat in (await record_of(other)).heartbeats]

            while await stored() != [("[1,null]", None)]:
                await asyncio.sleep(0.01)
            await end_lease(one)
            assert await handle.result() == "done"
            assert seen == [None, [1, None]]
            assert await stored() == []

    played(scenario)


@pytest.mark.parametrize("sync", [True, False])
def test_an_attempt_without_a_heartbeat_fails_as_a_timeout_and_is_retried(url, played, engine_on, sync):
    attempts, errors, go_on = [], [], threading.Event()

    async def silent() -> str:
        info = current_step()
        attempts.append(info.attempt)
        info.heartbeat("begun")
        if info.attempt == 1:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                with suppress(AttemptEnded):
                    info.heartbeat()
                raise
        return info.heartbeat_details

    def silent_thread() -> str:
        info = current_step()
        attempts.append(info.attempt)
        info.heartbeat("begun")
        if info.attempt == 1:
            go_on.wait(20)
            try:
                info.heartbeat("late")
            except AttemptEnded as error:
                errors.append(error)
            return "late"
        return info.heartbeat_details

    @workflow
    async def flow(ctx: Context) -> str:
        return await ctx.step("silent", silent_thread if sync else silent, heartbeat_timeout=0.3, retry=SOON)

    async def scenario():
        async with engine_on(url, [flow]) as engine:
            handle = await engine.start(flow, id="r")
            assert await handle.result() == "begun"
            go_on.set()
            assert attempts == [1, 2]
            run = await record_of(engine)
            assert (run.crashes, run.claims) == (0, 1), "nobody else was needed"
            if sync:
                await eventually_async(lambda: errors)
                assert (errors[0].run_id, errors[0].step) == ("r", "silent")

    played(scenario)


def test_the_error_of_a_silent_step_names_the_heartbeat(played, tmp_path, engine_on):
    async def silent() -> None:
        await asyncio.sleep(60)

    @workflow
    async def flow(ctx: Context) -> str:
        try:
            await ctx.step("silent", silent, heartbeat_timeout=0.1)
        except TimeoutError as error:
            return f"{error.kind}: {error}"
        return ""

    async def scenario():
        async with engine_on(f"sqlite:///{tmp_path}/s.db", [flow]) as engine:
            text = await (await engine.start(flow, id="r")).result()
            assert text.startswith("holdfast.errors.StepTimeout: ")
            assert "the step 'silent' sent no heartbeat for 0.1 s (heartbeat_timeout)" in text

    played(scenario)


@pytest.mark.parametrize("sync", [True, False])
def test_a_step_that_sends_heartbeats_goes_on_for_many_timeouts(url, played, engine_on, sync):
    events = []

    async def working() -> int:
        for n in range(20):
            current_step().heartbeat(n)
            await asyncio.sleep(0.1)
        return current_step().attempt

    def working_thread() -> int:
        for n in range(20):
            current_step().heartbeat(n)
            time.sleep(0.1)
        return current_step().attempt

    @step(heartbeat_timeout="400 ms")
    async def by_itself() -> int:
        return await working()

    @step(heartbeat_timeout="400 ms")
    def by_itself_thread() -> int:
        return working_thread()

    @workflow
    async def flow(ctx: Context) -> int:
        return await (by_itself_thread() if sync else by_itself())

    async def scenario():
        async with engine_on(url, [flow]) as one:
            one.events.subscribe(lambda event: events.append(event.name))
            others = () if url.startswith("memory") else (engine_on(url, [flow]),)
            for other in others:
                await other.__aenter__()
                other.events.subscribe(lambda event: events.append(event.name))
            handle = await one.start(flow, id="r")
            assert await handle.result() == 1
            run = await record_of(one)
            assert (run.claims, run.crashes) == (1, 0)
            assert not {"heartbeat_missed", "run_refused"} & set(events)
            for other in others:
                await other.__aexit__(None, None, None)

    played(scenario)


def test_a_step_with_a_heartbeat_timeout_begins_when_its_first_heartbeat_is_stored(tmp_path, played, engine_on):
    begun, tried = [], []

    async def work() -> None:
        begun.append(await record_of(current, "r"))

    @workflow
    async def flow(ctx: Context) -> None:
        await ctx.step("work", work, heartbeat_timeout=60)

    current = None

    async def scenario(plan):
        nonlocal current
        async with engine_on(f"sqlite:///{tmp_path}/s.db", [flow]) as current:
            plan.refuse = RecordHeartbeat
            plan.before = lambda commands: tried.extend(one for one in commands if isinstance(one, RecordHeartbeat))
            handle = await current.start(flow, id="r")
            await eventually_async(lambda: len(tried) >= 2)
            assert not begun
            plan.refuse = None
            await handle.result()
            (run,) = begun
            (beat,) = run.heartbeats
            assert (beat.step, beat.attempt, beat.details) == ("work", 1, None)
            assert 60_000_000 <= beat.expires_at - beat.at <= 61_000_000
            assert run.due_at == beat.expires_at

    with planned() as plan:
        played(scenario, plan)


def test_few_heartbeats_are_sent_however_often_a_body_calls(tmp_path, played, engine_on):
    sent, calls = [], []

    def work() -> None:
        until = time.monotonic() + 1
        while time.monotonic() < until:
            calls.append(current_step().heartbeat(len(calls)))

    @workflow
    async def flow(ctx: Context) -> None:
        await ctx.step("work", work, heartbeat_timeout=2)
        await ctx.step("unwatched", work)

    def watched(commands):
        sent.extend(command for command in commands if isinstance(command, RecordHeartbeat))

    async def scenario():
        async with engine_on(f"sqlite:///{tmp_path}/s.db", [flow]) as engine:
            await (await engine.start(flow, id="r")).result()

    with planned() as plan:
        plan.before = watched
        played(scenario)
    assert len(calls) > 1_000
    assert 2 <= sum(command.step == "work" for command in sent) <= 5
    assert [command.lasts for command in sent if command.step == "unwatched"] == [None]


def test_a_heartbeat_that_was_not_sent_yet_is_stored_before_the_failure_and_not_before_a_result(
    tmp_path, played, engine_on
):
    order = []

    async def work() -> None:
        for n in range(3):
            current_step().heartbeat(n)
            await asyncio.sleep(0.02)
        if current_step().attempt == 1:
            raise ConnectionError

    @workflow
    async def flow(ctx: Context) -> None:
        await ctx.step("work", work, heartbeat_timeout=60, retry=SOON)

    def watched(commands):
        for command in commands:
            if isinstance(command, RecordHeartbeat):
                order.append((command.attempt, command.details))
            elif isinstance(command, RecordRun) and command.attempt_ends:
                order.append([(end.step, end.again) for end in command.attempt_ends])

    async def scenario():
        async with engine_on(f"sqlite:///{tmp_path}/s.db", [flow]) as engine:
            await (await engine.start(flow, id="r")).result()

    with planned() as plan:
        plan.before = watched
        played(scenario)
    assert order == [(1, None), (1, "2"), [("work", True)], (2, None), [("work", False)]]


def test_a_heartbeat_whose_reply_is_lost_is_sent_again(tmp_path, played, engine_on):
    async def work() -> int:
        current_step().heartbeat(7)
        await asyncio.sleep(0.05)
        if current_step().attempt == 1:
            raise ConnectionError
        return current_step().heartbeat_details

    @workflow
    async def flow(ctx: Context) -> int:
        return await ctx.step("work", work, heartbeat_timeout=5, retry=SOON)

    async def scenario(plan):
        async with engine_on(f"sqlite:///{tmp_path}/s.db", [flow]) as engine:
            plan.lose_reply_of = RecordHeartbeat
            assert await (await engine.start(flow, id="r")).result() == 7
            assert "RecordHeartbeat" in plan.lost
            assert (await record_of(engine)).heartbeats == ()

    with planned() as plan:
        played(scenario, plan)


def test_a_step_that_the_code_does_not_wait_for_any_more_leaves_no_heartbeat(url, played, engine_on):
    async def endless() -> None:
        while True:
            current_step().heartbeat("x")
            await asyncio.sleep(0.02)

    @workflow
    async def flow(ctx: Context) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(0.3):
                await ctx.step("endless", endless, heartbeat_timeout=30)
        await ctx.wait_for_signal("go")

    async def scenario():
        async with engine_on(url, [flow]) as engine:
            handle = await engine.start(flow, id="r")

            async def record():
                return await record_of(engine)

            while not (await record()).heartbeats:
                await asyncio.sleep(0.01)
            while (await record()).heartbeats:
                await asyncio.sleep(0.01)
            assert (await record()).due_at is None
            await handle.signal("go")
            await handle.result()

    played(scenario)


def test_a_step_that_the_code_gave_up_between_two_attempts_leaves_no_heartbeat(url, played, engine_on):
    async def failing() -> None:
        current_step().heartbeat("x")
        raise ConnectionError

    @workflow
    async def flow(ctx: Context) -> None:
        later = Retry(max_attempts=3, initial=3600, max_delay=3600)
        task = asyncio.ensure_future(ctx.step("failing", failing, retry=later, heartbeat_timeout=30))
        await ctx.wait_for_signal("give up")
        task.cancel()
        await ctx.wait_for_signal("go")

    async def scenario():
        async with engine_on(url, [flow]) as engine:
            handle = await engine.start(flow, id="r")
            while [beat.expires_at for beat in (await record_of(engine)).heartbeats] != [None]:
                await asyncio.sleep(0.01)
            await handle.signal("give up")
            while (await record_of(engine)).heartbeats:
                await asyncio.sleep(0.01)
            await handle.signal("go")
            await handle.result()

    played(scenario)


def test_an_attempt_that_ends_when_its_first_heartbeat_is_stored_ends_once(tmp_path, played, engine_on, monkeypatch):
    ended, bodies = [], []
    report = StepRunner._stored

    def counted(runner, call, *args):
        ended.append((call.id, call.attempts))
        report(runner, call, *args)

    monkeypatch.setattr(StepRunner, "_stored", counted)

    @workflow
    async def flow(ctx: Context) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(0.1):
                await ctx.step("work", bodies.append, 1, heartbeat_timeout=30)
        await ctx.wait_for_signal("go")

    async def scenario(plan):
        async with engine_on(f"sqlite:///{tmp_path}/s.db", [flow]) as engine:
            plan.refuse = RecordHeartbeat
            handle = await engine.start(flow, id="r")
            while "timer" not in [entry.kind for entry in await engine.history("r")]:
                await asyncio.sleep(0.01)
            plan.refuse = None
            await eventually_async(lambda: ended)
            await handle.signal("go")
            await handle.result()
            assert (ended, bodies) == ([("work", 1)], [])
            assert (await record_of(engine)).heartbeats == ()

    with planned() as plan:
        played(scenario, plan)


def test_a_workflow_that_begins_again_has_no_details_of_its_earlier_attempt(tmp_path, played, engine_on):
    seen = []

    async def work() -> None:
        seen.append(current_step().heartbeat_details)
        current_step().heartbeat("x")
        await asyncio.sleep(0.05)
        if len(seen) < 4:
            raise ConnectionError

    @workflow(retry=Retry(max_attempts=2, initial=0.001))
    async def flow(ctx: Context) -> None:
        await ctx.step("work", work, retry=Retry(max_attempts=2, initial=0.001), heartbeat_timeout=30)

    async def scenario():
        async with engine_on(f"sqlite:///{tmp_path}/s.db", [flow]) as engine:
            await (await engine.start(flow, id="r")).result()
            assert seen == [None, "x", None, "x"]

    played(scenario)


def test_a_workflow_that_begins_again_beside_a_running_step_leaves_no_heartbeat_that_expires(
    tmp_path, played, engine_on
):
    async def endless() -> None:
        current_step().heartbeat("x")
        await asyncio.sleep(60)

    @workflow(retry=Retry(max_attempts=2, initial=0.001))
    async def flow(ctx: Context) -> None:
        if ctx.attempt == 1:
            task = asyncio.ensure_future(ctx.step("endless", endless, heartbeat_timeout=30))
            await ctx.wait_for_signal("go")
            assert not task.done()
            raise ConnectionError
        await ctx.wait_for_signal("end")

    async def scenario():
        async with engine_on(f"sqlite:///{tmp_path}/s.db", [flow]) as engine:
            handle = await engine.start(flow, id="r")
            while not (await record_of(engine)).heartbeats:
                await asyncio.sleep(0.01)
            await handle.signal("go")
            while (await record_of(engine)).heartbeats:
                await asyncio.sleep(0.01)
            await handle.signal("end")
            await handle.result()
            assert (await record_of(engine)).claims <= 2

    played(scenario)


def test_a_worker_that_drives_its_run_again_keeps_the_heartbeat_of_the_new_attempt(url, played, engine_on):
    bodies, last = [], asyncio.Event()

    async def work() -> None:
        bodies.append(current_step().attempt)
        await last.wait()

    @workflow
    async def flow(ctx: Context) -> None:
        await ctx.step("work", work, heartbeat_timeout=60)

    async def scenario():
        async with engine_on(url, [flow]) as engine:
            handle = await engine.start(flow, id="r")
            await eventually_async(lambda: bodies)
            engine._worker.drivers["r"].leave("outdated")
            await eventually_async(lambda: len(bodies) == 2)
            driver = engine._worker.drivers["r"]
            await eventually_async(lambda: driver._recorder.under_way is None and not driver._recorder.has_content)
            run = await record_of(engine)
            assert [beat.expires_at for beat in run.heartbeats] == [run.due_at]
            assert run.due_at is not None
            last.set()
            await handle.result()
            assert bodies == [1, 1]
            assert (await record_of(engine)).heartbeats == ()

    played(scenario)


def test_a_process_whose_loop_is_blocked_loses_the_run_and_its_result(tmp_path, played, engine_on):
    """Two engines in two threads, because a blocked event loop must not be that of the test."""
    url, bodies, events, engines = f"sqlite:///{tmp_path}/s.db", [], [], []
    blocked = threading.Event()

    async def hanging() -> str:
        bodies.append((current_step().attempt, current_step().heartbeat_details))
        place = len(bodies)
        current_step().heartbeat(f"page {place}")
        if place == 1:
            while (await record_of(engines[0])).heartbeats[0].details is None:
                await asyncio.sleep(0.01)
            blocked.wait(20)  # this blocks the event loop
        return f"by {place}"

    @workflow
    async def flow(ctx: Context) -> str:
        return await ctx.step("hanging", hanging, heartbeat_timeout=0.5)

    first_started, stop = threading.Event(), threading.Event()

    def first():
        async def run():
            async with engine_on(url, [flow], worker_ttl=60, name="first") as engine:
                engines.append(engine)
                await engine.start(flow, id="r")
                first_started.set()
                await asyncio.to_thread(stop.wait, 30)

        asyncio.run(run())

    async def scenario():
        thread = threading.Thread(target=first)
        thread.start()
        await asyncio.to_thread(first_started.wait, 20)
        await eventually_async(lambda: bodies)
        try:
            async with engine_on(url, [flow], worker_ttl=60, name="second") as second:
                second.events.subscribe(lambda event: events.append((event.name, event.fields)))
                await until_status(second, "r", "completed")
                assert bodies == [(1, None), (1, "page 1")]
                run = await record_of(second)
                assert (run.claims, run.heartbeats) == (2, ())
                missed = [fields for name, fields in events if name == "heartbeat_missed"]
                assert missed == [{"run": "r", "workflow": "flow", "step": "hanging", "worker": "first"}]
                blocked.set()
                await eventually_async(lambda: not engines[0].active_runs)
                assert (await second.get("r")).result == "by 2"
        finally:
            blocked.set()
            stop.set()
            await asyncio.to_thread(thread.join, 20)

    played(scenario)


def test_details_are_bounded_and_may_be_of_any_type_that_is_given(tmp_path, played, engine_on):
    class Progress(msgspec.Struct):
        page: int
        took: timedelta

    def work() -> None:
        info = current_step()
        if info.attempt == 2:
            assert msgspec.convert(info.heartbeat_details, Progress) == Progress(3, timedelta(seconds=1))
            return
        with pytest.raises(InvalidValue, match=r"heartbeat of the step 'work'.*type="):
            info.heartbeat(Progress(1, timedelta(0)))
        with pytest.raises(InvalidValue, match="heartbeat of the step 'work'"):
            info.heartbeat("x" * MAX_DETAILS)
        info.heartbeat("x" * (MAX_DETAILS - 2))
        info.heartbeat(Progress(3, timedelta(seconds=1)), type=Progress)
        raise ConnectionError

    @workflow
    async def flow(ctx: Context) -> None:
        await ctx.step("work", work, retry=SOON)

    async def scenario():
        async with engine_on(f"sqlite:///{tmp_path}/s.db", [flow]) as engine:
            await (await engine.start(flow, id="r")).result()

    played(scenario)


def test_a_transaction_sends_no_heartbeats(tmp_path, played, engine_on):
    def work(_) -> None:
        assert current_step().heartbeat_details is None
        current_step().heartbeat()

    @workflow
    async def flow(ctx: Context) -> None:
        await ctx.transaction("work", work)

    async def scenario():
        async with engine_on(f"sqlite:///{tmp_path}/s.db", [flow]) as engine:
            with pytest.raises(WorkflowFailed, match="is a transaction, which sends no heartbeats"):
                await (await engine.start(flow, id="r")).result()

    played(scenario)


def test_outside_a_run_a_step_is_called_as_before_and_has_no_heartbeat():
    @step(heartbeat_timeout=5)
    def plain() -> str:
        with pytest.raises(InvalidOption, match=r"there is no step here"):
            current_step()
        return "called"

    assert plain() == "called"


@pytest.mark.parametrize("given", [0, 0.05, -1])
def test_a_heartbeat_timeout_that_is_too_short_is_refused(given):
    with pytest.raises((InvalidOption, ValueError)):
        step(heartbeat_timeout=given)(lambda: None)


def test_the_engine_for_tests_runs_steps_with_heartbeats(played):
    seen = []

    @step(heartbeat_timeout="30 seconds", retry=Retry(max_attempts=2, initial=5))
    async def work() -> str:
        seen.append(current_step().heartbeat_details)
        current_step().heartbeat(len(seen))
        if len(seen) == 1:
            raise ConnectionError
        return "done"

    @workflow
    async def flow(_: Context) -> str:
        return await work()

    async def scenario():
        async with TestEngine([flow]) as engine:
            handle = await engine.start(flow, id="r")
            await engine.advance(10)
            assert await handle.result() == "done"
            assert seen == [None, 1]

    played(scenario)


def test_a_parked_run_keeps_the_details_for_the_next_attempt(tmp_path, played, engine_on):
    seen = []

    async def work() -> str:
        seen.append(current_step().heartbeat_details)
        current_step().heartbeat("page 1")
        if len(seen) == 1:
            raise ConnectionError
        return "done"

    @workflow
    async def flow(ctx: Context) -> str:
        return await ctx.step(
            "work", work, retry=Retry(max_attempts=2, initial=0.5, jitter=False), heartbeat_timeout=30
        )

    async def scenario():
        async with engine_on(f"sqlite:///{tmp_path}/s.db", [flow], park_after=0.01) as engine:
            handle = await engine.start(flow, id="r")
            await until_status(engine, "r", "suspended")
            (beat,) = (await record_of(engine)).heartbeats
            assert (beat.attempt, beat.expires_at, beat.details) == (1, None, '"page 1"')
            assert isinstance(beat, StepHeartbeat)
            assert await handle.result() == "done"
            assert seen == [None, "page 1"]

    played(scenario)
