"""Records of any type where stores differ: locked rows, plans, round trips, and foreign values at a record's key.

What every store promises is in the public suite (`holdfast.testing.suite.records`).
"""

from __future__ import annotations

import sqlite3
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import psycopg
import pytest
import redis
from providers import PROVIDERS, redis_layout, sqlite_path
from questioned import MemorySource

from holdfast import commands as c
from holdfast.errors import RecordUnreadable, StoreContended, StoreUnusable
from holdfast.stores.executor import execute
from holdfast.stores.memory.store import _Space
from holdfast.stores.postgresql import record_statements as postgres_record_statements
from holdfast.stores.postgresql.repository import PostgresSource
from holdfast.stores.postgresql.statements import placed
from holdfast.stores.sqlite import records as sqlite_records
from holdfast.testing.builders import ManualClock
from holdfast.testing.suite.runs import start
from holdfast.testing.tally import TALLY, Counted, CountRun, LeaveTally, SeeTally, TallySeen, add


def kinds(outcomes):
    return [type(one).__name__ for one in outcomes]


class TestPostgres:
    """The locking protocol, as for locks and slots."""

    @pytest.fixture
    def url(self, tmp_path):
        return PROVIDERS["postgres"].url(tmp_path)

    @pytest.mark.parametrize(
        ("name", "values", "how"),
        [
            ("READ", ("""'[["tally","k"]]'""",), ("records_pkey", "(kind = (k.a ->> 0)) AND (key = (k.a ->> 1))")),
            ("AFTER", ("'tally'", "'a'", "'b'", "9"), ("records_pkey", "(key >= 'a'::text) AND (key > 'b'::text)")),
            ("BETWEEN", ("'tally'", "'a'", "'b'", "9", "'c'"), ("records_pkey", "(key < 'c'::text)")),
            ("DUE", ("'tally'", "9"), ("records_due", "(due_at <= (current_setting(")),
        ],
    )
    def test_no_statement_scans_rows_of_other_keys(self, url, opened, name, values, how):
        opened(url).connect()
        text = placed(getattr(postgres_record_statements, name), "tests").decode()
        for number, value in enumerate(("'default'", *values), 1):
            text = text.replace(f"${number}", value)
        with psycopg.connect(url.partition("?")[0]) as db:
            db.execute("SELECT set_config('enable_seqscan', 'off', true), set_config('holdfast_step.now', '1', true)")
            plan = "\n".join(line for (line,) in db.execute(f"EXPLAIN {text}").fetchall())
        assert all(part in plan for part in how), plan
        assert "Filter" not in plan

    def test_a_locked_row_delays_only_its_own_commands(self, url, opened):
        connection = opened(url).connect()
        connection.execute([add(key="mine"), add(key="yours")])
        with psycopg.connect(url.partition("?")[0], application_name="forgotten") as db:
            db.execute("SELECT 1 FROM tests.records WHERE key = 'yours' FOR UPDATE")
            outcomes = connection.execute(
                [add(key="yours", request="r"), add(key="mine", request="r"), LeaveTally(key="yours", id="a.1")]
            )
            assert kinds(outcomes) == ["Failed", "Counted", "Failed"]
            assert isinstance(outcomes[0].error, StoreContended)
            (alone,) = connection.execute([add(key="yours", request="r")])
            assert "'yours' is locked by process" in str(alone.error)
            assert "forgotten" in str(alone.error)
            (seen,) = connection.execute([SeeTally(key="yours")])
            assert (seen.tally.total, len(connection.execute([c.ListRecords(kind="tally")])[0].items)) == (1, 2)
            db.rollback()
        assert connection.execute([add(key="yours", request="r")]) == [Counted(total=2)]

    @pytest.mark.usefixtures("patient")
    def test_no_later_command_of_a_batch_overtakes_one_whose_row_was_locked(self, url, opened):
        connection = opened(url).connect()
        connection.execute([add()])
        with psycopg.connect(url.partition("?")[0]) as db:
            db.execute("SELECT 1 FROM tests.records FOR UPDATE")
            free = threading.Timer(0.05, db.rollback)
            free.start()
            outcomes = connection.execute([add(request="r"), add(request="s"), add(key="other")])
            free.join()
        assert [outcome.total for outcome in outcomes] == [2, 3, 1]

    @pytest.mark.usefixtures("patient")
    def test_a_change_of_an_open_transaction_is_not_overwritten(self, url, opened):
        connection = opened(url).connect()
        connection.execute([add(), add(key="other")])
        with psycopg.connect(url.partition("?")[0]) as db, ThreadPoolExecutor(1) as pool:
            text = '{"members":[{"id":"x.1","count":5}]}'
            db.execute("UPDATE tests.records SET record = %s WHERE key = 'k'", (text,))
            answer = pool.submit(connection.execute, [add("b.1"), add("b.1", key="other")])
            threading.Timer(0.1, db.commit).start()
            assert [outcome.total for outcome in answer.result()] == [6, 2]

    @pytest.mark.parametrize("end", ["commit", "rollback"])
    @pytest.mark.usefixtures("patient")
    def test_a_command_waits_for_a_record_that_another_transaction_creates(self, url, opened, end):
        connection = opened(url).connect()
        connection.execute([add(key="warm")])
        with psycopg.connect(url.partition("?")[0]) as db, ThreadPoolExecutor(1) as pool:
            text = '{"members":[{"id":"x.1","count":5}]}'
            db.execute("INSERT INTO tests.records VALUES ('default', 'tally', 'new', %s, NULL)", (text,))
            threading.Timer(0.02, getattr(db, end)).start()
            outcomes = pool.submit(connection.execute, [add(key="a"), add(key="new"), add(key="z")]).result()
        assert [outcome.total for outcome in outcomes] == [1, 6 if end == "commit" else 1, 1]

    def test_a_record_created_between_reading_and_writing_is_decided_again(self, url, opened, monkeypatch):
        store = opened(url)
        connection, other = store.connect(), store.connect()
        write, tries = PostgresSource.write, []

        def after_another(self, *arguments):
            tries.append(self)
            if len(tries) == 1:
                assert other.execute([add("b.1", by=5)]) == [Counted(total=5)]
            return write(self, *arguments)

        monkeypatch.setattr(PostgresSource, "write", after_another)
        assert connection.execute([add()]) == [Counted(total=6, woken=("b.1",))]
        assert len(tries) == 3, "the first, the other's, and the first anew"

    def test_a_command_about_runs_locks_the_record_that_it_writes(self, url, opened):
        connection = opened(url).connect()
        connection.execute([start("r"), add()])
        with psycopg.connect(url.partition("?")[0]) as db:
            db.execute("SELECT 1 FROM tests.records FOR UPDATE")
            (outcome,) = connection.execute([CountRun(run="r", key="k")])
            assert isinstance(outcome.error, StoreContended)
            db.rollback()
        assert connection.execute([CountRun(run="r", key="k")]) == [Counted(total=2)]


