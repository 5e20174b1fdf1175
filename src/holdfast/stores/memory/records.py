"""Records of any type in memory, as text, so that a record that cannot be encoded or read fails as on other stores."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import islice, takewhile

from ...commands import Command, ListDueRecords, ListRecords, RecordCommand, RecordPage, RecordsDue
from ...errors import RecordUnreadable
from ...rules.lock_outcomes import Outcome
from ...rules.record_type import R, RecordType, StoredRecord
from ..common import failed
from ..records import by_record, decided_record, listed_record, page_size, written


class MemoryRecords:
    """The records of one namespace. Used under the mutex of their space."""

    def __init__(self) -> None:
        self._kinds: dict[str, dict[str, StoredRecord]] = {}
        self._sorted: dict[str, list[str]] = {}

    def get(self, kind: str, key: str) -> StoredRecord | None:
        """A record as it is stored."""
        return self._kinds.get(kind, {}).get(key)

    def put(self, kind: str, key: str, stored: StoredRecord | None) -> None:
        """Write a record; None removes it."""
        records = self._kinds.setdefault(kind, {})
        if (stored is None) is (key in records):
            self._sorted.pop(kind, None)
        if stored is None:
            records.pop(key, None)
        else:
            records[key] = stored

    def keys_after(self, kind: str, prefix: str, after: str, limit: int | None) -> list[str]:
        """The keys with the prefix that come after `after`, in order."""
        if kind not in self._sorted:
            self._sorted[kind] = sorted(self._kinds.get(kind, ()))
        keys = self._sorted[kind]
        first = max(bisect_right(keys, after), bisect_left(keys, prefix))
        found = (keys[place] for place in range(first, len(keys)))
        return list(islice(takewhile(lambda key: key.startswith(prefix), found), limit))

    def due(self, kind: str, now: int) -> list[tuple[int, str]]:
        """The due records: (due_at, key)."""
        records = self._kinds.get(kind, {}).items()
        return sorted((one.due_at, key) for key, one in records if one.due_at is not None and one.due_at <= now)

    # -- for rules -------------------------------------------------------------------------------------

    def record(self, type: RecordType[R], key: str) -> R | None:
        """A record; None: there is none. Raises `RecordUnreadable`."""
        stored = self.get(type.name, key)
        return None if stored is None else type.decode(key, stored.text)

    def put_record(self, type: RecordType[R], key: str, record: R | None) -> None:
        """Write a record; None removes it. An unreadable record is not overwritten."""
        self.record(type, key)
        self.put(type.name, key, written(type, record).stored)

    # -- commands -------------------------------------------------------------------------------------------

    def decide(self, commands: Sequence[RecordCommand], now: int) -> list[Outcome]:
        """Answer the commands, in order; those about one record are decided together."""
        answers: dict[int, Outcome] = {}
        for (_, key), some in by_record(commands).items():
            group = [command for _, command in some]
            kind = group[0].record_type
            try:
                key.encode()  # a key that other stores cannot hold is refused here too
                change, outcomes = decided_record(kind, self.record(kind, key), group, now)
            except (RecordUnreadable, UnicodeError) as error:
                change, outcomes = None, [failed(command, error) for command in group]
            if change is not None:
                self.put(kind.name, key, change.stored)
            answers.update(zip([place for place, _ in some], outcomes, strict=True))
        return [answers[place] for place in range(len(commands))]

    def look(self, command: Command, now: int) -> Outcome | None:
        """Answer a list command; None for any other command."""
        if isinstance(command, ListRecords):
            return self._list(command, now)
        return self._list_due(command, now) if isinstance(command, ListDueRecords) else None

    def _list(self, command: ListRecords, now: int) -> RecordPage:
        limit, kind = page_size(command.limit), command.kind
        keys = self.keys_after(kind, command.prefix, command.after, limit + 1)
        items = tuple(listed_record(kind, key, self._kinds[kind][key].text) for key in keys[:limit])
        return RecordPage(items=items, next=keys[limit - 1] if len(keys) > limit else None, now=now)

    def _list_due(self, command: ListDueRecords, now: int) -> RecordsDue:
        limit, kind = page_size(command.limit), command.kind
        due = (listed_record(kind, key, self._kinds[kind][key].text) for _, key in self.due(kind, now))
        items = tuple(islice((item for item in due if not item.error), limit + 1))
        return RecordsDue(items=items[:limit], more=len(items) > limit, now=now)
