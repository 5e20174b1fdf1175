"""`postgresql://user:password@host/database`: many processes on many hosts, through psycopg 3.

One statement per batch, by the server's clock; an answered command survives a power failure. The tables are in a schema
of their own. Waiters in other processes are notified by LISTEN/NOTIFY. Safety depends on no feature of a session, so
connections may go through a pooler in transaction mode.
Besides libpq's own options the URL takes `?schema=holdfast`, `?timeout=5` (seconds to wait for an answer),
`?wakeup=auto|poll`, `?listen=URL` (the address of the server itself, if the other one is that of a pooler), and
`?advisory=true` (grants end at once with the process that has them, and with its connection: advisory.py).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

import msgspec

from ...commands import Acquire, Command
from ...errors import InvalidOption, StoreUnavailable, StoreUnusable
from ...platform import elapsed, host_clock
from ...rules.lock_outcomes import Outcome
from ..common import woken_by_channel
from ..contract import Capabilities, Clock, Finding, Hint, Role
from . import batch as postgres_batch
from . import health, transactions
from .address import DEFAULT_SCHEMA, Options, connector, from_engine, from_pool, options_of, parse, where_of
from .advisory import AdvisorySession, Severed
from .functions import VERSION, count_of, functions_for, note_use
from .listen import Listening, local_hints
from .repository import OwnTransactions
from .schema import prepare, tables_of
from .session import Connect, NotInstalled, Session

if TYPE_CHECKING:
    from ..contract import Connection, Store, Watch

CAPABILITIES = Capabilities(durable=True, shared=True, server_clock=True, notifies=True, workflows=True)
ADVISORY_LOOK_SECONDS = 0.25
"""How often the head of a queue checks whether the holder's session still exists."""

NOTE_SECONDS = 3_600.0
"""How often a client records that its functions are in use."""


def open_postgres(url: str, *, namespace: str, clock: Clock) -> Store:
    """Open the database of the URL. The first connection is made when it is needed."""
    place, given = parse(url)
    options = options_of(given)
    direct = parse(options.listen)[0] if options.listen else place
    return PostgresStore(
        connector(place),
        listen=connector(direct),
        where=where_of(place),
        namespace=namespace,
        clock=clock,
        options=options,
    )


def adopt_postgres(handle: Any, *, namespace: str, clock: Clock, options: Mapping[str, object]) -> Store:
    """Open the database of a psycopg pool or an SQLAlchemy engine.

    Connections are opened in the same way but separately: an exhausted pool must not cost a holder its lease.
    """
    package, name = type(handle).__module__.partition(".")[0], type(handle).__name__
    if name.startswith("Async"):
        raise InvalidOption(
            f"a store cannot be opened from {package}.{name}: Holdfast uses its connections from a thread of its own, "
            "for AsyncClient too. Pass the URL, a psycopg_pool.ConnectionPool, or a (sync) SQLAlchemy engine."
        )
    connect, place = from_pool(handle) if package == "psycopg_pool" else from_engine(handle)
    given = options_of(options)
    listen = connector(parse(given.listen)[0]) if given.listen else connect
    return PostgresStore(
        connect,
        listen=listen,
        where=where_of(place),
        namespace=namespace,
        clock=clock,
        options=given,
        apart=f"#engine-{id(handle)}" if package == "sqlalchemy" else "",
        lender=transactions.PooledConnections(handle)
        if package == "psycopg_pool"
        else transactions.EngineConnections(handle),
    )


def unready(url: str) -> str | None:
    """Why opening this URL would change the database; None where it would not."""
    place, given = parse(url)
    options = options_of(given)
    session = Session(connector(place), timeout=options.timeout)
    mine = functions_for(options.schema)
    try:
        tables = tables_of(session, options.schema)
        whole = count_of(session, mine) == len(mine.names)
    finally:
        session.close()
    if tables.version == 0:
        return (
            f"there is no schema {options.schema!r} in {where_of(place)}: no client has used it yet. Check the "
            "URL and its ?schema=. The first client that opens the store creates the schema."
        )
    if tables.oldest_client > VERSION:
        return (
            f"the schema {options.schema!r} needs a newer Holdfast (table version {tables.version}; this one uses "
            f"{VERSION}). Upgrade Holdfast here."
        )
    if tables.version < VERSION:
        return (
            f"the schema {options.schema!r} is of an older version: the next client that opens the store upgrades it, "
            "and so does 'holdfast schema install'."
        )
    if not whole:
        return (
            f"the schema {options.schema!r} lacks the functions of this version of Holdfast ({mine.digest}): the next "
            "client of this version that opens the store creates them, and so does 'holdfast schema install'."
        )
    return None


