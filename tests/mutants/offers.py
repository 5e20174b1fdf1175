"""Mutants of offers that expire, of waiters that are passed over, and of batches that are decided together."""

from __future__ import annotations

from .runner import Mutant
from .table import DEAD, OFFERS, TIME, rule, work

BATCHES = "tests/rules/test_batches.py::"
HINTS = "tests/stores/test_sqlite_hints.py::"
HEARTBEATS = "tests/runtime/test_heartbeats.py::"
FLOWS = "tests/runtime/test_flows.py::"
MEMORY = "tests/stores/test_conformance.py::TestMemory::"

DEAD_WAITERS = [
    work(
        "an offer that ran out is confirmed",
        "            self.let_go(holder.id)\n            if holder.offered:\n",
        "            if not holder.offered:\n                self.let_go(holder.id)\n            if holder.offered:\n",
        OFFERS + "test_the_waiter_of_an_expired_offer_cannot_confirm_it",
    ),
    work(
        "a waiter that missed its offer loses its position",
        "                self.waiters[place.id] = replace(place, missed=place.missed + 1, passed=True)\n",
        "                pass\n",
        DEAD + "test_a_waiter_that_missed_its_offer_keeps_its_position_and_is_passed_over",
    ),
    work(
        "a waiter that missed its offer goes to the end of the queue",
        "        self._touched = True\n        self.waiters = _in_order(self.waiters)\n",
        "        self._touched = True\n",
        DEAD + "test_a_waiter_that_missed_its_offer_keeps_its_position_and_is_passed_over",
    ),
    work(
        "a passed-over waiter gets an offer",
        "self.waiters[place.id] = replace(place, missed=place.missed + 1, passed=True)",
        "self.waiters[place.id] = replace(place, missed=place.missed + 1)",
        DEAD + "test_a_waiter_that_missed_its_offer_keeps_its_position_and_is_passed_over",
    ),
    work(
        "each crashed waiter costs an offer",
        "        called = [one for one in self.waiters.values() if not one.passed and one.ttl is not None]\n",
        "        called: list[Waiter] = []\n",
        DEAD + "test_ten_crashed_waiters_delay_the_others_by_one_offer",
    ),
    work(
        "a missed offer also passes over waiters that do not expire",
        "if not one.passed and one.ttl is not None]",
        "if not one.passed]",
        DEAD + "test_a_waiter_without_an_expiry_gets_an_offer_without_an_end_that_a_crashed_waiter_missed",
    ),
    work(
        "no waiter is hinted after a missed offer",
        "        self.hinted += [waiter.id for waiter in called[:HINTED_AFTER_A_MISS]]\n",
        "",
        DEAD + "test_the_next_waiters_are_hinted_together_and_the_first_that_acquires_gets_the_permit",
    ),
    work(
        "a passed-over waiter blocks a new attempt",
        "for waiter in self.waiters.values() if not waiter.passed]\n        self._held",
        "for waiter in self.waiters.values()]\n        self._held",
        DEAD + "test_a_passed_over_waiter_does_not_block_the_others",
    ),
    rule(
        "a sign of life does not make a waiter eligible",
        "            missed=0 if waiting is None else waiting.missed,\n",
        "            missed=0 if waiting is None else waiting.missed,\n"
        "            passed=waiting is not None and waiting.passed,\n",
        DEAD + "test_a_paused_waiter_that_continues_has_its_old_position",
    ),
    work(
        "a missed offer does not make the next one longer",
        "        ttl = min(ttl, OFFER_LIFE << min(waiter.missed, MAX_DOUBLINGS))\n",
        "        ttl = min(ttl, OFFER_LIFE)\n",
        DEAD + "test_each_missed_offer_doubles_the_next_so_that_a_slow_waiter_is_served_eventually",
    ),
    work(
        "the position in an offer is prolonged by a clock step",
        "        place = _lowered(lowered.place, now)\n",
        "        place = lowered.place\n",
        TIME + "test_the_expiries_of_an_offer_and_its_position_are_shortened_after_a_clock_step",
    ),
    rule(
        "a pass-over needs no token",
        "        if held is None or held.token != token or held.place is None:",
        "        if held is None or held.place is None:",
        DEAD + "test_passing_over_needs_the_id_and_the_token_of_an_offer",
    ),
    rule(
        "a pass-over ends a confirmed grant",
        "        if held is None or held.token != token or held.place is None:",
        "        if held is None or held.token != token:",
        DEAD + "test_a_confirmed_grant_or_an_offer_without_an_end_cannot_be_passed_over",
    ),
    work(
        "a waiter that missed its offer and can never fit keeps waiting",
        "            if place.weight > self.permits:\n",
        "            if place.weight > 99 * self.permits:\n",
        DEAD + "test_a_waiter_that_missed_its_offer_and_no_longer_fits_gets_an_error",
    ),
    rule(
        "a queue has no end",
        "return len(waiters) < MAX_WAITERS or",
        "return len(waiters) <= MAX_WAITERS or",
        DEAD + "test_a_full_queue_refuses_new_waiters_and_keeps_the_others",
    ),
]

