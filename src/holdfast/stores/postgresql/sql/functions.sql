-- Holdfast on PostgreSQL: the functions of one release.
--
-- The rules are in the library, in Python, and so are the statements. These are small helper functions. Every decision
-- calls the clock below: if the functions of a client were removed, because newer tables no longer support it, its next
-- command fails.

-- The time. The server inlines its text into the statements that call it, so that it costs no function call.
CREATE OR REPLACE FUNCTION holdfast.clock() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
$$;

-- Raise unless all rows were written: otherwise another transaction has written one of them since they were read.
CREATE OR REPLACE FUNCTION holdfast.insist(written bigint, wanted bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF written <> wanted THEN
        RAISE EXCEPTION USING ERRCODE = 'HF001', MESSAGE = 'another transaction has written first';
    END IF;
END
$$;

-- Record that a client uses the functions of this digest, once an hour. Every role may call it, whatever it may write
-- otherwise. A row that another transaction has locked is not waited for.
CREATE OR REPLACE FUNCTION holdfast.note_use(mine text) RETURNS void
LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
    UPDATE holdfast.functions AS f SET used_at = clock_timestamp()
      FROM (SELECT x.digest FROM holdfast.functions AS x
             WHERE x.digest = mine AND x.used_at < clock_timestamp() - interval '1 hour' FOR UPDATE SKIP LOCKED) AS own
     WHERE f.digest = own.digest
$$;
