"""The fence for connections of asyncpg, with or without its pool."""

from __future__ import annotations

from typing import Any, Protocol

from asyncpg import Record  # type: ignore[import-untyped]  # it has no types

from ..errors import InvalidOption
from .postgres import FenceStatement, Rows, judge, run_async
from .tokens import Offer


class AsyncpgConnection(Protocol):
    """The methods of `asyncpg.Connection` and of its pool's connections that the guard needs; asyncpg has no types."""

    def is_in_transaction(self) -> bool:
        """Whether a transaction is open."""

    async def fetch(self, query: str, /, *args: Any, record_class: Any = None) -> Any:
        """Run a statement and return its rows."""


async def guard_async(connection: AsyncpgConnection, resource: str, offer: Offer) -> None:
    """Check the token and store the floor within the connection's transaction."""
    if not connection.is_in_transaction():
        raise InvalidOption(
            "guard_async needs an open transaction: outside of one, asyncpg commits each statement by itself, so the "
            "check and your writes would be separate and protect nothing. Nothing was checked. Call it and write "
            "within `async with connection.transaction():`."
        )

    async def rows(statement: FenceStatement) -> Rows:
        order = list(statement.values)
        text = statement.text(lambda name: f"${order.index(name) + 1}")
        found: Rows = await connection.fetch(text, *statement.values.values(), record_class=Record)  # not the user's
        return found

    await run_async(judge(resource, offer), rows)
