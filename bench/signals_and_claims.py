"""Signals to one run, one by one, and the claim of a thousand runs that are due, on PostgreSQL and on Valkey.

The floor of a signal is one bare commit of one row (PostgreSQL) or one PING (Valkey), in the same run.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import islice

import psycopg
import redis
from common import Figure, alternate, median

from holdfast import Client
from holdfast import commands as c
from holdfast.commands import runs as r
from holdfast.rules.lock_record import Label
from holdfast.rules.runs.record import NewRun, worker_key
from holdfast.stores import open_store
from holdfast.stores.contract import Connection
from holdfast.testing import servers

SIGNALS = 200
RUNS = 1_000
CLAIMED_AT_ONCE = 250
"""As an engine does."""
BLOCKS = 5


def signals(client: Client) -> Callable[[], float]:
    """Seconds for one signal to one run that nobody drives at the moment."""
    run = client.runs.start("waits")

    def measure() -> float:
        begun = time.perf_counter()
        for number in range(SIGNALS):
            client.runs.signal(run, "word", number)
        return (time.perf_counter() - begun) / SIGNALS

    return measure


def claims(connection: Connection) -> Callable[[], float]:
    """Seconds until one worker has a thousand runs that were due."""
    lease = c.Acquire(key=worker_key("w.1"), id="w.1", label=Label(name="w"), kind="worker", ttl=10**12)
    connection.execute([lease, r.RegisterWorker(worker="w.1", name="w", types=("order",))])
    numbers = iter(range(10**9))

    def measure() -> float:
        new = [NewRun(id=f"run-{n}", type="order", input="1", request=f"s.{n}") for n in islice(numbers, RUNS)]
        connection.execute([r.StartRun(new=one) for one in new])
        begun, taken = time.perf_counter(), 0
        while taken < RUNS:
            (claimed,) = connection.execute(
                [r.ClaimRuns(worker="w.1", types=(("order", "order"),), limit=CLAIMED_AT_ONCE)]
            )
            taken += len(claimed.claims)  # type: ignore[attr-defined]
        return time.perf_counter() - begun

    return measure


def commits(url: str) -> Callable[[], float]:
    db = psycopg.connect(url, autocommit=True, prepare_threshold=0)
    db.execute("CREATE TABLE bare (n bigint)")

    def measure() -> float:
        begun = time.perf_counter()
        for number in range(SIGNALS):
            db.execute("INSERT INTO bare VALUES (%s)", (number,))
        return (time.perf_counter() - begun) / SIGNALS

    return measure


def pings(url: str) -> Callable[[], float]:
    server = redis.Redis.from_url(url)

    def measure() -> float:
        begun = time.perf_counter()
        for _ in range(SIGNALS):
            server.ping()
        return (time.perf_counter() - begun) / SIGNALS

    return measure


def figures() -> Iterator[Figure]:
    for start, floor, what in ((servers.postgres, commits, "bare commit"), (servers.valkey, pings, "PING")):
        with start() as server, Client(server.url, namespace="signals") as client:
            store = open_store(server.url, namespace="claims")
            connection = store.connect("commands")
            signal, bare, claim = alternate(signals(client), floor(server.url), claims(connection), rounds=BLOCKS)
            connection.close()
            store.close()
        name = f"{server.kind} {server.version}"
        yield Figure(
            f"{name}: signals to one run, one by one",
            1 / median(signal),
            300,
            "a second",
            f"{median(signal) * 1e6:.0f} µs against {median(bare) * 1e6:.0f} µs of one {what}",
            at_least=True,
        )
        yield Figure(
            f"{name}: claim of {RUNS:,} runs",
            median(claim) * 1e3,
            200,
            "ms",
            f"{min(claim) * 1e3:.0f} to {max(claim) * 1e3:.0f} ms, {CLAIMED_AT_ONCE} at a time",
        )
