"""The records of the streams of runs: how items are kept, and where.

A stream has one record, its head, with the latest items; older items are in chunks, which are never changed again. So a
write reads and writes the head, and a reader that has seen everything reads nothing else. A chunk has the offset of its
first item in its key, and no chunk extends beyond a multiple of `CHUNK_ITEMS`, so every offset is found without a list.
For each step that writes, one record says which of its attempts is the present one, for all streams of the run.
The streams belong to one run: all its generations share them, and a run that replaces it begins empty ones.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from ..record_type import RecordStruct, RecordType
from .own_records import own_key
from .record import Run

CHUNK_ITEMS = 64
"""How many items a chunk has, at most."""
CHUNK_BYTES = 16_384
"""From so many bytes on, the latest items become a chunk."""
ITEM_BYTES = 8
"""What an item counts besides its text, so that a stream of empty items has a bound."""


class StreamPart(RecordStruct, frozen=True, kw_only=True):
    """Items that one attempt of a step, or of the workflow, has written one after another, as JSON texts.

    `offset` is that of the first one. `index` counts what the attempt had written before it, and `began` is the offset
    of the first item of the attempt. `step` is empty for items of workflow code.
    """

    offset: int
    step: str = ""
    attempt: int = 1
    generation: int = 1
    began: int
    index: int = 0
    values: tuple[str, ...]

    @property
    def end(self) -> int:
        """The offset after the last item."""
        return self.offset + len(self.values)


class StreamStep(RecordStruct, frozen=True):
    """The latest attempt of a step that has written to any stream of the run, under this fence."""

    fence: int
    serial: int


class StreamAttempt(RecordStruct, frozen=True):
    """An attempt of a step that writes to a stream: the latest one of its step there.

    `serial` numbers the attempts of one worker process, so that of two attempts under one fence the later one is known.
    """

    step: str
    fence: int
    serial: int
    written: int
    began: int
    over: bool = False


class StreamWatcher(RecordStruct, frozen=True):
    """A reader that is notified of new items until this time."""

    id: str
    until: int


class StreamHead(RecordStruct, frozen=True):
    """A stream and its latest items, `parts`. `first` is the first offset that is kept, `next` that of the next item.

    `bytes` is the size of all items that are kept. `code_began` is the offset at which the current attempt of the
    workflow code began to write.
    """

    name: str
    first: int = 0
    next: int = 0
    bytes: int = 0
    parts: tuple[StreamPart, ...] = ()
    writers: tuple[StreamAttempt, ...] = ()
    code_began: int = 0
    watchers: tuple[StreamWatcher, ...] = ()

    @property
    def tail(self) -> int:
        """The offset of the first item that is in no chunk."""
        return self.parts[0].offset if self.parts else self.next


class StreamChunk(RecordStruct, frozen=True):
    """Older items of a stream."""

    parts: tuple[StreamPart, ...]


STREAM = RecordType("stream", StreamHead)
STREAM_CHUNK = RecordType("stream-chunk", StreamChunk)
STREAM_STEP = RecordType("stream-step", StreamStep)


class CodeItems(msgspec.Struct, frozen=True, kw_only=True):
    """Items that workflow code has written to one stream: the first is its item number `index` in this attempt."""

    name: str
    index: int
    values: tuple[str, ...]
    attempt: int = 1
    max_bytes: int


class Appended(NamedTuple):
    """A head to which items were added, and the chunks that were cut from it."""

    head: StreamHead
    chunks: tuple[StreamChunk, ...]


def head_key(run: Run, name: str) -> str:
    """The key of the head of a stream."""
    return own_key(run, name)


def step_key(run: Run, step: str) -> str:
    """The key of the record of a step that writes to streams of the run."""
    return own_key(run, step)


def chunk_key(head: str, offset: int) -> str:
    """The key of the chunk that begins with this offset."""
    return f"{head}/{offset:016d}"


def append(head: StreamHead, part: StreamPart) -> Appended:
    """Add items to a head, and cut off the chunks that are full."""
    parts, size = list(head.parts), sum(map(size_of, head.parts))
    chunks: list[StreamChunk] = []
    start = 0
    for place, value in enumerate(part.values):
        offset = part.offset + place
        size += _size(value)
        if size >= CHUNK_BYTES or (offset + 1) % CHUNK_ITEMS == 0:
            _fold(parts, part_of(part, start, place + 1))
            chunks.append(StreamChunk(parts=tuple(parts)))
            parts, size, start = [], 0, place + 1
    if start < len(part.values):
        _fold(parts, part_of(part, start, len(part.values)))
    after = replace(head, next=part.end, bytes=head.bytes + size_of(part), parts=tuple(parts))
    return Appended(after, tuple(chunks))


def size_of(part: StreamPart) -> int:
    """What a part counts for the bound of its stream."""
    return sum(map(_size, part.values))


def _size(value: str) -> int:
    return ITEM_BYTES + (len(value) if value.isascii() else len(value.encode()))


def _fold(parts: list[StreamPart], part: StreamPart) -> None:
    """Add a part, to the last one where the same attempt goes on."""
    last = parts[-1] if parts else None
    if last is not None and _continues(last, part):
        parts[-1] = replace(last, values=(*last.values, *part.values))
    else:
        parts.append(part)


def _continues(last: StreamPart, part: StreamPart) -> bool:
    tags = (last.step, last.attempt, last.generation, last.began)
    same = tags == (part.step, part.attempt, part.generation, part.began)
    return same and last.index + len(last.values) == part.index


def part_of(part: StreamPart, start: int, end: int) -> StreamPart:
    """Some of the items of a part."""
    if start == 0 and end == len(part.values):
        return part
    return replace(part, offset=part.offset + start, index=part.index + start, values=part.values[start:end])
