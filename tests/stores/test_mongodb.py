"""MongoDB: what is sent, how it is stored, what a lost reply and a killed server change, addresses, and health."""

from __future__ import annotations

import json
import os
import re
import secrets
import subprocess
import sys
import threading
import traceback
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path

import pymongo
import pymongo.errors
import pymongo.monitoring
import pytest
import real_servers
from msgspec.structs import replace
from providers import PROVIDERS, mongodb_collection
from waiting import eventually

from holdfast import Client
from holdfast import commands as c
from holdfast.errors import InvalidOption, StoreUnavailable, StoreUnusable
from holdfast.rules import lock_outcomes as out
from holdfast.rules.lock_record import Label
from holdfast.rules.slot import SlotSeen, Swapped
from holdfast.stores import open_store, unready
from holdfast.stores.mongodb import health
from holdfast.stores.mongodb import watch as mongodb_watch
from holdfast.stores.mongodb.address import address_of_url
from holdfast.stores.mongodb.errors import refused_write, store_error
from holdfast.stores.mongodb.layout import CLOCK_ID, DUE_INDEX
from holdfast.testing import StoreConformance
from holdfast.testing.builders import SECOND, abandon, acquire, read, release, renew, swap, wait
from holdfast.testing.proxy import Proxy
from holdfast.testing.tally import Counted, LeaveTally, SeeTally, add
from stores.lossy_commands import BESIDE_ANOTHER, COMMANDS, ask, check_beside_another_writer, prepared

SECRET = "hunter2"
NAMES = ["A", "a", "a ", "a%", "a:b", "b", "ä", "😀", "k" * 512]


@pytest.fixture
def address(tmp_path):
    return PROVIDERS["mongodb"].url(tmp_path)


@contextmanager
def opener():
    """Open stores and connections that are closed at the end of the block."""
    with ExitStack() as stack:

        def connect(url, namespace="default", **options):
            store = open_store(url, namespace=namespace, **options)
            stack.callback(store.close)
            connection = store.connect("commands")
            stack.callback(connection.close)
            return connection

        yield connect


@pytest.fixture
def opening():
    """The same, for a whole test."""
    with opener() as connect:
        yield connect


@pytest.fixture
def server():
    """A server of this test's own."""
    with real_servers.server("mongodb") as made:
        yield made


class TestMongodbByItsOwnClock(StoreConformance):
    """As users have it: the server's time. Histories take as long as they tell."""

    histories = 5
    processes = True

    def url(self, folder):
        return PROVIDERS["mongodb"].url(folder)

    def open(self, url, *, namespace, clock):
        return open_store(url, namespace=namespace)

    def dump(self, url, namespace):
        return PROVIDERS["mongodb"].dump(url, namespace)


# -- requests ---------------------------------------------------------------------------------------------------------


class Commands(pymongo.monitoring.CommandListener):
    """What the driver really sends about the collection."""

    def __init__(self):
        self.sent = []

    def started(self, event):
        if event.command_name not in ("hello", "endSessions"):
            self.sent.append(event.command_name)

    def succeeded(self, event):
        pass

    def failed(self, event):
        pass


def test_a_pair_is_three_requests_and_a_hundred_renewals_are_one(address, opening, monkeypatch):
    heard = Commands()
    opened = pymongo.MongoClient
    monkeypatch.setattr(
        "holdfast.stores.mongodb.address.MongoClient",
        lambda *given, **options: opened(*given, **options, event_listeners=[heard]),
    )
    connection = opening(address)
    heard.sent.clear()
    granted = ask(connection, acquire())
    assert isinstance(ask(connection, release(token=granted.token)), out.Released)
    assert heard.sent == ["aggregate", "update", "update"]
    grants = connection.execute([acquire(f"k{n}") for n in range(100)])
    heard.sent.clear()
    renewals = connection.execute([renew(f"k{n}", token=one.token) for n, one in enumerate(grants)])
    assert {type(one) for one in renewals} == {out.Renewed}
    assert heard.sent == ["update"]


def test_the_driver_sends_nothing_twice_and_asks_a_majority(address):
    where = address_of_url(f"{address}&retryWrites=true&w=1&readPreference=secondary")
    with where.open_client() as client:
        assert not client.options.retry_writes
        assert not client.options.retry_reads
        collection = where.collection_of(client)
        assert collection.write_concern.document == {"w": "majority", "j": True}
        assert collection.read_concern.level == "majority"
        assert collection.read_preference == pymongo.ReadPreference.PRIMARY


