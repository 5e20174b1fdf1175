"""A process that executes all workflows of the campaign on one store, and is killed with -9 at a named failpoint.

A second process finishes the runs. It sends every request again, since the first process may have been killed before it
sent them; all runs have an id and an idempotency key, so nothing is started twice.
"""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import suppress
from typing import Any

from holdfast import AsyncClient, Engine, WorkflowFailed
from holdfast.errors import ApprovalNotOpen, RunEnded, RunExists, RunLocked
from holdfast.runtime import failpoints
from holdfast.testing.waiting import eventually_async
from holdfast.workflow import RunHandle, StreamItem
from support.full_workflow import (
    DETAILS,
    NOTED,
    RESULT,
    STAGES,
    TURNS,
    WORKFLOWS,
    Log,
    fails_once,
    full_workflow,
    rounds,
    sleeper,
)

TTL = 0.8


def die_at(name: str, count: int, log: Log) -> None:
    """Kill this process when it reaches the failpoint for the n-th time. All failpoints that it reaches are noted."""
    counts: dict[str, int] = {}

    def reached(point: str) -> None:
        counts[point] = counts.get(point, 0) + 1
        if counts[point] == 1:
            log.note(what="reached", point=point)
        if point == name and counts[point] == count:
            log.note(what="died", point=point)
            os.kill(os.getpid(), signal.SIGKILL)

    failpoints.reached = reached


async def play(job: dict[str, Any]) -> None:
    log = Log(job["log"])
    async with Engine(
        job["url"],
        namespace=job["namespace"],
        workflows=WORKFLOWS,
        name=f"p{os.getpid()}",
        worker_ttl=TTL,
        park_after=0.05,
        grace=2,
    ) as engine:
        handle = await engine.start(full_workflow, job, id="full_workflow", idempotency_key="full_workflow")
        slept = await engine.start(sleeper, job["log"], id="sleeper", idempotency_key="sleeper")
        failed = await engine.start(fails_once, job["flag"], id="fails", idempotency_key="fails")
        reading = asyncio.create_task(read_all(handle, "stages"))
        await handle.signal("paid", {"sum": 5}, idempotency_key="paid")
        turns = await engine.start(rounds, job, id="rounds", idempotency_key="rounds")
        for turn in TURNS:
            await turns.signal("turn", turn, idempotency_key=f"turn {turn}")
        try:
            await slept.cancel()
        except RunEnded:
            raise AssertionError("a run that sleeps for an hour has ended without a cancellation") from None
        try:
            first = await failed.result(20)
        except WorkflowFailed:
            await engine.retry("fails")
            first = await failed.result(20)
        await ask_and_approve(engine, handle)
        outcome = await handle.result(20)
        assert (await engine.get("full_workflow")).details == DETAILS
        await check_streams(handle, [item.value for item in await reading])
        try:
            await slept.result(20)
            raise AssertionError("a cancelled run has completed instead")
        except WorkflowFailed as error:
            assert error.status == "cancelled", error  # noqa: PT017
        await copy_and_forget(job, engine, await turns.result(20))
        assert first == 3
        assert outcome == RESULT, outcome
    async with AsyncClient(job["url"], namespace=job["namespace"]) as hf:
        counted = await hf.state.workflow("full_workflow", "completed").get()
        assert counted == 1, f"one workflow was counted {counted} times"
        held = (await hf.locks.inspect("till")).holders
        assert not held, f"locks are held at the end: {held}"
    log.note(what="finished")


async def ask_and_approve(engine: Engine, handle: RunHandle[Any]) -> None:
    """Send an update, and answer the request that the workflow has opened before its reply, unless it has an answer."""
    assert await handle.update("ask", "ready?", idempotency_key="ask", timeout=20) == ["ready?", "answered"]
    with suppress(ApprovalNotOpen):
        await engine.approvals.answer("full_workflow", "pay", approved=True, by="ann")


async def read_all(handle: RunHandle[Any], name: str) -> list[StreamItem[Any]]:
    return [item async for item in handle.stream(name)]


async def check_streams(handle: RunHandle[Any], stages: list[Any]) -> None:
    """Workflow code has written each item once. Of each step the last attempt has written everything, in order."""
    assert stages == STAGES, stages
    last: dict[str | None, list[StreamItem[Any]]] = {}
    for item in await read_all(handle, "notes"):
        last[item.step] = [*(one for one in last.get(item.step, ()) if not item.replaces(one)), item]
    assert len(last) == NOTED, list(last)
    for step, items in last.items():
        assert [item.value[1] for item in items] == ["begin", "end"], (step, items)


async def copy_and_forget(job: dict[str, Any], engine: Engine, read: list[int]) -> None:
    """Fork a run and import it, and give up a blocked run and purge it."""
    assert read == TURNS, read
    with suppress(RunExists):
        await engine.fork("rounds", from_step="last", id="forked")
    assert await engine.handle("forked").result(20) == TURNS
    with suppress(RunExists):
        await engine.import_(await engine.export("rounds"), id="imported")
    copy = await engine.get("imported")
    assert (copy.status, copy.generation) == ("completed", len(TURNS)), copy
    async with AsyncClient(job["url"], namespace=job["namespace"]) as hf:  # an engine would check the input
        await hf.runs.start("unreadable", "no number", id="unreadable", idempotency_key="unreadable")

    async def blocked() -> bool:
        return (await engine.get("unreadable")).status in ("blocked", "failed")

    async def given_up() -> bool:
        """It is tried again at once, so that a try may be under way."""
        await eventually_async(blocked)
        with suppress(RunLocked):
            await engine.fail("unreadable", "it is no number")
        return not (await engine.get("unreadable")).living

    async def purged() -> bool:
        await engine.purge(older_than=0, workflow="unreadable")
        return not (await engine.list(workflow="unreadable")).runs

    await eventually_async(blocked)
    if (await engine.get("unreadable")).status == "blocked":
        await engine.retry("unreadable")
        with suppress(RunEnded):
            await eventually_async(given_up)
    await eventually_async(purged)


def run(job: dict[str, Any]) -> None:
    if job.get("point"):
        die_at(job["point"], job["count"], Log(job["log"]))
    asyncio.run(play(job))
