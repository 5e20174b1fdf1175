"""A row that cannot be read fails the commands that need it, on SQLite, and hides no other row."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from holdfast.commands import runs as r
from holdfast.errors import RecordUnreadable
from holdfast.rules.runs.outcomes import Claimed, Recorded
from holdfast.rules.runs.record import NewRun, RunEvent
from stores.runs_asking import add_worker


@pytest.fixture
def connection(tmp_path, opened):
    found = opened(f"sqlite:///{tmp_path / 'x.db'}").connect()
    add_worker(found)
    return found


@pytest.fixture
def damage(tmp_path, connection):
    def damaging(statement):
        with closing(sqlite3.connect(tmp_path / "x.db")) as db:
            db.execute(statement)
            db.commit()

    return damaging


def start(connection, *runs):
    for run in runs:
        connection.execute([r.StartRun(new=NewRun(id=run, type="order", input="1", request=run), worker="")])


def claimed(connection, limit):
    (outcome,) = connection.execute([r.ClaimRuns(worker="w.1", types=(("order", "order"),), limit=limit)])
    assert isinstance(outcome, Claimed), outcome
    return [claim.run.id for claim in outcome.claims]


DAMAGE = {
    "run": "UPDATE runs SET record = '{}' WHERE id LIKE 'a%'",
    "event": """UPDATE events SET event = '{"kind": "bogus"}' WHERE run LIKE 'a%'""",
}


@pytest.mark.parametrize("what", DAMAGE)
@pytest.mark.parametrize("limit", [1, 20])
def test_unreadable_runs_do_not_prevent_the_claim_of_others(connection, damage, what, limit):
    start(connection, "a1", "a2", "a3", "b", "c")
    if what == "event":
        connection.execute([r.PostEvent(run=f"a{n}", event=RunEvent(kind="signal", name="x")) for n in (1, 2, 3)])
    damage(DAMAGE[what])
    assert [run for _ in range(2) for run in claimed(connection, limit)] == ["b", "c"]
    assert claimed(connection, limit) == []


def test_a_damaged_event_fails_the_commands_that_need_it(connection, damage):
    start(connection, "a", "b")
    connection.execute([r.PostEvent(run="a", event=RunEvent(kind="signal", name="x"))])
    damage(DAMAGE["event"])
    damaged, row = connection.execute([r.ReadRun(run="a", history=True), r.ReadRun(run="b", history=True)])
    assert isinstance(damaged.error, RecordUnreadable)
    assert row.claim.run.id == "b"


def test_a_damaged_worker_record_does_not_affect_other_workers(connection, damage):
    start(connection, "a")
    damage("""INSERT INTO workers (namespace, id, worker) VALUES ('default', 'w.9', '{"name": 5}')""")
    (posted,) = connection.execute([r.PostEvent(run="a", event=RunEvent(kind="signal", name="x"))])
    assert posted.number == 1
    assert claimed(connection, 10) == ["a"]


def test_a_damaged_child_whose_start_is_requested_again_does_not_keep_its_parent_from_recording(connection, damage):
    start(connection, "p")
    (outcome,) = connection.execute([r.ClaimRuns(worker="w.1", types=(("order", "order"),), limit=1)])
    fence = outcome.claims[0].run.fence
    children = tuple(NewRun(id=id, type="order", input="1", request=id, parent="p", root="p") for id in ("a1", "c"))
    for at in (1, 2):
        record = r.RecordRun(
            run="p", fence=fence, at=at, request=f"q{at}", entries=("{}",), seen=0, then=None, children=children
        )
        for _ in range(2):  # it is sent again
            (outcome,) = connection.execute([record])
            assert isinstance(outcome, Recorded), outcome
            assert (outcome.taken, outcome.limited) == ((), {})
        damage(DAMAGE["run"])
    (damaged, sound) = connection.execute([r.ReadRun(run="a1"), r.ReadRun(run="c")])
    assert isinstance(damaged.error, RecordUnreadable)
    assert sound.claim.run.parent == "p"
