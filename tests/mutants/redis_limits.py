"""Mutants of the limits of workflows in the Redis store."""

from __future__ import annotations

from .runner import Mutant

RUN_FAULTS = "tests/stores/test_redis_run_faults.py::"
SUITE = "tests/stores/test_conformance.py::TestValkey::"
LIMITS = "tests/stores/test_redis_limits.py::"
PLACES = (
    LIMITS + "test_the_indexes_of_limits_match_the_runs[valkey-0]",
    LIMITS + "test_the_indexes_of_limits_match_the_runs[valkey-1]",
)
NOTHING_LEFT = LIMITS + "test_when_all_runs_have_ended_the_indexes_of_limits_are_empty[valkey]"
WRITING, CODEC = "stores/redis/writing.py", "stores/redis/codec.py"

REDIS_LIMITS = [
    Mutant(
        "a low priority comes before a high one where it is below zero",
        CODEC,
        'return f"0{MAX + number:016d}" if',
        'return f"0{-number:016d}" if',
        (LIMITS + "test_the_queue_is_ordered_by_priority[valkey]",),
    ),
    Mutant(
        "a low priority comes before a high one",
        WRITING,
        "queue_member(one.rank, one.arrival, one.run)",
        "queue_member(-one.rank, one.arrival, one.run)",
        (LIMITS + "test_the_queue_is_ordered_by_priority[valkey]",),
    ),
    Mutant(
        "an admitted run stays in the queue",
        WRITING,
        '                removals.append(["ZREM", name, member])\n        for run in (before, after):\n',
        "                pass\n        for run in (before, after):\n",
        (*PLACES, NOTHING_LEFT),
    ),
    Mutant(
        "a limit key without a queue is still marked as queued",
        WRITING,
        '                        removals.append(["UNLESS", queue, "SREM", crowded, mark])\n',
        "                        pass\n",
        (NOTHING_LEFT,),
    ),
    Mutant(
        "a limit key with a queue is no longer marked as queued",
        "stores/redis/lua/write.lua",
        '  if not unless or redis.pcall("EXISTS", command[2]) == 0 then',
        "  if true then",
        (LIMITS + "test_newly_published_limits_admit_a_run_behind_an_admitted_one[valkey]",),
    ),
    Mutant(
        "a limit key with a queue is not marked as queued",
        WRITING,
        '                        additions.append(["SADD", crowded, mark])\n',
        "                        pass\n",
        (LIMITS + "test_removing_a_limit_admits_thousands_of_runs[valkey]",),
    ),
    Mutant(
        "starts are kept forever",
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
        (LIMITS + "test_starts_of_a_rate_over_a_long_period_are_kept_for_all_of_it[valkey]", *PLACES),
    ),
    Mutant(
        "a start replaces an earlier one of the same run",
        WRITING,
        'member = f"{changes.runs[start.run].fence} {number} {start.run}"',
        'member = f"{number} {start.run}"',
        (LIMITS + "test_a_run_that_starts_twice_at_one_moment_is_counted_twice[valkey]",),
    ),
    Mutant(
        "a missing run keeps its position in the queue",
        WRITING,
        '            if until is None:\n                removals.append(["ZREM", name, member])\n',
        "            if until is None:\n                pass\n",
        (LIMITS + "test_an_unreadable_queued_run_does_not_delay_others[valkey]",),
    ),
    Mutant(
        "a limit on starts may have no starts",
        CODEC,
        "        if limit.per and limit.max < 1:\n",
        "        if False:\n",
        (LIMITS + "test_published_limits_that_cannot_be_stored_are_refused[valkey-limits3-cannot-be-stored]",),
    ),
    Mutant(
        "an unreadable queued run delays all others",
        "rules/runs/admission.py",
        "                with suppress(RecordUnreadable):  # a damaged run must not block the others\n"
        "                    run = repo.run(name)\n",
        "                run = repo.run(name)\n",
        (LIMITS + "test_an_unreadable_queued_run_does_not_delay_others[valkey]",),
    ),
    Mutant(
        "a run with an unreadable run lock stops every claim",
        "rules/runs/transitions.py",
        "        if named:\n            raise\n",
        "        raise\n",
        (RUN_FAULTS + "test_a_run_with_an_unreadable_run_lock_is_not_claimed_and_hides_no_other[valkey]",),
    ),
]
