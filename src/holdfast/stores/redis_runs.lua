-- Runs as they are stored: how they are read, found and written. Put into redis_rest.lua, whose names it uses.
--
--   ...:run:<id>             a hash: what rules/run.py says of a run, field by field, numbers in digits. What is absent
--                            or empty is as in the beginning (but a result that is empty is a result)
--   ...:journal:<id>         a list: the entries, the first of which is the input
--   ...:inbox:<id>           a list: the events as JSON, the first is number 1. Empty: forgotten, and its place stays
--   ...:inbox-keys:<id>      a hash: the key of an event -> its number
--   ...:runs:age             a sorted set of all runs, by the moment of their start
--   ...:runs:due:<type>      a sorted set of the runs of a type that may be claimed, by when
--   ...:runs:of:<worker>     a sorted set of the runs of a worker, by their fences
--   ...:runs:living:<type>   a set of the runs that have not ended; ...:runs:types names the types
--   ...:runs:keys            a hash: <workflow>:<idempotency key> -> the run
--   ...:workers              a hash: the id of a worker -> what it is, as JSON
--   ...:limits:...           the limits of workflows, and who is counted by them: see redis_limits.lua
--
-- How long a journal is and how many events came is asked of the lists themselves, so no count can be wrong. Texts of
-- users (entries, inputs, payloads, results, attributes) are never taken apart here: they come back byte for byte.
-- A command makes drafts and writes them when it has been decided (`commit`): one that fails has changed nothing.

local RUN, JOURNAL, INBOX, INBOX_KEYS = BASE .. "run:", BASE .. "journal:", BASE .. "inbox:", BASE .. "inbox-keys:"
local DUE_OF, OWNED_BY, LIVING = BASE .. "runs:due:", BASE .. "runs:of:", BASE .. "runs:living:"
local AGE, TYPES, BY_KEY, WORKERS = BASE .. "runs:age", BASE .. "runs:types", BASE .. "runs:keys", BASE .. "workers"
local TERMS = BASE .. "limits:terms"

local FIRST_LOOK, LAST_LOOK = 26, 32
local WORKER_GONE, CLAIMED, ENLISTED = 43, 42, 52
local LONG_AGO = 5000000000000000
local AT_ONCE = format("%.0f", now - LONG_AGO)
local LIVES = { queued = true, pending = true, running = true, suspended = true }
local ENDS = { completed = true, failed = true, cancelled = true, timed_out = true }
local NUMBERS = {
  "created_at", "due_at", "fence", "lives", "deaths", "started_at", "ended_at", "priority", "arrival",
}
local TEXTS_OF_JSON = { "attributes", "watchers", "places", "locks", "stuck" }
-- A lock with one confirmed holder whose time runs, and with nothing after it: nearly every worker's lease.
local LEASE = '"holders":%[{"id":"([^%c"\\\128-\255]*)","label":{[^{}]*},"token":%d+,"since":%d+,"ttl":(%d+),'
  .. '"expires_at":(%d+)}%]}$'

local drafts, before, saves, made_keys, writes -- of the command that is being decided
local arrivals, lines, notes = {}, {}, {} -- likewise: what it adds to inboxes, to places and to starts
local workers -- all that are enlisted, the latest last; nil: not known now
local known_types = {} -- those that have been written down by this batch
local leases = {} -- key of a lock -> what was found out about its text
local terms_known = {} -- workflow -> its terms as this batch has left them; false: there are none
local recount

local function begin()
  drafts, before, saves, made_keys, writes = {}, {}, {}, {}, {}
  if next(arrivals) or next(lines) then
    arrivals, lines, notes = {}, {}, {}
  end
end

local function digits(number)
  return format("%.0f", number)
end

local function unreadable(what, name, why)
  error({ unreadable = why, what = what, name = name }, 0)
end

local function ask(id, ...)
  local reply = redis.pcall(...)
  local refused = refusal(reply)
  if refused and sub(refused, 1, 9) == "WRONGTYPE" then
    unreadable("run", id, "there is something else in the place of a part of it")
  elseif refused then
    error({ server = refused }, 0)
  end
  return reply
end

-- As bytes, which is the order of sorted sets; Lua's own `<` is the order of the server's language.
local function earlier(one, other)
  local place = 1
  while true do
    local a, b = string.byte(one, place), string.byte(other, place)
    if a ~= b or not a then
      return (a or -1) < (b or -1)
    end
    place = place + 1
  end
