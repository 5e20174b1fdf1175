"""`sqlite:///relative/path` and `sqlite:////absolute/path`: many processes of one machine on one file.

One transaction per batch, write-ahead log, synchronous=FULL: an answered command survives a power failure. Writers take
turns (write_turns.py) and wait up to `patience` seconds instead of failing; reads do not wait. Processes are notified
of grants by other processes through datagrams (hints.py).
Options in the URL: `?patience=2` (seconds), `?wakeup=poll` (no sockets).
"""

from __future__ import annotations

import os
import sqlite3
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import parse_qsl, quote, unquote

from ...commands import READS, Command
from ...commands.runs import RUN_READS
from ...errors import InvalidOption, StoreError, StoreUnusable
from ...platform import elapsed, network_file_system
from ...rules.lock_outcomes import Outcome
from ...validation import seconds
from ..common import offers_to, pass_overs, woken_by_channel
from ..contract import Capabilities, Clock, Finding, Hint, Role
from . import health
from .batch import SqliteBatch
from .clock import Clocks
from .file import MIN_SQLITE, SCHEMA_VERSION, Handle, is_busy, prepare, store_error, version_of
from .hints import HintSender
from .transactions import JoinedTransaction, transaction
from .write_turns import PATIENCE_SECONDS, WriteTurn, pause, turn_for

if TYPE_CHECKING:
    from ..contract import Connection, Store, Watch

ALL_READS = READS + RUN_READS
WITHDRAW_SECONDS = 1.0
"""How long closing a store waits for the turn to delete the report about its clock."""

CAPABILITIES = Capabilities(
    durable=True, shared=True, server_clock=False, notifies=True, one_writer=True, workflows=True
)

_warned: set[Path] = set()


def open_sqlite(url: str, *, namespace: str, clock: Clock) -> Store:
    """Open the file of the URL, creating it if there is none. A relative path is made absolute here."""
    if sqlite3.sqlite_version_info < MIN_SQLITE:
        raise StoreUnusable(
            f"this Python has SQLite {sqlite3.sqlite_version}; Holdfast needs {'.'.join(map(str, MIN_SQLITE))} or "
            "newer. Use a newer Python or a newer SQLite library."
        )
    path, options = _parse(url)
    patience = seconds(options.pop("patience", str(PATIENCE_SECONDS)), what="patience")
    wakeup = options.pop("wakeup", "auto")
    if options or wakeup not in ("auto", "poll"):
        found = ", ".join(sorted(options)) or f"wakeup={wakeup}"
        raise InvalidOption(f"a sqlite:// URL accepts ?patience=SECONDS and ?wakeup=auto|poll, not {found}")
    _check_place(path)
    return SqliteStore(path, namespace=namespace, clock=clock, patience=patience, poll=wakeup == "poll")


def _parse(url: str) -> tuple[Path, dict[str, str]]:
    """Parse the URL as SQLAlchemy does: three slashes and a relative path, or four and an absolute one."""
    place, _, query = url.partition("://")[2].partition("?")
    try:
        name = unquote(place[1:], errors="strict") if place.startswith("/") else ""
    except UnicodeDecodeError:
        raise InvalidOption("the percent-encoded path of a sqlite:// URL is not valid UTF-8") from None
    if not place or name in ("", ":memory:"):
        if place.strip("/") not in ("", ":memory:"):
            raise InvalidOption(
                "a sqlite:// URL has three slashes before a relative path and four before an absolute one: "
                "sqlite:///holdfast.db, sqlite:////var/lib/app/holdfast.db"
            )
        raise InvalidOption("an in-memory SQLite database cannot be shared between connections: use memory:// instead")
    if "\0" in name:
        raise InvalidOption("a path cannot contain the character NUL")
    # Resolved, so that two paths to one file (a symbolic link) share one turn.
    return Path(os.path.realpath(name)), dict(parse_qsl(query, keep_blank_values=True))


def unready(url: str) -> str | None:
    """Why opening this URL would change something on the disk; None where it would not.

    For commands that only read: opening creates a missing file and upgrades an older one.
    """
    path, _ = _parse(url)
    return health.unready(path)


