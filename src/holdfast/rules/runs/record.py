"""The record of a run, and the pure decisions about it: start, claim, record, post, orphan, revive.

A run belongs to one worker or to none. Each claim gives it a higher fence, and every write to its journal is checked
against that fence in the same step. So a journal is one sequence, whichever workers wrote it. In this module the
entries of a journal are text; `workflow/journal.py` defines their meaning. All times are integer microseconds of the
store's clock.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import msgspec
from msgspec.structs import replace

from ..lock_record import LockRecord
from .cancel_reasons import reason_in
from .heartbeat_records import AttemptEnd, Heartbeats, after_ends, first_expiry, postponed_to, without_expiry
from .limits import LimitKey, group_of

Status = Literal[
    "queued", "pending", "running", "suspended", "blocked", "completed", "failed", "cancelled", "timed_out", "purged"
]
"""The first five have not ended: waiting for admission, waiting for a worker, driven by a worker, waiting for a time
or an event, waiting for code that fits the history. The rest are ends; of a `purged` run only the row is left, and it
counts as absent."""
End = Literal["completed", "failed", "cancelled", "timed_out"]
EventKind = Literal["signal", "update", "approval", "cancel", "child", "lock", "deadlock"]
OnExisting = Literal["error", "use", "replace_ended"]
"""What a start does if there is already a run with its id: refuse, return that run, or replace it if it has ended."""
Locks = tuple[tuple[int, str], ...]
"""The locks that a run holds or waits for: the number of each request, and the key."""


class LockWait(msgspec.Struct, frozen=True, array_like=True):
    """A position in the queue of a lock whose record does not list it: see `rules/runs/lock_queue.py`.

    `ask` is the number of the run's request; `number` is the order in the queue.
    """

    key: str
    number: int
    ask: int
    since: int
    weight: int = 1


OnParentEnd = Literal["", "cancel", "abandon"]
"""What happens to a child when its parent ends: "": it is cancelled if the parent is cancelled or times out, otherwise
it continues; it is always cancelled; it continues in any case, as the first run of a tree of its own."""

Scalar = str | int | bool
"""What an attribute can be."""

LIVING: tuple[Status, ...] = ("queued", "pending", "running", "suspended", "blocked")
ENDS: tuple[End, ...] = get_args(End)
SHOWN: tuple[Status, ...] = (*LIVING, *ENDS)
"""The statuses of runs that lists and counts show."""
POISONED = 5
"""After this many crashes of its workers in a row, with nothing recorded in between, a run is blocked."""
BLOCK_PAUSE = 60_000_000
"""Microseconds until a blocked run is tried again for the first time; each further pause is twice as long."""
LONGEST_BLOCK_PAUSE = 600_000_000
LONGEST_POISON_PAUSE = 86_400_000_000
"""The longest pause after a run has crashed its workers: each further try may crash another one."""
ENGINES_NAMED = 64
"""How many engines that could not drive a blocked run are named in its record; the latest are kept."""
SUSPECT = 2
"""After this many crashes a worker drives at most one such run at a time, because it may be crashing its workers."""
LONG_AGO = 5_000_000_000_000_000
"""Subtracted from the due time of a run that is due at once (158 years): it stays due, in order, if the clock is set
back."""
POSTPONED = 1_000_000
"""Microseconds after which a run that was due but could not be claimed is due again."""
WATCHERS = 64
"""How many attempts are notified of the end of a run; further ones poll."""
ANY_VERSION = "@*"
"""The suffix of the type of a run that was started by name: its first worker decides the version."""


class Stuck(msgspec.Struct, frozen=True, array_like=True):
    """A run that can only continue by locks or by the ends of these children, after it had `seen` so many events."""

    seen: int
    children: tuple[str, ...] = ()


class Block(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Why the code that was tried last cannot continue a run. The run waits, with its locks, for other code.

    `reason` is JSON text like a failure. `engines` are those that have tried: each other engine may try once, at any
    time. If more have tried than can be named, only engines that were opened after `since` may try. `code` is the
    version of the last engine. `tries` counts the tries since the run could last continue, and `first` is the time
    of the first of them. A run that crashed its workers (`poisoned`) is tried only by engines that were opened after
    `since`: after a pause, or at once if they have another version.
    """

    reason: str
    engines: tuple[str, ...] = ()
    code: str = ""
    since: int
    first: int
    tries: int = 1
    poisoned: bool = False
    request: str = ""

    @property
    def names_all(self) -> bool:
        """Whether `engines` are all that have tried, because there is room for more."""
        return len(self.engines) < ENGINES_NAMED

    def may_try(self, now: int, *, engine: str, opened: int, code: str) -> bool:
        """Whether this engine, opened at that time and of that version, may try before the pause has ended."""
        if engine in self.engines:
            return False
        if self.poisoned:
            new = bool(code) and code != self.code
            return opened > self.since and (new or now >= self.since + pause_after(self))
        return self.names_all or opened > self.since


