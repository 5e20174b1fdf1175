"""`advisory=true`: grants are tied to a session. A crash frees them at once, and a lost connection is reported at
once."""

from __future__ import annotations

import os
import signal
import threading

import psycopg
import pytest
import real_servers
from providers import PROVIDERS
from waiting import eventually

from holdfast import Client, LeaseLost
from holdfast import commands as c
from holdfast.errors import StoreUnavailable
from holdfast.rules import lock_outcomes as out
from holdfast.stores.postgresql import advisory
from holdfast.testing.builders import acquire, renew, wait
from holdfast.testing.processes import running

HOLDER = """
from holdfast import Client
hf = Client(sys.argv[1], name="holder")
lease = hf.lock("k", ttl=3600).acquire()
report(lease.token)
sys.stdin.readline()
"""
FORKING = """
import os, time
from holdfast import Client
hf = Client(sys.argv[1])
lease = hf.lock("k", ttl=3600).acquire()
child = os.fork()
if child == 0:
    time.sleep(120)
    os._exit(0)
report(lease.token, child)
sys.stdin.readline()
"""
ANCHORS = "SELECT {} FROM pg_stat_activity WHERE application_name = 'holdfast' AND query LIKE '%pg_try_advisory_lock%'"


@pytest.fixture
def url(tmp_path):
    return f"{PROVIDERS['postgres'].url(tmp_path)}&advisory=true"


@pytest.fixture
def admin():
    with psycopg.connect(real_servers.shared("postgres").url, autocommit=True) as db:
        yield db


def test_a_killed_holder_is_replaced_at_once_by_the_next_waiter(url):
    with running(HOLDER, url) as holder, Client(url) as hf:
        token = int(holder.read_line())
        threading.Timer(0.2, os.kill, (holder.pid, signal.SIGKILL)).start()
        with hf.lock("k", ttl=3600, wait=60) as lease:  # the lease of the killed holder would expire in an hour
            assert lease.token > token


def test_a_forked_child_does_not_keep_the_lock_of_its_killed_parent(url):
    with running(FORKING, url) as holder, Client(url) as hf:
        token, child = map(int, holder.read_line().split())
        try:
            os.kill(holder.pid, signal.SIGKILL)
            with hf.lock("k", ttl=3600, wait=60) as lease:
                assert lease.token > token
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_holder_whose_process_runs_keeps_its_lock(url):
    with running(HOLDER, url) as holder, Client(url) as hf:
        assert int(holder.read_line())
        assert hf.lock("k").try_acquire() is None
        assert hf.locks.inspect("k").held


def test_a_lost_connection_loses_the_lease_and_the_holder_is_notified_at_once(url, admin):
    notified = threading.Event()
    with Client(url, name="cut off") as hf, Client(url) as other:
        with pytest.raises(LeaseLost, match="session that it was tied to was lost"):
            with hf.lock("k", ttl=3600, on_lost=lambda _lease: notified.set()) as lease:
                admin.execute(ANCHORS.format("pg_terminate_backend(pid)"))
                assert notified.wait(20)
                with other.lock("k", wait=0) as successor:
                    assert successor.token > lease.token
        with hf.lock("k", wait=0) as again:  # by a new session
            assert again.token > successor.token


def test_a_grant_after_a_wait_is_tied_to_the_session_too(url, opened, admin):
    connection = opened(url).connect()
    (held,) = connection.execute([acquire(ttl=3600)])
    connection.execute([wait(ttl=3600), c.Release(key="k", id="a.1", token=held.token)])
    (confirmed,) = connection.execute([wait(ttl=3600)])
    admin.execute(ANCHORS.format("pg_terminate_backend(pid)"))
    plain = opened(url.replace("&advisory=true", "")).connect()
    eventually(lambda: isinstance(plain.execute([renew(id="b.1", token=confirmed.token)])[0], out.NotHolder))
    (next_one,) = plain.execute([acquire(id="c.1")])
    assert next_one.token > confirmed.token


