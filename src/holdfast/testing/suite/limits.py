"""Limits: how many runs may be admitted at a time, or start within a span, and what happens to a run beyond them."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from ... import commands as c
from ...commands import runs as r
from ...rules.runs import record as rule
from ...rules.runs.limits import Limit, LimitKey, OnExcess, WorkflowLimits
from ...rules.runs.outcomes import (
    Claimed,
    Limited,
    LimitsDiffer,
    LimitsPublished,
    Posted,
    Recorded,
    RunSeen,
    Started,
)
from ...rules.runs.record import Finish, Run
from ..builders import SECOND
from ..limit_histories import LimitHistoryGenerator
from ..run_histories import RunModel
from .base import ANY_NAMES
from .comparison import CHUNKS
from .runs import TYPES, RunTests, final_reads, record, signal, start

EVERY_ANSWER = {"Limited", "LimitsDiffer", "LimitsPublished", "Started", "Recorded", "Posted", "RunRefused", "Claimed"}
FEWER = 2
"""One in so many seeds also has a history of limits."""


class LimitTests(RunTests):
    """What a store with workflows promises about their limits."""

    def publish(self, *limits: Limit, version: int = 0) -> WorkflowLimits:
        """Publish limits of the workflow `order`."""
        terms = WorkflowLimits(limits=limits, version=version)
        return self.ask(r.PublishLimits(workflow="order", terms=terms), LimitsPublished).terms

    def limited(self, max: int = 1, on_excess: OnExcess = "queue", **more: Any) -> WorkflowLimits:
        """One limit for all runs of `order`."""
        return self.publish(Limit(name="all", max=max, on_excess=on_excess, **more))

    def begin(self, run: str, terms: WorkflowLimits, *, key: str = "", worker: str = "w.1", **more: Any) -> Started:
        """Start a run with these limits, which must not be rejected; each limit with a path has this key."""
        return self.ask(self.asked(run, terms, key=key, worker=worker, **more), Started)

    def asked(self, run: str, terms: WorkflowLimits, *, key: str = "", worker: str = "w.1", **more: Any) -> r.StartRun:
        """The command that starts a run with these limits."""
        places = tuple(LimitKey(limit.name, key if limit.path else "") for limit in terms.limits)
        return start(run, worker=worker, places=places, terms=terms.digest, **more)

    def end(self, run: Run) -> Recorded:
        """End a run that is being driven."""
        return self.ask(record(run, then=Finish("completed", "1")), Recorded)

    def status(self, *runs: str) -> list[str]:
        """The statuses of these runs."""
        return [self.run_seen(run).status for run in runs]

    # -- more runs than the limit -----------------------------------------------------------------------------

    def test_a_start_beyond_the_limit_is_rejected_and_leaves_nothing(self) -> None:
        self.add_worker()
        terms = self.limited(2, "reject")
        first = self.begin("a", terms).run
        self.begin("b", terms)
        verdict = self.ask(self.asked("c", terms), Limited).verdict
        assert (verdict.what, verdict.limit, verdict.key, verdict.max, verdict.retry_in) == (
            "reject",
            "all",
            "",
            2,
            None,
        )
        assert self.ask(r.ReadRun(run="c"), RunSeen).claim is None
        self.end(first)
        assert self.begin("c", terms).run.status == "running"

    def test_the_end_of_a_run_admits_the_next_queued_run_in_the_same_step(self) -> None:
        self.add_worker()
        terms = self.limited()
        first = self.begin("m", terms).run
        waiting = [self.begin(run, terms) for run in ("z", "b", "a")]
        assert [(one.run.status, one.verdict.what) for one in waiting] == [("queued", "queue")] * 3
        assert self.claim() == []
        assert self.end(first).woken == (rule.hint_for("w.1", "z"),)
        assert self.status("z", "b", "a") == ["pending", "queued", "queued"]
        for run in ("z", "b", "a"):
            (claimed,) = self.claim()
            assert claimed.id == run
            self.end(claimed)

    def test_runs_started_in_one_batch_queue_in_the_order_of_the_batch(self) -> None:
        self.add_worker()
        terms = self.limited()
        names = [f"run {n}" for n in (5, 3, 9, 1)]
        outcomes = self.send(*(self.asked(run, terms) for run in names))
        runs = [one.run for one in outcomes if isinstance(one, Started)]
        assert [run.status for run in runs] == ["running", "queued", "queued", "queued"]
        driven = runs[0]
        for run in names[1:]:
            self.end(driven)
            (driven,) = self.claim()
            assert driven.id == run

    def test_a_run_with_a_higher_priority_is_admitted_before_earlier_runs(self) -> None:
        self.add_worker()
        terms = self.limited()
        driven = self.begin("a", terms).run
        for run, priority in (("low", -1), ("b", 0), ("high", 5), ("c", 0), ("higher", 7)):
            self.begin(run, terms, priority=priority)
        order = []
        for _ in range(5):
            self.end(driven)
            (driven,) = self.claim()
            order.append(driven.id)
        assert order == ["higher", "high", "b", "c", "low"]

    def test_the_queue_of_a_limit_is_never_longer_than_its_maximum(self) -> None:
        self.add_worker()
        terms = self.limited(max_queue=1)
        self.begin("a", terms)
        self.begin("b", terms)
        verdict = self.ask(self.asked("c", terms), Limited).verdict
        assert (verdict.what, verdict.limit) == ("queue_full", "all")

    def test_a_skipped_start_returns_the_existing_run(self) -> None:
        self.add_worker()
        terms = self.limited(2, "skip")
        self.begin("b", terms)
        self.begin("a", terms)
        skipped = self.begin("c", terms)
        assert (skipped.run.id, skipped.fresh, skipped.verdict.what) == ("b", False, "skip")
        assert self.ask(r.ReadRun(run="c"), RunSeen).claim is None

    def test_the_oldest_run_is_cancelled_and_the_newest_waits_for_its_end(self) -> None:
        self.add_worker()
        terms = self.limited(2, "cancel_oldest")
        oldest = self.begin("b", terms).run
        self.begin("a", terms)
        new = self.begin("c", terms)
        assert (new.run.status, new.verdict.what, new.woken) == (
            "queued",
            "cancel_oldest",
            (rule.hint_for("w.1", "b"),),
        )
        seen = self.ask(r.ReadRun(run="b", history=True), RunSeen)
        assert seen.claim is not None
        assert [event.kind for event in seen.claim.events] == ["cancel"]
        self.ask(record(oldest, then=Finish("cancelled", "1"), seen=1), Recorded)
        assert self.status("a", "b", "c") == ["running", "cancelled", "pending"]

    def test_a_queued_run_is_cancelled_when_all_admitted_runs_are_stopping_already(self) -> None:
        self.add_worker()
        terms = self.limited(1, "cancel_oldest")
        self.begin("a", terms)
        self.begin("b", terms)
        self.begin("c", terms)
        assert self.status("a", "b", "c") == ["running", "cancelled", "queued"]

    def test_a_cancelled_run_that_never_began_frees_the_limit_at_once(self) -> None:
        self.add_worker()
        terms = self.limited(1, "cancel_oldest")
        self.begin("a", terms, worker="")
        assert self.begin("b", terms).run.status == "pending"
        assert self.status("a") == ["cancelled"]

    def test_the_newest_run_is_recorded_as_cancelled(self) -> None:
        self.add_worker()
        terms = self.limited(1, "cancel_newest")
        self.begin("a", terms)
        new = self.begin("b", terms)
        assert (new.run.status, new.fresh, new.verdict.what) == ("cancelled", True, "cancel_newest")
        assert "WorkflowConcurrencyLimitExceededError" in str(new.run.result)
        assert self.status("a", "b") == ["running", "cancelled"]

    def test_of_several_full_limits_the_strictest_decides(self) -> None:
        self.add_worker()
        terms = self.publish(
            Limit(name="all", max=2, on_excess="queue"), Limit(name="each", max=1, path="customer", on_excess="reject")
        )
        self.begin("a", terms, key='"ann"')
        assert self.ask(self.asked("b", terms, key='"ann"'), Limited).verdict.key == '"ann"'
        self.begin("c", terms, key='"bob"')
        assert self.ask(self.asked("d", terms, key='"bob"'), Limited).verdict.limit == "each"
        assert self.begin("e", terms, key='"eve"').verdict.limit == "all"

    def test_a_run_that_waits_for_another_limit_does_not_delay_other_runs(self) -> None:
        self.add_worker()
        terms = self.publish(
            Limit(name="all", max=2, on_excess="queue"), Limit(name="each", max=1, path="customer", on_excess="queue")
        )
        self.begin("a", terms, key='"ann"')
        cid = self.begin("c", terms, key='"cid"').run
        self.begin("ann again", terms, key='"ann"')
        self.begin("bob", terms, key='"bob"')
        self.end(cid)
        assert self.status("ann again", "bob") == ["queued", "pending"]

    # -- rate limits ------------------------------------------------------------------------------------------

    def test_starts_beyond_the_rate_are_rejected_with_the_time_to_wait(self) -> None:
        terms = self.publish(Limit(name="pace", max=2, per=2 * SECOND))
        first, second, third = self.send(*(self.asked(run, terms, worker="") for run in "abc"))
        assert isinstance(first, Started)
        assert isinstance(second, Started)
        assert isinstance(third, Limited)
        assert (third.verdict.what, third.verdict.limit, third.verdict.max) == ("reject", "pace", 2)
        assert third.verdict.retry_in == first.now + 2 * SECOND - second.now
        self.advance(2.1)
        self.begin("c", terms, worker="")

    @pytest.mark.parametrize("name", ANY_NAMES)
    def test_a_workflow_a_namespace_and_a_limit_may_have_any_name(self, name: str) -> None:
        connection = self.connect(store=self.opened(name))
        terms = WorkflowLimits(limits=(Limit(name=name, max=1, per=9 * SECOND, on_excess="queue"),))
        self.ask(r.PublishLimits(workflow=name, terms=terms), LimitsPublished, connection)
        for number in range(3):  # each is decided by the starts before it
            asked = start(f"{name} {number}", type=name, places=(LimitKey(name),), terms=terms.digest)
            begun = self.ask(asked, Started, connection)
            assert (begun.run.due_at or 0) > begun.now or number == 0

    def test_starts_beyond_the_rate_begin_when_the_rate_permits(self) -> None:
        self.add_worker()
        terms = self.publish(Limit(name="pace", max=2, per=SECOND, on_excess="queue", max_queue=3))
        outcomes = self.send(*(self.asked(f"run {n}", terms) for n in range(6)))
        runs = [one.run for one in outcomes if isinstance(one, Started)]
        now = runs[0].created_at
        assert [run.status for run in runs] == ["running", "running", "pending", "pending", "pending"]
        later = [run.due_at for run in runs[2:]]
        assert [None if due is None else due - now for due in later] == [SECOND, SECOND, 2 * SECOND]
        assert isinstance(outcomes[-1], Limited)
        assert outcomes[-1].verdict.what == "queue_full"
        posted, claimed = self.send(signal("run 2"), r.ClaimRuns(worker="w.1", types=TYPES))
        assert isinstance(posted, Posted)
        assert isinstance(claimed, Claimed)
        assert claimed.claims == ()
        self.advance(1.1)
        assert [run.id for run in self.claim()] == ["run 2", "run 3"]

    # -- published limits -------------------------------------------------------------------------------------

    def test_a_start_with_outdated_limits_gets_the_latest_ones(self) -> None:
        assert self.ask(r.ReadLimits(workflow="order"), LimitsDiffer).terms is None
        self.ask(start(), Started)
        unknown = WorkflowLimits(limits=(Limit(name="all", max=1),))
        assert self.ask(self.asked("a", unknown, worker=""), LimitsDiffer).terms is None
        terms = self.limited(3)
        assert self.ask(start("b"), LimitsDiffer).terms == terms
        assert self.ask(start("c", type="order@2"), LimitsDiffer).terms == terms
        self.ask(start("d", type="mail"), Started)

    def test_published_limits_of_a_lower_version_change_nothing(self) -> None:
        newest = self.publish(Limit(name="all", max=1), version=2)
        assert self.publish(Limit(name="all", max=9), version=1) == newest
        assert self.publish(Limit(name="all", max=9), version=2).limits[0].max == 9

    def test_raising_a_limit_admits_queued_runs_at_once_and_lowering_it_ends_no_run(self) -> None:
        self.add_worker()
        terms = self.limited(1)
        for run in "abcd":
            self.begin(run, terms)
        self.limited(3)
        assert self.status(*"abcd") == ["running", "pending", "pending", "queued"]
        self.limited(1)
        assert self.status(*"abcd") == ["running", "pending", "pending", "queued"]
        assert {run.id for run in self.claim()} == {"b", "c"}

    def test_removing_a_limit_admits_all_queued_runs(self) -> None:
        self.add_worker()
        terms = self.limited(1)
        for run in "abc":
            self.begin(run, terms)
        self.publish()
        assert self.status(*"abc") == ["running", "pending", "pending"]

    # -- limit keys -------------------------------------------------------------------------------------------

    def test_a_run_is_counted_while_its_worker_is_gone_and_while_it_is_blocked(self) -> None:
        terms = self.limited(1, "reject")
        self.begin("a", terms, worker="")
        for life in range(rule.POISONED):
            assert [run.crashes for run in self.claim_and_expire(f"w.{life}")] == [life]
            self.ask(self.asked("b", terms, worker=""), Limited)
        self.add_worker("v.1")
        assert self.claim("v.1") == []
        self.ask(self.asked("b", terms, worker=""), Limited)
        fence = self.run_seen("a").fence
        self.ask(r.FailRun(run="a", fence=fence, reason="null", request="give up"), Posted)
        assert self.begin("b", terms, worker="v.1").run.status == "running"

    def test_a_queued_run_ends_at_once_when_cancelled_and_a_signal_does_not_admit_it(self) -> None:
        self.add_worker()
        terms = self.limited()
        driven = self.begin("a", terms).run
        self.begin("b", terms)
        self.begin("c", terms)
        self.ask(signal("c"), Posted)
        cancelled = self.ask(r.PostEvent(run="b", event=rule.RunEvent(kind="cancel", key="cancel")), Posted)
        assert (cancelled.run.status, self.status("c")) == ("cancelled", ["queued"])
        assert self.claim(runs=("c",)) == []
        self.end(driven)
        (claimed,) = self.claim()
        assert (claimed.id, claimed.posted) == ("c", 1)

    def test_a_retried_run_is_admitted_like_any_other_run(self) -> None:
        self.add_worker()
        terms = self.limited()
        a = self.begin("a", terms).run
        self.ask(record(a, then=Finish("failed", "1")), Recorded)
        self.begin("b", terms)
        seen = self.run_seen("a")
        again = r.ReviveRun(run="a", fence=seen.fence, keep=1, request="again")
        assert self.ask(again, Posted).run.status == "queued"
        assert self.ask(again, Posted).run.status == "queued"
        self.end(self.run_seen("b"))
        assert self.status("a") == ["pending"]

    def test_an_ended_run_whose_retry_is_rejected_is_unchanged(self) -> None:
        self.add_worker()
        terms = self.limited(1, "cancel_newest")
        a = self.begin("a", terms).run
        self.ask(record(a, then=Finish("failed", "1")), Recorded)
        self.begin("b", terms)
        before = self.run_seen("a")
        self.ask(r.ReviveRun(run="a", fence=before.fence, keep=1, request="again"), Limited)
        assert self.run_seen("a") == before

    def test_a_rejected_child_is_reported_to_its_parent(self) -> None:
        self.add_worker()
        terms = self.limited(1, "reject")
        parent = self.ask(start("parent", type="mail", worker="w.1"), Started).run
        children = tuple(
            self.asked(child, terms, worker="", parent="parent", root="parent").new for child in ("one", "two")
        )
        command = record(parent, "x", children=children)
        recorded = self.ask(command, Recorded)
        assert (list(recorded.limited), recorded.limited["two"].what) == (["two"], "reject")
        assert list(self.ask(command, Recorded).limited) == ["two"]

    @pytest.mark.parametrize("chunk", range(CHUNKS))
    def test_a_random_history_of_limits_has_the_outcomes_of_the_rules(self, chunk: int) -> None:
        kinds: set[str] = set()
        for seed in self.chunk_of_seeds(chunk)[::FEWER]:
            generator = LimitHistoryGenerator(seed, second=self.second)
            kinds |= self.compare_history(f"limits-{seed}", RunModel(), generator, partial(_final_reads, generator))
        self.seen_all(kinds, EVERY_ANSWER)


def _final_reads(generator: LimitHistoryGenerator) -> list[c.Command]:
    return [*final_reads(generator), r.ReadLimits(workflow="order"), r.ReadLimits(workflow="mail")]
