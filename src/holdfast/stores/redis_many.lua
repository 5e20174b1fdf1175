-- Commands about many keys, and those by which the client writes what it has decided itself. Put into
-- redis_rest.lua, whose names it uses. What came before in the batch has been written when these begin.

local PAGE, SWEPT, REPLACED, STALE = 15, 16, 34, 35

local function limit_of(value)
  return math.min(math.max(1, whole(value, -MAX, MAX)), 1000000)
end

-- The texts of some keys, as they are stored; false where there is none.
local function texts_of(keys)
  local found = {}
  for start = 1, #keys, CHUNK do
    local names = {}
    for place = start, math.min(start + CHUNK - 1, #keys) do
      names[#names + 1] = LOCK .. keys[place]
    end
    for _, text in ipairs(call("MGET", unpack(names))) do
      found[#found + 1] = text
    end
  end
  return found
end

local function page_of_keys(first, last, limit)
  local keys = call("ZRANGEBYLEX", INDEX, first, last, "LIMIT", "0", format("%.0f", limit + 1))
  local following = false
  if #keys > limit then
    keys[#keys] = nil
    following = keep(keys[limit])
  end
  return keys, following
end

local function shown(keys, following)
  local start, count = #stored, 0
  local found = texts_of(keys)
  for place, key in ipairs(keys) do
    if found[place] then
      keep(key)
      keep(found[place])
      count = count + 1
    end
  end
  return { PAGE, NOBODY, start, count, following }
end

-- {9, limit, first, last}: the range as ZRANGEBYLEX has it
local function list_locks(command)
  return shown(page_of_keys(text_of(command[3]), text_of(command[4]), limit_of(command[2])))
end

local function forget(key)
  call("ZREM", INDEX, key)
  call("ZREM", DUE, key)
  call("DEL", LOCK .. key)
  wrote = true
  texts[key], records[key], was_due[key], fresh[key] = nil, nil, nil, nil
end

local function due_keys(count)
  return call("ZRANGEBYSCORE", DUE, "-inf", NOW, "LIMIT", "0", format("%.0f", count))
end

-- {10, limit}. Where one of the records is not ours to decide, the client does it all.
local function settle_due(command)
  local limit = limit_of(command[2])
  local keys, gone = due_keys(limit + 1), {}
  for _, key in ipairs(keys) do
    local done, text = pcall(load, key)
    if not done and text.server then
      error(text, 0)
    elseif done and not text then
      gone[#gone + 1] = key
    elseif not done or not parse(text) then
      error({ foreign = "" }, 0)
    end
  end
  if #gone > 0 then -- somebody has removed records by hand
    for _, key in ipairs(gone) do
      forget(key)
    end
    return settle_due(command)
  end
  local following = false
  if #keys > limit then
    keys[#keys] = nil
    following = keep(keys[limit])
  end
  local changes_made, told = 0, {}
  for _, key in ipairs(keys) do
    local before = read(key)
    local after, more = settle(before)
    write(key, before, after)
    told = joined(told, more)
    changes_made = changes_made + (after ~= before and 1 or 0)
  end
  offer(told)
  return { SWEPT, told, #keys, changes_made, following, NOBODY }
end

local function removable(record, retention)
  local settled = settle(record)
  local forced = settled.forced and cjson.decode(settled.forced).at
  return idle(settled) and #settled.tombstones == 0 and settled.closed_until == 0
    and settled.fence < now - retention and (not forced or forced < now - retention)
end

-- {11, limit, after, retention}. What is not ours to decide is handed out, to be removed by the client if it may be.
local function clean_up(command)
  local limit, retention = limit_of(command[2]), whole(command[4], -MAX, MAX)
  local after = text_of(command[3])
  local keys, following = page_of_keys(after == "" and "-" or "(" .. after, "+", limit)
  local removed, strange, found = 0, {}, texts_of(keys)
  for place, key in ipairs(keys) do
    local text = found[place]
    local record = text and parse(text)
    if record and removable(record, retention) then
      forget(key)
      removed = removed + 1
    elseif text and not record then
      strange[#strange + 1] = keep(key)
      keep(text)
    elseif not text and call("EXISTS", LOCK .. key) == 0 then
      forget(key)
    end
  end
  return { SWEPT, NOBODY, #keys, removed, following, strange }
end

-- {14, key, before, after, due_at, woken}: the client has decided, if the record is still what it saw. Without `after`
-- the record is removed.
local function replace(command)
  local key, before, after = command[2], command[3], command[4]
  if load(key) ~= before then
    return STALE
  elseif not after then
    forget(key)
    return REPLACED
  end
  save(key, after)
  dues[key] = command[5] or false
  offer(command[6])
  return REPLACED
end

-- {15, count}: the first records that are due, as they are
local function look_at_due(command)
  return shown(due_keys(whole(command[2], 1, MAX)), false)
end

local OF_MANY = { [9] = list_locks, [10] = settle_due, [11] = clean_up, [14] = replace, [15] = look_at_due }

local function answer(command)
  local do_it = OF_MANY[command[1]]
  if do_it then
    return do_it(command)
  end
  return decide_one(command)
end

return {
  answer = answer, read = read, write = write, look = look, acquire = acquire, abandon = abandon, settle = settle,
  living = living, floor_of = floor_of,
}
