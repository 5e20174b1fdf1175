"""Users' own statements and Holdfast's commands in one transaction of one PostgreSQL database.

A `ConnectionSource` provides the connection of a block: from the user's pool or engine if the store was opened from
one, or else a new one. A `JoinedConnection` carries commands out within a transaction that is open on such a
connection, or on any other connection to the same database. There, rows that another transaction has locked are waited
for, up to a time limit; a command that fails breaks neither the transaction nor other commands. Only the commit decides
whether everything was carried out.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, Protocol
from weakref import WeakKeyDictionary, WeakSet

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.rows import tuple_row

from ...commands import Command
from ...errors import InvalidOption, StoreContended, StoreError, StoreUnavailable, StoreUnusable
from ...rules.lock_outcomes import Outcome
from ..contract import Clock
from .batch import PostgresBatch
from .session import BadData, Connect, NotInstalled, Rows, Statement, cannot_connect, refusal
from .statements import SETTINGS

PATIENCE = b"2000"
"""Milliseconds for which a command in a user's transaction waits for a row that another transaction has locked."""
IDLE_CONNECTIONS = 4
"""How many of the store's own connections are kept for the next block."""
# The start time identifies a server while it runs, whatever the settings of the session are.
PLACE = (
    "SELECT extract(epoch FROM pg_catalog.pg_postmaster_start_time())::text || ' ' || oid::text "
    "FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()"
)
# This setting ends with its transaction. Unlike a savepoint or a query, it still allows the user to choose the
# isolation level afterwards.
RUN_PREFIX = "SET LOCAL holdfast.lent = 'yes'"
MARKED = "SELECT pg_catalog.current_setting('holdfast.lent', true)"
READ_ONLY, SERIALIZATION_FAILURE, UNIQUE_VIOLATION = "25006", "40001", "23505"
COMMITTED = ("read committed", "read uncommitted")
"""Isolation levels in which a statement sees what was committed before it."""
ISOLATION = "SELECT pg_catalog.current_setting('transaction_isolation')"
_NUMBERED = re.compile(rb"\$(\d+)")
# Settings that a step changes, and their values before it.
_SAVE = """
SELECT set_config('holdfast_step.saved', jsonb_object_agg(s.name, current_setting(s.name))::text, true)
  FROM unnest(ARRAY[
    'lock_timeout', 'enable_seqscan', 'enable_hashjoin', 'enable_mergejoin', 'plan_cache_mode'
]) AS s(name)
"""
_RESTORE = """
SELECT set_config(s.key, s.value, true) FROM jsonb_each_text(current_setting('holdfast_step.saved')::jsonb) AS s
"""

Psycopg = psycopg.Connection[Any]
Began = AbstractContextManager[psycopg.Transaction]
Run = Callable[[bytes, dict[str, str | None]], list[tuple[object, ...]]]
"""Sends a statement on a user's connection, and returns its rows."""


_lent: WeakSet[Psycopg] = WeakSet()
"""Connections of blocks that are under way: only this module ends their transactions."""


class _NotInTransaction(StoreUnusable, BadData):
    """A command cannot be carried out in a transaction of this kind."""


class _StaleSnapshot(StoreContended, BadData):
    """A row was changed since the transaction's snapshot: trying again within it cannot succeed."""


# -- lending a connection -----------------------------------------------------------------------------------------


class ConnectionSource(Protocol):
    """Provides connections for users' transactions."""

    def transaction(self) -> AbstractContextManager[Any]:
        """A block with a connection, in one transaction."""

    def close(self) -> None:
        """Close the connections that the source owns."""


