"""Records as the tables of a PostgreSQL store hold them.

A run is a row: fields that are indexed, or that the native form of `RecordRun` changes, are columns; all other fields
are JSON in the column `rest`, so that a new field needs no SQL. Events, workers and limits are JSON next to their keys.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

import msgspec
from msgspec.structs import replace

from ...errors import RecordUnreadable
from ...rules.lock_record import LockRecord, decode
from ...rules.runs.record import Run, RunEvent, WorkerRecord

COLUMNS = (
    "id", "type", "status", "created_at", "due_at", "worker", "fence", "length", "posted", "claims", "crashes", "last",
    "key", "parent", "started_at", "ended_at", "result", "attributes", "watchers",
)  # fmt: skip
"""The fields of a run that are columns, under the same names."""
HARMLESS = frozenset({
    "request", "root", "places", "priority", "arrival", "cancelling", "locks", "code", "blocked_for", "generation",
    "remembered", "first", "replaces", "parent_first", "continued_at", "cancelled_by", "cancel_reason",
    "timeout", "not_before", "details", "record_kinds",
})  # fmt: skip
"""Other fields that the native form of `RecordRun` need not read; the end of a run reads its limit keys and locks."""
SESSION = "session"
"""The field that ties a grant to a session (advisory=true)."""

_json = msgspec.json.Encoder()
_row = msgspec.json.Decoder(dict[str, Any])


def row_of(run: Run) -> dict[str, Any]:
    """The row of a run. JSON is passed as text: jsonb would refuse the escape of a NUL."""
    rest = {name: value for name, value in msgspec.to_builtins(run).items() if name not in COLUMNS}
    row = {name: getattr(run, name) for name in COLUMNS}
    row["attributes"] = _json.encode(run.attributes).decode()
    row["workflow"] = run.workflow
    if run.parent and run.is_first:  # an index of first runs has those without a parent
        row["parent"], rest["parent"] = "", run.parent
    row["plain"] = HARMLESS.issuperset(rest)
    row["rest"] = _json.encode(rest).decode()
    return row


def run_of(text: bytes) -> tuple[str, Run | RecordUnreadable]:
    """The id of a run, and the run from its row as JSON, or why it cannot be read."""
    row = _row.decode(text)
    name: str = row["id"]
    try:
        fields = {column: row[column] for column in COLUMNS}
        fields["parent"] = row["rest"].get("parent", fields["parent"])
        return name, msgspec.convert({**row["rest"], **fields}, Run)
    except (msgspec.MsgspecError, KeyError, TypeError) as error:
        return name, unreadable("run", name, error)


def unreadable(what: str, name: str, error: Exception) -> RecordUnreadable:
    """The error for a row that cannot be read."""
    return RecordUnreadable(
        f"the stored {what} {name!r} cannot be read ({error}). It was left untouched. It may come from a newer "
        "version, or be damaged: upgrade, or inspect it by hand.",
        key=name,
    )


def events_of(run: str, rows: Iterable[Sequence[bytes | None]]) -> tuple[RunEvent, ...] | RecordUnreadable:
    """The events of a run from their rows: number, key and text; or why one of them cannot be read."""
    events = []
    for number, key, text in rows:
        try:
            fields = {**_row.decode(text or b""), "number": int(number or b"0"), "key": (key or b"").decode()}
            events.append(msgspec.convert(fields, RunEvent))
        except msgspec.MsgspecError as error:
            return unreadable("event of the run", run, error)
    return tuple(events)


def worker_of(name: str, text: bytes) -> WorkerRecord:
    """A worker from its row.

    An unreadable row is a worker without types: it is never notified of a run, and its lease counts as any other, so
    that its runs are released when the lease expires. When the worker registers again, its row is written again.
    """
    try:
        return msgspec.convert({**_row.decode(text), "id": name}, WorkerRecord)
    except msgspec.MsgspecError:
        return WorkerRecord(id=name, name=name, types=(), since=0)


def event_text(event: RunEvent) -> str:
    """The fields of an event besides its number and its key, as JSON."""
    fields = msgspec.to_builtins(event)
    return _json.encode({name: value for name, value in fields.items() if name not in ("number", "key")}).decode()


def lock_of(key: str, text: bytes, severed: Collection[str], now: int) -> LockRecord | RecordUnreadable:
    """The record of a lock, without the grants and waiters whose sessions have ended; or why it cannot be read."""
    try:
        record = decode(key, text)
    except RecordUnreadable as error:
        return error
    for holder in record.holders if severed else ():
        if holder.id in severed:
            closed = {}
            if holder.delay and not holder.offered:
                closed = {
                    "closed_until": max(record.closed_until, now + holder.delay),
                    "closed_for": max(record.closed_for, holder.delay),
                }
            others = tuple(one for one in record.holders if one.id != holder.id)
            record = replace(record, holders=others, version=record.version + 1, **closed)
    waiters = tuple(one for one in record.waiters if one.id not in severed) if severed else record.waiters
    if len(waiters) < len(record.waiters):
        record = replace(record, waiters=waiters, version=record.version + 1)
    return record
