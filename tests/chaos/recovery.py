"""An engine with 1,000 runs is killed with -9; another engine, which runs all the time, finishes all of them.

Each of the runs was within a step. Measured is the time from the expiry of the killed worker's lease, by the store's
clock, until the last run has ended.
"""

from __future__ import annotations

import asyncio
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.common import Crew, Journal, Report, until
from support.workflow_stores import WorkflowStore, main

from holdfast import Client, Context, Engine, step, workflow
from holdfast.platform import elapsed

TTL = 2.0
LONGEST = 60.0
WANTED = 3.0
"""Seconds."""


@dataclass(frozen=True)
class Size:
    runs: int


SMALL = Size(runs=200)
FULL = Size(runs=1_000)

_dies = False


@step
async def one(value: int) -> int:
    if _dies:
        await asyncio.sleep(600)
    return value


@workflow
async def pending(ctx: Context, value: int) -> int:
    return await one(value) + await one(1)


def engine_process(task: dict[str, Any]) -> None:
    global _dies  # noqa: PLW0603  (one process, one part)
    _dies = task["dies"]
    asyncio.run(drive(task))


async def drive(task: dict[str, Any]) -> None:
    journal = Journal(task["journal"])
    async with Engine(
        task["url"], namespace="recovery", workflows=[pending], name=task["name"], worker_ttl=TTL, max_active_runs=1_000
    ) as engine:
        if task["dies"]:
            await asyncio.gather(*(engine.start(pending, n, id=f"r{n}") for n in range(task["runs"])))
            await asyncio.sleep(0.5)
        journal.note("ready")
        await asyncio.to_thread(sys.stdin.readline)


def prove(size: Size, seed: int, folder: Path, report: Report, place: WorkflowStore) -> None:
    task = {"url": place.url(folder), "runs": size.runs}
    with Crew(__file__, folder) as crew, Client(task["url"], namespace="recovery") as client:
        victim = crew.start({**task, "dies": True})
        report.demand(
            f"{place.kind}: the engines did not start", kept=until(lambda: victim.notes("ready"), within=LONGEST)
        )
        successor = crew.start({**task, "dies": False})
        report.demand(
            f"{place.kind}: the engines did not start", kept=until(lambda: successor.notes("ready"), within=LONGEST)
        )
        running = client.runs.list(status="running", limit=size.runs).runs
        report.at_least(f"{place.kind}: runs of the killed engine", len(running), size.runs)
        victim.kill()
        lock = client.run_locks.get("pending", "r0")
        assert lock is not None
        assert lock.expires_at is not None
        until(lambda: client.run_locks.get("pending", "r0") is None or _taken(client), within=LONGEST, every=0.002)
        over = elapsed()
        ended = until(lambda: not client.runs.list(status=("running", "pending"), limit=1).runs, within=LONGEST)
        report.demand(f"{place.kind}: not all runs have ended", kept=ended)
        done = client.runs.list(status="completed", limit=size.runs + 1).runs
        report.demand(f"{place.kind}: only {len(done)} runs have completed", kept=len(done) == size.runs)
        report.within(f"{place.kind}: seconds until all runs had ended", elapsed() - over, WANTED)


def _taken(client: Client) -> bool:
    lock = client.run_locks.get("pending", "r0")
    return lock is None or lock.holder != "w000"


if __name__ == "__main__":
    main(__file__, prove, small=SMALL, full=FULL, work=engine_process)
