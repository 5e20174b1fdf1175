"""Numbers that the scripts and the Python code must agree on. Scripts get them from here: see `--@constants`."""

from __future__ import annotations

from ...rules.lock import OFFER_LIFE
from ...rules.runs.record import LONG_AGO

ACQUIRE, RENEW, RELEASE, RECORD, FINISH, START = range(1, 7)
"""Commands that the fast path knows."""
DECLINED, GRANTED, RENEWED, RELEASED, QUEUED, RECORDED, STARTED = range(7)
"""Answers of the fast path. Declined: the rules decide."""
MAX = 2**53 - 1
"""The largest whole number that Lua keeps exactly."""

__all__ = [
    "ACQUIRE",
    "DECLINED",
    "FINISH",
    "GRANTED",
    "LONG_AGO",
    "MAX",
    "OFFER_LIFE",
    "QUEUED",
    "RECORD",
    "RECORDED",
    "RELEASE",
    "RELEASED",
    "RENEW",
    "RENEWED",
    "START",
    "STARTED",
]
