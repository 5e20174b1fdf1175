"""The transition that writes a run which has ended in another store, for debugging: it is inert until it is retried."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import InvalidValue
from ..lock_outcomes import Outcome
from . import tree
from .outcomes import RunTaken, Started
from .record import Run, RunEvent
from .repository import RunRepository


def import_run(repo: RunRepository, now: int, run: Run, entries: Sequence[str], events: Sequence[RunEvent]) -> Outcome:
    """Write a run with its history, unless its id or its idempotency key is in use."""
    if run.living or run.worker or run.due_at is not None or run.locks or run.waits or run.length != len(entries):
        raise InvalidValue(f"the run {run.id!r} has not ended, or its history is not complete: it cannot be imported")
    taken = repo.run(run.id)
    if taken is None and run.key and (found := repo.run_with_key(run.workflow, run.key)) is not None:
        taken = repo.run(found)
    if taken is not None:
        return RunTaken(run=taken)
    repo.save(run)
    repo.append(run.id, 0, entries)
    for event in events:
        repo.post(run.id, event)
    tree.joined(repo, run)
    return Started(run=run, fresh=True, now=now)
