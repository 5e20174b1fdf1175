"""What the figures share: rounds that alternate, medians, and a line of pass or miss."""

from __future__ import annotations

import os
import sqlite3
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROUNDS = 5
RECORD = "x" * 250
"""Of the size of a lock's record."""
HERE = Path(__file__).parent


@dataclass(frozen=True)
class Figure:
    """One figure: what was measured, against what, and whether it is good enough."""

    name: str
    value: float
    limit: float
    unit: str
    detail: str
    at_least: bool = False

    @property
    def passed(self) -> bool:
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def line(self) -> str:
        sign = "≥" if self.at_least else "≤"
        verdict = "pass" if self.passed else "MISS"
        return (
            f"{verdict}  {self.name}: {self.value:.2f} {self.unit} (wanted {sign} {self.limit:g})\n      {self.detail}"
        )


def alternate(*measures: Callable[[], float], rounds: int = ROUNDS) -> list[list[float]]:
    """Run the measures in turn, round after round; what slows the machine down slows all of them."""
    results: list[list[float]] = [[] for _ in measures]
    for _ in range(rounds):
        for place, measure in enumerate(measures):
            results[place].append(measure())
    return results


def median(values: list[float]) -> float:
    return statistics.median(values)


def ratio(mine: list[float], floor: list[float]) -> float:
    """The median over the rounds of mine / floor of the same round."""
    return statistics.median(a / b for a, b in zip(mine, floor, strict=True))


@contextmanager
def folder() -> Iterator[Path]:
    """A place on the disk that the working folder is on: a memory file system would know no durability."""
    with tempfile.TemporaryDirectory(prefix=".bench-", dir=HERE.parent) as name:
        yield Path(name)


def bare(path: Path | str, *, timeout: float = 10.0) -> sqlite3.Connection:
    """A file as durable as ours, and nothing else."""
    db = sqlite3.connect(path, timeout=timeout, isolation_level=None)
    db.execute("PRAGMA journal_mode=WAL")
    db.execute("PRAGMA synchronous=FULL")
    db.execute("CREATE TABLE IF NOT EXISTS t (k TEXT PRIMARY KEY, n INTEGER, v TEXT) WITHOUT ROWID")
    return db


def commit(db: sqlite3.Connection, key: str, number: int) -> None:
    """One row of a lock record's size. The number must be a new one: SQLite writes nothing where nothing changes."""
    db.execute("BEGIN IMMEDIATE")
    db.execute("INSERT INTO t VALUES (?, ?, ?) ON CONFLICT (k) DO UPDATE SET n = excluded.n", (key, number, RECORD))
    db.execute("COMMIT")


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_bytes() -> int:
    """The memory that this process uses."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def spawn(script: str, *arguments: object) -> subprocess.Popen[str]:
    """Start a helper process of the bench."""
    return subprocess.Popen(
        [sys.executable, str(HERE / script), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> str:
    """Close its input, which tells it to end; return what it printed."""
    out, _ = process.communicate(timeout=60)
    if process.returncode:
        raise RuntimeError(f"{process.args} ended with {process.returncode}")
    return out
