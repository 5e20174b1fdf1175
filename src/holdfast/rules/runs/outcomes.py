"""Outcomes of commands about runs. As with locks, a command returns one of these, and never raises."""

from __future__ import annotations

from typing import Literal

import msgspec

from ..lock_outcomes import Outcome
from .limits import ADMITTED, LimitVerdict, WorkflowLimits
from .lock_requests import LockAnswer
from .record import Block, Run, RunEvent, WorkerRecord
from .requests import ApprovalRequest, Update
from .stream_records import StreamPart

Obstacle = Literal["", "living", "workflow", "child", "archived"]
"""Why a start can neither use nor replace the run that is there: it has not ended; it is of another workflow; it is a
child of a run that has not ended; another run has the id under which it would be kept."""


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """A run with everything that is needed to continue it. The first entry is its input.

    `held` are the numbers and tokens of the locks that it holds; they are not read where a run is only inspected.
    `block` is why it was blocked until this claim.
    """

    run: Run
    entries: tuple[str, ...]
    events: tuple[RunEvent, ...]
    held: tuple[tuple[int, int], ...] = ()
    block: Block | None = None


class Started(Outcome, frozen=True, kw_only=True):
    """The run exists. `fresh` unless it existed before: found by its idempotency key, or returned because of a limit.

    `verdict` is what its limits decided; after the same start was sent again it is not known.
    """

    run: Run
    fresh: bool
    now: int
    verdict: LimitVerdict = ADMITTED


class Limited(Outcome, frozen=True, kw_only=True):
    """A limit refused the run. Nothing was changed."""

    verdict: LimitVerdict


class LimitsDiffer(Outcome, frozen=True, kw_only=True):
    """The start used other limits than the published ones, `terms` (None: none are published). Nothing was changed."""

    terms: WorkflowLimits | None


class LimitsPublished(Outcome, frozen=True, kw_only=True):
    """The limits that are in force now; `fresh` if they are new."""

    terms: WorkflowLimits
    fresh: bool


class RunTaken(Outcome, frozen=True, kw_only=True):
    """Another start has used this id. Nothing was changed.

    `why` is the reason where the start wanted to use or to replace that run.
    """

    run: Run
    why: Obstacle = ""


class SilentStep(msgspec.Struct, frozen=True, kw_only=True):
    """A step whose heartbeat has expired although the worker of its run has its lease; `worker` is that one's name."""

    run: str
    workflow: str
    step: str
    attempt: int
    worker: str


class Claimed(Outcome, frozen=True, kw_only=True):
    """The runs that the worker has now. `next_due` is when the next one of its types will be due.

    `poisoned` are runs that this claim has blocked, because they crashed too many workers. `silent` are the steps
    because of which runs were taken from workers with a valid lease.
    """

    claims: tuple[Claim, ...]
    next_due: int | None
    now: int
    poisoned: tuple[Run, ...] = ()
    silent: tuple[SilentStep, ...] = ()


class WorkerGone(Outcome, frozen=True, kw_only=True):
    """The worker's lease has expired. It gets nothing, and must register under a new id."""


class Recorded(Outcome, frozen=True, kw_only=True):
    """The entries are in the journal. `done`: parking or ending, if requested, happened too; if not, `events` say why.

    `taken` are the children that could not be started, because other runs have their ids; `limited` those
    that a limit refused; `answers` are the answers to its lock requests, in their order.
    """

    done: bool
    taken: tuple[str, ...] = ()
    limited: dict[str, LimitVerdict] = msgspec.field(default_factory=dict)
    answers: tuple[LockAnswer, ...] = ()
    events: tuple[RunEvent, ...]
    now: int


class HeartbeatRecorded(Outcome, frozen=True, kw_only=True):
    """The heartbeat is stored."""

    now: int


class Blocked(Outcome, frozen=True, kw_only=True):
    """The run is blocked: no worker drives it, and nothing was recorded."""

    run: Run


class RunRefused(Outcome, frozen=True, kw_only=True):
    """The caller may not change the run: another worker drives it, it has ended, or it does not exist."""

    run: Run | None
    holder: str = ""


class Posted(Outcome, frozen=True, kw_only=True):
    """The event is in the inbox; `fresh` unless one with its key was there before."""

    number: int
    fresh: bool
    run: Run


