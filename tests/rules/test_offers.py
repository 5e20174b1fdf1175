"""What happens between a release and the next holder's first word."""

from holdfast.rules import lock
from holdfast.rules import lock_outcomes as out
from holdfast.rules.lock_record import Label, LockRecord, Waiter

from .harness import HOUR, OFFER, PATIENCE, SECOND, T0, TTL, Desk


def offered(*waiters, **options) -> Desk:
    """A lock that was just offered to the first of these waiters."""
    desk = Desk()
    kind, permits = options.get("kind", "mutex"), options.get("permits", 1)
    a = desk.acquire("a", kind=kind, permits=permits, weight=permits)
    for waiter in waiters:
        desk.wait(waiter, **options)
    desk.release("a", a.token)
    return desk


def test_a_release_hands_over_to_the_head_of_the_queue_in_the_same_step():
    desk = Desk()
    a = desk.acquire("a")
    desk.wait("b")
    desk.wait("c")
    assert desk.later(SECOND).release("a", a.token) == out.Released(woken=("b",))
    assert (desk.holding, desk.waiting) == (["b"], ["c"])
    offer = desk.holder("b")
    assert offer.offered
    assert offer.token == T0 + SECOND


def test_an_offer_lives_for_a_second_and_not_for_a_full_ttl():
    desk = offered("b")
    assert desk.holder("b").expires_at == desk.now + OFFER


def test_an_offer_never_outlives_its_waiters_place():
    desk = Desk()
    a = desk.acquire("a")
    desk.wait("b", ttl=HOUR)
    desk.later(PATIENCE - 1).release("a", a.token)
    assert desk.holder("b").expires_at == T0 + PATIENCE


def test_confirming_an_offer_gives_the_same_token_and_the_full_ttl():
    desk = offered("b")
    token = desk.holder("b").token
    answer = desk.later(OFFER - 1).wait("b")
    assert answer == out.Granted(token=token, floor=token, since=desk.now, expires_at=desk.now + TTL)
    assert not desk.holder("b").offered
    assert desk.holder("b").place is None


def test_an_offer_that_ran_out_goes_to_the_first_that_asks_under_a_higher_token():
    desk = offered("dead", "alive")
    token = desk.holder("dead").token
    answer = desk.later(OFFER).wait("alive")
    assert isinstance(answer, out.Granted)
    assert answer.token > token
    assert (desk.holding, desk.waiting) == (["alive"], ["dead"])


def test_an_offer_that_ran_out_cannot_be_confirmed():
    desk = offered("b")
    token = desk.holder("b").token
    desk.later(OFFER)
    assert isinstance(desk.renew("b", token), out.NotHolder)
    assert isinstance(desk.release("b", token), out.NotHolder)
    assert isinstance(desk.pass_over("b", token), out.NotHolder)
    assert desk.waiting == ["b"]
    assert desk.wait("b").token > token


def test_a_waiter_that_missed_its_offer_and_lost_its_place_is_forgotten():
    desk = offered("b", "c", waiter_ttl=OFFER)
    desk.later(OFFER).settle()
    assert desk.record.idle


def test_renewing_an_offer_confirms_it():
    """Whoever knows the token knows that it holds: what it has is a grant from then on."""
    desk = Desk()
    a = desk.acquire("a")
    desk.wait("b")
    desk.release("a", a.token)
    assert isinstance(desk.renew("b", desk.holder("b").token), out.Renewed)
    assert not desk.holder("b").offered


def test_an_offer_can_be_released_and_abandoned():
    for end in (lambda desk, token: desk.release("b", token), lambda desk, _: desk.abandon("b")):
        desk = Desk()
        a = desk.acquire("a")
        desk.wait("b")
        desk.wait("c")
        desk.release("a", a.token)
        assert end(desk, desk.holder("b").token).woken == ("c",)
        assert desk.holding == ["c"]


def test_an_expired_holder_is_followed_by_the_next_in_the_step_that_notices():
    desk = Desk()
    desk.acquire("a", ttl=SECOND)
    desk.wait("b")
    desk.wait("c")
    answer = desk.later(SECOND).acquire("passer-by")
    assert isinstance(answer, out.Busy)
    assert (answer.woken, answer.waiting) == (("b",), 1)


