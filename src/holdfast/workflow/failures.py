"""Converts exceptions to text and back: type, message and traceback, never code.

The rebuilt exception is a `StepFailed`. If the original type was built into Python, or derived from such a type, the
rebuilt exception is an instance of that type too, so `except ValueError` works in every replay of a run. A type that
cannot be created from a message alone is replaced by its nearest base that can: `UnicodeDecodeError` by `UnicodeError`.
"""

from __future__ import annotations

import asyncio
import builtins
import traceback
from functools import cache
from typing import Any

from ..errors import DoNotRetry, NotInWorkflow, StepFailed, WorkflowFailed
from .journal import Failure

MAX_MESSAGE = 10_000
MAX_TRACEBACK = 20_000
MAX_SHOWN = 200
"""The longest message or value of the code within another message."""
_NOT_REBUILT = (
    BaseExceptionGroup,
    StopIteration,  # no coroutine can raise these two
    StopAsyncIteration,
    UnicodeDecodeError,
    UnicodeEncodeError,
    UnicodeTranslateError,
)


def failure_of(error: BaseException) -> Failure:
    """The stored form of an exception."""
    bases = _bases(type(error))
    if isinstance(error, StepFailed | WorkflowFailed) and error.kind:
        return Failure(error.kind, error.detail, error.traceback, bases if "." in error.kind else ())
    text = "".join(traceback.format_exception(error))
    return Failure(_name(type(error)), _shortened(_message(error), MAX_MESSAGE), _shortened(text, MAX_TRACEBACK), bases)


def how_it_ended(code: asyncio.Task[Any] | None) -> tuple[str, BaseException | None]:
    """How the code of a run has ended, in words, and the exception that it has raised, if any."""
    if code is None or code.cancelled():
        return "has ended", None
    if (error := code.exception()) is None:
        return f"has returned {_represented(code.result())}", None
    message = _shortened(_message(error), MAX_SHOWN)
    return f"has ended with {_name(type(error))}{f': {message}' if message else ''}", error


def refusal_in(error: BaseException) -> NotInWorkflow | None:
    """The refusal of I/O in workflow code that a library has wrapped: in a group, or in another exception.

    An error that was raised while the refusal was handled has it as its `__context__`; `raise ... from None` excludes
    it.
    """
    seen: set[int] = set()  # `raise error from error` is a cycle
    left = [error]
    while left:
        one = left.pop()
        if isinstance(one, NotInWorkflow):
            return one
        if id(one) in seen:
            continue
        seen.add(id(one))
        wrapped = one.__cause__ if one.__cause__ is not None or one.__suppress_context__ else one.__context__
        if wrapped is not None:
            left.append(wrapped)
        if isinstance(one, BaseExceptionGroup):
            left += reversed(one.exceptions)
    return None


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception as broken:  # of a class of the user
        return f"(its message cannot be read: {type(broken).__name__})"


def _represented(value: object) -> str:
    try:
        return _shortened(repr(value), MAX_SHOWN)
    except Exception:  # of a class of the user
        return f"a {type(value).__name__}"


def step_failed(step: str, failure: Failure, attempts: int) -> StepFailed:
    """The exception for workflow code whose step has failed and is not retried."""
    tries = "" if attempts == 1 else f" after {attempts} attempts"
    message = f"the step {step!r} failed{tries}: {failure}"
    return _class_for(failure.bases or (failure.type,))(
        message, step=step, kind=failure.type, detail=failure.message, traceback=failure.traceback, attempts=attempts
    )


@cache
def _class_for(names: tuple[str, ...]) -> type[StepFailed]:
    known = {_name(DoNotRetry): DoNotRetry}
    kinds = [kind for name in names if isinstance(kind := known.get(name) or getattr(builtins, name, None), type)]
    bases = tuple(
        next(one for one in kind.__mro__ if issubclass(one, Exception) and not issubclass(one, _NOT_REBUILT))
        for kind in kinds
        if issubclass(kind, Exception)
    )
    useful = [base for base in dict.fromkeys(bases) if base is not Exception]
    if not useful:
        return StepFailed
    body = {"__doc__": StepFailed.__doc__, "__reduce__": _reduced}
    try:
        return type("StepFailed", (StepFailed, *useful), body)
    except TypeError:  # these bases cannot be combined in one class
        return type("StepFailed", (StepFailed, useful[0]), body)


def _bases(kind: type[BaseException]) -> tuple[str, ...]:
    """The nearest bases of an exception type that are built into Python and more specific than `Exception`.

    The last one is `DoNotRetry` where the type is derived from it.
    """
    if kind.__module__ == "builtins":
        return ()
    found: list[type[BaseException]] = []
    for base in kind.__mro__:
        own = base.__module__ == "builtins" and issubclass(base, Exception) and base is not Exception
        if own and not any(issubclass(nearer, base) for nearer in found):
            found.append(base)
    names = tuple(base.__qualname__ for base in found)
    return (*names, _name(DoNotRetry)) if issubclass(kind, DoNotRetry) else names


def _reduced(error: StepFailed) -> tuple[object, ...]:
    """For pickling: the class is created again in the other process."""
    bases = _bases(type(error)) if "." in error.kind else ()
    return step_failed, (error.step, Failure(error.kind, error.detail, error.traceback, bases), error.attempts)


def is_one_of(error: BaseException, kinds: tuple[type[BaseException], ...]) -> bool:
    """Whether an error is of one of these types. An error of a step is compared by the name of its type.

    Of its bases only those are known that are built into Python, and `DoNotRetry`.
    """
    return isinstance(error, kinds) or (isinstance(error, StepFailed) and error.kind in map(_name, kinds))


def _name(kind: type[BaseException]) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _shortened(text: str, length: int) -> str:
    clean = text.encode("utf-8", "backslashreplace").decode()
    return clean if len(clean) <= length else f"{clean[: length // 2]}\n...\n{clean[-length // 2 :]}"
