"""Locks in asynchronous code, on every store."""

from __future__ import annotations

import asyncio
import gc
import threading
import time
import weakref

import pytest
from waiting import eventually, eventually_async

from holdfast import AsyncClient, Client, LeaseLost, LockTimeout
from holdfast.commands import Abandon, Acquire
from holdfast.errors import ClientClosed, WouldDeadlock
from holdfast.locks import acquire as taking
from holdfast.locks.process_queue import queues


def run(coroutine):
    return asyncio.run(asyncio.wait_for(coroutine, 60))


def test_an_async_lock_yields_a_lease_and_is_free_afterwards(url):
    async def main():
        async with AsyncClient(url) as hf:
            async with hf.lock("a", owner="alice") as lease:
                assert lease.valid
                assert [holder.owner for holder in (await hf.locks.inspect("a")).holders] == ["alice"]
            assert not (await hf.locks.inspect("a")).held
            assert not lease.lost.is_set()

    run(main())


def test_tasks_exclude_each_other_and_are_granted_in_order(url):
    async def main():
        async with AsyncClient(url) as hf:
            inside, order = 0, []

            async def work(number):
                nonlocal inside
                async with hf.lock("a"):
                    inside += 1
                    assert inside == 1
                    order.append(number)
                    await asyncio.sleep(0)
                    inside -= 1

            await asyncio.gather(*(work(number) for number in range(30)))
            assert order == list(range(30))

    run(main())


