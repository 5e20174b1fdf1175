"""The fence within a transaction of the user's MySQL or MariaDB database, for PyMySQL and SQLAlchemy.

The check and the stored floor are one upsert, which locks the resource's row until the transaction ends. A concurrent
writer waits until then; after that its token is compared with the committed floor. CREATE TABLE would commit the
user's transaction, so the guard creates the table only if it opens the transaction itself. Errors of the driver are
raised unchanged.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import suppress
from typing import Any

import pymysql
from pymysql.constants import SERVER_STATUS
from pymysql.cursors import Cursor

from ..errors import InvalidOption, StaleToken, StoreUnusable
from .postgres import FenceStatement, Judge, Rows, run
from .tokens import Offer

TABLE = "holdfast_fences"
CREATE = (
    "CREATE TABLE IF NOT EXISTS holdfast_fences (resource VARBINARY(512) PRIMARY KEY, floor BIGINT NOT NULL) "
    "ENGINE=InnoDB"
)
# A resource is compared as bytes: the text types of these servers take 'a' and 'A', or 'a' and 'a ', for equal.
REMEMBER = (
    "INSERT INTO holdfast_fences (resource, floor) VALUES ({resource}, {floor}) "
    "ON DUPLICATE KEY UPDATE floor = IF(floor <= {token}, GREATEST(floor, {floor}), floor)"
)
HIGHEST = "SELECT floor FROM holdfast_fences WHERE resource = {resource} FOR UPDATE"
SHAPE = "SHOW CREATE TABLE holdfast_fences"
THERE = (
    "SELECT COUNT(*) FROM information_schema.TABLES WHERE TABLE_SCHEMA = DATABASE() AND TABLE_NAME = 'holdfast_fences'"
)


def judge(resource: str, offer: Offer, *, may_create: bool) -> Judge:
    """Store the floor, or raise `StaleToken` with the highest floor."""
    yield from _table(may_create=may_create)
    name = resource.encode()
    values: dict[str, str | int | bytes] = {"resource": name, "floor": offer.floor, "token": offer.token}
    yield FenceStatement(REMEMBER, values=values, answers=False)
    ((highest,),) = yield FenceStatement(HIGHEST, values={"resource": name})
    if int(highest) > offer.token:
        raise StaleToken(resource=resource, offered=offer.token, highest=int(highest))


def _table(*, may_create: bool) -> Generator[FenceStatement, Rows, None]:
    """Make sure that the table exists, is not temporary, and takes part in transactions (InnoDB)."""
    ((found,),) = yield FenceStatement(THERE)
    if not found:
        if not may_create:
            raise StoreUnusable(
                f"there is no table {TABLE} in this database, and creating it now would commit your transaction. "
                f"Nothing was checked. Execute this once: {CREATE}"
            )
        yield FenceStatement(CREATE, answers=False)
    ((_, shape),) = yield FenceStatement(SHAPE)
    if shape.startswith("CREATE TEMPORARY") or "ENGINE=InnoDB" not in shape:
        raise StoreUnusable(
            f"{TABLE} is a temporary table, or not an InnoDB table: it would not be written with your transaction, and "
            f"stale writes would be accepted. Nothing was checked. Drop it, and execute: {CREATE}"
        )


def guard(connection: Any, resource: str, offer: Offer) -> None:
    """Check the token and store the floor within the transaction. After an error, end a transaction that it opened."""
    opens = not connection.server_status & SERVER_STATUS.SERVER_STATUS_IN_TRANS
    if opens and connection.get_autocommit():
        raise InvalidOption(
            "guard needs an open transaction: this connection commits each statement by itself, so the check and your "
            "writes would be separate and protect nothing. Nothing was checked. Call connection.begin() first, then "
            "guard, write, and commit."
        )
    try:
        run(judge(resource, offer, may_create=opens), lambda statement: _rows(connection, statement))
    except BaseException:
        if opens:
            with suppress(Exception):  # the first error is the one to raise
                connection.rollback()
        raise


def _rows(connection: pymysql.connections.Connection[Any], statement: FenceStatement) -> Rows:
    text = statement.text(lambda name: f"%({name})s")
    with connection.cursor(Cursor) as cursor:
        cursor.execute(text, statement.values or None)
        return cursor.fetchall() if statement.answers else ()
