"""Locks and semaphores, sync and async: thin typed classes over the same flows.

A lock object may be shared between threads and tasks; each of them has its own lease. As a context manager it yields
the lease; as a decorator it guards a function, sync or async, and keeps its signature.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Generic, ParamSpec, TypeVar
from weakref import WeakKeyDictionary

from msgspec.structs import replace

from ..errors import LockTimeout, NotHeld, WouldDeadlock
from ..runtime.base import BaseClient
from ..runtime.flows import Flow
from ..runtime.misuse import AsyncOnly, SyncOnly
from ..runtime.runners import run, run_async
from ..validation import Duration
from .acquire import take
from .cancel_scope import LeaseScope, Releasing
from .decorator import guarded
from .lease import AsyncLease, BaseLease, Lease
from .options import LockOptions, checked_wait
from .process_queue import Context, current_context

P = ParamSpec("P")
R = TypeVar("R")
L = TypeVar("L", bound=BaseLease)


class _DefaultWait:
    """Stands for the `wait` of the lock object."""


AS_GIVEN = _DefaultWait()


class BaseLock(Generic[L]):
    """The common part of sync and async locks: the options, and the leases of each task or thread."""

    _lease_type: type[L]

    def __init__(self, client: BaseClient, options: LockOptions) -> None:
        self._client = client
        self._options = options
        # Leases that a task or thread got by `acquire` are forgotten when it ends; a block that was entered must be
        # left.
        self._acquired: WeakKeyDictionary[Context, list[tuple[L, int | None]]] = WeakKeyDictionary()
        self._entered: dict[Context, list[tuple[L, int | None]]] = {}

    @property
    def key(self) -> str:
        """The key of the lock."""
        return self._options.key if isinstance(self._options.key, str) else repr(self._options.key)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.key!r} ttl={self._options.ttl / 1e6:g}>"

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Guard a function: each call acquires the lock, under the key that is made from its arguments."""
        return guarded(function, self._options.key, self._options.on_busy, self._sync_twin, self._async_twin)

    def _sync_twin(self, key: str) -> Lock:
        return Lock(self._client, replace(self._options, key=key))

    def _async_twin(self, key: str) -> AsyncLock:
        return AsyncLock(self._client, replace(self._options, key=key))

    def _take(self, wait: Duration | _DefaultWait | None) -> Flow[L]:
        """The flow of `acquire`: its lease may be released by `release`."""
        lease = yield from self._enter(wait)
        context = current_context()
        held = [other for other in self._acquired.get(context, ()) if other[0]._held.state != "ended"]  # noqa: SLF001
        try:
            self._acquired[context] = [*held, (lease, _latest_acquisition(lease))]
        except BaseException:  # interrupted before the caller had the lease
            self._acquired[context] = held
            raise
        return lease

    def _enter(self, wait: Duration | _DefaultWait | None) -> Flow[L]:
        timeout = self._options.wait if isinstance(wait, _DefaultWait) else checked_wait(wait)
        return take(self._client, self._options, timeout, self._lease_type)

    def _leave(self) -> tuple[L, int | None]:
        """The lease of the innermost block that is left now, and which acquisition it is.

        Usually the task or thread that entered the block leaves it; another one may close a generator or an exit stack.
        """
        context = current_context()
        if context not in self._entered and len(self._entered) == 1:
            context = next(iter(self._entered))
        mine = self._entered.get(context)
        if not mine:
            raise NotHeld(f"{self.key!r} was entered by several tasks or threads, and this is not one of them")
        left = mine.pop()
        if not mine:
            del self._entered[context]
        return left

    def _entering(self, lease: L) -> L:
        """Remember the lease of a block. If this is interrupted, the lease is dropped, and so released."""
        context = current_context()
        try:
            self._entered.setdefault(context, []).append((lease, _latest_acquisition(lease)))
        except BaseException:
            self._entered.pop(context, None)
            raise
        lease._received = True  # noqa: SLF001
        return lease

    def _last_acquired(self) -> tuple[L, int | None]:
        """The latest lease that this task or thread got by `acquire` and still has, and which acquisition it is."""
        mine = self._acquired.get(current_context(), [])
        while mine:
            lease, acquisition = mine.pop()
            if lease._held.state != "ended":  # noqa: SLF001
                return lease, acquisition
        raise NotHeld(f"this task or thread has not acquired {self.key!r} by acquire() of this lock object")


def _latest_acquisition(lease: BaseLease) -> int | None:
    """The number of the latest acquisition, of a lease that may be acquired several times."""
    turn = lease._turn  # noqa: SLF001
    return None if turn is None else turn.acquisitions[-1]


class Lock(BaseLock[Lease], SyncOnly):
    """A lock or a semaphore, in sync code."""

    _lease_type = Lease

    def acquire(self, wait: Duration | _DefaultWait | None = AS_GIVEN) -> Lease:
        """Acquire the lock, waiting for at most `wait` (None: no limit, 0: try once), or raise `LockTimeout`."""
        lease = run(self._take(wait), self._client.runtime.batchers)
        lease._received = True  # noqa: SLF001
        return lease

    def try_acquire(self) -> Lease | None:
        """Acquire the lock if it is free now, else return None."""
        try:
            return self.acquire(wait=0)
        except (LockTimeout, WouldDeadlock):
            return None

    def release(self) -> None:
        """Release the last lease that this thread acquired by `acquire` of this lock object."""
        lease, acquisition = self._last_acquired()
        run(lease._release(acquisition), lease._runtime.batchers)  # noqa: SLF001

    def __enter__(self) -> Lease:
        return self._entering(run(self._enter(AS_GIVEN), self._client.runtime.batchers))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        lease, acquisition = self._leave()
        with Releasing(error):
            run(lease._release(acquisition), lease._runtime.batchers)  # noqa: SLF001


class AsyncLock(BaseLock[AsyncLease], AsyncOnly):
    """A lock or a semaphore, in async code."""

    _lease_type = AsyncLease

    def __init__(self, client: BaseClient, options: LockOptions) -> None:
        super().__init__(client, options)
        self._blocks: dict[AsyncLease, LeaseScope] = {}

    async def acquire(self, wait: Duration | _DefaultWait | None = AS_GIVEN) -> AsyncLease:
        """Acquire the lock, waiting for at most `wait` (None: no limit, 0: try once), or raise `LockTimeout`."""
        lease = await run_async(self._take(wait), self._client.runtime.batchers)
        lease._received = True  # noqa: SLF001
        return lease

    async def try_acquire(self) -> AsyncLease | None:
        """Acquire the lock if it is free now, else return None."""
        try:
            return await self.acquire(wait=0)
        except (LockTimeout, WouldDeadlock):
            return None

    async def release(self) -> None:
        """Release the last lease that this task acquired by `acquire` of this lock object."""
        lease, acquisition = self._last_acquired()
        await run_async(lease._release(acquisition), lease._runtime.batchers)  # noqa: SLF001

    async def __aenter__(self) -> AsyncLease:
        lease = self._entering(await run_async(self._enter(AS_GIVEN), self._client.runtime.batchers))
        if lease not in self._blocks:  # a reentrant block within a block changes nothing
            self._blocks[lease] = LeaseScope(lease)
        self._blocks[lease].depth += 1
        return lease

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        lease, acquisition = self._leave()
        block = self._blocks[lease]
        block.depth -= 1
        if not block.depth:
            del self._blocks[lease]
            block.leave(error)
        with Releasing(error):
            await run_async(lease._release(acquisition), lease._runtime.batchers)  # noqa: SLF001
