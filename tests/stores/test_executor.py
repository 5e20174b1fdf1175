"""The executor over a record source equals the rules under a mutex: the whole suite, by questions."""

import pytest
from providers import PROVIDERS
from questioned import MemorySource, open_questioned

from holdfast import commands as c
from holdfast.commands import runs as r
from holdfast.errors import StoreUnavailable
from holdfast.rules.lock_outcomes import Granted
from holdfast.rules.runs.limits import Limit, LimitKey, WorkflowLimits
from holdfast.rules.runs.record import Finish, NewRun, worker_key
from holdfast.stores.executor import execute
from holdfast.stores.memory.store import _Space
from holdfast.stores.questions import RunsOf, Snapshot
from holdfast.testing import StoreConformance
from holdfast.testing.builders import ManualClock, acquire

MEMORY = PROVIDERS["memory"]


class TestQuestioned(StoreConformance):
    processes = False

    def url(self, folder):
        return MEMORY.url(folder)

    def open(self, url, *, namespace, clock):
        return open_questioned(url, namespace=namespace, clock=clock)

    def dump(self, url, namespace):
        return MEMORY.dump(url, namespace)

    def plant_record(self, url, namespace, kind, key, text):
        MEMORY.plant_record(url, namespace, kind, key, text)
        return True


class TestTrips:
    """How many reads a batch takes: one, and one more for each level of rows that lead to others."""

    @pytest.fixture(autouse=True)
    def _space(self):
        self.space, self.clock = _Space(), ManualClock()
        self.send(acquire(worker_key("w.1"), "w.1", kind="worker"))
        self.send(r.RegisterWorker(worker="w.1", name="worker", types=("order",)))

    def send(self, *commands):
        self.source = MemorySource(self.space, self.clock())
        return execute(self.source, commands).outcomes

    @property
    def trips(self):
        return self.source.reads, self.source.writes

    def start(self, id, **fields):
        return r.StartRun(new=NewRun(id=id, type="order", input="1", request=f"s.{id}", **fields))

    def test_commands_on_many_locks_are_one_read(self):
        self.send(*(acquire(f"k{number}", f"c.{number}") for number in range(100)))
        assert self.trips == (1, 1)

    def test_many_commands_on_one_lock_are_one_read(self):
        self.send(*(acquire("k", f"c.{number}", kind="semaphore", permits=200) for number in range(100)))
        assert self.trips == (1, 1)

    def test_a_query_writes_nothing(self):
        self.send(c.Inspect(key="k"), r.ReadRun(run="a"))
        assert self.trips == (1, 0)

    def test_starts_of_runs_are_one_read(self):
        self.send(*(self.start(f"run-{number}") for number in range(50)))
        assert self.trips == (1, 1)

    def test_a_claim_of_many_runs_takes_one_read_per_level(self):
        self.send(*(self.start(f"run-{number}") for number in range(50)))
        (claimed,) = self.send(r.ClaimRuns(worker="w.1", types=(("order", "order"),), limit=50))
        assert len(claimed.claims) == 50
        assert self.trips == (3, 1)  # the due runs, their records, and their run locks

    def test_the_end_of_a_run_with_a_queue_takes_one_read_per_level(self):
        terms = WorkflowLimits(limits=(Limit(name="all", max=1, on_excess="queue"),))
        self.send(r.PublishLimits(workflow="order", terms=terms))
        for number in range(30):
            self.send(self.start(f"run-{number}", places=(LimitKey("all"),), terms=terms.digest))
        (claimed,) = self.send(r.ClaimRuns(worker="w.1", types=(("order", "order"),)))
        run = claimed.claims[0].run
        end = Finish("completed", "1")
        (ended,) = self.send(r.RecordRun(run=run.id, fence=run.fence, at=1, request="x.1", then=end))
        assert ended.done
        assert self.space.runs.run("run-1").status == "pending"
        assert self.trips == (3, 1)  # the run, its limit, and the first run in the queue

    def test_orphaned_runs_take_one_read_per_level(self):
        self.send(acquire(worker_key("v.1"), "v.1", kind="worker", ttl=1))
        self.send(r.RegisterWorker(worker="v.1", name="other", types=("order",)))
        self.send(*(r.StartRun(new=self.start(f"run-{number}").new, worker="v.1") for number in range(200)))
        self.clock.pass_by(2)
        (claimed,) = self.send(r.ClaimRuns(worker="w.1", types=(("order", "order"),), limit=200))
        assert len(claimed.claims) == 200
        assert self.trips == (4, 1)  # the expired worker, its list of runs, the runs, and their run locks

    def test_many_queued_runs_that_each_wait_for_another_limit(self):
        limits = (Limit(name="all", max=1, on_excess="queue"), Limit(name="each", path="x", max=1, on_excess="queue"))
        terms = WorkflowLimits(limits=limits)
        self.send(r.PublishLimits(workflow="order", terms=terms))
        for number in range(100):
            places = (LimitKey("all"), LimitKey("each", str(number)))
            self.send(self.start(f"run-{number}", places=places, terms=terms.digest))
        self.send(r.PublishLimits(workflow="order", terms=WorkflowLimits(version=1)))
        assert {self.space.runs.run(f"run-{number}").status for number in range(100)} == {"pending"}
        assert self.trips[0] <= 6


