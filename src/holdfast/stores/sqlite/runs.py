"""The `RunRepository` of one SQLite transaction: rows are read on demand and written at the end.

Changes of a batch are kept in memory until `flush`, so a run that is used twice is read once and written once. The
caller begins and ends the transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from typing import Any

import msgspec

from ...commands.runs import RecordRun, RunCommand
from ...errors import RecordUnreadable
from ...rules import lock
from ...rules.lock_outcomes import Outcome
from ...rules.lock_record import LockRecord, decode, encode
from ...rules.record_type import R, RecordType
from ...rules.runs.locks import notify_offered
from ...rules.runs.record import LONG_AGO, Run, RunEvent, WorkerRecord
from ...rules.runs.repository import RunFilter
from ...rules.slot import Address, Slot
from ..common import failed
from .limits import ALL, SqliteLimits
from .lists import find, stored_value
from .records import load_record, record_keys, save_record
from .slots import load_slot, save_slot

SAVE = (
    "INSERT INTO runs (namespace, id, type, workflow, status, created_at, due_at, worker, ended_at, key, record) "
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT (namespace, id) DO UPDATE SET type = excluded.type, "
    "status = excluded.status, due_at = excluded.due_at, worker = excluded.worker, ended_at = excluded.ended_at, "
    "record = excluded.record"
)
# For a run that gets the id of a purged one, or is hidden by a purge: other writes would update more indexes.
REPLACE = f"{SAVE}, workflow = excluded.workflow, created_at = excluded.created_at, key = excluded.key"
# A `RecordRun` usually changes no indexed column of its run: then no index is updated.
TOUCH = "UPDATE runs SET record = ? WHERE namespace = ? AND id = ?"
LOAD = "SELECT record FROM runs WHERE namespace = ? AND id = ?"
# The driver releases the GIL for every statement and row, and waits for it again each time while an engine drives other
# runs: so many rows are passed in and out as one value.
LOAD_MANY = (
    "SELECT json_group_array(record) FROM json_each(?) AS wanted CROSS JOIN runs "
    "WHERE runs.namespace = ? AND runs.id = wanted.value AND typeof(record) = 'text'"
)
ADD_ATTRIBUTE = "INSERT OR REPLACE INTO run_attributes (namespace, name, value, created_at, run) VALUES (?, ?, ?, ?, ?)"
DROP_ATTRIBUTE = (
    "DELETE FROM run_attributes WHERE namespace = ? AND name = ? AND value = ? AND created_at = ? AND run = ?"
)
TOUCH_MANY = (
    "UPDATE runs SET record = new.record FROM (SELECT json_extract(value, '$[0]') AS id, "
    "json_extract(value, '$[1]') AS record FROM json_each(?) LIMIT -1) AS new "
    "WHERE runs.namespace = ? AND runs.id = new.id"
)
SAVE_MANY = SAVE.replace(
    "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
    "SELECT ?, json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'), "
    "json_extract(value, '$[3]'), json_extract(value, '$[4]'), json_extract(value, '$[5]'), "
    "json_extract(value, '$[6]'), json_extract(value, '$[7]'), json_extract(value, '$[8]'), "
    "json_extract(value, '$[9]') "
    "FROM json_each(?) WHERE true",
)
APPEND_MANY = (
    "INSERT INTO journal (namespace, run, number, entry) SELECT ?, json_extract(value, '$[0]'), "
    "json_extract(value, '$[1]'), json_extract(value, '$[2]') FROM json_each(?)"
)
WITH_KEY = "SELECT id FROM runs WHERE namespace = ? AND workflow = ? AND key = ?"
APPEND = "INSERT INTO journal (namespace, run, number, entry) VALUES (?, ?, ?, ?)"
ENTRIES = "SELECT entry FROM journal WHERE namespace = ? AND run = ? ORDER BY number LIMIT ?"
CUT = "DELETE FROM journal WHERE namespace = ? AND run = ? AND number >= ?"
POST = "INSERT INTO events (namespace, run, number, key, event) VALUES (?, ?, ?, ?, ?)"
CLEAR_RUN = (
    "DELETE FROM runs WHERE namespace = ? AND id = ?",
    "DELETE FROM journal WHERE namespace = ? AND run = ?",
    "DELETE FROM events WHERE namespace = ? AND run = ?",
    "DELETE FROM slots WHERE namespace = ? AND scope = 'execution' AND owner = ?",
)
UNPOST = "DELETE FROM events WHERE namespace = ? AND run = ? AND number = ?"
CLEAR_INBOX = "DELETE FROM events WHERE namespace = ? AND run = ?"
EVENTS = "SELECT event FROM events WHERE namespace = ? AND run = ? AND number > ? ORDER BY number"
EVENT_WITH_KEY = "SELECT number FROM events WHERE namespace = ? AND run = ? AND key = ?"
DUE = "SELECT record FROM runs WHERE namespace = ? AND type = ? AND due_at BETWEEN ? AND ? ORDER BY due_at, id"
NEXT_DUE = "SELECT min(due_at) FROM runs WHERE namespace = ? AND type = ? AND due_at IS NOT NULL"
OWNED = "SELECT record FROM runs INDEXED BY runs_worker WHERE namespace = ? AND worker = ? ORDER BY id LIMIT ?"
WORKERS = "SELECT id, worker FROM workers WHERE namespace = ?"
REGISTER_WORKER = "INSERT OR REPLACE INTO workers (namespace, id, worker) VALUES (?, ?, ?)"
UNREGISTER_WORKER = "DELETE FROM workers WHERE namespace = ? AND id = ?"
PUT_LOCK = (
    "INSERT INTO locks (namespace, key, record, due_at) VALUES (?, ?, ?, ?) "
    "ON CONFLICT (namespace, key) DO UPDATE SET record = excluded.record, due_at = excluded.due_at"
)
LOCK = "SELECT record FROM locks WHERE namespace = ? AND key = ?"
ENDED = (
    "SELECT ended_at, id FROM runs INDEXED BY runs_ended WHERE namespace = ? AND workflow = ? AND status = ? "
    "AND ended_at IS NOT NULL AND (ended_at, id) > (?, ?) AND ended_at < ? ORDER BY ended_at, id LIMIT ?"
)
NEXT_WORKFLOW = (
    "SELECT min(workflow) FROM runs INDEXED BY runs_ended WHERE namespace = ? AND workflow > ? AND ended_at IS NOT NULL"
)
MAX_INTEGER = 2**63 - 1
COUNT_RUNS = (
    "SELECT type, count(*) FROM runs "
    "WHERE namespace = ? AND status IN ('queued', 'pending', 'running', 'suspended', 'blocked') GROUP BY type"
)
COUNT_CACHE_KIB = 512
"""The page cache while all runs are counted: their pages are not needed again soon."""
ROWS_AT_ONCE = 200
"""Each may have a value of the largest size, and SQLite accepts no text of more than a thousand million bytes."""


_encoder = msgspec.json.Encoder()
_runs = msgspec.json.Decoder(Run)
_events = msgspec.json.Decoder(RunEvent)
_workers = msgspec.json.Decoder(WorkerRecord)
_texts = msgspec.json.Decoder(list[str])


def run_runs(
    db: sqlite3.Connection, namespace: str, now: int, commands: Sequence[RunCommand], *, savepoint: bool = True
) -> tuple[list[Outcome], bool]:
    """Answer the commands, in order, and return whether anything was written.

    Without a savepoint, which is only for a single command, the caller rolls its transaction back if nothing was
    written.
    """
    if savepoint:
        db.execute("SAVEPOINT runs")
    try:
        repo = SqliteRunRepository(db, namespace)
        repo.preload([command.run for command in commands if isinstance(command, RecordRun)])
        outcomes = [command.apply(repo, now) for command in commands]
        repo.flush()
    except Exception as error:
        if isinstance(error, sqlite3.Error) and all(map(_can_be_written, commands)):
            raise
        if savepoint:
            db.execute("ROLLBACK TO runs")
        if len(commands) == 1:  # a bad command fails alone
            return [failed(commands[0], error)], False
        apart = [run_runs(db, namespace, now, [command]) for command in commands]
        return [outcomes[0] for outcomes, _ in apart], any(changed for _, changed in apart)
    finally:
        if savepoint:
            db.execute("RELEASE runs")
    return outcomes, repo.changed


def _can_be_written(command: RunCommand) -> bool:
    """Whether SQLite can store all values of a command; if not, the command fails alone."""
    try:
        msgspec.json.encode(command)
    except Exception:  # text or numbers that no store can hold
        return False
    return True


def notify_runs(db: sqlite3.Connection, namespace: str, now: int, woken: Sequence[str]) -> tuple[str, ...]:
    """Notify runs that were offered a lock. Returns the attempts to send hints to."""
    repo = SqliteRunRepository(db, namespace)
    hints = notify_offered(repo, now, woken)
    repo.flush()
    return hints


class SqliteRunRepository(SqliteLimits):
    """The runs of one namespace, within one transaction."""

    def __init__(self, db: sqlite3.Connection, namespace: str) -> None:
        super().__init__(db, namespace)
        self._stored: dict[str, Run | None] = {}
        self._current: dict[str, Run | None] = {}
        self._locks: dict[str, LockRecord | None] = {}
        self._slots: dict[Address, Slot] = {}
        self._appended: list[tuple[str, int, str]] = []
        self._living: list[WorkerRecord] | None = None

    def flush(self) -> None:
        """Write all changes."""
        if self._appended:
            self.changed = True
            self._write_rows(APPEND, APPEND_MANY, self._appended)
            self._appended.clear()
        for address, slot in self._slots.items():
            self.changed = True
            save_slot(self._db, self._namespace, address, slot)
        self._slots.clear()
        touched: list[tuple[str, str]] = []
        saved: list[tuple[object, ...]] = []
        replaced: list[tuple[object, ...]] = []
        for name, run in self._current.items():
            before = self._stored.get(name)
            if run is not None and run is not before:
                self._stored[name] = run
                if run.places or run.waits or (before is not None and before.waits):
                    self._count(before, run)
                if run.attributes or (before is not None and before.attributes):
                    self._attribute(before, run)
                record = _encoder.encode(run).decode()
                if before is not None and _indexed(before) == _indexed(run):
                    touched.append((run.id, record))
                else:
                    row = (run.id, run.type, run.workflow, run.status, run.created_at, run.due_at)
                    rows = saved if before is None or _named(before) == _named(run) else replaced
                    rows.append((*row, run.worker or None, run.purgeable_from, run.key or None, record))
        self._touch(touched)
        for one in replaced:
            self._write_rows(REPLACE, REPLACE, [one])
        self._write_rows(SAVE, SAVE_MANY, saved)

    def _attribute(self, before: Run | None, run: Run) -> None:
        """Update the rows by which runs are listed by their attributes."""
        old = set() if before is None else _attribute_rows(before)
        new = _attribute_rows(run)
        self._db.executemany(DROP_ATTRIBUTE, [(self._namespace, *row) for row in old - new])
        self._db.executemany(ADD_ATTRIBUTE, [(self._namespace, *row) for row in new - old])

    def _touch(self, rows: Sequence[tuple[str, str]]) -> None:
        """Write records of runs whose indexed columns have not changed: ids and records."""
        if len(rows) == 1:
            ((run, record),) = rows
            self._db.execute(TOUCH, (record, self._namespace, run))
        else:
            for first in range(0, len(rows), ROWS_AT_ONCE):
                some = rows[first : first + ROWS_AT_ONCE]
                self._db.execute(TOUCH_MANY, (_encoder.encode(some).decode(), self._namespace))
        self.changed = self.changed or bool(rows)

    def _write_rows(self, one: str, many: str, rows: Sequence[tuple[object, ...]]) -> None:
        """Write rows, each without its namespace."""
        if len(rows) == 1:
            self._db.execute(one, (self._namespace, *rows[0]))
        else:
            for first in range(0, len(rows), ROWS_AT_ONCE):
                some = rows[first : first + ROWS_AT_ONCE]
                self._db.execute(many, (self._namespace, _encoder.encode(some).decode()))
        self.changed = self.changed or bool(rows)

    def preload(self, ids: Sequence[str]) -> None:
        """Read these runs with one statement; an unreadable run raises only when it is used."""
        if len(ids) <= 1:
            return
        texts = self._db.execute(LOAD_MANY, (_encoder.encode(ids).decode(), self._namespace)).fetchone()[0]
        for text in _texts.decode(texts):
            with suppress(RecordUnreadable):
                self._read(text)

    def _read(self, record: str) -> Run:
        try:
            run = _runs.decode(record)
        except msgspec.MsgspecError as error:
            raise RecordUnreadable(
                f"a stored run cannot be read ({error}). It was left untouched. It may be damaged: inspect it by hand."
            ) from error
        if run.id in self._current:  # changed in this batch, perhaps
            return self._current[run.id] or run
        self._stored[run.id] = self._current[run.id] = run
        return run

    def run(self, id: str) -> Run | None:
        """One run."""
        if id not in self._current:
            found = self._db.execute(LOAD, (self._namespace, id)).fetchone()
            if found is None:
                self._stored[id] = self._current[id] = None
            else:
                self._read(found[0])
        return self._current[id]

    def save(self, run: Run) -> None:
        """Write a run, new or changed; a run whose indexed columns changed is written before the next query."""
        self._current[run.id] = run

    def run_with_key(self, workflow: str, key: str) -> str | None:
        """The id of the run of this workflow that was started with this idempotency key."""
        self.flush()
        found = self._db.execute(WITH_KEY, (self._namespace, workflow, key)).fetchone()
        return None if found is None else found[0]

    def entries(self, run: str, limit: int | None) -> tuple[str, ...]:
        """The journal, or its first entries."""
        self.flush()
        rows = self._db.execute(ENTRIES, (self._namespace, run, ALL if limit is None else limit))
        return tuple(row[0] for row in rows)

    def append(self, run: str, at: int, entries: Sequence[str]) -> None:
        """Write entries from the index `at` on."""
        self._appended += [(run, at + place, entry) for place, entry in enumerate(entries)]

    def cut(self, run: str, keep: int) -> None:
        """Remove all entries but the first."""
        self.flush()
        self.changed = True
        self._db.execute(CUT, (self._namespace, run, keep))

    def events(self, run: str, after: int) -> tuple[RunEvent, ...]:
        """The inbox, from after this number on."""
        known = self._current.get(run)
        if known is not None and known.posted <= after:
            return ()
        try:
            return tuple(_events.decode(row[0]) for row in self._db.execute(EVENTS, (self._namespace, run, after)))
        except msgspec.MsgspecError as error:
            raise RecordUnreadable(
                f"a stored event of the run {run!r} cannot be read ({error}). It was left untouched. It may be "
                "damaged: inspect it by hand.",
                key=run,
            ) from error

    def event_with_key(self, run: str, key: str) -> int | None:
        """The number of the event with this key."""
        found = self._db.execute(EVENT_WITH_KEY, (self._namespace, run, key)).fetchone()
        return None if found is None else found[0]

    def post(self, run: str, event: RunEvent) -> None:
        """Write an event."""
        self.changed = True
        text = _encoder.encode(event).decode()
        self._db.execute(POST, (self._namespace, run, event.number, event.key or None, text))

    def unpost(self, run: str, numbers: Iterable[int]) -> None:
        """Remove events; the numbers of the others stay."""
        self.changed = True
        self._db.executemany(UNPOST, [(self._namespace, run, number) for number in numbers])

    def clear_inbox(self, run: str) -> None:
        """Remove all events; the next one that is written has the number 1."""
        self.changed = True
        self._db.execute(CLEAR_INBOX, (self._namespace, run))

    def clear_run(self, run: Run, left: Run | None) -> None:
        """Remove a run that has ended, with what belongs to it; with `left`, that row stays."""
        self.flush()
        self.changed = True
        if run.attributes:
            self._db.executemany(DROP_ATTRIBUTE, [(self._namespace, *row) for row in _attribute_rows(run)])
        for statement in CLEAR_RUN:
            self._db.execute(statement, (self._namespace, run.id))
        self._stored[run.id] = self._current[run.id] = None
        if left is not None:
            self.save(left)

    def due(self, type: str, now: int, limit: int) -> Sequence[Run]:
        """The due runs of a type: up to `limit` that are due at once, and as many by time; each by age, id."""
        self.flush()
        return [*self._due(type, -LONG_AGO, -1, limit), *self._due(type, 0, now, limit)]

    def _due(self, type: str, first: int, last: int, limit: int) -> list[Run]:
        """The first due runs that can be read: an unreadable run does not prevent the others from being claimed."""
        found: list[Run] = []
        with closing(self._db.execute(DUE, (self._namespace, type, first, last))) as rows:
            while len(found) < limit and (row := rows.fetchone()) is not None:
                with suppress(RecordUnreadable):
                    run = self._read(row[0])
                    if run.posted:
                        self.events(run.id, 0)  # unreadable events count as an unreadable run
                    found.append(run)
        return found

    def next_due(self, types: Sequence[str]) -> int | None:
        """When the first run of these types is due."""
        self.flush()
        first = (self._db.execute(NEXT_DUE, (self._namespace, kind)).fetchone()[0] for kind in types)
        return min((due for due in first if due is not None), default=None)

    def owned(self, worker: str, limit: int | None) -> Sequence[Run]:
        """The runs of a worker, by id."""
        self.flush()
        values = (self._namespace, worker, ALL if limit is None else limit)
        found = []
        for row in self._db.execute(OWNED, values).fetchall():
            with suppress(RecordUnreadable):  # an unreadable run must not prevent the others from being released
                found.append(self._read(row[0]))
        return found

    def workers(self) -> Sequence[WorkerRecord]:
        """All registered workers, the latest last."""
        if self._living is None:
            rows = self._db.execute(WORKERS, (self._namespace,))
            self._living = sorted((_worker(*row) for row in rows), key=lambda one: (one.since, one.id))
        return self._living

    def register_worker(self, worker: WorkerRecord) -> None:
        """Write a worker."""
        self.changed = True
        self._living = None
        self._db.execute(REGISTER_WORKER, (self._namespace, worker.id, _encoder.encode(worker).decode()))

    def unregister_worker(self, worker: str) -> None:
        """Remove a worker."""
        self.changed = True
        self._living = None
        self._db.execute(UNREGISTER_WORKER, (self._namespace, worker))

    def lock(self, key: str) -> LockRecord | None:
        """The record of a lock."""
        if key not in self._locks:
            found = self._db.execute(LOCK, (self._namespace, key)).fetchone()
            self._locks[key] = None if found is None else decode(key, found[0])
        return self._locks[key]

    def put_lock(self, key: str, record: LockRecord) -> None:
        """Write the record of a lock."""
        self.changed = True
        self._locks[key] = record
        self._db.execute(PUT_LOCK, (self._namespace, key, encode(record).decode(), record.due_at))

    def settle(self, key: str, now: int) -> None:
        """Settle a lock that nobody waits for, and write it if that changed it."""
        before = self.lock(key)
        if before is not None and (after := lock.settle(before, now)[0]) is not before:
            self.put_lock(key, after)

    def slot(self, address: Address) -> Slot:
        """A state slot; empty if it was never written."""
        return self._slots.get(address) or load_slot(self._db, self._namespace, address)

    def put_slot(self, address: Address, slot: Slot) -> None:
        """Write a state slot."""
        self._slots[address] = slot

    def record(self, type: RecordType[R], key: str) -> R | None:
        """A record of any type; None: there is none."""
        return load_record(self._db, self._namespace, type, key)

    def put_record(self, type: RecordType[R], key: str, record: R | None) -> None:
        """Write a record of any type; None removes it."""
        self.changed = True
        save_record(self._db, self._namespace, type, key, record)

    def record_keys(self, type: RecordType[R], prefix: str, after: str, limit: int) -> Sequence[str]:
        """The keys of the first records of a type that begin with the prefix and come after `after`, in order."""
        return record_keys(self._db, self._namespace, type.name, prefix=prefix, after=after, limit=limit)

    def ended(
        self, workflow: str, status: str, before: int, after: tuple[int, str] | None, limit: int
    ) -> Sequence[tuple[int, str]]:
        """The runs without a parent that ended with this status before a moment: (ended_at, id), the oldest first."""
        self.flush()
        first = (-MAX_INTEGER, "") if after is None else after
        return self._db.execute(ENDED, (self._namespace, workflow, status, *first, before, limit)).fetchall()

    def workflows_after(self, name: str, limit: int) -> Sequence[str]:
        """The names of workflows that come after this one and have such runs, in order."""
        self.flush()
        found: list[str] = []
        while len(found) < limit:
            last = found[-1] if found else name
            following = self._db.execute(NEXT_WORKFLOW, (self._namespace, last)).fetchone()[0]
            if following is None:
                break
            found.append(following)
        return found

    def page(self, wanted: RunFilter, after: tuple[int, str] | None, limit: int) -> Sequence[Run]:
        """The runs that match, the newest first, after the cursor."""
        self.flush()
        return [self._read(text) for text in find(self._db, self._namespace, wanted, after, limit)]

    def run_counts(self) -> dict[str, int]:
        """The number of runs of each type that have not ended."""
        self.flush()
        before = self._db.execute("PRAGMA cache_size").fetchone()[0]
        self._db.execute(f"PRAGMA cache_size = -{COUNT_CACHE_KIB}")
        counts = dict(self._db.execute(COUNT_RUNS, (self._namespace,)).fetchall())
        self._db.execute(f"PRAGMA cache_size = {before}")
        return counts


def _worker(name: str, text: str) -> WorkerRecord:
    """A worker. An unreadable one has no types; its runs are released when its lease expires."""
    try:
        return _workers.decode(text)
    except msgspec.MsgspecError:
        return WorkerRecord(id=name, name=name, types=(), since=0)


def _attribute_rows(run: Run) -> set[tuple[str, str, int, str]]:
    return {(name, stored_value(value), run.created_at, run.id) for name, value in run.attributes.items()}


def _indexed(run: Run) -> tuple[Any, ...]:
    return run.type, run.status, run.due_at, run.worker, run.purgeable_from, run.created_at, run.key


def _named(run: Run) -> tuple[Any, ...]:
    return run.workflow, run.created_at, run.key
