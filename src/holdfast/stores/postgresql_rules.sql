-- Holdfast on PostgreSQL: the rules.
--
-- Pure functions, (record, command, time) -> (record, answer), that say the same as the library's rules in Python
-- (rules/lock.py); the library's tests compare the two on random histories. `apply` decides for one lock. An answer is a
-- pair of its kind and its fields, as the library's outcomes have them. Nothing here reads or writes a table. One thing is
-- PostgreSQL's own: a grant may be tied to a session, and ends with it (`without_severed`).

-- End what time has ended, then offer free permits to the queue in order. `woken` is whom it offered to.
CREATE OR REPLACE FUNCTION holdfast.settle(INOUT rec jsonb, at bigint, OUT woken jsonb) LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    old_holders jsonb := nullif(rec->'holders', '[]');
    holders jsonb := holdfast.living(old_holders, at);
    waiters jsonb;
    tombstones jsonb;
    head jsonb;
    closed_until bigint;
    closed_for bigint;
    fence bigint;
    free bigint;
    due bigint;
BEGIN
    IF holders IS NOT DISTINCT FROM old_holders
        AND NOT rec ?| ARRAY['waiters', 'tombstones', 'closed_until', 'due_at'] THEN
        RETURN;
    END IF;
    waiters := holdfast.living(rec->'waiters', at);
    tombstones := holdfast.living(rec->'tombstones', at);
    SELECT greatest(coalesce((rec->>'closed_until')::bigint, 0), max(ends + delay)),
           greatest(coalesce((rec->>'closed_for')::bigint, 0), max(delay))
      INTO closed_until, closed_for
      FROM (SELECT (h->>'expires_at')::bigint AS ends, (h->>'delay')::bigint AS delay, h->'offered' AS offered
            FROM jsonb_array_elements(old_holders) AS h) AS x
     WHERE ends <= at AND delay > 0 AND offered IS DISTINCT FROM 'true';
    IF closed_until <> 0 THEN
        closed_until := least(closed_until, at + closed_for);
        IF closed_until <= at THEN
            closed_until := 0;
            closed_for := 0;
        END IF;
    END IF;
    fence := coalesce((rec->>'fence')::bigint, 0);
    IF waiters IS NOT NULL AND closed_until = 0 THEN
        free := coalesce((rec->>'permits')::bigint, 1) - holdfast.weight_of(holders);
        WHILE waiters IS NOT NULL AND coalesce((waiters->0->>'weight')::bigint, 1) <= free LOOP
            head := waiters->0;
            waiters := nullif(waiters - 0, '[]');
            fence := greatest(fence + 1, at);
            holders := holdfast.plus(holders, jsonb_build_array(
                head || jsonb_build_object('token', fence, 'since', at, 'offered', true)));
            free := free - coalesce((head->>'weight')::bigint, 1);
            woken := coalesce(woken, '[]') || (head->'id');
        END LOOP;
    END IF;
    IF waiters IS NOT NULL THEN
        due := holdfast.soonest(holders, waiters, closed_until);
    END IF;
    IF holders IS NOT DISTINCT FROM old_holders AND waiters IS NOT DISTINCT FROM nullif(rec->'waiters', '[]')
        AND tombstones IS NOT DISTINCT FROM nullif(rec->'tombstones', '[]')
        AND closed_until = coalesce((rec->>'closed_until')::bigint, 0)
        AND due IS NOT DISTINCT FROM (rec->>'due_at')::bigint THEN
        RETURN;
    END IF;
    rec := (rec - ARRAY['holders', 'waiters', 'tombstones', 'closed_until', 'closed_for', 'due_at'])
        || jsonb_build_object('version', coalesce((rec->>'version')::bigint, 0) + 1);
    rec := holdfast.put(rec, 'fence', to_jsonb(fence));
    rec := holdfast.put(rec, 'holders', holders);
    rec := holdfast.put(rec, 'waiters', waiters);
    rec := holdfast.put(rec, 'tombstones', tombstones);
    rec := holdfast.put(rec, 'closed_until', to_jsonb(closed_until));
    rec := holdfast.put(rec, 'closed_for', to_jsonb(closed_for));
    rec := holdfast.put(rec, 'due_at', to_jsonb(due));
