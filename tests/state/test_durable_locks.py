"""Mutexes and semaphores in a state slot: every case of their interface, on every store, sync and async."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta

import pytest

from holdfast.commands import SwapSlot
from holdfast.errors import InvalidOption, InvalidValue, RecordUnreadable
from holdfast.state import AcquireAttempt, DurableMutex, DurableSemaphore, LockRecord, initial_lock_record

NOW = 1_790_000_000
HELD = AcquireAttempt(acquired=True, position=-1)


def waiting(position):
    return AcquireAttempt(acquired=False, position=position)


@pytest.fixture
def slot(hf):
    return hf.state.workflow("transfer", "account-42:lock", initial=initial_lock_record())


@pytest.fixture
def mutex():
    return DurableMutex(lease=60)


class Actors:
    """Short methods for one lock on one slot."""

    def __init__(self, lock, slot, mode):
        self.lock, self.slot, self.do = lock, slot, mode.do

    def acquire(self, who, at=0, **options):
        return self.do(self.lock.try_acquire(self.slot, holder_id=who, now=NOW + at, **options))

    def release(self, who, at=0):
        return self.do(self.lock.release(self.slot, holder_id=who, now=NOW + at))

    def renew(self, who, at=0, **options):
        return self.do(self.lock.renew(self.slot, holder_id=who, now=NOW + at, **options))

    def record(self):
        return self.do(self.lock.inspect(self.slot))

    def holders(self):
        return [holder.id for holder in self.record().holders]

    def waiters(self):
        return [waiter.id for waiter in self.record().waiters]


@pytest.fixture
def one(mutex, slot, mode):
    return Actors(mutex, slot, mode)


def three(slot, mode, **options):
    return Actors(DurableSemaphore(permits=3, lease=30, **options), slot, mode)


def test_a_free_mutex_is_acquired_at_once(one):
    assert one.acquire("a") == HELD
    assert one.holders() == ["a"]


def test_the_second_contender_is_next_in_line_and_the_third_behind_it(one):
    one.acquire("a")
    assert one.acquire("b") == waiting(0)
    assert one.acquire("c") == waiting(1)
    assert one.waiters() == ["b", "c"]


def test_a_failed_try_queues_the_contender_and_the_next_try_keeps_its_position(one):
    one.acquire("a")
    one.acquire("b")
    one.acquire("c")
    assert one.acquire("b", at=5) == waiting(0)
    assert one.acquire("c", at=5) == waiting(1)
    assert one.waiters() == ["b", "c"]


def test_release_grants_nothing_and_the_head_waiter_acquires_by_its_next_try(one):
    one.acquire("a")
    one.acquire("b")
    one.release("a")
    assert one.holders() == []
    assert one.waiters() == ["b"]
    assert one.acquire("b", at=1) == HELD
    assert one.waiters() == []


def test_expiry_grants_nothing_and_the_head_waiter_acquires_by_its_next_try(one):
    one.acquire("a")
    one.acquire("b", at=50)
    assert one.acquire("c", at=61) == waiting(1)
    assert one.waiters() == ["b", "c"]
    assert one.acquire("b", at=62) == HELD


def test_a_new_contender_does_not_take_a_free_permit_while_another_waits(one):
    one.acquire("a")
    one.acquire("b")
    one.release("a")
    assert one.acquire("newcomer") == waiting(1)
    assert one.acquire("b") == HELD


def test_fifo_fairness_over_a_whole_queue(one):
    order = []
    for who in "abcdef":
        one.acquire(who)
    for who in "abcdef":
        assert one.acquire(who, at=1) == HELD
        order.append(who)
        one.release(who, at=1)
    assert order == list("abcdef")


def test_a_semaphore_admits_as_many_as_its_permits_and_queues_the_rest(slot, mode):
    actors = three(slot, mode)
    assert [actors.acquire(who) for who in "abcde"] == [HELD, HELD, HELD, waiting(0), waiting(1)]
    actors.release("b")
    assert actors.acquire("e") == waiting(1)
    assert actors.acquire("d") == HELD
    assert sorted(actors.holders()) == ["a", "c", "d"]


def test_20_contenders_on_one_slot_get_the_positions_minus_1_and_0_to_18(one):
    assert [one.acquire(f"run-{n}").position for n in range(20)] == [-1, *range(19)]
    assert one.record().permits == 1


def test_a_mutex_is_a_semaphore_with_one_permit(slot, mode, mutex):
    same = DurableSemaphore(permits=1, lease=60)
    Actors(mutex, slot, mode).acquire("a")
    assert Actors(same, slot, mode).acquire("b") == waiting(0)
    assert isinstance(mutex, DurableSemaphore)
    assert repr(DurableMutex()) == "<DurableMutex permits=1 lease=30>"


def test_a_holder_that_acquires_again_keeps_its_permit_for_a_full_lease(one):
    one.acquire("a")
    assert one.acquire("a", at=50) == HELD
    assert one.holders() == ["a"]
    assert one.acquire("b", at=109) == waiting(0)
    assert one.acquire("b", at=110) == HELD


def test_a_permit_whose_lease_has_expired_is_reclaimed_by_the_next_contender(one):
    one.acquire("a")
    assert one.acquire("b", at=59) == waiting(0)
    assert one.acquire("b", at=60) == HELD
    assert one.holders() == ["b"]


def test_a_lease_may_be_given_for_one_attempt(one):
    one.acquire("a", lease=5)
    assert one.acquire("b", at=5) == HELD


def test_release_is_idempotent(one):
    one.acquire("a")
    one.release("a")
    one.release("a")
    assert one.holders() == []


def test_release_without_a_permit_removes_only_the_callers_own_entry(one):
    one.acquire("a")
    one.acquire("b")
    one.acquire("c")
    one.release("b")
    assert one.holders() == ["a"]
    assert one.waiters() == ["c"]
    one.release("nobody")
    assert one.holders() == ["a"]


def test_a_holder_that_released_may_acquire_again_at_the_end_of_the_queue(one):
    one.acquire("a")
    one.acquire("b")
    one.release("a")
    assert one.acquire("a") == waiting(1)
    one.acquire("b")
    one.release("b")
    assert one.acquire("a") == HELD


def test_a_release_by_an_expired_holder_does_not_touch_the_next_one(one):
    one.acquire("a")
    one.acquire("b", at=60)
    one.release("a", at=61)
    assert one.holders() == ["b"]


def test_renew_extends_a_held_lease(one):
    one.acquire("a")
    assert one.renew("a", at=40) is True
    assert one.acquire("b", at=70) == waiting(0)
    assert one.acquire("b", at=100) == HELD


def test_renew_for_another_lease(one):
    one.acquire("a")
    assert one.renew("a", at=1, lease="5 minutes") is True
    assert one.acquire("b", at=250) == waiting(0)


def test_renew_is_false_without_a_permit(one):
    assert one.renew("a") is False
    one.acquire("a")
    one.acquire("b")
    assert one.renew("b") is False


def test_renew_is_false_once_the_lease_has_expired_even_without_a_new_holder(one):
    one.acquire("a")
    assert one.renew("a", at=60) is False
    assert one.acquire("b", at=61) == HELD
    assert one.renew("a", at=62) is False


def test_inspect_shows_holders_and_waiters_and_never_writes(one, slot, plan, mode):
    one.acquire("a")
    one.acquire("b")
    written = plan.count(SwapSlot)
    record = one.record()
    assert isinstance(record, LockRecord)
    assert [holder.id for holder in record.holders] == ["a"]
    assert record.holders[0].expires_at == (NOW + 60) * 1_000_000
    assert [waiter.id for waiter in record.waiters] == ["b"]
    assert plan.count(SwapSlot) == written


def test_inspect_of_a_slot_that_begins_with_the_initial_record_sees_an_empty_lock(one):
    assert one.record() == LockRecord(kind="semaphore")


def test_inspect_of_a_slot_without_an_initial_value_is_none(hf, mutex, mode):
    assert mode.do(mutex.inspect(hf.state("bare"))) is None


def test_a_slot_without_an_initial_value_can_be_used(hf, mutex, mode):
    actors = Actors(mutex, hf.state("bare"), mode)
    assert actors.acquire("a") == HELD
    assert actors.acquire("b") == waiting(0)


def test_an_operator_inspects_and_force_releases_a_stuck_holder_from_outside(one, mode, url):
    one.acquire("stuck-run")
    one.acquire("b")
    outside = Actors(
        DurableMutex(), mode.client(url, name="operator").state.workflow("transfer", "account-42:lock"), mode
    )
    stuck = outside.record().holders[0].id
    outside.release(stuck)
    assert one.acquire("b") == HELD


def test_two_workflow_types_with_the_same_key_do_not_see_each_other(hf, mutex, mode):
    first = Actors(mutex, hf.state.workflow("transfer", "lock", initial=initial_lock_record()), mode)
    other = Actors(mutex, hf.state.workflow("refund", "lock", initial=initial_lock_record()), mode)
    tree = Actors(mutex, hf.state.execution("transfer", "lock", initial=initial_lock_record()), mode)
    shared = Actors(mutex, hf.state("lock", initial=initial_lock_record()), mode)
    assert [actors.acquire("a") for actors in (first, other, tree, shared)] == [HELD] * 4


def test_a_stale_waiter_at_the_head_blocks_others_for_at_most_its_waiter_ttl(one):
    one.acquire("a")
    one.acquire("dead")
    one.acquire("b", at=30)
    one.release("a", at=31)
    assert one.acquire("b", at=59) == waiting(1)
    assert one.acquire("b", at=60) == HELD


def test_the_waiter_ttl_is_the_larger_of_30_seconds_and_the_lease(slot, mode):
    actors = Actors(DurableMutex(lease=5), slot, mode)
    actors.acquire("a", lease="1 hour")
    actors.acquire("dead")
    actors.acquire("b", at=20)
    assert actors.waiters() == ["dead", "b"]
    assert actors.acquire("b", at=29.9) == waiting(1)
    assert actors.acquire("b", at=30) == waiting(0)


def test_a_waiter_ttl_of_none_keeps_the_position_until_a_release(slot, mode):
    actors = Actors(DurableMutex(lease=5, waiter_ttl=None), slot, mode)
    actors.acquire("a")
    actors.acquire("dead")
    assert actors.acquire("b", at=86_400 * 365) == waiting(1)
    actors.release("dead", at=86_400 * 365)
    assert actors.acquire("b", at=86_400 * 365) == HELD


def test_a_waiter_ttl_may_be_given(slot, mode):
    actors = Actors(DurableMutex(lease=60, waiter_ttl=5), slot, mode)
    actors.acquire("a")
    actors.acquire("dead")
    assert actors.acquire("b", at=5) == waiting(0)


def test_a_caller_whose_clock_is_behind_does_not_shorten_other_leases(one):
    one.acquire("a")
    assert one.acquire("late", at=-40) == waiting(0)
    assert one.acquire("c", at=10) == waiting(1)
    assert one.renew("a", at=30) is True


def test_a_release_by_an_unknown_holder_writes_nothing(one, plan):
    one.acquire("a")
    written = plan.count(SwapSlot)
    one.release("nobody")
    assert plan.count(SwapSlot) == written
    assert one.holders() == ["a"]


def test_now_may_be_an_aware_datetime(one):
    start = datetime.fromtimestamp(NOW, UTC)
    assert one.do(one.lock.try_acquire(one.slot, holder_id="a", now=start)) == HELD
    assert one.do(one.lock.try_acquire(one.slot, holder_id="b", now=start + timedelta(seconds=60))) == HELD


@pytest.mark.parametrize(
    ("now", "why"),
    [
        (datetime(2026, 1, 1), "time zone"),  # noqa: DTZ001
        (NOW * 1000, "not milliseconds"),
        (-1, "since 1970"),
        (float("nan"), "since 1970"),
        ("today", "since 1970"),
        (True, "since 1970"),
    ],
)
def test_a_now_that_is_no_time_is_refused_with_the_reason(one, now, why):
    with pytest.raises(InvalidOption, match=why):
        one.do(one.lock.try_acquire(one.slot, holder_id="a", now=now))


@pytest.mark.parametrize("permits", [0, -1, 1.5, True, "3", None])
def test_bad_permits_raise_value_error_at_once(permits):
    with pytest.raises(ValueError, match="permits"):
        DurableSemaphore(permits=permits)


@pytest.mark.parametrize("lease", [0, -1, float("nan"), "soon", None, 10**10])
def test_bad_leases_raise_value_error_at_once(lease, one):
    with pytest.raises(ValueError, match="lease"):
        DurableMutex(lease=lease)
    if lease is not None:
        with pytest.raises(ValueError, match="lease"):
            one.acquire("a", lease=lease)


def test_a_bad_waiter_ttl_raises_value_error_at_once():
    with pytest.raises(ValueError, match="waiter_ttl"):
        DurableMutex(waiter_ttl=-1)


def test_a_slot_with_another_value_is_refused_and_unchanged(hf, mutex, mode):
    slot = hf.state("n", initial=7)
    with pytest.raises(InvalidValue, match="holds int, not a lock"):
        mode.do(mutex.try_acquire(slot, holder_id="a", now=NOW))
    other = hf.state("o", initial={"holders": "all of us"})
    with pytest.raises(RecordUnreadable):
        mode.do(mutex.try_acquire(other, holder_id="a", now=NOW))
    assert mode.do(other.get()) == {"holders": "all of us"}


def test_a_slot_with_a_type_or_another_initial_value_is_refused_at_once(hf, mutex, mode):
    with pytest.raises(InvalidOption, match="without type="):
        mode.do(mutex.try_acquire(hf.state("t", type=LockRecord), holder_id="a", now=NOW))
    with pytest.raises(InvalidValue, match="not a lock"):
        mode.do(mutex.try_acquire(hf.state("d", initial={"foo": 1}), holder_id="a", now=NOW))


def test_an_object_that_is_no_slot_is_refused(mutex):
    with pytest.raises(InvalidOption, match=r"client\.state"):
        mutex.try_acquire({}, holder_id="a", now=NOW)


def test_a_lost_reply_takes_neither_a_second_position_nor_a_second_permit(plan, one):
    for who in "abc":
        plan.lose_reply_of = SwapSlot
        one.acquire(who)
    assert plan.lost == ["SwapSlot"] * 3
    assert one.holders() == ["a"]
    assert one.waiters() == ["b", "c"]


def test_random_contenders_are_never_more_than_the_permits_and_always_in_order(slot, mode):
    """In a random history with crashes, expiries and clock steps, grants are in order and never exceed the permits."""
    chance = random.Random(7)
    actors = three(slot, mode)
    at, inside = 0.0, {}
    for _ in range(300):
        at += chance.choice([0, 0, 1, 5])
        who = chance.choice("abcdefgh")
        inside = {name: until for name, until in inside.items() if until > at}
        if chance.random() < 0.3:
            actors.release(who, at=at)
            inside.pop(who, None)
            continue
        before = [waiter.id for waiter in actors.record().waiters if waiter.expires_at > (NOW + at) * 1_000_000]
        if actors.acquire(who, at=at).acquired:
            assert who in inside or not before or before[0] == who
            inside[who] = at + 30
        assert len(inside) <= 3
        assert sorted(inside) == sorted(actors.holders())
