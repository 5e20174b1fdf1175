"""Several engines drive many runs on one store, while they are killed, paused and started, and lose replies.

Each run has sequential and parallel steps, a sleep, a signal and a child. Every body of a step records its start and
end outside the store. At the end all runs must have the right result; no run was driven by two engines with valid
leases at once; each journal has exactly the expected length, whichever engines wrote it; and no run is claimed or
waiting. Only a process that was paused within a body may find that another engine has taken over.
"""

from __future__ import annotations

import asyncio
import random
import sys
import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from support.common import Crew, Journal, Report, Worker, until
from support.workflow_stores import WorkflowStore, main

from holdfast import Client, Context, Engine, StoreUnavailable, current_step, step, workflow
from holdfast.platform import elapsed
from holdfast.runtime import failpoints

TTL = 1.5
LONGEST = 240.0
LOST = (
    "after start",
    "after claim",
    "after record",
    "after record children",
    "after park",
    "after finish",
    "after signal",
)
ENTRIES = 8
"""The entries of a complete journal: input, four steps, a timer, a signal, the end of a child; none occurs twice."""


@dataclass(frozen=True)
class Size:
    engines: int
    runs: int
    faults: int
    lost: float
    """The share of commits whose reply is lost."""


SMALL = Size(engines=3, runs=80, faults=4, lost=0.02)
FULL = Size(engines=4, runs=2_000, faults=60, lost=0.01)

_journal: Journal | None = None


# -- a process ----------------------------------------------------------------------------------------


def note(what: str) -> None:
    assert _journal is not None
    info = current_step()
    _journal.note(what, run=info.run_id, step=info.step_id)


@step
async def work(value: int) -> int:
    note("begin")
    await asyncio.sleep(0.002)
    note("end")
    return value


@workflow
async def helper(ctx: Context, value: int) -> int:
    return await work(value)


@workflow
async def job(ctx: Context, value: int) -> int:
    first = await work(value)
    both = await asyncio.gather(work(1), work(2))
    await ctx.sleep(0.05)
    more = await ctx.wait_for_signal("more")
    return first + sum(both) + more + await ctx.child(helper, 10) + await work(100)


def engine_process(task: dict[str, Any]) -> None:
    global _journal  # noqa: PLW0603  (one process, one journal)
    _journal = Journal(task["journal"])
    lose_answers(random.Random(task["seed"]), task["lost"])
    asyncio.run(drive(task))


def lose_answers(chance: random.Random, part: float) -> None:
    """Lose the reply of a commit, at random."""

    def reached(point: str) -> None:
        if point in LOST and chance.random() < part:
            raise StoreUnavailable("the reply was lost by the campaign", ambiguous=True)

    failpoints.reached = reached


async def drive(task: dict[str, Any]) -> None:
    async with Engine(
        task["url"],
        namespace=task["namespace"],
        workflows=[job, helper],
        name=task["name"],
        worker_ttl=TTL,
        park_after=0.2,
        max_active_runs=200,
        grace=5,
    ):
        assert _journal is not None
        _journal.note("ready")
        await asyncio.to_thread(sys.stdin.readline)
    _journal.note("done")


# -- the campaign ---------------------------------------------------------------------------------------


