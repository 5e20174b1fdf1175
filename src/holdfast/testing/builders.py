"""Short functions that build commands, and a clock for stores that stands still until a test moves it."""

from __future__ import annotations

from typing import Any

from .. import commands as c
from ..rules.lock_record import Label
from ..rules.slot import Address

ME = Label(name="me", host="here", pid=1)
SECOND = 1_000_000
DAY = 86_400
START = 1_790_000_000_000_000
SLOT: Address = ("global", "", "k")


class ManualClock:
    """A clock in microseconds that moves only when the test moves it; it starts at a realistic time.

    >>> clock = ManualClock()
    >>> clock.pass_by(1.5)
    >>> clock() - START
    1500000
    """

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> int:
        """The time of this clock, in microseconds, as a store reads it."""
        return self.now

    def pass_by(self, seconds: float) -> None:
        """Move the clock, forwards or backwards."""
        self.now += round(seconds * SECOND)


def acquire(key: str = "k", id: str = "a.1", *, ttl: float | None = 30, **options: Any) -> c.Acquire:
    """Try once to acquire a key."""
    options.setdefault("waiter_ttl", 10 * SECOND)
    return c.Acquire(key=key, id=id, label=ME, ttl=_length(ttl), **options)


def wait(key: str = "k", id: str = "b.1", **options: Any) -> c.Acquire:
    """Acquire a key, or wait in its queue."""
    return acquire(key, id, queue=True, **options)


def renew(key: str = "k", id: str = "a.1", *, token: int | None, ttl: float | None = 30) -> c.Renew:
    """Renew a grant."""
    return c.Renew(key=key, id=id, token=token, ttl=_length(ttl))


def release(key: str = "k", id: str = "a.1", *, token: int | None) -> c.Release:
    """Release a grant."""
    return c.Release(key=key, id=id, token=token)


def pass_over(key: str = "k", id: str = "b.1", *, token: int) -> c.PassOver:
    """End an offer whose waiter does not receive it."""
    return c.PassOver(key=key, id=id, token=token)


def abandon(key: str = "k", id: str = "a.1", *, ttl: float = 30) -> c.Abandon:
    """Give up an attempt, whether it holds or waits."""
    return c.Abandon(key=key, id=id, ttl=round(ttl * SECOND))


def transfer(key: str = "k", id: str = "a.1", *, token: int | None, to: str = "c.1") -> c.Transfer:
    """Transfer a grant to another attempt."""
    return c.Transfer(key=key, id=id, token=token, to_id=to, to_label=ME, ttl=30 * SECOND)


def swap(
    request: str,
    expected: str = "",
    version: int = 0,
    value: str | None = "1",
    address: Address = SLOT,
    *,
    acked: int = 0,
    reserve: int = 0,
) -> c.SwapSlot:
    """Write a slot."""
    return c.SwapSlot(
        address=address,
        request=request,
        expected=expected,
        version=version,
        value=value,
        acked=acked,
        reserve=reserve,
    )


def read(address: Address = SLOT) -> c.ReadSlot:
    """Read a slot."""
    return c.ReadSlot(address=address)


def _length(ttl: float | None) -> int | None:
    return None if ttl is None else round(ttl * SECOND)
