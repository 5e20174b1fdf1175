"""The definitions that users write: workflows, steps and retry policies.

A workflow is an async function of a context and an input. A step is a function whose result is recorded. In a run, a
call of it is a recorded step; elsewhere, it is an ordinary call of the function.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextvars import ContextVar
from copy import copy
from functools import update_wrapper
from types import MethodType
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    Self,
    TypeVar,
    get_args,
    overload,
)

import msgspec

from ..errors import InvalidOption, InvalidValue, InvalidWorkflow
from ..rules.runs.record import ANY_VERSION, without_generation
from ..runtime.codec import PLAIN, decode_value, encode_value, hints_of
from ..validation import MICROSECONDS, Duration, checked_count, checked_key, seconds
from .limits import Concurrency, Rate, terms_of

if TYPE_CHECKING:
    from .context import Context

I = TypeVar("I")  # noqa: E741  (the input of a workflow)
O = TypeVar("O")  # noqa: E741  (and its output)
R = TypeVar("R")
S = TypeVar("S")
P = ParamSpec("P")
Q = ParamSpec("Q")

UnreadableInput = Literal["block", "fail"]
OnUnread = Literal["keep", "continue", "fail"]

current_context: ContextVar[Context | None] = ContextVar("holdfast_context", default=None)
"""The context of the run whose code is running; None in step bodies and everywhere else."""

ONCE: Retry


class Retry(msgspec.Struct, frozen=True):
    """How often to try, and how long to wait between two tries.

    The first wait is `initial`, each later wait is `factor` times as long, at most `max_delay`. Exceptions in
    `give_up_on` are not retried, nor are those for which the function `retry_if` returns a false value. With `jitter`
    each wait is a random time between half of the computed wait and the whole of it. A step can also decide itself, by
    raising `DoNotRetry` or `RetryAfter`.

    >>> Retry(max_attempts=5, initial="100 ms").delay_after(3, 1.0)
    0.4
    """

    max_attempts: int = 3
    initial: Duration = 1
    factor: float = 2
    max_delay: Duration = 60
    jitter: bool = True
    give_up_on: tuple[type[BaseException], ...] = ()
    retry_if: Callable[[Exception], object] | None = None

    def __post_init__(self) -> None:
        """Check what was given."""
        checked_count(self.max_attempts, what="max_attempts")
        seconds(self.initial, what="initial")
        seconds(self.max_delay, what="max_delay")
        if not isinstance(self.factor, int | float) or not self.factor >= 1:
            raise InvalidOption(f"factor cannot be {self.factor!r}: it must be a number of at least 1")
        kinds = (self.give_up_on,) if isinstance(self.give_up_on, type) else tuple(self.give_up_on)
        if not all(isinstance(kind, type) and issubclass(kind, BaseException) for kind in kinds):
            raise InvalidOption(f"give_up_on takes types of exceptions, not {self.give_up_on!r}")
        msgspec.structs.force_setattr(self, "give_up_on", kinds)
        if self.retry_if is not None and (not callable(self.retry_if) or inspect.iscoroutinefunction(self.retry_if)):
            raise InvalidOption(
                f"retry_if cannot be {self.retry_if!r}: give a plain function that takes the exception and returns "
                "whether to try again"
            )

    def delay_after(self, attempts: int, chance: float) -> float:
        """Seconds to wait after so many attempts; `chance` is between 0 and 1."""
        longest = seconds(self.max_delay)
        try:
            length = min(longest, seconds(self.initial) * self.factor ** (attempts - 1))
        except OverflowError:
            length = longest
        return length * (0.5 + chance / 2) if self.jitter else length


ONCE = Retry(max_attempts=1)
SHORTEST_HEARTBEAT_TIMEOUT = 0.1
"""Seconds: in a shorter time, a heartbeat cannot reach every store."""
FOREVER = "forever"
"""The `retain` of a workflow whose ended runs are kept although its engine has a `retain`."""


def checked_retry(retry: Retry | None) -> Retry | None:
    """Refuse what does not say how to try again."""
    if retry is not None and not isinstance(retry, Retry):
        raise InvalidOption(f"retry cannot be {retry!r}: give retry=Retry(max_attempts=3), or leave it out")
    return retry


def checked_heartbeat_timeout(value: Duration | None) -> float | None:
    """The longest time between two heartbeats of a step, in seconds; None: its heartbeats are not waited for.

    >>> checked_heartbeat_timeout("1 minute")
    60.0
    """
    if value is None:
        return None
    length = seconds(value, what="heartbeat_timeout")
    if length < SHORTEST_HEARTBEAT_TIMEOUT:
        raise InvalidOption(
            f"heartbeat_timeout={value!r} is less than {SHORTEST_HEARTBEAT_TIMEOUT} s: give a time in which a step "
            "that works sends several heartbeats"
        )
    return length


def checked_name(name: str, what: str) -> str:
    """Refuse a name that would be mistaken for a later one: the second `charge` of a run is `charge#2`."""
    if "#" in checked_key(name, what=what):
        raise InvalidOption(f"the {what} {name!r} holds a #, which is how the second of a name is told from the first")
    return name


class Workflow(Generic[I, O]):
    """The definition of a workflow: its function, and the name and version of its runs."""

    def __init__(
        self,
        function: Callable[..., Coroutine[Any, Any, O]],
        *,
        name: str | None,
        timeout: Duration | None,
        retry: Retry | None,
        version: str | None,
        concurrency: Concurrency | Sequence[Concurrency] | None = None,
        rate: Rate | Sequence[Rate] | None = None,
        unreadable_input: UnreadableInput = "block",
        upgrade: Callable[[Any], Any] | None = None,
        on_unread: OnUnread = "keep",
        retain: Duration | None = None,
    ) -> None:
        if not inspect.iscoroutinefunction(function):
            raise InvalidWorkflow(
                f"{_called(function)} must be `async def`: a workflow waits for its steps with `await`. If code "
                "blocks, move it into a step, which may be a plain function."
            )
        parameters = [
            parameter
            for parameter in inspect.signature(function).parameters.values()
            if parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
        ]
        if len(parameters) not in {1, 2} or any(map(_must_be_named, inspect.signature(function).parameters.values())):
            raise InvalidWorkflow(
                f"{_called(function)} must take a context and an input, `(ctx, input)`, or a context alone"
            )
        self.function = function
        self.name = checked_name(function.__name__ if name is None else name, what="workflow name")
        self.version = None if version is None else checked_key(str(version), what="version")
        for text in (self.name, self.version or ""):
            if "@" in text or "*" in text:
                raise InvalidOption(f"a workflow's name and version may not hold @ or *: {text!r}")
        if without_generation(self.name) != self.name:
            raise InvalidOption(
                f"the workflow name {self.name!r} ends in ~ and a number, as the ids of generations of a run do: the "
                "ids of its child runs could not be told from those. Choose another name."
            )
        self.timeout = None if timeout is None else round(seconds(timeout, what="timeout") * MICROSECONDS)
        self.retry = checked_retry(retry) or ONCE
        if unreadable_input not in get_args(UnreadableInput):
            raise InvalidOption(f'unreadable_input={unreadable_input!r} is neither "block" nor "fail"')
        self.unreadable_input = unreadable_input
        if on_unread not in get_args(OnUnread):
            raise InvalidOption(f'on_unread={on_unread!r} is none of "keep", "continue" and "fail"')
        self.on_unread: OnUnread = on_unread
        self.retain = retain
        self.retain_seconds = checked_retention(retain)
        self.limits, self.terms = terms_of(concurrency, rate)
        self.takes_input = len(parameters) == 2  # noqa: PLR2004  (the context and the input)
        hints = hints_of(function)
        self.input_type: Any = hints.get(parameters[1].name, Any) if self.takes_input else None
        self.output_type: Any = hints.get("return", Any)
        default = parameters[-1].default if self.takes_input else None
        self._default = None if default is inspect.Parameter.empty else default
        self.upgrade = upgrade if upgrade is None else self._checked_upgrade(upgrade)
        update_wrapper(self, function)

    def given(self, input: Any) -> Any:
        """The input of a run; if none was given, the default of the function's parameter."""
        return self._default if input is None else input

    def _checked_upgrade(self, upgrade: Any) -> Callable[[Any], Any]:
        if not callable(upgrade) or inspect.iscoroutinefunction(upgrade) or inspect.isasyncgenfunction(upgrade):
            raise InvalidWorkflow(
                f"upgrade={upgrade!r} of the workflow {self.name!r} must be a plain function that takes the stored "
                "input and returns the input: it is called on every replay, and cannot wait for anything"
            )
        if self.input_type in (None, *PLAIN):
            raise InvalidWorkflow(
                f"the workflow {self.name!r} has upgrade=, but no type of its input by which an old input is "
                "recognised: annotate its second parameter"
            )
        function: Callable[[Any], Any] = upgrade
        return function

    def read_input(self, text: str, *, what: str) -> Any:
        """Read a stored input. One that is not of the input's type is given to `upgrade`, if there is one."""
        try:
            return decode_value(text, self.input_type, what=what)
        except InvalidValue as error:
            if self.upgrade is None:
                raise
            try:
                upgraded = self.upgrade(decode_value(text, Any, what=what))
                new = encode_value(upgraded, self.input_type, what="what upgrade returned", max_bytes=sys.maxsize)
                return decode_value(new, self.input_type, what="what upgrade returned")
            except Exception as failed:  # whatever the function raises
                reason = failed if isinstance(failed, InvalidValue) else f"{failed.__class__.__name__}: {failed}"
                raise InvalidValue(f"{error} The function upgrade= could not convert it: {reason}") from failed

    @property
    def type(self) -> str:
        """The type of its runs: its name, with its version if it has one."""
        return self.name if self.version is None else f"{self.name}@{self.version}"

    @property
    def any_type(self) -> str:
        """The type of runs that were started by name alone, until a worker claims them."""
        return self.name + ANY_VERSION

    def __call__(self, context: Context, input: I | None = None) -> Coroutine[Any, Any, O]:
        """Run the function itself, as a part of the run whose context is given. Runs are started by an engine."""
        if current_context.get() is None:
            raise InvalidWorkflow(
                f"the workflow {self.name!r} was called outside a run: `await engine.start({self.name}, ...)` starts "
                f"one, and within a workflow `await ctx.child({self.name}, ...)`"
            )
        return self.function(context, input) if self.takes_input else self.function(context)

    def __repr__(self) -> str:
        return f"<workflow {self.type}>"


