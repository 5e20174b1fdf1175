"""The heartbeat thread: it renews every lease, runs callbacks, and completes releases that failed."""

from __future__ import annotations

import sys
import threading
import time
from datetime import timedelta

import pytest
from exhausted import no_threads
from waiting import PATIENCE, eventually

from holdfast import Client, LeaseLost, LockTimeout
from holdfast.commands import Abandon, Acquire, Inspect, Release, Renew
from holdfast.locks import acquire as taking
from holdfast.platform import elapsed
from holdfast.runtime import flows
from holdfast.runtime import heartbeats as heartbeats_module
from holdfast.runtime.callbacks import Callbacks
from holdfast.runtime.give_back import PendingAbandons
from holdfast.runtime.grant import LocalGrant
from holdfast.runtime.heartbeats import Heartbeats
from holdfast.runtime.loop_probe import LoopProbe
from holdfast.stores import open_store
from holdfast.testing.builders import acquire, pass_over, release, wait


@pytest.fixture
def hf(plan, url):
    with Client(url) as client:
        yield client


def test_a_lease_added_while_the_heartbeat_thread_checks_is_renewed(hf, monkeypatch):
    """The thread has made its list and would sleep for a minute: the new lease must wake it."""
    looking, go_on = threading.Event(), threading.Event()
    resend = PendingAbandons.send_due

    def slowly(self, now):
        looking.set()
        go_on.wait(20)
        return resend(self, now)

    monkeypatch.setattr(PendingAbandons, "send_due", slowly)
    hf.runtime.heartbeats.start()
    assert looking.wait(10)
    lease = hf.lock("a", ttl=1).acquire()
    go_on.set()
    first = lease.expires_at
    eventually(lambda: lease.expires_at > first + timedelta(seconds=1), within=PATIENCE / 2)
    lease.release()


def test_many_leases_are_renewed_by_one_thread_in_one_batch(hf, plan):
    leases = [hf.lock(f"k{number}", ttl=3).acquire() for number in range(50)]  # renewals due within 0.25 s are included
    eventually(lambda: 50 in plan.batches)
    assert [t.name for t in threading.enumerate()].count("holdfast-renewals") == 1
    for lease in leases:
        lease.release()


def test_clients_that_acquired_at_the_same_moment_renew_at_different_moments(plan, url, monkeypatch):
    """Forty clients that renew permits of one semaphore together would wait for each other each time."""
    paces = iter([0.8, 0.9, *[1.0] * 100])
    monkeypatch.setattr(heartbeats_module, "_random_pace", lambda: next(paces))
    with Client(url) as one, Client(url) as another:
        for client, pace in ((one, 0.8), (another, 0.9)):
            before = elapsed()
            lease = client.semaphore("s", permits=2, ttl=300).acquire()
            assert before + 100 * pace <= lease._renewal.renew_at <= elapsed() + 100 * pace
            lease.release()


def test_each_round_of_renewals_has_its_own_random_interval(hf, monkeypatch):
    monkeypatch.setattr(heartbeats_module, "_random_pace", lambda: 0.8)
    with hf.lock("a", ttl=300) as lease:
        renewal, first = lease._renewal, lease.expires_at
        before = elapsed()
        hf.runtime.heartbeats.call_soon(lambda: setattr(renewal, "renew_at", 0.0))
        eventually(lambda: lease.expires_at > first)
        assert before + 80 <= renewal.renew_at <= elapsed() + 80


def test_a_round_of_renewals_is_never_later_than_its_interval():
    paces = [heartbeats_module._random_pace() for _ in range(1_000)]
    assert 0.75 <= min(paces) < 0.8
    assert 0.95 < max(paces) <= 1


def test_an_error_in_the_heartbeat_thread_does_not_end_the_heartbeats(hf, monkeypatch, caplog):
    stumbled = []
    renew = Heartbeats._renew

    def stumble(self, due, sent):
        if not stumbled:
            stumbled.append(1)
            raise ZeroDivisionError
        renew(self, due, sent)

    monkeypatch.setattr(Heartbeats, "_renew", stumble)
    with hf.lock("a", ttl=3, renew_every=0.3) as lease:
        first = lease.expires_at
        eventually(lambda: lease.expires_at > first + timedelta(seconds=1))
    assert stumbled
    assert "internal error" in caplog.text


def test_a_renewal_that_arrives_after_the_release_is_not_a_loss(hf, plan):
    """The store has released and its reply is in progress; a renewal that arrives now finds nothing, which is no
    loss."""
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
    lease = hf.lock("a", ttl=3, renew_every=0.3).acquire()
    judge = hf.runtime.heartbeats._apply

    def judged(*arguments):
        judge(*arguments)
        renewed.set()

    hf.runtime.heartbeats._apply = judged
    assert renewing.wait(10)
    lease.release()
    assert renewed.is_set()
    assert "lease_lost" not in seen
    assert not lease.lost.is_set()


def test_the_deadline_counts_from_the_moment_before_the_request_was_sent(hf, plan):
    """A slow reply makes the lease shorter here, never longer."""
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


