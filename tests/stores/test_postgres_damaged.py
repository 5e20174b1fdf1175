"""A row that cannot be read fails the commands that need it, on PostgreSQL, and hides no other row."""

from __future__ import annotations

import psycopg
import pytest
from providers import PROVIDERS

from holdfast import commands as c
from holdfast.commands import runs as r
from holdfast.errors import RecordUnreadable
from holdfast.rules.runs.limits import WorkflowLimits
from holdfast.rules.runs.outcomes import Claimed, Recorded
from holdfast.rules.runs.record import NewRun, RunEvent
from holdfast.testing.builders import acquire
from stores.runs_asking import add_worker


@pytest.fixture
def url(tmp_path):
    return PROVIDERS["postgres"].url(tmp_path)


@pytest.fixture
def admin(url):
    with psycopg.connect(url.partition("?")[0], autocommit=True) as db:
        yield db


@pytest.fixture
def connection(url, opened):
    found = opened(url).connect()
    add_worker(found)
    return found


def start(connection, *runs):
    connection.execute(
        [r.StartRun(new=NewRun(id=run, type="order", input="1", request=run), worker="") for run in runs]
    )


def claimed(connection, limit):
    (outcome,) = connection.execute([r.ClaimRuns(worker="w.1", types=(("order", "order"),), limit=limit)])
    assert isinstance(outcome, Claimed), outcome
    return [claim.run.id for claim in outcome.claims]


DAMAGE = {
    "rest": """UPDATE tests.runs SET rest = '{"locks": 5}' WHERE id = ANY(%(runs)s)""",
    "locks": """UPDATE tests.runs SET rest = '{"locks": [7, ["x", "y"]]}' WHERE id = ANY(%(runs)s)""",
    "event": """UPDATE tests.events SET event = '{"kind": "bogus"}' WHERE run = ANY(%(runs)s)""",
}


@pytest.mark.parametrize("damage", DAMAGE)
@pytest.mark.parametrize("many", [1, 9])
@pytest.mark.parametrize("limit", [1, 20])
def test_unreadable_runs_do_not_prevent_the_claim_of_others(connection, admin, damage, many, limit):
    damaged = [f"a{n}" for n in range(many)]
    start(connection, *damaged)
    if damage == "event":
        connection.execute([r.PostEvent(run=run, event=RunEvent(kind="signal", name="x")) for run in damaged])
    start(connection, "b", "c")
    admin.execute(DAMAGE[damage], {"runs": damaged})
    found = [run for _ in range(2) for run in claimed(connection, limit)]
    assert found == ["b", "c"]
    assert claimed(connection, limit) == []


def test_a_damaged_event_fails_the_commands_that_need_it(connection, admin):
    start(connection, "a", "b")
    connection.execute([r.PostEvent(run=run, event=RunEvent(kind="signal", name="x")) for run in ("a", "b")])
    admin.execute(DAMAGE["event"], {"runs": ["a"]})
    damaged, sound, row = connection.execute(
        [r.ReadRun(run="a", history=True), r.ReadRun(run="b", history=True), r.ReadRun(run="a", history=False)]
    )
    assert isinstance(damaged.error, RecordUnreadable)
    assert "event of the run 'a'" in str(damaged.error)
    assert [event.name for event in sound.claim.events] == ["x"]
    assert row.claim.run.posted == 1


def test_a_damaged_worker_record_does_not_affect_others_and_its_runs_are_released(connection, admin):
    add_worker(connection, "dead.1", seconds=1)
    connection.execute([r.StartRun(new=NewRun(id="orphan", type="order", input="1", request="o"), worker="dead.1")])
    admin.execute("""UPDATE tests.workers SET worker = '{"name": 5}' WHERE id = 'dead.1'""")
    start(connection, "a")
    (posted,) = connection.execute([r.PostEvent(run="a", event=RunEvent(kind="signal", name="x"))])
    assert posted.number == 1
    connection.execute([c.ForceRelease(key="worker/dead.1", by="me", reason="test")])
    assert sorted(claimed(connection, 10)) == ["a", "orphan"]
    assert admin.execute("SELECT id FROM tests.workers").fetchall() == [("w.1",)]


def test_damaged_limits_and_states_are_reported_as_unreadable(connection, admin):
    connection.execute([r.PublishLimits(workflow="order", terms=WorkflowLimits(version=1))])
    swap = c.SwapSlot(address=("global", "", "k"), request="a.1", expected="", version=0, value="1")
    connection.execute([swap])
    admin.execute("""UPDATE tests.terms SET terms = '{"limits": 7}'""")
    admin.execute("""UPDATE tests.slots SET past = '{"last": 5}'""")
    terms, slot, granted = connection.execute(
        [r.ReadLimits(workflow="order"), c.ReadSlot(address=("global", "", "k")), acquire("k")]
    )
    assert isinstance(terms.error, RecordUnreadable)
    assert isinstance(slot.error, RecordUnreadable)
    assert not isinstance(granted, c.Failed)


def test_reading_a_damaged_run_that_is_locked_fails_alone(connection, admin, url):
    start(connection, "a")
    admin.execute(DAMAGE["rest"], {"runs": ["a"]})
    with psycopg.connect(url.partition("?")[0]) as other:
        other.execute("SELECT FROM tests.runs WHERE id = 'a' FOR UPDATE")
        post = r.PostEvent(run="a", event=RunEvent(kind="signal", name="x"))
        for outcome in connection.execute([post, r.ReadRun(run="a", history=False)]):
            assert isinstance(outcome.error, RecordUnreadable)


def test_a_damaged_child_whose_start_is_requested_again_does_not_keep_its_parent_from_recording(connection, admin):
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
        admin.execute(DAMAGE["rest"], {"runs": ["a1"]})
    (damaged, sound) = connection.execute([r.ReadRun(run="a1"), r.ReadRun(run="c")])
    assert isinstance(damaged.error, RecordUnreadable)
    assert sound.claim.run.parent == "p"
