-- The fast path of a hand-over: one lock, one holder, and its waiters. Included in locks.lua, whose variables it uses.
-- Without it the hand-over row of redis_waiting in bench/run.py would miss its goal.
--
-- Every hand-over has three commands: an attempt begins to wait, the holder releases the lock, which offers it to the
-- first waiter, and that waiter confirms the offer. They are answered from the text of the record alone: it must be a
-- lock with one permit, written exactly as this version writes it, and nothing in it may have expired, so that settling
-- would change nothing. An offer to a run is declined, because a run is notified by an event.

if text and not outcome and (operation == RELEASE or (sane and command[11] == 0)) then
  --@constants OFFER_LIFE
  local MOST = 256 -- the most waiters that are read here
  local HELD = '^{"fence":([1-9]%d*),"version":([1-9]%d*),"holders":%[(){"id":"([^%c"\\\128-\255]*)","label":({"name":"'
    .. '[^%c"\\\128-\255]*"([^{}]*)}),"token":([1-9]%d*),"since":([1-9]%d*),"ttl":([1-9]%d*),"expires_at":([1-9]%d*)()'
  local WAITER = '^{"id":"([^%c"\\\128-\255]*)","label":({"name":"[^%c"\\\128-\255]*"([^{}]*)}),"since":([1-9]%d*),'
    .. '"ttl":([1-9]%d*),"expires_at":([1-9]%d*)([^{}]*)}()'

  -- The waiter whose text begins here, and where it ends; nil where it is not simple.
  local function waiter_at(place)
    local who, label, host, since, ttl, ends, more, after_it = match(text, WAITER, place)
    if not who or tonumber(since) > MAX or not (host == "" or find(host, HOST_AND_PID) or find(host, HOST)) then
      return nil
    end
    local number, at = match(more, '^,"number":([1-9]%d*)()')
    local missed, past = match(more, '^,"missed":([1-9]%d*)()', at or 1)
    at = past or at or 1
    local passed = sub(more, at, at + 13) == ',"passed":true'
    at = passed and at + 14 or at
    local listens = sub(more, at, at + 14) == ',"listens":true'
    if (listens and at + 15 or at) ~= #more + 1 then
      return nil
    end
    return {
      id = who, label = label, since = since, ttl = tonumber(ttl), ends = tonumber(ends),
      number = tonumber(number or 0),
      missed = tonumber(missed or 0), passed = passed, listens = listens, text = sub(text, place, after_it - 1),
    }, after_it
  end

  local fence, version, begins, owner, label, host, token, since, ttl, ends, from = match(text, HELD)
  if fence and (owner == id or operation == ACQUIRE) then
    fence, version, token = tonumber(fence), tonumber(version), tonumber(token)
    ttl, ends = tonumber(ttl), tonumber(ends)
    local offered, last = false, -1 -- the number of the latest arrival
    if sub(text, from, from + 24) == ',"offered":true,"place":{' then
      offered, from = waiter_at(from + 24)
      last = offered and offered.number
    end
    local simple = from and sub(text, from, from + 1) == "}]" and (not offered or offered.id == owner)
      and fence < MAX and version < MAX and token <= MAX and tonumber(since) <= MAX
      and ends > now and ends <= now + ttl and now + ttl <= MAX
      and (host == "" or find(host, HOST_AND_PID) or find(host, HOST))

    -- The waiters: the first that may get an offer, and the earliest expiry.
    local line, ahead, soonest, found, before_it, head = {}, 0, MAX, false, 0, nil
    local was_due_at = false
    if simple then
      from = from + 2
      local place = from
      if sub(text, place, place + 11) == ',"waiters":[' then
        place = place + 11
        repeat
          local waiter, after_it = waiter_at(place + 1)
          simple = waiter and waiter.ends > now and waiter.ends <= now + waiter.ttl and now + waiter.ttl <= MAX
            and waiter.number > last and #line < MOST
          if not simple then
            break
          end
          line[#line + 1], last, place = waiter, waiter.number, after_it
          soonest = math.min(soonest, waiter.ends)
          if waiter.id == id then
            found, before_it, line.as_it_was = #line, ahead, waiter.text
          end
          if not waiter.passed then
            ahead, head = ahead + 1, head or #line
          end
        until sub(text, place, place) ~= ","
        was_due_at = simple and tonumber(match(text, '^%],"due_at":([1-9]%d*)}$', place))
        simple = was_due_at == math.min(soonest, ends)
      else
        simple = sub(text, place) == "}"
      end
    end

    local due_at, patience = #line > 0 and soonest, command[10]
    local holders
    if simple and not dues then
      was_due, dues, stored, woken = {}, {}, {}, {}
    end
    if simple and operation == RELEASE and not offered and head and token == command[4]
      and sub(line[head].id, 1, 4) ~= "run:"
    then
      local next_one = table.remove(line, head)
      local life = math.min(next_one.ttl, OFFER_LIFE * 2 ^ math.min(next_one.missed, 20))
      local until_ = math.min(next_one.ends, now + life)
      fence = fence < now and now or fence + 1
      holders = format('{"id":"%s","label":%s,"token":%.0f,"since":%.0f,"ttl":%.0f,"expires_at":%.0f,"offered":true,'
        .. '"place":%s}', next_one.id, next_one.label, fence, now, life, until_, next_one.text)
      due_at = #line > 0 and until_
      for _, waiter in ipairs(line) do
        due_at = math.min(due_at, waiter.ends)
      end
      woken[#woken + 1] = next_one.id
      outcome = { RELEASED, { next_one.id } }
    elseif simple and operation == ACQUIRE and owner == id and offered and command[8] then
      ttl = command[8]
      holders = format('{"id":"%s","label":%s,"token":%.0f,"since":%.0f,"ttl":%.0f,"expires_at":%.0f}',
        id, label, token, now, ttl, now + ttl)
      due_at = due_at and math.min(soonest, now + ttl)
      outcome = { GRANTED, {}, token, token, now, now + ttl, false }
    elseif simple and operation == ACQUIRE and found and not line[found].passed and patience == line[found].ttl
      and command[5] == "mutex"
    then
      local me, listens = line[found], command[12] and true or false
      holders = sub(text, begins, from - 2)
      due_at = was_due_at
      if (me.ends - now) * 5 < patience * 3 or me.label ~= command[4] or me.listens ~= listens then
        local until_ = (me.ends - now) * 5 < patience * 3 and now + patience or me.ends
        me.text = format('{"id":"%s","label":%s,"since":%s,"ttl":%.0f,"expires_at":%.0f%s%s%s}', id, command[4],
          me.since, patience, until_, me.number > 0 and format(',"number":%.0f', me.number) or "",
          me.missed > 0 and format(',"missed":%.0f', me.missed) or "", listens and ',"listens":true' or "")
        me.ends, due_at = until_, ends
        for _, waiter in ipairs(line) do
          due_at = math.min(due_at, waiter.ends)
        end
      end
      stored[#stored + 1] = "[" .. holders .. "]"
      outcome = { QUEUED, {}, before_it, #stored, due_at - now, false }
      if due_at == was_due_at and me.text == line.as_it_was then
        holders = nil -- sent again soon: nothing changes
      end
    elseif simple and operation == ACQUIRE and owner ~= id and not found and command[5] == "mutex" and command[6] == 1
      and command[9] and patience and patience % 1 == 0 and patience > 0 and patience <= MAX - now
    then
      holders = sub(text, begins, from - 2)
      due_at = math.min(soonest, ends, now + patience)
      line[#line + 1] = { text = format('{"id":"%s","label":%s,"since":%.0f,"ttl":%.0f,"expires_at":%.0f%s%s}', id,
        command[4], now, patience, now + patience, last >= 0 and format(',"number":%.0f', last + 1) or "",
        command[12] and ',"listens":true' or "") }
      stored[#stored + 1] = "[" .. holders .. "]"
      outcome = { QUEUED, {}, ahead, #stored, due_at - now, false }
    end

    if holders then
      local texts_of = {}
      for place, waiter in ipairs(line) do
        texts_of[place] = waiter.text
      end
      after = format('{"fence":%.0f,"version":%.0f,"holders":[%s]%s%s}', fence, version + 1, holders,
        #line > 0 and ',"waiters":[' .. table.concat(texts_of, ",") .. "]" or "",
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