class RememberedKeys(msgspec.Struct, frozen=True, array_like=True):
    """The pages `first` to `last` list `count` keys of signals that earlier generations of a run have read."""

    first: int
    last: int
    count: int

    @property
    def parts(self) -> tuple[int, int, int]:
        """The three numbers."""
        return self.first, self.last, self.count


class LimitCancel(msgspec.Struct, frozen=True, array_like=True):
    """A run was cancelled because this limit was full when the run `run` started; empty: when it started itself."""

    limit: str
    run: str = ""


def pause_after(block: Block) -> int:
    """Microseconds until a blocked run is tried again: the pauses grow with the number of tries."""
    longest = LONGEST_POISON_PAUSE if block.poisoned else LONGEST_BLOCK_PAUSE
    return min(longest, BLOCK_PAUSE << min(block.tries - 1, 20))


class Run(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The record of a run, without its journal and its inbox.

    `length` counts the entries of the journal, `posted` the events of the inbox, `claims` how often it was claimed.
    `due_at` is when a run without a worker may be claimed: a time, `at_once`, or None (not before an event); of a run
    that is driven, it is when the first of its `heartbeats` expires.
    `last` is the id of the last record that was made. `places` are the limit keys that count it until it ends; of runs
    `queued` under one, the highest `priority` comes first, then the lowest `arrival`. `locks` are those that it holds
    or waits for, `waits` those whose record does not list it. `stuck` is set if the last record reported that only a
    lock or the end of a child can let the run continue, and that record itself granted or refused nothing. `block` is
    set while the run is blocked; `blocked_for` is how long it was blocked before, which its timeout does not count.
    `code` is the version of the engine that claimed it last. `generation` counts the histories that this id has had:
    `length`, `posted` and `claims` are about the current one. `remembered` is what is kept of the keys of signals that
    earlier generations have read. `purging` is the id of the purge that is about to remove its tree, if that takes more
    than one step. `first` is the generation with which this run began: above 1 where it has replaced an ended run of
    this id, which is kept as `replaces`; the kept one has the id of its successor in `replaced_by`. `parent_first` is
    the `first` of the parent that has started it, `continued_at` when its generation began where that is not the first
    one, `cancelled_by` the limit that has cancelled it, `cancel_reason` the reason of its first cancel. `timeout` is
    the one that its start has given, in microseconds; before `not_before` it does not begin. `on_parent_end` is what
    the end of its parent does to it. `details` is JSON text
    that the code has set about itself. `approvals` are its open requests for approvals. `record_kinds` are
    the kinds of further records that belong to it, which a purge looks for.
    """

    id: str
    type: str
    status: Status = "pending"
    created_at: int
    due_at: int | None = None
    worker: str = ""
    fence: int = 0
    length: int = 0
    posted: int = 0
    claims: int = 0
    crashes: int = 0
    request: str = ""
    last: str = ""
    key: str = ""
    parent: str = ""
    root: str = ""
    started_at: int | None = None
    ended_at: int | None = None
    result: str | None = None
    attributes: dict[str, Scalar] = {}
    watchers: tuple[str, ...] = ()
    places: tuple[LimitKey, ...] = ()
    priority: int = 0
    arrival: int = 0
    cancelling: bool = False
    locks: Locks = ()
    waits: tuple[LockWait, ...] = ()
    stuck: Stuck | None = None
    block: Block | None = None
    blocked_for: int = 0
    code: str = ""
    generation: int = 1
    remembered: RememberedKeys | None = None
    first: int = 1
    replaces: str = ""
    replaced_by: str = ""
    parent_first: int = 1
    continued_at: int | None = None
    cancelled_by: LimitCancel | None = None
    cancel_reason: str = ""
    timeout: int | None = None
    not_before: int | None = None
    on_parent_end: OnParentEnd = ""
    purging: str = ""
    details: str | None = None
    approvals: tuple[str, ...] = ()
    record_kinds: tuple[str, ...] = ()
    heartbeats: Heartbeats = ()

    @property
    def workflow(self) -> str:
        """The name of its workflow, without a version."""
        return workflow_of(self.type)

    @property
    def living(self) -> bool:
        """Whether it has not ended yet."""
        return self.status in LIVING

    @property
    def purgeable_from(self) -> int | None:
        """When the first run of a tree ended: the time by which purges find it. None for all other runs."""
        return None if self.status in LIVING or not self.is_first else self.ended_at

    @property
    def is_first(self) -> bool:
        """Whether it is the first run of a tree: a run without a parent, or one that its parent has abandoned."""
        return not self.parent or self.on_parent_end == "abandon"


class NewRun(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A run that is to be started. `request` is the id of this start: a start with the same id is the same start.

    `terms` is the digest of the limits that its `places` were computed from. `on_existing` is what happens where a run
    has this id. `timeout` is used instead of that of its workflow; it begins no earlier than after `delay`. Both are in
    microseconds.
    """

    id: str
    type: str
    input: str
    request: str
    key: str = ""
    parent: str = ""
    root: str = ""
    attributes: dict[str, Scalar] = {}
    places: tuple[LimitKey, ...] = ()
    priority: int = 0
    terms: str = ""
    code: str = ""
    on_existing: OnExisting = "error"
    timeout: int | None = None
    delay: int = 0
    on_parent_end: OnParentEnd = ""


class RunEvent(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """An event in the inbox of a run. Of events with the same key only the first is kept."""

    number: int = 0
    kind: EventKind
    name: str = ""
    payload: str = "null"
    key: str = ""
    at: int = 0


class Past(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The history that a run has when it starts, besides its input: entries, events, the number of the last event.

    It is in the same `generation` as the run that has this past: its code may have used the number, and a run that
    continues under its own id in another store has the same keys of steps.
    """

    entries: tuple[str, ...] = ()
    events: tuple[RunEvent, ...] = ()
    posted: int = 0
    generation: int = 1


class Park(msgspec.Struct, frozen=True, tag="park"):
    """Release the run until `due_at` or an event; with a time in the past, any worker may claim it at once."""

    due_at: int | None


class Finish(msgspec.Struct, frozen=True, tag="finish"):
    """End the run. `result` is JSON text: the value, or the failure.

    `cancels` are ids of children. Each of them that this run has started with `on_parent_end="cancel"` is cancelled in
    the same step.
    """

    status: End
    result: str
    cancels: tuple[str, ...] = ()


class Continue(msgspec.Struct, frozen=True, tag="continue"):
    """Begin a new generation: the history is replaced by this input and this entry.

    `keep` are the events that the generation has not read: they stay, in their order, and are numbered anew. All others
    are removed. The locks with the numbers `locks` stay with the run.
    """

    input: str
    entry: str
    keep: tuple[int, ...] = ()
    locks: tuple[int, ...] = ()


Ending = Park | Finish | Continue


class WorkerRecord(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A registered worker. Its lease is the lock with the key `worker_key(id)`.

    `engine` stays the same when the worker of an engine registers again under a new id.
    """

    id: str
    name: str
    types: tuple[str, ...]
    since: int
    engine: str = ""


def workflow_of(type: str) -> str:
    """The workflow's name in a type.

    >>> workflow_of("order@2"), workflow_of("order")
    ('order', 'order')
    """
    return type.partition("@")[0]


class Membership(NamedTuple):
    """One group that a run is counted in or waits in. The runs of one group are counted together, in this order."""

    group: str
    queued: bool
    rank: int
    arrival: int
    run: str
    workflow: str
    """Empty where the group is the queue of a lock."""
    place: LimitKey | None


def memberships(run: Run) -> list[Membership]:
    """The groups that a run is a member of: at its limits, and in the queues of locks that do not list it.

    Of runs queued at a limit the highest priority comes first; admitted runs have one rank.
    """
    if not run.living or not (run.places or run.waits):
        return []
    queued = run.status == "queued"
    rank = -run.priority if queued else 0
    found = [
        Membership(group_of(run.workflow, place), queued, rank, run.arrival, run.id, run.workflow, place)
        for place in run.places
    ]
    found += [
        Membership(queue_group(wait.key), queued=True, rank=0, arrival=wait.number, run=run.id, workflow="", place=None)
        for wait in run.waits
    ]
    return found


LOCK_QUEUE = "#lock/"
"""The prefix of the groups of runs that wait for a lock."""


def queue_group(key: str) -> str:
    """The group of the runs that wait for a lock and are not listed in its record. No workflow has such a name.

    >>> queue_group("printer")
    '#lock/printer'
    """
    return f"{LOCK_QUEUE}{key}"


def worker_key(worker: str) -> str:
    """The key of the lock that is a worker's lease."""
    return f"worker/{worker}"


def run_key(workflow: str, run: str) -> str:
    """The key of the lock that locks a run for programs other than engines. A slash in a name is escaped.

    >>> run_key("import", "run/7")
    'run/import/run%2F7'
    """
    return "/".join(["run", escaped(workflow), escaped(run)])


def escaped(name: str) -> str:
    """A name as a part of a key whose parts are separated by slashes.

    >>> escaped("run/7")
    'run%2F7'
    """
    return name.replace("%", "%25").replace("/", "%2F")


def hint_for(worker: str, run: str) -> str:
    """The address of a hint about a run for this worker: its channel, and the run."""
    return f"{worker.partition('.')[0]}.run/{run}"


def blocked_hint_for(worker: str, run: str) -> str:
    """The address of a hint for this worker that it may try a blocked run."""
    return f"{worker.partition('.')[0]}.blocked/{run}"


def holds(record: LockRecord | None, now: int, id: str | None = None) -> bool:
    """Whether any attempt, or this one, holds a lock at this moment. An offer does not count."""
    return record is not None and any(
        (id is None or holder.id == id)
        and not holder.offered
        and (holder.expires_at is None or holder.expires_at > now)
        for holder in record.holders
    )


def ended_key(run: Run) -> str:
    """The key of the event that notifies a parent of this end of a run: a revived run can end again."""
    return f"ended/{run.id}/{run.fence}"


def new_fence(run: Run | None, now: int) -> int:
    """A fence above all earlier fences of this run; it follows the clock, like tokens."""
    return now if run is None else max(run.fence + 1, now)


_GENERATION = re.compile(r"~[0-9]+$")


def without_generation(id: str) -> str:
    """The id of the run of which this is a generation; an id without a generation is returned as it is.

    >>> without_generation("order-7~2"), without_generation("order-7")
    ('order-7', 'order-7')
    """
    return _GENERATION.sub("", id)


def generation_id(run: str, generation: int) -> str:
    """The id of a run in one generation, for ids and keys that must differ from those of its other generations.

    >>> generation_id("order-7", 1), generation_id("order-7", 2)
    ('order-7', 'order-7~2')
    """
    return run if generation == 1 else f"{run}~{generation}"


def archive_id(run: Run) -> str:
    """The id under which an ended run is kept when another run replaces it.

    >>> archive_id(Run(id="order-7", type="order", created_at=0))
    'order-7~1'
    """
    return f"{run.id}~{run.generation}"


def identity_of(run: Run) -> str:
    """A name of a run that no other run has, also of those that had its id before; it stays when the run is replaced.

    >>> run = Run(id="order-7", type="order", created_at=0, first=3)
    >>> identity_of(run) == identity_of(replace(run, id="order-7~3", generation=3, replaced_by="order-7"))
    True
    """
    return f"{without_generation(run.id) if run.replaced_by else run.id}@{run.first}"


class Parent(msgspec.Struct, frozen=True, array_like=True):
    """The run that has started another one, and the generation with which it began."""

    id: str
    first: int = 1


def parent_of(run: Run) -> Parent:
    """What children of this run have as their parent."""
    return Parent(run.id, run.first)


def is_child_of(run: Run, parent: Run) -> bool:
    """Whether a run was started by this one, and not by a run that had its id before."""
    return run.parent == parent.id and run.parent_first == parent.first


def at_once(now: int) -> int:
    """The due time of a run that is due from now on, even if the clock is set back."""
    return now - LONG_AGO


def due_since(run: Run) -> int:
    """Since when a run has been due: the longest due is claimed first."""
    due_at = run.due_at or 0
    return due_at + LONG_AGO if due_at < 0 else due_at


def start(new: NewRun, now: int, worker: str = "", *, before: Run | None = None, parent: Run | None = None) -> Run:
    """The record of a new run: it belongs to the worker that started it, or else any worker may claim it.

    It continues the generations and the fence of `before`: an ended run that it replaces, or what is left of one that
    was purged. A run whose start is delayed belongs to no worker.
    """
    not_before = now + new.delay if new.delay > 0 else None
    run = Run(
        id=new.id,
        type=new.type,
        created_at=now,
        due_at=at_once(now) if not_before is None else not_before,
        not_before=not_before,
        timeout=new.timeout,
        request=new.request,
        key=new.key,
        parent=new.parent,
        root=new.id if new.on_parent_end == "abandon" else new.root or new.id,
        on_parent_end=new.on_parent_end,
        attributes=new.attributes,
        places=new.places,
        priority=new.priority,
        length=1,
        code=new.code,
        parent_first=1 if parent is None else parent.first,
    )
    if before is not None:
        run = replace(
            run,
            fence=new_fence(before, now),
            generation=before.generation + 1,
            first=before.generation + 1,
            replaces="" if before.status == "purged" else archive_id(before),
        )
    return claim(run, now, worker=worker, type=new.type, code=new.code) if worker and not_before is None else run


def queued(run: Run, *, priority: int, arrival: int) -> Run:
    """The record of a run that waits until its limits have room for it."""
    return replace(run, status="queued", due_at=None, priority=priority, arrival=arrival)


def admitted(run: Run, now: int, due_at: int | None) -> Run:
    """The record of a queued run that is admitted: due at once, or when the limits on starts and its delay allow it."""
    later = [when for when in (due_at, run.not_before) if when is not None and when > now]
    return replace(run, status="pending", due_at=max(later, default=at_once(now)))


def is_delayed(run: Run, now: int) -> bool:
    """Whether the start of a run was delayed until a later time than this."""
    return run.not_before is not None and run.started_at is None and run.not_before > now


def claim(run: Run, now: int, *, worker: str, type: str, code: str = "") -> Run:
    """The record after a worker has claimed the run: with a new fence, unless this worker drives it already."""
    if run.worker == worker:
        return run
    return replace(
        unblocked(run, now),
        code=code,
        status="running",
        type=type,
        worker=worker,
        fence=new_fence(run, now),
        claims=run.claims + 1,
        due_at=None,
        heartbeats=without_expiry(run.heartbeats),
        started_at=now if run.started_at is None else run.started_at,
    )


def blocked(run: Run, now: int, block: Block) -> Run:
    """The record of a run that waits for other code. It keeps its locks, its places in limits and its events."""
    due_at = None if block.poisoned else now + pause_after(block)
    return replace(
        run,
        status="blocked",
        worker="",
        due_at=due_at,
        block=block,
        stuck=None,
        heartbeats=without_expiry(run.heartbeats),
    )


def unblocked(run: Run, now: int) -> Run:
    """The record of a run that is tried again: the time for which it was blocked is noted."""
    if run.block is None:
        return run
    return replace(run, block=None, blocked_for=run.blocked_for + max(0, now - run.block.since))


def may_record(run: Run, *, fence: int, at: int) -> bool:
    """Whether a driver with this fence, which knows `at` entries, may write to this journal."""
    return run.status == "running" and run.fence == fence and run.length == at


def recorded(
    run: Run,
    now: int,
    *,
    entries: int,
    seen: int,
    then: Ending | None,
    attributes: dict[str, Scalar] | None,
    request: str,
    details: str | None = None,
    locks: Locks = (),
    stuck: tuple[str, ...] | None = None,
    attempt_ends: Sequence[AttemptEnd] = (),
) -> tuple[Run, bool]:
    """The record after entries were added, and whether `then` may happen. Parking is done here.

    A run with an event that its driver has not seen neither parks nor ends: it would never receive the event.
    """
    run = replace(
        run,
        length=run.length + entries,
        crashes=0 if entries or then is not None else run.crashes,
        last=request,
        attributes=run.attributes if attributes is None else attributes,
        details=run.details if details is None else details,
        locks=locks,
        stuck=None if stuck is None else Stuck(seen, stuck),
    )
    if attempt_ends:
        heartbeats = after_ends(run.heartbeats, attempt_ends)
        run = replace(run, heartbeats=heartbeats, due_at=first_expiry(heartbeats))
    if then is None or run.posted > seen:
        return run, then is None
    if isinstance(then, Finish | Continue):
        return run, True
    due_at = at_once(now) if then.due_at is not None and then.due_at <= now else then.due_at
    return replace(run, status="suspended", worker="", due_at=due_at, heartbeats=without_expiry(run.heartbeats)), True


def finished(run: Run, now: int, end: Finish) -> Run:
    """The record of a run that has ended. The caller notifies its watchers."""
    return replace(
        run,
        status=end.status,
        result=end.result,
        ended_at=now,
        worker="",
        due_at=None,
        crashes=0,
        watchers=(),
        locks=(),
        waits=(),
        stuck=None,
        block=None,
        approvals=(),
        heartbeats=(),
    )


def continued(run: Run, now: int, *, posted: int, locks: Locks, remembered: RememberedKeys | None) -> Run:
    """The record of a run that begins its next generation with only an input: any worker may claim it.

    The worker that claims it decides the version of the workflow. It keeps its places in limits and its watchers.
    """
    return replace(
        run,
        type=f"{run.workflow}{ANY_VERSION}",
        status="pending",
        worker="",
        fence=new_fence(run, now),
        generation=run.generation + 1,
        continued_at=now,
        due_at=at_once(now),
        started_at=now,
        length=2,
        posted=posted,
        claims=0,
        crashes=0,
        locks=locks,
        waits=(),
        stuck=None,
        blocked_for=0,
        remembered=remembered,
        approvals=(),
        heartbeats=(),
    )


def cancelled_for(run: Run, event: RunEvent) -> Run:
    """The record of a run with the reason of this cancel, unless it was cancelled before."""
    if run.cancelling or run.cancelled_by is not None:
        return run
    return replace(run, cancel_reason=reason_in(event.payload))


def posted(run: Run, now: int, event: RunEvent) -> Run:
    """The record after an event arrived: a run that waits for one is due at once."""
    waits = run.status == "suspended" and (run.due_at is None or run.due_at >= 0)
    run = cancelled_for(run, event) if event.kind == "cancel" else run
    return replace(
        run,
        posted=run.posted + 1,
        due_at=at_once(now) if waits else run.due_at,
        cancelling=run.cancelling or event.kind == "cancel",
    )


def is_stuck(run: Run) -> bool:
    """Whether only a lock or the end of a child can let a run continue, and it has seen all of its events."""
    return run.living and run.stuck is not None and run.stuck.seen == run.posted


def never_began(run: Run) -> bool:
    """Whether a run ends at once when it is cancelled, because none of its code has run."""
    return run.status == "queued" or (run.status == "pending" and run.started_at is None)


def postponed(run: Run, now: int) -> Run:
    """The record of a run that is due and cannot be claimed now: it is due again a little later."""
    if run.due_at is None or run.due_at > now:
        return run
    if run.status == "running":
        heartbeats = postponed_to(run.heartbeats, now, now + POSTPONED)
        return replace(run, heartbeats=heartbeats, due_at=first_expiry(heartbeats))
    return replace(run, due_at=now + POSTPONED)


def orphaned(run: Run, now: int) -> Run:
    """The record of a run whose worker has crashed, or whose step is silent: any worker may claim it."""
    return replace(
        run,
        status="pending",
        worker="",
        due_at=at_once(now),
        crashes=run.crashes + 1,
        heartbeats=without_expiry(run.heartbeats),
    )


def revived(run: Run, now: int, *, keep: int, request: str, fresh: bool) -> Run:
    """The record of a run that begins again after its first `keep` entries, under a new fence."""
    return replace(
        run,
        status="pending",
        worker="",
        fence=new_fence(run, now),
        due_at=at_once(now),
        length=keep,
        crashes=0,
        last=request,
        result=None,
        ended_at=None,
        cancelling=False,
        cancelled_by=None,
        cancel_reason="",
        not_before=None,
        locks=(),
        waits=(),
        stuck=None,
        block=None,
        purging="",
        details=None,
        approvals=(),
        heartbeats=(),
        blocked_for=0 if fresh else run.blocked_for,
        started_at=None if fresh else run.started_at,
    )
