"""The futures, tasks and timers of workflow code, numbered in the order of their creation.

The number is their hash, so a set of them has the same order in every replay. Futures without a number would be ordered
by their memory addresses: they are refused where asyncio puts them into a set.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Collection, Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import NotInWorkflow
from .asyncio_frames import is_poll

if TYPE_CHECKING:
    from .loop import WorkflowLoop


class Numbered:
    """Futures whose hash is their number, so that a set of them has the same order in every replay."""

    _number: int

    def __hash__(self) -> int:
        return self._number

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancel it. If `asyncio.wait_for(..., 0)` cancels it, it may first take a result that is available."""
        this: Any = self
        cancel: Callable[[Any | None], bool] = super().cancel  # type: ignore[misc]
        if this.done() or not is_poll(sys._getframe(1)):  # noqa: SLF001
            return cancel(msg)
        timer = this.get_loop().call_when_quiet(Poll(this, whole=True), cancel, msg)
        this.add_done_callback(lambda _: timer.cancel())
        return True


class WorkflowFuture(Numbered, asyncio.Future[Any]):
    """A future of workflow code. `awaits` is what asyncio waits for with it: futures, a group of tasks, a coroutine.

    A future that `shields` does not pass a cancel on to them.
    """

    awaits: Any
    shields: bool

    def __init__(self, *, loop: WorkflowLoop, awaits: Any = None, shields: bool = False) -> None:
        self._number = loop.next_number()
        self.awaits, self.shields = awaits, shields
        super().__init__(loop=loop)


class WorkflowTask(Numbered, asyncio.Task[Any]):
    """A task of workflow code."""

    def __init__(self, coro: Coroutine[Any, Any, Any], *, loop: WorkflowLoop, **options: Any) -> None:
        self._number = loop.next_number()
        if options.get("name") is None:
            options["name"] = f"task-{self._number}"
        super().__init__(coro, loop=loop, **options)


class WorkflowGathering(Numbered, asyncio.tasks._GatheringFuture):  # type: ignore[misc,name-defined]  # noqa: SLF001
    """What `asyncio.gather` returns in workflow code."""


class Poll(NamedTuple):
    """What a timer of length 0 ends: a wait within this task, or the `whole` of this future.

    It is `patient` until another poll has ended among those that it waits for and would not cancel.
    """

    future: Any
    whole: bool = False
    patient: bool = True


class WorkflowTimer(asyncio.TimerHandle):
    """A timer with the number under which its end is journaled. A timer of length 0 is `immediate`."""

    __slots__ = ("immediate", "number")

    number: int
    immediate: bool


def refuse_unordered(futures: Collection[Any], what: str) -> None:
    """Refuse futures that asyncio puts into a set, if some have no number: their order would be that of addresses."""
    if len(futures) > 1 and not all(isinstance(one, Numbered) for one in futures):
        raise NotInWorkflow(
            f"{what} in workflow code needs futures of its loop: the order of others would differ from one replay to "
            "the next. Instead of asyncio.Future() write asyncio.get_running_loop().create_future(), instead of "
            "asyncio.Task(...) write asyncio.create_task(...)."
        )
