"""Mutants of the promises between processes on real servers: waking, clocks, tokens, stuck rows, lost connections."""

from __future__ import annotations

from .runner import Mutant

HERE = "tests/test_on_servers.py::"
REDIS = "tests/stores/test_redis_faults.py::"

SERVERS = [
    Mutant(
        "PostgreSQL wakes nobody in another process",
        "stores/postgresql_batch.sql",
        "        PERFORM holdfast.wake(ns, woken, told);\n",
        "        NULL;\n",
        (HERE + "test_a_release_wakes_the_next_in_line_in_another_process[postgres]",),
    ),
    Mutant(
        "Redis wakes nobody",
        "stores/redis.lua",
        '  redis.pcall("PUBLISH", BASE .. "wake:" .. channel, message) -- only a hint\n',
        "",
        (HERE + "test_a_release_wakes_the_next_in_line_in_another_process[valkey]",),
    ),
    Mutant(
        "Redis wakes nobody who takes the long way",
        "stores/redis_rest.lua",
        "    publish()\n    local packed",
        "    local packed",
        ("tests/stores/test_redis_watch.py::test_a_grant_that_takes_the_long_way_is_told_as_well[valkey]",),
    ),
    Mutant(
        "a batch on PostgreSQL waits for a row that somebody has locked",
        "stores/postgresql_batch.sql",
        "                 FOR UPDATE SKIP LOCKED) AS x\n    ), read AS",
        "                 FOR UPDATE) AS x\n    ), read AS",
        ("tests/stores/test_postgres.py::test_a_batch_leaves_a_row_that_is_taken_and_does_not_fail_as_a_whole",),
    ),
    Mutant(
        "a key that is new to PostgreSQL begins with the token 1",
        "stores/postgresql_rules.sql",
        "        fence := greatest(coalesce((before->>'fence')::bigint, 0) + 1, at);\n",
        "        fence := coalesce((before->>'fence')::bigint, 0) + 1;\n",
        (HERE + "test_tokens_rise_on_postgres_although_the_row_was_deleted",),
    ),
    Mutant(
        "a key that is new to Redis begins with the token 1",
        "stores/redis.lua",
        "      local token, version = now, shape",
        "      local token, version = 1, shape",
        (REDIS + "test_who_holds_is_told_after_everything_was_flushed_and_tokens_go_on_rising",),
    ),
    Mutant(
        "PostgreSQL goes by the clocks of its clients",
        "stores/postgresql.py",
        "        at = None if self._clock is None else str(self._clock()).encode()\n",
        "        at = str((self._clock or host_clock)()).encode()\n",
        (HERE + "test_the_clock_of_a_client_neither_ends_nor_stretches_a_lease[postgres-1]",),
    ),
    Mutant(
        "Redis goes by the clocks of its clients",
        "stores/redis.py",
        "None if clock is host_clock else clock",
        "clock",
        (HERE + "test_the_clock_of_a_client_neither_ends_nor_stretches_a_lease[valkey-1]",),
    ),
]
