"""The fence within a transaction of the user's SQL Server database, for mssql-python and SQLAlchemy. Unverified.

No server was available to test it. The row is locked by UPDLOCK and HOLDLOCK until the transaction ends, also if
there is no row yet. A concurrent writer waits until then; after that its token is compared with the committed floor.
"""

from __future__ import annotations

import re
from typing import Any

from ..errors import InvalidOption, StaleToken
from .postgres import FenceStatement, Judge, Rows, run
from .tokens import Offer

CREATE = (
    "IF OBJECT_ID(N'holdfast_fences') IS NULL CREATE TABLE holdfast_fences "
    "(resource VARBINARY(512) NOT NULL PRIMARY KEY, floor BIGINT NOT NULL)"
)
HIGHEST = "SELECT floor FROM holdfast_fences WITH (UPDLOCK, HOLDLOCK) WHERE resource = {resource}"
INSERT = "INSERT INTO holdfast_fences (resource, floor) VALUES ({resource}, {floor})"
UPDATE = "UPDATE holdfast_fences SET floor = {floor} WHERE resource = {resource} AND floor < {floor}"


def judge(resource: str, offer: Offer) -> Judge:
    """Store the floor, or raise `StaleToken` with the highest floor."""
    yield FenceStatement(CREATE, answers=False)
    values: dict[str, Any] = {"resource": resource.encode(), "floor": offer.floor}
    rows = yield FenceStatement(HIGHEST, values={"resource": values["resource"]})
    if rows and int(rows[0][0]) > offer.token:
        raise StaleToken(resource=resource, offered=offer.token, highest=int(rows[0][0]))
    yield FenceStatement(UPDATE if rows else INSERT, values=values, answers=False)


def guard(connection: Any, resource: str, offer: Offer) -> None:
    """Check the token and store the floor within the transaction."""
    if connection.autocommit:
        raise InvalidOption(
            "guard needs an open transaction: this connection commits each statement by itself, so the check and your "
            "writes would be separate and protect nothing. Nothing was checked. Set connection.autocommit = False."
        )
    run(judge(resource, offer), lambda statement: _rows(connection, statement))


def _rows(connection: Any, statement: FenceStatement) -> Rows:
    order: list[str] = []

    def note(found: re.Match[str]) -> str:
        order.append(found[1])
        return "?"

    text = re.sub(r"\{(\w+)\}", note, statement.template)
    cursor = connection.cursor()
    try:
        cursor.execute(text, *(statement.values[name] for name in order))
        found: Rows = cursor.fetchall() if statement.answers else ()
        return found
    finally:
        cursor.close()
