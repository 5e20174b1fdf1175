"""`ctx.approve`: requests that people answer. The first answer counts, and one that was accepted reaches the run."""

from __future__ import annotations

import asyncio
from datetime import timedelta

import pytest
from waiting import eventually_async, until_status

from holdfast import AsyncClient, Client, Context, Retry, workflow
from holdfast.commands.runs import RecordRun
from holdfast.errors import ApprovalNotOpen, InvalidOption, InvalidValue, UnknownRun
from holdfast.testing import TestEngine
from holdfast.workflow.worker import Worker


@workflow
async def refund(ctx: Context, amount: int) -> list:
    try:
        answer = await ctx.approve("refund", {"amount": amount}, timeout="2 days")
    except TimeoutError:
        return ["too late"]
    return [answer.approved, answer.by, answer.comment]


async def opened(engine, number: int = 1) -> list:
    """The ids of the open requests, when there are so many."""
    found: list = []

    async def enough() -> bool:
        found[:] = [one.id for one in (await engine.approvals.list()).approvals]
        return len(found) >= number

    await eventually_async(enough)
    return found


def test_a_run_waits_for_the_answer_of_a_person(url, played, engine_on):
    async def scenario():
        async with engine_on(url, [refund], park_after=0.05) as engine:
            handle = await engine.start(refund, 30, id="r")
            with pytest.raises(ApprovalNotOpen, match="has not asked"):
                await engine.approvals.answer("r", "other", approved=True, by="ann")
            await until_status(engine, "r", "suspended")
            (request,) = (await engine.approvals.list()).approvals
            assert (request.run_id, request.workflow, request.id, request.data) == (
                "r",
                "refund",
                "refund",
                {"amount": 30},
            )
            assert request.until - request.asked_at > timedelta(days=1)
            await engine.approvals.answer("r", "refund", approved=True, by="ann", comment="a good customer")
            with pytest.raises(ApprovalNotOpen, match="approved by 'ann' already"):
                await engine.approvals.answer("r", "refund", approved=False, by="bob")
            assert await handle.result(20) == [True, "ann", "a good customer"]
            assert (await engine.approvals.list()).approvals == ()
            with pytest.raises(UnknownRun):
                await engine.approvals.answer("nobody", "refund", approved=True, by="ann")

    played(scenario)


@pytest.mark.parametrize(
    ("comment", "message"),
    [(7, "must be text, not int"), ("x" * 2_001, "has 2001 characters"), ("\ud800", "surrogate")],
)
def test_a_comment_is_text_of_limited_length(url, played, engine_on, comment, message):
    async def scenario():
        async with engine_on(url, [refund]) as engine:
            handle = await engine.start(refund, 30, id="r")
            await opened(engine)
            with pytest.raises(InvalidValue, match=message):
                await engine.approvals.answer("r", "refund", approved=True, by="ann", comment=comment)
            assert await opened(engine) == ["refund"]
            await engine.approvals.answer("r", "refund", approved=True, by="ann", comment=None)
            assert await handle.result(20) == [True, "ann", ""]

    played(scenario)


def test_an_answer_after_the_timeout_is_refused(played):
    async def scenario():
        async with TestEngine([refund]) as engine:
            handle = await engine.start(refund, 30)
            await engine.settle()
            await engine.advance("2 days")
            assert await handle.result(20) == ["too late"]
            with pytest.raises(ApprovalNotOpen, match="does not wait"):
                await engine.approvals.answer(handle.id, "refund", approved=True, by="ann")

    played(scenario)


def test_an_answer_that_was_accepted_before_the_timeout_was_stored_counts(played, monkeypatch):
    """The record that gives the request up is refused, and the run is driven again with the answer."""
    answering: list = []
    send = Worker.send

    async def scenario():
        async with TestEngine([refund]) as engine:

            def answer_first(worker, command, reply):
                if isinstance(command, RecordRun) and command.requests.closes and not answering:
                    answering.append(asyncio.ensure_future(accepted(worker, command, reply)))
                else:
                    send(worker, command, reply)

            async def accepted(worker, command, reply):
                await engine.approvals.answer(command.run, "refund", approved=True, by="ann")
                send(worker, command, reply)

            monkeypatch.setattr(engine._worker_type, "send", answer_first)
            handle = await engine.start(refund, 30)
            await engine.settle()
            await engine.advance("2 days")
            assert await handle.result(20) == [True, "ann", ""]
            assert answering

    played(scenario)


