"""The transition that stores a run of another store, for debugging: nothing of it is executed until it is retried."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from ...errors import InvalidValue
from ..lock_outcomes import Outcome
from .outcomes import RunTaken, Started
from .purging import is_stub
from .record import Run, RunEvent
from .repository import RunRepository


def import_run(repo: RunRepository, now: int, run: Run, entries: Sequence[str], events: Sequence[RunEvent]) -> Outcome:
    """Write a run with its history, unless its id or its idempotency key is in use.

    It is a first run in this store, also if it was a child: its parent is not in this store, or another run has the
    parent's id. It has none of the streams, requests and remembered keys that it had in the other store.
    """
    if (
        run.living
        or run.worker
        or run.due_at is not None
        or run.locks
        or run.waits
        or run.heartbeats
        or run.length != len(entries)
    ):
        raise InvalidValue(f"the run {run.id!r} has not ended, or its history is not complete: it cannot be imported")
    run = replace(run, parent="", root=run.id, remembered=None, record_kinds=(), purging="")
    taken = repo.run(run.id)
    if taken is not None and is_stub(taken):
        run = replace(run, generation=max(run.generation, taken.generation), fence=max(run.fence, taken.fence))
        taken = None
    if taken is None and run.key and (found := repo.run_with_key(run.workflow, run.key)) is not None:
        taken = repo.run(found)
    if taken is not None:
        return Started(run=taken, fresh=False, now=now) if _same(taken, run) else RunTaken(run=taken)
    repo.save(run)
    repo.append(run.id, 0, entries)
    for event in events:
        repo.post(run.id, event)
    return Started(run=run, fresh=True, now=now)


def _same(there: Run, run: Run) -> bool:
    """Whether a run is this imported one, unchanged: the command was sent again."""
    if there.generation < run.generation or there.fence < run.fence:
        return False
    return there == replace(run, generation=there.generation, fence=there.fence)
