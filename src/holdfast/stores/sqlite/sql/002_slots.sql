-- Holdfast on SQLite: state slots.
--
-- A row of `slots` is one value that changes only by compare-and-swap. A slot that was deleted keeps its row, so that
-- a writer that has not heard of the deletion cannot bring the value back.
--
--   scope       'global', 'workflow' or 'execution'.
--   owner       the workflow's name or the run's id; empty in the shared scope.
--   key         the slot's name, as the caller gives it.
--   version     how often it was written.
--   value       the value as JSON; NULL after a deletion.
--   past        what else is remembered, as JSON: the id of the last write, who wrote what (a re-send is recognised by
--               it), and who has the next write to itself for some milliseconds.
--
-- To look at it: SELECT scope, owner, key, version, value FROM slots;

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
