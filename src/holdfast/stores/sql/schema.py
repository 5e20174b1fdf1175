"""Creates the tables of a relational store, and refuses those of a newer version."""

from __future__ import annotations

from ...errors import StoreContended, StoreUnusable
from .session import LostRace, RowBusy, SqlSession, TablesMissing
from .tables import VERSION, SqlTables

TRIES = 10
"""How often the version is read, at most, while other clients create the tables."""


def version_of(session: SqlSession, tables: SqlTables) -> int:
    """The version of the tables; 0: there are none, or not all of them."""
    for _ in range(TRIES):
        try:
            ((rows),) = session.read([session.dialect.oldest_client(tables.about)])
        except TablesMissing:
            return 0
        except (LostRace, RowBusy):  # another client is creating the table
            continue
        return int(rows[0][0] or 0)
    raise StoreContended("other clients keep changing the tables of this database. Nothing was changed. Try again.")


def prepare(session: SqlSession, tables: SqlTables) -> None:
    """Create the tables if there are none. Several clients may do so at the same time."""
    found = version_of(session, tables)
    if found > VERSION:
        raise StoreUnusable(
            f"the tables need a newer Holdfast (their version is {found}; this one knows {VERSION}). Upgrade Holdfast."
        )
    if found:
        return
    for statement in tables.creation():
        try:
            session.run([statement])
        except LostRace:  # another client has created it at the same moment
            continue
    try:
        session.write([f"INSERT INTO {tables.about} (version, oldest_client) VALUES ({VERSION}, {VERSION})"])
    except LostRace:
        return
