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
from collections.abc import Callable, Collection, Coroutine, Iterable
from contextlib import suppress
from contextvars import Context
from types import CodeType, FrameType, MethodType
from typing import Any, NamedTuple, NoReturn, TypeVar

from ..errors import NotInWorkflow

T = TypeVar("T")

MAX_TURNS = 1_000_000
"""Callbacks that may follow one delivery; a workflow that needs more is spinning."""

MOST_TURNS_OUT = 10_000
"""Those of code whose run is left: what swallows everything and goes on is left as it is."""

_log = logging.getLogger("holdfast.workflow")


class _Numbered:
    """Futures whose hash is their number, so that a set of them has the same order in every life."""

    _number: int

    def __hash__(self) -> int:
        return self._number

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancel it. What `asyncio.wait_for(..., 0)` cancels may first take what is there."""
        this: Any = self
        cancel: Callable[[Any | None], bool] = super().cancel  # type: ignore[misc]
        if this.done() or not _polled(sys._getframe(1)):  # noqa: SLF001
            return cancel(msg)
        timer = this.get_loop().call_when_quiet(Poll(this, whole=True), cancel, msg)
        this.add_done_callback(lambda _: timer.cancel())
        return True


class WorkflowFuture(_Numbered, asyncio.Future[Any]):
    """A future of workflow code. `awaits` is what asyncio waits for by it: futures, a group of tasks, a coroutine.

    A future that `shields` does not pass a cancel on to them.
    """

    awaits: Any
    shields: bool

    def __init__(self, *, loop: WorkflowLoop, awaits: Any = None, shields: bool = False) -> None:
        self._number = loop.next_number()
        self.awaits, self.shields = awaits, shields
        super().__init__(loop=loop)


class WorkflowTask(_Numbered, asyncio.Task[Any]):
    """A task of workflow code."""

    def __init__(self, coro: Coroutine[Any, Any, Any], *, loop: WorkflowLoop, **options: Any) -> None:
        self._number = loop.next_number()
        if options.get("name") is None:
            options["name"] = f"task-{self._number}"
        super().__init__(coro, loop=loop, **options)


class WorkflowGathering(_Numbered, asyncio.tasks._GatheringFuture):  # type: ignore[misc,name-defined]  # noqa: SLF001
    """What `asyncio.gather` returns in workflow code."""


class Poll(NamedTuple):
    """What a timer of length 0 ends: a wait within this task, or the `whole` of this future.

    It is `patient` until another poll has ended among what it waits for and would not cancel.
    """

    future: Any
    whole: bool = False
    patient: bool = True


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
        self.immediate: dict[int, Poll] = {}
        """The timers of length 0, and the wait that each ends when it is known that nothing is there for it."""
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
        ended = self.immediate.pop(number, None)
        if timer is None:
            return False
        if ended is not None:
            for other, poll in self.immediate.items():
                if self._has_within(poll.future, (id(ended.future),), behind_shields=True):
                    self.immediate[other] = poll._replace(patient=False)
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
            return self.call_when_quiet(Poll(asyncio.current_task(self)), callback, *args, context=context)
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
        if delay <= 0 and (code := sys._getframe(1).f_code) in (_WAIT, _AS_COMPLETED):  # noqa: SLF001
            poll = Poll(args[0], whole=True) if code is _WAIT else Poll(asyncio.current_task(self))
            return self.call_when_quiet(poll, callback, *args, context=context)
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
        self, poll: Poll, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Run this when everything that is there now has been delivered: a timer of length 0, for one wait."""
        timer = self.call_at(self.time(), callback, *args, context=context)
        assert isinstance(timer, WorkflowTimer)  # noqa: S101
        timer.immediate = True
        self.immediate[timer.number] = poll
        return timer

    def innermost(self) -> list[int]:
        """The timers of length 0 that may end: of several around one another, the innermost ends first.

        So what a wait within has taken, such as signals, is returned before it is cancelled by a wait around it. What
        is not cancelled may go on polling for ever: it is waited for once.
        """
        first: dict[int, int] = {}  # by what it is that waits
        for number, poll in self.immediate.items():
            if not poll.whole or id(poll.future) not in first:
                first[id(poll.future)] = number
        polls = {number: self.immediate[number] for number in first.values()}
        free = [
            number
            for number, poll in polls.items()
            if not self._has_within(poll.future, first, behind_shields=poll.patient)
        ]
        return sorted(free or polls)

    def _has_within(self, future: Any, others: Collection[int], *, behind_shields: bool) -> bool:
        """Whether one of the others, by their ids, is among what this future waits for, directly or not."""
        seen: set[int] = set()
        left = [future]
        while left:
            one = left.pop()
            if one is None or id(one) in seen:
                continue
            seen.add(id(one))
            if one is not future and id(one) in others:
                return True
            if behind_shields or not (isinstance(one, WorkflowFuture) and one.shields):
                left += self._awaited_by(one)
        return False

    def _awaited_by(self, one: Any) -> Iterable[Any]:
        if isinstance(one, asyncio.Task):
            return (one._fut_waiter,)  # type: ignore[attr-defined]  # noqa: SLF001
        if isinstance(one, WorkflowGathering):
            return one._children  # type: ignore[no-any-return]  # noqa: SLF001
        if isinstance(one, WorkflowFuture):
            return (one.awaits,)
        if isinstance(one, asyncio.TaskGroup):
            return one._tasks  # noqa: SLF001
        if inspect.iscoroutine(one):
            return [task for task in self._tasks if task.get_coro() is one]
        return one if isinstance(one, set | frozenset | list | tuple) else ()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        if isinstance(handle, WorkflowTimer):
            self.timers.pop(handle.number, None)
            self.immediate.pop(handle.number, None)

    def create_future(self) -> asyncio.Future[Any]:
        """A future of this loop."""
        caller = sys._getframe(1)  # noqa: SLF001
        if caller.f_code is _WAIT:
            _refuse_unordered(caller.f_locals["fs"], "asyncio.wait")
        if (variable := _AWAITED.get(caller.f_code)) is None:
            return WorkflowFuture(loop=self)
        return WorkflowFuture(
            loop=self, awaits=caller.f_locals.get(variable), shields=caller.f_code in (_WAIT, _SHIELD)
        )

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
_SHIELD: CodeType = asyncio.shield.__code__
_WAIT_FOR: CodeType = asyncio.wait_for.__code__
_CANCEL_AND_WAIT: CodeType = asyncio.tasks._cancel_and_wait.__code__  # type: ignore[attr-defined]  # noqa: SLF001
_AWAITED: dict[CodeType, str] = {
    _WAIT: "fs",
    _WAIT_FOR: "fut",
    _CANCEL_AND_WAIT: "fut",
    _SHIELD: "inner",
    # In newer versions of Python in a method of its own.
    getattr(asyncio.TaskGroup, "_aexit", asyncio.TaskGroup.__aexit__).__code__: "self",
}
"""Where asyncio makes a future to wait by, and the variable that tells what it waits for."""
_GATHERING: CodeType = asyncio.tasks._GatheringFuture.__init__.__code__  # type: ignore[attr-defined]  # noqa: SLF001


