"""The invariants themselves: each of them reports its violation."""

import pytest
from msgspec.structs import replace

from holdfast.rules import lock
from holdfast.rules import lock_outcomes as out
from holdfast.rules.lock_record import EMPTY, Forced, Holder, Label, LockRecord, Overflow, Tombstone, Waiter

from .harness import HOUR, OFFER, PATIENCE, SECOND, T0, TTL, LockHarness
from .invariants import Asked, step_violations, violations
from .steps import Change

A = Holder("a", Label("a"), token=T0, since=T0, ttl=TTL, expires_at=T0 + TTL)
B = Holder("b", Label("b"), token=T0 + 1, since=T0, ttl=TTL, expires_at=T0 + TTL)
W = Waiter("w", Label("w"), since=T0, ttl=PATIENCE, expires_at=T0 + PATIENCE)
X = Waiter("x", Label("x"), since=T0, ttl=PATIENCE, expires_at=T0 + PATIENCE, number=1)
OPEN = Holder("b", Label("b"), T0 + 1, T0, OFFER, T0 + OFFER, offered=True, place=replace(W, id="b", number=2))
STONE = Tombstone("t", ttl=TTL, expires_at=T0 + TTL)
GOOD = LockRecord(
    kind="semaphore", permits=2, fence=T0 + 1, version=5, holders=(A, B), waiters=(W, X), tombstones=(STONE,),
    due_at=T0 + PATIENCE,
)  # fmt: skip

BROKEN = {
    "the overflow counts 0": replace(GOOD, overflow=Overflow(0, 9, 9)),
    "came after the first of the overflow": replace(
        GOOD, waiters=(W, replace(X, ttl=None, expires_at=None, number=9)), overflow=Overflow(1, 8, 8)
    ),
    "no waiter of the overflow was offered it": replace(GOOD, holders=(A,), waiters=(), overflow=Overflow(1, 9, 9)),
    "twice": replace(GOOD, holders=(A, replace(B, id="a"))),
    "stands in the record twice": replace(GOOD, waiters=(W, replace(X, id="a"))),
    "stands in the record twice: ": replace(GOOD, tombstones=(STONE, STONE)),
    "must not come back": replace(GOOD, tombstones=(replace(STONE, id="w"),)),
    "order of their tokens": replace(GOOD, holders=(B, A)),
    "order of their tokens: ": replace(GOOD, holders=(A, replace(B, token=T0))),
    "outside 1..fence": replace(GOOD, fence=T0),
    "53 bits": replace(GOOD, fence=2**53),
    "an end without a ttl": replace(GOOD, holders=(replace(A, ttl=None), B)),
    "a ttl without an end": replace(GOOD, waiters=(replace(W, expires_at=None), X)),
    "is still there": replace(GOOD, holders=(replace(A, expires_at=T0), B)),
    "w ended": replace(GOOD, waiters=(replace(W, expires_at=T0), X)),
    "t ended": replace(GOOD, tombstones=(replace(STONE, expires_at=T0 - 1),)),
    "lives until": replace(GOOD, holders=(replace(A, expires_at=T0 + TTL + 1), B)),
    "contradict": replace(GOOD, closed_until=T0 + 1),
    "closed until": replace(GOOD, closed_until=T0 + HOUR, closed_for=SECOND),
    "at least one": replace(GOOD, waiters=(replace(W, weight=0), X)),
    "at least one: permits": replace(GOOD, permits=0),
    "can never fit": replace(GOOD, waiters=(replace(W, weight=3), X)),
    "tombstones": replace(GOOD, tombstones=tuple(replace(STONE, id=f"t{number}") for number in range(65))),
    "due at": replace(GOOD, due_at=None),
    "due at: too late": replace(GOOD, due_at=T0 + PATIENCE + 1),
    "due at: nobody waits": replace(GOOD, waiters=()),
    "lost wake-up": replace(GOOD, holders=(A,)),
    "order of their arrival": replace(GOOD, waiters=(X, W)),
    "given twice": replace(GOOD, holders=(A, replace(OPEN, place=replace(OPEN.place, number=1)))),
    "an offer without a place": replace(GOOD, holders=(A, replace(OPEN, place=None))),
    "a place without an offer": replace(GOOD, holders=(A, replace(OPEN, offered=False))),
    "outlives its place": replace(
        GOOD, holders=(A, replace(OPEN, place=replace(OPEN.place, expires_at=T0 + OFFER - 1)))
    ),
    "outlives its place: of another": replace(GOOD, holders=(A, replace(OPEN, place=replace(OPEN.place, id="c")))),
}


def test_a_sound_record_has_no_violations():
    assert violations(GOOD, T0) == []
    assert violations(EMPTY, T0) == []


