"""Heartbeats of steps: a step that was silent for too long loses its worker, and another one takes the run over.

The earliest expiry of a running run is its `due_at`, so workers find the run like any other that is due. The worker
that drives the run never takes it over: its own timer ends the attempt.
"""

from __future__ import annotations

from msgspec.structs import replace

from ..lock_outcomes import Outcome
from .heartbeat_records import StepHeartbeat, first_expiry, with_heartbeat
from .helpers import holder_of, known
from .outcomes import HeartbeatRecorded, RunRefused, SilentStep
from .record import Run
from .repository import RunRepository


def beat(
    repo: RunRepository, now: int, *, run: str, fence: int, step: str, attempt: int, lasts: int | None,
    details: str | None,
) -> Outcome:  # fmt: skip
    """Write a heartbeat of a step into the record of its run."""
    found = known(repo, run)
    if found is None or found.status != "running" or found.fence != fence:
        return RunRefused(run=found, holder=holder_of(repo, now, found))
    heartbeats = with_heartbeat(found.heartbeats, now, step=step, attempt=attempt, lasts=lasts, details=details)
    repo.save(replace(found, heartbeats=heartbeats, due_at=first_expiry(heartbeats)))
    return HeartbeatRecorded(now=now)


def missed(run: Run, now: int) -> StepHeartbeat | None:
    """The heartbeat of a running run that has expired, the first one if there are several."""
    if run.status != "running":
        return None
    expired = (one for one in run.heartbeats if one.expires_at is not None and one.expires_at <= now)
    return min(expired, key=lambda one: (one.expires_at or 0, one.step), default=None)


def silent(repo: RunRepository, now: int, run: Run, late: StepHeartbeat | None) -> tuple[SilentStep, ...]:
    """What a claim reports about a run that it takes from a worker which still has its lease."""
    if late is None:
        return ()
    worker = holder_of(repo, now, run)
    return (SilentStep(run=run.id, workflow=run.type, step=late.step, attempt=late.attempt, worker=worker),)
