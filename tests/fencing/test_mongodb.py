"""`fenced_update` on MongoDB: the token is checked and its floor stored in the operation that updates the document."""

from __future__ import annotations

import asyncio
import secrets
import threading
from types import SimpleNamespace

import pymongo
import pytest
import real_servers

from holdfast.errors import InvalidOption, StaleToken, StoreUnusable
from holdfast.fencing import fenced_update, fenced_update_async
from holdfast.fencing.mongodb import FIELD

T0 = 1_790_000_000_000_000
LAMP = {"_id": "lamp"}


@pytest.fixture
def address():
    return real_servers.shared("mongodb").url


@pytest.fixture
def stock(address):
    """A collection with one document."""
    with pymongo.MongoClient(address) as client:
        collection = client["shop"][f"stock_{secrets.token_hex(6)}"]
        collection.insert_one({**LAMP, "count": 10})
        yield collection
        collection.drop()


class Sync:
    """The update of a sync collection."""

    def __init__(self, collection, address):
        self._collection = collection

    def __call__(self, *arguments, **options):
        return fenced_update(self._collection, *arguments, **options)


class Async:
    """The same of an async one."""

    def __init__(self, collection, address):
        self._address, self._name = address, (collection.database.name, collection.name)

    def __call__(self, *arguments, **options):
        async def update():
            async with pymongo.AsyncMongoClient(self._address) as client:
                collection = client[self._name[0]][self._name[1]]
                return await fenced_update_async(collection, *arguments, **options)

        return asyncio.run(update())


@pytest.fixture(params=[Sync, Async], ids=["sync", "async"])
def update(request, stock, address):
    return request.param(stock, address)


SELL = {"$inc": {"count": -1}}


def test_a_higher_token_passes_and_its_floor_is_remembered(update, stock):
    for token in (T0, T0 + 1):
        assert update(LAMP, SELL, token).matched_count == 1
    assert stock.find_one() == {**LAMP, "count": 8, FIELD: T0 + 1}


def test_the_same_token_may_write_again(update, stock):
    for _ in range(2):
        update(LAMP, SELL, T0)
    assert stock.find_one()["count"] == 8


@pytest.mark.parametrize("change", [SELL, [{"$set": {"count": 0}}], {}], ids=["operators", "pipeline", "nothing"])
def test_a_lower_token_is_refused_and_nothing_was_written(update, stock, change):
    update(LAMP, SELL, T0)
    before = stock.find_one()
    with pytest.raises(StaleToken) as caught:
        update(LAMP, change, T0 - 1, resource="stock:lamp")
    assert (caught.value.resource, caught.value.offered, caught.value.highest) == ("stock:lamp", T0 - 1, T0)
    assert stock.find_one() == before


def test_holders_of_a_semaphore_do_not_shut_each_other_out(update, stock):
    """Tokens 100 and 200 hold together, so both bring the floor 100."""
    for token in (200, 100, 200):
        update(LAMP, SELL, SimpleNamespace(token=token, floor=100))
    assert stock.find_one() == {**LAMP, "count": 7, FIELD: 100}
    update(LAMP, SELL, SimpleNamespace(token=300, floor=300))
    with pytest.raises(StaleToken):
        update(LAMP, SELL, SimpleNamespace(token=200, floor=100))


def test_a_pipeline_raises_the_fence_and_never_lowers_it(update, stock):
    rise = [{"$set": {"count": {"$add": ["$count", 5]}}}]
    update(LAMP, rise, SimpleNamespace(token=200, floor=200))
    update(LAMP, rise, SimpleNamespace(token=300, floor=100))
    assert stock.find_one() == {**LAMP, "count": 20, FIELD: 200}


def test_an_update_of_its_own_maximum_is_kept(update, stock):
    update(LAMP, {"$max": {"count": 50}}, T0)
    assert stock.find_one() == {**LAMP, "count": 50, FIELD: T0}


def test_an_empty_update_raises_the_fence_alone(update, stock):
    update(LAMP, {}, T0)
    assert stock.find_one() == {**LAMP, "count": 10, FIELD: T0}


def test_no_document_is_made_where_none_matches(update, stock):
    assert update({"_id": "chair"}, SELL, T0).matched_count == 0
    assert update({"_id": "lamp", "count": 3}, SELL, T0).matched_count == 0
    assert stock.count_documents({}) == 1


@pytest.mark.parametrize("fence", ["high", 1.5, True, [1]])
def test_a_fence_that_cannot_be_read_refuses_every_token(update, stock, fence):
    stock.update_one(LAMP, {"$set": {FIELD: fence}})
    before = stock.find_one()
    with pytest.raises(StoreUnusable, match="is not a floor"):
        update(LAMP, SELL, T0)
    assert stock.find_one() == before


@pytest.mark.parametrize(
    ("filter", "change", "why"),
    [
        ("lamp", SELL, "filter"),
        (LAMP, {"count": 3}, "operators"),
        (LAMP, "count", "pipeline"),
        (LAMP, {"$set": {FIELD: 1}}, FIELD),
        (LAMP, {"$unset": {f"{FIELD}.x": 1}}, FIELD),
        (LAMP, [{"$set": {FIELD: 1}}], FIELD),
    ],
)
def test_what_would_go_past_the_fence_is_refused(update, stock, filter, change, why):
    with pytest.raises(InvalidOption, match=why):
        update(filter, change, T0)
    assert FIELD not in stock.find_one()


def test_the_wrong_kind_of_collection_is_refused(stock, address):
    async def other_way_round():
        async with pymongo.AsyncMongoClient(address) as client:
            with pytest.raises(InvalidOption, match="is async"):
                fenced_update(client["shop"]["stock"], LAMP, SELL, T0)

    asyncio.run(other_way_round())
    for collection, why in ((stock, "is sync"), (object(), "not a collection")):
        with pytest.raises(InvalidOption, match=why):
            asyncio.run(fenced_update_async(collection, LAMP, SELL, T0))


def test_of_writers_at_the_same_time_no_older_one_writes_after_a_newer_one(stock):
    """Each writer appends its token: behind a token there is never a lower one."""
    begin = threading.Barrier(6)

    def write(token):
        begin.wait()
        for _ in range(10):
            try:
                fenced_update(stock, LAMP, {"$push": {"log": token}}, token)
            except StaleToken:
                return

    threads = [threading.Thread(target=write, args=(T0 + n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log = stock.find_one()["log"]
    assert log == sorted(log)
    assert log[-1] == T0 + 5
