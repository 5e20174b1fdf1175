"""What is specific to PostgreSQL: locked rows, schemas and rights, lost connections, notifications."""

from __future__ import annotations

import json
import os
import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from itertools import count
from urllib.parse import quote

import psycopg
import pytest
import real_servers
from exhausted import no_threads
from providers import PROVIDERS
from psycopg import sql
from run_lifecycle import assert_that_runs_can_be_driven
from waiting import eventually

from holdfast import Client
from holdfast import commands as c
from holdfast.commands import runs as r
from holdfast.errors import InvalidOption, StoreContended, StoreUnavailable, StoreUnusable
from holdfast.rules import lock_outcomes as out
from holdfast.rules.runs.record import NewRun
from holdfast.rules.slot import SlotSeen, Swapped
from holdfast.stores import open_store
from holdfast.stores.postgresql import (
    schema as postgres_schema,
)
from holdfast.stores.postgresql import (
    session as postgres_session,
)
from holdfast.stores.postgresql import (
    writing as postgres_writing,
)
from holdfast.stores.postgresql.batch import PAUSES
from holdfast.stores.postgresql.functions import VERSION
from holdfast.stores.postgresql.listen import Listening
from holdfast.stores.postgresql.repository import PostgresSource
from holdfast.testing import StoreConformance
from holdfast.testing.builders import ME, acquire, read, release, renew, swap, wait
from holdfast.testing.proxy import Proxy
from holdfast.testing.tally import LeaveTally, SeeTally, add

_names = count(1)


def postgres_url_quoted(name):
    return quote(name, safe="")


@pytest.fixture
def server():
    return real_servers.shared("postgres")


@pytest.fixture
def admin(server):
    with psycopg.connect(server.url, autocommit=True) as db:
        yield db


@pytest.fixture
def schema(admin):
    """The name of a schema that does not exist yet, with letters that must be quoted."""
    name = f'test "{next(_names)}"; É'
    yield name
    admin.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(name)))


@pytest.fixture
def url(tmp_path):
    return PROVIDERS["postgres"].url(tmp_path)


@pytest.fixture
def asked(monkeypatch):
    """How many round trips were made, over all sessions."""
    trips = []
    for name in ("_talk", "_trip"):
        way = getattr(postgres_session.Session, name)

        def counting(self, sent, *options, way=way):
            trips.append(sent)
            return way(self, sent, *options)

        monkeypatch.setattr(postgres_session.Session, name, counting)
    return trips


@contextmanager
def locked_row(url, key):
    """Another session has left a transaction open that locks this row."""
    with psycopg.connect(url.partition("?")[0], application_name="forgotten") as db:
        db.execute("SELECT 1 FROM tests.locks WHERE key = %s FOR UPDATE", (key,))
        yield db
        db.rollback()


# -- trips -----------------------------------------------------------------------------------------------------


def test_a_simple_command_is_one_round_trip_and_any_other_two(url, opened, asked):
    """A simple command is one statement; otherwise one round trip locks and reads, and a second one writes and
    commits."""
    connection = opened(url).connect()
    granted = connection.execute([acquire()])[0]
    connection.execute([read()])  # each statement is prepared once per session
    for command, kind, trips in (
        (renew(token=granted.token), out.Renewed, 1),
        (wait(), out.Queued, 3),
        (acquire(id="c.1"), out.Busy, 2),
        (c.Inspect(key="k"), out.LockSeen, 1),
        (c.Abandon(key="k", id="z.1", ttl=0), out.Abandoned, 2),
        (swap("a.1"), Swapped, 2),
        (read(), SlotSeen, 1),
        (c.ListLocks(), c.LockPage, 1),
    ):
        asked.clear()
        (outcome,) = connection.execute([command])
        assert isinstance(outcome, kind)
        assert len(asked) == trips, command


def test_a_batch_takes_at_most_one_round_trip_per_kind_of_command(url, opened, asked):
    connection = opened(url).connect()
    for turn in range(2):  # the first time, the statement is prepared
        asked.clear()
        outcomes = connection.execute(
            [
                *(acquire(f"k{turn} {n}") for n in range(50)),
                *(wait(f"k{turn} {n}") for n in range(50)),
                swap(f"a.{turn + 1}"),
                read(),
            ]
        )
        assert {type(outcome).__name__ for outcome in outcomes[:50]} == {"Granted"}
        assert {type(outcome).__name__ for outcome in outcomes[50:100]} == {"Queued"}
        assert [type(outcome).__name__ for outcome in outcomes[100:]] == ["Conflict" if turn else "Swapped", "SlotSeen"]
    assert len(asked) == 2


# -- rows that somebody else has -------------------------------------------------------------------------------


