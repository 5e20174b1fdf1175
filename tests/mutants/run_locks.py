"""Mutants of the locks of runs: what is acquired behind the fence, which runs get events, what is released."""

from __future__ import annotations

from .runner import Mutant

HERE = "tests/stores/test_conformance.py::TestMemory::"
ENGINE = "tests/workflows/test_run_locks.py::"
DEADLOCKS = "tests/workflows/test_deadlock_runs.py::"
SEARCH = "tests/workflows/test_deadlock.py::"
RETRYING = "tests/workflows/test_retrying.py::"
RULE = "rules/runs/locks.py"

LOCKS_OF_RUNS = [
    Mutant(
        "a run that is offered a lock gets no event",
        RULE,
        '                hints += post(repo, now, run, RunEvent(kind="lock", name=str(number))).woken\n',
        "                pass\n",
        (HERE + "test_a_waiting_run_is_offered_the_lock_in_order_by_an_event",),
    ),
    Mutant(
        "a release by a client sends no event to a run",
        "stores/memory/store.py",
        "            hints += notify_offered(space.runs, now, answers[place].notified)\n",
        "            pass\n",
        (HERE + "test_a_client_and_a_run_exclude_each_other",),
    ),
    Mutant(
        "the end of a run keeps its locks",
        "rules/runs/admission.py",
        "    return woken + give_back(repo, now, run)\n",
        "    return woken\n",
        (HERE + "test_the_end_of_a_run_releases_all_its_locks",),
    ),
    Mutant(
        "a run that begins again keeps its locks",
        "rules/runs/transitions.py",
        "    woken += give_back(repo, now, before)\n",
        "",
        (HERE + "test_a_retried_run_releases_all_its_locks",),
    ),
    Mutant(
        "the wait of a run expires like that of a client",
        RULE,
        "            waiter_ttl=None,\n",
        "            waiter_ttl=10_000_000,\n",
        (HERE + "test_a_waiting_run_needs_no_sign_of_life",),
    ),
    Mutant(
        "an offer counts as held",
        RULE,
        " and not holder.offered",
        "",
        (HERE + "test_a_claim_returns_the_locks_of_the_run",),
    ),
    Mutant(
        "a claim does not return the held locks",
        "rules/runs/transitions.py",
        "held=held(repo, now, run)",
        "held=()",
        (HERE + "test_a_claim_returns_the_locks_of_the_run",),
    ),
    Mutant(
        "lock requests are executed before the fence is checked",
        "rules/runs/transitions.py",
        "    if before is None or not rule.may_record(before, fence=fence, at=at):\n        return RunRefused(",
        "    if before is None or not rule.may_record(before, fence=fence, at=at):\n"
        "        if before is not None:\n            ask(repo, now, before, lock_requests)\n        return RunRefused(",
        (HERE + "test_a_former_driver_acquires_no_lock",),
    ),
    Mutant(
        "a released lock stays in the list of the run",
        RULE,
        "            has.pop(one.number, None)\n",
        "            pass\n",
        (HERE + "test_two_lock_requests_of_one_run_exclude_each_other",),
    ),
    Mutant(
        "a run that was stuck once counts as stuck forever",
        "rules/runs/record.py",
        "        stuck=None if stuck is None else Stuck(seen, stuck),\n",
        "        stuck=run.stuck if stuck is None else Stuck(seen, stuck),\n",
        (HERE + "test_a_record_states_whether_the_run_waits_for_locks_only",),
    ),
]

LOCKS_OF_RUNS += [
    Mutant(
        "a run that was granted something is stuck all the same",
        "rules/runs/transitions.py",
        'taken or limited or any(one.what not in ("queued", "given") for one in answers)',
        "taken or limited",
        (HERE + "test_a_run_with_a_new_grant_does_not_count_as_stuck",),
    ),
    Mutant(
        "a run whose child could not be started is stuck all the same",
        "rules/runs/transitions.py",
        "    goes_on = taken or limited or any(",
        "    goes_on = any(",
        (HERE + "test_a_run_whose_child_could_not_be_started_does_not_count_as_stuck",),
    ),
]

