"""Record types: what a store needs to keep records of one type, such as inboxes or schedules.

A record is a frozen struct that is stored as JSON under a key. A type gives its records a name, reads and writes
them, and names the field with the time at which a record changes without a command (`due_at`). Stores know nothing
else about it, so a new type needs no table, no key and no statement of its own. The record is a stored format: fields
that this version does not know are kept and written back. A record that cannot be read is refused with an error that
names it; it is never treated as absent.
"""

from __future__ import annotations

import re
import types
from collections.abc import Iterator
from functools import cache
from typing import Any, Generic, NamedTuple, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec

from ..errors import RecordUnreadable

MAX_MOMENT = 2**53 - 1
"""The largest `due_at`: every store holds numbers up to here exactly."""
_NAME = re.compile(r"[a-z][a-z0-9_-]{0,62}")


class RecordStruct(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """The base of a record, and of every struct within one. `unknown` are fields that a newer version wrote."""

    unknown: dict[str, Any] | None = None


R = TypeVar("R", bound=RecordStruct)


class StoredRecord(NamedTuple):
    """A record as stores keep it: its text, and when it is due."""

    text: str
    due_at: int | None


class RecordType(Generic[R]):
    """One type of record: its name, its struct, and the field with the time at which it is due.

    The name is part of the stored format, and one process has one type of each name.

    >>> class Visit(RecordStruct, frozen=True):
    ...     guest: str
    ...     until: int | None = None
    >>> VISIT = RecordType("visit", Visit, due="until")
    >>> VISIT.stored(Visit(guest="Ann", until=7))
    StoredRecord(text='{"guest":"Ann","until":7}', due_at=7)
    >>> VISIT.decode("k", '{"guest":"Ann","colour":"red"}')
    Visit(guest='Ann', until=None, unknown={'colour': 'red'})
    """

    def __init__(self, name: str, struct: type[R], *, due: str | None = None) -> None:
        if not _NAME.fullmatch(name):
            raise ValueError(f"the name of a record type is a letter and up to 62 of a-z, 0-9, _ and -, not {name!r}")
        if due is not None and due not in struct.__struct_fields__:
            raise ValueError(f"{struct.__name__} has no field {due!r}")
        _check(struct)
        known: RecordType[Any] | None = _types.get(name)
        if known is not None and known.struct.__qualname__ != struct.__qualname__:
            raise ValueError(f"there is a record type {name!r} already, made of {known.struct.__qualname__}")
        self.name = name
        self.struct: type[R] = struct
        self._due = due
        self._decoder = msgspec.json.Decoder(struct)
        _types[name] = self

    def __repr__(self) -> str:
        return f"RecordType({self.name!r}, {self.struct.__name__})"

    def stored(self, record: R) -> StoredRecord:
        """The record as it is stored. Raises for what no store can hold, or what could not be read again."""
        if type(record) is not self.struct:
            raise TypeError(f"{record!r:.50} is not a {self.struct.__name__}")
        text = _encoder.encode(record)
        if b'"unknown":{' in text:
            text = _encoder.encode(_raised(msgspec.to_builtins(record), self.struct))
        due_at = None if self._due is None else getattr(record, self._due)
        if due_at is not None and (type(due_at) is not int or abs(due_at) > MAX_MOMENT):
            raise OverflowError(f"{due_at!r} is a time that cannot be stored: only whole ones up to {MAX_MOMENT} can")
        try:
            self.decode("", text)
        except RecordUnreadable as error:
            raise TypeError(f"a {self.name} record could not be read again: {error.__cause__}") from error
        return StoredRecord(text.decode(), due_at)

    def decode(self, key: str, text: bytes | str) -> R:
        """Read a record, or raise `RecordUnreadable` that names the key."""
        try:
            try:
                return self._decoder.decode(text)
            except msgspec.ValidationError:
                return msgspec.convert(_sunk(msgspec.json.decode(text), self.struct), self.struct)
        except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
            raise unreadable(self.name, key, str(error)) from error


_encoder = msgspec.json.Encoder()
_types: dict[str, RecordType[Any]] = {}


def type_named(name: str) -> RecordType[Any] | None:
    """The record type of this name, if this process knows one."""
    return _types.get(name)


def unreadable(kind: str, key: str, why: str) -> RecordUnreadable:
    """The error for a record that is stored and cannot be read."""
    return RecordUnreadable(
        f"the stored {kind} record {key!r} cannot be read ({why}). It was left untouched, and commands about it are "
        "refused. It may come from a newer version, or be damaged: upgrade, or inspect it by hand.",
        key=key,
    )


# -- fields that this version does not know --------------------------------------------------------------------------


def _check(struct: type) -> None:
    """Refuse structs that would drop or refuse what a newer version wrote."""
    seen: set[type] = set()
    waiting = [struct]
    while waiting:
        one = waiting.pop()
        if one in seen:
            continue
        seen.add(one)
        if not issubclass(one, RecordStruct):
            raise TypeError(f"{one.__name__} must be a RecordStruct, so that fields which it does not know are kept")
        if one.__struct_config__.array_like or one.__struct_encode_fields__ != one.__struct_fields__:
            raise TypeError(f"{one.__name__} must be stored as an object with the names of its fields")
        for name, hint in _hints(one).items():
            found = set(_structs(hint))
            if len(found) > 1:
                raise TypeError(f"{one.__name__}.{name} may be one of several structs: give each a field of its own")
            waiting += found


@cache
def _hints(struct: type) -> dict[str, Any]:
    hints = get_type_hints(struct)
    return {name: hints[name] for name in struct.__struct_fields__ if name != "unknown"}  # type: ignore[attr-defined]


def _structs(hint: Any) -> Iterator[type]:
    """The structs within a type."""
    if isinstance(hint, type) and get_origin(hint) is None:
        if issubclass(hint, msgspec.Struct):
            yield hint
        return
    for part in get_args(hint):
        yield from _structs(part)


def _walked(value: Any, hint: Any, change: Any) -> Any:
    """The value with `change` made to every struct in it, the innermost first."""
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return next((_walked(value, part, change) for part in parts if any(_structs(part))), value)
    if isinstance(value, list | tuple) and parts:
        if origin is tuple and parts[-1] is not Ellipsis:
            hints = (*parts, *([None] * (len(value) - len(parts))))
            return [_walked(item, part, change) for item, part in zip(value, hints, strict=False)]
        return [_walked(item, parts[0], change) for item in value]
    if isinstance(value, dict) and origin is dict:
        return {name: _walked(item, parts[1], change) for name, item in value.items()}
    if isinstance(value, dict) and any(_structs(hint)):
        known = _hints(hint)
        inner = {name: _walked(item, known[name], change) if name in known else item for name, item in value.items()}
        return change(inner, known)
    return value


def _sunk(value: Any, struct: type) -> Any:
    """Move the fields that a struct does not have into its `unknown`."""

    def sink(fields: dict[str, Any], hints: dict[str, Any]) -> dict[str, Any]:
        unknown = {name: item for name, item in fields.items() if name not in hints}
        known = {name: item for name, item in fields.items() if name in hints}
        return {**known, "unknown": unknown} if unknown else known

    return _walked(value, struct, sink)


def _raised(value: Any, struct: type) -> Any:
    """Put the fields of `unknown` back to where they were found."""

    def put_back(fields: dict[str, Any], hints: dict[str, Any]) -> dict[str, Any]:
        known = {name: item for name, item in fields.items() if name in hints}
        return {**known, **(fields.get("unknown") or {})}

    return _walked(value, struct, put_back)
