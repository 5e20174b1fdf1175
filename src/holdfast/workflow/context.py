"""The `ctx` of workflow code. Its methods give the same results whenever a run is replayed."""

from __future__ import annotations

import asyncio
import inspect
import logging
import random
import uuid
from collections.abc import Callable, Coroutine, MutableMapping
from contextvars import ContextVar
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar, overload

import msgspec

from ..errors import InvalidOption, InvalidValue, InvalidWorkflow, NotInWorkflow
from ..rules.runs.record import RunEvent, Scalar, generation_id, workflow_of
from ..rules.slot import Address
from ..runtime.codec import encode_value
from ..state.compare_and_swap import Decide
from ..validation import Duration, checked_key, seconds, time_of
from . import journal
from .context_children import ContextChildren
from .context_locks import ContextLocks
from .context_requests import ContextRequests
from .context_state import RunStates
from .continuing import ContinueAsNew
from .definition import (
    ONCE,
    Retry,
    Step,
    checked_heartbeat_timeout,
    checked_name,
    checked_retry,
    current_context,
    step_of,
)
from .start import checked_attributes
from .stream_writers import StreamWriter

if TYPE_CHECKING:
    from .replay import Replay
    from .step_heartbeats import AttemptHeartbeats
    from .step_streams import AttemptStreams

R = TypeVar("R")


class StepInfo(msgspec.Struct, frozen=True, repr_omit_defaults=True):
    """The step that is executed: its run, id and attempt. Its key is the same in every attempt of this step.

    From the second generation of the run on, the key contains the generation: `order-7~2:charge`.
    """

    run_id: str
    step_id: str
    attempt: int
    generation: int = 1
    _streams: AttemptStreams | None = None
    _heartbeats: AttemptHeartbeats | None = None

    def stream(self, name: str, *, type: Any = None) -> StreamWriter:
        """A stream of the run, to which this step writes items for readers: `stream("tokens").write("Hello")`.

        The items are stored before the result of this attempt. `type` is what they are written as, where they are not
        plain JSON. After the end of this attempt, `write` raises `StreamWriteRefused`.
        """
        if self._streams is None:
            raise InvalidOption(
                f"the step {self.step_id!r} is a transaction, which cannot write to a stream: another connection would "
                "have to write beside it. Write before or after it, in the workflow or in a step."
            )
        return self._streams.stream(checked_key(name, what="stream name"), type)

    def heartbeat(self, details: Any = None, *, type: Any = None) -> None:
        """Show that the step works: with `heartbeat_timeout=`, an attempt that does not call this in time has failed.

        It never waits, and may be called in a tight loop and from a thread. The next attempt finds the last `details`,
        up to 16 KiB, in `heartbeat_details`; None keeps those of the last call. `type` is what they are written as,
        where they are not plain JSON. After the end of this attempt it raises `AttemptEnded`.
        """
        if self._heartbeats is None:
            raise InvalidOption(
                f"the step {self.step_id!r} is a transaction, which sends no heartbeats: another connection would have "
                "to write beside it. Make it short, and do what takes long in a step."
            )
        self._heartbeats.beat(details, type)

    @property
    def heartbeat_details(self) -> Any:
        """The details of the last heartbeat of an earlier attempt, as plain JSON values; None if there are none."""
        return None if self._heartbeats is None else self._heartbeats.last()

    @property
    def idempotency_key(self) -> str:
        """Pass this key to the service that executes an effect, so that the effect happens once."""
        return f"{generation_id(self.run_id, self.generation)}:{self.step_id}"


_current_step: ContextVar[StepInfo | None] = ContextVar("holdfast_step", default=None)


def step_scope(info: StepInfo) -> None:
    """Mark the code that is executed from now on as the body of a step, not as workflow code."""
    _current_step.set(info)
    current_context.set(None)


