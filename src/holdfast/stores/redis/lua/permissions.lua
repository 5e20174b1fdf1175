-- Permissions are checked before the first of several writes: a command that the server refuses in the middle would
-- leave the change half done. Neither the permissions of a user nor the state of a full memory change while a script
-- runs.
--
-- Since Redis 7 a script can read its permissions. On an older server the commands are tried on a key that does not
-- exist, without effects on replicas and the disk: ZADD comes first and creates a sorted set, so that the other
-- commands fail or change nothing, and DEL or ZREM removes it. ZADD is also refused if the memory is full; after a
-- write of the script nothing would be refused.

-- The error of the first of these commands that the server refuses; nil: it refuses none. `counts` has the number of
-- arguments that a command is tried with, if it is not three.
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
