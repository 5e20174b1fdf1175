"""What `doctor` reports about a Redis or Valkey, and what is logged when a server is first used."""

from __future__ import annotations

import pytest
import real_servers
import redis

from holdfast.stores.redis import health as redis_health
from holdfast.stores.redis import permissions as redis_rights
from holdfast.testing.builders import acquire


@pytest.fixture(params=["valkey", "redis"])
def kind(request):
    return request.param


@pytest.fixture(autouse=True)
def _nothing_is_known(monkeypatch):
    """A port of an earlier test may be used again."""
    monkeypatch.setattr(redis_health, "_known", {})
    monkeypatch.setattr(redis_rights, "_known", set())


@pytest.fixture
def own(kind):
    with real_servers.server(kind) as server:
        yield server


@pytest.fixture
def operator(own):
    with redis.Redis(port=own.port, decode_responses=True) as client:
        yield client


def levels(store):
    return {finding.check: finding.level for finding in store.diagnose()}


def details(store):
    return {finding.check: finding.detail for finding in store.diagnose()}


def test_a_well_configured_server_is_reported_as_ok(kind, own, opened, caplog):
    store = opened(own.url)
    assert levels(store) == dict.fromkeys(("server", "role", "rights", "eviction", "durability"), "ok")
    assert details(store)["server"] == f"{own.kind} {own.version}".replace("Valkey v", "Valkey ")
    assert store.capabilities.durable
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("policy", "words"),
    [("allkeys-lru", "evicted while they are held"), ("volatile-ttl", "refuses every write")],
    ids=["allkeys-lru", "volatile-ttl"],
)
def test_a_server_that_may_evict_locks_is_reported_once(*, own, operator, opened, caplog, policy, words):
    operator.config_set("maxmemory-policy", policy)
    for _ in range(3):
        opened(own.url).connect("commands").execute([acquire()])
    messages = [record.getMessage() for record in caplog.records if record.name == "holdfast"]
    assert len(messages) == 1
    assert policy in messages[0]
    assert words in messages[0]
    assert "noeviction" in messages[0]
    assert levels(opened(own.url))["eviction"] == "problem"


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [("appendfsync", "everysec", "in a power failure"), ("appendonly", "no", "since the last snapshot")],
    ids=["everysec", "no"],
)
def test_a_persistence_that_is_weaker_than_the_promise_is_reported_once(
    *, own, operator, opened, caplog, name, value, words
):
    operator.config_set(name, value)
    stores = [opened(own.url) for _ in range(3)]
    assert [store.capabilities.durable for store in stores] == [False] * 3
    for store in stores:
        store.connect("commands")
    messages = [record.getMessage() for record in caplog.records if record.name == "holdfast"]
    assert len(messages) == 1
    assert words in messages[0]
    assert "appendfsync always" in messages[0]
    assert levels(stores[0])["durability"] == "warning"
    operator.config_set("appendonly", "yes")
    operator.config_set("appendfsync", "always")
    assert levels(stores[0])["durability"] == "ok"
    assert stores[1].capabilities.durable


def test_settings_that_may_not_be_read_are_reported(own, operator, opened, caplog):
    operator.execute_command("ACL", "SETUSER", "app", "on", ">pw", "~*", "&*", "+@all", "-config", "-info", "-role")
    store = opened(own.url.replace("redis://", "redis://app:pw@"))
    assert levels(store) == {
        "server": "warning",
        "role": "warning",
        "rights": "ok",
        "eviction": "warning",
        "durability": "warning",
    }
    assert all(finding.advice for finding in store.diagnose() if finding.level != "ok")
    assert not store.capabilities.durable
    store.connect("commands").execute([acquire()])
    assert caplog.text.count("does not report") == 2


def test_a_server_that_cannot_be_reached_is_a_finding(opened):
    (finding,) = opened("redis://127.0.0.1:1/0").diagnose()
    assert (finding.check, finding.level) == ("server", "problem")
    assert "cannot be reached" in finding.detail
    assert not opened("redis://127.0.0.1:1/0").capabilities.durable


def test_an_old_server_is_a_problem():
    look = redis_health.ServerInfo(info={"redis_version": "5.0.7"}, policy=None, append_only=None, fsync=None)
    assert redis_health._server(look).level == "problem"
