-- Holdfast on PostgreSQL: the locks that belong to runs.
--
-- They say the same as the library's rules in Python (rules/belongings.py), by the rules of locks (`apply`). A command
-- about a run has that run's row and then needs rows of locks; a command about a lock has its row and then needs that
-- of a run to which it offers something. So nobody waits for the second. Whoever cannot have it has written nothing
-- yet: the answer is "Taken" with the name of that row, and the library waits for it at the beginning of another
-- transaction, which has nothing yet that others could wait for. A key that is new and that somebody else is just
-- making is waited for a millisecond at most (`make_lock`), and then all is undone and asked again. It is never passed
-- over: a run that was offered a lock and not told would sleep for ever.

-- The run that an attempt is of, and the number of its ask. NULL: it is no run's.
CREATE OR REPLACE FUNCTION holdfast.asker_of(attempt text, OUT run text, OUT number text)
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    number := substring(attempt FROM '^run:(-?[0-9]+):');
    run := substr(attempt, length(number) + 6);
END
$$;

-- Lock the rows of the runs that are among those who are offered something, before it is written. Returns the name of
-- one that cannot be had; NULL: all are ours.
CREATE OR REPLACE FUNCTION holdfast.own_askers(ns text, woken jsonb, missed text[] DEFAULT '{}') RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    name text;
BEGIN
    FOR name IN
        SELECT (holdfast.asker_of(w)).run FROM jsonb_array_elements_text(woken) AS w WHERE starts_with(w, 'run:')
    LOOP
        IF (holdfast.own(ns, name, missed)).taken THEN
            RETURN name;
        END IF;
    END LOOP;
    RETURN NULL;
END
$$;

-- Runs that were offered something hear of it by an event; their rows are ours. Returns whom to tell of that.
CREATE OR REPLACE FUNCTION holdfast.tell(ns text, woken text[], at bigint) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    attempt text;
    asker record;
    r holdfast.runs;
    hints text[] := '{}';
BEGIN
    FOREACH attempt IN ARRAY woken LOOP
        CONTINUE WHEN NOT starts_with(attempt, 'run:');
        asker := holdfast.asker_of(attempt);
        r := holdfast.own_now(ns, asker.run);
        IF r.status IN ('queued', 'pending', 'running', 'suspended') THEN
            hints := hints || (holdfast.put_event(r, at, 'lock', asker.number, 'null', '')).woken;
        END IF;
    END LOOP;
    RETURN hints;
END
$$;

-- The same for what a batch has offered: pairs of the place of a command and of the attempts, told in the order of the
-- places.
CREATE OR REPLACE FUNCTION holdfast.tell_in_order(ns text, offers jsonb, at bigint) RETURNS text[]
LANGUAGE plpgsql AS $$
BEGIN
    RETURN holdfast.tell(ns, ARRAY(
        SELECT w.id FROM jsonb_array_elements(offers) AS o
         CROSS JOIN LATERAL jsonb_array_elements_text(o->1) WITH ORDINALITY AS w(id, turn)
         ORDER BY (o->>0)::bigint, w.turn), at);
END
$$;

-- Whether somebody wrote this record after our clock was read: its times then end a little later than they could.
CREATE OR REPLACE FUNCTION holdfast.just_written(rec jsonb, at bigint) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN holdfast.readable(rec) AND EXISTS (
        SELECT FROM jsonb_array_elements(holdfast.plus(rec->'holders', rec->'waiters')) AS t
         WHERE (t->>'expires_at')::bigint - (t->>'ttl')::bigint BETWEEN at + 1 AND at + 2000000);
END
$$;

-- Lock the rows of locks that are free. `records` are theirs by their keys, without those of keys that are not
-- there; `taken` is a key whose row somebody else has, or has just written: by our time it must not be judged.
CREATE OR REPLACE FUNCTION holdfast.own_locks(
    ns text, keys text[], at bigint, live boolean, OUT records jsonb, OUT taken text)
LANGUAGE plpgsql AS $$
BEGIN
    SELECT coalesce(jsonb_object_agg(l.key, l.record), '{}') INTO records
      FROM unnest(keys) AS k(key) CROSS JOIN LATERAL (
          SELECT o.key, o.record FROM holdfast.locks AS o WHERE o.namespace = ns AND o.key = k.key
             FOR UPDATE SKIP LOCKED) AS l;
    SELECT k.key INTO taken FROM unnest(keys) AS k(key)
     WHERE CASE WHEN records ? k.key THEN live AND holdfast.just_written(records->k.key, at)
                ELSE EXISTS (SELECT FROM holdfast.locks AS o WHERE o.namespace = ns AND o.key = k.key) END
     LIMIT 1;
END
$$;

-- Decide, one after the other, what a run asks of locks whose records are `known`. `woken` is who is offered something.
CREATE OR REPLACE FUNCTION holdfast.carry_out(
    of_run text, asks jsonb, at bigint, INOUT known jsonb, OUT answers jsonb, OUT woken jsonb)
LANGUAGE plpgsql AS $$
DECLARE
    ask jsonb;
    me jsonb;
    decided record;
