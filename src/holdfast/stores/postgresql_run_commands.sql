-- Holdfast on PostgreSQL: commands about one run, looks at many, and workers that come and go.
--
-- Each function answers one command: `answer` is the outcome as JSON text, `woken` whom to tell. It locks what it decides
-- about, decides, and writes last. Where a row is somebody else's at this moment it answers "Taken" with the name of
-- that row, and has done nothing.

-- Add to the journal of a run that the caller drives, start its children, ask for locks, and park or end it. With a
-- swap a slot is written too; where somebody else has written it before, nothing is done at all.
CREATE OR REPLACE FUNCTION holdfast.record_run(
    ns text, cmd jsonb, at bigint, live boolean, missed text[], OUT answer text, OUT woken text[])
LANGUAGE plpgsql AS $$
DECLARE
    name text := cmd->>'run';
    seen bigint := (cmd->>'seen')::bigint;
    entries bigint := jsonb_array_length(cmd->'entries');
    what text := cmd->'then'->>'type';
    until bigint := (cmd->'then'->>'due_at')::bigint;
    mine record;
    r holdfast.runs;
    above record;
    parent holdfast.runs;
    child jsonb;
    born record;
    others text[] := '{}';
    limited jsonb := '{}';
    asking boolean := false;
    mind record;
    said jsonb := '[]';
    done boolean;
