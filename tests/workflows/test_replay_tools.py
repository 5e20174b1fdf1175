"""Histories as files, and their replay to changed code without any effect."""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from waiting import eventually_async

from holdfast import AsyncClient, Client, Context, Engine, Retry, WorkflowFailed, workflow
from holdfast.errors import InvalidOption, InvalidValue, NonDeterminismError, UnknownRun
from holdfast.testing import TestEngine, replay
from holdfast.workflow import RunHistory

executed: list[str] = []


def work(name: str) -> str:
    executed.append(name)
    return name


async def history_of(*flows, input=None, signals=(), until="5 seconds", id="r"):
    """The history of a run of the first workflow, after these signals and this time."""
    async with TestEngine(list(flows)) as engine:
        await engine.start(flows[0], input, id=id)
        await engine.settle()
        for name, payload in signals:
            await engine.signal(id, name, payload)
            await engine.settle()
        await engine.advance(until)
        return await engine.export(id)


def recorded(*flows, **options):
    return asyncio.run(history_of(*flows, **options))


@workflow(name="below")
async def below(ctx: Context, name: str) -> str:
    if name == "bad":
        raise ValueError("bad child")
    return name


@workflow(name="all", timeout="1 day", retry=Retry(max_attempts=3, initial=1, jitter=False))
async def everything(ctx: Context, name: str) -> list[str]:
    """Steps, retries of steps, locks, children, timers, signals, states, several attempts."""
    notes = ctx.state.session("notes", initial=[])
    await ctx.step("first", work, name)
    notes.update(lambda old: [*old, name])
    if ctx.attempt == 1:
        raise ValueError("not in the first attempt")
    async with ctx.mutex("lock"), ctx.semaphore("permits", permits=2):
        await ctx.state.workflow("count", initial=0).update(lambda n: n + 1)
        await ctx.set_attributes(step=1)
    with suppress(WorkflowFailed):
        await ctx.child(below, "bad")
    found = await asyncio.gather(ctx.step("left", work, "a"), ctx.child(below, "c"), ctx.sleep(2))
    with suppress(TimeoutError):
        await ctx.wait_for_signal("never", timeout=1)
    if ctx.patched("new"):
        notes.update(lambda old: [*old, str(ctx.uuid4()), str(ctx.random())])
    async with ctx.mutex("held"):
        notes.update(lambda old: [*old, ctx.now().isoformat()])
        payload = await ctx.wait_for_signal("go", type=str)
    return [*notes.get(), str(found), payload]


def test_a_run_with_everything_is_replayed_wherever_it_stands_and_at_its_end():
    async def scenario():
        async with TestEngine([everything, below]) as engine:
            handle = await engine.start(everything, "r", id="r")
            reports = []
            for _ in range(10):
                await engine.settle()
                reports.append(replay(everything, await engine.export("r")))
                await engine.advance(0.5)
            before = list(executed)
            living = replay(everything, await engine.export("r"))
            assert living.ended is None
            assert living.waits_for == ("the signal 'go'",)
            await engine.signal("r", "go", "now")
            await handle.result(timeout=20)
            ended = replay(everything, await engine.export("r"))
            assert (ended.ended, ended.waits_for) == ("completed", ())
            assert ended.entries > living.entries > 5
            assert executed == before
            return reports

    reports = asyncio.run(scenario())
    assert any("a timer until" in wait for report in reports for wait in report.waits_for)
    assert {report.ended for report in reports} == {None}


@workflow(name="order")
async def order(ctx: Context, item: str) -> str:
    await ctx.step("reserve", work, item)
    await ctx.wait_for_signal("paid")
    await ctx.step("ship", work, item)
    return "shipped"


def changed(body):
    return workflow(name="order")(body)


async def with_another_step(ctx: Context, item: str) -> str:
    await ctx.step("check", work, item)
    return await order(ctx, item)


async def with_other_arguments(ctx: Context, item: str) -> str:
    await ctx.step("reserve", work, item.upper())
    return await order(ctx, item)


async def without_a_signal(ctx: Context, item: str) -> str:
    await ctx.step("reserve", work, item)
    await ctx.sleep(5)
    return "shipped"


async def that_ends(ctx: Context, item: str) -> str:
    return "at once"


async def that_raises(ctx: Context, item: str) -> str:
    raise TypeError("release bug")


async def with_another_input(ctx: Context, item: int) -> str:
    return await order(ctx, str(item))


@pytest.mark.parametrize(
    ("body", "history", "code"),
    [
        (with_another_step, "the step 'reserve' ended", "waits for the steps ['check']"),
        (
            with_other_arguments,
            "the step 'reserve' was called with arguments",
            "waits for the same step with arguments",
        ),
        (without_a_signal, "'signal:paid' was delivered", "waits for signals []"),
        (that_ends, "the step 'reserve' ended", "has returned 'at once'"),
        (that_raises, "the step 'reserve' ended", "has ended with TypeError: release bug"),
    ],
)
def test_code_that_deviates_is_refused_with_both_sides_of_the_first_difference(body, history, code):
    past = recorded(order, input="book", signals=[("paid", True)])
    before = list(executed)
    with pytest.raises(NonDeterminismError) as caught:
        replay(changed(body), past)
    assert history in caught.value.recorded
    assert code in caught.value.found
    assert caught.value.recorded in str(caught.value)
    assert caught.value.found in str(caught.value)
    assert executed == before


