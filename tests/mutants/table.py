"""Every mutant: what it does wrong, where, how, and the tests that must notice.

Add a row for each promise whose loss must not go unnoticed. Choose few, narrow and fast tests: a row should take
about a second. The old text must occur exactly once in its file, so a row that went stale is an error.
"""

from __future__ import annotations

from .runner import Mutant

ACQUIRE = "tests/rules/test_acquire.py::"
OFFERS = "tests/rules/test_offers.py::"
ENDING = "tests/rules/test_ending.py::"
TIME = "tests/rules/test_time.py::"
RECORD = "tests/rules/test_record.py::"

OR_NOT_HELD = "    if held is None:\n        return record, out.NotHeld(woken=woken)\n"


def rule(name: str, old: str, new: str, *caught_by: str) -> Mutant:
    return Mutant(name, "rules/lock.py", old, new, caught_by)


def codec(name: str, old: str, new: str, *caught_by: str) -> Mutant:
    return Mutant(name, "rules/record.py", old, new, caught_by)


OWNERSHIP = [
    rule(
        "the owner is not checked",
        "    held = _find(record.holders, id)\n    if held is None or (token is None",
        "    held = next(iter(record.holders), None)\n    if held is None or (token is None",
        ENDING + "test_renew_and_release_by_anyone_else_change_nothing",
    ),
    rule(
        "the token is not checked on renew",
        "    held = _held_by(record, id, token)\n" + OR_NOT_HELD + "    longer",
        "    held = _find(record.holders, id)\n" + OR_NOT_HELD + "    longer",
        ENDING + "test_the_token_of_an_earlier_grant_of_the_same_attempt_is_not_enough",
    ),
    rule(
        "the token is not checked on release",
        "    if _held_by(record, id, token) is None:",
        "    if _find(record.holders, id) is None:",
        ENDING + "test_the_token_of_an_earlier_grant_of_the_same_attempt_is_not_enough",
    ),
    rule(
        "any kind may be named without a token",
        'if held is None or (token is None and record.kind != "lease"):',
        "if held is None:",
        ENDING + "test_only_a_lease_may_be_named_by_its_owner_alone",
    ),
    rule(
        "a lease cannot be named by its owner alone",
        'if held is None or (token is None and record.kind != "lease"):',
        "if held is None or token is None:",
        ENDING + "test_only_a_lease_may_be_named_by_its_owner_alone",
    ),
    rule(
        "a renewal revives what has ended",
        "    record, woken = settle(record, now, offers=offers)\n"
        "    held = _held_by(record, id, token)\n" + OR_NOT_HELD + "    longer",
        "    woken: tuple[str, ...] = ()\n    held = _held_by(record, id, token)\n" + OR_NOT_HELD + "    longer",
        ENDING + "test_what_has_expired_cannot_be_renewed",
    ),
    rule(
        "a renewal of an offer leaves it an offer",
        "expires_at=_ends(now, ttl), offered=False)",
        "expires_at=_ends(now, ttl))",
        OFFERS + "test_renewing_an_offer_confirms_it",
    ),
]