def test_a_locked_row_delays_only_its_own_key(url, opened):
    connection = opened(url).connect()
    keys = [f"k{n}" for n in range(5)]
    granted = connection.execute([acquire(key) for key in keys])
    renewals = [renew(key, token=grant.token) for key, grant in zip(keys, granted, strict=True)]
    with locked_row(url, "k2"):
        outcomes = connection.execute(renewals)
        assert [type(one).__name__ for one in outcomes] == ["Renewed", "Renewed", "Failed", "Renewed", "Renewed"]
        error = outcomes[2].error
        assert isinstance(error, StoreContended)
        assert not error.ambiguous
        assert error.retryable
        assert "'k2'" in str(error)
        assert "forgotten" in str(error), "who it is can be seen"
        (alone,) = connection.execute([renewals[2]])
        assert isinstance(alone, c.Failed)
        assert connection.execute([c.Inspect(key="k2")])[0].record.holders, "looks wait for nobody"
        assert connection.execute([acquire("k9"), c.ListLocks()])[1].items
    assert isinstance(connection.execute(renewals)[2], out.Renewed)


@pytest.mark.usefixtures("patient")
def test_a_command_waits_for_a_row_that_is_soon_free(url, opened):
    connection = opened(url).connect()
    (granted,) = connection.execute([acquire()])
    with locked_row(url, "k") as other, ThreadPoolExecutor(1) as pool:
        threading.Timer(0.01, other.rollback).start()
        (outcome,) = pool.submit(connection.execute, [renew(token=granted.token)]).result()
        assert isinstance(outcome, out.Renewed)


def test_a_renewal_whose_row_is_locked_for_a_while_does_not_count_as_a_failure(url):
    """Three failures in a row would lose the lease, long before it expires."""
    tried = []
    with Client(url) as hf, hf.lock("k", ttl=60, renew_every=0.1) as lease:
        hf.events.subscribe(lambda event: tried.append(1) if event.name == "renewal_unknown" else None)
        with locked_row(url, "k"):
            eventually(lambda: len(tried) >= 4)
        first = lease.expires_at
        eventually(lambda: lease.expires_at > first)
        lease.check()


def test_a_caller_waits_for_a_row_that_is_locked_for_a_while(url):
    with Client(url) as hf, locked_row_of(url, hf) as other:
        threading.Timer(3.5, other.rollback).start()  # longer than a single command is retried
        with hf.lock("k", wait=20) as lease:
            assert lease.valid


@contextmanager
def locked_row_of(url, hf):
    """The row of a lock that was used before."""
    hf.lock("k").acquire().release()
    with locked_row(url, "k") as other:
        yield other


def test_a_locked_slot_delays_only_its_own_commands(url, opened):
    connection = opened(url).connect()
    mine, yours = ("global", "", "mine"), ("global", "", "yours")
    connection.execute([swap("a.1", address=mine), swap("a.2", address=yours)])
    with psycopg.connect(url.partition("?")[0]) as db:
        db.execute("SELECT 1 FROM tests.slots WHERE key = 'yours' FOR UPDATE")
        outcomes = connection.execute([swap("a.3", "a.1", 1, address=mine), swap("a.4", "a.2", 1, address=yours)])
        assert [type(one).__name__ for one in outcomes] == ["Swapped", "Failed"]
        assert connection.execute([read(yours)])[0].version == 1
        db.rollback()
    assert type(connection.execute([swap("a.4", "a.2", 1, address=yours)])[0]).__name__ == "Swapped"


@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.usefixtures("patient")
def test_a_command_waits_for_a_key_that_another_transaction_creates(url, opened, end):
    connection = opened(url).connect()
    connection.execute([acquire("warm"), acquire("up")])
    with psycopg.connect(url.partition("?")[0]) as db, ThreadPoolExecutor(1) as pool:
        record = json.dumps({"fence": 1_790_000_000_000_000, "version": 1, "kind": "mutex"})
        db.execute("INSERT INTO tests.locks VALUES ('default', 'new', %s, NULL)", (record,))
        threading.Timer(0.02, getattr(db, end)).start()
        outcomes = pool.submit(connection.execute, [acquire("a"), acquire("new"), acquire("z")]).result()
    assert [type(one).__name__ for one in outcomes] == ["Granted"] * 3
    assert outcomes[1].token > 1_790_000_000_000_000
    assert connection.execute([c.Inspect(key="new")])[0].record.version == (2 if end == "commit" else 1)


def test_a_key_of_an_uncommitted_transaction_delays_only_its_own_commands(url, opened):
    connection = opened(url).connect()
    with psycopg.connect(url.partition("?")[0]) as db:
        db.execute("INSERT INTO tests.locks VALUES ('default', 'k07', '{}', NULL)")
        outcomes = connection.execute([acquire(f"k{n:02}") for n in range(16)])
        db.rollback()
    assert [type(one).__name__ for one in outcomes] == ["Granted"] * 7 + ["Failed"] + ["Granted"] * 8
    assert isinstance(outcomes[7].error, StoreContended)


