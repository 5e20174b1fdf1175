"""Renew, release, abandon, transfer and the operator's hand."""

import pytest

from holdfast.rules import lock
from holdfast.rules import lock_outcomes as out
from holdfast.rules.lock_record import EMPTY, Forced

from .harness import PATIENCE, SECOND, T0, TTL, Desk


def test_a_renewal_prolongs_to_a_full_ttl_from_now():
    desk = Desk()
    a = desk.acquire("a")
    answer = desk.later(10 * SECOND).renew("a", a.token, ttl=2 * TTL)
    assert answer == out.Renewed(floor=a.token, expires_at=T0 + 10 * SECOND + 2 * TTL)
    assert (desk.holder("a").ttl, desk.holder("a").since) == (2 * TTL, T0)


@pytest.mark.parametrize("verb", ["renew", "release"])
@pytest.mark.parametrize(("id", "off"), [("a", 1), ("a", -1), ("b", 0), ("", 0)])
def test_renew_and_release_by_anyone_else_change_nothing(verb, id, off):
    desk = Desk()
    a = desk.acquire("a")
    before = desk.record
    assert getattr(desk.later(SECOND), verb)(id, a.token + off) == out.NotHolder()
    assert desk.record is before


@pytest.mark.parametrize("verb", ["renew", "release"])
def test_the_token_of_an_earlier_grant_of_the_same_attempt_is_not_enough(verb):
    desk = Desk()
    stale = desk.acquire("a")
    desk.later(TTL).acquire("a")
    before = desk.record
    assert getattr(desk, verb)("a", stale.token) == out.NotHolder()
    assert desk.record is before


@pytest.mark.parametrize("verb", ["renew", "release"])
def test_only_a_lease_may_be_named_by_its_owner_alone(verb):
    desk = Desk()
    desk.acquire("owner", kind="lease")
    assert not isinstance(getattr(desk, verb)("owner", None), out.NotHolder)
    for kind in ("mutex", "hold", "semaphore", "rw", "run", "worker"):
        desk = Desk()
        desk.acquire("owner", kind=kind)
        assert getattr(desk, verb)("owner", None) == out.NotHolder(), kind
        assert desk.holding == ["owner"]


def test_a_lease_named_with_a_wrong_token_is_not_touched():
    desk = Desk()
    a = desk.acquire("owner", kind="lease")
    assert desk.release("owner", a.token + 1) == out.NotHolder()
    assert desk.renew("stranger", None) == out.NotHolder()


def test_what_has_expired_cannot_be_renewed():
    desk = Desk()
    a = desk.acquire("a")
    assert desk.later(TTL).renew("a", a.token) == out.NotHolder()
    assert desk.holding == []


def test_what_has_expired_cannot_be_released_under_its_successor():
    desk = Desk()
    a = desk.acquire("a")
    desk.later(TTL).acquire("b")
    assert desk.release("a", a.token) == out.NotHolder()
    assert desk.holding == ["b"]


def test_a_release_frees_only_the_one_that_was_named():
    desk = Desk()
    tokens = {id: desk.acquire(id, kind="semaphore", permits=2).token for id in "ab"}
    desk.release("a", tokens["a"])
    assert desk.holding == ["b"]


def test_releasing_twice_is_harmless():
    desk = Desk()
    a = desk.acquire("a")
    assert desk.release("a", a.token) == out.Released()
    before = desk.record
    assert desk.release("a", a.token) == out.NotHolder()
    assert desk.record is before


def test_abandoning_a_holder_hands_over_and_needs_no_token():
    desk = Desk()
    desk.acquire("a")
    desk.wait("b")
    assert desk.abandon("a") == out.Abandoned(was="holder", woken=("b",))
    assert desk.holding == ["b"]


def test_abandoning_a_waiter_takes_it_out_of_the_queue():
    desk = Desk()
    desk.acquire("a")
    desk.wait("b")
    assert desk.abandon("b") == out.Abandoned(was="waiter")
    assert (desk.holding, desk.waiting) == (["a"], [])


