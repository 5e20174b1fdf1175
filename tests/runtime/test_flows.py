"""When a waiter sends its next command, and what it states; without a store and without real time."""

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


class StubClient:
    """A stub of a client that receives hints, or does not, from the moment on at which it waits."""

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
    """How long a waiter at this position waits before its next command; the lock has been held for so many seconds."""
    ages = held_for if isinstance(held_for, tuple) else (held_for,)
    flow = flows.acquire(StubClient(hints=hints), ASK, 20)
    step = next(flow)
    while isinstance(step, Submit):
        step = flow.send(queued(position, recheck_in=recheck_in, held_for=ages))
    flow.close()
    assert isinstance(step, Wait)
    return step.timeout


@pytest.mark.parametrize("position", [0, 1, 3])
def test_a_waiter_near_the_head_without_hints_polls_three_times_per_offer(position):
    assert pause_at(position, hints=False, held_for=60) <= OFFER / 3


def test_a_waiter_without_hints_polls_often_while_a_lock_changes_hands_and_seldom_while_it_is_held():
    first, older, oldest = (pause_at(0, hints=False, held_for=seconds) for seconds in (0.01, 0.8, 60))
    assert first <= 0.02 < older <= 0.2 < oldest


def test_the_youngest_of_several_holders_decides_how_soon_a_waiter_polls():
    assert pause_at(0, hints=False, held_for=(60, 0.01)) <= 0.02


def test_a_waiter_further_back_in_the_queue_polls_less_often():
    assert pause_at(0, hints=False, held_for=0.2) < pause_at(3, hints=False, held_for=0.2)


@pytest.mark.parametrize(("position", "held_for"), [(600, 60), (500, 0.01)])
def test_a_waiter_far_back_without_hints_sends_signs_of_life_only(position, held_for):
    assert OFFER < pause_at(position, hints=False, held_for=held_for) <= 10 / 3


def test_a_waiter_far_back_polls_before_it_can_be_granted():
    assert pause_at(9, hints=False, held_for=0.01) <= 0.2


@pytest.mark.parametrize("position", [0, 2, 15, 500])
def test_a_waiter_with_hints_sends_signs_of_life_only(position):
    assert OFFER < pause_at(position, hints=True) <= 10 / 3


def test_the_second_waiter_polls_once_per_offer():
    assert OFFER / 2 < pause_at(1, hints=True) <= OFFER


def test_a_waiter_polls_when_an_offer_to_another_waiter_ends():
    assert 0.3 <= pause_at(1, hints=True, recheck_in=300_000) <= 0.4


def test_a_waiter_states_that_it_receives_hints_as_soon_as_it_does():
    flow = flows.acquire(StubClient(hints=True), ASK, 20)
    assert not next(flow).command.listens
    again = flow.send(queued(0))
    assert (again.command.id, again.command.listens) == ("a.1", True)
    flow.close()


@pytest.fixture
def given_up_after(monkeypatch):
    """For how many seconds a flow retries a command about a record that is always in use."""
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
def test_an_acquire_of_a_record_in_use_is_retried_as_long_as_the_caller_waits(given_up_after, wait, expected):
    assert given_up_after(flows.acquire(StubClient(hints=True), ASK, wait)) == pytest.approx(expected, abs=0.5)


def test_a_release_of_a_record_in_use_is_retried_for_as_long(given_up_after):
    flow = flows.release(StubClient(hints=True), Release(key="k", id="a.1", token=7))
    assert given_up_after(flow) == pytest.approx(flows.CONTENDED_FOR, abs=0.5)


def test_any_other_command_about_a_record_in_use_is_given_up_sooner(given_up_after):
    assert given_up_after(flows.send(Settle(key="k"))) == pytest.approx(flows.RESEND_FOR, abs=0.5)


def test_a_full_queue_is_an_error_that_says_so_and_leaves_nothing_behind():
    client = StubClient(hints=True)
    flow = flows.acquire(client, ASK, 20)
    next(flow)
    with pytest.raises(QueueFull, match=r"the queue of 'k' is full: 10,000 callers wait") as caught:
        flow.send(out.TooManyWaiters(waiting=10_000))
    assert isinstance(caught.value, LockTimeout)
    assert (caught.value.key, caught.value.waiting, caught.value.retryable) == ("k", 10_000, True)
    assert client.given_back == []


@pytest.mark.parametrize(("outcome", "looks"), [(out.Released(woken=("b.1",)), ["k"]), (out.Released(), [])])
def test_a_client_that_made_an_offer_checks_it_again(outcome, looks):
    client = StubClient(hints=True)
    flow = flows.release(client, Release(key="k", id="a.1", token=7))
    next(flow)
    with pytest.raises(StopIteration) as ended:
        flow.send(outcome)
    assert (ended.value.value, client.offers) == (True, looks)


def test_a_waiter_further_back_without_hints_polls_before_an_offer_can_have_expired():
    """A lock that was held for a long time may be handed over quickly from then on: the waiter may be next within an
    offer."""
    for position in (4, 9, 40, 200):
        soonest = position * flows.MIN_HAND_OVER
        assert pause_at(position, hints=False, held_for=60) < soonest + OFFER


@pytest.mark.parametrize(("woken", "looks"), [(("b.1",), ["k"]), ((), [])])
def test_a_caller_that_gives_up_when_it_gets_an_offer_checks_the_next_offer(woken, looks):
    client = StubClient(hints=True)
    flow = flows.acquire(client, ASK, 0)
    next(flow)
    step = flow.send(queued(0))
    while not isinstance(step.command, Abandon):
        step = flow.send(queued(0))
    with pytest.raises(LockTimeout):
        flow.send(out.Abandoned(was="holder", woken=woken))
    assert client.offers == looks
