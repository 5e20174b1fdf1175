-- Who comes in and who goes: rules/admission.py and rules/admitting.py, line by line. Put into redis_run_rules.lua,
-- whose names it uses.
--
-- A verdict is {what, limit, key, max, when to try again or false}; false stands for one who is admitted.

local TERMS_PUBLISHED = 56
local NOT_ADMITTED = '{"type":"WorkflowConcurrencyLimitExceededError","message":"it was over the limit '
local WHEN_IT_CAME = ' when it came"}'
local book = all_limits()
local line_of, count, group_of = book.line_of, book.count, book.group_of

-- ------------------------------------------------------------------------------------------ how full

local function is_full(crowd)
  if crowd.limit.per ~= 0 then
    return crowd.free_at > now
  end
  return crowd.admitted >= crowd.limit.max
end

-- How full the limits are that count this run. A limit that is not among the terms counts nobody.
local function crowds_of(run, terms)
  local found, workflow = {}, workflow_of(run.fields.type)
  for _, place in ipairs(book.places_of(run)) do
    local limit = terms.limits[place.limit]
    if limit and limit.per ~= 0 then
      local group = group_of(workflow, place)
      local after, last = book.starts_after(group), book.nth_start(group, limit.max)
      -- A clock that was set back makes past starts look like later ones: it costs one span at most.
      local latest = now + limit.per * (1 + math.floor(after / limit.max))
      found[#found + 1] = {
        limit = limit, place = place, group = group, queued = after,
        free_at = last and math.min(last + limit.per, latest) or 0,
      }
    elseif limit then
      found[#found + 1] = {
        limit = limit, place = place, admitted = count(line_of(workflow, place, false)), free_at = 0,
        queued = limit.max_queue and count(line_of(workflow, place, true)) or 0,
      }
    end
  end
  return found
end

-- What happens to a start: the strictest answer of those that are full.
local function decide(crowds)
  local first, crammed
  for _, crowd in ipairs(crowds) do
    if is_full(crowd) then
      if not first or book.answers[crowd.limit.on_excess] < book.answers[first.limit.on_excess] then
        first = crowd
      end
      if not crammed and crowd.limit.max_queue and crowd.queued >= crowd.limit.max_queue then
        crammed = crowd
      end
    end
  end
  if not first then
    return false
  end
  local what = first.limit.on_excess
  if what == "queue" and crammed then
    first, what = crammed, "queue_full"
  end
  local retry_in = first.limit.per ~= 0 and math.max(0, first.free_at - now)
  return { what, first.place.limit, first.place.key, first.limit.max, retry_in }
end

-- Whether a run must wait for the end of another. Limits on starts only tell it when it may begin.
local function kept_out(crowds)
  for _, crowd in ipairs(crowds) do
    if crowd.limit.per == 0 and is_full(crowd) then
      return true
    end
  end
  return false
end

-- ------------------------------------------------------------------------------------------ in

-- Count a start, and let the run in: due at once, or when the limits on starts allow it.
local function admitted(run, crowds)
  local begins = 0
  for _, crowd in ipairs(crowds) do
    begins = math.max(begins, crowd.free_at)
  end
  for _, crowd in ipairs(crowds) do
    if crowd.limit.per ~= 0 then
      book.note_start(crowd.group, crowd.limit, math.max(begins, now), run)
    end
  end
  return altered(run, { status = "pending", due_at = begins > now and digits(begins) or AT_ONCE })
end

-- A number that is higher than those of all who came before.
local function next_arrival(run)
  local workflow, rank, highest = workflow_of(run.fields.type), -number_in(run, "priority"), now
  for _, place in ipairs(book.places_of(run)) do
    highest = math.max(highest, book.last_arrival(line_of(workflow, place, false), 0) + 1,
      book.last_arrival(line_of(workflow, place, true), rank) + 1)
  end
  return highest
end

-- Who makes room: the oldest that was let in and is not stopping yet; else who has waited, and was first.
local function victim_of(workflow, place, newcomer)
  for _, queued in ipairs({ false, true }) do
    for run in book.each_in(line_of(workflow, place, queued)) do
      if run.id ~= newcomer and text_in(run, "cancelling") == "" then
        return run
      end
    end
  end
  return nil
