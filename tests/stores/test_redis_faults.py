"""Faults of a server or of its network, each on a real server; clients continue afterwards."""

from __future__ import annotations

import http.server
import re
import threading
import traceback
from contextlib import contextmanager
from pathlib import Path

import pytest
import real_servers
import redis
from providers import PROVIDERS
from waiting import eventually

from holdfast import Client
from holdfast import commands as c
from holdfast.errors import InvalidOption, LeaseLost, NotHeld, StoreUnavailable, StoreUnusable
from holdfast.rules import lock_outcomes as out
from holdfast.rules.runs.outcomes import Started
from holdfast.rules.slot import SlotSeen, Swapped
from holdfast.stores import batch_cost as work
from holdfast.stores.redis.connection import RedisLink
from holdfast.stores.redis.record_source import RedisSource
from holdfast.stores.redis.scripts import FAST, READ
from holdfast.testing.builders import (
    ManualClock,
    abandon,
    acquire,
    read,
    release,
    renew,
    swap,
    transfer,
    wait,
)
from holdfast.testing.proxy import Proxy
from holdfast.testing.suite.runs import start

KINDS = ["valkey", "redis"]
QUICK = {"appendonly": "no"}


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def own(kind):
    """A separate server for this test, which may be damaged."""
    with real_servers.server(kind, settings=QUICK) as server:
        yield server


@pytest.fixture
def operator(own):
    with redis.Redis(port=own.port, decode_responses=True) as client:
        yield client


@pytest.fixture
def proxy(kind):
    server = real_servers.shared(kind)
    with Proxy(server.host, server.port) as made:
        yield made


@pytest.fixture
def through(proxy, kind, tmp_path):
    """The address of an empty store, through the proxy."""
    return proxy.url_for(PROVIDERS[kind].url(tmp_path))


@contextmanager
def refused(match, *, ambiguous=False):
    with pytest.raises(StoreUnavailable, match=match) as caught:
        yield
    assert caught.value.ambiguous is ambiguous


# ---------------------------------------------------------------- errors of a server


def test_a_script_that_the_server_has_lost_is_loaded_again(own, operator, opened):
    connection = opened(own.url).connect("commands")
    (held,) = connection.execute([acquire()])
    operator.script_flush()
    assert isinstance(connection.execute([renew(token=held.token)])[0], out.Renewed)
    operator.config_resetstat()
    connection.execute([release(token=held.token)])
    assert "cmdstat_eval" not in operator.info("commandstats")


def test_a_server_that_becomes_a_replica_refuses_writes_and_reads(kind, own, operator, opened):
    store = opened(own.url)
    connection, reader = store.connect("commands"), store.connect("queries")
    connection.execute([acquire()])
    with real_servers.server(kind, settings=QUICK) as primary:
        operator.replicaof("127.0.0.1", primary.port)
        with refused("replica"):
            connection.execute([acquire("other")])
        with refused("replica"):
            reader.execute([c.Inspect(key="k")])
        with refused("replica"):
            store.connect("commands")
        operator.config_set("replica-read-only", "no")
        with refused("replica"):
            store.connect("commands")
        operator.replicaof("NO", "ONE")
    assert isinstance(store.connect("commands").execute([acquire("other")])[0], out.Granted)


@pytest.mark.parametrize("way", ["short", "long"])
def test_a_read_from_a_replica_is_refused_on_every_path(kind, own, operator, opened, way):
    """Otherwise a batch that writes nothing would be answered from outdated data."""
    connection = opened(own.url, clock=ManualClock()).connect("commands")
    (held,) = connection.execute([acquire()])
    nothing_new = renew(token=held.token) if way == "short" else c.Inspect(key="k")
    connection.execute([nothing_new])
    with real_servers.server(kind, settings=QUICK) as primary:
        operator.replicaof("127.0.0.1", primary.port)
        with refused("replica"):
            connection.execute([nothing_new])


def test_a_full_memory_refuses_the_batch_and_changes_nothing(own, operator, opened):
    store = opened(own.url)
    connection = store.connect("commands")
    connection.execute([acquire()])
    operator.config_set("maxmemory", "1")
    with refused("memory is full.*maxmemory"):
        connection.execute([acquire("other")])
    assert store.connect("queries").execute([c.Inspect(key="other")])[0].record is None
    operator.config_set("maxmemory", "0")
    assert isinstance(store.connect("commands").execute([acquire("other")])[0], out.Granted)


