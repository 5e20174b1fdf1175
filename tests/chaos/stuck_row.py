"""An open transaction locks one lock row of PostgreSQL for three times the ttl: only that key is affected.

Three processes hold hundreds of leases, and acquire and release new locks all the time. One of them also holds the lock
whose row is locked, with the same client as its other leases; the second waits for it; the third does neither. All
other leases must be kept, new locks must work in all processes, and afterwards the stuck lock must work again without
help.
"""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
from support.common import SLACK, Crew, Journal, Report, Worker, until
from support.servers import Place, main

from holdfast import Client, LeaseLost, StoreUnavailable
from holdfast.platform import elapsed

STUCK = "stuck"
STARTING = 40.0
ROLES = ("holds it", "waits for it", "elsewhere")
HOLDING = {"holds it": 3_600.0, "waits for it": 0.05}
"""Seconds for which each role holds the lock."""
SLOWEST = 0.3
"""Seconds within which another lock is acquired and released, 19 times out of 20: a busy machine may need more."""


@dataclass(frozen=True)
class Size:
    leases: int
    """Leases in each process."""
    ttl: float
    rounds: int


SMALL = Size(leases=200, ttl=1.5, rounds=1)
FULL = Size(leases=1_000, ttl=3.0, rounds=5)


# -- a process ----------------------------------------------------------------------------------------


def work(job: dict[str, Any]) -> None:
    journal, enough = Journal(job["journal"]), threading.Event()
    with Client(job["url"], name=job["name"]) as hf:
        keys = [f"{job['name']}:{number}" for number in range(job["leases"])]
        leases = [hf.lock(key, ttl=job["ttl"]).acquire() for key in keys]
        functions = [take_others] if job["role"] == "elsewhere" else [take_others, use_stuck_lock]
        threads = [threading.Thread(target=function, args=(hf, job, journal, enough)) for function in functions]
        for thread in threads:
            thread.start()
        journal.note("ready")
        sys.stdin.readline()
        enough.set()
        for thread in threads:
            thread.join()
        journal.note("kept", leases=sum(lease.valid for lease in leases))


def use_stuck_lock(hf: Client, job: dict[str, Any], journal: Journal, enough: threading.Event) -> None:
    """Hold the lock until it is lost, or wait for it; repeat."""
    while not enough.is_set():
        try:
            lease = hf.lock(STUCK, ttl=job["ttl"]).acquire()
            journal.note("has it", token=lease.token)
            until(lambda lease=lease: not lease.valid or enough.is_set(), within=HOLDING[job["role"]])
            lease.release()
        except LeaseLost as error:
            journal.note("lost it", token=error.token)
        except StoreUnavailable as error:
            journal.note("unavailable", error=str(error))


def take_others(hf: Client, job: dict[str, Any], journal: Journal, enough: threading.Event) -> None:
    """Acquire and release locks that no other process uses."""
    number = 0
    while not enough.is_set():
        number += 1
        asked = elapsed()
        hf.lock(f"{job['name']}:new:{number % 50}", ttl=job["ttl"]).acquire(wait=5).release()
        journal.note("took", seconds=elapsed() - asked)
        until(lambda: False, within=0.01)


# -- the campaign ---------------------------------------------------------------------------------------


def expiries(place: Place) -> dict[str, Any]:
    """When each of the other leases expires, read from the view `holders`, which waits for no row lock."""
    with psycopg.connect(place.server.url) as session:
        seen = session.execute("SELECT key, expires_at FROM holdfast.holders WHERE key <> %s", (STUCK,)).fetchall()
    return {key: ends for key, ends in seen if ":new:" not in key}


def hold_the_row(size: Size, place: Place, report: Report, name: str) -> tuple[float, float]:
    """Lock the row in an open transaction, as an operator might. Returns the start of this time."""
    with psycopg.connect(place.server.url) as session:
        row = session.execute("SELECT key FROM holdfast.locks WHERE key = %s FOR UPDATE", (STUCK,)).fetchone()
        begun = elapsed()
        report.demand(f"{name}: there was no row to hold", kept=row is not None)
        before = expiries(place)
        until(lambda: False, within=3 * size.ttl)
        after, ended = expiries(place), elapsed()
        session.rollback()
    moved = sum(key in after and after[key] > before[key] for key in before)
    report.at_least(f"{name}: leases renewed meanwhile", moved, len(ROLES) * size.leases)
    return begun, ended


