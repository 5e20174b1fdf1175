"""Relational stores: round trips, rows that others have locked, paused clients, lost connections, addresses."""

from __future__ import annotations

import random
import threading
import time

import pymysql
import pytest
import real_servers
from providers import BY_SQL, PROVIDERS, SQL_PREFIX, sql_session
from pymysql.constants import CLIENT
from waiting import eventually

from holdfast import Client, Context, workflow
from holdfast import commands as c
from holdfast.commands import runs as r
from holdfast.errors import InvalidOption, StoreContended, StoreUnavailable, StoreUnusable
from holdfast.platform import host_clock
from holdfast.rules import lock_outcomes as out
from holdfast.rules.runs.limits import Limit, LimitKey, WorkflowLimits
from holdfast.rules.runs.outcomes import Claimed, Recorded, Started
from holdfast.rules.runs.record import Finish
from holdfast.stores import open_store
from holdfast.stores import questions as q
from holdfast.stores.sql.address import parse
from holdfast.stores.sql.mysql import MySqlDialect
from holdfast.stores.sql.reading import Reading
from holdfast.stores.sql.schema import prepare, version_of
from holdfast.stores.sql.session import new_stamp
from holdfast.stores.sql.tables import VERSION, SqlTables
from holdfast.testing.builders import ManualClock, acquire, release, renew
from holdfast.testing.proxy import Proxy
from holdfast.testing.suite.runs import start
from stores.runs_asking import add_worker, claim


@pytest.fixture(params=BY_SQL)
def url(request, tmp_path):
    return PROVIDERS[request.param].url(tmp_path)


@pytest.fixture
def maria(tmp_path):
    return PROVIDERS["mariadb"].url(tmp_path)


@pytest.fixture
def connection(url):
    store = open_store(url, namespace="default")
    made = store.connect("commands")
    yield made
    made.close()
    store.close()


def trips(connection, *commands):
    before = connection.session.trips
    outcomes = connection.execute(commands)
    return connection.session.trips - before, outcomes


def test_a_batch_takes_two_round_trips(connection):
    many = [acquire(f"k{n}", f"a.{n}") for n in range(500)]
    count, outcomes = trips(connection, *many)
    assert count == 2
    assert all(isinstance(outcome, out.Granted) for outcome in outcomes)
    tokens = [outcome.token for outcome in outcomes]
    count, outcomes = trips(connection, *(renew(f"k{n}", f"a.{n}", token=tokens[n]) for n in range(500)))
    assert count == 2
    assert all(isinstance(outcome, out.Renewed) for outcome in outcomes)
    count, outcomes = trips(connection, *(release(f"k{n}", f"a.{n}", token=tokens[n]) for n in range(500)))
    assert count == 2
    assert all(isinstance(outcome, out.Released) for outcome in outcomes)


@pytest.mark.parametrize(
    ("batch", "expected"),
    [
        (lambda: [acquire(f"k{n}", f"a.{n}") for n in range(1_000)], 2),
        (lambda: [acquire(f"k{n}", f"a.{n}") for n in range(1_500)], 4),
        (lambda: [start(f"r{n}") for n in range(1_000)], 8),
        (lambda: [acquire("a"), c.ListLocks(), acquire("b")], 5),
    ],
    ids=["1,000 acquires", "1,500 acquires", "1,000 starts", "a list between two acquires"],
)
def test_a_large_batch_is_divided_and_each_part_takes_two_round_trips(connection, batch, expected):
    connection.execute([c.Inspect(key="k")])
    count, outcomes = trips(connection, *batch())
    assert count == expected
    assert all(isinstance(outcome, out.Granted | Started | c.LockPage) for outcome in outcomes)


def test_a_command_that_changes_nothing_takes_one_round_trip(connection):
    connection.execute([acquire()])
    assert trips(connection, acquire(id="b.1"))[0] == 1
    assert trips(connection, c.Inspect(key="k"))[0] == 1


def raw(url):
    address = parse(url)
    return pymysql.connect(**address.dialect._options, client_flag=CLIENT.MULTI_STATEMENTS, autocommit=True)


