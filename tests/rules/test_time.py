"""Expiry, clock steps, the lock-delay, due records and what may be forgotten."""

import pytest

from holdfast.rules import lock
from holdfast.rules import lock_outcomes as out
from holdfast.rules.lock_record import EMPTY, Forced, LockRecord

from .harness import DAY, HOUR, OFFER, PATIENCE, SECOND, T0, TTL, Desk


def test_a_holder_lives_until_just_before_its_end_and_has_ended_at_it():
    desk = Desk()
    desk.acquire("a")
    assert isinstance(desk.later(TTL - 1).acquire("b"), out.Busy)
    assert isinstance(desk.later(1).acquire("b"), out.Granted)


def test_a_renewal_just_before_the_end_succeeds_and_at_the_end_fails():
    desk = Desk()
    a = desk.acquire("a")
    assert isinstance(desk.later(TTL - 1).renew("a", a.token), out.Renewed)
    assert isinstance(desk.later(TTL).renew("a", a.token), out.NotHolder)


def test_a_waiter_has_ended_when_its_end_is_now():
    desk = Desk()
    desk.acquire("a")
    desk.wait("b")
    desk.later(PATIENCE - 1).settle()
    assert desk.waiting == ["b"]
    desk.later(1).settle()
    assert desk.waiting == []


def test_one_who_ends_takes_nobody_along():
    desk = Desk()
    desk.acquire("a", kind="semaphore", permits=3, ttl=SECOND)
    desk.acquire("b", kind="semaphore", permits=3, ttl=2 * SECOND)
    desk.acquire("c", kind="semaphore", permits=3, ttl=None)
    desk.later(SECOND).settle()
    assert desk.holding == ["b", "c"]
    desk.later(SECOND).settle()
    assert desk.holding == ["c"]


