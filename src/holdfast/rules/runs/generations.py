"""A run begins its next generation: its history is replaced by an input, in the step that ends the generation.

Data of the run stays: its id and idempotency key, its places in limits, its watchers and its parent, a cancel and all
other events that the generation has not read, and the locks that the command names. Data of the generation is
removed: its journal, the events that it has read, all other locks. The fence is increased, so that a late result of
the old generation is refused.
"""

from __future__ import annotations

from msgspec.structs import replace

from . import approvals
from . import record as rule
from .helpers import wake
from .locks import give_back
from .record import Continue, Run, RunEvent
from .repository import RunRepository
from .signal_keys import remember


def begin_next(repo: RunRepository, now: int, run: Run, then: Continue) -> tuple[str, ...]:
    """Begin the next generation of a run that was just recorded. Returns the attempts to notify."""
    keep = frozenset(then.keep)
    kept: list[RunEvent] = []
    gone: list[RunEvent] = []
    for event in repo.events(run.id, 0):
        (kept if event.number in keep else gone).append(event)
    remembered = remember(repo, now, run, (event.key for event in gone if event.kind == "signal" and event.key))
    carried = tuple(lock for lock in run.locks if lock[0] in then.locks)
    others = replace(run, locks=tuple(lock for lock in run.locks if lock[0] not in then.locks))
    approvals.close_all(repo, now, run)
    repo.clear_inbox(run.id)
    for number, event in enumerate(kept, 1):
        repo.post(run.id, replace(event, number=number))
    repo.cut(run.id, 0)
    repo.append(run.id, 0, (then.input, then.entry))
    after = rule.continued(run, now, posted=len(kept), locks=carried, remembered=remembered)
    repo.save(after)
    return wake(repo, now, after) + give_back(repo, now, others)
