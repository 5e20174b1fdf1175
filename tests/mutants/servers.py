"""Mutants of the promises between processes on real servers: waking, clocks, tokens, stuck rows, lost connections."""

from __future__ import annotations

from .runner import Mutant

HERE = "tests/locks/test_on_servers.py::"
SUITE = "tests/stores/test_conformance.py::TestPostgres::"
REDIS = "tests/stores/test_redis_faults.py::"

SERVERS = [
    Mutant(
        "PostgreSQL wakes no waiter in another process",
        "stores/postgresql/repository.py",
        "self._trip((*writing.statements, *notes, *self._transactions.commit))",
        "self._trip((*writing.statements, *self._transactions.commit))",
        (HERE + "test_a_release_wakes_the_next_waiter_in_another_process[postgres]",),
    ),
    Mutant(
        "Redis wakes no waiter",
        "stores/redis/lua/locks.lua",
        '  if redis.pcall("PUBLISH", BASE .. "wake:" .. channel, message) == 0 then -- only a hint\n',
        '  if redis.pcall("ECHO", message) == 0 then\n',
        (HERE + "test_a_release_wakes_the_next_waiter_in_another_process[valkey]",),
    ),
    Mutant(
        "a batch on PostgreSQL waits for a locked row",
        "stores/postgresql/sql/fast_path.sql",
        "AND o.key = c.command->>1 FOR UPDATE SKIP LOCKED) AS x OFFSET 0",
        "AND o.key = c.command->>1 FOR UPDATE) AS x OFFSET 0",
        ("tests/stores/test_postgres_protocol.py::test_a_native_form_skips_a_locked_row",),
    ),
    Mutant(
        "a free key on PostgreSQL gets the next token, whatever the clock says",
        "stores/postgresql/sql/fast_path.sql",
        "greatest(f.fence + 1, f.at) AS token",
        "f.fence + 1 AS token",
        (SUITE + "test_a_random_history_has_the_outcomes_and_records_of_the_rules[0]",),
    ),
    Mutant(
        "a key that is new to Redis begins with the token 1",
        "stores/redis/lua/locks.lua",
        "      local token, version = now, 1",
        "      local token, version = 1, 1",
        (REDIS + "test_after_a_flush_holders_are_notified_and_tokens_keep_rising",),
    ),
    Mutant(
        "PostgreSQL uses the clocks of its clients",
        "stores/postgresql/store.py",
        "        at = None if self._clock is None else str(self._clock()).encode()\n",
        "        at = str((self._clock or host_clock)()).encode()\n",
        (HERE + "test_the_clock_of_a_client_neither_shortens_nor_prolongs_a_lease[postgres-1]",),
    ),
    Mutant(
        "Redis uses the clocks of its clients",
        "stores/redis/store.py",
        "None if clock is host_clock else clock",
        "clock",
        (HERE + "test_the_clock_of_a_client_neither_shortens_nor_prolongs_a_lease[valkey-1]",),
    ),
]
