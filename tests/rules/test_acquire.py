"""Acquire: which attempt is granted, which waits, and which is refused."""

import pytest

from holdfast.rules import lock
from holdfast.rules import lock_outcomes as out
from holdfast.rules.lock_record import EMPTY, LockRecord

from .harness import HOUR, PATIENCE, SECOND, T0, TTL, LockHarness


def test_the_first_attempt_to_acquire_a_free_lock_gets_it():
    harness = LockHarness()
    answer = harness.acquire("a", label="invoices")
    assert answer == out.Granted(token=T0, floor=T0, since=T0, expires_at=T0 + TTL)
    holder = harness.record.holders[0]
    assert (holder.id, holder.label.name, holder.token, holder.weight, holder.ttl, holder.expires_at) == (
        "a", "invoices", T0, 1, TTL, T0 + TTL,
    )  # fmt: skip


def test_a_grant_without_a_ttl_never_expires():
    harness = LockHarness()
    assert harness.acquire("a", ttl=None).expires_at is None
    assert isinstance(harness.later(1000 * HOUR).acquire("b"), out.Busy)
    assert harness.holding == ["a"]


def test_a_refusal_returns_the_holder_and_its_remaining_time_and_leaves_nothing_behind():
    harness = LockHarness()
    harness.acquire("a", label="the first")
    before = harness.record
    answer = harness.later(SECOND).acquire("b")
    assert isinstance(answer, out.Busy)
    assert [str(holder.label) for holder in answer.holders] == ["the first"]
    assert (answer.waiting, answer.retry_in, answer.now) == (0, TTL - SECOND, T0 + SECOND)
    assert harness.record is before


def test_a_refusal_by_a_holder_without_an_expiry_has_no_remaining_time():
    harness = LockHarness()
    harness.acquire("a", ttl=None)
    assert harness.acquire("b").retry_in is None


def test_a_resend_of_an_attempt_gets_the_same_token_and_its_full_ttl():
    harness = LockHarness()
    first = harness.acquire("a")
    again = harness.later(10 * SECOND).acquire("a")
    assert (again.token, again.since) == (first.token, first.since)
    assert again.expires_at == T0 + 10 * SECOND + TTL
    assert harness.record.fence == first.token


def test_a_resend_in_the_same_instant_changes_nothing_at_all():
    harness = LockHarness()
    harness.acquire("a")
    before = harness.record
    assert isinstance(harness.acquire("a"), out.Granted)
    assert harness.record is before


def test_a_resend_of_a_grant_or_wait_without_an_expiry_changes_nothing_at_all():
    harness = LockHarness()
    harness.acquire("a", ttl=None)
    harness.wait("b", ttl=None, waiter_ttl=None)
    before = harness.record
    harness.later(HOUR)
    harness.acquire("a", ttl=None)
    harness.wait("b", ttl=None, waiter_ttl=None)
    harness.renew("a", T0, ttl=None)
    assert harness.record is before


def test_an_expired_attempt_gets_a_new_token_when_it_acquires_again():
    harness = LockHarness()
    first = harness.acquire("a")
    again = harness.later(TTL).acquire("a")
    assert again.token > first.token
    assert again.token == harness.now


def test_a_waiter_gets_its_position_and_the_time_of_its_next_check():
    harness = LockHarness()
    harness.acquire("a", ttl=2 * SECOND)
    first, second = harness.wait("b"), harness.wait("c")
    assert (first.position, second.position) == (0, 1)
    assert first.recheck_in == 2 * SECOND
    assert [holder.id for holder in second.holders] == ["a"]


def test_acquiring_again_keeps_the_position_in_the_queue_and_prolongs_it():
    harness = LockHarness()
    harness.acquire("a")
    harness.wait("b")
    harness.wait("c")
    again = harness.later(3 * SECOND).wait("b")
    assert again.position == 0
    assert harness.waiting == ["b", "c"]
    assert harness.waiter("b").expires_at == T0 + 3 * SECOND + PATIENCE
    assert harness.waiter("b").since == T0


