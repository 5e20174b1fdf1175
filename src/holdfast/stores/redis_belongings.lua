-- The locks that belong to a run: rules/belongings.py, line by line. Put into redis_runs.lua, whose names it uses;
-- three of redis_run_rules.lua are given to it.
--
-- A lock is decided by the rules of redis_rules.lua, as this batch has left it, and written with the runs of the
-- command; if that fails, redis_rest.lua puts it back. A record that is not exactly as this version writes it is left
-- to the client, as everywhere: the batch ends with a question, and the command comes again with what the rules say to
-- it (`decided`), which counts while the record is still the very same text.

rules = rules or make_rules()

local SAYS = { [1] = "granted", [5] = "queued", [7] = "given", [10] = "mismatch", [11] = "too_heavy" }
local GRANTED, MISMATCH = 1, 10
local LOCK_RECORD = "record of the lock"

local function attempt_of(id, number)
  return "run:" .. digits(number) .. ":" .. id
end

-- What a run has or waits for: {number, key}, by the number.
local function locks_of(run)
  local found = json_in(run.id, run.fields.locks)
  for _, pair in ipairs(found) do
    if type(pair) ~= "table" or type(pair[1]) ~= "number" or pair[1] % 1 ~= 0 or type(pair[2]) ~= "string" then
      unreadable("run", run.id, "a lock in it is none")
    end
  end
  return found
end

-- ------------------------------------------------------------------------------------------ one lock

-- What the client is asked about a record that is not ours: [run, number, key, give, kind, permits, weight, ttl].
local function question_of(id, one)
  return "[" .. quoted(id) .. "," .. digits(one[1]) .. "," .. quoted(one[2]) .. "," .. tostring(one[3]) .. ","
    .. quoted(one[4] or "item") .. "," .. digits(one[5] or 1) .. "," .. digits(one[6] or 1) .. ","
    .. (one[7] and digits(one[7]) or "null") .. "]"
end

-- The record of a lock; or nothing, and what the client has decided about it.
local function record_for(id, one)
  local done, record = pcall(rules.read, one[2])
  if done then
    return record
  elseif type(record) == "table" and record.foreign then
    local question = question_of(id, one)
    if decided[question] then
      unreadable(LOCK_RECORD, one[2], "it is no JSON of a lock")
    end
    local known = decided[question .. record.foreign]
    if not known then
      error({ foreign = record.foreign, question = question }, 0)
    end
    return nil, known
  elseif type(record) == "table" and record.unreadable then
    unreadable(LOCK_RECORD, one[2], record.unreadable)
  end
  error(record, 0)
end

-- {number, key, give, kind, permits, weight, ttl}
local function carried_out(id, one)
  local key, attempt, texts_before = one[2], attempt_of(id, one[1]), #stored
  local before, known = record_for(id, one)
  if known then
    if known[4] then
      save(key, known[4])
      dues[key] = known[5] or false
    end
    return known[6]
  end
  local after, outcome
  if one[3] then
    after, outcome = rules.abandon(before, { 4, key, attempt, 0 })
  else
    local label = '{"name":' .. quoted("run " .. id) .. "}"
    after, outcome = rules.acquire(before, { 1, key, attempt, label, one[4], one[5], one[6], one[7], true, nil, 0 })
  end
  for place = #stored, texts_before + 1, -1 do
    stored[place] = nil -- nobody is told who holds it
  end
  rules.write(key, before, after)
  return outcome
end

local function check_asks(asks)
  for _, one in ipairs(asks) do
    whole(one[1], -MAX, MAX)
    text_of(one[2])
  end
end

-- ------------------------------------------------------------------------------------------ the stories

-- Call this, unless something in it cannot be read: that is passed over.
local function try(what, ...)
  local done, found = pcall(what, ...)
  if not done and not (type(found) == "table" and found.unreadable) then
    error(found, 0)
  end
  return done and found or nil
