"""Translates changes into the statements that write them, in a fixed order of tables and keys.

A row that this transaction has locked is written. A lease, or a lock of a run, that was only read is written if it is
still what was read; any other row that is not locked is not written (`unlocked`). A row that did not exist is inserted,
which fails if another transaction has inserted it meanwhile. Then nothing is written (`WriteConflict`), and the rules
decide again.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from ...rules.lock_record import encode
from ...rules.runs.lock_requests import RUN_PREFIX
from ...rules.runs.record import Run, memberships
from ...rules.slot import EXECUTION, client_of
from ..footprint import LOOKED_AT
from ..questions import (
    AddEvent,
    AppendEntries,
    Changes,
    ClearInbox,
    LockByKey,
    NotedStart,
    Question,
    RecordAt,
    RunById,
    SlotAt,
    TruncateJournal,
)
from .answers import encoded
from .record_statements import DELETE, INSERT, UPDATE, rows_of
from .records import COLUMNS, event_text, row_of
from .session import Statement
from .statements import placed

LONGEST_NOTE = 7_900
"""The largest size of a notification that names attempts; a larger one is empty, and all attempts must check."""

_TYPES = {
    "created_at": "bigint", "due_at": "bigint", "fence": "bigint", "length": "bigint", "posted": "bigint",
    "claims": "bigint", "crashes": "bigint", "started_at": "bigint", "ended_at": "bigint", "watchers": "text[]",
}  # fmt: skip
_NAMES = (*COLUMNS, "workflow", "plain", "rest")
_SHAPE = ", ".join(f"{name} {_TYPES.get(name, 'boolean' if name == 'plain' else 'text')}" for name in _NAMES)
_VALUES = ", ".join(f"n.{name}::json" if name in ("attributes", "rest") else f"n.{name}" for name in _NAMES)
_SETS = ", ".join(
    f"{name} = n.{name}::json" if name in ("attributes", "rest") else f"{name} = n.{name}"
    for name in _NAMES
    if name != "id"
)
INSERT_RUNS = f"""
INSERT INTO holdfast.runs (namespace, {", ".join(_NAMES)})
SELECT $1, {_VALUES} FROM jsonb_to_recordset($2::jsonb) AS n({_SHAPE})
"""
UPDATE_RUNS = f"""
UPDATE holdfast.runs AS o SET {_SETS}
  FROM jsonb_to_recordset($2::jsonb) AS n({_SHAPE})
 CROSS JOIN LATERAL (SELECT r.ctid AS spot FROM holdfast.runs AS r WHERE r.namespace = $1 AND r.id = n.id LIMIT 1) AS x
 WHERE o.ctid = x.spot
"""
# A row that stays is deleted and inserted again, so that its other values need no statement of their own.
CLEAR_RUNS = """
DELETE FROM holdfast.runs AS o USING jsonb_array_elements_text($2::jsonb) AS n(id)
 CROSS JOIN LATERAL (SELECT r.ctid AS spot FROM holdfast.runs AS r WHERE r.namespace = $1 AND r.id = n.id LIMIT 1) AS x
 WHERE o.ctid = x.spot
"""
_CLEAR = """
DELETE FROM holdfast.{table} AS o WHERE o.ctid = ANY (ARRAY(
    SELECT x.spot FROM jsonb_array_elements_text($2::jsonb) AS n(id) CROSS JOIN LATERAL (
        SELECT r.ctid AS spot FROM holdfast.{table} AS r WHERE r.namespace = $1 AND {of} OFFSET 0) AS x))
"""
CLEAR_PARTS = (
    _CLEAR.format(table="journal", of="r.run = n.id"),
    _CLEAR.format(table="events", of="r.run = n.id"),
    _CLEAR.format(table="slots", of=f"r.scope = '{EXECUTION}' AND r.owner = n.id"),
)
CUT_JOURNALS = """
DELETE FROM holdfast.journal AS o WHERE o.ctid = ANY (ARRAY(
    SELECT x.spot FROM jsonb_to_recordset($2::jsonb) AS n(run text, keep bigint) CROSS JOIN LATERAL (
        SELECT j.ctid AS spot FROM holdfast.journal AS j
         WHERE j.namespace = $1 AND j.run = n.run AND j.number >= n.keep OFFSET 0) AS x))