def test_a_lost_race_is_told_for_each_record_and_is_no_error(address, opening):
    mine, other = opening(address), opening(address)
    mine.execute([acquire(f"k{n}", ttl=60) for n in range(3)])
    before = mine.trips
    ask(other, abandon("k1", "x.1"))
    grants = {f"k{n}": ask(mine, c.Inspect(key=f"k{n}")).record.holders[0].token for n in range(3)}
    outcomes = mine.execute([renew(key, token=token) for key, token in grants.items()])
    assert {type(one) for one in outcomes} == {out.Renewed}
    assert mine.conflicts == 1
    assert mine.trips == before + 3 + 3  # three looks; then write, read, write


def test_many_that_make_the_same_records_at_once_see_no_duplicate_key(address, opening):
    connections = [opening(address) for _ in range(4)]
    begin, answers = threading.Barrier(4), []

    def work(number):
        begin.wait()
        answers.extend(connections[number].execute([acquire(f"k{n}", f"a{number}.{n}") for n in range(20)]))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(isinstance(one, out.Granted) for one in answers) == 20
    assert sum(isinstance(one, out.Busy) for one in answers) == 60


def test_a_record_that_was_removed_is_not_made_again_by_a_late_write(address, opening):
    connection, other = opening(address), opening(address)
    ask(connection, add("z.1"))
    adapter = connection._adapter
    original = adapter.write

    def write(writes):
        adapter.write = original
        ask(other, LeaveTally(key="k", id="z.1"))
        return original(writes)

    adapter.write = write
    assert ask(connection, add("a.1")) == Counted(total=1)  # decided again: the record was gone
    assert [member.id for member in ask(connection, SeeTally(key="k")).tally.members] == ["a.1"]


# -- the stored form --------------------------------------------------------------------------------------------------


def test_the_documents_are_these(address, opening):
    connection = opening(address)
    granted = ask(connection, acquire("invoice:42", "a.1"))
    connection.execute([wait("invoice:42", "b.1"), swap("a.1", value="7"), add("z.1", ttl=SECOND)])
    ask(connection, release("invoice:42", "a.1", token=granted.token))
    with mongodb_collection(address) as collection:
        documents = {one["_id"]: one for one in collection.find()}
        assert list(collection.index_information()) == ["_id_", DUE_INDEX]
    assert set(documents) == {
        CLOCK_ID,
        "lock:default:invoice:42",
        'slot:default:["global", "", "k"]',
        "record/tally:default:k",
    }
    lock = documents["lock:default:invoice:42"]
    assert set(lock) == {"_id", "record", "stamp", "at", "due_of", "due_at", "woken"} - (
        set() if "due_at" in lock else {"due_of", "due_at"}
    )
    assert lock["woken"] == ["b.1"]
    assert [holder["id"] for holder in json.loads(lock["record"])["holders"]] == ["b.1"]
    assert json.loads(documents['slot:default:["global", "", "k"]']["record"])["value"] == "7"
    due = documents["record/tally:default:k"]
    assert due["due_of"] == "record/tally:default:"
    assert due["due_at"] == json.loads(due["record"])["ends_at"]


def test_names_are_distinct_and_listed_in_the_order_of_code_points(address, opening):
    spaces = ["n" * 512, "n", "a:b", "a%3Ab", "a"]
    connections = {space: opening(address, space) for space in spaces}
    for connection in connections.values():
        assert {type(one) for one in connection.execute([acquire(name) for name in NAMES])} == {out.Granted}
    for connection in connections.values():
        page = ask(connection, c.ListLocks())
        assert [item.key for item in page.items] == sorted(NAMES)
        assert [item.key for item in ask(connection, c.ListLocks(after="a")).items] == sorted(NAMES)[2:]
        assert [item.key for item in ask(connection, c.ListLocks(prefix="a")).items] == ["a", "a ", "a%", "a:b"]


def test_the_clock_is_made_again_if_somebody_deletes_it(address, opening):
    connection = opening(address)
    with mongodb_collection(address) as collection:
        collection.delete_one({"_id": CLOCK_ID})
    assert isinstance(ask(connection, acquire()), out.Granted)


