-- The fast path of `RecordRun`: entries that the driver of a run adds to its journal, and nothing else. Included in
-- locks.lua, whose variables it uses.
--
-- The entries are written here if the fence is that of the run, the driver knows the whole journal and all events, and
-- the command is not a re-send. Everything else, also every refusal, is declined.

if operation == RECORD and not any then
  -- {RECORD, run, fence, at, request, entries, seen}
  local entries, seen = command[6], command[7]
  if type(key) == "string" and type(id) == "number" and type(command[5]) == "string" and type(entries) == "table"
    and #entries <= MANY and type(seen) == "number"
  then
    local run, journal = BASE .. "run:" .. key, BASE .. "journal:" .. key
    local found = redis.pcall("HMGET", run, "status", "fence", "last", "crashes", "stuck")
    local posted = redis.pcall("LLEN", BASE .. "inbox:" .. key)
    if found[1] == "running" and found[2] == format("%.0f", id) and (found[3] or "") ~= command[5]
      and not found[4] and not found[5]
      and type(posted) == "number" and posted <= seen and redis.pcall("LLEN", journal) == command[4]
    then
      local texts_only = true
      for n = 1, #entries do
        texts_only = texts_only and type(entries[n]) == "string"
      end
      if texts_only then
        local reply
        reply = redis.pcall("HSET", run, "last", command[5])
        if type(reply) ~= "table" and #entries > 0 then
          reply = redis.pcall("RPUSH", journal, unpack(entries))
          if type(reply) == "table" then -- refused: nothing was written; what was allowed before is still allowed
            redis.pcall("HSET", run, "last", found[3] or "")
          end
        end
        if type(reply) == "table" then
          return redis.error_reply((wrote and "HALFWAY " or "") .. reply.err)
        end
        outcome, wrote = RECORDED, true
      end
    end
  end
end
