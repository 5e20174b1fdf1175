"""Hints by subscription: who receives them, what they name, and what happens when the subscription is lost."""

from __future__ import annotations

import threading

import pytest
import real_servers
import redis
from exhausted import no_threads
from providers import REDISES, redis_layout
from waiting import eventually

from holdfast import Client
from holdfast.commands import Inspect
from holdfast.rules import lock_outcomes as out
from holdfast.stores.redis import subscribe as redis_watch
from holdfast.testing.builders import acquire, release, wait
from holdfast.testing.proxy import Proxy
from stores.forking import in_child


@pytest.fixture(params=REDISES, ids=lambda provider: provider.name)
def provider(request):
    return request.param


@pytest.fixture
def received(request):
    return []


@pytest.fixture
def watching(opened, received):
    watches = []

    def watch(url, channel="b", **options):
        store = opened(url, **options)
        watches.append(store.watch(channel, lambda ids: received.append(ids)))
        eventually(lambda: received)  # the subscription has begun
        assert received == [None]
        received.clear()
        return watches[-1]

    yield watch
    for one in watches:
        one.close()


def hand_over(connection, id="b.1"):
    (held,) = connection.execute([acquire()])
    assert isinstance(held, out.Granted)
    connection.execute([wait(id=id), release(token=held.token)])
    (granted,) = connection.execute([wait(id=id)])
    connection.execute([release(id=id, token=granted.token)])


def test_a_hint_names_the_granted_attempt(url, opened, watching, received):
    watching(url)
    connection = opened(url).connect("commands")
    hand_over(connection)
    eventually(lambda: received)
    hand_over(connection, "x.1")
    hand_over(connection, "b.2")
    eventually(lambda: len(received) == 2)
    assert received == [["b.1"], ["b.2"]]


def test_a_grant_decided_by_the_rules_is_hinted_too(url, opened, watching, received):
    watching(url)
    connection = opened(url).connect("commands")
    (grant,) = connection.execute([acquire("s", kind="semaphore", permits=2, weight=2)])
    connection.execute([wait("s", "b.1", kind="semaphore", permits=2)])
    connection.execute([release("s", token=grant.token)])
    eventually(lambda: received)
    assert received == [["b.1"]]


def test_many_grants_of_one_batch_are_hinted_in_one_message(url, opened, watching, received):
    watching(url)
    connection = opened(url).connect("commands")
    keys = [f"k{n}" for n in range(3)]
    grants = connection.execute([acquire(key) for key in keys])
    connection.execute([wait(key, f"b.{n}") for n, key in enumerate(keys)])
    connection.execute([release(key, token=grant.token) for key, grant in zip(keys, grants, strict=True)])
    eventually(lambda: received)
    assert received == [["b.0", "b.1", "b.2"]]


def test_nothing_is_published_without_a_grant(url, kind, opened):
    connection = opened(url).connect("commands")
    with redis.Redis(port=real_servers.shared(kind).port) as client:
        client.config_resetstat()
        (held,) = connection.execute([acquire()])
        connection.execute([release(token=held.token)])
        assert "cmdstat_publish" not in client.info("commandstats")


def test_a_waiter_with_hints_sends_nothing_while_it_waits(url, kind):
    with Client(url) as hf, Client(url) as other, redis.Redis(port=real_servers.shared(kind).port) as client:
        lease = hf.semaphore("k", permits=1).acquire()
        got = threading.Event()

        def take():
            with other.semaphore("k", permits=1, wait=20):
                got.set()

        taking = threading.Thread(target=take)
        taking.start()
        base = redis_layout(url, "default").base
        eventually(lambda: client.pubsub_channels(f"{base.replace('{', '?').replace('}', '?')}wake:*"))
        eventually(lambda: len(hf.locks.inspect("k").waiters) == 1)

        def calls():
            return client.info("commandstats")["cmdstat_evalsha"]["calls"]

        def is_quiet():  # after its check at the start of the subscription
            before = calls()
            return not got.wait(0.2) and calls() == before

        eventually(is_quiet)
        before = calls()
        assert not got.wait(1.0)  # a waiter that polls does so every 0.3 s
        assert calls() - before <= 1
        lease.release()
        taking.join()