def test_every_answer_lists_whom_its_step_granted_to():
    """Whichever command comes by: the store must tell them."""
    steps = {
        "acquire": lambda desk: desk.acquire("z"),
        "mismatch": lambda desk: desk.acquire("z", kind="hold"),
        "too heavy": lambda desk: desk.acquire("z", weight=9),
        "gone": lambda desk: desk.acquire("gone"),
        "queue": lambda desk: desk.wait("z"),
        "renew": lambda desk: desk.renew("z", 1),
        "release": lambda desk: desk.release("z", 1),
        "abandon": lambda desk: desk.abandon("z"),
        "transfer": lambda desk: desk.transfer("z", 1, "y"),
        "force": lambda desk: desk.force_release(),
    }
    for name, step in steps.items():
        desk = Desk()
        desk.acquire("a", ttl=SECOND)
        desk.abandon("gone")
        desk.wait("b")
        assert step(desk.later(SECOND)).woken == ("b",), name


def test_the_attempt_whose_own_step_finds_it_granted_is_confirmed_at_once():
    desk = Desk()
    desk.acquire("a", ttl=SECOND)
    desk.wait("b")
    answer = desk.later(SECOND).wait("b")
    assert isinstance(answer, out.Granted)
    assert answer.expires_at == T0 + SECOND + TTL
    assert not desk.holder("b").offered


def test_several_permits_that_become_free_go_to_several_waiters_in_order():
    desk = Desk()
    heavy = desk.acquire("heavy", kind="semaphore", permits=3, weight=3)
    for id, weight in (("b", 1), ("c", 1), ("d", 2), ("e", 1)):
        desk.wait(id, kind="semaphore", permits=3, weight=weight)
    assert desk.release("heavy", heavy.token).woken == ("b", "c")
    assert (desk.holding, desk.waiting) == (["b", "c"], ["d", "e"])
    tokens = [holder.token for holder in desk.record.holders]
    assert tokens == [heavy.token + 1, heavy.token + 2]


def test_a_waiter_without_a_sign_of_life_loses_its_place():
    desk = Desk()
    a = desk.acquire("a")
    desk.wait("silent")
    desk.later(SECOND).wait("b")
    desk.later(PATIENCE - SECOND).settle()
    assert desk.waiting == ["b"]
    assert desk.release("a", a.token).woken == ("b",)


def test_a_place_without_end_is_kept_and_offered_without_end():
    desk = Desk()
    a = desk.acquire("a", ttl=None)
    desk.wait("run", waiter_ttl=None)
    desk.later(1000 * HOUR).release("a", a.token)
    assert desk.holder("run").expires_at is None
    assert isinstance(desk.later(1000 * HOUR).wait("run"), out.Granted)


def test_an_offer_carries_what_the_waiter_asked_for():
    desk = Desk()
    a = desk.acquire("a", kind="semaphore", permits=2, weight=2)
    desk.wait("b", kind="semaphore", permits=2, weight=2, delay=HOUR, label="the next")
    desk.release("a", a.token)
    offer = desk.holder("b")
    assert (offer.weight, offer.delay, offer.label.name, offer.ttl) == (2, HOUR, "the next", OFFER)


def test_without_offers_a_free_permit_waits_for_the_heads_own_acquire():
    desk = Desk(offers=False)
    a = desk.acquire("a")
    desk.wait("b")
    desk.wait("c")
    assert desk.release("a", a.token).woken == ()
    assert (desk.holding, desk.waiting) == ([], ["b", "c"])
    assert isinstance(desk.wait("c"), out.Queued)
    assert isinstance(desk.acquire("passer-by"), out.Busy)
    answer = desk.wait("b")
    assert isinstance(answer, out.Granted)
    assert answer.expires_at == T0 + TTL
    assert (desk.holding, desk.waiting) == (["b"], ["c"])


def test_without_offers_a_head_that_died_gives_way_to_the_next():
    desk = Desk(offers=False)
    a = desk.acquire("a")
    desk.wait("b")
    desk.later(SECOND).wait("c")
    desk.release("a", a.token)
    assert desk.record.due_at == T0 + PATIENCE
    assert isinstance(desk.later(PATIENCE - SECOND).wait("c"), out.Granted)


def test_fields_of_another_version_follow_the_waiter_into_its_grant():
    for offers in (True, False):
        waiter = Waiter("w", Label("w"), since=T0, ttl=HOUR, expires_at=T0 + HOUR, unknown={"mood": "calm"})
        record = LockRecord(waiters=(waiter,), due_at=T0 + HOUR)
        desk = Desk(record, offers=offers)
        assert isinstance(desk.wait("w", waiter_ttl=HOUR), out.Granted)
        assert desk.holder("w").unknown == {"mood": "calm"}


def test_settling_what_is_settled_returns_the_very_same_record():
    desk = Desk()
    desk.acquire("a", delay=SECOND)
    desk.wait("b")
    desk.abandon("c")
    for length in (0, 1, SECOND):
        record, woken = lock.settle(desk.record, desk.later(length).now)
        assert record is desk.record
        assert woken == ()