@pytest.mark.usefixtures("patient")
def test_a_single_command_waits_for_a_key_that_another_transaction_creates(url, opened):
    connection = opened(url).connect()
    connection.execute([acquire("warm")])
    with psycopg.connect(url.partition("?")[0]) as db, ThreadPoolExecutor(1) as pool:
        held = {"id": "x.1", "label": {"name": "x"}, "token": 7, "since": 7, "ttl": None, "expires_at": None}
        record = json.dumps({"fence": 7, "version": 1, "kind": "mutex", "holders": [held]})
        db.execute("INSERT INTO tests.locks VALUES ('default', 'new', %s, NULL)", (record,))
        threading.Timer(0.02, db.commit).start()
        (outcome,) = pool.submit(connection.execute, [acquire("new")]).result()
    assert isinstance(outcome, out.Busy)


def test_a_batch_skips_a_locked_row_and_does_not_fail_as_a_whole(url, opened, asked):
    connection = opened(url).connect()
    keys = [f"k{number:02}" for number in range(64)]
    granted = connection.execute([acquire(key) for key in keys])
    asked.clear()
    with locked_row(url, "k40"):
        outcomes = connection.execute([renew(key, token=had.token) for key, had in zip(keys, granted, strict=True)])
    assert [key for key, one in zip(keys, outcomes, strict=True) if not isinstance(one, out.Renewed)] == ["k40"]
    assert isinstance(outcomes[40], c.Failed)
    most = 2 + 2 * len(PAUSES) + 1
    assert len(asked) <= most, "all of them, the one that was taken, and who is in the way: nothing was cut into halves"


@pytest.mark.usefixtures("patient")
def test_no_later_command_of_a_batch_overtakes_one_whose_row_was_locked(url, opened):
    """The row is unlocked between the two: the second command must not get what the first could not."""
    connection = opened(url).connect()
    (granted,) = connection.execute([acquire("k1")])
    with locked_row(url, "k1") as other:
        free = threading.Timer(0.05, other.rollback)
        free.start()
        outcomes = connection.execute(
            [renew("k1", token=granted.token), release("k1", token=granted.token), acquire("k2")]
        )
        free.join()
    assert [type(one).__name__ for one in outcomes] == ["Renewed", "Released", "Granted"]


@pytest.fixture
def slow_key(admin, url, opened):
    """A key whose row is slow to write."""
    opened(url).connect().execute([c.Inspect(key="slow")])
    admin.execute(
        "CREATE FUNCTION tests.dawdle() RETURNS trigger LANGUAGE plpgsql AS $$ "
        "BEGIN PERFORM pg_sleep(0.5); RETURN NEW; END $$"
    )
    admin.execute(
        "CREATE TRIGGER dawdles BEFORE INSERT OR UPDATE ON tests.locks FOR EACH ROW WHEN (NEW.key = 'slow') "
        "EXECUTE FUNCTION tests.dawdle()"
    )
    yield "slow"
    admin.execute("DROP FUNCTION tests.dawdle() CASCADE")


def test_a_row_that_is_unlocked_during_a_batch_is_not_used_by_a_later_command(url, opened, slow_key):
    """The renewal does not get the row, and the release, in a later part, could: it is skipped too."""
    connection = opened(url).connect()
    (granted,) = connection.execute([acquire("k1")])
    with locked_row(url, "k1") as other:
        free = threading.Timer(0.2, other.rollback)
        free.start()
        commands = [renew("k1", token=granted.token), acquire(slow_key), release("k1", token=granted.token)]
        outcomes = connection.execute(commands)
        free.join()
    assert [type(one).__name__ for one in outcomes] == ["Failed", "Granted", "Failed"]
    again = connection.execute(commands)
    assert [type(one).__name__ for one in again] == ["Renewed", "Granted", "Released"]


def test_a_row_that_was_locked_when_the_clock_was_read_is_not_decided_by_that_time(url, opened, slow_key):
    """While a batch is slow the row is unlocked and its lease renewed: by the time of the batch it would end too
    late."""
    store = opened(url)
    holder, outsider = store.connect(), store.connect()
    (granted, slow) = holder.execute([acquire("k1", ttl=60), acquire(slow_key)])
    with locked_row(url, "k1") as other, ThreadPoolExecutor(1) as pool:
        batch = pool.submit(outsider.execute, [acquire("k1", "b.1"), renew(slow_key, token=slow.token)])
        time.sleep(0.2)
        other.rollback()
        (renewed,) = holder.execute([renew("k1", token=granted.token, ttl=60)])
        first, second = batch.result()
        assert isinstance(first, c.Failed | out.Busy)
        assert isinstance(second, out.Renewed)
    (seen,) = holder.execute([c.Inspect(key="k1")])
    assert seen.record.holders[0].expires_at == renewed.expires_at


