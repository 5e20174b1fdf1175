-- Holdfast on PostgreSQL, schema version 1.
--
-- Two tables hold everything. A row of `locks` is what is known of one key in one namespace: who holds it, who waits
-- for it in which order, and the highest token that was ever given out for it (the fence). A row of `slots` is one
-- value that changes only by compare-and-swap.
--
-- They are changed only by functions: those of postgresql_rules.sql decide, those of postgresql_batch.sql take rows,
-- ask the rules and write.
--
-- All times are microseconds since 1970 by this server's clock, all lengths microseconds. In a record, what has its
-- default value is left out, and fields that this version does not know are kept.
--
-- To look at it: SELECT * FROM holdfast.holders;  SELECT * FROM holdfast.waiters;
-- Do not delete rows by hand: with a row its fence is lost. Use the library's force_release.

CREATE TABLE holdfast.about (
    version integer NOT NULL  -- of this schema
);
INSERT INTO holdfast.about VALUES (1);

CREATE TABLE holdfast.locks (
    namespace text COLLATE "C" NOT NULL,  -- keeps applications apart
    key       text COLLATE "C" NOT NULL,  -- what is locked, as the caller names it
    record    jsonb NOT NULL,             -- kind, permits, fence, version, holders, waiters, tombstones, ...
    due_at    bigint,                     -- when time alone changes a record that has waiters; NULL where nobody waits
    PRIMARY KEY (namespace, key)
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.05);

CREATE INDEX locks_due ON holdfast.locks (namespace, due_at) WHERE due_at IS NOT NULL;

CREATE TABLE holdfast.slots (
    namespace text COLLATE "C" NOT NULL,
    scope     text COLLATE "C" NOT NULL,  -- 'shared', 'workflow' or 'execution'
    owner     text COLLATE "C" NOT NULL,  -- the workflow's name or the run's id; empty in the shared scope
    key       text COLLATE "C" NOT NULL,
    version   bigint NOT NULL,            -- how often it was written
    value     text,                       -- JSON; NULL after a deletion
    past      jsonb NOT NULL,             -- the last write's id, who wrote what, who has reserved the next write
    PRIMARY KEY (namespace, scope, owner, key)
) WITH (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.05);

-- For people at night -----------------------------------------------------------------------------------------------

CREATE VIEW holdfast.holders AS
SELECT l.namespace, l.key, coalesce(l.record->>'kind', 'item') AS kind,
       h->'label'->>'name' AS owner, h->'label'->>'host' AS host, (h->'label'->>'pid')::integer AS pid,
       (h->>'token')::bigint AS token,
       to_timestamp((h->>'since')::numeric / 1000000) AS since,
       to_timestamp((h->>'expires_at')::numeric / 1000000) AS expires_at,
       (h->>'expires_at')::numeric <= extract(epoch FROM clock_timestamp()) * 1000000 IS TRUE AS expired,
       coalesce((h->>'offered')::boolean, false) AS offered,
       coalesce(jsonb_array_length(l.record->'waiters'), 0) AS waiting
FROM holdfast.locks AS l CROSS JOIN LATERAL jsonb_array_elements(l.record->'holders') AS h;

CREATE VIEW holdfast.waiters AS
SELECT l.namespace, l.key, w.place - 1 AS position,
       w.waiter->'label'->>'name' AS owner, w.waiter->'label'->>'host' AS host,
       (w.waiter->'label'->>'pid')::integer AS pid,
       to_timestamp((w.waiter->>'since')::numeric / 1000000) AS since,
       to_timestamp((w.waiter->>'expires_at')::numeric / 1000000) AS expires_at
FROM holdfast.locks AS l CROSS JOIN LATERAL jsonb_array_elements(l.record->'waiters') WITH ORDINALITY AS w(waiter, place);
