"""Mutants of the rules of locks: the fault, its place, and the tests that must detect it.

Add a mutant for each promise whose loss must be detected. Choose few, narrow and fast tests: a mutant should take
about a second. The old text must occur exactly once in its file, so an outdated mutant is an error.
"""

from __future__ import annotations

from .runner import Mutant

ACQUIRE = "tests/rules/test_acquire.py::"
OFFERS = "tests/rules/test_offers.py::"
ENDING = "tests/rules/test_ending.py::"
TIME = "tests/rules/test_time.py::"
RECORD = "tests/rules/test_record.py::"
DEAD = "tests/rules/test_passed_over.py::"


OR_NOT_HELD = "        if held is None:\n            return out.NotHolder()\n        longer"
CONFIRMED = (
    "            expires_at=self._ends_after(ttl),\n            offered=False,\n            place=None,\n"
    "            delay"
)


def rule(name: str, old: str, new: str, *caught_by: str) -> Mutant:
    return Mutant(name, "rules/lock.py", old, new, caught_by)


def work(name: str, old: str, new: str, *caught_by: str) -> Mutant:
    return Mutant(name, "rules/working_record.py", old, new, caught_by)


def codec(name: str, old: str, new: str, *caught_by: str) -> Mutant:
    return Mutant(name, "rules/lock_record.py", old, new, caught_by)


OWNERSHIP = [
    rule(
        "the owner is not checked",
        "        held = self.holders.get(id)\n        if held is None or (token is None",
        "        held = next(iter(self.holders.values()), None)\n        if held is None or (token is None",
        ENDING + "test_renew_and_release_by_another_attempt_change_nothing",
    ),
    rule(
        "the token is not checked on renew",
        "        held = self._held_by(id, token)\n" + OR_NOT_HELD,
        "        held = self.holders.get(id)\n" + OR_NOT_HELD,
        ENDING + "test_the_token_of_an_earlier_grant_of_the_same_attempt_is_refused",
    ),
    rule(
        "the token is not checked on release",
        "        if self._held_by(id, token) is None:",
        "        if id not in self.holders:",
        ENDING + "test_the_token_of_an_earlier_grant_of_the_same_attempt_is_refused",
    ),
    rule(
        "any kind may be named without a token",
        'if held is None or (token is None and self.kind != "lease"):',
        "if held is None:",
        ENDING + "test_only_a_lease_may_be_renewed_by_its_owners_name_without_a_token",
    ),
    rule(
        "a lease cannot be named by its owner alone",
        'if held is None or (token is None and self.kind != "lease"):',
        "if held is None or token is None:",
        ENDING + "test_only_a_lease_may_be_renewed_by_its_owners_name_without_a_token",
    ),
    rule(
        "a renewal revives what has ended",
        "        self.settle()\n        held = self._held_by(id, token)\n" + OR_NOT_HELD,
        "        held = self._held_by(id, token)\n" + OR_NOT_HELD,
        ENDING + "test_an_expired_grant_cannot_be_renewed",
    ),
    rule(
        "a renewal of an offer leaves it an offer",
        "expires_at=self._ends_after(ttl), offered=False, place=None)",
        "expires_at=self._ends_after(ttl))",
        OFFERS + "test_renewing_an_offer_confirms_it",
    ),
]