@workflow(retry=Retry(max_attempts=2, initial=0))
async def asks_in_each_attempt(ctx: Context) -> list:
    async def fail() -> None:
        await ctx.wait_for_signal("fail")
        raise ConnectionError(str(ctx.attempt))

    if ctx.attempt == 1:
        paid, _ = await asyncio.gather(ctx.approve("pay", {"attempt": 1}, timeout="1 hour"), fail())
        return [paid.by, "of attempt 1"]
    await ctx.wait_for_signal("ask")
    paid = await ctx.approve("pay", {"attempt": 2}, timeout="2 days")
    return [paid.by, ctx.attempt]


def test_the_requests_of_a_failed_attempt_are_closed_and_the_next_attempt_asks_anew(url, played, engine_on):
    async def scenario():
        async with engine_on(url, [asks_in_each_attempt], park_after=0.05) as engine:
            handle = await engine.start(asks_in_each_attempt, id="r")
            (first,) = await requests(engine)
            assert (first.id, first.data) == ("pay", {"attempt": 1})
            await handle.signal("fail")

            async def closed() -> bool:
                return not (await engine.approvals.list()).approvals

            await eventually_async(closed)
            with pytest.raises(ApprovalNotOpen, match="does not wait"):
                await engine.approvals.answer("r", "pay", approved=True, by="ann")
            await handle.signal("ask")
            (second,) = await requests(engine)
            assert (second.id, second.data) == ("pay", {"attempt": 2})
            assert second.until - second.asked_at > timedelta(days=1)
            await engine.approvals.answer("r", "pay", approved=True, by="bob")
            assert await handle.result(20) == ["bob", 2]

    played(scenario)


async def requests(engine) -> tuple:
    await opened(engine)
    return (await engine.approvals.list()).approvals


def test_an_answer_that_was_accepted_before_the_end_of_the_attempt_was_stored_counts(played, monkeypatch):
    """The record that ends the attempt is refused, and the run is driven again with the answer."""
    answering: list = []
    send = Worker.send

    async def scenario():
        async with TestEngine([asks_in_each_attempt]) as engine:

            def answer_first(worker, command, reply):
                if isinstance(command, RecordRun) and command.requests.closes and not answering:
                    answering.append(asyncio.ensure_future(accepted(worker, command, reply)))
                else:
                    send(worker, command, reply)

            async def accepted(worker, command, reply):
                await engine.approvals.answer(command.run, "pay", approved=True, by="ann")
                send(worker, command, reply)

            monkeypatch.setattr(engine._worker_type, "send", answer_first)
            handle = await engine.start(asks_in_each_attempt)
            await opened(engine)
            await handle.signal("fail")
            await engine.settle()
            assert answering
            await handle.signal("ask")
            assert await handle.result(20) == ["ann", 2]

    played(scenario)


def test_an_attempt_gets_the_answers_of_earlier_attempts_again(url, played, engine_on):
    @workflow(retry=Retry(max_attempts=2, initial=0))
    async def careful(ctx: Context) -> list:
        paid = await ctx.approve("pay")
        if ctx.attempt == 1:
            raise ConnectionError
        return [paid.approved, paid.by, ctx.attempt]

    async def scenario():
        async with engine_on(url, [careful]) as engine:
            handle = await engine.start(careful, id="r")
            await opened(engine)
            await engine.approvals.answer("r", "pay", approved=False, by="ann")
            assert await handle.result(20) == [False, "ann", 2]
            assert (await engine.approvals.list()).approvals == ()

    played(scenario)


def test_requests_of_one_name_are_answered_by_their_ids(played):
    @workflow
    async def twice(ctx: Context) -> list:
        both = await asyncio.gather(ctx.approve("pay"), ctx.approve("pay"))
        return [one.by for one in both]

    async def scenario():
        async with TestEngine([twice]) as engine:
            handle = await engine.start(twice)
            assert sorted(await opened(engine, 2)) == ["pay", "pay#2"]
            with pytest.raises(ApprovalNotOpen, match="pay#1"):
                await engine.approvals.answer(handle.id, "pay", approved=True, by="ann")
            await engine.approvals.answer(handle.id, "pay#2", approved=True, by="bob")
            await engine.approvals.answer(handle.id, "pay#1", approved=True, by="ann")
            assert await handle.result(20) == ["ann", "bob"]

    played(scenario)


def test_a_request_of_a_later_generation_has_an_id_of_its_own(played):
    @workflow
    async def again(ctx: Context, n: int = 1) -> str:
        answer = await ctx.approve("pay")
        if n == 1:
            raise ctx.continue_as_new(2)
        return answer.by

    async def scenario():
        async with TestEngine([again]) as engine:
            handle = await engine.start(again, 1, id="r")
            await opened(engine)
            await engine.approvals.answer("r", "pay", approved=True, by="ann")
            assert await opened(engine) == ["pay~2"]
            with pytest.raises(ApprovalNotOpen, match="several"):
                await engine.approvals.answer("r", "pay", approved=True, by="bob")
            await engine.approvals.answer("r", "pay~2", approved=True, by="bob")
            assert await handle.result(20) == "bob"

    played(scenario)


