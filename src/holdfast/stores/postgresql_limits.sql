-- Holdfast on PostgreSQL: limits. Who comes in and who goes.
--
-- They say the same as the library's rules in Python (rules/admission.py, rules/admitting.py). What is counted are rows
-- of `places`, one for each limit that counts a living run, never a number that could drift.
--
-- Whoever counts, lets in or promotes has first locked those who are counted together, by an advisory lock, in a
-- statement of its own: a statement does not see what was committed while it waited, and one that waits and counts
-- would let in everybody who waits with it. First comes the lock of the workflow: shared by all who count, and had
-- alone by one who changes its terms. For a batch this is done before its clock is read (take_runs), in the order of
-- the numbers; those of children, and of others whom an end concerns, are locked when they are met. Nobody waits there
-- for longer than lock_timeout says. The row of a run that is to be let in, or to make way, is not waited for: where
-- somebody else has it, all is undone and asked again.

-- The name of those who are counted together. A place is [limit, key].
CREATE OR REPLACE FUNCTION holdfast.party_of(of_workflow text, place jsonb) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT of_workflow || '/' || (place->>0) || '/' || (place->>1)
$$;

-- The number of a workflow's own lock.
CREATE OR REPLACE FUNCTION holdfast.terms_number(ns text, of_workflow text) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
    SELECT hashtextextended((ns || '/' || of_workflow) COLLATE "C", 7211304)
$$;

-- The number of the lock of those who are counted together. A workflow has 256 of them for all its keys: a batch of a
-- thousand keys must not use up the room that the server has for locks.
CREATE OR REPLACE FUNCTION holdfast.party_number(ns text, of_workflow text, place jsonb) RETURNS bigint
LANGUAGE sql IMMUTABLE AS $$
    SELECT (hashtextextended((ns || '/' || of_workflow) COLLATE "C", 7211305) & ~255::bigint)
         | (hashtextextended(holdfast.party_of(of_workflow, place) COLLATE "C", 7211306) & 255)
$$;

-- Lock those who are counted at these places: `wanted` are pairs of a workflow and a list of places. The workflows that
-- are `published` are had alone.
CREATE OR REPLACE FUNCTION holdfast.lock_parties(ns text, wanted jsonb, published text[] DEFAULT '{}') RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    step record;
BEGIN
    IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
        RAISE data_exception USING MESSAGE = 'runs with limits cannot be counted in a transaction that sees the past: '
            || 'use the isolation level READ COMMITTED for it';
    END IF;
    FOR step IN
        SELECT holdfast.terms_number(ns, x.workflow) AS number, bool_or(x.alone) AS alone
          FROM (SELECT w->>0 AS workflow, false AS alone FROM jsonb_array_elements(wanted) AS w
                UNION ALL SELECT p, true FROM unnest(published) AS p) AS x GROUP BY 1 ORDER BY 1
    LOOP
        IF step.alone THEN
            PERFORM pg_advisory_xact_lock(step.number);
        ELSE
            PERFORM pg_advisory_xact_lock_shared(step.number);
        END IF;
    END LOOP;
    FOR step IN
        SELECT DISTINCT holdfast.party_number(ns, w->>0, p) AS number
          FROM jsonb_array_elements(wanted) AS w CROSS JOIN LATERAL jsonb_array_elements(w->1) AS p ORDER BY 1
    LOOP
        PERFORM pg_advisory_xact_lock(step.number);
    END LOOP;
END
$$;

-- How full the limits are that count a run, and what they say of it: the strictest answer of those that are full. A
-- limit that is not among the terms counts nobody. `kept_out`: it must wait for the end of another; `begins`: when the
-- limits on starts allow it (0: there is none, or it may begin); `paced`: who is counted by these, and up to how many.
CREATE OR REPLACE FUNCTION holdfast.weigh(
    r holdfast.runs, at bigint, OUT verdict jsonb, OUT kept_out boolean, OUT begins bigint, OUT paced jsonb)
LANGUAGE plpgsql AS $$
DECLARE
    crammed jsonb;
