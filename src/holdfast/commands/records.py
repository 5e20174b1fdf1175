"""Commands about records of any `RecordType`. Every store executes them without code of its own for a type."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from ..rules import lock_outcomes as out
from ..rules.record_type import RecordType
from .base import PAGE, Command


class RecordCommand(Command, frozen=True, kw_only=True):
    """A command about one record of a `RecordType`. Atomic by itself and independent of the others in its batch.

    A subclass names its type, adds its fields, and defines `apply`; every store executes it. The attempts in the
    outcome's `woken` and `hinted` are sent hints, as with locks.
    """

    record_type: ClassVar[RecordType[Any]]
    key: str

    def apply(self, record: Any, now: int) -> tuple[Any, out.Outcome]:
        """Decide; a pure function. None as a record: there is none before, or it is removed afterwards.

        Where nothing changes, return the record itself; then nothing is written.
        """
        raise NotImplementedError


class RecordQuery(RecordCommand, frozen=True, kw_only=True):
    """A command that reads one record and never changes it. Its outcome sends no hints."""

    def look(self, record: Any, now: int) -> out.Outcome:
        """The outcome. The record is None where there is none."""
        raise NotImplementedError

    def apply(self, record: Any, now: int) -> tuple[Any, out.Outcome]:
        """Look."""
        return record, self.look(record, now)


class ListRecords(Command, frozen=True, kw_only=True):
    """Read a page of the records of a type, in the order of their keys: those with the prefix and after `after`.

    Answers `RecordPage`. A read.
    """

    kind: str
    prefix: str = ""
    after: str = ""
    limit: int = PAGE


class ListDueRecords(Command, frozen=True, kw_only=True):
    """Read which records of a type are due, the earliest first. Answers `RecordsDue`. A read.

    Due records are changed by the type's own commands, one for each key. A record that cannot be read is left out,
    because it stays due and would hide the others; `ListRecords` shows it.
    """

    kind: str
    limit: int = PAGE


class ListedRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One record of a page. An unreadable one is shown with its error instead of being left out."""

    key: str
    record: Any
    error: str = ""


class RecordPage(out.Outcome, frozen=True, kw_only=True):
    """A page of records, and the `after` of the next one (None: there is none)."""

    items: tuple[ListedRecord, ...]
    next: str | None
    now: int


class RecordsDue(out.Outcome, frozen=True, kw_only=True):
    """The records that are due, and whether there are more than `limit`."""

    items: tuple[ListedRecord, ...]
    more: bool
    now: int
