"""Commands about state slots: named values with a version."""

from __future__ import annotations

from ..rules import slot
from ..rules.slot import Address
from .base import Command


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
