"""Mutants of the locks of runs in the Redis store."""

from __future__ import annotations

from .runner import Mutant

RUN_FAULTS = "tests/stores/test_redis_run_faults.py::"
SUITE = "tests/stores/test_conformance.py::TestValkey::"
LOCKS_OF_RUNS = "tests/stores/test_redis_run_locks.py::"

REDIS_LOCKS_OF_RUNS = [
    Mutant(
        "a run that is offered a lock by the fast path gets no event",
        "stores/redis/lua/queue.lua",
        '      and sub(line[head].id, 1, 4) ~= "run:"\n',
        "",
        (LOCKS_OF_RUNS + "test_a_run_that_waits_like_a_client_gets_an_event_too[valkey]",),
    ),
    Mutant(
        "a run gets no event when a client releases its lock",
        "stores/decisions.py",
        "                hints = notify_offered(self.repository, self.now, outcome.notified)\n",
        "                hints = ()\n",
        (SUITE + "test_a_client_and_a_run_exclude_each_other",),
    ),
    Mutant(
        "the worker of a run is not notified when a client releases the lock",
        "stores/redis/record_source.py",
        "woken_among((*woken, *hints))",
        "woken_among(woken)",
        (LOCKS_OF_RUNS + "test_only_the_worker_of_a_run_is_notified_of_an_offer_to_the_run[valkey]",),
    ),
    Mutant(
        "a released lock stays in the record of the run",
        "stores/redis/writing.py",
        '                removals.append(["HDEL", layout.run(after.id), *gone])\n',
        "                pass\n",
        (LOCKS_OF_RUNS + "test_a_run_that_ends_or_is_retried_leaves_no_lock_field_behind[valkey]",),
    ),
    Mutant(
        "a lock without waiters stays in the index of due records",
        "stores/redis/writing.py",
        '                removals.append(["ZREM", layout.due, key])\n            else',
        "                pass\n            else",
        (LOCKS_OF_RUNS + "test_a_waiting_run_is_settled_with_due_records[valkey]",),
    ),
    Mutant(
        "a lock that a run has acquired is not listed",
        "stores/redis/writing.py",
        '            additions.append(["ZADD", layout.index, "0", key])\n',
        "",
        (LOCKS_OF_RUNS + "test_the_layout_of_locks_of_runs_is_this_one[valkey]",),
    ),
    Mutant(
        "a failed record has acquired locks",
        "stores/decisions.py",
        "        except Exception as error:  # a bad command fails alone\n"
        "            outcome = failed(command, error)\n            self.repository.drop()\n",
        "        except Exception as error:  # a bad command fails alone\n"
        "            outcome = failed(command, error)\n",
        (LOCKS_OF_RUNS + "test_a_request_for_an_unreadable_lock_changes_nothing",),
    ),
    Mutant(
        "a lock request may have a number beyond the precision of Lua",
        "stores/redis/codec.py",
        "    for number, _ in run.locks:\n        score(number)\n",
        "",
        (LOCKS_OF_RUNS + "test_numbers_that_are_too_large_or_not_whole_are_refused[valkey]",),
    ),
    Mutant(
        "a record with lock requests uses the fast path",
        "stores/redis/fast_path.py",
        '"entries", "seen", "then"},',
        '"entries", "seen", "then", "lock_requests"},',
        (SUITE + "test_a_run_acquires_a_free_lock_in_the_same_step_as_its_record",),
    ),
    Mutant(
        "a record with a slot uses the fast path",
        "stores/redis/fast_path.py",
        '"entries", "seen", "then"},',
        '"entries", "seen", "then", "swap"},',
        (SUITE + "test_a_slot_is_written_with_the_record",),
    ),
    Mutant(
        "a stuck run is recorded by the fast path",
        "stores/redis/fast_path.py",
        '"entries", "seen", "then"},',
        '"entries", "seen", "then", "stuck"},',
        (LOCKS_OF_RUNS + "test_the_layout_of_locks_of_runs_is_this_one[valkey]",),
    ),
    Mutant(
        "a run that continues still counts as stuck",
        "stores/redis/lua/entries.lua",
        "      and not found[4] and not found[5]\n",
        "      and not found[4]\n",
        (LOCKS_OF_RUNS + "test_entries_of_a_run_that_holds_a_lock_use_the_fast_path[valkey]",),
    ),
    Mutant(
        "a run that continues keeps its crash count",
        "stores/redis/lua/entries.lua",
        "      and not found[4] and not found[5]\n",
        "      and not found[5]\n",
        (RUN_FAULTS + "test_new_entries_reset_the_crash_count_of_a_run[valkey]",),
    ),
    Mutant(
        "an unreadable worker prevents an event of a run",
        "rules/runs/helpers.py",
        "    with suppress(RecordUnreadable):  # only a hint: the decision does not depend on it\n        able +=",
        "    if True:\n        able +=",
        (RUN_FAULTS + "test_a_start_does_not_need_a_readable_worker[valkey]",),
    ),
]
