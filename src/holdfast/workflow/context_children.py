"""`ctx.child` and `ctx.start_child`: the children of a run, and the handles by which the code reaches them.

A signal to a child is a recorded step: it is sent after the start of the child is stored, with a key that is made of
the run, its generation and the place in the code. So a child gets it once, also if the code is replayed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar, get_args, overload

from ..errors import InvalidOption, RunEnded
from ..rules.runs.record import NewRun, OnParentEnd, generation_id
from ..runtime.codec import encode_message, encode_value
from ..validation import Duration, checked_key
from .attempts import marked
from .cancelling import checked_reason
from .definition import Workflow
from .limits import places_of
from .start import checked_run_id, microseconds_of

if TYPE_CHECKING:
    from .context import StepCall
    from .replay import Replay

I = TypeVar("I")  # noqa: E741
O = TypeVar("O")  # noqa: E741


ParentEnd = Literal["cancel", "abandon"]


class ChildSignal(NamedTuple):
    """The signal that a step sends to a child."""

    child: str
    name: str
    payload: str


def signal_of(call: StepCall) -> ChildSignal:
    """The signal that a step sends."""
    signal: Any = call.function
    assert isinstance(signal, ChildSignal)  # noqa: S101
    return signal


class ChildHandle(Generic[O]):
    """A child that was started: wait for its result, send it signals, cancel it."""

    def __init__(self, context: ContextChildren, id: str, output: Any, place: str) -> None:
        self._context, self.id, self._output, self._place = context, id, output, place

    async def result(self) -> O:
        """Wait for the child's end. Raises `WorkflowFailed` if it did not complete."""
        value: O = await self._context._child_result(self.id, self._output)  # noqa: SLF001
        return value

    async def signal(self, name: str, payload: Any = None) -> None:
        """Send the child a signal, once, also if the workflow is replayed.

        Raises `RunEnded` if the child has ended, or could not be started.
        """
        await self._context._signal_child(self.id, self._place, name, payload)  # noqa: SLF001

    async def cancel(self, reason: str | None = None) -> None:
        """Request that the child stops, for this reason if there is one; `result()` waits for its end.

        It has no effect on a child that has ended.
        """
        await self._context._cancel_child(self.id, reason)  # noqa: SLF001

    def __repr__(self) -> str:
        return f"<ChildHandle {self.id}>"


