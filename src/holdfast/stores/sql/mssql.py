"""Microsoft SQL Server, through mssql-python. Unverified: no server was available to run it.

Everything but this file is code that is tested on MariaDB and PostgreSQL; a test compares the statements of this
dialect with an expected text. Rows are locked by hints (UPDLOCK, ROWLOCK, READPAST), which hold with
READ_COMMITTED_SNAPSHOT on and off; XACT_ABORT makes every error roll the transaction back. No primary key is
clustered, because the keys of Holdfast exceed the 900 bytes of a clustered index.

mssql-python reports neither the number of an error nor its SQLSTATE, so the statements catch each error, roll back,
and throw it again with its number in the text. What they cannot catch (a table that does not exist, a timeout of the
driver, an error before the first statement) is recognised by the phrase that the driver has for the SQLSTATE.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any
from urllib.parse import SplitResult, unquote

from .dialect import GENERAL_ADVICE, Cause, Rows

CONFLICT = 50_001
"""The number of the error that a failed comparison throws."""
CAUGHT = 50_002
"""The number of the error that is thrown again."""
FREE_ROWS = "READCOMMITTEDLOCK, UPDLOCK, ROWLOCK, READPAST"
"""Lock rows and leave out locked ones. Without READCOMMITTEDLOCK, READ_COMMITTED_SNAPSHOT does not permit READPAST."""
_CONFLICTS = (CONFLICT, 1205, 1913, 2601, 2627, 2714, 3960, 3961)
_BUSY = (1222,)
_MISSING = (208,)
_REFUSED = (229, 230, 262, 300, 916, 3906, 4060, 18452, 18456, 40615)
_BAD_VALUES = (2628, 8152, 8115, 220)
_NUMBERS: dict[int, Cause] = {
    **dict.fromkeys(_CONFLICTS, "conflict"),
    **dict.fromkeys(_BUSY, "busy"),
    **dict.fromkeys(_MISSING, "missing"),
    **dict.fromkeys(_REFUSED, "refused"),
    **dict.fromkeys(_BAD_VALUES, "bad value"),
}
_PHRASES: dict[str, Cause] = {
    "Serialization failure": "conflict",
    "Integrity constraint violation": "conflict",
    "Transaction is rolled back": "conflict",
    "Base table or view already exists": "conflict",
    "Index already exists": "conflict",
    "Base table or view not found": "missing",
    "Invalid authorization specification": "refused",
    "Invalid catalog name": "refused",
    "String data, right-truncated": "bad value",
    "Numeric value out of range": "bad value",
    "Timeout expired": "lost",
    "Connection timeout expired": "lost",
    "Operation canceled": "lost",
    "Statement completion unknown": "lost",
    "Communication link failure": "lost",
    "Client unable to establish connection": "lost",
    "Connection not open": "lost",
    "Connection failure during transaction": "lost",
    "Server rejected the connection": "lost",
}
"""What the phrases of the driver mean, where an error has no number."""
_TEXTS: dict[str, Cause] = {
    "a row was changed by another client": "conflict",
    "Lock request time out period exceeded": "busy",
    "certificate verify failed": "refused",
    "Cannot open database": "refused",
    "permission was denied": "refused",
    "permission denied": "refused",
}
"""Texts of the server in English that are more exact than the phrase before them."""
_NUMBER = re.compile(r"\[SQL Server\]\((\d+)\) ")
_PHRASE = re.compile(r"Driver Error: (.*?)(?:; DDBC Error: |$)", re.DOTALL)
_CATCH = (
    "END TRY\nBEGIN CATCH\n"
    "DECLARE @error NVARCHAR(2048) = LEFT(CONCAT('(', ERROR_NUMBER(), ') ', ERROR_MESSAGE()), 1000);\n"
    "SET @error = REPLACE(@error, '%', '%%');\n"
    "IF @@TRANCOUNT > 0 ROLLBACK;\n"
    f"THROW {CAUGHT}, @error, 1;\n"
    "END CATCH"
)


def _caught(statements: Sequence[str]) -> list[str]:
    """Statements whose error is thrown again with its number in the text. No semicolon may follow TRY."""
    first, *others = statements
    *others, last = [f"BEGIN TRY\n{first}", *others]
    return [*others, f"{last};\n{_CATCH}"]


class SqlServerDriver:
    """A connection of mssql-python that sends several statements at once."""

    max_bytes: int | None = None

    def __init__(self, connection: Any) -> None:
        self.connection = connection

    def send(self, text: str) -> list[Rows]:
        """Send statements in one round trip."""
        cursor = self.connection.cursor()
        try:
            cursor.execute(text)
            found: list[Rows] = []
            while True:
                if cursor.description:
                    found.append([tuple(row) for row in cursor.fetchall()])
                if not cursor.nextset():
                    return found
        finally:
            cursor.close()

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()


class SqlServerDialect:
    """SQL Server 2016 or newer, and Azure SQL Database."""

    name = "SQL Server"
    key_bytes, id_bytes = 1_180, 512
    rows_at_once = 1_000
    clock = "DATEDIFF_BIG(MICROSECOND, '1970-01-01', SYSUTCDATETIME())"

    def __init__(self, connection_string: str) -> None:
        self._connection_string = connection_string

    def connect(self, timeout: float) -> SqlServerDriver:
        """Open a connection."""
        import mssql_python  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415  (only where it is used)

        whole = max(1, round(timeout))
        connection = mssql_python.connect(self._connection_string, autocommit=True, timeout=whole)  # for the login
        connection.timeout = whole  # for each statement
        return SqlServerDriver(connection)

    def literal(self, value: bytes | str | int | None) -> str:
        """Text as N'...': the quote is the only special character."""
        if value is None:
            return "NULL"
        if isinstance(value, int):
            return str(int(value))
        if isinstance(value, bytes):
            return f"0x{value.hex()}"
        value.encode()
        quoted = value.replace("'", "''")
        return f"N'{quoted}'"

    def reading(self, statements: Sequence[str]) -> list[str]:
        """Shared locks on what was read, until the end of the round trip: the rows fit together."""
        return [
            "SET NOCOUNT ON",
            "SET XACT_ABORT ON",
            "SET LOCK_TIMEOUT 1000",
            "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ",
            *_caught(["BEGIN TRANSACTION", *statements, "COMMIT"]),
        ]

    def writing(self, statements: Sequence[str]) -> list[str]:
        """Begin and commit in the same round trip."""
        return [
            "SET NOCOUNT ON",
            "SET XACT_ABORT ON",
            "SET LOCK_TIMEOUT 1000",
            "SET TRANSACTION ISOLATION LEVEL READ COMMITTED",
            *_caught(["BEGIN TRANSACTION", *statements, "COMMIT"]),
        ]

    @property
    def undo(self) -> Sequence[str]:
        """Roll back what was not caught, if XACT_ABORT has not done so."""
        return ("IF @@TRANCOUNT > 0 ROLLBACK",)

    share = ""

    def limited(self, select: str, limit: int | None) -> str:
        """OFFSET and FETCH, which need an ORDER BY."""
        return select if limit is None else f"{select} OFFSET 0 ROWS FETCH NEXT {limit} ROWS ONLY"

    def locked(self, table: str, where: str, *, order: str, share: bool) -> str:  # noqa: ARG002  (an index gives it)
        """Lock the rows by hints."""
        hints = "REPEATABLEREAD, ROWLOCK" if share else FREE_ROWS
        rows = f"FROM {table} WITH ({hints}) WHERE {where}"
        return f"(SELECT COUNT(*) AS n, COALESCE(SUM(CAST(stamp AS DECIMAL(38, 0))), 0) AS total {rows}) AS x"

    def free(self, columns: str, table: str, where: str) -> str:
        """Lock what is free."""
        return f"SELECT {columns} FROM {table} WITH ({FREE_ROWS}) WHERE {where}"

    def insist(self, condition: str, source: str = "") -> str:
        """THROW, which is caught and rolls back."""
        met = f"SELECT 1 AS met{f' FROM {source}' if source else ''} WHERE {condition}"
        return f"IF NOT EXISTS ({met}) THROW {CONFLICT}, N'a row was changed by another client', 1"

    def create(self, table: str, columns: str, keys: Sequence[str]) -> list[str]:
        """Create a table whose primary key is not clustered, without lock escalation."""
        made = []
        for key in keys:
            if key.startswith("PRIMARY KEY"):
                made.append(f"CONSTRAINT {table}_pk {key.replace('PRIMARY KEY', 'PRIMARY KEY NONCLUSTERED')}")
                continue
            kind, _, rest = key.partition("INDEX ")
            name, _, on = rest.partition(" ")
            where = f" WHERE {name} IS NOT NULL" if kind else ""  # a unique index would accept one NULL only
            made.append(f"INDEX {table}_{name} {kind}NONCLUSTERED {on}{where}")
        create = f"CREATE TABLE {table} ({', '.join([columns, *made])})"
        escalation = f"ALTER TABLE {table} SET (LOCK_ESCALATION = DISABLE)"
        return ["\n".join(_caught([f"IF OBJECT_ID(N'{table}') IS NULL BEGIN {create}; {escalation} END"]))]

    def oldest_client(self, table: str) -> str:
        """0 if there is no table: CATCH does not catch a name that is unknown in its own batch."""
        return f"IF OBJECT_ID(N'{table}') IS NULL SELECT 0 ELSE SELECT MAX(oldest_client) FROM {table}"

    def column(self, kind: str) -> str:
        """VARBINARY for what is compared, NVARCHAR for what people read."""
        return {
            "key": f"VARBINARY({self.key_bytes})",
            "id": f"VARBINARY({self.id_bytes})",
            "name": "VARBINARY(512)",
            "digest": "BINARY(32)",
            "text": "NVARCHAR(MAX)",
            "number": "BIGINT",
        }[kind]

    def cause_of(self, error: BaseException) -> Cause:
        """By the number in the text, else by the text of the server or the phrase of the driver."""
        text = str(error)
        if number := _NUMBER.search(text):
            return _NUMBERS.get(int(number[1]), "unknown")
        for part, cause in _TEXTS.items():
            if part in text:
                return cause
        phrase = _PHRASE.match(text)
        if phrase and phrase[1] in _PHRASES:
            return _PHRASES[phrase[1]]
        if isinstance(error, OSError) or type(error).__name__ == "InterfaceError":  # that of the driver
            return "lost"
        return "unknown"

    def advice_for(self, error: BaseException) -> str:  # noqa: ARG002  (a server states its reason)
        """The same for all."""
        return GENERAL_ADVICE


def connection_string(parts: SplitResult, database: str, given: dict[str, str]) -> str:
    """The connection string of a URL; options of the driver are passed on under their names."""
    server = parts.hostname or "localhost"
    found = {"Server": f"{server},{parts.port}" if parts.port else server, "Database": database}
    if parts.username:
        found["UID"] = unquote(parts.username)
    if parts.password:
        found["PWD"] = unquote(parts.password)
    found |= given
    return ";".join(f"{name}={_braced(value)}" for name, value in found.items())


def _braced(value: str) -> str:
    if any(character in value for character in ";{}= "):
        return "{" + value.replace("}", "}}") + "}"
    return value
