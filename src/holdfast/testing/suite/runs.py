"""Runs: start, claim, fenced journal, inbox; and random histories of all of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from msgspec.structs import replace

from ... import commands as c
from ...commands import runs as r
from ...commands.answers import WatchUpdate
from ...rules.lock_outcomes import Outcome
from ...rules.runs import record as rule
from ...rules.runs.outcomes import (
    Blocked,
    Claimed,
    OwnedRuns,
    Posted,
    Recorded,
    RunCounts,
    RunPage,
    RunRefused,
    RunSeen,
    RunTaken,
    Started,
    WorkerGone,
    WorkerList,
    WorkerRegistered,
)
from ...rules.runs.record import Finish, NewRun, Park, Past, RunEvent
from ...rules.runs.repository import RunFilter
from ...rules.slot import WRITERS, Conflict, SlotSeen, Swap, Swapped
from ..builders import ME, SECOND, SLOT, read, swap
from ..run_histories import SLOTS, UPDATES, RunHistoryGenerator, RunModel
from .base import ANY_NAMES, names
from .comparison import CHUNKS, HistoryComparison

EVERY_ANSWER = {
    "Started", "RunTaken", "Claimed", "WorkerGone", "Recorded", "RunRefused", "Posted", "RunSeen", "RunPage",
    "RunCounts", "OwnedRuns", "Blocked", "NextDue", "WorkerRegistered", "WorkerList", "Conflict", "Swapped", "SlotSeen",
    "Purged", "TreeSeen", "PurgeStep", "EndedRuns", "StreamWritten", "StreamRefused", "StreamSeen",
}  # fmt: skip
TYPES = (("order", "order"),)


def start(run: str = "r", worker: str = "", **more: Any) -> r.StartRun:
    """The command that starts a run of the workflow `order`, unless another type is given."""
    new = {"id": run, "type": "order", "input": "1", "request": f"start {run}"} | more
    return r.StartRun(new=NewRun(**new), worker=worker)


def record(run: rule.Run, *entries: str, **more: Any) -> r.RecordRun:
    """The command that records entries of this run, as its driver sends it after the claim."""
    asked: dict[str, Any] = {"at": run.length, "seen": run.posted, "request": f"record {entries} {more}"} | more
    return r.RecordRun(run=run.id, fence=run.fence, entries=entries, **asked)


def signal(run: str = "r", name: str = "paid", key: str = "") -> r.PostEvent:
    """A signal to a run."""
    return r.PostEvent(run=run, event=RunEvent(kind="signal", name=name, payload="7", key=key))


NEED_WORKFLOWS = (
    "RunTests", "LimitTests", "ReplacingTests", "RunLockTests", "RunQueueTests", "GenerationTests", "PurgeTests",
    "StreamTests", "RequestTests", "HeartbeatTests", "ChildTests", "DelayTests",
)  # fmt: skip
"""Classes whose tests are skipped on a store that cannot run workflows."""


class RunTests(HistoryComparison):
    """What the commands about runs promise, on a store with workflows."""

    @pytest.fixture(autouse=True)
    def _only_with_workflows(self, request: pytest.FixtureRequest, _one_store_a_test: None) -> None:
        needed = request.function.__qualname__.partition(".")[0] in NEED_WORKFLOWS
        if needed and not self.store.capabilities.workflows:
            pytest.skip("this store has no workflows")

    def add_worker(self, worker: str = "w.1", *types: str, seconds: float = 60) -> str:
        """Register a worker whose lease is valid for so long."""
        self.add_worker_and(worker, *types, seconds=seconds)
        return worker

    def add_worker_and(self, worker: str, *types: str, seconds: float, then: Sequence[c.Command] = ()) -> list[Outcome]:
        """Register a worker, and send more commands in the same batch: its lease is valid for them on any clock."""
        lease = c.Acquire(key=rule.worker_key(worker), id=worker, label=ME, kind="worker", ttl=round(seconds * SECOND))
        register_worker = r.RegisterWorker(worker=worker, name=f"worker {worker}", types=types or ("order",))
        granted, enlisted, *rest = self.send(lease, register_worker, *then)
        assert names([granted, enlisted]) == ["Granted", "WorkerRegistered"]
        return rest

    def claim_and_expire(self, worker: str, **more: Any) -> list[rule.Run]:
        """The runs that a new worker claimed, whose lease has expired by now."""
        (claimed,) = self.add_worker_and(worker, seconds=0.5, then=[r.ClaimRuns(worker=worker, types=TYPES, **more)])
        assert isinstance(claimed, Claimed)
        self.advance(0.6)
        return [claim.run for claim in claimed.claims]

    def claim(self, worker: str = "w.1", **more: Any) -> list[rule.Run]:
        """Claim the runs that are due."""
        claimed = self.ask(r.ClaimRuns(worker=worker, types=TYPES, **more), Claimed)
        return [claim.run for claim in claimed.claims]

    def run_seen(self, run: str = "r") -> rule.Run:
        """The current record of a run."""
        seen = self.ask(r.ReadRun(run=run), RunSeen)
        assert seen.claim is not None
        return seen.claim.run

    # -- start and claim --------------------------------------------------------------------------------------

    def test_a_started_run_is_claimed_once_with_its_input_under_a_fence(self) -> None:
        self.add_worker("w.1")
        self.add_worker("v.1")
        assert self.ask(start(), Started).run.status == "pending"
        claimed = self.ask(r.ClaimRuns(worker="w.1", types=TYPES), Claimed)
        (claim,) = claimed.claims
        assert (claim.run.status, claim.run.worker, claim.run.claims, claim.entries) == ("running", "w.1", 1, ("1",))
        assert claim.run.fence > 0
        assert self.claim("v.1") == []

    def test_a_worker_with_a_valid_lease_claims_the_run_that_it_starts_in_the_same_step(self) -> None:
        run = self.ask(start(worker=self.add_worker()), Started).run
        assert (run.status, run.worker) == ("running", "w.1")
        assert self.claim() == []

    def test_a_worker_without_a_lease_gets_nothing(self) -> None:
        self.ask(start("a"), Started)
        self.ask(r.ClaimRuns(worker="w.1", types=TYPES), WorkerGone)
        self.ask(start("b", worker="w.1"), WorkerGone)
        self.ask(r.RegisterWorker(worker="w.1", name="w", types=("order",)), WorkerGone)
        assert self.ask(r.ReadRun(run="b"), RunSeen).claim is None

    def test_a_worker_that_is_not_enlisted_gets_nothing(self) -> None:
        self.add_worker()
        self.ask(r.UnregisterWorker(worker="w.1"), WorkerRegistered)
        self.ask(start(worker="w.1"), WorkerGone)
        self.ask(r.ClaimRuns(worker="w.1", types=TYPES), WorkerGone)

    def test_a_parent_gets_the_end_of_a_child_that_was_given_up(self) -> None:
        child = NewRun(id="a", type="order", input="2", request="child", parent="r", root="r")
        parent = self.ask(start(worker=self.add_worker("w.0", seconds=60)), Started).run
        self.ask(record(parent, then=Park(None), children=(child,)), Recorded)
        self.ask(r.FailRun(run="a", fence=0, reason="null", request="give up"), Posted)
        claimed = self.claim("w.0", runs=("a", "r"))
        assert [(run.id, run.posted) for run in claimed] == [("r", 1)]
        self.ask(signal(), Posted)
        seen = self.ask(r.ReadRun(run="r", history=True), RunSeen)
        assert seen.claim is not None
        assert [event.number for event in seen.claim.events] == [1, 2]

    def test_a_start_sent_again_is_the_same_run_and_a_different_start_with_its_id_is_refused(self) -> None:
        first = self.ask(start(worker=self.add_worker()), Started).run
        assert self.ask(start(worker="w.1"), Started).run == first
        assert self.ask(start(request="another"), RunTaken).run == first

    def test_a_start_with_a_known_idempotency_key_returns_the_existing_run(self) -> None:
        self.ask(start("a", key="k"), Started)
        again = self.ask(start("b", key="k"), Started)
        assert (again.run.id, again.fresh) == ("a", False)
        assert self.ask(start("c", key="k", type="mail"), Started).run.id == "c"
        assert self.ask(start("d", key="k", type="order@2"), Started).run.id == "a"

    def test_claims_are_by_type_in_order_and_within_the_limit(self) -> None:
        self.add_worker()
        for name in "bca":
            self.ask(start(name), Started)
            self.advance(0.002)
        self.ask(start("m", type="mail"), Started)
        assert [run.id for run in self.claim(limit=2)] == ["b", "c"]
        assert [run.id for run in self.claim()] == ["a"]

    def test_the_first_worker_that_claims_a_run_of_any_version_sets_its_version(self) -> None:
        self.add_worker()
        self.ask(start(type="order@*"), Started)
        claimed = self.ask(r.ClaimRuns(worker="w.1", types=(("order@*", "order@2"),)), Claimed)
        assert [claim.run.type for claim in claimed.claims] == ["order@2"]
        assert self.run_seen().type == "order@2"

    def test_orphaned_runs_are_claimed_by_other_workers_with_higher_fences(self) -> None:
        self.add_worker("v.1", seconds=60)
        claims = r.ClaimRuns(worker="v.1", types=TYPES)
        *started, claimed = self.add_worker_and(
            "w.1", seconds=1, then=[start("a", worker="w.1"), start("b", worker="w.1"), claims]
        )
        before = {one.run.id: one.run for one in started if isinstance(one, Started)}
        assert isinstance(claimed, Claimed)
        assert (list(before), claimed.claims) == (["a", "b"], ())
        self.advance(1.5)
        after = self.claim("v.1")
        assert [(run.id, run.worker, run.crashes, run.claims) for run in after] == [
            ("a", "v.1", 1, 2),
            ("b", "v.1", 1, 2),
        ]
        assert all(run.fence > before[run.id].fence for run in after)
        self.ask(record(before["a"], "late"), RunRefused)

    def test_a_claim_by_name_returns_a_run_of_this_worker_again_with_the_same_fence(self) -> None:
        run = self.ask(start(worker=self.add_worker()), Started).run
        assert self.claim(runs=("r", "nobody")) == [run]
        self.ask(signal(), Posted)
        assert self.ask(r.ListOwnedRuns(worker="w.1"), OwnedRuns).runs == {"r": (run.fence, 1)}

    def test_a_claim_by_name_does_not_take_a_run_from_its_driver(self) -> None:
        self.add_worker("w.1")
        self.add_worker("v.1")
        self.ask(start(worker="w.1"), Started)
        assert self.claim("v.1", runs=("r",)) == []

    def test_a_run_that_crashes_its_workers_is_blocked(self) -> None:
        self.ask(start(), Started)
        for life in range(rule.POISONED):
            assert [run.crashes for run in self.claim_and_expire(f"w.{life}")] == [life]
        claimed = self.ask(r.ClaimRuns(worker=self.add_worker("v.1"), types=TYPES), Claimed)
        run = self.run_seen()
        assert (claimed.claims, claimed.poisoned) == ((), (run,))
        assert (run.status, run.due_at) == ("blocked", None)
        assert run.block is not None
        assert "RunPoisoned" in run.block.reason
        assert self.claim("v.1") == []
        assert self.claim("v.1", runs=("r",), engine="old", opened=run.block.since) == []
        assert self.claim("v.1", runs=("r",), engine="old", opened=run.block.since, untried=True) == []
        later = run.block.since + 1
        assert self.claim("v.1", runs=("r",), engine="new", opened=later, untried=True) == []
        assert self.claim("v.1", runs=("r",), engine="old", opened=run.block.since, code="fixed", untried=True) == []
        self.advance(61)
        self.add_worker("v.2")
        assert self.claim("v.2", runs=("r",), engine="old", opened=run.block.since, untried=True) == []
        assert [one.id for one in self.claim("v.2", runs=("r",), engine="new", opened=later, untried=True)] == ["r"]

    def test_a_run_that_crashes_its_workers_is_tried_at_once_by_an_engine_of_another_version(self) -> None:
        self.ask(start(), Started)
        for life in range(rule.POISONED):
            self.claim_and_expire(f"w.{life}", code="1")
        self.ask(r.ClaimRuns(worker=self.add_worker("v.1"), types=TYPES, code="1"), Claimed)
        block = self.run_seen().block
        assert block is not None
        opened = block.since + 1
        assert self.claim("v.1", runs=("r",), engine="new", opened=opened, code="1", untried=True) == []
        assert [one.id for one in self.claim("v.1", runs=("r",), engine="new", opened=opened, code="2", untried=True)]

    def test_where_more_engines_have_tried_a_blocked_run_than_are_named_only_new_ones_try_it(self) -> None:
        """Otherwise engines that are no longer named would try it again and again."""
        run, before = self.ask(start(worker=self.add_worker()), Started).run, None
        for number in range(rule.ENGINES_NAMED):
            if number:
                (run,) = self.claim(runs=("r",), engine=f"e{number}", opened=1, untried=True)
            block = r.BlockRun(
                run="r", fence=run.fence, reason="null", engine=f"e{number}", before=before, request=f"block {number}"
            )
            before = self.ask(block, Blocked).run.block
        assert before is not None
        assert not before.names_all
        assert self.claim(runs=("r",), engine="open", opened=before.since, untried=True) == []
        assert [one.id for one in self.claim(runs=("r",), engine="new", opened=before.since + 1, untried=True)] == ["r"]

    def test_a_deadlock_is_reported_only_to_a_run_that_is_stuck(self) -> None:
        """It may have been claimed, or blocked, since the search for deadlocks has read it."""
        run = self.ask(start(worker=self.add_worker()), Started).run
        deadlock = r.PostEvent(run="r", event=RunEvent(kind="deadlock", name="1", key="deadlock/1/1"))
        assert self.ask(deadlock, RunRefused).run == run
        self.ask(record(run, stuck=()), Recorded)
        assert self.ask(deadlock, Posted).fresh
        assert not self.ask(deadlock, Posted).fresh, "it was sent again"

    def test_a_blocked_run_is_tried_again_after_growing_pauses_and_earlier_by_other_engines(self) -> None:
        self.add_worker("w.1", seconds=10_000)
        run, before = self.ask(start(worker="w.1"), Started).run, None
        for tries, pause in enumerate((60, 120, 240, 480, 600, 600), 1):
            command = r.BlockRun(
                run="r", fence=run.fence, reason="null", engine="e1", code="7", before=before, request=f"block {tries}"
            )
            assert self.ask(command, Blocked).run == self.ask(command, Blocked).run, "a re-send is recognised"
            before = self.run_seen().block
            assert before is not None
            assert (before.tries, before.engines, before.code) == (tries, ("e1",), "7")
            assert self.claim(runs=("r",), engine="e1", untried=True) == []
            self.advance(pause - 1)
            assert self.claim(engine="e2") == []
            self.advance(1.1)
            (run,) = self.claim(engine="e1")
            assert run.block is None
        assert run.blocked_for >= 2_100 * SECOND
        self.ask(
            r.BlockRun(run="r", fence=run.fence, reason="null", engine="e1", before=before, request="last"), Blocked
        )
        claimed = self.ask(
            r.ClaimRuns(worker="w.1", types=TYPES, runs=("r",), engine="e2", code="8", untried=True), Claimed
        )
        assert [(one.run.code, one.block and one.block.tries) for one in claimed.claims] == [("8", 7)]

    def test_a_run_is_blocked_only_by_its_driver_and_also_with_events_that_the_driver_has_not_seen(self) -> None:
        run = self.ask(start(worker=self.add_worker()), Started).run
        self.ask(signal(), Posted)
        block = r.BlockRun(run="r", fence=run.fence + 1, reason="null", engine="e1", request="1")
        self.ask(block, RunRefused)
        self.ask(replace(block, fence=run.fence), Blocked)
        self.ask(signal(key="2"), Posted)
        seen = self.run_seen()
        assert (seen.status, seen.posted, seen.due_at is not None and seen.due_at > 0) == ("blocked", 2, True)
        self.ask(record(run, "late"), RunRefused)

    def test_a_blocked_run_that_is_retried_is_due_at_once_with_all_that_it_had(self) -> None:
        run = self.ask(start(worker=self.add_worker()), Started).run
        self.ask(record(run, "entry"), Recorded)
        self.ask(r.BlockRun(run="r", fence=run.fence, reason="null", engine="e1", request="1"), Blocked)
        self.ask(r.UnblockRun(run="r", fence=run.fence - 1, request="2"), RunRefused)
        again = r.UnblockRun(run="r", fence=run.fence, request="3")
        assert self.ask(again, Posted).run == self.ask(again, Posted).run
        (claimed,) = self.claim()
        assert (claimed.length, claimed.crashes, claimed.fence > run.fence) == (2, 0, True)

    def test_a_run_is_given_up_only_while_no_worker_drives_it(self) -> None:
        run = self.ask(start(worker=self.add_worker()), Started).run
        fail = r.FailRun(run="r", fence=run.fence, reason='"why"', entry="left", request="1")
        self.ask(fail, RunRefused)
        self.ask(r.BlockRun(run="r", fence=run.fence, reason="null", engine="e1", request="1"), Blocked)
        self.ask(replace(fail, fence=run.fence - 1), RunRefused)
        self.ask(replace(fail, last="another record"), RunRefused)
        ended = self.ask(replace(fail, last=run.last), Posted).run
        assert (ended.status, ended.result, ended.length, ended.block) == ("failed", '"why"', 2, None)
        assert self.ask(fail, Posted).run == ended
        self.ask(replace(fail, request="2"), RunRefused)

    def test_a_claim_returns_a_limited_number_of_runs_that_may_crash_their_worker(self) -> None:
        for name in "ab":
            self.ask(start(name), Started)
        for life in range(rule.SUSPECT):
            self.claim_and_expire(f"w.{life}")
        self.add_worker("v.1")
        assert [run.id for run in self.claim("v.1", suspects=1)] == ["a"]
        assert self.claim("v.1", suspects=0) == []
        self.advance(1.1)
        assert [run.id for run in self.claim("v.1", suspects=1)] == ["b"]

    def test_a_run_with_a_run_lock_is_not_claimed(self) -> None:
        self.add_worker()
        self.ask(start(), Started)
        key = rule.run_key("order", "r")
        lock = c.Acquire(key=key, id="z.1", label=ME, kind="run", ttl=SECOND)
        _, claimed = self.send(lock, r.ClaimRuns(worker="w.1", types=TYPES))
        assert isinstance(claimed, Claimed)
        assert claimed.claims == ()
        self.advance(1.1)
        assert [run.id for run in self.claim()] == ["r"]

    def test_due_runs_stay_due_when_the_clock_is_set_back(self) -> None:
        self.ask(start(), Started)
        self.advance(-3_600)
        self.add_worker()
        assert [run.id for run in self.claim()] == ["r"]

    def test_runs_of_a_worker_that_closes_do_not_count_a_crash(self) -> None:
        self.add_worker("w.1")
        self.add_worker("v.1")
        self.ask(start(worker="w.1"), Started)
        outcome = self.ask(r.UnregisterWorker(worker="w.1"), WorkerRegistered)
        assert outcome.woken == (rule.hint_for("v.1", "r"),)
        assert [run.crashes for run in self.claim("v.1")] == [0]

    # -- the journal ------------------------------------------------------------------------------------------

    def test_entries_are_appended_in_order_by_the_current_driver_only(self) -> None:
        run = self.ask(start(worker=self.add_worker()), Started).run
        assert self.ask(record(run, "a", "b"), Recorded).done
        self.ask(record(run, "c"), RunRefused)
        self.ask(r.RecordRun(run="r", fence=run.fence + 1, at=3, entries=("c",), request="x"), RunRefused)
        self.ask(record(run, "c", at=3), Recorded)
        seen = self.ask(r.ReadRun(run="r", history=True), RunSeen)
        assert seen.claim is not None
        assert seen.claim.entries == ("1", "a", "b", "c")
        assert seen.holder == "worker w.1"
        assert seen.expires_at is not None

    def test_a_record_sent_again_is_written_once(self) -> None:
        run = self.ask(start(worker=self.add_worker()), Started).run
        for _ in range(2):
            assert self.ask(record(run, "a", then=Park(None)), Recorded).done
        assert self.run_seen().length == 2

    def test_a_completed_run_has_its_result_and_cannot_be_changed(self) -> None:
        run = self.ask(start(worker=self.add_worker()), Started).run
        self.ask(r.WatchRun(run="r", id="x.7"), RunSeen)
        outcome = self.ask(record(run, "a", then=Finish("completed", "42")), Recorded)
        assert outcome.woken == ("x.7",)
        ended = self.run_seen()
        assert (ended.status, ended.result, ended.worker, ended.watchers) == ("completed", "42", "", ())
        self.ask(record(run, "b", at=2), RunRefused)
        self.ask(signal(), RunRefused)

    def test_a_run_with_an_unread_event_neither_parks_nor_ends(self) -> None:
        run = self.ask(start(worker=self.add_worker()), Started).run
        assert self.ask(signal(), Posted).woken == (rule.hint_for("w.1", "r"),)
        parked = self.ask(record(run, "a", then=Park(None)), Recorded)
        assert (parked.done, [event.name for event in parked.events]) == (False, ["paid"])
        ended = self.ask(record(run, at=2, then=Finish("completed", "1"), seen=0), Recorded)
        assert not ended.done
        assert self.ask(record(run, at=2, then=Finish("completed", "1"), seen=1), Recorded).done

    def test_a_parked_run_is_due_at_its_due_time_or_when_an_event_arrives(self) -> None:
        self.add_worker()
        runs = [self.ask(start(name, worker="w.1"), Started) for name in "ab"]
        parked = [record(one.run, then=Park(one.now + SECOND)) for one in runs]
        *recorded, claimed = self.send(*parked, r.ClaimRuns(worker="w.1", types=TYPES))
        assert names(recorded) == ["Recorded", "Recorded"]
        assert isinstance(claimed, Claimed)
        assert claimed.claims == ()
        assert self.ask(signal("b"), Posted).woken == (rule.hint_for("w.1", "b"),)
        assert [run.id for run in self.claim()] == ["b"]
        self.advance(1.5)
        assert [run.id for run in self.claim()] == ["a"]

    def test_a_run_that_its_worker_gives_up_is_due_at_once(self) -> None:
        run = self.ask(start(worker=self.add_worker()), Started).run
        self.ask(record(run, then=Park(0)), Recorded)
        assert [one.id for one in self.claim()] == ["r"]

    # -- events and children ----------------------------------------------------------------------------------

    @pytest.mark.parametrize("name", ANY_NAMES)
    def test_an_idempotency_key_may_be_any_name(self, name: str) -> None:
        run = self.ask(start(name, key=name), Started).run.id
        assert self.ask(start("other", key=name), Started).run.id == run
        posted = [self.ask(signal(run, key=key), Posted) for key in (name, name, "other")]
        assert [(one.number, one.fresh) for one in posted] == [(1, True), (1, False), (2, True)]

    def test_of_events_with_the_same_key_only_the_first_is_kept(self) -> None:
        self.ask(start(), Started)
        assert self.ask(signal(key="k"), Posted).number == 1
        again = self.ask(signal(key="k"), Posted)
        assert (again.number, again.fresh) == (1, False)
        assert self.ask(signal(), Posted).number == 2
        self.ask(signal("nobody"), RunRefused)

    def test_a_run_that_is_cancelled_before_it_began_has_ended(self) -> None:
        self.ask(start(), Started)
        cancel = r.PostEvent(run="r", event=RunEvent(kind="cancel", key="cancel"))
        assert self.ask(cancel, Posted).run.status == "cancelled"
        assert not self.ask(cancel, Posted).fresh

    def test_children_are_started_with_the_record_and_their_end_is_an_event_of_the_parent(self) -> None:
        run = self.ask(start(worker=self.add_worker()), Started).run
        child = NewRun(id="r/1", type="order", input="2", request="r:child", parent="r", root="r")
        taken = NewRun(id="r", type="order", input="2", request="r:other", parent="r", root="r")
        outcome = self.ask(record(run, "a", children=(child, taken)), Recorded)
        assert outcome.taken == ("r",)
        (born,) = self.claim()
        assert (born.id, born.parent, born.root) == ("r/1", "r", "r")
        ended = self.ask(record(born, then=Finish("failed", '{"type":"E"}')), Recorded)
        assert ended.woken == (rule.hint_for("w.1", "r"),)
        seen = self.ask(r.ReadRun(run="r", history=True), RunSeen)
        assert seen.claim is not None
        (event,) = seen.claim.events
        assert (event.kind, event.name) == ("child", "r/1")
        assert event.payload == '{"status":"failed","result":{"type":"E"}}'

    def test_a_refused_record_starts_no_children(self) -> None:
        run = self.ask(start(worker=self.add_worker()), Started).run
        child = NewRun(id="r/1", type="order", input="2", request="r:child", parent="r", root="r")
        self.ask(record(run, "a", at=7, children=(child,)), RunRefused)
        assert self.ask(r.ReadRun(run="r/1"), RunSeen).claim is None

    # -- a slot that is written with a record -----------------------------------------------------------------

    def test_a_slot_is_written_with_the_record(self) -> None:
        run = self.ask(start("run-1", worker=self.add_worker()), Started).run
        text = '{"a": [1.50, "\\u0000 é 😀"]}'
        assert self.ask(record(run, "a", request="3.2", swap=Swap(SLOT, "", 0, text)), Recorded).done
        assert self.ask(read(), SlotSeen) == SlotSeen(version=1, last="run-1:3.2", value=text)
        removed = Swap(SLOT, "run-1:3.2", 1, None)
        self.ask(record(run, "b", at=2, then=Finish("completed", "1"), request="3.3", swap=removed), Recorded)
        assert self.ask(read(), SlotSeen) == SlotSeen(version=2, last="run-1:3.3", value=None)
        ended = self.run_seen("run-1")
        assert (ended.status, ended.length) == ("completed", 3)

    def test_records_of_one_batch_may_write_the_same_slot_in_order(self) -> None:
        self.add_worker()
        runs = [self.ask(start(name, worker="w.1"), Started).run for name in "abc"]
        outcomes = self.send(
            record(runs[0], "x", request="1", swap=Swap(SLOT, "", 0, "1")),
            swap("z.1", "a:1", 1, "2"),
            record(runs[1], "x", request="1", swap=Swap(SLOT, "z.1", 2, "3")),
            record(runs[2], "x", request="1", swap=Swap(SLOT, "z.1", 2, "4")),
            read(),
        )
        assert names(outcomes) == ["Recorded", "Swapped", "Recorded", "Conflict", "SlotSeen"]
        assert outcomes[3] == Conflict(version=3, last="b:1", value="3")
        assert outcomes[4] == SlotSeen(version=3, last="b:1", value="3")

    @pytest.mark.parametrize("wrong", [("", 0), ("a.1", 2), ("x.1", 1)])
    @pytest.mark.parametrize("then", [None, Park(None), Finish("completed", "1")])
    def test_a_record_whose_slot_another_client_has_written_changes_nothing(
        self, wrong: tuple[str, int], then: rule.Ending | None
    ) -> None:
        run = self.ask(start(worker=self.add_worker()), Started).run
        self.ask(swap("a.1"), Swapped)
        child = NewRun(id="r/1", type="order", input="2", request="r:child", parent="r", root="r")
        conflicting = record(
            run, "a", then=then, children=(child,), attributes={"n": 1}, request="q.1", swap=Swap(SLOT, *wrong, "2")
        )
        for _ in range(2):
            assert self.ask(conflicting, Conflict) == Conflict(version=1, last="a.1", value="1")
        assert self.run_seen() == run
        assert self.ask(r.ReadRun(run="r/1"), RunSeen).claim is None
        assert self.ask(read(), SlotSeen) == SlotSeen(version=1, last="a.1", value="1")
        self.ask(record(run, "a", request="q.1"), Recorded)

    def test_a_record_that_is_sent_again_does_not_write_its_slot_again(self) -> None:
        run = self.ask(start(worker=self.add_worker()), Started).run
        sent = record(run, "a", then=Park(None), request="q.1", swap=Swap(SLOT, "", 0, "1"))
        self.ask(sent, Recorded)
        self.ask(swap("a.1", "r:q.1", 1, "2"), Swapped)
        assert self.ask(sent, Recorded).done
        assert self.ask(read(), SlotSeen) == SlotSeen(version=2, last="a.1", value="2")
        assert self.run_seen().length == 2

    def test_a_refused_record_does_not_write_its_slot(self) -> None:
        run = self.ask(start(worker=self.add_worker()), Started).run
        self.ask(record(run, "a", at=7, swap=Swap(SLOT, "", 0, "1")), RunRefused)
        unknown = r.RecordRun(run="nobody", fence=1, at=1, request="q.1", swap=Swap(SLOT, "", 0, "1"))
        self.ask(unknown, RunRefused)
        assert self.ask(read(), SlotSeen).version == 0

    def test_writes_with_and_without_a_record_see_each_other(self) -> None:
        run = self.ask(start(worker=self.add_worker()), Started).run
        self.ask(swap("a.1", value="1"), Swapped)
        self.ask(record(run, "a", request="q.1", swap=Swap(SLOT, "a.1", 1, "2")), Recorded)
        assert self.ask(swap("a.2", "a.1", 1), Conflict) == Conflict(version=2, last="r:q.1", value="2")
        assert self.ask(swap("a.3", "r:q.1", 2, "3"), Swapped).version == 3
        late = record(run, "b", at=2, swap=Swap(SLOT, "r:q.1", 2, "4"))
        assert self.ask(late, Conflict) == Conflict(version=3, last="a.3", value="3")

    def test_a_write_that_is_sent_again_is_known_although_a_record_came_between(self) -> None:
        run = self.ask(start(worker=self.add_worker()), Started).run
        self.ask(swap("a.1", value="1"), Swapped)
        self.ask(record(run, "a", request="q.1", swap=Swap(SLOT, "a.1", 1, "2")), Recorded)
        assert self.ask(swap("a.1", value="1"), Swapped).version == 1
        assert self.ask(read(), SlotSeen) == SlotSeen(version=2, last="r:q.1", value="2")

    def test_a_write_with_a_record_does_not_restore_removed_writers(self) -> None:
        run = self.ask(start(worker=self.add_worker()), Started).run
        chain = [swap("w0.1"), *(swap(f"w{n}.1", f"w{n - 1}.1", n) for n in range(1, WRITERS + 1))]
        self.send(*chain)
        self.ask(record(run, "a", swap=Swap(SLOT, f"w{WRITERS}.1", WRITERS + 1, "x")), Recorded)
        assert self.ask(chain[1], Swapped).version == 2
        assert not self.ask(chain[0], Conflict).decided

    def test_a_reservation_does_not_stop_a_record_and_ends_with_it(self) -> None:
        run = self.ask(start(worker=self.add_worker()), Started).run
        self.ask(swap("a.1"), Swapped)
        self.ask(swap("b.1", reserve=1_000_000), Conflict)
        self.ask(record(run, "a", request="q.1", swap=Swap(SLOT, "a.1", 1, "2")), Recorded)
        assert self.ask(swap("a.2", "r:q.1", 2), Swapped).version == 3

    # -- re-sends ---------------------------------------------------------------------------------------------

    def test_a_retried_run_continues_after_the_entries_that_are_kept(self) -> None:
        run = self.ask(start(worker=self.add_worker()), Started).run
        self.send(signal(), signal())
        self.ask(record(run, "a", "b", then=Finish("failed", "null"), seen=2), Recorded)
        again = r.ReviveRun(run="r", fence=run.fence, keep=2, request="again", forget=(1,))
        for _ in range(2):
            assert self.ask(again, Posted).run.status == "pending"
        claimed = self.ask(r.ClaimRuns(worker="w.1", types=TYPES), Claimed)
        (claim,) = claimed.claims
        assert claim.entries == ("1", "a")
        assert [event.number for event in claim.events] == [2]
        assert claim.run.fence > run.fence
        self.ask(r.ReviveRun(run="r", fence=claim.run.fence, keep=1, request="no"), RunRefused)

    # -- runs that begin with a history -----------------------------------------------------------------------

    def test_a_fork_begins_with_entries_and_events_whose_numbers_are_kept(self) -> None:
        self.add_worker()
        event = RunEvent(kind="signal", name="paid", key="k", at=3)
        events = (replace(event, number=2), replace(event, number=5, key="other"))
        past = Past(entries=("a", "b"), events=events, posted=6)
        fork = r.ForkRun(new=start().new, past=past)
        for _ in range(2):
            started = self.ask(fork, Started)
            assert (started.fresh, started.run.length, started.run.posted) == (True, 3, 6)
        self.ask(replace(fork, new=replace(fork.new, request="another")), RunTaken)
        assert self.ask(signal(key="k"), Posted).number == 2, "its key is known"
        assert self.ask(signal(key="new"), Posted).number == 7
        (claim,) = self.ask(r.ClaimRuns(worker="w.1", types=TYPES), Claimed).claims
        assert claim.entries == ("1", "a", "b")
        assert claim.events[:2] == events
        assert [one.number for one in claim.events] == [2, 5, 7]
        self.ask(record(claim.run, "c", then=Finish("completed", "1")), Recorded)

    def test_an_imported_run_is_as_it_was_and_nobody_drives_it(self) -> None:
        self.add_worker()
        event = RunEvent(number=4, kind="signal", name="paid", at=3)
        ended = rule.Run(
            id="r", type="order", status="failed", created_at=5, fence=9, length=2, posted=4, claims=3, request="q",
            key="k", parent="p", root="p", started_at=6, ended_at=7, result="null", attributes={"n": 1},
        )  # fmt: skip
        command = r.ImportRun(imported=ended, entries=("1", "a"), events=(event,))
        began = self.ask(command, Started)
        ended = replace(ended, parent="", root="r")  # that run is not here, or is another one
        assert (began.run, began.fresh) == (ended, True)
        again = self.ask(command, Started)
        assert (again.run, again.fresh) == (ended, False)
        self.ask(replace(command, imported=replace(ended, created_at=4)), RunTaken)
        other = replace(command, imported=replace(ended, id="s"))
        assert self.ask(other, RunTaken).run.id == "r", "the idempotency key is in use"
        for living in (replace(ended, id="s", key="", status="pending"), replace(ended, id="s", key="", due_at=0)):
            self.ask(replace(command, imported=living), c.Failed)
        seen = self.ask(r.ReadRun(run="r", history=True), RunSeen)
        assert seen.claim is not None
        assert (seen.claim.run, seen.claim.entries, seen.claim.events) == (ended, ("1", "a"), (event,))
        assert self.claim(runs=("r",)) == []
        self.ask(r.ReviveRun(run="r", fence=9, keep=2, request="again"), Posted)
        assert [run.id for run in self.claim()] == ["r"]

    # -- reading ----------------------------------------------------------------------------------------------

    def test_runs_are_listed_newest_first_in_pages_by_filter(self) -> None:
        self.add_worker()
        for n in range(5):
            self.ask(start(f"r{n}", attributes={"n": n, "odd": bool(n % 2)}), Started)
            self.advance(0.002)
        page = self.ask(r.ListRuns(limit=2), RunPage)
        assert [run.id for run in page.runs] == ["r4", "r3"]
        page = self.ask(r.ListRuns(limit=9, after=page.next), RunPage)
        assert ([run.id for run in page.runs], page.next) == (["r2", "r1", "r0"], None)
        odd = self.ask(r.ListRuns(wanted=RunFilter(attributes={"odd": True})), RunPage)
        assert [run.id for run in odd.runs] == ["r3", "r1"]
        assert self.ask(r.ListRuns(wanted=RunFilter(prefix="r1")), RunPage).runs[0].id == "r1"
        self.claim(limit=1)
        running = self.ask(r.ListRuns(wanted=RunFilter(statuses=("running",), workflow="order")), RunPage)
        assert [run.id for run in running.runs] == ["r0"]
        assert self.ask(r.CountRuns(), RunCounts).counts == {"order": 5}

    def test_workers_with_valid_leases_are_listed_with_the_workflows_that_they_drive(self) -> None:
        assert self.ask(r.ListWorkers(), WorkerList).workers == ()
        self.add_worker("w.2", seconds=600)
        self.advance(0.01)
        (listed,) = self.add_worker_and("w.1", "order@2", "order@*", "mail", seconds=1, then=[r.ListWorkers()])
        assert isinstance(listed, WorkerList)
        seen = listed.workers
        assert [(one.id, one.name, one.types) for one in seen] == [
            ("w.2", "worker w.2", ("order",)),
            ("w.1", "worker w.1", ("order@2", "order@*", "mail")),
        ]
        assert seen[0].since < seen[1].since
        self.advance(1.1)
        assert [one.id for one in self.ask(r.ListWorkers(), WorkerList).workers] == ["w.2"]
        self.ask(r.UnregisterWorker(worker="w.2"), WorkerRegistered)
        assert self.ask(r.ListWorkers(), WorkerList).workers == ()

    def test_namespaces_are_kept_apart(self) -> None:
        self.ask(start(), Started)
        there = self.connect(store=self.opened("other"))
        assert self.ask(r.ReadRun(run="r"), RunSeen, there).claim is None
        assert self.ask(r.ListRuns(), RunPage, there).runs == ()

    def test_any_text_is_kept_in_a_run_as_it_is(self) -> None:
        text = '"\\u0000 é 😀 \\" \' % _ ; -- \n \\/ 1.50"'
        run = self.ask(start("r é 😀 '\"", worker=self.add_worker(), input=text), Started).run
        self.ask(record(run, text, "", then=Finish("completed", text)), Recorded)
        seen = self.ask(r.ReadRun(run=run.id, history=True), RunSeen)
        assert seen.claim is not None
        assert seen.claim.entries == (text, text, "")
        assert seen.claim.run.result == text

    @pytest.mark.parametrize("chunk", range(CHUNKS))
    def test_a_random_history_of_runs_has_the_outcomes_of_the_rules(self, chunk: int) -> None:
        kinds: set[str] = set()
        for seed in self.chunk_of_seeds(chunk):
            generator = RunHistoryGenerator(seed, second=self.second)
            kinds |= self.compare_history(f"runs-{seed}", RunModel(), generator, partial(final_reads, generator))
        self.seen_all(kinds, EVERY_ANSWER)


def final_reads(generator: RunHistoryGenerator) -> list[c.Command]:
    """The reads at the end of a history, whose outcomes are compared."""
    runs = [r.ReadRun(run=run, history=True) for run in (*generator.ids, *generator.replaced)]
    ids = ((run, key) for run in generator.ids for key in UPDATES)
    updates = [WatchUpdate(run=run, first=1, key=key) for run, key in ids]
    return [r.ListRuns(limit=1000), *runs, *updates, *(c.ReadSlot(address=address) for address in SLOTS)]
