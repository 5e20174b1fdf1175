"""Mutants of how the Redis store writes and reads runs, slots and indexes."""

from __future__ import annotations

from .runner import Mutant

SUITE = "tests/stores/test_conformance.py::TestValkey::"
RUN_HISTORY = SUITE + "test_a_random_history_of_runs_has_the_outcomes_of_the_rules[0]"
RUNS = "tests/stores/test_redis_runs.py::"
RUN_FAULTS = "tests/stores/test_redis_run_faults.py::"
RUN_LOAD = "tests/stores/test_redis_run_load.py::"
SCRIPT = "tests/stores/test_redis_script.py::"
WRITING, CODEC, READING = "stores/redis/writing.py", "stores/redis/codec.py", "stores/redis/reading.py"
DAMAGED = RUN_FAULTS + "test_any_damage_in_a_run_is_refused_and_unchanged"
INDEXES = RUNS + "test_every_index_matches_the_runs[valkey-0]"
TOO_LARGE = RUNS + "test_numbers_that_are_too_large_or_not_whole_are_refused[valkey]"

REDIS_WRITING = [
    Mutant(
        "a run stays in the lists that it was in",
        WRITING,
        '                removals.append(["SREM" if how is None else "ZREM", place, name])\n',
        "                pass\n",
        (INDEXES,),
    ),
    Mutant(
        "a run is not put into the list of all ids",
        WRITING,
        ', ["ZADD", layout.by_id, "0", name]]',
        "]",
        (INDEXES,),
    ),
    Mutant(
        "a worker that was dismissed stays enlisted",
        WRITING,
        '                removals.append(["HDEL", layout.workers, name])\n',
        "                pass\n",
        (INDEXES, SUITE + "test_runs_of_a_worker_that_closes_do_not_count_a_crash"),
    ),
    Mutant(
        "an idempotency key is forgotten",
        WRITING,
        '            additions.append(["HSET", layout.by_key, run_key_name(workflow, key), run])\n',
        "            pass\n",
        (SUITE + "test_a_start_with_a_known_idempotency_key_returns_the_existing_run",),
    ),
    Mutant(
        "the key of an event is forgotten",
        WRITING,
        "                    if post.event.key:\n",
        "                    if False:\n",
        (SUITE + "test_of_events_with_the_same_key_only_the_first_is_kept",),
    ),
    Mutant(
        "two workflows share their idempotency keys",
        "stores/redis/keys.py",
        '    return f"{workflow.translate(_SLOT_PARTS)}:{key}"',
        '    return f"{workflow}:{key}"',
        (RUNS + "test_no_two_idempotency_keys_share_a_name[valkey]",),
    ),
    Mutant(
        "a journal is not cut when a run begins again",
        WRITING,
        '                    yield ["LTRIM", layout.journal(run), "0", str(step.keep - 1)]\n',
        "                    pass\n",
        (RUN_HISTORY,),
    ),
    Mutant(
        "a damaged run hides due runs after it",
        WRITING,
        '                additions.append(["ZADD", name, score(until), member])\n',
        "                pass\n",
        (RUN_FAULTS + "test_a_damaged_run_does_not_hide_due_runs_after_it[valkey]",),
    ),
    Mutant(
        "a slot without a value is stored as an empty text",
        CODEC,
        "empty=slot.value is None)",
        "empty=False)",
        (RUNS + "test_the_layout_of_a_slot_that_was_written_with_a_record_is_this_one[valkey]",),
    ),
    Mutant(
        "numbers that Redis cannot hold are stored",
        CODEC,
        "    if type(number) is not int or abs(number) > MAX:\n",
        "    if type(number) is not int or abs(number) > 4 * MAX:\n",
        (SCRIPT + "test_the_largest_numbers_are_kept_and_larger_ones_refused[valkey]",),
    ),
    Mutant(
        "bytes are stored as entries",
        CODEC,
        '        if type(value) is not str:\n            raise TypeError(f"{value!r:.50} is not str")\n',
        "        if type(value) is not str:\n            continue\n",
        (TOO_LARGE,),
    ),
    Mutant(
        "values that are not of their kind go to the fast path",
        "stores/redis/fast_path.py",
        "        if row is not None and _plain(row):\n",
        "        if row is not None:\n",
        (TOO_LARGE,),
    ),
    Mutant(
        "what cannot be stored is written all the same",
        "stores/decisions.py",
        "                self._check(made)\n",
        "                pass\n",
        (TOO_LARGE, SCRIPT + "test_the_largest_numbers_are_kept_and_larger_ones_refused[valkey]"),
    ),
    Mutant(
        "a run may have any status",
        CODEC,
        "    if run.status not in _STATUSES:\n",
        "    if not run.status:\n",
        (DAMAGED + "[valkey-status-dancing]",),
    ),
    Mutant(
        "a run may have a fence beyond the precision of Lua",
        CODEC,
        "msgspec.json.Decoder(_WITHIN.get(_HINTS[name], _HINTS[name]))",
        "msgspec.json.Decoder(_HINTS[name])",
        (DAMAGED + "[valkey-fence-9007199254740992]",),
    ),
    Mutant(
        "what is not UTF-8 is taken for the text of a run",
        CODEC,
        "    if type(value) is not str:\n        raise ValueError(",
        "    if value is None:\n        raise ValueError(",
        (DAMAGED,),
    ),
    Mutant(
        "what is not UTF-8 stops the store",
        "stores/redis/record_source.py",
        "        except (msgspec.MsgspecError, UnicodeError):  # a reply contains something that is not text\n",
        "        except ZeroDivisionError:  # a reply contains something that is not text\n",
        (SCRIPT + "test_a_value_that_is_no_text_is_refused_by_name_and_unchanged",),
    ),
    Mutant(
        "a run is started into the journal of another",
        READING,
        "        if length or posted:\n",
        "        if False:\n",
        (RUN_FAULTS + "test_a_journal_without_its_run_is_not_written_to[valkey]",),
    ),
    Mutant(
        "a foreign value at the key of a record fails the batch",
        READING,
        'if "WRONGTYPE" in reason\n                        else ReadRefused(reason)',
        "if reason is None\n                        else ReadRefused(reason)",
        (SCRIPT + "test_a_foreign_value_at_the_key_of_a_record_is_unchanged[valkey]",),
    ),
    Mutant(
        "a driver gets events again that it has seen",
        READING,
        "str(max(0, question.after))",
        '"0"',
        (RUN_FAULTS + "test_a_driver_that_adds_entries_gets_the_events_that_arrived_meanwhile[valkey]",),
    ),
    Mutant(
        "a replica is read by the rules",
        "stores/redis/lua/read.lua",
        'if ARGV[3] == "1" then',
        "if false then",
        ("tests/stores/test_redis_faults.py::test_a_read_from_a_replica_is_refused_on_every_path[valkey-long]",),
    ),
    Mutant(
        "a grant decided by the rules is not hinted",
        "stores/redis/lua/write.lua",
        'redis.pcall("PUBLISH", message[1], message[2])',
        'redis.pcall("ECHO", message[2])',
        ("tests/stores/test_redis_subscribe.py::test_a_grant_decided_by_the_rules_is_hinted_too[valkey]",),
    ),
    Mutant(
        "a name in a command that reads is taken for the time",
        "stores/redis/lua/read.lua",
        "  else\n    reply = redis.pcall(unpack(command))\n",
        "  else\n"
        "    for n = 2, #command do\n"
        '      command[n] = (string.gsub(command[n], "^(%(?)now$", "%1" .. now))\n'
        "    end\n"
        "    reply = redis.pcall(unpack(command))\n",
        (SUITE + "test_an_idempotency_key_may_be_any_name[now]", SUITE + "test_a_page_may_end_with_any_key[now]"),
    ),
    Mutant(
        "a name in a check of starts is taken for the time",
        WRITING,
        '["ZCOUNT", self._layout.starts(question.group), f"({now}", "+inf"]',
        '["ZCOUNT", self._layout.starts(question.group).replace("now", str(now)), f"({now}", "+inf"]',
        (
            SUITE + "test_a_workflow_a_namespace_and_a_limit_may_have_any_name[knowledge]",
            SUITE + "test_a_workflow_a_namespace_and_a_limit_may_have_any_name[snow]",
        ),
    ),
    Mutant(
        "all keys of an inbox are removed by one command",
        WRITING,
        'yield from (["HDEL", layout.inbox_keys(run), *some] for some in _chunks(tuple(post.keys)))',
        'yield ["HDEL", layout.inbox_keys(run), *post.keys]',
        (RUN_LOAD + "test_more_keyed_events_than_one_redis_command_takes_are_removed_at_once[valkey]",),
    ),
    Mutant(
        "a command that is too long is found out in the middle",
        "stores/redis/lua/write.lua",
        "  if #command > MOST then\n",
        "  if false then\n",
        (RUN_LOAD + "test_a_command_that_is_too_long_for_a_script_is_refused_before_the_first_write[valkey]",),
    ),
]