class UpdateSeen(Outcome, frozen=True, kw_only=True):
    """A request to a run, with the answer if there is one; None: it was forgotten. The run as it is now.

    `other` is set where the key is that of a request with another name: nothing was posted.
    """

    run: Run
    update: Update | None
    other: bool = False


class ApprovalSeen(Outcome, frozen=True, kw_only=True):
    """The request that was answered, as it is now; or why it was not answered: then nothing was changed."""

    run: Run
    approval: ApprovalRequest | None = None
    why: Literal["", "unknown", "ambiguous", "answered", "closed"] = ""


class AnsweredMeanwhile(Outcome, frozen=True, kw_only=True):
    """The record closes a request that was answered. Nothing was written: the run must be driven from its history."""


class RunSeen(Outcome, frozen=True, kw_only=True):
    """The run as it is now, or None; its journal and inbox, if requested; the worker that drives it, if any."""

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
    """How many runs of each type have not ended."""

    counts: dict[str, int]


class OwnedRuns(Outcome, frozen=True, kw_only=True):
    """The runs that belong to this worker in the store, by id: the fence of each, and the number of its events."""

    runs: dict[str, tuple[int, int]]


class NextDue(Outcome, frozen=True, kw_only=True):
    """When the next run of these types is due (None: none is); runs of a crashed worker are due now."""

    next_due: int | None
    now: int


class WorkerList(Outcome, frozen=True, kw_only=True):
    """The workers whose lease is valid, the latest last."""

    workers: tuple[WorkerRecord, ...]


class WorkerRegistered(Outcome, frozen=True, kw_only=True):
    """The worker is registered, or no longer registered."""


class Purged(Outcome, frozen=True, kw_only=True):
    """How many trees and runs were removed, or can be; and how many trees stay, and why.

    A run of them has not ended (`living`), ended too late (`young`) or cannot be read. `large` are those that need
    several steps, `rest` those that this step did not reach.
    """

    trees: int
    runs: int
    living: int = 0
    young: int = 0
    unreadable: int = 0
    large: tuple[str, ...] = ()
    rest: tuple[str, ...] = ()


class TreeSeen(Outcome, frozen=True, kw_only=True):
    """A page of the runs below a first run: how many there are, and how many of them prevent a purge and why.

    `next` is the `after` of the next page.
    """

    runs: int
    living: int = 0
    young: int = 0
    unreadable: int = 0
    next: str | None = None


class PurgeStep(Outcome, frozen=True, kw_only=True):
    """How far the purge of a large tree has come; `runs` were removed in this step.

    `refused`: nothing was changed, because a run of it was revived or another purge removes it.
    """

    state: Literal["refused", "marked", "hidden", "removed"]
    runs: int = 0


class EndedRuns(Outcome, frozen=True, kw_only=True):
    """A page of runs without a parent that have ended: (ended_at, id), the oldest first; `next` continues it."""

    runs: tuple[tuple[int, str], ...]
    next: tuple[int, str] | None
    now: int


class EndedWorkflows(Outcome, frozen=True, kw_only=True):
    """The names of workflows that have ended runs, and perhaps of others; `next` is the `after` of the next page."""

    names: tuple[str, ...]
    next: str | None
    now: int


class StreamWritten(Outcome, frozen=True, kw_only=True):
    """The items are stored. `next` is the offset of the next item of the stream."""

    next: int


class StreamRefused(Outcome, frozen=True, kw_only=True):
    """Nothing was written: the attempt of the step may not write any more.

    It is `over`; a later attempt of the step has written (`superseded`); or what it wrote before is not there
    (`unknown`).
    """

    why: Literal["over", "superseded", "unknown"]


class StreamSeen(Outcome, frozen=True, kw_only=True):
    """A page of a stream, and the run as it is now (None: there is no such run).

    `parts` are the items after the offset that was given. `first` is the first offset that is kept, and `next` that of
    the next item. `truncated`: the items that were asked for are not kept any more. `chunk` is where the chunk with the
    next item begins. `registered`: the reader is notified of new items and of the end.
    """

    run: Run | None
    first: int = 0
    next: int = 0
    parts: tuple[StreamPart, ...] = ()
    truncated: bool = False
    chunk: int = -1
    registered: bool = False
