"""One connection to the table: strongly consistent reads, conditional writes, each its own HTTP request.

Several requests of a batch are sent at the same time, from a few threads that belong to the connection. A request that
was throttled is repeated after a pause, but not for long: only the caller knows its deadline, and sends the command
again. A write whose reply was lost is never repeated here, because the stamp in the table shows whether it was applied.
The time is that of this host, read after the reply.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from ...errors import StoreError, StoreUnusable
from ...platform import elapsed
from ...rules.record_type import MAX_MOMENT
from ..cas_adapter import LOCKS, CasName, CasRead, CasWrite, StampedText
from ..common import end_of_prefix
from ..contract import Clock
from .address import DynamoAddress
from .errors import CONDITION_FAILED, THROTTLED, busy, code_of, connection_was_closed, present_item, store_error
from .layout import DUE, DUE_INDEX, PARTITION, SORT, STAMP, Item, item_key, item_of, key_of, partition, stored

PARALLEL = 8
"""Requests of one connection that are under way at the same time."""
AS_MANY_AS_THERE_ARE = 100_000
KEYS_PER_READ = 100
"""Keys of one BatchGetItem, by DynamoDB's limit."""
THROTTLED_SECONDS = 0.3
"""How long the requests of a batch are repeated that are throttled: enough for a short burst of other clients."""
FIRST_PAUSE, LONGEST_PAUSE = 0.02, 0.1
READ_TRIES = 2
"""How often a read is sent if the connection is closed before the reply. Servers close idle connections."""

Given = TypeVar("Given")
Answer = TypeVar("Answer")


class DynamoRequests:
    """Requests to one table, with errors translated and throttling waited for. Used by any thread."""

    def __init__(self, client: Any, table: str, where: str) -> None:
        self.client, self.table, self.where = client, table, where

    def read(self, operation: str, give_up: float | None = None, **request: Any) -> Any:
        """Send a request that changes nothing. Raises `StoreError`, which is never ambiguous."""
        for left in reversed(range(READ_TRIES)):
            try:
                return self.send(operation, give_up, **request)
            except Exception as error:
                if left and connection_was_closed(error):
                    continue
                made = store_error(error, self.where)
                made.ambiguous = False  # nothing was to be changed
                raise made from error
        raise AssertionError

    def send(self, operation: str, give_up: float | None = None, **request: Any) -> Any:
        """Send a request, again while it is throttled, until `give_up`. Raises what botocore raises."""
        if give_up is None:
            give_up = patience()
        pause = FIRST_PAUSE
        while True:
            try:
                return getattr(self.client, operation)(**request)
            except Exception as error:
                if code_of(error) not in THROTTLED or elapsed() + pause > give_up:
                    raise
            wait(pause)
            pause = min(2 * pause, LONGEST_PAUSE)

    def read_page(self, *, limit: int, **query: Any) -> list[Item]:
        """The first items of a query; a page of DynamoDB may be shorter than what was asked for."""
        items: list[Item] = []
        start: dict[str, Any] = {}
        while len(items) < limit:
            page = self.read("query", TableName=self.table, Limit=limit - len(items), **query, **start)
            items += page["Items"]
            if "LastEvaluatedKey" not in page:
                break
            start = {"ExclusiveStartKey": page["LastEvaluatedKey"]}
        return items


def requests_to(address: DynamoAddress) -> DynamoRequests:
    """A new client for this table. botocore looks for credentials here, which may fail."""
    try:
        return DynamoRequests(address.client(), address.table, address.name)
    except StoreError:
        raise
    except Exception as error:
        made = store_error(error, address.name)
        made.ambiguous = False
        raise made from error


