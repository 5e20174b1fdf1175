"""Renew, release, abandon, transfer and forced release."""

import pytest

from holdfast.rules import lock
from holdfast.rules import lock_outcomes as out
from holdfast.rules.lock_record import EMPTY, Forced

from .harness import PATIENCE, SECOND, T0, TTL, LockHarness


def test_a_renewal_prolongs_to_a_full_ttl_from_now():
    harness = LockHarness()
    a = harness.acquire("a")
    answer = harness.later(10 * SECOND).renew("a", a.token, ttl=2 * TTL)
    assert answer == out.Renewed(floor=a.token, expires_at=T0 + 10 * SECOND + 2 * TTL)
    assert (harness.holder("a").ttl, harness.holder("a").since) == (2 * TTL, T0)


@pytest.mark.parametrize("verb", ["renew", "release"])
@pytest.mark.parametrize(("id", "off"), [("a", 1), ("a", -1), ("b", 0), ("", 0)])
def test_renew_and_release_by_another_attempt_change_nothing(verb, id, off):
    harness = LockHarness()
    a = harness.acquire("a")
    before = harness.record
    assert getattr(harness.later(SECOND), verb)(id, a.token + off) == out.NotHolder()
    assert harness.record is before


@pytest.mark.parametrize("verb", ["renew", "release"])
def test_the_token_of_an_earlier_grant_of_the_same_attempt_is_refused(verb):
    harness = LockHarness()
    stale = harness.acquire("a")
    harness.later(TTL).acquire("a")
    before = harness.record
    assert getattr(harness, verb)("a", stale.token) == out.NotHolder()
    assert harness.record is before


@pytest.mark.parametrize("verb", ["renew", "release"])
def test_only_a_lease_may_be_renewed_by_its_owners_name_without_a_token(verb):
    harness = LockHarness()
    harness.acquire("owner", kind="lease")
    assert not isinstance(getattr(harness, verb)("owner", None), out.NotHolder)
    for kind in ("mutex", "hold", "semaphore", "rw", "run", "worker"):
        harness = LockHarness()
        harness.acquire("owner", kind=kind)
        assert getattr(harness, verb)("owner", None) == out.NotHolder(), kind
        assert harness.holding == ["owner"]


def test_a_lease_with_a_wrong_token_is_not_changed():
    harness = LockHarness()
    a = harness.acquire("owner", kind="lease")
    assert harness.release("owner", a.token + 1) == out.NotHolder()
    assert harness.renew("other", None) == out.NotHolder()


def test_an_expired_grant_cannot_be_renewed():
    harness = LockHarness()
    a = harness.acquire("a")
    assert harness.later(TTL).renew("a", a.token) == out.NotHolder()
    assert harness.holding == []


def test_an_expired_holder_cannot_release_the_grant_of_its_successor():
    harness = LockHarness()
    a = harness.acquire("a")
    harness.later(TTL).acquire("b")
    assert harness.release("a", a.token) == out.NotHolder()
    assert harness.holding == ["b"]


def test_a_release_ends_only_the_named_grant():
    harness = LockHarness()
    tokens = {id: harness.acquire(id, kind="semaphore", permits=2).token for id in "ab"}
    harness.release("a", tokens["a"])
    assert harness.holding == ["b"]


def test_releasing_twice_is_harmless():
    harness = LockHarness()
    a = harness.acquire("a")
    assert harness.release("a", a.token) == out.Released()
    before = harness.record
    assert harness.release("a", a.token) == out.NotHolder()
    assert harness.record is before


def test_abandoning_a_grant_hands_the_lock_over_and_needs_no_token():
    harness = LockHarness()
    harness.acquire("a")
    harness.wait("b")
    assert harness.abandon("a") == out.Abandoned(was="holder", woken=("b",))
    assert harness.holding == ["b"]


def test_abandoning_a_waiter_removes_it_from_the_queue():
    harness = LockHarness()
    harness.acquire("a")
    harness.wait("b")
    assert harness.abandon("b") == out.Abandoned(was="waiter")
    assert (harness.holding, harness.waiting) == (["a"], [])


