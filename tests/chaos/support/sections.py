"""Workers that enter critical sections and count in files behind the fence, and the checks of their journals.

Inside, a worker checks its lease every few milliseconds, and notes the last time at which it was valid. So the check
for two holders at once needs no tolerance: no worker may have entered before the last moment at which the lease of a
worker with a lower token was valid. A worker that finds a baton (a file) stays inside. If its lease is lost there, it
waits until another worker has counted, and writes anyway: the fence must refuse that write.
"""

from __future__ import annotations

import json
import os
import random
import secrets
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import counter

from holdfast import Client, LeaseLost, StaleToken, StoreUnavailable
from holdfast.fencing import fenced_read, fenced_replace
from holdfast.platform import elapsed
from support.common import Crew, Journal, Report, Worker, until

ENOUGH = "enough"
"""The file whose existence makes the workers end."""
CHECK_EVERY = 0.005
OVERTAKEN_WITHIN = 12.0
"""Seconds that a stale writer waits for its successor: if the queue was lost, waiters return with a sign of life."""
WAITED = 0.001
"""Seconds above which an entry counts as having waited."""


# -- a worker ---------------------------------------------------------------------------------------


def work(job: dict[str, Any]) -> None:
    journal = Journal(job["journal"])
    with Client(job["url"], name=job["name"]) as hf:
        sections = [SectionThread(job, hf, journal, random.Random(f"{job['seed']}{n}")) for n in range(job["threads"])]
        threads = [threading.Thread(target=section.run) for section in sections]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    journal.note("done")


@dataclass
class SectionThread:
    """One thread of a worker, which enters and leaves the sections."""

    job: dict[str, Any]
    hf: Client
    journal: Journal
    chance: random.Random

    def run(self) -> None:
        folder = Path(self.job["folder"])
        while not (folder / ENOUGH).exists():
            key = self.chance.choice(self.job["keys"])
            self.token = 0
            try:
                asked = elapsed()
                with self.hf.lock(key, ttl=self.job["ttl"]) as lease:
                    self.enter(folder / key, lease, asked)
                self.journal.note("left", key=key, token=lease.token)
            except StaleToken as error:
                self.journal.note("refused", key=key, token=self.token, line=f"read with {error.offered}")
            except LeaseLost:
                self.journal.note("lost", key=key, token=self.token)
            except StoreUnavailable as error:
                self.journal.note("unavailable", key=key, token=self.token, error=str(error))
                time.sleep(self.chance.uniform(0.02, 0.2))

    def enter(self, path: Path, lease: Any, asked: float) -> None:
        entered = elapsed()
        key, self.token = path.name, lease.token
        self.journal.note("entered", key=key, token=lease.token, waited=entered - asked)
        lines = fenced_read(path, lease).decode().splitlines()
        linger = take_baton(path.parent)
        stay = linger or self.chance.uniform(0, 0.01)
        if self.chance.random() < 0.02:
            stay = max(stay, self.job["ttl"] * self.chance.uniform(0.4, 1.3))  # long enough to need a renewal
        valid, last_valid = True, entered
        while valid and elapsed() < entered + stay:
            now = elapsed()
            valid = lease.valid
            last_valid = now if valid else last_valid
            time.sleep(CHECK_EVERY)
        self.journal.note(
            "held",
            key=key,
            token=lease.token,
            entered=entered,
            last_valid=last_valid,
            lost=not valid,
            baton=bool(linger),
        )
        if not valid and linger:
            overtaken = until(lambda: path.read_bytes().count(b"\n") > len(lines), within=OVERTAKEN_WITHIN)
            self.journal.note("overtaken" if overtaken else "not overtaken", key=key, token=lease.token)
        elif self.chance.random() < 0.5:  # (the other half relies on the fence alone)
            lease.check()
        self.write(path, lines, lease)

    def write(self, path: Path, lines: list[str], lease: Any) -> None:
        mine = f"{len(lines) + 1} {lease.token} {secrets.token_hex(6)} {os.getpid()}"
        self.journal.note("writes", key=path.name, line=mine)
        try:
            fenced_replace(path, "\n".join([*lines, mine]) + "\n", lease)
        except StaleToken:  # leaving the block will raise LeaseLost as well
            self.journal.note("refused", key=path.name, token=lease.token, line=mine)
        else:
            self.journal.note("accepted", key=path.name, line=mine)
        self.journal.note("leaves", key=path.name, token=lease.token)


def take_baton(folder: Path) -> float:
    """How long to stay inside; 0 unless this is the first thread that finds the baton."""
    baton = folder / "baton"
    try:
        seconds = float(baton.read_text())
        baton.rename(folder / "baton.taken")
    except (FileNotFoundError, ValueError):
        return 0.0
    return seconds


