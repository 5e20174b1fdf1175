"""The user's own statements and Holdfast's commands in one SQLite transaction.

While a user's transaction is open, no other process or thread writes to the file, heartbeats included. So it has a time
limit, cannot be ended by the function, and cannot attach other files.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...commands import Command
from ...errors import InvalidOption, StepTimeout
from ...platform import elapsed
from ...rules.lock_outcomes import Outcome
from ..contract import Clock
from .batch import SqliteBatch
from .file import Handle, is_busy, store_error
from .write_turns import WriteTurn, pause

LIMIT_SECONDS = 5.0
"""How long a transaction of the user may take: all other writers wait for it."""
STEPS_BETWEEN_LOOKS = 10_000
_FORBIDDEN = {sqlite3.SQLITE_TRANSACTION, sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH}


@contextmanager
def transaction(path: Path, turn: WriteTurn, *, patience: float) -> Iterator[sqlite3.Connection]:
    """A block with a new connection, in one transaction, during the turn to write."""
    handle = Handle(path)
    taker = object()
    deadline = elapsed() + patience
    try:
        turn.take(taker, urgent=False, deadline=deadline)
        with handle.active:
            try:
                yield from _within(handle.ready(), path, deadline)
            finally:
                handle.tidy()
    finally:
        turn.give(taker)
        handle.close()


def _within(db: sqlite3.Connection, path: Path, deadline: float) -> Iterator[sqlite3.Connection]:
    while True:
        try:
            db.execute("BEGIN IMMEDIATE")
            break
        except sqlite3.Error as error:
            if not is_busy(error) or elapsed() >= deadline:
                raise store_error(error, path) from error
            pause(urgent=False)
    end = elapsed() + LIMIT_SECONDS
    db.set_progress_handler(lambda: elapsed() > end, STEPS_BETWEEN_LOOKS)
    db.set_authorizer(_authorize)
    try:
        try:
            yield db
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorcode", None) != sqlite3.SQLITE_AUTH:
                raise
            raise _not_allowed() from error
        if elapsed() > end:
            raise StepTimeout(
                f"a transaction on {path} took longer than {LIMIT_SECONDS:g} s. It blocked all other writers, so it "
                "was rolled back. Do the slow work in a step before the transaction, and pass its result."
            )
    finally:
        db.set_authorizer(None)
        db.set_progress_handler(None, 0)
    try:
        db.execute("COMMIT")
    except sqlite3.Error as error:
        raise store_error(error, path, ambiguous=True) from error


def _not_allowed() -> InvalidOption:
    return InvalidOption(
        "the function may not begin, commit or roll back a transaction, nor ATTACH or DETACH a file: only "
        "ctx.transaction ends the transaction. Everything was rolled back. Do not use `with connection:`, commit(), "
        "rollback() or executescript(): use execute() for each statement, return to commit, raise to roll back, and "
        "use SAVEPOINT for a part."
    )


def _authorize(action: int, *_: object) -> int:
    return sqlite3.SQLITE_DENY if action in _FORBIDDEN else sqlite3.SQLITE_OK


class JoinedTransaction:
    """Carries commands out within the transaction that is open on the caller's connection."""

    def __init__(self, db: Any, path: Path, *, namespace: str, clock: Clock) -> None:
        if not isinstance(db, sqlite3.Connection):
            raise InvalidOption(f"a sqlite3 connection to {path} is needed here, not {type(db).__name__}")
        try:
            main = next((row[2] for row in db.execute("PRAGMA database_list") if row[1] == "main"), "")
        except sqlite3.ProgrammingError as error:  # it is closed, or belongs to another thread
            raise InvalidOption(
                f"this connection cannot be used: {error} Pass an open connection to {path} with the transaction that "
                "the run is to be started in. Async methods use it in another thread, so that the event loop is not "
                "blocked: open it with sqlite3.connect(..., check_same_thread=False)."
            ) from error
        if Path(os.path.realpath(main)) != path:
            raise InvalidOption(f"this connection is to {main or 'a database in memory'}, and the store is {path}")
        if not db.in_transaction:
            raise InvalidOption("no transaction is open on this connection: begin one first (BEGIN IMMEDIATE)")
        self._db, self._path, self._namespace, self._clock = db, path, namespace, clock

    def execute(self, commands: Sequence[Command]) -> list[Outcome]:
        """Carry the commands out. Nothing is committed here."""
        db = self._db
        rows, texts = db.row_factory, db.text_factory
        db.row_factory, db.text_factory = None, str
        try:
            return SqliteBatch(db, self._namespace, self._clock()).run(commands)
        except sqlite3.Error as error:
            raise store_error(error, self._path) from error
        finally:
            db.row_factory, db.text_factory = rows, texts

    def close(self) -> None:
        """Leave the caller's connection as it is."""
