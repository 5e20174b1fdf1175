"""What the proofs share: processes that are really killed and paused, their journals, and a report that can fail.

A proof is a program. Without arguments it runs at its smaller size, with `--full` at full size; it starts
copies of itself as workers. Workers are signalled by their own pid only, and none outlives the program, not
even if it is killed. What a worker did it writes into a journal, one line at a time, which survives its death.
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
"""Seconds for which a waiter's place is kept: what the documentation promises, not what the code says."""
SLACK = 5.0
"""Seconds that a busy machine may add to a documented bound."""

LONGEST_SMALL, LONGEST_FULL = 240.0, 900.0
"""Seconds after which a proof is given up as a whole."""
INCONCLUSIVE = 3
"""The exit code of a proof that broke no promise and was too quiet, or too slow, to show all of them."""
MOST_BROKEN = 40
"""More broken promises than this are not listed."""


class Report:
    """What was seen, and whether that was enough and as promised."""

    def __init__(self, title: str) -> None:
        self._title = title
        self._started = elapsed()
        self._lines: list[tuple[str, str, str]] = []
        self._unclear: list[str] = []
        self._broken: Counter[str] = Counter()

    def tell(self, what: str, value: object, note: str = "") -> None:
        """A figure, for the reader."""
        self._lines.append((what, f"{value:.2f}" if isinstance(value, float) else str(value), note))

    def at_least(self, what: str, value: float, minimum: float) -> None:
        """A figure that shows nothing below its minimum."""
        self.tell(what, value, f"at least {minimum}")
        if value < minimum:
            self._unclear.append(f"{what}: {value}, and less than {minimum} shows nothing")

    def within(self, what: str, value: float, limit: float) -> None:
        """A time, or a figure that follows from times: a machine that is too busy cannot show it."""
        self.tell(what, value, f"within {limit:g}")
        if value > limit:
            self._unclear.append(f"{what}: {value}, and more than {limit:g} is too slow")

    def at_most(self, what: str, value: float, limit: float) -> None:
        """A figure with a promise about it."""
        self.tell(what, value, f"at most {limit:g}")
        if value > limit:
            self.broken(f"{what}: {value}, and at most {limit:g} is promised")

    def every(self, what: str, value: float, total: float) -> None:
        """A figure that is promised to be as large as this."""
        self.tell(what, value, f"of {total:g}")
        if value < total:
            self.broken(f"{what}: {value} of {total:g}")

    def broken(self, promise: str) -> None:
        """Something happened that must not."""
        self._broken[promise] += 1

    def demand(self, promise: str, *, kept: bool) -> None:
        """The promise, unless it was kept."""
        if not kept:
            self.broken(promise)

    def close(self) -> int:
        """Print everything; the exit code: 0 if it was shown, 1 if a promise was broken, 3 if nothing was shown."""
        lines = [f"  {what:<56}{value:>8}{'   ' + note if note else ''}" for what, value, note in self._lines]
        lines += [f"  NOT SHOWN  {unclear}" for unclear in self._unclear]
        broken = list(self._broken.items())[:MOST_BROKEN]
        lines += [f"  BROKEN     {promise}" + (f"  ({times} times)" if times > 1 else "") for promise, times in broken]
        code, verdict = (1, "FAILED") if broken else (INCONCLUSIVE, "INCONCLUSIVE") if self._unclear else (0, "proved")
        sys.stdout.write("\n".join([self._title, *lines, f"{verdict} after {elapsed() - self._started:.0f} s"]) + "\n")
        return code


