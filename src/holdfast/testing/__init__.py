"""Tools for tests: a pytest plugin, a virtual clock, an engine with mocked steps, and the conformance suite of stores.

pytest loads `holdfast.testing.plugin` by itself; docs/testing.md describes its fixtures. `StoreConformance` is the
suite that every store must pass, including stores of other packages. Both need pytest, which
`pip install 'holdfast[testing]'` installs. No other part of Holdfast imports this package.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .clock import VirtualClock
    from .conformance import StoreConformance
    from .engine import TestEngine
    from .plugin import StoreUnderTest
    from .replaying import replay

__all__ = ["StoreConformance", "StoreUnderTest", "TestEngine", "VirtualClock", "replay"]

_MODULES = {
    "StoreConformance": "conformance",
    "StoreUnderTest": "plugin",
    "TestEngine": "engine",
    "VirtualClock": "clock",
    "replay": "replaying",
}


def __getattr__(name: str) -> Any:
    """Import a name on first use: every run of pytest loads the plugin, but few need the suite."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if f"{__name__}.suite" not in sys.modules:
        try:
            import pytest  # noqa: PLC0415  (so that it rewrites the asserts of the suite)
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"{__name__}.{name} needs pytest, which is not installed: pip install 'holdfast[testing]'.",
                name="pytest",
            ) from error
        pytest.register_assert_rewrite(f"{__name__}.suite")
    return getattr(import_module(f".{_MODULES[name]}", __name__), name)
