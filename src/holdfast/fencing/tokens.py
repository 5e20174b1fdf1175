"""The values that a fence compares: a token, and its floor.

The token of a grant is higher than all tokens before it. Its floor is the lowest token among the current holders: on
an exclusive lock the token itself, on a semaphore the token of the oldest current holder. A fence stores the highest
floor and refuses tokens below it. So it does not refuse the writes of current holders of a semaphore.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from ..errors import InvalidOption

MAX_TOKEN = 2**53 - 1
"""Tokens are microseconds of the clock and fit into 53 bits; a larger one would shut out all writers permanently."""


class Fenced(Protocol):
    """An object with a token and a floor, such as a lease."""

    @property
    def token(self) -> int:
        """Higher than that of every earlier grant of the key."""

    @property
    def floor(self) -> int:
        """The lowest token among the current holders of the key."""


class Offer(NamedTuple):
    """A checked token and its floor."""

    token: int
    floor: int


def checked_offer(lease_or_token: Fenced | int) -> Offer:
    """Return token and floor, or raise `InvalidOption` with the reason. Whether the lease is still held is not checked.

    >>> checked_offer(1_700_000_000_000_000)
    Offer(token=1700000000000000, floor=1700000000000000)
    """
    if isinstance(lease_or_token, int):
        token = _checked_token(lease_or_token, "a token")
        return Offer(token, token)
    if not hasattr(lease_or_token, "token") or not hasattr(lease_or_token, "floor"):
        raise InvalidOption(
            f"a fence needs a lease (from `with hf.lock(...) as lease`) or its token, not {lease_or_token!r}"
        )
    token = _checked_token(lease_or_token.token, "a lease's token")
    floor = _checked_token(lease_or_token.floor, "a lease's floor")
    if floor > token:
        raise InvalidOption(f"a lease's floor ({floor}) cannot be above its own token ({token})")
    return Offer(token, floor)


def _checked_token(value: Any, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_TOKEN:
        raise InvalidOption(f"{what} cannot be {value!r}: it must be a whole number from 1 to 2**53 - 1")
    return int(value)
