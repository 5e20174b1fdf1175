"""Addresses of a Redis: URLs, existing clients of a program, TLS, clusters, forks."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import pytest
import real_servers
import redis
import redis.asyncio
from redis.cluster import ClusterNode, RedisCluster
from tls import tunnel
from waiting import eventually

from holdfast import AsyncClient, Client
from holdfast.errors import InvalidOption, StoreUnavailable, StoreUnusable
from holdfast.rules import lock_outcomes as out
from holdfast.stores import open_store
from holdfast.testing.builders import acquire, release
from stores.forking import in_child


@pytest.fixture
def valkey():
    return real_servers.shared("valkey")


@pytest.fixture
def namespace(tmp_path):
    return tmp_path.name


# ---------------------------------------------------------------- addresses


def test_all_names_of_one_server_are_one_store(opened):
    same = ["redis://127.0.0.1:6379/0", "redis://localhost", "valkey://localhost:6379", "redis://app:pw@LOCALHOST/0",
            "redis://localhost?db=0&socket_timeout=3"]  # fmt: skip
    assert len({opened(url).identity for url in same}) == 1
    others = ["redis://localhost/1", "redis://localhost:6380", "redis://localhost?prefix=x", "redis://elsewhere",
              "redis://localhost?cluster=true"]  # fmt: skip
    assert len({opened(url).identity for url in [same[0], *others]}) == 1 + len(others)
    assert opened(same[0], namespace="a").identity != opened(same[0], namespace="b").identity


def test_options_of_the_driver_reach_the_connection(opened, valkey, namespace):
    url = f"valkey://127.0.0.1:{valkey.port}/3?client_name=holdfast-test&protocol=3&socket_timeout=7&health_check_interval=5"
    connection = opened(url, namespace=namespace).connect("commands")
    assert isinstance(connection.execute([acquire()])[0], out.Granted)
    inner = connection._link.connection
    assert (inner.db, inner.client_name, inner.protocol, inner.socket_timeout) == (3, "holdfast-test", 3, 7)
    assert inner.retry._retries == 0
    with redis.Redis(port=valkey.port, db=3) as client:
        assert client.exists(f"holdfast:{{{namespace}}}:lock:k")
        client.flushdb()


def test_the_timeouts_have_sane_defaults(opened, valkey):
    inner = opened(valkey.url).connect("commands")._link.connection
    assert (inner.socket_timeout, inner.socket_connect_timeout, inner.socket_keepalive) == (5, 5, True)


def test_no_connection_is_opened_before_it_is_needed(opened):
    opened("redis://127.0.0.1:1/0").close()


def test_the_examples_of_the_documentation_run(valkey, namespace):
    page = (Path(__file__).parents[2] / "docs/stores/redis.md").read_text()
    examples = re.findall(r"^```py\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert len(examples) == 2
    for example in examples:
        code = example.replace("redis://localhost:6379/0", f"redis://localhost:{valkey.port}/5")
        subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, capture_output=True, timeout=60)


# ---------------------------------------------------------------- clients that are there already


@pytest.mark.parametrize("options", [{}, {"decode_responses": True}, {"protocol": 3}, {"protocol": 2}, {"db": 2}])
def test_an_existing_client_is_accepted_as_the_store(opened, valkey, namespace, options):
    with redis.Redis(port=valkey.port, **options) as client:
        store = opened(client, namespace=namespace)
        connection = store.connect("commands")
        assert connection._link.connection.retry._retries == 0
        (held,) = connection.execute([acquire()])
        assert isinstance(connection.execute([acquire(id="b.1")])[0], out.Busy)
        assert connection.execute([release(token=held.token)]) == [out.Released()]
        twin = opened(f"redis://localhost:{valkey.port}/{options.get('db', 0)}", namespace=namespace)
        assert twin.identity == store.identity
        client.delete(*client.keys(f"holdfast:{{{namespace}}}:*"))


def test_an_existing_client_may_have_another_prefix(opened, valkey, namespace):
    with redis.Redis(port=valkey.port) as client:
        opened(client, namespace=namespace, options={"prefix": "mine"}).connect("commands").execute([acquire()])
        assert client.exists(f"mine:{{{namespace}}}:lock:k")
        with pytest.raises(InvalidOption, match="socket_timeout"):
            opened(client, options={"socket_timeout": 3})


def test_a_full_pool_costs_no_lease(opened, valkey, namespace):
    pool = redis.ConnectionPool(port=valkey.port, max_connections=1)
    taken = pool.get_connection()
    connection = opened(redis.Redis(connection_pool=pool), namespace=namespace).connect("heartbeats")
    assert isinstance(connection.execute([acquire()])[0], out.Granted)
    pool.release(taken)
    pool.disconnect()


def test_a_holdfast_client_accepts_an_existing_redis_client(valkey, namespace):
    with redis.Redis(port=valkey.port) as client:
        with Client(client, namespace=namespace) as hf, hf.lock("k") as lease:
            assert lease.token
        assert client.ping()


@pytest.mark.parametrize("kind", [redis.asyncio.Redis, redis.asyncio.RedisCluster])
def test_an_async_redis_client_is_refused_with_what_to_do(kind):
    with pytest.raises(InvalidOption, match=r"thread of its own.*sync redis\.Redis"):
        open_store(kind(host="127.0.0.1"), namespace="default")


def test_an_async_holdfast_client_accepts_a_sync_redis_client(valkey, namespace):
    async def main(client):
        async with AsyncClient(client, namespace=namespace) as hf, hf.lock("k") as lease:
            return lease.token

    with redis.Redis(port=valkey.port) as client:
        assert asyncio.run(main(client))


# ---------------------------------------------------------------- TLS


@pytest.fixture(scope="module")
def tls(certificates):
    """The port of a Valkey with a password, behind TLS."""
    with real_servers.server("valkey", settings={"requirepass": "s3cret"}) as server:
        with tunnel(certificates, server.port) as port:
            yield port


@pytest.mark.parametrize("scheme", ["rediss", "valkeys"])
def test_commands_and_notifications_work_over_tls(tls, certificates, scheme, namespace, opened):
    url = f"{scheme}://:s3cret@localhost:{tls}/0?ssl_ca_certs={certificates}/ca.crt"
    store = opened(url, namespace=namespace)
    received = []
    watch = store.watch("b", lambda ids: received.append(ids))
    eventually(lambda: received)
    with Client(url, namespace=namespace) as hf, hf.lock("k") as lease:
        assert lease.token
    watch.close()
    assert not watch._thread.is_alive()
    assert "s3cret" not in store.url


def test_an_untrusted_certificate_is_refused(tls, opened):
    with pytest.raises(StoreUnusable, match=r"certificate.*ssl_ca_certs"):
        opened(f"rediss://:s3cret@localhost:{tls}/0").connect("commands")


def test_a_connection_without_tls_to_a_tls_server_is_refused(tls, opened):
    with pytest.raises((StoreUnavailable, StoreUnusable)):
        opened(f"redis://:s3cret@localhost:{tls}/0").connect("commands")


# ---------------------------------------------------------------- clusters


@pytest.fixture(scope="module")
def node():
    """A cluster of one node, which serves everything."""
    with real_servers.server("valkey", settings={"cluster-enabled": "yes", "appendonly": "no"}) as server:
        with redis.Redis(port=server.port) as client:
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            eventually(lambda: b"cluster_state:ok" in client.execute_command("CLUSTER", "INFO"))
        yield server


def test_a_cluster_client_is_accepted_as_the_store(node, opened, namespace):
    client = RedisCluster(startup_nodes=[ClusterNode("127.0.0.1", node.port)])
    store = opened(client, namespace=namespace)
    received = []
    watch = store.watch("b", lambda ids: received.append(ids))
    eventually(lambda: received)
    assert isinstance(store.connect("commands").execute([acquire()])[0], out.Granted)
    assert {finding.check: finding.level for finding in store.diagnose()}["cluster"] == "ok"
    watch.close()
    client.close()


def test_a_cluster_node_without_the_cluster_option_is_used_and_reported(node, opened, namespace):
    store = opened(node.url, namespace=namespace)
    assert isinstance(store.connect("commands").execute([acquire()])[0], out.Granted)
    assert {finding.check: finding.level for finding in store.diagnose()}["cluster"] == "problem"


def test_a_cluster_without_all_its_slots_is_not_ambiguous(node, opened, namespace):
    store = opened(f"{node.url}?cluster=true", namespace=namespace)
    connection = store.connect("commands")
    with redis.Redis(port=node.port) as client:
        client.execute_command("CLUSTER", "DELSLOTSRANGE", 0, 16383)
        eventually(lambda: b"cluster_state:fail" in client.execute_command("CLUSTER", "INFO"))
        with pytest.raises(StoreUnavailable) as caught:
            connection.execute([acquire()])
        assert not caught.value.ambiguous
        with pytest.raises(StoreUnavailable, match="no node"):
            store.connect("commands")
        client.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
        eventually(lambda: b"cluster_state:ok" in client.execute_command("CLUSTER", "INFO"))
    assert isinstance(store.connect("commands").execute([acquire()])[0], out.Granted)


# ---------------------------------------------------------------- fork


def test_a_forked_child_opens_its_own_connection_and_the_parent_continues(valkey, namespace, opened):
    store = opened(valkey.url, namespace=namespace)
    connection = store.connect("commands")
    (held,) = connection.execute([acquire()])

    def child():
        try:
            connection.execute([acquire("other")])
        except StoreUnusable as error:
            refused = "Open a new client" in str(error)
        connection.close()
        mine = store.reopen().connect("commands")
        busy, granted = mine.execute([acquire(id="b.1"), acquire("child", "b.2", ttl=None)])
        return refused, type(busy).__name__, type(granted).__name__

    assert in_child(child) == "(True, 'Busy', 'Granted')"
    assert connection.execute([release(token=held.token)]) == [out.Released()]
    assert isinstance(connection.execute([acquire("child")])[0], out.Busy)
