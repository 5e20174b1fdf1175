"""Mutants of how the rules are executed over questions and changes, for stores on servers."""

from __future__ import annotations

from .runner import Mutant

RUN_FAULTS = "tests/stores/test_redis_run_faults.py::"
HERE = "tests/stores/test_executor.py::TestQuestioned::"
TRIPS = "tests/stores/test_executor.py::TestTrips::"
OUTPACED = "tests/stores/test_executor.py::TestContention::test_commands_that_conflict_repeatedly_are_decided_in_halves"
NEW_COMMANDS = "tests/stores/test_new_commands.py::test_no_native_form_accepts_an_unknown_field"
LIMITS = "tests/stores/test_redis_limits.py::"
WORK = "tests/stores/test_work.py::"
RUN_HISTORY = HERE + "test_a_random_history_of_runs_has_the_outcomes_of_the_rules"
LIMIT_HISTORY = HERE + "test_a_random_history_of_limits_has_the_outcomes_of_the_rules"
REPOSITORY, VIEW, FOOTPRINT = "stores/repository.py", "stores/batch_view.py", "stores/footprint.py"

EXECUTOR = [
    Mutant(
        "a batch of any size is one step",
        "stores/batch_cost.py",
        "        if place > first and total + work > AT_ONCE:\n",
        "        if False:\n",
        (WORK + "test_a_batch_is_split_by_its_estimated_work", WORK + "TestPostgres"),
    ),
    Mutant(
        "a batch on Redis is one script, however long",
        "stores/redis/store.py",
        "            parts = parts_of(commands)\n",
        "            parts = (range(len(commands)),)\n",
        (WORK + "TestRedis::test_no_script_gets_more_locks_than_the_limit[valkey]",),
    ),
    Mutant(
        "a form is one statement, however long",
        "stores/postgresql/fast_path.py",
        "    for some in batch_cost.parts_of([commands[place] for place in places]):\n",
        "    for some in (range(len(places)),):\n",
        (WORK + "TestPostgres::test_no_statement_of_a_native_form_gets_more_runs_than_the_limit",),
    ),
    Mutant(
        "bytes are no work",
        "stores/batch_cost.py",
        "    return sum(map(len, texts)) // BYTES\n",
        "    return 0\n",
        (WORK + "test_many_small_commands_are_one_part_and_few_large_ones_are_several",),
    ),
    Mutant(
        "what a failed command has moved stays moved",
        REPOSITORY,
        "            self._moves.move(stored, run, self.changes.runs.get(name, stored))\n",
        "",
        (LIMITS + "test_starts_that_cannot_be_stored_are_refused[valkey]",),
    ),
    Mutant(
        "runs of one batch do not count each other",
        REPOSITORY,
        "        return size + self._moves.growth(members(group, queued=queued))\n",
        "        return size\n",
        (HERE + "test_a_rejected_child_is_reported_to_its_parent", LIMIT_HISTORY),
    ),
    Mutant(
        "a run that has left a list is still found in it",
        VIEW,
        "        items = [item for item in found.items if item not in gone]\n",
        "        items = list(found.items)\n",
        (RUN_HISTORY, LIMIT_HISTORY),
    ),
    Mutant(
        "a run that has come to a list is not found in it",
        VIEW,
        "        if fresh := list(come):\n",
        "        if fresh := []:\n",
        (RUN_HISTORY, LIMIT_HISTORY),
    ),
    Mutant(
        "the beginning of a list is taken for all of it",
        "stores/questions.py",
        "        return found if question.limit is not None and question.limit <= len(found.items) else None\n",
        "        return found if (question.limit or 0) <= len(found.items) else None\n",
        ("tests/stores/test_executor.py::test_the_beginning_of_a_list_is_not_an_answer_for_all_of_it",),
    ),
    Mutant(
        "two starts with one key in one batch start two runs",
        REPOSITORY,
        "        return mine or self._ask(RunByKey(workflow, key))\n",
        "        return self._ask(RunByKey(workflow, key))\n",
        (RUN_HISTORY,),
    ),
    Mutant(
        "an event that comes twice in one batch is kept twice",
        REPOSITORY,
        "            elif post.event.key == key and number is None:\n",
        "            elif False:\n",
        ("tests/stores/test_redis_runs.py::test_every_text_is_read_back_byte_for_byte",),
    ),
    Mutant(
        "two arrivals of one batch are the same",
        REPOSITORY,
        "for arrival, _ in (*left[:1], *come)), default=0)",
        "for arrival, _ in left[:1]), default=0)",
        (LIMITS + "test_arrival_numbers_of_one_moment_are_distinct_to_the_last_digit[valkey]",),
    ),
    Mutant(
        "starts of one batch do not count each other",
        REPOSITORY,
        "sorted([*stored, *((start.at, start.run) for start in self._noted(group))], reverse=True)",
        "sorted(stored, reverse=True)",
        (LIMITS + "test_starts_of_a_rate_over_a_long_period_are_kept_for_all_of_it[valkey]",),
    ),
    Mutant(
        "starts of one batch that are to come are not counted",
        REPOSITORY,
        "        return stored + sum(start.at > moment for start in self._noted(group))\n",
        "        return stored\n",
        (LIMIT_HISTORY,),
    ),
    Mutant(
        "a journal that was cut in this batch is read as it was",
        "stores/questions.py",
        "            del journal[step.keep :]\n",
        "            pass\n",
        ("tests/stores/test_redis_runs.py::test_a_batch_sees_a_journal_that_it_has_shortened[valkey]",),
    ),
    Mutant(
        "a damaged lock hides due locks after it",
        "stores/decisions.py",
        "        except (RecordUnreadable, RowLocked):\n            return False\n",
        "        except (RecordUnreadable, RowLocked):\n            return True\n",
        ("tests/stores/test_redis_script.py::test_a_foreign_value_at_the_key_of_a_record_is_unchanged[valkey]",),
    ),
    Mutant(
        "a damaged orphan prevents the release of others",
        REPOSITORY,
        "except RecordUnreadable:\n                    continue  # an unreadable run must not prevent",
        "except ZeroDivisionError:\n                    continue  # an unreadable run must not prevent",
        (RUN_FAULTS + "test_a_damaged_orphan_does_not_prevent_the_release_of_others[valkey]",),
    ),
    Mutant(
        "the runs of a list are read one by one",
        "stores/executor.py",
        "            _note(command, _forecast(followed(names, known)), asked, changing)\n",
        "            pass\n",
        (TRIPS + "test_many_queued_runs_that_each_wait_for_another_limit",),
    ),
    Mutant(
        "orphans are read one by one",
        FOOTPRINT,
        "        if not rule.holds(_look(known, lease), known.now, worker.id):",
        "        if rule.holds(_look(known, lease), known.now, worker.id):",
        (TRIPS + "test_orphaned_runs_take_one_read_per_level",),
    ),
    Mutant(
        "the journals of a claim are read one by one",
        FOOTPRINT,
        "    yield Entries(id, whole=True)\n",
        "",
        (TRIPS + "test_a_claim_of_many_runs_takes_one_read_per_level",),
    ),
    Mutant(
        "the limits are read after the run",
        FOOTPRINT,
        "    if not new.parent or new.places:\n",
        "    if False:\n",
        (TRIPS + "test_starts_of_runs_are_one_read",),
    ),
    Mutant(
        "an unlocked read is written",
        "stores/executor.py",
        "        elif not decisions.repository.changes and not (changing and decisions.woken):\n",
        "        elif False:\n",
        (TRIPS + "test_a_query_writes_nothing",),
    ),
    Mutant(
        "commands that conflict together fail together",
        "stores/executor.py",
        "        if len(commands) == 1:\n            done",
        "        if commands:\n            done",
        (OUTPACED + "[25]",),
    ),
    Mutant(
        "commands are decided together as often as one alone",
        "stores/executor.py",
        "TRIES if len(commands) == 1 else TRIES_TOGETHER",
        "TRIES",
        (OUTPACED + "[25]", OUTPACED + "[1000]"),
    ),
    Mutant(
        "a native form takes a field that it does not know",
        "stores/native_fields.py",
        "            if getattr(value, name) != default:\n                return False\n",
        "            str(default)\n",
        (NEW_COMMANDS + "[Acquire-redis]", NEW_COMMANDS + "[Acquire-postgres]"),
    ),
    Mutant(
        "the fast path of Redis takes every field of a command",
        "stores/redis/fast_path.py",
        "write is not None and _known.cover(command) and",
        "write is not None and",
        tuple(f"{NEW_COMMANDS}[{name}-redis]" for name in ("Acquire", "Renew", "Release", "RecordRun", "StartRun")),
    ),
    Mutant(
        "the fast path of Redis takes every field of an end",
        "stores/redis/fast_path.py",
        "if not isinstance(end, Finish) or not _known.cover(end):",
        "if not isinstance(end, Finish):",
        (NEW_COMMANDS + "[Finish-redis]",),
    ),
    Mutant(
        "a form of PostgreSQL takes every field of an end",
        "stores/postgresql/fast_path.py",
        " or (then is not None and not _known.cover(then)):",
        ":",
        (NEW_COMMANDS + "[Finish-postgres]",),
    ),
    Mutant(
        "a form of PostgreSQL takes every field of a new run",
        "stores/postgresql/fast_path.py",
        " or not _known.cover(new):",
        ":",
        (NEW_COMMANDS + "[NewRun-postgres]",),
    ),
]
