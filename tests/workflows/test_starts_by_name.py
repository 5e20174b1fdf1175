"""A start by name before any engine has published the workflow emits an event, or is refused, for every kind of
client."""

from __future__ import annotations

import sqlite3
from contextlib import asynccontextmanager, closing

import psycopg
import pytest
import real_servers
from providers import PROVIDERS

from holdfast import AsyncClient, Client, Concurrency, Context, workflow
from holdfast.errors import RunExists, WorkflowDefinitionRequired


@workflow(concurrency=Concurrency(max=1, key="."))
async def limited(ctx: Context, customer: str) -> None:
    await ctx.wait_for_signal("go")


@workflow
async def plain(ctx: Context, customer: str) -> None:
    await ctx.wait_for_signal("go")


@asynccontextmanager
async def sync_client(opened, url, folder):
    del opened, folder
    with Client(url) as client:

        async def start(*given, **options):
            return client.runs.start(*given, **options)

        yield client.events, start


@asynccontextmanager
async def async_client(opened, url, folder):
    del opened, folder
    async with AsyncClient(url) as client:
        yield client.events, client.runs.start


@asynccontextmanager
async def engine(opened, url, folder):
    del url, folder

    async def start(*given, **options):
        return (await opened.start(*given, **options)).id

    yield opened.events, start


def within_transactions(way):
    """The same, each start in its own transaction; a refused start leaves the transaction unchanged."""

    @asynccontextmanager
    async def made(opened, url, folder):
        async with way(opened, url, folder) as (events, start):
            with closing(connected(url, folder)) as db:

                async def start_within(*given, **options):
                    db.execute("BEGIN IMMEDIATE" if url.startswith("sqlite") else "BEGIN")
                    try:
                        return await start(*given, **options, connection=db)
                    finally:
                        db.execute("COMMIT")

                yield events, start_within

    made.__name__ = f"{way.__name__}_within_transactions"
    return made


def connected(url, folder):
    if url.startswith("sqlite"):
        return sqlite3.connect(folder / "own.db", isolation_level=None, check_same_thread=False)
    return psycopg.connect(real_servers.shared("postgres").url, autocommit=True)


WAYS = [sync_client, async_client, engine]
JOINING = [within_transactions(way) for way in WAYS]
CASES = [(store, way) for store in ("memory", "sqlite", "postgres", "valkey") for way in WAYS]
CASES += [(store, way) for store in ("sqlite", "postgres") for way in JOINING]


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0]}-{case[1].__name__}")
def starting(request, tmp_path, engine_on):
    """An engine without workflows, the events of the starting client, a function that starts runs, and the store's
    address."""
    store, way = request.param
    url = f"sqlite:///{tmp_path / 'own.db'}" if store == "sqlite" else PROVIDERS[store].url(tmp_path)

    @asynccontextmanager
    async def made():
        async with engine_on(url, []) as opened, way(opened, url, tmp_path) as (events, start):
            notified = []
            events.subscribe(lambda event: notified.append((event.name, event.fields)))
            yield opened, notified, start

    return url, made


def test_a_start_by_name_before_any_engine_emits_an_event_or_is_refused(starting, played, engine_on):
    url, made = starting

    async def scenario():
        async with made() as (opened, notified, start):
            with pytest.raises(WorkflowDefinitionRequired, match="Nothing was started"):
                await start("limited", "ann", require_definition=True)
            assert (await opened.list()).runs == ()
            assert "definition_unknown" not in [name for name, _ in notified]
            for name in ("limited", "plain"):
                run = await start(name, "ann")
                assert ("definition_unknown", {"run": run, "workflow": name}) in notified
            async with engine_on(url, [limited, plain]):
                notified.clear()
                for name in ("limited", "plain"):
                    run = await start(name, "bob", require_definition=True)
                    assert (await opened.get(run)).workflow == name
            assert "definition_unknown" not in [name for name, _ in notified]

    played(scenario)


def test_the_event_about_an_unknown_definition_is_emitted_only_for_a_new_run(starting, played):
    _, made = starting

    async def scenario():
        async with made() as (_, notified, start):
            run = await start("limited", "ann", idempotency_key="once")
            assert await start("limited", "ann", id="another", idempotency_key="once") == run
            with pytest.raises(RunExists):
                await start("limited", "bob", id=run)
            unknown = [fields for name, fields in notified if name == "definition_unknown"]
            assert unknown == [{"run": run, "workflow": "limited"}]

    played(scenario)
