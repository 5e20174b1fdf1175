"""Redis: acquire + release of one caller and of a hundred tasks, beside the same scripts sent bare, and the peers.

The server is a Valkey that keeps nothing on the disk, so that what is measured is work and not the disk. The floor of
one caller is redis-py's own `evalsha` with the very batches that Holdfast sends, the token read from the answer. The
floor of a hundred tasks is one script for all hundred keys, there and back.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

import redis
import redis.asyncio
from common import Figure, alternate, median, ratio

from holdfast import AsyncClient, Client
from holdfast.commands import Acquire, Command, Release
from holdfast.rules.lock_record import Label
from holdfast.stores.redis.fast_path import GRANTED, RELEASED, asked, read_reply
from holdfast.stores.redis.scripts import FAST
from holdfast.testing import servers

BLOCKS = 9
PAIRS = 400
TASKS = 100
TURNS = 20
INDEX = "holdfast:{bare}:keys"
ME = Label(name="bench", host="bench", pid=1)


def take(number: int) -> Acquire:
    return Acquire(key=f"bench:{number}", id=f"bench.{number}", label=ME, ttl=30_000_000)


def timed(pairs: int, pair: Callable[[], None]) -> Callable[[], float]:
    def measure() -> float:
        start = time.perf_counter()
        for _ in range(pairs):
            pair()
        return (time.perf_counter() - start) / pairs

    return measure


def payload(commands: Sequence[Command]) -> bytes:
    """What Holdfast sends for these commands."""
    written = asked(commands)
    assert written is not None
    return written.payload


def bare_scripts(client: redis.Redis, keys: int) -> Callable[[], None]:
    """The two batches for so many keys, by the driver alone."""
    client.script_load(FAST.text)
    packed = payload([take(number) for number in range(keys)])
    sha = FAST.sha.decode()

    def pair() -> None:
        reply = read_reply(client.evalsha(sha, 1, INDEX, packed))
        tokens = [reply.now if answer == GRANTED else answer[2] for answer in reply.answers]
        releases = [
            Release(key=f"bench:{number}", id=f"bench.{number}", token=token) for number, token in enumerate(tokens)
        ]
        released = read_reply(client.evalsha(sha, 1, INDEX, payload(releases)))
        if released.answers != [RELEASED] * keys:
            raise AssertionError(released.answers)

    return pair


def sync_pair(client: Client) -> Callable[[], None]:
    lock = client.lock("bench", ttl=30)

    def pair() -> None:
        with lock:
            pass

    return pair


def peers(url: str) -> dict[str, Callable[[], None]]:
    """What people use today: no token, no queue, no word of a loss."""
    import pottery  # noqa: PLC0415
    import redis_lock  # noqa: PLC0415

    client = redis.Redis.from_url(url)

    def with_(make: Callable[[], object]) -> Callable[[], None]:
        def pair() -> None:
            with make():  # type: ignore[attr-defined]
                pass

        return pair

    return {
        "redis-py Lock": with_(lambda: client.lock("redis-py", timeout=30)),
        "python-redis-lock": with_(lambda: redis_lock.Lock(client, "python-redis-lock", expire=30)),
        "pottery": with_(lambda: pottery.Redlock(key="pottery", masters={client}, auto_release_time=30)),
    }


def our_tasks(url: str) -> Callable[[], float]:
    async def work(client: AsyncClient, number: int) -> None:
        lock = client.lock(f"bench:{number}", ttl=30)
        for _ in range(TURNS):
            async with lock:
                pass

    async def main() -> float:
        async with AsyncClient(url) as client:
            await work(client, 0)
            start = time.perf_counter()
            await asyncio.gather(*(work(client, number) for number in range(TASKS)))
            return TASKS * TURNS / (time.perf_counter() - start)

    return lambda: asyncio.run(main())


def their_tasks(url: str) -> Callable[[], float]:
    """redis-py's own asynchronous lock, through its pool."""

    async def work(client: redis.asyncio.Redis, number: int) -> None:
        lock = client.lock(f"theirs:{number}", timeout=30)
        for _ in range(TURNS):
            async with lock:
                pass

    async def main() -> float:
        async with redis.asyncio.Redis.from_url(url) as client:
            await work(client, 0)
            start = time.perf_counter()
            await asyncio.gather(*(work(client, number) for number in range(TASKS)))
            return TASKS * TURNS / (time.perf_counter() - start)

    return lambda: asyncio.run(main())


def floor_of_tasks(client: redis.Redis) -> Callable[[], float]:
    pair = bare_scripts(client, TASKS)

    def measure() -> float:
        start = time.perf_counter()
        for _ in range(TURNS):
            pair()
        return TASKS * TURNS / (time.perf_counter() - start)

    return measure


def figures() -> list[Figure]:
    with (
        servers.valkey(settings={"appendonly": "no"}) as server,
        redis.Redis.from_url(server.url) as driver,
        Client(server.url) as client,
    ):
        others = peers(server.url)
        mine, floor, *rest = alternate(
            timed(PAIRS, sync_pair(client)),
            timed(PAIRS, bare_scripts(driver, 1)),
            *(timed(PAIRS // 4, pair) for pair in others.values()),
            rounds=BLOCKS,
        )
        ours, least, theirs = alternate(
            our_tasks(server.url), floor_of_tasks(driver), their_tasks(server.url), rounds=BLOCKS
        )
    name = f"{server.kind} {server.version}"
    beside = ", ".join(f"{peer} {median(values) * 1e6:.0f} µs" for peer, values in zip(others, rest, strict=True))
    return [
        Figure(
            f"{name}, sync, one caller: acquire + release",
            ratio(mine, floor),
            1.25,
            "x the same two scripts sent bare",
            f"{median(mine) * 1e6:.0f} µs against {median(floor) * 1e6:.0f} µs; beside it {beside}",
        ),
        Figure(
            f"{name}, 100 async tasks on distinct keys",
            ratio(ours, least),
            0.4,
            "of one script for all keys, each way",
            f"{median(ours):.0f} pairs/s against {median(least):.0f} pairs/s",
            at_least=True,
        ),
        Figure(
            f"{name}, 100 async tasks on distinct keys",
            ratio(ours, theirs),
            6,
            "x redis.asyncio Lock",
            f"{median(ours):.0f} pairs/s against {median(theirs):.0f} pairs/s",
            at_least=True,
        ),
    ]
