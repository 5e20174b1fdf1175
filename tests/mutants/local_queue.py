"""Mutants of the local queue: which callers of a process go to the store, in which order, past a blocked loop."""

from __future__ import annotations

from .runner import Mutant

TESTS = "tests/locks/test_local_queue.py::"
LEFT = "tests/locks/test_leaving_the_local_queue.py::"


def queue(name: str, old: str, new: str, *caught_by: str) -> Mutant:
    return Mutant(name, "locks/local_queue.py", old, new, caught_by)


def gate(name: str, old: str, new: str, *caught_by: str) -> Mutant:
    return Mutant(name, "locks/process_queue.py", old, new, caught_by)


LOCAL_QUEUE = [
    queue(
        "all callers of a semaphore go to the store at once",
        "        return unanswered < A_FEW or ",
        "        return unanswered < 10_000 or ",
        TESTS + "test_500_tasks_share_a_semaphore_of_3_and_few_of_them_wait_in_the_store[memory]",
    ),
    queue(
        "callers that would not fit follow a grant",
        "bool(self.holding) and self._fits(turn))",
        "bool(self.holding))",
        TESTS + "test_500_tasks_share_a_semaphore_of_3_and_few_of_them_wait_in_the_store[memory]",
    ),
    queue(
        "many readers go to the store before one of them is granted",
        "(unanswered < MANY and bool(self.holding) and self._fits(turn))",
        "(unanswered < MANY and self._fits(turn))",
        TESTS + "test_behind_a_writer_of_another_process_only_a_few_readers_wait_in_the_store[memory]",
    ),
    queue(
        "two of an exclusive lock's callers go to the store",
        "            return not (self.admitted or self.requesting or self.holding)\n",
        "            return not (self.admitted or self.requesting)\n",
        "tests/locks/test_async_locks.py::test_a_caller_whose_loop_closes_in_the_local_queue_does_not_block_the_queue[memory]",
    ),
    gate(
        "no further caller goes to the store after a grant",
        "            queue.granted(turn)\n            admitted = queue.admit()\n",
        "            queue.granted(turn)\n            admitted: list[Turn] = []\n",
        TESTS + "test_300_readers_of_one_process_hold_the_lock_together[memory]",
    ),
    queue(
        "a granted caller still counts as asking the store",
        "        self.holding.add(turn)\n        self.requesting.discard(turn)\n",
        "        self.holding.add(turn)\n",
        TESTS + "test_300_readers_of_one_process_hold_the_lock_together[memory]",
    ),
    gate(
        "no caller is notified when another one is done",
        "            queue.remove(turn)\n            admitted = queue.admit()\n",
        "            queue.remove(turn)\n            admitted: list[Turn] = []\n",
        "tests/locks/test_locks.py::test_the_next_local_caller_continues_when_a_lease_is_lost[memory]",
    ),
    queue(
        "a caller that fits overtakes one that does not",
        "for turn in self.waiting if turn.loop not in stuck), None)\n",
        "for turn in self.waiting if turn.loop not in stuck and self._room(turn)), None)\n",
        TESTS + "test_a_writer_between_readers_of_its_process_is_not_overtaken[memory]",
    ),
    queue(
        "a new caller goes to the store although others wait",
        "        go = not self.waiting and self._room(turn)",
        "        go = self._room(turn)",
        TESTS + "test_a_new_reader_does_not_overtake_a_writer_in_the_local_queue[memory]",
    ),
    queue(
        "a new caller overtakes a task that was notified and has not run yet",
        " and not (self.admitted and self._pending_on(turn.loop()))\n",
        "\n",
        TESTS + "test_callers_of_one_loop_are_served_in_the_order_of_their_calls_newcomers_included[memory-6]",
    ),
    queue(
        "a caller that tries once is refused although permits are free",
        "        if go or (once and self._fits_beside_all(turn)):\n",
        "        if go:\n",
        TESTS + "test_callers_that_try_once_at_the_same_time_get_all_free_permits[memory-rwlock]",
    ),
    queue(
        "a caller that tries once overtakes waiting callers",
        "        if go or (once and self._fits_beside_all(turn)):\n",
        "        if go or once:\n",
        TESTS + "test_a_try_behind_waiting_callers_of_the_process_is_refused_without_a_command[memory]",
    ),
    queue(
        "a caller that gave up still counts as asking the store",
        "        self.admitted.discard(turn)\n"
        "        self.requesting.discard(turn)\n"
        "        self.holding.discard(turn)\n",
        "        self.admitted.discard(turn)\n        self.holding.discard(turn)\n",
        LEFT + "test_a_caller_cancelled_or_timed_out_in_the_local_queue_leaves_nothing_behind[memory-semaphore]",
    ),
    queue(
        "a caller that gave up stays in the local queue",
        "        self.waiting.pop(turn, None)\n"
        "        self.admitted.discard(turn)\n"
        "        self.requesting.discard(turn)\n",
        "        self.admitted.discard(turn)\n        self.requesting.discard(turn)\n",
        LEFT + "test_a_caller_cancelled_or_timed_out_in_the_local_queue_leaves_nothing_behind[memory-rw]",
    ),
    queue(
        "a caller that was notified and does not run keeps the others waiting",
        "    if not turn.sent and now - turn.admitted_at > PASS_OVER:\n        return True\n",
        "    if not turn.sent:\n        return False\n",
        LEFT + "test_callers_of_a_blocked_loop_do_not_stop_the_others[memory-mutex]",
    ),
    queue(
        "callers in the store whose loop is blocked keep the others waiting",
        "    return loop_probe.stopped or loop_probe.silent_for(now) > PASS_OVER\n",
        "    return loop_probe.stopped\n",
        LEFT + "test_callers_of_a_blocked_loop_do_not_stop_the_others[memory-semaphore]",
    ),
    queue(
        "the other callers of a blocked loop are notified one after the other",
        "        return next((turn for turn in self.waiting if turn.loop not in stuck), None)\n",
        "        return next(iter(self.waiting), None) if stuck else None\n",
        LEFT + "test_callers_of_a_blocked_loop_do_not_stop_the_others[memory-mutex]",
    ),
    gate(
        "the child of a fork queues behind its parent's callers",
        "after_fork_in_child(queues.reset)\n",
        "",
        LEFT + "test_after_a_fork_the_child_does_not_queue_behind_callers_of_its_parent[memory]",
    ),
    Mutant(
        "only the caller that opens the watch checks once more",
        "runtime/base.py",
        "                    self._unwatched.update(list(self._waiting))",
        "                    self._unwatched.update(list(self._waiting)[:1])",
        ("tests/locks/test_locks.py::test_every_waiter_from_before_the_watch_was_active_checks_once_more[memory]",),
    ),
    gate(
        "a caller that tries once does not detect a blocked loop",
        "            if once:  # it will not check again\n                queue.pass_over(turn, self._probe)\n",
        "",
        LEFT + "test_a_caller_that_tries_once_gets_a_permit_that_callers_of_a_blocked_loop_do_not_take[memory]",
    ),
    queue(
        "waiting callers of a blocked loop block a caller that tries once",
        "            if other.loop not in stuck:\n                free -= other.weight\n",
        "            free -= other.weight\n",
        LEFT + "test_a_caller_that_tries_once_gets_a_permit_that_callers_of_a_blocked_loop_do_not_take[memory]",
    ),
]
