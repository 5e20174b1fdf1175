"""One value that many processes change, by compare-and-swap: `AtomicState` and its asynchronous twin.

A change is made whole or not at all, and none is lost. A function that computes the new value may be called
several times and must only compute. A value that was deleted reads as None, and its `initial` does not come back.
"""

from __future__ import annotations

from collections.abc import Callable
from inspect import isawaitable
from typing import Any, Generic, TypeVar, cast

from ..client import BaseClient
from ..codec import decode_value, encode_value
from ..commands import Address
from ..errors import InvalidOption, InvalidValue
from ..flows import Flow
from ..runners import run, run_async
from .chains import Link
from .transacting import Change, Decision, look, transact

MAX_RETRIES = 50

T = TypeVar("T")
A = TypeVar("A")


class _Nothing:
    """No initial value was given."""


NOTHING = _Nothing()


class BaseState(Generic[T]):
    """What both colours have in common: where the value is, how it is read and written, and the decisions."""

    def __init__(self, client: BaseClient, address: Address, *, initial: object, type: Any, max_retries: int) -> None:
        if isinstance(max_retries, bool) or not isinstance(max_retries, int) or max_retries < 0:
            raise InvalidOption(f"max_retries cannot be {max_retries!r}: it must be a whole number, 0 or more")
        if isinstance(type, str):
            raise InvalidOption(f"type cannot be the text {type!r}: give the type itself, such as int or a dataclass")
        self._client = client
        self._address = address
        self._type = Any if type is None else type
        self._max_retries = max_retries
        # Kept as text: each reader gets a value of its own.
        self._initial = None if isinstance(initial, _Nothing) else self._text(initial)

    @property
    def key(self) -> str:
        """The name of the state."""
        return self._address[2]

    @property
    def _what(self) -> str:
        return f"the state {self.key!r}"

    def __repr__(self) -> str:
        scope, owner, key = self._address
        return f"<{type(self).__name__} {key!r}" + (f" of {scope} {owner!r}>" if owner else ">")

    # -- reading and writing ------------------------------------------------------------------------------

    def _value(self, link: Link) -> T | None:
        text = link.value if link.version else self._initial
        return None if text is None else cast("T", decode_value(text, self._type, what=self._what))

    def _text(self, value: object) -> str:
        return encode_value(value, self._type, what=self._what, max_bytes=self._client.max_bytes)

    def _get(self) -> Flow[T | None]:
        return self._value((yield from look(self._address)))

    @property
    def _typed(self) -> bool:
        """Whether the value is read as a type."""
        return self._type is not Any

    def _replace(self, value: object) -> Flow[None]:
        """Put this in the place of whatever is there, which need not even be readable."""
        change = Change(None if value is GONE else self._text(value))
        return transact(self._client.works, self._address, lambda _link: (change, None), self._max_retries)

    def _transact(self, decide: Callable[[T | None], tuple[object, A]]) -> Flow[A]:
        """Change the value by a decision: the new value (or KEEP, or GONE), and the answer for the caller."""

        def on_link(link: Link) -> Decision[A]:
            value, answer = decide(self._value(link))
            if value is KEEP:
                return None, answer
            return Change(None if value is GONE else self._text(value)), answer

        return transact(self._client.works, self._address, on_link, self._max_retries)

    # -- the decisions ------------------------------------------------------------------------------------

    def _update(self, function: Callable[[T | None], T]) -> Flow[T]:
        def decide(value: T | None) -> tuple[object, T]:
            new = function(value)
            if isawaitable(new):
                if hasattr(new, "close"):
                    new.close()
                raise InvalidOption("update() takes a plain function that only computes: this one is asynchronous")
            if new is None and value is not None:
                raise InvalidValue(
                    f"the function given to update() returned None, so {self._what} was left as it is: it must return "
                    "the new value, also if it changes the old one in place. To remove the value, call delete()."
                )
            return new, new

        return self._transact(decide)

    def _add(self, number: float) -> Flow[Any]:
        if isinstance(number, bool) or not isinstance(number, int | float):
            raise InvalidOption(f"a state can be changed by a number, not by {number!r}")

        def decide(value: T | None) -> tuple[object, Any]:
            new = self._expect(value, (int, float), "a number", 0) + number
            return new, new

        return self._transact(decide)

    def _merge(self, fields: dict[str, Any]) -> Flow[Any]:
        if not isinstance(fields, dict):
            raise InvalidOption(f"merge() takes a dictionary, not {type(fields).__name__}")

        def decide(value: T | None) -> tuple[object, Any]:
            new = {**self._expect(value, (dict,), "an object", {}), **fields}
            return new, new

        return self._transact(decide)

    def _append(self, item: object) -> Flow[Any]:
        def decide(value: T | None) -> tuple[object, Any]:
            new = [*self._expect(value, (list,), "a list", []), item]
            return new, new

        return self._transact(decide)

    def _remove(self, place: int) -> Flow[Any]:
        def decide(value: T | None) -> tuple[object, Any]:
            items = list(self._expect(value, (list,), "a list", []))
            if not items:
                return KEEP, None
            item = items.pop(place)
            return items, item

        return self._transact(decide)

    def _expect(self, value: object, kinds: tuple[type, ...], name: str, absent: Any) -> Any:
        if value is None:
            return absent
        if not isinstance(value, kinds) or isinstance(value, bool):
            raise InvalidValue(f"{self._what} holds {type(value).__name__}, not {name}: it was left as it is")
        return value


