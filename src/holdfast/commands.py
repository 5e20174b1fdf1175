"""What a store can be asked, and what it can answer.

A command is a frozen value. One about a lock carries its key and knows its rule: `apply(record, now)` is
pure, and a store either calls it within its own atomic step or has a native form that is equal to it.
The docstring of a command is its specification: what must hold before, what the answers are, and what
sending it again after a lost reply does.
"""

from __future__ import annotations

import msgspec

from .errors import HoldfastError
from .rules import lock, slot
from .rules import outcomes as out
from .rules.record import EMPTY, Kind, Label, LockRecord
from .rules.slot import Address

PAGE = 100


class Command(msgspec.Struct, frozen=True, kw_only=True):
    """The root of everything that a store can be asked."""


class LockCommand(Command, frozen=True, kw_only=True):
    """A command about the record of one key. Atomic by itself and independent of its neighbours."""

    key: str

    def apply(self, record: LockRecord, now: int) -> lock.Step:
        """Decide, without doing anything."""
        raise NotImplementedError


class Acquire(LockCommand, frozen=True, kw_only=True):
    """Take `weight` of the `permits` of a key for `ttl` microseconds (None: until released).

    Answers `Granted`; with `queue`, `Queued` while others are in the way, else `Busy`; `Mismatch` when the
    key is in use as another kind; `TooHeavy` when it can never fit; `Gone` when the attempt was abandoned.
    Again: the same attempt (`id`) gets the same grant and token with its full ttl, or keeps its place. A
    waiter must ask again within `waiter_ttl`, and confirms an offer by asking again.
    """

    id: str
    label: Label
    kind: Kind = "item"
    permits: int = 1
    weight: int = 1
    ttl: int | None
    queue: bool = False
    waiter_ttl: int | None = None
    delay: int = 0

    def apply(self, record: LockRecord, now: int) -> lock.Step:
        """Decide by `rules.lock.acquire`."""
        return lock.acquire(
            record,
            now,
            id=self.id,
            label=self.label,
            kind=self.kind,
            permits=self.permits,
            weight=self.weight,
            ttl=self.ttl,
            queue=self.queue,
            waiter_ttl=self.waiter_ttl,
            delay=self.delay,
        )


class Renew(LockCommand, frozen=True, kw_only=True):
    """Prolong a living grant to `ttl` microseconds from now. Answers `Renewed` or `NotHeld`.

    Needs id and token; a `lease` may be renewed by its owner's id alone (`token=None`). Again: prolongs again.
    """

    id: str
    token: int | None
    ttl: int | None

    def apply(self, record: LockRecord, now: int) -> lock.Step:
        """Decide by `rules.lock.renew`."""
        return lock.renew(record, now, id=self.id, token=self.token, ttl=self.ttl)


class Release(LockCommand, frozen=True, kw_only=True):
    """End a grant and offer what is free to the queue. Answers `Released` or `NotHeld`.

    Needs id and token; a `lease` may be released by its owner's id alone (`token=None`).
    Again: `NotHeld`, and nothing changes.
    """

    id: str
    token: int | None

    def apply(self, record: LockRecord, now: int) -> lock.Step:
        """Decide by `rules.lock.release`."""
        return lock.release(record, now, id=self.id, token=self.token)


class Abandon(LockCommand, frozen=True, kw_only=True):
    """Remove an attempt by its id, be it holder, waiter or not yet arrived. Answers `Abandoned`.

    An `Acquire` of this attempt that arrives within `ttl` microseconds afterwards is refused with `Gone`.
    Again: answers `Abandoned` with "nothing".
    """

    id: str
    ttl: int

    def apply(self, record: LockRecord, now: int) -> lock.Step:
        """Decide by `rules.lock.abandon`."""
        return lock.abandon(record, now, id=self.id, ttl=self.ttl)


class Transfer(LockCommand, frozen=True, kw_only=True):
    """Give a living grant to the attempt `to_id`, in one step. Answers `Transferred`, `NotHeld`, `TargetHolds`.

    Again: the same answer, as long as the target holds.
    """

    id: str
    token: int | None
    to_id: str
    to_label: Label
    ttl: int | None

    def apply(self, record: LockRecord, now: int) -> lock.Step:
        """Decide by `rules.lock.transfer`."""
        return lock.transfer(
            record, now, id=self.id, token=self.token, to_id=self.to_id, to_label=self.to_label, ttl=self.ttl
        )


