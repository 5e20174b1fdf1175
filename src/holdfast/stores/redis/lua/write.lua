-- Write what the rules have decided in the client, if everything that the decision depends on is still as it was read.
-- KEYS[1] is the index of the namespace, as in locks.lua.
--
-- ARGV[1] is the MessagePack of {checks, names, writes, messages}; ARGV[2] the time in tests, ARGV[3] the time of the
-- decision. A check is {command, reply}: the reply to the command when it was read. `names` are the commands that
-- write: the permissions for all of them are checked before the first write, and so are the type of each key and the
-- length of each command, because a server that refuses in the middle leaves a change half done. A write is a command;
-- {UNLESS, name, command...} is carried out only if the name does not exist. A message is {channel, text}. The answer
-- is the MessagePack of {0, the number of receivers of each message}, or of {n}: the n-th check failed, and nothing was
-- written. A decision that is half a minute old is not written either: its time has passed.

local BASE, find = string.sub(KEYS[1], 1, -5), string.find
local STALE = 30000000
local MOST = 4000 -- arguments of one command: unpack accepts less than 8000
local COUNTS = { DEL = 1, PEXPIRE = 2 }
local ADDS = { ZADD = true, HSET = true, SADD = true, RPUSH = true }
local KINDS = { -- the type that the key of a command must have, if it exists
  ZADD = "zset", ZREM = "zset", ZREMRANGEBYRANK = "zset", HSET = "hash", HDEL = "hash", SADD = "set", SREM = "set",
  RPUSH = "list", LSET = "list", LTRIM = "list",
}
--@include permissions.lua

-- Whether two lists of alternating names and values are the same hash: a server may return its fields in any order.
local function same_hash(one, other)
  local values = {}
  for place = 1, #other, 2 do
    values[other[place]] = other[place + 1]
  end
  for place = 1, #one, 2 do
    if values[one[place]] ~= one[place + 1] then
      return false
    end
  end
  return #one == #other and #one > 0
end

local function same(one, other)
  if type(one) ~= "table" or type(other) ~= "table" then
    return one == other
  end
  if #one ~= #other or one.err ~= other.err then
    return false
  end
  for place = 1, #one do
    if not same(one[place], other[place]) then
      return false
    end
  end
  return true
end

if redis.replicate_commands then
  redis.replicate_commands()
end
local checks, names, writes, messages = unpack(cmsgpack.unpack(ARGV[1]))
if ARGV[2] == "" then
  local time = redis.pcall("TIME")
  if time.err then
    return redis.error_reply(time.err)
  elseif tonumber(time[1]) * 1000000 + tonumber(time[2]) - tonumber(ARGV[3]) > STALE then
    return cmsgpack.pack({ #checks + 1 })
  end
end
for place, check in ipairs(checks) do
  local command, read = check[1], check[2]
  local reply = redis.pcall(unpack(command))
  if not same(reply, read) and not (command[1] == "HGETALL" and same_hash(reply, read)) then
    return cmsgpack.pack({ place })
  end
end
for _, name in ipairs(redis.acl_check_cmd and {} or names) do
  if ADDS[name] then -- see permissions.lua: it is tried with a sorted set, which must be removed again
    table.insert(names, 1, "DEL")
    table.insert(names, 1, "ZADD")
    break
  end
end
local refused, wrote, seen = first_refused(names, COUNTS), false, {}
if refused then
  return redis.error_reply(refused)
end
for _, command in ipairs(writes) do
  local first = command[1] == "UNLESS" and 3 or 1
  local kind, name = KINDS[command[first]], command[first + 1]
  if #command > MOST then
    return redis.error_reply("TOOLONG a " .. command[first] .. " of " .. #command .. " words for " .. name)
  end
  if kind and not seen[name] then
    local there = redis.pcall("TYPE", name)
    seen[name] = true
    if there.err or (there.ok ~= kind and there.ok ~= "none") then
      return redis.error_reply(there.err or "WRONGTYPE there is a " .. there.ok .. " in the place of " .. name)
    end
  end
end
for _, command in ipairs(writes) do
  local unless = command[1] == "UNLESS"
  if not unless or redis.pcall("EXISTS", command[2]) == 0 then
    local reply = redis.pcall(unpack(command, unless and 3 or 1))
    if type(reply) == "table" and reply.err then
      return redis.error_reply((wrote and "HALFWAY " or "") .. reply.err)
    end
    wrote = true
  end
end
local heard = {}
for place, message in ipairs(messages) do
  local count = redis.pcall("PUBLISH", message[1], message[2]) -- only a hint
  heard[place] = type(count) == "number" and count or -1
end
return cmsgpack.pack({ 0, heard })
