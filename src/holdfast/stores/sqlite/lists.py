"""Lists of runs on SQLite: the newest that fit a filter, found through indexes.

Each part of a filter is a *source*: an index that holds exactly the runs which that part matches. Status, workflow and
attributes are sources in the order of the list; ids with a prefix are one in the order of ids. Which source is the
shortest is not known, so all are tried in turn: first for a few rows each, then for eight times as many. The first one
that fills the page, or has no more rows, gives the answer. So a list costs about as much as its cheapest source, also
when one part of the filter matches a million runs and another one none.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from ...rules.runs.record import SHOWN, Scalar
from ...rules.runs.repository import RunFilter
from ..common import end_of_prefix

FIRST_ROWS = 256
"""How many rows of each source are read in the first round."""
FACTOR = 8

TAKE = (
    "SELECT runs.record FROM (SELECT id, created_at FROM ({source} LIMIT ?)) AS taken "
    "CROSS JOIN runs ON runs.namespace = ? AND runs.id = taken.id "
    "WHERE {where} ORDER BY taken.created_at DESC, taken.id DESC LIMIT ?"
)
# By the primary key: the filter has a prefix, and its other columns are named so that no other index is used.
SORT = (
    "SELECT runs.record FROM runs WHERE runs.namespace = ? AND {where} "
    "ORDER BY runs.created_at DESC, runs.id DESC LIMIT ?"
)
COUNT = "SELECT count(*) FROM ({source} LIMIT ?)"
BY_ATTRIBUTE = (
    "SELECT run AS id, created_at FROM run_attributes WHERE namespace = ? AND name = ? AND value = ?{span} "
    "ORDER BY created_at DESC, run DESC"
)
BY_PREFIX = "SELECT id, created_at FROM runs WHERE namespace = ? AND id >= ?{end}"
BY_STATUS = "SELECT id, created_at FROM runs INDEXED BY runs_status WHERE namespace = ? AND status = ?{span}"
BY_WORKFLOW = (
    "SELECT id, created_at FROM runs INDEXED BY runs_workflow WHERE namespace = ? AND workflow = ? AND status = ?{span}"
)

_encoder = msgspec.json.Encoder()


class ListQuery(NamedTuple):
    """Rows `(id, created_at)` of some runs, as SQL with its values; `ordered`: the newest come first."""

    query: str
    values: tuple[Any, ...]
    ordered: bool


def stored_value(value: Scalar) -> str:
    """An attribute's value as it is stored and compared: True is not 1, and 1 is not "1"."""
    return _encoder.encode(value).decode()


def find(
    db: sqlite3.Connection, namespace: str, wanted: RunFilter, after: tuple[int, str] | None, limit: int
) -> list[str]:
    """The records of the newest runs that fit and come after the cursor, at most `limit`."""
    sources = list(_sources(namespace, wanted, after))
    where, values = _fits(namespace, wanted, after)
    rows = limit if len(sources) == 1 else max(FIRST_ROWS, limit)
    while True:
        for source in sources:
            if source.ordered:
                taken = (*source.values, rows, namespace, *values, limit)
                found = db.execute(TAKE.format(source=source.query, where=where), taken).fetchall()
                if len(found) == limit or _length(db, source, rows) < rows:
                    return [row[0] for row in found]
            elif _length(db, source, rows) < rows:
                return [row[0] for row in db.execute(SORT.format(where=where), (namespace, *values, limit))]
        rows *= FACTOR


def _length(db: sqlite3.Connection, source: ListQuery, rows: int) -> int:
    """How many rows a source has, if it has fewer than so many."""
    return int(db.execute(COUNT.format(source=source.query), (*source.values, rows)).fetchone()[0])


def _sources(namespace: str, wanted: RunFilter, after: tuple[int, str] | None) -> Iterator[ListQuery]:
    """The sources for the parts of the filter, the probably shortest first; at least one."""
    for name, value in wanted.attributes.items():
        span, times = _span(wanted, after, "run")
        yield ListQuery(
            BY_ATTRIBUTE.format(span=span),
            (namespace, name, stored_value(value), *times),
            ordered=True,
        )
    if wanted.prefix:
        end = end_of_prefix(wanted.prefix)
        upper, last = ("", ()) if end is None else (" AND id < ?", (end,))
        yield ListQuery(
            BY_PREFIX.format(end=upper),
            (namespace, wanted.prefix, *last),
            ordered=False,
        )
    if wanted.workflow or wanted.statuses or not wanted.attributes:
        yield _by_status(namespace, wanted, after)


def _by_status(namespace: str, wanted: RunFilter, after: tuple[int, str] | None) -> ListQuery:
    """The runs of some or all statuses, of one workflow or of all: one index scan per status, merged."""
    span, times = _span(wanted, after, "id")
    part = (BY_WORKFLOW if wanted.workflow else BY_STATUS).format(span=span)
    of = (namespace, wanted.workflow) if wanted.workflow else (namespace,)
    statuses = dict.fromkeys(wanted.statuses or SHOWN)
    # SQLite merges the sorted parts of a union lazily, and stops when enough rows were read.
    union = " UNION ALL ".join([part] * len(statuses))
    values = tuple(value for status in statuses for value in (*of, status, *times))
    return ListQuery(f"{union} ORDER BY 2 DESC, 1 DESC", values, ordered=True)


def _span(wanted: RunFilter, after: tuple[int, str] | None, id: str) -> tuple[str, tuple[Any, ...]]:
    """The times of the filter and the cursor, as conditions on an index."""
    where = ""
    values: list[Any] = []
    if after is not None:
        where += f" AND (created_at, {id}) < (?, ?)"
        values += after
    if wanted.since is not None:
        where += " AND created_at >= ?"
        values.append(wanted.since)
    if wanted.until is not None:
        where += " AND created_at < ?"
        values.append(wanted.until)
    return where, tuple(values)


def _fits(namespace: str, wanted: RunFilter, after: tuple[int, str] | None) -> tuple[str, list[Any]]:
    """Every condition of the filter on a row of `runs`."""
    span, times = _span(wanted, after, "runs.id")
    where, values = f"true{span.replace('created_at', 'runs.created_at')}", list[Any](times)
    if wanted.workflow:
        where += " AND +runs.workflow = ?"
        values.append(wanted.workflow)
    if wanted.statuses:
        where += f" AND +runs.status IN ({', '.join('?' * len(wanted.statuses))})"
        values += wanted.statuses
    else:
        where += " AND +runs.status <> 'purged'"
    if wanted.prefix:
        where += " AND runs.id >= ?"
        values.append(wanted.prefix)
        if (end := end_of_prefix(wanted.prefix)) is not None:
            where += " AND runs.id < ?"
            values.append(end)
    for name, value in wanted.attributes.items():
        where += (
            " AND EXISTS (SELECT 1 FROM run_attributes AS other WHERE other.namespace = ? AND other.name = ? "
            "AND other.value = ? AND other.created_at = runs.created_at AND other.run = runs.id)"
        )
        values += [namespace, name, stored_value(value)]
    return where, values
