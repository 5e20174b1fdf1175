"""Values as JSON text and back, with errors that name the part of a value that cannot be written.

If a value could not be read back unchanged, writing it raises an error. For example, NaN would become null, and a key
that is a number would become text. (A tuple is read back as a list, unless the type is a tuple type.) Every error,
also an error of the user's own classes, is raised as `InvalidValue`. Pickle is never used.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import re
from collections.abc import Iterator
from functools import partial
from typing import Any, get_origin

import msgspec

from ..errors import InvalidValue

MAX_BYTES = 1_048_576
MAX_DEPTH = 100
PLAIN = (Any, object)
"""Types without information: with them, only what JSON itself has is accepted."""
SIMPLE = (int, bool, type(None))
MIN_INTEGER, MAX_INTEGER = -(2**63), 2**63 - 1
"""Numbers beyond these limits lose their last digits in many programs that read JSON, and in some stores."""
ANNOTATE = "annotate its type (the return type of the function, or that of its input)"
ROOT = "$"
"""The whole value, in paths such as `$.items[2].price`, which are written as msgspec writes them."""
_PLACE = re.compile(r"- at `(\$[^`]*)`$")


def encode_value(
    value: object, type: Any = Any, *, what: str, max_bytes: int = MAX_BYTES, advice: str = ANNOTATE
) -> str:
    """Write a value as JSON, or raise `InvalidValue` with the part of it that cannot be written.

    Without a type only what JSON itself has is accepted; with one, every value that is read back as that type. `advice`
    is the part of the message that explains how to give the type.

    >>> encode_value({"n": [1, 2.5, None]}, what="the state 'x'")
    '{"n":[1,2.5,null]}'
    """
    kind = value.__class__
    if (
        kind in SIMPLE
        and (type is kind or type in PLAIN)
        and (
            kind is not int or MIN_INTEGER <= value <= MAX_INTEGER  # type: ignore[operator]
        )
    ):
        return msgspec.json.encode(value).decode()  # fast path for most results, which need no check
    if type in PLAIN:
        return _text(value, what, max_bytes, None, advice)
    numbers: list[str] = []
    plain = _plain(value, what)
    text = _text(plain, what, max_bytes, numbers)
    try:
        back = _decode(text, type)
        if numbers:
            _compare_keys(plain, msgspec.to_builtins(back, enc_hook=_write), ROOT)
    except _Unfit as unfit:
        raise InvalidValue(f"{what} cannot hold this value: {unfit}") from None
    except Exception as error:  # msgspec does not support the type, or a class of the user raised
        raise InvalidValue(f"{what} cannot hold this value: it is not {_name(type)} ({_reason(error)})") from error
    return text


def encode_message(value: object, *, what: str, max_bytes: int = MAX_BYTES) -> str:
    """Write a value for a reader that chooses the type. The type is not known here.

    >>> from datetime import date
    >>> encode_message({"due": date(2026, 1, 2)}, what="the signal 'pay'")
    '{"due":"2026-01-02"}'
    """
    return _text(_plain(value, what), what, max_bytes, None)


def decode_value(text: str | msgspec.Raw, type: Any, *, what: str) -> Any:
    """Read a value, as the given type."""
    try:
        return _decode(text, Any if type in PLAIN else type)
    except Exception as error:  # as in encode_value
        raise InvalidValue(f"{what} holds something that is not {_name(type)}: {_reason(error)}") from error


def hints_of(function: Any) -> dict[str, Any]:
    """The annotations of a function that can be evaluated; other annotations are left out.

    >>> def greet(name: "str", mood: "Unknown") -> bool: ...
    >>> hints_of(greet)
    {'name': <class 'str'>, 'return': <class 'bool'>}
    """
    while isinstance(function, partial):
        function = function.func
    function = inspect.unwrap(function)
    names = getattr(function, "__globals__", {})
    hints = ((name, _understood(hint, names)) for name, hint in getattr(function, "__annotations__", {}).items())
    return {name: hint for name, hint in hints if hint is not _UNKNOWN}


def output_of(function: Any) -> Any:
    """The return annotation of a function; `Any` if there is none, or it cannot be evaluated."""
    while isinstance(function, partial):
        function = function.func
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
    except Exception:  # imported for type checkers only, or not defined yet
        return _UNKNOWN
    return type(None) if hint is None else hint


# -- writing --------------------------------------------------------------------------------------------------------


class _Unfit(Exception):
    """A part of a value, and what is wrong with it."""


class _Untyped(_Unfit):
    """A value of a type that JSON does not have, where no type was given."""


def _plain(value: object, what: str) -> object:
    """The value as JSON types; keys that are numbers stay as they are."""
    try:
        return msgspec.to_builtins(value, enc_hook=_write)
    except Exception as error:  # a class of the user may raise anything
        raise InvalidValue(f"{what} cannot hold this value: {_culprit(value, error)}") from error


def _text(plain: object, what: str, max_bytes: int, numbers: list[str] | None, advice: str = ANNOTATE) -> str:
    try:
        _check(plain, ROOT, 0, numbers)
        text = msgspec.json.encode(plain)
    except _Untyped as unfit:
        raise InvalidValue(f"{what} cannot hold this value: {unfit}: convert it, or {advice}") from None
    except _Unfit as unfit:
        raise InvalidValue(f"{what} cannot hold this value: {unfit}") from None
    except Exception as error:
        raise InvalidValue(f"{what} cannot hold this value: {_culprit(plain, error)}") from error
    if len(text) > max_bytes:
        raise InvalidValue(
            f"{what} cannot hold this value: it has {len(text):,} bytes, and the limit is {max_bytes:,} (max_bytes). "
            "Nothing was stored. Store large data elsewhere, and pass its address."
        )
    return text.decode()


def _write(value: Any) -> Any:
    """Convert models of pydantic, which msgspec does not support."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json", by_alias=True, round_trip=True)
    if inspect.iscoroutine(value):
        raise TypeError("is a coroutine: await the call that made it")
    raise TypeError(f"is of type {value.__class__.__name__}, which JSON does not have: convert it")


