"""Waiting is quiet, and a release wakes the next in line and nobody else: 20 processes in one queue on a real server.

All of them reach the server through a proxy that counts requests: together they make fewer than 10 a second. Then the
lock goes through the whole queue. Each process writes down when it asks the store; a waiter that asks again sooner than
a sign of life is due has been woken, and that must be the next in line, each time and only that one. At last two
processes take turns, each asking again right after it let go: when the other one is known to wait, it must come next.
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
from support import puppets

TTL = 30.0
"""The default of a lock."""
TRIPS = {"postgres": 2}
"""A sign of life is one request; on PostgreSQL one that locks and reads, and one that writes."""
SIGN_OF_LIFE = 2.6
"""A waiter that is left alone does not ask sooner than this, in seconds."""
SECOND_LOOKS = 0.75
"""Nor does the second in line sooner than this: it looks once an offer, which may be missed by the first."""
LONG_WAIT = 30.0
"""After so long it looks once more and says aloud that it waits."""
HAND_OVER = 1.5
"""Seconds; who was not woken would come by itself after about three."""
SETTLED = 1.5


@dataclass(frozen=True)
class Size:
    waiters: int
    commands: float
    """A second, of all waiters together, at most: each asks about every 3 s, the second in line about every second."""
    window: float
    """Seconds of waiting in which requests are counted."""
    turns: int
    """How often two processes take the lock from each other, altogether."""
    told: int
    """So many of them with the other one known to wait: on a busy machine one is often alone for a while."""


SMALL = Size(waiters=8, commands=6, window=6.0, turns=240, told=80)
FULL = Size(waiters=20, commands=10, window=12.0, turns=1_000, told=666)


def queue_up(crew: list[Worker], hf: Client, report: Report, name: str) -> bool:
    """One holds, the others wait in the order of the list."""
    for place, puppet in enumerate(crew):
        if not puppets.ask(puppet, hf, "crowd", behind=place):
            report.broken(f"{name}: process {place} did not take its place in the queue")
            return False
    return True


def wait_quietly(size: Size, proxy: Proxy, report: Report, name: str) -> float:
    """Nothing happens; returns since when."""
    until(lambda: False, within=SETTLED)
    before, since = proxy.requests, elapsed()
    until(lambda: False, within=size.window)
    requests, seconds = proxy.requests - before, elapsed() - since
    report.tell(f"{name}: {size.waiters} waited for {seconds:.0f} s, requests", requests)
    report.at_least(f"{name}: of them signs of life", requests, int(size.waiters * size.window / 5))
    most = size.commands * TRIPS.get(name, 1)
    report.within(f"{name}: requests a second, all waiters together", requests / seconds, most)
    return since


def hand_on(crew: list[Worker], since: float, report: Report, name: str) -> None:
    """Let the lock go through the queue, which has been quiet since then."""
    for holder, heir in pairwise(crew):
        holder.say("release")
        if not puppets.acquired(heir, 1, within=15):
            report.broken(f"{name}: {heir.name} was not handed the lock")
            return
    crew[-1].say("release")
    until(lambda: crew[-1].notes("released"), within=15)
    judge_order(crew, report, name)
    judge_waking(crew, since, report, name)


def judge_order(crew: list[Worker], report: Report, name: str) -> None:
    granted = sorted(crew, key=lambda puppet: puppet.notes("acquired")[0]["token"])
    report.demand(f"{name}: the order of grants is not that of arrival", kept=granted == crew)
    delays = []
    for holder, heir in pairwise(crew):
        released, got = holder.notes("releases")[0]["at"], heir.notes("acquired")[0]["at"]
        report.demand(f"{name}: {heir.name} had the lock before it was let go", kept=released < got)
        delays.append(got - released)
    report.at_least(f"{name}: hand-overs in the order of arrival", len(delays), len(crew) - 1)
    report.tell(f"{name}: hand-over, median, ms", round(1_000 * median(delays), 1))
    report.within(f"{name}: hand-over, slowest, s", round(max(delays), 3), HAND_OVER)


def judge_waking(crew: list[Worker], since: float, report: Report, name: str) -> None:
    """Who asked sooner than it had to, and whether that was its turn."""
    right = 0
    for predecessor, puppet in pairwise(crew):
        released, got = predecessor.notes("releases")[0]["at"], puppet.notes("acquired")[0]["at"]
        woken = [at for at in woken_asks(puppet, since) if at < got]
        mine = [at for at in woken if at > released]
        report.demand(f"{name}: {puppet.name} was woken {len(woken) - len(mine)} times out of turn", kept=woken == mine)
        report.demand(f"{name}: {puppet.name} asked {len(mine)} times when it was its turn", kept=len(mine) <= 1)
        right += len(mine) == 1
    report.at_least(f"{name}: releases that woke the next in line alone", right, (len(crew) - 1) * 4 // 5)
    failed = sum(note["outcome"] == "Failed" for puppet in crew for note in puppet.notes("answered"))
    report.tell(f"{name}: times that a row was another one's for too long", failed)


def woken_asks(puppet: Worker, since: float) -> list[float]:
    """When it asked although no sign of life was due, and although what it had asked before was answered."""
    asked = puppet.notes("asks")[0]["at"]
    return [
        late["at"]
        for early, late in pairwise(puppet.notes("sent"))
        if late["at"] > since
        and late["at"] - early["at"] < soonest(puppet, early["at"], late["at"])
        and abs(late["at"] - asked - LONG_WAIT) > 0.5
        and not in_vain(puppet, early["at"], late["at"])
    ]


def soonest(puppet: Worker, early: float, late: float) -> float:
    """How soon it may ask again by itself, from what it was answered."""
    positions = [note["position"] for note in puppet.notes("answered") if early < note["at"] < late]
    return SECOND_LOOKS if positions[-1:] == [1] else SIGN_OF_LIFE


def in_vain(puppet: Worker, early: float, late: float) -> bool:
    """Whether what it asked had to be sent again: another process had the row, perhaps one without a core just now."""
    answers = [note["outcome"] for note in puppet.notes("answered") if early < note["at"] < late]
    return answers[-1:] == ["Failed"]


def take_turns(size: Size, crew: list[Worker], report: Report, name: str) -> None:
    first = {puppet.name: len(puppet.notes("acquired")) for puppet in crew}
    for puppet in crew:
        puppet.say(f"alternate turns {size.turns // 2}")
    if not until(lambda: all(puppet.notes("done") for puppet in crew), within=60):
        report.broken(f"{name}: two processes did not take {size.turns} turns within 60 s")
        return
    notes = {puppet.name: puppet.notes() for puppet in crew}
    grants = sorted(
        (note["token"], note["at"], who)
        for who, mine in notes.items()
        for note in [note for note in mine if note["what"] == "acquired"][first[who] :]
    )
    releases = {note["token"]: note["at"] for mine in notes.values() for note in mine if note["what"] == "releases"}
    decided = alternated = 0
    for (token, _, who), (_, _, heir) in pairwise(grants):
        other = next(name for name in notes if name != who)
        if waited(notes[other], releases[token]):
            decided += 1
            alternated += heir == other
    report.tell(f"{name}: turns of two", len(grants))
    report.tell(f"{name}: of them with a change", sum(a[2] != b[2] for a, b in pairwise(grants)))
    report.at_least(f"{name}: of them with the other one waiting", decided, size.told)
    report.demand(
        f"{name}: {decided - alternated} of {decided} times who let go came again first", kept=decided == alternated
    )


def waited(notes: list[dict[str, Any]], moment: float) -> bool:
    """Whether this process knew at that moment that it was in the queue, and was not through it yet."""
    past = [note for note in notes if note["at"] < moment and note["what"] in ("answered", "acquired")]
    return bool(past) and past[-1]["what"] == "answered" and past[-1]["outcome"] == "Queued"


def prove(size: Size, seed: int, folder: Path, report: Report, place: Place) -> None:
    del seed  # nothing is left to chance
    name = place.kind
    with Proxy(place.server.host, place.server.port) as proxy, Crew(sys.argv[0], folder) as crew:
        everybody = puppets.start(crew, size.waiters + 1, url=place.url(proxy), ttl=TTL)
        with Client(place.url()) as hf:
            if not puppets.ready(everybody):
                report.broken(f"{name}: the processes did not start: {list(crew.complaints())}")
            elif queue_up(everybody, hf, report, name):
                hand_on(everybody, wait_quietly(size, proxy, report, name), report, name)
                take_turns(size, everybody[:2], report, name)
        for complaint in crew.complaints():
            report.broken(f"{name}: {complaint}")


if __name__ == "__main__":
    main(sys.argv[0], prove, small=SMALL, full=FULL, work=puppets.work)
