"""Many runs on one mutex and on one semaphore, while the engines that drive them are killed.

Each run enters, does a step, sleeps, does another step, and leaves; every step is written down outside of the store.
The runs come one after the other, and then the killing begins. In the end all have completed; no two were inside the
mutex at a time, and never four inside a semaphore of three; they entered in the order in which they came; the token
rose with each; and nobody has anything left. Then a process takes a lock and is killed: a run that waits behind it goes
on, although nobody else speaks.
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.common import Crew, Journal, Report, Worker, until
from support.workplaces import Workplace, main

from holdfast import Client, Context, Engine, step, workflow
from holdfast.platform import elapsed

TTL = 1.5
LONGEST = 240.0
PERMITS = 3
NAMESPACE = "belongings"
KEYS = {"alone": "workflow/alone/account", "few": "workflow/few/vendor", "behind": "reports"}


@dataclass(frozen=True)
class Size:
    runs: int
    """On the mutex, and as many on the semaphore."""
    engines: int
    kills: int


SMALL = Size(runs=24, engines=2, kills=3)
FULL = Size(runs=50, engines=3, kills=15)

_journal: Journal | None = None


# -- a process ----------------------------------------------------------------------------------------


@step
async def note(what: str, run: str, token: int) -> None:
    assert _journal is not None
    _journal.note(what, run=run, token=token)


async def inside(ctx: Context, token: int) -> int:
    await note("enter", ctx.run_id, token)
    await ctx.sleep(0.05)
    await note("leave", ctx.run_id, token)
    return token


@workflow
async def alone(ctx: Context, _number: int) -> int:
    async with ctx.mutex("account") as lease:
        return await inside(ctx, lease.token)


@workflow
async def few(ctx: Context, _number: int) -> int:
    async with ctx.semaphore("vendor", permits=PERMITS) as lease:
        return await inside(ctx, lease.token)


@workflow
async def behind(ctx: Context, _number: int) -> int:
    async with ctx.mutex("reports", scope="global") as lease:
        return await inside(ctx, lease.token)


def process(task: dict[str, Any]) -> None:
    global _journal  # noqa: PLW0603  (one process, one journal)
    _journal = Journal(task["journal"])
    if task["role"] == "engine":
        asyncio.run(drive(task))
    else:
        with Client(task["url"], namespace=NAMESPACE) as client, client.lock("reports", ttl=TTL) as lease:
            _journal.note("holds", token=lease.token)
            time.sleep(60)


async def drive(task: dict[str, Any]) -> None:
    assert _journal is not None
    async with Engine(
        task["url"],
        namespace=NAMESPACE,
        workflows=[alone, few, behind],
        name=task["name"],
        worker_ttl=TTL,
        grace=5,
        park_after=0.2,
    ):
        _journal.note("ready")
        await asyncio.to_thread(sys.stdin.readline)


# -- seen from outside ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scene:
    """What is looked at, and how."""

    report: Report
    kind: str
    url: str
    client: Client
    crew: Crew

    def demand(self, otherwise: str, *, kept: bool) -> None:
        self.report.demand(f"{self.kind}: {otherwise}", kept=kept)


def prove(size: Size, seed: int, folder: Path, report: Report, place: Workplace) -> None:
    chance, url = random.Random(seed), place.url(folder)
    task = {"url": url, "role": "engine"}
    with Crew(__file__, folder) as crew, Client(url, namespace=NAMESPACE) as client:
        scene = Scene(report, place.kind, url, client, crew)
        engines = [crew.start(task) for _ in range(size.engines)]
        until(lambda: all(engine.notes("ready") for engine in engines), within=30)
        runs = {kind: come(scene, kind, size.runs) for kind in ("alone", "few")}
        kills, deadline = 0, elapsed() + LONGEST
        while elapsed() < deadline:
            statuses = [client.runs.get(run).status for some in runs.values() for run in some]
            if all(status in ("completed", "failed") for status in statuses):
                break
            if kills < size.kills:
                engines = kill_one(crew, engines, task, chance)
                kills += 1
            until(lambda: False, within=chance.uniform(0.1, 0.6))
        report.at_least(f"{place.kind}: engines killed", kills, size.kills * 0.5)
        for kind, most in (("alone", 1), ("few", PERMITS)):
            judge(scene, kind, runs[kind], most)
        behind_a_dead_process(scene)
        left = [lock.key for lock in client.locks.list() if not lock.key.startswith("worker/")]
        scene.demand(f"in the end somebody has {left}", kept=not left)
        for engine in engines:
            engine.say("enough")
        until(lambda: not crew.running(), within=20)


def come(scene: Scene, kind: str, many: int) -> list[str]:
    """Runs that come one after the other: the next when the one before has its place in the queue."""
    runs: list[str] = []

    def arrived() -> bool:
        lock = scene.client.locks.inspect(KEYS[kind])
        there = {holder.owner for holder in lock.holders} | {waiter.owner for waiter in lock.waiters}
        entered = {entry["run"] for worker in scene.crew.workers for entry in worker.notes("enter")}
        return f"run {runs[-1]}" in there or runs[-1] in entered

    for number in range(many):
        runs.append(scene.client.runs.start(kind, number, id=f"{kind}-{number}"))
        scene.demand(f"{runs[-1]} never came", kept=until(arrived, within=20))
    return runs


def kill_one(crew: Crew, engines: list[Worker], task: dict[str, Any], chance: random.Random) -> list[Worker]:
    """Kill an engine; another one comes."""
    victim = chance.choice(engines)
    victim.kill()
    return [*(engine for engine in engines if engine is not victim), crew.start(task)]


def judge(scene: Scene, kind: str, runs: list[str], most: int) -> None:
    """All have completed, in order, under rising tokens, and never too many were inside."""
    lost = [run for run in runs if scene.client.runs.get(run).status != "completed"]
    scene.demand(f"{lost[:5]} have not completed", kept=not lost)
    seen: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for worker in scene.crew.workers:
        for entry in worker.notes("enter", "leave"):
            seen[entry["run"]].append((entry["at"], entry["token"]))
    tokens, moments = [], []
    for run in runs:
        notes = sorted(seen[run])
        tokens.append({token for _, token in notes})
        moments += [(notes[0][0], 1), (notes[-1][0], -1)]
    scene.demand(f"a run had several tokens: {tokens}", kept=all(len(some) == 1 for some in tokens))
    line = [max(some) for some in tokens]
    scene.demand(f"not in the order of arrival: {line}", kept=line == sorted(set(line)))
    level = highest = 0
    for _, change in sorted(moments):
        level += change
        highest = max(highest, level)
    scene.report.at_most(f"{scene.kind}: most runs inside, {kind}", highest, most)
    scene.report.every(f"{scene.kind}: runs that went through, {kind}", len(seen.keys() & set(runs)), len(runs))


def behind_a_dead_process(scene: Scene) -> None:
    """A process that holds what a run waits for is killed."""
    client = scene.client
    holder = scene.crew.start({"url": scene.url, "role": "holder"})
    scene.demand("nobody took the lock", kept=until(lambda: bool(holder.notes("holds")), within=20))
    run = client.runs.start("behind", 0)
    waits = until(lambda: bool(client.locks.inspect(KEYS["behind"]).waiters), within=20)
    scene.demand("the run did not come", kept=waits)
    holder.kill()
    ended = until(lambda: client.runs.get(run).status == "completed", within=20)
    scene.demand("the run behind a dead process did not go on", kept=ended)


if __name__ == "__main__":
    main(__file__, prove, small=SMALL, full=FULL, work=process)