def test_abandoning_a_heavy_head_lets_the_next_in():
    desk = Desk()
    desk.acquire("a", kind="semaphore", permits=2)
    desk.wait("heavy", kind="semaphore", permits=2, weight=2)
    desk.wait("light", kind="semaphore", permits=2)
    assert desk.abandon("heavy").woken == ("light",)


def test_an_acquire_that_arrives_after_its_abandon_is_refused_for_one_ttl():
    desk = Desk()
    assert desk.abandon("a") == out.Abandoned(was="nothing")
    assert desk.acquire("a") == out.Gone()
    assert desk.later(TTL - 1).wait("a") == out.Gone()
    assert desk.record.idle
    assert isinstance(desk.later(1).acquire("a"), out.Granted)


def test_an_abandoned_holder_or_waiter_cannot_come_back():
    desk = Desk()
    desk.acquire("a")
    desk.wait("b")
    desk.abandon("b")
    desk.abandon("a")
    assert desk.acquire("a") == out.Gone()
    assert desk.wait("b") == out.Gone()
    assert isinstance(desk.acquire("c"), out.Granted)


def test_abandoning_again_says_nothing_and_keeps_the_door_shut():
    desk = Desk()
    desk.acquire("a")
    desk.abandon("a")
    assert desk.later(TTL - 1).abandon("a") == out.Abandoned(was="nothing")
    assert desk.later(TTL - 1).acquire("a") == out.Gone()
    assert len(desk.record.tombstones) == 1


def test_abandoning_again_in_the_same_instant_changes_nothing_at_all():
    desk = Desk()
    desk.abandon("a")
    before = desk.record
    desk.abandon("a")
    assert desk.record is before


def test_there_are_never_more_tombstones_than_the_limit():
    desk = Desk()
    for number in range(lock.MAX_TOMBSTONES + 6):
        desk.abandon(f"a{number}")
    assert len(desk.record.tombstones) == lock.MAX_TOMBSTONES
    assert desk.acquire(f"a{lock.MAX_TOMBSTONES + 5}") == out.Gone()
    assert desk.acquire("a6") == out.Gone()


def test_an_abandoned_attempt_that_was_given_a_grant_holds_it():
    desk = Desk()
    a = desk.acquire("a")
    desk.abandon("b")
    given = desk.transfer("a", a.token, "b")
    assert desk.acquire("b").token == given.token


def test_a_transfer_changes_the_owner_under_a_higher_token_in_one_step():
    desk = Desk()
    a = desk.acquire("a", kind="semaphore", permits=3, weight=2)
    answer = desk.later(SECOND).transfer("a", a.token, "b", ttl=2 * TTL)
    token = T0 + SECOND
    assert answer == out.Transferred(token=token, floor=token, since=token, expires_at=token + 2 * TTL)
    assert desk.holding == ["b"]
    assert (desk.holder("b").weight, desk.holder("b").label.name, desk.record.fence) == (2, "b", token)
    assert desk.renew("a", a.token) == out.NotHolder()
    assert desk.release("a", a.token) == out.NotHolder()


def test_a_transfer_gets_a_higher_token_even_in_the_same_instant():
    desk = Desk()
    a = desk.acquire("a")
    assert desk.transfer("a", a.token, "b").token == a.token + 1


def test_a_transfer_by_anyone_else_changes_nothing():
    desk = Desk()
    a = desk.acquire("a")
    desk.wait("b")
    before = desk.record
    assert desk.transfer("a", a.token + 1, "b") == out.NotHolder()
    assert desk.transfer("c", a.token, "b") == out.NotHolder()
    assert desk.transfer("a", None, "b") == out.NotHolder()
    assert desk.record is before


def test_a_lease_may_be_transferred_by_its_owners_name_alone():
    desk = Desk()
    desk.acquire("a", kind="lease")
    assert isinstance(desk.transfer("a", None, "b"), out.Transferred)
    assert desk.holding == ["b"]


def test_a_transfer_takes_its_target_out_of_the_queue():
    desk = Desk()
    a = desk.acquire("a")
    desk.wait("b")
    desk.wait("c")
    answer = desk.transfer("a", a.token, "c")
    assert isinstance(answer, out.Transferred)
    assert (desk.holding, desk.waiting) == (["c"], ["b"])
    assert desk.release("c", answer.token).woken == ("b",)


