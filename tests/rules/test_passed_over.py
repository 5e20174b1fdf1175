"""Waiters that do not respond: they are passed over, do not delay other waiters, and keep their position."""

from msgspec.structs import replace

from holdfast.rules import lock
from holdfast.rules import lock_outcomes as out
from holdfast.rules.lock import HINTED_AFTER_A_MISS
from holdfast.rules.lock_record import Label, LockRecord, Overflow, Waiter

from . import invariants
from .harness import HOUR, OFFER, SECOND, T0, LockHarness
from .test_offers import offered


def test_a_waiter_that_missed_its_offer_keeps_its_position_and_is_passed_over():
    harness = offered("b", "c", "d")
    assert harness.later(OFFER).settle() == ()
    assert (harness.holding, harness.waiting) == ([], ["b", "c", "d"])
    back = harness.waiter("b")
    assert (back.missed, back.passed, back.since, back.number) == (1, True, T0, 0)


def test_the_next_waiters_are_hinted_together_and_the_first_that_acquires_gets_the_permit():
    harness = offered("dead", *(f"w{n}" for n in range(HINTED_AFTER_A_MISS + 4)))
    answer = harness.later(OFFER).wait("newcomer", kind="hold")
    assert isinstance(answer, out.Mismatch)  # any command finds this, and returns it
    assert answer.hinted == tuple(f"w{n}" for n in range(HINTED_AFTER_A_MISS))
    assert isinstance(harness.wait("w7"), out.Granted)
    assert harness.wait("w2").position == 0


def test_ten_crashed_waiters_delay_the_others_by_one_offer():
    harness = offered(*(f"dead{n}" for n in range(10)), "alive")
    answer = harness.later(OFFER).wait("alive")
    assert isinstance(answer, out.Granted)
    assert harness.release("alive", answer.token).woken == ()
    assert isinstance(harness.acquire("passer-by"), out.Granted)


def test_releases_make_offers_again_after_a_passed_over_waiter_has_acquired():
    harness = offered("dead", "b", "c")
    granted = harness.later(OFFER).wait("c")
    harness.wait("b")
    assert harness.release("c", granted.token).woken == ("b",)


def test_a_holder_and_a_head_waiter_that_crash_together_delay_the_others_by_a_ttl_and_an_offer():
    harness = LockHarness()
    harness.acquire("a", ttl=2 * SECOND)
    harness.wait("head")
    harness.wait("next")
    assert harness.later(2 * SECOND).wait("next").recheck_in == OFFER
    assert isinstance(harness.later(OFFER).wait("next"), out.Granted)


def test_a_passed_over_waiter_does_not_block_the_others():
    harness = offered("dead", "b")
    harness.later(OFFER).settle()
    assert harness.passed == ["dead", "b"]
    assert isinstance(harness.acquire("newcomer"), out.Granted)


def test_a_passed_over_waiter_gets_no_offer_before_it_acquires_again():
    harness = offered("paused", "b")
    b = harness.later(OFFER).wait("b")
    harness.wait("c")
    assert harness.release("b", b.token).woken == ("c",)
    assert harness.waiting == ["paused"]


def test_a_paused_waiter_that_continues_has_its_old_position():
    harness = offered("paused", "b")
    b = harness.later(OFFER).wait("b")
    harness.wait("c")
    assert harness.wait("paused").position == 0
    assert harness.wait("c").position == 1
    assert harness.release("b", b.token).woken == ("paused",)
    assert isinstance(harness.wait("paused"), out.Granted)


def test_a_late_waiter_is_granted_at_once_if_a_permit_is_free():
    harness = offered("late")
    missed = harness.holder("late").token
    answer = harness.later(2 * OFFER).wait("late")
    assert isinstance(answer, out.Granted)
    assert answer.token > missed


def test_a_late_waiter_does_not_overtake_an_eligible_waiter_before_it():
    harness = LockHarness()
    a = harness.acquire("a", kind="semaphore", permits=2, weight=2)
    harness.wait("heavy", kind="semaphore", permits=2, weight=2)
    harness.wait("late", kind="semaphore", permits=2)
    harness.release("a", a.token)
    light = harness.later(OFFER).acquire("light", kind="semaphore", permits=2)
    assert harness.wait("heavy", kind="semaphore", permits=2).position == 0
    assert harness.wait("late", kind="semaphore", permits=2).position == 1
    assert harness.release("light", light.token).woken == ("heavy",)


def test_an_eligible_waiter_with_a_large_weight_blocks_the_waiters_behind_it():
    harness = offered("dead", kind="rw", permits=2)
    harness.later(OFFER).acquire("reader", kind="rw", permits=2)
    assert harness.wait("writer", kind="rw", permits=2, weight=2).position == 0
    assert isinstance(harness.acquire("late reader", kind="rw", permits=2), out.Busy)


