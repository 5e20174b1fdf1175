"""One session with a relational database: round trips of many statements, and what an error means for the data."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from typing import Protocol

from ...errors import StoreError, StoreUnavailable, StoreUnusable
from .dialect import RANDOM_BITS, Cause, DbDriver, Dialect, Rows


class LostRace(Exception):
    """Nothing was done: another client has changed one of the rows first. Read again, and decide again."""


class RowBusy(Exception):
    """Nothing was done: a row stayed locked by another transaction."""


class ValueRefused(Exception):
    """Nothing was done: the server cannot store one of the values."""


class TablesMissing(StoreUnusable):
    """The tables do not exist."""


def new_stamp() -> int:
    """A number that no other write has: it is never zero."""
    return random.getrandbits(RANDOM_BITS) + 1


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

    def run(self, statements: Sequence[str]) -> list[Rows]:
        """Send statements, each a transaction by itself."""
        return self._send(statements, writes=True)

    def _send(self, statements: Sequence[str], *, writes: bool) -> list[Rows]:
        self.trips += 1
        try:
            return self._driver.send(";\n".join(statements))
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
            f"{dialect.name} refused the request ({reason}). Check the user, its privileges, and the address."
        )
    if cause == "lost":
        return StoreUnavailable(
            f"the connection to {dialect.name} was lost or could not be made ({reason})."
            + (" The commands may have been carried out." if sent else " Nothing was changed."),
            ambiguous=sent,
        )
    return StoreUnusable(f"{dialect.name} reported an error that Holdfast does not expect ({reason}).")
