"""A user's own statements and Holdfast's commands in one transaction: psycopg, a pool, SQLAlchemy."""

from __future__ import annotations

import threading

import psycopg
import psycopg_pool
import pytest
import real_servers
import sqlalchemy
import sqlalchemy.ext.asyncio
from providers import PROVIDERS

from holdfast import commands as c
from holdfast.commands import runs as r
from holdfast.errors import InvalidOption, StoreContended, StoreError, StoreUnavailable, StoreUnusable
from holdfast.rules.runs.outcomes import Posted, RunSeen, Started
from holdfast.rules.runs.record import NewRun, RunEvent
from holdfast.stores import open_store
from holdfast.stores.contract import SharesTransactions
from holdfast.testing.builders import acquire, swap
from holdfast.testing.proxy import Proxy

SCHEMA = {"schema": "tests"}


class Boom(Exception):
    pass


@pytest.fixture
def server(tmp_path):
    PROVIDERS["postgres"].url(tmp_path)  # empties it
    found = real_servers.shared("postgres")
    with psycopg.connect(found.url, autocommit=True) as db:
        db.execute("DROP TABLE IF EXISTS invoices; CREATE TABLE invoices (id text PRIMARY KEY)")
    return found


@pytest.fixture
def pool(server):
    with psycopg_pool.ConnectionPool(server.url, min_size=1, max_size=2, open=True) as made:
        yield made


@pytest.fixture
def engine(server):
    made = sqlalchemy.create_engine(server.url.replace("postgresql://", "postgresql+psycopg://"))
    yield made
    made.dispose()


@pytest.fixture(params=["url", "pool", "engine"])
def store(request, server):
    handle = server.url if request.param == "url" else request.getfixturevalue(request.param)
    made = open_store(handle, namespace="default", options=SCHEMA)
    yield made
    made.close()


def start(run="r", **more):
    return r.StartRun(new=NewRun(id=run, type="order", input="1", request=f"start {run}", **more))


def write(connection, invoice="i1"):
    if isinstance(connection, psycopg.Connection):
        connection.execute("INSERT INTO invoices VALUES (%s)", (invoice,))
    else:
        connection.execute(sqlalchemy.text("INSERT INTO invoices VALUES (:id)"), {"id": invoice})


def driver_of(connection):
    return connection if isinstance(connection, psycopg.Connection) else connection.connection.dbapi_connection


def there(store, server, run="r"):
    """Whether the run and the invoice are there, seen from outside."""
    connection = store.connect("queries")
    (seen,) = connection.execute([r.ReadRun(run=run)])
    connection.close()
    with psycopg.connect(server.url) as db:
        return seen.claim is not None, db.execute("SELECT count(*) FROM invoices").fetchone()[0]


def test_a_commit_includes_the_users_own_writes(store, server):
    assert isinstance(store, SharesTransactions)
    with store.transaction() as connection:
        write(connection)
        joined = store.join(connection)
        outcomes = joined.execute([start(), acquire(), swap("a.1"), r.ReadRun(run="r")])
        assert [type(one).__name__ for one in outcomes] == ["Started", "Granted", "Swapped", "RunSeen"]
        assert there(store, server) == (False, 0)
        joined.close()
        with pytest.raises(StoreUnusable, match="Join the transaction again"):
            joined.execute([start()])
    assert there(store, server) == (True, 1)


def test_a_rollback_undoes_commands_and_the_users_own_writes(store, server):
    for _ in range(2):  # the connection can be used again
        with pytest.raises(Boom):
            with store.transaction() as connection:
                write(connection)
                assert isinstance(store.join(connection).execute([start()])[0], Started)
                raise Boom
    assert there(store, server) == (False, 0)
    with store.transaction() as connection:
        write(connection)
    assert there(store, server) == (False, 1)


def test_an_error_that_was_caught_within_the_block_is_not_taken_for_a_commit(store, server):
    with pytest.raises(StoreUnusable, match="nothing was committed"):
        with store.transaction() as connection:
            store.join(connection).execute([start()])
            write(connection)
            with pytest.raises((psycopg.Error, sqlalchemy.exc.DBAPIError)):
                write(connection)
            with pytest.raises(StoreUnusable, match="Roll the transaction back"):
                store.join(connection)
    assert there(store, server) == (False, 0)