end

-- Runs that were offered something hear of it by an event. Returns whom to tell of that. One that is damaged must not
-- keep others from giving back what they have.
local function tell_runs(attempts)
  local hints = {}
  for _, attempt in ipairs(attempts) do
    local number, id = match(attempt, "^run:(%-?%d+):(.*)$")
    local run = id and try(run_of, id)
    if run and LIVES[run.fields.status] then
      local body = '{"kind":"lock","name":"' .. digits(tonumber(number)) .. '"}'
      add(hints, try(wake, posted(run, body, "")) or NOBODY)
    end
  end
  return hints
end

-- Carry out what a run asks of locks. Returns what they said, the text of what it has then, and who was offered
-- something.
local function ask_for(run, asks)
  local has, said, offered, numbers = {}, {}, {}, {}
  check_asks(asks)
  if text_in(run, "locks") ~= "" then
    for _, pair in ipairs(locks_of(run)) do
      has[pair[1]] = pair[2]
    end
  end
  for place, one in ipairs(asks) do
    local outcome = carried_out(run.id, one)
    local kind = outcome[1]
    add(offered, outcome[2])
    local token, floor = 0, 0
    if kind == GRANTED then
      token, floor = outcome[3], outcome[4]
    end
    said[place] = { one[1], SAYS[kind] or "unknown", token, floor, kind == MISMATCH and outcome[3] or "" }
    has[one[1]] = (said[place][2] == "granted" or said[place][2] == "queued") and one[2] or nil
  end
  for number in pairs(has) do
    numbers[#numbers + 1] = number
  end
  table.sort(numbers)
  for place, number in ipairs(numbers) do
    numbers[place] = "[" .. digits(number) .. "," .. quoted(has[number]) .. "]"
  end
  return said, #numbers > 0 and "[" .. table.concat(numbers, ",") .. "]" or "", offered
end

-- The token under which a run holds a lock now, and the lowest of all; else whether it waits or is offered it.
local function look_for(id, number, key)
  local record, attempt = rules.look(key), attempt_of(id, number)
  local holders, is_known = rules.living(record.holders), false
  for _, holder in ipairs(holders) do
    is_known = is_known or holder.id == attempt
    if holder.id == attempt and not holder.offered then
      return holder.token, rules.floor_of({ holders = holders })
    end
  end
  for _, waiter in ipairs(rules.living(record.waiters)) do
    is_known = is_known or waiter.id == attempt
  end
  return nil, is_known
end

-- What came of asks that were carried out already, as far as it can still be seen.
local function said_before(id, asks)
  local said = {}
  check_asks(asks)
  for place, one in ipairs(asks) do
    said[place] = { one[1], "given", 0, 0, "" }
    if not one[3] then
      local token, more = look_for(id, one[1], one[2])
      said[place] = token and { one[1], "granted", token, more, "" }
        or { one[1], more and "queued" or "unknown", 0, 0, "" }
    end
  end
  return said
end

-- Which of its asks a run holds at this moment: {number, token}. What is only offered is not held yet, and what cannot
-- be read is not known to be.
local function held_by_run(run)
  local found = {}
  for _, pair in ipairs(locks_of(run)) do
    local token = try(look_for, run.id, pair[1], pair[2])
    if token then
      found[#found + 1] = { pair[1], token }
    end
  end
  return found
end

-- Give back everything that a run has or waits for. Returns whom to tell. A lock that cannot be read is refused to
-- everybody, and left as it is.
local function give_back(run)
  local told = {}
  for _, pair in ipairs(locks_of(run)) do
    local outcome = try(carried_out, run.id, { pair[1], pair[2], true })
    add(told, outcome and outcome[2] or NOBODY)
  end
  return add(told, tell_runs(told))
end

return {
  ask = ask_for, said_before = said_before, held = held_by_run, give_back = give_back,
  tell = tell_runs,
}
