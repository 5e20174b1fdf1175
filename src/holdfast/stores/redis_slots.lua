-- The rules of a state slot: rules/slot.py, line by line. Put into redis_rest.lua, whose names it uses.
--
-- A slot is a hash: `version`, `value` (missing: there is none) and `past` (JSON). It is read once a batch and written
-- once, at the end; or with the record of a run, when that is. Like a lock's record it is copied, never changed.

local RECENT, WRITERS, MAX_RESERVATION = 1024, 64, 1000000
local SLOT_SEEN, SWAPPED, CONFLICT = 20, 21, 22

local function damaged(why)
  error({ unreadable = why, what = "state" }, 0)
end

local function int(value, usual)
  if value == nil and usual then
    return usual
  end
  if type(value) ~= "number" or value % 1 ~= 0 or value < -MAX or value > MAX then
    damaged("a number in it is none")
  end
  return value
end

local function str(value, usual)
  if value == nil and usual then
    return usual
  end
  if type(value) ~= "string" then
    damaged("a text in it is none")
  end
  return value
end

local function read_writer(value)
  if type(value) ~= "table" or type(value[3]) ~= "table" then
    damaged("what a writer wrote is not told")
  end
  local numbers = {}
  for place, number in ipairs(value[3]) do
    numbers[place] = int(number)
  end
  return { client = str(value[1]), floor = int(value[2]), numbers = numbers, version = int(value[4]) }
end

local function read_slot(name)
  local slot = slots_read[name]
  if slot then
    return slot
  end
  local found = redis.pcall("HMGET", SLOT .. name, "version", "value", "past")
  local refused = refusal(found)
  if refused and sub(refused, 1, 9) == "WRONGTYPE" then
    damaged("there is something else than a hash in its place")
  elseif refused then
    error({ server = refused }, 0)
  end
  local version, value, text = found[1], found[2], found[3]
  local done, past = pcall(cjson.decode, text or "{}")
  if not done or type(past) ~= "table" or (version and not find(version, "^%d+$")) then
    damaged("its version or its past is damaged")
  end
  local writers = {}
  for place, writer in ipairs(past.writers or {}) do
    writers[place] = read_writer(writer)
  end
  slot = {
    version = version and int(tonumber(version)) or 0, value = value, last = str(past.last, ""), writers = writers,
    forgotten = int(past.forgotten, 0), reserved_by = str(past.reserved_by, ""),
    reserved_until = int(past.reserved_until, 0),
  }
  slots_read[name] = slot
  return slot
end

