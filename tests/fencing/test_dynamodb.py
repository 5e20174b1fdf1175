"""The fence on DynamoDB: an item that is put or read, and a condition in a request of the user's own."""

import random
import secrets
import threading
from types import SimpleNamespace

import boto3
import pytest
from botocore.exceptions import ClientError
from providers import dynamodb_client, dynamodb_url, needs_refused_items
from waiting import PATIENCE

from holdfast import Client
from holdfast.errors import InvalidOption, StaleToken, StoreUnusable
from holdfast.fencing import fence_condition, fenced_get, fenced_put
from holdfast.stores.dynamodb.address import address_of_url

T0 = 1_790_000_000_000_000


@pytest.fixture(scope="module")
def table():
    """A table of the user's own, as boto3 shows it."""
    url = dynamodb_url()
    with Client(url) as hf:  # creates the table that the probe uses
        hf.locks.list()
    needs_refused_items(url)
    address = address_of_url(url)
    key, secret = address.credentials or (None, None)
    resource = boto3.resource(
        "dynamodb",
        region_name=address.region,
        endpoint_url=address.endpoint,
        aws_access_key_id=key,
        aws_secret_access_key=secret,
    )
    made = resource.create_table(
        TableName=f"stock-{secrets.token_hex(6)}",
        BillingMode="PAY_PER_REQUEST",
        AttributeDefinitions=[{"AttributeName": "id", "AttributeType": "S"}],
        KeySchema=[{"AttributeName": "id", "KeyType": "HASH"}],
    )
    made.meta.client.get_waiter("table_exists").wait(TableName=made.name, WaiterConfig={"Delay": 1})
    yield made
    made.delete()
    resource.meta.client.close()


@pytest.fixture
def key():
    return {"id": f"lamp {secrets.token_hex(6)}"}


def stored(table, key):
    return table.get_item(Key=key, ConsistentRead=True).get("Item")


def put(table, key, token, **values):
    fenced_put(table, {**key, **values}, token)


def test_a_higher_token_and_the_same_pass_and_the_floor_is_remembered(table, key):
    for token, count in ((T0, 1), (T0 + 1, 2), (T0 + 1, 3)):
        put(table, key, token, count=count)
    assert stored(table, key) == {**key, "count": 3, "holdfast_fence": T0 + 1}


def test_a_lower_token_is_refused_and_nothing_was_written(table, key):
    put(table, key, T0, count=1)
    with pytest.raises(StaleToken) as caught:
        put(table, key, T0 - 1, count=2)
    assert (caught.value.offered, caught.value.highest) == (T0 - 1, T0)
    assert stored(table, key) == {**key, "count": 1, "holdfast_fence": T0}


def test_a_refusal_names_the_item_without_a_request_for_the_name(table, key):
    """The key of an item that is put is known once boto3 has loaded the description of the table, else not."""
    put(table, key, T0)
    fresh = boto3.resource("dynamodb", region_name="us-east-1").Table(table.name)
    fresh.meta.client = table.meta.client
    cases = {
        table.name: lambda: fenced_put(fresh, key, T0 - 1),
        f"{table.name} id={key['id']}": lambda: fenced_get(fresh, key, T0 - 1),
        "stock:lamp": lambda: fenced_put(fresh, key, T0 - 1, resource="stock:lamp"),
        "stock:lamps": lambda: fenced_get(fresh, key, T0 - 1, resource="stock:lamps"),
    }
    for name, refused in cases.items():
        with pytest.raises(StaleToken) as caught:
            refused()
        assert caught.value.resource == name
    assert fresh.meta.data is None
    fresh.load()
    with pytest.raises(StaleToken) as caught:
        fenced_put(fresh, {**key, "count": 1}, T0 - 1)
    assert caught.value.resource == f"{table.name} id={key['id']}"


def test_tokens_are_compared_as_numbers_and_the_largest_fits(table, key):
    put(table, key, 99)
    put(table, key, 100)
    with pytest.raises(StaleToken):
        put(table, key, 99)
    put(table, key, 2**53 - 1)
    with pytest.raises(StaleToken) as caught:
        put(table, key, 2**53 - 2)
    assert caught.value.highest == 2**53 - 1


def test_holders_of_a_semaphore_do_not_shut_each_other_out(table, key):
    """Tokens 100 and 200 hold together, so both bring the floor 100."""
    put(table, key, SimpleNamespace(token=200, floor=100), count=1)
    put(table, key, SimpleNamespace(token=100, floor=100), count=2)
    assert stored(table, key) == {**key, "count": 2, "holdfast_fence": 100}


def test_a_holder_below_the_floor_is_refused_and_an_older_floor_lowers_nothing(table, key):
    put(table, key, SimpleNamespace(token=300, floor=200), count=1)
    put(table, key, SimpleNamespace(token=200, floor=100), count=2)
    with pytest.raises(StaleToken):
        put(table, key, SimpleNamespace(token=199, floor=100), count=3)
    assert stored(table, key) == {**key, "count": 2, "holdfast_fence": 200}


def test_an_item_that_had_no_fence_gets_one_and_the_fence_of_the_callers_copy_is_replaced(table, key):
    table.put_item(Item={**key, "count": 1})
    put(table, key, T0, count=2)
    fenced_put(table, stored(table, key), T0 + 1)
    assert stored(table, key)["holdfast_fence"] == T0 + 1


