"""The keeper: heartbeats that do not forget anyone, and debts that are paid."""

from __future__ import annotations

import sys
import threading
import time
from datetime import timedelta

import pytest

from holdfast import Client, LeaseLost, LockTimeout, flows
from holdfast._platform import elapsed
from holdfast.commands import Acquire, Release, Renew
from holdfast.keeper import Keeper, Pulse
from holdfast.locks import taking
from waiting import PATIENCE, eventually


@pytest.fixture
def hf(plan, url):
    with Client(url) as client:
        yield client


def test_a_lease_that_comes_while_the_keeper_looks_around_is_not_forgotten(hf, monkeypatch):
    """It has made its list, and would go to sleep for a minute: the newcomer must ring."""
    looking, go_on = threading.Event(), threading.Event()
    pay_debts = Keeper._pay_debts

    def slowly(self, now):
        looking.set()
        go_on.wait(20)
        return pay_debts(self, now)

    monkeypatch.setattr(Keeper, "_pay_debts", slowly)
    hf.works.keeper.start()
    assert looking.wait(10)
    lease = hf.lock("a", ttl=1).acquire()
    go_on.set()
    first = lease.expires_at
    eventually(lambda: lease.expires_at > first + timedelta(seconds=1), within=PATIENCE / 2)
    lease.release()


def test_many_leases_are_renewed_by_one_thread_in_one_batch(hf, plan):
    leases = [hf.lock(f"k{number}", ttl=0.9).acquire() for number in range(50)]
    eventually(lambda: 50 in plan.batches)
    assert [t.name for t in threading.enumerate()].count("holdfast-keeper") == 1
    for lease in leases:
        lease.release()


def test_a_fault_of_its_own_does_not_end_everybodys_heartbeats(hf, monkeypatch, caplog):
    stumbled = []
    renew = Keeper._renew

    def stumble(self, due, sent):
        if not stumbled:
            stumbled.append(1)
            raise ZeroDivisionError
        renew(self, due, sent)

    monkeypatch.setattr(Keeper, "_renew", stumble)
    with hf.lock("a", ttl=0.9) as lease:
        first = lease.expires_at
        eventually(lambda: lease.expires_at > first + timedelta(seconds=1))
    assert stumbled
    assert "stumbled" in caplog.text


def test_a_renewal_that_arrives_after_the_release_is_not_a_loss(hf, plan):
    """The store has released and its reply is on the way; a renewal that comes now finds nothing, and that is well."""
    seen = []
    hf.events.subscribe(lambda event: seen.append(event.name))
    renewing, released, renewed = threading.Event(), threading.Event(), threading.Event()

    def before(commands):
        if any(isinstance(command, Renew) for command in commands):
            renewing.set()
            released.wait(20)

    def after(commands):
        if any(isinstance(command, Release) for command in commands):
            released.set()
            renewed.wait(20)  # the reply of the release takes longer than the whole renewal

    plan.before, plan.after = before, after
    lease = hf.lock("a", ttl=0.9).acquire()
    judge = hf.works.keeper._judge

    def judged(*arguments):
        judge(*arguments)
        renewed.set()

    hf.works.keeper._judge = judged
    assert renewing.wait(10)
    lease.release()
    assert renewed.is_set()
    assert "lease_lost" not in seen
    assert not lease.lost.is_set()


def test_the_deadline_counts_from_the_moment_before_the_request_was_sent(hf, plan):
    """A reply that was long on its way makes the lease shorter here, never longer."""
    before = elapsed()
    plan.after = lambda commands: time.sleep(0.3) if any(isinstance(c, Acquire) for c in commands) else None
    lease = hf.lock("a", ttl=5).acquire()
    assert lease._held.deadline < elapsed() - 0.3 + 5
    assert lease._held.deadline >= before + 5 * 0.98
    lease.release()


def test_an_unknown_renewal_never_prolongs_anything(hf, plan):
    lease = hf.lock("a", ttl=1.5).acquire()
    deadline = lease._held.deadline
    plan.refuse = Renew
    eventually(lambda: lease._held.failures)
    assert lease._held.deadline == deadline
    plan.refuse = None
    lease.release()


