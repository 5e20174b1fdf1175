"""The ordered lists that contain a run, and how the runs of a batch have moved between them.

A list is identified by a key and contains a run as an item. The changes of a batch are kept as differences from the
stored lists, so that a question about a list costs the same among few changed runs and among many.
"""

from __future__ import annotations

from typing import Any

from ..rules.runs.record import Run, memberships

Key = tuple[Any, ...]
NOTHING: frozenset[Any] = frozenset()


def due_runs(type: str) -> Key:
    """The runs of a type that may be claimed: (due_at, id)."""
    return "due", type


def runs_of(worker: str) -> Key:
    """The runs of a worker: ids."""
    return "of", worker


def members(group: str, *, queued: bool) -> Key:
    """The runs of a group that are queued, or else admitted, and have not ended: (rank, arrival, id)."""
    return "members", group, queued


def arrivals(group: str, *, queued: bool, rank: int) -> Key:
    """Those of one rank: (arrival, id)."""
    return "arrivals", group, queued, rank


def places_of(run: Run | None) -> set[tuple[Key, Any]]:
    """The lists that contain a run, each with its item."""
    found: set[tuple[Key, Any]] = set()
    if run is None:
        return found
    if run.due_at is not None:
        found.add((due_runs(run.type), (run.due_at, run.id)))
    if run.worker:
        found.add((runs_of(run.worker), run.id))
    for one in memberships(run):
        found.add((members(one.group, queued=one.queued), (one.rank, one.arrival, one.run)))
        found.add((arrivals(one.group, queued=one.queued, rank=one.rank), (one.arrival, one.run)))
    return found


class IndexMoves:
    """How the lists differ from what is stored."""

    def __init__(self) -> None:
        self._gone: dict[Key, set[Any]] = {}
        self._come: dict[Key, set[Any]] = {}

    def gone(self, key: Key) -> set[Any]:
        """The stored items of a list that the batch has removed."""
        return set(self._gone.get(key, NOTHING))

    def come(self, key: Key) -> set[Any]:
        """The items of a list that the batch has added."""
        return set(self._come.get(key, NOTHING))

    def growth(self, key: Key) -> int:
        """By how many items a list is longer than the stored one."""
        return len(self._come.get(key, NOTHING)) - len(self._gone.get(key, NOTHING))

    def move(self, stored: Run | None, before: Run | None, after: Run | None) -> None:
        """Note that a run has changed from `before` to `after`."""
        basis, old, new = places_of(stored), places_of(before), places_of(after)
        for place in old - new:
            _note(place, self._gone if place in basis else self._come, adds=place in basis)
        for place in new - old:
            _note(place, self._gone if place in basis else self._come, adds=place not in basis)


def _note(place: tuple[Key, Any], lists: dict[Key, set[Any]], *, adds: bool) -> None:
    key, item = place
    if adds:
        lists.setdefault(key, set()).add(item)
    else:
        lists[key].discard(item)
