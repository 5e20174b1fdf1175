"""The streams that the attempts of a run's steps write: gathered in memory, and sent in small batches.

The first item goes at once; what is written while a batch is under way goes with the next one, at most every `PAUSE`
seconds. An attempt that has ended is closed first, so that a thread which goes on writes nothing; then the rest is
sent; and only when that is stored does the driver get the result. Nothing is sent after a driver has left its run.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Generator
from typing import Any

from msgspec.structs import replace

from ..commands.runs import WriteStream
from ..errors import HoldfastError, StoreUnavailable, StreamWriteRefused
from ..platform import elapsed
from ..rules.lock_outcomes import Outcome
from ..rules.runs.outcomes import StreamWritten
from ..rules.runs.record import Run
from ..runtime.notifier import Notifier, running_loop
from .context import StepCall
from .driver_host import RETRY_SECONDS, DriverHost
from .stream_writers import StreamWriter

PAUSE = 0.02
"""Seconds between two batches of one stream, at least."""
BATCH_ITEMS = 1_000
BATCH_BYTES = 262_144
"""A batch ends with the item that reaches this size."""
WAITING_ITEMS = 10_000
WAITING_BYTES = 1_048_576
"""From so many items or bytes on that are not sent yet, writers wait."""

Closed = Callable[[HoldfastError | None], None]
"""Called when everything that an attempt wrote is stored, or with the reason why it is not."""
_serials = itertools.count(1)


class StepStreams:
    """The streams of the steps of one run that are running in this process."""

    def __init__(self, host: DriverHost, run: Run, settled: Callable[[], None]) -> None:
        self._host, self._run, self._settled = host, run, settled
        self._attempts: dict[StepCall, AttemptStreams] = {}
        self._closing: set[AttemptStreams] = set()

    @property
    def busy(self) -> bool:
        """Whether items of attempts that have ended are not stored yet."""
        return bool(self._closing)

    def open(self, call: StepCall) -> AttemptStreams:
        """The streams of a new attempt of a step."""
        found = self._attempts[call] = AttemptStreams(self._host, self._run, call)
        return found

    def close(self, call: StepCall, then: Closed) -> None:
        """An attempt has ended: it writes nothing more. `then` is called when what it wrote is stored; perhaps now."""
        attempt = self._attempts.pop(call, None)
        if attempt is None or not attempt.used:
            if attempt is not None:
                attempt.end()
            then(None)
            return
        self._closing.add(attempt)

        def closed(error: HoldfastError | None) -> None:
            self._closing.discard(attempt)
            then(error)

        attempt.close(closed)

    def close_all(self) -> None:
        """Likewise for all attempts: the code of the run has ended."""
        for call, attempt in list(self._attempts.items()):
            attempt.end()
            if attempt.used:
                self.close(call, lambda _: self._host.later(0, self._settled))

    def leave(self) -> None:
        """The run is not driven here any more: send nothing, and raise in the bodies that write."""
        for attempt in (*self._attempts.values(), *self._closing):
            attempt.abort()
        self._attempts.clear()
        self._closing.clear()


class AttemptStreams:
    """The streams of one attempt of a step."""

    def __init__(self, host: DriverHost, run: Run, call: StepCall) -> None:
        self._host, self._run, self._step, self._attempt = host, run, call.id, call.attempts
        self._serial = next(_serials)
        self._buffers: dict[str, StreamBuffer] = {}
        self._lock = threading.Lock()
        self._over = False

    def __repr__(self) -> str:
        return f"<streams of {self._step}, attempt {self._attempt}>"

    @property
    def used(self) -> bool:
        """Whether the body has asked for a stream."""
        return bool(self._buffers)

    def stream(self, name: str, type: Any) -> StreamWriter:
        """A stream, for the body of the step."""
        with self._lock:
            buffer = self._buffers.get(name)
            if buffer is None:
                buffer = StreamBuffer(self._host, self._first_batch(name))
                if self._over:
                    buffer.abort(refused_error(self._run.id, self._step, name, "over"))
                else:
                    self._buffers[name] = buffer
        return StreamWriter(name, type, buffer, max_bytes=self._host.max_bytes)

    def _first_batch(self, name: str) -> WriteStream:
        return WriteStream(
            run=self._run.id,
            fence=self._run.fence,
            first=self._run.first,
            name=name,
            step=self._step,
            attempt=self._attempt,
            serial=self._serial,
            number=0,
            values=(),
            max_bytes=self._host.max_stream_bytes,
        )

    def end(self) -> None:
        """Raise in a body that asks for a stream from now on."""
        with self._lock:
            self._over = True

    def close(self, closed: Closed) -> None:
        """Take nothing more, and call `closed` when everything is stored."""
        self.end()
        left = len(self._buffers)
        failed: list[HoldfastError] = []

        def one_closed(error: HoldfastError | None) -> None:
            nonlocal left
            left -= 1
            failed.extend([] if error is None else [error])
            if not left:
                closed(failed[0] if failed else None)

        for name, buffer in list(self._buffers.items()):
            buffer.close(refused_error(self._run.id, self._step, name, "over"), one_closed)

    def abort(self) -> None:
        """Accept no further items and send none."""
        self.end()
        for name, buffer in list(self._buffers.items()):
            buffer.abort(refused_error(self._run.id, self._step, name, "left"))


class StreamBuffer:
    """The items of one attempt for one stream that are not stored yet."""

    def __init__(self, host: DriverHost, batch: WriteStream) -> None:
        self._host = host
        self._batch = batch  # the last one that was sent; its `number` is that of the next one while none is under way
        self._lock = threading.Lock()
        self._items: deque[str] = deque()
        self._bytes = 0
        self._room = Notifier()
        self._room.set()
        self._error: HoldfastError | None = None
        self._scheduled = False  # whether a batch is under way or will be sent
        self._pausing = False  # a batch will be sent after a pause
        self._aborted = False
        self._closed: Closed | None = None
        self._sent_at = -PAUSE

    # -- called by writers, from any thread -------------------------------------------------------------

    def put(self, text: str) -> None:
        """Take an item."""
        with self._lock:
            if self._error is not None:
                raise self._error
            self._items.append(text)
            self._bytes += len(text)
            if len(self._items) >= WAITING_ITEMS or self._bytes >= WAITING_BYTES:
                self._room.clear()
            begins, self._scheduled = not self._scheduled, True
        if begins:
            self._host.call_threadsafe(self._begin)

    def wait(self) -> None:
        """Block this thread while too many items wait to be sent, unless an event loop runs in it."""
        if not self._room.is_set() and running_loop() is None:
            self._room.wait()

    def wait_async(self) -> Generator[Any, None, None]:
        """Wait likewise on the running event loop."""
        if not self._room.is_set():
            yield from self._room.wait_async().__await__()

    # -- called on the engine's event loop --------------------------------------------------------------

    def close(self, error: HoldfastError, closed: Closed) -> None:
        """Take nothing more; call `closed` when everything is stored, or with the reason why it is not."""
        with self._lock:
            refused, self._error = self._error, error
            self._closed = closed
            under_way, self._scheduled = self._scheduled, True
            self._room.set()
        if refused is not None:
            closed(refused)
        elif self._pausing or not under_way:
            self._pausing = False
            self._send()

    def abort(self, error: HoldfastError) -> None:
        """Accept no further items and send none."""
        with self._lock:
            self._error, self._aborted = error, True
            self._items.clear()
            self._room.set()

    def _begin(self) -> None:
        """Send a batch, as soon as the pause after the last one is over. A closed buffer has no pause."""
        pause = self._sent_at + PAUSE - elapsed()
        if pause > 0 and self._closed is None:
            self._pausing = True
            self._host.later(pause, self._paused)
        else:
            self._send()

    def _paused(self) -> None:
        if self._pausing:  # it was not closed meanwhile
            self._pausing = False
            self._send()

    def _send(self) -> None:
        with self._lock:
            if self._aborted:
                return
            values = self._next_values()
            if len(self._items) < WAITING_ITEMS and self._bytes < WAITING_BYTES:
                self._room.set()
            over = self._closed is not None and not self._items
            if not values:
                self._scheduled = False
        self._batch = replace(self._batch, values=tuple(values), over=over)
        self._sent_at = elapsed()
        if values:
            self._host.send(self._batch, self._answered)
        elif self._closed is not None:  # everything is stored: nothing waits for the last batch (`over`)
            if self._batch.number:
                self._host.send(self._batch, lambda _: None)
            self._closed(None)

    def _next_values(self) -> list[str]:
        """Take the items of the next batch. Called with the lock held."""
        values: list[str] = []
        size = 0
        while self._items and len(values) < BATCH_ITEMS and size < BATCH_BYTES:
            values.append(self._items.popleft())
            size += len(values[-1])
        self._bytes -= size
        return values

    def _answered(self, answer: Outcome | HoldfastError) -> None:
        if self._aborted:
            return
        if isinstance(answer, StoreUnavailable):  # sent again unchanged: the store skips what it has
            self._host.emit("record_failed", run=self._batch.run, error=str(answer))
            self._host.later(RETRY_SECONDS, self._send_again)
            return
        if not isinstance(answer, StreamWritten):
            self._refused(answer)
            return
        over = self._batch.over
        self._batch = replace(self._batch, number=self._batch.number + len(self._batch.values))
        if over and self._closed is not None:
            self._closed(None)
            return
        with self._lock:
            self._scheduled = bool(self._items) or self._closed is not None
            more = self._scheduled
        if more:
            self._begin()

    def _send_again(self) -> None:
        if not self._aborted:
            self._host.send(self._batch, self._answered)

    def _refused(self, answer: Outcome | HoldfastError) -> None:
        batch = self._batch
        why = refused_error(batch.run, batch.step, batch.name, "refused")
        error = answer if isinstance(answer, HoldfastError) else why
        closed = self._closed
        self.abort(error)
        if closed is not None:
            closed(error)


def refused_error(run: str, step: str, name: str, why: str) -> StreamWriteRefused:
    """The error for an attempt of a step that may not write."""
    what = f"the step {step!r} of the run {run!r} cannot write to the stream {name!r}: "
    reasons = {
        "over": "this attempt of the step has ended, by its timeout or because its function has returned. The item was "
        "not written. Code that goes on in a thread should stop; what it does has no effect on the run.",
        "left": "this process does not drive the run any more. The item was not written, and items of this attempt "
        "that were not stored yet are not written either. Another worker repeats the step.",
        "refused": "another worker drives the run, or a later attempt of the step has begun. The items were not "
        "written. The result of this attempt will not be recorded.",
    }
    return StreamWriteRefused(what + reasons[why], run_id=run, stream=name)
