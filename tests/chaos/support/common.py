"""Shared by all campaigns: worker processes that are really killed and paused, their journals, and the report.

A campaign is a program. Without arguments it runs at its small size, with `--full` at full size; it starts copies of
itself as workers. Signals are sent to the pid of a worker only, and every worker ends with the program, even if the
program is killed. Each worker records its actions in a journal, line by line, so the lines remain after a kill.
"""

from __future__ import annotations

import argparse
import ctypes
import faulthandler
import json
import logging
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, Self, TypeVar

from holdfast.platform import elapsed

SizeT = TypeVar("SizeT")
WAITING_LEASE = 10.0
"""Seconds for which a waiter's position is kept, as documented; deliberately not imported from the code."""
SLACK = 5.0
"""Seconds that a busy machine may add to a documented bound."""

LONGEST_SMALL, LONGEST_FULL = 240.0, 900.0
"""Seconds after which the whole campaign is aborted."""
INCONCLUSIVE = 3
"""The exit code if no promise was broken, but too few events happened, or the machine was too slow, to show all."""
MOST_BROKEN = 40
"""At most so many broken promises are printed."""


USUAL = 0.08
"""Seconds that `how_slow` takes on an ordinary machine that has nothing else to do."""
MOST_PATIENCE = 6.0
SHORT = 5.0
"""Shorter waits are part of what a campaign does, and are not stretched."""


def how_slow() -> float:
    """How many times longer than usual this machine takes for some work now, from 1 to `MOST_PATIENCE`."""
    begun = elapsed()
    sum(number * number for number in range(1_000_000))
    return min(MOST_PATIENCE, max(1.0, (elapsed() - begun) / USUAL))


def stretched(seconds: float) -> float:
    """A limit of time for a small campaign: on a slow machine it is longer. Nothing is stretched at full size."""
    return seconds * float(os.environ.get("HOLDFAST_PATIENCE", "1"))


