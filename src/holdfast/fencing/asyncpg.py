"""The fence for connections of asyncpg, on their own or from its pool."""

from __future__ import annotations

from typing import Any, Protocol

from asyncpg import Record  # type: ignore[import-untyped]  # it carries no types

from ..errors import InvalidOption
from .postgres import FenceStatement, Rows, judge, run_async
from .tokens import Offer


class AsyncpgConnection(Protocol):
    """What the guard needs of `asyncpg.Connection` and of what its pool hands out; asyncpg carries no types."""

    def is_in_transaction(self) -> bool:
        """Whether a transaction is open."""

    async def fetch(self, query: str, /, *args: Any, record_class: Any = None) -> Any:
        """Run a statement and return its rows."""


async def guard_async(connection: AsyncpgConnection, resource: str, offer: Offer) -> None:
    """Check and remember within the connection's transaction."""
    if not connection.is_in_transaction():
        raise InvalidOption(
            "guard_async needs an open transaction: outside of one, asyncpg commits each statement by itself, so the "
            "check and your writes would be apart and protect nothing. Call it and write within "
            "`async with connection.transaction():`."
        )

    async def rows(ask: FenceStatement) -> Rows:
        order = list(ask.values)
        text = ask.text(lambda name: f"${order.index(name) + 1}")
        found: Rows = await connection.fetch(text, *ask.values.values(), record_class=Record)  # not the user's own
        return found

    await run_async(judge(resource, offer), rows)
