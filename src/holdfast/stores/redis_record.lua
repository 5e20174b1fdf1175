-- A lock record as the rules see it, and its text. Put into redis_rest.lua, whose names it uses.
--
-- Nothing that was made is changed afterwards: a rule makes a copy with other fields, so that a command that fails
-- half-way leaves nothing behind. What is None in Python is false here. Labels and the note of a forced release are
-- kept as their JSON text, since no rule looks into them. The text of each part is kept as well: writing a record with
-- a hundred waiters is then putting a hundred texts side by side.

local function with(thing, fields)
  local copy = {}
  for name, value in pairs(thing) do
    copy[name] = value
  end
  for name, value in pairs(fields) do
    copy[name] = value
  end
  copy.text = nil
  return copy
end

local EMPTY = {
  kind = "item", permits = 1, fence = 0, version = 0, holders = {}, waiters = {}, tombstones = {},
  closed_until = 0, closed_for = 0, due_at = false, forced = false,
}

-- ------------------------------------------------------------------------------------------ writing

local function moment(value)
  return value and format("%.0f", value) or "null"
end

local function holder_text(holder)
  if not holder.text then
    holder.text = '{"id":' .. quoted(holder.id) .. ',"label":' .. holder.label
      .. ',"token":' .. format("%.0f", holder.token) .. ',"since":' .. format("%.0f", holder.since)
      .. ',"ttl":' .. moment(holder.ttl) .. ',"expires_at":' .. moment(holder.expires_at)
      .. (holder.weight ~= 1 and ',"weight":' .. format("%.0f", holder.weight) or "")
      .. (holder.offered and ',"offered":true' or "")
      .. (holder.delay ~= 0 and ',"delay":' .. format("%.0f", holder.delay) or "")
      .. (holder.via ~= "" and ',"via":' .. quoted(holder.via) or "") .. "}"
  end
  return holder.text
end

local function waiter_text(waiter)
  if not waiter.text then
    waiter.text = '{"id":' .. quoted(waiter.id) .. ',"label":' .. waiter.label
      .. ',"since":' .. format("%.0f", waiter.since)
      .. ',"ttl":' .. moment(waiter.ttl) .. ',"expires_at":' .. moment(waiter.expires_at)
      .. (waiter.weight ~= 1 and ',"weight":' .. format("%.0f", waiter.weight) or "")
      .. (waiter.delay ~= 0 and ',"delay":' .. format("%.0f", waiter.delay) or "") .. "}"
  end
  return waiter.text
end

local function tombstone_text(stone)
  if not stone.text then
    stone.text = '{"id":' .. quoted(stone.id) .. ',"ttl":' .. format("%.0f", stone.ttl)
      .. ',"expires_at":' .. format("%.0f", stone.expires_at)
      .. (stone.reason ~= "abandoned" and ',"reason":' .. quoted(stone.reason) or "") .. "}"
  end
  return stone.text
end

local function list_text(things, text_of_one)
  local parts = {}
  for place, thing in ipairs(things) do
    parts[place] = text_of_one(thing)
  end
  return "[" .. table.concat(parts, ",") .. "]"
end

