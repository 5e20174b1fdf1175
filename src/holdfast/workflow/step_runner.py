"""Runs the bodies of steps, with their timeouts and retries.

An async body runs on the engine's own event loop; any other body runs in a thread, and its time begins when a thread is
free. In the body, `current_step()`
gives the idempotency key of the step. A step that fails is retried according to its `Retry`. Each failed attempt is
recorded, so that a crash does not reset the count.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import copy_context
from functools import partial
from typing import Any, NamedTuple

import msgspec

from ..commands.runs import RecordRun
from ..errors import HoldfastError, InvalidValue, StepTimeout
from ..rules.lock_outcomes import Outcome
from ..rules.runs.record import Run
from ..runtime.codec import encode_value
from . import journal as j
from .context import StepCall, StepInfo, step_scope
from .definition import ONCE
from .driver_host import DriverHost
from .failures import failure_of
from .retrying import next_attempt, policy_of_step
from .step_heartbeats import AttemptHeartbeats, StepHeartbeats, Stored
from .step_streams import AttemptStreams, StepStreams
from .step_threads import ThreadAttempt, without_stop_iteration
from .stream_writers import PendingItem

Report = Callable[[StepCall, "j.StepDone | j.StepLost | j.Attempted"], None]


class TransactionResult(NamedTuple):
    """The outcome of a transaction's record, or its exception, or None if the store could not be reached."""

    answer: Outcome | BaseException | None
    entry: j.StepDone | None


class StepRunner:
    """The steps of one run that are running in this process."""

    def __init__(
        self, host: DriverHost, run: Run, heartbeats: StepHeartbeats, report: Report, settled: Callable[[], None]
    ) -> None:
        self._host, self._run, self._report, self._settled = host, run, report, settled
        self._heartbeats = heartbeats
        self._cancelled = False
        self.running: set[StepCall] = set()
        self._streams = StepStreams(host, run, settled)
        self._threads: dict[asyncio.Future[Any], StepCall] = {}

    def begin(self, call: StepCall) -> None:
        """Begin an attempt of a step; one with a `heartbeat_timeout` when its first heartbeat is stored."""
        if call.future.done():  # the code does not wait for it any more
            return
        call.attempts += 1
        self.running.add(call)
        heartbeats = self._heartbeats.open(call)
        if call.heartbeat_timeout is None:
            self._start(call, heartbeats)
        else:
            heartbeats.begin(partial(self._first_stored, call, heartbeats))

    def _first_stored(self, call: StepCall, heartbeats: AttemptHeartbeats, refused: HoldfastError | None) -> None:
        """The first heartbeat of an attempt is stored, or refused."""
        if call not in self.running:
            return
        error: BaseException | None = refused
        if error is None and not self._cancelled and not call.future.done():
            try:
                self._start(call, heartbeats)
            except Exception as failed:  # for example, no thread can be started
                error = failed
            else:
                return
        body: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if error is None:
            body.cancel()
        else:
            body.set_exception(error)
        self._ended(call, body)

    def _start(self, call: StepCall, heartbeats: AttemptHeartbeats) -> None:
        """Run the body of an attempt."""
        function = self._host.body_of(call)
        body = partial(function, *call.args, **call.options)
        scope = copy_context()
        scope.run(step_scope, self._info(call, self._streams.open(call), heartbeats))
        if is_async(function):
            run = _without_exit(body) if call.longest is None else _timed(body, call, heartbeats)
            call.running = self._host.spawn(run, scope)
        else:
            attempt = ThreadAttempt(self._host, body, scope)
            self._threads[attempt.thread] = call
            attempt.thread.add_done_callback(self._thread_ended)
            if call.longest is None:
                call.running = asyncio.shield(attempt.thread)  # a thread cannot be cancelled
                call.running.add_done_callback(lambda _: attempt.end())
            else:
                call.running = self._host.spawn(_timed_thread(attempt, call, heartbeats), scope.copy())
        call.running.add_done_callback(partial(self._ended, call))

    def transact(self, call: StepCall, record: RecordRun, done: Callable[[StepCall, TransactionResult], None]) -> None:
        """Begin an attempt of a transaction. Its journal entry is committed together with its writes."""
        scope = copy_context()
        scope.run(step_scope, self._info(call))
        entries: list[j.StepDone] = []

        def work(connection: Any) -> RecordRun:
            entry = self.done(call, without_stop_iteration(partial(self._host.body_of(call), connection, *call.args)))
            entries[:] = [entry]
            return msgspec.structs.replace(record, entries=(j.encode_entry(entry),))

        def answered(future: asyncio.Future[Outcome | None]) -> None:
            error = asyncio.CancelledError() if future.cancelled() else future.exception()
            answer = future.result() if error is None else error
            done(call, TransactionResult(answer, entries[0] if entries else None))

        self._host.transact(work, scope).add_done_callback(answered)

    @property
    def busy(self) -> bool:
        """Whether a body is running, also one in a thread for which the code does not wait any more.

        The thread of a step whose time is up does not count: it cannot be stopped, and may never end.
        """
        return bool(self.running or self._threads)

    def cancel(self) -> None:
        """Cancel the bodies that are running. Those in threads continue: `settled` is called at their end."""
        self._cancelled = True
        for call in list(self.running):
            if call.running is not None:
                call.running.cancel()
        for thread, call in self._threads.items():
            if call.longest is not None:
                self._host.later(call.longest, partial(self._thread_ended, thread))

    def _thread_ended(self, thread: asyncio.Future[Any]) -> None:
        if self._threads.pop(thread, None) is not None:
            self._settled()
        if thread.done():
            _ignore_exception(thread)

    def _info(
        self, call: StepCall, streams: AttemptStreams | None = None, heartbeats: AttemptHeartbeats | None = None
    ) -> StepInfo:
        return StepInfo(self._run.id, call.id, call.attempts, self._run.generation, streams, heartbeats)

    @property
    def streaming(self) -> bool:
        """Whether items that steps have written to streams are not stored yet, though the steps have ended."""
        return self._streams.busy

    def leave(self) -> None:
        """Stop, and send nothing more."""
        self._streams.leave()
        self._heartbeats.leave()
        self.stop()

    def stop(self) -> None:
        """Cancel the steps, and ignore the results of those that cannot be stopped."""
        self._streams.close_all()
        self._heartbeats.stop()
        for call in list(self.running):
            self.running.discard(call)
            if call.running is not None:
                call.running.cancel()

    def _ended(self, call: StepCall, body: asyncio.Future[Any]) -> None:
        if call not in self.running:
            _ignore_exception(body)
        else:
            self._streams.close(call, partial(self._streams_stored, call, body))

    def _streams_stored(self, call: StepCall, body: asyncio.Future[Any], refused: HoldfastError | None) -> None:
        """Everything that an attempt has written to streams is stored, unless the store has refused it."""
        failed = refused is not None or body.cancelled() or body.exception() is not None
        then: Stored = lambda error: self._stored(call, body, refused or error)  # noqa: E731
        self._heartbeats.close(call, then, failed=failed)

    def _stored(self, call: StepCall, body: asyncio.Future[Any], refused: HoldfastError | None) -> None:
        """Everything that an attempt has sent is stored, unless the store has refused it."""
        if call not in self.running:
            _ignore_exception(body)
            self._settled()
            return
        self.running.discard(call)
        if call.longest is not None and not body.cancelled() and isinstance(body.exception(), StepTimeout):
            self._threads = {thread: one for thread, one in self._threads.items() if one is not call}
        if call.future.done():  # the code does not wait for it, but it is not running any more
            self._heartbeats.ended(call.id)
            _ignore_exception(body)
            self._settled()
            return
        error = asyncio.CancelledError("the step was cancelled") if body.cancelled() else body.exception()
        error = error or refused
        if error is None:
            self.succeeded(call, body.result())
        else:
            self.failed(call, error)

    def succeeded(self, call: StepCall, value: Any) -> None:
        """Report a result, or a failure if the result cannot be recorded."""
        try:
            entry = self.done(call, value)
        except InvalidValue as unfit:
            self.failed(call, unfit)
        else:
            self._report(call, entry)

    def done(self, call: StepCall, value: Any) -> j.StepDone:
        """The journal entry of a result."""
        if isinstance(value, PendingItem):
            raise InvalidValue(
                f"the result of the step {call.id!r} is what write() of a stream has returned, which is no value. The "
                "item was written, and the step has no result. Do not return what write() returns; in an async step, "
                "await it"
            )
        text = encode_value(
            value, call.output, what=f"the result of the step {call.id!r}", max_bytes=self._host.max_bytes
        )
        return j.StepDone(at=self._host.now(), id=call.id, args=call.arguments, value=msgspec.Raw(text.encode()))

    def failed(self, call: StepCall, error: BaseException) -> None:
        """Report a failed attempt, which is retried, or the failure of the step."""
        now = self._host.now()
        final = isinstance(error, InvalidValue | asyncio.CancelledError)
        retry = ONCE if final else policy_of_step(call.retry, error)
        delay, error = next_attempt(retry, error, call.attempts, self._host.random())
        if delay is None:
            self._report(
                call,
                j.StepLost(at=now, id=call.id, args=call.arguments, attempts=call.attempts, error=failure_of(error)),
            )
            return
        again_at = now + round(delay * 1_000_000)
        self._report(
            call,
            j.Attempted(at=now, id=call.id, attempts=call.attempts, again_at=again_at, error=failure_of(error)),
        )


