"""The interface by which transitions read and write runs, journals, inboxes, workers and locks in one atomic step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

import msgspec

from ..lock_record import LockRecord
from ..record_type import R, RecordType
from ..slot import Address, Slot
from .limits import Limit, LimitKey, WorkflowLimits
from .record import Run, RunEvent, Scalar, WorkerRecord


class RunFilter(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Which runs to list. Times are half open: from `since` on, before `until`."""

    statuses: tuple[str, ...] = ()
    workflow: str = ""
    prefix: str = ""
    since: int | None = None
    until: int | None = None
    attributes: dict[str, Scalar] = {}

    def fits(self, run: Run) -> bool:
        """Whether a run matches."""
        return (
            (run.status in self.statuses if self.statuses else run.status != "purged")
            and (not self.workflow or run.workflow == self.workflow)
            and run.id.startswith(self.prefix)
            and (self.since is None or run.created_at >= self.since)
            and (self.until is None or run.created_at < self.until)
            and all(same(run.attributes.get(name), value) for name, value in self.attributes.items())
        )


def same(one: Scalar | None, other: Scalar | None) -> bool:
    """Whether two attributes are equal; True is not 1."""
    return type(one) is type(other) and one == other


class RunRepository(Protocol):
    """A store's records of runs, within one atomic step."""

    def run(self, id: str) -> Run | None:
        """One run."""

    def save(self, run: Run) -> None:
        """Write a run, new or changed."""

    def run_with_key(self, workflow: str, key: str) -> str | None:
        """The id of the run of this workflow that was started with this idempotency key."""

    def entries(self, run: str, limit: int | None) -> tuple[str, ...]:
        """The journal, or its first entries."""

    def append(self, run: str, at: int, entries: Sequence[str]) -> None:
        """Write entries from the index `at` on."""

    def cut(self, run: str, keep: int) -> None:
        """Remove all entries but the first."""

    def events(self, run: str, after: int) -> tuple[RunEvent, ...]:
        """The inbox, from after this number on."""

    def event_with_key(self, run: str, key: str) -> int | None:
        """The number of the event with this key."""

    def post(self, run: str, event: RunEvent) -> None:
        """Write an event."""

    def unpost(self, run: str, numbers: Iterable[int]) -> None:
        """Remove events; the numbers of the others stay."""

    def clear_inbox(self, run: str) -> None:
        """Remove all events; the next one that is written has the number 1."""

    def clear_run(self, run: Run, left: Run | None) -> None:
        """Remove a run that has ended: its row, journal, inbox, idempotency key and `execution` state.

        With `left`, this row is written in its place.
        """

    def due(self, type: str, now: int, limit: int) -> Sequence[Run]:
        """The due runs of a type: up to `limit` that are due at once, and as many by time; each by age, id."""

    def next_due(self, types: Sequence[str]) -> int | None:
        """When the first run of these types is due."""

    def owned(self, worker: str, limit: int | None) -> Sequence[Run]:
        """The runs of a worker, by id."""

    def workers(self) -> Sequence[WorkerRecord]:
        """All registered workers, the latest last."""

    def register_worker(self, worker: WorkerRecord) -> None:
        """Write a worker."""

    def unregister_worker(self, worker: str) -> None:
        """Remove a worker."""

    def lock(self, key: str) -> LockRecord | None:
        """The record of a lock."""

    def put_lock(self, key: str, record: LockRecord) -> None:
        """Write the record of a lock."""

    def settle(self, key: str, now: int) -> None:
        """Settle a lock without waiters, and write it if this changed it."""

    def terms(self, workflow: str) -> WorkflowLimits | None:
        """The limits of a workflow; None if none were ever published."""

    def put_terms(self, workflow: str, terms: WorkflowLimits) -> None:
        """Write the limits of a workflow."""

    def members(self, group: str, *, queued: bool, limit: int | None) -> Sequence[str]:
        """The runs of a group that have not ended: queued ones by priority and arrival, or admitted ones by arrival."""

    def admitted(self, group: str) -> int:
        """How many admitted runs of a group have not ended."""

    def queued(self, group: str) -> int:
        """How many runs of a group are queued."""

    def last_arrival(self, group: str, priority: int) -> int:
        """The highest arrival of admitted runs and of queued runs with this priority; 0: there is none."""

    def queued_limit_keys(self, workflow: str) -> Sequence[LimitKey]:
        """The limit keys of a workflow under which runs are queued, in order."""

    def nth_start(self, group: str, n: int) -> int | None:
        """The n-th latest start that was noted for a group."""

    def starts_after(self, group: str, moment: int) -> int:
        """How many starts of a group were noted for later."""

    def note_start(self, group: str, at: int, run: str, limit: Limit, now: int) -> None:
        """Note a start. Of those that are not later than `now` only the latest `limit.max` need be kept."""

    def slot(self, address: Address) -> Slot:
        """A state slot; empty if it was never written."""

    def put_slot(self, address: Address, slot: Slot) -> None:
        """Write a state slot."""

    def record(self, type: RecordType[R], key: str) -> R | None:
        """A record of any type; None: there is none."""

    def put_record(self, type: RecordType[R], key: str, record: R | None) -> None:
        """Write a record of any type; None removes it. Raises for what cannot be stored."""

    def record_keys(self, type: RecordType[R], prefix: str, after: str, limit: int) -> Sequence[str]:
        """The keys of the first records of a type that begin with the prefix and come after `after`, in order."""

    def page(self, wanted: RunFilter, after: tuple[int, str] | None, limit: int) -> Sequence[Run]:
        """The runs that match, the newest first, after the cursor."""

    def run_counts(self) -> dict[str, int]:
        """The number of runs of each type that have not ended."""

    def ended(
        self, workflow: str, status: str, before: int, after: tuple[int, str] | None, limit: int
    ) -> Sequence[tuple[int, str]]:
        """The runs without a parent that ended with this status before a moment: (ended_at, id), the oldest first."""

    def workflows_after(self, name: str, limit: int) -> Sequence[str]:
        """The names of workflows that come after this one and have runs in `ended`, in order; perhaps others too."""
