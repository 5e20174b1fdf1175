"""One value that many processes change, by compare-and-swap: `AtomicState` and `AsyncAtomicState`.

A change is made completely or not at all, and none is lost. A function that computes the new value may be called
several times and must only compute. A value that was deleted reads as None, and its `initial` is not used again.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import isawaitable
from typing import Any, Generic, TypeVar, cast

from ..errors import InvalidOption, InvalidValue
from ..rules.slot import Address
from ..runtime.base import BaseClient
from ..runtime.codec import decode_value, encode_value
from ..runtime.runners import run, run_async
from .compare_and_swap import Decide, Decision, SlotChange, read, transact
from .pending_writes import PendingValue

MAX_RETRIES = 50

T = TypeVar("T")
A = TypeVar("A")


class _Nothing:
    """No initial value was given."""


NOTHING = _Nothing()


class BaseState(Generic[T]):
    """The common part of all states: the address, reading and writing the value, and the decisions."""

    def __init__(self, address: Address, *, initial: object, type: Any, max_bytes: int) -> None:
        if isinstance(type, str):
            raise InvalidOption(f"type cannot be the text {type!r}: pass the type itself, such as int or a dataclass")
        self._address = address
        self._type = Any if type is None else type
        self._max_bytes = max_bytes
        # Kept as text, so that each reader gets its own value.
        self._initial = None if isinstance(initial, _Nothing) else self._text(initial)

    @property
    def key(self) -> str:
        """The name of the state."""
        return self._address[2]

    @property
    def _what(self) -> str:
        return f"the state {self.key!r}"

    @property
    def _typed(self) -> bool:
        """Whether the value is read as a type."""
        return self._type is not Any

    def __repr__(self) -> str:
        scope, owner, key = self._address
        return f"<{type(self).__name__} {key!r}" + (f" of {scope} {owner!r}>" if owner else ">")

    def _value(self, link: PendingValue) -> T | None:
        text = link.value if link.version else self._initial
        return None if text is None else cast("T", decode_value(text, self._type, what=self._what))

    def _text(self, value: object) -> str:
        return encode_value(
            value, self._type, what=self._what, max_bytes=self._max_bytes, advice="pass its type as `type`"
        )

    # -- the decisions ------------------------------------------------------------------------------------

    def _replaced(self, value: object) -> Decide[None]:
        """Replace the value, whatever it is; it need not even be readable."""
        change = SlotChange(None if value is DELETE else self._text(value))
        return lambda _link: (change, None)

    def _decided(self, decide: Callable[[T | None], tuple[object, A]]) -> Decide[A]:
        """Change the value by a decision: the new value (or KEEP), and the result for the caller."""

        def on_link(link: PendingValue) -> Decision[A]:
            value, answer = decide(self._value(link))
            return None if value is KEEP else SlotChange(self._text(value)), answer

        return on_link

    def _updated(self, function: Callable[[T | None], T]) -> Decide[T]:
        def decide(value: T | None) -> tuple[object, T]:
            new = function(value)
            if isawaitable(new):
                if hasattr(new, "close"):
                    new.close()
                raise InvalidOption(
                    "update() takes a sync function that only computes: this one is async. Nothing was changed."
                )
            if new is None and value is not None:
                raise InvalidValue(
                    f"the function given to update() returned None, so {self._what} was not changed: it must return "
                    "the new value, also if it changes the old one in place. To remove the value, call delete()."
                )
            return new, new

        return self._decided(decide)

    def _added(self, number: float) -> Decide[Any]:
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise InvalidOption(f"increment() and decrement() take a number, not {number!r}")

        def decide(value: T | None) -> tuple[object, Any]:
            new = self._expect(value, (int, float), "a number", 0) + number
            return new, new

        return self._decided(decide)

    def _merged(self, fields: dict[str, Any]) -> Decide[Any]:
        if not isinstance(fields, dict):
            raise InvalidOption(f"merge() takes a dictionary, not {type(fields).__name__}")

        def decide(value: T | None) -> tuple[object, Any]:
            new = {**self._expect(value, (dict,), "an object", {}), **fields}
            return new, new

        return self._decided(decide)

    def _appended(self, item: object) -> Decide[Any]:
        def decide(value: T | None) -> tuple[object, Any]:
            new = [*self._expect(value, (list,), "a list", []), item]
            return new, new

        return self._decided(decide)

    def _removed(self, place: int) -> Decide[Any]:
        def decide(value: T | None) -> tuple[object, Any]:
            items = list(self._expect(value, (list,), "a list", []))
            if not items:
                return KEEP, None
            item = items.pop(place)
            return items, item

        return self._decided(decide)

    def _expect(self, value: object, kinds: tuple[type, ...], name: str, absent: Any) -> Any:
        if value is None:
            return absent
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise InvalidValue(f"{self._what} holds {type(value).__name__}, not {name}: it was not changed")
        return value


KEEP = object()
"""A decision not to change the value."""
DELETE = object()
"""A decision to delete the value."""


class SyncState(BaseState[T]):
    """The methods of a state in sync code, wherever it is stored."""

    def _do(self, decide: Decide[A]) -> A:
        """Execute a decision."""
        raise NotImplementedError

    def get(self) -> T | None:
        """The current value; `initial` before the first write, None after a delete."""
        return self._do(lambda link: (None, self._value(link)))

    def set(self, value: T) -> None:
        """Replace the value."""
        self._do(self._replaced(value))

    def update(self, function: Callable[[T | None], T]) -> T:
        """Replace the value by the function's result, and return that.

        The function may be called several times and must only compute. Its argument is None where there is no value.
        """
        return self._do(self._updated(function))

    def delete(self) -> None:
        """Remove the value. A caller that computed from it and has not written yet cannot bring it back."""
        self._do(self._replaced(DELETE))

    def increment(self, by: float = 1) -> Any:
        """Add a number, beginning at 0 where there is no value. Returns the sum."""
        return self._do(self._added(by))

    def decrement(self, by: float = 1) -> Any:
        """Subtract a number, beginning at 0 where there is no value. Returns the difference."""
        return self._do(self._added(-by))

    def merge(self, fields: dict[str, Any]) -> Any:
        """Set these fields of an object and keep the others. Returns the whole object."""
        return self._do(self._merged(fields))

    def append(self, item: object) -> Any:
        """Append an item to a list. Returns the list."""
        return self._do(self._appended(item))

    def remove_first(self) -> Any:
        """Remove the first item of a list and return it; None where there is none."""
        return self._do(self._removed(0))

    def remove_last(self) -> Any:
        """Remove the last item of a list and return it; None where there is none."""
        return self._do(self._removed(-1))


class AtomicState(SyncState[T]):
    """One value that many processes change, in sync code.

    >>> from holdfast import Client
    >>> with Client("memory://") as hf:
    ...     seats = hf.state("seats", initial=3)
    ...     seats.decrement(), seats.get()
    (2, 2)
    """

    def __init__(self, client: BaseClient, address: Address, *, initial: object, type: Any, max_retries: int) -> None:
        self._runtime, self._max_retries = client.runtime, checked_retries(max_retries)
        super().__init__(address, initial=initial, type=type, max_bytes=client.max_bytes)

    def get(self) -> T | None:
        """The current value; `initial` before the first write, None after a delete."""
        return self._value(run(read(self._address), self._runtime.batchers))

    def _do(self, decide: Decide[A]) -> A:
        return run(transact(self._runtime, self._address, decide, self._max_retries), self._runtime.batchers)


class AsyncState(BaseState[T]):
    """The methods of a state in async code, wherever it is changed from."""

    async def _do(self, name: str, decide: Decide[A], answer: Any) -> A:
        """Execute a decision. `answer` is the type of the result."""
        raise NotImplementedError

    async def get(self) -> T | None:
        """The current value; `initial` before the first write, None after a delete."""
        return await self._do("get", lambda link: (None, self._value(link)), self._type)

    async def set(self, value: T) -> None:
        """Replace the value."""
        await self._do("set", self._replaced(value), None)

    async def update(self, function: Callable[[T | None], T]) -> T:
        """Replace the value by the function's result, and return that.

        The function may be called several times and must only compute. Its argument is None where there is no value.
        """
        return await self._do("update", self._updated(function), self._type)

    async def delete(self) -> None:
        """Remove the value. A caller that computed from it and has not written yet cannot bring it back."""
        await self._do("delete", self._replaced(DELETE), None)

    async def increment(self, by: float = 1) -> Any:
        """Add a number, beginning at 0 where there is no value. Returns the sum."""
        return await self._do("increment", self._added(by), Any)

    async def decrement(self, by: float = 1) -> Any:
        """Subtract a number, beginning at 0 where there is no value. Returns the difference."""
        return await self._do("decrement", self._added(-by), Any)

    async def merge(self, fields: dict[str, Any]) -> Any:
        """Set these fields of an object and keep the others. Returns the whole object."""
        return await self._do("merge", self._merged(fields), Any)

    async def append(self, item: object) -> Any:
        """Append an item to a list. Returns the list."""
        return await self._do("append", self._appended(item), Any)

    async def remove_first(self) -> Any:
        """Remove the first item of a list and return it; None where there is none."""
        return await self._do("remove_first", self._removed(0), Any)

    async def remove_last(self) -> Any:
        """Remove the last item of a list and return it; None where there is none."""
        return await self._do("remove_last", self._removed(-1), Any)


class AsyncAtomicState(AsyncState[T]):
    """One value that many processes change, in async code."""

    def __init__(self, client: BaseClient, address: Address, *, initial: object, type: Any, max_retries: int) -> None:
        self._runtime, self._max_retries = client.runtime, checked_retries(max_retries)
        super().__init__(address, initial=initial, type=type, max_bytes=client.max_bytes)

    async def get(self) -> T | None:
        """The current value; `initial` before the first write, None after a delete."""
        return self._value(await run_async(read(self._address), self._runtime.batchers))

    async def _do(self, name: str, decide: Decide[A], answer: Any) -> A:  # noqa: ARG002  (nothing is recorded here)
        return await run_async(
            transact(self._runtime, self._address, decide, self._max_retries), self._runtime.batchers
        )


def checked_retries(max_retries: int) -> int:
    """Return the number of retries, or raise `InvalidOption`."""
    if isinstance(max_retries, bool) or not isinstance(max_retries, int) or max_retries < 0:
        raise InvalidOption(f"max_retries cannot be {max_retries!r}: it must be a whole number, 0 or more")
    return max_retries
