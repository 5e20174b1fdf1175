"""A virtual clock for tests: no call sleeps, and time passes only when the test moves the clock.

While it is installed, all clocks of Holdfast stand still: local deadlines, heartbeats, the timeouts of waiting callers,
and the clock of each store that is opened meanwhile and uses the host's clock. `advance` goes from timer to timer. At
each timer it waits until everything that is due has been done before it goes on, so a healthy lease is renewed on the
way. A wait for a real resource, such as a file that another process has locked, still takes real time.

`clock_patches.py` installs the clock, so production code pays nothing for it; `clock_waiters.py` tracks the waiters.
"""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from functools import partial

from ..platform import elapsed as real_elapsed
from ..platform import host_clock
from ..runtime import base
from ..runtime.base import BaseClient, Runtime
from ..runtime.heartbeats import Heartbeats
from ..runtime.notifier import running_loop
from ..validation import MICROSECONDS, Duration, seconds
from .clock_waiters import ClockWait, ClockWaiters, finish

LOOP_PATIENCE = 0.2
"""Real seconds after which an event loop that does not respond is considered stuck."""
LOOP_TURNS = 4
SLICE = 0.05
NUDGE = 1_000
"""The smallest step of the clock, in microseconds."""


class VirtualClock(ClockWaiters):
    """The clock of the clients and stores of one test."""

    longest_wait = 86_400.0
    """Virtual seconds after which a wait of the test that nothing ends raises `TimeoutError`."""

    def __init__(self) -> None:
        super().__init__()
        self._began, self._wall_began = real_elapsed(), host_clock()
        self._passed = 0
        self._moving = threading.RLock()
        self._checks: weakref.WeakKeyDictionary[Heartbeats, tuple[int, float]] = weakref.WeakKeyDictionary()
        self._round = 0
        self._halted: set[Heartbeats] = set()
        self._stuck: dict[asyncio.AbstractEventLoop, threading.Event] = {}
        self._earlier_threads = set(threading.enumerate())

    # -- reading ----------------------------------------------------------------------------------------------

    def elapsed(self) -> float:
        """The time for local deadlines, in seconds."""
        return self._began + self._passed / MICROSECONDS

    def microseconds(self) -> int:
        """The wall clock that the stores use, in microseconds."""
        return self._wall_began + self._passed

    def now(self) -> datetime:
        """The wall clock, in UTC; compare `lease.expires_at` with it."""
        return datetime.fromtimestamp(self.microseconds() / MICROSECONDS, UTC)

    def __repr__(self) -> str:
        return f"<VirtualClock {self._passed / MICROSECONDS:g} s after its start>"

    # -- moving -----------------------------------------------------------------------------------------------

    def advance(self, duration: Duration) -> None:
        """Let time pass, from timer to timer. Leases are renewed on the way, and waiters check again or time out."""
        _not_on_a_loop("advance")
        self._advance(_span(duration))

    async def advance_async(self, duration: Duration) -> None:
        """As `advance`, while this event loop continues to run."""
        await _in_a_thread(lambda: self._advance(_span(duration)))

    def pause(self, duration: Duration) -> None:
        """Let time jump, as if this process had been stopped meanwhile: nothing happens on the way.

        Code that continues afterwards finds that leases are past their ttl.
        """
        _not_on_a_loop("pause")
        self._jump(_span(duration))

    async def pause_async(self, duration: Duration) -> None:
        """As `pause`, from an event loop."""
        await _in_a_thread(lambda: self._jump(_span(duration)))

    @contextmanager
    def halted(self, client: BaseClient) -> Iterator[None]:
        """Stop the heartbeats of one client for a block, as if only its process were stopped."""
        heartbeats = client.runtime.heartbeats
        self._halted.add(heartbeats)
        try:
            yield
        finally:
            self._halted.discard(heartbeats)
            heartbeats._queue.put(None)

    def _advance(self, span: int) -> None:
        with self._moving:
            self._settle()
            target = self._passed + span
            while True:
                following = self._next()
                last = following is None or following >= target
                self._move(target if last or following is None else max(following, self._passed + NUDGE))
                self._settle()
                if last or self._passed >= target:
                    return

    def _jump(self, span: int) -> None:
        with self._moving:
            self._settle()
            self._move(self._passed + span)
            self._settle()

    def _move(self, passed: int) -> None:
        with self._changed:
            self._passed = max(passed, self._passed)
            now = self.elapsed()
            due = [
                clock_wait
                for clock_wait in self._waits
                if clock_wait.deadline is not None and clock_wait.deadline <= now
            ]
        for clock_wait in sorted(due, key=lambda clock_wait: clock_wait.deadline or 0.0):
            clock_wait.notify()

    def _next(self) -> int | None:
        """When the next timer is due, in microseconds since the start; None if there is no timer."""
        with self._changed:
            deadlines = [clock_wait.deadline for clock_wait in self._waits if clock_wait.deadline is not None]
            deadlines += [
                wake_at for heartbeats, (_, wake_at) in list(self._checks.items()) if heartbeats not in self._halted
            ]
        moment = min(deadlines, default=None)
        if moment is None:
            return None
        passed = int((moment - self._began) * MICROSECONDS)
        while self._began + passed / MICROSECONDS < moment:
            passed += 1
        return passed

    # -- settling ---------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Wait until everything that is due now is done: each heartbeat thread has checked, and no call is busy."""
        give_up = time.monotonic() + self.patience
        while True:
            with self._changed:
                self._round += 1
                begun, changes_seen = self._round, self._change_count
            for runtime in open_runtime():
                runtime.heartbeats._queue.put(None)
            self._wait_until(partial(self._is_idle, begun), give_up)
            self._run_loops()
            with self._changed:
                if self._change_count == changes_seen and not self._busy():
                    return

    def _is_idle(self, begun: int) -> bool:
        return not self._unchecked(begun) and not self._busy()

    def _unchecked(self, begun: int) -> list[str]:
        found = []
        for runtime in open_runtime():
            heartbeats = runtime.heartbeats
            thread = heartbeats._thread
            running = thread is not None and thread.is_alive() and not heartbeats._stopping
            if running and self._checks.get(heartbeats, (0, 0.0))[0] < begun:
                found.append(f"the heartbeats of {runtime.store.url}")
        return found

    def _busy(self) -> list[str]:
        """What is busy now, as text for messages."""
        me = threading.get_ident()
        found = [
            "a call of a client"
            for flow in self._flows
            if not flow.waiting
            and flow.thread != me
            and (flow.loop is None or (flow.loop.is_running() and flow.loop not in self._stuck))
        ]
        found += ["a command that was sent to the store"] * self._sent
        for runtime in open_runtime():
            thread = runtime.callbacks._thread
            if thread is not None and thread.is_alive() and thread is not threading.current_thread():
                found.append("a callback such as on_lost")
        return found

    def _wait_until(self, condition: Callable[[], bool], give_up: float) -> None:
        with self._changed:
            while not condition():
                if time.monotonic() >= give_up:
                    busy = [*self._busy(), *self._unchecked(self._round)]
                    raise TimeoutError(
                        f"the virtual clock cannot move on: after {self.patience:g} real seconds this is still busy: "
                        f"{', '.join(busy)}. It may be waiting for the test itself, or for real time."
                    )
                self._changed.wait(SLICE)

    def _run_loops(self) -> None:
        """Let every running event loop run its pending callbacks; a stuck loop is skipped."""
        with self._changed:
            loops = {flow.loop for flow in self._flows if flow.loop is not None}
        for runtime in open_runtime():
            loops.update(runtime._probes)
        mine = running_loop()
        for loop in loops:
            if loop is mine or not loop.is_running():
                continue
            waiting = self._stuck.get(loop)
            if waiting is not None and not waiting.is_set():
                continue
            self._stuck.pop(loop, None)
            answered = _after_some_turns(loop)
            if not answered.wait(LOOP_PATIENCE):
                self._stuck[loop] = answered

    def _advance_while_waiting(self, clock_wait: ClockWait, woken: threading.Lock) -> None:
        """Move the clock while the thread of the test itself waits, since no other thread would move it.

        The clock stands still while another thread of the test is busy: that thread may be about to end the wait.
        """
        give_up, changes_seen = time.monotonic() + self.patience, self._change_count
        limit = (self.elapsed() if clock_wait.flow is None else clock_wait.flow.began) + self.longest_wait
        while not clock_wait.notified:
            others = self._other_busy_threads()
            if not others:
                following = self._next()
                if following is None or self.elapsed() > limit:
                    raise TimeoutError(
                        f"the test has waited for {self.longest_wait:g} s of virtual time, and nothing ended its wait"
                    )
                with self._moving:
                    self._move(max(following, self._passed + NUDGE))
                    self._settle()
                continue
            if woken.acquire(timeout=SLICE):
                return
            if self._change_count != changes_seen:
                give_up, changes_seen = time.monotonic() + self.patience, self._change_count
            elif time.monotonic() >= give_up:
                raise TimeoutError(
                    f"the test waits while its clock stands still, and nothing has happened for {self.patience:g} real "
                    f"seconds. The clock does not move by itself while another thread is busy: {', '.join(others)}"
                )

    def _other_busy_threads(self) -> list[str]:
        with self._changed:
            waiting = {clock_wait.thread for clock_wait in self._waits}
        return [
            thread.name
            for thread in threading.enumerate()
            if thread not in self._earlier_threads
            and thread.ident not in waiting
            and thread.ident != self._test_thread
            and not thread.name.startswith("holdfast")
        ]


