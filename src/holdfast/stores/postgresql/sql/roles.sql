-- Holdfast on PostgreSQL: two roles with the minimal privileges. Run this as an owner of the schema, after the
-- schema was created; grant the roles to your own (GRANT holdfast_app TO my_service), or let them log in.
--
--   holdfast_app     for applications: acquires locks, writes states, drives runs. It cannot create or change tables.
--   holdfast_reader  for dashboards and people: reads everything and changes nothing.

DO $$
BEGIN
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'holdfast_app') THEN
        CREATE ROLE holdfast_app NOLOGIN;
    END IF;
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'holdfast_reader') THEN
        CREATE ROLE holdfast_reader NOLOGIN;
    END IF;
END
$$;

REVOKE ALL ON SCHEMA holdfast FROM PUBLIC;
GRANT USAGE ON SCHEMA holdfast TO holdfast_app, holdfast_reader;

GRANT SELECT, INSERT, UPDATE, DELETE ON holdfast.locks, holdfast.slots, holdfast.records TO holdfast_app;
GRANT SELECT, INSERT, UPDATE, DELETE ON holdfast.runs, holdfast.journal, holdfast.events, holdfast.workers
   TO holdfast_app;
GRANT SELECT, INSERT, UPDATE, DELETE ON holdfast.terms, holdfast.places, holdfast.starts TO holdfast_app;
GRANT SELECT ON holdfast.about, holdfast.functions, holdfast.holders, holdfast.waiters, holdfast.run_list
   TO holdfast_app;
-- The client that creates the functions of a later release grants them to all roles that may read the locks.
GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA holdfast TO holdfast_app, holdfast_reader;
GRANT SELECT ON ALL TABLES IN SCHEMA holdfast TO holdfast_reader;
