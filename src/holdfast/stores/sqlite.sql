-- Holdfast on SQLite, schema version 1.
--
-- One table holds everything. A row of `locks` is what is known of one key in one namespace: who holds it,
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
