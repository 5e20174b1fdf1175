"""Fault injection on real stores, without mocks: lost replies, stalled connections, clocks that are set.

`planned` puts a plan of faults between the clients of this process and their store. `SkewedClock` gives other
processes, clients or servers, a wall clock that the test sets. `Proxy` simulates the faults of a network; it is defined
in `holdfast.testing.proxy` and can be imported from here too. Servers are killed and paused by their own methods
(`holdfast.testing.servers`).
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Self

from ..commands import Command
from ..errors import HoldfastError, StoreUnavailable
from ..rules.lock_outcomes import Outcome
from ..runtime import base
from ..stores import open_store
from ..stores.contract import Connection, Role, Store
from .proxy import Proxy

__all__ = ["ClockMissing", "FaultyConnection", "FaultyStore", "Plan", "Proxy", "SkewedClock", "clients_open", "planned"]


class Plan:
    """The faults to inject next, and a record of all commands that were executed."""

    def __init__(self) -> None:
        self.lose_reply_of: type[Command] | None = None
        self.lost: list[str] = []
        self.refuse: type[Command] | None = None
        self.sent: list[Command] = []
        self.batches: list[int] = []
        self.before: Callable[[Sequence[Command]], None] = lambda _commands: None
        self.after: Callable[[Sequence[Command]], None] = lambda _commands: None
        self.open_connections = 0

    def count(self, kind: type[Command]) -> int:
        """How many commands of a kind have been executed."""
        return sum(isinstance(command, kind) for command in self.sent)


class FaultyConnection:
    """A real connection, with the faults of a plan."""

    def __init__(self, connection: Connection, plan: Plan) -> None:
        self._connection = connection
        self._plan = plan
        self._closed = False
        plan.open_connections += 1

    def execute(self, commands: Sequence[Command]) -> list[Outcome]:
        """Execute the commands, unless the plan refuses them; return the outcomes, unless the plan loses the reply."""
        plan = self._plan
        plan.before(commands)
        if plan.refuse is not None and any(isinstance(command, plan.refuse) for command in commands):
            raise StoreUnavailable("refused by the test's plan: nothing was executed")
        outcomes = self._connection.execute(commands)
        plan.sent.extend(commands)
        plan.batches.append(len(commands))
        plan.after(commands)
        lost = plan.lose_reply_of
        if lost is not None and any(isinstance(command, lost) for command in commands):
            plan.lose_reply_of = None
            plan.lost.append(lost.__name__)
            raise StoreUnavailable("the test's plan lost the reply: the commands were executed", ambiguous=True)
        return outcomes

    def close(self) -> None:
        """Close the real connection."""
        if not self._closed:
            self._closed = True
            self._plan.open_connections -= 1
        self._connection.close()


class FaultyStore:
    """A real store, with the faults of a plan."""

    def __init__(self, store: Any, plan: Plan) -> None:
        self._store = store
        self._plan = plan

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def connect(self, role: Role) -> Connection:
        """A connection with the faults of the plan."""
        return FaultyConnection(self._store.connect(role), self._plan)

    def reopen(self) -> Store:
        """The same store for the child of a fork, with the same plan."""
        return FaultyStore(self._store.reopen(), self._plan)


_patching = threading.Lock()


@contextmanager
def clients_open(opening: Callable[..., Store], *, any_address: bool = False) -> Iterator[None]:
    """Clients that are created in the block open their store with this function.

    `any_address`: the address need not be one that is registered.
    """
    names: dict[str, Any] = {"open_store": opening}
    if any_address:
        names["opener_of"] = lambda _: opening
    before = {name: vars(base)[name] for name in names}
    vars(base).update(names)
    try:
        yield
    finally:
        vars(base).update(before)


@contextmanager
def planned(opening: Callable[..., Store] = open_store) -> Iterator[Plan]:
    """Inject faults into the clients that are created in the block. Yields the plan."""
    plan = Plan()

    def through_the_plan(url: str, **options: Any) -> Store:
        return FaultyStore(opening(url, **options), plan)

    with _patching, clients_open(through_the_plan):
        yield plan
    if plan.open_connections:
        raise AssertionError(f"{plan.open_connections} connections to the store were not closed")


class ClockMissing(HoldfastError):
    """The library that moves the clock of other processes is not installed."""


class SkewedClock:
    """The wall clock of other processes, which `set` moves for all of them at the same instant.

    It preloads libfaketime, so it works on Linux only. Processes that are started by `start` use it, and are killed at
    the end of the block. Processes that are started with `env` use it too, for example a server:
    `servers.valkey(env=clock.env)`. Clocks that cannot be set (monotonic, boot time) stay real, as on a host whose
    clock is set.
    """

    SETTLING = 0.005
    """Seconds that `set` waits: Valkey caches its clock for up to a millisecond."""
    OBJECTS = Path("/dev/shm")  # noqa: S108  (libfaketime keeps two objects per process there)

    def __init__(self, offset: float = 0.0) -> None:
        library = _faketime()
        if library is None:
            raise ClockMissing(
                "libfaketime is not installed, or was not built for this system, so the clock cannot be moved. Install "
                f"it with\n    {shlex.quote(sys.executable)} -m pip install libfaketime"
            )
        self._processes: list[subprocess.Popen[str]] = []
        self._folder = Path(tempfile.mkdtemp(prefix="holdfast-clock-"))
        self._folder.chmod(0o755)  # a server may run as another user
        self._offset_file = self._folder / "clock"
        preload = shutil.copy(library, self._folder)
        Path(preload).chmod(0o755)
        self.set(offset)
        self.env = {
            "LD_PRELOAD": preload,
            "FAKETIME_TIMESTAMP_FILE": str(self._offset_file),
            "FAKETIME_NO_CACHE": "1",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
            "FAKETIME_FORCE_MONOTONIC_FIX": "0",
            "NO_FAKE_STAT": "1",
        }
        """The environment variables that make a process use this clock."""

    def set(self, offset: float) -> None:
        """Set the clock so many seconds ahead of the true time; a negative offset sets it behind.

        Every process that reads the clock after this call has returned gets the new time.
        """
        fresh = self._offset_file.with_suffix(".new")
        fresh.write_text(f"{offset:+.6f}")
        fresh.chmod(0o644)
        fresh.replace(self._offset_file)
        time.sleep(self.SETTLING)

    def start(
        self, command: Sequence[str], *, stdin: int | IO[str] | None = None, stdout: int | IO[str] | None = None
    ) -> subprocess.Popen[str]:
        """Start a process that uses this clock; it is killed at the end of the block if it is still running."""
        process = subprocess.Popen(  # noqa: S603  (the test's own command)
            command, env={**os.environ, **self.env}, stdin=stdin, stdout=stdout, text=True
        )
        self._processes.append(process)
        return process

    def forget(self, pid: int) -> None:
        """Remove the shared-memory objects that libfaketime could not remove in a killed process."""
        for name in (f"faketime_shm_{pid}", f"sem.faketime_sem_{pid}"):
            (self.OBJECTS / name).unlink(missing_ok=True)

    def close(self) -> None:
        """Kill the processes that were started here. Other processes with this clock read the true time from now on."""
        for process in self._processes:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGKILL)
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
            self.forget(process.pid)
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _faketime() -> Path | None:
    """The path of the library in its package, found without importing the package; None if there is none."""
    spec = importlib.util.find_spec("libfaketime")
    if spec is None or spec.origin is None or not sys.platform.startswith("linux"):
        return None
    found = Path(spec.origin).parent / "vendor/libfaketime/src/libfaketime.so.1"
    return found if found.exists() else None
