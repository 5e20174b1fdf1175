"""The statements with which a PostgreSQL store reads and locks rows, so that the rules can decide in Python.

`$1` is the namespace, `$2` a JSON list of keys, in the order in which rows are locked. Every row is looked up by its
key (LATERAL): the server has no statistics for a table that is new or has just grown, and a plan that is made then
stays for the session. The statements that write are in `writing.py`.
"""

from __future__ import annotations

import re
from functools import cache

from ...rules.slot import EXECUTION
from .functions import functions_for, quoted

_NAMED = re.compile(r"\bholdfast\.(\w+)")
LIVING = "status IN ('queued', 'pending', 'running', 'suspended', 'blocked')"
NOW = "current_setting('holdfast_step.now')::bigint"
MINE = "jsonb_array_elements_text(current_setting('holdfast_step.mine')::jsonb)"
BOUND = "current_setting('holdfast_step.bound')::bigint"


@cache
def placed(text: str, schema: str) -> bytes:
    """A statement with the names of tables and functions as they are in this schema."""
    mine = functions_for(schema)

    def named(found: re.Match[str]) -> str:
        return mine.called(found[1]).decode() if found[1] in mine.names else f"{quoted(schema)}.{found[1]}"

    return " ".join(_NAMED.sub(named, text).split()).encode()


BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"
LOOK = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
SETTINGS = """
SELECT set_config('lock_timeout', $1, x.local), set_config('enable_seqscan', 'off', x.local),
       set_config('enable_hashjoin', 'off', x.local), set_config('enable_mergejoin', 'off', x.local),
       set_config('plan_cache_mode', 'force_generic_plan', x.local)
  FROM (SELECT $2::boolean AS local) AS x
"""
# An answered command survives a power failure, and a paused client keeps no row locked for longer than a second.
GUARDS = """
SELECT set_config('idle_in_transaction_session_timeout', $1, x.local), CASE
       WHEN current_setting('synchronous_commit') = 'off' THEN set_config('synchronous_commit', 'on', x.local) END
  FROM (SELECT $2::boolean AS local) AS x
"""
# How long a single transaction waits for a lock.
PATIENCE = "SELECT set_config('lock_timeout', $1, true)"
TIME = "SELECT set_config('holdfast_step.now', coalesce($1, holdfast.clock()::text), true)"

# -- locking -----------------------------------------------------------------------------------------------------

