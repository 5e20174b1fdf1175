"""The demo: crashes and pauses, made on purpose, with real processes on one SQLite file.

It prints what it does, checks every statement that it prints, and fails if one of them is not true.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from rich.console import Console
from rich.markup import escape

from .. import Client, Lease
from .demo_engine import STALLED, STEPS
from .demo_worker import KEY
from .output import format_token

TIMEOUT = 30.0
COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red")
MESSAGES = {
    "requests": "requests the lock",
    "acquired": "has the lock, token {token}",
    "stalls": "has read the ledger and is about to write ...",
    "wrote": "wrote {job}",
    "found": "found that {job} is done already, and leaves it",
    "refused": "[bold]was refused[/]: its token {offered} is older than {highest}; nothing was written",
    "lost": "finds its lease lost: {reason}",
    "released": "released the lock",
    "started": "is ready to drive the run {run}",
    "begins": "begins the step {step}",
    "completes": "completes the step {step}",
    "completed": "has driven the run to its end",
}
TOKENS = ("token", "offered", "highest")


class DemoFailed(Exception):
    """A statement of the demo is not true."""


class DemoWorker:
    """A worker process, and the events that it has printed so far."""

    def __init__(self, demo: Demo, name: str, module: str, *arguments: str) -> None:
        self.name = name
        self._demo = demo
        self._events: SimpleQueue[dict[str, Any]] = SimpleQueue()
        source = str(Path(__file__).resolve().parents[2])
        self._process = subprocess.Popen(  # noqa: S603  (our own module, our own arguments)
            [sys.executable, "-m", f"holdfast.cli.{module}", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])},
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None  # noqa: S101  (it is a pipe)
        for line in self._process.stdout:
            event = json.loads(line)
            with suppress(OSError):  # the demo's own thread gets this error too, and ends
                self._demo.show(self.name, event)
            self._events.put(event)

    def wait_for(self, name: str) -> dict[str, Any]:
        """Wait until the worker prints this event."""
        deadline = time.monotonic() + TIMEOUT
        while True:
            try:
                event = self._events.get(timeout=max(0.0, deadline - time.monotonic()))
            except Empty:
                raise DemoFailed(f"{self.name} did not print {name!r} within {TIMEOUT:g} s") from None
            if event["event"] == name:
                return event

    def send(self, what: signal.Signals) -> None:
        """Send a signal to the process."""
        self._process.send_signal(what)

    def go_on(self) -> None:
        """Let a worker that stalls continue."""
        assert self._process.stdin is not None  # noqa: S101  (it is a pipe)
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def end(self) -> None:
        """Wait for the process; kill it if it does not end."""
        try:
            self._process.wait(TIMEOUT)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(TIMEOUT)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def kill(self) -> None:
        """Kill the process if it still runs."""
        if self._process.poll() is None:
            self._process.kill()


class Demo:
    """The scenes, one after the other."""

    def __init__(self, console: Console, ttl: float) -> None:
        self.ttl = ttl
        self._url = ""
        self._ledger = Path()
        self._step_log = Path()
        self._console = console
        self._print_lock = threading.Lock()
        self._workers: list[DemoWorker] = []
        self._jobs: list[str] = []

    def run(self) -> bool:
        """Play every scene. True if every statement was true."""
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as folder:
            self._url = f"sqlite:///{folder}/holdfast.db"
            self._ledger, self._step_log = Path(folder) / "ledger.json", Path(folder) / "steps.jsonl"
            self._ledger.write_text("[]")
            try:
                with Client(self._url, name="demo") as hf:
                    scenes: list[Callable[[Client], None]] = [
                        self._show_queue,
                        self._show_kill,
                        self._show_pause,
                        self._show_ledger,
                        self._show_workflow,
                    ]
                    for scene in scenes:
                        scene(hf)
            except DemoFailed as error:
                self._print(f"[bold red]This is not as promised:[/] {escape(str(error))}")
                return False
            finally:
                for worker in self._workers:
                    worker.kill()
                    worker.end()
        seconds = time.monotonic() - started
        self._print(f"\n[bold green]Every statement above was checked and is true.[/] It took {seconds:.0f} s.")
        self._print(
            "\nWhat to try next:\n"
            "  from holdfast import Client\n"
            '  with Client() as hf, hf.lock("invoice:42", ttl=30, wait=10) as lease: ...\n'
            "README.md has it with the fence, and a workflow; docs/guarantees.md states what each promise depends on."
        )
        return True

    def show(self, name: str, event: dict[str, Any]) -> None:
        """Print an event of a worker."""
        names = [worker.name for worker in self._workers]
        colour = COLOURS[(names.index(name) if name in names else len(names)) % len(COLOURS)]
        fields = {key: format_token(value) if key in TOKENS else escape(str(value)) for key, value in event.items()}
        self._print(f"   [{colour}]{name:<8}[/] {MESSAGES[event['event']].format(**fields)}")

    def _print(self, text: str) -> None:
        with self._print_lock:
            self._console.print(text, soft_wrap=True)

    def _start(self, name: str, job: str, *, stall: bool = False) -> DemoWorker:
        if job not in self._jobs:
            self._jobs.append(job)
        mode = "stall" if stall else "go"
        worker = DemoWorker(self, name, "demo_worker", self._url, str(self._ledger), name, job, str(self.ttl), mode)
        self._workers.append(worker)
        return worker

    def _start_engine(self, name: str, *, stall: bool = False) -> DemoWorker:
        mode = "stall" if stall else "go"
        worker = DemoWorker(self, name, "demo_engine", self._url, str(self._step_log), name, str(self.ttl), mode)
        self._workers.append(worker)
        return worker

    def _wait_until_queued(self, hf: Client, count: int) -> None:
        self._wait_until(f"a queue of {count}", lambda: len(hf.locks.inspect(KEY).waiters) == count)

    def _wait_until(self, what: str, condition: Callable[[], bool]) -> None:
        started = time.monotonic()
        while not condition():
            if time.monotonic() - started > TIMEOUT:
                raise DemoFailed(f"{what} did not happen within {TIMEOUT:g} s")
            time.sleep(0.01)

    def _show_queue(self, hf: Client) -> None:
        self._print("[bold]1. A queue.[/] Four workers request one lock, one after the other, while it is held.")
        lease: Lease = hf.lock(KEY, ttl=30, owner="demo").acquire()
        names = ["ann", "bob", "cleo", "dan"]
        for position, name in enumerate(names):
            self._start(name, f"job-{position + 1}").wait_for("requests")
            self._wait_until_queued(hf, position + 1)
        self._print("   the lock is released: the workers get it in the order in which they requested it")
        lease.release()
        for worker in self._workers:
            worker.wait_for("released")
        order = [entry["worker"] for entry in self._entries()]
        if order != names:
            raise DemoFailed(f"the workers requested the lock as {names} and wrote as {order}")

    def _show_kill(self, hf: Client) -> None:
        self._print("\n[bold]2. kill -9.[/] The worker that holds the lock is killed; another waits for the same job.")
        killed = self._start("eve", "job-5", stall=True)
        killed.wait_for("stalls")
        successor = self._start("finn", "job-5")
        successor.wait_for("requests")
        self._wait_until_queued(hf, 1)
        killed.send(signal.SIGKILL)
        self._print("   [bold]eve is killed[/] and cannot release the lock; its lease expires")
        started = time.monotonic()
        successor.wait_for("acquired")
        waited = time.monotonic() - started
        self._print(f"   finn has the lock {waited:.1f} s after the kill (the lease was {self.ttl:g} s)")
        successor.wait_for("released")

    def _show_pause(self, hf: Client) -> None:
        self._print(
            "\n[bold]3. A pause.[/] A worker is stopped between reading and writing, for longer than its lease."
        )
        paused = self._start("gus", "job-6", stall=True)
        paused.wait_for("stalls")
        paused.send(signal.SIGSTOP)
        self._print("   [bold]gus is stopped[/] (SIGSTOP): it cannot renew its lease, and does not know that")
        successor = self._start("hana", "job-6")
        successor.wait_for("released")
        self._wait_until("the end of gus's lease", lambda: not hf.locks.inspect(KEY).held)
        self._print("   [bold]gus continues[/] (SIGCONT) and writes what it had prepared, without checking its lease")
        paused.go_on()
        paused.send(signal.SIGCONT)
        paused.wait_for("refused")
        paused.wait_for("lost")

    def _show_ledger(self, _hf: Client) -> None:
        self._print("\n[bold]4. The ledger.[/]")
        entries = self._entries()
        for entry in entries:
            self._print(f"   {entry['job']}  by {entry['worker']:<5} token {format_token(entry['token'])}")
        done = [entry["job"] for entry in entries]
        if done != self._jobs:
            raise DemoFailed(f"every job must be in the ledger exactly once: {done}")
        tokens = [entry["token"] for entry in entries]
        if tokens != sorted(set(tokens)):
            raise DemoFailed(f"tokens must increase: {tokens}")
        self._print(f"   {len(done)} jobs, {len(self._workers)} workers, one killed, one paused: each job exactly once")

    def _show_workflow(self, hf: Client) -> None:
        steps = ", ".join(STEPS)
        self._print(f"\n[bold]5. A workflow.[/] A run has the steps {steps}; its worker is killed in the middle.")
        killed = self._start_engine("ivy", stall=True)
        run = killed.wait_for("started")["run"]
        while killed.wait_for("begins")["step"] != STALLED:
            pass
        killed.send(signal.SIGKILL)
        self._print(f"   [bold]ivy is killed[/] in the middle of the step {STALLED}; its lease expires")
        if (found := self._start_engine("jon").wait_for("completed")["run"]) != run:
            raise DemoFailed(f"jon must drive the run of ivy, {run}, and drove {found}")
        if (status := hf.runs.get(run).status) != "completed":
            raise DemoFailed(f"the run must be completed, and is {status}")
        self._check_steps(self._steps())

    def _check_steps(self, notes: list[dict[str, str]]) -> None:
        """Print how often each step was executed, by the file that the steps themselves wrote, and check it."""
        for name in STEPS:
            begun = [note["worker"] for note in notes if note["step"] == name and note["event"] == "begins"]
            completed = [note["worker"] for note in notes if note["step"] == name and note["event"] == "completes"]
            again = "" if len(begun) == 1 else "  <- in progress at the kill, so it was executed again"
            self._print(f"   {name:<8} begun by {' and '.join(begun)}, completed by {' and '.join(completed)}{again}")
            before = STEPS.index(name) < STEPS.index(STALLED)
            expected = (["ivy"], ["ivy"]) if before else (["jon"], ["jon"])
            if name == STALLED:
                expected = (["ivy", "jon"], ["jon"])
            if (begun, completed) != expected:
                raise DemoFailed(f"the step {name} was begun by {begun} and completed by {completed}, not {expected}")
        self._print(
            "   one run, two workers, one killed: each completed step was executed once. Only the step in progress at\n"
            "   the kill may run again: make such an effect idempotent or transactional (docs/exactly-once.md)"
        )

    def _entries(self) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = json.loads(self._ledger.read_bytes())
        return entries

    def _steps(self) -> list[dict[str, str]]:
        return [json.loads(line) for line in self._step_log.read_text().splitlines()]
