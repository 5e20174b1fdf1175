"""Offers: from a release to the confirmation by the next holder."""

from holdfast.rules import lock
from holdfast.rules import lock_outcomes as out
from holdfast.rules.lock_record import Label, LockRecord, Waiter

from .harness import HOUR, OFFER, PATIENCE, SECOND, T0, TTL, LockHarness


def offered(*waiters, **options) -> LockHarness:
    """A lock that was just offered to the first of these waiters."""
    harness = LockHarness()
    kind, permits = options.get("kind", "mutex"), options.get("permits", 1)
    a = harness.acquire("a", kind=kind, permits=permits, weight=permits)
    for waiter in waiters:
        harness.wait(waiter, **options)
    harness.release("a", a.token)
    return harness


def test_a_release_hands_over_to_the_head_of_the_queue_in_the_same_step():
    harness = LockHarness()
    a = harness.acquire("a")
    harness.wait("b")
    harness.wait("c")
    assert harness.later(SECOND).release("a", a.token) == out.Released(woken=("b",))
    assert (harness.holding, harness.waiting) == (["b"], ["c"])
    offer = harness.holder("b")
    assert offer.offered
    assert offer.token == T0 + SECOND


def test_an_offer_lasts_for_a_second_and_not_for_a_full_ttl():
    harness = offered("b")
    assert harness.holder("b").expires_at == harness.now + OFFER


def test_an_offer_never_lasts_longer_than_its_waiters_position():
    harness = LockHarness()
    a = harness.acquire("a")
    harness.wait("b", ttl=HOUR)
    harness.later(PATIENCE - 1).release("a", a.token)
    assert harness.holder("b").expires_at == T0 + PATIENCE


def test_confirming_an_offer_gives_the_same_token_and_the_full_ttl():
    harness = offered("b")
    token = harness.holder("b").token
    answer = harness.later(OFFER - 1).wait("b")
    assert answer == out.Granted(token=token, floor=token, since=harness.now, expires_at=harness.now + TTL)
    assert not harness.holder("b").offered
    assert harness.holder("b").place is None


def test_an_expired_offer_goes_to_the_first_waiter_that_acquires_with_a_higher_token():
    harness = offered("dead", "alive")
    token = harness.holder("dead").token
    answer = harness.later(OFFER).wait("alive")
    assert isinstance(answer, out.Granted)
    assert answer.token > token
    assert (harness.holding, harness.waiting) == (["alive"], ["dead"])


def test_the_waiter_of_an_expired_offer_cannot_confirm_it():
    harness = offered("b")
    token = harness.holder("b").token
    harness.later(OFFER)
    assert isinstance(harness.renew("b", token), out.NotHolder)
    assert isinstance(harness.release("b", token), out.NotHolder)
    assert isinstance(harness.pass_over("b", token), out.NotHolder)
    assert harness.waiting == ["b"]
    assert harness.wait("b").token > token


def test_a_waiter_that_missed_its_offer_and_whose_position_expired_is_removed():
    harness = offered("b", "c", waiter_ttl=OFFER)
    harness.later(OFFER).settle()
    assert harness.record.idle


def test_renewing_an_offer_confirms_it():
    """A waiter that knows the token knows that it holds the lock: the offer becomes a grant."""
    harness = LockHarness()
    a = harness.acquire("a")
    harness.wait("b")
    harness.release("a", a.token)
    assert isinstance(harness.renew("b", harness.holder("b").token), out.Renewed)
    assert not harness.holder("b").offered


def test_an_offer_can_be_released_and_abandoned():
    for end in (lambda harness, token: harness.release("b", token), lambda harness, _: harness.abandon("b")):
        harness = LockHarness()
        a = harness.acquire("a")
        harness.wait("b")
        harness.wait("c")
        harness.release("a", a.token)
        assert end(harness, harness.holder("b").token).woken == ("c",)
        assert harness.holding == ["c"]


def test_the_step_that_finds_an_expired_holder_grants_the_next_waiter():
    harness = LockHarness()
    harness.acquire("a", ttl=SECOND)
    harness.wait("b")
    harness.wait("c")
    answer = harness.later(SECOND).acquire("passer-by")
    assert isinstance(answer, out.Busy)
    assert (answer.woken, answer.waiting) == (("b",), 1)