def test_a_cancelled_wait_closes_its_request(played):
    @workflow
    async def gives_up(ctx: Context) -> str:
        waiting = asyncio.create_task(ctx.approve("pay"))
        await ctx.wait_for_signal("never mind")
        waiting.cancel()
        await ctx.wait_for_signal("end")
        return "done"

    async def scenario():
        async with TestEngine([gives_up]) as engine:
            handle = await engine.start(gives_up)
            await opened(engine)
            await handle.signal("never mind")
            await engine.settle()
            assert (await engine.approvals.list()).approvals == ()
            await handle.signal("end")
            assert await handle.result(20) == "done"

    played(scenario)


@pytest.mark.parametrize("how", ["cancel", "fail"])
def test_the_requests_of_a_run_that_ends_are_closed_and_asked_again_by_a_retry(how, played, engine_on):
    async def scenario():
        async with engine_on("memory://", [refund], park_after=0.05) as engine:
            await engine.start(refund, 30, id="r")
            await until_status(engine, "r", "suspended")
            await (engine.cancel("r") if how == "cancel" else engine.fail("r", "nobody needs it"))
            await eventually_async(lambda: has_ended(engine, "r"))
            assert (await engine.approvals.list()).approvals == ()
            with pytest.raises(ApprovalNotOpen):
                await engine.approvals.answer("r", "refund", approved=True, by="ann")
            await engine.retry("r")
            assert await opened(engine) == ["refund"]
            await engine.approvals.answer("r", "refund", approved=True, by="ann")
            assert await engine.handle("r").result(20) == [True, "ann", ""]

    played(scenario)


async def has_ended(engine, run: str) -> bool:
    return not (await engine.get(run)).living


def test_a_restarted_run_asks_again(played):
    async def scenario():
        async with TestEngine([refund]) as engine:
            handle = await engine.start(refund, 30, id="r")
            await opened(engine)
            await engine.approvals.answer("r", "refund", approved=True, by="ann")
            assert await handle.result(20) == [True, "ann", ""]
            await engine.restart("r")
            await engine.settle()
            assert await opened(engine) == ["refund"]
            await engine.approvals.answer("r", "refund", approved=False, by="bob")
            assert await engine.handle("r").result(20) == [False, "bob", ""]

    played(scenario)


def test_a_fork_has_requests_of_its_own(played):
    async def nothing() -> None: ...

    @workflow
    async def careful(ctx: Context) -> str:
        await ctx.step("before", nothing)
        answer = await ctx.approve("pay")
        await ctx.step("after", nothing)
        return answer.by

    async def scenario():
        async with TestEngine([careful]) as engine:
            handle = await engine.start(careful, id="r")
            await opened(engine)
            await engine.approvals.answer("r", "pay", approved=True, by="ann")
            assert await handle.result(20) == "ann"
            await engine.fork("r", from_step="after", id="answered")
            assert await engine.handle("answered").result(20) == "ann"
            await engine.fork("r", from_step="before", id="asks")
            await engine.settle()
            (request,) = (await engine.approvals.list()).approvals
            assert request.run_id == "asks"
            await engine.approvals.answer("asks", "pay", approved=True, by="bob")
            assert await engine.handle("asks").result(20) == "bob"

    played(scenario)


def test_both_clients_list_and_answer_requests(played, engine_on, tmp_path):
    url = f"sqlite:///{tmp_path}/hf.db"

    async def scenario():
        async with engine_on(url, [refund]) as engine, AsyncClient(url) as other:
            for name in ("a1", "a2", "b1"):
                await engine.start(refund, 30, id=name)
            await opened(engine, 3)
            page = await other.approvals.list(prefix="a", limit=1)
            assert [one.run_id for one in page.approvals] == ["a1"]
            rest = await other.approvals.list(prefix="a", after=page.next)
            assert ([one.run_id for one in rest.approvals], rest.next) == (["a2"], None)
            assert (await other.approvals.list(workflow="other")).approvals == ()
            assert len((await other.approvals.list(workflow=refund)).approvals) == 3
            await other.approvals.answer("a1", "refund", approved=True, by="ann")
            with Client(url) as hf:
                await asyncio.to_thread(hf.approvals.answer, "a2", "refund", approved=False, by="bob")
                assert [one.run_id for one in hf.approvals.list().approvals] == ["b1"]
            assert await engine.handle("a2").result(20) == [False, "bob", ""]
            with pytest.raises(InvalidOption, match="approved="):
                await other.approvals.answer("b1", "refund", approved="yes", by="ann")

    played(scenario)