def test_abandoning_a_head_waiter_with_a_large_weight_grants_the_next_one():
    harness = LockHarness()
    harness.acquire("a", kind="semaphore", permits=2)
    harness.wait("heavy", kind="semaphore", permits=2, weight=2)
    harness.wait("light", kind="semaphore", permits=2)
    assert harness.abandon("heavy").woken == ("light",)


def test_an_acquire_that_arrives_after_its_abandon_is_refused_for_one_ttl():
    harness = LockHarness()
    assert harness.abandon("a") == out.Abandoned(was="nothing")
    assert harness.acquire("a") == out.Gone()
    assert harness.later(TTL - 1).wait("a") == out.Gone()
    assert harness.record.idle
    assert isinstance(harness.later(1).acquire("a"), out.Granted)


def test_an_abandoned_holder_or_waiter_cannot_acquire_again():
    harness = LockHarness()
    harness.acquire("a")
    harness.wait("b")
    harness.abandon("b")
    harness.abandon("a")
    assert harness.acquire("a") == out.Gone()
    assert harness.wait("b") == out.Gone()
    assert isinstance(harness.acquire("c"), out.Granted)


def test_abandoning_again_finds_nothing_and_still_refuses_the_attempt():
    harness = LockHarness()
    harness.acquire("a")
    harness.abandon("a")
    assert harness.later(TTL - 1).abandon("a") == out.Abandoned(was="nothing")
    assert harness.later(TTL - 1).acquire("a") == out.Gone()
    assert len(harness.record.tombstones) == 1


def test_abandoning_again_in_the_same_instant_changes_nothing_at_all():
    harness = LockHarness()
    harness.abandon("a")
    before = harness.record
    harness.abandon("a")
    assert harness.record is before


def test_there_are_never_more_tombstones_than_the_limit():
    harness = LockHarness()
    for number in range(lock.MAX_TOMBSTONES + 6):
        harness.abandon(f"a{number}")
    assert len(harness.record.tombstones) == lock.MAX_TOMBSTONES
    assert harness.acquire(f"a{lock.MAX_TOMBSTONES + 5}") == out.Gone()
    assert harness.acquire("a6") == out.Gone()


def test_an_abandoned_attempt_holds_a_grant_that_was_transferred_to_it():
    harness = LockHarness()
    a = harness.acquire("a")
    harness.abandon("b")
    given = harness.transfer("a", a.token, "b")
    assert harness.acquire("b").token == given.token


def test_a_transfer_changes_the_owner_under_a_higher_token_in_one_step():
    harness = LockHarness()
    a = harness.acquire("a", kind="semaphore", permits=3, weight=2)
    answer = harness.later(SECOND).transfer("a", a.token, "b", ttl=2 * TTL)
    token = T0 + SECOND
    assert answer == out.Transferred(token=token, floor=token, since=token, expires_at=token + 2 * TTL)
    assert harness.holding == ["b"]
    assert (harness.holder("b").weight, harness.holder("b").label.name, harness.record.fence) == (2, "b", token)
    assert harness.renew("a", a.token) == out.NotHolder()
    assert harness.release("a", a.token) == out.NotHolder()


def test_a_transfer_gets_a_higher_token_even_in_the_same_instant():
    harness = LockHarness()
    a = harness.acquire("a")
    assert harness.transfer("a", a.token, "b").token == a.token + 1


def test_a_transfer_by_another_attempt_changes_nothing():
    harness = LockHarness()
    a = harness.acquire("a")
    harness.wait("b")
    before = harness.record
    assert harness.transfer("a", a.token + 1, "b") == out.NotHolder()
    assert harness.transfer("c", a.token, "b") == out.NotHolder()
    assert harness.transfer("a", None, "b") == out.NotHolder()
    assert harness.record is before


def test_a_lease_may_be_transferred_by_its_owners_name_without_a_token():
    harness = LockHarness()
    harness.acquire("a", kind="lease")
    assert isinstance(harness.transfer("a", None, "b"), out.Transferred)
    assert harness.holding == ["b"]


def test_a_transfer_removes_its_target_from_the_queue():
    harness = LockHarness()
    a = harness.acquire("a")
    harness.wait("b")
    harness.wait("c")
    answer = harness.transfer("a", a.token, "c")
    assert isinstance(answer, out.Transferred)
    assert (harness.holding, harness.waiting) == (["c"], ["b"])
    assert harness.release("c", answer.token).woken == ("b",)