def test_the_difference_of_code_that_raises_has_its_error_as_the_cause():
    with pytest.raises(NonDeterminismError) as caught:
        replay(changed(that_raises), recorded(order, input="book"))
    assert str(caught.value.__cause__) == "release bug"


def test_code_that_cannot_read_the_input_is_refused():
    with pytest.raises(InvalidValue, match="the input of the run 'r'"):
        replay(changed(with_another_input), recorded(order, input="book"))


def test_what_is_not_in_the_history_stays_waiting():
    report = replay(order, recorded(order, input="book"))
    assert msgspec.structs.asdict(report) == {
        "run_id": "r", "workflow": "order", "entries": 1, "ended": None, "waits_for": ("the signal 'paid'",),
    }  # fmt: skip


async def with_another_result(ctx: Context, item: str) -> str:
    await order(ctx, item)
    return "delivered"


async def with_a_further_step(ctx: Context, item: str) -> str:
    await order(ctx, item)
    return await ctx.step("thank", work, item)


async def that_fails_at_its_end(ctx: Context, item: str) -> str:
    await order(ctx, item)
    raise ValueError("after all")


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (with_another_result, 'returned "delivered"'),
        (with_a_further_step, "waits for the step 'thank'"),
        (that_fails_at_its_end, "failed with ValueError: after all"),
    ],
)
def test_code_that_ends_in_another_way_than_the_run_is_refused(body, code):
    past = recorded(order, input="book", signals=[("paid", True)])
    assert past.run.status == "completed"
    with pytest.raises(NonDeterminismError) as caught:
        replay(changed(body), past)
    assert (caught.value.recorded, caught.value.found) == ('the run returned "shipped"', code)


@workflow(name="fails")
async def fails(ctx: Context) -> None:
    await ctx.step("work", work, "x")
    raise LookupError("nothing there")


@workflow(name="fails")
async def repaired(ctx: Context) -> str:
    return await ctx.step("work", work, "x")


@workflow(name="fails")
async def fails_by_another_error(ctx: Context) -> None:
    await ctx.step("work", work, "x")
    raise TypeError("changed")


def test_the_end_of_a_failed_run_is_compared_by_the_type_of_its_error():
    past = recorded(fails)
    assert past.run.status == "failed"
    assert replay(fails, past).ended == "failed"
    with pytest.raises(NonDeterminismError) as caught:
        replay(repaired, past)
    assert (caught.value.recorded, caught.value.found) == (
        "the run failed with LookupError: nothing there",
        'returned "x"',
    )
    with pytest.raises(NonDeterminismError, match="the code failed with TypeError: changed"):
        replay(fails_by_another_error, past)


@workflow(name="sleeps", timeout="1 hour")
async def sleeps(ctx: Context) -> None:
    await ctx.sleep("1 day")


def test_a_run_that_failed_because_of_unread_signals_is_replayed():
    @workflow(on_unread="fail")
    async def reads(ctx: Context) -> str:
        return await ctx.wait_for_signal("n", type=str)

    history = recorded(reads, signals=[("misspelt", 1), ("n", "a")])
    assert history.run.status == "failed"
    assert replay(reads, history).ended == "failed"


def test_a_run_that_waits_for_a_step_before_it_continues_is_replayed():
    async def scenario():
        begun, go = asyncio.Event(), asyncio.Event()

        async def stubborn() -> None:
            begun.set()
            try:
                await go.wait()
            except asyncio.CancelledError:
                await go.wait()

        @workflow
        async def rounds(ctx: Context, n: int) -> int:
            if n == 1:
                slow = asyncio.create_task(ctx.step("slow", stubborn))
                await ctx.step("quick", begun.wait)
                slow.cancel()
                raise ctx.continue_as_new(2)
            return n

        async with Engine("memory://", workflows=[rounds], worker_ttl=5, grace=1) as engine:
            handle = await engine.start(rounds, 1, id="r")
            await eventually_async(lambda: recorded_quick(engine))
            assert replay(rounds, await engine.export("r")).ended == "continued"
            go.set()
            assert await handle.result(10) == 2

    async def recorded_quick(engine):
        return len((await engine.export("r")).entries) > 1

    asyncio.run(scenario())


def test_runs_that_were_cancelled_or_timed_out_are_replayed():
    async def scenario():
        async with TestEngine([sleeps]) as engine:
            for run in ("cancelled", "timed_out"):
                await engine.start(sleeps, id=run)
            await engine.settle()
            await engine.cancel("cancelled")
            await engine.advance("2 hours")
            for run in ("cancelled", "timed_out"):
                past = await engine.export(run)
                assert past.run.status == run
                assert replay(sleeps, past).ended == "cancelled"

    asyncio.run(scenario())


