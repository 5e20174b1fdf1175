-- Holdfast on PostgreSQL: the short ways of what most commands about runs are.
--
-- A run is started, its journal grows, it parks or ends. Each of these is a statement or two for one command that is alone,
-- and the same for a hundred commands of a batch. They say the same as the long ways (postgresql_run_rules.sql,
-- postgresql_run_commands.sql) where everything is as it usually is; whatever is not falls through their conditions, has
-- changed nothing, and goes the long way. One who is alone locks, checks and writes a run's row in one statement: that is
-- right because it asks nothing but the row itself, of which the server looks at the newest form once it has the lock.
-- Those of a batch have locked their rows before, unless somebody else has (`missed`, `gone`).
--
-- Of a table that is new, or has grown since it was last looked at, the server thinks that it is small, and that any index is
-- as good as any other. So the statements for many look up each row by its key (LATERAL, LIMIT 1) and write it where it was
-- found (ctid), and a status is asked for in a CASE, which no index of living runs can answer. How to do that is thought out
-- once a session, not each time anew: it would take longer than the doing.
--
-- A record comes as [run, fence, at, request, seen, entries], with a seventh, ["park", due_at] or ["finish", status,
-- result], where something is to happen then. A start comes as [id, worker, type, input, request, key, parent, root,
-- attributes], and of one that is new the answer is "Born" with the time: the library knows the rest.

-- A record by one who is alone. NULL where it is not so simple, and nothing was done: a re-send, a wrong fence, news that
-- the driver has not seen of a run that is to park or end, a time to park until that has passed, the end of a run that
-- a limit counts or that has locks. Of a run that ends and has a parent, which nothing changes, both rows are locked
-- first.
CREATE OR REPLACE FUNCTION holdfast.record_alone(ns text, c jsonb, set_time bigint, OUT answer text, OUT woken text[])
LANGUAGE plpgsql AS $$
DECLARE
    name text := c->>0;
    mine bigint := (c->>1)::bigint;
    known bigint := (c->>2)::bigint;
    asked text := c->>3;
    seen bigint := (c->>4)::bigint;
    entries bigint := jsonb_array_length(c->5);
    what text := c->6->>0;
    until bigint := CASE WHEN c->6->>0 = 'park' THEN (c->6->>1)::bigint END;
    of_parent text := '';
    above holdfast.runs;
    inbox bigint;
    at bigint;
BEGIN
    LOOP
        UPDATE holdfast.runs AS o
           SET length = known + entries, last = asked, stuck = NULL,
               deaths = CASE WHEN entries > 0 OR what IS NOT NULL THEN 0 ELSE o.deaths END,
               status = CASE what WHEN 'finish' THEN c->6->>1 WHEN 'park' THEN 'suspended' ELSE o.status END,
               worker = CASE WHEN what IS NULL THEN o.worker ELSE '' END,
               due_at = until,
               ended_at = CASE what WHEN 'finish' THEN coalesce(set_time, holdfast.clock()) END,
               result = CASE what WHEN 'finish' THEN c->6->>2 END
         WHERE o.namespace = ns AND o.id = name AND o.fence = mine AND o.length = known AND o.last <> asked
           AND CASE
                   WHEN o.status <> 'running' THEN false
                   WHEN what = 'finish' THEN o.posted <= seen AND o.parent = of_parent AND o.places = '[]'
                       AND o.locks = '[]'
                   WHEN what = 'park' THEN o.posted <= seen AND coalesce(until > coalesce(set_time, holdfast.clock()), true)
                   ELSE true END
        RETURNING o.posted, CASE what WHEN 'finish' THEN o.watchers ELSE '{}' END,
                  coalesce(o.ended_at, set_time, holdfast.clock()) INTO inbox, woken, at;
        EXIT WHEN FOUND;
        IF what IS DISTINCT FROM 'finish' OR of_parent <> '' THEN
            RETURN;
        END IF;
        SELECT o.parent INTO of_parent FROM holdfast.runs AS o WHERE o.namespace = ns AND o.id = name;
        IF coalesce(of_parent, '') IN ('', name) THEN
            RETURN;
        END IF;
        PERFORM FROM holdfast.runs AS o WHERE o.namespace = ns AND o.id IN (name, of_parent) ORDER BY o.id FOR UPDATE;
        SELECT * INTO above FROM holdfast.runs AS o WHERE o.namespace = ns AND o.id = of_parent FOR UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            RETURN;
        END IF;
    END LOOP;
    IF entries = 1 THEN
        INSERT INTO holdfast.journal VALUES (ns, name, known, c->5->>0);
    ELSIF entries > 1 THEN
        INSERT INTO holdfast.journal
        SELECT ns, name, known + e.place - 1, e.entry FROM jsonb_array_elements_text(c->5) WITH ORDINALITY AS e(entry, place);
    END IF;
    IF woken <> '{}' THEN
        UPDATE holdfast.runs AS o SET watchers = '{}' WHERE o.namespace = ns AND o.id = name;
    END IF;
    IF of_parent <> '' THEN
        woken := woken || holdfast.tell_parent(above, at, name, mine, c->6->>1, c->6->>2);
    END IF;
    IF inbox > seen THEN
        answer := holdfast.recorded(true, '{}', holdfast.events_of(ns, name, seen), at, woken);
    ELSIF woken <> '{}' THEN
        answer := holdfast.recorded(true, '{}', '[]', at, woken);
    ELSE
        answer := '["Recorded",{"done":true,"events":[],"now":' || at || '}]';
    END IF;
