"""Many runs on one mutex and on one semaphore, while the engines that drive them are killed.

Each run acquires the lock, executes a step, sleeps, executes another step, and releases; every step is recorded outside
the store. The runs queue one after the other, and then engines are killed. At the end all runs must have completed;
never two runs held the mutex, and never four a semaphore of three; grants were in order of arrival, with increasing
tokens; and no lock is held. Then a process that holds a lock is killed: a run that waits for this lock must continue,
although no other process uses the lock.
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

from support.common import Crew, Journal, Report, Worker, stretched, until
from support.workflow_stores import WorkflowStore, main

from holdfast import Client, Context, Engine, step, workflow
from holdfast.platform import elapsed

TTL = 1.5
LONGEST = 240.0
PERMITS = 3
NAMESPACE = "run-locks"
KEYS = {"alone": "workflow/alone/account", "few": "workflow/few/vendor", "behind": "reports"}


@dataclass(frozen=True)
class Size:
    runs: int
    """Runs on the mutex, and as many on the semaphore."""
    engines: int
    kills: int


SMALL = Size(runs=14, engines=2, kills=2)
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


# -- the campaign ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scene:
    """The store and the checks of one campaign."""

    report: Report
    kind: str
    url: str
    client: Client
    crew: Crew

    def demand(self, otherwise: str, *, kept: bool) -> None:
        self.report.demand(f"{self.kind}: {otherwise}", kept=kept)


def prove(size: Size, seed: int, folder: Path, report: Report, place: WorkflowStore) -> None:
    chance, url = random.Random(seed), place.url(folder)
    task = {"url": url, "role": "engine"}
    with Crew(__file__, folder) as crew, Client(url, namespace=NAMESPACE) as client:
        scene = Scene(report, place.kind, url, client, crew)
        engines = [crew.start(task) for _ in range(size.engines)]
        until(lambda: all(engine.notes("ready") for engine in engines), within=30)
        runs = {kind: come(scene, kind, size.runs) for kind in ("alone", "few")}
        kills, deadline = 0, elapsed() + stretched(LONGEST)
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
        behind_a_killed_process(scene)
        left = [lock.key for lock in client.locks.list() if not lock.key.startswith("worker/")]
        scene.demand(f"locks are held at the end: {left}", kept=not left)
        for engine in engines:
            engine.send_line("enough")
        until(lambda: not crew.running(), within=20)


def come(scene: Scene, kind: str, many: int) -> list[str]:
    """Start runs one after the other: the next one when the last one has its position in the queue."""
    runs: list[str] = []

    def arrived() -> bool:
        lock = scene.client.locks.inspect(KEYS[kind])
        there = {holder.owner for holder in lock.holders} | {waiter.owner for waiter in lock.waiters}
        entered = {entry["run"] for worker in scene.crew.workers for entry in worker.notes("enter")}
        return f"run {runs[-1]}" in there or runs[-1] in entered

    for number in range(many):
        runs.append(scene.client.runs.start(kind, number, id=f"{kind}-{number}"))
        scene.demand(f"{runs[-1]} did not queue", kept=until(arrived, within=20))
    return runs


def kill_one(crew: Crew, engines: list[Worker], task: dict[str, Any], chance: random.Random) -> list[Worker]:
    """Kill an engine, and start another one."""
    victim = chance.choice(engines)
    victim.kill()
    return [*(engine for engine in engines if engine is not victim), crew.start(task)]


def judge(scene: Scene, kind: str, runs: list[str], most: int) -> None:
    """Check that all runs completed, in order, with increasing tokens, and with never too many holders."""
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
    scene.demand(f"not in order of arrival: {line}", kept=line == sorted(set(line)))
    level = highest = 0
    for _, change in sorted(moments):
        level += change
        highest = max(highest, level)
    scene.report.at_most(f"{scene.kind}: most holders at once, {kind}", highest, most)
    scene.report.every(f"{scene.kind}: runs that completed, {kind}", len(seen.keys() & set(runs)), len(runs))


def behind_a_killed_process(scene: Scene) -> None:
    """Kill a process that holds a lock for which a run waits."""
    client = scene.client
    holder = scene.crew.start({"url": scene.url, "role": "holder"})
    scene.demand("the process did not get the lock", kept=until(lambda: bool(holder.notes("holds")), within=20))
    run = client.runs.start("behind", 0)
    waits = until(lambda: bool(client.locks.inspect(KEYS["behind"]).waiters), within=20)
    scene.demand("the run did not queue", kept=waits)
    holder.kill()
    ended = until(lambda: client.runs.get(run).status == "completed", within=20)
    scene.demand("the run that waited for the lock of a killed process did not continue", kept=ended)


if __name__ == "__main__":
    main(__file__, prove, small=SMALL, full=FULL, work=process)
