"""`ctx.updates`: requests that a run answers, once each, whatever happens between the request and the answer."""

from __future__ import annotations

import asyncio

import pytest
from waiting import eventually_async, until_status

from holdfast import AsyncClient, Client, Context, Retry, WorkflowFailed, workflow
from holdfast.errors import InvalidOption, InvalidValue, RunEnded, UnknownRun, UpdateRefused, UpdateTimeout
from holdfast.testing import TestEngine


@workflow
async def cart(ctx: Context, goal: int) -> int:
    total = 0
    async for request in ctx.updates("add", type=int):
        if request.payload < 0:
            request.refuse("a number of things cannot be negative")
            continue
        total += request.payload
        await ctx.set_details({"total": total})
        request.reply(total)
        if total >= goal:
            break
    return total


def test_a_run_answers_updates_and_refuses_others(url, played, engine_on):
    async def scenario():
        async with engine_on(url, [cart], park_after=0.05) as engine:
            handle = await engine.start(cart, 10, id="r")
            assert await handle.update("add", 3, timeout=20) == 3
            await until_status(engine, "r", "suspended")
            assert await handle.update("add", 3, idempotency_key="k", timeout=20, type=int) == 6
            assert await handle.update("add", 3, idempotency_key="k", timeout=20) == 6
            with pytest.raises(UpdateRefused, match="negative") as refused:
                await handle.update("add", -1, timeout=20)
            assert refused.value.reason == "a number of things cannot be negative"
            with pytest.raises(UpdateRefused, match="int"):
                await handle.update("add", "three", timeout=20)
            assert (await handle.info()).details == {"total": 6}
            assert await handle.update("add", 4, timeout=20) == 10
            assert await handle.result(20) == 10
            with pytest.raises(RunEnded):
                await handle.update("add", 4, timeout=20)
            assert await handle.update("add", 3, idempotency_key="k", timeout=20) == 6, "also after the end"
            with pytest.raises(UnknownRun):
                await engine.update("nobody", "add", timeout=20)

    played(scenario)


def test_the_key_of_an_update_is_refused_for_an_update_with_another_name(url, played, engine_on):
    async def scenario():
        async with engine_on(url, [cart]) as engine:
            handle = await engine.start(cart, 10, id="r")
            assert await handle.update("add", 1, idempotency_key="req-1", timeout=20) == 1
            with pytest.raises(InvalidOption, match="was used for the update 'add'"):
                await handle.update("remove", 2, idempotency_key="req-1", timeout=20)
            await handle.signal("note", 2, idempotency_key="req-1")
            assert await handle.update("add", 1, idempotency_key="req-1", timeout=20) == 1
            assert [event.name for event in (await engine.export("r")).events] == ["add", "note"]

    played(scenario)


@pytest.mark.parametrize(
    ("reason", "message"), [(7, "must be text, not int"), ("x" * 2_001, "has 2001 characters"), ("\ud800", "surrogate")]
)
def test_the_reason_of_a_refusal_is_text_of_limited_length(played, reason, message):
    @workflow
    async def strict(ctx: Context) -> str:
        async for request in ctx.updates("ask"):
            with pytest.raises(InvalidValue, match=message):
                request.refuse(reason)
            request.refuse("r" * 2_000)
            return "refused"
        raise AssertionError

    async def scenario():
        async with TestEngine([strict]) as engine:
            handle = await engine.start(strict)
            with pytest.raises(UpdateRefused, match="rrr"):
                await handle.update("ask", timeout=20)
            assert await handle.result(20) == "refused"

    played(scenario)


def test_a_payload_that_cannot_be_read_is_refused_however_long_the_reason_is(played):
    async def scenario():
        async with TestEngine([cart]) as engine:
            handle = await engine.start(cart, 10)
            with pytest.raises(UpdateRefused) as refused:
                await handle.update("add", {"k" * 50_000: 1}, timeout=20)
            assert len(refused.value.reason) <= 2_000

    played(scenario)


def test_both_clients_send_updates(played, engine_on, tmp_path):
    url = f"sqlite:///{tmp_path}/hf.db"

    async def scenario():
        async with engine_on(url, [cart]) as engine, AsyncClient(url) as other:
            await engine.start(cart, 10, id="r")
            assert await other.runs.update("r", "add", 1, timeout=20) == 1
            with Client(url) as hf:
                assert await asyncio.to_thread(hf.runs.update, "r", "add", 2, timeout=20) == 3

    played(scenario)


def test_a_caller_that_stops_to_wait_leaves_the_request_and_gets_the_answer_later(played):
    @workflow
    async def later(ctx: Context) -> None:
        await ctx.wait_for_signal("now")
        async for request in ctx.updates("ask"):
            request.reply("yes")
            return

    async def scenario():
        async with TestEngine([later]) as engine:
            handle = await engine.start(later)
            with pytest.raises(UpdateTimeout, match="idempotency_key"):
                await handle.update("ask", idempotency_key="k", timeout=0)
            await handle.signal("now")
            assert await handle.update("ask", idempotency_key="k", timeout=20) == "yes"

    played(scenario)


