"""Who gets a permit, who waits, who is refused."""

import pytest

from holdfast.rules import lock
from holdfast.rules import lock_outcomes as out
from holdfast.rules.lock_record import EMPTY, LockRecord

from .harness import HOUR, PATIENCE, SECOND, T0, TTL, Desk


def test_the_first_to_ask_for_a_free_lock_gets_it():
    desk = Desk()
    answer = desk.acquire("a", label="invoices")
    assert answer == out.Granted(token=T0, floor=T0, since=T0, expires_at=T0 + TTL)
    holder = desk.record.holders[0]
    assert (holder.id, holder.label.name, holder.token, holder.weight, holder.ttl, holder.expires_at) == (
        "a", "invoices", T0, 1, TTL, T0 + TTL,
    )  # fmt: skip


def test_a_grant_without_ttl_never_ends_by_time():
    desk = Desk()
    assert desk.acquire("a", ttl=None).expires_at is None
    assert isinstance(desk.later(1000 * HOUR).acquire("b"), out.Busy)
    assert desk.holding == ["a"]


def test_a_refusal_tells_who_holds_and_for_how_long_and_leaves_nothing_behind():
    desk = Desk()
    desk.acquire("a", label="the first")
    before = desk.record
    answer = desk.later(SECOND).acquire("b")
    assert isinstance(answer, out.Busy)
    assert [str(holder.label) for holder in answer.holders] == ["the first"]
    assert (answer.waiting, answer.retry_in, answer.now) == (0, TTL - SECOND, T0 + SECOND)
    assert desk.record is before


def test_a_refusal_by_an_endless_holder_knows_no_end():
    desk = Desk()
    desk.acquire("a", ttl=None)
    assert desk.acquire("b").retry_in is None


def test_a_resend_of_an_attempt_gets_the_same_token_and_its_full_ttl():
    desk = Desk()
    first = desk.acquire("a")
    again = desk.later(10 * SECOND).acquire("a")
    assert (again.token, again.since) == (first.token, first.since)
    assert again.expires_at == T0 + 10 * SECOND + TTL
    assert desk.record.fence == first.token


def test_a_resend_in_the_same_instant_changes_nothing_at_all():
    desk = Desk()
    desk.acquire("a")
    before = desk.record
    assert isinstance(desk.acquire("a"), out.Granted)
    assert desk.record is before


def test_a_resend_of_an_endless_grant_or_place_changes_nothing_at_all():
    desk = Desk()
    desk.acquire("a", ttl=None)
    desk.wait("b", ttl=None, waiter_ttl=None)
    before = desk.record
    desk.later(HOUR)
    desk.acquire("a", ttl=None)
    desk.wait("b", ttl=None, waiter_ttl=None)
    desk.renew("a", T0, ttl=None)
    assert desk.record is before


def test_an_attempt_that_expired_gets_a_new_token_when_it_asks_again():
    desk = Desk()
    first = desk.acquire("a")
    again = desk.later(TTL).acquire("a")
    assert again.token > first.token
    assert again.token == desk.now


def test_a_waiter_is_told_its_place_and_when_to_look_again():
    desk = Desk()
    desk.acquire("a", ttl=2 * SECOND)
    first, second = desk.wait("b"), desk.wait("c")
    assert (first.position, second.position) == (0, 1)
    assert first.recheck_in == 2 * SECOND
    assert [holder.id for holder in second.holders] == ["a"]


def test_asking_again_keeps_the_place_in_the_queue_and_prolongs_it():
    desk = Desk()
    desk.acquire("a")
    desk.wait("b")
    desk.wait("c")
    again = desk.later(3 * SECOND).wait("b")
    assert again.position == 0
    assert desk.waiting == ["b", "c"]
    assert desk.waiter("b").expires_at == T0 + 3 * SECOND + PATIENCE
    assert desk.waiter("b").since == T0