if TYPE_CHECKING:

    class StepResult(Awaitable[R], Any):  # type: ignore[misc]
        """What a plain step returns: inside a run an awaitable for its result, outside the result itself.

        A type checker cannot know where a call stands. Awaited, this is the type of the result; everywhere else it is
        compatible with any type.
        """


class Step(Generic[P, R]):
    """A function whose calls are recorded in a run, and are ordinary calls elsewhere."""

    def __init__(
        self,
        function: Callable[P, Any],
        *,
        name: str | None,
        retry: Retry | None,
        timeout: Duration | None,
        heartbeat_timeout: Duration | None = None,
        fingerprint: Callable[..., Any] | None = None,
    ) -> None:
        if isinstance(function, classmethod):
            raise InvalidWorkflow("put @classmethod above @step: a step is made of the function itself")
        if not callable(function):
            raise InvalidWorkflow(f"a step is a function, not {function!r}")
        self._static = isinstance(function, staticmethod)
        self.function = function = function.__func__ if isinstance(function, staticmethod) else function
        if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
            called = getattr(function, "__qualname__", function)
            raise InvalidWorkflow(f"the step {called!r} is a generator: a step returns one result")
        self.name = checked_name(getattr(function, "__name__", "step") if name is None else name, what="step name")
        self.retry = checked_retry(retry)
        self.timeout = timeout
        if timeout is not None:
            seconds(timeout, what="timeout")
        self.heartbeat_timeout = checked_heartbeat_timeout(heartbeat_timeout)
        if fingerprint is not None and (not callable(fingerprint) or inspect.iscoroutinefunction(fingerprint)):
            raise InvalidOption(
                f"fingerprint cannot be {fingerprint!r}: give a plain function that takes the arguments of the step "
                f"{self.name!r} and returns what identifies them, such as text"
            )
        self.fingerprint = fingerprint
        update_wrapper(self, function)

    @overload
    def __get__(self, instance: None, owner: type[Any]) -> Self: ...
    @overload
    def __get__(self: Step[Concatenate[S, Q], R], instance: S, owner: type[Any]) -> Step[Q, R]: ...
    def __get__(self, instance: Any, owner: type[Any]) -> Any:
        """A step that is a method. Its instance is not part of the recorded arguments: a replay brings its own."""
        if instance is None or self._static or not hasattr(self.function, "__get__"):
            return self
        bound = copy(self)
        bound.function = MethodType(self.function, instance)
        return bound

    def __call__(self, *args: P.args, **options: P.kwargs) -> StepResult[R]:
        """Inside a run: an awaitable for the recorded result. Outside: whatever the function returns."""
        context = current_context.get()
        if context is None:
            result: StepResult[R] = self.function(*args, **options)
            return result
        call: Any
        if args and isinstance(args[0], type) and self._is_class_method_of(args[0]):
            call = context.call(self.__get__(args[0], type(args[0])), args[1:], options)
        else:
            call = context.call(self, args, options)
        call.__qualname__ = self.name  # for the warning about a step that is not awaited
        recorded: StepResult[R] = call
        return recorded

    def _is_class_method_of(self, owner: type[Any]) -> bool:
        """Whether `@classmethod` is above this step there: since Python 3.13 that calls it with the class itself."""
        members = (member for base in owner.__mro__ for member in vars(base).values())
        return any(isinstance(member, classmethod) and member.__func__ is self for member in members)

    def __repr__(self) -> str:
        return f"<step {self.name}>"