"""
ADD_ENTRIES = """
INSERT INTO holdfast.journal
SELECT $1, n.run, n.number, n.entry FROM jsonb_to_recordset($2::jsonb) AS n(run text, number bigint, entry text)
"""
DROP_EVENTS = """
DELETE FROM holdfast.events AS o USING jsonb_to_recordset($2::jsonb) AS n(run text, number bigint)
 CROSS JOIN LATERAL (SELECT e.ctid AS spot FROM holdfast.events AS e
                      WHERE e.namespace = $1 AND e.run = n.run AND e.number = n.number LIMIT 1) AS x
 WHERE o.ctid = x.spot
"""
CLEAR_INBOXES = """
DELETE FROM holdfast.events AS o WHERE o.ctid = ANY (ARRAY(
    SELECT x.spot FROM jsonb_to_recordset($2::jsonb) AS n(run text) CROSS JOIN LATERAL (
        SELECT e.ctid AS spot FROM holdfast.events AS e
         WHERE e.namespace = $1 AND e.run = n.run OFFSET 0) AS x))
"""
ADD_EVENTS = """
INSERT INTO holdfast.events
SELECT $1, n.run, n.number, n.key, n.event::json
  FROM jsonb_to_recordset($2::jsonb) AS n(run text, number bigint, key text, event text)
"""
INSERT_LOCKS = """
INSERT INTO holdfast.locks SELECT $1, n.key, n.record, n.due_at
  FROM jsonb_to_recordset($2::jsonb) AS n(key text, record jsonb, due_at bigint)
"""
_SPOT_OF_LOCK = """
 CROSS JOIN LATERAL (SELECT l.ctid AS spot FROM holdfast.locks AS l
                      WHERE l.namespace = $1 AND l.key = n.key LIMIT 1) AS x
"""
UPDATE_LOCKS = f"""
UPDATE holdfast.locks AS o SET record = n.record, due_at = n.due_at
  FROM jsonb_to_recordset($2::jsonb) AS n(key text, record jsonb, due_at bigint) {_SPOT_OF_LOCK}
 WHERE o.ctid = x.spot
"""
SWAP_LOCKS = f"""
WITH done AS (
    UPDATE holdfast.locks AS o SET record = n.record, due_at = n.due_at
      FROM jsonb_to_recordset($2::jsonb) AS n(key text, record jsonb, due_at bigint, old jsonb) {_SPOT_OF_LOCK}
     WHERE o.ctid = x.spot AND o.record = n.old RETURNING 1)
SELECT holdfast.insist(count(*), jsonb_array_length($2::jsonb)) FROM done
"""
DELETE_LOCKS = f"""
WITH done AS (
    DELETE FROM holdfast.locks AS o USING jsonb_to_recordset($2::jsonb) AS n(key text, old jsonb) {_SPOT_OF_LOCK}
     WHERE o.ctid = x.spot AND (n.old IS NULL OR o.record = n.old) RETURNING 1)
SELECT holdfast.insist(count(*), jsonb_array_length($2::jsonb)) FROM done
"""
_SLOT = "n(scope text, owner text, key text, version bigint, value text, past jsonb)"
INSERT_SLOTS = f"""
INSERT INTO holdfast.slots SELECT $1, n.* FROM jsonb_to_recordset($2::jsonb) AS {_SLOT}
"""
UPDATE_SLOTS = f"""
UPDATE holdfast.slots AS o SET version = n.version, value = n.value, past = n.past
  FROM jsonb_to_recordset($2::jsonb) AS {_SLOT}
 CROSS JOIN LATERAL (SELECT s.ctid AS spot FROM holdfast.slots AS s WHERE s.namespace = $1 AND s.scope = n.scope
                        AND s.owner = n.owner AND s.key = n.key LIMIT 1) AS x
 WHERE o.ctid = x.spot
