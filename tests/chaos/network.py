"""A bad network between clients and a real server: no lock is lost or held twice without an error at its holder.

Processes acquire, hold and release locks through a proxy, and count in files behind the fence. The proxy cuts, refuses,
stalls, delays and drops one direction, for shorter and for longer than a lease, each time while a worker holds a lock.
After each fault every process must continue without help. The checks are in sections.py. In addition, through a second
proxy, the reply of each kind of command is lost once (lost_replies_tcp.py).
"""

from __future__ import annotations

import random
import sys
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from support.common import SLACK, WAITING_LEASE, Crew, Report, until
from support.lost_replies_tcp import lose_each_once
from support.sections import Sections, work
from support.servers import Place, main

from holdfast.platform import elapsed
from holdfast.testing.proxy import Proxy

KEYS = ("one", "two")
STARTING = 30.0


class Fault(NamedTuple):
    begin: Callable[[Proxy], None]
    lasts: float
    """The duration of the fault, in ttls."""
    survived: bool
    """Whether a lease survives it: the fault is shorter than two thirds of a ttl."""


def _refuse(proxy: Proxy) -> None:
    proxy.refuse()
    proxy.cut()


FAULTS = {
    "cut": Fault(lambda proxy: proxy.cut(), 0.0, survived=True),
    "short stall": Fault(lambda proxy: proxy.stall(), 0.3, survived=True),
    "delay": Fault(lambda proxy: proxy.delay(0.05), 1.5, survived=True),
    "long stall": Fault(lambda proxy: proxy.stall(), 1.6, survived=False),
    "refused": Fault(_refuse, 1.6, survived=False),
    "answers lost": Fault(lambda proxy: proxy.half_open("to_client"), 1.6, survived=False),
    "requests lost": Fault(lambda proxy: proxy.half_open("to_server"), 1.6, survived=False),
}


@dataclass(frozen=True)
class Size:
    processes: int
    threads: int
    ttl: float
    patience: float | None
    """The timeout for a reply, in seconds (None: the default of the store)."""
    between: int
    """Increments between two faults."""
    rounds: int
    """How often each fault happens, and each reply is lost."""


SMALL = Size(processes=3, threads=2, ttl=1.0, patience=1.0, between=15, rounds=1)
FULL = Size(processes=4, threads=2, ttl=1.5, patience=None, between=50, rounds=5)


def storm(size: Size, chance: random.Random, folder: Path, report: Report, place: Place) -> None:
    name = place.kind
    within = 2 * size.ttl + WAITING_LEASE + (size.patience or 5.0) + SLACK
    faults: Counter[str] = Counter()
    delays: list[float] = []
    lost = 0
    begun: list[tuple[float, str]] = []
    with Proxy(place.server.host, place.server.port) as proxy, Crew(sys.argv[0], folder) as crew:
        sections = Sections(crew, folder, report, name=name, keys=KEYS)
        for _ in range(size.processes):
            sections.start(
                url=place.url(proxy, patience=size.patience), ttl=size.ttl, seed=chance.random(), threads=size.threads
            )
        if sections.going_on(0, within=STARTING) is None:
            report.broken(f"{name}: the workers did not start: {list(crew.failures())}")
            return
        planned = [what for what in FAULTS for _ in range(size.rounds)]
        chance.shuffle(planned)
        for what in planned:
            fault = FAULTS[what]
            begun.append((elapsed(), what))
            linger = size.ttl * (fault.lasts + (1.0 if fault.survived else 2.0))
            sections.count_on(size.between, within=within)
            if not sections.give_baton(linger, within=within):
                report.broken(f"{name}: no worker entered within the time, before {what}")
                return
            until(lambda: False, within=chance.uniform(0, size.ttl / 4))
            fault.begin(proxy)
            until(lambda: False, within=size.ttl * fault.lasts)
            proxy.go_on()
            faults[what] += 1
            lost += not fault.survived
            delay = sections.going_on(elapsed(), within=within)
            if delay is None:
                report.broken(f"{name}: after {what} a worker did not continue within {within:g} s")
                break
            delays.append(delay)
        sections.close(within=within)
        seen = sections.judge()
        connections, dropped = proxy.connections, proxy.bytes_dropped
    for what in FAULTS:
        report.at_least(f"{name}: {what}", faults[what], size.rounds)
    report.at_least(f"{name}: entries", seen["entered"], size.between * len(planned))
    report.at_least(f"{name}: entries that had to wait", seen["waited"], size.between // 2 * len(planned))
    report.at_least(f"{name}: counted", seen["counted"], size.between * len(planned))
    report.at_least(f"{name}: holders that noticed a loss inside", seen["losses noticed inside"], lost)
    report.at_least(f"{name}: late writes refused by the fence", seen["refused"], lost // 2)
    fallen = too_early(crew, begun)
    allowed = max(1, (len(planned) - lost) // 5)  # a busy machine may need longer than the rest of a ttl
    report.within(f"{name}: leases lost by a shorter fault ({', '.join(fallen) or 'none'})", len(fallen), allowed)
    report.figure(f"{name}: stale writers without a successor in time", seen["not overtaken"])
    report.figure(f"{name}: errors: the store cannot be reached", seen["unavailable"])
    report.figure(f"{name}: connections made, bytes lost", f"{connections}, {dropped}")
    report.within(f"{name}: until the last worker continued, s", round(max(delays, default=0), 2), within)


def too_early(crew: Crew, begun: list[tuple[float, str]]) -> list[str]:
    """The faults that leases should have survived and did not."""
    entered_times = [note["entered"] for note in crew.notes("held") if note["baton"] and note["lost"]]
    names = [max((moment, what) for moment, what in begun if moment < entered)[1] for entered in entered_times]
    return [what for what in names if FAULTS[what].survived]


def prove(size: Size, seed: int, folder: Path, report: Report, place: Place) -> None:
    replies = threading.Thread(target=lose_each_once, args=(place, report, size.rounds))
    replies.start()
    storm(size, random.Random(seed), folder, report, place)
    replies.join()


if __name__ == "__main__":
    main(sys.argv[0], prove, small=SMALL, full=FULL, work=work)
