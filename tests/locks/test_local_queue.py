"""The local queue of semaphores and read-write locks: many callers of one process, a few waiters in the store."""

from __future__ import annotations

import asyncio
import random
import threading
from contextlib import AsyncExitStack, ExitStack

import pytest
from many_callers import callers, pass_through, queued_here, waiters
from sync_async import on_a_loop
from waiting import PATIENCE, eventually_async

from holdfast import AsyncClient, Client, LockTimeout
from holdfast.commands import Acquire
from holdfast.locks import acquire as taking
from holdfast.locks.local_queue import A_FEW
from holdfast.locks.process_queue import queues

PERMITS = 3


@pytest.fixture(autouse=True)
def _no_periodic_checks(monkeypatch):
    """Callers must be notified. Periodic checks would hide a missing notification."""
    monkeypatch.setattr(taking, "RECHECK_SECONDS", 10 * PATIENCE)


# -- how many wait in the store ---------------------------------------------------------------------


@on_a_loop
async def test_500_tasks_share_a_semaphore_of_3_and_few_of_them_wait_in_the_store(url):
    async with AsyncClient(url) as hf, AsyncClient(url) as watcher:
        inside, most_inside, most_waiters, tokens = 0, 0, 0, {}

        async def work(number):
            nonlocal inside, most_inside
            async with hf.semaphore("s", permits=PERMITS) as lease:
                inside += 1
                most_inside = max(most_inside, inside)
                tokens[number] = lease.token
                await asyncio.sleep(0)
                inside -= 1

        async with AsyncExitStack() as stack:
            for _ in range(PERMITS):
                await stack.enter_async_context(hf.semaphore("s", permits=PERMITS))
            tasks = [asyncio.create_task(work(number)) for number in range(500)]
            await eventually_async(lambda: queued_here(hf, "s") == 500 - A_FEW)
            await eventually_async(lambda: waiters(watcher, "s", A_FEW))
        while not all(task.done() for task in tasks):
            info = await watcher.locks.inspect("s")
            most_waiters = max(most_waiters, len(info.waiters))
            assert len(info.holders) <= PERMITS
        await asyncio.gather(*tasks)  # no caller failed
        assert most_inside <= PERMITS
        assert most_waiters <= PERMITS + A_FEW
        assert [tokens[number] for number in range(500)] == sorted(tokens.values()), "in order of arrival"
        assert len(queues) == 0


@on_a_loop
async def test_a_caller_sends_one_command_to_queue_and_one_to_confirm_its_grant(url, plan):
    """A caller in the local queue does not poll the store."""
    async with AsyncClient(url) as hf:
        lease = await hf.semaphore("s", permits=1).acquire()
        tasks = [asyncio.create_task(pass_through(hf)) for _ in range(30)]
        await eventually_async(lambda: queued_here(hf, "s") == 30 - A_FEW)
        await lease.release()
        await asyncio.gather(*tasks)
    assert plan.count(Acquire) <= 1 + 2 * 30 + 3 * A_FEW, "the first few look again when hints begin to flow"


def test_threads_share_a_semaphore(url):
    inside, most, lock = [], [], threading.Lock()
    with Client(url) as hf:

        def work(number):
            with hf.semaphore("s", permits=PERMITS, wait=60):
                with lock:
                    inside.append(number)
                    most.append(len(inside))
                with lock:
                    inside.remove(number)

        with callers(40, work):
            pass
    assert len(most) == 40
    assert max(most) <= PERMITS
    assert len(queues) == 0


# -- order ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("permits", [1, 6])
@on_a_loop
async def test_callers_of_one_loop_are_served_in_the_order_of_their_calls_newcomers_included(url, permits):
    async with AsyncClient(url) as hf:
        chance = random.Random(permits)
        asked, got = [], []

        async def work(number):
            for turn in range(20):
                for _ in range(chance.randrange(12)):
                    await asyncio.sleep(0)
                asked.append((number, turn))
                async with hf.semaphore("s", permits=permits) as lease:
                    got.append((lease.token, (number, turn)))

        await asyncio.gather(*(work(number) for number in range(permits + A_FEW + 1)))
        assert [who for _, who in sorted(got)] == asked


