"""`guard`, and the table of the connections that it knows.

A kind of connection is one file of this package with a function `guard(connection, resource, offer)`. Its
driver is imported only when such a connection is there. To add a kind, add the file and a row.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from ..errors import InvalidOption
from ..values import checked_key
from .tokens import Fenced, Offer, checked_offer

if TYPE_CHECKING:
    import sqlite3

KINDS: dict[tuple[str, str], str] = {
    ("sqlite3", "Connection"): "sqlite",
}
"""The package and the name of a connection's class (or of one that it inherits from) -> the file that guards it."""


def guard(connection: sqlite3.Connection, resource: str, lease_or_token: Fenced | int) -> None:
    """Let the open transaction go on only if nobody newer has written to the resource.

    Call it before the first write of the transaction. A token at or above the highest floor seen for the
    resource is accepted, and its floor is remembered in the same transaction (table `holdfast_fences`).
    A lower one raises `StaleToken`, and the guard has written nothing. It never commits. Whether a lease
    has ended by the clock is not asked: the token alone decides.

    Give the lease; a bare token is right for exclusive locks only. With a `sqlite3` connection in its
    default mode the guard opens the transaction (`BEGIN IMMEDIATE`); with `isolation_level=None` or
    `autocommit=True` it needs one that is open, or raises `InvalidOption`.

    >>> import sqlite3
    >>> db = sqlite3.connect(":memory:")
    >>> with db:
    ...     guard(db, "invoice:42", 1_700_000_000_000_002)
    >>> with db:
    ...     guard(db, "invoice:42", 1_700_000_000_000_001)
    Traceback (most recent call last):
        ...
    holdfast.errors.StaleToken: 'invoice:42' was written under the token 1700000000000002; ...
    >>> db.close()
    """
    judge = _judge_for(connection)
    judge(connection, checked_key(resource), checked_offer(lease_or_token))


def _judge_for(connection: object) -> Callable[[object, str, Offer], None]:
    for cls in type(connection).__mro__:
        file = KINDS.get((cls.__module__.partition(".")[0], cls.__name__))
        if file is not None:
            judge: Callable[[object, str, Offer], None] = import_module(f".{file}", __package__).guard
            return judge
    supported = ", ".join(f"{package}.{name}" for package, name in KINDS)
    found = f"{type(connection).__module__}.{type(connection).__qualname__}"
    raise InvalidOption(f"guard does not know connections of the type {found}; it knows: {supported}")
