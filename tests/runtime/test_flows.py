"""When a waiter asks again, and what it says of itself; without a store and without time passing."""

from __future__ import annotations

import pytest

from holdfast.commands import Abandon, Acquire, Release, Settle
from holdfast.errors import LockTimeout, QueueFull, StoreContended
from holdfast.rules import lock_outcomes as out
from holdfast.rules.lock import OFFER_LIFE
from holdfast.rules.lock_record import Holder, Label
from holdfast.runtime import flows
from holdfast.runtime.flows import Submit, Wait
from holdfast.runtime.notifier import Notifier

SECOND = 1_000_000
OFFER = OFFER_LIFE / SECOND
ASK = Acquire(key="k", id="a.1", label=Label("me"), ttl=30 * SECOND, queue=True, waiter_ttl=10 * SECOND)


class Desk:
    """A client that hears hints, or does not, from the moment on in which it waits."""

    def __init__(self, *, hints: bool):
        self.listens, self._hints = False, hints
        self.given_back = []
        self.offers = []

    def listen(self, command):
        return Notifier()

    def expect(self, id, *, eager):
        fresh = self._hints and not self.listens
        self.listens = self._hints
        return fresh

    def forget(self, id):
        pass

    def offered(self, key):
        self.offers.append(key)

    def give_back(self, command):
        self.given_back.append(command)


NOW = 1_000 * SECOND


def queued(position: int, *, recheck_in: int | None = None, held_for: tuple[float, ...] = ()) -> out.Queued:
    holders = tuple(
        Holder(id=f"h.{n}", label=Label("h"), token=n, since=NOW - round(age * SECOND), ttl=None, expires_at=None)
        for n, age in enumerate(held_for)
    )
    return out.Queued(position=position, holders=holders, now=NOW, recheck_in=recheck_in)


def pause_at(
    position: int, *, hints: bool, recheck_in: int | None = None, held_for: float | tuple[float, ...] = ()
) -> float:
    """How long a waiter at this place waits before it asks again; the lock has been held for so many seconds."""
    ages = held_for if isinstance(held_for, tuple) else (held_for,)
    flow = flows.acquire(Desk(hints=hints), ASK, 20)
    step = next(flow)
    while isinstance(step, Submit):
        step = flow.send(queued(position, recheck_in=recheck_in, held_for=ages))
    flow.close()
    assert isinstance(step, Wait)
    return step.timeout


@pytest.mark.parametrize("position", [0, 1, 3])
def test_a_waiter_near_the_head_that_gets_no_hints_looks_three_times_an_offer(position):
    assert pause_at(position, hints=False, held_for=60) <= OFFER / 3


def test_a_waiter_that_gets_no_hints_polls_soon_while_a_lock_changes_hands_and_seldom_while_it_is_held():
    first, older, oldest = (pause_at(0, hints=False, held_for=seconds) for seconds in (0.01, 0.8, 60))
    assert first <= 0.02 < older <= 0.2 < oldest


def test_the_youngest_of_several_holders_decides_how_soon_a_waiter_polls():
    assert pause_at(0, hints=False, held_for=(60, 0.01)) <= 0.02


def test_who_is_further_back_in_the_queue_polls_less_often():
    assert pause_at(0, hints=False, held_for=0.2) < pause_at(3, hints=False, held_for=0.2)


@pytest.mark.parametrize(("position", "held_for"), [(600, 60), (500, 0.01)])
def test_a_waiter_far_back_that_gets_no_hints_gives_signs_of_life_alone(position, held_for):
    assert OFFER < pause_at(position, hints=False, held_for=held_for) <= 10 / 3


def test_a_waiter_far_back_looks_before_its_turn_can_have_come():
    assert pause_at(9, hints=False, held_for=0.01) <= 0.2


@pytest.mark.parametrize("position", [0, 2, 15, 500])
def test_a_waiter_that_is_hinted_gives_signs_of_life_alone(position):
    assert OFFER < pause_at(position, hints=True) <= 10 / 3


def test_the_second_in_line_looks_once_an_offer():
    assert OFFER / 2 < pause_at(1, hints=True) <= OFFER


