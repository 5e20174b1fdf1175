"""Remote-controlled processes: on command they request a lock, release it, or take turns at it on their own.

Each process notes when it requested the lock, what it sent to the store and when the outcome arrived, when it got the
lock and when it released it. From these notes a campaign sees which process was woken, by whom, and in which order.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from faults import FaultyConnection, FaultyStore, Plan

import holdfast.runtime.base
from holdfast import Client, HoldfastError
from holdfast.commands import Acquire, Command
from holdfast.stores import open_store
from support.common import Crew, Journal, Worker, until

STARTING = 40.0
"""Seconds that processes may need to start on a busy machine."""
MOMENT = 0.003
"""Seconds for which the lock is held in a turn."""


# -- a process -----------------------------------------------------------------------------------------


class Witness(FaultyConnection):
    """A connection that notes when each `Acquire` was sent, and its outcome."""

    def __init__(self, connection: Any, plan: Plan, journal: Journal) -> None:
        super().__init__(connection, plan)
        self._journal = journal

    def execute(self, commands: Sequence[Command]) -> list[Any]:
        attempts = [command.id for command in commands if isinstance(command, Acquire)]
        for attempt in attempts:
            self._journal.note("sent", attempt=attempt)
        outcomes = self._connection.execute(commands)
        for command, outcome in zip(commands, outcomes, strict=True):
            if isinstance(command, Acquire):
                position = getattr(outcome, "position", None)
                self._journal.note("answered", attempt=command.id, outcome=type(outcome).__name__, position=position)
        return outcomes


class WitnessedStore(FaultyStore):
    def __init__(self, store: Any, plan: Plan, journal: Journal) -> None:
        super().__init__(store, plan)
        self._journal = journal

    def connect(self, role: Any) -> Witness:
        return Witness(self._store.connect(role), self._plan, self._journal)


class ControlledProcess:
    """The code of a remote-controlled process."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.journal, plan = Journal(job["journal"]), Plan()
        holdfast.runtime.base.open_store = lambda url, **options: WitnessedStore(
            open_store(url, **options), plan, self.journal
        )
        self.hf = Client(job["url"], name=job["name"])
        self.ttl = job["ttl"]
        self.lease: Any = None

    def obey(self) -> None:
        self.journal.note("ready")
        with self.hf:
            for line in sys.stdin:
                verb, *arguments = line.split()
                if verb == "ask":
                    threading.Thread(target=self.ask, args=arguments).start()
                elif verb == "release":
                    self.release()
                elif verb == "alternate":
                    self.alternate(arguments[0], int(arguments[1]))

    def ask(self, key: str) -> None:
        self.journal.note("asks", key=key)
        self.lease = self.hf.lock(
            key, ttl=self.ttl, on_lost=lambda _lease: self.journal.note("lost", key=key)
        ).acquire()
        self.lease._renewal.thread = None  # the lease belongs to the process, not to the thread that acquired it
        self.journal.note("acquired", key=key, token=self.lease.token)

    def release(self) -> None:
        self.journal.note("releases", token=self.lease.token, valid=self.lease.valid)
        try:
            self.lease.release()
        except HoldfastError as error:
            self.journal.note("failed", error=repr(error))
        else:
            self.journal.note("released", token=self.lease.token)

    def alternate(self, key: str, turns: int) -> None:
        """Acquire and release the lock so many times, without a pause."""
        for _ in range(turns):
            self.lease = self.hf.lock(key, ttl=self.ttl).acquire()
            self.journal.note("acquired", key=key, token=self.lease.token)
            time.sleep(MOMENT)
            self.release()
        self.journal.note("done")


def work(job: dict[str, Any]) -> None:
    ControlledProcess(job).obey()


# -- the controlling side --------------------------------------------------------------------------------


def start(crew: Crew, count: int, *, url: str, ttl: float, env: dict[str, str] | None = None) -> list[Worker]:
    return [crew.start({"url": url, "ttl": ttl}, env=env) for _ in range(count)]


def ready(controlled_processes: list[Worker]) -> bool:
    return until(lambda: all(process.notes("ready") for process in controlled_processes), within=STARTING, every=0.05)


def ask(process: Worker, hf: Client, key: str, *, behind: int) -> bool:
    """Let a process request the lock, and wait until it has its position behind so many others."""
    process.send_line(f"ask {key}")

    def in_place() -> bool:
        info = hf.locks.inspect(key)
        present = [holder.pid for holder in info.holders] + [waiter.pid for waiter in info.waiters]
        return len(present) == behind + 1 and present[-1] == process.pid

    return until(in_place, within=STARTING)


def acquired(process: Worker, times: int, *, within: float) -> bool:
    """Whether the process has acquired a lock so many times."""
    return until(lambda: len(process.notes("acquired")) >= times, within=within)
