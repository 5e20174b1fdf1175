"""The fence within a user's own PostgreSQL transaction, by psycopg 3, sync and async."""

import asyncio
import random
import subprocess
import sys
from pathlib import Path

import psycopg
import psycopg.rows
import pytest
import real_servers
from waiting import eventually, eventually_async

from fencing.suite import T0, Fencing, Guarding, meanwhile
from fencing.writers import AsyncPsycopg, PooledPsycopg, Psycopg
from holdfast.errors import InvalidOption, StaleToken
from holdfast.fencing import guard, guard_async

WORKER = Path(__file__).with_name("worker.py")
HANG = 120
"""Seconds after which a test is broken rather than slow."""


class TestPsycopg(Guarding):
    kind = Psycopg


class TestAsyncPsycopg(Guarding):
    kind = AsyncPsycopg

    def test_the_synchronous_guard_names_the_asynchronous_one(self, connect, database):
        with pytest.raises(InvalidOption, match=r"is async.*await guard_async"):
            guard(connect().raw, "counter", T0)
        assert not database.has_fences()

    def test_in_autocommit_mode_the_guard_needs_an_open_transaction(self, connect, database):
        writer = connect()
        writer.do(writer.raw.set_autocommit(True))
        with pytest.raises(InvalidOption, match=r"connection\.transaction"):
            writer.guard("counter", T0)

        async def guarded(token):
            async with writer.raw.transaction():
                await guard_async(writer.raw, "counter", token)

        writer.do(guarded(T0))
        with pytest.raises(StaleToken):
            writer.do(guarded(T0 - 1))
        assert database.fences() == {"counter": T0}

    def test_in_pipeline_mode_the_guard_waits_for_its_result(self, connect, database):
        writer = connect()

        async def guarded(token):
            async with writer.raw.pipeline(), writer.raw.transaction():
                await writer.raw.execute("INSERT INTO log (token) VALUES (1)")
                await guard_async(writer.raw, "counter", token)

        writer.do(guarded(T0))
        with pytest.raises(StaleToken):
            writer.do(guarded(T0 - 1))
        assert database.log() == [1]
        writer.rollback()

    def test_a_refusal_rolls_back_a_transaction_that_the_guard_opened(self, connect, database):
        writer = connect()
        writer.write(T0)
        with pytest.raises(StaleToken):
            writer.guard("counter", T0 - 1)
        assert writer.raw.info.transaction_status == psycopg.pq.TransactionStatus.IDLE

    def test_a_guard_that_is_cancelled_while_it_waits_leaves_a_usable_connection(self, connect, database):
        newer, older = connect(), connect()
        newer.begin()
        newer.guard("counter", T0)

        async def cancelled():
            task = asyncio.create_task(guard_async(older.raw, "counter", T0 - 1))
            await eventually_async(lambda: database.waits(older.raw.info.backend_pid))
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        older.do(cancelled())
        newer.rollback()
        assert older.raw.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
        older.write(T0 - 1)


class TestPooledPsycopg(Fencing):
    kind = PooledPsycopg


@pytest.fixture
def db(database):
    with psycopg.connect(database.url) as connection:
        yield connection


def write(db, token):
    with db.transaction():
        guard(db, "counter", token)
        db.execute("INSERT INTO log (token) VALUES (%s)", (token,))


def in_order(db):
    """A newer token passes, and then an older one does not."""
    write(db, T0)
    with pytest.raises(StaleToken) as caught:
        write(db, T0 - 1)
    assert caught.value.highest == T0


def test_the_asynchronous_guard_names_the_synchronous_one(db, database):
    coroutine = guard_async(db, "counter", T0)
    with pytest.raises(InvalidOption, match=r"is sync, .*use `guard\(\.\.\.\)`"):
        coroutine.send(None)
    assert not database.has_fences()


def test_the_guard_opens_the_transaction_and_leaves_it_open(db, database):
    guard(db, "counter", T0)
    assert db.info.transaction_status == psycopg.pq.TransactionStatus.INTRANS
    assert not database.has_fences()
    db.rollback()


def test_a_refusal_rolls_back_a_transaction_that_the_guard_opened(db, database):
    """Its row lock would keep newer holders waiting until the user rolls back."""
    write(db, T0)
    with pytest.raises(StaleToken):
        guard(db, "counter", T0 - 1)
    assert db.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    with psycopg.connect(database.url) as other:
        write(other, T0 + 1)


