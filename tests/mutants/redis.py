"""Mutants of the Redis store: of its script, of how it reads answers and errors, and of its subscription."""

from __future__ import annotations

from .redis_belongings import REDIS_BELONGINGS
from .redis_limits import REDIS_LIMITS
from .runner import Mutant

SCRIPT = "tests/stores/test_redis_script.py::"
FAULTS = "tests/stores/test_redis_faults.py::"
WATCH = "tests/stores/test_redis_watch.py::"
HEALTH = "tests/stores/test_redis_health.py::"
PLACES = "tests/stores/test_redis_places.py::"
NEWER = (
    "tests/stores/test_redis_conformance.py::"
    "test_records_of_a_newer_version_are_decided_by_the_same_rules_and_keep_their_fields[valkey]"
)
HISTORY = (
    "tests/stores/test_conformance.py::TestValkey::"
    "test_a_random_history_has_the_answers_and_the_records_that_the_rules_say[0]"
)
SUITE = "tests/stores/test_conformance.py::TestValkey::"
RUN_HISTORY = SUITE + "test_a_random_history_of_runs_has_the_answers_that_the_rules_say[0]"
RUNS = "tests/stores/test_redis_runs.py::"
RUN_FAULTS = "tests/stores/test_redis_run_faults.py::"

REDIS = [
    Mutant(
        "the short way writes tokens as Lua writes numbers",
        "stores/redis.lua",
        "shape, token, version, id, command[4], token, now)",
        "shape, tostring(token), version, id, command[4], tostring(token), now)",
        (SCRIPT + "test_the_short_way_writes_every_digit_too[valkey]",),
    ),
    Mutant(
        "the rules write tokens with fourteen digits",
        "stores/redis_record.lua",
        """.. ',"token":' .. format("%.0f", holder.token)""",
        """.. ',"token":' .. format("%.14g", holder.token)""",
        (HISTORY,),
    ),
    Mutant(
        "a record's fence is written with fourteen digits",
        "stores/redis_record.lua",
        'field(name, format("%.0f", record[name]))',
        'field(name, format("%.14g", record[name]))',
        (HISTORY,),
    ),
    Mutant(
        "two grants of one moment get one token",
        "stores/redis.lua",
        "token, version = fence < now and now or fence + 1, before + 1",
        "token, version = math.max(fence, now), before + 1",
        (SCRIPT + "test_the_short_way_writes_every_digit_too[valkey]",),
    ),
    Mutant(
        "the short way is never taken",
        "stores/redis.lua",
        "    if owner == id then",
        "    if owner == id and false then",
        (SCRIPT + "test_what_happens_most_takes_the_short_way[valkey]",),
    ),
    Mutant(
        "a hand-over never takes the short way",
        "stores/redis_queue.lua",
        "if fence and (owner == id or operation == ACQUIRE) then",
        "if fence and operation == RENEW then",
        (SCRIPT + "test_what_happens_most_takes_the_short_way[valkey]",),
    ),
    Mutant(
        "the short way offers a lock to who has ended",
        "stores/redis_queue.lua",
        "and who_ends > now and who_ends <= now + who_ttl",
        "and who_ends <= now + who_ttl",
        (HISTORY,),
    ),
    Mutant(
        "the short way confirms what has run out",
        "stores/redis_queue.lua",
        "      and ends > now and ends <= now + ttl",
        "      and ends <= now + ttl",
        ("tests/stores/test_redis_script.py::test_an_offer_that_has_run_out_is_not_confirmed[valkey]",),
    ),
    Mutant(
        "the short way hands over by any token",
        "stores/redis_queue.lua",
        "operation == RELEASE and count > 0 and token == command[4]\n",
        "operation == RELEASE and count > 0\n",
        (SCRIPT + "test_who_has_another_token_hands_nothing_over[valkey]",),
    ),
    Mutant(
        "after a short hand-over nobody knows when the rest of the queue is due",
        "stores/redis_queue.lua",
        "        dues[key] = due_at\n",
        "        dues[key] = nil\n",
        (HISTORY,),
    ),
    Mutant(
        "the short way of a hand-over overlooks fields of a newer version",
        "stores/redis_queue.lua",
        """(offered == "" or offered == ',"offered":true')""",
        "offered",
        (SCRIPT + "test_an_offer_with_fields_of_a_newer_version_keeps_them_when_it_is_confirmed[valkey]",),
    ),
    Mutant(
        "the short way renews what has ended",
        "stores/redis.lua",
        "and ends > now and ends <= now + ttl",
        "and ends <= now + ttl",
        (HISTORY,),
    ),
    Mutant(
        "the short way overlooks fields of a newer version",
        "stores/redis.lua",
        """(label == "" or find(label""",
        """(label or find(label""",
        (SCRIPT + "test_a_damaged_label_is_refused_also_by_the_short_way[valkey]",),
    ),
    Mutant(
        "records with unknown fields are taken for ours",
        "stores/redis_record.lua",
        "if not done or encode(record) ~= text or not is_utf8(text) then",
        "if not done or not is_utf8(text) then",
        (NEWER,),
    ),
    Mutant(
        "what is not UTF-8 is taken for text",
        "stores/redis_record.lua",
        "if not done or encode(record) ~= text or not is_utf8(text) then",
        "if not done or encode(record) ~= text then",
        (SCRIPT + "test_what_is_no_text_is_refused_by_name_and_left_alone",),
    ),
    Mutant(
        "the client overwrites what somebody else has changed meanwhile",
        "stores/redis_many.lua",
        "if load(key) ~= before then",
        "if load(key) == nil then",
        (SCRIPT + "test_a_newer_record_that_somebody_changes_meanwhile_is_decided_anew[valkey]",),
    ),
    Mutant(
        "a look after a foreign record does not wait for the client",
        "stores/redis_rest.lua",
        "(operation >= FIRST_OF_MANY and operation <= LAST_OF_MANY)) then",
        "(operation > LAST_OF_MANY and operation < FIRST_OF_MANY)) then",
        (NEWER,),
    ),
    Mutant(
        "the place among those that are due is not given up",
        "stores/redis_rest.lua",
        'write_many("ZREM", DUE, settled)',
        "",
        (HISTORY,),
    ),
    Mutant(
        "a new key is not listed",
        "stores/redis.lua",
        "  if fresh[key] then",
        "  if fresh[key] and false then",
        ("tests/stores/test_conformance.py::TestValkey::test_pages_come_in_order_and_end",),
    ),
    Mutant(
        "one bad command costs the batch",
        "stores/redis_rest.lua",
        "return { BAD, NOBODY, tostring(outcome) }",
        'problem = "bad"\n    return nil',
        (SCRIPT + "test_one_bad_command_costs_its_neighbours_nothing_and_itself_everything[valkey]",),
    ),
    Mutant(
        "a replica is looked at",
        "stores/redis.lua",
        'if type(reply) == "table" and find(reply.err, "READONLY", 1, true) then',
        "if false then",
        (FAULTS + "test_a_look_at_a_replica_is_refused_whatever_the_way[valkey-short]",),
    ),
    Mutant(
        "a replica is looked at in the long way",
        "stores/redis_rest.lua",
        'problem = refused and sub(refused, 1, 8) == "READONLY" and refused',
        "problem = nil",
        (FAULTS + "test_a_look_at_a_replica_is_refused_whatever_the_way[valkey-long]",),
    ),
    Mutant(
        "a replica that may be written to is used",
        "stores/redis_link.py",
        'role[0] in (b"slave", b"replica")',
        "not role[0]",
        (FAULTS + "test_a_server_that_becomes_a_replica_refuses_writes_and_looks[valkey]",),
    ),
    Mutant(
        "a forgotten script is an error",
        "stores/redis_link.py",
        "except redis.exceptions.NoScriptError:",
        "except redis.exceptions.ModuleError:",
        (FAULTS + "test_a_server_that_has_forgotten_the_script_is_told_it_again[valkey]",),
    ),
    Mutant(
        "a lost connection is said to have done nothing",
        "stores/redis_errors.py",
        """{what or f'the connection to {place} failed'} ({text})", ambiguous=True)""",
        """{what or f'the connection to {place} failed'} ({text})", ambiguous=False)""",
        (FAULTS + "test_a_lost_connection_is_ambiguous[valkey]",),
    ),
    Mutant(
        "a connection goes on after an error in the middle",
        "stores/redis_link.py",
        "        except BaseException as error:\n            self.close()\n",
        "        except BaseException as error:\n",
        (FAULTS + "test_a_lost_connection_is_ambiguous[valkey]",),
    ),
    Mutant(
        "a child of a fork uses its parent's connection",
        "stores/redis_link.py",
        "if os.getpid() != self._pid:",
        "if os.getpid() == 0:",
        (PLACES + "test_a_child_of_a_fork_opens_its_own_and_the_parent_goes_on",),
    ),
    Mutant(
        "the driver retries by itself",
        "stores/redis_link.py",
        '"timeout", "retry", "retry_on_timeout"',
        '"timeout", "retry_on_timeout"',
        (PLACES + "test_an_existing_client_is_adopted[options0]",),
    ),
    Mutant(
        "a grant is told to nobody",
        "stores/redis.lua",
        '  redis.pcall("PUBLISH", BASE',
        '  redis.pcall("ECHO", BASE',
        (WATCH + "test_a_grant_is_told_by_its_id[valkey]",),
    ),
    Mutant(
        "a grant that took the long way is told to nobody",
        "stores/redis_rest.lua",
        "    publish()\n",
        "",
        (WATCH + "test_a_grant_that_takes_the_long_way_is_told_as_well[valkey]",),
    ),
    Mutant(
        "nobody is told to look after a break",
        "stores/redis_watch.py",
        "                self.hint(None)\n",
        "",
        (WATCH + "test_after_a_cut_everybody_is_told_to_look[valkey]",),
    ),
    Mutant(
        "a dead subscription is waited on for ever",
        "stores/redis_watch.py",
        '                    raise TimeoutError("no answer to PING")\n',
        "                    continue\n",
        (WATCH + "test_a_connection_that_is_dead_at_the_other_end_is_noticed[valkey]",),
    ),
    Mutant(
        "a server that evicts is not reported",
        "stores/redis_health.py",
        "for finding in (_eviction(look), _persistence(look)):",
        "for finding in (_persistence(look),):",
        (HEALTH + "test_a_server_that_may_evict_locks_is_reported_once[valkey-allkeys-lru]",),
    ),
    Mutant(
        "everysec is taken for durable",
        "stores/redis_health.py",
        'return self.append_only == "yes" and self.fsync == "always"',
        'return self.append_only == "yes"',
        (HEALTH + "test_a_persistence_that_is_weaker_than_the_promise_is_reported_once[valkey-everysec]",),
    ),
    Mutant(
        "a namespace may end its own hash tag",
        "stores/redis_keys.py",
        '{"%": "%25", "{": "%7B", "}": "%7D"}',
        '{"%": "%25"}',
        (SCRIPT + "test_a_namespace_has_one_hash_tag_whatever_is_in_it",),
    ),
    Mutant(
        "entries are added under any fence",
        "stores/redis_entries.lua",
        'and found[2] == format("%.0f", id) and (found[3] or "")',
        'and (found[3] or "")',
        (SUITE + "test_entries_are_kept_in_order_and_only_under_the_fence_and_at_the_end",),
    ),
    Mutant(
        "a record in a Redis writes its slot whatever is there",
        "stores/redis_slots.lua",
        "if slot.last ~= expected or slot.version ~= version then",
        "if slot.version < 0 then",
        (SUITE + "test_a_record_whose_slot_somebody_else_has_written_changes_nothing",),
    ),
    Mutant(
        "a record with a slot takes the short way",
        "stores/redis_entries.lua",
        "    and command[11] == nil\n",
        "",
        (SUITE + "test_a_slot_is_written_with_the_record",),
    ),
    Mutant(
        "a slot is written before its record is decided",
        "stores/redis_run_rules.lua",
        "    later(write_it)\n  end\n  local told",
        "    write_it()\n  end\n  local told",
        (RUNS + "test_numbers_that_are_too_large_or_not_whole_are_refused[valkey]",),
    ),
    Mutant(
        "a run is parked under any fence",
        "stores/redis_run_rules.lua",
        'number_in(run, "fence") ~= fence or run.length ~= at then',
        "run.length ~= at then",
        (RUNS + "test_fences_of_one_moment_are_distinct_to_the_last_digit[valkey]",),
    ),
    Mutant(
        "a driver who adds entries is not told of events",
        "stores/redis_entries.lua",
        'type(posted) == "number" and posted <= seen and',
        'type(posted) == "number" and',
        (RUN_FAULTS + "test_a_driver_who_adds_entries_is_told_of_what_came_meanwhile[valkey]",),
    ),
    Mutant(
        "a run parks and ends although it has not seen an event",
        "stores/redis_run_rules.lua",
        "altered(run, fields), not ending or run.posted <= seen",
        "altered(run, fields), true",
        (SUITE + "test_a_run_with_an_event_that_its_driver_has_not_seen_neither_parks_nor_ends",),
    ),
    Mutant(
        "an event is kept as often as it is sent",
        "stores/redis_run_rules.lua",
        'local number = run and key ~= "" and number_of_event(id, key)',
        "local number = false",
        (SUITE + "test_of_events_with_the_same_key_only_the_first_is_kept",),
    ),
    Mutant(
        "a start with a known key starts another run",
        "stores/redis_run_rules.lua",
        'local found = key ~= "" and run_with_key(key_name)',
        "local found = false",
        (SUITE + "test_a_start_with_a_known_idempotency_key_is_answered_with_that_run",),
    ),
    Mutant(
        "a record that is sent again is refused",
        "stores/redis_run_rules.lua",
        'if run and text_in(run, "last") == request then\n    return recorded_again(',
        "if false then\n    return recorded_again(",
        (RUN_FAULTS + "test_a_reply_that_is_lost_on_the_way_changes_no_effect_on_runs[valkey-RecordRun-Park]",),
    ),
    Mutant(
        "a retry that is sent again is refused",
        "stores/redis_run_rules.lua",
        'if run and text_in(run, "last") == request then\n    return { POSTED',
        "if false then\n    return { POSTED",
        (RUN_FAULTS + "test_a_reply_that_is_lost_on_the_way_changes_no_effect_on_runs[valkey-ReviveRun]",),
    ),
    Mutant(
        "fences of runs are written with fourteen digits",
        "stores/redis_runs.lua",
        'local function digits(number)\n  return format("%.0f", number)',
        'local function digits(number)\n  return format("%.14g", number)',
        (RUNS + "test_fences_of_one_moment_are_distinct_to_the_last_digit[valkey]",),
    ),
    Mutant(
        "a run is taken from a worker that lives",
        "stores/redis_run_claims.lua",
        "if not kind or (owner ~= worker and lives(owner)) then",
        "if not kind then",
        (SUITE + "test_a_run_that_is_driven_cannot_be_had_by_naming_it",),
    ),
    Mutant(
        "a run that was claimed stays among those that are due",
        "stores/redis_runs.lua",
        '    put("ZREM", DUE_OF .. old.type, id)\n',
        "",
        (RUNS + "test_every_index_says_what_the_runs_say[valkey-0]",),
    ),
    Mutant(
        "what a command of runs decides is written before its last check",
        "stores/redis_runs.lua",
        "  writes[#writes + 1] = write_it\n",
        "  write_it()\n",
        (RUN_FAULTS + "test_a_run_that_cannot_be_read_costs_its_neighbours_nothing_and_is_left_alone[valkey]",),
    ),
    Mutant(
        "a damaged run hides those that are due after it",
        "stores/redis_run_claims.lua",
        "      put_off(becomes, id)\n",
        "",
        (RUN_FAULTS + "test_a_damaged_run_does_not_hide_those_that_are_due_after_it[valkey]",),
    ),
    Mutant(
        "the dead are kept alive by a clock that was set back",
        "stores/redis_run_claims.lua",
        "    settle_lease(dead.id)\n",
        "",
        (RUN_HISTORY,),
    ),
    Mutant(
        "a command of runs does not wait for the client",
        "stores/redis_rest.lua",
        "(operation >= FIRST_OF_RUNS or (operation",
        "((operation",
        (RUN_FAULTS + "test_a_command_about_runs_sees_what_the_client_has_made_of_a_newer_lease[valkey]",),
    ),
    Mutant(
        "a result is put into an event without being quoted",
        "stores/redis_run_rules.lua",
        '"payload":\' .. quoted(payload)',
        '"payload":"\' .. payload .. \'"\'',
        (RUNS + "test_every_text_comes_back_byte_for_byte",),
    ),
    *REDIS_LIMITS,
    *REDIS_BELONGINGS,
]
