"""Processes count in a plain file under one lock, while they are killed and paused: no update is lost.

Each increment reads the file, appends one line and writes the whole file back through the fence. So the file is its own
history: a lost update would be a missing line, a stale write a token lower than the one before. Some workers stop
themselves (SIGSTOP) between reading and writing. They are continued after their lease has expired, and then write
without checking the lease, sometimes while their successor has read but not yet written. Others kill themselves
(SIGKILL) just before or just after the write. The campaign also kills and pauses workers at random moments.
`--store mongodb` (or another) runs it on a server; without it, the full size runs on SQLite, and then on each of the
stores that compare and swap. There it prints what a turn costs: round trips, and writes that were refused because
another client was faster.
"""

from __future__ import annotations

import argparse
import os
import random
import secrets
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from support.common import WAITING_LEASE, Crew, Journal, Report, Worker, claim, main, stretched, until
from support.servers import real_servers

from holdfast import Client, LeaseLost, StaleToken, StoreUnavailable
from holdfast.fencing import fenced_read, fenced_replace
from holdfast.platform import elapsed

TTL = 1.0
SPOTS = ("stop", "dawdle", "die-before", "die-after")
SHORT, LONG = 1.1 * TTL, 2.5 * TTL
"""Shortest and longest pause, in seconds; both are longer than the ttl."""


@dataclass(frozen=True)
class Size:
    processes: int
    increments: int
    stops: int
    """Workers that stop exactly between reading and writing; for half of them, the successor is slow there."""
    crashes: int
    """Workers that are killed exactly before the write, and as many exactly after it."""
    kills: int
    """Kills at random moments, two at a time."""
    pauses: int
    """Pauses at random moments."""
    limit: float
    """Seconds within which the campaign must finish."""


SWAPPING = ("mariadb", "postgres_by_sql", "mongodb", "dynamodb")
"""Stores that compare and swap."""
SMALL = Size(processes=4, increments=100, stops=2, crashes=1, kills=0, pauses=1, limit=60)
FULL = Size(processes=8, increments=2_000, stops=30, crashes=10, kills=14, pauses=14, limit=600)
BY_SQL = "_by_sql"
"""The suffix of a store that is used through the common relational implementation."""
SERVED = Size(processes=8, increments=1_600, stops=12, crashes=6, kills=6, pauses=6, limit=900)
"""The full size on a server."""
SMALL_SERVED = Size(processes=3, increments=40, stops=1, crashes=1, kills=0, pauses=1, limit=60)
"""The small size on a server."""
LONGEST_OF_ALL = 3_000.0
"""Seconds after which the campaign is aborted that runs on all of these stores."""
ONE_CLOCK = {"dynamodb": "&skew=0"}
"""All workers are on one host. With a skew, a paused worker would be continued before its lease has expired."""


# -- a worker ---------------------------------------------------------------------------------------


def work(job: dict[str, Any]) -> None:
    journal = Journal(job["journal"])
    chance = random.Random(job["seed"])
    with Client(job["url"], name=job["name"]) as hf:
        lock = hf.lock("counter", ttl=job["ttl"])
        journal.note("ready")
        more = True
        while more:
            before = costs(hf)
            try:
                with lock as lease:
                    journal.note("entered", token=lease.token)
                    more = increment(job, lease, journal, chance)
                spent = [after - earlier for after, earlier in zip(costs(hf), before, strict=True)]
                journal.note("left", token=lease.token, trips=spent[0], conflicts=spent[1])
            except StaleToken as error:
                journal.note("refused", line=f"read with {error.offered}")
            except LeaseLost as error:
                journal.note("lost", token=error.token)
            except StoreUnavailable as error:
                journal.note("unavailable", error=str(error))


def costs(hf: Client) -> tuple[int, int]:
    """Round trips and conflicts of this client's connections so far; 0 on stores that do not count them."""
    connections = [batcher._connection for batcher in hf.runtime.batchers.values()]
    inner = [getattr(one, "_connection", one) for one in connections]
    return sum(getattr(one, "trips", 0) for one in inner), sum(getattr(one, "conflicts", 0) for one in inner)