def test_a_heavy_target_that_leaves_the_queue_lets_the_next_in():
    desk = Desk()
    a = desk.acquire("a", kind="semaphore", permits=2)
    desk.wait("heavy", kind="semaphore", permits=2, weight=2)
    desk.wait("light", kind="semaphore", permits=2)
    assert desk.transfer("a", a.token, "heavy").woken == ("light",)
    assert desk.holding == ["heavy", "light"]


def test_a_transfer_to_one_who_holds_is_refused():
    desk = Desk()
    tokens = {id: desk.acquire(id, kind="semaphore", permits=2).token for id in "ab"}
    before = desk.record
    assert desk.transfer("a", tokens["a"], "b") == out.TargetHolds()
    assert desk.transfer("a", tokens["a"], "a") == out.TargetHolds()
    assert desk.record is before


def test_a_resend_of_a_transfer_gets_the_same_answer():
    desk = Desk()
    a = desk.acquire("a")
    first = desk.transfer("a", a.token, "b")
    before = desk.record
    assert desk.later(SECOND).transfer("a", a.token, "b") == first
    assert desk.record is before


def test_a_second_grant_of_the_giver_is_not_taken_for_a_resend():
    desk = Desk()
    a = desk.acquire("a", kind="semaphore", permits=2)
    desk.transfer("a", a.token, "b")
    again = desk.acquire("a", kind="semaphore", permits=2)
    assert desk.transfer("a", again.token, "b") == out.TargetHolds()
    assert desk.holding == ["b", "a"]


def test_a_resend_of_a_transfer_after_the_target_ended_is_not_held():
    desk = Desk()
    a = desk.acquire("a")
    b = desk.transfer("a", a.token, "b")
    desk.release("b", b.token)
    assert desk.transfer("a", a.token, "b") == out.NotHolder()
    assert desk.record.idle


def test_what_has_expired_cannot_be_transferred():
    desk = Desk()
    a = desk.acquire("a")
    assert desk.later(TTL).transfer("a", a.token, "b") == out.NotHolder()
    assert desk.holding == []


def test_a_forced_release_puts_everyone_out_and_keeps_who_and_why():
    desk = Desk()
    for id in "ab":
        desk.acquire(id, kind="semaphore", permits=2)
    answer = desk.later(SECOND).force_release(by="ada", reason="host is gone")
    assert [holder.id for holder in answer.holders] == ["a", "b"]
    assert desk.record.forced == Forced(at=T0 + SECOND, by="ada", reason="host is gone", holders=("a", "b"))
    assert desk.holding == []


def test_a_forced_release_keeps_the_fence_and_moves_the_queue():
    desk = Desk()
    a = desk.acquire("a")
    desk.wait("b")
    answer = desk.force_release()
    assert answer.woken == ("b",)
    assert desk.holder("b").token == a.token + 1
    assert desk.renew("a", a.token) == out.NotHolder()


def test_the_token_after_a_forced_release_is_higher_than_before_it():
    desk = Desk()
    a = desk.acquire("a")
    desk.force_release()
    assert desk.record.fence == a.token
    assert desk.acquire("b").token == a.token + 1


def test_a_forced_release_puts_offers_out_too():
    desk = Desk()
    a = desk.acquire("a")
    desk.wait("b")
    desk.wait("c")
    desk.release("a", a.token)
    assert [holder.id for holder in desk.force_release().holders] == ["b"]
    assert desk.holding == ["c"]


def test_a_forced_release_of_nothing_leaves_no_note():
    desk = Desk()
    assert desk.force_release() == out.ForceReleased(holders=(), now=desk.now)
    assert desk.record is EMPTY


def test_one_who_was_put_out_can_queue_again_behind_the_others():
    desk = Desk()
    desk.acquire("a")
    desk.wait("b")
    desk.force_release()
    assert desk.wait("a").position == 0
    assert desk.later(PATIENCE - 1).holding == ["b"]