def test_a_clock_that_jumped_forward_and_back_does_not_lock_for_an_hour():
    desk = Desk()
    a = desk.acquire("a")
    desk.later(TTL // 2 + HOUR)
    answer = desk.acquire("b")
    desk.wait("c")
    assert answer.expires_at == desk.now + TTL
    desk.later(-HOUR)
    desk.settle()
    assert desk.holder("b").expires_at == desk.now + TTL
    assert desk.waiter("c").expires_at == desk.now + PATIENCE
    assert desk.record.due_at == desk.now + PATIENCE
    assert desk.holder("b").token > a.token
    assert desk.later(TTL).acquire("d").token > answer.token


def test_a_tombstone_and_a_lock_delay_are_lowered_after_a_clock_step_too():
    desk = Desk(now=T0 + HOUR)
    desk.acquire("a", ttl=SECOND, delay=TTL)
    desk.later(SECOND).abandon("x")
    assert desk.record.closed_until == desk.now + TTL
    desk.later(-HOUR).settle()
    assert desk.record.closed_until == desk.now + TTL
    assert desk.record.tombstones[0].expires_at == desk.now + TTL
    assert isinstance(desk.later(TTL).acquire("x"), out.Granted)


def test_a_renewed_holder_is_lowered_to_its_latest_ttl():
    desk = Desk()
    a = desk.acquire("a", ttl=HOUR)
    desk.renew("a", a.token, ttl=SECOND)
    desk.later(-DAY).settle()
    assert desk.holder("a").expires_at == desk.now + SECOND


def test_a_step_back_of_the_clock_does_not_shorten_a_ttl_below_its_length():
    desk = Desk()
    desk.acquire("a")
    desk.later(-HOUR).settle()
    assert isinstance(desk.later(TTL - 1).acquire("b"), out.Busy)


def test_a_step_forward_ends_leases_early_and_the_fence_protects():
    desk = Desk()
    a = desk.acquire("a")
    b = desk.later(HOUR).acquire("b")
    assert b.token > a.token
    assert desk.renew("a", a.token) == out.NotHolder()


def test_the_lock_delay_closes_the_key_after_an_abnormal_loss():
    desk = Desk()
    desk.acquire("a", delay=10 * SECOND)
    answer = desk.later(TTL).acquire("b")
    assert isinstance(answer, out.Busy)
    assert answer.retry_in == 10 * SECOND
    assert desk.record.closed_until == T0 + TTL + 10 * SECOND
    assert isinstance(desk.later(10 * SECOND - 1).acquire("b"), out.Busy)
    assert isinstance(desk.later(1).acquire("b"), out.Granted)
    assert (desk.record.closed_until, desk.record.closed_for) == (0, 0)


def test_the_lock_delay_counts_from_the_loss_and_not_from_its_notice():
    desk = Desk()
    desk.acquire("a", delay=10 * SECOND)
    desk.later(TTL + 4 * SECOND).settle()
    assert desk.record.closed_until == T0 + TTL + 10 * SECOND
    late = Desk()
    late.acquire("a", delay=10 * SECOND)
    assert isinstance(late.later(TTL + 10 * SECOND).acquire("b"), out.Granted)


def test_the_queue_waits_for_the_lock_delay_and_moves_when_it_is_over():
    desk = Desk()
    desk.acquire("a", delay=10 * SECOND, ttl=SECOND)
    desk.wait("b", waiter_ttl=HOUR)
    assert desk.later(SECOND).settle() == ()
    assert desk.record.due_at == T0 + 11 * SECOND
    assert desk.wait("b", waiter_ttl=HOUR).recheck_in == 10 * SECOND
    assert desk.later(10 * SECOND).settle() == ("b",)


@pytest.mark.parametrize("end", ["release", "abandon", "transfer", "force_release"])
def test_there_is_no_lock_delay_after_a_grant_that_was_given_back(end):
    desk = Desk()
    a = desk.acquire("a", delay=HOUR)
    {
        "release": lambda: desk.release("a", a.token),
        "abandon": lambda: desk.abandon("a"),
        "transfer": lambda: desk.release("b", desk.transfer("a", a.token, "b").token),
        "force_release": lambda: desk.force_release(),
    }[end]()
    assert desk.record.closed_until == 0
    assert isinstance(desk.acquire("c"), out.Granted)


def test_there_is_no_lock_delay_after_an_offer_that_nobody_confirmed():
    desk = Desk()
    a = desk.acquire("a")
    desk.wait("dead", delay=HOUR)
    desk.release("a", a.token)
    assert isinstance(desk.later(PATIENCE).acquire("b"), out.Granted)


@pytest.mark.parametrize("confirm", ["acquire", "renew", "transfer"])
def test_the_lock_delay_of_a_waiter_counts_once_its_offer_is_confirmed(confirm):
    desk = Desk()
    a = desk.acquire("a")
    desk.wait("b", delay=HOUR)
    desk.release("a", a.token)
    token = desk.holder("b").token
    {
        "acquire": lambda: desk.acquire("b", delay=HOUR),
        "renew": lambda: desk.renew("b", token),
        "transfer": lambda: desk.transfer("b", token, "c"),
    }[confirm]()
    desk.later(TTL).settle()
    assert desk.record.closed_until == desk.now + HOUR


def test_the_longest_lock_delay_of_several_losses_counts():
    desk = Desk()
    desk.acquire("a", kind="semaphore", permits=2, delay=SECOND)
    desk.acquire("b", kind="semaphore", permits=2, delay=10 * SECOND)
    desk.later(TTL).settle()
    assert (desk.record.closed_until, desk.record.closed_for) == (desk.now + 10 * SECOND, 10 * SECOND)


def test_a_holder_of_a_closed_key_can_still_renew_and_release():
    desk = Desk()
    desk.acquire("lost", kind="semaphore", permits=2, ttl=SECOND, delay=HOUR)
    b = desk.acquire("b", kind="semaphore", permits=2)
    desk.later(SECOND)
    assert isinstance(desk.renew("b", b.token), out.Renewed)
    assert isinstance(desk.acquire("b", kind="semaphore", permits=2), out.Granted)
    assert isinstance(desk.acquire("c", kind="semaphore", permits=2), out.Busy)
    assert isinstance(desk.release("b", b.token), out.Released)


def test_a_record_with_waiters_is_due_at_its_earliest_end():
    desk = Desk()
    desk.acquire("a")
    assert desk.record.due_at is None
    desk.wait("b", waiter_ttl=HOUR)
    assert desk.record.due_at == T0 + TTL
    desk.wait("c", waiter_ttl=PATIENCE)
    assert desk.record.due_at == T0 + PATIENCE
    desk.abandon("c")
    assert desk.record.due_at == T0 + TTL
    desk.abandon("b")
    assert desk.record.due_at is None


def test_a_record_where_nothing_can_end_is_never_due():
    desk = Desk()
    desk.acquire("a", ttl=None)
    answer = desk.wait("b", waiter_ttl=None)
    assert desk.record.due_at is None
    assert answer.recheck_in is None


def test_a_record_is_due_again_when_an_offer_may_run_out():
    desk = Desk()
    a = desk.acquire("a", ttl=None)
    desk.wait("b")
    desk.wait("c", waiter_ttl=HOUR)
    desk.release("a", a.token)
    assert desk.record.due_at == T0 + OFFER
    assert desk.wait("c", waiter_ttl=HOUR).recheck_in == OFFER
    desk.later(OFFER).settle()
    assert (desk.holding, desk.waiting) == ([], ["b", "c"])


def test_the_end_of_an_offer_and_of_its_place_are_lowered_after_a_clock_step():
    desk = Desk(now=T0 + HOUR)
    a = desk.acquire("a")
    desk.wait("b")
    desk.wait("c")
    desk.release("a", a.token)
    desk.later(-HOUR).settle()
    assert desk.holder("b").expires_at == desk.now + OFFER
    assert desk.holder("b").place.expires_at == desk.now + PATIENCE
    assert desk.record.due_at == desk.now + OFFER
    desk.later(OFFER).settle()
    assert desk.waiter("b").expires_at == desk.now - OFFER + PATIENCE


def test_a_key_that_nobody_ever_used_may_be_forgotten():
    assert lock.removable(EMPTY, T0)


def test_an_empty_record_may_be_forgotten_when_its_fence_is_a_week_behind():
    desk = Desk()
    a = desk.acquire("a")
    desk.release("a", a.token)
    assert not lock.removable(desk.record, T0 + lock.RETENTION)
    assert lock.removable(desk.record, T0 + lock.RETENTION + 1)
    assert lock.removable(desk.record, T0 + HOUR + 1, retention=HOUR)


def test_a_record_whose_fence_is_ahead_of_the_clock_is_never_forgotten():
    """A clock that ran a year ahead issued a token that a fresh record would fall behind."""
    desk = Desk(now=T0 + 365 * DAY)
    a = desk.acquire("a")
    desk.release("a", a.token)
    assert not lock.removable(desk.record, T0)
    assert not lock.removable(desk.record, T0 + 30 * DAY)
    assert lock.removable(desk.record, T0 + 365 * DAY + lock.RETENTION + 1)


def test_a_record_in_which_anything_lives_is_never_forgotten():
    late = T0 + lock.RETENTION + 1
    desk = Desk()
    desk.acquire("a", ttl=None)
    assert not lock.removable(desk.record, late)
    desk.wait("b", waiter_ttl=None)
    desk.force_release()
    assert not lock.removable(desk.record, late)
    given_up = Desk(now=late)
    given_up.abandon("a")
    assert not lock.removable(given_up.record, late)


def test_a_closed_key_and_a_fresh_note_of_force_are_not_forgotten():
    late = T0 + lock.RETENTION + 1
    assert not lock.removable(LockRecord(fence=T0, closed_until=late + 1, closed_for=HOUR), late)
    forced = Forced(at=late - 1, by="ada", reason="stuck")
    assert not lock.removable(LockRecord(fence=T0, forced=forced), late)
    assert lock.removable(LockRecord(fence=T0, forced=forced), late + lock.RETENTION)


def test_expired_holders_do_not_keep_a_record_alive():
    desk = Desk()
    desk.acquire("a")
    desk.wait("b")
    assert lock.removable(desk.record, T0 + lock.RETENTION + HOUR)


def test_tokens_fit_into_53_bits_for_two_hundred_years():
    desk = Desk(now=T0 + 200 * 365 * DAY)
    assert desk.acquire("a").token < 2**53
