-- Holdfast on PostgreSQL: native forms of frequent commands, each one statement.
--
-- The rules are in the library, in Python; they need a round trip to lock and read, and one to write. A form is one
-- round trip for one command and for a hundred. It answers the usual case; in any other case it changes nothing and
-- returns no row, and then the rules decide. It refuses nothing by itself. The library's tests compare forms and rules
-- on random histories, by their answers and by the stored records.
--
-- $1 is the namespace, $2 a JSON list of commands, $3 the time if a test sets the clock, else NULL. Each result row is
-- an answer: the index of its command (from 1 on), and the values described below. Rows that another transaction has
-- locked are skipped (SKIP LOCKED). The clock is read after a row is locked, so that no record is later than the time
-- of its decision: it is selected together with the locked rows (OFFSET 0 keeps it there). Each row is looked up by its
-- key and written where it was found (ctid).

-- form: hold
--
-- Acquiring a free key, renewing and releasing the only grant of a key; each command is about a different key.
--
-- Benchmark rows: "sync, one caller: acquire + release" and "100 async tasks on distinct keys" (bench/postgres.py).
-- By the rules a pair takes four round trips instead of two.
--
-- A command is [op, key, id, token, ttl, kind, permits, label]. The answer to "Acquire" is [token, since,
-- expires_at], to "Renew" [floor, expires_at], to "Release" []. Left to the rules are a key without a
-- record, a record with more than one grant in it, and a grant with any field that is not named here.
UPDATE holdfast.locks AS l
   SET record = CASE s.op
           WHEN 'Acquire' THEN s.record || jsonb_build_object(
               'fence', s.token, 'version', s.version, 'holders', jsonb_build_array(jsonb_build_object(
                   'id', s.c->2, 'label', s.c->7, 'token', s.token, 'since', s.at, 'ttl', s.ttl,
                   'expires_at', s.at + s.ttl)))
           WHEN 'Release' THEN (s.record - 'holders') || jsonb_build_object('version', s.version)
           ELSE s.record || jsonb_build_object('version', s.version, 'holders', jsonb_build_array(
               s.me || jsonb_build_object('ttl', s.ttl, 'expires_at', s.at + s.ttl))) END
  FROM (SELECT f.*, greatest(f.fence + 1, f.at) AS token FROM (
            SELECT c.place, c.command->>0 AS op, c.command AS c, (c.command->>4)::bigint AS ttl, x.spot, x.record,
                   x.record->'holders'->0 AS me, coalesce((x.record->>'fence')::bigint, 0) AS fence,
                   coalesce((x.record->>'version')::bigint, 0) + 1 AS version,
                   coalesce($3::bigint, holdfast.clock()) AS at
              FROM jsonb_array_elements($2::jsonb) WITH ORDINALITY AS c(command, place) CROSS JOIN LATERAL (
                  SELECT o.ctid AS spot, o.record FROM holdfast.locks AS o
                   WHERE o.namespace = $1 AND o.key = c.command->>1 FOR UPDATE SKIP LOCKED) AS x OFFSET 0) AS f) AS s
 WHERE l.ctid = s.spot AND coalesce(jsonb_typeof(s.record->'fence'), 'number') = 'number'
   AND coalesce(jsonb_typeof(s.record->'version'), 'number') = 'number' AND CASE
       WHEN s.op = 'Acquire' THEN
           s.record - ARRAY['kind', 'permits', 'fence', 'version'] = '{}'
           AND coalesce(s.record->'kind', '"mutex"') = s.c->5 AND coalesce(s.record->'permits', '1') = s.c->6
       ELSE
           s.me->'id' = s.c->2 AND s.me->'token' = s.c->3 AND s.record->'holders'->1 IS NULL
           AND s.record - ARRAY['kind', 'permits', 'fence', 'version', 'holders'] = '{}'
           AND s.me - ARRAY['id', 'label', 'token', 'since', 'ttl', 'expires_at'] = '{}'
           AND coalesce(s.record->>'kind', 'mutex') IN ('mutex', 'hold', 'semaphore', 'rw', 'lease', 'run', 'worker')
           AND (s.me->>'expires_at')::bigint BETWEEN s.at + 1 AND s.at + (s.me->>'ttl')::bigint
           AND (s.op = 'Release' OR (s.me->>'expires_at')::bigint <> s.at + s.ttl OR s.me->'ttl' <> s.c->4)
       END
