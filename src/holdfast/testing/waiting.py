"""Waiting for conditions: tests never wait for a number of milliseconds."""

from __future__ import annotations

import asyncio
import inspect
import os
import time
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")
PATIENCE = float(os.environ.get("HOLDFAST_TEST_PATIENCE", "20"))
"""Seconds after which `eventually` fails."""
_CHECK_EVERY = 0.002


def eventually(condition: Callable[[], T], *, within: float = PATIENCE) -> T:
    """Call the condition until it returns a true value, and return that; fail after `within` seconds."""
    until = time.monotonic() + within
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= until:
            raise AssertionError(f"the condition did not become true within {within} s: {condition}")
        time.sleep(_CHECK_EVERY)


async def eventually_async(condition: Callable[[], Any], *, within: float = PATIENCE) -> Any:
    """As `eventually`, on an event loop; the condition may be async."""
    until = time.monotonic() + within
    while True:
        value = condition()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        if time.monotonic() >= until:
            raise AssertionError(f"the condition did not become true within {within} s: {condition}")
        await asyncio.sleep(_CHECK_EVERY)
