"""A clock for tests: nobody sleeps, and time passes when the test says so.

While it is installed, Holdfast's own clocks stand still: the local deadlines, the heartbeats, the waiting of every
caller, and the stores that are opened meanwhile and live by the host's clock. `advance` goes from timer to timer, and
at each one it lets everything that is due come to rest before it goes on, so a healthy lease is renewed on the way.
What waits for a real thing, such as a file that another process has locked, still waits in real time.

`installing.py` exchanges the names for it, so nothing of this costs production code anything; `resting.py` knows who
waits.
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
"""Real seconds after which an event loop that does not answer is taken for stuck."""
LOOP_TURNS = 4
SLICE = 0.05
NUDGE = 1_000
"""Microseconds by which time goes on at least."""


class VirtualClock(ClockWaiters):
    """Time for the clients and stores of one test."""

    longest_wait = 86_400.0
    """Virtual seconds that the test may wait for something that never comes, before it is told so."""

    def __init__(self) -> None:
        super().__init__()
        self._began, self._wall_began = real_elapsed(), host_clock()
        self._passed = 0
        self._moving = threading.RLock()
        self._looks: weakref.WeakKeyDictionary[Heartbeats, tuple[int, float]] = weakref.WeakKeyDictionary()
        self._round = 0
        self._halted: set[Heartbeats] = set()
        self._stuck: dict[asyncio.AbstractEventLoop, threading.Event] = {}
        self._earlier = set(threading.enumerate())

    # -- reading it -------------------------------------------------------------------------------------------

    def elapsed(self) -> float:
        """Seconds on the clock that local deadlines live by."""
        return self._began + self._passed / MICROSECONDS

    def microseconds(self) -> int:
        """The wall clock that the stores live by."""
        return self._wall_began + self._passed

    def now(self) -> datetime:
        """The wall clock, in UTC; what `lease.expires_at` is compared with."""
        return datetime.fromtimestamp(self.microseconds() / MICROSECONDS, UTC)

    def __repr__(self) -> str:
        return f"<VirtualClock {self._passed / MICROSECONDS:g} s after its beginning>"

    # -- moving it --------------------------------------------------------------------------------------------

    def advance(self, duration: Duration) -> None:
        """Let time pass, from timer to timer. Leases are renewed on the way, waiters look again or time out."""
        _not_on_a_loop("advance")
        self._advance(_span(duration))

    async def advance_async(self, duration: Duration) -> None:
        """As `advance`, while this event loop goes on."""
        await _beside_the_loop(lambda: self._advance(_span(duration)))

    def pause(self, duration: Duration) -> None:
        """Let time jump, as if this process had been stopped meanwhile: nothing happens on the way.

        What goes on afterwards finds that leases are past their ttl.
        """
        _not_on_a_loop("pause")
        self._jump(_span(duration))

    async def pause_async(self, duration: Duration) -> None:
        """As `pause`, from an event loop."""
        await _beside_the_loop(lambda: self._jump(_span(duration)))

    @contextmanager
    def halted(self, client: BaseClient) -> Iterator[None]:
        """Stop the heartbeats of one client for a block, as if its process were stopped while the others go on."""
        heartbeats = client.runtime.heartbeats
        self._halted.add(heartbeats)
        try:
            yield
        finally:
            self._halted.discard(heartbeats)
            heartbeats._mail.put(None)

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
            due = [nap for nap in self._naps if nap.deadline is not None and nap.deadline <= now]
        for nap in sorted(due, key=lambda nap: nap.deadline or 0.0):
            nap.ring()

    def _next(self) -> int | None:
        """When somebody wants to be woken next."""
        with self._changed:
            wishes = [nap.deadline for nap in self._naps if nap.deadline is not None]
            wishes += [
                wake_at for heartbeats, (_, wake_at) in list(self._looks.items()) if heartbeats not in self._halted
            ]
        moment = min(wishes, default=None)
        if moment is None:
            return None
        passed = int((moment - self._began) * MICROSECONDS)
        while self._began + passed / MICROSECONDS < moment:
            passed += 1
        return passed

    # -- coming to rest ---------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Wait until nothing is under way that is due now: every keeper has looked around, everybody rests."""
        give_up = time.monotonic() + self.patience
        while True:
            with self._changed:
                self._round += 1
                begun, stirs = self._round, self._stirs
            for runtime in open_runtime():
                runtime.heartbeats._mail.put(None)
            self._wait_until(partial(self._at_rest, begun), give_up)
            self._visit_loops()
            with self._changed:
                if self._stirs == stirs and not self._busy():
                    return

    def _at_rest(self, begun: int) -> bool:
        return not self._unlooked(begun) and not self._busy()

    def _unlooked(self, begun: int) -> list[str]:
        found = []
        for runtime in open_runtime():
            heartbeats = runtime.heartbeats
            thread = heartbeats._thread
            running = thread is not None and thread.is_alive() and not heartbeats._stopping
            if running and self._looks.get(heartbeats, (0, 0.0))[0] < begun:
                found.append(f"the heartbeats of {runtime.store.url}")
        return found

    def _busy(self) -> list[str]:
        """What is at work now, for people."""
        me = threading.get_ident()
        found = [
            "a call of a client"
            for visit in self._visits
            if not visit.resting
            and visit.thread != me
            and (visit.loop is None or (visit.loop.is_running() and visit.loop not in self._stuck))
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
                    busy = [*self._busy(), *self._unlooked(self._round)]
                    raise TimeoutError(
                        f"the virtual clock cannot go on: within {self.patience:g} real seconds this did not come to "
                        f"rest: {', '.join(busy)}. Something in it waits for the test, or for real time."
                    )
                self._changed.wait(SLICE)

    def _visit_loops(self) -> None:
        """Let every running event loop do what it was asked to do so far; a stuck one is left alone."""
        with self._changed:
            loops = {visit.loop for visit in self._visits if visit.loop is not None}
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

    def _pass_the_time(self, nap: ClockWait, bell: threading.Lock) -> None:
        """The thread of the test waits itself: nobody else would move the clock, so time passes meanwhile.

        Not while another thread of the test is at work, which may be about to do what is waited for.
        """
        give_up, stirs = time.monotonic() + self.patience, self._stirs
        limit = (self.elapsed() if nap.visit is None else nap.visit.began) + self.longest_wait
        while not nap.rung:
            others = self._others_at_work()
            if not others:
                following = self._next()
                if following is None or self.elapsed() > limit:
                    raise TimeoutError(
                        f"the test has waited for {self.longest_wait:g} s of virtual time, and nothing came of it"
                    )
                with self._moving:
                    self._move(max(following, self._passed + NUDGE))
                    self._settle()
                continue
            if bell.acquire(timeout=SLICE):
                return
            if self._stirs != stirs:
                give_up, stirs = time.monotonic() + self.patience, self._stirs
            elif time.monotonic() >= give_up:
                raise TimeoutError(
                    f"the test waits while its clock stands still, and nothing has happened for {self.patience:g} real "
                    f"seconds. Time does not pass by itself while another thread is at work: {', '.join(others)}"
                )

    def _others_at_work(self) -> list[str]:
        with self._changed:
            resting = {nap.thread for nap in self._naps}
        return [
            thread.name
            for thread in threading.enumerate()
            if thread not in self._earlier
            and thread.ident not in resting
            and thread.ident != self._owner
            and not thread.name.startswith("holdfast")
        ]


def open_runtime() -> list[Runtime]:
    """The moving parts of every open client."""
    found = [client._runtime for client in list(base._clients)]
    return [runtime for runtime in found if runtime is not None]


def _span(duration: Duration) -> int:
    return round(seconds(duration, what="the time to pass") * MICROSECONDS)


def _not_on_a_loop(word: str) -> None:
    if running_loop() is not None:
        raise RuntimeError(f"{word}() would stop the event loop that runs in this thread: await clock.{word}_async()")


async def _beside_the_loop(work: Callable[[], None]) -> None:
    """Do this in a thread of its own, while the event loop goes on."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    errors: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:  # (it is raised where it is awaited)
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
    """An event that is set when the loop has gone round a few times."""
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
