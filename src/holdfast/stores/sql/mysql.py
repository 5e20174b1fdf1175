"""MySQL and MariaDB, through PyMySQL.

A transaction that a client leaves open after an error, because it was paused, is ended by the server within a second:
the session's `wait_timeout` is one second from the beginning of a transaction to its end. Keys are VARBINARY: the
text types of these servers take 'a' and 'A', or 'a' and 'a ', for equal.
"""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from typing import Any

import pymysql
from pymysql.constants import CLIENT

from .dialect import GENERAL_ADVICE, Cause, Rows

IDLE_SECONDS = 1
"""How long the server keeps an open transaction of a client that sends nothing."""
_CONFLICTS = frozenset({1020, 1022, 1062, 1213, 1412, 1690, 3101})
"""Duplicate keys, deadlock (in a cluster: 3101), the failed condition of `insist`, a row that changed (1020), a table
that was created after the snapshot of a reading transaction (1412)."""
ROLLED_BACK = frozenset({1020, 1213, 3101})
"""Those after which the server has rolled the whole transaction back."""
_BUSY = frozenset({1205, 3572})
_MISSING = frozenset({1146})
_LOST = frozenset({1053, 1077, 1079, 1152, 1158, 1159, 1160, 1161, 1184, 1927, 2006, 2013, 2014, 2027, 2055, 4031})
_UNREACHABLE = frozenset({1040, 1203, 1226, 2002, 2003, 2005})
"""Too many connections, and servers that cannot be reached: a request was never sent."""
_REFUSED = frozenset({1044, 1045, 1049, 1142, 1143, 1227, 1290, 1698, 1820, 1836, 1862, 2026, 2059, 2061, 3118})
TLS_FAILED = 2026
_LOGIN = "Check the user name and the password in the URL, and from which hosts this user may connect."
_GRANT = (
    "Grant it to the user: every client needs SELECT, INSERT, UPDATE and DELETE on the tables, and the first client "
    "needs CREATE and INDEX on the database too."
)
_PRIMARY = "The server is read-only. Use the address of the primary."
_ADVICE = {
    1044: "Check the name of the database in the URL, or grant the user privileges on it.",
    1045: _LOGIN,
    1049: "Check the name of the database in the URL, or create it: CREATE DATABASE. Holdfast creates only tables.",
    1142: _GRANT,
    1143: _GRANT,
    1290: _PRIMARY,
    1698: _LOGIN,
    1820: "The password of this user has expired. Set a new one.",
    1836: _PRIMARY,
    1862: "The password of this user has expired. Set a new one.",
    TLS_FAILED: "TLS failed. Check the ssl_ options of the URL, and the name in the server's certificate.",
    3118: "The account of this user is locked.",
}
"""What to do about errors that only a person can resolve, by their numbers."""
_BAD_VALUES = frozenset({1153, 1264, 1366, 1406, 3140})
_STALE_SECONDS = 28_800
PACKET_ROOM = 1_024
"""Bytes of the largest packet that are left for its header."""


def _distrusts(error: BaseException) -> bool:
    """Whether this host does not trust the server's certificate, which no later try changes."""
    return isinstance(getattr(error, "original_exception", None), ssl.SSLCertVerificationError)


class MySqlDriver:
    """A PyMySQL connection that sends several statements at once."""

    def __init__(self, connection: Any) -> None:
        self.connection = connection
        self.max_bytes: int | None = None

    def send(self, text: str) -> list[Rows]:
        """Send statements in one round trip."""
        with self.connection.cursor() as cursor:
            cursor.execute(text)
            found: list[Rows] = []
            while True:
                if cursor.description:
                    found.append(cursor.fetchall())
                if not cursor.nextset():
                    return found

    def close(self) -> None:
        """Close the connection without sending COM_QUIT: a server that does not respond would not read it."""
        if self.connection.open:
            self.connection._force_close()  # noqa: SLF001  (close() writes to the server first)


