"""The heartbeats of the steps of a run, as its record holds them, and pure functions on them.

A heartbeat belongs to an attempt of a step. While the run is driven, `expires_at` is when another worker may take the
run over, unless a later heartbeat comes first. The details of the last heartbeat stay until the step has a result: the
next attempt reads them, also in another process.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

LONGEST_TIMEOUT = 31_536_000_000_000
"""Microseconds after which a heartbeat expires at the latest (a year), so that the time can be stored everywhere."""


class StepHeartbeat(msgspec.Struct, frozen=True, array_like=True):
    """The last heartbeat of a step: `at` is when it was stored, `details` is JSON text.

    Without `expires_at` no worker waits for the next one: the step has no `heartbeat_timeout`, its attempt has ended,
    or its worker has left the run.
    """

    step: str
    attempt: int
    at: int
    expires_at: int | None = None
    details: str | None = None


Heartbeats = tuple[StepHeartbeat, ...]


class AttemptEnd(msgspec.Struct, frozen=True, array_like=True):
    """An attempt of a step with heartbeats has ended. With `again`, the details stay for the next attempt."""

    step: str
    again: bool = False


def first_expiry(heartbeats: Heartbeats) -> int | None:
    """When the first heartbeat expires; None: none does."""
    return min((one.expires_at for one in heartbeats if one.expires_at is not None), default=None)


def with_heartbeat(
    heartbeats: Heartbeats, now: int, *, step: str, attempt: int, lasts: int | None, details: str | None
) -> Heartbeats:
    """The heartbeats with a new one. Without details, it keeps those of the step's last heartbeat."""
    before = next((one for one in heartbeats if one.step == step), None)
    if details is None and before is not None:
        details = before.details
    expires_at = None if lasts is None else now + max(0, min(lasts, LONGEST_TIMEOUT))
    others = tuple(one for one in heartbeats if one.step != step)
    return (*others, StepHeartbeat(step, attempt, now, expires_at, details))


def after_ends(heartbeats: Heartbeats, ends: Sequence[AttemptEnd]) -> Heartbeats:
    """The heartbeats after attempts have ended: what the next attempt may read is kept, and expires no more."""
    if not heartbeats or not ends:
        return heartbeats
    again = {end.step: end.again for end in ends}
    kept = (one if one.step not in again else _kept(one) for one in heartbeats if again.get(one.step, True))
    return tuple(one for one in kept if one is not None)


def without_expiry(heartbeats: Heartbeats) -> Heartbeats:
    """The heartbeats of a run that its worker has left: only those with details are kept, and none expires."""
    kept = map(_kept, heartbeats)
    return tuple(one for one in kept if one is not None)


def _kept(one: StepHeartbeat) -> StepHeartbeat | None:
    """What stays of a heartbeat after its attempt."""
    if one.details is None:
        return None
    return one if one.expires_at is None else replace(one, expires_at=None)


def postponed_to(heartbeats: Heartbeats, now: int, until: int) -> Heartbeats:
    """The heartbeats, of which none expires before `until` that has expired now."""
    return tuple(
        replace(one, expires_at=until) if one.expires_at is not None and one.expires_at <= now else one
        for one in heartbeats
    )
