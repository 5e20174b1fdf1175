"""Values that many processes change without losing an update, and locks that are stored in such values."""

from ..rules.lock_record import LockRecord
from .atomic import AsyncAtomicState, AtomicState
from .durable_locks import AcquireAttempt, DurableMutex, DurableSemaphore, initial_lock_record

__all__ = [
    "AcquireAttempt",
    "AsyncAtomicState",
    "AtomicState",
    "DurableMutex",
    "DurableSemaphore",
    "LockRecord",
    "initial_lock_record",
]
