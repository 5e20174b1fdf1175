"""Waiters that do not answer: nobody else waits for them, and they keep their place."""

from msgspec.structs import replace

from holdfast.rules import lock
from holdfast.rules import lock_outcomes as out
from holdfast.rules.lock import HINTED_AFTER_A_MISS
from holdfast.rules.lock_record import Label, LockRecord, Overflow, Waiter

from . import invariants
from .harness import HOUR, OFFER, SECOND, T0, Desk
from .test_offers import offered


def test_a_waiter_that_missed_its_offer_keeps_its_place_and_is_passed_over():
    desk = offered("b", "c", "d")
    assert desk.later(OFFER).settle() == ()
    assert (desk.holding, desk.waiting) == ([], ["b", "c", "d"])
    back = desk.waiter("b")
    assert (back.missed, back.passed, back.since, back.number) == (1, True, T0, 0)


def test_the_next_waiters_are_hinted_together_and_the_first_that_asks_gets_the_permit():
    desk = offered("dead", *(f"w{n}" for n in range(HINTED_AFTER_A_MISS + 4)))
    answer = desk.later(OFFER).wait("newcomer", kind="hold")
    assert isinstance(answer, out.Mismatch)  # any command finds out, and says so
    assert answer.hinted == tuple(f"w{n}" for n in range(HINTED_AFTER_A_MISS))
    assert isinstance(desk.wait("w7"), out.Granted)
    assert desk.wait("w2").position == 0


def test_ten_dead_waiters_cost_one_offer():
    desk = offered(*(f"dead{n}" for n in range(10)), "alive")
    answer = desk.later(OFFER).wait("alive")
    assert isinstance(answer, out.Granted)
    assert desk.release("alive", answer.token).woken == ()
    assert isinstance(desk.acquire("passer-by"), out.Granted)


def test_after_an_open_call_was_answered_releases_make_offers_again():
    desk = offered("dead", "b", "c")
    granted = desk.later(OFFER).wait("c")
    desk.wait("b")
    assert desk.release("c", granted.token).woken == ("b",)


def test_a_holder_and_the_head_that_die_together_cost_a_ttl_and_an_offer():
    desk = Desk()
    desk.acquire("a", ttl=2 * SECOND)
    desk.wait("head")
    desk.wait("next")
    assert desk.later(2 * SECOND).wait("next").recheck_in == OFFER
    assert isinstance(desk.later(OFFER).wait("next"), out.Granted)


def test_one_that_was_passed_over_blocks_nobody():
    desk = offered("dead", "b")
    desk.later(OFFER).settle()
    assert desk.passed == ["dead", "b"]
    assert isinstance(desk.acquire("newcomer"), out.Granted)


def test_one_that_was_passed_over_is_offered_nothing_before_it_asks_again():
    desk = offered("paused", "b")
    b = desk.later(OFFER).wait("b")
    desk.wait("c")
    assert desk.release("b", b.token).woken == ("c",)
    assert desk.waiting == ["paused"]


def test_a_paused_waiter_that_comes_back_stands_at_its_old_place():
    desk = offered("paused", "b")
    b = desk.later(OFFER).wait("b")
    desk.wait("c")
    assert desk.wait("paused").position == 0
    assert desk.wait("c").position == 1
    assert desk.release("b", b.token).woken == ("paused",)
    assert isinstance(desk.wait("paused"), out.Granted)


def test_a_late_waiter_is_granted_at_once_where_a_permit_is_free():
    desk = offered("late")
    missed = desk.holder("late").token
    answer = desk.later(2 * OFFER).wait("late")
    assert isinstance(answer, out.Granted)
    assert answer.token > missed


def test_a_late_waiter_does_not_pass_an_eligible_one_that_stands_before_it():
    desk = Desk()
    a = desk.acquire("a", kind="semaphore", permits=2, weight=2)
    desk.wait("heavy", kind="semaphore", permits=2, weight=2)
    desk.wait("late", kind="semaphore", permits=2)
    desk.release("a", a.token)
    light = desk.later(OFFER).acquire("light", kind="semaphore", permits=2)
    assert desk.wait("heavy", kind="semaphore", permits=2).position == 0
    assert desk.wait("late", kind="semaphore", permits=2).position == 1
    assert desk.release("light", light.token).woken == ("heavy",)


def test_an_eligible_heavy_waiter_still_blocks_those_behind_it():
    desk = offered("dead", kind="rw", permits=2)
    desk.later(OFFER).acquire("reader", kind="rw", permits=2)
    assert desk.wait("writer", kind="rw", permits=2, weight=2).position == 0
    assert isinstance(desk.acquire("late reader", kind="rw", permits=2), out.Busy)