def test_queries_of_a_batch_see_locked_rows(url, opened):
    connection = opened(url).connect()
    connection.execute([acquire("k1"), acquire("k2")])
    with locked_row(url, "k1"):
        outcomes = connection.execute([c.Inspect(key="k1"), c.Inspect(key="k2"), c.Inspect(key="k3")])
    assert [one.record and len(one.record.holders) for one in outcomes] == [1, 1, None]


@pytest.mark.parametrize("commands", [1, 2], ids=["alone", "in a batch"])
@pytest.mark.parametrize("odd", ['{"fence": 5.5}', '{"version": "4"}', '{"version": 4.5}'])
def test_a_record_with_invalid_numbers_is_refused_and_unchanged(url, opened, admin, odd, commands):
    connection = opened(url).connect()
    keys = [f"k{n}" for n in range(commands)]
    grants = connection.execute([acquire(key) for key in keys])
    connection.execute([release(key, token=granted.token) for key, granted in zip(keys, grants, strict=True)])
    admin.execute("UPDATE tests.locks SET record = record || %s", (odd,))
    before = admin.execute("SELECT key, record::text FROM tests.locks ORDER BY key").fetchall()
    outcomes = connection.execute([acquire(key, "b.1") for key in keys])
    assert {type(one).__name__ for one in outcomes} == {"Failed"}
    assert admin.execute("SELECT key, record::text FROM tests.locks ORDER BY key").fetchall() == before


def test_batches_in_opposite_orders_neither_deadlock_nor_fail(url, opened):
    store = opened(url)
    connections = [store.connect() for _ in range(4)]
    keys = [f"k{n}" for n in range(20)]

    def hammer(place):
        order = keys if place % 2 else keys[::-1]
        kinds = set()
        for n in range(25):
            commands = [acquire(key, f"{place}.{n}", ttl=0.1) for key in order]
            while commands:  # as the flows do it
                outcomes = connections[place].execute(commands)
                kinds |= {getattr(outcome, "error", outcome).__class__.__name__ for outcome in outcomes}
                commands = [one for one, got in zip(commands, outcomes, strict=True) if isinstance(got, c.Failed)]
        return kinds

    with ThreadPoolExecutor(4) as pool:
        kinds = set().union(*pool.map(hammer, range(4)))
    assert {"Granted", "Busy"} <= kinds <= {"Granted", "Busy", "StoreContended"}


# -- schemas and rights ----------------------------------------------------------------------------------------


def test_many_first_clients_at_once_create_one_schema(server, schema, opened):
    stores = [opened(f"{server.url}?schema={postgres_url_quoted(schema)}") for _ in range(6)]
    with ThreadPoolExecutor(6) as pool:
        connections = list(pool.map(lambda store: store.connect(), stores))
    outcomes = [connection.execute([acquire(id=f"{n}.1")])[0] for n, connection in enumerate(connections)]
    assert sorted(type(outcome).__name__ for outcome in outcomes) == ["Busy"] * 5 + ["Granted"]