def test_an_early_sign_of_life_does_not_write():
    """Waiters near the head check often; their positions are prolonged when two fifths of the time have passed."""
    harness = LockHarness()
    harness.acquire("a")
    harness.wait("b")
    before = harness.record
    harness.later(2 * PATIENCE // 5).wait("b")
    assert harness.record is before
    harness.later(1).wait("b")
    assert harness.waiter("b").expires_at == harness.now + PATIENCE
    harness.wait("b", waiter_ttl=PATIENCE // 2)
    assert harness.waiter("b").expires_at == harness.now + PATIENCE // 2


def test_every_second_regular_sign_of_life_writes():
    harness = LockHarness()
    harness.acquire("a", ttl=None)
    harness.wait("b")
    writes = 0
    for _ in range(10):
        before = harness.record
        harness.later(PATIENCE // 3).wait("b")
        writes += harness.record is not before
    assert writes == 5
    assert harness.waiting == ["b"]


def test_a_sign_of_life_of_a_passed_over_waiter_always_writes():
    harness = LockHarness()
    a = harness.acquire("a")
    harness.wait("b")
    harness.wait("c")
    harness.release("a", a.token)
    harness.pass_over("b", harness.holder("b").token)
    harness.acquire("d")
    harness.later(1).wait("b")
    assert harness.waiter("b").expires_at == harness.now + PATIENCE


def test_a_waiting_attempt_that_acquires_without_queueing_keeps_its_position():
    harness = LockHarness()
    harness.acquire("a")
    harness.wait("b")
    assert isinstance(harness.acquire("b"), out.Queued)
    assert harness.waiting == ["b"]


def test_a_new_attempt_cannot_take_a_free_permit_while_others_wait():
    """A writer waits for both permits; the free one is not for a new attempt."""
    harness = LockHarness()
    harness.acquire("reader", kind="rw", permits=2)
    harness.wait("writer", kind="rw", permits=2, weight=2)
    assert isinstance(harness.acquire("late", kind="rw", permits=2), out.Busy)
    assert harness.wait("late", kind="rw", permits=2).position == 1
    assert harness.holding == ["reader"]


def test_a_semaphore_has_as_many_holders_as_permits():
    harness = LockHarness()
    answers = [harness.acquire(id, kind="semaphore", permits=3) for id in "abcd"]
    assert [type(answer) for answer in answers] == [out.Granted, out.Granted, out.Granted, out.Busy]
    assert harness.holding == ["a", "b", "c"]


def test_a_weight_counts_as_that_many_permits():
    harness = LockHarness()
    assert isinstance(harness.acquire("a", kind="semaphore", permits=3, weight=2), out.Granted)
    assert isinstance(harness.acquire("b", kind="semaphore", permits=3, weight=2), out.Busy)
    assert isinstance(harness.acquire("c", kind="semaphore", permits=3, weight=1), out.Granted)
    assert isinstance(harness.acquire("d", kind="semaphore", permits=3, weight=1), out.Busy)


def test_the_floor_of_a_semaphore_is_the_lowest_token_of_its_holders():
    """A guard that remembered the highest token would refuse a legitimate holder."""
    harness = LockHarness()
    a = harness.acquire("a", kind="semaphore", permits=2)
    b = harness.later(1).acquire("b", kind="semaphore", permits=2)
    assert (b.token, b.floor) == (T0 + 1, a.token)
    assert harness.renew("b", b.token).floor == a.token
    harness.release("a", a.token)
    assert harness.renew("b", b.token).floor == b.token
    assert lock.floor(harness.record) == b.token


def test_the_floor_of_a_mutex_is_the_token_itself():
    answer = LockHarness().acquire("a")
    assert answer.floor == answer.token


def test_the_floor_of_an_empty_record_is_its_fence():
    assert lock.floor(EMPTY) == 0
    assert lock.floor(LockRecord(fence=7)) == 7


def test_writers_do_not_starve_behind_readers_that_keep_coming():
    harness = LockHarness()
    readers = [harness.acquire(id, kind="rw", permits=8) for id in ("r1", "r2")]
    harness.wait("writer", kind="rw", permits=8, weight=8)
    harness.wait("r3", kind="rw", permits=8)
    assert harness.release("r1", readers[0].token).woken == ()
    assert harness.release("r2", readers[1].token).woken == ("writer",)
    assert harness.holding == ["writer"]
    writer = harness.wait("writer", kind="rw", permits=8, weight=8)
    assert harness.release("writer", writer.token).woken == ("r3",)


def test_consecutive_readers_in_the_queue_are_granted_together():
    harness = LockHarness()
    writer = harness.acquire("writer", kind="rw", permits=8, weight=8)
    for id in ("r1", "r2", "r3"):
        harness.wait(id, kind="rw", permits=8)
    assert harness.release("writer", writer.token).woken == ("r1", "r2", "r3")
    assert harness.holding == ["r1", "r2", "r3"]


@pytest.mark.parametrize("queue", [True, False])
def test_a_weight_above_all_permits_is_refused_at_once(queue):
    harness = LockHarness()
    answer = harness.acquire("a", kind="semaphore", permits=2, weight=3, queue=queue)
    assert answer == out.TooHeavy(permits=2)
    assert harness.record is EMPTY


def test_another_kind_on_a_key_in_use_is_refused():
    harness = LockHarness()
    harness.acquire("a")
    answer = harness.acquire("b", kind="semaphore", permits=2)
    assert answer == out.Mismatch(found="mutex")
    assert (harness.record.kind, harness.record.permits) == ("mutex", 1)


def test_another_kind_on_a_key_with_only_waiters_is_refused():
    harness = LockHarness()
    harness.acquire("a", ttl=SECOND, delay=HOUR)
    harness.wait("b", waiter_ttl=HOUR)
    assert isinstance(harness.later(SECOND).acquire("c", kind="hold"), out.Mismatch)
    assert harness.holding == []


def test_an_unused_key_may_change_its_kind():
    harness = LockHarness()
    a = harness.acquire("a")
    harness.release("a", a.token)
    answer = harness.acquire("b", kind="semaphore", permits=2)
    assert isinstance(answer, out.Granted)
    assert answer.token > a.token
    assert (harness.record.kind, harness.record.permits) == ("semaphore", 2)


def test_a_key_may_change_its_kind_when_its_last_user_has_expired():
    harness = LockHarness()
    harness.acquire("a")
    assert isinstance(harness.later(TTL).acquire("b", kind="hold"), out.Granted)
    assert harness.record.kind == "hold"


def test_a_higher_number_of_permits_of_a_caller_is_stored_and_reported():
    harness = LockHarness()
    harness.acquire("a", kind="semaphore", permits=1)
    answer = harness.acquire("b", kind="semaphore", permits=2)
    assert isinstance(answer, out.Granted)
    assert answer.permits_before == 1
    assert harness.record.permits == 2


def test_additional_permits_go_to_earlier_waiters_before_the_caller_that_adds_them():
    harness = LockHarness()
    harness.acquire("a", kind="semaphore", permits=1)
    harness.wait("b", kind="semaphore", permits=1)
    answer = harness.wait("c", kind="semaphore", permits=2)
    assert isinstance(answer, out.Queued)
    assert (answer.permits_before, answer.woken) == (1, ("b",))
    assert harness.holding == ["a", "b"]


def test_fewer_permits_end_no_grant_and_allow_no_new_one_until_enough_are_free():
    harness = LockHarness()
    tokens = {id: harness.acquire(id, kind="semaphore", permits=3).token for id in "abc"}
    answer = harness.wait("d", kind="semaphore", permits=1)
    assert (answer.position, answer.permits_before) == (0, 3)
    assert harness.release("a", tokens["a"]).woken == ()
    assert harness.release("b", tokens["b"]).woken == ()
    assert harness.release("c", tokens["c"]).woken == ("d",)


def test_a_refused_attempt_that_changed_the_permits_reports_the_change():
    harness = LockHarness()
    harness.acquire("a", kind="semaphore", permits=2, weight=2)
    answer = harness.acquire("b", kind="semaphore", permits=1)
    assert isinstance(answer, out.Busy)
    assert answer.permits_before == 2
    assert harness.record.permits == 1


def test_the_first_use_of_a_key_reports_no_change_of_permits():
    assert LockHarness().acquire("a", kind="semaphore", permits=5).permits_before is None


def test_a_resend_with_an_old_number_of_permits_does_not_flip_it_back():
    harness = LockHarness()
    harness.acquire("a", kind="semaphore", permits=1)
    harness.wait("w", kind="semaphore", permits=1)
    harness.wait("b", kind="semaphore", permits=2, weight=2)
    assert harness.record.permits == 2
    for id in ("a", "w", "b"):
        answer = harness.wait(id, kind="semaphore", permits=1)
        assert answer.permits_before is None
    assert harness.record.permits == 2


def test_a_waiter_whose_weight_no_longer_fits_is_removed_and_gets_an_error():
    harness = LockHarness()
    a = harness.acquire("a", kind="semaphore", permits=3)
    harness.wait("heavy", kind="semaphore", permits=3, weight=3)
    harness.wait("light", kind="semaphore", permits=3)
    harness.wait("c", kind="semaphore", permits=2)
    assert harness.waiting == ["c"]
    assert "light" in harness.holding
    assert harness.wait("heavy", kind="semaphore", permits=3, weight=3) == out.TooHeavy(permits=2)
    assert harness.release("a", a.token).woken == ("c",)


def test_a_new_attempt_with_enough_permits_fits_after_one_that_could_never_fit():
    harness = LockHarness()
    harness.acquire("a", kind="semaphore", permits=3)
    harness.wait("heavy", kind="semaphore", permits=3, weight=3)
    harness.acquire("c", kind="semaphore", permits=1)
    assert harness.waiting == []
    assert isinstance(harness.wait("heavy again", kind="semaphore", permits=3, weight=3), out.Queued)


def test_a_waiter_without_an_expiry_that_never_fits_is_remembered_for_a_long_time():
    harness = LockHarness()
    harness.acquire("a", kind="semaphore", permits=3)
    harness.wait("heavy", kind="semaphore", permits=3, weight=3, waiter_ttl=None)
    assert harness.acquire("c", kind="semaphore", permits=1).hinted == ("heavy",), "it would not ask again by itself"
    answer = harness.later(24 * HOUR).wait("heavy", kind="semaphore", permits=3, weight=3, waiter_ttl=None)
    assert isinstance(answer, out.TooHeavy)


def test_every_change_raises_the_version():
    harness = LockHarness()
    seen = [harness.record.version]
    a = harness.acquire("a")
    seen.append(harness.record.version)
    harness.wait("b")
    seen.append(harness.record.version)
    harness.release("a", a.token)
    seen.append(harness.record.version)
    harness.later(PATIENCE).settle()
    seen.append(harness.record.version)
    assert seen == sorted(set(seen))


def test_tokens_rise_even_when_the_clock_stands_still_or_goes_back():
    harness = LockHarness()
    tokens = []
    for step in (0, 0, -HOUR, -HOUR, 2 * HOUR + 5):
        harness.later(step)
        answer = harness.acquire("a")
        tokens.append(answer.token)
        harness.release("a", answer.token)
    assert tokens == [T0, T0 + 1, T0 + 2, T0 + 3, T0 + 5]


def test_the_token_of_a_removed_record_is_still_higher_because_it_follows_the_clock():
    first = LockHarness().acquire("a")
    lost = LockHarness(EMPTY, now=T0 + 1).acquire("b")
    assert lost.token > first.token
