"""`ctx.state`: values that are kept between steps, by their scope.

`workflow` and `execution` are the slots of `client.state`, shared with other runs and with processes outside. A
change is written in the same atomic step as its entry in the run's journal, so it is made once, also after a crash.
`session` is private to the run: it is kept in the workflow's memory, and every replay computes the same value.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from ..rules.slot import Address
from ..state.atomic import NOTHING, AsyncState, SyncState
from ..state.compare_and_swap import Decide
from ..state.pending_writes import PendingValue
from ..validation import checked_key

if TYPE_CHECKING:
    from .replay import Replay

T = TypeVar("T")
A = TypeVar("A")

Change = Callable[[str, Address, Decide[Any], Any], Awaitable[Any]]
"""Changes or reads a slot, as a step: its name, the slot, the function that decides, and the type of the result."""
UNWRITTEN = PendingValue("", 0, None, fresh=True)


class RunStates:
    """The states of one run, by scope."""

    def __init__(self, code: Replay, change: Change) -> None:
        self._code, self._change = code, change
        self._session: dict[str, PendingValue] = {}

    def workflow(self, key: str, initial: Any = NOTHING, *, type: Any = None) -> RunState[Any]:
        """The slot that all runs of this workflow share; outside, `client.state.workflow(name, key)`."""
        return self._shared(("workflow", self._code.run.workflow, checked_key(key)), initial, type)

    def execution(self, key: str, initial: Any = NOTHING, *, type: Any = None) -> RunState[Any]:
        """The slot that a run shares with its children; outside, `client.state.execution(id of the first run, key)`."""
        return self._shared(("execution", self._code.run.root, checked_key(key)), initial, type)

    def session(self, key: str, initial: Any = NOTHING, *, type: Any = None) -> SessionState[Any]:
        """A value of this run alone, which no other run and no child can read. Its methods are not awaited."""
        return SessionState(self._code, checked_key(key), self._session, initial=initial, type=type)

    def _shared(self, address: Address, initial: Any, type: Any) -> RunState[Any]:
        return RunState(self._code, self._change, address, initial=initial, type=type)


class RunState(AsyncState[T]):
    """A slot, changed from within a run: each call is a step, and its change is made exactly once."""

    def __init__(self, code: Replay, change: Change, address: Address, *, initial: object, type: Any) -> None:
        self._change = change
        super().__init__(address, initial=initial, type=type, max_bytes=code.max_bytes)

    async def _do(self, name: str, decide: Decide[A], answer: Any) -> A:
        output = answer if answer is Any or answer is None else answer | None
        done: A = await self._change(name, self._address, decide, output)
        return done


class SessionState(SyncState[T]):
    """A value of one run, in the memory of its workflow."""

    def __init__(self, code: Replay, key: str, values: dict[str, PendingValue], *, initial: object, type: Any) -> None:
        self._code, self._values = code, values
        super().__init__(("execution", code.run.id, key), initial=initial, type=type, max_bytes=code.max_bytes)

    def _do(self, decide: Decide[A]) -> A:
        self._code.check()
        before = self._values.get(self.key, UNWRITTEN)
        change, answer = decide(before)
        if change is not None:
            self._values[self.key] = PendingValue("", before.version + 1, change.value, fresh=True)
        return answer
