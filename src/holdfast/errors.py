"""Every error that Holdfast raises, in one tree.

A message states what happened, what it means for the caller's data, and what to do next. `retryable` means that the
same call may succeed later without any change; `ambiguous` means that the store may or may not have executed the
command. All errors can be pickled with their fields, so they pass through Celery or multiprocessing.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, ClassVar

__all__ = [
    "ApprovalNotOpen",
    "AtomicStateConflictError",
    "AttemptEnded",
    "ClientClosed",
    "DeadlockDetected",
    "DoNotRetry",
    "HoldNotReleasable",
    "HoldfastError",
    "InvalidDuration",
    "InvalidKey",
    "InvalidOption",
    "InvalidValue",
    "InvalidWorkflow",
    "KindMismatch",
    "LeaseLost",
    "LockTimeout",
    "NeverFits",
    "NonDeterminismError",
    "NotHeld",
    "NotInWorkflow",
    "QueueFull",
    "RecordUnreadable",
    "RetryAfter",
    "RunEnded",
    "RunExists",
    "RunLocked",
    "RunResultTimeout",
    "SignalsUnread",
    "StaleToken",
    "StepFailed",
    "StepTimeout",
    "StoreContended",
    "StoreError",
    "StoreNotInstalled",
    "StoreUnavailable",
    "StoreUnusable",
    "StreamTruncated",
    "StreamWriteRefused",
    "UnknownRun",
    "UpdateRefused",
    "UpdateTimeout",
    "WorkflowConcurrencyLimitExceededError",
    "WorkflowDefinitionRequired",
    "WorkflowFailed",
    "WorkflowLimitExceeded",
    "WorkflowNotRegistered",
    "WorkflowQueueFull",
    "WorkflowRateLimitExceeded",
    "WouldDeadlock",
]


def _sentence(message: str) -> str:
    """The message with one full stop at its end, whatever parts it consists of."""
    text = message.rstrip()
    return text if text.endswith(("?", "!")) else f"{text.rstrip('.').rstrip()}."


def _rebuild(kind: type[HoldfastError], message: str, fields: dict[str, Any]) -> HoldfastError:
    error = kind.__new__(kind)
    Exception.__init__(error, message)
    error.__dict__.update(fields)
    return error


class HoldfastError(Exception):
    """Something went wrong in Holdfast."""

    retryable: ClassVar[bool] = False
    ambiguous: bool = False

    def __init__(self, message: str | None = None) -> None:
        super().__init__(_sentence(message or " ".join((type(self).__doc__ or "").split())))

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), str(self), dict(self.__dict__))


class InvalidKey(HoldfastError, ValueError):
    """The key is not 1-512 bytes of UTF-8 without control characters."""


class InvalidOption(HoldfastError, ValueError):
    """An option has an invalid value."""


class InvalidDuration(InvalidOption):
    """A duration must be a number of seconds, a timedelta, or text such as "5 minutes"."""


class InvalidValue(HoldfastError, ValueError):
    """The value cannot be stored: it is not JSON, or it is too large, or it does not have the expected type."""


class LockTimeout(HoldfastError, TimeoutError):
    """The lock was not free within the time that the caller was willing to wait. The caller holds nothing."""

    retryable = True

    def __init__(
        self,
        message: str | None = None,
        *,
        key: str = "",
        holder: str | None = None,
        age: float | None = None,
        position: int | None = None,
        expires_at: datetime | None = None,
    ) -> None:
        super().__init__(message)
        self.key = key
        self.holder = holder
        self.age = age
        self.position = position
        self.expires_at = expires_at


class QueueFull(LockTimeout):
    """The queue of the lock is full. This caller was not queued and holds nothing. Try again later."""

    def __init__(self, message: str | None = None, *, key: str = "", waiting: int = 0) -> None:
        if message is None and key:
            message = (
                f"the queue of {key!r} is full: {waiting:,} callers wait for it. This caller was not queued and holds "
                "nothing. Try again later, or let fewer callers wait at once."
            )
        super().__init__(message, key=key)
        self.waiting = waiting


class RunLocked(HoldfastError):
    """The run is driven by another process. Leave the run to it, or try again when its lock has ended."""

    retryable = True

    def __init__(
        self, message: str | None = None, *, holder: str | None = None, expires_at: datetime | None = None
    ) -> None:
        super().__init__(message)
        self.holder = holder
        self.expires_at = expires_at


class AtomicStateConflictError(HoldfastError):
    """In every try another writer was faster. Nothing was written; the call may be repeated."""

    retryable = True

    def __init__(self, message: str | None = None, *, key: str = "", retries: int = 0) -> None:
        super().__init__(message)
        self.key = key
        self.retries = retries


class WouldDeadlock(HoldfastError):
    """This task or thread already holds the lock and would wait for itself."""


class DeadlockDetected(HoldfastError):
    """Deadlock: this run waits for runs that wait for it.

    Of the runs in the cycle that wait for a lock, this one is the youngest, so its wait was refused. The run still
    holds its other locks. Release them and acquire all of them again, in the same order in every run.
    """

    def __init__(self, message: str | None = None, *, key: str = "") -> None:
        super().__init__(message)
        self.key = key


class LeaseLost(HoldfastError):
    """The lease ended before the work was done: another holder may be active. Do not write without a fence."""

    def __init__(self, message: str | None = None, *, key: str = "", token: int = 0, reason: str = "") -> None:
        super().__init__(message)
        self.key = key
        self.token = token
        self.reason = reason


class NotHeld(HoldfastError):
    """The lock cannot be released, because this caller does not hold it."""


class HoldNotReleasable(HoldfastError):
    """A hold is kept for its whole window: it can be neither renewed nor released early. It ends with its window."""


class KindMismatch(HoldfastError):
    """The key is used for another kind of lock. Use another key, or the same kind everywhere."""

    def __init__(self, message: str | None = None, *, key: str = "", wanted: str = "", found: str = "") -> None:
        super().__init__(message)
        self.key = key
        self.wanted = wanted
        self.found = found


class NeverFits(HoldfastError, ValueError):
    """The weight is larger than the number of permits: it could never be granted."""


class StaleToken(HoldfastError):
    """A newer holder has accessed the resource: the write was refused and nothing was written."""

    def __init__(self, message: str | None = None, *, resource: str = "", offered: int = 0, highest: int = 0) -> None:
        super().__init__(
            message
            or f"{resource!r} was accessed with the newer token {highest}; the token {offered} is older. Nothing was "
            "written. The lease of the older token has ended: acquire the lock again, and read the data again."
        )
        self.resource = resource
        self.offered = offered
        self.highest = highest


class ClientClosed(HoldfastError):
    """The client is closed. Create a new one."""


class StoreError(HoldfastError):
    """The store could not execute the command."""


class StoreUnavailable(StoreError):
    """The store did not answer. If `ambiguous` is true, the command may have been executed."""

    retryable = True

    def __init__(self, message: str | None = None, *, ambiguous: bool = False) -> None:
        super().__init__(message)
        self.ambiguous = ambiguous


class StoreContended(StoreUnavailable):
    """Other clients keep this record locked or change it all the time. Nothing was changed.

    All other records can be used.
    """


class StoreUnusable(StoreError):
    """The store was reached, but this version of Holdfast cannot use it."""


class StoreNotInstalled(StoreError):
    """No store is registered for this URL scheme, or its driver is not installed."""


class RecordUnreadable(StoreError):
    """A stored record cannot be read by this version. It was not changed."""

    def __init__(self, message: str | None = None, *, key: str = "") -> None:
        super().__init__(message)
        self.key = key


class NotInWorkflow(HoldfastError, RuntimeError):
    """This call is not possible here.

    The message says whether it belongs in a step, in workflow code, or needs another store.
    """


class NonDeterminismError(HoldfastError):
    """The workflow's code does not match the history of this run.

    It was changed while the run was in progress, or it decides by something that is not recorded. Nothing was recorded.
    Run it with the code that it was started with, or give the changed workflow a new version. `recorded` and `found`
    are the two sides of the first difference: what the history contains, and what the code does.
    """

    def __init__(self, message: str | None = None, *, recorded: str = "", found: str = "") -> None:
        super().__init__(message)
        self.recorded, self.found = recorded, found


class InvalidWorkflow(HoldfastError, TypeError):
    """This function cannot be a workflow or a step."""


class UnknownRun(HoldfastError, LookupError):
    """There is no run with this id."""

    def __init__(self, message: str | None = None, *, run_id: str = "") -> None:
        super().__init__(message)
        self.run_id = run_id


class RunExists(HoldfastError):
    """A run with this id already exists. Nothing was changed. Choose another id, or use an idempotency key."""

    def __init__(self, message: str | None = None, *, run_id: str = "", status: str = "") -> None:
        super().__init__(message)
        self.run_id = run_id
        self.status = status


class RunEnded(HoldfastError):
    """The run has ended: nothing can be sent to it any more. Nothing was changed."""

    def __init__(self, message: str | None = None, *, run_id: str = "", status: str = "") -> None:
        super().__init__(message)
        self.run_id = run_id
        self.status = status


class SignalsUnread(HoldfastError):
    """A run of a workflow with `on_unread="fail"` returned without reading all signals. They are kept."""

    def __init__(self, message: str | None = None, *, run_id: str = "") -> None:
        super().__init__(message)
        self.run_id = run_id


class WorkflowFailed(HoldfastError):
    """The run did not complete. `kind` is the type of its error, `traceback` is its traceback, as text."""

    def __init__(
        self,
        message: str | None = None,
        *,
        run_id: str = "",
        status: str = "failed",
        kind: str = "",
        detail: str = "",
        traceback: str = "",
    ) -> None:
        super().__init__(message)
        self.run_id = run_id
        self.status = status
        self.kind = kind
        self.detail = detail
        self.traceback = traceback


class StepFailed(HoldfastError):
    """A step failed and is not retried. `kind` is the type of its error, `traceback` is its traceback, as text."""

    def __init__(
        self,
        message: str | None = None,
        *,
        step: str = "",
        kind: str = "",
        detail: str = "",
        traceback: str = "",
        attempts: int = 1,
    ) -> None:
        super().__init__(message)
        self.step = step
        self.kind = kind
        self.detail = detail
        self.traceback = traceback
        self.attempts = attempts


class StepTimeout(HoldfastError, TimeoutError):
    """A step took longer than its timeout."""


class DoNotRetry(HoldfastError):
    """Another attempt cannot succeed: the step or workflow that raises this fails at once, whatever its `Retry` is."""


class RetryAfter(HoldfastError):
    """Another attempt may succeed later: the step or workflow that raises this is tried again after `delay`."""

    def __init__(self, message: str | None = None, *, delay: float | timedelta | str | None = None) -> None:
        """`delay` is a duration, such as 30 or "5 minutes"; without it, that of the `Retry` is used.

        The attempt counts: after `Retry(max_attempts=...)` attempts the failure is final. A step without a `Retry` is
        tried again whenever it raises this.
        """
        super().__init__(message)
        self.delay = delay


class WorkflowNotRegistered(HoldfastError, LookupError):
    """The store has active runs of workflows that this engine has not registered. They were not changed."""

    def __init__(self, message: str | None = None, *, types: dict[str, int] | None = None) -> None:
        super().__init__(message)
        self.types = types or {}


class WorkflowLimitExceeded(HoldfastError):
    """A limit refused this run. Nothing was changed. `retry_after` is the number of seconds to wait, if known."""

    retryable = True

    def __init__(
        self,
        message: str | None = None,
        *,
        workflow_type: str = "",
        partition_key: object = None,
        limit: int = 0,
        name: str = "",
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.workflow_type = workflow_type
        self.partition_key = partition_key
        self.limit = limit
        self.name = name
        self.retry_after = retry_after


class WorkflowConcurrencyLimitExceededError(WorkflowLimitExceeded):
    """The limit of concurrent runs is reached. Nothing was changed. Try again when one of them has ended."""


class WorkflowRateLimitExceeded(WorkflowLimitExceeded):
    """The limit of starts per period is reached. Nothing was changed. Try again after `retry_after` seconds."""


class WorkflowQueueFull(WorkflowLimitExceeded):
    """The queue of this limit is full (`max_queue`). The run was not started. Try again later."""


class WorkflowDefinitionRequired(HoldfastError):
    """Only the workflow's own code determines which limit counts a run: start it with the workflow, not its name."""