END
$$;

-- Records of many runs, each run once: nearly all of them in one statement. `held` are the parents of runs that may end
-- whose rows are ours. A run whose record has to be left is missed from there on, so that no later one overtakes it.
CREATE OR REPLACE FUNCTION holdfast.record_many(
    ns text, commands jsonb, at bigint, live boolean, held text[], INOUT missed text[], OUT answers text[],
    OUT woken text[])
LANGUAGE plpgsql SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    ended text[];
    c jsonb;
    step record;
BEGIN
    woken := '{}';
    IF held && ARRAY(SELECT x->>0 FROM jsonb_array_elements(commands) AS x) THEN
        -- What the end of a child tells its parent comes before the parent's own, or behind it: one by one, as they came.
        answers := array_fill(NULL::text, ARRAY[jsonb_array_length(commands)]);
    ELSE
        WITH asked AS MATERIALIZED (
            SELECT x.place, x.c->>0 AS run, (x.c->>1)::bigint AS fence, (x.c->>2)::bigint AS known, x.c->>3 AS request,
                   (x.c->>4)::bigint AS seen, x.c->5 AS entries, jsonb_array_length(x.c->5) AS many, x.c->6->>0 AS what,
                   CASE WHEN x.c->6->>0 = 'finish' THEN x.c->6->>1 END AS how, x.c->6->>2 AS result,
                   CASE WHEN x.c->6->>0 = 'park' THEN (x.c->6->>1)::bigint END AS until
              FROM jsonb_array_elements(commands) WITH ORDINALITY AS x(c, place)
        ), found AS MATERIALIZED (
            SELECT a.*, x.spot, a.what = 'finish' AND x.locks <> '[]' AS frees FROM asked AS a CROSS JOIN LATERAL (
                SELECT o.ctid AS spot, o.locks FROM holdfast.runs AS o
                 WHERE o.namespace = ns AND o.id = a.run LIMIT 1) AS x
        ), changed AS (
            UPDATE holdfast.runs AS o
               SET length = a.known + a.many, last = a.request, stuck = NULL,
                   deaths = CASE WHEN a.many > 0 OR a.what IS NOT NULL THEN 0 ELSE o.deaths END,
                   status = CASE a.what WHEN 'finish' THEN a.how WHEN 'park' THEN 'suspended' ELSE o.status END,
                   worker = CASE WHEN a.what IS NULL THEN o.worker ELSE '' END,
                   due_at = a.until, ended_at = CASE a.what WHEN 'finish' THEN at END, result = a.result
              FROM found AS a
             WHERE o.ctid = a.spot AND a.run <> ALL (missed) AND o.fence = a.fence AND o.length = a.known
               AND o.last <> a.request
               -- Where an end frees locks, what that tells other runs comes in its turn: one by one, as they came.
               AND (SELECT bool_or(f.frees) FROM found AS f) IS NOT TRUE
               AND CASE
                       WHEN o.status <> 'running' THEN false
                       WHEN a.what = 'finish' THEN o.posted <= a.seen AND o.places = '[]' AND o.locks = '[]'
                           AND (o.parent = '' OR o.parent = ANY (held) AND o.parent <> ALL (missed))
                       WHEN a.what = 'park' THEN o.posted <= a.seen AND coalesce(a.until > at, true)
                       ELSE true END
            RETURNING a.place, a.run, a.known, a.entries,
                      CASE WHEN a.what = 'finish' AND (o.watchers <> '{}' OR o.parent <> '') THEN 'ended'
                           WHEN o.posted > a.seen THEN 'more' ELSE 'done' END AS so_far
        ), written AS (
            INSERT INTO holdfast.journal
            SELECT ns, d.run, d.known + e.place - 1, e.entry
              FROM changed AS d CROSS JOIN LATERAL jsonb_array_elements_text(d.entries) WITH ORDINALITY AS e(entry, place)
        )
        SELECT array_agg(CASE d.so_far WHEN 'done' THEN '["Recorded",{"done":true,"events":[],"now":' || at || '}]'
                                       ELSE d.so_far END ORDER BY a.place),
               array_agg(CASE d.so_far WHEN 'ended' THEN a.run END ORDER BY a.place)
          INTO answers, ended FROM asked AS a LEFT JOIN changed AS d USING (place);
        IF 'ended' = ANY (answers) THEN
            FOR step IN SELECT * FROM holdfast.tell_of_ends(ns, ended, at) LOOP
                answers[step.place] := holdfast.recorded(true, '{}', '[]', at, step.woken);
                woken := woken || step.woken;
            END LOOP;
        END IF;
    END IF;
    IF 'more' = ANY (answers) OR array_position(answers, NULL) IS NOT NULL THEN
        FOR n IN 1..cardinality(answers) LOOP
            c := commands->(n - 1);
            IF answers[n] = 'more' THEN
                answers[n] := holdfast.recorded(true, '{}', holdfast.events_of(ns, c->>0, (c->>4)::bigint), at, '{}');
            ELSIF answers[n] IS NULL THEN  -- sent again, refused, with news to be heard, or not to be had now
                step := holdfast.record_run(ns, jsonb_build_object(
                    'run', c->0, 'fence', c->1, 'at', c->2, 'request', c->3, 'seen', c->4, 'entries', c->5,
                    'then', CASE c->6->>0
                        WHEN 'park' THEN jsonb_build_object('type', 'park', 'due_at', c->6->1)
                        WHEN 'finish' THEN jsonb_build_object('type', 'finish', 'status', c->6->1, 'result', c->6->2)
                        END), at, live, missed);
                answers[n] := step.answer;
                woken := woken || step.woken;
                IF starts_with(step.answer, '["Taken"') THEN
                    missed := missed || (c->>0);
                END IF;
            END IF;
        END LOOP;
    END IF;
