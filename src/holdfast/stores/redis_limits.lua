-- Limits as they are stored: the terms of a workflow, who is counted where, when starts were made. Put into
-- redis_run_rules.lua, whose names it uses.
--
--   ...:limits:terms               a hash: workflow -> {"digest":...,"terms":...}, as rules/admission.py has them
--   ...:limits:in:<group>          a sorted set of the living runs that were let in, by their arrival
--   ...:limits:queue:<group>       a sorted set of those who wait, all of the score 0, in the order of their bytes:
--                                  <rank> <arrival> <run>, each number as 17 digits (see `ordinal`)
--   ...:limits:starts:<group>      a sorted set of the starts that a limit on starts counts, by their moment:
--                                  <fence when it was let in> <run>. It expires when none of them can count any more
--   ...:limits:crowded:<workflow>  a set of the places where runs wait, as JSON
--
-- A group is what rules/admission.py calls so: <workflow>/<limit>/<key>. Nothing here is a number that could drift:
-- what is counted are the members. A command that has not been decided yet sees what it has changed itself: a `line` is
-- a set as it is stored, and what this command adds and takes away.

local IN, QUEUE, STARTS = BASE .. "limits:in:", BASE .. "limits:queue:", BASE .. "limits:starts:"
local CROWDED = BASE .. "limits:crowded:"
local FIRST_OF_QUEUE, GROWTH = 8, 4 -- how many of a line are looked at first, and how many more each time
local REMEMBERED = 7 * 24 * 3600 * 1000 -- milliseconds: the span of a limit on starts may be made longer by so much
local ANSWERS = { reject = 1, skip = 2, cancel_newest = 3, cancel_oldest = 4, queue = 5 } -- the strictest first

-- ------------------------------------------------------------------------------------------ terms

local function number_or(value, usual, least)
  if value == nil or value == cjson.null then
    return usual
  end
  return type(value) == "number" and value % 1 == 0 and value >= least and value <= MAX and value
end

-- What the text of terms says; nil: it is none.
local function read_terms(text)
  local done, found = pcall(cjson.decode, text)
  if not done or type(found) ~= "table" or type(found.limits or NOBODY) ~= "table" then
    return nil
  end
  local terms = { limits = {}, version = number_or(found.version, 0, -MAX) }
  if not terms.version then
    return nil
  end
  for _, one in ipairs(found.limits or NOBODY) do
    if type(one) ~= "table" or type(one.name) ~= "string" then
      return nil
    end
    local per = number_or(one.per, 0, 0)
    local limit = {
      max = number_or(one.max, false, per and per > 0 and 1 or -MAX), per = per,
      on_excess = one.on_excess or "reject", max_queue = number_or(one.max_queue, nil, -MAX),
    }
    if not limit.max or not per or limit.max_queue == false or not ANSWERS[limit.on_excess] then
      return nil
    end
    terms.limits[one.name] = terms.limits[one.name] or limit
  end
  return terms
end

local NO_TERMS = { limits = {}, version = 0 }

local function terms_of(workflow)
  local known = known_terms(workflow)
  if not known then
    return NO_TERMS
  end
  known.terms = known.terms or read_terms(known.text)
  if not known.terms then
    unreadable("terms of the workflow", workflow, "they are no JSON of terms")
  end
  return known.terms
end

-- ------------------------------------------------------------------------------------------ places

local read_places = {} -- text -> the places in it

local function places_of(run)
  local text = text_in(run, "places")
  if text == "" then
    return NOBODY
  end
  local places = read_places[text]
  if not places then
    places = {}
    for place, pair in ipairs(json_in(run.id, text)) do
      if type(pair) ~= "table" or type(pair[1]) ~= "string" or type(pair[2]) ~= "string" then
        unreadable("run", run.id, "a place in it is none")
      end
      places[place] = { limit = pair[1], key = pair[2] }
    end
    read_places[text] = places
  end
  return places
end

local function group_of(workflow, place)
  return workflow .. "/" .. place.limit .. "/" .. place.key
end

-- ------------------------------------------------------------------------------------------ lines

-- Seventeen digits whose order as bytes is that of the numbers. There is a zero below zero, which is written otherwise.
local function ordinal(number)
  return number < 0 and format("0%016.0f", MAX + number) or format("1%016.0f", number + 0)
end

