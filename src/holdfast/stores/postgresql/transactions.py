"""Users' own statements and Holdfast's commands in one transaction of one PostgreSQL database.

A lender has connections for a block: of the user's own pool or engine where the store was made from one, else ours.
A `JoinedConnection` carries commands out within a transaction that is open on such a connection, or on any other one
to the same database. There a row that somebody else has is waited for, though not without an end; what goes wrong with
a command breaks neither the transaction nor its neighbours. Whether the whole happened, the commit alone tells.
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
"""Milliseconds for which a command within somebody's transaction waits for a row that another one has locked."""
IDLE_CONNECTIONS = 4
"""How many connections of our own are kept for the next block."""
# The moment at which the server began is its name, as long as it runs; whatever the settings of the session are.
PLACE = (
    "SELECT extract(epoch FROM pg_catalog.pg_postmaster_start_time())::text || ' ' || oid::text "
    "FROM pg_catalog.pg_database WHERE datname = pg_catalog.current_database()"
)
# Such a setting ends with its transaction. Unlike a savepoint or a query it leaves it to the user to choose the
# isolation level.
MARK = "SET LOCAL holdfast.lent = 'yes'"
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
"""Sends a statement on somebody's connection, and gives its rows."""


_lent: WeakSet[Psycopg] = WeakSet()
"""Connections of blocks that are under way: their transactions are ended here and nowhere else."""


class _NotInTransaction(StoreUnusable, BadData):
    """A command cannot be carried out in a transaction of this kind."""


class _StaleSnapshot(StoreContended, BadData):
    """A row was changed since the transaction's snapshot: asking again within it is of no use."""


# -- lending a connection -----------------------------------------------------------------------------------------


class ConnectionSource(Protocol):
    """Where the connections of users' transactions come from."""

    def transaction(self) -> AbstractContextManager[Any]:
        """A block with a connection, in one transaction."""

    def close(self) -> None:
        """End what is ours."""


class OwnConnections:
    """Connections that are opened when they are needed; a few are kept for the next block."""

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._idle: list[Psycopg] = []

    @contextmanager
    def transaction(self) -> Iterator[Psycopg]:
        """A block with one of them."""
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
        """A connection in a transaction. One that was kept may have been lost meanwhile: then it is another one."""
        while self._idle:
            kept = self._idle.pop()
            try:
                return kept, begin(kept)
            except StoreError:
                with suppress(psycopg.Error):
                    kept.close()
        with _mapped():
            fresh = self._connect()
            # The journal is written within, whatever the role's default is. The isolation level stays the role's, for
            # the user's own statements: a row that was changed since the snapshot is refused, never read as it was.
            fresh.read_only = False
        return fresh, begin(fresh)

    def close(self) -> None:
        """Close those that are kept."""
        while self._idle:
            with suppress(psycopg.Error):
                self._idle.pop().close()


class PooledConnections:
    """Connections of the user's own psycopg pool."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool

    @contextmanager
    def transaction(self) -> Iterator[Psycopg]:
        """A block with one of the pool."""
        with _mapped():
            connection: Psycopg = self._pool.getconn()
        try:
            with ended(connection, begin(connection)):
                yield connection
        finally:
            self._pool.putconn(connection)

    def close(self) -> None:
        """Leave the pool to its owner."""


class EngineConnections:
    """Connections of the user's own SQLAlchemy engine."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine

    @contextmanager
    def transaction(self) -> Iterator[Any]:
        """A block with one of the engine's."""
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
                with suppress(Exception):  # what has happened is the error to tell
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
        """Leave the engine to its owner."""


def begin(connection: Psycopg) -> Began:
    """Begin a transaction, within which the user's own commit is refused."""
    with _mapped():
        if connection.info.transaction_status != TransactionStatus.IDLE:
            connection.rollback()
        transaction = connection.transaction()
        transaction.__enter__()
        _mark(connection)
    return transaction


def _mark(driver: Psycopg) -> None:
    """Mark the transaction, so that it is known again when it is joined."""
    driver.execute(MARK)
    _lent.add(driver)


