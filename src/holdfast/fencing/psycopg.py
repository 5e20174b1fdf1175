"""The fence for connections of psycopg 3, of either colour.

The guard uses plain cursors of its own, so that the connection's row factory, cursor factory and the like are not
asked, and leaves preparing statements to the connection's settings. In pipeline mode it waits for its answers, and
with them for what was sent before.
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
    """Check and remember within the transaction. One that the guard has opened is rolled back if it refuses."""
    if connection.pgconn.pipeline_status != PipelineStatus.OFF:
        with connection.pipeline() as pipeline:
            pipeline.sync()  # a BEGIN may still be on its way
    opens = _opens(connection)
    try:
        run(judge(resource, offer), lambda ask: _rows(connection, ask))
    except BaseException:
        if opens:
            with suppress(Exception):  # what has happened is the error to tell
                connection.rollback()
        raise


async def guard_async(connection: AsyncConnection[Any], resource: str, offer: Offer) -> None:
    """As `guard`, awaited."""
    if connection.pgconn.pipeline_status != PipelineStatus.OFF:
        async with connection.pipeline() as pipeline:
            await pipeline.sync()
    opens = _opens(connection)
    try:
        await run_async(judge(resource, offer), lambda ask: _rows_async(connection, ask))
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
            "would be apart and protect nothing. Call guard and write within `with connection.transaction():`."
        )
    return status == TransactionStatus.IDLE


def _text(connection: Connection[Any] | AsyncConnection[Any], ask: FenceStatement) -> bytes:
    text = ask.text(lambda name: f"%({name})s", lambda table: table.replace("%", "%%"))
    return text.encode(connection.info.encoding)


# Each statement has a cursor of its own: in a pipeline one that is used twice may show the answer to the first.


def _rows(connection: Connection[Any], ask: FenceStatement) -> Rows:
    with Cursor(connection, row_factory=tuple_row) as cursor:
        cursor.execute(_text(connection, ask), ask.values)
        return cursor.fetchall() if ask.answers else ()


async def _rows_async(connection: AsyncConnection[Any], ask: FenceStatement) -> Rows:
    async with AsyncCursor(connection, row_factory=tuple_row) as cursor:
        await cursor.execute(_text(connection, ask), ask.values)
        return await cursor.fetchall() if ask.answers else ()
