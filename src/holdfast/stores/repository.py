"""The `RunRepository` of a batch: runs, locks and limits over a snapshot, as the rules read and write them.

`batch_view.py` defines how a batch reads its snapshot and keeps its changes; this module translates the reads and
writes of the rules about runs, journals, locks, slots and limits into questions and changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from ..errors import RecordUnreadable
from ..rules import lock as lock_rules
from ..rules.lock_record import LockRecord
from ..rules.record_type import R, RecordType
from ..rules.runs.limits import Limit, LimitKey, WorkflowLimits
from ..rules.runs.record import POSTPONED, Run, RunEvent, WorkerRecord, worker_key
from ..rules.runs.repository import RunFilter
from ..rules.slot import EMPTY_SLOT, Address, Slot
from .batch_view import BatchView, rounded
from .index_moves import IndexMoves, arrivals, due_runs, members, runs_of
from .questions import (
    AddEvent,
    AppendEntries,
    ClearedRun,
    ClearInbox,
    DanglingItem,
    Entries,
    EventByKey,
    GroupSize,
    InboxChange,
    LatestArrivals,
    LatestStarts,
    LimitsOf,
    LockByKey,
    Members,
    NotedStart,
    QueuedLimitKeys,
    RecordsAfter,
    RegisteredWorkers,
    RemoveEvents,
    RowLocked,
    RunById,
    RunByKey,
    RunEvents,
    RunsAtOnce,
    RunsByTime,
    RunsOf,
    SlotAt,
    SlotsOf,
    Snapshot,
    StartsToCome,
    TruncateJournal,
    journal_after,
)


class BatchRepository(BatchView):
    """One batch's view of runs, locks, limits and all other records, and its changes to them."""

    def __init__(self, snapshot: Snapshot) -> None:
        super().__init__(snapshot)
        self._moves = IndexMoves()
        self._still_has_runs: set[str] = set()

    def drop(self) -> None:
        """Discard what the last command changed."""
        for name, run in self._new.runs.items():
            stored = self._snapshot.get(RunById(name))
            self._moves.move(stored, run, self.changes.runs.get(name, stored))
        super().drop()

    def _begin(self) -> None:
        super()._begin()
        self._still_has_runs = set()

    def changed(self) -> Iterator[tuple[Run | None, Run]]:
        """The runs that were changed so far, each as it is stored and as it is now."""
        for name in {**self.changes.runs, **self._new.runs}:
            yield self._snapshot.get(RunById(name)), self.run(name)  # type: ignore[misc]  # changed, so there

    # -- runs -----------------------------------------------------------------------------------------------

    def run(self, id: str) -> Run | None:
        """One run."""
        found = self._new.runs.get(id) or self.changes.runs.get(id)
        if found is not None and self._postponed:
            self._check_postponed(RunById(id))
        cleared = self._new.cleared.get(id)
        return cleared.left if cleared is not None else found or self._ask(RunById(id))

    def _stored(self, id: str) -> Run | None:
        """A run as it is stored, without the changes of this batch."""
        found: Run | None = self._ask(RunById(id))
        return found

    def save(self, run: Run) -> None:
        """Write a run, new or changed."""
        before = self.run(run.id)
        if run.key and (before is None or (before.workflow, before.key) != (run.workflow, run.key)):
            self._new.keys[run.workflow, run.key] = run.id
        if run.worker in self._snapshot.forgotten and (before is None or before.worker != run.worker):
            raise RowLocked(LockByKey(worker_key(run.worker)))
        self._moves.move(self._snapshot.get(RunById(run.id)), before, run)
        self._new.runs[run.id] = run

    def run_with_key(self, workflow: str, key: str) -> str | None:
        """The id of the run of this workflow that was started with this idempotency key."""
        mine = self._new.keys.get((workflow, key)) or self.changes.keys.get((workflow, key))
        return mine or self._ask(RunByKey(workflow, key))

    def due(self, type: str, now: int, limit: int) -> Sequence[Run]:
        """The due runs of a type: up to `limit` that are due at once, and as many by time; each by age, id."""
        gone, come = self._due_items(type)
        at_once = self._list(lambda most: RunsAtOnce(most, type), limit, gone, (item for item in come if item[0] < 0))
        by_time = self._list(lambda most: RunsByTime(most, type), limit, gone, (item for item in come if item[0] >= 0))
        found = []
        for item in (*at_once, *by_time):
            if item[0] > now:
                continue
            entry = DanglingItem((RunsAtOnce if item[0] < 0 else RunsByTime)(None, type), item)
            try:
                run = self.run(item[1])
            except RecordUnreadable:  # an unreadable run must not prevent the others from being claimed
                self._new.dangling[entry] = now + POSTPONED
                continue
            except RowLocked:  # nor one that another transaction is claiming
                continue
            if run is None:
                self._new.dangling[entry] = None
            else:
                found.append(run)
        return found

    def _due_items(self, type: str) -> tuple[set[tuple[int, str]], set[tuple[int, str]]]:
        """The items of due runs of a type that this batch has removed, and those that it has added."""
        key = due_runs(type)
        gone, come = self._moves.gone(key), self._moves.come(key)
        for entry, until in (*self.changes.dangling.items(), *self._new.dangling.items()):
            if isinstance(entry.list, RunsAtOnce | RunsByTime) and entry.list.type == type:
                gone.add(entry.item)
                if until is not None:
                    come.add((until, entry.item[1]))
        return gone, come

    def next_due(self, types: Sequence[str]) -> int | None:
        """When the first run of these types is due."""
        first = map(self._first_due, types)
        return min((due for due in first if due is not None), default=None)

    def _first_due(self, type: str) -> int | None:
        gone, come = self._due_items(type)
        for most in (lambda limit: RunsAtOnce(limit, type), lambda limit: RunsByTime(limit, type)):
            at_once = isinstance(most(None), RunsAtOnce)
            fresh = [item for item in come if (item[0] < 0) == at_once]
            left = [item for item in self._snapshot.beginning(most(None)) if item not in gone]
            first = min(left[:1] + fresh) if left else next(iter(self._list(most, 1, gone, fresh)), None)
            if first is not None:
                return int(first[0])
        return None

    def owned(self, worker: str, limit: int | None) -> Sequence[Run]:
        """The runs of a worker, by id. A locked run stays with it; if the worker unregisters, that is an error."""
        gone, come = self._moves.gone(runs_of(worker)), self._moves.come(runs_of(worker))
        found = []
        try:
            for name in self._list(lambda most: RunsOf(most, worker), limit, gone, come):
                try:
                    run = self.run(name)
                except RecordUnreadable:
                    continue  # an unreadable run must not prevent the others from being released
                except RowLocked as occupied:
                    self._leave_to(worker, occupied)
                    continue
                if run is not None:
                    found.append(run)
                else:
                    self._new.dangling[DanglingItem(RunsOf(None, worker), name)] = None
        except RowLocked as occupied:
            self._leave_to(worker, occupied)
        return found

    def _leave_to(self, worker: str, occupied: RowLocked) -> None:
        """Keep a worker registered, because it still has runs; where it unregisters, all of its runs are needed."""
        if worker in self._new.workers:
            raise occupied
        self._still_has_runs.add(worker)

    # -- journals and inboxes -------------------------------------------------------------------------------

    def entries(self, run: str, limit: int | None) -> tuple[str, ...]:
        """The journal, or its first entries."""
        steps = [*self.changes.journals.get(run, ()), *self._new.journals.get(run, ())]
        if steps and isinstance(steps[0], AppendEntries) and steps[0].at == 0:
            return journal_after((), steps)[:limit]
        return journal_after(self._ask(Entries(run, whole=limit is None)), steps)[:limit]

    def append(self, run: str, at: int, entries: Sequence[str]) -> None:
        """Write entries from the index `at` on."""
        if entries:
            self._new.journals.setdefault(run, []).append(AppendEntries(at, tuple(entries)))

    def cut(self, run: str, keep: int) -> None:
        """Remove all entries but the first."""
        self._new.journals.setdefault(run, []).append(TruncateJournal(keep))

    def _posts(self, run: str) -> Iterator[InboxChange]:
        yield from self.changes.inboxes.get(run, ())
        yield from self._new.inboxes.get(run, ())

    def events(self, run: str, after: int) -> tuple[RunEvent, ...]:
        """The inbox, from after this number on."""
        posts = list(self._posts(run))
        known = self.run(run)
        stored = self._stored(run)
        if known is not None and known.posted <= after:
            return ()
        events: list[RunEvent] = []
        if stored is not None and stored.posted > after:
            events += self._ask(RunEvents(run, after))
        for post in posts:
            if isinstance(post, ClearInbox):
                events = []
            elif isinstance(post, RemoveEvents):
                events = [event for event in events if event.number not in post.numbers]
            elif post.event.number > after:
                events.append(post.event)
        return tuple(events)

    def event_with_key(self, run: str, key: str) -> int | None:
        """The number of the event with this key."""
        number: int | None = None
        stored = self._stored(run) if self.run(run) is not None else None
        if stored is not None:
            number = self._ask(EventByKey(run, key))
        for post in self._posts(run):
            if isinstance(post, ClearInbox):
                number = None
            elif isinstance(post, RemoveEvents):
                number = None if number in post.numbers else number
            elif post.event.key == key and number is None:
                number = post.event.number
        return number

    def post(self, run: str, event: RunEvent) -> None:
        """Write an event."""
        self._new.inboxes.setdefault(run, []).append(AddEvent(event))

    def unpost(self, run: str, numbers: Iterable[int]) -> None:
        """Remove events; the numbers of the others stay."""
        wanted = frozenset(numbers)
        gone = [event for event in self.events(run, 0) if event.number in wanted] if wanted else []
        if gone:
            keys = tuple(event.key for event in gone if event.key)
            unpost = RemoveEvents(frozenset(event.number for event in gone), keys)
            self._new.inboxes.setdefault(run, []).append(unpost)

    def clear_inbox(self, run: str) -> None:
        """Remove all events; the next one that is written has the number 1."""
        self._new.inboxes.setdefault(run, []).append(ClearInbox())

    def clear_run(self, run: Run, left: Run | None) -> None:
        """Remove a run that has ended, with what belongs to it; with `left`, that row stays."""
        assert not run.living  # noqa: S101  (so it is in no list of due, owned or counted runs)
        stored: Run = self._ask(RunById(run.id))
        self._new.cleared[run.id] = ClearedRun(stored, left, self._ask(SlotsOf(run.id)))

    def record_keys(self, type: RecordType[R], prefix: str, after: str, limit: int) -> Sequence[str]:
        """The keys of the first records of a type that begin with the prefix and come after `after`, in order."""
        found = self.known(RecordsAfter(limit, type.name, prefix, after)).items[:limit]
        changed = self._new.records
        return [key for key in found if (type.name, key) not in changed or changed[type.name, key].record is not None]

    # -- workers, locks, slots ------------------------------------------------------------------------------

    def workers(self) -> Sequence[WorkerRecord]:
        """All registered workers, the latest last."""
        known: dict[str, WorkerRecord | None] = {worker.id: worker for worker in self._ask(RegisteredWorkers())}
        known |= self.changes.workers
        known |= self._new.workers
        living = (worker for worker in known.values() if worker is not None)
        return sorted(living, key=lambda worker: (worker.since, worker.id))

    def register_worker(self, worker: WorkerRecord) -> None:
        """Write a worker."""
        self._new.workers[worker.id] = worker

    def unregister_worker(self, worker: str) -> None:
        """Remove a worker, unless it still has runs that were locked."""
        if worker not in self._still_has_runs:
            self._new.workers[worker] = None

    def lock(self, key: str) -> LockRecord | None:
        """The record of a lock."""
        for changes in (self._new, self.changes):
            if key in changes.locks:
                self._check_postponed(LockByKey(key))
                return changes.locks[key]
        record: LockRecord | None = self._ask(LockByKey(key))
        return record

    def put_lock(self, key: str, record: LockRecord | None) -> None:
        """Write the record of a lock; None removes it."""
        if self.claiming and key not in self.changes.locks and key not in self._new.locks:
            self._snapshot.get(LockByKey(key))  # raises if another transaction has locked it
        self._new.locks[key] = record

    def settle(self, key: str, now: int) -> None:
        """Settle a lock that nobody waits for, and write it if that changed it."""
        before = self.lock(key)
        if before is not None and (after := lock_rules.settle(before, now)[0]) is not before:
            self.put_lock(key, after)

    def slot(self, address: Address) -> Slot:
        """A state slot; empty if it was never written."""
        found = self._new.slots.get(address) or self.changes.slots.get(address)
        if found is not None:
            self._check_postponed(SlotAt(address))
        return found or self._ask(SlotAt(address)) or EMPTY_SLOT

    def put_slot(self, address: Address, slot: Slot) -> None:
        """Write a state slot."""
        self._new.slots[address] = slot

    # -- limits ---------------------------------------------------------------------------------------------

    def terms(self, workflow: str) -> WorkflowLimits | None:
        """The limits of a workflow; None if none were ever published."""
        found = self._new.terms.get(workflow) or self.changes.terms.get(workflow)
        return found or self._ask(LimitsOf(workflow))

    def put_terms(self, workflow: str, terms: WorkflowLimits) -> None:
        """Write the limits of a workflow."""
        self._new.terms[workflow] = terms

    def members(self, group: str, *, queued: bool, limit: int | None) -> Sequence[str]:
        """The runs of a group that have not ended: queued ones by priority and arrival, or admitted ones by arrival."""
        key = members(group, queued=queued)
        gone, come = self._moves.gone(key), self._moves.come(key)
        found = self._list(lambda most: Members(most, group, queued), limit, gone, come)
        for item in found:
            if self._snapshot.knows(RunById(item[-1])) and self._missing(item[-1]):
                self._new.dangling[DanglingItem(Members(None, group, queued), item)] = None
        return [item[-1] for item in found]

    def _missing(self, run: str) -> bool:
        """Whether a run that a list names does not exist."""
        with suppress(RecordUnreadable, RowLocked):
            return self.run(run) is None
        return False

    def admitted(self, group: str) -> int:
        """How many admitted runs of a group have not ended."""
        return self._size(group, queued=False)

    def queued(self, group: str) -> int:
        """How many runs of a group are queued."""
        return self._size(group, queued=True)

    def _size(self, group: str, *, queued: bool) -> int:
        size: int = self._ask(GroupSize(group, queued))
        return size + self._moves.growth(members(group, queued=queued))

    def last_arrival(self, group: str, priority: int) -> int:
        """The highest arrival of admitted runs and of queued runs with this priority; 0: there is none."""
        return max(self._latest(group, queued=False, rank=0), self._latest(group, queued=True, rank=-priority))

    def _latest(self, group: str, *, queued: bool, rank: int) -> int:
        key = arrivals(group, queued=queued, rank=rank)
        gone, come = self._moves.gone(key), self._moves.come(key)
        found = self.known(LatestArrivals(rounded(1 + len(gone)), group, queued, rank))
        left = [item for item in found.items if item not in gone]
        return max((arrival for arrival, _ in (*left[:1], *come)), default=0)

    def queued_limit_keys(self, workflow: str) -> Sequence[LimitKey]:
        """The limit keys of a workflow under which runs are queued, in order."""
        waiting: dict[LimitKey, int] = dict(self._ask(QueuedLimitKeys(workflow)))
        for before, after in self.changed():
            for run, count in ((before, -1), (after, 1)):
                if run is not None and run.status == "queued" and run.workflow == workflow:
                    for place in run.places:
                        waiting[place] = waiting.get(place, 0) + count
        return sorted(place for place, count in waiting.items() if count > 0)

    def nth_start(self, group: str, n: int) -> int | None:
        """The n-th latest start that was noted for a group."""
        stored = self.known(LatestStarts(n, group)).items[:n]
        starts = sorted([*stored, *((start.at, start.run) for start in self._noted(group))], reverse=True)
        return starts[n - 1][0] if len(starts) >= n else None

    def starts_after(self, group: str, moment: int) -> int:
        """How many starts of a group were noted for later than now; rules ask for no other moment."""
        assert moment == self.now  # noqa: S101
        stored: int = self._ask(StartsToCome(group))
        return stored + sum(start.at > moment for start in self._noted(group))

    def note_start(self, group: str, at: int, run: str, limit: Limit, now: int) -> None:
        """Note a start. Of those that are not later than `now` only the latest are kept."""
        self._new.starts.append(NotedStart(group, at, run, limit, now))

    def _noted(self, group: str) -> Iterator[NotedStart]:
        for changes in (self.changes, self._new):
            yield from (start for start in changes.starts if start.group == group)

    # -- lists, which the store reads itself -----------------------------------------------------------------

    def page(self, wanted: RunFilter, after: tuple[int, str] | None, limit: int) -> Sequence[Run]:
        """Not supported: the store reads lists itself, outside of decisions."""
        raise NotImplementedError

    def run_counts(self) -> dict[str, int]:
        """Likewise."""
        raise NotImplementedError

    def ended(
        self, workflow: str, status: str, before: int, after: tuple[int, str] | None, limit: int
    ) -> Sequence[tuple[int, str]]:
        """Likewise."""
        raise NotImplementedError

    def workflows_after(self, name: str, limit: int) -> Sequence[str]:
        """Likewise."""
        raise NotImplementedError