TOKENS = [
    rule(
        "a grant does not raise the token",
        "        token = next_token(record.fence, now)\n",
        "        token = max(record.fence, now)\n",
        ACQUIRE + "test_tokens_rise_even_when_the_clock_stands_still_or_falls",
    ),
    rule(
        "a grant does not raise the fence",
        "record, now, offers, fence=token, holders=(*record.holders, grant)",
        "record, now, offers, holders=(*record.holders, grant)",
        ACQUIRE + "test_tokens_rise_even_when_the_clock_stands_still_or_falls",
    ),
    rule(
        "tokens do not follow the clock",
        "return max(fence + 1, now)",
        "return fence + 1",
        ACQUIRE + "test_the_token_of_a_forgotten_key_is_still_higher_because_it_follows_the_clock",
    ),
    rule(
        "tokens fall with the clock",
        "return max(fence + 1, now)",
        "return now",
        ACQUIRE + "test_tokens_rise_even_when_the_clock_stands_still_or_falls",
    ),
    rule(
        "offers of one step share a token",
        "            fence = next_token(fence, now)\n",
        "            fence = max(next_token(record.fence, now), fence)\n",
        OFFERS + "test_several_permits_that_become_free_go_to_several_waiters_in_order",
    ),
    rule(
        "the floor of a semaphore is the token",
        "            floor=floor(record),\n            since=now,",
        "            floor=token,\n            since=now,",
        ACQUIRE + "test_the_floor_of_a_semaphore_is_the_lowest_living_token",
    ),
    rule(
        "the floor of a renewal is the token",
        "out.Renewed(floor=floor(record)",
        "out.Renewed(floor=held.token",
        ACQUIRE + "test_the_floor_of_a_semaphore_is_the_lowest_living_token",
    ),
    rule(
        "a re-send is granted a new token",
        "        held,\n        ttl=ttl,\n        expires_at=_ends(now, ttl),\n        offered=False,\n        delay",
        "        held,\n        token=next_token(record.fence, now),\n        ttl=ttl,\n"
        "        expires_at=_ends(now, ttl),\n        offered=False,\n        delay",
        ACQUIRE + "test_a_resend_of_an_attempt_gets_the_same_token_and_its_full_ttl",
    ),
    rule(
        "a re-send is refused by its own grant",
        "    if held is not None:\n        return _confirm",
        "    if held is not None and held.offered:\n        return _confirm",
        ACQUIRE + "test_a_resend_of_an_attempt_gets_the_same_token_and_its_full_ttl",
    ),
    rule(
        "a forced release resets the fence",
        "holders=(), forced=note)",
        "holders=(), forced=note, fence=0)",
        ENDING + "test_the_token_after_a_forced_release_is_higher_than_before_it",
    ),
    rule(
        "a transfer keeps the token",
        "    fresh = next_token(record.fence, now)\n",
        "    fresh = held.token\n",
        ENDING + "test_a_transfer_gets_a_higher_token_even_in_the_same_instant",
    ),
    rule(
        "cleanup forgets a fence ahead of the clock",
        "and record.fence < now - retention",
        "and abs(now - record.fence) > retention",
        TIME + "test_a_record_whose_fence_is_ahead_of_the_clock_is_never_forgotten",
    ),
    rule(
        "cleanup forgets a young fence",
        "        and record.fence < now - retention\n",
        "",
        TIME + "test_an_empty_record_may_be_forgotten_when_its_fence_is_a_week_behind",
    ),
    rule(
        "cleanup forgets tombstones",
        "        and not record.tombstones\n",
        "",
        TIME + "test_a_record_in_which_anything_lives_is_never_forgotten",
    ),
]