ALONE = "SELECT pg_advisory_xact_lock(n.number::bigint) FROM jsonb_array_elements_text($1::jsonb) AS n(number)"
SHARED = "SELECT pg_advisory_xact_lock_shared(n.number::bigint) FROM jsonb_array_elements_text($1::jsonb) AS n(number)"
# The same without waiting: returns the numbers that another transaction has locked.
TRY_ALONE = """
SELECT n.number FROM jsonb_array_elements_text($1::jsonb) AS n(number)
 WHERE NOT pg_try_advisory_xact_lock(n.number::bigint)
"""
TRY_SHARED = """
SELECT n.number FROM jsonb_array_elements_text($1::jsonb) AS n(number)
 WHERE NOT pg_try_advisory_xact_lock_shared(n.number::bigint)
"""
LOCK_WORKERS = """
SELECT x.id FROM jsonb_array_elements_text($2::jsonb) AS k(id)
 CROSS JOIN LATERAL (SELECT o.id FROM holdfast.workers AS o WHERE o.namespace = $1 AND o.id = k.id {how}) AS x
"""
LOCK_RUNS = """
SELECT x.id FROM jsonb_array_elements_text($2::jsonb) AS k(id)
 CROSS JOIN LATERAL (SELECT o.id FROM holdfast.runs AS o WHERE o.namespace = $1 AND o.id = k.id {how}) AS x
"""
LOCK_SLOTS = """
SELECT x.scope, x.owner, x.key FROM jsonb_array_elements($2::jsonb) AS k(a)
 CROSS JOIN LATERAL (SELECT o.scope, o.owner, o.key FROM holdfast.slots AS o
                      WHERE o.namespace = $1 AND o.scope = k.a->>0 AND o.owner = k.a->>1 AND o.key = k.a->>2 {how}) AS x
"""
LOCK_LOCKS = """
SELECT x.key FROM jsonb_array_elements_text($2::jsonb) AS k(key)
 CROSS JOIN LATERAL (SELECT o.key FROM holdfast.locks AS o WHERE o.namespace = $1 AND o.key = k.key {how}) AS x
"""
# The time until which runs are due for a claim. It only selects them: the rules use a later time.
TAKE_BOUND = "SELECT set_config('holdfast_step.bound', coalesce($1, holdfast.clock()::text), true)"
# The first due runs of each type that no other transaction has locked: [type, how many of each kind]. $3: not these.
LOCK_DUE = f"""
SELECT set_config('holdfast_step.mine', coalesce(jsonb_agg(y.id)::text, '[]'), true) FROM (
    SELECT x.id FROM jsonb_array_elements($2::jsonb) AS k(a) CROSS JOIN LATERAL (
        SELECT * FROM (SELECT o.id FROM holdfast.runs AS o
                        WHERE o.namespace = $1 AND o.type = k.a->>0 AND o.due_at < 0 AND o.{LIVING}
                          AND NOT $3::jsonb ? o.id
                        ORDER BY o.due_at, o.id LIMIT (k.a->>1)::bigint FOR UPDATE SKIP LOCKED) AS at_once
        UNION ALL
        SELECT * FROM (SELECT o.id FROM holdfast.runs AS o
                        WHERE o.namespace = $1 AND o.type = k.a->>0 AND o.{LIVING}
                          AND o.due_at BETWEEN 0 AND {BOUND} AND NOT $3::jsonb ? o.id
                        ORDER BY o.due_at, o.id LIMIT (k.a->>1)::bigint FOR UPDATE SKIP LOCKED) AS by_time) AS x) AS y
"""
LOCK_OWNED = """
SELECT x.id FROM jsonb_array_elements($2::jsonb) AS k(a)
 CROSS JOIN LATERAL (SELECT o.id FROM holdfast.runs AS o
                      WHERE o.namespace = $1 AND o.worker = k.a->>0 AND o.worker <> ''
                      ORDER BY o.id LIMIT (k.a->>1)::bigint FOR UPDATE SKIP LOCKED) AS x
"""

# -- records by their keys ---------------------------------------------------------------------------------------

# Attempts whose session has ended (advisory=true): they neither hold nor wait any more.
_SEVERED = """CASE WHEN strpos(x.record::text, '"session"') > 0 THEN (
    SELECT jsonb_agg(h->'id')::text FROM jsonb_path_query(x.record, '$.*[*]') AS h
     WHERE h->'session' IS NOT NULL AND pg_try_advisory_xact_lock_shared((h->>'session')::bigint)) END"""
