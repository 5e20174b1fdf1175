-- Send several reading commands in one step. KEYS[1] is the index of the namespace, as in locks.lua.
--
-- ARGV[1] is the MessagePack of a list of commands, none of which writes; ARGV[2] the time in tests; without it the
-- server's TIME is used. The time is inserted into two commands: {DUE, sorted set, more...} and {LATER, sorted set}.
-- They are recognised by the first argument alone, because a later one may be any name. With ARGV[3] nothing will be
-- written after this read, so a replica must be detected here: it would answer with outdated records. The answer is
-- {now, replies}, as MessagePack; if a reply is not valid UTF-8, the client sends the request again with ARGV[4], for
-- plain replies.

if redis.replicate_commands then
  redis.replicate_commands()
end
local now = ARGV[2]
if now == "" then
  local time = redis.pcall("TIME")
  if time.err then
    return redis.error_reply(time.err)
  end
  now = string.format("%.0f", tonumber(time[1]) * 1000000 + tonumber(time[2]))
end
local replies = {}
for place, command in ipairs(cmsgpack.unpack(ARGV[1])) do
  local reply
  if command[1] == "DUE" then
    reply = redis.pcall("ZRANGEBYSCORE", command[2], "-inf", now, "WITHSCORES", unpack(command, 3))
  elseif command[1] == "LATER" then
    reply = redis.pcall("ZCOUNT", command[2], "(" .. now, "+inf")
  else
    reply = redis.pcall(unpack(command))
  end
  if type(reply) == "table" and reply.err then
    reply = { err = reply.err }
  end
  replies[place] = reply
end
if ARGV[3] == "1" then
  redis.set_repl(redis.REPL_NONE)
  local reply = redis.pcall("DEL", string.sub(KEYS[1], 1, -5) .. "nothing")
  if type(reply) == "table" and string.find(reply.err, "READONLY", 1, true) then
    return redis.error_reply(reply.err)
  end
end
if ARGV[4] == "1" then
  return { now, replies }
end
return cmsgpack.pack({ tonumber(now), replies })
