"""Decides what happens to one start, depending on how full the limits of its workflow are.

A limit is the number of runs of a workflow that may be admitted and not ended at a time, or that may start within a
time span. It applies to all runs of the workflow, or to the runs with the same key. Counting, writing and promoting
are in `admission.py`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Literal, NamedTuple

import msgspec

OnExcess = Literal["reject", "queue", "skip", "cancel_oldest", "cancel_newest"]
Answer = OnExcess | Literal["admit", "queue_full"]
STRICTEST_FIRST: tuple[OnExcess, ...] = ("reject", "skip", "cancel_newest", "cancel_oldest", "queue")
"""Of several full limits, the one whose answer comes first here decides."""


class Limit(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One limit. With `per` (microseconds) it counts starts within that span, otherwise admitted runs until they end.

    `path` leads to the key in the input; with `by_code` only the code of the workflow can compute the key.
    """

    name: str
    max: int
    per: int = 0
    path: str = ""
    by_code: bool = False
    on_excess: OnExcess = "reject"
    max_queue: int | None = None


class WorkflowLimits(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The limits of a workflow as they were published last. A higher version replaces a lower one."""

    limits: tuple[Limit, ...] = ()
    version: int = 0

    @property
    def digest(self) -> str:
        """A hash of the limits; empty where there is none."""
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
    """How full a limit is. `free_at` is when a limit on starts allows the next one; 0: it is no such limit."""

    limit: Limit
    place: LimitKey
    admitted: int = 0
    queued: int = 0
    free_at: int = 0

    def full(self, now: int) -> bool:
        """Whether one more run is too many at this moment."""
        return self.free_at > now if self.limit.per else self.admitted >= self.limit.max

    @property
    def queue_full(self) -> bool:
        """Whether no further run may wait."""
        return self.limit.max_queue is not None and self.queued >= self.limit.max_queue


class LimitVerdict(msgspec.Struct, frozen=True, omit_defaults=True):
    """The decision about a start, and the limit that made it. `retry_in`: when to try again, if this is known."""

    what: Answer
    limit: str = ""
    key: str = ""
    max: int = 0
    retry_in: int | None = None


ADMITTED = LimitVerdict("admit")


def group_of(workflow: str, place: LimitKey) -> str:
    """The name of the group of runs that are counted together.

    >>> group_of("order", LimitKey("customer", '"ann"'))
    'order/customer/"ann"'
    """
    return f"{workflow}/{place.limit}/{place.key}"


def decide(usages: Sequence[LimitUsage], now: int) -> LimitVerdict:
    """The decision about a start that these limits count: the strictest answer of the full limits."""
    full = [usage for usage in usages if usage.full(now)]
    if not full:
        return ADMITTED
    first = min(full, key=lambda usage: STRICTEST_FIRST.index(usage.limit.on_excess))
    what: Answer = first.limit.on_excess
    if what == "queue" and (queue_full := next((usage for usage in full if usage.queue_full), None)) is not None:
        first, what = queue_full, "queue_full"
    retry_in = max(0, first.free_at - now) if first.limit.per else None
    return LimitVerdict(what, first.place.limit, first.place.key, first.limit.max, retry_in)


def newer(terms: WorkflowLimits, known: WorkflowLimits | None) -> bool:
    """Whether these limits replace the known ones: not where those have a higher version."""
    return known is None or (terms != known and terms.version >= known.version)
