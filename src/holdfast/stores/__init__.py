"""One file a store; the registry finds it by its URL's scheme.

A store registers an opener, `open_xxx(url, *, namespace, clock) -> Store`, under the entry point group
`holdfast.stores`; the name of the entry point is the scheme. The two that come with the core are known
here as well, so that a source tree works without being installed. No error of this module shows a URL.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Protocol

from .._platform import host_clock
from ..errors import InvalidKey, InvalidOption, StoreNotInstalled
from ..values import checked_key
from .contract import Clock, Store
from .urls import redacted, scheme_of

__all__ = ["open_store", "redacted", "schemes"]

GROUP = "holdfast.stores"
_BUILT_IN = {"memory": ("memory", "open_memory"), "sqlite": ("sqlite", "open_sqlite")}
_EXTRAS = {
    "postgresql": "postgres",
    "postgres": "postgres",
    "redis": "redis",
    "rediss": "redis",
    "valkey": "redis",
    "valkeys": "redis",
    "mongodb": "mongodb",
    "dynamodb": "dynamodb",
    "mssql": "mssql",
}


class Opener(Protocol):
    """What a store registers under its scheme."""

    def __call__(self, url: str, *, namespace: str, clock: Clock) -> Store:
        """Open the store behind the URL, bound to one namespace."""


def open_store(url: str, *, namespace: str, clock: Clock = host_clock) -> Store:
    """Open the store behind a URL.

    >>> store = open_store("memory://", namespace="default")
    >>> store.capabilities.durable
    False
    >>> store.close()
    """
    try:
        checked_key(namespace)
    except InvalidKey as error:
        raise InvalidOption(f"the namespace {namespace!r} cannot be used: {error}") from None
    opener = _opener(scheme_of(url))
    return opener(url, namespace=namespace, clock=clock)


def schemes() -> tuple[str, ...]:
    """Every scheme that can be opened here and now."""
    return tuple(sorted({*_BUILT_IN, *(point.name for point in entry_points(group=GROUP))}))


def _opener(scheme: str) -> Opener:
    base = scheme.partition("+")[0]  # postgresql+psycopg, mongodb+srv
    if base in _BUILT_IN:
        module, name = _BUILT_IN[base]
        opener: Opener = getattr(import_module(f"{__name__}.{module}"), name)
        return opener
    for name in (scheme, base):
        for point in entry_points(group=GROUP, name=name):
            return _load(point, base)
    if base in _EXTRAS:
        raise StoreNotInstalled(
            f"no store is registered for {base}:// URLs. Its driver comes with pip install "
            f"'holdfast[{_EXTRAS[base]}]', but this version of Holdfast does not bring the store itself yet: "
            f"upgrade Holdfast, or use one of {_known()}."
        )
    raise StoreNotInstalled(
        f"the scheme {scheme!r} is not known. Known here are {_known()}; write sqlite:///relative/path.db, "
        "sqlite:////absolute/path.db, memory:// or memory://name. Another store registers itself under the "
        f"entry point group {GROUP!r}: install the package that brings it."
    )


def _known() -> str:
    return ", ".join(f"{scheme}://" for scheme in schemes())


def _load(point: EntryPoint, base: str) -> Opener:
    try:
        opener: Opener = point.load()
    except ImportError as error:
        extra = _EXTRAS.get(base)
        advice = f"pip install 'holdfast[{extra}]'" if extra else f"install what {point.value!r} needs"
        raise StoreNotInstalled(f"the store for {base}:// cannot be loaded ({error}). To get it: {advice}.") from error
    return opener