def row_lock_waits(url):
    with raw(url) as db, db.cursor() as cursor:
        cursor.execute("SHOW GLOBAL STATUS LIKE 'Innodb_row_lock_waits'")
        return int(cursor.fetchone()[1])


def test_a_row_that_another_transaction_has_locked_fails_its_own_command_only(maria):
    with Client(maria) as hf, raw(maria) as other:
        hf.hold("busy", ttl=60)
        with other.cursor() as cursor:
            cursor.execute("BEGIN")
            where = "ns = _binary'default' AND k = _binary'busy'"
            assert cursor.execute(f"SELECT * FROM {SQL_PREFIX}locks WHERE {where} FOR UPDATE") == 1
        store = open_store(maria, namespace="default")
        connection = store.connect("commands")
        try:
            before = row_lock_waits(maria)
            failed, granted = connection.execute([c.ForceRelease(key="busy", by="me", reason="test"), acquire("free")])
            assert row_lock_waits(maria) == before, "a batch waited for the row"
            assert isinstance(granted, out.Granted)
            assert isinstance(failed, c.Failed)
            assert failed.error.retryable
            other.rollback()
            (released,) = connection.execute([c.ForceRelease(key="busy", by="me", reason="test")])
            assert isinstance(released, out.ForceReleased)
        finally:
            connection.close()
            store.close()


def test_the_server_ends_the_transaction_of_a_client_that_is_paused_after_an_error(maria):
    """A client that is paused between an error and its ROLLBACK must not keep rows locked."""
    dialect = parse(maria).dialect
    with Client(maria) as hf:
        hf.hold("k", ttl=60)
        ns, key = dialect.literal(b"default"), dialect.literal(b"k")
        lock = f"SELECT * FROM {SQL_PREFIX}locks WHERE ns = {ns} AND k = {key} FOR UPDATE"
        paused = raw(maria)
        with pytest.raises(pymysql.MySQLError), paused.cursor() as cursor:
            cursor.execute(";".join(dialect.writing([lock, dialect.insist("1 = 0")])))
            while cursor.nextset():
                pass
        assert hf.locks.force_release("k", reason="it must not wait for the paused client")
        paused._force_close()


class Refusing:
    """A connection of the driver that answers the next write, or other request, with an error of the server."""

    def __init__(self, driver, error, sent="READ WRITE"):
        self.driver, self.error, self.sent = driver, error, sent

    def send(self, text):
        if self.error is not None and self.sent in text:
            error, self.error = self.error, None
            raise error
        return self.driver.send(text)

    def __getattr__(self, name):
        return getattr(self.driver, name)


@pytest.mark.parametrize("number", [1213, 1020, 1062])
def test_a_deadlock_or_a_row_that_changed_is_decided_again(maria, number):
    store = open_store(maria, namespace="default")
    connection = store.connect("commands")
    connection.session._driver = Refusing(connection.session._driver, pymysql.err.OperationalError(number, "x"))
    (granted,) = connection.execute([acquire()])
    assert isinstance(granted, out.Granted)
    assert connection.conflicts == 1
    connection.close()
    store.close()


def test_a_client_that_opens_a_database_whose_tables_are_being_created_looks_again(maria):
    """The table was created after the snapshot of the client that looks for it: error 1412."""
    with sql_session(maria) as (session, tables):
        prepare(session, tables)
        session._driver = Refusing(session._driver, pymysql.err.OperationalError(1412, "x"), "oldest_client")
        assert version_of(session, tables) == VERSION
        assert session._driver.error is None


@pytest.mark.parametrize("number", [1205, 3572])
def test_a_lock_wait_timeout_can_be_retried_and_has_changed_nothing(maria, number):
    store = open_store(maria, namespace="default")
    connection = store.connect("commands")
    connection.session._driver = Refusing(connection.session._driver, pymysql.err.OperationalError(number, "x"))
    (failed,) = connection.execute([acquire()])
    assert isinstance(failed.error, StoreContended)
    assert failed.error.retryable
    assert not failed.error.ambiguous
    (granted,) = connection.execute([acquire()])
    assert isinstance(granted, out.Granted)
    connection.close()
    store.close()


