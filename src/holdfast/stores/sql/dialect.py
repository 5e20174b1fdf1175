"""What differs between relational databases, in one object each: literals, the clock, locks, transactions, errors.

All other code of this package is the same for every database. Statements are text with the values written into them:
a batch is then one text, sent in one round trip, whose size is not bounded by the number of parameters that a server
accepts. `literal` never depends on a setting of the session: text is written so that no character in it is special.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal, Protocol

Row = tuple[Any, ...]
Rows = Sequence[Row]
Cause = Literal["conflict", "busy", "lost", "refused", "missing", "bad value", "unknown"]
"""What an error of a driver means.

conflict: another client was faster, or the transaction was the victim of a deadlock; nothing was done
busy: a row stayed locked for too long; nothing was done
lost: the connection is unusable; the transaction may have been committed
refused: the server or the user's privileges do not permit it
missing: a table does not exist
bad value: a value cannot be stored
"""

RANDOM_BITS = 62
"""The size of a stamp: unique for each write, also among all writes of a record's lifetime."""


class DbDriver(Protocol):
    """A connection of the database's driver."""

    max_bytes: int | None
    """The largest request that the server accepts; None: any."""

    def send(self, text: str) -> list[Rows]:
        """Send statements in one round trip, and return the rows of each statement that has rows."""

    def close(self) -> None:
        """Close the connection. Safe to call twice."""


class Dialect(Protocol):
    """One database product."""

    name: str
    """The name of the product, for messages."""
    key_bytes: int
    """The largest size of a key in an index next to a namespace."""
    id_bytes: int
    """The largest size of the id of a run."""
    rows_at_once: int
    """The largest number of rows of one INSERT."""
    clock: str
    """An expression: microseconds since 1970 by the server's clock, at the beginning of its statement."""

    def connect(self, timeout: float) -> DbDriver:
        """Open a connection, whose requests take at most `timeout` seconds. Raises what `cause_of` understands."""

    def literal(self, value: bytes | str | int | None) -> str:
        """A value as it is written in a statement."""

    def reading(self, statements: Sequence[str]) -> list[str]:
        """Statements that see one state of all tables, and lock nothing that outlives the round trip."""

    def writing(self, statements: Sequence[str]) -> list[str]:
        """Statements that are committed together, or not at all; each sees what was committed before it."""

    @property
    def undo(self) -> Sequence[str]:
        """Statements that end a transaction after an error."""

    def limited(self, select: str, limit: int | None) -> str:
        """A `SELECT ... ORDER BY ...` of at most so many rows."""

    @property
    def share(self) -> str:
        """What is added to a SELECT that shares a lock on its rows in a user's transaction."""

    def locked(self, table: str, where: str, *, order: str, share: bool) -> str:
        """A derived table with `n`, the number of rows, and `total`, the sum of their stamps; it locks the rows.

        Rows that another transaction has locked are left out.
        """

    def free(self, columns: str, table: str, where: str) -> str:
        """A SELECT that locks its rows and leaves out those that another transaction has locked."""

    def insist(self, condition: str, source: str = "") -> str:
        """A statement that fails with a "conflict" unless the condition is true for the one row of the source."""

    def create(self, table: str, columns: str, keys: Sequence[str]) -> list[str]:
        """Statements that create a table if there is none."""

    def oldest_client(self, table: str) -> str:
        """A query for the largest `oldest_client` of a table; it answers 0 or fails as "missing" if there is none."""

    def column(self, kind: str) -> str:
        """The type of a column: "key", "id", "name", "digest", "text", "number"."""

    def cause_of(self, error: BaseException) -> Cause:
        """What an error of the driver means."""

    def advice_for(self, error: BaseException) -> str:
        """What to do about an error whose cause is "refused", as a sentence."""


GENERAL_ADVICE = "Check the user, its privileges, and the address."
"""What to do about a refusal that a dialect does not know better."""


def listing(values: Iterable[str]) -> str:
    """Values as a list in parentheses.

    >>> listing(["1", "2"])
    '(1, 2)'
    """
    return f"({', '.join(values)})"