def test_a_waiter_looks_again_when_an_offer_to_another_ends():
    assert 0.3 <= pause_at(1, hints=True, recheck_in=300_000) <= 0.4


def test_a_waiter_says_that_it_listens_as_soon_as_it_does():
    flow = flows.acquire(Desk(hints=True), ASK, 20)
    assert not next(flow).command.listens
    again = flow.send(queued(0))
    assert (again.command.id, again.command.listens) == ("a.1", True)
    flow.close()


@pytest.fixture
def given_up_after(monkeypatch):
    """How many seconds a flow goes on asking for a record that others have all the time."""
    clock = [0.0]
    monkeypatch.setattr(flows, "elapsed", lambda: clock[0])

    def seconds(flow):
        step = next(flow)
        with pytest.raises(StoreContended):
            while True:
                if isinstance(step, Submit):
                    clock[0] += 0.06  # what a store waits for a row
                    step = flow.throw(StoreContended("the row is kept locked"))
                else:
                    clock[0] += step.timeout
                    step = flow.send(False)  # noqa: FBT003  (nothing was hinted)
        return clock[0]

    return seconds


@pytest.mark.parametrize(("wait", "expected"), [(None, flows.CONTENDED_FOR), (8, 8), (0, 0)])
def test_a_record_that_others_have_is_asked_for_as_long_as_the_caller_waits(given_up_after, wait, expected):
    assert given_up_after(flows.acquire(Desk(hints=True), ASK, wait)) == pytest.approx(expected, abs=0.5)


def test_a_release_of_a_record_that_others_have_is_sent_again_for_as_long(given_up_after):
    flow = flows.release(Desk(hints=True), Release(key="k", id="a.1", token=7))
    assert given_up_after(flow) == pytest.approx(flows.CONTENDED_FOR, abs=0.5)


def test_any_other_command_about_a_record_that_others_have_is_given_up_sooner(given_up_after):
    assert given_up_after(flows.send(Settle(key="k"))) == pytest.approx(flows.RESEND_FOR, abs=0.5)


def test_a_full_queue_is_an_error_that_says_so_and_leaves_nothing_behind():
    desk = Desk(hints=True)
    flow = flows.acquire(desk, ASK, 20)
    next(flow)
    with pytest.raises(QueueFull, match=r"the queue of 'k' is full: 10,000 callers wait") as caught:
        flow.send(out.TooManyWaiters(waiting=10_000))
    assert isinstance(caught.value, LockTimeout)
    assert (caught.value.key, caught.value.waiting, caught.value.retryable) == ("k", 10_000, True)
    assert desk.given_back == []


@pytest.mark.parametrize(("outcome", "looks"), [(out.Released(woken=("b.1",)), ["k"]), (out.Released(), [])])
def test_who_offers_a_lock_to_a_waiter_looks_at_it_again(outcome, looks):
    desk = Desk(hints=True)
    flow = flows.release(desk, Release(key="k", id="a.1", token=7))
    next(flow)
    with pytest.raises(StopIteration) as ended:
        flow.send(outcome)
    assert (ended.value.value, desk.offers) == (True, looks)


def test_a_waiter_further_back_that_gets_no_hints_looks_before_an_offer_can_have_run_out():
    """A lock that was held for long is handed over quickly from then on: its turn may come within an offer."""
    for position in (4, 9, 40, 200):
        soonest = position * flows.MIN_HAND_OVER
        assert pause_at(position, hints=False, held_for=60) < soonest + OFFER


@pytest.mark.parametrize(("woken", "looks"), [(("b.1",), ["k"]), ((), [])])
def test_a_caller_that_gives_up_the_moment_it_is_offered_the_lock_looks_after_the_next_offer(woken, looks):
    desk = Desk(hints=True)
    flow = flows.acquire(desk, ASK, 0)
    next(flow)
    step = flow.send(queued(0))
    while not isinstance(step.command, Abandon):
        step = flow.send(queued(0))
    with pytest.raises(LockTimeout):
        flow.send(out.Abandoned(was="holder", woken=woken))
    assert desk.offers == looks
