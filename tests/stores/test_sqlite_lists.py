"""Lists of runs on SQLite: equal to the rule, and their cost does not depend on other runs.

Work is counted in steps of SQLite's virtual machine, which do not depend on the machine.
"""

from __future__ import annotations

import os
import random
import sqlite3
from contextlib import closing

import msgspec
import pytest
from providers import sqlite_path

from holdfast import commands as c
from holdfast.commands import runs as r
from holdfast.rules.runs.outcomes import OwnedRuns, Recorded, RunCounts, RunPage, Started
from holdfast.rules.runs.record import NewRun, Run
from holdfast.rules.runs.repository import RunFilter
from holdfast.stores import open_store
from holdfast.stores.sqlite import lists as sqlite_lists
from holdfast.testing.builders import ME, SECOND

STATUSES = ("queued", "pending", "running", "suspended", "completed", "failed", "cancelled", "timed_out")
PUT = (
    "INSERT INTO runs (namespace, id, type, workflow, status, created_at, due_at, worker, key, record) "
    "VALUES ('default', ?, ?, ?, ?, ?, ?, NULL, NULL, ?)"
)
PUT_ATTRIBUTE = "INSERT INTO run_attributes (namespace, name, value, created_at, run) VALUES ('default', ?, ?, ?, ?)"


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/locks.db"


def plant(url, runs):
    """Insert runs into the tables directly, without their history."""
    rows = [
        (one.id, one.type, one.workflow, one.status, one.created_at, one.due_at, msgspec.json.encode(one).decode())
        for one in runs
    ]
    named = [
        (name, msgspec.json.encode(value).decode(), one.created_at, one.id)
        for one in runs
        for name, value in one.attributes.items()
    ]
    with closing(sqlite3.connect(sqlite_path(url))) as db, db:
        db.executemany(PUT, rows)
        db.executemany(PUT_ATTRIBUTE, named)


def a_run(n, /, *, status="completed", workflow="pay", created_at=None, id=None, due_at=None, **attributes):
    return Run(
        id=id or f"r{n:07}",
        type=workflow,
        status=status,
        created_at=n if created_at is None else created_at,
        due_at=due_at,
        attributes=attributes,
    )


def steps(connection, command, kind):
    """How much SQLite works for a command, in hundreds of steps, and its answer."""
    counted = 0

    def count():
        nonlocal counted
        counted += 1
        return 0

    with connection._handle.active:
        db = connection._handle.ready()
        db.set_progress_handler(count, 100)
    try:
        (outcome,) = connection.execute([command])
    finally:
        with connection._handle.active:
            db.set_progress_handler(None, 0)
    assert isinstance(outcome, kind), outcome
    return counted, outcome


# -- right ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_pages_of_every_filter_equal_those_of_the_rule(url, opened, monkeypatch, seed):
    """With rounds of few rows, so that every source is exhausted, skipped or filled at some time."""
    monkeypatch.setattr(sqlite_lists, "FIRST_ROWS", 2)
    monkeypatch.setattr(sqlite_lists, "FACTOR", 2)
    pick = random.Random(seed)
    runs = [
        a_run(
            n,
            id=f"{pick.choice('ab')}{pick.choice('xy')}{n}",
            status=pick.choice(STATUSES),
            workflow=pick.choice(["pay", "ship"]),
            created_at=pick.randrange(40),
            **pick.choice([{}, {"n": 1}, {"n": True}, {"n": "1"}, {"n": 1, "who": "é"}, {"who": ""}]),
        )
        for n in range(150)
    ]
    connection = opened(url).connect("queries")
    plant(url, runs)
    for _ in range(60):
        wanted = RunFilter(
            statuses=tuple(pick.sample(STATUSES, pick.choice([0, 0, 1, 2, 8]))),
            workflow=pick.choice(["", "", "pay", "nope"]),
            prefix=pick.choice(["", "", "a", "bx", "bx1", "z"]),
            since=pick.choice([None, None, 10]),
            until=pick.choice([None, None, 30]),
            attributes=pick.choice([{}, {}, {"n": 1}, {"n": True}, {"n": "1"}, {"n": 1, "who": "é"}, {"who": "?"}]),
        )
        expected = [run for run in runs if wanted.fits(run)]
        expected.sort(key=lambda run: (run.created_at, run.id), reverse=True)
        found, after = [], None
        while True:
            (page,) = connection.execute([r.ListRuns(wanted=wanted, after=after, limit=pick.randrange(1, 30))])
            found += page.runs
            after = page.next
            if after is None:
                break
        assert [run.id for run in found] == [run.id for run in expected], wanted