@pytest.mark.parametrize("end", ["ROLLBACK", "COMMIT", "ROLLBACK; BEGIN", "COMMIT AND CHAIN"])
@pytest.mark.parametrize("later", [False, True])
def test_a_transaction_that_the_user_has_ended_is_not_joined(store, server, end, later):
    for _ in range(2):  # the connection can be used again
        with pytest.raises(InvalidOption, match="ended the transaction itself"):
            with store.transaction() as connection:
                driver = driver_of(connection)
                driver.execute(end)
                if later:
                    write(connection)
                store.join(connection)
    assert there(store, server) == (False, 0)
    with store.transaction() as connection:
        write(connection)
        store.join(connection).execute([start()])
    assert there(store, server) == (True, 1)


def test_savepoints_and_the_isolation_level_of_the_user_are_unchanged(store, server):
    with store.transaction() as connection:
        driver = driver_of(connection)
        driver.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
        driver.execute("SAVEPOINT mine")
        write(connection, "i2")
        driver.execute("ROLLBACK TO mine")
        write(connection)
        store.join(connection).execute([start()])
        driver.execute("SAVEPOINT left_open")
        store.join(connection).execute([start("s")])
        assert driver.execute("SHOW transaction_isolation").fetchone() == ("serializable",)
    assert there(store, server) == (True, 1)
    assert there(store, server, "s") == (True, 1)


def test_a_connection_that_was_joined_can_be_used_by_the_user_afterwards(server, pool, engine):
    for handle in (pool, engine):
        store = open_store(handle, namespace="default", options=SCHEMA)
        with store.transaction():
            pass
        with pool.connection() if handle is pool else engine.connect() as connection:
            store.join(connection).execute([start(type(handle).__name__)])
            connection.commit()
        assert there(store, server, type(handle).__name__) == (True, 0)
        store.close()


def test_the_users_own_errors_are_raised_unchanged(store, server):
    with pytest.raises((psycopg.errors.UniqueViolation, sqlalchemy.exc.IntegrityError)):
        with store.transaction() as connection:
            write(connection)
            write(connection)
    assert there(store, server) == (False, 0)


def test_an_error_at_the_commit_by_the_users_constraints_is_raised_unchanged(store, server):
    with psycopg.connect(server.url, autocommit=True) as db:
        db.execute("ALTER TABLE invoices ADD CONSTRAINT once UNIQUE (id) DEFERRABLE INITIALLY DEFERRED")
        db.execute("ALTER TABLE invoices DROP CONSTRAINT invoices_pkey")
    with pytest.raises((psycopg.errors.UniqueViolation, sqlalchemy.exc.IntegrityError)):
        with store.transaction() as connection:
            store.join(connection).execute([start()])
            write(connection)
            write(connection)
    assert there(store, server) == (False, 0)


def test_a_bad_command_fails_neither_the_transaction_nor_other_commands(store, server):
    with store.transaction() as connection:
        bad = r.PostEvent(run="a\0b", event=RunEvent(kind="signal", name="x"))
        outcomes = store.join(connection).execute([start(), bad, start("s")])
        assert [type(one).__name__ for one in outcomes] == ["Started", "Failed", "Started"]
        write(connection)
    assert there(store, server) == (True, 1)


def test_a_joined_transaction_waits_for_a_locked_row_for_a_limited_time(store, server):
    connection = store.connect("commands")
    connection.execute([start(), start("s")])
    connection.close()
    signals = [r.PostEvent(run=name, event=RunEvent(kind="signal")) for name in ("r", "s")]
    with psycopg.connect(server.url) as other:
        other.execute("SELECT 1 FROM tests.runs WHERE id = 'r' FOR UPDATE")
        timer = threading.Timer(0.5, other.rollback)  # far longer than a batch looks for a row
        timer.start()
        with store.transaction() as mine:
            assert [type(one) for one in store.join(mine).execute(signals)] == [Posted, Posted]
            timer.join()
    with psycopg.connect(server.url) as other:
        other.execute("SELECT 1 FROM tests.runs WHERE id = 'r' FOR UPDATE")
        with store.transaction() as mine:
            (stuck,) = store.join(mine).execute(signals[:1])
            assert isinstance(stuck, c.Failed)
            assert isinstance(stuck.error, StoreContended)
            write(mine)
        other.rollback()
    assert there(store, server) == (True, 1)


