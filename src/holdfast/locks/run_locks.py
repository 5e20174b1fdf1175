"""Run locks, for users of another workflow engine: one process at a time drives a run.

They are used around resume and restart. If a run is locked, a request for it is refused at once, also if the same
client holds the lock. The locks of this client are renewed by its heartbeat thread until they are released or lost.
Pass the token to the fenced write of the run's snapshot.
"""

from __future__ import annotations

import weakref
from contextlib import suppress
from datetime import datetime
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar

from msgspec.structs import replace

from ..commands import Inspect
from ..commands.runs import ReadRun
from ..errors import LeaseLost, LockTimeout, RunLocked, StoreUnavailable
from ..rules import lock_outcomes as out
from ..rules.runs import record as rule
from ..rules.runs.outcomes import RunSeen
from ..runtime.base import BaseClient
from ..runtime.flows import RESEND_FOR, Flow, Wait, send
from ..runtime.grant import LocalGrant
from ..runtime.runners import run, run_async
from ..validation import MICROSECONDS, Duration, checked_key, checked_ttl, time_of
from .acquire import take
from .lease import AsyncLease, BaseLease, Lease
from .lock import AsyncLock, BaseLock, Lock
from .options import RENEWALS, LockOptions, checked_options

TTL = "30 minutes"
"""How long a run stays locked without a heartbeat; it is renewed every third of this."""

L = TypeVar("L", bound=BaseLease)


class RunLock(NamedTuple):
    """The process that drives a run: until when, on which kind of store, and under which token."""

    holder: str
    expires_at: datetime | None
    backend: str
    token: int


def run_key(workflow_name: str, run_id: str) -> str:
    """The key of a run's lock. A slash in a name is escaped, so that no two runs share a key.

    >>> run_key("import", "run/7")
    'run/import/run%2F7'
    """
    checked_key(workflow_name, what="workflow name")
    checked_key(run_id, what="run id")
    return checked_key(rule.run_key(workflow_name, run_id))


def _options(workflow_name: str, run_id: str, ttl: Duration | None, renew_every: Duration | None) -> LockOptions:
    length = TTL if ttl is None else ttl
    key = run_key(workflow_name, run_id)
    return checked_options(key, kind="run", ttl=length, wait=0, owner=None, renew_every=renew_every)


class BaseRunLocks(Generic[L]):
    """The flows of sync and async run locks, and the locks that this client holds."""

    _lease_type: type[L]

    def __init__(self, client: BaseClient) -> None:
        self._client = client

    def _token(self, workflow_name: str, run_id: str) -> int | None:
        lease = self._held_lease(run_key(workflow_name, run_id))
        return None if lease is None else lease.token

    def _held_lease(self, key: str) -> BaseLease | None:
        lease = self._client.runtime.runs.get(key)
        return lease if isinstance(lease, BaseLease) and lease.valid else None

    def _try(self, workflow_name: str, run_id: str, options: LockOptions) -> Flow[bool]:
        try:
            lease = yield from take(self._client, options, 0, self._lease_type)
        except LockTimeout:
            return False
        # Checked while the lock is held: an engine that claims the run from now on sees the lock and does not drive it.
        if (yield from driven(self._client, workflow_name, run_id)) is not None:
            lease._received = True  # noqa: SLF001
            yield from lease._release()  # noqa: SLF001
            return False
        _remember(self._client, lease)
        if lease._renewal is not None:  # noqa: SLF001
            lease._renewal.thread = None  # noqa: SLF001  (the client holds it: the thread that acquired it may end)
        lease._received = True  # noqa: SLF001
        return True

    def _renew(self, key: str, ttl: int | None) -> Flow[bool]:
        lease = self._held_lease(key)
        if lease is None:
            return False
        held, kept = lease._held, lease._renewal  # noqa: SLF001  (same package)
        if kept is None:
            return False
        interval = kept.interval if ttl is None else ttl / MICROSECONDS / RENEWALS
        answered = lease._runtime.heartbeats.renew_for(kept, held.ttl if ttl is None else ttl, interval)  # noqa: SLF001
        if not (yield Wait(answered, RESEND_FOR)):
            with suppress(ValueError):
                kept.notifiers.remove(answered)
            raise StoreUnavailable(
                f"the store has not answered the renewal of {key!r} yet. It may have been renewed; the heartbeat "
                "thread goes on trying, and reports it if the lock is lost.",
                ambiguous=True,
            )
        return held.valid

    def _release(self, key: str) -> Flow[None]:
        lease = self._held_lease(key)
        if lease is not None:
            with suppress(LeaseLost):
                yield from lease._release()  # noqa: SLF001

    def _get(self, workflow_name: str, run_id: str) -> Flow[RunLock | None]:
        seen, _ = yield from send(Inspect(key=run_key(workflow_name, run_id)), role="queries")
        assert isinstance(seen, out.LockSeen)  # noqa: S101  (the command's only answer)
        if seen.record is None or seen.record.kind != "run" or not seen.record.holders:
            return (yield from driven(self._client, workflow_name, run_id))
        holder = seen.record.holders[0]
        return _run_lock(self._client, str(holder.label), holder.expires_at, holder.token)