BEGIN
    woken := '{}';
    mine := holdfast.own(ns, name, missed);
    IF mine.taken THEN
        answer := holdfast.taken(name);
        RETURN;
    END IF;
    r := mine.r;
    IF r.last = cmd->>'request' THEN
        SELECT coalesce(array_agg(o.id ORDER BY c.place) FILTER (WHERE o.request <> c.child->>'request'), '{}'),
               coalesce(jsonb_object_agg(c.child->>'id', '{"what": "reject"}'::jsonb) FILTER (WHERE o.id IS NULL), '{}')
          INTO others, limited
          FROM jsonb_array_elements(cmd->'children') WITH ORDINALITY AS c(child, place)
          LEFT JOIN holdfast.runs AS o ON o.namespace = ns AND o.id = c.child->>'id';
        answer := holdfast.recorded(what IS NULL OR r.status <> 'running' OR r.fence <> (cmd->>'fence')::bigint, others,
                                    holdfast.events_of(ns, name, seen), at, woken, limited,
                                    holdfast.said_before(ns, name, cmd->'asks', at));
        RETURN;
    END IF;
    IF r.id IS NULL OR r.status <> 'running' OR r.fence <> (cmd->>'fence')::bigint OR r.length <> (cmd->>'at')::bigint THEN
        answer := holdfast.refused(r, holdfast.holder_of(ns, r.worker, at));
        RETURN;
    END IF;
    done := what IS NULL OR r.posted <= seen;
    IF done AND what = 'finish' AND r.parent <> '' THEN
        above := holdfast.own(ns, r.parent, missed);
        IF above.taken THEN
            answer := holdfast.taken(r.parent);
            RETURN;
        END IF;
        parent := above.r;
    END IF;
    IF cmd->'asks'->0 IS NOT NULL OR done AND what = 'finish' AND r.locks <> '[]' THEN
        asking := true;
        mind := holdfast.ask_locks(r, coalesce(cmd->'asks', '[]'), done AND what = 'finish', at, live, missed);
        IF mind.answer IS NOT NULL THEN
            answer := mind.answer;
            RETURN;
        END IF;
        said := mind.said;
    END IF;
    IF jsonb_typeof(cmd->'swap') = 'object' THEN
        answer := holdfast.write_slot(ns, cmd->'swap', name || ':' || (cmd->>'request'));
        IF answer IS NOT NULL THEN
            RETURN;
        END IF;
    END IF;
    IF entries > 0 THEN
        INSERT INTO holdfast.journal
        SELECT ns, name, r.length + e.place - 1, e.entry
          FROM jsonb_array_elements_text(cmd->'entries') WITH ORDINALITY AS e(entry, place);
    END IF;
    FOR n IN 0..coalesce(jsonb_array_length(cmd->'children'), 0) - 1 LOOP
        child := cmd->'children'->n;
        born := holdfast.start_run(ns, child, '', at);
        IF born.kind IS NULL THEN
            RAISE serialization_failure USING MESSAGE = 'a child is being started by somebody else at this moment';
        ELSIF born.kind = 'RunTaken' THEN
            others := others || (child->>'id');
        ELSIF born.kind = 'Limited' OR born.kind = 'Started' AND (born.r).id <> child->>'id' THEN
            limited := limited || jsonb_build_object(child->>'id', born.verdict);
        END IF;
        woken := woken || born.woken;
    END LOOP;
    IF asking THEN
        woken := woken || mind.woken || holdfast.tell(ns, mind.woken, at);
    END IF;
    IF child IS NOT NULL OR asking THEN  -- a child that came may have had it cancelled, or a lock be offered to it
        SELECT * INTO r FROM holdfast.runs AS o WHERE o.namespace = ns AND o.id = name;
        SELECT * INTO parent FROM holdfast.runs AS o WHERE o.namespace = ns AND o.id = parent.id;
        done := what IS NULL OR done AND r.posted <= seen;
    END IF;
    r.length := r.length + entries;
    r.last := cmd->>'request';
    r.deaths := CASE WHEN entries > 0 OR what IS NOT NULL THEN 0 ELSE r.deaths END;
    r.attributes := coalesce((cmd->>'attributes')::json, r.attributes);
    r.stuck := CASE WHEN jsonb_typeof(cmd->'stuck') = 'array' AND others = '{}' AND limited = '{}'  -- who was answered
                             AND NOT EXISTS (                                                       -- is not stuck
                             SELECT FROM jsonb_array_elements(said) AS s WHERE s->>'what' NOT IN ('queued', 'given'))
                    THEN jsonb_build_array(seen, cmd->'stuck') END;
    IF asking THEN
        r.locks := mind.locks;
    END IF;
    IF done AND what = 'finish' THEN
        woken := woken || (holdfast.end_run(r, at, cmd->'then'->>'status', cmd->'then'->>'result', parent)).woken;
        IF asking THEN
            PERFORM holdfast.put_locks(ns, mind.before, mind.freed);
            woken := woken || mind.heirs || holdfast.tell(ns, mind.heirs, at);
        END IF;
    ELSE
        IF asking THEN
            PERFORM holdfast.put_locks(ns, mind.before, mind.asked);
        END IF;
        IF done AND what = 'park' THEN
            r.status := 'suspended';
            r.worker := '';
            r.due_at := CASE WHEN until <= at THEN at - 5000000000000000 ELSE until END;
        END IF;
        UPDATE holdfast.runs AS o
           SET length = r.length, last = r.last, deaths = r.deaths, attributes = r.attributes, status = r.status,
               worker = r.worker, due_at = r.due_at, locks = r.locks, stuck = r.stuck
         WHERE o.namespace = ns AND o.id = name;
        IF r.worker = '' THEN
            woken := woken || holdfast.woken_by(r, at);
        END IF;
    END IF;
    answer := holdfast.recorded(
        done, others, CASE WHEN r.posted > seen THEN holdfast.events_of(ns, name, seen) ELSE '[]' END, at, woken,
        limited, said);
END
$$;

CREATE OR REPLACE FUNCTION holdfast.recorded(
    done boolean, others text[], events json, at bigint, woken text[], limited jsonb DEFAULT '{}',
    said jsonb DEFAULT '[]') RETURNS text
LANGUAGE sql IMMUTABLE AS $$
    SELECT json_build_array('Recorded', json_build_object(
        'done', done, 'taken', others, 'limited', limited, 'said', said, 'events', events, 'now', at,
        'woken', woken))::text
$$;

