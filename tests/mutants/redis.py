"""Mutants of the Redis store: of its script, of how it reads answers and errors, and of its subscription."""

from __future__ import annotations

from .redis_atomicity import REDIS_ATOMICITY
from .redis_limits import REDIS_LIMITS
from .redis_run_locks import REDIS_LOCKS_OF_RUNS
from .redis_short_runs import REDIS_SHORT_RUNS
from .redis_swap import REDIS_SWAP
from .redis_writing import REDIS_WRITING
from .runner import Mutant

SCRIPT = "tests/stores/test_redis_script.py::"
KEEPS_FIELDS = "test_a_waiter_with_fields_of_a_newer_version_keeps_them_while_it_waits_and_when_it_is_offered_the_lock"
FAULTS = "tests/stores/test_redis_faults.py::"
WATCH = "tests/stores/test_redis_subscribe.py::"
HEALTH = "tests/stores/test_redis_health.py::"
PLACES = "tests/stores/test_redis_addresses.py::"
NEWER = (
    "tests/stores/test_redis_conformance.py::"
    "test_records_of_a_newer_version_are_decided_by_the_same_rules_and_keep_their_fields[valkey]"
)
HISTORY = (
    "tests/stores/test_conformance.py::TestValkey::test_a_random_history_has_the_outcomes_and_records_of_the_rules[0]"
)
SUITE = "tests/stores/test_conformance.py::TestValkey::"
RUN_HISTORY = SUITE + "test_a_random_history_of_runs_has_the_outcomes_of_the_rules[0]"
RUNS = "tests/stores/test_redis_runs.py::"
RUN_FAULTS = "tests/stores/test_redis_run_faults.py::"

