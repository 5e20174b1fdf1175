-- Holdfast on PostgreSQL: the functions of one release.
--
-- The rules are the library's own, in Python, and the statements come from there too. What is here are small tools.
-- Every decision asks the clock below: a client whose functions were removed, because newer tables do not admit it
-- any more, is told so by its next command.

-- The time. The server puts its text into the statements that ask it, so that it costs no call.
CREATE OR REPLACE FUNCTION holdfast.clock() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
$$;

-- Raise unless as many rows were written as should be: another transaction has written them since they were read.
CREATE OR REPLACE FUNCTION holdfast.insist(written bigint, wanted bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF written <> wanted THEN
        RAISE EXCEPTION USING ERRCODE = 'HF001', MESSAGE = 'another transaction has written first';
    END IF;
END
$$;

-- Note that a client uses the functions of this digest, once an hour. Every role may do so, whatever else it may
-- write. A row that somebody else has locked is not waited for.
CREATE OR REPLACE FUNCTION holdfast.note_use(mine text) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    UPDATE holdfast.functions AS f SET used_at = clock_timestamp()
      FROM (SELECT x.digest FROM holdfast.functions AS x
             WHERE x.digest = mine AND x.used_at < clock_timestamp() - interval '1 hour' FOR UPDATE SKIP LOCKED) AS own
     WHERE f.digest = own.digest
$$;
