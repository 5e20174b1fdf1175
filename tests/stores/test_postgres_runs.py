"""Runs on PostgreSQL, with many transactions at once: what a sequential history does not show."""

from __future__ import annotations

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import msgspec
import psycopg
import pytest
from providers import PROVIDERS
from waiting import eventually

from holdfast import commands as c
from holdfast.commands import runs as r
from holdfast.errors import RecordUnreadable, StoreContended
from holdfast.rules.lock_outcomes import Granted
from holdfast.rules.runs import record as rule
from holdfast.rules.runs.limits import Limit, LimitKey, WorkflowLimits
from holdfast.rules.runs.outcomes import (
    Claimed,
    LimitsDiffer,
    LimitsPublished,
    Posted,
    Recorded,
    RunSeen,
    Started,
    WorkerRegistered,
)
from holdfast.rules.runs.record import Finish, NewRun, Park, RunEvent
from holdfast.rules.runs.repository import RunFilter
from holdfast.rules.slot import Conflict, SlotSeen, Swap, Swapped
from holdfast.stores.postgresql import session as postgres_session
from holdfast.testing.builders import ME, SLOT, ManualClock, acquire, read, release, swap, wait

TYPES = (("order", "order"),)
ONE_AT_A_TIME = WorkflowLimits(limits=(Limit(name="all", max=1, on_excess="queue"),))
THREE_OF_EACH = WorkflowLimits(limits=(Limit(name="each", max=3, path="customer", on_excess="queue"),))


@pytest.fixture
def url(tmp_path):
    return PROVIDERS["postgres"].url(tmp_path)


@pytest.fixture
def admin(url):
    with psycopg.connect(url.partition("?")[0], autocommit=True) as db:
        yield db


@pytest.fixture
def asked(monkeypatch):
    """How many round trips were made, over all sessions."""
    trips = []
    for name in ("_talk", "_trip"):
        way = getattr(postgres_session.Session, name)

        def counting(self, sent, *options, way=way):
            trips.append(sent)
            return way(self, sent, *options)

        monkeypatch.setattr(postgres_session.Session, name, counting)
    return trips


def start(run="r", worker="", **more):
    new = {"id": run, "type": "order", "input": "1", "request": f"start {run}"} | more
    return r.StartRun(new=NewRun(**new), worker=worker)


def limited(run="r", worker="", key="", terms=ONE_AT_A_TIME, **more):
    """A start that is counted by each of these limits."""
    places = tuple(LimitKey(limit.name, key) for limit in terms.limits)
    return start(run, worker, places=places, terms=terms.digest, **more)


def publish(connection, terms=ONE_AT_A_TIME):
    (published,) = connection.execute([r.PublishLimits(workflow="order", terms=terms)])
    assert isinstance(published, LimitsPublished), published
    return terms


def record(run, *entries, at=1, **more):
    request = more.pop("request", f"record {run.id} {at} {more}")
    return r.RecordRun(run=run.id, fence=run.fence, at=at, entries=entries, request=request, **more)


def signal(run="r", **more):
    return r.PostEvent(run=run, event=RunEvent(kind="signal", name="paid", **more))


def add_worker(connection, worker="w.1", seconds=600):
    lease = c.Acquire(key=rule.worker_key(worker), id=worker, label=ME, kind="worker", ttl=seconds * 1_000_000)
    outcomes = connection.execute([lease, r.RegisterWorker(worker=worker, name=f"worker {worker}", types=("order",))])
    assert isinstance(outcomes[1], WorkerRegistered)
    return worker


def claim(connection, worker="w.1", **more):
    (claimed,) = connection.execute([r.ClaimRuns(worker=worker, types=TYPES, **more)])
    assert isinstance(claimed, Claimed), claimed
    return [one.run for one in claimed.claims]


def seen(connection, run="r"):
    (look,) = connection.execute([r.ReadRun(run=run, history=True)])
    assert isinstance(look, RunSeen)
    return look.claim


def persist(connection, commands):
    """Send until every command has an outcome, as callers do: within five seconds."""
    late, answers, contended = time.monotonic() + 5, {}, 0
    left = list(enumerate(commands))
    while left:
        outcomes = connection.execute([command for _, command in left])
        for (place, _), outcome in zip(left, outcomes, strict=True):
            if not isinstance(outcome, c.Failed):
                answers[place] = outcome
            elif not isinstance(outcome.error, StoreContended):
                raise outcome.error
        left = [(place, command) for place, command in left if place not in answers]
        contended += len(left)
        assert time.monotonic() < late, f"{len(left)} commands were never answered"
    return [answers[place] for place in range(len(commands))], contended


@contextmanager
def changed_row(url, run):
    """Another session has changed this run's row, and left the transaction open."""
    with psycopg.connect(url.partition("?")[0], application_name="forgotten") as db:
        db.execute("UPDATE tests.runs SET crashes = crashes WHERE id = %s", (run,))
        yield db
        db.rollback()


def statuses(connection, *runs):
    return [seen(connection, run).run.status for run in runs]


def assert_that_places_are_those_of_living_runs(admin):
    """The index of limit keys matches the runs."""
    rows = admin.execute("SELECT party, queued, rank, arrival, run FROM tests.places ORDER BY party, run").fetchall()
    expected = admin.execute(
        "SELECT r.workflow || '/' || (p->>0) || '/' || (p->>1) AS party, r.status = 'queued', "
        "       CASE r.status WHEN 'queued' THEN -coalesce((r.rest->>'priority')::bigint, 0) ELSE 0 END, "
        "       (r.rest->>'arrival')::bigint, r.id "
        "FROM tests.runs AS r CROSS JOIN json_array_elements(r.rest->'places') AS p "
        "WHERE r.status IN ('queued', 'pending', 'running', 'suspended') ORDER BY 1, r.id COLLATE \"C\""
    ).fetchall()
    assert rows == sorted(expected, key=lambda row: (row[0], row[4]))


def waits_for_a_row(admin):
    (many,) = admin.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = 'holdfast'"
    ).fetchone()
    return many > 0


# -- trips -----------------------------------------------------------------------------------------------------


