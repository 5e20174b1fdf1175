"""The read-write lock: many readers or one writer, in order of arrival, so writers do not starve.

A writer takes all permits, a reader takes one; otherwise the rules are those of a semaphore. If a holder acquired the
lock again, for reading or writing, it would wait behind callers that wait for this holder. So this is refused.
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
"""The permits of a read-write lock. This number is stored, so it can never change."""

L = TypeVar("L", bound=BaseLease)
LockT = TypeVar("LockT", bound=BaseLock[Any])

_inside: MutableMapping[Context, dict[tuple[str, str], WeakSet[BaseLease]]] = WeakKeyDictionary()


class _Side(BaseLock[L]):
    """One side of a read-write lock; a task or thread that holds either side is refused."""

    def _enter(self, wait: Any) -> Flow[L]:
        caller = current_caller()
        inside = _inside.setdefault(caller, {})
        address = (self._client.runtime.store.identity, self.key)
        if any(lease.valid for lease in inside.get(address, ())):
            raise WouldDeadlock(
                f"this task or thread already holds {self.key!r} and would wait behind callers that wait for it: "
                "release it first, or acquire the side that you need for all of the work"
            )
        lease = yield from super()._enter(wait)
        inside[address] = WeakSet([lease])
        if isinstance(caller, Caller):
            caller.holds.add(lease)

        def leave(_held: LocalGrant) -> None:
            inside.pop(address, None)

        lease._held.when_over(leave)  # noqa: SLF001  (same package)
        return lease

    def _sync_twin(self, key: str) -> Lock:
        return ReaderOrWriter(self._client, replace(self._options, key=key))

    def _async_twin(self, key: str) -> AsyncLock:
        return AsyncReaderOrWriter(self._client, replace(self._options, key=key))


class ReaderOrWriter(_Side[Lease], Lock):
    """The lock for reading, or the lock for writing, in sync code."""


class AsyncReaderOrWriter(_Side[AsyncLease], AsyncLock):
    """The lock for reading, or the lock for writing, in async code."""


class BaseReadWriteLock(Generic[LockT]):
    """The common part of sync and async read-write locks: reading and writing under one key."""

    _side_type: type[LockT]

    def __init__(self, client: BaseClient, options: LockOptions) -> None:
        self._client = client
        self._options = options

    @property
    def key(self) -> str:
        """The key of the lock."""
        return str(self._options.key)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.key!r} ttl={self._options.ttl / 1e6:g}>"

    def read(self) -> LockT:
        """The lock for reading: any number of readers at once, while there is no writer."""
        return self._side_type(self._client, replace(self._options, weight=1))

    def write(self) -> LockT:
        """The lock for writing: one writer alone. Readers that arrive later wait behind it."""
        return self._side_type(self._client, replace(self._options, weight=ALL))


class ReadWriteLock(BaseReadWriteLock[Lock]):
    """Many readers or one writer, in sync code.

    >>> from holdfast import Client
    >>> with Client("memory://") as hf:
    ...     doc = hf.rwlock("doc:7")
    ...     with doc.read():
    ...         bool(hf.rwlock("doc:7").write().try_acquire())
    False
    """

    _side_type = ReaderOrWriter


class AsyncReadWriteLock(BaseReadWriteLock[AsyncLock]):
    """Many readers or one writer, in async code."""

    _side_type = AsyncReaderOrWriter
