"""Lists of locks and runs on a relational store, and counts: read through indexes, outside of decisions.

Each part of a filter is a *source*: an index that contains exactly the runs which that part matches. Status, workflow
and attributes are sources in the order of the list; ids with a prefix are one in no order. Which source is the
shortest is not known, so all are read together: first a few rows of each, then eight times as many. The first one that
fills the page, or has no more rows, gives the answer. So a list costs about as much as its cheapest source.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ...commands import Command, ListLocks, LockPage
from ...commands.purging import ListEndedRuns, ListEndedWorkflows
from ...commands.runs import CountRuns, ListRuns
from ...errors import RecordUnreadable
from ...rules.lock_outcomes import Outcome
from ...rules.runs.outcomes import EndedRuns, EndedWorkflows, RunCounts, RunPage
from ...rules.runs.record import LIVING, SHOWN, Run
from ...rules.runs.repository import RunFilter
from ..common import at_least_one, end_of_prefix, listed
from .dialect import Rows, listing
from .rows import attribute_term, lock_of, run_of
from .session import StatementRunner
from .tables import SqlTables, digest

FIRST_ROWS = 256
"""How many rows of each source are read in the first round."""
FACTOR = 8
MOST_AT_ONCE = 1_000
"""How many runs are read in one statement."""
LARGEST_PAGE = 2**31 - 2


class RunSource(NamedTuple):
    """Statements whose rows `(created_at, id)` are the runs of one part of a filter."""

    statements: tuple[str, ...]
    ordered: bool
    """Whether each statement gives the newest first."""


class SqlLists:
    """Reads of one namespace."""

    def __init__(self, session: StatementRunner, tables: SqlTables, namespace: str, at: int | None) -> None:
        self._session, self._tables, self._at = session, tables, at
        self._dialect, self._literal = session.dialect, session.dialect.literal
        self._ns = self._literal(namespace.encode())

    def answer(self, command: Command) -> Outcome:
        """Answer one of the list commands."""
        if isinstance(command, ListLocks):
            return self._list_locks(command)
        if isinstance(command, ListRuns):
            return self._list_runs(command)
        if isinstance(command, ListEndedRuns):
            return self._list_ended(command)
        if isinstance(command, ListEndedWorkflows):
            return self._ended_workflows(command)
        assert isinstance(command, CountRuns)  # noqa: S101  (the only other one)
        return self._count_runs()

    def _read(self, *statements: str) -> tuple[list[Rows], int]:
        clock = self._dialect.clock if self._at is None else str(self._at)
        *rows, ((now,),) = self._session.read([*statements, f"SELECT {clock}"])
        return rows, int(now)

    def _bytes(self, text: str) -> str:
        if type(text) is not str:
            raise TypeError(f"{text!r} is not text")
        return self._literal(text.encode())

    def _list_locks(self, command: ListLocks) -> LockPage:
        limit = min(at_least_one(command.limit), LARGEST_PAGE)
        where = f"k > {self._bytes(command.after)} AND k >= {self._bytes(command.prefix)}"
        if (end := end_of_prefix(command.prefix)) is not None:
            where += f" AND k < {self._bytes(end)}"
        select = f"SELECT k, record FROM {self._tables.locks} WHERE ns = {self._ns} AND {where} ORDER BY k"
        (rows,), now = self._read(self._dialect.limited(select, limit + 1))
        found = [(bytes(key).decode(), text) for key, text in rows]
        items = tuple(listed(key, lock_of(key, text), now) for key, text in found[:limit])
        return LockPage(items=items, next=found[limit - 1][0] if len(found) > limit else None, now=now)

    def _count_runs(self) -> RunCounts:
        living = listing(self._bytes(status) for status in LIVING)
        select = f"SELECT type, COUNT(*) FROM {self._tables.runs} WHERE ns = {self._ns} AND status IN {living}"
        (rows,), _ = self._read(f"{select} GROUP BY type")
        return RunCounts(counts={bytes(name).decode(): many for name, many in rows})

    def _list_ended(self, command: ListEndedRuns) -> EndedRuns:
        """A page of runs that ended with one status, by the time of their end."""
        limit = min(at_least_one(command.limit), LARGEST_PAGE)
        of = f"workflow = {self._bytes(command.workflow)} AND status = {self._bytes(command.status)}"
        where = f"ns = {self._ns} AND {of} AND ended_at < {int(command.before)}"
        if command.after is not None:
            at, name = int(command.after[0]), self._bytes(command.after[1])
            where += f" AND ended_at >= {at} AND (ended_at > {at} OR id > {name})"
        select = f"SELECT ended_at, id FROM {self._tables.runs} WHERE {where} ORDER BY ended_at, id"
        (rows,), now = self._read(self._dialect.limited(select, limit + 1))
        found = tuple((int(at), bytes(name).decode()) for at, name in rows)
        return EndedRuns(runs=found[:limit], next=found[limit - 1] if len(found) > limit else None, now=now)

    def _ended_workflows(self, command: ListEndedWorkflows) -> EndedWorkflows:
        """A page of the names of workflows: one search in the index for each."""
        limit = min(at_least_one(command.limit), LARGEST_PAGE)
        found: list[str] = []
        while True:
            last = self._bytes(found[-1] if found else command.after)
            select = f"SELECT workflow FROM {self._tables.runs} WHERE ns = {self._ns} AND workflow > {last}"
            (rows,), now = self._read(self._dialect.limited(f"{select} ORDER BY workflow", 1))
            if not rows or len(found) == limit:
                more = found[-1] if rows else None
                return EndedWorkflows(names=tuple(found), next=more, now=now)
            found.append(bytes(rows[0][0]).decode())

    # -- runs ---------------------------------------------------------------------------------------------------

    def _list_runs(self, command: ListRuns) -> RunPage:
        """A page of runs, the newest first; one more is read, to know whether there are more."""
        limit = min(at_least_one(command.limit), LARGEST_PAGE)
        wanted, after = command.wanted, command.after
        rows = limit + 1 if not (wanted.attributes or wanted.prefix) else max(FIRST_ROWS, limit + 1)
        while True:
            sources = list(self._sources(wanted, after, rows))
            results, now = self._read(*(statement for source in sources for statement in source.statements))
            left = iter(results)
            for source in sources:
                parts = [[(at, bytes(name).decode()) for at, name in next(left)] for _ in source.statements]
                whole = all(len(part) < rows for part in parts)
                names = sorted((one for part in parts for one in part), reverse=True)
                if not whole and source.ordered:  # beyond the last row of a full part there may be others
                    first = max(part[-1] for part in parts if len(part) == rows)
                    names = [one for one in names if one >= first]
                if not whole and not source.ordered:
                    continue
                found = self._fitting([name for _, name in names], wanted, after, limit + 1)
                if whole or len(found) > limit:
                    return _page(found, limit, now)
            rows *= FACTOR

    def _fitting(self, names: list[str], wanted: RunFilter, after: tuple[int, str] | None, most: int) -> list[Run]:
        """The first of these runs that match."""
        found: list[Run] = []
        for first in range(0, len(names), MOST_AT_ONCE):
            some = names[first : first + MOST_AT_ONCE]
            keys = listing(self._bytes(name) for name in some)
            select = f"SELECT id, record FROM {self._tables.runs} WHERE ns = {self._ns} AND id IN {keys}"
            (rows,), _ = self._read(select)
            by_name = {bytes(name).decode(): text for name, text in rows}
            for name in some:
                run = run_of(name, by_name[name]) if name in by_name else None
                if isinstance(run, RecordUnreadable):
                    raise run
                if run is not None and wanted.fits(run) and (after is None or (run.created_at, run.id) < after):
                    found.append(run)
                    if len(found) == most:
                        return found
        return found

    def _sources(self, wanted: RunFilter, after: tuple[int, str] | None, rows: int) -> Iterator[RunSource]:
        within = _span(wanted, after)

        def newest(name: str, table: str, where: str) -> str:
            """The newest runs, within the times of the filter and after the cursor."""
            if after is not None:
                where += f" AND (created_at < {int(after[0])} OR {name} < {self._bytes(after[1])})"
            select = f"SELECT created_at, {name} FROM {table} WHERE ns = {self._ns} AND {where}{within}"
            return self._dialect.limited(f"{select} ORDER BY created_at DESC, {name} DESC", rows)

        tables = self._tables
        for name, value in wanted.attributes.items():
            term = self._literal(digest(*attribute_term(name, value)))
            yield RunSource((newest("run", tables.attributes, f"term = {term}"),), ordered=True)
        if wanted.prefix:
            where = f"id >= {self._bytes(wanted.prefix)}"
            if (end := end_of_prefix(wanted.prefix)) is not None:
                where += f" AND id < {self._bytes(end)}"
            select = f"SELECT created_at, id FROM {tables.runs} WHERE ns = {self._ns} AND {where} ORDER BY id"
            yield RunSource((self._dialect.limited(select, rows),), ordered=False)
        if wanted.workflow or wanted.statuses or not wanted.attributes:
            of = f"workflow = {self._bytes(wanted.workflow)} AND " if wanted.workflow else ""
            statuses = (self._bytes(status) for status in dict.fromkeys(wanted.statuses or SHOWN))
            parts = tuple(newest("id", tables.runs, f"{of}status = {status}") for status in statuses)
            yield RunSource(parts, ordered=True)


def _span(wanted: RunFilter, after: tuple[int, str] | None) -> str:
    """The times of the filter and of the cursor, as conditions on an index."""
    found = ""
    if wanted.since is not None:
        found += f" AND created_at >= {int(wanted.since)}"
    if wanted.until is not None:
        found += f" AND created_at < {int(wanted.until)}"
    return found if after is None else f"{found} AND created_at <= {int(after[0])}"


def _page(found: list[Run], limit: int, now: int) -> RunPage:
    runs = tuple(found[:limit])
    following = (runs[-1].created_at, runs[-1].id) if len(found) > limit else None
    return RunPage(runs=runs, next=following, now=now)