def test_simple_commands_about_a_run_are_one_round_trip_and_others_few(url, opened, asked):
    """One round trip locks and reads, one writes; and one more for each level of rows that refer to others."""
    connection = opened(url).connect()
    add_worker(connection)
    (started,) = connection.execute([start(worker="w.1")])
    connection.execute([record(started.run, "0", at=1)])  # the first time, the statement is prepared
    run = started.run
    for command, trips in (
        (start("t", worker="w.1"), 1),
        (record(run, "a", at=2), 1),
        (record(run, "b", at=3, swap=Swap(SLOT, "", 0, "1")), 2),
        (record(run, "c", at=4, children=(NewRun(id="child", type="mail", input="1", request="q"),)), 2),
        (signal(), 2),
        (r.WatchRun(run="r", id="x.1"), 2),
        (r.ReadRun(run="r", history=True), 2),
        (r.ListRuns(), 2),
        (r.CountRuns(), 1),
        (r.ListOwnedRuns(worker="w.1"), 1),
        (r.ReadNextDue(types=("order",)), 1),
        (r.ListWorkers(), 1),
        (record(run, at=5, seen=1, then=Finish("completed", "1")), 2),  # prepared, and executed
        (r.ReviveRun(run="r", fence=run.fence, keep=1, request="again"), 3),
        (r.ClaimRuns(worker="w.1", types=TYPES), 2),
        (start("s"), 2),
        (r.UnregisterWorker(worker="w.1"), 4),
    ):
        asked.clear()
        (outcome,) = connection.execute([command])
        assert not isinstance(outcome, c.Failed), outcome
        assert len(asked) <= trips, command


def test_the_outcomes_of_a_batch_of_locks_slots_and_runs_are_in_its_order(url, opened):
    connection = opened(url).connect()
    add_worker(connection)
    (started,) = connection.execute([start(worker="w.1")])
    outcomes = connection.execute(
        [
            record(started.run, "a"),
            acquire("k"),
            record(started.run, "b", at=2),
            swap("a.1"),
            record(started.run, "c", at=3),
            record(started.run, "d", at=4),
            start("s"),
            acquire("k"),
            read(),
            r.ReadRun(run="r", history=True),
            c.ListLocks(),
            record(started.run, "e", at=9),
            wait("k"),
        ]
    )
    assert [type(one).__name__ for one in outcomes] == [
        "Recorded", "Granted", "Recorded", "Swapped", "Recorded", "Recorded", "Started", "Granted", "SlotSeen",
        "RunSeen", "LockPage", "RunRefused", "Queued",
    ]  # fmt: skip
    assert outcomes[9].claim.entries == ("1", "a", "b", "c", "d")


def test_a_record_of_a_driven_run_updates_no_index(url, opened, admin):
    store = opened(url)
    connection = store.connect()
    add_worker(connection)
    runs = [outcome.run for outcome in connection.execute([start(f"r{n}", worker="w.1") for n in range(4)])]
    with store.transaction() as mine:
        joined = store.join(mine)
        for at in range(1, 6):
            assert {type(one) for one in joined.execute([record(run, "x", at=at) for run in runs])} == {Recorded}
        joined.execute([record(runs[0], "alone", at=6)])
        counts = mine.execute(
            "SELECT pg_stat_get_xact_tuples_updated(oid), pg_stat_get_xact_tuples_hot_updated(oid) "
            "FROM pg_class WHERE oid = 'tests.runs'::regclass"
        ).fetchone()
    assert counts == (21, 21)


def test_a_run_is_always_found_by_its_primary_key(url, opened):
    """For a new table the server has no statistics, and another index would seem as good as the primary key."""
    opened(url).connect()
    with psycopg.connect(url.partition("?")[0]) as db:
        db.execute("ALTER TABLE tests.runs DROP CONSTRAINT runs_pkey; SET LOCAL enable_seqscan = off")
        plan = db.execute("EXPLAIN SELECT FROM tests.runs WHERE namespace = 'default' AND id = 'r'").fetchall()
        db.rollback()
    assert plan[0][0].startswith("Seq Scan"), "there is no other way"


# -- at once ---------------------------------------------------------------------------------------------------


def test_two_concurrent_claims_share_the_runs_and_get_each_once(url, opened):
    store = opened(url)
    connections = [store.connect(), store.connect()]
    workers = [add_worker(connection, f"w.{n}") for n, connection in enumerate(connections)]
    for first in range(0, 2_000, 200):
        connections[0].execute([start(f"r{n:04}") for n in range(first, first + 200)])

    def work(place):
        got = []
        while True:
            runs = claim(connections[place], workers[place], limit=40)
            got += [run.id for run in runs]
            if not runs:
                (next_due,) = connections[place].execute([r.ReadNextDue(types=("order",))])
                if next_due.next_due is None:
                    return got

    with ThreadPoolExecutor(2) as pool:
        mine, yours = pool.map(work, range(2))
    assert len(mine) + len(yours) == 2_000
    assert len(set(mine) | set(yours)) == 2_000
    assert min(len(mine), len(yours)) > 200, "both had work"


def test_a_claim_skips_runs_that_another_transaction_is_claiming(url, opened, asked):
    store = opened(url)
    connection = store.connect()
    add_worker(connection, "w.1")
    add_worker(connection, "v.1")
    connection.execute([start(f"r{n:03}") for n in range(100)])
    with store.transaction() as mine:
        first = claim(store.join(mine), "w.1", limit=40)
        asked.clear()
        second = claim(connection, "v.1", limit=40)
        assert len(asked) == 2, "nobody waited"
        third = claim(connection, "v.1", limit=40)
    names = [run.id for run in (*first, *second, *third)]
    assert names == [f"r{n:03}" for n in range(100)], "all in order"


def test_a_park_that_waited_for_a_signal_is_refused_with_the_signal(url, opened, admin):
    """The signal is committed while the park waits for the row: it must decide by data that it read after the lock."""
    store = opened(url)
    connection = store.connect()
    add_worker(connection)
    for n, neighbour in enumerate(([], [start("other")])):
        (started,) = connection.execute([start(f"r{n}", worker="w.1")])
        with ThreadPoolExecutor(1) as pool:
            with store.transaction() as mine:
                store.join(mine).execute([signal(f"r{n}")])
                park = pool.submit(connection.execute, [*neighbour, record(started.run, "a", then=Park(None))])
                eventually(lambda: waits_for_a_row(admin))
            outcome = park.result()[-1]
        if isinstance(outcome, c.Failed):  # the machine was slow; sent again it must be the same
            (outcome,) = connection.execute([record(started.run, "a", then=Park(None))])
        assert isinstance(outcome, Recorded)
        assert (outcome.done, [event.number for event in outcome.events]) == (False, [1])


