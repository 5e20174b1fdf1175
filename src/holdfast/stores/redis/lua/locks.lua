-- The fast path: the commands that matter for speed, a whole batch in one step and one round trip.
--
-- It decides: acquire of a free lock, renew and release by the only holder, the three commands of a hand-over
-- (queue.lua), entries that the driver of a run adds to its journal (entries.lua), each from the text of the record
-- alone; and a plain start and a plain end of a run (runs.lua). Every answer and every stored record equals that of the
-- Python rules, which random histories check. Anything else is declined: the client decides it by the rules
-- (record_source.py). After a declined command, later commands about the same lock are declined too, and no command
-- about runs is carried out; after a declined command about a run nothing at all is, so that the order of commands is
-- kept.
--
-- Without it these rows of bench/run.py would miss their goals: redis_pairs (one caller, 100 tasks), redis_waiting
-- (hand-over, a thousand leases), runs (a step, a hundred runs at once).
--
-- KEYS[1] is the index of all keys of the namespace, `holdfast:{namespace}:keys`; every other name begins like it: see
-- keys.py. ARGV[1] is the batch (MessagePack), ARGV[2] the time in tests; without it the server's TIME is used.
-- The answer is the MessagePack of {now, outcomes, hints that no process received}; stored texts follow it as separate
-- strings, because they may contain any bytes. An outcome is a number where the client can derive the rest from the
-- command itself.
--
-- No lock is written before all commands have been decided. Nothing is half done: where several writes belong together,
-- the permissions for all of them are checked before the first, see permissions.lua.
-- Numbers are written by %.0f: tostring, `..` and cjson keep 14 digits, and tokens have 16.

--@constants MAX LONG_AGO
--@constants ACQUIRE RENEW RELEASE RECORD FINISH START
--@constants DECLINED GRANTED RENEWED RELEASED QUEUED RECORDED STARTED
local MANY = 1000 -- unpack accepts a limited number of values
local PLAIN = '^[^%c"\\\128-\255]*$' -- text that JSON does not escape
local SOLE = '^({.-"fence":[1-9]%d*,)"version":([1-9]%d*),"holders":%[({"id":"([^%c"\\\128-\255]*)","label":{"name":"'
  .. '[^%c"\\\128-\255]*"([^{}]*)},"token":([1-9]%d*),"since":([1-9]%d*),)"ttl":([1-9]%d*),"expires_at":([1-9]%d*)}%]}$'
local ENLISTED = '^{"id":"([^%c"\\\128-\255]*)","name":"[^%c"\\\128-\255]*","types":%[[^%[%]{}]*%],"since":[1-9]%d*}$'
local HOST = '^,"host":"[^%c"\\\128-\255]+"$' -- what may follow the name in a label
local HOST_AND_PID = '^,"host":"[^%c"\\\128-\255]+","pid":[1-9]%d*$'
local format, find, match, sub = string.format, string.find, string.match, string.sub

if redis.replicate_commands then
  redis.replicate_commands() -- otherwise, up to Redis 6, a script that has read the clock may not write
end
local now = tonumber(ARGV[2])
if not now then
  local time = redis.pcall("TIME")
  if time.err then
    return redis.error_reply(time.err)
  end
  now = tonumber(time[1]) * 1000000 + tonumber(time[2])
end

local BASE = sub(KEYS[1], 1, -5)
local LOCK, DUE = BASE .. "lock:", BASE .. "due"
local batch = cmsgpack.unpack(ARGV[1])
local texts = {} -- key -> the text of its record after this batch; false: there is none
local fresh = {} -- key -> whether it had no record when it was read
local changed, changes = {}, {} -- the keys to write, in order, and key -> true
local outcomes, wrote = {}, false
local kinds, may_write = {}, nil -- types of stored keys; whether runs may be written (nil: unknown)
local declined, any, all = {}, false, false -- declined keys; whether any was; whether all are from now on
-- Used only if there are waiters:
local was_due, dues -- key -> its due_at in the index as it is stored, and as it must become; false: none
local stored, woken -- texts that follow the answer; the attempts that were granted something

