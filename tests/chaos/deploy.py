"""Deploys of code that does not fit, with real processes that are killed: nothing fails, and no lock becomes free.

*Bad deploys.* Parked runs hold a lock each. Their code is replaced by a release that has a step more, or whose input
has one more required field, and each run gets a signal. All runs must be blocked, and none may fail. After the
roll-back, in new processes, each run continues and has charged once.

*A rolling deploy.* Runs are started while processes of the old and of the new release drive them side by side. Each
run must complete, whichever release has begun it.

A receiver counts the idempotency keys of the charges. Another process tries to get the locks all the time: it must not
get one between the charge of a run and its shipping.
"""

from __future__ import annotations

import asyncio
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.common import Crew, Journal, Report, Worker, entries, until
from support.workflow_stores import WorkflowStore, main

from holdfast import Client, Context, Engine, LockTimeout, current_step, step, workflow
from holdfast.platform import elapsed

TTL = 1.5
STARTING = 60.0
"""Seconds that processes may need to start on a busy machine."""
LONGEST = 120.0
RECEIVER = "receiver.journal"
"""The file to which every process appends the charges and shipments: what a payment service would have received."""


@dataclass(frozen=True)
class Size:
    runs: int
    """Parked runs of each bad deploy."""
    kills: int
    """Workers killed in each phase of a bad deploy."""
    seconds: float
    """How long the two releases run side by side."""
    pause: float
    """Seconds between two starts, and about half of those between two kills, in the rolling deploy."""
    rest: float
    """Seconds between two tries of the intruder to get a lock."""


SMALL_DEPLOYS = {"postgres": ("step", "field"), "valkey": ("step",), "mariadb": ("step", "rolling")}
"""The deploys on each server at the small size; on SQLite, and at full size, all three."""
SMALL = Size(runs=8, kills=1, seconds=4, pause=0.2, rest=0.03)
FULL = Size(runs=100, kills=2, seconds=60, pause=0.1, rest=0.002)

_receiver: Journal | None = None


# -- the code of the releases ---------------------------------------------------------------------------


@dataclass
class Order:
    number: int


@dataclass
class PricedOrder:
    number: int
    currency: str


@step
async def charge(number: int) -> int:
    note("charged", number)
    return number


@step
async def ship(number: int) -> int:
    note("shipped", number)
    return number


def note(what: str, number: int) -> None:
    assert _receiver is not None
    _receiver.note(what, number=number, key=current_step().idempotency_key)


async def fulfil(ctx: Context, number: int, *, check: bool = False) -> int:
    async with ctx.mutex(account(number), scope="global"):
        if check:
            await ctx.step("check", abs, number)
        await charge(number)
        await ctx.wait_for_signal("packed")
        return await ship(number)


@workflow(name="order")
async def old(ctx: Context, order: Order) -> int:
    return await fulfil(ctx, order.number)


@workflow(name="order")
async def with_a_step_more(ctx: Context, order: Order) -> int:
    return await fulfil(ctx, order.number, check=True)


@workflow(name="order")
async def with_a_required_field_more(ctx: Context, order: PricedOrder) -> int:
    return await fulfil(ctx, order.number)


RELEASES = {"old": old, "step": with_a_step_more, "field": with_a_required_field_more}


def account(number: int) -> str:
    return f"account-{number}"


# -- a process ------------------------------------------------------------------------------------------


def process(task: dict[str, Any]) -> None:
    global _receiver  # noqa: PLW0603  (one process, one receiver)
    _receiver = Journal(task["receiver"])
    if task["role"] == "intruder":
        intrude(task)
    else:
        asyncio.run(drive(task))


async def drive(task: dict[str, Any]) -> None:
    journal = Journal(task["journal"])
    async with Engine(
        task["url"],
        namespace=task["namespace"],
        workflows=[RELEASES[task["role"]]],
        version=task["role"],
        name=task["name"],
        worker_ttl=TTL,
        park_after=0.05,
        grace=5,
    ) as engine:
        engine.events.subscribe(
            lambda event: journal.note("blocked", run=event.fields["run"]) if event.name == "run_blocked" else None
        )
        journal.note("ready")
        await asyncio.to_thread(sys.stdin.readline)


def intrude(task: dict[str, Any]) -> None:
    """Try to get the locks of the runs, one after the other, and note each one that was free."""
    journal, chance, tries = Journal(task["journal"]), random.Random(task["seed"]), 0
    stop = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), stop.set()), daemon=True).start()
    with Client(task["url"], namespace=task["namespace"]) as client:
        journal.note("ready")
        while not stop.is_set():
            number = chance.randrange(task["first"], task["beyond"])
            asked = elapsed()
            tries += 1
            with suppress(LockTimeout), client.lock(account(number), ttl=30, wait=0):
                journal.note("got", number=number, asked=asked)
            time.sleep(task["rest"])
    journal.note("tried", tries=tries)


