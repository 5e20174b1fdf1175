"""Tasks in several processes add to one state, while replies are lost: no addition is lost or counted twice.

Each addition returns the new sum, so the results of all processes together must be the numbers from one to the total,
each once. Afterwards stale writers, which have read the state before a delete, try to write after it: each write must
be refused.
"""

from __future__ import annotations

import asyncio
import random
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.common import Crew, Journal, Report, main, until

import holdfast.runtime.base
from holdfast import AsyncClient, Client
from holdfast.commands import Command, ReadSlot, SwapSlot
from holdfast.rules.slot import Conflict
from holdfast.stores import open_store
from support.faults import FaultyStore, Plan


@dataclass(frozen=True)
class Size:
    processes: int
    tasks: int
    """Tasks in each process."""
    additions: int
    """Additions of all tasks together."""
    lost: float
    """The share of batches whose reply is lost."""
    stale: int
    """Writers that do not know of a delete."""
    limit: float


PER_WRITE = 2
"""The most replies that one write loses: a client sends a write five times and then raises, as documented."""

SMALL = Size(processes=2, tasks=25, additions=400, lost=0.25, stale=20, limit=60)
FULL = Size(processes=4, tasks=25, additions=2_000, lost=0.03, stale=500, limit=300)


class Unlucky(Plan):
    """Lose the reply of a batch with writes, at random."""

    def __init__(self, chance: random.Random, part: float) -> None:
        super().__init__()
        self.after = lambda commands: self._perhaps(commands, chance, part)
        self.lost_by_write: Counter[str] = Counter()

    def _perhaps(self, commands: Any, chance: random.Random, part: float) -> None:
        writes = [command.request for command in commands if isinstance(command, SwapSlot)]
        if writes and chance.random() < part and all(self.lost_by_write[write] < PER_WRITE for write in writes):
            self.lost_by_write.update(writes)
            self.lose_reply_of = SwapSlot


def work(job: dict[str, Any]) -> None:
    plan = Unlucky(random.Random(job["seed"]), job["lost"])
    holdfast.runtime.base.open_store = lambda url, **options: FaultyStore(open_store(url, **options), plan)
    asyncio.run(add(job, Journal(job["journal"]), plan))


async def add(job: dict[str, Any], journal: Journal, plan: Plan) -> None:
    async with AsyncClient(job["url"], name=job["name"]) as hf:
        left = job["additions"]
        answers: list[int] = []
        journal.note("ready")
        await asyncio.to_thread(sys.stdin.readline)

        async def task() -> None:
            nonlocal left
            total = hf.state("total", initial=0)
            while left > 0:
                left -= 1
                answers.append(await total.increment())

        await asyncio.gather(*(task() for _ in range(job["tasks"])))
        swaps = plan.count(SwapSlot)
        journal.note("done", answers=answers, swaps=swaps, lost=len(plan.lost), batches=len(plan.batches))


def stale_writers(url: str, size: Size, report: Report) -> None:
    """Read, let another client delete (and write again), then write with the old version."""
    refused = 0
    with Client(url) as hf, Client(url) as other:
        address = ("global", "", "total")

        def ask(command: Command) -> Any:
            return hf.runtime.batchers["commands"].run(command)

        for n in range(size.stale):
            seen = ask(ReadSlot(address=address))
            other.state("total").delete()
            if n % 2:
                other.state("total").set(0)
            outcome = ask(
                SwapSlot(
                    address=address,
                    request=hf.runtime.new_attempt(),
                    expected=seen.last,
                    version=seen.version,
                    value="1",
                )
            )
            refused += isinstance(outcome, Conflict)
            report.demand("a stale writer restored a deleted value", kept=other.state("total").get() != 1)
            other.state("total").set(5)
    report.every("stale writers that were refused", refused, size.stale)


def prove(size: Size, seed: int, folder: Path, report: Report) -> None:
    chance = random.Random(seed)
    url = f"sqlite:///{folder}/locks.db"
    job = {"url": url, "tasks": size.tasks, "additions": size.additions // size.processes, "lost": size.lost}
    with Crew(__file__, folder) as crew:
        for _ in range(size.processes):
            crew.start({**job, "seed": chance.random()})
        until(lambda: len(crew.notes("ready")) == size.processes, within=30)
        for worker in crew.workers:
            worker.send_line("go")
        ended = until(lambda: not crew.running(), within=size.limit)
        report.demand(f"not finished within {size.limit} s", kept=ended)
        for failure in crew.failures():
            report.broken(failure)
        done = crew.notes("done")
    answers = sorted(answer for note in done for answer in note["answers"])
    with Client(url) as hf:
        total = hf.state("total").get()
    report.every("additions", total or 0, size.additions)
    report.demand(
        "an addition was lost or counted twice",
        kept=answers == list(range(1, size.additions + 1)) and total == size.additions,
    )
    swaps = sum(note["swaps"] for note in done)
    report.figure("writes sent", swaps)
    report.at_least("of them refused because another process was faster", swaps - size.additions, 1)
    report.at_least("replies lost", sum(note["lost"] for note in done), 1)
    report.figure("batches", sum(note["batches"] for note in done))
    stale_writers(url, size, report)


if __name__ == "__main__":
    sys.exit(main(__file__, prove, small=SMALL, full=FULL, work=work))