def test_the_table_layout_is_as_documented(url, opened, admin):
    opened(url).connect()
    columns = admin.execute(
        "SELECT table_name, column_name, data_type FROM information_schema.columns WHERE table_schema = 'tests' "
        "ORDER BY table_name, ordinal_position"
    ).fetchall()
    assert columns == [
        ("about", "version", "integer"),
        ("about", "oldest_client", "integer"),
        ("events", "namespace", "text"),
        ("events", "run", "text"),
        ("events", "number", "bigint"),
        ("events", "key", "text"),
        ("events", "event", "json"),
        ("functions", "digest", "text"),
        ("functions", "version", "integer"),
        ("functions", "release", "text"),
        ("functions", "made_at", "timestamp with time zone"),
        ("functions", "used_at", "timestamp with time zone"),
        ("holders", "namespace", "text"),
        ("holders", "key", "text"),
        ("holders", "kind", "text"),
        ("holders", "owner", "text"),
        ("holders", "host", "text"),
        ("holders", "pid", "integer"),
        ("holders", "token", "bigint"),
        ("holders", "since", "timestamp with time zone"),
        ("holders", "expires_at", "timestamp with time zone"),
        ("holders", "expired", "boolean"),
        ("holders", "offered", "boolean"),
        ("holders", "waiting", "integer"),
        ("journal", "namespace", "text"),
        ("journal", "run", "text"),
        ("journal", "number", "bigint"),
        ("journal", "entry", "text"),
        ("locks", "namespace", "text"),
        ("locks", "key", "text"),
        ("locks", "record", "jsonb"),
        ("locks", "due_at", "bigint"),
        ("places", "namespace", "text"),
        ("places", "party", "text"),
        ("places", "queued", "boolean"),
        ("places", "rank", "bigint"),
        ("places", "arrival", "bigint"),
        ("places", "run", "text"),
        ("places", "workflow", "text"),
        ("places", "place", "jsonb"),
        ("records", "namespace", "text"),
        ("records", "kind", "text"),
        ("records", "key", "text"),
        ("records", "record", "text"),
        ("records", "due_at", "bigint"),
        ("run_list", "namespace", "text"),
        ("run_list", "id", "text"),
        ("run_list", "type", "text"),
        ("run_list", "status", "text"),
        ("run_list", "driver", "text"),
        ("run_list", "created_at", "timestamp with time zone"),
        ("run_list", "due_at", "timestamp with time zone"),
        ("run_list", "started_at", "timestamp with time zone"),
        ("run_list", "ended_at", "timestamp with time zone"),
        ("run_list", "entries", "bigint"),
        ("run_list", "events", "bigint"),
        ("run_list", "claims", "bigint"),
        ("run_list", "crashes", "bigint"),
        ("run_list", "parent", "text"),
        ("run_list", "result", "text"),
        ("runs", "namespace", "text"),
        ("runs", "id", "text"),
        ("runs", "type", "text"),
        ("runs", "workflow", "text"),
        ("runs", "status", "text"),
        ("runs", "created_at", "bigint"),
        ("runs", "due_at", "bigint"),
        ("runs", "worker", "text"),
        ("runs", "fence", "bigint"),
        ("runs", "length", "bigint"),
        ("runs", "posted", "bigint"),
        ("runs", "claims", "bigint"),
        ("runs", "crashes", "bigint"),
        ("runs", "last", "text"),
        ("runs", "key", "text"),
        ("runs", "parent", "text"),
        ("runs", "started_at", "bigint"),
        ("runs", "ended_at", "bigint"),
        ("runs", "result", "text"),
        ("runs", "attributes", "json"),
        ("runs", "watchers", "ARRAY"),
        ("runs", "plain", "boolean"),
        ("runs", "rest", "json"),
        ("slots", "namespace", "text"),
        ("slots", "scope", "text"),
        ("slots", "owner", "text"),
        ("slots", "key", "text"),
        ("slots", "version", "bigint"),
        ("slots", "value", "text"),
        ("slots", "past", "jsonb"),
        ("starts", "namespace", "text"),
        ("starts", "party", "text"),
        ("starts", "at", "bigint"),
        ("starts", "run", "text"),
        ("terms", "namespace", "text"),
        ("terms", "workflow", "text"),
        ("terms", "digest", "text"),
        ("terms", "terms", "json"),
        ("waiters", "namespace", "text"),
        ("waiters", "key", "text"),
        ("waiters", "position", "bigint"),
        ("waiters", "owner", "text"),
        ("waiters", "host", "text"),
        ("waiters", "pid", "integer"),
        ("waiters", "since", "timestamp with time zone"),
        ("waiters", "expires_at", "timestamp with time zone"),
        ("workers", "namespace", "text"),
        ("workers", "id", "text"),
        ("workers", "worker", "json"),
    ]


def test_every_table_with_many_updates_has_autovacuum_settings(url, opened, admin):
    opened(url).connect()
    statements = "\n".join(text for text in vars(postgres_writing).values() if isinstance(text, str))
    churning = set(re.findall(r"(?:UPDATE|DELETE FROM|INSERT INTO) holdfast\.(\w+)", statements))
    assert churning == {
        "locks", "slots", "records", "runs", "journal", "events", "workers", "terms", "places", "starts",
    }  # fmt: skip
    rows = admin.execute(
        "SELECT c.relname, coalesce(c.reloptions, '{}') FROM pg_class AS c WHERE c.relkind = 'r' "
        "AND c.relnamespace = 'tests'::regnamespace"
    ).fetchall()
    options = {name: dict(option.split("=") for option in given) for name, given in rows}
    for table in churning:
        given = options[table]
        assert float(given["autovacuum_vacuum_scale_factor"]) <= 0.02, table
        assert float(given["autovacuum_analyze_scale_factor"]) <= 0.02, table
        assert int(given["autovacuum_vacuum_cost_limit"]) >= 1_000, table


def test_owner_token_and_expiry_can_be_read_with_psql(url, opened, admin):
    connection = opened(url).connect()
    granted, _ = connection.execute([acquire("invoice:42"), wait("invoice:42")])
    held = admin.execute(
        "SELECT key, owner, host, pid, token, extract(epoch FROM expires_at) * 1000000, expired, waiting "
        "FROM tests.holders"
    ).fetchall()
    assert held == [("invoice:42", "me", "here", 1, granted.token, granted.expires_at, False, 1)]
    assert admin.execute("SELECT key, position, owner FROM tests.waiters").fetchall() == [("invoice:42", 0, "me")]


