-- The fast path of a plain start and of a plain end of a run. Included in locks.lua, whose variables it uses.
--
-- Without it "100 runs at once, 10 steps each" of bench/runs.py takes 1.4 times as long on Redis: by the rules each is
-- two round trips, and in a busy process the thread that makes them must wait for the GIL after each.
--
-- A start is carried out here for a registered worker whose lease has not expired, of a run that does not exist yet and
-- has no parent, key or limits. An end is carried out here if the driver knows the whole journal and all events, and
-- the end affects nothing else: no parent, no limits, no locks, no watchers, and no field that is not named here. The
-- script writes what the client has computed by the rules, with the time inserted. Everything else is declined, also
-- commands for which the user lacks a permission, and keys that hold another type: then the rules report the error.

if (operation == START or operation == FINISH) and not any then
  --@include permissions.lua
  if may_write == nil then
    local names = { "ZADD", "DEL", "HSET", "RPUSH", "SADD", "HDEL", "ZREM", "SREM" }
    may_write = not first_refused(names, { DEL = 1 })
  end

  -- Whether each key has the right type, or does not exist; the types are kept for the other commands.
  local function fit(kind, names)
    for _, name in ipairs(names) do
      if kinds[name] == nil then
        local there = redis.pcall("TYPE", BASE .. name)
        kinds[name] = there.ok == "none" and kind or there.ok or "unknown"
      end
      if kinds[name] ~= kind then
        return false
      end
    end
    return true
  end

  local additions, removals -- commands, in their order
  local time = format("%.0f", now)
  if operation == START and may_write and now < LONG_AGO then
    -- {START, run, worker, workflow, input, fields, names by time, names without an order, names of sets, type}
    local fields, timed, ordered, sets = command[6], command[7], command[8], command[9]
    local worker, lease = id, texts["worker/" .. id]
    if lease == nil then
      lease = redis.pcall("GET", LOCK .. "worker/" .. worker)
    end
    local enlisted = redis.pcall("HGET", BASE .. "workers", worker)
    local terms = redis.pcall("HGET", BASE .. "limits:terms", command[4]) -- {}: there are no limits
    local run, journal = BASE .. "run:" .. key, BASE .. "journal:" .. key
    if type(lease) == "string" and type(enlisted) == "string" and match(enlisted, ENLISTED) == worker then
      local _, _, _, owner, _, _, _, _, ends = match(lease, SOLE)
      if owner == worker and tonumber(ends) > now
        and redis.pcall("EXISTS", run, journal, BASE .. "inbox:" .. key) == 0
        and (terms == false or terms == "{}")
        and fit("zset", timed) and fit("zset", ordered) and fit("set", sets) and fit("set", { "runs:types" })
      then
        additions, removals = {}, {}
        for _, name in ipairs(timed) do
          additions[#additions + 1] = { "ZADD", BASE .. name, time, key }
        end
        for _, name in ipairs(ordered) do
          additions[#additions + 1] = { "ZADD", BASE .. name, "0", key }
        end
        for _, name in ipairs(sets) do
          additions[#additions + 1] = { "SADD", BASE .. name, key }
        end
        additions[#additions + 1] = { "SADD", BASE .. "runs:types", command[10] }
        additions[#additions + 1] = { "RPUSH", journal, command[5] }
        additions[#additions + 1] = {
          "HSET", run, "created_at", time, "fence", time, "started_at", time, unpack(fields),
        }
      end
    end
  elseif operation == FINISH and may_write and #command[6] < MANY then
    -- {FINISH, run, fence, at, request, entries, seen, status, result}
    local entries, status = command[6], command[8]
    local run, journal = BASE .. "run:" .. key, BASE .. "journal:" .. key
    local PLAIN = { -- any other field of a run may affect its end
      status = true, fence = true, last = true, worker = true, type = true, created_at = true, request = true,
      root = true, key = true, started_at = true, attributes = true, claims = true, crashes = true, stuck = true,
      priority = true, arrival = true, cancelling = true, code = true,
    }
    local found, plain, flat = {}, true, redis.pcall("HGETALL", run)
    for place = 1, #flat, 2 do
      found[flat[place]] = flat[place + 1]
      plain = plain and PLAIN[flat[place]]
    end
    local posted = redis.pcall("LLEN", BASE .. "inbox:" .. key)
    if plain and found.status == "running" and found.fence == format("%.0f", id) and (found.last or "") ~= command[5]
      and found.worker and found.type
      and type(posted) == "number" and posted <= command[7] and redis.pcall("LLEN", journal) == command[4]
      and find(found.created_at or "", "^[1-9]%d*$") and #found.created_at <= 16 and tonumber(found.created_at) <= MAX
    then
      local workflow = match(found.type, "^[^@]*")
      local to, from = "runs:in:" .. status .. ":" .. workflow, "runs:in:running:" .. workflow
      local ended = "runs:ended:" .. status .. ":" .. workflow
      local owned, living = "runs:of:" .. found.worker, "runs:living:" .. found.type
      if fit("zset", { to, from, ended, owned }) and fit("set", { living }) then
        additions = { { "ZADD", BASE .. to, found.created_at, key } }
        additions[2] = { "ZADD", BASE .. ended, time, key }
        if #entries > 0 then
          additions[3] = { "RPUSH", journal, unpack(entries) }
        end
        additions[#additions + 1] = {
          "HSET", run, "status", status, "result", command[9], "ended_at", time, "last", command[5],
        }
        removals = {
          { "HDEL", run, "worker", "crashes", "stuck" }, { "ZREM", BASE .. from, key }, { "ZREM", BASE .. owned, key },
          { "SREM", BASE .. living, key },
        }
      end
    end
  end
  if additions then
    local refused
    for place, one in ipairs(additions) do
      local reply = redis.pcall(unpack(one))
      refused = type(reply) == "table" and reply.err
      if refused and place > 1 then -- the first is refused if the memory is full, and then nothing has been written
        return redis.error_reply("HALFWAY " .. refused)
      elseif refused then
        break
      end
      wrote = true
    end
    if not refused then
      for _, one in ipairs(removals) do
        redis.pcall(unpack(one))
      end
      outcome = operation == START and STARTED or RECORDED
    end
  end
end
