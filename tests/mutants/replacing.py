"""Mutants of runs that are replaced, and of their waiters."""

from __future__ import annotations

from .runner import Mutant

SUITE = "tests/stores/test_conformance.py::TestMemory::"
REPLACING_TESTS = "tests/workflows/test_replacing.py::"


def rule(name: str, old: str, new: str, caught_by: str, *, file: str = "replacing") -> Mutant:
    return Mutant(name, f"rules/runs/{file}.py", old, new, (SUITE + caught_by,))


REPLACING = [
    rule(
        "a run that has not ended is replaced",
        '    if run.living:\n        return "living"\n',
        "",
        "test_a_living_run_is_not_replaced",
    ),
    rule(
        "a child of a living parent is replaced",
        "if parent is not None and parent.living and rule.is_child_of(run, parent):",
        "if parent is not None and not parent.living and rule.is_child_of(run, parent):",
        "test_a_child_of_a_living_parent_is_not_replaced",
    ),
    rule(
        "a replaced run is kept without the keys of its signals",
        "self._repo.post(kept.id, events.get(number) or RunEvent(",
        'self._repo.post(kept.id, number in events and replace(events[number], key="") or RunEvent(',
        "test_an_ended_run_is_replaced_and_kept_whole_under_another_id",
    ),
    rule(
        "events of a replaced run get other numbers",
        "        if gaps:\n            self._repo.unpost(kept.id, gaps)\n",
        "",
        "test_events_keep_their_numbers_where_some_were_removed",
    ),
    rule(
        "the keys of the signals of a replaced run are forgotten",
        "remembered=remember(repo, now, run, keys)",
        "remembered=run.remembered",
        "test_a_signal_that_an_ended_run_knows_begins_nothing",
    ),
    rule(
        "a start that is sent again after its run was replaced replaces again",
        "        run = repo.run(run.replaces)\n",
        "        return None\n",
        "test_a_start_sent_again_returns_its_run_also_after_that_was_replaced",
    ),
    rule(
        "a replaced child is taken for the one that its restarted parent starts",
        "if new.parent or not run.replaces or",
        "if not run.replaces or",
        "test_a_child_that_was_replaced_is_not_taken_for_the_one_that_its_restarted_parent_starts",
    ),
    rule(
        "a signal that the ended run has received begins a run",
        "if before.living or _knows(repo, before, event) is not None:",
        "if before.living:",
        "test_a_signal_that_an_ended_run_knows_begins_nothing",
        file="transitions",
    ),
    rule(
        "a kept run is revived",
        "before.fence != fence or before.replaced_by or not free(",
        "before.fence != fence or not free(",
        "test_a_kept_run_neither_continues_nor_receives_anything",
        file="transitions",
    ),
    rule(
        "the run that replaced a parent receives the ends of its children",
        "if parent is not None and not (parent.living and rule.is_child_of(run, parent)):",
        "if parent is not None and not parent.living:",
        "test_the_end_of_a_child_is_no_event_for_the_run_that_replaced_its_parent",
        file="admission",
    ),
]
WAITERS_OF_REPLACED = [
    Mutant(
        "waiters of a replaced run get the result of the new one",
        "workflow/queries.py",
        "if run.first > awaited.first:",
        "if run.first < awaited.first:",
        (REPLACING_TESTS + "test_a_waiter_gets_the_result_of_the_run_that_it_has_seen_first[memory]",),
    ),
    Mutant(
        "a handle gets the result of the run that is driven here under its id",
        "workflow/worker.py",
        "if driver.run.first != awaited.first:",
        "if driver.run.first < awaited.first:",
        (REPLACING_TESTS + "test_a_handle_of_a_replaced_run_does_not_wait_for_the_one_that_is_driven_here[memory]",),
    ),
]
