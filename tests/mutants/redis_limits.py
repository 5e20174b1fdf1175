"""Mutants of the start limits in the script of the Redis store."""

from __future__ import annotations

from .runner import Mutant

SUITE = "tests/stores/test_conformance.py::TestValkey::"
LIMITS = "tests/stores/test_redis_limits.py::"
PLACES = (
    LIMITS + "test_every_place_says_what_the_runs_say[valkey-0]",
    LIMITS + "test_every_place_says_what_the_runs_say[valkey-1]",
)
NOTHING_LEFT = LIMITS + "test_when_all_runs_have_ended_nothing_of_their_places_is_left[valkey]"
ADMITTING = "stores/redis_admitting.lua"
STORED = "stores/redis_limits.lua"

REDIS_LIMITS = [
    Mutant(
        "the script lets nobody in when a run ends",
        "stores/redis_run_rules.lua",
        "  told = counts and all_admitting().promote_beside(run, terms, told) or told\n",
        "",
        (SUITE + "test_who_waits_is_let_in_in_order_in_the_step_in_which_a_place_becomes_free",),
    ),
    Mutant(
        "the script lets one more in than the limit says",
        ADMITTING,
        "  return crowd.admitted >= crowd.limit.max\n",
        "  return crowd.admitted > crowd.limit.max\n",
        (SUITE + "test_over_the_limit_a_start_is_rejected_and_leaves_nothing",),
    ),
    Mutant(
        "children of one record do not count each other",
        STORED,
        "  return line.stored - line.lost + line.more\n",
        "  return line.stored\n",
        (SUITE + "test_a_child_that_is_too_many_is_told_to_its_parent",),
    ),
    Mutant(
        "what a child brings to its parent is not told with the record",
        "stores/redis_runs.lua",
        "    if event.number > seen then\n",
        "    if false then\n",
        (LIMITS + "test_children_of_one_record_count_each_other_and_what_came_to_the_parent_is_told[valkey]",),
    ),
    Mutant(
        "a parent is recorded as it was before its children came",
        "stores/redis_run_rules.lua",
        "  run = run_of(id) -- a child",
        "  -- a child",
        (LIMITS + "test_children_of_one_record_count_each_other_and_what_came_to_the_parent_is_told[valkey]",),
    ),
    Mutant(
        "arrivals are written with fourteen digits",
        ADMITTING,
        "  run = altered(run, { arrival = digits(next_arrival(run)) })\n",
        "  run = altered(run, { arrival = tostring(next_arrival(run)) })\n",
        (LIMITS + "test_arrivals_of_one_moment_are_distinct_to_the_last_digit[valkey]",),
    ),
    Mutant(
        "a low priority comes before a high one where it is below zero",
        STORED,
        'return number < 0 and format("0%016.0f", MAX + number) or',
        'return number < 0 and format("0%016.0f", -number) or',
        (LIMITS + "test_every_priority_has_its_place_in_the_queue[valkey]",),
    ),
    Mutant(
        "only the first of a queue are looked at",
        STORED,
        "      if not member and #found < limit then\n",
        "      if not member then\n",
        (LIMITS + "test_one_who_may_come_in_is_found_behind_many_who_may_not[valkey]",),
    ),
    Mutant(
        "a run that was let in stays in the queue",
        STORED,
        '  write_many("ZREM", line.name, gone)\n',
        "",
        (*PLACES, NOTHING_LEFT),
    ),
    Mutant(
        "a place where nobody waits any more is still called crowded",
        STORED,
        'put(left > 0 and "SADD" or "SREM", CROWDED',
        'put("SADD", CROWDED',
        (NOTHING_LEFT,),
    ),
    Mutant(
        "starts are remembered for ever",
        STORED,
        '  put("PEXPIRE", name, digits(math.min(left, MAX / 1000)))\n',
        "",
        (NOTHING_LEFT,),
    ),
    Mutant(
        "all starts are kept",
        STORED,
        "  if past > limit.max then\n",
        "  if false then\n",
        (NOTHING_LEFT, *PLACES),
    ),
    Mutant(
        "a start takes the place of an earlier one of the same run",
        STORED,
        'name = digits(number_in(run, "fence")) .. " " .. run.id',
        "name = run.id",
        (LIMITS + "test_a_run_that_starts_twice_at_one_moment_is_counted_twice[valkey]",),
    ),
    Mutant(
        "one who waits and cannot be read holds all others up",
        STORED,
        '        elseif type(run) ~= "table" or not run.unreadable then\n',
        "        else\n",
        (LIMITS + "test_one_who_waits_and_cannot_be_read_holds_nobody_up[valkey]",),
    ),
    Mutant(
        "the script lets one in that was started by other terms",
        "stores/redis_run_rules.lua",
        '    if new[11] ~= (terms and terms.digest or "") then\n',
        "    if false then\n",
        (SUITE + "test_a_start_by_other_terms_than_the_latest_is_told_them",),
    ),
    Mutant(
        "the script puts older terms in the place of newer ones",
        ADMITTING,
        " or before.version > terms.version) then\n",
        ") then\n",
        (SUITE + "test_terms_of_a_lower_version_change_nothing",),
    ),
    Mutant(
        "the script gives a run that waits to a worker that names it",
        "stores/redis_run_claims.lua",
        ' and run.fields.status ~= "queued" then\n',
        " then\n",
        (SUITE + "test_one_who_waits_and_is_cancelled_leaves_at_once_and_a_signal_does_not_let_it_in",),
    ),
    Mutant(
        "the journal of a run that may not begin again is cut",
        "stores/redis_run_rules.lua",
        "    if not after then\n      return { LIMITED, NOBODY, verdict }\n",
        "    if not after then\n      forget_event(id, 1)\n      return { LIMITED, NOBODY, verdict }\n",
        (LIMITS + "test_one_that_may_not_begin_again_is_left_as_it_is_to_the_letter[valkey]",),
    ),
]
