"""Expiry, clock steps, the lock-delay, due records and removable records."""

import pytest

from holdfast.rules import lock
from holdfast.rules import lock_outcomes as out
from holdfast.rules.lock_record import EMPTY, Forced, LockRecord

from .harness import DAY, HOUR, OFFER, PATIENCE, SECOND, T0, TTL, LockHarness


def test_a_grant_is_valid_until_just_before_its_expiry():
    harness = LockHarness()
    harness.acquire("a")
    assert isinstance(harness.later(TTL - 1).acquire("b"), out.Busy)
    assert isinstance(harness.later(1).acquire("b"), out.Granted)


def test_a_renewal_just_before_the_expiry_succeeds_and_at_the_expiry_fails():
    harness = LockHarness()
    a = harness.acquire("a")
    assert isinstance(harness.later(TTL - 1).renew("a", a.token), out.Renewed)
    assert isinstance(harness.later(TTL).renew("a", a.token), out.NotHolder)


def test_a_waiter_has_expired_when_its_expiry_is_now():
    harness = LockHarness()
    harness.acquire("a")
    harness.wait("b")
    harness.later(PATIENCE - 1).settle()
    assert harness.waiting == ["b"]
    harness.later(1).settle()
    assert harness.waiting == []


def test_the_expiry_of_one_attempt_does_not_affect_the_others():
    harness = LockHarness()
    harness.acquire("a", kind="semaphore", permits=3, ttl=SECOND)
    harness.acquire("b", kind="semaphore", permits=3, ttl=2 * SECOND)
    harness.acquire("c", kind="semaphore", permits=3, ttl=None)
    harness.later(SECOND).settle()
    assert harness.holding == ["b", "c"]
    harness.later(SECOND).settle()
    assert harness.holding == ["c"]