def test_a_server_that_is_loading_its_data_is_retried(own, operator, opened):
    store = opened(own.url)
    connection = store.connect("commands")
    (held,) = connection.execute([acquire(ttl=None)])
    connection.close()
    operator.config_set("rdbcompression", "no")
    operator.mset({f"filler:{n}": "x" * 40_000 for n in range(1_000)})
    operator.save()
    # It serves its clients after every other megabyte: slow enough to be seen, fast enough to wait for.
    own.settings |= {"key-load-delay": "2000", "save": "3600 1"}
    own.kill()
    restarting = threading.Thread(target=own.restart)
    restarting.start()
    refusals = []

    def loaded():
        try:
            return store.connect("commands").execute([renew(token=held.token, ttl=None)])
        except StoreUnavailable as error:
            refusals.append(error)
            return None

    assert eventually(loaded) == [out.Renewed(floor=held.token, expires_at=None)]
    restarting.join()
    assert any("loading its data" in str(error) for error in refusals), set(map(str, refusals))
    assert not any(error.ambiguous for error in refusals)


def test_a_server_that_is_blocked_by_a_script_is_reported_as_unavailable(own, operator, opened):
    store = opened(own.url)
    connection = store.connect("commands")
    connection.execute([acquire()])
    operator.config_set("lua-time-limit", "5")
    with redis.Redis(port=own.port) as other, redis.Redis(port=own.port) as killer:

        def run_forever():
            with pytest.raises(redis.ResponseError):
                other.eval("while true do end", 0)

        busy = threading.Thread(target=run_forever)
        busy.start()

        def message():
            try:
                store.connect("commands")
            except StoreUnavailable as error:
                message = str(error)
                whose = "another program or to Holdfast (EVALSHA" in message and FAST.sha.decode() in message
                return not error.ambiguous and whose and "SLOWLOG GET" in message and "SCRIPT KILL" in message

        eventually(message)
        killer.script_kill()
        busy.join()
    assert isinstance(connection.execute([acquire(id="b.1")])[0], out.Busy)


def test_a_slow_script_of_holdfast_that_is_killed_gets_an_error(own, operator, opened, monkeypatch):
    monkeypatch.setattr(work, "AT_ONCE", 10**9)  # one script for the whole batch
    store = opened(own.url)
    slow, other = store.connect("commands"), store.connect("commands")
    (held,) = slow.execute([acquire()])
    operator.config_set("lua-time-limit", "1")
    operator.config_set("slowlog-log-slower-than", "0")
    ended = []

    def read_for_long():
        with refused("SCRIPT KILL.*smaller"):
            slow.execute([renew(f"k{n}", "nobody.1", token=1) for n in range(200_000)])
        ended.append(True)

    reading = threading.Thread(target=read_for_long)
    reading.start()

    def busy():
        try:
            store.connect("commands").execute([c.Inspect(key="k")])
        except StoreUnavailable as error:
            return "or to Holdfast (EVALSHA" in str(error) and not error.ambiguous

    eventually(busy)
    with redis.Redis(port=own.port) as killer:
        killer.script_kill()
    reading.join()
    assert ended
    logged = [entry["command"].split() for entry in operator.slowlog_get(50)]
    assert [b"EVALSHA", FAST.sha] in [words[:2] for words in logged], "the error names what the log shows"
    assert other.execute([renew(token=held.token)])[0].floor == held.token


def test_too_many_clients_of_the_server_is_an_error_that_says_so(own, operator, opened):
    store = opened(own.url)
    store.connect("commands")
    operator.config_set("maxclients", "1")
    with refused("maxclients"):
        store.connect("heartbeats")
    operator.config_set("maxclients", "100")
    store.connect("heartbeats")


def test_a_wrong_type_at_the_key_of_an_index_changes_nothing(own, operator, opened):
    operator.rpush("holdfast:{default}:keys", "mine")
    connection = opened(own.url).connect("commands")
    (failed,) = connection.execute([acquire()])
    assert isinstance(failed.error, StoreUnusable)
    assert "prefix" in str(failed.error)
    assert operator.keys("*") == ["holdfast:{default}:keys"]


