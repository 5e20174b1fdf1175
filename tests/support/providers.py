"""One provider per store: how tests open it. A new store adds a provider and inherits every test."""

from __future__ import annotations

import hashlib
import os
import secrets
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import psycopg
import pytest
import real_servers
import redis
from pymongo.collection import Collection

from holdfast.rules.lock_record import LockRecord, decode, encode
from holdfast.rules.record_type import StoredRecord
from holdfast.stores import open_store
from holdfast.stores.cas_adapter import LOCKS, RECORDS, CasName
from holdfast.stores.common import end_of_prefix
from holdfast.stores.dynamodb import address as dynamodb_address
from holdfast.stores.dynamodb.layout import SETTINGS_KEY, partition
from holdfast.stores.mongodb.address import address_of_url
from holdfast.stores.mongodb.layout import MongoLayout
from holdfast.stores.redis.keys import Layout
from holdfast.stores.sql.address import parse
from holdfast.stores.sql.schema import version_of
from holdfast.stores.sql.session import SqlSession
from holdfast.stores.sql.tables import SqlTables
from holdfast.stores.urls import with_options
from holdfast.testing.ports import LOCALHOST
from holdfast.testing.proxy import Proxy


@dataclass(frozen=True)
class Provider:
    name: str
    url: Callable[[Path], str]
    """The address of an empty store, the same store for every caller."""
    dump: Callable[[str, str], dict[str, LockRecord]]
    """The records of a URL's namespace as they are stored."""
    plant_record: Callable[[str, str, str, str, str], None]
    """Replace a record of a type by any text, due long ago."""
    plant: Callable[[str, str, str, str], None] | None = None
    """Replace a record by any text (None: the store keeps no text)."""
    processes: bool = False
    """Whether other processes can open the same store."""
    notices: bool = False
    """Whether the store detects that a hint reached no receiver."""
    share: int = 1
    """Random histories are divided by this in `make test`: all of them run with HOLDFAST_HISTORIES."""
    only_in: tuple[str, ...] = ()
    """The tests for all stores that are run on this one, by the beginnings of their paths; empty: all of them."""


def _dump_memory(url: str, namespace: str) -> dict[str, LockRecord]:
    store = open_store(url, namespace=namespace)
    records = dict(store._space.records)
    store.close()
    return records


def _plant_record_memory(url: str, namespace: str, kind: str, key: str, text: str) -> None:
    store = open_store(url, namespace=namespace)
    store._space.typed.put(kind, key, StoredRecord(text, 1))
    store.close()


def sqlite_path(url: str) -> str:
    return url.removeprefix("sqlite:///").partition("?")[0]


def _dump_sqlite(url: str, namespace: str) -> dict[str, LockRecord]:
    with closing(sqlite3.connect(sqlite_path(url))) as db:
        rows = db.execute("SELECT key, record, due_at FROM locks WHERE namespace = ?", (namespace,)).fetchall()
    records = {key: decode(key, text) for key, text, _ in rows}
    for key, _, due_at in rows:
        assert records[key].due_at == due_at, "the indexed column differs from the record"
    return records


def _plant_sqlite(url: str, namespace: str, key: str, text: str) -> None:
    with closing(sqlite3.connect(sqlite_path(url))) as db, db:
        db.execute("INSERT OR REPLACE INTO locks VALUES (?, ?, ?, 1)", (namespace, key, text))


def _plant_record_sqlite(url: str, namespace: str, kind: str, key: str, text: str) -> None:
    with closing(sqlite3.connect(sqlite_path(url))) as db, db:
        db.execute("INSERT OR REPLACE INTO records VALUES (?, ?, ?, ?, 1)", (namespace, kind, key, text))


POSTGRES_SCHEMA = "tests"


def _postgres_url(folder: Path) -> str:
    """One schema for all tests, emptied for each: creating a schema takes longer than most tests."""
    address = f"{real_servers.shared('postgres').url}?schema={POSTGRES_SCHEMA}"
    with _postgres(address) as db:
        if db.execute("SELECT to_regclass(%s)", (f"{POSTGRES_SCHEMA}.workers",)).fetchone()[0]:
            for table in (
                "locks",
                "slots",
                "runs",
                "journal",
                "events",
                "workers",
                "terms",
                "places",
                "starts",
                "records",
            ):
                db.execute(f"DELETE FROM {POSTGRES_SCHEMA}.{table}")
    return address


def _postgres(url: str) -> psycopg.Connection:
    return psycopg.connect(url.partition("?")[0], autocommit=True)


