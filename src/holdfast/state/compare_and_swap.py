"""Compare-and-swap, without I/O: read, decide, write if the value was not changed meanwhile, else decide again.

A decision may be computed from a value whose write is still in progress. It then counts only if the write built on it
succeeds: an exception of the decision, or a decision to change nothing, is accepted only if it was computed from a
value that was read from the store after the call began.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from typing import NamedTuple, TypeVar

from ..commands import ReadSlot, SwapSlot
from ..errors import AtomicStateConflictError, StoreUnavailable, WouldDeadlock
from ..rules.slot import Address, Conflict, SlotSeen, Swapped
from ..runtime.base import Runtime
from ..runtime.flows import Flow, Wait, send
from ..runtime.notifier import Notifier
from ..validation import MICROSECONDS
from .pending_writes import PendingValue, PendingWrites, chains_of

FIRST_PAUSE = 0.001
LONGEST_PAUSE = 0.05
RESERVE_AFTER = 2
"""After so many conflicts in a row a writer reserves the next write for itself."""
RESERVATION = 50_000
"""Microseconds of a reservation: enough to write again, and the delay that a crashed writer causes to others."""

A = TypeVar("A")


class SlotChange(NamedTuple):
    """The new value of a slot; None deletes it."""

    value: str | None


Decision = tuple[SlotChange | None, A]
"""The change (None: no change), and the result for the caller once it is made."""
Decide = Callable[[PendingValue], Decision[A]]


def read(address: Address) -> Flow[PendingValue]:
    """The current value in the store."""
    seen, _ = yield from send(ReadSlot(address=address), role="queries")
    assert isinstance(seen, SlotSeen)  # noqa: S101  (the command's only answer)
    return PendingValue(seen.last, seen.version, seen.value, fresh=True)


def transact(runtime: Runtime, address: Address, decide: Decide[A], max_retries: int) -> Flow[A]:
    """Change a slot by a decision that may be computed several times. Returns the result of the last one."""
    if (id(runtime), address) in _deciding.places:
        raise WouldDeadlock(
            f"the state {address[2]!r} cannot be changed within its own update(): the two changes would undo each "
            "other forever. Nothing was written. Compute the new value and return it."
        )
    chains = chains_of(runtime)
    conflicts = 0
    base = chains.tip(address)
    if base is None:
        found = yield from read(address)
        base = chains.tip(address) or found
    while True:
        try:
            change, answer = _decide(decide, (id(runtime), address), base)
        except Exception:
            if base.fresh:
                raise
            base = yield from read(address)
            continue
        if change is None:
            if base.fresh:
                return answer
            base = yield from read(address)
            continue
        link = PendingValue(runtime.new_attempt(), base.version + 1, change.value, fresh=False)
        if not chains.extend(address, base, link):
            base = chains.tip(address) or (yield from read(address))
            continue
        conflict = yield from _write(chains, address, base, link, reserve=conflicts >= RESERVE_AFTER)
        if conflict is None:
            return answer
        conflicts += 1
        if conflicts > max_retries:
            raise AtomicStateConflictError(
                f"the state {address[2]!r} was changed by other writers {conflicts} times in a row before this change "
                f"could be written (max_retries={max_retries}). Nothing was written; the call may be repeated. If "
                "this happens often, compute the new value faster, or acquire a lock around the change.",
                key=address[2],
                retries=max_retries,
            )
        if conflict.wait:
            yield Wait(Notifier(), _pause(conflicts, conflict))
            base = chains.tip(address) or (yield from read(address))
        else:  # at once: the value in the conflict is the newest
            base = chains.tip(address) or PendingValue(conflict.last, conflict.version, conflict.value, fresh=True)


class _Deciding(threading.local):
    """The states for which this thread is computing a new value now."""

    def __init__(self) -> None:
        self.places: set[tuple[int, Address]] = set()


_deciding = _Deciding()


def _decide(decide: Decide[A], place: tuple[int, Address], base: PendingValue) -> Decision[A]:
    _deciding.places.add(place)
    try:
        return decide(base)
    finally:
        _deciding.places.discard(place)


def _write(
    chains: PendingWrites, address: Address, base: PendingValue, link: PendingValue, *, reserve: bool
) -> Flow[Conflict | None]:
    """Send a write; None if it succeeded."""
    written = False
    try:
        command = SwapSlot(
            address=address,
            request=link.id,
            expected=base.id,
            version=base.version,
            value=link.value,
            acked=chains.begin(link.id),
            reserve=RESERVATION if reserve else 0,
        )
        outcome, ambiguous = yield from send(command)
        written = isinstance(outcome, Swapped)
    finally:
        chains.done(address, link, written=written)
    if written:
        return None
    assert isinstance(outcome, Conflict)  # noqa: S101  (the command's only other answer)
    if ambiguous and not outcome.decided:
        raise StoreUnavailable(
            f"the reply to a change of the state {address[2]!r} was lost, and the state was changed so often since "
            "then that it is not known whether the change was made. Read the state before you repeat the call.",
            ambiguous=True,
        )
    return outcome


def _pause(conflicts: int, conflict: Conflict) -> float:
    """Seconds to wait for the writer that has reserved the next write: random, and longer with each conflict."""
    longest = min(LONGEST_PAUSE, FIRST_PAUSE * 2**conflicts)
    return random.uniform(0, min(longest, conflict.wait / MICROSECONDS))
