"""Predicts which records a command about a stream will read: see `footprint.py`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress

from ..commands import runs as r
from ..errors import RecordUnreadable
from ..rules.runs.record import Run
from ..rules.runs.stream_records import (
    CHUNK_ITEMS,
    STREAM,
    STREAM_CHUNK,
    STREAM_STEP,
    CodeItems,
    StreamHead,
    StreamPart,
    append,
    chunk_key,
    head_key,
    step_key,
)
from ..rules.runs.streams import first_chunk
from .questions import Question, RecordAt, RunById

Questions = Iterator[Question]
Look = Callable[[Question], object]
"""The known answer to a question, or None."""
CHUNKS_FORESEEN = 16
"""How many chunks of a page are expected: those of a page of short items."""


def footprint(command: r.WriteStream | r.ReadStream | r.WatchStream, look: Look) -> Questions:
    """What a command about one stream will probably read."""
    yield RunById(command.run)
    run = look(RunById(command.run))
    if not isinstance(run, Run):
        run = Run(id=command.run, type="", created_at=0, first=command.first)
    key = head_key(run, command.name)
    yield RecordAt(STREAM.name, key)
    head = _head(key, command.name, look)
    if isinstance(command, r.WriteStream):
        yield RecordAt(STREAM_STEP.name, step_key(run, command.step))
        part = StreamPart(offset=head.next, began=head.next, values=command.values)
        yield from _written(key, head, part, command.max_bytes, look)
    else:
        yield from _read(key, head, command, look)


def added(run: Run, items: CodeItems, look: Look) -> Questions:
    """What a record of a run will probably read because of the items that its code has written."""
    key = head_key(run, items.name)
    yield RecordAt(STREAM.name, key)
    head = _head(key, items.name, look)
    part = StreamPart(offset=head.next, began=head.next, values=items.values)
    yield from _written(key, head, part, items.max_bytes, look)


def _head(key: str, name: str, look: Look) -> StreamHead:
    text = look(RecordAt(STREAM.name, key))
    with suppress(RecordUnreadable):  # the rule will raise it
        if isinstance(text, str):
            return STREAM.decode(key, text)
    return StreamHead(name=name)


def _written(key: str, head: StreamHead, part: StreamPart, max_bytes: int, look: Look) -> Questions:
    """The chunks that are cut off and, where there are too many bytes, the oldest ones."""
    after, chunks = append(head, part)
    for chunk in chunks:
        yield RecordAt(STREAM_CHUNK.name, chunk_key(key, chunk.parts[0].offset))
    if after.bytes > max_bytes:
        yield from _chain(key, head.first, after.tail, look)


def _read(key: str, head: StreamHead, command: r.ReadStream | r.WatchStream, look: Look) -> Questions:
    """The chunks of a page."""
    offset = head.first if command.after is None else command.after + 1
    if head.first <= offset < head.tail:
        yield from _chain(key, first_chunk(head, offset, command.chunk), head.tail, look)


def _chain(key: str, at: int, end: int, look: Look) -> Questions:
    """The chunks from this one on, as far as they are known, and those that would follow if all items are short."""
    for _ in range(CHUNKS_FORESEEN):
        if at >= end:
            return
        question = RecordAt(STREAM_CHUNK.name, chunk_key(key, at))
        yield question
        text = look(question)
        with suppress(RecordUnreadable):
            if isinstance(text, str):
                at = STREAM_CHUNK.decode(key, text).parts[-1].end
                continue
        at += CHUNK_ITEMS - at % CHUNK_ITEMS