def test_runs_are_listed_by_their_current_attributes(url, opened):
    connection = opened(url).connect("commands")
    lease = c.Acquire(key="worker/w.1", id="w.1", label=ME, kind="worker", ttl=60 * SECOND)
    register_worker = r.RegisterWorker(worker="w.1", name="w", types=("order",))
    new = NewRun(id="r", type="order", input="1", request="a", attributes={"who": "ann", "n": 1})
    run = connection.execute([lease, register_worker, r.StartRun(new=new, worker="w.1")])[2].run

    def listed(**attributes):
        (page,) = connection.execute([r.ListRuns(wanted=RunFilter(attributes=attributes))])
        return [one.id for one in page.runs]

    assert (listed(who="ann"), listed(n=1), listed(n=True), listed(who="ann", n=1)) == (["r"], ["r"], [], ["r"])
    record = r.RecordRun(run="r", fence=run.fence, at=1, entries=("{}",), request="b", attributes={"who": "bob"})
    assert isinstance(connection.execute([record])[0], Recorded)
    assert (listed(who="ann"), listed(who="bob")) == ([], ["r"])
    with closing(sqlite3.connect(sqlite_path(url))) as db:
        names = [name for (name,) in db.execute("SELECT name FROM run_attributes")]
    assert sorted(names) == sorted(connection.execute([r.ReadRun(run="r")])[0].claim.run.attributes)


# -- cheap ---------------------------------------------------------------------------------------------------------

FILTERS = {
    "all": RunFilter(),
    "status": RunFilter(statuses=("completed",)),
    "status-none": RunFilter(statuses=("timed_out",)),
    "statuses-none": RunFilter(statuses=("queued", "pending", "running")),
    "workflow": RunFilter(workflow="pay"),
    "workflow-none": RunFilter(workflow="nope"),
    "workflow-status-none": RunFilter(workflow="pay", statuses=("cancelled",)),
    "prefix": RunFilter(prefix="r"),
    "prefix-none": RunFilter(prefix="zz"),
    "attribute": RunFilter(attributes={"kind": "x"}),
    "attribute-none": RunFilter(attributes={"kind": "y"}),
    "attribute-many-status-none": RunFilter(attributes={"kind": "x"}, statuses=("timed_out",)),
    "attribute-many-attribute-none": RunFilter(attributes={"kind": "x", "who": "q"}),
    "prefix-few-status-many": RunFilter(prefix="few", statuses=("completed",)),
    "prefix-none-workflow-many": RunFilter(prefix="zz", workflow="pay", statuses=("completed",)),
    "prefix-few-attribute-many": RunFilter(prefix="few", attributes={"kind": "x"}),
}
FULL = os.environ.get("HOLDFAST_GROWTH") == "full"
FEW, MANY = 1_000, 1_000_000 if FULL else 20_000


@pytest.fixture(scope="module")
def stocks(tmp_path_factory):
    """Two files: one with a thousand ended runs, one with many more, and the same few others in both."""
    made = {}
    for number in (FEW, MANY):
        url = f"sqlite:///{tmp_path_factory.mktemp('stock')}/locks.db"
        open_store(url, namespace="default").close()
        ended = [
            a_run(n, status="completed" if n % 2 else "failed", workflow="pay" if n % 3 else "ship", kind="x")
            for n in range(number)
        ]
        plant(url, ended + [a_run(n, id=f"few{n}", status="cancelled", workflow="rare") for n in range(10)])
        made[number] = url
    return made