def test_a_lost_lease_cannot_be_released_or_renewed(hf):
    lease = hf.lock("a").acquire()
    lease._held.lose("test")
    with pytest.raises(LeaseLost):
        lease.release()
    with pytest.raises(LeaseLost):
        lease.renew()
    with pytest.raises(LeaseLost):
        lease.transfer("bob")
    hf.locks.force_release("a", reason="test")


def test_a_callback_that_raises_is_reported_and_stops_nobody(hf):
    seen = []
    hf.events.subscribe(lambda event: seen.append((event.name, event.fields)))
    told = []

    def fail(lease):
        raise ZeroDivisionError("in the callback")

    bad = hf.lock("a", on_lost=fail).acquire()
    good = hf.lock("b", on_lost=told.append).acquire()
    worst = hf.lock("c", on_lost=lambda _lease: sys.exit(1)).acquire()
    for lease in (bad, worst, good):
        lease._held.lose("test")
    eventually(lambda: told == [good])
    errors = [fields["error"] for name, fields in seen if name == "callback_failed"]
    assert ["ZeroDivisionError" in error or "SystemExit" in error for error in errors] == [True, True]


def test_a_callback_that_takes_long_costs_nobody_a_heartbeat(hf):
    go_on, started = threading.Event(), threading.Event()

    def slow(_lease):
        started.set()
        go_on.wait(20)

    other = hf.lock("b", ttl=0.9).acquire()
    lost = hf.lock("a", on_lost=slow).acquire()
    hf.works.keeper.soon(lambda: lost._held.lose("test"))  # as the keeper itself finds out
    assert started.wait(10)
    first = other.expires_at
    eventually(lambda: other.expires_at > first + timedelta(seconds=1))
    go_on.set()
    other.release()


def test_a_sink_that_ends_its_thread_does_not_end_the_keeper(hf):
    hf.events.subscribe(lambda _event: sys.exit(1))
    with hf.lock("a", ttl=0.9) as lease:
        first = lease.expires_at
        eventually(lambda: lease.expires_at > first + timedelta(seconds=1))
        assert lease.valid


class AnsweringLoop:
    """An event loop that answers at once, from within the question."""

    def __init__(self, pulse_holder):
        self.pulse_holder = pulse_holder

    def call_soon_threadsafe(self, callback):
        callback()

    def is_closed(self):
        return False


def test_a_loop_that_answers_at_once_is_not_silent():
    holder = []
    pulse = Pulse(AnsweringLoop(holder))
    assert pulse.silent_for(10.0) == 0.0
    assert pulse.silent_for(99.0) == 0.0


def test_records_that_nobody_uses_are_removed_by_and_by(url):
    """The keeper does it now and then, a page at a time; tokens still rise afterwards."""
    removed = []
    with Client(url, retention=1) as hf:
        hf.events.subscribe(
            lambda event: removed.append(event.fields["removed"]) if event.name == "records_removed" else None
        )
        tokens = []
        for number in range(150):
            with hf.lock(f"k:{number}") as lease:
                tokens.append(lease.token)
        keeper = hf.works.keeper

        def all_removed():
            keeper._clean_at = 0.0  # its hour has come
            keeper.soon(lambda: None)
            return sum(removed) == 150

        eventually(all_removed)
        assert max(removed) <= 100, "a page at a time"
        with hf.lock("k:0") as again:
            assert again.token > tokens[0]


def test_a_long_wait_is_said_once_with_holder_and_position(url, monkeypatch):
    monkeypatch.setattr(flows, "LONG_WAIT", 0.05)
    monkeypatch.setattr(taking, "LONG_WAIT", 0.05)
    with Client(url, name="holder") as holder, Client(url, name="waiter") as waiter:
        seen = []
        waiter.events.subscribe(lambda event: seen.append(event.fields) if event.name == "wait_long" else None)
        with holder.semaphore("s", permits=1), pytest.raises(LockTimeout):
            waiter.semaphore("s", permits=1).acquire(wait=0.3)
        assert [(event["key"], event["position"]) for event in seen] == [("s", 0)]
        assert seen[0]["holder"].startswith("holder")
        seen.clear()
        with waiter.lock("a"):
            thread = threading.Thread(target=lambda: waiter.lock("a", wait=0.3, on_busy="skip")(print)())
            thread.start()
            thread.join(20)
        assert [(event["key"], event["position"]) for event in seen] == [("a", 0)], "also at the local gate"
