-- The table that holdfast.fencing.guard uses in your PostgreSQL database: for every resource the highest floor
-- that was ever accepted. The guard creates it when it is first needed. Where the application's role may not
-- create tables, run this file once as the owner of the schema, and grant the role what the last line shows.
-- The table is found by the search_path, so create it in the schema that your application uses. It must be neither
-- temporary nor unlogged: a fence that loses its rows accepts stale writes.
CREATE TABLE IF NOT EXISTS holdfast_fences (
    resource text COLLATE "C" PRIMARY KEY,
    floor bigint NOT NULL CHECK (floor > 0)
);

-- GRANT SELECT, INSERT, UPDATE ON holdfast_fences TO your_application;
