"""The `RecordSource` (executor.py) of a PostgreSQL store: its rows, within one transaction per decision.

A decision is one round trip that begins the transaction, locks and reads (reading.py), and one that writes, notifies
and commits (writing.py). If a rule needs more rows, the transaction is rolled back and begins again with the larger
set. No decision uses an unlocked read of a row that it writes. Commands that only read open no transaction that
outlives their round trip.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from typing import Protocol

from ...commands import Command, Failed, ListLocks
from ...commands.purging import ListEndedRuns, ListEndedWorkflows
from ...commands.runs import CountRuns, ListRuns
from ...errors import RecordUnreadable
from ...rules.lock_outcomes import Outcome
from ..questions import Changes, LockByKey, Question, RowLocked, Snapshot
from ..repository import BatchRepository
from . import lists
from . import statements as sql
from .contention import table_locked
from .reading import PostgresReader
from .session import Contended, NotInstalled, Rows, Session, Statement, WriteConflict
from .writing import PostgresWriter, notification

IDLE = b"1s"
"""How long the server keeps the row locks of a client that is paused within a transaction."""
HASTE = b"2"
"""Milliseconds for which a part of a batch waits, after the whole batch has waited for too long."""
WIDER = 6
"""How often a claim that finds unreadable runs reads further; each time four times as many rows."""
_SETTINGS, _GUARDS = (" ".join(text.split()).encode() for text in (sql.SETTINGS, sql.GUARDS))


class Transactions(Protocol):
    """Sends statements: on a session of the store, or in a transaction of the user."""

    look: Sequence[Statement]
    """Begins a transaction that only reads."""
    commit: Sequence[Statement]
    rollback: Sequence[Statement]

    @property
    def begin(self) -> Sequence[Statement]:
        """Begins a decision."""

    def trip(self, statements: Sequence[Statement]) -> list[Rows]:
        """Send statements together, and return their rows. Raises the first error."""

    def check_counting(self) -> None:
        """Raise if counts would be outdated in this transaction."""


class OwnTransactions:
    """Transactions on a session of the store.

    Without a pooler, the settings of a transaction are made once for the session.
    """

    look: Sequence[Statement] = (Statement(sql.LOOK.encode()),)
    commit: Sequence[Statement] = (Statement(b"COMMIT"),)
    rollback: Sequence[Statement] = (Statement(b"ROLLBACK"),)

    def __init__(self, session: Session, *, patience: bytes) -> None:
        self._session, self._patience = session, patience
        if not session.pooled:
            session.trip(self._settings(local=False))

    def _settings(self, *, local: bool) -> tuple[Statement, ...]:
        scope = b"true" if local else b"false"
        return (Statement(_SETTINGS, (self._patience, scope)), Statement(_GUARDS, (IDLE, scope)))

    @property
    def begin(self) -> Sequence[Statement]:
        """Begins a decision."""
        start = Statement(sql.BEGIN.encode())
        return (start, *self._settings(local=True)) if self._session.pooled else (start,)

    @property
    def out_of_process(self) -> bool:
        """Whether a single statement has the settings that it needs."""
        return not self._session.pooled

    def trip(self, statements: Sequence[Statement]) -> list[Rows]:
        """Send statements together, and return their rows."""
        return self._session.trip(statements)

    def call(self, statement: Statement) -> Rows:
        """Send one statement that is a transaction by itself."""
        return self._session.ask_rows(statement)

    def check_counting(self) -> None:
        """These transactions see what was committed before each of their statements."""


class PostgresSource:
    """The rows of one namespace, for one batch of commands at a time."""

    guesses: Snapshot | None = None

    def __init__(
        self, transactions: Transactions, *, schema: str, namespace: str, mend: Callable[[NotInstalled], None]
    ) -> None:
        """`mend` creates missing functions, or raises."""
        self._transactions, self._schema, self._namespace, self._mend = transactions, schema, namespace, mend
        self.at: bytes | None = None
        """The time, if a test sets the clock."""
        self.local_channels: Collection[str] | None = ()
        """Channels to which the caller itself sends hints; None: no hints are sent at all."""
        self.patient = False
        """Whether rows and groups that other transactions have locked are waited for."""
        self.alone = False
        """Whether locked groups are waited for, because there is only one command."""
        self.awaited: Collection[Question] = ()
        """What to wait for at the beginning, while nothing else is locked: one row, or groups."""
        self.hasty = False
        """Whether nothing is waited for longer than a moment, including keys that another transaction inserts."""
        self.wrote = False
        """Whether something was committed."""
        self.writing = False
        """Whether the last round trip was a write: if it failed, the cause are the rows that it inserts."""
        self.inserted: Sequence[Question] = ()
        """The rows that the last write inserts."""
        self._open = False
        self._last = Changes()
        self._more: set[Question] = set()
        self._reading: PostgresReader | None = None
        self._snapshot: Snapshot | None = None

    def read(self, questions: Collection[Question], *, changing: Collection[Question]) -> Snapshot:
        """Lock the rows that may be written, read everything, and take the time."""
        if changing and self._more:
            questions, changing = {*questions, *self._more}, {*changing, *self._more}
        snapshot = self._read(questions, changing, (), 1)
        damaged: set[str] = set()
        for tries in range(WIDER):
            if not (self._reading is not None and self._reading.damaged - damaged):
                break
            damaged |= self._reading.damaged
            snapshot = self._read(questions, changing, damaged, 4**tries)
        self._snapshot = snapshot
        return snapshot

    def _read(
        self, questions: Collection[Question], changing: Collection[Question], passed_over: Collection[str], wider: int
    ) -> Snapshot:
        self._reading = reading = PostgresReader(
            questions,
            changing,
            schema=self._schema,
            namespace=self._namespace.encode(),
            at=self.at,
            patient=self.patient,
            alone=self.alone,
            awaited=self.awaited,
            passed_over=passed_over,
            wider=wider,
        )
        if reading.counts:
            self._transactions.check_counting()
        before = self._transactions.rollback if self._open else ()
        self.writing = False
        if changing:
            opening = self._transactions.begin
            if self.hasty:
                opening = (*opening, Statement(sql.PATIENCE.encode(), (HASTE,)))
            rows = self._trip((*before, *opening, *reading.statements))
            rows = rows[len(before) + len(opening) :]
        else:
            look, end = self._transactions.look, self._transactions.commit
            rows = self._trip((*before, *look, *reading.statements, *end))
            rows = rows[len(before) + len(look) : len(rows) - len(end)]
        self._open = bool(changing)
        self._last = Changes()
        return reading.snapshot(rows)

    def write(self, repository: BatchRepository, hints: Sequence[str], woken: Sequence[str]) -> bool:
        """Write the changes, notify and commit, in one trip."""
        reading, snapshot = self._reading, self._snapshot
        assert reading is not None  # noqa: S101  (the executor has read)
        assert snapshot is not None  # noqa: S101
        writing = PostgresWriter(
            repository.changes,
            schema=self._schema,
            namespace=self._namespace.encode(),
            stored=snapshot.get,
            owned=reading.owned,
            lock_text=reading.stored_lock,
        )
        if writing.unlocked:
            self._more |= writing.unlocked
            return False
        notes = (
            [] if self.local_channels is None else notification(self._namespace, [*woken, *hints], self.local_channels)
        )
        self.writing, self.inserted = True, writing.inserted
        try:
            self._trip((*writing.statements, *notes, *self._transactions.commit))
        except WriteConflict:
            return False
        self._open = False
        self._more.clear()
        self._last = repository.changes
        self.wrote = True
        return True

    @property
    def occupied(self) -> list[Question]:
        """The rows that another transaction had locked when a rule asked for them."""
        return [] if self._snapshot is None else self._snapshot.occupied

    def check(self, changes: Changes) -> None:
        """The server refuses values that it cannot store; the batch is then divided, and a bad command fails alone."""

    def undo(self) -> None:
        """Nothing now: the transaction is rolled back with the next round trip, or by `close`."""

    def is_crowded(self, key: str) -> bool:
        """Whether a lock had more than one holder or waiter when it was last read or written."""
        record = self._last.locks.get(key)
        if record is None and self._snapshot is not None and self._snapshot.knows(LockByKey(key)):
            with suppress(RecordUnreadable, RowLocked):
                record = self._snapshot.get(LockByKey(key))
        return record is not None and len(record.holders) + len(record.waiters) > 1

    def close(self) -> None:
        """Roll back an open transaction."""
        self._more.clear()
        if self._open:
            self._open = False
            self._transactions.trip(self._transactions.rollback)

    @property
    def snapshot(self) -> Snapshot | None:
        """The last snapshot."""
        return self._snapshot

    def look(self, statement: Statement) -> Rows:
        """Send one statement that reads, outside of any decision."""
        self.close()
        return self.read_rows((statement,))[0]

    def scan(self, command: Command) -> Outcome:
        """Answer a list or a count. If its table is locked, it fails alone."""
        tries = 2  # the first try notices a session that a pooler has replaced
        while True:
            self.close()
            try:
                return self._scanned(command)
            except NotInstalled as missing:
                self._mend(missing)
            except Contended:
                tries -= 1
                if not tries:
                    self.close()
                    return Failed(error=table_locked(self.look, self._schema))

    def _scanned(self, command: Command) -> Outcome:
        asking = lists.ListReader(self, schema=self._schema, namespace=self._namespace, at=self.at)
        if isinstance(command, ListLocks):
            return asking.list_locks(command)
        if isinstance(command, ListRuns):
            return asking.list_runs(command)
        if isinstance(command, ListEndedRuns):
            return asking.list_ended(command)
        if isinstance(command, ListEndedWorkflows):
            return asking.ended_workflows(command)
        assert isinstance(command, CountRuns)  # noqa: S101  (the only other type)
        return asking.count_runs()

    def read_rows(self, statements: Sequence[Statement]) -> list[Rows]:
        """Send statements that only read, in a transaction of their own, rolled back before the next if it fails."""
        look, end = self._transactions.look, self._transactions.commit
        rows = self._trip((*look, *statements, *end))
        return rows[len(look) : len(rows) - len(end)]

    def _trip(self, statements: Sequence[Statement]) -> list[Rows]:
        was_open, self._open = self._open, True  # until it succeeds: an error leaves the transaction broken
        found = self._transactions.trip(statements)
        self._open = was_open
        return found
