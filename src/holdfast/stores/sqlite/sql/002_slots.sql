-- Holdfast on SQLite: state slots.
--
-- A row of `slots` is one value that changes only by compare-and-swap. A slot that was deleted keeps its row, so that
-- a writer that does not know of the deletion cannot restore the value.
--
--   scope       'global', 'workflow' or 'execution'.
--   owner       the workflow's name or the run's id; empty in the shared scope.
--   key         the slot's name, as the caller gives it.
--   version     how many times it was written.
--   value       the value as JSON; NULL after a deletion.
--   past        the history of writes, as JSON: the id of the last write, the last write of each writer (to recognise a
--               re-send), and the writer that has reserved the next write for some milliseconds.
--
-- To read it: SELECT scope, owner, key, version, value FROM slots;

CREATE TABLE slots (
    namespace TEXT NOT NULL,
    scope     TEXT NOT NULL,
    owner     TEXT NOT NULL,
    key       TEXT NOT NULL,
    version   INTEGER NOT NULL,
    value     TEXT,
    past      TEXT NOT NULL,
    PRIMARY KEY (namespace, scope, owner, key)
) WITHOUT ROWID;
