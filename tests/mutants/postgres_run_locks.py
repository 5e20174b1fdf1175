"""Mutants of the locks that belong to runs on PostgreSQL."""

from __future__ import annotations

from .runner import Mutant

LOCKS_OF_RUNS = "tests/stores/test_postgres_run_locks.py::"
SUITE = "tests/stores/test_conformance.py::TestPostgres::"

PROTOCOL = "tests/stores/test_postgres_protocol.py::"
ADVISORY = "tests/stores/test_postgres_advisory.py::"

POSTGRES_LOCKS_OF_RUNS = [
    Mutant(
        "the end of a run on PostgreSQL by its form keeps its locks",
        "stores/postgresql/sql/fast_path.sql",
        "AND x.rest->'places' IS NULL AND x.rest->'locks' IS NULL)",
        "AND x.rest->'places' IS NULL)",
        (SUITE + "test_the_end_of_a_run_releases_all_its_locks",),
    ),
    Mutant(
        "a sweep offers a lock to a run whose row is locked",
        "stores/decisions.py",
        "if self._is_there(key) and self._can_be_notified(key)]",
        "if self._is_there(key)]",
        (LOCKS_OF_RUNS + "test_a_sweep_skips_a_lock_whose_next_run_has_a_locked_row",),
    ),
    Mutant(
        "a sweep stops at a run of an overflow whose row is locked",
        "stores/decisions.py",
        "decided_alone(before, Settle(key=key), self.now, reader)",
        "decided_alone(before, Settle(key=key), self.now, None)",
        (LOCKS_OF_RUNS + "test_a_sweep_skips_a_lock_whose_next_run_has_a_locked_row[overflow]",),
    ),
    Mutant(
        "the server ends a user's own transaction that is idle for a second",
        "stores/postgresql/transactions.py",
        '        Statement(" ".join(SETTINGS.split()).encode(), (PATIENCE, b"true")),\n',
        (
            '        Statement(" ".join(SETTINGS.split()).encode(), (PATIENCE, b"true")),\n'
            '        Statement(b"SET LOCAL idle_in_transaction_session_timeout = 1000"),\n'
        ),
        ("tests/stores/test_postgres_transactions.py::test_the_lock_timeout_of_the_users_transaction_is_unchanged",),
    ),
    Mutant(
        "a crashed waiter of advisory=true stays in the queue",
        "stores/postgresql/records.py",
        "if one.id not in severed) if severed else record.waiters",
        "if one.id not in severed or True) if severed else record.waiters",
        (ADVISORY + "test_a_killed_waiter_is_removed_from_the_queue_at_once",),
    ),
    Mutant(
        "a crashed waiter of advisory=true closes the lock for its lock-delay",
        "stores/postgresql/records.py",
        "if holder.delay and not holder.offered:",
        "if holder.delay:",
        (ADVISORY + "test_an_offer_to_a_killed_waiter_ends_with_its_session",),
    ),
    Mutant(
        "a waiter of advisory=true is not tied to a session",
        "stores/postgresql/session_bound.py",
        "        lock.queue(_with_session(waiter, session))\n",
        "        pass\n",
        (ADVISORY + "test_grants_of_one_batch_about_one_key_are_tied_to_the_session_too",),
    ),
    Mutant(
        "the written half of a batch is done again",
        "stores/postgresql/batch.py",
        "executor.execute(source, commands, in_halves=False)",
        "executor.execute(source, commands)",
        (PROTOCOL + "test_the_written_half_of_a_batch_is_not_repeated_when_the_other_half_is_contended",),
    ),
    Mutant(
        "a worker of this client is not notified of an offer to its run",
        "stores/postgresql/store.py",
        "woken_by_channel(outcomes, self._batch.hints)",
        "woken_by_channel(outcomes)",
        (LOCKS_OF_RUNS + "test_only_the_worker_of_a_run_that_is_offered_a_lock_is_notified",),
    ),
    Mutant(
        "an attempt of a run is notified as a client's is",
        "stores/postgresql/writing.py",
        "        if not attempt.startswith(RUN_PREFIX) and",
        "        if",
        (LOCKS_OF_RUNS + "test_only_the_worker_of_a_run_that_is_offered_a_lock_is_notified",),
    ),
]
