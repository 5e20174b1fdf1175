"""Who is at work and who waits, while a virtual clock is installed.

A call of a client is at work from its beginning to its end, except while it rests: while it waits for a flag, until a
moment of the virtual clock at the latest. Whoever is woken is at work at once, though its thread may not have noticed
yet, so that the clock never goes on too early.
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
    """A flow under way. It is at work unless it rests on the virtual clock."""

    def __init__(self, loop: asyncio.AbstractEventLoop | None, began: float) -> None:
        self.loop = loop
        self.began = began
        self.thread = threading.get_ident()
        self.resting = False


_current: ContextVar[TrackedFlow | None] = ContextVar("holdfast_visit", default=None)


class ClockWait:
    """Somebody who waits for a flag, until a moment of the virtual clock at the latest."""

    def __init__(self, clock: ClockWaiters, timeout: float | None, wake: Callable[[], bool]) -> None:
        self.clock = clock
        self.wake = wake  # False: whoever waited is gone
        self.deadline = None if timeout is None else clock.elapsed() + max(0.0, timeout)
        self.visit = _current.get()
        self.thread = threading.get_ident()
        self.rung = False

    def ring(self) -> None:
        """Wake whoever waits. From here on it is at work, though its thread may not have noticed yet."""
        with self.clock._changed:
            if self.rung:
                return
            self.rung = True
            self.clock._rise(self)
        self.wake()


class ClockWaiters:
    """The part of a virtual clock that knows who waits on it."""

    patience = 30.0
    """Real seconds that anything may take to come to rest."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._naps: set[ClockWait] = set()
        self._visits: set[TrackedFlow] = set()
        self._sent = 0  # parcels that nobody waits for, and that have not been answered
        self._stirs = 0
        self._owner = threading.get_ident()

    def elapsed(self) -> float:
        """Seconds on the clock that local deadlines live by."""
        raise NotImplementedError

    def _pass_the_time(self, nap: ClockWait, bell: threading.Lock) -> None:
        """The thread of the test waits itself."""
        raise NotImplementedError

    @contextmanager
    def _visit(self, loop: asyncio.AbstractEventLoop | None) -> Iterator[None]:
        visit = TrackedFlow(loop, self.elapsed())
        token = _current.set(visit)
        with self._changed:
            self._visits.add(visit)
            self._stir()
        try:
            yield
        finally:
            with self._changed:
                self._visits.discard(visit)
                self._stir()
            with suppress(ValueError):  # a coroutine that is collected ends in another context
                _current.reset(token)

    def _count(self, send: Callable[[Done], bool], done: Done | None) -> bool:
        open_ = [True]

        def close() -> None:
            with self._changed:
                if open_:
                    open_.clear()
                    self._sent -= 1
                    self._stir()

        def counted(outcomes: Any, error: Any) -> None:
            try:
                if done is not None:
                    done(outcomes, error)
            finally:
                close()

        with self._changed:
            self._sent += 1
            self._stir()
        sent = False
        try:
            sent = send(counted)
        finally:
            if not sent:
                close()
        return sent

    # -- waiting on it ----------------------------------------------------------------------------------------

    def _wait(self, flag: Notifier, timeout: float | None) -> bool:
        bell = threading.Lock()
        bell.acquire()

        def wake() -> bool:
            bell.release()
            return True

        nap = ClockWait(self, timeout, wake)
        if flag._watch(nap.ring):
            return True
        try:
            if self._lie_down(nap):
                if nap.thread == self._owner:
                    self._pass_the_time(nap, bell)
                else:
                    bell.acquire()
        finally:
            flag._unwatch(nap.ring)
            self._get_up(nap)
        return flag.is_set()

    async def _wait_async(self, flag: Notifier, timeout: float | None) -> bool:  # noqa: ASYNC109
        loop = asyncio.get_running_loop()
        future: asyncio.Future[None] = loop.create_future()
        waiting = weakref.ref(future)

        def wake() -> bool:
            found = waiting()
            if found is None:
                return False
            with suppress(RuntimeError):  # the loop is closed: nobody is left to be told
                found.get_loop().call_soon_threadsafe(finish, found)
            return True

        nap = ClockWait(self, timeout, wake)
        weakref.finalize(future, self._naps.discard, nap).atexit = False
        if flag._watch(nap.ring):
            return True
        # The loop keeps whoever waits alive, by a timer, and nothing else does.
        timers = [loop.call_later(FOREVER, finish, future)]

        def stands_still(stirs: int) -> None:
            if self._stirs != stirs:
                timers.append(loop.call_later(self.patience, stands_still, self._stirs))
            elif not future.done():
                future.set_exception(
                    TimeoutError(
                        f"a task waits while the clock of its test stands still, and nothing has happened for "
                        f"{self.patience:g} real seconds: let time pass beside it, by await clock.advance_async()"
                    )
                )

        try:
            if self._lie_down(nap):
                if nap.visit is not None and nap.thread == self._owner:
                    timers.append(loop.call_later(self.patience, stands_still, self._stirs))
                await future
            else:
                await asyncio.sleep(0)
        finally:
            for timer in timers:
                timer.cancel()
            flag._unwatch(nap.ring)
            self._get_up(nap)
        return flag.is_set()

    def _lie_down(self, nap: ClockWait) -> bool:
        """Begin to wait. False if there is nothing to wait for any more."""
        with self._changed:
            if nap.rung or (nap.deadline is not None and nap.deadline <= self.elapsed()):
                return False
            self._naps.add(nap)
            if nap.visit is not None:
                nap.visit.resting = True
            self._stir()
            return True

    def _get_up(self, nap: ClockWait) -> None:
        with self._changed:
            nap.rung = True
            self._rise(nap)

    def _rise(self, nap: ClockWait) -> None:
        self._naps.discard(nap)
        if nap.visit is not None:
            nap.visit.resting = False
        self._stir()

    def _stir(self) -> None:
        self._stirs += 1
        self._changed.notify_all()


def finish(future: asyncio.Future[None]) -> None:
    """Let whoever awaits it go on."""
    if not future.done():
        future.set_result(None)