def _dump_postgres(url: str, namespace: str) -> dict[str, LockRecord]:
    with _postgres(url) as db:
        rows = db.execute(
            f"SELECT key, record::text, due_at FROM {POSTGRES_SCHEMA}.locks WHERE namespace = %s", (namespace,)
        ).fetchall()
    records = {key: decode(key, text) for key, text, _ in rows}
    for key, _, due_at in rows:
        assert records[key].due_at == due_at, "the indexed column differs from the record"
    return records


def _plant_postgres(url: str, namespace: str, key: str, text: str) -> None:
    try:
        msgspec.json.decode(text)
    except msgspec.DecodeError:
        pytest.skip("PostgreSQL itself refuses text that is not JSON")
    with _postgres(url) as db:
        db.execute(
            f"INSERT INTO {POSTGRES_SCHEMA}.locks VALUES (%s, %s, %s, 1) "
            "ON CONFLICT (namespace, key) DO UPDATE SET record = excluded.record, due_at = 1",
            (namespace, key, text),
        )


def _plant_record_postgres(url: str, namespace: str, kind: str, key: str, text: str) -> None:
    with _postgres(url) as db:
        db.execute(
            f"INSERT INTO {POSTGRES_SCHEMA}.records VALUES (%s, %s, %s, %s, 1) "
            "ON CONFLICT (namespace, kind, key) DO UPDATE SET record = excluded.record, due_at = 1",
            (namespace, kind, key, text),
        )


SQL_PREFIX = "tests_"


def _sql_url(kind: str) -> str:
    """One set of tables for all tests, emptied for each: creating tables takes longer than most tests."""
    scheme = "" if kind == "mariadb" else "sql+"
    return _emptied(f"{scheme}{real_servers.shared(kind).url}?prefix={SQL_PREFIX}")


def _emptied(address: str) -> str:
    with sql_session(address) as (session, tables):
        if version_of(session, tables):
            session.run([f"DELETE FROM {name}" for name in tables.names() if name != tables.about])
    return address


@contextmanager
def sql_session(url: str) -> Iterator[tuple[SqlSession, SqlTables]]:
    """A session of a relational store, and its tables."""
    address = parse(url)
    session = SqlSession(address.dialect, timeout=address.timeout)
    try:
        yield session, SqlTables(address.dialect, address.prefix)
    finally:
        session.close()


def _dump_sql(url: str, namespace: str) -> dict[str, LockRecord]:
    with sql_session(url) as (session, tables):
        ns = session.dialect.literal(namespace.encode())
        (rows,) = session.read([f"SELECT k, record, due_at FROM {tables.locks} WHERE ns = {ns}"])
    records = {bytes(key).decode(): decode(bytes(key).decode(), text) for key, text, _ in rows}
    for key, _, due_at in rows:
        assert records[bytes(key).decode()].due_at == due_at, "the indexed column differs from the record"
    return records


def _plant_sql(url: str, namespace: str, key: str, text: str) -> None:
    if "\0" in text and url.startswith("sql+postgresql"):
        pytest.skip("PostgreSQL itself refuses NUL in text")
    with sql_session(url) as (session, tables):
        literal = session.dialect.literal
        ns, k = literal(namespace.encode()), literal(key.encode())
        values = f"({ns}, {k}, {literal(text)}, 1, 7)"
        session.write(
            [
                f"DELETE FROM {tables.locks} WHERE ns = {ns} AND k = {k}",
                f"INSERT INTO {tables.locks} (ns, k, record, due_at, stamp) VALUES {values}",
            ]
        )


def _plant_record_sql(url: str, namespace: str, kind: str, key: str, text: str) -> None:
    with sql_session(url) as (session, tables):
        literal = session.dialect.literal
        ns, of, k = literal(namespace.encode()), literal(kind.encode()), literal(key.encode())
        values = f"({ns}, {of}, {k}, {literal(text)}, 1, 7)"
        session.write(
            [
                f"DELETE FROM {tables.records} WHERE ns = {ns} AND kind = {of} AND k = {k}",
                f"INSERT INTO {tables.records} (ns, kind, k, record, due_at, stamp) VALUES {values}",
            ]
        )


DYNAMODB = "HOLDFAST_TEST_DYNAMODB_URL"
"""The URL of a table of another DynamoDB server. Tests use tables whose names begin with the name of this one."""


def dynamodb_base() -> tuple[str, str]:
    """The part of a URL before the name of the table, with a slash, and its options."""
    url = os.environ.get(DYNAMODB) or real_servers.shared("dynamodb").url
    address, _, query = url.partition("?")
    return address.rpartition("/")[0] + "/", "&".join(["create=true", *query.replace("create=true", "").split("&")])


