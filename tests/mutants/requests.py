"""Mutants of updates and approvals."""

from __future__ import annotations

from .runner import Mutant

SUITE = "tests/stores/test_conformance.py::TestMemory::"
UPDATES = "tests/workflows/test_updates.py::"
APPROVALS = "tests/workflows/test_approvals.py::"

REQUESTS = [
    Mutant(
        "an update that is sent again is posted again",
        "rules/runs/updates.py",
        "        if update is not None:\n            return _seen(",
        "        if update is not None and update.answered_at is not None:\n            return _seen(",
        (SUITE + "test_an_update_is_posted_once_and_its_answer_is_returned_to_all_who_ask",),
    ),
    Mutant(
        "an update to a run that was replaced is posted to the next run",
        "rules/runs/updates.py",
        "        if before is None:\n            break\n",
        "        if before is None or before.replaced_by:\n            break\n",
        (SUITE + "test_an_update_stays_with_the_run_that_was_asked_when_that_is_replaced",),
    ),
    Mutant(
        "the key of an update counts for an update with another name",
        "rules/runs/updates.py",
        "if update is not None and update.name != event.name:",
        "if False:",
        (SUITE + "test_the_key_of_an_update_is_refused_for_an_update_with_another_name",),
    ),
    Mutant(
        "a later answer to an update replaces the first one",
        "rules/runs/updates.py",
        "if update is not None and update.answered_at is None:",
        "if update is not None:",
        (SUITE + "test_an_update_is_posted_once_and_its_answer_is_returned_to_all_who_ask",),
    ),
    Mutant(
        "an answer is seen before it is journaled",
        "rules/runs/transitions.py",
        "    if before is None or not rule.may_record(before, fence=fence, at=at):\n",
        "    if before is not None:\n        updates.answer(repo, now, before, requests.replies)\n"
        "    if before is None or not rule.may_record(before, fence=fence, at=at):\n",
        (SUITE + "test_the_answer_to_an_update_is_written_only_by_the_driver_of_the_run",),
    ),
    Mutant(
        "an update that was read and not answered is lost when the run continues",
        "workflow/continuing.py",
        "    keep = tuple(sorted((*unread, *(",
        "    keep = tuple(sorted((*(unread.keys() - code.requests.unanswered.keys()), *(",
        (UPDATES + "test_the_next_generation_receives_requests_that_were_read_and_not_answered",),
    ),
    Mutant(
        "an unanswered update is not unread",
        "workflow/continuing.py",
        "for event in code.untaken} | code.requests.unanswered",
        "for event in code.untaken}",
        (UPDATES + "test_an_unanswered_update_is_unread_for_a_run_that_returns[continue]",),
    ),
    Mutant(
        "a request that was answered meanwhile is closed",
        "rules/runs/transitions.py",
        "if approvals.answered(repo, before, requests.closes):",
        "if False:",
        (
            SUITE + "test_a_record_that_closes_a_request_which_was_answered_changes_nothing",
            APPROVALS + "test_an_answer_that_was_accepted_before_the_timeout_was_stored_counts",
        ),
    ),
    Mutant(
        "a second answer to a request counts too",
        "rules/runs/approvals.py",
        "    if there.decision is not None:\n",
        "    if there.decision is not None and there.decision.request == request:\n",
        (SUITE + "test_a_request_for_an_approval_is_listed_until_it_is_answered_and_the_answer_is_an_event",),
    ),
    Mutant(
        "a name that several requests have names the first one",
        "rules/runs/approvals.py",
        "return named.first if named.count == 1 else None",
        "return named.first",
        (SUITE + "test_a_name_that_is_not_unique_must_be_made_so_by_an_id",),
    ),
    Mutant(
        "requests of a failed attempt stay open",
        "workflow/driver.py",
        "            self._code.requests.attempt_ended()\n",
        "",
        (
            APPROVALS + "test_the_requests_of_a_failed_attempt_are_closed_and_the_next_attempt_asks_anew[memory]",
            APPROVALS + "test_an_answer_that_was_accepted_before_the_end_of_the_attempt_was_stored_counts",
        ),
    ),
    Mutant(
        "requests of a run stay open after its end",
        "rules/runs/admission.py",
        "    approvals.close_all(repo, now, run)\n",
        "",
        (SUITE + "test_the_open_requests_of_a_run_are_closed_where_it_ends_continues_or_is_retried",),
    ),
]
