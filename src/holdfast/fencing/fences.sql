-- The table that holdfast.fencing.guard keeps in your PostgreSQL database: for every resource the highest floor
-- that was ever let through. The guard makes it by itself when it is first needed. Where the application's role may
-- not create tables, run this file once as the owner of the schema, and grant the role what the last line shows.
-- It is found by the search_path, so put it into the schema that your application works in. It must be neither
-- temporary nor unlogged: a fence that forgets lets stale writes in.

CREATE TABLE IF NOT EXISTS holdfast_fences (
    resource text COLLATE "C" PRIMARY KEY,
    floor bigint NOT NULL CHECK (floor > 0)
);

-- GRANT SELECT, INSERT, UPDATE ON holdfast_fences TO your_application;
