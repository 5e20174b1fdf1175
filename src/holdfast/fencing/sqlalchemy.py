"""The fence for SQLAlchemy's connections and sessions, on PostgreSQL, SQLite, MySQL, MariaDB and SQL Server.

The statements are executed by SQLAlchemy, so SQLAlchemy knows that the transaction has begun, and its event listeners
receive the statements. For async connections the sync code runs on the underlying connection, as in SQLAlchemy
itself.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from sqlalchemy import BigInteger, Connection, LargeBinary, String, bindparam, text
from sqlalchemy.orm import Session, scoped_session

from ..errors import InvalidOption, StaleToken
from . import mssql, sqlite
from .postgres import FenceStatement, Rows, judge, run
from .tokens import Offer

if TYPE_CHECKING:
    from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, async_scoped_session

DIALECTS = ("postgresql", "sqlite", "mysql", "mariadb", "mssql")


def guard(connection: Connection | Session | scoped_session[Any], resource: str, offer: Offer) -> None:
    """Check the token and store the floor within the transaction. If it refuses, it rolls back one that it opened."""
    owner: Connection | Session = connection() if isinstance(connection, scoped_session) else connection
    opens = not owner.in_transaction()
    try:
        _guard(owner if isinstance(owner, Connection) else owner.connection(), resource, offer)
    except BaseException:
        if opens:
            with suppress(Exception):  # the first error is the one to raise
                owner.rollback()
        raise


async def guard_async(
    connection: AsyncConnection | AsyncSession | async_scoped_session[Any], resource: str, offer: Offer
) -> None:
    """As `guard`, awaited."""
    from sqlalchemy.ext.asyncio import async_scoped_session  # noqa: PLC0415  (it needs greenlet)

    owner: AsyncConnection | AsyncSession = connection() if isinstance(connection, async_scoped_session) else connection
    await owner.run_sync(guard, resource, offer)


def _guard(connection: Connection, resource: str, offer: Offer) -> None:
    kind = connection.dialect.name
    if kind not in DIALECTS:
        raise InvalidOption(f"guard supports the SQLAlchemy dialects {', '.join(DIALECTS)}, not {kind}")
    opens = not connection.in_transaction()
    if opens:
        connection.begin()  # as its first statement would
    if kind == "sqlite":
        _remember_in_sqlite(connection, resource, offer)
        return
    if _commits_by_itself(connection):
        raise InvalidOption(
            "guard needs a transaction: this connection has the isolation level AUTOCOMMIT, so the check and your "
            "writes would be separate and protect nothing. Nothing was checked. Use a connection with another "
            "isolation level."
        )
    if kind in ("mysql", "mariadb"):
        from . import mysql  # noqa: PLC0415  (it needs PyMySQL)

        judging = mysql.judge(resource, offer, may_create=opens)
    elif kind == "mssql":
        judging = mssql.judge(resource, offer)
    else:
        judging = judge(resource, offer)
    run(judging, lambda statement: _rows(connection, statement))


def _commits_by_itself(connection: Connection) -> bool:
    """Whether the driver is in autocommit mode, however that was set."""
    driver: Any = connection.connection.dbapi_connection
    setting = getattr(driver, "autocommit", None)
    if callable(setting) and hasattr(driver, "get_autocommit"):  # PyMySQL and mysqlclient
        setting = bool(driver.get_autocommit())
    if not isinstance(setting, bool):
        raise InvalidOption(
            f"guard cannot detect whether connections of the driver {connection.dialect.driver!r} commit each "
            "statement by themselves; psycopg, psycopg2, asyncpg and PyMySQL are known to work"
        )
    return setting


def _rows(connection: Connection, statement: FenceStatement) -> Rows:
    types = {str: String, int: BigInteger, bytes: LargeBinary}
    clause = text(statement.text(lambda name: f":{name}", lambda table: table.replace(":", r"\:"))).bindparams(
        *(bindparam(name, value, types[type(value)]) for name, value in statement.values.items())
    )
    result = connection.execute(clause)
    return result.fetchall() if statement.answers else ()


def _remember_in_sqlite(connection: Connection, resource: str, offer: Offer) -> None:
    driver = connection.connection.driver_connection
    values = {"resource": resource, "token": offer.token, "floor": offer.floor}
    begin = sqlite.beginning(driver)  # type: ignore[arg-type]  # that of aiosqlite has the same attributes
    if begin is not None:
        connection.exec_driver_sql(begin)
    connection.exec_driver_sql(sqlite.CREATE)
    if connection.exec_driver_sql(sqlite.REMEMBER, values).rowcount != 1:
        highest = connection.exec_driver_sql(sqlite.HIGHEST, values).scalar_one()
        raise StaleToken(resource=resource, offered=offer.token, highest=highest)
