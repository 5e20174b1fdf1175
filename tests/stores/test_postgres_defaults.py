"""Roles and databases on PostgreSQL whose transactions are, by default, not what Holdfast needs."""

from __future__ import annotations

import asyncio
from itertools import count
from urllib.parse import quote

import psycopg
import psycopg_pool
import pytest
import real_servers
from psycopg import sql
from run_lifecycle import assert_that_runs_can_be_driven

from holdfast import Client, Context, Engine, workflow
from holdfast import commands as c
from holdfast.commands import runs as r
from holdfast.errors import StoreContended, StoreUnusable
from holdfast.rules.runs.outcomes import RunSeen, Started
from holdfast.rules.runs.record import NewRun, RunEvent

_names = count(1)
DEFAULTS = {
    "serializable": ("default_transaction_isolation", "serializable"),
    "repeatable_read": ("default_transaction_isolation", "repeatable read"),
    "read_only": ("default_transaction_read_only", "on"),
}


@pytest.fixture
def server():
    return real_servers.shared("postgres")


@pytest.fixture
def admin(server):
    with psycopg.connect(server.url, autocommit=True) as db:
        yield db


@pytest.fixture(params=["role", "database"])
def altered(request, server, admin):
    """Gives a role or a database another default; returns the address of a store with it."""
    name = f"other defaults {next(_names)}"
    here = sql.Identifier(name)
    admin.execute(sql.SQL("CREATE ROLE {} LOGIN PASSWORD 'secret'").format(here))
    admin.execute(sql.SQL("CREATE DATABASE {0} OWNER {0}").format(here))

    def alter(setting, value):
        what = {"role": "ROLE", "database": "DATABASE"}[request.param]
        statement = sql.SQL(f"ALTER {what} {{}} SET {{}} = {{}}").format(here, sql.Identifier(setting), value)
        admin.execute(statement)
        return f"postgresql://{quote(name)}:secret@127.0.0.1:{server.port}/{quote(name)}"

    yield alter
    admin.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(here))
    admin.execute(sql.SQL("DROP ROLE {}").format(here))


@pytest.mark.parametrize("default", DEFAULTS.values(), ids=DEFAULTS)
def test_a_role_or_database_with_another_default_can_do_everything(altered, default, opened):
    url = altered(*default)
    with psycopg.connect(url) as db:
        assert db.execute(f"SHOW {default[0]}").fetchone() == (default[1],)
    connection = opened(url).connect()
    assert_that_runs_can_be_driven(connection)  # counts runs at limits, which a transaction with an old snapshot cannot
    with Client(url) as hf, hf.lock("k") as lease:
        lease.check()
    level = default[1] if default[0] == "default_transaction_isolation" else "read committed"
    assert paid_within_a_run(url) == ([level], [level]), "once, and as the role has it"


def paid_within_a_run(url, *, meanwhile=lambda run: None):
    """What a transaction of a run returns, and the rows that it commits; `meanwhile` is called within it, once."""
    interrupted = []

    def pay(connection) -> list[str]:
        connection.execute("INSERT INTO payments SELECT current_setting('transaction_isolation')")
        if not interrupted:
            interrupted.append(True)
            meanwhile("paying")
        return [row[0] for row in connection.execute("TABLE payments")]

    @workflow
    async def pays(ctx: Context) -> list[str]:
        return await ctx.transaction("pay", pay)

    async def scenario():
        async with asyncio.timeout(30), Engine(url, workflows=[pays], worker_ttl=5, grace=1) as engine:
            return await (await engine.start(pays, id="paying")).result()

    with psycopg.connect(url) as db:
        db.read_only = False
        db.execute("CREATE TABLE payments (level text)")
    returned = asyncio.run(scenario())
    with psycopg.connect(url) as db:
        return returned, [row[0] for row in db.execute("TABLE payments")]


@pytest.mark.parametrize("altered", ["role"], indirect=True)
def test_a_transaction_of_a_run_with_an_old_snapshot_is_rolled_back_and_run_again(altered):
    """A signal changes the run's row after the snapshot of the transaction: the record cannot be made in it."""
    url = altered(*DEFAULTS["repeatable_read"])
    with Client(url) as hf:
        paid = paid_within_a_run(url, meanwhile=lambda run: hf.runs.signal(run, "late"))
    assert paid == (["repeatable read"], ["repeatable read"]), "nothing of the first attempt is there"


@pytest.mark.parametrize("altered", ["role"], indirect=True)
def test_a_connection_of_the_users_pool_is_used_unchanged(altered, opened):
    """The store changes only connections that it has opened itself."""
    url = altered(*DEFAULTS["read_only"])
    modes = []
    with psycopg_pool.ConnectionPool(url, min_size=1, max_size=4) as pool:
        for handle in (url, pool):
            with opened(handle).transaction() as connection:
                modes += connection.execute("SHOW transaction_read_only").fetchone()
    assert modes == ["off", "on"]


# -- transactions of the user's own ----------------------------------------------------------------------------


def started(run="r"):
    return r.StartRun(new=NewRun(id=run, type="order", input="1", request=f"{run}.q"))


def signal(run):
    return r.PostEvent(run=run, event=RunEvent(kind="signal"))


@pytest.fixture
def store(server, opened, admin):
    schema = f"defaults_{next(_names)}"
    yield opened(f"{server.url}?schema={schema}")
    admin.execute(f"DROP SCHEMA {schema} CASCADE")


@pytest.mark.parametrize(
    "level",
    [psycopg.IsolationLevel.REPEATABLE_READ, psycopg.IsolationLevel.SERIALIZABLE],
    ids=lambda level: level.name,
)
def test_a_transaction_with_an_old_snapshot_gets_an_error_for_the_command_that_needs_current_data(store, server, level):
    connection = store.connect()
    connection.execute([started("a"), started("b")])
    with psycopg.connect(server.url) as mine:
        mine.isolation_level = level
        mine.execute("SELECT 1")
        connection.execute([signal("a")])
        late, fine, seen = store.join(mine).execute([signal("a"), signal("b"), r.ReadRun(run="a")])
        assert mine.execute("SHOW transaction_isolation").fetchone() == (level.name.replace("_", " ").lower(),)
    assert isinstance(late.error, StoreContended)
    assert not late.error.ambiguous
    assert f"your transaction is {level.name.replace('_', ' ')}" in str(late.error)
    assert "is locked" not in str(late.error)
    assert not isinstance(fine, c.Failed)
    assert isinstance(seen, RunSeen)


def test_a_read_only_transaction_gets_an_error_and_continues(store, server):
    connection = store.connect()
    connection.execute([started("a")])
    with psycopg.connect(server.url) as mine:
        mine.read_only = True
        refused, seen = store.join(mine).execute([signal("a"), r.ReadRun(run="a")])
        assert mine.execute("SELECT 7").fetchone() == (7,), "it is not broken"
    assert isinstance(refused.error, StoreUnusable)
    assert "your transaction is read-only" in str(refused.error)
    assert isinstance(seen, RunSeen)
    assert isinstance(connection.execute([started("b")])[0], Started)