def is_async(function: Any) -> bool:
    """Whether a function returns a coroutine."""
    code = getattr(function, "__code__", None)
    return bool(code is not None and code.co_flags & inspect.CO_COROUTINE) or inspect.iscoroutinefunction(function)


async def _without_exit(body: Callable[[], Awaitable[Any]]) -> Any:
    """Convert `SystemExit` of a step into a failure, as it is in a thread: a step must not end the process."""
    try:
        return await body()
    except SystemExit as error:
        raise RuntimeError(f"the step tried to end the process: {error!r}") from error


async def _timed(body: Callable[[], Awaitable[Any]], call: StepCall, heartbeats: AttemptHeartbeats) -> Any:
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(call.timeout) as limit, asyncio.timeout(None) as silence:
            heartbeats.watch(lambda: _expire(silence, loop.time()))
            return await _without_exit(body)
    except TimeoutError as error:
        if silence.expired():
            raise StepTimeout(
                f"the step {call.id!r} sent no heartbeat for {call.heartbeat_timeout:g} s (heartbeat_timeout)"
            ) from error
        if limit.expired():
            raise StepTimeout(f"the step {call.id!r} took longer than {call.timeout:g} s") from error
        raise


async def _timed_thread(attempt: ThreadAttempt, call: StepCall, heartbeats: AttemptHeartbeats) -> Any:
    """Wait for a thread without counting that time, and then for the body."""
    try:
        heartbeats.wait(attempt.refuse)
        await attempt.begun
        return await _timed(partial(asyncio.shield, attempt.thread), call, heartbeats)
    finally:
        attempt.end()


def _expire(timeout: asyncio.Timeout, now: float) -> None:
    """End a block now, unless it has just ended."""
    with suppress(RuntimeError):
        timeout.reschedule(now)


def _ignore_exception(body: asyncio.Future[Any]) -> None:
    """Retrieve an exception that is not used, so that asyncio does not log it."""
    if not body.cancelled():
        body.exception()