-- cjson.encode would keep 14 digits of the numbers; of texts it keeps everything.
local function past_of(slot)
  local parts = {}
  if slot.last ~= "" then
    parts[#parts + 1] = '"last":' .. cjson.encode(slot.last)
  end
  if #slot.writers > 0 then
    local writers = {}
    for place, writer in ipairs(slot.writers) do
      local numbers = {}
      for n, number in ipairs(writer.numbers) do
        numbers[n] = format("%.0f", number)
      end
      writers[place] = "[" .. cjson.encode(writer.client) .. "," .. format("%.0f", writer.floor) .. ",["
        .. table.concat(numbers, ",") .. "]," .. format("%.0f", writer.version) .. "]"
    end
    parts[#parts + 1] = '"writers":[' .. table.concat(writers, ",") .. "]"
  end
  if slot.forgotten ~= 0 then
    parts[#parts + 1] = '"forgotten":' .. format("%.0f", slot.forgotten)
  end
  if slot.reserved_by ~= "" then
    parts[#parts + 1] = '"reserved_by":' .. cjson.encode(slot.reserved_by)
  end
  if slot.reserved_until ~= 0 then
    parts[#parts + 1] = '"reserved_until":' .. format("%.0f", slot.reserved_until)
  end
  return "{" .. table.concat(parts, ",") .. "}"
end

local function put_slot(name, slot)
  call("HSET", SLOT .. name, "version", format("%.0f", slot.version), "past", past_of(slot))
  wrote = true
  if slot.value then
    call("HSET", SLOT .. name, "value", slot.value)
  else
    call("HDEL", SLOT .. name, "value")
  end
end

local function write_slot(name, slot)
  slots_read[name] = slot
  slots_changed[name] = function()
    put_slot(name, slot)
  end
end

local function remember(slot, mine, request, number, acked, value)
  local floor, numbers = math.max(mine.floor, acked), {}
  for _, known in ipairs(mine.numbers) do
    if known >= floor then
      numbers[#numbers + 1] = known
    end
  end
  numbers[#numbers + 1] = number
  if #numbers > RECENT then
    table.sort(numbers)
    local latest = {}
    for place = #numbers - RECENT + 1, #numbers do
      latest[#latest + 1] = numbers[place]
    end
    numbers = latest
    floor = math.max(floor, numbers[1])
  end
  local writers, forgotten = {}, slot.forgotten
  for _, writer in ipairs(slot.writers) do
    if writer.client ~= mine.client then
      writers[#writers + 1] = writer
    end
  end
  writers[#writers + 1] = { client = mine.client, floor = floor, numbers = numbers, version = slot.version + 1 }
  if #writers > WRITERS then
    forgotten = math.max(forgotten, writers[1].version)
    table.remove(writers, 1)
  end
  return {
    version = slot.version + 1, value = value, last = request, writers = writers, forgotten = forgotten,
    reserved_by = "", reserved_until = 0,
  }
end

-- {13, name, request, expected, version, value, acked, reserve}
local function swap(command)
  local name, request, expected, version = command[2], text_of(command[3]), text_of(command[4]), command[5]
  local value, acked, reserve = command[6], whole(command[7], -MAX, MAX), whole(command[8], -MAX, MAX)
  whole(version, -MAX, MAX - 1)
  local client, digits = match(request, "^([^.]*)%.(%d+)$")
  local number = whole(tonumber(digits), 0, MAX)
  if value ~= nil then
    text_of(value)
  end
  local slot = read_slot(name)
  local mine
  for _, writer in ipairs(slot.writers) do
    if writer.client == client then
      mine = writer
      break
    end
  end
  for _, known in ipairs(mine and mine.numbers or NOBODY) do
    if known == number then
      return { SWAPPED, NOBODY, version + 1 }
    end
  end
  local until_ = math.min(slot.reserved_until, now + MAX_RESERVATION)
  local taken = slot.reserved_by ~= "" and until_ > now and slot.reserved_by ~= client
  if slot.last == expected and slot.version == version and not taken then
    mine = mine or { client = client, floor = slot.forgotten ~= 0 and number or 0, numbers = {}, version = 0 }
    write_slot(name, remember(slot, mine, request, number, acked, value or false))
    return { SWAPPED, NOBODY, version + 1 }
  end
  if reserve > 0 and not taken then
    local reserved = {}
    for field, one in pairs(slot) do
      reserved[field] = one
    end
    reserved.reserved_by, reserved.reserved_until = client, now + math.min(reserve, MAX_RESERVATION)
    slot = reserved
    write_slot(name, slot)
  end
  local decided = version >= slot.version
  if not decided and mine then
    decided = number >= mine.floor
  elseif not decided then
    decided = version >= slot.forgotten
  end
  return { CONFLICT, NOBODY, slot.version, keep(slot.last), slot.value and keep(slot.value) or false,
    taken and until_ - now or 0, decided }
end

-- {name, expected, version, value}: what goes with a record of a run, under the name of this write. Returns how it is
-- written; or nothing, and the answer to the record, where somebody else was first.
local function with_record(change, id)
  local name, expected, version, value = text_of(change[1]), text_of(change[2]), change[3], change[4]
  whole(version, -MAX, MAX - 1)
  if value ~= nil then
    text_of(value)
  end
  local slot = read_slot(name)
  if slot.last ~= expected or slot.version ~= version then
    return nil, { CONFLICT, NOBODY, slot.version, keep(slot.last), slot.value and keep(slot.value) or false, 0, true }
  end
  return function()
    slots_read[name] = {
      version = version + 1, value = value or false, last = id, writers = slot.writers, forgotten = slot.forgotten,
      reserved_by = "", reserved_until = 0,
    }
    put_slot(name, slots_read[name])
  end
end

-- {12, name}
local function answer(command)
  text_of(command[2])
  if command[1] == SWAP_SLOT then
    return swap(command)
  end
  local slot = read_slot(command[2])
  return { SLOT_SEEN, NOBODY, slot.version, keep(slot.last), slot.value and keep(slot.value) or false }
end

return { answer = answer, with_record = with_record }
