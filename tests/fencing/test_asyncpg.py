"""The fence within a user's own PostgreSQL transaction, by asyncpg."""

import asyncio

import asyncpg
import pytest
from waiting import eventually_async

from fencing.suite import T0, Fencing, Guarding
from fencing.writers import Asyncpg, PooledAsyncpg
from holdfast.errors import InvalidOption, StaleToken
from holdfast.fencing import guard, guard_async


class TestAsyncpg(Guarding):
    kind = Asyncpg

    def test_without_an_open_transaction_the_guard_is_refused_with_what_to_do(self, connect, database):
        writer = connect()
        with pytest.raises(InvalidOption, match=r"async with connection\.transaction"):
            writer.guard("counter", T0)
        assert not database.has_fences()

    def test_a_transaction_begun_by_a_statement_is_recognised(self, connect, database):
        writer = connect()
        for token in (T0, T0 - 1):
            writer.execute("BEGIN")
            try:
                writer.guard("counter", token)
                writer.execute("COMMIT")
            except StaleToken:
                writer.execute("ROLLBACK")
        assert database.fences() == {"counter": T0}

    def test_the_synchronous_guard_names_the_asynchronous_one(self, connect, database):
        writer = connect()
        with pytest.raises(InvalidOption, match=r"is async.*await guard_async"):
            guard(writer.raw, "counter", T0)

    def test_the_users_record_class_has_no_effect(self, connect, database):
        class Mine(asyncpg.Record):
            def __iter__(self):
                return iter(self.keys())

            __getitem__ = asyncpg.Record.get

        class Records(Asyncpg):
            def open(self):
                self.raw = self.do(asyncpg.connect(self.url, record_class=Mine))

        writer = connect(Records)
        writer.begin()
        writer.guard("counter", T0)
        writer.commit()
        writer.begin()
        with pytest.raises(StaleToken):
            writer.guard("counter", T0 - 1)
        writer.rollback()

    def test_an_aborted_transaction_is_the_drivers_own_error(self, connect, database):
        writer = connect()
        writer.begin()
        with pytest.raises(asyncpg.PostgresError):
            writer.execute("SELECT 1 / 0")
        with pytest.raises(asyncpg.InFailedSQLTransactionError):
            writer.guard("counter", T0)
        writer.rollback()

    def test_a_guard_that_is_cancelled_while_it_waits_leaves_a_usable_connection(self, connect, database):
        newer, older = connect(), connect()
        newer.begin()
        newer.guard("counter", T0)
        number = older.raw.get_server_pid()

        async def cancelled():
            async with older.raw.transaction():
                task = asyncio.create_task(guard_async(older.raw, "counter", T0 - 1))
                await eventually_async(lambda: database.waits(number))
                task.cancel()
                await task

        with pytest.raises(asyncio.CancelledError):
            older.do(cancelled())
        newer.rollback()
        older.write(T0 - 1)
        assert database.fences() == {"counter": T0 - 1}


class TestPooledAsyncpg(Fencing):
    """A pool returns a proxy of the connection."""

    kind = PooledAsyncpg
