"""Locks, semaphores, read-write locks, holds, leaders, and the leases that these return."""

from .admin import ForcedInfo, HolderInfo, LockInfo, WaiterInfo
from .leader import AsyncLeader, AsyncTerm, Leader, Term
from .lease import AsyncLease, Lease
from .lock import AsyncLock, Lock
from .named_leases import (
    AsyncLeaseProvider,
    AsyncNoopLeaseProvider,
    LeaseProvider,
    LeaseResult,
    NoopLeaseProvider,
    is_lease_provider,
)
from .run_locks import RunLock
from .rwlock import AsyncReadWriteLock, ReadWriteLock

__all__ = [
    "AsyncLeader",
    "AsyncLease",
    "AsyncLeaseProvider",
    "AsyncLock",
    "AsyncNoopLeaseProvider",
    "AsyncReadWriteLock",
    "AsyncTerm",
    "ForcedInfo",
    "HolderInfo",
    "Leader",
    "Lease",
    "LeaseProvider",
    "LeaseResult",
    "Lock",
    "LockInfo",
    "NoopLeaseProvider",
    "ReadWriteLock",
    "RunLock",
    "Term",
    "WaiterInfo",
    "is_lease_provider",
]
