"""A real server is killed and restarted, paused for longer than a lease, and flushed, while processes contend.

Four processes count in one file behind the fence, under one lock. During each fault a holder stays inside: it finds
that its lease is lost, waits until another process has counted, and writes anyway. No such write may be accepted;
tokens only increase, also after a FLUSHALL has removed their record; and after each fault every process continues
without help. That there are never two holders is promised for kill and pause, where no data is lost; after a FLUSHALL
only the fence protects.
"""

from __future__ import annotations

import random
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from support.common import SLACK, WAITING_LEASE, Crew, Report, until
from support.sections import Sections, work
from support.servers import Place, main

from holdfast.platform import elapsed

KEYS = ("counter",)
STARTING = 30.0
DOWN = {"killed": 1.6, "killed, back at once": 0.0, "paused": 1.6, "paused shortly": 0.3, "flushed": 0.0}
"""For how many ttls the server is away."""
LOSES = {"killed", "paused", "flushed"}
"""Faults that no lease survives."""


@dataclass(frozen=True)
class Size:
    processes: int
    ttl: float
    patience: float | None
    """The timeout for a reply, in seconds (None: the default of the store)."""
    between: int
    """Increments between two faults."""
    rounds: int
    """How often each fault happens."""


SMALL = Size(processes=4, ttl=1.0, patience=1.0, between=15, rounds=1)
FULL = Size(processes=4, ttl=1.5, patience=None, between=50, rounds=6)


def strike(what: str, ttl: float, place: Place, sections: Sections) -> None:
    """Inject one fault, from its start to its end."""
    server, away = place.server, ttl * DOWN[what]
    if what == "flushed":
        sections.moments.append(elapsed())
        place.forget_everything()
        sections.moments.append(elapsed())
    elif what.startswith("killed"):
        server.kill()
        until(lambda: False, within=away)
        server.restart()
    else:
        server.pause()
        until(lambda: False, within=away)
        server.resume()


def campaign(size: Size, chance: random.Random, report: Report, place: Place, sections: Sections) -> Counter[str]:
    """Inject all faults, one after the other; the next one when every process has continued."""
    name, faults = place.kind, Counter[str]()
    within = 2 * size.ttl + WAITING_LEASE + (size.patience or 5.0) + SLACK
    if sections.going_on(0, within=STARTING) is None:
        report.broken(f"{name}: the workers did not start: {list(sections.crew.failures())}")
        return faults
    planned = [what for what in DOWN for _ in range(size.rounds) if what != "flushed" or not place.is_postgres]
    chance.shuffle(planned)
    slowest: dict[str, float] = {}
    for what in planned:
        sections.count_on(size.between, within=within)
        if not sections.give_baton(size.ttl * (DOWN[what] + (2.0 if what in LOSES else 1.0)), within=within):
            report.broken(f"{name}: no worker entered within the time, before the server was {what}")
            break
        until(lambda: False, within=chance.uniform(0, size.ttl / 4))
        strike(what, size.ttl, place, sections)
        faults[what] += 1
        delay = sections.going_on(elapsed(), within=within)
        if delay is None:
            report.broken(f"{name}: after the server was {what}, a worker did not continue within {within:g} s")
            break
        slowest[what] = max(delay, slowest.get(what, 0.0))
    sections.close(within=within)
    for what in dict.fromkeys(planned):
        report.at_least(f"{name}: {what}", faults[what], size.rounds)
        report.figure(f"{name}: {what}: until the last continued, s", round(slowest.get(what, 0.0), 2))
    return faults


def prove(size: Size, seed: int, folder: Path, report: Report, place: Place) -> None:
    chance, name = random.Random(seed), place.kind
    with Crew(sys.argv[0], folder) as crew:
        sections = Sections(crew, folder, report, name=name, keys=KEYS)
        for _ in range(size.processes):
            sections.start(url=place.url(patience=size.patience), ttl=size.ttl, seed=chance.random())
        faults = campaign(size, chance, report, place, sections)
        seen = sections.judge()
    lost = sum(faults[what] for what in LOSES)
    report.at_least(f"{name}: entries", seen["entered"], size.between * faults.total())
    report.at_least(f"{name}: entries that had to wait", seen["waited"], size.between // 2 * faults.total())
    report.at_least(f"{name}: holders that noticed a loss inside", seen["losses noticed inside"], lost)
    report.at_least(f"{name}: late writes refused by the fence", seen["refused"], lost)
    report.figure(f"{name}: stale writers without a successor in time", seen["not overtaken"])
    report.figure(f"{name}: errors: the store cannot be reached", seen["unavailable"])


if __name__ == "__main__":
    main(sys.argv[0], prove, small=SMALL, full=FULL, work=work)
