"""Under a limit the number of rows stays constant and a SQLite file does not grow; a purge hardly disturbs others.

Rows and bytes are counted, on a clock that the test sets. How much a purge slows other work down is measured: it is
printed, and judged only at full size (`make test-growth`).
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
import threading
from contextlib import closing

import psycopg
import pytest
from providers import PROVIDERS, sql_session

from holdfast import Client, Context, Engine, workflow
from holdfast import commands as c
from holdfast.commands import runs as r
from holdfast.platform import elapsed
from holdfast.rules.runs.outcomes import Started
from holdfast.rules.runs.record import Finish, NewRun, worker_key
from holdfast.runtime.flows import Submit
from holdfast.stores import open_store
from holdfast.testing.builders import ME, SECOND, ManualClock
from holdfast.workflow.purging import Purge, checked_request

FULL = os.environ.get("HOLDFAST_GROWTH") == "full"
A_DAY = 100 if FULL else 6
"""How many trees begin and end on a day."""
STEP = 1 if FULL else 5
"""Each so many days."""
DAY = 24 * 3_600
RUNS = 100_000 if FULL else 600
"""How many runs are purged beside an engine with work."""
SMALL = pytest.mark.skipif(FULL, reason="MariaDB is tested at the small size")
LONGEST = 600.0
"""Seconds that any part may need."""


def purged(connection, older_than):
    """Purge once by this connection, without any rest."""
    purge = Purge(checked_request(older_than=older_than))
    flow, answer = purge.run(), None
    try:
        while True:
            request = flow.send(answer)
            answer = connection.execute([request.command])[0] if isinstance(request, Submit) else False
    except StopIteration:
        return purge.report


def one_day(connection, day):
    """Start and end trees of two runs, with a key, an attribute, a signal, state and some entries each."""
    roots = [f"d{day}-{n}" for n in range(A_DAY)]
    new = [
        NewRun(
            id=root, type="daily", input='"input"', request=f"start {root}", key=f"key {root}", attributes={"day": day}
        )
        for root in roots
    ]
    started = connection.execute([r.StartRun(new=one, worker="w.1") for one in new])
    runs = [outcome.run for outcome in started if isinstance(outcome, Started)]
    assert len(runs) == A_DAY
    done = Finish("completed", '"' + "r" * 100 + '"')
    children = [NewRun(id=f"{run.id}/c", type="d", input="1", request="c", parent=run.id, root=run.id) for run in runs]
    commands: list[c.Command] = []
    for run, child in zip(runs, children, strict=True):
        signal = r.RunEvent(kind="signal", name="go", key=f"{run.id}")
        entries = tuple('"' + "e" * 100 + '"' for _ in range(5))
        commands += [
            r.PostEvent(run=run.id, event=signal),
            r.RecordRun(run=run.id, fence=run.fence, at=1, request="q", entries=entries, seen=1, children=(child,)),
            r.FailRun(run=child.id, fence=0, reason="null", request="end"),
            c.SwapSlot(address=("execution", run.id, "k"), request=f"{run.id}.1", expected="", version=0, value="1"),
            r.RecordRun(run=run.id, fence=run.fence, at=6, request="end", seen=2, then=done),
        ]
    assert not any(isinstance(outcome, c.Failed) for outcome in connection.execute(commands))


def rows_of(url):
    """The number of rows of each table."""
    tables = ("runs", "journal", "events", "slots", "records", "run_attributes")
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as db:
            return {table: db.execute(f"SELECT count(*) FROM {table}").fetchone()[0] for table in tables}
    if url.startswith("mariadb"):
        with sql_session(url) as (session, names):
            counts = session.read([f"SELECT count(*) FROM {getattr(names, table)}" for table in tables[:-1]])
        return {table: rows[0][0] for table, rows in zip(tables, counts, strict=False)}
    address, _, schema = url.partition("?schema=")
    with psycopg.connect(address) as db:
        return {table: db.execute(f"SELECT count(*) FROM {schema}.{table}").fetchone()[0] for table in tables[:-1]}


def size_of(file):
    """The size of a SQLite file with all that is in its log, whose own size is limited."""
    with closing(sqlite3.connect(file)) as db:
        assert db.execute("PRAGMA wal_checkpoint(FULL)").fetchone()[0] == 0
    return file.stat().st_size


@pytest.mark.parametrize("name", ["sqlite", "postgres", pytest.param("mariadb", marks=SMALL)])
def test_a_year_under_a_limit_has_constant_row_counts_and_a_file_of_constant_size(name, tmp_path):
    url, clock = PROVIDERS[name].url(tmp_path), ManualClock()
    store = open_store(url, namespace="default", clock=clock)
    connection = store.connect("commands")
    ttl = 400 * DAY * SECOND
    connection.execute(
        [
            c.Acquire(key=worker_key("w.1"), id="w.1", label=ME, kind="worker", ttl=ttl),
            r.RegisterWorker(worker="w.1", name="w", types=("daily",)),
        ]
    )
    counts, sizes = {}, {}
    for day in range(0, 365, STEP):
        one_day(connection, day)
        clock.pass_by(STEP * DAY)
        purged(connection, "30 days")
        if day in (30, 40, 360):
            counts[day] = rows_of(url)
            sizes[day] = size_of(tmp_path / "locks.db") if name == "sqlite" else 0
    connection.close()
    store.close()
    sys.stdout.write(f"{name}: rows {counts[360]}, bytes after a month {sizes[30]}, after a year {sizes[360]}\n")
    assert counts[30] == counts[40] == counts[360]
    assert counts[360]["runs"] == 2 * 30 // STEP * A_DAY
    assert sizes[360] <= 1.5 * sizes[30]


@workflow
async def work(ctx: Context, steps: int) -> int:
    for _ in range(steps):
        await ctx.step("count", lambda: 1)
    return steps


@workflow
async def rests(ctx: Context) -> str:
    return await ctx.wait_for_signal("go")


def filled(url):
    """Many ended runs, a tenth of them below others."""
    with Client(url) as hf:
        connection = hf.runtime.store.connect("commands")
        for first in range(0, RUNS, 200):
            names = [f"old-{n}" for n in range(first, min(first + 200, RUNS))]
            new = [
                NewRun(id=name, type="old", input='"input"', request=name, parent=parent, root=parent)
                for place, name in enumerate(names)
                for parent in ("" if place % 10 else names[place + 1],)
            ]
            connection.execute([r.StartRun(new=one) for one in new])
            connection.execute([r.FailRun(run=one.id, fence=0, reason="null", request="end") for one in new])
        connection.close()


async def rate(engine, seconds, until):
    """How many runs of two steps end in a second, while 20 are driven at once, until the event is set."""
    ended, began = 0, elapsed()

    async def one():
        nonlocal ended
        while elapsed() < began + seconds or not until.is_set():
            await (await engine.start(work, 2)).result()
            ended += 1

    await asyncio.wait_for(asyncio.gather(*(one() for _ in range(20))), LONGEST)
    return ended / (elapsed() - began)


@pytest.mark.parametrize("name", ["sqlite", "postgres", "valkey", pytest.param("mariadb", marks=SMALL)])
def test_a_purge_of_many_runs_touches_nothing_that_lives_and_leaves_throughput_to_others(name, tmp_path):
    url = PROVIDERS[name].url(tmp_path)
    filled(url)
    reports = []

    def purge(done):
        with Client(url) as hf:
            reports.append(hf.runs.purge(older_than=0, workflow="old"))
        done.set()

    async def main():
        async with Engine(url, workflows=[work, rests]) as engine:
            living = [await engine.start(rests, id=f"living-{n}") for n in range(20)]
            always, done = threading.Event(), threading.Event()
            always.set()
            seconds = 10 if FULL else 0.5
            before = await rate(engine, seconds, always)
            purging = threading.Thread(target=purge, args=(done,))
            began = elapsed()
            purging.start()
            beside = await rate(engine, 0, done)
            took = elapsed() - began
            purging.join()
            after = await rate(engine, seconds, always)
            alone = (before + after) / 2
            sys.stdout.write(
                f"{name}: {alone:.0f} runs/s alone, {beside:.0f} beside a purge of {RUNS} runs in {took:.1f} s: "
                f"{beside / alone:.2f}\n"
            )
            assert reports[0].runs == RUNS
            for handle in living:
                await handle.signal("go", "on")
            assert [await handle.result() for handle in living] == ["on"] * len(living)
            if FULL:
                assert beside >= 0.8 * alone

    asyncio.run(main())