TOKENS = [
    rule(
        "a grant does not raise the token",
        "        token = self.next_token\n",
        "        token = max(self.fence, self.now)\n",
        ACQUIRE + "test_tokens_rise_even_when_the_clock_stands_still_or_goes_back",
    ),
    rule(
        "a grant does not raise the fence",
        "        self.fence = token\n",
        "",
        ACQUIRE + "test_tokens_rise_even_when_the_clock_stands_still_or_goes_back",
    ),
    work(
        "tokens do not follow the clock",
        "return max(fence + 1, now)",
        "return fence + 1",
        ACQUIRE + "test_the_token_of_a_removed_record_is_still_higher_because_it_follows_the_clock",
    ),
    work(
        "tokens fall with the clock",
        "return max(fence + 1, now)",
        "return now",
        ACQUIRE + "test_tokens_rise_even_when_the_clock_stands_still_or_goes_back",
    ),
    work(
        "offers of one step share a token",
        "            self.fence = self.next_token\n",
        "            self.fence = max(self.fence, next_token(self._before.fence, self.now))\n",
        OFFERS + "test_several_permits_that_become_free_go_to_several_waiters_in_order",
    ),
    rule(
        "the floor of a semaphore is the token",
        "token=token, floor=self.floor, since=self.now",
        "token=token, floor=token, since=self.now",
        ACQUIRE + "test_the_floor_of_a_semaphore_is_the_lowest_token_of_its_holders",
    ),
    rule(
        "the floor of a renewal is the token",
        "out.Renewed(floor=self.floor",
        "out.Renewed(floor=held.token",
        ACQUIRE + "test_the_floor_of_a_semaphore_is_the_lowest_token_of_its_holders",
    ),
    rule(
        "a re-send is granted a new token",
        "            held,\n            ttl=ttl,\n" + CONFIRMED,
        "            held,\n            token=self.next_token,\n            ttl=ttl,\n" + CONFIRMED,
        ACQUIRE + "test_a_resend_of_an_attempt_gets_the_same_token_and_its_full_ttl",
    ),
    rule(
        "a re-send is refused by its own grant",
        "        if held is not None:\n            return self._confirm",
        "        if held is not None and held.offered:\n            return self._confirm",
        ACQUIRE + "test_a_resend_of_an_attempt_gets_the_same_token_and_its_full_ttl",
    ),
    rule(
        "a forced release resets the fence",
        "        self.forced = Forced(",
        "        self.fence = 0\n        self.forced = Forced(",
        ENDING + "test_the_token_after_a_forced_release_is_higher_than_before_it",
    ),
    rule(
        "a transfer keeps the token",
        "        fresh = self.next_token\n",
        "        fresh = held.token\n",
        ENDING + "test_a_transfer_gets_a_higher_token_even_in_the_same_instant",
    ),
    rule(
        "cleanup forgets a fence ahead of the clock",
        "and record.fence < now - retention",
        "and abs(now - record.fence) > retention",
        TIME + "test_a_record_whose_fence_is_ahead_of_the_clock_is_never_removed",
    ),
    rule(
        "cleanup forgets a young fence",
        "        and record.fence < now - retention\n",
        "",
        TIME + "test_an_empty_record_may_be_removed_when_its_fence_is_a_week_old",
    ),
    rule(
        "cleanup forgets tombstones",
        "        and not record.tombstones\n",
        "",
        TIME + "test_a_record_with_a_holder_waiter_or_tombstone_is_never_removed",
    ),
]

QUEUE = [
    rule(
        "a release settles nothing",
        "        self.let_go(id)\n        self.settle()\n        return out.Released()",
        "        self.let_go(id)\n        return out.Released()",
        OFFERS + "test_a_release_hands_over_to_the_head_of_the_queue_in_the_same_step",
    ),
    rule(
        "a new attempt takes a free permit while others wait",
        "        if not position and me.weight <= self.free",
        "        if me.weight <= self.free",
        ACQUIRE + "test_a_new_attempt_cannot_take_a_free_permit_while_others_wait",
    ),
    rule(
        "the last to come is served first",
        "            number=self.next_number if waiting is None",
        "            number=-self.next_number if waiting is None",
        ACQUIRE + "test_a_waiter_gets_its_position_and_the_time_of_its_next_check",
    ),
    rule(
        "acquiring again loses the position in the queue",
        "            number=self.next_number if waiting is None else waiting.number,\n",
        "            number=self.next_number,\n",
        ACQUIRE + "test_acquiring_again_keeps_the_position_in_the_queue_and_prolongs_it",
    ),
    rule(
        "one permit too many",
        "        if not position and me.weight <= self.free and",
        "        if not position and me.weight <= self.free + 1 and",
        ACQUIRE + "test_a_semaphore_has_as_many_holders_as_permits",
    ),
    work(
        "one permit too few is handed over",
        "            if head.weight > self.free:",
        "            if head.weight >= self.free:",
        OFFERS + "test_a_release_hands_over_to_the_head_of_the_queue_in_the_same_step",
    ),
    work(
        "holders are counted without their weight",
        "            self.load += holder.weight\n            if",
        "            self.load += 1\n            if",
        ACQUIRE + "test_a_weight_counts_as_that_many_permits",
    ),
    rule(
        "no waiter is woken by an offer",
        "woken=(*outcome.woken, *self.woken), ",
        "",
        OFFERS + "test_a_release_hands_over_to_the_head_of_the_queue_in_the_same_step",
    ),
    rule(
        "a refusal does not list the attempts that its step granted",
        "        if self.woken or self.hinted:\n",
        "        if (self.woken or self.hinted) and not isinstance(outcome, out.Mismatch):\n",
        OFFERS + "test_every_outcome_lists_the_attempts_that_its_step_granted",
    ),
    work(
        "offers are made although they are switched off",
        "        if not self.offers or self.closed_until:",
        "        if self.closed_until:",
        OFFERS + "test_without_offers_a_free_permit_is_taken_by_the_next_acquire_of_the_head_waiter",
    ),
    work(
        "an offer is endless",
        "    ttl, expires_at = waiter.ttl, waiter.expires_at\n",
        "    ttl = expires_at = None\n",
        OFFERS + "test_an_offer_lasts_for_a_second_and_not_for_a_full_ttl",
    ),
    work(
        "an offer lasts longer than its waiter's position",
        "        expires_at = min(expires_at, now + ttl)\n",
        "        expires_at = now + ttl\n",
        OFFERS + "test_an_offer_never_lasts_longer_than_its_waiters_position",
    ),
    rule(
        "an offer stays one after it was confirmed",
        "            offered=False,\n            place=None,\n            delay=delay,\n",
        "            delay=delay,\n",
        OFFERS + "test_confirming_an_offer_gives_the_same_token_and_the_full_ttl",
    ),
    rule(
        "a try without queueing leaves a waiter behind",
        "        if waiting is not None or (queue and (",
        "        if waiting is not None or self.holders or (queue and (",
        ACQUIRE + "test_a_refusal_returns_the_holder_and_its_remaining_time_and_leaves_nothing_behind",
    ),
    rule(
        "an abandon leaves no tombstone",
        "        if ttl > 0:\n            self.keep_out(Tombstone(",
        "        if ttl < 0:\n            self.keep_out(Tombstone(",
        ENDING + "test_an_acquire_that_arrives_after_its_abandon_is_refused_for_one_ttl",
    ),
    rule(
        "an abandon leaves the waiter in the queue",
        "        elif self.leave(id) is not None:",
        "        elif id in self.waiters:",
        ENDING + "test_abandoning_a_waiter_removes_it_from_the_queue",
    ),
    rule(
        "a transfer leaves its target in the queue",
        "        self.leave(to_id)\n",
        "",
        ENDING + "test_a_transfer_removes_its_target_from_the_queue",
    ),
    rule(
        "a transfer to a holder is done",
        "        if target is not None:\n            return out.TargetHolds()\n",
        "",
        ENDING + "test_a_transfer_to_a_holder_of_the_key_is_refused",
    ),
    rule(
        "a re-send of a transfer is not recognised",
        "        if held is None and target is not None and target.via == id:",
        "        if held is None and target is not None and target.via == to_id:",
        ENDING + "test_a_resend_of_a_transfer_gets_the_same_outcome",
    ),
    rule(
        "a transfer of a second grant is taken for a re-send",
        "        if held is None and target is not None and target.via == id:",
        "        if target is not None and target.via == id:",
        ENDING + "test_a_transfer_of_a_second_grant_is_not_taken_for_a_resend",
    ),
    rule(
        "a forced release leaves no note",
        "        self.forced = Forced(",
        "        Forced(",
        ENDING + "test_a_forced_release_removes_all_holders_and_records_who_and_why",
    ),
]