def current_run() -> Context | None:
    """The context of the run whose workflow code calls this; None everywhere else, also in the body of a step.

    A function that is used both inside and outside of workflows can ask where it is called:

    >>> current_run() is None
    True
    """
    return current_context.get()


def current_step() -> StepInfo:
    """The step whose body is running."""
    info = _current_step.get()
    if info is None:
        raise InvalidOption("there is no step here: current_step() is for the body of a step")
    return info


class StepCall:
    """A step that workflow code waits for."""

    __slots__ = (
        "again_at", "args", "arguments", "attempts", "function", "future", "heartbeat_timeout", "id", "name", "options",
        "output", "retry", "running", "timeout", "transaction",
    )  # fmt: skip

    def __init__(
        self,
        *,
        id: str,
        name: str,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        options: dict[str, Any],
        arguments: str,
        output: Any,
        retry: Retry,
        timeout: float | None,
        transaction: bool,
        future: asyncio.Future[Any],
        heartbeat_timeout: float | None = None,
    ) -> None:
        self.id, self.name, self.function, self.args, self.options = id, name, function, args, options
        self.arguments, self.output, self.retry, self.timeout = arguments, output, retry, timeout
        self.transaction, self.future = transaction, future
        self.heartbeat_timeout = heartbeat_timeout
        self.attempts = 0
        self.again_at = 0
        self.running: asyncio.Future[Any] | None = None

    @property
    def longest(self) -> float | None:
        """Seconds for which an attempt can go on without a heartbeat, at most; None: for any time."""
        return min((one for one in (self.timeout, self.heartbeat_timeout) if one is not None), default=None)


class SlotWork(NamedTuple):
    """The change that a step makes to a state slot, and the type of its result."""

    address: Address
    decide: Decide[Any]
    output: Any


class Received(NamedTuple):
    """A signal that the code has received, and its payload as it was read."""

    event: RunEvent
    value: Any