def step_of(function: Any) -> Step[Any, Any] | None:
    """The step that this is, with what it is bound to: since Python 3.13 a class method is a method around a step."""
    if isinstance(function, MethodType) and isinstance(function.__func__, Step):
        bound: Step[Any, Any] = function.__func__.__get__(function.__self__, type(function.__self__))
        return bound
    return function if isinstance(function, Step) else None


class AsyncStep(Step[P, R]):
    """A step whose function is async."""

    if TYPE_CHECKING:

        @overload
        def __get__(self, instance: None, owner: type[Any]) -> Self: ...
        @overload
        def __get__(self: AsyncStep[Concatenate[S, Q], R], instance: S, owner: type[Any]) -> AsyncStep[Q, R]: ...
        def __get__(self, instance: Any, owner: type[Any]) -> Any: ...

        def __call__(  # type: ignore[override]  # noqa: D102
            self, *args: P.args, **options: P.kwargs
        ) -> Coroutine[Any, Any, R]: ...


def checked_retention(value: Duration | None) -> float | None:
    """How many seconds ended runs are kept; None: forever.

    >>> checked_retention("30 days"), checked_retention("forever")
    (2592000.0, None)
    """
    if value is None or value == FOREVER:
        return None
    length = seconds(value, what="retain")
    if length < 1:
        raise InvalidOption(
            f'retain={value!r} is less than a second: give how long ended runs are kept, such as "30 days", or '
            f'"{FOREVER}"'
        )
    return length


