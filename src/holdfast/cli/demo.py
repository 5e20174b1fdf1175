"""The demo: what goes wrong at night, done on purpose, with real processes on one SQLite file.

It tells what it does in plain words, checks every statement that it makes, and fails if one was not so.
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
from .demo_worker import KEY

PATIENCE = 30.0
COLOURS = ("cyan", "magenta", "yellow", "green", "blue", "red")


class DemoWorker:
    """A worker process, and what it has told so far."""

    def __init__(self, demo: Demo, name: str, job: str, *, stall: bool = False) -> None:
        self.name = name
        self._demo = demo
        self._seen: SimpleQueue[dict[str, Any]] = SimpleQueue()
        source = str(Path(__file__).resolve().parents[2])
        self._process = subprocess.Popen(  # noqa: S603  (our own module, our own arguments)
            [
                *(sys.executable, "-m", "holdfast.cli.demo_worker"),
                *(demo.url, str(demo.ledger), name, job, str(demo.ttl), "stall" if stall else "go"),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join([source, os.environ.get("PYTHONPATH", "")])},
        )
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None  # noqa: S101  (it is a pipe)
        for line in self._process.stdout:
            event = json.loads(line)
            with suppress(OSError):  # whoever leads the demo meets it too, and ends
                self._demo.show(self.name, event)
            self._seen.put(event)

    def until(self, name: str) -> dict[str, Any]:
        """Wait until the worker tells this."""
        until = time.monotonic() + PATIENCE
        while True:
            try:
                event = self._seen.get(timeout=max(0.0, until - time.monotonic()))
            except Empty:
                raise DemoFailed(f"{self.name} should have told {name!r} within {PATIENCE:g} s") from None
            if event["event"] == name:
                return event

    def send(self, what: signal.Signals) -> None:
        """Send a signal to this very process."""
        self._process.send_signal(what)

    def go_on(self) -> None:
        """Let a worker that stalls do the rest of its work."""
        assert self._process.stdin is not None  # noqa: S101  (it is a pipe)
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def end(self) -> None:
        """Wait for the process; end it if it does not end by itself."""
        try:
            self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(PATIENCE)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()

    def kill(self) -> None:
        """End the process at once, if it still runs."""
        if self._process.poll() is None:
            self._process.kill()


class DemoFailed(Exception):
    """Something that the demo says was not so."""


class Demo:
    """The scenes, one after the other."""

    def __init__(self, console: Console, ttl: float) -> None:
        self.ttl = ttl
        self.url = ""
        self.ledger = Path()
        self._console = console
        self._print = threading.Lock()
        self._workers: list[DemoWorker] = []
        self._jobs: list[str] = []

    def run(self) -> bool:
        """Play every scene. True if all of it was as told."""
        started = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="holdfast-demo-") as folder:
            self.url = f"sqlite:///{folder}/holdfast.db"
            self.ledger = Path(folder) / "ledger.json"
            self.ledger.write_text("[]")
            try:
                with Client(self.url, name="demo") as hf:
                    scenes: list[Callable[[Client], None]] = [self._turns, self._killed, self._paused, self._count]
                    for scene in scenes:
                        scene(hf)
            except DemoFailed as error:
                self._say(f"[bold red]This was not as promised:[/] {escape(str(error))}")
                return False
            finally:
                for worker in self._workers:
                    worker.kill()
                    worker.end()
        self._say(f"\n[bold green]All of that was so.[/] It took {time.monotonic() - started:.0f} s.")
        self._say(
            "\nWhat to try next:\n"
            "  from holdfast import Client\n"
            '  with Client() as hf, hf.lock("invoice:42", ttl=30, wait=10) as lease: ...\n'
            "README.md has it with the fence; docs/guarantees.md says what each promise assumes."
        )
        return True

    def show(self, name: str, event: dict[str, Any]) -> None:
        """Say in plain words what a worker told."""
        words = {
            "asks": "asks for the lock",
            "got": "has the lock, token {token}",
            "stalls": "has read the ledger and is about to write ...",
            "wrote": "wrote {job}",
            "found": "found {job} done already and leaves it",
            "refused": "[bold]was refused[/]: its token {offered} is older than {highest}; nothing was written",
            "lost": "is told that its lease is lost: {reason}",
            "released": "gave the lock back",
        }
        places = [worker.name for worker in self._workers]
        colour = COLOURS[(places.index(name) if name in places else len(places)) % len(COLOURS)]
        fields = {key: escape(str(value)) for key, value in event.items()}
        self._say(f"   [{colour}]{name:<8}[/] {words[event['event']].format(**fields)}")

    def _say(self, text: str) -> None:
        with self._print:
            self._console.print(text, soft_wrap=True)

    def _start(self, name: str, job: str, *, stall: bool = False) -> DemoWorker:
        worker = DemoWorker(self, name, job, stall=stall)
        self._workers.append(worker)
        if job not in self._jobs:
            self._jobs.append(job)
        return worker

    def _wait_until_queued(self, hf: Client, count: int) -> None:
        self._wait_for(f"a queue of {count}", lambda: len(hf.locks.inspect(KEY).waiters) == count)

    def _wait_for(self, what: str, condition: Callable[[], bool]) -> None:
        started = time.monotonic()
        while not condition():
            if time.monotonic() - started > PATIENCE:
                raise DemoFailed(f"{what} did not happen within {PATIENCE:g} s")
            time.sleep(0.01)

    def _turns(self, hf: Client) -> None:
        self._say("[bold]1. Taking turns.[/] Four workers ask for one lock, one after the other, while it is held.")
        lease: Lease = hf.lock(KEY, ttl=30, owner="demo").acquire()
        names = ["ann", "bob", "cleo", "dan"]
        for place, name in enumerate(names):
            self._start(name, f"job-{place + 1}").until("asks")
            self._wait_until_queued(hf, place + 1)
        self._say("   the lock is given back: they get it in the order in which they came")
        lease.release()
        for worker in self._workers:
            worker.until("released")
        order = [entry["worker"] for entry in self._entries()]
        if order != names:
            raise DemoFailed(f"they came as {names} and wrote as {order}")

    def _killed(self, hf: Client) -> None:
        self._say("\n[bold]2. kill -9.[/] A worker dies with the lock in its hand; another waits for the same job.")
        dies = self._start("eve", "job-5", stall=True)
        dies.until("stalls")
        waits = self._start("finn", "job-5")
        waits.until("asks")
        self._wait_until_queued(hf, 1)
        dies.send(signal.SIGKILL)
        self._say("   [bold]eve is killed.[/] Nobody can give her lock back; her lease runs out")
        started = time.monotonic()
        waits.until("got")
        self._say(f"   finn has it {time.monotonic() - started:.1f} s after her death (the lease was {self.ttl:g} s)")
        waits.until("released")

    def _paused(self, hf: Client) -> None:
        self._say("\n[bold]3. A pause.[/] A worker is stopped between reading and writing, for longer than its lease.")
        sleeps = self._start("gus", "job-6", stall=True)
        sleeps.until("stalls")
        sleeps.send(signal.SIGSTOP)
        self._say("   [bold]gus is stopped[/] (SIGSTOP); he cannot renew and does not know it")
        takes_over = self._start("hana", "job-6")
        takes_over.until("released")
        self._wait_for("the end of gus's lease", lambda: not hf.locks.inspect(KEY).held)
        self._say("   [bold]gus goes on[/] (SIGCONT) and writes what he had in mind, without asking anyone")
        sleeps.go_on()
        sleeps.send(signal.SIGCONT)
        sleeps.until("refused")

    def _count(self, _hf: Client) -> None:
        self._say("\n[bold]4. The count.[/]")
        entries = self._entries()
        for entry in entries:
            self._say(f"   {entry['job']}  by {entry['worker']:<5} token {entry['token']}")
        done = [entry["job"] for entry in entries]
        if done != self._jobs:
            raise DemoFailed(f"every job should be there exactly once: {done}")
        tokens = [entry["token"] for entry in entries]
        if tokens != sorted(set(tokens)):
            raise DemoFailed(f"tokens should only rise: {tokens}")
        self._say(f"   {len(done)} jobs, {len(self._workers)} workers, one killed, one paused: each job exactly once")

    def _entries(self) -> list[dict[str, Any]]:
        entries: list[dict[str, Any]] = json.loads(self.ledger.read_bytes())
        return entries
