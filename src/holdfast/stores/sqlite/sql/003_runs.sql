-- Holdfast on SQLite: runs of workflows.
--
-- A row of `runs` is a run; its history is its rows in `journal`, in order, the first of which (number 0) is its input;
-- its inbox is its rows in `events`. A row of `workers` is a process that drives runs; it counts as running while the
-- lock 'worker/<id>' is held.
--
--   type        the workflow's name, with @version if it has one; @*: the first worker that drives it sets the version.
--   status      queued, pending, running, suspended, blocked, completed, failed, cancelled, timed_out; purged: the run
--               counts as absent, and only the number of its id, or what a purge has not removed yet, is left.
--   due_at      microseconds since 1970: from when on the run may be claimed. NULL: driven, ended, or waiting for an
--               event.
--   worker      the worker that drives it; NULL: none.
--   key         its idempotency key within its workflow; NULL: none.
--   ended_at    when a run without a parent ended, from when on a purge may find it; NULL for all other runs.
--   record      the whole run as JSON; the columns before it are copies of its fields, for the indexes.
--
-- A row of `run_attributes` is a copy of an attribute of a run, its value as JSON, so that runs can be listed by it.
-- A row of `terms` holds the limits of a workflow as JSON. A row of `places` is a run that a limit has admitted
-- or queued and that has not ended: the runs of one `party` are counted together; or a run that waits for a lock and is
-- not listed in the lock's record (party '#lock/<key>'). A row of `starts` is a start that a limit on starts counts.
--
-- To read it:    SELECT id, type, status, datetime(due_at / 1000000, 'unixepoch') FROM runs;
--                SELECT number, entry FROM journal WHERE run = '...' ORDER BY number;

CREATE TABLE runs (
    namespace  TEXT NOT NULL,
    id         TEXT NOT NULL,
    type       TEXT NOT NULL,
    workflow   TEXT NOT NULL,
    status     TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    due_at     INTEGER,
    worker     TEXT,
    key        TEXT,
    ended_at   INTEGER,
    record     TEXT NOT NULL,
    PRIMARY KEY (namespace, id)
) WITHOUT ROWID;

CREATE INDEX runs_due ON runs (namespace, type, due_at, id) WHERE due_at IS NOT NULL;
CREATE INDEX runs_worker ON runs (namespace, worker, id) WHERE worker IS NOT NULL;
CREATE INDEX runs_status ON runs (namespace, status, created_at, id);
CREATE INDEX runs_workflow ON runs (namespace, workflow, status, created_at, id);
CREATE INDEX runs_living ON runs (namespace, type)
    WHERE status IN ('queued', 'pending', 'running', 'suspended', 'blocked');
CREATE INDEX runs_ended ON runs (namespace, workflow, status, ended_at, id) WHERE ended_at IS NOT NULL;
CREATE UNIQUE INDEX runs_key ON runs (namespace, workflow, key) WHERE key IS NOT NULL;

CREATE TABLE run_attributes (
    namespace  TEXT NOT NULL,
    name       TEXT NOT NULL,
    value      TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    run        TEXT NOT NULL,
    PRIMARY KEY (namespace, name, value, created_at, run)
) WITHOUT ROWID;

CREATE TABLE journal (
    namespace TEXT NOT NULL,
    run       TEXT NOT NULL,
    number    INTEGER NOT NULL,
    entry     TEXT NOT NULL,
    PRIMARY KEY (namespace, run, number)
) WITHOUT ROWID;

CREATE TABLE events (
    namespace TEXT NOT NULL,
    run       TEXT NOT NULL,
    number    INTEGER NOT NULL,
    key       TEXT,
    event     TEXT NOT NULL,
    PRIMARY KEY (namespace, run, number)
) WITHOUT ROWID;

CREATE UNIQUE INDEX events_key ON events (namespace, run, key) WHERE key IS NOT NULL;

CREATE TABLE workers (
    namespace TEXT NOT NULL,
    id        TEXT NOT NULL,
    worker    TEXT NOT NULL,
    PRIMARY KEY (namespace, id)
) WITHOUT ROWID;

CREATE TABLE terms (
    namespace TEXT NOT NULL,
    workflow  TEXT NOT NULL,
    terms     TEXT NOT NULL,
    PRIMARY KEY (namespace, workflow)
) WITHOUT ROWID;

CREATE TABLE places (
    namespace TEXT NOT NULL,
    party     TEXT NOT NULL,
    queued    INTEGER NOT NULL,
    rank      INTEGER NOT NULL,
    arrival   INTEGER NOT NULL,
    run       TEXT NOT NULL,
    workflow  TEXT NOT NULL,
    place     TEXT NOT NULL,
    PRIMARY KEY (namespace, party, queued, rank, arrival, run)
) WITHOUT ROWID;

CREATE INDEX places_queued ON places (namespace, workflow) WHERE queued = 1;

CREATE TABLE starts (
    number    INTEGER PRIMARY KEY,
    namespace TEXT NOT NULL,
    party     TEXT NOT NULL,
    at        INTEGER NOT NULL,
    run       TEXT NOT NULL,
    gone_at   INTEGER NOT NULL
);

CREATE INDEX starts_latest ON starts (namespace, party, at, run);
CREATE INDEX starts_gone ON starts (namespace, gone_at);