TOGETHER = [
    work(
        "a batch settles once, and not after what a command freed",
        "            self._settled = True\n            self._end_what_has_ended()\n        self.hand_over()\n",
        "            self._settled = True\n            self._end_what_has_ended()\n            self.hand_over()\n",
        BATCHES + "test_a_batch_has_the_outcomes_and_the_record_of_its_commands_one_by_one",
        OFFERS + "test_a_release_hands_over_to_the_head_of_the_queue_in_the_same_step",
    ),
    work(
        "a grant that expires within a batch is kept until its end",
        "            if ends <= self.now:\n                self._settled = False\n",
        "",
        BATCHES + "test_a_batch_has_the_outcomes_and_the_record_of_its_commands_one_by_one",
    ),
    rule(
        "all later outcomes of a batch list the attempts that one command woke",
        "        self.woken, self.hinted = [], []\n        outcome",
        "        outcome",
        BATCHES + "test_a_batch_has_the_outcomes_and_the_record_of_its_commands_one_by_one",
    ),
    work(
        "a heap of ends that is never brought up to date",
        "        while ends and not self._ends_at(*ends[0]):\n            heappop(ends)\n",
        "",
        BATCHES + "test_a_batch_has_the_outcomes_and_the_record_of_its_commands_one_by_one",
    ),
]

OF_OTHERS = [
    rule(
        "runs in the overflow do not keep a lock what it is",
        "        if self.kind != kind and (self.holders or self.waiting):\n",
        "        if self.kind != kind and (self.holders or self.waiters):\n",
        DEAD + "test_a_lock_with_waiting_runs_only_in_the_overflow_keeps_its_kind",
    ),
]
OF_THE_RULES: list[Mutant] = [*DEAD_WAITERS, *TOGETHER, *OF_OTHERS]
OF_CLIENTS = [
    Mutant(
        "a client that closes also hints waiters without an offer before them",
        "rules/lock.py",
        "        if leaving and ends:\n",
        "        if leaving:\n",
        (MEMORY + "test_a_client_that_closes_hints_the_waiters_behind_its_offer",),
    ),
    Mutant(
        "a client that closes does not check the offers that it made",
        "runtime/base.py",
        "            if offers := offers.union(self.heartbeats.open_offers()):\n",
        "            if offers:\n",
        (HEARTBEATS + "test_a_client_that_closes_right_after_a_release_hints_the_next_waiters[memory]",),
    ),
    Mutant(
        "a client that closes does not check the offers that its closing makes",
        "runtime/base.py",
        "            offers = {one.key for one, outcome in zip(commands, outcomes, strict=False) if outcome.woken}\n",
        "            offers = set()\n",
        (HEARTBEATS + "test_a_client_that_closes_while_it_holds_a_lock_hints_the_next_waiters[memory]",),
    ),
    Mutant(
        "an offer made by an abandon is not checked",
        "runtime/give_back.py",
        "                if outcomes[0].woken:\n                    self._offered(command.key)\n",
        "",
        (HEARTBEATS + "test_an_offer_made_by_an_abandon_is_checked_until_it_ends[memory]",),
    ),
    Mutant(
        "a caller that gives up does not check the next offer",
        "runtime/flows.py",
        "    if left.woken:  # it had just been offered the lock, which is now offered to the next waiter\n",
        "    if False:\n",
        (FLOWS + "test_a_caller_that_gives_up_when_it_gets_an_offer_checks_the_next_offer[woken0-looks0]",),
    ),
    Mutant(
        "a longer offer is checked only once",
        "runtime/give_back.py",
        "                        self.add(key, outcome.offer_ends_in / MICROSECONDS)\n",
        "                        pass\n",
        (HEARTBEATS + "test_an_offer_that_lasts_longer_is_checked_until_it_ends[memory]",),
    ),
    Mutant(
        "a waiter further back that polls may miss its offer",
        "runtime/flows.py",
        "offer / POLLS_PER_OFFER if outcome.position < NEAR else further_back\n",
        "offer / POLLS_PER_OFFER if outcome.position < NEAR else pause\n",
        (FLOWS + "test_a_waiter_further_back_without_hints_polls_before_an_offer_can_have_expired",),
    ),
    Mutant(
        "a caller that waits gives a contended record up as soon as a release does",
        "runtime/flows.py",
        "_send_again(command, error, sent, until, contended_for=CONTENDED_FOR)",
        "_send_again(command, error, sent, until)",
        (FLOWS + "test_an_acquire_of_a_record_in_use_is_retried_as_long_as_the_caller_waits[None-30.0]",),
    ),
]
OF_SQLITE = [
    Mutant(
        "a full socket is taken for an ended process",
        "stores/sqlite/hints.py",
        "            except ConnectionRefusedError:\n                return False\n",
        "            except OSError:\n                return False\n",
        (HINTS + "test_a_missing_or_full_socket_does_not_count_as_an_ended_process",),
    ),
    Mutant(
        "a waiter without a socket is passed over",
        "stores/common.py",
        "holder.place is not None and holder.place.listens",
        "holder.place is not None",
        (HINTS + "test_a_waiter_without_a_socket_is_not_passed_over",),
    ),
    Mutant(
        "an offer to an ended process lasts its full time",
        "stores/sqlite/store.py",
        "                if unheard:\n",
        "                if not unheard:\n",
        (HINTS + "test_an_offer_to_an_ended_process_is_passed_over_at_once_and_the_next_are_hinted",),
    ),
    Mutant(
        "the socket of an ended process is removed at once",
        "stores/sqlite/hints.py",
        "                if time.time() - status.st_mtime < FRESH_SECONDS:\n                    continue\n",
        "",
        (HINTS + "test_the_socket_of_an_ended_process_is_removed_after_a_while",),
    ),
]
