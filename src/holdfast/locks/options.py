"""The checked options of one lock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec

from ..errors import InvalidOption
from ..rules.lock_record import Kind
from ..validation import (
    MAX_TTL_SECONDS,
    MICROSECONDS,
    Duration,
    checked_count,
    checked_key,
    checked_ttl,
    seconds,
)

OnBusy = Literal["raise", "skip"]
Key = str | Callable[..., str]
OnLost = Callable[[Any], object]

WAITER_TTL = 10 * MICROSECONDS
"""How long a waiter's position is kept after its last poll: a crashed waiter delays the others by no more."""
RENEWALS = 3
"""A lease is renewed this many times within its ttl."""
LATEST_RENEWAL = 0.8
"""A renewal may not wait for longer than this part of a ttl."""
FAILURES = 3
"""A lease is given up after so many renewals in a row that were not answered."""
STALLS = 10
"""An event loop may be blocked for this many ttls before its leases are given up."""


class LockOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of a lock, checked. Durations are microseconds where the store uses them, else seconds."""

    key: Key
    kind: Kind
    permits: int
    weight: int
    ttl: int
    wait: float | None
    owner: str | None
    renew_every: float
    max_renew_failures: int
    max_stall: float
    reentrant: bool
    on_lost: OnLost | None
    on_busy: OnBusy
    lock_delay: int

    @property
    def exclusive(self) -> bool:
        """Whether only one caller can hold it, so that a holder that acquires again would wait for itself."""
        return self.kind == "mutex"

    @property
    def queues_locally(self) -> bool:
        """Whether callers of one process queue locally before they go to the store: the other kinds only try once."""
        return self.kind in {"mutex", "semaphore", "rw"}


def checked_options(
    key: Key,
    *,
    kind: Kind,
    permits: int = 1,
    weight: int = 1,
    ttl: Duration,
    wait: Duration | None,
    owner: str | None,
    renew_every: Duration | None = None,
    max_renew_failures: int = FAILURES,
    max_stall: Duration | None = None,
    reentrant: bool = False,
    on_lost: OnLost | None = None,
    on_busy: OnBusy = "raise",
    lock_delay: Duration = 0,
) -> LockOptions:
    """Check every option at once, so that a mistake raises where it was made."""
    length = checked_ttl(ttl)
    every = length / RENEWALS if renew_every is None else checked_ttl(renew_every, what="renew_every")
    if every > length * LATEST_RENEWAL:
        raise InvalidOption(
            f"renew_every={renew_every!r} is too close to ttl={ttl!r}: it may be at most {LATEST_RENEWAL:.0%} of the "
            "ttl, because a later renewal might be answered after the lease has expired"
        )
    if checked_count(weight, what="weight") > checked_count(permits, what="permits"):
        raise InvalidOption(f"weight={weight} is larger than permits={permits}: it could never be granted")
    if on_busy not in ("raise", "skip"):
        raise InvalidOption(f"on_busy cannot be {on_busy!r}: it must be 'raise' or 'skip'")
    if owner is not None:
        checked_key(owner, what="owner")
    if on_lost is not None and not callable(on_lost):
        raise InvalidOption(f"on_lost cannot be {on_lost!r}: it must be a function that takes the lease")
    if seconds(lock_delay, what="lock_delay") > MAX_TTL_SECONDS:
        raise InvalidOption(f"lock_delay cannot be {lock_delay!r}: it must be at most 366 days")
    return LockOptions(
        key=key if callable(key) else checked_key(key),
        kind=kind,
        permits=permits,
        weight=weight,
        ttl=length,
        wait=checked_wait(wait),
        owner=owner,
        renew_every=every / MICROSECONDS,
        max_renew_failures=checked_count(max_renew_failures, what="max_renew_failures"),
        max_stall=length * STALLS / MICROSECONDS if max_stall is None else seconds(max_stall, what="max_stall"),
        reentrant=reentrant,
        on_lost=on_lost,
        on_busy=on_busy,
        lock_delay=round(seconds(lock_delay, what="lock_delay") * MICROSECONDS),
    )


def checked_wait(wait: Duration | None) -> float | None:
    """The checked `wait` in seconds. None has no limit, 0 tries once."""
    return None if wait is None else seconds(wait, what="wait")