def test_a_command_that_the_server_refuses_fails_alone_and_the_connection_stays_usable(own, operator, opened):
    """The index of runs by age has a foreign value: locks before and after the start of a run are still acquired."""
    operator.set("holdfast:{default}:runs:age", "mine")
    connection = opened(own.url).connect("commands")
    locks = [acquire(f"k{n}") for n in range(5)]
    outcomes = connection.execute([*locks[:3], start("r"), *locks[3:], start("s")])
    kinds = ["Granted"] * 3 + ["Failed"] + ["Granted"] * 2 + ["Failed"]
    assert [type(outcome).__name__ for outcome in outcomes] == kinds
    for failed in (outcomes[3], outcomes[6]):
        assert isinstance(failed.error, StoreUnusable)
        assert not failed.error.ambiguous
    assert not operator.exists("holdfast:{default}:run:r", "holdfast:{default}:run:s")
    operator.delete("holdfast:{default}:runs:age")
    assert [type(outcome) for outcome in connection.execute([start("r"), acquire("more")])] == [Started, out.Granted]


def test_a_query_that_the_server_refuses_fails_alone(own, operator, opened):
    user(operator, "app")
    connection = opened(own.url.replace("redis://", "redis://app:pw@")).connect("commands")
    operator.execute_command("ACL", "SETUSER", "app", "-zrangebylex", "-hmget")
    outcomes = connection.execute([acquire(), c.ListLocks(), read(), acquire("other")])
    assert [type(outcome).__name__ for outcome in outcomes] == ["Granted", "Failed", "Failed", "Granted"]
    assert all(isinstance(outcome.error, StoreUnusable) for outcome in outcomes[1:3])


def test_any_error_after_a_part_of_a_batch_was_executed_is_ambiguous(own, opened, monkeypatch):
    connection = opened(own.url).connect("commands")

    def unusable(*_):
        raise StoreUnusable("no more")

    monkeypatch.setattr(RedisSource, "write", unusable)
    with pytest.raises(StoreUnusable) as caught:
        connection.execute([acquire(), start("r")])
    assert caught.value.ambiguous
    with pytest.raises(StoreUnusable) as caught:
        connection.execute([start("r")])
    assert not caught.value.ambiguous


