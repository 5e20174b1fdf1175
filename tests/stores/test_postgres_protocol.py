"""How decisions in Python use the row locks of PostgreSQL; new fields and new commands need no SQL."""

from __future__ import annotations

import json
from contextlib import closing

import msgspec
import psycopg
import pytest
from msgspec.structs import replace
from providers import PROVIDERS

from holdfast import commands as c
from holdfast.commands import runs as r
from holdfast.rules import lock
from holdfast.rules import lock_outcomes as out
from holdfast.rules.runs import outcomes as run_outcomes
from holdfast.rules.runs import record as rule
from holdfast.rules.runs.record import NewRun, Run, RunEvent
from holdfast.stores import executor
from holdfast.stores.postgresql import records as postgres_records
from holdfast.stores.postgresql.repository import OwnTransactions, PostgresSource
from holdfast.stores.postgresql.session import Contended, WriteConflict
from holdfast.stores.questions import RunById
from holdfast.testing.builders import ME, ManualClock, acquire, release, renew, wait


@pytest.fixture
def url(tmp_path):
    return PROVIDERS["postgres"].url(tmp_path)


@pytest.fixture
def admin(url):
    with psycopg.connect(url.partition("?")[0], autocommit=True) as db:
        yield db


def add_worker(connection, worker="w.1", seconds=600):
    lease = c.Acquire(key=rule.worker_key(worker), id=worker, label=ME, kind="worker", ttl=seconds * 1_000_000)
    connection.execute([lease])
    connection.execute([r.RegisterWorker(worker=worker, name=worker, types=("order",))])


def start(run="r", **more):
    return r.StartRun(new=NewRun(id=run, type="order", input="1", request=f"start {run}"), **more)


# -- rows ------------------------------------------------------------------------------------------------------


def test_a_lease_renewed_during_a_claim_is_not_overwritten(url, opened, monkeypatch):
    """A claim settles the leases of workers, which it has not locked: their heartbeats are not disturbed by it."""
    clock = ManualClock()
    store = opened(url, clock=clock)
    connection, other = store.connect(), store.connect()
    add_worker(connection, "dead.1", seconds=5)
    add_worker(connection, "w.1")
    clock.pass_by(10)
    write, late = PostgresSource.write, []

    def after_another(self, *arguments):
        if not late:
            late.append(True)
            again = c.Acquire(key=rule.worker_key("dead.1"), id="dead.1", label=ME, kind="worker", ttl=60_000_000)
            assert isinstance(other.execute([again])[0], out.Granted)
        return write(self, *arguments)

    monkeypatch.setattr(PostgresSource, "write", after_another)
    connection.execute([r.ClaimRuns(worker="w.1", types=(("order", "order"),))])
    (seen,) = connection.execute([c.Inspect(key=rule.worker_key("dead.1"))])
    assert [holder.id for holder in seen.record.holders] == ["dead.1"]
    assert late


@pytest.mark.parametrize(
    "commands", [[acquire(id="b.1")], [acquire(id="b.1"), acquire("other")]], ids=["alone", "beside-others"]
)
def test_nothing_is_decided_on_a_locked_row(url, opened, commands):
    store = opened(url)
    connection, other = store.connect(), store.connect()
    (granted,) = connection.execute([acquire()])
    with store.transaction() as mine:
        store.join(mine).execute([release(token=granted.token)])
        assert isinstance(other.execute(commands)[0], c.Failed)
    assert isinstance(other.execute(commands)[0], out.Granted)


def test_a_row_that_was_not_locked_is_not_written(url, opened, monkeypatch):
    """Nothing is decided on an unlocked read of a row that is written: all is undone, and the row is locked first."""
    connection = opened(url).connect()
    connection.execute([start()])
    owned = []
    write = PostgresSource.write

    def noting(self, *arguments):
        owned.append(RunById("r") in self._reading.owned)
        return write(self, *arguments)

    monkeypatch.setattr(PostgresSource, "write", noting)
    monkeypatch.setattr(executor, "is_written", lambda _command, question: not isinstance(question, RunById))
    (posted,) = connection.execute([start("s"), r.PostEvent(run="r", event=RunEvent(kind="signal", name="x"))])[1:]
    assert isinstance(posted, run_outcomes.Posted)
    assert owned == [False, True]


