-- Holdfast on SQLite: locks, records of other sorts, and clocks.
--
-- A row of `locks` is what is known of one key in one namespace: who holds it,
-- who waits for it in which order, and the highest token that was ever given out for it (the fence).
--
--   namespace  keeps applications apart that share a file.
--   key        what is locked, as the caller names it.
--   record     the lock record as JSON: kind, permits, fence, version, holders, waiters, tombstones, ... All
--              times in it are microseconds since 1970, all lengths microseconds. A field that has its default
--              value is left out. Fields that a version does not know are kept.
--   due_at     the record's own due_at once more, so that it can be indexed: the earliest moment at which time
--              alone changes a record that has waiters. NULL where nobody waits.
--
-- To look at it: SELECT key, json_extract(record, '$.holders[0].label.name') FROM locks;
-- Do not delete rows by hand: with a row its fence is lost. Use the library's force_release.
--
-- A row of `clocks` is a process whose clock is `ahead` seconds ahead of that of the host, or behind it with a minus;
-- `at` is when it said so last. Processes whose clocks are right are not in it.
--
-- A row of `records` is one record of any other sort: `kind` is the name of its sort, `record` the record as JSON, and
-- `due_at` the moment at which time alone changes it, NULL where there is none. To look at it:
-- SELECT kind, key, record FROM records;
--
-- The file says whose it is by `PRAGMA application_id`, and which version of this schema it has by
-- `PRAGMA user_version`. Both are written in the same transaction as what follows.

CREATE TABLE locks (
    namespace TEXT NOT NULL,
    key       TEXT NOT NULL,
    record    TEXT NOT NULL,
    due_at    INTEGER,
    PRIMARY KEY (namespace, key)
) WITHOUT ROWID;

CREATE INDEX locks_due ON locks (namespace, due_at) WHERE due_at IS NOT NULL;

CREATE TABLE records (
    namespace TEXT NOT NULL,
    kind      TEXT NOT NULL,
    key       TEXT NOT NULL,
    record    TEXT NOT NULL,
    due_at    INTEGER,
    PRIMARY KEY (namespace, kind, key)
) WITHOUT ROWID;

CREATE INDEX records_due ON records (namespace, kind, due_at) WHERE due_at IS NOT NULL;

CREATE TABLE clocks (
    process TEXT PRIMARY KEY,
    name    TEXT NOT NULL,
    host    TEXT NOT NULL,
    pid     INTEGER NOT NULL,
    ahead   REAL NOT NULL,
    at      INTEGER NOT NULL
) WITHOUT ROWID;
