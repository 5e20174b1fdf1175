"""A semaphore of 3 permits and more processes than that, which are killed and paused: there are never 4 holders.

The promise is about *valid* leases: a holder counts from the moment at which its acquire returned until it releases the
lease, until the local deadline of its last renewal, or until it is killed, whichever comes first. Each worker notes
that deadline whenever it changes; it is read after the clock, so it is never too late. All workers use the boot-time
clock of the machine. Afterwards the number of holders is computed for every moment from these spans. Every holder also
writes through the fence: a holder with a valid lease must never be refused there.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.common import Crew, Journal, Report, claim, main, stretched, until

from holdfast import Client, LeaseLost, StaleToken, StoreUnavailable
from holdfast.fencing import fenced_replace
from holdfast.platform import elapsed

TTL = 1.0
PERMITS = 3
SAMPLE = 0.002
"""Seconds between two reads of a holder's own deadline."""


@dataclass(frozen=True)
class Size:
    processes: int
    entries: int
    stops: int
    """Holders that stop themselves while they hold, past their lease."""
    crashes: int
    """Holders that kill themselves while they hold."""
    kills: int
    """Kills at random moments."""
    pauses: int
    """Pauses at random moments."""
    limit: float
    """Seconds within which the campaign must finish."""


SMALL = Size(processes=8, entries=200, stops=3, crashes=2, kills=0, pauses=2, limit=60)
FULL = Size(processes=10, entries=3_000, stops=30, crashes=20, kills=8, pauses=20, limit=600)


# -- a worker ---------------------------------------------------------------------------------------


def work(job: dict[str, Any]) -> None:
    journal = Journal(job["journal"])
    chance = random.Random(job["seed"])
    with Client(job["url"], name=job["name"]) as hf:
        permit = hf.semaphore("permits", permits=PERMITS, ttl=TTL)
        while claimed := next_entry(job):
            try:
                with permit as lease:
                    stay(job, claimed, lease, journal, chance)
            except LeaseLost as error:
                journal.note("lost", token=error.token)
            except StoreUnavailable as error:
                journal.note("unavailable", error=str(error))


def next_entry(job: dict[str, Any]) -> int:
    """The number of the next entry of all workers together; 0 when there are enough."""
    fd = os.open(job["tally"], os.O_WRONLY | os.O_APPEND)
    try:
        os.write(fd, b".")
        number = os.lseek(fd, 0, os.SEEK_CUR)
    finally:
        os.close(fd)
    return number if number <= job["entries"] else 0


def stay(job: dict[str, Any], number: int, lease: Any, journal: Journal, chance: random.Random) -> None:
    """Hold the lease for a while, and note until when it is certainly valid."""
    sampler = Sampler(lease, journal)
    sampler.look("entered")
    long = chance.random() < 0.02  # longer than some renewals
    leave_at = elapsed() + (chance.uniform(1.0, 1.5) * TTL if long else chance.uniform(0, 0.12))
    while elapsed() < leave_at:
        time.sleep(SAMPLE)
        sampler.look()
        if number in job["stop"] and claim(job["folder"], f"stop-{number}"):
            os.kill(os.getpid(), signal.SIGSTOP)
        if number in job["die"] and claim(job["folder"], f"die-{number}"):
            os.kill(os.getpid(), signal.SIGKILL)
    try:
        fenced_replace(job["path"], f"{lease.token}\n", lease)
        journal.note("wrote", token=lease.token)
    except StaleToken:
        journal.note("refused", token=lease.token, valid=lease.valid)
    sampler.look("leaves")


class Sampler:
    """Notes until when the lease was certainly valid, each time that this changes."""

    def __init__(self, lease: Any, journal: Journal) -> None:
        self._lease, self._journal, self._until = lease, journal, 0.0

    def look(self, what: str = "inside") -> None:
        now = elapsed()
        until = now + self._lease.remaining() if self._lease.valid else self._until
        if what != "inside" or until > self._until + 0.01:
            self._journal.note(what, token=self._lease.token, now=now, until=until)
            self._until = until


# -- the campaign -----------------------------------------------------------------------------------


