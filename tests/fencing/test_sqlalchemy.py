"""The fence within a transaction of SQLAlchemy's: connections and sessions, on PostgreSQL and on SQLite."""

import asyncio
import sqlite3
from types import SimpleNamespace

import pytest
import sqlalchemy
import sqlalchemy.orm
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

from fencing import writers
from fencing.suite import T0, Fencing, Guarding
from holdfast.errors import InvalidKey, InvalidOption, StaleToken
from holdfast.fencing import guard, guard_async


class SqlAlchemyGuard:
    """What is specific to SQLAlchemy, sync and async."""

    def test_a_refusal_rolls_back_a_transaction_that_the_guard_opened(self, connect, database):
        writer = connect()
        writer.write(T0)
        with pytest.raises(StaleToken):
            writer.guard("counter", T0 - 1)
        assert not writer.raw.in_transaction()
        connect().write(T0 + 1)

    def test_the_guard_begins_a_transaction_like_any_statement(self, connect, database):
        writer = connect()
        writer.guard("counter", T0)
        assert writer.raw.in_transaction()
        writer.commit()
        assert database.fences() == {"counter": T0}

    def test_the_isolation_level_autocommit_is_refused(self, connect, database):
        writer = connect()
        writer.begin("AUTOCOMMIT")
        with pytest.raises(InvalidOption, match="isolation level AUTOCOMMIT"):
            writer.guard("counter", T0)
        writer.rollback()
        assert not database.has_fences()


class TestConnection(Guarding, SqlAlchemyGuard):
    kind = writers.Alchemy


class TestConnectionOnPsycopg2(Guarding, SqlAlchemyGuard):
    kind = writers.AlchemyOnPsycopg2


class TestAsyncConnection(Guarding, SqlAlchemyGuard):
    kind = writers.AsyncAlchemy


class TestAsyncConnectionOnPsycopg(Fencing, SqlAlchemyGuard):
    kind = writers.AsyncAlchemyOnPsycopg


class TestSession(Fencing, SqlAlchemyGuard):
    kind = writers.AlchemySession


class TestAsyncSession(Fencing, SqlAlchemyGuard):
    kind = writers.AsyncAlchemySession


class TestScopedSession(Fencing):
    kind = writers.ScopedAlchemySession


class TestScopedAsyncSession(Fencing):
    kind = writers.ScopedAsyncAlchemySession


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_an_engine_in_autocommit_mode_is_refused_too(database, driver):
    engine = sqlalchemy.create_engine(
        writers.engine_url(database.url, driver), isolation_level="AUTOCOMMIT", poolclass=sqlalchemy.NullPool
    )
    with engine.connect() as connection, pytest.raises(InvalidOption, match="AUTOCOMMIT"):
        guard(connection, "counter", T0)
    with sqlalchemy.orm.Session(engine) as session, pytest.raises(InvalidOption, match="AUTOCOMMIT"):
        guard(session, "counter", T0)
    engine.dispose()
    assert not database.has_fences()


@pytest.mark.parametrize("kind", [writers.AsyncAlchemy, writers.AsyncAlchemySession, writers.ScopedAsyncAlchemySession])
def test_the_synchronous_guard_names_the_asynchronous_one(database, connect, kind):
    with pytest.raises(InvalidOption, match=r"is async.*await guard_async"):
        guard(connect(kind).raw, "counter", T0)


@pytest.mark.parametrize("kind", [writers.Alchemy, writers.AlchemySession, writers.ScopedAlchemySession])
def test_the_asynchronous_guard_names_the_synchronous_one(database, connect, kind):
    with pytest.raises(InvalidOption, match=r"is sync, .*use `guard\(\.\.\.\)`"):
        asyncio.run(guard_async(connect(kind).raw, "counter", T0))


def test_a_driver_whose_autocommit_mode_is_unknown_is_refused(database, monkeypatch):
    engine = sqlalchemy.create_engine(writers.engine_url(database.url, "psycopg"), poolclass=sqlalchemy.NullPool)
    with engine.connect() as connection:
        unknown = SimpleNamespace(dbapi_connection=object(), rollback=lambda: None)
        monkeypatch.setattr(sqlalchemy.Connection, "connection", unknown)
        with pytest.raises(InvalidOption, match="cannot detect"):
            guard(connection, "counter", T0)
        monkeypatch.undo()
    engine.dispose()


def test_a_session_with_new_objects_is_not_flushed_by_the_guard_and_keeps_them(database):
    class Base(sqlalchemy.orm.DeclarativeBase):
        pass

    class Entry(Base):
        __tablename__ = "log"
        id: sqlalchemy.orm.Mapped[int] = sqlalchemy.orm.mapped_column(primary_key=True)
        token: sqlalchemy.orm.Mapped[int] = sqlalchemy.orm.mapped_column(sqlalchemy.BigInteger)

    engine = sqlalchemy.create_engine(writers.engine_url(database.url, "psycopg"), poolclass=sqlalchemy.NullPool)
    with sqlalchemy.orm.Session(engine) as session:
        session.add(Entry(token=T0))
        guard(session, "counter", T0)
        assert len(session.new) == 1
        session.commit()
        session.add(Entry(token=T0 - 1))
        with pytest.raises(StaleToken):
            guard(session, "counter", T0 - 1)
        assert len(session.new) == 1, "the session was begun by the user: it is the user's to roll back"
        session.rollback()
    engine.dispose()
    assert database.log() == [T0]


