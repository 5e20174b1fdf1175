"""Commands about state slots: named values with a version."""

from __future__ import annotations

from ..rules import slot
from ..rules.slot import Address
from .base import Command


class SlotCommand(Command, frozen=True, kw_only=True):
    """A command about one state slot. Atomic by itself and independent of the others in its batch."""

    address: Address

    def apply(self, before: slot.Slot, now: int) -> slot.Step:
        """Decide; a pure function."""
        raise NotImplementedError


class ReadSlot(SlotCommand, frozen=True, kw_only=True):
    """Read a slot. Answers `SlotSeen`; one that was never written has version 0. Again: reads again."""

    def apply(self, before: slot.Slot, now: int) -> slot.Step:  # noqa: ARG002  (no time passes for a value)
        """Decide by `rules.slot.read`."""
        return before, slot.read(before)


class SwapSlot(SlotCommand, frozen=True, kw_only=True):
    """Write `value` (JSON text; None removes it) if the last write is still `expected`, of version `version`.

    `request` is `<client>.<number>`; writes of its client below `acked` are not sent again. Answers
    `Swapped`, or `Conflict` with the present value. A write that lost may `reserve` the next one.
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