def _run_lock(client: BaseClient, holder: str, expires_at: int | None, token: int) -> RunLock:
    return RunLock(
        holder=holder,
        expires_at=None if expires_at is None else time_of(expires_at),
        backend=client.url.partition("://")[0],
        token=token,
    )


def driven(client: BaseClient, workflow_name: str, run_id: str) -> Flow[RunLock | None]:
    """The engine that drives a run, as a lock; None if no active engine does."""
    if not client.runtime.store.capabilities.workflows:
        return None
    seen, _ = yield from send(ReadRun(run=run_id))
    assert isinstance(seen, RunSeen)  # noqa: S101  (the command's only answer)
    if seen.claim is None or not seen.holder or seen.claim.run.workflow != workflow_name:
        return None
    return _run_lock(client, seen.holder, seen.expires_at, seen.claim.run.fence)


def _remember(client: BaseClient, lease: BaseLease) -> None:
    """Keep a lease until it ends: the locks of this client are found by their run."""
    client.runtime.runs[lease.key] = lease
    owner = weakref.ref(client.runtime)  # weak: the heartbeat thread must not keep a dropped client alive

    def forget(held: LocalGrant) -> None:
        runtime = owner()
        found = None if runtime is None else runtime.runs.get(held.key)
        if runtime is not None and isinstance(found, BaseLease) and found._held is held:  # noqa: SLF001
            del runtime.runs[held.key]

    lease._held.when_over(forget)  # noqa: SLF001


def _refused(workflow_name: str, run_id: str, error: LockTimeout) -> NoReturn:
    raise RunLocked(
        f"the run {run_id!r} of {workflow_name!r} is driven by {error.holder or 'another process'}. Nothing was "
        "changed. Leave the run to that process, or try again when its lock has ended",
        holder=error.holder,
        expires_at=error.expires_at,
    ) from None


class _Guard(BaseLock[L]):
    """Acquires a run's lock or raises `RunLocked`; the client then finds the lease by its run."""

    def __init__(self, client: BaseClient, options: LockOptions, workflow_name: str, run_id: str) -> None:
        super().__init__(client, options)
        self._run = workflow_name, run_id

    def _enter(self, wait: Any) -> Flow[L]:
        try:
            lease = yield from super()._enter(wait)
        except LockTimeout as error:
            _refused(*self._run, error)
        engine = yield from driven(self._client, *self._run)
        if engine is not None:
            yield from lease._release()  # noqa: SLF001
            _refused(*self._run, LockTimeout(holder=engine.holder, expires_at=engine.expires_at))
        _remember(self._client, lease)
        return lease

    def _sync_twin(self, key: str) -> Lock:
        return RunGuard(self._client, replace(self._options, key=key), *self._run)

    def _async_twin(self, key: str) -> AsyncLock:
        return AsyncRunGuard(self._client, replace(self._options, key=key), *self._run)


class RunGuard(_Guard[Lease], Lock):
    """The block in which this caller drives a run; raises `RunLocked` if another process does."""


class AsyncRunGuard(_Guard[AsyncLease], AsyncLock):
    """The block in which this caller drives a run; raises `RunLocked` if another process does."""


