"""Locks in synchronous code, on every store."""

from __future__ import annotations

import asyncio
import gc
import pickle
import threading
from datetime import UTC, datetime, timedelta

import pytest
from waiting import eventually

import holdfast
from holdfast import AsyncClient, Client, LeaseLost, LockTimeout
from holdfast.commands import Acquire
from holdfast.errors import (
    ClientClosed,
    HoldNotReleasable,
    InvalidDuration,
    InvalidKey,
    InvalidOption,
    KindMismatch,
    NeverFits,
    NotHeld,
    WouldDeadlock,
)
from holdfast.locks import acquire as taking
from holdfast.rules.lock_record import Label
from holdfast.runtime.heartbeats import Heartbeats
from holdfast.runtime.notifier import Notifier


@pytest.fixture
def hf(url):
    with Client(url) as client:
        yield client


@pytest.fixture
def other(url):
    with Client(url, name="other") as client:
        yield client


def in_thread(function):
    """Run in another thread; return its result or its exception."""
    result = []

    def run():
        try:
            result.append(function())
        except BaseException as error:
            result.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, result


def run_in_thread(function):
    thread, result = in_thread(function)
    thread.join(30)
    assert result, "the thread did not end"
    return result[0]


def test_a_lock_yields_a_lease_and_is_free_afterwards(hf):
    with hf.lock("invoice:42", ttl=30, owner="alice") as lease:
        assert lease.key == "invoice:42"
        assert lease.owner == "alice"
        assert lease.valid
        assert not lease.lost.is_set()
        assert lease.floor == lease.token
        assert 29 < lease.remaining() <= 30
        assert lease.expires_at.tzinfo is UTC
        assert timedelta(seconds=25) < lease.expires_at - datetime.now(UTC) <= timedelta(seconds=30)
        lease.check()
        info = hf.locks.inspect("invoice:42")
        assert [holder.owner for holder in info.holders] == ["alice"]
        assert info.holders[0].token == lease.token
    assert not hf.locks.inspect("invoice:42").held
    assert not lease.valid
    assert not lease.lost.is_set(), "given back is not lost"


def test_tokens_rise_with_every_grant(hf):
    tokens = []
    for _ in range(20):
        with hf.lock("a") as lease:
            tokens.append(lease.token)
    assert tokens == sorted(set(tokens))


def test_another_client_is_refused_while_it_is_held(hf, other):
    with hf.lock("a", owner="alice"):
        assert run_in_thread(lambda: other.lock("a").try_acquire()) is None
        error = run_in_thread(lambda: other.lock("a").acquire(wait=0))
        assert isinstance(error, LockTimeout)
        assert "alice" in str(error)
        assert error.holder is not None
        assert error.age is not None
        assert error.age >= 0
    lease = other.lock("a").try_acquire()
    assert lease is not None
    lease.release()


def test_two_clients_with_the_same_name_are_different_holders(url):
    """Identity is one attempt: a configured name that two processes share makes neither of them the holder."""
    with Client(url, name="worker-1") as one, Client(url, name="worker-1") as two:
        first = one.semaphore("s", permits=1, owner="worker-1").acquire(wait=0)
        assert two.semaphore("s", permits=1, owner="worker-1").try_acquire() is None
        assert one.semaphore("s", permits=1, owner="worker-1").try_acquire() is None
        first.release()
        second = two.semaphore("s", permits=1, owner="worker-1").acquire(wait=0)
        assert second.token > first.token
        second.release()


def test_a_timeout_names_holder_age_and_position(hf, url):
    with Client(url, name="elsewhere") as elsewhere, elsewhere.semaphore("s", permits=1, owner="alice"):
        with pytest.raises(LockTimeout) as caught:
            hf.semaphore("s", permits=1).acquire(wait=0.05)
    error = caught.value
    assert isinstance(error, TimeoutError)
    assert error.retryable
    assert error.holder is not None
    assert error.holder.startswith("alice")
    assert error.position == 0
    assert pickle.loads(pickle.dumps(error)).holder == error.holder
    assert not hf.locks.inspect("s").waiters, "a waiter that gave up has left the queue"


