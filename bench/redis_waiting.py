"""Redis: the hand-over of a lock to a process that waits, and a thousand leases through a server that stands still.

The floor of a hand-over is a token that two processes pass to each other by BLPOP. As a script this is one of the
processes: `ours`, `floor`, or one of the peers; it prints how long after the other's release it got the lock.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import redis
from common import Figure, alternate, folder, median, ratio, spawn
from handover import p50, played

from holdfast import Client
from holdfast.events import Event
from holdfast.testing import servers

HANDOVERS = 60
BLOCKS = 9
LEASES = 1_000
THEIRS = 200
"""Leases of the peer: each has a thread of its own."""
ROUNDS_OF_RENEWAL = 9
STALL_SECONDS = 3.0


def play(take: Callable[[], object], note: Path) -> None:
    """Take the lock again and again; the moment of each release is in a file."""
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(HANDOVERS):
        with take():  # type: ignore[attr-defined]
            got = time.monotonic_ns()
            released, by = note.read_text().split()
            if int(by) not in (0, os.getpid()):
                print((got - int(released)) / 1e6, flush=True)
            time.sleep(0.003)  # the other one waits by now
            note.write_text(f"{time.monotonic_ns()} {os.getpid()}")


def ours(url: str, note: str) -> None:
    logging.getLogger("holdfast").setLevel(logging.ERROR)
    with Client(url) as client:
        lock = client.lock("ball", ttl=30)
        play(lambda: lock, Path(note))


def redis_py(url: str, note: str) -> None:
    client = redis.Redis.from_url(url)
    play(lambda: client.lock("ball", timeout=30), Path(note))


def python_redis_lock(url: str, note: str) -> None:
    import redis_lock  # noqa: PLC0415

    client = redis.Redis.from_url(url)
    play(lambda: redis_lock.Lock(client, "ball", expire=30), Path(note))


def floor(url: str, note: str) -> None:
    """A token in a list: whoever pops it has it, and pushes it when done."""
    client = redis.Redis.from_url(url)

    class Token:
        def __enter__(self) -> None:
            client.blpop("ball", timeout=30)

        def __exit__(self, *_: object) -> None:
            client.rpush("ball", "token")

    play(Token, Path(note))


PLAYERS = {one.__name__: one for one in (ours, floor, python_redis_lock, redis_py)}


def handover_ms(server: servers.Server, player: str) -> Callable[[], list[float]]:
    def measure() -> list[float]:
        with folder() as where, redis.Redis.from_url(server.url) as client:
            client.flushall()
            client.rpush("ball", "token") if player == "floor" else None
            note = where / "note"
            note.write_text("0 0")
            return played([spawn("redis_waiting.py", player, server.url, note) for _ in range(2)])

    return measure


def handover(server: servers.Server) -> Figure:
    everything: dict[str, list[float]] = {player: [] for player in PLAYERS}
    measures = [p50(handover_ms(server, player), everything[player]) for player in PLAYERS]
    mine, least, theirs, sleeping = alternate(*measures, rounds=BLOCKS)
    return Figure(
        f"{server.kind} {server.version}: hand-over to a waiting process, p50",
        ratio(mine, least),
        2,
        "x a token passed by BLPOP",
        f"{median(mine):.2f} ms against {median(least):.2f} ms; beside it python-redis-lock "
        f"{ratio(theirs, least):.1f} x, redis-py {ratio(sleeping, least):.0f} x",
    )


def renewals(server: servers.Server) -> Figure:
    """What a round of heartbeats costs the client, in CPU time of the whole process."""
    with Client(server.url) as client:
        leases = [client.lock(f"lease:{number}", ttl=3_600).acquire() for number in range(LEASES)]
        heartbeats = client.runtime.heartbeats
        rounds = []
        for _ in range(ROUNDS_OF_RENEWAL):
            done, count = threading.Event(), 0

            def told(event: Event) -> None:
                nonlocal count
                count += event.fields.get("leases", 0)
                if count >= LEASES:
                    done.set()  # noqa: B023

            unsubscribe = client.events.subscribe(told)
            before = time.process_time()
            heartbeats.call_soon(lambda: _all_due(heartbeats))
            done.wait()
            rounds.append((time.process_time() - before) / LEASES * 1e6)
            unsubscribe()
        for lease in leases:
            lease.release()
    return Figure(
        f"{server.kind} {server.version}: 1,000 leases renewed, client CPU a lease",
        median(rounds),
        5,
        "µs",
        f"rounds of {min(rounds):.1f} to {max(rounds):.1f} µs",
    )


def _all_due(heartbeats: object) -> None:
    for renewal in heartbeats._renewals.values():  # type: ignore[attr-defined]  # noqa: SLF001
        renewal.renew_at = 0.0


def kept_through_a_stall(server: servers.Server) -> Figure:
    """A server that stands still for three seconds, with a ttl of ten: who still has his leases?"""
    import redis_lock  # noqa: PLC0415

    client = redis.Redis.from_url(server.url, socket_timeout=1, max_connections=2 * THEIRS)
    loud, threading.excepthook = threading.excepthook, lambda _: None  # the peer's threads die by exceptions
    peer = [redis_lock.Lock(client, f"peer:{n}", expire=10, auto_renewal=True) for n in range(THEIRS)]
    for lock in peer:
        lock.acquire()
    with Client(server.url) as hf:
        leases = [hf.lock(f"lease:{number}", ttl=10).acquire() for number in range(LEASES)]
        time.sleep(1)
        server.pause()
        time.sleep(STALL_SECONDS)
        server.resume()
        time.sleep(11)  # longer than what is left of any lease that was not renewed
        kept = sum(lease.valid for lease in leases)
        for lease in leases:
            lease.release()
        theirs = sum(client.get(f"lock:peer:{n}") is not None for n in range(THEIRS))
    threading.excepthook = loud
    for lock in peer:
        lock._stop_lock_renewer() if lock._lock_renewal_thread else None  # noqa: SLF001
    return Figure(
        f"{server.kind} {server.version}: leases kept through a stall of 3 s",
        kept,
        LEASES,
        f"of {LEASES}",
        f"python-redis-lock in the same stall: {theirs} of {THEIRS}",
        at_least=True,
    )


def figures() -> list[Figure]:
    with servers.valkey(settings={"appendonly": "no"}) as server:
        return [handover(server), renewals(server), kept_through_a_stall(server)]


if __name__ == "__main__":
    PLAYERS[sys.argv[1]](*sys.argv[2:])
