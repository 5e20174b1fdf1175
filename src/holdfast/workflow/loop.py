"""The event loop of workflow code: a queue of what is ready, and timers that are part of the history.

Plain asyncio tasks and futures run on it, in the same order in every life of a run: nothing happens here by itself.
Whoever drives the run delivers one thing at a time and lets the loop run until it is quiet. Time stands still in
between. Sockets, threads and subprocesses are not for workflow code: they raise what to do instead.
"""

from __future__ import annotations

import asyncio
import heapq
import inspect
import logging
import sys
from asyncio import events
from collections import deque
from collections.abc import Callable, Collection, Coroutine
from contextlib import suppress
from contextvars import Context
from types import CodeType, FrameType, MethodType
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
        self._workflow_loop = loop
        super().__init__(coro, loop=loop, **options)

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancel it. `asyncio.wait_for(..., 0)` cancels a task before it began: here it may take what is there."""
        if _cancelled_by_wait_for(sys._getframe(1)) and self._not_begun():  # noqa: SLF001
            timer = self._workflow_loop.call_when_quiet(self, super().cancel, msg)
            self.add_done_callback(lambda _: timer.cancel())
            return True
        return super().cancel(msg)

    def _not_begun(self) -> bool:
        coro = self.get_coro()
        return inspect.iscoroutine(coro) and inspect.getcoroutinestate(coro) == inspect.CORO_CREATED


class WorkflowGathering(_Numbered, asyncio.tasks._GatheringFuture):  # type: ignore[misc,name-defined]  # noqa: SLF001
    """What `asyncio.gather` returns in workflow code."""


class WorkflowTimer(asyncio.TimerHandle):
    """A timer with the number under which its end is journaled. One of length 0 is `immediate`."""

    __slots__ = ("immediate", "number")

    number: int
    immediate: bool


class WorkflowLoop(asyncio.AbstractEventLoop):
    """A deterministic loop. `now` is the time of the last delivery, in microseconds since 1970."""

    deterministic = True
    """What speaks to a store refuses to do so on such a loop."""

    def __init__(self, now: int, refused: Callable[[NotInWorkflow], None]) -> None:
        self.now = now
        self._refused = refused  # called from another thread that wants something of the loop
        self.timers: dict[int, WorkflowTimer] = {}
        self.immediate: dict[int, asyncio.Task[Any] | None] = {}
        """The timers of length 0, and whose wait each ends, when it is known that nothing is there for that task."""
        self._order: list[tuple[float, int]] = []
        self._ready: deque[asyncio.Handle] = deque()
        self._tasks: set[WorkflowTask] = set()
        self._as_completed: dict[int, WorkflowTask] = {}
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
        self.immediate.pop(number, None)
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
        self.immediate.clear()
        self._ready.clear()
        self._closed = True

    # -- for asyncio ------------------------------------------------------------------------------------

    def time(self) -> float:
        """Workflow time, in seconds."""
        return self.now / 1_000_000

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Run this after what is ready already; the end of a timeout of 0, when nothing is there to wait for."""
        if args and not isinstance(args[0], _Numbered):  # perhaps a future that is done
            caller = sys._getframe(1)  # noqa: SLF001
            if caller.f_code is _AS_COMPLETED:
                _refuse_unordered([one for one in caller.f_locals["todo"] if one.done()], "asyncio.as_completed")
        if type(callback) is MethodType and type(callback.__self__) is asyncio.Timeout:
            return self.call_when_quiet(asyncio.current_task(self), callback, *args, context=context)
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> NoReturn:
        """Raise in the calling thread, and fail the run: its code would wait for the thread for ever."""
        del callback, args, context
        error = NotInWorkflow(_not_for_workflows("a thread that the code waits for"))
        if not self._closed and not self.is_running():
            self._refused(error)
        raise error

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
        timer.immediate = False
        self.timers[timer.number] = timer
        heapq.heappush(self._order, (when, timer.number))
        return timer

    def call_when_quiet(
        self,
        task: asyncio.Task[Any] | None,
        callback: Callable[..., Any],
        *args: Any,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Run this when everything that is there now has been delivered: a timer of length 0, for a task's wait."""
        timer = self.call_at(self.time(), callback, *args, context=context)
        assert isinstance(timer, WorkflowTimer)  # noqa: S101
        timer.immediate = True
        self.immediate[timer.number] = task
        return timer

    def innermost(self) -> list[int]:
        """The timers of length 0 that may end: of several around one another, the innermost ends first."""
        latest = {task: number for number, task in self.immediate.items()}
        return sorted(latest.values())

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        if isinstance(handle, WorkflowTimer):
            self.timers.pop(handle.number, None)
            self.immediate.pop(handle.number, None)

    def create_future(self) -> asyncio.Future[Any]:
        """A future of this loop."""
        caller = sys._getframe(1)  # noqa: SLF001
        if caller.f_code is _WAIT:
            _refuse_unordered(caller.f_locals["fs"], "asyncio.wait")
        return WorkflowFuture(loop=self)

    def create_task(self, coro: Any, **options: Any) -> Any:
        """A task of this loop; it is kept until it is done."""
        options.pop("eager_start", None)
        given = _given_to_as_completed(sys._getframe(1))  # noqa: SLF001
        if given is not None:
            return self._task_of_as_completed(coro, given)
        return self._new_task(coro, **options)

    def _new_task(self, coro: Any, **options: Any) -> WorkflowTask:
        task = WorkflowTask(coro, loop=self, **options)
        if not task.done():
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return task

    def _task_of_as_completed(self, coro: Any, given: Any) -> WorkflowTask:
        """The task of one of the coroutines of an `asyncio.as_completed`, which makes tasks in the order of a set.

        That is the order of the coroutines' addresses. So all of them are made at once, in the order that was given.
        """
        if id(coro) not in self._as_completed:
            if not isinstance(given, list | tuple) or not any(one is coro for one in given):
                for one in given if isinstance(given, set | frozenset | list | tuple) else ():
                    if inspect.iscoroutine(one):
                        one.close()
                raise NotInWorkflow(
                    "asyncio.as_completed in workflow code needs a list or a tuple of coroutines or tasks: the order "
                    "of a set, or of what a generator makes, would differ from one replay to the next. Write "
                    "asyncio.as_completed([f(x) for x in xs])."
                )
            for one in given:
                if inspect.iscoroutine(one) and id(one) not in self._as_completed:
                    self._as_completed[id(one)] = self._new_task(one)
        return self._as_completed.pop(id(coro))

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Log what nobody waited for."""
        fault = context.get("exception")
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
        """Never: what debugging adds would not be the same in every life.

        Every future asks for it while it is made; the one of `asyncio.gather`, which the loop does not make, is
        numbered here.
        """
        caller = sys._getframe(1)  # noqa: SLF001
        if caller.f_code is _GATHERING:
            gathering = caller.f_locals["self"]
            gathering._number = self.next_number()  # noqa: SLF001
            gathering.__class__ = WorkflowGathering
        return False

    def set_debug(self, enabled: bool) -> None:  # noqa: FBT001
        """Leave it off."""

    def get_task_factory(self) -> None:
        """There is none."""

    def close(self) -> None:
        """The driver ends it."""
        _refuse("close()")


def _code_of_as_completed() -> CodeType:
    """Where `asyncio.as_completed` goes through the set of what it was given; since Python 3.13 in a class."""
    iterator = getattr(asyncio.tasks, "_AsCompletedIterator", None)
    function: Any = asyncio.as_completed if iterator is None else iterator.__init__
    code: CodeType = function.__code__
    return code


_AS_COMPLETED = _code_of_as_completed()
_WAIT: CodeType = asyncio.tasks._wait.__code__  # type: ignore[attr-defined]  # noqa: SLF001
_GATHERING: CodeType = asyncio.tasks._GatheringFuture.__init__.__code__  # type: ignore[attr-defined]  # noqa: SLF001


def _refuse_unordered(futures: Collection[Any], what: str) -> None:
    """Refuse futures that asyncio puts in the order of a set, if some have no number: that order is of addresses."""
    if len(futures) > 1 and not all(isinstance(one, _Numbered) for one in futures):
        raise NotInWorkflow(
            f"{what} in workflow code needs futures of its loop: the order of others would differ from one replay to "
            "the next. In the place of asyncio.Future() write asyncio.get_running_loop().create_future(), in the "
            "place of asyncio.Task(...) asyncio.create_task(...)."
        )


def _cancelled_by_wait_for(caller: FrameType) -> bool:
    return caller.f_code.co_name == "_cancel_and_wait" and caller.f_globals is vars(asyncio.tasks)


def _given_to_as_completed(caller: FrameType) -> Any:
    """What `asyncio.as_completed` was given, where a task is being made for it; else None.

    The frames in between are `ensure_future` and, before Python 3.12, the comprehension.
    """
    frame: FrameType | None = caller
    if caller.f_code.co_name not in ("ensure_future", "_ensure_future"):
        return None
    while frame is not None and frame.f_globals is vars(asyncio.tasks):
        if frame.f_code.co_qualname in ("as_completed", "_AsCompletedIterator.__init__"):
            return frame.f_locals.get("aws", frame.f_locals.get("fs"))
        frame = frame.f_back
    return None


def _not_for_workflows(what: str) -> str:
    return (
        f"{what} is not for workflow code, which must do the same in every replay of its run. Do this in a step: "
        "ctx.step(name, function, ...) runs it once and records what it returned."
    )


def _refuse(what: str) -> NoReturn:
    raise NotInWorkflow(_not_for_workflows(what))


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
