"""Starts with a delay or with a timeout: when such a run is due, and what it keeps until then."""

from __future__ import annotations

from ...commands import runs as r
from ...rules.runs import record as rule
from ...rules.runs.outcomes import NextDue, Posted, Recorded, RunRefused, Started
from ...rules.runs.record import NewRun, Park, RunEvent
from ..builders import SECOND
from .children import ChildTests
from .runs import record, signal, start

DELAY = round(0.6 * SECOND)
LONG = 3_600 * SECOND


class DelayTests(ChildTests):
    """What a store with workflows promises about delayed starts."""

    def test_a_delayed_run_belongs_to_nobody_and_is_claimed_when_its_delay_is_over(self) -> None:
        self.add_worker()
        run = self.ask(start(worker="w.1", delay=DELAY), Started).run
        assert (run.status, run.worker, run.due_at, run.not_before) == (
            "pending", "", run.created_at + DELAY, run.created_at + DELAY,
        )  # fmt: skip
        assert (self.claim(), self.claim(runs=("r",))) == ([], []), "also not by its name"
        assert self.ask(r.ReadNextDue(types=("order",)), NextDue).next_due == run.due_at
        self.advance(0.7)
        (claimed,) = self.claim()
        assert (claimed.id, claimed.status, claimed.not_before) == ("r", "running", run.not_before)

    def test_a_signal_to_a_delayed_run_is_kept_and_does_not_begin_it(self) -> None:
        self.add_worker()
        due_at = self.ask(start(delay=LONG), Started).run.due_at
        assert self.ask(signal(), Posted).run.due_at == due_at
        again = r.StartOrSignal(
            new=NewRun(id="r", type="order", input="1", request="again", delay=1),
            event=RunEvent(kind="signal", name="paid", key="two"),
        )
        self.ask(again, Posted)
        assert (self.claim(), self.run_seen().posted, self.run_seen().due_at) == ([], 2, due_at)

    def test_a_cancel_ends_a_delayed_run_at_once(self) -> None:
        self.ask(start(delay=LONG), Started)
        self.ask(r.PostEvent(run="r", event=RunEvent(kind="cancel")), Posted)
        assert self.run_seen().status == "cancelled"

    def test_a_retry_or_a_restart_begins_a_delayed_run_at_once(self) -> None:
        self.add_worker()
        for run in ("a", "b"):
            self.ask(start(run, delay=LONG, timeout=7), Started)
        self.ask(r.PostEvent(run="a", event=RunEvent(kind="cancel")), Posted)
        for run in ("a", "b"):
            fence = self.run_seen(run).fence
            self.ask(r.ReviveRun(run=run, fence=fence, keep=1, fresh=True, request=f"again {run}"), Posted)
        assert sorted((run.id, run.not_before, run.timeout) for run in self.claim()) == [("a", None, 7), ("b", None, 7)]

    def test_a_delayed_start_that_is_sent_again_is_the_same_run(self) -> None:
        first = self.ask(start(delay=LONG), Started).run
        self.advance(0.1)
        assert self.ask(start(delay=LONG), Started).run == first

    def test_a_delayed_run_with_a_past_begins_when_its_delay_is_over(self) -> None:
        self.add_worker()
        new = NewRun(id="f", type="order", input="1", request="fork", delay=DELAY)
        self.ask(r.ForkRun(new=new, past=rule.Past(entries=("[1]",))), Started)
        assert self.claim() == []
        self.advance(0.7)
        assert [run.id for run in self.claim()] == ["f"]

    def test_a_delayed_child_begins_when_its_delay_is_over(self) -> None:
        parent = self.ask(start(worker=self.add_worker()), Started).run
        child = NewRun(id="c", type="order", input="2", request="child", parent="r", root="r", delay=DELAY, timeout=9)
        self.ask(record(parent, then=Park(None), children=(child,)), Recorded)
        assert self.claim() == []
        self.advance(0.7)
        assert [(run.id, run.timeout) for run in self.claim()] == [("c", 9)]

    def test_a_run_that_waits_for_a_limit_keeps_its_delay(self) -> None:
        self.add_worker()
        terms = self.limited()
        first = self.begin("a", terms).run
        waiting = self.begin("b", terms, delay=LONG).run
        assert waiting.status == "queued"
        self.end(first)
        promoted = self.run_seen("b")
        assert (promoted.status, promoted.due_at, self.claim()) == ("pending", waiting.not_before, [])
        assert self.begin("c", terms).run.status == "queued", "the delayed run holds its place"

    def test_a_run_whose_delay_ended_while_it_was_queued_is_due_at_once(self) -> None:
        self.add_worker()
        terms = self.limited()
        first = self.begin("a", terms).run
        self.begin("b", terms, delay=DELAY)
        self.advance(0.7)
        self.end(first)
        assert [run.id for run in self.claim()] == ["b"]

    def test_the_timeout_of_a_start_is_kept_by_the_next_generation(self) -> None:
        run = self.ask(start(worker=self.add_worker(), timeout=7), Started).run
        self.ask(record(run, then=rule.Continue("2", '{"kind":"continued","at":1}')), Recorded)
        assert (self.run_seen().generation, self.run_seen().timeout) == (2, 7)

    def test_no_event_reaches_a_delayed_run_after_its_cancel(self) -> None:
        self.ask(start(delay=LONG), Started)
        self.ask(r.PostEvent(run="r", event=RunEvent(kind="cancel")), Posted)
        self.ask(signal(), RunRefused)
