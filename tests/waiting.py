"""Waiting for conditions: tests never wait for a number of milliseconds."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
PATIENCE = float(os.environ.get("HOLDFAST_TEST_PATIENCE", "20"))


def eventually(condition: Callable[[], T], *, within: float = PATIENCE) -> T:
    """The first true value of the condition; fails when there is none in time."""
    until = time.monotonic() + within
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= until:
            raise AssertionError(f"not within {within} s: {condition}")
        time.sleep(0.002)


async def eventually_async(condition: Callable[[], T], *, within: float = PATIENCE) -> T:
    """As `eventually`, on an event loop."""
    until = time.monotonic() + within
    while True:
        value = condition()
        if asyncio.iscoroutine(value):
            value = await value
        if value:
            return value
        if time.monotonic() >= until:
            raise AssertionError(f"not within {within} s: {condition}")
        await asyncio.sleep(0.002)