def _culprit(value: object, error: Exception, path: str = ROOT, depth: int = 0) -> str:
    """The part of a value that cannot be written, and the reason."""
    if depth > MAX_DEPTH:
        return _too_deep(path)
    for step, part in _parts(value):
        try:
            msgspec.json.encode(msgspec.to_builtins(part, enc_hook=_write))
        except Exception as found:
            return _culprit(part, found, path + step, depth + 1)
    reason = str(error)
    return f"{_at(path)} {reason}" if reason.startswith("is of type ") else f"{_at(path)} cannot be written: {reason}"


def _parts(value: Any) -> Iterator[tuple[str, object]]:
    """The parts of a value, and the path of each."""
    if isinstance(value, dict):
        yield from ((_step(key), part) for key, part in value.items())
    elif isinstance(value, list | tuple | set | frozenset):
        yield from ((f"[{place}]", part) for place, part in enumerate(value))
    else:
        for name in _fields(value):
            if hasattr(value, name):
                yield f".{name}", getattr(value, name)


def _fields(value: Any) -> list[str]:
    if isinstance(value, msgspec.Struct):
        return list(value.__struct_fields__)
    if dataclasses.is_dataclass(value):
        return [field.name for field in dataclasses.fields(value)]
    if hasattr(value, "__attrs_attrs__"):
        return [field.name for field in value.__attrs_attrs__]
    return list(vars(value)) if hasattr(value, "model_dump") else []