def test_looking_again_soon_does_not_write():
    """Waiters near the head look often; their places are prolonged when two fifths of the time have passed."""
    desk = Desk()
    desk.acquire("a")
    desk.wait("b")
    before = desk.record
    desk.later(2 * PATIENCE // 5).wait("b")
    assert desk.record is before
    desk.later(1).wait("b")
    assert desk.waiter("b").expires_at == desk.now + PATIENCE
    desk.wait("b", waiter_ttl=PATIENCE // 2)
    assert desk.waiter("b").expires_at == desk.now + PATIENCE // 2


def test_of_the_regular_signs_of_life_every_second_one_writes():
    desk = Desk()
    desk.acquire("a", ttl=None)
    desk.wait("b")
    writes = 0
    for _ in range(10):
        before = desk.record
        desk.later(PATIENCE // 3).wait("b")
        writes += desk.record is not before
    assert writes == 5
    assert desk.waiting == ["b"]


def test_a_sign_of_life_after_being_passed_over_always_counts():
    desk = Desk()
    a = desk.acquire("a")
    desk.wait("b")
    desk.wait("c")
    desk.release("a", a.token)
    desk.pass_over("b", desk.holder("b").token)
    desk.acquire("d")
    desk.later(1).wait("b")
    assert desk.waiter("b").expires_at == desk.now + PATIENCE


def test_a_waiting_attempt_that_asks_without_queueing_keeps_its_place():
    desk = Desk()
    desk.acquire("a")
    desk.wait("b")
    assert isinstance(desk.acquire("b"), out.Queued)
    assert desk.waiting == ["b"]


def test_a_newcomer_cannot_take_what_is_free_while_others_wait():
    """A writer waits for both permits; the one that is free is not for passers-by."""
    desk = Desk()
    desk.acquire("reader", kind="rw", permits=2)
    desk.wait("writer", kind="rw", permits=2, weight=2)
    assert isinstance(desk.acquire("late", kind="rw", permits=2), out.Busy)
    assert desk.wait("late", kind="rw", permits=2).position == 1
    assert desk.holding == ["reader"]


def test_a_semaphore_has_as_many_holders_as_permits():
    desk = Desk()
    answers = [desk.acquire(id, kind="semaphore", permits=3) for id in "abcd"]
    assert [type(answer) for answer in answers] == [out.Granted, out.Granted, out.Granted, out.Busy]
    assert desk.holding == ["a", "b", "c"]


def test_a_weight_counts_as_that_many_permits():
    desk = Desk()
    assert isinstance(desk.acquire("a", kind="semaphore", permits=3, weight=2), out.Granted)
    assert isinstance(desk.acquire("b", kind="semaphore", permits=3, weight=2), out.Busy)
    assert isinstance(desk.acquire("c", kind="semaphore", permits=3, weight=1), out.Granted)
    assert isinstance(desk.acquire("d", kind="semaphore", permits=3, weight=1), out.Busy)


def test_the_floor_of_a_semaphore_is_the_lowest_living_token():
    """A guard that remembered the highest token would refuse a legitimate holder."""
    desk = Desk()
    a = desk.acquire("a", kind="semaphore", permits=2)
    b = desk.later(1).acquire("b", kind="semaphore", permits=2)
    assert (b.token, b.floor) == (T0 + 1, a.token)
    assert desk.renew("b", b.token).floor == a.token
    desk.release("a", a.token)
    assert desk.renew("b", b.token).floor == b.token
    assert lock.floor(desk.record) == b.token


def test_the_floor_of_a_mutex_is_the_token_itself():
    answer = Desk().acquire("a")
    assert answer.floor == answer.token


def test_the_floor_of_an_empty_record_is_its_fence():
    assert lock.floor(EMPTY) == 0
    assert lock.floor(LockRecord(fence=7)) == 7


def test_writers_do_not_starve_behind_readers_that_keep_coming():
    desk = Desk()
    readers = [desk.acquire(id, kind="rw", permits=8) for id in ("r1", "r2")]
    desk.wait("writer", kind="rw", permits=8, weight=8)
    desk.wait("r3", kind="rw", permits=8)
    assert desk.release("r1", readers[0].token).woken == ()
    assert desk.release("r2", readers[1].token).woken == ("writer",)
    assert desk.holding == ["writer"]
    writer = desk.wait("writer", kind="rw", permits=8, weight=8)
    assert desk.release("writer", writer.token).woken == ("r3",)


def test_readers_that_stand_together_are_let_in_together():
    desk = Desk()
    writer = desk.acquire("writer", kind="rw", permits=8, weight=8)
    for id in ("r1", "r2", "r3"):
        desk.wait(id, kind="rw", permits=8)
    assert desk.release("writer", writer.token).woken == ("r1", "r2", "r3")
    assert desk.holding == ["r1", "r2", "r3"]


@pytest.mark.parametrize("queue", [True, False])
def test_a_weight_above_all_permits_is_refused_at_once(queue):
    desk = Desk()
    answer = desk.acquire("a", kind="semaphore", permits=2, weight=3, queue=queue)
    assert answer == out.TooHeavy(permits=2)
    assert desk.record is EMPTY


def test_another_kind_on_a_key_in_use_is_refused():
    desk = Desk()
    desk.acquire("a")
    answer = desk.acquire("b", kind="semaphore", permits=2)
    assert answer == out.Mismatch(found="mutex")
    assert (desk.record.kind, desk.record.permits) == ("mutex", 1)


def test_another_kind_on_a_key_with_only_waiters_is_refused():
    desk = Desk()
    desk.acquire("a", ttl=SECOND, delay=HOUR)
    desk.wait("b", waiter_ttl=HOUR)
    assert isinstance(desk.later(SECOND).acquire("c", kind="hold"), out.Mismatch)
    assert desk.holding == []


def test_another_kind_on_a_key_that_nobody_uses_is_taken_over():
    desk = Desk()
    a = desk.acquire("a")
    desk.release("a", a.token)
    answer = desk.acquire("b", kind="semaphore", permits=2)
    assert isinstance(answer, out.Granted)
    assert answer.token > a.token
    assert (desk.record.kind, desk.record.permits) == ("semaphore", 2)


def test_another_kind_is_taken_over_when_the_last_user_has_expired():
    desk = Desk()
    desk.acquire("a")
    assert isinstance(desk.later(TTL).acquire("b", kind="hold"), out.Granted)
    assert desk.record.kind == "hold"


def test_more_permits_are_taken_from_the_caller_recorded_and_reported():
    desk = Desk()
    desk.acquire("a", kind="semaphore", permits=1)
    answer = desk.acquire("b", kind="semaphore", permits=2)
    assert isinstance(answer, out.Granted)
    assert answer.permits_before == 1
    assert desk.record.permits == 2


def test_more_permits_go_to_those_who_wait_before_the_one_who_brings_them():
    desk = Desk()
    desk.acquire("a", kind="semaphore", permits=1)
    desk.wait("b", kind="semaphore", permits=1)
    answer = desk.wait("c", kind="semaphore", permits=2)
    assert isinstance(answer, out.Queued)
    assert (answer.permits_before, answer.woken) == (1, ("b",))
    assert desk.holding == ["a", "b"]


def test_fewer_permits_end_nobody_but_grant_nothing_until_there_is_room():
    desk = Desk()
    tokens = {id: desk.acquire(id, kind="semaphore", permits=3).token for id in "abc"}
    answer = desk.wait("d", kind="semaphore", permits=1)
    assert (answer.position, answer.permits_before) == (0, 3)
    assert desk.release("a", tokens["a"]).woken == ()
    assert desk.release("b", tokens["b"]).woken == ()
    assert desk.release("c", tokens["c"]).woken == ("d",)


def test_a_refused_attempt_that_changed_the_permits_is_told_so():
    desk = Desk()
    desk.acquire("a", kind="semaphore", permits=2, weight=2)
    answer = desk.acquire("b", kind="semaphore", permits=1)
    assert isinstance(answer, out.Busy)
    assert answer.permits_before == 2
    assert desk.record.permits == 1


def test_the_first_use_of_a_key_reports_no_change_of_permits():
    assert Desk().acquire("a", kind="semaphore", permits=5).permits_before is None


def test_a_resend_with_an_old_number_of_permits_does_not_flip_it_back():
    desk = Desk()
    desk.acquire("a", kind="semaphore", permits=1)
    desk.wait("w", kind="semaphore", permits=1)
    desk.wait("b", kind="semaphore", permits=2, weight=2)
    assert desk.record.permits == 2
    for id in ("a", "w", "b"):
        answer = desk.wait(id, kind="semaphore", permits=1)
        assert answer.permits_before is None
    assert desk.record.permits == 2


def test_a_waiter_that_can_no_longer_fit_is_removed_and_told():
    desk = Desk()
    a = desk.acquire("a", kind="semaphore", permits=3)
    desk.wait("heavy", kind="semaphore", permits=3, weight=3)
    desk.wait("light", kind="semaphore", permits=3)
    desk.wait("c", kind="semaphore", permits=2)
    assert desk.waiting == ["c"]
    assert "light" in desk.holding
    assert desk.wait("heavy", kind="semaphore", permits=3, weight=3) == out.TooHeavy(permits=2)
    assert desk.release("a", a.token).woken == ("c",)


def test_a_fresh_attempt_with_enough_permits_fits_again_after_never_fitting():
    desk = Desk()
    desk.acquire("a", kind="semaphore", permits=3)
    desk.wait("heavy", kind="semaphore", permits=3, weight=3)
    desk.acquire("c", kind="semaphore", permits=1)
    assert desk.waiting == []
    assert isinstance(desk.wait("heavy again", kind="semaphore", permits=3, weight=3), out.Queued)


def test_a_waiter_without_end_that_never_fits_is_remembered_for_long():
    desk = Desk()
    desk.acquire("a", kind="semaphore", permits=3)
    desk.wait("heavy", kind="semaphore", permits=3, weight=3, waiter_ttl=None)
    assert desk.acquire("c", kind="semaphore", permits=1).hinted == ("heavy",), "it would not ask again by itself"
    answer = desk.later(24 * HOUR).wait("heavy", kind="semaphore", permits=3, weight=3, waiter_ttl=None)
    assert isinstance(answer, out.TooHeavy)


def test_every_change_raises_the_version():
    desk = Desk()
    seen = [desk.record.version]
    a = desk.acquire("a")
    seen.append(desk.record.version)
    desk.wait("b")
    seen.append(desk.record.version)
    desk.release("a", a.token)
    seen.append(desk.record.version)
    desk.later(PATIENCE).settle()
    seen.append(desk.record.version)
    assert seen == sorted(set(seen))


def test_tokens_rise_even_when_the_clock_stands_still_or_falls():
    desk = Desk()
    tokens = []
    for step in (0, 0, -HOUR, -HOUR, 2 * HOUR + 5):
        desk.later(step)
        answer = desk.acquire("a")
        tokens.append(answer.token)
        desk.release("a", answer.token)
    assert tokens == [T0, T0 + 1, T0 + 2, T0 + 3, T0 + 5]


def test_the_token_of_a_forgotten_key_is_still_higher_because_it_follows_the_clock():
    first = Desk().acquire("a")
    lost = Desk(EMPTY, now=T0 + 1).acquire("b")
    assert lost.token > first.token
