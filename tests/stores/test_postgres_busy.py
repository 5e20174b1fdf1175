"""Rows and tables that another transaction has locked on PostgreSQL delay only the commands that need them; errors
name them."""

from __future__ import annotations

from contextlib import ExitStack, closing, contextmanager
from urllib.parse import urlsplit

import psycopg
import pytest
from providers import PROVIDERS

from holdfast import commands as c
from holdfast.commands import runs as r
from holdfast.errors import StoreContended, StoreUnusable
from holdfast.rules import lock_outcomes as out
from holdfast.rules.runs.limits import Limit, LimitKey, WorkflowLimits
from holdfast.rules.runs.outcomes import Recorded, RunCounts, Started
from holdfast.rules.runs.record import Finish, NewRun
from holdfast.rules.runs.repository import RunFilter
from holdfast.stores.postgresql import batch as postgres_batch
from holdfast.stores.postgresql.reading import number_of
from holdfast.stores.postgresql.repository import HASTE
from holdfast.stores.postgresql.session import Session, Statement
from holdfast.stores.postgresql.statements import PATIENCE
from holdfast.stores.questions import GroupSize
from holdfast.testing.builders import acquire
from stores.runs_asking import add_worker

TERMS = WorkflowLimits(limits=(Limit(name="tenant", max=10, path="t", on_excess="queue"),), version=1)
BOTH = WorkflowLimits(
    limits=(Limit(name="all", max=10, on_excess="queue"), Limit(name="tenant", max=10, path="t", on_excess="queue")),
    version=2,
)


@pytest.fixture
def url(tmp_path):
    return PROVIDERS["postgres"].url(tmp_path)


@pytest.fixture
def admin(url):
    with psycopg.connect(url.partition("?")[0], autocommit=True) as db:
        yield db


@pytest.fixture
def trips(monkeypatch):
    """What was sent in each round trip."""
    made, trip = [], Session.trip

    def counting(self, statements):
        made.append(statements)
        return trip(self, statements)

    monkeypatch.setattr(Session, "trip", counting)
    return made


def start(run, tenant="a", terms=TERMS, worker=""):
    places = tuple(LimitKey(limit.name, tenant if limit.path else "") for limit in terms.limits)
    new = NewRun(id=run, type="order", input="1", request=run, places=places, terms=terms.digest)
    return r.StartRun(new=new, worker=worker)


@contextmanager
def busy_limit(store, run="first", tenant="busy", terms=TERMS):
    """A transaction that has counted at this limit and is still open."""
    with store.transaction() as mine:
        (started,) = store.join(mine).execute([start(run, tenant, terms)])
        assert isinstance(started, Started)
        yield mine


def names(outcomes):
    return [type(outcome).__name__ for outcome in outcomes]


def publish(connection, terms=TERMS):
    connection.execute([r.PublishLimits(workflow="order", terms=terms)])


# -- limits ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [0, 30], ids=["first", "last"])
def test_a_locked_limit_delays_only_its_own_starts(url, opened, trips, place):
    store = opened(url)
    connection = store.connect()
    publish(connection)
    others = [acquire(f"k{n}") for n in range(30)]
    commands = [*others[:place], start("r1", "busy"), start("r2", "busy"), *others[place:], start("free", "other")]
    with busy_limit(store):
        trips.clear()
        outcomes = connection.execute(commands)
        failures = [outcome for outcome in outcomes if isinstance(outcome, c.Failed)]
        assert [place for place, one in enumerate(outcomes) if isinstance(one, c.Failed)] == [place, place + 1]
        assert isinstance(outcomes[-1], Started)
        assert len(trips) < 30
    for failure in failures:
        assert isinstance(failure.error, StoreContended)
        assert not failure.error.ambiguous
        assert "the limit 'tenant' for busy of the workflow 'order' is locked" in str(failure.error)
    assert "by process" in str(failures[0].error)
    assert names(connection.execute(commands[place : place + 2])) == ["Started", "Started"]


def test_the_error_of_a_single_start_names_the_locked_limit(url, opened):
    store = opened(url)
    connection = store.connect()
    publish(connection)
    with busy_limit(store):
        (failure,) = connection.execute([start("r1", "busy")])
    assert "the limit 'tenant' for busy of the workflow 'order' is locked by process" in str(failure.error)


def test_the_error_of_an_end_names_the_locked_limit_and_not_the_run(url, opened):
    store = opened(url)
    connection = store.connect()
    add_worker(connection)
    publish(connection)
    (started,) = connection.execute([start("r1", "busy", worker="w.1")])
    end = r.RecordRun(run="r1", fence=started.run.fence, at=1, request="end", entries=(), then=Finish("completed", "1"))
    with busy_limit(store):
        failure, granted = connection.execute([end, acquire("k")])
        assert isinstance(granted, out.Granted)
        assert "the limit 'tenant' for busy" in str(failure.error)
        (failure,) = connection.execute([end])
        assert "the limit 'tenant' for busy" in str(failure.error)
    assert isinstance(connection.execute([end])[0], Recorded)


