"""Mutants of the limits of workflows in the Redis store."""

from __future__ import annotations

from .runner import Mutant

RUN_FAULTS = "tests/stores/test_redis_run_faults.py::"
SUITE = "tests/stores/test_conformance.py::TestValkey::"
LIMITS = "tests/stores/test_redis_limits.py::"
PLACES = (
    LIMITS + "test_every_place_says_what_the_runs_say[valkey-0]",
    LIMITS + "test_every_place_says_what_the_runs_say[valkey-1]",
)
NOTHING_LEFT = LIMITS + "test_when_all_runs_have_ended_nothing_of_their_places_is_left[valkey]"
WRITING, CODEC = "stores/redis/writing.py", "stores/redis/codec.py"

REDIS_LIMITS = [
    Mutant(
        "a low priority comes before a high one where it is below zero",
        CODEC,
        'return f"0{MAX + number:016d}" if',
        'return f"0{-number:016d}" if',
        (LIMITS + "test_every_priority_has_its_place_in_the_queue[valkey]",),
    ),
    Mutant(
        "a low priority comes before a high one",
        WRITING,
        "queue_member(one.rank, one.arrival, one.run)",
        "queue_member(-one.rank, one.arrival, one.run)",
        (LIMITS + "test_every_priority_has_its_place_in_the_queue[valkey]",),
    ),
    Mutant(
        "a run that was let in stays in the queue",
        WRITING,
        '                removals.append(["ZREM", name, member])\n        for run in (before, after):\n',
        "                pass\n        for run in (before, after):\n",
        (*PLACES, NOTHING_LEFT),
    ),
    Mutant(
        "a place where nobody waits any more is still called crowded",
        WRITING,
        '                        removals.append(["UNLESS", queue, "SREM", crowded, mark])\n',
        "                        pass\n",
        (NOTHING_LEFT,),
    ),
    Mutant(
        "a place where others still wait is no longer called crowded",
        "stores/redis/lua/write.lua",
        '  if not unless or redis.pcall("EXISTS", command[2]) == 0 then',
        "  if true then",
        (LIMITS + "test_who_waits_behind_one_that_was_let_in_is_found_by_new_terms[valkey]",),
    ),
    Mutant(
        "a place where runs wait is not called crowded",
        WRITING,
        '                        additions.append(["SADD", crowded, mark])\n',
        "                        pass\n",
        (LIMITS + "test_thousands_are_let_in_when_the_limit_is_taken_away[valkey]",),
    ),
    Mutant(
        "starts are remembered for ever",
        WRITING,
        '            additions.append(["PEXPIRE", name, str(left)])\n',
        "",
        (NOTHING_LEFT,),
    ),
    Mutant(
        "all starts are kept",
        WRITING,
        '            additions.append(["ZREMRANGEBYRANK", name, "0", str(-(start.limit.max + to_come) - 1)])\n',
        "",
        (NOTHING_LEFT, *PLACES),
    ),
    Mutant(
        "starts that are to come are forgotten",
        WRITING,
        "str(-(start.limit.max + to_come) - 1)])\n",
        "str(-start.limit.max - 1)])\n",
        (LIMITS + "test_starts_of_a_long_span_are_kept_for_all_of_it[valkey]", *PLACES),
    ),
    Mutant(
        "a start takes the place of an earlier one of the same run",
        WRITING,
        'member = f"{changes.runs[start.run].fence} {number} {start.run}"',
        'member = f"{number} {start.run}"',
        (LIMITS + "test_a_run_that_starts_twice_at_one_moment_is_counted_twice[valkey]",),
    ),
    Mutant(
        "a run that is not there keeps its place in the queue",
        WRITING,
        '            if until is None:\n                removals.append(["ZREM", name, member])\n',
        "            if until is None:\n                pass\n",
        (LIMITS + "test_one_who_waits_and_cannot_be_read_holds_nobody_up[valkey]",),
    ),
    Mutant(
        "a limit on starts may have no starts",
        CODEC,
        "        if limit.per and limit.max < 1:\n",
        "        if False:\n",
        (LIMITS + "test_terms_that_cannot_be_kept_are_refused[valkey-limits3-cannot-be-stored]",),
    ),
    Mutant(
        "one who waits and cannot be read holds all others up",
        "rules/runs/admission.py",
        "                with suppress(RecordUnreadable):  # a damaged run must not block the others\n"
        "                    run = repo.run(name)\n",
        "                run = repo.run(name)\n",
        (LIMITS + "test_one_who_waits_and_cannot_be_read_holds_nobody_up[valkey]",),
    ),
    Mutant(
        "a child that kills its workers ends by half where its parent cannot be read",
        "rules/runs/transitions.py",
        "        read_for_end(repo, run)\n",
        "        pass\n",
        (RUN_FAULTS + "test_a_child_whose_parent_cannot_be_read_is_not_ended_by_half[valkey]",),
    ),
    Mutant(
        "a run whose outside lock cannot be read stops every claim",
        "rules/runs/transitions.py",
        "            if runs:\n                raise\n",
        "            raise\n",
        (RUN_FAULTS + "test_a_run_whose_outside_lock_cannot_be_read_is_left_alone_and_hides_nobody[valkey]",),
    ),
]