for place = 1, #batch do
  local command = batch[place]
  local operation, key, id = command[1], command[2], command[3]
  local outcome, text, after, sane

  if operation <= RELEASE and not all and not declined[key] and type(key) == "string" and type(id) == "string" then
    text = texts[key]
    if text == nil then
      text = redis.pcall("GET", LOCK .. key)
      if type(text) == "table" then
        text = nil
      else
        texts[key], fresh[key] = text, not text
      end
    end
  end

  if operation == ACQUIRE and text ~= nil then
    -- {ACQUIRE, key, id, label, kind, permits, weight, ttl, queue, waiter_ttl, delay}
    -- Granted if there is no record yet, or one without holders and waiters that has the requested kind and permits.
    local permits, weight, ttl, delay = command[6], command[7], command[8], command[11]
    sane = type(permits) == "number" and type(weight) == "number" and type(delay) == "number"
      and (ttl == nil or (type(ttl) == "number" and ttl % 1 == 0 and ttl > 0 and ttl <= MAX - now))
      and permits % 1 == 0 and weight % 1 == 0 and delay % 1 == 0
      and weight >= 1 and weight <= permits and permits <= MAX and delay >= 0 and delay <= MAX
      and (command[10] == nil or type(command[10]) == "number")
      and find(id, PLAIN)
    if sane then
      local shape = "{"
      if command[5] ~= "mutex" then
        shape = '{"kind":"' .. command[5] .. '",'
      end
      if permits ~= 1 then
        shape = shape .. '"permits":' .. format("%.0f", permits) .. ","
      end
      local token, version = now, 1
      if text then
        local head, fence, before = match(text, '^(.-)"fence":([1-9]%d*),"version":([1-9]%d*)}$')
        token = nil
        if head == shape then
          fence, before = tonumber(fence), tonumber(before)
          if fence < MAX and before < MAX then
            token, version = fence < now and now or fence + 1, before + 1
          end
        end
      end
      if token then
        after = format('%s"fence":%.0f,"version":%.0f,"holders":[{"id":"%s","label":%s,"token":%.0f,"since":%.0f,',
          shape, token, version, id, command[4], token, now)
        if ttl then
          after = after .. format('"ttl":%.0f,"expires_at":%.0f', ttl, now + ttl)
        else
          after = after .. '"ttl":null,"expires_at":null'
        end
        if weight ~= 1 then
          after = after .. format(',"weight":%.0f', weight)
        end
        if delay ~= 0 then
          after = after .. format(',"delay":%.0f', delay)
        end
        after = after .. "}]}"
        outcome = GRANTED
        if token ~= now then
          outcome = { GRANTED, {}, token, token, now, ttl and now + ttl or false, false }
        end
      end
    end

  elseif text and operation <= RELEASE then
    -- {RENEW, key, id, token, ttl} and {RELEASE, key, id, token}
    -- By the only holder, which is confirmed and has not expired, if nothing else is in the record.
    local head, version, holder, owner, label, token, since, ttl, ends = match(text, SOLE)
    if owner == id then
      token, version, ttl, ends = tonumber(token), tonumber(version), tonumber(ttl), tonumber(ends)
      local kind, permits, fence = "", "2", match(head, '^{"fence":(%d+),$')
      if not fence then
        kind, fence = match(head, '^{"kind":"(%l+)","fence":(%d+),$')
        if not fence then
          kind, permits, fence = match(head, '^{"kind":"(%l+)","permits":([1-9]%d*),"fence":(%d+),$')
        end
      end
      if token == command[4] and token <= MAX and version < MAX and ends > now and ends <= now + ttl
        and tonumber(since) <= MAX and fence and tonumber(fence) <= MAX and permits ~= "1" and tonumber(permits) <= MAX
        and (kind == "" or find(" hold semaphore rw lease run worker ", " " .. kind .. " ", 1, true))
        and (label == "" or find(label, HOST_AND_PID) or find(label, HOST))
      then
        local longer = command[5]
        if operation == RELEASE then
          after, outcome = format('%s"version":%.0f}', head, version + 1), RELEASED
        elseif longer == nil then
          after = format('%s"version":%.0f,"holders":[%s"ttl":null,"expires_at":null}]}', head, version + 1, holder)
          outcome = RENEWED
        elseif type(longer) == "number" and longer % 1 == 0 and longer > 0 and longer <= MAX - now then
          outcome = RENEWED
          if longer ~= ttl or now + longer ~= ends then
            after = format('%s"version":%.0f,"holders":[%s"ttl":%.0f,"expires_at":%.0f}]}', head, version + 1, holder,
              longer, now + longer)
          end
        end
      end
    end
  end

  --@include queue.lua
  --@include entries.lua
  --@include runs.lua

  if after then
    texts[key] = after
    if not changes[key] then
      changes[key] = true
      changed[#changed + 1] = key
    end
  end

  if not outcome then
    outcome, any, all = DECLINED, true, all or operation >= RECORD
    if key ~= nil then
      declined[key] = true
    end
  end
  outcomes[place] = outcome
end

-- Indexes first: a name in an index without a record is skipped, a record without a name would never be listed.
local index, values = {}, {}
for _, key in ipairs(changed) do
  if fresh[key] then
    index[#index + 1] = "0"
    index[#index + 1] = key
  end
  values[#values + 1] = LOCK .. key
  values[#values + 1] = texts[key]
end
if dues and next(dues) then
  --@include permissions.lua
  local refused = first_refused({ "ZADD", "MSET", "ZREM" }, {})
  if refused then
    return redis.error_reply((wrote and "HALFWAY " or "") .. refused)
  end
end
for start = 1, #index, MANY do
  local reply = redis.pcall("ZADD", KEYS[1], unpack(index, start, math.min(start + MANY - 1, #index)))
  if type(reply) == "table" and reply.err then
    return redis.error_reply((wrote and "HALFWAY " or "") .. reply.err)
  end
  wrote = true
end
for key, due_at in pairs(dues or {}) do
  local reply = due_at and redis.pcall("ZADD", DUE, format("%.0f", due_at), key) or redis.pcall("ZREM", DUE, key)
  if type(reply) == "table" and reply.err then
    return redis.error_reply((wrote and "HALFWAY " or "") .. reply.err)
  end
  wrote = true
end
for start = 1, #values, MANY do
  local reply = redis.pcall("MSET", unpack(values, start, math.min(start + MANY - 1, #values)))
  if type(reply) == "table" and reply.err then
    return redis.error_reply((wrote and "HALFWAY " or "") .. reply.err)
  end
  wrote = true
end
if not wrote then
  -- A replica would answer with outdated records. It refuses to remove even a missing key. Up to Redis 6 a primary
  -- would log the removal of nothing, and sync its disk for it.
  redis.set_repl(redis.REPL_NONE)
  local reply = redis.pcall("DEL", BASE .. "nothing")
  if type(reply) == "table" and find(reply.err, "READONLY", 1, true) then
    return redis.error_reply(reply.err)
  end
end
if not woken then
  return cmsgpack.pack({ now, outcomes })
end

local messages = {} -- channel -> the attempts to notify there
for _, told in ipairs(woken) do
  local channel = match(told, "^[^.]*")
  messages[channel] = messages[channel] and messages[channel] .. "\n" .. told or told
end
local unheard = {} -- the messages that no process received
for channel, message in pairs(messages) do
  if redis.pcall("PUBLISH", BASE .. "wake:" .. channel, message) == 0 then -- only a hint
    unheard[#unheard + 1] = message
  end
end
local packed = cmsgpack.pack({ now, outcomes, unheard })
if #stored == 0 then
  return packed
end
table.insert(stored, 1, packed)
return stored
