"""Long queues of runs for one lock: the record of the lock lists the first runs, and an index lists the others."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import pytest

from ... import commands as c
from ...commands import runs as r
from ...rules import lock_outcomes as out
from ...rules.runs import lock_queue
from ...rules.runs.lock_requests import LockRequest
from ...rules.runs.outcomes import Claimed, Recorded
from ...rules.runs.record import Finish, Park, Run
from ..builders import acquire, release, wait
from ..run_histories import RunModel
from ..run_lock_histories import KEYS, RunLockHistoryGenerator
from .base import names
from .comparison import CHUNKS
from .limits import FEWER
from .run_locks import RunLockTests, give, take
from .runs import TYPES, final_reads

LISTED = 2


class RunQueueTests(RunLockTests):
    """What a store with workflows promises about the order in which many runs get one lock."""

    @pytest.fixture
    def short_list(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """List few runs in a lock's record, so that a few more are already an overflow."""
        monkeypatch.setattr(lock_queue, "LISTED", LISTED)

    def queued(self, *runs: str, key: str = "k") -> list[Run]:
        """Runs that wait in this order for a key that a client holds, and are parked."""
        self.add_worker()
        self.token = self.ask(acquire(key), out.Granted).token
        begun = self.begun(*runs)
        for run in begun:
            assert [one.what for one in self.wants(run, take(1, key), stuck=(), then=Park(None)).answers] == ["queued"]
        return begun

    def claimed(self) -> list[Run]:
        """Claim all runs that are due."""
        found = self.ask(r.ClaimRuns(worker="w.1", types=TYPES, limit=100), Claimed)
        return [claim.run for claim in found.claims]

    def served(self, key: str = "k") -> list[str]:
        """Let each run that is offered the key acquire it and end, until no run is left. Returns the order."""
        order = []
        while runs := self.claimed():
            for run in runs:
                answers = self.wants(run, take(1, key)).answers[0]
                assert answers.what == "granted"
                order.append(run.id)
                self.wants(run, then=Finish("completed", "1"))
        return order

    @pytest.mark.usefixtures("short_list")
    def test_a_long_queue_of_runs_is_served_in_the_order_of_arrival(self) -> None:
        runs = [f"run-{n}" for n in (5, 3, 8, 1, 9, 2, 7)]
        self.queued(*runs)
        record = self.lock()
        assert (len(record.waiters), record.waiting) == (LISTED, len(runs))
        assert self.run_seen("run-5").waits == ()
        assert [wait.key for wait in self.run_seen("run-8").waits] == ["k"]
        self.ask(release(token=self.token), out.Released)
        assert self.served() == runs
        assert self.lock().idle

    @pytest.mark.usefixtures("short_list")
    def test_clients_and_runs_are_served_in_one_order(self) -> None:
        self.queued("r1", "r2", "r3")
        first = self.ask(wait(id="b.1", waiter_ttl=60 * self.second), out.Queued)
        assert first.position == 3
        for run in self.begun("r4"):
            self.wants(run, take(), stuck=(), then=Park(None))
        assert self.ask(acquire(id="c.1"), out.Busy).waiting == 5
        self.ask(release(token=self.token), out.Released)
        assert self.served() == ["r1", "r2", "r3"]
        assert self.holders() == ["b.1"]
        granted = self.ask(wait(id="b.1", waiter_ttl=60 * self.second), out.Granted)
        self.ask(release(id="b.1", token=granted.token), out.Released)
        assert self.served() == ["r4"]

    @pytest.mark.usefixtures("short_list")
    def test_a_new_waiter_gets_the_number_of_waiters_before_it(self) -> None:
        self.queued("r1", "r2", "r3", "r4", "r5")
        self.ask(release(token=self.token), out.Released)
        for name in ("r1", "r2"):
            (run,) = self.claimed()
            assert (run.id, self.wants(run, take()).answers[0].what) == (name, "granted")
            self.wants(run, *([give()] if name == "r1" else []), then=Park(None))
        assert (self.lock().waiters, self.lock().waiting) == ((), 3)
        assert self.ask(wait(id="b.1"), out.Queued).position == 3

    @pytest.mark.usefixtures("short_list")
    def test_a_run_that_ends_or_gives_up_its_wait_leaves_its_position_to_the_next(self) -> None:
        runs = self.queued("r1", "r2", "r3", "r4", "r5", "r6")
        for name, lock_requests, then in (("r3", (), Finish("completed", "1")), ("r5", (give(),), Park(None))):
            (run,) = [one for one in self.claim(runs=(name,)) if one.id == name]
            self.wants(run, *lock_requests, then=then)
        assert [(run.waits, run.locks) for run in map(self.run_seen, ("r3", "r5"))] == [((), ())] * 2
        assert self.lock().waiting == 4
        self.ask(release(token=self.token), out.Released)
        assert self.served() == ["r1", "r2", "r4", "r6"]
        assert len(runs) == 6

    @pytest.mark.usefixtures("short_list")
    def test_a_repeated_lock_request_keeps_its_position(self) -> None:
        self.queued("r1", "r2", "r3", "r4")
        (run,) = self.claim(runs=("r4",))
        before = self.run_seen("r4").waits
        assert [one.what for one in self.wants(run, take()).answers] == ["queued"]
        again = self.run_seen("r4")
        assert again.waits == before
        sent = r.RecordRun(
            run="r4",
            fence=again.fence,
            at=again.length,
            entries=(),
            seen=again.posted,
            request=again.last,
            lock_requests=(take(),),
        )
        assert [one.what for one in self.ask(sent, Recorded).answers] == ["queued"]
        self.wants(run, stuck=(), then=Park(None))
        self.ask(release(token=self.token), out.Released)
        assert self.served() == ["r1", "r2", "r3", "r4"]

    @pytest.mark.usefixtures("short_list")
    def test_many_permits_that_become_free_at_once_go_to_as_many_runs(self) -> None:
        self.add_worker()
        held = self.ask(acquire(kind="semaphore", permits=5, weight=5), out.Granted)
        runs = self.begun(*(f"r{n}" for n in range(1, 9)))
        for run in runs:
            self.wants(run, take(kind="semaphore", permits=5), stuck=(), then=Park(None))
        released = self.ask(release(token=held.token), out.Released)
        assert released.woken == tuple(f"run:1:r{n}" for n in range(1, 6))
        assert self.lock().waiting == 3
        assert [run.id for run in self.claimed()] == ["r1", "r2", "r3", "r4", "r5"]

    @pytest.mark.usefixtures("short_list")
    def test_runs_whose_weight_no_longer_fits_get_an_event(self) -> None:
        self.add_worker()
        held = self.ask(acquire(kind="semaphore", permits=2, weight=2), out.Granted)
        for run in self.begun(*(f"r{n}" for n in range(1, 6))):
            self.wants(run, take(kind="semaphore", permits=2, weight=2), stuck=(), then=Park(None))
        refused = self.ask(acquire(id="b.1", kind="semaphore", permits=1, queue=False), out.Busy)
        assert refused.hinted == ("run:1:r1", "run:1:r2")
        assert self.ask(release(token=held.token), out.Released).hinted == ("run:1:r3", "run:1:r4", "run:1:r5")
        runs = self.claimed()
        assert sorted(run.id for run in runs) == ["r1", "r2", "r3", "r4", "r5"]
        for run in runs:
            assert self.wants(run, take(kind="semaphore", permits=2, weight=2)).answers[0].what == "too_heavy"
            assert self.run_seen(run.id).locks == ()
        assert self.lock().waiting == 0

    @pytest.mark.usefixtures("short_list")
    def test_a_run_may_have_two_waiting_requests_for_one_lock(self) -> None:
        self.queued("r1", "r2")
        (both,) = self.begun("r3")
        self.wants(both, take(1), take(2), stuck=(), then=Park(None))
        (last,) = self.begun("r4")
        self.wants(last, take(), stuck=(), then=Park(None))
        assert [wait.ask for wait in self.run_seen("r3").waits] == [1, 2]
        self.ask(release(token=self.token), out.Released)
        order = []
        while runs := self.claimed():
            for run in runs:
                for number in sorted(number for number, _ in self.run_seen(run.id).locks):
                    if self.wants(run, take(number)).answers[0].what == "granted":
                        order.append((run.id, number))
                        self.wants(run, give(number))
                self.wants(run, stuck=(), then=Park(None))
        assert order == [("r1", 1), ("r2", 1), ("r3", 1), ("r3", 2), ("r4", 1)]

    @pytest.mark.usefixtures("short_list")
    @pytest.mark.parametrize("by", ["time", "force", "abandon"])
    def test_every_way_of_freeing_a_lock_serves_the_overflow(self, by: str) -> None:
        ttl = 2 * self.second if by == "time" else None
        self.queued("r1", "r2", "r3", "r4")
        self.ask(release(token=self.token), out.Released)
        for run in self.claimed():
            self.wants(run, take(ttl=ttl), then=Park(None))
        for name in ("r1", "r2"):
            if by == "time":
                self.advance(2.5)
                self.ask(c.SettleDue(), c.Swept)
            elif by == "force":
                self.ask(c.ForceRelease(key="k", by="me", reason="because"), out.ForceReleased)
            else:
                self.ask(c.Abandon(key="k", id=f"run:1:{name}", ttl=0), out.Abandoned)
            for run in self.claimed():
                if run.id > name:
                    self.wants(run, take(ttl=ttl if run.id == "r2" else None), then=Park(None))
        assert self.holders() == ["run:1:r3"]
        assert self.lock().waiting == 1

    @pytest.mark.usefixtures("short_list")
    def test_a_bad_command_of_a_batch_removes_no_run_from_the_queue(self) -> None:
        self.add_worker()
        self.ask(acquire(kind="semaphore", permits=5, weight=5, ttl=2), out.Granted)
        for run in self.begun(*(f"r{n}" for n in range(1, 9))):
            self.wants(run, take(kind="semaphore", permits=5), stuck=(), then=Park(None))
        self.advance(2.5)
        bad = c.Acquire(key="k", id="b.1", label=None, kind="semaphore", permits="many", ttl=1, queue=True)  # type: ignore[arg-type]
        failed, settled = self.send(bad, c.Settle(key="k"))
        assert names([failed, settled]) == ["Failed", "Settled"]
        assert settled.woken == tuple(f"run:1:r{n}" for n in range(1, 6))
        assert self.lock().waiting == 3

    @pytest.mark.parametrize("chunk", range(CHUNKS))
    @pytest.mark.usefixtures("short_list")
    def test_a_random_history_of_long_queues_has_the_outcomes_of_the_rules(self, chunk: int) -> None:
        lock_queue.LISTED = 1  # the fixture restores it
        seeds = self.chunk_of_seeds(chunk)[::FEWER]
        long = 0
        for seed in seeds:
            generator, model = _ContendedHistoryGenerator(seed, second=self.second), _OverflowModel()
            self.compare_history(f"queues-{seed}", model, generator, partial(_final_reads, generator))
            long += model.long
        assert long >= len(seeds) // 2, "too few histories had an overflow, so this test shows nothing"


class _ContendedHistoryGenerator(RunLockHistoryGenerator):
    """Generates runs that mostly request the same lock."""

    def _ask(self) -> LockRequest:
        ask, (key, kind, permits) = super()._ask(), KEYS[0]
        return (
            ask if self.random.random() < 0.3 else LockRequest(number=ask.number, key=key, kind=kind, permits=permits)
        )


class _OverflowModel(RunModel):
    """Also records whether any queue had an overflow."""

    long = False

    def execute(self, commands: Sequence[c.Command], now: int) -> list[out.Outcome]:
        outcomes = super().execute(commands, now)
        self.long = self.long or any(record.overflow is not None for record in self.records.values())
        return outcomes


def _final_reads(generator: RunLockHistoryGenerator) -> list[c.Command]:
    return [*final_reads(generator), *(c.Inspect(key=key) for key, _, _ in KEYS)]