local function number_at(text)
  local number = tonumber(sub(text, 2))
  return sub(text, 1, 1) == "0" and number - MAX or number
end

local function member_of(rank, arrival, id)
  return ordinal(rank) .. " " .. ordinal(arrival) .. " " .. id
end

local function arrival_in(member)
  return number_at(sub(member, 19, 35))
end

local function id_in(member)
  return sub(member, 37)
end

local write_lines

local function line_of(workflow, place, queued)
  local name = (queued and QUEUE or IN) .. group_of(workflow, place)
  local line = lines[name]
  if not line then
    line = { name = name, queued = queued, added = {}, more = 0, gone = {}, lost = 0 }
    line.workflow, line.place = workflow, place
    lines[name] = line
  end
  return line
end

local function change(line, member, adds)
  if not lines.changed then
    lines.changed = true
    later(write_lines)
  end
  if adds then
    line.more = line.more + (line.added[member] and 0 or 1)
    line.added[member] = true
  elseif line.added[member] then
    line.added[member], line.more = nil, line.more - 1
  elseif not line.gone[member] then
    line.gone[member], line.lost = true, line.lost + 1
  end
end

-- How many are in a line.
local function count(line)
  line.stored = line.stored or call("ZCOUNT", line.name, "-inf", "+inf")
  return line.stored - line.lost + line.more
end

