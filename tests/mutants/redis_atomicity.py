"""Mutants of what keeps a command in a Redis from being half done, of its rights, and of its lists."""

from __future__ import annotations

from .runner import Mutant

TEST = "tests/stores/test_redis_atomicity.py::test_a_command_is_done_once_or_not_at_all_whichever_right_is_missing"
FAULTS = "tests/stores/test_redis_faults.py::"
RIGHTS = "tests/stores/test_redis_rights.py::"

GROWTH = "tests/stores/test_redis_growth.py::"

WRONG = "tests/stores/test_redis_atomicity.py::test_a_wrong_type_at_the_key_of_an_index_leaves_nothing_half_done"
RUN_LOAD = "tests/stores/test_redis_run_load.py::"
LISTED = GROWTH + "test_every_list_equals_that_of_the_rules[valkey-0]"
PREFIXED = GROWTH + "test_of_very_many_ids_with_a_prefix_the_newest_are_searched_by_time_up_to_a_bound"
LISTS, WRITE = "stores/redis/lists.py", "stores/redis/lua/write.lua"

REDIS_ATOMICITY = [
    Mutant(
        "lists read all runs whatever the filter is",
        LISTS,
        "        best = totals.index(min(totals))\n",
        "        best = 0\n",
        (GROWTH + "test_lists_and_queries_cost_the_same_among_few_runs_and_among_many[valkey]",),
    ),
    Mutant(
        "a list does not check the rest of the filter",
        LISTS,
        "if run is not None and wanted.fits(run)]",
        "if run is not None]",
        (LISTED,),
    ),
    Mutant(
        "runs of several sets are listed one set after the other",
        LISTS,
        "            bound = max((head.items[-1] for head in full if not head.ended), default=None)\n",
        "            bound = None\n",
        (GROWTH + "test_a_list_from_several_sets_is_in_order_although_most_entries_do_not_match[valkey]",),
    ),
    Mutant(
        "runs with a prefix are listed by their ids",
        LISTS,
        "        return Stretch(sorted(timely, reverse=True), 0, None)\n",
        "        return Stretch(list(timely), 0, None)\n",
        (LISTED,),
    ),
    Mutant(
        "a common prefix is searched among newer runs only",
        LISTS,
        "            if in_vain >= IN_VAIN and not ordered:\n",
        "            if False:\n",
        (PREFIXED + "[valkey-by_id]",),
    ),
    Mutant(
        "a page is empty after some names that do not begin with its prefix",
        LISTS,
        "            if names >= MOST_NAMES:\n",
        "            if names >= IN_VAIN:\n",
        (PREFIXED + "[valkey-by_time]",),
    ),
    Mutant(
        "runs with a prefix are read outside the requested time too",
        LISTS,
        "wanted.until is None or cursor[0] < wanted.until",
        "True",
        (GROWTH + "test_of_ids_with_a_prefix_only_those_of_the_requested_time_are_read[valkey]",),
    ),
    Mutant(
        "the oldest runs are listed first",
        LISTS,
        "            yield sorted(set(some), reverse=True)\n",
        "            yield sorted(set(some))\n",
        (LISTED,),
    ),
    Mutant(
        "a list begins with its cursor",
        LISTS,
        "[item for item in found if self._after is None or item < self._after]",
        "[item for item in found if self._after is None or item <= self._after]",
        (LISTED,),
    ),
    Mutant(
        "a page reads any number of runs",
        LISTS,
        "                if looked >= MOST_LOOKS:\n",
        "                if False:\n",
        (RUN_LOAD + "test_an_empty_page_among_many_runs_returns_a_cursor[valkey]",),
    ),
    Mutant(
        "a command begins to write before its rights are known",
        WRITE,
        "if refused then\n",
        "if false then\n",
        (TEST + "[valkey-RecordRun-Park]", TEST + "[valkey-Cleanup]"),
    ),
    Mutant(
        "a command begins to write before the types of its indexes are checked",
        WRITE,
        'if there.err or (there.ok ~= kind and there.ok ~= "none") then',
        "if there.err then",
        (WRONG + "[valkey-ClaimRuns]", WRONG + "[valkey-Cleanup]"),
    ),
    Mutant(
        "on an old server a try leaves something behind",
        "stores/redis/lua/permissions.lua",
        '  redis.pcall("DEL", nothing)\n  redis.pcall("ZREM", nothing, nothing)\n',
        "",
        (TEST + "[redis-StartRun]",),
    ),
    Mutant(
        "on an old server the memory is not checked before the first write",
        WRITE,
        '    table.insert(names, 1, "ZADD")\n',
        "",
        ("tests/stores/test_redis_run_faults.py::test_a_full_memory_refuses_a_record_and_changes_nothing[redis]",),
    ),
    Mutant(
        "entries that were refused count as recorded",
        "stores/redis/lua/entries.lua",
        '            redis.pcall("HSET", run, "last", found[3] or "")\n',
        "",
        (TEST + "[valkey-RecordRun]",),
    ),
    Mutant(
        "on an old server a command of runs begins to write before its rights are known",
        "stores/redis/lua/permissions.lua",
        "  local refused\n  redis.set_repl",
        "  local refused\n  names = {}\n  redis.set_repl",
        (TEST + "[redis-RecordRun-Park]",),
    ),
    Mutant(
        "a short hand-over writes what is due before its rights are known",
        "stores/redis/lua/locks.lua",
        "if dues and next(dues) then",
        "if false then",
        (TEST + "[valkey-Release-to-waiter]",),
    ),
    Mutant(
        "the rights of a user are not checked",
        "stores/redis/store.py",
        "            permissions.check_once(self._place, link, self.layout.index)\n",
        "",
        (RIGHTS + "test_a_user_that_lacks_a_command_is_refused_at_connecting_with_its_name[valkey-HDEL]",),
    ),
    Mutant(
        "a link that was lost after a batch stays lost",
        "stores/redis/store.py",
        "            self._reopen = self._link.lost\n",
        "            self._reopen = False\n",
        (
            FAULTS + "test_a_connection_that_is_lost_after_a_batch_was_executed_is_opened_again[valkey]",
            FAULTS + "test_a_connection_that_cannot_be_opened_again_has_executed_nothing_of_the_next_batch[valkey]",
        ),
    ),
    Mutant(
        "an error after a part of a batch claims that nothing was done",
        "stores/redis/store.py",
        "            error.ambiguous = error.ambiguous or source.began",
        "            error.ambiguous = error.ambiguous or (source.began and error.retryable)",
        (FAULTS + "test_any_error_after_a_part_of_a_batch_was_executed_is_ambiguous[valkey]",),
    ),
    Mutant(
        "a command that the server refuses fails the others of its batch",
        "stores/redis/connection.py",
        "return StepRefused(reason) if isinstance(reason, StoreUnusable) else self.failed(error)",
        "return self.failed(error)",
        (
            FAULTS + "test_a_command_that_the_server_refuses_fails_alone_and_the_connection_stays_usable[valkey]",
            FAULTS + "test_a_query_that_the_server_refuses_fails_alone[valkey]",
        ),
    ),
    Mutant(
        "a blocked server is attributed to other programs",
        "stores/redis/errors.py",
        "belong to another program or to Holdfast (EVALSHA {_SHAS})",
        "belong to another program",
        (FAULTS + "test_a_slow_script_of_holdfast_that_is_killed_gets_an_error[valkey]",),
    ),
    Mutant(
        "a script that was killed is reported as ambiguous",
        "stores/redis/errors.py",
        '    "Script killed by user": "KILLED",\n',
        "",
        (FAULTS + "test_a_slow_script_of_holdfast_that_is_killed_gets_an_error[valkey]",),
    ),
]
