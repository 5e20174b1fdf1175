"""Writes of one process to one state, each built on the one before it while that is still in progress.

A hundred tasks that change one state need not wait for a commit each: they send the store a chain of writes in one
batch. If the first of them finds that another process was faster, the whole chain fails and is tried again. Correctness
does not depend on a chain: the store compares every write with the stored value.
"""

from __future__ import annotations

import threading
from typing import NamedTuple
from weakref import WeakKeyDictionary

from ..rules.slot import Address, number_of
from ..runtime.base import Runtime


class PendingValue(NamedTuple):
    """A value of a state, and the write that made it. `fresh`: it was read from the store since the call began."""

    id: str
    version: int
    value: str | None
    fresh: bool


class _Chain:
    __slots__ = ("tip", "under_way")

    def __init__(self, tip: PendingValue) -> None:
        self.tip = tip
        self.under_way = {tip.id}


class PendingWrites:
    """The chains of one client."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # reentrant: a signal handler may run while its thread holds it
        self._chains: dict[Address, _Chain] = {}
        self._unanswered: set[int] = set()

    def tip(self, address: Address) -> PendingValue | None:
        """The newest value whose write is in progress, if there is one."""
        with self._lock:
            chain = self._chains.get(address)
            return None if chain is None else chain.tip

    def begin(self, id: str) -> int:
        """A write is about to be sent. Returns the lowest number of this client's writes that are not answered."""
        number = number_of(id)
        with self._lock:
            self._unanswered.add(number)
            return min(self._unanswered)

    def extend(self, address: Address, base: PendingValue, link: PendingValue) -> bool:
        """Add a write behind its base. False if another write was added in between: then read again."""
        with self._lock:
            chain = self._chains.get(address)
            if chain is None:
                self._chains[address] = _Chain(link)
                return True
            if chain.tip.id != base.id:
                return False
            chain.tip = link
            chain.under_way.add(link.id)
            return True

    def done(self, address: Address, link: PendingValue, *, written: bool) -> None:
        """A write was answered, or given up. Writes built on one that failed will fail too. It may be called twice."""
        with self._lock:
            self._unanswered.discard(number_of(link.id))
            chain = self._chains.get(address)
            if chain is None or link.id not in chain.under_way:
                return
            chain.under_way.discard(link.id)
            if not written or not chain.under_way:
                del self._chains[address]


_chains: WeakKeyDictionary[Runtime, PendingWrites] = WeakKeyDictionary()


def chains_of(runtime: Runtime) -> PendingWrites:
    """The chains of a client in this process."""
    found = _chains.get(runtime)
    return found if found is not None else _chains.setdefault(runtime, PendingWrites())