END
$$;

-- Tell of the ends of runs: their parents, whose rows are ours and none of which is among them, each by an event; and those
-- who watched. Returns whom to wake, by the place of the run in the list.
CREATE OR REPLACE FUNCTION holdfast.tell_of_ends(ns text, ended text[], at bigint) RETURNS TABLE (place bigint, woken text[])
LANGUAGE plpgsql SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    RETURN QUERY
    WITH gone AS MATERIALIZED (
        SELECT e.place, r.ctid AS spot, r.id, r.parent, r.watchers, 'ended/' || r.id || '/' || r.fence AS key,
               '{"status":"' || r.status || '","result":' || r.result || '}' AS payload
          FROM unnest(ended) WITH ORDINALITY AS e(id, place) CROSS JOIN LATERAL (
              SELECT o.ctid, o.* FROM holdfast.runs AS o WHERE o.namespace = ns AND o.id = e.id LIMIT 1) AS r
    ), news AS MATERIALIZED (
        SELECT g.place, g.parent, g.id, g.payload, g.key, p.ctid AS spot,
               p.posted + row_number() OVER (PARTITION BY g.parent ORDER BY g.place) AS number
          FROM gone AS g CROSS JOIN LATERAL (
              SELECT o.ctid, o.* FROM holdfast.runs AS o WHERE o.namespace = ns AND o.id = g.parent LIMIT 1) AS p
         WHERE p.status IN ('queued', 'pending', 'running', 'suspended') AND (
               SELECT count(*) FROM holdfast.events AS x
                WHERE x.namespace = ns AND x.run = g.parent AND x.key = g.key AND x.key <> '') = 0
    ), above AS (
        UPDATE holdfast.runs AS p
           SET posted = n.newest, due_at = CASE WHEN p.status = 'suspended' AND coalesce(p.due_at >= 0, true)
                                                THEN at - 5000000000000000 ELSE p.due_at END
          FROM (SELECT x.spot, max(x.number) AS newest FROM news AS x GROUP BY 1) AS n
         WHERE p.ctid = n.spot RETURNING p.id, holdfast.woken_by(p, at) AS woken
    ), posted AS (
        INSERT INTO holdfast.events SELECT ns, n.parent, n.number, 'child', n.id, n.payload, n.key, at FROM news AS n
    ), told AS (
        UPDATE holdfast.runs AS o SET watchers = '{}' FROM gone AS g WHERE o.ctid = g.spot AND g.watchers <> '{}'
    )
    SELECT g.place, g.watchers || coalesce(a.woken, '{}')
      FROM gone AS g LEFT JOIN news AS n USING (place) LEFT JOIN above AS a ON a.id = n.parent;
