"""The public API, pinned: a name or an option that comes or goes is a decision, not an accident."""

from __future__ import annotations

import inspect

import pytest

import holdfast
import holdfast.fencing
from holdfast import AsyncClient, AsyncLease, AsyncLock, Client, Lease, Lock
from holdfast.locks.admin import AsyncLocks, Locks

NAMES = [
    "AsyncClient", "AsyncLease", "AsyncLock", "Client", "ClientClosed", "EVENTS", "Event", "Events",
    "HoldNotReleasable", "HolderInfo", "HoldfastError", "InvalidDuration", "InvalidKey", "InvalidOption",
    "KindMismatch", "Lease", "LeaseLost", "Lock", "LockInfo", "LockTimeout", "NeverFits", "NotHeld",
    "RecordUnreadable", "StaleToken", "StoreError", "StoreNotInstalled", "StoreUnavailable", "StoreUnusable",
    "WaiterInfo", "WouldDeadlock", "fenced_read", "fenced_replace", "guard",
]  # fmt: skip

SIGNATURES = {
    "__init__": "(self, url=None, *, namespace='default', name=None, retention='7 days')",
    "lock": "(self, key, *, ttl=30, wait=None, owner=None, renew_every=None, max_renew_failures=3, max_stall=None, "
    "reentrant=False, on_lost=None, on_busy='raise', lock_delay=0)",
    "semaphore": "(self, key, *, permits, weight=1, ttl=30, wait=None, owner=None, renew_every=None, "
    "max_renew_failures=3, max_stall=None, on_lost=None, on_busy='raise', lock_delay=0)",
    "hold": "(self, key, *, ttl, owner=None)",
    "close": "(self)",
}


def bare(function):
    signature = inspect.signature(function)
    plain = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
    return str(signature.replace(parameters=plain, return_annotation=inspect.Signature.empty))


def public(kind):
    return sorted(name for name in dir(kind) if not name.startswith("_"))


def test_the_package_exports_these_names_and_no_others():
    assert sorted(holdfast.__all__) == sorted(NAMES)
    for name in NAMES:
        assert getattr(holdfast, name) is not None


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_both_clients_have_the_same_words(kind):
    for name, signature in SIGNATURES.items():
        assert bare(getattr(kind, name)) == signature
    assert public(kind) == [
        "close", "hold", "label", "lock", "locks", "namespace", "semaphore", "url", "works",
    ]  # fmt: skip


@pytest.mark.parametrize("kind", [Lock, AsyncLock])
def test_both_locks_have_the_same_words(kind):
    assert public(kind) == ["acquire", "key", "release", "try_acquire"]


@pytest.mark.parametrize("kind", [Lease, AsyncLease])
def test_both_leases_have_the_same_words(kind):
    assert public(kind) == [
        "check", "expires_at", "floor", "key", "lost", "owner", "release", "remaining", "renew", "token", "transfer",
        "valid",
    ]  # fmt: skip


@pytest.mark.parametrize("kind", [Locks, AsyncLocks])
def test_both_listings_have_the_same_words(kind):
    assert public(kind) == ["cleanup", "force_release", "inspect", "list"]


def test_the_fences_are_these():
    assert sorted(holdfast.fencing.__all__) == ["Fenced", "fenced_read", "fenced_replace", "guard"]


def test_everything_public_has_a_docstring():
    for name in NAMES:
        thing = getattr(holdfast, name)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            assert thing.__doc__, name
    for kind in (Client, AsyncClient, Lock, AsyncLock, Lease, AsyncLease, Locks, AsyncLocks):
        for name in public(kind):
            assert inspect.getdoc(getattr(kind, name)) or name == "events", f"{kind.__name__}.{name}"
