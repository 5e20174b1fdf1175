"""What a service must offer so that Holdfast can keep locks and values in it: conditional writes of single records.

An adapter knows nothing about locks. It stores texts under names. Each text has a stamp, and an adapter writes or
removes a text only if its stamp is still the stamp that the caller has read. `cas.py` executes the rules with any
adapter. An adapter converts the errors of its driver to `StoreUnavailable` and its subclasses, with `ambiguous` set
unless it is certain that nothing was done.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple, Protocol

from ..commands import Command
from ..rules.lock_record import LockRecord
from .contract import Capabilities, Finding

LOCKS = "lock"
"""The kind of the records of locks. Their keys are listed and found by their due time."""
SLOTS = "slot"
"""The kind of state slots. Their keys are JSON lists of scope, owner and key; they are never listed."""
RECORDS = "record/"
"""The beginning of the kinds of records of a `RecordType`; its name follows."""


class CasName(NamedTuple):
    """The name of a record within the adapter's namespace. Both parts are any text without NUL."""

    kind: str
    key: str


class StampedText(NamedTuple):
    """A record as it is stored."""

    text: str
    stamp: str


class CasRead(NamedTuple):
    """The records that were found, and the time in microseconds, which must not be earlier than any of the records.

    A service that can read its clock only before the records must correct the time with `CasWrite.now`.
    """

    found: Mapping[CasName, StampedText]
    now: int


class CasWrite(NamedTuple):
    """One conditional write."""

    name: CasName
    text: str | None
    """None: the record is removed."""
    due_at: int | None
    """Indexed, for `due`; None: the record is not in that index."""
    stamp: str
    """The stamp to store: unique for this write, so that a later read shows whether the write was applied."""
    expected: str | None
    """The stamp that must be stored now; None: there must be no record."""
    woken: tuple[str, ...] = ()
    """The attempts to notify: those that this write grants something, and those that should ask again."""
    now: int = 0
    """The time of the decision. The time returned with a later read of this record must not be earlier than this."""


class CasAdapter(Protocol):
    """One connection to the service, bound to one namespace. Used by one thread at a time."""

    def read(self, names: Sequence[CasName]) -> CasRead:
        """Read the current version of these records, from the primary, in one round trip if the service allows it."""

    def write(self, writes: Sequence[CasWrite]) -> Sequence[bool | None]:
        """Carry out the writes, each atomic by itself, in any order, and return what is known about each of them.

        True: it was applied, durably. False: it was certainly not applied, because the condition was not met. None: it
        is not known, for example because the reply was lost; the caller reads the stamp. All names are different.
        Raises `StoreError` only if the same is true of all writes: `ambiguous`, or certainly not applied.
        """

    def keys(self, kind: str, *, prefix: str, after: str, limit: int) -> list[str]:
        """The first keys of a kind that begin with the prefix and come after `after`, in the order of code points."""

    def due(self, kind: str, *, until: int, limit: int) -> list[tuple[int, str]]:
        """The first records whose `due_at` is not after `until`: (due_at, key), in order. They may be outdated."""

    def close(self) -> None:
        """Release the connection's resources. Safe to call twice."""


class CasSubscription(Protocol):
    """A running subscription to the attempts in `CasWrite.woken`."""

    @property
    def live(self) -> bool:
        """Whether notifications arrive at this moment. While they do not, waiters poll."""

    def close(self) -> None:
        """End the subscription. Safe to call twice."""


class CasService(Protocol):
    """A service with one namespace in it: opens adapters. `CasServiceBase` has defaults for what few services need."""

    url: str
    """The address, without any password."""
    identity: str
    """Equal for two services of this process exactly if they have the same records."""
    max_bytes: int
    """The largest text of a record, in bytes of UTF-8. A command whose record would be larger fails alone."""

    @property
    def capabilities(self) -> Capabilities:
        """What the service can promise. `workflows` is ignored: these stores never support workflows."""

    def connect(self) -> CasAdapter:
        """Open a connection."""

    def watch(self, notified: Callable[[Collection[str] | None], None]) -> CasSubscription | None:
        """Call `notified` from any thread with the attempts of every write that has some (None: any attempt).

        A subscription that begins, or begins again after an interruption, calls it with None: a notification may have
        been missed. Notifications may be lost, late or doubled. Returns None where the service cannot notify.
        """

    def adjusted(self, command: Command) -> Command:
        """The command that is decided instead of the command that was sent.

        A service without a clock of its own adds the stated difference of its clients' clocks to every ttl here. The
        outcome goes to the caller as the rules made it, and the holder counts its own deadline from the ttl that it
        asked for.
        """

    def observed(self, key: str, record: LockRecord, stamp: str, now: int) -> LockRecord:
        """The record of a lock that the rules get instead of the record that was read with this stamp.

        A service that trusts no other client's clock replaces the stored expiries here, by those that follow from how
        long it has seen each holder's entry unchanged.
        """

    def written_back(self, stored: LockRecord, shown: LockRecord, after: LockRecord) -> LockRecord:
        """The record to write. `shown` is what `observed` returned, and `after` is the result of the rules.

        A service that replaces expiries restores those that the rules have not changed. Otherwise every write of one
        client would look like a renewal of all holders to the other clients.
        """

    def diagnose(self) -> tuple[Finding, ...]:
        """Check settings that only the service can know. Changes nothing, raises nothing."""

    def reopen(self) -> CasService:
        """The same service for the child of a fork, which must not use the parent's connections."""

    def close(self) -> None:
        """Release resources that the connections share."""


class CasServiceBase:
    """The defaults of a `CasService`: it cannot notify, and commands and records are decided on as they are."""

    max_bytes = 1_000_000_000

    def watch(self, notified: Callable[[Collection[str] | None], None]) -> CasSubscription | None:  # noqa: ARG002
        """None: waiters poll."""
        return None

    def adjusted(self, command: Command) -> Command:
        """The command itself."""
        return command

    def observed(self, key: str, record: LockRecord, stamp: str, now: int) -> LockRecord:  # noqa: ARG002
        """The record itself."""
        return record

    def written_back(self, stored: LockRecord, shown: LockRecord, after: LockRecord) -> LockRecord:  # noqa: ARG002
        """The record that the rules have returned, unchanged."""
        return after

    def diagnose(self) -> tuple[Finding, ...]:
        """Nothing to report."""
        return ()
