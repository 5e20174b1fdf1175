"""Blocked event loops, and callers that time out or are cancelled at the very moment of their grant.

An event loop that is blocked for three times the ttl keeps its lease; a loop that is blocked for longer than
`max_stall` loses it, with an error and an event. Then a storm: processes contend for a few locks, from threads and from
tasks, with timeouts of a few milliseconds, and tasks are cancelled at about the moment at which the lock is handed to
them. Every connection notes all outcomes of the store, so that at the end every single grant is traced: it reached its
caller, or it was released. The leases of the storm last for a minute, so that none can expire unnoticed.
"""

from __future__ import annotations

import asyncio
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.common import Crew, Journal, Report, main, until

import holdfast.runtime.base
from holdfast import AsyncClient, Client, LeaseLost, LockTimeout
from holdfast.commands import Abandon, Acquire, Command, Release
from holdfast.rules import lock_outcomes as out
from holdfast.stores import open_store
from support.faults import FaultyConnection, FaultyStore, Plan

TTL = 1.5
AT_ONCE = 4
LONG = 60.0
"""The ttl in the storm."""
STORMS = 6
"""The maximum number of storms."""
KEYS = (("mutex", 0), ("one-permit", 1), ("two-permits", 2))
"""A mutex, of which one caller per process waits in the store, and semaphores, of which a few do."""


@dataclass(frozen=True)
class Size:
    stalls: int
    """Event loops that are blocked for three times the ttl, and as many for longer than max_stall."""
    processes: int
    attempts: int
    limit: float
    """Seconds within which a storm must end."""


SMALL = Size(stalls=2, processes=2, attempts=400, limit=60)
FULL = Size(stalls=10, processes=3, attempts=6_000, limit=300)


# -- blocked loops ----------------------------------------------------------------------------------


def block(seconds: float, *, busy: bool) -> None:
    """Block this event loop, by sleeping or by computing."""
    until_ = time.monotonic() + seconds
    while time.monotonic() < until_:
        if not busy:
            time.sleep(max(0.0, until_ - time.monotonic()))


async def short_stall(url: str, key: str, *, busy: bool) -> str:
    """Block the loop for three times the ttl. Returns what went wrong, or an empty string."""
    async with AsyncClient(url) as hf:
        events: list[str] = []
        hf.events.subscribe(lambda event: events.append(event.name))
        try:
            async with hf.lock(key, ttl=TTL, max_stall=20 * TTL) as lease:
                block(3 * TTL, busy=busy)
                lease.check()
        except LeaseLost as error:
            return f"a loop that was blocked for three times the ttl lost its lease: {error}"
        return "a loss was reported although the lease was kept" if "lease_lost" in events else ""


async def long_stall(url: str, key: str) -> str:
    """Block the loop for longer than max_stall. Returns what went wrong, or an empty string."""
    async with AsyncClient(url) as hf:
        events: list[tuple[str, str]] = []
        lost_leases: list[object] = []
        hf.events.subscribe(lambda event: events.append((event.name, event.fields.get("reason", ""))))
        left = ""
        try:
            async with hf.lock(key, ttl=TTL, max_stall=2 * TTL, on_lost=lost_leases.append):
                block(6 * TTL, busy=False)
                await asyncio.sleep(60)
                left = "went on"
        except LeaseLost:
            left = "LeaseLost"
        if left != "LeaseLost":
            return f"a loop that was blocked for longer than max_stall kept its lease: {left}"
        names = [name for name, _ in events]
        if "lease_neglected" not in names or "lease_lost" not in names or not lost_leases:
            return f"the loss was not reported: {events}, on_lost {lost_leases}"
        reason = dict(events)["lease_lost"]
        return "" if "blocked" in reason else f"the loss was not explained: {reason}"


