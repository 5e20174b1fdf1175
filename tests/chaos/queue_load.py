"""Waiting costs few requests, and a release wakes only the next waiter: 20 processes in one queue on a real server.

All processes connect through a proxy that counts requests: together they send fewer than 10 per second. Then the lock
passes through the whole queue. Each process notes when it sends a command. A waiter that sends one before its sign of
life is due has been woken, and each release must wake the next waiter and no other. Finally two processes take turns,
each requesting the lock again right after its release: if the other process is known to wait, it must be next.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from support.common import Crew, Report, Worker, until
from support.servers import Place, main

from holdfast import Client
from holdfast.platform import elapsed
from holdfast.testing.proxy import Proxy
from support import controlled_processes

TTL = 30.0
"""The default of a lock."""
TRIPS = {"postgres": 2}
"""Requests per sign of life; on PostgreSQL one that locks and reads, and one that writes."""
SIGN_OF_LIFE = 2.6
"""A waiter that is not woken sends nothing for this long, in seconds."""
SECOND_LOOKS = 0.75
"""The same for the second waiter: it checks once per offer length, since the first may miss its offer."""
LONG_WAIT = 30.0
"""Seconds after which a waiter checks once more and reports that it waits."""
HAND_OVER = 1.5
"""The maximum time of a hand-over, in seconds; a waiter that is not woken checks after about 3 s."""
SETTLED = 1.5


@dataclass(frozen=True)
class Size:
    waiters: int
    commands: float
    """Maximum per second, all waiters together: each sends one about every 3 s, the second waiter every second."""
    window: float
    """Seconds of waiting in which requests are counted."""
    turns: int
    """Turns of the two processes, altogether."""
    with_waiter: int
    """The minimum number of turns with the other process known to wait: on a busy machine one is often alone."""


SMALL = Size(waiters=8, commands=6, window=6.0, turns=240, with_waiter=80)
FULL = Size(waiters=20, commands=10, window=12.0, turns=1_000, with_waiter=666)


def queue_up(crew: list[Worker], hf: Client, report: Report, name: str) -> bool:
    """Let one process hold the lock, and the others wait in the order of the list."""
    for place, process in enumerate(crew):
        if not controlled_processes.ask(process, hf, "queue", behind=place):
            report.broken(f"{name}: process {place} did not get its position in the queue")
            return False
    return True


def wait_quietly(size: Size, proxy: Proxy, report: Report, name: str) -> float:
    """Wait without any release. Returns the start of this time."""
    until(lambda: False, within=SETTLED)
    before, since = proxy.requests, elapsed()
    until(lambda: False, within=size.window)
    requests, seconds = proxy.requests - before, elapsed() - since
    report.figure(f"{name}: {size.waiters} waited for {seconds:.0f} s, requests", requests)
    report.at_least(f"{name}: of them signs of life", requests, int(size.waiters * size.window / 5))
    most = size.commands * TRIPS.get(name, 1)
    report.within(f"{name}: requests a second, all waiters together", requests / seconds, most)
    return since


def hand_on(crew: list[Worker], since: float, report: Report, name: str) -> None:
    """Let the lock pass through the queue, which has been waiting since then."""
    for holder, successor in pairwise(crew):
        holder.send_line("release")
        if not controlled_processes.acquired(successor, 1, within=15):
            report.broken(f"{name}: {successor.name} did not get the lock")
            return
    crew[-1].send_line("release")
    until(lambda: crew[-1].notes("released"), within=15)
    judge_order(crew, report, name)
    judge_waking(crew, since, report, name)


def judge_order(crew: list[Worker], report: Report, name: str) -> None:
    granted = sorted(crew, key=lambda process: process.notes("acquired")[0]["token"])
    report.demand(f"{name}: grants are not in order of arrival", kept=granted == crew)
    delays = []
    for holder, successor in pairwise(crew):
        released, got = holder.notes("releases")[0]["at"], successor.notes("acquired")[0]["at"]
        report.demand(f"{name}: {successor.name} had the lock before it was released", kept=released < got)
        delays.append(got - released)
    report.at_least(f"{name}: hand-overs in order of arrival", len(delays), len(crew) - 1)
    report.figure(f"{name}: hand-over, median, ms", round(1_000 * median(delays), 1))
    report.within(f"{name}: hand-over, slowest, s", round(max(delays), 3), HAND_OVER)


def judge_waking(crew: list[Worker], since: float, report: Report, name: str) -> None:
    """Check which waiters were woken, and whether each was next."""
    right = 0
    for predecessor, process in pairwise(crew):
        released, got = predecessor.notes("releases")[0]["at"], process.notes("acquired")[0]["at"]
        woken = [at for at in woken_asks(process, since) if at < got]
        mine = [at for at in woken if at > released]
        report.demand(
            f"{name}: {process.name} was woken {len(woken) - len(mine)} times when it was not next", kept=woken == mine
        )
        report.demand(f"{name}: {process.name} sent {len(mine)} commands when it was next", kept=len(mine) <= 1)
        right += len(mine) == 1
    report.at_least(f"{name}: releases that woke only the next waiter", right, (len(crew) - 1) * 4 // 5)
    failed = sum(note["outcome"] == "Failed" for process in crew for note in process.notes("answered"))
    report.figure(f"{name}: times that a row was in use for too long", failed)


def woken_asks(process: Worker, since: float) -> list[float]:
    """When it sent a command although no sign of life was due and its last command had an outcome."""
    asked = process.notes("asks")[0]["at"]
    return [
        late["at"]
        for early, late in pairwise(process.notes("sent"))
        if late["at"] > since
        and late["at"] - early["at"] < soonest(process, early["at"], late["at"])
        and abs(late["at"] - asked - LONG_WAIT) > 0.5
        and not in_vain(process, early["at"], late["at"])
    ]


def soonest(process: Worker, early: float, late: float) -> float:
    """How soon it may send the next command without being woken, according to the last outcome."""
    positions = [note["position"] for note in process.notes("answered") if early < note["at"] < late]
    return SECOND_LOOKS if positions[-1:] == [1] else SIGN_OF_LIFE


def in_vain(process: Worker, early: float, late: float) -> bool:
    """Whether its command had to be sent again: the row was in use, perhaps by a process that was not scheduled."""
    answers = [note["outcome"] for note in process.notes("answered") if early < note["at"] < late]
    return answers[-1:] == ["Failed"]


def take_turns(size: Size, crew: list[Worker], report: Report, name: str) -> None:
    first = {process.name: len(process.notes("acquired")) for process in crew}
    for process in crew:
        process.send_line(f"alternate turns {size.turns // 2}")
    if not until(lambda: all(process.notes("done") for process in crew), within=60):
        report.broken(f"{name}: two processes did not take {size.turns} turns within 60 s")
        return
    notes = {process.name: process.notes() for process in crew}
    grants = sorted(
        (note["token"], note["at"], who)
        for who, mine in notes.items()
        for note in [note for note in mine if note["what"] == "acquired"][first[who] :]
    )
    releases = {note["token"]: note["at"] for mine in notes.values() for note in mine if note["what"] == "releases"}
    decided = alternated = 0
    for (token, _, who), (_, _, successor) in pairwise(grants):
        other = next(name for name in notes if name != who)
        if waited(notes[other], releases[token]):
            decided += 1
            alternated += successor == other
    report.figure(f"{name}: turns of two", len(grants))
    report.figure(f"{name}: of them with a change of the holder", sum(a[2] != b[2] for a, b in pairwise(grants)))
    report.at_least(f"{name}: of them with the other process waiting", decided, size.with_waiter)
    report.demand(
        f"{name}: {decided - alternated} of {decided} times the releasing process got the lock again first",
        kept=decided == alternated,
    )


def waited(notes: list[dict[str, Any]], moment: float) -> bool:
    """Whether this process knew at that moment that it was queued, and was not granted the lock yet."""
    past = [note for note in notes if note["at"] < moment and note["what"] in ("answered", "acquired")]
    return bool(past) and past[-1]["what"] == "answered" and past[-1]["outcome"] == "Queued"


def prove(size: Size, seed: int, folder: Path, report: Report, place: Place) -> None:
    del seed  # nothing is random here
    name = place.kind
    with Proxy(place.server.host, place.server.port) as proxy, Crew(sys.argv[0], folder) as crew:
        everyone = controlled_processes.start(crew, size.waiters + 1, url=place.url(proxy), ttl=TTL)
        with Client(place.url()) as hf:
            if not controlled_processes.ready(everyone):
                report.broken(f"{name}: the processes did not start: {list(crew.failures())}")
            elif queue_up(everyone, hf, report, name):
                hand_on(everyone, wait_quietly(size, proxy, report, name), report, name)
                take_turns(size, everyone[:2], report, name)
        for failure in crew.failures():
            report.broken(f"{name}: {failure}")


if __name__ == "__main__":
    main(sys.argv[0], prove, small=SMALL, full=FULL, work=controlled_processes.work)
