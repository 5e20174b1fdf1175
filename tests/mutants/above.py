"""Mutants above the rules: stores, lanes, flows, keeper, locks, fences."""

from __future__ import annotations

from .runner import Mutant

LANE = "tests/test_lane.py::"
REPLIES = "tests/test_lost_replies.py::"
KEEPER = "tests/test_keeper.py::"
LOCKS = "tests/test_locks.py::"
ASYNC = "tests/test_async_locks.py::"
PROCESSES = "tests/test_processes.py::"

ABOVE = [
    Mutant(
        "an interrupted caller keeps its half-used connection",
        "lane.py",
        "            if outcomes is None:\n                self._drop_connection()\n                error = error",
        "            if outcomes is None:\n                error = error",
        (LANE + "test_an_interrupted_caller_throws_the_connection_away_and_the_others_are_ambiguous",),
    ),
    Mutant(
        "a cancelled submission is sent all the same",
        "lane.py",
        "promises = [promise for promise in outbox if not promise.future.done()]",
        "promises = list(outbox)",
        (LANE + "test_a_cancelled_submission_that_was_not_sent_is_never_sent",),
    ),
    Mutant(
        "each submission of a loop goes out alone",
        "lane.py",
        "    batch, self._queue = self._queue[:MAX_BATCH], self._queue[MAX_BATCH:]",
        "    batch, self._queue = self._queue[:1], self._queue[1:]",
        (LANE + "test_what_a_loop_submits_in_one_turn_goes_out_together",),
    ),
    Mutant(
        "a lost reply is not asked for again",
        "flows.py",
        "RESEND_AFTER = (0.05, 0.2, 0.6, 1.5)",
        "RESEND_AFTER: tuple[float, ...] = ()",
        (REPLIES + "test_of_an_acquire_the_caller_gets_its_own_lock",),
    ),
    Mutant(
        "a cancelled acquire keeps what it got",
        "flows.py",
        "        if trace:\n            desk.give_back(_abandon(command))",
        "        if trace:\n            pass",
        (ASYNC + "test_cancelled_at_the_very_moment_of_the_grant_it_is_given_back",),
    ),
    Mutant(
        "a waiter that timed out stays in the queue",
        "flows.py",
        "                yield from send(_abandon(command))\n",
        "",
        (ASYNC + "test_a_waiter_that_times_out_leaves_nothing_behind",),
    ),
    Mutant(
        "a release whose reply was lost is taken for a loss",
        "flows.py",
        "    return isinstance(outcome, out.Released) or ambiguous",
        "    return isinstance(outcome, out.Released)",
        (REPLIES + "test_of_a_release_the_lock_is_free",),
    ),
    Mutant(
        "the deadline counts from the reply",
        "held.py",
        "    return sent + length - length * DRIFT - LATENESS",
        "    return elapsed() + length - length * DRIFT - LATENESS",
        (KEEPER + "test_the_deadline_counts_from_the_moment_before_the_request_was_sent",),
    ),
    Mutant(
        "a renewal that was not answered prolongs the lease",
        "keeper.py",
        '        elif held.state == "held":\n            held.failures += 1',
        '        elif held.state == "held":\n            held.renewed(sent, held.ttl, held.expires_at, held.floor)\n'
        "            held.failures += 1",
        (KEEPER + "test_an_unknown_renewal_never_prolongs_anything",),
    ),
    Mutant(
        "failing renewals are never given up",
        "keeper.py",
        "            if held.failures >= kept.max_failures:",
        "            if held.failures >= 1_000:",
        (REPLIES + "test_three_renewals_in_a_row_that_fail_lose_the_lease",),
    ),
    Mutant(
        "a lease that comes while the keeper looks around is forgotten",
        "keeper.py",
        "                self._wake_at = math.inf  # whoever comes while it looks around must ring\n",
        "",
        (KEEPER + "test_a_lease_that_comes_while_the_keeper_looks_around_is_not_forgotten",),
    ),
    Mutant(
        "a renewal that comes after the release is taken for a loss",
        "keeper.py",
        "        elif self._kept.get(held.id) is not kept:  # its holder is giving it back at this moment\n"
        "            return\n",
        "",
        (KEEPER + "test_a_renewal_that_arrives_after_the_release_is_not_a_loss",),
    ),
    Mutant(
        "a stuck loop holds for ever",
        "keeper.py",
        "            if silent > self.max_stall:",
        "            if silent > 1e9:",
        (ASYNC + "test_blocking_the_loop_longer_than_max_stall_loses_the_lease_loudly",),
    ),
    Mutant(
        "the lease of a thread that has ended is kept for ever",
        "keeper.py",
        "        elif self.thread is not None and not self.thread.is_alive():",
        "        elif False:",
        (LOCKS + "test_a_lease_whose_thread_has_ended_is_no_longer_renewed",),
    ),
    Mutant(
        "the keeper waits for its lane",
        "keeper.py",
        "        if not self._heartbeats.enqueue(commands, done):\n            self._renewing = False\n",
        "        done(self._heartbeats.call(commands), None)\n",
        (REPLIES + "test_a_store_that_hangs_does_not_delay_the_news_of_a_loss",),
    ),
    Mutant(
        "the gate stays shut when a lease is lost",
        "locks/lease.py",
        "        if turn is not None and turn.held is held:\n            gates.leave(turn)",
        '        if turn is not None and turn.held is held and held.state == "ended":\n            gates.leave(turn)',
        (LOCKS + "test_the_gate_opens_when_a_lease_is_lost",),
    ),
    Mutant(
        "local callers all go to the store at once",
        "locks/terms.py",
        '        return self.kind == "item"',
        "        return False",
        (LOCKS + "test_fifty_local_callers_go_to_the_store_one_at_a_time",),
    ),
    Mutant(
        "a task that has left its block is cancelled",
        "locks/lock.py",
        "        if self._inside:\n            self._fired = True",
        "        if self:\n            self._fired = True",
        (ASYNC + "test_a_task_that_has_left_the_block_is_never_cancelled",),
    ),
    Mutant(
        "our own cancellation is left standing",
        "locks/lock.py",
        "        ours_alone = self._task.uncancel() <= self._cancelling",
        "        ours_alone = True",
        (ASYNC + "test_losing_the_lease_cancels_the_block_and_lease_lost_leaves_it",),
    ),
    Mutant(
        "whoever has the same name is the same holder",
        "client.py",
        '        return f"{self.channel}.{next(self._attempts)}"',
        '        return "worker-1.1"',
        (LOCKS + "test_two_with_the_same_name_are_not_the_same_holder",),
    ),
    Mutant(
        "closing a client leaves its locks held",
        "client.py",
        "        ended = [held for held in give_back if (held.end()",
        "        ended = [held for held in give_back[:0] if (held.end()",
        (LOCKS + "test_closing_a_client_releases_what_it_holds",),
    ),
    Mutant(
        "closing a client under a block is silent",
        "client.py",
        "(held.end() if quietly else held.lose(",
        "(held.end() if True else held.lose(",
        (LOCKS + "test_closing_a_client_under_a_block_is_loud",),
    ),
    Mutant(
        "a callback of the user's runs on the heartbeats' thread",
        "keeper.py",
        '        threading.Thread(target=self._serve, name="holdfast-on-lost", daemon=True).start()',
        "        self._serve()",
        (KEEPER + "test_a_callback_that_takes_long_costs_nobody_a_heartbeat",),
    ),
    Mutant(
        "the child of a fork holds what its parent holds",
        "held.py",
        "elapsed() < self.deadline and os.getpid() == self._pid",
        "elapsed() < self.deadline",
        (PROCESSES + "test_after_a_fork_the_child_holds_nothing_and_the_parent_loses_nothing",),
    ),
    Mutant(
        "a crowd of renewals revives what has ended",
        "stores/sqlite_batch.py",
        "BETWEEN ?3 + 1 AND",
        "BETWEEN 1 AND",
        ("tests/stores/test_sqlite_file.py::test_renewing_many_is_equal_to_the_rule_for_records_of_every_shape",),
    ),
    Mutant(
        "heartbeats wait behind everyone else",
        "stores/turns.py",
        "            queue = self._urgent or self._others",
        "            queue = self._others or self._urgent",
        ("tests/stores/test_sqlite_turns.py::test_within_a_process_heartbeats_go_first_and_the_others_in_order",),
    ),
    Mutant(
        "an answered command may be lost with the power",
        "stores/sqlite_file.py",
        "PRAGMA synchronous = FULL",
        "PRAGMA synchronous = NORMAL",
        ("tests/stores/test_sqlite_file.py::test_every_connection_is_durable",),
    ),
    Mutant(
        "a file is fenced by the token of a semaphore, not by its floor",
        "fencing/files.py",
        "        if offer.floor > highest:\n            _remember(target, offer.floor)",
        "        if offer.token > highest:\n            _remember(target, offer.token)",
        ("tests/fencing/test_files.py::test_holders_of_a_semaphore_do_not_shut_each_other_out",),
    ),
    Mutant(
        "a stale token may replace a file",
        "fencing/files.py",
        "    if offer.token < highest:\n",
        "    if offer.token < 0:\n",
        ("tests/fencing/test_files.py::test_a_lower_token_is_refused_and_nothing_was_written",),
    ),
    Mutant(
        "reading behind the fence shuts nobody out",
        "fencing/files.py",
        "        if offer.floor > highest and target.exists():",
        "        if offer.floor < highest:",
        ("tests/fencing/test_files.py::test_who_reads_behind_the_fence_shuts_out_older_writers_at_once",),
    ),
    Mutant(
        "a stale token may write to a database",
        "fencing/sqlite.py",
        "        if cursor.rowcount != 1:",
        "        if cursor.rowcount > 1:",
        ("tests/fencing/test_sqlite.py::test_a_lower_token_is_refused_and_nothing_was_written",),
    ),
    Mutant(
        "the same token may write only once",
        "fencing/files.py",
        "    if offer.token < highest:\n",
        "    if offer.token <= highest:\n",
        ("tests/fencing/test_files.py::test_a_higher_and_the_same_token_pass",),
    ),
]
