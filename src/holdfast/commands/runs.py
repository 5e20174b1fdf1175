"""Commands about runs: frozen values, each docstring its specification.

A command about runs is decided on a repository of records: `apply(repo, now)`. A store that has workflows executes it
within one atomic step, or has a native form of it.
"""

from __future__ import annotations

from ..rules.lock_outcomes import Outcome
from ..rules.runs import admission, blocking, heartbeats, importing, streams, transitions
from ..rules.runs.heartbeat_records import AttemptEnd
from ..rules.runs.limits import WorkflowLimits
from ..rules.runs.lock_requests import LockRequest
from ..rules.runs.outcomes import LimitsDiffer, OwnedRuns, RunCounts, RunPage
from ..rules.runs.record import Block, Ending, NewRun, Parent, Past, Run, RunEvent, Scalar
from ..rules.runs.repository import RunFilter, RunRepository
from ..rules.runs.requests import NO_REQUESTS, RunRequests
from ..rules.runs.stream_records import CodeItems
from ..rules.slot import Swap
from .base import PAGE, Command


class RunCommand(Command, frozen=True, kw_only=True):
    """A command about runs. Atomic by itself and independent of the others in its batch."""

    def apply(self, repo: RunRepository, now: int) -> Outcome:
        """Decide and write."""
        raise NotImplementedError


class StartRun(RunCommand, frozen=True, kw_only=True):
    """Start a run; with `worker`, for that worker at once.

    Answers `Started`, `RunTaken`, `WorkerGone`; `Limited` when a full limit refuses it; `LimitsDiffer`
    when its limit keys were computed from other limits than the published ones. A run of the same workflow with the
    same idempotency key is returned instead, not fresh. Where a run has the id, `new.on_existing` decides: "use"
    returns a run of the same workflow, not fresh; "replace_ended" keeps an ended run as `<id>~<n>` and starts the new
    one in its place, in the same step. Again: the same run.
    """

    new: NewRun
    worker: str = ""

    def apply(self, repo: RunRepository, now: int) -> Outcome:
        """Decide by `rules.runs.transitions.start`."""
        return transitions.start(repo, now, self.new, self.worker)


class StartOrSignal(RunCommand, frozen=True, kw_only=True):
    """Post a signal to the run with this id; where none is living, start one whose first event is the signal.

    Answers `Posted` for a run that was there, also for an ended one that knows the key of the signal: then nothing is
    changed. `Started` for a run that was started, in the place of an ended one if there was one; or as a start is
    answered that is refused or skipped, or whose run is cancelled at once: then the signal is not posted. `RunTaken`
    where the run is of another workflow, or must not be replaced. Again: the same run, and one signal.
    """

    new: NewRun
    event: RunEvent
    worker: str = ""

    def apply(self, repo: RunRepository, now: int) -> Outcome:
        """Decide by `rules.runs.transitions.start_or_signal`."""
        return transitions.start_or_signal(repo, now, self.new, self.event, self.worker)


class ForkRun(StartRun, frozen=True, kw_only=True):
    """Start a run that has a history already: `past` is what it has besides its input. For no worker.

    Limits, ids and idempotency keys count as for `StartRun`, with the same answers. Again: the same run.
    """

    past: Past

    def apply(self, repo: RunRepository, now: int) -> Outcome:
        """Decide by `rules.runs.transitions.start`."""
        return transitions.start(repo, now, self.new, "", self.past)


class ImportRun(RunCommand, frozen=True, kw_only=True):
    """Write a run that has ended elsewhere, with its journal and its inbox. No limit counts it, and nobody drives it.

    Answers `Started`; `RunTaken` if the id is in use, or the idempotency key. `Failed` for a run that has not ended.
    Again: `RunTaken` with the same run.
    """

    imported: Run
    entries: tuple[str, ...]
    events: tuple[RunEvent, ...] = ()

    def apply(self, repo: RunRepository, now: int) -> Outcome:
        """Decide by `rules.runs.importing.import_run`."""
        return importing.import_run(repo, now, self.imported, self.entries, self.events)


