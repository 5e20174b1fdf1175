"""Functions shared by all stores for records of a `RecordType`: decide on commands about one record, list records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ..commands import Command, ListedRecord, RecordCommand
from ..errors import RecordUnreadable
from ..rules.lock_outcomes import Outcome
from ..rules.record_type import RecordType, StoredRecord, type_named
from .common import failed

RecordName = tuple[str, str]
"""The name of a record's type, and the record's key."""

MOST_LISTED = 1_000_000
"""How many records a page has, at most: servers do not accept limits of any size."""


class Written(NamedTuple):
    """A record after a change, and as it is stored. None: it is removed."""

    record: Any
    stored: StoredRecord | None


def written(type: RecordType[Any], record: Any) -> Written:
    """A record as it is to be written. Raises for what cannot be stored."""
    return Written(record, None if record is None else type.stored(record))


def is_about_a_record(command: Command) -> bool:
    """Whether a command is about one record with a valid name."""
    return isinstance(command, RecordCommand) and type(command.key) is str


def by_record(commands: Iterable[RecordCommand]) -> dict[RecordName, list[tuple[int, RecordCommand]]]:
    """Commands by their record, each with its index in the batch. A key that is not text names no record."""
    records: dict[RecordName, list[tuple[int, RecordCommand]]] = {}
    for place, command in enumerate(commands):
        if is_about_a_record(command):
            records.setdefault((command.record_type.name, command.key), []).append((place, command))
    return records


def decided_record(
    type: RecordType[Any], before: Any, commands: Sequence[RecordCommand], now: int
) -> tuple[Written | None, list[Outcome]]:
    """Decide on the commands of a batch about one record. Returns what to write, None if nothing changed.

    The record is encoded once, however many commands there are. A bad command fails alone.
    """
    record, outcomes = before, []
    try:
        for command in commands:
            record, outcome = command.apply(record, now)
            outcomes.append(outcome)
        return None if record is before else written(type, record), outcomes
    except Exception:  # one command raised: deciding one by one shows which
        return _decided_apart(type, before, commands, now)


def _decided_apart(
    type: RecordType[Any], before: Any, commands: Sequence[RecordCommand], now: int
) -> tuple[Written | None, list[Outcome]]:
    latest = Written(before, None)
    outcomes: list[Outcome] = []
    for command in commands:
        try:
            after, outcome = command.apply(latest.record, now)
            if after is not latest.record:
                latest = written(type, after)
        except Exception as error:
            outcome = failed(command, error)
        outcomes.append(outcome)
    return None if latest.record is before else latest, outcomes


def page_size(limit: int) -> int:
    """How many records a page has: at least one, or paging would never end."""
    return min(max(1, limit), MOST_LISTED)


def listed_record(kind: str, key: str, text: str | RecordUnreadable) -> ListedRecord:
    """One row of a page: the record, or the reason why it cannot be read."""
    if isinstance(text, RecordUnreadable):
        return ListedRecord(key=key, record=None, error=str(text))
    known = type_named(kind)
    if known is None:
        return ListedRecord(key=key, record=None, error=f"this process does not know the record type {kind!r}")
    try:
        return ListedRecord(key=key, record=known.decode(key, text))
    except RecordUnreadable as error:
        return ListedRecord(key=key, record=None, error=str(error))