@contextmanager
def ended(connection: Psycopg, transaction: Began) -> Iterator[None]:
    """Commit the transaction at the end of the block, roll it back when that raises."""
    try:
        yield
    except BaseException as error:
        with suppress(psycopg.Error):  # what has happened is the error to tell
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
        "a statement of this transaction has failed and its error was caught within the block: PostgreSQL commits "
        "nothing after that, and nothing was committed. Let the error leave the block, or put what may fail into a "
        "transaction of its own (a savepoint)."
    )


def _refuse_autocommit(driver: Psycopg) -> None:
    if driver.autocommit:
        raise InvalidOption(
            "this engine has the isolation level AUTOCOMMIT, so no transaction would hold its statements together. "
            "Make the store from an engine with another isolation level."
        )


@contextmanager
def _mapped(*, commits: bool = False) -> Iterator[None]:
    """Say what the driver says in our words. What the server refused at the commit for the user's reasons stays."""
    try:
        yield
    except StoreError:
        raise
    except Exception as error:
        cause = getattr(error, "orig", None) or error
        if not isinstance(cause, psycopg.Error):
            if commits or type(error).__module__.partition(".")[0] not in ("sqlalchemy", "psycopg_pool"):
                raise
            raise StoreUnavailable(f"no connection could be had: {error}. Nothing was sent.") from error
        if not commits:
            raise cannot_connect(cause) from error
        if cause.sqlstate is not None and cause.sqlstate[:2] in ("22", "23", "P0"):
            raise
        raise _told(cause) from error


def _told(error: psycopg.Error) -> StoreError:
    meant = refusal(error.sqlstate or "", error.diag.message_primary or str(error))
    if isinstance(meant, StoreError):
        return meant
    return StoreContended(f"{meant} The whole transaction was rolled back.")


# -- joining one --------------------------------------------------------------------------------------------------

_known: WeakKeyDictionary[Psycopg, str] = WeakKeyDictionary()
"""Which database a connection leads to; that never changes."""


def driver_of(connection: Any) -> Psycopg:
    """The psycopg connection behind what was given. Raises `InvalidOption` for what cannot be joined."""
    found = connection
    if type(connection).__module__.partition(".")[0] == "sqlalchemy" and hasattr(connection, "exec_driver_sql"):
        if connection.dialect.name != "postgresql" or connection.dialect.driver != "psycopg":
            raise InvalidOption(
                f"a transaction of {connection.dialect.name}+{connection.dialect.driver}:// cannot be joined: give a "
                "connection of an engine for postgresql+psycopg://."
            )
        found = connection.connection.dbapi_connection
    if not isinstance(found, psycopg.Connection):
        raise InvalidOption(
            f"{type(connection).__module__}.{type(connection).__name__} cannot be joined: give a psycopg.Connection or "
            "a connection of SQLAlchemy (not a session, nothing asynchronous) to the database of this store."
        )
    if found.closed:
        raise InvalidOption("this connection is closed: give an open one, in the transaction that is to be joined.")
    if found.info.encoding.replace("-", "").lower() != "utf8":
        raise InvalidOption(
            f"this connection has the encoding {found.info.encoding}, in which not every text can be written: connect "
            "with client_encoding=utf8."
        )
    return found


def check_lent(driver: Psycopg, run: Run) -> None:
    """Raise if the transaction of a connection that was lent is no longer the one that was begun here."""
    status = driver.info.transaction_status
    if driver not in _lent or status == TransactionStatus.INERROR:
        return
    if status == TransactionStatus.IDLE or _asked(run, MARKED.encode()) != [("yes",)]:
        raise InvalidOption(
            "the function has ended the transaction itself (COMMIT or ROLLBACK), and must leave that to "
            "ctx.transaction: return to commit, raise to roll back, and use savepoints for a part. Nothing was "
            "recorded; what the function has committed stays."
        )


