"""Workflows beside DBOS on the same database with the same settings, and beside what bare SQL needs for the same rows.

The floor of a step is one bare commit of a row of an entry's size by the same driver. The floor of many runs at once is
one batch for each round of steps: every row inserted behind a check of its run's fence, one commit.
"""

from __future__ import annotations

import json
import sqlite3
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from common import Figure, alternate, bare, folder, median, ratio, spawn
from runner import AT_A_TIME, IN_LINE, MANY, PARKED, STEPS

from holdfast.testing import servers

ROUNDS = 9
COMMITS = 100
ENTRY = '{"kind":"step","at":1794826884061908,"id":"step#7","args":"6b86b273ff34fce1","value":7}'
PLACES = ("sqlite", "postgres")


class Runner:
    """A process that plays workflows when it is told to."""

    def __init__(self, who: str, url: str) -> None:
        self._process: subprocess.Popen[str] = spawn("runner.py", who, url)
        self._line()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._process.args} ended with {self._process.wait()}")
        return line

    def do(self, task: str) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{task}\n")
        self._process.stdin.flush()
        return json.loads(self._line())

    def close(self) -> None:
        self._process.communicate(timeout=60)


class SqliteFloor:
    """Bare SQLite, as durable as ours."""

    def __init__(self, path: Path) -> None:
        self._db = bare(path)
        self._db.execute("CREATE TABLE runs (id TEXT PRIMARY KEY, fence INTEGER, input TEXT) WITHOUT ROWID")
        self._db.execute("CREATE TABLE journal (run TEXT, n INTEGER, entry TEXT, PRIMARY KEY (run, n)) WITHOUT ROWID")

    def commit_one(self, n: int) -> None:
        self._db.execute("INSERT INTO journal VALUES ('one', ?, ?)", (n, ENTRY))

    def start(self, runs: list[str]) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        self._db.executemany("INSERT INTO runs VALUES (?, 1, ?)", [(run, ENTRY) for run in runs])
        self._db.execute("COMMIT")

    def record(self, runs: list[str], n: int) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        self._db.executemany(
            "INSERT INTO journal SELECT id, ?, ? FROM runs WHERE id = ? AND fence = 1",
            [(n, ENTRY, run) for run in runs],
        )
        self._db.execute("COMMIT")


class PostgresFloor:
    """Bare statements by psycopg, prepared."""

    def __init__(self, url: str) -> None:
        self._db = psycopg.connect(url, autocommit=True, prepare_threshold=0)
        self._db.execute("CREATE TABLE floor_runs (id text PRIMARY KEY, fence int, input text)")
        self._db.execute("CREATE TABLE floor_journal (run text, n int, entry text, PRIMARY KEY (run, n))")

    def commit_one(self, n: int) -> None:
        self._db.execute("INSERT INTO floor_journal VALUES ('one', %s, %s)", (n, ENTRY))

    def start(self, runs: list[str]) -> None:
        self._db.execute("INSERT INTO floor_runs SELECT unnest(%s::text[]), 1, %s", (runs, ENTRY))

    def record(self, runs: list[str], n: int) -> None:
        self._db.execute(
            "INSERT INTO floor_journal SELECT id, %s, entry FROM unnest(%s::text[], %s::text[]) AS new (run, entry) "
            "JOIN floor_runs ON id = run AND fence = 1",
            (n, runs, [ENTRY] * len(runs)),
        )


Floor = SqliteFloor | PostgresFloor


def commits_of(floor: Floor) -> Callable[[], float]:
    """Seconds for one commit of one row."""
    numbers = iter(range(10**9))

    def measure() -> float:
        begun = time.perf_counter()
        for _ in range(COMMITS):
            floor.commit_one(next(numbers))
        return (time.perf_counter() - begun) / COMMITS

    return measure


def batches_of(floor: Floor) -> Callable[[], float]:
    """Seconds for the rows of many runs, one commit for the starts and one for each round of steps."""
    rounds = iter(range(10**9))

    def measure() -> float:
        number = next(rounds)
        runs = [f"run-{number}-{n}" for n in range(MANY)]
        begun = time.perf_counter()
        floor.start(runs)
        for step in range(STEPS):
            floor.record(runs, step)
        return time.perf_counter() - begun

    return measure