BEGIN
    answers := '[]';
    woken := '[]';
    FOR ask IN SELECT a FROM jsonb_array_elements(asks) AS a LOOP
        me := jsonb_build_object('id', 'run:' || (ask->>'number') || ':' || of_run);
        IF ask->'give' = 'true' THEN
            decided := holdfast.apply(known->(ask->>'key'), 'Abandon', me || '{"ttl": 0}', at);
        ELSE
            decided := holdfast.apply(
                known->(ask->>'key'), 'Acquire',
                '{"kind": "item", "permits": 1, "weight": 1, "ttl": null}'::jsonb || ask || me || jsonb_build_object(
                    'label', jsonb_build_object('name', 'run ' || of_run), 'delay', 0, 'queue', true,
                    'waiter_ttl', NULL),
                at);
        END IF;
        IF decided.rec IS NOT NULL THEN
            known := known || jsonb_build_object(ask->>'key', decided.rec);
        END IF;
        answers := answers || jsonb_build_array(decided.answer);
        woken := holdfast.plus(woken, decided.answer->1->'woken');
    END LOOP;
END
$$;

-- What came of asks, for the run; and what it has or waits for then.
CREATE OR REPLACE FUNCTION holdfast.said(asks jsonb, answers jsonb, INOUT locks jsonb, OUT told jsonb)
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    WITH come AS MATERIALIZED (
        SELECT a.ask, a.place, b.answer, CASE b.answer->>0
                   WHEN 'Granted' THEN 'granted' WHEN 'Queued' THEN 'queued' WHEN 'Abandoned' THEN 'given'
                   WHEN 'Mismatch' THEN 'mismatch' WHEN 'TooHeavy' THEN 'too_heavy' ELSE 'unknown' END AS what
          FROM jsonb_array_elements(asks) WITH ORDINALITY AS a(ask, place)
          JOIN jsonb_array_elements(answers) WITH ORDINALITY AS b(answer, place) USING (place)
    ), had AS (
        SELECT DISTINCT ON (x.number) x.number, x.key, x.keeps
          FROM (SELECT l->0 AS number, l->1 AS key, true AS keeps, 0 AS place FROM jsonb_array_elements(said.locks) AS l
                UNION ALL
                SELECT c.ask->'number', c.ask->'key', c.what IN ('granted', 'queued'), c.place FROM come AS c) AS x
         ORDER BY x.number, x.place DESC
    )
    SELECT (SELECT coalesce(jsonb_agg(jsonb_build_array(h.number, h.key) ORDER BY h.number), '[]')
              FROM had AS h WHERE h.keeps),
           (SELECT coalesce(jsonb_agg(
                       jsonb_build_object('number', c.ask->'number', 'what', c.what) || CASE c.what
                           WHEN 'granted' THEN jsonb_build_object(
                               'token', c.answer->1->'token', 'floor', c.answer->1->'floor')
                           WHEN 'mismatch' THEN jsonb_build_object('found', c.answer->1->'found')
                           ELSE '{}' END ORDER BY c.place), '[]') FROM come AS c)
      INTO locks, told;
END
$$;

-- Decide about the locks of a run whose row is ours: what it asks of them, and what it gives back if it `ends` then.
-- Nothing is written. `answer`: this is the answer to the command, because a row cannot be had, or a record not judged.
-- `before`, `asked` and `freed` are the records by their keys as they are, behind its asks, and behind its end; `woken`
-- and `heirs` are whom the two offer something: the rows of runs among them are ours.
CREATE OR REPLACE FUNCTION holdfast.ask_locks(
    r holdfast.runs, asks jsonb, ends boolean, at bigint, live boolean, missed text[],
    OUT answer text, OUT before jsonb, OUT asked jsonb, OUT freed jsonb, OUT said jsonb, OUT locks jsonb,
    OUT woken text[], OUT heirs text[])
LANGUAGE plpgsql AS $$
DECLARE
    mine record;
    step record;
    odd jsonb;
    offered jsonb;
    other text;
BEGIN
    mine := holdfast.own_locks(r.namespace, ARRAY(
        SELECT x.key COLLATE "C" FROM (
            SELECT a->>'key' FROM jsonb_array_elements(asks) AS a
            UNION SELECT l->>1 FROM jsonb_array_elements(r.locks) AS l WHERE ends) AS x(key) ORDER BY 1), at, live);
    IF mine.taken IS NOT NULL THEN
        answer := json_build_array('Taken', json_build_object('row', json_build_array('lock', '', mine.taken)))::text;
        RETURN;
    END IF;
    before := mine.records;
    step := holdfast.carry_out(r.id, asks, at, before);
    SELECT a.ask INTO odd
      FROM jsonb_array_elements(asks) WITH ORDINALITY AS a(ask, place)
     WHERE step.answers->(a.place::integer - 1)->>0 = 'Unreadable' LIMIT 1;
    IF FOUND THEN
        answer := json_build_array('Unreadable', json_build_object(
            'key', odd->'key', 'record', before->(odd->>'key')))::text;
        RETURN;
    END IF;
    asked := step.known;
    offered := step.woken;
    woken := ARRAY(SELECT jsonb_array_elements_text(step.woken));
    SELECT s.locks, s.told INTO locks, said FROM holdfast.said(asks, step.answers, r.locks) AS s;
    freed := asked;
    heirs := '{}';
    IF ends THEN
        step := holdfast.carry_out(r.id, (
            SELECT coalesce(jsonb_agg(jsonb_build_object('number', l.one->0, 'key', l.one->1, 'give', true)
                                      ORDER BY l.turn), '[]')
              FROM jsonb_array_elements(locks) WITH ORDINALITY AS l(one, turn)), at, asked);
        freed := step.known;
        offered := offered || step.woken;
        heirs := ARRAY(SELECT jsonb_array_elements_text(step.woken));
    END IF;
    other := holdfast.own_askers(r.namespace, offered, missed);
    IF other IS NOT NULL THEN
        answer := holdfast.taken(other);
    END IF;
