-- The stories about one run: rules/runs.py and rules/run.py, line by line. Put into redis_runs.lua.
--
-- Read those for what they mean; this says only how they are done here. A story returns its outcome, whose second place
-- tells whom to wake; nothing is written before it has returned. What concerns limits is made when it is needed.

local STARTED, RUN_TAKEN, RECORDED, REFUSED, POSTED, LIMITED, TERMS_DIFFER = 40, 41, 44, 45, 46, 54, 55
local PARK, FINISH = 1, 2
local CANCELLED_EARLY = '{"type":"RunCancelled","message":"it was cancelled before it began"}'
local ADMITTED, UNKNOWN = { "admit", "", "", 0, false }, { "reject", "", "", 0, false }

local limits, belongings, all_admitting

local function make_limits()
  --@include redis_limits.lua
end

local function all_limits()
  limits = limits or make_limits()
  return limits
end

local function add(told, more)
  for _, id in ipairs(more) do
    told[#told + 1] = id
  end
  return told
end

local function hint_for(worker, id)
  return match(worker, "^[^.]*") .. ".run/" .. id
end

-- Whom to tell of a run: its driver, else a worker that could drive it, now one and now another. `gone` is on its way
-- out.
local function wake(run, gone)
  local worker = text_in(run, "worker")
  if worker ~= "" then
    return run.posted > 0 and { hint_for(worker, run.id) } or NOBODY
  end
  local due_at = moment_in(run, "due_at")
  if not due_at or due_at > now then
    return NOBODY
  end
  local able = {}
  for _, one in ipairs(all_workers()) do
    if one.types[run.fields.type] and one.id ~= gone and lives(one.id) then
      able[#able + 1] = one.id
    end
  end
  if #able == 0 then
    return NOBODY
  end
  local sum = 0
  for place = 1, #run.id do
    sum = sum + string.byte(run.id, place)
  end
  return { hint_for(able[sum % #able + 1], run.id) }
end

local function next_fence(run)
  return digits(math.max(number_in(run, "fence") + 1, now))
end

local function claimed(run, worker, kind)
  if text_in(run, "worker") == worker then
    return run
  end
  local begun = moment_in(run, "started_at")
  return altered(run, {
    status = "running", type = kind, worker = worker, fence = next_fence(run), due_at = "",
    lives = digits(number_in(run, "lives") + 1), started_at = begun and digits(begun) or NOW,
  })
end

local function buried(run, deaths)
  return altered(run, { status = "pending", worker = "", due_at = AT_ONCE, deaths = digits(deaths) })
end

local function is_free(run)
  return not lives(text_in(run, "worker")) and not held(run_key(run))
end

local function refused(run)
  return { REFUSED, NOBODY, run and shown_run(run), driver_of(run) }
end

-- ------------------------------------------------------------------------------------------ the inbox

local function number_of_event(id, key)
  for _, event in ipairs(arrivals[id] or NOBODY) do
    if event.key == key then
      return event.number
    end
  end
  return tonumber(ask(id, "HGET", INBOX_KEYS .. id, key) or nil)
end

-- Put an event into an inbox. `body` is its JSON without its number and its time.
local function put_event(run, body, key)
  local id, number = run.id, digits(run.posted + 1)
  local text = '{"number":' .. number .. "," .. sub(body, 2, -2) .. ',"at":' .. NOW .. "}"
  arrivals[id] = arrivals[id] or {}
  table.insert(arrivals[id], { number = run.posted + 1, key = key, text = text })
  later(function()
    put("RPUSH", INBOX .. id, text)
    if key ~= "" then
      put("HSET", INBOX_KEYS .. id, key, number)
    end
  end)
  local after = altered(run, NOBODY)
  after.posted = run.posted + 1
  return after
end

-- The record after an event came: a run that waits for one is due at once.
local function posted(run, body, key, cancels)
  local after, due_at = put_event(run, body, key), moment_in(run, "due_at")
  if run.fields.status == "suspended" and (not due_at or due_at >= 0) then
    after.fields.due_at = AT_ONCE
  end
  if cancels then
    after.fields.cancelling = "1"
  end
  return save_run(after)
end

local function all_belongings()
  belongings = belongings or make_belongings(add, wake, posted)
  return belongings
end

-- End a run: tell its parent and those who watch it, let in who waited for its places, give back its locks.
local function finish(run, status, result)
  local has_locks = text_in(run, "locks") ~= ""
  local watchers, parent_id = text_in(run, "watchers"), text_in(run, "parent")
  local told = watchers ~= "" and add({}, json_in(run.id, watchers)) or {}
  local counts = text_in(run, "places") ~= "" and run.fields.status ~= "queued"
  local terms = counts and all_limits().terms_of(workflow_of(run.fields.type))
  local parent = parent_id ~= "" and parent_id ~= run.id and run_of(parent_id)
  if parent and LIVES[parent.fields.status] then
    local key = "ended/" .. run.id .. "/" .. digits(number_in(run, "fence"))
    if not number_of_event(parent_id, key) then
      local payload = '{"status":"' .. status .. '","result":' .. result .. "}"
      local body = '{"kind":"child","name":' .. quoted(run.id) .. ',"payload":' .. quoted(payload) .. ',"key":'
        .. quoted(key) .. "}"
      add(told, wake(posted(parent, body, key)))
    end
  end
  save_run(altered(run, {
    status = status, result = result, ended_at = NOW, worker = "", due_at = "", deaths = "", watchers = "",
    locks = run.fields.locks and "", stuck = run.fields.stuck and "",
  }))
  told = counts and all_admitting().promote_beside(run, terms, told) or told
  return has_locks and add(told, all_belongings().give_back(run)) or told
end

-- Tell a living run to stop. One of which no code has run ends at once.
local function cancel(run, body, key)
  local status = run.fields.status
  if status == "queued" or (status == "pending" and not moment_in(run, "started_at")) then
    return finish(put_event(run, body, key), "cancelled", CANCELLED_EARLY)
  end
  return wake(posted(run, body, key, true))
end

-- {24, run, event, key, kind}
local function post(command)
  local id, body, key = text_of(command[2]), text_of(command[3]), text_of(command[4])
  local run = run_of(id)
  local number = run and key ~= "" and number_of_event(id, key)
  if number then
    return { POSTED, NOBODY, number, false, shown_run(run) }
  elseif not run or not LIVES[run.fields.status] then
    return { REFUSED, NOBODY, run and shown_run(run) or false, "" }
  end
  local told = command[5] == "cancel" and cancel(run, body, key) or wake(posted(run, body, key))
  return { POSTED, told, run.posted + 1, true, shown_run(run_of(id)) }
end

-- ------------------------------------------------------------------------------------------ start and record

-- A run without places is let in, to its starter or for whoever claims it.
local function enter(run, worker)
  if text_in(run, "places") ~= "" then
    return all_admitting().enter(run, worker, false)
  end
  run = save_run(worker ~= "" and claimed(run, worker, run.fields.type) or run)
  return run, false, wake(run)
end

-- {id, type, input, request, key, its name among the keys, parent, root, attributes, places, terms, priority}
-- Returns what it is, the run that is there now, whether it is new, whom to tell, and the verdict.
local function start(new, worker)
  for place = 1, 11 do
    text_of(new[place])
  end
  local priority = whole(new[12], -MAX, MAX)
  local id, kind, request, key, key_name = new[1], new[2], new[4], new[5], new[6]
  local known = run_of(id)
  if known and text_in(known, "request") == request then
    return STARTED, known, true, NOBODY, false
  end
  local found = key ~= "" and run_with_key(key_name)
  local same = found and run_of(found)
  if same then
    return STARTED, same, false, NOBODY, false
  elseif known then
    return RUN_TAKEN, known
  elseif worker ~= "" and not works(worker) then
    return WORKER_GONE
  elseif new[7] == "" then -- a child is counted where its parent's code says
    local terms = known_terms(workflow_of(kind))
    if new[11] ~= (terms and terms.digest or "") then
      return TERMS_DIFFER, terms
    end
  end
  local fields = {
    type = kind, status = "pending", created_at = NOW, due_at = AT_ONCE, request = request, root = new[8],
  }
  for name, value in pairs({ key = key, parent = new[7], attributes = new[9], places = new[10] }) do
    if value ~= "" then
      fields[name] = value
    end
  end
  if priority ~= 0 then
    fields.priority = digits(priority)
  end
  local run, verdict, told = enter({ id = id, fields = fields, length = 1, posted = 0 }, worker)
  if not run then
    return LIMITED, nil, false, told, verdict
  elseif run.id ~= id then
    return STARTED, run, false, told, verdict
  end
  if key ~= "" then
    made_keys[key_name] = id
  end
  later(function()
    if key ~= "" then
      put("HSET", BY_KEY, key_name, id)
    end
    put("RPUSH", JOURNAL .. id, new[3])
  end)
  return STARTED, run, true, told, verdict
end

-- {21, new, worker}
local function start_run(command)
  local kind, run, is_fresh, told, verdict = start(command[2], text_of(command[3]))
  if kind == WORKER_GONE then
    return WORKER_GONE
  elseif kind == RUN_TAKEN then
    return { RUN_TAKEN, NOBODY, shown_run(run) }
  elseif kind == TERMS_DIFFER then
    return { TERMS_DIFFER, NOBODY, run and keep(run.text) or false }
  elseif kind == LIMITED then
    return { LIMITED, NOBODY, verdict }
  end
  return { STARTED, told, shown_run(run), is_fresh, verdict }
end

local function check_record(entries, ending, attributes)
  for _, entry in ipairs(entries) do
    text_of(entry)
  end
  if attributes ~= nil then
    text_of(attributes)
  end
  if ending and ending[1] == FINISH then
    text_of(ending[3])
    if not ENDS[ending[2]] then
      error({ bad = "no run ends in such a way" }, 0)
    end
  elseif ending and ending[2] ~= nil then
    whole(ending[2], -MAX, MAX)
  end
end

local function recorded_again(run, fence, seen, ending, children, asks)
  local taken, limited = {}, {}
  for _, new in ipairs(children) do
    local known = run_of(text_of(new[1]))
    if not known then
      limited[#limited + 1] = { new[1], UNKNOWN }
    elseif text_in(known, "request") ~= new[4] then
      taken[#taken + 1] = new[1]
    end
  end
  local done = not ending or run.fields.status ~= "running" or number_in(run, "fence") ~= fence
  local said = asks and all_belongings().said_before(run.id, asks) or NOBODY
  return { RECORDED, NOBODY, done, taken, kept_events(run.id, seen), limited, said }
end

-- {23, run, fence, at, request, entries, seen, ending, children, attributes, swap, asks, stuck}: what nearly every
-- record is has been done in redis.lua already. With a swap a slot is written too, or nothing at all.
local function record(command)
  local id, fence, at = text_of(command[2]), whole(command[3], -MAX, MAX), whole(command[4], -MAX, MAX)
  local request, entries, seen = text_of(command[5]), command[6], whole(command[7], -MAX, MAX)
  local ending, children, attributes, asks = command[8], command[9], command[10], command[12]
  check_record(entries, ending, attributes)
  local run = run_of(id)
  if run and text_in(run, "last") == request then
    return recorded_again(run, fence, seen, ending, children, asks)
  elseif not run or run.fields.status ~= "running" or number_in(run, "fence") ~= fence or run.length ~= at then
    return refused(run or false)
  end
  if command[11] then
    local write_it, conflict = all_slots().with_record(command[11], id .. ":" .. request)
    if conflict then
      return conflict
    end
    later(write_it)
  end
  local told, taken, limited, fields = {}, {}, {}, { last = request, attributes = attributes }
  if #entries > 0 or ending then
    fields.deaths = ""
  end
  later(function()
    write_many("RPUSH", JOURNAL .. id, entries)
  end)
  for _, new in ipairs(children) do
    local kind, child, _, more, verdict = start(new, "")
    add(told, more or NOBODY)
    if kind == RUN_TAKEN then
      taken[#taken + 1] = new[1]
    elseif kind == LIMITED or (kind == STARTED and child.id ~= new[1]) then
      limited[#limited + 1] = { new[1], verdict or ADMITTED }
    end
  end
  local said = NOBODY
  if asks then
    local offered
    said, fields.locks, offered = all_belongings().ask(run, asks)
    add(add(told, offered), belongings.tell(offered))
  end
  local stays = command[13] and #taken == 0 and #limited == 0
  for _, one in ipairs(said) do -- who was answered is not stuck
    stays = stays and (one[2] == "queued" or one[2] == "given")
  end
  if stays or run.fields.stuck then
    fields.stuck = stays and "[" .. digits(seen) .. "," .. text_of(command[13]) .. "]" or ""
  end
  run = run_of(id) -- a child that came may have had it cancelled, or a lock may be offered to it
  local after, done = altered(run, fields), not ending or run.posted <= seen
  after.length = run.length + #entries
  if ending and done and ending[1] == FINISH then
    add(told, finish(after, ending[2], ending[3]))
  elseif ending and done then
    local due_at = ending[2] and (ending[2] <= now and AT_ONCE or digits(ending[2])) or ""
    add(told, wake(save_run(altered(after, { status = "suspended", worker = "", due_at = due_at }))))
  else
    save_run(after)
  end
  return { RECORDED, told, done, taken, run.posted > seen and kept_events(id, seen), limited, said }
end

-- ------------------------------------------------------------------------------------------ again

-- An event is forgotten: its place stays, its key is free.
local function forget_event(id, number)
  for _, event in ipairs(arrivals[id] or NOBODY) do
    if event.number == number then
      return later(function()
        put("LSET", INBOX .. id, digits(number - 1), "")
      end)
    end
  end
  local text = ask(id, "LINDEX", INBOX .. id, digits(number - 1))
  if not text or text == "" then
    return
  end
  local key = json_in(id, text).key
  later(function()
    put("LSET", INBOX .. id, digits(number - 1), "")
    if type(key) == "string" then
      put("HDEL", INBOX_KEYS .. id, key)
    end
  end)
end

-- {25, run, fence, keep, request, forget, fresh}
local function revive(command)
  local id, fence, request = text_of(command[2]), whole(command[3], -MAX, MAX), text_of(command[5])
  local run, length = run_of(id), whole(command[4], -MAX, MAX)
  if run and text_in(run, "last") == request then
    return { POSTED, NOBODY, run.length, true, shown_run(run) }
  elseif not run or number_in(run, "fence") ~= fence or not is_free(run) then
    return refused(run or false)
  end
  length = math.max(1, math.min(length, run.length))
  local after = altered(run, {
    status = "pending", worker = "", fence = next_fence(run), due_at = AT_ONCE, deaths = "", last = request,
    ended_at = "", started_at = command[7] and "" or run.fields.started_at,
  })
  after.fields.result, after.fields.cancelling, after.length = nil, nil, length
  after.fields.locks, after.fields.stuck = nil, nil
  local told, verdict
  if text_in(run, "places") ~= "" and not LIVES[run.fields.status] then
    after, verdict, told = all_admitting().enter(after, "", true)
    if not after then
      return { LIMITED, NOBODY, verdict }
    end
  else -- it has its place, in the queue or beyond
    if run.fields.status == "queued" then
      after.fields.status, after.fields.due_at = "queued", ""
    end
    told = wake(save_run(after))
  end
  if text_in(run, "locks") ~= "" then
    told = add(add({}, told), all_belongings().give_back(run))
  end
  for _, number in ipairs(command[6]) do
    if whole(number, -MAX, MAX) >= 1 and number <= run_of(id).posted then
      forget_event(id, number)
    end
  end
  if length < run.length then
    later(function()
      put("LTRIM", JOURNAL .. id, "0", digits(length - 1))
    end)
  end
  return { POSTED, told, length, true, shown_run(after) }
end

-- ------------------------------------------------------------------------------------------ limits

local admitting

local function make_admitting()
  --@include redis_admitting.lua
end

all_admitting = function()
  admitting = admitting or make_admitting()
  return admitting
end

-- {35, workflow, digest, terms as JSON}
local function publish_terms(command)
  return all_admitting().publish(text_of(command[2]), text_of(command[3]), text_of(command[4]))
end

-- {36, workflow}
local function see_terms(command)
  local known = known_terms(text_of(command[2]))
  return { TERMS_DIFFER, NOBODY, known and keep(known.text) or false }
end

-- ------------------------------------------------------------------------------------------ workers

-- {33, worker, what it is as JSON, without since}
local function enlist(command)
  local worker, text = text_of(command[2]), text_of(command[3])
  if not lives(worker) then
    return WORKER_GONE
  end
  later(function()
    put("HSET", WORKERS, worker, sub(text, 1, -2) .. ',"since":' .. NOW .. "}")
    workers = nil
  end)
  return ENLISTED
end

return {
  [21] = start_run, [23] = record, [24] = post, [25] = revive, [33] = enlist, [35] = publish_terms,
  [36] = see_terms, all_limits = all_limits, all_belongings = all_belongings,
  add = add, wake = wake, claimed = claimed, buried = buried, finish = finish,
}