class Context(ContextLocks, ContextRequests, ContextChildren):
    """The context of one run."""

    def __init__(self, code: Replay, *, seed: str) -> None:
        self._code = code
        self._counts: dict[str, int] = {}
        self._unfit: dict[str, InvalidValue] = {}  # signals that could not be read, by name
        self._untaken: dict[str, list[Received]] = {}  # signals that a cancelled call of `signals` has received
        self._collected: list[list[Received]] = []  # what each call of `signals` has received that has not returned
        self._random = random.Random(seed)
        self.run_id = code.run.id
        self.workflow_name = workflow_of(code.run.type)
        self.attempt = code.attempt
        self.generation = code.run.generation
        self.log = ReplayLogger(logging.getLogger("holdfast.run"), code)
        self.state = RunStates(code, self._change_state)

    def __repr__(self) -> str:
        return f"<Context {self.workflow_name} {self.run_id}>"

    # -- steps ------------------------------------------------------------------------------------------

    @overload
    def step(
        self,
        name: str,
        function: Step[..., R],
        *args: Any,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        heartbeat_timeout: Duration | None = None,
        fingerprint: Any = None,
        **options: Any,
    ) -> Coroutine[Any, Any, R]: ...
    @overload
    def step(
        self,
        name: str,
        function: Callable[..., Coroutine[Any, Any, R]],
        *args: Any,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        heartbeat_timeout: Duration | None = None,
        fingerprint: Any = None,
        **options: Any,
    ) -> Coroutine[Any, Any, R]: ...
    @overload
    def step(
        self,
        name: str,
        function: Callable[..., R],
        *args: Any,
        retry: Retry | None = None,
        timeout: Duration | None = None,
        heartbeat_timeout: Duration | None = None,
        fingerprint: Any = None,
        **options: Any,
    ) -> Coroutine[Any, Any, R]: ...
    async def step(self, name: str, function: Any, *args: Any, **options: Any) -> Any:
        """Run a function once and record its result; after a crash the recorded result is used.

        `retry=Retry(...)`, `timeout=` (of one attempt), `heartbeat_timeout=` (the longest time between two calls of
        `current_step().heartbeat()`) and `fingerprint=` (a JSON value that identifies the arguments, where they cannot
        be hashed) are for the step; all other arguments are for the function.
        """
        retry: Retry | None = options.pop("retry", None)
        timeout: Duration | None = options.pop("timeout", None)
        heartbeat_timeout: Duration | None = options.pop("heartbeat_timeout", None)
        fingerprint: Any = options.pop("fingerprint", None)
        step = step_of(function)
        if step is not None:
            retry = step.retry if retry is None else retry
            timeout = step.timeout if timeout is None else timeout
            heartbeat_timeout = step.heartbeat_timeout if heartbeat_timeout is None else heartbeat_timeout
            fingerprint = step.fingerprint if fingerprint is None else fingerprint
            function = step.function
        if not callable(function):
            if inspect.iscoroutine(function):
                function.close()
            raise InvalidWorkflow(
                f"the step {name!r} is given {function!r} to call, which is no function: give the function and "
                "its arguments, ctx.step(name, function, *args)"
            )
        return await self._call(
            name,
            function,
            args,
            options,
            retry=retry,
            timeout=timeout,
            heartbeat_timeout=heartbeat_timeout,
            fingerprint=fingerprint,
        )

    async def call(self, step: Step[Any, Any], args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """Call a step by itself: all arguments are for its function."""
        return await self._call(
            step.name,
            step.function,
            args,
            options,
            retry=step.retry,
            timeout=step.timeout,
            heartbeat_timeout=step.heartbeat_timeout,
            fingerprint=step.fingerprint,
        )

    async def transaction(self, name: str, function: Callable[..., R], *args: Any) -> R:
        """Run `function(connection, *args)` and record its result in one transaction of the store's own database.

        Writes of the function through the connection are made exactly once, also after a crash.
        """
        if not self._code.transactional:
            raise NotInWorkflow(
                "ctx.transaction needs a store that is a database for your own tables too: SQLite, PostgreSQL, MySQL "
                "or MariaDB. On this store use ctx.step, and current_step().idempotency_key to make its effect happen "
                "once."
            )
        if inspect.iscoroutinefunction(function):
            raise InvalidWorkflow(f"the transaction {name!r} runs in a thread: it must be a plain function, not async")
        value: R = await self._call(name, function, args, {}, transaction=True)
        return value

    async def _call(
        self,
        name: str,
        function: Any,
        args: tuple[Any, ...],
        options: dict[str, Any],
        *,
        retry: Retry | None = None,
        timeout: Duration | None = None,  # noqa: ASYNC109  (of the step)
        heartbeat_timeout: Duration | None = None,
        transaction: bool = False,
        fingerprint: Any = None,
    ) -> Any:
        if self._code.over:
            await self._code.out()
        self._code.check()
        call = self._code.new_call(
            id=self._next_id(checked_name(name, "step name")),
            name=name,
            function=function,
            args=args,
            options=options,
            retry=checked_retry(retry) or ONCE,
            timeout=None if timeout is None else seconds(timeout, what="timeout"),
            heartbeat_timeout=checked_heartbeat_timeout(heartbeat_timeout),
            transaction=transaction,
            arguments=arguments_of(name, fingerprint, args, options),
        )
        return await self._result(call)

    async def _result(self, call: StepCall) -> Any:
        try:
            return await call.future
        except asyncio.CancelledError:
            self._code.drop_call(call)
            raise

    async def _change_state(self, name: str, address: Address, decide: Decide[Any], output: Any) -> Any:
        if self._code.over:
            await self._code.out()
        call = self._code.new_call(
            id=self._next_id(f"state#{address[2]}.{name}"),
            name=name,
            function=SlotWork(address, decide, output),
            args=(address, name),
            options={},
            retry=ONCE,
            timeout=None,
            transaction=True,
            arguments=arguments_of(name, None, (address, name), {}),
        )
        return await self._result(call)

    def _next_id(self, name: str) -> str:
        count = self._counts[name] = self._counts.get(name, 0) + 1
        return name if count == 1 else f"{name}#{count}"

    # -- time and chance --------------------------------------------------------------------------------

    def now(self) -> datetime:
        """The time of the workflow: the time of the last result or event that it received."""
        self._code.check()
        return time_of(self._code.loop.now)

    def random(self) -> float:
        """A number between 0 and 1, the same on every replay."""
        self._code.check()
        return self._random.random()

    def uuid4(self) -> uuid.UUID:
        """A random id, the same on every replay."""
        self._code.check()
        return uuid.UUID(int=self._random.getrandbits(128), version=4)

    @property
    def history_length(self) -> int:
        """How many entries of the history this run has received, since its last `continue_as_new`."""
        self._code.check()
        return self._code.delivered

    @property
    def cancel_reason(self) -> str | None:
        """Why this run was cancelled, as in the message of the `asyncio.CancelledError`; None without a reason."""
        self._code.check()
        return self._code.cancel_reason

    def continue_as_new(self, input: Any = None) -> ContinueAsNew:
        """Begin again with a new input and an empty history: `raise ctx.continue_as_new(input)`.

        The run keeps its id, its places in limits, its unread signals and the locks whose blocks are open. After the
        call no further operation begins: every use of `ctx` raises the same exception.
        """
        self._code.check()
        workflow = self._code.workflow
        if not workflow.takes_input and input is not None:
            raise InvalidValue(f"the workflow {workflow.name!r} takes no input, and was given {input!r}")
        what = f"the input of {workflow.name!r}"
        return self._code.continue_as_new(
            encode_value(workflow.given(input), workflow.input_type, what=what, max_bytes=self._code.max_bytes)
        )

    def patched(self, name: str) -> bool:
        """Whether this run takes a changed part of the workflow: False if it has passed this place with older code.

        The answer is recorded. The first call with a name decides for the run.
        """
        self._code.check()
        return self._code.patches.patched(name)

    def deprecate_patch(self, name: str) -> None:
        """Use this instead of `patched` when no run takes the old branch any more; the marker is still recorded."""
        self._code.check()
        self._code.patches.patched(name)

    async def sleep(self, duration: Duration) -> None:
        """Wait for a duration, also across crashes; a run that waits for long costs one row."""
        if self._code.over:
            await self._code.out()
        self._code.check()
        await asyncio.sleep(seconds(duration, what="a sleep"))

    async def sleep_until(self, when: datetime) -> None:
        """Wait until a moment, given with its time zone."""
        if self._code.over:
            await self._code.out()
        if not isinstance(when, datetime) or when.tzinfo is None:
            raise InvalidOption(f"sleep_until needs a time with a time zone, such as datetime.now(UTC), not {when!r}")
        self._code.check()
        await asyncio.sleep(max(0.0, (when - self.now()).total_seconds()))

    def stream(self, name: str, *, type: Any = None) -> StreamWriter:
        """A stream of this run, for readers that follow it: `ctx.stream("progress").write("packed")`.

        An item is stored with the entries of the history that it follows from, and a replay adds none. `type` is what
        items are written as, where they are not plain JSON. A step writes with `current_step().stream(name)`.
        """
        self._code.check()
        return self._code.streams.stream(name, type)

    # -- others -----------------------------------------------------------------------------------------

    @overload
    def wait_for_signal(
        self, name: str, *, type: type[R], timeout: Duration | None = None
    ) -> Coroutine[Any, Any, R]: ...
    @overload
    def wait_for_signal(
        self, name: str, *, type: Any = None, timeout: Duration | None = None
    ) -> Coroutine[Any, Any, Any]: ...
    async def wait_for_signal(self, name: str, *, type: Any = None, timeout: Duration | None = None) -> Any:  # noqa: ASYNC109
        """Wait for the next signal of this name and return its payload. Raises `TimeoutError` after `timeout`.

        The payload is converted to `type`; without `type` it is plain JSON.
        """
        return (await self._received(name, type, timeout)).value

    async def _received(self, name: str, type: Any, timeout: Duration | None) -> Received:  # noqa: ASYNC109
        if self._code.over:
            await self._code.out()
        checked_key(name, what="signal name")
        if self._untaken.get(name):
            self._code.check()
            return self._untaken[name].pop(0)
        read_as = Any if type is None else type
        if timeout is None:
            return await self._code.wait_for_signal(name, self._next_id(f"signal:{name}"), read_as)
        async with asyncio.timeout(seconds(timeout, what="timeout")):
            return await self._code.wait_for_signal(name, self._next_id(f"signal:{name}"), read_as)

    @overload
    def signals(self, name: str, *, type: type[R]) -> Coroutine[Any, Any, list[R]]: ...
    @overload
    def signals(self, name: str, *, type: Any = None) -> Coroutine[Any, Any, list[Any]]: ...
    async def signals(self, name: str, *, type: Any = None) -> list[Any]:
        """Return all signals of this name that have arrived, in their order, without waiting; maybe none.

        Each payload is converted to `type`; without `type` it is plain JSON. If a payload does not fit, the payloads
        before it are returned, and the next call raises `InvalidValue`.
        """
        if (unfit := self._unfit.pop(name, None)) is not None:
            raise unfit
        found = self._untaken.pop(name, [])
        self._collected.append(found)
        try:
            while True:
                found.append(await self._received(name, type, 0))
        except TimeoutError:
            pass
        except InvalidValue as error:
            if not found:
                raise
            self._unfit[name] = error
        except BaseException:  # the caller has not got them
            both = [*self._untaken.get(name, ()), *found]
            self._untaken[name] = sorted(both, key=lambda signal: signal.event.number)
            raise
        finally:
            self._collected = [one for one in self._collected if one is not found]
        return [signal.value for signal in found]

    async def set_attributes(self, **attributes: Scalar) -> None:
        """Set attributes by which lists find this run; attributes that are not named stay."""
        if self._code.over:
            await self._code.out()
        self._code.set_attributes(checked_attributes(attributes))


for _part in (ContextChildren, ContextRequests):  # the warning about a call without `await` names it as users know it
    for _name, _member in vars(_part).items():
        if inspect.iscoroutinefunction(_member):
            _member.__qualname__ = f"Context.{_name}"


def arguments_of(step: str, fingerprint: Any, args: tuple[Any, ...], options: dict[str, Any]) -> str:
    """The hash by which a replay compares the arguments of a step: of them, or of what identifies them.

    `fingerprint` is a JSON value, or a function that returns one.
    """
    if fingerprint is None:
        return journal.arguments_hash(args, options)
    value = fingerprint(*args, **options) if callable(fingerprint) else fingerprint
    what = f"the fingerprint of the arguments of the step {step!r}"
    text = encode_value(value, what=what, advice="A fingerprint is text or another JSON value")
    return journal.arguments_hash((text,), {})


def untaken_signals(context: Context) -> tuple[RunEvent, ...]:
    """Signals that were delivered to a call of `signals` that was cancelled, or that has not returned yet."""
    lists = (*context._untaken.values(), *context._collected)  # noqa: SLF001  (of this module)
    return tuple(signal.event for found in lists for signal in found)


class ReplayLogger(logging.LoggerAdapter[logging.Logger]):
    """A logger that is silent while a history is replayed, so that each line is logged once."""

    def __init__(self, logger: logging.Logger, code: Replay) -> None:
        super().__init__(logger, {"run_id": code.run.id})
        self._code = code

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802  (the name is logging's)
        """Whether this would be logged now."""
        logged = self._code.replaying and self._code.run.claims > 1  # by an earlier claim
        return not logged and super().isEnabledFor(level)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Add the run to the message."""
        return f"[{self._code.run.id}] {msg}", kwargs
