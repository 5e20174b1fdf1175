-- Returns the commands in ARGV that this user may not send. KEYS[1] is the index of the namespace, as in locks.lua.

local BASE, find = string.sub(KEYS[1], 1, -5), string.find
--@include permissions.lua

if redis.replicate_commands then
  redis.replicate_commands()
end
local CREATES = { ZADD = true, HSET = true, RPUSH = true, SADD = true }
local COUNTS = {
  TIME = 0, TYPE = 1, GET = 1, EXISTS = 1, DEL = 1, HGETALL = 1, LLEN = 1, SMEMBERS = 1, SCARD = 1, ZCARD = 1,
  HGET = 2, HMGET = 2, PEXPIRE = 2, PUBLISH = 2,
}
local removes = not first_refused({ "DEL" }, COUNTS)
local refused = {}
for _, name in ipairs(ARGV) do
  -- On an old server some commands create a key that must be removed.
  if (redis.acl_check_cmd or removes or not CREATES[name]) and first_refused({ name }, COUNTS) then
    refused[#refused + 1] = name
  end
end
return refused
