-- Who lives: leases of workers, locks of runs, and the workers that are enlisted. Put into redis_runs.lua, whose names
-- it uses.
--
-- A worker lives while it holds the lock worker/<its id>. Locks are read as this batch has left them. One that is not
-- exactly as this version writes it is looked at all the same: who holds it can be told by any version.

-- Whether somebody, or this attempt, holds a lock now, and until when (false: for ever). An offer is no holding yet.
local function held(key, id)
  local text = load(key)
  if not text then
    return false
  end
  local owner, _, ends = match(text, LEASE)
  if owner then
    ends = tonumber(ends)
    return (not id or owner == id) and ends > now, ends
  end
  local done, record = pcall(cjson.decode, text)
  local holders = done and type(record) == "table" and (record.holders or NOBODY)
  if type(holders) ~= "table" then
    unreadable("record of the lock", key, "it is no JSON of a lock")
  end
  for _, holder in ipairs(holders) do
    if type(holder) ~= "table" then
      unreadable("record of the lock", key, "a holder in it is none")
    elseif (not id or holder.id == id) and holder.offered ~= true then
      local last = holder.expires_at
      if last == nil or last == cjson.null then
        return true, false
      elseif type(last) ~= "number" then
        unreadable("record of the lock", key, "a number in it is none")
      elseif last > now then
        return true, last
      end
    end
  end
  return false
end

local function lives(worker)
  if worker == "" then
    return false
  end
  local key = "worker/" .. worker
  local text, known = load(key), leases[key]
  if not known or known.text ~= text then
    known = { text = text }
    known.lives, known.ends = held(key, worker)
    leases[key] = known
  end
  return known.lives, known.ends
end

-- Whether a worker may be given runs: it lives and is enlisted. One that is not would never be found dead.
local function works(worker)
  return lives(worker) and call("HGET", WORKERS, worker) ~= false
end

-- What time has done to a lease is written down: a clock that was set back must not keep the dead alive. One that is
-- not ours to write is left as it is.
local function settle_lease(worker)
  local key = "worker/" .. worker
  local text = load(key)
  local _, ttl, ends = match(text or "", LEASE)
  ends = tonumber(ends)
  if text and not (ends and ends > now and ends <= now + tonumber(ttl)) then
    rules = rules or make_rules()
    local done, record = pcall(rules.read, key)
    if done then
      rules.write(key, record, (rules.settle(record)))
    elseif not (type(record) == "table" and record.foreign) then
      error(record, 0)
    end
  end
end

local function run_key(run)
  local function part(text)
    return (string.gsub(string.gsub(text, "%%", "%%25"), "/", "%%2F"))
  end
  return "run/" .. part(workflow_of(run.fields.type)) .. "/" .. part(run.id)
end

local function read_worker(id, text)
  local done, value = pcall(cjson.decode, text)
  if not done or type(value) ~= "table" or type(value.name) ~= "string" or type(value.since) ~= "number"
    or type(value.types) ~= "table" then
    unreadable("worker", id, "it is no JSON of a worker")
  end
  local types = {}
  for _, kind in ipairs(value.types) do
    types[kind] = true
  end
  return { id = id, name = value.name, since = value.since, types = types }
end

local function all_workers()
  if workers then
    return workers
  end
  local flat, found, unknown = call("HGETALL", WORKERS), {}, {}
  for place = 1, #flat, 2 do
    found[#found + 1] = read_worker(flat[place], flat[place + 1])
    local key = "worker/" .. flat[place]
    if texts[key] == nil then
      unknown[#unknown + 1] = key
    end
  end
  for start = 1, #unknown, CHUNK do -- their leases at once; what is none, or no text, is looked at one by one
    local names = {}
    for place = start, math.min(start + CHUNK - 1, #unknown) do
      names[#names + 1] = LOCK .. unknown[place]
    end
    for place, text in ipairs(call("MGET", unpack(names))) do
      if text then
        texts[unknown[start + place - 1]], fresh[unknown[start + place - 1]] = text, false
      end
    end
  end
  table.sort(found, function(one, other)
    if one.since ~= other.since then
      return one.since < other.since
    end
    return earlier(one.id, other.id)
  end)
  workers = found
  return found
end

-- Who drives a run, for people; empty if nobody living does.
local function driver_of(run)
  if not run or not lives(text_in(run, "worker")) then
    return ""
  end
  local id = run.fields.worker
  for _, worker in ipairs(all_workers()) do
    if worker.id == id and worker.name ~= "" then
      return worker.name
    end
  end
  return id
end