"""
PUT_TERMS = """
INSERT INTO holdfast.terms SELECT $1, n.workflow, n.digest, n.terms
  FROM jsonb_to_recordset($2::jsonb) AS n(workflow text, digest text, terms json)
    ON CONFLICT (namespace, workflow) DO UPDATE SET digest = excluded.digest, terms = excluded.terms
"""
PUT_WORKERS = """
INSERT INTO holdfast.workers SELECT $1, n.id, n.worker FROM jsonb_to_recordset($2::jsonb) AS n(id text, worker json)
    ON CONFLICT (namespace, id) DO UPDATE SET worker = excluded.worker
"""
DELETE_WORKERS = """
DELETE FROM holdfast.workers AS o USING jsonb_array_elements_text($2::jsonb) AS n(id)
 WHERE o.namespace = $1 AND o.id = n.id
"""
_PLACE = "n(party text, queued boolean, rank bigint, arrival bigint, run text, workflow text, place jsonb)"
LEAVE_PLACES = f"""
DELETE FROM holdfast.places AS o USING jsonb_to_recordset($2::jsonb) AS {_PLACE}
 CROSS JOIN LATERAL (SELECT p.ctid AS spot FROM holdfast.places AS p WHERE p.namespace = $1 AND p.party = n.party
                        AND p.queued = n.queued AND p.rank = n.rank AND p.arrival = n.arrival AND p.run = n.run
                      LIMIT 1) AS x
 WHERE o.ctid = x.spot
"""
TAKE_PLACES = f"INSERT INTO holdfast.places SELECT $1, n.* FROM jsonb_to_recordset($2::jsonb) AS {_PLACE}"
ADD_STARTS = """
INSERT INTO holdfast.starts SELECT $1, n.* FROM jsonb_to_recordset($2::jsonb) AS n(party text, at bigint, run text)
"""
DROP_STARTS = """
DELETE FROM holdfast.starts AS s WHERE s.ctid = ANY (ARRAY(
    SELECT x.spot FROM jsonb_to_recordset($2::jsonb) AS n(party text, most bigint, now bigint) CROSS JOIN LATERAL (
        SELECT o.ctid AS spot FROM holdfast.starts AS o
         WHERE o.namespace = $1 AND o.party = n.party AND o.at <= n.now
         ORDER BY o.at DESC, o.run DESC OFFSET n.most) AS x))