@pytest.mark.parametrize("name", FILTERS)
def test_a_list_costs_the_same_with_many_more_ended_runs(stocks, opened, name):
    spent = {}
    for number, url in stocks.items():
        connection = opened(url).connect("queries")
        spent[number], _ = steps(connection, r.ListRuns(wanted=FILTERS[name], limit=50), RunPage)
    assert spent[MANY] <= spent[FEW] * 1.5 + 10, spent
    assert spent[MANY] < 500  # fifty thousand steps


LOOKS = {
    "count": (r.CountRuns(), RunCounts),
    "owned": (r.ListOwnedRuns(worker="w.1"), OwnedRuns),
    "outlook": (r.ReadNextDue(types=("pay", "ship")), object),
    "workers": (r.ListWorkers(), object),
    "claim": (r.ClaimRuns(worker="w.1", types=(("pay", "pay"),), limit=10), object),
    "start": (r.StartRun(new=NewRun(id="new", type="pay", input="1", request="new")), Started),
}


@pytest.mark.parametrize("name", LOOKS)
def test_the_cost_of_frequent_engine_queries_does_not_grow_with_ended_runs(stocks, opened, name):
    command, kind = LOOKS[name]
    spent = {}
    for number, url in stocks.items():
        connection = opened(url).connect("commands")
        lease = c.Acquire(key="worker/w.1", id="w.1", label=ME, kind="worker", ttl=60 * SECOND)
        connection.execute([lease, r.RegisterWorker(worker="w.1", name="w", types=("pay",))])
        spent[number], _ = steps(connection, command, kind)
    assert spent[MANY] <= spent[FEW] + 10, spent


@pytest.mark.parametrize("name", [name for name in LOOKS if name != "count"])
def test_the_cost_of_frequent_engine_queries_does_not_grow_with_parked_runs(url, opened, name):
    """Runs that sleep for a long time. (They are counted one by one, because a stored number could be wrong.)"""
    command, kind = LOOKS[name]
    far = 4_000_000_000 * SECOND
    connection = opened(url).connect("commands")
    lease = c.Acquire(key="worker/w.1", id="w.1", label=ME, kind="worker", ttl=60 * SECOND)
    connection.execute([lease, r.RegisterWorker(worker="w.1", name="w", types=("pay",))])
    plant(url, [a_run(n, status="suspended", due_at=far) for n in range(100)])
    few, _ = steps(connection, command, kind)
    plant(url, [a_run(n, status="suspended", due_at=far) for n in range(100, 100_000 if FULL else 10_000)])
    if name == "start":
        command = r.StartRun(new=NewRun(id="newer", type="pay", input="1", request="newer"))
    many, _ = steps(connection, command, kind)
    assert many <= few + 10, (few, many)


# -- histories -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [10_000, 100_000] if FULL else [2_000, 10_000])
def test_appending_an_entry_costs_the_same_for_every_length_of_history(url, opened, length):
    connection = opened(url).connect("commands")
    lease = c.Acquire(key="worker/w.1", id="w.1", label=ME, kind="worker", ttl=60 * SECOND)
    register_worker = r.RegisterWorker(worker="w.1", name="w", types=("order",))
    new = NewRun(id="r", type="order", input="1", request="a")
    run = connection.execute([lease, register_worker, r.StartRun(new=new, worker="w.1")])[2].run

    def record(at, entries, request):
        return r.RecordRun(run="r", fence=run.fence, at=at, entries=entries, request=request)

    short, _ = steps(connection, record(1, ("{}",), "b"), Recorded)
    filling = ("{}",) * 1_000
    at = 2
    while at < length:
        connection.execute([record(at, filling, f"f{at}")])
        at += 1_000
    long, _ = steps(connection, record(at, ("{}",), "c"), Recorded)
    assert long <= short + 5, (short, long)

    read, seen = steps(connection, r.ReadRun(run="r", history=True), object)
    assert len(seen.claim.entries) == at + 1
    assert read * 100 <= 20 * (at + 1)  # a few steps for an entry, and nothing is read twice
    glance, _ = steps(connection, r.ReadRun(run="r"), object)
    assert glance <= 5
