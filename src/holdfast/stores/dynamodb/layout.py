"""The table: one item for each record, all records of one kind and namespace under one partition key.

    pk    <namespace>#<kind>, such as "default#lock"; in the namespace % and # are written %25 and %23
    sk    the key, unchanged; of a key of more than 900 bytes the beginning, "#" and the SHA-256 of the whole key; NUL
          for an empty key, because DynamoDB has no empty ones

DynamoDB sorts strings by their UTF-8 bytes, which is the order of code points. The index `due` has the same partition
key and contains the items that have a `due_at`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from ..cas_adapter import CasName, CasWrite, StampedText

PARTITION, SORT, RECORD, STAMP, DUE, KEY = "pk", "sk", "record", "stamp", "due_at", "key"
"""The names of the attributes. `key` is there only for keys that `sk` does not contain as a whole."""
DUE_INDEX = "due"
SETTINGS_KEY = {PARTITION: {"S": "#settings"}, SORT: {"S": "holdfast"}}
"""The item with what all clients of the table must agree on. The namespace of every other item is not empty."""

LONGEST_KEY = 900
"""Longer keys are shortened: a sort key has at most 1,024 bytes. A shortened key is always longer than this."""
MAX_RECORD = 400 * 1024 - 8 * 1024
"""Bytes of a record: an item may have 400 KiB, of which names and keys take at most 8."""

Item = Mapping[str, Mapping[str, str]]


def partition(namespace: str, kind: str) -> str:
    """The partition key of a kind of record.

    >>> partition("shop #1", "lock")
    'shop %231#lock'
    """
    return f"{namespace.replace('%', '%25').replace('#', '%23')}#{kind}"


def sort_key(key: str) -> str:
    """The sort key of a record."""
    whole = key.encode()
    if len(whole) <= LONGEST_KEY:
        return key or "\0"
    return f"{whole[:LONGEST_KEY].decode(errors='ignore')}#{hashlib.sha256(whole).hexdigest()}"


def item_key(namespace: str, name: CasName) -> dict[str, Any]:
    """The primary key of a record."""
    return {PARTITION: {"S": partition(namespace, name.kind)}, SORT: {"S": sort_key(name.key)}}


def item_of(namespace: str, write: CasWrite, text: str) -> dict[str, Any]:
    """The whole item that a write stores."""
    item = item_key(namespace, write.name) | {RECORD: {"S": text}, STAMP: {"S": write.stamp}}
    if write.due_at is not None:
        item[DUE] = {"N": str(write.due_at)}
    if item[SORT]["S"] != write.name.key:
        item[KEY] = {"S": write.name.key}
    return item


def stored(item: Item) -> StampedText:
    """The record of an item. An item that Holdfast has not written may lack a part: it is shown as it is."""
    return StampedText(item.get(RECORD, {}).get("S", ""), item.get(STAMP, {}).get("S", ""))


def key_of(item: Item) -> str:
    """The key of a record, from its item or from the part of it that an index has."""
    return item[KEY if KEY in item else SORT]["S"]


def definition(table: str) -> dict[str, Any]:
    """The arguments of CreateTable."""
    return {
        "TableName": table,
        "BillingMode": "PAY_PER_REQUEST",
        "AttributeDefinitions": [
            {"AttributeName": PARTITION, "AttributeType": "S"},
            {"AttributeName": SORT, "AttributeType": "S"},
            {"AttributeName": DUE, "AttributeType": "N"},
        ],
        "KeySchema": [
            {"AttributeName": PARTITION, "KeyType": "HASH"},
            {"AttributeName": SORT, "KeyType": "RANGE"},
        ],
        "GlobalSecondaryIndexes": [
            {
                "IndexName": DUE_INDEX,
                "KeySchema": [
                    {"AttributeName": PARTITION, "KeyType": "HASH"},
                    {"AttributeName": DUE, "KeyType": "RANGE"},
                ],
                "Projection": {"ProjectionType": "INCLUDE", "NonKeyAttributes": [KEY]},
            }
        ],
    }
