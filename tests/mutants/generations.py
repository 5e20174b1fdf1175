"""Mutants of generations of runs."""

from __future__ import annotations

from .runner import Mutant

GENERATIONS = "tests/workflows/test_generations.py::"
SUITE = "tests/stores/test_conformance.py::TestMemory::"

CONTINUING = [
    Mutant(
        "the fence of a run does not rise with its generation",
        "rules/runs/record.py",
        "        fence=new_fence(run, now),\n        generation=run.generation + 1,",
        "        generation=run.generation + 1,",
        (SUITE + "test_the_next_generation_has_an_empty_history_and_a_higher_fence",),
    ),
    Mutant(
        "keys of steps are the same in all generations",
        "workflow/context.py",
        'return f"{generation_id(self.run_id, self.generation)}:{self.step_id}"',
        'return f"{self.run_id}:{self.step_id}"',
        (GENERATIONS + "test_each_generation_begins_with_its_input_an_empty_history_and_keys_of_its_own[sqlite]",),
    ),
    Mutant(
        "a run continues although it has an event that its driver has not seen",
        "rules/runs/record.py",
        "    if then is None or run.posted > seen:\n",
        "    if then is None or (run.posted > seen and not isinstance(then, Continue)):\n",
        (SUITE + "test_events_that_the_generation_has_not_read_stay_in_their_order",),
    ),
    Mutant(
        "keys of signals are forgotten with the generation that has read them",
        "rules/runs/transitions.py",
        "return 0 if number is None and is_remembered(repo, run, event.key) else number",
        "return number",
        (SUITE + "test_events_that_the_generation_has_not_read_stay_in_their_order",),
    ),
    Mutant(
        "keys of signals are remembered for ever",
        "rules/runs/signal_keys.py",
        "for _ in range(PAGES_REMOVED):",
        "for _ in range(0):",
        (SUITE + "test_keys_of_signals_are_remembered_for_so_many_signals",),
    ),
    Mutant(
        "the lock of an open block is released when the run continues",
        "workflow/replay_locks.py",
        "if code.continuing is not None and lock.lease is not None and not lock.lease.lost:",
        "if False:",
        (GENERATIONS + "test_the_lock_of_an_open_block_is_carried_and_entered_again_with_the_same_token[sqlite]",),
    ),
    Mutant(
        "the next generation begins while a thread of a step is running",
        "workflow/driver.py",
        "isinstance(self.end, Continue) and (self._steps.busy or self._code.unstarted):",
        "isinstance(self.end, Continue) and self._code.unstarted:",
        (GENERATIONS + "test_steps_that_are_running_are_cancelled_or_waited_for[sqlite]",),
    ),
    Mutant(
        "a signal that comes after the code has ended is removed with those that were read",
        "workflow/driver.py",
        "            then = self.end = self._next(now=self.host.now())\n",
        "            pass\n",
        (GENERATIONS + "test_a_signal_that_comes_while_a_step_is_waited_for_is_read_by_the_next_generation[sqlite]",),
    ),
    Mutant(
        "a finally block begins a step while the run continues",
        "workflow/replay.py",
        "        if self.continuing is not None:\n            raise self.continuing\n",
        "",
        (GENERATIONS + "test_steps_that_are_running_are_cancelled_or_waited_for[sqlite]",),
    ),
    Mutant(
        "a misspelt signal makes a run continue for ever",
        "workflow/continuing.py",
        "    return not began_with or not set(began_with).issubset(unread)\n",
        "    return True\n",
        (GENERATIONS + "test_signals_that_are_unread_when_the_workflow_returns[sqlite]",),
    ),
    Mutant(
        "a run that is to continue with its unread signals ends when one comes at the last moment",
        "workflow/driver.py",
        'return self._block is None and (isinstance(end, Continue) or (end is not None and end.status == "completed"))',
        "return self._block is None and isinstance(end, Continue)",
        (GENERATIONS + "test_a_signal_that_comes_with_the_end_makes_the_run_continue[sqlite]",),
    ),
    Mutant(
        "signals that a call has received and not returned are lost when the run continues",
        "workflow/continuing.py",
        "found |= {event.number: event for event in code.untaken}",
        "pass",
        (
            GENERATIONS
            + "test_signals_that_a_call_has_received_and_not_returned_are_read_by_the_next_generation"
            + "[sqlite-cancelled]",
        ),
    ),
    Mutant(
        "a limit on starts counts each generation of a run",
        "rules/runs/generations.py",
        "    repo.save(after)\n",
        "    repo.save(after)\n"
        "    for place in run.places:\n"
        "        limit = repo.terms(run.workflow).limit(place.limit)\n"
        "        if limit.per:\n"
        "            repo.note_start(rule.group_of(run.workflow, place), now, run.id, limit, now)\n",
        (GENERATIONS + "test_a_limit_on_starts_does_not_count_a_run_again_that_continues[sqlite]",),
    ),
    Mutant(
        "a cancelled run continues",
        "workflow/driver.py",
        "            if code.end_as is None:\n                self._continue(",
        "            if True:\n                self._continue(",
        (GENERATIONS + "test_a_cancelled_run_does_not_continue[sqlite]",),
    ),
    Mutant(
        "children of earlier generations are not cancelled with the run",
        "workflow/replay.py",
        "for child in [one for one in self.living_children if",
        "for child in [one for one in self.children if",
        (GENERATIONS + "test_children_that_live_stay_children_and_later_generations_give_theirs_other_ids[sqlite]",),
    ),
]
