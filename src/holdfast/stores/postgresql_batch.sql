-- Holdfast on PostgreSQL: batches.
--
-- A process sends its commands as one batch, `SELECT holdfast.execute(...)`: one trip, one transaction, one clock. No
-- batch waits for a row that somebody else has locked: it leaves that row alone, answers "Taken" for it, and the library
-- sends that one command again, alone and with a little patience. What is woken elsewhere is notified by the same
-- transaction, and only then.

-- Who keeps a row locked, for people; NULL where nobody does or it cannot be seen.
CREATE OR REPLACE FUNCTION holdfast.locked_by(ns text, name text) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT format('process %s of the server (%s, user %s, %s since %s)', a.pid, coalesce(nullif(a.application_name, ''), 'unnamed'),
                  a.usename, coalesce(a.state, 'busy'), to_char(a.state_change, 'HH24:MI:SS'))
      FROM holdfast.locks AS l
      JOIN pg_locks AS p ON p.locktype = 'transactionid' AND p.granted AND p.transactionid = l.xmax
      JOIN pg_stat_activity AS a ON a.pid = p.pid
     WHERE l.namespace = ns AND l.key = name LIMIT 1
$$;

CREATE OR REPLACE FUNCTION holdfast.clock() RETURNS bigint LANGUAGE sql VOLATILE AS $$
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint
$$;

-- One lock command by itself. With patience it waits for its row, else it leaves a row that is taken. The clock is read
-- when the row is ours: a record that was written while we waited must not be judged by an earlier time.
CREATE OR REPLACE FUNCTION holdfast.run_one(ns text, op text, cmd jsonb, set_time bigint, patient boolean) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    name text := cmd->>'key';
    at bigint;
    before jsonb;
    decided record;
    there boolean;
    asker text;
BEGIN
    IF op = 'Inspect' THEN
        SELECT l.record INTO before FROM holdfast.locks AS l WHERE l.namespace = ns AND l.key = name;
    ELSIF patient THEN
        SELECT l.record INTO before FROM holdfast.locks AS l WHERE l.namespace = ns AND l.key = name FOR UPDATE;
    ELSE
        SELECT l.record INTO before FROM holdfast.locks AS l WHERE l.namespace = ns AND l.key = name
           FOR UPDATE SKIP LOCKED;
    END IF;
    there := FOUND;
    at := coalesce(set_time, holdfast.clock());
    decided := holdfast.apply(before, op, cmd, at);
    IF decided.answer->1 ? 'woken' THEN
        asker := holdfast.own_askers(ns, decided.answer->1->'woken');
        IF asker IS NOT NULL THEN
            RETURN holdfast.taken(asker)::jsonb;
        END IF;
    END IF;
    IF there AND decided.rec IS NOT NULL THEN
        UPDATE holdfast.locks AS l SET record = decided.rec, due_at = (decided.rec->>'due_at')::bigint
         WHERE l.namespace = ns AND l.key = name;
    ELSIF NOT there AND decided.rec IS NOT NULL THEN
        INSERT INTO holdfast.locks VALUES (ns, name, decided.rec, (decided.rec->>'due_at')::bigint)
            ON CONFLICT DO NOTHING;
        IF NOT FOUND THEN
            RETURN '["Taken", {}]';
        END IF;
    ELSIF NOT there AND op <> 'Inspect'
        AND EXISTS (SELECT FROM holdfast.locks AS l WHERE l.namespace = ns AND l.key = name) THEN
        RETURN '["Taken", {}]';
    END IF;
    RETURN decided.answer;
END
$$;

-- What nearly all commands of many keys are, in one statement that says just what the rule says: taking keys that nobody
-- has, prolonging and ending the one grant of a key. NULL at the place of each that is not so simple, or whose row is taken.
-- Where no time is given the clock is read, once, when all rows that are free are ours: those are at the places `ours`.
CREATE OR REPLACE FUNCTION holdfast.run_many_simply(
    ns text, commands jsonb, INOUT at bigint, live boolean, avoided text[], OUT answers text[], OUT ours bigint[])
