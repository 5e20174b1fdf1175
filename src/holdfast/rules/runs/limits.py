"""What happens to a start that is over its limit.

The terms of a workflow are its limits: how many of its runs may be admitted and living at a time, or how many may start
within a span; for all its runs, or for those with the same key. What is here decides about one start from how full its
limits are. Who counts, writes and promotes is told in `rules.admitting`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec

OnExcess = Literal["reject", "queue", "skip", "cancel_oldest", "cancel_newest"]
Answer = OnExcess | Literal["admit", "queue_full"]
STRICTEST_FIRST: tuple[OnExcess, ...] = ("reject", "skip", "cancel_newest", "cancel_oldest", "queue")
"""Of several limits that are full the one whose answer comes first here decides."""


class Limit(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One limit. With `per` (microseconds) it counts starts within that span, else runs that are admitted and living.

    `path` leads to the key in the input; with `by_code` only the workflow's own code can tell the key.
    """

    name: str
    max: int
    per: int = 0
    path: str = ""
    by_code: bool = False
    on_excess: OnExcess = "reject"
    max_queue: int | None = None


class WorkflowLimits(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The limits of a workflow, as they were published last. Of two that differ that of the higher version counts."""

    limits: tuple[Limit, ...] = ()
    version: int = 0

    @property
    def digest(self) -> str:
        """Tells terms apart; empty where there is no limit."""
        if not self.limits:
            return ""
        return hashlib.blake2b(msgspec.json.encode(self), digest_size=8).hexdigest()

    def limit(self, name: str) -> Limit | None:
        """The limit of this name."""
        return next((limit for limit in self.limits if limit.name == name), None)


class LimitKey(NamedTuple):
    """Where a run is counted: under this limit, with this key (JSON text; empty: all runs of the workflow)."""

    limit: str
    key: str = ""


class LimitUsage(msgspec.Struct, frozen=True):
    """How full a limit is. `free_at` is when the next start is allowed by a limit on starts; 0: it is none."""

    limit: Limit
    place: LimitKey
    admitted: int = 0
    queued: int = 0
    free_at: int = 0

    def full(self, now: int) -> bool:
        """Whether one more is too many at this moment."""
        return self.free_at > now if self.limit.per else self.admitted >= self.limit.max

    @property
    def crammed(self) -> bool:
        """Whether no more may wait."""
        return self.limit.max_queue is not None and self.queued >= self.limit.max_queue


class LimitVerdict(msgspec.Struct, frozen=True, omit_defaults=True):
    """What is to happen to a start, and which limit says so. `retry_in`: when it may be tried again, where known."""

    what: Answer
    limit: str = ""
    key: str = ""
    max: int = 0
    retry_in: int | None = None


ADMITTED = LimitVerdict("admit")


def group_of(workflow: str, place: LimitKey) -> str:
    """The name of those who are counted together.

    >>> group_of("order", LimitKey("customer", '"ann"'))
    'order/customer/"ann"'
    """
    return f"{workflow}/{place.limit}/{place.key}"


def decide(crowds: Sequence[LimitUsage], now: int) -> LimitVerdict:
    """What happens to a start that is counted in these crowds: the strictest answer of those that are full."""
    full = [usage for usage in crowds if usage.full(now)]
    if not full:
        return ADMITTED
    first = min(full, key=lambda usage: STRICTEST_FIRST.index(usage.limit.on_excess))
    what: Answer = first.limit.on_excess
    if what == "queue" and (crammed := next((usage for usage in full if usage.crammed), None)) is not None:
        first, what = crammed, "queue_full"
    retry_in = max(0, first.free_at - now) if first.limit.per else None
    return LimitVerdict(what, first.place.limit, first.place.key, first.limit.max, retry_in)


def newer(terms: WorkflowLimits, known: WorkflowLimits | None) -> bool:
    """Whether these terms take the place of those that are known: never those of a higher version."""
    return known is None or (terms != known and terms.version >= known.version)
