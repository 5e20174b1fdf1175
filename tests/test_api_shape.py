"""The public API is pinned: adding or removing a name or an option must be a decision, not an accident."""

from __future__ import annotations

import importlib
import inspect

import pytest

import holdfast
import holdfast.errors
from holdfast import AsyncClient, AsyncLease, AsyncLock, Client, Context, Engine, Lease, Lock
from holdfast.locks import (
    AsyncLeader,
    AsyncNoopLeaseProvider,
    AsyncReadWriteLock,
    Leader,
    NoopLeaseProvider,
    ReadWriteLock,
)
from holdfast.locks.admin import AsyncLocks, Locks
from holdfast.locks.named_leases import AsyncLeases, Leases
from holdfast.locks.run_locks import AsyncRunLocks, RunLocks
from holdfast.state import AsyncAtomicState, AtomicState, DurableMutex, DurableSemaphore
from holdfast.state.accessors import AsyncStates, States
from holdfast.workflow import ChildHandle, RunHandle, StepInfo, step
from holdfast.workflow.client_runs import AsyncRuns, Runs

NAMES = [
    "AsyncClient", "AsyncLease", "AsyncLock", "AtomicStateConflictError", "Client", "Concurrency", "Context", "Engine",
    "HoldfastError", "Lease", "LeaseLost", "Lock", "LockTimeout", "Rate", "Retry", "RunLocked", "StaleToken",
    "StepFailed", "StoreUnavailable", "WorkflowConcurrencyLimitExceededError", "WorkflowFailed", "current_step",
    "guard", "guard_async", "step", "workflow",
]  # fmt: skip

SUBPACKAGES = {
    "holdfast.locks": [
        "AsyncLeader", "AsyncLease", "AsyncLeaseProvider", "AsyncLock", "AsyncNoopLeaseProvider", "AsyncReadWriteLock",
        "AsyncTerm", "ForcedInfo", "HolderInfo", "Leader", "Lease", "LeaseProvider", "LeaseResult", "Lock", "LockInfo",
        "NoopLeaseProvider", "ReadWriteLock", "RunLock", "Term", "WaiterInfo", "is_lease_provider",
    ],
    "holdfast.state": [
        "AcquireAttempt", "AsyncAtomicState", "AtomicState", "DurableMutex", "DurableSemaphore", "LockRecord",
        "initial_lock_record",
    ],
    "holdfast.workflow": [
        "Admission", "Approval", "ApprovalsPage", "BlockInfo", "ChildHandle", "Concurrency", "Context", "ContinueAsNew",
        "Engine", "HeartbeatInfo", "LimitCancelInfo", "OpenApproval", "PurgeReport", "Rate", "ReplayReport", "Retry",
        "RunEntry", "RunHandle", "RunHistory", "RunInfo", "RunLease", "RunsPage", "Step", "StepInfo", "StreamItem",
        "StreamWriter", "UpdateRequest", "Workflow", "current_run", "current_step", "step", "workflow",
    ],
    "holdfast.fencing": [
        "AsyncFencedScript", "FenceCondition", "Fenced", "FencedScript", "fence_condition", "fenced_get", "fenced_put",
        "fenced_read", "fenced_replace", "fenced_set", "fenced_set_async", "fenced_update", "fenced_update_async",
        "guard", "guard_async",
    ],
}  # fmt: skip

