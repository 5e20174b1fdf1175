"""Streams of runs: what a run shows while it is under way, item by item, for readers that follow it.

Items come from attempts of steps (`write`), which are checked against the fence of the run and against later attempts
of the same step, whichever streams these have written to, and from workflow code (`write_from_code`), with the record
of the run that they follow from. `stream_records.py` says how items are kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from ..lock_outcomes import Outcome
from . import record as rule
from .helpers import holder_of, known
from .outcomes import RunRefused, StreamRefused, StreamSeen, StreamWritten
from .own_records import with_records
from .record import Run
from .repository import RunRepository
from .stream_records import (
    CHUNK_ITEMS,
    STREAM,
    STREAM_CHUNK,
    STREAM_STEP,
    CodeItems,
    StreamAttempt,
    StreamHead,
    StreamPart,
    StreamStep,
    StreamWatcher,
    append,
    chunk_key,
    head_key,
    part_of,
    size_of,
    step_key,
)

KIND = "streams"
"""The name under which a run notes that it has streams."""
PAGE_BYTES = 65_536
"""From so many bytes on, a page has no further chunk."""
WRITERS_KEPT = 16
"""How many attempts that write no more are remembered, so that a command of theirs is recognised."""
WATCHED_FOR = 30_000_000
"""Microseconds for which a reader is notified of new items, unless it registers again."""


# -- writing ------------------------------------------------------------------------------------------------------


def write(
    repo: RunRepository, now: int, *, run: str, fence: int, name: str, step: str, attempt: int, serial: int,
    number: int, values: Sequence[str], over: bool, max_bytes: int,
) -> Outcome:  # fmt: skip
    """Add the items of an attempt of a step. Items that are stored already are skipped."""
    found = known(repo, run)
    if found is None or found.status != "running" or found.fence != fence:
        return RunRefused(run=found, holder=holder_of(repo, now, found))
    present = repo.record(STREAM_STEP, step_key(found, step)) or StreamStep(fence=fence, serial=0)
    if present.fence == fence and present.serial > serial:
        return StreamRefused(why="superseded")
    key = head_key(found, name)
    before = repo.record(STREAM, key) or StreamHead(name=name)
    writer = _writer(before, fence=fence, step=step, serial=serial)
    if writer.over and number + len(values) <= writer.written:
        return _written(before)  # sent again
    if writer.over or number > writer.written:
        return StreamRefused(why="over" if writer.over else "unknown")
    fresh = tuple(values[writer.written - number :])
    began = writer.began if writer.written else before.next
    head = before
    if fresh:
        part = StreamPart(
            offset=before.next,
            step=step,
            attempt=attempt,
            generation=found.generation,
            began=began,
            index=writer.written,
            values=fresh,
        )
        head = _store(repo, found, before, part, max_bytes)
    if writer.written or fresh:
        writer = replace(writer, written=writer.written + len(fresh), began=began, over=over)
        head = replace(head, writers=_writers(head, writer))
        _put(repo, now, key, head)
    if fresh and present != (latest := StreamStep(fence=fence, serial=serial)):
        repo.put_record(STREAM_STEP, step_key(found, step), latest)
    return _written(head, _woken(before, now) if fresh else ())


def write_from_code(repo: RunRepository, now: int, run: Run, items: CodeItems) -> tuple[str, ...]:
    """Add the items of workflow code, in the step that records the run. Returns the readers to notify."""
    key = head_key(run, items.name)
    before = repo.record(STREAM, key)
    head = before or StreamHead(name=items.name)
    began = head.next if items.index == 0 or before is None else head.code_began
    part = StreamPart(
        offset=head.next,
        attempt=items.attempt,
        generation=run.generation,
        began=began,
        index=items.index,
        values=items.values,
    )
    after = _store(repo, run, head, part, items.max_bytes)
    _put(repo, now, key, replace(after, code_began=began))
    return _woken(head, now)


def _store(repo: RunRepository, run: Run, head: StreamHead, part: StreamPart, max_bytes: int) -> StreamHead:
    """Add items, write the chunks that are full, and remove the oldest ones where there are too many bytes."""
    key = head_key(run, head.name)
    after, chunks = append(head, part)
    for chunk in chunks:
        repo.put_record(STREAM_CHUNK, chunk_key(key, chunk.parts[0].offset), chunk)
    first, size = after.first, after.bytes
    while size > max_bytes and first < after.tail:
        oldest = repo.record(STREAM_CHUNK, chunk_key(key, first))
        if oldest is None:  # it was removed by hand
            first = after.tail
            size = sum(map(size_of, after.parts))
            break
        if oldest.parts[-1].end == after.next:  # the latest item is kept, however large it is
            break
        repo.put_record(STREAM_CHUNK, chunk_key(key, first), None)
        first, size = oldest.parts[-1].end, size - sum(map(size_of, oldest.parts))
    _mark(repo, run)
    return replace(after, first=first, bytes=size)


def _mark(repo: RunRepository, run: Run) -> None:
    """Note in the record of a run that it has streams, so that its purge removes them."""
    if KIND not in run.record_kinds:
        repo.save(with_records(repo.run(run.id) or run, KIND))


def _writer(head: StreamHead, *, fence: int, step: str, serial: int) -> StreamAttempt:
    """What the stream knows of an attempt; a new one, if this attempt has not written to it."""
    for one in head.writers:
        if (one.step, one.fence, one.serial) == (step, fence, serial):
            return one
    return StreamAttempt(step=step, fence=fence, serial=serial, written=0, began=head.next)


def _writers(head: StreamHead, writer: StreamAttempt) -> tuple[StreamAttempt, ...]:
    """The attempts to remember: those under the current fence, one for each step."""
    others = [one for one in head.writers if one.fence == writer.fence and one.step != writer.step]
    found = [*others, writer]
    spare = sum(one.over for one in found) - WRITERS_KEPT
    for one in [one for one in found if one.over][: max(0, spare)]:
        found.remove(one)
    return tuple(found)


def _put(repo: RunRepository, now: int, key: str, head: StreamHead) -> None:
    if any(watcher.until <= now for watcher in head.watchers):
        head = replace(head, watchers=tuple(watcher for watcher in head.watchers if watcher.until > now))
    repo.put_record(STREAM, key, head)


def _woken(head: StreamHead, now: int) -> tuple[str, ...]:
    return tuple(watcher.id for watcher in head.watchers if watcher.until > now)


def _written(head: StreamHead, woken: tuple[str, ...] = ()) -> StreamWritten:
    return StreamWritten(next=head.next, woken=woken)


# -- reading ------------------------------------------------------------------------------------------------------


def read(repo: RunRepository, *, run: str, name: str, after: int | None, limit: int, chunk: int = -1) -> StreamSeen:
    """Read the items after an offset, up to about `limit`; without one, from the first that is kept.

    `chunk` is where the chunk with the next item begins, if the reader knows it.
    """
    found = known(repo, run)
    if found is None:
        return StreamSeen(run=None)
    key = head_key(found, name)
    head = repo.record(STREAM, key) or StreamHead(name=name)
    start = head.first if after is None else after + 1
    if start < head.first:
        return StreamSeen(run=found, first=head.first, next=head.next, truncated=True)
    parts: list[StreamPart] = []
    items = size = 0
    at = start
    for one in _chunks(repo, key, head, at, chunk):
        for part in one:
            if part.end > at:
                parts.append(part_of(part, max(0, at - part.offset), len(part.values)))
                items, size = items + len(parts[-1].values), size + size_of(parts[-1])
        at = max(at, one[-1].end)
        if items >= limit or size >= PAGE_BYTES:
            break
    tail = min(head.tail, at)
    return StreamSeen(run=found, first=head.first, next=head.next, parts=tuple(parts), chunk=tail)


def watch(
    repo: RunRepository, now: int, *, run: str, name: str, after: int | None, limit: int, chunk: int = -1, id: str
) -> StreamSeen:
    """Read as `read` does; where there is nothing new, notify the reader `id` of new items and of the end."""
    seen = read(repo, run=run, name=name, after=after, limit=limit, chunk=chunk)
    if seen.run is None or not seen.run.living or seen.parts or seen.truncated:
        return seen
    key = head_key(seen.run, name)
    head = repo.record(STREAM, key) or StreamHead(name=name)
    gone = {watcher.id for watcher in head.watchers if watcher.until <= now}
    others = tuple(watcher for watcher in head.watchers if watcher.until > now and watcher.id != id)
    if len(others) >= rule.WATCHERS:
        return seen
    repo.put_record(STREAM, key, replace(head, watchers=(*others, StreamWatcher(id=id, until=now + WATCHED_FOR))))
    watchers = tuple(one for one in seen.run.watchers if one not in gone or one == id)
    if id not in watchers and len(watchers) < rule.WATCHERS:
        watchers = (*watchers, id)
    noted = with_records(replace(seen.run, watchers=watchers), KIND)
    if noted != seen.run:
        repo.save(noted)
    return replace(seen, registered=True)


def first_chunk(head: StreamHead, offset: int, hint: int) -> int:
    """Where to begin to look for the chunk with this offset: that chunk begins there or later."""
    if head.first <= hint <= offset:
        return hint
    return max(head.first, offset - offset % CHUNK_ITEMS)


def _chunks(
    repo: RunRepository, key: str, head: StreamHead, offset: int, hint: int
) -> Iterator[tuple[StreamPart, ...]]:
    """The parts of each chunk from this offset on, then those of the head. A chunk removed by hand is skipped."""
    at = head.tail if offset >= head.tail else first_chunk(head, offset, hint)
    while at < head.tail:
        chunk = repo.record(STREAM_CHUNK, chunk_key(key, at))
        if chunk is None and at == hint and at % CHUNK_ITEMS:
            hint, at = -1, first_chunk(head, offset, -1)
            continue
        if chunk is None:
            at += CHUNK_ITEMS - at % CHUNK_ITEMS
            continue
        at = chunk.parts[-1].end
        if at > offset:
            yield chunk.parts
    if head.parts and head.next > offset:
        yield head.parts