def stall(url: str, stalls: int, report: Report) -> None:
    """Block a few loops at once, each in its own thread and with its own client.

    Not all at once: some loops compute, and meanwhile every step of every other client waits for the interpreter.
    """

    def run(number: int, *, long: bool) -> None:
        key = f"{'long' if long else 'short'}-{number}"
        flow = long_stall(url, key) if long else short_stall(url, key, busy=number == 0)
        trouble = asyncio.run(flow)
        report.demand(trouble, kept=not trouble)
        kinds[long] += not trouble

    kinds: Counter[bool] = Counter()
    for first in range(0, stalls, AT_ONCE):
        threads = [
            threading.Thread(target=run, args=(number,), kwargs={"long": long})
            for number in range(first, min(first + AT_ONCE, stalls))
            for long in (False, True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    report.every("loops blocked for 3 x ttl that kept their lease", kinds[False], stalls)
    report.every("loops blocked beyond max_stall that reported the loss", kinds[True], stalls)


# -- the storm: a worker ------------------------------------------------------------------------------


class Witness(FaultyConnection):
    """A connection that notes every grant, every offer and every end of them."""

    def __init__(self, connection: Any, plan: Plan, journal: Journal) -> None:
        super().__init__(connection, plan)
        self._journal = journal

    def execute(self, commands: Sequence[Command]) -> list[Any]:
        outcomes = self._connection.execute(commands)
        seen: list[tuple[str, str]] = []
        for command, outcome in zip(commands, outcomes, strict=True):
            seen += [("offered", id) for id in outcome.woken]
            if isinstance(command, Acquire) and isinstance(outcome, out.Granted):
                seen.append(("granted", command.id))
            elif isinstance(command, Release) and isinstance(outcome, out.Released):
                seen.append(("released", command.id))
            elif isinstance(command, Abandon):
                seen.append((f"abandoned as {outcome.was}", command.id))
        if seen:
            self._journal.note("store", seen=seen)
        return outcomes


class WitnessedStore(FaultyStore):
    def __init__(self, store: Any, plan: Plan, journal: Journal) -> None:
        super().__init__(store, plan)
        self._journal = journal

    def connect(self, role: Any) -> Witness:
        return Witness(self._store.connect(role), self._plan, self._journal)


class Storm:
    """The attempts of one process."""

    def __init__(self, job: dict[str, Any]) -> None:
        self.journal = Journal(job["journal"])
        self.chance = random.Random(job["seed"])
        self.url = job["url"]
        self.left = job["attempts"]
        self._lock = threading.Lock()
        plan = Plan()
        holdfast.runtime.base.open_store = lambda url, **options: WitnessedStore(
            open_store(url, **options), plan, self.journal
        )

    def more(self) -> bool:
        with self._lock:
            self.left -= 1
            return self.left >= 0

    def lock(self, hf: Any) -> Any:
        key, permits = self.chance.choice(KEYS)
        return hf.semaphore(key, permits=permits, ttl=LONG) if permits else hf.lock(key, ttl=LONG)

    def got(self, lease: Any) -> None:
        self.journal.note("got", id=lease._held.id)

    def in_thread(self, hf: Client) -> None:
        """Wait for about as long as the other callers hold the lock."""
        while self.more():
            try:
                lease = self.lock(hf).acquire(wait=self.chance.uniform(0, 0.03))
            except LockTimeout:
                self.journal.note("timed out")
                continue
            self.got(lease)
            time.sleep(self.chance.uniform(0, 0.01))
            lease.release()

    async def in_task(self, hf: AsyncClient) -> None:
        """Hold the lock, let another task queue, release it, and cancel that task within a few loop iterations."""
        while self.more():
            lock = self.lock(hf)
            try:
                lease = await lock.acquire(wait=self.chance.uniform(0.01, 0.1))
            except LockTimeout:
                self.journal.note("timed out")
                continue
            self.got(lease)
            rival = asyncio.create_task(lock.acquire(wait=5))
            self.more()
            await asyncio.sleep(self.chance.uniform(0, 0.01))
            release = asyncio.create_task(lease.release())
            await asyncio.sleep(self.chance.choice((0, 0.001, 0.002, 0.004, 0.008, 0.05)))
            await self.turn_away(rival)
            await release

    async def turn_away(self, rival: asyncio.Task[Any]) -> None:
        rival.cancel()
        try:
            lease = await rival
        except asyncio.CancelledError:
            self.journal.note("cancelled")
        except LockTimeout:
            self.journal.note("timed out")
        else:
            self.got(lease)
            await lease.release()


def work(job: dict[str, Any]) -> None:
    storm = Storm(job)

    async def tasks() -> None:
        async with AsyncClient(storm.url) as hf, asyncio.TaskGroup() as group:
            for _ in range(5):
                group.create_task(storm.in_task(hf))

    with Client(storm.url) as hf:
        threads = [threading.Thread(target=storm.in_thread, args=(hf,)) for _ in range(3)]
        threads.append(threading.Thread(target=lambda: asyncio.run(tasks())))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    storm.journal.note("done")


# -- the storm: checks --------------------------------------------------------------------------------


def follow(crew: Crew, report: Report) -> Counter[str]:
    """What happened to each attempt that was granted or offered a lock."""
    fates: dict[str, set[str]] = {}
    for note in crew.notes("store"):
        for what, attempt in note["seen"]:
            fates.setdefault(attempt, set()).add(what)
    got = {note["id"] for note in crew.notes("got")}
    classes: Counter[str] = Counter()
    for attempt, seen in fates.items():
        granted = seen & {"offered", "granted"}
        back = seen & {"released", "abandoned as holder"}
        if attempt in got:
            classes["reached the caller, which released it"] += 1
            report.demand(f"a lease of a caller was not released: {seen}", kept="released" in seen)
            report.demand(f"a lease was taken from its caller: {seen}", kept="abandoned as holder" not in seen)
        elif granted:
            confirmed = "confirmed" if "granted" in seen else "offered only"
            classes[f"given back for a caller that had left ({confirmed})"] += 1
            report.demand(f"a grant that reached no caller was not released: {seen}", kept=bool(back))
    for attempt in got - set(fates):
        report.broken(f"a caller got a lease that the store did not grant: {attempt}")
    return classes


def storm(size: Size, chance: random.Random, folder: Path, report: Report) -> tuple[Counter[str], Counter[str]]:
    """Run one storm. Returns the notes of its callers, and what happened to its grants."""
    folder.mkdir()
    url = f"sqlite:///{folder}/locks.db"
    with Crew(__file__, folder) as crew, Client(url) as hf:
        for _ in range(size.processes):
            crew.start({"url": url, "seed": chance.random(), "attempts": size.attempts // size.processes})
        over = until(lambda: not crew.running(), within=size.limit, every=0.05)
        report.demand(f"the storm did not end within {size.limit} s", kept=over)
        clean = until(lambda: not hf.locks.list(), within=5)  # sooner than any waiting lease expires
        report.demand(f"left over: {hf.locks.list()}", kept=clean)
        for failure in crew.failures():
            report.broken(failure)
        classes = follow(crew, report)
        words = Counter(note["what"] for note in crew.notes("got", "timed out", "cancelled", "done"))
    return words, classes


def storms(size: Size, chance: random.Random, folder: Path, report: Report) -> None:
    """Run storms until enough grants met a caller that was leaving: this depends on milliseconds, and on chance."""
    words: Counter[str] = Counter()
    classes: Counter[str] = Counter()
    wanted, given_back = size.attempts // 100, 0
    for number in range(1, STORMS + 1):
        notes, became = storm(size, chance, folder / f"storm-{number}", report)
        words += notes
        classes += became
        given_back = sum(times for what, times in classes.items() if what.startswith("given back"))
        if given_back >= wanted:
            break
    report.figure("storms", number)
    report.every("processes that ended regularly", words["done"], size.processes * number)
    report.at_least("attempts", words.total() - words["done"], number * size.attempts * 9 // 10)
    report.at_least("attempts that got a lease", words["got"], size.attempts // 10)
    report.at_least("attempts that timed out", words["timed out"], size.attempts // 20)
    report.at_least("attempts that were cancelled", words["cancelled"], size.attempts // 20)
    for what, times in sorted(classes.items()):
        report.figure(f"grants: {what}", times)
    report.at_least("grants that met a caller that was leaving", given_back, wanted)


def prove(size: Size, seed: int, folder: Path, report: Report) -> None:
    stall(f"sqlite:///{folder}/stalls.db", size.stalls, report)
    storms(size, random.Random(seed), folder, report)


if __name__ == "__main__":
    main(sys.argv[0], prove, small=SMALL, full=FULL, work=work)
