"""Faults of a session: late errors, incomplete answers, other encodings and databases."""

from __future__ import annotations

import os
import resource
import socket
import socketserver
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager

import psycopg
import psycopg_pool
import pytest
import real_servers
import sqlalchemy
from providers import PROVIDERS
from waiting import eventually

from holdfast import Client
from holdfast import commands as c
from holdfast.errors import InvalidOption, StoreContended, StoreUnavailable, StoreUnusable
from holdfast.rules import lock_outcomes as out
from holdfast.stores import open_store, redacted
from holdfast.stores.postgresql import address as postgres_address
from holdfast.stores.postgresql import session as postgres_session
from holdfast.testing.builders import acquire, release, renew, wait

SERIALIZABLE = b"SELECT set_config('default_transaction_isolation', 'serializable', false)"


@pytest.fixture
def url(tmp_path):
    return PROVIDERS["postgres"].url(tmp_path)


@pytest.fixture
def server(url):
    return real_servers.shared("postgres")


@pytest.fixture
def admin(server):
    with psycopg.connect(server.url, autocommit=True) as db:
        yield db


@contextmanager
def refused_at_commit(admin, state):
    """Every write to the locks is refused at its commit, after the rows were returned."""
    admin.execute(
        "CREATE FUNCTION tests.refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
        f"RAISE EXCEPTION USING ERRCODE = '{state}', MESSAGE = 'refused at the last moment'; END $$; "
        "CREATE CONSTRAINT TRIGGER refuse AFTER INSERT OR UPDATE ON tests.locks DEFERRABLE INITIALLY DEFERRED "
        "FOR EACH ROW EXECUTE FUNCTION tests.refuse()"
    )
    try:
        yield
    finally:
        admin.execute("DROP FUNCTION tests.refuse() CASCADE")


@pytest.mark.parametrize("commands", [[acquire()], [acquire("a"), acquire("b")]], ids=["one", "many"])
def test_a_grant_that_is_refused_at_the_commit_is_an_error(url, opened, admin, commands):
    connection = opened(url).connect()
    with refused_at_commit(admin, "40001"):
        outcomes = connection.execute(commands)
    assert [type(getattr(one, "error", one)) for one in outcomes] == [StoreContended] * len(commands)
    assert connection.execute([c.ListLocks()])[0].items == ()


def test_a_disk_error_at_the_commit_fails_the_whole_batch(url, opened, admin):
    connection = opened(url).connect()
    with refused_at_commit(admin, "53100"), pytest.raises(StoreUnavailable, match="at the last moment"):
        connection.execute([acquire()])


def test_under_a_stricter_isolation_level_every_confirmed_grant_is_stored(url, opened, monkeypatch):
    """A session is set to READ COMMITTED when it begins. If that is changed, no wrong outcome is returned."""
    monkeypatch.setattr(postgres_session, "_PIN", SERIALIZABLE)
    store = opened(f"{url}&options=-c%20default_transaction_isolation%3Drepeatable%5C%20read")
    connections = [store.connect() for _ in range(4)]

    def take(place):
        granted = []
        for n in range(60):
            outcomes = connections[place].execute([acquire(f"{place}:{n}:{m}", f"{place}.{n}") for m in range(3)])
            granted += [outcome.token for outcome in outcomes if isinstance(outcome, out.Granted)]
        return granted

    with ThreadPoolExecutor(4) as pool:
        answered = sorted(token for tokens in pool.map(take, range(4)) for token in tokens)
    with psycopg.connect(url.partition("?")[0]) as db:
        stored = sorted(token for (token,) in db.execute("SELECT token FROM tests.holders").fetchall())
    assert answered
    assert answered == stored


class Withholding(socketserver.ThreadingTCPServer):
    """Forwards everything, except the last six bytes of an answer on request: "ready for query"."""

    daemon_threads = True
    last = b"Z\x00\x00\x00\x05I"

    def __init__(self, target):
        self.target, self.withholds = target, False
        super().__init__(("127.0.0.1", 0), None)

    def finish_request(self, request, client_address):
        with socket.create_connection(("127.0.0.1", self.target)) as inner:
            back = threading.Thread(target=self.pass_back, args=(inner, request), daemon=True)
            back.start()
            while data := request.recv(65_536):
                inner.sendall(data)
            inner.shutdown(socket.SHUT_RDWR)
            back.join()

    def pass_back(self, inner, request):
        try:
            while data := inner.recv(65_536):
                request.sendall(data.removesuffix(self.last) if self.withholds else data)
        except OSError:
            return