class OwnConnections:
    """Connections that are opened when they are needed; a few are kept for the next block."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._idle: list[Psycopg] = []

    @contextmanager
    def transaction(self) -> Iterator[Psycopg]:
        """A block with one of these connections."""
        connection, begun = self._begun()
        try:
            with ended(connection, begun):
                yield connection
        finally:
            clean = connection.info.transaction_status == TransactionStatus.IDLE and not connection.closed
            if clean and len(self._idle) < IDLE_CONNECTIONS:
                self._idle.append(connection)
            else:
                with suppress(psycopg.Error):
                    connection.close()

    def _begun(self) -> tuple[Psycopg, Began]:
        """A connection in a transaction. A kept connection that was lost is replaced by another one."""
        while self._idle:
            kept = self._idle.pop()
            try:
                return kept, begin(kept)
            except StoreError:
                with suppress(psycopg.Error):
                    kept.close()
        with _mapped():
            fresh = self._connect()
            # READ WRITE whatever the role's default is, because the journal is written within. The isolation level
            # stays that of the role, for the user's statements: a command about a row that was changed since the
            # snapshot fails, and never reads the old row.
            fresh.read_only = False
        return fresh, begin(fresh)

    def close(self) -> None:
        """Close the kept connections."""
        while self._idle:
            with suppress(psycopg.Error):
                self._idle.pop().close()


class PooledConnections:
    """Connections of the user's psycopg pool."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    @contextmanager
    def transaction(self) -> Iterator[Psycopg]:
        """A block with a connection of the pool."""
        with _mapped():
            connection: Psycopg = self._pool.getconn()
        try:
            with ended(connection, begin(connection)):
                yield connection
        finally:
            self._pool.putconn(connection)

    def close(self) -> None:
        """Nothing to close: the pool belongs to the user."""


class EngineConnections:
    """Connections of the user's SQLAlchemy engine."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """A block with a connection of the engine."""
        with _mapped():
            connection = self._engine.connect()
        with connection:
            transaction = connection.begin()
            driver = connection.connection.dbapi_connection
            _refuse_autocommit(driver)
            with _mapped():
                _mark(driver)
            try:
                yield connection
            except BaseException:
                with suppress(Exception):  # the first error is the one to raise
                    transaction.rollback()
                raise
            finally:
                _lent.discard(driver)
            if driver.info.transaction_status == TransactionStatus.INERROR:
                transaction.rollback()
                raise _swallowed()
            with _mapped(commits=True):
                transaction.commit()

    def close(self) -> None:
        """Nothing to close: the engine belongs to the user."""


def begin(connection: Psycopg) -> Began:
    """Begin a transaction in which a commit by the user is refused."""
    with _mapped():
        if connection.info.transaction_status != TransactionStatus.IDLE:
            connection.rollback()
        transaction = connection.transaction()
        transaction.__enter__()
        _mark(connection)
    return transaction


def _mark(driver: Psycopg) -> None:
    """Mark the transaction, so that it is recognised when it is joined."""
    driver.execute(RUN_PREFIX)
    _lent.add(driver)


@contextmanager
def ended(connection: Psycopg, transaction: Began) -> Iterator[None]:
    """Commit the transaction at the end of the block, or roll it back if the block raises."""
    try:
        yield
    except BaseException as error:
        with suppress(psycopg.Error):  # the first error is the one to raise
            if transaction.__exit__(type(error), error, error.__traceback__):
                return
        raise
    finally:
        _lent.discard(connection)
    if connection.info.transaction_status == TransactionStatus.INERROR:
        problem = _swallowed()
        transaction.__exit__(type(problem), problem, None)
        raise problem
    with _mapped(commits=True):
        transaction.__exit__(None, None, None)


def _swallowed() -> StoreUnusable:
    return StoreUnusable(
        "a statement of this transaction has failed, and its error was caught within the block. After an error "
        "PostgreSQL commits nothing, so nothing was committed. Let the error leave the block, or put statements that "
        "may fail into a nested transaction (a savepoint)."
    )


def _refuse_autocommit(driver: Psycopg) -> None:
    if driver.autocommit:
        raise InvalidOption(
            "this engine has the isolation level AUTOCOMMIT, so its statements would not be in one transaction. "
            "Open the store from an engine with another isolation level."
        )


@contextmanager
def _mapped(*, commits: bool = False) -> Iterator[None]:
    """Translate errors of the driver. Errors of the user's own constraints at the commit stay as they are."""
    try:
        yield
    except StoreError:
        raise
    except Exception as error:
        cause = getattr(error, "orig", None) or error
        if not isinstance(cause, psycopg.Error):
            if commits or type(error).__module__.partition(".")[0] not in ("sqlalchemy", "psycopg_pool"):
                raise
            raise StoreUnavailable(f"no connection is available: {error}. Nothing was sent.") from error
        if not commits:
            raise cannot_connect(cause) from error
        if cause.sqlstate is not None and cause.sqlstate[:2] in ("22", "23", "P0"):
            raise
        raise _translated(cause) from error


def _translated(error: psycopg.Error) -> StoreError:
    meant = refusal(error.sqlstate or "", error.diag.message_primary or str(error))
    if isinstance(meant, StoreError):
        return meant
    return StoreContended(f"{meant} The whole transaction was rolled back.")


# -- joining one --------------------------------------------------------------------------------------------------