@on_a_loop
async def test_a_heavy_caller_is_not_overtaken_in_its_process(url):
    async with AsyncClient(url) as hf:
        order = []

        async def take(name, weight):
            async with hf.semaphore("s", permits=4, weight=weight):
                order.append(name)

        async with hf.semaphore("s", permits=4, weight=4):
            names = [f"light {number}" for number in range(10)]
            tasks = [asyncio.create_task(take(name, 1)) for name in names]
            tasks.append(asyncio.create_task(take("heavy", 4)))
            tasks += [asyncio.create_task(take(f"later {number}", 1)) for number in range(10)]
            await eventually_async(lambda: queued_here(hf, "s") == 21 - A_FEW)
        await asyncio.gather(*tasks)
        assert set(order[:10]) == set(names)
        assert order[10] == "heavy"


@on_a_loop
async def test_the_permits_are_never_exceeded_and_no_caller_starves(url):
    async with AsyncClient(url) as hf:
        inside, most = 0, 0

        async def work(weight):
            nonlocal inside, most
            async with hf.semaphore("s", permits=5, weight=weight):
                inside += weight
                most = max(most, inside)
                await asyncio.sleep(0)
                inside -= weight

        await asyncio.gather(*(work(1 + number % 5) for number in range(60)))
        assert most <= 5
        assert len(queues) == 0


@on_a_loop
async def test_a_writer_between_readers_of_its_process_is_not_overtaken(url):
    async with AsyncClient(url) as hf:
        order = []

        async def take(side, name):
            async with getattr(hf.rwlock("doc"), side)():
                order.append(name)

        async with hf.rwlock("doc").write():
            before = [f"before {number}" for number in range(8)]
            tasks = [asyncio.create_task(take("read", name)) for name in before]
            tasks.append(asyncio.create_task(take("write", "the writer")))
            tasks += [asyncio.create_task(take("read", f"after {number}")) for number in range(8)]
            await eventually_async(lambda: queued_here(hf, "doc", "rw") == 17 - A_FEW)
        await asyncio.gather(*tasks)
        assert set(order[:8]) == set(before)
        assert order[8] == "the writer"
        assert len(queues) == 0


@on_a_loop
async def test_300_readers_of_one_process_hold_the_lock_together(url):
    async with AsyncClient(url) as hf:
        inside = 0
        everyone = asyncio.Event()

        async def read():
            nonlocal inside
            async with hf.rwlock("doc").read():
                inside += 1
                if inside == 300:
                    everyone.set()
                await asyncio.wait_for(everyone.wait(), 3 * PATIENCE)

        async with hf.rwlock("doc").write():
            tasks = [asyncio.create_task(read()) for _ in range(300)]
            await eventually_async(lambda: queued_here(hf, "doc", "rw") == 300 - A_FEW)
            await eventually_async(lambda: waiters(hf, "doc", A_FEW))
        await asyncio.gather(*tasks)
        assert len(queues) == 0


@on_a_loop
async def test_readers_that_arrive_after_a_grant_wait_behind_a_writer_of_another_process(url, other_process):
    """The local queue grants nothing: a caller that leaves it sends a command to the store, where the writer was
    earlier."""
    async with AsyncClient(url) as hf:
        async with hf.rwlock("doc").write():
            order, tasks = [], []
            for number in range(20):
                begin(tasks, hf, "read", number, order)
            await eventually_async(lambda: waiters(hf, "doc", A_FEW))
            begin(tasks, other_process, "write", "the writer", order)
            await eventually_async(lambda: waiters(hf, "doc", A_FEW + 1))
        await asyncio.gather(*tasks)
        assert set(order[:A_FEW]) == set(range(A_FEW))
        assert order[A_FEW] == "the writer"


@on_a_loop
async def test_behind_a_writer_of_another_process_only_a_few_readers_wait_in_the_store(url, other_process):
    async with AsyncClient(url) as hf:
        async with other_process.rwlock("doc").write():
            order, tasks = [], []
            for number in range(50):
                begin(tasks, hf, "read", number, order)
            await eventually_async(lambda: queued_here(hf, "doc", "rw") == 50 - A_FEW)
            await eventually_async(lambda: waiters(hf, "doc", A_FEW))
        await asyncio.gather(*tasks)
        assert len(order) == 50