SHAPE = [
    rule(
        "another kind is granted while the key is in use",
        "        if self.kind != kind and (self.holders or self.waiting):",
        "        if self.kind != kind and self.waiters:",
        ACQUIRE + "test_another_kind_on_a_key_in_use_is_refused",
    ),
    rule(
        "another kind is refused forever",
        "        if self.kind != kind and (self.holders or self.waiting):",
        "        if self.kind != kind and self.fence:",
        ACQUIRE + "test_an_unused_key_may_change_its_kind",
    ),
    rule(
        "a re-send flips the number of permits",
        "        if waiting is None and (permits != self.permits or kind != self.kind):",
        "        if permits != self.permits or kind != self.kind:",
        ACQUIRE + "test_a_resend_with_an_old_number_of_permits_does_not_flip_it_back",
    ),
    work(
        "a waiter that can never fit stays at the head",
        "            self.leave(waiter.id)\n            self._never_fits(waiter)\n",
        "            self._never_fits(waiter)\n",
        ACQUIRE + "test_a_waiter_whose_weight_no_longer_fits_is_removed_and_gets_an_error",
    ),
    work(
        "a waiter that can never fit gets no error",
        "            self.leave(waiter.id)\n            self._never_fits(waiter)\n",
        "            self.leave(waiter.id)\n",
        ACQUIRE + "test_a_waiter_whose_weight_no_longer_fits_is_removed_and_gets_an_error",
    ),
    rule(
        "a change of permits is not reported",
        "            permits_before = self.permits if permits != self.permits and self.fence else None\n",
        "",
        ACQUIRE + "test_a_higher_number_of_permits_of_a_caller_is_stored_and_reported",
    ),
    rule(
        "a weight that can never fit is queued",
        "        if waiting is None and weight > permits:\n",
        "        if waiting is None and weight > permits + 1:\n",
        ACQUIRE + "test_a_weight_above_all_permits_is_refused_at_once",
    ),
    work(
        "an unchanged record is written again",
        "        ):\n            return before\n        return LockRecord(",
        "        ):\n            pass\n        return LockRecord(",
        ENDING + "test_abandoning_again_in_the_same_instant_changes_nothing_at_all",
    ),
]

