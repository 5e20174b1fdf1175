"""Commands that find and remove runs which ended long ago."""

from __future__ import annotations

from typing import Literal

from ..rules.lock_outcomes import Outcome
from ..rules.runs import purging
from ..rules.runs.outcomes import EndedRuns, EndedWorkflows
from ..rules.runs.repository import RunRepository
from .base import PAGE, Command
from .runs import RunCommand


class ListEndedRuns(RunCommand, frozen=True, kw_only=True):
    """Read which runs without a parent ended with this status before a moment, the oldest first.

    Answers `EndedRuns`. A read. `after` is the `next` of the page before. The page is found through an index, so its
    cost does not depend on how many other runs there are.
    """

    workflow: str
    status: str
    before: int
    after: tuple[int, str] | None = None
    limit: int = PAGE

    def apply(self, repo: RunRepository, now: int) -> Outcome:
        """Read one run more than requested, to know whether there is a next page."""
        limit = max(1, self.limit)
        found = tuple(repo.ended(self.workflow, self.status, self.before, self.after, limit + 1))
        return EndedRuns(runs=found[:limit], next=found[limit - 1] if len(found) > limit else None, now=now)


class ListEndedWorkflows(RunCommand, frozen=True, kw_only=True):
    """Read the names of the workflows that have ended runs. Answers `EndedWorkflows`. A read."""

    after: str = ""
    limit: int = PAGE

    def apply(self, repo: RunRepository, now: int) -> Outcome:
        """Read one name more than requested."""
        limit = max(1, self.limit)
        found = tuple(repo.workflows_after(self.after, limit + 1))
        return EndedWorkflows(names=found[:limit], next=found[limit - 1] if len(found) > limit else None, now=now)


class CountPurgeable(RunCommand, frozen=True, kw_only=True):
    """Count what `PurgeRuns` would remove. Answers `Purged`. A read."""

    roots: tuple[str, ...]
    before: int

    def apply(self, repo: RunRepository, now: int) -> Outcome:  # noqa: ARG002
        """Decide by `rules.runs.purging.purge`."""
        return purging.purge(repo, roots=self.roots, before=self.before, removes=False)


class PurgeRuns(RunCommand, frozen=True, kw_only=True):
    """Remove the trees of these first runs if all their runs ended before a moment. Answers `Purged`.

    A tree of many runs, or with long histories, is not removed but named as `large`. Again: the rest.
    """

    roots: tuple[str, ...]
    before: int

    def apply(self, repo: RunRepository, now: int) -> Outcome:  # noqa: ARG002
        """Decide by `rules.runs.purging.purge`."""
        return purging.purge(repo, roots=self.roots, before=self.before, removes=True)


class LookAtTree(RunCommand, frozen=True, kw_only=True):
    """Check a page of the runs below a first run. Answers `TreeSeen`. A read."""

    root: str
    before: int
    after: str = ""
    limit: int = purging.RUNS_AT_ONCE

    def apply(self, repo: RunRepository, now: int) -> Outcome:  # noqa: ARG002
        """Decide by `rules.runs.purging.look_at`."""
        return purging.look_at(repo, root=self.root, before=self.before, after=self.after, limit=self.limit)


class PurgeTree(RunCommand, frozen=True, kw_only=True):
    """One step of the purge of a large tree. Answers `PurgeStep`. Again: the same, and `remove` removes more.

    `mark` announces it. After that the caller checks all runs of the tree (`LookAtTree`). `hide` makes the tree absent
    for every command, unless one of its runs was revived since. `remove` removes a part of it.
    """

    root: str
    before: int
    purge: str
    step: Literal["mark", "hide", "remove"]

    def apply(self, repo: RunRepository, now: int) -> Outcome:  # noqa: ARG002
        """Decide by `mark`, `hide` or `remove` of `rules.runs.purging`."""
        if self.step == "remove":
            return purging.remove(repo, root=self.root)
        step = purging.mark if self.step == "mark" else purging.hide
        return step(repo, root=self.root, before=self.before, purge=self.purge)


PURGE_SCANS: tuple[type[Command], ...] = (ListEndedRuns, ListEndedWorkflows)
"""Lists that a store reads itself, outside of decisions."""
PURGE_READS: tuple[type[Command], ...] = (*PURGE_SCANS, CountPurgeable, LookAtTree)
"""Commands about purges that never write."""
PURGES: tuple[type[Command], ...] = (CountPurgeable, PurgeRuns, LookAtTree, PurgeTree)
"""Decisions about many runs: each is a step of its own."""
