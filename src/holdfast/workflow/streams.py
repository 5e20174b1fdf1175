"""Readers of streams: `engine.stream(run_id, name)` and `client.runs.stream(...)`, which follow a run to its end.

A reader reads page by page and, where it has seen everything, is notified of new items and of the end; a store without
notifications is polled. It follows one run: all its generations, and under its new id if another run replaces it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from ..commands.runs import ReadStream, WatchStream
from ..errors import InvalidOption, StreamTruncated
from ..platform import elapsed
from ..rules.runs.outcomes import StreamSeen
from ..rules.runs.record import Run
from ..rules.runs.streams import WATCHED_FOR
from ..runtime.codec import decode_value
from ..runtime.flows import Flow, Wait, send
from ..runtime.notifier import Notifier
from ..runtime.runners import Batchers, run, run_async
from ..validation import MICROSECONDS, checked_key
from .queries import unknown_run

if TYPE_CHECKING:
    from .queries import RunQueries

T = TypeVar("T")

SHORTEST_POLL = 0.05
LONGEST_POLL = 0.25
"""Seconds between two reads of a reader without notifications; the pause doubles while nothing comes."""
LONGEST_WAIT = 15.0
"""Seconds until a reader with notifications reads again, because one may have been lost; the first wait is a second."""
REFRESHED_AFTER = WATCHED_FOR / MICROSECONDS / 2


class StreamItem(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """An item of a stream. Pass its `offset` as `after` to continue behind it.

    `step` is the step that has written it, None for workflow code; `attempt` is the attempt of the step, or of the
    workflow. `began` is the offset of the first item of that attempt, and `index` counts its items before this one.
    """

    offset: int
    value: T
    step: str | None
    attempt: int
    generation: int
    began: int
    index: int

    @property
    def begins(self) -> bool:
        """Whether it is the first item of its attempt: it replaces what earlier attempts of the step wrote."""
        return self.offset == self.began

    def replaces(self, earlier: StreamItem[Any]) -> bool:
        """Whether an earlier item does not count any more, because what wrote it was repeated.

        >>> items = {"step": "answer", "attempt": 1, "generation": 1}
        >>> lost = StreamItem(offset=0, value="Hel", began=0, index=0, **items)
        >>> again = StreamItem(offset=1, value="Hello", began=1, index=0, **items)
        >>> again.replaces(lost), lost.replaces(again)
        (True, False)
        """
        if earlier.offset >= self.offset or (earlier.step, earlier.generation) != (self.step, self.generation):
            return False
        return earlier.offset < self.began or earlier.index >= self.index


class StreamReader:
    """Reads one stream, page by page."""

    def __init__(self, queries: RunQueries, run_id: str, name: str, *, after: int | None, type: Any) -> None:
        if after is not None and (not isinstance(after, int) or isinstance(after, bool) or after < -1):
            raise InvalidOption(f"after={after!r} is no offset of an item: give that of the last item that was read")
        self._runtime = queries.client.runtime
        self._run = self._asked = checked_key(run_id, what="run id")
        self._name, self._after = checked_key(name, what="stream name"), after
        self._type = Any if type is None else type
        self._first: int | None = None  # the generation with which the run began that is read
        self._chunk = -1
        self._seen_all = False  # whether the last page was the last one that there was
        self._watches_until = 0.0  # until then no other registration is needed
        self._registered = False
        self._pause = 0.0
        self._id = self._runtime.new_attempt()
        self._flag: Notifier | None = None

    def close(self) -> None:
        """Be notified no more."""
        self._runtime.unflag(self._id)

    def next_page(self) -> Flow[list[StreamItem[Any]] | None]:
        """The next items, as soon as there are any; None at the end of the run."""
        watch, flag = self._runtime.watched(), self._flag
        if flag is None:
            flag = self._flag = self._runtime.flag(self._id)
        notifies = self._runtime.store.capabilities.notifies
        while True:
            flag.clear()
            notified = notifies and not watch.polls
            registers = notified and self._seen_all and elapsed() >= self._watches_until
            seen = yield from self._read(registers=registers)
            if seen.run is None:
                raise unknown_run(self._asked)
            if self._is_another(seen.run):
                continue
            if seen.truncated:
                raise self._truncated(seen.first)
            self._seen_all = not seen.parts or seen.parts[-1].end >= seen.next
            if seen.parts:
                self._pause = 0.0
                return self._items(seen)
            if not seen.run.living:
                return None
            if registers:
                self._registered, self._watches_until = seen.registered, elapsed() + REFRESHED_AFTER
            elif notified and elapsed() >= self._watches_until:
                continue
            yield Wait(flag, self._next_pause(registered=notified and self._registered))

    def _read(self, *, registers: bool) -> Flow[StreamSeen]:
        where: dict[str, Any] = {"run": self._run, "name": self._name, "after": self._after}
        where |= {"first": self._first or 1, "chunk": self._chunk}
        command = WatchStream(id=self._id, **where) if registers else ReadStream(**where)
        outcome, _ = yield from send(command)
        assert isinstance(outcome, StreamSeen)  # noqa: S101
        return outcome

    def _is_another(self, found: Run) -> bool:
        """Whether this is not the run that was read first, because that was replaced: it is kept under another id."""
        if self._first is None:
            self._first = found.first
        if found.first <= self._first:
            return False
        if not found.replaces:  # that was purged
            raise unknown_run(self._asked)
        self._run = found.replaces
        self._seen_all, self._watches_until = False, 0.0
        return True

    def _next_pause(self, *, registered: bool) -> float:
        shortest, longest = (1.0, LONGEST_WAIT) if registered else (SHORTEST_POLL, LONGEST_POLL)
        self._pause = max(shortest, min(2 * self._pause, longest))
        return self._pause

    def _items(self, seen: StreamSeen) -> list[StreamItem[Any]]:
        what = f"an item of the stream {self._name!r} of the run {self._asked!r}"
        items = [
            StreamItem(
                offset=part.offset + place,
                value=decode_value(text, self._type, what=what),
                step=part.step or None,
                attempt=part.attempt,
                generation=part.generation,
                began=part.began,
                index=part.index + place,
            )
            for part in seen.parts
            for place, text in enumerate(part.values)
        ]
        self._after, self._chunk = items[-1].offset, seen.chunk
        return items

    def _truncated(self, first: int) -> StreamTruncated:
        return StreamTruncated(
            f"the items after offset {self._after} of the stream {self._name!r} of the run {self._asked!r} are not "
            f"kept any more: the first one that is kept has offset {first}. Nothing else is lost. Read on with "
            f"after={first - 1}, or keep more with Engine(max_stream_bytes=...).",
            run_id=self._asked,
            stream=self._name,
            first=first,
        )


def read(reader: StreamReader, batchers: Batchers) -> Generator[StreamItem[Any], None, None]:
    """All items, in this thread."""
    try:
        while (page := run(reader.next_page(), batchers)) is not None:
            yield from page
    finally:
        reader.close()


async def read_async(reader: StreamReader, batchers: Batchers) -> AsyncGenerator[StreamItem[Any], None]:
    """All items, on this event loop."""
    try:
        while (page := await run_async(reader.next_page(), batchers)) is not None:
            for item in page:
                yield item
    finally:
        reader.close()