def _refuse_unordered(futures: Collection[Any], what: str) -> None:
    """Refuse futures that asyncio puts in the order of a set, if some have no number: that order is of addresses."""
    if len(futures) > 1 and not all(isinstance(one, _Numbered) for one in futures):
        raise NotInWorkflow(
            f"{what} in workflow code needs futures of its loop: the order of others would differ from one replay to "
            "the next. In the place of asyncio.Future() write asyncio.get_running_loop().create_future(), in the "
            "place of asyncio.Task(...) asyncio.create_task(...)."
        )


class _Alarm:
    """Registered with asyncio as if it were a task, so that `asyncio.all_tasks()` asks it for its loop.

    In workflow code the answer is a refusal: the order of the set that would be returned is that of addresses. Anywhere
    else it belongs to no loop, and is in no such set.
    """

    def get_loop(self) -> None:
        """Refuse in workflow code."""
        if isinstance(events._get_running_loop(), WorkflowLoop):  # noqa: SLF001
            raise NotInWorkflow(
                "asyncio.all_tasks() is not for workflow code: its order would differ from one replay to the next. "
                "Keep a list of the tasks that you create, or create them in an asyncio.TaskGroup. If a library calls "
                f"it, to start a thread for example: {_IN_A_STEP}"
            )

    def done(self) -> bool:
        """The same; it never is."""
        self.get_loop()
        return False


_ALARM = _Alarm()  # asyncio keeps a weak reference
asyncio._register_task(_ALARM)  # type: ignore[arg-type]  # noqa: SLF001  (documented, for tasks of other libraries)


def _polled(caller: FrameType) -> bool:
    """Whether it is `asyncio.wait_for` with a timeout of 0 that cancels something."""
    if caller.f_code is not _CANCEL_AND_WAIT or caller.f_back is None or caller.f_back.f_code is not _WAIT_FOR:
        return False
    timeout: float = caller.f_back.f_locals["timeout"]
    return timeout <= 0


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


_IN_A_STEP = "Do this in a step: ctx.step(name, function, ...) runs it once and records what it returned."


def _not_for_workflows(what: str) -> str:
    return f"{what} is not for workflow code, which must do the same in every replay of its run. {_IN_A_STEP}"


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
