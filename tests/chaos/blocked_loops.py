"""Blocked event loops, and callers that go away at the very moment of their grant.

An event loop that is blocked for three times the ttl keeps its lease; one that is blocked for longer than `max_stall`
loses it, loudly. Then a storm: processes take turns at a few locks, from threads and from tasks, with waits of
a few milliseconds, and tasks are cancelled at about the moment in which the lock is handed to them. Every
connection writes down what the store answered, so at the end each single grant can be followed: it reached its
caller, or it was given back. The leases of the storm last for a minute: what was left over would not run out unseen.
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
"""How many there are at most."""
KEYS = (("mutex", 0), ("one-permit", 1), ("two-permits", 2))
"""A mutex, of which one caller at a time goes to the store, and semaphores, of which a few wait there."""


@dataclass(frozen=True)
class Size:
    stalls: int
    """Event loops that are blocked for three times the ttl, and as many that are for longer than max_stall."""
    processes: int
    attempts: int
    limit: float
    """Seconds after which the storm must be over."""


SMALL = Size(stalls=2, processes=2, attempts=400, limit=60)
FULL = Size(stalls=10, processes=3, attempts=6_000, limit=300)


# -- blocked loops ----------------------------------------------------------------------------------


def block(seconds: float, *, busy: bool) -> None:
    """Keep this event loop from turning, asleep or at work."""
    until_ = time.monotonic() + seconds
    while time.monotonic() < until_:
        if not busy:
            time.sleep(max(0.0, until_ - time.monotonic()))


async def short_stall(url: str, key: str, *, busy: bool) -> str:
    """What went wrong, if anything did, when the loop was blocked for three times the ttl."""
    async with AsyncClient(url) as hf:
        events: list[str] = []
        hf.events.subscribe(lambda event: events.append(event.name))
        try:
            async with hf.lock(key, ttl=TTL, max_stall=20 * TTL) as lease:
                block(3 * TTL, busy=busy)
                lease.check()
        except LeaseLost as error:
            return f"a loop that was blocked for three times the ttl lost its lease: {error}"
        return "told of a loss that was none" if "lease_lost" in events else ""


async def long_stall(url: str, key: str) -> str:
    """What went wrong, if anything did, when the loop was blocked for longer than max_stall."""
    async with AsyncClient(url) as hf:
        events: list[tuple[str, str]] = []
        told: list[object] = []
        hf.events.subscribe(lambda event: events.append((event.name, event.fields.get("reason", ""))))
        left = ""
        try:
            async with hf.lock(key, ttl=TTL, max_stall=2 * TTL, on_lost=told.append):
                block(6 * TTL, busy=False)
                await asyncio.sleep(60)
                left = "went on"
        except LeaseLost:
            left = "LeaseLost"
        if left != "LeaseLost":
            return f"a loop that was stuck for longer than max_stall kept its lease: {left}"
        names = [name for name, _ in events]
        if "lease_neglected" not in names or "lease_lost" not in names or not told:
            return f"the loss was not told: {events}, on_lost {told}"
        reason = dict(events)["lease_lost"]
        return "" if "stuck" in reason else f"the loss was not explained: {reason}"


def stall(url: str, stalls: int, report: Report) -> None:
    """A few of them at once, each loop in a thread and with a client of its own.

    Not all: one of the loops computes, and beside it every step of every other client waits for the interpreter.
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
    report.every("loops blocked beyond max_stall that lost it loudly", kinds[True], stalls)


# -- the storm: a worker ------------------------------------------------------------------------------


class Witness(FaultyConnection):
    """A connection that writes down every grant, every offer and every end of one."""

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
        """Wait for about as long as the others hold."""
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
        """Hold it, let a rival queue up, release it and cancel the rival within the same few turns of the loop."""
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


# -- the storm: what came of it -----------------------------------------------------------------------


def follow(crew: Crew, report: Report) -> Counter[str]:
    """What became of each attempt that was ever granted or offered anything."""
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
            classes["reached the caller, who gave it back"] += 1
            report.demand(f"a lease of a caller was not given back: {seen}", kept="released" in seen)
            report.demand(f"a lease was taken from under its caller: {seen}", kept="abandoned as holder" not in seen)
        elif granted:
            confirmed = "confirmed" if "granted" in seen else "offered only"
            classes[f"given back for a caller that had gone ({confirmed})"] += 1
            report.demand(f"a grant that nobody has was not given back: {seen}", kept=bool(back))
    for attempt in got - set(fates):
        report.broken(f"a caller got a lease that no store granted: {attempt}")
    return classes


def storm(size: Size, chance: random.Random, folder: Path, report: Report) -> tuple[Counter[str], Counter[str]]:
    """One storm: what was said in it, and what became of its grants."""
    folder.mkdir()
    url = f"sqlite:///{folder}/locks.db"
    with Crew(__file__, folder) as crew, Client(url) as hf:
        for _ in range(size.processes):
            crew.start({"url": url, "seed": chance.random(), "attempts": size.attempts // size.processes})
        over = until(lambda: not crew.running(), within=size.limit, every=0.05)
        report.demand(f"the storm was not over within {size.limit} s", kept=over)
        clean = until(lambda: not hf.locks.list(), within=5)  # sooner than any waiting lease ends
        report.demand(f"left over: {hf.locks.list()}", kept=clean)
        for complaint in crew.complaints():
            report.broken(complaint)
        classes = follow(crew, report)
        words = Counter(note["what"] for note in crew.notes("got", "timed out", "cancelled", "done"))
    return words, classes


def storms(size: Size, chance: random.Random, folder: Path, report: Report) -> None:
    """Storms until enough grants met a caller on its way out: that is a matter of milliseconds, and of chance."""
    words: Counter[str] = Counter()
    classes: Counter[str] = Counter()
    wanted, given_back = size.attempts // 100, 0
    for number in range(1, STORMS + 1):
        said, became = storm(size, chance, folder / f"storm-{number}", report)
        words += said
        classes += became
        given_back = sum(times for what, times in classes.items() if what.startswith("given back"))
        if given_back >= wanted:
            break
    report.tell("storms", number)
    report.every("processes that came to their end", words["done"], size.processes * number)
    report.at_least("attempts", words.total() - words["done"], number * size.attempts * 9 // 10)
    report.at_least("attempts that got a lease", words["got"], size.attempts // 10)
    report.at_least("attempts that timed out", words["timed out"], size.attempts // 20)
    report.at_least("attempts that were cancelled", words["cancelled"], size.attempts // 20)
    for what, times in sorted(classes.items()):
        report.tell(f"grants: {what}", times)
    report.at_least("grants that met a caller on its way out", given_back, wanted)


def prove(size: Size, seed: int, folder: Path, report: Report) -> None:
    stall(f"sqlite:///{folder}/stalls.db", size.stalls, report)
    storms(size, random.Random(seed), folder, report)


if __name__ == "__main__":
    main(sys.argv[0], prove, small=SMALL, full=FULL, work=work)