RETURNING s.place, CASE s.op
       WHEN 'Acquire' THEN '[' || s.token || ',' || s.at || ',' || (s.at + s.ttl) || ']'
       WHEN 'Release' THEN '[]'
       ELSE '[' || (s.me->>'token') || ',' || (s.at + s.ttl) || ']' END;

-- form: record
--
-- `RecordRun` for runs that are driven, each a different run: entries for the journal, then the run may park or end.
--
-- Benchmark rows: "one run after another: a step" and "100 runs at once, 10 steps each" (bench/runs.py), "one entry
-- of a run's journal" (bench/postgres_runs.py).
--
-- A command is [run, fence, at, request, seen, entries], with a seventh value, ["park", due_at] or ["finish", status,
-- result], if the run parks or ends; $4 are the channels to which the caller itself sends hints. The answer is the time
-- and the attempts that watch the end. Left to the rules are a re-send, a wrong fence, events that the driver has not
-- seen, a park time that has passed, and a run with something in `rest` that matters. If the end of one run may affect
-- others (its parent, a limit, locks), all commands are left to the rules: the others must be notified in order. The
-- text between /*end*/ and /**/ is sent only if a run ends, together with $4.
WITH changed AS (
    UPDATE holdfast.runs AS o
       SET length = s.known + s.many, last = s.request,
           crashes = CASE WHEN s.many > 0 OR s.what <> '' THEN 0 ELSE o.crashes END,
           status = CASE s.what WHEN 'finish' THEN s.c->6->>1 WHEN 'park' THEN 'suspended' ELSE o.status END,
           worker = CASE WHEN s.what = '' THEN o.worker ELSE '' END,
           due_at = CASE WHEN s.what = 'park' THEN (s.c->6->>1)::bigint END,
           ended_at = CASE WHEN s.what = 'finish' THEN s.at END,
           result = CASE WHEN s.what = 'finish' THEN s.c->6->>2 END,
           watchers = CASE WHEN s.what = 'finish' THEN '{}' ELSE o.watchers END
      FROM (SELECT f.*, coalesce($3::bigint, holdfast.clock()) AS at FROM (
                SELECT c.place, c.command AS c, (c.command->>2)::bigint AS known, c.command->>3 AS request,
                       jsonb_array_length(c.command->5) AS many, coalesce(c.command->6->>0, '') AS what, x.*
                       /*end*/ , bool_and(c.command->6->>0 IS DISTINCT FROM 'finish' OR x.parent = '' AND x.plain
                           AND x.rest->'places' IS NULL AND x.rest->'locks' IS NULL) OVER () AS simple /**/
                  FROM jsonb_array_elements($2::jsonb) WITH ORDINALITY AS c(command, place) CROSS JOIN LATERAL (
                      SELECT r.ctid AS spot, r.id AS run, r.status, r.fence, r.length, r.posted, r.last, r.plain,
                             r.parent, r.watchers AS woken, r.rest
                        FROM holdfast.runs AS r
                       WHERE r.namespace = $1 AND r.id = c.command->>0 FOR UPDATE SKIP LOCKED) AS x
                ) AS f OFFSET 0) AS s
     WHERE o.ctid = s.spot /*end*/ AND s.simple /**/ AND s.plain
       AND s.status = 'running' AND s.fence = (s.c->>1)::bigint
       AND s.length = s.known AND s.last <> s.request AND s.posted <= (s.c->>4)::bigint
       AND (s.what <> 'park' OR coalesce((s.c->6->>1)::bigint > s.at, true))
    RETURNING s.place, s.run, s.known, s.c->5 AS entries, s.at,
              CASE WHEN s.what = 'finish' THEN s.woken ELSE '{}' END AS woken
), written AS (
    INSERT INTO holdfast.journal
    SELECT $1, d.run, d.known + e.place - 1, e.entry
      FROM changed AS d CROSS JOIN LATERAL jsonb_array_elements_text(d.entries) WITH ORDINALITY AS e(entry, place)
) /*end*/ , told AS (
    SELECT count(pg_notify('holdfast_' || md5($1 || '.' || w.channel),
                           CASE WHEN octet_length(w.ids::text) < 7900 THEN w.ids::text ELSE '' END)) AS notes
      FROM (SELECT split_part(x.id, '.', 1) AS channel, jsonb_agg(DISTINCT x.id) AS ids
              FROM changed AS d CROSS JOIN LATERAL unnest(d.woken) AS x(id) GROUP BY 1) AS w
     WHERE NOT $4::jsonb ? w.channel
) /**/
SELECT d.place, json_build_array(d.at, d.woken)::text FROM changed AS d
 /*end*/ WHERE CASE WHEN d.woken = '{}' THEN true ELSE (SELECT t.notes FROM told AS t) >= 0 END /**/;

