"""Leases by name: the owner's own text decides who holds, and nobody renews them but the owner.

For electing one owner of a resource across processes, when the owner is known by a name that outlives a call:
a run, a thread of a conversation, a worker. Whoever uses the same name *is* the same owner, with the same token:
choose names that only one process has at a time. Where you need no such name, use `lock`.
"""

from __future__ import annotations

import warnings
from typing import NamedTuple, Protocol

from ..commands import Acquire, Inspect, Release, Renew, Transfer
from ..rules import lock_outcomes as out
from ..runtime import flows
from ..runtime.base import BaseClient
from ..runtime.flows import Flow, send
from ..runtime.runners import run, run_async
from ..validation import Duration, checked_key, checked_ttl

METHODS = ("acquire_lease", "get_lease_owner", "release_lease", "renew_lease", "transfer_lease")


class LeaseResult(NamedTuple):
    """Whether the lease was won, who has it now, and the winner's token (None for a loser)."""

    acquired: bool
    owner: str | None
    token: int | None


class LeaseProvider(Protocol):
    """Whatever can elect one owner of a key, in synchronous code."""

    def acquire_lease(self, key: str, owner: str, ttl: Duration) -> LeaseResult:
        """Take the lease, or learn who has it. The same owner may ask again: same token, full ttl."""

    def get_lease_owner(self, key: str) -> str | None:
        """Who has the lease now."""

    def release_lease(self, key: str, owner: str) -> None:
        """Give the lease back. Nothing happens unless this owner has it."""

    def renew_lease(self, key: str, owner: str, ttl: Duration) -> bool:
        """Prolong the lease to `ttl` from now. False if this owner has it no more."""

    def transfer_lease(self, key: str, from_owner: str, to_owner: str, ttl: Duration) -> bool:
        """Hand the lease over without a gap. False if `from_owner` has it no more."""


class AsyncLeaseProvider(Protocol):
    """Whatever can elect one owner of a key, in asynchronous code."""

    async def acquire_lease(self, key: str, owner: str, ttl: Duration) -> LeaseResult:
        """Take the lease, or learn who has it. The same owner may ask again: same token, full ttl."""

    async def get_lease_owner(self, key: str) -> str | None:
        """Who has the lease now."""

    async def release_lease(self, key: str, owner: str) -> None:
        """Give the lease back. Nothing happens unless this owner has it."""

    async def renew_lease(self, key: str, owner: str, ttl: Duration) -> bool:
        """Prolong the lease to `ttl` from now. False if this owner has it no more."""

    async def transfer_lease(self, key: str, from_owner: str, to_owner: str, ttl: Duration) -> bool:
        """Hand the lease over without a gap. False if `from_owner` has it no more."""


def is_lease_provider(candidate: object) -> bool:
    """Whether something has all five methods of a lease provider, whatever its class.

    >>> is_lease_provider(NoopLeaseProvider()), is_lease_provider(object())
    (True, False)
    """
    return all(callable(getattr(candidate, name, None)) for name in METHODS)


class BaseLeases:
    """The flows of both colours."""

    def __init__(self, client: BaseClient) -> None:
        self._client = client

    def _acquire(self, key: str, owner: str, ttl: Duration) -> Flow[LeaseResult]:
        command = Acquire(
            key=checked_key(key),
            id=checked_key(owner, what="owner"),
            label=self._client.label(owner),
            kind="lease",
            ttl=checked_ttl(ttl),
        )
        outcome, _ = yield from send(command)
        if isinstance(outcome, out.Granted):
            return LeaseResult(acquired=True, owner=owner, token=outcome.token)
        if isinstance(outcome, out.Busy):
            return LeaseResult(acquired=False, owner=outcome.holders[0].id if outcome.holders else None, token=None)
        raise flows.refusal(command, outcome)

    def _owner(self, key: str) -> Flow[str | None]:
        seen, _ = yield from send(Inspect(key=checked_key(key)), role="queries")
        assert isinstance(seen, out.LockSeen)  # noqa: S101  (the command's only answer)
        record = seen.record
        return record.holders[0].id if record is not None and record.kind == "lease" and record.holders else None

    def _release(self, key: str, owner: str) -> Flow[None]:
        yield from send(Release(key=checked_key(key), id=checked_key(owner, what="owner"), token=None))

    def _renew(self, key: str, owner: str, ttl: Duration) -> Flow[bool]:
        command = Renew(key=checked_key(key), id=checked_key(owner, what="owner"), token=None, ttl=checked_ttl(ttl))
        outcome, _ = yield from send(command)
        return isinstance(outcome, out.Renewed)

    def _transfer(self, key: str, from_owner: str, to_owner: str, ttl: Duration) -> Flow[bool]:
        if from_owner == to_owner:
            return (yield from self._renew(key, from_owner, ttl))
        command = Transfer(
            key=checked_key(key),
            id=checked_key(from_owner, what="owner"),
            token=None,
            to_id=checked_key(to_owner, what="owner"),
            to_label=self._client.label(to_owner),
            ttl=checked_ttl(ttl),
        )
        outcome, _ = yield from send(command)
        return isinstance(outcome, out.Transferred)


