"""Mutants of limits: which runs are counted, which are admitted, and in which order."""

from __future__ import annotations

from .runner import Mutant

HERE = "tests/stores/test_conformance.py::TestMemory::"
ENGINE = "tests/workflows/test_limits.py::"
ADMITTING = "rules/runs/admission.py"

LIMITS = [
    Mutant(
        "the end of a run admits no queued run",
        ADMITTING,
        "    if terms is not None:\n        woken += promote(",
        "    if False:\n        woken += promote(",
        (HERE + "test_the_end_of_a_run_admits_the_next_queued_run_in_the_same_step",),
    ),
    Mutant(
        "runs that arrive at one moment wait in any order",
        ADMITTING,
        "    return max(now, *(before + 1 for before in last)) if run.places else 0\n",
        "    return now if run.places else 0\n",
        (HERE + "test_runs_started_in_one_batch_queue_in_the_order_of_the_batch",),
    ),
    Mutant(
        "one run more than the limit is admitted",
        "rules/runs/limits.py",
        "else self.admitted >= self.limit.max",
        "else self.admitted > self.limit.max",
        (HERE + "test_a_start_beyond_the_limit_is_rejected_and_leaves_nothing",),
    ),
    Mutant(
        "any number may wait",
        "rules/runs/limits.py",
        "self.limit.max_queue is not None and self.queued >= self.limit.max_queue",
        "False",
        (HERE + "test_the_queue_of_a_limit_is_never_longer_than_its_maximum",),
    ),
    Mutant(
        "the mildest of several answers counts",
        "rules/runs/limits.py",
        "first = min(full,",
        "first = max(full,",
        (HERE + "test_of_several_full_limits_the_strictest_decides",),
    ),
    Mutant(
        "a run that waits for another limit delays all others",
        ADMITTING,
        "                repo.save(let_in)\n                woken += wake(repo, now, let_in)\n",
        "                repo.save(let_in)\n                woken += wake(repo, now, let_in)\n"
        "            else:\n                break\n",
        (HERE + "test_a_run_that_waits_for_another_limit_does_not_delay_other_runs",),
    ),
    Mutant(
        "raising a limit admits no queued run",
        ADMITTING,
        "    woken = promote(repo, now, workflow, repo.queued_limit_keys(workflow), terms)\n",
        "    woken = ()\n",
        (HERE + "test_raising_a_limit_admits_queued_runs_at_once_and_lowering_it_ends_no_run",),
    ),
    Mutant(
        "older limits replace newer ones",
        "rules/runs/limits.py",
        "(terms != known and terms.version >= known.version)",
        "terms != known",
        (HERE + "test_published_limits_of_a_lower_version_change_nothing",),
    ),
    Mutant(
        "a start with outdated limits is admitted",
        "rules/runs/transitions.py",
        "    if not new.parent and (",
        "    if new.parent and (",
        (HERE + "test_a_start_with_outdated_limits_gets_the_latest_ones",),
    ),
    Mutant(
        "a queued run can be claimed by name",
        "rules/runs/transitions.py",
        ' and run.living and run.status != "queued"]',
        " and run.living]",
        (HERE + "test_a_queued_run_ends_at_once_when_cancelled_and_a_signal_does_not_admit_it",),
    ),
    Mutant(
        "a signal makes a run due during its retry delay",
        "rules/runs/record.py",
        '    waits = run.status == "suspended" and (',
        '    waits = run.status in ("suspended", "pending") and not run.worker and (',
        (HERE + "test_starts_beyond_the_rate_begin_when_the_rate_permits",),
    ),
    Mutant(
        "a run that is already cancelled is cancelled once more",
        ADMITTING,
        " and run.id != newcomer and not run.cancelling:",
        " and run.id != newcomer:",
        (HERE + "test_a_queued_run_is_cancelled_when_all_admitted_runs_are_stopping_already",),
    ),
    Mutant(
        "a retried run is admitted beyond the limit",
        "rules/runs/transitions.py",
        "        entrance = enter(repo, now, after, again=True)\n",
        "        entrance = enter(repo, now, replace(after, places=()), again=True)\n",
        (HERE + "test_an_ended_run_whose_retry_is_rejected_is_unchanged",),
    ),
    Mutant(
        "a parent gets no event about a rejected child",
        "rules/runs/transitions.py",
        "            limited[new.id] = started.verdict\n",
        "            pass\n",
        (HERE + "test_a_rejected_child_is_reported_to_its_parent",),
    ),
    Mutant(
        "a child that was rejected once is rejected forever",
        "workflow/replay.py",
        "        self.taken.pop(new.id, None)  # it may be admitted this time\n",
        "",
        (ENGINE + "test_a_rejected_child_may_be_started_again_with_its_id[memory-False]",),
    ),
    Mutant(
        "a signal goes to another run that fills the limit",
        "workflow/start.py",
        'if started.verdict.what in ("skip", "cancel_newest"):',
        'if started.verdict.what == "cancel_newest":',
        (ENGINE + "test_a_signal_with_a_rejected_start_is_not_delivered[memory-skip]",),
    ),
]