def test_a_schema_of_a_newer_version_is_refused(server, schema, opened, admin):
    address = f"{server.url}?schema={postgres_url_quoted(schema)}"
    opened(address).connect()
    admin.execute(sql.SQL("UPDATE {}.about SET version = 99, oldest_client = 98").format(sql.Identifier(schema)))
    with pytest.raises(StoreUnusable, match=r"newer Holdfast \(version 99; it requires clients of version 98"):
        opened(address).connect()


@pytest.mark.parametrize("column", ["text", "version"])
def test_a_schema_of_another_program_is_refused_and_unchanged(server, schema, opened, admin, column):
    made = sql.SQL("CREATE SCHEMA {0}; CREATE TABLE {0}.about ({1} text)")
    admin.execute(made.format(sql.Identifier(schema), sql.Identifier(column)))
    with pytest.raises(StoreUnusable, match="does not belong to Holdfast"):
        opened(f"{server.url}?schema={postgres_url_quoted(schema)}").connect()
    tables = admin.execute("SELECT count(*) FROM information_schema.tables WHERE table_schema = %s", (schema,))
    assert tables.fetchone() == (1,)


def test_a_schema_of_a_development_version_is_refused_with_what_to_do(server, schema, opened, admin):
    opened(f"{server.url}?schema={postgres_url_quoted(schema)}").connect()
    admin.execute(sql.SQL("ALTER TABLE {}.about DROP COLUMN oldest_client").format(sql.Identifier(schema)))
    count = "SELECT count(*) FROM information_schema.tables WHERE table_schema = %s"
    before = admin.execute(count, (schema,)).fetchone()
    with pytest.raises(
        StoreUnusable, match=r"earlier development version.*DROP SCHEMA .* CASCADE.*creates the schema again"
    ):
        opened(f"{server.url}?schema={postgres_url_quoted(schema)}").connect()
    assert admin.execute(count, (schema,)).fetchone() == before


@pytest.fixture
def roles(server, schema, opened, admin):
    """The two roles of the packaged SQL, with the schema created by an owner before."""
    opened(f"{server.url}?schema={postgres_url_quoted(schema)}").connect()
    admin.execute(postgres_schema.script("roles.sql", schema).encode())
    for role in ("holdfast_app", "holdfast_reader"):
        admin.execute(f"ALTER ROLE {role} LOGIN PASSWORD 'secret'")
    address = server.url.partition("@")[2]
    yield {role: f"postgresql://{role}:secret@{address}" for role in ("holdfast_app", "holdfast_reader")}
    for role in ("holdfast_app", "holdfast_reader"):
        admin.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


def test_a_role_with_the_least_rights_can_do_everything(roles, schema, opened):
    connection = opened(f"{roles['holdfast_app']}?schema={postgres_url_quoted(schema)}").connect()
    outcomes = connection.execute([acquire(), wait(), swap("a.1"), c.ListLocks(), c.SettleDue(), c.Cleanup()])
    assert [type(one).__name__ for one in outcomes] == ["Granted", "Queued", "Swapped", "LockPage", "Swept", "Swept"]
    outcomes = connection.execute([add(), add(request="r"), LeaveTally(key="k", id="a.1"), SeeTally(key="k")])
    assert [type(one).__name__ for one in outcomes] == ["Counted", "Counted", "Counted", "TallySeen"]
    assert_that_runs_can_be_driven(connection)


def test_a_role_that_may_only_read_sees_and_changes_nothing(roles, schema, opened):
    with psycopg.connect(roles["holdfast_reader"], autocommit=True) as db:
        here = sql.Identifier(schema)
        for name in (
            "holders", "waiters", "locks", "slots", "records", "run_list", "runs", "journal", "events", "workers",
        ):  # fmt: skip
            assert db.execute(sql.SQL("SELECT * FROM {}.{}").format(here, sql.Identifier(name))).fetchall() == []
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            db.execute(sql.SQL("DELETE FROM {}.locks").format(here))
    connection = opened(f"{roles['holdfast_reader']}?schema={postgres_url_quoted(schema)}").connect()
    with pytest.raises(StoreUnusable, match="lacks a privilege"):
        connection.execute([acquire()])


def test_a_role_that_may_not_create_the_schema_gets_an_error_that_says_who_can(roles, opened):
    with pytest.raises(StoreUnusable, match="may not create them"):
        opened(f"{roles['holdfast_app']}?schema=elsewhere").connect()


# -- the way to the server -------------------------------------------------------------------------------------


def test_a_wrong_password_is_reported_and_not_shown(server, opened):
    address = server.url.replace(server.password, "hunter2")
    with pytest.raises(StoreUnusable, match="password authentication failed") as caught:
        opened(address).connect()
    assert "hunter2" not in str(caught.value)
    assert "hunter2" not in opened(address).url


