"""`postgresql://user:password@host/database`: many processes on many hosts, through psycopg 3.

One statement a batch, by the server's clock; an answered command survives the loss of power. The
tables live in a schema of their own. Who was granted something elsewhere hears of it by LISTEN/NOTIFY. Nothing that
safety rests on belongs to a session, so a pooler in transaction mode may be in between.
Besides libpq's own options the URL takes `?schema=holdfast`, `?timeout=5` (seconds to wait for an answer),
`?wakeup=auto|poll`, `?listen=URL` (the server's own address where the other one is a pooler's), and `?advisory=true`
(grants end at once with the process that has them, and with its connection: advisory.py).
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
"""How often the head of a queue looks whether the holder's session lives."""

NOTE_SECONDS = 3_600.0
"""How often a client notes that its functions are in use."""


def open_postgres(url: str, *, namespace: str, clock: Clock) -> Store:
    """Open the database of the URL. Nothing is sent before it is needed."""
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
    """Open the database that a psycopg pool or an SQLAlchemy engine is set up for.

    Connections are opened in the same way and are our own: a pool that is used up must not cost a holder its lease.
    """
    package, name = type(handle).__module__.partition(".")[0], type(handle).__name__
    if name.startswith("Async"):
        raise InvalidOption(
            f"a store cannot be made from {package}.{name}: Holdfast talks to its store from a thread of its own, for "
            "AsyncClient too. Give the URL, a psycopg_pool.ConnectionPool, or a (sync) SQLAlchemy engine."
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
            f"there is no schema {options.schema!r} in {where_of(place)}: nothing was ever locked there. Look at the "
            "URL and its ?schema=, or use the store once, which makes it."
        )
    if tables.oldest_client > VERSION:
        return (
            f"the schema {options.schema!r} needs a newer Holdfast (table version {tables.version}; this one knows "
            f"{VERSION}): upgrade here."
        )
    if tables.version < VERSION:
        return (
            f"the schema {options.schema!r} is of an older version: the next client that opens the store updates it, "
            "and so does 'holdfast schema install'."
        )
    if not whole:
        return (
            f"the schema {options.schema!r} lacks the functions of this version of Holdfast ({mine.digest}): the next "
            "client of this version that opens the store makes them, and so does 'holdfast schema install'."
        )
    return None


class PostgresStore:
    """The records of one namespace in one database."""

    out_of_process: Literal[True] = True  # the server works on one half of a crowd while its process works on the other

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
        """`apart` tells stores apart whose address does not say where they lead: an engine's own settings do.

        `lender` has the connections for users' own transactions, where these are not ours.
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

    def connect(self, role: Role) -> Connection:  # noqa: ARG002  (nobody waits for a turn here, so no role goes first)
        """Open a connection of its own; the first one makes the tables where there are none."""
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
        """A session of our own, with the tables made and up to date."""
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
        """Make functions that are gone. False where the tables are gone too: the next connection makes both, empty."""
        with self._preparing:
            self._prepared = False
            if not tables_of(session, self.options.schema).version:
                return False
            prepare(session, self.options.schema)
            self._prepared = True
        return True

    def _mend_apart(self) -> None:
        """Make what was missing within somebody's transaction. That one is broken; the next one finds it."""
        self._prepared = False
        self._session().close()

    def _note(self, session: Session) -> None:
        """Note about once an hour that the functions of this client are in use."""
        if elapsed() - self._noted < NOTE_SECONDS:
            return
        self._noted = elapsed()
        try:
            note_use(session, self._functions)
        except NotInstalled:
            return  # they are made again by the command that needs them
        except StoreUnavailable as error:
            error.ambiguous = False  # the commands were not sent yet
            raise

    def watch(self, channel: str, on_hint: Hint) -> Watch:
        """Listen for hints on a connection of its own, or look from time to time where that cannot be."""
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
        """A block with a connection for the user's own statements: of their own pool or engine, else a psycopg one."""
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
        if there != self._place:  # not asked yet, or the server was started anew since then
            with closing(self._session()) as session:
                self._place = (session.ask(transactions.PLACE.encode()) or b"").decode()
        if there != self._place:
            raise InvalidOption(
                f"this connection leads to another database than {self.url}: what is written in one transaction must "
                "lie in one database. Give a connection to the same one."
            )
        return transactions.JoinedConnection(
            connection,
            driver,
            schema=self.options.schema,
            namespace=self._namespace,
            clock=None if self._clock is host_clock else self._clock,
            missed=self._mend_apart,
        )

    def on_severed(self, tell: Severed) -> None:
        """Call this, with the reason, when what was granted through this store has ended with its session."""
        if self._advisory is not None:
            self._advisory.on_severed(tell)

    def diagnose(self) -> tuple[Finding, ...]:
        """Look at the server, the schema, durability, poolers and transactions that were left open."""
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
        """End the anchor, if there is one, and the connections that are kept for users' transactions."""
        self._closed = True
        self._lender.close()
        if self._advisory is not None:
            self._advisory.close()

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnusable(f"the store {self.url} is closed: open a new one")


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
        """Carry the batch out in one statement; rows that somebody else has locked are asked for again, alone."""
        if self._session is None:
            raise StoreUnusable("this connection is closed: open a new one")
        told = local_hints.channels(self._identity)
        at = None if self._clock is None else str(self._clock()).encode()
        try:
            self._note(self._session)
            number = self._tie(commands)
            outcomes = self._batch.run(commands, at, told, session=number)
            if number is not None and self._advisory is not None and not self._advisory.holds(number):
                raise StoreUnavailable(  # noqa: TRY301  (one place tells those who wait)
                    "the session to which grants are tied was lost meanwhile", ambiguous=True
                )
        except BaseException:
            for channel in told:  # the server has left it to us to tell them, and it is not known of what
                local_hints.tell(self._identity, channel, None)
            raise
        if told and any(outcome.woken or outcome.hinted for outcome in outcomes):
            for channel, ids in woken_by_channel(outcomes, self._batch.hints).items():
                local_hints.tell(self._identity, channel, ids)
        return outcomes

    def _tie(self, commands: Sequence[Command]) -> int | None:
        """The number of the session that grants are tied to, if they are; checked once that it is of this database."""
        if self._advisory is None or not any(isinstance(command, Acquire) for command in commands):
            return None
        number = self._advisory.number()
        if number != self._checked and self._session is not None:
            free = self._session.ask(b"SELECT pg_try_advisory_xact_lock_shared($1)", (str(number).encode(),))
            if free == b"t" and self._advisory.holds(number):
                raise StoreUnusable(
                    "advisory=true needs one database for everything, and ?listen= leads to another one: locks of a "
                    "session are seen in its own database only. Give the same database in both."
                )
            self._checked = number
        return number

    def close(self) -> None:
        """End the session."""
        session, self._session = self._session, None
        if session is not None:
            session.close()