def _check_place(path: Path) -> None:
    def refuse(what: str) -> NoReturn:
        raise StoreUnusable(f"{path} cannot be used: {what}")

    folder = path.parent
    if not folder.exists():
        refuse(f"the folder {folder} does not exist. Create it (mkdir -p {folder}), or correct the path.")
    if not folder.is_dir():
        refuse(f"{folder} is not a folder.")
    if path.is_dir():
        refuse("it is a folder. Use the path of a file in it, such as .../holdfast.db.")
    if path.exists() and not path.is_file():
        refuse("it is not a regular file.")
    if path.exists() and not os.access(path, os.R_OK | os.W_OK):
        refuse("this user may not write to it. Change its owner or its mode (chmod u+rw), or use another file.")
    if not os.access(folder, os.W_OK | os.X_OK):
        refuse(f"this user may not write to {folder}, where SQLite creates other files. Change its mode or owner.")
    kind = network_file_system(path)
    if kind is not None and path not in _warned:
        _warned.add(path)
        warnings.warn(
            f"{path} is on a network file system ({kind}). SQLite's locks and shared memory do not work reliably "
            "there: two hosts may both hold a lock. Use a local disk, or a database server for several hosts.",
            RuntimeWarning,
            stacklevel=4,
        )


class SqliteStore:
    """The records of one namespace in one file."""

    def __init__(self, path: Path, *, namespace: str, clock: Clock, patience: float, poll: bool) -> None:
        self.path = path
        self.url = f"sqlite:///{quote(str(path))}"
        self.identity = f"{self.url}#{namespace}"
        self.capabilities = CAPABILITIES
        self._namespace, self._clock, self._patience, self._poll = namespace, clock, patience, poll
        # Checked before the first side file is created: nothing is created next to the file of another application.
        version = version_of(path) if path.exists() and path.stat().st_size else 0
        try:
            self._turn = turn_for(path)
        except OSError as error:
            raise StoreUnusable(f"{path}-turn cannot be opened ({error}). Check its owner and mode.") from error
        if version != SCHEMA_VERSION:
            prepare(path, self._turn, patience=patience)
        self._sender: HintSender | None = HintSender(path, poll=poll)
        self._clocks = Clocks(clock, self._turn)

    def __repr__(self) -> str:
        return f"<SqliteStore {self.identity}>"

    def connect(self, role: Role) -> Connection:
        """Open a new connection for this role."""
        return SqliteConnection(self, urgent=role == "heartbeats")

    def watch(self, channel: str, on_hint: Hint) -> Watch:
        """Receive hints on a socket next to the file, or by polling where there are no sockets."""
        return self._open_sender().watch(channel, on_hint)

    def transaction(self) -> AbstractContextManager[sqlite3.Connection]:
        """A block with a new connection, in one transaction, during the turn to write."""
        self._open_sender()
        return transaction(self.path, self._turn, patience=self._patience)

    def join(self, connection: Any) -> Connection:
        """Carry commands out within the transaction that is open on this connection."""
        return JoinedTransaction(connection, self.path, namespace=self._namespace, clock=self._clocks.now)

    def on_differing_clock(self, name: str, callback: Callable[[str, str, int, float], None]) -> None:
        """Register a callback for differing clocks; its arguments are name, host, process and seconds ahead."""
        self._clocks.on_differing(name, lambda one: callback(one.name, one.host, one.pid, one.ahead))

    def diagnose(self) -> tuple[Finding, ...]:
        """Check the schema, the settings for durability, and the disk, through a read-only connection."""
        return health.diagnose(self.path)

    def reopen(self) -> Store:
        """Open the same file for the child of a fork."""
        return SqliteStore(
            self.path, namespace=self._namespace, clock=self._clock, patience=self._patience, poll=self._poll
        )

    def close(self) -> None:
        """Release the turn and the socket for hints."""
        if self._sender is not None and self._clocks.reported:
            self._withdraw_clock()
        sender, self._sender = self._sender, None
        if sender is not None:
            sender.close()
            self._clocks.close()
            del self._turn

    def _withdraw_clock(self) -> None:
        """Delete the report about the clock of this process, which does not use the file any more."""
        handle = Handle(self.path)
        try:
            with suppress(sqlite3.Error, StoreError), handle.active:
                self._turn.take(self, urgent=False, deadline=elapsed() + WITHDRAW_SECONDS)
                try:
                    self._clocks.withdraw(handle.ready())
                finally:
                    self._turn.give(self)
        finally:
            handle.close()

    def _open_sender(self) -> HintSender:
        if self._sender is None:
            raise StoreUnusable(f"the store {self.url} is closed. Open a new one.")
        return self._sender