def test_a_change_of_limits_delays_only_the_starts_that_they_count(url, opened):
    store = opened(url)
    connection = store.connect()
    publish(connection)
    with store.transaction() as mine:
        store.join(mine).execute([r.PublishLimits(workflow="order", terms=BOTH)])
        outcomes = connection.execute([start("r1"), acquire("k"), r.ReadLimits(workflow="order")])
        assert names(outcomes) == ["Failed", "Granted", "LimitsDiffer"]
        assert "the limits of the workflow 'order' are locked by process" in str(outcomes[0].error)


def test_nothing_is_counted_without_its_lock(url, opened, admin):
    """Another transaction has admitted ten of ten and is not committed: a start that does not wait for it must not
    count."""
    store = opened(url)
    connection = store.connect()
    publish(connection)
    with busy_limit(store, tenant="a") as mine:
        others = [start(f"o{n}", "a") for n in range(9)]
        assert set(names(store.join(mine).execute(others))) == {"Started"}
        outcomes = connection.execute([start("x", "a"), start("y", "a"), acquire("k")])
        assert names(outcomes) == ["Failed", "Failed", "Granted"]
    outcomes = connection.execute([start("x", "a"), start("y", "a")])
    assert [outcome.run.status for outcome in outcomes] == ["queued", "queued"]
    assert admin.execute("SELECT count(*) FROM tests.places WHERE NOT queued").fetchone() == (10,)


def test_limits_that_a_batch_waited_for_are_locked_together_with_the_next_one(url, opened, monkeypatch):
    """Otherwise two clients whose commands need the same two limits would alternately miss one of them."""
    store = opened(url)
    connection = store.connect()
    publish(connection, BOTH)
    monkeypatch.setattr(postgres_batch, "LOOKS_FOR", 20.0)
    others: dict[str, psycopg.Connection] = {}
    awaited, look = [], postgres_batch.PostgresBatch._next_awaited

    def noting(self):
        found = look(self)
        awaited.append([one.group for one in found])
        others[found[-1].group].rollback()
        return found

    monkeypatch.setattr(postgres_batch.PostgresBatch, "_next_awaited", noting)
    with ExitStack() as open_ones:
        for group in ("order/all/", "order/tenant/a"):
            others[group] = open_ones.enter_context(psycopg.connect(url.partition("?")[0]))
            number = number_of(b"default", GroupSize(group, queued=False))
            others[group].execute("SELECT pg_advisory_xact_lock(%s)", [number])
        starts = [start(name, "a", BOTH) for name in ("r1", "r2")]
        assert names(connection.execute(starts)) == ["Started", "Started"]
    assert list(map(len, awaited)) == [1, 2]


def test_a_limit_that_is_locked_again_delays_only_its_own_starts(url, opened):
    store = opened(url)
    connection = store.connect()
    publish(connection)
    connection._batch._moving[GroupSize("order/tenant/busy", queued=False)] = None
    with busy_limit(store):
        for n in range(2):
            outcomes = connection.execute([start(f"r{n}", "busy"), start(f"o{n}", "other")])
            assert names(outcomes) == ["Failed", "Started"]
            assert "the limit 'tenant' for busy" in str(outcomes[0].error)


# -- keys that another transaction inserts -------------------------------------------------------------------------


def test_keys_that_another_transaction_inserts_delay_only_their_own_commands(url, opened, trips):
    store = opened(url)
    connection = store.connect()
    connection.execute([acquire("warm")])
    commands = [acquire(f"new{n // 20}" if n % 20 == 19 else f"k{n}") for n in range(100)]
    with store.transaction() as mine:
        store.join(mine).execute([acquire(f"new{n}", id=f"other.{n}") for n in range(5)])
        outcomes = connection.execute(commands)
        failed = [place for place, one in enumerate(outcomes) if isinstance(one, c.Failed)]
        assert failed == [19, 39, 59, 79, 99]
        for place in failed:
            assert f"the row of 'new{place // 20}' is locked" in str(outcomes[place].error)
    waited = [trip for trip in trips if any(b"INSERT INTO" in statement.text for statement in trip)]
    hasty = [trip for trip in trips if Statement(PATIENCE.encode(), (HASTE,)) in trip]
    assert len(waited) - len(hasty) <= 3, "only the whole batch waits for long"
    assert len(trips) < 300


def test_a_joined_batch_executes_the_other_commands_when_one_row_is_locked(url, opened):
    store = opened(url)
    connection = store.connect()
    connection.execute([acquire("k")])
    with psycopg.connect(url.partition("?")[0]) as other, store.transaction() as mine:
        other.execute("SELECT FROM tests.locks WHERE key = 'k' FOR UPDATE")
        refused, granted = store.join(mine).execute([acquire("k", id="b.1"), acquire("free")])
        assert "'k'" in str(refused.error)
        assert isinstance(granted, out.Granted)


