"""How many connections a client has, and what happens at the limit of a real server."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import ClassVar

import psycopg
import pytest
import real_servers
import redis
from waiting import eventually

from holdfast import Client, Engine, StoreUnavailable, workflow
from holdfast.commands import Acquire, Failed, Release
from holdfast.rules import lock_outcomes as out
from holdfast.runtime import base as client
from holdfast.runtime import flows
from holdfast.runtime.batcher import Batcher
from holdfast.runtime.renewable_grants import Granting
from holdfast.stores import open_store
from holdfast.testing.builders import acquire, release

LIMIT = 14


class Postgres:
    """Counts the connections of the server, and can use up all that it permits."""

    settings: ClassVar = {"max_connections": str(LIMIT), "superuser_reserved_connections": "0", "fsync": "off"}

    def __init__(self, url):
        self._url = url
        self._admin = psycopg.connect(url, autocommit=True)
        self._fillers = []

    def count(self):
        """How many connections are open, without those of the test."""
        ours = [one.info.backend_pid for one in (self._admin, *self._fillers)]
        return self._admin.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> ALL(%s)", (ours,)
        ).fetchone()[0]

    def _open(self):
        return psycopg.connect(self._url, autocommit=True)

    refusals = (psycopg.OperationalError,)

    def fill(self, *, leave=0):
        """Open connections until the server refuses one, then close so many again."""
        with suppress(*self.refusals):
            while True:
                self._fillers.append(self._open())
        for _ in range(leave):
            self._fillers.pop().close()
        eventually(lambda: self._total() == LIMIT - leave)

    def _total(self):
        return self.count() + 1 + len(self._fillers)

    def drain(self):
        """Close the connections that `fill` opened."""
        while self._fillers:
            self._fillers.pop().close()

    def close(self):
        self.drain()
        self._admin.close()


class RedisLike(Postgres):
    settings: ClassVar = {"maxclients": str(LIMIT)}
    refusals = (redis.ConnectionError,)

    def __init__(self, url):
        self._url = url
        self._admin = self._open()
        self._fillers = []

    def _open(self):
        made = redis.Redis.from_url(self._url, single_connection_client=True)
        made.client_setname("filler")
        return made

    def count(self):
        return sum(one["name"] != "filler" for one in self._admin.client_list())


@pytest.fixture(scope="module", params=["postgres", "valkey", "redis"])
def server(request):
    kind = Postgres if request.param == "postgres" else RedisLike
    with real_servers.server(request.param, settings=kind.settings) as started:
        yield started


@pytest.fixture
def filled(server):
    made = (Postgres if server.url.startswith("postgres") else RedisLike)(server.url)
    yield made
    eventually(lambda: made.count() == 0)
    made.close()


@pytest.fixture
def url(server):
    return server.url


def test_at_the_limit_a_granted_lease_is_still_renewed(url, filled):
    renewed = []
    with Client(url) as hf:
        hf.events.subscribe(lambda event: renewed.append(event) if event.name == "leases_renewed" else None)
        lease = hf.lock("at-the-limit", ttl=1.5).acquire()
        filled.fill()
        eventually(lambda: len(renewed) >= 3)
        assert lease.valid
        lease.release()
        filled.drain()


def test_nothing_is_granted_if_heartbeats_cannot_connect(url, filled, monkeypatch):
    monkeypatch.setattr(flows, "RESEND_AFTER", (0.01,))
    with Client(url) as other, Client(url) as hf:
        assert other.locks.inspect("never").fence == 0
        filled.fill(leave=1)
        with pytest.raises(StoreUnavailable, match=r"nothing was granted: the connection that renews") as caught:
            hf.lock("never", ttl=5, wait=0).acquire()
        assert caught.value.retryable
        assert not caught.value.ambiguous
        assert other.locks.inspect("never").fence == 0
        filled.drain()
        with hf.lock("never", ttl=5) as lease:
            assert lease.valid


def test_a_lock_without_renewal_needs_no_heartbeat_connection(url, filled):
    with Client(url) as hf:
        filled.fill(leave=1)
        assert hf.leases.acquire_lease("named", "me", 5).acquired
        assert hf.hold("window", ttl=5) is not None
        filled.drain()


# -- the numbers in docs/guarantees.md --------------------------------------------------------------------------


@workflow
async def short(ctx, seconds):
    await ctx.sleep(seconds)
    return await ctx.step("one", lambda: 1)


def test_a_client_opens_connections_when_it_needs_them(url, filled, monkeypatch):
    """None; 2 with its first lock; 3 once it has waited; one more for queries, closed when it is not used."""
    monkeypatch.setattr(client, "QUERIES_IDLE", 0.05)
    with Client(url) as other, Client(url) as hf:
        held = other.semaphore("counted", permits=1, ttl=5).acquire()
        eventually(lambda: filled.count() == 2)
        hf.leases.acquire_lease("named", "me", 5)
        eventually(lambda: filled.count() == 3)
        with hf.lock("free", ttl=5):
            eventually(lambda: filled.count() == 4)
        waiting = threading.Thread(target=lambda: hf.semaphore("counted", permits=1, ttl=5).acquire().release())
        waiting.start()
        eventually(lambda: filled.count() == 5)
        with hf.lock("kept", ttl=0.5):  # so that the heartbeat thread checks
            hf.locks.list()
            eventually(lambda: not hf.runtime.batchers["queries"].connected)
            eventually(lambda: filled.count() == 5)
            hf.locks.list()
        held.release()
        waiting.join()


def test_an_engine_has_four_connections_one_of_them_only_during_queries(url, filled, monkeypatch):
    monkeypatch.setattr(client, "QUERIES_IDLE", 0.05)

    async def scenario():
        async with Engine(url, workflows=[short], worker_ttl=1.5) as engine:
            run = await engine.start(short, 0.01)
            await run.result()
            await engine.list()
            at_most = filled.count()
            await asyncio.to_thread(eventually, lambda: filled.count() == 3)
            return at_most

    assert asyncio.run(scenario()) == 4


# -- neighbours ---------------------------------------------------------------------------------------------------


def test_releases_of_a_batch_are_executed_while_its_grants_are_refused():
    store = open_store("memory://", namespace="default")

    def refused():
        raise StoreUnavailable("too many clients")

    heartbeats = Batcher(refused, "heartbeats")
    direct = store.connect("commands")
    (held,) = direct.execute([acquire("a")])
    connection = Granting(lambda: store.connect("commands"), heartbeats)
    lease: Acquire = acquire("c", "o.1", kind="lease")
    answers = connection.execute([acquire("b"), release("a", token=held.token), lease, acquire("a", "b.1")])
    assert [type(answer) for answer in answers] == [Failed, out.Released, out.Granted, Failed]
    assert "too many clients" in str(answers[0].error)
    assert [type(one) for one in direct.execute([acquire("b", "z.1"), Release(key="a", id="b.1", token=1)])] == [
        out.Granted,
        out.NotHolder,
    ]
    connection.close()
    heartbeats.close()
    store.close()