LANGUAGE plpgsql SET enable_seqscan = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
    WITH found AS MATERIALIZED (
        SELECT c.place, c.command->>0 AS op, c.command->1 AS cmd, x.spot, x.record AS before, x.record->'holders'->0 AS me,
               holdfast.count_of(x.record->'fence') AS fence, holdfast.count_of(x.record->'version') + 1 AS version,
               holdfast.count_of(c.command->1->'ttl') AS ttl
          FROM jsonb_array_elements(commands) WITH ORDINALITY AS c(command, place)
         CROSS JOIN LATERAL (
              SELECT o.ctid AS spot, o.record FROM holdfast.locks AS o
               WHERE o.namespace = ns AND o.key = c.command->1->>'key' AND o.key <> ALL (avoided)
                 FOR UPDATE SKIP LOCKED) AS x
    ), read AS MATERIALIZED (
        SELECT coalesce(run_many_simply.at, holdfast.clock()) AS at FROM (SELECT count(*) FROM found) AS all_of_them
    ), simple AS MATERIALIZED (
        SELECT f.*, t.at, greatest(f.fence + 1, t.at)::bigint AS token,
               CASE WHEN jsonb_typeof(f.me->'expires_at') = 'number' THEN (f.me->>'expires_at')::bigint END AS ends
          FROM found AS f CROSS JOIN read AS t
         WHERE NOT (live AND f.fence - t.at BETWEEN 1000 AND 2000000)  -- not to be judged by a time before it was made
           AND f.version IS NOT NULL
           AND CASE f.op
                   WHEN 'Acquire' THEN
                       f.before - ARRAY['kind', 'permits', 'fence', 'version'] = '{}' AND f.fence IS NOT NULL AND f.ttl > 0
                       AND f.before->'kind' = f.cmd->'kind' AND f.before->'permits' = f.cmd->'permits'
                       AND f.cmd->'permits' >= '1' AND f.cmd->'weight' = '1' AND f.cmd->'delay' = '0'
                       AND NOT f.cmd ? 'session'
                   WHEN 'Release' THEN f.me->'id' = f.cmd->'id' AND f.me->'token' = f.cmd->'token'
                   WHEN 'Renew' THEN f.me->'id' = f.cmd->'id' AND f.me->'token' = f.cmd->'token' AND f.ttl > 0
                   ELSE false END
    ), decided AS MATERIALIZED (
        SELECT s.place, s.spot,
               CASE s.op
                   WHEN 'Acquire' THEN jsonb_build_object(
                       'kind', s.cmd->'kind', 'permits', s.cmd->'permits', 'fence', s.token, 'version', s.version,
                       'holders', jsonb_build_array(jsonb_build_object(
                           'id', s.cmd->'id', 'label', s.cmd->'label', 'token', s.token, 'since', s.at, 'ttl', s.ttl,
                           'expires_at', s.at + s.ttl)))
                   WHEN 'Release' THEN (s.before - 'holders') || jsonb_build_object('version', s.version)
                   ELSE s.before || jsonb_build_object('version', s.version, 'holders', jsonb_build_array(
                       s.me || jsonb_build_object('ttl', s.ttl, 'expires_at', s.at + s.ttl))) END AS rec,
               CASE s.op
                   WHEN 'Acquire' THEN format('["Granted",{"token":%1$s,"floor":%1$s,"since":%2$s,"expires_at":%3$s}]',
                                              s.token, s.at, s.at + s.ttl)
                   WHEN 'Release' THEN '["Released",{}]'
                   ELSE format('["Renewed",{"floor":%s,"expires_at":%s}]', s.me->'token', s.at + s.ttl) END AS answer
          FROM simple AS s
         WHERE s.op = 'Acquire'
            OR s.before - ARRAY['kind', 'permits', 'fence', 'version', 'holders'] = '{}'
               AND s.before->>'kind' IN ('item', 'hold', 'semaphore', 'rw', 'lease', 'run', 'worker')
               AND s.before->'holders'->1 IS NULL AND NOT s.me ?| ARRAY['offered', 'session']
               AND CASE WHEN jsonb_typeof(s.me->'ttl') = 'number'
                        THEN s.ends > s.at AND s.ends <= s.at + (s.me->>'ttl')::bigint ELSE false END
               AND (s.op = 'Release' OR s.ends <> s.at + s.ttl OR s.me->'ttl' <> s.cmd->'ttl')
    ), changed AS (
        UPDATE holdfast.locks AS l SET record = d.rec FROM decided AS d WHERE l.ctid = d.spot RETURNING d.place, d.answer
    )
    SELECT array_agg(n.answer ORDER BY c.place), (SELECT t.at FROM read AS t), ARRAY(SELECT f.place FROM found AS f)
      INTO answers, at, ours
      FROM generate_series(1, jsonb_array_length(commands)) AS c(place) LEFT JOIN changed AS n ON n.place = c.place;
