-- Claims, and the runs of workers that die or go: rules/runs.py. Put into redis_runs.lua, whose names it uses.
--
-- What is due is read as lists of {moment, id}, each in order, and put together; a run itself is read when its turn
-- comes. One that cannot be read, or whose parent or lock cannot be, is left as it is and looked at again a little
-- later, as one is that is locked: otherwise it would hide those that come after it.

local add, wake, claimed, buried, finish = stories.add, stories.wake, stories.claimed, stories.buried, stories.finish
local POISONED, SUSPECT, POSTPONED, BURIED_AT_ONCE = 5, 2, 1000000, 1000
local POISON = '{"type":"RunPoisoned","message":"its worker died %.0f times in a row while it drove this run"}'

-- Two lists in order, as one.
local function merged(some, others)
  if #some == 0 or #others == 0 then
    return #some == 0 and others or some
  end
  local all, i, j = {}, 1, 1
  while some[i] or others[j] do
    local one, other = some[i], others[j]
    local first = one and (not other or one[1] < other[1] or (one[1] == other[1] and earlier(one[2], other[2])))
    all[#all + 1] = first and one or other
    i, j = first and i + 1 or i, first and j or j + 1
  end
  return all
end

-- The run behind a name in an index. A name without a run is taken out of it; what cannot be read is passed over.
local function indexed_run(index, id)
  local done, run = pcall(run_of, id)
  if not done and (type(run) ~= "table" or not run.unreadable) then
    error(run, 0)
  elseif done and not run then
    later(function()
      put("ZREM", index, id)
    end)
  end
  return done and run or nil
end

-- The first runs of a worker by id, and how many names that took.
local function owned(worker, limit)
  local index, found = OWNED_BY .. worker, {}
  local ids = call("ZRANGE", index, "0", "-1")
  local count = math.min(#ids, limit)
  table.sort(ids, earlier)
  for place = 1, count do
    local run = indexed_run(index, ids[place])
    if run and text_in(run, "worker") == worker then
      found[#found + 1] = run
    end
  end
  return found, count
end

local function forget_worker(worker)
  later(function()
    put("HDEL", WORKERS, worker)
    workers = nil
  end)
end

-- Set the runs of dead workers free; they are due, though no index knows it yet. Who has none left is forgotten.
local function bury(worker)
  local room, free = BURIED_AT_ONCE, {}
  for _, dead in ipairs(all_workers()) do
    settle_lease(dead.id)
    if dead.id ~= worker and room > 0 and not lives(dead.id) then
      local orphans, count = owned(dead.id, room)
      local due = {}
      for _, run in ipairs(orphans) do
        local kind = save_run(buried(run, number_in(run, "deaths") + 1)).fields.type
        due[kind] = due[kind] or {}
        table.insert(due[kind], { tonumber(AT_ONCE), run.id })
      end
      for kind, list in pairs(due) do
        free[kind] = merged(free[kind] or NOBODY, list)
      end
      room = room - count
      if room > 0 then
        forget_worker(dead.id)
      end
    end
  end
  return free
end

local function due_between(kind, first, last, limit)
  local flat = call("ZRANGEBYSCORE", DUE_OF .. kind, first, last, "WITHSCORES", "LIMIT", "0", digits(limit))
  local found = {}
  for place = 1, #flat, 2 do
    found[#found + 1] = { tonumber(flat[place + 1]), flat[place] }
  end
  return found
end

-- What is due of all the types, the longest due first: of each type so many at once, and as many whose time has come.
local function due_runs(becomes, free, limit)
  local all = {}
  for kind in pairs(becomes) do
    local at_once = merged(due_between(kind, "-inf", "(0", limit), free[kind] or NOBODY)
    local since = {}
    for place = 1, math.min(limit, #at_once) do
      since[place] = { at_once[place][1] + LONG_AGO, at_once[place][2] }
    end
    all = merged(all, merged(since, due_between(kind, "0", NOW, limit)))
  end
  return all
end

local function postpone(run)
  local due_at = moment_in(run, "due_at")
  if due_at and due_at <= now then
    save_run(altered(run, { due_at = digits(now + POSTPONED) }))
  end
end

-- A name whose run cannot be read or is not there: nobody knows its type, so it is seen to wherever it may be.
local function put_off(becomes, id)
  for kind in pairs(becomes) do
    later(function()
      put("ZADD", DUE_OF .. kind, "XX", digits(now + POSTPONED), id)
    end)
  end
end

local function strike_out(becomes, id)
  for kind in pairs(becomes) do
    later(function()
      put("ZREM", DUE_OF .. kind, id)
    end)
  end
end

local function candidates(becomes, named, free, limit)
  local ids = {}
  if #named == 0 then
    for place, one in ipairs(due_runs(becomes, free, limit)) do
      ids[place] = one[2]
    end
    return ids
  end
  local seen = {}
  for _, id in ipairs(named) do
    local run = not seen[text_of(id)] and run_of(id)
    seen[id] = true
    if run and LIVES[run.fields.status] and run.fields.status ~= "queued" then
      ids[#ids + 1] = id
    end
  end
  return ids
end

-- Decide about one run. Returns it if it is the worker's now, what it holds, and whether it used up a suspect's place.
local function take(id, worker, becomes, spare, told)
  local run = run_of(id)
  if not run then -- somebody has removed it by hand
    return strike_out(becomes, id)
  end
  local kind = becomes[run.fields.type]
  local owner, deaths = text_in(run, "worker"), number_in(run, "deaths")
  if not kind or (owner ~= worker and lives(owner)) then
    return nil
  elseif held(run_key(run)) then
    postpone(run)
    return nil
  elseif deaths >= POISONED then
    add(told, finish(run, "failed", format(POISON, deaths)))
    return nil
  end
  local suspect = deaths >= SUSPECT and owner ~= worker
  if suspect and not spare then
    postpone(run)
    return nil
  end
  local holds = text_in(run, "locks") ~= "" and stories.all_belongings().held(run) or NOBODY
  local taken = claimed(run, worker, kind)
  if taken ~= run then
    save_run(taken)
  end
  return taken, holds, suspect
end

-- {22, worker, {type, becomes, ...}, limit, suspects, runs}
local function claim(command)
  local worker, limit = text_of(command[2]), whole(command[4], 1, MAX)
  local suspects, named, becomes, kinds = whole(command[5], -MAX, MAX), command[6], {}, {}
  for place = 1, #command[3], 2 do
    becomes[text_of(command[3][place])] = text_of(command[3][place + 1])
    kinds[#kinds + 1] = command[3][place]
  end
  if not works(worker) then
    return WORKER_GONE
  end
  local free, told, found, holdings = bury(worker), {}, {}, {}
  for _, id in ipairs(candidates(becomes, named, free, limit)) do
    if #found >= limit then
      break
    end
    local so_far = #saves + #writes
    local done, run, holds, suspect = pcall(take, id, worker, becomes, suspects > 0 or #named > 0, told)
    if not done then
      -- It, its parent or its lock cannot be read. Whoever has named it is told; and nothing of it is left half done.
      if type(run) ~= "table" or not run.unreadable or #named > 0 or #saves + #writes > so_far then
        error(run, 0)
      end
      put_off(becomes, id)
    elseif run then
      found[#found + 1], holdings[#found + 1] = run, holds
      suspects = suspect and suspects - 1 or suspects
    end
  end
  return { CLAIMED, told, found, kinds, holdings }
end

-- With what the worker needs to go on; read after the claims have been written.
local function tell_claims(outcome)
  local start, found = #stored, outcome[3]
  for place, run in ipairs(found) do
    local entries = ask(run.id, "LRANGE", JOURNAL .. run.id, "0", "-1")
    local events = run_of(run.id).posted > 0 and events_after(run.id, 0) or NOBODY
    keep(cmsgpack.pack({ run.fields, run.id, run.length, run.posted, entries, events, outcome[5][place] }))
  end
  return { CLAIMED, outcome[2], start, #found, next_due(outcome[4]) }
end

-- {34, worker}
local function dismiss(command)
  local worker, told = text_of(command[2]), {}
  forget_worker(worker)
  for _, run in ipairs((owned(worker, MAX))) do
    local free = save_run(buried(run, number_in(run, "deaths")))
    add(told, wake(free, worker))
  end
  return #told > 0 and { ENLISTED, told } or ENLISTED
end

return { [22] = claim, [34] = dismiss, tell = tell_claims }