QUEUE = [
    rule(
        "a release settles nothing",
        "record, more = _change(record, now, offers, holders=_without(record.holders, id))",
        "record, more = _change(record, now, False, holders=_without(record.holders, id))",
        OFFERS + "test_a_release_hands_over_to_the_head_of_the_queue_in_the_same_step",
    ),
    rule(
        "a newcomer takes what is free while others wait",
        "    first = position == 0 or not record.waiters\n",
        "    first = True\n",
        ACQUIRE + "test_a_newcomer_cannot_take_what_is_free_while_others_wait",
    ),
    rule(
        "the last to come is served first",
        "        waiters = (*record.waiters, me)\n",
        "        waiters = (me, *record.waiters)\n",
        ACQUIRE + "test_a_waiter_is_told_its_place_and_when_to_look_again",
    ),
    rule(
        "asking again costs the place in the queue",
        "        waiters = (*record.waiters[:position], me, *record.waiters[position + 1 :])\n",
        "        waiters = (*_without(record.waiters, me.id), me)\n",
        ACQUIRE + "test_asking_again_keeps_the_place_in_the_queue_and_prolongs_it",
    ),
    rule(
        "one permit too many",
        "    if first and me.weight <= free and",
        "    if first and me.weight <= free + 1 and",
        ACQUIRE + "test_a_semaphore_has_as_many_holders_as_permits",
    ),
    rule(
        "one permit too few is handed over",
        "        while waiters and waiters[0].weight <= free:",
        "        while waiters and waiters[0].weight < free:",
        OFFERS + "test_a_release_hands_over_to_the_head_of_the_queue_in_the_same_step",
    ),
    rule(
        "holders are counted without their weight",
        "    free = record.permits - sum(holder.weight for holder in record.holders)\n",
        "    free = record.permits - len(record.holders)\n",
        ACQUIRE + "test_a_weight_counts_as_that_many_permits",
    ),
    rule(
        "nobody is told of an offer",
        "    return settled, tuple(woken)\n",
        "    return settled, ()\n",
        OFFERS + "test_a_release_hands_over_to_the_head_of_the_queue_in_the_same_step",
    ),
    rule(
        "a refusal keeps quiet about whom it granted to",
        "        return record, out.Mismatch(found=record.kind, woken=woken)",
        "        return record, out.Mismatch(found=record.kind)",
        OFFERS + "test_every_answer_lists_whom_its_step_granted_to",
    ),
    rule(
        "offers are made where none are wanted",
        "    if offers and waiters and not closed_until:",
        "    if waiters and not closed_until:",
        OFFERS + "test_without_offers_a_free_permit_waits_for_the_heads_own_acquire",
    ),
    rule(
        "an offer is endless",
        "        ttl=waiter.ttl,\n        expires_at=waiter.expires_at,\n",
        "        ttl=None,\n        expires_at=None,\n",
        OFFERS + "test_an_offer_lives_as_long_as_its_waiters_sign_of_life_and_not_a_full_ttl",
    ),
    rule(
        "an offer lives longer than its waiter would have",
        "        ttl=waiter.ttl,\n        expires_at=waiter.expires_at,\n",
        "        ttl=waiter.ttl,\n        expires_at=_ends(now, waiter.ttl),\n",
        OFFERS + "test_an_offer_lives_as_long_as_its_waiters_sign_of_life_and_not_a_full_ttl",
    ),
    rule(
        "an offer stays one after it was confirmed",
        "        offered=False,\n        delay=delay,\n",
        "        delay=delay,\n",
        OFFERS + "test_confirming_an_offer_gives_the_same_token_and_the_full_ttl",
    ),
    rule(
        "a try without queueing leaves a waiter behind",
        "    if position is None and not queue:",
        "    if position is None and not queue and not record.holders:",
        ACQUIRE + "test_a_refusal_tells_who_holds_and_for_how_long_and_leaves_nothing_behind",
    ),
    rule(
        "an abandon leaves no tombstone",
        "        tombstones=(*_without(record.tombstones, id), *stones)[-MAX_TOMBSTONES:],\n",
        "        tombstones=record.tombstones,\n",
        ENDING + "test_an_acquire_that_arrives_after_its_abandon_is_refused_for_one_ttl",
    ),
    rule(
        "an abandon leaves the waiter in the queue",
        "        waiters=_without(record.waiters, id),\n",
        "        waiters=record.waiters,\n",
        ENDING + "test_abandoning_a_waiter_takes_it_out_of_the_queue",
    ),
    rule(
        "a transfer leaves its target in the queue",
        "        waiters=_without(record.waiters, to_id),\n",
        "        waiters=record.waiters,\n",
        ENDING + "test_a_transfer_takes_its_target_out_of_the_queue",
    ),
    rule(
        "a transfer to one who holds is done",
        "    if target is not None:\n        return record, out.TargetHolds(woken=woken)\n",
        "",
        ENDING + "test_a_transfer_to_one_who_holds_is_refused",
    ),
    rule(
        "a re-send of a transfer is not recognised",
        "    if held is None and target is not None and target.via == id:",
        "    if held is None and target is not None and target.via == to_id:",
        ENDING + "test_a_resend_of_a_transfer_gets_the_same_answer",
    ),
    rule(
        "a second grant of the giver is taken for a re-send",
        "    if held is None and target is not None and target.via == id:",
        "    if target is not None and target.via == id:",
        ENDING + "test_a_second_grant_of_the_giver_is_not_taken_for_a_resend",
    ),
    rule(
        "a forced release leaves no note",
        "holders=(), forced=note)",
        "holders=())",
        ENDING + "test_a_forced_release_puts_everyone_out_and_keeps_who_and_why",
    ),
]

SHAPE = [
    rule(
        "another kind is let in while the key is in use",
        "    if record.kind != kind and not record.idle:",
        "    if record.kind != kind and record.waiters:",
        ACQUIRE + "test_another_kind_on_a_key_in_use_is_refused",
    ),
    rule(
        "another kind is refused for ever",
        "    if record.kind != kind and not record.idle:",
        "    if record.kind != kind and record.fence:",
        ACQUIRE + "test_another_kind_on_a_key_that_nobody_uses_is_taken_over",
    ),
    rule(
        "a re-send flips the number of permits",
        "    if waiting is None:\n        if weight > permits:",
        "    if True:\n        if weight > permits:",
        ACQUIRE + "test_a_resend_with_an_old_number_of_permits_does_not_flip_it_back",
    ),
    rule(
        "a waiter that can never fit stays at the head",
        "        waiters=stay,\n",
        "        waiters=record.waiters,\n",
        ACQUIRE + "test_a_waiter_that_can_no_longer_fit_is_removed_and_told",
    ),
    rule(
        "a waiter that can never fit is not told",
        "        tombstones=(*record.tombstones, *stones)[-MAX_TOMBSTONES:],\n",
        "        tombstones=record.tombstones,\n",
        ACQUIRE + "test_a_waiter_that_can_no_longer_fit_is_removed_and_told",
    ),
    rule(
        "a change of permits is not reported",
        "            permits_before = record.permits if permits != record.permits and record.fence else None\n",
        "",
        ACQUIRE + "test_more_permits_are_taken_from_the_caller_recorded_and_reported",
    ),
    rule(
        "a weight that can never fit is queued",
        "        if weight > permits:\n",
        "        if weight > permits and not queue:\n",
        ACQUIRE + "test_a_weight_above_all_permits_is_refused_at_once",
    ),
    rule(
        "an unchanged record is written anew",
        "    if changed == record:\n        return record, woken\n",
        "",
        ACQUIRE + "test_a_resend_of_an_endless_grant_or_place_changes_nothing_at_all",
    ),
]

