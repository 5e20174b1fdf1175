"""Workers that enter critical sections and count in files behind the fence, and the judge of what they wrote down.

Inside, a worker looks every few milliseconds whether its lease is still valid, and remembers the last time that it was.
So it can be judged without any tolerance whether two were inside at once: nobody may have entered before the last
moment at which somebody with a lower token was told that it holds. A worker that finds a baton lingers inside, and
when its lease is lost there, it waits until it was overtaken and writes all the same: the fence must refuse that.
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
"""The file that tells workers to come to an end."""
LOOK_EVERY = 0.005
OVERTAKEN_WITHIN = 12.0
"""Seconds that a stale writer waits for its successor: a waiter of a lost queue comes back within its sign of life."""
WAITED = 0.001
"""Seconds from which on somebody was in the way."""


# -- a worker ---------------------------------------------------------------------------------------


def work(job: dict[str, Any]) -> None:
    journal = Journal(job["journal"])
    with Client(job["url"], name=job["name"]) as hf:
        visitors = [Visitor(job, hf, journal, random.Random(f"{job['seed']}{n}")) for n in range(job["threads"])]
        threads = [threading.Thread(target=visitor.run) for visitor in visitors]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    journal.note("done")


@dataclass
class Visitor:
    """One thread of a worker, in and out."""

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
                    self.visit(folder / key, lease, asked)
                self.journal.note("left", key=key, token=lease.token)
            except StaleToken as error:
                self.journal.note("refused", key=key, token=self.token, line=f"read with {error.offered}")
            except LeaseLost:
                self.journal.note("lost", key=key, token=self.token)
            except StoreUnavailable as error:
                self.journal.note("unavailable", key=key, token=self.token, error=str(error))
                time.sleep(self.chance.uniform(0.02, 0.2))

    def visit(self, path: Path, lease: Any, asked: float) -> None:
        entered = elapsed()
        key, self.token = path.name, lease.token
        self.journal.note("entered", key=key, token=lease.token, waited=entered - asked)
        lines = fenced_read(path, lease).decode().splitlines()
        linger = take_baton(path.parent)
        stay = linger or self.chance.uniform(0, 0.01)
        if self.chance.random() < 0.02:
            stay = max(stay, self.job["ttl"] * self.chance.uniform(0.4, 1.3))  # longer than one renewal lasts
        valid, last_valid = True, entered
        while valid and elapsed() < entered + stay:
            now = elapsed()
            valid = lease.valid
            last_valid = now if valid else last_valid
            time.sleep(LOOK_EVERY)
        self.journal.note(
            "held",
            key=key,
            token=lease.token,
            entered=entered,
            last_valid=last_valid,
            told=not valid,
            baton=bool(linger),
        )
        if not valid and linger:
            overtaken = until(lambda: path.read_bytes().count(b"\n") > len(lines), within=OVERTAKEN_WITHIN)
            self.journal.note("overtaken" if overtaken else "not overtaken", key=key, token=lease.token)
        elif self.chance.random() < 0.5:  # (the other half trusts the fence alone)
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
    """How long to linger inside; 0 for all but the first who finds a baton."""
    baton = folder / "baton"
    try:
        seconds = float(baton.read_text())
        baton.rename(folder / "baton.taken")
    except (FileNotFoundError, ValueError):
        return 0.0
    return seconds


# -- those who watch them -----------------------------------------------------------------------------


class Sections:
    """Workers around some keys, seen from outside."""

    def __init__(self, crew: Crew, folder: Path, report: Report, *, name: str, keys: tuple[str, ...]) -> None:
        self.crew, self.folder, self.report, self.name, self.keys = crew, folder, report, name, keys
        self.moments: list[float] = []
        """When the store forgot everything: from there on only the fence protects."""
        for key in keys:
            (folder / key).write_text("")

    def start(self, *, url: str, ttl: float, seed: float, threads: int = 1) -> Worker:
        return self.crew.start({"url": url, "ttl": ttl, "seed": seed, "threads": threads, "keys": self.keys})

    def give_baton(self, linger: float, *, within: float) -> bool:
        """Have the next who enters stay inside for so long; whether somebody does."""
        (self.folder / "baton.taken").unlink(missing_ok=True)
        fresh = self.folder / "baton.new"
        fresh.write_text(str(linger))
        fresh.rename(self.folder / "baton")
        return until((self.folder / "baton.taken").exists, within=within)

    def going_on(self, since: float, *, within: float) -> float | None:
        """Seconds until the last of the workers has counted again; None if one of them does not."""
        if not until(lambda: all(last(w, "accepted") > since for w in self.crew.workers), within=within, every=0.03):
            return None
        return max(_first_after(worker, since) for worker in self.crew.workers) - since

    def count_on(self, more: int, *, within: float) -> bool:
        """Let them work undisturbed until so much more has been counted."""
        enough = self.counted() + more
        return until(lambda: self.counted() >= enough, within=within, every=0.02)

    def counted(self) -> int:
        return sum((self.folder / key).read_bytes().count(b"\n") for key in self.keys)

    def close(self, *, within: float) -> None:
        """Let all of them come to an end."""
        (self.folder / ENOUGH).touch()
        ended = until(lambda: not self.crew.running(), within=within, every=0.05)
        self.report.demand(f"{self.name}: workers did not come to an end within {within} s", kept=ended)
        for complaint in self.crew.complaints():
            self.report.broken(f"{self.name}: {complaint}")

    def judge(self) -> Counter[str]:
        """By the files and the journals alone. Returns what was seen."""
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
            seen["told inside"] += note["what"] == "held" and note["told"]
        return seen

    def _judge_time(self, key: str, notes: list[dict[str, Any]]) -> None:
        """Nobody is inside twice, and nobody is put out without a word."""
        held = sorted((note for note in notes if note["what"] == "held"), key=lambda note: note["token"])
        leaves = {note["token"]: note["at"] for note in notes if note["what"] == "leaves"}
        quietly = {note["token"] for note in notes if note["what"] == "left"}
        before: list[dict[str, Any]] = []
        for later in held:
            for older in before[-8:]:
                self.report.demand(
                    f"{self.name}: on {key} a token fell: {older['token']} was granted after {later['token']}",
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
                    f"{self.name}: a holder of {key} was overtaken, and left without a word",
                    kept=not inside or older["token"] not in quietly,
                )
            before.append(later)


def last(worker: Worker, what: str) -> float:
    """When the worker wrote this the last time, by the end of its journal."""
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