def test_a_lost_reply_to_a_write_is_ambiguous_and_the_same_attempt_gets_its_grant(maria):
    server = real_servers.shared("mariadb")
    with Proxy(server.host, server.port) as proxy:
        store = open_store(proxy.url_for(maria), namespace="default")
        connection = store.connect("commands")
        connection.execute([c.Inspect(key="k")])
        proxy.drop_next_reply(containing=b"INSERT INTO")
        with pytest.raises(StoreUnavailable) as lost:
            connection.execute([acquire()])
        assert lost.value.ambiguous
        connection.close()
        store.close()
    store = open_store(maria, namespace="default")
    connection = store.connect("commands")
    (again,) = connection.execute([acquire()])
    assert isinstance(again, out.Granted)
    (seen,) = connection.execute([c.Inspect(key="k")])
    assert [holder.token for holder in seen.record.holders] == [again.token]
    connection.close()
    store.close()


def test_everything_that_was_acknowledged_is_there_after_the_server_was_killed():
    with real_servers.server("mariadb") as server, Client(server.url) as hf:
        store = open_store(server.url, namespace="default")
        connection = store.connect("commands")
        tokens = [connection.execute([acquire(f"k{n}", ttl=600)])[0].token for n in range(20)]
        hf.state("count").set(41)
        add_worker(connection)
        (started,) = connection.execute([start("r", worker="w.1")])
        entry = r.RecordRun(run="r", fence=started.run.fence, at=1, request="q", entries=('"kept"',))
        assert isinstance(connection.execute([entry])[0], Recorded)
        connection.close()
        store.close()
        server.kill()
        server.restart()
        eventually(lambda: hf.locks.inspect("k0").holders[0].token == tokens[0])
        assert [hf.locks.inspect(f"k{n}").holders[0].token for n in range(20)] == tokens
        assert hf.state("count").get() == 41
        store = open_store(server.url, namespace="default")
        connection = store.connect("commands")
        (seen,) = connection.execute([r.ReadRun(run="r", history=True)])
        assert seen.claim.entries[1:] == ('"kept"',)
        connection.close()
        store.close()


def test_keys_that_text_columns_take_for_equal_are_distinct_and_listed_in_code_point_order(url):
    keys = ["a", "A", "a ", "ä", "a\u0308", "Z", "😀", "x" * 512]
    with Client(url, namespace="n" * 512) as hf:
        for key in keys:
            assert hf.hold(key, ttl=60), key
        assert [status.key for status in hf.locks.list()] == sorted(keys)


def test_two_prefixes_are_two_stores(maria):
    with Client(maria) as one, Client(maria.replace(SQL_PREFIX, "other_")) as two:
        assert one.hold("k", ttl=60)
        assert two.hold("k", ttl=60)
    with sql_session(maria.replace(SQL_PREFIX, "other_")) as (session, tables):
        session.run([f"DROP TABLE {name}" for name in tables.names()])


def test_clients_that_create_the_tables_at_the_same_moment_do_not_fail(url):
    fresh = url.replace(SQL_PREFIX, "fresh_")
    errors = []

    def open_it():
        try:
            with Client(fresh) as hf:
                hf.hold("k", ttl=60)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=open_it) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    with sql_session(fresh) as (session, tables):
        session.run([f"DROP TABLE {name}" for name in tables.names()])


