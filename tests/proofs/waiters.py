"""The dead in the queue: a waiter that died delays the others by no more than its own waiting lease.

Four scenes, each with real processes on a key of its own:

- head:    the first in the queue is killed while it waits, then the holder releases.
- brink:   the first in the queue is stopped, the lock is handed to it, and it is killed before it can take it.
- sleeper: the holder is killed while others merely sleep in the queue; nobody else says a word.
- all:     holder and first in the queue are killed; again nobody but a sleeper is left.

Measured is the time from the death (or from the release, whichever is later) until the survivor has the lock.
"""

from __future__ import annotations

import random
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import SLACK, WAITING_LEASE, Crew, Journal, Report, Worker, main, until

from holdfast import Client
from holdfast._platform import elapsed

TTL = 2.0
SCENES = {"head": WAITING_LEASE, "brink": WAITING_LEASE, "sleeper": TTL, "all": WAITING_LEASE}
"""The longest delay that is documented for each."""
STARTING = 30.0
"""Seconds that processes may need to start and queue up."""


@dataclass(frozen=True)
class Size:
    rounds: int
    """How often each scene is played."""


SMALL = Size(rounds=1)
FULL = Size(rounds=10)


def work(job: dict[str, Any]) -> None:
    """Wait for some keys, one thread each; a holder keeps what it got until it is told to let go."""
    journal = Journal(job["journal"])
    with Client(job["url"], name=job["name"]) as hf:

        def wait_for(key: str) -> None:
            with hf.lock(key, ttl=TTL) as lease:
                journal.note("acquired", key=key, token=lease.token)
                if job["holds"]:
                    sys.stdin.readline()
                    journal.note("releases", key=key)

        threads = [threading.Thread(target=wait_for, args=(key,)) for key in job["keys"]]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


class Round:
    """One performance of all scenes, side by side."""

    def __init__(self, number: int, url: str, crew: Crew, chance: random.Random) -> None:
        self._crew, self._url, self._chance = crew, url, chance
        self.keys = {scene: f"{scene}-{number}" for scene in SCENES}
        self.since: dict[str, float] = {}
        self.holders: dict[str, Worker] = {}
        self.victims: dict[str, Worker] = {}

    def play(self, hf: Client) -> str:
        """Play; what went wrong, if the stage could not even be set."""
        for scene, key in self.keys.items():
            self.holders[scene] = self._start([key], holds=True)
        if not until(lambda: self._all(hf, holders=1, waiters=0), within=STARTING):
            return "the holders did not get their locks"
        for scene in ("head", "brink", "all"):
            self.victims[scene] = self._start([self.keys[scene]], holds=False)
        first = {scene: self.keys[scene] for scene in self.victims}
        if not until(lambda: all(len(hf.locks.inspect(key).waiters) == 1 for key in first.values()), within=STARTING):
            return "the victims did not queue up"
        self.survivor = self._start(list(self.keys.values()), holds=False)
        if not until(lambda: all(self._queued(hf, scene) for scene in SCENES), within=STARTING):
            return "the survivor did not queue up behind the victims"
        until(lambda: False, within=self._chance.uniform(0, 3))  # somewhere between two signs of life
        return self._strike()

    def _strike(self) -> str:
        """All the deaths, and the two releases. From here on nobody speaks but the waiters."""
        for scene in ("all", "sleeper"):
            self.holders[scene].kill()
            self.since[scene] = elapsed()
        for scene in ("all", "head"):
            self.victims[scene].kill()
            self.since[scene] = elapsed()
        self.victims["brink"].pause(60)
        for scene in ("head", "brink"):
            self.holders[scene].say("let go")
        if not until(lambda: all(self.holders[s].notes("releases") for s in ("head", "brink")), within=STARTING):
            return "a holder did not let go"
        until(lambda: False, within=self._chance.uniform(0, 1))  # it died in the second before its grant
        self.victims["brink"].kill()
        for scene in ("head", "brink"):
            self.since[scene] = max(self.since.get(scene, 0), self.holders[scene].notes("releases")[0]["at"])
        return ""

    def _start(self, keys: list[str], *, holds: bool) -> Worker:
        return self._crew.start({"url": self._url, "keys": keys, "holds": holds})

    def _all(self, hf: Client, *, holders: int, waiters: int) -> bool:
        infos = [hf.locks.inspect(key) for key in self.keys.values()]
        return all((len(info.holders), len(info.waiters)) == (holders, waiters) for info in infos)

    def _queued(self, hf: Client, scene: str) -> bool:
        """Whether the survivor waits here, behind the victim if there is one."""
        pids = [waiter.pid for waiter in hf.locks.inspect(self.keys[scene]).waiters]
        victim = self.victims.get(scene)
        return pids == ([victim.pid] if victim else []) + [self.survivor.pid]

    def delays(self) -> dict[str, float]:
        """How long the survivor had to wait in each scene; those where it still waits are missing."""
        acquired = {note["key"]: note["at"] for note in self.survivor.notes("acquired")}
        return {
            scene: acquired[key] - self.since[scene]
            for scene, key in self.keys.items()
            if key in acquired and scene in self.since
        }


def prove(size: Size, seed: int, folder: Path, report: Report) -> None:
    chance, url = random.Random(seed), f"sqlite:///{folder}/locks.db"
    seen: dict[str, list[float]] = {scene: [] for scene in SCENES}
    with Crew(__file__, folder) as crew:
        for number in range(size.rounds):
            this = Round(number, url, crew, chance)
            with Client(url) as hf:
                trouble = this.play(hf)
            if trouble:
                report.broken(trouble)
                break
            until(lambda this=this: len(this.delays()) == len(SCENES), within=WAITING_LEASE + 2 * SLACK)
            for scene, delay in this.delays().items():
                seen[scene].append(delay)
            until(lambda this=this: not this.survivor.running, within=SLACK)
        kills = sum(worker.killed_at is not None for worker in crew.workers)
        for complaint in crew.complaints():
            report.broken(complaint)
    report.at_least("deaths (-9)", kills, 5 * size.rounds)
    for scene, limit in SCENES.items():
        delays = seen[scene] or [float("inf")]
        report.at_least(f"{scene}: takeovers", len(seen[scene]), size.rounds)
        report.tell(f"{scene}: shortest delay, s", min(delays))
        report.at_most(f"{scene}: longest delay, s", round(max(delays), 2), limit + SLACK)
    most = max((delay for scene in ("head", "brink", "all") for delay in seen[scene]), default=0)
    report.at_least("longest delay by a dead waiter, s", round(most, 2), 1)


if __name__ == "__main__":
    main(sys.argv[0], prove, small=SMALL, full=FULL, work=work)