RUNS = """
SELECT row_to_json(x)::text FROM jsonb_array_elements_text($2::jsonb) AS k(id)
 CROSS JOIN LATERAL (SELECT * FROM holdfast.runs AS o WHERE o.namespace = $1 AND o.id = k.id LIMIT 1) AS x
"""
RUNS_BY_KEY = """
SELECT k.a->>0, k.a->>1, x.id FROM jsonb_array_elements($2::jsonb) AS k(a)
 CROSS JOIN LATERAL (SELECT o.id FROM holdfast.runs AS o WHERE o.namespace = $1 AND o.workflow = k.a->>0
                        AND o.key = k.a->>1 AND o.key <> '' LIMIT 1) AS x
"""
ENTRIES = """
SELECT k.a->>0, k.a->>1, x.entry FROM jsonb_array_elements($2::jsonb) AS k(a)
 CROSS JOIN LATERAL (SELECT o.entry FROM holdfast.journal AS o WHERE o.namespace = $1 AND o.run = k.a->>0
                      ORDER BY o.number LIMIT (k.a->>2)::bigint) AS x
"""
EVENTS = """
SELECT k.a->>0, k.a->>1, x.number, x.key, x.event::text FROM jsonb_array_elements($2::jsonb) AS k(a)
 CROSS JOIN LATERAL (SELECT o.number, o.key, o.event FROM holdfast.events AS o
                      WHERE o.namespace = $1 AND o.run = k.a->>0 AND o.number > (k.a->>1)::bigint
                      ORDER BY o.number) AS x
"""
EVENTS_BY_KEY = """
SELECT k.a->>0, k.a->>1, x.number FROM jsonb_array_elements($2::jsonb) AS k(a)
 CROSS JOIN LATERAL (SELECT o.number FROM holdfast.events AS o WHERE o.namespace = $1 AND o.run = k.a->>0
                        AND o.key = k.a->>1 AND o.key <> '' LIMIT 1) AS x
"""
WORKERS = f"""
SELECT w.id, w.worker::text, x.record::text, {_SEVERED} FROM holdfast.workers AS w
  LEFT JOIN LATERAL (SELECT o.record FROM holdfast.locks AS o
                      WHERE o.namespace = $1 AND o.key = 'worker/' || w.id LIMIT 1) AS x ON true
 WHERE w.namespace = $1
"""
LOCKS = f"""
SELECT k.key, x.record::text, {_SEVERED} FROM jsonb_array_elements_text($2::jsonb) AS k(key)
 CROSS JOIN LATERAL (SELECT o.record FROM holdfast.locks AS o WHERE o.namespace = $1 AND o.key = k.key LIMIT 1) AS x
"""
# The same for a single lock, which is waited for and locked before the time is taken. A statement that has waited for a
# row returns it as it is now (FOR UPDATE), and evaluates its select list after that.
LOCK_ALONE = f"""
SELECT k.key, x.record::text, {_SEVERED}, set_config('holdfast_step.now', coalesce($3, holdfast.clock()::text), true)
  FROM jsonb_array_elements_text($2::jsonb) AS k(key)
  LEFT JOIN LATERAL (SELECT o.record FROM holdfast.locks AS o WHERE o.namespace = $1 AND o.key = k.key FOR UPDATE) AS x
    ON true
"""
TERMS = """
SELECT x.workflow, x.terms::text FROM jsonb_array_elements_text($2::jsonb) AS k(workflow)
 CROSS JOIN LATERAL (SELECT o.workflow, o.terms FROM holdfast.terms AS o
                      WHERE o.namespace = $1 AND o.workflow = k.workflow LIMIT 1) AS x
"""
SLOTS = """
SELECT x.scope, x.owner, x.key, x.version, x.value, x.past::text FROM jsonb_array_elements($2::jsonb) AS k(a)
 CROSS JOIN LATERAL (SELECT * FROM holdfast.slots AS o WHERE o.namespace = $1 AND o.scope = k.a->>0
                        AND o.owner = k.a->>1 AND o.key = k.a->>2 LIMIT 1) AS x
"""

SLOTS_OF = f"""
SELECT k.owner, x.key FROM jsonb_array_elements_text($2::jsonb) AS k(owner)
 CROSS JOIN LATERAL (SELECT o.key FROM holdfast.slots AS o WHERE o.namespace = $1 AND o.scope = '{EXECUTION}'
                        AND o.owner = k.owner OFFSET 0) AS x
"""

# -- the records of runs that LOCK_DUE has locked ------------------------------------------------------------

