"""Locks of runs on PostgreSQL, also while other transactions have locked rows of runs and of locks."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

import psycopg
import pytest
from providers import PROVIDERS
from waiting import eventually

from holdfast import commands as c
from holdfast.commands import runs as r
from holdfast.errors import RecordUnreadable, StoreContended
from holdfast.rules import lock_outcomes as out
from holdfast.rules.runs import lock_queue as overflow
from holdfast.rules.runs import record as rule
from holdfast.rules.runs.lock_requests import attempt_of
from holdfast.rules.runs.outcomes import Recorded, RunSeen
from holdfast.rules.runs.record import Finish, Park
from holdfast.rules.slot import Conflict, Swap
from holdfast.testing.builders import SLOT, ManualClock, acquire, release, renew, swap, wait
from holdfast.testing.suite.run_locks import give, take
from holdfast.testing.suite.runs import record, signal, start
from stores.runs_asking import add_worker, ask, claim, driven


@pytest.fixture
def url(tmp_path):
    return PROVIDERS["postgres"].url(tmp_path)


@pytest.fixture
def admin(url):
    with psycopg.connect(url.partition("?")[0], autocommit=True) as db:
        yield db


@contextmanager
def changed(url, statement):
    """Another session has changed a row, and left the transaction open."""
    with psycopg.connect(url.partition("?")[0], application_name="forgotten") as db:
        db.execute(statement)
        yield db
        db.rollback()


SHARED = {"kind": "semaphore", "permits": 5}
RUN = "UPDATE tests.runs SET crashes = crashes WHERE id = '{}'"
LOCK = "UPDATE tests.locks SET due_at = due_at WHERE key = '{}'"
MAKING = "INSERT INTO tests.locks VALUES ('default', '{}', '{{\"fence\": 7, \"version\": 1}}', NULL)"


def look(connection, run="r"):
    return ask(connection, r.ReadRun(run=run, history=True), RunSeen).claim


def inbox(connection, run="r"):
    return [(event.kind, event.name) for event in look(connection, run).events]


def locked(connection, key="k"):
    return ask(connection, c.Inspect(key=key), out.LockSeen).record


def holders(connection, key="k"):
    record = locked(connection, key)
    return [] if record is None else [holder.id for holder in record.holders]


def waiting(connection, run="r", *, key="k", number=1, holder="a.1"):
    """A run that is parked until it is offered a held lock. Returns the run and the holder's token."""
    (granted,) = connection.execute([acquire(key, holder)])
    asker = driven(connection, run)
    parked = ask(connection, record(asker, lock_requests=(take(number, key),), then=Park(None)), Recorded)
    assert ([answers.what for answers in parked.answers], parked.done) == (["queued"], True)
    return asker, granted.token


def persist(connection, *commands):
    """Send until every command has an outcome, as callers do."""
    answers, late = {}, time.monotonic() + 20
    while len(answers) < len(commands):
        assert time.monotonic() < late, "it was never answered"
        left = [place for place in range(len(commands)) if place not in answers]
        for place, outcome in zip(left, connection.execute([commands[place] for place in left]), strict=True):
            if not isinstance(outcome, c.Failed):
                answers[place] = outcome
            elif not isinstance(outcome.error, StoreContended):
                raise outcome.error
    return [answers[place] for place in range(len(commands))]


def assert_contended(outcome, row):
    assert isinstance(outcome, c.Failed), outcome
    assert isinstance(outcome.error, StoreContended)
    assert (outcome.error.ambiguous, outcome.error.retryable) == (False, True)
    assert f"'{row}'" in str(outcome.error), "the row that is in the way is named"


# -- one after the other -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("neighbours", [0, 1])
def test_events_of_runs_are_in_the_order_of_the_commands_of_a_batch(url, opened, neighbours):
    """The keys are locked in another order, and of two commands about one key the second is in a later part."""
    connection = opened(url).connect()
    add_worker(connection)
    tokens = [ask(connection, acquire(key), out.Granted).token for key in "abc"]
    run = driven(connection)
    connection.execute(
        [record(run, lock_requests=[take(number, key) for number, key in enumerate("abc")], then=Park(None))]
    )
    releases = [release(key, token=token) for key, token in zip("abc", tokens, strict=True)]
    order = [releases[1], acquire("c", "z.1"), releases[2], *[acquire("d", "z.1")] * neighbours, releases[0]]
    outcomes = connection.execute(order)
    assert [one.woken for one in outcomes if isinstance(one, out.Released)] == [
        (attempt_of("r", number),) for number in (1, 2, 0)
    ]
    assert inbox(connection) == [("lock", "1"), ("lock", "2"), ("lock", "0")]


