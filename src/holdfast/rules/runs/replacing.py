"""An ended run is replaced by a new run with its id, in the step that starts the new one.

The ended run is kept as `<id>~<n>`, with its generation `n`: its record, its journal, its inbox with the keys of its
signals, its place in its tree, and its idempotency key. The new run continues the numbers: its first generation is `n
+ 1`, so that the keys of its steps and the ids of its children differ. Some data belongs to the id and not to the
run, and stays under the id: the remembered keys of signals, now also the keys of the replaced run, and the
`execution` state.
"""

from __future__ import annotations

from msgspec.structs import replace

from . import record as rule
from . import tree
from .outcomes import Obstacle
from .record import NewRun, Run, RunEvent
from .repository import RunRepository
from .signal_keys import remember

RESENT_WITHIN = 600_000_000
"""Microseconds within which a start whose run was replaced meanwhile is recognised when it is sent again."""
RESENT_AMONG = 64
"""Among how many replaced runs it is looked for, at most."""


def started_by(repo: RunRepository, now: int, run: Run | None, new: NewRun) -> Run | None:
    """The run that this start has started before: the run that has the id now, or one that was replaced since.

    The request of a child is its place in its parent, so a restarted parent uses it again: a replaced child is not
    the one that it starts now.
    """
    for _ in range(RESENT_AMONG):
        if run is None or run.request == new.request:
            return run
        if new.parent or not run.replaces or run.created_at < now - RESENT_WITHIN:
            return None
        run = repo.run(run.replaces)
    return None


def obstacle(repo: RunRepository, run: Run) -> Obstacle:
    """Why a run cannot be replaced; empty if it can."""
    if run.living:
        return "living"
    parent = repo.run(run.parent) if run.parent and run.parent != run.id else None
    if parent is not None and parent.living and rule.is_child_of(run, parent):
        return "child"
    return "" if repo.run(rule.archive_id(run)) is None else "archived"


class Replaced:
    """An ended run that is being replaced, as it was before the new run was written."""

    def __init__(self, repo: RunRepository, run: Run) -> None:
        self._repo, self.run = repo, run
        self._entries, self._events = repo.entries(run.id, None), repo.events(run.id, 0)

    def keep(self, now: int, successor: Run) -> Run:
        """Move everything of the ended run to its new id, after its successor was written. Returns the successor."""
        repo, run = self._repo, self.run
        kept = replace(run, id=rule.archive_id(run), replaced_by=run.id, remembered=None, purging="")
        if run.root == run.id:
            kept = replace(kept, root=kept.id)
        keys = [event.key for event in self._events if event.kind == "signal" and event.key]
        successor = replace(successor, remembered=remember(repo, now, run, keys))
        repo.save(successor)
        repo.save(kept)
        repo.cut(run.id, 0)
        repo.clear_inbox(run.id)
        repo.append(kept.id, 0, self._entries)
        self._keep_events(kept)
        tree.left(repo, run)
        tree.joined(repo, kept, kept.root)
        return successor

    def _keep_events(self, kept: Run) -> None:
        """Write the inbox under the same numbers, to which the journal refers: a removed event leaves a gap."""
        events = {event.number: event for event in self._events}
        gaps = [number for number in range(1, kept.posted + 1) if number not in events]
        for number in range(1, kept.posted + 1):
            self._repo.post(kept.id, events.get(number) or RunEvent(number=number, kind="signal"))
        if gaps:
            self._repo.unpost(kept.id, gaps)