END
$$;

-- A start by one who is alone: its worker's row is kept until the end, so that nobody forgets the worker meanwhile, and
-- the clock is read behind it. NULL where it is not so simple, and nothing was done: the id or the key is known, or the
-- worker is not, or somebody has its row, or the workflow has limits.
CREATE OR REPLACE FUNCTION holdfast.start_alone(ns text, c jsonb, set_time bigint, OUT answer text, OUT woken text[])
LANGUAGE plpgsql AS $$
DECLARE
    who text := c->>1;
    driven boolean := c->>1 <> '';
    at bigint;
    lease jsonb;
    r holdfast.runs;
BEGIN
    woken := '{}';
    IF driven THEN
        SELECT l.record INTO lease
          FROM holdfast.workers AS w JOIN holdfast.locks AS l ON l.namespace = ns AND l.key = 'worker/' || who
         WHERE w.namespace = ns AND w.id = who FOR KEY SHARE OF w SKIP LOCKED;
    END IF;
    at := coalesce(set_time, holdfast.clock());
    IF driven AND NOT holdfast.holds(lease, at, who) THEN
        RETURN;
    END IF;
    INSERT INTO holdfast.runs (namespace, id, type, workflow, status, created_at, due_at, worker, fence, length, lives,
                               request, key, parent, root, started_at, attributes)
    SELECT ns, c->>0, c->>2, split_part(c->>2, '@', 1), CASE WHEN driven THEN 'running' ELSE 'pending' END, at,
           CASE WHEN NOT driven THEN at - 5000000000000000 END, who, CASE WHEN driven THEN at ELSE 0 END, 1,
           CASE WHEN driven THEN 1 ELSE 0 END, c->>4, c->>5, c->>6, coalesce(nullif(c->>7, ''), c->>0),
           CASE WHEN driven THEN at END, (c->>8)::json
     WHERE c->>6 <> '' OR NOT EXISTS (SELECT FROM holdfast.terms AS t WHERE t.namespace = ns AND t.digest <> ''
                                         AND t.workflow = split_part(c->>2, '@', 1))
        ON CONFLICT DO NOTHING RETURNING * INTO r;
    IF NOT FOUND THEN
        RETURN;
    END IF;
    INSERT INTO holdfast.journal VALUES (ns, c->>0, 0, c->>3);
    IF NOT driven THEN
        woken := holdfast.woken_by(r, at);
    END IF;
    answer := holdfast.born(at, woken);
END
$$;

-- Starts of many runs, each id and each key once: nearly all of them in one statement.
CREATE OR REPLACE FUNCTION holdfast.start_many(
    ns text, commands jsonb, at bigint, gone text[], OUT answers text[], OUT woken text[])
