"""The locks of a run, as its code acquires them: `async with ctx.mutex("account-42") as lease`."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal

from ..errors import InvalidOption
from ..locks.rwlock import ALL
from ..rules.lock_record import Kind
from ..rules.runs.record import escaped
from ..runtime.misuse import AsyncOnly
from ..validation import Duration, checked_count, checked_key, checked_ttl
from .replay_locks import RunLease, RunLockScope

if TYPE_CHECKING:
    from .replay import Replay

Scope = Literal["workflow", "execution", "global"]
SCOPES: tuple[Scope, ...] = ("workflow", "execution", "global")


def scoped(code: Replay, key: str, scope: Scope) -> str:
    """The stored key of a lock with this scope."""
    checked_key(key)
    if scope == "global":
        return key
    if scope == "workflow":
        owner = code.run.workflow
    elif scope == "execution":
        owner = code.run.root or code.run.id
    else:
        raise InvalidOption(f"scope={scope!r}: the scope of a lock is one of {', '.join(SCOPES)}")
    return checked_key(f"{scope}/{escaped(owner)}/{key}")


class ContextLock(AsyncOnly):
    """A lock that a run acquires at the beginning of an `async with`, and releases at its end."""

    def __init__(
        self,
        code: Replay,
        key: str,
        *,
        kind: Kind = "mutex",
        permits: int = 1,
        weight: int = 1,
        lease: Duration | None = None,
    ) -> None:
        self.key = key
        self._code, self._kind, self._permits, self._weight = code, kind, permits, weight
        self._ttl = None if lease is None else checked_ttl(lease, what="lease")
        self._inside: dict[asyncio.Task[Any] | None, list[RunLockScope]] = {}

    async def __aenter__(self) -> RunLease:
        lock = await self._code.replay_locks.acquire(
            key=self.key, kind=self._kind, permits=self._permits, weight=self._weight, ttl=self._ttl
        )
        lease = lock.future.result()
        self._inside.setdefault(asyncio.current_task(), []).append(RunLockScope(lock, lease))
        return lease

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        block = self._inside[asyncio.current_task()].pop()
        self._code.replay_locks.release(block.lock)
        block.leave(error)


class ContextReadWriteLock:
    """A read-write lock: many readers or one writer, in order of arrival."""

    def __init__(self, code: Replay, key: str, *, lease: Duration | None = None) -> None:
        self.key = key
        self._code, self._lease = code, lease

    def read(self) -> ContextLock:
        """The lock for reading, which many runs may hold at a time."""
        return ContextLock(self._code, self.key, kind="rw", permits=ALL, weight=1, lease=self._lease)

    def write(self) -> ContextLock:
        """The lock for writing, which one run holds alone."""
        return ContextLock(self._code, self.key, kind="rw", permits=ALL, weight=ALL, lease=self._lease)


class ContextLockSet(AsyncOnly):
    """Several locks, acquired one after the other in the order of their keys, whatever the order of the arguments."""

    def __init__(self, locks: dict[str, ContextLock]) -> None:
        self._locks = locks
        self._inside: dict[asyncio.Task[Any] | None, list[AsyncExitStack]] = {}

    async def __aenter__(self) -> dict[str, RunLease]:
        async with AsyncExitStack() as stack:
            leases = {key: await stack.enter_async_context(self._locks[key]) for key in sorted(self._locks)}
            self._inside.setdefault(asyncio.current_task(), []).append(stack.pop_all())
        return leases

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> bool | None:
        return await self._inside[asyncio.current_task()].pop().__aexit__(kind, error, traceback)


class ContextLocks:
    """The part of a context that creates locks."""

    _code: Replay

    def mutex(self, key: str, *, scope: Scope = "workflow", lease: Duration | None = None) -> ContextLock:
        """A lock that one run holds at a time: `async with ctx.mutex("account-42") as lease`.

        The key is shared, by `scope`, with all runs of this `workflow`, with the parents and children of this run
        (`execution`), or with all runs and all processes that use `client.lock(key)` (`global`). The run holds the
        lock until the block ends, also during crashes and days of sleep. With `lease=` the lock also expires if it
        was not renewed for this time; it is renewed while a worker drives the run. If it expires, `LeaseLost` is
        raised in the block.
        """
        return ContextLock(self._code, scoped(self._code, key, scope), lease=lease)

    def semaphore(
        self, key: str, *, permits: int, scope: Scope = "workflow", lease: Duration | None = None
    ) -> ContextLock:
        """A lock that as many runs hold at a time as it has permits."""
        return ContextLock(
            self._code,
            scoped(self._code, key, scope),
            kind="semaphore",
            permits=checked_count(permits, what="permits"),
            lease=lease,
        )

    def rwlock(self, key: str, *, scope: Scope = "workflow", lease: Duration | None = None) -> ContextReadWriteLock:
        """A read-write lock: `async with ctx.rwlock("doc-7").read()`, or `.write()`."""
        return ContextReadWriteLock(self._code, scoped(self._code, key, scope), lease=lease)

    def locks(self, *keys: str, scope: Scope = "workflow", lease: Duration | None = None) -> ContextLockSet:
        """Several mutexes at once, always acquired in one order, so that two runs cannot wait for each other.

        `async with ctx.locks("a", "b") as leases` gives a lease for each key.
        """
        if not keys:
            raise InvalidOption('ctx.locks needs the keys to lock: ctx.locks("a", "b")')
        return ContextLockSet({key: self.mutex(key, scope=scope, lease=lease) for key in keys})
