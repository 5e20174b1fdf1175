"""Outcomes of commands about locks. A command returns one of these, and never raises.

`woken` lists the attempts that got a grant or an offer in the same step, whatever the command was. `hinted` lists
waiters that got nothing, but should send their command again now. The store sends a hint to both. If one of them is a
run, the store adds an event to its inbox. Holders are returned as they are stored, so that a caller can name them.
"""

from __future__ import annotations

import msgspec

from .lock_record import Holder, LockRecord


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The base class of all outcomes."""

    woken: tuple[str, ...] = ()
    hinted: tuple[str, ...] = ()

    @property
    def notified(self) -> tuple[str, ...]:
        """The attempts that are sent a hint, or an event if they belong to a run."""
        return self.woken + self.hinted if self.hinted else self.woken


class Granted(Outcome, frozen=True, kw_only=True):
    """The attempt holds, under this token. `floor` is the lowest token among the holders."""

    token: int
    floor: int
    since: int
    expires_at: int | None
    permits_before: int | None = None  # set when this attempt changed the number of permits


class Queued(Outcome, frozen=True, kw_only=True):
    """The attempt waits. Position 0 is next; in `recheck_in` microseconds something can expire.

    Waiters that were passed over do not count: the position is the number of waiters that block this one.
    """

    position: int
    holders: tuple[Holder, ...]
    now: int
    recheck_in: int | None
    permits_before: int | None = None


class Busy(Outcome, frozen=True, kw_only=True):
    """The attempt was refused. Only its number of permits was kept. `waiting` attempts are queued."""

    holders: tuple[Holder, ...]
    waiting: int
    now: int
    retry_in: int | None
    permits_before: int | None = None


class TooManyWaiters(Outcome, frozen=True, kw_only=True):
    """The attempt was refused and not queued: the queue of the key is full, with `waiting` attempts."""

    waiting: int
    permits_before: int | None = None


class Renewed(Outcome, frozen=True, kw_only=True):
    """The grant expires at `expires_at`."""

    floor: int
    expires_at: int | None


class Released(Outcome, frozen=True, kw_only=True):
    """The grant has ended, and what became free was offered to the next waiters."""


class Abandoned(Outcome, frozen=True, kw_only=True):
    """The attempt was removed, and is refused if it is sent again."""

    was: str  # "holder", "waiter" or "nothing"


class Transferred(Outcome, frozen=True, kw_only=True):
    """The grant belongs to another attempt now, under a new and higher token."""

    token: int
    floor: int
    since: int
    expires_at: int | None


class NotHolder(Outcome, frozen=True, kw_only=True):
    """The attempt does not hold the lock. Nothing was changed."""


class PassedOver(Outcome, frozen=True, kw_only=True):
    """The offer has ended unconfirmed. Its waiter is back at its position in the queue."""


class TargetHolds(Outcome, frozen=True, kw_only=True):
    """A transfer was refused because its target holds already."""


class Mismatch(Outcome, frozen=True, kw_only=True):
    """The key is in use as another kind of lock."""

    found: str


class TooHeavy(Outcome, frozen=True, kw_only=True):
    """The weight is larger than the number of permits."""

    permits: int


class Gone(Outcome, frozen=True, kw_only=True):
    """The attempt was abandoned before: a command that arrives late changes nothing."""


class ForceReleased(Outcome, frozen=True, kw_only=True):
    """All holders were removed."""

    holders: tuple[Holder, ...]
    now: int


class Settled(Outcome, frozen=True, kw_only=True):
    """What had expired was removed. An offer that is not confirmed yet expires in `offer_ends_in` microseconds."""

    offer_ends_in: int | None = None


class LockSeen(Outcome, frozen=True, kw_only=True):
    """The record as it would be after settling now, or None if the key has none."""

    record: LockRecord | None
    now: int
