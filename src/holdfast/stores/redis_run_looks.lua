-- Looks at runs. Put into redis_runs.lua, whose names it uses.
--
-- A page is looked for in the order of age, from the newest on. However many there are, one call looks at no more than
-- LOOKED_AT of them: then the page may be short, even empty, and says where the next one begins.

local RUN_SEEN, RUN_PAGE, CENSUS, OWNED, OUTLOOK, WORKERS_SEEN = 47, 48, 49, 50, 51, 53
local WATCHERS_MOST, LOOKED_AT, STRIDE = 64, 2000, 200

local function seen_run(run, history)
  local id = run.id
  local entries = ask(id, "LRANGE", JOURNAL .. id, "0", history and "-1" or "0")
  local place = keep(cmsgpack.pack({
    run.fields, id, run.length, run.posted, entries, history and events_after(id, 0) or NOBODY, NOBODY,
  }))
  local is_driven, ends = lives(text_in(run, "worker"))
  return { RUN_SEEN, NOBODY, place, driver_of(run), is_driven and ends }
end

-- {27, run, history}
local function see(command)
  local run = run_of(text_of(command[2]))
  return run and seen_run(run, command[3]) or RUN_SEEN
end

-- {26, run, id}
local function watch(command)
  local run, id = run_of(text_of(command[2])), text_of(command[3])
  if not run then
    return RUN_SEEN
  end
  local text = text_in(run, "watchers")
  local known = text ~= "" and json_in(run.id, text) or NOBODY
  local is_known = #known >= WATCHERS_MOST
  for _, watcher in ipairs(known) do
    is_known = is_known or watcher == id
  end
  if LIVES[run.fields.status] and not is_known then
    text = #known == 0 and "[" .. quoted(id) .. "]" or sub(text, 1, -2) .. "," .. quoted(id) .. "]"
    run = save_run(altered(run, { watchers = text }))
  end
  return seen_run(run, false)
end

-- ------------------------------------------------------------------------------------------ pages

-- How many runs come before the place of a cursor, from the newest on. Many may have begun at its very moment.
local function place_of(cursor)
  local moment, id = digits(whole(cursor[1], -MAX, MAX)), text_of(cursor[2])
  local first = call("ZCOUNT", AGE, "(" .. moment, "+inf")
  local last = call("ZCOUNT", AGE, moment, "+inf")
  while first < last do
    local middle = math.floor((first + last) / 2)
    local found = call("ZREVRANGE", AGE, digits(middle), digits(middle))[1]
    if earlier(found, id) then
      last = middle
    else
      first = middle + 1
    end
  end
  return first
end

-- Numbers beyond 2^53 are compared as far as Lua can; the client looks once more.
local function has_attributes(text, wanted)
  local done, attributes = pcall(cjson.decode, text ~= "" and text or "{}")
  for name, value in pairs(wanted) do
    if not done or type(attributes) ~= "table" or attributes[name] ~= value then
      return false
    end
  end
  return true
end

local function fits(id, wanted)
  local found = ask(id, "HMGET", RUN .. id, "status", "type", "attributes")
  return found[1] and (not wanted.statuses or wanted.statuses[found[1]])
    and (wanted.workflow == "" or workflow_of(found[2] or "") == wanted.workflow)
    and (not wanted.attributes or has_attributes(found[3] or "", wanted.attributes))
end

-- {28, limit, after, statuses, workflow, prefix, since, until, attributes}
local function filter_of(command)
  local wanted = {
    workflow = text_of(command[5]), prefix = text_of(command[6]), since = command[7] and whole(command[7], -MAX, MAX),
    attributes = command[9] ~= "" and cjson.decode(text_of(command[9])),
  }
  if #command[4] > 0 then
    wanted.statuses = {}
    for _, status in ipairs(command[4]) do
      wanted.statuses[status] = true
    end
  end
  wanted.any = not wanted.statuses and wanted.workflow == "" and not wanted.attributes
  return wanted
end

local function page_of(runs, last)
  local start = #stored
  last = last or false
  for _, run in ipairs(runs) do
    shown_run(run)
  end
  return { RUN_PAGE, NOBODY, start, #runs, last and keep(last[2]), last and last[1] }
end

local function list_runs(command)
  local limit, wanted, found, last = whole(command[2], 1, MAX), filter_of(command), {}, false
  local place = command[3] and place_of(command[3]) or 0
  if command[8] then
    place = math.max(place, call("ZCOUNT", AGE, digits(whole(command[8], -MAX, MAX)), "+inf"))
  end
  local stop, looked = place + LOOKED_AT, nil
  while true do
    local flat = call("ZREVRANGE", AGE, digits(place), digits(place + STRIDE - 1), "WITHSCORES")
    for n = 1, #flat, 2 do
      looked = { tonumber(flat[n + 1]), flat[n] }
      if wanted.since and looked[1] < wanted.since then
        return page_of(found)
      end
      local id = looked[2]
      if sub(id, 1, #wanted.prefix) == wanted.prefix and (wanted.any or fits(id, wanted)) then
        if #found == limit then
          return page_of(found, last)
        end
        local run = run_of(id)
        if run then
          found[#found + 1], last = run, looked
        end
      end
    end
    place = place + STRIDE
    if #flat < 2 * STRIDE then
      return page_of(found)
    elseif place >= stop then
      return page_of(found, looked)
    end
  end
end

-- ------------------------------------------------------------------------------------------ the rest

-- {29}
local function count_runs()
  local counts = {}
  for _, kind in ipairs(call("SMEMBERS", TYPES)) do
    local count = call("SCARD", LIVING .. kind)
    if count > 0 then
      counts[#counts + 1] = kind
      counts[#counts + 1] = digits(count)
    end
  end
  return { CENSUS, NOBODY, keep(cmsgpack.pack(counts)) }
end

-- {30, worker}
local function owned_runs(command)
  local flat, found = call("ZRANGE", OWNED_BY .. text_of(command[2]), "0", "-1", "WITHSCORES"), {}
  for place = 1, #flat, 2 do
    found[#found + 1] = { flat[place], flat[place + 1], call("LLEN", INBOX .. flat[place]) }
  end
  return { OWNED, NOBODY, keep(cmsgpack.pack(found)) }
end

-- {31, types}
local function outlook(command)
  for _, worker in ipairs(all_workers()) do
    if not lives(worker.id) then
      return { OUTLOOK, NOBODY, now }
    end
  end
  return { OUTLOOK, NOBODY, next_due(command[2]) }
end

-- {32}
local function list_workers()
  local found = {}
  for _, worker in ipairs(all_workers()) do
    if lives(worker.id) then
      found[#found + 1] = call("HGET", WORKERS, worker.id)
    end
  end
  return { WORKERS_SEEN, NOBODY, keep(cmsgpack.pack(found)) }
end

return {
  [26] = watch, [27] = see, [28] = list_runs, [29] = count_runs, [30] = owned_runs, [31] = outlook, [32] = list_workers,
}