class Journal:
    """A worker's own account, one JSON line at a time; a line that was written survives the worker."""

    def __init__(self, path: str | Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def note(self, what: str, **facts: Any) -> None:
        line = {"what": what, "pid": os.getpid(), "at": elapsed(), "wall": time.time(), **facts}
        os.write(self._fd, json.dumps(line).encode() + b"\n")


def entries(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a journal; the last one may have been cut off by a death."""
    if not path.exists():
        return []
    *lines, _rest = path.read_bytes().split(b"\n")
    return [json.loads(line) for line in lines]


class Worker:
    """One process of ours."""

    def __init__(self, script: str, job: dict[str, Any], folder: Path, name: str, env: dict[str, str] | None) -> None:
        self.name = name
        self.journal = folder / f"{name}.journal"
        self.errors = folder / f"{name}.errors"
        self.resume_at: float | None = None
        self.stopped_itself = False
        self.killed_at: float | None = None
        job = {**job, "name": name, "journal": str(self.journal), "folder": str(folder), "boss": os.getpid()}
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
        """kill -9, whatever state it is in."""
        if self.running:
            self.killed_at = elapsed()
            self.process.kill()
            self.process.wait()

    def pause(self, seconds: float) -> None:
        """SIGSTOP; `Crew.look_after` lets it go on when the time is over.

        On a busy machine its threads may go on for a while after the signal was sent: that is waited for.
        """
        self.process.send_signal(signal.SIGSTOP)
        with suppress(ChildProcessError):
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        self.resume_at = elapsed() + seconds

    def resume(self) -> None:
        self.resume_at, self.stopped_itself = None, False
        self.process.send_signal(signal.SIGCONT)

    def stopped(self) -> bool:
        """Whether it has stopped since the last look, by its own hand or by another's."""
        if not self.running:
            return False
        with suppress(ChildProcessError):
            return os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG) is not None
        return False

    def say(self, line: str) -> None:
        """Tell the worker something on its standard input."""
        assert self.process.stdin is not None
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def complaint(self) -> str:
        """How it ended, if that was not as it should."""
        code = self.process.poll()
        if code in (None, 0, -signal.SIGKILL):
            return ""
        tail = self.errors.read_text(errors="replace").strip().splitlines()[-12:]
        return f"{self.name} ended with {code}: " + " | ".join(tail)


class Crew:
    """All the workers of a proof. Leaving it ends every one of them."""

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
        """Those who run and are not paused."""
        return [worker for worker in self.running() if worker.resume_at is None]

    def look_after(self, pause: Callable[[], float], ready: Callable[[Worker], bool] = lambda _worker: True) -> int:
        """Let go on who has been paused for long enough; returns how many have stopped by themselves.

        Who has stopped by itself goes on when it is `ready` as well.
        """
        found = 0
        for worker in self.running():
            if worker.resume_at is None and worker.stopped():
                worker.resume_at, worker.stopped_itself = elapsed() + pause(), True
                found += 1
            elif worker.resume_at is not None and elapsed() >= worker.resume_at:
                worker.stopped()  # takes the notice of our own SIGSTOP
                if not worker.stopped_itself or ready(worker):
                    worker.resume()
        return found

    def notes(self, *whats: str) -> list[dict[str, Any]]:
        """What all of them have written, in order of time."""
        return sorted((note for worker in self.workers for note in worker.notes(*whats)), key=lambda note: note["at"])

    def complaints(self) -> Iterable[str]:
        return filter(None, (worker.complaint() for worker in self.workers))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.workers:
            worker.kill()
            if worker.process.stdin is not None:
                with suppress(OSError):
                    worker.process.stdin.close()


def claim(folder: str | Path, name: str) -> bool:
    """True for the first process that asks under this name, and never again."""
    try:
        os.close(os.open(Path(folder, name), os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def die_with(boss: int) -> None:
    """Let the kernel end this worker when the proof ends, however that ends."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    if os.getppid() != boss:
        os._exit(1)


def until(condition: Callable[[], Any], *, within: float, every: float = 0.01) -> bool:
    """Whether the condition became true in time."""
    give_up = elapsed() + within
    while not condition():
        if elapsed() >= give_up:
            return False
        time.sleep(every)
    return True


def _give_up() -> None:
    sys.stdout.write("FAILED: it hangs; where, is told on standard error\n")
    sys.stdout.flush()
    faulthandler.dump_traceback(all_threads=True)
    os._exit(1)  # the workers go with us


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
    """Run the proof, or one of its workers, as the command line says. A parser may bring options of its own.

    At full size it is given up after `longest` seconds.
    """
    parser = parser or argparse.ArgumentParser()
    parser.add_argument("--full", action="store_true", help="at full size")
    parser.add_argument("--seed", type=int, help="what chance decides; printed, so that it can be given again")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work is not None and work is not None:
        job = json.loads(options.work)
        die_with(job["boss"])
        work(job)
        return
    logging.getLogger("holdfast").setLevel(logging.CRITICAL)  # what is lost on purpose need not be told
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    seed = options.seed if options.seed is not None else int.from_bytes(os.urandom(3))
    size = full if options.full else small
    watchdog = threading.Timer(longest if options.full else LONGEST_SMALL, _give_up)
    watchdog.daemon = True
    watchdog.start()
    report = Report(f"{Path(script).stem}, {'full' if options.full else 'small'} size, seed {seed}: {size}")
    with tempfile.TemporaryDirectory(prefix="holdfast-proof-") as folder:
        prove(size, seed, Path(folder), report)
    sys.exit(report.close())
