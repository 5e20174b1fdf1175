"""Runs on PostgreSQL: one record of a journal against one bare commit of such a row, and a hundred in one statement.

The floor is a prepared insert of a row of an entry's size into a table with the journal's key, committed alone, by the
same driver; the server waits for the disk.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import psycopg
from common import Figure, alternate, median, ratio

from holdfast import commands as c
from holdfast.commands import runs as r
from holdfast.rules.lock_record import Label
from holdfast.rules.runs.record import NewRun, Run, worker_key
from holdfast.stores import open_store
from holdfast.stores.contract import Connection
from holdfast.testing import servers

BLOCKS = 9
RECORDS = 300
BATCHES = 20
MANY = 100
ENTRY = '["step","charge",{"total":1.50,"more":"' + "x" * 120 + '"}]'


def bare_inserts(url: str) -> Callable[[], float]:
    """Seconds for one commit of one row."""
    db = psycopg.connect(url, autocommit=True, prepare_threshold=0)
    db.execute("CREATE TABLE bare (ns text, run text, n bigint, v text, PRIMARY KEY (ns, run, n))")
    numbers = iter(range(10**9))

    def measure() -> float:
        begun = time.perf_counter()
        for _ in range(RECORDS):
            db.execute("INSERT INTO bare VALUES (%s, %s, %s, %s)", ("bench", "run", next(numbers), ENTRY))
        return (time.perf_counter() - begun) / RECORDS

    return measure


class Journal:
    """Records of runs that one worker drives."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        lease = c.Acquire(key=worker_key("w.1"), id="w.1", label=Label(name="w"), kind="worker", ttl=10**12)
        connection.execute([lease, r.RegisterWorker(worker="w.1", name="w", types=("order",))])
        starts = [NewRun(id=f"run-{n:04}", type="order", input="1", request=f"s.{n}") for n in range(MANY)]
        started = connection.execute([r.StartRun(new=new, worker="w.1") for new in starts])
        self._runs: list[Run] = [outcome.run for outcome in started]  # type: ignore[attr-defined]
        self._lengths = [1] * MANY

    def record(self, size: int, times: int) -> float:
        """Seconds for a batch of so many records, each of another run."""
        begun = time.perf_counter()
        for _ in range(times):
            outcomes = self._connection.execute([self._next(place) for place in range(size)])
            if any(type(outcome).__name__ != "Recorded" for outcome in outcomes):
                raise RuntimeError(f"not all was recorded: {outcomes}")
        return (time.perf_counter() - begun) / times

    def _next(self, place: int) -> r.RecordRun:
        run, at = self._runs[place], self._lengths[place]
        self._lengths[place] += 1
        return r.RecordRun(run=run.id, fence=run.fence, at=at, request=f"q.{place}.{at}", entries=(ENTRY,))


def figures() -> list[Figure]:
    with servers.postgres() as server:
        store = open_store(server.url, namespace="bench")
        connection = store.connect("commands")
        journal = Journal(connection)
        one, floor, many = alternate(
            lambda: journal.record(1, RECORDS),
            bare_inserts(server.url),
            lambda: journal.record(MANY, BATCHES),
            rounds=BLOCKS,
        )
        connection.close()
        store.close()
    each = (median(many) - median(one)) / (MANY - 1) * 1e6
    return [
        Figure(
            f"{server.kind} {server.version}, one caller: one entry of a run's journal",
            ratio(one, floor),
            1.8,
            "x a bare commit of one row",
            f"{median(one) * 1e6:.0f} µs against {median(floor) * 1e6:.0f} µs",
        ),
        Figure(
            f"{server.kind} {server.version}, {MANY} entries of as many runs in one statement",
            each,
            50,
            "µs each, on top of one",
            f"{median(many) * 1e6:.0f} µs for all",
        ),
    ]