def test_a_signal_that_waited_for_a_park_wakes_the_run(url, opened, admin):
    store = opened(url)
    connection = store.connect()
    add_worker(connection)
    for n, neighbour in enumerate(([], [start("other", type="mail")])):
        (started,) = connection.execute([start(f"r{n}", worker="w.1")])
        with ThreadPoolExecutor(1) as pool:
            with store.transaction() as mine:
                assert store.join(mine).execute([record(started.run, "a", then=Park(None))])[0].done
                post = pool.submit(connection.execute, [*neighbour, signal(f"r{n}")])
                eventually(lambda: waits_for_a_row(admin))
            outcome = post.result()[-1]
        if isinstance(outcome, c.Failed):
            (outcome,) = connection.execute([signal(f"r{n}")])
        assert isinstance(outcome, Posted)
        assert [run.id for run in claim(connection)] == [f"r{n}"]


def test_a_signal_that_races_with_a_park_is_never_lost(url, opened):
    store = opened(url)
    driver, friend = store.connect(), store.connect()
    add_worker(driver)
    with ThreadPoolExecutor(2) as pool:
        for n in range(300):
            (started,) = driver.execute([start(f"r{n}", worker="w.1")])
            many = [start(f"x{n}", type="mail")] if n % 2 else []
            park = pool.submit(persist, driver, [*many, record(started.run, "a", then=Park(None))])
            post = pool.submit(persist, friend, [signal(f"r{n}")])
            parked, posted = park.result()[0][-1], post.result()[0][-1]
            assert isinstance(posted, Posted)
            run = seen(driver, f"r{n}").run
            assert run.posted == 1
            if parked.done:
                assert run.due_at is not None, "it sleeps for ever"
            else:
                assert (run.status, [event.number for event in parked.events]) == ("running", [1])


def test_children_that_end_at_once_all_reach_their_parent(url, opened):
    store = opened(url)
    connections = [store.connect() for _ in range(4)]
    add_worker(connections[0])
    connections[0].execute([start("parent", worker="w.1")])
    names = [f"c{n:04}" for n in range(1_000)]
    children = [
        outcome.run
        for chunk in range(0, 1_000, 250)
        for outcome in connections[0].execute(
            [start(name, worker="w.1", parent="parent", root="parent") for name in names[chunk : chunk + 250]]
        )
    ]

    def work(place):
        mine, contended = children[place::4], 0
        for chunk in range(0, len(mine), 10):
            batch = [record(run, "x", then=Finish("completed", "1")) for run in mine[chunk : chunk + 10]]
            outcomes, failures = persist(connections[place], batch)
            assert all(one.done for one in outcomes)
            contended += failures
        return contended

    with ThreadPoolExecutor(4) as pool:
        contended = sum(pool.map(work, range(4)))
    inbox = seen(connections[0], "parent")
    assert [event.number for event in inbox.events] == list(range(1, 1_001))
    assert sorted(event.name for event in inbox.events) == names
    assert inbox.run.posted == 1_000
    assert contended < 500, "short waits for the parent's row are absorbed"


