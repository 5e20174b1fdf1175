"""What a decision depends on, for stores that compare and swap: its answers must be unchanged when it is written."""

from __future__ import annotations

from collections.abc import Iterator

from ..rules.runs.record import worker_key
from .questions import LockByKey, Question, RegisteredWorkers
from .repository import BatchRepository

_LEASES = worker_key("")


def moves_runs(repository: BatchRepository) -> bool:
    """Whether a worker registers or unregisters, or a run gets or loses a worker."""
    if repository.changes.workers:
        return True
    return any((before.worker if before is not None else "") != after.worker for before, after in repository.changed())


def compared(repository: BatchRepository, *, moved: bool) -> Iterator[Question]:
    """The questions whose answers the changes depend on; `moved` is what `moves_runs` returned.

    Unless runs get or lose a worker, the registered workers and their leases were only read to find out which attempts
    to notify.
    """
    for question in repository.asked:
        if not moved and isinstance(question, RegisteredWorkers):
            continue
        if not moved and isinstance(question, LockByKey) and _is_lease(question.key, repository):
            continue
        yield question


def _is_lease(key: str, repository: BatchRepository) -> bool:
    return key.startswith(_LEASES) and key not in repository.changes.locks
