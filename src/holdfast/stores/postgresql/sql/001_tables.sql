-- Holdfast on PostgreSQL: the tables, version 1.
--
-- A row of `locks` is the record of one key in one namespace: its holders, its waiters in order, and the highest token
-- that was ever issued for it (the fence). A row of `slots` is one value that changes only by compare-and-swap. A row
-- of `records` is one record of any other type, whose rules are in the library too. A row of `runs` is a run; its
-- history is its rows in `journal`, in order, the first of which (number 0) is its input; its inbox is its rows in
-- `events`. A row of `workers` is a process that drives runs; it counts as running while the lock 'worker/<id>' is
-- held. A row of `terms` holds the limits of a workflow. A row of `places` is a run that a limit has admitted or queued
-- and that has not ended: the runs of one `party` are counted together; or a run that waits for a lock and is not
-- listed in the lock's record (party '#lock/<key>'). A row of `starts` is a start that a limit on starts counts.
--
-- The rules are in the library, in Python: a client locks the rows that a decision may write, reads them, decides and
-- writes, in one transaction (repository.py); a frequent command is one statement (fast_path.sql). Functions are not
-- part of this version: each release of Holdfast has a set of its own (functions.py), and a row of `functions` is one
-- such set.
--
-- All times are microseconds since 1970 by this server's clock, all durations microseconds. In a record, fields with
-- their default value are left out, and fields that this version does not know are kept. Values of users (entries,
-- payloads, results, attributes) are JSON as text or `json`: jsonb would refuse the escape of a NUL. A new entry of a
-- run changes no indexed column, so that the versions of its row stay on one page and no index is updated.
--
-- To read it:    SELECT * FROM holdfast.holders;  SELECT * FROM holdfast.waiters;
--                SELECT * FROM holdfast.run_list WHERE status = 'failed';
--                SELECT number, entry FROM holdfast.journal WHERE run = '...' ORDER BY number;
-- Do not delete or change rows by hand: the fence of a deleted row of `locks` is lost, and the worker of a run relies
-- on the fence of its row. Use the library's force_release.

CREATE TABLE holdfast.about (
    version       integer NOT NULL,  -- of these tables
    oldest_client integer NOT NULL   -- clients of at least this version may use the tables as they are now
);
INSERT INTO holdfast.about VALUES (1, 1);

CREATE TABLE holdfast.functions (
    digest  text COLLATE "C" PRIMARY KEY,  -- of their text and of `version`; their names end with it
    version integer NOT NULL,              -- of the tables that they were written for
    release text NOT NULL,                 -- of the Holdfast that made them
    made_at timestamptz NOT NULL DEFAULT now(),
    used_at timestamptz NOT NULL DEFAULT now()  -- when a client last reported that it uses them, to the hour
);

-- Rows of the tables below change all the time. By the server's defaults a table of a million rows would be vacuumed
-- when it has 200,000 dead rows, and analysed when 100,000 have changed; and slowly, while more rows become dead.

CREATE TABLE holdfast.locks (
    namespace text COLLATE "C" NOT NULL,  -- separates applications
    key       text COLLATE "C" NOT NULL,  -- what is locked, as the caller names it
    record    jsonb NOT NULL,             -- kind, permits, fence, version, holders, waiters, overflow, tombstones, ...
    due_at    bigint,                     -- when something in a record with waiters expires; NULL without waiters
    PRIMARY KEY (namespace, key)
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02,
        autovacuum_vacuum_cost_limit = 1000);

CREATE INDEX locks_due ON holdfast.locks (namespace, due_at) WHERE due_at IS NOT NULL;

CREATE TABLE holdfast.slots (
    namespace text COLLATE "C" NOT NULL,
    scope     text COLLATE "C" NOT NULL,  -- 'global', 'workflow' or 'execution'
    owner     text COLLATE "C" NOT NULL,  -- the workflow's name or the run's id; empty in the shared scope
    key       text COLLATE "C" NOT NULL,
    version   bigint NOT NULL,            -- how many times it was written
    value     text,                       -- JSON; NULL after a deletion
    past      jsonb NOT NULL,             -- the last write's id, the last write of each writer, a reservation
    PRIMARY KEY (namespace, scope, owner, key)
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02,
        autovacuum_vacuum_cost_limit = 1000);

CREATE TABLE holdfast.records (
    namespace text COLLATE "C" NOT NULL,
    kind      text COLLATE "C" NOT NULL,  -- the name of its type
    key       text COLLATE "C" NOT NULL,
    record    text NOT NULL,              -- JSON
    due_at    bigint,                     -- when something in it expires or is due; NULL: never
    PRIMARY KEY (namespace, kind, key)
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02,
        autovacuum_vacuum_cost_limit = 1000);

CREATE INDEX records_due ON holdfast.records (namespace, kind, due_at, key) WHERE due_at IS NOT NULL;

