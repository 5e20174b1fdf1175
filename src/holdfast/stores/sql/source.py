"""The `RecordSource` (executor.py) of a relational store: one round trip that reads, and one that compares and writes.

Nothing is locked between the two. If another client has changed anything that a decision depends on, or has it locked
at that moment, nothing is written, and everything is read and decided again.
"""

from __future__ import annotations

import random
import time
from collections.abc import Collection, Sequence
from contextlib import suppress

from ...commands import Command, Failed
from ...errors import RecordUnreadable, StoreContended, StoreError, StoreUnusable
from ...rules.lock_outcomes import Outcome
from ..executor import StepRefused
from ..questions import Changes, Claimable, Question, RowLocked, RunById, Snapshot
from ..repository import BatchRepository
from .dialect import Rows
from .lists import SqlLists
from .reading import Reading
from .session import LostRace, RowBusy, SqlSession, StatementRunner, ValueRefused, new_stamp
from .tables import SqlTables
from .writing import Writing, check

PAUSE = 0.002
"""The longest delay in seconds before the second try after another client was faster; later delays are longer."""
LONGEST_PAUSE = 0.08
"""The longest delay in seconds. All tries together take more than 1 s: a paused client may lock a row for that long."""


class SqlSource:
    """The rows of one namespace, for one batch of commands at a time."""

    guesses: Snapshot | None = None

    def __init__(self, session: StatementRunner, tables: SqlTables, namespace: str, *, current: str = "") -> None:
        """`current` is added to reads in a user's transaction: see `Reading`."""
        self._session, self._tables, self._namespace, self._current = session, tables, namespace, current
        self._reading: Reading | None = None
        self._busy: set[str] = set()
        self._claiming = False
        self._more: set[Question] = set()
        self._tries = 0
        self.at: int | None = None
        """The time, if a test sets the clock."""
        self.wrote = False
        """Whether something of this batch was committed."""
        self.conflicts = 0
        """How often another client was faster; for tests."""

    def begin(self, at: int | None) -> None:
        """Begin a batch."""
        self.at, self.wrote, self._tries = at, False, 0
        self._more.clear()
        self._busy.clear()

    def read(self, questions: Collection[Question], *, changing: Collection[Question]) -> Snapshot:
        """Read the answers, and the time after them, in one round trip."""
        wanted = {*questions, *self._more} if changing else questions
        self._claiming = claiming = any(isinstance(question, Claimable) for question in questions)
        reading = Reading(
            wanted,
            dialect=self._session.dialect,
            tables=self._tables,
            namespace=self._namespace,
            at=self.at,
            current=self._current,
            passed_over=self._busy if claiming else (),
        )
        try:
            rows = self._read(reading.statements)
        except ValueRefused as refused:
            raise StepRefused(_bad_value(refused)) from refused
        self._reading = reading
        snapshot = reading.snapshot(rows)
        if claiming:
            for question in map(RunById, self._busy):  # a claim leaves out runs that other transactions have locked
                if snapshot.knows(question):
                    with suppress(RecordUnreadable):
                        snapshot.put(question, RowLocked(question, snapshot.get(question)))
        return snapshot

    def _read(self, statements: Sequence[str]) -> list[Rows]:
        """Read; a database that locks what it reads may report a deadlock, and is asked again."""
        for last in (False, False, True):
            try:
                return self._session.read(statements)
            except (LostRace, RowBusy) as busy:
                if last:
                    raise StepRefused(_contended(busy)) from busy
        raise AssertionError

    def write(self, repository: BatchRepository, hints: Sequence[str], woken: Sequence[str]) -> bool:  # noqa: ARG002
        """Compare everything that the decision depends on, write, and commit, in one round trip."""
        reading = self._reading
        assert reading is not None  # noqa: S101  (the executor has read)
        writing = Writing(
            repository,
            reading,
            dialect=self._session.dialect,
            tables=self._tables,
            namespace=self._namespace,
            stamp=new_stamp(),
            check_age=self.at is None,
        )
        if writing.missing:
            self._more |= writing.missing
            return False
        try:
            self._session.write(writing.statements)
        except LostRace:
            self.conflicts += 1
            self._tries += 1
            if self._claiming:
                self._find_busy(reading)
            time.sleep(random.uniform(0, min(PAUSE * self._tries, LONGEST_PAUSE)))
            return False
        except RowBusy as busy:
            raise StepRefused(_contended(busy)) from busy
        except ValueRefused as refused:
            raise StepRefused(_bad_value(refused)) from refused
        self.wrote = True
        self._tries = 0
        self._more.clear()
        return True

    def _find_busy(self, reading: Reading) -> None:
        """Note the runs that were read and that another transaction has locked now."""
        runs = [one for one, stamp in reading.stamps.items() if isinstance(one, RunById) and stamp is not None]
        if not runs or not isinstance(self._session, SqlSession):
            return
        names = sorted(one.id for one in runs)
        with suppress(LostRace, RowBusy):
            self._busy |= set(names) - self._session.lockable(self._tables.runs, "id", self._namespace, names)

    def remove_guards(self) -> None:
        """Remove guards of groups without runs and starts. A client that has read one decides again."""
        if not isinstance(self._session, SqlSession):
            return
        with suppress(LostRace, RowBusy):
            self._session.remove_guards(self._tables, self._namespace)

    def check(self, changes: Changes) -> None:
        """Raise for what cannot be stored."""
        check(changes, self._session.dialect)

    def undo(self) -> None:
        """Nothing to undo: nothing is locked between a read and a write."""

    def scan(self, command: Command) -> Outcome:
        """Answer a list or a count."""
        lists = SqlLists(self._session, self._tables, self._namespace, self.at)
        try:
            return lists.answer(command)
        except (LostRace, RowBusy) as busy:
            raise StepRefused(_contended(busy)) from busy


def locked(command: Command) -> Failed:
    """The answer to a command whose row another transaction has locked."""
    return Failed(error=_contended(RowBusy(f"{type(command).__name__}: the row is locked")))


def _contended(error: Exception) -> StoreError:
    return StoreContended(
        f"a row that this command needs stayed locked by another transaction ({error}). Nothing was changed for it. It "
        "can be sent again."
    )


def _bad_value(error: Exception) -> StoreError:
    return StoreUnusable(f"the database cannot store a value of this command ({error}). Nothing was changed for it.")