def test_a_clock_that_jumped_forward_and_back_does_not_lock_for_an_hour():
    harness = LockHarness()
    a = harness.acquire("a")
    harness.later(TTL // 2 + HOUR)
    answer = harness.acquire("b")
    harness.wait("c")
    assert answer.expires_at == harness.now + TTL
    harness.later(-HOUR)
    harness.settle()
    assert harness.holder("b").expires_at == harness.now + TTL
    assert harness.waiter("c").expires_at == harness.now + PATIENCE
    assert harness.record.due_at == harness.now + PATIENCE
    assert harness.holder("b").token > a.token
    assert harness.later(TTL).acquire("d").token > answer.token


def test_a_tombstone_and_a_lock_delay_are_shortened_after_a_clock_step_too():
    harness = LockHarness(now=T0 + HOUR)
    harness.acquire("a", ttl=SECOND, delay=TTL)
    harness.later(SECOND).abandon("x")
    assert harness.record.closed_until == harness.now + TTL
    harness.later(-HOUR).settle()
    assert harness.record.closed_until == harness.now + TTL
    assert harness.record.tombstones[0].expires_at == harness.now + TTL
    assert isinstance(harness.later(TTL).acquire("x"), out.Granted)


def test_the_expiry_of_a_renewed_holder_is_cut_to_its_latest_ttl():
    harness = LockHarness()
    a = harness.acquire("a", ttl=HOUR)
    harness.renew("a", a.token, ttl=SECOND)
    harness.later(-DAY).settle()
    assert harness.holder("a").expires_at == harness.now + SECOND


def test_a_step_back_of_the_clock_does_not_shorten_a_ttl_below_its_length():
    harness = LockHarness()
    harness.acquire("a")
    harness.later(-HOUR).settle()
    assert isinstance(harness.later(TTL - 1).acquire("b"), out.Busy)


def test_a_step_forward_ends_leases_early_and_the_next_token_is_higher():
    harness = LockHarness()
    a = harness.acquire("a")
    b = harness.later(HOUR).acquire("b")
    assert b.token > a.token
    assert harness.renew("a", a.token) == out.NotHolder()


def test_the_lock_delay_closes_the_key_after_an_abnormal_loss():
    harness = LockHarness()
    harness.acquire("a", delay=10 * SECOND)
    answer = harness.later(TTL).acquire("b")
    assert isinstance(answer, out.Busy)
    assert answer.retry_in == 10 * SECOND
    assert harness.record.closed_until == T0 + TTL + 10 * SECOND
    assert isinstance(harness.later(10 * SECOND - 1).acquire("b"), out.Busy)
    assert isinstance(harness.later(1).acquire("b"), out.Granted)
    assert (harness.record.closed_until, harness.record.closed_for) == (0, 0)


def test_the_lock_delay_counts_from_the_expiry_and_not_from_the_command_that_finds_it():
    harness = LockHarness()
    harness.acquire("a", delay=10 * SECOND)
    harness.later(TTL + 4 * SECOND).settle()
    assert harness.record.closed_until == T0 + TTL + 10 * SECOND
    late = LockHarness()
    late.acquire("a", delay=10 * SECOND)
    assert isinstance(late.later(TTL + 10 * SECOND).acquire("b"), out.Granted)


def test_the_queue_waits_for_the_end_of_the_lock_delay():
    harness = LockHarness()
    harness.acquire("a", delay=10 * SECOND, ttl=SECOND)
    harness.wait("b", waiter_ttl=HOUR)
    assert harness.later(SECOND).settle() == ()
    assert harness.record.due_at == T0 + 11 * SECOND
    assert harness.wait("b", waiter_ttl=HOUR).recheck_in == 10 * SECOND
    assert harness.later(10 * SECOND).settle() == ("b",)


@pytest.mark.parametrize("end", ["release", "abandon", "transfer", "force_release"])
def test_there_is_no_lock_delay_after_a_release(end):
    harness = LockHarness()
    a = harness.acquire("a", delay=HOUR)
    {
        "release": lambda: harness.release("a", a.token),
        "abandon": lambda: harness.abandon("a"),
        "transfer": lambda: harness.release("b", harness.transfer("a", a.token, "b").token),
        "force_release": lambda: harness.force_release(),
    }[end]()
    assert harness.record.closed_until == 0
    assert isinstance(harness.acquire("c"), out.Granted)


def test_there_is_no_lock_delay_after_an_unconfirmed_offer():
    harness = LockHarness()
    a = harness.acquire("a")
    harness.wait("dead", delay=HOUR)
    harness.release("a", a.token)
    assert isinstance(harness.later(PATIENCE).acquire("b"), out.Granted)


@pytest.mark.parametrize("confirm", ["acquire", "renew", "transfer"])
def test_the_lock_delay_of_a_waiter_applies_once_its_offer_is_confirmed(confirm):
    harness = LockHarness()
    a = harness.acquire("a")
    harness.wait("b", delay=HOUR)
    harness.release("a", a.token)
    token = harness.holder("b").token
    {
        "acquire": lambda: harness.acquire("b", delay=HOUR),
        "renew": lambda: harness.renew("b", token),
        "transfer": lambda: harness.transfer("b", token, "c"),
    }[confirm]()
    harness.later(TTL).settle()
    assert harness.record.closed_until == harness.now + HOUR


def test_the_longest_lock_delay_of_several_expired_grants_applies():
    harness = LockHarness()
    harness.acquire("a", kind="semaphore", permits=2, delay=SECOND)
    harness.acquire("b", kind="semaphore", permits=2, delay=10 * SECOND)
    harness.later(TTL).settle()
    assert (harness.record.closed_until, harness.record.closed_for) == (harness.now + 10 * SECOND, 10 * SECOND)


def test_a_holder_of_a_closed_key_can_still_renew_and_release():
    harness = LockHarness()
    harness.acquire("lost", kind="semaphore", permits=2, ttl=SECOND, delay=HOUR)
    b = harness.acquire("b", kind="semaphore", permits=2)
    harness.later(SECOND)
    assert isinstance(harness.renew("b", b.token), out.Renewed)
    assert isinstance(harness.acquire("b", kind="semaphore", permits=2), out.Granted)
    assert isinstance(harness.acquire("c", kind="semaphore", permits=2), out.Busy)
    assert isinstance(harness.release("b", b.token), out.Released)


def test_a_record_with_waiters_is_due_at_its_earliest_expiry():
    harness = LockHarness()
    harness.acquire("a")
    assert harness.record.due_at is None
    harness.wait("b", waiter_ttl=HOUR)
    assert harness.record.due_at == T0 + TTL
    harness.wait("c", waiter_ttl=PATIENCE)
    assert harness.record.due_at == T0 + PATIENCE
    harness.abandon("c")
    assert harness.record.due_at == T0 + TTL
    harness.abandon("b")
    assert harness.record.due_at is None


def test_a_record_where_nothing_can_expire_is_never_due():
    harness = LockHarness()
    harness.acquire("a", ttl=None)
    answer = harness.wait("b", waiter_ttl=None)
    assert harness.record.due_at is None
    assert answer.recheck_in is None


def test_a_record_is_due_again_when_an_offer_may_expire():
    harness = LockHarness()
    a = harness.acquire("a", ttl=None)
    harness.wait("b")
    harness.wait("c", waiter_ttl=HOUR)
    harness.release("a", a.token)
    assert harness.record.due_at == T0 + OFFER
    assert harness.wait("c", waiter_ttl=HOUR).recheck_in == OFFER
    harness.later(OFFER).settle()
    assert (harness.holding, harness.waiting) == ([], ["b", "c"])


def test_the_expiries_of_an_offer_and_its_position_are_shortened_after_a_clock_step():
    harness = LockHarness(now=T0 + HOUR)
    a = harness.acquire("a")
    harness.wait("b")
    harness.wait("c")
    harness.release("a", a.token)
    harness.later(-HOUR).settle()
    assert harness.holder("b").expires_at == harness.now + OFFER
    assert harness.holder("b").place.expires_at == harness.now + PATIENCE
    assert harness.record.due_at == harness.now + OFFER
    harness.later(OFFER).settle()
    assert harness.waiter("b").expires_at == harness.now - OFFER + PATIENCE


def test_the_record_of_an_unused_key_may_be_removed():
    assert lock.removable(EMPTY, T0)


def test_an_empty_record_may_be_removed_when_its_fence_is_a_week_old():
    harness = LockHarness()
    a = harness.acquire("a")
    harness.release("a", a.token)
    assert not lock.removable(harness.record, T0 + lock.RETENTION)
    assert lock.removable(harness.record, T0 + lock.RETENTION + 1)
    assert lock.removable(harness.record, T0 + HOUR + 1, retention=HOUR)


def test_a_record_whose_fence_is_ahead_of_the_clock_is_never_removed():
    """A clock that was a year ahead issued a token; the token of a new record would be lower."""
    harness = LockHarness(now=T0 + 365 * DAY)
    a = harness.acquire("a")
    harness.release("a", a.token)
    assert not lock.removable(harness.record, T0)
    assert not lock.removable(harness.record, T0 + 30 * DAY)
    assert lock.removable(harness.record, T0 + 365 * DAY + lock.RETENTION + 1)


def test_a_record_with_a_holder_waiter_or_tombstone_is_never_removed():
    late = T0 + lock.RETENTION + 1
    harness = LockHarness()
    harness.acquire("a", ttl=None)
    assert not lock.removable(harness.record, late)
    harness.wait("b", waiter_ttl=None)
    harness.force_release()
    assert not lock.removable(harness.record, late)
    given_up = LockHarness(now=late)
    given_up.abandon("a")
    assert not lock.removable(given_up.record, late)


def test_a_closed_key_and_a_recent_note_of_a_forced_release_are_not_removed():
    late = T0 + lock.RETENTION + 1
    assert not lock.removable(LockRecord(fence=T0, closed_until=late + 1, closed_for=HOUR), late)
    forced = Forced(at=late - 1, by="ada", reason="stuck")
    assert not lock.removable(LockRecord(fence=T0, forced=forced), late)
    assert lock.removable(LockRecord(fence=T0, forced=forced), late + lock.RETENTION)


def test_expired_holders_do_not_prevent_the_removal_of_a_record():
    harness = LockHarness()
    harness.acquire("a")
    harness.wait("b")
    assert lock.removable(harness.record, T0 + lock.RETENTION + HOUR)


def test_tokens_fit_into_53_bits_for_two_hundred_years():
    harness = LockHarness(now=T0 + 200 * 365 * DAY)
    assert harness.acquire("a").token < 2**53
