-- Holdfast on PostgreSQL, schema version 2: runs of workflows.
--
-- A row of `runs` is a run; its history is its rows in `journal`, in order, the first of which (number 0) is its input;
-- what came to it from outside are its rows in `events`. A row of `workers` is a process that drives runs; it lives
-- while the lock 'worker/<id>' is held. A row of `terms` holds the limits of a workflow. A row of `places` is a living
-- run that a limit counts, or that waits there: the runs of one `party` are counted together. A row of `starts` is a
-- start that a limit on starts counts. They are changed only by the functions of postgresql_run_rules.sql,
-- postgresql_belongings.sql, postgresql_limits.sql, postgresql_run_commands.sql, postgresql_short.sql and
-- postgresql_claims.sql.
--
-- Times are microseconds since 1970 by this server's clock. What users gave (entries, payloads, results, attributes) is
-- JSON as text: jsonb would refuse the escape of a NUL. A record of a driven run changes nothing that is indexed, so that
-- a row has its versions on one page, and none of the indexes is touched.
--
-- To look at it: SELECT * FROM holdfast.run_list WHERE status = 'failed';
--                SELECT number, entry FROM holdfast.journal WHERE run = '...' ORDER BY number;
-- Do not change rows by hand: who drives a run relies on its fence.

UPDATE holdfast.about SET version = 2;
DROP FUNCTION IF EXISTS holdfast.wake(text, jsonb, jsonb);

CREATE TABLE holdfast.runs (
    namespace  text COLLATE "C" NOT NULL,
    id         text COLLATE "C" NOT NULL,
    type       text COLLATE "C" NOT NULL,  -- the workflow's name, with @version if it has one; @*: whoever drives it decides
    workflow   text COLLATE "C" NOT NULL,  -- the type without the version
    status     text COLLATE "C" NOT NULL,  -- queued, pending, running, suspended,
                                           -- completed, failed, cancelled, timed_out
    created_at bigint NOT NULL,
    due_at     bigint,                     -- from when on a run that nobody drives may be claimed; below 0: at once
    worker     text COLLATE "C" NOT NULL DEFAULT '',  -- who drives it
    fence      bigint NOT NULL DEFAULT 0,  -- of the one who drives it: all others' writes are refused
    length     bigint NOT NULL,            -- of its journal
    posted     bigint NOT NULL DEFAULT 0,  -- the number of its last event
    lives      bigint NOT NULL DEFAULT 0,  -- how often it was claimed
    deaths     bigint NOT NULL DEFAULT 0,  -- how many workers died in a row while they drove it
    request    text COLLATE "C" NOT NULL,  -- the id of its start
    last       text COLLATE "C" NOT NULL DEFAULT '',  -- the id of the last record that was made
    key        text COLLATE "C" NOT NULL DEFAULT '',  -- its idempotency key within its workflow
    parent     text COLLATE "C" NOT NULL DEFAULT '',
    root       text COLLATE "C" NOT NULL,
    started_at bigint,
    ended_at   bigint,
    result     text,                       -- JSON: the value, or what went wrong
    attributes json NOT NULL,
    watchers   text[] NOT NULL DEFAULT '{}',  -- who wants to be told of its end
    places     jsonb NOT NULL DEFAULT '[]',   -- the limits that count it while it lives, each with its key
    priority   bigint NOT NULL DEFAULT 0,     -- of those who wait at a limit the highest comes first,
    arrival    bigint NOT NULL DEFAULT 0,     -- and then who came first
    cancelling boolean NOT NULL DEFAULT false,  -- whether it was told to stop
    locks      jsonb NOT NULL DEFAULT '[]',   -- what it has or waits for: the number of each ask, and the key
    stuck      jsonb,                         -- when nothing can bring it on but locks and children: how many events it
                                              -- had seen by then, and which children
    PRIMARY KEY (namespace, id)
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.05);

CREATE INDEX runs_living ON holdfast.runs (namespace, type, due_at, id)
 WHERE status IN ('queued', 'pending', 'running', 'suspended');
CREATE INDEX runs_worker ON holdfast.runs (namespace, worker, id) WHERE worker <> '';
-- Written so that only a list of runs, which asks in the same words, can use it. Of a table that is new the server thinks
-- that any index is as good as another: it would look for one run among all of a namespace, until ANALYZE tells it more.
CREATE INDEX runs_age ON holdfast.runs ((namespace || ''), created_at);
CREATE UNIQUE INDEX runs_key ON holdfast.runs (namespace, workflow, key) WHERE key <> '';