def test_the_time_is_not_earlier_than_that_of_the_records(address, opening, monkeypatch):
    """The server reads its clock when a request begins; a document may be written before the server reads it."""
    connection = opening(address)
    ask(connection, acquire())
    ahead = ask(connection, c.Inspect(key="k")).now + 30 * SECOND
    with mongodb_collection(address) as collection:
        collection.update_one({"_id": "lock:default:k"}, {"$set": {"at": ahead}})
    moments = count()
    monkeypatch.setattr("holdfast.stores.mongodb.adapter.elapsed", lambda: 60.0 * next(moments))  # each takes a minute
    assert ask(connection, c.Inspect(key="k")).now == ahead


def test_a_server_whose_clock_was_set_back_does_not_follow_the_times_of_old_records(address, opening):
    connection = opening(address)
    ask(connection, acquire())
    now = ask(connection, c.Inspect(key="k")).now
    with mongodb_collection(address) as collection:
        collection.update_one({"_id": "lock:default:k"}, {"$set": {"at": now + 3_600 * SECOND}})
    assert ask(connection, c.Inspect(key="k")).now < now + 60 * SECOND


@pytest.mark.parametrize("locale", ["en", "simple"])
def test_a_collection_that_takes_different_keys_for_equal_is_refused(address, locale):
    with mongodb_collection(address) as collection:
        collection.drop()
        collation = {"locale": locale, "strength": 2} if locale == "en" else {"locale": "simple"}
        collection.database.create_collection(collection.name, collation=collation)
    store = open_store(address, namespace="default")
    found = {finding.check: finding for finding in store.diagnose()}
    if locale == "en":
        assert found["collection"].level == "problem"
        assert "?collection=" in found["collection"].advice
        with pytest.raises(StoreUnusable, match=r"collation 'en'.*Nothing was changed.*another one"):
            store.connect("commands")
        with mongodb_collection(address) as collection:
            assert set(collection.index_information()) == {"_id_"}
    else:
        store.connect("commands").close()
    store.close()


# -- faults -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def lossy(address):
    """A connection through a proxy, one beside it, and the proxy."""
    server = real_servers.shared("mongodb")
    if isinstance(server, real_servers.LiveServer):
        pytest.skip("the proxy stands before the tests' own server only")
    with Proxy(server.host, server.port) as proxy, opener() as connect:
        yield connect(address.replace(f":{server.port}", f":{proxy.port}")), connect(address), proxy


WRITING = b"updates"
"""Bytes that only a request that writes has."""


@pytest.mark.parametrize("meddled", [False, True], ids=["alone", "beside another writer"])
def test_a_lost_reply_changes_no_effect_of_a_lock(lossy, meddled):
    connection, other, proxy = lossy

    def meddle():
        if meddled:
            assert isinstance(ask(other, abandon("k", f"x.{proxy.replies_dropped}")), out.Abandoned)

    def losing(command):
        dropped = proxy.replies_dropped
        proxy.drop_next_reply(containing=WRITING)
        adapter = connection._adapter
        original = adapter.write

        def write(writes):
            try:
                return original(writes)
            finally:
                adapter.write = original
                meddle()

        adapter.write = write
        outcome = ask(connection, command)
        assert proxy.replies_dropped == dropped + 1
        return outcome

    granted = losing(acquire())
    assert isinstance(granted, out.Granted)
    assert [holder.token for holder in ask(other, c.Inspect(key="k")).record.holders] == [granted.token]
    assert isinstance(losing(renew(token=granted.token)), out.Renewed)
    released = losing(release(token=granted.token))
    assert isinstance(released, c.Failed if meddled else out.Released)
    if meddled:
        assert released.error.ambiguous
    assert ask(other, c.Inspect(key="k")).record.holders == ()


@pytest.mark.parametrize("name", BESIDE_ANOTHER)
def test_a_lost_reply_beside_another_writer_changes_no_effect_of_any_command(lossy, name):
    connection, other, proxy = lossy
    check_beside_another_writer(name, connection, other, lambda: proxy.drop_next_reply(containing=WRITING))


