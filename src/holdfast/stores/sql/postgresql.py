"""PostgreSQL through the common relational implementation, by psycopg 3.

PostgreSQL has a store of its own, which is faster and notifies waiters. This dialect exists so that the common
implementation is tested on a second database; its address is `sql+postgresql://`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg import errors

from .dialect import GENERAL_ADVICE, Cause, Rows

_CONFLICTS = (
    errors.UniqueViolation,
    errors.DeadlockDetected,
    errors.SerializationFailure,
    errors.NumericValueOutOfRange,
    errors.DuplicateTable,
    errors.DuplicateObject,
)
"""Also of clients that create the tables at the same moment, and of the overflow that `insist` raises."""


class PsycopgDriver:
    """A psycopg connection that sends several statements at once."""

    max_bytes: int | None = None

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self.connection = connection

    def send(self, text: str) -> list[Rows]:
        """Send statements in one round trip."""
        with self.connection.cursor() as cursor:
            cursor.execute(text.encode())
            found: list[Rows] = []
            while True:
                if cursor.description:
                    found.append(cursor.fetchall())
                if not cursor.nextset():
                    return found

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()


class PostgresDialect:
    """PostgreSQL 12 or newer."""

    name = "PostgreSQL"
    key_bytes, id_bytes = 2_048, 1_024
    rows_at_once = 1_000
    clock = "(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000)::bigint"

    def __init__(self, conninfo: str) -> None:
        self._conninfo = conninfo

    def connect(self, timeout: float) -> PsycopgDriver:
        """Open a connection."""
        connection = psycopg.connect(
            self._conninfo,
            autocommit=True,
            client_encoding="utf8",
            connect_timeout=max(1, round(timeout)),
            options=f"-c statement_timeout={round(timeout * 1000)}",
        )
        return PsycopgDriver(connection)

    def literal(self, value: bytes | str | int | None) -> str:
        r"""Text as E'...': backslash and quote are the only special characters, whatever the settings say."""
        if value is None:
            return "NULL"
        if isinstance(value, int):
            return str(int(value))
        if isinstance(value, bytes):
            return f"E'\\\\x{value.hex()}'::bytea"
        if "\0" in value:
            raise ValueError("PostgreSQL cannot store the character NUL in text")
        value.encode()
        quoted = value.replace("\\", "\\\\").replace("'", "''")
        return f"E'{quoted}'"

    def reading(self, statements: Sequence[str]) -> list[str]:
        """One snapshot of all tables."""
        return ["BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY", *statements, "COMMIT"]

    def writing(self, statements: Sequence[str]) -> list[str]:
        """Begin and commit in the same round trip."""
        begin = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
        return [begin, "SET LOCAL lock_timeout = '1s'", *statements, "COMMIT"]

    @property
    def undo(self) -> Sequence[str]:
        """Roll back: after an error the server has released all locks already."""
        return ("ROLLBACK",)

    share = " FOR SHARE"

    def limited(self, select: str, limit: int | None) -> str:
        """LIMIT."""
        return select if limit is None else f"{select} LIMIT {limit}"

    def locked(self, table: str, where: str, *, order: str, share: bool) -> str:
        """Lock the rows in an inner query: an aggregate cannot."""
        rows = (
            f"SELECT stamp FROM {table} WHERE {where} ORDER BY {order} FOR {'SHARE' if share else 'UPDATE'} SKIP LOCKED"
        )
        return f"(SELECT COUNT(*) AS n, COALESCE(SUM(stamp), 0) AS total FROM ({rows}) AS y) AS x"

    def free(self, columns: str, table: str, where: str) -> str:
        """Lock what is free."""
        return f"SELECT {columns} FROM {table} WHERE {where} FOR UPDATE SKIP LOCKED"

    def insist(self, condition: str, source: str = "") -> str:
        """Overflow of EXP is an error."""
        overflow = f"SELECT EXP(CASE WHEN {condition} THEN 0 ELSE 1000 END::double precision)"
        return f"{overflow}{f' FROM {source}' if source else ''}"

    def create(self, table: str, columns: str, keys: Sequence[str]) -> list[str]:
        """Create a table, and its indexes by names of their own."""
        primary = [key for key in keys if key.startswith("PRIMARY")]
        made = [f"CREATE TABLE IF NOT EXISTS {table} ({', '.join([columns, *primary])})"]
        for key in keys:
            kind, _, rest = key.partition("INDEX ")
            if rest:
                name, _, on = rest.partition(" ")
                made.append(f"CREATE {kind}INDEX IF NOT EXISTS {table}_{name} ON {table} {on}")
        return made

    def oldest_client(self, table: str) -> str:
        """An error says that there is no table."""
        return f"SELECT MAX(oldest_client) FROM {table}"

    def column(self, kind: str) -> str:
        """The type bytea for what is compared: it needs no collation."""
        return {"number": "bigint", "text": "text"}.get(kind, "bytea")

    def cause_of(self, error: BaseException) -> Cause:  # noqa: PLR0911  (a table)
        """By the class of the error, which is that of its SQLSTATE."""
        if isinstance(error, _CONFLICTS):
            return "conflict"
        if isinstance(error, errors.LockNotAvailable | errors.QueryCanceled):
            return "busy"
        if isinstance(error, errors.UndefinedTable):
            return "missing"
        if isinstance(error, errors.InsufficientPrivilege | errors.ReadOnlySqlTransaction):
            return "refused"
        if isinstance(error, errors.InvalidPassword | errors.InvalidAuthorizationSpecification):
            return "refused"
        if isinstance(error, psycopg.DataError):
            return "bad value"
        if isinstance(error, psycopg.OperationalError | psycopg.InterfaceError | OSError):
            return "lost"
        return "unknown"

    def advice_for(self, error: BaseException) -> str:  # noqa: ARG002  (a server states its reason)
        """The same for all."""
        return GENERAL_ADVICE