def test_the_lock_timeout_of_the_users_transaction_is_unchanged(store):
    with store.transaction() as connection:
        driver = driver_of(connection)
        driver.execute("SET LOCAL lock_timeout = '7s'")
        idle = driver.execute("SHOW idle_in_transaction_session_timeout").fetchone()
        store.join(connection).execute([start(), acquire()])
        assert driver.execute("SHOW lock_timeout").fetchone() == ("7s",)
        assert driver.execute("SHOW idle_in_transaction_session_timeout").fetchone() == idle == ("0",)


def test_no_notification_is_sent_before_the_commit(store, server):
    with psycopg.connect(server.url, autocommit=True) as listener:
        waiting = store.connect("commands")
        waiting.execute([acquire(), acquire(id="far.1", queue=True)])
        watch = store.watch("far", print)
        listener.execute(watch._listen)
        watch.close()
        with store.transaction() as connection:
            (outcome,) = store.join(connection).execute([c.Abandon(key="k", id="a.1", ttl=0)])
            assert outcome.woken == ("far.1",)
        waiting.close()
        assert list(listener.notifies(timeout=0.1)) == []


# -- connections of the user's own -------------------------------------------------------------------------------


def test_any_connection_to_the_same_database_can_be_joined(server, engine):
    store = open_store(server.url, namespace="default", options=SCHEMA)
    with psycopg.connect(server.url) as db:
        store.join(db).execute([start("a")])
    with psycopg.connect(server.url, autocommit=True) as db, db.transaction():
        store.join(db).execute([start("b")])
    with psycopg.connect(server.url, row_factory=psycopg.rows.dict_row) as db:
        store.join(db).execute([start("c")])
    with engine.begin() as connection:
        store.join(connection).execute([start("d")])
    with engine.connect() as connection:
        store.join(connection).execute([start("e")])  # begins a transaction, which is not committed
    connection = store.connect("queries")
    page = connection.execute([r.ListRuns()])[0]
    connection.close()
    assert {run.id for run in page.runs} == {"a", "b", "c", "d"}
    store.close()


def test_an_autocommit_connection_is_refused(server, engine):
    store = open_store(server.url, namespace="default", options=SCHEMA)
    with psycopg.connect(server.url, autocommit=True) as db:
        with pytest.raises(InvalidOption, match=r"with connection\.transaction"):
            store.join(db)
        with db.transaction():
            joined = store.join(db)
        with pytest.raises(InvalidOption, match="autocommit"):
            joined.execute([start()])
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        with pytest.raises(InvalidOption, match="autocommit"):
            store.join(connection)
    store.close()


def test_an_engine_in_autocommit_mode_is_refused_for_transactions(server):
    engine = sqlalchemy.create_engine(
        server.url.replace("postgresql://", "postgresql+psycopg://"), isolation_level="AUTOCOMMIT"
    )
    store = open_store(engine, namespace="default", options=SCHEMA)
    with pytest.raises(InvalidOption, match="AUTOCOMMIT"):
        with store.transaction():
            pytest.fail("nobody comes here")
    store.close()
    engine.dispose()


def test_a_connection_to_another_database_is_refused(server):
    with psycopg.connect(server.url, autocommit=True) as db:
        db.execute("CREATE DATABASE not_ours")
        other = server.url.rpartition("/")[0] + "/not_ours"
        store = open_store(server.url, namespace="default", options=SCHEMA)
        with psycopg.connect(other) as outsider, pytest.raises(InvalidOption, match="another database"):
            store.join(outsider)
        store.close()
        db.execute("DROP DATABASE not_ours")


