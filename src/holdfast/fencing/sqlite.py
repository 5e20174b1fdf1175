"""The fence within a transaction of the user's SQLite database.

The check and the stored floor are one conditional upsert, which needs the write lock: from then until the transaction
ends no other connection can write, so no other writer can get in between the check and the commit. A transaction that
has read before is stopped by SQLite itself (`database is locked`) if the file has changed since. Connection errors and
busy errors are raised as sqlite3 raises them.
"""

from __future__ import annotations

import sqlite3

from ..errors import InvalidOption, StaleToken
from .tokens import Offer

# `main.`: a temporary table of the same name must not replace the fence.
CREATE = """
CREATE TABLE IF NOT EXISTS main.holdfast_fences (
    resource TEXT PRIMARY KEY NOT NULL,
    floor INTEGER NOT NULL CHECK (typeof(floor) = 'integer')
)
"""
REMEMBER = """
INSERT INTO main.holdfast_fences AS fence (resource, floor) VALUES (:resource, :floor)
ON CONFLICT (resource) DO UPDATE SET floor = max(fence.floor, excluded.floor) WHERE fence.floor <= :token
"""
HIGHEST = "SELECT floor FROM main.holdfast_fences WHERE resource = :resource"


def guard(connection: sqlite3.Connection, resource: str, offer: Offer) -> None:
    """Check the token and store the floor within the connection's transaction; opens one where its mode allows that.

    A transaction that the guard opened is rolled back when the guard refuses or fails: it contains nothing of the user.
    A transaction that was already open is left open, as it was, for the user to roll back.
    """
    opened = _open_transaction(connection)
    try:
        _remember(connection, resource, offer)
    except BaseException:
        if opened:
            connection.rollback()
        raise


def _open_transaction(connection: sqlite3.Connection) -> bool:
    """Make sure that there is a transaction. Returns whether it was opened here."""
    begin = beginning(connection)
    if begin is None:
        return False
    connection.execute(begin)
    return True


def beginning(connection: sqlite3.Connection) -> str | None:
    """The statement that opens the transaction, None if one is open; raises where the user must open it."""
    if connection.in_transaction:
        return None
    if connection.isolation_level is None or getattr(connection, "autocommit", -1) is True:
        raise InvalidOption(
            "guard needs an open transaction: this connection commits each statement by itself, so the check and your "
            "writes would be separate and protect nothing. Nothing was checked. Execute 'BEGIN IMMEDIATE' first, call "
            "guard, write, and commit."
        )
    # CREATE TABLE alone would not open one, and a plain BEGIN would take the write lock only later.
    return "BEGIN EXCLUSIVE" if connection.isolation_level.upper() == "EXCLUSIVE" else "BEGIN IMMEDIATE"


def _remember(connection: sqlite3.Connection, resource: str, offer: Offer) -> None:
    """Store the floor, or raise `StaleToken` with the highest floor."""
    values = {"resource": resource, "token": offer.token, "floor": offer.floor}
    cursor = connection.cursor()
    try:
        cursor.row_factory = None  # a row factory of the user may return anything
        cursor.execute(CREATE)
        cursor.execute(REMEMBER, values)
        if cursor.rowcount != 1:
            (highest,) = cursor.execute(HIGHEST, values).fetchone()
            raise StaleToken(resource=resource, offered=offer.token, highest=highest)
    finally:
        cursor.close()