def test_a_callback_that_raises_is_reported_and_does_not_stop_others(hf):
    seen = []
    hf.events.subscribe(lambda event: seen.append((event.name, event.fields)))
    notified = []

    def fail(lease):
        raise ZeroDivisionError("in the callback")

    bad = hf.lock("a", on_lost=fail).acquire()
    good = hf.lock("b", on_lost=notified.append).acquire()
    worst = hf.lock("c", on_lost=lambda _lease: sys.exit(1)).acquire()
    for lease in (bad, worst, good):
        lease._held.lose("test")
    eventually(lambda: notified == [good])
    errors = [fields["error"] for name, fields in seen if name == "callback_failed"]
    assert ["ZeroDivisionError" in error or "SystemExit" in error for error in errors] == [True, True]


def test_a_slow_callback_does_not_delay_heartbeats(hf):
    go_on, started = threading.Event(), threading.Event()

    def slow(_lease):
        started.set()
        go_on.wait(20)

    other = hf.lock("b", ttl=3, renew_every=0.3).acquire()
    lost = hf.lock("a", on_lost=slow).acquire()
    hf.runtime.heartbeats.call_soon(lambda: lost._held.lose("test"))  # as the heartbeat thread itself finds it
    assert started.wait(10)
    first = other.expires_at
    eventually(lambda: other.expires_at > first + timedelta(seconds=1))
    go_on.set()
    other.release()


def test_an_event_subscriber_that_exits_its_thread_does_not_end_the_heartbeats(hf):
    hf.events.subscribe(lambda _event: sys.exit(1))
    with hf.lock("a", ttl=3, renew_every=0.3) as lease:
        first = lease.expires_at
        eventually(lambda: lease.expires_at > first + timedelta(seconds=1))
        assert lease.valid


class AnsweringLoop:
    """An event loop that runs a callback at once, within `call_soon_threadsafe`."""

    def call_soon_threadsafe(self, callback):
        callback()

    def is_closed(self):
        return False


def test_a_loop_that_responds_at_once_is_not_blocked():
    loop = AnsweringLoop()
    probe = LoopProbe(loop)
    assert probe.silent_for(10.0) == 0.0
    assert probe.silent_for(99.0) == 0.0
    assert not probe.stopped
    del loop
    assert probe.stopped, "a loop that is gone has stopped"


def test_a_callback_that_got_no_thread_is_run_with_the_next_one(caplog):
    callbacks, notified = Callbacks(), []
    with no_threads():
        callbacks.add(lambda: notified.append(1))
    assert "no thread could be started to call on_lost" in caplog.text
    callbacks.add(lambda: notified.append(2))
    eventually(lambda: notified == [1, 2])


def test_a_loss_without_a_thread_for_its_callback_does_not_end_the_heartbeats(hf):
    other = hf.lock("b", ttl=6, renew_every=0.3).acquire()
    notified = []
    lost = hf.lock("a", ttl=3, renew_every=0.3, on_lost=notified.append).acquire()
    eventually(lambda: hf.runtime.batchers["heartbeats"]._thread)
    with no_threads():
        hf.locks.force_release("a", reason="test")
        eventually(lost.lost.is_set)
        first = other.expires_at
        eventually(lambda: other.expires_at > first + timedelta(seconds=1))
    other.release()


def test_without_a_heartbeat_thread_an_error_is_raised_and_the_next_call_starts_it(url):
    with Client(url) as hf:
        with no_threads(), pytest.raises(RuntimeError, match="can't start new thread"):
            hf.lock("a").acquire()
        with hf.lock("a", ttl=3, renew_every=0.3, wait=10) as lease:
            first = lease.expires_at
            eventually(lambda: lease.expires_at > first + timedelta(seconds=1))


def test_heartbeats_that_got_no_thread_are_tried_again(hf):
    seen = []
    hf.events.subscribe(lambda event: seen.append((event.name, event.fields)))
    lease = hf.lock("a", ttl=1.5, max_renew_failures=50).acquire()
    with no_threads():
        eventually(lambda: any(name == "renewal_unknown" for name, _ in seen))
    first = lease.expires_at
    eventually(lambda: lease.expires_at > first + timedelta(seconds=1))
    assert "no thread" in next(fields["error"] for name, fields in seen if name == "renewal_unknown")
    lease.release()


def test_a_failed_release_is_reported_with_its_reason(tmp_path, monkeypatch):
    """Also if only this command failed, and not the connection."""
    seen = []
    hf = Client(f"sqlite:///{tmp_path}/locks.db")  # a store that runs the rules in Python, where one can be broken
    hf.events.subscribe(lambda event: seen.append(event.fields["error"]) if event.name == "give_back_failed" else None)
    monkeypatch.setattr(Abandon, "apply", lambda self, record, now: 1 / 0)
    hf.runtime.heartbeats.start()
    hf.runtime.give_back(Abandon(key="a", id="x.1", ttl=5_000_000))
    assert "Abandon on 'a' could not be carried out" in eventually(lambda: seen)[0]
    hf.close()