REDIS = [
    Mutant(
        "the fast path writes tokens as Lua writes numbers",
        "stores/redis/lua/locks.lua",
        "shape, token, version, id, command[4], token, now)",
        "shape, tostring(token), version, id, command[4], tostring(token), now)",
        (SCRIPT + "test_the_fast_path_writes_every_digit_too[valkey]",),
    ),
    Mutant(
        "two grants of one moment get one token",
        "stores/redis/lua/locks.lua",
        "token, version = fence < now and now or fence + 1, before + 1",
        "token, version = math.max(fence, now), before + 1",
        (SCRIPT + "test_the_fast_path_writes_every_digit_too[valkey]",),
    ),
    Mutant(
        "the fast path is never used",
        "stores/redis/lua/locks.lua",
        "    if owner == id then",
        "    if owner == id and false then",
        (SCRIPT + "test_the_most_frequent_commands_use_the_fast_path[valkey]",),
    ),
    Mutant(
        "a hand-over never uses the fast path",
        "stores/redis/lua/queue.lua",
        "if fence and (owner == id or operation == ACQUIRE) then",
        "if fence and operation == RENEW then",
        (SCRIPT + "test_the_most_frequent_commands_use_the_fast_path[valkey]",),
    ),
    Mutant(
        "the fast path offers a lock to an expired waiter",
        "stores/redis/lua/queue.lua",
        "waiter and waiter.ends > now and waiter.ends <= now + waiter.ttl",
        "waiter and waiter.ends <= now + waiter.ttl",
        (SCRIPT + "test_a_release_makes_no_offer_to_an_expired_waiter[valkey]",),
    ),
    Mutant(
        "the fast path confirms an expired offer",
        "stores/redis/lua/queue.lua",
        "      and ends > now and ends <= now + ttl",
        "      and ends <= now + ttl",
        ("tests/stores/test_redis_script.py::test_an_expired_offer_is_not_confirmed[valkey]",),
    ),
    Mutant(
        "the fast path hands over with any token",
        "stores/redis/lua/queue.lua",
        "operation == RELEASE and not offered and head and token == command[4]\n",
        "operation == RELEASE and not offered and head\n",
        (SCRIPT + "test_a_release_with_another_token_hands_nothing_over[valkey]",),
    ),
    Mutant(
        "after a hand-over on the fast path the rest of the queue is never due",
        "stores/redis/lua/queue.lua",
        "        dues[key] = due_at\n",
        "        dues[key] = nil\n",
        (SCRIPT + "test_a_hand_over_keeps_the_index_of_due_records[valkey]",),
    ),
    Mutant(
        "the fast path of a hand-over ignores fields of a newer version",
        "stores/redis/lua/queue.lua",
        "    if (listens and at + 15 or at) ~= #more + 1 then\n",
        "    if false then\n",
        (SCRIPT + KEEPS_FIELDS + "[valkey]",),
    ),
    Mutant(
        "the fast path keeps the position of a waiter that acquires as another kind",
        "stores/redis/lua/queue.lua",
        'patience == line[found].ttl\n      and command[5] == "mutex"\n',
        "patience == line[found].ttl\n",
        (SUITE + "test_a_waiter_that_acquires_again_as_another_kind_is_refused_and_keeps_its_position",),
    ),
    Mutant(
        "the fast path counts the shape of a new record as a version",
        "stores/redis/lua/locks.lua",
        "local token, version = now, 1\n",
        'local token, version = now, shape == "{" and 1 or 2\n',
        (
            SUITE + "test_the_first_grant_of_a_key_is_its_first_version_whatever_its_kind[lease-1]",
            SUITE + "test_the_first_grant_of_a_key_is_its_first_version_whatever_its_kind[semaphore-3]",
        ),
    ),
    Mutant(
        "the fast path renews an expired grant",
        "stores/redis/lua/locks.lua",
        "and ends > now and ends <= now + ttl",
        "and ends <= now + ttl",
        (HISTORY,),
    ),
    Mutant(
        "the fast path ignores fields of a newer version",
        "stores/redis/lua/locks.lua",
        """(label == "" or find(label""",
        """(label or find(label""",
        (SCRIPT + "test_a_damaged_label_is_refused_also_by_the_fast_path[valkey]",),
    ),
    Mutant(
        "a new key is not listed",
        "stores/redis/lua/locks.lua",
        "  if fresh[key] then",
        "  if fresh[key] and false then",
        ("tests/stores/test_conformance.py::TestValkey::test_pages_come_in_order_and_end",),
    ),
    Mutant(
        "a replica is read",
        "stores/redis/lua/locks.lua",
        'if type(reply) == "table" and find(reply.err, "READONLY", 1, true) then',
        "if false then",
        (FAULTS + "test_a_read_from_a_replica_is_refused_on_every_path[valkey-short]",),
    ),
    Mutant(
        "a replica that may be written to is used",
        "stores/redis/connection.py",
        'role[0] in (b"slave", b"replica")',
        "not role[0]",
        (FAULTS + "test_a_server_that_becomes_a_replica_refuses_writes_and_reads[valkey]",),
    ),
    Mutant(
        "a script that the server has lost is an error",
        "stores/redis/connection.py",
        "except redis.exceptions.NoScriptError:",
        "except redis.exceptions.ModuleError:",
        (FAULTS + "test_a_script_that_the_server_has_lost_is_loaded_again[valkey]",),
    ),
    Mutant(
        "a lost connection is reported as not ambiguous",
        "stores/redis/errors.py",
        """may or may not have been carried out.", ambiguous=True)""",
        """may or may not have been carried out.", ambiguous=False)""",
        (FAULTS + "test_a_lost_connection_is_ambiguous[valkey]",),
    ),
    Mutant(
        "a connection is used again after an error in the middle",
        "stores/redis/connection.py",
        "        self.close()\n        if isinstance(error, redis.exceptions.RedisError",
        "        if isinstance(error, redis.exceptions.RedisError",
        (FAULTS + "test_a_lost_connection_is_ambiguous[valkey]",),
    ),
    Mutant(
        "a forked child uses its parent's connection",
        "stores/redis/connection.py",
        "if os.getpid() != self._pid:",
        "if os.getpid() == 0:",
        (PLACES + "test_a_forked_child_opens_its_own_connection_and_the_parent_continues",),
    ),
    Mutant(
        "the driver retries by itself",
        "stores/redis/connection.py",
        '"timeout", "retry", "retry_on_timeout"',
        '"timeout", "retry_on_timeout"',
        (PLACES + "test_an_existing_client_is_accepted_as_the_store[options0]",),
    ),
    Mutant(
        "a grant is not hinted",
        "stores/redis/lua/locks.lua",
        '  if redis.pcall("PUBLISH", BASE .. "wake:" .. channel, message) == 0',
        '  if redis.pcall("ECHO", BASE) == 0',
        (WATCH + "test_a_hint_names_the_granted_attempt[valkey]",),
    ),
    Mutant(
        "no waiter is hinted after a lost subscription",
        "stores/redis/subscribe.py",
        "                self.hint(None)\n",
        "",
        (WATCH + "test_after_a_lost_connection_all_waiters_are_hinted[valkey]",),
    ),
    Mutant(
        "a subscription without a response is kept forever",
        "stores/redis/subscribe.py",
        '                    raise TimeoutError("no answer to PING")\n',
        "                    continue\n",
        (WATCH + "test_a_subscription_whose_server_no_longer_responds_is_replaced[valkey]",),
    ),
    Mutant(
        "a server that evicts is not reported",
        "stores/redis/health.py",
        "for finding in (_eviction(look), _persistence(look)):",
        "for finding in (_persistence(look),):",
        (HEALTH + "test_a_server_that_may_evict_locks_is_reported_once[valkey-allkeys-lru]",),
    ),
    Mutant(
        "everysec is taken for durable",
        "stores/redis/health.py",
        'return self.append_only == "yes" and self.fsync == "always"',
        'return self.append_only == "yes"',
        (HEALTH + "test_a_persistence_that_is_weaker_than_the_promise_is_reported_once[valkey-everysec]",),
    ),
    Mutant(
        "a namespace may end its own hash tag",
        "stores/redis/keys.py",
        '{"%": "%25", "{": "%7B", "}": "%7D"}',
        '{"%": "%25"}',
        (SCRIPT + "test_a_namespace_has_one_hash_tag_whatever_is_in_it",),
    ),
    Mutant(
        "entries are added under any fence",
        "stores/redis/lua/entries.lua",
        'and found[2] == format("%.0f", id) and (found[3] or "")',
        'and (found[3] or "")',
        (SUITE + "test_entries_are_appended_in_order_by_the_current_driver_only",),
    ),
    Mutant(
        "a driver that adds entries gets no events",
        "stores/redis/lua/entries.lua",
        'type(posted) == "number" and posted <= seen and',
        'type(posted) == "number" and',
        (RUN_FAULTS + "test_a_driver_that_adds_entries_gets_the_events_that_arrived_meanwhile[valkey]",),
    ),
    Mutant(
        "a waiter states that it receives hints before it is subscribed",
        "stores/redis/subscribe.py",
        "        self.polls = True  # until the server has confirmed the subscription\n",
        "",
        (WATCH + "test_a_waiter_states_that_it_receives_hints_only_while_it_is_subscribed[valkey]",),
    ),
    *REDIS_SHORT_RUNS,
    *REDIS_SWAP,
    *REDIS_WRITING,
    *REDIS_LIMITS,
    *REDIS_LOCKS_OF_RUNS,
    *REDIS_ATOMICITY,
]
