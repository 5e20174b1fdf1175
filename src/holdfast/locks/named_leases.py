"""Leases by name: the caller's text identifies the holder, and only the caller renews the lease.

Use them to elect one owner of a resource among several processes, if the owner has a name that is used in many calls:
a run, a conversation, a worker. Callers that use the same name *are* the same owner, with the same token. So choose
names that only one process has at a time. If you need no such name, use `lock`.
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
    """Whether the lease was acquired, its current owner, and the token (None if it was not acquired)."""

    acquired: bool
    owner: str | None
    token: int | None


class LeaseProvider(Protocol):
    """The interface for electing one owner of a key, in sync code."""

    def acquire_lease(self, key: str, owner: str, ttl: Duration) -> LeaseResult:
        """Acquire the lease, or return its owner. The same owner may acquire again: same token, full ttl."""

    def get_lease_owner(self, key: str) -> str | None:
        """The current owner of the lease, or None."""

    def release_lease(self, key: str, owner: str) -> None:
        """Release the lease. If this owner does not hold it, nothing happens."""

    def renew_lease(self, key: str, owner: str, ttl: Duration) -> bool:
        """Renew the lease for `ttl` from now. False if this owner does not hold it any more."""

    def transfer_lease(self, key: str, from_owner: str, to_owner: str, ttl: Duration) -> bool:
        """Transfer the lease without a gap. False if `from_owner` does not hold it any more."""


class AsyncLeaseProvider(Protocol):
    """The interface for electing one owner of a key, in async code."""

    async def acquire_lease(self, key: str, owner: str, ttl: Duration) -> LeaseResult:
        """Acquire the lease, or return its owner. The same owner may acquire again: same token, full ttl."""

    async def get_lease_owner(self, key: str) -> str | None:
        """The current owner of the lease, or None."""

    async def release_lease(self, key: str, owner: str) -> None:
        """Release the lease. If this owner does not hold it, nothing happens."""

    async def renew_lease(self, key: str, owner: str, ttl: Duration) -> bool:
        """Renew the lease for `ttl` from now. False if this owner does not hold it any more."""

    async def transfer_lease(self, key: str, from_owner: str, to_owner: str, ttl: Duration) -> bool:
        """Transfer the lease without a gap. False if `from_owner` does not hold it any more."""


def is_lease_provider(candidate: object) -> bool:
    """Whether an object has all five methods of a lease provider, whatever its class.

    >>> is_lease_provider(NoopLeaseProvider()), is_lease_provider(object())
    (True, False)
    """
    return all(callable(getattr(candidate, name, None)) for name in METHODS)


class BaseLeases:
    """The flows of sync and async leases."""

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
    """`client.leases`: leases for which the caller passes the owner's name.

    >>> from holdfast import Client
    >>> with Client("memory://") as hf:
    ...     hf.leases.acquire_lease("thread:abc", "run-1", 15).acquired, hf.leases.get_lease_owner("thread:abc")
    (True, 'run-1')
    """

    def acquire_lease(self, key: str, owner: str, ttl: Duration) -> LeaseResult:
        """Acquire the lease, or return its owner. The same owner may acquire again: same token, full ttl."""
        return run(self._acquire(key, owner, ttl), self._client.runtime.batchers)

    def get_lease_owner(self, key: str) -> str | None:
        """The current owner of the lease, or None."""
        return run(self._owner(key), self._client.runtime.batchers)

    def release_lease(self, key: str, owner: str) -> None:
        """Release the lease. If this owner does not hold it, nothing happens."""
        run(self._release(key, owner), self._client.runtime.batchers)

    def renew_lease(self, key: str, owner: str, ttl: Duration) -> bool:
        """Renew the lease for `ttl` from now. False if this owner does not hold it any more."""
        return run(self._renew(key, owner, ttl), self._client.runtime.batchers)

    def transfer_lease(self, key: str, from_owner: str, to_owner: str, ttl: Duration) -> bool:
        """Transfer the lease in one atomic step, with a higher token. False if `from_owner` does not hold it."""
        return run(self._transfer(key, from_owner, to_owner, ttl), self._client.runtime.batchers)


class AsyncLeases(BaseLeases):
    """`client.leases` of an async client."""

    async def acquire_lease(self, key: str, owner: str, ttl: Duration) -> LeaseResult:
        """Acquire the lease, or return its owner. The same owner may acquire again: same token, full ttl."""
        return await run_async(self._acquire(key, owner, ttl), self._client.runtime.batchers)

    async def get_lease_owner(self, key: str) -> str | None:
        """The current owner of the lease, or None."""
        return await run_async(self._owner(key), self._client.runtime.batchers)

    async def release_lease(self, key: str, owner: str) -> None:
        """Release the lease. If this owner does not hold it, nothing happens."""
        await run_async(self._release(key, owner), self._client.runtime.batchers)

    async def renew_lease(self, key: str, owner: str, ttl: Duration) -> bool:
        """Renew the lease for `ttl` from now. False if this owner does not hold it any more."""
        return await run_async(self._renew(key, owner, ttl), self._client.runtime.batchers)

    async def transfer_lease(self, key: str, from_owner: str, to_owner: str, ttl: Duration) -> bool:
        """Transfer the lease in one atomic step, with a higher token. False if `from_owner` does not hold it."""
        return await run_async(self._transfer(key, from_owner, to_owner, ttl), self._client.runtime.batchers)


class NoopLeaseProvider:
    """Every caller acquires every lease: for a single process without a store. Warns once that it protects nothing."""

    def __init__(self) -> None:
        self._warned = False

    def acquire_lease(self, key: str, owner: str, ttl: Duration) -> LeaseResult:  # noqa: ARG002
        """Succeed."""
        self._warn()
        return LeaseResult(acquired=True, owner=owner, token=None)

    def get_lease_owner(self, key: str) -> str | None:  # noqa: ARG002
        """None: no lease is stored."""
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
                "NoopLeaseProvider grants every lease to every caller: with more than one process, two may own the "
                "same key. Use client.leases of a store that they share.",
                RuntimeWarning,
                stacklevel=3,
            )


class AsyncNoopLeaseProvider:
    """`NoopLeaseProvider` for async code."""

    def __init__(self) -> None:
        self._noop = NoopLeaseProvider()

    async def acquire_lease(self, key: str, owner: str, ttl: Duration) -> LeaseResult:
        """Succeed."""
        return self._noop.acquire_lease(key, owner, ttl)

    async def get_lease_owner(self, key: str) -> str | None:
        """None: no lease is stored."""
        return self._noop.get_lease_owner(key)

    async def release_lease(self, key: str, owner: str) -> None:
        """Do nothing."""

    async def renew_lease(self, key: str, owner: str, ttl: Duration) -> bool:
        """Succeed."""
        return self._noop.renew_lease(key, owner, ttl)

    async def transfer_lease(self, key: str, from_owner: str, to_owner: str, ttl: Duration) -> bool:
        """Succeed."""
        return self._noop.transfer_lease(key, from_owner, to_owner, ttl)
