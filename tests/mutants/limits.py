"""Mutants of the start limits: who is counted, who is let in, and in which order."""

from __future__ import annotations

from .runner import Mutant

HERE = "tests/stores/test_conformance.py::TestMemory::"
ENGINE = "tests/workflows/test_limits.py::"
ADMITTING = "rules/runs/admission.py"

LIMITS = [
    Mutant(
        "the end of a run lets nobody in",
        ADMITTING,
        "    if terms is not None:\n        woken += promote(",
        "    if False:\n        woken += promote(",
        (HERE + "test_who_waits_is_let_in_in_order_in_the_step_in_which_a_place_becomes_free",),
    ),
    Mutant(
        "those who come at one moment wait in any order",
        ADMITTING,
        "    return max(now, *(before + 1 for before in last)) if run.places else 0\n",
        "    return now if run.places else 0\n",
        (HERE + "test_those_who_come_in_one_batch_wait_in_the_order_of_the_batch",),
    ),
    Mutant(
        "one more than the limit is let in",
        "rules/runs/limits.py",
        "else self.admitted >= self.limit.max",
        "else self.admitted > self.limit.max",
        (HERE + "test_over_the_limit_a_start_is_rejected_and_leaves_nothing",),
    ),
    Mutant(
        "any number may wait",
        "rules/runs/limits.py",
        "self.limit.max_queue is not None and self.queued >= self.limit.max_queue",
        "False",
        (HERE + "test_no_more_wait_than_may_wait",),
    ),
    Mutant(
        "the mildest of several answers counts",
        "rules/runs/limits.py",
        "first = min(full,",
        "first = max(full,",
        (HERE + "test_of_several_limits_the_strictest_that_is_full_decides",),
    ),
    Mutant(
        "one that another limit keeps out holds all others up",
        ADMITTING,
        "                repo.save(let_in)\n                woken += wake(repo, now, let_in)\n",
        "                repo.save(let_in)\n                woken += wake(repo, now, let_in)\n"
        "            else:\n                break\n",
        (HERE + "test_one_that_another_limit_keeps_out_holds_nobody_up",),
    ),
    Mutant(
        "raising a limit lets nobody in",
        ADMITTING,
        "    woken = promote(repo, now, workflow, repo.queued_limit_keys(workflow), terms)\n",
        "    woken = ()\n",
        (HERE + "test_when_the_limit_is_raised_who_waits_is_let_in_at_once_and_when_it_is_lowered_nobody_goes",),
    ),
    Mutant(
        "older terms take the place of newer ones",
        "rules/runs/limits.py",
        "(terms != known and terms.version >= known.version)",
        "terms != known",
        (HERE + "test_terms_of_a_lower_version_change_nothing",),
    ),
    Mutant(
        "a start by other terms is let in",
        "rules/runs/transitions.py",
        "    if not new.parent and (",
        "    if new.parent and (",
        (HERE + "test_a_start_by_other_terms_than_the_latest_is_told_them",),
    ),
    Mutant(
        "one who waits can be claimed by naming it",
        "rules/runs/transitions.py",
        ' and run.living and run.status != "queued"]',
        " and run.living]",
        (HERE + "test_one_who_waits_and_is_cancelled_leaves_at_once_and_a_signal_does_not_let_it_in",),
    ),
    Mutant(
        "a signal makes a run due that has an appointment",
        "rules/runs/record.py",
        '    waits = run.status == "suspended" and (',
        '    waits = run.status in ("suspended", "pending") and not run.worker and (',
        (HERE + "test_starts_that_are_too_many_begin_when_the_span_allows",),
    ),
    Mutant(
        "a run that stops already is stopped once more",
        ADMITTING,
        " and run.id != newcomer and not run.cancelling:",
        " and run.id != newcomer:",
        (HERE + "test_when_all_are_stopping_already_who_waited_makes_room",),
    ),
    Mutant(
        "a run that begins again is let in whatever the limit says",
        "rules/runs/transitions.py",
        "        entrance = enter(repo, now, after, again=True)\n",
        "        entrance = enter(repo, now, replace(after, places=()), again=True)\n",
        (HERE + "test_one_that_ended_and_may_not_begin_again_stays_as_it_is",),
    ),
    Mutant(
        "of a child that is too many the parent hears nothing",
        "rules/runs/transitions.py",
        "            limited[new.id] = started.verdict\n",
        "            pass\n",
        (HERE + "test_a_child_that_is_too_many_is_told_to_its_parent",),
    ),
    Mutant(
        "a child that was kept out once is kept out for ever",
        "workflow/replay.py",
        "        self.taken.pop(new.id, None)  # it may be admitted this time\n",
        "",
        (ENGINE + "test_a_child_that_was_kept_out_may_be_started_again_under_its_id[memory-False]",),
    ),
    Mutant(
        "a signal goes to the run that is there in the place of another",
        "workflow/engine.py",
        'handle.admission.outcome in ("skipped", "cancelled")',
        'handle.admission.outcome == "cancelled"',
        (ENGINE + "test_a_signal_to_a_run_that_a_limit_does_not_let_begin_goes_to_nobody[memory-skip]",),
    ),
]
