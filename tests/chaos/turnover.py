"""Six processes acquire one lock in turn while they are killed and paused: the lock is never idle for long.

Each holder writes a number to a file behind the fence and releases the lock after 2 ms. Every 0.4 s a process is killed
(and started again at once) or paused for 1.5 to 3 s, the first waiter as likely as the holder. The campaign counts the
writes that the fence accepted, during the faults and in the seconds after the last fault. Every accepted write must be
in the file, each one higher than the one before. The seed is fixed, so that two runs have the same faults. If a store
can work without notifications (`?wakeup=poll`), everything is repeated with waiters that poll.
"""

from __future__ import annotations

import random
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.common import Crew, Journal, Report
from support.workflow_stores import WorkflowStore, main

from holdfast import Client, HoldfastError, LeaseLost, StaleToken
from holdfast.fencing import fenced_read, fenced_replace
from holdfast.platform import elapsed

TTL = 1.0
INSIDE = 0.002
SEED = 14


@dataclass(frozen=True)
class Size:
    processes: int
    seconds: float
    """Seconds with faults."""
    rate: float
    """The minimum number of writes per second during the faults."""
    calm: float
    """Seconds after the last fault in which writes are counted."""
    after: int
    """The minimum number of writes in these seconds."""


SMALL = Size(processes=4, seconds=3, rate=1, calm=3, after=3)
"""Loose limits, since other tests run on the machine at the same time."""
FULL = Size(processes=6, seconds=25, rate=20, calm=4, after=100)


def work(job: dict[str, Any]) -> None:
    """Append lines through the fence until the process ends."""
    journal, path = Journal(job["journal"]), Path(job["path"])
    with Client(job["url"], name=job["name"]) as hf:
        journal.note("ready")
        while True:
            with suppress(StaleToken, LeaseLost, HoldfastError), hf.lock("turn", ttl=TTL) as lease:
                number = int(fenced_read(path, lease) or b"0") + 1
                time.sleep(INSIDE)
                fenced_replace(path, str(number), lease)
                journal.note("wrote", number=number)


POLLS = ("sqlite", "postgres")
"""Stores that can work without notifications."""


def prove(size: Size, _seed: int, folder: Path, report: Report, place: WorkflowStore) -> None:
    """Run the campaign on one store, with notifications and, if possible, with polling."""
    (folder / "woken").mkdir()
    take_turns(size, folder / "woken", report, place.kind, place.url(folder / "woken"))
    if place.kind in POLLS:
        (folder / "polling").mkdir()
        url = place.url(folder / "polling")
        poll = f"{url}{'&' if '?' in url else '?'}wakeup=poll"
        take_turns(size, folder / "polling", report, f"{place.kind}, polling", poll)


def take_turns(size: Size, home: Path, report: Report, name: str, url: str) -> None:
    chance = random.Random(SEED)
    path = home / "number.txt"
    path.write_text("0")
    job = {"url": url, "path": str(path)}
    with Crew(__file__, home) as crew:
        for _ in range(size.processes):
            crew.start(job)
        began = elapsed()
        while len(crew.notes("ready")) < size.processes and elapsed() < began + 30:
            time.sleep(0.05)
        began, kills, pauses = elapsed(), 0, 0
        while elapsed() < began + size.seconds:
            time.sleep(0.4)
            crew.resume_due(lambda: 0.0)
            victim = chance.choice(crew.active() or crew.running())
            if chance.random() < 0.5:
                victim.kill()
                crew.start(job)
                kills += 1
            else:
                victim.pause(chance.uniform(1.5, 3.0))
                pauses += 1
        calm = elapsed()
        while elapsed() < calm + size.calm:
            crew.resume_due(lambda: 0.0)
            time.sleep(0.05)
        ended = elapsed()
        wrote = crew.notes("wrote")
        for failure in crew.failures():
            report.broken(failure)
    last = int(path.read_text())
    numbers = sorted(note["number"] for note in wrote)
    report.demand(f"{name}: a number was written twice", kept=len(numbers) == len(set(numbers)))
    # A process may be killed between its write and its note: then a number is in the file, but not in the notes.
    report.demand(f"{name}: a write was lost", kept=not numbers or last >= numbers[-1])
    during = sum(began <= note["at"] < calm for note in wrote)
    report.at_least(f"{name}: writes a second under faults", during / (calm - began), size.rate)
    report.at_least(f"{name}: writes after the last fault", sum(calm <= n["at"] <= ended for n in wrote), size.after)
    report.at_least(f"{name}: kills (-9)", kills, 2)
    report.at_least(f"{name}: pauses", pauses, 2)


if __name__ == "__main__":
    sys.exit(main(__file__, prove, small=SMALL, full=FULL, work=work))
