"""Short ways to write commands, and a clock that the test moves."""

from __future__ import annotations

from holdfast import commands as c
from holdfast.rules.record import Label

ME = Label(name="me", host="here", pid=1)
SECOND = 1_000_000
START = 1_790_000_000_000_000


class VirtualClock:
    """Microseconds that pass only when the test says so; begins at a value of today."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> int:
        return self.now

    def pass_by(self, seconds: float) -> None:
        self.now += round(seconds * 1_000_000)


def acquire(key: str = "k", id: str = "a.1", *, ttl: float | None = 30, **options) -> c.Acquire:
    options.setdefault("waiter_ttl", 10 * SECOND)
    return c.Acquire(key=key, id=id, label=ME, ttl=None if ttl is None else round(ttl * SECOND), **options)


def wait(key: str = "k", id: str = "b.1", **options) -> c.Acquire:
    return acquire(key, id, queue=True, **options)


def renew(key: str = "k", id: str = "a.1", *, token: int | None, ttl: float | None = 30) -> c.Renew:
    return c.Renew(key=key, id=id, token=token, ttl=None if ttl is None else round(ttl * SECOND))


def release(key: str = "k", id: str = "a.1", *, token: int | None) -> c.Release:
    return c.Release(key=key, id=id, token=token)


def abandon(key: str = "k", id: str = "a.1", *, ttl: float = 30) -> c.Abandon:
    return c.Abandon(key=key, id=id, ttl=round(ttl * SECOND))


def transfer(key: str = "k", id: str = "a.1", *, token: int | None, to: str = "c.1") -> c.Transfer:
    return c.Transfer(key=key, id=id, token=token, to_id=to, to_label=ME, ttl=30 * SECOND)