def test_the_written_half_of_a_batch_is_not_repeated_when_the_other_half_is_contended(url, opened, monkeypatch):
    """The batch conflicted three times, so it is decided in halves; the second half meets a locked row, once."""
    connection = opened(url).connect()
    (granted,) = connection.execute([acquire("k", "a.1")])
    connection.execute([wait("k", "b.1")])  # the native form of a release leaves it to the rules
    trip, log = OwnTransactions.trip, []

    def troubled(self, statements):
        text = b" ".join(repr((one.text, one.values)).encode() for one in statements)
        if statements[-1].text == b"COMMIT":
            if len(log) < executor.TRIES_TOGETHER:
                log.append("outrun")
                raise WriteConflict
            if b"new" in text and "contended" not in log:
                log.append("contended")
                raise Contended("55P03")
            log.append("committed")
        return trip(self, statements)

    monkeypatch.setattr(OwnTransactions, "trip", troubled)
    made_up = NewCommand(key="new")
    released, noted = connection.execute([release("k", "a.1", token=granted.token), made_up])
    assert isinstance(released, out.Released)
    assert released.woken == ("b.1",)
    assert isinstance(noted, out.Settled)
    assert log == ["outrun"] * executor.TRIES_TOGETHER + ["committed", "contended", "committed"]


class NewCommand(c.LockCommand, frozen=True, kw_only=True):
    """A command without a native form: the rules decide it."""

    def decide(self, lock):
        lock.fence += 1
        lock._touched = True
        return out.Settled()


def test_no_notification_is_sent_for_changes_that_were_not_written(url, opened, monkeypatch):
    store = opened(url)
    connection = store.connect()
    (granted,) = connection.execute([acquire()])
    connection.execute([wait(id="far.1")])
    trip, outrun = OwnTransactions.trip, []

    def first_outrun(self, statements):
        if statements[-1].text == b"COMMIT" and not outrun:
            outrun.append(True)
            raise WriteConflict
        return trip(self, statements)

    with psycopg.connect(url.partition("?")[0], autocommit=True) as listener:
        with closing(store.watch("far", print)) as watch:
            listener.execute(watch._listen)
        monkeypatch.setattr(OwnTransactions, "trip", first_outrun)
        (released,) = connection.execute([release(token=granted.token)])
        assert released.woken == ("far.1",)
        notified = [json.loads(note.payload) for note in listener.notifies(timeout=0.3)]
    assert outrun
    assert notified == [["far.1"]]


def test_a_native_form_skips_a_locked_row(url, opened, monkeypatch):
    connection = opened(url).connect()
    names = [f"k{n}" for n in range(5)]
    grants = connection.execute([acquire(name) for name in names])
    keys = by_the_rules(monkeypatch)
    with psycopg.connect(url.partition("?")[0]) as other:
        other.execute("SELECT FROM tests.locks WHERE key = 'k2' FOR UPDATE")
        renewals = [renew(name, token=granted.token) for name, granted in zip(names, grants, strict=True)]
        outcomes = connection.execute(renewals)
        other.rollback()
    assert [isinstance(one, out.Renewed) for one in outcomes] == [True, True, False, True, True]
    assert keys == [], "the others did not wait for it"


def test_a_native_form_appends_at_the_end_of_the_journal_only(url, opened):
    connection = opened(url).connect()
    add_worker(connection)
    (started,) = connection.execute([start(worker="w.1")])
    for at in (0, 2, 9):
        record = r.RecordRun(run="r", fence=started.run.fence, at=at, request=f"q{at}", entries=("x",))
        assert isinstance(connection.execute([record])[0], run_outcomes.RunRefused)
    (seen,) = connection.execute([r.ReadRun(run="r", history=True)])
    assert (seen.claim.entries, seen.claim.run.length) == (("1",), 1)


def test_a_native_form_notifies_clients_that_wait_for_the_end_of_a_run(url, opened):
    store = opened(url)
    connection = store.connect()
    add_worker(connection)
    (started,) = connection.execute([start(worker="w.1")])
    connection.execute([r.WatchRun(run="r", id="far.1")])
    end = r.RecordRun(run="r", fence=started.run.fence, at=1, request="q", then=rule.Finish("completed", "1"))
    with psycopg.connect(url.partition("?")[0], autocommit=True) as listener:
        with closing(store.watch("far", print)) as watch:
            listener.execute(watch._listen)
        (ended,) = connection.execute([end])
        notified = [json.loads(note.payload) for note in listener.notifies(timeout=5, stop_after=1)]
    assert (ended.woken, notified) == (("far.1",), [["far.1"]])
    (seen,) = connection.execute([r.ReadRun(run="r")])
    assert (seen.claim.run.status, seen.claim.run.watchers) == ("completed", ())


