"""Mutants of records of any type: their encoding, what is compared and locked, lists and due times on each store."""

from __future__ import annotations

from .runner import Mutant

TYPE = "tests/rules/test_record_type.py::"
RECORDS = "tests/stores/test_records.py::"
POSTGRES = "tests/stores/test_conformance.py::TestPostgres::"
VALKEY = "tests/stores/test_conformance.py::TestValkey::"
SQLITE = "tests/stores/test_conformance.py::TestSqlite::"
MEMORY = "tests/stores/test_conformance.py::TestMemory::"
QUESTIONED = "tests/stores/test_executor.py::TestQuestioned::"
SWAP = "tests/stores/test_redis_swap.py::test_a_decision_is_repeated_when_another_client_changed_its_data"
DUE = "test_records_that_are_due_are_found_by_their_time"
UNREADABLE = "test_an_unreadable_record_is_refused_by_name_and_left_unchanged"
VIEW, DECISIONS = "stores/batch_view.py", "stores/decisions.py"

OF_TYPES = [
    Mutant(
        "a field of a record that is not known is dropped",
        "rules/record_type.py",
        '        return {**known, "unknown": unknown} if unknown else known\n',
        "        return known\n",
        (TYPE + "test_fields_that_a_struct_does_not_have_are_kept_wherever_they_are",),
    ),
    Mutant(
        "a record that cannot be read again is stored",
        "rules/record_type.py",
        '            self.decode("", text)\n',
        "            pass\n",
        (TYPE + "test_a_record_that_could_not_be_read_back_is_not_stored",),
    ),
    Mutant(
        "two types share a name",
        "rules/record_type.py",
        "        if known is not None and known.struct.__qualname__ != struct.__qualname__:\n",
        "        if False:\n",
        (TYPE + "test_a_name_can_be_used_for_one_type_only",),
    ),
]
"""These need no store."""

OF_RECORDS = [
    Mutant(
        "a bad command fails the others about the same record",
        "stores/records.py",
        "        return _decided_apart(type, before, commands, now)\n",
        "        return None, [failed(command, ValueError()) for command in commands]\n",
        (MEMORY + "test_a_value_that_cannot_be_stored_fails_alone",),
    ),
    Mutant(
        "a record is encoded for each command of a batch",
        DECISIONS,
        '            elif what == "records":\n',
        "            elif False:\n",
        (RECORDS + "TestTrips::test_many_commands_about_one_record_are_one_read_and_one_write",),
    ),
    Mutant(
        "a record is read in a separate round trip",
        "stores/footprint.py",
        "        yield RecordAt(command.record_type.name, command.key)\n",
        "        yield from ()\n",
        (RECORDS + "TestTrips::test_many_records_are_one_read_and_one_write",),
    ),
    Mutant(
        "a record that cannot be read is overwritten by a command about runs",
        VIEW,
        "        if record is not self.record(type, key):\n",
        "        if True:\n",
        (QUESTIONED + UNREADABLE,),
    ),
    Mutant(
        "a record that was changed in this batch is read as it was",
        VIEW,
        "            if name in changes.records:\n",
        "            if False:\n",
        (QUESTIONED + "test_a_command_about_runs_changes_a_run_and_a_record_in_one_step",),
    ),
    Mutant(
        "unreadable records hide due records after them",
        DECISIONS,
        "(listed_record(command.kind, *one) for one in texts) if not item.error]",
        "(listed_record(command.kind, *one) for one in texts)]",
        (QUESTIONED + "test_unreadable_records_do_not_hide_due_records_after_them",),
    ),
    Mutant(
        "hints are not sent if nothing was changed",
        "stores/executor.py",
        " and not (changing and decisions.woken):\n",
        ":\n",
        (VALKEY + "test_hints_of_a_command_are_sent_even_if_no_record_changes",),
    ),
    Mutant(
        "a record is written over another's write on Redis",
        "stores/redis/writing.py",
        "    q.RecordAt,\n",
        "",
        (SWAP + "[valkey-a-record]", SWAP + "[valkey-a-record-that-is-new]"),
    ),
    Mutant(
        "a record on Redis that is not due any more stays due",
        "stores/redis/writing.py",
        '                removals.append(["ZREM", due, key])\n',
        "                pass\n",
        (VALKEY + DUE,),
    ),
    Mutant(
        "a record on Redis that is removed stays due",
        "stores/redis/writing.py",
        'removals += [["ZREM", index, key], ["ZREM", due, key], ["DEL", name]]',
        'removals += [["ZREM", index, key], ["DEL", name]]',
        (RECORDS + "TestRedis::test_a_record_that_is_removed_leaves_nothing_behind[valkey]",),
    ),
    Mutant(
        "bytes that are no text are taken for no record on Redis",
        "stores/redis/reading.py",
        '        raise TypeError("it contains bytes that are not valid UTF-8")\n    return text\n',
        "        return None\n    return text\n",
        (RECORDS + "TestRedis::test_another_value_at_the_key_of_a_record_is_refused_and_unchanged[valkey-set]",),
    ),
    Mutant(
        "a record whose row is locked is read as absent",
        "stores/postgresql/answers.py",
        "            self._answers.append((one, self._free(one, found.get(one))))\n",
        "            mine = one in self._owned or one not in self._changing\n"
        "            self._answers.append((one, found.get(one) if mine else None))\n",
        (RECORDS + "TestPostgres::test_a_locked_row_delays_only_its_own_commands",),
    ),
    Mutant(
        "a record is written though its row is not locked",
        "stores/postgresql/answers.py",
        "            self._answers.append((one, self._free(one, found.get(one))))\n",
        "            self._owned.add(one)\n            self._answers.append((one, found.get(one)))\n",
        (RECORDS + "TestPostgres::test_a_change_of_an_open_transaction_is_not_overwritten",),
    ),
    Mutant(
        "hints without a grant do not reach waiters of the same process on PostgreSQL",
        "stores/postgresql/store.py",
        "any(outcome.woken or outcome.hinted for outcome in outcomes)",
        "any(outcome.woken for outcome in outcomes)",
        (POSTGRES + "test_hints_of_a_command_are_sent_even_if_no_record_changes",),
    ),
    Mutant(
        "a record on PostgreSQL keeps its first due time",
        "stores/postgresql/record_statements.py",
        "UPDATE holdfast.records AS o SET record = n.record, due_at = n.due_at\n",
        "UPDATE holdfast.records AS o SET record = n.record\n",
        (POSTGRES + DUE,),
    ),
    Mutant(
        "a record on SQLite keeps its first due time",
        "stores/sqlite/records.py",
        "DO UPDATE SET record = excluded.record, due_at = excluded.due_at",
        "DO UPDATE SET record = excluded.record",
        (SQLITE + DUE,),
    ),
    Mutant(
        "a run on SQLite overwrites a record that cannot be read",
        "stores/sqlite/records.py",
        "    load_record(db, namespace, type, key)\n",
        "",
        (SQLITE + UNREADABLE,),
    ),
]