"""
NOTIFY = "SELECT pg_notify(n.note->>0, n.note->>1) FROM jsonb_array_elements($1::jsonb) AS n(note)"

Stored = Callable[[Question], Any]
"""Returns the stored answer to a question."""


class PostgresWriter:
    """The statements for one batch of changes."""

    def __init__(
        self,
        changes: Changes,
        *,
        schema: str,
        namespace: bytes,
        stored: Stored,
        owned: Collection[Question],
        lock_text: Callable[[str], bytes | None],
    ) -> None:
        self._schema, self._namespace = schema, namespace
        self._stored, self._owned, self._lock_text = stored, owned, lock_text
        self.statements: list[Statement] = []
        self.unlocked: set[Question] = set()
        """Rows to write that are not locked: if there are any, nothing is written."""
        self.inserted: list[Question] = []
        """Rows that do not exist yet."""
        if changes.terms or changes.workers:
            self._write_workers(changes)
        if changes.cleared:
            self._clear_runs(changes)
        if changes.runs or changes.journals or changes.inboxes or changes.starts:
            self._write_runs(changes)
            self._write_journals(changes)
            self._write_inboxes(changes)
            self._write_places(changes)
            self._write_starts(changes.starts)
        if changes.slots:
            self._write_slots(changes)
        if changes.records:
            self._write_records(changes)
        if changes.locks:
            self._write_locks(changes)

    def _send(self, text: str, rows: Iterable[Any]) -> None:
        """Send rows to a statement, unless there are none."""
        if found := list(rows):
            self.statements.append(Statement(placed(text, self._schema), (self._namespace, encoded(found))))

    def _is_new(self, question: Question) -> bool:
        """Whether a row does not exist yet; one that exists and is not locked is noted."""
        if self._stored(question) is None:
            self.inserted.append(question)
            return True
        if question not in self._owned:
            self.unlocked.add(question)
        return False

    def _write_workers(self, changes: Changes) -> None:
        terms = sorted(changes.terms.items())
        self._send(PUT_TERMS, ({"workflow": name, "digest": one.digest, "terms": one} for name, one in terms))
        workers = sorted(changes.workers.items())
        known = ((name, msgspec.to_builtins(worker)) for name, worker in workers if worker is not None)
        self._send(PUT_WORKERS, ({"id": name, "worker": _without(fields, "id")} for name, fields in known))
        self._send(DELETE_WORKERS, (name for name, worker in workers if worker is None))

    def _write_runs(self, changes: Changes) -> None:
        runs = [changes.runs[name] for name in sorted(changes.runs)]
        new = {run.id for run in runs if self._is_new(RunById(run.id))}
        self._send(UPDATE_RUNS, (row_of(run) for run in runs if run.id not in new))  # a replaced run gives up its key
        self._send(INSERT_RUNS, (row_of(run) for run in runs if run.id in new))

    def _clear_runs(self, changes: Changes) -> None:
        """Remove runs with what belongs to them."""
        names = sorted(changes.cleared)
        for name in names:
            self._is_new(RunById(name))  # its row must be locked
        self._send(CLEAR_RUNS, names)
        for statement in CLEAR_PARTS:
            self._send(statement, names)
        left = (changes.cleared[name].left for name in names)
        self._send(INSERT_RUNS, (row_of(run) for run in left if run is not None))

    def _write_journals(self, changes: Changes) -> None:
        cuts: dict[str, int] = {}
        added: list[dict[str, object]] = []
        for run, steps in sorted(changes.journals.items()):
            entries = dict[int, str]()
            for step in steps:
                keep = step.at if isinstance(step, AppendEntries) else step.keep
                entries = {number: entry for number, entry in entries.items() if number < keep}
                if isinstance(step, TruncateJournal):
                    cuts[run] = min(keep, cuts.get(run, keep))
                else:
                    entries |= {step.at + place: entry for place, entry in enumerate(step.entries)}
            added += [{"run": run, "number": number, "entry": entry} for number, entry in sorted(entries.items())]
        self._send(CUT_JOURNALS, ({"run": run, "keep": keep} for run, keep in cuts.items()))
        self._send(ADD_ENTRIES, added)

    def _write_inboxes(self, changes: Changes) -> None:
        gone: list[dict[str, object]] = []
        added: list[dict[str, object]] = []
        cleared: list[dict[str, object]] = []
        for run, posts in sorted(changes.inboxes.items()):
            events = {}
            for post in posts:
                if isinstance(post, AddEvent):
                    events[post.event.number] = post.event
                elif isinstance(post, ClearInbox):
                    events = {}
                    cleared.append({"run": run})
                else:
                    events = {number: event for number, event in events.items() if number not in post.numbers}
                    gone += [{"run": run, "number": number} for number in sorted(post.numbers)]
            added += [
                {"run": run, "number": event.number, "key": event.key, "event": event_text(event)}
                for event in events.values()
            ]
        self._send(CLEAR_INBOXES, cleared)
        self._send(DROP_EVENTS, gone)
        self._send(ADD_EVENTS, added)

    def _write_places(self, changes: Changes) -> None:
        gone: list[dict[str, object]] = []
        come: list[dict[str, object]] = []
        for name in sorted(changes.runs):
            run, before = changes.runs[name], self._stored(RunById(name))
            was, now = list(_places(before)), list(_places(run))
            gone += [place for place in was if place not in now]
            come += [place for place in now if place not in was]
        self._send(LEAVE_PLACES, gone)
        self._send(TAKE_PLACES, come)

    def _write_starts(self, starts: Sequence[NotedStart]) -> None:
        self._send(ADD_STARTS, ({"party": one.group, "at": one.at, "run": one.run} for one in starts))
        last = {one.group: {"party": one.group, "most": one.limit.max, "now": one.now} for one in starts}
        self._send(DROP_STARTS, last.values())

    def _write_slots(self, changes: Changes) -> None:
        rows: defaultdict[bool, list[dict[str, object]]] = defaultdict(list)
        for (scope, owner, key), slot in sorted(changes.slots.items(), key=lambda item: item[0]):
            new = self._is_new(SlotAt((scope, owner, key)))
            rows[new].append({"scope": scope, "owner": owner, "key": key, **msgspec.structs.asdict(slot)})
        self._send(INSERT_SLOTS, rows[True])
        self._send(UPDATE_SLOTS, rows[False])

    def _write_records(self, changes: Changes) -> None:
        inserted: list[dict[str, object]] = []
        updated: list[dict[str, object]] = []
        removed: list[dict[str, object]] = []
        for (kind, key), row in rows_of(changes.records):
            new = self._is_new(RecordAt(kind, key))
            if row is not None:
                (inserted if new else updated).append(row)
            elif not new:
                removed.append({"kind": kind, "key": key})
        self._send(INSERT, inserted)
        self._send(UPDATE, updated)
        self._send(DELETE, removed)

    def _write_locks(self, changes: Changes) -> None:
        inserted: list[dict[str, object]] = []
        updated: list[dict[str, object]] = []
        removed: list[dict[str, object]] = []
        for key, record in sorted(changes.locks.items()):
            text = self._lock_text(key)
            row: dict[str, object] = {"key": key}
            if text is not None and LockByKey(key) not in self._owned:
                row["old"] = msgspec.Raw(text)
                if not key.startswith(LOOKED_AT):
                    self.unlocked.add(LockByKey(key))
            if record is None:
                removed += [row] if text is not None else []
                continue
            row |= {"record": msgspec.Raw(encode(record)), "due_at": record.due_at}
            (inserted if text is None else updated).append(row)
            self.inserted += [LockByKey(key)] if text is None else []
        self._send(INSERT_LOCKS, inserted)
        self._send(UPDATE_LOCKS, (row for row in updated if "old" not in row))
        self._send(SWAP_LOCKS, (row for row in updated if "old" in row))
        self._send(DELETE_LOCKS, removed)


def notification(namespace: str, attempts: Iterable[str], local_channels: Collection[str]) -> list[Statement]:
    """Notify attempts, one notification per channel, except on channels to which the caller itself sends hints.

    A run is notified by an event instead.
    """
    channels: defaultdict[str, dict[str, None]] = defaultdict(dict)
    for attempt in attempts:
        if not attempt.startswith(RUN_PREFIX) and client_of(attempt) not in local_channels:
            channels[client_of(attempt)][attempt] = None
    notes = []
    for channel, names in channels.items():
        digest = hashlib.md5(f"{namespace}.{channel}".encode(), usedforsecurity=False).hexdigest()
        text = encoded(list(names))
        notes.append((f"holdfast_{digest}", text.decode() if len(text) < LONGEST_NOTE else ""))
    return [Statement(NOTIFY.encode(), (encoded(notes),))] if notes else []


def _places(run: Run | None) -> Iterator[dict[str, object]]:
    """The rows of a run that has not ended, for its limits and for the queues of locks."""
    for one in () if run is None else memberships(run):
        yield {
            "party": one.group, "queued": one.queued, "rank": one.rank, "arrival": one.arrival, "run": one.run,
            "workflow": one.workflow, "place": one.place or [],
        }  # fmt: skip


def _without(fields: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if key != name}