class MySqlDialect:
    """MySQL 8 and MariaDB 10.6 or newer."""

    name = "MySQL or MariaDB"
    key_bytes, id_bytes = 2_048, 1_024
    rows_at_once = 1_000
    clock = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"

    def __init__(self, options: dict[str, Any]) -> None:
        """`options` are those of `pymysql.connect`."""
        self._options = options
        self._share = "LOCK IN SHARE MODE"  # MariaDB has no FOR SHARE; MySQL allows SKIP LOCKED only with FOR SHARE.

    def connect(self, timeout: float) -> MySqlDriver:
        """Open a connection."""
        connection = pymysql.connect(
            **self._options,
            charset="utf8mb4",
            autocommit=True,
            connect_timeout=max(1, round(timeout)),
            read_timeout=timeout,
            write_timeout=timeout,
            client_flag=CLIENT.MULTI_STATEMENTS,
        )
        driver = MySqlDriver(connection)
        try:
            settings = f"SET SESSION innodb_lock_wait_timeout = {IDLE_SECONDS}"
            ((version, packet),) = driver.send(f"{settings}; SELECT VERSION(), @@max_allowed_packet")[0]
            self._share = "LOCK IN SHARE MODE" if "mariadb" in version.lower() else "FOR SHARE"
            driver.max_bytes = int(packet) - PACKET_ROOM
        except BaseException:
            driver.close()
            raise
        return driver

    def connect_for_user(self, timeout: float) -> Any:
        """A PyMySQL connection for a user's own statements: without a limit of time, one statement at a time."""
        return pymysql.connect(**self._options, charset="utf8mb4", connect_timeout=max(1, round(timeout)))

    @property
    def share(self) -> str:
        """What is added to a SELECT that shares a lock on its rows."""
        return f" {self._share}"

    def literal(self, value: bytes | str | int | None) -> str:
        """Bytes and text in hexadecimal digits: no character is special, whatever `sql_mode` says."""
        if value is None:
            return "NULL"
        if isinstance(value, int):
            return str(int(value))
        return f"x'{value.hex()}'" if isinstance(value, bytes) else f"_utf8mb4 x'{value.encode().hex()}'"

    def reading(self, statements: Sequence[str]) -> list[str]:
        """One snapshot of all tables."""
        return [
            "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ",
            "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY",
            *statements,
            "COMMIT",
        ]

    def writing(self, statements: Sequence[str]) -> list[str]:
        """READ COMMITTED: REPEATABLE READ would count in a snapshot that is older than the locks."""
        return [
            "SET TRANSACTION ISOLATION LEVEL READ COMMITTED",
            f"SET SESSION wait_timeout = {IDLE_SECONDS}",
            "START TRANSACTION READ WRITE",
            *statements,
            "COMMIT",
            f"SET SESSION wait_timeout = {_STALE_SECONDS}",
        ]

    @property
    def undo(self) -> Sequence[str]:
        """Roll back."""
        return ("ROLLBACK", f"SET SESSION wait_timeout = {_STALE_SECONDS}")

    def limited(self, select: str, limit: int | None) -> str:
        """LIMIT."""
        return select if limit is None else f"{select} LIMIT {limit}"

    def locked(self, table: str, where: str, *, order: str, share: bool) -> str:  # noqa: ARG002  (an index gives it)
        """Lock the rows in the order of the primary key."""
        how = f"{self._share if share else 'FOR UPDATE'} SKIP LOCKED"
        return f"(SELECT COUNT(*) AS n, COALESCE(SUM(stamp), 0) AS total FROM {table} WHERE {where} {how}) AS x"

    def free(self, columns: str, table: str, where: str) -> str:
        """Lock what is free."""
        return f"SELECT {columns} FROM {table} WHERE {where} FOR UPDATE SKIP LOCKED"

    def insist(self, condition: str, source: str = "") -> str:
        """Overflow of EXP is an error in every `sql_mode`, as division by zero is not."""
        return f"SELECT EXP(CASE WHEN {condition} THEN 0 ELSE 1000 END){f' FROM {source}' if source else ''}"

    def create(self, table: str, columns: str, keys: Sequence[str]) -> list[str]:
        """Create an InnoDB table."""
        parts = ", ".join([columns, *keys])
        return [f"CREATE TABLE IF NOT EXISTS {table} ({parts}) ENGINE=InnoDB ROW_FORMAT=DYNAMIC"]

    def oldest_client(self, table: str) -> str:
        """An error says that there is no table."""
        return f"SELECT MAX(oldest_client) FROM {table}"

    def column(self, kind: str) -> str:
        """VARBINARY for what is compared, utf8mb4 for what people read."""
        return {
            "key": f"VARBINARY({self.key_bytes})",
            "id": f"VARBINARY({self.id_bytes})",
            "name": "VARBINARY(512)",
            "digest": "BINARY(32)",
            "text": "LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin",
            "number": "BIGINT",
        }[kind]

    def advice_for(self, error: BaseException) -> str:
        """By the number of the error."""
        number = TLS_FAILED if _distrusts(error) else error.args[0] if error.args else 0
        return _ADVICE.get(number, GENERAL_ADVICE)

    def cause_of(self, error: BaseException) -> Cause:  # noqa: PLR0911  (a table)
        """By the number of the error."""
        number = error.args[0] if isinstance(error, pymysql.MySQLError) and error.args else None
        if number in _CONFLICTS:
            return "conflict"
        if number in _BUSY:
            return "busy"
        if number in _MISSING:
            return "missing"
        if _distrusts(error):
            return "refused"
        if number in _UNREACHABLE or number in _LOST or isinstance(error, pymysql.err.InterfaceError | OSError):
            return "lost"
        if number in _REFUSED:
            return "refused"
        if number in _BAD_VALUES or isinstance(error, pymysql.err.DataError):
            return "bad value"
        return "unknown"
