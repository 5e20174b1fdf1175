"""Leaving the local queue: by cancellation, timeout or interrupt, with a blocked or closed event loop, after a fork."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from contextlib import ExitStack, suppress

import pytest
from many_callers import callers, pass_through, queued_here, waiters
from sync_async import on_a_loop
from waiting import PATIENCE, eventually, eventually_async

from holdfast import AsyncClient, Client, LockTimeout
from holdfast.commands import Inspect
from holdfast.errors import ClientClosed
from holdfast.locks import acquire as taking
from holdfast.locks.local_queue import A_FEW
from holdfast.locks.process_queue import queues


@pytest.fixture(autouse=True)
def _no_periodic_checks(monkeypatch):
    """Callers must be notified. Periodic checks would hide a missing notification."""
    monkeypatch.setattr(taking, "RECHECK_SECONDS", 10 * PATIENCE)


# -- leaving the queue ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["semaphore", "rw"])
@on_a_loop
async def test_a_caller_cancelled_or_timed_out_in_the_local_queue_leaves_nothing_behind(url, kind):
    async with AsyncClient(url) as hf:
        lock = hf.semaphore("s", permits=1) if kind == "semaphore" else hf.rwlock("s").write()

        async with lock:
            cancelled = [asyncio.create_task(lock.acquire()) for _ in range(10)]
            late = [asyncio.create_task(lock.acquire(wait=0.2)) for _ in range(10)]
            await eventually_async(lambda: queued_here(hf, "s", kind) == 20 - A_FEW)
            for task in cancelled:
                task.cancel()
            errors = await asyncio.gather(*cancelled, *late, return_exceptions=True)
            assert {type(error) for error in errors[:10]} == {asyncio.CancelledError}
            assert {type(error) for error in errors[10:]} == {LockTimeout}
            assert "at position 16 in the queue of its process" in str(errors[-1])
            assert errors[-1].position == 15
            assert queued_here(hf, "s", kind) == 0
        await eventually_async(lambda: waiters(hf, "s", 0))
        assert len(queues) == 0
        async with lock:
            pass


def test_closing_a_client_wakes_its_callers_in_the_local_queue_of_a_semaphore(url, monkeypatch):
    monkeypatch.setattr(taking, "RECHECK_SECONDS", 0.05)
    errors = []
    with Client(url) as holder, holder.semaphore("s", permits=1):
        client = Client(url)

        def wait(_number):
            with pytest.raises(ClientClosed):
                client.semaphore("s", permits=1).acquire()
            errors.append("closed")

        with callers(A_FEW + 3, wait):
            eventually(lambda: queued_here(client, "s") == 3)
            client.close()
        assert len(errors) == A_FEW + 3
    assert len(queues) == 0


def test_a_caller_whose_loop_closes_in_the_local_queue_does_not_stop_the_others(url):
    client = AsyncClient(url)
    with Client(url) as holder:
        lease = holder.semaphore("s", permits=1).acquire()
        loop = asyncio.new_event_loop()
        tasks = [loop.create_task(client.semaphore("s", permits=1).acquire()) for _ in range(A_FEW + 3)]
        for task in tasks:
            task._log_destroy_pending = False
        loop.run_until_complete(eventually_async(lambda: queued_here(client, "s") == 3))
        loop.close()
        del task, tasks
        address = (client.runtime.store.identity, "s", "semaphore")
        # The commands of some may still be in progress; then a later collection finds them.
        eventually(lambda: (gc.collect(), not queued_here(client, "s") and len(queues.blockers(address)) == 1)[1])
        lease.release()
        with holder.semaphore("s", permits=1, wait=PATIENCE):
            pass
    asyncio.run(client.close())


def test_a_caller_that_was_not_notified_checks_by_itself(url, monkeypatch):
    """The caller that left was interrupted just before it could notify the next one."""
    monkeypatch.setattr(taking, "RECHECK_SECONDS", 0.05)
    served = []
    with Client(url) as hf:
        lease = hf.rwlock("doc").write().acquire()

        def read(number):
            with hf.rwlock("doc").read():
                served.append(number)

        with callers(A_FEW + 3, read):
            eventually(lambda: queued_here(hf, "doc", "rw") == 3)
            with monkeypatch.context() as patch:
                patch.setattr("holdfast.locks.process_queue._open", lambda _called: None)
                lease.release()
                eventually(lambda: len(served) == A_FEW + 3)
    assert len(queues) == 0


def test_a_long_wait_in_the_local_queue_is_reported_once(url, monkeypatch):
    monkeypatch.setattr(taking, "LONG_WAIT", 0.05)
    seen = []
    with Client(url, name="me") as hf:
        hf.events.subscribe(lambda event: seen.append(event.fields) if event.name == "wait_long" else None)
        with hf.semaphore("s", permits=1, owner="alice"):

            def wait(_number):
                hf.semaphore("s", permits=1, wait=PATIENCE).acquire().release()

            crowd = callers(A_FEW + 1, wait)
            crowd.__enter__()
            eventually(lambda: seen)
        crowd.__exit__(None, None, None)
    assert [(event["key"], event["owner"], event["position"]) for event in seen] == [("s", "me", 0)]
    assert seen[0]["holder"].startswith("alice")


# -- other loops, other processes -------------------------------------------------------------------


class StuckLoop:
    """An event loop in its own thread, with tasks that acquire a lock; the test can block the loop."""

    def __init__(self, url):
        self._going_on = threading.Event()
        self._ready = threading.Event()
        self.served = 0
        self._url = url
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), daemon=True)

    def __enter__(self):
        self._thread.start()
        assert self._ready.wait(PATIENCE)
        return self

    def __exit__(self, *_):
        self.go_on()
        self._leave.set()
        self._thread.join(3 * PATIENCE)
        assert not self._thread.is_alive()

    async def _main(self):
        self._loop = asyncio.get_running_loop()
        self._leave = threading.Event()
        self._tasks = []
        async with AsyncClient(self._url) as self.client:
            self._ready.set()
            await eventually_async(self._leave.is_set, within=10 * PATIENCE)
            await asyncio.gather(*self._tasks)

    def ask(self, make, count):
        async def work():
            async with make(self.client):
                self.served += 1

        def begin():
            self._tasks += [self._loop.create_task(work()) for _ in range(count)]

        self._loop.call_soon_threadsafe(begin)

    def stand_still(self):
        """Block the loop. Commands that it sent before have their outcome when this returns."""
        standing = threading.Event()
        self._loop.call_soon_threadsafe(lambda: (standing.set(), self._going_on.wait(10 * PATIENCE)))
        assert standing.wait(PATIENCE)
        self.client.runtime.batchers["commands"].run(Inspect(key="k"))

    def go_on(self):
        self._going_on.set()


@pytest.mark.parametrize("kind", ["mutex", "semaphore", "rw"])
def test_callers_of_a_blocked_loop_do_not_stop_the_others(url, kind, monkeypatch):
    """Its callers that wait in the store lose their position there; those in the local queue are passed over."""
    monkeypatch.setattr(taking, "RECHECK_SECONDS", 0.05)
    monkeypatch.setattr(taking, "WAITER_TTL", 500_000)
    makers = {
        "mutex": lambda hf: hf.lock("k"),
        "semaphore": lambda hf: hf.semaphore("k", permits=1),
        "rw": lambda hf: hf.rwlock("k").write(),
    }
    make, ask = makers[kind], 40
    served = []
    with Client(url) as hf, StuckLoop(url) as stuck:
        lease = make(hf).acquire()
        stuck.ask(make, ask)
        here = ask - (0 if kind == "mutex" else A_FEW)
        eventually(lambda: queued_here(hf, "k", kind) == here)
        eventually(lambda: len(hf.locks.inspect("k").waiters) == ask - here)
        stuck.stand_still()

        def work(number):
            with make(hf):
                served.append(number)

        with callers(3, work):
            address = (hf.runtime.store.identity, "k", kind)
            eventually(lambda: len(queues.blockers(address)) + queues.waiting(address) == 1 + ask + 3)
            lease.release()
        assert sorted(served) == [0, 1, 2]
        assert stuck.served == 0
        stuck.go_on()
        eventually(lambda: stuck.served == ask)
    assert len(queues) == 0


def test_a_caller_that_tries_once_gets_a_permit_that_callers_of_a_blocked_loop_do_not_take(url, monkeypatch):
    monkeypatch.setattr(taking, "WAITER_TTL", 500_000)

    def make(hf):
        return hf.semaphore("k", permits=2)

    with Client(url) as hf, StuckLoop(url) as stuck, ExitStack() as held:
        for _ in range(2):
            held.enter_context(make(hf))
        stuck.ask(make, A_FEW + 2)
        eventually(lambda: queued_here(hf, "k", "semaphore") == 2)
        stuck.stand_still()
        held.close()

        def tries():
            with suppress(LockTimeout), hf.semaphore("k", permits=2, wait=0):
                return True

        eventually(tries)
        assert stuck.served == 0
        stuck.go_on()
        eventually(lambda: stuck.served == A_FEW + 2)
    assert len(queues) == 0


def test_a_sync_caller_that_blocks_the_loop_of_earlier_callers_is_granted(url, monkeypatch):
    """Blocking a loop is a mistake, but must not deadlock: the callers before it cannot continue until it has."""
    monkeypatch.setattr(taking, "RECHECK_SECONDS", 0.05)
    monkeypatch.setattr(taking, "WAITER_TTL", 500_000)

    async def main():
        async with AsyncClient(url) as hf:
            lease = await hf.semaphore("s", permits=1, ttl=1).acquire()
            tasks = [asyncio.create_task(pass_through(hf, ttl=1)) for _ in range(A_FEW + 2)]
            await eventually_async(lambda: queued_here(hf, "s") == 2)
            await lease.release()
            with Client(url) as blocking, blocking.semaphore("s", permits=1, wait=PATIENCE):
                pass
            await asyncio.gather(*tasks)

    asyncio.run(main())
    assert len(queues) == 0


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_after_a_fork_the_child_does_not_queue_behind_callers_of_its_parent(url):
    with Client(url) as hf:
        lease = hf.semaphore("s", permits=1).acquire()

        def wait(_number):
            hf.semaphore("s", permits=1).acquire().release()

        with callers(A_FEW + 3, wait):
            eventually(lambda: queued_here(hf, "s") == 3)
            pid = os.fork()
            if pid == 0:
                code = 1
                try:
                    assert len(queues) == 0
                    if not url.startswith("memory"):
                        assert hf.semaphore("s", permits=1).try_acquire() is None, "the parent's permit is seen"
                    with hf.semaphore("other", permits=1, wait=PATIENCE):
                        code = 0
                    hf.close()
                finally:
                    os._exit(code)
            _, status = os.waitpid(pid, 0)
            assert queued_here(hf, "s") == 3
            lease.release()
        assert os.waitstatus_to_exitcode(status) == 0
    assert len(queues) == 0