class Contended(MemorySource):
    """A source in which another client changes one record before each write that depends on it, so many times."""

    def __init__(self, space, now, *, hot, times):
        super().__init__(space, now)
        self.hot, self.times, self.sizes = hot, times, []

    def write(self, repository, hints, woken):
        changed = repository.changes.locks
        self.sizes.append(len(changed))
        if self.hot in changed and self.times:
            self.times -= 1
            return False
        return super().write(repository, hints, woken)


class Signalled(MemorySource):
    """A source in which a run is signalled during every claim of many runs."""

    def __init__(self, space, now, *, most):
        super().__init__(space, now)
        self.most, self.sizes = most, []

    def write(self, repository, hints, woken):
        self.sizes.append(len(repository.changes.runs))
        return len(repository.changes.runs) <= self.most and super().write(repository, hints, woken)


class TestContention:
    """Commands about a record that other clients change all the time do not affect other commands."""

    def test_a_claim_that_conflicts_repeatedly_takes_fewer_runs(self):
        space, clock = _Space(), ManualClock()
        execute(MemorySource(space, clock()), [acquire(worker_key("w.1"), "w.1", kind="worker")])
        execute(MemorySource(space, clock()), [r.RegisterWorker(worker="w.1", name="worker", types=("order",))])
        starts = [r.StartRun(new=NewRun(id=f"r{n}", type="order", input="1", request=f"s.{n}")) for n in range(100)]
        execute(MemorySource(space, clock()), starts)
        source = Signalled(space, clock(), most=20)
        claim = r.ClaimRuns(worker="w.1", types=(("order", "order"),), limit=100)
        (claimed,) = execute(source, [claim]).outcomes
        assert len(claimed.claims) == 12
        assert source.sizes == [100, 50, 25, 12]

    @pytest.mark.parametrize("times", [2, 25, 1_000])
    def test_commands_that_conflict_repeatedly_are_decided_in_halves(self, times):
        space, clock = _Space(), ManualClock()
        source = Contended(space, clock(), hot="k77", times=times)
        outcomes = execute(source, [acquire(f"k{n}", f"c.{n}") for n in range(200)]).outcomes
        others = [outcome for n, outcome in enumerate(outcomes) if n != 77]
        assert all(isinstance(outcome, Granted) for outcome in others)
        assert [next(iter(space.records[f"k{n}"].holders)).id for n in range(77)] == [f"c.{n}" for n in range(77)]
        if times == 1_000:
            assert isinstance(outcomes[77].error, StoreUnavailable)
            assert not outcomes[77].error.ambiguous
            assert "k77" not in space.records
        else:
            assert isinstance(outcomes[77], Granted)
        together = [size for size in source.sizes if size > 1]
        assert sum(together) <= 7 * 200, "each half is decided three times at most"
        assert len(source.sizes) <= 4 * 8 + 60


def test_the_beginning_of_a_list_is_not_an_answer_for_all_of_it():
    snapshot = Snapshot(0)
    snapshot.put(RunsOf(2, "w"), ["a", "b"])
    assert snapshot.range(RunsOf(2, "w")).items == ("a", "b")
    assert not snapshot.knows(RunsOf(3, "w"))
    assert not snapshot.knows(RunsOf(None, "w"))
    snapshot.put(RunsOf(3, "w"), ["a", "b"])
    assert snapshot.range(RunsOf(None, "w")).items == ("a", "b")