def test_items_do_not_know_of_each_other(table, key):
    put(table, key, T0)
    put(table, {"id": "another"}, 1)


def test_a_read_behind_the_fence_shuts_out_older_holders(table, key):
    put(table, key, T0, count=7)
    assert fenced_get(table, key, T0 + 1) == {**key, "count": 7}
    with pytest.raises(StaleToken):
        put(table, key, T0, count=8)
    with pytest.raises(StaleToken):
        fenced_get(table, key, T0)
    put(table, key, T0 + 1, count=8)
    assert fenced_get(table, key, T0 + 1) == {**key, "count": 8}


def test_an_item_that_is_not_there_is_fenced_by_the_read_as_well(table, key):
    assert fenced_get(table, key, T0) is None
    assert fenced_get(table, key, T0) is None
    with pytest.raises(StaleToken):
        put(table, key, T0 - 1)


@pytest.mark.parametrize("token", [True, 0, -1, 2**53, "100", None])
def test_a_bad_token_is_refused(table, key, token):
    for call in (lambda: put(table, key, token), lambda: fenced_get(table, key, token), lambda: fence_condition(token)):
        with pytest.raises(InvalidOption):
            call()
    assert stored(table, key) is None


def test_what_is_no_table_is_refused_with_the_way_out(table, key):
    class AsyncTable:
        name = "stock"

        async def put_item(self, **request):
            raise AssertionError

    with pytest.raises(InvalidOption, match="fence_condition"):
        fenced_put(table.meta.client, key, T0)
    with pytest.raises(InvalidOption, match="async"):
        fenced_put(AsyncTable(), key, T0)


@pytest.mark.parametrize("damaged", ["much", True, {"a": 1}])
def test_a_fence_that_cannot_be_read_is_not_taken_for_none(table, key, damaged):
    table.put_item(Item={**key, "holdfast_fence": damaged})
    with pytest.raises(StoreUnusable, match="cannot be read"):
        put(table, key, T0)
    assert stored(table, key)["holdfast_fence"] == damaged


def test_errors_of_the_service_are_raised_unchanged(table, key):
    with pytest.raises(ClientError, match="ValidationException"):
        fenced_put(table, {"no key": 1}, T0)


# -- a request of the user's own --------------------------------------------------------------------------------


def take_one(table, key, token):
    fence = fence_condition(token)
    return table.update_item(
        Key=key,
        UpdateExpression=f"SET stock = stock - :one, {fence.update}",
        ConditionExpression=f"{fence.condition} AND stock > :zero",
        ExpressionAttributeNames=fence.names,
        ExpressionAttributeValues={":one": 1, ":zero": 0, **fence.values},
    )


def test_an_update_is_refused_by_its_condition(table, key):
    put(table, key, T0, stock=5)
    take_one(table, key, T0 + 1)
    with pytest.raises(ClientError, match="ConditionalCheckFailed"):
        take_one(table, key, T0)
    assert stored(table, key) == {**key, "stock": 4, "holdfast_fence": T0 + 1}


def test_a_transaction_of_the_low_level_client_is_refused_as_a_whole(table, key):
    url = dynamodb_url()
    put(table, key, T0, stock=5)
    with dynamodb_client(url) as (client, _):
        for token, refused in ((T0 + 1, False), (T0, True)):
            fence = fence_condition(token)
            lamp = {
                "Update": {
                    "TableName": table.name,
                    "Key": {"id": {"S": key["id"]}},
                    "UpdateExpression": f"SET {fence.update}",
                    "ConditionExpression": fence.condition,
                    "ExpressionAttributeNames": fence.names,
                    "ExpressionAttributeValues": fence.typed_values,
                }
            }
            other = {"Put": {"TableName": table.name, "Item": {"id": {"S": f"{key['id']} {token}"}}}}
            if refused:
                with pytest.raises(ClientError, match="TransactionCanceled"):
                    client.transact_write_items(TransactItems=[lamp, other])
            else:
                client.transact_write_items(TransactItems=[lamp, other])
            assert (stored(table, {"id": f"{key['id']} {token}"}) is None) == refused


# -- many writers -----------------------------------------------------------------------------------------------


def test_of_many_writers_in_any_order_the_last_one_that_wrote_is_the_newest(table, key):
    tokens = [T0 + n for n in range(24)]
    random.Random(7).shuffle(tokens)
    parts, accepted = [tokens[n::4] for n in range(4)], []

    def write(part):
        for token in part:
            try:
                put(table, key, token, by=token)
                accepted.append(token)
            except StaleToken:
                pass

    threads = [threading.Thread(target=write, args=(part,)) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    assert stored(table, key) == {**key, "by": max(tokens), "holdfast_fence": max(tokens)}
    assert max(accepted) == max(tokens)


def test_a_lease_is_its_own_token(table, key):
    with Client("memory://fenced") as hf:
        with hf.lock("stock:lamp") as old:
            put(table, key, old, stock=1)
        with hf.lock("stock:lamp") as new:
            put(table, key, new, stock=2)
            with pytest.raises(StaleToken):
                put(table, key, old, stock=3)
    assert stored(table, key)["stock"] == 2