class RunLocks(BaseRunLocks[Lease]):
    """`client.run_locks`: one driver per run.

    >>> from holdfast import Client
    >>> with Client("memory://") as hf:
    ...     hf.run_locks.try_acquire("import", "run-7"), hf.run_locks.try_acquire("import", "run-7")
    (True, False)
    """

    _lease_type = Lease

    def try_acquire(
        self, workflow_name: str, run_id: str, ttl: Duration | None = None, *, renew_every: Duration | None = None
    ) -> bool:
        """Lock the run and renew the lock until it is released; False if it is locked, also by this client."""
        return run(
            self._try(workflow_name, run_id, _options(workflow_name, run_id, ttl, renew_every)),
            self._client.runtime.batchers,
        )

    def renew(self, workflow_name: str, run_id: str, ttl: Duration | None = None) -> bool:
        """Renew this client's own lock now, for `ttl` if given. False if this client does not hold it any more."""
        length = None if ttl is None else checked_ttl(ttl)
        return run(self._renew(run_key(workflow_name, run_id), length), self._client.runtime.batchers)

    def release(self, workflow_name: str, run_id: str) -> None:
        """Release this client's own lock. Locks of other clients are not affected."""
        run(self._release(run_key(workflow_name, run_id)), self._client.runtime.batchers)

    def get(self, workflow_name: str, run_id: str) -> RunLock | None:
        """The lock of the process that drives the run now, or None."""
        return run(self._get(workflow_name, run_id), self._client.runtime.batchers)

    def token(self, workflow_name: str, run_id: str) -> int | None:
        """The token under which *this client* holds the run, for the fenced write of its snapshot; else None."""
        return self._token(workflow_name, run_id)

    def guard(
        self, workflow_name: str, run_id: str, *, ttl: Duration | None = None, renew_every: Duration | None = None
    ) -> RunGuard:
        """A block in which you drive the run: `with hf.run_locks.guard(...) as lease`. Raises `RunLocked` at once."""
        options = _options(workflow_name, run_id, ttl, renew_every)
        return RunGuard(self._client, options, workflow_name, run_id)


class AsyncRunLocks(BaseRunLocks[AsyncLease]):
    """`client.run_locks` of an async client."""

    _lease_type = AsyncLease

    async def try_acquire(
        self, workflow_name: str, run_id: str, ttl: Duration | None = None, *, renew_every: Duration | None = None
    ) -> bool:
        """Lock the run and renew the lock until it is released; False if it is locked, also by this client."""
        return await run_async(
            self._try(workflow_name, run_id, _options(workflow_name, run_id, ttl, renew_every)),
            self._client.runtime.batchers,
        )

    async def renew(self, workflow_name: str, run_id: str, ttl: Duration | None = None) -> bool:
        """Renew this client's own lock now, for `ttl` if given. False if this client does not hold it any more."""
        length = None if ttl is None else checked_ttl(ttl)
        return await run_async(self._renew(run_key(workflow_name, run_id), length), self._client.runtime.batchers)

    async def release(self, workflow_name: str, run_id: str) -> None:
        """Release this client's own lock. Locks of other clients are not affected."""
        await run_async(self._release(run_key(workflow_name, run_id)), self._client.runtime.batchers)

    async def get(self, workflow_name: str, run_id: str) -> RunLock | None:
        """The lock of the process that drives the run now, or None."""
        return await run_async(self._get(workflow_name, run_id), self._client.runtime.batchers)

    async def token(self, workflow_name: str, run_id: str) -> int | None:
        """The token under which *this client* holds the run, for the fenced write of its snapshot; else None."""
        return self._token(workflow_name, run_id)

    def guard(
        self, workflow_name: str, run_id: str, *, ttl: Duration | None = None, renew_every: Duration | None = None
    ) -> AsyncRunGuard:
        """A block in which you drive the run: `async with hf.run_locks.guard(...)`. Raises `RunLocked` at once."""
        options = _options(workflow_name, run_id, ttl, renew_every)
        return AsyncRunGuard(self._client, options, workflow_name, run_id)
