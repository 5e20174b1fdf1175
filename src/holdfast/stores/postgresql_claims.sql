-- Holdfast on PostgreSQL: workers, what they claim, and batches of commands about runs.
--
-- Who claims takes rows that are free, in the order in which they are due, and waits for nobody: two who claim at once
-- share the work. Giving a run to a worker and forgetting a dead worker exclude each other by the worker's own row:
-- otherwise a run could be given to one who is just forgotten, and nobody would ever look for it.

-- Lock the rows of a batch: those of the workers that are given runs or go, those of the runs, and those of the parents
-- of runs that may end (`held`, those that we got). Patiently in the order of their names, else those that are free; returns
-- the names of the others. Behind them the locks of the limits by which a run comes in, or is let in when another
-- ends. The parts about runs say in the end which rows these are, and where runs that are started are counted. So that
-- no lock is judged by an earlier time than its own, those that runs ask for or give back are locked here too, if they
-- are free.
CREATE OR REPLACE FUNCTION holdfast.take_runs(
    ns text, parts jsonb, patient boolean, OUT missed text[], OUT gone text[], OUT held text[])
LANGUAGE plpgsql AS $$
DECLARE
    wanted text[] := ARRAY(SELECT DISTINCT jsonb_path_query(parts, '$[*][2].runs[*]') #>> '{}');
    ending text[] := ARRAY(SELECT jsonb_path_query(parts, '$[*][2].ends[*]') #>> '{}');
    givers text[] := ARRAY(SELECT DISTINCT jsonb_path_query(parts, '$[*][2].gives[*]') #>> '{}');
    leaving text[] := ARRAY(SELECT DISTINCT jsonb_path_query(parts, '$[*][2].leaves[*]') #>> '{}');
    published text[] := '{}';
    places jsonb := '[]';
    counted text[] := '{}';
    owning text[] := '{}';
    got text[];
BEGIN
    missed := '{}';
    gone := '{}';
    held := '{}';
    IF givers <> '{}' THEN
        got := ARRAY(SELECT w.id FROM holdfast.workers AS w WHERE w.namespace = ns AND w.id = ANY (givers)
                      ORDER BY w.id FOR KEY SHARE SKIP LOCKED);
        gone := gone || ARRAY(SELECT w.id FROM holdfast.workers AS w
                               WHERE w.namespace = ns AND w.id = ANY (givers) AND w.id <> ALL (got));
    END IF;
    IF leaving <> '{}' THEN
        got := ARRAY(SELECT w.id FROM holdfast.workers AS w WHERE w.namespace = ns AND w.id = ANY (leaving)
                      ORDER BY w.id FOR UPDATE SKIP LOCKED);
        gone := gone || ARRAY(SELECT w.id FROM holdfast.workers AS w
                               WHERE w.namespace = ns AND w.id = ANY (leaving) AND w.id <> ALL (got));
    END IF;
    IF ending <> '{}' THEN
        SELECT coalesce(array_agg(r.parent) FILTER (WHERE r.parent <> ''), '{}'),
               coalesce(array_agg(r.id) FILTER (WHERE r.places <> '[]'), '{}'),
               coalesce(array_agg(r.id) FILTER (WHERE r.locks <> '[]'), '{}') INTO held, counted, owning
          FROM holdfast.runs AS r WHERE r.namespace = ns AND r.id = ANY (ending);
        wanted := wanted || held;
    END IF;
    IF wanted = '{}' THEN
        got := '{}';
    ELSIF patient THEN
        got := ARRAY(SELECT r.id FROM holdfast.runs AS r WHERE r.namespace = ns AND r.id = ANY (wanted)
                      ORDER BY r.id FOR UPDATE);
    ELSE
        got := ARRAY(SELECT r.id FROM holdfast.runs AS r WHERE r.namespace = ns AND r.id = ANY (wanted)
                      ORDER BY r.id FOR UPDATE SKIP LOCKED);
        IF cardinality(got) < cardinality(wanted) THEN
            missed := ARRAY(SELECT r.id FROM holdfast.runs AS r
                             WHERE r.namespace = ns AND r.id = ANY (wanted) AND r.id <> ALL (got));
        END IF;
    END IF;
    IF held <> '{}' THEN
        held := ARRAY(SELECT DISTINCT h FROM unnest(held) AS h WHERE h = ANY (got));
    END IF;
    IF parts @? '$[*][2].counts' THEN
        published := ARRAY(SELECT jsonb_path_query(parts, '$[*][2].counts.publishes[*]') #>> '{}');
        places := jsonb_path_query_array(parts, '$[*][2].counts.places[*]');
        got := ARRAY(SELECT jsonb_path_query(parts, '$[*][2].counts.enters[*]') #>> '{}');
        counted := counted || got;
        owning := owning || got;
    END IF;
    IF counted <> '{}' THEN
        places := places || (SELECT coalesce(jsonb_agg(jsonb_build_array(r.workflow, r.places)), '[]')
                               FROM holdfast.runs AS r
                              WHERE r.namespace = ns AND r.id = ANY (counted) AND r.places <> '[]');
    END IF;
    IF places <> '[]' OR published <> '{}' THEN
        PERFORM holdfast.lock_parties(ns, places, published);
    END IF;
    IF owning <> '{}' OR parts @? '$[*][2].locks' THEN
        PERFORM holdfast.take_locks(
            ns, ARRAY(SELECT jsonb_path_query(parts, '$[*][2].locks[*]') #>> '{}'), owning);
    END IF;
END
$$;

-- Lock the rows of these locks, and of those of these runs, as far as they are free.
CREATE OR REPLACE FUNCTION holdfast.take_locks(ns text, keys text[], owning text[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM (
        SELECT unnest(keys) AS key
        UNION SELECT l->>1 FROM holdfast.runs AS r CROSS JOIN LATERAL jsonb_array_elements(r.locks) AS l
               WHERE r.namespace = ns AND r.id = ANY (owning)) AS k
      CROSS JOIN LATERAL (
          SELECT FROM holdfast.locks AS o WHERE o.namespace = ns AND o.key = k.key FOR UPDATE SKIP LOCKED) AS l;
END
$$;

-- Set the runs of dead workers free. Who has none left is forgotten. A lease that a clock step has stretched is settled:
-- a clock that was set back must not keep the dead alive. Whatever somebody else is at is left for another time.
CREATE OR REPLACE FUNCTION holdfast.bury(ns text, me text, at bigint, live boolean) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    room bigint := 1000;
    w record;
    rec jsonb;
    settled jsonb;
    orphans text[];
BEGIN
    FOR w IN
        SELECT o.id FROM holdfast.workers AS o
          LEFT JOIN holdfast.locks AS l ON l.namespace = o.namespace AND l.key = 'worker/' || o.id
         WHERE o.namespace = ns AND NOT coalesce(
               l.record->'holders'->0->>'id' = o.id AND l.record->'holders'->1 IS NULL
               AND NOT l.record ?| ARRAY['waiters', 'tombstones', 'closed_until', 'due_at']
               AND NOT l.record->'holders'->0 ?| ARRAY['offered', 'session']
               AND (l.record->'holders'->0->>'expires_at')::bigint > at
               AND (l.record->'holders'->0->>'expires_at')::bigint <= at + (l.record->'holders'->0->>'ttl')::bigint, false)
         ORDER BY o.since, o.id
    LOOP
        SELECT l.record INTO rec FROM holdfast.locks AS l
         WHERE l.namespace = ns AND l.key = 'worker/' || w.id FOR UPDATE SKIP LOCKED;
        IF FOUND THEN
            CONTINUE WHEN NOT holdfast.readable(rec) OR live AND holdfast.is_younger(rec, at);
            SELECT s.rec INTO settled FROM holdfast.settle(rec, at) AS s;
            IF settled <> rec THEN
                UPDATE holdfast.locks AS l SET record = settled, due_at = (settled->>'due_at')::bigint
                 WHERE l.namespace = ns AND l.key = 'worker/' || w.id;
            END IF;
        ELSE
            CONTINUE WHEN EXISTS (SELECT FROM holdfast.locks AS l WHERE l.namespace = ns AND l.key = 'worker/' || w.id);
            settled := NULL;
        END IF;
        CONTINUE WHEN w.id = me OR room < 1 OR holdfast.holds(settled, at, w.id);
        PERFORM FROM holdfast.workers AS o WHERE o.namespace = ns AND o.id = w.id FOR UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND;
        orphans := ARRAY(SELECT r.id FROM holdfast.runs AS r WHERE r.namespace = ns AND r.worker = w.id AND r.worker <> ''
                          ORDER BY r.id LIMIT room FOR UPDATE SKIP LOCKED);
        UPDATE holdfast.runs AS r
           SET status = 'pending', worker = '', due_at = at - 5000000000000000, deaths = r.deaths + 1
         WHERE r.namespace = ns AND r.id = ANY (orphans);
        room := room - cardinality(orphans);
        IF room > 0 AND NOT EXISTS (
            SELECT FROM holdfast.runs AS r WHERE r.namespace = ns AND r.worker = w.id AND r.worker <> '') THEN
            DELETE FROM holdfast.workers AS o WHERE o.namespace = ns AND o.id = w.id;
        END IF;
    END LOOP;
END
$$;

-- The names of what is due of these types, the longest due first: of each type up to `most` that are due at once, and as
-- many whose time has come. `locking` passes over what others have locked, and locks the rest.
CREATE OR REPLACE FUNCTION holdfast.due_runs(ns text, types text[], at bigint, most bigint, locking boolean) RETURNS text[]
LANGUAGE plpgsql AS $$
BEGIN
    IF locking THEN
        RETURN ARRAY(
            SELECT x.id FROM unnest(types) AS t(type) CROSS JOIN LATERAL (
                SELECT * FROM (SELECT r.id, r.due_at + 5000000000000000 AS since FROM holdfast.runs AS r
                                WHERE r.namespace = ns AND r.type = t.type AND r.due_at < 0
                                  AND r.status IN ('queued', 'pending', 'running', 'suspended')
                                ORDER BY r.due_at, r.id LIMIT most FOR UPDATE SKIP LOCKED) AS at_once
                UNION ALL
                SELECT * FROM (SELECT r.id, r.due_at FROM holdfast.runs AS r
                                WHERE r.namespace = ns AND r.type = t.type AND r.due_at BETWEEN 0 AND at
                                  AND r.status IN ('queued', 'pending', 'running', 'suspended')
                                ORDER BY r.due_at, r.id LIMIT most FOR UPDATE SKIP LOCKED) AS timed) AS x
             ORDER BY x.since, x.id);
    END IF;
    RETURN ARRAY(
        SELECT x.id FROM unnest(types) AS t(type) CROSS JOIN LATERAL (
            (SELECT r.id, r.due_at + 5000000000000000 AS since FROM holdfast.runs AS r
              WHERE r.namespace = ns AND r.type = t.type AND r.due_at < 0
                AND r.status IN ('queued', 'pending', 'running', 'suspended') ORDER BY r.due_at, r.id LIMIT most)
            UNION ALL
            (SELECT r.id, r.due_at FROM holdfast.runs AS r
              WHERE r.namespace = ns AND r.type = t.type AND r.due_at BETWEEN 0 AND at
                AND r.status IN ('queued', 'pending', 'running', 'suspended') ORDER BY r.due_at, r.id LIMIT most)) AS x
         ORDER BY x.since, x.id);
END
$$;

-- End a run whose workers died over and over. Where somebody is in the way of those whom its end would let in, or of
-- its locks, it is for another time: it must not keep a worker from all other runs.
CREATE OR REPLACE FUNCTION holdfast.end_poisoned(
    r holdfast.runs, at bigint, live boolean, missed text[], above holdfast.runs) RETURNS text[]
LANGUAGE plpgsql AS $$
DECLARE
    how text := format(
        '{"type":"RunPoisoned","message":"its worker died %s times in a row while it drove this run"}', r.deaths);
    mind record;
    woken text[];
BEGIN
    IF r.places = '[]' AND r.locks = '[]' THEN
        RETURN (holdfast.end_run(r, at, 'failed', how, above)).woken;
    END IF;
    mind := holdfast.ask_locks(r, '[]', true, at, live, missed);
    IF mind.answer IS NULL THEN
        BEGIN
            woken := (holdfast.end_run(r, at, 'failed', how, above)).woken;
            PERFORM holdfast.put_locks(r.namespace, mind.before, mind.freed);
            RETURN woken || mind.heirs || holdfast.tell(r.namespace, mind.heirs, at);
        EXCEPTION
            WHEN lock_not_available OR serialization_failure OR deadlock_detected THEN
            NULL;
        END;
    END IF;
    UPDATE holdfast.runs AS o SET due_at = at + 1000000
     WHERE o.namespace = r.namespace AND o.id = r.id AND o.due_at <= at;
    RETURN '{}';
END
$$;

-- Give a worker the runs that it names, or up to `limit` that are due; each with a higher fence.
CREATE OR REPLACE FUNCTION holdfast.claim_runs(
    ns text, cmd jsonb, at bigint, live boolean, missed text[], OUT answer text, OUT woken text[])
LANGUAGE plpgsql AS $$
DECLARE
    me text := cmd->>'worker';
    most bigint := (cmd->>'limit')::bigint;
    suspects bigint := (cmd->>'suspects')::bigint;
    types text[] := ARRAY(SELECT t->>0 FROM jsonb_array_elements(cmd->'types') AS t);
    becomes jsonb := (SELECT coalesce(jsonb_object_agg(t->>0, t->>1), '{}') FROM jsonb_array_elements(cmd->'types') AS t);
    named text[] := ARRAY(SELECT n FROM jsonb_array_elements_text(cmd->'runs') WITH ORDINALITY AS x(n, place)
                           GROUP BY n ORDER BY min(place));
    waiting text[] := ARRAY(SELECT r.id FROM holdfast.runs AS r  -- not to be had, not even by name
                             WHERE r.namespace = ns AND r.id = ANY (named) AND r.status = 'queued');
    wanted text[];
    chunk text[];
    place bigint;
    looked bigint;
    skipped boolean := false;
    r holdfast.runs;
    above record;
    found text[] := '{}';
BEGIN
    woken := '{}';
    IF named && missed THEN
        answer := holdfast.taken((SELECT n FROM unnest(named) AS n WHERE n = ANY (missed) LIMIT 1));
        RETURN;
    ELSIF NOT holdfast.works(ns, me, at) THEN
        answer := '["WorkerGone",{}]';
        RETURN;
    END IF;
    PERFORM holdfast.bury(ns, me, at, live);
    FOR look IN 1..2 LOOP  -- the second time past what others have locked, if there was any such
        EXIT WHEN look = 2 AND (named <> '{}' OR NOT skipped OR cardinality(found) >= most);
        wanted := CASE WHEN named <> '{}' THEN named
                       ELSE holdfast.due_runs(ns, types, at, most - cardinality(found), look = 2) END;
        place := 1;
        WHILE place <= cardinality(wanted) AND cardinality(found) < most LOOP
            chunk := wanted[place:place + most - cardinality(found) - 1];
            place := place + cardinality(chunk);
            looked := 0;
            FOR r IN
                SELECT x.* FROM unnest(chunk) WITH ORDINALITY AS c(id, turn) CROSS JOIN LATERAL (
                    SELECT * FROM holdfast.runs AS o
                     WHERE o.namespace = ns AND o.id = c.id AND (named <> '{}' OR o.due_at <= at) FOR UPDATE SKIP LOCKED) AS x
                 ORDER BY c.turn
            LOOP
                looked := looked + 1;
                CONTINUE WHEN r.status NOT IN ('pending', 'running', 'suspended') OR r.id = ANY (waiting) OR
                    NOT becomes ? r.type OR r.worker <> me AND holdfast.lives(ns, r.worker, at);
                IF holdfast.is_locked(ns, r.workflow, r.id, at)
                    OR r.deaths BETWEEN 2 AND 4 AND r.worker <> me AND suspects < 1 AND named = '{}' THEN
                    UPDATE holdfast.runs AS o SET due_at = at + 1000000
                     WHERE o.namespace = ns AND o.id = r.id AND o.due_at <= at;
                    CONTINUE;
                ELSIF r.deaths >= 5 THEN
                    above := holdfast.own(ns, r.parent, missed);
                    CONTINUE WHEN above.taken;  -- another time
                    SELECT * INTO r FROM holdfast.runs AS o WHERE o.namespace = ns AND o.id = r.id;  -- as it is by now
                    woken := woken || holdfast.end_poisoned(r, at, live, missed, above.r);
                    CONTINUE;
                ELSIF r.deaths >= 2 AND r.worker <> me THEN
                    suspects := suspects - 1;
                END IF;
                IF r.worker <> me THEN
                    UPDATE holdfast.runs AS o
                       SET status = 'running', type = becomes->>r.type, worker = me, fence = greatest(o.fence + 1, at),
                           lives = o.lives + 1, due_at = NULL, started_at = coalesce(o.started_at, at)
                     WHERE o.namespace = ns AND o.id = r.id;
                END IF;
                found := found || r.id;
            END LOOP;
            skipped := skipped OR looked < cardinality(chunk);
        END LOOP;
    END LOOP;
    answer := json_build_array('Claimed', json_build_object(
        'claims', (SELECT coalesce(json_agg(holdfast.shown(o, NULL, true, holdfast.held(o, at)) ORDER BY f.turn), '[]')
                     FROM unnest(found) WITH ORDINALITY AS f(id, turn)
                     JOIN holdfast.runs AS o ON o.namespace = ns AND o.id = f.id),
        'next_due', holdfast.next_due(ns, types), 'now', at, 'woken', woken))::text;
END
$$;

-- Make a living worker known, so that it is told of runs that it could claim.
CREATE OR REPLACE FUNCTION holdfast.enlist_worker(ns text, cmd jsonb, at bigint) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    IF NOT holdfast.lives(ns, cmd->>'worker', at) THEN
        RETURN '["WorkerGone",{}]';
    END IF;
    INSERT INTO holdfast.workers AS w
    VALUES (ns, cmd->>'worker', cmd->>'name', ARRAY(SELECT jsonb_array_elements_text(cmd->'types')), at)
        ON CONFLICT (namespace, id) DO UPDATE SET name = excluded.name, types = excluded.types, since = excluded.since;
    RETURN '["Enlisted",{}]';
END
$$;

-- A worker goes: what it still has is for whoever claims it, and is not counted as a death.
CREATE OR REPLACE FUNCTION holdfast.dismiss_worker(ns text, who text, at bigint, OUT answer text, OUT woken text[])
LANGUAGE plpgsql AS $$
DECLARE
    owned text[];
    other text;
    r holdfast.runs;
BEGIN
    woken := '{}';
    owned := ARRAY(SELECT o.id FROM holdfast.runs AS o WHERE o.namespace = ns AND o.worker = who AND o.worker <> ''
                    ORDER BY o.id FOR UPDATE SKIP LOCKED);
    SELECT o.id INTO other FROM holdfast.runs AS o
     WHERE o.namespace = ns AND o.worker = who AND o.worker <> '' AND o.id <> ALL (owned) LIMIT 1;
    IF FOUND THEN
        answer := holdfast.taken(other);
        RETURN;
    END IF;
    DELETE FROM holdfast.workers AS w WHERE w.namespace = ns AND w.id = who;
    FOREACH other IN ARRAY owned LOOP
        UPDATE holdfast.runs AS o SET status = 'pending', worker = '', due_at = at - 5000000000000000
         WHERE o.namespace = ns AND o.id = other RETURNING * INTO r;
        woken := woken || holdfast.woken_by(r, at);
    END LOOP;
    answer := json_build_array('Enlisted', json_build_object('woken', woken))::text;
END
$$;

-- Answer commands about runs, in their order. `missed` and `gone` are the runs and workers whose rows others have; a run
-- whose record had to be left is missed from there on, so that no later command overtakes it.
CREATE OR REPLACE FUNCTION holdfast.run_runs(
    ns text, commands jsonb, at bigint, live boolean, INOUT missed text[], gone text[], OUT answers text, OUT woken text[])
LANGUAGE plpgsql AS $$
DECLARE
    command jsonb;
    cmd jsonb;
    step record;
    one text;
    told text[];
    all_answers text[] := '{}';
BEGIN
    woken := '{}';
    FOR command IN SELECT c FROM jsonb_array_elements(commands) AS c LOOP
        cmd := command->1;
        told := '{}';
        IF gone <> '{}' AND command->>0 IN ('ClaimRuns', 'DismissWorker') AND cmd->>'worker' = ANY (gone) THEN
            one := '["Taken",{}]';
        ELSE
            CASE command->>0
                WHEN 'RecordRun' THEN
                    step := holdfast.record_run(ns, cmd, at, live, missed);
                    one := step.answer;
                    told := step.woken;
                    IF starts_with(one, '["Taken"') THEN
                        missed := missed || (cmd->>'run');
                    END IF;
                WHEN 'StartRun' THEN
                    step := holdfast.started(ns, cmd->'new', cmd->>'worker', at, gone);
                    one := step.answer;
                    told := step.woken;
                WHEN 'ClaimRuns' THEN
                    step := holdfast.claim_runs(ns, cmd, at, live, missed);
                    one := step.answer;
                    told := step.woken;
                WHEN 'PostEvent' THEN
                    step := holdfast.post_event(ns, cmd, at, missed);
                    one := step.answer;
                    told := step.woken;
                WHEN 'ReviveRun' THEN
                    step := holdfast.revive_run(ns, cmd, at, live, missed);
                    one := step.answer;
                    told := step.woken;
                WHEN 'DismissWorker' THEN
                    step := holdfast.dismiss_worker(ns, cmd->>'worker', at);
                    one := step.answer;
                    told := step.woken;
                WHEN 'PublishTerms' THEN
                    step := holdfast.publish_terms(ns, cmd, at);
                    one := step.answer;
                    told := step.woken;
                WHEN 'SeeTerms' THEN one := holdfast.terms_differ(ns, cmd->>'workflow');
                WHEN 'EnlistWorker' THEN one := holdfast.enlist_worker(ns, cmd, at);
                WHEN 'WatchRun' THEN one := holdfast.watch_run(ns, cmd, at, missed);
                WHEN 'SeeRun' THEN one := holdfast.see_run(ns, cmd->>'run', (cmd->>'history')::boolean, at);
                WHEN 'ListRuns' THEN one := holdfast.list_runs(ns, cmd, at);
                WHEN 'RunsOutlook' THEN
                    one := holdfast.outlook(ns, ARRAY(SELECT jsonb_array_elements_text(cmd->'types')), at);
                WHEN 'CountRuns' THEN
                    SELECT json_build_array('Census', json_build_object('counts', coalesce(json_object_agg(x.type, x.many), '{}')))::text
                      INTO one FROM (
                          SELECT r.type, count(*) AS many FROM holdfast.runs AS r
                           WHERE r.namespace = ns AND r.status IN ('queued', 'pending', 'running', 'suspended')
                           GROUP BY 1) AS x;
                WHEN 'OwnedRuns' THEN
                    SELECT json_build_array('Owned', json_build_object('runs', coalesce(json_object_agg(r.id,
                                                                 json_build_array(r.fence, r.posted)), '{}')))::text
                      INTO one FROM holdfast.runs AS r
                     WHERE r.namespace = ns AND r.worker = cmd->>'worker' AND r.worker <> '';
                WHEN 'ListWorkers' THEN
                    SELECT json_build_array('WorkersSeen', json_build_object('workers', coalesce(json_agg(json_build_object(
                               'id', w.id, 'name', w.name, 'types', w.types, 'since', w.since) ORDER BY w.since, w.id), '[]')))::text
                      INTO one FROM holdfast.workers AS w JOIN holdfast.locks AS l
                        ON l.namespace = w.namespace AND l.key = 'worker/' || w.id
                     WHERE w.namespace = ns AND holdfast.holds(l.record, at, w.id);
            END CASE;
        END IF;
        woken := woken || told;
        all_answers := all_answers || one;
    END LOOP;
    answers := '[' || array_to_string(all_answers, ',') || ']';
END
$$;
