"""Health checks of a table: its state and keys, its settings, its TTL and protection, and the clock of this host.

The checks change nothing. A setting that cannot be read, because a permission is missing or because the server is not
Amazon's, is a finding too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ...errors import StoreError
from ...validation import MICROSECONDS
from ..contract import Clock, Finding
from .address import DynamoAddress
from .connection import DynamoRequests, requests_to
from .errors import NO_TABLE, code_of
from .layout import DUE_INDEX, SETTINGS_KEY, definition
from .table import CLOCK_ADVICE, TableSettings, clock_difference, differs_much, settings_of, shown_difference

_NO_SETTINGS = TableSettings(skew=0, expiry="clock")


def unready(requests: DynamoRequests, address: DynamoAddress) -> str | None:
    """Why using the table would change something: there is none, or no client has used it yet."""
    try:
        answer = requests.read("get_item", TableName=address.table, Key=SETTINGS_KEY, ConsistentRead=True)
    except StoreError as error:
        if error.__cause__ is None or code_of(error.__cause__) != NO_TABLE:
            raise
        reason = f"there is no table {address.name}, and this command creates none."
        if address.create:
            return f"{reason} The first client that opens the store with ?create=true creates it."
        return (
            f"{reason} Use the URL that the application uses. For a new table add ?create=true to the URL of the "
            "application: its first client then creates the table."
        )
    if "Item" not in answer:
        return f"the table {address.name} is empty: no client has used it yet. It was not changed."
    return None


def diagnose(address: DynamoAddress, clock: Clock) -> tuple[Finding, ...]:
    """All findings about the table, in a fixed order."""
    try:
        requests = requests_to(address)
    except StoreError as error:
        return (_problem("table", error),)
    try:
        return tuple(_findings(requests, address, clock))
    except StoreError as error:
        return (_problem("table", error),)
    finally:
        requests.client.close()


def _problem(check: str, error: StoreError) -> Finding:
    advice = "The other checks need the table: fix this first."
    return Finding(check=check, level="problem", detail=str(error), advice=advice)


def _findings(requests: DynamoRequests, address: DynamoAddress, clock: Clock) -> Iterator[Finding]:
    answer = requests.read("get_item", TableName=address.table, Key=SETTINGS_KEY, ConsistentRead=True)
    ahead = clock_difference(answer, clock)
    description = _asked(requests, "describe_table")
    yield _table(None if description is None else description["Table"])
    settings, finding = _settings(answer, requests.where)
    yield finding
    yield _time_to_live(_asked(requests, "describe_time_to_live"))
    yield _protection(None if description is None else description["Table"], requests.table)
    yield _backups(_asked(requests, "describe_continuous_backups"))
    yield _clock(ahead, settings)


def _table(table: Any) -> Finding:
    if table is None:
        return Finding(
            check="table",
            level="warning",
            detail="the table can be read, but not described",
            advice="Allow dynamodb:DescribeTable, so that its keys and its index can be checked.",
        )
    wanted = definition(table["TableName"])
    indexes = [index for index in table.get("GlobalSecondaryIndexes", ()) if index["IndexName"] == DUE_INDEX]
    if _keys(table) != _keys(wanted) or not indexes or _keys(indexes[0]) != _keys(wanted["GlobalSecondaryIndexes"][0]):
        return Finding(
            check="table",
            level="problem",
            detail="the table has other keys than Holdfast's, or lacks the index 'due'",
            advice="docs/stores/dynamodb.md has the definition of the table; ?create=true creates a new one.",
        )
    states = {table.get("TableStatus"), indexes[0].get("IndexStatus")}
    if states - {"ACTIVE", "UPDATING"}:
        return Finding(
            check="table",
            level="problem",
            detail=f"the table is not active: {', '.join(sorted(map(str, states)))}",
            advice="Wait until it is, or check it in the console.",
        )
    mode = table.get("BillingModeSummary", {}).get("BillingMode", "PROVISIONED")
    if mode == "PAY_PER_REQUEST":
        return Finding(check="table", level="ok", detail="active, on-demand capacity")
    return Finding(
        check="table",
        level="warning",
        detail="the table has provisioned capacity: requests above it are throttled, and leases may be lost",
        advice="Use on-demand capacity (PAY_PER_REQUEST), or provide for the number of leases and waiters.",
    )


def _settings(answer: Any, where: str) -> tuple[TableSettings, Finding]:
    if "Item" not in answer:
        detail = "no client has used the table yet"
        return _NO_SETTINGS, Finding(check="settings", level="ok", detail=detail)
    try:
        found = settings_of(answer["Item"], where)
    except StoreError as error:
        return _NO_SETTINGS, Finding(check="settings", level="problem", detail=str(error), advice="See the message.")
    if found.expiry == "observed":
        return found, Finding(check="settings", level="ok", detail="leases expire by observation; clocks may differ")
    if not found.skew:
        return found, Finding(
            check="settings",
            level="warning",
            detail="skew is 0: the clocks of all clients must be exactly equal",
            advice="Only correct if all clients run on one host.",
        )
    detail = f"the clocks of clients may differ by up to {found.skew / MICROSECONDS:g} s (skew)"
    return found, Finding(check="settings", level="ok", detail=detail)


def _time_to_live(answer: Any) -> Finding:
    if answer is None:
        return Finding(
            check="ttl",
            level="warning",
            detail="whether items of the table expire (TTL) cannot be read",
            advice="Allow dynamodb:DescribeTimeToLive, or make sure that TTL is disabled for this table.",
        )
    found = answer["TimeToLiveDescription"]
    if found.get("TimeToLiveStatus") in ("ENABLED", "ENABLING"):
        return Finding(
            check="ttl",
            level="problem",
            detail=f"DynamoDB deletes items by their attribute {found.get('AttributeName')!r} (TTL is enabled)",
            advice="Disable TTL for this table: with a lock's item its last token is lost, and a lock may be deleted "
            "while it is held.",
        )
    return Finding(check="ttl", level="ok", detail="nothing expires by itself (TTL is disabled)")


def _protection(table: Any, name: str) -> Finding:
    if table is not None and table.get("DeletionProtectionEnabled"):
        return Finding(check="protection", level="ok", detail="the table is protected from deletion")
    return Finding(
        check="protection",
        level="warning",
        detail="the table is not protected from deletion"
        if table is not None
        else "whether the table is protected from deletion cannot be read",
        advice=f"Where it matters: aws dynamodb update-table --table-name {name} --deletion-protection-enabled.",
    )


def _backups(answer: Any) -> Finding:
    if answer is None:
        return Finding(
            check="backups",
            level="warning",
            detail="whether point-in-time recovery is enabled cannot be read",
            advice="Allow dynamodb:DescribeContinuousBackups if you want this check.",
        )
    found = answer["ContinuousBackupsDescription"].get("PointInTimeRecoveryDescription", {})
    on = found.get("PointInTimeRecoveryStatus") == "ENABLED"
    detail = f"point-in-time recovery is {'enabled' if on else 'disabled'}"
    if on:
        return Finding(check="backups", level="ok", detail=detail)
    return Finding(
        check="backups",
        level="warning",
        detail=detail,
        advice="Enable it if the table holds state that cannot be rebuilt; locks alone need no backup.",
    )


def _clock(ahead: float | None, settings: TableSettings) -> Finding:
    if ahead is None:
        return Finding(
            check="clock",
            level="warning",
            detail="the service does not state its time",
            advice="Make sure that the clocks of all clients are synchronised (NTP, chrony).",
        )
    detail = f"the clock of this host {shown_difference(ahead)}"
    if settings.expiry == "clock" and differs_much(ahead, settings):
        return Finding(check="clock", level="warning", detail=detail, advice=CLOCK_ADVICE)
    return Finding(check="clock", level="ok", detail=detail)


def _keys(described: Any) -> set[tuple[str, str]]:
    return {(key["AttributeName"], key["KeyType"]) for key in described["KeySchema"]}


def _asked(requests: DynamoRequests, operation: str) -> Any:
    """The answer; None where the service refuses it."""
    try:
        return requests.read(operation, TableName=requests.table)
    except StoreError:
        return None
