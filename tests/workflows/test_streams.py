"""Streams: what readers see of a run while it is under way, whatever happens to its workers."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from datetime import timedelta

import msgspec
import pytest
from waiting import eventually_async, until_status

from holdfast import AsyncClient, Client, Context, Engine, Retry, current_step, step, workflow
from holdfast.commands import ForceRelease
from holdfast.commands.runs import RecordRun, WriteStream
from holdfast.errors import (
    InvalidOption,
    InvalidValue,
    NotInWorkflow,
    StreamTruncated,
    StreamWriteRefused,
    UnknownRun,
    WorkflowFailed,
)
from holdfast.rules.runs.record import worker_key
from holdfast.testing import TestEngine
from holdfast.testing.faults import planned
from holdfast.workflow import step_streams, stream_writers
from holdfast.workflow.streams import StreamItem


async def all_of(engine, run="r", name="log", **options):
    return [item async for item in engine.stream(run, name, **options)]


async def values_of(engine, run="r", name="log", **options):
    return [item.value for item in await all_of(engine, run, name, **options)]


def kept(items):
    """The items that count: those that were repeated replace the earlier ones."""
    found = []
    for item in items:
        found = [one for one in found if not item.replaces(one)] + [item]
    return [item.value for item in found]


def test_what_write_returns_is_refused_as_the_result_of_a_step(played):
    @step
    def returning() -> None:
        return current_step().stream("log").write("row")

    @workflow
    async def flow(ctx: Context) -> None:
        await returning()

    async def scenario():
        async with TestEngine([flow]) as engine:
            handle = await engine.start(flow)
            with pytest.raises(WorkflowFailed, match=r"is what write\(\) of a stream has returned"):
                await handle.result(20)
            assert [item.value async for item in handle.stream("log")] == ["row"]

    played(scenario)


def test_a_reader_sees_what_code_and_steps_and_threads_write_in_order_and_ends_with_the_run(url, played, engine_on):
    async def tokens() -> None:
        for n in range(100):
            await current_step().stream("log").write(n)

    def rows() -> None:
        stream = current_step().stream("log")
        for n in range(200):
            stream.write(f"row {n}")

    @workflow
    async def talking(ctx: Context) -> str:
        await ctx.stream("log").write("begin")
        await ctx.wait_for_signal("go")
        await ctx.step("tokens", tokens)
        ctx.stream("log").write({"middle": [1, None]})
        ctx.stream("other").write("é 😀")
        await ctx.step("rows", rows)
        ctx.stream("log").write("end")
        return "done"

    expected = ["begin", *range(100), {"middle": [1, None]}, *(f"row {n}" for n in range(200)), "end"]

    async def scenario():
        async with engine_on(url, [talking], park_after=0.05) as engine:
            handle = await engine.start(talking, id="r")
            readers = [asyncio.create_task(all_of(engine)) for _ in range(3)]
            first = engine.stream("r", "log")
            assert (await anext(first)).value == "begin"
            await first.aclose()
            await handle.signal("go")
            assert await handle.result() == "done"
            for items in await asyncio.gather(*readers):
                assert [item.value for item in items] == expected
                assert [item.offset for item in items] == list(range(len(expected)))
            assert await values_of(engine, after=len(expected) - 3) == expected[-2:]
            assert await values_of(engine, name="other") == ["é 😀"]
            assert await values_of(engine, name="unknown") == []
            assert [item.value async for item in handle.stream("log", after=300)] == expected[301:]
            if not url.startswith("memory"):
                async with AsyncClient(url) as client:
                    assert [item.value async for item in client.runs.stream("r", "log", after=99)] == expected[100:]

                def read():
                    with Client(url) as client:
                        return [item.value for item in client.runs.stream("r", "log")]

                assert await asyncio.to_thread(read) == expected

    played(scenario)


def test_an_item_is_read_as_the_type_that_it_was_written_as(played):
    class Progress(msgspec.Struct, frozen=True):
        done: int
        left: timedelta

    def work() -> None:
        current_step().stream("log", type=Progress).write(Progress(1, timedelta(seconds=2)))

    @workflow
    async def working(ctx: Context) -> None:
        await ctx.step("work", work)
        ctx.stream("log", type=Progress).write(Progress(2, timedelta(0)))
        with pytest.raises(InvalidValue, match="an item of the stream 'log'"):
            ctx.stream("log").write(Progress(3, timedelta(0)))

    async def scenario():
        async with TestEngine([working]) as engine:
            await (await engine.start(working, id="r")).result()
            found = await values_of(engine, type=Progress)
            assert found == [Progress(1, timedelta(seconds=2)), Progress(2, timedelta(0))]

    played(scenario)


def test_a_replay_adds_nothing_and_encodes_nothing(tmp_path, played, engine_on, monkeypatch):
    @workflow
    async def counting(ctx: Context) -> None:
        for n in range(5):
            ctx.stream("log").write(n)
            ctx.stream("other").write(n)
            ctx.stream("other").write(n)
            await ctx.wait_for_signal("next")

    encoded = []

    async def scenario():
        url = f"sqlite:///{tmp_path}/s.db"
        async with engine_on(url, [counting], park_after=0.01) as engine:
            handle = await engine.start(counting, id="r")
            for n in range(5):
                await until_status(engine, "r", "suspended")
                monkeypatch.setattr(
                    stream_writers,
                    "encode_value",
                    lambda value, *_, **__: encoded.append(value) or msgspec.json.encode(value).decode(),
                )
                await handle.signal("next", n)
            await handle.result()
            assert await values_of(engine) == [0, 1, 2, 3, 4]
            assert await values_of(engine, name="other") == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
            assert len(encoded) == 4 * 3, "of each claim, what is new"
            history = await engine.export("r")
            notes = [text for text in history.entries if '"streamed"' in text]
            assert len(notes) <= 5 * 2, "at most one for each record and stream"

    played(scenario)


def test_what_an_attempt_wrote_is_stored_before_its_result_is_recorded_and_before_the_run_ends(tmp_path, played):
    order = []

    async def asyncs() -> int:
        stream = current_step().stream("log")
        for n in range(2_500):
            stream.write(n)
        return 1

    def thread() -> int:
        for n in range(300):
            current_step().stream("log").write(n)
        return 2

    async def forgotten() -> None:
        current_step().stream("log").write("forgotten")
        await asyncio.sleep(60)

    @workflow
    async def writing(ctx: Context) -> None:
        await ctx.step("asyncs", asyncs)
        await ctx.step("thread", thread)
        task = asyncio.ensure_future(ctx.step("forgotten", forgotten))
        await ctx.sleep(0)
        del task

    def watched(commands):
        for command in commands:
            if isinstance(command, WriteStream):
                order.extend((command.step, text) for text in command.values)
            if isinstance(command, RecordRun):
                order.extend(("entry", text) for text in command.entries)
                order.extend([("end", "")] if command.then is not None else [])

    async def scenario():
        async with Engine(f"sqlite:///{tmp_path}/s.db", workflows=[writing], max_bytes=10_000) as engine:
            handle = await engine.start(writing, id="r")
            await handle.result()
            assert len(await values_of(engine)) >= 2_800

    with planned() as plan:
        plan.before = watched
        played(scenario)
    results = [place for place, (what, text) in enumerate(order) if what == "entry" and '"step"' in text]
    assert max(place for place, (what, _) in enumerate(order) if what == "asyncs") < results[0]
    assert max(place for place, (what, _) in enumerate(order) if what == "thread") < results[1]
    assert order[-1][0] == "end"


def test_the_items_of_a_step_that_nobody_waits_for_are_stored_before_the_run_ends(tmp_path, played, engine_on):
    returned, tried = [], []

    async def forgotten() -> None:
        current_step().stream("log").write("x")
        await asyncio.sleep(60)

    @workflow
    async def forgetting(ctx: Context) -> None:
        task = asyncio.ensure_future(ctx.step("forgotten", forgotten))
        await ctx.wait_for_signal("go")
        returned.append(task)

    def count(commands):
        tried.extend(command for command in commands if isinstance(command, WriteStream) and returned)

    async def scenario(plan):
        async with engine_on(f"sqlite:///{tmp_path}/s.db", [forgetting]) as engine:
            plan.refuse, plan.before = WriteStream, count
            handle = await engine.start(forgetting, id="r")
            await eventually_async(lambda: attempts_of(engine, "r") and attempts_of(engine, "r")[0].used)
            await handle.signal("go")
            await eventually_async(lambda: len(tried) >= 2)
            plan.refuse = None
            await handle.result()
            assert await values_of(engine) == ["x"]

    with planned() as plan:
        played(scenario, plan)


def test_items_of_a_run_that_fails_with_its_record_are_discarded(tmp_path, played, engine_on):
    @workflow
    async def misusing(ctx: Context) -> None:
        ctx.stream("log").write("kept")
        await ctx.sleep(0.001)
        ctx.stream("log").write("lost")
        loop = asyncio.get_running_loop()
        threading.Thread(target=touch, args=(loop,), daemon=True).start()
        await loop.create_future()

    def touch(loop):
        with suppress(NotInWorkflow):
            loop.call_soon_threadsafe(print)

    async def scenario(plan):
        async with engine_on(f"sqlite:///{tmp_path}/s.db", [misusing]) as engine:
            plan.refuse = RecordRun
            handle = await engine.start(misusing, id="r")
            await eventually_async(lambda: engine._worker.drivers["r"].end)
            plan.refuse = None
            with pytest.raises(WorkflowFailed):
                await handle.result()
            assert await values_of(engine) == ["kept"]

    with planned() as plan:
        played(scenario, plan)


def test_lost_replies_lose_no_item_and_repeat_none(tmp_path, played, engine_on):
    async def tokens() -> None:
        stream = current_step().stream("log")
        for n in range(20):
            await stream.write(n)
            await asyncio.sleep(0.005)

    @workflow
    async def talking(ctx: Context) -> None:
        ctx.stream("log").write("begin")
        await ctx.step("tokens", tokens)
        ctx.stream("log").write("end")

    async def scenario(plan):
        async with engine_on(f"sqlite:///{tmp_path}/s.db", [talking]) as engine:
            plan.lose_reply_of = RecordRun
            handle = await engine.start(talking, id="r")
            await eventually_async(lambda: plan.lost)
            plan.lose_reply_of = WriteStream
            await handle.result()
            assert plan.lost == ["RecordRun", "WriteStream"]
            assert await values_of(engine) == ["begin", *range(20), "end"]

    with planned() as plan:
        played(scenario, plan)


def test_a_repeated_attempt_can_be_told_apart(played):
    class Broken(Exception):
        pass

    async def answer() -> str:
        words = ["It", "is", "blue"] if current_step().attempt == 3 else ["It", "was"]
        for word in words:
            await current_step().stream("log").write(word)
        if current_step().attempt < 3:
            raise Broken
        return "ok"

    def other() -> None:
        current_step().stream("log").write("other")

    @workflow
    async def talking(ctx: Context) -> None:
        await ctx.step("other", other)
        await ctx.step("answer", answer, retry=Retry(max_attempts=3, initial=1))

    async def scenario():
        async with TestEngine([talking]) as engine:
            handle = await engine.start(talking, id="r")
            await engine.advance("1 minute")
            await handle.result()
            items = await all_of(engine)
            assert [(one.step, one.attempt, one.began, one.index) for one in items] == [
                ("other", 1, 0, 0),
                *(("answer", 1, 1, n) for n in range(2)),
                *(("answer", 2, 3, n) for n in range(2)),
                *(("answer", 3, 5, n) for n in range(3)),
            ]
            assert [one.offset for one in items if one.begins] == [0, 1, 3, 5]
            assert kept(items) == ["other", "It", "is", "blue"]

    played(scenario)


def test_a_thread_that_goes_on_after_its_timeout_writes_nothing(played):
    refused, go_on = [], threading.Event()

    def slow() -> str:
        info = current_step()
        if info.attempt == 2:
            info.stream("log").write("second")
            return "ok"
        info.stream("log").write("first")
        go_on.wait(20)
        for name in ("log", "new"):
            try:
                info.stream(name).write("late")
            except StreamWriteRefused as error:
                refused.append((error.stream, error.run_id))
        return "late"

    @workflow
    async def slowly(ctx: Context) -> str:
        return await ctx.step("slow", slow, timeout=0.2, retry=Retry(max_attempts=2, initial=0))

    async def scenario():
        async with TestEngine([slowly]) as engine:
            handle = await engine.start(slowly, id="r")
            while (await handle.status()) == "running":
                await engine.advance(1)
            go_on.set()
            await eventually_async(lambda: len(refused) == 2)
            assert await handle.result() == "ok"
            assert [(one.value, one.attempt) for one in await all_of(engine)] == [("first", 1), ("second", 2)]
            assert refused == [("log", "r"), ("new", "r")]

    played(scenario)


def test_a_worker_that_lost_the_run_writes_nothing_and_the_next_one_repeats_the_step(tmp_path, played, engine_on):
    bodies, errors = [], []

    async def answer() -> str:
        bodies.append(current_step().stream("log"))
        stream = bodies[-1]
        await stream.write(f"{len(bodies)}a")
        if len(bodies) == 1:
            try:
                await asyncio.sleep(60)
            finally:
                try:
                    await stream.write("late")
                except StreamWriteRefused as error:
                    errors.append(str(error))
        await stream.write(f"{len(bodies)}b")
        return "ok"

    @workflow
    async def talking(ctx: Context) -> str:
        return await ctx.step("answer", answer)

    async def scenario():
        url = f"sqlite:///{tmp_path}/s.db"
        async with engine_on(url, [talking]) as one, engine_on(url, [talking]) as other:
            handle = await one.start(talking, id="r")
            reader = asyncio.create_task(all_of(other))
            await eventually_async(lambda: bodies)
            first = one.stream("r", "log")
            assert (await anext(first)).value == "1a"
            await first.aclose()
            await end_lease(one)
            assert await handle.result() == "ok"
            items = await reader
            assert [item.value for item in items] == ["1a", "2a", "2b"]
            assert kept(items) == ["2a", "2b"]
            await eventually_async(lambda: errors)
            assert "does not drive the run any more" in errors[0]

    played(scenario)


async def end_lease(engine):
    """Release the worker's lease by force: as if it had expired, while the process continues."""
    worker = engine._worker
    await worker.execute(ForceRelease(key=worker_key(worker.id), by="test", reason="test"))