def dynamodb_table(purpose: str) -> str:
    """The name of a table of this process."""
    start = (os.environ.get(DYNAMODB) or "").partition("?")[0].rpartition("/")[2] or "tests"
    return f"{start}-{purpose}-{os.environ.get('PYTEST_XDIST_WORKER', 'main')}"


def dynamodb_url(purpose: str = "skew0", options: str = "skew=0") -> str:
    """A table for each purpose, emptied for each test: creating a table takes long on Amazon's servers."""
    before, query = dynamodb_base()
    url = f"{before}{dynamodb_table(purpose)}?{query.rstrip('&')}&{options}".rstrip("&")
    with dynamodb_client(url) as (client, table):
        try:
            items = _all_items(client.scan, TableName=table, ConsistentRead=True, ProjectionExpression="pk, sk")
        except client.exceptions.ResourceNotFoundException:
            return url
        for item in items:
            if item != SETTINGS_KEY:
                client.delete_item(TableName=table, Key=item)
    return url


@contextmanager
def dynamodb_client(url: str):
    """A botocore client for the server of a URL, and the name of the table."""
    address = dynamodb_address.address_of_url(url)
    client = address.client()
    try:
        yield client, address.table
    finally:
        client.close()


@contextmanager
def dynamodb_proxy(url: str) -> Iterator[Proxy]:
    """A proxy to the server of a URL, which must be on this machine."""
    endpoint = urlsplit(dynamodb_address.address_of_url(url).endpoint or "")
    if endpoint.hostname != LOCALHOST or endpoint.port is None:
        pytest.skip(f"the proxy is for servers on this machine; {DYNAMODB} names another one")
    with Proxy(endpoint.hostname, endpoint.port) as proxy:
        yield proxy


def _all_items(ask, **request) -> list[dict]:
    items, more = [], {}
    while True:
        page = ask(**request, **more)
        items += page["Items"]
        if "LastEvaluatedKey" not in page:
            return items
        more = {"ExclusiveStartKey": page["LastEvaluatedKey"]}


def _dump_dynamodb(url: str, namespace: str) -> dict[str, LockRecord]:
    with dynamodb_client(url) as (client, table):
        items = _all_items(
            client.query,
            TableName=table,
            KeyConditionExpression="pk = :pk",
            ExpressionAttributeValues={":pk": {"S": partition(namespace, "lock")}},
            ConsistentRead=True,
        )
    records = {item["sk"]["S"]: decode(item["sk"]["S"], item["record"]["S"]) for item in items}
    for item in items:
        due_at = int(item["due_at"]["N"]) if "due_at" in item else None
        assert records[item["sk"]["S"]].due_at == due_at, "the indexed attribute differs from the record"
    return records


def _plant_dynamodb(url: str, namespace: str, key: str, text: str, kind: str = "lock") -> None:
    item = {
        "pk": {"S": partition(namespace, kind)},
        "sk": {"S": key},
        "record": {"S": text},
        "stamp": {"S": secrets.token_hex(12)},
        "due_at": {"N": "1"},
    }
    with dynamodb_client(url) as (client, table):
        try:
            client.put_item(TableName=table, Item=item)
        except client.exceptions.ClientError as error:
            if text or "empty string" not in str(error):
                raise
            pytest.skip("this server itself refuses an empty text, as DynamoDB did before May 2020")