END
$$;

-- Lock commands of many keys, each key at most once and in the order of the keys. All of them in one statement, row by
-- row, so that its cost is the same for each of ten and of ten thousand.
-- Keys that an earlier command of the batch could not have are `avoided`, so that no later one overtakes it. `simple` are
-- the answers to those that have been carried out already.
CREATE OR REPLACE FUNCTION holdfast.run_many(
    ns text, commands jsonb, simple text[], at bigint, live boolean, avoided text[]) RETURNS jsonb
LANGUAGE plpgsql AS $$
DECLARE
    answers jsonb;
    wanted text[];
    places bigint[];
    born text[];
BEGIN
    WITH weighed AS MATERIALIZED (
        SELECT c.place, c.command->1->>'key' AS name, l.key IS NOT NULL AS there,
               CASE WHEN d.answer->1 ? 'woken' THEN holdfast.own_askers(ns, d.answer->1->'woken') END AS asker,
               c.command->>0 <> 'Inspect' AND CASE
                   WHEN l.key IS NULL THEN EXISTS (
                       SELECT FROM holdfast.locks AS o WHERE o.namespace = ns AND o.key = c.command->1->>'key')
                   -- Made by somebody else after our clock was read: not to be judged by that time.
                   WHEN live AND jsonb_typeof(l.record->'fence') = 'number' THEN
                       (l.record->>'fence')::numeric - at BETWEEN 1000 AND 2000000
                   ELSE false END AS late,
               d.rec, d.answer
          FROM jsonb_array_elements(commands) WITH ORDINALITY AS c(command, place)
          LEFT JOIN LATERAL (
              SELECT o.key, o.record FROM holdfast.locks AS o
               WHERE o.namespace = ns AND o.key = c.command->1->>'key' AND o.key <> ALL (avoided)
                 AND c.command->>0 <> 'Inspect' FOR UPDATE SKIP LOCKED) AS l ON true
         CROSS JOIN LATERAL holdfast.apply(
              CASE WHEN c.command->>0 = 'Inspect' THEN (
                       SELECT o.record FROM holdfast.locks AS o WHERE o.namespace = ns AND o.key = c.command->1->>'key')
                   ELSE l.record END, c.command->>0, c.command->1, at) AS d
         WHERE simple[c.place] IS NULL
    ), decided AS MATERIALIZED (
        SELECT w.*, w.late OR w.asker IS NOT NULL AS taken FROM weighed AS w
    ), changed AS (
        UPDATE holdfast.locks AS l SET record = d.rec, due_at = (d.rec->>'due_at')::bigint
          FROM decided AS d
         WHERE d.there AND NOT d.taken AND d.rec IS NOT NULL AND l.namespace = ns AND l.key = d.name
    ), fresh AS (
        INSERT INTO holdfast.locks
        SELECT ns, d.name, d.rec, (d.rec->>'due_at')::bigint FROM decided AS d
         WHERE NOT d.there AND NOT d.taken AND d.rec IS NOT NULL
            ON CONFLICT DO NOTHING RETURNING key
    )
    SELECT jsonb_agg(coalesce(simple[n.place]::jsonb, CASE WHEN d.asker IS NOT NULL THEN holdfast.taken(d.asker)::jsonb
               WHEN d.taken THEN '["Taken", {}]' ELSE d.answer END) ORDER BY n.place),
           array_agg(d.name) FILTER (WHERE NOT d.there AND NOT d.taken AND d.rec IS NOT NULL),
           array_agg(d.place) FILTER (WHERE NOT d.there AND NOT d.taken AND d.rec IS NOT NULL),
           ARRAY(SELECT f.key FROM fresh AS f)
      INTO answers, wanted, places, born
      FROM generate_series(1, cardinality(simple)) AS n(place) LEFT JOIN decided AS d ON d.place = n.place;
    IF cardinality(born) < coalesce(cardinality(wanted), 0) THEN  -- somebody made one of the keys at this moment
        FOR n IN 1..cardinality(wanted) LOOP
            IF wanted[n] <> ALL (born) THEN
                answers := jsonb_set(answers, ARRAY[(places[n] - 1)::text], '["Taken", {}]');
            END IF;
        END LOOP;
    END IF;
    RETURN answers;
