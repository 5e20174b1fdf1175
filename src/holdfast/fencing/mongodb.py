"""The fence on MongoDB: a document is updated in one operation that also checks the token and stores its floor.

The fence is in the document itself, in the field `holdfast_fence`: the highest floor that has written there. A document
without the field accepts every token. The check is part of the update's filter, so no other writer can come in between,
and no transaction is needed. Errors of the connection are raised as pymongo raises them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import InvalidOption, StaleToken, StoreContended, StoreUnusable
from ..validation import checked_key
from .tokens import Fenced, Offer, checked_offer

if TYPE_CHECKING:
    from pymongo.asynchronous.collection import AsyncCollection
    from pymongo.collection import Collection
    from pymongo.results import UpdateResult

FIELD = "holdfast_fence"
"""The field of a document that holds the highest floor."""
TRIES = 20
"""How often an update is tried if its document changes between the update and the search for the reason."""

Update = Mapping[str, Any] | Sequence[Mapping[str, Any]]


def fenced_update(
    collection: Collection[Any],
    filter: Mapping[str, Any],
    update: Update,
    lease_or_token: Fenced | int,
    *,
    resource: str | None = None,
) -> UpdateResult:
    """Update one document of MongoDB, unless a newer holder has updated it.

    Filter and update are those of pymongo's `update_one`: operators such as `$set`, or a pipeline. A token at or above
    the highest floor in the document is accepted, and its floor is stored with the update; a lower one raises
    `StaleToken`, and nothing was written. An empty update stores the floor alone: what is read after it is read behind
    the fence. `resource` is the name in the error. Where no document matches the filter, the result has
    `matched_count` 0; no document is inserted.
    """
    request = _request(collection, filter, update, lease_or_token, resource, wanted="Collection")
    for _ in range(TRIES):
        result = collection.update_one(request.filter, request.update)
        if result.matched_count:
            return result
        found = collection.find_one(filter, {FIELD: 1})
        if found is None:
            return result
        request.check(found)
    raise request.contended()


async def fenced_update_async(
    collection: AsyncCollection[Any],
    filter: Mapping[str, Any],
    update: Update,
    lease_or_token: Fenced | int,
    *,
    resource: str | None = None,
) -> UpdateResult:
    """As `fenced_update`, for collections of `pymongo.AsyncMongoClient`."""
    request = _request(collection, filter, update, lease_or_token, resource, wanted="AsyncCollection")
    for _ in range(TRIES):
        result = await collection.update_one(request.filter, request.update)
        if result.matched_count:
            return result
        found = await collection.find_one(filter, {FIELD: 1})
        if found is None:
            return result
        request.check(found)
    raise request.contended()


class _FencedUpdate(NamedTuple):
    filter: dict[str, Any]
    update: Any
    offer: Offer
    resource: str

    def check(self, found: Mapping[str, Any]) -> None:
        """Raise for the fence of a document that matches the user's filter, if it refuses the token."""
        fence = found.get(FIELD)
        if fence is None:
            return
        if isinstance(fence, bool) or not isinstance(fence, int):
            raise StoreUnusable(
                f"the fence of {self.resource!r} cannot be read: {fence!r} in the field {FIELD} is not a floor. "
                "Nothing was written, because older tokens could not be detected any more. Stop all writers, make sure "
                "that no old one is left, remove the field, and start again."
            )
        if fence > self.offer.token:
            raise StaleToken(resource=self.resource, offered=self.offer.token, highest=fence)

    def contended(self) -> StoreContended:
        """The error for a document that matches the filter whenever it is read, and never when it is updated."""
        return StoreContended(
            f"{self.resource!r} was not updated: its document changed {TRIES} times between the update and the search "
            "for the reason. Nothing was written. Use a filter that names the document by its _id."
        )


def _request(
    collection: object,
    filter: Mapping[str, Any],
    update: Update,
    lease_or_token: Fenced | int,
    resource: str | None,
    *,
    wanted: str,
) -> _FencedUpdate:
    """Check everything before a command is sent to the server."""
    _check_collection(collection, wanted)
    if not isinstance(filter, Mapping):
        raise InvalidOption(f"the filter must be a mapping such as {{'_id': 7}}, not {filter!r}")
    offer = checked_offer(lease_or_token)
    name = repr(dict(filter)) if resource is None else checked_key(resource, what="resource")
    floor = {"$lte": offer.token, "$type": ["int", "long"], "$not": {"$type": "array"}}
    admits = {"$or": [{FIELD: None}, {FIELD: floor}]}  # None: or there is no such field
    return _FencedUpdate({"$and": [dict(filter), admits]}, _with_floor(update, offer.floor), offer, name)


def _with_floor(update: Update, floor: int) -> Any:
    """The update that also raises the fence."""
    if _names_the_fence(update):
        raise InvalidOption(f"the field {FIELD} belongs to the fence, and the update must not change it")
    if isinstance(update, Mapping):
        if not all(isinstance(name, str) and name.startswith("$") for name in update):
            raise InvalidOption("the update must consist of operators such as $set: a replacement would lose the fence")
        return {**update, "$max": {**update.get("$max", {}), FIELD: floor}}
    if isinstance(update, str | bytes) or not isinstance(update, Sequence):
        raise InvalidOption(f"the update must be a mapping of operators or a pipeline, not {update!r}")
    return [*update, {"$set": {FIELD: {"$max": [f"${FIELD}", floor]}}}]


def _names_the_fence(part: object) -> bool:
    if isinstance(part, Mapping):
        return any(str(name).partition(".")[0] == FIELD or _names_the_fence(item) for name, item in part.items())
    return isinstance(part, list | tuple) and any(map(_names_the_fence, part))


def _check_collection(collection: object, wanted: str) -> None:
    kinds = {cls.__name__ for cls in type(collection).__mro__ if cls.__module__.partition(".")[0] == "pymongo"}
    if wanted in kinds:
        return
    found = f"{type(collection).__module__}.{type(collection).__qualname__}"
    if "AsyncCollection" in kinds:
        raise InvalidOption(f"{found} is async, and nothing was written: use `await fenced_update_async(...)`")
    if "Collection" in kinds:
        raise InvalidOption(f"{found} is sync, and nothing was written: use `fenced_update(...)`, without await")
    raise InvalidOption(f"{found} is not a collection of pymongo")