def test_in_autocommit_mode_the_guard_needs_an_open_transaction(db, database):
    db.autocommit = True
    with pytest.raises(InvalidOption, match=r"with connection\.transaction\(\)"):
        guard(db, "counter", T0)
    assert not database.has_fences()
    in_order(db)
    db.execute("BEGIN")
    guard(db, "counter", T0 + 1)
    db.execute("COMMIT")
    assert database.fences() == {"counter": T0 + 1}


def test_in_a_pipeline_in_autocommit_mode_the_guard_needs_an_open_transaction_too(db, database):
    """There the server would commit right after the guard."""
    db.autocommit = True
    with db.pipeline():
        db.execute("INSERT INTO log (token) VALUES (1)")
        with pytest.raises(InvalidOption, match="autocommit"):
            guard(db, "counter", T0)
    with db.pipeline():
        in_order(db)
    with db.pipeline():
        db.execute("BEGIN")
        guard(db, "counter", T0 + 1)
        db.execute("COMMIT")
    assert database.log() == [1, T0]
    assert database.fences() == {"counter": T0 + 1}


@pytest.mark.parametrize("autocommit", [False, True])
def test_in_pipeline_mode_the_guard_waits_for_its_result(db, database, autocommit):
    db.autocommit = autocommit
    write(db, T0)
    db.commit()
    with pytest.raises(StaleToken):
        with db.pipeline(), db.transaction():
            db.execute("INSERT INTO log (token) VALUES (1)")
            guard(db, "counter", T0 - 1)
    with db.pipeline(), db.transaction():
        guard(db, "counter", T0 + 1)
        db.execute("INSERT INTO log (token) VALUES (2)")
    db.commit()
    assert database.log() == [T0, 2]
    assert database.fences() == {"counter": T0 + 1}


def test_in_a_pipeline_a_transaction_of_the_guards_own_is_rolled_back_when_it_refuses(db, database):
    write(db, T0)
    db.commit()
    with db.pipeline():
        with pytest.raises(StaleToken):
            guard(db, "counter", T0 - 1)
    assert db.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


@pytest.mark.parametrize("rows", [psycopg.rows.dict_row, psycopg.rows.scalar_row, psycopg.rows.namedtuple_row])
def test_the_users_row_factory_has_no_effect(db, rows):
    db.row_factory = rows
    in_order(db)


@pytest.mark.parametrize("cursors", [psycopg.ClientCursor, psycopg.RawCursor])
def test_the_users_cursor_factory_has_no_effect(db, database, cursors):
    db.cursor_factory = cursors
    with db.transaction():
        guard(db, "counter", T0)
    with pytest.raises(StaleToken), db.transaction():
        guard(db, "counter", T0 - 1)


@pytest.mark.parametrize("threshold", [0, 1, None])
def test_the_guard_works_with_prepared_statements(db, threshold):
    db.prepare_threshold = threshold
    for step in range(4):
        write(db, T0 + step)
    with pytest.raises(StaleToken):
        write(db, T0)


def test_a_statement_that_was_prepared_follows_the_table_to_another_schema(db, database):
    db.prepare_threshold = 0
    write(db, T0)
    db.commit()
    database.watcher.execute("CREATE SCHEMA elsewhere")
    database.watcher.execute("ALTER TABLE holdfast_fences SET SCHEMA elsewhere")
    db.execute("SET search_path = public, elsewhere")
    with pytest.raises(StaleToken):
        write(db, T0 - 1)
    db.rollback()


def test_the_guard_works_with_another_encoding_of_the_connection(database):
    with psycopg.connect(database.url, client_encoding="latin1") as db:
        for _ in range(2):
            guard(db, "é", T0)
            db.commit()
    assert database.fences() == {"é": T0}


def test_a_subclass_of_the_connection_is_recognised(database):
    class Mine(psycopg.Connection):
        pass

    with Mine.connect(database.url) as db:
        in_order(db)


def test_an_aborted_transaction_and_a_closed_connection_are_the_drivers_own_errors(db):
    with pytest.raises(psycopg.errors.DivisionByZero):
        db.execute("SELECT 1 / 0")
    with pytest.raises(psycopg.errors.InFailedSqlTransaction):
        guard(db, "counter", T0)
    db.close()
    with pytest.raises(psycopg.OperationalError, match="closed"):
        guard(db, "counter", T0)


