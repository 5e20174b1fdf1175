"""Public sync and async clients; all behaviour is in the base class (`runtime/base.py`) and in the locks.

They are in a layer above the locks because `Client.lock` returns a `Lock`.
"""

from __future__ import annotations

import asyncio
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
from .runtime.base import BaseClient
from .runtime.batcher import refuse_in_workflow
from .runtime.codec import MAX_BYTES
from .runtime.misuse import AsyncOnly, SyncOnly, require_asyncio
from .runtime.runners import run, run_async
from .runtime.threads import in_thread
from .state.accessors import AsyncStates, States
from .stores import Handle
from .validation import Duration, checked_key
from .workflow.client_runs import AsyncRuns, Runs
from .workflow.requests import Approvals, AsyncApprovals

LockT = TypeVar("LockT", bound=BaseLock[Any])
RwT = TypeVar("RwT", bound=BaseReadWriteLock[Any])
LeaderT = TypeVar("LeaderT", bound=BaseLeader[Any])


class _LockMethods(BaseClient, Generic[LockT, RwT, LeaderT]):
    """The methods that both clients have, for the type of lock that each returns."""

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
        `max_stall` (ten times `ttl`). `wait=None` waits for ever, `wait=0` tries once. `owner` is the name
        of the holder, for people. `on_lost` is called with the lease when it is lost. After an abnormal loss the key
        stays closed for `lock_delay`. As a decorator, `key` may be a template over the arguments or a function of
        them, and with `on_busy="skip"` a call returns None if the lock is busy.
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

        All callers of a key should give the same `permits`; the number of the newest caller counts, and an event
        reports a change. The other options are those of `lock`.
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
        """A candidate for leadership: of all candidates with this name one leads at a time.

        `on_change` is called with the candidate when it begins and when it stops to lead.
        """
        options = leader_options(name, ttl=ttl, owner=owner, renew_every=renew_every, max_stall=max_stall)
        return self._leader_type(self, options, on_change)


class Client(_LockMethods[Lock, ReadWriteLock, Leader], SyncOnly):
    """Durable locks for synchronous code.

    `url` defaults to `$HOLDFAST_URL`, or to `sqlite:///holdfast.db` in the current folder. Instead of a URL it may be a
    psycopg pool, an SQLAlchemy engine or a redis-py client: Holdfast opens its own connections with the same settings.
    `store_options` are options that could also be in the URL (`{"schema": "locks"}`). Clients in one `namespace` share
    their locks. `name` is a label of this client, shown in lists and messages. Records that were not used for
    `retention` are removed. A state, an input of a run or a signal may have up to `max_bytes`.

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
        """Holders and waiters of all locks."""
        return Locks(self)

    @property
    def state(self) -> States:
        """Values that many processes change: `hf.state("seats", initial=3).decrement()`."""
        return States(self)

    @property
    def leases(self) -> Leases:
        """Leases for which the caller passes the owner's name: they elect the one process that owns a resource."""
        return Leases(self)

    @property
    def run_locks(self) -> RunLocks:
        """Locks by workflow and run, for your own workflow engine."""
        return RunLocks(self)

    @property
    def runs(self) -> Runs:
        """Runs of workflows: start, read, signal, cancel, wait for the result; an engine drives them."""
        return Runs(self)

    @property
    def approvals(self) -> Approvals:
        """The requests of runs that people answer."""
        return Approvals(self)

    def hold(self, key: str, *, ttl: Duration, owner: str | None = None) -> Lease | None:
        """Acquire the key for the whole `ttl`, or return None while it is held. It is never released early.

        >>> with Client("memory://") as hf:
        ...     bool(hf.hold("reconciler", ttl=60)), bool(hf.hold("reconciler", ttl=60))
        (True, False)
        """
        return run(hold(self, key, ttl, owner, Lease), self.runtime.batchers)

    def close(self) -> None:
        """Release everything that is held (holds stay for their ttl), end every thread, close every connection."""
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

    The store is opened when the client is entered or first used, not by the constructor.

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
    _opens_at_once = False

    @property
    def locks(self) -> AsyncLocks:
        """Holders and waiters of all locks."""
        return AsyncLocks(self)

    @property
    def state(self) -> AsyncStates:
        """Values that many processes change: `await hf.state("seats", initial=3).decrement()`."""
        return AsyncStates(self)

    @property
    def leases(self) -> AsyncLeases:
        """Leases for which the caller passes the owner's name: they elect the one process that owns a resource."""
        return AsyncLeases(self)

    @property
    def run_locks(self) -> AsyncRunLocks:
        """Locks by workflow and run, for your own workflow engine."""
        return AsyncRunLocks(self)

    @property
    def runs(self) -> AsyncRuns:
        """Runs of workflows: start, read, signal, cancel, wait for the result; an engine drives them."""
        return AsyncRuns(self)

    @property
    def approvals(self) -> AsyncApprovals:
        """The requests of runs that people answer."""
        return AsyncApprovals(self)

    async def hold(self, key: str, *, ttl: Duration, owner: str | None = None) -> AsyncLease | None:
        """Acquire the key for the whole `ttl`, or return None while it is held. It is never released early."""
        return await run_async(hold(self, key, ttl, owner, AsyncLease), self.runtime.batchers)

    async def close(self) -> None:
        """Release everything that is held (holds stay for their ttl), end every thread, close every connection."""
        await in_thread(self._shut, name="holdfast-closer")  # closing waits for threads

    async def __aenter__(self) -> Self:
        require_asyncio()
        refuse_in_workflow(asyncio.get_running_loop())
        await in_thread(self._open, name="holdfast-opener")  # a store reads and writes files while it is opened
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