end

-- It comes before all who wait, and for it one of those who are there is told to stop.
local function replace_oldest(run, workflow, place)
  local fields = { status = "queued", due_at = "" }
  local first = book.each_in(line_of(workflow, place, true))()
  if first then
    fields.arrival = digits(number_in(first, "arrival") - 1)
    if number_in(first, "priority") > number_in(run, "priority") then
      fields.priority = digits(number_in(first, "priority"))
    end
  end
  save_run(altered(run, fields))
  local victim = victim_of(workflow, place, run.id)
  return victim and cancel(victim, '{"kind":"cancel"}', "") or NOBODY
end

-- Let a run in, or do with it what the limit says that it is over. Returns the run that is there now (nil: none), the
-- verdict, and whom to tell. One that comes `again` is not ended for it.
local function enter(run, worker, again)
  local workflow = workflow_of(run.fields.type)
  local crowds = crowds_of(run, book.terms_of(workflow))
  local verdict = decide(crowds)
  local what = verdict and verdict[1]
  local place = verdict and { limit = verdict[2], key = verdict[3] }
  if what == "reject" or what == "queue_full" or (again and (what == "skip" or what == "cancel_newest")) then
    return nil, verdict, NOBODY
  elseif what == "skip" then
    return book.each_in(line_of(workflow, place, false))(), verdict, NOBODY
  end
  run = altered(run, { arrival = digits(next_arrival(run)) })
  if what == "cancel_newest" then
    run.fields.status = "queued"
    local told = finish(run, "cancelled", NOT_ADMITTED .. place.limit .. WHEN_IT_CAME)
    return run_of(run.id), verdict, told
  elseif not kept_out(crowds) then
    run = admitted(run, crowds)
    if worker ~= "" and moment_in(run, "due_at") < 0 then
      run = claimed(run, worker, run.fields.type)
    end
    return save_run(run), verdict, wake(run)
  elseif what ~= "cancel_oldest" then
    return save_run(altered(run, { status = "queued", due_at = "" })), verdict, NOBODY
  end
  local told = replace_oldest(run, workflow, place)
  return run_of(run.id), verdict, told
end

-- Let in those who wait at these places, as many as there is room for.
local function promote(workflow, places, terms, told)
  for _, place in ipairs(places) do
    local limit, let_in = terms.limits[place.limit], line_of(workflow, place, false)
    local waiting = book.each_in(line_of(workflow, place, true))
    while not (limit and (limit.per ~= 0 or count(let_in) >= limit.max)) do
      local run = waiting()
      if not run then
        break
      end
      local crowds = crowds_of(run, terms)
      if not kept_out(crowds) then
        add(told, wake(save_run(admitted(run, crowds))))
      end
    end
  end
  return told
end

-- Likewise, at the places of a run that has ended.
local function promote_beside(run, terms, told)
  return promote(workflow_of(run.fields.type), book.places_of(run), terms, told)
end

-- ------------------------------------------------------------------------------------------ terms

-- Make terms known, unless newer ones are; who has room by them is let in at once.
local function publish(workflow, digest, text)
  local terms, known = book.read_terms(text), known_terms(workflow)
  if not terms or not find(digest, "^%x*$") then
    error({ bad = "such terms cannot be kept: a number in them may be too large" }, 0)
  end
  local before = known and book.terms_of(workflow)
  if known and ((known.digest == digest and before.version == terms.version) or before.version > terms.version) then
    return { TERMS_PUBLISHED, NOBODY, false, keep(known.text) }
  end
  later(function()
    put("HSET", TERMS, workflow, '{"digest":"' .. digest .. '","terms":' .. text .. "}")
    forget_terms(workflow)
  end)
  return { TERMS_PUBLISHED, promote(workflow, book.crowded(workflow), terms, {}), true, false }
end

return { publish = publish, enter = enter, promote_beside = promote_beside }