def test_two_concurrent_starts_of_the_same_run_return_one_run(url, opened):
    store = opened(url)
    connections = [store.connect() for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        for n in range(30):
            command = [start(f"r{n}-{place}", key=f"k{n}") for place in range(4)]
            outcomes = list(pool.map(lambda place: persist(connections[place], [command[place]])[0][0], range(4)))  # noqa: B023
            assert len({outcome.run.id for outcome in outcomes}) == 1
            assert sorted(outcome.fresh for outcome in outcomes) == [False, False, False, True]


@pytest.mark.parametrize("many", [1, 2])
def test_a_run_started_for_a_worker_that_is_just_being_removed_is_claimed_by_another(url, opened, many):
    """Its start is in progress when another client finds that the worker's lease has expired: otherwise the run would
    be lost."""
    now, later = ManualClock(), ManualClock()
    later.pass_by(60)
    store, elsewhere = opened(url, clock=now), opened(url, clock=later)
    connection, other = store.connect(), elsewhere.connect()
    add_worker(connection, "w.1", seconds=30)
    add_worker(other, "v.1")
    with store.transaction() as mine:
        store.join(mine).execute([start(f"r{n}", worker="w.1") for n in range(many)])
        assert claim(other, "v.1") == []
    assert [run.id for run in claim(other, "v.1")] == [f"r{n}" for n in range(many)]
    (started,) = connection.execute([start("late", worker="w.1")])
    assert type(started).__name__ == "WorkerGone", "it was settled"


@pytest.mark.parametrize("many", [1, 2])
def test_nothing_is_started_for_a_worker_that_another_transaction_removes(url, opened, many):
    connection = opened(url).connect()
    add_worker(connection)
    starts = [start(f"r{n}", worker="w.1") for n in range(many)]
    with psycopg.connect(url.partition("?")[0]) as other:
        other.execute("DELETE FROM tests.workers")
        outcomes = connection.execute([*starts, start("free")])
        assert [type(one).__name__ for one in outcomes] == ["Failed"] * many + ["Started"]
        assert {type(one).__name__ for one in connection.execute(starts)} == {"Failed"}
        other.commit()
    assert {type(one).__name__ for one in connection.execute(starts)} == {"WorkerGone"}
    assert seen(connection, "r0") is None


def test_starts_of_a_batch_have_the_outcomes_of_sequential_starts(url, opened):
    connection = opened(url).connect()
    add_worker(connection)
    connection.execute([start("old"), start("keyed", key="k0")])
    again = start("new", worker="w.1", key="k2")
    outcomes = connection.execute(
        [
            start("old", request="another", key="k1"),  # its key is not known yet
            start("late", key="k1"),
            again,
            again,
            start("new", request="another"),
            start("other", key="k2"),
            start("last", worker="w.1", key="k0"),
            start("gone", worker="w.9"),
            start("gone", worker="w.9", key="k0"),
        ]
    )
    started = [(type(one).__name__, one.run.id, one.fresh) for one in outcomes if hasattr(one, "fresh")]
    assert [type(one).__name__ for one in outcomes if not hasattr(one, "fresh")] == [
        "RunTaken",
        "RunTaken",
        "WorkerGone",
    ]
    assert started == [
        ("Started", "late", True),
        ("Started", "new", True),
        ("Started", "new", True),
        ("Started", "new", False),
        ("Started", "keyed", False),
        ("Started", "keyed", False),
    ]
    assert outcomes[2].run == outcomes[3].run == seen(connection, "new").run


def test_the_event_of_a_childs_end_keeps_the_order_of_the_batch(url, opened):
    connection = opened(url).connect()
    add_worker(connection)
    outcomes = connection.execute(
        [start("p", worker="w.1"), start("c", worker="w.1", parent="p"), start("o", worker="w.1")]
    )
    parent, child, other = (outcome.run for outcome in outcomes)
    ended, parked, recorded = connection.execute(
        [record(child, "x", then=Finish("completed", "1")), record(parent, "x", then=Park(None)), record(other, "x")]
    )
    assert (ended.done, parked.done, recorded.done) == (True, False, True)
    assert [event.name for event in parked.events] == ["c"]


@pytest.mark.parametrize("then", [Park(None), Finish("completed", "1")], ids=["park", "finish"])
@pytest.mark.parametrize("many", [1, 2])
def test_a_run_with_an_unread_signal_neither_parks_nor_ends(url, opened, many, then):
    connection = opened(url).connect()
    add_worker(connection)
    runs = [one.run for one in connection.execute([start(f"r{n}", worker="w.1") for n in range(many)])]
    connection.execute([signal(run.id) for run in runs])
    for outcome in connection.execute([record(run, "x", then=then) for run in runs]):
        assert (outcome.done, [event.name for event in outcome.events]) == (False, ["paid"])
    assert {seen(connection, run.id).run.status for run in runs} == {"running"}
    done = connection.execute([record(run, "y", at=2, seen=1, then=then) for run in runs])
    assert [(one.done, one.events) for one in done] == [(True, ())] * many


@pytest.mark.parametrize("many", [1, 2])
def test_a_client_that_waits_for_the_end_of_a_run_is_notified_once(url, opened, many):
    connection = opened(url).connect()
    add_worker(connection)
    started = connection.execute(
        [start("p", worker="w.1"), *(start(f"r{n}", worker="w.1", parent="p" * (n % 2)) for n in range(2 * many))]
    )
    runs = [one.run for one in started[1:]]
    connection.execute([r.WatchRun(run=run.id, id=f"{name}.1") for run in runs for name in "xy"])
    for some in (runs[:many], runs[many:]):
        outcomes = connection.execute([record(run, "x", then=Finish("failed", "1")) for run in some])
        hints = [("w.run/p",) if run.parent else () for run in some]
        assert [one.woken for one in outcomes] == [("x.1", "y.1", *hint) for hint in hints]
    for run in runs:
        assert seen(connection, run.id).run.watchers == ()
    assert [event.name for event in seen(connection, "p").events] == [run.id for run in runs if run.parent]


def test_a_worker_is_removed_only_when_all_its_runs_are_released(url, opened):
    """A run that keeps the name of a removed worker would never be claimed."""
    store = opened(url)
    connection = store.connect()
    add_worker(connection, "w.1")
    add_worker(connection, "v.1")
    connection.execute([start(f"r{n}", worker="w.1") for n in range(3)])
    with changed_row(url, "r1"):
        (outcome,) = connection.execute([r.UnregisterWorker(worker="w.1")])
        assert isinstance(outcome, c.Failed)
        assert "'r1'" in str(outcome.error)
        assert claim(connection, "v.1") == []
    assert isinstance(connection.execute([r.UnregisterWorker(worker="w.1")])[0], WorkerRegistered)
    assert len(claim(connection, "v.1")) == 3


# -- limits ----------------------------------------------------------------------------------------------------


def as_child(connection, command):
    """The same run, started as the child of one that is driven."""
    (parent,) = connection.execute([start(f"parent of {command.new.id}", worker="w.1", type="mail")])
    return record(parent.run, "x", children=(msgspec.structs.replace(command.new, parent=parent.run.id),))


@pytest.mark.parametrize("way", ["start", "child"])
def test_a_start_that_waited_for_another_one_counts_it(url, opened, admin, way):
    """The other start is committed while this one waits for the lock: it must count what it read after the lock."""
    store = opened(url)
    connection = store.connect()
    add_worker(connection)
    publish(connection)
    first, second = limited("a"), limited("b")
    if way == "child":
        first, second = as_child(connection, first), as_child(connection, second)
    with ThreadPoolExecutor(1) as pool:
        with store.transaction() as mine:
            assert isinstance(store.join(mine).execute([first])[0], Started | Recorded)
            late = pool.submit(connection.execute, [second])
            eventually(lambda: waits_for_a_row(admin))
        (outcome,) = late.result()
    if isinstance(outcome, c.Failed):  # the machine was slow
        persist(connection, [second])
    assert statuses(connection, "a", "b") == ["pending", "queued"]


@pytest.mark.parametrize("way", ["start", "child"])
def test_of_many_concurrent_starts_no_more_than_the_limit_are_admitted(url, opened, admin, way):
    store = opened(url)
    connections = [store.connect() for _ in range(8)]
    add_worker(connections[0])
    terms = publish(connections[0], THREE_OF_EACH)
    together = threading.Barrier(8)

    def come(place, command):
        together.wait()
        (outcome,), _ = persist(connections[place], [command])
        assert isinstance(outcome, Started | Recorded)

    with ThreadPoolExecutor(8) as pool:
        for n in range(12):
            names = [f"{n} {place}" for place in range(8)]
            starts = [limited(name, key=f'"{n}"', terms=terms) for name in names]
            if way == "child":
                starts = [as_child(connections[0], one) for one in starts]
            list(pool.map(come, range(8), starts))
            assert sorted(statuses(connections[0], *names)) == ["pending"] * 3 + ["queued"] * 5
    assert_that_places_are_those_of_living_runs(admin)


@pytest.mark.parametrize("many", [1, 2])
def test_ends_of_a_batch_admit_queued_runs(url, opened, admin, many):
    connection = opened(url).connect()
    add_worker(connection)
    terms = publish(connection, WorkflowLimits(limits=(Limit(name="all", max=many, on_excess="queue"),)))
    runs = [one.run for one in connection.execute([limited(f"a{n}", "w.1", terms=terms) for n in range(many)])]
    connection.execute([limited(f"b{n}", terms=terms) for n in range(many + 1)])
    outcomes = connection.execute([record(run, "x", then=Finish("completed", "1")) for run in runs])
    assert [one.woken for one in outcomes] == [(rule.hint_for("w.1", f"b{n}"),) for n in range(many)]
    assert statuses(connection, *(f"b{n}" for n in range(many + 1))) == ["pending"] * many + ["queued"]
    assert_that_places_are_those_of_living_runs(admin)


def test_a_start_concurrent_with_the_end_of_the_last_run_is_admitted(url, opened, admin):
    """A start and an end that each miss the other would leave a run in the queue that is never admitted."""
    store = opened(url)
    worker, friend = store.connect(), store.connect()
    add_worker(worker)
    publish(worker)
    with ThreadPoolExecutor(2) as pool:
        (first,) = worker.execute([limited("r0", "w.1")])
        run = first.run
        for n in range(1, 100):
            many = [start(f"x{n}", type="mail")] if n % 2 else []
            end = pool.submit(persist, worker, [*many, record(run, "a", then=Finish("completed", "1"))])
            come = pool.submit(persist, friend, [limited(f"r{n}")])
            assert end.result()[0][-1].done
            come.result()
            (run,) = claim(worker)
            assert run.id == f"r{n}"
    assert_that_places_are_those_of_living_runs(admin)


def test_a_run_that_is_cancelled_while_it_is_admitted_has_ended(url, opened, admin):
    store = opened(url)
    worker, friend = store.connect(), store.connect()
    add_worker(worker)
    publish(worker)
    with ThreadPoolExecutor(2) as pool:
        for n in range(60):
            (first,) = worker.execute([limited(f"a{n}", "w.1")])
            worker.execute([limited(f"b{n}")])
            end = pool.submit(persist, worker, [record(first.run, "a", then=Finish("completed", "1"))])
            stop = pool.submit(persist, friend, [r.PostEvent(run=f"b{n}", event=RunEvent(kind="cancel"))])
            assert end.result()[0][0].done
            assert stop.result()[0][0].run.status == "cancelled"
    assert admin.execute("SELECT count(*) FROM tests.places").fetchone() == (0,)


def test_the_end_of_a_run_waits_for_the_row_of_the_run_that_it_admits(url, opened):
    """If it were skipped, it would wait forever: no other command admits it."""
    connection = opened(url).connect()
    add_worker(connection)
    publish(connection)
    (first,) = connection.execute([limited("a", "w.1")])
    connection.execute([limited("b")])
    end = record(first.run, "x", then=Finish("completed", "1"))
    with changed_row(url, "b"):
        (outcome,) = connection.execute([end])
        assert isinstance(outcome, c.Failed)
        assert isinstance(outcome.error, StoreContended)
        assert statuses(connection, "a", "b") == ["running", "queued"]
    persist(connection, [end])
    assert statuses(connection, "a", "b") == ["completed", "pending"]


def test_a_start_waits_for_the_row_of_the_run_that_it_cancels(url, opened):
    connection = opened(url).connect()
    add_worker(connection)
    terms = publish(connection, WorkflowLimits(limits=(Limit(name="all", max=1, on_excess="cancel_oldest"),)))
    connection.execute([limited("a", "w.1", terms=terms)])
    with changed_row(url, "a"):
        (outcome,) = connection.execute([limited("b", terms=terms)])
        assert isinstance(outcome, c.Failed)
        assert isinstance(outcome.error, StoreContended)
        assert seen(connection, "b") is None
    persist(connection, [limited("b", terms=terms)])
    assert [seen(connection, run).run.cancelling for run in "ab"] == [True, False]


def test_a_parent_that_is_cancelled_by_the_start_of_its_child_gets_the_event_at_once(url, opened):
    connection = opened(url).connect()
    add_worker(connection)
    terms = publish(connection, WorkflowLimits(limits=(Limit(name="all", max=1, on_excess="cancel_oldest"),)))
    (parent,) = connection.execute([limited("p", "w.1", terms=terms)])
    child = limited("c", terms=terms, parent="p").new
    (recorded,) = connection.execute([record(parent.run, "x", children=(child,), then=Park(None))])
    assert (recorded.done, [event.kind for event in recorded.events]) == (False, ["cancel"])
    run = seen(connection, "p").run
    assert (run.status, run.length, run.posted, run.cancelling) == ("running", 2, 1, True)


def test_a_start_that_waited_for_newly_published_limits_gets_them(url, opened, admin):
    store = opened(url)
    connection = store.connect()
    publish(connection)
    with ThreadPoolExecutor(1) as pool:
        with store.transaction() as mine:
            publish(store.join(mine), THREE_OF_EACH)
            late = pool.submit(connection.execute, [limited("a")])
            eventually(lambda: waits_for_a_row(admin))
        (outcome,) = late.result()
    if isinstance(outcome, c.Failed):
        (outcome,) = connection.execute([limited("a")])
    assert isinstance(outcome, LimitsDiffer)
    assert outcome.terms == THREE_OF_EACH


def test_publishing_limits_waits_for_starts_in_progress(url, opened, admin):
    """A run that is queued by the old limits is admitted by the new ones."""
    store = opened(url)
    connection = store.connect()
    add_worker(connection)
    publish(connection)
    connection.execute([limited("a", "w.1")])
    with ThreadPoolExecutor(1) as pool:
        with store.transaction() as mine:
            assert store.join(mine).execute([limited("b")])[0].run.status == "queued"
            late = pool.submit(persist, connection, [r.PublishLimits(workflow="order", terms=WorkflowLimits())])
            eventually(lambda: waits_for_a_row(admin))
        late.result()
    assert statuses(connection, "a", "b") == ["running", "pending"]


def test_batches_that_use_the_same_limits_in_another_order_do_not_deadlock(url, opened):
    store = opened(url)
    connections = [store.connect() for _ in range(2)]
    terms = publish(connections[0], THREE_OF_EACH)
    together = threading.Barrier(2)

    def come(place):
        contended = 0
        for n in range(40):
            keys = [f'"{key}"' for key in range(10)][:: 1 if place else -1]
            together.wait()
            contended += persist(
                connections[place], [limited(f"{place} {n} {key}", key=key, terms=terms) for key in keys]
            )[1]
        return contended

    with ThreadPoolExecutor(2) as pool:
        assert sum(pool.map(come, range(2))) < 20


def test_a_batch_of_many_keys_does_not_use_up_the_servers_locks(url, opened):
    store = opened(url)
    terms = publish(store.connect(), THREE_OF_EACH)
    with store.transaction() as mine:
        starts = [limited(f"r{n}", key=str(n), terms=terms) for n in range(600)]
        assert {type(one) for one in store.join(mine).execute(starts)} == {Started}
        query = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()"
        assert mine.execute(query).fetchone()[0] <= 257


def test_nothing_is_counted_in_a_transaction_with_an_old_snapshot(url, opened):
    store = opened(url)
    connection = store.connect()
    publish(connection)
    with psycopg.connect(url.partition("?")[0]) as mine:
        mine.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        mine.execute("SELECT FROM tests.places")
        bad, good = store.join(mine).execute([limited("a"), start("b", type="mail")])
        assert isinstance(bad, c.Failed)
        assert "READ COMMITTED" in str(bad.error)
        assert isinstance(good, Started)


@pytest.mark.parametrize("many", [1, 2])
def test_starts_without_limits_get_the_published_ones(url, opened, many):
    connection = opened(url).connect()
    publish(connection)
    outcomes = connection.execute([*(start(f"r{n}") for n in range(many)), *[start("m", type="mail")] * (many - 1)])
    assert [type(one) for one in outcomes] == [LimitsDiffer] * many + [Started] * (many - 1)


# -- rows that somebody else has -------------------------------------------------------------------------------


def test_a_native_form_starts_no_run_that_a_limit_counts(url, opened):
    connection = opened(url).connect()
    add_worker(connection)
    publish(connection)
    for starts in ([start("a", "w.1")], [start("b", "w.1"), start("c", "w.1")]):
        assert {type(one).__name__ for one in connection.execute(starts)} == {"LimitsDiffer"}


def test_a_locked_row_delays_only_its_own_run(url, opened):
    connection = opened(url).connect()
    add_worker(connection)
    runs = [outcome.run for outcome in connection.execute([start(f"r{n}", worker="w.1") for n in range(5)])]
    connection.execute([start("due1"), start("due2")])
    with changed_row(url, "r2"):
        records = [record(run, "a") for run in runs]
        outcomes = connection.execute([*records, signal("r2"), signal("r3"), acquire("k")])
        assert [type(one).__name__ for one in outcomes] == [
            "Recorded", "Recorded", "Failed", "Recorded", "Recorded", "Failed", "Posted", "Granted",
        ]  # fmt: skip
        error = outcomes[2].error
        assert isinstance(error, StoreContended)
        assert (error.ambiguous, error.retryable) == (False, True)
        assert "'r2'" in str(error)
        assert "forgotten" in str(error), "who it is can be seen"
        (alone,) = connection.execute([records[2]])
        assert isinstance(alone.error, StoreContended)
        assert seen(connection, "r2").entries == ("1",), "looks wait for nobody"
        with changed_row(url, "due1"):
            assert [run.id for run in claim(connection)] == ["due2"]
    assert isinstance(connection.execute([records[2]])[0], Recorded)
    assert [run.id for run in claim(connection)] == ["due1"]


def test_a_locked_row_delays_other_commands_of_its_batch_only_for_a_moment(url, opened):
    connection = opened(url).connect()
    add_worker(connection)
    runs = [outcome.run for outcome in connection.execute([start(f"r{n}", worker="w.1") for n in range(100)])]
    with changed_row(url, "r50"):
        times = []
        for at in range(1, 8):
            begun = time.perf_counter()
            outcomes = connection.execute([record(run, "a", at=at) for run in runs])
            times.append(time.perf_counter() - begun)
            assert sum(isinstance(one, Recorded) for one in outcomes) == 99
    assert sorted(times)[3] < 0.3


def test_a_locked_parent_delays_only_the_end_of_its_own_children(url, opened):
    connection = opened(url).connect()
    add_worker(connection)
    runs = [
        outcome.run
        for outcome in connection.execute(
            [
                start("p1", worker="w.1"),
                start("p2", worker="w.1"),
                start("c1", worker="w.1", parent="p1"),
                start("c2", worker="w.1", parent="p2"),
                start("c3", worker="w.1", parent="p1"),
            ]
        )
    ]
    ends = [record(run, "x", then=Finish("completed", "1")) for run in runs[2:]]
    with changed_row(url, "p1"):
        outcomes = connection.execute([*ends, record(runs[1], "go on")])
        assert [type(one).__name__ for one in outcomes] == ["Failed", "Recorded", "Failed", "Recorded"]
        assert "'p1'" in str(outcomes[0].error), "the row that is in the way is named"
        assert seen(connection, "c1").run.status == "running", "nothing was done for it"
        assert "'p1'" in str(connection.execute([ends[0]])[0].error)
    assert [one.done for one in connection.execute([ends[0], ends[2]])] == [True, True]
    assert [event.name for event in seen(connection, "p1").events] == ["c1", "c3"]


def test_no_later_command_of_a_batch_overtakes_one_whose_row_was_locked(url, opened, admin):
    connection = opened(url).connect()
    add_worker(connection)
    (started,) = connection.execute([start(worker="w.1")])
    with changed_row(url, "r") as other, ThreadPoolExecutor(1) as pool:
        commands = [record(started.run, "a"), signal(), record(started.run, "b", at=2), acquire("k")]
        batch = pool.submit(connection.execute, commands)
        eventually(lambda: waits_for_a_row(admin))
        other.rollback()
        outcomes = batch.result()
    assert [type(one).__name__ for one in outcomes] == ["Recorded", "Posted", "Recorded", "Granted"]
    assert seen(connection).entries == ("1", "a", "b")


# -- slots that are written with a record ----------------------------------------------------------------------


@contextmanager
def changed_slot(url, statement="UPDATE tests.slots SET version = version"):
    """Another session has changed a slot's row, and left the transaction open."""
    with psycopg.connect(url.partition("?")[0]) as db:
        db.execute(statement)
        yield db
        db.rollback()


MAKING = "INSERT INTO tests.slots VALUES ('default', 'global', '', 'k', 1, '7', '{\"last\": \"x.1\"}')"


@pytest.mark.parametrize(
    "statement", ["UPDATE tests.slots SET version = version", MAKING], ids=["locked", "being made"]
)
def test_a_locked_slot_delays_only_its_own_record(url, opened, statement):
    connection = opened(url).connect()
    add_worker(connection)
    runs = [outcome.run for outcome in connection.execute([start(f"r{n}", worker="w.1") for n in range(3)])]
    expected = Swap(SLOT, "", 0, "1")
    if statement != MAKING:
        assert connection.execute([swap("a.1")]) == [Swapped(version=1)]
        expected = Swap(SLOT, "a.1", 1, "1")
    stuck = record(runs[1], "a", swap=expected, children=(NewRun(id="c", type="order", input="1", request="c"),))
    with changed_slot(url, statement):
        outcomes = connection.execute(
            [record(runs[0], "a"), stuck, record(runs[2], "a", then=Park(None)), acquire("k")]
        )
        assert [type(one).__name__ for one in outcomes] == ["Recorded", "Failed", "Recorded", "Granted"]
        (alone,) = connection.execute([stuck])
        for outcome in (outcomes[1], alone):
            assert isinstance(outcome.error, StoreContended)
            assert (outcome.error.ambiguous, outcome.error.retryable) == (False, True)
        assert "'k'" in str(alone.error)
        assert seen(connection, "r1").run == runs[1], "nothing was done for it"
        assert seen(connection, "c") is None
    assert isinstance(connection.execute([stuck])[0], Recorded)


@pytest.mark.parametrize("neighbours", [False, True])
def test_a_record_waits_for_a_locked_slot_and_no_later_record_overtakes_it(url, opened, admin, neighbours):
    connection = opened(url).connect()
    add_worker(connection)
    (started, _) = connection.execute([start(worker="w.1"), swap("a.1")])
    commands = [record(started.run, "a", swap=Swap(SLOT, "a.1", 1, "2"), request="q.1")]
    if neighbours:
        park = record(started.run, "c", at=3, then=Park(None))
        commands = [acquire("k"), *commands, record(started.run, "b", at=2), read(), park]
    with changed_slot(url) as other, ThreadPoolExecutor(1) as pool:
        batch = pool.submit(connection.execute, commands)
        eventually(lambda: waits_for_a_row(admin))
        other.rollback()
        outcomes = batch.result()
    assert [type(one).__name__ for one in outcomes if not isinstance(one, SlotSeen)] == (
        ["Granted", "Recorded", "Recorded", "Recorded"] if neighbours else ["Recorded"]
    )
    assert seen(connection).entries == (("1", "a", "b", "c") if neighbours else ("1", "a"))
    assert connection.execute([read()]) == [SlotSeen(version=2, last="r:q.1", value="2")]


@pytest.mark.parametrize("end", ["commit", "rollback"])
@pytest.mark.usefixtures("patient")
def test_a_slot_that_another_transaction_creates_is_read_again(url, opened, end):
    connection = opened(url).connect()
    add_worker(connection)
    (started,) = connection.execute([start(worker="w.1")])
    with changed_slot(url, MAKING) as db:
        threading.Timer(0.01, getattr(db, end)).start()
        (outcome,) = connection.execute([record(started.run, "a", request="q.1", swap=Swap(SLOT, "", 0, "1"))])
    if end == "commit":
        assert outcome == Conflict(version=1, last="x.1", value="7")
        assert seen(connection).entries == ("1",)
    else:
        assert isinstance(outcome, Recorded)
        assert connection.execute([read()]) == [SlotSeen(version=1, last="r:q.1", value="1")]


def test_a_slot_of_a_joined_transaction_is_written_at_its_commit(url, opened):
    store = opened(url)
    connection = store.connect()
    add_worker(connection)
    (started,) = connection.execute([start(worker="w.1")])
    command = record(started.run, "a", request="q.1", swap=Swap(SLOT, "", 0, "1"))
    with pytest.raises(ZeroDivisionError), store.transaction() as mine:
        assert isinstance(store.join(mine).execute([command])[0], Recorded)
        raise ZeroDivisionError
    assert connection.execute([read()]) == [SlotSeen(version=0, last="", value=None)]
    with store.transaction() as mine:
        assert isinstance(store.join(mine).execute([command])[0], Recorded)
    assert connection.execute([read()]) == [SlotSeen(version=1, last="r:q.1", value="1")]
    assert seen(connection).entries == ("1", "a")


def test_batches_that_write_slots_in_opposite_order_neither_deadlock_nor_lose_a_write(url, opened, admin):
    """New slots and old ones, with records and without: every fourth round creates them again."""
    rounds, sessions = 120, 3
    store = opened(url)
    connections = [store.connect() for _ in range(sessions)]
    add_worker(connections[0])
    names = [f"r{place}{side}" for place in range(sessions) for side in range(2)]
    started = connections[0].execute([start(name, worker="w.1") for name in names])
    runs = {outcome.run.id: outcome.run for outcome in started}
    together = threading.Barrier(sessions, timeout=30)

    def added(place, n, side, known, at):
        """One more, in the slot of this side; the last session writes without a record."""
        address = ("global", "", f"{side} {n // 4}")
        value = str(int(known.value or 0) + 1)
        if place == sessions - 1:
            return swap(f"{place}.{at}", known.last, known.version, value, address)
        run = runs[f"r{place}{side}"]
        change = Swap(address, known.last, known.version, value)
        return record(run, "x", at=run.length, request=f"{place}.{at}", swap=change)

    def work(place):
        sent = contended = 0
        for n in range(rounds):
            known = {side: SlotSeen(version=0, last="", value=None) for side in (range(2), range(1, -1, -1))[place % 2]}
            together.wait()
            while known:
                commands = {side: added(place, n, side, known[side], sent + side) for side in known}
                sent += 2
                outcomes, failures = persist(connections[place], list(commands.values()))
                contended += failures
                for side, outcome in zip(commands, outcomes, strict=True):
                    if isinstance(outcome, Conflict):
                        known[side] = outcome
                    else:
                        del known[side]
                        if isinstance(outcome, Recorded):
                            run = runs[f"r{place}{side}"]
                            runs[run.id] = msgspec.structs.replace(run, length=run.length + 1)
        return contended

    before = deadlocks(admin)
    with ThreadPoolExecutor(sessions) as pool:
        contended = sum(pool.map(work, range(sessions)))
    slots = [("global", "", f"{side} {n}") for side in range(2) for n in range(rounds // 4)]
    found = connections[0].execute([read(address) for address in slots])
    assert {(one.version, one.value) for one in found} == {(4 * sessions, str(4 * sessions))}
    lengths = {seen(connections[0], name).run.length for name in names[: 2 * (sessions - 1)]}
    assert lengths == {rounds + 1}, "as many entries as writes"
    assert contended < rounds, "short waits are absorbed"
    for connection in connections:
        connection.close()
    assert deadlocks(admin) == before


def deadlocks(admin):
    """How many deadlocks the server has found."""
    return admin.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()").fetchone()


# -- hints -----------------------------------------------------------------------------------------------------


def test_a_batch_sends_one_notification_and_only_to_other_clients(url, opened):
    store = opened(url)
    connection = store.connect()
    add_worker(connection, "far.1")
    watch = store.watch("far", print)
    listen = watch._listen
    watch.close()
    with psycopg.connect(url.partition("?")[0], autocommit=True) as listener:
        listener.execute(listen)
        connection.execute([*(start(f"r{n}") for n in range(20)), swap("a.1"), start("last")])
        notified = list(listener.notifies(timeout=5, stop_after=1))
        assert len(notified) == 1
        assert sorted(json.loads(notified[0].payload)) == sorted(
            rule.hint_for("far.1", run) for run in (*(f"r{n}" for n in range(20)), "last")
        )
        with closing(store.watch("far", print)):
            connection.execute([start("near")])
            assert list(listener.notifies(timeout=0.1)) == [], "it is notified directly"


# -- what is stored --------------------------------------------------------------------------------------------


def test_the_views_for_operators_show_runs_as_they_are(url, opened, admin):
    connection = opened(url).connect()
    add_worker(connection)
    started, other = connection.execute([start("a", worker="w.1", attributes={"customer": "acme"}), start("b")])
    connection.execute([record(started.run, "x")])
    rows = admin.execute(
        "SELECT id, type, status, driver, entries, extract(epoch FROM created_at) * 1000000, "
        "extract(epoch FROM due_at) * 1000000 FROM tests.run_list ORDER BY id"
    ).fetchall()
    at, later = started.run.created_at, other.run.created_at
    assert rows == [
        ("a", "order", "running", "worker w.1", 2, at, None),
        ("b", "order", "pending", "", 1, later, later),
    ]
    assert admin.execute("SELECT attributes->>'customer' FROM tests.runs WHERE id = 'a'").fetchone() == ("acme",)


def test_an_unreadable_run_is_refused_and_unchanged(url, opened, admin):
    connection = opened(url).connect()
    connection.execute([start()])
    admin.execute("UPDATE tests.runs SET status = 'asleep'")
    (outcome,) = connection.execute([r.ReadRun(run="r")])
    assert isinstance(outcome.error, RecordUnreadable)


def test_a_value_that_the_server_cannot_take_fails_alone(url, opened):
    connection = opened(url).connect()
    add_worker(connection)
    (started,) = connection.execute([start("d", worker="w.1")])
    swaps = [
        Swap(SLOT, "", 0, "a\0b"), Swap(SLOT, "", 0, 7), Swap(SLOT, 7, 0, "1"), Swap(("global", "", 7), "", 0, "1"),
        Swap(SLOT, "", "many", "1"),
    ]  # fmt: skip
    bad = [signal(name_of) for name_of in ("a\0b", 5)] + [start("x", input=None), r.RunCommand()]
    bad += [record(started.run, "x", swap=change) for change in swaps]
    outcomes = connection.execute([start("a"), *bad, start("b"), read()])
    assert [type(one).__name__ for one in outcomes] == ["Started", *["Failed"] * 9, "Started", "SlotSeen"]
    assert (outcomes[-1].version, seen(connection, "d").entries) == (0, ("1",))


def test_attributes_may_contain_any_value(url, opened):
    connection = opened(url).connect()
    odd = {'a,"b":1': "\0", "n": 2**63 - 1, "t": True, "e": "é😀\\"}
    connection.execute([start("a", attributes=odd), start("b", attributes={"n": 1})])
    assert seen(connection, "a").run.attributes == odd
    for wanted, found in (({"n": 1}, ["b"]), ({"t": True}, ["a"]), ({"b": 1}, []), ({"t": 1}, []), (odd, ["a"])):
        (page,) = connection.execute([r.ListRuns(wanted=RunFilter(attributes=wanted))])
        assert [run.id for run in page.runs] == found


def test_a_worker_whose_session_has_ended_loses_its_runs(url, opened):
    """With advisory=true a lease ends with its process, and so do its claims."""
    tied, other = opened(f"{url}&advisory=true"), opened(url)
    mine, yours = tied.connect(), other.connect()
    add_worker(mine, "w.1")
    add_worker(yours, "v.1")
    mine.execute([start(worker="w.1")])
    assert claim(yours, "v.1") == []
    tied._advisory.close()
    eventually(lambda: [run.id for run in claim(yours, "v.1")] == ["r"])


def test_a_start_does_not_overtake_a_release_that_the_fast_path_declined(url, opened, clock):
    """The lock is the lease of the worker; somebody waits for it, so only the rules can release it."""
    store = opened(url, clock=clock)
    connection, other = store.connect("commands"), store.connect("commands")
    (lease,) = connection.execute([acquire("worker/w.9", "w.9", kind="worker")])
    assert isinstance(lease, Granted)
    connection.execute([r.RegisterWorker(worker="w.9", name="w", types=("order",)), start("before", worker="w.9")])
    connection.execute([wait("worker/w.9", "w.10", kind="worker")])
    released, started = other.execute(  # this connection does not know yet that somebody waits for the lock
        [release("worker/w.9", "w.9", token=lease.token), start("after", worker="w.9")]
    )
    assert type(released).__name__ == "Released"
    assert type(started).__name__ == "WorkerGone", started