# -- errors of a part ----------------------------------------------------------------------------------------------


def test_a_missing_right_fails_only_its_own_command(url, opened, admin):
    connection = opened(url).connect()
    connection.execute([acquire("k1")])
    admin.execute("DROP ROLE IF EXISTS little; CREATE ROLE little LOGIN PASSWORD 'x'")
    admin.execute("GRANT USAGE ON SCHEMA tests TO little; GRANT ALL ON ALL TABLES IN SCHEMA tests TO little")
    admin.execute("GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA tests TO little; REVOKE ALL ON tests.slots FROM little")
    there = urlsplit(url)
    try:
        little = opened(f"postgresql://little:x@{there.hostname}:{there.port}{there.path}?{there.query}").connect()
        swap = c.SwapSlot(address=("global", "", "k"), request="a.1", expected="", version=0, value="1")
        granted, refused, also = little.execute([acquire("k2"), swap, acquire("k3")])
        assert isinstance(granted, out.Granted)
        assert isinstance(also, out.Granted)
        assert "permission denied for table slots" in str(refused.error)
        little.close()
    finally:
        admin.execute("DROP OWNED BY little; DROP ROLE little")


def test_an_error_after_the_first_part_of_a_batch_was_executed_is_ambiguous(url, opened, monkeypatch):
    connection = opened(url).connect()
    connection.execute([acquire("k1")])
    (held,) = connection.execute([acquire("k2")])
    trip = Session.trip

    def without_slots(self, statements):
        if any(b"slots" in statement.text for statement in statements):
            raise StoreUnusable("the server cannot do this")
        return trip(self, statements)

    monkeypatch.setattr(Session, "trip", without_slots)
    swap = c.SwapSlot(address=("global", "", "k"), request="a.1", expected="", version=0, value="1")
    release = c.Release(key="k2", id=acquire("k2").id, token=held.token)
    with pytest.raises(StoreUnusable) as error:
        connection.execute([release, swap])
    assert error.value.ambiguous
    with pytest.raises(StoreUnusable) as error:
        connection.execute([swap])
    assert not error.value.ambiguous


# -- lists ---------------------------------------------------------------------------------------------------------


def test_a_list_of_a_locked_table_fails_alone_and_leaves_nothing_behind(url, opened):
    connection = opened(url).connect()
    connection.execute([acquire("k1")])
    with psycopg.connect(url.partition("?")[0]) as other:
        other.execute("LOCK TABLE tests.runs IN ACCESS EXCLUSIVE MODE")
        counted, granted = connection.execute([r.CountRuns(), acquire("k2")])
        assert isinstance(counted.error, StoreContended)
        assert "the table 'runs' is locked as a whole by process" in str(counted.error)
        assert isinstance(granted, out.Granted)
        (counted,) = connection.execute([r.CountRuns()])
        assert isinstance(counted, c.Failed)
    assert names(connection.execute([acquire("k3")])) == ["Granted"]
    assert names(connection.execute([r.CountRuns()])) == ["RunCounts"]


def test_a_list_that_cannot_be_sent_leaves_nothing_behind(url, opened):
    connection = opened(url).connect()
    beyond = r.ListRuns(wanted=RunFilter(since=10**30))
    swap = c.SwapSlot(address=("global", "", "k"), request="a.1", expected="", version=0, value="1")
    assert names(connection.execute([beyond, acquire("k"), swap])) == ["Failed", "Granted", "Swapped"]
    assert names(connection.execute([beyond])) == ["Failed"]
    assert names(connection.execute([acquire("k2")])) == ["Granted"]


def test_a_list_creates_missing_functions_again(url, opened, admin):
    connection = opened(url).connect()
    connection.execute([acquire("k")])
    query = """
        SELECT p.oid::regprocedure::text FROM pg_proc AS p JOIN pg_namespace AS n ON n.oid = p.pronamespace
         WHERE n.nspname = 'tests' AND p.proname ~ '^clock_'
    """
    for (function,) in admin.execute(query).fetchall():
        admin.execute(f"DROP FUNCTION {function}")
    (counted,) = connection.execute([r.CountRuns()])
    assert isinstance(counted, RunCounts)


def test_commands_on_a_locked_table_fail_with_its_name_and_others_continue(url, opened):
    connection = opened(url).connect()
    connection.execute([acquire("k")])
    with closing(psycopg.connect(url.partition("?")[0])) as other:
        other.execute("LOCK TABLE tests.slots IN ACCESS EXCLUSIVE MODE")
        swaps = [
            c.SwapSlot(address=("global", "", f"k{n}"), request="a.1", expected="", version=0, value="1")
            for n in range(3)
        ]
        *refused, granted = connection.execute([*swaps, acquire("k2")])
        assert isinstance(granted, out.Granted)
        for one in (*refused, *connection.execute(swaps[:1])):
            assert "the table 'slots' is locked as a whole by process" in str(one.error)