def attempts_of(engine, run):
    """The streams of the steps that are running."""
    driver = engine._worker.drivers.get(run)
    return [] if driver is None else list(driver._steps._streams._attempts.values())


def test_a_batch_under_an_old_fence_is_refused_in_the_body(tmp_path, played, engine_on):
    async def answer() -> None:
        await asyncio.sleep(60)

    @workflow
    async def talking(ctx: Context) -> None:
        await ctx.step("answer", answer)

    async def scenario():
        async with engine_on(f"sqlite:///{tmp_path}/s.db", [talking]) as engine:
            await engine.start(talking, id="r")
            await eventually_async(lambda: engine.active_runs)
            attempt = await eventually_async(
                lambda: next(iter(engine._worker.drivers["r"]._steps._streams._attempts.values()), None)
            )
            attempt._run = msgspec.structs.replace(attempt._run, fence=1)
            writer = attempt.stream("other", None)
            writer.write("refused")
            await eventually_async(lambda: attempt._buffers["other"]._error)
            with pytest.raises(StreamWriteRefused, match="another worker drives the run"):
                writer.write("refused")
            await engine.cancel("r")

    played(scenario)


def test_workflow_code_that_is_retried_repeats_its_items_and_they_can_be_told_apart(played):
    @workflow(retry=Retry(max_attempts=2, initial=1))
    async def twice(ctx: Context) -> None:
        ctx.stream("log").write(f"begin {ctx.attempt}")
        await ctx.sleep(1)
        ctx.stream("log").write(f"end {ctx.attempt}")
        if ctx.attempt == 1:
            raise ValueError("no")

    async def scenario():
        async with TestEngine([twice]) as engine:
            handle = await engine.start(twice, id="r")
            await engine.advance("1 minute")
            await handle.result()
            items = await all_of(engine)
            assert [(item.value, item.attempt) for item in items] == [
                ("begin 1", 1), ("end 1", 1), ("begin 2", 2), ("end 2", 2),
            ]  # fmt: skip
            assert kept(items) == ["begin 2", "end 2"]

    played(scenario)


