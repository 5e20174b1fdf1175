"""The patches that are in place while a virtual clock is installed.

They replace the functions that read the time or wait, so production code needs no hook for tests and pays for none.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any, TypeVar

from ..commands import Command
from ..platform import elapsed as real_elapsed
from ..runtime import runners
from ..runtime.batcher import Batcher
from ..runtime.flows import Flow
from ..runtime.heartbeats import Heartbeats
from ..runtime.notifier import Notifier
from ..runtime.requests import Done
from ..runtime.runners import Batchers
from ..stores import open_store
from .clock import VirtualClock
from .clock_waiters import FOREVER

T = TypeVar("T")

REAL = ("platform", "stores", "fencing", "cli", "testing")
"""Subpackages that wait for real resources, and so keep the real clock."""


@contextmanager
def installed(clock: VirtualClock) -> Iterator[VirtualClock]:
    """Use this clock in all of Holdfast, for the length of a block."""
    flag_wait, flag_wait_async = Notifier.wait, Notifier.wait_async
    real_run, real_run_async = runners.run, runners.run_async
    check, enqueue = Heartbeats._check, Batcher.enqueue

    def wait(flag: Notifier, timeout: float | None = None) -> bool:
        return clock._wait(flag, timeout)

    async def wait_async(flag: Notifier, timeout: float | None = None) -> bool:  # noqa: ASYNC109
        return await clock._wait_async(flag, timeout)

    def run(flow: Flow[T], batchers: Batchers) -> T:
        with clock._track(None):
            return real_run(flow, batchers)

    async def run_async(flow: Flow[T], batchers: Batchers) -> T:
        with clock._track(asyncio.get_running_loop()):
            return await real_run_async(flow, batchers)

    def look(heartbeats: Heartbeats) -> float:
        begun = clock._round
        wake_at = clock.elapsed() + FOREVER if heartbeats in clock._halted else check(heartbeats)
        with clock._changed:
            clock._checks[heartbeats] = begun, wake_at
            clock._changed.notify_all()
        return wake_at

    def send(batcher: Batcher, commands: Sequence[Command], done: Done | None = None) -> bool:
        return clock._count(lambda counted: enqueue(batcher, commands, counted), done)

    class RealPause(Notifier):
        """The short pause between two tries of a caller: it stays in real time, since no test wants to move it."""

        __slots__ = ()
        wait = flag_wait
        wait_async = flag_wait_async

    replaced: dict[Any, Any] = {real_elapsed: clock.elapsed, real_run: run, real_run_async: run_async}
    with ExitStack() as stack:
        for name, module in list(sys.modules.items()):
            subpackage = name.split(".")[1:2]
            if name.startswith("holdfast.") and module is not None and subpackage[0] not in REAL:
                for function_name in ("elapsed", "run", "run_async"):
                    value = vars(module).get(function_name)
                    if value is not None and value in replaced:
                        _replace(stack, module, function_name, replaced[value])
        for pausing in ("holdfast.runtime.flows", "holdfast.state.compare_and_swap"):
            _replace(stack, sys.modules[pausing], "Notifier", RealPause)
        _replace(stack, Notifier, "wait", wait)
        _replace(stack, Notifier, "wait_async", wait_async)
        _replace(stack, Heartbeats, "_check", look)
        _replace(stack, Batcher, "enqueue", send)
        _replace(
            stack, open_store, "__kwdefaults__", {**(open_store.__kwdefaults__ or {}), "clock": clock.microseconds}
        )
        try:
            yield clock
        finally:
            for clock_wait in list(clock._waits):
                clock_wait.notify()


def _replace(stack: ExitStack, owner: Any, name: str, value: object) -> None:
    before = getattr(owner, name)
    stack.callback(setattr, owner, name, before)
    setattr(owner, name, value)
