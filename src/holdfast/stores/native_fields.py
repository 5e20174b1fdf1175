"""Which fields a native form knows.

A native form (Lua, SQL) is written for the fields that a command had then. A field that is added later must not be
dropped without a word: a command in which it is set is left to the rules in Python, which every field reaches.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec


class KnownFields:
    """The structs that the native forms of one store take, each with the fields whose value they make use of."""

    def __init__(self, known: Mapping[type[msgspec.Struct], Collection[str]]) -> None:
        self._others = {kind: _other_fields(kind, names) for kind, names in known.items()}

    def cover(self, value: msgspec.Struct) -> bool:
        """Whether a value is of one of these types, of no subclass, and all other fields have their defaults."""
        others = self._others.get(type(value))
        if others is None:
            return False
        for name, default in others:  # noqa: SIM110  (on the way of every command; most have no such field)
            if getattr(value, name) != default:
                return False
        return True


def _other_fields(kind: type[msgspec.Struct], known: Collection[str]) -> tuple[tuple[str, Any], ...]:
    """The other fields and their defaults; one without a default is never what it must be."""
    fields = (field for field in msgspec.structs.fields(kind) if field.name not in known)
    return tuple((one.name, one.default_factory() if callable(one.default_factory) else one.default) for one in fields)
