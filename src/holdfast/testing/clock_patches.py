"""What is exchanged while a virtual clock is installed, so that nothing of it costs production code anything."""

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

REAL = ("_platform", "stores", "fencing", "cli", "testing")
"""Rooms that wait for real things, and so in real time."""


@contextmanager
def installed(clock: VirtualClock) -> Iterator[VirtualClock]:
    """Let everything of Holdfast live by this clock."""
    flag_wait, flag_wait_async = Notifier.wait, Notifier.wait_async
    real_run, real_run_async = runners.run, runners.run_async
    look_around, enqueue = Heartbeats._look_around, Batcher.enqueue

    def wait(flag: Notifier, timeout: float | None = None) -> bool:
        return clock._wait(flag, timeout)

    async def wait_async(flag: Notifier, timeout: float | None = None) -> bool:  # noqa: ASYNC109
        return await clock._wait_async(flag, timeout)

    def run(flow: Flow[T], batchers: Batchers) -> T:
        with clock._visit(None):
            return real_run(flow, batchers)

    async def run_async(flow: Flow[T], batchers: Batchers) -> T:
        with clock._visit(asyncio.get_running_loop()):
            return await real_run_async(flow, batchers)

    def look(heartbeats: Heartbeats) -> float:
        begun = clock._round
        wake_at = clock.elapsed() + FOREVER if heartbeats in clock._halted else look_around(heartbeats)
        with clock._changed:
            clock._looks[heartbeats] = begun, wake_at
            clock._changed.notify_all()
        return wake_at

    def send(batcher: Batcher, commands: Sequence[Command], done: Done | None = None) -> bool:
        return clock._count(lambda counted: enqueue(batcher, commands, counted), done)

    class RealPause(Notifier):
        """Between two tries of the same thing a caller waits a moment, which no test wants to move."""

        __slots__ = ()
        wait = flag_wait
        wait_async = flag_wait_async

    exchanged: dict[Any, Any] = {real_elapsed: clock.elapsed, real_run: run, real_run_async: run_async}
    with ExitStack() as stack:
        for name, module in list(sys.modules.items()):
            room = name.split(".")[1:2]
            if name.startswith("holdfast.") and module is not None and room[0] not in REAL:
                for word in ("elapsed", "run", "run_async"):
                    value = vars(module).get(word)
                    if value is not None and value in exchanged:
                        _exchange(stack, module, word, exchanged[value])
        for pausing in ("holdfast.runtime.flows", "holdfast.state.compare_and_swap"):
            _exchange(stack, sys.modules[pausing], "Notifier", RealPause)
        _exchange(stack, Notifier, "wait", wait)
        _exchange(stack, Notifier, "wait_async", wait_async)
        _exchange(stack, Heartbeats, "_look_around", look)
        _exchange(stack, Batcher, "enqueue", send)
        _exchange(
            stack, open_store, "__kwdefaults__", {**(open_store.__kwdefaults__ or {}), "clock": clock.microseconds}
        )
        try:
            yield clock
        finally:
            for nap in list(clock._naps):
                nap.ring()


def _exchange(stack: ExitStack, owner: Any, name: str, value: object) -> None:
    before = getattr(owner, name)
    stack.callback(setattr, owner, name, before)
    setattr(owner, name, value)