@dataclass
class Campaign:
    size: Size
    chance: random.Random
    folder: Path
    crew: Crew
    report: Report
    faults: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        size, chance = self.size, self.chance
        self.tally = self.folder / "tally"
        self.tally.write_bytes(b"")
        moments = chance.sample(range(5, size.entries - 5), size.stops + size.crashes)
        self.job = {
            "url": f"sqlite:///{self.folder}/locks.db",
            "path": str(self.folder / "shared.txt"),
            "tally": str(self.tally),
            "entries": size.entries,
            "stop": moments[: size.stops],
            "die": moments[size.stops :],
        }
        outside = ["kill"] * size.kills + ["pause"] * size.pauses
        chance.shuffle(outside)
        self.outside = dict(zip(chance.sample(range(5, size.entries - 5), len(outside)), outside, strict=True))

    def run(self) -> None:
        give_up = elapsed() + stretched(self.size.limit)
        with Client(self.job["url"]) as hf:
            while self.start_worker() or self.crew.running():
                if elapsed() > give_up:
                    self.report.broken(f"not finished within {self.size.limit} s: {self.entries()} entries")
                    return
                self.faults["stops"] += self.crew.resume_due(lambda: TTL * self.chance.uniform(1.1, 2.5))
                self.disturb()
                holders = len(hf.locks.inspect("permits").holders)
                self.faults["looks"] += 1
                self.report.demand(f"the store shows {holders} holders", kept=holders <= PERMITS)
                until(lambda: False, within=0.01)
        for failure in self.crew.failures():
            self.report.broken(failure)

    def entries(self) -> int:
        return self.tally.stat().st_size

    def start_worker(self) -> bool:
        """Replace killed workers while there is work. Returns whether there is."""
        if self.entries() >= self.size.entries:
            return False
        for _ in range(self.size.processes - len(self.crew.running())):
            self.crew.start({**self.job, "seed": self.chance.random()})
        return True

    def disturb(self) -> None:
        """Inject the faults that are due, whatever the workers are doing."""
        for moment in [moment for moment in self.outside if moment <= self.entries()]:
            fault, victims = self.outside.pop(moment), self.crew.active()
            if not victims:
                continue
            victim = self.chance.choice(victims)
            if fault == "kill":
                victim.kill()
            else:
                victim.pause(TTL * self.chance.uniform(1.1, 2.5))
                self.faults["pauses"] += 1


def spans(crew: Crew) -> list[tuple[float, float]]:
    """When each holder certainly had a valid lease: (from, until)."""
    found = []
    for worker in crew.workers:
        notes = worker.notes("entered", "inside", "leaves")
        for token in {note["token"] for note in notes}:
            mine = [note for note in notes if note["token"] == token]
            last = mine[-1]
            end = min(last["until"], worker.killed_at or last["until"])
            if last["what"] == "leaves":
                end = min(end, last["now"])
            if worker.killed_at is None and worker.process.poll() == -signal.SIGKILL and last["what"] != "leaves":
                end = min(end, last["at"])  # by its own signal, right after that line
            found.append((mine[0]["now"], end))
    return found


def sweep(found: list[tuple[float, float]]) -> tuple[Counter[int], Counter[int]]:
    """For how many seconds there were n holders, and how often a holder entered as the n-th."""
    real = [span for span in found if span[1] > span[0]]
    steps = sorted([(start, 1) for start, _ in real] + [(end, -1) for _, end in real])
    inside, before = 0, 0.0
    seconds: Counter[int] = Counter()
    times: Counter[int] = Counter()
    for moment, step in steps:  # (at the same moment, ends come before starts)
        if inside:
            seconds[inside] += moment - before  # type: ignore[assignment]  # (a Counter adds what it is given)
        inside, before = inside + step, moment
        if step > 0:
            times[inside] += 1
    return seconds, times


def prove(size: Size, seed: int, folder: Path, report: Report) -> None:
    with Crew(__file__, folder) as crew:
        campaign = Campaign(size, random.Random(seed), folder, crew, report)
        campaign.run()
        found = spans(crew)
        dead = sum(worker.process.poll() == -signal.SIGKILL for worker in crew.workers)
        refused = crew.notes("refused")
    seconds, times = sweep(found)
    report.at_least("entries", len(found), size.entries * 9 // 10)
    report.at_most("most holders at once", max(times, default=0), PERMITS)
    report.at_least("times that the last permit was taken", times[PERMITS], size.entries // 5)
    report.figure("seconds with 1, 2, 3 holders", ", ".join(f"{seconds[n]:.1f}" for n in range(1, PERMITS + 1)))
    report.at_least("reads of the lock record", campaign.faults["looks"], size.entries // 20)
    report.at_least("kills (-9)", dead, size.crashes + size.kills // 2)
    report.at_least("pauses past the lease, as a holder", campaign.faults["stops"], size.stops * 2 // 3)
    report.at_least("pauses past the lease, at random moments", campaign.faults["pauses"], size.pauses * 2 // 3)
    report.at_least("writes through the fence", len(crew.notes("wrote")), size.entries // 2)
    report.at_least("late writes refused by the fence", len(refused), size.stops // 5)
    for note in refused:
        report.demand(f"a valid holder was refused by the fence: {note}", kept=not note["valid"])
    report.figure("losses reported by LeaseLost", len(crew.notes("lost")))
    report.figure("store unavailable", len(crew.notes("unavailable")))


if __name__ == "__main__":
    main(sys.argv[0], prove, small=SMALL, full=FULL, work=work)