LANGUAGE plpgsql SET plan_cache_mode = force_generic_plan AS $$
DECLARE
    c jsonb;
    step record;
BEGIN
    WITH asked AS MATERIALIZED (
        SELECT x.place, x.c->>0 AS id, x.c->>1 AS worker, x.c->>1 <> '' AS driven, x.c->>2 AS type, x.c AS c
          FROM jsonb_array_elements(commands) WITH ORDINALITY AS x(c, place)
    ), givers AS MATERIALIZED (
        SELECT w.id FROM holdfast.workers AS w JOIN holdfast.locks AS l ON l.namespace = ns AND l.key = 'worker/' || w.id
         WHERE w.namespace = ns AND w.id IN (SELECT a.worker FROM asked AS a) AND w.id <> ALL (gone)
           AND holdfast.holds(l.record, at, w.id)
    ), able AS MATERIALIZED (
        SELECT t.type, holdfast.able(ns, t.type, at) AS ids
          FROM (SELECT DISTINCT a.type FROM asked AS a WHERE NOT a.driven) AS t
    ), begun AS (
        INSERT INTO holdfast.runs (namespace, id, type, workflow, status, created_at, due_at, worker, fence, length, lives,
                                   request, key, parent, root, started_at, attributes)
        SELECT ns, a.id, a.type, split_part(a.type, '@', 1), CASE WHEN a.driven THEN 'running' ELSE 'pending' END, at,
               CASE WHEN NOT a.driven THEN at - 5000000000000000 END, a.worker, CASE WHEN a.driven THEN at ELSE 0 END, 1,
               CASE WHEN a.driven THEN 1 ELSE 0 END, a.c->>4, a.c->>5, a.c->>6, coalesce(nullif(a.c->>7, ''), a.id),
               CASE WHEN a.driven THEN at END, (a.c->>8)::json
          FROM asked AS a
         WHERE (NOT a.driven OR a.worker IN (SELECT g.id FROM givers AS g))
           AND (a.c->>6 <> '' OR split_part(a.type, '@', 1) NOT IN (
                SELECT t.workflow FROM holdfast.terms AS t WHERE t.namespace = ns AND t.digest <> '')) ORDER BY a.id
            ON CONFLICT DO NOTHING RETURNING id
    ), written AS (
        INSERT INTO holdfast.journal SELECT ns, b.id, 0, a.c->>3 FROM begun AS b JOIN asked AS a USING (id)
    )
    SELECT array_agg(CASE WHEN b.id IS NOT NULL THEN holdfast.born(at, h.hint) END ORDER BY a.place),
           coalesce(array_agg(h.hint[1]) FILTER (WHERE b.id IS NOT NULL AND h.hint <> '{}'), '{}')
      INTO answers, woken
      FROM asked AS a LEFT JOIN begun AS b USING (id) LEFT JOIN able AS t ON t.type = a.type AND NOT a.driven
     CROSS JOIN LATERAL (SELECT holdfast.hint_to(t.ids, a.id) AS hint OFFSET 0) AS h;
    IF array_position(answers, NULL) IS NOT NULL THEN
        FOR n IN 1..cardinality(answers) LOOP
            CONTINUE WHEN answers[n] IS NOT NULL;  -- id or key are known, its worker is not to be had, there are limits
            c := commands->(n - 1);
            step := holdfast.started(ns, jsonb_build_object(
                'id', c->0, 'type', c->2, 'input', c->3, 'request', c->4, 'key', c->5, 'parent', c->6, 'root', c->7,
                'attributes', c->8), c->>1, at, gone);
            answers[n] := step.answer;
            woken := woken || step.woken;
        END LOOP;
    END IF;
END
$$;

-- The answer to the start of a run that is new, and who is told of it.
CREATE OR REPLACE FUNCTION holdfast.born(at bigint, woken text[]) RETURNS text LANGUAGE sql IMMUTABLE AS $$
    SELECT CASE WHEN woken <> '{}' THEN '["Born",{"now":' || at || ',"woken":' || to_json(woken) || '}]'
                ELSE '["Born",{"now":' || at || '}]' END
$$;
