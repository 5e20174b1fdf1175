"""A schema that an older version has made on PostgreSQL: what is in it stays, and who used it goes on."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from urllib.parse import quote

import psycopg
import pytest
from psycopg import sql

import real_servers
from driving import assert_that_runs_can_be_driven
from holdfast.rules import outcomes as out
from holdfast.stores import postgres_schema
from holdfast.stores.postgres_schema import VERSION
from holdfast.testing.asking import acquire, read, release

_names = count(1)


@pytest.fixture
def server():
    return real_servers.shared("postgres")


@pytest.fixture
def admin(server):
    with psycopg.connect(server.url, autocommit=True) as db:
        yield db


@pytest.fixture
def schema(admin):
    """The name of a schema that nobody has made yet, with letters that must be quoted."""
    name = f'old "{next(_names)}"; É\''
    yield name
    admin.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(name)))


VERSION_1 = """
CREATE FUNCTION holdfast.wake(ns text, answers jsonb, told jsonb) RETURNS void LANGUAGE plpgsql AS 'BEGIN END';
CREATE FUNCTION holdfast.execute(ns text, parts jsonb, at bigint, patience integer, told jsonb) RETURNS text
LANGUAGE plpgsql AS $$ BEGIN PERFORM holdfast.wake(ns, '[]', told); RETURN '[0,[]]'; END $$;
"""
"""What the functions of the first version are known by to others."""


@pytest.fixture
def of_version_1(server, schema, admin):
    """The address of a schema as the first version made it, with a lock that is held and a state, and its names."""
    here = sql.Identifier(schema)
    first = postgres_schema.script("postgresql.sql", schema) + VERSION_1.replace(
        "holdfast.", f"{here.as_string(None)}."
    )
    admin.execute(sql.SQL("CREATE SCHEMA {}").format(here))
    admin.execute(first.encode())
    assert admin.execute(sql.SQL("SELECT version FROM {}.about").format(here)).fetchall() == [(1,)]
    held = {"id": "a.1", "label": {"name": "me"}, "token": 7_000, "since": 7, "ttl": None, "expires_at": None}
    record = json.dumps({"fence": 7_000, "version": 3, "kind": "item", "permits": 1, "holders": [held]})
    admin.execute(sql.SQL("INSERT INTO {}.locks VALUES ('default', 'k', %s, NULL)").format(here), (record,))
    past = json.dumps({"last": "a.1", "writers": [["a", 0, [1], 1]]})
    admin.execute(
        sql.SQL("INSERT INTO {}.slots VALUES ('default', 'shared', '', 'k', 1, '42', %s)").format(here), (past,)
    )
    return f"{server.url}?schema={quote(schema, safe='')}"


def test_a_schema_of_version_1_is_brought_up_to_date_with_its_locks_and_states(of_version_1, schema, opened, admin):
    stores = [opened(of_version_1) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        connection, *_ = pool.map(lambda store: store.connect(), stores)
    here = sql.Identifier(schema)
    assert admin.execute(sql.SQL("SELECT version FROM {}.about").format(here)).fetchall() == [(VERSION,)]
    busy, released, granted, value = connection.execute(
        [acquire(id="b.1"), release(token=7_000), acquire(id="b.1"), read()]
    )
    assert isinstance(busy, out.Busy)
    assert isinstance(released, out.Released)
    assert granted.token > 7_000
    assert (value.version, value.last, value.value) == (1, "a.1", "42")
    assert_that_runs_can_be_driven(connection)
    wakes = "SELECT count(*) FROM pg_proc WHERE proname = 'wake' AND pronamespace = %s::regnamespace"
    assert admin.execute(wakes, (here.as_string(None),)).fetchone() == (1,), "nothing of the old one is left"


def test_a_session_of_version_1_goes_on_while_the_schema_is_brought_up_to_date(of_version_1, schema, opened, server):
    """Its statement is the same."""
    with psycopg.connect(server.url, autocommit=True, prepare_threshold=0) as old:
        ask = sql.SQL("SELECT {}.execute('default', '[]', NULL, NULL, '[]')").format(sql.Identifier(schema))
        assert old.execute(ask).fetchone() == ("[0,[]]",)
        opened(of_version_1).connect()
        (answer,) = old.execute(ask).fetchone()
        assert answer.endswith(",[]]")


def test_who_could_use_the_locks_of_version_1_can_use_the_runs(of_version_1, schema, opened, server, admin):
    here = sql.Identifier(schema)
    admin.execute("CREATE ROLE \"old App\" LOGIN PASSWORD 'secret'")
    try:
        admin.execute(sql.SQL('GRANT USAGE ON SCHEMA {} TO "old App"').format(here))
        admin.execute(sql.SQL('GRANT SELECT ON {}.about TO "old App"').format(here))
        for table in ("locks", "slots"):
            grant = 'GRANT SELECT, INSERT, UPDATE, DELETE ON {}.{} TO "old App"'
            admin.execute(sql.SQL(grant).format(here, sql.Identifier(table)))
        opened(of_version_1).connect()
        address = server.url.partition("@")[2]
        role = f"postgresql://old%20App:secret@{address}?schema={quote(schema, safe='')}"
        assert_that_runs_can_be_driven(opened(role).connect())
    finally:
        admin.execute('DROP OWNED BY "old App"; DROP ROLE "old App"')
