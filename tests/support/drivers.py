"""Each kind of server with its real driver, for tests that are the same for all: a connection with a counter."""

from __future__ import annotations

from contextlib import contextmanager
from datetime import UTC

import botocore.exceptions
import psycopg
import pymongo
import pymongo.errors
import pymysql
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from holdfast.stores.dynamodb.address import address_of_url
from holdfast.stores.sql.address import parse


class PostgresSession:
    """One connection, and a counter in a table."""

    errors = (psycopg.Error,)

    def __init__(self, url: str) -> None:
        self._connection = psycopg.connect(url, autocommit=True, connect_timeout=10)
        self._connection.execute("CREATE TABLE IF NOT EXISTS counter (id int PRIMARY KEY, n int)")

    def add(self) -> None:
        self._connection.execute(
            "INSERT INTO counter VALUES (1, 1) /* add */ ON CONFLICT (id) DO UPDATE SET n = counter.n + 1"
        )

    def value(self) -> int:
        row = self._connection.execute("SELECT n FROM counter").fetchone()
        return row[0] if row else 0

    def version(self) -> str:
        return self._connection.execute("SHOW server_version").fetchone()[0].split()[0]

    def setting(self, name: str) -> str:
        return self._connection.execute("SELECT current_setting(%s)", (name,)).fetchone()[0]

    def now(self) -> float:
        return float(self._connection.execute("SELECT extract(epoch FROM clock_timestamp())").fetchone()[0])

    def close(self) -> None:
        self._connection.close()

    reconnects = False
    """Whether the driver notices a cut connection before it sends a request, and opens another one."""
    adding = b"/* add */"
    """Bytes that occur in a request to add, and in no other request."""


class RedisSession:
    """One connection, and a counter under a key. No request is sent twice."""

    errors = (redis.RedisError,)

    def __init__(self, url: str) -> None:
        self._client = redis.Redis.from_url(url, retry=Retry(NoBackoff(), 0), single_connection_client=True)

    def add(self) -> None:
        self._client.incr("counter")

    def value(self) -> int:
        return int(self._client.get("counter") or 0)

    def version(self) -> str:
        info = self._client.info("server")
        return info.get("valkey_version", info["redis_version"])

    def setting(self, name: str) -> str:
        return self._client.config_get(name)[name]

    def now(self) -> float:
        seconds, microseconds = self._client.time()
        return seconds + microseconds / 1e6

    def close(self) -> None:
        self._client.close()

    reconnects = False
    adding = b"INCR"


class DynamoSession:
    """One client, and a counter in an item of a table. No request is sent twice."""

    errors = (botocore.exceptions.BotoCoreError, botocore.exceptions.ClientError)
    table = "counters"
    key = {"id": {"S": "counter"}}  # noqa: RUF012

    def __init__(self, url: str) -> None:
        self._client = address_of_url(url).client()
        if self.table not in self._client.list_tables()["TableNames"]:
            self._client.create_table(
                TableName=self.table,
                BillingMode="PAY_PER_REQUEST",
                AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
                KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
            )
            self._client.get_waiter("table_exists").wait(TableName=self.table, WaiterConfig={"Delay": 1})

    def add(self) -> None:
        self._client.update_item(
            TableName=self.table,
            Key=self.key,
            UpdateExpression="ADD n :one",
            ExpressionAttributeValues={":one": {"N": "1"}},
        )

    def value(self) -> int:
        item = self._client.get_item(TableName=self.table, Key=self.key, ConsistentRead=True).get("Item", {})
        return int(item["n"]["N"]) if item else 0

    def version(self) -> str:
        return self._client.list_tables()["ResponseMetadata"]["HTTPHeaders"]["x-dynoxide-version"]

    def close(self) -> None:
        self._client.close()

    reconnects = True
    adding = b"UpdateItem"


class MongoSession:
    """A client with one connection, and a counter in a document. No request is sent twice."""

    errors = (pymongo.errors.PyMongoError,)

    def __init__(self, url: str) -> None:
        once = {"retryWrites": False, "retryReads": False, "maxPoolSize": 1}
        self._client = pymongo.MongoClient(url, **once, serverSelectionTimeoutMS=5_000, socketTimeoutMS=5_000)
        self._counters = self._client["drivers"]["counters"]

    def add(self) -> None:
        self._counters.update_one({"_id": "counter"}, {"$inc": {"n": 1}}, upsert=True)

    def value(self) -> int:
        return (self._counters.find_one({"_id": "counter"}) or {"n": 0})["n"]

    def version(self) -> str:
        return self._client.server_info()["secantusVersion"]

    def now(self) -> float:
        return self._client.admin.command("hello")["localTime"].replace(tzinfo=UTC).timestamp()

    def close(self) -> None:
        self._client.close()

    reconnects = True
    adding = b"$inc"


class MariaDbSession:
    """One connection, and a counter in a table."""

    errors = (pymysql.MySQLError,)
    reconnects = False
    adding = b"/* add */"

    def __init__(self, url: str) -> None:
        options = parse(url).dialect._options
        self._connection = pymysql.connect(**options, autocommit=True, connect_timeout=10, read_timeout=10)
        self._ask("CREATE TABLE IF NOT EXISTS counter (id INT PRIMARY KEY, n INT) ENGINE=InnoDB")

    def _ask(self, statement: str):
        with self._connection.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetchone()

    def add(self) -> None:
        self._ask("INSERT INTO counter VALUES (1, 1) /* add */ ON DUPLICATE KEY UPDATE n = n + 1")

    def value(self) -> int:
        row = self._ask("SELECT n FROM counter")
        return row[0] if row else 0

    def version(self) -> str:
        return self._ask("SELECT VERSION()")[0].partition("-")[0]

    def setting(self, name: str) -> str:
        return str(self._ask(f"SELECT @@{name.replace('-', '_')}")[0])

    def now(self) -> float:
        return float(self._ask("SELECT UNIX_TIMESTAMP(UTC_TIMESTAMP(6))")[0])

    def close(self) -> None:
        if self._connection.open:
            self._connection._force_close()


SESSIONS = {
    "postgres": PostgresSession,
    "valkey": RedisSession,
    "redis": RedisSession,
    "mariadb": MariaDbSession,
    "mongodb": MongoSession,
    "dynamodb": DynamoSession,
}


@contextmanager
def session(kind: str, url: str):
    made = SESSIONS[kind](url)
    try:
        yield made
    finally:
        made.close()
