"""A worker is paused past its lease within a step; another worker takes the run over and finishes it.

The first worker is continued and finishes the body of its step; its record is refused, and it emits an event. The
journal has no duplicate entries, and the result is that of the second worker.
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

TTL = 1.0
LONGEST = 60.0
EXPECTED_EVENTS = ("lease_lost", "worker_lost", "run_refused")
"""The late worker emits one of these events."""


@dataclass(frozen=True)
class Size:
    times: int


SMALL = Size(times=1)
FULL = Size(times=10)

_who = ""
_journal: Journal | None = None


@step
def slow(run: str) -> str:
    """A sync step runs in a thread, which cannot be stopped: it continues after the pause in any case."""
    assert _journal is not None
    _journal.note("begin", run=run)
    until(lambda: False, within=0.3)
    _journal.note("end", run=run)
    return _who


@workflow
async def paused(ctx: Context, run: str) -> list[str]:
    return [await slow(run), await slow(run)]


def engine_process(task: dict[str, Any]) -> None:
    global _who, _journal
    _who, _journal = task["name"], Journal(task["journal"])
    asyncio.run(drive(task))


async def drive(task: dict[str, Any]) -> None:
    assert _journal is not None
    journal = _journal
    async with Engine(
        task["url"], namespace="takeover", workflows=[paused], name=task["name"], worker_ttl=TTL
    ) as engine:
        engine.events.subscribe(lambda event: journal.note("event", name=event.name))
        journal.note("ready")
        await asyncio.to_thread(sys.stdin.readline)


def prove(size: Size, seed: int, folder: Path, report: Report, place: WorkflowStore) -> None:
    task = {"url": place.url(folder)}
    with Crew(__file__, folder) as crew, Client(task["url"], namespace="takeover") as client:
        for time in range(size.times):
            take_over(f"r{time}", task=task, crew=crew, client=client, report=report, kind=place.kind)
        report.figure(f"{place.kind}: takeovers", size.times)


def take_over(name: str, *, task: dict[str, Any], crew: Crew, client: Client, report: Report, kind: str) -> None:
    def demand(what: str, *, kept: bool) -> None:
        report.demand(f"{kind}: {what}", kept=kept)

    first = crew.start(task)
    until(lambda: first.notes("ready"), within=LONGEST)
    run = client.runs.start("paused", name, id=name)
    demand("the step did not start", kept=until(lambda: first.notes("begin"), within=LONGEST))
    first.pause(LONGEST)
    second = crew.start(task)
    result = client.runs.result(run, timeout=LONGEST)
    demand(f"the result is {result}, not that of the second worker", kept=result == [second.name] * 2)
    first.resume()
    too_late = until(lambda: any(note["name"] in EXPECTED_EVENTS for note in first.notes("event")), within=LONGEST)
    demand("the first worker emitted no event about its loss", kept=too_late)
    until(lambda: first.notes("end"), within=LONGEST)
    seen = client.runs.get(run)
    demand(f"the history has {seen.entries} entries", kept=seen.entries == 3)
    demand(f"the run is {seen.status}", kept=seen.status == "completed")
    first.kill()
    second.kill()


if __name__ == "__main__":
    main(__file__, prove, small=SMALL, full=FULL, work=engine_process)
