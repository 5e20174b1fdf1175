"""The record of a run, and the pure decisions about it: start, claim, record, post, bury, revive.

A run belongs to a worker or to nobody. Whoever claims it gets a higher fence, and every write to its journal is
checked against that fence in the same step, so a history is one line whoever wrote it. What the entries of a journal
say is not decided here: they are text. All times are integer microseconds of the store's clock.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec
from msgspec.structs import replace

from ..lock_record import LockRecord
from .limits import LimitKey, group_of

Status = Literal["queued", "pending", "running", "suspended", "completed", "failed", "cancelled", "timed_out"]
"""Living: waiting to be let in, for a worker, driven by one, waiting for a time or an event. The rest are the ends."""
End = Literal["completed", "failed", "cancelled", "timed_out"]
EventKind = Literal["signal", "cancel", "child", "lock", "deadlock"]
Locks = tuple[tuple[int, str], ...]
"""What a run has or waits for: the number of each ask, and the key."""


class LockWait(msgspec.Struct, frozen=True, array_like=True):
    """A place in the queue of a lock that the lock's record does not list: see `rules/runs/lock_queue.py`.

    `ask` is the number of the run's ask; `number` orders those who wait for the lock.
    """

    key: str
    number: int
    ask: int
    since: int
    weight: int = 1


Scalar = str | int | bool
"""What an attribute can be."""

LIVING: tuple[Status, ...] = ("queued", "pending", "running", "suspended")
POISONED = 5
"""A run whose worker died so often in a row, with nothing recorded in between, is stopped."""
SUSPECT = 2
"""From so many deaths on a worker drives it only when it has no other such run: one of them may be the killer."""
LONG_AGO = 5_000_000_000_000_000
"""What is due at once is due so long ago (158 years): it stays due when the clock is set back, and keeps its order."""
POSTPONED = 1_000_000
"""For how long a run that is due and cannot be had makes room for others."""
WATCHERS = 64
"""How many may wait to be told of a run's end; further ones look by themselves."""
ANY_VERSION = "@*"
"""The end of the type of a run that was started by name: whoever claims it first decides the version."""


class Stuck(msgspec.Struct, frozen=True, array_like=True):
    """Nothing can bring a run on but locks, and the ends of these children. It had `seen` so many events by then."""

    seen: int
    children: tuple[str, ...] = ()


