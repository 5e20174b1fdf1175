-- Holdfast on SQLite: locks, records of other types, and clocks.
--
-- A row of `locks` is the record of one key in one namespace: its holders, its waiters in order, and the highest token
-- that was ever issued for it (the fence).
--
--   namespace  separates applications that share a file.
--   key        what is locked, as the caller names it.
--   record     the lock record as JSON: kind, permits, fence, version, holders, waiters, tombstones, ... All
--              times in it are microseconds since 1970, all lengths microseconds. A field that has its default
--              value is left out. Fields that a version does not know are kept.
--   due_at     a copy of the record's due_at, so that it can be indexed: the earliest time at which something in a
--              record with waiters expires. NULL without waiters.
--
-- To read it: SELECT key, json_extract(record, '$.holders[0].label.name') FROM locks;
-- Do not delete rows by hand: the fence of a deleted row is lost. Use the library's force_release.
--
-- A row of `clocks` is a process whose clock is `ahead` seconds ahead of the clock of the host (negative: behind it);
-- `at` is the time of its last report. Processes whose clocks are right have no row.
--
-- A row of `records` is one record of any other type: `kind` is the name of the type, `record` the record as JSON, and
-- `due_at` the time at which something in it expires or is due, NULL where there is none. To read it:
-- SELECT kind, key, record FROM records;
--
-- `PRAGMA application_id` identifies a file of Holdfast, and `PRAGMA user_version` is the version of this schema. Both
-- are written in the same transaction as the tables below.

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
