"""Mutants of the locks that belong to runs on PostgreSQL."""

from __future__ import annotations

from .runner import Mutant

BELONGINGS = "tests/stores/test_postgres_belongings.py::"
SUITE = "tests/stores/test_conformance.py::TestPostgres::"

POSTGRES_BELONGINGS = [
    Mutant(
        "a run on PostgreSQL that is offered a lock is not told",
        "stores/postgresql_belongings.sql",
        "        CONTINUE WHEN NOT starts_with(attempt, 'run:');",
        "        CONTINUE;",
        (SUITE + "test_a_client_and_a_run_exclude_each_other",),
    ),
    Mutant(
        "the end of a run on PostgreSQL keeps its locks",
        "stores/postgresql_run_commands.sql",
        "            PERFORM holdfast.put_locks(ns, mind.before, mind.freed);\n            woken",
        "            PERFORM holdfast.put_locks(ns, mind.before, mind.asked);\n            woken",
        (SUITE + "test_the_end_of_a_run_gives_everything_back",),
    ),
    Mutant(
        "one who is alone ends a run, and its locks are kept",
        "stores/postgresql_short.sql",
        "                       AND o.locks = '[]'\n",
        "",
        (SUITE + "test_the_end_of_a_run_gives_everything_back",),
    ),
    Mutant(
        "one of many ends a run, and its locks are kept",
        "stores/postgresql_short.sql",
        "a.what = 'finish' AND x.locks <> '[]' AS frees",
        "false AS frees",
        (BELONGINGS + "test_what_the_end_of_a_run_frees_is_told_between_what_comes_before_and_behind_it",),
    ),
    Mutant(
        "a poisoned run on PostgreSQL keeps its locks",
        "stores/postgresql_claims.sql",
        "            PERFORM holdfast.put_locks(r.namespace, mind.before, mind.freed);",
        "            NULL;",
        (SUITE + "test_a_poisoned_run_gives_everything_back",),
    ),
    Mutant(
        "a run on PostgreSQL that begins again keeps its locks",
        "stores/postgresql_run_commands.sql",
        "    IF keeping THEN\n        PERFORM",
        "    IF false THEN\n        PERFORM",
        (SUITE + "test_a_run_that_begins_again_gives_everything_back",),
    ),
    Mutant(
        "what a stale driver on PostgreSQL asks of locks is carried out",
        "stores/postgresql_run_commands.sql",
        "OR r.status <> 'running' OR r.fence <> (cmd->>'fence')::bigint OR r.length",
        "OR r.status <> 'running' OR r.length",
        (SUITE + "test_a_driver_that_is_not_the_driver_takes_nothing",),
    ),
    Mutant(
        "a run whose child could not be started is called stuck on PostgreSQL",
        "stores/postgresql_run_commands.sql",
        "jsonb_typeof(cmd->'stuck') = 'array' AND others = '{}' AND limited = '{}'",
        "jsonb_typeof(cmd->'stuck') = 'array'",
        (SUITE + "test_a_run_whose_child_could_not_be_started_is_not_stuck",),
    ),
    Mutant(
        "a record with asks is taken for a simple one",
        "stores/postgres_runs.py",
        "not (command.children or command.asks)",
        "not command.children",
        (SUITE + "test_a_run_takes_a_free_lock_in_the_step_of_its_record",),
    ),
    Mutant(
        "a lone command offers a lock to a run whose row is taken",
        "stores/postgresql_batch.sql",
        "        IF asker IS NOT NULL THEN\n            RETURN holdfast.taken(asker)::jsonb;",
        "        IF false THEN\n            RETURN holdfast.taken(asker)::jsonb;",
        (BELONGINGS + "test_a_lock_is_not_offered_to_a_run_whose_row_is_taken[0]",),
    ),
    Mutant(
        "one command of many offers a lock to a run whose row is taken",
        "stores/postgresql_batch.sql",
        "w.late OR w.asker IS NOT NULL AS taken",
        "w.late AS taken",
        (BELONGINGS + "test_a_lock_is_not_offered_to_a_run_whose_row_is_taken[2]",),
    ),
    Mutant(
        "a sweep offers a lock to a run whose row is taken",
        "stores/postgresql_batch.sql",
        "        CONTINUE WHEN settled.woken IS NOT NULL AND holdfast.own_askers(ns, settled.woken) IS NOT NULL;",
        "",
        (BELONGINGS + "test_a_sweep_passes_over_what_it_would_offer_to_a_run_whose_row_is_taken",),
    ),
    Mutant(
        "a run waits for the row of a lock while others may wait for its own",
        "stores/postgresql_belongings.sql",
        "             FOR UPDATE SKIP LOCKED) AS l;",
        "             FOR UPDATE) AS l;",
        (BELONGINGS + "test_nothing_is_given_back_while_a_row_is_taken[end-lock]",),
    ),
    Mutant(
        "a lock that a run asks for is judged by a time before it was written",
        "stores/postgresql_belongings.sql",
        "THEN live AND holdfast.just_written(records->k.key, at)",
        "THEN false",
        (BELONGINGS + "test_a_lock_that_was_somebody_elses_when_the_clock_was_read_is_not_judged_by_that_time[ask]",),
    ),
    Mutant(
        "what the end of a run frees is offered to one whose row is taken",
        "stores/postgresql_belongings.sql",
        "        offered := offered || step.woken;",
        "",
        (BELONGINGS + "test_nothing_is_given_back_while_a_row_is_taken[end-heir]",),
    ),
    Mutant(
        "runs are told in the order of the keys",
        "stores/postgres_batch.py",
        "                if order != here:",
        "                if False:",
        (BELONGINGS + "test_runs_are_told_in_the_order_of_the_commands_of_a_batch[0]",),
    ),
    Mutant(
        "the worker of a run that is offered a lock is not told, if it is near",
        "stores/postgresql.py",
        "woken_by_channel(outcomes, self._batch.hints)",
        "woken_by_channel(outcomes)",
        (BELONGINGS + "test_the_worker_of_a_run_that_is_offered_a_lock_is_told_and_nobody_else",),
    ),
    Mutant(
        "an attempt of a run is notified as a client's is",
        "stores/postgresql_batch.sql",
        "              WHERE NOT starts_with(id, 'run:') GROUP BY 1) AS x",
        "              GROUP BY 1) AS x",
        (BELONGINGS + "test_the_worker_of_a_run_that_is_offered_a_lock_is_told_and_nobody_else",),
    ),
]