def check_open(driver: Psycopg) -> None:
    """Raise unless what is sent now is part of a transaction that its owner ends."""
    status = driver.info.transaction_status
    if driver.autocommit and status == TransactionStatus.IDLE:
        raise InvalidOption(
            "this connection is in autocommit mode and has no transaction open, so your writes and these commands "
            "would be apart. Join it within `with connection.transaction():`, or use a connection without autocommit."
        )
    if status == TransactionStatus.INERROR:
        raise StoreUnusable("a statement of this transaction has failed: roll it back, and begin again.")


def runner_of(connection: Any, driver: Psycopg) -> Run:
    """How a statement is sent on it: through SQLAlchemy where that is the owner, so that it knows of it."""
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
    """Which server and database this is; asked once a connection."""
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
        told = _told(cause)
        told.ambiguous = False  # what is not committed has not happened
        raise told from error


def _sent(run: Run, statement: bytes, values: Sequence[bytes | None]) -> list[tuple[object, ...]]:
    """Send a statement in the driver's own words."""
    if not values:
        return run(statement, {})
    text = _NUMBERED.sub(rb"%(v\1)s", statement.replace(b"%", b"%%"))
    named = {f"v{place}": None if value is None else value.decode() for place, value in enumerate(values, 1)}
    return run(text, named)


class UserTransaction:
    """Somebody's transaction, in which each decision has a savepoint of its own."""

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
        """Send statements one by one. What fails undoes its own step, and leaves the transaction as it was."""
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
        """Raise where a transaction would count what is past."""
        if (isolation := self._isolation()) not in COMMITTED:
            raise _NotInTransaction(
                f"runs with limits cannot be counted in a transaction that is {isolation.upper()}, because it sees the "
                "past. Nothing was done for this command. Use the isolation level READ COMMITTED for it."
            )

    def _isolation(self) -> str:
        return str(_asked(self._run, ISOLATION.encode())[0][0])

    def _refusal(self, error: psycopg.Error) -> Exception:
        """Why a statement failed; its step is undone."""
        state, message = error.sqlstate or "", error.diag.message_primary or str(error)
        if self._saved:
            self._saved = False
            for statement in self.rollback:
                _asked(self._run, statement.text)
        told = f"PostgreSQL says: {message} (SQLSTATE {state})."
        if state == READ_ONLY:
            return _NotInTransaction(
                f"{told} Nothing was done for this command: your transaction is read-only. Begin it READ WRITE, or "
                "have default_transaction_read_only off for this role and database."
            )
        if state in (SERIALIZATION_FAILURE, UNIQUE_VIOLATION) and (isolation := self._isolation()) not in COMMITTED:
            return _StaleSnapshot(
                f"{told} Nothing was done for this command: your transaction is {isolation.upper()}, and somebody has "
                "changed what the command is about since its snapshot. Roll the transaction back and run it again, or "
                "use READ COMMITTED for it."
            )
        meant = refusal(state, message)
        if isinstance(meant, StoreError):
            meant.ambiguous = False  # what is not committed has not happened
        return meant


class JoinedConnection:
    """Commands within somebody's transaction. Used by the thread that uses the connection."""

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
        """`missed` is called where the functions are gone: it makes them, for the next transaction."""
        self._driver, self._clock, self._missed = driver, clock, missed
        self._closed = False
        within = UserTransaction(runner_of(connection, driver))
        self._batch = PostgresBatch(within, schema=schema, namespace=namespace, patient=True)

    def execute(self, commands: Sequence[Command]) -> list[Outcome]:
        """Carry the commands out; they happen when the transaction is committed."""
        if self._closed:
            raise StoreUnusable("this connection is closed: join the transaction again")
        check_open(self._driver)
        at = None if self._clock is None else str(self._clock()).encode()
        try:
            return self._batch.run(commands, at, None)
        except StoreError as error:
            error.ambiguous = False  # what is not committed has not happened
            if isinstance(error, NotInstalled):
                self._missed()
            raise

    def close(self) -> None:
        """Leave the transaction and its connection to their owner."""
        self._closed = True
