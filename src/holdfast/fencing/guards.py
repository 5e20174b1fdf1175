"""`guard` and `guard_async`, and the tables of the connections that they support.

A kind of connection is one file of this package with a function `guard(connection, resource, offer)`, or `guard_async`
for async connections. Its driver is imported only when such a connection is passed. To add a kind, add the file and a
row.
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from ..errors import InvalidOption
from ..validation import checked_key
from .tokens import Fenced, checked_offer

if TYPE_CHECKING:
    import sqlite3

    import psycopg
    import pymysql
    import sqlalchemy.ext.asyncio
    import sqlalchemy.orm

    from .asyncpg import AsyncpgConnection

KINDS: dict[tuple[str, str], str] = {
    ("sqlite3", "Connection"): "sqlite",
    ("psycopg", "Connection"): "psycopg",
    ("pymysql", "Connection"): "mysql",
    ("mssql_python", "Connection"): "mssql",
    ("sqlalchemy", "Connection"): "sqlalchemy",
    ("sqlalchemy", "Session"): "sqlalchemy",
    ("sqlalchemy", "scoped_session"): "sqlalchemy",
}
"""The package and the name of a connection's class (or of one that it inherits from) -> the file that guards it."""

ASYNC_KINDS: dict[tuple[str, str], str] = {
    ("psycopg", "AsyncConnection"): "psycopg",
    ("asyncpg", "Connection"): "asyncpg",
    ("asyncpg", "PoolConnectionProxy"): "asyncpg",
    ("sqlalchemy", "AsyncConnection"): "sqlalchemy",
    ("sqlalchemy", "AsyncSession"): "sqlalchemy",
    ("sqlalchemy", "async_scoped_session"): "sqlalchemy",
}
"""The same for async connections."""


def guard(
    connection: sqlite3.Connection
    | psycopg.Connection[Any]
    | pymysql.connections.Connection[Any]
    | sqlalchemy.Connection
    | sqlalchemy.orm.Session
    | sqlalchemy.orm.scoped_session[Any],
    resource: str,
    lease_or_token: Fenced | int,
) -> None:
    """Let the open transaction continue only if no newer holder has written to the resource.

    Call it before the first write of the transaction. A token at or above the highest floor seen for the resource is
    accepted, and its floor is stored in the same transaction (table `holdfast_fences`). A lower one raises
    `StaleToken`, and the guard has written nothing. It never commits. Whether a lease has expired by the clock is not
    checked: the token alone decides.

    Pass the lease; a bare token is correct for exclusive locks only. The connection is one of `sqlite3`, of psycopg 3,
    of PyMySQL, of mssql-python (unverified), or of SQLAlchemy (a connection or a session, on PostgreSQL, SQLite, MySQL,
    MariaDB or, unverified, SQL Server); for async connections there is `guard_async`.
    Where the driver opens transactions by itself, so does the guard; a connection that commits each statement by itself
    needs an open transaction, else `InvalidOption`. Errors of the driver are raised unchanged.
    >>> import sqlite3
    >>> db = sqlite3.connect(":memory:")
    >>> with db:
    ...     guard(db, "invoice:42", 1_700_000_000_000_002)
    >>> with db:
    ...     guard(db, "invoice:42", 1_700_000_000_000_001)
    Traceback (most recent call last):
        ...
    holdfast.errors.StaleToken: 'invoice:42' was accessed with the newer token 1700000000000002; ...
    >>> db.close()
    """
    file = _file_for(connection, KINDS)
    if file is None:
        if _file_for(connection, ASYNC_KINDS):
            raise InvalidOption(f"{_named(connection)} is async, and nothing was checked: use `await guard_async(...)`")
        raise _unknown(connection, "guard", KINDS)
    file.guard(connection, checked_key(resource), checked_offer(lease_or_token))


async def guard_async(
    connection: psycopg.AsyncConnection[Any]
    | AsyncpgConnection
    | sqlalchemy.ext.asyncio.AsyncConnection
    | sqlalchemy.ext.asyncio.AsyncSession
    | sqlalchemy.ext.asyncio.async_scoped_session[Any],
    resource: str,
    lease_or_token: Fenced | int,
) -> None:
    """As `guard`, for async connections: those of psycopg 3, asyncpg (also from its pool) and SQLAlchemy.

    asyncpg needs an open transaction (`async with connection.transaction():`), else `InvalidOption`.
    """
    file = _file_for(connection, ASYNC_KINDS)
    if file is None:
        if _file_for(connection, KINDS):
            raise InvalidOption(
                f"{_named(connection)} is sync, and nothing was checked: use `guard(...)`, without await"
            )
        raise _unknown(connection, "guard_async", ASYNC_KINDS)
    await file.guard_async(connection, checked_key(resource), checked_offer(lease_or_token))


def _file_for(connection: object, kinds: dict[tuple[str, str], str]) -> ModuleType | None:
    for cls in type(connection).__mro__:
        file = kinds.get((cls.__module__.partition(".")[0], cls.__name__))
        if file is not None:
            return import_module(f".{file}", __package__)
    return None


def _named(connection: object) -> str:
    return f"{type(connection).__module__}.{type(connection).__qualname__}"


def _unknown(connection: object, function: str, kinds: dict[tuple[str, str], str]) -> InvalidOption:
    supported = ", ".join(f"{package}.{name}" for package, name in kinds)
    return InvalidOption(
        f"{function} does not support connections of the type {_named(connection)}; supported are: {supported}"
    )