# -- what needs no SQL -----------------------------------------------------------------------------------------


def by_the_rules(monkeypatch):
    """The keys of locks that the rules have written, as they are written."""
    keys = []
    write = PostgresSource.write

    def noting(self, repository, *arguments):
        keys.extend(repository.changes.locks)
        return write(self, repository, *arguments)

    monkeypatch.setattr(PostgresSource, "write", noting)
    return keys


@pytest.mark.parametrize("path", ["{colour}", "{holders,0,colour}"])
def test_a_native_form_leaves_unknown_fields_to_the_rules(url, opened, admin, monkeypatch, path):
    connection = opened(url).connect()
    (granted,) = connection.execute([acquire()])
    admin.execute("UPDATE tests.locks SET record = jsonb_set(record, %s, '\"red\"')", (path,))
    keys = by_the_rules(monkeypatch)
    (renewed,) = connection.execute([renew(token=granted.token)])
    assert isinstance(renewed, out.Renewed)
    assert keys == ["k"]
    assert admin.execute("SELECT record #>> %s FROM tests.locks", (path,)).fetchone() == ("red",)


class SetColour(c.LockCommand, frozen=True, kw_only=True):
    """A new command about a lock, which writes a new field."""

    colour: str

    def apply(self, record, now):
        record, woken = lock.settle(record, now)
        changed = replace(record, unknown={**(record.unknown or {}), "colour": self.colour}, version=record.version + 1)
        return changed, out.Settled(woken=woken)


class SetMood(r.RunCommand, frozen=True, kw_only=True):
    """A new command about a run, which writes a new field."""

    run: str
    mood: str

    def apply(self, repo, now):
        before = repo.run(self.run)
        if before is None:
            return run_outcomes.RunRefused(run=None)
        after = replace(before, mood=self.mood)
        repo.save(after)
        return run_outcomes.Posted(number=0, fresh=True, run=after)


class MoodyRun(Run, frozen=True, omit_defaults=True, kw_only=True):
    """A run with a new field."""

    mood: str = ""


def test_a_new_command_and_a_new_field_of_a_lock_need_no_sql(url, opened, monkeypatch):
    connection = opened(url).connect()
    assert connection.execute([SetColour(key="k", colour="red"), acquire("l")])[0] == out.Settled()
    keys = by_the_rules(monkeypatch)
    (granted,) = connection.execute([acquire("k")])
    connection.execute([release("k", token=granted.token)])
    (seen,) = connection.execute([c.Inspect(key="k")])
    assert (seen.record.unknown, keys) == ({"colour": "red"}, ["k", "k"])


def test_a_new_command_and_a_new_field_of_a_run_need_no_sql(url, opened, monkeypatch):
    for module in (rule, postgres_records):
        monkeypatch.setattr(module, "Run", MoodyRun)
    store = opened(url)
    connection = store.connect()
    add_worker(connection)
    (started,) = connection.execute([start(worker="w.1")])
    outcomes = connection.execute([SetMood(run="r", mood="glad"), SetMood(run="nobody", mood="sad")])
    assert [type(one).__name__ for one in outcomes] == ["Posted", "RunRefused"]
    entry = r.RecordRun(run="r", fence=started.run.fence, at=1, request="q", entries=("a",))
    (recorded,) = connection.execute([entry])
    assert recorded.done
    with store.transaction() as mine:
        store.join(mine).execute([SetMood(run="r", mood="calm")])
    (seen,) = connection.execute([r.ReadRun(run="r", history=True)])
    assert (seen.claim.run.mood, seen.claim.entries) == ("calm", ("1", "a"))


def test_a_field_of_a_wrong_type_is_not_stored(url, opened):
    connection = opened(url).connect()
    (outcome,) = connection.execute([SetColour(key="k", colour=msgspec.UNSET)])
    assert isinstance(outcome, c.Failed)
    assert connection.execute([c.Inspect(key="k")])[0].record is None
