"""The public suite on a Redis and a Valkey by their own clocks, on a cluster, and on records of a newer version."""

from __future__ import annotations

from contextlib import ExitStack

import msgspec
import pytest
import real_servers
import redis
from msgspec.structs import replace
from providers import PROVIDERS, redis_layout
from redis.crc import key_slot
from waiting import eventually

from holdfast.rules.lock_record import decode, encode
from holdfast.stores import open_store
from holdfast.stores.contract import Clock, Store
from holdfast.stores.redis.keys import Layout
from holdfast.testing import StoreConformance
from holdfast.testing.builders import ManualClock, acquire, release
from holdfast.testing.lock_histories import LockHistoryGenerator, LockModel
from holdfast.testing.suite.base import SuiteBase
from holdfast.testing.suite.comparison import unversioned
from holdfast.testing.suite.concurrency import ConcurrencyTests
from holdfast.testing.suite.histories import HistoryTests
from holdfast.testing.suite.run_locks import RunLockTests


class OwnClock(SuiteBase):
    """As in production: the server's time. Histories take real time."""

    kind: str
    notices = True

    def url(self, folder):
        return PROVIDERS[self.kind].url(folder)

    def open(self, url: str, *, namespace: str, clock: Clock) -> Store:
        return open_store(url, namespace=namespace)

    def dump(self, url, namespace):
        return PROVIDERS[self.kind].dump(url, namespace)

    def plant(self, url, namespace, key, text):
        PROVIDERS[self.kind].plant(url, namespace, key, text)
        return True


class TestValkeyByItsOwnClock(OwnClock, StoreConformance):
    kind = "valkey"
    histories = 20


class TestRedisByItsOwnClock(OwnClock, HistoryTests, ConcurrencyTests, RunLockTests):
    """An old server may differ here: it reads its clock, and then writes."""

    kind = "redis"
    histories = 10


STRANGE = {"newer": {"list": [], "object": {}, "nothing": None, "text": "é", "number": 2**60}}


def made_strange(record):
    """The record as a newer version would write it: with unknown fields at every level."""
    return replace(
        record,
        unknown=STRANGE,
        holders=tuple(replace(holder, unknown={"colour": []}) for holder in record.holders),
        waiters=tuple(
            replace(waiter, unknown={"mood": {}}, label=replace(waiter.label, unknown={"team": "x"}))
            for waiter in record.waiters
        ),
    )


@pytest.mark.parametrize("kind", ["valkey", "redis"])
def test_records_of_a_newer_version_are_decided_by_the_same_rules_and_keep_their_fields(kind, tmp_path):
    provider = PROVIDERS[kind]
    url, clock = provider.url(tmp_path), ManualClock()
    strange = 0
    with redis.Redis.from_url(url.partition("?")[0]) as client:
        for seed in range(40):
            clock.now = ManualClock().now
            model, generator, sent, namespace = (
                LockModel(),
                LockHistoryGenerator(seed, listens=False),
                0,
                f"n{seed}",
            )
            store = open_store(url, namespace=namespace, clock=clock)
            connection = store.connect("commands")
            layout = redis_layout(url, namespace)
            while sent < 80:
                clock.pass_by(generator.time_passes())
                commands = generator.batch()
                outcomes, expected = connection.execute(commands), model.execute(commands, clock.now)
                assert list(map(unversioned, outcomes)) == list(map(unversioned, expected)), (
                    f"seed {seed}, after {sent}"
                )
                generator.observe(commands, expected)
                sent += len(commands)
                for key, record in model.records.items():
                    if generator.random.random() < 0.5:
                        model.records[key] = made_strange(record)
                        client.set(layout.lock(key), encode(model.records[key]))
                        strange += 1
            stored = {key: replace(record, version=0) for key, record in provider.dump(url, namespace).items()}
            expected = {key: replace(record, version=0) for key, record in model.records.items()}
            assert stored == expected, f"seed {seed}, as stored"
            connection.close()
            store.close()
    assert strange > 1_000


def test_an_unknown_field_is_kept_byte_for_byte(opened, tmp_path):
    url = PROVIDERS["valkey"].url(tmp_path)
    connection = opened(url, clock=ManualClock()).connect("commands")
    (held,) = connection.execute([acquire()])
    with redis.Redis.from_url(url.partition("?")[0]) as client:
        name = redis_layout(url, "default").lock("k")
        value = msgspec.json.decode(client.get(name))
        value["later"] = {"empty": [], "none": {}, "deep": [[], {}]}
        client.set(name, msgspec.json.encode(value))
        connection.execute([release(token=held.token)])
        text = client.get(name)
    assert b'"later":{"empty":[],"none":{},"deep":[[],{}]}' in text
    assert decode("k", text).holders == ()


CLUSTER = {"cluster-enabled": "yes", "cluster-require-full-coverage": "no", "appendonly": "no"}


@pytest.fixture(scope="module")
def cluster():
    """Three primaries that share the slots."""
    with ExitStack() as stack:
        nodes = [stack.enter_context(real_servers.server("valkey", settings=CLUSTER)) for _ in range(3)]
        clients = [stack.enter_context(redis.Redis(port=node.port)) for node in nodes]
        for number, client in enumerate(clients):
            first, last = number * 16384 // 3, (number + 1) * 16384 // 3 - 1
            client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
            client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        for node in nodes[1:]:
            clients[0].execute_command("CLUSTER", "MEET", "127.0.0.1", node.port)
        eventually(lambda: all(map(knows_the_others, clients)))
        yield nodes


def knows_the_others(node):
    state = node.execute_command("CLUSTER", "INFO")
    return b"cluster_state:ok" in state and len(node.execute_command("CLUSTER", "SLOTS")) == 3


class TestValkeyCluster(StoreConformance):
    """Every namespace is served by one node, whichever it is that the URL names."""

    histories = 30

    @pytest.fixture(autouse=True)
    def _nodes(self, cluster):
        type(self).nodes = cluster

    def url(self, folder):
        return f"valkey://127.0.0.1:{self.nodes[0].port}?cluster=true&prefix={abs(hash(str(folder)))}"


def test_a_cluster_stays_reachable_when_the_node_of_the_url_is_gone(cluster, opened):
    """The node that listed the others is needed only once."""
    served_elsewhere = next(
        name for name in map(str, range(100)) if key_slot(Layout("holdfast", name).index.encode()) > 12_000
    )
    store = opened(f"redis://127.0.0.1:{cluster[0].port}?cluster=true", namespace=served_elsewhere)
    (held,) = store.connect("commands").execute([acquire()])
    cluster[0].kill()
    try:
        (busy,) = store.connect("commands").execute([acquire(id="b.1")])
        assert [holder.token for holder in busy.holders] == [held.token]
    finally:
        cluster[0].restart()