def test_events_of_locks_that_the_end_of_a_run_frees_keep_the_order_of_the_batch(url, opened):
    connection = opened(url).connect()
    add_worker(connection)
    first, early, late, other = (driven(connection, run) for run in ("a", "b", "c", "d"))
    for run in (first, early, late):
        connection.execute(
            [record(run, lock_requests=(take(1, "b"), take(2, "c")) if run is first else (take(1, run.id),))]
        )
    early_parks, ended, late_parks, recorded = connection.execute(
        [
            record(early, "x", then=Park(None)),
            record(first, "x", then=Finish("completed", "1")),
            record(late, "x", then=Park(None)),
            record(other, "x"),
        ]
    )
    assert (early_parks.done, ended.done, late_parks.done, recorded.done) == (True, True, False, True)
    assert [(event.kind, event.name) for event in late_parks.events] == [("lock", "1")]
    assert look(connection, "b").run.due_at is not None


def test_a_parent_that_is_offered_a_lock_of_its_ended_child_gets_both_events(url, opened):
    connection = opened(url).connect()
    add_worker(connection)
    parent, child = driven(connection, "p"), driven(connection, "c", parent="p")
    connection.execute([record(child, lock_requests=(take(1), take(2, "other")))])
    connection.execute([record(parent, lock_requests=(take(1), take(2, "other")), then=Park(None))])
    ended = ask(connection, record(child, lock_requests=(give(2, "other"),), then=Finish("completed", "1")), Recorded)
    assert ended.done
    assert inbox(connection, "p") == [("lock", "2"), ("child", "c"), ("lock", "1")]


def test_a_record_whose_slot_another_client_has_written_requests_no_lock(url, opened):
    connection = opened(url).connect()
    add_worker(connection)
    run = driven(connection)
    connection.execute([swap("a.1")])
    ask(connection, record(run, lock_requests=(take(),), swap=Swap(SLOT, "", 0, "2")), Conflict)
    assert locked(connection) is None


def test_an_unreadable_lock_is_refused_and_nothing_is_done(url, opened, admin):
    connection = opened(url).connect()
    add_worker(connection)
    run, other = driven(connection), driven(connection, "o")
    connection.execute([acquire("k")])
    admin.execute("UPDATE tests.locks SET record = '{\"holders\": 7}' WHERE key = 'k'")
    refused, recorded = connection.execute(
        [record(run, "x", lock_requests=(take(1, "other"), take(2))), record(other, "x")]
    )
    assert isinstance(refused.error, RecordUnreadable)
    assert "'k'" in str(refused.error)
    assert isinstance(recorded, Recorded)
    assert (look(connection).entries, look(connection).run, holders(connection, "other")) == (("1",), run, [])


def test_malformed_lock_requests_fail_alone(url, opened):
    connection = opened(url).connect()
    add_worker(connection)
    run = driven(connection)
    bad = [take(1, key=7), take("1"), take(1, kind=7), take(1, "a\0b"), take(1, permits="many")]
    outcomes = connection.execute(
        [*(record(run, "x", lock_requests=(one,)) for one in bad), record(run, "y", lock_requests=(take(),))]
    )
    assert [type(one).__name__ for one in outcomes] == ["Failed"] * 5 + ["Recorded"]
    assert look(connection).entries == ("1", "y")


def test_locks_released_in_a_joined_transaction_are_free_after_its_commit(url, opened):
    store = opened(url)
    connection = store.connect()
    add_worker(connection)
    first, second = driven(connection), driven(connection, "s")
    connection.execute(
        [record(first, lock_requests=(take(),)), record(second, lock_requests=(take(),), then=Park(None))]
    )
    end = record(first, "x", then=Finish("completed", "1"))
    with pytest.raises(ZeroDivisionError), store.transaction() as mine:
        assert isinstance(store.join(mine).execute([end])[0], Recorded)
        raise ZeroDivisionError
    assert (holders(connection), inbox(connection, "s")) == (["run:1:r"], [])
    with store.transaction() as mine:
        assert store.join(mine).execute([end])[0].woken[0] == "run:1:s"
    assert (holders(connection), inbox(connection, "s")) == (["run:1:s"], [("lock", "1")])


