"""The two clients that people use: the same words in two colours, and nothing of substance.

They stand above the locks because `Client.lock` returns a `Lock`; what both are made of is in `client.py`.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from .events import Events
from .locks.admin import AsyncLocks, Locks
from .locks.hold import hold
from .locks.leader import TTL as TERM
from .locks.leader import AsyncLeader, BaseLeader, Leader, OnChange, leader_options
from .locks.lease import AsyncLease, Lease
from .locks.lock import AsyncLock, BaseLock, Lock
from .locks.named_leases import AsyncLeases, Leases
from .locks.options import Key, OnBusy, OnLost, checked_options
from .locks.run_locks import AsyncRunLocks, RunLocks
from .locks.rwlock import ALL, AsyncReadWriteLock, BaseReadWriteLock, ReadWriteLock
from .observe import LoggingSink
from .platform import start_thread
from .runtime.base import BaseClient
from .runtime.codec import MAX_BYTES
from .runtime.misuse import AsyncOnly, SyncOnly, require_asyncio
from .runtime.notifier import Notifier
from .runtime.runners import run, run_async
from .state.accessors import AsyncStates, States
from .stores import Handle
from .validation import Duration, checked_key
from .workflow.client_runs import AsyncRuns, Runs

LockT = TypeVar("LockT", bound=BaseLock[Any])
RwT = TypeVar("RwT", bound=BaseReadWriteLock[Any])
LeaderT = TypeVar("LeaderT", bound=BaseLeader[Any])


class _LockMethods(BaseClient, Generic[LockT, RwT, LeaderT]):
    """The words that both clients have, for the colour of lock that each gives out."""

    _lock_type: type[LockT]
    _rw_type: type[RwT]
    _leader_type: type[LeaderT]

    def __init__(
        self,
        url: str | Handle | None = None,
        *,
        namespace: str = "default",
        name: str | None = None,
        retention: Duration = "7 days",
        store_options: Mapping[str, object] | None = None,
        max_bytes: int = MAX_BYTES,
    ) -> None:
        super().__init__(
            url,
            namespace=namespace,
            name=name,
            retention=retention,
            store_options=store_options,
            max_bytes=max_bytes,
            events=Events(LoggingSink()),
        )

    def lock(
        self,
        key: Key,
        *,
        ttl: Duration = 30,
        wait: Duration | None = None,
        owner: str | None = None,
        renew_every: Duration | None = None,
        max_renew_failures: int = 3,
        max_stall: Duration | None = None,
        reentrant: bool = False,
        on_lost: OnLost | None = None,
        on_busy: OnBusy = "raise",
        lock_delay: Duration = 0,
    ) -> LockT:
        """A lock that one holder has at a time.

        It is renewed every `renew_every` (a third of `ttl`) while it is held, and given up after
        `max_renew_failures` in a row, at its local deadline, or when its event loop has been stuck for
        `max_stall` (ten times `ttl`). `wait=None` waits for ever, `wait=0` tries once. `owner` is who holds it,
        for people. `on_lost` is called with the lease when it is lost. After an abnormal loss the key stays
        closed for `lock_delay`. As a decorator, `key` may be a template over the arguments or a function of
        them, and `on_busy="skip"` lets a call that finds the lock busy return None.
        """
        options = checked_options(
            key,
            kind="mutex",
            ttl=ttl,
            wait=wait,
            owner=owner,
            renew_every=renew_every,
            max_renew_failures=max_renew_failures,
            max_stall=max_stall,
            reentrant=reentrant,
            on_lost=on_lost,
            on_busy=on_busy,
            lock_delay=lock_delay,
        )
        return self._lock_type(self, options)

    def semaphore(
        self,
        key: Key,
        *,
        permits: int,
        weight: int = 1,
        ttl: Duration = 30,
        wait: Duration | None = None,
        owner: str | None = None,
        renew_every: Duration | None = None,
        max_renew_failures: int = 3,
        max_stall: Duration | None = None,
        on_lost: OnLost | None = None,
        on_busy: OnBusy = "raise",
        lock_delay: Duration = 0,
    ) -> LockT:
        """A number of permits, of which each holder takes `weight`; first come, first served.

        Everyone who uses the key says the same `permits`; the newest caller's number counts, and a change of
        it is reported. The other options are those of `lock`.
        """
        options = checked_options(
            key,
            kind="semaphore",
            permits=permits,
            weight=weight,
            ttl=ttl,
            wait=wait,
            owner=owner,
            renew_every=renew_every,
            max_renew_failures=max_renew_failures,
            max_stall=max_stall,
            on_lost=on_lost,
            on_busy=on_busy,
            lock_delay=lock_delay,
        )
        return self._lock_type(self, options)

    def rwlock(
        self,
        key: str,
        *,
        ttl: Duration = 30,
        wait: Duration | None = None,
        owner: str | None = None,
        renew_every: Duration | None = None,
        max_renew_failures: int = 3,
        max_stall: Duration | None = None,
        on_lost: OnLost | None = None,
        on_busy: OnBusy = "raise",
        lock_delay: Duration = 0,
    ) -> RwT:
        """Many readers or one writer, in order of arrival: take `.read()` or `.write()`. Options as those of `lock`."""
        options = checked_options(
            checked_key(key),
            kind="rw",
            permits=ALL,
            ttl=ttl,
            wait=wait,
            owner=owner,
            renew_every=renew_every,
            max_renew_failures=max_renew_failures,
            max_stall=max_stall,
            on_lost=on_lost,
            on_busy=on_busy,
            lock_delay=lock_delay,
        )
        return self._rw_type(self, options)

    def leader(
        self,
        name: str,
        *,
        ttl: Duration = TERM,
        owner: str | None = None,
        on_change: OnChange | None = None,
        renew_every: Duration | None = None,
        max_stall: Duration | None = None,
    ) -> LeaderT:
        """A candidate for leadership: of all that ask under this name, one leads at a time.

        `on_change` is called with the candidate whenever it begins or ceases to lead.
        """
        options = leader_options(name, ttl=ttl, owner=owner, renew_every=renew_every, max_stall=max_stall)
        return self._leader_type(self, options, on_change)


class Client(_LockMethods[Lock, ReadWriteLock, Leader], SyncOnly):
    """Durable locks for synchronous code.

    `url` defaults to `$HOLDFAST_URL`, else to `sqlite:///holdfast.db` in the folder where the client is made. In its
    place may be a psycopg pool, an SQLAlchemy engine or a redis-py client that you have already: Holdfast opens
    connections of its own in the same way. `store_options` are what could be in the URL (`{"schema": "locks"}`).
    Clients in one `namespace` see each other. `name` is who this is, for people. Records that nobody used for
    `retention` are forgotten. A state, an input of a run or a signal may have up to `max_bytes`.

    >>> with Client("memory://") as hf:
    ...     with hf.lock("invoice:42", ttl=30, wait=10) as lease:
    ...         lease.key
    'invoice:42'
    """

    _lock_type = Lock
    _rw_type = ReadWriteLock
    _leader_type = Leader

    @property
    def locks(self) -> Locks:
        """Who holds what, and who waits."""
        return Locks(self)

    @property
    def state(self) -> States:
        """Values that many processes change: `hf.state("seats", initial=3).decrement()`."""
        return States(self)

    @property
    def leases(self) -> Leases:
        """Leases whose owner is named by the caller, for electing the one process that owns a resource."""
        return Leases(self)

    @property
    def run_locks(self) -> RunLocks:
        """One driver a run, for those who bring their own workflow engine."""
        return RunLocks(self)

    @property
    def runs(self) -> Runs:
        """Runs of workflows: start, look, signal, cancel, wait for the result; an engine drives them."""
        return Runs(self)

    def hold(self, key: str, *, ttl: Duration, owner: str | None = None) -> Lease | None:
        """Take the key for a whole window, or None while somebody has it. Never released early.

        >>> with Client("memory://") as hf:
        ...     bool(hf.hold("reconciler", ttl=60)), bool(hf.hold("reconciler", ttl=60))
        (True, False)
        """
        return run(hold(self, key, ttl, owner, Lease), self.runtime.batchers)

    def close(self) -> None:
        """Release what is held (holds stay for their window), end every thread, close every connection."""
        self._shut()

    def __enter__(self) -> Self:
        self._check_open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class AsyncClient(_LockMethods[AsyncLock, AsyncReadWriteLock, AsyncLeader], AsyncOnly):
    """Durable locks for asynchronous code. The options are those of `Client`.

    >>> import asyncio
    >>> async def main() -> str:
    ...     async with AsyncClient("memory://") as hf:
    ...         async with hf.lock("invoice:42", ttl=30, wait=10) as lease:
    ...             return lease.key
    >>> asyncio.run(main())
    'invoice:42'
    """

    _lock_type = AsyncLock
    _rw_type = AsyncReadWriteLock
    _leader_type = AsyncLeader

    @property
    def locks(self) -> AsyncLocks:
        """Who holds what, and who waits."""
        return AsyncLocks(self)

    @property
    def state(self) -> AsyncStates:
        """Values that many processes change: `await hf.state("seats", initial=3).decrement()`."""
        return AsyncStates(self)

    @property
    def leases(self) -> AsyncLeases:
        """Leases whose owner is named by the caller, for electing the one process that owns a resource."""
        return AsyncLeases(self)

    @property
    def run_locks(self) -> AsyncRunLocks:
        """One driver a run, for those who bring their own workflow engine."""
        return AsyncRunLocks(self)

    @property
    def runs(self) -> AsyncRuns:
        """Runs of workflows: start, look, signal, cancel, wait for the result; an engine drives them."""
        return AsyncRuns(self)

    async def hold(self, key: str, *, ttl: Duration, owner: str | None = None) -> AsyncLease | None:
        """Take the key for a whole window, or None while somebody has it. Never released early."""
        return await run_async(hold(self, key, ttl, owner, AsyncLease), self.runtime.batchers)

    async def close(self) -> None:
        """Release what is held (holds stay for their window), end every thread, close every connection."""
        done = Notifier()

        def shut() -> None:
            try:
                self._shut()
            finally:
                done.set()

        # Closing waits for threads; a thread of its own keeps the loop free, and is gone afterwards.
        closer = threading.Thread(target=shut, name="holdfast-closer", daemon=True)
        start_thread(closer)
        await done.wait_async()
        closer.join()

    async def __aenter__(self) -> Self:
        require_asyncio()
        self._check_open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
