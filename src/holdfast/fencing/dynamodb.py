"""The fence on DynamoDB: an item of the user's own table is written, or read, with the check of a token.

The highest floor is an attribute of the item itself, `holdfast_fence`, and the check is the condition of the write: one
request, so no other writer can get in between. `fenced_put` and `fenced_get` take a `Table` of boto3; for updates,
transactions and the low-level client there is `fence_condition`, whose parts go into the user's own request. Errors of
the service are raised as boto3 raises them.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, NamedTuple

from ..errors import InvalidOption, StaleToken, StoreUnusable
from ..validation import checked_key
from .tokens import Fenced, Offer, checked_offer

ATTRIBUTE = "holdfast_fence"
_NAME, _FLOOR = "#holdfast_fence", ":holdfast_floor"
_FAILED = "ConditionalCheckFailedException"


class FenceCondition(NamedTuple):
    """The parts of a request that refuse a stale token. They go into its expressions, names and values."""

    condition: str
    """For the ConditionExpression; in parentheses, so that it can be combined by AND."""
    update: str
    """For the SET clause of an UpdateExpression: it stores the floor."""
    names: dict[str, str]
    """For the ExpressionAttributeNames."""
    values: dict[str, Any]
    """For the ExpressionAttributeValues of a `Table`."""
    typed_values: dict[str, Any]
    """For the ExpressionAttributeValues of the low-level client."""


def fence_condition(lease_or_token: Fenced | int) -> FenceCondition:
    """The parts of a request of your own that DynamoDB refuses if a newer holder has written the item.

    Put all of them into the request, `update` too: without it the fence does not rise. A refused request raises boto3's
    ConditionalCheckFailedException. A holder of a semaphore is also refused if another holder has stored a higher floor
    in the item. Call `lease.renew()` to get the current floor, then build the condition again.

    >>> fence = fence_condition(1_700_000_000_000_000)
    >>> fence.condition
    '(attribute_not_exists(#holdfast_fence) OR #holdfast_fence <= :holdfast_floor)'
    >>> f"SET stock = stock - :one, {fence.update}"
    'SET stock = stock - :one, #holdfast_fence = :holdfast_floor'
    """
    return _fence(checked_offer(lease_or_token).floor)


def fenced_put(
    table: Any, item: Mapping[str, Any], lease_or_token: Fenced | int, *, resource: str | None = None
) -> None:
    """Put an item into a table, unless a newer holder has written that item.

    `table` is a `Table` of `boto3.resource("dynamodb")`. A token at or above the highest floor in the stored item is
    accepted, and its floor is stored with the item (attribute `holdfast_fence`). A lower one raises `StaleToken`, and
    nothing was written. Pass the lease; a bare token is correct for exclusive locks only. `resource` is the name in the
    error; without it, the error names the table, and the key if `table` has loaded its description.
    """
    put = _operation(table, "put_item")
    offer = checked_offer(lease_or_token)
    name = _named(table, _key_of(table, item)) if resource is None else checked_key(resource, what="resource")

    def write(fence: FenceCondition) -> Any:
        return put(Item={**item, ATTRIBUTE: fence.values[_FLOOR]}, **_conditional(fence))

    _raised(table, name, offer, write)


def fenced_get(
    table: Any, key: Mapping[str, Any], lease_or_token: Fenced | int, *, resource: str | None = None
) -> dict[str, Any] | None:
    """Read an item behind the fence: from now on no older holder can write it.

    Values that are read in order to be changed must be read like this. Returns the item without its fence, or None if
    there is none: then an item with the key and the fence is stored, so that the fence holds for it, too. An item that
    consists of its key alone counts as none. `resource` is the name in the error; without it, the error names the table
    and the key.
    """
    update = _operation(table, "update_item")
    offer = checked_offer(lease_or_token)
    name = _named(table, key) if resource is None else checked_key(resource, what="resource")

    def read(fence: FenceCondition) -> Any:
        values = {"ExpressionAttributeValues": fence.values, "ExpressionAttributeNames": fence.names}
        request = _conditional(fence) | values | {"UpdateExpression": f"SET {fence.update}", "ReturnValues": "ALL_OLD"}
        return update(Key=dict(key), **request)

    found = dict(_raised(table, name, offer, read).get("Attributes") or {})
    found.pop(ATTRIBUTE, None)
    return found if set(found) > set(key) else None


def _fence(floor: int) -> FenceCondition:
    return FenceCondition(
        condition=f"(attribute_not_exists({_NAME}) OR {_NAME} <= {_FLOOR})",
        update=f"{_NAME} = {_FLOOR}",
        names={_NAME: ATTRIBUTE},
        values={_FLOOR: floor},
        typed_values={_FLOOR: {"N": str(floor)}},
    )


def _conditional(fence: FenceCondition) -> dict[str, Any]:
    return {
        "ConditionExpression": fence.condition,
        "ExpressionAttributeNames": fence.names,
        "ExpressionAttributeValues": fence.values,
        "ReturnValuesOnConditionCheckFailure": "ALL_OLD",
    }


def _key_of(table: Any, item: Mapping[str, Any]) -> dict[str, Any]:
    """The key of an item, if boto3 has loaded the table's description: no request is sent for an error message."""
    data = getattr(getattr(table, "meta", None), "data", None) or {}
    return {part["AttributeName"]: item.get(part["AttributeName"]) for part in data.get("KeySchema", ())}


def _named(table: Any, key: Mapping[str, Any]) -> str:
    parts = ", ".join(f"{name}={value}" for name, value in key.items())
    return f"{table.name} {parts}".rstrip()


def _raised(table: Any, name: str, offer: Offer, send: Callable[[FenceCondition], Any]) -> Any:
    """Send the request with the offer's floor.

    If the item has a higher floor that is not above the token, send the request again with that floor.
    """
    floor = offer.floor
    while True:
        try:
            return send(_fence(floor))
        except Exception as error:
            highest = _stored_floor(error, table)
            if highest is None or highest <= floor:
                raise  # it was not the fence that refused
        if highest > offer.token:
            raise StaleToken(resource=name, offered=offer.token, highest=highest)
        floor = highest  # stored by another holder of the semaphore: it must not become lower


def _stored_floor(error: Exception, table: Any) -> int | None:
    """The floor that refused a request; None for all other errors."""
    response = getattr(error, "response", None)
    if not isinstance(response, dict) or response.get("Error", {}).get("Code") != _FAILED:
        return None
    found = (response.get("Item") or {}).get(ATTRIBUTE)
    if found is None:
        return None
    value = found.get("N") if isinstance(found, dict) else found
    if not isinstance(value, str | Decimal | int) or int(value) < 1:
        raise StoreUnusable(
            f"the fence of an item in {table.name!r} cannot be read: its attribute {ATTRIBUTE!r} is {found!r}, not a "
            "floor. Nothing was written, because older tokens could not be detected any more. Stop all writers, make "
            "sure that no old one is left, remove that attribute, and start again."
        ) from error
    return int(value)


def _operation(table: Any, name: str) -> Callable[..., Any]:
    operation: Callable[..., Any] | None = getattr(table, name, None)
    if operation is None or not isinstance(getattr(table, "name", None), str):
        raise InvalidOption(
            f'a table is boto3.resource("dynamodb").Table(name), not {type(table).__module__}.{type(table).__name__}. '
            "For the low-level client, use fence_condition"
        )
    if inspect.iscoroutinefunction(operation):
        raise InvalidOption("the table is async, and nothing was written: await your own request with fence_condition")
    return operation