CREATE TABLE holdfast.runs (
    namespace  text COLLATE "C" NOT NULL,
    id         text COLLATE "C" NOT NULL,
    type       text COLLATE "C" NOT NULL,  -- the workflow's name, with @version if any; @*: its first worker sets it
    workflow   text COLLATE "C" NOT NULL,  -- the type without the version
    status     text COLLATE "C" NOT NULL,  -- queued, pending, running, suspended, blocked,
                                           -- completed, failed, cancelled, timed_out; purged: counts as absent
    created_at bigint NOT NULL,
    due_at     bigint,                     -- from when on it may be claimed; below 0: at once; NULL: not now
    worker     text COLLATE "C" NOT NULL,  -- the worker that drives it; '': none
    fence      bigint NOT NULL,            -- of its current claim: writes with another fence are refused
    length     bigint NOT NULL,            -- of its journal
    posted     bigint NOT NULL,            -- the number of its last event
    claims     bigint NOT NULL,            -- how many times it was claimed
    crashes    bigint NOT NULL,            -- how many workers crashed in a row while they drove it
    last       text COLLATE "C" NOT NULL,  -- the id of the last record that was made
    key        text COLLATE "C" NOT NULL,  -- its idempotency key within its workflow; '': none
    parent     text COLLATE "C" NOT NULL,
    started_at bigint,
    ended_at   bigint,
    result     text,                       -- JSON: the value, or the error
    attributes json NOT NULL,
    watchers   text[] NOT NULL,            -- the attempts to notify of its end
    plain      boolean NOT NULL,           -- whether nothing in `rest` matters for a new entry
    rest       json NOT NULL,              -- its other fields: request, root, places, priority, arrival, cancelling,
                                           -- locks ([number, key], ...), stuck ([events, children]), ...
    PRIMARY KEY (namespace, id)
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02,
        autovacuum_vacuum_cost_limit = 1000);

CREATE INDEX runs_living ON holdfast.runs (namespace, type, due_at, id)
 WHERE status IN ('queued', 'pending', 'running', 'suspended', 'blocked');
CREATE INDEX runs_worker ON holdfast.runs (namespace, worker, id) WHERE worker <> '';
-- For lists of runs. Each index has expressions that only the one statement for it contains, so no other statement uses
-- it. For a new table the planner considers all indexes equal: it would search for one run among all of a namespace,
-- until ANALYZE has run. Each index gives the newest runs of one status first.
CREATE INDEX runs_status ON holdfast.runs ((namespace || ''), (status || ''), created_at, (id || ''));
CREATE INDEX runs_workflow
    ON holdfast.runs ((namespace || '/'), (workflow || ''), (status || ''), created_at, (id || ''));
-- For purges: the runs without a parent by the time of their end.
CREATE INDEX runs_ended ON holdfast.runs ((namespace || '#'), (workflow || ''), (status || ''), ended_at, (id || ''))
 WHERE ended_at IS NOT NULL AND parent = '';
CREATE UNIQUE INDEX runs_key ON holdfast.runs (namespace, workflow, key) WHERE key <> '';

-- The index term of an attribute of a run: a number, because its value may be too long for an index. These two
-- functions belong to the tables, because an index uses them: changing them requires a new version of the tables.
CREATE FUNCTION holdfast.attribute_term(ns text, name text, value text) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
    SELECT hashtextextended((ns || chr(31) || name || ':' || value) COLLATE "C", 0)
$$;

CREATE FUNCTION holdfast.attribute_terms(ns text, attributes json) RETURNS bigint[]
LANGUAGE plpgsql IMMUTABLE PARALLEL SAFE AS $$
BEGIN
    RETURN ARRAY(SELECT holdfast.attribute_term(ns, a[1], a[2])
                   FROM regexp_matches(attributes::text, '("(?:[^"\\]|\\.)*"):("(?:[^"\\]|\\.)*"|[^",}]+)', 'g') AS a);
END
$$;

CREATE INDEX runs_attributes ON holdfast.runs USING gin (holdfast.attribute_terms(namespace, attributes))
  WITH (fastupdate = off) WHERE attributes::text <> '{}';

CREATE TABLE holdfast.journal (
    namespace text COLLATE "C" NOT NULL,
    run       text COLLATE "C" NOT NULL,
    number    bigint NOT NULL,
    entry     text NOT NULL,
    PRIMARY KEY (namespace, run, number)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02,
        autovacuum_vacuum_cost_limit = 1000, autovacuum_vacuum_insert_scale_factor = 0.05);

