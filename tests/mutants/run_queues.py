"""Mutants of long queues of runs: the overflow of a lock, its order, and what a failed decision leaves."""

from __future__ import annotations

from .runner import Mutant

HERE = "tests/stores/test_conformance.py::TestMemory::"
HINTS = "tests/workflows/test_hints.py::"
ENGINE = "tests/workflows/test_workflows.py::"
GROWTH = "tests/stores/test_run_queue_growth.py::"

RUN_QUEUES = [
    Mutant(
        "a client overtakes the runs of the overflow",
        "rules/working_record.py",
        "not (line and line[0][0] < self.overflow.first)",
        "not line",
        (HERE + "test_clients_and_runs_are_served_in_one_order",),
    ),
    Mutant(
        "a new waiter behind an overflow gets position 0",
        "rules/lock.py",
        "if self.line or self.overflow is not None else 0",
        "if self.line else 0",
        (HERE + "test_a_new_waiter_gets_the_number_of_waiters_before_it",),
    ),
    Mutant(
        "runs taken from the overflow stay there",
        "rules/runs/lock_queue.py",
        "                self.repo.save(replace(run, waits=kept))\n",
        "                pass\n",
        (HERE + "test_a_long_queue_of_runs_is_served_in_the_order_of_arrival",),
    ),
    Mutant(
        "a decision that failed takes runs out of the queue",
        "stores/common.py",
        "                reader.forget()\n",
        "                pass\n",
        (HERE + "test_a_bad_command_of_a_batch_removes_no_run_from_the_queue",),
    ),
    Mutant(
        "a run that gives up keeps its position in the overflow",
        "rules/runs/locks.py",
        "            repo.save(replace(run, waits=tuple(one for one in run.waits if one is not wait)))\n",
        "            pass\n",
        (HERE + "test_a_run_that_ends_or_gives_up_its_wait_leaves_its_position_to_the_next",),
    ),
    Mutant(
        "the overflow still counts a run that has left",
        "rules/lock.py",
        "            self.leave_overflow()\n",
        "            pass\n",
        (HERE + "test_a_run_that_ends_or_gives_up_its_wait_leaves_its_position_to_the_next",),
    ),
    Mutant(
        "a run that can no longer fit gets no event",
        "rules/working_record.py",
        "            self.hinted.append(waiter.id)\n",
        "            pass\n",
        (HERE + "test_runs_whose_weight_no_longer_fits_get_an_event",),
    ),
    Mutant(
        "a run that is hinted is posted no event",
        "stores/memory/store.py",
        "        if answers[place].notified:\n"
        "            hints += notify_offered(space.runs, now, answers[place].notified)\n",
        "        if answers[place].woken:\n"
        "            hints += notify_offered(space.runs, now, answers[place].woken)\n",
        (HERE + "test_runs_whose_weight_no_longer_fits_get_an_event",),
    ),
    Mutant(
        "a run that ends keeps its position in the overflow",
        "rules/runs/record.py",
        "        watchers=(),\n        locks=(),\n        waits=(),\n",
        "        watchers=(),\n        locks=(),\n",
        (HERE + "test_a_run_that_ends_or_gives_up_its_wait_leaves_its_position_to_the_next",),
    ),
    Mutant(
        "a repeated lock request gets a second position",
        "rules/runs/locks.py",
        "    if wait is not None:\n        return out.Queued",
        "    if wait is False:\n        return out.Queued",
        (HERE + "test_a_repeated_lock_request_keeps_its_position",),
    ),
    Mutant(
        "every run is listed in the record of the lock",
        "rules/runs/locks.py",
        "            listed=lock_queue.LISTED,\n",
        "",
        (GROWTH + "test_the_record_of_a_lock_stays_small",),
    ),
    Mutant(
        "all of the overflow is taken at once",
        "rules/runs/lock_queue.py",
        "        limit = len(self._taken) + LISTED + 1\n",
        "        limit = 10**9\n",
        (GROWTH + "test_a_hand_over_reads_and_writes_the_same_rows_for_every_length_of_the_queue",),
    ),
    Mutant(
        "a lock with an overflow and an empty list is not due",
        "rules/working_record.py",
        "due_at=self.soonest() if self.waiting else None",
        "due_at=self.soonest() if waiters else None",
        (HERE + "test_every_way_of_freeing_a_lock_serves_the_overflow",),
    ),
]

OF_THE_WORKER = [
    Mutant(
        "a hint at a run that is being claimed is forgotten",
        "workflow/worker.py",
        "                self._early.add(run)\n",
        "",
        (HINTS + "test_a_signal_that_arrives_while_its_run_is_claimed_is_delivered_at_once[sqlite]",),
    ),
    Mutant(
        "a full engine does not park waiting runs to claim due ones",
        "workflow/worker.py",
        "                return EARLY_PARKING if self._make_room() else POLL_SECONDS\n",
        "                return POLL_SECONDS\n",
        (ENGINE + "test_a_full_engine_parks_waiting_runs_to_claim_due_ones[sqlite]",),
    ),
]