class ContextChildren:
    """The part of a context that is about children."""

    _code: Replay
    attempt: int
    generation: int
    run_id: str

    def _next_id(self, name: str) -> str:
        raise NotImplementedError

    @overload
    def start_child(
        self,
        workflow: Workflow[I, O],
        input: I,
        *,
        id: str | None = None,
        on_parent_end: ParentEnd | None = None,
        timeout: Duration | None = None,
        delay: Duration | None = None,
    ) -> Coroutine[Any, Any, ChildHandle[O]]: ...
    @overload
    def start_child(
        self,
        workflow: Workflow[None, O],
        *,
        id: str | None = None,
        on_parent_end: ParentEnd | None = None,
        timeout: Duration | None = None,
        delay: Duration | None = None,
    ) -> Coroutine[Any, Any, ChildHandle[O]]: ...
    async def start_child(
        self,
        workflow: Workflow[Any, Any],
        input: Any = None,
        *,
        id: str | None = None,
        on_parent_end: ParentEnd | None = None,
        timeout: Duration | None = None,  # noqa: ASYNC109  (of the child)
        delay: Duration | None = None,
    ) -> ChildHandle[Any]:
        """Start a run of another workflow as a child of this one, and continue.

        `timeout` is used instead of that of its workflow; the child begins after `delay`, at the earliest. When this
        run ends, the child is cancelled in any case (`on_parent_end="cancel"`), or continues in any case ("abandon").
        Without it, the child is cancelled if this run is cancelled or times out, and otherwise continues.
        """
        if self._code.over:
            await self._code.out()
        self._code.check()
        if not isinstance(workflow, Workflow):
            raise InvalidOption(f"{workflow!r} is no workflow: a child is started by its function, made by @workflow")
        place = self._next_id(workflow.name)
        run = generation_id(self.run_id, self.generation)
        own = self._code.inherited_child(place)
        own = own or marked(f"{run}/{place}", self.attempt)  # a later attempt may give it another input
        child = checked_key(own, what="run id") if id is None else checked_run_id(id)
        what = f"the input of {workflow.name!r}"
        value = workflow.given(input)
        text = encode_value(value, workflow.input_type, what=what, max_bytes=self._code.max_bytes)
        new = NewRun(
            id=child,
            type=workflow.type,
            input=text,
            request=f"{run}:{place}",
            parent=self.run_id,
            root=self._code.run.root,
            places=places_of(workflow.terms, workflow.name, workflow.limits, text, workflow.input_type),
            on_parent_end=_checked_policy(on_parent_end),
            timeout=microseconds_of(timeout, "timeout"),
            delay=microseconds_of(delay, "delay") or 0,
        )
        self._code.start_child(new)
        return ChildHandle(self, child, workflow.output_type, place)

    @overload
    def child(
        self,
        workflow: Workflow[I, O],
        input: I,
        *,
        id: str | None = None,
        on_parent_end: ParentEnd | None = None,
        timeout: Duration | None = None,
        delay: Duration | None = None,
    ) -> Coroutine[Any, Any, O]: ...
    @overload
    def child(
        self,
        workflow: Workflow[None, O],
        *,
        id: str | None = None,
        on_parent_end: ParentEnd | None = None,
        timeout: Duration | None = None,
        delay: Duration | None = None,
    ) -> Coroutine[Any, Any, O]: ...
    async def child(
        self,
        workflow: Workflow[Any, Any],
        input: Any = None,
        *,
        id: str | None = None,
        on_parent_end: ParentEnd | None = None,
        timeout: Duration | None = None,  # noqa: ASYNC109  (of the child)
        delay: Duration | None = None,
    ) -> Any:
        """Start a child and wait for its result. Raises `WorkflowFailed` if it does not complete."""
        handle = await self.start_child(
            workflow, input, id=id, on_parent_end=on_parent_end, timeout=timeout, delay=delay
        )
        return await handle.result()

    async def _child_result(self, id: str, output: Any) -> Any:
        if self._code.over:
            await self._code.out()
        try:
            text = await self._code.wait_for_child(id)
        except asyncio.CancelledError:
            if self._code.policy_of(id) != "abandon":
                self._code.cancel_child(id)
            raise
        what = f"the result of the run {id!r}"
        return await self._code.read(text, output, id=f"child:{id}", what=what, recorded=True)

    async def _signal_child(self, id: str, place: str, name: str, payload: Any) -> None:
        code = self._code
        if code.over:
            await code.out()
        code.check()
        text = encode_message(payload, what=f"the signal {name!r}", max_bytes=code.max_bytes)
        signal = ChildSignal(id, checked_key(name, what="signal name"), text)
        step = self._next_id(f"signal#{place}.{_without_number_signs(name)}")
        call = code.signal_child(signal, step)
        try:
            answer = await call.future
        except asyncio.CancelledError:
            code.drop_call(call)
            raise
        if answer is not None:
            raise RunEnded(f"{answer['why']} The signal {name!r} was not sent.", run_id=id, status=answer["status"])

    async def _cancel_child(self, id: str, reason: str | None) -> None:
        if self._code.over:
            await self._code.out()
        self._code.check()
        self._code.cancel_child(id, checked_reason(reason))


def _checked_policy(on_parent_end: ParentEnd | None) -> OnParentEnd:
    if on_parent_end is not None and on_parent_end not in get_args(ParentEnd):
        raise InvalidOption(f"on_parent_end={on_parent_end!r} is neither 'cancel' nor 'abandon'. Nothing was started.")
    return on_parent_end or ""


def _without_number_signs(name: str) -> str:
    """The name of a signal as a part of the id of a step: a number sign separates the count from it."""
    return name.replace("%", "%25").replace("#", "%23")