class PostgresStore:
    """The records of one namespace in one database."""

    out_of_process: Literal[True] = True  # the server works on one batch while its client prepares the other

    def __init__(
        self,
        connect: Connect,
        *,
        listen: Connect,
        where: str,
        namespace: str,
        clock: Clock,
        options: Options,
        apart: str = "",
        lender: transactions.ConnectionSource | None = None,
    ) -> None:
        """`apart` distinguishes stores with the same address, if the settings of an engine select the database.

        `lender` provides the connections for users' transactions, if they come from a pool or an engine.
        """
        self.url = where if options.schema == DEFAULT_SCHEMA else f"{where}?schema={quote(options.schema)}"
        self.identity = f"{where.partition('@')[2] or where}{apart}#{options.schema}#{namespace}"
        self._apart = apart
        steered = clock is not host_clock
        self.capabilities = msgspec.structs.replace(CAPABILITIES, server_clock=False) if steered else CAPABILITIES
        self.options = options
        self._connect, self._listen, self._where = connect, listen, where
        self._namespace, self._clock = namespace, clock
        self._advisory = AdvisorySession(listen, timeout=options.timeout) if options.advisory else None
        self._given = lender
        self._lender = lender or transactions.OwnConnections(connect)
        self._place = ""
        self._functions = functions_for(options.schema)
        self._noted = elapsed()
        self._preparing = threading.Lock()
        self._prepared = self._closed = False

    def __repr__(self) -> str:
        return f"<PostgresStore {self.identity}>"

    def connect(self, role: Role) -> Connection:  # noqa: ARG002  (no caller waits for a turn here)
        """Open a new connection; the first one creates missing tables."""
        session = self._session()
        return PostgresConnection(
            session,
            postgres_batch.PostgresBatch(
                OwnTransactions(session, patience=postgres_batch.PATIENCE),
                schema=self.options.schema,
                namespace=self._namespace,
                mend=lambda: self._mend(session),
            ),
            identity=self.identity,
            clock=self._clock,
            advisory=self._advisory,
            note=self._note,
        )

    def _session(self) -> Session:
        """A new session, after creating or upgrading the tables if necessary."""
        self._check_open()
        session = Session(self._connect, timeout=self.options.timeout)
        try:
            with self._preparing:
                if not self._prepared:
                    prepare(session, self.options.schema)
                    self._prepared = True
        except BaseException:
            session.close()
            raise
        return session

    def _mend(self, session: Session) -> bool:
        """Create missing functions. False if the tables are missing too: the next connection creates both, empty."""
        with self._preparing:
            self._prepared = False
            if not tables_of(session, self.options.schema).version:
                return False
            prepare(session, self.options.schema)
            self._prepared = True
        return True

    def _mend_apart(self) -> None:
        """Create functions that were missing in a user's transaction, which has failed; for the next transaction."""
        self._prepared = False
        self._session().close()

    def _note(self, session: Session) -> None:
        """Record about once an hour that the functions of this client are in use."""
        if elapsed() - self._noted < NOTE_SECONDS:
            return
        self._noted = elapsed()
        try:
            note_use(session, self._functions)
        except NotInstalled:
            return  # the command that needs the functions creates them again
        except StoreUnavailable as error:
            error.ambiguous = False  # the commands have not been sent yet
            raise

    def watch(self, channel: str, on_hint: Hint) -> Watch:
        """Receive hints on a connection of its own, or poll where that is not possible."""
        self._check_open()
        return Listening(
            self.identity,
            self._namespace,
            channel,
            on_hint,
            connect=None if self.options.wakeup == "poll" else self._listen,
            timeout=self.options.timeout,
            look_every=ADVISORY_LOOK_SECONDS if self.options.advisory else None,
        )

    def transaction(self) -> AbstractContextManager[Any]:
        """A block with a connection for the user's statements: from their pool or engine, or a psycopg connection."""
        self._check_open()
        return self._lender.transaction()

    def join(self, connection: Any) -> Connection:
        """Carry commands out within the transaction that is open on this connection, of psycopg or SQLAlchemy."""
        self._check_open()
        driver = transactions.driver_of(connection)
        run = transactions.runner_of(connection, driver)
        transactions.check_lent(driver, run)
        transactions.check_open(driver)
        there = transactions.place_of(driver, run)
        if there != self._place:  # not read yet, or the server was restarted since then
            with closing(self._session()) as session:
                self._place = (session.ask(transactions.PLACE.encode()) or b"").decode()
        if there != self._place:
            raise InvalidOption(
                f"this connection is to another database than {self.url}, and one transaction can write to one "
                "database only. Pass a connection to the database of the store."
            )
        return transactions.JoinedConnection(
            connection,
            driver,
            schema=self.options.schema,
            namespace=self._namespace,
            clock=None if self._clock is host_clock else self._clock,
            missed=self._mend_apart,
        )

    def on_severed(self, callback: Severed) -> None:
        """Register a callback, called with the reason when all grants of this store have ended with their session."""
        if self._advisory is not None:
            self._advisory.on_severed(callback)

    def diagnose(self) -> tuple[Finding, ...]:
        """Check the server, the schema, durability, poolers and idle open transactions."""
        return health.diagnose(
            self._connect,
            self._listen,
            self.options.schema,
            timeout=self.options.timeout,
            advisory=self.options.advisory,
        )

    def reopen(self) -> Store:
        """Open the same database for the child of a fork."""
        return PostgresStore(
            self._connect,
            listen=self._listen,
            where=self._where,
            namespace=self._namespace,
            clock=self._clock,
            options=self.options,
            apart=self._apart,
            lender=self._given,
        )

    def close(self) -> None:
        """End the session of advisory=true, if there is one, and the connections kept for users' transactions."""
        self._closed = True
        self._lender.close()
        if self._advisory is not None:
            self._advisory.close()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnusable(f"the store {self.url} is closed. Open a new one.")