@pytest.mark.parametrize("name", BROKEN)
def test_a_violation_in_a_record_is_reported(name):
    phrase = name.partition(":")[0]
    assert any(phrase in text for text in violations(BROKEN[name], T0)), violations(BROKEN[name], T0)


def test_without_offers_a_head_waiter_that_fits_is_no_violation():
    assert violations(BROKEN["lost wake-up"], T0, offers=False) == []


def step(rule, asked, **fields):
    return asked, *rule(GOOD, T0, **fields)


def of(verb, **fields):
    return Asked(verb=verb, **{name: value for name, value in fields.items() if name in ("id", "token", "to_id")})


def release_a():
    return step(lock.release, of("Release", id="a", token=T0), id="a", token=T0)


def renew_a():
    return step(lock.renew, of("Renew", id="a", token=T0), id="a", token=T0, ttl=2 * TTL)


def queue_n():
    return step(
        lock.acquire, of("Acquire", id="n"), id="n", label=Label("n"), kind="semaphore", permits=2, weight=1, ttl=TTL,
        queue=True, waiter_ttl=PATIENCE,
    )  # fmt: skip


def transfer_a():
    fields = {"id": "a", "token": T0, "to_id": "x"}
    return step(lock.transfer, of("Transfer", **fields), **fields, to_label=Label("x"), ttl=TTL)


def abandon_a():
    return step(lock.abandon, of("Abandon", id="a"), id="a", ttl=TTL)


def force():
    return step(lock.force_release, of("ForceRelease"), by="ada", reason="stuck")


GOOD_STEPS = [release_a, renew_a, queue_n, transfer_a, abandon_a, force]


@pytest.mark.parametrize("make", GOOD_STEPS)
def test_a_sound_step_has_no_violations(make):
    asked, after, answer = make()
    assert step_violations(GOOD, asked, after, answer, T0) == []


def offer(record: LockRecord, **fields) -> LockRecord:
    *others, last = record.holders
    return replace(record, holders=(*others, replace(last, **fields)))


FALSE_STEPS = {
    "the fence went": (release_a, lambda after, answer: (replace(after, fence=T0), answer)),
    "the fence went: too far": (release_a, lambda after, answer: (replace(after, fence=T0 + 9), answer)),
    "got the token": (release_a, lambda after, answer: (offer(after, token=T0 - 1), answer)),
    "the floor fell": (release_a, lambda after, answer: (offer(after, token=T0 - 1), answer)),
    "took the load": (release_a, lambda after, answer: (offer(after, weight=2), answer)),
    "the load rose": (renew_a, lambda after, answer: (offer(after, weight=2), answer)),
    "offered to": (release_a, lambda after, answer: (offer(after, id="x"), replace(answer, woken=("x",)))),
    "offered to: a passer-by": (release_a, lambda after, answer: (offer(after, id="n"), replace(answer, woken=("n",)))),
    "hinted are": (release_a, lambda after, answer: (after, replace(answer, hinted=("x",)))),
    "woken are": (release_a, lambda after, answer: (after, replace(answer, woken=("x",)))),
    "without being asked for": (release_a, lambda after, answer: (offer(after, offered=False), answer)),
    "and should until": (release_a, lambda after, answer: (offer(after, ttl=TTL, expires_at=T0 + TTL), answer)),
    "and should until: endless": (release_a, lambda after, answer: (offer(after, ttl=None, expires_at=None), answer)),
    "not what it waited for": (release_a, lambda after, answer: (offer(after, delay=9), answer)),
    "who did not wait": (release_a, lambda after, answer: (offer(after, id="n"), answer)),
    "b lost a living grant": (release_a, lambda after, answer: (replace(after, holders=after.holders[1:]), answer)),
    "b was changed": (renew_a, lambda after, answer: (offer(after, ttl=HOUR, expires_at=T0 + HOUR), answer)),
    "did not keep what is its own": (renew_a, lambda after, answer: (
        replace(after, holders=(replace(after.holders[0], via="b"), B)), answer)),
    "without the right id and token": (renew_a, lambda after, answer: (after, answer)),
    "the outcome says that it does not": (renew_a, lambda after, answer: (GOOD, out.NotHolder())),
    "the queue is": (queue_n, lambda after, answer: (replace(after, waiters=after.waiters[::-1]), answer)),
    "the queue is: jumped": (queue_n, lambda after, answer: (
        replace(after, waiters=(after.waiters[2], *after.waiters[:2])), answer)),
    "the place of w was changed": (queue_n, lambda after, answer: (
        replace(after, waiters=(replace(W, since=T0 + 1), *after.waiters[1:])), answer)),
    "lost its place for no reason": (queue_n, lambda after, answer: (
        replace(after, waiters=after.waiters[1:]), answer)),
    "the tombstone of t was lost": (release_a, lambda after, answer: (replace(after, tombstones=()), answer)),
    "the tombstone of t was changed": (release_a, lambda after, answer: (
        replace(after, tombstones=(replace(STONE, expires_at=T0 + HOUR, ttl=HOUR),)), answer)),
    "refused as gone": (queue_n, lambda after, answer: (GOOD, out.Gone())),
    "closed until": (release_a, lambda after, answer: (replace(after, closed_until=T0 + 1, closed_for=1), answer)),
    "kind or permits were changed": (renew_a, lambda after, answer: (replace(after, permits=3), answer)),
    "the kind changed while": (queue_n, lambda after, answer: (replace(after, kind="rw"), answer)),
    "the answer says": (queue_n, lambda after, answer: (replace(after, permits=3), answer)),
    "note of a forced release": (renew_a, lambda after, answer: (replace(after, forced=Forced(T0, "", "")), answer)),
    "another version": (renew_a, lambda after, answer: (replace(after, unknown={"region": "eu"}), answer)),
    "its version did not rise": (renew_a, lambda after, answer: (replace(after, version=GOOD.version), answer)),
    "the version rose": (renew_a, lambda after, answer: (replace(GOOD, version=6), answer)),
    "same record object": (renew_a, lambda after, answer: (replace(GOOD), out.NotHolder())),
    "an attempt that does not hold": (renew_a, lambda after, answer: (replace(after, holders=(B,)), answer)),
    "the holder is": (renew_a, lambda after, answer: (after, replace(answer, expires_at=T0))),
    "the floor is": (renew_a, lambda after, answer: (after, replace(answer, floor=T0 + 1))),
    "left its giver in": (transfer_a, lambda after, answer: (replace(after, holders=(A, *after.holders)), answer)),
    "got Queued": (queue_n, lambda after, answer: (after, replace(answer, position=0))),
    "got Queued: too late": (queue_n, lambda after, answer: (after, replace(answer, recheck_in=HOUR))),
    "wrong holders": (queue_n, lambda after, answer: (GOOD, out.Busy(holders=(), waiting=2, now=T0, retry_in=1))),
    "is still there": (release_a, lambda after, answer: (replace(after, holders=(A, *after.holders)), answer)),
    "without a tombstone": (abandon_a, lambda after, answer: (replace(after, tombstones=(STONE,)), answer)),
    "a kind that is not in use": (queue_n, lambda after, answer: (GOOD, out.Mismatch(found="mutex"))),
    "a target that does not hold": (transfer_a, lambda after, answer: (GOOD, out.TargetHolds())),
    "left no note": (force, lambda after, answer: (replace(after, forced=None), answer)),
}  # fmt: skip


