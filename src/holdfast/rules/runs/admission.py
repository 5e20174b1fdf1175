"""Admission of runs in the same step as their start, promotion of queued runs in the same step as an end.

Limits count runs that are admitted and have not ended; there is no stored counter that could become wrong. Queued
runs are promoted by priority, then by arrival. If another limit does not admit a queued run, this run does not block
the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

import msgspec
from msgspec.structs import replace

from ...errors import RecordUnreadable
from . import approvals
from . import record as rule
from .cancel_reasons import limit_payload
from .helpers import post, wake
from .limits import LimitKey, LimitUsage, LimitVerdict, WorkflowLimits, decide, group_of, newer
from .locks import give_back
from .outcomes import LimitsPublished, Posted
from .record import Finish, LimitCancel, Run, RunEvent
from .repository import RunRepository

CANCELLED_EARLY = "it was cancelled before it began"
CANCELLED_FOR = ": the limit %s was full when the run %r started"
NOT_ADMITTED = '{"type":"WorkflowConcurrencyLimitExceededError","message":"the limit %s was full when the run started"}'
FIRST_LOOK = 8
"""How many queued runs are read first; most often the first one is admitted."""
FURTHER = 8
"""So many times as many are read next, if none of the first could be admitted."""


class AdmissionResult(msgspec.Struct, frozen=True):
    """The result of a start. `run` is the run that exists now: this one, another, or none."""

    run: Run | None
    verdict: LimitVerdict
    woken: tuple[str, ...] = ()


def enter(repo: RunRepository, now: int, run: Run, worker: str = "", *, again: bool = False) -> AdmissionResult:
    """Admit a run, or do what the full limit says. A run that starts `again` is not ended by its limit."""
    terms = (repo.terms(run.workflow) if run.places else None) or WorkflowLimits()
    usages = _usages(repo, now, run, terms)
    verdict = decide(usages, now)
    group = group_of(run.workflow, LimitKey(verdict.limit, verdict.key))
    if verdict.what in ("reject", "queue_full") or (again and verdict.what in ("skip", "cancel_newest")):
        return AdmissionResult(None, verdict)
    if verdict.what == "skip":
        there = repo.members(group, queued=False, limit=1)
        return AdmissionResult(repo.run(there[0]) if there else None, verdict)
    run = replace(run, arrival=_arrival(repo, now, run))
    if verdict.what == "cancel_newest":
        run = replace(run, status="queued", cancelled_by=LimitCancel(verdict.limit))
        woken = finish(repo, now, run, Finish("cancelled", NOT_ADMITTED % verdict.limit))
        return AdmissionResult(repo.run(run.id), verdict, woken)
    if not _must_wait(usages, now):
        run = rule.admitted(run, now, _note_starts(repo, now, run, usages))
        if worker and run.due_at is not None and run.due_at < 0:
            run = rule.claim(run, now, worker=worker, type=run.type, code=run.code)
        repo.save(run)
        return AdmissionResult(run, verdict, wake(repo, now, run))
    if verdict.what != "cancel_oldest":
        run = rule.queued(run, priority=run.priority, arrival=run.arrival)
        repo.save(run)
        return AdmissionResult(run, verdict)
    first = [repo.run(name) for name in repo.members(group, queued=True, limit=1)]
    for ahead in first:
        if ahead is not None:
            run = replace(run, priority=max(run.priority, ahead.priority), arrival=ahead.arrival - 1)
    run = rule.queued(run, priority=run.priority, arrival=run.arrival)
    repo.save(run)
    victim = _victim(repo, group, run.id)
    woken = () if victim is None else _cancel_for(repo, now, victim, LimitCancel(verdict.limit, run.id)).woken
    return AdmissionResult(repo.run(run.id), verdict, woken)


def cancel(repo: RunRepository, now: int, run: Run, event: RunEvent) -> Posted:
    """Cancel a run that has not ended. A run of which no code has run yet ends at once."""
    if not rule.never_began(run):
        return post(repo, now, run, event)
    number = run.posted + 1
    run, cause = rule.cancelled_for(run, event), run.cancelled_by
    why = f": {run.cancel_reason}" if run.cancel_reason else ""
    message = CANCELLED_EARLY + (why if cause is None else CANCELLED_FOR % (cause.limit, cause.run))
    result = msgspec.json.encode({"type": "RunCancelled", "message": message}).decode()
    woken = finish(repo, now, replace(run, posted=number), Finish("cancelled", result))
    repo.post(run.id, replace(event, number=number, at=now))
    ended = repo.run(run.id)
    assert ended is not None  # noqa: S101  (just written)
    return Posted(number=number, fresh=True, run=ended, woken=woken)


def _cancel_for(repo: RunRepository, now: int, run: Run, cause: LimitCancel) -> Posted:
    """Cancel a run because of a limit, which the run and its event name."""
    event = RunEvent(kind="cancel", payload=limit_payload(cause.limit, cause.run))
    return cancel(repo, now, replace(run, cancelled_by=cause), event)


def finish(repo: RunRepository, now: int, run: Run, end: Finish) -> tuple[str, ...]:
    """End a run: notify its parent and its watchers, promote queued runs, give back its locks."""
    parent, terms = read_for_end(repo, run)
    approvals.close_all(repo, now, run)
    repo.save(rule.finished(run, now, end))
    woken = run.watchers
    if parent is not None:
        payload = msgspec.json.encode({"status": end.status, "result": msgspec.Raw(end.result.encode())}).decode()
        woken += post(
            repo, now, parent, RunEvent(kind="child", name=run.id, payload=payload, key=rule.ended_key(run))
        ).woken
    if terms is not None:
        woken += promote(repo, now, run.workflow, run.places, terms)
    return woken + give_back(repo, now, run)


def read_for_end(repo: RunRepository, run: Run) -> tuple[Run | None, WorkflowLimits | None]:
    """The parent that is notified of the end of a run, and the limits that get room by it, if there are any.

    Nothing is written before both are known: where one of them cannot be read, the run does not end by half.
    """
    parent = repo.run(run.parent) if run.parent and run.parent != run.id else None
    if parent is not None and not (parent.living and rule.is_child_of(run, parent)):
        parent = None
    if parent is not None and repo.event_with_key(parent.id, rule.ended_key(run)) is not None:
        parent = None
    makes_room = run.places and run.status != "queued"
    return parent, (repo.terms(run.workflow) or WorkflowLimits()) if makes_room else None


def promote(
    repo: RunRepository, now: int, workflow: str, places: Sequence[LimitKey], terms: WorkflowLimits
) -> tuple[str, ...]:
    """Admit queued runs under these limit keys, as many as there is room for."""
    woken: tuple[str, ...] = ()
    for place in places:
        limit = terms.limit(place.limit)
        for run in _waiting(repo, group_of(workflow, place)):
            if limit is not None and (limit.per or repo.admitted(group_of(workflow, place)) >= limit.max):
                break
            usages = _usages(repo, now, run, terms)
            if not _must_wait(usages, now):
                let_in = rule.admitted(run, now, _note_starts(repo, now, run, usages))
                repo.save(let_in)
                woken += wake(repo, now, let_in)
    return woken


def publish(repo: RunRepository, now: int, workflow: str, terms: WorkflowLimits) -> LimitsPublished:
    """Publish limits, unless newer ones are published; queued runs that they have room for are admitted at once."""
    known = repo.terms(workflow)
    if not newer(terms, known):
        return LimitsPublished(terms=known or WorkflowLimits(), fresh=False)
    repo.put_terms(workflow, terms)
    woken = promote(repo, now, workflow, repo.queued_limit_keys(workflow), terms)
    return LimitsPublished(terms=terms, fresh=True, woken=woken)


def _usages(repo: RunRepository, now: int, run: Run, terms: WorkflowLimits) -> list[LimitUsage]:
    """How full the limits are that count this run. A limit that is no longer published counts nothing."""
    found = []
    for place in run.places:
        limit, group = terms.limit(place.limit), group_of(run.workflow, place)
        if limit is None:
            continue
        if limit.per:
            later, last = repo.starts_after(group, now), repo.nth_start(group, limit.max)
            # After the clock was set back, past starts look like future ones: that costs one span at most.
            latest = now + limit.per * (1 + later // limit.max)
            free_at = 0 if last is None else min(last + limit.per, latest)
            found.append(LimitUsage(limit, place, queued=later, free_at=free_at))
        else:
            queued = repo.queued(group) if limit.max_queue is not None else 0
            found.append(LimitUsage(limit, place, admitted=repo.admitted(group), queued=queued))
    return found


def _must_wait(usages: Sequence[LimitUsage], now: int) -> bool:
    """Whether a run must wait for the end of another. Limits on starts only delay it."""
    return any(usage.full(now) for usage in usages if not usage.limit.per)


def _note_starts(repo: RunRepository, now: int, run: Run, usages: Sequence[LimitUsage]) -> int | None:
    """Count a start, and return when it may be made; None: at once."""
    limited = [usage for usage in usages if usage.limit.per]
    begins = max((usage.free_at for usage in limited), default=0)
    for usage in limited:
        repo.note_start(group_of(run.workflow, usage.place), max(begins, now), run.id, usage.limit, now)
    return begins if begins > now else None


def _arrival(repo: RunRepository, now: int, run: Run) -> int:
    """A number above those of all earlier arrivals."""
    last = (repo.last_arrival(group_of(run.workflow, place), run.priority) for place in run.places)
    return max(now, *(before + 1 for before in last)) if run.places else 0


def _victim(repo: RunRepository, group: str, newcomer: str) -> Run | None:
    """The run to cancel: the oldest admitted one that is not being cancelled yet, otherwise the first queued one."""
    for queued in (False, True):
        for name in repo.members(group, queued=queued, limit=None):
            run = repo.run(name)
            if run is not None and run.id != newcomer and not run.cancelling:
                return run
    return None


def _waiting(repo: RunRepository, group: str) -> Iterator[Run]:
    """The queued runs in order, read a few at a time: usually only the first is needed.

    The caller stops when the limit is full: then at most `FURTHER` times as many were read as were needed for that. A
    queue of which another limit blocks every run is read to its end, because no later step would read further: a run
    for which there is room is never missed.
    """
    seen: set[str] = set()
    limit = FIRST_LOOK
    while True:
        names = repo.members(group, queued=True, limit=limit)
        for name in names:
            run = None
            if name not in seen:
                with suppress(RecordUnreadable):  # a damaged run must not block the others
                    run = repo.run(name)
            seen.add(name)
            if run is not None:
                yield run
        if len(names) < limit:
            return
        limit *= FURTHER
