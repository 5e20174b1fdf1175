"""Commands about locks.

A command about a lock carries its key and has a rule: `apply(record, now)` is pure, and a store either calls it within
its own atomic step or has a native form that is equal to it. The commands of a batch about one key are decided together
by `decide_all`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ..rules import lock_outcomes as out
from ..rules.lock import RETENTION, LockState, Step
from ..rules.lock_record import Kind, Label, LockRecord
from ..rules.working_record import More
from .base import PAGE, Command


class LockCommand(Command, frozen=True, kw_only=True):
    """A command about the record of one key. Atomic by itself and independent of the others in its batch.

    It defines `decide`, or else `apply`: each of the two is made from the other.
    """

    key: str

    def decide(self, lock: LockState) -> out.Outcome:
        """Decide on a record in its working form."""
        record, outcome = self.apply(lock.record(), lock.now)
        lock.read(record)
        lock.hand_over()  # also to waiters that the stored record does not list
        return outcome

    def apply(self, record: LockRecord, now: int) -> Step:
        """Decide; a pure function."""
        lock = LockState(record, now)
        outcome = lock.answer(self.decide)
        return lock.record(), outcome


def decide_all(
    record: LockRecord, commands: Sequence[LockCommand], now: int, more: More | None = None
) -> tuple[LockRecord, list[out.Outcome]]:
    """Decide on commands about one key, in their order and at one moment, with one pass over its record.

    The outcomes, and the record but for its version, are those of the same commands one by one. Raises what a command
    raises, and then nothing has been decided. `more` reads the runs that the record does not list.
    """
    lock = LockState(record, now, more=more)
    outcomes = [lock.answer(command.decide) for command in commands]
    return lock.record(), outcomes


class Acquire(LockCommand, frozen=True, kw_only=True):
    """Take `weight` of the `permits` of a key for `ttl` microseconds (None: until released).

    Answers `Granted`; with `queue`, `Queued` while it must wait, otherwise `Busy`; `Mismatch` when the
    key is in use as another kind; `TooHeavy` when it can never fit; `Gone` when the attempt was abandoned;
    `TooManyWaiters` when the queue is full. Again: the same attempt (`id`) gets the same grant and token
    with its full ttl, or keeps its position. A waiter must send the command again within three fifths of `waiter_ttl`,
    or it may lose its position. Sending it also confirms an offer. In the first two fifths of `waiter_ttl` after its
    position was last extended, sending it extends nothing, so polling often writes nothing. It `listens` if a process
    receives hints for its id.
    """

    id: str
    label: Label
    kind: Kind = "mutex"
    permits: int = 1
    weight: int = 1
    ttl: int | None
    queue: bool = False
    waiter_ttl: int | None = None
    delay: int = 0
    listens: bool = False

    def decide(self, lock: LockState) -> out.Outcome:
        """Decide by `LockState.acquire`."""
        return lock.acquire(
            id=self.id,
            label=self.label,
            kind=self.kind,
            permits=self.permits,
            weight=self.weight,
            ttl=self.ttl,
            queue=self.queue,
            waiter_ttl=self.waiter_ttl,
            delay=self.delay,
            listens=self.listens,
        )


class Renew(LockCommand, frozen=True, kw_only=True):
    """Prolong a grant to `ttl` microseconds from now. Answers `Renewed` or `NotHolder`.

    Needs id and token; a `lease` may be renewed by its owner's id alone (`token=None`). Again: prolongs again.
    """

    id: str
    token: int | None
    ttl: int | None

    def decide(self, lock: LockState) -> out.Outcome:
        """Decide by `LockState.renew`."""
        return lock.renew(id=self.id, token=self.token, ttl=self.ttl)


class Release(LockCommand, frozen=True, kw_only=True):
    """End a grant and offer what is free to the queue. Answers `Released` or `NotHolder`.

    Needs id and token; a `lease` may be released by its owner's id alone (`token=None`).
    Again: `NotHolder`, and nothing changes.
    """

    id: str
    token: int | None

    def decide(self, lock: LockState) -> out.Outcome:
        """Decide by `LockState.release`."""
        return lock.release(id=self.id, token=self.token)


class PassOver(LockCommand, frozen=True, kw_only=True):
    """End an offer that nobody can receive, before it expires. Answers `PassedOver` or `NotHolder`.

    Acts only on an offer to the attempt `id` under `token` that is not confirmed yet and can expire. The waiter goes
    back to its position in the queue and is passed over until it sends its command again. Again: `NotHolder`.
    """

    id: str
    token: int

    def decide(self, lock: LockState) -> out.Outcome:
        """Decide by `LockState.pass_over`."""
        return lock.pass_over(id=self.id, token=self.token)


class Abandon(LockCommand, frozen=True, kw_only=True):
    """Remove an attempt by its id, whether it holds, waits or has not arrived yet. Answers `Abandoned`.

    An `Acquire` of this attempt that arrives within `ttl` microseconds afterwards is refused with `Gone`.
    Again: answers `Abandoned` with "nothing".
    """

    id: str
    ttl: int

    def decide(self, lock: LockState) -> out.Outcome:
        """Decide by `LockState.abandon`."""
        return lock.abandon(id=self.id, ttl=self.ttl)


class Transfer(LockCommand, frozen=True, kw_only=True):
    """Transfer a grant to the attempt `to_id`, in one step. Answers `Transferred`, `NotHolder`, `TargetHolds`.

    Again: the same answer, as long as the target holds.
    """

    id: str
    token: int | None
    to_id: str
    to_label: Label
    ttl: int | None

    def decide(self, lock: LockState) -> out.Outcome:
        """Decide by `LockState.transfer`."""
        return lock.transfer(id=self.id, token=self.token, to_id=self.to_id, to_label=self.to_label, ttl=self.ttl)


class ForceRelease(LockCommand, frozen=True, kw_only=True):
    """Remove every holder of a key; the record keeps by whom and why. Answers `ForceReleased`.

    Offers count as holders. Again: removes the holders of that time, so a flow does not send it again on its own.
    """

    by: str
    reason: str

    def decide(self, lock: LockState) -> out.Outcome:
        """Decide by `LockState.force_release`."""
        return lock.force_release(by=self.by, reason=self.reason)


class Settle(LockCommand, frozen=True, kw_only=True):
    """Remove what has expired on one key and offer what became free. Answers `Settled`. Again: harmless.

    A client whose command made an offer sends this when the offer has expired. A client that is `leaving` cannot do so:
    the next waiters are hinted, and do it instead.
    """

    leaving: bool = False

    def decide(self, lock: LockState) -> out.Outcome:
        """Decide by `LockState.settled`."""
        return lock.settled(leaving=self.leaving)


class Inspect(LockCommand, frozen=True, kw_only=True):
    """Read one key without changing it. Answers `LockSeen`. Again: reads again."""

    def decide(self, lock: LockState) -> out.Outcome:
        """Decide by `LockState.inspect`."""
        return lock.inspect()


class ListLocks(Command, frozen=True, kw_only=True):
    """Read a page of keys in order, those with the prefix and after `after`. Answers `LockPage`. A read."""

    prefix: str = ""
    after: str = ""
    limit: int = PAGE


class SettleDue(Command, frozen=True, kw_only=True):
    """Settle up to `limit` records that have waiters and that are due. Answers `Swept`. Again: harmless."""

    limit: int = PAGE


class Cleanup(Command, frozen=True, kw_only=True):
    """Read up to `limit` records after the key `after`, and remove those that may be removed. Answers `Swept`.

    It removes only what `rules.lock.removable` allows for this retention (microseconds). Again: harmless.
    """

    after: str = ""
    limit: int = PAGE
    retention: int = RETENTION


class ListedLock(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a page. An unreadable record is shown with its error instead of being left out."""

    key: str
    record: LockRecord | None
    error: str = ""


class LockPage(out.Outcome, frozen=True, kw_only=True):
    """A page of keys, and the `after` of the next one (None: there is none)."""

    items: tuple[ListedLock, ...]
    next: str | None
    now: int


class Swept(out.Outcome, frozen=True, kw_only=True):
    """How many records were read and changed or removed, and where to continue (None: there is none)."""

    seen: int
    changed: int
    next: str | None = None
