"""A user's writes to PostgreSQL tables, in one transaction with a run's record or its start."""

from __future__ import annotations

import asyncio
import uuid

import psycopg
import pytest
import real_servers
import sqlalchemy

from holdfast import Client, Context, StepFailed, StoreUnavailable, WorkflowFailed, current_step, workflow
from holdfast.errors import UnknownRun


@pytest.fixture
def place():
    """The address of a database, and a schema in it with a table of the user; Holdfast's tables are created there
    too."""
    server, name = real_servers.shared("postgres"), f"own_{uuid.uuid4().hex}"
    with psycopg.connect(server.url, autocommit=True) as db:
        db.execute(f"CREATE SCHEMA {name}")
        db.execute(f"CREATE TABLE {name}.payments (key text PRIMARY KEY, amount int)")
        yield server.url, name
        db.execute(f"DROP SCHEMA {name} CASCADE; DROP SCHEMA IF EXISTS {name}_hf CASCADE")


def paid(place):
    url, name = place
    with psycopg.connect(url) as db:
        return db.execute(f"SELECT key, amount FROM {name}.payments ORDER BY key").fetchall()


def paying(name):
    def pay(connection, amount: int) -> str:
        statement = f"INSERT INTO {name}.payments VALUES ('{current_step().idempotency_key}', {amount})"
        connection.execute(sqlalchemy.text(statement) if hasattr(connection, "dialect") else statement)
        if amount < 0:
            raise ValueError("nobody pays that")
        if amount == 0:
            raise StoreUnavailable("the bank is away", ambiguous=True)
        return type(connection).__module__.partition(".")[0]

    @workflow
    async def pays(ctx: Context, amount: int) -> str:
        return await ctx.transaction("pay", pay, amount)

    return pays


@pytest.mark.parametrize("driver", ["psycopg", "sqlalchemy"])
def test_writes_of_a_transaction_are_stored_with_its_record_or_not_at_all(place, played, engine_on, driver):
    url, name = place
    flow = paying(name)
    alchemy = sqlalchemy.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))

    async def scenario():
        async with engine_on(f"{url}?schema={name}_hf" if driver == "psycopg" else alchemy, [flow]) as engine:
            good = await (await engine.start(flow, 7, id=f"{name}-good")).result()
            with pytest.raises(WorkflowFailed, match="nobody pays that"):
                await (await engine.start(flow, -1, id=f"{name}-bad")).result()
            with pytest.raises(WorkflowFailed, match="the bank is away"):
                await (await engine.start(flow, 0, id=f"{name}-away")).result()
            return good

    try:
        assert played(scenario) == driver
    finally:
        alchemy.dispose()
        if driver == "sqlalchemy":
            with psycopg.connect(url, autocommit=True) as db:
                db.execute("DROP SCHEMA holdfast CASCADE")
    assert paid(place) == [(f"{name}-good:pay", 7)]


@pytest.mark.parametrize("end", ["ROLLBACK", "COMMIT"])
def test_a_function_that_ends_its_transaction_itself_fails_with_an_error_that_says_so(place, played, engine_on, end):
    url, name = place

    def pay(connection) -> None:
        connection.execute(f"INSERT INTO {name}.payments VALUES ('lost', 1)")
        connection.execute(end)

    @workflow
    async def pays(ctx: Context) -> str:
        try:
            await ctx.transaction("pay", pay)
        except StepFailed as failure:
            return f"{failure.kind}: {failure.detail}"
        return "recorded"

    async def scenario():
        async with engine_on(f"{url}?schema={name}_hf", [pays]) as engine:
            return await (await engine.start(pays, id=name)).result()

    notified = played(scenario)
    assert notified.startswith("holdfast.errors.InvalidOption: the function has ended the transaction itself"), notified
    assert paid(place) == ([] if end == "ROLLBACK" else [("lost", 1)])


def test_a_start_within_a_transaction_is_committed_with_it_or_not_at_all(place, played, engine_on):
    url, name = place
    flow = paying(name)

    async def scenario():
        async with engine_on(f"{url}?schema={name}_hf", [flow]) as engine:
            with psycopg.connect(url) as db, Client(f"{url}?schema={name}_hf") as hf:
                with pytest.raises(KeyError), db.transaction():
                    db.execute(f"INSERT INTO {name}.payments VALUES ('gone', 1)")
                    await engine.start(flow, 1, id="gone", connection=db)
                    raise KeyError
                with db.transaction():
                    db.execute(f"INSERT INTO {name}.payments VALUES ('there', 1)")
                    handle = await engine.start(flow, 2, id="there", connection=db)
                with db.transaction():
                    other = hf.runs.start("pays", 3, id="sync", connection=db)
                await handle.result(10)
                await asyncio.to_thread(hf.runs.result, other, 10)
            with pytest.raises(UnknownRun):
                await engine.get("gone")

    played(scenario)
    assert paid(place) == [("sync:pay", 3), ("there", 1), ("there:pay", 2)]