END
$$;

-- Settle what follows from a change. However much does, the version goes up by one.
CREATE OR REPLACE FUNCTION holdfast.change(INOUT rec jsonb, changed jsonb, at bigint, OUT woken jsonb)
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    settled record;
BEGIN
    SELECT s.rec, s.woken INTO settled FROM holdfast.settle(changed, at) AS s;
    woken := settled.woken;
    IF settled.rec <> rec THEN
        rec := settled.rec || jsonb_build_object('version', coalesce((rec->>'version')::bigint, 0) + 1);
    END IF;
END
$$;

CREATE OR REPLACE FUNCTION holdfast.answer(kind text, woken jsonb, fields jsonb DEFAULT '{}') RETURNS jsonb
LANGUAGE sql IMMUTABLE AS $$
    SELECT jsonb_build_array(kind, CASE WHEN woken IS NULL THEN fields
                                        ELSE fields || jsonb_build_object('woken', woken) END)
$$;

-- The living grant of an attempt; only a lease may be named by its owner alone.
CREATE OR REPLACE FUNCTION holdfast.held_by(rec jsonb, id text, token bigint) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
    SELECT h FROM holdfast.find(rec->'holders', id) AS h
    WHERE (h->>'token')::bigint = token OR (token IS NULL AND rec->>'kind' = 'lease')
$$;

-- Take over the caller's kind and number of permits; who can no longer fit must go.
CREATE OR REPLACE FUNCTION holdfast.reshape(rec jsonb, kind text, permits bigint, at bigint) RETURNS jsonb
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    stay jsonb;
    stones jsonb;
BEGIN
    SELECT jsonb_agg(w ORDER BY place) FILTER (WHERE weight <= permits),
           jsonb_agg(jsonb_build_object('id', w->'id', 'ttl', ttl, 'expires_at', at + ttl, 'reason', 'never_fits')
                     ORDER BY place) FILTER (WHERE weight > permits)
      INTO stay, stones
      FROM (SELECT w, place, coalesce((w->>'weight')::bigint, 1) AS weight,
                   coalesce(nullif((w->>'ttl')::bigint, 0), 604800000000) AS ttl
            FROM jsonb_array_elements(rec->'waiters') WITH ORDINALITY AS x(w, place)) AS y;
    rec := rec || jsonb_build_object('kind', kind, 'permits', permits,
                                     'version', coalesce((rec->>'version')::bigint, 0) + 1);
    rec := holdfast.put(rec, 'waiters', stay);
    RETURN holdfast.put(rec, 'tombstones', holdfast.last_stones(holdfast.plus(rec->'tombstones', stones)));
END
$$;

CREATE OR REPLACE FUNCTION holdfast.last_stones(stones jsonb) RETURNS jsonb LANGUAGE sql IMMUTABLE AS $$
    SELECT jsonb_agg(t ORDER BY place) FROM jsonb_array_elements(stones) WITH ORDINALITY AS x(t, place)
    WHERE place > jsonb_array_length(stones) - 64
$$;

CREATE OR REPLACE FUNCTION holdfast.acquire(INOUT rec jsonb, cmd jsonb, at bigint, OUT answer jsonb)
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    my_id text := cmd->>'id';
    kind text := coalesce(rec->>'kind', 'item');
    permits bigint;
    weight bigint := (cmd->>'weight')::bigint;
    ttl bigint := (cmd->>'ttl')::bigint;
    waiter_ttl bigint := (cmd->>'waiter_ttl')::bigint;
    me jsonb;
    waiting jsonb;
    waiters jsonb;
    stone jsonb;
    woken jsonb;
    more jsonb;
    place bigint;
    token bigint;
    permits_before bigint;
