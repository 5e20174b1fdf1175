-- All that redis.lua does not do itself: every other command, and every other case of those three. It is put into
-- redis.lua, goes on with what has been read and decided there, and leaves `rest` behind.
--
-- A command is decided under pcall and fails alone. What the server refuses ends the batch, because it would refuse
-- the rest as well; nothing has been written then, unless the answer says HALFWAY.

rest = (function()
  local INDEX, SLOT, WAKE = KEYS[1], BASE .. "slot:", BASE .. "wake:"
  local INSPECT, FIRST_OF_MANY, LAST_OF_MANY, READ_SLOT, SWAP_SLOT, DECIDED, FIRST_OF_RUNS = 8, 9, 11, 12, 13, 16, 21
  local NOT_HELD, FOREIGN, BAD, UNREADABLE, SEEN = 4, 30, 31, 32, 33
  local CHUNK = MANY
  local NOBODY = {}
  local NOW = format("%.0f", now)

  local records = {} -- key -> the record behind its text, where the rules have read it
  if not dues then
    was_due, dues, stored, woken = {}, {}, {}, {}
  end
  local slots_read, slots_changed = {}, {} -- name -> the slot, and how to write it
  local left = {} -- the keys of what was left to the client
  local decided = {} -- what the client says to questions of an earlier batch: see redis_belongings.lua
  local trail = {} -- how to put back what the command that is being decided has made of locks
  local problem

  -- The server's refusal without the place in the script, which old servers put before it; nil: it has not refused.
  local function refusal(reply)
    if type(reply) == "table" and reply.err then
      return (string.gsub(reply.err, "^@user_script: ?%d+: %-?", "", 1))
    end
    return nil
  end

  local function call(...)
    local reply = redis.pcall(...)
    local refused = refusal(reply)
    if refused then
      error({ server = refused }, 0)
    end
    return reply
  end

  local function load(key)
    local text = texts[key]
    if text == nil then
      text = redis.pcall("GET", LOCK .. key)
      local refused = refusal(text)
      if refused and sub(refused, 1, 9) == "WRONGTYPE" then
        error({ unreadable = "there is something else than a text in its place" }, 0)
      elseif refused then
        error({ server = refused }, 0)
      end
      texts[key], fresh[key] = text, not text
    end
    return text
  end

  local function save(key, text, record)
    trail[#trail + 1] = { key, texts[key], records[key], changes[key], dues[key] }
    texts[key], records[key] = text, record
    if not changes[key] then
      changes[key] = true
      changed[#changed + 1] = key
    end
  end

  local function keep(text)
    stored[#stored + 1] = text
    return #stored
  end

  -- Take back what a command has made of locks before it failed.
  local function put_back()
    for place = #trail, 1, -1 do
      local key, was_changed = trail[place][1], trail[place][4]
      texts[key], records[key], dues[key] = trail[place][2], trail[place][3], trail[place][5]
      if not was_changed then
        changes[key], changed[#changed] = nil, nil
      end
    end
    trail = {}
  end

  local function is_of_run(id)
    return sub(id, 1, 4) == "run:"
  end

  -- Whom to wake in the end. A run hears of what it is offered by an event instead.
  local function tell(ids)
    for _, id in ipairs(ids) do
      if not is_of_run(id) then
        woken[#woken + 1] = id
      end
    end
  end

  -- What is not of the kind that it should be

  local function whole(value, least, most)
    if type(value) ~= "number" or value % 1 ~= 0 or value < least or value > most then
      error({ bad = "a number is not whole, or too large" }, 0)
    end
    return value
  end

  local function length(value)
    return value == nil or whole(value, -MAX, MAX - now)
  end

  local function text_of(value)
    if type(value) ~= "string" then
      error({ bad = "something that should be text is none" }, 0)
    end
    return value
  end

  -- Text as JSON has it

  local ESCAPES = {
    ['"'] = '\\"', ["\\"] = "\\\\", ["\b"] = "\\b", ["\f"] = "\\f", ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t",
  }

  local function escaped(character)
    return ESCAPES[character] or format("\\u%04x", string.byte(character))
  end

  local function quoted(text)
    if not find(text, PLAIN) then
      text = string.gsub(text, '[%z\1-\31"\\]', escaped)
    end
    return '"' .. text .. '"'
  end

  -- cjson takes any bytes for text.
  local function is_utf8(text)
    if not find(text, "[\128-\255]") then
      return true
    end
    if find(text, "\237[\160-\191]") or find(text, "\224[\128-\159]") or find(text, "\240[\128-\143]")
      or find(text, "\244[\144-\191]") then
      return false
    end
    text = string.gsub(text, "[\194-\223][\128-\191]", "")
    text = string.gsub(text, "[\224-\239][\128-\191][\128-\191]", "")
    text = string.gsub(text, "[\240-\244][\128-\191][\128-\191][\128-\191]", "")
    return not find(text, "[\128-\255]")
  end

  -- Writing

  local function write_many(command, name, values)
    for start = 1, #values, CHUNK do
      local last = math.min(start + CHUNK - 1, #values)
      if name then
        call(command, name, unpack(values, start, last))
      else
        call(command, unpack(values, start, last))
      end
      wrote = true
    end
  end

  -- Indexes first: see redis.lua.
  local function flush()
    local index, due, settled, values = {}, {}, {}, {}
    for _, key in ipairs(changed) do
      if fresh[key] then
        index[#index + 1] = "0"
        index[#index + 1] = key
        fresh[key] = false
      end
      local due_at = dues[key]
      if due_at then
        due[#due + 1] = format("%.0f", due_at)
        due[#due + 1] = key
      elseif due_at == false then
        settled[#settled + 1] = key
      end
      if due_at ~= nil then
        was_due[key], dues[key] = due_at, nil
      end
      values[#values + 1] = LOCK .. key
      values[#values + 1] = texts[key]
    end
    write_many("ZADD", INDEX, index)
    write_many("ZADD", DUE, due)
    write_many("ZREM", DUE, settled)
    write_many("MSET", nil, values)
    for _, write_slot in pairs(slots_changed) do
      write_slot()
    end
    changed, changes, slots_changed, trail = {}, {}, {}, {}
  end

  local function publish()
    local channels, messages, told = {}, {}, {}
    for _, id in ipairs(woken) do
      if not told[id] then
        told[id] = true
        local channel = match(id, "^[^.]*")
        if not messages[channel] then
          messages[channel] = {}
          channels[#channels + 1] = channel
        end
        table.insert(messages[channel], id)
      end
    end
    for _, channel in ipairs(channels) do
      redis.pcall("PUBLISH", WAKE .. channel, table.concat(messages[channel], "\n")) -- only a hint
    end
  end

  -- Deciding

  local rules, slots, runs, make_runs

  -- Tell those who were offered something by a command about locks: runs in this very step.
  local function offer(ids)
    local of_runs = {}
    for _, id in ipairs(ids) do
      if is_of_run(id) then
        of_runs[#of_runs + 1] = id
      end
    end
    if #of_runs > 0 then
      if foreign then
        error({ wait = true }, 0) -- what came before must have been written
      end
      runs = runs or make_runs()
      tell(runs.offered(of_runs))
    end
    tell(ids)
  end

  local function make_rules()
    --@include redis_record.lua
    --@include redis_rules.lua
    --@include redis_many.lua
  end

  local function make_slots()
    --@include redis_slots.lua
  end

  local function all_slots()
    slots = slots or make_slots()
    return slots
  end

  make_runs = function()
    --@include redis_runs.lua
  end

  local function decide(command)
    local operation = command[1]
    if operation >= FIRST_OF_RUNS then
      runs = runs or make_runs()
      return runs.answer(command)
    elseif operation == READ_SLOT or operation == SWAP_SLOT then
      return all_slots().answer(command)
    elseif operation == DECIDED then -- {16, question, before, after, due_at, outcome}
      decided[command[2] .. (command[3] or "")] = command
      return DECIDED
    elseif operation >= FIRST_OF_MANY and operation <= LAST_OF_MANY then
      flush()
    elseif operation <= INSPECT then
      text_of(command[2])
    end
    if operation == INSPECT then
      local text = load(command[2])
      if left[command[2]] then
        error({ foreign = text }, 0)
      end
      return text and { SEEN, NOBODY, keep(text) } or SEEN
    end
    rules = rules or make_rules()
    return rules.answer(command)
  end

  -- The outcome; nil: the batch ends here.
  local function answer(command)
    local operation = command[1]
    if foreign and (operation >= FIRST_OF_RUNS or (operation >= FIRST_OF_MANY and operation <= LAST_OF_MANY)) then
      return nil
    end
    if #trail > 0 then
      trail = {}
    end
    local done, outcome = pcall(decide, command)
    if done then
      return outcome
    end
    put_back()
    if type(outcome) == "table" then
      if outcome.server then
        problem = outcome.server
        return nil
      elseif outcome.wait then
        return nil
      elseif outcome.question then
        ends_here = true
        return { FOREIGN, NOBODY, keep(outcome.foreign), keep(outcome.question) }
      elseif outcome.unreadable then
        return { UNREADABLE, NOBODY, outcome.unreadable, outcome.what or false, outcome.name or false }
      elseif outcome.foreign then
        foreign, left[command[2]] = true, true
        return { FOREIGN, NOBODY, keep(outcome.foreign) }
      end
      outcome = outcome.bad
    end
    return { BAD, NOBODY, tostring(outcome) }
  end

  local function finish()
    if not problem then
      local done, reason = pcall(flush)
      problem = not done and (type(reason) == "table" and reason.server or tostring(reason))
    end
    if not problem and not wrote then
      redis.set_repl(redis.REPL_NONE)
      local refused = refusal(redis.pcall("DEL", BASE .. "nothing")) -- see redis.lua
      problem = refused and sub(refused, 1, 8) == "READONLY" and refused
    end
    if problem then
      return redis.error_reply((wrote and "HALFWAY " or "") .. problem)
    end
    publish()
    local packed = cmsgpack.pack({ now, outcomes })
    if #stored == 0 then
      return packed
    end
    table.insert(stored, 1, packed)
    return stored
  end

  local function knows(key)
    return records[key] ~= nil
  end

  return { decide = answer, finish = finish, knows = knows }
end)()