BEGIN
    PERFORM holdfast.lock_parties(r.namespace, jsonb_build_array(jsonb_build_array(r.workflow, r.places)));
    WITH asked AS MATERIALIZED (
        SELECT p.place, p.turn FROM jsonb_array_elements(r.places) WITH ORDINALITY AS p(place, turn)
    ), bound AS MATERIALIZED (
        SELECT a.turn, a.place, holdfast.party_of(r.workflow, a.place) AS party, (l.bound->>'max')::bigint AS most,
               coalesce((l.bound->>'per')::bigint, 0) AS span, (l.bound->>'max_queue')::bigint AS room,
               coalesce(l.bound->>'on_excess', 'reject') AS what
          FROM asked AS a CROSS JOIN LATERAL (
              SELECT b.bound FROM holdfast.terms AS t
               CROSS JOIN LATERAL jsonb_array_elements(t.terms->'limits') AS b(bound)
               WHERE t.namespace = r.namespace AND t.workflow = r.workflow AND b.bound->>'name' = a.place->>0
               LIMIT 1) AS l
    ), counted AS MATERIALIZED (
        SELECT b.*,
               CASE WHEN b.span = 0 THEN (
                   SELECT count(*) FROM (
                       SELECT FROM holdfast.places AS p
                        WHERE p.namespace = r.namespace AND p.party = b.party AND NOT p.queued LIMIT b.most) AS x)
               END AS admitted,
               CASE WHEN b.span > 0 THEN (
                   SELECT count(*) FROM holdfast.starts AS s
                    WHERE s.namespace = r.namespace AND s.party = b.party AND s.at > weigh.at)
               WHEN b.room IS NOT NULL THEN (
                   SELECT count(*) FROM (
                       SELECT FROM holdfast.places AS p
                        WHERE p.namespace = r.namespace AND p.party = b.party AND p.queued LIMIT b.room) AS x)
               END AS waiting,
               CASE WHEN b.span > 0 THEN (
                   SELECT s.at FROM holdfast.starts AS s WHERE s.namespace = r.namespace AND s.party = b.party
                    ORDER BY s.at DESC, s.run DESC LIMIT 1 OFFSET b.most - 1)
               END AS last
          FROM bound AS b
    ), timed AS MATERIALIZED (
        -- A clock that was set back makes past starts look like later ones: it costs one span at most.
        SELECT c.*, CASE WHEN c.last IS NULL THEN 0
                         ELSE least(c.last + c.span, weigh.at + c.span * (1 + c.waiting / c.most)) END AS free_at
          FROM counted AS c
    ), told AS MATERIALIZED (
        SELECT t.*, CASE WHEN t.span > 0 THEN t.free_at > weigh.at ELSE t.admitted >= t.most END AS too_many,
               jsonb_build_object(
                   'what', t.what, 'limit', t.place->0, 'key', t.place->1, 'max', t.most,
                   'retry_in', CASE WHEN t.span > 0 THEN greatest(0, t.free_at - weigh.at) END) AS answer
          FROM timed AS t
    )
    SELECT coalesce(bool_or(t.too_many AND t.span = 0), false), coalesce(max(t.free_at), 0),
           coalesce(jsonb_agg(jsonb_build_array(t.party, t.most) ORDER BY t.turn) FILTER (WHERE t.span > 0), '[]'),
           (array_agg(t.answer ORDER BY array_position(
               ARRAY['reject', 'skip', 'cancel_newest', 'cancel_oldest', 'queue'], t.what), t.turn)
               FILTER (WHERE t.too_many))[1],
           (array_agg(t.answer ORDER BY t.turn) FILTER (WHERE t.too_many AND t.waiting >= t.room))[1]
      INTO kept_out, begins, paced, verdict, crammed FROM told AS t;
    IF verdict->>'what' = 'queue' AND crammed IS NOT NULL THEN
        verdict := crammed || '{"what": "queue_full"}';
    END IF;
    verdict := coalesce(verdict, '{"what": "admit"}');
END
$$;

-- Write the rows of a living run at its limits; those who were let in have one rank.
CREATE OR REPLACE FUNCTION holdfast.take_places(r holdfast.runs) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO holdfast.places (namespace, party, queued, rank, arrival, run, workflow, place)
    SELECT r.namespace, holdfast.party_of(r.workflow, p), r.status = 'queued',
           CASE r.status WHEN 'queued' THEN -r.priority ELSE 0 END, r.arrival, r.id, r.workflow, p
      FROM jsonb_array_elements(r.places) AS p;
END
$$;

-- Remove them.
CREATE OR REPLACE FUNCTION holdfast.leave_places(r holdfast.runs) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM holdfast.places AS o USING jsonb_array_elements(r.places) AS p
     WHERE o.namespace = r.namespace AND o.party = holdfast.party_of(r.workflow, p) AND o.queued = (r.status = 'queued')
       AND o.rank = CASE r.status WHEN 'queued' THEN -r.priority ELSE 0 END AND o.arrival = r.arrival AND o.run = r.id;