def increment(job: dict[str, Any], lease: Any, journal: Journal, chance: random.Random) -> bool:
    """Do one increment. Returns False if the count is complete."""
    path = Path(job["path"])
    lines = fenced_read(path, lease).decode().splitlines()
    number = len(lines) + 1
    if number > job["increments"]:
        return False
    spot = next((spot for spot in SPOTS if number in job[spot] and claim(job["folder"], f"{spot}-{number}")), "")
    mine = f"{number} {lease.token} {secrets.token_hex(6)} {os.getpid()}"
    journal.note("writes", number=number, line=mine, spot=spot)
    if spot == "die-before":
        os.kill(os.getpid(), signal.SIGKILL)
    if spot == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif spot == "dawdle":  # slow: meanwhile its predecessor is continued and writes
        time.sleep(LONG - TTL / 2)
    elif chance.random() < 0.5:  # (the other half relies on the fence alone)
        lease.check()
    try:
        fenced_replace(path, "\n".join([*lines, mine]) + "\n", lease)
    except StaleToken:  # leaving the block will raise LeaseLost as well
        journal.note("refused", line=mine)
        return True
    if spot == "die-after":
        os.kill(os.getpid(), signal.SIGKILL)
    journal.note("accepted", line=mine)
    return True


# -- the campaign -----------------------------------------------------------------------------------