def test_tables_of_a_newer_version_are_refused(url):
    newer = url.replace(SQL_PREFIX, "newer_")
    with Client(newer) as hf:
        hf.hold("k", ttl=60)
    with sql_session(newer) as (session, tables):
        session.run([f"UPDATE {tables.about} SET oldest_client = 2"])
        with pytest.raises(StoreUnusable, match="newer Holdfast"), Client(newer) as hf:
            hf.hold("k", ttl=60)
        session.run([f"DROP TABLE {name}" for name in tables.names()])


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("mysql://localhost", "name of a database"),
        ("mysql://localhost/db?prefix=a-b", "letters, digits"),
        ("mysql://localhost/db?colour=red", "colour"),
        ("mysql://localhost/db?timeout=0", "longer than 0 s"),
        ("mysql://localhost:abc/db", "number from 1 to 65535"),
        ("mysql://localhost:99999/db", "number from 1 to 65535"),
        ("mysql://localhost/db?ssl_ca=/nowhere/ca.pem", "no file /nowhere/ca.pem"),
        ("mysql://localhost/db?read_default_file=/nowhere/my.cnf", "no file /nowhere/my.cnf"),
        ("sql+oracle://localhost/db", "not a relational database"),
    ],
)
def test_a_bad_address_is_refused_with_what_to_write(address, message):
    with pytest.raises(InvalidOption, match=message):
        open_store(address, namespace="default")


def test_no_message_and_no_representation_contains_the_password(maria):
    wrong = maria.replace(parse(maria).dialect._options["password"], "not-the-pass-word")
    store = open_store(wrong, namespace="default")
    with pytest.raises(StoreUnusable) as refused:
        store.connect("commands")
    for text in (repr(store), store.url, store.identity, str(refused.value), repr(refused.value.__cause__)):
        assert "not-the-pass-word" not in text


def test_a_refusal_of_the_server_says_what_to_do_about_it(maria):
    with raw(maria) as db, db.cursor() as cursor:
        cursor.execute("CREATE USER IF NOT EXISTS 'guest'@'%' IDENTIFIED BY 'pw'")
        database = parse(maria).dialect._options["database"]

        def refusal(url):
            store = open_store(url, namespace="default")
            with pytest.raises(StoreUnusable) as refused:
                store.connect("commands")
            store.close()
            assert "changed nothing" in str(refused.value)
            return str(refused.value)

        try:
            server = maria.partition("@")[2]
            assert "CREATE DATABASE" in refusal(maria.replace(f"/{database}?", "/nowhere?"))
            assert "password in the URL" in refusal(f"mysql://guest:wrong@{server}")
            assert "grant the user privileges" in refusal(f"mysql://guest:pw@{server}")
            cursor.execute(f"GRANT SELECT ON {database}.* TO 'guest'@'%'")
            assert "needs CREATE and INDEX" in refusal(f"mysql://guest:pw@{server}&prefix=other_")
        finally:
            cursor.execute("DROP USER 'guest'@'%'")


def test_a_server_that_cannot_be_reached_is_unavailable_and_nothing_is_ambiguous():
    with real_servers.server("mariadb") as server:
        address = server.url
    store = open_store(address, namespace="default", clock=host_clock)
    with pytest.raises(StoreUnavailable) as refused:
        store.connect("commands")
    assert not refused.value.ambiguous


def test_doctor_reports_settings_that_are_not_durable(maria):
    store = open_store(maria, namespace="default")
    store.connect("commands").close()
    found = {finding.check: finding.level for finding in store.diagnose()}
    store.close()
    assert found == {"server": "ok", "durability": "warning", "tables": "ok"}  # the shared server is relaxed


def test_time_passes_by_the_clock_of_the_server(url):
    with Client(url) as hf:
        assert hf.hold("k", ttl=1)
        assert not hf.hold("k", ttl=1)
        eventually(lambda: hf.hold("k", ttl=60))
        assert abs(hf.locks.inspect("k").holders[0].since.timestamp() - time.time()) < 60


def test_the_queries_of_the_documentation_show_locks_and_runs(maria, request):
    @workflow(name="order")
    async def order(ctx: Context) -> None:
        """Never executed: no engine runs here."""

    with Client(maria) as hf:
        hf.hold("invoice:42", ttl=60)
        hf.runs.start(order, id="order-42")
        page = (request.config.rootpath / "docs/stores/mysql.md").read_text(encoding="utf-8")
        queries = [query for block in page.split("```sql")[1:] for query in block.partition("```")[0].split(";")]
        found = []
        with raw(maria) as db, db.cursor() as cursor:
            for query in filter(str.strip, queries):
                if query.strip().startswith("SELECT"):
                    cursor.execute(query.replace("holdfast_", SQL_PREFIX))
                    found.append(cursor.fetchall())
    locks, failed, journal = found
    assert [row[0] for row in locks] == ["invoice:42"]
    assert failed == ()
    assert [number for number, _ in journal] == [0]


