-- All that redis.lua does not do itself: every other command, and every other case of those three. It is put into
-- redis.lua, goes on with what has been read and decided there, and leaves `rest` behind.
--
-- A command is decided under pcall and fails alone. What the server refuses ends the batch, because it would refuse
-- the rest as well; nothing has been written then, unless the answer says HALFWAY.

rest = (function()
  local INDEX, SLOT, WAKE = KEYS[1], BASE .. "slot:", BASE .. "wake:"
  local INSPECT, FIRST_OF_MANY, LAST_OF_MANY, READ_SLOT, SWAP_SLOT, FIRST_OF_RUNS = 8, 9, 11, 12, 13, 21
  local NOT_HELD, FOREIGN, BAD, UNREADABLE, SEEN = 4, 30, 31, 32, 33
  local CHUNK = MANY
  local NOBODY = {}
  local NOW = format("%.0f", now)

  local records = {} -- key -> the record behind its text, where the rules have read it
  if not dues then
    was_due, dues, stored, woken = {}, {}, {}, {}
  end
  local slots_read, slots_changed = {}, {} -- name -> the slot, and how to write it
  local foreign, left = false, {} -- whether anything was left to the client, and the keys of it
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

  local function tell(ids)
    for _, id in ipairs(ids) do
      woken[#woken + 1] = id
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
    changed, changes, slots_changed = {}, {}, {}
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

  local rules, slots, runs

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

  local function make_runs()
    --@include redis_runs.lua
  end

  local function decide(command)
    local operation = command[1]
    if operation >= FIRST_OF_RUNS then
      runs = runs or make_runs()
      return runs(command)
    elseif operation == READ_SLOT or operation == SWAP_SLOT then
      return all_slots().answer(command)
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
    return rules(command)
  end

  -- The outcome; nil: the batch ends here.
  local function answer(command)
    local operation = command[1]
    if foreign and (operation >= FIRST_OF_RUNS or (operation >= FIRST_OF_MANY and operation <= LAST_OF_MANY)) then
      return nil
    end
    local done, outcome = pcall(decide, command)
    if done then
      return outcome
    end
    if type(outcome) == "table" then
      if outcome.server then
        problem = outcome.server
        return nil
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
