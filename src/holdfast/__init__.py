"""Durable concurrency for Python: fenced, renewed, fair locks on the store that you already run."""

from .api import AsyncClient, Client
from .errors import (
    ClientClosed,
    HoldfastError,
    HoldNotReleasable,
    InvalidDuration,
    InvalidKey,
    InvalidOption,
    KindMismatch,
    LeaseLost,
    LockTimeout,
    NeverFits,
    NotHeld,
    RecordUnreadable,
    StaleToken,
    StoreError,
    StoreNotInstalled,
    StoreUnavailable,
    StoreUnusable,
    WouldDeadlock,
)
from .events import EVENTS, Event, Events
from .fencing import fenced_read, fenced_replace, guard
from .locks.admin import HolderInfo, LockInfo, WaiterInfo
from .locks.lease import AsyncLease, Lease
from .locks.lock import AsyncLock, Lock

__version__ = "0.1.0"

__all__ = [
    "EVENTS",
    "AsyncClient",
    "AsyncLease",
    "AsyncLock",
    "Client",
    "ClientClosed",
    "Event",
    "Events",
    "HoldNotReleasable",
    "HolderInfo",
    "HoldfastError",
    "InvalidDuration",
    "InvalidKey",
    "InvalidOption",
    "KindMismatch",
    "Lease",
    "LeaseLost",
    "Lock",
    "LockInfo",
    "LockTimeout",
    "NeverFits",
    "NotHeld",
    "RecordUnreadable",
    "StaleToken",
    "StoreError",
    "StoreNotInstalled",
    "StoreUnavailable",
    "StoreUnusable",
    "WaiterInfo",
    "WouldDeadlock",
    "fenced_read",
    "fenced_replace",
    "guard",
]
