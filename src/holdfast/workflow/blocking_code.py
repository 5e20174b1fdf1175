"""Finds workflow code that blocks its event loop, and names the line.

Workflow code runs in callbacks of the engine's event loop, so code that computes for long, or calls something that
blocks, delays every other run of its engine. One thread of each engine looks at the code that is running, a few times
a second. It sleeps while no workflow code runs. Code that does not let other threads run is found when it ends, without
its line.
"""

from __future__ import annotations

import sys
import sysconfig
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType

from ..platform import start_thread

LONGEST_TURN = 1.0
"""Seconds for which workflow code may run without waiting, before a warning is emitted."""
LOOK_EVERY = 0.25
"""Seconds between two looks while workflow code runs."""
QUIET_LOOKS = 20
"""After so many looks in a row at which no code has run since the last one, the thread sleeps."""
STOP_SECONDS = 1.0
"""Seconds to wait for the end of the thread, at most: it may be in a sink of an event that never returns."""
NO_LINE = "a line that is not known: the code did not let other threads run, or it ended just then"
_OWN = str(Path(__file__).parent.parent)
_PACKAGES = tuple({sysconfig.get_path(name) for name in ("purelib", "platlib")})
_PYTHON = sysconfig.get_path("stdlib")

Warn = Callable[[float, str], None]
"""Called with the seconds so far and the line; from the thread that looks, or at the end of the code from its own."""


class RunningCode:
    """Workflow code that is running now, until it waits."""

    __slots__ = ("began", "thread", "warn", "warned")

    def __init__(self, warn: Warn) -> None:
        self.warn, self.warned = warn, False
        self.thread, self.began = threading.get_ident(), time.monotonic()


class BlockingCodeWatch:
    """The workflow code of one engine that is running now, and the thread that looks at it."""

    def __init__(self) -> None:
        self._turn: RunningCode | None = None  # an engine runs all workflow code in one thread, one turn at a time
        self._count = 0  # turns that have begun
        self._lock = threading.Lock()  # for `warned`
        self._running, self._stopped = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Look from now on."""
        self._thread = threading.Thread(target=self._look_forever, name="holdfast-watch", daemon=True)
        start_thread(self._thread)

    def stop(self) -> None:
        """Stop the thread."""
        self._stopped.set()
        self._running.set()
        if self._thread is not None:
            self._thread.join(STOP_SECONDS)  # a daemon

    def begin(self, warn: Warn) -> None:
        """Workflow code begins to run in this thread."""
        self._turn = RunningCode(warn)
        self._count += 1
        if not self._running.is_set():
            self._running.set()

    def end(self) -> None:
        """The code waits now, or has ended."""
        turn, self._turn = self._turn, None
        if turn is not None and (lasted := time.monotonic() - turn.began) >= LONGEST_TURN and self._first(turn):
            turn.warn(lasted, NO_LINE)

    def _first(self, turn: RunningCode) -> bool:
        """Whether there was no warning about this turn until now."""
        with self._lock:
            warned, turn.warned = turn.warned, True
            return not warned

    def _look_forever(self) -> None:
        quiet, seen = 0, -1
        while self._running.wait() and not self._stopped.wait(LOOK_EVERY):
            turn = self._turn
            if turn is not None:
                self._look(turn)
            quiet = quiet + 1 if self._count == seen and turn is None else 0
            seen = self._count
            if quiet >= QUIET_LOOKS:
                quiet = 0
                self._running.clear()
                if self._count != seen:  # a turn began before the flag was cleared
                    self._running.set()

    def _look(self, turn: RunningCode) -> None:
        lasted = time.monotonic() - turn.began
        if lasted < LONGEST_TURN or turn.warned:
            return
        place = line_of(sys._current_frames().get(turn.thread))  # noqa: SLF001
        if self._turn is turn and self._first(turn):  # otherwise the frame is that of other code
            turn.warn(lasted, place)


def line_of(frame: FrameType | None) -> str:
    """The line of the user's code that runs here: the innermost one that is not of a library, if there is one."""
    frames: list[FrameType] = []
    while frame is not None:
        frames.append(frame)
        frame = frame.f_back
    shown = min(frames, key=lambda one: _distance(one.f_code.co_filename), default=None)  # of equals the innermost
    return "unknown" if shown is None else f"{shown.f_code.co_filename}:{shown.f_lineno} in {shown.f_code.co_name}"


def _distance(file: str) -> int:
    """How far a file is from being the user's: 1 for one of a package that is installed, 2 for those of libraries."""
    if file.startswith((_OWN, "<frozen")):
        return 2
    if file.startswith(_PACKAGES):
        return 1
    return 2 if file.startswith(_PYTHON) else 0
