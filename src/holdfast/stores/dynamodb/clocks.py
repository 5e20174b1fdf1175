"""Expiries without a clock that all clients share: by a stated difference of the clocks, or by observation.

**By a stated difference.** `skew` is added to every ttl that is stored, and so to every expiry; the holder counts its
own deadline from the ttl that it asked for. Clients whose clocks differ from each other by at most `skew` then never
see a grant as expired while its holder may still use it, also after a client with a slow clock has settled the record:
the rules lower an expiry to one *stored* ttl from now.

**By observation.** No stored time is trusted. An entry (a holder, a waiter) expires when this client has seen it
unchanged for its ttl, by a clock of its own that never steps. Before the rules see a record, its expiries are replaced
by those that follow; what the rules leave unchanged is written back as it was, so that other observers do not take it
for a renewal.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from functools import cache
from typing import TypeVar

from msgspec.structs import replace

from ...commands import Command
from ...rules.lock_record import Holder, LockRecord, Tombstone, Waiter

LENGTHS = ("ttl", "waiter_ttl", "delay")
"""The fields of commands that say how long something is kept."""
MOST_OBSERVED = 20_000
"""How many entries are observed at most. One that was forgotten is observed from the beginning again."""

Mortal = TypeVar("Mortal", Holder, Waiter, Tombstone)


def lengthened(command: Command, skew: int) -> Command:
    """The command with `skew` microseconds added to everything that it asks to be kept for a time."""
    longer = {}
    for name in _lengths_of(type(command)):
        asked = getattr(command, name)
        if type(asked) is int and asked > 0:
            longer[name] = asked + skew
    return replace(command, **longer) if longer else command


@cache
def _lengths_of(kind: type[Command]) -> tuple[str, ...]:
    return tuple(name for name in LENGTHS if name in kind.__struct_fields__)


class Observations:
    """Since when this process has seen each entry as it is. Used by any thread."""

    def __init__(self, clock: Callable[[], int]) -> None:
        """`clock`: microseconds that never step."""
        self._clock = clock
        self._lock = threading.Lock()
        self._since: OrderedDict[Hashable, int] = OrderedDict()

    def shown(self, key: str, record: LockRecord, now: int) -> LockRecord:
        """The record with expiries that follow from what was observed, relative to `now`."""
        at = self._clock()

        def ends(part: str, id: str, *entry: object, length: int) -> int:
            left = length - (at - self._seen_since((key, part, id, *entry), at))
            # Never the whole length: a renewal at this moment would change nothing, and would not be written.
            return now + max(0, min(left, length - 1))

        def mortal(part: str, one: Mortal, *entry: object) -> Mortal:
            if one.expires_at is None:
                return one
            length = one.ttl or 0
            return replace(one, expires_at=ends(part, one.id, *entry, length, one.expires_at, length=length))

        def holder(one: Holder) -> Holder:
            changed = mortal("holder", one, one.token)
            if changed.place is None:
                return changed
            return replace(changed, place=mortal("waiter", changed.place, changed.place.number))

        closed = record.closed_until
        if closed:
            closed = ends("closed", "", closed, length=record.closed_for)
        shown = replace(
            record,
            holders=tuple(map(holder, record.holders)),
            waiters=tuple(mortal("waiter", one, one.number) for one in record.waiters),
            tombstones=tuple(mortal("tombstone", one) for one in record.tombstones),
            closed_until=closed,
        )
        return shown if record.due_at is None else replace(shown, due_at=_soonest(shown))

    def _seen_since(self, entry: Hashable, at: int) -> int:
        with self._lock:
            since = self._since.setdefault(entry, at)
            self._since.move_to_end(entry)
            if len(self._since) > MOST_OBSERVED:
                self._since.popitem(last=False)
        return since


def _soonest(record: LockRecord) -> int | None:
    ends = [one.expires_at for one in record.holders] + [one.expires_at for one in record.waiters]
    ends.append(record.closed_until or None)
    return min((end for end in ends if end is not None), default=None)


def written_back(stored: LockRecord, shown: LockRecord, after: LockRecord) -> LockRecord:
    """The record to write: where the rules left an entry as it was shown, the entry as it was stored."""
    if after is shown:
        return stored
    closed = stored.closed_until if after.closed_until == shown.closed_until else after.closed_until
    return replace(
        after,
        holders=_restored(stored.holders, shown.holders, after.holders),
        waiters=_restored(stored.waiters, shown.waiters, after.waiters),
        tombstones=_restored(stored.tombstones, shown.tombstones, after.tombstones),
        closed_until=closed,
    )


def _restored(stored: Sequence[Mortal], shown: Sequence[Mortal], after: Sequence[Mortal]) -> tuple[Mortal, ...]:
    known = {one.id: (as_shown, one) for one, as_shown in zip(stored, shown, strict=True)}
    return tuple(known[one.id][1] if one.id in known and known[one.id][0] == one else one for one in after)