class SqliteConnection:
    """One SQLite connection, used by one thread at a time."""

    def __init__(self, store: SqliteStore, *, urgent: bool) -> None:
        self._sender = store._open_sender()  # noqa: SLF001  (a store and its connections are one thing)
        self._turn: WriteTurn | None = store._turn  # noqa: SLF001
        self._namespace, self._patience = store._namespace, store._patience  # noqa: SLF001
        self._path = store.path
        self._urgent = urgent
        self._clocks = store._clocks  # noqa: SLF001
        self._handle = Handle(store.path)
        with self._handle.active:  # opened now, so that errors are raised now
            self._handle.ready()

    def execute(self, commands: Sequence[Command]) -> list[Outcome]:
        """Carry the batch out in one transaction; a batch that only reads does not wait for the turn to write."""
        for command in commands:
            if not isinstance(command, ALL_READS):
                break
        else:
            return self._read(commands)
        outcomes, hints = self._write(commands)
        for outcome in outcomes:
            if outcome.woken or outcome.hinted:
                unheard = self._sender.send(woken_by_channel(outcomes, hints))
                if unheard:
                    self._pass_over(unheard, commands, outcomes)
                break
        return outcomes

    def _pass_over(self, unheard: list[str], commands: Sequence[Command], outcomes: Sequence[Outcome]) -> None:
        """End the offers to processes that have ended, for the next waiters. The commands have been carried out."""
        looks = offers_to(unheard, commands, outcomes)
        with suppress(StoreError):  # such offers expire in any case
            if looks and (offers := pass_overs(unheard, looks, self._read(looks))):
                self._sender.send(woken_by_channel(*self._write(offers)))

    def close(self) -> None:
        """Close the connection."""
        self._handle.close()
        self._turn = None

    def _write(self, commands: Sequence[Command]) -> tuple[list[Outcome], list[str]]:
        deadline = elapsed() + self._patience
        turn = self._turn
        if turn is None:
            raise StoreUnusable("this connection is closed. Open a new one.")
        try:
            turn.take(self, urgent=self._urgent, deadline=deadline)
            done = self._transact_in_the_end(commands, deadline)
            if monotonic() >= self._clocks.look_at:
                self._look_at_clocks()
            turn.give(self)
        except BaseException:  # an interrupt may also have come during `give`
            turn.give(self)
            raise
        if self._clocks.new_differences:
            self._clocks.notify()
        return done

    def _transact_in_the_end(self, commands: Sequence[Command], deadline: float) -> tuple[list[Outcome], list[str]]:
        """One transaction, as soon as no program that takes no turns has locked the file."""
        while (done := self._transact(commands, deadline)) is None:
            pause(urgent=self._urgent)
        return done

    def _look_at_clocks(self) -> None:
        """Check which clocks differ. An error here must not fail the commands, which have been committed."""
        with suppress(sqlite3.Error, StoreError), self._handle.active:
            self._clocks.look(self._handle.ready())

    def _transact(self, commands: Sequence[Command], deadline: float) -> tuple[list[Outcome], list[str]] | None:
        """One transaction, and further attempts to notify; None while a program without turns has locked the file."""
        with self._handle.active:
            try:
                db = self._handle.ready()
                try:
                    db.execute("BEGIN IMMEDIATE")
                    batch = SqliteBatch(db, self._namespace, self._clocks.now(), own=True)
                    outcomes = batch.run(commands)
                except sqlite3.Error as error:
                    if is_busy(error) and elapsed() < deadline:
                        return None
                    raise store_error(error, self._path) from error
                try:
                    db.execute("COMMIT" if batch.changed else "ROLLBACK")
                except sqlite3.Error as error:
                    raise store_error(error, self._path, ambiguous=batch.changed) from error
                return outcomes, batch.hints
            finally:
                self._handle.tidy()

    def _read(self, commands: Sequence[Command]) -> list[Outcome]:
        if not commands:
            return []
        deadline = elapsed() + self._patience
        while True:
            try:
                with self._handle.active:
                    try:
                        db = self._handle.ready()
                        db.execute("BEGIN")
                        return SqliteBatch(db, self._namespace, self._clocks.now(), own=True).run(commands)
                    finally:
                        self._handle.tidy()
            except sqlite3.Error as error:
                if not is_busy(error) or elapsed() >= deadline:
                    raise store_error(error, self._path) from error
            pause(urgent=self._urgent)
