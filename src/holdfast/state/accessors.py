"""Access to states: `client.state("key")`, and the states of workflows and runs, by their names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar, overload

from ..rules.slot import Address
from ..runtime.base import BaseClient
from ..validation import checked_key
from .atomic import MAX_RETRIES, NOTHING, AsyncAtomicState, AtomicState, BaseState

T = TypeVar("T")
StateT = TypeVar("StateT", bound=BaseState[Any])


class _BaseStates(Generic[StateT]):
    _state_type: Callable[..., StateT]

    def __init__(self, client: BaseClient) -> None:
        self._client = client

    def _at(self, address: Address, initial: object, type: Any, max_retries: int) -> StateT:
        checked_key(address[2])
        return self._state_type(self._client, address, initial=initial, type=type, max_retries=max_retries)


class States(_BaseStates[AtomicState[Any]]):
    """`client.state`: values that many processes change.

    >>> from holdfast import Client
    >>> with Client("memory://") as hf:
    ...     hf.state("settings").merge({"mode": "slow"})
    {'mode': 'slow'}
    """

    _state_type = AtomicState

    @overload
    def __call__(
        self, key: str, initial: T, *, type: type[T] | None = None, max_retries: int = MAX_RETRIES
    ) -> AtomicState[T]: ...
    @overload
    def __call__(self, key: str, *, type: type[T], max_retries: int = MAX_RETRIES) -> AtomicState[T]: ...
    @overload
    def __call__(self, key: str, *, type: None = None, max_retries: int = MAX_RETRIES) -> AtomicState[Any]: ...
    def __call__(
        self, key: str, initial: Any = NOTHING, *, type: Any = None, max_retries: int = MAX_RETRIES
    ) -> AtomicState[Any]:
        """A value that all clients of the namespace share under this key.

        `initial` is the value before the first write. `type` is the type that the value is read as (any type that
        msgspec supports); without it, the value is plain JSON. `AtomicStateConflictError` is raised if other writers
        were faster more than `max_retries` times in a row.
        """
        return self._at(("global", "", key), initial, type, max_retries)

    def workflow(
        self, name: str, key: str, initial: Any = NOTHING, *, type: Any = None, max_retries: int = MAX_RETRIES
    ) -> AtomicState[Any]:
        """The state that all runs of this workflow share."""
        return self._at(("workflow", checked_key(name, what="workflow name"), key), initial, type, max_retries)

    def execution(
        self, run_id: str, key: str, initial: Any = NOTHING, *, type: Any = None, max_retries: int = MAX_RETRIES
    ) -> AtomicState[Any]:
        """The state that a run shares with its children."""
        return self._at(("execution", checked_key(run_id, what="run id"), key), initial, type, max_retries)


class AsyncStates(_BaseStates[AsyncAtomicState[Any]]):
    """`client.state` of an async client."""

    _state_type = AsyncAtomicState

    @overload
    def __call__(
        self, key: str, initial: T, *, type: type[T] | None = None, max_retries: int = MAX_RETRIES
    ) -> AsyncAtomicState[T]: ...
    @overload
    def __call__(self, key: str, *, type: type[T], max_retries: int = MAX_RETRIES) -> AsyncAtomicState[T]: ...
    @overload
    def __call__(self, key: str, *, type: None = None, max_retries: int = MAX_RETRIES) -> AsyncAtomicState[Any]: ...
    def __call__(
        self, key: str, initial: Any = NOTHING, *, type: Any = None, max_retries: int = MAX_RETRIES
    ) -> AsyncAtomicState[Any]:
        """A value that all clients of the namespace share under this key. The options are those of `Client.state`."""
        return self._at(("global", "", key), initial, type, max_retries)

    def workflow(
        self, name: str, key: str, initial: Any = NOTHING, *, type: Any = None, max_retries: int = MAX_RETRIES
    ) -> AsyncAtomicState[Any]:
        """The state that all runs of this workflow share."""
        return self._at(("workflow", checked_key(name, what="workflow name"), key), initial, type, max_retries)

    def execution(
        self, run_id: str, key: str, initial: Any = NOTHING, *, type: Any = None, max_retries: int = MAX_RETRIES
    ) -> AsyncAtomicState[Any]:
        """The state that a run shares with its children."""
        return self._at(("execution", checked_key(run_id, what="run id"), key), initial, type, max_retries)