def judge(size: Size, crew: Crew, windows: list[tuple[float, float]], report: Report, name: str) -> None:
    for role, worker in zip(ROLES, crew.workers, strict=True):
        kept = worker.notes("kept")
        count = kept[0]["leases"] if kept else 0
        report.demand(f"{name}: {role}: {size.leases - count} other leases were lost", kept=count == size.leases)
        took = [note["seconds"] for note in worker.notes("took") if any(b < note["at"] < e for b, e in windows)]
        report.at_least(f"{name}: {role}: other locks acquired meanwhile", len(took), 10 * size.rounds)
        took.sort()
        report.within(f"{name}: {role}: 19 of 20 of them within, s", took[len(took) * 19 // 20] if took else 0, SLOWEST)
        report.figure(f"{name}: {role}: slowest of them, s", took[-1] if took else 0.0)
    entries = sorted(crew.notes("has it"), key=lambda note: note["token"])
    rising = all(a["at"] < b["at"] for a, b in pairwise(entries))
    report.demand(f"{name}: tokens of the stuck lock decreased", kept=rising)
    meanwhile = [note for note in entries if any(b < note["at"] < e for b, e in windows)]
    report.demand(f"{name}: the stuck lock was granted while its row was locked", kept=not meanwhile)
    report.every(f"{name}: holders of the stuck lock that noticed the loss", len(crew.notes("lost it")), size.rounds)
    errors = crew.notes("unavailable")
    report.figure(f"{name}: errors: the row stays locked", len(errors))
    named = sum("idle in transaction" in note["error"] and "process" in note["error"] for note in errors)
    report.at_least(f"{name}: of them with the session that locks it", named, min(1, len(errors)))


def prove(size: Size, seed: int, folder: Path, report: Report, place: Place) -> None:
    del seed  # nothing is random here
    name = place.kind
    windows: list[tuple[float, float]] = []
    with Crew(sys.argv[0], folder) as crew, Client(place.url()) as hf:
        for role in ROLES:
            crew.start({"url": place.url(), "role": role, "leases": size.leases, "ttl": size.ttl})
            if not until(lambda: crew.workers[-1].notes("ready"), within=STARTING, every=0.05):
                report.broken(f"{name}: the process {role!r} did not start: {list(crew.failures())}")
                return
        for _ in range(size.rounds):
            if not until(lambda: _in_place(hf, crew.workers[0]), within=STARTING, every=0.05):
                report.broken(f"{name}: the lock did not have one holder and one waiter")
                break
            windows.append(hold_the_row(size, place, report, name))
            freed = windows[-1][1]
            again = until(
                lambda freed=freed: any(n["at"] > freed for n in crew.notes("has it")), within=size.ttl + 3 * SLACK
            )
            report.demand(f"{name}: the lock did not work again afterwards", kept=again)
            first = min((n["at"] for n in crew.notes("has it") if n["at"] > freed), default=0.0)
            report.within(f"{name}: held again after, s", round(first - freed, 2), size.ttl + 2 * SLACK)
        for worker in crew.workers:
            worker.send_line("enough")
        until(lambda: not crew.running(), within=30)
        for failure in crew.failures():
            report.broken(f"{name}: {failure}")
        judge(size, crew, windows, report, name)
    report.at_least(f"{name}: times that a row was locked for three ttls", len(windows), size.rounds)
    report.figure(f"{name}: other leases, all processes", size.leases * len(ROLES))


def _in_place(hf: Client, holder: Worker) -> bool:
    info = hf.locks.inspect(STUCK)
    return [h.pid for h in info.holders] == [holder.pid] and len(info.waiters) == 1


if __name__ == "__main__":
    main(sys.argv[0], prove, small=SMALL, full=FULL, work=work, kinds=("postgres",))