def test_after_a_lost_connection_all_waiters_are_hinted(kind, url, opened, watching, received):
    server = real_servers.shared(kind)
    with Proxy(server.host, server.port) as proxy:
        watch = watching(proxy.url_for(url))
        proxy.cut()
        eventually(lambda: received)
        assert received == [None]
        received.clear()
        hand_over(opened(url).connect("commands"))
        eventually(lambda: received)
        assert received == [["b.1"]]
        watch.close()


def test_a_subscription_whose_server_no_longer_responds_is_replaced(kind, url, watching, received, monkeypatch):
    monkeypatch.setattr(redis_watch, "PING_SECONDS", 0.1)
    monkeypatch.setattr(redis_watch, "ANSWER_SECONDS", 0.2)
    server = real_servers.shared(kind)
    with Proxy(server.host, server.port) as proxy:
        watch = watching(proxy.url_for(url) + "&socket_timeout=1")
        before = proxy.connections
        proxy.half_open()
        eventually(lambda: proxy.connections > before)
        proxy.go_on()
        eventually(lambda: received)
        assert received[0] is None
        watch.close()


def test_an_answered_ping_keeps_the_subscription(*, kind, url, opened, watching, received, monkeypatch):
    monkeypatch.setattr(redis_watch, "PING_SECONDS", 0.02)
    server = real_servers.shared(kind)
    with Proxy(server.host, server.port) as proxy:
        watch = watching(proxy.url_for(url))
        before = proxy.requests
        eventually(lambda: proxy.requests > before + 3)
        assert proxy.connections == 1
        hand_over(opened(url).connect("commands"))
        eventually(lambda: received)
        assert received == [["b.1"]]
        watch.close()


def test_closing_ends_the_thread_also_while_the_server_is_unreachable(opened, received):
    store = opened("redis://127.0.0.1:1/0")
    watch = store.watch("b", lambda ids: received.append(ids))
    watch.close()
    watch.close()
    assert received == []
    assert not watch._thread.is_alive()


def test_closing_is_prompt(url, watching):
    watch = watching(url)
    watch.close()
    assert not watch._thread.is_alive()


def test_a_callback_that_fails_does_not_end_the_subscription(url, opened, caplog):
    received = []

    def fail(ids):
        received.append(ids)
        raise ValueError("a mistake")

    watch = opened(url).watch("b", fail)
    eventually(lambda: received)
    hand_over(opened(url).connect("commands"))
    eventually(lambda: len(received) == 2)
    watch.close()
    assert "a callback for hints failed" in caplog.text


def test_without_a_thread_there_are_no_hints_and_no_error(url, opened, caplog):
    with no_threads():
        watch = opened(url).watch("b", print)
    watch.expect("b.1", eager=True)
    watch.close()
    assert "waiters poll" in caplog.text


def test_a_forked_child_does_not_use_its_parents_subscription(url, opened, watching, received):
    watch = watching(url)
    store = opened(url)

    def child():
        watch.close()
        mine = []
        own = store.reopen()
        theirs = own.watch("c", lambda ids: mine.append(ids))
        eventually(lambda: mine)
        theirs.close()
        return mine

    assert in_child(child) == "[None]"
    hand_over(opened(url).connect("commands"))
    eventually(lambda: received)
    assert received == [["b.1"]]


def test_a_waiter_states_that_it_receives_hints_only_while_it_is_subscribed(url, kind, opened):
    """Otherwise a hint that is not received would be taken for a sign that the waiter has ended."""
    connection = opened(url).connect("commands")
    (held,) = connection.execute([acquire()])
    with redis.Redis(port=real_servers.shared(kind).port) as operator:

        def listen():
            return [waiter.listens for waiter in connection.execute([Inspect(key="k")])[0].record.waiters]

        def refused():
            return operator.info("commandstats").get("cmdstat_subscribe", {}).get("rejected_calls", 0)

        operator.execute_command("ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all", "-subscribe")
        with Client(url.replace("redis://", "redis://app:pw@")) as deaf:
            before, got = refused(), []
            waiting = threading.Thread(target=lambda: got.append(deaf.lock("k", wait=20).acquire()))
            waiting.start()
            eventually(lambda: listen() and refused() >= before + 2)
            assert listen() == [False]
            operator.execute_command("ACL", "SETUSER", "app", "+subscribe")
            eventually(lambda: listen() == [True])
            connection.execute([release(token=held.token)])
            waiting.join()
            got[0].release()
        operator.execute_command("ACL", "DELUSER", "app")
