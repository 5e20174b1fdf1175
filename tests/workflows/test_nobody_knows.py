"""A run of a workflow that no living worker knows says so, wherever somebody asks for it."""

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


def test_a_result_that_does_not_come_says_that_no_worker_knows_the_workflow(url, played, engine_on):
    async def story():
        async with engine_on(url, [waiting]) as engine:
            handle = await engine.start("strange")
            with pytest.raises(RunResultTimeout, match=r"No running worker knows the workflow 'strange'.*is kept"):
                await handle.result(timeout=0.05)
            mine = await engine.start(waiting)
            with pytest.raises(RunResultTimeout, match="The run continues"):
                await mine.result(timeout=0.05)
            async with AsyncClient(url) as client:
                with pytest.raises(RunResultTimeout, match="The run continues"):
                    await client.runs.result(mine.id, timeout=0)

    played(story)


def test_a_start_says_by_an_event_that_no_worker_knows_the_workflow(url, played, engine_on):
    async def story():
        async with engine_on(url, [waiting]) as engine, AsyncClient(url) as client:
            told = []
            client.events.subscribe(lambda event: told.append((event.name, event.fields)))
            await client.runs.start("waiting")
            run = await client.runs.start("strange")
            nobody = [fields for name, fields in told if name == "no_worker_knows"]
            assert nobody == [{"run": run, "workflow": "strange"}]
            assert await engine.unclaimed() == {"strange@*": 1}

    played(story)


def test_a_client_reads_the_workers_once_for_several_starts_of_a_workflow(url, played):
    async def story():
        async with AsyncClient(url) as client:
            names = []
            client.events.subscribe(lambda event: names.append(event.name))
            for _ in range(3):
                await client.runs.start("strange")
            assert names.count("no_worker_knows") == 1

    played(story)


@pytest.fixture(params=["sqlite", "postgres"])
def joined(request, tmp_path):
    """The address of a store, and how to connect to its database."""
    if request.param == "sqlite":
        file = tmp_path / "own.db"
        return f"sqlite:///{file}", lambda: sqlite3.connect(file, isolation_level=None, check_same_thread=False)
    url = PROVIDERS["postgres"].url(tmp_path)
    return url, lambda: psycopg.connect(real_servers.shared("postgres").url, autocommit=True)


@pytest.mark.parametrize("end", ["COMMIT", "ROLLBACK"])
def test_a_start_within_a_transaction_says_too_that_no_worker_knows_the_workflow(joined, played, engine_on, end):
    url, connect = joined
    told = []

    def tell(event):
        told.append((event.name, event.fields.get("run")))

    async def story():
        async with engine_on(url, [waiting]) as engine:
            engine.events.subscribe(tell)
            with Client(url) as client, closing(connect()) as db:
                client.events.subscribe(tell)
                db.execute("BEGIN" if "postgres" in url else "BEGIN IMMEDIATE")
                client.runs.start("waiting", connection=db)
                here = client.runs.start("strange", connection=db)
                there = (await engine.start("stranger", connection=db)).id
                assert [run for name, run in told if name == "no_worker_knows"] == [here, there]
                db.execute(end)

    played(story)


@workflow
async def strange(ctx: Context) -> None:
    """No engine is given this one."""


@workflow
async def parent(ctx: Context) -> None:
    await ctx.start_child(known, id="mine")
    await ctx.start_child(strange, id="nobody's")
    await ctx.wait_for_signal("go")


def test_an_event_says_that_no_worker_knows_the_workflow_of_a_child(url, played, engine_on):
    told = []

    async def story():
        async with engine_on(url, [parent, known]) as engine:
            engine.events.subscribe(lambda event: told.append((event.name, event.fields)))
            run = await engine.start(parent)
            await eventually_async(lambda: any(name == "no_worker_knows" for name, _ in told))
            assert (await run.info()).status == "running"

    played(story)
    nobody = [fields for name, fields in told if name == "no_worker_knows"]
    assert nobody == [{"run": "nobody's", "workflow": "strange"}]
