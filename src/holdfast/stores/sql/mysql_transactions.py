"""Users' own statements and Holdfast's commands in one transaction of a MySQL or MariaDB database.

Commands within a user's transaction read rows with FOR UPDATE, because the snapshot of the transaction may be older
than what others have committed; the rows stay locked until the transaction ends. A command that fails leaves the
transaction usable, with one exception: after a deadlock the server has rolled all of it back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any
from weakref import WeakSet

import pymysql
from pymysql.constants import SERVER_STATUS
from pymysql.cursors import Cursor

from ...commands import Command
from ...errors import InvalidOption, StoreContended, StoreError, StoreUnavailable, StoreUnusable
from ...platform import host_clock
from ...rules.lock_outcomes import Outcome
from .. import executor
from ..common import flaw
from ..contract import Clock, Connection
from .dialect import Dialect, Rows
from .mysql import IDLE_SECONDS, ROLLED_BACK, MySqlDialect
from .session import LostRace, RowBusy, ValueRefused, translated
from .source import SqlSource
from .store import SqlStore
from .tables import SqlTables

PATIENCE_SECONDS = 2
"""How long a command in a user's transaction waits for a row that another transaction has locked."""
CURRENT = " FOR UPDATE"
NO_SAVEPOINT = 1305
MARK = "holdfast_begun"
"""A savepoint at the beginning of a transaction that is lent to a function."""
PLACE = "SELECT CONCAT(@@hostname, ':', @@port, ':', @@datadir, '/', DATABASE())"
"""Identifies a server and a database in it."""
ISOLATION = "SHOW SESSION VARIABLES WHERE Variable_name IN ('transaction_isolation', 'tx_isolation')"
"""Each of these servers has one of the two; a level that was set for one transaction only is not shown."""

_lent: WeakSet[Any] = WeakSet()
"""Connections of blocks that are under way: only this module ends their transactions."""


def _check_lent(connection: Any, dialect: Dialect) -> None:
    """Raise if the function has ended the transaction: a savepoint that was made at its beginning is gone then.

    A statement such as CREATE TABLE ends it too, and a later statement may have opened another one.
    """
    try:
        _execute(connection, f"RELEASE SAVEPOINT {MARK}", f"SAVEPOINT {MARK}")
    except pymysql.MySQLError as error:
        if error.args[0] != NO_SAVEPOINT:
            raise translated(dialect, error, dialect.cause_of(error), sent=False) from error
        raise InvalidOption(
            "the function has ended the transaction itself, so what it wrote may be committed without the record of "
            "its step. Return to commit, raise to roll back, and use SAVEPOINT for a part."
        ) from error


def _execute(connection: Any, *statements: str) -> None:
    with connection.cursor(Cursor) as cursor:
        for statement in statements:
            cursor.execute(statement)


class MySqlStore(SqlStore):
    """A store whose database may have tables of the user's."""

    _place = ""

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """A block with a PyMySQL connection for the user's statements, in one transaction."""
        dialect = self.address.dialect
        assert isinstance(dialect, MySqlDialect)  # noqa: S101  (the opener has seen to it)
        self.create_tables()  # which the transaction cannot do
        connection = self._begun(dialect)
        try:
            _lent.add(connection)
            yield connection
            _check_lent(connection, dialect)
            try:
                connection.commit()
            except pymysql.MySQLError as error:
                raise translated(dialect, error, dialect.cause_of(error), sent=True) from error
        finally:
            connection._force_close()  # noqa: SLF001  (the server rolls back what is not committed)

    def _begun(self, dialect: MySqlDialect) -> Any:
        """A connection on which a transaction has begun."""
        connection = None
        try:
            connection = dialect.connect_for_user(self.address.timeout)
            _execute(connection, "SET TRANSACTION ISOLATION LEVEL READ COMMITTED", "BEGIN", f"SAVEPOINT {MARK}")
        except Exception as error:
            if connection is not None:
                connection._force_close()  # noqa: SLF001  (it is not used any more)
            raise translated(dialect, error, dialect.cause_of(error), sent=False) from error
        return connection

    def join(self, connection: Any) -> Connection:
        """Carry commands out within the transaction of this connection, of PyMySQL or SQLAlchemy.

        With autocommit off no transaction needs to be open: the driver opens it, as it does for any statement.
        """
        driver = driver_of(connection)
        if driver in _lent:
            _check_lent(driver, self.address.dialect)
        if not driver.server_status & SERVER_STATUS.SERVER_STATUS_IN_TRANS and driver.get_autocommit():
            raise InvalidOption("no transaction is open on this connection: begin one first (connection.begin())")
        if driver.charset != "utf8mb4":
            raise InvalidOption(
                f"the character set of this connection is {driver.charset}. Open it with charset='utf8mb4'."
            )
        statements = UserStatements(driver, self.address.dialect)
        if driver not in _lent and "SERIALIZABLE" in (level for _, level in statements.ask(ISOLATION)):
            raise InvalidOption(
                "this connection is SERIALIZABLE, and nothing was done: in such a transaction every read locks its "
                "rows, so workers could neither register nor renew their leases until it ends. Execute SET SESSION "
                "TRANSACTION ISOLATION LEVEL READ COMMITTED before the transaction begins; with SQLAlchemy use "
                "isolation_level='READ COMMITTED'."
            )
        ((there,),) = statements.ask(PLACE)
        if there != self._place:  # not read yet, or another server has taken over since then
            session = self.session()
            try:
                ((self._place,),) = session.run([PLACE])[0]
            finally:
                session.close()
        if there != self._place:
            raise InvalidOption(
                f"this connection is to another database than {self.url}, and one transaction can write to one "
                "database only. Pass a connection to the database of the store."
            )
        return MySqlJoined(driver, self.tables, self.namespace, self.address.dialect, self.clock)


