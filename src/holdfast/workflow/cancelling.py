"""The reason that a caller gives with a cancel, and the errors of cancelled runs that contain it."""

from __future__ import annotations

import asyncio

from ..errors import InvalidOption
from ..rules.runs.cancel_reasons import LONGEST_REASON
from ..runtime.codec import encode_value
from ..validation import MICROSECONDS


def checked_reason(reason: str | None) -> str:
    """The reason of a cancel as it is stored; empty if none is given."""
    if reason is None:
        return ""
    if not isinstance(reason, str):
        raise InvalidOption(f"reason={reason!r} is not text")
    if len(reason) > LONGEST_REASON:
        raise InvalidOption(
            f"the reason {reason[:40]!r}... has {len(reason)} characters, and may have {LONGEST_REASON}. Nothing was "
            "cancelled."
        )
    encode_value(reason, what="the reason of a cancel")
    return reason


def timeout_error(timeout: int | None) -> TimeoutError:
    """The error with which a run ends whose timeout, in microseconds, has expired."""
    return TimeoutError(f"its timeout of {(timeout or 0) / MICROSECONDS:.15g} s has expired")


def cancelled_error(what: str, reason: str | None) -> asyncio.CancelledError:
    """The error with which a cancelled run ends."""
    return asyncio.CancelledError(f"{what}: {reason}" if reason else what)
