"""Killed and paused waiters in the queue: they delay the other waiters by at most one offer.

Six cases on each store, each with real processes on its own key:

- head:    the first waiter is killed while it waits, then the holder releases.
- many:    the same with several waiters at the head of the queue.
- brink:   the first waiter is stopped, the lock is offered to it, and it is killed before it can confirm.
- paused:  the first waiter is stopped, and the holder releases.
- sleeper: the holder is killed while the others only wait; no other process uses the lock.
- all:     the holder and the first waiter are killed; again only a waiting process is left.

Measured is the time from the kill (or from the release, whichever is later) until the surviving waiter has the lock.
"""

from __future__ import annotations

import random
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.common import SLACK, WAITING_LEASE, Crew, Journal, Report, Worker, until
from support.workflow_stores import WorkflowStore, main

from holdfast import Client
from holdfast.platform import elapsed

TTL = 2.0
"""The ttl of holders that are killed. Holders that release have a longer ttl, so that no waiter checks at its end."""
LONG_TTL = 30.0
OFFER = 1.0
"""Seconds for which an offer is valid, as documented; deliberately not imported from the code."""
CASES = ("head", "many", "brink", "paused", "sleeper", "all")
KILLED_WAITERS = ("head", "many", "brink", "paused", "all")
"""Cases in which waiters at the head of the queue are killed or paused."""
KILLED, STOPPED, HOLDER_KILLED = ("head", "many"), ("brink", "paused"), ("sleeper", "all")
TELLS_AT_ONCE = ("sqlite", "valkey", "redis")
"""Stores that detect a hint without a receiver, so that a killed waiter costs no time."""
PAUSE_SEEN = 0.9 * OFFER
"""The minimum delay, in seconds, that shows that the offer of a paused waiter had to expire."""
MORE_ROUNDS = 3
"""How many more rounds may follow until that is seen. A waiter stopped while it subscribes is passed over at once."""
STARTING = 60.0
"""Seconds that processes may need to start and queue."""


@dataclass(frozen=True)
class Size:
    rounds: int
    """How often each case is run."""
    many: int
    """How many waiters are killed together."""
    at_once: float
    """The maximum time of a takeover that waits for no expiry, in seconds."""
    after_offer: float
    """The maximum time of a takeover after an offer that expires, in seconds; for a killed holder, after its ttl."""


SMALL = Size(rounds=1, many=3, at_once=WAITING_LEASE / 2, after_offer=WAITING_LEASE / 2)
"""Loose limits, since other tests run at the same time: they still show that no position has to expire."""
FULL = Size(rounds=10, many=10, at_once=0.3, after_offer=1.5)


