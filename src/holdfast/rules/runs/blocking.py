"""Transitions of blocked runs: runs whose history does not fit the code that was tried, or that crash their workers.

A blocked run has not ended. It keeps its locks, its places in limits, its events and its timers, and nothing is
recorded for it. It is tried again after a pause, earlier by every engine that has not tried it yet, and at once after
`unblock`. `give_up` ends it as failed.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from ..lock_outcomes import Outcome
from . import record as rule
from .admission import finish
from .helpers import free, holder_of, is_alive, known, wake
from .outcomes import Blocked, Posted, RunRefused
from .parent_ends import cancel_children
from .record import Block, Finish, Run
from .repository import RunRepository

POISON = '{"type":"RunPoisoned","message":"%d workers in a row crashed while they drove this run"}'


def block(
    repo: RunRepository, now: int, *, run: str, fence: int, reason: str, engine: str, code: str, before: Block | None,
    request: str,
) -> Outcome:  # fmt: skip
    """Block a run that the caller drives, also with events that it has not seen; `before` is its block until then."""
    found = known(repo, run)
    if found is not None and found.block is not None and found.block.request == request:
        return Blocked(run=found)
    if found is None or found.status != "running" or found.fence != fence:
        return RunRefused(run=found, holder=holder_of(repo, now, found))
    after = rule.blocked(found, now, _next(before, now, reason=reason, engine=engine, code=code, request=request))
    repo.save(after)
    return Blocked(run=after, woken=_others(repo, now, after))


def poisoned(repo: RunRepository, now: int, run: Run) -> Run:
    """Block a run whose workers crashed too often. Engines that are open now do not try it again."""
    tries = max(1, run.crashes - rule.POISONED + 1)
    why = Block(reason=POISON % run.crashes, code=run.code, since=now, first=now, tries=tries, poisoned=True)
    after = rule.blocked(run, now, why)
    repo.save(after)
    return after


def unblock(repo: RunRepository, now: int, *, run: str, fence: int, request: str) -> Outcome:
    """Let any worker try a blocked run at once, with its whole history."""
    before = known(repo, run)
    if before is not None and before.last == request:
        return Posted(number=before.length, fresh=True, run=before)
    if before is None or before.status != "blocked" or before.fence != fence:
        return RunRefused(run=before, holder=holder_of(repo, now, before))
    after = replace(
        rule.unblocked(before, now),
        status="pending",
        due_at=rule.at_once(now),
        crashes=0,
        fence=rule.new_fence(before, now),
        last=request,
    )
    repo.save(after)
    return Posted(number=after.length, fresh=True, run=after, woken=wake(repo, now, after))


def give_up(
    repo: RunRepository, now: int, *, run: str, fence: int, reason: str, entry: str, request: str,
    last: str | None = None, cancels: Sequence[str] = (),
) -> Outcome:  # fmt: skip
    """End a run that no worker drives as failed. `entry`, if any, is the last entry of its journal.

    Its children among `cancels` that end with it are cancelled. `last` is its last record that the caller saw: a later
    one may have started further children.
    """
    before = known(repo, run)
    if before is not None and before.last == request:
        return Posted(number=before.length, fresh=True, run=before)
    seen = before is not None and before.fence == fence and last in (None, before.last)
    if before is None or not before.living or not seen or not free(repo, now, before):
        return RunRefused(run=before, holder=holder_of(repo, now, before))
    if entry:
        repo.append(run, before.length, (entry,))
    length = before.length + bool(entry)
    woken = finish(repo, now, replace(before, length=length, last=request), Finish("failed", reason))
    woken += cancel_children(repo, now, before, cancels, "failed")
    ended = repo.run(run)
    assert ended is not None  # noqa: S101  (just written)
    return Posted(number=length, fresh=True, run=ended, woken=woken)


def may_claim(run: Run, now: int, *, engine: str, opened: int, code: str, named: bool, untried: bool) -> bool:
    """Whether a claim may take this run: one of blocked runs only (`untried`) takes those that its engine may try.

    A run whose start was delayed is not claimed earlier by its name either.
    """
    if rule.is_delayed(run, now):
        return False
    if run.status != "blocked" or run.block is None:
        return not untried
    if untried or (named and run.block.poisoned):
        return run.block.may_try(now, engine=engine, opened=opened, code=code)
    return named or not run.block.poisoned


def _next(before: Block | None, now: int, *, reason: str, engine: str, code: str, request: str) -> Block:
    tried = () if before is None else tuple(one for one in before.engines if one != engine)
    return Block(
        reason=reason,
        engines=(*tried, engine)[-rule.ENGINES_NAMED :],
        code=code,
        since=now,
        first=now if before is None else before.first,
        tries=1 if before is None else before.tries + 1,
        request=request,
    )


def _others(repo: RunRepository, now: int, run: Run) -> tuple[str, ...]:
    """A hint for a worker of an engine that knows the workflow and has not tried this run."""
    block = run.block
    tried: Sequence[str] = () if block is None else block.engines
    if block is not None and not block.names_all:  # one that is not named may have tried, too
        return ()
    for worker in repo.workers():
        if worker.engine not in tried and run.type in worker.types and is_alive(repo, now, worker.id):
            return (rule.blocked_hint_for(worker.id, run.id),)
    return ()
