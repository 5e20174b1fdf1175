"""The event loop of workflow code: a queue of what is ready, and timers that are part of the history.

Plain asyncio tasks and futures run on it, in the same order in every life of a run: nothing happens here by itself.
Whoever drives the run delivers one thing at a time and lets the loop run until it is quiet. Time stands still in
between. Sockets, threads and subprocesses are not for workflow code: they raise what to do instead.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import sys
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context
from typing import Any, NoReturn, TypeVar

from ..errors import NotInWorkflow

T = TypeVar("T")

MAX_TURNS = 1_000_000
"""Callbacks that may follow one delivery; a workflow that needs more is spinning."""

MOST_TURNS_OUT = 10_000
"""Those of code whose run is left: what swallows everything and goes on is left as it is."""

_log = logging.getLogger("holdfast.workflow")


class _Numbered:
    """Things whose hash is their number, so that a set of them has the same order in every life."""

    _number: int

    def __hash__(self) -> int:
        return self._number


class WorkflowFuture(_Numbered, asyncio.Future[Any]):
    """A future of workflow code."""

    def __init__(self, *, loop: WorkflowLoop) -> None:
        self._number = loop.next_number()
        super().__init__(loop=loop)


class WorkflowTask(_Numbered, asyncio.Task[Any]):
    """A task of workflow code."""

    def __init__(self, coro: Coroutine[Any, Any, Any], *, loop: WorkflowLoop, **options: Any) -> None:
        self._number = loop.next_number()
        if options.get("name") is None:
            options["name"] = f"task-{self._number}"
        super().__init__(coro, loop=loop, **options)


class WorkflowTimer(asyncio.TimerHandle):
    """A timer with the number under which its end is journaled."""

    __slots__ = ("number",)

    number: int


class WorkflowLoop(asyncio.AbstractEventLoop):
    """A deterministic loop. `now` is the time of the last delivery, in microseconds since 1970."""

    deterministic = True
    """What speaks to a store refuses to do so on such a loop."""

    def __init__(self, now: int) -> None:
        self.now = now
        self.timers: dict[int, WorkflowTimer] = {}
        self.faults: list[BaseException] = []
        self._order: list[tuple[float, int]] = []
        self._ready: deque[asyncio.Handle] = deque()
        self._tasks: set[WorkflowTask] = set()
        self._timer_numbers = 0
        self._numbers = 0
        self._closed = False

    def next_number(self) -> int:
        """The next number of a task or future."""
        self._numbers += 1
        return self._numbers

    # -- for the driver ---------------------------------------------------------------------------------

    def run_until_quiet(self, most: int = MAX_TURNS) -> None:
        """Run what is ready, and what becomes ready by it, until there is nothing. Never call it within a task."""
        before = events._get_running_loop()  # noqa: SLF001
        hooks = sys.get_asyncgen_hooks()
        ready = self._ready
        events._set_running_loop(self)  # noqa: SLF001
        sys.set_asyncgen_hooks(None, None)
        try:
            turns = 0
            while ready:
                handle = ready.popleft()
                if not handle._cancelled:  # noqa: SLF001
                    with suppress(SystemExit):  # its task has failed with it: no workflow ends the process
                        handle._run()  # noqa: SLF001
                    turns += 1
                    if turns > most:
                        raise NotInWorkflow("workflow code spins: it never waits for anything that takes time")
        finally:
            sys.set_asyncgen_hooks(*hooks)
            events._set_running_loop(before)  # noqa: SLF001

    def next_timer(self) -> WorkflowTimer | None:
        """The timer that ends first; of two with the same end the one that was begun first."""
        order, timers = self._order, self.timers
        while order and order[0][1] not in timers:
            heapq.heappop(order)
        return timers[order[0][1]] if order else None

    def fire(self, number: int) -> bool:
        """End a timer. False if there is none with this number."""
        timer = self.timers.pop(number, None)
        if timer is None:
            return False
        self._ready.append(timer)
        return True

    def abandon(self) -> None:
        """Leave the run: everything that is under way is told so, and nothing of it is waited for."""
        for _ in range(2):  # once more for those who went on regardless
            for task in sorted(self._tasks, key=hash):
                task.cancel()
            try:
                self.run_until_quiet(MOST_TURNS_OUT)
            except Exception:
                _log.exception("workflow code failed while its run was left")
            if not self._tasks:
                break
        for task in self._tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001
        self._tasks.clear()
        self.timers.clear()
        self._ready.clear()
        self._closed = True

    # -- for asyncio ------------------------------------------------------------------------------------

    def time(self) -> float:
        """Workflow time, in seconds."""
        return self.now / 1_000_000

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Run this after what is ready already."""
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Run this after so many seconds of workflow time: a durable timer."""
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Run this at a moment of workflow time: a durable timer."""
        self._timer_numbers += 1
        timer = WorkflowTimer(when, callback, args, self, context)
        timer.number = self._timer_numbers
        self.timers[timer.number] = timer
        heapq.heappush(self._order, (when, timer.number))
        return timer

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        if isinstance(handle, WorkflowTimer):
            self.timers.pop(handle.number, None)

    def create_future(self) -> asyncio.Future[Any]:
        """A future of this loop."""
        return WorkflowFuture(loop=self)

    def create_task(self, coro: Any, **options: Any) -> Any:
        """A task of this loop; it is kept until it is done."""
        options.pop("eager_start", None)
        task = WorkflowTask(coro, loop=self, **options)
        if not task.done():
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Take note of what nobody waited for."""
        fault = context.get("exception")
        if isinstance(fault, BaseException):
            self.faults.append(fault)
        if not self._closed:
            _log.error("in workflow code: %s", context.get("message"), exc_info=fault)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """The same."""
        self.call_exception_handler(context)

    def get_exception_handler(self) -> None:
        """There is none but the loop's own."""

    def is_running(self) -> bool:
        """Whether its code runs at this moment."""
        return events._get_running_loop() is self  # noqa: SLF001

    def is_closed(self) -> bool:
        """Whether its run was left."""
        return self._closed

    def get_debug(self) -> bool:
        """Never: what debugging adds would not be the same in every life."""
        return False

    def set_debug(self, enabled: bool) -> None:  # noqa: FBT001
        """Leave it off."""

    def get_task_factory(self) -> None:
        """There is none."""

    def close(self) -> None:
        """The driver ends it."""
        _refuse("close()")


def _refuse(what: str) -> NoReturn:
    raise NotInWorkflow(
        f"{what} is not for workflow code, which must do the same in every life of its run. Do this in a step: "
        "ctx.step(name, function, ...) runs it once and records what it returned."
    )


def _refusing(name: str) -> Callable[..., NoReturn]:
    def refuse(self: WorkflowLoop, *_args: object, **_options: object) -> NoReturn:  # noqa: ARG001
        _refuse(f"loop.{name}()")

    refuse.__name__ = name
    return refuse


def _refuse_the_rest() -> None:
    """Everything of an event loop that is not for workflow code says what to do instead."""
    for name, member in vars(asyncio.AbstractEventLoop).items():
        if callable(member) and not name.startswith("_") and name not in vars(WorkflowLoop):
            setattr(WorkflowLoop, name, _refusing(name))


_refuse_the_rest()
