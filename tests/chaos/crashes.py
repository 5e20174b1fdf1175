"""A process is killed with -9 at every commit of a workflow, and another process finishes the runs.

The workflow has steps, parallel steps of equal names, a sleep, a signal, an update, an approval, a child, retries,
heartbeats, a shared state and a transaction; beside it one run is cancelled, one is retried, one has three
generations and is forked and imported, and one is blocked, given up and purged; the child and the retried run have
limits. Just before and just after each kind of commit there is a named failpoint (`runtime/failpoints.py`). For each
failpoint, a process executes the workflow and is killed there, and a second process continues. The results must be
right, the state changed once, the transaction executed once, each step executed at least once and always under the
same key, and never two bodies of one step at a time.
"""

from __future__ import annotations

import multiprocessing
import sqlite3
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
from support.common import Report, stretched
from support.full_workflow import Log
from support.workflow_stores import WorkflowStore, main

from holdfast import Client
from holdfast.runtime import failpoints
from support import crashing

AT_ONCE = 6
ENDS = {"died": -9, "finished": 0}
LONGEST = 60.0
KEYS = {
    "full_workflow:note", "full_workflow:note#2", "full_workflow:note#3", "full_workflow:both",
    "full_workflow:both#2", "full_workflow:blocking", "sleeper:note", "full_workflow/small:note",
    "full_workflow/small:note#2", "rounds:note", "rounds~2:note", "rounds~3:note", "rounds~3:last", "forked~3:last",
}  # fmt: skip


@dataclass(frozen=True)
class Size:
    counts: tuple[int, ...]
    """The process is killed when it reaches the point for the n-th time, for each n of these."""


SMALL = Size(counts=(1,))
FULL = Size(counts=(1, 2, 3))


def prove(size: Size, seed: int, folder: Path, report: Report, place: WorkflowStore) -> None:
    names = [name for name in failpoints.NAMES if place.transactional or "transaction" not in name]
    cases = [(name, count) for name in names for count in size.counts]
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["support.crashing"])
    with ThreadPoolExecutor(AT_ONCE) as crew:
        results = list(crew.map(partial(play, context, place, folder, report), cases))
    reached = {point for points, _ in results for point in points}
    report.figure(f"{place.kind}: killed processes", sum(died for _, died in results))
    for name in names:
        report.demand(f"{place.kind}: no process was killed at {name}", kept=name in reached)


def play(
    context: Any, place: WorkflowStore, folder: Path, report: Report, case: tuple[str, int]
) -> tuple[set[str], int]:
    """Run a process that is killed, and then a second one. Returns the point at which the first was killed."""
    point, count = case
    home = folder / f"{point} {count}".replace(" ", "-")
    home.mkdir()
    job = {
        "url": place.url(home),
        "namespace": home.name,
        "log": str(home / "log"),
        "flag": str(home / "flag"),
        "transaction": place.transactional,
        "table": f"payments_{home.name.replace('-', '_')}",
    }
    make_table(place, job)
    codes = []
    for death in ({"point": point, "count": count}, {}):
        process = context.Process(target=crashing.run, args=(job | death,))
        process.start()
        process.join(stretched(LONGEST))
        if process.exitcode is None:
            process.kill()
        codes.append(code_of(process, Log(job["log"])))
        if codes[-1] != -9:
            break
    judge(place, report, f"{place.kind}: {point} ({count})", job, codes)
    died = codes[0] == -9
    return ({point} if died else set()), int(died)


def code_of(process: Any, log: Log) -> int | None:
    """The exit code. If two threads wait at once, multiprocessing returns 255 to one of them: then the log decides."""
    if process.exitcode != 255:
        return process.exitcode
    last = [note["what"] for note in log.notes() if note["pid"] == process.pid and note["what"] in ENDS]
    return ENDS[last[-1]] if last else 255


def judge(place: WorkflowStore, report: Report, what: str, job: dict[str, Any], codes: list[int | None]) -> None:
    report.demand(f"{what}: the exit codes are {codes}", kept=codes[-1] == 0)
    notes = Log(job["log"]).notes()
    report.demand(
        f"{what}: the idempotency keys of steps are not the expected ones",
        kept={note["key"] for note in notes if "key" in note} == KEYS,
    )
    crashes = {note["pid"]: note["at"] for note in notes if note["what"] == "died"}
    bodies: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for place_, note in enumerate(notes):
        if note["what"] == "begin":
            ends = (
                later["at"]
                for later in notes[place_:]
                if later["what"] == "end" and (later["key"], later["pid"]) == (note["key"], note["pid"])
            )
            bodies[note["key"]].append((note["at"], next(ends, crashes.get(note["pid"], note["at"]))))
    for key, spans in bodies.items():
        spans.sort()
        overlap = any(later[0] < earlier[1] for earlier, later in pairwise(spans))
        report.demand(f"{what}: two bodies of {key} ran at the same time", kept=not overlap)
    if place.transactional:
        paid = payments(place, job)
        report.demand(f"{what}: paid {paid} times", kept=paid == 1)


def make_table(place: WorkflowStore, job: dict[str, Any]) -> None:
    if place.kind == "sqlite":
        Client(job["url"]).close()
        with closing(sqlite3.connect(place.file(job["url"]))) as db, db:
            db.execute(f"CREATE TABLE {job['table']} (amount INTEGER)")
    elif place.kind == "postgres":
        with psycopg.connect(job["url"]) as db:
            db.execute(f"CREATE TABLE {job['table']} (amount INTEGER)")


def payments(place: WorkflowStore, job: dict[str, Any]) -> int:
    question = f"SELECT count(*) FROM {job['table']}"
    if place.kind == "sqlite":
        with closing(sqlite3.connect(place.file(job["url"]))) as db:
            return db.execute(question).fetchone()[0]
    with psycopg.connect(job["url"]) as db:
        return db.execute(question).fetchone()[0]


if __name__ == "__main__":
    main(__file__, prove, small=SMALL, full=FULL)
