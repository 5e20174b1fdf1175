"""Mutants of the fences on servers: PostgreSQL by its drivers, Redis and Valkey."""

from __future__ import annotations

from .runner import Mutant

PSYCOPG = "tests/fencing/test_postgres.py::TestPsycopg::"
ALONE = "tests/fencing/test_postgres.py::"
ASYNCPG = "tests/fencing/test_asyncpg.py::TestAsyncpg::"
ALCHEMY = "tests/fencing/test_sqlalchemy.py::"
REDIS = "tests/fencing/test_redis.py::"


def postgres(name: str, old: str, new: str, caught_by: str) -> Mutant:
    return Mutant(name, "fencing/postgres.py", old, new, (PSYCOPG + caught_by,))


def psycopg(name: str, old: str, new: str, caught_by: str) -> Mutant:
    return Mutant(name, "fencing/psycopg.py", old, new, (ALONE + caught_by,))


def lua(name: str, old: str, new: str, caught_by: str) -> Mutant:
    return Mutant(name, "fencing/fenced.lua", old, new, (REDIS + caught_by,))


def redis(name: str, old: str, new: str, caught_by: str) -> Mutant:
    return Mutant(name, "fencing/redis.py", old, new, (REDIS + caught_by,))


GUARDS = [
    postgres(
        "the guard on PostgreSQL lets every token pass",
        " WHERE fence.floor <= {token}",
        " WHERE {token} > 0",
        "test_a_lower_token_is_refused_and_nothing_was_written",
    ),
    postgres(
        "the guard on PostgreSQL lets a token pass only once",
        "WHERE fence.floor <= {token}",
        "WHERE fence.floor < {token}",
        "test_the_same_token_may_write_again",
    ),
    postgres(
        "the guard on PostgreSQL remembers tokens, not floors",
        '"floor": offer.floor,',
        '"floor": offer.token,',
        "test_holders_of_a_semaphore_do_not_refuse_each_other",
    ),
    postgres(
        "an older floor lowers the fence on PostgreSQL",
        "greatest(fence.floor, excluded.floor)",
        "excluded.floor",
        "test_a_holder_below_the_floor_is_refused_and_an_older_floor_lowers_nothing",
    ),
    postgres(
        "a temporary table is used as the fence",
        '        return f"{found}.{TABLE}"',
        "        return TABLE",
        "test_a_temporary_table_of_the_same_name_is_not_used_as_the_fence",
    ),
    postgres(
        "the fence is created in a temporary schema",
        "space.oid <> pg_catalog.pg_my_temp_schema() AND ",
        "",
        "test_the_fence_is_not_created_as_a_temporary_table",
    ),
    postgres(
        "two transactions that create the table at once collide",
        "    yield FenceStatement(LOCK_CREATION)\n",
        "",
        "test_an_older_holder_waits_for_the_transaction_of_a_newer_one_and_depends_on_its_outcome",
    ),
    postgres(
        "an unlogged table is accepted as the fence",
        "        if persistence != PERMANENT:",
        "        if persistence is None:",
        "test_an_unlogged_table_is_refused_as_the_fence",
    ),
    postgres(
        "a write that a trigger dropped is accepted",
        "    if highest is None or highest <= offer.token:\n",
        "    if highest is None or highest <= offer.token:\n        return\n",
        "test_a_trigger_that_drops_the_write_of_the_fence_does_not_let_a_token_pass",
    ),
    postgres(
        "a role that may not create tables gets an unclear error",
        "    if not may_create:",
        "    if may_create is None:",
        "test_without_the_table_the_error_says_what_to_do_and_the_transaction_continues",
    ),
    psycopg(
        "autocommit is not checked",
        "    if connection.autocommit and status",
        "    if connection.closed and status",
        "test_in_autocommit_mode_the_guard_needs_an_open_transaction",
    ),
    psycopg(
        "a BEGIN in a pipeline is not waited for",
        "    if connection.pgconn.pipeline_status != PipelineStatus.OFF:\n        with",
        "    if connection.closed:\n        with",
        "test_in_a_pipeline_in_autocommit_mode_the_guard_needs_an_open_transaction_too",
    ),
    psycopg(
        "a refused guard leaves its transaction open",
        "        if opens:\n            with suppress(Exception):  # the first",
        "        if not opens:\n            with suppress(Exception):  # the first",
        "test_a_refusal_rolls_back_a_transaction_that_the_guard_opened",
    ),
    psycopg(
        "the guard uses the user's cursors",
        "    with Cursor(connection, row_factory=tuple_row) as cursor:",
        "    with connection.cursor() as cursor:",
        "test_the_users_row_factory_has_no_effect",
    ),
    Mutant(
        "asyncpg is guarded without a transaction",
        "fencing/asyncpg.py",
        "    if not connection.is_in_transaction():",
        "    if connection is None:",
        (ASYNCPG + "test_without_an_open_transaction_the_guard_is_refused_with_what_to_do",),
    ),
    Mutant(
        "the isolation level AUTOCOMMIT is not noticed",
        "fencing/sqlalchemy.py",
        "    return setting\n",
        "    return False\n",
        (ALCHEMY + "test_an_engine_in_autocommit_mode_is_refused_too",),
    ),
    Mutant(
        "SQLAlchemy is not informed that the transaction begins",
        "fencing/sqlalchemy.py",
        "        connection.begin()  # as its first statement would\n",
        "        pass\n",
        (ALCHEMY + "test_on_sqlite_transactions_that_are_begun_by_an_event_are_respected",),
    ),
    lua(
        "the fence on Redis keeps 14 digits",
        'redis.call("SET", KEYS[1], ARGV[2])',
        'redis.call("SET", KEYS[1], tostring(tonumber(ARGV[2])))',
        "test_current_tokens_that_differ_by_one_are_distinguished",
    ),
    lua(
        "tokens on Redis are compared as text",
        "if tonumber(ARGV[1]) < highest then",
        "if stored and ARGV[1] < stored then",
        "test_tokens_are_compared_as_numbers_and_the_largest_fits",
    ),
    lua(
        "a damaged fence on Redis counts as none",
        "if stored and not readable(stored) then",
        "if stored == nil then",
        "test_a_damaged_fence_is_refused_with_what_to_do_and_never_passes",
    ),
    lua(
        "the floor is remembered only after the script",
        "local result = work(keys, arguments)",
        'redis.call("SET", KEYS[1], stored or "1")\nlocal result = work(keys, arguments)\n'
        'redis.call("SET", KEYS[1], ARGV[2])',
        "test_what_a_failing_script_has_written_is_protected_from_older_holders",
    ),
    lua(
        "an error that a script returns is swallowed",
        'if type(result) == "table" and result.err then',
        "if result == KEYS then",
        "test_what_a_failing_script_has_written_is_protected_from_older_holders",
    ),
    redis(
        "the fence on Redis remembers tokens, not floors",
        "offer.token, offer.floor, *args]",
        "offer.token, offer.token, *args]",
        "test_holders_of_a_semaphore_do_not_refuse_each_other",
    ),
    redis(
        "the fence lies in another slot than its key",
        '    return f"{PREFIX}{{{_tag(resource)}}}:{resource}"',
        '    return f"{PREFIX}{_tag(resource)}:{resource}"',
        "test_in_a_cluster_the_fence_is_in_the_slot_of_its_key",
    ),
    redis(
        "a pipeline is taken for a client",
        '    if name not in ("Redis", "RedisCluster"):',
        '    if name == "":',
        "test_a_pipeline_is_refused_because_its_result_comes_too_late",
    ),
    redis(
        "a script that the server has lost is not loaded again",
        "        answer = client.eval(script.source, *request.arguments)",
        "        answer = client.evalsha(script.digest, *request.arguments)",
        "test_scripts_are_loaded_again_after_the_server_has_lost_them",
    ),
]