CREATE TABLE holdfast.journal (
    namespace text COLLATE "C" NOT NULL,
    run       text COLLATE "C" NOT NULL,
    number    bigint NOT NULL,
    entry     text NOT NULL,
    PRIMARY KEY (namespace, run, number)
);

CREATE TABLE holdfast.events (
    namespace text COLLATE "C" NOT NULL,
    run       text COLLATE "C" NOT NULL,
    number    bigint NOT NULL,
    kind      text COLLATE "C" NOT NULL,  -- signal, cancel, child, lock, deadlock
    name      text NOT NULL,
    payload   text NOT NULL,
    key       text COLLATE "C" NOT NULL,  -- of several with the same key only the first is kept; '': no key
    at        bigint NOT NULL,
    PRIMARY KEY (namespace, run, number)
);

CREATE UNIQUE INDEX events_key ON holdfast.events (namespace, run, key) WHERE key <> '';

CREATE TABLE holdfast.workers (
    namespace text COLLATE "C" NOT NULL,
    id        text COLLATE "C" NOT NULL,
    name      text NOT NULL,
    types     text[] NOT NULL,  -- what it can drive
    since     bigint NOT NULL,
    PRIMARY KEY (namespace, id)
);

CREATE TABLE holdfast.terms (
    namespace text COLLATE "C" NOT NULL,
    workflow  text COLLATE "C" NOT NULL,
    version   bigint NOT NULL,            -- terms of a lower one do not take their place
    digest    text COLLATE "C" NOT NULL,  -- tells terms apart; the library makes it. '': there is no limit
    terms     jsonb NOT NULL,
    PRIMARY KEY (namespace, workflow)
);

CREATE TABLE holdfast.places (
    namespace text COLLATE "C" NOT NULL,
    party     text COLLATE "C" NOT NULL,  -- workflow/limit/key: those who are counted together
    queued    boolean NOT NULL,           -- whether it waits there, or was let in
    rank      bigint NOT NULL,            -- the order of those who wait: the lowest first, and then the first who came
    arrival   bigint NOT NULL,
    run       text COLLATE "C" NOT NULL,
    workflow  text COLLATE "C" NOT NULL,
    place     jsonb NOT NULL,             -- [limit, key]
    PRIMARY KEY (namespace, party, queued, rank, arrival, run)
);

CREATE INDEX places_queued ON holdfast.places (namespace, workflow) WHERE queued;

CREATE TABLE holdfast.starts (
    namespace text COLLATE "C" NOT NULL,
    party     text COLLATE "C" NOT NULL,
    at        bigint NOT NULL,            -- when it was made, or will be allowed
    run       text COLLATE "C" NOT NULL
);

CREATE INDEX starts_at ON holdfast.starts (namespace, party, at, run);

-- For people at night -----------------------------------------------------------------------------------------------

CREATE VIEW holdfast.run_list AS
SELECT r.namespace, r.id, r.type, r.status, coalesce(w.name, r.worker) AS driver,
       to_timestamp(r.created_at / 1000000.0) AS created_at,
       to_timestamp((r.due_at + CASE WHEN r.due_at < 0 THEN 5000000000000000 ELSE 0 END) / 1000000.0) AS due_at,
       to_timestamp(r.started_at / 1000000.0) AS started_at, to_timestamp(r.ended_at / 1000000.0) AS ended_at,
       r.length AS entries, r.posted AS events, r.lives, r.deaths, r.parent, r.result
FROM holdfast.runs AS r LEFT JOIN holdfast.workers AS w ON w.namespace = r.namespace AND w.id = r.worker;

-- Who may use the locks may use the runs too: roles for applications may be older than the runs.
DO $$
DECLARE
    given record;
BEGIN
    FOR given IN
        SELECT DISTINCT format('GRANT %s ON %s TO %s', g.privilege_type, fresh.oid::regclass,
                               CASE WHEN g.grantee = 0 THEN 'PUBLIC' ELSE g.grantee::regrole::text END) AS statement
          FROM holdfast.about AS a
          JOIN pg_class AS about ON about.oid = a.tableoid
          JOIN pg_class AS locks ON locks.relnamespace = about.relnamespace AND locks.relname = 'locks'
         CROSS JOIN LATERAL aclexplode(locks.relacl) AS g
          JOIN pg_class AS fresh ON fresh.relnamespace = about.relnamespace
           AND (fresh.relname IN ('runs', 'journal', 'events', 'workers', 'terms', 'places', 'starts')
                OR fresh.relname = 'run_list' AND g.privilege_type = 'SELECT')
         WHERE g.grantee <> locks.relowner AND g.privilege_type IN ('SELECT', 'INSERT', 'UPDATE', 'DELETE')
    LOOP
        EXECUTE given.statement;
    END LOOP;
END
$$;
