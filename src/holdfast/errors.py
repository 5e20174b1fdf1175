"""Every error that Holdfast raises, in one tree.

An error tells what happened, what it means for the caller's data, and what to do next. `retryable`
says that the same call may succeed later without any change; `ambiguous` says that the store may or
may not have carried the command out. All of them survive pickling, so they cross the boundary of
Celery or multiprocessing with their fields.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, ClassVar


def _sentence(message: str) -> str:
    """The message with one full stop at its end, whatever it was put together from."""
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
    """An option has a value that it cannot have."""


class InvalidDuration(InvalidOption):
    """A duration is a number of seconds, a timedelta, or text such as "5 minutes"."""


class InvalidValue(HoldfastError, ValueError):
    """The value cannot be stored: it is not JSON, or too large, or not of the type that was asked for."""


class LockTimeout(HoldfastError, TimeoutError):
    """The lock was not free within the time that the caller was ready to wait."""

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
    """As many callers as may wait for a lock are waiting for it. This caller was not queued; it may try again later."""

    def __init__(self, message: str | None = None, *, key: str = "", waiting: int = 0) -> None:
        if message is None and key:
            message = (
                f"the queue of {key!r} is full: {waiting:,} callers wait for it. This caller was not queued and holds "
                "nothing. Try again later, or let fewer callers wait at once."
            )
        super().__init__(message, key=key)
        self.waiting = waiting


class RunLocked(HoldfastError):
    """The run is driven by somebody else. Leave it to them, or try again when their lock has ended."""

    retryable = True

    def __init__(
        self, message: str | None = None, *, holder: str | None = None, expires_at: datetime | None = None
    ) -> None:
        super().__init__(message)
        self.holder = holder
        self.expires_at = expires_at


class AtomicStateConflictError(HoldfastError):
    """Others wrote the state first, as often as it was tried. Nothing was written; the call may be repeated."""

    retryable = True

    def __init__(self, message: str | None = None, *, key: str = "", retries: int = 0) -> None:
        super().__init__(message)
        self.key = key
        self.retries = retries


class WouldDeadlock(HoldfastError):
    """This task or thread holds the lock already and would wait for itself."""


class DeadlockDetected(HoldfastError):
    """Whoever is in the way of this run waits for it: it is the youngest who waits for a lock, and must give way."""

    def __init__(self, message: str | None = None, *, key: str = "") -> None:
        super().__init__(message)
        self.key = key


class LeaseLost(HoldfastError):
    """The lease ended before its work did: another holder may be at work. Do not write without a fence."""

    def __init__(self, message: str | None = None, *, key: str = "", token: int = 0, reason: str = "") -> None:
        super().__init__(message)
        self.key = key
        self.token = token
        self.reason = reason


class NotHeld(HoldfastError):
    """What should be released is not held by this caller."""


class HoldNotReleasable(HoldfastError):
    """A hold is kept for its whole window: it is neither prolonged nor given back early. Let it run out."""


class KindMismatch(HoldfastError):
    """The key is in use as another kind of lock. Use another key, or the same kind everywhere."""

    def __init__(self, message: str | None = None, *, key: str = "", wanted: str = "", found: str = "") -> None:
        super().__init__(message)
        self.key = key
        self.wanted = wanted
        self.found = found


class NeverFits(HoldfastError, ValueError):
    """The weight asked for is larger than all the permits there are: waiting would never end."""


class StaleToken(HoldfastError):
    """A newer holder has been here: the write was refused and nothing was written."""

    def __init__(self, message: str | None = None, *, resource: str = "", offered: int = 0, highest: int = 0) -> None:
        super().__init__(
            message
            or f"{resource!r} was written under the token {highest}; the offered token {offered} is older. "
            "Nothing was written. The lease behind it has ended: take the lock again and read afresh."
        )
        self.resource = resource
        self.offered = offered
        self.highest = highest


class ClientClosed(HoldfastError):
    """The client is closed. Make a new one."""


class StoreError(HoldfastError):
    """The store could not do what it was asked to."""


class StoreUnavailable(StoreError):
    """The store did not answer. Where `ambiguous` is true the command may have been carried out."""

    retryable = True

    def __init__(self, message: str | None = None, *, ambiguous: bool = False) -> None:
        super().__init__(message)
        self.ambiguous = ambiguous


class StoreContended(StoreUnavailable):
    """Somebody else has the record locked at this moment. Nothing was done; all other records can be used."""


class StoreUnusable(StoreError):
    """The store was reached, but it is not one that this version can work with."""


class StoreNotInstalled(StoreError):
    """No store answers to this URL scheme, or its driver is not installed."""


class RecordUnreadable(StoreError):
    """A stored record cannot be read by this version. It was left as it is."""

    def __init__(self, message: str | None = None, *, key: str = "") -> None:
        super().__init__(message)
        self.key = key


class NotInWorkflow(HoldfastError, RuntimeError):
    """This is not for workflow code. Do it in a step."""


class NonDeterminismError(HoldfastError):
    """The workflow's code does something else than what the history of this run says.

    It was changed while the run was under way, or it decides by something that is not recorded. Nothing was recorded.
    Run it with the code that it was started with, or give the changed workflow a new version.
    """


class InvalidWorkflow(HoldfastError, TypeError):
    """This function cannot be a workflow or a step."""


class UnknownRun(HoldfastError, LookupError):
    """There is no run with this id."""

    def __init__(self, message: str | None = None, *, run_id: str = "") -> None:
        super().__init__(message)
        self.run_id = run_id


class RunExists(HoldfastError):
    """There is a run with this id already. Nothing was changed. Choose another id, or use an idempotency key."""

    def __init__(self, message: str | None = None, *, run_id: str = "", status: str = "") -> None:
        super().__init__(message)
        self.run_id = run_id
        self.status = status


class RunEnded(HoldfastError):
    """The run has ended: nothing can be sent to it any more, and nothing was changed."""

    def __init__(self, message: str | None = None, *, run_id: str = "", status: str = "") -> None:
        super().__init__(message)
        self.run_id = run_id
        self.status = status


class WorkflowFailed(HoldfastError):
    """The run did not complete. `kind` is the type of what went wrong, `traceback` where it did, as text."""

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
    """A step failed for good. `kind` is the type of what it raised, `traceback` where it did, as text."""

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
    """A step took longer than it may."""


class WorkflowNotRegistered(HoldfastError, LookupError):
    """The store holds living runs of workflows that this engine does not know. They are left as they are."""

    def __init__(self, message: str | None = None, *, types: dict[str, int] | None = None) -> None:
        super().__init__(message)
        self.types = types or {}


class WorkflowLimitExceeded(HoldfastError):
    """A limit keeps this run out. Nothing was changed. `retry_after` (seconds) tells when to try again, where known."""

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
    """As many runs live as may live at a time. Try again when one of them has ended."""


class WorkflowRateLimitExceeded(WorkflowLimitExceeded):
    """As many runs were started as may start within a span. Try again after `retry_after` seconds."""


class WorkflowQueueFull(WorkflowLimitExceeded):
    """As many runs wait to be let in as may wait. Try again later."""


class WorkflowDefinitionRequired(HoldfastError):
    """Only the workflow's own code can tell where its limit counts a run: start it with the workflow, not its name."""


class RunResultTimeout(HoldfastError, TimeoutError):
    """The run has not ended within the time that the caller was ready to wait. It goes on."""

    retryable = True
