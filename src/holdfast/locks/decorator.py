"""A lock around a function. Its key is made from the arguments, and checked when the function is decorated."""

from __future__ import annotations

import functools
import inspect
import string
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast

from ..errors import InvalidKey, LockTimeout
from ..validation import checked_key
from .options import Key, OnBusy

if TYPE_CHECKING:
    from .lock import AsyncLock, Lock

FORMAT_DEPTH = 2
"""`str.format` replaces fields in a template and in their specifications, and no deeper."""

P = ParamSpec("P")
R = TypeVar("R")


def guarded(
    function: Callable[P, R],
    key: Key,
    on_busy: OnBusy,
    sync_lock: Callable[[str], Lock],
    async_lock: Callable[[str], AsyncLock],
) -> Callable[P, R]:
    """The function, guarded by a lock. With `on_busy="skip"` a call that finds the lock busy returns None."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(
            f"{getattr(function, '__qualname__', function)!r} is a generator: its body would run after the lock was "
            "released. Acquire the lock inside it with a `with` block."
        )
    if isinstance(function, type) or not callable(function):
        raise TypeError(f"a lock can decorate functions, not {function!r}")
    key_of = _key_maker(function, key)

    if inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__):

        @functools.wraps(function)
        async def guarded_async(*args: P.args, **kwargs: P.kwargs) -> Any:
            lock = async_lock(key_of(args, kwargs))
            try:
                await lock.__aenter__()
            except LockTimeout:
                if on_busy == "skip":
                    return None
                raise
            async with _Entered(lock):
                return await cast("Awaitable[Any]", function(*args, **kwargs))

        return cast("Callable[P, R]", guarded_async)

    @functools.wraps(function)
    def guarded_sync(*args: P.args, **kwargs: P.kwargs) -> Any:
        lock = sync_lock(key_of(args, kwargs))
        try:
            lock.__enter__()
        except LockTimeout:
            if on_busy == "skip":
                return None
            raise
        with _Entered(lock):
            result = function(*args, **kwargs)
            if inspect.isawaitable(result) or inspect.isgenerator(result) or inspect.isasyncgen(result):
                if inspect.iscoroutine(result):
                    result.close()
                raise TypeError(
                    f"{function!r} returned {result!r}, which would run after the lock was released. Decorate an "
                    "`async def`, or acquire the lock inside."
                )
            return result

    return guarded_sync


class _Entered:
    """A block whose lock was entered before, so that only a failed acquire is skipped, never an error of the body."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock

    def __enter__(self) -> None:
        pass

    def __exit__(self, *what: object) -> None:
        self._lock.__exit__(*what)

    async def __aenter__(self) -> None:
        pass

    async def __aexit__(self, *what: object) -> None:
        await self._lock.__aexit__(*what)


def _key_maker(function: Callable[..., Any], key: Key) -> Callable[[tuple[Any, ...], dict[str, Any]], str]:
    """A function that makes the key from a call's arguments. Mistakes raise when the function is decorated."""
    name = getattr(function, "__qualname__", repr(function))
    if callable(key):
        maker = key
        _check_maker(function, maker, name)

        def from_callable(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
            return checked_key(maker(*args, **kwargs))

        return from_callable
    signature = inspect.signature(function)
    try:
        fields = list(_fields(key))
    except ValueError as error:
        raise InvalidKey(f"the key {key!r} is not a template over the arguments of {name}: {error}") from None
    if not fields:
        fixed = checked_key(key.format())
        return lambda _args, _kwargs: fixed
    known = set(signature.parameters)
    for field in fields:
        root = field.split(".")[0].split("[")[0]
        if root not in known:
            raise InvalidKey(
                f"the key {key!r} names {root or 'a position'!r}, which is not an argument of {name}: its arguments "
                f"are {', '.join(sorted(known)) or 'none'}"
            )

    def from_template(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return checked_key(key.format(**bound.arguments))

    return from_template


def _fields(template: str, depth: int = 0) -> Iterator[str]:
    """The fields of a template, also those within a format specification: `{amount:{width}}`."""
    for _, field, specification, _ in string.Formatter().parse(template):
        if field is None:
            continue
        if depth == FORMAT_DEPTH:
            raise ValueError("a format specification cannot contain a field that has one itself")
        yield field
        yield from _fields(specification or "", depth + 1)


def _check_maker(function: Callable[..., Any], maker: Callable[..., Any], name: str) -> None:
    """Refuse a key function that cannot be called with the arguments of the function: its fewest and all of them."""
    try:
        wanted = inspect.signature(function).parameters.values()
        offered = inspect.signature(maker)
    except (TypeError, ValueError):  # written in C: its signature is not known
        return
    open_ended = any(one.kind in {one.VAR_POSITIONAL, one.VAR_KEYWORD} for one in wanted)
    bind = offered.bind_partial if open_ended else offered.bind
    for needed_only in (True, False):
        chosen = [one for one in wanted if one.default is one.empty or not needed_only]
        by_name = {one.name: None for one in chosen if one.kind is one.KEYWORD_ONLY}
        in_order = [None for one in chosen if one.kind in {one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD}]
        try:
            bind(*in_order, **by_name)
        except TypeError as error:
            raise InvalidKey(
                f"the key of {name} comes from a function that takes {offered}, and is called with the arguments of "
                f"{name}{inspect.signature(function)}: {error}. Let it take the same arguments; `*_, **__` takes the "
                "others."
            ) from None
