"""Finds ended runs that are older than a limit and removes them, in small steps with pauses between them.

The commands are in `commands/purging.py`; this module sends them in order, and counts the removed runs. One purge
checks the ended runs of each workflow and status once, the oldest first. It skips trees that must stay; the next
purge checks them again. A purge may be stopped at any time: each step is complete, and the next purge continues.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from ..commands.purging import CountPurgeable, ListEndedRuns, ListEndedWorkflows, LookAtTree, PurgeRuns, PurgeTree
from ..errors import InvalidOption, RecordUnreadable
from ..events import Events
from ..platform import elapsed
from ..rules.runs.outcomes import EndedRuns, EndedWorkflows, Purged, PurgeStep, TreeSeen
from ..rules.runs.purging import RUNS_AT_ONCE
from ..rules.runs.record import ENDS
from ..runtime.flows import Flow, Wait, send
from ..runtime.notifier import Notifier
from ..validation import MICROSECONDS, Duration, checked_key, seconds
from .definition import Workflow

ROOTS_AT_ONCE = 50
"""How many trees one step checks: a store reads the rows and the tree of each."""
REST = 6.0
"""The pause after a step is this many times as long as the step. So a purge takes at most a seventh of the time, also
that of an engine in the same process, which can do nothing during a step."""
LONGEST_REST = 5.0
"""Seconds."""


class PurgeReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a purge has removed; with `dry_run`, what it would remove.

    `trees` is the number of removed trees (a first run with all its descendants), `runs` the number of all their
    runs. The other fields count trees that stay although their first run is old enough: because a descendant has not
    ended (`kept_living`) or has ended too recently (`kept_young`), or because a record cannot be read
    (`kept_unreadable`).
    """

    trees: int = 0
    runs: int = 0
    kept_living: int = 0
    kept_young: int = 0
    kept_unreadable: int = 0


class PurgeRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A checked request. `older_than` is in microseconds; `workflow` is empty for all workflows."""

    older_than: int
    statuses: tuple[str, ...]
    workflow: str = ""
    dry_run: bool = False


def checked_request(
    *,
    older_than: Duration,
    status: str | Sequence[str] | None = None,
    workflow: Workflow[Any, Any] | str | None = None,
    dry_run: bool = False,
) -> PurgeRequest:
    """Check what a caller asks for."""
    if older_than is None:
        raise InvalidOption('older_than is missing: give the age of the runs to remove, such as "30 days"')
    age = round(seconds(older_than, what="older_than") * MICROSECONDS)
    given = ENDS if status is None else (status,) if isinstance(status, str) else tuple(status)
    for one in given:
        if one not in ENDS:
            raise InvalidOption(
                f"status={one!r}: only runs that have ended can be purged. Give any of {', '.join(ENDS)}. Nothing was "
                "changed."
            )
    if not given:
        raise InvalidOption(f"status={status!r} is empty: give any of {', '.join(ENDS)}, or leave it out")
    name = workflow.name if isinstance(workflow, Workflow) else workflow
    name = "" if name is None else checked_key(name, what="workflow name")
    return PurgeRequest(older_than=age, statuses=tuple(dict.fromkeys(given)), workflow=name, dry_run=dry_run)


class Purge:
    """One purge. `report` changes while its flow runs; `progress` is called after each step."""

    def __init__(
        self, request: PurgeRequest, *, events: Events | None = None, progress: Callable[[], None] | None = None
    ) -> None:
        self.report = PurgeReport()
        self._request, self._events, self._progress = request, events, progress
        self._now = self._before = 0
        self._notifier = Notifier()
        self._began = 0.0

    def run(self) -> Flow[PurgeReport]:
        """Check all ended runs of the request once."""
        request = self._request
        names = (request.workflow,) if request.workflow else (yield from self._workflows())
        self._now = yield from self._time()
        self._before = self._now - request.older_than
        for name in names:
            runs = self.report.runs
            for status in (*request.statuses, *(() if request.dry_run else ("purged",))):
                yield from self._purge(name, status)
            if self._events is not None and not request.dry_run and self.report.runs > runs:
                self._events.emit("runs_purged", workflow=name, count=self.report.runs - runs)
        return self.report

    def _time(self) -> Flow[int]:
        outcome, _ = yield from send(ListEndedWorkflows(limit=1), role="queries")
        assert isinstance(outcome, EndedWorkflows)  # noqa: S101
        return outcome.now

    def _workflows(self) -> Flow[tuple[str, ...]]:
        """The names of all workflows that may have ended runs."""
        found: tuple[str, ...] = ()
        after = ""
        while True:
            outcome, _ = yield from send(ListEndedWorkflows(after=after), role="queries")
            assert isinstance(outcome, EndedWorkflows)  # noqa: S101
            found += outcome.names
            if outcome.next is None:
                return found
            after = outcome.next

    def _purge(self, workflow: str, status: str) -> Flow[None]:
        """Remove the old runs of one workflow that ended with one status. `purged` ones are left by another purge."""
        after: tuple[int, str] | None = None
        while True:
            self._began = elapsed()
            # What a stopped purge has hidden is removed in any case.
            before = self._now + 1 if status == "purged" else self._before
            command = ListEndedRuns(workflow=workflow, status=status, before=before, after=after, limit=ROOTS_AT_ONCE)
            page, _ = yield from send(command, role="queries")
            assert isinstance(page, EndedRuns)  # noqa: S101
            roots = tuple(name for _, name in page.runs)
            if status == "purged":
                for root in roots:
                    yield from self._remove(root)
            elif roots:
                yield from self._purge_roots(roots)
            if page.next is None:
                return
            after = page.next

    def _purge_roots(self, roots: tuple[str, ...]) -> Flow[None]:
        while roots:
            kind = CountPurgeable if self._request.dry_run else PurgeRuns
            outcome, _ = yield from send(kind(roots=roots, before=self._before))
            assert isinstance(outcome, Purged)  # noqa: S101
            self._add(
                trees=outcome.trees,
                runs=outcome.runs,
                kept_living=outcome.living,
                kept_young=outcome.young,
                kept_unreadable=outcome.unreadable,
            )
            yield from self._rest()
            for root in outcome.large:
                yield from self._purge_large(root)
            roots = outcome.rest

    def _purge_large(self, root: str) -> Flow[None]:
        """Remove a tree that is too large for one step; see `rules/runs/purging.py`."""
        purge = secrets.token_hex(8)
        if not self._request.dry_run and (yield from self._step(root, purge, "mark")).state != "marked":
            return
        runs, after = 1, ""
        while True:
            seen, _ = yield from send(LookAtTree(root=root, before=self._before, after=after, limit=RUNS_AT_ONCE))
            assert isinstance(seen, TreeSeen)  # noqa: S101
            yield from self._rest()
            if seen.living or seen.young or seen.unreadable:
                kept = "kept_living" if seen.living else "kept_young" if seen.young else "kept_unreadable"
                self._add(**{kept: 1})
                return
            runs += seen.runs
            if seen.next is None:
                break
            after = seen.next
        if self._request.dry_run:
            self._add(trees=1, runs=runs)
        elif (yield from self._step(root, purge, "hide")).state == "hidden":
            yield from self._remove(root)

    def _remove(self, root: str) -> Flow[None]:
        """Remove a hidden tree part by part."""
        while True:
            try:
                step = yield from self._step(root, "", "remove")
            except RecordUnreadable:  # a damaged tree must not keep the others
                self._add(kept_unreadable=1)
                return
            self._add(runs=step.runs, trees=int(step.state == "removed" and step.runs > 0))
            yield from self._rest()
            if step.state != "hidden":
                return

    def _step(self, root: str, purge: str, step: Any) -> Flow[PurgeStep]:
        self._began = elapsed()
        outcome, _ = yield from send(PurgeTree(root=root, before=self._before, purge=purge, step=step))
        assert isinstance(outcome, PurgeStep)  # noqa: S101
        return outcome

    def _add(self, **more: int) -> None:
        counts = {name: getattr(self.report, name) + count for name, count in more.items()}
        self.report = msgspec.structs.replace(self.report, **counts)

    def _rest(self) -> Flow[None]:
        """Report the progress, and let other commands go first."""
        if self._progress is not None:
            self._progress()
        pause = min(LONGEST_REST, REST * (elapsed() - self._began))
        if pause > 0:
            yield Wait(self._notifier, pause)
        self._began = elapsed()
