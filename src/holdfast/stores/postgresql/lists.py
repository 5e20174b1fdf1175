"""Lists of locks and runs on PostgreSQL, and counts: statements outside of decisions, found through indexes.

Runs with the statuses and the workflow of the filter are scanned from the newest on, in growing steps. If the page is
not full after a step, the runs with the prefix or the attributes are looked up directly, unless there are more of them
than were scanned already. So a list costs about as much as the cheaper of the two ways.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from ...commands import ListLocks, LockPage
from ...commands.purging import ListEndedRuns, ListEndedWorkflows
from ...commands.runs import ListRuns
from ...errors import RecordUnreadable
from ...rules.lock_record import decode
from ...rules.runs.outcomes import EndedRuns, EndedWorkflows, RunCounts, RunPage
from ...rules.runs.record import SHOWN, Run
from ...rules.runs.repository import RunFilter
from ..common import at_least_one, end_of_prefix, listed
from . import statements as sql
from .answers import encoded
from .records import run_of
from .session import Rows, Statement

MAX_PAGE = 2**31 - 2
NEVER = 2**63 - 1
FIRST_ROWS = 256
FACTOR = 8

_SETTINGS = """
SELECT set_config('enable_seqscan', 'off', true), set_config('enable_bitmapscan', $1, true),
       set_config('plan_cache_mode', 'force_generic_plan', true)
"""
LOCKS = """
SELECT o.key, o.record::text FROM holdfast.locks AS o
 WHERE o.namespace = $1 AND (o.key > $2 OR o.key = $3) AND o.key >= $2 {end} ORDER BY o.key LIMIT $4::bigint
"""
# Two statements, because the plan is made once for all values: an optional end would not be a bound of the index.
ALL_LOCKS, LOCKS_BEFORE = LOCKS.format(end=""), LOCKS.format(end="AND o.key < $5")
COUNT_RUNS = f"""
SELECT o.type, count(*) FROM holdfast.runs AS o WHERE o.namespace = $1 AND o.{sql.LIVING} GROUP BY 1
"""
# Both sides are written by the same code, so attributes are compared as text: the JSON operators of PostgreSQL fail on
# the escape of a NUL.
_HAS_ATTRIBUTES = r"""NOT EXISTS (
    SELECT FROM jsonb_array_elements({wanted}) AS w
     WHERE strpos(x.attributes::text, (w->>0) || ':' || (w->>1)) = 0
        OR NOT EXISTS (
            SELECT FROM regexp_matches(x.attributes::text, '("(?:[^"\\]|\\.)*"):("(?:[^"\\]|\\.)*"|[^",}}]+)', 'g') AS a
             WHERE a[1] = w->>0 AND a[2] = w->>1))"""
_IN_ORDER = """
    AND o.created_at >= $4::bigint AND (o.created_at, o.id || '') < ($5::bigint, $6)
  ORDER BY o.created_at DESC, (o.id || '') DESC LIMIT $7::bigint"""
ENDED = """
SELECT o.ended_at, o.id FROM holdfast.runs AS o
 WHERE o.namespace || '#' = $1 || '#' AND o.workflow || '' = $2 AND o.status || '' = $3 AND o.ended_at IS NOT NULL
   AND o.parent = '' AND (o.ended_at, o.id || '') > ($4::bigint, $5) AND o.ended_at < $6::bigint
 ORDER BY o.ended_at, (o.id || '') LIMIT $7::bigint
"""
NEXT_WORKFLOW = """
SELECT o.workflow || '' FROM holdfast.runs AS o
 WHERE o.namespace || '#' = $1 || '#' AND o.workflow || '' > $2 AND o.ended_at IS NOT NULL AND o.parent = ''
 ORDER BY (o.workflow || '') LIMIT 1
"""
# How many rows were scanned, the last of them, and the ids of the runs that match.
STEP = f"""
WITH seen AS MATERIALIZED (
    SELECT x.created_at, x.id, starts_with(x.id, $8) AND {_HAS_ATTRIBUTES.format(wanted="$9::jsonb")} AS fits
      FROM jsonb_array_elements_text($3::jsonb) AS s(status) CROSS JOIN LATERAL (
          (SELECT o.created_at, o.id, o.attributes FROM holdfast.runs AS o
            WHERE $2 = '' AND o.namespace || '' = $1 AND o.status || '' = s.status {_IN_ORDER})
          UNION ALL
          (SELECT o.created_at, o.id, o.attributes FROM holdfast.runs AS o
            WHERE $2 <> '' AND o.namespace || '/' = $1 || '/' AND o.workflow || '' = $2 AND o.status || '' = s.status
              {_IN_ORDER})) AS x
     ORDER BY x.created_at DESC, x.id DESC LIMIT $7::bigint)
