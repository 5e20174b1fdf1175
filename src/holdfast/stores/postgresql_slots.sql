-- Holdfast on PostgreSQL: state slots.
--
-- `swap` is the rule, and says the same as the library's in Python (rules/slot.py). `run_slots` takes the rows, asks the
-- rule and writes; a row that somebody else has locked is left alone, as with locks.
--
-- `write_slot` is the write that goes with a record of a run, in the transaction of the record. Several of them may be in
-- one batch, in any order, and in another batch in the opposite one. That can lock nobody in, because whoever has a row
-- does not wait for a slot: one that is locked is left alone (SKIP LOCKED), one that somebody is just making is waited
-- for a millisecond at most and then left alone (`make_slot`). The record is answered "Taken", and the library waits for
-- that slot at the beginning of another transaction, which has nothing yet that others could wait for.

-- Write the value if the last write is the expected one. A write that is remembered is answered again, not made again.
CREATE OR REPLACE FUNCTION holdfast.swap(
    INOUT version bigint, INOUT value text, INOUT past jsonb, cmd jsonb, at bigint, OUT changed boolean, OUT answer jsonb)
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    request text := cmd->>'request';
    client text := split_part(request, '.', 1);
    number bigint := substr(request, length(client) + 2)::bigint;
    expected bigint := (cmd->>'version')::bigint;
    forgotten bigint := coalesce((past->>'forgotten')::bigint, 0);
    until bigint := least(coalesce((past->>'reserved_until')::bigint, 0), at + 1000000);
    reserved_by text := coalesce(past->>'reserved_by', '');
    reserve bigint := (cmd->>'reserve')::bigint;
    taken boolean := reserved_by <> '' AND until > at AND reserved_by <> client;
    mine jsonb;
    writers jsonb;
    numbers jsonb;
    floor bigint;
BEGIN
    changed := false;
    SELECT w INTO mine FROM jsonb_array_elements(past->'writers') AS w WHERE w->>0 = client LIMIT 1;
    IF mine->2 @> to_jsonb(number) THEN
        answer := jsonb_build_array('Swapped', jsonb_build_object('version', expected + 1));
        RETURN;
    END IF;
    IF coalesce(past->>'last', '') = cmd->>'expected' AND version = expected AND NOT taken THEN
        -- Of one who may have been forgotten nothing is known but what it writes from here on.
        floor := greatest(coalesce((mine->>1)::bigint, CASE WHEN forgotten > 0 THEN number ELSE 0 END),
                          (cmd->>'acked')::bigint);
        SELECT jsonb_agg(n ORDER BY place) INTO numbers
          FROM (SELECT n, place FROM jsonb_array_elements(mine->2) WITH ORDINALITY AS x(n, place) WHERE n::bigint >= floor
                UNION ALL SELECT to_jsonb(number), 1000000) AS y;
        IF jsonb_array_length(numbers) > 1024 THEN
            SELECT jsonb_agg(n ORDER BY n) INTO numbers
              FROM (SELECT n::bigint AS n FROM jsonb_array_elements(numbers) AS n ORDER BY 1 DESC LIMIT 1024) AS y;
            floor := greatest(floor, (numbers->>0)::bigint);
        END IF;
        SELECT jsonb_agg(w ORDER BY place) INTO writers
          FROM jsonb_array_elements(past->'writers') WITH ORDINALITY AS x(w, place) WHERE w->>0 <> client;
        writers := coalesce(writers, '[]')
            || jsonb_build_array(jsonb_build_array(client, floor, numbers, expected + 1));
        IF jsonb_array_length(writers) > 64 THEN
            forgotten := greatest(forgotten, (writers->0->>3)::bigint);
            writers := writers - 0;
        END IF;
        changed := true;
        version := expected + 1;
        value := cmd->>'value';
        past := holdfast.put(jsonb_build_object('last', request, 'writers', writers), 'forgotten', to_jsonb(forgotten));
        answer := jsonb_build_array('Swapped', jsonb_build_object('version', version));
        RETURN;
    END IF;
    IF reserve > 0 AND NOT taken THEN
        changed := true;
        past := past || jsonb_build_object('reserved_by', client, 'reserved_until', at + least(reserve, 1000000));
    END IF;
    answer := jsonb_build_array('Conflict', jsonb_build_object(
        'version', version, 'last', coalesce(past->>'last', ''), 'value', value,
        'wait', CASE WHEN taken THEN until - at ELSE 0 END,
        'decided', expected >= version OR CASE WHEN mine IS NULL THEN expected >= forgotten
                                               ELSE number >= (mine->>1)::bigint END));
END
$$;

-- Make a slot that is not there. False: somebody else is just making it, or has made it.
CREATE OR REPLACE FUNCTION holdfast.make_slot(
    ns text, scope text, owner text, key text, version bigint, value text, past jsonb) RETURNS boolean
LANGUAGE plpgsql SET lock_timeout = 1 AS $$
BEGIN
    INSERT INTO holdfast.slots VALUES (ns, scope, owner, key, version, value, past) ON CONFLICT DO NOTHING;
    RETURN FOUND;
EXCEPTION
    WHEN lock_not_available THEN
    RETURN false;
END
$$;

-- Write a slot with the record of a run, under the name that is given to this write; a reservation does not stop it, and
-- ends with it. NULL: it is written. Otherwise nothing was done, and this is the answer to the record.
CREATE OR REPLACE FUNCTION holdfast.write_slot(ns text, swap jsonb, name text) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    in_scope text := swap->'address'->>0;
    of_owner text := swap->'address'->>1;
    with_key text := swap->'address'->>2;
    slot record;
    there boolean;
    remembered jsonb;
