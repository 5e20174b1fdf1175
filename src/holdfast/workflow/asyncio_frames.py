"""Recognises from which function of asyncio the loop of workflow code is called, by the caller's code object.

The loop needs some facts that asyncio does not pass to it: what a future waits for, whether a timeout is 0, in which
order coroutines were given. These facts are in the variables of asyncio's own functions. Only this module reads them.
"""

from __future__ import annotations

import asyncio
from types import CodeType, FrameType
from typing import Any


def _code_of_as_completed() -> CodeType:
    """Where `asyncio.as_completed` iterates over the set of its arguments; since Python 3.13 in a class."""
    iterator = getattr(asyncio.tasks, "_AsCompletedIterator", None)
    function: Any = asyncio.as_completed if iterator is None else iterator.__init__
    code: CodeType = function.__code__
    return code


AS_COMPLETED = _code_of_as_completed()
WAIT: CodeType = asyncio.tasks._wait.__code__  # type: ignore[attr-defined]  # noqa: SLF001
SHIELD: CodeType = asyncio.shield.__code__
WAIT_FOR: CodeType = asyncio.wait_for.__code__
CANCEL_AND_WAIT: CodeType = asyncio.tasks._cancel_and_wait.__code__  # type: ignore[attr-defined]  # noqa: SLF001
GATHERING: CodeType = asyncio.tasks._GatheringFuture.__init__.__code__  # type: ignore[attr-defined]  # noqa: SLF001
AWAITED: dict[CodeType, str] = {
    WAIT: "fs",
    WAIT_FOR: "fut",
    CANCEL_AND_WAIT: "fut",
    SHIELD: "inner",
    # In newer versions of Python in a method of its own.
    getattr(asyncio.TaskGroup, "_aexit", asyncio.TaskGroup.__aexit__).__code__: "self",
}
"""The functions in which asyncio creates a future to wait with, and the variable that holds what it waits for."""


def is_poll(caller: FrameType) -> bool:
    """Whether the caller is `asyncio.wait_for` with a timeout of 0, which cancels something."""
    if caller.f_code is not CANCEL_AND_WAIT or caller.f_back is None or caller.f_back.f_code is not WAIT_FOR:
        return False
    timeout: float = caller.f_back.f_locals["timeout"]
    return timeout <= 0


def given_to_as_completed(caller: FrameType) -> Any:
    """The argument of `asyncio.as_completed`, if a task is being created for it; else None.

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
