"""The event loop of workflow code: a queue of callbacks, and timers that are part of the history.

Ordinary asyncio tasks and futures run on it, in the same order in every replay of a run, because only the driver
makes the loop run. The driver delivers one entry at a time, and runs the loop until no callback is ready. Between two
deliveries the time of the loop stands still. Sockets, threads and subprocesses are refused in workflow code, with an
error that says what to do instead.
"""

from __future__ import annotations

import asyncio
import heapq
import inspect
import logging
import sys
from asyncio import events
from collections import deque
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from contextvars import Context
from types import MethodType
from typing import Any, NoReturn

from ..errors import NotInWorkflow
from ..validation import LONGEST_SECONDS
from .asyncio_frames import AS_COMPLETED, AWAITED, GATHERING, SHIELD, WAIT, given_to_as_completed
from .blocking_code import BlockingCodeWatch, Warn
from .loop_futures import (
    Numbered,
    Poll,
    WorkflowFuture,
    WorkflowGathering,
    WorkflowTask,
    WorkflowTimer,
    refuse_unordered,
)

MAX_TURNS = 1_000_000
"""At most so many callbacks may follow one delivery; a workflow that needs more is in an endless loop."""

MAX_TURNS_LEAVING = 10_000
"""The same limit while this process leaves the run: code that catches the cancellation and continues is abandoned
then."""

_log = logging.getLogger("holdfast.workflow")


