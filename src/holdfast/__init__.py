"""Durable concurrency for Python: locks, state and workflows on the database that you already run.

These are the names that nearly every program needs. Everything else is in a subpackage: `holdfast.errors` (all
errors), `holdfast.locks`, `holdfast.state`, `holdfast.workflow`, `holdfast.fencing`, `holdfast.events` and
`holdfast.testing`.
"""

from .client import AsyncClient, Client
from .errors import (
    AtomicStateConflictError,
    HoldfastError,
    LeaseLost,
    LockTimeout,
    RunLocked,
    StaleToken,
    StepFailed,
    StoreUnavailable,
    WorkflowConcurrencyLimitExceededError,
    WorkflowFailed,
)
from .fencing import guard, guard_async
from .locks import AsyncLease, AsyncLock, Lease, Lock
from .workflow import Concurrency, Context, Engine, Rate, Retry, current_step, step, workflow

__version__ = "0.1.0"

__all__ = [
    "AsyncClient",
    "AsyncLease",
    "AsyncLock",
    "AtomicStateConflictError",
    "Client",
    "Concurrency",
    "Context",
    "Engine",
    "HoldfastError",
    "Lease",
    "LeaseLost",
    "Lock",
    "LockTimeout",
    "Rate",
    "Retry",
    "RunLocked",
    "StaleToken",
    "StepFailed",
    "StoreUnavailable",
    "WorkflowConcurrencyLimitExceededError",
    "WorkflowFailed",
    "current_step",
    "guard",
    "guard_async",
    "step",
    "workflow",
]
