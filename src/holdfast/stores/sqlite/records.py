"""Records of any type inside one SQLite transaction: read once, decided by their rules, written once.

Many commands about one record in one batch cost one row read and one row written. The caller begins and ends the
transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

import msgspec

from ...commands import ListDueRecords, ListedRecord, ListRecords, RecordCommand, RecordPage, RecordsDue
from ...errors import RecordUnreadable
from ...rules.lock_outcomes import Outcome
from ...rules.record_type import R, RecordType, StoredRecord, unreadable
from ..common import end_of_prefix, failed
from ..records import (
    RecordName,
    by_record,
    decided_record,
    is_about_a_record,
    listed_record,
    page_size,
    written,
)

FEW_KEYS = 8
"""Up to this number of keys, one SELECT per key is cheaper than one SELECT over a JSON list of keys."""
BEYOND_ALL_TEXT = b""
"""SQLite sorts any blob after any text, so this is the end of a range that has none."""

LOAD = "SELECT record FROM records WHERE namespace = ? AND kind = ? AND key = ?"
# Many rows are returned as one value: the driver releases the GIL for every row.
LOAD_MANY = (
    "SELECT json_group_array(json_array(records.kind, records.key, records.record)) FROM json_each(?) AS wanted "
    "CROSS JOIN records WHERE records.namespace = ? AND records.kind = json_extract(wanted.value, '$[0]') "
    "AND records.key = json_extract(wanted.value, '$[1]')"
)
SAVE = (
    "INSERT INTO records (namespace, kind, key, record, due_at) VALUES (?, ?, ?, ?, ?) "
    "ON CONFLICT (namespace, kind, key) DO UPDATE SET record = excluded.record, due_at = excluded.due_at"
)
REMOVE = "DELETE FROM records WHERE namespace = ? AND kind = ? AND key = ?"
LIST = (
    "SELECT key, record FROM records WHERE namespace = ? AND kind = ? AND key >= ? AND key > ? AND key < ? "
    "ORDER BY key LIMIT ?"
)
KEYS = LIST.replace("key, record", "key")
DUE = (
    "SELECT key, record FROM records INDEXED BY records_due WHERE namespace = ? AND kind = ? AND due_at <= ? "
    "ORDER BY due_at, key"
)

_encoder = msgspec.json.Encoder()
_rows = msgspec.json.Decoder(list[tuple[str, str, str]])


def run_records(
    db: sqlite3.Connection, namespace: str, now: int, commands: Sequence[RecordCommand]
) -> tuple[list[Outcome], bool]:
    """Answer the commands, in order, and return whether anything was written."""
    answers: dict[int, Outcome] = {
        place: failed(command, TypeError("the key is not text"))
        for place, command in enumerate(commands)
        if not is_about_a_record(command)
    }
    groups = by_record(commands)
    texts = _load(db, namespace, groups.keys())
    changed = False
    for name, some in groups.items():
        group = [command for _, command in some]
        kind = group[0].record_type
        try:
            before = _decoded(kind, name[1], texts.get(name))
            change, outcomes = decided_record(kind, before, group, now)
        except RecordUnreadable as error:
            change, outcomes = None, [failed(command, error) for command in group]
        if change is not None:
            changed = True
            _save(db, namespace, name, change.stored)
        answers.update(zip([place for place, _ in some], outcomes, strict=True))
    return [answers[place] for place in range(len(commands))], changed


def load_record(db: sqlite3.Connection, namespace: str, type: RecordType[R], key: str) -> R | None:
    """Read a record; None: there is none. Raises `RecordUnreadable`."""
    found = db.execute(LOAD, (namespace, type.name, key)).fetchone()
    return None if found is None else _decoded(type, key, found[0])


def save_record(db: sqlite3.Connection, namespace: str, type: RecordType[R], key: str, record: R | None) -> None:
    """Write a record; None removes it. An unreadable record is not overwritten."""
    load_record(db, namespace, type, key)
    _save(db, namespace, (type.name, key), written(type, record).stored)


def list_records(db: sqlite3.Connection, namespace: str, now: int, command: ListRecords) -> RecordPage:
    """A page of records, in the order of their keys."""
    limit, end = page_size(command.limit), end_of_prefix(command.prefix)
    last = BEYOND_ALL_TEXT if end is None else end
    values = (namespace, command.kind, command.prefix, command.after, last, limit + 1)
    rows = db.execute(LIST, values).fetchall()
    items = tuple(_listed(command.kind, *row) for row in rows[:limit])
    return RecordPage(items=items, next=rows[limit - 1][0] if len(rows) > limit else None, now=now)


def record_keys(db: sqlite3.Connection, namespace: str, kind: str, *, prefix: str, after: str, limit: int) -> list[str]:
    """The keys of the first records with the prefix that come after `after`, in order."""
    end = end_of_prefix(prefix)
    values = (namespace, kind, prefix, after, BEYOND_ALL_TEXT if end is None else end, limit)
    return [row[0] for row in db.execute(KEYS, values)]


def list_due_records(db: sqlite3.Connection, namespace: str, now: int, command: ListDueRecords) -> RecordsDue:
    """The due records that can be read, the earliest first."""
    limit = page_size(command.limit)
    cursor = db.execute(DUE, (namespace, command.kind, now))
    due: Iterator[ListedRecord] = (_listed(command.kind, *row) for row in cursor)
    items = tuple(islice((item for item in due if not item.error), limit + 1))
    cursor.close()
    return RecordsDue(items=items[:limit], more=len(items) > limit, now=now)


def _load(db: sqlite3.Connection, namespace: str, names: Collection[RecordName]) -> dict[RecordName, Any]:
    """The texts of records, by their names."""
    if len(names) > FEW_KEYS:
        wanted = _encoder.encode(sorted(names)).decode()  # sorted, to read the B-tree in its own order
        # Where one of the records is not text, each is read by itself.
        with suppress(sqlite3.OperationalError, msgspec.MsgspecError):
            rows = _rows.decode(db.execute(LOAD_MANY, (wanted, namespace)).fetchone()[0])
            return {(kind, key): text for kind, key, text in rows}
    found = ((name, db.execute(LOAD, (namespace, *name)).fetchone()) for name in names)
    return {name: row[0] for name, row in found if row is not None}


def _decoded(type: RecordType[R], key: str, text: Any) -> R | None:
    if text is None:
        return None
    if not isinstance(text, str):
        raise unreadable(type.name, key, "it is not text")
    return type.decode(key, text)


def _listed(kind: str, key: str, text: Any) -> ListedRecord:
    return listed_record(kind, key, text if isinstance(text, str) else unreadable(kind, key, "it is not text"))


def _save(db: sqlite3.Connection, namespace: str, name: RecordName, stored: StoredRecord | None) -> None:
    if stored is None:
        db.execute(REMOVE, (namespace, *name))
    else:
        db.execute(SAVE, (namespace, *name, *stored))
