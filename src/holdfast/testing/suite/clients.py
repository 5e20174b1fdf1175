"""The store with real clients, in real time: lost replies, callers that give up, holders that are killed."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ... import commands as c
from ...client import AsyncClient, Client
from ...errors import KindMismatch, LockTimeout
from ...platform import host_clock
from ...stores.contract import Clock, Store
from ..faults import Plan, clients_open, planned
from ..processes import running
from .base import SuiteBase

TRIES = 12
HOLDER = """
from holdfast import Client
hf = Client(sys.argv[1], name="holder")
lease = hf.lock("k", ttl=1).acquire()
report(lease.token)
sys.stdin.readline()
"""


class ClientTests(SuiteBase):
    """A client leaves nothing in the store, whatever happens to its callers."""

    def opening(self, url: str, *, namespace: str, clock: Clock = host_clock, options: object = None) -> Store:
        """Open the store as a client does, by the `open` hook of the suite. A client passes no options here."""
        assert not options
        return self.open(url, namespace=namespace, clock=clock)

    @contextmanager
    def clients(self) -> Iterator[None]:
        """Clients that are created in the block open the store by the `open` hook of the suite."""
        with clients_open(self.opening, any_address=True):
            yield

    @contextmanager
    def client(self) -> Iterator[tuple[Client, Plan]]:
        """A client, and the plan that loses its replies."""
        with planned(self.opening) as plan, Client(self.address) as hf:
            yield hf, plan

    @pytest.mark.parametrize(
        "kind", [c.Acquire, c.Renew, c.Release, c.Transfer, c.Abandon, c.Inspect, c.ListLocks, c.Cleanup]
    )
    def test_a_lost_reply_about_a_lock_changes_no_effect(self, kind: type[c.Command]) -> None:
        with self.client() as (hf, plan):
            plan.lose_reply_of = kind
            lease = hf.lock("k", wait=self.patience).acquire()
            lease.renew()
            with pytest.raises(KindMismatch):
                hf.semaphore("k", permits=1).acquire()
            waiter = hf.semaphore("s", permits=1).acquire()
            with pytest.raises(LockTimeout):
                hf.semaphore("s", permits=1).acquire(wait=0.01)
            successor = lease.transfer("heir")
            info = hf.locks.inspect("k")
            assert [(holder.owner, holder.token) for holder in info.holders] == [("heir", successor.token)]
            assert len(hf.locks.list()) == 2
            hf.locks.cleanup()
            successor.release()
            waiter.release()
            assert plan.lost == [kind.__name__]
            self.nothing_is_left(hf, "k", "s")

    @pytest.mark.parametrize("kind", [c.SwapSlot, c.ReadSlot])
    def test_a_lost_reply_about_a_slot_changes_no_effect(self, kind: type[c.Command]) -> None:
        with self.client() as (hf, plan):
            state = hf.state("seats", initial=3)
            plan.lose_reply_of = kind
            assert state.increment() == 4
            assert state.get() == 4
            assert plan.lost == [kind.__name__]

    def test_a_caller_that_times_out_at_about_the_moment_of_its_grant_leaves_nothing(self) -> None:
        chance = random.Random(7)
        with self.clients(), Client(self.address) as hf, Client(self.address) as other:
            for _ in range(TRIES):
                lease = hf.semaphore("k", permits=1).acquire(wait=self.patience)
                patience = chance.uniform(0.001, 0.01)
                releasing = threading.Timer(chance.uniform(0.001, 0.01), lease.release)
                releasing.start()
                try:
                    other.semaphore("k", permits=1).acquire(wait=patience).release()
                except LockTimeout:
                    pass
                finally:
                    releasing.join()
                self.nothing_is_left(hf, "k")

    def test_a_task_that_is_cancelled_at_about_the_moment_of_its_grant_leaves_nothing(self) -> None:
        chance = random.Random(8)

        async def take(hf: AsyncClient) -> None:
            lease = await hf.semaphore("k", permits=1).acquire(wait=self.patience)
            await lease.release()

        async def main() -> None:
            async with AsyncClient(self.address) as hf, AsyncClient(self.address) as other:
                for _ in range(TRIES):
                    lease = await hf.semaphore("k", permits=1).acquire(wait=self.patience)
                    task = asyncio.create_task(take(other))
                    await asyncio.sleep(chance.uniform(0, 0.005))
                    releasing = asyncio.create_task(lease.release())
                    await asyncio.sleep(chance.choice([0, 0, 0.0005, 0.002]))
                    task.cancel()
                    await asyncio.gather(task, releasing, return_exceptions=True)

        with self.clients():
            asyncio.run(main())
            with Client(self.address) as hf:
                self.nothing_is_left(hf, "k")

    def test_closing_a_client_releases_its_locks(self) -> None:
        with self.clients(), Client(self.address) as watcher:
            leaver = Client(self.address)
            lease = leaver.lock("k").acquire()
            assert watcher.locks.inspect("k").held
            leaver.close()
            assert not lease.valid
            self.nothing_is_left(watcher, "k")

    def test_waiting_callers_are_granted_in_order_of_arrival(self) -> None:
        order: list[int] = []
        with self.clients(), Client(self.address) as hf:
            lease = hf.semaphore("k", permits=1).acquire()
            others = [Client(self.address) for _ in range(4)]
            threads = []
            for place, other in enumerate(others):

                def take(place: int = place, other: Client = other) -> None:
                    with other.semaphore("k", permits=1, wait=self.patience):
                        order.append(place)

                threads.append(threading.Thread(target=take))
                threads[-1].start()
                self.eventually(lambda place=place: len(hf.locks.inspect("k").waiters) == place + 1)
            lease.release()
            for thread in threads:
                thread.join()
            for other in others:
                other.close()
        assert order == [0, 1, 2, 3]

    def test_the_lock_of_a_killed_client_goes_to_the_next_waiter(self) -> None:
        self.need_processes()
        with self.clients(), running(HOLDER, self.address) as holder, Client(self.address) as hf:
            token = int(holder.read_line())
            assert hf.lock("k").try_acquire() is None
            holder.kill()
            with hf.lock("k", wait=self.patience) as lease:
                assert lease.token > token
            self.nothing_is_left(hf, "k")

    def nothing_is_left(self, hf: Client, *keys: str) -> None:
        """Wait until these keys have no holder and no waiter."""
        for key in keys:
            self.eventually(lambda key=key: not (hf.locks.inspect(key).held or hf.locks.inspect(key).waiters))