class StreamTruncated(HoldfastError, LookupError):
    """The items after this offset are not kept any more, because the stream is long. `first` is the first one kept."""

    def __init__(self, message: str | None = None, *, run_id: str = "", stream: str = "", first: int = 0) -> None:
        super().__init__(message)
        self.run_id = run_id
        self.stream = stream
        self.first = first


class StreamWriteRefused(HoldfastError):
    """The attempt of the step may not write to the stream any more. The item was not written."""

    def __init__(self, message: str | None = None, *, run_id: str = "", stream: str = "") -> None:
        super().__init__(message)
        self.run_id = run_id
        self.stream = stream


class AttemptEnded(HoldfastError):
    """This attempt of the step has ended, or another worker drives the run. The heartbeat was not stored."""

    def __init__(self, message: str | None = None, *, run_id: str = "", step: str = "") -> None:
        super().__init__(message)
        self.run_id = run_id
        self.step = step


class UpdateRefused(HoldfastError):
    """The run has refused this update. `reason` is what its code gave as the reason."""

    def __init__(self, message: str | None = None, *, run_id: str = "", reason: str = "") -> None:
        super().__init__(message)
        self.run_id = run_id
        self.reason = reason


class UpdateTimeout(HoldfastError, TimeoutError):
    """The run has not answered within the time that the caller was willing to wait. The request stays with the run."""


class ApprovalNotOpen(HoldfastError):
    """There is no open request for approval with this name. Nothing was changed."""

    def __init__(self, message: str | None = None, *, run_id: str = "", name: str = "") -> None:
        super().__init__(message)
        self.run_id = run_id
        self.name = name


class RunResultTimeout(HoldfastError, TimeoutError):
    """The run has not ended within the time that the caller was willing to wait. It continues."""

    retryable = True
