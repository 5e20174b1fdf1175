"""Mutants of the heartbeats of steps."""

from __future__ import annotations

from .runner import Mutant

SUITE = "tests/stores/test_conformance.py::TestMemory::"
HEARTBEATS = "tests/workflows/test_heartbeats.py::"
THREADS = "tests/workflows/test_step_threads.py::"

HEARTBEAT_RULES = [
    Mutant(
        "a worker that lost the run sends heartbeats",
        "rules/runs/heartbeats.py",
        '    if found is None or found.status != "running" or found.fence != fence:\n',
        '    if found is None or found.status != "running":\n',
        (SUITE + "test_a_heartbeat_needs_the_fence_of_a_run_that_is_driven",),
    ),
    Mutant(
        "a run of a silent step is taken over under the same fence",
        "rules/runs/record.py",
        "        fence=new_fence(run, now),\n        claims=run.claims + 1,\n",
        "        fence=run.fence or new_fence(run, now),\n        claims=run.claims + 1,\n",
        (SUITE + "test_a_run_whose_step_is_silent_is_taken_from_a_worker_that_has_its_lease",),
    ),
    Mutant(
        "a heartbeat that has expired is ignored",
        "rules/runs/heartbeats.py",
        "one.expires_at is not None and one.expires_at <= now)",
        "one.expires_at is not None and one.expires_at <= 0)",
        (SUITE + "test_a_run_whose_step_is_silent_is_taken_from_a_worker_that_has_its_lease",),
    ),
    Mutant(
        "a run is taken over before its heartbeat has expired",
        "rules/runs/heartbeats.py",
        "one.expires_at is not None and one.expires_at <= now)",
        "one.expires_at is not None)",
        (SUITE + "test_a_run_whose_steps_send_heartbeats_stays_with_its_worker",),
    ),
    Mutant(
        "a worker takes its own run over",
        "rules/runs/transitions.py",
        "            repo.save(rule.postponed(run, now))\n            continue\n        if not may_claim",
        "            run = rule.orphaned(run, now)\n        if not may_claim",
        (SUITE + "test_a_worker_does_not_take_its_own_run_from_itself",),
    ),
    Mutant(
        "a takeover does not count as a crash",
        "rules/runs/transitions.py",
        "            run = rule.orphaned(run, now)\n        if run.crashes",
        "            run = replace(rule.orphaned(run, now), crashes=run.crashes)\n        if run.crashes",
        (SUITE + "test_a_run_whose_step_is_silent_again_and_again_is_blocked",),
    ),
    Mutant(
        "the next attempt does not find the details",
        "rules/runs/heartbeat_records.py",
        "    if one.details is None:\n        return None\n",
        "    if one.details is None or one.expires_at is not None:\n        return None\n",
        (SUITE + "test_a_run_whose_step_is_silent_is_taken_from_a_worker_that_has_its_lease",),
    ),
    Mutant(
        "a step that has a result keeps its run due",
        "rules/runs/record.py",
        "        run = replace(run, heartbeats=heartbeats, due_at=first_expiry(heartbeats))\n    if then is None",
        "        run = replace(run, heartbeats=heartbeats)\n    if then is None",
        (SUITE + "test_the_end_of_an_attempt_is_recorded_with_its_result",),
    ),
    Mutant(
        "a heartbeat without details removes those of the last one",
        "rules/runs/heartbeat_records.py",
        "    if details is None and before is not None:\n",
        "    if details is None and before is None:\n",
        (SUITE + "test_a_heartbeat_without_details_keeps_those_of_the_last_one",),
    ),
]

HEARTBEATS_OF_STEPS = [
    Mutant(
        "the time of a plain step begins before a thread is free",
        "workflow/step_runner.py",
        "        await attempt.begun\n",
        "",
        (THREADS + "test_the_time_of_a_plain_step_begins_when_a_thread_is_free[memory-timeout]",),
    ),
    Mutant(
        "no heartbeats are sent for a step that waits for a thread",
        "workflow/step_runner.py",
        "        heartbeats.wait(attempt.refuse)\n",
        "",
        (THREADS + "test_heartbeats_are_sent_for_a_step_that_waits_for_a_thread[sqlite]",),
    ),
    Mutant(
        "the body of an attempt that is over runs when a thread is free",
        "workflow/step_threads.py",
        '            self._state = "over"\n        if queued:\n            self.thread.cancel()\n',
        "",
        (THREADS + "test_a_plain_step_that_the_code_gave_up_before_a_thread_was_free_is_not_run",),
    ),
    Mutant(
        "a step begins before its first heartbeat is stored",
        "workflow/step_runner.py",
        "            heartbeats.begin(partial(self._first_stored, call, heartbeats))\n",
        "            heartbeats.begin(lambda _: None)\n            self._start(call, heartbeats)\n",
        (HEARTBEATS + "test_a_step_with_a_heartbeat_timeout_begins_when_its_first_heartbeat_is_stored",),
    ),
    Mutant(
        "the last heartbeat of a failed attempt is not sent",
        "workflow/step_heartbeats.py",
        "        attempt.close(closed, send=failed)\n",
        "        attempt.close(closed, send=False)\n",
        (HEARTBEATS + "test_a_heartbeat_that_was_not_sent_yet_is_stored_before_the_failure_and_not_before_a_result",),
    ),
    Mutant(
        "each call of heartbeat is sent",
        "workflow/step_heartbeats.py",
        "        pause = self._sent_at + self._pause - elapsed()\n",
        "        pause = 0.0\n",
        (HEARTBEATS + "test_few_heartbeats_are_sent_however_often_a_body_calls",),
    ),
    Mutant(
        "the heartbeat of a step that the code does not wait for stays in the store",
        "workflow/step_runner.py",
        "            self._heartbeats.ended(call.id)\n            _ignore_exception(body)\n",
        "            _ignore_exception(body)\n",
        (HEARTBEATS + "test_a_step_that_the_code_does_not_wait_for_any_more_leaves_no_heartbeat",),
    ),
    Mutant(
        "a run that is driven again loses the first heartbeat of the new attempt",
        "workflow/step_heartbeats.py",
        "        self._ends.pop(step, None)\n",
        "",
        (HEARTBEATS + "test_a_worker_that_drives_its_run_again_keeps_the_heartbeat_of_the_new_attempt[sqlite]",),
    ),
    Mutant(
        "a silent step goes on",
        "workflow/step_heartbeats.py",
        '        if left > 0:\n            self._later("check", left, self._check)\n',
        '        if left > -60:\n            self._later("check", max(left, 0.1), self._check)\n',
        (HEARTBEATS + "test_the_error_of_a_silent_step_names_the_heartbeat",),
    ),
]
