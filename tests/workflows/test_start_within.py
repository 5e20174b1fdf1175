"""Starts within a transaction of the caller, from async code: the event loop continues meanwhile."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing, contextmanager

import psycopg
import pytest
import real_servers
from providers import PROVIDERS
from waiting import eventually_async

from holdfast import AsyncClient, Client, Context, Engine, workflow
from holdfast.errors import InvalidOption, UnknownRun


@workflow
async def nothing(ctx: Context, _: None) -> str:
    return "done"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "app.db"
    Client(f"sqlite:///{path}").close()
    return path


def connected(file, **options):
    return closing(sqlite3.connect(file, isolation_level=None, check_same_thread=False, **options))


@pytest.fixture
def url(tmp_path):
    return PROVIDERS["postgres"].url(tmp_path)


@contextmanager
def begun():
    """A connection on which a transaction is open."""
    with psycopg.connect(real_servers.shared("postgres").url) as db:
        db.execute("SELECT 1")
        yield db


def waits_for_a_lock(connection):
    with psycopg.connect(real_servers.shared("postgres").url) as db:
        statement = "SELECT wait_event_type FROM pg_stat_activity WHERE pid = %s"
        return db.execute(statement, [connection.info.backend_pid]).fetchone() == ("Lock",)


def test_the_event_loop_runs_while_a_start_waits_for_a_lock_of_the_database(url):
    """The lock is released by the event loop itself: a start that blocked the loop would never end."""

    async def start():
        async with Engine(url, workflows=[nothing]) as engine:
            with begun() as other, begun() as mine:
                await engine.start(nothing, None, id="r", connection=other)
                asyncio.get_running_loop().call_later(0.2, other.rollback)
                handle = await engine.start(nothing, None, id="r", connection=mine)
                mine.commit()
            return await handle.result(10)

    assert asyncio.run(start()) == "done"


def test_a_cancelled_start_stops_using_the_connection_before_the_cancellation_is_raised(url):
    async def start():
        async with AsyncClient(url) as hf:
            with begun() as other, begun() as mine:
                await hf.runs.start(nothing, None, id="r", connection=other)
                starting = asyncio.create_task(hf.runs.start(nothing, None, id="r", connection=mine))
                await eventually_async(lambda: waits_for_a_lock(mine))
                starting.cancel()
                for _ in range(20):
                    await asyncio.sleep(0)
                assert not starting.done()
                other.rollback()
                with pytest.raises(asyncio.CancelledError):
                    await starting
                mine.rollback()
            with pytest.raises(UnknownRun):
                await hf.runs.get("r")

    asyncio.run(start())


def test_a_start_of_an_async_client_is_committed_with_its_transaction_or_not_at_all(file):
    async def start():
        async with AsyncClient(f"sqlite:///{file}") as hf:
            with connected(file) as db:
                for end in ("ROLLBACK", "COMMIT"):
                    db.execute("BEGIN IMMEDIATE")
                    await hf.runs.start("by name", 1, id=end, connection=db)
                    db.execute(end)
            assert (await hf.runs.get("COMMIT")).status == "pending"
            with pytest.raises(UnknownRun):
                await hf.runs.get("ROLLBACK")

    asyncio.run(start())


def test_a_connection_that_belongs_to_one_thread_is_refused_with_what_to_write(file):
    async def start():
        async with AsyncClient(f"sqlite:///{file}") as hf:
            with closing(sqlite3.connect(file, isolation_level=None)) as db:
                db.execute("BEGIN IMMEDIATE")
                with pytest.raises(InvalidOption, match="check_same_thread=False"):
                    await hf.runs.start("by name", connection=db)

    asyncio.run(start())
