"""Helpers of the transitions of runs: which worker is alive, which one drives a run, which attempts to notify."""

from __future__ import annotations

from contextlib import suppress

from msgspec.structs import replace

from ...errors import RecordUnreadable
from . import record as rule
from .outcomes import Posted
from .record import Run, RunEvent
from .repository import RunRepository


def known(repo: RunRepository, id: str) -> Run | None:
    """One run. A run that was purged counts as absent, also while parts of it are left."""
    run = repo.run(id)
    return None if run is None or run.status == "purged" else run


def is_alive(repo: RunRepository, now: int, worker: str) -> bool:
    """Whether a worker's lease is held."""
    return bool(worker) and rule.holds(repo.lock(rule.worker_key(worker)), now, worker)


def can_drive(repo: RunRepository, now: int, worker: str) -> bool:
    """Whether a worker may get runs. It must be registered; otherwise its crash would not be detected."""
    return is_alive(repo, now, worker) and any(one.id == worker for one in repo.workers())


def holder_of(repo: RunRepository, now: int, run: Run | None) -> str:
    """The name of the worker that drives a run; empty if no worker with a valid lease does."""
    if run is None or not is_alive(repo, now, run.worker):
        return ""
    name = next((worker.name for worker in repo.workers() if worker.id == run.worker), "")
    return name or run.worker


def free(repo: RunRepository, now: int, run: Run) -> bool:
    """Whether no worker with a valid lease drives a run, and no run lock from outside is held."""
    return not is_alive(repo, now, run.worker) and not rule.holds(repo.lock(rule.run_key(run.workflow, run.id)), now)


def wake(repo: RunRepository, now: int, run: Run) -> tuple[str, ...]:
    """The hints for a run: to its worker, otherwise to one of the workers that could drive it."""
    if run.worker:
        return (rule.hint_for(run.worker, run.id),) if run.posted else ()
    if run.due_at is None or run.due_at > now:
        return ()
    able: list[str] = []
    with suppress(RecordUnreadable):  # only a hint: the decision does not depend on it
        able += [worker.id for worker in repo.workers() if run.type in worker.types and is_alive(repo, now, worker.id)]
    return (rule.hint_for(able[sum(run.id.encode()) % len(able)], run.id),) if able else ()


def post(repo: RunRepository, now: int, before: Run, event: RunEvent) -> Posted:
    """Put an event into the inbox of a run that has not ended; its worker is notified, or the run becomes due."""
    after = rule.posted(before, now, event)
    repo.save(after)
    repo.post(before.id, replace(event, number=after.posted, at=now))
    return Posted(number=after.posted, fresh=True, run=after, woken=wake(repo, now, after))