@contextmanager
def sqlite_place() -> Iterator[tuple[str, str, str, Floor]]:
    with folder() as home:
        for name in ("ours.db", "dbos.db"):
            with sqlite3.connect(home / name) as db:
                db.execute("PRAGMA journal_mode=WAL")
        version = f"sqlite {sqlite3.sqlite_version}"
        yield version, f"sqlite:///{home}/ours.db", f"sqlite:///{home}/dbos.db", SqliteFloor(home / "floor.db")


@contextmanager
def postgres_place() -> Iterator[tuple[str, str, str, Floor]]:
    with servers.postgres() as server:
        yield f"{server.kind} {server.version}", server.url, server.url, PostgresFloor(server.url)


def per_place(place: str) -> list[Figure]:
    with (sqlite_place if place == "sqlite" else postgres_place)() as (name, url, dbos_url, floor):
        ours, dbos = Runner("holdfast", url), Runner("dbos", dbos_url)
        steps, dbos_steps, commits = alternate(
            lambda: float(ours.do("one")), lambda: float(dbos.do("one")), commits_of(floor), rounds=ROUNDS
        )
        many, dbos_many, batches = alternate(
            lambda: float(ours.do("many")), lambda: float(dbos.do("many")), batches_of(floor), rounds=ROUNDS
        )
        lines = alternate(lambda: float(ours.do("in_line")), lambda: float(dbos.do("in_line")), rounds=3)
        starts, dbos_starts = ours.do("starts"), dbos.do("starts")
        before, after = ours.do("parked")
        ours.close()
        dbos.close()
    commit = median(commits)
    return [
        Figure(
            f"{name}, one run after another: a step",
            ratio(steps, commits),
            2.5 if place == "sqlite" else 1.8,
            "x a bare commit",
            f"{median(steps) * 1e6:.0f} µs against {commit * 1e6:.0f} µs; DBOS {median(dbos_steps) * 1e6:.0f} µs = "
            f"{ratio(dbos_steps, commits):.1f} commits",
        ),
        Figure(
            f"{name}, {MANY} runs at once, {STEPS} steps each",
            ratio(many, batches),
            4,
            "x the bare batched fenced insert of the same rows",
            f"{median(many) * 1e3:.0f} ms against {median(batches) * 1e3:.1f} ms; "
            f"{MANY * STEPS / median(many):.0f} steps/s",
        ),
        Figure(
            f"{name}, {MANY} runs at once, {STEPS} steps each",
            ratio(dbos_many, many),
            40,
            "x as fast as DBOS",
            f"{MANY * STEPS / median(many):.0f} steps/s against {MANY * STEPS / median(dbos_many):.0f}",
            at_least=True,
        ),
        Figure(
            f"{name}, short runs behind a limit of {AT_A_TIME}",
            median(lines[0]),
            300,
            "a second",
            f"{IN_LINE} that wait in line; DBOS at its defaults {median(lines[1]):.1f} a second",
            at_least=True,
        ),
        Figure(
            f"{name}, from start() to the first line of the first step, p50",
            quantile(starts, 1, 0.5) / commit,
            6,
            "bare commits",
            "; ".join(
                f"{who}: start() returns after {quantile(seen, 0, 0.5) * 1e3:.2f} ms (p99 "
                f"{quantile(seen, 0, 0.99) * 1e3:.2f}), the step begins after {quantile(seen, 1, 0.5) * 1e3:.2f} ms "
                f"(p99 {quantile(seen, 1, 0.99) * 1e3:.2f})"
                for who, seen in (("we", starts), ("DBOS", dbos_starts))
            ),
        ),
        Figure(
            f"{name}, {PARKED:,} parked runs: memory of the engine",
            max(0.0, (after - before) / PARKED),
            1_024,
            "bytes a run",
            f"{before / 1e6:.1f} MB before, {after / 1e6:.1f} MB after",
        ),
    ]


def quantile(seen: list[tuple[float, float]], column: int, part: float) -> float:
    values = sorted(row[column] for row in seen)
    return statistics.quantiles(values, n=100)[round(part * 100) - 1]


def figures() -> list[Figure]:
    return [figure for place in PLACES for figure in per_place(place)]