END
$$;

-- A page of keys in their order, from `start` on (or after it) and before `stop`.
CREATE OR REPLACE FUNCTION holdfast.list_locks(ns text, cmd jsonb) RETURNS jsonb LANGUAGE sql STABLE AS $$
    SELECT jsonb_build_array('Rows', jsonb_build_object('rows', coalesce(jsonb_agg(jsonb_build_array(key, record) ORDER BY key), '[]')))
      FROM (SELECT l.key, l.record FROM holdfast.locks AS l
             WHERE l.namespace = ns AND l.key >= (cmd->>'start') AND (l.key > (cmd->>'start') OR (cmd->>'inclusive')::boolean)
               AND (cmd->>'stop' IS NULL OR l.key < (cmd->>'stop'))
             ORDER BY l.key LIMIT (cmd->>'limit')::bigint) AS x
$$;

-- Settle records that are due. What cannot be read stays due for ever, and is passed over. So is, this once, a record that
-- was written after our clock was read: its time seems to end too late, and would be cut; and what would be offered to
-- a run whose row somebody else has.
CREATE OR REPLACE FUNCTION holdfast.settle_due(ns text, cmd jsonb, at bigint, live boolean) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    most bigint := (cmd->>'limit')::bigint;
    one record;
    settled record;
    seen bigint := 0;
    changed bigint := 0;
    last_key text;
    next_key text;
    woken jsonb;
BEGIN
    FOR one IN
        SELECT l.key, l.record FROM holdfast.locks AS l WHERE l.namespace = ns AND l.due_at <= at
         ORDER BY l.due_at, l.key FOR UPDATE SKIP LOCKED
    LOOP
        CONTINUE WHEN NOT holdfast.readable(one.record);
        CONTINUE WHEN live AND holdfast.is_younger(one.record, at);
        IF seen >= most THEN
            next_key := last_key;
            EXIT;
        END IF;
        SELECT s.rec, s.woken INTO settled FROM holdfast.settle(one.record, at) AS s;
        CONTINUE WHEN settled.woken IS NOT NULL AND holdfast.own_askers(ns, settled.woken) IS NOT NULL;
        seen := seen + 1;
        last_key := one.key;
        woken := holdfast.plus(woken, settled.woken);
        IF settled.rec <> one.record THEN
            changed := changed + 1;
            UPDATE holdfast.locks AS l SET record = settled.rec, due_at = (settled.rec->>'due_at')::bigint
             WHERE l.namespace = ns AND l.key = one.key;
        END IF;
    END LOOP;
    RETURN holdfast.answer('Swept', woken, jsonb_build_object('seen', seen, 'changed', changed, 'next', next_key));
END
$$;

-- Remove, of a page of records, those that may be forgotten; one that somebody is at stays for another time.
CREATE OR REPLACE FUNCTION holdfast.clean_up(ns text, cmd jsonb, at bigint) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    most bigint := (cmd->>'limit')::bigint;
    page text[];
    removed bigint;
