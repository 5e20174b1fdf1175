"""Mutants of the locks of runs in the Redis store."""

from __future__ import annotations

from .runner import Mutant

RUN_FAULTS = "tests/stores/test_redis_run_faults.py::"
SUITE = "tests/stores/test_conformance.py::TestValkey::"
LOCKS_OF_RUNS = "tests/stores/test_redis_run_locks.py::"

REDIS_LOCKS_OF_RUNS = [
    Mutant(
        "a run that is offered a lock on the short way is not told",
        "stores/redis/lua/queue.lua",
        '      and sub(line[head].id, 1, 4) ~= "run:"\n',
        "",
        (LOCKS_OF_RUNS + "test_a_run_that_waits_like_a_client_gets_an_event_too[valkey]",),
    ),
    Mutant(
        "a run is not told that a client has left it a lock",
        "stores/decisions.py",
        "                hints = notify_offered(self.repository, self.now, outcome.notified)\n",
        "                hints = ()\n",
        (SUITE + "test_a_client_and_a_run_exclude_each_other",),
    ),
    Mutant(
        "the worker of a run is not told that a client has left it a lock",
        "stores/redis/record_source.py",
        "woken_among((*woken, *hints))",
        "woken_among(woken)",
        (LOCKS_OF_RUNS + "test_only_the_worker_of_a_run_is_notified_of_an_offer_to_the_run[valkey]",),
    ),
    Mutant(
        "what a run gives back stays written in it",
        "stores/redis/writing.py",
        '                removals.append(["HDEL", layout.run(after.id), *gone])\n',
        "                pass\n",
        (LOCKS_OF_RUNS + "test_a_run_that_ends_or_is_retried_leaves_no_lock_field_behind[valkey]",),
    ),
    Mutant(
        "a lock that is no longer waited for stays among those that are due",
        "stores/redis/writing.py",
        '                removals.append(["ZREM", layout.due, key])\n            else',
        "                pass\n            else",
        (LOCKS_OF_RUNS + "test_a_waiting_run_is_settled_with_due_records[valkey]",),
    ),
    Mutant(
        "a lock that a run has taken is not listed",
        "stores/redis/writing.py",
        '            additions.append(["ZADD", layout.index, "0", key])\n',
        "",
        (LOCKS_OF_RUNS + "test_the_layout_of_locks_of_runs_is_this_one[valkey]",),
    ),
    Mutant(
        "a record that fails has taken locks all the same",
        "stores/decisions.py",
        "        except Exception as error:  # a bad command fails alone\n"
        "            outcome = failed(command, error)\n            self.repository.drop()\n",
        "        except Exception as error:  # a bad command fails alone\n"
        "            outcome = failed(command, error)\n",
        (LOCKS_OF_RUNS + "test_a_request_for_an_unreadable_lock_changes_nothing",),
    ),
    Mutant(
        "an ask may have a number that Lua cannot count",
        "stores/redis/codec.py",
        "    for number, _ in run.locks:\n        score(number)\n",
        "",
        (LOCKS_OF_RUNS + "test_numbers_that_are_too_large_or_not_whole_are_refused[valkey]",),
    ),
    Mutant(
        "a record with asks takes the short way",
        "stores/redis/fast_path.py",
        '"entries", "seen", "then"},',
        '"entries", "seen", "then", "lock_requests"},',
        (SUITE + "test_a_run_acquires_a_free_lock_in_the_same_step_as_its_record",),
    ),
    Mutant(
        "a record with a slot takes the short way",
        "stores/redis/fast_path.py",
        '"entries", "seen", "then"},',
        '"entries", "seen", "then", "swap"},',
        (SUITE + "test_a_slot_is_written_with_the_record",),
    ),
    Mutant(
        "a run that is stuck is recorded by the short way",
        "stores/redis/fast_path.py",
        '"entries", "seen", "then"},',
        '"entries", "seen", "then", "stuck"},',
        (LOCKS_OF_RUNS + "test_the_layout_of_locks_of_runs_is_this_one[valkey]",),
    ),
    Mutant(
        "a run that goes on is still called stuck",
        "stores/redis/lua/entries.lua",
        "      and not found[4] and not found[5]\n",
        "      and not found[4]\n",
        (LOCKS_OF_RUNS + "test_entries_of_a_run_that_holds_a_lock_use_the_fast_path[valkey]",),
    ),
    Mutant(
        "a run that goes on is still suspected of its workers' deaths",
        "stores/redis/lua/entries.lua",
        "      and not found[4] and not found[5]\n",
        "      and not found[5]\n",
        (RUN_FAULTS + "test_new_entries_reset_the_crash_count_of_a_run[valkey]",),
    ),
    Mutant(
        "a worker that cannot be read keeps a run from being told",
        "rules/runs/helpers.py",
        "    with suppress(RecordUnreadable):  # only a hint: the decision does not depend on it\n        able +=",
        "    if True:\n        able +=",
        (RUN_FAULTS + "test_a_start_does_not_need_a_readable_worker[valkey]",),
    ),
]