class PublishLimits(RunCommand, frozen=True, kw_only=True):
    """Publish the limits of a workflow. Answers `LimitsPublished`. Again: the same.

    Limits of a higher version stay. Queued runs that the new limits have room for are admitted at once; no admitted
    run is stopped.
    """

    workflow: str
    terms: WorkflowLimits

    def apply(self, repo: RunRepository, now: int) -> Outcome:
        """Decide by `rules.runs.admission.publish`."""
        return admission.publish(repo, now, self.workflow, self.terms)


class ReadLimits(RunCommand, frozen=True, kw_only=True):
    """Read the limits of a workflow. Answers `LimitsDiffer`. A read."""

    workflow: str

    def apply(self, repo: RunRepository, now: int) -> Outcome:  # noqa: ARG002
        """Read."""
        return LimitsDiffer(terms=repo.terms(self.workflow))


class ClaimRuns(RunCommand, frozen=True, kw_only=True):
    """Claim up to `limit` runs that are due, or those that are named. Answers `Claimed` or `WorkerGone`.

    Only a registered worker with a valid lease gets runs.

    `types`: pairs of (type of a run that the worker can claim, type that the run gets by the claim: a run started by
    name gets its version here). Runs of crashed workers are released first, and a run of another worker whose step has
    missed its heartbeat is taken from that worker, which counts as a crash. A run whose workers crashed repeatedly
    is blocked. A blocked run is claimed when its pause is over, or by name; with `untried`, only blocked runs are
    claimed, by name, which `engine` (opened at the time `opened` of the store's clock) may try. `code` is the version
    of that engine. Of runs that may be crashing their workers at most `suspects` are claimed. A named run that the
    worker has already is returned again, under the same claim token. Again: claims more.
    """

    worker: str
    types: tuple[tuple[str, str], ...]
    limit: int = PAGE
    suspects: int = 1
    runs: tuple[str, ...] = ()
    engine: str = ""
    opened: int = 0
    code: str = ""
    untried: bool = False

    def apply(self, repo: RunRepository, now: int) -> Outcome:
        """Decide by `rules.runs.transitions.claim`."""
        return transitions.claim(
            repo,
            now,
            worker=self.worker,
            types=self.types,
            limit=max(1, self.limit),
            suspects=self.suspects,
            runs=self.runs,
            engine=self.engine,
            opened=self.opened,
            code=self.code,
            untried=self.untried,
        )