end

-- ------------------------------------------------------------------------------------------ one run

local function text_in(run, name)
  return run.fields[name] or ""
end

local function number_in(run, name)
  return tonumber(run.fields[name]) or 0
end

local function moment_in(run, name)
  return tonumber(run.fields[name]) or false -- empty: none
end

local function json_in(id, text)
  local done, value = pcall(cjson.decode, text)
  if not done or type(value) ~= "table" then
    unreadable("run", id, "something in it should be JSON and is none")
  end
  return value
end

local function check(id, fields, flat)
  if not (LIVES[fields.status] or ENDS[fields.status]) or not fields.type
    or (fields.created_at or "") == "" then
    unreadable("run", id, "its type, its status or its beginning is not told")
  end
  for _, name in ipairs(NUMBERS) do
    local value = fields[name]
    if value and value ~= "" and not (find(value, "^%-?%d+$") and math.abs(tonumber(value)) <= MAX) then
      unreadable("run", id, "a number in it is none")
    end
  end
  for _, name in ipairs(TEXTS_OF_JSON) do
    if fields[name] and fields[name] ~= "" then
      json_in(id, fields[name])
    end
  end
  if not is_utf8(table.concat(flat, "\n")) then
    unreadable("run", id, "it is no text")
  end
end

local function load_run(id)
  local flat = ask(id, "HGETALL", RUN .. id)
  local length, posted = ask(id, "LLEN", JOURNAL .. id), ask(id, "LLEN", INBOX .. id)
  if #flat == 0 then
    if length + posted > 0 then
      unreadable("run", id, "its journal or its inbox is there without it")
    end
    return false
  end
  local fields = {}
  for place = 1, #flat, 2 do
    fields[flat[place]] = flat[place + 1]
  end
  check(id, fields, flat)
  return { id = id, fields = fields, length = length, posted = posted }
end

-- The run as this command has left it; nil: there is none.
local function run_of(id)
  local run = drafts[id]
  if run == nil then
    run = load_run(id)
    drafts[id], before[id] = run, run
  end
  return run or nil
end