@on_a_loop
async def test_a_new_reader_does_not_overtake_a_writer_in_the_local_queue(url, other_process):
    """Readers of this process hold the lock, so more of them could go to the store; but the writer came before."""
    async with AsyncClient(url) as hf:
        order, tasks = [], []
        async with hf.rwlock("doc").read():
            begin(tasks, other_process, "write", "another process", order)
            await eventually_async(lambda: waiters(hf, "doc", 1))
            for number in range(A_FEW):
                begin(tasks, hf, "read", number, order)
            await eventually_async(lambda: waiters(hf, "doc", 1 + A_FEW))
            begin(tasks, hf, "write", "the writer", order)
            await eventually_async(lambda: queued_here(hf, "doc", "rw") == 1)
            begin(tasks, hf, "read", "newcomer", order)
            await asyncio.sleep(0)
        await asyncio.gather(*tasks)
        assert order[0] == "another process"
        assert order[-2:] == ["the writer", "newcomer"]


def begin(tasks, client, side, name, order):
    """Start a task that holds the lock for a moment and notes its name."""

    async def take():
        async with getattr(client.rwlock("doc"), side)():
            order.append(name)

    tasks.append(asyncio.create_task(take()))


@pytest.fixture
def other_process(url, monkeypatch):
    """An async client whose callers do not share the local queue of the others, as in another process."""
    client = AsyncClient(url)
    store = client.runtime.store
    monkeypatch.setattr(store, "identity", f"{store.identity} other_process")
    yield client
    client._shut()


# -- a task that holds several permits --------------------------------------------------------------


@on_a_loop
async def test_a_task_that_holds_a_permit_gets_another_although_other_callers_wait(url):
    async with AsyncClient(url) as hf:
        semaphore = hf.semaphore("s", permits=2)
        async with semaphore, asyncio.TaskGroup() as others:

            async def work():
                async with hf.semaphore("s", permits=2):
                    await asyncio.sleep(0)

            for _ in range(20):
                others.create_task(work())
            await asyncio.sleep(0)
            async with hf.semaphore("s", permits=2, wait=PATIENCE) as second:
                assert second.valid


def test_a_thread_can_acquire_and_release_every_permit(url):
    with Client(url) as hf, ExitStack() as stack:
        semaphore = hf.semaphore("s", permits=10, wait=PATIENCE)
        for _ in range(10):
            stack.enter_context(semaphore)
        assert semaphore.try_acquire() is None
        assert hf.locks.inspect("s").held


@on_a_loop
async def test_a_caller_that_raises_the_number_of_permits_does_not_make_others_wait_forever(url):
    async with AsyncClient(url) as hf:
        lease = await hf.semaphore("s", permits=1).acquire()
        tasks = [asyncio.create_task(pass_through(hf)) for _ in range(10)]
        await eventually_async(lambda: queued_here(hf, "s") == 10 - A_FEW)

        async def more():
            async with hf.semaphore("s", permits=5):
                pass

        tasks.append(asyncio.create_task(more()))
        await lease.release()
        await asyncio.gather(*tasks)
        assert len(queues) == 0


# -- try once ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["semaphore", "rwlock"])
@on_a_loop
async def test_callers_that_try_once_at_the_same_time_get_all_free_permits(url, kind):
    async with AsyncClient(url) as hf:

        async def attempt():
            lock = hf.semaphore("s", permits=30) if kind == "semaphore" else hf.rwlock("doc").read()
            return await lock.try_acquire()

        leases = await asyncio.gather(*(attempt() for _ in range(30)))
        assert None not in leases
        for lease in leases:
            await lease.release()
        assert len(queues) == 0


@on_a_loop
async def test_a_try_behind_waiting_callers_of_the_process_is_refused_without_a_command(url, plan):
    async with AsyncClient(url, name="me") as hf:
        async with hf.semaphore("s", permits=1, owner="alice"):
            tasks = [asyncio.create_task(pass_through(hf)) for _ in range(10)]
            await eventually_async(lambda: queued_here(hf, "s") == 10 - A_FEW)
            await eventually_async(lambda: waiters(hf, "s", A_FEW))
            asked = plan.count(Acquire)
            assert await hf.semaphore("s", permits=1).try_acquire() is None
            with pytest.raises(LockTimeout, match=r"held in this process by alice .* and 4 more callers") as caught:
                await hf.semaphore("s", permits=1).acquire(wait=0)
            assert plan.count(Acquire) == asked
            assert caught.value.holder.startswith("alice")
            assert caught.value.age >= 0
        await asyncio.gather(*tasks)
