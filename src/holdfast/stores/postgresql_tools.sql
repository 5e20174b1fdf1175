-- Holdfast on PostgreSQL: small tools of the rules.
--
-- Records are JSON. In them a list that would be empty, and a number that would be 0, is left out, so the absence of a
-- field means just that; these functions keep it so. Everything here is pure.

-- A field with its value, or without it where the value is its default.
CREATE OR REPLACE FUNCTION holdfast.put(rec jsonb, name text, value jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN value IS NULL OR value IN ('null', '[]', '0') THEN rec - name
                ELSE rec || jsonb_build_object(name, value) END
$$;

-- Two lists in a row, either of which may not be there.
CREATE OR REPLACE FUNCTION holdfast.plus(a jsonb, b jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(a || b, a, b)
$$;

CREATE OR REPLACE FUNCTION holdfast.find(things jsonb, id text) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
    SELECT t FROM jsonb_array_elements(things) AS t WHERE t->>'id' = id LIMIT 1
$$;

-- The list without an attempt; NULL where nothing is left.
CREATE OR REPLACE FUNCTION holdfast.without(things jsonb, id text) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
    SELECT jsonb_agg(t ORDER BY place) FROM jsonb_array_elements(things) WITH ORDINALITY AS x(t, place)
    WHERE t->>'id' <> id
$$;

-- The list with the changed thing in the place of the one with its id.
CREATE OR REPLACE FUNCTION holdfast.with_changed(things jsonb, changed jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
    SELECT jsonb_agg(CASE WHEN t->'id' = changed->'id' THEN changed ELSE t END ORDER BY place)
    FROM jsonb_array_elements(things) WITH ORDINALITY AS x(t, place)
$$;

-- Without what has ended; what a clock step has stretched is lowered to now + its ttl. NULL where nothing is left.
CREATE OR REPLACE FUNCTION holdfast.living(things jsonb, at bigint) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
    SELECT jsonb_agg(CASE WHEN ends > at + ttl THEN t || jsonb_build_object('expires_at', at + ttl) ELSE t END
                     ORDER BY place)
    FROM (SELECT t, place, (t->>'expires_at')::bigint AS ends, coalesce((t->>'ttl')::bigint, 0) AS ttl
          FROM jsonb_array_elements(things) WITH ORDINALITY AS x(t, place)) AS y
    WHERE ends IS NULL OR least(ends, at + ttl) > at
$$;

-- Whether somebody wrote this record just after that moment: its times then end a little later than they could. (A clock
-- that was set back by less than a minute looks the same.)
CREATE OR REPLACE FUNCTION holdfast.is_younger(rec jsonb, at bigint) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT EXISTS (
        SELECT FROM jsonb_array_elements(holdfast.plus(rec->'holders', rec->'waiters')) AS t
         WHERE (t->>'expires_at')::bigint - (t->>'ttl')::bigint BETWEEN at + 1 AND at + 60000000)
$$;

CREATE OR REPLACE FUNCTION holdfast.weight_of(holders jsonb) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(sum(coalesce((h->>'weight')::bigint, 1)), 0)::bigint FROM jsonb_array_elements(holders) AS h
$$;

-- The earliest moment at which time alone can change a record.
CREATE OR REPLACE FUNCTION holdfast.soonest(holders jsonb, waiters jsonb, closed_until bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT least(min((t->>'expires_at')::bigint), nullif(closed_until, 0))
    FROM jsonb_array_elements(holdfast.plus(holders, waiters)) AS t
$$;

CREATE OR REPLACE FUNCTION holdfast.until(moment bigint, at bigint) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN moment IS NOT NULL THEN greatest(0, moment - at) END
$$;

-- The lowest token among the living holders; the fence where there are none.
CREATE OR REPLACE FUNCTION holdfast.floor_of(rec jsonb) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT coalesce(min((h->>'token')::bigint), (rec->>'fence')::bigint, 0)
    FROM jsonb_array_elements(rec->'holders') AS h
$$;

-- A whole number from 0 on, of a size that leaves room to count on; NULL where it is anything else.
CREATE OR REPLACE FUNCTION holdfast.count_of(value jsonb) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN jsonb_typeof(value) = 'number' AND value::text ~ '^[0-9]{1,17}$' THEN value::text::bigint END
$$;

CREATE OR REPLACE FUNCTION holdfast.is_whole(value jsonb) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT jsonb_typeof(value) = 'number' AND value::text ~ '^-?[0-9]+$'
$$;

CREATE OR REPLACE FUNCTION holdfast.are_people(things jsonb, holders boolean) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN things IS NULL THEN true WHEN jsonb_typeof(things) <> 'array' THEN false ELSE
        NOT EXISTS (
            SELECT FROM jsonb_array_elements(things) AS t WHERE NOT coalesce(
                jsonb_typeof(t->'id') = 'string' AND jsonb_typeof(t->'label'->'name') = 'string'
                AND holdfast.is_whole(t->'since') AND (NOT holders OR holdfast.is_whole(t->'token'))
                AND (t->'ttl' = 'null' OR holdfast.is_whole(t->'ttl'))
                AND (t->'expires_at' = 'null' OR holdfast.is_whole(t->'expires_at')), false))
    END
$$;

-- Whether a record is one that these rules can judge. What is not is refused, and left as it is.
CREATE OR REPLACE FUNCTION holdfast.readable(rec jsonb) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN jsonb_typeof(rec) <> 'object' THEN false ELSE coalesce(
        coalesce(rec->>'kind', 'item') IN ('item', 'hold', 'semaphore', 'rw', 'lease', 'run', 'worker')
        AND NOT EXISTS (
            SELECT FROM jsonb_each(rec) AS f
            WHERE f.key IN ('permits', 'fence', 'version', 'closed_until', 'closed_for', 'due_at')
              AND NOT holdfast.is_whole(f.value) AND (f.key <> 'due_at' OR f.value <> 'null'))
        AND holdfast.are_people(rec->'holders', true) AND holdfast.are_people(rec->'waiters', false)
        AND CASE WHEN rec ? 'tombstones' THEN CASE WHEN jsonb_typeof(rec->'tombstones') = 'array' THEN NOT EXISTS (
            SELECT FROM jsonb_array_elements(rec->'tombstones') AS t WHERE NOT coalesce(
                jsonb_typeof(t->'id') = 'string' AND holdfast.is_whole(t->'ttl')
                AND holdfast.is_whole(t->'expires_at'), false)) ELSE false END ELSE true END, false)
    END
$$;
