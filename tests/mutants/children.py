"""Mutants of what a run does to its children."""

from __future__ import annotations

from .runner import Mutant

DELAYS = "tests/workflows/test_delayed_starts.py::"
POLICIES = "tests/workflows/test_on_parent_end.py::"
SUITE = "tests/stores/test_conformance.py::TestMemory::"
HANDLES = "tests/workflows/test_child_handles.py::"

CHILDREN = [
    Mutant(
        "a signal to a child has a new key each time that it is sent",
        "workflow/child_signals.py",
        'key=f"signal/{run}:{call.id}")',
        'key=f"signal/{run}:{call.id}.{id(object())}")',
        (HANDLES + "test_a_child_gets_the_signals_of_its_parent_in_order[memory]",),
    ),
    Mutant(
        "the key of a signal to a child does not contain the generation",
        "workflow/child_signals.py",
        "run = generation_id(code.run.id, code.run.generation)",
        "run = generation_id(code.run.id, 1)",
        (HANDLES + "test_each_generation_sends_its_signals_to_a_child_that_it_starts_again[memory]",),
    ),
    Mutant(
        "a fork does not send signals to its own children",
        "workflow/driver.py",
        "self._effect(partial(self._children.signal_again, signals))",
        "pass",
        (HANDLES + "test_a_fork_sends_the_signals_to_its_own_child[memory]",),
    ),
    Mutant(
        "an event of a parent is posted to any run that has the id",
        "rules/runs/transitions.py",
        "    if before is not None and parent not in (None,",
        "    if before is None and parent not in (None,",
        (
            SUITE + "test_an_event_of_a_run_is_refused_by_a_run_that_it_has_not_started",
            SUITE + "test_an_event_of_a_run_is_refused_after_its_child_was_replaced",
        ),
    ),
    Mutant(
        "the reason of a later cancel replaces that of the first one",
        "rules/runs/record.py",
        "    if run.cancelling or run.cancelled_by is not None:\n        return run\n",
        "",
        (SUITE + "test_the_reason_of_the_first_cancel_is_kept_until_a_retry",),
    ),
    Mutant(
        "the end of a run cancels a run that it has not started",
        "rules/runs/parent_ends.py",
        ' or child.on_parent_end != "cancel" or not rule.is_child_of(child, parent):',
        ' or child.on_parent_end != "cancel":',
        (SUITE + "test_the_end_of_a_run_cancels_its_children_with_that_policy_and_no_other_run",),
    ),
    Mutant(
        "the end of a run cancels no child",
        "rules/runs/transitions.py",
        "        woken += cancel_children(repo, now, after, then.cancels, then.status)\n",
        "",
        (SUITE + "test_the_end_of_a_run_cancels_its_children_with_that_policy_and_no_other_run",),
    ),
    Mutant(
        "a child that ends with its parent is forgotten by the next generation",
        "workflow/continuing.py",
        'if code.policy_of(child) == "cancel"',
        "if False",
        (POLICIES + "test_the_end_of_a_parent_does_this_to_its_children[cancel-completes-cancelled-2]",),
    ),
    Mutant(
        "an abandoned child is cancelled with its parent",
        "workflow/replay.py",
        'if self.policy_of(one) != "abandon"',
        "if one",
        (POLICIES + "test_the_end_of_a_parent_does_this_to_its_children[abandon-stops-running-1]",),
    ),
    Mutant(
        "an abandoned child is removed while its parent can start it again",
        "rules/runs/purging.py",
        '    if _may_be_missed(repo, run):\n        return "living"\n',
        "",
        (SUITE + "test_an_abandoned_child_is_not_removed_while_its_parent_can_be_retried",),
    ),
]
STARTS = [
    Mutant(
        "a delayed run is claimed early by its name",
        "rules/runs/blocking.py",
        "    if rule.is_delayed(run, now):\n        return False\n",
        "",
        (
            SUITE + "test_a_delayed_run_belongs_to_nobody_and_is_claimed_when_its_delay_is_over",
            DELAYS + "test_a_delayed_run_begins_when_its_delay_is_over",
        ),
    ),
    Mutant(
        "a delayed run begins when its limits admit it",
        "rules/runs/record.py",
        "for when in (due_at, run.not_before) if",
        "for when in (due_at,) if",
        (SUITE + "test_a_run_that_waits_for_a_limit_keeps_its_delay",),
    ),
    Mutant(
        "a fork forgets the timeout of the start",
        "workflow/forking.py",
        "        timeout=run.timeout,\n",
        "",
        (DELAYS + "test_a_retry_a_restart_a_fork_and_the_next_generation_keep_the_timeout",),
    ),
]
