"""A reply that is lost between the store and the caller changes no effect, whatever the command was."""

from __future__ import annotations

import asyncio
import threading

import pytest
from waiting import PATIENCE, eventually

from holdfast import AsyncClient, Client, LeaseLost, LockTimeout, StoreUnavailable
from holdfast.commands import (
    Abandon,
    Acquire,
    Cleanup,
    ForceRelease,
    Inspect,
    ListLocks,
    Release,
    Renew,
    Transfer,
)


@pytest.fixture
def hf(plan, url):
    with Client(url) as client:
        yield client


def test_lost_reply_of_an_acquire_the_caller_gets_its_own_grant(hf, plan):
    plan.lose_reply_of = Acquire
    with hf.lock("a", wait=5) as lease:
        info = hf.locks.inspect("a")
        assert [holder.token for holder in info.holders] == [lease.token]
        assert not info.waiters
    assert plan.lost == ["Acquire"]
    assert not hf.locks.inspect("a").held


def test_lost_reply_of_a_single_try_the_command_is_sent_again_before_it_returns(hf, plan):
    plan.lose_reply_of = Acquire
    lease = hf.lock("a").try_acquire()
    assert lease is not None
    assert plan.lost == ["Acquire"]
    assert [holder.token for holder in hf.locks.inspect("a").holders] == [lease.token]
    lease.release()


def test_lost_reply_of_a_release_the_lock_is_free(hf, plan):
    lease = hf.lock("a").acquire()
    plan.lose_reply_of = Release
    lease.release()
    assert plan.lost == ["Release"]
    assert not hf.locks.inspect("a").held
    assert not lease.lost.is_set()


def test_lost_reply_of_a_renewal_the_lease_is_kept(hf, plan):
    with hf.lock("a", ttl=3, renew_every=0.3) as lease:
        before = lease.expires_at
        plan.lose_reply_of = Renew
        eventually(lambda: plan.lost == ["Renew"])
        eventually(lambda: lease.expires_at > before)
        lease.check()


def test_lost_reply_of_an_explicit_renewal_the_command_is_sent_again(hf, plan):
    with hf.lock("a", ttl=60) as lease:
        plan.lose_reply_of = Renew
        before = lease.expires_at
        lease.renew()
        assert plan.lost == ["Renew"]
        assert lease.expires_at > before


def test_lost_reply_of_a_transfer_there_is_one_new_holder(hf, plan):
    lease = hf.lock("a").acquire()
    plan.lose_reply_of = Transfer
    successor = lease.transfer("bob")
    assert plan.lost == ["Transfer"]
    holders = hf.locks.inspect("a").holders
    assert [(holder.owner, holder.token) for holder in holders] == [("bob", successor.token)]
    successor.release()


def test_lost_reply_of_an_abandon_the_position_in_the_queue_is_removed(hf, plan, url):
    with hf.semaphore("s", permits=1):
        plan.lose_reply_of = Abandon
        with pytest.raises(LockTimeout):
            hf.semaphore("s", permits=1).acquire(wait=0.05)
        assert plan.lost == ["Abandon"]
        assert not hf.locks.inspect("s").waiters


def test_lost_reply_of_an_abandon_without_a_waiting_caller_the_command_is_sent_again(plan, url):
    async def main():
        async with AsyncClient(url) as hf, hf.semaphore("s", permits=1):
            task = asyncio.create_task(hf.semaphore("s", permits=1).acquire())
            while not (await hf.locks.inspect("s")).waiters:
                await asyncio.sleep(0.01)
            plan.refuse = Abandon
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert (await hf.locks.inspect("s")).waiters
            plan.refuse = None
            while (await hf.locks.inspect("s")).waiters:
                await asyncio.sleep(0.01)

    asyncio.run(asyncio.wait_for(main(), 30))
    assert plan.count(Abandon) >= 1


def test_lost_reply_of_a_forced_release_is_an_error_and_the_command_is_not_repeated(hf, plan):
    lease = hf.lock("a").acquire()
    plan.lose_reply_of = ForceRelease
    with pytest.raises(StoreUnavailable) as caught:
        hf.locks.force_release("a", reason="test")
    assert caught.value.ambiguous
    assert plan.count(ForceRelease) == 1
    assert not hf.locks.inspect("a").held
    with pytest.raises(LeaseLost):
        lease.release()


@pytest.mark.parametrize("kind", [Inspect, ListLocks, Cleanup])
def test_lost_reply_of_a_read_or_a_cleanup_the_command_is_sent_again(hf, plan, kind):
    plan.lose_reply_of = kind
    if kind is Inspect:
        assert hf.locks.inspect("a").holders == ()
    elif kind is ListLocks:
        assert hf.locks.list() == []
    else:
        assert hf.locks.cleanup() == 0
    assert plan.lost == [kind.__name__]


def test_a_store_that_never_responds_is_an_error_and_nothing_is_left(hf, plan):
    plan.refuse = Acquire
    with pytest.raises(StoreUnavailable) as caught:
        hf.lock("a").acquire(wait=0.3)
    assert caught.value.retryable
    assert not caught.value.ambiguous
    plan.refuse = None
    with hf.lock("a", wait=5):
        pass


def test_three_renewals_in_a_row_that_fail_lose_the_lease(hf, plan):
    seen = []
    hf.events.subscribe(lambda event: seen.append(event.name))
    lease = hf.lock("a", ttl=30, renew_every=0.1).acquire()
    plan.refuse = Renew
    assert lease.lost.wait(PATIENCE)
    assert "renewals in a row failed" in lease._held.reason
    assert seen.count("renewal_unknown") == 3
    plan.refuse = None
    hf.locks.force_release("a", reason="test")


def test_a_store_that_hangs_does_not_delay_the_notification_of_a_loss(hf, plan):
    notified, release = [], threading.Event()
    lease = hf.lock("a", ttl=0.5, on_lost=notified.append).acquire()
    plan.before = lambda commands: release.wait(20) if any(isinstance(c, Renew) for c in commands) else None
    try:
        eventually(lambda: notified)  # at its deadline, while the renewal is still in progress
        assert not release.is_set()
        assert lease.lost.is_set()
    finally:
        release.set()