# -- rows that somebody else has ---------------------------------------------------------------------------------


@pytest.mark.parametrize("neighbours", [0, 2])
def test_a_lock_is_not_offered_to_a_run_whose_row_is_locked(url, opened, neighbours):
    """The event of the run could not be written, and no later command would write it."""
    connection = opened(url).connect()
    add_worker(connection)
    _, token = waiting(connection)
    others = [acquire(f"other {n}") for n in range(neighbours)]
    with changed(url, RUN.format("r")):
        *granted, refused = connection.execute([*others, release(token=token)])
        assert_contended(refused, "r")
        assert [type(one) for one in granted] == [out.Granted] * neighbours
        assert holders(connection) == ["a.1"], "nothing was done for it"
    connection.execute([*others, release(token=token)])
    assert (holders(connection), inbox(connection)) == (["run:1:r"], [("lock", "1")])
    assert look(connection).run.due_at is not None


def test_a_release_waits_for_the_row_of_the_run_that_it_wakes(url, opened, admin):
    connection = opened(url).connect()
    add_worker(connection)
    _, token = waiting(connection)
    with changed(url, RUN.format("r")) as other, ThreadPoolExecutor(1) as pool:
        released = pool.submit(persist, connection, release(token=token), acquire("other"))
        eventually(lambda: waits_for_a_row(admin))
        other.rollback()
        assert isinstance(released.result()[0], out.Released)
    assert inbox(connection) == [("lock", "1")]


@pytest.mark.parametrize("where", ["listed", "overflow"])
def test_a_sweep_skips_a_lock_whose_next_run_has_a_locked_row(url, opened, where, monkeypatch):
    clock = ManualClock()
    connection = opened(url, clock=clock).connect()
    add_worker(connection)
    if where == "overflow":
        monkeypatch.setattr(overflow, "LISTED", 1)
        first, _ = waiting(connection, "first")
        second = driven(connection, "r")
        ask(connection, record(second, lock_requests=(take(1, "k"),), then=Park(None)), Recorded)
        ask(connection, c.Abandon(key="k", id=attempt_of(first.id, 1), ttl=0), out.Abandoned)
        assert ask(connection, c.Inspect(key="k"), out.LockSeen).record.overflow.count == 1
    else:
        waiting(connection)
    ask(connection, wait("other"), out.Granted)
    ask(connection, wait("other", "x.1", waiter_ttl=120_000_000), out.Queued)
    clock.pass_by(40)
    with changed(url, RUN.format("r")):
        assert connection.execute([c.SettleDue()]) == [c.Swept(seen=1, changed=1, next=None, woken=("x.1",))]
        assert inbox(connection) == []
    assert connection.execute([c.SettleDue()]) == [c.Swept(seen=1, changed=1, next=None, woken=("run:1:r",))]
    assert inbox(connection) == [("lock", "1")]


@pytest.mark.parametrize("statement", [LOCK, MAKING], ids=["locked", "being made"])
@pytest.mark.parametrize("neighbours", [0, 2])
def test_a_lock_with_a_locked_row_delays_only_the_run_that_requests_it(url, opened, statement, neighbours):
    connection = opened(url).connect()
    add_worker(connection)
    run, others = driven(connection), [driven(connection, f"o{n}") for n in range(neighbours)]
    if statement is LOCK:
        connection.execute([acquire("k")])
    asking = record(run, "x", lock_requests=(take(1, "free"), take(2), take(3, "z")), children=(start("child").new,))
    with changed(url, statement.format("k")):
        *recorded, refused = connection.execute(
            [*(record(one, lock_requests=(take(1, one.id),)) for one in others), asking]
        )
        assert_contended(refused, "k")
        assert [type(one) for one in recorded] == [Recorded] * neighbours
        assert (look(connection).run, look(connection).entries) == (run, ("1",)), "nothing was done for it"
        assert (holders(connection, "free"), look(connection, "child")) == ([], None)
    (outcome,) = persist(connection, asking)
    assert [answers.what for answers in outcome.answers] == [
        "granted",
        "queued" if statement is LOCK else "granted",
        "granted",
    ]