class ForceRelease(LockCommand, frozen=True, kw_only=True):
    """Put every holder of a key out; who and why is kept in the record. Answers `ForceReleased`.

    Holders that are offers to a waiter count as holders. Again: puts out whoever holds by then, so a flow
    does not send it again on its own.
    """

    by: str
    reason: str

    def apply(self, record: LockRecord, now: int) -> lock.Step:
        """Decide by `rules.lock.force_release`."""
        return lock.force_release(record, now, by=self.by, reason=self.reason)


class Settle(LockCommand, frozen=True, kw_only=True):
    """End what time has ended on one key and hand over what became free. Answers `Settled`. Again: harmless."""

    def apply(self, record: LockRecord, now: int) -> lock.Step:
        """Decide by `rules.lock.settle`."""
        record, woken = lock.settle(record, now)
        return record, out.Settled(woken=woken)


class Inspect(LockCommand, frozen=True, kw_only=True):
    """Look at one key without changing it. Answers `Seen`. Again: looks again."""

    def apply(self, record: LockRecord, now: int) -> lock.Step:
        """Settle a copy for the eye; the stored record stays as it is."""
        shown, _ = lock.settle(record, now, offers=False)
        return record, out.Seen(record=None if record == EMPTY else shown, now=now)


class SlotCommand(Command, frozen=True, kw_only=True):
    """A command about one state slot. Atomic by itself and independent of its neighbours."""

    address: Address

    def apply(self, before: slot.Slot, now: int) -> slot.Step:
        """Decide, without doing anything."""
        raise NotImplementedError


class ReadSlot(SlotCommand, frozen=True, kw_only=True):
    """Look at a slot. Answers `SlotSeen`; one that was never written has version 0. Again: looks again."""

    def apply(self, before: slot.Slot, now: int) -> slot.Step:  # noqa: ARG002  (no time passes for a value)
        """Decide by `rules.slot.read`."""
        return before, slot.read(before)


class SwapSlot(SlotCommand, frozen=True, kw_only=True):
    """Write `value` (JSON text; None removes it) if the last write is still `expected`, of version `version`.

    `request` is `<client>.<number>`; of what its client numbered below `acked` nothing will be sent again. Answers
    `Swapped`, or `Conflict` with what is there now. A loser may `reserve` the next write for so many microseconds.
    Again: answered `Swapped` and not made again; where the slot has forgotten this client's writes of that time, a
    `Conflict` that is not `decided`.
    """

    request: str
    expected: str
    version: int
    value: str | None
    acked: int = 0
    reserve: int = 0

    def apply(self, before: slot.Slot, now: int) -> slot.Step:
        """Decide by `rules.slot.swap`."""
        return slot.swap(
            before,
            now,
            request=self.request,
            expected=self.expected,
            version=self.version,
            value=self.value,
            acked=self.acked,
            reserve=self.reserve,
        )


class ListLocks(Command, frozen=True, kw_only=True):
    """Look at a page of keys in order, those with the prefix and after `after`. Answers `Page`. A read."""

    prefix: str = ""
    after: str = ""
    limit: int = PAGE


class SettleDue(Command, frozen=True, kw_only=True):
    """Settle up to `limit` records that have waiters and whose time has come. Answers `Swept`. Again: harmless."""

    limit: int = PAGE


class Cleanup(Command, frozen=True, kw_only=True):
    """Look at up to `limit` records after the key `after`, remove those that may be forgotten. Answers `Swept`.

    Removed is only what `rules.lock.removable` allows for this retention (microseconds). Again: harmless.
    """

    after: str = ""
    limit: int = PAGE
    retention: int = lock.RETENTION


class Listed(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a page. An unreadable record is shown with its error instead of being left out."""

    key: str
    record: LockRecord | None
    error: str = ""


class Page(out.Outcome, frozen=True, kw_only=True):
    """A page of keys, and the `after` of the next one (None: that was all)."""

    items: tuple[Listed, ...]
    next: str | None
    now: int


class Swept(out.Outcome, frozen=True, kw_only=True):
    """How many records were looked at and changed or removed, and where to go on (None: that was all)."""

    seen: int
    changed: int
    next: str | None = None


class Failed(out.Outcome, frozen=True, kw_only=True):
    """This command alone failed; its neighbours did not. The error is to be raised at the caller's."""

    error: HoldfastError


READS: tuple[type[Command], ...] = (Inspect, ListLocks, ReadSlot)
"""Commands that never write: a store may answer them without waiting for a writer's turn."""
