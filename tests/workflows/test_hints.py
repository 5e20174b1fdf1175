"""Hints: one without names wakes every worker, and a client that waits for a result polls seldom while hints arrive."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from typing import Any

import pytest
from providers import PROVIDERS
from waiting import eventually, eventually_async

from holdfast import Client, Context, Engine, workflow
from holdfast.commands.runs import ClaimRuns, PostEvent, ReadNextDue, ReadRun, WatchRun
from holdfast.rules.runs.record import WATCHERS, RunEvent
from holdfast.runtime.flows import Wait
from holdfast.workflow import worker as worker_module
from holdfast.workflow.queries import MAX_POLL_SECONDS, RunQueries

BURST = """
import sys
from holdfast import Client
from holdfast.rules.runs.record import NewRun
from holdfast.commands.runs import StartRun

with Client(sys.argv[1]) as client:
    ids = [f"{'burst' * 10}-{n}" for n in range(400)]
    starts = [StartRun(new=NewRun(id=id, type="quick", input="null", request=id)) for id in ids]
    client.runtime.batchers["commands"].call(starts)
    print(*ids)
"""


WORD = RunEvent(kind="signal", name="word", payload='"heard"')


@workflow
async def quick(ctx: Context) -> str:
    return "done"


async def rests(engine):
    """Its worker has nothing to do and waits for a hint."""
    return bool(engine._worker._wake._waiters)


def counted(engine, monkeypatch, kind):
    """Counts what an engine sends of one kind of command."""
    sent = []
    batcher = engine._client.runtime.batchers["commands"]
    submit = batcher.submit
    monkeypatch.setattr(
        batcher, "submit", lambda command: (isinstance(command, kind) and sent.append(1), submit(command))[1]
    )
    return sent


def test_a_signal_that_arrives_while_its_run_is_claimed_is_delivered_at_once(url, played, engine_on, monkeypatch):
    """The claim does not contain it, and its hint arrives before the run has a driver."""
    monkeypatch.setattr(worker_module, "POLL_SECONDS", 3600.0)

    looked = []

    @workflow
    async def listens(ctx: Context) -> str:
        return await ctx.wait_for_signal("word")

    class Interrupted(worker_module.Worker):
        async def execute(self, command):
            outcome = await super().execute(command)
            if isinstance(command, ClaimRuns) and outcome.claims:
                self.received = asyncio.Event()
                await super().execute(PostEvent(run=outcome.claims[0].run.id, event=WORD))
                await self.received.wait()
            return outcome

        def _notified(self, runs):
            super()._notified(runs)
            if runs and not self.drivers:
                self.received.set()

        def send(self, command, answer):
            if isinstance(command, ReadRun):
                looked.append(command.run)
            super().send(command, answer)

    async def scenario():
        monkeypatch.setattr(Engine, "_worker_type", Interrupted)
        async with engine_on(url, [listens]) as engine:
            await eventually_async(lambda: rests(engine))
            with Client(url) as client:
                run = await asyncio.to_thread(client.runs.start, "listens")
                assert await engine.handle(run).result(20) == "heard"
                return run

    run = played(scenario)
    assert looked[:1] == [run]


def test_a_hint_without_names_makes_a_worker_claim_runs(url, played, engine_on, monkeypatch):
    """A notification of PostgreSQL that would be too long arrives as such a hint."""
    monkeypatch.setattr(worker_module, "POLL_SECONDS", 3600.0)

    async def scenario():
        async with engine_on(url, [quick], worker_ttl=60) as engine:
            await eventually_async(lambda: rests(engine))
            looks = counted(engine, monkeypatch, ReadNextDue)
            engine._worker._notified(None)
            await eventually_async(lambda: found(looks))

    async def found(looks):
        return bool(looks)

    played(scenario)


def test_a_burst_of_starts_is_claimed_at_once(played, engine_on, monkeypatch):
    """400 runs with long ids, started in one batch: more than a notification of PostgreSQL can name."""
    monkeypatch.setattr(worker_module, "POLL_SECONDS", 3600.0)
    url = PROVIDERS["postgres"].url(None)

    async def scenario():
        async with engine_on(url, [quick], worker_ttl=60) as engine:
            await eventually_async(lambda: rests(engine))
            program = [sys.executable, "-c", BURST, url]
            process = await asyncio.create_subprocess_exec(*program, stdout=subprocess.PIPE)  # hints cross processes
            ids = (await process.communicate())[0].decode().split()
            assert len(ids) == 400
            for id in ids:
                assert await engine.handle(id).result(timeout=20) == "done"

    played(scenario)


def waits_of(client, run, times):
    """The intervals at which a client that waits for a result polls, so many of them; no result ever arrives."""
    flow = RunQueries(client, max_bytes=1_000).result(run, Any, None)
    waits, answer = [], None
    try:
        while len(waits) < times:
            request = flow.send(answer)
            if isinstance(request, Wait):
                waits.append(request.timeout)
                answer = False
            else:
                answer = client.runtime.batchers[request.role].run(request.command)
    finally:
        flow.close()
    return waits


def test_a_client_that_waits_for_a_result_without_hints_polls_every_second():
    """As behind a connection pooler."""
    with Client(PROVIDERS["postgres"].url(None), store_options={"wakeup": "poll"}) as client:
        run = client.runs.start("waiting")
        assert waits_of(client, run, 4) == [1, 1, 1, 1]


@pytest.mark.parametrize("url", ["sqlite", "postgres", "valkey", "memory"], indirect=True)
def test_a_client_that_waits_for_a_result_with_hints_polls_seldom(url):
    with Client(url) as client:
        run = client.runs.start("waiting")
        eventually(lambda: not client.runtime.watched().polls)  # until it is subscribed it polls every second
        assert waits_of(client, run, 6) == [1, 2, 4, 8, MAX_POLL_SECONDS, MAX_POLL_SECONDS]


def test_a_client_that_waits_for_a_result_beside_too_many_others_polls_every_second():
    """A run hints a limited number of waiting clients about its end; further ones get no hint."""
    with Client("memory://") as client:
        run = client.runs.start("waiting")
        for n in range(WATCHERS):
            client.runtime.batchers["commands"].run(WatchRun(run=run, id=f"other.{n}"))
        assert waits_of(client, run, 4) == [1, 1, 1, 1]