def test_an_unreachable_server_is_unavailable_and_nothing_was_sent(opened):
    with pytest.raises(StoreUnavailable, match="cannot be reached") as caught:
        opened("postgresql://127.0.0.1:1/db").connect()
    assert not caught.value.ambiguous


def test_a_session_that_is_terminated_during_a_command_leaves_the_outcome_unknown(url, opened, admin):
    connection = opened(url).connect()
    connection.execute([acquire()])
    admin.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'holdfast'")
    with pytest.raises(StoreUnavailable) as caught:
        connection.execute([acquire("other")])
    assert caught.value.ambiguous


@pytest.mark.parametrize("state", ["57P01", "57P02", "57P05", "08006", ""])
def test_a_shutdown_message_of_the_server_leaves_the_outcome_unknown(state):
    error = postgres_session.refusal(state, "terminating connection")
    assert isinstance(error, StoreUnavailable)
    assert error.ambiguous


def test_a_server_that_does_not_respond_is_given_up_after_the_timeout(server, opened):
    with Proxy("127.0.0.1", server.port) as proxy:
        connection = opened(f"{proxy.url_for(server.url)}?schema=tests&timeout=0.2").connect()
        proxy.stall()
        with pytest.raises(StoreUnavailable, match=r"did not answer within 0\.2 s") as caught:
            connection.execute([acquire()])
        assert caught.value.ambiguous
        proxy.go_on()