KEEP = object()
"""A decision to leave everything as it is."""
GONE = object()
"""A decision to delete the value."""


class AtomicState(BaseState[T]):
    """One value that many processes change, in synchronous code.

    >>> from holdfast import Client
    >>> with Client("memory://") as hf:
    ...     seats = hf.state("seats", initial=3)
    ...     seats.decrement(), seats.get()
    (2, 2)
    """

    def get(self) -> T | None:
        """The value as it is now; `initial` before the first write, None after a delete."""
        return run(self._get(), self._client.works.lanes)

    def set(self, value: T) -> None:
        """Replace the value."""
        run(self._replace(value), self._client.works.lanes)

    def update(self, function: Callable[[T | None], T]) -> T:
        """Replace the value by what the function makes of it, and return that.

        The function may be called several times and must only compute. It is given None where there is no value.
        """
        return run(self._update(function), self._client.works.lanes)

    def delete(self) -> None:
        """Remove the value. Whoever computed on it and has not written yet, cannot bring it back."""
        run(self._replace(GONE), self._client.works.lanes)

    def increment(self, by: float = 1) -> Any:
        """Add a number, beginning at 0 where there is no value. Returns the sum."""
        return run(self._add(by), self._client.works.lanes)

    def decrement(self, by: float = 1) -> Any:
        """Take a number away, beginning at 0 where there is no value. Returns the difference."""
        return run(self._add(-by), self._client.works.lanes)

    def merge(self, fields: dict[str, Any]) -> Any:
        """Set these fields of an object and keep the others. Returns the whole."""
        return run(self._merge(fields), self._client.works.lanes)

    def append(self, item: object) -> Any:
        """Put an item at the end of a list. Returns the list."""
        return run(self._append(item), self._client.works.lanes)

    def remove_first(self) -> Any:
        """Take the first item off a list and return it; None where there is none."""
        return run(self._remove(0), self._client.works.lanes)

    def remove_last(self) -> Any:
        """Take the last item off a list and return it; None where there is none."""
        return run(self._remove(-1), self._client.works.lanes)

    def _run(self, decide: Callable[[T | None], tuple[object, A]]) -> A:
        return run(self._transact(decide), self._client.works.lanes)


class AsyncAtomicState(BaseState[T]):
    """One value that many processes change, in asynchronous code."""

    async def get(self) -> T | None:
        """The value as it is now; `initial` before the first write, None after a delete."""
        return await run_async(self._get(), self._client.works.lanes)

    async def set(self, value: T) -> None:
        """Replace the value."""
        await run_async(self._replace(value), self._client.works.lanes)

    async def update(self, function: Callable[[T | None], T]) -> T:
        """Replace the value by what the function makes of it, and return that.

        The function may be called several times and must only compute. It is given None where there is no value.
        """
        return await run_async(self._update(function), self._client.works.lanes)

    async def delete(self) -> None:
        """Remove the value. Whoever computed on it and has not written yet, cannot bring it back."""
        await run_async(self._replace(GONE), self._client.works.lanes)

    async def increment(self, by: float = 1) -> Any:
        """Add a number, beginning at 0 where there is no value. Returns the sum."""
        return await run_async(self._add(by), self._client.works.lanes)

    async def decrement(self, by: float = 1) -> Any:
        """Take a number away, beginning at 0 where there is no value. Returns the difference."""
        return await run_async(self._add(-by), self._client.works.lanes)

    async def merge(self, fields: dict[str, Any]) -> Any:
        """Set these fields of an object and keep the others. Returns the whole."""
        return await run_async(self._merge(fields), self._client.works.lanes)

    async def append(self, item: object) -> Any:
        """Put an item at the end of a list. Returns the list."""
        return await run_async(self._append(item), self._client.works.lanes)

    async def remove_first(self) -> Any:
        """Take the first item off a list and return it; None where there is none."""
        return await run_async(self._remove(0), self._client.works.lanes)

    async def remove_last(self) -> Any:
        """Take the last item off a list and return it; None where there is none."""
        return await run_async(self._remove(-1), self._client.works.lanes)

    async def _run(self, decide: Callable[[T | None], tuple[object, A]]) -> A:
        return await run_async(self._transact(decide), self._client.works.lanes)