BEGIN
    SELECT s.rec, s.woken INTO rec, woken FROM holdfast.settle(rec, at) AS s;
    permits := coalesce((rec->>'permits')::bigint, 1);
    me := holdfast.find(rec->'holders', my_id);
    IF me IS NOT NULL THEN  -- the same attempt again: the same grant, with its full ttl
        me := (me - 'offered') || jsonb_build_object(
            'ttl', ttl, 'expires_at', at + ttl, 'since', CASE WHEN me ? 'offered' THEN to_jsonb(at) ELSE me->'since' END);
        me := holdfast.put(holdfast.put(me, 'delay', cmd->'delay'), 'session', cmd->'session');
        SELECT c.rec, c.woken INTO rec, more
          FROM holdfast.change(rec, rec || jsonb_build_object('holders', holdfast.with_changed(rec->'holders', me)), at) AS c;
        answer := holdfast.answer('Granted', holdfast.plus(woken, more), jsonb_build_object(
            'token', me->'token', 'floor', holdfast.floor_of(rec), 'since', me->'since', 'expires_at', me->'expires_at'));
        RETURN;
    END IF;
    stone := holdfast.find(rec->'tombstones', my_id);
    IF stone IS NOT NULL THEN
        answer := CASE WHEN stone->>'reason' = 'never_fits'
            THEN holdfast.answer('TooHeavy', woken, jsonb_build_object('permits', permits))
            ELSE holdfast.answer('Gone', woken) END;
        RETURN;
    END IF;
    IF kind <> cmd->>'kind' AND rec ?| ARRAY['holders', 'waiters'] THEN
        answer := holdfast.answer('Mismatch', woken, jsonb_build_object('found', kind));
        RETURN;
    END IF;
    waiting := holdfast.find(rec->'waiters', my_id);
    IF waiting IS NOT NULL THEN
        weight := coalesce((waiting->>'weight')::bigint, 1);
    ELSIF weight > (cmd->>'permits')::bigint THEN
        answer := holdfast.answer('TooHeavy', woken, jsonb_build_object('permits', cmd->'permits'));
        RETURN;
    ELSIF permits <> (cmd->>'permits')::bigint OR kind <> cmd->>'kind' THEN
        IF permits <> (cmd->>'permits')::bigint AND rec ? 'fence' THEN
            permits_before := permits;
        END IF;
        permits := (cmd->>'permits')::bigint;
        SELECT s.rec, s.woken INTO rec, more
          FROM holdfast.settle(holdfast.reshape(rec, cmd->>'kind', permits, at), at) AS s;
        woken := holdfast.plus(woken, more);
    END IF;
    waiters := rec->'waiters';
    me := (coalesce(waiting, '{}') - ARRAY['weight', 'delay']) || jsonb_build_object(
        'id', my_id, 'label', cmd->'label', 'since', coalesce(waiting->'since', to_jsonb(at)),
        'ttl', waiter_ttl, 'expires_at', at + waiter_ttl);
    IF weight <> 1 THEN
        me := me || jsonb_build_object('weight', weight);
    END IF;
    me := holdfast.put(me, 'delay', cmd->'delay');
    SELECT x.place - 1 INTO place FROM jsonb_array_elements(waiters) WITH ORDINALITY AS x(w, place)
     WHERE w->>'id' = my_id;
    IF (place = 0 OR waiters IS NULL) AND NOT rec ? 'closed_until'
        AND weight <= permits - holdfast.weight_of(rec->'holders') THEN
        token := greatest(coalesce((rec->>'fence')::bigint, 0) + 1, at);
        me := me || jsonb_build_object('token', token, 'since', at, 'ttl', ttl, 'expires_at', at + ttl);
        me := holdfast.put(me, 'session', cmd->'session');
        SELECT c.rec, c.woken INTO rec, more FROM holdfast.change(
            rec,
            holdfast.put(rec, 'waiters', holdfast.without(waiters, my_id)) || jsonb_build_object(
                'fence', token, 'holders', holdfast.plus(rec->'holders', jsonb_build_array(me))),
            at) AS c;
        answer := holdfast.answer('Granted', holdfast.plus(woken, more), jsonb_build_object(
            'token', token, 'floor', holdfast.floor_of(rec), 'since', at, 'expires_at', at + ttl,
            'permits_before', permits_before));
    ELSIF place IS NULL AND cmd->'queue' IS DISTINCT FROM 'true' THEN
        answer := holdfast.answer('Busy', woken, jsonb_build_object(
            'holders', coalesce(rec->'holders', '[]'), 'waiting', coalesce(jsonb_array_length(waiters), 0), 'now', at,
            'retry_in', holdfast.until(holdfast.soonest(
                rec->'holders', waiters, coalesce((rec->>'closed_until')::bigint, 0)), at),
            'permits_before', permits_before));
    ELSE
        SELECT c.rec, c.woken INTO rec, more FROM holdfast.change(
            rec,
            rec || jsonb_build_object('waiters', CASE WHEN place IS NULL
                THEN holdfast.plus(waiters, jsonb_build_array(me)) ELSE holdfast.with_changed(waiters, me) END),
            at) AS c;
        answer := holdfast.answer('Queued', holdfast.plus(woken, more), jsonb_build_object(
            'position', coalesce(place, jsonb_array_length(waiters), 0), 'holders', coalesce(rec->'holders', '[]'),
            'now', at, 'recheck_in', holdfast.until((rec->>'due_at')::bigint, at), 'permits_before', permits_before));
    END IF;
END
$$;

CREATE OR REPLACE FUNCTION holdfast.renew(INOUT rec jsonb, cmd jsonb, at bigint, OUT answer jsonb)
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    me jsonb;
    woken jsonb;
    more jsonb;
BEGIN
    SELECT s.rec, s.woken INTO rec, woken FROM holdfast.settle(rec, at) AS s;
    me := holdfast.held_by(rec, cmd->>'id', (cmd->>'token')::bigint);
    IF me IS NULL THEN
        answer := holdfast.answer('NotHeld', woken);
        RETURN;
    END IF;
    me := (me - 'offered') || jsonb_build_object('ttl', cmd->'ttl', 'expires_at', at + (cmd->>'ttl')::bigint);
    SELECT c.rec, c.woken INTO rec, more
      FROM holdfast.change(rec, rec || jsonb_build_object('holders', holdfast.with_changed(rec->'holders', me)), at) AS c;
    answer := holdfast.answer('Renewed', holdfast.plus(woken, more), jsonb_build_object(
        'floor', holdfast.floor_of(rec), 'expires_at', me->'expires_at'));
END
$$;

CREATE OR REPLACE FUNCTION holdfast.release(INOUT rec jsonb, cmd jsonb, at bigint, OUT answer jsonb)
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    woken jsonb;
    more jsonb;
BEGIN
    SELECT s.rec, s.woken INTO rec, woken FROM holdfast.settle(rec, at) AS s;
    IF holdfast.held_by(rec, cmd->>'id', (cmd->>'token')::bigint) IS NULL THEN
        answer := holdfast.answer('NotHeld', woken);
        RETURN;
    END IF;
    SELECT c.rec, c.woken INTO rec, more FROM holdfast.change(
        rec, holdfast.put(rec, 'holders', holdfast.without(rec->'holders', cmd->>'id')), at) AS c;
    answer := holdfast.answer('Released', holdfast.plus(woken, more));
END
$$;

CREATE OR REPLACE FUNCTION holdfast.abandon(INOUT rec jsonb, cmd jsonb, at bigint, OUT answer jsonb)
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    my_id text := cmd->>'id';
    ttl bigint := (cmd->>'ttl')::bigint;
    was text := 'nothing';
    changed jsonb;
    stones jsonb;
    woken jsonb;
    more jsonb;
BEGIN
    SELECT s.rec, s.woken INTO rec, woken FROM holdfast.settle(rec, at) AS s;
    IF holdfast.find(rec->'holders', my_id) IS NOT NULL THEN
        was := 'holder';
    ELSIF holdfast.find(rec->'waiters', my_id) IS NOT NULL THEN
        was := 'waiter';
    END IF;
    stones := holdfast.without(rec->'tombstones', my_id);
    IF ttl > 0 THEN
        stones := holdfast.plus(stones, jsonb_build_array(
            jsonb_build_object('id', my_id, 'ttl', ttl, 'expires_at', at + ttl)));
    END IF;
    changed := holdfast.put(rec, 'holders', holdfast.without(rec->'holders', my_id));
    changed := holdfast.put(changed, 'waiters', holdfast.without(rec->'waiters', my_id));
    changed := holdfast.put(changed, 'tombstones', holdfast.last_stones(stones));
    SELECT c.rec, c.woken INTO rec, more FROM holdfast.change(rec, changed, at) AS c;
    answer := holdfast.answer('Abandoned', holdfast.plus(woken, more), jsonb_build_object('was', was));
END
$$;

CREATE OR REPLACE FUNCTION holdfast.transfer(INOUT rec jsonb, cmd jsonb, at bigint, OUT answer jsonb)
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    from_id text := cmd->>'id';
    me jsonb;
    target jsonb;
    token bigint;
    woken jsonb;
    more jsonb;
BEGIN
    SELECT s.rec, s.woken INTO rec, woken FROM holdfast.settle(rec, at) AS s;
    me := holdfast.held_by(rec, from_id, (cmd->>'token')::bigint);
    target := holdfast.find(rec->'holders', cmd->>'to_id');
    IF me IS NULL AND coalesce(target->>'via' = from_id, false) THEN  -- it was done before
        me := target;
    ELSIF me IS NULL THEN
        answer := holdfast.answer('NotHeld', woken);
        RETURN;
    ELSIF target IS NOT NULL THEN
        answer := holdfast.answer('TargetHolds', woken);
        RETURN;
    ELSE
        token := greatest(coalesce((rec->>'fence')::bigint, 0) + 1, at);
        me := (me - ARRAY['offered', 'session']) || jsonb_build_object(
            'id', cmd->'to_id', 'label', cmd->'to_label', 'token', token, 'since', at, 'ttl', cmd->'ttl',
            'expires_at', at + (cmd->>'ttl')::bigint, 'via', from_id);
        SELECT c.rec, c.woken INTO rec, more FROM holdfast.change(
            rec,
            holdfast.put(rec, 'waiters', holdfast.without(rec->'waiters', cmd->>'to_id')) || jsonb_build_object(
                'fence', token,
                'holders', holdfast.plus(holdfast.without(rec->'holders', from_id), jsonb_build_array(me))),
            at) AS c;
    END IF;
    answer := holdfast.answer('Transferred', holdfast.plus(woken, more), jsonb_build_object(
        'token', me->'token', 'floor', holdfast.floor_of(rec), 'since', me->'since', 'expires_at', me->'expires_at'));
END
$$;

CREATE OR REPLACE FUNCTION holdfast.force_release(INOUT rec jsonb, cmd jsonb, at bigint, OUT answer jsonb)
LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE
    put_out jsonb;
    labels jsonb;
    note jsonb;
    woken jsonb;
    more jsonb;
BEGIN
    SELECT s.rec, s.woken INTO rec, woken FROM holdfast.settle(rec, at) AS s;
    put_out := coalesce(rec->'holders', '[]');
    IF put_out <> '[]' THEN
        SELECT jsonb_agg(CASE WHEN coalesce(l->>'host', '') = '' THEN l->>'name'
                              ELSE format('%s (%s:%s)', l->>'name', l->>'host', coalesce(l->>'pid', '0')) END
                         ORDER BY place)
          INTO labels FROM (SELECT h->'label' AS l, place
                            FROM jsonb_array_elements(put_out) WITH ORDINALITY AS x(h, place)) AS y;
        note := jsonb_build_object('at', at, 'by', cmd->'by', 'reason', cmd->'reason', 'holders', labels);
        SELECT c.rec, c.woken INTO rec, more
          FROM holdfast.change(rec, (rec - 'holders') || jsonb_build_object('forced', note), at) AS c;
    END IF;
    answer := holdfast.answer('ForceReleased', holdfast.plus(woken, more), jsonb_build_object('holders', put_out, 'now', at));
END
$$;

-- Whether a record may be forgotten: nothing in it lives, and its fence is long behind the clock.
CREATE OR REPLACE FUNCTION holdfast.removable(rec jsonb, at bigint, retention bigint) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE AS $$
BEGIN
    IF NOT holdfast.readable(rec) THEN
        RETURN false;
    END IF;
    SELECT s.rec INTO rec FROM holdfast.settle(rec, at) AS s;
    RETURN NOT rec ?| ARRAY['holders', 'waiters', 'tombstones', 'closed_until']
        AND coalesce((rec->>'fence')::bigint, 0) < at - retention
        AND coalesce((rec->'forced'->>'at')::bigint < at - retention, true)
        AND rec - ARRAY['kind', 'permits', 'fence', 'version', 'closed_for', 'due_at', 'forced'] = '{}';
END
$$;

-- Without the holders whose session has ended, where a grant was tied to one: a session that lives keeps the advisory
-- lock of its number, so nobody else can share it. It is an abnormal loss, with the lock-delay that was asked for.
CREATE OR REPLACE FUNCTION holdfast.without_severed(rec jsonb, at bigint) RETURNS jsonb LANGUAGE plpgsql AS $$
DECLARE
    holder jsonb;
    delay bigint;
BEGIN
    IF rec->'holders' @? '$[*].session' THEN
        FOR holder IN SELECT h FROM jsonb_array_elements(rec->'holders') AS h WHERE h ? 'session' LOOP
            IF pg_try_advisory_xact_lock_shared((holder->>'session')::bigint) THEN
                rec := holdfast.put(rec, 'holders', holdfast.without(rec->'holders', holder->>'id'))
                    || jsonb_build_object('version', coalesce((rec->>'version')::bigint, 0) + 1);
                delay := coalesce((holder->>'delay')::bigint, 0);
                IF delay > 0 THEN
                    rec := rec || jsonb_build_object(
                        'closed_until', greatest(coalesce((rec->>'closed_until')::bigint, 0), at + delay),
                        'closed_for', greatest(coalesce((rec->>'closed_for')::bigint, 0), delay));
                END IF;
            END IF;
        END LOOP;
    END IF;
    RETURN rec;
END
$$;

-- Decide about one lock. `rec` comes back NULL where the rule leaves the record as it is.
--
-- The first part is a short way for what nearly every command is: taking a key that nobody has, prolonging and ending
-- the one grant of a key. It answers as the rules below it do, and leaves all else to them.
CREATE OR REPLACE FUNCTION holdfast.apply(INOUT rec jsonb, op text, cmd jsonb, at bigint, OUT answer jsonb)
LANGUAGE plpgsql AS $$
DECLARE
    before jsonb := coalesce(rec, '{}');
    me jsonb;
    ends bigint;
    fence bigint;
BEGIN
    rec := NULL;
    IF op = 'Inspect' THEN
        answer := jsonb_build_array('Record', jsonb_build_object('record', before));
        RETURN;
    ELSIF jsonb_typeof(before) <> 'object'
        OR before ?| ARRAY['waiters', 'tombstones', 'closed_until', 'due_at', 'forced'] THEN
        NULL;  -- not simple
    ELSIF op = 'Acquire' AND NOT before ?| ARRAY['holders', 'closed_for']
        AND coalesce(before->'kind', '"item"') = cmd->'kind' AND coalesce(before->'permits', '1') = cmd->'permits'
        AND coalesce(jsonb_typeof(before->'fence'), 'number') = 'number'
        AND coalesce(jsonb_typeof(before->'version'), 'number') = 'number'
        AND cmd->'permits' >= '1' AND cmd->'weight' = '1' AND cmd->'delay' = '0' AND jsonb_typeof(cmd->'ttl') = 'number'
        AND NOT cmd ? 'session' THEN
        fence := greatest(coalesce((before->>'fence')::bigint, 0) + 1, at);
        ends := at + (cmd->>'ttl')::bigint;
        rec := before || jsonb_build_object(
            'kind', cmd->'kind', 'permits', cmd->'permits', 'fence', fence,
            'version', coalesce((before->>'version')::bigint, 0) + 1,
            'holders', jsonb_build_array(jsonb_build_object(
                'id', cmd->'id', 'label', cmd->'label', 'token', fence, 'since', at, 'ttl', cmd->'ttl', 'expires_at', ends)));
        answer := jsonb_build_array('Granted', jsonb_build_object(
            'token', fence, 'floor', fence, 'since', at, 'expires_at', ends));
        IF at < ends THEN
            RETURN;
        END IF;
        rec := NULL;
    ELSIF op IN ('Renew', 'Release') AND jsonb_typeof(before->'holders') = 'array'
        AND jsonb_array_length(before->'holders') = 1 AND NOT before ? 'closed_for'
        AND before->>'kind' IN ('item', 'hold', 'semaphore', 'rw', 'lease', 'run', 'worker')
        AND jsonb_typeof(before->'version') = 'number' THEN
        me := before->'holders'->0;
        IF me->'id' = cmd->'id' AND me->'token' = cmd->'token' AND NOT me ?| ARRAY['offered', 'session']
            AND jsonb_typeof(me->'expires_at') = 'number' AND jsonb_typeof(me->'ttl') = 'number'
            AND (me->>'expires_at')::bigint > at AND (me->>'expires_at')::bigint <= at + (me->>'ttl')::bigint THEN
            IF op = 'Release' THEN
                rec := (before - 'holders') || jsonb_build_object('version', (before->>'version')::bigint + 1);
                answer := '["Released", {}]';
                RETURN;
            ELSIF jsonb_typeof(cmd->'ttl') = 'number' THEN
                ends := at + (cmd->>'ttl')::bigint;
                IF ends > at AND (ends <> (me->>'expires_at')::bigint OR me->'ttl' <> cmd->'ttl') THEN
                    rec := before || jsonb_build_object(
                        'version', (before->>'version')::bigint + 1,
                        'holders', jsonb_build_array(me || jsonb_build_object('ttl', cmd->'ttl', 'expires_at', ends)));
                    answer := jsonb_build_array('Renewed', jsonb_build_object('floor', me->'token', 'expires_at', ends));
                    RETURN;
                END IF;
            END IF;
        END IF;
    END IF;
    IF NOT holdfast.readable(before) THEN
        answer := jsonb_build_array('Unreadable', jsonb_build_object('record', before));
        RETURN;
    END IF;
    rec := holdfast.without_severed(before, at);
    CASE op
        WHEN 'Acquire' THEN SELECT r.rec, r.answer INTO rec, answer FROM holdfast.acquire(rec, cmd, at) AS r;
        WHEN 'Renew' THEN SELECT r.rec, r.answer INTO rec, answer FROM holdfast.renew(rec, cmd, at) AS r;
        WHEN 'Release' THEN SELECT r.rec, r.answer INTO rec, answer FROM holdfast.release(rec, cmd, at) AS r;
        WHEN 'Abandon' THEN SELECT r.rec, r.answer INTO rec, answer FROM holdfast.abandon(rec, cmd, at) AS r;
        WHEN 'Transfer' THEN SELECT r.rec, r.answer INTO rec, answer FROM holdfast.transfer(rec, cmd, at) AS r;
        WHEN 'ForceRelease' THEN SELECT r.rec, r.answer INTO rec, answer FROM holdfast.force_release(rec, cmd, at) AS r;
        WHEN 'Settle' THEN SELECT r.rec, holdfast.answer('Settled', r.woken) INTO rec, answer FROM holdfast.settle(rec, at) AS r;
    END CASE;
    IF rec = before THEN
        rec := NULL;
    END IF;
END
$$;