END
$$;

-- Make the record of a key that has none. Somebody else may be just making it: then all is undone and asked again.
CREATE OR REPLACE FUNCTION holdfast.make_lock(ns text, name text, rec jsonb) RETURNS void
LANGUAGE plpgsql SET lock_timeout = 1 AS $$
BEGIN
    INSERT INTO holdfast.locks VALUES (ns, name, rec, (rec->>'due_at')::bigint) ON CONFLICT DO NOTHING;
    IF NOT FOUND THEN
        RAISE serialization_failure USING MESSAGE = 'a lock that a run asks for is just being made by somebody else';
    END IF;
END
$$;

-- Write what has become of the records of locks whose rows are ours, or that are not there.
CREATE OR REPLACE FUNCTION holdfast.put_locks(ns text, before jsonb, after jsonb) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    one record;
BEGIN
    FOR one IN
        SELECT n.key, n.value FROM jsonb_each(after) AS n WHERE n.value IS DISTINCT FROM before->n.key
         ORDER BY n.key COLLATE "C"
    LOOP
        IF before ? one.key THEN
            UPDATE holdfast.locks AS l SET record = one.value, due_at = (one.value->>'due_at')::bigint
             WHERE l.namespace = ns AND l.key = one.key;
        ELSE
            PERFORM holdfast.make_lock(ns, one.key, one.value);
        END IF;
    END LOOP;
END
$$;

-- What came of asks that were carried out already, as far as it can still be seen. Nothing is changed.
CREATE OR REPLACE FUNCTION holdfast.said_before(ns text, of_run text, asks jsonb, at bigint) RETURNS jsonb
LANGUAGE plpgsql AS $$
BEGIN
    RETURN (
        SELECT coalesce(jsonb_agg(jsonb_build_object('number', a.ask->'number') || CASE
                   WHEN a.ask->'give' = 'true' THEN '{"what": "given"}'
                   WHEN m.holder IS NOT NULL AND NOT m.holder ? 'offered' THEN jsonb_build_object(
                       'what', 'granted', 'token', m.holder->'token', 'floor', (
                           SELECT min((h->>'token')::bigint) FROM jsonb_array_elements(x.holders) AS h))
                   WHEN m.holder IS NOT NULL OR m.waiter IS NOT NULL THEN '{"what": "queued"}'
                   ELSE '{"what": "unknown"}' END ORDER BY a.place), '[]')
          FROM jsonb_array_elements(asks) WITH ORDINALITY AS a(ask, place)
          LEFT JOIN holdfast.locks AS l
            ON l.namespace = ns AND l.key = a.ask->>'key' AND holdfast.readable(l.record)
         CROSS JOIN LATERAL (SELECT holdfast.living(l.record->'holders', at) AS holders,
                                    holdfast.living(l.record->'waiters', at) AS waiters,
                                    'run:' || (a.ask->>'number') || ':' || of_run AS me) AS x
         CROSS JOIN LATERAL (SELECT holdfast.find(x.holders, x.me) AS holder,
                                    holdfast.find(x.waiters, x.me) AS waiter) AS m);
END
$$;

-- Which of its locks a run holds at this moment, each with its token. What is only offered is not held yet.
CREATE OR REPLACE FUNCTION holdfast.held(r holdfast.runs, at bigint) RETURNS json LANGUAGE plpgsql AS $$
BEGIN
    IF r.locks = '[]' THEN
        RETURN '[]';
    END IF;
    RETURN (
        SELECT coalesce(json_agg(json_build_array(x.number, x.holder->'token') ORDER BY x.number), '[]')
          FROM (SELECT m->0 AS number, holdfast.find(
                           holdfast.living(l.record->'holders', at), 'run:' || (m->>0) || ':' || r.id) AS holder
                  FROM jsonb_array_elements(r.locks) AS m
                  JOIN holdfast.locks AS l
                    ON l.namespace = r.namespace AND l.key = m->>1 AND holdfast.readable(l.record)) AS x
         WHERE x.holder IS NOT NULL AND NOT x.holder ? 'offered');
END
$$;