def test_each_missed_offer_doubles_the_next_so_that_a_slow_waiter_is_served_in_the_end():
    desk = Desk()
    claims = []
    token = desk.acquire("a").token
    holder = "a"
    for n in range(4):
        desk.wait("slow", waiter_ttl=HOUR)
        desk.release(holder, token)
        claims.append(desk.holder("slow").expires_at - desk.now)
        desk.later(claims[-1]).settle()
        holder = f"other{n}"
        token = desk.acquire(holder).token
    assert claims == [OFFER, 2 * OFFER, 4 * OFFER, 8 * OFFER]
    desk.wait("slow", waiter_ttl=HOUR)
    desk.release(holder, token)
    assert isinstance(desk.later(10 * OFFER).wait("slow"), out.Granted)


def test_a_place_that_does_not_expire_is_offered_without_end_and_takes_what_a_dead_waiter_missed():
    """Waiters of workflow runs: they are told by an event, so they do not have to ask."""
    desk = Desk()
    a = desk.acquire("a")
    desk.wait("dead")
    desk.wait("b")
    desk.wait("run", waiter_ttl=None)
    desk.release("a", a.token)
    assert desk.later(OFFER).settle() == ("run",)
    offer = desk.holder("run")
    assert (offer.expires_at, offer.place) == (None, None)
    assert isinstance(desk.later(HOUR).wait("run", waiter_ttl=None), out.Granted)


def test_passing_over_ends_an_offer_at_once():
    desk = offered("dead", "b")
    token = desk.holder("dead").token
    assert desk.pass_over("dead", token) == out.PassedOver(hinted=("b",))
    assert (desk.holding, desk.passed) == ([], ["dead", "b"])
    assert isinstance(desk.wait("b"), out.Granted)
    assert desk.pass_over("dead", token) == out.NotHolder()


def test_passing_over_needs_the_id_and_the_token_of_an_offer():
    desk = offered("b", "c")
    token = desk.holder("b").token
    before = desk.record
    for id, wrong in (("b", token + 1), ("b", token - 1), ("c", token), ("nobody", token)):
        assert desk.pass_over(id, wrong) == out.NotHolder()
    assert desk.record is before


def test_a_confirmed_or_endless_grant_cannot_be_passed_over():
    desk = offered("b")
    granted = desk.wait("b")
    assert desk.pass_over("b", granted.token) == out.NotHolder()
    endless = offered("run", waiter_ttl=None)
    assert endless.pass_over("run", endless.holder("run").token) == out.NotHolder()
    assert endless.holding == ["run"]


def test_one_that_missed_its_offer_and_can_no_longer_fit_is_told_so():
    desk = offered("heavy", kind="semaphore", permits=2, weight=2)
    desk.acquire("b", kind="semaphore", permits=1)
    assert desk.later(OFFER).wait("heavy", kind="semaphore", permits=2, weight=2) == out.TooHeavy(permits=1)


def test_without_offers_nobody_is_passed_over():
    desk = Desk(offers=False)
    a = desk.acquire("a")
    desk.wait("b")
    desk.release("a", a.token)
    desk.later(2 * OFFER)
    assert isinstance(desk.acquire("passer-by"), out.Busy)
    assert desk.passed == []


def test_a_full_queue_refuses_newcomers_and_keeps_those_who_wait(monkeypatch):
    most = 100
    for module in (lock, invariants):
        monkeypatch.setattr(module, "MAX_WAITERS", most)
    label = Label("w")
    one = Waiter("w", label, since=T0, ttl=HOUR, expires_at=T0 + HOUR)
    waiters = tuple(replace(one, id=f"w{number}", number=number) for number in range(most))
    held = Desk()
    held.acquire("a")
    due_at = held.record.holders[0].expires_at
    desk = Desk(LockRecord(fence=T0, version=1, holders=held.record.holders, waiters=waiters, due_at=due_at))
    assert desk.wait("newcomer") == out.TooManyWaiters(waiting=most)
    assert desk.wait("w7", waiter_ttl=HOUR).position == 7
    assert desk.wait("run", waiter_ttl=None).position == most
    desk.abandon("w7")
    desk.abandon("w8")
    assert isinstance(desk.wait("newcomer"), out.Queued)


def test_settling_says_when_the_offer_ends_that_is_still_open():
    """The client that made the offer looks again then: one that was missed before lasts longer."""
    desk = offered("slow", "next")
    lock_of = lambda: lock.LockState(desk.record, desk.now)  # noqa: E731
    assert lock_of().settled() == out.Settled(offer_ends_in=OFFER)
    desk.later(OFFER).settle()
    assert lock_of().settled() == out.Settled()
    desk.release("slow", desk.wait("slow").token)
    desk.wait("slow")
    assert lock_of().settled() == out.Settled(), "a grant is no offer"


def test_a_lock_for_which_only_runs_in_the_overflow_wait_is_not_turned_into_another_kind():
    waiting = LockRecord(fence=5, overflow=Overflow(3, 7, 9), closed_until=T0 + HOUR, closed_for=HOUR)
    _, answer = lock.acquire(
        waiting, T0, id="s", label=Label("s"), kind="semaphore", permits=5, weight=1, ttl=SECOND, queue=True,
        waiter_ttl=SECOND,
    )  # fmt: skip
    assert answer == out.Mismatch(found="mutex")