_known: WeakKeyDictionary[Psycopg, str] = WeakKeyDictionary()
"""The database of each connection, which never changes."""


def driver_of(connection: Any) -> Psycopg:
    """The psycopg connection of a user's connection. Raises `InvalidOption` if it cannot be joined."""
    found = connection
    if type(connection).__module__.partition(".")[0] == "sqlalchemy" and hasattr(connection, "exec_driver_sql"):
        if connection.dialect.name != "postgresql" or connection.dialect.driver != "psycopg":
            raise InvalidOption(
                f"a transaction of {connection.dialect.name}+{connection.dialect.driver}:// cannot be joined. Pass a "
                "connection of an engine for postgresql+psycopg://."
            )
        found = connection.connection.dbapi_connection
    if not isinstance(found, psycopg.Connection):
        raise InvalidOption(
            f"{type(connection).__module__}.{type(connection).__name__} cannot be joined. Pass a psycopg.Connection or "
            "an SQLAlchemy Connection (not a Session, nothing async) to the database of this store."
        )
    if found.closed:
        raise InvalidOption(
            "this connection is closed. Pass an open connection, in the transaction that is to be joined."
        )
    if found.info.encoding.replace("-", "").lower() != "utf8":
        raise InvalidOption(
            f"this connection has the encoding {found.info.encoding}, which cannot represent every text. Connect "
            "with client_encoding=utf8."
        )
    return found


def check_lent(driver: Psycopg, run: Run) -> None:
    """Raise if the transaction of a lent connection is no longer the one that was begun here."""
    status = driver.info.transaction_status
    if driver not in _lent or status == TransactionStatus.INERROR:
        return
    if status == TransactionStatus.IDLE or _asked(run, MARKED.encode()) != [("yes",)]:
        raise InvalidOption(
            "the function has ended the transaction itself (COMMIT or ROLLBACK); only ctx.transaction may do that. "
            "Return to commit, raise to roll back, and use savepoints for a part. No journal entry was written; what "
            "the function has committed stays."
        )


def check_open(driver: Psycopg) -> None:
    """Raise unless a statement sent now is part of a transaction that the user ends."""
    status = driver.info.transaction_status
    if driver.autocommit and status == TransactionStatus.IDLE:
        raise InvalidOption(
            "this connection is in autocommit mode and has no transaction open, so your writes and these commands "
            "would not be in one transaction. Use `with connection.transaction():`, or a connection without "
            "autocommit."
        )
    if status == TransactionStatus.INERROR:
        raise StoreUnusable(
            "a statement of this transaction has failed. Roll the transaction back, and begin it again."
        )


def runner_of(connection: Any, driver: Psycopg) -> Run:
    """A function that sends a statement on the connection: through SQLAlchemy if it owns the connection."""
    if connection is not driver:

        def run_through(statement: bytes, values: dict[str, str | None]) -> list[tuple[object, ...]]:
            found = connection.exec_driver_sql(statement.decode(), values or None)
            return [tuple(row) for row in found.fetchall()] if found.returns_rows else []

        return run_through

    def run(statement: bytes, values: dict[str, str | None]) -> list[tuple[object, ...]]:
        with psycopg.Cursor(driver, row_factory=tuple_row) as cursor:
            cursor.execute(statement, values or None)
            return cursor.fetchall() if cursor.description else []

    return run


def place_of(driver: Psycopg, run: Run) -> str:
    """The server and database of a connection; read once per connection."""
    if driver not in _known:
        _known[driver] = str(_asked(run, PLACE.encode())[0][0])
    return _known[driver]


def _asked(run: Run, statement: bytes, values: Sequence[bytes | None] = ()) -> list[tuple[object, ...]]:
    try:
        return _sent(run, statement, values)
    except Exception as error:
        cause = getattr(error, "orig", None) or error
        if not isinstance(cause, psycopg.Error):
            raise
        translated = _translated(cause)
        translated.ambiguous = False  # nothing has been committed yet
        raise translated from error


def _sent(run: Run, statement: bytes, values: Sequence[bytes | None]) -> list[tuple[object, ...]]:
    """Send a statement with the parameter style of the driver."""
    if not values:
        return run(statement, {})
    text = _NUMBERED.sub(rb"%(v\1)s", statement.replace(b"%", b"%%"))
    named = {f"v{place}": None if value is None else value.decode() for place, value in enumerate(values, 1)}
    return run(text, named)