END
$$;

-- Count a start where starts are counted. Of those that are not later than now only the latest need be kept.
CREATE OR REPLACE FUNCTION holdfast.note_starts(ns text, name text, at bigint, begins bigint, paced jsonb) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    step jsonb;
BEGIN
    FOR step IN SELECT p FROM jsonb_array_elements(paced) AS p LOOP
        INSERT INTO holdfast.starts VALUES (ns, step->>0, greatest(begins, note_starts.at), name);
        DELETE FROM holdfast.starts AS s
         WHERE s.ctid = ANY (ARRAY(
               SELECT o.ctid FROM holdfast.starts AS o
                WHERE o.namespace = ns AND o.party = step->>0 AND o.at <= note_starts.at
                ORDER BY o.at DESC, o.run DESC OFFSET (step->>1)::bigint));
    END LOOP;
END
$$;

-- Write all that can change of a run.
CREATE OR REPLACE FUNCTION holdfast.save_run(r holdfast.runs) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE holdfast.runs AS o
       SET type = r.type, status = r.status, due_at = r.due_at, worker = r.worker, fence = r.fence, length = r.length,
           posted = r.posted, lives = r.lives, deaths = r.deaths, last = r.last, started_at = r.started_at,
           ended_at = r.ended_at, result = r.result, attributes = r.attributes, watchers = r.watchers,
           priority = r.priority, arrival = r.arrival, cancelling = r.cancelling, locks = r.locks, stuck = r.stuck
     WHERE o.namespace = r.namespace AND o.id = r.id;
END
$$;

-- Let a run in, or do with it what the limit says that it is over. `input` is that of a run that is new; one that comes
-- again has none, and is not ended for it. `r` is the run that is there now. `entered` is false where a limit keeps it
-- out, and nothing was done; NULL where somebody else is starting it at this moment.
CREATE OR REPLACE FUNCTION holdfast.enter(
    INOUT r holdfast.runs, at bigint, for_worker text, input text,
    OUT entered boolean, OUT verdict jsonb, OUT woken text[])
LANGUAGE plpgsql AS $$
DECLARE
    weighed record;
    kept_out boolean := false;
    begins bigint := 0;
    what text;
    of_party text;
    ahead record;
BEGIN
    woken := '{}';
    entered := true;
    verdict := '{"what": "admit"}';
    IF r.places <> '[]' THEN
        weighed := holdfast.weigh(r, at);
        verdict := weighed.verdict;
        kept_out := weighed.kept_out;
        begins := weighed.begins;
    END IF;
    what := verdict->>'what';
    of_party := holdfast.party_of(r.workflow, jsonb_build_array(verdict->'limit', verdict->'key'));
    IF what IN ('reject', 'queue_full') OR input IS NULL AND what IN ('skip', 'cancel_newest') THEN
        entered := false;
        RETURN;
    ELSIF what = 'skip' THEN
        SELECT o.* INTO r
          FROM holdfast.places AS p JOIN holdfast.runs AS o ON o.namespace = p.namespace AND o.id = p.run
         WHERE p.namespace = r.namespace AND p.party = of_party AND NOT p.queued ORDER BY p.arrival, p.run LIMIT 1;
        entered := FOUND;
        RETURN;
    END IF;
    IF r.places <> '[]' THEN
        r.arrival := (
            SELECT greatest(at, max(o.arrival) + 1)
              FROM jsonb_array_elements(r.places) AS x
             CROSS JOIN (VALUES (false, 0::bigint), (true, -r.priority)) AS v(queued, rank)
             CROSS JOIN LATERAL (
                  SELECT p.arrival FROM holdfast.places AS p
                   WHERE p.namespace = r.namespace AND p.party = holdfast.party_of(r.workflow, x)
                     AND p.queued = v.queued AND p.rank = v.rank ORDER BY p.arrival DESC LIMIT 1) AS o);
    END IF;
    IF what = 'cancel_newest' OR kept_out THEN
        r.status := 'queued';
        r.due_at := NULL;
        IF what = 'cancel_oldest' THEN  -- who makes way for it is not to be followed by those who wait
            SELECT -p.rank AS priority, p.arrival INTO ahead FROM holdfast.places AS p
             WHERE p.namespace = r.namespace AND p.party = of_party AND p.queued
             ORDER BY p.rank, p.arrival, p.run LIMIT 1;
            IF FOUND THEN
                r.priority := greatest(r.priority, ahead.priority);
                r.arrival := ahead.arrival - 1;
            END IF;
        END IF;
    ELSE
        r.status := 'pending';
        r.due_at := CASE WHEN begins > at THEN begins ELSE at - 5000000000000000 END;
        IF for_worker <> '' AND r.due_at < 0 THEN
            r.status := 'running';
            r.worker := for_worker;
            r.fence := greatest(r.fence + 1, at);
            r.lives := r.lives + 1;
            r.due_at := NULL;
            r.started_at := coalesce(r.started_at, at);
        END IF;
    END IF;
    IF input IS NULL THEN
        PERFORM holdfast.save_run(r);
    ELSE
        INSERT INTO holdfast.runs SELECT r.* ON CONFLICT DO NOTHING;
        IF NOT FOUND THEN
            entered := NULL;
            RETURN;
        END IF;
        INSERT INTO holdfast.journal VALUES (r.namespace, r.id, 0, input);
    END IF;
    IF r.places <> '[]' THEN
        PERFORM holdfast.take_places(r);
    END IF;
    IF what = 'cancel_newest' THEN
        ahead := holdfast.end_run(r, at, 'cancelled', format(
            '{"type":"WorkflowConcurrencyLimitExceededError","message":"it was over the limit %s when it came"}',
            verdict->>'limit'), NULL);
        r := ahead.r;
        woken := ahead.woken;
    ELSIF r.status = 'queued' THEN
        IF what = 'cancel_oldest' THEN
            woken := holdfast.make_way(r, of_party, at);
            SELECT * INTO r FROM holdfast.runs AS o WHERE o.namespace = r.namespace AND o.id = r.id;
        END IF;
    ELSE
        IF r.places <> '[]' THEN
            PERFORM holdfast.note_starts(r.namespace, r.id, at, begins, weighed.paced);
        END IF;
        woken := holdfast.woken_by(r, at);
    END IF;