-- form: start
--
-- Starts of runs for a worker that drives them at once, each a different run: the worker is registered and its lease
-- has not expired, the workflow has no limits, and neither the id nor the key exists.
--
-- Benchmark rows: "one run after another: a step", "100 runs at once, 10 steps each" and "from start() to the first
-- line of the first step" (bench/runs.py).
--
-- A command is [id, type, workflow, worker, key, parent, attributes, rest], in the order of the ids; $4 has for each
-- id the index of its command and its input. The answer is the time. The worker's row is locked, so that the worker
-- is not removed meanwhile.
WITH born AS (
    INSERT INTO holdfast.runs (
        namespace, id, type, workflow, status, created_at, due_at, worker, fence, length, posted, claims, crashes, last,
        key, parent, started_at, ended_at, result, attributes, watchers, plain, rest)
    SELECT $1, s.c->>0, s.c->>1, s.c->>2, 'running', s.at, NULL, s.c->>3, s.at, 1, 0, 1, 0, '', s.c->>4,
           s.c->>5, s.at, NULL, NULL, (s.c->>6)::json, '{}', true, (s.c->>7)::json
      FROM (SELECT c.command AS c, x.lease,
                   coalesce($3::bigint, holdfast.clock()) AS at
              FROM jsonb_array_elements($2::jsonb) AS c(command) CROSS JOIN LATERAL (
                  SELECT w.id FROM holdfast.workers AS w WHERE w.namespace = $1 AND w.id = c.command->>3
                     FOR KEY SHARE SKIP LOCKED) AS w CROSS JOIN LATERAL (
                  SELECT l.record->'holders'->0 AS lease FROM holdfast.locks AS l
                   WHERE l.namespace = $1 AND l.key = 'worker/' || w.id AND l.record->'holders'->1 IS NULL LIMIT 1) AS x
             OFFSET 0) AS s
     WHERE s.lease->>'id' = s.c->>3 AND (s.lease->>'expires_at')::bigint > s.at
       AND s.lease - ARRAY['id', 'label', 'token', 'since', 'ttl', 'expires_at'] = '{}'
       AND (s.c->>5 <> '' OR NOT EXISTS (
            SELECT FROM holdfast.terms AS t WHERE t.namespace = $1 AND t.workflow = s.c->>2 AND t.digest <> ''))
        ON CONFLICT DO NOTHING RETURNING id, created_at
), written AS (
    INSERT INTO holdfast.journal SELECT $1, b.id, 0, $4::jsonb->b.id->>1 FROM born AS b
)
SELECT $4::jsonb->b.id->>0, b.created_at FROM born AS b;
