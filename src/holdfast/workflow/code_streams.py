"""The streams that workflow code writes: its items are stored with the record of the run that they follow from.

A note in the journal says how many items the code had written, so a replay counts what the code writes and skips what
is stored; it encodes none of that. What follows from entries that are lost is lost with them, and is written again.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import TYPE_CHECKING, Any

from ..rules.runs.stream_records import CodeItems
from ..validation import checked_key
from . import journal as j
from .stream_writers import PendingItem, StreamWriter

if TYPE_CHECKING:
    from .replay import Replay


class CodeStreams:
    """What the code of one attempt of a workflow has written to its streams."""

    def __init__(self, code: Replay, entries: Sequence[j.AnyEntry]) -> None:
        """`entries` are those of this attempt."""
        self._code = code
        self._stored = {entry.name: entry.count for entry in entries if isinstance(entry, j.Streamed)}
        self._counts: dict[str, int] = {}
        self._unsent: dict[str, list[str]] = {}
        self._noted: dict[str, int] = {}

    def stream(self, name: str, type: Any) -> StreamWriter:
        """A stream, for the code."""
        return CodeStream(self._code, checked_key(name, what="stream name"), type)

    def skips(self, name: str) -> bool:
        """Whether the next item of this stream is stored already; if so, it counts as written."""
        count = self._counts.get(name, 0)
        if count >= self._stored.get(name, 0):
            return False
        self._counts[name] = count + 1
        return True

    def count(self, name: str) -> int:
        """How many items this attempt has written to a stream."""
        return self._counts.get(name, 0)

    def put(self, name: str, text: str) -> None:
        """Write an item with the next record."""
        self._counts[name] = self._counts.get(name, 0) + 1
        self._unsent.setdefault(name, []).append(text)

    @property
    def has_unsent(self) -> bool:
        """Whether there are items that are in no record yet."""
        return bool(self._unsent)

    def notes(self, now: int) -> list[j.Streamed]:
        """Notes about items that no note counts yet."""
        found = [
            j.Streamed(at=now, name=name, count=self._counts[name])
            for name in self._unsent
            if self._noted.get(name) != self._counts[name]
        ]
        self._noted |= {note.name: note.count for note in found}
        return found

    def take(self, max_bytes: int) -> tuple[CodeItems, ...]:
        """The items for the record that is being sent."""
        found = tuple(
            CodeItems(
                name=name,
                index=self._counts[name] - len(values),
                values=tuple(values),
                attempt=self._code.attempt,
                max_bytes=max_bytes,
            )
            for name, values in self._unsent.items()
        )
        self._unsent.clear()
        return found

    def discard(self) -> None:
        """Forget the items that are in no record: what they follow from is not recorded."""
        self._unsent.clear()


class CodeStream(StreamWriter):
    """A stream, for the code of a workflow. Its items are numbered by the order of the code."""

    def __init__(self, code: Replay, name: str, type: Any) -> None:
        self._code = code
        super().__init__(name, type, self, max_bytes=code.max_bytes)

    def write(self, item: Any) -> PendingItem:
        """Add an item, which is stored with the next record of the run. A replay adds nothing."""
        self._code.check()
        if self._code.streams.skips(self.name):
            return PendingItem(self)
        return super().write(item)

    def put(self, text: str) -> None:
        """Write an item with the next record."""
        self._code.streams.put(self.name, text)

    def wait(self) -> None:
        """Do not wait: the loop of workflow code waits for nothing that is not recorded."""

    def wait_async(self) -> Generator[Any, None, None]:
        """Likewise."""
        yield from ()
