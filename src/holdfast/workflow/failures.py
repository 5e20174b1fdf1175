"""Exceptions as text and back: type, message and traceback, never code.

What comes back is a `StepFailed`; where the type was one of Python's own, it is that too, so `except ValueError`
works in every life of a run.
"""

from __future__ import annotations

import builtins
import traceback
from functools import cache

from ..errors import StepFailed, StepTimeout, WorkflowFailed
from .journal import Failure

MAX_MESSAGE = 10_000
MAX_TRACEBACK = 20_000
_TIMEOUT = f"{StepTimeout.__module__}.{StepTimeout.__qualname__}"
_OWN_LAYOUT = (StopIteration, StopAsyncIteration, BaseExceptionGroup, SyntaxError, UnicodeError, ImportError)


def failure_of(error: BaseException) -> Failure:
    """What is kept of an exception."""
    if isinstance(error, StepFailed | WorkflowFailed) and error.kind:
        return Failure(error.kind, error.detail, error.traceback)
    text = "".join(traceback.format_exception(error))
    return Failure(_name(type(error)), _fit(_said(error), MAX_MESSAGE), _fit(text, MAX_TRACEBACK))


def _said(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as broken:  # a class of the user's
        return f"(it cannot say what: {type(broken).__name__})"


def step_failed(step: str, failure: Failure, attempts: int) -> StepFailed:
    """The exception for workflow code whose step has failed for good."""
    tries = "" if attempts == 1 else f" after {attempts} attempts"
    message = f"the step {step!r} failed{tries}: {failure.type}: {failure.message}"
    return _class_for(failure.type)(
        message, step=step, kind=failure.type, detail=failure.message, traceback=failure.traceback, attempts=attempts
    )


@cache
def _class_for(name: str) -> type[StepFailed]:
    kind = TimeoutError if name == _TIMEOUT else getattr(builtins, name, None)
    if (
        not isinstance(kind, type)
        or not issubclass(kind, Exception)
        or issubclass(kind, _OWN_LAYOUT)
        or kind is Exception
    ):
        return StepFailed
    return type("StepFailed", (StepFailed, kind), {"__doc__": StepFailed.__doc__, "__reduce__": _reduced})


def _reduced(error: StepFailed) -> tuple[object, ...]:
    """How it crosses the boundary of a process: the class is made anew there."""
    return step_failed, (error.step, Failure(error.kind, error.detail, error.traceback), error.attempts)


def _name(kind: type[BaseException]) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _fit(text: str, length: int) -> str:
    clean = text.encode("utf-8", "backslashreplace").decode()
    return clean if len(clean) <= length else f"{clean[: length // 2]}\n...\n{clean[-length // 2 :]}"
