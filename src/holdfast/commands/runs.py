"""Commands about runs: frozen values, each docstring its specification.

A command about runs is decided over a repository of records: `apply(book, now)`. A store that has workflows executes it
within one atomic step, or has a native form of it.
"""

from __future__ import annotations

from ..rules.lock_outcomes import Outcome
from ..rules.runs import admission, transitions
from ..rules.runs.limits import WorkflowLimits
from ..rules.runs.lock_requests import LockRequest
from ..rules.runs.outcomes import LimitsDiffer, OwnedRuns, RunCounts, RunPage
from ..rules.runs.record import Ending, NewRun, RunEvent, Scalar
from ..rules.runs.repository import RunFilter, RunRepository
from ..rules.slot import Swap
from .base import PAGE, Command


class RunCommand(Command, frozen=True, kw_only=True):
    """A command about runs. Atomic by itself and independent of its neighbours."""

    def apply(self, book: RunRepository, now: int) -> Outcome:
        """Decide and write."""
        raise NotImplementedError


class StartRun(RunCommand, frozen=True, kw_only=True):
    """Start a run; with `worker`, for that worker at once.

    Answers `Started`, `RunTaken`, `WorkerGone`; `Limited` when one of its places is full and says so; `LimitsDiffer`
    when its places were found by other terms than the latest. A run of the same workflow with the same idempotency key
    is answered instead, not fresh. Again: the same run.
    """

    new: NewRun
    worker: str = ""

    def apply(self, book: RunRepository, now: int) -> Outcome:
        """Decide by `rules.runs.transitions.start`."""
        return transitions.start(book, now, self.new, self.worker)


class PublishLimits(RunCommand, frozen=True, kw_only=True):
    """Make the limits of a workflow known. Answers `LimitsPublished`. Again: the same.

    Those of a higher version stay; who has room by the new ones is let in at once, and nobody is put out.
    """

    workflow: str
    terms: WorkflowLimits

    def apply(self, book: RunRepository, now: int) -> Outcome:
        """Decide by `rules.admitting.publish`."""
        return admission.publish(book, now, self.workflow, self.terms)


class ReadLimits(RunCommand, frozen=True, kw_only=True):
    """Look at the limits of a workflow. Answers `LimitsDiffer`. A read."""

    workflow: str

    def apply(self, book: RunRepository, now: int) -> Outcome:  # noqa: ARG002
        """Look."""
        return LimitsDiffer(terms=book.terms(self.workflow))


class ClaimRuns(RunCommand, frozen=True, kw_only=True):
    """Take up to `limit` runs that are due, or those that are named. Answers `Claimed` or `WorkerGone`.

    Only a worker that is enlisted and whose lease lives is given anything.

    `types` are the types that the worker can drive, each with the type that such a run has from then on. Runs of dead
    workers are set free first. A run whose workers died over and over is ended as failed. Of runs that are suspected to
    kill their workers at most `suspects` are given. What the worker has already is given again, under the same fence,
    when it is named. Again: takes more.
    """

    worker: str
    types: tuple[tuple[str, str], ...]
    limit: int = PAGE
    suspects: int = 1
    runs: tuple[str, ...] = ()

    def apply(self, book: RunRepository, now: int) -> Outcome:
        """Decide by `rules.runs.transitions.claim`."""
        return transitions.claim(
            book,
            now,
            worker=self.worker,
            types=self.types,
            limit=max(1, self.limit),
            suspects=self.suspects,
            runs=self.runs,
        )


class RecordRun(RunCommand, frozen=True, kw_only=True):
    """Add entries to the journal after the first `at`, start children, ask for locks, park or end. Needs the fence.

    Answers `Recorded` with the events after `seen`, or `RunRefused`. While there are such events the run neither parks
    nor ends, and the answer is not `done`. The end of a run is an event for its parent. Again: the same answer.
    With `swap` a state slot is written in the same step; where another write came first, nothing at all is done, and
    the answer is `Conflict` with what the slot holds now. `stuck` are the children for whose ends the run waits, where
    nothing can bring it on but those and locks; None where something else can.
    """

    run: str
    fence: int
    at: int
    request: str
    entries: tuple[str, ...] = ()
    seen: int = 0
    then: Ending | None = None
    children: tuple[NewRun, ...] = ()
    attributes: dict[str, Scalar] | None = None
    swap: Swap | None = None
    lock_requests: tuple[LockRequest, ...] = ()
    stuck: tuple[str, ...] | None = None

    def apply(self, book: RunRepository, now: int) -> Outcome:
        """Decide by `rules.runs.transitions.record`."""
        return transitions.record(
            book,
            now,
            run=self.run,
            fence=self.fence,
            at=self.at,
            entries=self.entries,
            seen=self.seen,
            then=self.then,
            children=self.children,
            attributes=self.attributes,
            request=self.request,
            swap=self.swap,
            lock_requests=self.lock_requests,
            stuck=self.stuck,
        )


