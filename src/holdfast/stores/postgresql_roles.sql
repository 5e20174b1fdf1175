-- Holdfast on PostgreSQL: two roles with the least rights that they need. Run it as an owner of the schema, after the
-- schema was made; give the roles to your own (GRANT holdfast_app TO my_service), or let them log in.
--
--   holdfast_app     for applications: takes locks and writes states. It can make and change no table.
--   holdfast_reader  for dashboards and people: sees everything and changes nothing.

CREATE ROLE holdfast_app NOLOGIN;
CREATE ROLE holdfast_reader NOLOGIN;

REVOKE ALL ON SCHEMA holdfast FROM PUBLIC;
GRANT USAGE ON SCHEMA holdfast TO holdfast_app, holdfast_reader;

GRANT SELECT, INSERT, UPDATE, DELETE ON holdfast.locks, holdfast.slots TO holdfast_app;
GRANT SELECT ON holdfast.about TO holdfast_app;
GRANT SELECT ON ALL TABLES IN SCHEMA holdfast TO holdfast_reader;
GRANT SELECT ON holdfast.holders, holdfast.waiters TO holdfast_app;