def test_a_record_waits_for_the_row_of_a_lock_and_no_later_record_overtakes_it(url, opened, admin):
    connection = opened(url).connect()
    add_worker(connection)
    run, _ = driven(connection), connection.execute([acquire("k")])
    commands = [
        record(run, "a", lock_requests=(take(),)),
        record(run, "b", at=2),
        record(run, "c", at=3, then=Park(None)),
    ]
    with changed(url, LOCK.format("k")) as other, ThreadPoolExecutor(1) as pool:
        batch = pool.submit(persist, connection, *commands)
        eventually(lambda: waits_for_a_row(admin))
        other.rollback()
        assert {type(one) for one in batch.result()} == {Recorded}
    assert look(connection).entries == ("1", "a", "b", "c")


@pytest.mark.parametrize("way", ["ask", "end"])
def test_a_lock_whose_row_was_locked_when_the_clock_was_read_is_not_decided_by_that_time(url, opened, admin, way):
    """While a batch is slow the row is unlocked and a lease renewed: by the time of the batch it would end too late."""
    store = opened(url)
    holder, driver = store.connect(), store.connect()
    add_worker(driver)
    run = driven(driver)
    granted, slow = holder.execute([acquire("k", ttl=60, **SHARED), acquire("slow")])
    command = record(run, "x", lock_requests=(take(2, **SHARED),))
    if way == "end":
        connected = ask(driver, record(run, lock_requests=(take(1, **SHARED),)), Recorded)
        assert connected.answers[0].what == "granted"
        command = record(run, "x", then=Finish("completed", "1"))
    admin.execute(
        "CREATE FUNCTION tests.dawdle() RETURNS trigger LANGUAGE plpgsql AS $$ "
        "BEGIN PERFORM pg_sleep(0.5); RETURN NEW; END $$; "
        "CREATE TRIGGER dawdles BEFORE UPDATE ON tests.locks FOR EACH ROW WHEN (NEW.key = 'slow') "
        "EXECUTE FUNCTION tests.dawdle()"
    )
    try:
        with changed(url, LOCK.format("k")) as other, ThreadPoolExecutor(1) as pool:
            batch = pool.submit(driver.execute, [renew("slow", token=slow.token), command])
            time.sleep(0.2)
            other.rollback()
            (renewed,) = holder.execute([renew("k", token=granted.token, ttl=60)])
            first, second = batch.result()
            assert isinstance(first, out.Renewed)
            assert isinstance(second, c.Failed | Recorded)
    finally:
        admin.execute("DROP FUNCTION tests.dawdle() CASCADE")
    assert locked(holder).holders[0].expires_at == renewed.expires_at
    persist(driver, command)
    assert locked(holder).holders[0].expires_at == renewed.expires_at


@pytest.mark.parametrize("statement", [LOCK.format("k"), RUN.format("heir")], ids=["lock", "heir"])
@pytest.mark.parametrize("way", ["end", "end of many", "give", "revive"])
def test_no_lock_is_released_while_a_row_is_locked(url, opened, way, statement):
    connection = opened(url).connect()
    add_worker(connection)
    run, heir, other = driven(connection), driven(connection, "heir"), driven(connection, "o")
    connection.execute([record(run, lock_requests=(take(1), take(2, "free")))])
    connection.execute([record(heir, lock_requests=(take(1),), then=Park(None))])
    commands = {
        "end": [record(run, "x", then=Finish("completed", "1"))],
        "end of many": [record(run, "x", then=Finish("completed", "1")), record(other, "x")],
        "give": [record(run, "x", lock_requests=(give(1), give(2, "free")))],
        "revive": [record(run, "x", then=Park(None)), r.ReviveRun(run="r", fence=run.fence, keep=1, request="again")],
    }[way]
    place = 1 if way == "revive" else 0
    with changed(url, statement):
        outcomes = connection.execute(commands)
        assert_contended(outcomes[place], "heir" if "heir" in statement else "k")
        assert [type(one) for one in outcomes[:place] + outcomes[place + 1 :]] == [Recorded] * (len(commands) - 1)
        assert look(connection).run.locks == ((1, "k"), (2, "free")), "nothing was done for it"
        assert (holders(connection), holders(connection, "free")) == (["run:1:r"], ["run:2:r"])
    connection.execute(commands[place : place + 1])
    assert (holders(connection), holders(connection, "free")) == (["run:1:heir"], [])
    assert inbox(connection, "heir") == [("lock", "1")]
    assert look(connection).run.locks == ()