def _check(value: object, path: str, depth: int, numbers: list[str] | None) -> None:
    """Raise if JSON cannot hold the value. Paths with a number as a key go into `numbers`; without it they raise."""
    if depth > MAX_DEPTH:
        raise _Unfit(_too_deep(path))
    if value is None or isinstance(value, bool):
        return
    if isinstance(value, str):
        if not value.isascii() and _has_surrogate(value):
            raise _Unfit(f"{_at(path)} is not valid Unicode text (a lone surrogate)")
    elif isinstance(value, float):
        if math.isnan(value) or math.isinf(value):
            raise _Unfit(f"{_at(path)} is {value}, which JSON does not have")
    elif isinstance(value, int):
        if not MIN_INTEGER <= value <= MAX_INTEGER:
            raise _Unfit(f"{_at(path)} is a number beyond 64 bits: store it as text")
    elif isinstance(value, dict):
        for key, item in value.items():
            _check_key(key, path, numbers)
            _check(item, path + _step(key), depth + 1, numbers)
    elif isinstance(value, list | tuple):
        for place, item in enumerate(value):
            _check(item, f"{path}[{place}]", depth + 1, numbers)
    else:
        kind = value.__class__.__name__
        raise _Untyped(f"{_at(path)} is of type {kind}, which JSON does not have")


def _check_key(key: object, path: str, numbers: list[str] | None) -> None:
    if isinstance(key, str):
        _check(key, f"the key {key!r} of {path}", 0, None)
    elif numbers is None or isinstance(key, bool) or not isinstance(key, int | float):
        raise _Unfit(f"{path}{_step(key)} has a key that is not text, which JSON does not have")
    else:
        numbers.append(path)


def _compare_keys(before: object, after: object, path: str) -> None:
    """Raise if a key that was a number is read back as text, because the type does not say that it is a number."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key, item in before.items():
            if key in after:
                _compare_keys(item, after[key], path + _step(key))
            elif not isinstance(key, str):
                raise _Unfit(
                    f"{path}{_step(key)} has a key that is not text and would be read back as text: give the type of "
                    f"the keys, such as dict[{key.__class__.__name__}, ...]"
                )
    elif isinstance(before, list | tuple) and isinstance(after, list | tuple):
        for place, (one, other) in enumerate(zip(before, after, strict=False)):
            _compare_keys(one, other, f"{path}[{place}]")


def _step(key: object) -> str:
    return f".{key}" if isinstance(key, str) else f"[{key!r}]"


def _at(path: str) -> str:
    return "it" if path == ROOT else path


def _too_deep(path: str) -> str:
    return f"{path[:40]}... is more than {MAX_DEPTH} levels deep, or contains itself"


def _has_surrogate(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


# -- reading --------------------------------------------------------------------------------------------------------


class _Misfit(ValueError):
    """The first error of a pydantic model, and its path in the value."""

    def __init__(self, message: str, place: str) -> None:
        super().__init__(message)
        self.place = place


def _decode(text: str | msgspec.Raw, type: Any) -> Any:
    return msgspec.json.decode(text, type=type, dec_hook=_read)


def _read(type: Any, plain: Any) -> Any:
    if hasattr(type, "model_validate_json"):
        try:
            return type.model_validate_json(msgspec.json.encode(plain))  # as JSON: a strict model accepts times as text
        except ValueError as error:
            raise _misfit(error) from error
    raise ValueError(f"{_name(type)} cannot be made from JSON")


def _misfit(error: ValueError) -> ValueError:
    """The first error of pydantic, in one line."""
    found = error.errors()[:1] if hasattr(error, "errors") else []
    if not found:
        return error
    place = "".join(_step(part) for part in found[0]["loc"])
    return _Misfit(found[0]["msg"], place)


def _reason(error: Exception) -> str:
    """What is wrong with a value, and its path."""
    cause = error.__cause__
    if isinstance(cause, _Misfit):
        place = _PLACE.search(str(error))
        return f"{cause} - at `{place[1] if place else ROOT}{cause.place}`"
    return str(error) if isinstance(error, msgspec.MsgspecError | TypeError) else f"{error.__class__.__name__}: {error}"


def _name(type: Any) -> str:
    return str(type) if get_origin(type) is not None else getattr(type, "__name__", str(type))
