"""Mutants of forks and imports of runs."""

from __future__ import annotations

from .runner import Mutant

IMPORT = "tests/workflows/test_importing.py::"
FORK = "tests/workflows/test_forking.py::"
SUITE = "tests/stores/test_conformance.py::TestMemory::"

FORKING = [
    Mutant(
        "a fork keeps a lock that was open at the step",
        "workflow/forking.py",
        "return before_open_locks(entries, first)",
        "return first",
        (FORK + "test_a_fork_begins_before_a_lock_that_was_held_at_the_step[sqlite]",),
    ),
    Mutant(
        "a fork counts its events anew",
        "rules/runs/transitions.py",
        "posted=past.posted, generation",
        "posted=len(past.events), generation",
        (SUITE + "test_a_fork_begins_with_entries_and_events_whose_numbers_are_kept",),
    ),
    Mutant(
        "a fork keeps an attempt of the step that failed",
        "workflow/forking.py",
        "first = ids.index(from_step, begun)",
        "first = len(ids) - 1 - ids[::-1].index(from_step)",
        (FORK + "test_failed_attempts_of_a_step_are_not_kept[sqlite]",),
    ),
    Mutant(
        "a fork starts the children again that have ended",
        "workflow/replay.py",
        "        if self.forked is not None and new.id in self.forked.children:\n            return  # it has ended\n",
        "",
        (
            FORK + "test_children_that_have_ended_keep_their_results_and_others_are_started_anew[sqlite-True]",
            FORK + "test_children_that_have_ended_keep_their_results_and_others_are_started_anew[sqlite-False]",
        ),
    ),
    Mutant(
        "a fork has random numbers of its own",
        "workflow/replay.py",
        "    return own if forked is None else forked.seed",
        "    return own",
        (FORK + "test_a_fork_keeps_what_is_before_the_step_and_executes_the_rest_under_its_own_keys[sqlite]",),
    ),
    Mutant(
        "an imported run continues by itself",
        "workflow/importing.py",
        "    if run:\n",
        "    if run or claim.run.living:\n",
        ("tests/workflows/test_importing.py::test_nothing_of_an_imported_run_is_executed[sqlite]",),
    ),
    Mutant(
        "a run with a time that cannot be shown is imported",
        "workflow/importing.py",
        "    if not all(0 <= time <= LATEST for time in times):\n",
        "    if not all(0 <= time for time in times):\n",
        (IMPORT + "test_a_damaged_file_is_refused_with_one_error_and_nothing_is_changed[sqlite-changes19-9998]",),
    ),
]
