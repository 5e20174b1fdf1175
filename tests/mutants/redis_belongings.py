"""Mutants of the locks of runs in the script of the Redis store."""

from __future__ import annotations

from .runner import Mutant

SUITE = "tests/stores/test_conformance.py::TestValkey::"
BELONGINGS = "tests/stores/test_redis_belongings.py::"
NEWER = BELONGINGS + "test_locks_of_a_newer_version_are_taken_and_given_back_and_keep_their_fields[valkey]"
NEWER_HISTORY = (
    BELONGINGS + "test_a_random_history_with_locks_of_a_newer_version_has_the_answers_that_the_rules_say[valkey]"
)
SCRIPT = "stores/redis_belongings.lua"
REST = "stores/redis_rest.lua"

REDIS_BELONGINGS = [
    Mutant(
        "the script does not tell a run that a client has left it a lock",
        REST,
        "      tell(runs.offered(of_runs))\n",
        "",
        (SUITE + "test_a_client_and_a_run_exclude_each_other",),
    ),
    Mutant(
        "the script does not tell a run that another has left it a lock",
        "stores/redis_run_rules.lua",
        "    add(add(told, offered), belongings.tell(offered))\n",
        "    add(told, offered)\n",
        (SUITE + "test_who_comes_later_waits_in_order_and_is_offered_it_by_an_event",),
    ),
    Mutant(
        "a run that is offered a lock on the short way is not told",
        "stores/redis_queue.lua",
        '      and sub(first, 1, 4) ~= "run:"\n',
        "",
        (BELONGINGS + "test_a_run_that_waits_like_a_client_is_told_as_well[valkey]",),
    ),
    Mutant(
        "in the script the end of a run keeps its locks",
        "stores/redis_run_rules.lua",
        "  return has_locks and add(told, all_belongings().give_back(run)) or told\n",
        "  return told\n",
        (SUITE + "test_the_end_of_a_run_gives_everything_back", SUITE + "test_a_poisoned_run_gives_everything_back"),
    ),
    Mutant(
        "in the script a run that begins again keeps its locks",
        "stores/redis_run_rules.lua",
        "    told = add(add({}, told), all_belongings().give_back(run))\n",
        "",
        (SUITE + "test_a_run_that_begins_again_gives_everything_back",),
    ),
    Mutant(
        "the script carries out what a stale driver asks",
        "stores/redis_run_rules.lua",
        " or run.length ~= at then\n",
        " or run.length ~= at then\n    if run and asks then\n      all_belongings().ask(run, asks)\n    end\n",
        (
            SUITE + "test_a_driver_that_is_not_the_driver_takes_nothing",
            BELONGINGS + "test_a_refused_driver_s_asks_are_not_carried_out[valkey]",
        ),
    ),
    Mutant(
        "a record that fails has taken locks all the same",
        REST,
        "    put_back()\n",
        "",
        (BELONGINGS + "test_an_ask_for_a_lock_that_cannot_be_read_changes_nothing",),
    ),
    Mutant(
        "a record with asks takes the short way",
        "stores/redis_entries.lua",
        "    and command[12] == nil and command[13] == nil\n",
        "",
        (SUITE + "test_a_run_takes_a_free_lock_in_the_step_of_its_record",),
    ),
    Mutant(
        "a run whose child could not be started is called stuck on Redis",
        "stores/redis_run_rules.lua",
        "command[13] and #taken == 0 and #limited == 0",
        "command[13]",
        (SUITE + "test_a_run_whose_child_could_not_be_started_is_not_stuck",),
    ),
    Mutant(
        "a run that goes on is still called stuck",
        "stores/redis_entries.lua",
        '      and (found[5] or "") == ""\n',
        "",
        (BELONGINGS + "test_entries_of_a_run_that_holds_a_lock_take_the_short_way[valkey]",),
    ),
    Mutant(
        "a claim tells what is only offered as held",
        SCRIPT,
        "    if holder.id == attempt and not holder.offered then\n",
        "    if holder.id == attempt then\n",
        (SUITE + "test_a_claim_tells_what_the_run_still_holds",),
    ),
    Mutant(
        "a damaged run keeps others from giving back",
        SCRIPT,
        '  if not done and not (type(found) == "table" and found.unreadable) then\n',
        "  if not done then\n",
        (BELONGINGS + "test_a_run_that_cannot_be_read_keeps_nobody_from_giving_back[valkey]",),
    ),
    Mutant(
        "what the client has decided about a lock counts whatever became of it",
        SCRIPT,
        "    local known = decided[question .. record.foreign]\n",
        "    local _, known = next(decided)\n",
        (
            BELONGINGS + "test_a_newer_lock_that_somebody_changes_meanwhile_is_decided_anew[valkey]",
            NEWER,
        ),
    ),
    Mutant(
        "what comes after a question to the client does not wait for it",
        REST,
        "        ends_here = true\n",
        "",
        (NEWER, NEWER_HISTORY),
    ),
    Mutant(
        "a run is told before what the client has to decide was written",
        REST,
        "        error({ wait = true }, 0) -- what came before must have been written\n",
        "",
        (BELONGINGS + "test_a_run_is_told_of_its_locks_in_the_order_of_the_batch[valkey]",),
    ),
    Mutant(
        "a hint goes out for the attempt of a run",
        REST,
        "      if not is_of_run(id) then\n",
        "      if true then\n",
        (BELONGINGS + "test_a_worker_hears_that_its_run_was_offered_a_lock_and_nobody_else_does[valkey]",),
    ),
]
