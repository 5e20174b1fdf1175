"""What a run asks of locks, what they say, and how an attempt tells which run it is of."""

from __future__ import annotations

from typing import Literal

import msgspec

from ..lock_record import Kind

MARK = "run:"
"""What the ids of the attempts of runs begin with; those of clients are `<channel>.<number>`."""


class LockRequest(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A run asks for a lock, or gives it back. `number` tells its asks apart; the same again is the same attempt.

    While it has or waits for a lock, the number of that ask is for no other key.
    """

    number: int
    key: str
    give: bool = False
    kind: Kind = "mutex"
    permits: int = 1
    weight: int = 1
    ttl: int | None = None


class LockAnswer(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What came of an ask.

    `granted` with its token and floor, `queued`, `given` back; `mismatch`: the key is in use as the kind `found`;
    `too_heavy`: it never fits; `unknown`: it was answered before, and neither holds nor waits any more.
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
    return f"{MARK}{number}:{run}"


def asker_of(attempt: str) -> tuple[str, int] | None:
    """The run and the number in the id of an attempt; None: it is no run's.

    >>> asker_of("run:2:order:7"), asker_of("4f2a.9"), asker_of("run:x:y")
    (('order:7', 2), None, None)
    """
    if not attempt.startswith(MARK):
        return None
    number, _, run = attempt[len(MARK) :].partition(":")
    return (run, int(number)) if number.isascii() and number.isdigit() else None
