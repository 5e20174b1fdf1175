"""Limits inside one SQLite transaction: limits of workflows, queued and admitted runs, and starts within a span."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

import msgspec

from ...rules.runs.limits import Limit, LimitKey, WorkflowLimits
from ...rules.runs.record import Run, memberships

TERMS = "SELECT terms FROM terms WHERE namespace = ? AND workflow = ?"
PUT_TERMS = "INSERT OR REPLACE INTO terms (namespace, workflow, terms) VALUES (?, ?, ?)"
ENTER = (
    "INSERT INTO places (namespace, party, queued, rank, arrival, run, workflow, place) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"
)
LEAVE = "DELETE FROM places WHERE namespace = ? AND party = ? AND queued = ? AND rank = ? AND arrival = ? AND run = ?"
MEMBERS = "SELECT run FROM places WHERE namespace = ? AND party = ? AND queued = ? ORDER BY rank, arrival, run LIMIT ?"
COUNT = "SELECT count(*) FROM places WHERE namespace = ? AND party = ? AND queued = ?"
ARRIVAL = "SELECT max(arrival) FROM places WHERE namespace = ? AND party = ? AND queued = ? AND rank = ?"
CROWDED = "SELECT DISTINCT place FROM places WHERE namespace = ? AND workflow = ? AND queued = 1"
NTH_START = "SELECT at FROM starts WHERE namespace = ? AND party = ? ORDER BY at DESC, run DESC LIMIT 1 OFFSET ?"
STARTS_AFTER = "SELECT count(*) FROM starts WHERE namespace = ? AND party = ? AND at > ?"
NOTE_START = "INSERT INTO starts (namespace, party, at, run, gone_at) VALUES (?, ?, ?, ?, ?)"
FORGET_STARTS = (
    "DELETE FROM starts WHERE namespace = ? AND party = ? AND at <= ? AND number NOT IN (SELECT number FROM starts "
    "WHERE namespace = ? AND party = ? AND at <= ? ORDER BY at DESC, run DESC, number DESC LIMIT ?)"
)
FORGET_OLD_STARTS = "DELETE FROM starts WHERE namespace = ? AND gone_at < ?"
FORGOTTEN_AFTER = 7 * 86_400 * 1_000_000
"""How long a start is kept after the end of its span, in case the span is made longer."""
ALL = -1

_encoder = msgspec.json.Encoder()
_terms = msgspec.json.Decoder(WorkflowLimits)
_place = msgspec.json.Decoder(LimitKey)


class SqliteLimits:
    """The part of the repository that is about limits. `flush` writes runs together with their rows in `places`."""

    def __init__(self, db: sqlite3.Connection, namespace: str) -> None:
        self._db, self._namespace = db, namespace
        self._terms: dict[str, WorkflowLimits | None] = {}
        self.changed = False

    def flush(self) -> None:
        """Write all changes, so that the next query finds them in the tables."""
        raise NotImplementedError

    def _count(self, before: Run | None, run: Run) -> None:
        """Update the rows of queued and admitted runs."""
        old, new = [] if before is None else _places(before), _places(run)
        if old != new:
            self.changed = True
            self._db.executemany(LEAVE, [(self._namespace, *row[:-2]) for row in old])
            self._db.executemany(ENTER, [(self._namespace, *row) for row in new])

    def terms(self, workflow: str) -> WorkflowLimits | None:
        """The limits of a workflow; None if none were ever published."""
        if workflow not in self._terms:
            found = self._db.execute(TERMS, (self._namespace, workflow)).fetchone()
            self._terms[workflow] = None if found is None else _terms.decode(found[0])
        return self._terms[workflow]

    def put_terms(self, workflow: str, terms: WorkflowLimits) -> None:
        """Write the limits of a workflow."""
        self.changed = True
        self._terms[workflow] = terms
        self._db.execute(PUT_TERMS, (self._namespace, workflow, _encoder.encode(terms).decode()))

    def members(self, group: str, *, queued: bool, limit: int | None) -> Sequence[str]:
        """The runs of a group that have not ended: queued ones by priority and arrival, or admitted ones by arrival."""
        self.flush()
        values = (self._namespace, group, queued, ALL if limit is None else limit)
        return [row[0] for row in self._db.execute(MEMBERS, values).fetchall()]

    def admitted(self, group: str) -> int:
        """How many admitted runs of a group have not ended."""
        return self._number(COUNT, group, 0)

    def queued(self, group: str) -> int:
        """How many runs of a group are queued."""
        return self._number(COUNT, group, 1)

    def last_arrival(self, group: str, priority: int) -> int:
        """The highest arrival of admitted runs and of queued runs with this priority; 0: there is none."""
        return max(self._number(ARRIVAL, group, 0, 0), self._number(ARRIVAL, group, 1, -priority))

    def queued_limit_keys(self, workflow: str) -> Sequence[LimitKey]:
        """The limit keys of a workflow under which runs are queued, in order."""
        self.flush()
        rows = self._db.execute(CROWDED, (self._namespace, workflow))
        return sorted(_place.decode(row[0]) for row in rows)

    def nth_start(self, group: str, n: int) -> int | None:
        """The n-th latest start that was noted for a group."""
        found = self._db.execute(NTH_START, (self._namespace, group, n - 1)).fetchone()
        return None if found is None else found[0]

    def starts_after(self, group: str, moment: int) -> int:
        """How many starts of a group were noted for later."""
        return self._number(STARTS_AFTER, group, moment)

    def note_start(self, group: str, at: int, run: str, limit: Limit, now: int) -> None:
        """Note a start. Of those that are not later than `now` only the latest are kept; old ones are deleted."""
        self.changed = True
        self._db.execute(NOTE_START, (self._namespace, group, at, run, at + limit.per + FORGOTTEN_AFTER))
        counted = (self._namespace, group, now)
        self._db.execute(FORGET_STARTS, (*counted, *counted, limit.max))
        self._db.execute(FORGET_OLD_STARTS, (self._namespace, now))

    def _number(self, query: str, *values: str | int) -> int:
        self.flush()
        return int(self._db.execute(query, (self._namespace, *values)).fetchone()[0] or 0)


def _places(run: Run) -> list[tuple[Any, ...]]:
    """The rows of a run that has not ended, for its limits and for the queues of locks."""
    return [
        (one.group, one.queued, one.rank, one.arrival, one.run, one.workflow, _encoder.encode(one.place or ()).decode())
        for one in memberships(run)
    ]