-- Those who were let in, from names and arrivals, in the way of those who wait: they have one rank.
local function as_members(flat)
  local found = {}
  for place = 1, #flat, 2 do
    found[#found + 1] = member_of(0, tonumber(flat[place + 1]), flat[place])
  end
  return found
end

-- The first so many in a line, in their order.
local function members(line, limit)
  local last, found = digits(limit + line.lost - 1), {}
  local all = line.queued and call("ZRANGE", line.name, "0", last)
    or as_members(call("ZRANGE", line.name, "0", last, "WITHSCORES"))
  for _, member in ipairs(all) do
    if not line.gone[member] then
      found[#found + 1] = member
    end
  end
  if line.more > 0 then
    for member in pairs(line.added) do
      found[#found + 1] = member
    end
    table.sort(found, earlier)
  end
  for place = #found, limit + 1, -1 do
    found[place] = nil
  end
  return found
end

-- The runs in a line, one after the other. A name without a run is taken out; what cannot be read is passed over.
local function each_in(line)
  local limit, seen, found, place = FIRST_OF_QUEUE, {}, nil, 0
  return function()
    while true do
      found = found or members(line, limit)
      place = place + 1
      local member = found[place]
      if not member and #found < limit then
        return nil
      elseif not member then
        limit, found, place = limit * GROWTH, nil, 0
      elseif not seen[member] then
        seen[member] = true
        local done, run = pcall(run_of, id_in(member))
        if done and run then
          return run
        elseif done then
          change(line, member, false)
        elseif type(run) ~= "table" or not run.unreadable then
          error(run, 0)
        end
      end
    end
  end
end

-- The highest arrival in a line, of those with this rank; 0: there is none.
local function last_arrival(line, rank)
  local own, all, highest = ordinal(rank), nil, 0
  if line.queued then
    all = call("ZREVRANGEBYLEX", line.name, "(" .. own .. "!", "[" .. own .. " ", "LIMIT", "0", digits(line.lost + 1))
  else
    all = as_members(call("ZREVRANGE", line.name, "0", digits(line.lost), "WITHSCORES"))
  end
  for _, member in ipairs(all) do
    if not line.gone[member] then
      highest = math.max(highest, arrival_in(member))
      break
    end
  end
  for member in pairs(line.added) do
    if sub(member, 1, 17) == own then
      highest = math.max(highest, arrival_in(member))
    end
  end
  return highest
end

-- Where a run stands: true in the queue, false beyond it, nil nowhere.
local function standing(run)
  if not run or not LIVES[run.fields.status] then
    return nil
  end
  return run.fields.status == "queued"
end

local function move(run, queued, adds)
  local rank = queued and -number_in(run, "priority") or 0
  local member = member_of(rank, number_in(run, "arrival"), run.id)
  local workflow = workflow_of(run.fields.type)
  for _, place in ipairs(places_of(run)) do
    change(line_of(workflow, place, queued), member, adds)
  end
end

-- Keep the lines in which a run stands.
local function recount(was, run)
  local old, new = standing(was), standing(run)
  if old ~= new or (was and (was.fields.type ~= run.fields.type or was.fields.arrival ~= run.fields.arrival
    or was.fields.priority ~= run.fields.priority)) then
    if old ~= nil then
      move(was, old, false)
    end
    if new ~= nil then
      move(run, new, true)
    end
  end
end

local function write_line(line)
  local gone, added, left = {}, {}, count(line)
  for member in pairs(line.gone) do
    if not line.added[member] then
      gone[#gone + 1] = line.queued and member or id_in(member)
    end
  end
  for member in pairs(line.added) do
    added[#added + 1] = line.queued and "0" or digits(arrival_in(member))
    added[#added + 1] = line.queued and member or id_in(member)
  end
  write_many("ZREM", line.name, gone)
  write_many("ZADD", line.name, added)
  if line.queued and (#added > 0 or left == 0) then
    local place = "[" .. quoted(line.place.limit) .. "," .. quoted(line.place.key) .. "]"
    put(left > 0 and "SADD" or "SREM", CROWDED .. line.workflow, place)
  end
end

write_lines = function()
  for name, line in pairs(lines) do
    if name ~= "changed" and (line.more > 0 or line.lost > 0) then
      write_line(line)
    end
  end
end

-- The places of a workflow where runs wait, in order.
local function crowded(workflow)
  local places = {}
  for _, text in ipairs(call("SMEMBERS", CROWDED .. workflow)) do
    local done, pair = pcall(cjson.decode, text)
    if done and type(pair) == "table" and type(pair[1]) == "string" and type(pair[2]) == "string" then
      places[#places + 1] = { limit = pair[1], key = pair[2] }
    end
  end
  table.sort(places, function(one, other)
    if one.limit ~= other.limit then
      return earlier(one.limit, other.limit)
    end
    return earlier(one.key, other.key)
  end)
  return places
end

-- ------------------------------------------------------------------------------------------ starts

local function noted(group)
  return notes[group] or NOBODY
end

-- How many starts of a group were noted for later.
local function starts_after(group)
  local later_ones = call("ZCOUNT", STARTS .. group, "(" .. NOW, "+inf")
  for _, start in ipairs(noted(group)) do
    later_ones = later_ones + (start.at > now and 1 or 0)
  end
  return later_ones
end

-- The n-th latest start of a group; nil: there were not so many. What is noted now may come before any of those that
-- are stored, so of these so many more are looked at.
local function nth_start(group, n)
  local own, found = noted(group), {}
  local first = math.max(0, n - 1 - #own)
  local flat = call("ZREVRANGE", STARTS .. group, digits(first), digits(n - 1), "WITHSCORES")
  for place = 2, #flat, 2 do
    found[#found + 1] = tonumber(flat[place])
  end
  for _, start in ipairs(own) do
    found[#found + 1] = start.at
  end
  if #own > 0 then
    table.sort(found, function(one, other)
      return one > other
    end)
  end
  return found[n - first]
end

-- Of the starts that are past only the latest `max` can count.
local function write_starts(group, limit)
  local name, values = STARTS .. group, {}
  for _, start in ipairs(notes[group]) do
    values[#values + 1] = digits(start.at)
    values[#values + 1] = start.name
  end
  write_many("ZADD", name, values)
  local past = call("ZCOUNT", name, "-inf", NOW)
  if past > limit.max then
    put("ZREMRANGEBYRANK", name, "0", digits(past - limit.max - 1))
  end
  local latest = tonumber(call("ZREVRANGE", name, "0", "0", "WITHSCORES")[2]) or now
  local left = math.ceil((math.max(latest, now) - now + limit.per) / 1000) + REMEMBERED
  put("PEXPIRE", name, digits(math.min(left, MAX / 1000)))
end

-- Note a start. A run is let in once under one fence.
local function note_start(group, limit, at, run)
  if not notes[group] then
    notes[group] = {}
    later(function()
      write_starts(group, limit)
    end)
  end
  table.insert(notes[group], { at = at, name = digits(number_in(run, "fence")) .. " " .. run.id })
end

return {
  answers = ANSWERS, read_terms = read_terms, terms_of = terms_of, places_of = places_of, group_of = group_of,
  line_of = line_of, count = count, each_in = each_in, last_arrival = last_arrival,
  recount = recount, crowded = crowded, starts_after = starts_after, nth_start = nth_start, note_start = note_start,
}
