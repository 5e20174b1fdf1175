"""The read-write lock: many readers or one writer, in order of arrival."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from sync_async import on_a_loop
from waiting import eventually

from holdfast import AsyncClient, Client, LockTimeout
from holdfast.errors import KindMismatch, WouldDeadlock
from holdfast.locks.local_queue import A_FEW
from holdfast.locks.process_queue import queues


@pytest.fixture
def doc(hf):
    return hf.rwlock("doc:7", wait=0)


@pytest.fixture
def in_another_thread(mode, url):
    """Whether a caller in another thread can acquire the lock; the same thread would be refused."""
    with ThreadPoolExecutor(1) as pool, Client(url) as client:

        def attempt(side):
            def take():
                lease = getattr(client.rwlock("doc:7"), side)().try_acquire()
                if lease is not None:
                    lease.release()
                return lease is not None

            return pool.submit(take).result()

        yield attempt


def test_readers_share_the_lock_and_block_writers(doc, in_another_thread, mode):
    with mode.block(doc.read()):
        assert in_another_thread("read")
        assert not in_another_thread("write")
    assert in_another_thread("write")


def test_a_writer_is_alone(doc, in_another_thread, mode):
    with mode.block(doc.write()):
        assert not in_another_thread("read")
        assert not in_another_thread("write")
    assert in_another_thread("read")


SIDES = [(first, second) for first in ("read", "write") for second in ("read", "write")]


@pytest.mark.parametrize(("first", "second"), SIDES)
def test_a_thread_that_holds_the_lock_cannot_acquire_it_again_on_either_side(url, first, second):
    with Client(url) as client:
        again = getattr(client.rwlock("doc:7"), second)()
        with getattr(client.rwlock("doc:7"), first)():
            with pytest.raises(WouldDeadlock, match="already holds 'doc:7'"):
                again.acquire()
            assert again.try_acquire() is None
        again.acquire().release()


@pytest.mark.parametrize(("first", "second"), SIDES)
@on_a_loop
async def test_a_task_that_holds_the_lock_cannot_acquire_it_again_on_either_side(url, first, second):
    async with AsyncClient(url) as client:
        again = getattr(client.rwlock("doc:7"), second)()
        async with getattr(client.rwlock("doc:7"), first)():
            with pytest.raises(WouldDeadlock, match="already holds 'doc:7'"):
                await again.acquire()
        await (await again.acquire()).release()


def test_tokens_rise_and_a_readers_floor_is_that_of_the_oldest_reader(url):
    with Client(url) as client:
        got = []

        def read():
            got.append(client.rwlock("doc:7").read().acquire())

        for _ in range(2):
            thread = threading.Thread(target=read)
            thread.start()
            thread.join()
        first, second = got
        assert second.token > first.token
        assert second.floor == first.token
        first.release()
        second.release()
        with client.rwlock("doc:7").write() as writer:
            assert writer.token > second.token
            assert writer.floor == writer.token


@on_a_loop
async def test_a_waiting_writer_is_granted_before_later_readers(url):
    """Writers do not starve: a reader that arrives after a waiting writer waits behind it."""
    async with AsyncClient(url) as client:
        order = []

        async def take(side, name):
            async with getattr(client.rwlock("doc:7"), side)():
                order.append(name)

        async def queued(count):
            while len((await client.locks.inspect("doc:7")).waiters) < count:
                await asyncio.sleep(0.005)

        async with client.rwlock("doc:7").read():
            tasks = []
            for count, (side, name) in enumerate([("write", "w1"), ("read", "r2"), ("read", "r3"), ("write", "w4")], 1):
                tasks.append(asyncio.create_task(take(side, name)))
                await queued(count)
            assert order == []
        await asyncio.gather(*tasks)
        assert order[0] == "w1"
        assert set(order[1:3]) == {"r2", "r3"}
        assert order[3] == "w4"


@on_a_loop
async def test_consecutive_waiting_readers_are_granted_together(url):
    async with AsyncClient(url) as client:
        inside, most = 0, 0
        everyone = asyncio.Event()

        async def read():
            nonlocal inside, most
            async with client.rwlock("doc:7").read():
                inside += 1
                most = max(most, inside)
                if inside == 10:
                    everyone.set()
                await asyncio.wait_for(everyone.wait(), 20)
                inside -= 1

        async with client.rwlock("doc:7").write():
            tasks = [asyncio.create_task(read()) for _ in range(10)]
            while queues.waiting((client.runtime.store.identity, "doc:7", "rw")) < 10 - A_FEW:
                await asyncio.sleep(0.005)
        await asyncio.gather(*tasks)
        assert most == 10


def test_both_sides_work_as_a_decorator(url):
    with Client(url) as client:
        seen = []

        @client.rwlock("doc:{number}", wait=0).read()
        def read(number):
            seen.append([info.key for info in client.locks.list()])
            return number

        assert read(7) == 7
        assert seen == [["doc:7"]]


@on_a_loop
async def test_both_sides_work_as_a_decorator_of_an_async_function(url):
    async with AsyncClient(url) as client:

        @client.rwlock("doc:{number}", wait=0).write()
        async def write(number):
            with pytest.raises(WouldDeadlock):
                await client.rwlock("doc:7").read().acquire()
            return [info.key for info in await client.locks.list()]

        assert await write(7) == ["doc:7"]


def test_a_timeout_names_the_holders(url):
    with Client(url, name="the reader") as client, Client(url) as other:
        reader = client.rwlock("doc:7").read().acquire()
        caught = []

        def write():
            try:
                other.rwlock("doc:7").write().acquire(wait=0)
            except LockTimeout as error:
                caught.append(error)

        thread = threading.Thread(target=write)
        thread.start()
        thread.join()
        assert "the reader" in str(caught[0])
        reader.release()


def test_a_key_that_is_a_plain_lock_is_not_a_read_write_lock(hf, doc, mode):
    with mode.block(hf.lock("doc:7")), pytest.raises(KindMismatch), mode.block(doc.read()):
        raise AssertionError


def test_an_expired_writer_does_not_block_readers(url):
    with Client(url) as dying, Client(url) as client:
        lease = dying.rwlock("doc:7", ttl=0.3).write().acquire()
        (renewal,) = dying.runtime.heartbeats._renewals.values()
        dying.runtime.heartbeats.drop(renewal.held)  # as if its process had crashed: it is not renewed

        def read():
            lease = client.rwlock("doc:7").read().acquire(wait=20)
            lease.release()

        reader = threading.Thread(target=read)
        reader.start()
        eventually(lambda: not reader.is_alive())
        renewal.held.end()
        assert not lease.valid
