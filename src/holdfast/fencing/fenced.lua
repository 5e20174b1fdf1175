-- The fence around a script on Redis or Valkey: check, memory and the script itself are one atomic step.
--
-- Before this text stands the user's own script as the function `work(KEYS, ARGV)`, on the lines where it was written.
-- KEYS[1] is the fence, a plain string with the highest floor; the script's own keys follow. ARGV[1] and ARGV[2] are
-- token and floor; the script's own arguments follow. Answers {1, what the script returned}, {0, the highest floor} if
-- the token is older than that, or {-1, what was found} if the fence is no number: then nothing is let through.
-- An error of the server's, and one that the script returns or raises, is answered as it is.
--
-- The floor is remembered before the script runs. Redis does not roll back: a script that fails in its middle has
-- written something, and nobody older may write over that.

local function readable(floor)
    return string.find(floor, "^[1-9]%d*$") ~= nil and tonumber(floor) < 2 ^ 53
end

local stored = redis.pcall("GET", KEYS[1])
if type(stored) == "table" then
    if string.find(stored.err, "WRONGTYPE", 1, true) then
        return {-1, stored.err}
    end
    return stored -- such as a missing right: nothing is wrong with the fence
end
if stored and not readable(stored) then
    return {-1, stored}
end
local highest = stored and tonumber(stored) or 0
if tonumber(ARGV[1]) < highest then
    return {0, stored}
end
if tonumber(ARGV[2]) > highest then
    redis.call("SET", KEYS[1], ARGV[2]) -- as it came: a number made text again here would keep 14 digits of its 16
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