def test_a_run_that_is_retried_by_hand_goes_on_after_the_items_that_it_keeps(played):
    fails = [True, True]

    def work() -> None:
        if fails.pop():
            raise ValueError("no")

    @workflow
    async def working(ctx: Context) -> None:
        ctx.stream("log").write("begin")
        await ctx.sleep(1)
        ctx.stream("log").write("before")
        try:
            await ctx.step("work", work)
        finally:
            ctx.stream("log").write("after")

    async def scenario():
        async with TestEngine([working]) as engine:
            handle = await engine.start(working, id="r")
            await engine.advance(2)
            with pytest.raises(WorkflowFailed):
                await handle.result()
            assert await values_of(engine) == ["begin", "before", "after"]
            fails[:] = [False]
            await engine.retry("r")
            await engine.settle()
            await handle.result()
            items = await all_of(engine)
            assert [item.value for item in items] == ["begin", "before", "after", "after"]
            assert kept(items) == ["begin", "before", "after"]
            fails[:] = [False]
            await engine.restart("r")
            await engine.advance(2)
            items = await all_of(engine)
            assert [item.value for item in items][4:] == kept(items) == ["begin", "before", "after"]

    played(scenario)


def test_the_stream_of_a_fork_begins_where_the_fork_continues(played):
    @workflow
    async def working(ctx: Context) -> None:
        for n in range(3):
            ctx.stream("log").write(f"before {n}")
            await ctx.step("work", lambda: None)

    async def scenario():
        async with TestEngine([working]) as engine:
            await (await engine.start(working, id="r")).result()
            await engine.fork("r", from_step="work#2", id="fork")
            await engine.settle()
            assert await values_of(engine) == ["before 0", "before 1", "before 2"]
            forked = await values_of(engine, "fork")
            assert forked[-1] == "before 2"
            assert "before 0" not in forked

    played(scenario)


