"""The examples of docs/fencing.md that need a server, run as they are written.

They stand there as `py`, the others as `python`. Those of one section run one after the other, in an empty folder and a
process of their own; the addresses in them are replaced by those of the tests' servers.
"""

import re
import subprocess
import sys
from pathlib import Path

import boto3
import pymongo
import pytest
import real_servers
import redis

from holdfast.fencing.mysql import CREATE
from holdfast.fencing.redis import fence_key

PAGE = (Path(__file__).parents[2] / "docs" / "fencing.md").read_text()
SECTIONS = {
    section.partition("\n")[0]: "\n\n".join(re.findall(r"^```py\n(.*?)^```", section, re.MULTILINE | re.DOTALL))
    for section in PAGE.split("\n## ")
    if "\n```py\n" in section
}


def run(section, folder, shown, real):
    """Run it, with the real address in place of the one that is shown."""
    assert shown in SECTIONS[section]
    code = SECTIONS[section].replace(shown, real)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, f"{section}\n{done.stderr}"
    return done.stdout


def test_every_section_with_a_server_is_run_here():
    assert list(SECTIONS) == [
        "In your PostgreSQL transaction",
        "asyncpg",
        "SQLAlchemy",
        "Redis and Valkey",
        "MongoDB",
        "DynamoDB",
    ]


@pytest.mark.parametrize(
    ("section", "sold"), [("In your PostgreSQL transaction", 2), ("asyncpg", 1), ("SQLAlchemy", 3)]
)
def test_examples_on_postgresql(section, sold, database, tmp_path):
    database.watcher.execute("CREATE TABLE stock (item text PRIMARY KEY, count int)")
    database.watcher.execute("INSERT INTO stock VALUES ('lamp', 10)")
    run(section, tmp_path, "://app@localhost/shop", database.url.removeprefix("postgresql"))
    assert database.rows("SELECT count FROM stock") == [(10 - sold,)]
    assert list(database.fences()) == ["stock:lamp"]


@pytest.mark.parametrize("kind", ["valkey", "redis"])
def test_examples_on_redis(kind, tmp_path):
    url = real_servers.shared(kind).url
    keys = ["stock:lamp", "sales:lamp", "offer:lamp", fence_key("stock:lamp"), fence_key("offer:lamp")]
    with redis.Redis.from_url(url) as client:
        client.delete(*keys)
        assert run("Redis and Valkey", tmp_path, "redis://localhost", url) == "7\n8\n"
        assert client.get("stock:lamp") == b"8"
        assert client.lrange("sales:lamp", 0, -1) == [b"2"]
        assert client.delete(*keys) == len(keys)


def test_the_sql_that_is_shown_is_the_one_that_ships(shipped):
    shown, mysql = re.findall(r"^```sql\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    lines = [line.removeprefix("-- ") for line in shipped.splitlines()]
    assert all(line in lines for line in shown.splitlines())
    assert " ".join(mysql.split()).rstrip(";") == CREATE


def test_examples_on_mongodb(tmp_path):
    url = real_servers.shared("mongodb").url
    with pymongo.MongoClient(url) as client:
        stock = client["shop"]["stock"]
        stock.delete_many({})
        stock.insert_one({"_id": "lamp", "count": 10})
        run("MongoDB", tmp_path, "mongodb://localhost", url)
        document = stock.find_one({"_id": "lamp"})
        stock.drop()
    assert document["count"] == (10 - 1) * 2 - 1
    assert document["holdfast_fence"] > 0


def test_examples_on_dynamodb(tmp_path):
    endpoint = real_servers.shared("dynamodb").endpoint
    shown = 'boto3.resource("dynamodb")'
    options = {"region_name": "us-east-1", "aws_access_key_id": "any", "aws_secret_access_key": "any"}
    resource = boto3.resource("dynamodb", endpoint_url=endpoint, **options)
    table = resource.create_table(
        TableName="stock",
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
    )
    table.meta.client.get_waiter("table_exists").wait(TableName="stock", WaiterConfig={"Delay": 1})
    table.put_item(Item={"id": "lamp", "count": 10, "sold": 0})
    run("DynamoDB", tmp_path, shown, f"boto3.resource('dynamodb', endpoint_url={endpoint!r}, **{options!r})")
    item = table.get_item(Key={"id": "lamp"}, ConsistentRead=True)["Item"]
    table.delete()
    resource.meta.client.close()
    assert (item["count"], item["sold"]) == (9, 1)
    assert item["holdfast_fence"] > 0