def test_a_waiter_gets_the_lock_when_it_is_released(hf, other):
    with hf.lock("a") as first:
        thread, result = in_thread(lambda: other.lock("a").acquire(wait=20))
        eventually(lambda: has_a_waiter(hf, "a"))
    thread.join(20)
    assert result[0].token > first.token
    result[0].release()


def has_a_waiter(client, key):
    from holdfast.locks.process_queue import queues  # noqa: PLC0415

    address = (client.runtime.store.identity, key, "mutex")
    return bool(client.locks.inspect(key).waiters) or queues.waiting(address) > 0


def test_fifty_local_callers_go_to_the_store_one_at_a_time(plan, url):
    with Client(url) as client:
        inside = threading.Lock()
        order = []

        def work(number):
            with client.lock("a"):
                assert inside.acquire(blocking=False), "two were inside"
                order.append(number)
                inside.release()

        threads = [threading.Thread(target=work, args=(number,)) for number in range(50)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert len(order) == 50
        assert plan.count(holdfast.commands.Acquire) == 50, "each asks the store once, when its turn has come"
        assert plan.count(holdfast.commands.Release) == 50


def test_acquiring_again_in_the_same_thread_raises_would_deadlock(hf):
    with hf.lock("a"):
        with pytest.raises(WouldDeadlock):
            hf.lock("a").acquire()
        with pytest.raises(WouldDeadlock):
            hf.lock("a").acquire(wait=0)
        assert hf.lock("a").try_acquire() is None
    with hf.lock("a"):
        pass


def test_a_reentrant_lock_is_the_same_lease_and_ends_with_the_outermost_block(hf, other):
    lock = hf.lock("a", reentrant=True)
    with lock as outer:
        with lock as inner:
            assert inner is outer
        assert outer.valid
        assert run_in_thread(lambda: other.lock("a").try_acquire()) is None
    assert not outer.valid
    with other.lock("a", wait=0):
        pass


def test_releasing_an_inner_reentrant_lease_keeps_the_lock_of_the_outer_block(hf):
    lock = hf.lock("a", reentrant=True)
    with lock as outer:
        with lock as inner:
            inner.release()
        assert outer.valid
        assert hf.locks.inspect("a").held
    assert not hf.locks.inspect("a").held


def test_release_of_a_reentrant_lock_within_a_block_releases_the_acquisition_before_it(hf):
    lock = hf.lock("a", reentrant=True)
    lease = lock.acquire()
    with lock:
        lock.release()
        assert lease.valid
    assert not lease.valid
    with pytest.raises(NotHeld):
        lock.release()


def test_each_acquisition_of_a_reentrant_lock_is_released_once_in_any_order(hf):
    lock = hf.lock("a", reentrant=True)
    with lock:
        with lock as inner:
            inner.release()
            lock.acquire()  # a new acquisition, which neither block releases
    assert inner.valid
    lock.release()
    assert not hf.locks.inspect("a").held


def test_a_lock_acquired_twice_is_handed_over_once(hf):
    lock = hf.lock("a", reentrant=True)
    with lock, lock as lease:
        successor = lease.transfer("bob")
    assert successor.valid
    successor.release()
    assert not hf.locks.inspect("a").held


def test_release_by_the_lock_object_releases_the_lease_of_this_thread(hf):
    lock = hf.lock("a")
    lock.acquire()
    assert isinstance(run_in_thread(lock.release), NotHeld)
    lock.release()
    assert not hf.locks.inspect("a").held
    with pytest.raises(NotHeld):
        lock.release()


def test_a_lock_object_keeps_no_reference_to_a_released_lease(hf):
    lock = hf.lock("a")
    for _ in range(20):
        lock.acquire().release()
    with pytest.raises(NotHeld):
        lock.release()
    assert all(len(mine) <= 1 for mine in lock._acquired.values())


def test_leaving_the_block_of_a_released_lease_does_not_release_a_later_lease(hf):
    lock = hf.lock("a")
    with lock as first:
        first.release()
        second = lock.acquire()
    assert second.valid, "the block gave back its own lease, and that was over"
    lock.release()
    assert not second.valid


def test_releasing_a_lease_twice_is_harmless(hf):
    lease = hf.lock("a").acquire()
    lease.release()
    lease.release()
    assert not hf.locks.inspect("a").held


def test_a_forced_release_is_recorded_and_the_holder_is_notified(hf, other):
    notified = []
    with pytest.raises(LeaseLost) as caught, hf.lock("a", ttl=1, on_lost=notified.append) as lease:
        put_out = other.locks.force_release("a", reason="stuck since noon")
        assert [holder.token for holder in put_out] == [lease.token]
        assert put_out[0].age > 0
        eventually(lease.lost.is_set)
        assert lease.lost.wait(5)
        with pytest.raises(LeaseLost):
            lease.check()
    eventually(lambda: notified == [lease])
    assert caught.value.token == lease.token
    info = hf.locks.inspect("a")
    assert info.forced is not None
    assert info.forced.reason == "stuck since noon"
    assert "other" in info.forced.by
    with hf.lock("a") as again:
        assert again.token > lease.token, "the fence stays"


def test_leaving_the_block_raises_when_the_lease_was_lost_and_keeps_the_error_as_context(hf):
    with pytest.raises(LeaseLost) as caught, hf.lock("a"):
        hf.locks.force_release("a", reason="test")
        raise RuntimeError("the body's own")
    assert isinstance(caught.value.__context__, RuntimeError)


def test_an_interrupt_in_the_body_is_not_replaced(hf):
    with pytest.raises(KeyboardInterrupt), hf.lock("a"):
        hf.locks.force_release("a", reason="test")
        raise KeyboardInterrupt


def test_a_forced_release_needs_a_reason(hf):
    with pytest.raises(InvalidOption, match="reason"):
        hf.locks.force_release("a", reason="  ")


def test_a_lease_is_renewed_beyond_its_ttl(hf):
    with hf.lock("a", ttl=2) as lease:
        first = lease.expires_at
        eventually(lambda: lease.expires_at > first + timedelta(seconds=2))
        assert lease.valid


def test_renew_prolongs_at_once(hf):
    with pytest.raises(LeaseLost), hf.lock("a", ttl=30) as lease:
        before = lease.expires_at
        lease.renew()
        assert lease.expires_at > before
        hf.locks.force_release("a", reason="test")
        with pytest.raises(LeaseLost):
            lease.renew()
        with pytest.raises(LeaseLost):
            lease.check()


def test_transfer_hands_over_with_a_higher_token_and_no_other_holder_in_between(hf, other):
    lease = hf.lock("a", owner="alice").acquire()
    successor = lease.transfer("bob")
    assert successor.token > lease.token
    assert successor.owner == "bob"
    assert not lease.valid
    assert successor.valid
    assert [holder.owner for holder in other.locks.inspect("a").holders] == ["bob"]
    lease.release()
    assert successor.valid, "the old lease has nothing to release any more"
    successor.release()
    assert not hf.locks.inspect("a").held


def test_a_hold_is_kept_for_its_whole_window(url):
    with Client(url) as outlives:
        with Client(url) as client:
            lease = client.hold("reconciler", ttl=60, owner="alice")
            assert lease is not None
            assert lease.valid
            assert client.hold("reconciler", ttl=60) is None, "each call is a new owner"
            with pytest.raises(HoldNotReleasable):
                lease.release()
            with pytest.raises(HoldNotReleasable):
                lease.renew()
            with pytest.raises(HoldNotReleasable):
                lease.transfer("bob")
            assert lease.valid
            token = lease.token
        assert outlives.hold("reconciler", ttl=60) is None, "closing the client does not end it"
        outlives.locks.force_release("reconciler", reason="test")
        again = outlives.hold("reconciler", ttl=0.1)
        assert again is not None
        assert again.token > token
        assert again.lost.wait(10), "a hold ends by the clock"


def test_a_semaphore_has_at_most_as_many_holders_as_permits(hf):
    semaphore = hf.semaphore("api", permits=3)
    leases = [semaphore.acquire(wait=0) for _ in range(3)]
    assert semaphore.try_acquire() is None
    assert all(lease.floor <= leases[0].token for lease in leases)
    leases[1].release()
    leases.append(semaphore.acquire(wait=5))
    assert leases[-1].floor == leases[0].token
    for lease in leases:
        lease.release()


def test_weights_share_the_permits(hf):
    with hf.semaphore("api", permits=5, weight=4):
        assert hf.semaphore("api", permits=5, weight=2).try_acquire() is None
        lease = hf.semaphore("api", permits=5, weight=1).try_acquire()
        assert lease is not None
        lease.release()
    with pytest.raises(ValueError, match="could never be granted"):
        hf.semaphore("api", permits=2, weight=3)


def test_a_change_of_permits_is_reported_and_removes_waiters_that_can_never_fit(hf, other):
    seen = []
    other.events.subscribe(lambda event: seen.append((event.name, event.fields)))
    with hf.semaphore("api", permits=4, weight=3):
        thread, result = in_thread(lambda: hf.semaphore("api", permits=4, weight=4).acquire(wait=20))
        eventually(lambda: hf.locks.inspect("api").waiters)
        assert other.semaphore("api", permits=2).try_acquire() is None
        thread.join(20)
        assert isinstance(result[0], NeverFits)
    lease = other.semaphore("api", permits=5).acquire()
    changes = [fields for name, fields in seen if name == "permits_changed"]
    assert changes == [{"key": "api", "before": 4, "after": 2}, {"key": "api", "before": 2, "after": 5}]
    lease.release()


def test_another_kind_on_the_same_key_is_refused_while_it_is_in_use(hf, other):
    with hf.lock("a"), pytest.raises(KindMismatch) as caught:
        other.semaphore("a", permits=2).acquire(wait=0)
    assert (caught.value.wanted, caught.value.found) == ("semaphore", "mutex")
    with other.semaphore("a", permits=2):
        pass


def test_a_listing_shows_holders_and_waiters_in_order_of_keys(hf, other):
    with hf.lock("b:2"), hf.lock("b:1"), hf.lock("c"):
        assert [info.key for info in other.locks.list("b:")] == ["b:1", "b:2"]
        assert [info.key for info in other.locks.list()] == ["b:1", "b:2", "c"]
    assert other.locks.list() == []


def test_closing_a_client_releases_all_its_leases(url):
    with Client(url) as other:
        client = Client(url)
        lease = client.lock("a").acquire()
        client.close()
        client.close()
        assert not other.locks.inspect("a").held
        assert not lease.valid
        assert lease.lost.is_set(), "code that still uses the lease is notified"
        with pytest.raises(ClientClosed):
            client.lock("a").acquire()


def test_closing_a_client_within_a_block_raises_an_error_in_the_block(url):
    inside, closed = threading.Event(), threading.Event()
    client = Client(url)

    def work():
        with client.lock("a"):
            inside.set()
            closed.wait(20)

    thread, result = in_thread(work)
    assert inside.wait(10)
    client.close()
    closed.set()
    thread.join(10)
    assert isinstance(result[0], LeaseLost)
    assert "closed" in result[0].reason


def test_a_closed_client_cannot_be_entered(url):
    client = Client(url)
    client.close()
    with pytest.raises(ClientClosed), client:
        raise AssertionError

    async def enter():
        closed = AsyncClient(url)
        await closed.close()
        async with closed:
            raise AssertionError

    with pytest.raises(ClientClosed):
        asyncio.run(enter())


def test_a_grant_that_arrives_while_its_client_closes_is_released(url, monkeypatch):
    """Granted, and not yet known to the heartbeat thread: it would not be renewed, and its holder not notified."""
    client = Client(url)
    keep = Heartbeats.keep

    def close_first(self, kept):
        monkeypatch.setattr(Heartbeats, "keep", keep)
        run_in_thread(client.close)
        keep(self, kept)

    monkeypatch.setattr(Heartbeats, "keep", close_first)
    with Client(url) as other:
        with pytest.raises(ClientClosed):
            client.lock("a").acquire()
        assert not other.locks.inspect("a").held
        with other.lock("a", wait=0):
            pass


def test_a_caller_that_begins_to_wait_after_its_client_has_closed_opens_no_connection(url):
    client = Client(url)
    runtime = client.runtime
    client.close()
    with pytest.raises(ClientClosed):
        runtime.expect("x", eager=True)
    with pytest.raises(ClientClosed):
        runtime.listen(Acquire(key="a", id="x", label=Label(name="x"), ttl=1))


def test_every_waiter_from_before_the_watch_was_active_checks_once_more(hf):
    """Not only the waiter that opened the watch: the hint for another one may have been sent just before, and be
    lost."""
    runtime = hf.runtime

    def ask(id):
        return runtime.listen(Acquire(key="a", id=id, label=Label(name="x"), ttl=1))

    flags = [ask("first"), ask("second")]
    assert runtime.expect("first", eager=False)
    flags.append(ask("later"))
    assert [runtime.expect(id, eager=False) for id in ("first", "second", "later")] == [False, True, False]
    assert not runtime.expect("second", eager=False)
    for id in ("first", "second", "later"):
        runtime.forget(id)
    del flags


def test_waiting_for_a_loss_ends_when_the_lease_is_released(hf):
    lease = hf.lock("a").acquire()
    thread, result = in_thread(lease.lost.wait)
    eventually(lambda: lease._held.over._watchers)
    lease.release()
    thread.join(10)
    assert result == [False]


def test_a_caller_of_a_mutex_that_was_not_notified_checks_by_itself(hf, monkeypatch):
    """The caller that left was interrupted just before it could notify the next one."""
    monkeypatch.setattr(taking, "RECHECK_SECONDS", 0.05)
    monkeypatch.setattr(taking, "LONG_WAIT", 0.01)
    seen = []
    hf.events.subscribe(lambda event: seen.append(event.name))
    lease = hf.lock("a").acquire()
    thread, result = in_thread(lambda: hf.lock("a", wait=60).acquire())
    eventually(lambda: "wait_long" in seen)
    with monkeypatch.context() as patch:
        patch.setattr(Notifier, "set", lambda self: None)
        lease.release()
    thread.join(20)
    assert result
    result[0].release()


def test_a_garbage_collected_client_is_closed_by_another_thread_than_its_finalisers(url, monkeypatch):
    """A finaliser may run at any point, also while a thread is being started."""
    client = Client(url)
    client.locks.inspect("a")
    started = []
    start = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", lambda self: (started.append(self.name), start(self))[1])
    with pytest.warns(ResourceWarning, match="was not closed"):
        del client
    assert started == []
    with Client(url):  # no thread of the other client ran, so the next caller does it
        eventually(lambda: "holdfast-closer" in started)


def test_a_block_may_be_left_by_another_thread(hf):
    """A generator that another thread finishes, an exit stack that another thread closes."""

    def inside():
        with hf.lock("a"):
            yield

    work = inside()
    next(work)
    assert run_in_thread(lambda: list(work)) == []
    assert not hf.locks.inspect("a").held


def test_closing_a_client_wakes_its_waiters_and_removes_them_from_the_queue(url):
    with Client(url) as holder, holder.semaphore("s", permits=1):
        client = Client(url)
        thread, result = in_thread(lambda: client.semaphore("s", permits=1).acquire())
        eventually(lambda: holder.locks.inspect("s").waiters)
        client.close()
        thread.join(20)
        assert isinstance(result[0], ClientClosed)
        assert not holder.locks.inspect("s").waiters


def test_namespaces_do_not_see_each_other(url):
    with Client(url, namespace="one") as one, Client(url, namespace="two") as two:
        with one.lock("a"), two.lock("a", wait=0):
            assert [info.key for info in one.locks.list()] == ["a"]


def test_a_garbage_collected_lease_is_no_longer_renewed_and_an_event_reports_it(hf, other):
    seen = []
    hf.events.subscribe(lambda event: seen.append(event.name))
    with pytest.warns(ResourceWarning, match="dropped"):
        hf.lock("a", ttl=2).acquire()
        gc.collect()
    eventually(lambda: "lease_neglected" in seen)  # with the next heartbeat, unless it had expired before
    eventually(lambda: "lease_lost" in seen)
    with other.lock("a", wait=10):
        pass


def test_a_lease_whose_thread_has_ended_is_no_longer_renewed(hf):
    seen = []
    hf.events.subscribe(lambda event: seen.append(event.fields.get("reason", "")))
    lease = run_in_thread(lambda: hf.lock("a", ttl=0.3).acquire())
    eventually(lambda: not lease.valid)
    eventually(lambda: any("thread" in reason for reason in seen))
    assert lease.lost.is_set()


def test_the_next_local_caller_continues_when_a_lease_is_lost(hf, monkeypatch):
    monkeypatch.setattr(taking, "RECHECK_SECONDS", 60.0)  # not because of a periodic check
    lease = run_in_thread(lambda: hf.lock("a", ttl=0.3).acquire())
    _, result = in_thread(lambda: hf.lock("a").acquire())
    eventually(lambda: result)
    assert result[0].token > lease.token
    result[0].release()


@pytest.mark.parametrize("key", ["", "a\nb", "x" * 513, "é" * 257, "\ud800", 7])
def test_bad_keys_are_refused_with_a_reason(hf, key):
    with pytest.raises(InvalidKey):
        hf.lock(key)
    with pytest.raises(ValueError):
        hf.hold(key, ttl=5)
    with pytest.raises(InvalidKey):
        hf.locks.inspect(key)


@pytest.mark.parametrize(
    "options",
    [
        {"ttl": 0.01},
        {"ttl": "soon"},
        {"ttl": timedelta(days=400)},
        {"wait": -1},
        {"ttl": 5, "renew_every": 5},
        {"ttl": 2, "renew_every": 1.99},
        {"on_lost": 5},
        {"ttl": 10**400},
        {"lock_delay": 1e300},
        {"max_renew_failures": 0},
        {"on_busy": "shrug"},
        {"owner": ""},
    ],
)
def test_bad_options_are_refused_where_they_are_given(hf, options):
    with pytest.raises(InvalidOption if "owner" not in options else ValueError):
        hf.lock("a", **options)


def test_durations_are_seconds_timedeltas_or_text(hf):
    for ttl in (5, 5.0, timedelta(seconds=5), "5 seconds", "5s"):
        with hf.lock("a", ttl=ttl) as lease:
            assert 4 < lease.remaining() <= 5
    with pytest.raises(InvalidDuration):
        hf.lock("a").acquire(wait="whenever")


def test_lock_delay_keeps_the_key_closed_after_an_abnormal_loss(hf, other):
    with pytest.warns(ResourceWarning, match="dropped"):
        hf.lock("a", ttl=0.2, lock_delay=60).acquire()
        gc.collect()
    eventually(lambda: not other.locks.inspect("a").held)
    assert other.lock("a").try_acquire() is None, "closed, although nobody holds it"


def test_a_caller_notified_of_a_loss_may_acquire_the_lock_again_at_once(url):
    """The waiting thread is notified before the local queue is updated; its acquire must not be refused."""
    with Client(url) as client:
        lock = client.lock("k", ttl=30)
        lease = lock.acquire()
        again = []
        lease._held._listeners.insert(0, lambda _held: again.append(lock.try_acquire()))
        client.locks.force_release("k", reason="test")
        with pytest.raises(LeaseLost):
            lease.renew()
        (second,) = again
        assert second is not None
        assert second.token > lease.token
        second.release()
