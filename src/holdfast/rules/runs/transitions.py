"""Transitions of runs, written against the `RunRepository` interface.

A repository is how a store reads and writes its runs, journals, inboxes, workers and locks within one atomic step. A
native form of a transition must be equal to it on random histories. Every transition decides first and writes
afterwards; a store undoes the writes of one that fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from msgspec.structs import replace

from ...errors import RecordUnreadable
from ..lock_outcomes import Outcome
from ..slot import Conflict, Swap, written
from . import approvals, heartbeats, replacing, tree, updates
from . import record as rule
from .admission import cancel, enter, finish
from .blocking import may_claim, poisoned
from .generations import begin_next
from .heartbeat_records import AttemptEnd
from .helpers import can_drive, free, holder_of, is_alive, known, wake
from .helpers import post as post_to
from .limits import ADMITTED, LimitVerdict, WorkflowLimits
from .lock_requests import LockRequest
from .locks import answers_before, ask, give_back, held, notify_offered
from .outcomes import (
    AnsweredMeanwhile,
    Claim,
    Claimed,
    Limited,
    LimitsDiffer,
    NextDue,
    Posted,
    Recorded,
    RunRefused,
    RunSeen,
    RunTaken,
    SilentStep,
    Started,
    WorkerGone,
    WorkerList,
    WorkerRegistered,
)
from .parent_ends import cancel_children
from .purging import is_stub, spare
from .record import Block, Continue, Ending, Finish, NewRun, Parent, Past, Run, RunEvent, Scalar, WorkerRecord
from .repository import RunRepository
from .requests import NO_REQUESTS, RunRequests
from .signal_keys import is_remembered
from .stream_records import CodeItems
from .streams import write_from_code

ORPHANS_AT_ONCE = 1_000
"""How many runs of crashed workers one claim releases, at most."""


def start(
    repo: RunRepository, now: int, new: NewRun, worker: str, past: Past | None = None, *, parent: Run | None = None
) -> Outcome:
    """Start a run for a worker, or for any worker that claims it; with a `past`, it continues from there.

    `parent` is the run that starts a child in the step of its record.
    """
    there = _known(repo, now, new)
    if there is not None:
        return there
    if worker and not new.delay and not can_drive(repo, now, worker):
        return WorkerGone()
    if not new.parent and ((terms := repo.terms(rule.workflow_of(new.type))) or WorkflowLimits()).digest != new.terms:
        return LimitsDiffer(terms=terms)  # a child is counted under the limits that its parent's code gave
    before = repo.run(new.id)
    replaced = None if before is None or is_stub(before) else replacing.Replaced(repo, before)
    run = rule.start(new, now, before=before, parent=parent)
    if past is not None:
        generation = max(run.generation, past.generation)
        run = replace(run, length=1 + len(past.entries), posted=past.posted, generation=generation, first=generation)
    entrance = enter(repo, now, run, worker)
    if entrance.run is None:
        return Limited(verdict=entrance.verdict)
    run, fresh = entrance.run, entrance.run.id == new.id
    if fresh:
        if replaced is not None:
            run = replaced.keep(now, run)
        repo.append(new.id, 0, (new.input, *(() if past is None else past.entries)))
        for event in () if past is None else past.events:
            repo.post(new.id, event)
        tree.joined(repo, run, new.root or new.id)
    return Started(run=run, fresh=fresh, now=now, verdict=entrance.verdict, woken=entrance.woken)


def start_or_signal(repo: RunRepository, now: int, new: NewRun, event: RunEvent, worker: str) -> Outcome:
    """Send a signal to the run with this id; if there is none that has not ended, start one with this signal.

    A signal that the ended run knows starts nothing.
    """
    before = known(repo, new.id)
    again = replacing.started_by(repo, now, before, new)
    if again is not None:
        by = again.cancelled_by if again.status == "cancelled" and again.started_at is None else None
        verdict = ADMITTED if by is None or by.run else LimitVerdict("cancel_newest", by.limit)
        return Started(run=again, fresh=True, now=now, verdict=verdict)
    if before is not None:
        if before.workflow != rule.workflow_of(new.type):
            return RunTaken(run=before, why="workflow")
        if before.living or _knows(repo, before, event) is not None:
            return post(repo, now, before.id, event)
    outcome = start(repo, now, replace(new, key="", on_existing="replace_ended"), worker)
    if not isinstance(outcome, Started) or outcome.run.id != new.id or not outcome.run.living:
        return outcome
    return replace(outcome, run=post_to(repo, now, outcome.run, event).run)


def _readable(repo: RunRepository, children: Sequence[NewRun]) -> tuple[NewRun, ...]:
    """Those of these children whose records can be read, or that do not exist.

    A replay requests the start of a child again. A damaged child was started before: it must not keep its parent from
    recording.
    """
    found = []
    for new in children:
        with suppress(RecordUnreadable):
            repo.run(new.id)
            found.append(new)
    return tuple(found)


def _known(repo: RunRepository, now: int, new: NewRun) -> Outcome | None:
    """The answer to a start whose run exists already, or whose id another run has."""
    before = repo.run(new.id)
    again = replacing.started_by(repo, now, before, new)
    if again is not None:
        return Started(run=again, fresh=True, now=now)
    if new.key and (found := repo.run_with_key(rule.workflow_of(new.type), new.key)) is not None:
        other = known(repo, found)
        if other is not None:
            return Started(run=other, fresh=False, now=now)
    return None if before is None or is_stub(before) else _existing(repo, now, new, before)


def _existing(repo: RunRepository, now: int, new: NewRun, before: Run) -> Outcome | None:
    """The answer to a start whose id another run has; None if the start replaces that run."""
    if before.status == "purged":
        return RunTaken(run=before)
    if new.on_existing == "use":
        if before.workflow != rule.workflow_of(new.type):
            return RunTaken(run=before, why="workflow")
        return Started(run=before, fresh=False, now=now)
    if new.on_existing == "replace_ended":
        why = replacing.obstacle(repo, before)
        return RunTaken(run=before, why=why) if why else None
    return RunTaken(run=before)


def claim(
    repo: RunRepository,
    now: int,
    *,
    worker: str,
    types: Sequence[tuple[str, str]],
    limit: int,
    suspects: int,
    runs: Sequence[str],
    engine: str = "",
    opened: int = 0,
    code: str = "",
    untried: bool = False,
) -> Outcome:
    """Claim the named runs, or up to `limit` that are due, for a worker; each with a higher fence."""
    if not can_drive(repo, now, worker):
        return WorkerGone()
    release_orphans(repo, now, worker)
    becomes = dict(types)
    found: list[Run] = []
    stopped: tuple[Run, ...] = ()
    silent: tuple[SilentStep, ...] = ()
    blocks: dict[str, Block] = {}
    for seen in _named(repo, runs) if runs else _due(repo, now, tuple(becomes), limit):
        if len(found) >= limit:
            break
        run = repo.run(seen.id) or seen  # the end of another run may have changed it just now
        driven = run.worker != worker and is_alive(repo, now, run.worker)
        late = heartbeats.missed(run, now) if driven else None
        if run.type not in becomes or (driven and late is None):
            continue
        if run.worker == worker and not runs:  # a heartbeat is missing, and the own timer of the worker acts
            repo.save(rule.postponed(run, now))
            continue
        if not may_claim(run, now, engine=engine, opened=opened, code=code, named=bool(runs), untried=untried):
            continue
        if _is_locked(repo, now, run, named=bool(runs)):
            repo.save(rule.postponed(run, now))
            continue
        before = run
        if run.status == "running" and run.worker != worker:  # it is silent, or the run of a crashed worker
            run = rule.orphaned(run, now)
        if run.crashes >= rule.POISONED and run.status != "blocked" and run.worker != worker:
            stopped += (poisoned(repo, now, run),)
            silent += heartbeats.silent(repo, now, before, late)
            continue
        if run.crashes >= rule.SUSPECT and run.worker != worker:
            if suspects < 1 and not runs:
                repo.save(rule.postponed(before, now))
                continue
            suspects -= 1
        silent += heartbeats.silent(repo, now, before, late)
        taken = rule.claim(run, now, worker=worker, type=becomes[run.type], code=code)
        if taken is not run:
            repo.save(taken)
        if run.block is not None:
            blocks[run.id] = run.block
        found.append(taken)
    claims = tuple(_given(repo, now, run, blocks.get(run.id)) for run in found)
    next_due = repo.next_due([kind for kind, _ in types])
    return Claimed(claims=claims, next_due=next_due, now=now, poisoned=stopped, silent=silent)


def record(
    repo: RunRepository,
    now: int,
    *,
    run: str,
    fence: int,
    at: int,
    entries: Sequence[str],
    seen: int,
    then: Ending | None,
    children: Sequence[NewRun],
    attributes: dict[str, Scalar] | None,
    request: str,
    details: str | None = None,
    swap: Swap | None = None,
    lock_requests: Sequence[LockRequest] = (),
    stuck: tuple[str, ...] | None = None,
    streams: Sequence[CodeItems] = (),
    requests: RunRequests = NO_REQUESTS,
    attempt_ends: Sequence[AttemptEnd] = (),
) -> Outcome:
    """Add to the journal of a run that the caller drives, start its children, request locks, and park or end it.

    With a swap, a slot is written in the same step; if another write came first, nothing is done.
    """
    before = known(repo, run)
    if before is not None and before.last == request:
        done = then is None or before.status != "running" or before.fence != fence
        children = _readable(repo, children)
        there = {new.id: repo.run(new.id) for new in children}
        taken = tuple(new.id for new in children if (other := there[new.id]) and other.request != new.request)
        limited = {name: LimitVerdict("reject") for name, child in there.items() if child is None}
        answers = answers_before(repo, now, run, lock_requests)
        return Recorded(
            done=done, taken=taken, limited=limited, answers=answers, events=repo.events(run, seen), now=now
        )
    if before is None or not rule.may_record(before, fence=fence, at=at):
        return RunRefused(run=before, holder=holder_of(repo, now, before))
    changed = None
    if swap is not None:
        slot = repo.slot(swap.address)
        changed = written(slot, swap, f"{run}:{request}")
        if changed is None:
            return Conflict(version=slot.version, last=slot.last, value=slot.value)
    if approvals.answered(repo, before, requests.closes):
        return AnsweredMeanwhile()
    repo.append(run, at, entries)
    woken = updates.answer(repo, now, before, requests.replies)
    approvals.change(repo, now, before, requests.opens, requests.closes)
    if swap is not None and changed is not None:
        repo.put_slot(swap.address, changed)
    taken, limited = (), {}
    for new in _readable(repo, children):
        started = start(repo, now, new, "", parent=before)
        woken += started.woken
        if isinstance(started, RunTaken):
            taken += (new.id,)
        elif isinstance(started, Limited) or (isinstance(started, Started) and started.run.id != new.id):
            limited[new.id] = started.verdict
    for items in streams:
        woken += write_from_code(repo, now, before, items)
    answers, locks, offered = ask(repo, now, before, lock_requests)
    woken += offered + notify_offered(repo, now, offered)
    goes_on = taken or limited or any(one.what not in ("queued", "given") for one in answers)
    after, done = rule.recorded(
        repo.run(run) or before,  # a child that started may have cancelled it, or a lock may be offered to it
        now,
        entries=len(entries),
        seen=seen,
        then=then,
        attributes=attributes,
        request=request,
        details=details,
        locks=locks,
        stuck=None if goes_on else stuck,  # a run that got an answer is not stuck
        attempt_ends=attempt_ends,
    )
    if done and isinstance(then, Finish):
        woken += finish(repo, now, after, then)
        woken += cancel_children(repo, now, after, then.cancels, then.status)
    elif done and isinstance(then, Continue):
        woken += begin_next(repo, now, after, then)
        return Recorded(done=True, taken=taken, limited=limited, answers=answers, events=(), now=now, woken=woken)
    else:
        repo.save(after)
        woken += () if after.worker else wake(repo, now, after)
    return Recorded(
        done=done, taken=taken, limited=limited, answers=answers, events=repo.events(run, seen), now=now, woken=woken
    )


def post(repo: RunRepository, now: int, run: str, event: RunEvent, parent: Parent | None = None) -> Outcome:
    """Put an event into the inbox of a run that has not ended; its worker is notified, or the run becomes due.

    With a `parent`, only into that of a run which this parent has started.
    """
    before = known(repo, run)
    if before is not None and parent not in (None, rule.Parent(before.parent, before.parent_first)):
        return RunRefused(run=None)
    if before is not None and (number := _knows(repo, before, event)) is not None:
        return Posted(number=number, fresh=False, run=before)
    if before is None or not before.living:
        return RunRefused(run=before)
    if event.kind == "deadlock" and not rule.is_stuck(before):  # it was claimed or blocked since it was read
        return RunRefused(run=before)
    return cancel(repo, now, before, event) if event.kind == "cancel" else post_to(repo, now, before, event)


def revive(
    repo: RunRepository, now: int, *, run: str, fence: int, keep: int, forget: Sequence[int], fresh: bool, request: str
) -> Outcome:
    """Let a run begin again after its first `keep` entries, unless a worker drives it or its fence has changed."""
    before = known(repo, run)
    if before is not None and before.last == request:
        return Posted(number=before.length, fresh=True, run=before)
    if before is not None and not spare(repo, before):
        return RunRefused(run=None)
    if before is None or before.fence != fence or before.replaced_by or not free(repo, now, before):
        return RunRefused(run=before, holder=holder_of(repo, now, before))
    after = rule.revived(before, now, keep=max(1, min(keep, before.length)), request=request, fresh=fresh)
    woken: tuple[str, ...] = ()
    if before.living:  # it keeps its place, queued or admitted
        if before.status == "queued":
            after = rule.queued(after, priority=after.priority, arrival=after.arrival)
        repo.save(after)
        woken = wake(repo, now, after)
    else:
        entrance = enter(repo, now, after, again=True)
        if entrance.run is None:
            return Limited(verdict=entrance.verdict)
        after, woken = entrance.run, entrance.woken
    woken += give_back(repo, now, before)
    approvals.close_all(repo, now, before)
    repo.cut(run, after.length)
    repo.unpost(run, forget)
    return Posted(number=after.length, fresh=True, run=after, woken=woken)


def watch(repo: RunRepository, now: int, run: str, id: str) -> Outcome:
    """Read a run, and notify this attempt of its end."""
    before = known(repo, run)
    if before is not None and before.living and id not in before.watchers and len(before.watchers) < rule.WATCHERS:
        repo.save(replace(before, watchers=(*before.watchers, id)))
    return see(repo, now, run, history=False)


def see(repo: RunRepository, now: int, run: str, *, history: bool) -> RunSeen:
    """Read a run, with its journal and inbox if requested."""
    found = known(repo, run)
    if found is None:
        return RunSeen(claim=None, holder="", expires_at=None, now=now)
    shown = Claim(
        run=found,
        entries=repo.entries(run, None if history else 1),
        events=repo.events(run, 0) if history else (),
    )
    lock = repo.lock(rule.worker_key(found.worker)) if found.worker else None
    holders = lock.holders if lock is not None and rule.holds(lock, now, found.worker) else ()
    expires_at = next((holder.expires_at for holder in holders if holder.id == found.worker), None)
    return RunSeen(claim=shown, holder=holder_of(repo, now, found), expires_at=expires_at, now=now)


def next_due(repo: RunRepository, now: int, types: Sequence[str]) -> NextDue:
    """When the next run can be claimed."""
    if any(not is_alive(repo, now, worker.id) for worker in repo.workers()):
        return NextDue(next_due=now, now=now)
    return NextDue(next_due=repo.next_due(types), now=now)


def workers(repo: RunRepository, now: int) -> WorkerList:
    """The workers whose lease is valid, and what each can drive."""
    return WorkerList(workers=tuple(worker for worker in repo.workers() if is_alive(repo, now, worker.id)))


def register_worker(
    repo: RunRepository, now: int, *, worker: str, name: str, types: Sequence[str], engine: str = ""
) -> Outcome:
    """Register a worker whose lease is valid, so that it gets hints about runs that it could claim."""
    if not is_alive(repo, now, worker):
        return WorkerGone()
    repo.register_worker(WorkerRecord(id=worker, name=name, types=tuple(types), since=now, engine=engine))
    return WorkerRegistered()


def unregister_worker(repo: RunRepository, now: int, worker: str) -> Outcome:
    """Remove a worker that shuts down: any worker may claim its runs, and that does not count as a crash."""
    woken: tuple[str, ...] = ()
    repo.unregister_worker(worker)
    for run in repo.owned(worker, None):
        free = replace(rule.orphaned(run, now), crashes=run.crashes)
        repo.save(free)
        woken += wake(repo, now, free)
    return WorkerRegistered(woken=woken)


# -- parts ------------------------------------------------------------------------------------------------------


def _knows(repo: RunRepository, run: Run, event: RunEvent) -> int | None:
    """The number of an event with this key that a run has received; 0: an earlier generation has read it."""
    if not event.key:
        return None
    number = repo.event_with_key(run.id, event.key)
    return 0 if number is None and is_remembered(repo, run, event.key) else number


def _is_locked(repo: RunRepository, now: int, run: Run, *, named: bool) -> bool:
    """Whether a program other than an engine has locked a run; also if that is not known, unless the run is named."""
    try:
        return rule.holds(repo.lock(rule.run_key(run.workflow, run.id)), now)
    except RecordUnreadable:
        if named:
            raise
        return True  # a damaged run is left alone, and does not block the others


def _given(repo: RunRepository, now: int, run: Run, block: Block | None) -> Claim:
    entries, events = repo.entries(run.id, None), repo.events(run.id, 0)
    return Claim(run=run, entries=entries, events=events, held=held(repo, now, run), block=block)


def _named(repo: RunRepository, runs: Sequence[str]) -> list[Run]:
    found = (repo.run(wanted) for wanted in dict.fromkeys(runs))
    return [run for run in found if run is not None and run.living and run.status != "queued"]


def _due(repo: RunRepository, now: int, types: Sequence[str], limit: int) -> list[Run]:
    """The due runs of all these types, the longest due first. Runs that cannot be claimed now are postponed."""
    found = [run for kind in types for run in repo.due(kind, now, limit)]
    return sorted(found, key=lambda run: (rule.due_since(run), run.id))


def release_orphans(repo: RunRepository, now: int, worker: str) -> None:
    """Release the runs of crashed workers. A worker that has none left is removed."""
    room = ORPHANS_AT_ONCE
    for dead in repo.workers():
        repo.settle(rule.worker_key(dead.id), now)  # after the clock was set back, the lease must expire all the same
        if dead.id == worker or room < 1 or is_alive(repo, now, dead.id):
            continue
        orphans = repo.owned(dead.id, room)
        for run in orphans:
            repo.save(rule.orphaned(run, now))
        room -= len(orphans)
        if room > 0:
            repo.unregister_worker(dead.id)