END
$$;

-- Cancel somebody for a run that waits: the oldest that was let in and is not stopping yet; else who waited, and was
-- first.
CREATE OR REPLACE FUNCTION holdfast.make_way(newcomer holdfast.runs, of_party text, at bigint) RETURNS text[]
LANGUAGE plpgsql AS $$
DECLARE
    name text;
    mine holdfast.runs;
    above holdfast.runs;
BEGIN
    LOOP
        SELECT o.id INTO name
          FROM holdfast.places AS p JOIN holdfast.runs AS o ON o.namespace = p.namespace AND o.id = p.run
         WHERE p.namespace = newcomer.namespace AND p.party = of_party AND NOT o.cancelling AND p.run <> newcomer.id
         ORDER BY p.queued, p.rank, p.arrival, p.run LIMIT 1;
        IF NOT FOUND THEN
            RETURN '{}';
        END IF;
        mine := holdfast.own_now(newcomer.namespace, name);
        EXIT WHEN NOT mine.cancelling AND mine.status IN ('queued', 'pending', 'running', 'suspended');
    END LOOP;
    IF holdfast.never_began(mine) THEN
        above := holdfast.own_now(newcomer.namespace, mine.parent);
    END IF;
    RETURN (holdfast.cancel_run(mine, at, '', 'null', '', above)).woken;
END
$$;

-- Lock a run's row at once. Where somebody else has it, all is undone and asked again: what is left out here, nobody
-- would do.
CREATE OR REPLACE FUNCTION holdfast.own_now(ns text, name text, OUT r holdfast.runs) LANGUAGE plpgsql AS $$
DECLARE
    mine record;
BEGIN
    mine := holdfast.own(ns, name, '{}');
    IF mine.taken THEN
        RAISE serialization_failure USING MESSAGE = 'a run that is let in, or makes way, is just being changed';
    END IF;
    r := mine.r;
END
$$;

-- Let in those who wait at these places of a workflow, as many as there is room for. Returns whom to wake.
CREATE OR REPLACE FUNCTION holdfast.promote(ns text, of_workflow text, at_places jsonb, at bigint) RETURNS text[]
LANGUAGE plpgsql AS $$
DECLARE
    place jsonb;
    of_party text;
    bound jsonb;
    most bigint;
    looked bigint;
    names text[];
    name text;
    seen text[];
    r holdfast.runs;
    weighed record;
    woken text[] := '{}';
