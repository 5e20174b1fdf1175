"""The `RecordSource` (executor.py) of a relational store: one round trip that reads, and one that compares and writes.

Nothing is locked between the two. If another client has changed anything that a decision depends on, or has it locked
at that moment, nothing is written, and everything is read and decided again.
"""

from __future__ import annotations

import random
import time
from collections.abc import Collection, Sequence

from ...commands import Command
from ...errors import StoreContended, StoreError, StoreUnusable
from ...rules.lock_outcomes import Outcome
from ..executor import StepRefused
from ..questions import Changes, Question, Snapshot
from ..repository import BatchRepository
from .lists import SqlLists
from .reading import Reading
from .session import LostRace, RowBusy, StatementRunner, ValueRefused, new_stamp
from .tables import SqlTables
from .writing import Writing, check

PAUSE = 0.002
"""The longest delay in seconds before the second try after another client was faster; later delays are longer."""
LONGEST_PAUSE = 0.08
"""The longest delay: all tries of one command take more than the second for which a paused client may keep a row."""


class SqlSource:
    """The rows of one namespace, for one batch of commands at a time."""

    guesses: Snapshot | None = None

    def __init__(self, session: StatementRunner, tables: SqlTables, namespace: str, *, current: str = "") -> None:
        """`current` is added to reads in a user's transaction: see `Reading`."""
        self._session, self._tables, self._namespace, self._current = session, tables, namespace, current
        self._reading: Reading | None = None
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

    def read(self, questions: Collection[Question], *, changing: Collection[Question]) -> Snapshot:
        """Read the answers, and the time after them, in one round trip."""
        wanted = {*questions, *self._more} if changing else questions
        reading = Reading(
            wanted,
            dialect=self._session.dialect,
            tables=self._tables,
            namespace=self._namespace,
            at=self.at,
            current=self._current,
        )
        try:
            rows = self._session.read(reading.statements)
        except (LostRace, RowBusy) as busy:
            raise StepRefused(_contended(busy)) from busy
        except ValueRefused as refused:
            raise StepRefused(_bad_value(refused)) from refused
        self._reading = reading
        return reading.snapshot(rows)

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


def _contended(error: Exception) -> StoreError:
    return StoreContended(
        f"a row that this command needs stayed locked by another transaction ({error}). Nothing was changed for it. It "
        "can be sent again."
    )


def _bad_value(error: Exception) -> StoreError:
    return StoreUnusable(f"the database cannot store a value of this command ({error}). Nothing was changed for it.")
