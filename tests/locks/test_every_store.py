"""What users hold, once on every store: a read-write lock, a leader, a mutex and a semaphore in a state.

The full tests of each run on some stores only: `tests/stores` covers what they need of a store.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from providers import PROVIDERS

from holdfast import Client
from holdfast.state import DurableMutex, DurableSemaphore, initial_lock_record

NOW = 1_790_000_000


@pytest.fixture(params=[name for name in PROVIDERS if name not in ("memory", "sqlite", "postgres", "valkey")])
def two(request, tmp_path):
    """Two clients of one store."""
    url = PROVIDERS[request.param].url(tmp_path)
    with Client(url, name="one") as one, Client(url, name="two") as other:
        yield one, other


def test_readers_share_a_lock_and_a_writer_is_alone(two):
    one, other = two

    def free(side):
        """Whether another thread of another client can acquire a side."""
        lease = getattr(other.rwlock("doc"), side)().try_acquire()
        if lease is not None:
            lease.release()
        return lease is not None

    with ThreadPoolExecutor(1) as pool:
        with one.rwlock("doc").read():
            assert pool.submit(free, "read").result()
            assert not pool.submit(free, "write").result()
        with one.rwlock("doc").write():
            assert not pool.submit(free, "read").result()
            assert not pool.submit(free, "write").result()


def test_one_candidate_leads_and_the_next_one_has_a_higher_token(two):
    one, other = two
    first, second = one.leader("scheduler", ttl=15), other.leader("scheduler", ttl=15)
    term = first.campaign()
    assert first.is_leader
    assert not second.is_leader
    first.resign()
    assert second.campaign(wait=5).token > term.token
    second.resign()


@pytest.mark.parametrize("permits", [1, 2], ids=["mutex", "semaphore"])
def test_a_lock_in_a_state_grants_its_permits_in_order(two, permits):
    one, other = (hf.state.workflow("transfer", "lock", initial=initial_lock_record()) for hf in two)
    lock = DurableMutex(lease=60) if permits == 1 else DurableSemaphore(permits=permits, lease=60)
    for number in range(permits):
        assert lock.try_acquire(one, holder_id=f"h{number}", now=NOW).acquired
    assert lock.try_acquire(other, holder_id="next", now=NOW).position == 0
    lock.release(one, holder_id="h0", now=NOW)
    assert not lock.try_acquire(one, holder_id="newcomer", now=NOW).acquired
    assert lock.try_acquire(other, holder_id="next", now=NOW).acquired