BEGIN
    SELECT array_agg(x.key ORDER BY x.key) INTO page
      FROM (SELECT l.key FROM holdfast.locks AS l WHERE l.namespace = ns AND l.key > (cmd->>'after')
             ORDER BY l.key LIMIT most + 1) AS x;
    WITH doomed AS (
        SELECT l.key FROM holdfast.locks AS l WHERE l.namespace = ns AND l.key = ANY (page[:most])
           AND holdfast.removable(l.record, at, (cmd->>'retention')::bigint)
         ORDER BY l.key FOR UPDATE SKIP LOCKED
    ), gone AS (
        DELETE FROM holdfast.locks AS l USING doomed AS d WHERE l.namespace = ns AND l.key = d.key RETURNING l.key
    )
    SELECT count(*) INTO removed FROM gone;
    RETURN jsonb_build_array('Swept', jsonb_build_object(
        'seen', least(coalesce(cardinality(page), 0), most), 'changed', removed,
        'next', CASE WHEN cardinality(page) > most THEN page[most] END));
END
$$;

-- Tell those who were granted something, except those whom the caller tells itself: one notification a channel. A run
-- hears of it by an event.
CREATE OR REPLACE FUNCTION holdfast.wake(ns text, woken text[], told jsonb) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('holdfast_' || md5(ns || '.' || channel), CASE WHEN octet_length(ids::text) < 7900 THEN ids::text ELSE '' END)
       FROM (SELECT split_part(id, '.', 1) AS channel, jsonb_agg(DISTINCT id) AS ids FROM unnest(woken) AS id
              WHERE NOT starts_with(id, 'run:') GROUP BY 1) AS x
      WHERE NOT told ? channel;
END
$$;

-- Lock the rows of a batch that are free, and return the keys of those that are not.
CREATE OR REPLACE FUNCTION holdfast.take_rows(ns text, parts jsonb) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
    taken text[];
BEGIN
    SELECT coalesce(array_agg(n.name) FILTER (WHERE l.key IS NULL AND o.key IS NOT NULL), '{}') INTO taken
      FROM (SELECT DISTINCT c->1->>'key' AS name
              FROM jsonb_array_elements(parts) AS p CROSS JOIN LATERAL jsonb_array_elements(p->1) AS c
             WHERE p->>0 = 'many' AND c->>0 <> 'Inspect') AS n
      LEFT JOIN LATERAL (
          SELECT x.key FROM holdfast.locks AS x WHERE x.namespace = ns AND x.key = n.name FOR UPDATE SKIP LOCKED
      ) AS l ON true
      LEFT JOIN LATERAL (SELECT x.key FROM holdfast.locks AS x WHERE x.namespace = ns AND x.key = n.name) AS o ON l.key IS NULL;
    RETURN taken;
END
$$;

-- Carry out a batch. `parts` is a list of parts in their order, each with its kind: ["one", op, command],
-- ["many", [[op, command, place], ...]], ["slots", [[op, command], ...]], ["starts", [[...], ...], rows],
-- ["records", [[...], ...], rows], ["runs", [[op, command], ...], rows], ["ListLocks", command], ["SettleDue", command],
-- ["Cleanup", command]. `rows` names what is locked. The first part may be ["await", run], ["await", [scope, owner, key]]
-- or ["await", ["lock", "", key]]: wait for the row of that run, slot or lock, holding no other. The `place` of a command
-- among its neighbours may be left out where they are in order: runs that are offered something are told in that order.
-- `at` takes the place of the clock in tests. `patience` (milliseconds) waits for a row that is taken. `told` are the
-- channels whose waiters the caller tells itself; NULL: nobody is told. Returns the time, the answers to each part, and
-- who is to be told of the events of runs that were offered a lock, if anybody.
CREATE OR REPLACE FUNCTION holdfast.execute(ns text, parts jsonb, at bigint, patience integer, told jsonb) RETURNS text
LANGUAGE plpgsql AS $$
DECLARE
    part jsonb;
    live boolean := at IS NULL;
    answers jsonb;
    avoided text[] := '{}';
    ours record;
    step record;
    simple text[];
    woken text[] := '{}';
    offers jsonb := '[]';
    hints text[] := '{}';
    reply text;
    replies text[];