def test_two_loops_in_two_threads_exclude_each_other(url):
    inside = threading.Lock()
    counted = []

    async def main():
        async with AsyncClient(url) as hf:
            for _ in range(20):
                async with hf.lock("a"):
                    assert inside.acquire(blocking=False)
                    await asyncio.sleep(0)
                    counted.append(1)
                    inside.release()

    with Client(url):  # keeps a shared memory store alive between the two
        threads = [threading.Thread(target=run, args=(main(),)) for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert len(counted) == 40


def test_one_async_client_serves_several_loops(url):
    client = AsyncClient(url)

    async def use():
        async with client.lock("a") as lease:
            return lease.token

    tokens = [run(use()) for _ in range(3)]
    assert tokens == sorted(set(tokens))
    run(client.close())


def test_the_same_task_gets_would_deadlock_and_another_task_waits(url):
    async def main():
        async with AsyncClient(url) as hf:
            async with hf.lock("a"):
                with pytest.raises(WouldDeadlock):
                    await hf.lock("a").acquire()
                other = asyncio.create_task(hf.lock("a").acquire(wait=0.05))
                with pytest.raises(LockTimeout):
                    await other
            lock = hf.lock("r", reentrant=True)
            async with lock as outer, lock as inner:
                assert outer is inner

    run(main())


def test_losing_the_lease_cancels_the_block_which_raises_lease_lost(url):
    async def main():
        async with AsyncClient(url) as hf:
            notified = []
            with pytest.raises(LeaseLost) as caught:
                async with hf.lock("a", ttl=0.6, on_lost=notified.append) as lease:
                    await hf.locks.force_release("a", reason="test")
                    await asyncio.sleep(60)
            assert isinstance(caught.value.__cause__, asyncio.CancelledError)
            assert asyncio.current_task().cancelling() == 0, "uncancelled, as asyncio.timeout does it"
            assert notified == [lease]
            assert await lease.lost.wait()

    run(main())


def test_on_lost_may_be_a_coroutine_function(url):
    async def main():
        async with AsyncClient(url) as hf:
            notified = asyncio.Event()

            async def on_lost(lease):
                notified.set()

            lease = await hf.lock("a", ttl=0.5, on_lost=on_lost).acquire()
            await hf.locks.force_release("a", reason="test")
            await asyncio.wait_for(notified.wait(), 20)
            assert lease.lost.is_set()

    run(main())


def test_an_outer_cancellation_stays_a_cancellation(url):
    async def main():
        async with AsyncClient(url) as hf:
            entered = asyncio.Event()

            async def work():
                async with hf.lock("a", ttl=0.6) as lease:
                    entered.set()
                    try:
                        await asyncio.sleep(60)
                    finally:
                        # the lease is lost, too, before the block is left
                        await hf.locks.force_release("a", reason="test")
                        with pytest.raises(asyncio.CancelledError):
                            await asyncio.sleep(60)
                        assert not lease.valid

            task = asyncio.create_task(work())
            await entered.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    run(main())


def test_a_task_that_has_left_the_block_is_never_cancelled(url):
    """The loss is detected at the very end of the block; the loop is notified when the task has left it."""

    async def main():
        async with AsyncClient(url) as hf:
            with pytest.raises(LeaseLost):
                async with hf.lock("a") as lease:
                    lease._held.lose("at the very end")
            await asyncio.sleep(0.05)
            assert asyncio.current_task().cancelling() == 0
            await hf.locks.force_release("a", reason="test")

    run(main())


def test_blocking_the_loop_for_three_ttls_does_not_lose_the_lease(url):
    async def main():
        async with AsyncClient(url) as hf, hf.lock("a", ttl=1.5) as lease:
            time.sleep(4.5)  # noqa: ASYNC251  (the point of the test)
            assert lease.valid
            lease.check()

    run(main())


def test_blocking_the_loop_longer_than_max_stall_loses_the_lease_with_an_error(url):
    async def main():
        async with AsyncClient(url) as hf:
            seen = []
            hf.events.subscribe(lambda event: seen.append((event.name, event.fields.get("reason", ""))))
            with pytest.raises(LeaseLost, match="blocked"):
                async with hf.lock("a", ttl=3, max_stall=1) as lease:
                    eventually(lambda: not lease.valid)  # blocks this loop until the lease is lost
                    await asyncio.sleep(60)
            names = [name for name, _ in seen]
            assert "lease_neglected" in names
            assert "lease_lost" in names

    run(main())


def test_a_waiter_that_times_out_leaves_nothing_behind(url):
    async def main():
        async with AsyncClient(url) as hf, AsyncClient(url) as other:
            async with hf.semaphore("s", permits=1):
                with pytest.raises(LockTimeout):
                    await other.semaphore("s", permits=1).acquire(wait=0.05)
                assert not (await hf.locks.inspect("s")).waiters

    run(main())


def test_a_waiter_that_is_cancelled_leaves_nothing_behind(url):
    async def main():
        async with AsyncClient(url) as hf, AsyncClient(url) as other:
            async with hf.semaphore("s", permits=1):
                task = asyncio.create_task(other.semaphore("s", permits=1).acquire())
                await eventually_async(lambda: _waiters(hf))
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                await eventually_async(lambda: _no_waiters(hf))

    async def _waiters(hf):
        return (await hf.locks.inspect("s")).waiters

    async def _no_waiters(hf):
        return not (await hf.locks.inspect("s")).waiters

    run(main())


def test_a_grant_is_released_when_its_caller_is_cancelled_at_the_same_moment(url, plan):
    """The store has granted, the reply is on its way, and the caller is cancelled before it arrives."""

    async def main():
        async with AsyncClient(url) as hf:
            loop = asyncio.get_running_loop()
            task = asyncio.create_task(hf.lock("a").acquire())

            def cancel_when_granted(commands):
                if any(isinstance(command, Acquire) for command in commands):
                    loop.call_soon_threadsafe(task.cancel)

            plan.after = cancel_when_granted
            with pytest.raises(asyncio.CancelledError):
                await task
            plan.after = lambda _commands: None
            await eventually_async(lambda: plan.count(Abandon) == 1)
            async with hf.lock("a", wait=5):
                pass

    run(main())


def test_a_loop_that_ends_in_the_middle_of_an_acquire_leaves_nothing_behind(url, plan):
    with Client(url) as holder:
        client = AsyncClient(url)
        lease = holder.semaphore("s", permits=1).acquire()

        async def give_up():
            client._task = asyncio.ensure_future(client.semaphore("s", permits=1).acquire())
            await eventually_async(lambda: holder.locks.inspect("s").waiters)

        loop = asyncio.new_event_loop()
        loop.run_until_complete(give_up())
        loop.close()  # the task never ends: it is collected with its loop
        task = client._task
        task._log_destroy_pending = False
        del client._task, task
        # Its command may still be in progress; then a later collection finds it.
        eventually(lambda: (gc.collect(), plan.count(Abandon) == 1)[1])  # released, not only expired
        assert not holder.locks.inspect("s").waiters
        lease.release()
        run(client.close())


def give_up_in_the_local_queue(client, key):
    """A task that waits in the local queue while its loop is closed. It is not garbage-collected yet."""
    loop = asyncio.new_event_loop()
    task = loop.create_task(client.lock(key).acquire())
    task._log_destroy_pending = False
    address = (client.runtime.store.identity, key, "mutex")
    loop.run_until_complete(eventually_async(lambda: queues.waiting(address) == 1))
    loop.close()
    return task


def test_a_caller_whose_loop_closes_in_the_local_queue_does_not_block_the_queue(url, monkeypatch):
    """It sent no command, so no thread of its client had to run until now."""
    monkeypatch.setattr(taking, "RECHECK_SECONDS", 60.0)  # not because of a periodic check
    client = AsyncClient(url)
    with Client(url) as holder:
        lease = holder.lock("a").acquire()
        task = give_up_in_the_local_queue(client, "a")
        del task
        gc.collect()
        lease.release()
        behind = threading.Thread(target=lambda: holder.lock("a").acquire().release(), daemon=True)
        behind.start()
        eventually(lambda: not behind.is_alive())
    run(client.close())


def test_a_caller_whose_client_is_closed_before_its_loop_does_not_block_the_local_queue(url, monkeypatch):
    monkeypatch.setattr(taking, "RECHECK_SECONDS", 0.05)
    client = AsyncClient(url)
    with Client(url) as holder:
        lease = holder.lock("a").acquire()
        task = give_up_in_the_local_queue(client, "a")
        run(client.close())
        got = []
        behind = threading.Thread(target=lambda: got.append(holder.lock("a", wait=10).acquire()))
        behind.start()
        eventually(lambda: queues.waiting((holder.runtime.store.identity, "a", "mutex")) == 2)
        del task
        gc.collect()  # the heartbeat thread of that client has ended: a waiting caller does it
        eventually(lambda: queues.waiting((holder.runtime.store.identity, "a", "mutex")) == 1)
        lease.release()
        behind.join(20)
        assert got
        got[0].release()


def test_closing_a_client_wakes_its_callers_in_the_local_queue_of_a_mutex(url, monkeypatch):
    monkeypatch.setattr(taking, "RECHECK_SECONDS", 0.05)

    async def main():
        client = AsyncClient(url)
        with Client(url) as holder, holder.lock("a"):
            task = asyncio.create_task(client.lock("a").acquire())
            await eventually_async(lambda: queues.waiting((holder.runtime.store.identity, "a", "mutex")) == 1)
            await client.close()
            with pytest.raises(ClientClosed):
                await task

    run(main())


def test_a_release_whose_loop_closes_frees_the_local_queue_although_its_client_is_closed(url, plan):
    """The heartbeat thread has dropped the lease by then, and has ended."""
    client = AsyncClient(url)
    loop = asyncio.new_event_loop()
    lease = loop.run_until_complete(client.lock("a", ttl=1).acquire())
    flow = lease._release()
    next(flow)  # on its way to the store
    loop.close()
    run(client.close())
    flow.close()
    with Client(url) as other, other.lock("a", wait=40):
        assert not lease.valid


def test_the_client_does_not_prevent_the_collection_of_an_event_loop(url):
    client = AsyncClient(url)

    async def use():
        async with client.lock("a"):
            return weakref.ref(asyncio.get_running_loop())

    gone = run(use())
    eventually(lambda: (gc.collect(), gone() is None)[1])
    run(client.close())


def test_waiting_for_a_loss_ends_when_the_lease_is_released(url):
    async def main():
        async with AsyncClient(url) as hf:
            lease = await hf.lock("a").acquire()
            waiting = asyncio.create_task(lease.lost.wait())
            await asyncio.sleep(0)
            await lease.release()
            assert await waiting is False

    run(main())


def test_releasing_an_inner_reentrant_lease_keeps_the_lock_of_the_outer_block(url):
    async def main():
        async with AsyncClient(url) as hf:
            lock = hf.lock("a", reentrant=True)
            async with lock as outer:
                async with lock as inner:
                    await inner.release()
                assert outer.valid
                assert (await hf.locks.inspect("a")).held
            assert not (await hf.locks.inspect("a")).held

    run(main())


def test_a_lease_whose_loop_is_closed_is_no_longer_renewed(url):
    import warnings  # noqa: PLC0415

    client = AsyncClient(url)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        lease = run(client.lock("a", ttl=0.3).acquire())
        eventually(lambda: not lease.valid)
    assert lease.lost.is_set()
    run(client.close())


def test_renew_transfer_and_hold_are_awaitable(url):
    async def main():
        async with AsyncClient(url) as hf:
            lease = await hf.lock("a").acquire()
            before = lease.expires_at
            await lease.renew()
            assert lease.expires_at > before
            successor = await lease.transfer("bob")
            assert successor.token > lease.token
            await successor.release()
            lease = await hf.lock("a").try_acquire()
            assert lease is not None
            assert await hf.lock("a").try_acquire() is None
            assert await hf.hold("h", ttl=60) is not None
            assert await hf.hold("h", ttl=60) is None
            assert [info.key for info in await hf.locks.list()] == ["a", "h"]

    run(main())


def test_the_commands_of_a_hundred_tasks_are_sent_in_few_batches(url, plan):
    async def main():
        async with AsyncClient(url) as hf:

            async def work(number):
                for _ in range(10):
                    async with hf.lock(f"k:{number}"):
                        pass

            await asyncio.gather(*(work(number) for number in range(100)))
            assert plan.count(Acquire) == 1_000
            assert len(plan.batches) <= 200, "callers of one moment go out together"

    run(main())