def test_a_table_with_other_columns_lets_no_token_pass(db, database):
    database.watcher.execute("CREATE TABLE holdfast_fences (something text)")
    with pytest.raises(psycopg.errors.UndefinedColumn):
        guard(db, "counter", T0)
    assert db.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


def test_the_created_table_equals_that_of_the_packaged_sql(db, database, shipped):
    def form():
        columns = database.rows(
            "SELECT attname, format_type(atttypid, atttypmod), attnotnull, attcollation FROM pg_attribute "
            "WHERE attrelid = 'holdfast_fences'::regclass AND attnum > 0"
        )
        rules = database.rows(
            "SELECT pg_get_constraintdef(oid) FROM pg_constraint WHERE conrelid = 'holdfast_fences'::regclass "
            "ORDER BY 1"
        )
        return columns, rules

    write(db, T0)
    db.commit()
    made = form()
    database.watcher.execute("DROP TABLE holdfast_fences")
    database.watcher.execute(shipped)
    assert form() == made
    database.watcher.execute(shipped)  # twice is harmless


def test_rolling_back_to_a_savepoint_also_removes_the_stored_floor(db, database):
    write(db, T0)
    with db.transaction():
        with pytest.raises(ZeroDivisionError), db.transaction():
            guard(db, "counter", T0 + 2)
            raise ZeroDivisionError
        guard(db, "counter", T0 + 1)
    db.commit()
    assert database.fences() == {"counter": T0 + 1}


def test_a_session_that_ends_before_its_commit_has_stored_no_floor(db, database):
    """The newer writer is killed before its commit: the older one then passes."""
    write(db, T0 - 2)
    db.commit()
    number = db.info.backend_pid
    newer = subprocess.Popen(
        [sys.executable, WORKER, "pg_write_and_hang", database.url, str(T0)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert newer.stdout.readline() == "ready\n"
    with meanwhile(lambda: write(db, T0 - 1)) as outcome:
        eventually(lambda: database.waits(number))
        newer.kill()
        newer.communicate(timeout=HANG)
    assert outcome.error is None
    db.commit()
    assert database.log() == [T0 - 2, T0 - 1]
    assert database.fences() == {"counter": T0 - 1}


def test_a_stored_floor_survives_a_crash_of_the_server():
    with real_servers.server("postgres") as server:
        with psycopg.connect(server.url) as db:
            guard(db, "counter", T0)
        server.kill()
        server.restart()
        with psycopg.connect(server.url) as db:
            with pytest.raises(StaleToken) as caught:
                guard(db, "counter", T0 - 1)
            assert caught.value.highest == T0
            guard(db, "counter", T0)


def test_processes_with_random_tokens_pass_the_fence_in_rising_order_only(database):
    rounds, processes = 60, 4
    seed = random.randrange(10**6)
    racing = [
        subprocess.Popen(
            [sys.executable, WORKER, "pg_race", database.url, str(seed + number), "100000", str(rounds)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(processes)
    ]
    for racer in racing:
        assert racer.stdout.readline() == "ready\n"
    for racer in racing:
        racer.stdin.write("go\n")
        racer.stdin.flush()
    answers = [racer.communicate(timeout=HANG)[0].split() for racer in racing]
    assert [racer.returncode for racer in racing] == [0] * processes
    accepted, refused = (sum(int(answer[place]) for answer in answers) for place in (0, 1))
    assert accepted + refused == rounds * processes
    assert refused > 0, "too quiet to show anything"
    written = database.log()
    assert len(written) == accepted
    assert written == sorted(written), f"an older token came after a newer one (seed {seed})"
    assert database.fences() == {"counter": written[-1]}


@pytest.mark.parametrize(
    "code",
    [
        "import holdfast",
        "import sqlite3; from holdfast import guard; guard(sqlite3.connect(':memory:'), 'counter', 1)",
    ],
)
def test_no_driver_is_imported_before_a_connection_of_it_is_used(code):
    ask = "import sys; print(*{'psycopg', 'asyncpg', 'sqlalchemy', 'redis'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", f"{code}; {ask}"], capture_output=True, text=True, check=True)
    assert done.stdout == "\n"
