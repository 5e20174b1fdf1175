"""The fields that native forms know.

A native form (Lua, SQL) is written for the fields that a command had at that time. A field that is added later must not
be dropped silently: a command in which such a field is set is left to the rules in Python, which see every field.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec


class KnownFields:
    """The structs that the native forms of one store accept, each with the fields that they use."""

    def __init__(self, known: Mapping[type[msgspec.Struct], Collection[str]]) -> None:
        self._others = {kind: _other_fields(kind, names) for kind, names in known.items()}

    def cover(self, value: msgspec.Struct) -> bool:
        """Whether a value has one of these types exactly, no subclass, and all other fields have their defaults."""
        others = self._others.get(type(value))
        if others is None:
            return False
        for name, default in others:  # noqa: SIM110  (called for every command; most have no such field)
            if getattr(value, name) != default:
                return False
        return True


def _other_fields(kind: type[msgspec.Struct], known: Collection[str]) -> tuple[tuple[str, Any], ...]:
    """The other fields and their defaults; a field without a default never matches."""
    fields = (field for field in msgspec.structs.fields(kind) if field.name not in known)
    return tuple((one.name, one.default_factory() if callable(one.default_factory) else one.default) for one in fields)