def open_runtime() -> list[Runtime]:
    """The runtime of every open client."""
    found = [client._runtime for client in list(base._clients)]
    return [runtime for runtime in found if runtime is not None]


def _span(duration: Duration) -> int:
    return round(seconds(duration, what="the time to pass") * MICROSECONDS)


def _not_on_a_loop(method: str) -> None:
    if running_loop() is not None:
        raise RuntimeError(
            f"{method}() would block the event loop that runs in this thread: use clock.{method}_async()"
        )


async def _in_a_thread(work: Callable[[], None]) -> None:
    """Run a function in its own thread while the event loop continues to run."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # (raised again in the awaiting task)
            errors.append(error)
        finally:
            with suppress(RuntimeError):
                loop.call_soon_threadsafe(finish, done)

    thread = threading.Thread(target=run, name="holdfast-clock", daemon=True)
    thread.start()
    await done
    thread.join()
    if errors:
        raise errors[0]


def _after_some_turns(loop: asyncio.AbstractEventLoop) -> threading.Event:
    """An event that is set when the loop has completed a few iterations."""
    answered = threading.Event()

    def turn(left: int) -> None:
        if left:
            loop.call_soon(turn, left - 1)
        else:
            answered.set()

    try:
        loop.call_soon_threadsafe(turn, LOOP_TURNS)
    except RuntimeError:  # closed meanwhile
        answered.set()
    return answered