# -- the campaign -------------------------------------------------------------------------------------


class Sections:
    """The workers and keys, from the side of the campaign."""

    def __init__(self, crew: Crew, folder: Path, report: Report, *, name: str, keys: tuple[str, ...]) -> None:
        self.crew, self.folder, self.report, self.name, self.keys = crew, folder, report, name, keys
        self.moments: list[float] = []
        """When the store lost all data: across these moments only the fence protects."""
        for key in keys:
            (folder / key).write_text("")

    def start(self, *, url: str, ttl: float, seed: float, threads: int = 1) -> Worker:
        return self.crew.start({"url": url, "ttl": ttl, "seed": seed, "threads": threads, "keys": self.keys})

    def give_baton(self, linger: float, *, within: float) -> bool:
        """Make the next worker that enters stay inside for so long. Returns whether one did."""
        (self.folder / "baton.taken").unlink(missing_ok=True)
        fresh = self.folder / "baton.new"
        fresh.write_text(str(linger))
        fresh.rename(self.folder / "baton")
        return until((self.folder / "baton.taken").exists, within=within)

    def going_on(self, since: float, *, within: float) -> float | None:
        """Seconds until every worker has counted again; None if one of them has not."""
        if not until(lambda: all(last(w, "accepted") > since for w in self.crew.workers), within=within, every=0.03):
            return None
        return max(_first_after(worker, since) for worker in self.crew.workers) - since

    def count_on(self, more: int, *, within: float) -> bool:
        """Wait, without faults, until so many more increments were made."""
        enough = self.counted() + more
        return until(lambda: self.counted() >= enough, within=within, every=0.02)

    def counted(self) -> int:
        return sum((self.folder / key).read_bytes().count(b"\n") for key in self.keys)

    def close(self, *, within: float) -> None:
        """End all workers, and report those that failed."""
        (self.folder / ENOUGH).touch()
        ended = until(lambda: not self.crew.running(), within=within, every=0.05)
        self.report.demand(f"{self.name}: workers did not end within {within} s", kept=ended)
        for failure in self.crew.failures():
            self.report.broken(f"{self.name}: {failure}")

    def judge(self) -> Counter[str]:
        """Check the files and the journals. Returns counts of what happened."""
        seen: Counter[str] = Counter()
        every = self.crew.notes()
        for key in self.keys:
            notes = [note for note in every if note.get("key") == key]
            lines = (self.folder / key).read_text().splitlines()
            counter.check_history(self.report, lines, notes, crashes=0)
            self._judge_time(key, notes)
            seen["counted"] += len(lines)
        for note in every:
            seen[note["what"]] += 1
            seen["waited"] += note["what"] == "entered" and note["waited"] > WAITED
            seen["losses noticed inside"] += note["what"] == "held" and note["lost"]
        return seen

    def _judge_time(self, key: str, notes: list[dict[str, Any]]) -> None:
        """Check that there were never two holders, and that every lost lease was reported to its holder."""
        held = sorted((note for note in notes if note["what"] == "held"), key=lambda note: note["token"])
        leaves = {note["token"]: note["at"] for note in notes if note["what"] == "leaves"}
        without_error = {note["token"] for note in notes if note["what"] == "left"}
        before: list[dict[str, Any]] = []
        for later in held:
            for older in before[-8:]:
                self.report.demand(
                    f"{self.name}: a token of {key} decreased: {older['token']} was granted after {later['token']}",
                    kept=older["entered"] <= later["entered"],
                )
                forgot = any(older["entered"] <= moment <= later["entered"] for moment in self.moments)
                both = later["entered"] < older["last_valid"]
                self.report.demand(
                    f"{self.name}: {key} had two holders for {older['last_valid'] - later['entered']:.3f} s",
                    kept=not both or forgot,
                )
                inside = older["token"] in leaves and later["entered"] < leaves[older["token"]]
                self.report.demand(
                    f"{self.name}: a holder of {key} lost its lease without an error",
                    kept=not inside or older["token"] not in without_error,
                )
            before.append(later)


def last(worker: Worker, what: str) -> float:
    """When the worker last noted this, read from the end of its journal."""
    try:
        with worker.journal.open("rb") as journal:
            journal.seek(max(0, worker.journal.stat().st_size - 4_096))
            tail = journal.read().split(b"\n")[1:-1]
    except FileNotFoundError:
        return 0.0
    found = [line for line in tail if b'"what": "%b"' % what.encode() in line]
    return float(json.loads(found[-1])["at"]) if found else 0.0


def _first_after(worker: Worker, since: float) -> float:
    return min(note["at"] for note in worker.notes("accepted") if note["at"] > since)