class _StepMaker:
    """What `@step(...)` returns: it keeps the types of what it decorates."""

    def __init__(self, **options: Any) -> None:
        self._options = options

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]]) -> AsyncStep[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R]) -> Step[P, R]: ...
    def __call__(self, function: Any) -> Any:
        """Make a step of the function."""
        kind = AsyncStep if inspect.iscoroutinefunction(function) else Step
        return kind(function, **self._options)


@overload
def step(name: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncStep[P, R]: ...
@overload
def step(name: Callable[P, R], /) -> Step[P, R]: ...
@overload
def step(
    name: str | None = None,
    *,
    retry: Retry | None = None,
    timeout: Duration | None = None,
    heartbeat_timeout: Duration | None = None,
    fingerprint: Callable[..., Any] | None = None,
) -> _StepMaker: ...
def step(
    name: Any = None,
    *,
    retry: Retry | None = None,
    timeout: Duration | None = None,
    heartbeat_timeout: Duration | None = None,
    fingerprint: Callable[..., Any] | None = None,
) -> Any:
    """Make a step of a function, with or without parentheses.

    An attempt that takes longer than `timeout`, or that does not call `current_step().heartbeat()` for
    `heartbeat_timeout`, has failed. If its process hangs, another worker takes the run over after `heartbeat_timeout`.
    A replay compares the arguments of a step with the recorded ones, by a hash. `fingerprint` is a function for
    arguments that cannot be hashed, such as objects: it takes the same arguments, and returns a JSON value that
    identifies them.

    >>> @step(retry=Retry(max_attempts=5))
    ... def add(a: int, b: int) -> int:
    ...     return a + b
    >>> add(1, 2)
    3
    """
    options: dict[str, Any] = {
        "retry": retry,
        "timeout": timeout,
        "heartbeat_timeout": heartbeat_timeout,
        "fingerprint": fingerprint,
    }
    if name is None or isinstance(name, str):
        return _StepMaker(name=name, **options)
    return _StepMaker(name=None, **options)(name)


class _WorkflowMaker:
    """What `@workflow(...)` returns: it keeps the types of what it decorates."""

    def __init__(self, **options: Any) -> None:
        self._options = options

    @overload
    def __call__(self, function: Callable[[Context, I], Coroutine[Any, Any, O]]) -> Workflow[I, O]: ...
    @overload
    def __call__(self, function: Callable[[Context], Coroutine[Any, Any, O]]) -> Workflow[None, O]: ...
    def __call__(self, function: Any) -> Any:
        """Make a workflow of the function."""
        return Workflow(function, **self._options)


@overload
def workflow(name: Callable[[Context, I], Coroutine[Any, Any, O]], /) -> Workflow[I, O]: ...
@overload
def workflow(name: Callable[[Context], Coroutine[Any, Any, O]], /) -> Workflow[None, O]: ...
@overload
def workflow(
    name: str | None = None,
    *,
    timeout: Duration | None = None,
    retry: Retry | None = None,
    version: str | None = None,
    concurrency: Concurrency | Sequence[Concurrency] | None = None,
    rate: Rate | Sequence[Rate] | None = None,
    unreadable_input: UnreadableInput = "block",
    upgrade: Callable[[Any], Any] | None = None,
    on_unread: OnUnread = "keep",
    retain: Duration | None = None,
) -> _WorkflowMaker: ...
def workflow(
    name: Any = None,
    *,
    timeout: Duration | None = None,
    retry: Retry | None = None,
    version: str | None = None,
    concurrency: Concurrency | Sequence[Concurrency] | None = None,
    rate: Rate | Sequence[Rate] | None = None,
    unreadable_input: UnreadableInput = "block",
    upgrade: Callable[[Any], Any] | None = None,
    on_unread: OnUnread = "keep",
    retain: Duration | None = None,
) -> Any:
    """Make a workflow of an async function `(ctx, input)`, with or without parentheses.

    A run whose input cannot be read as the type of the parameter is blocked until other code can read it; with
    `unreadable_input="fail"`, a run that has not begun fails instead.
    `upgrade` is a function for inputs that older code has stored: it is given the plain JSON value of an input that
    cannot be read as the input's type, and returns an instance of the type, or plain data that is read as the type. It
    is called on every replay, so it must always return the same.
    `on_unread` is what happens when the function returns while signals are unread: they are kept and shown ("keep"),
    the run begins a new generation with them and the same input ("continue"), or it fails ("fail").
    `retain` is how long ended runs are kept, such as "30 days" or "forever"; it goes before that of the engine.

    >>> @workflow
    ... async def greet(ctx, name: str) -> str:
    ...     return f"hello {name}"
    >>> greet
    <workflow greet>
    """
    options: dict[str, Any] = {
        "timeout": timeout,
        "retry": retry,
        "version": version,
        "concurrency": concurrency,
        "rate": rate,
        "unreadable_input": unreadable_input,
        "upgrade": upgrade,
        "on_unread": on_unread,
        "retain": retain,
    }
    if name is None or isinstance(name, str):
        return _WorkflowMaker(name=name, **options)
    return _WorkflowMaker(name=None, **options)(name)


def _called(function: object) -> str:
    return f"the workflow {getattr(function, '__qualname__', function)!r}"


def _must_be_named(parameter: inspect.Parameter) -> bool:
    return parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty
