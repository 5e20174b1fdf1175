-- The rules of every lock: rules/lock.py, line by line. Put into redis_rest.lua, whose names it uses.
--
-- Read rules/lock.py for what they mean; this says only how they are done here. A rule is given a record and returns
-- the next one and the outcome, whose second place tells who was granted something by it; one that changes nothing
-- returns the very record that it was given. A hand-over is always made (`offers`): a look without one is for people,
-- and the client itself takes it.

local MAX_TOMBSTONES = 64
local RETENTION = 7 * 86400 * 1000000

local QUEUED, BUSY, ABANDONED, TRANSFERRED, TARGET_HOLDS, MISMATCH, TOO_HEAVY, GONE, FORCE_RELEASED, SETTLED =
  5, 6, 7, 8, 9, 10, 11, 12, 13, 14

-- ------------------------------------------------------------------------------------------ lists

local function find_by_id(things, id)
  for place, thing in ipairs(things) do
    if thing.id == id then
      return thing, place
    end
  end
  return nil
end

local function without(things, id)
  local rest = {}
  for _, thing in ipairs(things) do
    if thing.id ~= id then
      rest[#rest + 1] = thing
    end
  end
  return rest
end

local function joined(things, more)
  local all = {}
  for _, thing in ipairs(things) do
    all[#all + 1] = thing
  end
  for _, thing in ipairs(more) do
    all[#all + 1] = thing
  end
  return all
end

local function put(things, place, thing)
  local all = joined(things, {})
  all[place] = thing
  return all
end

local function last_of(things, count)
  local rest = {}
  for place = math.max(1, #things - count + 1), #things do
    rest[#rest + 1] = things[place]
  end
  return rest
end

-- ------------------------------------------------------------------------------------------ time

local function living(things)
  local steady = true
  for _, thing in ipairs(things) do
    local ends = thing.expires_at
    if ends and (ends <= now or ends > now + (thing.ttl or 0)) then
      steady = false
      break
    end
  end
  if steady then
    return things
  end
  local kept = {}
  for _, thing in ipairs(things) do
    local expires_at = thing.expires_at
    if not expires_at then
      kept[#kept + 1] = thing
    else
      local ends = math.min(expires_at, now + (thing.ttl or 0))
      if ends > now then
        kept[#kept + 1] = ends == expires_at and thing or with(thing, { expires_at = ends })
      end
    end
  end
  return kept
end

local function earliest(holders, waiters, closed_until)
  local first = false
  local function look(ends)
    if ends and (not first or ends < first) then
      first = ends
    end
  end
  for _, holder in ipairs(holders) do
    look(holder.expires_at)
  end
  for _, waiter in ipairs(waiters) do
    look(waiter.expires_at)
  end
  look(closed_until ~= 0 and closed_until)
  return first
end

local function from_now(at)
  return at and math.max(0, at - now)
end

local function ends(ttl)
  return ttl and now + ttl
end

local function weight_of(holders)
  local sum = 0
  for _, holder in ipairs(holders) do
    sum = sum + holder.weight
  end
  return sum
end

local function next_token(fence)
  return math.max(fence + 1, now)
end

local function floor_of(record)
  local lowest
  for _, holder in ipairs(record.holders) do
    lowest = math.min(lowest or holder.token, holder.token)
  end
  return lowest or record.fence
end

local function settle(record)
  local holders = living(record.holders)
  if holders == record.holders and #record.waiters == 0 and #record.tombstones == 0 and record.closed_until == 0
    and not record.due_at then
    return record, NOBODY
  end
  local waiters, tombstones = living(record.waiters), living(record.tombstones)
  local closed_until, closed_for = record.closed_until, record.closed_for
  if #holders ~= #record.holders then
    for _, holder in ipairs(record.holders) do
      local lapsed = holder.expires_at
      if lapsed and lapsed <= now and holder.delay ~= 0 and not holder.offered then
        closed_until, closed_for = math.max(closed_until, lapsed + holder.delay), math.max(closed_for, holder.delay)
      end
    end
  end
  if closed_until ~= 0 then
    closed_until = math.min(closed_until, now + closed_for)
    if closed_until <= now then
      closed_until, closed_for = 0, 0
    end
  end
  local fence, told = record.fence, {}
  if #waiters > 0 and closed_until == 0 then
    local free, taken = record.permits - weight_of(holders), 0
    while waiters[taken + 1] and waiters[taken + 1].weight <= free do
      taken = taken + 1
      local head = waiters[taken]
      fence = next_token(fence)
      holders = joined(holders, { {
        id = head.id, label = head.label, token = fence, since = now, ttl = head.ttl, expires_at = head.expires_at,
        weight = head.weight, offered = true, delay = head.delay, via = "",
      } })
      free = free - head.weight
      told[taken] = head.id
    end
    if taken > 0 then
      waiters = last_of(waiters, #waiters - taken)
    end
  end
  local due_at = #waiters > 0 and earliest(holders, waiters, closed_until)
  if holders == record.holders and waiters == record.waiters and tombstones == record.tombstones
    and closed_until == record.closed_until and due_at == record.due_at then
    return record, NOBODY
  end
  return with(record, {
    fence = fence, version = record.version + 1, holders = holders, waiters = waiters, tombstones = tombstones,
    closed_until = closed_until, closed_for = closed_for, due_at = due_at,
  }), told
end

local function change(record, fields)
  local after, told = settle(with(record, fields))
  if encode(after) == encode(record) then
    return record, told
  end
  return with(after, { version = record.version + 1 }), told
end

local function idle(record)
  return #record.holders == 0 and #record.waiters == 0
end

local function held_by(record, id, token)
  local held, place = find_by_id(record.holders, id)
  if not held or (token == nil and record.kind ~= "lease") or (token ~= nil and held.token ~= token) then
    return nil
  end
  return held, place
end

-- ------------------------------------------------------------------------------------------ the rules

local function confirm(record, held, place, ttl, delay, told)
  local confirmed = with(held, {
    ttl = ttl, expires_at = ends(ttl), offered = false, delay = delay, since = held.offered and now or held.since,
  })
  local after, more = change(record, { holders = put(record.holders, place, confirmed) })
  return after, { GRANTED, joined(told, more), confirmed.token, floor_of(after), confirmed.since,
    confirmed.expires_at, false }
end

local function reshape(record, kind, permits)
  local stay, stones = {}, {}
  for _, waiter in ipairs(record.waiters) do
    if waiter.weight <= permits then
      stay[#stay + 1] = waiter
    else
      local ttl = waiter.ttl and waiter.ttl ~= 0 and waiter.ttl or RETENTION
      stones[#stones + 1] = { id = waiter.id, ttl = ttl, expires_at = now + ttl, reason = "never_fits" }
    end
  end
  return with(record, {
    kind = kind, permits = permits, waiters = stay, version = record.version + 1,
    tombstones = last_of(joined(record.tombstones, stones), MAX_TOMBSTONES),
  })
end

local function take_or_wait(record, me, ttl, queue, told, permits_before)
  local _, position = find_by_id(record.waiters, me.id)
  local first = position == 1 or #record.waiters == 0
  if first and me.weight <= record.permits - weight_of(record.holders) and record.closed_until == 0 then
    local token = next_token(record.fence)
    local grant = {
      id = me.id, label = me.label, token = token, since = now, ttl = ttl, expires_at = ends(ttl),
      weight = me.weight, offered = false, delay = me.delay, via = "",
    }
    local after, more = change(record, {
      fence = token, holders = joined(record.holders, { grant }), waiters = without(record.waiters, me.id),
    })
    return after, { GRANTED, joined(told, more), token, floor_of(after), now, grant.expires_at, permits_before }
  end
  if not position and not queue then
    local retry_in = from_now(earliest(record.holders, record.waiters, record.closed_until))
    return record, { BUSY, told, keep(list_text(record.holders, holder_text)), #record.waiters, retry_in,
      permits_before }
  end
  local waiters
  if position then
    waiters = put(record.waiters, position, me)
  else
    position = #record.waiters + 1
    waiters = joined(record.waiters, { me })
  end
  local after, more = change(record, { waiters = waiters })
  return after, { QUEUED, joined(told, more), position - 1, keep(list_text(after.holders, holder_text)),
    from_now(after.due_at), permits_before }
end

-- {1, key, id, label, kind, permits, weight, ttl, queue, waiter_ttl, delay}
local function acquire(record, command)
  local id, label, kind = text_of(command[3]), command[4], command[5]
  local permits, weight = whole(command[6], -MAX, MAX), whole(command[7], -MAX, MAX)
  local ttl, queue, waiter_ttl, delay = command[8] or false, command[9], command[10] or false, command[11]
  length(command[8])
  length(command[10])
  whole(delay, -MAX, MAX)
  local told
  record, told = settle(record)
  local held, place = find_by_id(record.holders, id)
  if held then
    return confirm(record, held, place, ttl, delay, told)
  end
  local stone = find_by_id(record.tombstones, id)
  if stone and stone.reason == "never_fits" then
    return record, { TOO_HEAVY, told, record.permits }
  elseif stone then
    return record, { GONE, told }
  end
  if record.kind ~= kind and not idle(record) then
    return record, { MISMATCH, told, record.kind }
  end
  local waiting = find_by_id(record.waiters, id)
  local permits_before = false
  if not waiting then
    if weight > permits then
      return record, { TOO_HEAVY, told, permits }
    end
    if permits ~= record.permits or kind ~= record.kind then
      permits_before = permits ~= record.permits and record.fence ~= 0 and record.permits
      local more
      record, more = settle(reshape(record, kind, permits))
      told = joined(told, more)
    end
  end
  return take_or_wait(record, {
    id = id, label = label, since = waiting and waiting.since or now, ttl = waiter_ttl, expires_at = ends(waiter_ttl),
    weight = waiting and waiting.weight or weight, delay = delay,
  }, ttl, queue, told, permits_before)
end

-- {2, key, id, token, ttl}
local function renew(record, command)
  local ttl = command[5] or false
  length(command[5])
  local told, more
  record, told = settle(record)
  local held, place = held_by(record, command[3], command[4])
  if not held then
    return record, { NOT_HELD, told }
  end
  local longer = with(held, { ttl = ttl, expires_at = ends(ttl), offered = false })
  record, more = change(record, { holders = put(record.holders, place, longer) })
  return record, { RENEWED, joined(told, more), floor_of(record), longer.expires_at }
end

-- {3, key, id, token}
local function release(record, command)
  local told, more
  record, told = settle(record)
  if not held_by(record, command[3], command[4]) then
    return record, { NOT_HELD, told }
  end
  record, more = change(record, { holders = without(record.holders, command[3]) })
  return record, { RELEASED, joined(told, more) }
end

-- {4, key, id, ttl}
local function abandon(record, command)
  local id, ttl = text_of(command[3]), whole(command[4], -MAX, MAX - now)
  local told, more
  record, told = settle(record)
  local was = find_by_id(record.holders, id) and "holder" or find_by_id(record.waiters, id) and "waiter" or "nothing"
  local stones = ttl > 0 and { { id = id, ttl = ttl, expires_at = now + ttl, reason = "abandoned" } } or NOBODY
  record, more = change(record, {
    holders = without(record.holders, id), waiters = without(record.waiters, id),
    tombstones = last_of(joined(without(record.tombstones, id), stones), MAX_TOMBSTONES),
  })
  return record, { ABANDONED, joined(told, more), was }
end

local function transferred(record, holder, told)
  return { TRANSFERRED, told, holder.token, floor_of(record), holder.since, holder.expires_at }
end

-- {5, key, id, token, to_id, to_label, ttl}
local function transfer(record, command)
  local id, to_id, ttl = text_of(command[3]), text_of(command[5]), command[7] or false
  length(command[7])
  local told, more
  record, told = settle(record)
  local held = held_by(record, id, command[4])
  local target = find_by_id(record.holders, to_id)
  if not held and target and target.via == id then
    return record, transferred(record, target, told)
  elseif not held then
    return record, { NOT_HELD, told }
  elseif target then
    return record, { TARGET_HOLDS, told }
  end
  local token = next_token(record.fence)
  local successor = with(held, {
    id = to_id, label = command[6], token = token, since = now, ttl = ttl, expires_at = ends(ttl), via = id,
    offered = false,
  })
  record, more = change(record, {
    fence = token, holders = joined(without(record.holders, id), { successor }),
    waiters = without(record.waiters, to_id),
  })
  return record, transferred(record, successor, joined(told, more))
end

-- {6, key, by, reason}
local function force_release(record, command)
  local by, reason = text_of(command[3]), text_of(command[4])
  local told, more
  record, told = settle(record)
  local out = record.holders
  if #out == 0 then
    return record, { FORCE_RELEASED, told, keep("[]") }
  end
  local people = {}
  for place, holder in ipairs(out) do
    local label = cjson.decode(holder.label)
    people[place] = label.name
    if label.host then
      people[place] = label.name .. " (" .. label.host .. ":" .. format("%.0f", label.pid or 0) .. ")"
    end
  end
  record, more = change(record, { holders = {}, forced = forced_text(now, by, reason, people) })
  return record, { FORCE_RELEASED, joined(told, more), keep(list_text(out, holder_text)) }
end

-- {7, key}
local function settle_alone(record)
  local told
  record, told = settle(record)
  return record, { SETTLED, told }
end

local RULES = { acquire, renew, release, abandon, transfer, force_release, settle_alone }

local function decide_one(command)
  local key = command[2]
  local before = read(key)
  local after, outcome = RULES[command[1]](before, command)
  write(key, before, after)
  offer(outcome[2])
  return outcome
end