def test_a_standby_is_refused(opened):
    with real_servers.server("postgres", settings={"fsync": "off"}) as own:
        opened(own.url).connect().execute([acquire()])
        own.stop()
        signal_file = own.data / "standby.signal"
        signal_file.touch()
        signal_file.chmod(0o644)
        own.restart()
        with pytest.raises(StoreUnavailable, match="is a standby, whose records may be outdated") as caught:
            opened(own.url).connect()
        assert not caught.value.ambiguous


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ("?colour=red", "colour"),
        ("?schema=public", "is not public"),
        ("?schema=pg_x", "is not public"),
        ("?schema=", "schema must not be empty"),
        ("?timeout=0", "timeout"),
        ("?timeout=soon", "timeout"),
        ("?wakeup=never", "wakeup"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused_before_anything_is_sent(opened, options, reason):
    with pytest.raises(InvalidOption, match=reason):
        opened(f"postgresql://127.0.0.1:1/db{options}")


def test_commits_are_synchronous_although_the_role_has_another_default(server, url, opened, admin):
    role = sql.Identifier(server.user)
    admin.execute(sql.SQL("ALTER ROLE {} SET synchronous_commit = off").format(role))
    try:
        connection = opened(url).connect()
        assert connection._session.ask(b"SHOW synchronous_commit") == b"on"
    finally:
        admin.execute(sql.SQL("ALTER ROLE {} RESET synchronous_commit").format(role))


def test_a_client_that_is_paused_within_a_transaction_does_not_keep_its_row_locks(url, opened, monkeypatch):
    """The server ends its session within a second; nothing was done, and the error says so."""
    store = opened(url)
    paused, other = store.connect(), store.connect()
    (granted,) = other.execute([acquire()])
    write = PostgresSource.write

    def late(self, *arguments):
        (released,) = persist(other, release(token=granted.token))
        assert isinstance(released, out.Released)
        return write(self, *arguments)

    monkeypatch.setattr(PostgresSource, "write", late)
    with pytest.raises(StoreUnavailable) as caught:
        paused.execute([wait()])
    assert not caught.value.ambiguous
    monkeypatch.undo()
    (seen,) = other.execute([c.Inspect(key="k")])
    assert (seen.record.holders, seen.record.waiters) == ((), ())


def persist(connection, command):
    """Send a command again until its row is free."""
    late = time.monotonic() + 5
    while True:
        outcomes = connection.execute([command])
        if not isinstance(outcomes[0], c.Failed):
            return outcomes
        assert time.monotonic() < late, outcomes


# -- hints -----------------------------------------------------------------------------------------------------


@pytest.fixture
def listening():
    """Opens watches, which are closed at the end of the test."""
    with ExitStack() as stack:
        yield stack


def listener_for(url, store, channel):
    """A plain connection that listens on the channel of an attempt."""
    db = psycopg.connect(url.partition("?")[0], autocommit=True)
    watch = store.watch(channel, print)
    db.execute(watch._listen)
    watch.close()
    return db


def test_only_waiters_of_other_clients_are_notified(url, opened, listening):
    store = opened(url)
    connection = store.connect()
    with (
        closing(listener_for(url, store, "far")) as listener,
        closing(listener_for(url, store, "near")) as other_listener,
    ):
        near = []
        listening.enter_context(closing(store.watch("near", near.append)))
        eventually(lambda: near == [None])
        for key, attempt in (("a", "near.1"), ("b", "far.1"), ("c", "near.2")):
            (held, _) = connection.execute([acquire(key), wait(key, attempt)])
            connection.execute([release(key, token=held.token)])
        connection.execute([acquire("nobody")])
        notified = list(listener.notifies(timeout=5, stop_after=1))
        assert [json.loads(one.payload) for one in notified] == [["far.1"]]
        assert list(other_listener.notifies(timeout=0.1)) == [], "it is notified directly"
        assert near == [None, ["near.1"], ["near.2"]]


def test_a_notification_that_would_be_too_long_is_sent_without_names(url, opened, listening):
    """The server accepts 8,000 bytes: the names of 400 runs that are started at once would be longer."""
    elsewhere, here = opened(url), opened(url)
    connection = elsewhere.connect()
    worker = {"key": "worker/far.1", "id": "far.1", "label": ME, "kind": "worker", "ttl": 60_000_000}
    connection.execute([c.Acquire(**worker), r.RegisterWorker(worker="far.1", name="w", types=("order",))])
    with closing(psycopg.connect(url.partition("?")[0], autocommit=True)) as listener:
        received = []
        watch = Listening("another process", "default", "far", received.append, connect=here._listen, timeout=5)
        listening.enter_context(closing(watch))
        listener.execute(watch._listen)
        eventually(lambda: received == [None])
        starts = [
            r.StartRun(new=NewRun(id=f"run-{n:030}", type="order", input="1", request=f"{n}.q")) for n in range(250)
        ]
        assert {type(one).__name__ for one in connection.execute(starts)} == {"Started"}
        assert [notified.payload for notified in listener.notifies(timeout=5, stop_after=1)] == [""]
        eventually(lambda: received == [None, None])
        connection.execute([r.StartRun(new=NewRun(id="one", type="order", input="1", request="one.q"))])
        eventually(lambda: received == [None, None, ["far.run/one"]])


def test_a_watch_continues_after_its_connection_was_lost(url, opened, admin, listening):
    store, received = opened(url), []
    watch = listening.enter_context(closing(store.watch("b", received.append)))
    eventually(lambda: received == [None])
    listening = "application_name = 'holdfast' AND query LIKE 'LISTEN%'"
    admin.execute(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {listening}")
    eventually(lambda: received == [None, None])
    with psycopg.connect(url.partition("?")[0], autocommit=True) as other:
        other.execute("SELECT pg_notify(%s, %s)", (watch._listen.split('"')[1], '["b.7"]'))
        assert eventually(lambda: received[-1] == ["b.7"])


def test_without_notifications_the_head_of_a_queue_polls(url, opened, listening, monkeypatch):
    monkeypatch.setattr("holdfast.stores.postgresql.listen.POLL_SECONDS", 0.01)
    store, received = opened(f"{url}&wakeup=poll"), []
    watch = listening.enter_context(closing(store.watch("b", received.append)))
    watch.expect("b.1", eager=True)
    watch.expect("b.2", eager=False)
    eventually(lambda: received[:2] == [("b.1",), ("b.1",)])
    watch.forget("b.1")


# -- with a clock of its own -----------------------------------------------------------------------------------


class TestByTheServersClock(StoreConformance):
    """The suite again, with the server's own clock."""

    histories = 20
    processes = True

    def url(self, folder):
        return PROVIDERS["postgres"].url(folder)

    def open(self, url, *, namespace, clock):
        return open_store(url, namespace=namespace)

    def dump(self, url, namespace):
        return PROVIDERS["postgres"].dump(url, namespace)

    def decided_at(self, connection, commands):
        """A batch of several kinds is several transactions, each with its own time: here all use that of the first."""
        (seen,) = connection.execute([c.Inspect(key="nobody's")])
        connection._clock = lambda: seen.now
        try:
            return connection.execute(commands), [seen.now] * len(commands)
        finally:
            connection._clock = None


def test_the_version_of_the_schema_equals_that_of_the_code(url, opened, admin):
    opened(url).connect()
    assert admin.execute("SELECT version FROM tests.about").fetchall() == [(VERSION,)]


def test_if_no_thread_can_be_started_nothing_is_left_open(url, opened):
    store = opened(url)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    for _ in range(3):
        with no_threads(), pytest.raises(RuntimeError):
            store.watch("b", print)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


def test_dropped_tables_are_created_again_by_the_next_call(server, schema, admin):
    with Client(f"{server.url}?schema={postgres_url_quoted(schema)}") as hf:
        hf.lock("k").acquire().release()
        admin.execute(sql.SQL("DROP SCHEMA {} CASCADE").format(sql.Identifier(schema)))
        with pytest.raises(StoreUnusable, match="creates them again"):
            hf.lock("k").acquire()
        with hf.lock("k") as lease:
            lease.check()
