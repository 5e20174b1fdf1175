"""Batches on SQLite: what one SQL statement decides, and unreadable rows."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing

import pytest
from providers import sqlite_path

from holdfast import commands as c
from holdfast.commands import runs as r
from holdfast.errors import RecordUnreadable
from holdfast.rules import lock_outcomes as out
from holdfast.rules.runs.outcomes import Recorded
from holdfast.rules.runs.record import NewRun
from holdfast.stores.sqlite import limits as sqlite_limits
from holdfast.stores.sqlite import runs as sqlite_runs
from holdfast.testing.builders import ME, SECOND, read, swap


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/locks.db"


def test_most_renewals_of_a_heartbeat_use_the_fast_path(url, opened, monkeypatch):
    """Otherwise the comparison with the rules would compare the rule with itself."""
    connection = opened(url).connect("heartbeats")
    keys = [f"k{n}" for n in range(50)]
    grants = connection.execute([c.Acquire(key=key, id="a.1", label=ME, ttl=30 * SECOND) for key in keys])
    monkeypatch.setattr(c.Renew, "apply", None)
    renewals = [c.Renew(key=key, id="a.1", token=g.token, ttl=60 * SECOND) for key, g in zip(keys, grants, strict=True)]
    assert {type(outcome) for outcome in connection.execute(renewals)} == {out.Renewed}


def test_reading_a_slot_leaves_no_row(url, opened):
    opened(url).connect("commands").execute([read(), swap("a.1", "x.1", 5)])
    with closing(sqlite3.connect(sqlite_path(url))) as db:
        assert db.execute("SELECT count(*) FROM slots").fetchone() == (0,)


def test_an_unreadable_slot_is_refused_by_name_and_unchanged(url, opened):
    connection = opened(url).connect("commands")
    connection.execute([swap("a.1")])
    with closing(sqlite3.connect(sqlite_path(url))) as db, db:
        db.execute("UPDATE slots SET past = '{'")
    (outcome,) = connection.execute([swap("a.2", "a.1", 1)])
    assert isinstance(outcome, c.Failed)
    assert isinstance(outcome.error, RecordUnreadable)
    assert "'k'" in str(outcome.error)


def test_an_unreadable_run_does_not_prevent_the_claim_of_others(url, opened):
    connection = opened(url).connect("commands")
    lease = c.Acquire(key="worker/w.1", id="w.1", label=ME, kind="worker", ttl=60 * SECOND)
    register_worker = r.RegisterWorker(worker="w.1", name="w", types=("order",))
    starts = [r.StartRun(new=NewRun(id=name, type="order", input="1", request=name)) for name in "ab"]
    connection.execute([lease, register_worker, *starts])
    with closing(sqlite3.connect(sqlite_path(url))) as db, db:
        db.execute("UPDATE runs SET record = '{' WHERE id = 'a'")
    claimed, seen = connection.execute([r.ClaimRuns(worker="w.1", types=(("order", "order"),)), r.ReadRun(run="a")])
    assert [claim.run.id for claim in claimed.claims] == ["b"]
    assert isinstance(seen, c.Failed)
    assert isinstance(seen.error, RecordUnreadable)


ALL_THE_TIME = {
    "NEXT_DUE": ("n", "order"),
    "OWNED": ("n", "w.1", -1),
    "DUE": ("n", "order", 0, 1),
    "LOAD": ("n", "r"),
    "WITH_KEY": ("n", "order", "k"),
    "ENTRIES": ("n", "r", -1),
    "EVENTS": ("n", "r", 0),
    "EVENT_WITH_KEY": ("n", "r", "k"),
    "TERMS": ("n", "order"),
    "MEMBERS": ("n", "order/all/", 1, 8),
    "COUNT": ("n", "order/all/", 0),
    "ARRIVAL": ("n", "order/all/", 1, 0),
    "NTH_START": ("n", "order/pace/", 9),
    "STARTS_AFTER": ("n", "order/pace/", 7),
    "FORGET_OLD_STARTS": ("n", 7),
}


@pytest.mark.parametrize("name", ALL_THE_TIME)
def test_frequent_queries_of_a_worker_scan_no_other_rows(url, opened, name):
    opened(url).connect().execute([c.Inspect(key="k")])
    with closing(sqlite3.connect(sqlite_path(url))) as db:
        plan = db.execute(
            f"EXPLAIN QUERY PLAN {getattr(sqlite_runs, name, None) or getattr(sqlite_limits, name)}", ALL_THE_TIME[name]
        ).fetchall()
    assert len(plan) == 1
    assert re.search(r"SEARCH \w+ USING .*\(namespace=\? AND ", plan[0][3]), plan


@pytest.fixture
def traced(url, opened):
    """A connection with a worker and its run, and the statements that it sends from then on."""
    connection = opened(url).connect("commands")
    lease = c.Acquire(key="worker/w.1", id="w.1", label=ME, kind="worker", ttl=60 * SECOND)
    register = r.RegisterWorker(worker="w.1", name="w", types=("order",))
    start = r.StartRun(new=NewRun(id="r", type="order", input="1", request="r"), worker="w.1")
    *_, started = connection.execute([lease, register, start])
    statements = []
    connection._handle.ready().set_trace_callback(statements.append)
    return connection, started.run, statements


def record(run, *entries, request="1"):
    return r.RecordRun(run=run.id, fence=run.fence, at=1, request=request, entries=entries, seen=0)


def test_a_single_record_is_one_transaction_without_a_savepoint_or_a_read_of_locks(traced):
    connection, run, statements = traced
    (recorded,) = connection.execute([record(run, '"a"')])
    assert isinstance(recorded, Recorded)
    words = [statement.split()[0] for statement in statements]
    assert (words[0], words[-1], words.count("SAVEPOINT")) == ("BEGIN", "COMMIT", 0)
    assert not [statement for statement in statements if re.search(r"\b(FROM|INTO|UPDATE) locks\b", statement)]


def test_a_single_record_that_cannot_be_written_leaves_nothing_behind(traced):
    connection, run, statements = traced
    for bad in ("\ud800", object()):
        (failed,) = connection.execute([record(run, '"a"', bad)])
        assert isinstance(failed, c.Failed)
        assert statements[-1] == "ROLLBACK"
    (recorded,) = connection.execute([record(run, '"b"')])
    assert isinstance(recorded, Recorded)
    (seen,) = connection.execute([r.ReadRun(run="r", history=True)])
    assert seen.claim.entries == ("1", '"b"')


def test_of_records_in_one_batch_only_those_that_cannot_be_written_fail(traced):
    connection, run, _ = traced
    bad, good = connection.execute([record(run, "\ud800"), record(run, '"b"', request="2")])
    assert (type(bad), type(good)) == (c.Failed, Recorded)
