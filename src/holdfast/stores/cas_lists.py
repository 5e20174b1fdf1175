"""Lists and sweeps on a compare-and-swap store: pages of keys, records that are due, settling them, and cleanup.

A list of keys is only a hint, also where the service is behind with its indexes: the records themselves are read
afterwards, with the time, and every answer and change depends on what was read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ..commands import (
    Cleanup,
    Command,
    ListDueRecords,
    ListLocks,
    ListRecords,
    LockPage,
    RecordPage,
    RecordsDue,
    Settle,
    SettleDue,
    Swept,
)
from ..errors import RecordUnreadable
from ..rules import lock
from ..rules.lock_outcomes import Outcome
from ..rules.lock_record import LockRecord
from ..rules.record_type import MAX_MOMENT, type_named
from .cas_adapter import LOCKS, RECORDS, CasName, CasRead, CasWrite, StampedText
from .cas_groups import Group, new_stamp
from .cas_subjects import LockSubject, check_text, lock_of
from .common import listed, swept
from .records import listed_record, page_size

if TYPE_CHECKING:
    from .cas import CasConnection

LISTS: tuple[type[Command], ...] = (ListLocks, ListRecords, ListDueRecords, SettleDue, Cleanup)
"""Commands that begin with a list."""
MARGIN = 1_000_000
"""Microseconds that a request may take before a list of due records is read once more."""


class _Due(NamedTuple):
    """The keys of records that are due by what was read, in order, and what was read."""

    keys: list[str]
    read: CasRead


class CasLists:
    """The commands about many records, over one connection."""

    def __init__(self, connection: CasConnection) -> None:
        self._connection = connection

    def answer(self, command: Command) -> tuple[Outcome, int]:
        """Answer one of `LISTS`. Also returns the time at which it was decided."""
        if isinstance(command, ListLocks):
            page = self._list_locks(command)
            return page, page.now
        if isinstance(command, ListRecords):
            records = self._list_records(command)
            return records, records.now
        if isinstance(command, ListDueRecords):
            due = self._list_due_records(command)
            return due, due.now
        if isinstance(command, SettleDue):
            return self._settle_due(command)
        if isinstance(command, Cleanup):
            return self._clean_up(command)
        raise TypeError(f"{type(command).__name__} is not a list")

    # -- pages -----------------------------------------------------------------------------------------------

    def _page(self, kind: str, prefix: str, after: str, limit: int) -> tuple[list[str], str | None, CasRead]:
        """The keys of a page, the `after` of the next one, and the records that were there when they were read."""
        check_text(kind, prefix, after)
        keys = self._connection.keys(kind, prefix=prefix, after=after, limit=limit + 1)
        following = keys[limit - 1] if len(keys) > limit else None
        keys = keys[:limit]
        return keys, following, self._connection.read([CasName(kind, key) for key in keys])

    def _list_locks(self, command: ListLocks) -> LockPage:
        keys, following, (found, now) = self._page(LOCKS, command.prefix, command.after, page_size(command.limit))
        items = tuple(
            listed(key, self._lock(key, found[name], now), now)
            for key in keys
            if (name := CasName(LOCKS, key)) in found
        )
        return LockPage(items=items, next=following, now=now)

    def _list_records(self, command: ListRecords) -> RecordPage:
        kind = RECORDS + command.kind
        keys, following, (found, now) = self._page(kind, command.prefix, command.after, page_size(command.limit))
        items = tuple(
            listed_record(command.kind, key, found[name].text) for key in keys if (name := CasName(kind, key)) in found
        )
        return RecordPage(items=items, next=following, now=now)

    def _lock(self, key: str, found: StampedText, now: int) -> LockRecord | RecordUnreadable:
        try:
            return lock_of(self._connection.service, key, found, now)
        except RecordUnreadable as error:
            return error

    # -- what is due -----------------------------------------------------------------------------------------

    def _due(self, kind: str, more_than: int, due_at: Callable[[str, StampedText, int], int | None]) -> _Due:
        """The records that are due by their texts; more than so many if there are more.

        `due_at` reads the time from a text; None: the record is not due, or cannot be read. The time is known only
        after the records were read, so the index is asked for a little more than is due by what is known before.
        """
        wanted, bounds = more_than + 1, self._connection.bounds()
        until = MAX_MOMENT if bounds is None else bounds.high + MARGIN
        while True:
            entries = self._connection.due(kind, until=until, limit=wanted)
            if not entries and bounds is not None:
                return _Due([], CasRead({}, bounds.low))
            names = list(dict.fromkeys(CasName(kind, key) for _, key in entries))
            read = self._connection.read(names)
            moments = [
                (moment, name.key)
                for name in names
                if name in read.found and (moment := due_at(name.key, read.found[name], read.now)) is not None
            ]
            due = sorted(one for one in moments if one[0] <= read.now)
            complete = len(entries) < wanted and read.now <= until
            if len(due) > more_than or complete or (entries and entries[-1][0] > read.now):
                return _Due([key for _, key in due], read)
            wanted, until = 2 * wanted, MAX_MOMENT

    def _list_due_records(self, command: ListDueRecords) -> RecordsDue:
        limit, kind = page_size(command.limit), RECORDS + command.kind
        check_text(kind)
        known = type_named(command.kind)

        def due_at(key: str, found: StampedText, _: int) -> int | None:
            try:
                return None if known is None else known.stored(known.decode(key, found.text)).due_at
            except RecordUnreadable:
                return None

        keys, (found, now) = self._due(kind, limit, due_at)
        items = [listed_record(command.kind, key, found[CasName(kind, key)].text) for key in keys[: limit + 1]]
        return RecordsDue(items=tuple(items[:limit]), more=len(items) > limit, now=now)

    # -- sweeps ----------------------------------------------------------------------------------------------

    def _settle_due(self, command: SettleDue) -> tuple[Swept, int]:
        """Settle the locks that are due. One that cannot be read is skipped, so that it does not hide others."""
        limit = page_size(command.limit)

        def due_at(key: str, found: StampedText, now: int) -> int | None:
            record = self._lock(key, found, now)
            return record.due_at if isinstance(record, LockRecord) else None

        due, read = self._due(LOCKS, limit, due_at)
        groups = []
        for place, key in enumerate(due[:limit]):
            group = Group(LockSubject(self._connection.service, key))
            group.add(place, Settle(key=key))
            groups.append(group)
        self._connection.carry_out(groups, read)
        outcomes = [outcome for group in groups for outcome in group.answers.values()]
        changed = sum(group.applied is not None for group in groups)
        return swept(outcomes, changed, due[limit - 1] if len(due) > limit else None), read.now

    def _clean_up(self, command: Cleanup) -> tuple[Swept, int]:
        keys, following, (found, now) = self._page(LOCKS, "", command.after, page_size(command.limit))
        gone: list[CasWrite] = []
        for key in keys:
            name = CasName(LOCKS, key)
            if name not in found:
                continue
            record = self._lock(key, found[name], now)
            if isinstance(record, LockRecord) and lock.removable(record, now, retention=command.retention):
                gone.append(CasWrite(name, None, None, new_stamp(), found[name].stamp))
        return Swept(seen=len(keys), changed=self._removed(gone), next=following), now

    def _removed(self, writes: Sequence[CasWrite]) -> int:
        """How many of these records were removed. One that another client has just used stays."""
        if not writes:
            return 0
        results = self._connection.write(writes)
        unknown = [write.name for write, result in zip(writes, results, strict=True) if result is None]
        absent = 0
        if unknown:
            left = self._connection.read(unknown).found
            absent = sum(name not in left for name in unknown)
        return absent + sum(result is True for result in results)