class TestSqlite:
    """One transaction per batch; statements use the primary key and the index of due records."""

    @pytest.fixture
    def url(self, tmp_path):
        return PROVIDERS["sqlite"].url(tmp_path)

    @pytest.mark.parametrize(
        ("name", "values", "how"),
        [
            ("LOAD", ("n", "tally", "k"), "PRIMARY KEY (namespace=? AND kind=? AND key=?)"),
            ("LIST", ("n", "tally", "a", "b", "c", 9), "PRIMARY KEY (namespace=? AND kind=? AND key>? AND key<?)"),
            ("DUE", ("n", "tally", 7), "INDEX records_due (namespace=? AND kind=? AND due_at<?)"),
        ],
    )
    def test_no_statement_scans_rows_of_other_keys(self, url, opened, name, values, how):
        opened(url).connect()
        with closing(sqlite3.connect(sqlite_path(url))) as db:
            plan = db.execute(f"EXPLAIN QUERY PLAN {getattr(sqlite_records, name)}", values).fetchall()
        assert [row[3] for row in plan] == [f"SEARCH records USING {how}"]

    def test_a_record_that_is_no_text_is_refused_by_name(self, url, opened):
        connection = opened(url).connect()
        connection.execute([add(key=f"k{n}") for n in range(12)])
        with closing(sqlite3.connect(sqlite_path(url))) as db, db:
            db.execute("UPDATE records SET record = x'ff', due_at = 1 WHERE key = 'k3'")
        outcomes = connection.execute([add(key=f"k{n}", request="r") for n in range(12)])
        assert [place for place, one in enumerate(outcomes) if isinstance(one, c.Failed)] == [3]
        assert outcomes[3].error.key == "k3"
        page, due = connection.execute([c.ListRecords(kind="tally", prefix="k3"), c.ListDueRecords(kind="tally")])
        assert ("it is not text" in page.items[0].error, due.items) == (True, ())


