"""A connection to a collection of MongoDB, for the compare-and-swap core.

A batch is one `aggregate` that reads its documents with the server's time, and one `update` that replaces documents
on the condition of their stamps. The condition is in the filter, and an upsert turns a condition that is not met into a
duplicate key: so the server reports each lost race by itself, not only how many there were.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pymongo.errors
from pymongo import DeleteOne, ReplaceOne

from ...errors import StoreError
from ...platform import elapsed
from ..cas_adapter import RECORDS, CasName, CasRead, CasWrite, StampedText
from ..common import end_of_prefix
from .client import SharedClient
from .errors import LOST_RACES, refused_write
from .layout import CLOCK_ID, Document, MongoLayout

STEP = 1_000
"""Microseconds in a tick of the server's clock."""
MICROSECONDS = 1_000_000

Results = dict[int, bool | None]


class MongoAdapter:
    """One namespace of a collection. The driver's pool opens a connection for each thread that sends a request."""

    def __init__(self, shared: SharedClient, layout: MongoLayout) -> None:
        self._shared, self._layout = shared, layout

    # -- reading ---------------------------------------------------------------------------------------------

    def read(self, names: Sequence[CasName]) -> CasRead:
        """Read the documents with the time, in one `aggregate`.

        The server reads `$$NOW` before the documents, so a document that was written in between can be newer than
        `$$NOW`. The returned time is therefore not earlier than the `at` of any document that was read. It exceeds
        `$$NOW` by at most the duration of the request and 1 ms: after the server's clock was set back, old documents
        must not determine the time.
        """
        ids = {self._layout.id(name): name for name in names}
        while True:
            sent = elapsed()
            with self._shared.request(writing=False) as collection:
                rows = list(
                    collection.aggregate(
                        [
                            {"$match": {"_id": {"$in": [CLOCK_ID, *ids]}}},
                            {"$project": {"record": 1, "stamp": 1, "at": 1, "now": {"$toLong": "$$NOW"}}},
                        ],
                        batchSize=len(ids) + 2,
                    )
                )
            took = elapsed() - sent
            if rows:
                break
            add_clock(self._shared)
        found = {ids[row["_id"]]: _stamped(row) for row in rows if row["_id"] in ids}
        begun = int(rows[0]["now"]) * STEP
        latest = max((row.get("at") or 0 for row in rows if isinstance(row.get("at"), int)), default=0)
        return CasRead(found, max(begun, min(latest, begun + STEP + int(took * MICROSECONDS))))

    def keys(self, kind: str, *, prefix: str, after: str, limit: int) -> list[str]:
        """The first keys, by the index of `_id`."""
        head = self._layout.head(kind)
        first = {"$gte": head + prefix} if after < prefix or not after else {"$gt": head + after}
        wanted = {"_id": {**first, "$lt": end_of_prefix(head + prefix)}}
        with self._shared.request(writing=False) as collection:
            rows = collection.find(wanted, {"_id": 1}).sort("_id", 1).limit(limit).batch_size(limit)
            return [row["_id"][len(head) :] for row in rows]

    def due(self, kind: str, *, until: int, limit: int) -> list[tuple[int, str]]:
        """The first records that are due, by the index of `due_of` and `due_at`."""
        head = self._layout.head(kind)
        wanted = {"due_of": head, "due_at": {"$lte": until}}
        with self._shared.request(writing=False) as collection:
            rows = collection.find(wanted, {"due_at": 1}).sort([("due_at", 1), ("_id", 1)]).limit(limit)
            return [(int(row["due_at"]), row["_id"][len(head) :]) for row in rows]

    # -- writing ---------------------------------------------------------------------------------------------

    def write(self, writes: Sequence[CasWrite]) -> Sequence[bool | None]:
        """Replace documents in one request, and remove others in a second one."""
        kept = {place: write for place, write in enumerate(writes) if write.text is not None}
        gone = {place: write for place, write in enumerate(writes) if write.text is None}
        results: Results = self._replaced(kept) if kept else {}
        if gone:
            try:
                results |= self._removed(gone)
            except StoreError:
                if not kept:
                    raise
                results |= dict.fromkeys(gone)
        return [results[place] for place in range(len(writes))]

    def _replaced(self, writes: dict[int, CasWrite]) -> Results:
        """What is known about each replacement.

        Records of other types than locks and slots may be removed at any time, and an upsert would make such a
        record again. For these the server reports only how many were replaced.
        """
        places = list(writes)
        upserts = [write.expected is None or not write.name.kind.startswith(RECORDS) for write in writes.values()]
        requests = [
            ReplaceOne(self._layout.condition(write), self._layout.document(write), upsert=upsert)
            for write, upsert in zip(writes.values(), upserts, strict=True)
        ]
        reply = self._bulk(requests)
        refused = {error["index"] for error in reply["writeErrors"]}
        made = {one["index"] for one in reply["upserted"]}
        if reply["writeConcernErrors"]:  # written, but a majority has not confirmed it
            return {place: False if n in refused else None for n, place in enumerate(places)}
        counted = [n for n, upsert in enumerate(upserts) if not upsert]
        sure = sum(upsert and n not in refused and n not in made for n, upsert in enumerate(upserts))
        of_counted = _each(reply["nMatched"] - sure, len(counted))
        return {place: of_counted if n in counted else n not in refused for n, place in enumerate(places)}

    def _removed(self, writes: dict[int, CasWrite]) -> Results:
        reply = self._bulk([DeleteOne(self._layout.condition(write)) for write in writes.values()])
        if reply["writeConcernErrors"]:
            return dict.fromkeys(writes)
        return dict.fromkeys(writes, _each(reply["nRemoved"], len(writes)))

    def _bulk(self, requests: Sequence[Any]) -> dict[str, Any]:
        """The reply to a request; a lost race is not an error."""
        with self._shared.request(writing=True) as collection:
            try:
                reply: dict[str, Any] = collection.bulk_write(requests, ordered=False).bulk_api_result
            except pymongo.errors.BulkWriteError as error:
                reply = dict(error.details)
                failures = [one for one in reply["writeErrors"] if one.get("code") not in LOST_RACES]
                if failures:
                    written = len(failures) < len(requests)
                    raise refused_write(failures, self._shared.address.name, others_written=written) from error
        return reply

    def close(self) -> None:
        """Nothing to close: the connections belong to the store's client."""


def add_clock(shared: SharedClient) -> None:
    """Add the document that the time is read with, if it is missing."""
    with shared.request(writing=False) as collection, suppress(pymongo.errors.DuplicateKeyError):
        collection.insert_one({"_id": CLOCK_ID})


def _each(count: int, total: int) -> bool | None:
    """What is known about each of `total` writes if `count` of them were applied."""
    if count == total:
        return True
    return False if count == 0 else None


def _stamped(row: Document) -> StampedText:
    """A record as it is stored. What a person has put there instead of a text cannot be read."""
    text, stamp = row.get("record"), row.get("stamp")
    return StampedText(text if isinstance(text, str) else "", stamp if isinstance(stamp, str) else "")