@dataclass
class Campaign:
    """One run: workers that count, and the faults."""

    size: Size
    chance: random.Random
    folder: Path
    crew: Crew
    report: Report
    url: str = ""
    faults: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        size, chance = self.size, self.chance
        self.path = self.folder / "count.txt"
        self.path.write_text("")
        moments = chance.sample(range(2, size.increments - 1), size.stops + 2 * size.crashes)
        self.job = {
            "url": self.url or f"sqlite:///{self.folder}/locks.db",
            "path": str(self.path),
            "ttl": TTL,
            "increments": size.increments,
            "stop": moments[: size.stops],
            "dawdle": moments[: size.stops // 2],
            "die-before": moments[size.stops : size.stops + size.crashes],
            "die-after": moments[size.stops + size.crashes :],
        }
        outside = ["kill"] * (size.kills // 2) + ["pause"] * size.pauses
        chance.shuffle(outside)
        self.outside = {
            moment: fault
            for fault, moment in zip(outside, chance.sample(range(5, size.increments - 5), len(outside)), strict=True)
        }

    def run(self) -> None:
        """Count to the end; killed workers are replaced."""
        for _ in range(self.size.processes):
            self.start_worker()
        give_up = elapsed() + stretched(self.size.limit)
        while self.crew.running():
            if elapsed() > give_up:
                self.report.broken(f"not finished within {self.size.limit} s: the count is {self.count()}")
                return
            self.faults["stops"] += self.crew.resume_due(lambda: self.chance.uniform(SHORT, LONG), self.overtaken)
            self.replace_killed()
            self.disturb(self.count())
            until(lambda: False, within=0.005)
        for failure in self.crew.failures():
            self.report.broken(failure)

    def overtaken(self, worker: Worker) -> bool:
        """Whether another worker has written the number that this worker is about to write.

        True at once if the successor is slow: then the predecessor must write after the successor has read and before
        it writes. If that write were accepted, the successor would overwrite it.
        """
        number = worker.notes("writes")[-1]["number"]
        return number in self.job["dawdle"] or self.count() >= number

    def start_worker(self) -> Worker:
        return self.crew.start({**self.job, "seed": self.chance.random()})

    def count(self) -> int:
        return self.path.read_bytes().count(b"\n")

    def replace_killed(self) -> None:
        dead = [worker for worker in self.crew.workers if worker.process.poll() == -signal.SIGKILL]
        self.faults["kills"] = len(dead)
        for _ in range(self.size.processes + len(dead) - len(self.crew.workers)):
            self.start_worker()

    def disturb(self, count: int) -> None:
        """Inject the faults that are planned for this count, whatever the workers are doing."""
        for moment in [moment for moment in self.outside if moment <= count]:
            fault = self.outside.pop(moment)
            victims = self.crew.active()
            self.chance.shuffle(victims)
            if fault == "kill":
                for victim in victims[:2]:  # both at once, since each may delay the others by up to WAITING_LEASE
                    victim.kill()
            elif victims:
                victims[0].pause(self.chance.uniform(SHORT, LONG))
                self.faults["pauses"] += 1


def check(campaign: Campaign, about: str) -> dict[str, int]:
    """Check the file and the journals. Returns what the fence refused."""
    report, crew = campaign.report, campaign.crew
    lines = campaign.path.read_text().splitlines()
    report.at_least(f"{about}increments", len(lines), campaign.size.increments)
    report.demand("there are more increments than requested", kept=len(lines) <= campaign.size.increments)
    notes = crew.notes("entered", "writes", "accepted", "refused")
    unnoted = check_history(report, lines, notes, crashes=campaign.faults["kills"])
    report.figure(f"{about}writes whose worker was killed before it noted them", unnoted)
    return refusals(campaign)


def check_history(report: Report, lines: list[str], notes: list[dict[str, Any]], *, crashes: int) -> int:
    """Compare the lines of the file with the notes of the workers. Returns how many lines were not noted."""
    report.demand(
        "the lines of the file are not numbered consecutively",
        kept=[int(x.split()[0]) for x in lines] == [*range(1, len(lines) + 1)],
    )
    tokens = [int(line.split()[1]) for line in lines]
    for older, newer in pairwise(tokens):
        report.demand(f"a token decreased: {newer} wrote after {older}", kept=older < newer)
    granted = Counter(note["token"] for note in notes if note["what"] == "entered")
    report.demand("two grants had the same token", kept=all(times == 1 for times in granted.values()))

    written = set(lines)
    tried, accepted, refused = (
        {note["line"] for note in notes if note["what"] == what} for what in ("writes", "accepted", "refused")
    )
    for line in accepted - written:
        report.broken(f"an accepted update is lost: {line}")
    for line in refused & written:
        report.broken(f"a refused write is in the file: {line}")
    for line in written - tried:
        report.broken(f"a line that no worker wrote: {line}")
    unnoted = len(written - accepted)
    report.demand("more lines without a note of their worker than killed workers", kept=unnoted <= crashes)
    return unnoted


def refusals(campaign: Campaign) -> dict[str, int]:
    """How often a stale holder was detected, and by what."""
    crew = campaign.crew
    entered = sorted(note["token"] for note in crew.notes("entered"))
    left = {note["token"] for note in crew.notes("left")}
    return {
        "takeovers": sum(token not in left for token in entered[:-1]),
        "late writes refused": len(crew.notes("refused")),
        "losses reported by LeaseLost": len(crew.notes("lost")),
        "store unavailable": len(crew.notes("unavailable")),
    }


def prove(size: Size, seed: int, folder: Path, report: Report) -> None:
    wanted = store_option().parse_known_args()[0].store
    stores = [wanted] if wanted else ["sqlite", *(SWAPPING if size is FULL else ())]
    for kind in stores:
        place = folder / kind
        place.mkdir()
        about = f"{kind}: " if len(stores) > 1 else ""
        if kind == "sqlite":
            prove_on("", size, seed, place, report, about=about)
            continue
        if kind.removesuffix(BY_SQL) in real_servers.left_out():
            report.figure(f"{about}left out", real_servers.VARIABLE)
            continue
        with real_servers.server(kind.removesuffix(BY_SQL)) as server:
            url = f"sql+{server.url}" if kind.endswith(BY_SQL) else server.url + ONE_CLOCK.get(kind, "")
            prove_on(url, SERVED if size is FULL else SMALL_SERVED, seed, place, report, about=about)


def store_option() -> argparse.ArgumentParser:
    """The command line of this campaign."""
    parser = argparse.ArgumentParser()
    parser.add_argument(
        "--store",
        choices=["sqlite", *real_servers.KINDS, f"postgres{BY_SQL}"],
        help="where the lock is",
    )
    return parser


def prove_on(url: str, size: Size, seed: int, folder: Path, report: Report, *, about: str = "") -> None:
    """Run the campaign on one store; without a URL, on a SQLite file. `about` begins the names of its figures."""
    with Crew(__file__, folder) as crew:
        campaign = Campaign(size, random.Random(seed), folder, crew, report, url=url)
        campaign.run()
        seen = check(campaign, about)
        with Client(campaign.job["url"]) as hf:  # a lease of a killed worker must expire
            hf.lock("counter", ttl=TTL).acquire(wait=WAITING_LEASE + 2 * TTL).release()
        turns = crew.notes("left")
        for what in ("trips", "conflicts"):
            if any(turn[what] for turn in turns):
                report.figure(f"{about}{what} per turn", f"{sum(turn[what] for turn in turns) / len(turns):.2f}")
    crashes = 2 * size.crashes
    report.at_least(f"{about}kills (-9)", campaign.faults["kills"], crashes + size.kills // 2)
    report.at_least(f"{about}pauses past the lease, before the write", campaign.faults["stops"], size.stops)
    report.at_least(f"{about}pauses past the lease, at random moments", campaign.faults["pauses"], size.pauses)
    report.at_least(f"{about}takeovers", seen["takeovers"], (crashes + size.stops) // 2)
    report.at_least(
        f"{about}late writes refused by the fence", seen["late writes refused"], size.stops - size.stops // 2
    )
    report.at_least(f"{about}losses reported by LeaseLost", seen["losses reported by LeaseLost"], size.stops // 2)
    report.figure(f"{about}store unavailable", seen["store unavailable"])


if __name__ == "__main__":
    main(sys.argv[0], prove, small=SMALL, full=FULL, work=work, parser=store_option(), longest=LONGEST_OF_ALL)