class Run(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a store knows of a run besides its journal and its inbox.

    `length` counts the entries of the journal, `posted` the events of the inbox, `claims` how often it was claimed.
    `due_at` is when a run that nobody drives may be claimed: a time, or `at_once`, or None: not before an event comes.
    `last` is the id of the last record that was made. `places` are the limits that count it while it lives; of those
    who are `queued` there, the highest `priority` comes first, and then the lowest `arrival`. `locks` is what it has or
    waits for, `waits` those of them in whose queue it stands without being listed there; `stuck` is there where
    nothing can bring it on but those and children, as its last record said, unless that was answered at once.
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

    @property
    def workflow(self) -> str:
        """The name of its workflow, without a version."""
        return workflow_of(self.type)

    @property
    def living(self) -> bool:
        """Whether it has not ended yet."""
        return self.status in LIVING


class NewRun(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A run that is to be started. `request` is the id of this start: only a re-send of it is the same start.

    `terms` tells by which terms of the workflow its `places` were found.
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


class RunEvent(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Something that came to a run from outside. Of events with the same key only the first is kept."""

    number: int = 0
    kind: EventKind
    name: str = ""
    payload: str = "null"
    key: str = ""
    at: int = 0


class Park(msgspec.Struct, frozen=True, tag="park"):
    """Leave the run to nobody until `due_at` or an event; a time that has passed: to the next who claims it."""

    due_at: int | None


class Finish(msgspec.Struct, frozen=True, tag="finish"):
    """End the run. `result` is JSON text: the value, or what went wrong."""

    status: End
    result: str


Ending = Park | Finish


class WorkerRecord(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A worker as it is enlisted. It lives while its lease does: the lock with the key `worker_key(id)`."""

    id: str
    name: str
    types: tuple[str, ...]
    since: int


def workflow_of(type: str) -> str:
    """The workflow's name in a type.

    >>> workflow_of("order@2"), workflow_of("order")
    ('order', 'order')
    """
    return type.partition("@")[0]


class Membership(NamedTuple):
    """That a living run is counted or waits somewhere: the runs of one group are counted together, in this order."""

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

    Of those who wait at a limit the highest priority comes first; those who were let in have one rank.
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
"""What the groups of runs that wait for a lock begin with."""


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
    """The key of the lock with which others than engines lock a run. A slash in a name is written otherwise.

    >>> run_key("import", "run/7")
    'run/import/run%2F7'
    """
    return "/".join(["run", *(part.replace("%", "%25").replace("/", "%2F") for part in (workflow, run))])


def hint_for(worker: str, run: str) -> str:
    """Where a hint about a run goes that is for this worker: its channel, and which run."""
    return f"{worker.partition('.')[0]}.run/{run}"


def holds(record: LockRecord | None, now: int, id: str | None = None) -> bool:
    """Whether somebody, or this attempt, holds a lock at this moment. An offer is not a holding yet."""
    return record is not None and any(
        (id is None or holder.id == id)
        and not holder.offered
        and (holder.expires_at is None or holder.expires_at > now)
        for holder in record.holders
    )


def ended_key(run: Run) -> str:
    """The key of the event by which a parent is told of this end of a run: a run that was revived can end again."""
    return f"ended/{run.id}/{run.fence}"


def new_fence(run: Run | None, now: int) -> int:
    """A fence above all that this run ever had; it follows the clock as tokens do."""
    return now if run is None else max(run.fence + 1, now)


def at_once(now: int) -> int:
    """The due time of what is due from now on, whatever happens to the clock."""
    return now - LONG_AGO


def due_since(run: Run) -> int:
    """Since when a run has been due, to tell who comes first."""
    due_at = run.due_at or 0
    return due_at + LONG_AGO if due_at < 0 else due_at


def start(new: NewRun, now: int, worker: str = "") -> Run:
    """The record of a run that begins: with its starter, if that is a living worker, else for whoever claims it."""
    run = Run(
        id=new.id,
        type=new.type,
        created_at=now,
        due_at=at_once(now),
        request=new.request,
        key=new.key,
        parent=new.parent,
        root=new.root or new.id,
        attributes=new.attributes,
        places=new.places,
        priority=new.priority,
        length=1,
    )
    return claim(run, now, worker=worker, type=new.type) if worker else run


def queued(run: Run, *, priority: int, arrival: int) -> Run:
    """The record of a run that waits until its limits have room for it."""
    return replace(run, status="queued", due_at=None, priority=priority, arrival=arrival)


def admitted(run: Run, now: int, due_at: int | None) -> Run:
    """The record of a run that waited and is let in: due at once, or when the limits on starts allow it."""
    return replace(run, status="pending", due_at=at_once(now) if due_at is None else due_at)


def claim(run: Run, now: int, *, worker: str, type: str) -> Run:
    """The record after a worker took the run: under a new fence, unless it has it already."""
    if run.worker == worker:
        return run
    return replace(
        run,
        status="running",
        type=type,
        worker=worker,
        fence=new_fence(run, now),
        claims=run.claims + 1,
        due_at=None,
        started_at=now if run.started_at is None else run.started_at,
    )


def may_record(run: Run, *, fence: int, at: int) -> bool:
    """Whether a driver with this fence, who knows of `at` entries, is the one who writes this journal."""
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
    locks: Locks = (),
    stuck: tuple[str, ...] | None = None,
) -> tuple[Run, bool]:
    """The record after entries were added, and whether what was to happen `then` may happen. Parking is done here.

    A run with an event that its driver has not seen neither parks nor ends: it would never be told.
    """
    run = replace(
        run,
        length=run.length + entries,
        crashes=0 if entries or then is not None else run.crashes,
        last=request,
        attributes=run.attributes if attributes is None else attributes,
        locks=locks,
        stuck=None if stuck is None else Stuck(seen, stuck),
    )
    if then is None or run.posted > seen:
        return run, then is None
    if isinstance(then, Finish):
        return run, True
    due_at = at_once(now) if then.due_at is not None and then.due_at <= now else then.due_at
    return replace(run, status="suspended", worker="", due_at=due_at), True


def finished(run: Run, now: int, end: Finish) -> Run:
    """The record of a run that has ended. Who watched it has been told by whoever asks this."""
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
    )


def posted(run: Run, now: int, kind: EventKind) -> Run:
    """The record after an event came: a run that waits for one is due at once."""
    waits = run.status == "suspended" and (run.due_at is None or run.due_at >= 0)
    return replace(
        run,
        posted=run.posted + 1,
        due_at=at_once(now) if waits else run.due_at,
        cancelling=run.cancelling or kind == "cancel",
    )


def never_began(run: Run) -> bool:
    """Whether a run ends at once when it is cancelled: no code of it has run that could be told."""
    return run.status == "queued" or (run.status == "pending" and run.started_at is None)


def postponed(run: Run, now: int) -> Run:
    """The record of a run that is due and cannot be had now: looked at again a little later."""
    return run if run.due_at is None or run.due_at > now else replace(run, due_at=now + POSTPONED)


def orphaned(run: Run, now: int) -> Run:
    """The record of a run whose worker has died: for whoever claims it."""
    return replace(run, status="pending", worker="", due_at=at_once(now), crashes=run.crashes + 1)


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
        locks=(),
        waits=(),
        stuck=None,
        started_at=None if fresh else run.started_at,
    )
