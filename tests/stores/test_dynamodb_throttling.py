"""Throttling on DynamoDB: callers wait no longer than they wanted, and no local server throttles by itself."""

from __future__ import annotations

import threading
import time

import botocore.exceptions
import pytest
from providers import dynamodb_url

from holdfast import Client
from holdfast.errors import StoreUnavailable
from holdfast.stores.cas_adapter import LOCKS, CasName, CasWrite
from holdfast.stores.dynamodb import connection as module
from holdfast.stores.dynamodb.connection import DynamoConnection, DynamoRequests

REFUSAL = botocore.exceptions.ClientError(
    {
        "Error": {"Code": "ThrottlingException", "Message": "too many"},
        "ResponseMetadata": {"HTTPStatusCode": 400},
    },
    "PutItem",
)


class Throttled:
    """In place of a client of botocore: refuses every request, from several threads."""

    def __init__(self):
        self.requests = 0
        self._counting = threading.Lock()

    def __getattr__(self, name):
        return self._refuse

    def _refuse(self, **request):
        with self._counting:
            self.requests += 1
        raise REFUSAL


@pytest.fixture
def hf():
    with Client(dynamodb_url()) as made:
        made.lock("warm").acquire().release()
        yield made


def requests_of(hf):
    return hf.runtime.batchers["commands"]._connection._connection._adapter._requests


@pytest.mark.parametrize("wait", [0, 0.5])
def test_a_caller_whose_requests_are_throttled_waits_no_longer_than_it_wanted(hf, monkeypatch, wait):
    monkeypatch.setattr(requests_of(hf), "client", Throttled())
    began = time.monotonic()
    with pytest.raises(StoreUnavailable, match=r"too many.*Nothing was done") as refused:
        hf.lock("k", wait=wait).acquire()
    assert time.monotonic() - began < wait + 2
    assert refused.value.retryable
    assert not refused.value.ambiguous


def test_a_caller_that_waits_gets_its_lock_when_the_throttling_ends(hf, monkeypatch):
    requests = requests_of(hf)
    client = requests.client
    throttled = Throttled()
    monkeypatch.setattr(module, "THROTTLED_SECONDS", 0.05)
    monkeypatch.setattr(requests, "client", throttled)

    def end():
        while throttled.requests < 6:
            time.sleep(0.01)
        requests.client = client

    ending = threading.Thread(target=end)
    ending.start()
    with hf.lock("k", wait=10) as lease:
        assert lease.token
    ending.join()


def test_a_large_batch_that_is_throttled_fails_as_fast_as_a_small_one():
    connection = DynamoConnection(DynamoRequests(Throttled(), "t", "t"), "n", lambda: 1, trusts_times=True)
    writes = [CasWrite(CasName(LOCKS, f"k{n}"), "{}", None, f"s{n}", None) for n in range(200)]
    began = time.monotonic()
    with pytest.raises(StoreUnavailable):
        connection.write(writes)
    assert time.monotonic() - began < 2
    connection.close()


def test_clients_that_were_throttled_together_do_not_come_back_together(monkeypatch):
    pauses = []
    monkeypatch.setattr(module.time, "sleep", pauses.append)
    for _ in range(20):
        module.wait(0.02)
    assert len(set(pauses)) == 20
    assert all(0.01 <= pause <= 0.02 for pause in pauses)


def test_the_writes_of_a_batch_are_under_way_at_the_same_time():
    """Each of them waits until all have begun: one after the other, they would wait for ever."""
    together = threading.Barrier(module.PARALLEL)

    class Meeting:
        def put_item(self, **request):
            together.wait(timeout=10)

    connection = DynamoConnection(DynamoRequests(Meeting(), "t", "t"), "n", lambda: 1, trusts_times=True)
    writes = [CasWrite(CasName(LOCKS, f"k{n}"), "{}", None, f"s{n}", None) for n in range(module.PARALLEL)]
    assert connection.write(writes) == [True] * module.PARALLEL
    connection.close()
