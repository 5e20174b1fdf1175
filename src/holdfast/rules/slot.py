"""The rules of a state slot: one value that changes only by compare-and-swap.

A writer compares the id of the last write, not a number. Ids are never used twice. So a value that was deleted and
written again is not treated as the old value, and no write is made twice. The slot also stores the writes of each
writer until the writer has acknowledged them: a write that is sent again after a lost reply gets its answer. A writer
whose writes were refused several times may reserve the next write for a moment. Correctness does not depend on this.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec.structs import replace

from .lock_outcomes import Outcome

EXECUTION: Literal["execution"] = "execution"
"""The scope of the values that a first run shares with all runs below it; the owner is the id of the first run."""
RECENT = 1_024
"""How many writes of one writer a slot remembers, at most."""
WRITERS = 64
"""How many writers a slot remembers, at most; the one that has not written for longest is forgotten first."""
MAX_RESERVATION = 1_000_000
"""Microseconds for which one writer can reserve the next write, at most."""


class Writer(msgspec.Struct, frozen=True, array_like=True):
    """The writes of one client: their numbers from `floor` on, and the version that the last one has made."""

    client: str
    floor: int
    numbers: tuple[int, ...]
    version: int


class WriteHistory(msgspec.Struct, frozen=True, omit_defaults=True):
    """The stored writes of a slot. `forgotten` is the last version made by a writer that was removed from them."""

    last: str = ""
    writers: tuple[Writer, ...] = ()
    forgotten: int = 0
    reserved_by: str = ""
    reserved_until: int = 0


class Slot(msgspec.Struct, frozen=True):
    """One value and its past. `value` is JSON text; None: there is no value."""

    version: int = 0
    value: str | None = None
    past: WriteHistory = WriteHistory()

    @property
    def last(self) -> str:
        """The id of the last write; empty before the first."""
        return self.past.last


EMPTY_SLOT = Slot()


Scope = Literal["global", "workflow", "execution"]
Address = tuple[Scope, str, str]
"""Where a slot is: its scope, whose it is within the scope (a workflow's name, a run's id, or nothing), its key."""


class Swap(msgspec.Struct, frozen=True):
    """A write that is made with the record of a run, or not at all."""

    address: Address
    expected: str
    version: int
    value: str | None


class SlotSeen(Outcome, frozen=True, kw_only=True):
    """The value as it is now. Version 0 has never been written."""

    version: int
    last: str
    value: str | None


class Swapped(Outcome, frozen=True, kw_only=True):
    """The value was written, with this version."""

    version: int


class Conflict(Outcome, frozen=True, kw_only=True):
    """Nothing was written: another write came first, or the next one is reserved for `wait` microseconds.

    The outcome has the value as it is now. `decided` is False when it is no longer known whether this same write, sent
    before, was carried out.
    """

    version: int
    last: str
    value: str | None
    wait: int = 0
    decided: bool = True


Step = tuple[Slot, Outcome]


def read(slot: Slot) -> SlotSeen:
    """Return the value."""
    return SlotSeen(version=slot.version, last=slot.last, value=slot.value)


def swap(
    slot: Slot,
    now: int,
    *,
    request: str,
    expected: str,
    version: int,
    value: str | None,
    acked: int = 0,
    reserve: int = 0,
) -> Step:
    """Write the value if the last write is the expected one, which made the expected version.

    A write that is remembered is answered again and not made again. The client has the answers of its writes below
    `acked`, so these may be forgotten. With `reserve`, a write that lost keeps other clients from writing for so many
    microseconds, unless one of them has a reservation already.
    """
    client, number = client_of(request), number_of(request)
    past = slot.past
    mine = next((writer for writer in past.writers if writer.client == client), None)
    if mine is not None and number in mine.numbers:
        return slot, Swapped(version=version + 1)
    until = min(past.reserved_until, now + MAX_RESERVATION)  # a clock that was set back must not prolong it
    taken = bool(past.reserved_by) and until > now and past.reserved_by != client
    if past.last == expected and slot.version == version and not taken:
        # Of a writer that may have been forgotten only the writes from here on are known.
        mine = mine or Writer(client, number if past.forgotten else 0, (), 0)
        written = Slot(version + 1, value, _remember(past, mine, request, acked, version + 1))
        return written, Swapped(version=version + 1)
    if reserve > 0 and not taken:
        past = replace(past, reserved_by=client, reserved_until=now + min(reserve, MAX_RESERVATION))
        slot = replace(slot, past=past)
    return slot, Conflict(
        version=slot.version,
        last=slot.last,
        value=slot.value,
        wait=until - now if taken else 0,
        decided=version >= slot.version or (version >= past.forgotten if mine is None else number >= mine.floor),
    )


def written(slot: Slot, change: Swap, id: str) -> Slot | None:
    """The slot after a write that is made together with a run's record. None if another write came first.

    The record identifies the write, so the slot does not list it among the writes of a client. A reservation does not
    stop the write, and ends with it.
    """
    if slot.last != change.expected or slot.version != change.version:
        return None
    past = WriteHistory(last=id, writers=slot.past.writers, forgotten=slot.past.forgotten)
    return Slot(slot.version + 1, change.value, past)


def _remember(past: WriteHistory, mine: Writer, request: str, acked: int, version: int) -> WriteHistory:
    """The past after a write; a reservation ends with it."""
    floor = max(mine.floor, acked)
    numbers = (*(number for number in mine.numbers if number >= floor), number_of(request))
    if len(numbers) > RECENT:
        numbers = tuple(sorted(numbers)[-RECENT:])
        floor = max(floor, numbers[0])
    writers = (
        *(writer for writer in past.writers if writer.client != mine.client),
        Writer(mine.client, floor, numbers, version),
    )
    forgotten = past.forgotten
    if len(writers) > WRITERS:
        forgotten = max(forgotten, writers[0].version)
        writers = writers[1:]
    return WriteHistory(last=request, writers=writers, forgotten=forgotten)


def client_of(request: str) -> str:
    """The client that a write comes from: writes are named as attempts are, `<client>.<number>`."""
    return request.partition(".")[0]


def number_of(request: str) -> int:
    """The number that its client gave a write."""
    return int(request.partition(".")[2])