CLOCK = [
    work(
        "an entry is still valid at its expiry",
        "    if ends <= now:\n        return None\n",
        "    if ends < now:\n        return None\n",
        TIME + "test_a_grant_is_valid_until_just_before_its_expiry",
    ),
    work(
        "waiters never expire",
        "            for waiter in _strayed(self.waiters.values(), now):\n",
        "            for waiter in _strayed((), now):\n",
        TIME + "test_a_waiter_has_expired_when_its_expiry_is_now",
    ),
    work(
        "tombstones never expire",
        "            for stone in _strayed(self.tombstones.values(), now):\n",
        "            for stone in _strayed((), now):\n",
        ENDING + "test_an_acquire_that_arrives_after_its_abandon_is_refused_for_one_ttl",
    ),
    work(
        "a clock that jumped forward and back locks for an hour",
        "not now < thing.expires_at <= now + (thing.ttl or 0)",
        "thing.expires_at <= now",
        TIME + "test_a_clock_that_jumped_forward_and_back_does_not_lock_for_an_hour",
    ),
    work(
        "a lock-delay is prolonged by a clock step",
        "        until = min(self.closed_until, self.now + self.closed_for)\n",
        "        until = self.closed_until\n",
        TIME + "test_a_tombstone_and_a_lock_delay_are_shortened_after_a_clock_step_too",
    ),
    rule(
        "a waiter's sign of life does not count",
        "            return self._ends_after(ttl)\n        return ends\n",
        "            return ends\n        return ends\n",
        ACQUIRE + "test_acquiring_again_keeps_the_position_in_the_queue_and_prolongs_it",
    ),
    work(
        "no record is ever due",
        "            due_at=self.soonest() if self.waiting else None,\n",
        "            due_at=None,\n",
        TIME + "test_a_record_with_waiters_is_due_at_its_earliest_expiry",
    ),
    work(
        "a record is due for its holders alone",
        "[*self.holders.values(), *self.waiters.values()]",
        "[*self.holders.values()]",
        TIME + "test_a_record_with_waiters_is_due_at_its_earliest_expiry",
    ),
    work(
        "the end of a lock-delay is not due",
        "        if self.closed_until:\n            return min(",
        "        if not self.closed_until:\n            return min(",
        TIME + "test_the_queue_waits_for_the_end_of_the_lock_delay",
    ),
    rule(
        "the lock-delay is not kept",
        "me.weight <= self.free and not self.closed_until:",
        "me.weight <= self.free:",
        TIME + "test_the_lock_delay_closes_the_key_after_an_abnormal_loss",
    ),
    work(
        "the queue does not wait for the lock-delay",
        "        if not self.offers or self.closed_until:",
        "        if not self.offers:",
        TIME + "test_the_queue_waits_for_the_end_of_the_lock_delay",
    ),
    work(
        "an unconfirmed offer closes the key",
        "            if holder.offered:\n                missed.append(holder)\n            elif holder.delay",
        "            if holder.offered:\n                missed.append(holder)\n            if holder.delay",
        TIME + "test_there_is_no_lock_delay_after_an_unconfirmed_offer",
    ),
    work(
        "an offer forgets its lock-delay",
        "        delay=waiter.delay,\n",
        "",
        TIME + "test_the_lock_delay_of_a_waiter_applies_once_its_offer_is_confirmed",
    ),
]

STORED_FORM = [
    codec(
        "fields of another version are dropped when read",
        '    if unknown:\n        known["unknown"] = unknown\n',
        "",
        RECORD + "test_unknown_fields_survive_a_round_trip_at_every_level",
    ),
    codec(
        "fields of another version are dropped when written",
        '    result.update(value.get("unknown") or {})\n',
        "",
        RECORD + "test_unknown_fields_survive_a_round_trip_at_every_level",
    ),
    work(
        "unknown fields of a waiter are lost with its grant",
        "        unknown=waiter.unknown,\n",
        "",
        RECORD + "test_unknown_fields_survive_the_rules",
    ),
    codec(
        "an unreadable record is taken for an empty one",
        "    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:\n",
        "    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:\n        return EMPTY\n",
        RECORD + "test_an_unreadable_record_is_refused_by_name_and_never_taken_for_empty",
    ),
    codec(
        "an empty text is taken for an empty record",
        "            return _decoder.decode(text)\n",
        "            return _decoder.decode(text) if text else EMPTY\n",
        RECORD + "test_an_unreadable_record_is_refused_by_name_and_never_taken_for_empty",
    ),
]

MUTANTS: list[Mutant] = [*OWNERSHIP, *TOKENS, *QUEUE, *SHAPE, *CLOCK, *STORED_FORM]