CLOCK = [
    rule(
        "a thing lives on at its end",
        "(expires_at <= now or expires_at >",
        "(expires_at < now or expires_at >",
        TIME + "test_a_holder_lives_until_just_before_its_end_and_has_ended_at_it",
    ),
    rule(
        "waiters never expire",
        "    waiters = _living(record.waiters, now)\n",
        "    waiters = record.waiters\n",
        TIME + "test_a_waiter_has_ended_when_its_end_is_now",
    ),
    rule(
        "tombstones never expire",
        "    tombstones = _living(record.tombstones, now)\n",
        "    tombstones = record.tombstones\n",
        ENDING + "test_an_acquire_that_arrives_after_its_abandon_is_refused_for_one_ttl",
    ),
    rule(
        "a clock that jumped forward and back locks for an hour",
        "(expires_at <= now or expires_at > now + (thing.ttl or 0))",
        "expires_at <= now",
        TIME + "test_a_clock_that_jumped_forward_and_back_does_not_lock_for_an_hour",
    ),
    rule(
        "a lock-delay is stretched by a clock step",
        "        closed_until = min(closed_until, now + closed_for)\n",
        "",
        TIME + "test_a_tombstone_and_a_lock_delay_are_lowered_after_a_clock_step_too",
    ),
    rule(
        "a waiter's sign of life does not count",
        "            expires_at=_ends(now, waiter_ttl),\n",
        "            expires_at=_ends(now, waiter_ttl) if waiting is None else waiting.expires_at,\n",
        ACQUIRE + "test_asking_again_keeps_the_place_in_the_queue_and_prolongs_it",
    ),
    rule(
        "no record is ever due",
        "    due_at = _due_at(holders, waiters, closed_until)\n",
        "    due_at = None\n",
        TIME + "test_a_record_with_waiters_is_due_at_its_earliest_end",
    ),
    rule(
        "a record is due for its holders alone",
        "    ends += [waiter.expires_at for waiter in waiters if waiter.expires_at is not None]\n",
        "",
        TIME + "test_a_record_with_waiters_is_due_at_its_earliest_end",
    ),
    rule(
        "the end of a lock-delay is not due",
        "    if closed_until:\n        ends.append(closed_until)\n",
        "",
        TIME + "test_the_queue_waits_for_the_lock_delay_and_moves_when_it_is_over",
    ),
    rule(
        "the lock-delay is not kept",
        "me.weight <= free and not record.closed_until:",
        "me.weight <= free:",
        TIME + "test_the_lock_delay_closes_the_key_after_an_abnormal_loss",
    ),
    rule(
        "the queue does not wait for the lock-delay",
        "    if offers and waiters and not closed_until:",
        "    if offers and waiters:",
        TIME + "test_the_queue_waits_for_the_lock_delay_and_moves_when_it_is_over",
    ),
    rule(
        "an offer that nobody confirmed closes the key",
        "lapsed <= now and holder.delay and not holder.offered:",
        "lapsed <= now and holder.delay:",
        TIME + "test_there_is_no_lock_delay_after_an_offer_that_nobody_confirmed",
    ),
    rule(
        "an offer forgets its lock-delay",
        "        delay=waiter.delay,\n",
        "",
        TIME + "test_the_lock_delay_of_a_waiter_counts_once_its_offer_is_confirmed",
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
    rule(
        "fields of another version are lost on the way out of the queue",
        "        unknown=waiter.unknown,\n",
        "",
        RECORD + "test_unknown_fields_survive_the_rules",
    ),
    codec(
        "an unreadable record is taken for an empty one",
        "    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:\n",
        "    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:\n        return EMPTY\n",
        RECORD + "test_what_cannot_be_read_is_refused_by_name_and_never_taken_for_empty",
    ),
    codec(
        "an empty text is taken for an empty record",
        "            return _decoder.decode(text)\n",
        "            return _decoder.decode(text) if text else EMPTY\n",
        RECORD + "test_what_cannot_be_read_is_refused_by_name_and_never_taken_for_empty",
    ),
]

MUTANTS: list[Mutant] = [*OWNERSHIP, *TOKENS, *QUEUE, *SHAPE, *CLOCK, *STORED_FORM]