def test_an_object_that_is_no_known_connection_is_refused(server, engine):
    store = open_store(server.url, namespace="default", options=SCHEMA)
    with psycopg.connect(server.url) as db:
        pass
    with pytest.raises(InvalidOption, match="closed"):
        store.join(db)
    with sqlalchemy.create_engine("sqlite://").connect() as connection:
        with pytest.raises(InvalidOption, match=r"sqlite\+pysqlite"):
            store.join(connection)
    with psycopg.connect(server.url, client_encoding="latin1") as db:
        with pytest.raises(InvalidOption, match="client_encoding=utf8"):
            store.join(db)
    for thing in (engine, object(), None):
        with pytest.raises(InvalidOption, match="cannot be joined"):
            store.join(thing)
    store.close()


# -- what can go wrong on the way ---------------------------------------------------------------------------------


def test_a_commit_without_an_answer_is_ambiguous(store, server):
    with pytest.raises(StoreUnavailable) as caught:
        with store.transaction() as connection:
            write(connection)
            driver = driver_of(connection)
            with psycopg.connect(server.url, autocommit=True) as admin:
                admin.execute("SELECT pg_terminate_backend(%s)", (driver.info.backend_pid,))
    assert caught.value.ambiguous


def test_a_connection_that_was_lost_between_two_blocks_is_replaced(server):
    store = open_store(server.url, namespace="default", options=SCHEMA)
    with store.transaction() as connection:
        first = connection.info.backend_pid
    with store.transaction() as connection:
        assert connection.info.backend_pid == first, "it is used again"
    with psycopg.connect(server.url, autocommit=True) as admin:
        admin.execute("SELECT pg_terminate_backend(%s)", (first,))
    with store.transaction() as connection:
        write(connection)
    assert there(store, server) == (False, 1)
    store.close()
    assert connection.closed


def test_a_connection_that_is_lost_within_the_block_has_changed_nothing(server):
    with Proxy("127.0.0.1", server.port) as proxy:
        store = open_store(proxy.url_for(server.url), namespace="default", options=SCHEMA)
        with pytest.raises(StoreError) as caught:
            with store.transaction() as connection:
                joined = store.join(connection)
                joined.execute([start()])
                proxy.cut()
                joined.execute([start("s")])
        assert not caught.value.ambiguous
        store.close()


def test_a_transaction_on_an_unreachable_server_is_refused_as_unavailable():
    store = open_store("postgresql://127.0.0.1:1/db", namespace="default")
    with pytest.raises(StoreUnavailable, match="cannot be reached") as caught:
        with store.transaction():
            pytest.fail("nobody comes here")
    assert not caught.value.ambiguous
    store.close()


def test_an_exhausted_pool_or_engine_is_unavailable(server):
    with psycopg_pool.ConnectionPool(server.url, min_size=1, max_size=1, open=True, timeout=0.05) as pool:
        store = open_store(pool, namespace="default", options=SCHEMA)
        with pool.connection(timeout=30), pytest.raises(StoreUnavailable, match="get a connection"):
            with store.transaction():
                pytest.fail("nobody comes here")
        store.close()
    engine = sqlalchemy.create_engine(
        server.url.replace("postgresql://", "postgresql+psycopg://"), pool_size=1, max_overflow=0, pool_timeout=0.05
    )
    store = open_store(engine, namespace="default", options=SCHEMA)
    with engine.connect(), pytest.raises(StoreUnavailable, match="no connection is available"):
        with store.transaction():
            pytest.fail("nobody comes here")
    store.close()
    engine.dispose()


def test_a_transaction_with_a_repeatable_read_snapshot_gets_a_serialisation_error(store, server):
    """Rows that were written after the snapshot cannot be decided on: the command is refused, and the run is
    unchanged."""
    connection = store.connect("commands")
    connection.execute([start()])
    with psycopg.connect(server.url) as mine:
        mine.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        mine.execute("SELECT 1")
        connection.execute([r.PostEvent(run="r", event=RunEvent(kind="signal"))])
        (outcome,) = store.join(mine).execute([r.PostEvent(run="r", event=RunEvent(kind="signal"))])
        assert isinstance(outcome, c.Failed)
    (seen,) = connection.execute([r.ReadRun(run="r", history=True)])
    assert isinstance(seen, RunSeen)
    assert [event.number for event in seen.claim.events] == [1]
    connection.close()