def test_all_generations_have_one_stream_and_a_run_that_replaces_another_has_its_own(played):
    @workflow
    async def chat(ctx: Context, n: int) -> None:
        ctx.stream("log").write(n)
        if n % 10:
            raise ctx.continue_as_new(n - 1)
        await ctx.wait_for_signal("end")

    async def scenario():
        async with TestEngine([chat]) as engine:
            first = await engine.start(chat, 12, id="r")
            reader = asyncio.create_task(all_of(engine))
            await first.signal("end")
            items = await reader
            assert [(item.value, item.generation) for item in items] == [(12, 1), (11, 2), (10, 3)]
            assert kept(items) == [12, 11, 10]
            await engine.start(chat, 21, id="r", on_existing="replace_ended")
            reader = asyncio.create_task(all_of(engine))
            stale = engine.stream("r~3", "log")
            assert (await anext(stale)).value == 12
            await engine.signal("r", "end")
            assert [(item.value, item.generation) for item in await reader] == [(21, 4), (20, 5)]
            await engine.settle()
            third = await engine.start(chat, 30, id="r", on_existing="replace_ended")
            assert [item.value async for item in stale] == [11, 10]
            await third.signal("end")

    played(scenario)


def test_a_reader_of_a_run_that_is_replaced_reads_that_run_to_its_end(played):
    @workflow
    async def chat(ctx: Context, n: int) -> None:
        ctx.stream("log").write(n)
        await ctx.wait_for_signal("end")
        ctx.stream("log").write(n + 1)

    async def scenario():
        async with TestEngine([chat]) as engine:
            await engine.start(chat, 1, id="r")
            reader = engine.stream("r", "log")
            assert (await anext(reader)).value == 1
            await engine.signal("r", "end")
            await engine.settle()
            again = await engine.start(chat, 5, id="r", on_existing="replace_ended")
            assert [item.value async for item in reader] == [2]
            await again.signal("end")

    played(scenario)


