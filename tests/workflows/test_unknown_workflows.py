"""A run of a workflow that no worker knows is reported as such, wherever a client waits for it."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import psycopg
import pytest
import real_servers
from providers import PROVIDERS
from waiting import eventually_async

from holdfast import AsyncClient, Client, Context, workflow
from holdfast.errors import RunResultTimeout


@workflow
async def known(ctx: Context) -> str:
    return "done"


@workflow
async def waiting(ctx: Context) -> None:
    await ctx.wait_for_signal("go")


def test_a_result_timeout_says_that_no_worker_knows_the_workflow(url, played, engine_on):
    async def scenario():
        async with engine_on(url, [waiting]) as engine:
            handle = await engine.start("unknown_workflow")
            with pytest.raises(
                RunResultTimeout, match=r"No running worker knows the workflow 'unknown_workflow'.*is kept"
            ):
                await handle.result(timeout=0.05)
            mine = await engine.start(waiting)
            with pytest.raises(RunResultTimeout, match="The run continues"):
                await mine.result(timeout=0.05)
            async with AsyncClient(url) as client:
                with pytest.raises(RunResultTimeout, match="The run continues"):
                    await client.runs.result(mine.id, timeout=0)

    played(scenario)


def test_a_start_emits_an_event_if_no_worker_knows_the_workflow(url, played, engine_on):
    async def scenario():
        async with engine_on(url, [waiting]) as engine, AsyncClient(url) as client:
            notified = []
            client.events.subscribe(lambda event: notified.append((event.name, event.fields)))
            await client.runs.start("waiting")
            run = await client.runs.start("unknown_workflow")
            nobody = [fields for name, fields in notified if name == "no_worker_knows"]
            assert nobody == [{"run": run, "workflow": "unknown_workflow"}]
            assert await engine.unclaimed() == {"unknown_workflow@*": 1}

    played(scenario)


def test_a_client_reads_the_workers_once_for_several_starts_of_a_workflow(url, played):
    async def scenario():
        async with AsyncClient(url) as client:
            names = []
            client.events.subscribe(lambda event: names.append(event.name))
            for _ in range(3):
                await client.runs.start("unknown_workflow")
            assert names.count("no_worker_knows") == 1

    played(scenario)


@pytest.fixture(params=["sqlite", "postgres"])
def joined(request, tmp_path):
    """The address of a store, and how to connect to its database."""
    if request.param == "sqlite":
        file = tmp_path / "own.db"
        return f"sqlite:///{file}", lambda: sqlite3.connect(file, isolation_level=None, check_same_thread=False)
    url = PROVIDERS["postgres"].url(tmp_path)
    return url, lambda: psycopg.connect(real_servers.shared("postgres").url, autocommit=True)


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_a_start_within_a_transaction_also_emits_an_event_if_no_worker_knows_the_workflow(
    joined, played, engine_on, end
):
    url, connect = joined
    notified = []

    def note(event):
        notified.append((event.name, event.fields.get("run")))

    async def scenario():
        async with engine_on(url, [waiting]) as engine:
            engine.events.subscribe(note)
            with Client(url) as client, closing(connect()) as db:
                client.events.subscribe(note)
                db.execute("BEGIN" if "postgres" in url else "BEGIN IMMEDIATE")
                client.runs.start("waiting", connection=db)
                here = client.runs.start("unknown_workflow", connection=db)
                there = (await engine.start("unknown", connection=db)).id
                assert [run for name, run in notified if name == "no_worker_knows"] == [here, there]
                db.execute(end)

    played(scenario)


@workflow
async def unknown_workflow(ctx: Context) -> None:
    """No engine has this workflow."""


@workflow
async def parent(ctx: Context) -> None:
    await ctx.start_child(known, id="mine")
    await ctx.start_child(unknown_workflow, id="nobody's")
    await ctx.wait_for_signal("go")


def test_an_event_is_emitted_if_no_worker_knows_the_workflow_of_a_child(url, played, engine_on):
    notified = []

    async def scenario():
        async with engine_on(url, [parent, known]) as engine:
            engine.events.subscribe(lambda event: notified.append((event.name, event.fields)))
            run = await engine.start(parent)
            await eventually_async(lambda: any(name == "no_worker_knows" for name, _ in notified))
            assert (await run.info()).status == "running"

    played(scenario)
    nobody = [fields for name, fields in notified if name == "no_worker_knows"]
    assert nobody == [{"run": "nobody's", "workflow": "unknown_workflow"}]