local function encode(record)
  if record.text then
    return record.text
  end
  local parts = {}
  local function field(name, value)
    parts[#parts + 1] = '"' .. name .. '":' .. value
  end
  local function number(name, usual)
    if record[name] ~= usual then
      field(name, format("%.0f", record[name]))
    end
  end
  if record.kind ~= "item" then
    field("kind", quoted(record.kind))
  end
  number("permits", 1)
  number("fence", 0)
  number("version", 0)
  if #record.holders > 0 then
    field("holders", list_text(record.holders, holder_text))
  end
  if #record.waiters > 0 then
    field("waiters", list_text(record.waiters, waiter_text))
  end
  if #record.tombstones > 0 then
    field("tombstones", list_text(record.tombstones, tombstone_text))
  end
  number("closed_until", 0)
  number("closed_for", 0)
  number("due_at", false)
  if record.forced then
    field("forced", record.forced)
  end
  record.text = "{" .. table.concat(parts, ",") .. "}"
  return record.text
end

-- ------------------------------------------------------------------------------------------ reading

local NULL = cjson.null
local KINDS = { item = true, hold = true, semaphore = true, rw = true, lease = true, run = true, worker = true }

local function int(value, usual)
  if value == nil and usual ~= nil then
    return usual
  end
  assert(type(value) == "number" and value % 1 == 0 and value >= -MAX and value <= MAX)
  return value
end

local function maybe(value)
  return value ~= nil and value ~= NULL and int(value)
end

local function str(value, usual)
  if value == nil and usual then
    return usual
  end
  assert(type(value) == "string")
  return value
end

local function list(value, read_one)
  local things = {}
  for place, one in ipairs(value or {}) do
    things[place] = read_one(one)
  end
  return things
end

local function label_text(name, host, pid)
  return '{"name":' .. quoted(name) .. (host ~= "" and ',"host":' .. quoted(host) or "")
    .. (pid ~= 0 and ',"pid":' .. format("%.0f", pid) or "") .. "}"
end

local function read_label(value)
  return label_text(str(value.name), str(value.host, ""), int(value.pid, 0))
end

local function read_holder(value)
  return {
    id = str(value.id), label = read_label(value.label), token = int(value.token), since = int(value.since),
    ttl = maybe(value.ttl), expires_at = maybe(value.expires_at), weight = int(value.weight, 1),
    offered = value.offered == true, delay = int(value.delay, 0), via = str(value.via, ""),
  }
end

local function read_waiter(value)
  return {
    id = str(value.id), label = read_label(value.label), since = int(value.since), ttl = maybe(value.ttl),
    expires_at = maybe(value.expires_at), weight = int(value.weight, 1), delay = int(value.delay, 0),
  }
end

local function read_tombstone(value)
  local reason = str(value.reason, "abandoned")
  assert(reason == "abandoned" or reason == "never_fits")
  return { id = str(value.id), ttl = int(value.ttl), expires_at = int(value.expires_at), reason = reason }
end

local function forced_text(at, by, reason, holders)
  return '{"at":' .. format("%.0f", at) .. ',"by":' .. quoted(by) .. ',"reason":' .. quoted(reason)
    .. (#holders > 0 and ',"holders":' .. list_text(holders, quoted) or "") .. "}"
end

local function read_record(text)
  local value = cjson.decode(text)
  local kind = str(value.kind, "item")
  assert(KINDS[kind])
  local forced = value.forced
  return {
    kind = kind, permits = int(value.permits, 1), fence = int(value.fence, 0), version = int(value.version, 0),
    holders = list(value.holders, read_holder), waiters = list(value.waiters, read_waiter),
    tombstones = list(value.tombstones, read_tombstone), closed_until = int(value.closed_until, 0),
    closed_for = int(value.closed_for, 0), due_at = maybe(value.due_at),
    forced = forced and forced_text(int(forced.at), str(forced.by), str(forced.reason), list(forced.holders, str))
      or false,
  }
end

-- The one test for "this is ours": what was read, written again, is the very same text.
local function parse(text)
  local done, record = pcall(read_record, text)
  if not done or encode(record) ~= text or not is_utf8(text) then
    return nil
  end
  return record
end

local function read(key)
  local record = records[key]
  if record then
    return record
  end
  local text = load(key)
  record = text and parse(text) or EMPTY
  if text and record == EMPTY then
    error({ foreign = text }, 0)
  end
  if was_due[key] == nil then
    was_due[key] = record.due_at
  end
  return record
end

-- For those who only look: fields of a newer version are no hindrance.
local function look(key)
  local text = not records[key] and load(key)
  if not text then
    return records[key] or EMPTY
  end
  local done, record = pcall(read_record, text)
  if not done then
    error({ unreadable = "it is no JSON of a lock", what = "record of the lock", name = key }, 0)
  end
  return record
end

local function write(key, before, after)
  if after == before then
    return
  end
  save(key, encode(after), after)
  dues[key] = nil
  if after.due_at ~= was_due[key] then
    dues[key] = after.due_at
  end
end
