"""The counter campaign, while the host's clock is moved by an hour, forward and back, for all processes at once.

libfaketime reads the clock of all workers from a file; the clocks that cannot be set (monotonic, boot time) stay real,
as on a host whose clock is set. Before each step forward the holder stops itself between reading and writing: the step
ends its lease, other workers continue, and the late write of the holder must be refused. Before each step back the
holder is killed at that point, sometimes with a waiter: without the cut of expiries its lease would now last for an
hour. The documented bounds are one ttl more for a killed holder, and one waiting lease more for a killed waiter.
"""

from __future__ import annotations

import math
import random
import sys
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import counter
from support.common import SLACK, WAITING_LEASE, Crew, Report, main

from holdfast.platform import elapsed
from holdfast.stores.sqlite import clock as sqlite_clock
from holdfast.testing.faults import ClockMissing, SkewedClock

HOUR = 3_600


@dataclass(frozen=True)
class Size(counter.Size):
    offsets: tuple[int, ...] = ()
    """The offsets of the clock, one after the other, in hours from the true time."""
    dead_waiters: int = 0
    """At so many of the steps back, a waiter is killed too."""


SMALL = Size(
    processes=4, increments=60, stops=0, crashes=0, kills=0, pauses=0, limit=60, offsets=(1, 0, -1), dead_waiters=0
)
FULL = Size(
    processes=6,
    increments=600,
    stops=0,
    crashes=0,
    kills=0,
    pauses=0,
    limit=400,
    offsets=(1, 0, -1, 0, 1, -1, 1, 0, -1, 0, 1, 0, -1, 0),
    dead_waiters=3,
)


@dataclass(frozen=True)
class Step:
    at: float
    forward: bool
    bound: float


class Campaign(counter.Campaign):
    """The counter's campaign, with a step of the clock at each planned moment."""

    size: Size

    def __post_init__(self) -> None:
        super().__post_init__()
        offsets, self.steps = self.size.offsets, list[Step]()
        apart = self.size.increments // (len(offsets) + 1)
        moments = {(place + 1) * apart: after > before for place, (before, after) in enumerate(pairwise((0, *offsets)))}
        self.job["stop"] = [moment for moment, forward in moments.items() if forward]
        self.job["die-before"] = [moment for moment, forward in moments.items() if not forward]
        self.dead = 0

    def disturb(self, count: int) -> None:
        """Move the clock as soon as the planned worker has stopped or was killed."""
        del count
        if self.faults["stops"] + self.faults["kills"] - self.dead > len(self.steps):
            forward = self.faults["stops"] > sum(step.forward for step in self.steps)
            bound = 2 * counter.TTL + SLACK
            if not forward and self.dead < self.size.dead_waiters:
                self.chance.choice(self.crew.active()).kill()
                self.dead += 1
                bound += WAITING_LEASE
            self.steps.append(Step(elapsed(), forward, bound))
            self.clock.set(self.size.offsets[len(self.steps) - 1] * HOUR)

    clock: SkewedClock


def check_steps(campaign: Campaign) -> None:
    """Check that no worker waited longer than the bound after this step, and that workers saw the step."""
    report, notes = campaign.report, campaign.crew.notes("accepted")
    waits: dict[bool, list[float]] = {True: [0.0], False: [0.0]}
    ends = [step.at for step in campaign.steps[1:]] + [notes[-1]["at"]]
    for step, end in zip(campaign.steps, ends, strict=True):
        moments = [step.at, *(note["at"] for note in notes if step.at < note["at"] < end), max(end, step.at)]
        wait = max(late - early for early, late in pairwise(moments))
        waits[step.forward].append(wait)
        report.demand(
            f"no progress for {wait:.1f} s after a step of the clock; documented: at most {step.bound:g} s",
            kept=wait <= step.bound,
        )
    standstill = elapsed() - notes[-1]["at"] if len(notes) < campaign.size.increments else 0.0
    report.demand(
        f"no progress for {standstill:.0f} s at the end", kept=standstill <= max(s.bound for s in campaign.steps)
    )
    wall = [note["wall"] - note["at"] for note in notes]
    jumps = Counter(
        "forward" if late > early else "back" for early, late in pairwise(wall) if abs(late - early) > HOUR / 2
    )
    offsets = (0, *campaign.size.offsets)
    forward = sum(late > early for early, late in pairwise(offsets))
    report.at_least("steps forward that workers saw", jumps["forward"], forward)
    report.at_least("steps back that workers saw", jumps["back"], len(offsets) - 1 - forward)
    report.figure("longest time without progress after a step forward, s", max(waits[True]))
    report.figure("longest time without progress after a step back, s", max(waits[False]))


def prove(size: Size, seed: int, folder: Path, report: Report) -> None:
    try:
        clock = SkewedClock()
    except ClockMissing as error:
        report.broken(str(error))
        return
    started = elapsed()
    with clock, Crew(__file__, folder, env=clock.env) as crew:
        campaign = Campaign(size, random.Random(seed), folder, crew, report, f"sqlite:///{folder}/locks.db")
        campaign.clock = clock
        try:
            campaign.run()
        finally:
            for worker in crew.workers:
                worker.kill()
                clock.forget(worker.pid)
    seen = counter.check(campaign, "")
    check_steps(campaign)
    real = all(started < note["at"] < elapsed() for note in crew.notes())
    report.demand("the boot-time clock was moved as well: the campaign is invalid", kept=real)
    stops = len(campaign.job["stop"])
    report.at_least("kills (-9) before a step back", campaign.faults["kills"], len(campaign.job["die-before"]))
    report.figure("of them waiters", campaign.dead)
    report.at_least("pauses before a step forward", campaign.faults["stops"], stops)
    report.at_least("late writes refused by the fence", seen["late writes refused"], stops)
    report.at_least("takeovers", seen["takeovers"], len(size.offsets) // 2)
    report.figure("losses reported by LeaseLost", seen["losses reported by LeaseLost"])
    report.figure("store unavailable", seen["store unavailable"])


def work(job: dict[str, Any]) -> None:
    """Use the moved clock alone. It is moved in the processes only; on a host, file timestamps would move too."""
    sqlite_clock.TOLERANCE = math.inf
    counter.work(job)


if __name__ == "__main__":
    main(sys.argv[0], prove, small=SMALL, full=FULL, work=work)
