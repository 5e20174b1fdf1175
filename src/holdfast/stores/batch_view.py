"""One batch's view of a snapshot: what its commands may read, and what they change until the store writes it.

Reads are answered from the snapshot and from what earlier commands of the same batch changed; a question that the
snapshot does not answer raises `Unanswered`. Writes stay here, as `Changes`. A command that fails is dropped alone:
`keep`, `drop` or `postpone` ends each command. Records of a `RecordType` are read and written here; `repository.py`
adds runs, locks and limits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..errors import RecordUnreadable
from ..rules.record_type import R, RecordType
from ..rules.runs.record import worker_key
from .questions import (
    Changes,
    DueRecords,
    LockByKey,
    Question,
    Range,
    RangeAnswer,
    RecordAt,
    RecordsAfter,
    RowLocked,
    RunById,
    SlotAt,
    Snapshot,
)
from .records import RecordName, Written, written

FEW = 8
"""The smallest number of items that is read of an ordered list: other commands may remove the first ones."""

WORKER_LEASES = worker_key("")


class BatchView:
    """One batch's view of the records, and its changes to them."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.now = snapshot.now
        self.changes = Changes()
        self.asked: set[Question] = set()
        """The questions of the commands that were kept: their decisions depend on the answers."""
        self.looking = False
        """Whether the current command only reads: then a row that another transaction has locked is no obstacle."""
        self.claiming = False
        """Whether the current command claims runs: then a locked row is an obstacle only if it is to be written."""
        self._snapshot = snapshot
        self._new = Changes()
        self._asked: set[Question] = set()
        self._postponed: set[Question] = set()
        self._decoded: dict[RecordName, Any] = {}

    @property
    def made(self) -> Changes:
        """What the current command has changed so far."""
        return self._new

    def keep(self) -> None:
        """Add what the last command changed to the changes of the batch."""
        self.changes.add(self._new)
        self.asked |= self._asked
        self._begin()

    def drop(self) -> None:
        """Discard what the last command changed."""
        self._begin()

    def _begin(self) -> None:
        self._new = Changes()
        self._asked = set()

    def postpone(self) -> None:
        """Discard the last command, and block its records for the later commands of the batch: none overtakes it."""
        self._postponed |= {question for question in self._asked if _is_record(question)}
        self.drop()

    # -- reading the snapshot -------------------------------------------------------------------------------

    def _ask(self, question: Question) -> Any:
        self._asked.add(question)
        self._check_postponed(question)
        try:
            return self._snapshot.get(question)
        except RowLocked as occupied:
            if occupied.seen and (self.looking or (self.claiming and isinstance(question, LockByKey))):
                return occupied.seen[0]
            raise

    def _check_postponed(self, question: Question) -> None:
        if question in self._postponed and not self.looking:
            raise RowLocked(question)

    def known(self, question: Range) -> RangeAnswer:
        """The beginning of an ordered list as it is stored, without the changes of this batch."""
        self._asked.add(question.stem)
        return self._snapshot.range(question)

    def _list(
        self, question: Callable[[int | None], Range], limit: int | None, gone: set[Any], come: Iterable[Any]
    ) -> list[Any]:
        """The first `limit` items of an ordered list, with the removals and additions of this batch."""
        wanted = question(None if limit is None else limit + len(gone))
        if limit is not None and not self._snapshot.knows(wanted):
            wanted = question(rounded(limit + len(gone)))
        found = self.known(wanted)
        items = [item for item in found.items if item not in gone]
        if fresh := list(come):
            items = sorted({*items, *fresh})
            if not found.complete:  # beyond the last item that was read there may be others
                items = [item for item in items if item <= found.items[-1]]
        return items[:limit]

    # -- records of any type ----------------------------------------------------------------------------------

    def record(self, type: RecordType[R], key: str) -> R | None:
        """A record of any type; None: there is none. Raises `RecordUnreadable`."""
        name = (type.name, key)
        for changes in (self._new, self.changes):
            if name in changes.records:
                self._check_postponed(RecordAt(*name))
                changed: R | None = changes.records[name].record
                return changed
        text: str | None = self._ask(RecordAt(*name))
        if text is None:
            return None
        if name not in self._decoded:
            self._decoded[name] = type.decode(key, text)
        record: R = self._decoded[name]
        return record

    def put_record(self, type: RecordType[R], key: str, record: R | None) -> None:
        """Write a record of any type; None removes it. Raises for what cannot be stored.

        The record is read first, so that an unreadable record, or one that another client has changed, is never
        overwritten.
        """
        if record is not self.record(type, key):
            self.put_written(type, key, written(type, record))

    def put_written(self, type: RecordType[Any], key: str, change: Written) -> None:
        """Write a record that was read before and is encoded already."""
        self._new.records[type.name, key] = change

    def record_texts(self, question: RecordsAfter | DueRecords) -> list[tuple[str, str | RecordUnreadable]]:
        """The items of an ordered list of records: keys and texts. A key without a record is omitted."""
        found: list[tuple[str, str | RecordUnreadable]] = []
        for item in self.known(question).items:
            key = item if isinstance(item, str) else item[1]
            try:
                text = self._ask(RecordAt(question.kind, key))
            except RecordUnreadable as error:
                text = error
            if text is not None:
                found.append((key, text))
        return found


def _is_record(question: Question) -> bool:
    """Whether a question is about one record that commands change; the lease of a worker is only read."""
    if isinstance(question, LockByKey):
        return not question.key.startswith(WORKER_LEASES)
    return isinstance(question, RunById | SlotAt | RecordAt)


def rounded(limit: int) -> int:
    """At least a few, then twice as many each time, so that few items are read again."""
    rounded = FEW
    while rounded < limit:
        rounded *= 2
    return rounded
