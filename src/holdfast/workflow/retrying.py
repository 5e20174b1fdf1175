"""Decides after a failed attempt of a step or a workflow whether there is another one, and when.

The exception decides first: `DoNotRetry` forbids another attempt, `RetryAfter` says when it begins. Then the `Retry`
decides by `give_up_on`, by its predicate `retry_if`, and by the number of attempts.
"""

from __future__ import annotations

from typing import NamedTuple

from ..errors import DoNotRetry, RetryAfter
from ..validation import seconds
from .definition import ONCE, Retry
from .failures import is_one_of

WITHOUT_LIMIT = Retry(max_attempts=1_000_000_000)


class NextAttempt(NamedTuple):
    """Seconds until the next attempt, or None if there is none, and the exception to record."""

    delay: float | None
    error: BaseException


def policy_of_step(retry: Retry, error: BaseException) -> Retry:
    """The policy for a failed step. Without a `Retry`, a step that raises `RetryAfter` is tried again each time."""
    return WITHOUT_LIMIT if retry is ONCE and isinstance(error, RetryAfter) else retry


def next_attempt(retry: Retry, error: BaseException, attempts: int, chance: float) -> NextAttempt:
    """What follows after so many attempts, the last of which failed with this exception."""
    if attempts >= retry.max_attempts or is_one_of(error, (DoNotRetry, *retry.give_up_on)):
        return NextAttempt(None, error)
    try:
        if retry.retry_if is not None and isinstance(error, Exception) and not retry.retry_if(error):
            return NextAttempt(None, error)
        asked = error.delay if isinstance(error, RetryAfter) else None
        delay = None if asked is None else seconds(asked, what="the delay of RetryAfter")
    except Exception as mistake:  # of the predicate, or an impossible delay: recorded with the failure as its cause
        mistake.__cause__ = error
        return NextAttempt(None, mistake)
    return NextAttempt(retry.delay_after(attempts, chance) if delay is None else delay, error)
