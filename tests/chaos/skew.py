"""Clients whose clocks are an hour ahead or behind contend with clients whose clocks are right, on a real server.

The skew must have no effect. Processes queue in a random order, and get the lock in that order; some hold it for longer
than its ttl, and no other process gets it meanwhile. No lease ends early, and no loss is reported. Finally holders are
killed, and the next waiter, whatever its clock, gets the lock when the ttl is over: not sooner, and not an hour later.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from support.common import SLACK, Crew, Report, Worker, until
from support.servers import Place, main

from holdfast import Client
from holdfast.platform import elapsed
from holdfast.testing.faults import ClockMissing, SkewedClock
from support import controlled_processes

HOUR = 3_600.0
CLOCKS = {"ahead": HOUR, "right": 0.0, "behind": -HOUR}
EACH = 2
"""Processes with each clock."""
WITHIN = 30.0
PAIRS = (("ahead", "behind"), ("behind", "right"), ("right", "ahead"))
"""The clock of the killed holder, and that of the waiter behind it."""


@dataclass(frozen=True)
class Size:
    ttl: float
    rounds: int
    """How often all processes queue."""
    long_stays: int
    """In so many rounds the first process holds the lock for two and a half ttls."""


SMALL = Size(ttl=2.0, rounds=4, long_stays=1)
FULL = Size(ttl=3.0, rounds=40, long_stays=6)


class ControlledProcess(NamedTuple):
    clock: str
    worker: Worker


def queue_up(crew: list[ControlledProcess], hf: Client, key: str) -> bool:
    return all(controlled_processes.ask(process.worker, hf, key, behind=place) for place, process in enumerate(crew))


def hand_on(crew: list[ControlledProcess], number: int, stay: float) -> bool:
    """Let the lock pass through the queue; the first process holds it for a while."""
    for place, process in enumerate(crew):
        if not controlled_processes.acquired(process.worker, number, within=WITHIN):
            return False
        until(lambda: False, within=0.0 if place else stay)
        process.worker.send_line("release")
        if not until(lambda process=process: len(process.worker.notes("releases")) >= number, within=WITHIN):
            return False
    return True


def judge(crew: list[ControlledProcess], number: int, report: Report, name: str) -> None:
    """Check that grants were in the order of the list, each after the release before it."""
    tokens = [process.worker.notes("acquired")[number - 1]["token"] for process in crew]
    report.demand(f"{name}: grants are not in order of arrival", kept=tokens == sorted(set(tokens)))
    before = 0.0
    for process in crew:
        took = process.worker.notes("acquired")[number - 1]["at"]
        report.demand(f"{name}: a process with the clock {process.clock} got the lock too early", kept=took > before)
        note = process.worker.notes("releases")[number - 1]
        report.demand(f"{name}: a lease of a process with the clock {process.clock} ended early", kept=note["valid"])
        before = note["at"]


def kill_holders(size: Size, crew: list[ControlledProcess], hf: Client, report: Report, name: str) -> None:
    """Kill holders; the next waiter must get the lock when the ttl is over. Three keys at once."""
    died: dict[str, float] = {}
    heirs: dict[str, ControlledProcess] = {}
    left = list(crew)
    turns = len(crew[0].worker.notes("acquired"))
    for dead, successor in PAIRS:
        pair = [next(process for process in left if process.clock == clock) for clock in (dead, successor)]
        left = [process for process in left if process not in pair]
        key = f"{dead}-{successor}"
        if not queue_up(pair, hf, key):
            report.broken(f"{name}: no queue for {key}")
            return
        heirs[key] = pair[1]
        pair[0].worker.kill()
        died[key] = elapsed()
    for key, process in heirs.items():
        if not controlled_processes.acquired(process.worker, turns + 1, within=size.ttl + SLACK):
            report.broken(f"{name}: {key} was not taken over within {size.ttl + SLACK:g} s")
            continue
        delay = process.worker.notes("acquired")[turns]["at"] - died[key]
        earliest = size.ttl * 2 / 3 - 0.25  # renewed at most a third of a ttl ago, unless the machine is busy
        report.demand(f"{name}: {key} was taken over {delay:.2f} s after the kill", kept=delay > earliest)
        report.within(
            f"{name}: killed {key.replace('-', ', next ')}: taken over after, s", round(delay, 2), size.ttl + SLACK
        )


def prove(size: Size, seed: int, folder: Path, report: Report, place: Place) -> None:
    chance, name = random.Random(seed), place.kind
    with ExitStack() as stack:
        try:
            clocks = {what: stack.enter_context(SkewedClock(offset)) for what, offset in CLOCKS.items() if offset}
        except ClockMissing as error:
            report.broken(str(error))
            return
        crew = stack.enter_context(Crew(sys.argv[0], folder))
        everyone = []
        for what in CLOCKS:
            env = clocks[what].env if what in clocks else None
            everyone += [
                ControlledProcess(what, w)
                for w in controlled_processes.start(crew, EACH, url=place.url(), ttl=size.ttl, env=env)
            ]
        hf = stack.enter_context(Client(place.url()))
        if not controlled_processes.ready(crew.workers):
            report.broken(f"{name}: the processes did not start: {list(crew.failures())}")
            return
        orders = (chance.sample(everyone, len(everyone)) for _ in range(size.rounds))
        played = contend(size, orders, hf, report, name)
        lost = crew.notes("lost", "failed")
        report.demand(f"{name}: a loss was reported: {lost}", kept=not lost)
        if played == size.rounds:
            kill_holders(size, everyone, hf, report, name)
        for failure in crew.failures():
            report.broken(f"{name}: {failure}")
        for process in everyone:
            process.worker.kill()
            if process.clock in clocks:
                clocks[process.clock].forget(process.worker.pid)
    report_figures(size, everyone, played, report, name)


def contend(size: Size, orders: Iterator[list[ControlledProcess]], hf: Client, report: Report, name: str) -> int:
    for number in range(1, size.rounds + 1):
        order = next(orders)
        stay = 2.5 * size.ttl if number <= size.long_stays else 0.0
        if not queue_up(order, hf, "skew") or not hand_on(order, number, stay):
            report.broken(f"{name}: round {number} did not end")
            return number - 1
        judge(order, number, report, name)
    return size.rounds


def report_figures(size: Size, crew: list[ControlledProcess], played: int, report: Report, name: str) -> None:
    off = []
    for process in crew:
        note = process.worker.notes("ready")[0]
        right = next(p for p in crew if p.clock == "right").worker.notes("ready")[0]
        off.append((note["wall"] - note["at"]) - (right["wall"] - right["at"]))
    report.at_least(f"{name}: processes with a clock an hour ahead", sum(x > HOUR - 5 for x in off), EACH)
    report.at_least(f"{name}: processes with a clock an hour behind", sum(x < 5 - HOUR for x in off), EACH)
    report.at_least(f"{name}: grants in order of arrival", played * len(crew), size.rounds * len(crew))
    report.at_least(f"{name}: leases held for longer than their ttl", min(played, size.long_stays), size.long_stays)


if __name__ == "__main__":
    main(sys.argv[0], prove, small=SMALL, full=FULL, work=controlled_processes.work)
