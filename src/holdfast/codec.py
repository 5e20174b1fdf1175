"""Values as JSON text and back, with an error that says where a value cannot be written.

No number turns into null and no key into text on the way: what cannot come back fails at the call. (A tuple comes
back as a list, unless a type says otherwise.) Never pickle.
"""

from __future__ import annotations

import inspect
import math
from typing import Any

import msgspec

from .errors import InvalidValue

MAX_BYTES = 1_048_576
MAX_DEPTH = 100
PLAIN = (Any, object)
"""Types that say nothing: then only what JSON itself has is taken."""
SIMPLE = (int, bool, type(None))
MAX_INTEGER = 2**63 - 1
"""Numbers beyond this lose their last digits in half of the programs that read JSON, and in some stores."""


def encode_value(value: object, type: Any = Any, *, what: str, max_bytes: int = MAX_BYTES) -> str:
    """Write a value as JSON, or raise `InvalidValue` with the place in it that cannot be written.

    Without a type only what JSON itself has is taken; with one, whatever comes back as that type.

    >>> encode_value({"n": [1, 2.5, None]}, what="the state 'x'")
    '{"n":[1,2.5,null]}'
    """
    kind = value.__class__
    if kind in SIMPLE and (type is kind or type in PLAIN) and (kind is not int or abs(value) <= MAX_INTEGER):  # type: ignore[arg-type]
        return msgspec.json.encode(value).decode()  # as most results are: nothing can be wrong with it
    try:
        plain = value if type in PLAIN else msgspec.to_builtins(value, str_keys=True, enc_hook=_write)
        _check(plain, "")
        text = msgspec.json.encode(plain)
    except _Unfit as unfit:
        raise InvalidValue(f"{what} cannot hold this value: {unfit}") from None
    except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
        raise InvalidValue(f"{what} cannot hold this value: {error}") from error
    if len(text) > max_bytes:
        raise InvalidValue(f"{what} cannot hold this value: it has {len(text):,} bytes and may have {max_bytes:,}")
    if type not in PLAIN:
        try:
            msgspec.json.decode(text, type=type, dec_hook=_read)
        except msgspec.MsgspecError as error:
            raise InvalidValue(f"{what} cannot hold this value: it is not {_name(type)} ({error})") from error
    return text.decode()


def decode_value(text: str | msgspec.Raw, type: Any, *, what: str) -> Any:
    """Read a value, as the type that was asked for."""
    try:
        return msgspec.json.decode(text, type=Any if type in PLAIN else type, dec_hook=_read)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise InvalidValue(f"{what} holds something that is not {_name(type)}: {error}") from error


def hints_of(function: Any) -> dict[str, Any]:
    """The annotations of a function, as far as they can be understood; one that cannot is left out.

    >>> def greet(name: "str", mood: "Unknown") -> bool: ...
    >>> hints_of(greet)
    {'name': <class 'str'>, 'return': <class 'bool'>}
    """
    function = inspect.unwrap(function)
    names = getattr(function, "__globals__", {})
    hints = ((name, _understood(hint, names)) for name, hint in getattr(function, "__annotations__", {}).items())
    return {name: hint for name, hint in hints if hint is not _UNKNOWN}


def output_of(function: Any) -> Any:
    """What a function says that it returns; `Any` if it does not say it, or it cannot be understood."""
    while hasattr(function, "__wrapped__"):
        function = function.__wrapped__
    hint = getattr(function, "__annotations__", _NO_HINTS).get("return", _UNKNOWN)
    if isinstance(hint, str) or hint is None:
        hint = _understood(hint, getattr(function, "__globals__", {}))
    return Any if hint is _UNKNOWN else hint


_UNKNOWN = object()
_NO_HINTS: dict[str, Any] = {}


def _understood(hint: Any, names: dict[str, Any]) -> Any:
    try:
        while isinstance(hint, str):
            hint = eval(hint, names)  # noqa: S307  (the user's own code)
    except Exception:  # imported for type checkers only, or not there yet
        return _UNKNOWN
    return type(None) if hint is None else hint


def _write(value: Any) -> Any:
    """Models of pydantic, which msgspec does not know."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json")
    raise TypeError(f"{value.__class__.__name__} is not something that JSON has: convert it")


def _read(type: Any, plain: Any) -> Any:
    if hasattr(type, "model_validate"):
        try:
            return type.model_validate(plain)
        except ValueError as error:
            raise msgspec.ValidationError(str(error)) from error
    raise msgspec.ValidationError(f"{_name(type)} cannot be made from JSON")


def _name(type: Any) -> str:
    return getattr(type, "__name__", str(type))


class _Unfit(Exception):
    """A place in a value, and what is wrong there."""


def _check(value: object, path: str, depth: int = 0) -> None:
    if depth > MAX_DEPTH:
        raise _Unfit(f"{path[:40]}... lies more than {MAX_DEPTH} levels deep, or holds itself")
    if value is None or isinstance(value, bool):
        return
    if isinstance(value, str):
        if not value.isascii() and _has_surrogate(value):
            raise _Unfit(f"{path or 'it'} is not valid Unicode text (a lone surrogate)")
    elif isinstance(value, float):
        if math.isnan(value) or math.isinf(value):
            raise _Unfit(f"{path or 'it'} is {value}, which JSON does not have")
    elif isinstance(value, int):
        if abs(value) > MAX_INTEGER:
            raise _Unfit(f"{path or 'it'} is a number beyond 64 bits: store it as text")
    elif isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise _Unfit(f"{path}[{key!r}] has a key that is not text, and JSON has no other")
            _check(key, f"the key {key!r}")
            _check(item, f"{path}.{key}" if path else key, depth + 1)
    elif isinstance(value, list | tuple):
        for place, item in enumerate(value):
            _check(item, f"{path}[{place}]", depth + 1)
    else:
        kind = value.__class__.__name__
        raise _Unfit(f"{path or 'it'} is of type {kind}, which JSON does not have: convert it, or say type=...")


def _has_surrogate(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False
