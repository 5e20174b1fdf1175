"""What counts as one caller: a task, or otherwise a thread in one context. Requests that share a thread are different
callers."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context

import pytest

from holdfast import AsyncClient, Client, LockTimeout
from holdfast.errors import WouldDeadlock


@pytest.fixture
def thread():
    """A pool of one thread, as in a web server: every request runs in its own context."""
    with ThreadPoolExecutor(1) as pool:
        yield lambda request: pool.submit(copy_context().run, request).result()


@pytest.mark.parametrize("reentrant", [True, False])
def test_two_requests_on_one_thread_are_two_callers(url, thread, reentrant):
    with Client(url) as hf:
        lock = hf.lock("a", reentrant=reentrant)
        lease = thread(lock.acquire)
        with pytest.raises(LockTimeout):
            thread(lambda: hf.lock("a", reentrant=reentrant).acquire(wait=0))
        lease.release()
        thread(lock.acquire).release()


def test_two_requests_on_one_thread_are_two_callers_of_a_read_write_lock(url, thread):
    with Client(url) as hf:
        first = thread(hf.rwlock("doc").read().acquire)
        second = thread(hf.rwlock("doc").read().acquire)
        with pytest.raises(LockTimeout):
            thread(lambda: hf.rwlock("doc").write().acquire(wait=0))
        second.release()
        first.release()


def test_one_request_is_one_caller(url, thread):
    def request():
        with hf.lock("a") as outer:
            with pytest.raises(WouldDeadlock):
                hf.lock("a").acquire()
            with pytest.raises(WouldDeadlock):  # a context within the context is the same caller
                copy_context().run(hf.lock("a").acquire)
            assert outer.valid
        with hf.lock("r", reentrant=True) as outer, hf.lock("r", reentrant=True) as inner:
            assert inner is outer
        with hf.rwlock("doc").read(), pytest.raises(WouldDeadlock):
            hf.rwlock("doc").write().acquire()
        return "done"

    with Client(url) as hf:
        assert thread(request) == "done"


def test_a_lock_of_the_main_thread_does_not_make_two_requests_one_caller(url, thread):
    """The contexts of both requests are copies of a context that holds a lock."""
    with Client(url) as hf, hf.lock("at the start"):
        lease = thread(hf.lock("a").acquire)
        with pytest.raises(LockTimeout):
            thread(lambda: hf.lock("a", reentrant=True).acquire(wait=0))
        lease.release()


def test_a_lock_of_the_pool_thread_does_not_make_its_requests_one_caller(url):
    with Client(url) as hf, ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: hf.lock("before").acquire().release()).result()
        lease = pool.submit(lambda: copy_context().run(hf.lock("a").acquire)).result()
        with pytest.raises(LockTimeout):
            pool.submit(lambda: copy_context().run(hf.lock("a", reentrant=True).acquire, 0)).result()
        lease.release()


def test_a_thread_that_inherits_the_context_is_another_caller(url):
    """asyncio.to_thread, and tasks that a task starts: two of them must not hold the lock together."""

    def sibling():
        with pytest.raises(LockTimeout):
            hf.lock("a", reentrant=True).acquire(wait=0)
        return "kept out"

    with Client(url) as hf, hf.lock("a", reentrant=True), ThreadPoolExecutor(1) as pool:
        assert pool.submit(copy_context().run, sibling).result() == "kept out"


def test_a_task_that_inherits_the_context_is_another_caller(url):
    async def sibling(hf):
        with pytest.raises(LockTimeout):
            await hf.lock("a", reentrant=True).acquire(wait=0)
        return "kept out"

    async def main():
        async with AsyncClient(url) as hf, hf.lock("a", reentrant=True):
            assert await asyncio.gather(asyncio.create_task(sibling(hf)), sibling(hf)) == ["kept out"] * 2

    asyncio.run(main())
