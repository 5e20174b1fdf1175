"""Promises between processes on a real server, each in its smallest case. Tests with many processes are in
tests/chaos."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import closing

import providers
import psycopg
import pytest
import real_servers
from waiting import eventually

from holdfast import Client, StoreUnavailable
from holdfast.runtime import flows
from holdfast.testing.faults import SkewedClock
from holdfast.testing.proxy import Proxy

LIMIT = 60.0
WAKES = 1.0
"""Seconds; a waiter that is not woken looks by itself after 2.6 s at the earliest."""

WAITER = """
import sys
from holdfast import Client, StoreUnavailable
from holdfast.runtime import flows
url, key = sys.argv[1:]
with Client(url) as hf:
    for _ in sys.stdin:
        with hf.lock(key):
            print("got it", flush=True)
"""

PASSER_BY = """
import sys, time
from holdfast import Client, StoreUnavailable
from holdfast.runtime import flows
url, key, ttl = sys.argv[1:]
with Client(url) as hf:
    lease = hf.lock(key, ttl=float(ttl), wait=0).try_acquire()
    print("none" if lease is None else lease.token, round(time.time()), flush=True)
    sys.stdin.readline()
"""


@pytest.fixture(params=["postgres", "valkey", "redis"])
def kind(request):
    if request.param in real_servers.left_out():
        pytest.skip(real_servers.reason(request.param))
    return request.param


@pytest.fixture
def url(kind, tmp_path):
    return providers.url(kind, tmp_path)


@pytest.fixture
def started():
    """Start processes that end with the test."""
    processes = []

    def start(*command, clock=None):
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        command = [sys.executable, "-c", *map(str, command)]
        process = clock.start(command, **pipes) if clock else subprocess.Popen(command, text=True, **pipes)
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.kill()
        process.wait(LIMIT)
        for pipe in (process.stdin, process.stdout):
            pipe.close()


def test_a_release_wakes_the_next_waiter_in_another_process(url, started):
    """The first hand-over is not timed: the other process may not have subscribed yet."""
    seconds = []
    with Client(url) as hf:
        lock = hf.lock("turns", wait=LIMIT)
        lease = lock.acquire()
        other = started(WAITER, url, "turns")
        for _ in range(3):
            other.stdin.write("ask\n")
            other.stdin.flush()
            eventually(lambda: hf.locks.inspect("turns").waiters)
            began = time.monotonic()
            lease.release()
            assert other.stdout.readline() == "got it\n"
            seconds.append(time.monotonic() - began)
            lease = lock.acquire()
        lease.release()
    assert max(seconds[1:]) < WAKES


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="clocks are moved by a library that is for Linux only")
@pytest.mark.parametrize("hours", [1, -1])
def test_the_clock_of_a_client_neither_shortens_nor_prolongs_a_lease(url, started, hours):
    with SkewedClock(hours * 3_600) as clock, Client(url) as hf:
        with hf.lock("mine", ttl=30) as lease:
            answer, wall = started(PASSER_BY, url, "mine", 30, clock=clock).stdout.readline().split()
            assert abs(int(wall) - time.time() - hours * 3_600) < LIMIT
            assert answer == "none"
            lease.check()
        other = started(PASSER_BY, url, "theirs", 1.5, clock=clock)
        token = int(other.stdout.readline().split()[0])
        other.kill()
        began = time.monotonic()
        with hf.lock("theirs", wait=LIMIT) as lease:
            assert lease.token > token
            assert 0.5 < time.monotonic() - began < LIMIT / 2


@pytest.fixture
def rows(tmp_path):
    """The address of a store on PostgreSQL, and a session of an operator."""
    url = providers.url("postgres", tmp_path)
    with closing(psycopg.connect(url.partition("?")[0])) as session:
        yield url, session


def test_tokens_rise_on_postgres_although_the_row_was_deleted(rows):
    url, session = rows
    with Client(url) as hf:
        with hf.lock("gone") as before:
            pass
        session.execute(f"DELETE FROM {providers.POSTGRES_SCHEMA}.locks WHERE key = 'gone'")
        session.commit()
        with hf.lock("gone") as after:
            assert after.token > before.token


def test_a_locked_row_costs_no_other_lease_of_the_same_client(rows):
    """For three times the ttl, in the middle of the same heartbeats."""
    url, session = rows
    ttl = 1.5
    with Client(url) as hf:
        others = [hf.lock(f"other:{number}", ttl=ttl).acquire() for number in range(50)]
        stuck = hf.lock("stuck", ttl=ttl).acquire()
        session.execute(f"SELECT FROM {providers.POSTGRES_SCHEMA}.locks WHERE key = 'stuck' FOR UPDATE")
        assert stuck.lost.wait(3 * ttl)
        assert not others[0].lost.wait(2 * ttl)
        session.rollback()
        assert [lease.key for lease in others if not lease.valid] == []
        hf.lock("stuck", ttl=ttl, wait=LIMIT).acquire().release()
        for lease in others:
            lease.release()


@pytest.mark.parametrize("url", ["postgresql://127.0.0.1:1/db", "redis://127.0.0.1:1/0"])
def test_a_command_that_never_reached_a_server_is_not_abandoned(url):
    """Otherwise every failed call of an outage would log an error once a second for its whole ttl."""
    notified = []
    with Client(url) as hf:
        hf.events.subscribe(lambda event: notified.append(event.name))
        for wait in (0, 0.1):
            with pytest.raises(StoreUnavailable) as caught:
                hf.lock("k", wait=wait).acquire()
            assert not caught.value.ambiguous
        assert not hf.runtime.heartbeats._abandons
        assert "give_back_failed" not in notified


@pytest.mark.parametrize("kind", ["postgres", "valkey"])
def test_a_paused_server_is_tried_once_more_and_then_given_up(kind, tmp_path, monkeypatch):
    """However long the server does not respond: a caller that does not wait must not wait for five timeouts in a
    row."""
    monkeypatch.setattr(flows, "RESEND_FOR", 0.1)
    option = {"postgres": "timeout", "valkey": "socket_timeout"}[kind]
    address = providers.url(kind, tmp_path)
    with Proxy("127.0.0.1", real_servers.shared(kind).port) as proxy:
        url = f"{proxy.url_for(address)}&{option}=0.3"
        with Client(url) as hf:
            hf.lock("k").acquire().release()
            tries = []
            batcher = hf.runtime.batchers["commands"]
            run = batcher.run
            monkeypatch.setattr(batcher, "run", lambda command: (tries.append(command), run(command))[1])
            proxy.stall()
            with pytest.raises(StoreUnavailable) as caught:
                hf.lock("k", wait=0).acquire()
            assert caught.value.ambiguous
            assert len(tries) == 2
            proxy.go_on()
