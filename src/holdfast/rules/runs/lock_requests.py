"""Requests of runs for locks, their answers, and the ids of attempts that belong to runs."""

from __future__ import annotations

from typing import Literal

import msgspec

from ..lock_record import Kind

RUN_PREFIX = "run:"
"""The prefix of the ids of attempts that belong to runs; those of clients are `<channel>.<number>`."""


class LockRequest(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A run requests a lock, or gives it back. `number` identifies the request; the same number is the same attempt.

    While the run holds or waits for a lock, the number of that request is used for no other key.
    """

    number: int
    key: str
    give: bool = False
    kind: Kind = "mutex"
    permits: int = 1
    weight: int = 1
    ttl: int | None = None


class LockAnswer(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The answer to a lock request.

    `granted` with its token and floor, `queued`, `given` back, `mismatch`: the key is in use as the kind `found`;
    `too_heavy`: it never fits; `unknown`: it was answered before, and no longer holds or waits.
    """

    number: int
    what: Literal["granted", "queued", "given", "mismatch", "too_heavy", "unknown"]
    token: int = 0
    floor: int = 0
    found: str = ""


def attempt_of(run: str, number: int) -> str:
    """The id under which a run waits and holds.

    >>> attempt_of("order-7", 2)
    'run:2:order-7'
    """
    return f"{RUN_PREFIX}{number}:{run}"


def run_of_attempt(attempt: str) -> tuple[str, int] | None:
    """The run and the number in the id of an attempt; None if it belongs to no run.

    >>> run_of_attempt("run:2:order:7"), run_of_attempt("4f2a.9"), run_of_attempt("run:x:y")
    (('order:7', 2), None, None)
    """
    if not attempt.startswith(RUN_PREFIX):
        return None
    number, _, run = attempt[len(RUN_PREFIX) :].partition(":")
    return (run, int(number)) if number.isascii() and number.isdigit() else None