OTHER_REQUESTS = [  # a renewal and a release of its own grant read nothing
    *((b"aggregate", name) for name in BESIDE_ANOTHER if name not in ("Renew", "Release")),
    *((b"find", name) for name in ("ListLocks", "SettleDue", "Cleanup")),
    (b"deletes", "Cleanup"),
]


@pytest.mark.parametrize(("operation", "name"), OTHER_REQUESTS, ids=lambda value: str(value).replace(" ", "-"))
def test_a_lost_reply_to_another_request_changes_no_effect_of_a_command(lossy, operation, name):
    connection, other, proxy = lossy
    command, kind = COMMANDS[name]
    token = prepared(connection)
    proxy.drop_next_reply(containing=operation)
    outcome = answer_to(connection, command(token))
    assert proxy.replies_dropped == 1
    assert isinstance(outcome, kind)
    if isinstance(outcome, out.Granted | out.Transferred):
        held = ask(other, c.Inspect(key="other" if name == "Acquire" else "k")).record.holders
        assert [holder.token for holder in held] == [outcome.token]


def answer_to(connection, command):
    """The outcome; a reader whose reply was lost is asked again, as flows do."""
    with suppress(StoreUnavailable):
        return ask(connection, command)
    return ask(connection, command)


def test_a_lost_reply_changes_no_effect_of_a_value(lossy):
    connection, other, proxy = lossy
    proxy.drop_next_reply(containing=WRITING)
    assert ask(connection, swap("a.1")) == Swapped(version=1)
    assert proxy.replies_dropped == 1
    assert ask(other, read()) == SlotSeen(version=1, last="a.1", value="1")


def test_a_client_goes_on_by_itself_after_its_connections_were_cut(lossy):
    connection, _, proxy = lossy
    ask(connection, acquire("a"))
    proxy.cut()

    def works():
        try:
            return isinstance(ask(connection, acquire("b")), out.Granted)
        except StoreUnavailable:
            return False

    eventually(works)


def test_every_acknowledged_write_is_there_after_a_kill(server, opening):
    url = f"{server.url}&collection=locks&serverSelectionTimeoutMS=500"
    connection = opening(url)
    grants = connection.execute([acquire(f"k{n}", ttl=None) for n in range(20)])
    ask(connection, swap("a.1", value="7"))
    server.kill()
    with pytest.raises(StoreUnavailable):
        ask(connection, acquire("late"))
    server.restart()
    fresh = opening(url)
    looks = fresh.execute([c.Inspect(key=f"k{n}") for n in range(20)])
    assert [look.record.holders[0].token for look in looks] == [grant.token for grant in grants]
    assert ask(fresh, read()).value == "7"


def test_a_server_that_is_down_is_told_of_and_nothing_was_sent(tmp_path):
    with real_servers.server("mongodb") as gone:
        url = f"{gone.url}&serverSelectionTimeoutMS=300"
    store = open_store(url, namespace="default")
    with pytest.raises(StoreUnavailable, match="cannot be reached, and nothing was sent") as caught:
        store.connect("commands")
    assert not caught.value.ambiguous
    (finding,) = store.diagnose()
    assert (finding.check, finding.level) == ("server", "problem")
    store.close()


def test_an_interrupted_client_of_the_driver_is_replaced(address, opening):
    connection = opening(address)
    shared = connection._adapter._shared
    damaged = shared._client
    with pytest.raises(KeyboardInterrupt), shared.request(writing=False):
        raise KeyboardInterrupt
    assert isinstance(ask(connection, acquire()), out.Granted)
    assert shared._client is not damaged


@pytest.mark.parametrize(
    ("error", "writing", "kind", "ambiguous"),
    [
        (pymongo.errors.ServerSelectionTimeoutError("x"), True, StoreUnavailable, False),
        (pymongo.errors.AutoReconnect("x"), True, StoreUnavailable, True),
        (pymongo.errors.AutoReconnect("x"), False, StoreUnavailable, False),
        (pymongo.errors.NetworkTimeout("x"), True, StoreUnavailable, True),
        (pymongo.errors.NotPrimaryError("x", {"code": 10107}), True, StoreUnavailable, False),
        (pymongo.errors.NotPrimaryError("x", {"code": 11602}), True, StoreUnavailable, True),
        (pymongo.errors.OperationFailure("x", 13, {"code": 13}), True, StoreUnusable, False),
        (pymongo.errors.OperationFailure("x", 18, {"code": 18}), False, StoreUnusable, False),
        (pymongo.errors.OperationFailure("x", 59, {"code": 59}), False, StoreUnusable, False),
        (pymongo.errors.ExecutionTimeout("x", 50, {"code": 50}), True, StoreUnavailable, True),
        (pymongo.errors.WTimeoutError("x", 64, {"code": 64}), True, StoreUnavailable, True),
        (pymongo.errors.ConfigurationError("x"), True, StoreUnusable, False),
    ],
)
def test_errors_of_the_driver_are_those_of_holdfast(error, writing, kind, ambiguous):
    mapped = store_error(error, "mongodb://host", writing=writing)
    assert type(mapped) is kind
    assert mapped.ambiguous is ambiguous


