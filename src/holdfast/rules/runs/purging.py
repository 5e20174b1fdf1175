"""Transitions that remove runs which ended long ago, by whole trees: a first run and all its descendants.

No run of a tree is removed while one of its runs has not ended, or ended too recently. A small tree is decided and
removed in one step. A larger tree takes several steps: it is announced (`mark`), checked page by page (`look_at`),
hidden if no run of it was revived since (`hide`), and then removed part by part (`remove`), the first run last. If a
purge stops in between, the next purge continues it. If an id had several runs, its row stays and contains only the
number of the last generation. So the idempotency keys of the steps of a later run differ from all earlier keys.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal, NamedTuple

from msgspec.structs import replace

from ...errors import RecordUnreadable
from ..lock_outcomes import Outcome
from ..record_type import RecordType
from . import approvals, streams, updates
from .helpers import known
from .outcomes import Purged, PurgeStep, TreeSeen
from .own_records import own_prefix
from .record import Run, is_child_of
from .repository import RunRepository
from .requests import ANSWERED_PAGE, ANSWERED_PAGES, APPROVAL, APPROVAL_NAME, UPDATE
from .signal_keys import SIGNAL_KEY, SIGNAL_KEY_PAGE, key_prefix
from .stream_records import STREAM, STREAM_CHUNK, STREAM_STEP
from .tree import TREE_MEMBER, tree_prefix

RUNS_AT_ONCE = 100
"""How many runs one step removes, at most."""
WORK_AT_ONCE = 10_000
"""How many entries, events and records of runs one step removes, at most; an inbox is removed as a whole."""
WORK_OF = {"stream-chunk": 8}
"""What a record of some types counts there, if not 1, because it is large."""
PART = "part"
"""The id of the purge of a run below a first one, of which a part was removed."""

Named = tuple[RecordType[Any], str]
"""A record that is about a run: its type and its key."""
OWN_TYPES: dict[str, tuple[RecordType[Any], ...]] = {
    updates.KIND: (UPDATE, ANSWERED_PAGE, ANSWERED_PAGES),
    approvals.KIND: (APPROVAL, APPROVAL_NAME),
    streams.KIND: (STREAM_CHUNK, STREAM, STREAM_STEP),
}
"""The types of the records that belong to one run, by the kinds that it notes."""

Verdict = Literal["removable", "absent", "living", "young", "large", "unreadable"]


class Tree(NamedTuple):
    """The part of a tree that one step reads. `runs`: all runs, the first run first, if one step can remove them."""

    verdict: Verdict
    runs: tuple[Run, ...] = ()
    work: int = 0


def record_prefixes(run: Run) -> tuple[Named, ...]:
    """The types of records that are about one run and are removed with it, each with the prefix of their keys."""
    found: tuple[Named, ...] = ()
    if run.remembered is not None:
        found += ((SIGNAL_KEY, key_prefix(run.id)), (SIGNAL_KEY_PAGE, key_prefix(run.id)))
    for kind in run.record_kinds:
        found += tuple((one, own_prefix(run)) for one in OWN_TYPES.get(kind, ()))
    return found


def cuts_the_tree(run: Run) -> bool:
    """Whether a run and its descendants do not belong to the tree of its root, although it was started there."""
    return bool(run.parent) and run.is_first


def _may_be_missed(repo: RunRepository, run: Run) -> bool:
    """Whether the parent of a run that it has abandoned may still ask for it: it has not ended, or may be retried.

    A parent that has continued as new since the end of the run does not know the run any more.
    """
    parent = repo.run(run.parent) if cuts_the_tree(run) and run.parent != run.id else None
    if parent is None or not is_child_of(run, parent) or parent.status in ("completed", "purged"):
        return False
    return parent.continued_at is None or run.ended_at is None or run.ended_at >= parent.continued_at


def is_stub(run: Run) -> bool:
    """Whether only the number of the last generation is left of a purged run: its id may be used again."""
    return run.status == "purged" and not run.purging


def stub_of(run: Run) -> Run | None:
    """The row that stays of a purged run: its generation, if the id had several and belongs to no other run."""
    if run.generation <= 1 or run.replaced_by:
        return None
    return Run(
        id=run.id, type=run.type, status="purged", created_at=run.created_at, fence=run.fence, generation=run.generation
    )


def spare(repo: RunRepository, run: Run) -> bool:
    """End an announced purge of the tree of a run that is to be revived. False: its tree is being removed already."""
    if not run.root or run.root == run.id or cuts_the_tree(run):
        return True
    root = repo.run(run.root)
    if root is None or not root.purging:
        return True
    if root.status == "purged":
        return False
    repo.save(replace(root, purging=""))
    return True


# -- trees that one step can remove --------------------------------------------------------------------------------


def purge(repo: RunRepository, *, roots: Sequence[str], before: int, removes: bool) -> Purged:
    """Remove the trees of these runs that ended before a moment, as many as one step may; or only count them."""
    kept: list[Verdict] = []
    trees = runs = work = 0
    large: tuple[str, ...] = ()
    rest: tuple[str, ...] = ()
    for place, name in enumerate(dict.fromkeys(roots)):
        tree = _tree(repo, name, before)
        if tree.verdict == "large":
            large += (name,)
        elif tree.verdict == "removable":
            if trees and (runs + len(tree.runs) > RUNS_AT_ONCE or work + tree.work > WORK_AT_ONCE):
                rest = tuple(dict.fromkeys(roots))[place:]
                break
            trees, runs, work = trees + 1, runs + len(tree.runs), work + tree.work
            if removes:
                _remove_tree(repo, tree.runs)
        else:
            kept.append(tree.verdict)
    return Purged(
        trees=trees,
        runs=runs,
        living=kept.count("living"),
        young=kept.count("young"),
        unreadable=kept.count("unreadable"),
        large=large,
        rest=rest,
    )


def _tree(repo: RunRepository, name: str, before: int) -> Tree:
    """Whether a tree can be removed in one step."""
    try:
        root = known(repo, name)
        if root is None or not root.is_first:
            return Tree("absent")
        if (verdict := _kept(root, before) or _kept_for_others(repo, root)) is not None:
            return Tree(verdict)
        keys = repo.record_keys(TREE_MEMBER, tree_prefix(name), "", RUNS_AT_ONCE)
        if len(keys) >= RUNS_AT_ONCE or _work_of(_records(repo, root)) >= WORK_AT_ONCE:
            return Tree("large")
        found = (root, *(run for run in _members(repo, name, keys) if run is not None))
        work = sum(run.length + run.posted + _work_of(_records(repo, run)) for run in found)
    except RecordUnreadable:  # a damaged tree stays, and does not keep others
        return Tree("unreadable")
    if (verdict := _worst(found, before)) is not None:
        return Tree(verdict)
    return Tree("removable" if work <= WORK_AT_ONCE else "large", found, work)


def _kept_for_others(repo: RunRepository, run: Run) -> Verdict | None:
    """Whether the parent that has abandoned a run may ask for it, or a run below a replaced one has not ended.

    The runs below a replaced run are in the tree of the run that has its id now. A tree that is too large for one step
    counts as living: the replaced run then goes after that tree.
    """
    if _may_be_missed(repo, run):
        return "living"
    if not run.replaced_by:
        return None
    keys = repo.record_keys(TREE_MEMBER, tree_prefix(run.replaced_by), "", RUNS_AT_ONCE)
    if len(keys) >= RUNS_AT_ONCE:
        return "living"
    members = {one.id: one for one in _members(repo, run.replaced_by, keys) if one is not None}
    for member in members.values():
        first = member
        while first.parent in members:
            first = members[first.parent]
        if member.living and first.parent == run.replaced_by and first.parent_first == run.first:
            return "living"
    return None


def _kept(run: Run, before: int) -> Verdict | None:
    """Why a run may not be removed; None: it may."""
    if run.living:
        return "living"
    return "young" if run.ended_at is None or run.ended_at >= before else None


def _worst(runs: Sequence[Run], before: int) -> Verdict | None:
    found = {_kept(run, before) for run in runs}
    return "living" if "living" in found else "young" if "young" in found else None


def _members(repo: RunRepository, root: str, keys: Sequence[str]) -> Iterator[Run | None]:
    """The run of each record of a tree; None where there is none, or it belongs to another tree by now."""
    for key in keys:
        member = repo.record(TREE_MEMBER, key)
        run = None if member is None or member.id == root else known(repo, member.id)
        yield run if run is not None and run.root == root and not cuts_the_tree(run) else None


def _records(repo: RunRepository, run: Run) -> list[Named]:
    """The first records that are about one run, as many as one step may remove."""
    found: list[Named] = []
    work = 0
    for kind, prefix in record_prefixes(run):
        if work < WORK_AT_ONCE:
            some = repo.record_keys(kind, prefix, "", at_once(kind))
            found += [(kind, key) for key in some]
            work += _work_of(found[-len(some) :] if some else ())
    return found


def at_once(kind: RecordType[Any]) -> int:
    """How many records of a type one step removes, at most."""
    return WORK_AT_ONCE // WORK_OF.get(kind.name, 1)


def _work_of(records: Sequence[Named]) -> int:
    return sum(WORK_OF.get(kind.name, 1) for kind, _ in records)


def _remove_tree(repo: RunRepository, runs: Sequence[Run]) -> None:
    root = runs[0]
    for key in repo.record_keys(TREE_MEMBER, tree_prefix(root.id), "", RUNS_AT_ONCE):
        repo.put_record(TREE_MEMBER, key, None)
    for run in runs:
        _remove_run(repo, run)


def _remove_run(repo: RunRepository, run: Run) -> None:
    for kind, key in _records(repo, run):
        repo.put_record(kind, key, None)
    repo.clear_run(run, stub_of(run))


# -- trees that need several steps ---------------------------------------------------------------------------------


def look_at(repo: RunRepository, *, root: str, before: int, after: str, limit: int) -> TreeSeen:
    """Check one page of the runs below a first run."""
    limit = max(1, min(limit, RUNS_AT_ONCE))
    keys = repo.record_keys(TREE_MEMBER, tree_prefix(root), after, limit + 1)
    kept: list[Verdict | None] = []
    runs = 0
    for key in keys[:limit]:
        try:
            (run,) = _members(repo, root, (key,))
            verdict = None if run is None else _kept(run, before)
        except RecordUnreadable:
            run, verdict = None, "unreadable"
        runs += run is not None
        kept.append(verdict)
    return TreeSeen(
        runs=runs,
        living=kept.count("living"),
        young=kept.count("young"),
        unreadable=kept.count("unreadable"),
        next=keys[limit - 1] if len(keys) > limit else None,
    )


def mark(repo: RunRepository, *, root: str, before: int, purge: str) -> Outcome:
    """Announce the purge of a tree. A run of it that is revived meanwhile ends this purge."""
    run = known(repo, root)
    if run is None or not run.is_first or _kept(run, before) is not None or _may_be_missed(repo, run):
        return PurgeStep(state="refused")
    if run.purging != purge:
        repo.save(replace(run, purging=purge))
    return PurgeStep(state="marked")


def hide(repo: RunRepository, *, root: str, before: int, purge: str) -> Outcome:
    """Hide a tree, if all its runs were checked after the announcement. After that its purge cannot be undone."""
    found = repo.run(root)
    if found is not None and found.status == "purged" and found.purging == purge:
        return PurgeStep(state="hidden")
    if found is None or found.purging != purge or not found.is_first or _kept(found, before) is not None:
        return PurgeStep(state="refused")
    if _may_be_missed(repo, found):
        return PurgeStep(state="refused")
    repo.save(_hidden(found))
    return PurgeStep(state="hidden")


def remove(repo: RunRepository, *, root: str) -> Outcome:
    """Remove a part of a hidden tree: first the descendants, then the rest of the first run."""
    first = repo.run(root)
    if first is None or first.status != "purged" or not first.purging:
        return PurgeStep(state="removed")
    runs, work = 0, 0
    keys = repo.record_keys(TREE_MEMBER, tree_prefix(root), "", RUNS_AT_ONCE + 1)
    for key in keys[:RUNS_AT_ONCE]:
        member = repo.record(TREE_MEMBER, key)
        run = None if member is None or member.id == root else repo.run(member.id)
        if run is not None and run.root == root and not run.living and not cuts_the_tree(run):
            if runs and work + run.length + run.posted > WORK_AT_ONCE:
                return PurgeStep(state="hidden", runs=runs)
            if not _trimmed(repo, run):
                return PurgeStep(state="hidden", runs=runs)
            work += run.length + run.posted
            runs += 1
            _remove_run(repo, run)
        repo.put_record(TREE_MEMBER, key, None)
    if len(keys) > RUNS_AT_ONCE or (runs and work + first.length + first.posted > WORK_AT_ONCE):
        return PurgeStep(state="hidden", runs=runs)
    if not _trimmed(repo, first):
        return PurgeStep(state="hidden", runs=runs)
    _remove_run(repo, first)
    return PurgeStep(state="removed", runs=runs + 1)


def _trimmed(repo: RunRepository, run: Run) -> bool:
    """Whether a run is small enough to be removed now; if not, a part of what belongs to it was removed."""
    records = _records(repo, run)
    if _work_of(records) >= WORK_AT_ONCE:
        for kind, key in records:
            repo.put_record(kind, key, None)
        return False
    if run.length <= WORK_AT_ONCE:
        return True
    repo.cut(run.id, run.length - WORK_AT_ONCE)
    repo.save(replace(_hidden(run), length=run.length - WORK_AT_ONCE))
    return False


def _hidden(run: Run) -> Run:
    """The record of a run that counts as absent, though parts of it are left."""
    purging = run.purging or PART
    return replace(run, status="purged", purging=purging, key="", request="", last="", attributes={}, result=None)
