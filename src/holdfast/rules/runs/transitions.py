"""What a store answers about runs, told once over a book of records.

A book is how a store shows its runs, journals, inboxes, workers and locks within one atomic step. Memory and SQLite are
books; a store that has a native form of these stories must be equal to them on random histories. Every story decides
first and writes afterwards; a store undoes what one that fails has written.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from ...errors import RecordUnreadable
from ..lock_outcomes import Outcome
from ..slot import Conflict, Swap, written
from . import record as rule
from .admission import cancel, enter, finish, look_at_the_end
from .helpers import free, holder_of, lives, wake, works
from .helpers import post as post_to
from .limits import Terms, Verdict
from .lock_requests import Ask
from .locks import ask, give_back, held, said_before, tell
from .outcomes import (
    Claim,
    Claimed,
    Enlisted,
    Limited,
    Outlook,
    Posted,
    Recorded,
    Refused,
    RunSeen,
    RunTaken,
    Started,
    TermsDiffer,
    WorkerGone,
    WorkersSeen,
)
from .record import Event, Finish, NewRun, Run, Scalar, Then, Worker
from .repository import Book

BURIED_AT_ONCE = 1_000
"""How many runs of dead workers one claim sets free, at most."""
POISON = '{"type":"RunPoisoned","message":"its worker died %d times in a row while it drove this run"}'


def start(book: Book, now: int, new: NewRun, worker: str) -> Outcome:
    """Start a run, for a living worker or for whoever claims it."""
    known = _known(book, now, new)
    if known is not None:
        return known
    if worker and not works(book, now, worker):
        return WorkerGone()
    if not new.parent and ((terms := book.terms(rule.workflow_of(new.type))) or Terms()).digest != new.terms:
        return TermsDiffer(terms=terms)  # a child is counted where its parent's code says
    entrance = enter(book, now, rule.start(new, now), worker)
    if entrance.run is None:
        return Limited(verdict=entrance.verdict)
    fresh = entrance.run.id == new.id
    if fresh:
        book.append(new.id, 0, (new.input,))
    return Started(run=entrance.run, fresh=fresh, now=now, verdict=entrance.verdict, woken=entrance.woken)


def _known(book: Book, now: int, new: NewRun) -> Outcome | None:
    """The answer to a start whose run is there already, or whose id is that of another."""
    before = book.run(new.id)
    if before is not None and before.request == new.request:
        return Started(run=before, fresh=True, now=now)
    if new.key and (found := book.run_with_key(rule.workflow_of(new.type), new.key)) is not None:
        known = book.run(found)
        if known is not None:
            return Started(run=known, fresh=False, now=now)
    return None if before is None else RunTaken(run=before)


def claim(
    book: Book,
    now: int,
    *,
    worker: str,
    types: Sequence[tuple[str, str]],
    limit: int,
    suspects: int,
    runs: Sequence[str],
) -> Outcome:
    """Give a worker the runs that it names, or up to `limit` that are due; each with a higher fence."""
    if not works(book, now, worker):
        return WorkerGone()
    _bury(book, now, worker)
    woken: tuple[str, ...] = ()
    becomes = dict(types)
    found: list[Run] = []
    for seen in _named(book, runs) if runs else _due(book, now, tuple(becomes), limit):
        if len(found) >= limit:
            break
        run = book.run(seen.id) or seen  # the end of another may have told it something just now
        if run.type not in becomes or (run.worker != worker and lives(book, now, run.worker)):
            continue
        try:
            can_be_had = _can_be_had(book, now, run)
        except RecordUnreadable:
            if runs:
                raise
            can_be_had = False  # what is damaged is left alone, and hides nobody
        if not can_be_had:
            book.save(rule.postponed(run, now))
            continue
        if run.deaths >= rule.POISONED:
            woken += finish(book, now, run, Finish("failed", POISON % run.deaths))
            continue
        if run.deaths >= rule.SUSPECT and run.worker != worker:
            if suspects < 1 and not runs:
                book.save(rule.postponed(run, now))
                continue
            suspects -= 1
        taken = rule.claim(run, now, worker=worker, type=becomes[run.type])
        if taken is not run:
            book.save(taken)
        found.append(taken)
    claims = tuple(_given(book, now, run) for run in found)
    return Claimed(claims=claims, next_due=book.next_due([kind for kind, _ in types]), now=now, woken=woken)


def record(
    book: Book,
    now: int,
    *,
    run: str,
    fence: int,
    at: int,
    entries: Sequence[str],
    seen: int,
    then: Then | None,
    children: Sequence[NewRun],
    attributes: dict[str, Scalar] | None,
    request: str,
    swap: Swap | None = None,
    asks: Sequence[Ask] = (),
    stuck: tuple[str, ...] | None = None,
) -> Outcome:
    """Add to the journal of a run that the caller drives, start its children, ask for locks, and park or end it.

    With a swap, a slot is written in the same step; where somebody else has written it before, nothing is done at all.
    """
    before = book.run(run)
    if before is not None and before.last == request:
        done = then is None or before.status != "running" or before.fence != fence
        there = {new.id: book.run(new.id) for new in children}
        taken = tuple(new.id for new in children if (other := there[new.id]) and other.request != new.request)
        limited = {name: Verdict("reject") for name, child in there.items() if child is None}
        said = said_before(book, now, run, asks)
        return Recorded(done=done, taken=taken, limited=limited, said=said, events=book.events(run, seen), now=now)
    if before is None or not rule.may_record(before, fence=fence, at=at):
        return Refused(run=before, holder=holder_of(book, now, before))
    changed = None
    if swap is not None:
        slot = book.slot(swap.address)
        changed = written(slot, swap, f"{run}:{request}")
        if changed is None:
            return Conflict(version=slot.version, last=slot.last, value=slot.value)
    woken: tuple[str, ...] = ()
    book.append(run, at, entries)
    if swap is not None and changed is not None:
        book.put_slot(swap.address, changed)
    taken, limited = (), {}
    for new in children:
        started = start(book, now, new, "")
        woken += started.woken
        if isinstance(started, RunTaken):
            taken += (new.id,)
        elif isinstance(started, Limited) or (isinstance(started, Started) and started.run.id != new.id):
            limited[new.id] = started.verdict
    said, locks, offered = ask(book, now, before, asks)
    woken += offered + tell(book, now, offered)
    goes_on = taken or limited or any(one.what not in ("queued", "given") for one in said)
    after, done = rule.recorded(
        book.run(run) or before,  # a child that came may have had it cancelled, or a lock may be offered to it
        now,
        entries=len(entries),
        seen=seen,
        then=then,
        attributes=attributes,
        request=request,
        locks=locks,
        stuck=None if goes_on else stuck,  # who was answered is not stuck
    )
    if done and isinstance(then, Finish):
        woken += finish(book, now, after, then)
    else:
        book.save(after)
        woken += () if after.worker else wake(book, now, after)
    return Recorded(
        done=done, taken=taken, limited=limited, said=said, events=book.events(run, seen), now=now, woken=woken
    )


def post(book: Book, now: int, run: str, event: Event) -> Outcome:
    """Put an event into the inbox of a living run; its driver is told, or it becomes due."""
    before = book.run(run)
    if before is not None and event.key and (number := book.event_with_key(run, event.key)) is not None:
        return Posted(number=number, fresh=False, run=before)
    if before is None or not before.living:
        return Refused(run=before)
    return cancel(book, now, before, event) if event.kind == "cancel" else post_to(book, now, before, event)


def revive(
    book: Book, now: int, *, run: str, fence: int, keep: int, forget: Sequence[int], fresh: bool, request: str
) -> Outcome:
    """Let a run begin again after its first `keep` entries, unless somebody living drives it or its fence is new."""
    before = book.run(run)
    if before is not None and before.last == request:
        return Posted(number=before.length, fresh=True, run=before)
    if before is None or before.fence != fence or not free(book, now, before):
        return Refused(run=before, holder=holder_of(book, now, before))
    after = rule.revived(before, now, keep=max(1, min(keep, before.length)), request=request, fresh=fresh)
    woken: tuple[str, ...] = ()
    if before.living:  # it has its place, in the queue or beyond
        if before.status == "queued":
            after = rule.queued(after, priority=after.priority, arrival=after.arrival)
        book.save(after)
        woken = wake(book, now, after)
    else:
        entrance = enter(book, now, after, again=True)
        if entrance.run is None:
            return Limited(verdict=entrance.verdict)
        after, woken = entrance.run, entrance.woken
    woken += give_back(book, now, before)
    book.cut(run, after.length)
    book.unpost(run, forget)
    return Posted(number=after.length, fresh=True, run=after, woken=woken)


def watch(book: Book, now: int, run: str, id: str) -> Outcome:
    """Look at a run, and have this attempt told of its end."""
    before = book.run(run)
    if before is not None and before.living and id not in before.watchers and len(before.watchers) < rule.WATCHERS:
        book.save(replace(before, watchers=(*before.watchers, id)))
    return see(book, now, run, history=False)


def see(book: Book, now: int, run: str, *, history: bool) -> RunSeen:
    """Look at a run, and at its journal and inbox if they are asked for."""
    found = book.run(run)
    if found is None:
        return RunSeen(claim=None, holder="", expires_at=None, now=now)
    shown = Claim(
        run=found,
        entries=book.entries(run, None if history else 1),
        events=book.events(run, 0) if history else (),
    )
    lock = book.lock(rule.worker_key(found.worker)) if found.worker else None
    holders = lock.holders if lock is not None and rule.holds(lock, now, found.worker) else ()
    expires_at = next((holder.expires_at for holder in holders if holder.id == found.worker), None)
    return RunSeen(claim=shown, holder=holder_of(book, now, found), expires_at=expires_at, now=now)


def outlook(book: Book, now: int, types: Sequence[str]) -> Outlook:
    """When there is something to claim."""
    if any(not lives(book, now, worker.id) for worker in book.workers()):
        return Outlook(next_due=now, now=now)
    return Outlook(next_due=book.next_due(types), now=now)


def workers(book: Book, now: int) -> WorkersSeen:
    """Who lives, and what each can drive."""
    return WorkersSeen(workers=tuple(worker for worker in book.workers() if lives(book, now, worker.id)))


def enlist(book: Book, now: int, *, worker: str, name: str, types: Sequence[str]) -> Outcome:
    """Make a living worker known, so that it is told of runs that it could claim."""
    if not lives(book, now, worker):
        return WorkerGone()
    book.enlist(Worker(id=worker, name=name, types=tuple(types), since=now))
    return Enlisted()


def dismiss(book: Book, now: int, worker: str) -> Outcome:
    """A worker goes: what it still has is for whoever claims it, and is not counted as a death."""
    woken: tuple[str, ...] = ()
    book.dismiss(worker)
    for run in book.owned(worker, None):
        free = replace(rule.buried(run, now), deaths=run.deaths)
        book.save(free)
        woken += wake(book, now, free)
    return Enlisted(woken=woken)


# -- parts of the stories ---------------------------------------------------------------------------------------


def _can_be_had(book: Book, now: int, run: Run) -> bool:
    """Whether nobody has locked a run from outside. Raises where that, or what its end would change, is damaged."""
    if run.deaths >= rule.POISONED:
        look_at_the_end(book, run)
    return not rule.holds(book.lock(rule.run_key(run.workflow, run.id)), now)


def _given(book: Book, now: int, run: Run) -> Claim:
    entries, events = book.entries(run.id, None), book.events(run.id, 0)
    return Claim(run=run, entries=entries, events=events, held=held(book, now, run))


def _named(book: Book, runs: Sequence[str]) -> list[Run]:
    found = (book.run(wanted) for wanted in dict.fromkeys(runs))
    return [run for run in found if run is not None and run.living and run.status != "queued"]


def _due(book: Book, now: int, types: Sequence[str], limit: int) -> list[Run]:
    """What is due of all the types, the longest due first. What is not free is postponed, and hides nobody."""
    found = [run for kind in types for run in book.due(kind, now, limit)]
    return sorted(found, key=lambda run: (rule.due_since(run), run.id))


def _bury(book: Book, now: int, worker: str) -> None:
    """Set the runs of dead workers free. Who has none left is forgotten."""
    room = BURIED_AT_ONCE
    for dead in book.workers():
        book.settle(rule.worker_key(dead.id), now)  # a clock that was set back must not keep the dead alive
        if dead.id == worker or room < 1 or lives(book, now, dead.id):
            continue
        orphans = book.owned(dead.id, room)
        for run in orphans:
            book.save(rule.buried(run, now))
        room -= len(orphans)
        if room > 0:
            book.dismiss(dead.id)