# -- the campaign ---------------------------------------------------------------------------------------


class Scene:
    """The processes of one deploy, on one store, and what it has found."""

    def __init__(self, name: str, report: Report, place: WorkflowStore, folder: Path, crew: Crew) -> None:
        self.name, self.report, self.crew = f"{place.kind}, {name}", report, crew
        self.receiver = folder / f"{name}.{RECEIVER}"
        self.task = {"url": place.url(folder), "namespace": f"deploy-{name}", "receiver": str(self.receiver)}
        self.client = Client(self.task["url"], namespace=self.task["namespace"])

    def demand(self, otherwise: str, *, kept: bool) -> None:
        self.report.demand(f"{self.name}: {otherwise}", kept=kept)

    def start(self, *roles: str, **more: Any) -> list[Worker]:
        """Start processes, and wait until they are ready."""
        workers = [self.crew.start({**self.task, "role": role, **more}) for role in roles]
        ready = until(lambda: all(worker.notes("ready") for worker in workers), within=STARTING, every=0.05)
        self.demand("a process did not start", kept=ready)
        return workers

    def begin(self, number: int) -> str:
        return self.client.runs.start("order", {"number": number}, id=f"order-{number}")

    def statuses(self, runs: list[str]) -> Counter[str]:
        return Counter(self.client.runs.get(run).status for run in runs)

    def all_are(self, status: str, runs: list[str]) -> None:
        """Wait until all runs have this status."""
        ended = until(lambda: self.statuses(runs)[status] == len(runs), within=LONGEST, every=0.1)
        self.demand(f"not all runs are {status}: {dict(self.statuses(runs))}", kept=ended)

    def tokens(self, runs: list[str]) -> list[int]:
        """The tokens of the locks of the runs; 0 where a lock is free."""
        locks = [self.client.locks.inspect(account(int(run.rpartition("-")[2]))) for run in runs]
        return [lock.holders[0].token if lock.holders else 0 for lock in locks]

    def stop(self, workers: list[Worker]) -> None:
        for worker in workers:
            if worker.running:
                worker.send_line("enough")
        self.demand("a process did not end", kept=until(lambda: not any(w.running for w in workers), within=60))

    def kill_one(self, workers: list[Worker], role: str) -> list[Worker]:
        """Kill the first process, and start another one of the same release."""
        workers[0].kill()
        return [*workers[1:], *self.start(role)]

    def check_the_receiver(self, runs: list[str], *, killed: bool) -> None:
        """Each run has charged once and shipped once: one key each, and one call each if nothing was killed then."""
        notes = entries(self.receiver)
        for what in ("charged", "shipped"):
            keys = [one["key"] for one in notes if one["what"] == what]
            self.report.every(f"{self.name}: runs that have {what}", len(set(keys)), len(runs))
            self.demand(f"{what} with unexpected keys", kept={key.partition(":")[0] for key in keys} == set(runs))
            if not killed and what == "charged":
                self.demand(f"{len(keys)} calls for {len(runs)} charges", kept=len(keys) == len(runs))

    def check_the_intruder(self, intruder: Worker) -> None:
        """The intruder got no lock between the charge of its run and its shipping."""
        self.stop([intruder])
        first: dict[tuple[str, int], float] = {}
        for one in entries(self.receiver):
            first.setdefault((one["what"], one["number"]), one["at"])
        never = float("inf")
        for got in intruder.notes("got"):
            charged = first.get(("charged", got["number"]), never) < got["asked"]
            shipped = first.get(("shipped", got["number"]), never) < got["at"]
            self.demand(f"the lock of run {got['number']} was free", kept=shipped or not charged)
        self.report.at_least(f"{self.name}: tries to get a lock", sum(n["tries"] for n in intruder.notes("tried")), 50)

    def close(self) -> None:
        self.client.close()


