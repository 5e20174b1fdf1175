"""What a store answers about runs. As with locks: by one of these, never by an exception."""

from __future__ import annotations

import msgspec

from ..lock_outcomes import Outcome
from .limits import ADMITTED, LimitVerdict, WorkflowLimits
from .lock_requests import LockAnswer
from .record import Run, RunEvent, WorkerRecord


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A run with everything that is needed to go on with it. The first entry is its input.

    `held` are the numbers and the tokens of its locks that it holds; what only looks at a run does not tell them.
    """

    run: Run
    entries: tuple[str, ...]
    events: tuple[RunEvent, ...]
    held: tuple[tuple[int, int], ...] = ()


class Started(Outcome, frozen=True, kw_only=True):
    """The run is there. `fresh` unless it was there before, found by its idempotency key or because a limit says so.

    `verdict` tells what its limits said; after a re-send that is not known any more.
    """

    run: Run
    fresh: bool
    now: int
    verdict: LimitVerdict = ADMITTED


class Limited(Outcome, frozen=True, kw_only=True):
    """A limit keeps the run out. Nothing was changed."""

    verdict: LimitVerdict


class LimitsDiffer(Outcome, frozen=True, kw_only=True):
    """The run was started by other terms than those that were published last: these (None: none). Nothing changed."""

    terms: WorkflowLimits | None


class LimitsPublished(Outcome, frozen=True, kw_only=True):
    """The terms that count now; `fresh` if they are new."""

    terms: WorkflowLimits
    fresh: bool


class RunTaken(Outcome, frozen=True, kw_only=True):
    """Another start has used this id. Nothing was changed."""

    run: Run


class Claimed(Outcome, frozen=True, kw_only=True):
    """The runs that the worker has now. `next_due` is when the next one of its types will be due."""

    claims: tuple[Claim, ...]
    next_due: int | None
    now: int


class WorkerGone(Outcome, frozen=True, kw_only=True):
    """The worker's lease has ended. It gets nothing and must come back as another."""


class Recorded(Outcome, frozen=True, kw_only=True):
    """The entries are in the journal. `done`: what was to happen then has happened too, else see `events`.

    `taken` are the children that could not be started, because their ids are those of other runs; `limited` those
    that a limit keeps out; `answers` is what came of its asks for locks, in their order.
    """

    done: bool
    taken: tuple[str, ...] = ()
    limited: dict[str, LimitVerdict] = msgspec.field(default_factory=dict)
    answers: tuple[LockAnswer, ...] = ()
    events: tuple[RunEvent, ...]
    now: int


class RunRefused(Outcome, frozen=True, kw_only=True):
    """The run is not the caller's to change: it is driven by another, has ended, or is not there. Nothing changed."""

    run: Run | None
    holder: str = ""


class Posted(Outcome, frozen=True, kw_only=True):
    """The event is in the inbox; `fresh` unless one with its key was there before."""

    number: int
    fresh: bool
    run: Run


class RunSeen(Outcome, frozen=True, kw_only=True):
    """The run as it is now, or None. Its journal and inbox, if they were asked for; who drives it, if one lives."""

    claim: Claim | None
    holder: str
    expires_at: int | None
    now: int


class RunPage(Outcome, frozen=True, kw_only=True):
    """A page of runs, the newest first, and the cursor of the next one (None: that was all)."""

    runs: tuple[Run, ...]
    next: tuple[int, str] | None
    now: int


class RunCounts(Outcome, frozen=True, kw_only=True):
    """How many living runs there are of each type."""

    counts: dict[str, int]


class OwnedRuns(Outcome, frozen=True, kw_only=True):
    """The runs that the store counts as this worker's, by id: the fence of each, and how many events it was sent."""

    runs: dict[str, tuple[int, int]]


class NextDue(Outcome, frozen=True, kw_only=True):
    """When the next run of these types is due (None: none is); a dead worker's runs are due now."""

    next_due: int | None
    now: int


class WorkerList(Outcome, frozen=True, kw_only=True):
    """The workers that live, the latest last."""

    workers: tuple[WorkerRecord, ...]


class WorkerRegistered(Outcome, frozen=True, kw_only=True):
    """The worker is known, or known no more."""