CLAIMED_RUNS = f"""
SELECT row_to_json(x)::text FROM {MINE} AS k(id)
 CROSS JOIN LATERAL (SELECT * FROM holdfast.runs AS o WHERE o.namespace = $1 AND o.id = k.id LIMIT 1) AS x
"""
CLAIMED_ENTRIES = f"""
SELECT k.id, x.entry FROM {MINE} AS k(id)
 CROSS JOIN LATERAL (SELECT o.entry FROM holdfast.journal AS o WHERE o.namespace = $1 AND o.run = k.id
                      ORDER BY o.number) AS x
"""
CLAIMED_EVENTS = f"""
SELECT k.id, x.number, x.key, x.event::text FROM {MINE} AS k(id)
 CROSS JOIN LATERAL (SELECT o.number, o.key, o.event FROM holdfast.events AS o
                      WHERE o.namespace = $1 AND o.run = k.id ORDER BY o.number) AS x
"""
CLAIMED_LOCKS = f"""
SELECT y.key, x.record::text, {_SEVERED} FROM {MINE} AS k(id)
 CROSS JOIN LATERAL (SELECT * FROM holdfast.runs AS o WHERE o.namespace = $1 AND o.id = k.id LIMIT 1) AS r
 CROSS JOIN LATERAL (SELECT 'run/' || replace(replace(r.workflow, '%', '%25'), '/', '%2F') || '/'
                            || replace(replace(r.id, '%', '%25'), '/', '%2F') AS key
                     UNION ALL SELECT l->>1 FROM json_array_elements(
                         CASE WHEN json_typeof(r.rest->'locks') = 'array' THEN r.rest->'locks' END) AS l) AS y
 CROSS JOIN LATERAL (SELECT o.record FROM holdfast.locks AS o WHERE o.namespace = $1 AND o.key = y.key LIMIT 1) AS x
"""

# -- ordered lists and counts: [name, ..., limit] ----------------------------------------------------------------

