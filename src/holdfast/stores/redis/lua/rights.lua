-- Rights are checked before the first of several writes: what the server refuses in the middle would be half done.
-- Neither the rights of a user nor whether the memory is full change while a script runs.
--
-- Since Redis 7 a script can ask for its rights. An older server is tried on a name that is not there, without a trace
-- for replicas and the disk: ZADD comes first and makes a sorted set of it, so that the other commands fail or change
-- nothing, and DEL or ZREM removes it. ZADD is also refused where the memory is full; after any write nothing would be.

-- What the server says to the first of these commands that it refuses; nil: it refuses none. `counts` says how many
-- arguments a command is tried with, where it is not three.
local function first_refused(names, counts)
  local nothing = BASE .. "nothing"
  local arguments, may = { nothing, "0", nothing }, redis.acl_check_cmd
  if may then
    for _, name in ipairs(names) do
      if not may(name, unpack(arguments, 1, counts[name] or 3)) then
        return "NOPERM this user has no permissions to run the '" .. string.lower(name) .. "' command"
      end
    end
    return nil
  end
  local refused
  redis.set_repl(redis.REPL_NONE)
  for _, name in ipairs(names) do
    local reply = redis.pcall(name, unpack(arguments, 1, counts[name] or 3))
    refused = type(reply) == "table" and reply.err
    if refused and not find(refused, "^ERR ") and not find(refused, "^WRONGTYPE ") then -- these come from the command
      break
    end
    refused = nil
  end
  redis.pcall("DEL", nothing)
  redis.pcall("ZREM", nothing, nothing)
  redis.set_repl(redis.REPL_ALL)
  return refused
end