SELECT count(*), min(s.created_at), (array_agg(s.id ORDER BY s.created_at, s.id))[1],
       coalesce(jsonb_agg(s.id ORDER BY s.created_at DESC, s.id DESC) FILTER (WHERE s.fits), '[]')::text
  FROM seen AS s
"""
BY_PREFIX = """
SELECT o.id FROM holdfast.runs AS o WHERE o.namespace = $1 AND o.id >= $2 AND o.id < $3 LIMIT $4::bigint
"""
BY_ATTRIBUTES = """
SELECT o.id FROM holdfast.runs AS o
 WHERE o.attributes::text <> '{}' AND holdfast.attribute_terms(o.namespace, o.attributes) @> ARRAY(
       SELECT holdfast.attribute_term($1, w->>0, w->>1) FROM jsonb_array_elements($2::jsonb) AS w) LIMIT $3::bigint
"""
# The newest of these runs that match.
CHOSEN = f"""
SELECT x.id FROM jsonb_array_elements_text($2::jsonb) AS k(id)
 CROSS JOIN LATERAL (SELECT * FROM holdfast.runs AS o WHERE o.namespace = $1 AND o.id = k.id LIMIT 1) AS x
 WHERE $3::jsonb @> to_jsonb(x.status) AND $4 IN ('', x.workflow) AND x.created_at >= $5::bigint
   AND (x.created_at, x.id) < ($6::bigint, $7) AND starts_with(x.id, $8)
   AND {_HAS_ATTRIBUTES.format(wanted="$9::jsonb")}
 ORDER BY x.created_at DESC, x.id DESC LIMIT $10::bigint