def test_each_missed_offer_doubles_the_next_so_that_a_slow_waiter_is_served_eventually():
    harness = LockHarness()
    claims = []
    token = harness.acquire("a").token
    holder = "a"
    for n in range(4):
        harness.wait("slow", waiter_ttl=HOUR)
        harness.release(holder, token)
        claims.append(harness.holder("slow").expires_at - harness.now)
        harness.later(claims[-1]).settle()
        holder = f"other{n}"
        token = harness.acquire(holder).token
    assert claims == [OFFER, 2 * OFFER, 4 * OFFER, 8 * OFFER]
    harness.wait("slow", waiter_ttl=HOUR)
    harness.release(holder, token)
    assert isinstance(harness.later(10 * OFFER).wait("slow"), out.Granted)


def test_a_waiter_without_an_expiry_gets_an_offer_without_an_end_that_a_crashed_waiter_missed():
    """Waiters of workflow runs: they get an event, so they do not have to send signs of life."""
    harness = LockHarness()
    a = harness.acquire("a")
    harness.wait("dead")
    harness.wait("b")
    harness.wait("run", waiter_ttl=None)
    harness.release("a", a.token)
    assert harness.later(OFFER).settle() == ("run",)
    offer = harness.holder("run")
    assert (offer.expires_at, offer.place) == (None, None)
    assert isinstance(harness.later(HOUR).wait("run", waiter_ttl=None), out.Granted)


def test_passing_over_ends_an_offer_at_once():
    harness = offered("dead", "b")
    token = harness.holder("dead").token
    assert harness.pass_over("dead", token) == out.PassedOver(hinted=("b",))
    assert (harness.holding, harness.passed) == ([], ["dead", "b"])
    assert isinstance(harness.wait("b"), out.Granted)
    assert harness.pass_over("dead", token) == out.NotHolder()


def test_passing_over_needs_the_id_and_the_token_of_an_offer():
    harness = offered("b", "c")
    token = harness.holder("b").token
    before = harness.record
    for id, wrong in (("b", token + 1), ("b", token - 1), ("c", token), ("nobody", token)):
        assert harness.pass_over(id, wrong) == out.NotHolder()
    assert harness.record is before


def test_a_confirmed_grant_or_an_offer_without_an_end_cannot_be_passed_over():
    harness = offered("b")
    granted = harness.wait("b")
    assert harness.pass_over("b", granted.token) == out.NotHolder()
    endless = offered("run", waiter_ttl=None)
    assert endless.pass_over("run", endless.holder("run").token) == out.NotHolder()
    assert endless.holding == ["run"]


def test_a_waiter_that_missed_its_offer_and_no_longer_fits_gets_an_error():
    harness = offered("heavy", kind="semaphore", permits=2, weight=2)
    harness.acquire("b", kind="semaphore", permits=1)
    assert harness.later(OFFER).wait("heavy", kind="semaphore", permits=2, weight=2) == out.TooHeavy(permits=1)


def test_without_offers_no_waiter_is_passed_over():
    harness = LockHarness(offers=False)
    a = harness.acquire("a")
    harness.wait("b")
    harness.release("a", a.token)
    harness.later(2 * OFFER)
    assert isinstance(harness.acquire("passer-by"), out.Busy)
    assert harness.passed == []


def test_a_full_queue_refuses_new_waiters_and_keeps_the_others(monkeypatch):
    most = 100
    for module in (lock, invariants):
        monkeypatch.setattr(module, "MAX_WAITERS", most)
    label = Label("w")
    one = Waiter("w", label, since=T0, ttl=HOUR, expires_at=T0 + HOUR)
    waiters = tuple(replace(one, id=f"w{number}", number=number) for number in range(most))
    held = LockHarness()
    held.acquire("a")
    due_at = held.record.holders[0].expires_at
    harness = LockHarness(LockRecord(fence=T0, version=1, holders=held.record.holders, waiters=waiters, due_at=due_at))
    assert harness.wait("newcomer") == out.TooManyWaiters(waiting=most)
    assert harness.wait("w7", waiter_ttl=HOUR).position == 7
    assert harness.wait("run", waiter_ttl=None).position == most
    harness.abandon("w7")
    harness.abandon("w8")
    assert isinstance(harness.wait("newcomer"), out.Queued)


def test_settling_returns_the_end_of_the_open_offer():
    """The client that made the offer checks again then: an offer to a waiter that missed one lasts longer."""
    harness = offered("slow", "next")
    lock_of = lambda: lock.LockState(harness.record, harness.now)  # noqa: E731
    assert lock_of().settled() == out.Settled(offer_ends_in=OFFER)
    harness.later(OFFER).settle()
    assert lock_of().settled() == out.Settled()
    harness.release("slow", harness.wait("slow").token)
    harness.wait("slow")
    assert lock_of().settled() == out.Settled(), "a grant is no offer"


def test_a_lock_with_waiting_runs_only_in_the_overflow_keeps_its_kind():
    waiting = LockRecord(fence=5, overflow=Overflow(3, 7, 9), closed_until=T0 + HOUR, closed_for=HOUR)
    _, answer = lock.acquire(
        waiting, T0, id="s", label=Label("s"), kind="semaphore", permits=5, weight=1, ttl=SECOND, queue=True,
        waiter_ttl=SECOND,
    )  # fmt: skip
    assert answer == out.Mismatch(found="mutex")