def bad_deploy(scene: Scene, release: str, size: Size) -> None:
    """Replace the code of parked runs by code that does not fit, and roll back."""
    workers = scene.start("old", "old")
    runs = [scene.begin(number) for number in range(size.runs)]
    scene.all_are("suspended", runs)
    before = scene.tokens(runs)
    scene.demand("a parked run has no lock", kept=all(before))
    (intruder,) = scene.start("intruder", first=0, beyond=size.runs, seed=size.runs, rest=size.rest)
    for worker in workers:
        worker.kill()

    workers = scene.start(release, release)
    kills = 0
    for number, run in enumerate(runs):
        scene.client.runs.signal(run, "packed", idempotency_key="one")
        if kills < size.kills and number >= (kills + 1) * len(runs) // (size.kills + 1):
            workers = scene.kill_one(workers, release)
            kills += 1
    scene.all_are("blocked", runs)
    scene.demand("a lock was released and granted again", kept=scene.tokens(runs) == before)
    shipped = [one for one in entries(scene.receiver) if one["what"] == "shipped"]
    scene.demand(f"{len(shipped)} runs continued with code that does not fit", kept=not shipped)
    scene.stop(workers)

    workers = scene.start("old", "old")
    for _ in range(size.kills):
        until(lambda: bool(scene.statuses(runs)["completed"]), within=LONGEST, every=0.02)
        workers = scene.kill_one(workers, "old")
    scene.all_are("completed", runs)
    scene.check_the_receiver(runs, killed=False)
    scene.check_the_intruder(intruder)
    scene.stop(workers)


def rolling_deploy(scene: Scene, size: Size, chance: random.Random) -> None:
    """Drive runs by both releases side by side, while workers of both are killed."""
    beyond = 2 * round(size.seconds / size.pause)
    (intruder,) = scene.start("intruder", first=0, beyond=beyond, seed=beyond, rest=size.rest)
    workers = {release: scene.start(release, release) for release in ("old", "step")}
    runs: list[str] = []
    kills, ends, next_kill = 0, elapsed() + size.seconds, elapsed() + 5 * size.pause
    while elapsed() < ends and len(runs) < beyond:
        runs.append(scene.begin(len(runs)))
        for run in chance.sample(runs, min(2, len(runs))):
            signal_once(scene.client, run)
        if elapsed() >= next_kill:
            release = chance.choice(("old", "step"))
            workers[release].append(workers[release].pop(0))
            workers[release][-1].kill()
            workers[release][-1] = scene.crew.start({**scene.task, "role": release})
            kills, next_kill = kills + 1, elapsed() + chance.uniform(5, 25) * size.pause
        until(lambda: False, within=size.pause)
    for run in runs:
        signal_once(scene.client, run)
    # An engine that opens tries each blocked run at once: otherwise a hint lost by a kill costs a pause of a minute.
    for release, some in workers.items():
        scene.stop(some)
        workers[release] = scene.start(release)
    scene.all_are("completed", runs)
    both = {scene.client.runs.get(run).entries for run in runs}
    scene.report.figure(f"{scene.name}: runs", len(runs))
    blocks = sum(len(worker.notes("blocked")) for worker in scene.crew.workers)
    scene.report.at_least(f"{scene.name}: times that a run was blocked", blocks, 1)
    scene.report.at_least(f"{scene.name}: lengths of the histories of the two releases", len(both), 2)
    scene.report.at_least(f"{scene.name}: workers killed", kills, 1)
    scene.check_the_receiver(runs, killed=True)
    scene.check_the_intruder(intruder)
    for some in workers.values():
        scene.stop(some)


def signal_once(client: Client, run: str) -> None:
    """Send the signal, which counts once, to a run that may have ended."""
    if client.runs.get(run).living:
        with suppress(Exception):  # it has ended meanwhile; a lost signal would show at the end
            client.runs.signal(run, "packed", idempotency_key="one")


def prove(size: Size, seed: int, folder: Path, report: Report, place: WorkflowStore) -> None:
    deploys: dict[str, Callable[[Scene], None]] = {
        "step": lambda scene: bad_deploy(scene, "step", size),
        "field": lambda scene: bad_deploy(scene, "field", size),
        "rolling": lambda scene: rolling_deploy(scene, size, random.Random(seed)),
    }
    chosen = tuple(deploys) if size is not SMALL else SMALL_DEPLOYS.get(place.kind, tuple(deploys))
    for name in chosen:
        play = deploys[name]
        home = folder / name
        home.mkdir()
        with Crew(__file__, home) as crew:
            scene = Scene(name, report, place, home, crew)
            begun = elapsed()
            try:
                play(scene)
            finally:
                scene.close()
            failed = scene.crew.failures()
            for failure in failed:
                report.broken(f"{scene.name}: {failure}")
            report.figure(f"{scene.name}: seconds", elapsed() - begun)


if __name__ == "__main__":
    main(__file__, prove, small=SMALL, full=FULL, work=process, mariadb=True)