def test_a_write_that_the_server_refuses_says_why():
    error = refused_write(
        [{"code": 121, "errmsg": "Document failed validation"}], "mongodb://host", others_written=True
    )
    assert isinstance(error, StoreUnusable)
    assert "validation rule" in str(error)
    assert error.ambiguous


# -- waking -----------------------------------------------------------------------------------------------------------


def test_without_a_replica_set_waiters_poll_and_health_says_so(opening):
    with real_servers.server("mongodb", settings={"standalone": ""}) as server:
        url = f"{server.url}&collection=locks"
        store = open_store(url, namespace="default")
        assert not store.capabilities.notifies
        watch = store.watch("b", lambda _: None)
        assert watch.polls
        watch.close()
        levels = {finding.check: finding.level for finding in store.diagnose()}
        assert (levels["topology"], levels["wake-ups"]) == ("warning", "warning")
        store.close()
        with Client(url) as one, Client(url) as two:
            lease = one.semaphore("k", permits=1).acquire()
            waiting = threading.Thread(target=lambda: two.semaphore("k", permits=1, wait=20).acquire().release())
            waiting.start()
            eventually(lambda: one.locks.inspect("k").waiters)
            lease.release()
            waiting.join()


def test_a_change_stream_that_breaks_is_opened_again_and_waiters_poll_meanwhile(address, opening, monkeypatch):
    monkeypatch.setattr(mongodb_watch, "RETRY_SECONDS", (0.01, 0.01))
    connection = opening(address)
    heard = []
    subscription = mongodb_watch.MongoSubscription(connection._adapter._shared, heard.append)
    try:
        eventually(lambda: subscription.live)
        assert heard == [None]
        connection._adapter._shared._client.close()
        eventually(lambda: not subscription.live)
        connection._adapter._shared._client = None
        eventually(lambda: subscription.live)
        assert heard == [None, None]
    finally:
        subscription.close()


# -- addresses --------------------------------------------------------------------------------------------------------


def test_the_parts_of_a_url():
    where = address_of_url("mongodb://user:pass@B.example,a.example:27018/shop?collection=my%20locks&replicaSet=rs0")
    assert where.name == "mongodb://a.example:27018,b.example:27017/shop.my locks"
    assert where.url == "mongodb://user:***@B.example,a.example:27018/shop?collection=my%20locks&replicaSet=rs0"
    assert "pass" not in repr(where)
    plain = address_of_url("mongodb://localhost")
    assert (plain.database, plain.collection) == ("holdfast", "holdfast")


@pytest.mark.parametrize(
    "url",
    [
        f"mongodb://user:{SECRET}/x@host/db",
        f"mongodb://user:{SECRET}@host:port/db",
        "mongodb://host/a.b",
        "mongodb://host/db?collection=a$b",
        "mongodb:///db",
    ],
)
def test_what_cannot_be_an_address_is_refused_without_being_repeated(url):
    with pytest.raises(InvalidOption) as caught:
        open_store(url, namespace="default")
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_a_store_is_opened_from_a_client_of_the_driver(address):
    where = address_of_url(address)
    with where.open_client() as handle:
        store = open_store(handle, namespace="default", options={"collection": where.collection})
        connection = store.connect("commands")
        assert isinstance(ask(connection, acquire()), out.Granted)
        assert store.identity == open_store(address, namespace="default").identity
        connection.close()
        store.close()
        assert handle.admin.command("ping")["ok"]  # the client itself was not touched
        with pytest.raises(InvalidOption, match="only options are database and collection"):
            open_store(handle, namespace="default", options={"prefix": "x"})