def test_the_end_of_a_run_is_told_to_callers_that_it_has_not_answered(played):
    @workflow
    async def silent(ctx: Context) -> None:
        async for _ in ctx.updates("ask"):
            await ctx.wait_for_signal("end")
            return

    async def scenario():
        async with TestEngine([silent]) as engine:
            handle = await engine.start(silent)
            asked = [asyncio.create_task(handle.update(name, timeout=20)) for name in ("ask", "never read")]
            await eventually_async(lambda: engine_has_events(engine, handle.id, 2))
            await handle.signal("end")
            for one in asked:
                with pytest.raises(RunEnded, match="without answering"):
                    await one

    played(scenario)


async def engine_has_events(engine, run: str, number: int) -> bool:
    return len((await engine.export(run)).events) >= number


def test_a_request_is_answered_once(played):
    @workflow
    async def twice(ctx: Context) -> None:
        async for request in ctx.updates("ask"):
            request.reply(1)
            request.reply(2)

    async def scenario():
        async with TestEngine([twice]) as engine:
            handle = await engine.start(twice)
            assert await handle.update("ask", timeout=20) == 1
            with pytest.raises(WorkflowFailed, match="answered already"):
                await handle.result(20)

    played(scenario)


@pytest.mark.parametrize("on_unread", ["keep", "continue", "fail"])
def test_an_unanswered_update_is_unread_for_a_run_that_returns(on_unread, played):
    @workflow(on_unread=on_unread)
    async def polite(ctx: Context) -> int:
        async for request in ctx.updates("ask"):
            if ctx.generation == 2:
                request.reply(ctx.generation)
            return ctx.generation
        return 0

    async def scenario():
        async with TestEngine([polite]) as engine:
            handle = await engine.start(polite)
            if on_unread == "continue":
                assert await handle.update("ask", timeout=20) == 2
                assert await handle.result(20) == 2
                return
            with pytest.raises(RunEnded):
                await handle.update("ask", timeout=20)
            assert await handle.status() == ("completed" if on_unread == "keep" else "failed")

    played(scenario)


def test_the_next_generation_receives_requests_that_were_read_and_not_answered(played):
    @workflow
    async def moving(ctx: Context) -> list:
        seen = []
        async for request in ctx.updates("ask"):
            seen.append(request.payload)
            if ctx.generation == 1:
                if len(seen) == 1:
                    request.reply("first")
                    continue
                raise ctx.continue_as_new()
            request.reply("second")
            break
        return seen

    async def scenario():
        async with TestEngine([moving]) as engine:
            handle = await engine.start(moving)
            assert await handle.update("ask", 1, timeout=20) == "first"
            assert await handle.update("ask", 2, timeout=20) == "second"
            assert await handle.result(20) == [2]
            run = await engine.get(handle.id)
            assert (run.generation, run.details) == (2, None)

    played(scenario)


def test_an_attempt_receives_the_updates_of_earlier_attempts_again_and_the_first_answer_counts(url, played, engine_on):
    @workflow(retry=Retry(max_attempts=2, initial=0))
    async def stubborn(ctx: Context) -> list:
        request = await anext(ctx.updates("ask"))
        request.reply([request.payload, ctx.attempt])
        await ctx.wait_for_signal("go")
        if ctx.attempt == 1:
            raise ConnectionError
        return [request.payload, ctx.attempt]

    async def scenario():
        async with engine_on(url, [stubborn]) as engine:
            handle = await engine.start(stubborn)
            assert await handle.update("ask", "x", timeout=20, idempotency_key="k") == ["x", 1]
            await handle.signal("go")
            assert await handle.result(20) == ["x", 2]
            assert await handle.update("ask", "x", timeout=20, idempotency_key="k") == ["x", 1]

    played(scenario)


def test_a_restarted_run_receives_the_requests_that_it_has_not_answered(played):
    @workflow
    async def forgetful(ctx: Context) -> list:
        seen = []
        async for request in ctx.updates("ask"):
            seen.append(request.payload)
            if request.payload == 1:
                request.reply("one")
                continue
            await ctx.wait_for_signal("go")
            request.reply("two")
            break
        return seen

    async def scenario():
        async with TestEngine([forgetful]) as engine:
            handle = await engine.start(forgetful)
            assert await handle.update("ask", 1, timeout=20) == "one"
            asked = asyncio.create_task(handle.update("ask", 2, timeout=20, idempotency_key="k"))
            await eventually_async(lambda: engine_has_events(engine, handle.id, 2))
            await handle.cancel()
            with pytest.raises(RunEnded):
                await asked
            await engine.restart(handle.id)
            await engine.settle()
            await handle.signal("go")
            assert await handle.update("ask", 2, timeout=20, idempotency_key="k") == "two"
            assert await handle.result(20) == [2]

    played(scenario)


def test_options_of_updates_are_checked(played):
    @workflow
    async def waiting(ctx: Context) -> None:
        await ctx.wait_for_signal("end")

    async def scenario():
        async with TestEngine([waiting]) as engine:
            handle = await engine.start(waiting)
            with pytest.raises(InvalidOption):
                await handle.update("ask", timeout=-1)
            with pytest.raises(ValueError, match="update name"):
                await handle.update("", timeout=1)

    played(scenario)
