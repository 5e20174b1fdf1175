"""A common interface to every driver: a user's connection and its transaction, in synchronous calls. Each async
connection has its own event loop, so that one of them may wait for another in a thread.
"""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import psycopg
import sqlalchemy
import sqlalchemy.ext.asyncio as async_sqlalchemy
import sqlalchemy.orm
from psycopg_pool import ConnectionPool

from holdfast.fencing import guard, guard_async


class Writer:
    """A connection. `begin` is where the user's code opens its transaction, if the driver requires it."""

    raw: Any
    """What `guard` is given."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.open()

    def open(self) -> None: ...
    def begin(self, isolation: str = "READ COMMITTED") -> None: ...
    def execute(self, sql: str) -> list[tuple[Any, ...]]: ...
    def commit(self) -> None: ...
    def rollback(self) -> None: ...
    def close(self) -> None: ...

    def guard(self, resource: str, token: Any) -> None:
        guard(self.raw, resource, token)

    def write(self, token: Any, resource: str = "counter") -> None:
        """A complete transaction behind the fence."""
        self.begin()
        try:
            self.guard(resource, token)
            self.execute(f"INSERT INTO log (token) VALUES ({getattr(token, 'token', token)})")
        except BaseException:
            self.rollback()
            raise
        self.commit()


class Looping(Writer):
    def __init__(self, url: str) -> None:
        self._loop = asyncio.new_event_loop()
        super().__init__(url)

    def do(self, coroutine: Any) -> Any:
        return self._loop.run_until_complete(coroutine)

    def guard(self, resource: str, token: Any) -> None:
        self.do(guard_async(self.raw, resource, token))

    def close(self) -> None:
        self.do(self.close_async())
        self.do(self._loop.shutdown_asyncgens())
        self._loop.close()

    async def close_async(self) -> None: ...


class Psycopg(Writer):
    def open(self):
        self.raw = psycopg.connect(self.url)

    def begin(self, isolation="READ COMMITTED"):
        self.raw.isolation_level = psycopg.IsolationLevel[isolation.replace(" ", "_")]

    def execute(self, sql):
        cursor = psycopg.Cursor(self.raw)
        cursor.execute(sql)
        return cursor.fetchall() if cursor.description else []

    def commit(self):
        self.raw.commit()

    def rollback(self):
        self.raw.rollback()

    def close(self):
        self.raw.close()


class PooledPsycopg(Psycopg):
    def open(self):
        self._pool = ConnectionPool(self.url, min_size=1, max_size=1, open=True)
        self.raw = self._pool.getconn()

    def close(self):
        self._pool.putconn(self.raw)
        self._pool.close()


class AsyncPsycopg(Looping):
    def open(self):
        self.raw = self.do(psycopg.AsyncConnection.connect(self.url))

    def begin(self, isolation="READ COMMITTED"):
        self.do(self.raw.set_isolation_level(psycopg.IsolationLevel[isolation.replace(" ", "_")]))

    def execute(self, sql):
        return self.do(self._execute(sql))

    async def _execute(self, sql):
        cursor = psycopg.AsyncCursor(self.raw)
        await cursor.execute(sql)
        return await cursor.fetchall() if cursor.description else []

    def commit(self):
        self.do(self.raw.commit())

    def rollback(self):
        self.do(self.raw.rollback())

    async def close_async(self):
        await self.raw.close()


class Asyncpg(Looping):
    _transaction = None

    def open(self):
        self.raw = self.do(asyncpg.connect(self.url))

    def begin(self, isolation="READ COMMITTED"):
        self._transaction = self.raw.transaction(isolation=isolation.lower().replace(" ", "_"))
        self.do(self._transaction.start())

    def execute(self, sql):
        return [tuple(row) for row in self.do(self.raw.fetch(sql))]

    def commit(self):
        self._transaction, ending = None, self._transaction
        self.do(ending.commit())

    def rollback(self):
        self._transaction, ending = None, self._transaction
        if ending is not None:
            self.do(ending.rollback())

    async def close_async(self):
        await self.raw.close()


class PooledAsyncpg(Asyncpg):
    def open(self):
        self._pool = self.do(self._made())
        self.raw = self.do(self._pool.acquire())

    async def _made(self):
        return await asyncpg.create_pool(self.url, min_size=1, max_size=1)

    async def close_async(self):
        await self._pool.release(self.raw)
        await self._pool.close()


def engine_url(url: str, driver: str) -> str:
    return urlsplit(url)._replace(scheme=f"postgresql+{driver}").geturl()


class Alchemy(Writer):
    """A connection of SQLAlchemy. A session differs only in how it is created."""

    driver = "psycopg"

    def open(self):
        self.engine = sqlalchemy.create_engine(engine_url(self.url, self.driver), poolclass=sqlalchemy.NullPool)
        self.raw = self.made(self.engine)

    def made(self, engine):
        return engine.connect()

    def begin(self, isolation="READ COMMITTED"):
        if not self.raw.in_transaction():
            self.raw.execution_options(isolation_level=isolation)

    def execute(self, sql):
        result = self.raw.execute(sqlalchemy.text(sql))
        return [tuple(row) for row in result] if result.returns_rows else []

    def commit(self):
        self.raw.commit()

    def rollback(self):
        self.raw.rollback()

    def close(self):
        self.raw.close()
        self.engine.dispose()


class AlchemyOnPsycopg2(Alchemy):
    driver = "psycopg2"


class AlchemySession(Alchemy):
    def made(self, engine):
        return sqlalchemy.orm.Session(engine)

    def begin(self, isolation="READ COMMITTED"):
        if not self.raw.in_transaction():
            self.raw.connection(execution_options={"isolation_level": isolation})


class ScopedAlchemySession(AlchemySession):
    def made(self, engine):
        return sqlalchemy.orm.scoped_session(sqlalchemy.orm.sessionmaker(engine))

    def begin(self, isolation="READ COMMITTED"):
        self.raw.connection(execution_options={"isolation_level": isolation})

    def close(self):
        self.raw.remove()
        self.engine.dispose()


class AsyncAlchemy(Looping):
    driver = "asyncpg"

    def open(self):
        self.engine = async_sqlalchemy.create_async_engine(
            engine_url(self.url, self.driver), poolclass=sqlalchemy.NullPool
        )
        self.raw = self.do(self.made(self.engine))

    async def made(self, engine):
        return await engine.connect()

    def begin(self, isolation="READ COMMITTED"):
        if not self.raw.in_transaction():
            self.do(self.raw.execution_options(isolation_level=isolation))

    def execute(self, sql):
        result = self.do(self.raw.execute(sqlalchemy.text(sql)))
        return [tuple(row) for row in result] if result.returns_rows else []

    def commit(self):
        self.do(self.raw.commit())

    def rollback(self):
        self.do(self.raw.rollback())

    async def close_async(self):
        await self.raw.close()
        await self.engine.dispose()


class AsyncAlchemyOnPsycopg(AsyncAlchemy):
    driver = "psycopg"


class AsyncAlchemySession(AsyncAlchemy):
    async def made(self, engine):
        return async_sqlalchemy.AsyncSession(engine)

    def begin(self, isolation="READ COMMITTED"):
        if not self.raw.in_transaction():
            self.do(self.raw.connection(execution_options={"isolation_level": isolation}))


class ScopedAsyncAlchemySession(AsyncAlchemySession):
    async def made(self, engine):
        maker = async_sqlalchemy.async_sessionmaker(engine)
        return async_sqlalchemy.async_scoped_session(maker, scopefunc=lambda: None)

    def begin(self, isolation="READ COMMITTED"):
        self.do(self.raw.connection(execution_options={"isolation_level": isolation}))

    async def close_async(self):
        await self.raw.remove()
        await self.engine.dispose()


def sqlstate(error: BaseException) -> str | None:
    """PostgreSQL's code for an error, wherever the driver keeps it."""
    cause = getattr(error, "orig", None) or error
    return getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
