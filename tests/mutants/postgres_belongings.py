"""Mutants of the locks that belong to runs on PostgreSQL."""

from __future__ import annotations

from .runner import Mutant

BELONGINGS = "tests/stores/test_postgres_belongings.py::"
SUITE = "tests/stores/test_conformance.py::TestPostgres::"

POSTGRES_BELONGINGS = [
    Mutant(
        "the end of a run on PostgreSQL by its form keeps its locks",
        "stores/postgresql_forms.sql",
        "AND x.rest->'places' IS NULL AND x.rest->'locks' IS NULL)",
        "AND x.rest->'places' IS NULL)",
        (SUITE + "test_the_end_of_a_run_gives_everything_back",),
    ),
    Mutant(
        "a sweep offers a lock to a run whose row is taken",
        "stores/decisions.py",
        "if self._is_there(key) and self._can_be_told(key)]",
        "if self._is_there(key)]",
        (BELONGINGS + "test_a_sweep_passes_over_what_it_would_offer_to_a_run_whose_row_is_taken",),
    ),
    Mutant(
        "a run that cannot give back its locks now keeps its worker from all others",
        "stores/repository.py",
        "run.deaths < POISONED or self._may_end(run)",
        "run.deaths < POISONED or run.deaths > 0",
        (BELONGINGS + "test_a_run_that_cannot_give_back_its_locks_now_keeps_its_worker_from_no_other[lock]",),
    ),
    Mutant(
        "a claim writes a lock that another transaction has",
        "stores/repository.py",
        "            self._snapshot.get(LockByKey(key))  # raises if another transaction has it\n",
        "            pass\n",
        (BELONGINGS + "test_a_run_that_cannot_give_back_its_locks_now_keeps_its_worker_from_no_other[lock]",),
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
        "stores/postgres_writing.py",
        "        if not attempt.startswith(MARK) and",
        "        if",
        (BELONGINGS + "test_the_worker_of_a_run_that_is_offered_a_lock_is_told_and_nobody_else",),
    ),
]
