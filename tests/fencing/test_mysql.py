"""The fence within a transaction on MariaDB: connections of PyMySQL and of SQLAlchemy."""

from __future__ import annotations

import threading

import pymysql
import pytest
import real_servers
import sqlalchemy
from waiting import eventually

from holdfast.errors import InvalidOption, StaleToken, StoreUnusable
from holdfast.fencing import guard
from holdfast.stores.sql.address import parse

T0 = 1_790_000_000_000_000


class Lease:
    def __init__(self, token, floor):
        self.token, self.floor = token, floor


@pytest.fixture
def options():
    """Options of a connection to an empty database."""
    found = parse(real_servers.shared("mariadb").url).dialect._options
    with pymysql.connect(**found, autocommit=True) as db, db.cursor() as cursor:
        cursor.execute("CREATE DATABASE fences")
        yield {**found, "database": "fences"}
        cursor.execute("DROP DATABASE fences")


@pytest.fixture
def connect(options):
    made = []

    def open_one(**more):
        made.append(pymysql.connect(**{**options, **more}))
        return made[-1]

    yield open_one
    for one in made:
        one.close()


def fences(db):
    db.rollback()
    with db.cursor() as cursor:
        cursor.execute("SELECT resource, floor FROM holdfast_fences")
        return {name.decode(): floor for name, floor in cursor.fetchall()}


def write(db, token, resource="counter"):
    guard(db, resource, token)
    db.commit()


def test_a_higher_token_passes_the_same_one_again_and_a_lower_one_is_refused(connect):
    db = connect()
    for token in (T0, T0, T0 + 1, T0 + 1):
        write(db, token)
    with pytest.raises(StaleToken) as refused:
        write(db, T0)
    assert (refused.value.offered, refused.value.highest) == (T0, T0 + 1)
    assert fences(db) == {"counter": T0 + 1}


def test_a_refusal_leaves_no_transaction_open_that_the_guard_has_opened(connect):
    db, other = connect(), connect()
    write(db, T0)
    with pytest.raises(StaleToken):
        guard(db, "counter", T0 - 1)
    write(other, T0 + 1)


def test_holders_of_a_semaphore_do_not_exclude_each_other(connect):
    db = connect()
    for token in (200, 100, 200):
        write(db, Lease(token, 100))
    assert fences(db) == {"counter": 100}


def test_resources_whose_names_text_columns_take_for_equal_are_distinct(connect):
    db = connect()
    names = ["a", "A", "a ", "ä", "%s", "{x}", "'; DROP TABLE holdfast_fences; --", "x" * 512]
    for place, name in enumerate(names):
        write(db, 200 - place, name)
    assert fences(db) == {name: 200 - place for place, name in enumerate(names)}


def test_a_concurrent_writer_waits_and_is_compared_with_what_was_committed(connect):
    one, two = connect(), connect()
    write(one, T0)
    guard(one, "counter", T0 + 5)
    refused = []

    def late():
        try:
            write(two, T0 + 1)
        except StaleToken as error:
            refused.append(error)

    thread = threading.Thread(target=late)
    thread.start()
    with connect(autocommit=True).cursor() as cursor:

        def waits():
            cursor.execute("SELECT COUNT(*) FROM information_schema.INNODB_TRX WHERE trx_state = 'LOCK WAIT'")
            return cursor.fetchone() == (1,)

        eventually(waits)
    one.commit()
    thread.join()
    assert [error.highest for error in refused] == [T0 + 5]


def test_a_rolled_back_transaction_leaves_the_fence_as_it_was(connect):
    db = connect()
    write(db, T0)
    guard(db, "counter", T0 + 9)
    db.rollback()
    assert fences(db) == {"counter": T0}


def test_a_connection_that_commits_each_statement_is_refused(connect):
    with pytest.raises(InvalidOption, match="open transaction"):
        guard(connect(autocommit=True), "counter", T0)


def test_the_table_is_not_created_where_that_would_commit_the_transaction(connect):
    db = connect()
    db.begin()
    with db.cursor() as cursor:
        cursor.execute("SELECT 1")
    with pytest.raises(StoreUnusable, match="CREATE TABLE IF NOT EXISTS holdfast_fences"):
        guard(db, "counter", T0)


@pytest.mark.parametrize(
    "kind", ["TEMPORARY TABLE holdfast_fences {} ENGINE=InnoDB", "TABLE holdfast_fences {} ENGINE=MEMORY"]
)
def test_a_table_that_does_not_keep_its_rows_is_refused(connect, kind):
    db = connect()
    write(db, T0)
    with db.cursor() as cursor:
        if "MEMORY" in kind:
            cursor.execute("DROP TABLE holdfast_fences")
        cursor.execute(f"CREATE {kind.format('(resource VARBINARY(512) PRIMARY KEY, floor BIGINT NOT NULL)')}")
    with pytest.raises(StoreUnusable, match="temporary table, or not an InnoDB table"):
        guard(db, "counter", T0)


def test_sqlalchemy_connections_and_sessions_are_guarded(options, connect):
    place = sqlalchemy.URL.create(
        "mysql+pymysql", options["user"], options["password"], options["host"], options["port"], options["database"]
    )
    engine = sqlalchemy.create_engine(place)
    with engine.connect() as db:
        guard(db, "counter", T0)
        db.commit()
        with pytest.raises(StaleToken):
            guard(db, "counter", T0 - 1)
        assert not db.in_transaction()
        with pytest.raises(InvalidOption, match="AUTOCOMMIT"):
            guard(db.execution_options(isolation_level="AUTOCOMMIT"), "counter", T0)
    engine.dispose()
    assert fences(connect()) == {"counter": T0}
