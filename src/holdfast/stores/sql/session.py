"""One session with a relational database: round trips of many statements, and what an error means for the data."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from ...errors import StoreContended, StoreError, StoreUnavailable, StoreUnusable
from .dialect import RANDOM_BITS, Cause, DbDriver, Dialect, Rows, listing
from .tables import SqlTables

MOST_GUARDS = 1_000
"""How many guards are removed at once."""


class LostRace(Exception):
    """Nothing was done: another client has changed one of the rows first. Read again, and decide again."""


class RowBusy(Exception):
    """Nothing was done: a row stayed locked by another transaction."""


class ValueRefused(Exception):
    """Nothing was done: the server cannot store one of the values."""


class TablesMissing(StoreUnusable):
    """The tables do not exist."""


def new_stamp() -> int:
    """A number that no other write has, also if the program has seeded `random`; never zero."""
    return secrets.randbits(RANDOM_BITS) + 1


class StatementRunner(Protocol):
    """Sends statements: in transactions of the store, or in one of the user's."""

    @property
    def dialect(self) -> Dialect:
        """The database."""

    def read(self, statements: Sequence[str]) -> list[Rows]:
        """Send statements that only read, and return the rows of each."""

    def write(self, statements: Sequence[str]) -> None:
        """Send statements that take effect together, or not at all.

        Raises `LostRace`, `RowBusy`, `ValueRefused` or `StoreError`.
        """


class SqlSession:
    """One connection of a driver, used by one thread at a time."""

    def __init__(self, dialect: Dialect, *, timeout: float) -> None:
        self.dialect = dialect
        self.trips = 0
        """How many round trips were made; for tests."""
        try:
            self._driver: DbDriver = dialect.connect(timeout)
        except Exception as error:
            raise translated(dialect, error, dialect.cause_of(error), sent=False) from error

    def read(self, statements: Sequence[str]) -> list[Rows]:
        """Send statements that only read, and return the rows of each. They see one state of all tables."""
        return self._send(self.dialect.reading(statements), writes=False)

    def write(self, statements: Sequence[str]) -> None:
        """Send statements that are committed together."""
        self._send(self.dialect.writing(statements), writes=True)

    def lockable(self, table: str, column: str, namespace: str, names: Sequence[str]) -> set[str]:
        """Those of these rows that no other transaction has locked at this moment."""
        literal = self.dialect.literal
        keys = listing(literal(name.encode()) for name in names)
        where = f"ns = {literal(namespace.encode())} AND {column} IN {keys}"
        rows = self._send(self.dialect.writing([self.dialect.free(column, table, where)]), writes=False)
        return {bytes(name).decode() for (name,) in rows[0]}

    def remove_guards(self, tables: SqlTables, namespace: str) -> None:
        """Remove up to a thousand guards of groups that have neither runs nor starts."""
        ns = self.dialect.literal(namespace.encode())
        without = " AND ".join(
            f"NOT EXISTS (SELECT 1 FROM {table} p WHERE p.ns = g.ns AND p.party = g.name)"
            for table in (tables.places, tables.starts)
        )
        select = f"SELECT g.name FROM {tables.guards} g WHERE g.ns = {ns} AND {without} ORDER BY g.name"
        (rows,) = self.read([self.dialect.limited(select, MOST_GUARDS)])
        if rows:
            names = listing(self.dialect.literal(bytes(name)) for (name,) in rows)
            self.write([f"DELETE FROM {tables.guards} WHERE ns = {ns} AND name IN {names}"])

    def run(self, statements: Sequence[str]) -> list[Rows]:
        """Send statements, each a transaction by itself."""
        return self._send(statements, writes=True)

    def _send(self, statements: Sequence[str], *, writes: bool) -> list[Rows]:
        text = ";\n".join(statements)
        if self._driver.max_bytes is not None and len(text) > self._driver.max_bytes:
            raise ValueRefused(
                f"the request would have {len(text):,} bytes, and the server accepts {self._driver.max_bytes:,} "
                "(max_allowed_packet); text is sent as hexadecimal digits, two for each byte"
            )
        self.trips += 1
        try:
            return self._driver.send(text)
        except Exception as error:
            cause = self.dialect.cause_of(error)
            if cause != "lost":
                self._undo()
            if cause == "conflict":
                raise LostRace(str(error)) from error
            if cause == "busy":
                raise RowBusy(str(error)) from error
            if cause == "bad value":
                raise ValueRefused(str(error)) from error
            raise translated(self.dialect, error, cause, sent=writes) from error

    def _undo(self) -> None:
        """End the transaction. If that fails, the connection is closed, which ends it too."""
        self.trips += 1
        try:
            self._driver.send(";\n".join(self.dialect.undo))
        except Exception:  # the error that matters is the first one
            self.close()

    def close(self) -> None:
        """End the session. Safe to call twice."""
        with suppress(Exception):  # the server may be gone
            self._driver.close()


def translated(dialect: Dialect, error: Exception, cause: Cause, *, sent: bool) -> StoreError:
    """The error for the caller of a store."""
    reason = " ".join(str(part) for part in error.args) or type(error).__name__
    if cause == "missing":
        return TablesMissing(
            f"a table of Holdfast does not exist in this {dialect.name} database ({reason}). The next connection "
            "creates the tables, if its user has the privileges."
        )
    if cause == "refused":
        return StoreUnusable(
            f"{dialect.name} refused a request ({reason}), which changed nothing. {dialect.advice_for(error)}"
        )
    if cause == "lost":
        return StoreUnavailable(
            f"the connection to {dialect.name} was lost or could not be made ({reason})."
            + (" The commands may have been carried out." if sent else " Nothing was changed."),
            ambiguous=sent,
        )
    if cause in ("conflict", "busy"):
        return StoreContended(
            f"the transaction conflicted with another one ({reason}) and was rolled back: nothing was changed. It can "
            "be tried again."
        )
    reported = f"{dialect.name} reported an error that Holdfast does not expect ({reason})."
    if sent:  # for example a KILL that hit the commit
        return StoreUnavailable(f"{reported} The commands may have been carried out.", ambiguous=True)
    return StoreUnusable(f"{reported} Nothing was changed.")