@pytest.mark.parametrize("name", FALSE_STEPS)
def test_a_violation_in_a_step_is_reported(name):
    make, falsify = FALSE_STEPS[name]
    asked, after, answer = make()
    if name == "without the right id and token":
        asked = replace(asked, token=T0 - 1)
    after, answer = falsify(after, answer)
    found = step_violations(GOOD, asked, after, answer, T0)
    assert any(name.partition(":")[0] in text for text in found), found


def test_a_revived_grant_is_reported():
    before = replace(GOOD, holders=(replace(A, expires_at=T0), B))
    after = replace(GOOD, version=6)
    found = step_violations(before, of("Renew", id="a", token=T0), after, out.NotHolder(), T0)
    assert any("revived" in text for text in found)


LAPSED = replace(GOOD, holders=(A, replace(OPEN, expires_at=T0)), waiters=(W, X))
BACK = replace(OPEN.place, missed=1, passed=True)
CALLED = (replace(W, passed=True), replace(X, passed=True), BACK)
SETTLED = replace(LAPSED, version=6, holders=(A,), waiters=CALLED)


@pytest.mark.parametrize(
    ("phrase", "after", "answer"),
    [
        ("is not passed over", replace(SETTLED, waiters=(W, *CALLED[1:])), out.Settled(hinted=("w", "x"))),
        ("the place of b was changed", replace(SETTLED, waiters=(*CALLED[:2], OPEN.place)), out.Settled()),
        ("the place of b was changed", replace(SETTLED, waiters=(*CALLED[:2], replace(BACK, missed=0))), out.Settled()),
        ("the queue is", replace(SETTLED, waiters=(BACK, *CALLED[:2])), out.Settled(hinted=("w", "x"))),
        ("b lost its place", replace(SETTLED, waiters=CALLED[:2]), out.Settled(hinted=("w", "x"))),
        ("hinted are", SETTLED, out.Settled()),
        ("hinted are", SETTLED, out.Settled(hinted=("w", "x", "b"))),
        (
            "offered to",
            replace(
                SETTLED, fence=T0 + 2, holders=(A, replace(OPEN, id="w", token=T0 + 2, place=W)), waiters=CALLED[1:]
            ),
            out.Settled(woken=("w",), hinted=("x",)),
        ),
    ],
)
def test_a_violation_after_a_missed_offer_is_reported(phrase, after, answer):
    assert step_violations(LAPSED, of("Settle"), SETTLED, out.Settled(hinted=("w", "x")), T0) == []
    assert any(phrase in text for text in step_violations(LAPSED, of("Settle"), after, answer, T0))