class PostEvent(RunCommand, frozen=True, kw_only=True):
    """Put an event into the inbox of a living run. Answers `Posted`, or `RunRefused` when it has ended or is not there.

    Of events with the same key the first is kept, and answered again. A run that nobody drives becomes due. One that
    was cancelled before it ever began has ended with that.
    """

    run: str
    event: RunEvent

    def apply(self, book: RunRepository, now: int) -> Outcome:
        """Decide by `rules.runs.transitions.post`."""
        return transitions.post(book, now, self.run, self.event)


class ReviveRun(RunCommand, frozen=True, kw_only=True):
    """Let a run begin again after its first `keep` entries, without the events `forget`.

    Answers `Posted`; `RunRefused` while a living worker drives it, or when its fence is not the one that the caller
    saw; `Limited` where a run that has ended is kept out by a limit. Again: the same.
    """

    run: str
    fence: int
    keep: int
    request: str
    forget: tuple[int, ...] = ()
    fresh: bool = False

    def apply(self, book: RunRepository, now: int) -> Outcome:
        """Decide by `rules.runs.transitions.revive`."""
        return transitions.revive(
            book,
            now,
            run=self.run,
            fence=self.fence,
            keep=self.keep,
            forget=self.forget,
            fresh=self.fresh,
            request=self.request,
        )


class WatchRun(RunCommand, frozen=True, kw_only=True):
    """Look at a run, and have the attempt `id` told when it ends. Answers `RunSeen`. Again: harmless."""

    run: str
    id: str

    def apply(self, book: RunRepository, now: int) -> Outcome:
        """Decide by `rules.runs.transitions.watch`."""
        return transitions.watch(book, now, self.run, self.id)


class ReadRun(RunCommand, frozen=True, kw_only=True):
    """Look at a run; with `history` at its whole journal and inbox. Answers `RunSeen`. A read."""

    run: str
    history: bool = False

    def apply(self, book: RunRepository, now: int) -> Outcome:
        """Tell by `rules.runs.see`."""
        return transitions.see(book, now, self.run, history=self.history)


class ListRuns(RunCommand, frozen=True, kw_only=True):
    """Look at a page of runs, the newest first; `after` is the `next` of the page before. Answers `RunPage`. A read."""

    wanted: RunFilter = RunFilter()
    after: tuple[int, str] | None = None
    limit: int = PAGE

    def apply(self, book: RunRepository, now: int) -> Outcome:
        """Look, one further than asked, to know whether there is more."""
        limit = max(1, self.limit)
        found = book.page(self.wanted, self.after, limit + 1)
        more = (found[limit - 1].created_at, found[limit - 1].id) if len(found) > limit else None
        return RunPage(runs=tuple(found[:limit]), next=more, now=now)


class CountRuns(RunCommand, frozen=True, kw_only=True):
    """Count the living runs of each type. Answers `RunCounts`. A read."""

    def apply(self, book: RunRepository, now: int) -> Outcome:  # noqa: ARG002
        """Count."""
        return RunCounts(counts=book.run_counts())


class ListOwnedRuns(RunCommand, frozen=True, kw_only=True):
    """Look which runs the store counts as this worker's. Answers `OwnedRuns`. A read."""

    worker: str

    def apply(self, book: RunRepository, now: int) -> Outcome:  # noqa: ARG002
        """Look."""
        return OwnedRuns(runs={run.id: (run.fence, run.posted) for run in book.owned(self.worker, None)})


class ReadNextDue(RunCommand, frozen=True, kw_only=True):
    """Look when there will be something to claim of these types. Answers `NextDue`. A read."""

    types: tuple[str, ...]

    def apply(self, book: RunRepository, now: int) -> Outcome:
        """Tell by `rules.runs.next_due`."""
        return transitions.next_due(book, now, self.types)


class ListWorkers(RunCommand, frozen=True, kw_only=True):
    """Look which workers live, and what each can drive. Answers `WorkerList`, the latest last. A read."""

    def apply(self, book: RunRepository, now: int) -> Outcome:
        """Tell by `rules.runs.workers`."""
        return transitions.workers(book, now)


class RegisterWorker(RunCommand, frozen=True, kw_only=True):
    """Make a worker known whose lease lives. Answers `WorkerRegistered` or `WorkerGone`. Again: harmless."""

    worker: str
    name: str
    types: tuple[str, ...]

    def apply(self, book: RunRepository, now: int) -> Outcome:
        """Decide by `rules.runs.transitions.enlist`."""
        return transitions.enlist(book, now, worker=self.worker, name=self.name, types=self.types)


class UnregisterWorker(RunCommand, frozen=True, kw_only=True):
    """Forget a worker that goes; what it still has is free. Answers `WorkerRegistered`. Again: harmless."""

    worker: str

    def apply(self, book: RunRepository, now: int) -> Outcome:
        """Decide by `rules.runs.transitions.dismiss`."""
        return transitions.dismiss(book, now, self.worker)


RUN_READS: tuple[type[Command], ...] = (
    ReadRun,
    ReadLimits,
    ListRuns,
    CountRuns,
    ListOwnedRuns,
    ReadNextDue,
    ListWorkers,
)
"""Commands about runs that never write."""
