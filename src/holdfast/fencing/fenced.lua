-- The fence around a script on Redis or Valkey: the check, the stored floor and the script are one atomic step.
--
-- This text follows the user's own script, which is the function `work(KEYS, ARGV)`, on the lines where it was written.
-- KEYS[1] is the fence, a plain string with the highest floor; the script's own keys follow. ARGV[1] and ARGV[2] are
-- token and floor; the script's own arguments follow. Returns {1, the script's result}, {0, the highest floor} if the
-- token is older than that, or {-1, the stored value} if the fence is not a number: then nothing is accepted.
-- Errors of the server, and errors that the script returns or raises, are returned unchanged.
--
-- The floor is stored before the script runs. Redis does not roll back: a script that fails in the middle has written
-- something, and no older holder may overwrite that.
local function readable(floor)
    return string.find(floor, "^[1-9]%d*$") ~= nil and tonumber(floor) < 2 ^ 53
end

local stored = redis.pcall("GET", KEYS[1])
if type(stored) == "table" then
    if string.find(stored.err, "WRONGTYPE", 1, true) then
        return {-1, stored.err}
    end
    return stored -- such as a missing permission: nothing is wrong with the fence
end
if stored and not readable(stored) then
    return {-1, stored}
end
local highest = stored and tonumber(stored) or 0
if tonumber(ARGV[1]) < highest then
    return {0, stored}
end
if tonumber(ARGV[2]) > highest then
    redis.call("SET", KEYS[1], ARGV[2]) -- as text: Lua would convert the number to 14 of its 16 digits
end

local keys, arguments = {}, {}
for place = 2, #KEYS do
    keys[place - 1] = KEYS[place]
end
for place = 3, #ARGV do
    arguments[place - 2] = ARGV[place]
end
local result = work(keys, arguments)
if type(result) == "table" and result.err then
    return result
end
return {1, result}