local function save_run(run)
  if (run.fields.places or "") ~= "" then
    recount(drafts[run.id], run)
  end
  if not saves[run.id] then
    saves[run.id] = true
    saves[#saves + 1] = run.id
  end
  drafts[run.id] = run
  return run
end

-- A copy with other fields.
local function altered(run, fields)
  local copy = { id = run.id, fields = {}, length = run.length, posted = run.posted }
  for name, value in pairs(run.fields) do
    copy.fields[name] = value
  end
  for name, value in pairs(fields) do
    copy.fields[name] = value
  end
  return copy
end

-- How the client is told of a run.
local function shown_run(run)
  return keep(cmsgpack.pack({ run.fields, run.id, run.length, run.posted }))
end

local function workflow_of(kind)
  return match(kind, "^[^@]*")
end

local function events_after(id, seen)
  local found = {}
  for _, text in ipairs(ask(id, "LRANGE", INBOX .. id, digits(math.max(0, seen)), "-1")) do
    if text ~= "" then
      found[#found + 1] = text
    end
  end
  return found
end

-- With those that come by this very command.
local function kept_events(id, seen)
  local found = events_after(id, seen)
  for _, event in ipairs(arrivals[id] or NOBODY) do
    if event.number > seen then
      found[#found + 1] = event.text
    end
  end
  return #found > 0 and keep(cmsgpack.pack(found))
end

local function run_with_key(name)
  return made_keys[name] or call("HGET", BY_KEY, name) or nil
end

-- The terms of a workflow: their digest and their text; nil: none were ever published.
local function known_terms(workflow)
  local known = terms_known[workflow]
  if known == nil then
    local text = call("HGET", TERMS, workflow)
    known = false
    if text then
      known = { digest = match(text, '^{"digest":"(%x*)","terms":{.*}}$') }
      if not known.digest then
        unreadable("terms of the workflow", workflow, "they are no JSON of terms")
      end
      known.text = sub(text, #known.digest + 22, -2)
    end
    terms_known[workflow] = known
  end
  return known or nil
end

local function forget_terms(workflow)
  terms_known[workflow] = nil
end

local function next_due(kinds)
  local first = false
  for _, kind in ipairs(kinds) do
    local found = call("ZRANGE", DUE_OF .. text_of(kind), "0", "0", "WITHSCORES")
    local due_at = tonumber(found[2])
    if due_at and (not first or due_at < first) then
      first = due_at
    end
  end
  return first
end

--@include redis_workers.lua

-- ------------------------------------------------------------------------------------------ writing

local function put(...)
  call(...)
  wrote = true
end

-- Keep the orders in which a run is found.
local function write_indexes(was, run)
  local old, new, id = was and was.fields or NOBODY, run.fields, run.id
  local due_before, due, owner_before, owner = old.due_at or "", new.due_at or "", old.worker or "", new.worker or ""
  if not was then
    put("ZADD", AGE, new.created_at, id)
  end
  if due_before ~= "" and (due == "" or old.type ~= new.type) then
    put("ZREM", DUE_OF .. old.type, id)
  end
  if due ~= "" and (due ~= due_before or old.type ~= new.type) then
    put("ZADD", DUE_OF .. new.type, due, id)
  end
  if owner_before ~= owner then
    if owner_before ~= "" then
      put("ZREM", OWNED_BY .. owner_before, id)
    end
    if owner ~= "" then
      put("ZADD", OWNED_BY .. owner, new.fence, id)
    end
  end
  local lived, living_now = LIVES[old.status], LIVES[new.status]
  if lived and (not living_now or old.type ~= new.type) then
    put("SREM", LIVING .. old.type, id)
  end
  if living_now and (not lived or old.type ~= new.type) then
    if not known_types[new.type] then
      put("SADD", TYPES, new.type)
      known_types[new.type] = true
    end
    put("SADD", LIVING .. new.type, id)
  end
end

local function write_fields(was, run)
  local old, values, gone = was and was.fields or NOBODY, {}, {}
  for name, value in pairs(run.fields) do
    if value ~= old[name] then
      values[#values + 1] = name
      values[#values + 1] = value
    end
  end
  for name in pairs(old) do
    if run.fields[name] == nil then
      gone[#gone + 1] = name
    end
  end
  if #values > 0 then
    put("HSET", RUN .. run.id, unpack(values))
  end
  if #gone > 0 then
    put("HDEL", RUN .. run.id, unpack(gone))
  end
end

-- What came before in the batch first, then indexes, lists and, last of all, the runs themselves.
local function commit()
  if #saves == 0 and #writes == 0 then
    return
  end
  if #changed > 0 or next(slots_changed) then
    flush()
  end
  for _, id in ipairs(saves) do
    write_indexes(before[id], drafts[id])
  end
  for _, write_it in ipairs(writes) do
    write_it()
  end
  for _, id in ipairs(saves) do
    write_fields(before[id], drafts[id])
  end
end

local function later(write_it)
  writes[#writes + 1] = write_it
end

-- ------------------------------------------------------------------------------------------ which story

-- They are made when they are needed, and each in a function of its own: making a function takes the longer, the more
-- names of the one around it are in use.

local stories, claims, looks

local function make_belongings(add, wake, posted)
  --@include redis_belongings.lua
end

local function make_stories()
  --@include redis_run_rules.lua
end

-- Keep the places where a run is counted.
recount = function(was, run)
  stories = stories or make_stories()
  stories.all_limits().recount(was, run)
end

local function make_claims()
  --@include redis_run_claims.lua
end

local function make_looks()
  --@include redis_run_looks.lua
end

local function story_of(operation)
  if operation >= FIRST_LOOK and operation <= LAST_LOOK then
    looks = looks or make_looks()
    return looks[operation]
  end
  stories = stories or make_stories()
  if stories[operation] then
    return stories[operation]
  end
  claims = claims or make_claims()
  return claims[operation]
end

local function answer(command)
  begin()
  local outcome = story_of(command[1])(command)
  commit()
  if type(outcome) == "table" then
    tell(outcome[2])
    if outcome[1] == CLAIMED then
      return claims.tell(outcome)
    end
  end
  return outcome
end

-- Runs were offered something by a command about locks. Returns whom to tell of that.
local function offered(attempts)
  begin()
  stories = stories or make_stories()
  local told = stories.all_belongings().tell(attempts)
  commit()
  return told
end

return { answer = answer, offered = offered }
