"""Runs in memory: plain dictionaries, with what is due in order by type."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from ..rules import lock
from ..rules.record import LockRecord
from ..rules.run import Event, Run, Worker
from ..rules.run_book import RunFilter
from ..rules.slot import EMPTY_SLOT, Address, Slot


class MemoryBook:
    """The runs of one namespace. Used under the mutex of their space."""

    def __init__(
        self,
        lock: Callable[[str], LockRecord | None],
        put_lock: Callable[[str, LockRecord], None],
        slots: dict[Address, Slot],
    ) -> None:
        self.lock, self._put_lock, self._slots = lock, put_lock, slots
        self._runs: dict[str, Run] = {}
        self._by_key: dict[tuple[str, str], str] = {}
        self._by_age: list[tuple[int, str]] = []
        self._due: dict[str, list[tuple[int, str]]] = {}
        self._owned: dict[str, dict[str, None]] = {}
        self._journals: dict[str, list[str]] = {}
        self._inboxes: dict[str, list[Event]] = {}
        self._workers: dict[str, Worker] = {}

    def run(self, id: str) -> Run | None:
        """One run."""
        return self._runs.get(id)

    def save(self, run: Run) -> None:
        """Write a run, new or changed, and keep the orders in which it is found."""
        before = self._runs.get(run.id)
        self._runs[run.id] = run
        if before is None:
            insort(self._by_age, (run.created_at, run.id))
            if run.key:
                self._by_key[run.workflow, run.key] = run.id
        elif before.due_at is not None:
            due = self._due[before.type]
            del due[bisect_left(due, (before.due_at, run.id))]
        if run.due_at is not None:
            insort(self._due.setdefault(run.type, []), (run.due_at, run.id))
        if before is not None and before.worker:
            self._owned[before.worker].pop(run.id, None)
        if run.worker:
            self._owned.setdefault(run.worker, {})[run.id] = None

    def run_with_key(self, workflow: str, key: str) -> str | None:
        """The id of the run of this workflow that was started with this idempotency key."""
        return self._by_key.get((workflow, key))

    def entries(self, run: str, limit: int | None) -> tuple[str, ...]:
        """The journal, or its first entries."""
        return tuple(self._journals.get(run, ())[:limit])

    def append(self, run: str, at: int, entries: Sequence[str]) -> None:
        """Write entries from the place `at` on."""
        journal = self._journals.setdefault(run, [])
        journal[at:] = entries

    def cut(self, run: str, keep: int) -> None:
        """Remove all entries but the first."""
        del self._journals[run][keep:]

    def events(self, run: str, after: int) -> tuple[Event, ...]:
        """The inbox, from after this number on."""
        return tuple(event for event in self._inboxes.get(run, ()) if event.number > after)

    def event_with_key(self, run: str, key: str) -> int | None:
        """The number of the event with this key."""
        return next((event.number for event in self._inboxes.get(run, ()) if event.key == key), None)

    def post(self, run: str, event: Event) -> None:
        """Write an event."""
        self._inboxes.setdefault(run, []).append(event)

    def unpost(self, run: str, numbers: Iterable[int]) -> None:
        """Remove events; the numbers of the others stay."""
        gone = set(numbers)
        if gone and run in self._inboxes:
            self._inboxes[run] = [event for event in self._inboxes[run] if event.number not in gone]

    def due(self, type: str, now: int, limit: int) -> Sequence[Run]:
        """The runs of a type that are due: up to `limit` at once, and as many whose time has come; each by age, id."""
        due = self._due.get(type, [])
        timed, end = bisect_left(due, (0, "")), bisect_left(due, (now + 1, ""))
        return [self._runs[name] for _, name in due[: min(timed, limit)] + due[timed : min(end, timed + limit)]]

    def next_due(self, types: Sequence[str]) -> int | None:
        """When the first run of these types is due."""
        return min((due[0][0] for kind in types if (due := self._due.get(kind))), default=None)

    def owned(self, worker: str, limit: int | None) -> Sequence[Run]:
        """The runs of a worker, by id."""
        return [self._runs[name] for name in sorted(self._owned.get(worker, ()))[:limit]]

    def workers(self) -> Sequence[Worker]:
        """All workers that are enlisted, the latest last."""
        return sorted(self._workers.values(), key=lambda worker: (worker.since, worker.id))

    def enlist(self, worker: Worker) -> None:
        """Write a worker."""
        self._workers[worker.id] = worker

    def dismiss(self, worker: str) -> None:
        """Remove a worker."""
        self._workers.pop(worker, None)

    def settle(self, key: str, now: int) -> None:
        """Settle a lock that nobody waits for, and write it if that changed it."""
        before = self.lock(key)
        if before is not None and (after := lock.settle(before, now)[0]) is not before:
            self._put_lock(key, after)

    def slot(self, address: Address) -> Slot:
        """A state slot; empty if it was never written."""
        return self._slots.get(address, EMPTY_SLOT)

    def put_slot(self, address: Address, slot: Slot) -> None:
        """Write a state slot."""
        self._slots[address] = slot

    def page(self, wanted: RunFilter, after: tuple[int, str] | None, limit: int) -> Sequence[Run]:
        """The runs that fit, the newest first, those after the cursor."""
        start = len(self._by_age) if after is None else bisect_left(self._by_age, tuple(after))
        found = []
        for place in range(start - 1, -1, -1):
            run = self._runs[self._by_age[place][1]]
            if wanted.fits(run):
                found.append(run)
                if len(found) == limit:
                    break
        return found

    def census(self) -> dict[str, int]:
        """The number of living runs of each type."""
        return dict(Counter(run.type for run in self._runs.values() if run.living))
