"""The test kit: a plugin for pytest with a clock that tests move, and the suite that every store must pass.

`holdfast.testing.plugin` is loaded by pytest itself; docs/testing.md tells what its fixtures do. `StoreConformance`
proves a store of one's own. Both need pytest, which `pip install 'holdfast[testing]'` brings; nothing else in the
package imports this one.
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

__all__ = ["StoreConformance", "StoreUnderTest", "TestEngine", "VirtualClock"]

_HOMES = {
    "StoreConformance": "conformance",
    "StoreUnderTest": "plugin",
    "TestEngine": "engine",
    "VirtualClock": "clock",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for, and not before: every run of pytest loads the plugin, few need the suite."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if f"{__name__}.suite" not in sys.modules:
        try:
            import pytest  # noqa: PLC0415  (its asserts are to explain themselves)
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(
                f"{__name__}.{name} needs pytest, which is not installed: pip install 'holdfast[testing]'.",
                name="pytest",
            ) from error
        pytest.register_assert_rewrite(f"{__name__}.suite")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
