"""Runs in memory: plain dictionaries, with the due runs of each type in order."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ...rules import lock
from ...rules.lock_record import LockRecord
from ...rules.record_type import R, RecordType
from ...rules.runs.limits import Limit, LimitKey, WorkflowLimits, group_of
from ...rules.runs.record import Run, RunEvent, WorkerRecord, memberships
from ...rules.runs.repository import RunFilter
from ...rules.slot import EMPTY_SLOT, EXECUTION, Address, Slot
from .records import MemoryRecords


class MemoryRunRepository:
    """The runs of one namespace. Used under the mutex of their space."""

    def __init__(
        self,
        lock: Callable[[str], LockRecord | None],
        put_lock: Callable[[str, LockRecord], None],
        slots: dict[Address, Slot],
        records: MemoryRecords | None = None,
    ) -> None:
        self.lock, self.put_lock, self._slots = lock, put_lock, slots
        self._records = MemoryRecords() if records is None else records
        self._runs: dict[str, Run] = {}
        self._by_key: dict[tuple[str, str], str] = {}
        self._by_age: list[tuple[int, str]] = []
        self._due: dict[str, list[tuple[int, str]]] = {}
        self._owned: dict[str, dict[str, None]] = {}
        self._journals: dict[str, list[str]] = {}
        self._inboxes: dict[str, list[RunEvent]] = {}
        self._workers: dict[str, WorkerRecord] = {}
        self._terms: dict[str, WorkflowLimits] = {}
        self._queues: dict[str, list[tuple[int, int, str]]] = {}
        self._let_in: dict[str, list[tuple[int, str]]] = {}
        self._starts: dict[str, list[tuple[int, str]]] = {}
        self._ended: dict[tuple[str, str], list[tuple[int, str]]] = {}

    def run(self, id: str) -> Run | None:
        """One run."""
        return self._runs.get(id)

    def save(self, run: Run) -> None:
        """Write a run, new or changed, and update the lists that contain it."""
        before = self._runs.get(run.id)
        self._runs[run.id] = run
        if before is None or before.created_at != run.created_at:
            if before is not None:
                del self._by_age[bisect_left(self._by_age, (before.created_at, run.id))]
            insort(self._by_age, (run.created_at, run.id))
        if before is not None and before.key and (before.workflow, before.key) != (run.workflow, run.key):
            del self._by_key[before.workflow, before.key]
        if run.key:
            self._by_key[run.workflow, run.key] = run.id
        self._list_ended(before, run)
        if before is not None and before.due_at is not None:
            due = self._due[before.type]
            del due[bisect_left(due, (before.due_at, run.id))]
        if run.due_at is not None:
            insort(self._due.setdefault(run.type, []), (run.due_at, run.id))
        if before is not None and before.worker:
            self._owned[before.worker].pop(run.id, None)
        if run.worker:
            self._owned.setdefault(run.worker, {})[run.id] = None
        if run.places or run.waits or (before is not None and before.waits):
            self._count(before, run)

    def _list_ended(self, before: Run | None, run: Run | None) -> None:
        """Update the lists of ended runs by which purges find them."""
        old, new = _ended_place(before), _ended_place(run)
        if old != new:
            for place, adds in ((old, False), (new, True)):
                if place is not None:
                    _put(self._ended, place[0], place[1], adds=adds)

    def _count(self, before: Run | None, run: Run) -> None:
        """Update the lists of queued and admitted runs of each limit, and of runs that wait for a lock."""
        for who, adds in ((before, False), (run, True)):
            for one in () if who is None else memberships(who):
                if one.queued:
                    _put(self._queues, one.group, (one.rank, one.arrival, one.run), adds=adds)
                else:
                    _put(self._let_in, one.group, (one.arrival, one.run), adds=adds)

    def run_with_key(self, workflow: str, key: str) -> str | None:
        """The id of the run of this workflow that was started with this idempotency key."""
        return self._by_key.get((workflow, key))

    def entries(self, run: str, limit: int | None) -> tuple[str, ...]:
        """The journal, or its first entries."""
        return tuple(self._journals.get(run, ())[:limit])

    def append(self, run: str, at: int, entries: Sequence[str]) -> None:
        """Write entries from the index `at` on."""
        journal = self._journals.setdefault(run, [])
        journal[at:] = entries

    def cut(self, run: str, keep: int) -> None:
        """Remove all entries but the first."""
        del self._journals[run][keep:]

    def events(self, run: str, after: int) -> tuple[RunEvent, ...]:
        """The inbox, from after this number on."""
        return tuple(event for event in self._inboxes.get(run, ()) if event.number > after)

    def event_with_key(self, run: str, key: str) -> int | None:
        """The number of the event with this key."""
        return next((event.number for event in self._inboxes.get(run, ()) if event.key == key), None)

    def post(self, run: str, event: RunEvent) -> None:
        """Write an event."""
        self._inboxes.setdefault(run, []).append(event)

    def unpost(self, run: str, numbers: Iterable[int]) -> None:
        """Remove events; the numbers of the others stay."""
        gone = set(numbers)
        if gone and run in self._inboxes:
            self._inboxes[run] = [event for event in self._inboxes[run] if event.number not in gone]

    def clear_inbox(self, run: str) -> None:
        """Remove all events; the next one that is written has the number 1."""
        self._inboxes.pop(run, None)

    def clear_run(self, run: Run, left: Run | None) -> None:
        """Remove a run that has ended, with what belongs to it; with `left`, that row stays."""
        self._journals.pop(run.id, None)
        self._inboxes.pop(run.id, None)
        for address in [address for address in self._slots if address[:2] == (EXECUTION, run.id)]:
            del self._slots[address]
        if left is not None:
            self.save(left)
            return
        del self._runs[run.id]
        del self._by_age[bisect_left(self._by_age, (run.created_at, run.id))]
        if run.key:
            del self._by_key[run.workflow, run.key]
        self._list_ended(run, None)

    def due(self, type: str, now: int, limit: int) -> Sequence[Run]:
        """The due runs of a type: up to `limit` that are due at once, and as many by time; each by age, id."""
        due = self._due.get(type, [])
        timed, end = bisect_left(due, (0, "")), bisect_left(due, (now + 1, ""))
        return [self._runs[name] for _, name in due[: min(timed, limit)] + due[timed : min(end, timed + limit)]]

    def next_due(self, types: Sequence[str]) -> int | None:
        """When the first run of these types is due."""
        return min((due[0][0] for kind in types if (due := self._due.get(kind))), default=None)

    def owned(self, worker: str, limit: int | None) -> Sequence[Run]:
        """The runs of a worker, by id."""
        return [self._runs[name] for name in sorted(self._owned.get(worker, ()))[:limit]]

    def workers(self) -> Sequence[WorkerRecord]:
        """All registered workers, the latest last."""
        return sorted(self._workers.values(), key=lambda worker: (worker.since, worker.id))

    def register_worker(self, worker: WorkerRecord) -> None:
        """Write a worker."""
        self._workers[worker.id] = worker

    def unregister_worker(self, worker: str) -> None:
        """Remove a worker."""
        self._workers.pop(worker, None)

    def settle(self, key: str, now: int) -> None:
        """Settle a lock that nobody waits for, and write it if that changed it."""
        before = self.lock(key)
        if before is not None and (after := lock.settle(before, now)[0]) is not before:
            self.put_lock(key, after)

    def terms(self, workflow: str) -> WorkflowLimits | None:
        """The limits of a workflow; None if none were ever published."""
        return self._terms.get(workflow)

    def put_terms(self, workflow: str, terms: WorkflowLimits) -> None:
        """Write the limits of a workflow."""
        self._terms[workflow] = terms

    def members(self, group: str, *, queued: bool, limit: int | None) -> Sequence[str]:
        """The runs of a group that have not ended: queued ones by priority and arrival, or admitted ones by arrival."""
        found = self._queues if queued else self._let_in
        return [member[-1] for member in found.get(group, [])[:limit]]

    def admitted(self, group: str) -> int:
        """How many admitted runs of a group have not ended."""
        return len(self._let_in.get(group, ()))

    def queued(self, group: str) -> int:
        """How many runs of a group are queued."""
        return len(self._queues.get(group, ()))

    def last_arrival(self, group: str, priority: int) -> int:
        """The highest arrival of admitted runs and of queued runs with this priority; 0: there is none."""
        let_in = self._let_in.get(group)
        waiting = (arrival for rank, arrival, _ in self._queues.get(group, ()) if rank == -priority)
        return max(let_in[-1][0] if let_in else 0, *waiting, 0)

    def queued_limit_keys(self, workflow: str) -> Sequence[LimitKey]:
        """The limit keys of a workflow under which runs are queued, in order."""
        runs = (self._runs[first[0][-1]] for first in self._queues.values())
        places = {place for run in runs if run.workflow == workflow for place in run.places}
        return sorted(place for place in places if group_of(workflow, place) in self._queues)

    def nth_start(self, group: str, n: int) -> int | None:
        """The n-th latest start that was noted for a group."""
        starts = self._starts.get(group, ())
        return starts[-n][0] if len(starts) >= n else None

    def starts_after(self, group: str, moment: int) -> int:
        """How many starts of a group were noted for later."""
        starts = self._starts.get(group, [])
        return len(starts) - bisect_left(starts, (moment + 1, ""))

    def note_start(self, group: str, at: int, run: str, limit: Limit, now: int) -> None:
        """Note a start. Of those that are not later than `now` only the latest are kept."""
        starts = self._starts.setdefault(group, [])
        insort(starts, (at, run))
        past = bisect_left(starts, (now + 1, ""))
        del starts[: max(0, past - limit.max)]

    def slot(self, address: Address) -> Slot:
        """A state slot; empty if it was never written."""
        return self._slots.get(address, EMPTY_SLOT)

    def put_slot(self, address: Address, slot: Slot) -> None:
        """Write a state slot."""
        self._slots[address] = slot

    def record(self, type: RecordType[R], key: str) -> R | None:
        """A record of any type; None: there is none."""
        return self._records.record(type, key)

    def put_record(self, type: RecordType[R], key: str, record: R | None) -> None:
        """Write a record of any type; None removes it."""
        self._records.put_record(type, key, record)

    def record_keys(self, type: RecordType[R], prefix: str, after: str, limit: int) -> Sequence[str]:
        """The keys of the first records of a type that begin with the prefix and come after `after`, in order."""
        return self._records.keys_after(type.name, prefix, after, limit)

    def ended(
        self, workflow: str, status: str, before: int, after: tuple[int, str] | None, limit: int
    ) -> Sequence[tuple[int, str]]:
        """The runs without a parent that ended with this status before a moment: (ended_at, id), the oldest first."""
        found = self._ended.get((workflow, status), [])
        first = 0 if after is None else bisect_right(found, tuple(after))
        return found[first : min(bisect_left(found, (before, "")), first + limit)]

    def workflows_after(self, name: str, limit: int) -> Sequence[str]:
        """The names of workflows that come after this one and have such runs, in order."""
        return sorted({workflow for workflow, _ in self._ended if workflow > name})[:limit]

    def page(self, wanted: RunFilter, after: tuple[int, str] | None, limit: int) -> Sequence[Run]:
        """The runs that match, the newest first, after the cursor."""
        start = len(self._by_age) if after is None else bisect_left(self._by_age, tuple(after))
        found = []
        for place in range(start - 1, -1, -1):
            run = self._runs[self._by_age[place][1]]
            if wanted.fits(run):
                found.append(run)
                if len(found) == limit:
                    break
        return found

    def run_counts(self) -> dict[str, int]:
        """The number of runs of each type that have not ended."""
        return dict(Counter(run.type for run in self._runs.values() if run.living))


def _ended_place(run: Run | None) -> tuple[tuple[str, str], tuple[int, str]] | None:
    """The list of ended runs that contains a run, and its place in it."""
    if run is None or run.purgeable_from is None:
        return None
    return (run.workflow, run.status), (run.purgeable_from, run.id)


def _put(groups: dict[Any, list[Any]], group: Any, member: tuple[Any, ...], *, adds: bool) -> None:
    """Add a member to its group, or remove it; an empty group is deleted."""
    members = groups.setdefault(group, [])
    if adds:
        insort(members, member)
    else:
        del members[bisect_left(members, member)]
        if not members:
            del groups[group]