# -- SQLite -----------------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "user.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE log (id INTEGER PRIMARY KEY AUTOINCREMENT, token INTEGER)")
    connection.close()
    return path


@pytest.fixture
def engine(file):
    made = sqlalchemy.create_engine(f"sqlite:///{file}", connect_args={"timeout": 0}, poolclass=sqlalchemy.NullPool)
    yield made
    made.dispose()


def seen(file, sql):
    connection = sqlite3.connect(file, timeout=0)
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


def fences(file):
    return dict(seen(file, "SELECT resource, floor FROM holdfast_fences"))


def log(file):
    return [token for (token,) in seen(file, "SELECT token FROM log ORDER BY id")]


@pytest.fixture(params=["connection", "session"])
def owner(request, engine):
    with engine.connect() if request.param == "connection" else sqlalchemy.orm.Session(engine) as made:
        yield made


def write(owner, token):
    try:
        guard(owner, "counter", token)
        owner.execute(text("INSERT INTO log (token) VALUES (:token)"), {"token": getattr(token, "token", token)})
    except BaseException:
        owner.rollback()
        raise
    owner.commit()


def test_another_dialect_is_refused(engine, monkeypatch):
    monkeypatch.setattr(engine.dialect, "name", "oracle")
    with engine.connect() as connection, pytest.raises(InvalidOption, match="not oracle"):
        guard(connection, "counter", T0)


def test_on_sqlite_newer_tokens_and_the_same_pass_and_lower_ones_do_not(owner, file):
    for token in (T0, T0, T0 + 1):
        write(owner, token)
    with pytest.raises(StaleToken) as caught:
        write(owner, T0)
    assert caught.value.highest == T0 + 1
    assert log(file) == [T0, T0, T0 + 1]
    assert fences(file) == {"counter": T0 + 1}


def test_on_sqlite_holders_of_a_semaphore_do_not_refuse_each_other(owner, file):
    write(owner, SimpleNamespace(token=200, floor=100))
    write(owner, SimpleNamespace(token=100, floor=100))
    assert fences(file) == {"counter": 100}


def test_on_sqlite_the_guard_takes_the_write_lock_and_a_rollback_removes_the_floor(owner, file):
    write(owner, 100)
    guard(owner, "counter", 200)
    other = sqlite3.connect(file, timeout=0)
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        guard(other, "counter", 300)
    other.close()
    owner.rollback()
    assert fences(file) == {"counter": 100}


def test_on_sqlite_a_refusal_rolls_back_a_transaction_that_the_guard_opened(owner, file):
    write(owner, 200)
    with pytest.raises(StaleToken):
        guard(owner, "counter", 100)
    assert not owner.in_transaction()
    other = sqlite3.connect(file, timeout=0)
    with other:
        guard(other, "counter", 300)
    other.close()


def test_on_sqlite_the_isolation_level_autocommit_is_refused(engine, file):
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        with pytest.raises(InvalidOption, match="open transaction"):
            guard(connection, "counter", 100)
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        guard(connection, "counter", 100)
        connection.exec_driver_sql("COMMIT")
    assert fences(file) == {"counter": 100}


def test_on_sqlite_transactions_that_are_begun_by_an_event_are_respected(engine, file):
    """The documented recipe for transactions that begin when SQLAlchemy begins them."""

    @sqlalchemy.event.listens_for(engine, "connect")
    def leave_it_to_us(connection, record):
        connection.isolation_level = None

    @sqlalchemy.event.listens_for(engine, "begin")
    def begin(connection):
        connection.exec_driver_sql("BEGIN")

    with engine.connect() as connection:
        write(connection, 200)
        with pytest.raises(StaleToken):
            write(connection, 100)
    assert log(file) == [200]


def test_on_sqlite_a_temporary_table_of_the_same_name_is_not_used_as_the_fence(engine):
    with engine.connect() as connection:
        write(connection, 200)
        connection.execute(text("CREATE TEMP TABLE holdfast_fences (resource TEXT PRIMARY KEY, floor INTEGER)"))
        connection.commit()
        with pytest.raises(StaleToken):
            write(connection, 100)


def test_on_sqlite_bad_inputs_are_refused_before_a_transaction_is_opened(owner):
    with pytest.raises(InvalidKey):
        guard(owner, "", 100)
    with pytest.raises(InvalidOption):
        guard(owner, "counter", -1)
    assert not owner.in_transaction()


@pytest.mark.parametrize("kind", ["connection", "session"])
def test_on_sqlite_the_async_guard_has_the_same_behaviour(file, kind):
    async def scenario():
        engine = create_async_engine(f"sqlite+aiosqlite:///{file}", poolclass=sqlalchemy.NullPool)
        async with engine.connect() if kind == "connection" else AsyncSession(engine) as owner:
            await guard_async(owner, "counter", T0)
            await owner.execute(text("INSERT INTO log (token) VALUES (:token)"), {"token": T0})
            await owner.commit()
            with pytest.raises(StaleToken) as caught:
                await guard_async(owner, "counter", T0 - 1)
            assert caught.value.highest == T0
            assert not owner.in_transaction()
        await engine.dispose()

    asyncio.run(scenario())
    assert log(file) == [T0]
    assert fences(file) == {"counter": T0}