class PostgresConnection:
    """One session, used by one thread at a time."""

    def __init__(
        self,
        session: Session,
        batch: postgres_batch.PostgresBatch,
        *,
        identity: str,
        clock: Clock,
        advisory: AdvisorySession | None,
        note: Callable[[Session], None],
    ) -> None:
        self._session: Session | None = session
        self._batch, self._note = batch, note
        self._advisory = advisory
        self._checked = 0
        self._identity = identity
        self._clock = None if clock is host_clock else clock

    def execute(self, commands: Sequence[Command]) -> list[Outcome]:
        """Carry the batch out in one statement; commands whose rows are locked are tried again by themselves."""
        if self._session is None:
            raise StoreUnusable("this connection is closed. Open a new one.")
        local_channels = local_hints.channels(self._identity)
        at = None if self._clock is None else str(self._clock()).encode()
        try:
            self._note(self._session)
            number = self._tie(commands)
            outcomes = self._batch.run(commands, at, local_channels, session=number)
            if number is not None and self._advisory is not None and not self._advisory.holds(number):
                raise StoreUnavailable(  # noqa: TRY301  (one place notifies the waiters)
                    "the session that the grants of advisory=true are tied to was lost during this batch: its commands "
                    "may have been carried out, and what they were granted has ended.",
                    ambiguous=True,
                )
        except BaseException:
            for channel in local_channels:  # this process sends their hints, and does not know to which attempts
                local_hints.send(self._identity, channel, None)
            raise
        if local_channels and any(outcome.woken or outcome.hinted for outcome in outcomes):
            for channel, ids in woken_by_channel(outcomes, self._batch.hints).items():
                local_hints.send(self._identity, channel, ids)
        return outcomes

    def _tie(self, commands: Sequence[Command]) -> int | None:
        """The number of the session that grants are tied to, or None; checked once that it is in the same database."""
        if self._advisory is None or not any(isinstance(command, Acquire) for command in commands):
            return None
        number = self._advisory.number()
        if number != self._checked and self._session is not None:
            free = self._session.ask(b"SELECT pg_try_advisory_xact_lock_shared($1)", (str(number).encode(),))
            if free == b"t" and self._advisory.holds(number):
                raise StoreUnusable(
                    "advisory=true needs one database for everything, and ?listen= is the address of another one: the "
                    "locks of a session are visible in its own database only. Use the same database in both addresses."
                )
            self._checked = number
        return number

    def close(self) -> None:
        """End the session."""
        session, self._session = self._session, None
        if session is not None:
            session.close()