BEGIN
    IF current_setting('synchronous_commit') = 'off' THEN
        reply := set_config('synchronous_commit', 'on', true);  -- an answered command survives the loss of power
    END IF;
    reply := set_config('lock_timeout', coalesce(patience, 40)::text, true);
    IF patience IS NOT NULL AND parts->0->>0 IN ('records', 'starts') AND parts->0->1->1 IS NULL AND parts->1 IS NULL THEN
        IF parts->0->>0 = 'records' THEN
            step := holdfast.record_alone(ns, parts->0->1->0, at);
        ELSE
            step := holdfast.start_alone(ns, parts->0->1->0, at);
        END IF;
        IF step.answer IS NOT NULL THEN
            IF step.woken <> '{}' AND told IS NOT NULL THEN
                PERFORM holdfast.wake(ns, step.woken, told);
            END IF;
            RETURN '[0,[[' || step.answer || ']]]';
        END IF;
    ELSIF parts->0->>0 = 'await' THEN
        IF parts->0->1->>0 = 'lock' THEN
            PERFORM FROM holdfast.locks AS l WHERE l.namespace = ns AND l.key = parts->0->1->>2 FOR UPDATE;
        ELSIF jsonb_typeof(parts->0->1) = 'array' THEN
            PERFORM FROM holdfast.slots AS s
              WHERE s.namespace = ns AND s.scope = parts->0->1->>0 AND s.owner = parts->0->1->>1
                AND s.key = parts->0->1->>2 FOR UPDATE;
        ELSE
            PERFORM FROM holdfast.runs AS r WHERE r.namespace = ns AND r.id = parts->0->>1 FOR UPDATE;
        END IF;
        parts := parts - 0;
    END IF;
    IF parts->0->>0 = 'many' AND parts->1 IS NULL THEN
        step := holdfast.run_many_simply(ns, parts->0->1, at, live, avoided);
        at := step.at;
        simple := step.answers;
        IF array_position(simple, NULL) IS NULL THEN
            RETURN '[' || at || ',[[' || array_to_string(simple, ',') || ']]]';
        END IF;
        -- What was somebody else's when the clock was read may have been changed after that.
        avoided := ARRAY(
            SELECT c.command->1->>'key' FROM jsonb_array_elements(parts->0->1) WITH ORDINALITY AS c(command, place)
             WHERE c.place <> ALL (step.ours)
               AND EXISTS (SELECT FROM holdfast.locks AS l WHERE l.namespace = ns AND l.key = c.command->1->>'key'));
    ELSIF live AND parts @? '$[*] ? (@[0] == "many")' THEN
        avoided := holdfast.take_rows(ns, parts);
    END IF;
    IF parts @? '$[*][2]' THEN
        ours := holdfast.take_runs(ns, parts, patience IS NOT NULL);
    END IF;
    at := coalesce(at, holdfast.clock());  -- when all rows are ours, so that none is judged by an earlier time than its own
    FOR part IN SELECT * FROM jsonb_array_elements(parts) LOOP
        IF offers <> '[]' AND part->>0 <> 'many' THEN
            hints := hints || holdfast.tell_in_order(ns, offers, at);
            offers := '[]';
        END IF;
        IF part->>0 = 'records' THEN
            step := holdfast.record_many(ns, part->1, at, live, ours.held, ours.missed);
            replies := replies || ('[' || array_to_string(step.answers, ',') || ']');
            woken := woken || step.woken;
            ours.missed := step.missed;
            CONTINUE;
        ELSIF part->>0 = 'starts' THEN
            step := holdfast.start_many(ns, part->1, at, ours.gone);
            replies := replies || ('[' || array_to_string(step.answers, ',') || ']');
            woken := woken || step.woken;
            CONTINUE;
        ELSIF part->>0 = 'runs' THEN
            step := holdfast.run_runs(ns, part->1, at, live, ours.missed, ours.gone);
            replies := replies || step.answers;
            woken := woken || step.woken;
            ours.missed := step.missed;
            CONTINUE;
        END IF;
        CASE part->>0
            WHEN 'one' THEN 
                answers := jsonb_build_array(holdfast.run_one(
                    ns, part->>1, part->2, CASE WHEN live THEN NULL ELSE at END, patience IS NOT NULL));
            WHEN 'many' THEN
                IF simple IS NULL THEN
                    simple := (holdfast.run_many_simply(ns, part->1, at, live, avoided)).answers;
                END IF;
                answers := holdfast.run_many(ns, part->1, simple, at, live, avoided);
                simple := NULL;
                IF answers @> '[["Taken", {}]]' THEN
                    avoided := avoided || ARRAY(
                        SELECT c.command->1->>'key' FROM jsonb_array_elements(part->1) WITH ORDINALITY AS c(command, place)
                         WHERE answers->(c.place::integer - 1)->>0 = 'Taken');
                END IF;
            WHEN 'slots' THEN answers := holdfast.run_slots(ns, part->1, at, patience IS NOT NULL);
            WHEN 'ListLocks' THEN answers := jsonb_build_array(holdfast.list_locks(ns, part->1));
            WHEN 'SettleDue' THEN answers := jsonb_build_array(holdfast.settle_due(ns, part->1, at, live));
            WHEN 'Cleanup' THEN answers := jsonb_build_array(holdfast.clean_up(ns, part->1, at));
        END CASE;
        IF answers @? '$[*][1].woken' THEN
            woken := woken || ARRAY(SELECT jsonb_array_elements_text(a->1->'woken') FROM jsonb_array_elements(answers) AS a);
            IF answers @? '$[*][1].woken[*] ? (@ starts with "run:")' THEN
                offers := offers || (
                    SELECT jsonb_agg(jsonb_build_array(
                               coalesce(part->1->(a.place::integer - 1)->2, to_jsonb(a.place)), a.answer->1->'woken'))
                      FROM jsonb_array_elements(answers) WITH ORDINALITY AS a(answer, place)
                     WHERE a.answer->1 ? 'woken');
            END IF;
        END IF;
        replies := replies || answers::text;
    END LOOP;
    IF offers <> '[]' THEN
        hints := hints || holdfast.tell_in_order(ns, offers, at);
    END IF;
    woken := woken || hints;
    IF woken <> '{}' AND told IS NOT NULL THEN
        PERFORM holdfast.wake(ns, woken, told);
    END IF;
    RETURN '[' || at || ',[' || coalesce(array_to_string(replies, ','), '') || ']'
        || CASE WHEN hints = '{}' THEN ']' ELSE ',' || to_json(hints) || ']' END;