def test_every_outcome_lists_the_attempts_that_its_step_granted():
    """Whatever the command is: the store must notify them."""
    steps = {
        "acquire": lambda harness: harness.acquire("z"),
        "mismatch": lambda harness: harness.acquire("z", kind="hold"),
        "too heavy": lambda harness: harness.acquire("z", weight=9),
        "gone": lambda harness: harness.acquire("gone"),
        "queue": lambda harness: harness.wait("z"),
        "renew": lambda harness: harness.renew("z", 1),
        "release": lambda harness: harness.release("z", 1),
        "abandon": lambda harness: harness.abandon("z"),
        "transfer": lambda harness: harness.transfer("z", 1, "y"),
        "force": lambda harness: harness.force_release(),
    }
    for name, step in steps.items():
        harness = LockHarness()
        harness.acquire("a", ttl=SECOND)
        harness.abandon("gone")
        harness.wait("b")
        assert step(harness.later(SECOND)).woken == ("b",), name


def test_an_attempt_whose_own_step_grants_it_is_confirmed_at_once():
    harness = LockHarness()
    harness.acquire("a", ttl=SECOND)
    harness.wait("b")
    answer = harness.later(SECOND).wait("b")
    assert isinstance(answer, out.Granted)
    assert answer.expires_at == T0 + SECOND + TTL
    assert not harness.holder("b").offered


def test_several_permits_that_become_free_go_to_several_waiters_in_order():
    harness = LockHarness()
    heavy = harness.acquire("heavy", kind="semaphore", permits=3, weight=3)
    for id, weight in (("b", 1), ("c", 1), ("d", 2), ("e", 1)):
        harness.wait(id, kind="semaphore", permits=3, weight=weight)
    assert harness.release("heavy", heavy.token).woken == ("b", "c")
    assert (harness.holding, harness.waiting) == (["b", "c"], ["d", "e"])
    tokens = [holder.token for holder in harness.record.holders]
    assert tokens == [heavy.token + 1, heavy.token + 2]


def test_a_waiter_whose_signs_of_life_stop_loses_its_position():
    harness = LockHarness()
    a = harness.acquire("a")
    harness.wait("silent")
    harness.later(SECOND).wait("b")
    harness.later(PATIENCE - SECOND).settle()
    assert harness.waiting == ["b"]
    assert harness.release("a", a.token).woken == ("b",)


def test_a_wait_without_an_expiry_is_kept_and_its_offer_has_no_end():
    harness = LockHarness()
    a = harness.acquire("a", ttl=None)
    harness.wait("run", waiter_ttl=None)
    harness.later(1000 * HOUR).release("a", a.token)
    assert harness.holder("run").expires_at is None
    assert isinstance(harness.later(1000 * HOUR).wait("run"), out.Granted)


def test_an_offer_has_the_options_of_its_waiter():
    harness = LockHarness()
    a = harness.acquire("a", kind="semaphore", permits=2, weight=2)
    harness.wait("b", kind="semaphore", permits=2, weight=2, delay=HOUR, label="the next")
    harness.release("a", a.token)
    offer = harness.holder("b")
    assert (offer.weight, offer.delay, offer.label.name, offer.ttl) == (2, HOUR, "the next", OFFER)


def test_without_offers_a_free_permit_is_taken_by_the_next_acquire_of_the_head_waiter():
    harness = LockHarness(offers=False)
    a = harness.acquire("a")
    harness.wait("b")
    harness.wait("c")
    assert harness.release("a", a.token).woken == ()
    assert (harness.holding, harness.waiting) == ([], ["b", "c"])
    assert isinstance(harness.wait("c"), out.Queued)
    assert isinstance(harness.acquire("passer-by"), out.Busy)
    answer = harness.wait("b")
    assert isinstance(answer, out.Granted)
    assert answer.expires_at == T0 + TTL
    assert (harness.holding, harness.waiting) == (["b"], ["c"])


def test_without_offers_an_expired_head_waiter_is_replaced_by_the_next():
    harness = LockHarness(offers=False)
    a = harness.acquire("a")
    harness.wait("b")
    harness.later(SECOND).wait("c")
    harness.release("a", a.token)
    assert harness.record.due_at == T0 + PATIENCE
    assert isinstance(harness.later(PATIENCE - SECOND).wait("c"), out.Granted)


def test_unknown_fields_of_a_waiter_are_kept_in_its_grant():
    for offers in (True, False):
        waiter = Waiter("w", Label("w"), since=T0, ttl=HOUR, expires_at=T0 + HOUR, unknown={"mood": "calm"})
        record = LockRecord(waiters=(waiter,), due_at=T0 + HOUR)
        harness = LockHarness(record, offers=offers)
        assert isinstance(harness.wait("w", waiter_ttl=HOUR), out.Granted)
        assert harness.holder("w").unknown == {"mood": "calm"}


def test_settling_a_settled_record_returns_the_same_object():
    harness = LockHarness()
    harness.acquire("a", delay=SECOND)
    harness.wait("b")
    harness.abandon("c")
    for length in (0, 1, SECOND):
        record, woken = lock.settle(harness.record, harness.later(length).now)
        assert record is harness.record
        assert woken == ()