def test_an_incomplete_answer_is_given_up_after_the_timeout_and_does_not_block_others(server, url, opened):
    with Withholding(server.port) as relay:
        serving = threading.Thread(target=relay.serve_forever, args=(0.02,))
        serving.start()
        try:
            address = f"postgresql://{server.user}:{server.password}@127.0.0.1:{relay.server_address[1]}/postgres"
            connection = opened(f"{address}?schema=tests&timeout=0.5").connect()
            connection.execute([acquire()])
            relay.withholds = True
            with pytest.raises(StoreUnavailable, match="did not answer") as caught:
                connection.execute([acquire("other")])
            assert caught.value.ambiguous
        finally:
            relay.shutdown()
            serving.join()


def test_one_key_is_one_row_whatever_the_encoding_of_the_environment(url, opened, server, admin, monkeypatch):
    monkeypatch.setenv("PGCLIENTENCODING", "LATIN1")
    opened(url).connect().execute([acquire("café")])
    with psycopg_pool.ConnectionPool(server.url, kwargs={"client_encoding": "latin1"}, min_size=0, max_size=1) as pool:
        store = open_store(pool, namespace="default", options={"schema": "tests"})
        with closing(store), closing(store.connect("commands")) as connection:
            assert isinstance(connection.execute([acquire("café", "b.1")])[0], out.Busy)
    monkeypatch.delenv("PGCLIENTENCODING")
    assert admin.execute("SELECT key FROM tests.locks").fetchall() == [("café",)]


def test_a_connection_of_an_engine_with_another_encoding_is_set_to_utf8(url, server, admin):
    address = server.url.replace("postgresql://", "postgresql+psycopg://")
    engine = sqlalchemy.create_engine(address, connect_args={"client_encoding": "latin1"})
    with Client(engine, store_options={"schema": "tests"}) as hf, hf.lock("café"):
        assert admin.execute("SELECT key FROM tests.locks").fetchall() == [("café",)]
    engine.dispose()


def test_a_users_pool_has_the_same_connection_timeout_as_a_url(opened, monkeypatch):
    monkeypatch.setitem(postgres_address.QUIET, "connect_timeout", "1")
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        address = f"postgresql://127.0.0.1:{silent.getsockname()[1]}/db"
        pool = psycopg_pool.ConnectionPool(address, min_size=0, max_size=1, open=False)
        with pytest.raises(StoreUnavailable, match="cannot be reached"):
            opened(pool).connect()


SECRETS = [
    "postgresql://app:pa%ss-s3cret@host/db",
    "postgresql://app:s3cret s3cret@host/db",
    "postgresql://app:s3/cret@host/db",
    "postgresql://app:s3cret@h@ost/db",
    "postgresql://app:s3cret@host:port/db?password=s3cret&colour=s3cret",
    "postgresql://app:%zz-s3cret@host/db",
]


@pytest.mark.parametrize("url", SECRETS)
def test_an_invalid_url_is_refused_without_showing_its_password(url):
    with pytest.raises(InvalidOption) as caught:
        open_store(url, namespace="default").close()
    assert "cret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_the_direct_address_is_masked_like_the_first():
    url = "postgresql://host/db?listen=postgresql%3A//u%3As3cret%40h/db&schema=x"
    store = open_store(url, namespace="default")
    for shown in (redacted(url), store.url, store.identity, repr(store), repr(store.options)):
        assert "s3cret" not in shown
    store.close()


# -- time ----------------------------------------------------------------------------------------------------


def expiry(admin, key="k"):
    return admin.execute(
        "SELECT (record->'holders'->0->>'expires_at')::bigint FROM tests.locks WHERE key = %s", (key,)
    ).fetchone()[0]


@pytest.mark.parametrize("keys", [("k",), ("k", "other")], ids=["alone", "beside-others"])
def test_a_command_that_waited_for_a_row_decides_by_the_time_after_the_wait(url, opened, admin, patient, keys):
    """Renewed while the release of another client waited: its expiry must not be cut by the time before that wait."""
    store = opened(url)
    connection, other = store.connect(), store.connect()
    grants = dict(zip(keys, connection.execute([acquire(key, ttl=5) for key in keys]), strict=True))
    renewals = [renew(key, token=granted.token, ttl=5) for key, granted in grants.items()]
    with ThreadPoolExecutor(1) as pool:
        with store.transaction() as mine:
            store.join(mine).execute(renewals)
            outsider = pool.submit(other.execute, [release(key, id="x.1", token=7) for key in keys])
            eventually(
                lambda: admin.execute(
                    "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
                ).fetchone()[0]
            )
            time.sleep(0.05)
            renewed = store.join(mine).execute(renewals)
        assert all(isinstance(outcome, out.NotHolder) for outcome in outsider.result())
    assert [expiry(admin, key) for key in keys] == [outcome.expires_at for outcome in renewed]
    assert all(isinstance(outcome, out.Renewed) for outcome in connection.execute(renewals))


