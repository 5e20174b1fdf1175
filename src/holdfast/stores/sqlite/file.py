"""SQLite files of Holdfast: how they are checked and opened, and what their errors mean.

A file is read through a read-only connection before anything is written to it, and a file of another application is
refused and not changed. ⚠ Only SQLite may open the database file: closing any other descriptor of it would drop the
locks that SQLite holds for this process.
⚠ SQLite keeps the state of its locks in the memory of the process, and a forked child would inherit it: its new
connections would rely on locks that only the parent has, and the log could be deleted while they use it. So all handles
are closed before a fork, and the parent opens them again when it needs them.
"""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.resources import files
from pathlib import Path
from typing import Literal
from urllib.parse import quote
from weakref import WeakSet

from ...errors import StoreError, StoreUnavailable, StoreUnusable
from ...platform import around_fork, elapsed
from .side_files import check_sqlite_files, make_database
from .write_turns import WriteTurn, pause

APPLICATION_ID = int.from_bytes(b"Hldf", "big")
SCHEMA = ("001_locks.sql", "002_slots.sql", "003_runs.sql")
"""The scripts that create the tables of `FIRST_VERSION`."""
FIRST_VERSION = 5
"""Files with a lower version are of development versions; their tables differ even where the number is the same."""
MIGRATIONS: tuple[str, ...] = ()
"""The n-th script upgrades schema version `FIRST_VERSION` + n to the next version."""
SCHEMA_VERSION = FIRST_VERSION + len(MIGRATIONS)
MIN_SQLITE = (3, 35, 0)
BUSY_SECONDS = 0.005
CACHE_KIB = 16_384
OPENING_SECONDS = 5.0
FORK_PATIENCE_SECONDS = 2.0
LOOK_SECONDS = 0.05
"""Seconds between two checks that the file of a busy connection still exists; they cost more than all other checks."""

Mode = Literal["ro", "rw"]


def store_error(error: sqlite3.Error, path: Path, *, ambiguous: bool = False) -> StoreError:
    """Translate a SQLite error into an error of Holdfast; for the whole store."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return StoreUnusable(
            f"{path} is damaged or not a SQLite database ({error}). It was not changed. Restore it from a "
            "backup, or move it away, and the next client creates a new one; stop the holders of its locks first."
        )
    done = "It may or may not have been carried out" if ambiguous else "Nothing was done"
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return StoreUnavailable(
            f"another program has locked {path} ({error}). {done}; the call can be repeated. End the transaction "
            "that is open on it (of a shell, of a backup, of your application's own connection).",
            ambiguous=ambiguous,
        )
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
        return StoreUnusable(
            f"{path} cannot be written ({error}). Give this user write permission on the file and on its "
            "folder: SQLite creates other files next to it."
        )
    if code == sqlite3.SQLITE_CANTOPEN:
        return StoreUnusable(f"{path} cannot be opened ({error}). {_missing(path)}")
    return StoreUnavailable(
        f"SQLite could not work on {path} ({error}). {done}; check the disk (space, quota, errors) and repeat the "
        "call.",
        ambiguous=ambiguous,
    )


def _missing(path: Path) -> str:
    if not path.parent.is_dir():
        return f"The folder {path.parent} does not exist: create it, or correct the path."
    if not path.exists():
        return "The file was deleted, and its locks with it. Close this client and open a new one."
    return "Check the permissions of the file and of its folder."


def is_busy(error: sqlite3.Error) -> bool:
    """Whether trying again may help."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _connect(path: Path, mode: Mode) -> sqlite3.Connection:
    check_sqlite_files(path)
    # quote() protects ? # and % in a file name from being parsed as parts of the URI.
    uri = f"file:{quote(str(path))}?mode={mode}"
    return sqlite3.connect(uri, uri=True, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False)


def _set_up(db: sqlite3.Connection) -> None:
    db.execute("PRAGMA synchronous = FULL")
    if sys.platform == "darwin":  # on macOS a plain fsync leaves the data in the cache of the drive
        db.execute("PRAGMA fullfsync = ON")
        db.execute("PRAGMA checkpoint_fullfsync = ON")
    db.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
    db.execute("PRAGMA temp_store = MEMORY")


def _identity(path: Path) -> tuple[int, int] | None:
    with suppress(OSError):
        status = os.stat(path)  # noqa: PTH116  (half the cost of Path.stat)
        return status.st_dev, status.st_ino
    return None