class Campaign:
    def __init__(self, size: Size, seed: int, folder: Path, report: Report, place: WorkflowStore) -> None:
        self.size, self.folder, self.report, self.place = size, folder, report, place
        self.chance = random.Random(seed)
        self.task = {"url": place.url(folder), "namespace": "engines", "lost": size.lost}
        self.pauses: dict[str, list[tuple[float, float]]] = defaultdict(list)
        self.done = threading.Event()

    def start(self, crew: Crew) -> Worker:
        return crew.start({**self.task, "seed": self.chance.randrange(2**32)})

    def trouble(self, crew: Crew) -> None:
        """Kill, pause and start engines, at random."""
        faults = 0
        while faults < self.size.faults and not self.done.is_set():
            until(self.done.is_set, within=self.chance.uniform(0.05, 0.5))
            active = [worker for worker in crew.active() if worker.notes("ready")]
            if len(active) > 1:
                victim = self.chance.choice(active)
                faults += 1
                if self.chance.random() < 0.5:
                    victim.kill()
                else:
                    length = self.chance.uniform(0.3, 2.5) * TTL
                    begun = elapsed()
                    victim.pause(length)
                    self.pauses[victim.name].append((begun, begun + length + 5))
            if len(crew.active()) < self.size.engines and len(crew.running()) < self.size.engines + 2:
                self.start(crew)
            crew.resume_due(lambda: 0.1)
        self.faults = faults

    def play(self) -> None:
        with Crew(__file__, self.folder) as crew, Client(self.task["url"], namespace="engines") as client:
            for _ in range(self.size.engines):
                self.start(crew)
            begun = elapsed()
            results: list[int | None] = []
            user = threading.Thread(target=self.use, args=(client, results))
            user.start()
            self.trouble(crew)  # in this thread: the kernel kills a worker when the thread that started it ends
            while user.is_alive():
                crew.resume_due(lambda: 0.1)
                user.join(0.05)
            self.report.figure(f"{self.place.kind}: seconds", elapsed() - begun)
            wrong = [n for n, result in enumerate(results) if result != n + 118]
            self.report.demand(f"{self.place.kind}: wrong results of {wrong[:5]}", kept=not wrong)
            self.check_the_store(client)
            if not crew.active():
                self.start(crew)
            for worker in crew.running():
                worker.resume()
                worker.send_line("enough")
            until(lambda: not crew.running(), within=20)
            self.judge(crew)

    def use(self, client: Client, results: list[int | None]) -> None:
        """Start runs from eight threads, and wait for their results."""
        with ThreadPoolExecutor(8) as pool:
            results += pool.map(lambda n: self.run_one(client, n), range(self.size.runs))
        self.done.set()

    def run_one(self, client: Client, number: int) -> int | None:
        """Start a run, wait a moment, send its signal, wait for its result."""
        chance = random.Random(number)
        run = client.runs.start("job", number, id=f"r{number}", idempotency_key=f"k{number}")
        until(lambda: False, within=chance.uniform(0, 0.3))
        for _ in range(2):
            client.runs.signal(run, "more", 5, idempotency_key="one")
        try:
            return client.runs.result(run, timeout=LONGEST)
        except Exception as error:  # (reported, not raised in a thread)
            self.report.broken(f"{self.place.kind}: {run}: {type(error).__name__}: {error}")
            return None

    def check_the_store(self, client: Client) -> None:
        kind = self.place.kind
        left = client.runs.list(status=("pending", "running", "suspended"), limit=1000).runs
        self.report.demand(f"{kind}: {len(left)} runs have not ended, such as {left[:1]}", kept=not left)
        after: str | None = None
        lengths: dict[int, int] = defaultdict(int)
        while True:
            page = client.runs.list(workflow="job", limit=500, after=after)
            for run in page.runs:
                lengths[run.entries] += 1
            after = page.next
            if after is None:
                break
        self.report.demand(
            f"{kind}: unexpected journal lengths (length: runs): {dict(lengths)}", kept=set(lengths) == {ENTRIES}
        )

    def judge(self, crew: Crew) -> None:
        report, kind = self.report, self.place.kind
        for failure in crew.failures():
            report.broken(f"{kind}: {failure}")
        report.at_least(f"{kind}: kills and pauses", self.faults, self.size.faults * 0.5)
        bodies: dict[tuple[str, str], list[tuple[float, float, str]]] = defaultdict(list)
        for worker in crew.workers:
            notes = worker.notes("begin", "end")
            ends = {(one["run"], one["step"]): one["at"] for one in notes if one["what"] == "end"}
            for one in notes:
                if one["what"] == "begin":
                    key = (one["run"], one["step"])
                    end = ends.get(key, worker.killed_at or one["at"])
                    bodies[key].append((one["at"], max(end, one["at"]), worker.name))
        overlaps = again = 0
        for spans in bodies.values():
            spans.sort()
            again += len(spans) - 1
            for earlier, later in pairwise(spans):
                if later[0] < earlier[1] and earlier[2] != later[2] and not self.paused(earlier):
                    overlaps += 1
        report.figure(f"{kind}: bodies that were executed again", again)
        report.demand(f"{kind}: {overlaps} bodies overlapped", kept=overlaps == 0)

    def paused(self, body: tuple[float, float, str]) -> bool:
        """Whether the process of this body was paused while it ran."""
        return any(begin < body[1] and body[0] < end for begin, end in self.pauses[body[2]])


def prove(size: Size, seed: int, folder: Path, report: Report, place: WorkflowStore) -> None:
    Campaign(size, seed, folder, report, place).play()


if __name__ == "__main__":
    main(__file__, prove, small=SMALL, full=FULL, work=engine_process)