class UserTransaction:
    """A user's transaction, in which each decision has a savepoint of its own."""

    begin: Sequence[Statement] = (
        Statement(b"SAVEPOINT holdfast_step"),
        Statement(" ".join(_SAVE.split()).encode()),
        Statement(" ".join(SETTINGS.split()).encode(), (PATIENCE, b"true")),
    )
    look = begin
    commit: Sequence[Statement] = (
        Statement(" ".join(_RESTORE.split()).encode()),
        Statement(b"RELEASE SAVEPOINT holdfast_step"),
    )
    rollback: Sequence[Statement] = (
        Statement(b"ROLLBACK TO SAVEPOINT holdfast_step"),
        Statement(b"RELEASE SAVEPOINT holdfast_step"),
    )

    def __init__(self, run: Run) -> None:
        self._run = run
        self._saved = False

    def trip(self, statements: Sequence[Statement]) -> list[Rows]:
        """Send statements one by one. A failure rolls back its own step only, and leaves the transaction usable."""
        found: list[Rows] = []
        for statement in statements:
            if statement in self.rollback and not self._saved:
                found.append([])
                continue
            try:
                rows = _sent(self._run, statement.text, statement.values)
            except Exception as error:
                cause = getattr(error, "orig", None) or error
                if not isinstance(cause, psycopg.Error):
                    raise
                raise self._refusal(cause) from error
            if statement in (self.begin[0], self.commit[-1]):
                self._saved = statement is self.begin[0]
            found.append([tuple(None if value is None else str(value).encode() for value in row) for row in rows])
        return found

    def check_counting(self) -> None:
        """Raise if counts would be outdated because the transaction has an older snapshot."""
        if (isolation := self._isolation()) not in COMMITTED:
            raise _NotInTransaction(
                f"runs with limits cannot be started or ended in a transaction that is {isolation.upper()}, because "
                "its snapshot may be outdated and runs would be miscounted. Nothing was done for this command. Use "
                "READ COMMITTED for this transaction."
            )

    def _isolation(self) -> str:
        return str(_asked(self._run, ISOLATION.encode())[0][0])

    def _refusal(self, error: psycopg.Error) -> Exception:
        """Roll back the step of a failed statement, and return its error."""
        state, message = error.sqlstate or "", error.diag.message_primary or str(error)
        if self._saved:
            self._saved = False
            for statement in self.rollback:
                _asked(self._run, statement.text)
        reported = f"PostgreSQL reports: {message} (SQLSTATE {state})."
        if state == READ_ONLY:
            return _NotInTransaction(
                f"{reported} Nothing was done for this command: your transaction is read-only. Begin it READ WRITE, or "
                "set default_transaction_read_only to off for this role and database."
            )
        if state in (SERIALIZATION_FAILURE, UNIQUE_VIOLATION) and (isolation := self._isolation()) not in COMMITTED:
            return _StaleSnapshot(
                f"{reported} Nothing was done for this command: your transaction is {isolation.upper()}, and another "
                "transaction has changed the records of this command since its snapshot. Roll your transaction back "
                "and run it again, or use READ COMMITTED for it."
            )
        meant = refusal(state, message)
        if isinstance(meant, StoreError):
            meant.ambiguous = False  # nothing has been committed yet
        return meant


class JoinedConnection:
    """Commands within a user's transaction. Used by the thread that uses the connection."""

    def __init__(
        self,
        connection: Any,
        driver: Psycopg,
        *,
        schema: str,
        namespace: str,
        clock: Clock | None,
        missed: Callable[[], None],
    ) -> None:
        """`missed` is called if the functions are missing: it creates them, for the next transaction."""
        self._driver, self._clock, self._missed = driver, clock, missed
        self._closed = False
        within = UserTransaction(runner_of(connection, driver))
        self._batch = PostgresBatch(within, schema=schema, namespace=namespace, patient=True)

    def execute(self, commands: Sequence[Command]) -> list[Outcome]:
        """Carry the commands out; they take effect when the transaction is committed."""
        if self._closed:
            raise StoreUnusable("this connection is closed. Join the transaction again.")
        check_open(self._driver)
        at = None if self._clock is None else str(self._clock()).encode()
        try:
            return self._batch.run(commands, at, None)
        except StoreError as error:
            error.ambiguous = False  # nothing has been committed yet
            if isinstance(error, NotInstalled):
                self._missed()
            raise

    def close(self) -> None:
        """The transaction and its connection stay open; the user ends them."""
        self._closed = True