def test_a_grant_that_overtakes_an_eligible_waiter_is_reported():
    before = replace(GOOD, permits=3, waiters=(replace(W, weight=2), X))
    after = replace(before, version=6, fence=T0 + 2, holders=(A, B, replace(B, id="n", token=T0 + 2)))
    answer = out.Granted(token=T0 + 2, floor=T0, since=T0, expires_at=T0 + TTL)
    assert any("stood before it" in text for text in step_violations(before, of("Acquire", id="n"), after, answer, T0))


def test_a_refusal_while_a_permit_is_free_is_reported():
    before = replace(GOOD, permits=3, waiters=CALLED[:2])
    after = replace(before, version=6, waiters=(W, CALLED[1]))
    answer = out.Queued(position=0, holders=after.holders, now=T0, recheck_in=PATIENCE)
    found = step_violations(before, of("Acquire", id="w"), after, answer, T0)
    assert any("a permit was free" in text for text in found)


def test_a_full_queue_outcome_with_free_positions_is_reported():
    found = step_violations(GOOD, of("Acquire", id="n"), GOOD, out.TooManyWaiters(waiting=2), T0)
    assert any("called full" in text for text in found)
    found = step_violations(GOOD, of("Acquire", id="n"), GOOD, out.TooManyWaiters(waiting=9), T0)
    assert any("wrong number of waiters" in text for text in found)


def test_a_pass_over_without_the_token_is_reported():
    before = replace(GOOD, holders=(A, OPEN))
    after = replace(SETTLED, due_at=GOOD.due_at)
    wrong = of("PassOver", id="b", token=T0)
    found = step_violations(before, wrong, after, out.PassedOver(hinted=("w", "x")), T0)
    assert any("without the right id and token" in text for text in found)
    right = of("PassOver", id="b", token=T0 + 1)
    assert step_violations(before, right, after, out.PassedOver(hinted=("w", "x")), T0) == []


def test_a_grant_to_an_abandoned_attempt_is_reported():
    harness = LockHarness()
    granted = harness.acquire("t")
    found = step_violations(LockRecord(tombstones=(STONE,)), of("Acquire", id="t"), harness.record, granted, T0)
    assert any("was abandoned, and is not refused" in text for text in found)


def test_a_resend_that_gets_another_token_is_reported():
    harness = LockHarness()
    harness.acquire("a")
    before, asked = harness.record, of("Acquire", id="a")
    fresh = replace(before.holders[0], token=T0 + 1)
    after = replace(before, version=2, fence=T0 + 1, holders=(fresh,))
    answer = out.Granted(token=T0 + 1, floor=T0 + 1, since=T0, expires_at=T0 + TTL)
    assert any("re-send" in text for text in step_violations(before, asked, after, answer, T0))


def test_a_grant_on_a_closed_key_is_reported():
    closed = LockRecord(fence=1, closed_until=T0 + 1, closed_for=1)
    after = replace(closed, version=1, fence=T0, holders=(A,))
    answer = out.Granted(token=T0, floor=T0, since=T0, expires_at=T0 + TTL)
    found = step_violations(closed, of("Acquire", id="a"), after, answer, T0)
    assert any("while the key was closed" in text for text in found)


def test_a_record_read_back_from_a_store_need_not_be_the_same_object():
    asked, copy = of("Renew", id="z", token=1), replace(GOOD)
    assert step_violations(GOOD, asked, copy, out.NotHolder(), T0, stored=True) == []


def test_every_invariant_is_violated_by_some_example():
    """An invariant that no example above violates would check nothing."""
    from . import invariants  # noqa: PLC0415 - only here the inside is looked at

    broken = [text for record in BROKEN.values() for text in violations(record, T0)]
    for check in invariants._STATE:
        assert any(text in broken for record in BROKEN.values() for text in check(record)), check.__name__
    silent = set(invariants._STEPS)
    for name, (make, falsify) in FALSE_STEPS.items():
        asked, after, answer = make()
        if name == "without the right id and token":
            asked = replace(asked, token=T0 - 1)
        after, answer = falsify(after, answer)
        change = Change(GOOD, asked, after, answer, T0)
        silent -= {check for check in silent if list(check(change))}
    assert silent == set()
