"""Durable concurrency for Python: fenced, renewed, fair locks on the store that you already run."""

from .api import AsyncClient, Client
from .errors import (
    AtomicStateConflictError,
    ClientClosed,
    HoldfastError,
    HoldNotReleasable,
    InvalidDuration,
    InvalidKey,
    InvalidOption,
    InvalidValue,
    KindMismatch,
    LeaseLost,
    LockTimeout,
    NeverFits,
    NotHeld,
    RecordUnreadable,
    RunLocked,
    StaleToken,
    StoreContended,
    StoreError,
    StoreNotInstalled,
    StoreUnavailable,
    StoreUnusable,
    WouldDeadlock,
)
from .events import EVENTS, Event, Events
from .fencing import (
    AsyncFencedScript,
    FencedScript,
    fenced_read,
    fenced_replace,
    fenced_set,
    fenced_set_async,
    guard,
    guard_async,
)
from .locks.admin import HolderInfo, LockInfo, WaiterInfo
from .locks.leader import AsyncLeader, AsyncTerm, Leader, Term
from .locks.lease import AsyncLease, Lease
from .locks.leases import (
    AsyncLeaseProvider,
    AsyncNoopLeaseProvider,
    LeaseProvider,
    LeaseResult,
    NoopLeaseProvider,
    is_lease_provider,
)
from .locks.lock import AsyncLock, Lock
from .locks.run_locks import RunLock
from .locks.rwlock import AsyncReadWriteLock, ReadWriteLock
from .rules.record import LockRecord
from .state.atomic import AsyncAtomicState, AtomicState
from .state.durable import AcquireAttempt, DurableMutex, DurableSemaphore, initial_lock_record

__version__ = "0.1.0"

__all__ = [
    "EVENTS",
    "AcquireAttempt",
    "AsyncAtomicState",
    "AsyncClient",
    "AsyncFencedScript",
    "AsyncLeader",
    "AsyncLease",
    "AsyncLeaseProvider",
    "AsyncLock",
    "AsyncNoopLeaseProvider",
    "AsyncReadWriteLock",
    "AsyncTerm",
    "AtomicState",
    "AtomicStateConflictError",
    "Client",
    "ClientClosed",
    "DurableMutex",
    "DurableSemaphore",
    "Event",
    "Events",
    "FencedScript",
    "HoldNotReleasable",
    "HolderInfo",
    "HoldfastError",
    "InvalidDuration",
    "InvalidKey",
    "InvalidOption",
    "InvalidValue",
    "KindMismatch",
    "Leader",
    "Lease",
    "LeaseLost",
    "LeaseProvider",
    "LeaseResult",
    "Lock",
    "LockInfo",
    "LockRecord",
    "LockTimeout",
    "NeverFits",
    "NoopLeaseProvider",
    "NotHeld",
    "ReadWriteLock",
    "RecordUnreadable",
    "RunLock",
    "RunLocked",
    "StaleToken",
    "StoreContended",
    "StoreError",
    "StoreNotInstalled",
    "StoreUnavailable",
    "StoreUnusable",
    "Term",
    "WaiterInfo",
    "WouldDeadlock",
    "fenced_read",
    "fenced_replace",
    "fenced_set",
    "fenced_set_async",
    "guard",
    "guard_async",
    "initial_lock_record",
    "is_lease_provider",
]
