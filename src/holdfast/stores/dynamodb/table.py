"""The table itself: created on request, and the settings in it that all its clients must share.

Two clients that count expiries by different rules could both hold a lock. So the first client stores `skew` and
`expiry` in the table, by a conditional write, and a client whose URL states other values is refused. A client whose URL
states none takes those of the table.
"""

from __future__ import annotations

import logging
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec

from ...errors import StoreError, StoreUnavailable, StoreUnusable
from ...platform import elapsed, host_clock
from ...validation import MICROSECONDS
from ..contract import Clock
from .address import DynamoAddress, Expiry
from .connection import DynamoRequests, wait
from .errors import CONDITION_FAILED, NO_TABLE, code_of, store_error
from .layout import PARTITION, SETTINGS_KEY, Item, definition

DEFAULT_SKEW = 2 * MICROSECONDS
CREATION_SECONDS = 60.0
LAYOUT = 1
"""The version of the layout; a client refuses a table with a newer one."""
ASK_AGAIN = 0.25
CLOCK_ADVICE = (
    "The clocks of clients may differ from each other by at most the skew of the table; with a larger difference two "
    "clients can hold one lock. Synchronise the clock (NTP, chrony)."
)

log = logging.getLogger("holdfast")


class TableSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What all clients of a table share: the largest difference of their clocks, and how a grant expires."""

    skew: int
    expiry: Expiry


def settle_settings(requests: DynamoRequests, address: DynamoAddress, clock: Clock) -> TableSettings:
    """The settings of the table, which are stored by its first client. Creates the table if the URL says so."""
    answer = _read_settings(requests, address)
    ahead = clock_difference(answer, clock)
    found = settings_of(answer.get("Item") or _store_settings(requests, address), requests.where)
    _check(found, address, requests.where)
    if clock is host_clock and found.expiry == "clock" and differs_much(ahead, found):
        log.warning("%s: the clock of this host %s. %s", requests.where, shown_difference(ahead), CLOCK_ADVICE)
    return found


def settings_of(item: Item, where: str) -> TableSettings:
    """The settings in their item."""
    try:
        layout, skew, expiry = int(item["layout"]["N"]), int(item["skew"]["N"]), item["expiry"]["S"]
    except (KeyError, ValueError):
        layout, skew, expiry = 0, 0, ""
    if layout != LAYOUT or expiry not in ("clock", "observed"):
        newer = "Upgrade Holdfast here" if layout > LAYOUT else "Is it the table of another program?"
        raise StoreUnusable(f"the settings in {where} cannot be used by this version (layout {layout}). {newer}")
    return TableSettings(skew=skew, expiry="clock" if expiry == "clock" else "observed")


def clock_difference(answer: Any, clock: Clock) -> float | None:
    """Seconds by which this host's clock is ahead of the service's, by the Date of a reply; None if it has none.

    The Date has whole seconds, so a difference below one second is not seen.
    """
    date = answer.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date")
    try:
        began = parsedate_to_datetime(date).timestamp()
    except (TypeError, ValueError):
        return None
    now = clock() / MICROSECONDS
    return min(now - began, max(0.0, now - began - 1))


def differs_much(ahead: float | None, settings: TableSettings) -> bool:
    """Whether a clock differs from the service's by more than half of `skew`.

    If another client's clock differs as much in the other direction, the two differ by more than `skew`.
    """
    return ahead is not None and ahead != 0 and abs(ahead) * MICROSECONDS > settings.skew / 2


def shown_difference(ahead: float | None) -> str:
    """The difference for people."""
    if not ahead:
        return "agrees with the service's to the second"
    return f"is about {abs(ahead):.1f} s {'ahead of' if ahead > 0 else 'behind'} the service's"


def _read_settings(requests: DynamoRequests, address: DynamoAddress) -> Any:
    request: dict[str, Any] = {"TableName": address.table, "Key": SETTINGS_KEY, "ConsistentRead": True}
    try:
        return requests.read("get_item", **request)
    except StoreError as error:
        if not address.create or error.__cause__ is None or code_of(error.__cause__) != NO_TABLE:
            raise
    _create(requests, address)
    return requests.read("get_item", **request)


def _failure(error: Exception, where: str) -> StoreError:
    """The error for a request that prepares the table: no command was sent yet."""
    made = store_error(error, where)
    made.ambiguous = False
    return made


def _create(requests: DynamoRequests, address: DynamoAddress) -> None:
    """Create the table, unless another client is faster, and wait until it can be used."""
    try:
        requests.send("create_table", **definition(address.table))
    except Exception as error:
        if code_of(error) != "ResourceInUseException":
            raise _failure(error, requests.where) from error
    give_up = elapsed() + CREATION_SECONDS
    while True:
        status = requests.read("describe_table", TableName=address.table)["Table"]["TableStatus"]
        if status == "ACTIVE":
            return
        if elapsed() > give_up:
            raise StoreUnavailable(
                f"the table {requests.where} was not ready within {CREATION_SECONDS:g} s (its status is {status}). "
                "Nothing was stored. Try again in a minute."
            )
        wait(ASK_AGAIN)


def _store_settings(requests: DynamoRequests, address: DynamoAddress) -> Item:
    expiry = address.expiry or "clock"
    default = 0 if expiry == "observed" else DEFAULT_SKEW
    item = SETTINGS_KEY | {
        "layout": {"N": str(LAYOUT)},
        "skew": {"N": str(default if address.skew is None else address.skew)},
        "expiry": {"S": expiry},
    }
    try:
        requests.send(
            "put_item",
            TableName=address.table,
            Item=item,
            ConditionExpression=f"attribute_not_exists({PARTITION})",
        )
    except Exception as error:
        if code_of(error) != CONDITION_FAILED:
            raise _failure(error, requests.where) from error
        item = requests.read("get_item", TableName=address.table, Key=SETTINGS_KEY, ConsistentRead=True)["Item"]
    return item


def _check(found: TableSettings, address: DynamoAddress, where: str) -> None:
    if address.expiry not in (None, found.expiry):
        raise StoreUnusable(
            f"the table {where} is used with expiry={found.expiry}, and this client asks for expiry={address.expiry}. "
            "Nothing was changed. Clients that count expiries differently would exclude each other from nothing: use "
            "the same option everywhere, or another table."
        )
    if address.skew not in (None, found.skew):
        raise StoreUnusable(
            f"the table {where} is used with skew={found.skew / MICROSECONDS:g} (seconds), and this client asks for "
            f"skew={(address.skew or 0) / MICROSECONDS:g}. Nothing was changed. Use the same value everywhere, or "
            "leave it out of the URL; docs/stores/dynamodb.md says how to change that of a table."
        )