def test_grants_of_one_batch_about_one_key_are_tied_to_the_session_too(url, opened, admin):
    connection = opened(url).connect()
    taken = [acquire(id=id, kind="semaphore", permits=2, ttl=3600) for id in ("a.1", "a.2")]
    connection.execute([*taken, wait(id="a.3", kind="semaphore", permits=2, ttl=3600)])
    (seen,) = connection.execute([c.Inspect(key="k")])
    tied = [(one.unknown or {}).get("session", 0) for one in (*seen.record.holders, *seen.record.waiters)]
    assert len(tied) == 3
    assert len(set(tied)) == 1
    assert all(tied)
    plain = opened(url.replace("&advisory=true", "")).connect()
    admin.execute(ANCHORS.format("pg_terminate_backend(pid)"))
    eventually(lambda: plain.execute([c.Inspect(key="k")])[0].record.idle)


def test_a_killed_waiter_is_removed_from_the_queue_at_once(url):
    """Otherwise its position would be kept for ten seconds, and an offer to it for one."""
    with Client(url) as hf, hf.lock("k", ttl=3600) as lease:
        with running(HOLDER, url) as waiter:
            eventually(lambda: len(hf.locks.inspect("k").waiters) == 1)
            os.kill(waiter.pid, signal.SIGKILL)
            eventually(lambda: not hf.locks.inspect("k").waiters)
        lease.release()
        assert not hf.locks.inspect("k").held, "nothing was offered to the dead"


def test_an_offer_to_a_killed_waiter_ends_with_its_session(url, opened, admin):
    store = opened(url)
    connection = store.connect()
    plain = opened(url.replace("&advisory=true", "")).connect()
    (held,) = plain.execute([acquire(id="h.1", ttl=3600)])
    connection.execute([wait(id="dead.1", ttl=3600, delay=3_600_000_000)])
    plain.execute([wait(id="next.1", ttl=3600), c.Release(key="k", id="h.1", token=held.token)])
    (seen,) = plain.execute([c.Inspect(key="k")])
    assert [holder.id for holder in seen.record.holders] == ["dead.1"]
    admin.execute(ANCHORS.format("pg_terminate_backend(pid)"))
    eventually(lambda: not plain.execute([c.Inspect(key="k")])[0].record.holders)
    assert isinstance(plain.execute([wait(id="next.1", ttl=3600)])[0], out.Granted), "a lock-delay is for who held it"


def test_the_ttl_also_applies_to_advisory_grants(url, opened, clock):
    store = opened(url, clock=clock)
    connection = store.connect()
    (first,) = connection.execute([acquire(ttl=1)])
    clock.pass_by(1)
    (second,) = connection.execute([acquire(id="b.1")])
    assert second.token > first.token


def test_the_lock_delay_applies_after_a_lost_session(url, opened, admin):
    connection = opened(url).connect()
    connection.execute([acquire(ttl=3600, delay=3_600_000_000)])
    admin.execute(ANCHORS.format("pg_terminate_backend(pid)"))
    plain = opened(url.replace("&advisory=true", "")).connect()
    refused = eventually(lambda: [one for one in plain.execute([acquire(id="b.1")]) if not one.holders])
    assert isinstance(refused[0], out.Busy)
    assert plain.execute([c.Inspect(key="k")])[0].record.closed_until


def test_two_grants_with_the_same_advisory_number_delay_each_other_and_never_share(
    url, opened, clock, admin, monkeypatch
):
    """An advisory lock of another program with the same number, as in a collision."""
    numbers = iter([7, 7, 8])
    monkeypatch.setattr(advisory.secrets, "randbits", lambda _bits: next(numbers))
    first, second = opened(url, clock=clock), opened(url, clock=clock)
    (held,) = first.connect().execute([acquire(ttl=30)])
    other = second.connect()
    assert isinstance(other.execute([acquire(id="b.1")])[0], out.Busy), "the second of the number took another one"
    first._advisory.close()
    with psycopg.connect(real_servers.shared("postgres").url, autocommit=True) as outsider:
        eventually(lambda: outsider.execute("SELECT pg_try_advisory_lock(7)").fetchone()[0])
        assert isinstance(other.execute([acquire(id="b.2")])[0], out.Busy), "it looks alive: a delay"
        clock.pass_by(30)
        (granted,) = other.execute([acquire(id="b.3")])
        assert granted.token > held.token


def test_a_session_that_is_lost_during_a_command_makes_the_outcome_ambiguous(url, opened, monkeypatch):
    store = opened(url)
    connection = store.connect()
    monkeypatch.setattr(store._advisory, "holds", lambda _number: False)
    with pytest.raises(StoreUnavailable, match="was lost during this batch") as caught:
        connection.execute([acquire()])
    assert caught.value.ambiguous
