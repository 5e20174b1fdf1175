"""A hand-over among thousands of waiting runs costs what it costs among a few: counted in rows, never in time."""

from __future__ import annotations

import pytest
from questioned import MemorySource

from holdfast import commands as c
from holdfast.commands import runs as r
from holdfast.rules import lock_outcomes as out
from holdfast.rules.lock_record import encode
from holdfast.rules.runs.lock_queue import LISTED
from holdfast.rules.runs.lock_requests import LockRequest
from holdfast.rules.runs.record import Finish, NewRun, Park, worker_key
from holdfast.stores.executor import execute
from holdfast.stores.memory import store as memory
from holdfast.testing.builders import ME, acquire, release

FEW, MANY = 6 * LISTED, 40 * LISTED
TURNS = 2 * LISTED
WORKER = "w.1"


class Counted:
    """The rules over a source that counts which rows they read and which they wrote."""

    def __init__(self):
        self.space, self.now = memory._Space(), 1_000_000_000_000_000
        self.read = self.written = 0

    def ask(self, *commands):
        self.now += 1
        source = MemorySource(self.space, self.now)
        write = source.write

        def counted(repository, hints, woken):
            changes = repository.changes
            self.written += len(changes.runs) + len(changes.locks) + sum(map(len, changes.inboxes.values()))
            return write(repository, hints, woken)

        source.write = counted
        outcomes = execute(source, commands).outcomes
        self.read += sum(map(len, source.asked))
        return outcomes[0] if len(outcomes) == 1 else outcomes

    def queue(self, count):
        """Let so many runs wait for a lock that a client holds."""
        lease = c.Acquire(key=worker_key(WORKER), id=WORKER, label=ME, kind="worker", ttl=10**12)
        self.ask(lease, r.RegisterWorker(worker=WORKER, name="w", types=("t",)))
        self.token = self.ask(acquire(ttl=10**12)).token
        for number in range(count):
            name = f"run-{number:05}"
            new = NewRun(id=name, type="t", input="1", request=f"q.{number}")
            run = self.ask(r.StartRun(new=new, worker=WORKER)).run
            self.record(run, 1, lock_requests=(LockRequest(number=1, key="k"),), stuck=(), then=Park(None))

    def record(self, run, at, **more):
        return self.ask(
            r.RecordRun(run=run.id, fence=run.fence, at=at, entries=(), request=f"{run.id} {self.now}", **more)
        )

    def turns(self, count):
        """Pass the lock through so many runs, each of which acquires it and ends. Returns the order."""
        self.read = self.written = 0
        order = []
        for _ in range(count):
            (claim,) = self.ask(r.ClaimRuns(worker=WORKER, types=(("t", "t"),), limit=8)).claims
            answers = self.record(claim.run, 1, lock_requests=(LockRequest(number=1, key="k"),), seen=1).answers
            assert [one.what for one in answers] == ["granted"]
            order.append(claim.run.id)
            self.record(claim.run, 1, seen=1, then=Finish("completed", "1"))
        return order


@pytest.fixture(params=[FEW, MANY])
def waiting(request):
    counted = Counted()
    counted.queue(request.param)
    return request.param, counted


def test_the_record_of_a_lock_stays_small(waiting):
    count, counted = waiting
    seen = counted.ask(c.Inspect(key="k"))
    assert (seen.record.waiting, len(seen.record.waiters)) == (count, LISTED)
    assert len(encode(seen.record)) < LISTED * 160


def test_a_hand_over_reads_and_writes_the_same_rows_for_every_length_of_the_queue():
    costs = []
    for count in (FEW, MANY):
        counted = Counted()
        counted.queue(count)
        assert isinstance(counted.ask(release(token=counted.token)), out.Released)
        assert counted.turns(TURNS) == [f"run-{number:05}" for number in range(TURNS)]
        costs.append((counted.read, counted.written))
    assert costs[0] == costs[1]


def test_joining_a_long_queue_reads_and_writes_as_many_rows_as_joining_a_short_one(waiting):
    _, counted = waiting
    new = NewRun(id="late", type="t", input="1", request="q.late")
    run = counted.ask(r.StartRun(new=new, worker=WORKER)).run
    counted.read = counted.written = 0
    counted.record(run, 1, lock_requests=(LockRequest(number=1, key="k"),), stuck=(), then=Park(None))
    assert counted.written == 2, "the run and the lock"
    assert counted.read < 40
