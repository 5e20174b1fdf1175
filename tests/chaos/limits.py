"""Several processes start many runs of a workflow with a limit, while the engines that drive them are killed.

Three runs per key may be admitted at a time; the others wait. The campaign counts the admitted runs all the time, and
every run records outside the store when its first step began and its last step ended. At the end all runs must have
completed; never more than three runs of a key were admitted or executing at once; runs were admitted in order of
arrival; and the whole limit is free again: as many runs as it allows are admitted at once, and one more waits.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.common import Crew, Journal, Report, Worker, stretched, until
from support.workflow_stores import WorkflowStore, main

from holdfast import Client, Concurrency, Context, Engine, step, workflow
from holdfast.commands.runs import ListRuns
from holdfast.platform import elapsed
from holdfast.rules.runs.outcomes import RunPage
from holdfast.rules.runs.record import Run
from holdfast.stores import open_store

TTL = 1.5
LONGEST = 200.0
MAX = 3
KEYS = ("ann", "bob")
NAMESPACE = "limits"


@dataclass(frozen=True)
class Size:
    starters: int
    runs: int
    engines: int
    kills: int


SMALL = Size(starters=4, runs=36, engines=2, kills=2)
FULL = Size(starters=4, runs=200, engines=3, kills=12)

_journal: Journal | None = None


# -- a process ----------------------------------------------------------------------------------------


@step
async def note(what: str, run: str, key: str) -> None:
    assert _journal is not None
    _journal.note(what, run=run, key=key)


@workflow(concurrency=Concurrency(max=MAX, key="key", on_excess="queue"))
async def limited(ctx: Context, job: dict[str, str]) -> str:
    await note("begin", ctx.run_id, job["key"])
    await ctx.sleep(0.05)
    await note("end", ctx.run_id, job["key"])
    return job["key"]


def process(task: dict[str, Any]) -> None:
    global _journal  # noqa: PLW0603  (one process, one journal)
    _journal = Journal(task["journal"])
    if task["role"] == "engine":
        asyncio.run(drive(task))
    else:
        begin(task)


async def drive(task: dict[str, Any]) -> None:
    assert _journal is not None
    async with Engine(
        task["url"], namespace=NAMESPACE, workflows=[limited], name=task["name"], worker_ttl=TTL, grace=5
    ):
        _journal.note("ready")
        await asyncio.to_thread(sys.stdin.readline)


def begin(task: dict[str, Any]) -> None:
    """Start runs by the name of the workflow, as a process without the code of the workflow does."""
    assert _journal is not None
    with Client(task["url"], namespace=NAMESPACE) as client:
        for number in range(task["runs"]):
            key = KEYS[number % len(KEYS)]
            client.runs.start("limited", {"key": key}, id=f"{task['name']}-{number}", attributes={"key": key})
    _journal.note("started")


# -- the campaign ---------------------------------------------------------------------------------------


def listed(url: str) -> list[Run]:
    """All runs of the store at one moment."""
    store = open_store(url, namespace=NAMESPACE)
    connection = store.connect("commands")
    try:
        (page,) = connection.execute([ListRuns(limit=100_000)])
        assert isinstance(page, RunPage)
        return list(page.runs)
    finally:
        connection.close()
        store.close()


def prove(size: Size, seed: int, folder: Path, report: Report, place: WorkflowStore) -> None:
    chance, url = random.Random(seed), place.url(folder)
    task = {"url": url, "runs": size.runs // size.starters}
    wanted = task["runs"] * size.starters
    kills, looks, most = 0, 0, 0
    with Crew(__file__, folder) as crew:
        engines = [crew.start({**task, "role": "engine"}) for _ in range(size.engines)]
        until(lambda: all(engine.notes("ready") for engine in engines), within=30)
        starters = [crew.start({**task, "role": "starter"}) for _ in range(size.starters)]
        deadline, next_kill = elapsed() + stretched(LONGEST), elapsed() + 0.2
        while elapsed() < deadline:
            runs = listed(url)
            looks += 1
            admitted = Counter(run.attributes["key"] for run in runs if run.living and run.status != "queued")
            most = max([most, *admitted.values()])
            ended = sum(not run.living for run in runs)
            if ended == wanted and all(starter.notes("started") for starter in starters):
                break
            if kills < size.kills and elapsed() >= next_kill:
                next_kill = elapsed() + chance.uniform(0.1, 0.5)
                engines = kill_one(crew, engines, task, chance)
                kills += 1
            until(lambda: False, within=0.01)
        report.figure(f"{place.kind}: counts of admitted runs", looks)
        report.at_least(f"{place.kind}: engines killed", kills, size.kills * 0.5)
        report.at_most(f"{place.kind}: most admitted runs of a key", most, MAX)
        for engine in engines:
            engine.send_line("enough")
        until(lambda: not crew.running(), within=20)
        judge(report, place, listed(url), wanted)
        at_work(report, place, crew)
    nothing_leaked(report, place, url)


def kill_one(crew: Crew, engines: list[Worker], task: dict[str, Any], chance: random.Random) -> list[Worker]:
    """Kill an engine, and start another one."""
    victim = chance.choice(engines)
    victim.kill()
    return [*(engine for engine in engines if engine is not victim), crew.start({**task, "role": "engine"})]


def judge(report: Report, place: WorkflowStore, runs: list[Run], wanted: int) -> None:
    """Check that all runs completed, and that they were admitted in order of arrival."""
    lost = [run.id for run in runs if run.status != "completed"]
    report.demand(f"{place.kind}: {lost[:5]} have not completed", kept=not lost)
    report.demand(f"{place.kind}: there are {len(runs)} runs instead of {wanted}", kept=len(runs) == wanted)
    for key in KEYS:
        line = sorted((run for run in runs if run.attributes["key"] == key), key=lambda run: (run.arrival, run.id))
        for position, run in enumerate(line):
            before = sum((other.ended_at or 0) <= (run.started_at or 0) for other in line[:position])
            report.demand(
                f"{place.kind}: {run.id} arrived as number {position} of {key}, but began when {before} had ended",
                kept=before >= position + 1 - MAX,
            )


def at_work(report: Report, place: WorkflowStore, crew: Crew) -> None:
    """Check, from the records of the runs, how many runs of a key were executing at once."""
    begun: dict[str, float] = {}
    ended: dict[str, float] = {}
    keys: dict[str, str] = {}
    for worker in crew.workers:
        for entry in worker.notes("begin", "end"):
            run, at = entry["run"], entry["at"]
            keys[run] = entry["key"]
            if entry["what"] == "begin":
                begun[run] = min(at, begun.get(run, at))
            else:
                ended[run] = min(at, ended.get(run, at))
    moments: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for run, key in keys.items():
        moments[key] += [(begun[run], 1), (ended[run], -1)]
    for key, found in moments.items():
        level = most = 0
        for _, change in sorted(found):
            level += change
            most = max(most, level)
        report.at_most(f"{place.kind}: most runs of {key} executing at once", most, MAX)


def nothing_leaked(report: Report, place: WorkflowStore, url: str) -> None:
    """Check that the whole limit is free: as many runs as the limit allows are admitted, and one more waits."""
    with Client(url, namespace=NAMESPACE) as client:
        for key in KEYS:
            runs = [client.runs.start("limited", {"key": key}, id=f"last {key} {n}") for n in range(MAX + 1)]
            seen = [client.runs.get(run).status for run in runs]
            report.demand(
                f"{place.kind}: at the end, {seen} new runs of {key} were admitted",
                kept=seen == ["pending"] * MAX + ["queued"],
            )


if __name__ == "__main__":
    main(__file__, prove, small=SMALL, full=FULL, work=process)
