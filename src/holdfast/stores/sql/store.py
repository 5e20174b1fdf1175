"""`mysql://`, `mariadb://` and `mssql://`: many processes on many hosts, by the Python rules and the server's clock.

A batch is one round trip that reads and one that compares and writes (source.py). Waiters poll, because these servers
have no notifications. Besides options of the driver the URL takes `?prefix=holdfast_` (the beginning of the names of
all tables) and `?timeout=5` (seconds to wait for an answer). SQL Server is unverified: see mssql.py.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from ...commands import Cleanup, Command
from ...errors import StoreError, StoreUnusable
from ...platform import after_fork_in_child, host_clock
from ...rules.lock_outcomes import Outcome
from .. import executor
from ..common import flaw, woken_by_channel
from ..contract import Capabilities, Clock, Finding, Hint, Role
from ..local_hints import HintReceiver, LocalHints
from . import health
from .address import DEFAULT_PREFIX, Address, parse
from .schema import prepare, version_of
from .session import SqlSession, TablesMissing
from .source import SqlSource, locked
from .tables import VERSION, SqlTables

if TYPE_CHECKING:
    from ..contract import Connection, Store, Watch

CAPABILITIES = Capabilities(durable=True, shared=True, server_clock=True, notifies=False, workflows=True, trips=2)

_local_hints: LocalHints[SqlWatch] = LocalHints()


def _forget_after_fork() -> None:
    _local_hints.forget()


after_fork_in_child(_forget_after_fork)


def open_sql(url: str, *, namespace: str, clock: Clock) -> Store:
    """Open the database of the URL. The first connection is made when it is needed."""
    address = parse(url)
    kind: type[SqlStore] = SqlStore
    if address.dialect.name == "MySQL or MariaDB":
        from .mysql_transactions import MySqlStore  # noqa: PLC0415  (its driver may not be installed)

        kind = MySqlStore
    return kind(address, namespace=namespace, clock=clock)


def unready(url: str) -> str | None:
    """Why opening this URL would change the database; None where it would not."""
    address = parse(url)
    session = SqlSession(address.dialect, timeout=address.timeout)
    try:
        found = version_of(session, SqlTables(address.dialect, address.prefix))
    finally:
        session.close()
    if found == 0:
        return (
            f"there are no tables {address.prefix}... in {address.where}: no client has used it yet. Check the URL and "
            "its ?prefix=. The first client that opens the store creates the tables."
        )
    if found > VERSION:
        return f"the tables {address.prefix}... need a newer Holdfast (version {found}). Upgrade Holdfast here."
    return None


class SqlStore:
    """The records of one namespace in one database."""

    out_of_process: Literal[True] = True

    def __init__(self, address: Address, *, namespace: str, clock: Clock) -> None:
        self.address, self.namespace, self.clock = address, namespace, clock
        self.url = address.where if address.prefix == DEFAULT_PREFIX else f"{address.where}?prefix={address.prefix}"
        self.identity = f"{address.where.partition('@')[2] or address.where}#{address.prefix}#{namespace}"
        steered = clock is not host_clock
        self.capabilities = msgspec.structs.replace(CAPABILITIES, server_clock=False) if steered else CAPABILITIES
        self.tables = SqlTables(address.dialect, address.prefix)
        self._preparing = threading.Lock()
        self._prepared = self._closed = False

    def __repr__(self) -> str:
        return f"<SqlStore {self.identity}>"

    def connect(self, role: Role) -> Connection:  # noqa: ARG002  (no caller waits for a turn here)
        """Open a new connection; the first one creates missing tables."""
        session = self.session()
        return SqlConnection(self, session, SqlSource(session, self.tables, self.namespace), self.clock)

    def session(self) -> SqlSession:
        """A new session, after creating the tables if necessary."""
        self._check_open()
        session = SqlSession(self.address.dialect, timeout=self.address.timeout)
        try:
            with self._preparing:
                if not self._prepared:
                    prepare(session, self.tables)
                    self._prepared = True
        except BaseException:
            session.close()
            raise
        return session

    def create_tables(self) -> None:
        """Create the tables, unless this store knows that they exist."""
        if not self._prepared:
            self.session().close()

    def forget_tables(self) -> None:
        """Look for the tables again, with the next connection."""
        self._prepared = False

    def watch(self, channel: str, on_hint: Hint) -> Watch:
        """Hints from this process only; waiters poll."""
        self._check_open()
        return SqlWatch(self.identity, channel, on_hint)

    def diagnose(self) -> tuple[Finding, ...]:
        """Check the server and its durability."""
        return health.diagnose(self.address)

    def reopen(self) -> Store:
        """Open the same database for the child of a fork."""
        return type(self)(self.address, namespace=self.namespace, clock=self.clock)

    def close(self) -> None:
        """Close the store."""
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnusable(f"the store {self.url} is closed. Open a new one.")


class SqlWatch(HintReceiver):
    """Hints within this process."""

    polls = True

    def __init__(self, identity: str, channel: str, on_hint: Hint) -> None:
        super().__init__(on_hint)
        self._identity, self._channel = identity, channel
        _local_hints.add(identity, channel, self)

    def expect(self, id: str, *, eager: bool) -> None:
        """Nothing to prepare: hints are direct."""

    def forget(self, id: str) -> None:
        """Nothing to undo."""

    def close(self) -> None:
        """End the subscription."""
        self._closed.set()
        _local_hints.remove(self._identity, self._channel, self)


class SqlConnection:
    """One session, used by one thread at a time."""

    def __init__(self, store: SqlStore, session: SqlSession, source: SqlSource, clock: Clock) -> None:
        self._store, self._source = store, source
        self.session: SqlSession | None = session
        self._clock = None if clock is host_clock else clock
        self.moments: list[int] = []
        """When each command of the last batch was decided, by the store's clock."""

    @property
    def trips(self) -> int:
        """How many round trips were made so far."""
        return 0 if self.session is None else self.session.trips

    @property
    def conflicts(self) -> int:
        """How often another client was faster, so that a decision was made again."""
        return self._source.conflicts

    def execute(self, commands: Sequence[Command]) -> list[Outcome]:
        """Carry the batch out: one round trip reads, and one writes."""
        if self.session is None:
            raise StoreUnusable("this connection is closed. Open a new one.")
        identity = self._store.identity
        channels = _local_hints.channels(identity)
        source = self._source
        source.begin(None if self._clock is None else self._clock())
        try:
            outcomes, hints = self._executed(commands)
        except BaseException as error:
            if isinstance(error, StoreError):  # an earlier part of the batch may have been carried out
                error.ambiguous = error.ambiguous or source.wrote
            if isinstance(error, TablesMissing):
                self._store.forget_tables()
            for channel in channels:
                _local_hints.send(identity, channel, None)
            raise
        if channels:
            for channel, ids in woken_by_channel(outcomes, hints).items():
                _local_hints.send(identity, channel, ids)
        return outcomes

    def _executed(self, commands: Sequence[Command]) -> tuple[list[Outcome], list[str]]:
        """The outcomes, in order. A command with a value of the wrong type fails alone."""
        outcomes: list[Outcome | None] = [flaw(command) for command in commands]
        sound = [place for place, outcome in enumerate(outcomes) if outcome is None]
        done = executor.execute(self._source, [commands[place] for place in sound])
        self.moments = [0] * len(commands)
        for place, outcome, moment in zip(sound, done.outcomes, done.moments, strict=True):
            outcomes[place], self.moments[place] = outcome or locked(commands[place]), moment
        if any(isinstance(command, Cleanup) for command in commands):
            self._source.remove_guards()
        return outcomes, done.hints  # type: ignore[return-value]  # all are answered by now

    def close(self) -> None:
        """End the session."""
        session, self.session = self.session, None
        if session is not None:
            session.close()