"""


class Trips(Protocol):
    """Sends statements."""

    def read_rows(self, statements: Sequence[Statement]) -> list[Rows]:
        """Send statements together, in a transaction of their own, and return their rows."""


class ListReader:
    """Reads of one moment."""

    def __init__(self, trips: Trips, *, schema: str, namespace: str, at: bytes | None) -> None:
        self._trips, self._schema, self._namespace, self._at = trips, schema, namespace.encode(), at
        self._now = 0

    def _rows(self, text: str, *values: bytes | None, bitmaps: bool = False) -> Rows:
        time = Statement(sql.placed(sql.TIME, self._schema), (self._at,))
        settings = Statement(sql.placed(_SETTINGS, self._schema), (b"on" if bitmaps else b"off",))
        wanted = Statement(sql.placed(text, self._schema), (self._namespace, *values))
        _, rows, now = self._trips.read_rows((settings, wanted, time))
        self._now = int(now[0][0] or b"0")
        return rows

    def list_locks(self, command: ListLocks) -> LockPage:
        """A page of locks, in the order of their keys."""
        _check(command.prefix, command.after)
        limit, prefix = min(at_least_one(command.limit), MAX_PAGE), command.prefix.encode()
        start, also = (command.after.encode(), None) if command.after >= command.prefix else (prefix, prefix)
        stop = end_of_prefix(command.prefix)
        statement, end = (ALL_LOCKS, ()) if stop is None else (LOCKS_BEFORE, (stop.encode(),))
        rows = self._rows(statement, start, also, str(limit + 1).encode(), *end)
        found = [((key or b"").decode(), text or b"") for key, text in rows]
        items = []
        for key, text in found[:limit]:
            try:
                items.append(listed(key, decode(key, text), self._now))
            except RecordUnreadable as error:
                items.append(listed(key, error, self._now))
        return LockPage(items=tuple(items), next=found[limit - 1][0] if len(found) > limit else None, now=self._now)

    def count_runs(self) -> RunCounts:
        """The number of runs of each type that have not ended."""
        return RunCounts(counts={(kind or b"").decode(): int(many or b"0") for kind, many in self._rows(COUNT_RUNS)})

    def list_ended(self, command: ListEndedRuns) -> EndedRuns:
        """A page of runs that ended with one status, by the time of their end."""
        _check(command.workflow, command.status)
        limit = min(at_least_one(command.limit), MAX_PAGE)
        first, name = command.after or (-NEVER, "")
        rows = self._rows(
            ENDED, command.workflow.encode(), command.status.encode(), str(first).encode(), name.encode(),
            str(command.before).encode(), str(limit + 1).encode(),
        )  # fmt: skip
        found = tuple((int(at or b"0"), (run or b"").decode()) for at, run in rows)
        return EndedRuns(runs=found[:limit], next=found[limit - 1] if len(found) > limit else None, now=self._now)

    def ended_workflows(self, command: ListEndedWorkflows) -> EndedWorkflows:
        """A page of the names of workflows with such runs: one search in the index for each."""
        _check(command.after)
        limit = at_least_one(command.limit)
        found: list[str] = []
        while len(found) <= limit:
            rows = self._rows(NEXT_WORKFLOW, (found[-1] if found else command.after).encode())
            if not rows:
                break
            found.append((rows[0][0] or b"").decode())
        more = found[limit - 1] if len(found) > limit else None
        return EndedWorkflows(names=tuple(found[:limit]), next=more, now=self._now)

    def list_runs(self, command: ListRuns) -> RunPage:
        """A page of runs, the newest first; one more is read, to know whether there are more."""
        _check(command.wanted.workflow, command.wanted.prefix, *command.wanted.statuses)
        limit = min(at_least_one(command.limit), MAX_PAGE)
        names = self._found(command.wanted, command.after, limit)
        by_name = dict(run_of(row[0] or b"") for row in self._rows(sql.RUNS, encoded(names[:limit])))
        runs: list[Run] = []
        for name in names[:limit]:
            run = by_name.get(name)
            if isinstance(run, RecordUnreadable):
                raise run
            runs += [run] if run is not None else []
        following = (runs[-1].created_at, runs[-1].id) if len(names) > limit and runs else None
        return RunPage(runs=tuple(runs), next=following, now=self._now)

    def _found(self, wanted: RunFilter, after: tuple[int, str] | None, limit: int) -> list[str]:
        statuses = encoded(list(dict.fromkeys(wanted.statuses)) or SHOWN)
        attributes = encoded([(_json(name), _json(value)) for name, value in wanted.attributes.items()])
        since = str(-NEVER if wanted.since is None else wanted.since).encode()
        ends = [(NEVER, ""), *([(wanted.until, "")] if wanted.until is not None else []), *([after] if after else [])]
        first_at, first_id = next_at, next_id = min(ends)
        narrow = bool(wanted.prefix or wanted.attributes)
        room = max(limit + 1, FIRST_ROWS) if narrow else limit + 1
        found: list[str] = []
        while True:
            ((many, last_at, last_id, fitting),) = self._rows(
                STEP, wanted.workflow.encode(), statuses, since, str(next_at).encode(), next_id.encode(),
                str(room).encode(), wanted.prefix.encode(), attributes,
            )  # fmt: skip
            found += msgspec.json.decode(fitting or b"[]")
            if int(many or b"0") < room or len(found) > limit:
                return found
            few = self._few(wanted, attributes, room)
            if few is not None:
                rows = self._rows(
                    CHOSEN, encoded(few), statuses, wanted.workflow.encode(), since, str(first_at).encode(),
                    first_id.encode(), wanted.prefix.encode(), attributes, str(limit + 1).encode(),
                )  # fmt: skip
                return [(row[0] or b"").decode() for row in rows]
            next_at, next_id = int(last_at or b"0"), (last_id or b"").decode()
            room *= FACTOR

    def _few(self, wanted: RunFilter, attributes: bytes, room: int) -> list[str] | None:
        """All runs with the prefix or the attributes, in no order; None if there are more than `room`."""
        most = str(room + 1).encode()
        stop = end_of_prefix(wanted.prefix)
        ways: list[tuple[str, tuple[bytes, ...], bool]] = []
        if stop is not None:
            ways.append((BY_PREFIX, (wanted.prefix.encode(), stop.encode(), most), False))
        if wanted.attributes:
            ways.append((BY_ATTRIBUTES, (attributes, most), True))
        for text, values, bitmaps in ways:
            rows = self._rows(text, *values, bitmaps=bitmaps)
            if len(rows) <= room:
                return [(row[0] or b"").decode() for row in rows]
        return None


def _json(value: Any) -> str:
    return encoded(value).decode()


def _check(*texts: object) -> None:
    for text in texts:
        if type(text) is not str:
            raise TypeError(f"{text!r} is not text")