BEGIN
    SELECT s.version, s.value, s.past INTO slot FROM holdfast.slots AS s
     WHERE s.namespace = ns AND s.scope = in_scope AND s.owner = of_owner AND s.key = with_key FOR UPDATE SKIP LOCKED;
    there := FOUND;
    IF NOT there THEN
        IF EXISTS (SELECT FROM holdfast.slots AS s
                    WHERE s.namespace = ns AND s.scope = in_scope AND s.owner = of_owner AND s.key = with_key) THEN
            RETURN json_build_array('Taken', json_build_object('row', swap->'address'))::text;
        END IF;
        SELECT 0::bigint AS version, NULL::text AS value, '{}'::jsonb AS past INTO slot;
    END IF;
    IF coalesce(slot.past->>'last', '') = swap->>'expected' AND slot.version = (swap->>'version')::bigint THEN
        remembered := holdfast.put(holdfast.put(
            jsonb_build_object('last', name), 'writers', slot.past->'writers'), 'forgotten', slot.past->'forgotten');
        IF there THEN
            UPDATE holdfast.slots AS s SET version = slot.version + 1, value = swap->>'value', past = remembered
             WHERE s.namespace = ns AND s.scope = in_scope AND s.owner = of_owner AND s.key = with_key;
        ELSIF NOT holdfast.make_slot(ns, in_scope, of_owner, with_key, 1, swap->>'value', remembered) THEN
            RETURN '["Taken",{}]';
        END IF;
        RETURN NULL;
    END IF;
    RETURN json_build_array('Conflict', json_build_object(
        'version', slot.version, 'last', coalesce(slot.past->>'last', ''), 'value', slot.value))::text;
END
$$;

-- Slot commands: each slot is read once, decided upon in the order of the commands, and written once.
CREATE OR REPLACE FUNCTION holdfast.run_slots(ns text, commands jsonb, at bigint, patient boolean) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    one record;
    cmd record;
    slot record;
    step record;
    there boolean;
    stuck boolean;
    dirty boolean;
    mine jsonb;
    answers jsonb := '[]';
BEGIN
    FOR one IN
        SELECT c->1->'address'->>0 AS scope, c->1->'address'->>1 AS owner, c->1->'address'->>2 AS key,
               bool_and(c->>0 = 'ReadSlot') AS looks, jsonb_agg(jsonb_build_array(place, c->0, c->1) ORDER BY place) AS todo
          FROM jsonb_array_elements(commands) WITH ORDINALITY AS x(c, place)
         GROUP BY 1, 2, 3 ORDER BY 1, 2, 3
    LOOP
        IF one.looks THEN
            SELECT s.version, s.value, s.past INTO slot FROM holdfast.slots AS s
             WHERE s.namespace = ns AND s.scope = one.scope AND s.owner = one.owner AND s.key = one.key;
        ELSIF patient THEN
            SELECT s.version, s.value, s.past INTO slot FROM holdfast.slots AS s
             WHERE s.namespace = ns AND s.scope = one.scope AND s.owner = one.owner AND s.key = one.key FOR UPDATE;
        ELSE
            SELECT s.version, s.value, s.past INTO slot FROM holdfast.slots AS s
             WHERE s.namespace = ns AND s.scope = one.scope AND s.owner = one.owner AND s.key = one.key
               FOR UPDATE SKIP LOCKED;
        END IF;
        there := FOUND;
        stuck := NOT there AND NOT one.looks AND EXISTS (
            SELECT FROM holdfast.slots AS s
             WHERE s.namespace = ns AND s.scope = one.scope AND s.owner = one.owner AND s.key = one.key);
        IF NOT there THEN
            SELECT 0::bigint AS version, NULL::text AS value, '{}'::jsonb AS past INTO slot;
        END IF;
        dirty := false;
        mine := '[]';
        FOR cmd IN SELECT (t->>0)::bigint AS place, t->>1 AS op, t->2 AS body FROM jsonb_array_elements(one.todo) AS t LOOP
            IF stuck THEN
                mine := mine || jsonb_build_array(jsonb_build_array(cmd.place, '["Taken", {}]'::jsonb));
            ELSIF cmd.op = 'ReadSlot' THEN
                mine := mine || jsonb_build_array(jsonb_build_array(cmd.place, jsonb_build_array('SlotSeen',
                    jsonb_build_object('version', slot.version, 'last', coalesce(slot.past->>'last', ''), 'value', slot.value))));
            ELSE
                SELECT * INTO step FROM holdfast.swap(slot.version, slot.value, slot.past, cmd.body, at);
                mine := mine || jsonb_build_array(jsonb_build_array(cmd.place, step.answer));
                IF step.changed THEN
                    dirty := true;
                    SELECT step.version, step.value, step.past INTO slot;
                END IF;
            END IF;
        END LOOP;
        IF dirty AND there THEN
            UPDATE holdfast.slots AS s SET version = slot.version, value = slot.value, past = slot.past
             WHERE s.namespace = ns AND s.scope = one.scope AND s.owner = one.owner AND s.key = one.key;
        ELSIF dirty THEN
            INSERT INTO holdfast.slots VALUES (ns, one.scope, one.owner, one.key, slot.version, slot.value, slot.past)
                ON CONFLICT DO NOTHING;
            IF NOT FOUND THEN
                SELECT jsonb_agg(jsonb_build_array(m->0, '["Taken", {}]'::jsonb)) INTO mine FROM jsonb_array_elements(mine) AS m;
            END IF;
        END IF;
        answers := answers || mine;
    END LOOP;
    RETURN (SELECT jsonb_agg(a->1 ORDER BY (a->>0)::bigint) FROM jsonb_array_elements(answers) AS a);
END
$$;