class WorkflowLoop(asyncio.AbstractEventLoop):
    """A deterministic event loop. `now` is the time of the last delivery, in microseconds since 1970."""

    deterministic = True
    """Clients refuse to call a store on such a loop."""

    def __init__(
        self, now: int, refused: Callable[[NotInWorkflow], None], watch: BlockingCodeWatch, blocking: Warn
    ) -> None:
        self.now = now
        self._watch, self._blocking = watch, blocking  # the second is called while the code blocks its thread for long
        self._refused = refused  # called from another thread that calls the loop
        self.timers: dict[int, WorkflowTimer] = {}
        self.immediate: dict[int, Poll] = {}
        """The timers of length 0, each with its wait, which it ends when nothing is available for the wait."""
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

    # -- called by the driver ---------------------------------------------------------------------------

    def run_until_quiet(self, most: int | None = None) -> None:
        """Run all callbacks that are ready, and those that they add. Never call it within a task."""
        most = MAX_TURNS if most is None else most
        before = events._get_running_loop()  # noqa: SLF001
        hooks = sys.get_asyncgen_hooks()
        ready = self._ready
        self._watch.begin(self._blocking)
        events._set_running_loop(self)  # noqa: SLF001
        sys.set_asyncgen_hooks(None, None)
        try:
            turns = 0
            while ready:
                handle = ready.popleft()
                if not handle._cancelled:  # noqa: SLF001
                    with suppress(SystemExit):  # its task has failed with it: a workflow must not end the process
                        handle._run()  # noqa: SLF001
                    turns += 1
                    if turns > most:
                        raise NotInWorkflow(
                            "workflow code is in an endless loop: it never waits for anything that takes time. Await a "
                            "step, a sleep or a signal in it."
                        )
        finally:
            sys.set_asyncgen_hooks(*hooks)
            events._set_running_loop(before)  # noqa: SLF001
            self._watch.end()

    def next_timer(self) -> WorkflowTimer | None:
        """The timer that ends first; of two with the same end, the one that was created first."""
        order, timers = self._order, self.timers
        while order and order[0][1] not in timers:
            heapq.heappop(order)
        return timers[order[0][1]] if order else None

    def fire(self, number: int) -> bool:
        """End a timer. Returns False if there is no timer with this number."""
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
        """Leave the run: cancel all tasks, and wait for none of them."""
        for _ in range(2):  # a second time for tasks that caught the first cancellation
            for task in sorted(self._tasks, key=hash):
                task.cancel()
            try:
                self.run_until_quiet(MAX_TURNS_LEAVING)
            except Exception:
                _log.exception(
                    "workflow code failed while this process stopped driving its run; nothing of it is recorded"
                )
            if not self._tasks:
                break
        for task in self._tasks:
            task._log_destroy_pending = False  # type: ignore[attr-defined]  # noqa: SLF001
        self._tasks.clear()
        self.timers.clear()
        self.immediate.clear()
        self._ready.clear()
        self._closed = True

    # -- called by asyncio ------------------------------------------------------------------------------

    def time(self) -> float:
        """Workflow time, in seconds."""
        return self.now / 1_000_000

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        """Run this after the callbacks that are ready. The end of a timeout of 0 runs after all deliveries."""
        if args and not isinstance(args[0], Numbered):  # perhaps a future that is done
            caller = sys._getframe(1)  # noqa: SLF001
            if caller.f_code is AS_COMPLETED:
                refuse_unordered([one for one in caller.f_locals["todo"] if one.done()], "asyncio.as_completed")
        if type(callback) is MethodType and type(callback.__self__) is asyncio.Timeout:
            return self.call_when_quiet(Poll(asyncio.current_task(self)), callback, *args, context=context)
        handle = asyncio.Handle(callback, args, self, context)
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> NoReturn:
        """Raise in the calling thread, and fail the run: its code would wait for the thread forever."""
        del callback, args, context
        error = NotInWorkflow(_not_for_workflows("a thread that the code waits for"))
        if not self._closed and not self.is_running():
            self._refused(error)
        raise error

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Run this after so many seconds of workflow time: a durable timer."""
        if delay <= 0 and (code := sys._getframe(1).f_code) in (WAIT, AS_COMPLETED):  # noqa: SLF001
            poll = Poll(args[0], whole=True) if code is WAIT else Poll(asyncio.current_task(self))
            return self.call_when_quiet(poll, callback, *args, context=context)
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., Any], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Run this at a time of the workflow: a durable timer. One that is never due ends in a hundred years."""
        when = min(when, self.time() + LONGEST_SECONDS)
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
        """Run this when everything that is available now has been delivered: a timer of length 0, for one wait."""
        timer = self.call_at(self.time(), callback, *args, context=context)
        assert isinstance(timer, WorkflowTimer)  # noqa: S101
        timer.immediate = True
        self.immediate[timer.number] = poll
        return timer

    def innermost(self) -> list[int]:
        """The timers of length 0 that may end: of nested ones, the innermost ends first.

        So an inner wait returns what it has taken, such as signals, before an outer wait cancels it. An inner
        wait that is not cancelled may poll again and again, so an outer one lets it end only once before itself.
        """
        first: dict[int, int] = {}  # by the id of the waiting future
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
        """Whether this future waits for one of the others, given by their ids, directly or indirectly."""
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
        if caller.f_code is WAIT:
            refuse_unordered(caller.f_locals["fs"], "asyncio.wait")
        if (variable := AWAITED.get(caller.f_code)) is None:
            return WorkflowFuture(loop=self)
        return WorkflowFuture(loop=self, awaits=caller.f_locals.get(variable), shields=caller.f_code in (WAIT, SHIELD))

    def create_task(self, coro: Any, **options: Any) -> Any:
        """A task of this loop, which references it until it is done."""
        options.pop("eager_start", None)
        given = given_to_as_completed(sys._getframe(1))  # noqa: SLF001
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
        """The task of one of the coroutines of an `asyncio.as_completed`, which creates tasks in the order of a set.

        That is the order of the coroutines' addresses. So all of them are created at once, in the given order.
        """
        if id(coro) not in self._as_completed:
            if not isinstance(given, list | tuple) or not any(one is coro for one in given):
                for one in given if isinstance(given, set | frozenset | list | tuple) else ():
                    if inspect.iscoroutine(one):
                        one.close()
                raise NotInWorkflow(
                    "asyncio.as_completed in workflow code needs a list or a tuple of coroutines or tasks: the order "
                    "of a set, or of a generator's items, would differ from one replay to the next. Write "
                    "asyncio.as_completed([f(x) for x in xs])."
                )
            for one in given:
                if inspect.iscoroutine(one) and id(one) not in self._as_completed:
                    self._as_completed[id(one)] = self._new_task(one)
        return self._as_completed.pop(id(coro))

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Log an exception that no code waited for."""
        fault = context.get("exception")
        if not self._closed:
            _log.error("error in workflow code: %s", context.get("message"), exc_info=fault)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        """The same as `call_exception_handler`."""
        self.call_exception_handler(context)

    def get_exception_handler(self) -> None:
        """Only the loop's own handler exists."""

    def is_running(self) -> bool:
        """Whether workflow code of this loop is running at this moment."""
        return events._get_running_loop() is self  # noqa: SLF001

    def is_closed(self) -> bool:
        """Whether this process has left the run."""
        return self._closed

    def get_debug(self) -> bool:
        """Always off: the debug mode would not do the same in every replay.

        Every future calls this method while it is created; the future of `asyncio.gather`, which the loop does not
        create, gets its number here.
        """
        caller = sys._getframe(1)  # noqa: SLF001
        if caller.f_code is GATHERING:
            gathering = caller.f_locals["self"]
            gathering._number = self.next_number()  # noqa: SLF001
            gathering.__class__ = WorkflowGathering
        return False

    def set_debug(self, enabled: bool) -> None:  # noqa: FBT001
        """The debug mode stays off."""

    def get_task_factory(self) -> None:
        """There is no task factory."""

    def close(self) -> None:
        """Refused: the driver closes the loop."""
        _refuse("close()")


