"""Mutants of blocked runs."""

from __future__ import annotations

from .runner import Mutant

BLOCKED = "tests/workflows/test_blocked.py::"
SUITE = "tests/stores/test_conformance.py::TestMemory::"

BLOCKING = [
    Mutant(
        "code that does not fit fails the run",
        "workflow/driver.py",
        "        if isinstance(error, NotInWorkflow) or fails",
        "        if isinstance(error, HoldfastError) or fails",
        (BLOCKED + "test_a_bad_deploy_blocks_and_the_roll_back_continues_each_run_once[sqlite]",),
    ),
    Mutant(
        "a run that waits fails because of its input, although it has begun",
        "workflow/driver.py",
        "return self._recorder.length == 1 and self.run.claims - tries <= 1",
        "return self._recorder.length == 1",
        (BLOCKED + "test_a_run_that_has_begun_is_blocked_even_if_its_workflow_fails_unreadable_inputs",),
    ),
    Mutant(
        "a result of a child that new code cannot read fails the parent",
        "workflow/replay.py",
        "if self.replaying or recorded:",
        "if self.replaying:",
        (
            BLOCKED
            + "test_a_result_of_a_child_that_new_code_is_first_to_read_and_cannot_read_blocks_the_parent[sqlite]",
        ),
    ),
    Mutant(
        "a run is given up although it has started a child meanwhile",
        "rules/runs/blocking.py",
        "before.fence == fence and last in (None, before.last)",
        "before.fence == fence",
        (SUITE + "test_a_run_is_given_up_only_while_no_worker_drives_it",),
    ),
    Mutant(
        "an engine that was open when a run was poisoned can resume it",
        "rules/runs/blocking.py",
        "if untried or (named and run.block.poisoned):",
        "if untried:",
        (SUITE + "test_a_run_that_crashes_its_workers_is_blocked",),
    ),
    Mutant(
        "a run is blocked by a worker that does not drive it any more",
        "rules/runs/blocking.py",
        'found.status != "running" or found.fence != fence',
        'found.status != "running"',
        (SUITE + "test_a_run_is_blocked_only_by_its_driver_and_also_with_events_that_the_driver_has_not_seen",),
    ),
    Mutant(
        "an engine tries a blocked run again and again",
        "rules/runs/record.py",
        "        if engine in self.engines:\n            return False\n",
        "",
        (SUITE + "test_a_blocked_run_is_tried_again_after_growing_pauses_and_earlier_by_other_engines",),
    ),
    Mutant(
        "a run that crashes its workers is tried by the engines that are open",
        "rules/runs/record.py",
        "return opened > self.since and (new",
        "return (new",
        (SUITE + "test_a_run_that_crashes_its_workers_is_blocked",),
    ),
    Mutant(
        "no other engine is notified of a blocked run",
        "rules/runs/blocking.py",
        "return Blocked(run=after, woken=_others(repo, now, after))",
        "return Blocked(run=after)",
        (BLOCKED + "test_an_engine_with_code_that_fits_takes_over_at_once_during_a_rolling_deploy[sqlite]",),
    ),
    Mutant(
        "blocked runs are found only by hints",
        "workflow/blocked_runs.py",
        "or (not self._reading and elapsed() >= self._next_read)",
        "",
        (BLOCKED + "test_an_engine_finds_a_blocked_run_that_no_hint_was_sent_for[sqlite]",),
    ),
    Mutant(
        "engines that are no longer named try a blocked run again and again",
        "rules/runs/record.py",
        "return self.names_all or opened > self.since",
        "return True",
        (SUITE + "test_where_more_engines_have_tried_a_blocked_run_than_are_named_only_new_ones_try_it",),
    ),
    Mutant(
        "a run that was blocked meanwhile is chosen to end a deadlock",
        "rules/runs/transitions.py",
        'if event.kind == "deadlock" and not rule.is_stuck(before):',
        "if False:",
        (SUITE + "test_a_deadlock_is_reported_only_to_a_run_that_is_stuck",),
    ),
    Mutant(
        "an engine that opens does not try blocked runs",
        "workflow/blocked_runs.py",
        "        self._next_read = 0.0\n",
        "        self._next_read = elapsed() + 3_600.0\n",
        (BLOCKED + "test_a_bad_deploy_blocks_and_the_roll_back_continues_each_run_once[sqlite]",),
    ),
    Mutant(
        "the time for which a run was blocked counts for its timeout",
        "workflow/driver.py",
        " + timeout + self.run.blocked_for",
        " + timeout",
        (BLOCKED + "test_time_that_a_run_is_blocked_does_not_count_for_its_timeout[sqlite]",),
    ),
    Mutant(
        "a recorded value that cannot be read any more is an error of the workflow",
        "workflow/replay.py",
        "                if self.replaying or recorded:\n                    self._unfit = error\n"
        "                    await self.loop.create_future()\n",
        "",
        (BLOCKED + "test_a_recorded_value_that_the_code_can_no_longer_read_blocks_the_run[sqlite-signal]",),
    ),
    Mutant(
        "what could not be read when it arrived is not noted",
        "workflow/replay.py",
        "                self.note(j.Unread(at=self.loop.now, id=id))\n",
        "",
        (
            BLOCKED + "test_a_signal_that_cannot_be_read_when_it_arrives_is_an_error_in_the_workflow_and_in_every_"
            "replay[sqlite]",
        ),
    ),
    Mutant(
        "a run that is given up does not name the children that it leaves",
        "workflow/queries.py",
        'children=children)) if children else ""',
        'children=children)) if not children else ""',
        (BLOCKED + "test_a_run_that_was_given_up_and_is_retried_waits_for_the_child_that_it_left[sqlite]",),
    ),
]