class Report:
    """The figures of a campaign, and whether they are sufficient and as promised."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._started = elapsed()
        self._lines: list[tuple[str, str, str]] = []
        self._unclear: list[str] = []
        self._broken: Counter[str] = Counter()

    def figure(self, what: str, value: object, note: str = "") -> None:
        """Add a figure without a condition."""
        self._lines.append((what, f"{value:.2f}" if isinstance(value, float) else str(value), note))

    def at_least(self, what: str, value: float, minimum: float) -> None:
        """Add a figure; below the minimum the campaign is inconclusive."""
        self.figure(what, value, f"at least {minimum}")
        if value < minimum:
            self._unclear.append(f"{what}: {value}; at least {minimum} are needed to show anything")

    def within(self, what: str, value: float, limit: float) -> None:
        """Add a time, or a figure that depends on times; above the limit the campaign is inconclusive."""
        self.figure(what, value, f"within {limit:g}")
        if value > stretched(limit):
            self._unclear.append(f"{what}: {value}; more than {limit:g} is too slow")

    def at_most(self, what: str, value: float, limit: float) -> None:
        """Add a figure that is promised not to exceed the limit."""
        self.figure(what, value, f"at most {limit:g}")
        if value > limit:
            self.broken(f"{what}: {value}; at most {limit:g} is promised")

    def every(self, what: str, value: float, total: float) -> None:
        """Add a figure that is promised to reach the total."""
        self.figure(what, value, f"of {total:g}")
        if value < total:
            self.broken(f"{what}: only {value} of {total:g}")

    def broken(self, promise: str) -> None:
        """Record a broken promise."""
        self._broken[promise] += 1

    def demand(self, promise: str, *, kept: bool) -> None:
        """Record a broken promise, unless it was kept."""
        if not kept:
            self.broken(promise)

    def close(self) -> int:
        """Print the report. Returns the exit code: 0 passed, 1 a promise was broken, 3 inconclusive."""
        lines = [f"  {what:<56}{value:>8}{'   ' + note if note else ''}" for what, value, note in self._lines]
        lines += [f"  NOT SHOWN  {unclear}" for unclear in self._unclear]
        broken = list(self._broken.items())[:MOST_BROKEN]
        lines += [f"  BROKEN     {promise}" + (f"  ({times} times)" if times > 1 else "") for promise, times in broken]
        code, verdict = (1, "FAILED") if broken else (INCONCLUSIVE, "INCONCLUSIVE") if self._unclear else (0, "PASSED")
        sys.stdout.write("\n".join([self._title, *lines, f"{verdict} after {elapsed() - self._started:.0f} s"]) + "\n")
        return code


class Journal:
    """What a worker did, one JSON line at a time; written lines remain when the worker is killed."""

    def __init__(self, path: str | Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def note(self, what: str, **facts: Any) -> None:
        line = {"what": what, "pid": os.getpid(), "at": elapsed(), "wall": time.time(), **facts}
        os.write(self._fd, json.dumps(line).encode() + b"\n")


def entries(path: Path) -> list[dict[str, Any]]:
    """The complete lines of a journal; the last line may be incomplete after a kill."""
    if not path.exists():
        return []
    *lines, _rest = path.read_bytes().split(b"\n")
    return [json.loads(line) for line in lines]


class Worker:
    """One worker process of the campaign."""

    def __init__(self, script: str, job: dict[str, Any], folder: Path, name: str, env: dict[str, str] | None) -> None:
        self.name = name
        self.journal = folder / f"{name}.journal"
        self.errors = folder / f"{name}.errors"
        self.resume_at: float | None = None
        self.stopped_itself = False
        self.killed_at: float | None = None
        job = {**job, "name": name, "journal": str(self.journal), "folder": str(folder), "parent": os.getpid()}
        with self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [sys.executable, script, "--work", json.dumps(job)],
                stdin=subprocess.PIPE,
                stdout=errors,
                stderr=errors,
                env={**os.environ, **(env or {})},
            )

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def running(self) -> bool:
        return self.process.poll() is None

    def notes(self, *whats: str) -> list[dict[str, Any]]:
        return [entry for entry in entries(self.journal) if not whats or entry["what"] in whats]

    def kill(self) -> None:
        """Send SIGKILL, also to a paused process, and wait until it has ended."""
        if self.running:
            self.killed_at = elapsed()
            self.process.kill()
            self.process.wait()

    def pause(self, seconds: float) -> None:
        """Send SIGSTOP; `Crew.resume_due` continues the process after this time.

        Waits until the process has stopped: on a busy machine its threads may run on for a while after the signal.
        """
        self.process.send_signal(signal.SIGSTOP)
        with suppress(ChildProcessError):
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        self.resume_at = elapsed() + seconds

    def resume(self) -> None:
        self.resume_at, self.stopped_itself = None, False
        self.process.send_signal(signal.SIGCONT)

    def stopped(self) -> bool:
        """Whether it has stopped since the last call, by its own signal or by another one."""
        if not self.running:
            return False
        with suppress(ChildProcessError):
            return os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG) is not None
        return False

    def send_line(self, line: str) -> None:
        """Send a line to the standard input of the worker."""
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def failure(self) -> str:
        """How it ended, if it failed; otherwise an empty string."""
        code = self.process.poll()
        if code in (None, 0, -signal.SIGKILL):
            return ""
        tail = self.errors.read_text(errors="replace").strip().splitlines()[-12:]
        return f"{self.name} ended with exit code {code}: " + " | ".join(tail)


class Crew:
    """All workers of a campaign. Leaving the block kills every one of them."""

    def __init__(self, script: str, folder: Path, *, env: dict[str, str] | None = None) -> None:
        self._script, self._folder, self._env = script, folder, env
        self.workers: list[Worker] = []

    def start(self, job: dict[str, Any], *, env: dict[str, str] | None = None) -> Worker:
        worker = Worker(self._script, job, self._folder, f"w{len(self.workers):03d}", env or self._env)
        self.workers.append(worker)
        return worker

    def running(self) -> list[Worker]:
        return [worker for worker in self.workers if worker.running]

    def active(self) -> list[Worker]:
        """The workers that run and are not paused."""
        return [worker for worker in self.running() if worker.resume_at is None]

    def resume_due(self, pause: Callable[[], float], ready: Callable[[Worker], bool] = lambda _worker: True) -> int:
        """Continue workers whose pause is over. Returns how many have newly stopped themselves.

        A worker that stopped itself is continued only when it is also `ready`.
        """
        found = 0
        for worker in self.running():
            if worker.resume_at is None and worker.stopped():
                worker.resume_at, worker.stopped_itself = elapsed() + pause(), True
                found += 1
            elif worker.resume_at is not None and elapsed() >= worker.resume_at:
                worker.stopped()  # consumes the status change of our own SIGSTOP
                if not worker.stopped_itself or ready(worker):
                    worker.resume()
        return found

    def notes(self, *whats: str) -> list[dict[str, Any]]:
        """The journal lines of all workers, in order of time."""
        return sorted((note for worker in self.workers for note in worker.notes(*whats)), key=lambda note: note["at"])

    def failures(self) -> Iterable[str]:
        return filter(None, (worker.failure() for worker in self.workers))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.kill()
            if worker.process.stdin is not None:
                with suppress(OSError):
                    worker.process.stdin.close()


def claim(folder: str | Path, name: str) -> bool:
    """True for the first call with this name in any process, False for all later ones."""
    try:
        os.close(os.open(Path(folder, name), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def end_with_parent(parent: int) -> None:
    """Let the kernel kill this worker when the campaign ends in any way."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def until(condition: Callable[[], Any], *, within: float, every: float = 0.01) -> bool:
    """Whether the condition became true in time."""
    give_up = elapsed() + (within if within < SHORT else stretched(within))
    while not condition():
        if elapsed() >= give_up:
            return False
        time.sleep(every)
    return True