END
$$;

-- The same for one command about a lock that is alone, [op, command]. What nearly every one of them is, is done here in one statement that
-- says just what the rule says: taking a key that nobody has, and ending the one grant of a key. All else is carried out
-- as any batch is. The server prepares every expression anew for each transaction, so there are few of them.
CREATE OR REPLACE FUNCTION holdfast.execute_one(ns text, asked jsonb, set_time bigint, patience integer, told jsonb)
RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    op text := asked->>0;
    cmd jsonb := asked->1;
    at bigint := coalesce(set_time, holdfast.clock());
    given bigint;
BEGIN
    IF set_config('lock_timeout', patience::text, true) IS NULL OR current_setting('synchronous_commit') = 'off' THEN
        NULL;  -- it is not said here how to make that right
    ELSIF op = 'Acquire' AND cmd->'weight' = '1' AND cmd->'delay' = '0' AND NOT cmd ? 'session'
        AND cmd->'permits' >= '1' AND holdfast.count_of(cmd->'ttl') > 0 THEN
        UPDATE holdfast.locks AS l SET record = l.record || jsonb_build_object(
                   'fence', greatest((l.record->>'fence')::bigint + 1, at),
                   'version', (l.record->>'version')::bigint + 1,
                   'holders', jsonb_build_array(jsonb_build_object(
                       'id', cmd->'id', 'label', cmd->'label', 'token', greatest((l.record->>'fence')::bigint + 1, at),
                       'since', at, 'ttl', cmd->'ttl', 'expires_at', at + (cmd->>'ttl')::bigint)))
         WHERE l.namespace = ns AND l.key = cmd->>'key' AND l.record->'kind' = cmd->'kind'
           AND l.record->'permits' = cmd->'permits' AND l.record - ARRAY['kind', 'permits', 'fence', 'version'] = '{}'
           AND jsonb_typeof(l.record->'fence') = 'number' AND jsonb_typeof(l.record->'version') = 'number'
        RETURNING (l.record->>'fence')::bigint INTO given;
        IF FOUND THEN
            RETURN format('[0,[[["Granted",{"token":%1$s,"floor":%1$s,"since":%2$s,"expires_at":%3$s}]]]]',
                          given, at, at + (cmd->>'ttl')::bigint);
        END IF;
    ELSIF op = 'Release' AND jsonb_typeof(cmd->'token') = 'number' THEN
        UPDATE holdfast.locks AS l SET record = (l.record - 'holders') || jsonb_build_object(
                   'version', (l.record->>'version')::bigint + 1)
         WHERE l.namespace = ns AND l.key = cmd->>'key'
           AND l.record - ARRAY['kind', 'permits', 'fence', 'version', 'holders'] = '{}'
           AND l.record->>'kind' IN ('item', 'hold', 'semaphore', 'rw', 'lease', 'run', 'worker')
           AND jsonb_typeof(l.record->'version') = 'number' AND l.record->'holders'->1 IS NULL
           AND l.record->'holders'->0->'id' = cmd->'id' AND l.record->'holders'->0->'token' = cmd->'token'
           AND NOT l.record->'holders'->0 ?| ARRAY['offered', 'session']
           AND CASE WHEN jsonb_typeof(l.record->'holders'->0->'expires_at') = 'number'
                     AND jsonb_typeof(l.record->'holders'->0->'ttl') = 'number'
                    THEN (l.record->'holders'->0->>'expires_at')::bigint > at
                     AND (l.record->'holders'->0->>'expires_at')::bigint
                         <= at + (l.record->'holders'->0->>'ttl')::bigint
                    ELSE false END;
        IF FOUND THEN
            RETURN '[0,[[["Released",{}]]]]';
        END IF;
    END IF;
    RETURN holdfast.execute(ns, jsonb_build_array(jsonb_build_array('one', op, cmd)), set_time, patience, told);
