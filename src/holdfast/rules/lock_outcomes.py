"""What a lock can answer. A command is answered by one of these, never by an exception.

`woken` lists the attempts that were granted by the same step, whichever command it was. `hinted` lists waiters that
were granted nothing, but should ask now. The store sends a hint to both, and posts an event to runs among
them. Who is in the way is told as it is stored, so that a caller can name it.
"""

from __future__ import annotations

import msgspec

from .lock_record import Holder, LockRecord


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The root of all answers."""

    woken: tuple[str, ...] = ()
    hinted: tuple[str, ...] = ()

    @property
    def notified(self) -> tuple[str, ...]:
        """The attempts that are sent a hint, or, if they are a run's, an event."""
        return self.woken + self.hinted if self.hinted else self.woken


class Granted(Outcome, frozen=True, kw_only=True):
    """The attempt holds, under this token. `floor` is the lowest token among the living holders."""

    token: int
    floor: int
    since: int
    expires_at: int | None
    permits_before: int | None = None  # set when this attempt changed the number of permits


class Queued(Outcome, frozen=True, kw_only=True):
    """The attempt waits. Position 0 is next; `recheck_in` is how long until anything can expire.

    Waiters that were passed over do not count: the position is the number of waiters that block this one.
    """

    position: int
    holders: tuple[Holder, ...]
    now: int
    recheck_in: int | None
    permits_before: int | None = None


class Busy(Outcome, frozen=True, kw_only=True):
    """The attempt was refused and left nothing behind but its number of permits. `waiting` others are queued."""

    holders: tuple[Holder, ...]
    waiting: int
    now: int
    retry_in: int | None
    permits_before: int | None = None


class TooManyWaiters(Outcome, frozen=True, kw_only=True):
    """The attempt was refused and got no place: as many as may wait for a key are `waiting` already."""

    waiting: int
    permits_before: int | None = None


class Renewed(Outcome, frozen=True, kw_only=True):
    """The grant lives on until `expires_at`."""

    floor: int
    expires_at: int | None


class Released(Outcome, frozen=True, kw_only=True):
    """The grant has ended, and whoever was next has been offered it."""


class Abandoned(Outcome, frozen=True, kw_only=True):
    """The attempt is gone, whatever it was, and cannot come back."""

    was: str  # "holder", "waiter" or "nothing"


class Transferred(Outcome, frozen=True, kw_only=True):
    """The grant belongs to another attempt now, under a new and higher token."""

    token: int
    floor: int
    since: int
    expires_at: int | None


class NotHolder(Outcome, frozen=True, kw_only=True):
    """The caller does not hold what it wants to change. Nothing was changed for it."""


class PassedOver(Outcome, frozen=True, kw_only=True):
    """The offer has ended unconfirmed. Its waiter is back at its place in the queue."""


class TargetHolds(Outcome, frozen=True, kw_only=True):
    """A transfer was refused because its target holds already."""


class Mismatch(Outcome, frozen=True, kw_only=True):
    """The key is in use as another kind of lock."""

    found: str


class TooHeavy(Outcome, frozen=True, kw_only=True):
    """The weight is larger than all the permits that there are."""

    permits: int


class Gone(Outcome, frozen=True, kw_only=True):
    """The attempt was given up before; a late re-send of it changes nothing."""


class ForceReleased(Outcome, frozen=True, kw_only=True):
    """Everyone who held was put out."""

    holders: tuple[Holder, ...]
    now: int


class Settled(Outcome, frozen=True, kw_only=True):
    """Whatever time had ended was ended. An offer that nobody has confirmed may end in so many microseconds."""

    offer_ends_in: int | None = None


class LockSeen(Outcome, frozen=True, kw_only=True):
    """The record as it is now, settled for the eye only, or None if the key has none."""

    record: LockRecord | None
    now: int