class RecordRun(RunCommand, frozen=True, kw_only=True):
    """Add entries to the journal after the first `at`, start children, request locks, park or end. Needs the fence.

    Answers `Recorded` with the events after `seen`, or `RunRefused`. While there are such events the run neither parks
    nor ends, and the answer is not `done`. The end of a run is an event for its parent. Again: the same answer.
    With `swap` a state slot is written in the same step; where another write came first, nothing at all is done, and
    the answer is `Conflict` with what the slot holds now. `stuck` are the children whose ends the run waits for, where
    only those and locks can continue it; None where something else can. Where a request that it closes was answered
    meanwhile, nothing is done, and the answer is `AnsweredMeanwhile`. `streams` are items that its code has written.
    `attempt_ends` are attempts of steps with heartbeats that have ended.
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
    details: str | None = None
    swap: Swap | None = None
    lock_requests: tuple[LockRequest, ...] = ()
    stuck: tuple[str, ...] | None = None
    streams: tuple[CodeItems, ...] = ()
    requests: RunRequests = NO_REQUESTS
    attempt_ends: tuple[AttemptEnd, ...] = ()

    def apply(self, repo: RunRepository, now: int) -> Outcome:
        """Decide by `rules.runs.transitions.record`."""
        return transitions.record(
            repo,
            now,
            run=self.run,
            fence=self.fence,
            at=self.at,
            entries=self.entries,
            seen=self.seen,
            then=self.then,
            children=self.children,
            attributes=self.attributes,
            details=self.details,
            request=self.request,
            swap=self.swap,
            lock_requests=self.lock_requests,
            stuck=self.stuck,
            streams=self.streams,
            requests=self.requests,
            attempt_ends=self.attempt_ends,
        )


class RecordHeartbeat(RunCommand, frozen=True, kw_only=True):
    """Store a heartbeat of an attempt of a step. Needs the fence. Answers `HeartbeatRecorded` or `RunRefused`.

    The heartbeat expires after `lasts` microseconds (None: never): then another worker may take the run over, although
    this one has its lease. `details` is JSON text; None keeps the details of the step's last heartbeat. Again: it
    expires later.
    """

    run: str
    fence: int
    step: str
    attempt: int
    lasts: int | None = None
    details: str | None = None

    def apply(self, repo: RunRepository, now: int) -> Outcome:
        """Decide by `rules.runs.heartbeats.beat`."""
        return heartbeats.beat(
            repo,
            now,
            run=self.run,
            fence=self.fence,
            step=self.step,
            attempt=self.attempt,
            lasts=self.lasts,
            details=self.details,
        )


class BlockRun(RunCommand, frozen=True, kw_only=True):
    """Block a run that the caller drives, because its code cannot continue it. Needs the fence.

    Answers `Blocked` or `RunRefused`. Events that the driver has not seen do not prevent it. `reason` is JSON text, as
    of a failure; `before` is the block that the run was claimed from. Again: the same answer.
    """

    run: str
    fence: int
    reason: str
    engine: str
    code: str = ""
    before: Block | None = None
    request: str

    def apply(self, repo: RunRepository, now: int) -> Outcome:
        """Decide by `rules.runs.blocking.block`."""
        return blocking.block(
            repo,
            now,
            run=self.run,
            fence=self.fence,
            reason=self.reason,
            engine=self.engine,
            code=self.code,
            before=self.before,
            request=self.request,
        )


class UnblockRun(RunCommand, frozen=True, kw_only=True):
    """Let a blocked run be tried at once. Answers `Posted`; `RunRefused` unless it is blocked under this fence.

    Again: the same.
    """

    run: str
    fence: int
    request: str

    def apply(self, repo: RunRepository, now: int) -> Outcome:
        """Decide by `rules.runs.blocking.unblock`."""
        return blocking.unblock(repo, now, run=self.run, fence=self.fence, request=self.request)


class FailRun(RunCommand, frozen=True, kw_only=True):
    """End a run as failed that no worker drives. `entry`, if any, is added to its journal. Again: the same.

    Answers `Posted`; `RunRefused` while a worker drives it, after its end, or when its fence is not the one that the
    caller saw, or its last record is not `last`. Children among `cancels` that were started with
    `on_parent_end="cancel"` are cancelled. Its locks are released, its parent and its watchers are notified, and its
    limits have room again.
    """

    run: str
    fence: int
    last: str | None = None
    reason: str
    entry: str = ""
    request: str
    cancels: tuple[str, ...] = ()

    def apply(self, repo: RunRepository, now: int) -> Outcome:
        """Decide by `rules.runs.blocking.give_up`."""
        return blocking.give_up(
            repo,
            now,
            run=self.run,
            fence=self.fence,
            last=self.last,
            reason=self.reason,
            entry=self.entry,
            request=self.request,
            cancels=self.cancels,
        )


class PostEvent(RunCommand, frozen=True, kw_only=True):
    """Put an event into the inbox of a run. Answers `Posted`, or `RunRefused` when it has ended or does not exist.

    Of events with the same key the first is kept, and returned again. A run without a worker becomes due. A run that is
    cancelled before it was first driven ends at once. With `parent`, the event is stored only if `parent` has
    started the run; for any other run the answer is `RunRefused` without a run.
    """

    run: str
    event: RunEvent
    parent: Parent | None = None

    def apply(self, repo: RunRepository, now: int) -> Outcome:
        """Decide by `rules.runs.transitions.post`."""
        return transitions.post(repo, now, self.run, self.event, self.parent)


class ReviveRun(RunCommand, frozen=True, kw_only=True):
    """Continue a run after its first `keep` entries, without the events `forget`.

    Answers `Posted`; `RunRefused` while a worker drives it, or when its fence is not the one that the caller
    saw; `Limited` where a limit refuses a run that had ended. Again: the same.
    """

    run: str
    fence: int
    keep: int
    request: str
    forget: tuple[int, ...] = ()
    fresh: bool = False

    def apply(self, repo: RunRepository, now: int) -> Outcome:
        """Decide by `rules.runs.transitions.revive`."""
        return transitions.revive(
            repo,
            now,
            run=self.run,
            fence=self.fence,
            keep=self.keep,
            forget=self.forget,
            fresh=self.fresh,
            request=self.request,
        )


class WatchRun(RunCommand, frozen=True, kw_only=True):
    """Read a run, and notify the attempt `id` when it ends. Answers `RunSeen`. Again: harmless."""

    run: str
    id: str

    def apply(self, repo: RunRepository, now: int) -> Outcome:
        """Decide by `rules.runs.transitions.watch`."""
        return transitions.watch(repo, now, self.run, self.id)


class ReadRun(RunCommand, frozen=True, kw_only=True):
    """Read a run; with `history` also its whole journal and inbox. Answers `RunSeen`. A read."""

    run: str
    history: bool = False

    def apply(self, repo: RunRepository, now: int) -> Outcome:
        """Decide by `rules.runs.transitions.see`."""
        return transitions.see(repo, now, self.run, history=self.history)


class WriteStream(RunCommand, frozen=True, kw_only=True):
    """Add the items of an attempt of a step to a stream. Needs the fence. Again: the items that are missing.

    Answers `StreamWritten`; `RunRefused` unless the run is driven under this fence; `StreamRefused` where the attempt
    is over or a later one of this step has written to any stream of the run. `serial` orders the attempts of one worker
    process, `number` counts the items that this attempt has written before. With `over` it writes nothing after this.
    `values` are JSON texts. More than `max_bytes` of a stream are not kept: the oldest items are removed. `first` is
    that of the run.
    """

    run: str
    fence: int
    first: int
    name: str
    step: str
    attempt: int
    serial: int
    number: int
    values: tuple[str, ...]
    over: bool = False
    max_bytes: int

    def apply(self, repo: RunRepository, now: int) -> Outcome:
        """Decide by `rules.runs.streams.write`."""
        return streams.write(
            repo,
            now,
            run=self.run,
            fence=self.fence,
            name=self.name,
            step=self.step,
            attempt=self.attempt,
            serial=self.serial,
            number=self.number,
            values=self.values,
            over=self.over,
            max_bytes=self.max_bytes,
        )


class ReadStream(RunCommand, frozen=True, kw_only=True):
    """Read the items of a stream after an offset; without one, from the first that is kept. A read.

    Answers `StreamSeen` with `limit` items, or a few more or fewer, as they are stored. `first` is that of the run and
    `chunk` that of the page before, where the reader knows them: then less is read.
    """

    run: str
    name: str
    after: int | None = None
    limit: int = 1_000
    first: int = 1
    chunk: int = -1

    def apply(self, repo: RunRepository, now: int) -> Outcome:  # noqa: ARG002
        """Decide by `rules.runs.streams.read`."""
        return streams.read(repo, run=self.run, name=self.name, after=self.after, limit=self.limit, chunk=self.chunk)


class WatchStream(RunCommand, frozen=True, kw_only=True):
    """Read as `ReadStream` does; where nothing is new, notify the attempt `id` of items and of the end.

    Answers `StreamSeen`. The attempt is notified for half a minute, unless there are too many readers. Again: harmless.
    """

    run: str
    name: str
    id: str
    after: int | None = None
    limit: int = 1_000
    first: int = 1
    chunk: int = -1

    def apply(self, repo: RunRepository, now: int) -> Outcome:
        """Decide by `rules.runs.streams.watch`."""
        return streams.watch(
            repo, now, run=self.run, name=self.name, after=self.after, limit=self.limit, chunk=self.chunk, id=self.id
        )


class ListRuns(RunCommand, frozen=True, kw_only=True):
    """Read a page of runs, the newest first; `after` is the `next` of the page before. Answers `RunPage`. A read."""

    wanted: RunFilter = RunFilter()
    after: tuple[int, str] | None = None
    limit: int = PAGE

    def apply(self, repo: RunRepository, now: int) -> Outcome:
        """Read one run more than requested, to know whether there is a next page."""
        limit = max(1, self.limit)
        found = repo.page(self.wanted, self.after, limit + 1)
        more = (found[limit - 1].created_at, found[limit - 1].id) if len(found) > limit else None
        return RunPage(runs=tuple(found[:limit]), next=more, now=now)


class CountRuns(RunCommand, frozen=True, kw_only=True):
    """Count the runs of each type that have not ended. Answers `RunCounts`. A read."""

    def apply(self, repo: RunRepository, now: int) -> Outcome:  # noqa: ARG002
        """Count."""
        return RunCounts(counts=repo.run_counts())


class ListOwnedRuns(RunCommand, frozen=True, kw_only=True):
    """Read which runs belong to this worker in the store. Answers `OwnedRuns`. A read."""

    worker: str

    def apply(self, repo: RunRepository, now: int) -> Outcome:  # noqa: ARG002
        """Read."""
        return OwnedRuns(runs={run.id: (run.fence, run.posted) for run in repo.owned(self.worker, None)})


class ReadNextDue(RunCommand, frozen=True, kw_only=True):
    """Read when the next run of these types can be claimed. Answers `NextDue`. A read."""

    types: tuple[str, ...]

    def apply(self, repo: RunRepository, now: int) -> Outcome:
        """Decide by `rules.runs.transitions.next_due`."""
        return transitions.next_due(repo, now, self.types)


class ListWorkers(RunCommand, frozen=True, kw_only=True):
    """Read which workers have a valid lease, and what each can drive. Answers `WorkerList`. A read."""

    def apply(self, repo: RunRepository, now: int) -> Outcome:
        """Decide by `rules.runs.transitions.workers`."""
        return transitions.workers(repo, now)


class RegisterWorker(RunCommand, frozen=True, kw_only=True):
    """Register a worker whose lease is valid. Answers `WorkerRegistered` or `WorkerGone`. Again: harmless."""

    worker: str
    name: str
    types: tuple[str, ...]
    engine: str = ""

    def apply(self, repo: RunRepository, now: int) -> Outcome:
        """Decide by `rules.runs.transitions.register_worker`."""
        return transitions.register_worker(
            repo, now, worker=self.worker, name=self.name, types=self.types, engine=self.engine
        )


class UnregisterWorker(RunCommand, frozen=True, kw_only=True):
    """Remove a worker that shuts down, and release its runs. Answers `WorkerRegistered`. Again: harmless."""

    worker: str

    def apply(self, repo: RunRepository, now: int) -> Outcome:
        """Decide by `rules.runs.transitions.unregister_worker`."""
        return transitions.unregister_worker(repo, now, self.worker)


RUN_READS: tuple[type[Command], ...] = (
    ReadRun,
    ReadStream,
    ReadLimits,
    ListRuns,
    CountRuns,
    ListOwnedRuns,
    ReadNextDue,
    ListWorkers,
)
"""Commands about runs that never write."""