class _AllTasksGuard:
    """Registered with asyncio as if it were a task, so that `asyncio.all_tasks()` calls its `get_loop`.

    In workflow code that raises: the order of the set that would be returned is that of addresses. Elsewhere this
    object belongs to no loop, and is in no such set.
    """

    def get_loop(self) -> None:
        """Refuse in workflow code."""
        if isinstance(events._get_running_loop(), WorkflowLoop):  # noqa: SLF001
            raise NotInWorkflow(
                "asyncio.all_tasks() cannot be used in workflow code: its order would differ from replay to replay. "
                "Keep a list of the tasks that you create, or create them in an asyncio.TaskGroup. If a library calls "
                f"it, to start a thread for example: {_IN_A_STEP}"
            )

    def done(self) -> bool:
        """Refuse in workflow code; it is never done."""
        self.get_loop()
        return False


_ALL_TASKS_GUARD = _AllTasksGuard()  # asyncio keeps only a weak reference
asyncio._register_task(_ALL_TASKS_GUARD)  # type: ignore[arg-type]  # noqa: SLF001  (documented, for tasks of other libraries)


_IN_A_STEP = "Do this in a step: ctx.step(name, function, ...) runs it once and records its result."


def _not_for_workflows(what: str) -> str:
    return f"{what} cannot be used in workflow code, which must do the same in every replay of its run. {_IN_A_STEP}"


def _refuse(what: str) -> NoReturn:
    raise NotInWorkflow(_not_for_workflows(what))


def _refusing(name: str) -> Callable[..., NoReturn]:
    def refuse(self: WorkflowLoop, *_args: object, **_options: object) -> NoReturn:  # noqa: ARG001
        _refuse(f"loop.{name}()")

    refuse.__name__ = name
    return refuse


def _refuse_the_rest() -> None:
    """All other methods of an event loop raise an error that says what to do instead."""
    for name, member in vars(asyncio.AbstractEventLoop).items():
        if callable(member) and not name.startswith("_") and name not in vars(WorkflowLoop):
            setattr(WorkflowLoop, name, _refusing(name))


_refuse_the_rest()