SIGNATURES = {
    "__init__": "(self, url=None, *, namespace='default', name=None, retention='7 days', store_options=None, "
    "max_bytes=1048576)",
    "lock": "(self, key, *, ttl=30, wait=None, owner=None, renew_every=None, max_renew_failures=3, max_stall=None, "
    "reentrant=False, on_lost=None, on_busy='raise', lock_delay=0)",
    "semaphore": "(self, key, *, permits, weight=1, ttl=30, wait=None, owner=None, renew_every=None, "
    "max_renew_failures=3, max_stall=None, on_lost=None, on_busy='raise', lock_delay=0)",
    "hold": "(self, key, *, ttl, owner=None)",
    "rwlock": "(self, key, *, ttl=30, wait=None, owner=None, renew_every=None, max_renew_failures=3, max_stall=None, "
    "on_lost=None, on_busy='raise', lock_delay=0)",
    "leader": "(self, name, *, ttl=15, owner=None, on_change=None, renew_every=None, max_stall=None)",
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


@pytest.mark.parametrize("package", SUBPACKAGES)
def test_a_subpackage_exports_these_names_and_no_others(package):
    module = importlib.import_module(package)
    assert sorted(module.__all__) == SUBPACKAGES[package]
    for name in SUBPACKAGES[package]:
        assert getattr(module, name) is not None


ENDING_IN_ERROR = {
    "HoldfastError": "the root",
    "StoreError": "the root of all errors of a store",
    "AtomicStateConflictError": "a name that users know from other engines",
    "NonDeterminismError": "a name that users know from other engines",
    "WorkflowConcurrencyLimitExceededError": "a name that users know from other engines",
}


def test_an_error_is_named_by_what_happened_and_only_these_end_in_error():
    kinds = [kind for kind in vars(holdfast.errors).values() if isinstance(kind, type)]
    errors = [kind for kind in kinds if kind.__module__ == "holdfast.errors"]
    assert all(issubclass(kind, holdfast.HoldfastError) for kind in errors)
    assert sorted(holdfast.errors.__all__) == sorted(kind.__name__ for kind in errors)
    assert {kind.__name__ for kind in errors if kind.__name__.endswith("Error")} == set(ENDING_IN_ERROR)


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_both_clients_have_the_same_methods(kind):
    for name, signature in SIGNATURES.items():
        assert bare(getattr(kind, name)) == signature
    assert public(kind) == [
        "approvals", "close", "hold", "label", "leader", "leases", "lock", "locks", "namespace", "run_locks", "runs",
        "runtime", "rwlock", "semaphore", "state", "url",
    ]  # fmt: skip


@pytest.mark.parametrize("kind", [Runs, AsyncRuns])
def test_sync_and_async_runs_have_the_same_methods(kind):
    assert public(kind) == [
        "cancel", "export", "fail", "fork", "get", "history", "import_", "list", "purge", "restart", "result", "retry",
        "signal", "start", "start_or_signal", "stream", "update",
    ]  # fmt: skip


def test_the_engine_the_context_and_the_handle_have_these_methods():
    assert public(Engine) == [
        "active_runs", "approvals", "cancel", "close", "drain", "events", "export", "fail", "fork", "get",
        "handle", "history", "import_", "list", "open", "purge", "recover_all",
        "restart", "resume", "retry", "signal", "start", "start_or_signal", "stream", "sweep", "unclaimed",
        "update",
    ]  # fmt: skip
    assert public(RunHandle) == ["cancel", "info", "result", "signal", "status", "stream", "update"]
    assert public(ChildHandle) == ["cancel", "result", "signal"]
    assert public(Context) == [
        "approve", "call", "cancel_reason", "child", "continue_as_new", "deprecate_patch", "history_length",
        "locks", "mutex", "now", "patched", "random", "rwlock", "semaphore",
        "set_attributes", "set_details", "signals", "sleep", "sleep_until", "start_child", "step", "stream",
        "transaction", "updates", "uuid4", "wait_for_signal",
    ]  # fmt: skip


def test_the_body_of_a_step_has_these_names_and_a_step_these_options():
    assert public(StepInfo) == [
        "attempt", "generation", "heartbeat", "heartbeat_details", "idempotency_key", "run_id", "step_id", "stream",
    ]  # fmt: skip
    assert bare(StepInfo.heartbeat) == "(self, details=None, *, type=None)"
    assert bare(step) == "(name=None, *, retry=None, timeout=None, heartbeat_timeout=None, fingerprint=None)"


@pytest.mark.parametrize("kind", [Lock, AsyncLock])
def test_both_locks_have_the_same_methods(kind):
    assert public(kind) == ["acquire", "key", "release", "try_acquire"]


@pytest.mark.parametrize("kind", [Lease, AsyncLease])
def test_both_leases_have_the_same_methods(kind):
    assert public(kind) == [
        "check", "expires_at", "floor", "key", "lost", "owner", "release", "remaining", "renew", "token", "transfer",
        "valid",
    ]  # fmt: skip


@pytest.mark.parametrize("kind", [ReadWriteLock, AsyncReadWriteLock])
def test_both_read_write_locks_have_the_same_methods(kind):
    assert public(kind) == ["key", "read", "write"]


@pytest.mark.parametrize("kind", [Leader, AsyncLeader])
def test_both_leaders_have_the_same_methods(kind):
    assert public(kind) == ["campaign", "is_leader", "name", "resign", "run", "token"]


@pytest.mark.parametrize("kind", [AtomicState, AsyncAtomicState])
def test_both_states_have_the_same_methods(kind):
    assert public(kind) == [
        "append", "decrement", "delete", "get", "increment", "key", "merge", "remove_first", "remove_last", "set",
        "update",
    ]  # fmt: skip


@pytest.mark.parametrize("kind", [States, AsyncStates])
def test_both_state_factories_have_the_same_methods(kind):
    assert public(kind) == ["execution", "workflow"]
    assert bare(kind.__call__).startswith("(self, key, initial=")


@pytest.mark.parametrize("kind", [RunLocks, AsyncRunLocks])
def test_both_run_locks_have_the_same_methods(kind):
    assert public(kind) == ["get", "guard", "release", "renew", "token", "try_acquire"]
    assert bare(kind.try_acquire) == "(self, workflow_name, run_id, ttl=None, *, renew_every=None)"


@pytest.mark.parametrize("kind", [Leases, AsyncLeases, NoopLeaseProvider, AsyncNoopLeaseProvider])
def test_all_lease_providers_have_the_same_methods(kind):
    assert public(kind) == [
        "acquire_lease", "get_lease_owner", "release_lease", "renew_lease", "transfer_lease",
    ]  # fmt: skip


@pytest.mark.parametrize("kind", [DurableMutex, DurableSemaphore])
def test_both_durable_locks_have_the_same_methods(kind):
    assert public(kind) == ["inspect", "release", "renew", "try_acquire"]
    assert bare(kind.try_acquire) == "(self, slot, *, holder_id, now, lease=None)"
    assert bare(kind.renew) == "(self, slot, *, holder_id, now, lease=None)"
    assert bare(kind.release) == "(self, slot, *, holder_id, now)"


@pytest.mark.parametrize("kind", [Locks, AsyncLocks])
def test_both_lock_listings_have_the_same_methods(kind):
    assert public(kind) == ["cleanup", "force_release", "inspect", "list"]


def test_the_fencing_package_exports_these_functions_with_these_signatures():
    assert sorted(holdfast.fencing.__all__) == [
        "AsyncFencedScript", "FenceCondition", "Fenced", "FencedScript", "fence_condition", "fenced_get", "fenced_put",
        "fenced_read", "fenced_replace", "fenced_set", "fenced_set_async", "fenced_update", "fenced_update_async",
        "guard", "guard_async",
    ]  # fmt: skip
    for guard in (holdfast.fencing.guard, holdfast.fencing.guard_async):
        assert bare(guard) == "(connection, resource, lease_or_token)"
    for fenced_set in (holdfast.fencing.fenced_set, holdfast.fencing.fenced_set_async):
        assert bare(fenced_set) == "(client, name, value, lease_or_token, *, ex=None, keepttl=False)"
    assert bare(holdfast.fencing.fenced_put) == "(table, item, lease_or_token, *, resource=None)"
    assert bare(holdfast.fencing.fenced_get) == "(table, key, lease_or_token, *, resource=None)"
    assert bare(holdfast.fencing.fence_condition) == "(lease_or_token)"
    for update in (holdfast.fencing.fenced_update, holdfast.fencing.fenced_update_async):
        assert bare(update) == "(collection, filter, update, lease_or_token, *, resource=None)"
    for script in (holdfast.fencing.FencedScript, holdfast.fencing.AsyncFencedScript):
        assert bare(script.__init__) == "(self, client, source)"
        assert bare(script.__call__) == "(self, resource, lease_or_token, *, keys=(), args=())"


def test_everything_public_has_a_docstring():
    for name in NAMES:
        thing = getattr(holdfast, name)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            assert thing.__doc__, name
    for kind in (Client, AsyncClient, Lock, AsyncLock, Lease, AsyncLease, Locks, AsyncLocks):
        for name in public(kind):
            assert inspect.getdoc(getattr(kind, name)) or name == "events", f"{kind.__name__}.{name}"
