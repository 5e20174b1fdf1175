"""Processes succeed each other as leader, while the leader is killed and paused: never two leaders at once.

Each leader works in small steps. A step notes the time of the store's clock *before* it checks that its term is still
valid, so a noted step lies within the term. It then writes a file through the fence. Some leaders stop themselves
(SIGSTOP) between the check and the write, and are continued after their lease has expired: that write is too late and
must be refused. The campaign also kills and pauses leaders at random moments.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from support.common import Crew, Journal, Report, Worker, main, until

from holdfast import AsyncClient, Client, StaleToken, StoreUnavailable
from holdfast.fencing import fenced_replace
from holdfast.platform import elapsed

TTL = 2.0
STEP = 0.02
PROMISED = TTL + 2.0
"""Seconds within which there is a new leader."""
FAULTS = ("stop", "kill", "pause")


@dataclass(frozen=True)
class Size:
    processes: int
    seconds: float
    faults: int
    """The minimum number of leaders that are killed, paused, or stop themselves before a write."""
    refused: int
    """The minimum number of late writes that the fence refuses."""


SMALL = Size(processes=3, seconds=6, faults=3, refused=1)
FULL = Size(processes=5, seconds=60, faults=12, refused=3)


# -- a worker ---------------------------------------------------------------------------------------


def work(job: dict[str, Any]) -> None:
    asyncio.run(lead(job, Journal(job["journal"])))


async def lead(job: dict[str, Any], journal: Journal) -> None:
    async with AsyncClient(job["url"], name=job["name"]) as hf:
        journal.note("ready")
        async for term in hf.leader("scheduler", ttl=TTL):
            journal.note("elected", token=term.token)
            async with term:
                await steps(job, journal, term)
            journal.note("over", token=term.token)


async def steps(job: dict[str, Any], journal: Journal, term: Any) -> None:
    """Work until the term is lost, which cancels this task."""
    path, stop = Path(job["path"]), f"{job['folder']}/stop-{os.getpid()}"
    while True:
        moment, expires_at = time.time(), term.expires_at.timestamp()
        if not term.valid:
            journal.note("noticed", token=term.token)
        else:
            journal.note("step", token=term.token, moment=moment, expires_at=expires_at)
            late = os.path.exists(stop)  # noqa: PTH110, ASYNC240  (short, and the only task on this loop)
            if late:
                os.unlink(stop)  # noqa: PTH108
                os.kill(os.getpid(), signal.SIGSTOP)  # and writes without another check
            try:
                fenced_replace(path, str(term.token), term)
                journal.note("wrote", token=term.token, late=late)
            except StaleToken:
                journal.note("refused", token=term.token, late=late)
        await asyncio.sleep(STEP)


# -- the campaign -----------------------------------------------------------------------------------


@dataclass
class Campaign:
    """One run: leaders, and the faults."""

    size: Size
    chance: random.Random
    folder: Path
    crew: Crew
    report: Report
    done: Counter[str] = field(default_factory=Counter)
    reaches: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.job = {"url": f"sqlite:///{self.folder}/locks.db", "path": str(self.folder / "written")}

    def run(self) -> None:
        with Client(f"{self.job['url']}?patience=0.5", name="parent") as hf:
            for _ in range(self.size.processes):
                self.crew.start(self.job)
            give_up = elapsed() + self.size.seconds
            while elapsed() < give_up or not self.enough():
                if elapsed() > give_up + 60:
                    break
                leader = self.leader()
                if leader is None:
                    self.report.broken(f"no leader within {PROMISED + 8} s")
                    return
                until(lambda: False, within=self.chance.uniform(0.1, 1.0))
                self.disturb(leader, hf)
        for failure in self.crew.failures():
            self.report.broken(failure)

    def enough(self) -> bool:
        refused = sum(note["late"] for note in self.crew.notes("refused"))
        return sum(self.done[fault] for fault in FAULTS) >= self.size.faults and refused >= self.size.refused

    def leader(self) -> Worker | None:
        """The current leader, if it is not paused."""
        found: list[Worker] = []

        def look() -> bool:
            self.crew.resume_due(lambda: self.chance.uniform(1.1 * TTL, 2.0 * TTL), self.overtaken)
            found[:] = [
                worker
                for worker in self.crew.active()
                if (notes := worker.notes("elected", "over", "step"))
                and notes[-1]["what"] == "step"
                and time.time() - notes[-1]["wall"] < 0.5
            ]
            return len(found) == 1

        return found[0] if until(look, within=PROMISED + 8) else None

    def overtaken(self, worker: Worker) -> bool:
        """Whether a successor has written since this leader stopped: then the write of this leader is too late."""
        mine = worker.notes("step")[-1]["token"]
        written = Path(self.job["path"])
        return written.exists() and int(written.read_text()) > mine

    def disturb(self, leader: Worker, hf: Client) -> None:
        fault = FAULTS[sum(self.done[fault] for fault in FAULTS) % len(FAULTS)]
        if fault == "kill":
            leader.kill()
            self.crew.start(self.job)
        elif fault == "stop":
            (self.folder / f"stop-{leader.pid}").touch()
            until(lambda: not (self.folder / f"stop-{leader.pid}").exists() or not leader.running, within=5)
        else:
            leader.pause(self.chance.uniform(1.1 * TTL, 2.0 * TTL))
            if not writable(hf):  # stopped within a commit: this blocks all processes, and is not what is tested here
                leader.resume()
                self.done["let go"] += 1
                return
        self.done[fault] += 1


def writable(hf: Client) -> bool:
    try:
        hf.state("probe").set(1)
    except StoreUnavailable:
        return False
    return True


def check(campaign: Campaign) -> None:
    """Check the journals."""
    report, crew = campaign.report, campaign.crew
    notes = crew.notes()
    elected = {note["token"]: note for note in notes if note["what"] == "elected"}
    steps = {token: [n for n in notes if n["what"] == "step" and n["token"] == token] for token in elected}
    terms = sorted(elected)
    report.at_least("terms", len(terms), campaign.size.faults)
    report.figure("steps", sum(map(len, steps.values())))
    order = [note["token"] for note in notes if note["what"] == "elected"]
    report.demand("a later leader had a lower token", kept=order == sorted(order))
    longest = 0.0
    for first, second in pairwise(terms):
        if not steps[first]:
            continue
        last = steps[first][-1]
        begun = second / 1e6  # a token is the store's time of the grant
        report.demand(
            "two terms overlapped in store time: a leader worked after the next term had begun",
            kept=last["moment"] < begun,
        )
        over = [n for n in notes if n["what"] == "over" and n["token"] == first and n["wall"] <= begun]
        report.demand(
            "a new term was granted before the last one had expired", kept=bool(over) or last["expires_at"] <= begun
        )
        longest = max(longest, elected[second]["wall"] - last["wall"])
    report.within("longest time without a leader, s", longest, PROMISED)
    refused = [note for note in notes if note["what"] == "refused"]
    wrote = [note["token"] for note in notes if note["what"] == "wrote"]
    report.demand("a write under an older token was accepted", kept=wrote == sorted(wrote))
    report.at_least("late writes refused by the fence", sum(note["late"] for note in refused), campaign.size.refused)
    late = sum(1 for note in notes if note["what"] == "wrote" and note["late"])
    report.demand("a late write was accepted after its successor's", kept=late == 0)
    for fault in FAULTS:
        report.at_least(f"leaders: {fault}", campaign.done[fault], 1 if campaign.size is FULL else 0)
    report.at_least("faults", sum(campaign.done[fault] for fault in FAULTS), campaign.size.faults)
    report.figure("stopped within a commit and continued at once", campaign.done["let go"])


RECIPE_PROMISED = 15.0
"""Seconds after kill -9 within which docs/patterns.md promises the next snapshot."""


def recipe(folder: Path, report: Report) -> None:
    """Run the snapshot writer of docs/patterns.md as printed there in two processes, and kill the first."""
    page = (Path(__file__).parents[2] / "docs/patterns.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    program = "\n\n".join(blocks[:4]) + RECIPE
    path = folder / "snapshot"
    command = [sys.executable, "-c", program, f"sqlite:///{folder}/recipe.db", str(path)]
    writers = [subprocess.Popen([*command, "first"])]
    try:
        until(lambda: path.exists(), within=30)
        writers.append(subprocess.Popen([*command, "second"]))
        with Client(f"sqlite:///{folder}/recipe.db") as hf:
            until(lambda: hf.locks.inspect("leader:snapshot-writer").waiters, within=30)
        writers[0].kill()
        killed = elapsed()
        taken_over = until(lambda: path.read_text() == "second", within=60)
        report.demand("the killed snapshot writer was not replaced", kept=taken_over)
        report.within(
            "snapshot writer of the docs: next snapshot after kill -9, s", elapsed() - killed, RECIPE_PROMISED
        )
    finally:
        for writer in writers:
            writer.kill()
            writer.wait()


RECIPE = """
import sys

async def main():
    async with AsyncClient(sys.argv[1]) as hf:
        await write_snapshots(hf, sys.argv[2], lambda: sys.argv[3])

asyncio.run(main())
"""


def prove(size: Size, seed: int, folder: Path, report: Report) -> None:
    with Crew(__file__, folder) as crew:
        campaign = Campaign(size, random.Random(seed), folder, crew, report)
        campaign.run()
        check(campaign)
    if size is FULL:
        recipe(folder, report)


if __name__ == "__main__":
    sys.exit(main(__file__, prove, small=SMALL, full=FULL, work=work))