def test_a_purged_run_has_no_stream_and_its_readers_are_told(played):
    @workflow
    async def short(ctx: Context) -> None:
        for n in range(200):
            ctx.stream("log").write(n)

    async def scenario():
        async with TestEngine([short]) as engine:
            await (await engine.start(short, id="r")).result()
            reader = engine.stream("r", "log")
            assert (await anext(reader)).value == 0
            await engine.advance(1)
            assert (await engine.purge(older_than=0)).runs == 1
            for run in ("r", "never"):
                with pytest.raises(UnknownRun):
                    await values_of(engine, run)
            await engine.start(short, id="r")
            await engine.settle()
            assert await values_of(engine) == list(range(200))

    played(scenario)


def test_a_reader_that_is_too_slow_is_told_which_items_are_kept(played):
    @workflow
    async def long(ctx: Context) -> None:
        for n in range(500):
            ctx.stream("log").write(n)
            if n % 50 == 0:
                await ctx.step("a", lambda: None)

    async def scenario():
        async with TestEngine([long], max_stream_bytes=1_500) as engine:
            await (await engine.start(long, id="r")).result()
            with pytest.raises(StreamTruncated, match="first one that is kept") as caught:
                await values_of(engine, after=10)
            first = caught.value.first
            assert 300 < first < 500
            assert await values_of(engine, after=first - 1) == await values_of(engine) == list(range(first, 500))

    played(scenario)


