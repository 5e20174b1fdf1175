"""The read-write lock: many readers or one writer, in order of arrival, so writers do not starve.

A writer takes all the permits that there are, a reader one of them; the rest is the semaphore's rules. Whoever
is inside and asks again, for either side, would wait behind those who wait for it: that is refused.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary, WeakSet

from msgspec.structs import replace

from ..errors import WouldDeadlock
from ..runtime.base import BaseClient
from ..runtime.flows import Flow
from ..runtime.grant import LocalGrant
from .lease import AsyncLease, BaseLease, Lease
from .lock import AsyncLock, BaseLock, Lock
from .options import LockOptions
from .process_queue import Caller, Context, current_caller

ALL = 1_000_000
"""The permits of a read-write lock. A part of what is stored: it can never change."""

L = TypeVar("L", bound=BaseLease)
LockT = TypeVar("LockT", bound=BaseLock[Any])

_inside: MutableMapping[Context, dict[tuple[str, str], WeakSet[BaseLease]]] = WeakKeyDictionary()


class _Side(BaseLock[L]):
    """One side of a read-write lock; a task or thread that is inside on either is not let in again."""

    def _enter(self, wait: Any) -> Flow[L]:
        caller = current_caller()
        inside = _inside.setdefault(caller, {})
        address = (self._client.runtime.store.identity, self.key)
        if any(lease.valid for lease in inside.get(address, ())):
            raise WouldDeadlock(
                f"this task or thread is inside {self.key!r} already and would wait behind those who wait for it: "
                "leave it first, or take the side that you need for all of the work"
            )
        lease = yield from super()._enter(wait)
        inside[address] = WeakSet([lease])
        if isinstance(caller, Caller):
            caller.holds.add(lease)

        def leave(_held: LocalGrant) -> None:
            inside.pop(address, None)

        lease._held.when_over(leave)  # noqa: SLF001  (leases and locks are one house)
        return lease

    def _sync_twin(self, key: str) -> Lock:
        return ReaderOrWriter(self._client, replace(self._options, key=key))

    def _async_twin(self, key: str) -> AsyncLock:
        return AsyncReaderOrWriter(self._client, replace(self._options, key=key))


class ReaderOrWriter(_Side[Lease], Lock):
    """One side, in synchronous code."""


class AsyncReaderOrWriter(_Side[AsyncLease], AsyncLock):
    """One side, in asynchronous code."""


class BaseReadWriteLock(Generic[LockT]):
    """What both colours have in common: two sides of one key."""

    _side_type: type[LockT]

    def __init__(self, client: BaseClient, options: LockOptions) -> None:
        self._client = client
        self._options = options

    @property
    def key(self) -> str:
        """What is locked."""
        return str(self._options.key)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.key!r} ttl={self._options.ttl / 1e6:g}>"

    def read(self) -> LockT:
        """The lock as its readers take it: any number of them at once, while nobody writes."""
        return self._side_type(self._client, replace(self._options, weight=1))

    def write(self) -> LockT:
        """The lock as its writer takes it: alone. Readers that come later wait behind it."""
        return self._side_type(self._client, replace(self._options, weight=ALL))


class ReadWriteLock(BaseReadWriteLock[Lock]):
    """Many readers or one writer, in synchronous code.

    >>> from holdfast import Client
    >>> with Client("memory://") as hf:
    ...     doc = hf.rwlock("doc:7")
    ...     with doc.read():
    ...         bool(hf.rwlock("doc:7").write().try_acquire())
    False
    """

    _side_type = ReaderOrWriter


class AsyncReadWriteLock(BaseReadWriteLock[AsyncLock]):
    """Many readers or one writer, in asynchronous code."""

    _side_type = AsyncReaderOrWriter
