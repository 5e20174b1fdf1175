-- Holdfast on PostgreSQL: what the commands about runs are made of.
--
-- They say the same as the library's stories in Python (rules/runs.py), over the tables instead of a book; the library's
-- tests compare the two on random histories. One thing is PostgreSQL's own: many transactions are at it at once. So
-- whoever decides about a run has locked its row in an earlier statement, because a statement does not see what was
-- committed while it waited: a signal and a park that each look for the other in one statement would both come through,
-- and nobody would wake the run. Rows are locked in this order: those of workers, then a run's, then its parent's, then
-- that of a slot which is written with a record; for that nobody waits (postgresql_slots.sql), nor for those of locks
-- that belong to a run (postgresql_belongings.sql). Limits have locks of their own, behind these
-- (postgresql_limits.sql).

-- The key of the lock with which others than engines lock a run.
CREATE OR REPLACE FUNCTION holdfast.run_key(workflow text, run text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT 'run/' || replace(replace(workflow, '%', '%25'), '/', '%2F') || '/' || replace(replace(run, '%', '%25'), '/', '%2F')
$$;

-- Where a hint about a run goes that is for this worker: its channel, and which run.
CREATE OR REPLACE FUNCTION holdfast.hint_for(worker text, run text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT split_part(worker, '.', 1) || '.run/' || run
$$;

-- Whether somebody (`who` is NULL), or this attempt, holds a lock at this moment. An offer is not a holding yet, and a
-- grant that is tied to a session ends with it.
CREATE OR REPLACE FUNCTION holdfast.holds(rec jsonb, at bigint, who text) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RETURN EXISTS (
        SELECT FROM jsonb_array_elements(rec->'holders') AS h
         WHERE (who IS NULL OR h->>'id' = who) AND h->'offered' IS DISTINCT FROM 'true'
           AND coalesce((h->>'expires_at')::bigint > at, true)
           AND CASE WHEN h ? 'session' THEN NOT pg_try_advisory_xact_lock_shared((h->>'session')::bigint) ELSE true END);
END
$$;

-- Whether a worker's lease lives.
CREATE OR REPLACE FUNCTION holdfast.lives(ns text, worker text, at bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    rec jsonb;
BEGIN
    IF worker = '' THEN
        RETURN false;
    END IF;
    SELECT l.record INTO rec FROM holdfast.locks AS l WHERE l.namespace = ns AND l.key = 'worker/' || worker;
    RETURN holdfast.holds(rec, at, worker);
END
$$;

-- Whether a worker may be given runs: it lives and is enlisted. One that is not would never be found dead.
CREATE OR REPLACE FUNCTION holdfast.works(ns text, worker text, at bigint) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
    RETURN holdfast.lives(ns, worker, at)
        AND EXISTS (SELECT FROM holdfast.workers AS w WHERE w.namespace = ns AND w.id = worker);
END
$$;

-- Who drives a run, for people; empty if nobody living does.
CREATE OR REPLACE FUNCTION holdfast.holder_of(ns text, worker text, at bigint) RETURNS text LANGUAGE plpgsql AS $$
BEGIN
    IF coalesce(worker, '') = '' OR NOT holdfast.lives(ns, worker, at) THEN
        RETURN '';
    END IF;
    RETURN coalesce((SELECT nullif(w.name, '') FROM holdfast.workers AS w WHERE w.namespace = ns AND w.id = worker), worker);
END
$$;

-- The living workers that can drive a type, in their order.
CREATE OR REPLACE FUNCTION holdfast.able(ns text, of_type text, at bigint) RETURNS text[] LANGUAGE plpgsql AS $$
BEGIN
    RETURN ARRAY(
        SELECT w.id
          FROM holdfast.workers AS w JOIN holdfast.locks AS l ON l.namespace = w.namespace AND l.key = 'worker/' || w.id
         WHERE w.namespace = ns AND of_type = ANY (w.types) AND holdfast.holds(l.record, at, w.id)
         ORDER BY w.since, w.id);
END
$$;

-- The hint about a run to one of these workers, now to one and now to another. An empty list: there are none.
CREATE OR REPLACE FUNCTION holdfast.hint_to(able text[], run text) RETURNS text[] LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    turn bigint := 0;
BEGIN
    IF cardinality(able) > 1 THEN
        SELECT coalesce(sum(get_byte(name, place)), 0) INTO turn
          FROM convert_to(run, 'UTF8') AS name CROSS JOIN LATERAL generate_series(0, octet_length(name) - 1) AS place;
    END IF;
    RETURN CASE WHEN able <> '{}' THEN ARRAY[holdfast.hint_for(able[1 + turn % cardinality(able)], run)] ELSE '{}' END;
END
$$;

-- Whom to tell of a run: its driver, else a worker that could drive it. An empty list: nobody.
CREATE OR REPLACE FUNCTION holdfast.woken_by(r holdfast.runs, at bigint) RETURNS text[] LANGUAGE plpgsql AS $$
BEGIN
    IF r.worker <> '' THEN
        RETURN CASE WHEN r.posted > 0 THEN ARRAY[holdfast.hint_for(r.worker, r.id)] ELSE '{}' END;
    ELSIF r.due_at IS NULL OR r.due_at > at THEN
        RETURN '{}';
    END IF;
    RETURN holdfast.hint_to(holdfast.able(r.namespace, r.type, at), r.id);
END
$$;

-- The inbox of a run, from after this number on.
CREATE OR REPLACE FUNCTION holdfast.events_of(ns text, of_run text, after bigint) RETURNS json LANGUAGE plpgsql AS $$
BEGIN
    RETURN coalesce((
        SELECT json_agg(x ORDER BY x.number)
          FROM (SELECT e.number, e.kind, e.name, e.payload, e.key, e.at FROM holdfast.events AS e
                 WHERE e.namespace = ns AND e.run = of_run AND e.number > after) AS x), '[]');
END
$$;

-- A run with its journal, or the first entries of it, and with its inbox, if that is wanted. To whom claims it, what it
-- holds is told too.
CREATE OR REPLACE FUNCTION holdfast.shown(r holdfast.runs, most bigint, inbox boolean, held json DEFAULT '[]')
RETURNS json LANGUAGE plpgsql AS $$
BEGIN
    RETURN json_build_object(
        'run', row_to_json(r),
        'entries', coalesce((
            SELECT json_agg(x.entry ORDER BY x.number)
              FROM (SELECT j.number, j.entry FROM holdfast.journal AS j WHERE j.namespace = r.namespace AND j.run = r.id
                     ORDER BY j.number LIMIT most) AS x), '[]'),
        'events', CASE WHEN inbox THEN holdfast.events_of(r.namespace, r.id, 0) ELSE '[]' END, 'held', held);
END
$$;

-- Lock a run's row unless somebody else has it. `taken`: it is there, and cannot be had now.
CREATE OR REPLACE FUNCTION holdfast.own(ns text, name text, missed text[], OUT r holdfast.runs, OUT taken boolean)
LANGUAGE plpgsql AS $$
BEGIN
    taken := name = ANY (missed);
    IF NOT taken THEN
        SELECT * INTO r FROM holdfast.runs AS o WHERE o.namespace = ns AND o.id = name FOR UPDATE SKIP LOCKED;
        taken := NOT FOUND AND EXISTS (SELECT FROM holdfast.runs AS o WHERE o.namespace = ns AND o.id = name);
    END IF;
END
$$;

-- The answer where a row cannot be had: nothing was done, and which row it is.
CREATE OR REPLACE FUNCTION holdfast.taken(name text) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT json_build_array('Taken', json_build_object('row', name))::text
$$;

-- Write an event, and what follows from it for a run whose row is ours: one that waits for an event is due at once.
CREATE OR REPLACE FUNCTION holdfast.put_event(
    INOUT r holdfast.runs, at bigint, kind text, name text, payload text, key text, OUT woken text[])
LANGUAGE plpgsql AS $$
BEGIN
    r.posted := r.posted + 1;
    r.cancelling := r.cancelling OR kind = 'cancel';
    IF r.status = 'suspended' AND (r.due_at IS NULL OR r.due_at >= 0) THEN
        r.due_at := at - 5000000000000000;
    END IF;
    UPDATE holdfast.runs AS o SET posted = r.posted, due_at = r.due_at, cancelling = r.cancelling
     WHERE o.namespace = r.namespace AND o.id = r.id;
    INSERT INTO holdfast.events VALUES (r.namespace, r.id, r.posted, kind, name, payload, key, at);
    woken := holdfast.woken_by(r, at);
END
$$;

-- Tell a run that lives and whose row is ours of the end of its child, once. Returns whom to wake.
CREATE OR REPLACE FUNCTION holdfast.tell_parent(
    above holdfast.runs, at bigint, child text, fence bigint, how text, outcome text) RETURNS text[]
LANGUAGE plpgsql AS $$
DECLARE
    news text := 'ended/' || child || '/' || fence;
BEGIN
    IF above.status IN ('queued', 'pending', 'running', 'suspended') AND NOT EXISTS (
        SELECT FROM holdfast.events AS e
         WHERE e.namespace = above.namespace AND e.run = above.id AND e.key = news AND e.key <> '') THEN
        RETURN (holdfast.put_event(
            above, at, 'child', child, '{"status":"' || how || '","result":' || outcome || '}', news)).woken;
    END IF;
    RETURN '{}';
END
$$;

-- End a run whose row is ours, and its parent's as well (`above`); tell the parent by an event, and those who watch;
-- let in who waited for its places. Its locks are given back by whoever asks this: one that never began has none.
CREATE OR REPLACE FUNCTION holdfast.end_run(
    INOUT r holdfast.runs, at bigint, how text, outcome text, above holdfast.runs, OUT woken text[])
LANGUAGE plpgsql AS $$
DECLARE
    was text := r.status;
BEGIN
    woken := r.watchers;
    IF r.places <> '[]' THEN
        PERFORM holdfast.leave_places(r);
    END IF;
    r.status := how;
    r.result := outcome;
    r.ended_at := at;
    r.worker := '';
    r.due_at := NULL;
    r.deaths := 0;
    r.watchers := '{}';
    r.locks := '[]';
    r.stuck := NULL;
    UPDATE holdfast.runs AS o
       SET status = r.status, result = r.result, ended_at = r.ended_at, worker = '', due_at = NULL, deaths = 0, watchers = '{}',
           length = r.length, last = r.last, posted = r.posted, attributes = r.attributes, locks = '[]', stuck = NULL
     WHERE o.namespace = r.namespace AND o.id = r.id;
    IF r.parent NOT IN ('', r.id) THEN
        IF above.id IS NULL THEN  -- it may have been started in this very step
            SELECT * INTO above FROM holdfast.runs AS o WHERE o.namespace = r.namespace AND o.id = r.parent FOR UPDATE;
        END IF;
        woken := woken || holdfast.tell_parent(above, at, r.id, r.fence, how, outcome);
    END IF;
    IF r.places <> '[]' AND was <> 'queued' THEN
        woken := woken || holdfast.promote(r.namespace, r.workflow, r.places, at);
    END IF;
END
$$;

-- Whether a run ends at once when it is cancelled: no code of it has run that could be told.
CREATE OR REPLACE FUNCTION holdfast.never_began(r holdfast.runs) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    RETURN r.status = 'queued' OR r.status = 'pending' AND r.started_at IS NULL;
END
$$;

-- Tell a living run to stop whose row is ours. One of which no code has run ends at once; its parent's row is ours too.
CREATE OR REPLACE FUNCTION holdfast.cancel_run(
    INOUT r holdfast.runs, at bigint, name text, payload text, key text, above holdfast.runs, OUT woken text[])
LANGUAGE plpgsql AS $$
DECLARE
    step record;
BEGIN
    IF holdfast.never_began(r) THEN
        r.posted := r.posted + 1;
        step := holdfast.end_run(
            r, at, 'cancelled', '{"type":"RunCancelled","message":"it was cancelled before it began"}', above);
        INSERT INTO holdfast.events VALUES (r.namespace, r.id, r.posted, 'cancel', name, payload, key, at);
    ELSE
        step := holdfast.put_event(r, at, 'cancel', name, payload, key);
    END IF;
    r := step.r;
    woken := step.woken;
END
$$;

-- Start a run, for a living worker or for whoever claims it. NULL where somebody else is starting it at this moment.
-- The locks of its places are ours, unless it has a parent.
CREATE OR REPLACE FUNCTION holdfast.start_run(
    ns text, new jsonb, for_worker text, at bigint,
    OUT kind text, OUT r holdfast.runs, OUT fresh boolean, OUT verdict jsonb, OUT woken text[])
LANGUAGE plpgsql AS $$
DECLARE
    of_workflow text := split_part(new->>'type', '@', 1);
    known text := coalesce(new->>'key', '');
    before holdfast.runs;
    step record;
BEGIN
    woken := '{}';
    verdict := '{"what": "admit"}';
    kind := 'Started';
    fresh := true;
    SELECT * INTO before FROM holdfast.runs AS o WHERE o.namespace = ns AND o.id = new->>'id';
    IF before.request = new->>'request' THEN
        r := before;
        RETURN;
    END IF;
    IF known <> '' THEN
        SELECT * INTO r FROM holdfast.runs AS o WHERE o.namespace = ns AND o.workflow = of_workflow AND o.key = known AND o.key <> '';
        IF FOUND THEN
            fresh := false;
            RETURN;
        END IF;
    END IF;
    IF before.id IS NOT NULL THEN
        kind := 'RunTaken';
        r := before;
        RETURN;
    ELSIF for_worker <> '' AND NOT holdfast.works(ns, for_worker, at) THEN
        kind := 'WorkerGone';
        RETURN;
    ELSIF coalesce(new->>'parent', '') = '' AND coalesce(new->>'terms', '') <> coalesce((
        SELECT t.digest FROM holdfast.terms AS t WHERE t.namespace = ns AND t.workflow = of_workflow), '') THEN
        kind := 'TermsDiffer';  -- a child is counted where its parent's code says
        RETURN;
    END IF;
    r.namespace := ns;
    r.id := new->>'id';
    r.type := new->>'type';
    r.workflow := of_workflow;
    r.created_at := at;
    r.worker := '';
    r.fence := 0;
    r.length := 1;
    r.posted := 0;
    r.lives := 0;
    r.deaths := 0;
    r.request := new->>'request';
    r.last := '';
    r.key := known;
    r.parent := coalesce(new->>'parent', '');
    r.root := coalesce(nullif(new->>'root', ''), new->>'id');
    r.attributes := coalesce(new->>'attributes', '{}')::json;
    r.watchers := '{}';
    r.places := coalesce(new->'places', '[]');
    r.priority := coalesce((new->>'priority')::bigint, 0);
    r.arrival := 0;
    r.cancelling := false;
    r.locks := '[]';
    r.stuck := NULL;
    step := holdfast.enter(r, at, for_worker, new->>'input');
    r := step.r;
    verdict := step.verdict;
    woken := step.woken;
    kind := CASE WHEN step.entered THEN 'Started' WHEN NOT step.entered THEN 'Limited' END;
    fresh := r.id = new->>'id';
END
$$;

-- The answer to a start, the long way. `gone` are the workers whose rows others have.
CREATE OR REPLACE FUNCTION holdfast.started(
    ns text, new jsonb, for_worker text, at bigint, gone text[], OUT answer text, OUT woken text[])
LANGUAGE plpgsql AS $$
DECLARE
    born record;
BEGIN
    woken := '{}';
    IF for_worker = ANY (gone) THEN
        answer := '["Taken",{}]';
        RETURN;
    END IF;
    born := holdfast.start_run(ns, new, for_worker, at);
    woken := born.woken;
    answer := CASE born.kind
        WHEN 'Started' THEN json_build_array('Started', json_build_object(
            'run', row_to_json(born.r), 'fresh', born.fresh, 'now', at, 'verdict', born.verdict, 'woken', woken))::text
        WHEN 'Limited' THEN json_build_array('Limited', json_build_object('verdict', born.verdict))::text
        WHEN 'TermsDiffer' THEN holdfast.terms_differ(ns, split_part(new->>'type', '@', 1))
        WHEN 'RunTaken' THEN json_build_array('RunTaken', json_build_object('run', row_to_json(born.r)))::text
        WHEN 'WorkerGone' THEN '["WorkerGone",{}]'
        ELSE '["Taken",{}]' END;
END
$$;

-- Who keeps a run's row locked, for people; NULL where nobody does or it cannot be seen.
CREATE OR REPLACE FUNCTION holdfast.run_locked_by(ns text, name text) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT format('process %s of the server (%s, user %s, %s since %s)', a.pid, coalesce(nullif(a.application_name, ''), 'unnamed'),
                  a.usename, coalesce(a.state, 'busy'), to_char(a.state_change, 'HH24:MI:SS'))
      FROM holdfast.runs AS r
      JOIN pg_locks AS p ON p.locktype = 'transactionid' AND p.granted AND p.transactionid = r.xmax
      JOIN pg_stat_activity AS a ON a.pid = p.pid
     WHERE r.namespace = ns AND r.id = name LIMIT 1
$$;
