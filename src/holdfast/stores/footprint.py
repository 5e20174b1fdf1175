"""Predicts which questions a command will need, so that most decisions need one read.

A missing question costs one more round trip, a superfluous one a little reading; no decision depends on the
prediction. `footprint` is called again with the answers that were read before, as long as it yields new questions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from msgspec.structs import replace

from ..commands import (
    Cleanup,
    Command,
    ListDueRecords,
    ListRecords,
    LockCommand,
    RecordCommand,
    SettleDue,
    SlotCommand,
)
from ..commands import purging as p
from ..commands import runs as r
from ..commands.answers import REQUESTS, AnswerApproval, PostUpdate
from ..rules.lock_record import LockRecord
from ..rules.runs import record as rule
from ..rules.runs.admission import FIRST_LOOK
from ..rules.runs.approvals import open_key
from ..rules.runs.limits import LimitKey, WorkflowLimits, group_of
from ..rules.runs.lock_requests import run_of_attempt
from ..rules.runs.own_records import own_key, own_prefix
from ..rules.runs.purging import RUNS_AT_ONCE, at_once, record_prefixes
from ..rules.runs.record import Continue, Finish, NewRun, Run, RunEvent
from ..rules.runs.requests import (
    ANSWERED_PAGE,
    ANSWERED_PAGES,
    APPROVAL,
    APPROVAL_NAME,
    OPEN_APPROVAL,
    UPDATE,
    RunRequests,
)
from ..rules.runs.signal_keys import SIGNAL_KEY, SIGNAL_KEY_PAGE, page_key, record_key
from ..rules.runs.transitions import ORPHANS_AT_ONCE
from ..rules.runs.tree import TREE_MEMBER, tree_key, tree_prefix
from ..rules.runs.updates import page_key as page_key_of_answers
from . import stream_footprint as of_streams
from .batch_view import FEW, rounded
from .questions import (
    Claimable,
    DueLocks,
    DueRecords,
    Entries,
    EventByKey,
    GroupSize,
    LatestArrivals,
    LimitsOf,
    LockByKey,
    LocksAfter,
    Members,
    Question,
    QueuedLimitKeys,
    Range,
    RecordAt,
    RecordsAfter,
    RegisteredWorkers,
    RunById,
    RunByKey,
    RunEvents,
    RunsAtOnce,
    RunsByTime,
    RunsOf,
    SlotAt,
    SlotsOf,
    Snapshot,
)
from .records import page_size

Questions = Iterator[Question]

LOOKED_AT = (rule.worker_key(""), "run/")
"""Prefixes of locks that many commands read and few change."""


def footprint(command: Command, known: Snapshot | None) -> Questions:
    """The questions that a command will probably need; `known` are the answers that were read before."""
    if isinstance(command, LockCommand):
        yield from _lock(command.key, known)
    elif isinstance(command, SlotCommand):
        yield SlotAt(command.address)
    elif isinstance(command, RecordCommand):
        yield RecordAt(command.record_type.name, command.key)
    elif isinstance(command, ListRecords | ListDueRecords):
        yield from _records(command, known)
    elif isinstance(command, SettleDue):
        yield from _due_locks(command, known)
    elif isinstance(command, Cleanup):
        yield from _locks_after(command, known)
    elif isinstance(command, r.StartRun):
        yield from _start(command.new, command.worker, known)
    elif isinstance(command, r.StartOrSignal):
        yield from _start(replace(command.new, key="", on_existing="replace_ended"), command.worker, known)
        yield from _posted_to(command.new.id, command.event, known)
    elif isinstance(command, r.RecordRun):
        yield from _record(command, known)
    elif isinstance(command, r.ClaimRuns):
        yield from _claim(command, known)
    elif isinstance(command, r.WriteStream | r.ReadStream | r.WatchStream):
        yield from of_streams.footprint(command, partial(_look, known))
    elif isinstance(command, REQUESTS):
        yield from _request(command, known)
    elif isinstance(command, r.RunCommand):
        yield from _purge(command, known) if isinstance(command, p.PURGES) else _other(command, known)


def is_written(command: Command, question: Question) -> bool:
    """Whether a decision may write the row that a question is about; True where that is not known.

    Leases of workers and locks of runs are only read, unless a command is about that lock itself. The run of a
    start is only read as well, unless it may be replaced: it is new, or stays unchanged.
    """
    if isinstance(question, LockByKey) and question.key.startswith(LOOKED_AT):
        lock_requests = command.lock_requests if isinstance(command, r.RecordRun) else ()
        return question.key in (getattr(command, "key", None), *(ask.key for ask in lock_requests))
    if not isinstance(command, r.StartRun) or question != RunById(command.new.id):
        return True
    return command.new.on_existing == "replace_ended"


def _look(known: Snapshot | None, question: Question) -> object:
    """The known answer, or None."""
    if known is None or not known.knows(question):
        return None
    try:
        return known.range(question).items if isinstance(question, Range) else known.get(question)
    except Exception:  # an answer that is an error counts as unknown here; the rule will raise it
        return None


def _lock(key: str, known: Snapshot | None) -> Questions:
    """A lock, and the first runs that wait for it: one of them may get an offer and is then notified."""
    yield LockByKey(key)
    record = _look(known, LockByKey(key))
    if isinstance(record, LockRecord):
        askers = (run_of_attempt(waiter.id) for waiter in record.waiters[:FEW])
        yield from _waiters([asker[0] for asker in askers if asker is not None])


def _waiters(runs: Sequence[str]) -> Questions:
    if runs:
        yield RegisteredWorkers()
        for run in runs:
            yield RunById(run)


def _due_locks(command: SettleDue, known: Snapshot | None) -> Questions:
    due = DueLocks(max(1, command.limit) + 1)
    yield due
    for _, key in _look(known, due) or ():  # type: ignore[attr-defined]
        yield from _lock(key, known)


def _locks_after(command: Cleanup, known: Snapshot | None) -> Questions:
    page = LocksAfter(max(1, command.limit) + 1, command.after)
    yield page
    for key in _look(known, page) or ():  # type: ignore[attr-defined]
        yield LockByKey(key)


def _records(command: ListRecords | ListDueRecords, known: Snapshot | None) -> Questions:
    names = list_of(command)
    yield names
    yield from _listed(names, known)


def _listed(names: RecordsAfter | DueRecords, known: Snapshot | None) -> Questions:
    """The records that a list names."""
    for item in _look(known, names) or ():  # type: ignore[attr-defined]
        yield RecordAt(names.kind, item if isinstance(item, str) else item[1])


def list_of(command: ListRecords | ListDueRecords) -> RecordsAfter | DueRecords:
    """The list of a page of records: one more than requested, to know whether there are more."""
    wanted = page_size(command.limit) + 1
    if isinstance(command, ListRecords):
        return RecordsAfter(wanted, command.kind, command.prefix, command.after)
    return DueRecords(wanted, command.kind)


def _purge(command: r.RunCommand, known: Snapshot | None) -> Questions:
    if isinstance(command, p.PurgeRuns | p.CountPurgeable):
        for root in command.roots:
            yield RunById(root)
            yield from _abandoned(root, known)
            yield from _tree(root, "", RUNS_AT_ONCE, known, slots=isinstance(command, p.PurgeRuns))
    elif isinstance(command, p.LookAtTree):
        yield from _tree(command.root, command.after, max(1, min(command.limit, RUNS_AT_ONCE)) + 1, known)
    elif isinstance(command, p.PurgeTree):
        yield RunById(command.root)
        yield from _abandoned(command.root, known)
        if command.step == "remove":
            yield from _tree(command.root, "", RUNS_AT_ONCE + 1, known, slots=True)


def _abandoned(root: str, known: Snapshot | None) -> Questions:
    """The parent of a first run that has abandoned it."""
    run = _look(known, RunById(root))
    if isinstance(run, Run) and run.parent and run.is_first:
        yield RunById(run.parent)


def _tree(root: str, after: str, limit: int, known: Snapshot | None, *, slots: bool = False) -> Questions:
    """The first runs of a tree, found by its records; with `slots` also what is removed with them."""
    names = RecordsAfter(limit, TREE_MEMBER.name, tree_prefix(root), after)
    yield names
    if slots:
        yield SlotsOf(root)
        yield from _belongings(root, known)
    for key in _look(known, names) or ():  # type: ignore[attr-defined]
        yield RecordAt(TREE_MEMBER.name, key)
        text = _look(known, RecordAt(TREE_MEMBER.name, key))
        if isinstance(text, str):
            member = TREE_MEMBER.decode(key, text).id
            yield RunById(member)
            if slots:
                yield SlotsOf(member)
                yield from _belongings(member, known)


def _belongings(id: str, known: Snapshot | None) -> Questions:
    """The records that are removed with a run."""
    run = _look(known, RunById(id))
    for kind, prefix in record_prefixes(run) if isinstance(run, Run) else ():
        names = RecordsAfter(at_once(kind), kind.name, prefix, "")
        yield names
        for key in _look(known, names) or ():  # type: ignore[attr-defined]
            yield RecordAt(kind.name, key)


def _start(new: NewRun, worker: str, known: Snapshot | None) -> Questions:
    workflow = rule.workflow_of(new.type)
    yield RunById(new.id)
    yield RegisteredWorkers()
    if not new.parent or new.places:
        yield LimitsOf(workflow)
    if new.parent:
        yield RecordAt(TREE_MEMBER.name, tree_key(new.root, new.id))
    if new.key:
        yield RunByKey(workflow, new.key)
        if isinstance(same := _look(known, RunByKey(workflow, new.key)), str):
            yield RunById(same)
    if worker:
        yield LockByKey(rule.worker_key(worker))
    before = _look(known, RunById(new.id))
    if isinstance(before, Run):
        yield from _replaced(new, before, known)
    terms = _look(known, LimitsOf(workflow))
    for place in new.places:
        group = group_of(workflow, place)
        yield GroupSize(group, queued=False)
        limit = terms.limit(place.limit) if isinstance(terms, WorkflowLimits) else None
        if limit is not None and limit.max_queue is not None:  # counting a queue costs time, and few limits need it
            yield GroupSize(group, queued=True)
        yield LatestArrivals(FEW, group, queued=False, rank=0)
        yield LatestArrivals(FEW, group, queued=True, rank=-new.priority)


def _replaced(new: NewRun, run: Run, known: Snapshot | None) -> Questions:
    """What a start reads of the run that has its id."""
    if run.replaces and run.request != new.request:  # the start may have been sent again
        yield RunById(run.replaces)
    if new.on_existing != "replace_ended" or run.living:
        return
    if run.parent:
        yield RunById(run.parent)
        yield RecordAt(TREE_MEMBER.name, tree_key(run.root, run.id))
        yield RecordAt(TREE_MEMBER.name, tree_key(run.root, rule.archive_id(run)))
    yield RunById(rule.archive_id(run))
    yield Entries(run.id, whole=True)
    yield from _read_signals(run, known)


def _posted_to(run: str, event: RunEvent, known: Snapshot | None) -> Questions:
    """What is read of a run that gets an event with a key."""
    if event.key:
        yield EventByKey(run, event.key)
        known_run = _look(known, RunById(run))
        if isinstance(known_run, Run) and known_run.remembered is not None:
            yield RecordAt(SIGNAL_KEY.name, record_key(run, event.key))


def _record(command: r.RecordRun, known: Snapshot | None) -> Questions:
    yield RunById(command.run)
    if command.swap is not None:
        yield SlotAt(command.swap.address)
    for child in command.children:
        yield from _start(child, "", known)
    for ask in command.lock_requests:
        yield from _lock(ask.key, known)
    run = _look(known, RunById(command.run))
    if isinstance(run, Run):
        for items in command.streams:
            yield from of_streams.added(run, items, partial(_look, known))
        if run.posted > command.seen:
            yield RunEvents(command.run, command.seen)
        yield from _requests(run, command.requests, known)
        if isinstance(command.then, Finish):
            yield from _finish(run, known)
            yield from _cancelled(command.then.cancels, known)
        elif isinstance(command.then, Continue):
            yield from _continue(run, known)


def _continue(run: Run, known: Snapshot | None) -> Questions:
    """What is read where a run begins its next generation."""
    yield RegisteredWorkers()
    yield from _read_signals(run, known)


def _read_signals(run: Run, known: Snapshot | None) -> Questions:
    """The inbox of a run, and the records of the keys of signals that it has read."""
    events = RunEvents(run.id, 0)
    yield events
    first, last, _ = (1, 0, 0) if run.remembered is None else run.remembered.parts
    yield RecordAt(SIGNAL_KEY_PAGE.name, page_key(run.id, last + 1))
    for event in _look(known, events) or ():  # type: ignore[attr-defined]
        if event.kind == "signal" and event.key:
            yield RecordAt(SIGNAL_KEY.name, record_key(run.id, event.key))
    if first < last:
        yield RecordAt(SIGNAL_KEY_PAGE.name, page_key(run.id, first))


def _finish(run: Run, known: Snapshot | None) -> Questions:
    """The parent of a run, the runs that are queued under its limits, and its locks."""
    if run.parent:
        yield RunById(run.parent)
        yield EventByKey(run.parent, rule.ended_key(run))
        yield RegisteredWorkers()
    if run.places and run.status != "queued":
        yield LimitsOf(run.workflow)
        yield RegisteredWorkers()
        for place in run.places:
            yield from _queue(run.workflow, place, known)
    for _, key in run.locks:
        yield from _lock(key, known)
    for name in run.approvals:
        yield from _open_approval(run, name, known)


def _queue(workflow: str, place: LimitKey, known: Snapshot | None) -> Questions:
    """The first runs that are queued under a limit, and how many runs it has admitted."""
    group = group_of(workflow, place)
    yield GroupSize(group, queued=False)
    first = Members(FIRST_LOOK, group, queued=True)
    yield first
    for _, _, name in _look(known, first) or ():  # type: ignore[attr-defined]
        yield RunById(name)


def forecast_of(limit: int) -> int:
    """How many items of a list are read for a claim: more than it takes, to know what is due next.

    No rule asks for exactly this number of items, so a source that answers `Claimable` can tell by the number that a
    question was only predicted here.
    """
    return rounded(max(FEW, limit) + 1) + 1


def followed(names: Question, known: Snapshot | None) -> Questions:
    """The questions about the items of a list, which a rule asks one after another once it has the list."""
    if isinstance(names, QueuedLimitKeys):
        for place, _ in _look(known, names) or ():  # type: ignore[attr-defined]
            yield from _queue(names.workflow, place, known)
        return
    if isinstance(names, DueRecords):
        yield from _listed(names, known)
        return
    for item in _look(known, names) or ():  # type: ignore[attr-defined]
        name = item[-1] if isinstance(item, tuple) else item
        yield RunById(name)
        run = _look(known, RunById(name))
        if isinstance(run, Run) and isinstance(names, Members) and not names.group.startswith(rule.LOCK_QUEUE):
            for place in run.places:
                yield GroupSize(group_of(run.workflow, place), queued=False)


def _orphans(command: r.ClaimRuns, known: Snapshot | None) -> Iterator[Question | str]:
    """The runs of workers whose lease has expired: they are released, and may be claimed in the same step."""
    for worker in _look(known, RegisteredWorkers()) or ():  # type: ignore[attr-defined]
        lease = LockByKey(rule.worker_key(worker.id))
        if known is None or not known.knows(lease) or worker.id == command.worker:
            continue
        if not rule.holds(_look(known, lease), known.now, worker.id):  # type: ignore[arg-type]
            orphans = RunsOf(rounded(ORPHANS_AT_ONCE), worker.id)
            yield orphans
            yield from _look(known, orphans) or ()  # type: ignore[misc]


def _claim(command: r.ClaimRuns, known: Snapshot | None) -> Questions:
    yield RegisteredWorkers()
    yield LockByKey(rule.worker_key(command.worker))
    ids = list(command.runs)
    for orphan in _orphans(command, known):
        if isinstance(orphan, Question):
            yield orphan
        elif command.runs or len(ids) >= command.limit:
            yield RunById(orphan)
        else:
            ids.append(orphan)
    for kind, _ in command.types:
        lists: tuple[Range, ...] = (RunsAtOnce(FEW, kind), RunsByTime(FEW, kind))
        if not command.runs:
            most = forecast_of(command.limit)
            lists = (RunsAtOnce(most, kind), RunsByTime(most, kind))
            yield Claimable(kind, max(1, command.limit))
        for due in lists:
            yield due
            found = _look(known, due) or () if not command.runs else ()
            ids += [name for due_at, name in found if known is not None and due_at <= known.now]  # type: ignore[attr-defined]
    for name in ids:
        yield from _claimed(name, known)


def _claimed(id: str, known: Snapshot | None) -> Questions:
    """All questions about a run that is claimed."""
    yield RunById(id)
    yield Entries(id, whole=True)
    yield RunEvents(id, 0)
    run = _look(known, RunById(id))
    if isinstance(run, Run):
        yield LockByKey(rule.run_key(run.workflow, run.id))
        if run.worker:
            yield LockByKey(rule.worker_key(run.worker))
        for _, key in run.locks:
            yield LockByKey(key)


ONE_RUN = r.PostEvent | r.ReviveRun | r.WatchRun | r.ReadRun | r.BlockRun | r.UnblockRun | r.FailRun


def _one_run(command: ONE_RUN, known: Snapshot | None) -> Questions:
    """The questions about one run that is read, gets an event, is revived, blocked or ended."""
    yield RunById(command.run)
    yield RegisteredWorkers()
    if isinstance(command, r.PostEvent):
        yield from _posted_to(command.run, command.event, known)
    if isinstance(command, r.ReadRun | r.WatchRun):
        yield Entries(command.run, whole=isinstance(command, r.ReadRun) and command.history)
        if isinstance(command, r.ReadRun) and command.history:
            yield RunEvents(command.run, 0)
    run = _look(known, RunById(command.run))
    if isinstance(run, Run):
        if run.worker:
            yield LockByKey(rule.worker_key(run.worker))
        if isinstance(command, r.ReviveRun) and run.root and run.root != run.id:
            yield RunById(run.root)
        if isinstance(command, r.ReviveRun | r.FailRun):
            yield RunEvents(command.run, 0)
            yield LockByKey(rule.run_key(run.workflow, run.id))
        if isinstance(command, r.FailRun):
            yield from _finish(run, known)
            yield from _cancelled(command.cancels, known)


def _cancelled(children: Sequence[str], known: Snapshot | None) -> Questions:
    """The children that may be cancelled with their parent; one that has not begun ends at once."""
    for child in children:
        yield RunById(child)
        run = _look(known, RunById(child))
        if isinstance(run, Run) and rule.never_began(run):
            yield from _finish(run, known)


def _request(command: REQUESTS, known: Snapshot | None) -> Questions:
    """The questions about a request to a run, or by a run."""
    yield RunById(command.run)
    yield RegisteredWorkers()
    run = _look(known, RunById(command.run))
    if not isinstance(run, Run):
        return
    if run.worker:
        yield LockByKey(rule.worker_key(run.worker))
    if isinstance(command, AnswerApproval):
        yield RecordAt(APPROVAL_NAME.name, own_key(run, command.name))
        yield RecordAt(APPROVAL.name, own_key(run, command.name))
        yield from _open_approval(run, command.name, known)
    else:
        key = command.event.key if isinstance(command, PostUpdate) else command.key
        yield RecordAt(UPDATE.name, own_key(run, key))


def _requests(run: Run, requests: RunRequests, known: Snapshot | None) -> Questions:
    """What a record reads for the requests that it answers, opens and closes."""
    if requests.replies:
        pages = RecordAt(ANSWERED_PAGES.name, own_prefix(run))
        yield pages
        for reply in requests.replies:
            yield RecordAt(UPDATE.name, own_key(run, reply.key))
        text = _look(known, pages)
        last = ANSWERED_PAGES.decode("", text).last if isinstance(text, str) else 1
        yield RecordAt(ANSWERED_PAGE.name, page_key_of_answers(run, last))
    for new in requests.opens:
        yield RecordAt(APPROVAL.name, own_key(run, new.id))
        yield RecordAt(APPROVAL_NAME.name, own_key(run, new.name))
        yield RecordAt(OPEN_APPROVAL.name, open_key(run, new.at, new.id))
    for name in requests.closes:
        yield from _open_approval(run, name, known)


def _open_approval(run: Run, id: str, known: Snapshot | None) -> Questions:
    """The record of an open request, and its row in the list of open ones."""
    there = RecordAt(APPROVAL.name, own_key(run, id))
    yield there
    if isinstance(text := _look(known, there), str):
        yield RecordAt(OPEN_APPROVAL.name, open_key(run, APPROVAL.decode("", text).asked_at, id))


def _import(run: Run, known: Snapshot | None) -> Questions:
    yield RunById(run.id)
    if run.key:
        yield RunByKey(run.workflow, run.key)
        if isinstance(same := _look(known, RunByKey(run.workflow, run.key)), str):
            yield RunById(same)


def _other(command: r.RunCommand, known: Snapshot | None) -> Questions:
    if isinstance(command, ONE_RUN):
        yield from _one_run(command, known)
    elif isinstance(command, r.RecordHeartbeat):
        yield RunById(command.run)
    elif isinstance(command, r.ImportRun):
        yield from _import(command.imported, known)
    elif isinstance(command, r.PublishLimits | r.ReadLimits):
        yield LimitsOf(command.workflow)
    elif isinstance(command, r.ListOwnedRuns | r.UnregisterWorker):
        yield RunsOf(None, command.worker)
        yield RegisteredWorkers()
        for name in _look(known, RunsOf(None, command.worker)) or ():  # type: ignore[attr-defined]
            yield RunById(name)
    elif isinstance(command, r.ReadNextDue | r.ListWorkers | r.RegisterWorker):
        yield RegisteredWorkers()
        if isinstance(command, r.RegisterWorker):
            yield LockByKey(rule.worker_key(command.worker))
        if isinstance(command, r.ReadNextDue):
            for kind in command.types:
                yield RunsAtOnce(FEW, kind)
                yield RunsByTime(FEW, kind)