def needs_refused_items(url: str) -> None:
    """Skip a test if the server does not return the item that did not meet a condition, as DynamoDB did before 2023."""
    _plant_dynamodb(url, "probe", "k", "{}")
    with dynamodb_client(url) as (client, table):
        key = {"pk": {"S": partition("probe", "lock")}, "sk": {"S": "k"}}
        request = {"ConditionExpression": "attribute_not_exists(pk)", "ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
        with pytest.raises(client.exceptions.ConditionalCheckFailedException) as caught:
            client.put_item(TableName=table, Item=key, **request)
        if "Item" not in caught.value.response:
            pytest.skip("this server does not know ReturnValuesOnConditionCheckFailure")


def _plant_record_dynamodb(url: str, namespace: str, kind: str, key: str, text: str) -> None:
    _plant_dynamodb(url, namespace, key, text, f"record/{kind}")


def _redis_url(kind: str, folder: Path) -> str:
    """The server that all tests share, with names that are unique to this test."""
    prefix = hashlib.sha256(str(folder).encode()).hexdigest()[:16]
    return f"{real_servers.shared(kind).url}?prefix={prefix}"


def redis_layout(url: str, namespace: str) -> Layout:
    return Layout(url.partition("?prefix=")[2].partition("&")[0] or "holdfast", namespace)


def _dump_redis(url: str, namespace: str) -> dict[str, LockRecord]:
    layout = redis_layout(url, namespace)
    with redis.Redis.from_url(url.partition("?")[0], decode_responses=True) as client:
        keys = client.zrange(layout.index, 0, -1)
        texts = dict(zip(keys, client.mget([layout.lock(key) for key in keys]), strict=True)) if keys else {}
        due = client.zrange(layout.due, 0, -1, withscores=True)
    records = {key: decode(key, text) for key, text in texts.items()}
    for key, text in texts.items():
        assert text.encode() == encode(records[key]), "the script writes other bytes than the rules"
    expected = {key: record.due_at for key, record in records.items() if record.due_at is not None}
    assert dict(due) == expected, "the index differs from the records"
    return records


def _plant_redis(url: str, namespace: str, key: str, text: str) -> None:
    layout = redis_layout(url, namespace)
    with redis.Redis.from_url(url.partition("?")[0]) as client:
        client.set(layout.lock(key), text)
        client.zadd(layout.index, {key: 0})
        client.zadd(layout.due, {key: 1})


def _plant_record_redis(url: str, namespace: str, kind: str, key: str, text: str) -> None:
    layout = redis_layout(url, namespace)
    with redis.Redis.from_url(url.partition("?")[0]) as client:
        client.set(layout.record(kind, key), text)
        client.zadd(layout.record_keys(kind), {key: 0})
        client.zadd(layout.due_records(kind), {key: 1})


def _mongodb_url(folder: Path) -> str:
    """The server that all tests share, with a collection of this test."""
    name = "t" + hashlib.sha256(str(folder).encode()).hexdigest()[:16]
    return with_options(real_servers.shared("mongodb").url, {"collection": name})


@contextmanager
def mongodb_collection(url: str) -> Iterator[Collection]:
    """The collection of a URL, to look into it."""
    address = address_of_url(url)
    with address.open_client() as client:
        yield address.collection_of(client)


def _dump_mongodb(url: str, namespace: str) -> dict[str, LockRecord]:
    head = MongoLayout(namespace).head(LOCKS)
    with mongodb_collection(url) as collection:
        rows = list(collection.find({"_id": {"$gte": head, "$lt": end_of_prefix(head)}}))
    records = {row["_id"].removeprefix(head): row for row in rows}
    for key, row in records.items():
        records[key] = decode(key, row["record"])
        due = {} if records[key].due_at is None else {"due_of": head, "due_at": records[key].due_at}
        assert {name: row[name] for name in ("due_of", "due_at") if name in row} == due, "the index differs"
    return records


def _plant_mongodb(url: str, namespace: str, kind: str, key: str, text: str) -> None:
    layout = MongoLayout(namespace)
    document = {"record": text, "stamp": "planted", "at": 1, "due_of": layout.head(kind), "due_at": 1}
    with mongodb_collection(url) as collection:
        collection.replace_one({"_id": layout.id(CasName(kind, key))}, document, upsert=True)


LOCKS_AND_STATE = (
    "tests/stores/",
    "tests/state/test_state.py",
    "tests/locks/test_lost_replies.py",
    "tests/locks/test_named_leases.py",
    "tests/locks/test_run_locks.py",
    "tests/locks/test_every_store.py",
    "tests/cli/test_cli_doctor.py",
)
"""The stand-ins for MongoDB and DynamoDB are slow, and have no workflows: other tests of clients are left to others."""

WORKFLOWS_BY_SQL = (
    "workflows",
    "limits",
    "run_locks",
    "ownership",
    "attempts",
    "deadlock_runs",
    "transactions_mysql",
    "random_generations",
)
"""PostgreSQL through the common implementation runs the same code as MariaDB: a part of the tests of workflows."""

PROVIDERS = {
    provider.name: provider
    for provider in (
        Provider("memory", lambda folder: f"memory://{folder}", _dump_memory, _plant_record_memory),
        Provider(
            "sqlite",
            lambda folder: f"sqlite:///{folder}/locks.db",
            _dump_sqlite,
            _plant_record_sqlite,
            _plant_sqlite,
            processes=True,
        ),
        Provider(
            "valkey",
            lambda folder: _redis_url("valkey", folder),
            _dump_redis,
            _plant_record_redis,
            _plant_redis,
            processes=True,
            notices=True,
        ),
        Provider(
            "redis",
            lambda folder: _redis_url("redis", folder),
            _dump_redis,
            _plant_record_redis,
            _plant_redis,
            processes=True,
            notices=True,
            share=3,
        ),
        Provider("postgres", _postgres_url, _dump_postgres, _plant_record_postgres, _plant_postgres, processes=True),
        Provider(
            "mariadb",
            lambda folder: _sql_url("mariadb"),
            _dump_sql,
            _plant_record_sql,
            _plant_sql,
            processes=True,
            share=2,
            only_in=(*LOCKS_AND_STATE, "tests/workflows/"),
        ),
        Provider(
            "dynamodb",
            lambda folder: dynamodb_url(),
            _dump_dynamodb,
            _plant_record_dynamodb,
            _plant_dynamodb,
            processes=True,
            share=3,
            only_in=(*LOCKS_AND_STATE, "tests/state/test_durable_locks.py"),
        ),
        Provider(
            "postgres_by_sql",
            lambda folder: _sql_url("postgres"),
            _dump_sql,
            _plant_record_sql,
            _plant_sql,
            processes=True,
            share=3,
            only_in=(
                "tests/stores/",
                "tests/locks/test_every_store.py",
                *(f"tests/workflows/test_{name}" for name in WORKFLOWS_BY_SQL),
            ),
        ),
        Provider(
            "mongodb",
            _mongodb_url,
            _dump_mongodb,
            lambda url, namespace, kind, key, text: _plant_mongodb(url, namespace, RECORDS + kind, key, text),
            lambda url, namespace, key, text: _plant_mongodb(url, namespace, LOCKS, key, text),
            processes=True,
            share=2,
            only_in=LOCKS_AND_STATE,
        ),
    )
}
LIVE = {"mysql": "HOLDFAST_TEST_MYSQL_URL", "mssql": "HOLDFAST_TEST_MSSQL_URL"}
"""Servers that cannot be started here: the suite for stores runs on them where a variable has their address."""


def _live_url(variable: str) -> str:
    address = f"{os.environ[variable]}{'&' if '?' in os.environ[variable] else '?'}prefix={SQL_PREFIX}"
    return _emptied(address)


PROVIDERS |= {
    name: Provider(
        name,
        lambda folder, variable=variable: _live_url(variable),
        _dump_sql,
        _plant_record_sql,
        _plant_sql,
        processes=True,
        only_in=(*LOCKS_AND_STATE, "tests/workflows/"),
    )
    for name, variable in LIVE.items()
    if os.environ.get(variable)
}
BY_SQL = ("mariadb", "postgres_by_sql", *(name for name in LIVE if name in PROVIDERS))
"""Stores of the relational implementation."""
WITH_WORKFLOWS = ("memory", "sqlite", "postgres", "valkey", "mariadb", *(name for name in LIVE if name in PROVIDERS))
"""Stores for tests of engines. Without the old Redis: only its scripts differ, and the conformance suite compares them
with the rules."""
REDISES = [PROVIDERS["valkey"], PROVIDERS["redis"]]


def names() -> list[str]:
    return list(PROVIDERS)


def is_wanted(provider: object, path: str) -> bool:
    """Whether a test in this file is run on this provider, given by itself or by its name; True for anything else."""
    known = PROVIDERS.get(provider) if isinstance(provider, str) else provider
    return not isinstance(known, Provider) or not known.only_in or path.startswith(known.only_in)


def url(name: str, folder: Path) -> str:
    return PROVIDERS[name].url(folder)


def open_files() -> list[str]:
    """The files and sockets of stores that this process has open; empty if the system does not list them."""
    descriptors = Path("/proc/self/fd")
    if not descriptors.is_dir():
        return []
    found = []
    sockets = _wake_sockets()
    for descriptor in descriptors.iterdir():
        try:
            target = str(descriptor.readlink())
        except OSError:
            continue
        name = target.removesuffix(" (deleted)")
        database = name.removesuffix("-wal").removesuffix("-shm").removesuffix("-turn").removesuffix("-wake")
        if target in sockets or name.endswith(("-turn", "-wake")) or Path(f"{database}-turn").exists():
            found.append(target)
    return found


def _wake_sockets() -> set[str]:
    lines = Path("/proc/net/unix").read_text(encoding="utf-8", errors="replace").splitlines()
    fields = [line.split() for line in lines]
    return {f"socket:[{f[6]}]" for f in fields if len(f) > 7 and ("-wake/" in f[7] or "/.new-" in f[7])}