def waits_for_a_row(admin):
    (many,) = admin.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND application_name = 'holdfast'"
    ).fetchone()
    return many > 0


# -- at once -----------------------------------------------------------------------------------------------------


class LockingRun:
    """A run that acquires and releases one lock repeatedly, and the events that its driver got."""

    def __init__(self, run):
        self.run, self.number, self.holds = run, 1, False
        self.queued, self.granted = set(), set()

    def go_on(self, connection, rounds):
        """Drive it until it parks, or until it has had the lock often enough."""
        length, seen = self.run.length, self.run.posted
        for turn in range(1_000):
            lock_requests = (take(self.number),)
            if self.holds:
                self.number += 1
                lock_requests = (give(self.number - 1), *([take(self.number)] if self.number <= rounds else []))
            together = turn % 2 == 0 and self.number <= rounds
            request = f"{self.run.fence} {turn}"
            then = Park(None) if together else None
            more = {
                "at": length,
                "seen": seen,
                "lock_requests": lock_requests,
                "stuck": ("c",) if turn % 3 else None,
                "then": then,
            }
            (outcome,) = persist(connection, record(self.run, "x", request=request, **more))
            length += 1
            seen = max([seen, *(event.number for event in outcome.events)])
            self.holds = outcome.answers[-1].what == "granted"
            (self.granted if self.holds else self.queued).add(self.number)
            if together and outcome.done:
                return  # it may have the lock: then it is claimed by name
            if self.number > rounds:
                persist(connection, record(self.run, at=length, seen=10**9, then=Finish("completed", "1")))
                return
            if not self.holds:
                (parked,) = persist(
                    connection, record(self.run, at=length, seen=seen, request=f"{request} park", then=Park(None))
                )
                seen = max([seen, *(event.number for event in parked.events)])
                if parked.done:
                    return
        raise AssertionError("it never slept")


class ConcurrentClients:
    """Other clients, active while runs are driven: some acquire the same lock, some lock the rows of the same runs."""

    def __init__(self, store, names):
        self.names = names
        self.connections = [store.connect() for _ in range(4)]
        self.failures = []
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(4)

    def __enter__(self):
        for place, connection in enumerate(self.connections):
            self._pool.submit(self._guarded, self._take_lock if place < 2 else self._lock_rows, connection, place)
        return self

    def __exit__(self, *_):
        self._stop.set()
        self._pool.shutdown()
        for connection in self.connections:
            connection.close()

    def _guarded(self, work, connection, place):
        try:
            work(connection, place)
        except BaseException as error:
            self.failures.append(error)
            raise

    def _take_lock(self, connection, place):
        """Acquire and release the lock, alone or in a batch with other commands."""
        for n in range(1_000_000):
            me, more = f"x{place}.{n}", [acquire(f"other {place}", f"x{place}.{n}")] * (n % 2)
            while not isinstance((answer := persist(connection, *more, wait("k", me))[-1]), out.Granted):
                time.sleep(0.001)
                if self._stop.is_set():
                    persist(connection, c.Abandon(key="k", id=me, ttl=0))
                    return
            persist(connection, *more, release("k", me, token=answer.token))
            if self._stop.is_set():
                return

    def _lock_rows(self, connection, place):
        """Lock the rows of the runs, by different statements."""
        for n in range(1_000_000):
            run = self.names[n % len(self.names)]
            persist(connection, r.WatchRun(run=run, id=f"y{place}.1") if n % 2 else signal(run, key=str(n % 8)))
            if self._stop.is_set():
                return


def drive(connection, askers, crowd, rounds):
    """Claim runs and drive them until each has had the lock often enough, or a minute has passed."""
    late = time.monotonic() + 60
    for asker in askers.values():
        asker.go_on(connection, rounds)
    while any(asker.number <= rounds for asker in askers.values()) and time.monotonic() < late and not crowd.failures:
        asleep_with_it = tuple(name for name, asker in askers.items() if asker.holds)
        (claimed,) = persist(connection, claim(runs=asleep_with_it, limit=10))
        for one in claimed.claims:
            asker = askers[one.run.id]
            asker.run = one.run
            assert all(number == asker.number for number, _ in one.held)
            asker.go_on(connection, rounds)


