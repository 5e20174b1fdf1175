"""Locks and semaphores, in two colours: thin, typed, and the same flows beneath.

A lock object may be shared between threads and tasks; each of them has its own lease. As a context manager
it yields the lease; as a decorator it guards a function, sync or async, whose signature is kept.
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
from .cancel_scope import LeaseScope, Leaving
from .decorator import guarded
from .lease import AsyncLease, BaseLease, Lease
from .options import LockOptions, checked_wait
from .process_queue import Context, current_context

P = ParamSpec("P")
R = TypeVar("R")
L = TypeVar("L", bound=BaseLease)


class _DefaultWait:
    """The wait that the lock was made with."""


AS_GIVEN = _DefaultWait()


class BaseLock(Generic[L]):
    """What both colours of a lock have in common: its terms, and who in this process holds it through it."""

    _lease_type: type[L]

    def __init__(self, client: BaseClient, options: LockOptions) -> None:
        self._client = client
        self._options = options
        # What each task or thread took by `acquire` is forgotten with it; what it entered, it leaves.
        self._taken: WeakKeyDictionary[Context, list[tuple[L, int | None]]] = WeakKeyDictionary()
        self._entered: dict[Context, list[tuple[L, int | None]]] = {}

    @property
    def key(self) -> str:
        """What is locked."""
        return self._options.key if isinstance(self._options.key, str) else repr(self._options.key)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.key!r} ttl={self._options.ttl / 1e6:g}>"

    def __call__(self, function: Callable[P, R]) -> Callable[P, R]:
        """Guard a function: each call takes the lock, for the key that its arguments say."""
        return guarded(function, self._options.key, self._options.on_busy, self._sync_twin, self._async_twin)

    def _sync_twin(self, key: str) -> Lock:
        return Lock(self._client, replace(self._options, key=key))

    def _async_twin(self, key: str) -> AsyncLock:
        return AsyncLock(self._client, replace(self._options, key=key))

    def _take(self, wait: Duration | _DefaultWait | None) -> Flow[L]:
        """Take it for `acquire`: what was taken so may be given back by `release`."""
        lease = yield from self._enter(wait)
        context = current_context()
        living = [other for other in self._taken.get(context, ()) if other[0]._held.state != "ended"]  # noqa: SLF001
        try:
            self._taken[context] = [*living, (lease, _latest_grip(lease))]
        except BaseException:  # interrupted before anybody had it in hand
            self._taken[context] = living
            raise
        return lease

    def _enter(self, wait: Duration | _DefaultWait | None) -> Flow[L]:
        patience = self._options.wait if isinstance(wait, _DefaultWait) else checked_wait(wait)
        return take(self._client, self._options, patience, self._lease_type)

    def _leave(self) -> tuple[L, int | None]:
        """The lease of the innermost block that is left now, and which of its takings that block is.

        As a rule by the task or thread that entered it; a generator or an exit stack may be finished by another.
        """
        context = current_context()
        if context not in self._entered and len(self._entered) == 1:
            context = next(iter(self._entered))
        mine = self._entered.get(context)
        if not mine:
            raise NotHeld(f"{self.key!r} was entered by several tasks or threads, and this is none of them")
        left = mine.pop()
        if not mine:
            del self._entered[context]
        return left

    def _entering(self, lease: L) -> L:
        """Remember the lease of a block. Interrupted before the block began, it is dropped, and so given back."""
        context = current_context()
        try:
            self._entered.setdefault(context, []).append((lease, _latest_grip(lease)))
        except BaseException:
            self._entered.pop(context, None)
            raise
        lease._in_hand = True  # noqa: SLF001
        return lease

    def _last_taken(self) -> tuple[L, int | None]:
        """The lease that this task or thread took last by `acquire` and has not given back, and which taking it is."""
        mine = self._taken.get(current_context(), [])
        while mine:
            lease, grip = mine.pop()
            if lease._held.state != "ended":  # noqa: SLF001
                return lease, grip
        raise NotHeld(f"this task or thread has not taken {self.key!r} by acquire() of this lock object")


def _latest_grip(lease: BaseLease) -> int | None:
    """Which of its takings the latest one is, of a lease that may be taken several times."""
    turn = lease._turn  # noqa: SLF001
    return None if turn is None else turn.grips[-1]


class Lock(BaseLock[Lease], SyncOnly):
    """A lock, or a number of permits, in synchronous code."""

    _lease_type = Lease

    def acquire(self, wait: Duration | _DefaultWait | None = AS_GIVEN) -> Lease:
        """Take the lock, waiting as long as `wait` says (None: for ever, 0: try once), or raise `LockTimeout`."""
        lease = run(self._take(wait), self._client.runtime.batchers)
        lease._in_hand = True  # noqa: SLF001
        return lease

    def try_acquire(self) -> Lease | None:
        """Take the lock if it is free now, else None."""
        try:
            return self.acquire(wait=0)
        except (LockTimeout, WouldDeadlock):
            return None

    def release(self) -> None:
        """Give back what this thread took last by `acquire` of this lock object."""
        lease, grip = self._last_taken()
        run(lease._give(grip), lease._runtime.batchers)  # noqa: SLF001

    def __enter__(self) -> Lease:
        return self._entering(run(self._enter(AS_GIVEN), self._client.runtime.batchers))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        lease, grip = self._leave()
        with Leaving(error):
            run(lease._give(grip), lease._runtime.batchers)  # noqa: SLF001


class AsyncLock(BaseLock[AsyncLease], AsyncOnly):
    """A lock, or a number of permits, in asynchronous code."""

    _lease_type = AsyncLease

    def __init__(self, client: BaseClient, options: LockOptions) -> None:
        super().__init__(client, options)
        self._blocks: dict[AsyncLease, LeaseScope] = {}

    async def acquire(self, wait: Duration | _DefaultWait | None = AS_GIVEN) -> AsyncLease:
        """Take the lock, waiting as long as `wait` says (None: for ever, 0: try once), or raise `LockTimeout`."""
        lease = await run_async(self._take(wait), self._client.runtime.batchers)
        lease._in_hand = True  # noqa: SLF001
        return lease

    async def try_acquire(self) -> AsyncLease | None:
        """Take the lock if it is free now, else None."""
        try:
            return await self.acquire(wait=0)
        except (LockTimeout, WouldDeadlock):
            return None

    async def release(self) -> None:
        """Give back what this task took last by `acquire` of this lock object."""
        lease, grip = self._last_taken()
        await run_async(lease._give(grip), lease._runtime.batchers)  # noqa: SLF001

    async def __aenter__(self) -> AsyncLease:
        lease = self._entering(await run_async(self._enter(AS_GIVEN), self._client.runtime.batchers))
        if lease not in self._blocks:  # a reentrant block within a block changes nothing
            self._blocks[lease] = LeaseScope(lease)
        self._blocks[lease].depth += 1
        return lease

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        lease, grip = self._leave()
        block = self._blocks[lease]
        block.depth -= 1
        if not block.depth:
            del self._blocks[lease]
            block.leave(error)
        with Leaving(error):
            await run_async(lease._give(grip), lease._runtime.batchers)  # noqa: SLF001
