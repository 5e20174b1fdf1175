"""Mutants of states, durable locks, leases, run locks, read-write locks and leaders."""

from __future__ import annotations

from .runner import Mutant

SLOT = "tests/rules/test_slot.py::"
STATE = "tests/state/test_state.py::"
DURABLE = "tests/state/test_durable_locks.py::"
LEASES = "tests/locks/test_named_leases.py::"
RUNS = "tests/locks/test_run_locks.py::"
RW = "tests/locks/test_rwlock.py::"
LEADER = "tests/locks/test_leader.py::"
CONNECTIONS = "tests/runtime/test_connections.py::"
SUITE = "tests/stores/test_conformance.py::TestMemory::"

HELD = [
    Mutant(
        "a write is not compared with the last one",
        "rules/slot.py",
        "if past.last == expected and slot.version == version and not taken:",
        "if slot.version >= version and not taken:",
        (SLOT + "test_a_stale_write_after_a_delete_is_refused",),
    ),
    Mutant(
        "a write is compared by its number alone",
        "rules/slot.py",
        "if past.last == expected and slot.version == version and not taken:",
        "if slot.version == version and not taken:",
        (SLOT + "test_a_write_is_compared_by_its_id_so_an_equal_number_of_other_writes_does_not_match",),
    ),
    Mutant(
        "a re-sent write is not recognised",
        "rules/slot.py",
        "    if mine is not None and number in mine.numbers:\n",
        "    if mine is not None and number in mine.numbers and past.last == request:\n",
        (SLOT + "test_a_write_that_is_sent_again_is_recognised_and_not_made_again",),
    ),
    Mutant(
        "what a client still waits for is forgotten",
        "rules/slot.py",
        "    floor = max(mine.floor, acked)\n",
        "    floor = max(mine.floor, number_of(request))\n",
        (SLOT + "test_writes_that_a_client_has_acknowledged_are_removed_and_the_others_kept",),
    ),
    Mutant(
        "a removed write is taken for one that was never made",
        "rules/slot.py",
        "(version >= past.forgotten if mine is None else number >= mine.floor)",
        "True",
        (SLOT + "test_of_a_client_that_never_acknowledges_the_last_writes_are_kept",),
    ),
    Mutant(
        "a reservation is stretched by a clock that was set back",
        "rules/slot.py",
        "    until = min(past.reserved_until, now + MAX_RESERVATION)",
        "    until = past.reserved_until",
        (SLOT + "test_a_reservation_expires_and_setting_the_clock_back_does_not_prolong_it",),
    ),
    Mutant(
        "a write that goes with a record is compared by its number alone",
        "rules/slot.py",
        "    if slot.last != change.expected or slot.version != change.version:\n",
        "    if slot.version != change.version:\n",
        (SLOT + "test_a_write_with_a_journal_record_is_compared_by_id_and_version",),
    ),
    Mutant(
        "a write that goes with a record forgets the writers before it",
        "rules/slot.py",
        "WriteHistory(last=id, writers=slot.past.writers, forgotten=slot.past.forgotten)",
        "WriteHistory(last=id, forgotten=slot.past.forgotten)",
        (SUITE + "test_a_write_that_is_sent_again_is_known_although_a_record_came_between",),
    ),
    Mutant(
        "a write with a record loses the note about removed writers",
        "rules/slot.py",
        "WriteHistory(last=id, writers=slot.past.writers, forgotten=slot.past.forgotten)",
        "WriteHistory(last=id, writers=slot.past.writers)",
        (SUITE + "test_a_write_with_a_record_does_not_restore_removed_writers",),
    ),
    Mutant(
        "a reservation outlives the write of a record",
        "rules/slot.py",
        "WriteHistory(last=id, writers=slot.past.writers, forgotten=slot.past.forgotten)",
        "replace(slot.past, last=id)",
        (SUITE + "test_a_reservation_does_not_stop_a_record_and_ends_with_it",),
    ),
    Mutant(
        "a record is written although another client has written its slot",
        "rules/runs/transitions.py",
        "        if changed is None:\n",
        "        if changed is None and not run:\n",
        (SUITE + "test_a_record_whose_slot_another_client_has_written_changes_nothing",),
    ),
    Mutant(
        "a slot is written before a record is found to be its own re-send or refused",
        "rules/runs/transitions.py",
        "    before = known(repo, run)\n    if before is not None and before.last == request:\n        done =",
        "    before = known(repo, run)\n"
        "    if swap is not None and (early := written(repo.slot(swap.address), swap, run)) is not None:\n"
        "        repo.put_slot(swap.address, early)\n"
        "    if before is not None and before.last == request:\n        done =",
        (SUITE + "test_a_refused_record_does_not_write_its_slot",),
    ),
    Mutant(
        "an exception about a speculative value that was not written is raised",
        "state/compare_and_swap.py",
        "        except Exception:\n            if base.fresh:\n                raise\n",
        "        except Exception:\n            raise\n",
        (STATE + "test_an_exception_of_a_function_on_a_speculative_value_that_was_not_written_is_discarded",),
    ),
    Mutant(
        "an unknown outcome is tried again as if it had been refused",
        "state/compare_and_swap.py",
        "    if ambiguous and not outcome.decided:\n",
        "    if ambiguous and outcome is None:\n",
        (STATE + "test_a_resend_whose_write_was_removed_from_the_history_is_reported_as_unknown",),
    ),
    Mutant(
        "no writer reserves the next write",
        "state/compare_and_swap.py",
        "            reserve=RESERVATION if reserve else 0,\n",
        "            reserve=0,\n",
        (STATE + "test_a_writer_that_lost_several_times_reserves_the_next_write",),
    ),
    Mutant(
        "initial comes back after a delete",
        "state/atomic.py",
        "        text = link.value if link.version else self._initial\n",
        "        text = link.value if link.value is not None else self._initial\n",
        (STATE + "test_after_a_delete_the_value_reads_as_none_and_initial_does_not_come_back",),
    ),
    Mutant(
        "a release of a durable lock hands over",
        "state/durable_locks.py",
        "            lock = LockState(record, at, offers=False)\n            lock.abandon",
        "            lock = LockState(record, at)\n            lock.abandon",
        (DURABLE + "test_release_grants_nothing_and_the_head_waiter_acquires_by_its_next_try",),
    ),
    Mutant(
        "a durable lock hands over at the next try of any contender",
        "state/durable_locks.py",
        "            lock = LockState(record, at, offers=False)\n            outcome",
        "            lock = LockState(record, at)\n            outcome",
        (DURABLE + "test_expiry_grants_nothing_and_the_head_waiter_acquires_by_its_next_try",),
    ),
    Mutant(
        "a durable lock's waiters never expire",
        "state/durable_locks.py",
        "            return max(MIN_WAITER_SECONDS * MICROSECONDS, ttl)\n",
        "            return None\n",
        (DURABLE + "test_a_stale_waiter_at_the_head_blocks_others_for_at_most_its_waiter_ttl",),
    ),
    Mutant(
        "a lease by name is renewed by anyone",
        "rules/lock.py",
        "        held = self.holders.get(id)\n        if held is None or (token is None",
        "        held = next(iter(self.holders.values()), None)\n        if held is None or (token is None",
        (LEASES + "test_renew_is_false_when_another_owner_has_it",),
    ),
    Mutant(
        "a run's lock is forgotten with the thread that took it",
        "locks/run_locks.py",
        "            lease._renewal.thread = None  # noqa",
        "            pass  # noqa",
        (RUNS + "test_the_heartbeat_renews_a_run_lock_after_its_thread_has_ended",),
    ),
    Mutant(
        "a shorter ttl counts only when it is answered",
        "runtime/heartbeats.py",
        "                renewal.held.shorten(now, ttl)\n",
        "                pass\n",
        (RUNS + "test_a_shorter_ttl_counts_from_the_request_even_if_the_outcome_never_arrives",),
    ),
    Mutant(
        "a ttl is changed while a heartbeat is in progress",
        "runtime/heartbeats.py",
        "        if not self._renewing:\n            self._change_ttls(now)\n",
        "        self._change_ttls(now)\n",
        (RUNS + "test_a_longer_ttl_is_not_undone_by_a_heartbeat_in_progress",),
    ),
    Mutant(
        "a heartbeat counts as over before its answer was judged",
        "runtime/heartbeats.py",
        "            try:\n                for place, renewal in enumerate(due):",
        "            self._renewing = False\n            try:\n                for place, renewal in enumerate(due):",
        (RUNS + "test_the_outcome_of_a_renewal_counts_for_the_ttl_that_was_sent_although_it_changed_meanwhile",),
    ),
    Mutant(
        "a writer that was forgotten is taken for a new one",
        "rules/slot.py",
        "number if past.forgotten else 0",
        "0",
        (SLOT + "test_the_latest_writers_are_kept_and_a_resend_of_a_removed_writer_is_undecided",),
    ),
    Mutant(
        "a caller whose clock is behind shortens the leases of others",
        "state/durable_locks.py",
        "        after, answer = decide(before, _monotonic(before, moment))\n",
        "        after, answer = decide(before, moment)\n",
        (DURABLE + "test_a_caller_whose_clock_is_behind_does_not_shorten_other_leases",),
    ),
    Mutant(
        "two runs share a key",
        "rules/runs/record.py",
        '["run", escaped(workflow), escaped(run)]',
        '["run", workflow, run]',
        (RUNS + "test_names_with_slashes_are_distinct",),
    ),
    Mutant(
        "a writer takes one permit",
        "locks/rwlock.py",
        "replace(self._options, weight=ALL)",
        "replace(self._options, weight=1)",
        (RW + "test_a_writer_is_alone",),
    ),
    Mutant(
        "a holder of a read-write lock waits for itself",
        "locks/rwlock.py",
        "        if any(lease.valid for lease in inside.get(address, ())):\n",
        "        if any(lease.valid for lease in inside.get(None, ())):\n",
        (RW + "test_a_thread_that_holds_the_lock_cannot_acquire_it_again_on_either_side",),
    ),
    Mutant(
        "the work of a term continues after its loss",
        "locks/leader.py",
        "        self.block = LeaseScope(self)\n        if not self.valid:",
        "        if not self.valid and self.block is not None:",
        (LEADER + "test_the_block_of_an_ended_term_is_cancelled_at_its_first_await",),
    ),
    Mutant(
        "the work continues after a resignation",
        "locks/leader.py",
        "                term.block.stop()\n",
        "                pass\n",
        (LEADER + "test_resigning_stops_the_block_of_another_task_before_the_next_leader_begins",),
    ),
    Mutant(
        "the heartbeat thread keeps a reference to a dropped leader",
        "locks/leader.py",
        "        self._options = replace(options, on_lost=lambda _term: _notify(me))\n",
        "        self._options = replace(options, on_lost=lambda _term, _me=self: _notify(me))\n",
        (LEADER + "test_a_leader_that_was_garbage_collected_is_no_longer_renewed_and_an_event_reports_it",),
    ),
    Mutant(
        "a short outage of the store ends a candidate",
        "locks/leader.py",
        "            except StoreUnavailable as error:\n",
        "            except NotHeld as error:\n",
        (LEADER + "test_a_candidate_keeps_waiting_while_the_store_is_unavailable",),
    ),
    Mutant(
        "a function that returns nothing wipes the value",
        "state/atomic.py",
        "            if new is None and value is not None:\n",
        "            if new is None and value is None:\n",
        (STATE + "test_a_function_that_returns_none_is_refused_and_changes_nothing",),
    ),
    Mutant(
        "a loss is reported after the next term has begun",
        "locks/leader.py",
        '        """Wait to become the leader."""\n        self._notify()\n',
        '        """Wait to become the leader."""\n',
        (LEADER + "test_on_change_reports_a_loss_before_the_start_of_the_next_term",),
    ),
    Mutant(
        "a caller notified of a loss is still refused by the local queue",
        "locks/process_queue.py",
        "                queue.drop_over()  # a caller that was notified",
        "                # a caller that was notified",
        ("tests/locks/test_locks.py::test_a_caller_notified_of_a_loss_may_acquire_the_lock_again_at_once",),
    ),
    Mutant(
        "a lock is granted that cannot be renewed",
        "runtime/base.py",
        'partial(Granting, partial(store.connect, "commands"), heartbeats)',
        'partial(store.connect, "commands")',
        (CONNECTIONS + "test_nothing_is_granted_if_heartbeats_cannot_connect[valkey]",),
    ),
    Mutant(
        "a refused grant fails the other commands of its batch",
        "runtime/renewable_grants.py",
        "            return self._refuse(commands, error)\n",
        "            raise\n",
        (CONNECTIONS + "test_nothing_is_granted_if_heartbeats_cannot_connect[valkey]",),
    ),
    Mutant(
        "the connection for queries stays open forever",
        "runtime/batcher.py",
        "            idle, self._connection = self._connection, None\n",
        "            idle = None\n",
        (CONNECTIONS + "test_a_client_opens_connections_when_it_needs_them[valkey]",),
    ),
    Mutant(
        "an acquire waits behind a list",
        "runtime/flows.py",
        'role = "queries" if isinstance(command, LONG_READS) else "commands"',
        'role = "commands"',
        ("tests/runtime/test_queries.py::test_a_slow_read_delays_no_acquire_of_the_same_client",),
    ),
    Mutant(
        "release of a lock releases the acquisition of the block around it",
        "locks/lock.py",
        "        lease, acquisition = self._last_acquired()\n        run(lease._release(acquisition)",
        "        lease, _ = self._last_acquired()\n        run(lease._release()",
        (
            "tests/locks/test_locks.py::test_release_of_a_reentrant_lock_within_a_block_releases_the_acquisition_before_it[memory]",
        ),
    ),
]