def work(job: dict[str, Any]) -> None:
    """Wait for some keys, one thread each; a holder keeps its lock until it receives a line."""
    journal = Journal(job["journal"])
    with Client(job["url"], name=job["name"]) as hf:

        def wait_for(key: str) -> None:
            ttl = TTL if key.partition("-")[0] in HOLDER_KILLED else LONG_TTL
            with hf.lock(key, ttl=ttl) as lease:
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
    """One run of all cases, at the same time."""

    def __init__(self, number: int, url: str, crew: Crew, chance: random.Random, many: int) -> None:
        self._crew, self._url, self._chance, self._many = crew, url, chance, many
        self.keys = {scene: f"{scene}-{number}" for scene in CASES}
        self.since: dict[str, float] = {}
        self.holders: dict[str, Worker] = {}
        self.victims: dict[str, list[Worker]] = {scene: [] for scene in CASES}

    def play(self, hf: Client) -> str:
        """Run the cases. Returns what went wrong in the preparation, or an empty string."""
        for scene, key in self.keys.items():
            self.holders[scene] = self._start([key], holds=True)
        if not until(lambda: all(self._queued(hf, scene) for scene in CASES), within=STARTING):
            return "the holders did not get their locks"
        for scene in KILLED_WAITERS:
            count = self._many if scene == "many" else 1
            self.victims[scene] = [self._start([self.keys[scene]], holds=False) for _ in range(count)]
        if not until(lambda: all(self._queued(hf, scene) for scene in CASES), within=STARTING):
            return "the waiters to be killed did not queue"
        self.survivor = self._start(list(self.keys.values()), holds=False)
        if not until(lambda: all(self._queued(hf, scene, self.survivor) for scene in CASES), within=STARTING):
            return "the surviving waiter did not queue behind the others"
        until(lambda: False, within=self._chance.uniform(0, 3))  # a random moment between two signs of life
        return self._strike()

    def _strike(self) -> str:
        """Kill, pause and release. From here on only the waiters send commands."""
        for scene in HOLDER_KILLED:
            self.holders[scene].kill()
            self.since[scene] = elapsed()
        for scene in ("all", *KILLED):
            for victim in self.victims[scene]:
                victim.kill()
            self.since[scene] = elapsed()
        for scene in STOPPED:
            self.victims[scene][0].pause(60)
        released = (*KILLED, *STOPPED)
        for scene in released:
            self.holders[scene].send_line("let go")
        if not until(lambda: all(self.holders[scene].notes("releases") for scene in released), within=STARTING):
            return "a holder did not release its lock"
        until(lambda: False, within=self._chance.uniform(0, 1))  # killed within the second of its offer
        self.victims["brink"][0].kill()
        for scene in released:
            self.since[scene] = max(self.since.get(scene, 0), self.holders[scene].notes("releases")[0]["at"])
        return ""

    def end(self) -> None:
        """Wait for the surviving waiter, and kill the remaining processes."""
        until(lambda: not self.survivor.running, within=SLACK)
        for victims in self.victims.values():
            for victim in victims:
                victim.kill()

    def _start(self, keys: list[str], *, holds: bool) -> Worker:
        return self._crew.start({"url": self._url, "keys": keys, "holds": holds})

    def _queued(self, hf: Client, scene: str, last: Worker | None = None) -> bool:
        """Whether the lock is held, the victims wait, and `last`, if given, waits behind them."""
        info = hf.locks.inspect(self.keys[scene])
        pids = [waiter.pid for waiter in info.waiters]
        behind = [last.pid] if last else []
        first = pids[: len(pids) - len(behind)]
        return (
            len(info.holders) == 1
            and sorted(first) == sorted(victim.pid for victim in self.victims[scene])
            and pids[len(first) :] == behind
        )

    def delays(self) -> dict[str, float]:
        """How long the surviving waiter waited in each case; cases in which it still waits are missing."""
        acquired = {note["key"]: note["at"] for note in self.survivor.notes("acquired")}
        return {
            scene: acquired[key] - self.since[scene]
            for scene, key in self.keys.items()
            if key in acquired and scene in self.since
        }


def prove(size: Size, seed: int, folder: Path, report: Report, place: WorkflowStore) -> None:
    chance, url = random.Random(seed), place.url(folder)
    seen: dict[str, list[float]] = {scene: [] for scene in CASES}
    with Crew(__file__, folder) as crew:
        for number in range(size.rounds + MORE_ROUNDS):
            if number >= size.rounds and max(seen["paused"], default=0) >= PAUSE_SEEN:
                break
            this = Round(number, url, crew, chance, size.many)
            with Client(url) as hf:
                trouble = this.play(hf)
            if trouble:
                report.broken(f"{place.kind}: {trouble}")
                break
            until(lambda this=this: len(this.delays()) == len(CASES), within=WAITING_LEASE + 2 * SLACK)
            for scene, delay in this.delays().items():
                seen[scene].append(delay)
            this.end()
        kills = sum(worker.killed_at is not None for worker in crew.workers)
        for failure in crew.failures():
            report.broken(f"{place.kind}: {failure}")
    report.at_least(f"{place.kind}: kills (-9)", kills, (6 + size.many) * size.rounds)
    for scene, found in seen.items():
        name, delays = f"{place.kind}, {scene}", found or [float("inf")]
        report.every(f"{name}: takeovers", len(found), size.rounds)
        report.figure(f"{name}: shortest delay, s", min(delays))
        report.within(f"{name}: longest delay, s", round(max(delays), 2), longest(size, scene, place.kind))
    for scene in STOPPED if size.rounds > 1 else ("paused",):  # in the case "brink" it depends on chance
        longest_pause = round(max(seen[scene], default=0), 2)
        report.at_least(f"{place.kind}, {scene}: longest delay by a paused waiter, s", longest_pause, PAUSE_SEEN)


def longest(size: Size, scene: str, kind: str) -> float:
    """The maximum time of a takeover, in seconds."""
    if scene in KILLED and kind in TELLS_AT_ONCE:
        return size.at_once
    return size.after_offer + (TTL if scene in HOLDER_KILLED else 0)


if __name__ == "__main__":
    main(__file__, prove, small=SMALL, full=FULL, work=work)