RUNS_AT_ONCE = f"""
SELECT k.a->>0, x.due_at, x.id FROM jsonb_array_elements($2::jsonb) AS k(a)
 CROSS JOIN LATERAL (SELECT o.due_at, o.id FROM holdfast.runs AS o
                      WHERE o.namespace = $1 AND o.type = k.a->>0 AND o.due_at < 0 AND o.{LIVING}
                      ORDER BY o.due_at, o.id LIMIT (k.a->>1)::bigint) AS x
"""
RUNS_BY_TIME = f"""
SELECT k.a->>0, x.due_at, x.id FROM jsonb_array_elements($2::jsonb) AS k(a)
 CROSS JOIN LATERAL (SELECT o.due_at, o.id FROM holdfast.runs AS o
                      WHERE o.namespace = $1 AND o.type = k.a->>0 AND o.due_at >= 0 AND o.{LIVING}
                      ORDER BY o.due_at, o.id LIMIT (k.a->>1)::bigint) AS x
"""
# The next run after those that LOCK_DUE has locked: one that is due at once, [type, due_at, id]; and the first not due.
NEXT_AT_ONCE = f"""
SELECT k.a->>0, x.due_at, x.id FROM jsonb_array_elements($2::jsonb) AS k(a)
 CROSS JOIN LATERAL (SELECT o.due_at, m.id FROM {MINE} AS m(id) CROSS JOIN LATERAL (
                         SELECT r.due_at FROM holdfast.runs AS r WHERE r.namespace = $1 AND r.id = m.id
                            AND r.type = k.a->>0 AND r.due_at < 0 LIMIT 1) AS o
                      ORDER BY o.due_at DESC, m.id COLLATE "C" DESC LIMIT 1) AS y
 CROSS JOIN LATERAL (SELECT o.due_at, o.id FROM holdfast.runs AS o
                      WHERE o.namespace = $1 AND o.type = k.a->>0 AND o.due_at < 0 AND o.{LIVING}
                        AND (o.due_at, o.id) > (y.due_at, y.id)
                      ORDER BY o.due_at, o.id LIMIT 1) AS x
"""
NEXT_BY_TIME = f"""
SELECT k.a->>0, x.due_at, x.id FROM jsonb_array_elements($2::jsonb) AS k(a)
 CROSS JOIN LATERAL (SELECT o.due_at, o.id FROM holdfast.runs AS o
                      WHERE o.namespace = $1 AND o.type = k.a->>0 AND o.due_at > {BOUND} AND o.{LIVING}
                      ORDER BY o.due_at, o.id LIMIT 1) AS x
"""
RUNS_OF = """
SELECT row_to_json(x)::text FROM jsonb_array_elements($2::jsonb) AS k(a)
 CROSS JOIN LATERAL (SELECT * FROM holdfast.runs AS o WHERE o.namespace = $1 AND o.worker = k.a->>0 AND o.worker <> ''
                      ORDER BY o.id LIMIT (k.a->>1)::bigint) AS x
"""
MEMBERS = """
SELECT k.a->>0, k.a->>1, x.rank, x.arrival, x.run FROM jsonb_array_elements($2::jsonb) AS k(a)
 CROSS JOIN LATERAL (SELECT o.rank, o.arrival, o.run FROM holdfast.places AS o
                      WHERE o.namespace = $1 AND o.party = k.a->>0 AND o.queued = (k.a->>1)::boolean
                      ORDER BY o.rank, o.arrival, o.run LIMIT (k.a->>2)::bigint) AS x
"""
LATEST_ARRIVALS = """
SELECT k.a->>0, k.a->>1, k.a->>2, x.arrival, x.run FROM jsonb_array_elements($2::jsonb) AS k(a)
 CROSS JOIN LATERAL (SELECT o.arrival, o.run FROM holdfast.places AS o
                      WHERE o.namespace = $1 AND o.party = k.a->>0 AND o.queued = (k.a->>1)::boolean
                        AND o.rank = (k.a->>2)::bigint
                      ORDER BY o.arrival DESC, o.run DESC LIMIT (k.a->>3)::bigint) AS x
"""
GROUP_SIZES = """
SELECT k.a->>0, k.a->>1, x.many FROM jsonb_array_elements($2::jsonb) AS k(a)
 CROSS JOIN LATERAL (SELECT count(*) AS many FROM holdfast.places AS o
                      WHERE o.namespace = $1 AND o.party = k.a->>0 AND o.queued = (k.a->>1)::boolean) AS x
"""
CROWDED = """
SELECT x.workflow, x.place::text, x.many FROM jsonb_array_elements_text($2::jsonb) AS k(workflow)
 CROSS JOIN LATERAL (SELECT o.workflow, o.place, count(*) AS many FROM holdfast.places AS o
                      WHERE o.namespace = $1 AND o.workflow = k.workflow AND o.queued GROUP BY 1, 2) AS x
"""
LATEST_STARTS = """
SELECT k.a->>0, x.at, x.run FROM jsonb_array_elements($2::jsonb) AS k(a)
 CROSS JOIN LATERAL (SELECT o.at, o.run FROM holdfast.starts AS o WHERE o.namespace = $1 AND o.party = k.a->>0
                      ORDER BY o.at DESC, o.run DESC LIMIT (k.a->>1)::bigint) AS x
"""
STARTS_TO_COME = f"""
SELECT k.party, x.many FROM jsonb_array_elements_text($2::jsonb) AS k(party)
 CROSS JOIN LATERAL (SELECT count(*) AS many FROM holdfast.starts AS o
                      WHERE o.namespace = $1 AND o.party = k.party AND o.at > {NOW}) AS x
"""
DUE_LOCKS = f"""
SELECT o.due_at, o.key FROM holdfast.locks AS o WHERE o.namespace = $1 AND o.due_at <= {NOW}
 ORDER BY o.due_at, o.key LIMIT $2::bigint
"""
LOCKS_AFTER = """
SELECT o.key FROM holdfast.locks AS o WHERE o.namespace = $1 AND o.key > $2 ORDER BY o.key LIMIT $3::bigint
"""