def test_a_thread_waits_while_too_many_items_are_not_stored_and_a_task_where_it_awaits(
    tmp_path, played, engine_on, monkeypatch
):
    monkeypatch.setattr(step_streams, "WAITING_ITEMS", 50)
    monkeypatch.setattr(step_streams, "BATCH_ITEMS", 20)
    held, released, counts = threading.Event(), threading.Event(), {"thread": 0, "task": 0}

    def thread() -> None:
        for n in range(200):
            current_step().stream("log").write(n)
            counts["thread"] += 1

    async def task() -> None:
        for n in range(200):
            await current_step().stream("log").write(n)
            counts["task"] += 1

    @workflow
    async def both(ctx: Context) -> None:
        await asyncio.gather(ctx.step("thread", thread), ctx.step("task", task))

    def hold(commands):
        if any(isinstance(command, WriteStream) for command in commands):
            held.set()
            released.wait(20)

    async def scenario(plan):
        async with engine_on(f"sqlite:///{tmp_path}/s.db", [both]) as engine:
            plan.before = hold
            handle = await engine.start(both, id="r")
            await eventually_async(held.is_set)
            await eventually_async(lambda: min(counts.values()) >= 49)
            assert max(counts.values()) <= 50 + 20, "what is under way, and what waits"
            released.set()
            await handle.result()
            assert len(await values_of(engine)) == 400

    with planned() as plan:
        played(scenario, plan)


def test_what_follows_from_a_history_that_is_not_recorded_is_not_shown(tmp_path, played, engine_on):
    @workflow(name="order")
    async def old(ctx: Context) -> None:
        ctx.stream("log").write("old")
        await ctx.wait_for_signal("a")
        await ctx.step("a", lambda: None)
        await ctx.wait_for_signal("b")

    @workflow(name="order")
    async def new(ctx: Context) -> None:
        ctx.stream("log").write("old")
        await ctx.wait_for_signal("a")
        ctx.stream("log").write("new")
        await ctx.step("b", lambda: None)

    async def scenario():
        url = f"sqlite:///{tmp_path}/s.db"
        async with engine_on(url, [old]) as engine:
            handle = await engine.start(old, id="r")
            await handle.signal("a")
            await eventually_async(lambda: has_entries(engine, 4))
        async with engine_on(url, [new]) as engine:
            await until_status(engine, "r", "blocked")
            first = engine.stream("r", "log")
            assert (await anext(first)).value == "old"
            await first.aclose()
            await engine.fail("r", "over")
            assert await values_of(engine) == ["old"]

    played(scenario)


async def has_entries(engine, number):
    return (await engine.get("r")).entries >= number


def test_a_transaction_cannot_write_to_a_stream(tmp_path, played, engine_on):
    def save(connection) -> None:
        current_step().stream("log").write("x")

    @workflow
    async def saving(ctx: Context) -> None:
        await ctx.transaction("save", save)

    async def scenario():
        async with engine_on(f"sqlite:///{tmp_path}/s.db", [saving]) as engine:
            handle = await engine.start(saving, id="r")
            with pytest.raises(WorkflowFailed, match="is a transaction, which cannot write to a stream"):
                await handle.result()

    played(scenario)