def _give_up() -> None:
    sys.stdout.write("FAILED: the campaign hangs; standard error shows where each thread is\n")
    sys.stdout.flush()
    faulthandler.dump_traceback(all_threads=True)
    os._exit(1)  # the workers end with this process


def main(
    script: str,
    prove: Callable[[SizeT, int, Path, Report], None],
    *,
    small: SizeT,
    full: SizeT,
    work: Callable[[dict[str, Any]], None] | None = None,
    parser: argparse.ArgumentParser | None = None,
    longest: float = LONGEST_FULL,
) -> None:
    """Run the campaign, or one of its workers, as the command line requests. `parser` may have further options.

    At full size the campaign is aborted after `longest` seconds.
    """
    parser = parser or argparse.ArgumentParser()
    parser.add_argument("--full", action="store_true", help="run at full size")
    parser.add_argument("--seed", type=int, help="seed of all random choices; printed, so that a run can be repeated")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work is not None and work is not None:
        job = json.loads(options.work)
        end_with_parent(job["parent"])
        work(job)
        return
    logging.getLogger("holdfast").setLevel(logging.CRITICAL)  # losses are intended here: no log lines about them
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    seed = options.seed if options.seed is not None else int.from_bytes(os.urandom(3))
    size = full if options.full else small
    if not options.full:
        os.environ.setdefault("HOLDFAST_PATIENCE", f"{how_slow():.1f}")  # for the workers, too
    watchdog = threading.Timer(longest if options.full else stretched(LONGEST_SMALL), _give_up)
    watchdog.daemon = True
    watchdog.start()
    report = Report(f"{Path(script).stem}, {'full' if options.full else 'small'} size, seed {seed}: {size}")
    with tempfile.TemporaryDirectory(prefix="holdfast-campaign-") as folder:
        prove(size, seed, Path(folder), report)
    sys.exit(report.close())
