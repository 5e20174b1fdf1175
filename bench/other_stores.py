"""MariaDB, MongoDB and DynamoDB: acquire + release of one caller and of a hundred tasks, beside locks made by hand.

By hand means: `GET_LOCK` on a connection of its own; a document that is found and modified (upsert), and deleted, with
majority writes; an item that is put on condition and deleted. None of them has a token, a queue, a renewal, or a notice
of loss; GET_LOCK writes nothing and vanishes with its connection. python-dynamodb-lock renews and notices a loss, but
has neither a token nor a queue. The servers of MongoDB and DynamoDB are stand-ins: their ratios say what Holdfast
adds in requests, and nothing about the services themselves.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import boto3
import botocore.config
import pymongo
import pymysql
from common import Figure, alternate, median, ratio
from python_dynamodb_lock.python_dynamodb_lock import DynamoDBLockClient

from holdfast import AsyncClient, Client
from holdfast.stores.dynamodb.address import address_of_url
from holdfast.stores.sql.address import parse
from holdfast.testing import servers

ROUNDS = 5
PAIRS = 60
TASKS = 100
TURNS = 3
CONNECTIONS = 10

Pair = Callable[[int], None]


def timed(pair: Pair) -> Callable[[], float]:
    """Seconds for a pair of one caller."""

    def measure() -> float:
        start = time.perf_counter()
        for _ in range(PAIRS):
            pair(0)
        return (time.perf_counter() - start) / PAIRS

    return measure


def ours(client: Client) -> Pair:
    lock = client.lock("bench", ttl=30)

    def pair(_: int) -> None:
        with lock:
            pass

    return pair


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


def their_tasks(make: Callable[[], Pair]) -> Callable[[], float]:
    """A hundred keys by a pool of ten connections, each in a thread."""

    def measure() -> float:
        pairs = [make() for _ in range(CONNECTIONS)]

        def work(place: int) -> None:
            for number in range(place, TASKS, CONNECTIONS):
                for _ in range(TURNS):
                    pairs[place](number)

        with ThreadPoolExecutor(CONNECTIONS) as pool:
            start = time.perf_counter()
            list(pool.map(work, range(CONNECTIONS)))
            return TASKS * TURNS / (time.perf_counter() - start)

    return measure


def get_lock(url: str) -> Pair:
    connection = pymysql.connect(**parse(url).dialect._options, autocommit=True)  # noqa: SLF001

    def pair(number: int) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT GET_LOCK(%s, 10)", (f"bench:{number}",))
            cursor.execute("SELECT RELEASE_LOCK(%s)", (f"bench:{number}",))

    return pair


def commits(url: str) -> Pair:
    """Two durable commits of one row: the floor of a lock that survives a power failure."""
    connection = pymysql.connect(**parse(url).dialect._options, autocommit=True)  # noqa: SLF001
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE IF NOT EXISTS bare (id INT PRIMARY KEY, n INT) ENGINE=InnoDB")
        cursor.execute("INSERT IGNORE INTO bare VALUES (1, 0)")

    def pair(_: int) -> None:
        with connection.cursor() as cursor:
            cursor.execute("UPDATE bare SET n = n + 1 WHERE id = 1")
            cursor.execute("UPDATE bare SET n = n + 1 WHERE id = 1")

    return pair


def document(url: str) -> Pair:
    locks = pymongo.MongoClient(url)["by_hand"]["locks"].with_options(write_concern=pymongo.WriteConcern("majority"))

    def pair(number: int) -> None:
        now = time.time()
        free = {"_id": number, "until": {"$lt": now}}
        locks.find_one_and_update(free, {"$set": {"until": now + 30}}, upsert=True)
        locks.delete_one({"_id": number})

    return pair


def item(url: str) -> Pair:
    client = address_of_url(url).client()
    if "by_hand" not in client.list_tables()["TableNames"]:
        client.create_table(
            TableName="by_hand",
            BillingMode="PAY_PER_REQUEST",
            AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
            KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
        )

    def pair(number: int) -> None:
        key: dict[str, Any] = {"id": {"S": str(number)}}
        until = {"until": {"N": str(int(time.time()) + 30)}}
        client.put_item(TableName="by_hand", Item=key | until, ConditionExpression="attribute_not_exists(id)")
        client.delete_item(TableName="by_hand", Key=key)

    return pair


def lock_client(url: str) -> Pair:
    """python-dynamodb-lock, with its defaults. One client for all threads, as its documentation says."""
    address = address_of_url(url)
    if url not in _lock_clients:
        key, secret = address.credentials or (None, None)
        options: dict[str, Any] = {"region_name": address.region, "endpoint_url": address.endpoint}
        options |= {"aws_access_key_id": key, "aws_secret_access_key": secret}
        options |= {"config": botocore.config.Config(max_pool_connections=CONNECTIONS)}
        resource = boto3.resource("dynamodb", **options)
        DynamoDBLockClient.create_dynamodb_table(resource.meta.client)
        _lock_clients[url] = DynamoDBLockClient(resource)
    client = _lock_clients[url]

    def pair(number: int) -> None:
        client.acquire_lock(str(number)).release()

    return pair


_lock_clients: dict[str, Any] = {}


def one_caller(name: str, url: str, by_hand: str, make: Callable[[str], Pair], limit: float) -> Figure:
    with Client(url) as client:
        mine, theirs = alternate(timed(ours(client)), timed(make(url)), rounds=ROUNDS)
    return Figure(
        f"{name}, sync, one caller: acquire + release",
        ratio(mine, theirs),
        limit,
        f"x {by_hand}",
        f"{median(mine) * 1e6:.0f} µs against {median(theirs) * 1e6:.0f} µs; with token, queue, renewal and loss",
    )


def many_callers(name: str, url: str, by_hand: str, make: Callable[[str], Pair], limit: float) -> Figure:
    many, theirs = alternate(our_tasks(url), their_tasks(lambda: make(url)), rounds=ROUNDS)
    return Figure(
        f"{name}, 100 async tasks on distinct keys",
        ratio(many, theirs),
        limit,
        f"x {by_hand}, ten connections",
        f"{median(many):.0f} pairs/s against {median(theirs):.0f} pairs/s",
        at_least=True,
    )


def figures() -> list[Figure]:
    found: list[Figure] = []
    with servers.mariadb() as server:
        name, url = f"MariaDB {server.version}", server.url
        found.append(one_caller(name, url, "two bare durable commits", commits, 4))
        found.append(one_caller(name, url, "GET_LOCK, which stores nothing", get_lock, 100))
        found.append(many_callers(name, url, "GET_LOCK, which stores nothing", get_lock, 0.1))
    with servers.mongodb() as server:
        name, url, by_hand = "MongoDB stand-in", server.url, "find-and-modify + delete by hand"
        found += [one_caller(name, url, by_hand, document, 3), many_callers(name, url, by_hand, document, 0.5)]
    with servers.dynamodb() as server:
        name, url, by_hand = f"dynoxide {server.version}", server.url, "conditional put + delete by hand"
        found += [one_caller(name, url, by_hand, item, 2.5), many_callers(name, url, by_hand, item, 0.5)]
        peer = "python-dynamodb-lock"
        found += [one_caller(name, url, peer, lock_client, 1.5), many_callers(name, url, peer, lock_client, 0.5)]
        _lock_clients.pop(url).close()
    return found