def test_a_callback_queued_after_the_heartbeat_thread_ended_is_run_by_the_next_caller(url):
    client, done = Client(url), []
    heartbeats = client.runtime.heartbeats
    heartbeats.start()
    client.close()
    heartbeats.call_soon(lambda: done.append(1))
    heartbeats.call_soon(lambda: 1 / 0)
    heartbeats.call_soon(lambda: done.append(2))
    assert not done, "not by the one who comes with it, which may be a finaliser"
    with Client(url) as hf, hf.lock("a"):
        assert done == [1, 2]


def test_a_release_that_is_interrupted_in_a_finaliser_is_completed_by_the_heartbeat_thread(hf, monkeypatch):
    lease = hf.lock("a").acquire()
    lost_by = []
    lose = LocalGrant.lose
    monkeypatch.setattr(
        LocalGrant, "lose", lambda self, why: (lost_by.append(threading.current_thread().name), lose(self, why))[1]
    )
    flow = lease._hand_over("bob")
    next(flow)  # in progress
    flow.close()  # as it is when it is collected
    eventually(lambda: not lease.valid)
    assert lost_by == ["holdfast-renewals"]
    with hf.lock("a", wait=10):
        pass


def test_unused_records_are_removed_over_time(url):
    """The heartbeat thread does it from time to time, one page at a time; tokens still rise afterwards."""
    removed = []
    with Client(url, retention=1) as hf:
        hf.events.subscribe(
            lambda event: removed.append(event.fields["removed"]) if event.name == "records_removed" else None
        )
        tokens = []
        for number in range(150):
            with hf.lock(f"k:{number}") as lease:
                tokens.append(lease.token)
        heartbeats = hf.runtime.heartbeats

        def all_removed():
            heartbeats._clean_at = 0.0  # it is due
            heartbeats.call_soon(lambda: None)
            return sum(removed) == 150

        eventually(all_removed)
        assert max(removed) <= 100, "a page at a time"
        with hf.lock("k:0") as again:
            assert again.token > tokens[0]


def test_a_long_wait_is_reported_once_with_holder_and_position(url, monkeypatch):
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
        assert [(event["key"], event["position"]) for event in seen] == [("a", 0)], "also in the local queue"
        assert [event["owner"] for event in seen] == ["waiter"], "named as everywhere else"


@pytest.fixture
def raw(url):
    """A connection without a client, and the ids that are hinted on the channel `b`."""
    received = []
    store = open_store(url, namespace="default")
    watch, connection = store.watch("b", lambda ids: received.extend(ids or ())), store.connect("commands")
    yield connection, received
    connection.close()
    watch.close()
    store.close()


def test_a_client_that_closes_right_after_a_release_hints_the_next_waiters(url, raw):
    """The waiter that has the offer may have crashed, and the others would not check before their next sign of life."""
    connection, received = raw
    with Client(url) as client:
        lease = client.lock("k").acquire()
        connection.execute([wait("k", "dead.1"), wait("k", "b.1", waiter_ttl=600_000_000)])
        lease.release()
        assert received == []
    eventually(lambda: "b.1" in received)
    (seen,) = connection.execute([Inspect(key="k")])
    assert [holder.id for holder in seen.record.holders] == ["dead.1"]


def test_a_client_that_closes_while_it_holds_a_lock_hints_the_next_waiters(url, raw):
    connection, received = raw
    client = Client(url)
    lease = client.lock("k").acquire()
    connection.execute([wait("k", "dead.1"), wait("k", "b.1", waiter_ttl=600_000_000)])
    client.close()
    assert lease.lost
    eventually(lambda: "b.1" in received)


def test_an_offer_made_by_an_abandon_is_checked_until_it_ends(url, raw, hf):
    """The next waiter may have crashed, too."""
    connection, received = raw
    (held,) = connection.execute([acquire("k", "a.1")])
    connection.execute([wait("k", "gives up.1"), wait("k", "dead.1"), wait("k", "b.1", waiter_ttl=600_000_000)])
    connection.execute([release("k", "a.1", token=held.token)])
    hf.runtime.heartbeats.start()
    hf.runtime.give_back(Abandon(key="k", id="gives up.1", ttl=10_000_000))
    eventually(lambda: "b.1" in received)  # when the offer to the crashed waiter has expired


def test_an_offer_that_lasts_longer_is_checked_until_it_ends(url, raw, hf):
    """Each offer that a waiter has missed doubles the next."""
    connection, received = raw
    (held,) = connection.execute([acquire("k", "a.1")])
    connection.execute([wait("k", "slow.1", waiter_ttl=600_000_000)])
    (offered,) = connection.execute([release("k", "a.1", token=held.token)])
    assert offered.woken == ("slow.1",)
    (seen,) = connection.execute([Inspect(key="k")])
    connection.execute([pass_over("k", "slow.1", token=seen.record.holders[0].token)])
    lease = hf.lock("k").acquire()
    connection.execute([wait("k", "slow.1", waiter_ttl=600_000_000), wait("k", "b.1", waiter_ttl=600_000_000)])
    lease.release()
    eventually(lambda: "b.1" in received)