# -- what it is tied to ---------------------------------------------------------------------------------------


def test_hints_and_anchors_work_with_more_open_files_than_select_supports(url, admin):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 4_096)), hard))
    with ExitStack() as stack:
        for _ in range(1_100):
            stack.enter_context(open(os.devnull))  # noqa: PTH123
        received = []
        store = stack.enter_context(closing(open_store(f"{url}&advisory=true", namespace="default")))
        connection = stack.enter_context(closing(store.connect("commands")))
        stack.enter_context(closing(store.watch("b", received.append)))
        eventually(lambda: received)
        (granted,) = connection.execute([acquire(ttl=600)])
        plain = stack.enter_context(closing(open_store(url, namespace="default")))
        other = stack.enter_context(closing(plain.connect("commands")))
        for _ in range(3):
            assert isinstance(other.execute([acquire(id="c.1")])[0], out.Busy)
        assert store._advisory.holds(store._advisory.number())
        assert isinstance(connection.execute([renew(token=granted.token)])[0], out.Renewed)


def test_an_anchor_in_another_database_is_refused(url, opened, server, admin):
    admin.execute("CREATE DATABASE elsewhere")
    try:
        listen = f"postgresql%3A//{server.user}%3A{server.password}%40127.0.0.1%3A{server.port}/elsewhere"
        store = opened(f"{url}&advisory=true&listen={listen}")
        with pytest.raises(StoreUnusable, match="is the address of another one"):
            store.connect().execute([acquire()])
        store.close()
    finally:
        admin.execute("DROP DATABASE elsewhere WITH (FORCE)")


def test_holds_and_named_leases_do_not_end_with_a_session(url):
    with Client(f"{url}&advisory=true") as hf:
        assert hf.hold("job", ttl=600)
        assert hf.leases.acquire_lease("chat", "owner", ttl=600)
    with Client(url) as other:
        assert other.hold("job", ttl=600) is None
        assert other.leases.get_lease_owner("chat") == "owner"


def test_a_grant_in_progress_when_the_anchor_is_lost_is_lost_too(url, monkeypatch):
    with Client(f"{url}&advisory=true") as hf:
        keep = hf.runtime.heartbeats.keep

        def severed_just_before(kept):
            hf.runtime._severed("cut")
            hf.runtime.heartbeats._queue.put(None)
            keep(kept)

        monkeypatch.setattr(hf.runtime.heartbeats, "keep", severed_just_before)
        lease = hf.lock("k", ttl=600).acquire()
        assert not lease.valid


def test_a_session_that_is_lost_repeatedly_leaves_nothing_open(url, admin):
    with Client(f"{url}&advisory=true") as hf:
        counts = []
        for n in range(4):
            lease = hf.lock(f"k{n}", ttl=600).acquire()
            counts.append(len(os.listdir("/proc/self/fd")))  # noqa: PTH208
            admin.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE query LIKE '%pg_try_advisory_lock%' "
                "AND pid <> pg_backend_pid()"
            )
            eventually(lambda lease=lease: not lease.valid)
        eventually(lambda: len(os.listdir("/proc/self/fd")) <= counts[0])  # noqa: PTH208


# -- hints ----------------------------------------------------------------------------------------------------


def test_an_invalid_notification_makes_waiters_check(url, opened, admin):
    store, received = opened(url), []
    with closing(store.watch("b", received.append)) as watch:
        eventually(lambda: received == [None])
        channel = watch._listen.split('"')[1]
        for text in ("not json", "7", '["b.1"]'):
            admin.execute("SELECT pg_notify(%s, %s)", (channel, text))
        assert eventually(lambda: received[1:] == [None, None, ["b.1"]])


def test_local_waiters_are_notified_also_when_the_answer_is_lost(url, opened, admin):
    store, received = opened(url), []
    connection = store.connect()
    (held, _) = connection.execute([acquire(), wait(id="b.1")])
    with closing(store.watch("b", received.append)):
        eventually(lambda: received == [None])
        admin.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'holdfast' "
            "AND query NOT LIKE 'LISTEN%'"
        )
        with pytest.raises(StoreUnavailable):
            connection.execute([release(token=held.token)])
        assert received == [None, None]