def test_an_async_client_of_the_driver_is_refused_with_what_to_pass():
    handle = pymongo.AsyncMongoClient("mongodb://localhost", connect=False)
    with pytest.raises(InvalidOption, match=r"Pass the URL, or a pymongo\.MongoClient"):
        open_store(handle, namespace="default")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork on this system")
def test_a_forked_child_has_connections_of_its_own(address):
    with Client(address) as hf:
        with hf.lock("k"):
            pass
        child = os.fork()
        if child == 0:  # pragma: no cover
            code = 1
            try:
                with hf.lock("k", wait=10):
                    code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        with hf.lock("k"):
            pass


# -- health -----------------------------------------------------------------------------------------------------------


def findings(url):
    store = open_store(url, namespace="default")
    try:
        return {finding.check: finding for finding in store.diagnose()}
    finally:
        store.close()


def test_a_collection_that_nobody_has_used_is_not_changed_by_looking(address):
    assert "not prepared" in unready(address)
    assert findings(address)["collection"].level == "warning"
    with mongodb_collection(address) as collection:
        assert collection.database.list_collection_names(filter={"name": collection.name}) == []
    store = open_store(address, namespace="default")
    store.connect("commands").close()
    store.close()
    assert unready(address) is None
    assert {finding.level for finding in findings(address).values()} == {"ok"}


@pytest.mark.parametrize(
    ("build", "shown"),
    [
        ({"version": "8.0.4", "gitVersion": "0", "openssl": {"running": "OpenSSL 3"}}, "MongoDB 8.0.4"),
        (
            {"version": "7.0.77", "ferretdb": {"version": "v2.1.0"}},
            "ferretdb v2.1.0 with the protocol of MongoDB 7.0.77",
        ),
        ({"version": "8.2.11", "secantusVersion": "0.7"}, "secantus 0.7 with the protocol of MongoDB 8.2.11"),
    ],
)
def test_a_server_that_is_not_mongodb_is_reported_by_its_own_name(build, shown):
    assert health._server(build).detail == shown


def test_doctor_reports_the_stand_in_by_its_own_name(address):
    if isinstance(real_servers.shared("mongodb"), real_servers.LiveServer):
        pytest.skip("this is the server of somebody else")
    assert findings(address)["server"].detail.startswith("secantus ")


def test_a_ttl_index_is_a_problem(address, opening):
    opening(address)
    with mongodb_collection(address) as collection:
        collection.create_index("at", name="bad", expireAfterSeconds=60)
    problem = findings(address)["collection"]
    assert problem.level == "problem"
    assert "dropIndex('bad')" in problem.advice


# -- the page ---------------------------------------------------------------------------------------------------------

PAGE = (Path(__file__).parents[2] / "docs" / "stores" / "mongodb.md").read_text()


def test_the_programs_of_the_page_run(tmp_path):
    programs = re.findall(r"^```py\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert len(programs) == 2
    base, _, query = real_servers.shared("mongodb").url.partition("?")
    database = f"page_{secrets.token_hex(6)}"
    real = f"{base}{database}?{query}"
    for program in programs:
        code = program.replace("mongodb://localhost:27017/app", real)
        assert code != program
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
    with pymongo.MongoClient(real) as client:
        assert set(client[database].list_collection_names()) == {"holdfast", "locks"}
        client.drop_database(database)


def test_the_queries_of_the_page_find_what_it_says(address, opening):
    connection = opening(address)
    labelled = replace(acquire("invoice:42"), label=Label(name="me", host="here", pid=4711))
    connection.execute([labelled, acquire("other"), swap("a.1", address=("global", "", "seats"))])
    connection.execute([wait("invoice:42")])
    block = re.search(r"^```js\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[1]
    queries = re.findall(
        r"^db\.holdfast\.find(?:One)?\((\{.*?\})(?:, \{[^{}]*\})?\)(?:\.sort.*)?$", block, re.MULTILINE
    )
    with mongodb_collection(address) as collection:
        found = [[one["_id"] for one in collection.find(json.loads(query)).sort("_id")] for query in queries]
    lock, other, state = "lock:default:invoice:42", "lock:default:other", 'slot:default:["global", "", "seats"]'
    assert found == [[lock], [lock, other], [lock], [lock], [state]]