END
$$;

-- The same for one record that is alone, which is a part of its own: most often one entry for the journal of a run that is
-- driven, and nothing that its driver has not heard of.
CREATE OR REPLACE FUNCTION holdfast.execute_record(ns text, part jsonb, set_time bigint, patience integer, told jsonb)
RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    c jsonb := part->1->0;
BEGIN
    IF set_config('lock_timeout', patience::text, true) IS NOT NULL AND current_setting('synchronous_commit') <> 'off'
        AND c->6 IS NULL AND c->5->1 IS NULL AND c->5->0 IS NOT NULL THEN
        WITH changed AS (
            UPDATE holdfast.runs AS o SET length = o.length + 1, last = c->>3, deaths = 0, stuck = NULL
             WHERE o.namespace = ns AND o.id = c->>0 AND o.fence = (c->>1)::bigint AND o.length = (c->>2)::bigint
               AND o.last <> c->>3 AND o.posted <= (c->>4)::bigint AND CASE o.status WHEN 'running' THEN true ELSE false END
            RETURNING o.length)
        INSERT INTO holdfast.journal SELECT ns, c->>0, n.length - 1, c->5->>0 FROM changed AS n;
        IF FOUND THEN
            RETURN '[0,[[["Recorded",{"done":true,"events":[],"now":' || coalesce(set_time, holdfast.clock()) || '}]]]]';
        END IF;
    END IF;
    RETURN holdfast.execute(ns, jsonb_build_array(part), set_time, patience, told);
END
$$;

-- The same within somebody's own transaction: what goes wrong is told, and has neither broken the transaction nor changed
-- its patience with rows. Nobody is notified.
CREATE OR REPLACE FUNCTION holdfast.execute_within(ns text, parts text, at bigint, patience integer) RETURNS text
LANGUAGE plpgsql SET lock_timeout = 0 AS $$
BEGIN
    RETURN holdfast.execute(ns, parts::jsonb, at, patience, NULL);
EXCEPTION
    WHEN data_exception OR lock_not_available OR deadlock_detected OR serialization_failure OR program_limit_exceeded
        OR case_not_found THEN
    RETURN json_build_object('state', SQLSTATE, 'message', SQLERRM)::text;
END
$$;