class DynamoConnection:
    """The adapter of one namespace, for one thread at a time."""

    def __init__(self, requests: DynamoRequests, namespace: str, clock: Clock, *, trusts_times: bool) -> None:
        """`trusts_times`: what others have stored as a time can be compared with this clock."""
        self._requests, self._namespace, self._clock = requests, namespace, clock
        self._trusts_times = trusts_times
        self._pid = os.getpid()
        self._pool: ThreadPoolExecutor | None = None
        self._closed = False

    def read(self, names: Sequence[CasName]) -> CasRead:
        """Read the items, and then the clock."""
        wanted = list(dict.fromkeys(names))
        if len(wanted) == 1:
            found = self._read_one(wanted[0])
        else:
            parts = [wanted[start : start + KEYS_PER_READ] for start in range(0, len(wanted), KEYS_PER_READ)]
            texts = self._each(partial(self._read_some, give_up=patience()), parts)
            found = {name: text for part in texts for name, text in part.items()}
        return CasRead(found, self._clock())

    def write(self, writes: Sequence[CasWrite]) -> Sequence[bool | None]:
        """Write the items. One whose request failed without any effect counts as not applied, unless all did."""
        results = self._each(partial(self._write, give_up=patience()), writes)
        errors = [result for result in results if isinstance(result, StoreError)]
        if errors and len(errors) == len(results):
            raise errors[0]
        return [False if isinstance(result, StoreError) else result for result in results]

    def keys(self, kind: str, *, prefix: str, after: str, limit: int) -> list[str]:
        """Query the table by sort key. A condition has one range, so the first and the last key may have to be cut."""
        low, end = max(prefix, after), end_of_prefix(prefix)
        if end is not None and low >= end:
            return []
        values = {":pk": {"S": partition(self._namespace, kind)}}
        condition = f"{PARTITION} = :pk"
        if low and end is not None:
            condition += f" AND {SORT} BETWEEN :low AND :end"
            values |= {":low": {"S": low}, ":end": {"S": end}}
        elif low:
            condition += f" AND {SORT} >= :low"
            values |= {":low": {"S": low}}
        items = self._usable().read_page(
            limit=limit + 2,
            KeyConditionExpression=condition,
            ExpressionAttributeValues=values,
            ProjectionExpression=f"{SORT}, #key",
            ExpressionAttributeNames={"#key": "key"},
            ConsistentRead=True,
        )
        found = (key_of(item) for item in items)
        return [key for key in found if key.startswith(prefix) and key > after][:limit]

    def due(self, kind: str, *, until: int, limit: int) -> list[tuple[int, str]]:
        """Query the index, which may be a moment behind the table.

        Items with the same time have no order there. So if the page is full, all those with its last time are read.
        """
        if kind == LOCKS and not self._trusts_times:
            until = MAX_MOMENT
        found = self._due(kind, "<=", until, limit)
        if len(found) == limit:
            found |= self._due(kind, "=", max(found)[0], AS_MANY_AS_THERE_ARE)
        return sorted(found)[:limit]

    def _due(self, kind: str, comparison: str, moment: int, limit: int) -> set[tuple[int, str]]:
        items = self._usable().read_page(
            limit=limit,
            IndexName=DUE_INDEX,
            KeyConditionExpression=f"{PARTITION} = :pk AND {DUE} {comparison} :moment",
            ExpressionAttributeValues={":pk": {"S": partition(self._namespace, kind)}, ":moment": {"N": str(moment)}},
        )
        return {(int(item[DUE]["N"]), key_of(item)) for item in items}

    def close(self) -> None:
        """End the threads. One that waits for a reply ends when it has it; a forked child has none of them."""
        self._closed = True
        pool, self._pool = self._pool, None
        if pool is not None and os.getpid() == self._pid:
            pool.shutdown(wait=False, cancel_futures=True)

    # -- single requests -------------------------------------------------------------------------------------

    def _read_one(self, name: CasName) -> dict[CasName, StampedText]:
        requests = self._usable()
        answer = requests.read(
            "get_item", TableName=requests.table, Key=item_key(self._namespace, name), ConsistentRead=True
        )
        return {name: stored(answer["Item"])} if "Item" in answer else {}

    def _read_some(self, names: Sequence[CasName], *, give_up: float) -> dict[CasName, StampedText]:
        """One BatchGetItem, and further ones for the keys that the service left out because it was busy."""
        requests = self._usable()
        keys = {name: item_key(self._namespace, name) for name in names}
        by_item = {_identity(key): name for name, key in keys.items()}
        asked: Any = {requests.table: {"Keys": list(keys.values()), "ConsistentRead": True}}
        found: dict[CasName, StampedText] = {}
        pause = FIRST_PAUSE
        while asked:
            answer = requests.read("batch_get_item", give_up, RequestItems=asked)
            items = answer["Responses"].get(requests.table, ())
            found |= {by_item[_identity(item)]: stored(item) for item in items}
            asked = answer.get("UnprocessedKeys")
            if asked and not items:
                if elapsed() + pause > give_up:
                    raise busy(requests.where, "UnprocessedKeys")
                wait(pause)
                pause = min(2 * pause, LONGEST_PAUSE)
        return found

    def _write(self, write: CasWrite, *, give_up: float) -> bool | StoreError | None:
        requests = self._usable()
        condition: dict[str, Any] = {"ConditionExpression": f"attribute_not_exists({PARTITION})"}
        if write.expected is not None:
            condition = {
                "ConditionExpression": f"{STAMP} = :expected",
                "ExpressionAttributeValues": {":expected": {"S": write.expected}},
            }
        request = {"TableName": requests.table, "ReturnValuesOnConditionCheckFailure": "ALL_OLD", **condition}
        try:
            if write.text is None:
                requests.send("delete_item", give_up, Key=item_key(self._namespace, write.name), **request)
            else:
                requests.send("put_item", give_up, Item=item_of(self._namespace, write, write.text), **request)
        except Exception as error:
            if code_of(error) == CONDITION_FAILED:
                item = present_item(error)
                return bool(item) and stored(item).stamp == write.stamp  # an earlier reply to this write was lost
            made = store_error(error, requests.where)
            made.__cause__ = error
            return None if made.ambiguous else made
        return True

    # -- several requests ------------------------------------------------------------------------------------

    def _each(self, call: Callable[[Given], Answer], given: Sequence[Given]) -> list[Answer]:
        """The results for all of these, at the same time if there are several."""
        self._usable()
        if len(given) <= 1:
            return [call(one) for one in given]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(PARALLEL, thread_name_prefix="holdfast-dynamodb")
        return list(self._pool.map(call, given))

    def _usable(self) -> DynamoRequests:
        if self._closed:
            raise StoreUnusable("this connection is closed. Open a new one.")
        if os.getpid() != self._pid:
            raise StoreUnusable(
                "this connection belongs to the parent process of a fork. Open a new client in this process."
            )
        return self._requests


def patience() -> float:
    """Until when requests that begin now are repeated if they are throttled."""
    return elapsed() + THROTTLED_SECONDS


def wait(pause: float) -> None:
    """Pause for about so many seconds; clients that were refused together do not come back together."""
    time.sleep(random.uniform(pause / 2, pause))


def _identity(item: Item) -> tuple[str, str]:
    return item[PARTITION]["S"], item[SORT]["S"]