BEGIN
    PERFORM holdfast.lock_parties(ns, jsonb_build_array(jsonb_build_array(of_workflow, at_places)));
    FOR place IN SELECT p FROM jsonb_array_elements(at_places) AS p LOOP
        of_party := holdfast.party_of(of_workflow, place);
        SELECT b INTO bound FROM holdfast.terms AS t CROSS JOIN LATERAL jsonb_array_elements(t.terms->'limits') AS b
         WHERE t.namespace = ns AND t.workflow = of_workflow AND b->>'name' = place->>0 LIMIT 1;
        CONTINUE WHEN coalesce((bound->>'per')::bigint, 0) > 0;
        most := (bound->>'max')::bigint;
        seen := '{}';
        looked := 8;
        <<queue>>
        LOOP  -- few at first: seldom is anyone but the first looked at
            names := ARRAY(SELECT p.run FROM holdfast.places AS p
                            WHERE p.namespace = ns AND p.party = of_party AND p.queued
                            ORDER BY p.rank, p.arrival, p.run LIMIT looked);
            FOREACH name IN ARRAY names LOOP
                CONTINUE WHEN name = ANY (seen);
                EXIT queue WHEN most IS NOT NULL AND most <= (
                    SELECT count(*) FROM (
                        SELECT FROM holdfast.places AS p
                         WHERE p.namespace = ns AND p.party = of_party AND NOT p.queued LIMIT most) AS x);
                SELECT * INTO r FROM holdfast.runs AS o WHERE o.namespace = ns AND o.id = name;
                weighed := holdfast.weigh(r, at);
                CONTINUE WHEN weighed.kept_out;
                r := holdfast.own_now(ns, name);
                CONTINUE WHEN r.status IS DISTINCT FROM 'queued';  -- it was cancelled just now
                PERFORM holdfast.leave_places(r);
                r.status := 'pending';
                r.due_at := CASE WHEN weighed.begins > at THEN weighed.begins ELSE at - 5000000000000000 END;
                PERFORM holdfast.save_run(r);
                PERFORM holdfast.take_places(r);
                PERFORM holdfast.note_starts(ns, name, at, weighed.begins, weighed.paced);
                woken := woken || holdfast.woken_by(r, at);
            END LOOP;
            EXIT WHEN looked IS NULL OR cardinality(names) < looked;
            seen := names;
            looked := NULL;
        END LOOP;
    END LOOP;
    RETURN woken;
END
$$;

-- Make terms known, unless newer ones are; who has room by them is let in at once. The workflow's lock is had alone.
CREATE OR REPLACE FUNCTION holdfast.publish_terms(ns text, cmd jsonb, at bigint, OUT answer text, OUT woken text[])
LANGUAGE plpgsql AS $$
DECLARE
    of_workflow text := cmd->>'workflow';
    of_version bigint := (cmd->>'version')::bigint;
    known holdfast.terms;
BEGIN
    woken := '{}';
    SELECT * INTO known FROM holdfast.terms AS t WHERE t.namespace = ns AND t.workflow = of_workflow;
    IF FOUND AND (of_version < known.version OR of_version = known.version AND cmd->>'digest' = known.digest) THEN
        answer := json_build_array('TermsPublished', json_build_object('terms', known.terms, 'fresh', false))::text;
        RETURN;
    END IF;
    INSERT INTO holdfast.terms AS t VALUES (ns, of_workflow, of_version, cmd->>'digest', cmd->'terms')
        ON CONFLICT (namespace, workflow)
        DO UPDATE SET version = excluded.version, digest = excluded.digest, terms = excluded.terms;
    woken := holdfast.promote(ns, of_workflow, (
        SELECT coalesce(jsonb_agg(x.place ORDER BY (x.place->>0) COLLATE "C", (x.place->>1) COLLATE "C"), '[]')
          FROM (SELECT DISTINCT p.place FROM holdfast.places AS p
                 WHERE p.namespace = ns AND p.workflow = of_workflow AND p.queued) AS x), at);
    answer := json_build_array('TermsPublished', json_build_object(
        'terms', cmd->'terms', 'fresh', true, 'woken', woken))::text;
END
$$;

-- The answer to a start by other terms than those that were published last: these.
CREATE OR REPLACE FUNCTION holdfast.terms_differ(ns text, of_workflow text) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    RETURN json_build_array('TermsDiffer', json_build_object('terms', (
        SELECT t.terms FROM holdfast.terms AS t WHERE t.namespace = ns AND t.workflow = of_workflow)))::text;
END
$$;