class Leases(BaseLeases):
    """`client.leases`: leases whose owner is named by the caller.

    >>> from holdfast import Client
    >>> with Client("memory://") as hf:
    ...     hf.leases.acquire_lease("thread:abc", "run-1", 15).acquired, hf.leases.get_lease_owner("thread:abc")
    (True, 'run-1')
    """

    def acquire_lease(self, key: str, owner: str, ttl: Duration) -> LeaseResult:
        """Take the lease, or learn who has it. The same owner may ask again: same token, full ttl."""
        return run(self._acquire(key, owner, ttl), self._client.runtime.batchers)

    def get_lease_owner(self, key: str) -> str | None:
        """Who has the lease now."""
        return run(self._owner(key), self._client.runtime.batchers)

    def release_lease(self, key: str, owner: str) -> None:
        """Give the lease back. Nothing happens unless this owner has it."""
        run(self._release(key, owner), self._client.runtime.batchers)

    def renew_lease(self, key: str, owner: str, ttl: Duration) -> bool:
        """Prolong the lease to `ttl` from now. False if this owner has it no more."""
        return run(self._renew(key, owner, ttl), self._client.runtime.batchers)

    def transfer_lease(self, key: str, from_owner: str, to_owner: str, ttl: Duration) -> bool:
        """Hand the lease over in one step, under a higher token. False if `from_owner` has it no more."""
        return run(self._transfer(key, from_owner, to_owner, ttl), self._client.runtime.batchers)


class AsyncLeases(BaseLeases):
    """`client.leases` of an asynchronous client."""

    async def acquire_lease(self, key: str, owner: str, ttl: Duration) -> LeaseResult:
        """Take the lease, or learn who has it. The same owner may ask again: same token, full ttl."""
        return await run_async(self._acquire(key, owner, ttl), self._client.runtime.batchers)

    async def get_lease_owner(self, key: str) -> str | None:
        """Who has the lease now."""
        return await run_async(self._owner(key), self._client.runtime.batchers)

    async def release_lease(self, key: str, owner: str) -> None:
        """Give the lease back. Nothing happens unless this owner has it."""
        await run_async(self._release(key, owner), self._client.runtime.batchers)

    async def renew_lease(self, key: str, owner: str, ttl: Duration) -> bool:
        """Prolong the lease to `ttl` from now. False if this owner has it no more."""
        return await run_async(self._renew(key, owner, ttl), self._client.runtime.batchers)

    async def transfer_lease(self, key: str, from_owner: str, to_owner: str, ttl: Duration) -> bool:
        """Hand the lease over in one step, under a higher token. False if `from_owner` has it no more."""
        return await run_async(self._transfer(key, from_owner, to_owner, ttl), self._client.runtime.batchers)


class NoopLeaseProvider:
    """Everybody wins: for a single process that has no store. Warns once that it protects nothing."""

    def __init__(self) -> None:
        self._warned = False

    def acquire_lease(self, key: str, owner: str, ttl: Duration) -> LeaseResult:  # noqa: ARG002
        """Win."""
        self._warn()
        return LeaseResult(acquired=True, owner=owner, token=None)

    def get_lease_owner(self, key: str) -> str | None:  # noqa: ARG002
        """Nobody: no lease is kept."""
        return None

    def release_lease(self, key: str, owner: str) -> None:
        """Do nothing."""

    def renew_lease(self, key: str, owner: str, ttl: Duration) -> bool:  # noqa: ARG002
        """Succeed."""
        return True

    def transfer_lease(self, key: str, from_owner: str, to_owner: str, ttl: Duration) -> bool:  # noqa: ARG002
        """Succeed."""
        return True

    def _warn(self) -> None:
        if not self._warned:
            self._warned = True
            warnings.warn(
                "NoopLeaseProvider lets everybody win: with more than one process, two may own the same key. "
                "Use client.leases of a store that they share.",
                RuntimeWarning,
                stacklevel=3,
            )


class AsyncNoopLeaseProvider:
    """`NoopLeaseProvider` for asynchronous code."""

    def __init__(self) -> None:
        self._noop = NoopLeaseProvider()

    async def acquire_lease(self, key: str, owner: str, ttl: Duration) -> LeaseResult:
        """Win."""
        return self._noop.acquire_lease(key, owner, ttl)

    async def get_lease_owner(self, key: str) -> str | None:
        """Nobody: no lease is kept."""
        return self._noop.get_lease_owner(key)

    async def release_lease(self, key: str, owner: str) -> None:
        """Do nothing."""

    async def renew_lease(self, key: str, owner: str, ttl: Duration) -> bool:
        """Succeed."""
        return self._noop.renew_lease(key, owner, ttl)

    async def transfer_lease(self, key: str, from_owner: str, to_owner: str, ttl: Duration) -> bool:
        """Succeed."""
        return self._noop.transfer_lease(key, from_owner, to_owner, ttl)