OF_THE_ENGINE = [
    Mutant(
        "a lock is not requested again after a crash",
        "workflow/replay_locks.py",
        "            if lock.waits:\n                self.lock_requests[number] = lock.request\n",
        "            pass\n",
        (ENGINE + "test_a_waiting_run_is_parked_and_woken_when_it_gets_the_lock[memory]",),
    ),
    Mutant(
        "a block that is left does not give its lock back",
        "workflow/context_locks.py",
        "        self._code.replay_locks.release(block.lock)\n",
        "",
        (ENGINE + "test_two_tasks_of_one_run_exclude_each_other[memory]",),
    ),
    Mutant(
        "a run that no longer waits stays in the queue",
        "workflow/replay_locks.py",
        "        except BaseException:\n            self.release(lock)\n            raise\n",
        "        except BaseException:\n            raise\n",
        (ENGINE + "test_waiting_for_a_lock_may_have_a_timeout[memory]",),
    ),
    Mutant(
        "a lock lost while its run had no driver counts as held",
        "workflow/driver_locks.py",
        "            if tokens.get(number) != lock.lease.token:\n",
        "            if False:\n",
        (ENGINE + "test_a_lock_lost_while_its_run_has_no_driver_is_delivered_as_lost[sqlite-None]",),
    ),
    Mutant(
        "a lock with a lease is not renewed",
        "workflow/driver_locks.py",
        "        self._renewed[request.number] = self._host.renew(held, self)\n",
        "",
        (ENGINE + "test_a_lock_with_a_lease_is_kept_while_its_run_is_driven[memory]",),
    ),
    Mutant(
        "a run with a lease is parked",
        "workflow/driver.py",
        "        return self.idle and not self._driver_locks.leased\n",
        "        return self.idle\n",
        (ENGINE + "test_a_lock_with_a_lease_is_kept_while_its_run_is_driven[memory]",),
    ),
    Mutant(
        "a retry keeps what the run did in a block that it has lost",
        "workflow/queries.py",
        "        if not open_since:\n",
        "        if True:\n",
        (ENGINE + "test_a_retry_of_a_run_that_failed_while_it_held_a_lock_acquires_it_again[memory]",),
    ),
    Mutant(
        "a retry is refused a lock for the reason of before",
        "workflow/queries.py",
        "j.StepLost | j.LockRefused | j.LockLost",
        "j.StepLost | j.LockLost",
        (RETRYING + "test_a_retried_run_after_a_deadlock_acquires_its_locks_again[memory]",),
    ),
    Mutant(
        "a retry loses the lock that was lost before",
        "workflow/queries.py",
        "j.StepLost | j.LockRefused | j.LockLost",
        "j.StepLost | j.LockRefused",
        (RETRYING + "test_a_retried_run_that_lost_its_lock_acquires_it_again[memory]",),
    ),
    Mutant(
        "a retry keeps the cancellation of the run",
        "workflow/queries.py",
        "        if isinstance(entries[index], j.CancelAsked):\n            return index\n",
        "        pass\n",
        (RETRYING + "test_a_cancelled_run_that_failed_during_cleanup_is_not_cancelled_again_by_retry[memory]",),
    ),
    Mutant(
        "a run that ends does not record its running children",
        "workflow/driver.py",
        'then.status != "completed" and code.living_children',
        "not code.children",
        (RETRYING + "test_a_child_that_was_cancelled_with_its_parent_is_retried_with_it[memory-cancelled-retry]",),
    ),
    Mutant(
        "a run that can still continue counts as stuck",
        "workflow/replay.py",
        "            and not self._event_waits\n",
        "",
        (DEADLOCKS + "test_a_run_that_also_waits_for_a_signal_is_not_in_a_deadlock[memory]",),
    ),
    Mutant(
        "a run that is parked is not stuck any more",
        "workflow/driver.py",
        "None if others or isinstance(self.end, Finish) else",
        "None if others or self.end else",
        (DEADLOCKS + "test_parked_runs_are_part_of_a_cycle[memory]",),
    ),
    Mutant(
        "a run that got an event does not record again that it is stuck",
        "workflow/driver.py",
        "not self._recorder.reported_stuck(self._seen) and self._stuck() is not None",
        "False",
        (DEADLOCKS + "test_a_signal_that_is_not_awaited_does_not_hide_a_cycle[memory]",),
    ),
    Mutant(
        "closing a client releases locks of runs",
        "runtime/heartbeats.py",
        " if not renewal.lent]",
        "]",
        (ENGINE + "test_closing_a_client_releases_no_lock_of_a_run",),
    ),
    Mutant(
        "a run that has just been claimed is parked in spite of its lease",
        "workflow/driver_locks.py",
        "        return any(\n            lock.request.ttl is not None",
        "        return bool(self._renewed) and any(\n            lock.request.ttl is not None",
        (ENGINE + "test_a_sweep_does_not_park_a_run_that_has_a_lock_with_a_lease[sqlite]",),
    ),
    Mutant(
        "a retry keeps the beginning of a block whose end it forgets",
        "workflow/queries.py",
        "        keep = min(open_since.values())\n",
        "        return min(open_since.values())\n",
        (ENGINE + "test_a_retry_begins_before_all_blocks_whose_end_is_removed[memory]",),
    ),
    Mutant(
        "after one run failed the other runs of a cycle are not checked again",
        "workflow/lock_sweeper.py",
        "            asyncio.get_running_loop().call_later(AGAIN_SECONDS, self.search, name)\n",
        "            pass\n",
        (DEADLOCKS + "test_when_one_run_fails_and_others_are_still_in_a_cycle_they_get_the_error_too[memory]",),
    ),
    Mutant(
        "a run gets no error when its lock was released by force",
        "locks/admin.py",
        "            if asker is not None:  # the lock of a run is not renewed: notify the run, so that it checks\n",
        "            if False:\n",
        (ENGINE + "test_a_driven_run_gets_an_error_when_its_lock_was_released_by_force[memory]",),
    ),
    Mutant(
        "a deadlock is never searched for",
        "workflow/driver.py",
        "            self.host.search_deadlock(self.run.id)\n",
        "            pass\n",
        (DEADLOCKS + "test_a_run_that_waits_for_itself_gets_the_error[memory]",),
    ),
    Mutant(
        "a parent that waits for its child does not block the child",
        "workflow/deadlock.py",
        "for child in youngest_first]",
        "for child in ()]",
        (DEADLOCKS + "test_a_child_that_requests_a_lock_of_its_parent_gets_the_error[memory-None]",),
    ),
    Mutant(
        "a run without locks does not record for which children it waits",
        "workflow/replay.py",
        "matters = bool(self.replay_locks.pending or self.replay_locks.carried or self.run.parent)",
        "matters = bool(self.replay_locks.pending)",
        (DEADLOCKS + "test_a_cycle_through_a_parked_run_without_locks_is_found[memory]",),
    ),
    Mutant(
        "only some of the children for which a run waits are recorded",
        "workflow/replay.py",
        "return tuple(self._child_waits) if stuck else None",
        "return tuple(self._child_waits)[:1] if stuck else None",
        (DEADLOCKS + "test_a_parent_that_also_waits_for_another_child_or_a_timer_can_still_continue[memory]",),
    ),
    Mutant(
        "the youngest run gets the error even if it waits for no lock",
        "workflow/deadlock.py",
        "[wait for wait in cycle if wait.number]\n    if",
        "cycle\n    if",
        (SEARCH + "test_of_a_parent_and_its_child_the_one_that_waits_for_a_lock_gets_the_error",),
    ),
    Mutant(
        "a run that waits behind a cycle counts as part of it",
        "workflow/deadlock.py",
        "    _visit(cycle, ahead, last)\n",
        "    _visit(cycle, ahead, next(iter(ahead)))\n",
        (SEARCH + "test_a_run_behind_a_cycle_that_waits_for_one_of_two_children_is_not_part_of_it",),
    ),
    Mutant(
        "a run that lost its lock counts as stuck",
        "workflow/deadlock.py",
        "            return [RunWait(run, key, number, 0, None)]  # it was",
        "            continue  # it was",
        (SEARCH + "test_a_stuck_run_that_lost_a_lock_can_continue",),
    ),
    Mutant(
        "a run that the store does not call stuck believes that it did",
        "workflow/driver.py",
        "            self._recorder.forget_stuck()  # the store did not count the run as stuck\n",
        "            pass\n",
        (DEADLOCKS + "test_a_child_that_could_not_be_started_and_is_not_awaited_does_not_hide_a_cycle[memory]",),
    ),
    Mutant(
        "the oldest run of a cycle gets the error",
        "workflow/deadlock.py",
        "    victim = max(requests",
        "    victim = min(requests",
        (DEADLOCKS + "test_the_youngest_run_of_a_deadlock_gets_the_error[memory-None]",),
    ),
    Mutant(
        "locks of a crashed process are not settled",
        "workflow/lock_sweeper.py",
        "            self._settle_at = now + SETTLE_SECONDS\n            await self._execute(SettleDue())\n",
        "            self._settle_at = now + SETTLE_SECONDS\n",
        (ENGINE + "test_a_run_behind_a_crashed_client_continues_without_commands_of_other_clients[memory]",),
    ),
    Mutant(
        "the sweep searches for no deadlock",
        "workflow/lock_sweeper.py",
        "                self.search(asker[0])\n",
        "                pass\n",
        (DEADLOCKS + "test_a_cycle_that_appears_when_a_client_releases_is_found_by_the_sweep[memory]",),
    ),
    Mutant(
        "a circle is believed although it has changed",
        "workflow/deadlock.py",
        " or await _read(execute, run) != graph",
        "",
        (SEARCH + "test_a_cycle_that_changed_between_two_reads_is_ignored",),
    ),
]