def test_every_run_that_is_offered_a_lock_gets_its_event_under_concurrent_changes(url, opened, admin):
    """Runs park until they get a lock; clients acquire it in between; others lock the rows of the same runs."""
    rounds, names = 12, [f"r{n}" for n in range(5)]
    store = opened(url)
    connection, before = store.connect(), deadlocks(admin)
    add_worker(connection, seconds=600)
    askers = {name: LockingRun(driven(connection, name)) for name in names}
    with ConcurrentClients(store, names) as crowd:
        drive(connection, askers, crowd, rounds)
    assert crowd.failures == []
    assert missed_offers(admin) == []
    for name, asker in askers.items():
        received = Counter(event for kind, event in inbox(connection, name) if kind == "lock")
        assert asker.granted == set(range(1, rounds + 1)), f"{name} was forgotten"
        assert set(received) == {str(number) for number in asker.queued & asker.granted}, "an event for every offer"
        assert set(received.values()) <= {1}
        assert (look(connection, name).run.status, look(connection, name).run.locks) == ("completed", ())
    assert [holder for holder in holders(connection) if holder.startswith("run:")] == []
    connection.close()
    assert deadlocks(admin) == before


def missed_offers(admin):
    """Runs that have an offer of a lock, and no event that would wake them."""
    return admin.execute(
        "SELECT r.id, h->>'id' FROM tests.runs AS r "
        "JOIN tests.locks AS l ON l.namespace = r.namespace "
        "CROSS JOIN LATERAL jsonb_array_elements(l.record->'holders') AS h "
        "WHERE r.status = 'suspended' AND r.due_at IS NULL AND h ? 'offered' AND h->>'id' LIKE 'run:%:' || r.id"
    ).fetchall()


def deadlocks(admin):
    """How many deadlocks the server has found."""
    return admin.execute("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()").fetchone()


def test_two_runs_that_request_the_same_new_keys_in_opposite_order_do_not_deadlock(url, opened, admin):
    store = opened(url)
    connections = [store.connect() for _ in range(2)]
    add_worker(connections[0])
    runs = [driven(connections[0], f"r{place}") for place in range(2)]
    together, before = threading.Barrier(2, timeout=30), deadlocks(admin)

    def work(place):
        for n in range(60):
            keys = [take(2 * n, f"a {n // 2}"), take(2 * n + 1, f"b {n // 2}")]
            together.wait()
            lock_requests = tuple(keys if place else reversed(keys))
            persist(connections[place], record(runs[place], "x", at=2 * n + 1, seen=10**6, lock_requests=lock_requests))
            together.wait()
            back = tuple(give(one.number, one.key) for one in keys)
            persist(connections[place], record(runs[place], "x", at=2 * n + 2, seen=10**6, lock_requests=back))

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(work, range(2)))
    assert admin.execute("SELECT count(*) FROM tests.locks WHERE record ?| ARRAY['holders', 'waiters']").fetchone() == (
        1,
    ), "only the worker's lease"
    assert deadlocks(admin) == before


# -- hints -------------------------------------------------------------------------------------------------------


def test_only_the_worker_of_a_run_that_is_offered_a_lock_is_notified(url, opened):
    store = opened(url)
    connection = store.connect()
    add_worker(connection, "far.1")
    tokens = [ask(connection, acquire(key), out.Granted).token for key in "abc"]
    for n, key in enumerate("abc"):
        (started,) = connection.execute([start(f"r{n}", worker="far.1")])
        connection.execute([record(started.run, lock_requests=(take(1, key),), then=Park(None))])
    releases = [release(key, token=token) for key, token in zip("abc", tokens, strict=True)]
    with psycopg.connect(url.partition("?")[0], autocommit=True) as listener:
        for channel in ("far", "run:1:r0"):
            with closing(store.watch(channel, print)) as watch:
                listener.execute(watch._listen)
        connection.execute(releases[:1])
        (note,) = listener.notifies(timeout=5, stop_after=1)
        assert json.loads(note.payload) == [rule.hint_for("far.1", "r0")]
        connection.execute([releases[1], acquire("z")])
        (note,) = listener.notifies(timeout=5, stop_after=1)
        assert json.loads(note.payload) == [rule.hint_for("far.1", "r1")]
        received = []
        with closing(store.watch("far", received.append)):
            assert connection.execute(releases[2:])[0].woken == ("run:1:r2",)
            eventually(lambda: [rule.hint_for("far.1", "r2")] in received)
            assert list(listener.notifies(timeout=0.1)) == [], "it is notified directly"