def driver_of(connection: Any) -> Any:
    """The PyMySQL connection: itself, or that of an SQLAlchemy connection."""
    for found in (connection, getattr(getattr(connection, "connection", None), "driver_connection", None)):
        if isinstance(found, pymysql.connections.Connection):
            return found
    raise InvalidOption(
        f"a PyMySQL or SQLAlchemy connection to the database of the store is needed here, not "
        f"{type(connection).__module__}.{type(connection).__qualname__}"
    )


class UserStatements:
    """Sends statements one by one on a user's connection, each group within a savepoint."""

    def __init__(self, driver: Any, dialect: Dialect) -> None:
        self._driver, self.dialect = driver, dialect

    def read(self, statements: Sequence[str]) -> list[Rows]:
        """Read."""
        return self._sent(statements)

    def write(self, statements: Sequence[str]) -> None:
        """Write; the user commits."""
        self._sent(statements)

    def ask(self, statement: str) -> Rows:
        """Send one statement outside of any decision."""
        try:
            return (*self._send([statement]), ())[0]
        except Exception as error:
            cause = self.dialect.cause_of(error)
            raise translated(self.dialect, error, cause, sent=False) from error

    def _sent(self, statements: Sequence[str]) -> list[Rows]:
        try:
            self._send(["SAVEPOINT holdfast_step"])
            found = self._send(statements)
            self._send(["RELEASE SAVEPOINT holdfast_step"])
        except Exception as error:
            raise self._refusal(error) from error
        return found

    def _send(self, statements: Sequence[str]) -> list[Rows]:
        found: list[Rows] = []
        with self._driver.cursor(Cursor) as cursor:
            for statement in statements:
                cursor.execute(statement)
                if cursor.description:
                    found.append(cursor.fetchall())
        return found

    def _refusal(self, error: Exception) -> Exception:
        """Undo the statements of a failed group, and return the error."""
        cause = self.dialect.cause_of(error)
        if error.args and error.args[0] in ROLLED_BACK:
            return StoreContended(
                f"your transaction conflicted with another one ({error}): the server has rolled all of it back. Run it "
                "again."
            )
        if cause == "lost":
            return StoreUnavailable(f"the connection of your transaction was lost ({error}): it was rolled back.")
        self.ask("ROLLBACK TO SAVEPOINT holdfast_step")
        self.ask("RELEASE SAVEPOINT holdfast_step")
        known = {"conflict": LostRace, "busy": RowBusy, "bad value": ValueRefused}.get(cause)
        return known(str(error)) if known is not None else translated(self.dialect, error, cause, sent=False)


class MySqlJoined:
    """Commands within a user's transaction. Used by the thread that uses the connection."""

    def __init__(self, driver: Any, tables: SqlTables, namespace: str, dialect: Dialect, clock: Clock) -> None:
        self._driver, self._clock = driver, None if clock is host_clock else clock
        self._statements = UserStatements(driver, dialect)
        self._source = SqlSource(self._statements, tables, namespace, current=CURRENT)
        self._closed = False

    def execute(self, commands: Sequence[Command]) -> list[Outcome]:
        """Carry the commands out; they take effect when the transaction is committed."""
        if self._closed:
            raise StoreUnusable("this connection is closed. Join the transaction again.")
        self._source.begin(None if self._clock is None else self._clock())
        ((before,),) = self._statements.ask("SELECT @@SESSION.innodb_lock_wait_timeout")
        self._statements.ask(f"SET SESSION innodb_lock_wait_timeout = {PATIENCE_SECONDS}")
        if self._driver in _lent:  # the commit follows at once: a client that is paused now must not keep the rows
            self._statements.ask(f"SET SESSION wait_timeout = {IDLE_SECONDS}")
        try:
            outcomes: list[Outcome | None] = [flaw(command) for command in commands]
            sound = [place for place, outcome in enumerate(outcomes) if outcome is None]
            done = executor.execute(self._source, [commands[place] for place in sound])
            for place, outcome in zip(sound, done.outcomes, strict=True):
                outcomes[place] = outcome
        except StoreError as error:
            error.ambiguous = False  # nothing has been committed yet
            raise
        finally:
            if self._driver.open:
                with suppress(StoreError):  # the error that matters is the first one
                    self._statements.ask(f"SET SESSION innodb_lock_wait_timeout = {before}")
        return outcomes  # type: ignore[return-value]  # all are answered by now

    def close(self) -> None:
        """The transaction and its connection stay open; the user ends them."""
        self._closed = True
