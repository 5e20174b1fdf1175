-- The short way of a hand-over: one lock, one holder, and those who wait for it. Put into redis.lua, whose names it
-- uses.
--
-- Three commands come with every hand-over: somebody begins to wait, the holder gives it to the first who waits, and
-- that one confirms what it was offered. Here they are answered, like those of redis.lua, by looking at the text of the
-- record alone: it must be a lock with one permit, all of it as this version writes it, and nothing in it may have been
-- ended by time, so that no settle would find anything to do before. What a run is offered goes the long way: it hears
-- of it by an event.

if text and not outcome and (operation == RELEASE or (sane and command[11] == 0)) then
  local HELD = '^{"fence":([1-9]%d*),"version":([1-9]%d*),"holders":%[(){"id":"([^%c"\\\128-\255]*)","label":({"name":"'
    .. '[^%c"\\\128-\255]*"([^{}]*)}),"token":([1-9]%d*),"since":([1-9]%d*),"ttl":([1-9]%d*),"expires_at":([1-9]%d*)'
    .. '([^{}]*)}%]()'
  local WAITER = '^{"id":"([^%c"\\\128-\255]*)","label":({"name":"[^%c"\\\128-\255]*"([^{}]*)}),"since":([1-9]%d*),'
    .. '"ttl":([1-9]%d*),"expires_at":([1-9]%d*)}()'
  local fence, version, begins, owner, label, host, token, since, ttl, ends, offered, from = match(text, HELD)
  if fence and (owner == id or operation == ACQUIRE) then
    fence, version, token = tonumber(fence), tonumber(version), tonumber(token)
    ttl, ends = tonumber(ttl), tonumber(ends)
    local simple = fence < MAX and version < MAX and token <= MAX and tonumber(since) <= MAX
      and ends > now and ends <= now + ttl and now + ttl <= MAX and (offered == "" or offered == ',"offered":true')
      and (host == "" or find(host, HOST_AND_PID) or find(host, HOST))

    -- Who waits: how many, the first of them, and when the first of their times is over.
    local count, soonest, found = 0, MAX, false
    local first, first_label, first_ttl, first_ends, others
    local was_due_at, place = false, from -- the place after the text of the waiters
    if simple and sub(text, from, from + 11) == ',"waiters":[' then
      place = from + 11
      repeat
        local who, who_label, who_host, who_since, who_ttl, who_ends, after_it = match(text, WAITER, place + 1)
        who_ttl, who_ends = tonumber(who_ttl), tonumber(who_ends)
        simple = who and tonumber(who_since) <= MAX and who_ends > now and who_ends <= now + who_ttl
          and now + who_ttl <= MAX
          and (who_host == "" or find(who_host, HOST_AND_PID) or find(who_host, HOST))
        if not simple then
          break
        end
        if count == 0 then
          first, first_label, first_ttl, first_ends, others = who, who_label, who_ttl, who_ends, after_it
        end
        count, soonest, found, place = count + 1, math.min(soonest, who_ends), found or who == id, after_it
      until sub(text, place, place) ~= ","
      was_due_at = simple and tonumber(match(text, '^%],"due_at":([1-9]%d*)}$', place))
      simple, place = was_due_at == math.min(soonest, ends), place + 1
    elseif simple then
      simple = sub(text, from) == "}"
    end

    local due_at, patience = count > 0 and soonest, command[10]
    local holders, waiters
    if simple and not dues then
      was_due, dues, stored, woken = {}, {}, {}, {}
    end
    if simple and operation == RELEASE and count > 0 and token == command[4]
      and sub(first, 1, 4) ~= "run:"
    then
      fence = fence < now and now or fence + 1
      holders = format('{"id":"%s","label":%s,"token":%.0f,"since":%.0f,"ttl":%.0f,"expires_at":%.0f,"offered":true}',
        first, first_label, fence, now, first_ttl, first_ends)
      waiters = count > 1 and ',"waiters":[' .. sub(text, others + 1, place - 1) or ""
      due_at = count > 1 and soonest
      woken[#woken + 1] = first
      outcome = { RELEASED, { first } }
    elseif simple and operation == ACQUIRE and owner == id and offered ~= "" and command[8] then
      ttl = command[8]
      holders = format('{"id":"%s","label":%s,"token":%.0f,"since":%.0f,"ttl":%.0f,"expires_at":%.0f}',
        id, label, token, now, ttl, now + ttl)
      waiters = sub(text, from, place - 1)
      due_at = due_at and math.min(soonest, now + ttl)
      outcome = { GRANTED, {}, token, token, now, now + ttl, false }
    elseif simple and operation == ACQUIRE and owner ~= id and not found and command[5] == "item" and command[6] == 1
      and command[9] and patience and patience % 1 == 0 and patience > 0 and patience <= MAX - now
    then
      holders = sub(text, begins, from - 2)
      due_at = math.min(soonest, ends, now + patience)
      waiters = format('%s{"id":"%s","label":%s,"since":%.0f,"ttl":%.0f,"expires_at":%.0f}]',
        count > 0 and sub(text, from, place - 2) .. "," or ',"waiters":[', id, command[4], now, patience,
        now + patience)
      stored[#stored + 1] = "[" .. holders .. "]"
      outcome = { QUEUED, {}, count, #stored, due_at - now, false }
    end

    if outcome then
      after = format('{"fence":%.0f,"version":%.0f,"holders":[%s]%s%s}', fence, version + 1, holders, waiters,
        due_at and format(',"due_at":%.0f', due_at) or "")
      if was_due[key] == nil then
        was_due[key] = was_due_at
      end
      dues[key] = nil
      if due_at ~= was_due[key] then
        dues[key] = due_at
      end
    end
  end
end
