"""Tracks which calls are busy and which wait, while a virtual clock is installed.

A call of a client is busy from its start to its end, except while it waits for a flag, with a deadline on the virtual
clock or without one. A call that is notified counts as busy at once, although its thread may not run yet: so the clock
never moves on too early.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any

from ..runtime.notifier import Notifier
from ..runtime.requests import Done

FOREVER = 365 * 86_400.0


class TrackedFlow:
    """A flow that is being executed. It is busy unless it waits on the virtual clock."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None, began: float) -> None:
        self.loop = loop
        self.began = began
        self.thread = threading.get_ident()
        self.waiting = False


_current: ContextVar[TrackedFlow | None] = ContextVar("holdfast_flow", default=None)


class ClockWait:
    """One wait for a flag, until a deadline on the virtual clock at the latest."""

    def __init__(self, clock: ClockWaiters, timeout: float | None, wake: Callable[[], bool]) -> None:
        self.clock = clock
        self.wake = wake  # returns False if the waiter no longer exists
        self.deadline = None if timeout is None else clock.elapsed() + max(0.0, timeout)
        self.flow = _current.get()
        self.thread = threading.get_ident()
        self.notified = False

    def notify(self) -> None:
        """Wake the waiter. It counts as busy from here on, although its thread may not run yet."""
        with self.clock._changed:
            if self.notified:
                return
            self.notified = True
            self.clock._remove_wait(self)
        self.wake()


class ClockWaiters:
    """The part of a virtual clock that tracks its waiters."""

    patience = 30.0
    """Real seconds that a call may be busy before the clock raises `TimeoutError`."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waits: set[ClockWait] = set()
        self._flows: set[TrackedFlow] = set()
        self._sent = 0  # commands without a waiting caller that have no outcome yet
        self._change_count = 0
        self._test_thread = threading.get_ident()

    def elapsed(self) -> float:
        """The time for local deadlines, in seconds."""
        raise NotImplementedError

    def _advance_while_waiting(self, clock_wait: ClockWait, woken: threading.Lock) -> None:
        """Move the clock while the thread of the test itself waits."""
        raise NotImplementedError

    @contextmanager
    def _track(self, loop: asyncio.AbstractEventLoop | None) -> Iterator[None]:
        flow = TrackedFlow(loop, self.elapsed())
        token = _current.set(flow)
        with self._changed:
            self._flows.add(flow)
            self._count_change()
        try:
            yield
        finally:
            with self._changed:
                self._flows.discard(flow)
                self._count_change()
            with suppress(ValueError):  # a garbage-collected coroutine ends in another context
                _current.reset(token)

    def _count(self, send: Callable[[Done], bool], done: Done | None) -> bool:
        open_ = [True]

        def close() -> None:
            with self._changed:
                if open_:
                    open_.clear()
                    self._sent -= 1
                    self._count_change()

        def counted(outcomes: Any, error: Any) -> None:
            try:
                if done is not None:
                    done(outcomes, error)
            finally:
                close()

        with self._changed:
            self._sent += 1
            self._count_change()
        sent = False
        try:
            sent = send(counted)
        finally:
            if not sent:
                close()
        return sent

    # -- waiting ----------------------------------------------------------------------------------------------

    def _wait(self, flag: Notifier, timeout: float | None) -> bool:
        woken = threading.Lock()
        woken.acquire()

        def wake() -> bool:
            woken.release()
            return True

        clock_wait = ClockWait(self, timeout, wake)
        if flag._watch(clock_wait.notify):
            return True
        try:
            if self._begin_wait(clock_wait):
                if clock_wait.thread == self._test_thread:
                    self._advance_while_waiting(clock_wait, woken)
                else:
                    woken.acquire()
        finally:
            flag._unwatch(clock_wait.notify)
            self._end_wait(clock_wait)
        return flag.is_set()

    async def _wait_async(self, flag: Notifier, timeout: float | None) -> bool:  # noqa: ASYNC109
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        waiting = weakref.ref(future)

        def wake() -> bool:
            found = waiting()
            if found is None:
                return False
            with suppress(RuntimeError):  # the loop is closed, so no task is left to wake
                found.get_loop().call_soon_threadsafe(finish, found)
            return True

        clock_wait = ClockWait(self, timeout, wake)
        weakref.finalize(future, self._waits.discard, clock_wait).atexit = False
        if flag._watch(clock_wait.notify):
            return True
        # Only this timer of the loop references the future, so closing the loop lets the waiter be collected.
        timers = [loop.call_later(FOREVER, finish, future)]

        def check_progress(changes_seen: int) -> None:
            if self._change_count != changes_seen:
                timers.append(loop.call_later(self.patience, check_progress, self._change_count))
            elif not future.done():
                future.set_exception(
                    TimeoutError(
                        f"a task waits while the virtual clock stands still, and nothing has happened for "
                        f"{self.patience:g} real seconds: call await clock.advance_async() in another task"
                    )
                )

        try:
            if self._begin_wait(clock_wait):
                if clock_wait.flow is not None and clock_wait.thread == self._test_thread:
                    timers.append(loop.call_later(self.patience, check_progress, self._change_count))
                await future
            else:
                await asyncio.sleep(0)
        finally:
            for timer in timers:
                timer.cancel()
            flag._unwatch(clock_wait.notify)
            self._end_wait(clock_wait)
        return flag.is_set()

    def _begin_wait(self, clock_wait: ClockWait) -> bool:
        """Begin to wait. Returns False if the wait is already over."""
        with self._changed:
            if clock_wait.notified or (clock_wait.deadline is not None and clock_wait.deadline <= self.elapsed()):
                return False
            self._waits.add(clock_wait)
            if clock_wait.flow is not None:
                clock_wait.flow.waiting = True
            self._count_change()
            return True

    def _end_wait(self, clock_wait: ClockWait) -> None:
        with self._changed:
            clock_wait.notified = True
            self._remove_wait(clock_wait)

    def _remove_wait(self, clock_wait: ClockWait) -> None:
        self._waits.discard(clock_wait)
        if clock_wait.flow is not None:
            clock_wait.flow.waiting = False
        self._count_change()

    def _count_change(self) -> None:
        self._change_count += 1
        self._changed.notify_all()


def finish(future: asyncio.Future[None]) -> None:
    """Complete the future, unless it is done already."""
    if not future.done():
        future.set_result(None)