def test_the_clock_is_read_after_the_records():
    """A time that is older than a record would let a rule shorten the expiry of another holder."""
    dialect = MySqlDialect({})
    questions = [q.LockByKey("k"), q.RegisteredWorkers(), q.GroupSize("g", queued=True), q.DueLocks(10)]
    reading = Reading(questions, dialect=dialect, tables=SqlTables(dialect, ""), namespace="n", at=None)
    assert reading.statements[-1] == f"SELECT {dialect.clock}"
    assert len(reading.statements) == 7


def test_stamps_are_unique_also_if_programs_seed_random():
    """Two processes that begin with the same seed must not write the same stamps."""
    random.seed(0)
    first = new_stamp()
    random.seed(0)
    assert new_stamp() != first


def test_a_claim_leaves_out_a_run_whose_row_another_transaction_has_locked(maria):
    store = open_store(maria, namespace="default")
    connection = store.connect("commands")
    add_worker(connection)
    connection.execute([start("a"), start("b"), start("c")])
    with raw(maria) as other, other.cursor() as cursor:
        cursor.execute("BEGIN")
        where = "ns = _binary'default' AND id = _binary'a'"
        assert cursor.execute(f"SELECT * FROM {SQL_PREFIX}runs WHERE {where} FOR UPDATE") == 1
        (claimed,) = connection.execute([claim()])
        assert isinstance(claimed, Claimed), claimed
        assert sorted(one.run.id for one in claimed.claims) == ["b", "c"]
        other.rollback()
    (claimed,) = connection.execute([claim()])
    assert [one.run.id for one in claimed.claims] == ["a"]
    connection.close()
    store.close()


def test_a_value_that_is_too_large_for_the_server_fails_alone(maria):
    store = open_store(maria, namespace="default")
    connection = store.connect("commands")
    first, large, last = connection.execute([acquire("a"), start("r", input="9" * 9_000_000), acquire("b")])
    assert isinstance(first, out.Granted)
    assert isinstance(last, out.Granted)
    assert isinstance(large, c.Failed)
    assert "max_allowed_packet" in str(large.error)
    connection.close()
    store.close()


def test_an_open_transaction_of_a_user_does_not_stop_other_workers(maria):
    store = open_store(maria, namespace="default")
    connection = store.connect("commands")
    add_worker(connection)
    connection.execute([start("due")])
    with raw(maria) as db:
        db.begin()
        joined = store.join(db)
        (started,) = joined.execute([start("mine")])
        assert isinstance(started, Started)
        (claimed,) = connection.execute([claim()])
        assert isinstance(claimed, Claimed), claimed
        assert [one.run.id for one in claimed.claims] == ["due"]
        add_worker(connection, "w.2")
        db.rollback()
    connection.close()
    store.close()


def test_cleanup_removes_guards_of_limits_that_count_nothing(url):
    limits = WorkflowLimits(limits=(Limit(name="all", max=5, on_excess="queue"),))
    clock = ManualClock()
    store = open_store(url, namespace="default", clock=clock)
    connection = store.connect("commands")
    add_worker(connection)
    connection.execute([r.PublishLimits(workflow="order", terms=limits)])
    places = {"places": (LimitKey("all"),), "terms": limits.digest}
    (started,) = connection.execute([start("r", worker="w.1", **places)])

    def guards():
        with sql_session(url) as (session, tables):
            (rows,) = session.read([f"SELECT about FROM {tables.guards}"])
        return {about for (about,) in rows}

    counted = guards() - {"workers"}
    assert len(counted) == 1
    connection.execute([c.Cleanup()])
    assert counted <= guards()
    end = r.RecordRun(run="r", fence=started.run.fence, at=1, request="q", then=Finish("completed", "1"))
    connection.execute([end])
    connection.execute([c.Cleanup()])
    assert not counted & guards()
    connection.close()
    store.close()
