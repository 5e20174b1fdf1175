"""The fence for connections of psycopg 3, sync and async.

The guard uses its own plain cursors, so that the connection's row factory, cursor factory and the like have no effect,
and leaves preparing statements to the connection's settings. In pipeline mode it waits for its results, and so for
everything that was sent before.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from psycopg import AsyncConnection, AsyncCursor, Connection, Cursor
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from ..errors import InvalidOption
from .postgres import FenceStatement, Rows, judge, run, run_async
from .tokens import Offer


def guard(connection: Connection[Any], resource: str, offer: Offer) -> None:
    """Check the token and store the floor within the transaction. If it refuses, it rolls back one that it opened."""
    if connection.pgconn.pipeline_status != PipelineStatus.OFF:
        with connection.pipeline() as pipeline:
            pipeline.sync()  # a BEGIN may still be in progress
    opens = _opens(connection)
    try:
        run(judge(resource, offer), lambda statement: _rows(connection, statement))
    except BaseException:
        if opens:
            with suppress(Exception):  # the first error is the one to raise
                connection.rollback()
        raise


async def guard_async(connection: AsyncConnection[Any], resource: str, offer: Offer) -> None:
    """As `guard`, awaited."""
    if connection.pgconn.pipeline_status != PipelineStatus.OFF:
        async with connection.pipeline() as pipeline:
            await pipeline.sync()
    opens = _opens(connection)
    try:
        await run_async(judge(resource, offer), lambda statement: _rows_async(connection, statement))
    except BaseException:
        if opens:
            with suppress(Exception):
                await connection.rollback()
        raise


def _opens(connection: Connection[Any] | AsyncConnection[Any]) -> bool:
    """Whether the first statement will open the transaction."""
    status = connection.info.transaction_status
    if connection.autocommit and status not in (TransactionStatus.INTRANS, TransactionStatus.INERROR):
        raise InvalidOption(
            "guard needs an open transaction: this connection is in autocommit mode, so the check and your writes "
            "would be separate and protect nothing. Nothing was checked. Call guard and write within `with "
            "connection.transaction():`."
        )
    return status == TransactionStatus.IDLE


def _text(connection: Connection[Any] | AsyncConnection[Any], statement: FenceStatement) -> bytes:
    text = statement.text(lambda name: f"%({name})s", lambda table: table.replace("%", "%%"))
    return text.encode(connection.info.encoding)


# Each statement has its own cursor: in a pipeline a cursor that is used twice may return the first result again.


def _rows(connection: Connection[Any], statement: FenceStatement) -> Rows:
    with Cursor(connection, row_factory=tuple_row) as cursor:
        cursor.execute(_text(connection, statement), statement.values)
        return cursor.fetchall() if statement.answers else ()


async def _rows_async(connection: AsyncConnection[Any], statement: FenceStatement) -> Rows:
    async with AsyncCursor(connection, row_factory=tuple_row) as cursor:
        await cursor.execute(_text(connection, statement), statement.values)
        return await cursor.fetchall() if statement.answers else ()