class Handle:
    """A connection to the file that is opened when needed and closed around a fork.

    Use `with handle.active:`, then `ready()`, and `tidy()` in a finally; within this block no fork can happen. `active`
    is a lock in a `with` statement, because an interrupt may come between any two calls.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._db: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None
        self._closed = ""
        self._look_again = 0.0
        self.active = threading.Lock()
        with _forking:  # a fork under way has listed the handles; a new one would stay open in the child
            _handles.add(self)

    def tidy(self) -> None:
        """Roll back a transaction that is still open, after any error."""
        if self._db is not None and self._db.in_transaction:
            self._roll_back()

    def ready(self) -> sqlite3.Connection:
        """The connection, opened if necessary, after checking that the file is still the same."""
        if self._db is not None and time.monotonic() < self._look_again:
            return self._db
        if self._closed:
            raise StoreUnusable(self._closed)
        if self._db is None:
            self._db = _open_ready(self.path)
            self._file = _identity(self.path)
        elif _identity(self.path) != self._file:
            raise StoreUnusable(
                f"{self.path} was deleted or replaced while it was in use. Its locks are lost, and leases from it "
                "protect nothing any more. Close this client and open a new one; do not delete the file while "
                "clients are open."
            )
        self._look_again = time.monotonic() + LOOK_SECONDS
        return self._db

    def _roll_back(self) -> None:
        db = self._db
        try:
            if db is not None:
                db.execute("ROLLBACK")
        except sqlite3.Error:
            self._drop()  # closing rolls back as well; the next use opens it again

    def _drop(self) -> None:
        db, self._db = self._db, None
        if db is not None:
            with suppress(sqlite3.Error):
                db.close()

    def close(self, why: str = "this connection is closed. Open a new one.") -> None:
        """Close permanently."""
        with self.active:
            self._closed = self._closed or why
            self._drop()

    def rest_for_fork(self, patience: float) -> bool:
        """Close until the next use, and block other threads until `resume`. False: it stayed in use for too long."""
        if not self.active.acquire(timeout=patience):
            return False
        self._drop()
        return True

    def resume(self) -> None:
        """Allow use again, in the process that called fork."""
        self.active.release()

    def leave_to_parent(self) -> tuple[int, int] | None:
        """In a forked child: never use again. Returns the identity of the file."""
        self.active = threading.Lock()
        self._closed = "this connection belongs to the parent process of a fork. Open a new client in this process."
        if self._db is not None:
            _inherited.append(self._db)
            self._db = None
        return self._file or _identity(self.path)


@contextmanager
def passing(path: Path, mode: Mode) -> Iterator[sqlite3.Connection]:
    """A short-lived connection, which is closed around a fork like any other."""
    _refuse_if_unsafe(path)
    handle = Handle(path)
    with handle.active:
        try:
            handle._db = _connect(path, mode)  # noqa: SLF001
            yield handle._db  # noqa: SLF001
        finally:
            handle._drop()  # noqa: SLF001


_forking = threading.RLock()  # one fork at a time, and no new handle in the middle of one
_handles: WeakSet[Handle] = WeakSet()
_resting: dict[int, list[Handle]] = {}  # by the id of the thread that forks
_inherited: list[sqlite3.Connection] = []  # never closed: closing them would touch the parent's file
_unsafe: set[tuple[int, int] | None] = set()


def _before_fork() -> None:
    _forking.acquire()
    deadline = elapsed() + FORK_PATIENCE_SECONDS
    mine = _resting[threading.get_ident()] = []
    mine.extend(handle for handle in list(_handles) if handle.rest_for_fork(max(0.0, deadline - elapsed())))


def _after_fork_in_parent() -> None:
    for handle in _resting.pop(threading.get_ident(), ()):
        handle.resume()
    with suppress(RuntimeError):  # interrupted before it was acquired
        _forking.release()


def _after_fork_in_child() -> None:
    global _forking  # noqa: PLW0603  (threads that do not exist in this process may wait for the old one)
    _forking = threading.RLock()
    rested = _resting.pop(threading.get_ident(), [])
    _resting.clear()
    for handle in list(_handles):
        file = handle.leave_to_parent()
        if handle not in rested:  # in use by the parent, so the child inherited it open
            _unsafe.add(file)
    _unsafe.discard(None)
    _handles.clear()


around_fork(before=_before_fork, in_parent=_after_fork_in_parent, in_child=_after_fork_in_child)


def _refuse_if_unsafe(path: Path) -> None:
    if _unsafe and _identity(path) in _unsafe:
        raise StoreUnusable(
            f"this process was forked while its parent was in the middle of a transaction on {path}, so SQLite "
            "cannot be used on it in this process. Start processes with 'spawn', or fork before opening the first "
            "client."
        )


def _open_ready(path: Path) -> sqlite3.Connection:
    """Open a file that was prepared before, and check that its schema has not changed."""
    _refuse_if_unsafe(path)
    deadline = elapsed() + OPENING_SECONDS
    while True:
        try:
            db = _connect(path, "rw")
            try:
                version = _look(db, path)
                _set_up(db)
                break
            except BaseException:
                db.close()
                raise
        except sqlite3.Error as error:  # another process may be opening the file first, or closing it last
            if not is_busy(error) or elapsed() >= deadline:
                raise store_error(error, path) from error
        pause(urgent=False)
    if version != SCHEMA_VERSION:
        db.close()
        raise StoreUnusable(f"{path} was replaced by an empty or older file. Close this client and open a new one.")
    return db


def prepare(path: Path, turn: WriteTurn, *, patience: float) -> None:
    """Create the file, or upgrade its schema, in the turn to write."""
    deadline = elapsed() + patience
    taker = object()
    try:
        turn.take(taker, urgent=False, deadline=deadline)
        make_database(path)
        while not _migrated(path, deadline):
            pause(urgent=False)
    except sqlite3.Error as error:
        raise store_error(error, path) from error
    except OSError as error:
        raise StoreUnusable(f"{path} cannot be created ({error}). Check its folder.") from error
    finally:
        turn.give(taker)


def _migrated(path: Path, deadline: float) -> bool:
    """Migrate; False if another program has locked the file and there is time to try again."""
    try:
        with passing(path, "rw") as db:
            _migrate(db, path)
    except sqlite3.Error as error:
        if not is_busy(error) or elapsed() >= deadline:
            raise
        return False
    return True


def version_of(path: Path) -> int:
    """The schema version of an existing file, read without writing; refuses files of other applications."""
    deadline = elapsed() + OPENING_SECONDS
    while True:
        try:
            with passing(path, "ro") as db:
                return _look(db, path)
        except sqlite3.Error as error:
            if not is_busy(error) or elapsed() >= deadline:
                raise store_error(error, path) from error
        pause(urgent=False)


def _look(db: sqlite3.Connection, path: Path) -> int:
    """The schema version (0: an empty database). Raises `StoreUnusable` for a file that this version cannot use."""
    owner, version, tables = _facts(db)
    if owner != APPLICATION_ID and (owner or tables):
        raise StoreUnusable(
            f"{path} is the database of another application (application_id {owner}, {len(tables)} tables). It was "
            "not changed. Use a separate file for Holdfast, such as sqlite:///holdfast.db."
        )
    if version > SCHEMA_VERSION:
        raise StoreUnusable(
            f"{path} was written by a newer version of Holdfast (schema {version}; this version uses "
            f"{SCHEMA_VERSION}). It was not changed. Upgrade Holdfast here, or use another file."
        )
    if owner == APPLICATION_ID and version < FIRST_VERSION:
        raise StoreUnusable(
            f"{path} was created by an earlier development version of Holdfast (schema {version}; the oldest supported "
            f"one is {FIRST_VERSION}). It was not changed. Move it away, and the next client creates a new one; stop "
            "the holders of its locks first."
        )
    if owner == APPLICATION_ID and "locks" not in tables:
        raise StoreUnusable(f"{path} is damaged: its table 'locks' is missing. Restore it from a backup.")
    return int(version) if owner == APPLICATION_ID else 0


def _facts(db: sqlite3.Connection) -> tuple[int, int, set[str]]:
    """The application id, the version and the tables, read at one moment: another process may be creating the file."""
    alone = not db.in_transaction
    if alone:
        db.execute("BEGIN")
    try:
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")}
        (owner,) = db.execute("PRAGMA application_id").fetchone()
        (version,) = db.execute("PRAGMA user_version").fetchone()
    finally:
        if alone and db.in_transaction:
            db.execute("ROLLBACK")
    return owner, version, tables


def _migrate(db: sqlite3.Connection, path: Path) -> None:
    if _look(db, path) == SCHEMA_VERSION:
        return
    (mode,) = db.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise StoreUnusable(f"{path} cannot use a write-ahead log (journal_mode is {mode}). Move it to a local disk.")
    _set_up(db)
    db.execute("BEGIN IMMEDIATE")
    try:
        found = _look(db, path)
        for script in MIGRATIONS[found - FIRST_VERSION :] if found else SCHEMA + MIGRATIONS:
            for statement in _statements(script):
                db.execute(statement)
        db.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        db.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        db.execute("COMMIT")
    finally:
        if db.in_transaction:
            db.execute("ROLLBACK")


def _statements(script: str) -> Iterator[str]:
    """The statements of a packaged script, one at a time (executescript would commit in between)."""
    statement = ""
    for line in files(__package__).joinpath("sql", script).read_text(encoding="utf-8").splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            yield statement
            statement = ""
