"""Sections of load.py about workflows: runs queue for one mutex, or behind a limit, and drain at a constant rate.

The queue is complete before its first run may continue: the mutex is held, or no engine runs. Two engines drain the
queue. The runs are ordered by their end times in the store and divided into parts; the rate of the slowest part is
compared with that of the fastest.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from holdfast import AsyncClient, Client, Concurrency, Context, Engine, step, workflow
from holdfast.commands.runs import CountRuns, ListRuns
from holdfast.rules.runs.outcomes import RunCounts, RunPage
from holdfast.rules.runs.record import Run
from holdfast.stores import open_store
from holdfast.validation import MICROSECONDS
from support.common import Crew, Journal, Worker, until

if TYPE_CHECKING:
    from load import Stage

ENGINES = 2
AT_A_TIME = 10
KEY = "account"
TOGETHER = 500
"""Runs that are started at once."""
PAGE = 1_000
LONGEST = 280.0


@dataclass(frozen=True)
class Size:
    mutex: tuple[int, ...]
    """Numbers of runs on the mutex."""
    limit: tuple[int, ...]
    """Numbers of runs behind the limit."""
    part: int
    """Runs in each part whose rate is compared."""
    steady: float
    """The minimum rate of the slowest part, as a share of the rate of the fastest."""
    rate: float
    """The minimum rate behind the limit, in runs per second."""


SMALL = Size(mutex=(30,), limit=(60,), part=15, steady=0.01, rate=0.5)
FULL = Size(mutex=(1_000, 5_000), limit=(1_000, 10_000), part=1_000, steady=0.7, rate=300)


# -- a process ----------------------------------------------------------------------------------------


@step
async def body(number: int) -> int:
    return number


@workflow
async def guarded(ctx: Context, number: int) -> int:
    async with ctx.mutex(KEY, scope="global"):
        return number


@workflow(concurrency=Concurrency(max=AT_A_TIME, on_excess="queue"))
async def limited(ctx: Context, number: int) -> int:
    return await body(number)


WORKFLOWS = {"guarded": guarded, "limited": limited}


def work(job: dict[str, Any], journal: Journal) -> None:
    asyncio.run((drive if job["role"] == "engine" else start)(job, journal))


async def drive(job: dict[str, Any], journal: Journal) -> None:
    async with Engine(job["url"], namespace=job["namespace"], workflows=list(WORKFLOWS.values()), name=job["name"]):
        journal.note("ready")
        await asyncio.to_thread(sys.stdin.readline)


async def start(job: dict[str, Any], journal: Journal) -> None:
    """Publish the limit, by a first start with the code of the workflow, and start all runs."""
    async with AsyncClient(job["url"], namespace=job["namespace"]) as client:
        for first in range(0, job["runs"], TOGETHER):
            numbers = range(first, min(first + TOGETHER, job["runs"]))
            await asyncio.gather(*(client.runs.start(WORKFLOWS[job["workflow"]], number) for number in numbers))
    journal.note("started")


# -- the sections -------------------------------------------------------------------------------------


def cases(size: Size) -> dict[str, Callable[[Stage], None]]:
    found: dict[str, Callable[[Stage], None]] = {}
    for runs in size.mutex:
        found[f"mutex-{runs}"] = partial(mutex, runs=runs)
    for runs in size.limit:
        found[f"limit-{runs}"] = partial(limit, runs=runs)
    return found


def mutex(stage: Stage, runs: int) -> None:
    """Hold the mutex until all runs wait for it."""
    job = job_of(stage, "guarded", runs)
    with stage.crew() as crew, Client(stage.url, namespace=job["namespace"]) as hf:
        engines = started_engines(stage, crew, job)
        with hf.lock(KEY):
            queued = started(stage, crew, job) and until(
                lambda: hf.locks.inspect(KEY).waiting >= runs, within=LONGEST, every=0.5
            )
            stage.report.demand(f"{stage.name}: not all runs queued for the mutex", kept=queued)
        if queued:
            drain(stage, job, engines)
        stage.complain(crew)


def limit(stage: Stage, runs: int) -> None:
    """Start the engines when all runs are queued."""
    job = job_of(stage, "limited", runs)
    with stage.crew() as crew:
        if started(stage, crew, job):
            rate = drain(stage, job, started_engines(stage, crew, job))
            stage.report.at_least(f"{stage.name}: runs a second", rate, stage.size.runs.rate)
        stage.complain(crew)


def job_of(stage: Stage, workflow: str, runs: int) -> dict[str, Any]:
    return {"url": stage.url, "namespace": stage.case, "workflow": workflow, "runs": runs}


def started_engines(stage: Stage, crew: Crew, job: dict[str, Any]) -> list[Worker]:
    engines = [crew.start({**job, "role": "engine"}) for _ in range(ENGINES)]
    stage.begin(engines)
    return engines


def started(stage: Stage, crew: Crew, job: dict[str, Any]) -> bool:
    """Whether all runs were started."""
    return stage.came([crew.start({**job, "role": "starter"})], "started", within=LONGEST)


def drain(stage: Stage, job: dict[str, Any], engines: list[Worker]) -> float:
    """Wait for the end of all runs. Returns the rate in runs per second."""
    size, report, name = stage.size.runs, stage.report, stage.name
    with Looker(job["url"], job["namespace"]) as look:
        drained = until(lambda: not look.living(), within=LONGEST, every=1.0)
        report.demand(f"{name}: {look.living()} runs have not ended", kept=drained)
        runs = look.runs()
    for engine in engines:
        engine.send_line("enough")
    until(lambda: not any(engine.running for engine in engines), within=20)
    completed = sorted(run.ended_at for run in runs if run.status == "completed" and run.ended_at is not None)
    report.every(f"{name}: runs that completed", len(completed), job["runs"])
    if not drained or len(completed) < job["runs"]:
        return 0.0
    rate = (len(completed) - 1) / ((completed[-1] - completed[0]) / MICROSECONDS)
    report.figure(f"{name}: runs a second, all {len(completed)} of them", rate)
    part = size.part
    rates = [
        (part - 1) * MICROSECONDS / max(1, completed[first + part - 1] - completed[first])
        for first in range(0, len(completed) - part + 1, part)
    ]
    if len(rates) > 1:
        report.figure(f"{name}: runs a second, of each {part}", " ".join(f"{rate:.0f}" for rate in rates))
        report.at_least(f"{name}: the slowest {part} beside the fastest", min(rates) / max(rates), size.steady)
    return rate


class Looker:
    """A connection that counts and lists runs."""

    def __init__(self, url: str, namespace: str) -> None:
        self._store = open_store(url, namespace=namespace)
        self._connection = self._store.connect("queries")

    def living(self) -> int:
        (run_counts,) = self._connection.execute([CountRuns()])
        assert isinstance(run_counts, RunCounts)
        return sum(run_counts.counts.values())

    def runs(self) -> list[Run]:
        found: list[Run] = []
        after = None
        while True:
            (page,) = self._connection.execute([ListRuns(limit=PAGE, after=after)])
            assert isinstance(page, RunPage)
            found += page.runs
            after = page.next
            if after is None:
                return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()
        self._store.close()