CREATE TABLE holdfast.events (
    namespace text COLLATE "C" NOT NULL,
    run       text COLLATE "C" NOT NULL,
    number    bigint NOT NULL,
    key       text COLLATE "C" NOT NULL,  -- of several events with the same key only the first is kept; '': no key
    event     json NOT NULL,              -- kind (signal, cancel, child, lock, deadlock), name, payload (text), at, ...
    PRIMARY KEY (namespace, run, number)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02,
        autovacuum_vacuum_cost_limit = 1000, autovacuum_vacuum_insert_scale_factor = 0.05);

CREATE UNIQUE INDEX events_key ON holdfast.events (namespace, run, key) WHERE key <> '';

CREATE TABLE holdfast.workers (
    namespace text COLLATE "C" NOT NULL,
    id        text COLLATE "C" NOT NULL,
    worker    json NOT NULL,  -- name, types (what it can drive), since, ...
    PRIMARY KEY (namespace, id)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02,
        autovacuum_vacuum_cost_limit = 1000);

CREATE TABLE holdfast.terms (
    namespace text COLLATE "C" NOT NULL,
    workflow  text COLLATE "C" NOT NULL,
    digest    text COLLATE "C" NOT NULL,  -- identifies the limits; made by the library. '': there is no limit
    terms     json NOT NULL,              -- version, limits, ...
    PRIMARY KEY (namespace, workflow)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02,
        autovacuum_vacuum_cost_limit = 1000);

CREATE TABLE holdfast.places (
    namespace text COLLATE "C" NOT NULL,
    party     text COLLATE "C" NOT NULL,  -- workflow/limit/key: the runs that are counted together
    queued    boolean NOT NULL,           -- whether the run is queued, or else admitted
    rank      bigint NOT NULL,            -- the order of queued runs: the lowest rank first, then the first arrival
    arrival   bigint NOT NULL,
    run       text COLLATE "C" NOT NULL,
    workflow  text COLLATE "C" NOT NULL,
    place     jsonb NOT NULL,             -- [limit, key]
    PRIMARY KEY (namespace, party, queued, rank, arrival, run)
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02,
        autovacuum_vacuum_cost_limit = 1000);

CREATE INDEX places_queued ON holdfast.places (namespace, workflow) WHERE queued;

CREATE TABLE holdfast.starts (
    namespace text COLLATE "C" NOT NULL,
    party     text COLLATE "C" NOT NULL,
    at        bigint NOT NULL,            -- when the run started, or will be allowed to start
    run       text COLLATE "C" NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02,
        autovacuum_vacuum_cost_limit = 1000);

CREATE INDEX starts_at ON holdfast.starts (namespace, party, at, run);

-- Views for operators -----------------------------------------------------------------------------------------------

CREATE VIEW holdfast.holders AS
SELECT l.namespace, l.key, coalesce(l.record->>'kind', 'mutex') AS kind,
       h->'label'->>'name' AS owner, h->'label'->>'host' AS host, (h->'label'->>'pid')::integer AS pid,
       (h->>'token')::bigint AS token,
       to_timestamp((h->>'since')::numeric / 1000000) AS since,
       to_timestamp((h->>'expires_at')::numeric / 1000000) AS expires_at,
       (h->>'expires_at')::numeric <= extract(epoch FROM clock_timestamp()) * 1000000 IS TRUE AS expired,
       coalesce((h->>'offered')::boolean, false) AS offered,
       coalesce(jsonb_array_length(l.record->'waiters'), 0)
           + coalesce((l.record->'overflow'->>'count')::integer, 0) AS waiting
FROM holdfast.locks AS l CROSS JOIN LATERAL jsonb_array_elements(l.record->'holders') AS h;

CREATE VIEW holdfast.waiters AS
SELECT l.namespace, l.key, w.place - 1 AS position,
       w.waiter->'label'->>'name' AS owner, w.waiter->'label'->>'host' AS host,
       (w.waiter->'label'->>'pid')::integer AS pid,
       to_timestamp((w.waiter->>'since')::numeric / 1000000) AS since,
       to_timestamp((w.waiter->>'expires_at')::numeric / 1000000) AS expires_at
FROM holdfast.locks AS l
CROSS JOIN LATERAL jsonb_array_elements(l.record->'waiters') WITH ORDINALITY AS w(waiter, place);

CREATE VIEW holdfast.run_list AS
SELECT r.namespace, r.id, r.type, r.status, coalesce(w.worker->>'name', r.worker) AS driver,
       to_timestamp(r.created_at / 1000000.0) AS created_at,
       to_timestamp((r.due_at + CASE WHEN r.due_at < 0 THEN 5000000000000000 ELSE 0 END) / 1000000.0) AS due_at,
       to_timestamp(r.started_at / 1000000.0) AS started_at, to_timestamp(r.ended_at / 1000000.0) AS ended_at,
       r.length AS entries, r.posted AS events, r.claims, r.crashes, r.parent, r.result
FROM holdfast.runs AS r LEFT JOIN holdfast.workers AS w ON w.namespace = r.namespace AND w.id = r.worker;