def test_a_connection_that_is_lost_after_a_batch_was_executed_is_opened_again(own, operator, opened, monkeypatch):
    """The batch has its outcomes. The step after it, ending an offer that no client receives, is not needed."""
    connection = opened(own.url).connect("commands")
    (held,) = connection.execute([acquire()])
    connection.execute([wait(listens=True)])
    call = RedisLink.call

    def lost_before_the_look(link, script, *arguments):
        if script is READ:
            operator.execute_command("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
        return call(link, script, *arguments)

    with monkeypatch.context() as patched:
        patched.setattr(RedisLink, "call", lost_before_the_look)
        assert connection.execute([release(token=held.token)]) == [out.Released(woken=("b.1",))]
    assert isinstance(connection.execute([acquire("other")])[0], out.Granted)


def test_a_connection_that_cannot_be_opened_again_has_executed_nothing_of_the_next_batch(proxy, through, opened):
    connection = opened(through).connect("commands")
    (held,) = connection.execute([acquire()])
    connection.execute([wait(listens=True)])
    call = RedisLink.call

    def lost_before_the_look(link, script, *arguments):
        if script is READ:
            proxy.refuse()
            proxy.cut()
        return call(link, script, *arguments)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(RedisLink, "call", lost_before_the_look)
        connection.execute([release(token=held.token)])
    with refused("cannot be reached"):
        connection.execute([acquire("other")])
    proxy.go_on()
    assert isinstance(connection.execute([acquire("other")])[0], out.Granted)
    connection.close()
    with pytest.raises(StoreUnusable, match="closed"):
        connection.execute([acquire("other")])


def test_after_a_flush_holders_are_notified_and_tokens_keep_rising(own, operator):
    with Client(own.url) as hf:
        lease = hf.lock("k", ttl=30).acquire()
        operator.flushall()
        with pytest.raises(LeaseLost):
            lease.renew()
        assert not lease.valid
        with hf.lock("k", wait=5) as next_one:
            assert next_one.token > lease.token
        with pytest.raises((NotHeld, LeaseLost)):
            lease.release()


@pytest.mark.parametrize("way", ["kill", "stop"])
def test_clients_continue_without_help_after_a_restart(kind, way):
    with real_servers.server(kind) as server, Client(server.url) as hf:
        lease = hf.lock("k", ttl=30).acquire()
        getattr(server, way)()
        restarting = threading.Thread(target=server.restart)
        restarting.start()
        with hf.lock("other", wait=20):
            pass
        restarting.join()
        lease.renew()
        assert hf.locks.inspect("k").held
        lease.release()


# ---------------------------------------------------------------- rights


PAGE = (Path(__file__).parents[2] / "docs/stores/redis.md").read_text()
RIGHTS = dict(re.findall(r"^    ACL SETUSER (\w+) on >secret (.*)$", PAGE, re.MULTILINE))
"""As the page tells them."""


def user(operator, name, password="pw"):
    words = RIGHTS[name].split()
    if operator.info("server")["redis_version"] < "7":
        words = [word for word in words if "|" not in word]
    operator.execute_command("ACL", "SETUSER", name, "reset", "on", f">{password}", *words)


def test_the_minimal_rights_of_the_documentation_are_sufficient(own, operator):
    user(operator, "app")
    url = own.url.replace("redis://", "redis://app:pw@")
    with Client(url) as hf, Client(url) as other:
        with hf.semaphore("k", permits=1):
            waiting = threading.Thread(target=lambda: other.semaphore("k", permits=1).acquire(wait=20).release())
            waiting.start()
            eventually(lambda: hf.locks.inspect("k").waiters)
            assert len(hf.locks.list()) == 1
        waiting.join()
        assert hf.state("s", initial=1).increment() == 2
        hf.locks.cleanup()


def test_the_read_only_rights_of_the_documentation_permit_all_reads_and_no_change(own, operator, opened):
    with Client(own.url) as hf:
        hf.state("s", initial=1).increment()
        lease = hf.lock("k").acquire()
        user(operator, "viewer")
        with Client(own.url.replace("redis://", "redis://viewer:pw@")) as viewer:
            assert viewer.locks.inspect("k").held
            assert len(viewer.locks.list()) == 1
            assert viewer.state("s", initial=1).get() == 2
            with pytest.raises(StoreUnusable, match="lacks permissions"):
                viewer.lock("other").acquire()
        lease.release()


@pytest.mark.parametrize(
    ("who", "match"),
    [("app:hunter2@", "login failed"), ("", "password"), ("nobody:hunter2@", "login failed")],
)
def test_a_wrong_password_is_reported_without_showing_it(own, operator, opened, who, match):
    user(operator, "app")
    operator.config_set("requirepass", "s3cret")
    store = opened(own.url.replace("redis://", f"redis://{who}"))
    with pytest.raises(StoreUnusable, match=match) as caught:
        store.connect("commands")
    assert "hunter2" not in "".join(traceback.format_exception(caught.value)) + store.url + store.identity + repr(store)
    assert "hunter2" not in str(store.diagnose())


# ---------------------------------------------------------------- faults of the network


def test_an_unreachable_server_is_not_ambiguous(proxy, through, opened):
    store = opened(through)
    proxy.refuse()
    with refused("cannot be reached"):
        store.connect("commands")
    proxy.go_on()
    store.connect("commands")


def test_a_server_that_is_no_redis_is_unusable_or_unavailable(opened, own):
    """An HTTP server, which speaks another protocol."""
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as other:
        threading.Thread(target=other.serve_forever, daemon=True).start()
        with pytest.raises((StoreUnusable, StoreUnavailable)):
            opened(f"redis://127.0.0.1:{other.server_port}?socket_timeout=1").connect("commands")
        other.shutdown()


def test_a_lost_connection_is_ambiguous(proxy, through, opened):
    connection = opened(through).connect("commands")
    connection.execute([acquire()])
    proxy.cut()
    with refused("failed", ambiguous=True):
        connection.execute([acquire("other")])
    with pytest.raises(StoreUnusable, match="closed"):
        connection.execute([acquire("other")])


def test_a_timeout_of_an_answer_is_ambiguous(proxy, through, opened):
    connection = opened(through + "&socket_timeout=0.2").connect("commands")
    proxy.stall()
    with refused("did not answer in time", ambiguous=True):
        connection.execute([acquire()])


def test_a_timeout_of_a_connection_is_not_ambiguous(opened, proxy, through):
    store = opened(through + "&socket_connect_timeout=0.2&socket_timeout=0.2")
    proxy.stall()
    with refused("in time"):
        store.connect("commands")


@pytest.mark.parametrize(
    ("command", "first"),
    [
        (acquire("new"), out.Granted),
        (lambda token: renew(token=token), out.Renewed),
        (lambda token: release(token=token), out.Released),
        (lambda token: transfer(token=token), out.Transferred),
        (abandon(id="z.1"), out.Abandoned),
        (c.ForceRelease(key="new", by="me", reason="why not"), out.ForceReleased),
        (c.Settle(key="k"), out.Settled),
        (c.Inspect(key="k"), out.LockSeen),
        (c.ListLocks(), c.LockPage),
        (c.SettleDue(), c.Swept),
        (c.Cleanup(), c.Swept),
        (swap("a.1"), Swapped),
        (read(), SlotSeen),
    ],
    ids=["Acquire", "Renew", "Release", "Transfer", "Abandon", "ForceRelease", "Settle", "Inspect", "ListLocks",
         "SettleDue", "Cleanup", "SwapSlot", "ReadSlot"],
)  # fmt: skip
def test_a_lost_reply_of_a_real_server_changes_no_effect(proxy, through, opened, command, first):
    def prepared(connection):
        (held,) = connection.execute([acquire()])
        return command(held.token) if callable(command) else command

    store, last = opened(through), last_call(opened(through, namespace="rehearsal"), prepared)
    connection = store.connect("commands")
    command = prepared(connection)
    proxy.drop_next_reply(last)
    with refused("failed", ambiguous=True):
        connection.execute([command])
    assert proxy.replies_dropped == 1
    fresh = store.connect("commands")
    after_lost = _state(fresh)
    (again,) = fresh.execute([command])
    if isinstance(command, c.Release):  # a repeated release that succeeded the first time returns "not held"
        assert isinstance(again, out.NotHolder)
    else:
        assert isinstance(again, first)
    assert _state(fresh) == after_lost


def last_call(store, prepared):
    """The digest of the last script that executes a command: the one that writes, if any."""
    connection, called = store.connect("commands"), []
    command = prepared(connection)
    call = connection._link.call

    def listening(script, *arguments):
        called.append(script.sha)
        return call(script, *arguments)

    connection._link.call = listening
    connection.execute([command])
    return called[-1]


def _state(connection):
    """The holders, their tokens and the value of the slot: everything that a repeated command must not change."""
    page, slot = connection.execute([c.ListLocks(), read()])
    return [(item.key, [(h.id, h.token) for h in item.record.holders]) for item in page.items], slot


def test_the_flow_sends_a_command_again_after_a_lost_reply(proxy, through):
    with Client(through) as hf:
        hf.lock("warm").acquire().release()
        proxy.drop_next_reply(b"EVALSHA")
        lease = hf.lock("k", wait=5).acquire()
        assert proxy.replies_dropped == 1
        assert [holder.token for holder in hf.locks.inspect("k").holders] == [lease.token]
        proxy.drop_next_reply(b"EVALSHA")
        lease.release()
        assert proxy.replies_dropped == 2
        assert not hf.locks.inspect("k").held


def test_a_lease_survives_a_stall_that_is_longer_than_the_timeout(proxy, through):
    with Client(through + "&socket_timeout=0.3&socket_connect_timeout=0.3") as hf:
        lease = hf.lock("k", ttl=10).acquire()
        before = proxy.connections
        proxy.stall()
        seen = []
        stuck = threading.Thread(target=lambda: seen.append(hf.locks.inspect("k").held))
        stuck.start()
        eventually(lambda: proxy.connections > before)
        proxy.go_on()
        stuck.join()
        assert seen == [True]
        assert lease.valid
        lease.release()


def test_an_invalid_url_option_is_refused_by_name(opened):
    for option in ("colour=red", "socket_timeout=soon", "cluster=perhaps", "prefix=a{b", "protocol=7"):
        with pytest.raises(InvalidOption, match=option.partition("=")[0]):
            opened(f"redis://:hunter2@127.0.0.1:1/0?{option}")
    with pytest.raises(InvalidOption, match="cluster"):
        opened("redis://127.0.0.1:1/3?cluster=true")