def test_names_and_offsets_are_checked(played):
    @workflow
    async def wrong(ctx: Context) -> None:
        with pytest.raises(ValueError, match="stream name"):
            ctx.stream("")
        await ctx.step("wrong", name_of_a_step)

    def name_of_a_step() -> None:
        with pytest.raises(ValueError, match="stream name"):
            current_step().stream("")
        with pytest.raises(InvalidValue, match="an item of the stream 'log'"):
            current_step().stream("log").write(object())

    async def scenario():
        async with TestEngine([wrong]) as engine:
            await (await engine.start(wrong, id="r")).result()
            for after in (-2, True, "1", 1.5):
                with pytest.raises(InvalidOption, match="is no offset of an item"):
                    engine.stream("r", "log", after=after)
            with pytest.raises(ValueError, match="stream name"):
                engine.stream("r", "")
        with pytest.raises(InvalidOption):
            TestEngine([wrong], max_stream_bytes=0)

    played(scenario)


def test_the_items_of_a_draining_engine_are_stored(tmp_path, played, engine_on):
    begun = asyncio.Event()

    async def slow() -> str:
        for n in range(20):
            current_step().stream("log").write(n)
        begun.set()
        await asyncio.sleep(0.05)
        current_step().stream("log").write("last")
        return "ok"

    @workflow
    async def slowly(ctx: Context) -> str:
        ctx.stream("log").write("begin")
        result = await ctx.step("slow", slow)
        ctx.stream("log").write("end")
        return result

    async def scenario():
        url = f"sqlite:///{tmp_path}/s.db"
        async with engine_on(url, [slowly], grace=10) as engine:
            await engine.start(slowly, id="r")
            await begun.wait()
        async with engine_on(url, [slowly]) as engine:
            await until_status(engine, "r", "completed")
            assert await values_of(engine) == ["begin", *range(20), "last", "end"]

    played(scenario)


def test_a_sync_reader_follows_a_run_while_it_is_under_way(tmp_path, played, engine_on):
    url = f"sqlite:///{tmp_path}/s.db"
    found = []

    @workflow
    async def counting(ctx: Context) -> None:
        for n in range(3):
            ctx.stream("log").write(n)
            await ctx.wait_for_signal("next")

    def read():
        with Client(url) as client:
            for item in client.runs.stream("r", "log"):
                found.append(item.value)  # noqa: PERF401  (the test looks at it meanwhile)

    async def scenario():
        async with engine_on(url, [counting]) as engine:
            handle = await engine.start(counting, id="r")
            thread = threading.Thread(target=read, daemon=True)
            thread.start()
            for n in range(3):
                await eventually_async(lambda n=n: len(found) == n + 1)
                await handle.signal("next")
            await handle.result()
            await asyncio.to_thread(thread.join, 20)
            assert found == [0, 1, 2]

    played(scenario)


def test_an_item_replaces_those_that_were_repeated():
    def item(offset, began, index, step="s", generation=1):
        return StreamItem(
            offset=offset, value=offset, step=step, attempt=1, generation=generation, began=began, index=index
        )

    first, second, again = item(0, 0, 0), item(1, 0, 1), item(2, 2, 0)
    assert again.replaces(first)
    assert again.replaces(second)
    assert not second.replaces(first)
    assert not first.replaces(again)
    assert not item(3, 3, 0, step="t").replaces(first)
    assert not item(3, 3, 0, generation=2).replaces(first)
    cut = item(3, 0, 1, step=None)
    assert cut.replaces(item(2, 0, 2, step=None))
    assert not cut.replaces(item(0, 0, 0, step=None))


def test_a_stream_is_read_while_nothing_is_there_yet(url, played, engine_on):
    @workflow
    async def late(ctx: Context) -> None:
        await ctx.wait_for_signal("go")
        ctx.stream("log").write(1)

    async def scenario():
        async with engine_on(url, [late]) as engine:
            handle = await engine.start(late, id="r")
            reader = asyncio.create_task(all_of(engine))
            await asyncio.sleep(0)
            await handle.signal("go")
            assert [item.value for item in await reader] == [1]

    played(scenario)