class TestRedis:
    """Damaged records in a Redis are refused, and not overwritten."""

    @pytest.fixture(params=["valkey", "redis"])
    def url(self, request, tmp_path):
        return PROVIDERS[request.param].url(tmp_path)

    @pytest.fixture
    def layout(self, url):
        return redis_layout(url, "default")

    @pytest.mark.parametrize("put", ["set", "lpush"])
    def test_another_value_at_the_key_of_a_record_is_refused_and_unchanged(self, url, opened, layout, put):
        connection = opened(url).connect()
        with redis.Redis.from_url(url.partition("?")[0]) as raw:
            getattr(raw, put)(layout.record("tally", "k"), b"\xff")
            before = raw.dump(layout.record("tally", "k"))
        for batch in ([add()], [add(), SeeTally(key="k"), add(key="l")]):
            outcomes = connection.execute(batch)
            assert {type(one) for one in outcomes[:2]} == {c.Failed}
            assert isinstance(outcomes[0].error, RecordUnreadable)
        with redis.Redis.from_url(url.partition("?")[0]) as raw:
            assert raw.dump(layout.record("tally", "k")) == before

    def test_another_type_at_the_key_of_the_index_is_refused(self, url, opened, server, layout):
        store = opened(url)
        server.set(layout.record_keys("tally"), "mine")
        (refused,) = store.connect().execute([add()])
        assert isinstance(refused.error, StoreUnusable)
        assert "holds data of another program" in str(refused.error)
        (listed,) = store.connect().execute([c.ListRecords(kind="tally")])
        assert isinstance(listed.error, RecordUnreadable)
        assert server.keys(layout.record("tally", "*")) == []

    def test_an_index_entry_without_its_record_is_skipped(self, url, opened, server, layout):
        connection = opened(url).connect()
        connection.execute([add(key="a", ttl=0), add(key="b", ttl=0)])
        server.delete(layout.record("tally", "a"))
        page, due = connection.execute([c.ListRecords(kind="tally"), c.ListDueRecords(kind="tally", limit=1)])
        assert [item.key for item in page.items] == [item.key for item in due.items] == ["b"]
        assert connection.execute([add(key="a", request="r")]) == [Counted(total=1)]

    def test_a_record_that_is_removed_leaves_nothing_behind(self, url, opened, server, layout):
        connection = opened(url).connect()
        connection.execute([add(ttl=0)])
        names = [layout.record("tally", "k"), layout.record_keys("tally"), layout.due_records("tally")]
        assert server.exists(*names) == 3
        connection.execute([LeaveTally(key="k", id="a.1")])
        assert server.exists(*names) == 0


@pytest.mark.parametrize("name", ["postgres", "sqlite"])
def test_a_record_changes_with_the_transaction_of_a_user_or_not_at_all(tmp_path, opened, name):
    store = opened(PROVIDERS[name].url(tmp_path))
    connection = store.connect()
    with store.transaction() as db:
        assert store.join(db).execute([add(), add(request="r"), add(key="l")])[1] == Counted(total=2)
    with pytest.raises(ZeroDivisionError), store.transaction() as db:
        store.join(db).execute([LeaveTally(key="k", id="a.1"), add(request="s", key="l")])
        raise ZeroDivisionError
    looks = connection.execute([SeeTally(key="k"), SeeTally(key="l")])
    assert [look.tally.total for look in looks] == [2, 1]


class TestTrips:
    """How many reads and writes a batch takes."""

    @pytest.fixture(autouse=True)
    def _space(self):
        self.space, self.clock = _Space(), ManualClock()

    def send(self, *commands):
        self.source = MemorySource(self.space, self.clock())
        return execute(self.source, commands).outcomes

    @property
    def trips(self):
        return self.source.reads, self.source.writes

    def test_many_commands_about_one_record_are_one_read_and_one_write(self, monkeypatch):
        encoded, stored = [], type(TALLY).stored
        monkeypatch.setattr(type(TALLY), "stored", lambda self, record: encoded.append(record) or stored(self, record))
        self.send(*(add(request=f"q{n}") for n in range(100)))
        assert (self.trips, len(encoded)) == ((1, 1), 1)

    def test_many_records_are_one_read_and_one_write(self):
        self.send(*(add(key=f"k{n}") for n in range(100)))
        assert self.trips == (1, 1)

    def test_a_query_writes_nothing(self):
        assert isinstance(self.send(SeeTally(key="k"))[0], TallySeen)
        assert self.trips == (1, 0)

    def test_a_page_of_records_takes_two_reads(self):
        self.send(*(add(key=f"k{n}", ttl=0) for n in range(100)))
        self.send(c.ListRecords(kind="tally"))
        assert self.trips == (2, 0)
        self.send(c.ListDueRecords(kind="tally"))
        assert self.trips == (2, 0)