CREATE OR REPLACE FUNCTION holdfast.refused(r holdfast.runs, holder text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT json_build_array('Refused', json_build_object(
        'run', CASE WHEN r.id IS NOT NULL THEN row_to_json(r) END, 'holder', holder))::text
$$;

CREATE OR REPLACE FUNCTION holdfast.posted(number bigint, fresh boolean, r holdfast.runs, woken text[]) RETURNS text
LANGUAGE sql IMMUTABLE AS $$
    SELECT json_build_array('Posted', json_build_object(
        'number', number, 'fresh', fresh, 'run', row_to_json(r), 'woken', woken))::text
$$;

-- Put an event into the inbox of a living run; its driver is told, or it becomes due.
CREATE OR REPLACE FUNCTION holdfast.post_event(
    ns text, cmd jsonb, at bigint, missed text[], OUT answer text, OUT woken text[])
LANGUAGE plpgsql AS $$
DECLARE
    event jsonb := cmd->'event';
    known text := coalesce(cmd->'event'->>'key', '');
    mine record;
    r holdfast.runs;
    number bigint;
    step record;
BEGIN
    woken := '{}';
    mine := holdfast.own(ns, cmd->>'run', missed);
    IF mine.taken THEN
        answer := holdfast.taken(cmd->>'run');
        RETURN;
    END IF;
    r := mine.r;
    IF r.id IS NOT NULL AND known <> '' THEN
        SELECT e.number INTO number FROM holdfast.events AS e
         WHERE e.namespace = ns AND e.run = r.id AND e.key = known AND e.key <> '';
        IF FOUND THEN
            answer := holdfast.posted(number, false, r, woken);
            RETURN;
        END IF;
    END IF;
    IF r.id IS NULL OR r.status NOT IN ('queued', 'pending', 'running', 'suspended') THEN
        answer := holdfast.refused(r, '');
        RETURN;
    END IF;
    number := r.posted + 1;
    IF event->>'kind' = 'cancel' THEN
        IF holdfast.never_began(r) THEN
            mine := holdfast.own(ns, r.parent, missed);
            IF mine.taken THEN
                answer := holdfast.taken(r.parent);
                RETURN;
            END IF;
        END IF;
        step := holdfast.cancel_run(r, at, coalesce(event->>'name', ''), coalesce(event->>'payload', 'null'), known,
                                    mine.r);
    ELSE
        step := holdfast.put_event(r, at, event->>'kind', coalesce(event->>'name', ''),
                                   coalesce(event->>'payload', 'null'), known);
    END IF;
    woken := step.woken;
    answer := holdfast.posted(number, true, step.r, woken);
END
$$;

-- Let a run begin again after its first entries, unless somebody living drives it or its fence is new. It gives its
-- locks back.
CREATE OR REPLACE FUNCTION holdfast.revive_run(
    ns text, cmd jsonb, at bigint, live boolean, missed text[], OUT answer text, OUT woken text[])
LANGUAGE plpgsql AS $$
DECLARE
    mine record;
    r holdfast.runs;
    step record;
    mind record;
    keeping boolean;
BEGIN
    woken := '{}';
    mine := holdfast.own(ns, cmd->>'run', missed);
    IF mine.taken THEN
        answer := holdfast.taken(cmd->>'run');
        RETURN;
    END IF;
    r := mine.r;
    IF r.last = cmd->>'request' THEN
        answer := holdfast.posted(r.length, true, r, woken);
        RETURN;
    END IF;
    IF r.id IS NULL OR r.fence <> (cmd->>'fence')::bigint OR holdfast.lives(ns, r.worker, at)
        OR holdfast.is_locked(ns, r.workflow, r.id, at) THEN
        answer := holdfast.refused(r, holdfast.holder_of(ns, r.worker, at));
        RETURN;
    END IF;
    keeping := r.locks <> '[]';
    IF keeping THEN
        mind := holdfast.ask_locks(r, '[]', true, at, live, missed);
        IF mind.answer IS NOT NULL THEN
            answer := mind.answer;
            RETURN;
        END IF;
    END IF;
    r.length := greatest(1, least((cmd->>'keep')::bigint, r.length));
    r.worker := '';
    r.fence := greatest(r.fence + 1, at);
    r.deaths := 0;
    r.last := cmd->>'request';
    r.result := NULL;
    r.ended_at := NULL;
    r.cancelling := false;
    r.locks := '[]';
    r.stuck := NULL;
    r.started_at := CASE WHEN NOT (cmd->>'fresh')::boolean THEN r.started_at END;
    IF r.status IN ('queued', 'pending', 'running', 'suspended') THEN  -- it has its place, in the queue or beyond
        IF r.status <> 'queued' THEN
            r.status := 'pending';
            r.due_at := at - 5000000000000000;
        END IF;
        PERFORM holdfast.save_run(r);
        woken := holdfast.woken_by(r, at);
    ELSE
        step := holdfast.enter(r, at, '', NULL);
        IF NOT step.entered THEN
            answer := json_build_array('Limited', json_build_object('verdict', step.verdict))::text;
            RETURN;
        END IF;
        r := step.r;
        woken := step.woken;
    END IF;
    IF keeping THEN
        PERFORM holdfast.put_locks(ns, mind.before, mind.freed);
        woken := woken || mind.heirs || holdfast.tell(ns, mind.heirs, at);
    END IF;
    DELETE FROM holdfast.journal AS j WHERE j.namespace = ns AND j.run = r.id AND j.number >= r.length;
    DELETE FROM holdfast.events AS e
     WHERE e.namespace = ns AND e.run = r.id
       AND e.number = ANY (ARRAY(SELECT n::bigint FROM jsonb_array_elements_text(cmd->'forget') AS n));
    answer := holdfast.posted(r.length, true, r, woken);
END
$$;

-- Whether somebody has locked a run from outside.
CREATE OR REPLACE FUNCTION holdfast.is_locked(ns text, workflow text, run text, at bigint) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE
    rec jsonb;
BEGIN
    SELECT l.record INTO rec FROM holdfast.locks AS l WHERE l.namespace = ns AND l.key = holdfast.run_key(workflow, run);
    RETURN rec IS NOT NULL AND holdfast.holds(rec, at, NULL);
END
$$;

-- Look at a run, and with `history` at its journal and inbox.
CREATE OR REPLACE FUNCTION holdfast.see_run(ns text, name text, history boolean, at bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    r holdfast.runs;
    rec jsonb;
    ends bigint;
BEGIN
    SELECT * INTO r FROM holdfast.runs AS o WHERE o.namespace = ns AND o.id = name;
    IF NOT FOUND THEN
        RETURN json_build_array('RunSeen', json_build_object('claim', NULL, 'holder', '', 'expires_at', NULL, 'now', at))::text;
    END IF;
    IF r.worker <> '' THEN
        SELECT l.record INTO rec FROM holdfast.locks AS l WHERE l.namespace = ns AND l.key = 'worker/' || r.worker;
        IF holdfast.holds(rec, at, r.worker) THEN
            ends := (holdfast.find(rec->'holders', r.worker)->>'expires_at')::bigint;
        END IF;
    END IF;
    RETURN json_build_array('RunSeen', json_build_object(
        'claim', holdfast.shown(r, CASE WHEN history THEN NULL ELSE 1 END, history),
        'holder', holdfast.holder_of(ns, r.worker, at), 'expires_at', ends, 'now', at))::text;
END
$$;

-- Look at a run, and have this attempt told of its end.
CREATE OR REPLACE FUNCTION holdfast.watch_run(ns text, cmd jsonb, at bigint, missed text[]) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    mine record;
BEGIN
    mine := holdfast.own(ns, cmd->>'run', missed);
    IF mine.taken THEN
        RETURN holdfast.taken(cmd->>'run');
    END IF;
    UPDATE holdfast.runs AS o SET watchers = o.watchers || (cmd->>'id')
     WHERE o.namespace = ns AND o.id = cmd->>'run' AND o.status IN ('queued', 'pending', 'running', 'suspended')
       AND cmd->>'id' <> ALL (o.watchers) AND cardinality(o.watchers) < 64;
    RETURN holdfast.see_run(ns, cmd->>'run', false, at);
END
$$;

-- A page of runs, the newest first; one further is looked for, to know whether there is more.
CREATE OR REPLACE FUNCTION holdfast.list_runs(ns text, cmd jsonb, at bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    most bigint := (cmd->>'limit')::bigint;
    statuses text[] := ARRAY(SELECT jsonb_array_elements_text(cmd->'statuses'));
    oldest bigint := coalesce((cmd->>'since')::bigint, -9223372036854775808);
    newest bigint := coalesce((cmd->>'until')::bigint, 9223372036854775807);
    behind bigint := coalesce((cmd->'after'->>0)::bigint, 9223372036854775807);
    probe text := (cmd->'attributes'->0->>0) || ':' || (cmd->'attributes'->0->>1);  -- sorts most of them out cheaply
    found holdfast.runs[];
BEGIN
    found := ARRAY(
        SELECT r FROM holdfast.runs AS r
         WHERE r.namespace || '' = ns AND r.created_at >= oldest AND r.created_at < newest AND r.created_at <= behind
           AND (cmd->'after'->>1 IS NULL OR (r.created_at, r.id) < (behind, cmd->'after'->>1))
           AND (statuses = '{}' OR r.status = ANY (statuses))
           AND (cmd->>'workflow' = '' OR r.workflow = cmd->>'workflow') AND starts_with(r.id, cmd->>'prefix')
           AND (probe IS NULL
                OR strpos(r.attributes::text, probe) > 0 AND holdfast.has_attributes(r.attributes, cmd->'attributes'))
         ORDER BY r.created_at DESC, r.id DESC LIMIT most + 1);
    RETURN json_build_array('RunPage', json_build_object(
        'runs', to_json(found[:most]), 'now', at,
        'next', CASE WHEN cardinality(found) > most
                     THEN json_build_array(found[most].created_at, found[most].id) END))::text;
END
$$;

-- Whether all of these attributes, pairs of a name and a value as JSON text, are among a run's. Both sides are written by
-- the same hand, so they are compared as text: what PostgreSQL has for JSON stumbles over the escape of a NUL.
CREATE OR REPLACE FUNCTION holdfast.has_attributes(attributes json, wanted jsonb) RETURNS boolean LANGUAGE sql IMMUTABLE AS $$
    SELECT NOT EXISTS (
        SELECT FROM jsonb_array_elements(wanted) AS w
         WHERE strpos(attributes::text, (w->>0) || ':' || (w->>1)) = 0
            OR NOT EXISTS (
                SELECT FROM regexp_matches(attributes::text, '("(?:[^"\\]|\\.)*"):("(?:[^"\\]|\\.)*"|[^",}]+)', 'g') AS a
                 WHERE a[1] = w->>0 AND a[2] = w->>1))
$$;

-- When there will be something to claim: the runs of a dead worker are due now.
CREATE OR REPLACE FUNCTION holdfast.outlook(ns text, types text[], at bigint) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    due bigint := at;
BEGIN
    IF NOT EXISTS (
        SELECT FROM holdfast.workers AS w
          LEFT JOIN holdfast.locks AS l ON l.namespace = w.namespace AND l.key = 'worker/' || w.id
         WHERE w.namespace = ns AND NOT holdfast.holds(l.record, at, w.id)) THEN
        due := holdfast.next_due(ns, types);
    END IF;
    RETURN json_build_array('Outlook', json_build_object('next_due', due, 'now', at))::text;
END
$$;

CREATE OR REPLACE FUNCTION holdfast.next_due(ns text, types text[]) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    RETURN (
        SELECT min(x.due_at)
          FROM unnest(types) AS t(type) CROSS JOIN LATERAL (
              SELECT r.due_at FROM holdfast.runs AS r
               WHERE r.namespace = ns AND r.type = t.type AND r.due_at IS NOT NULL
                 AND r.status IN ('queued', 'pending', 'running', 'suspended') ORDER BY r.due_at, r.id LIMIT 1) AS x);
END
$$;