def test_a_transfer_target_with_a_large_weight_leaves_the_queue_and_the_next_is_granted():
    harness = LockHarness()
    a = harness.acquire("a", kind="semaphore", permits=2)
    harness.wait("heavy", kind="semaphore", permits=2, weight=2)
    harness.wait("light", kind="semaphore", permits=2)
    assert harness.transfer("a", a.token, "heavy").woken == ("light",)
    assert harness.holding == ["heavy", "light"]


def test_a_transfer_to_a_holder_of_the_key_is_refused():
    harness = LockHarness()
    tokens = {id: harness.acquire(id, kind="semaphore", permits=2).token for id in "ab"}
    before = harness.record
    assert harness.transfer("a", tokens["a"], "b") == out.TargetHolds()
    assert harness.transfer("a", tokens["a"], "a") == out.TargetHolds()
    assert harness.record is before


def test_a_resend_of_a_transfer_gets_the_same_outcome():
    harness = LockHarness()
    a = harness.acquire("a")
    first = harness.transfer("a", a.token, "b")
    before = harness.record
    assert harness.later(SECOND).transfer("a", a.token, "b") == first
    assert harness.record is before


def test_a_transfer_of_a_second_grant_is_not_taken_for_a_resend():
    harness = LockHarness()
    a = harness.acquire("a", kind="semaphore", permits=2)
    harness.transfer("a", a.token, "b")
    again = harness.acquire("a", kind="semaphore", permits=2)
    assert harness.transfer("a", again.token, "b") == out.TargetHolds()
    assert harness.holding == ["b", "a"]


def test_a_resend_of_a_transfer_after_the_targets_release_is_refused():
    harness = LockHarness()
    a = harness.acquire("a")
    b = harness.transfer("a", a.token, "b")
    harness.release("b", b.token)
    assert harness.transfer("a", a.token, "b") == out.NotHolder()
    assert harness.record.idle


def test_an_expired_grant_cannot_be_transferred():
    harness = LockHarness()
    a = harness.acquire("a")
    assert harness.later(TTL).transfer("a", a.token, "b") == out.NotHolder()
    assert harness.holding == []


def test_a_forced_release_removes_all_holders_and_records_who_and_why():
    harness = LockHarness()
    for id in "ab":
        harness.acquire(id, kind="semaphore", permits=2)
    answer = harness.later(SECOND).force_release(by="ada", reason="host is gone")
    assert [holder.id for holder in answer.holders] == ["a", "b"]
    assert harness.record.forced == Forced(at=T0 + SECOND, by="ada", reason="host is gone", holders=("a", "b"))
    assert harness.holding == []


def test_a_forced_release_keeps_the_fence_and_grants_the_next_waiter():
    harness = LockHarness()
    a = harness.acquire("a")
    harness.wait("b")
    answer = harness.force_release()
    assert answer.woken == ("b",)
    assert harness.holder("b").token == a.token + 1
    assert harness.renew("a", a.token) == out.NotHolder()


def test_the_token_after_a_forced_release_is_higher_than_before_it():
    harness = LockHarness()
    a = harness.acquire("a")
    harness.force_release()
    assert harness.record.fence == a.token
    assert harness.acquire("b").token == a.token + 1


def test_a_forced_release_removes_offers_too():
    harness = LockHarness()
    a = harness.acquire("a")
    harness.wait("b")
    harness.wait("c")
    harness.release("a", a.token)
    assert [holder.id for holder in harness.force_release().holders] == ["b"]
    assert harness.holding == ["c"]


def test_a_forced_release_of_a_free_lock_leaves_no_note():
    harness = LockHarness()
    assert harness.force_release() == out.ForceReleased(holders=(), now=harness.now)
    assert harness.record is EMPTY


def test_a_holder_that_was_released_by_force_can_queue_again_behind_the_others():
    harness = LockHarness()
    harness.acquire("a")
    harness.wait("b")
    harness.force_release()
    assert harness.wait("a").position == 0
    assert harness.later(PATIENCE - 1).holding == ["b"]