@workflow(name="again", retry=Retry(max_attempts=2, initial="1 hour", jitter=False))
async def again(ctx: Context, item: str) -> str:
    await ctx.step(f"attempt {ctx.attempt}", work, item)
    if ctx.attempt == 1:
        raise ValueError("not yet")
    return await ctx.wait_for_signal("go")


def test_a_run_in_the_pause_between_two_attempts_begins_the_next_one():
    past = recorded(again, input="x")
    report = replay(again, past)
    assert (report.entries, report.waits_for) == (0, ("the step 'attempt 2'",))


def test_a_run_that_was_restarted_begins_again():
    async def scenario():
        async with TestEngine([order]) as engine:
            await engine.start(order, "book", id="r")
            await engine.settle()
            await engine.cancel("r")
            await engine.settle()
            async with Engine(engine._client, workflows=[], recover=False) as other:
                await other.restart("r")
                past = await other.export("r")
            assert past.run.length == 1
            return replay(order, past)

    assert asyncio.run(scenario()).waits_for == ("the step 'reserve'",)


def test_the_replay_of_a_history_without_a_marker_takes_the_old_branch():
    @workflow(name="order")
    async def patched(ctx: Context, item: str) -> str:
        if ctx.patched("check"):
            await ctx.step("check", work, item)
        return await order(ctx, item)

    old, new = recorded(order, input="book"), recorded(patched, input="book")
    assert replay(patched, old).waits_for == replay(patched, new).waits_for == ("the signal 'paid'",)
    with pytest.raises(NonDeterminismError):
        replay(order, new)


def test_a_run_that_old_code_has_driven_and_that_recorded_nothing_takes_the_old_branch():
    @workflow(name="waits")
    async def old(ctx: Context) -> None:
        await ctx.wait_for_signal("go")

    @workflow(name="waits")
    async def new(ctx: Context) -> None:
        await ctx.wait_for_signal("new" if ctx.patched("other-signal") else "go")

    past = recorded(old)
    assert (past.run.claims, len(past.entries)) == (1, 1)
    assert replay(new, past).waits_for == ("the signal 'go'",)


def test_a_history_can_be_replayed_inside_a_task_of_another_event_loop():
    async def scenario():
        past = await history_of(order, input="book")
        task = asyncio.current_task()
        assert replay(order, past).waits_for
        assert asyncio.current_task() is task

    asyncio.run(scenario())


def test_the_history_of_another_workflow_is_refused():
    past = recorded(order, input="book")
    with pytest.raises(InvalidOption, match="a run of 'order', and not of 'fails'"):
        replay(fails, past)
    with pytest.raises(InvalidOption, match="is no workflow"):
        replay(work, past)
    with pytest.raises(InvalidOption, match="a history is a RunHistory"):
        replay(order, 7)


# -- files --------------------------------------------------------------------------------------------------


def test_a_history_is_the_same_after_it_was_written_and_read(tmp_path):
    past = recorded(everything, below, input='"é\u202e\n')
    text = past.to_json()
    assert RunHistory.from_json(text) == past
    assert json.loads(text)["format"] == 1
    path = tmp_path / "history.json"
    path.write_text(text, encoding="utf-8")
    assert replay(everything, path) == replay(everything, str(path)) == replay(everything, text)
    assert replay(everything, text.encode()) == replay(everything, past)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"format": 2, "what": "ever"}', "has the format 2, and this version of Holdfast reads the format 1"),
        ("{}", "not the history of a run"),
        ('{"format": 1}', "not the history of a run"),
        ("[1", "not the history of a run"),
        (b"\xff\xfe", "not the history of a run"),
    ],
)
def test_a_file_of_another_format_is_refused(tmp_path, text, message):
    with pytest.raises(InvalidValue, match=message):
        RunHistory.from_json(text)
    path = tmp_path / "history.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InvalidValue, match=message) as caught:
        replay(order, Path(path))
    assert str(caught.value).startswith(str(path))


def test_clients_and_engines_export_the_same_history(url, played):
    async def scenario():
        async with Engine(url, workflows=[order], park_after=0.02, grace=1) as engine:
            handle = await engine.start(order, "book", id="r")

            async def parked():
                return await handle.status() == "suspended"

            await eventually_async(parked)
            found = await engine.export("r")
            async with AsyncClient(url) as hf:
                if not url.startswith("memory"):
                    assert await hf.runs.export("r") == found
                with pytest.raises(UnknownRun):
                    await hf.runs.export("nothing")
            assert replay(order, found).waits_for == ("the signal 'paid'",)
            return found

    found = played(scenario)
    if not url.startswith("memory"):
        with Client(url) as hf:
            assert hf.runs.export("r") == found
