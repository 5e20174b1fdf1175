"""Starts under an id that a run has already: use that run, replace it if it has ended, or send it a signal."""

from __future__ import annotations

from typing import Any

import pytest

from ...commands import runs as r
from ...rules.runs import record as rule
from ...rules.runs.limits import LimitKey
from ...rules.runs.outcomes import (
    Claim,
    Limited,
    Posted,
    Recorded,
    RunPage,
    RunRefused,
    RunSeen,
    RunTaken,
    Started,
)
from ...rules.runs.record import Finish, LimitCancel, NewRun, Park, Run, RunEvent
from ...rules.runs.repository import RunFilter
from .limits import LimitTests
from .runs import record, signal, start

DONE = Finish("completed", "1")


def new(request: str, run: str = "r", **more: Any) -> r.StartRun:
    """A start that replaces the run with its id, if that has ended."""
    return start(run, **({"request": request, "on_existing": "replace_ended"} | more))


def say(request: str, key: str = "", run: str = "r", worker: str = "", **more: Any) -> r.StartOrSignal:
    """A signal to the run with this id, or its start."""
    fields = {"id": run, "type": "order", "input": f'"{request}"', "request": request} | more
    event = RunEvent(kind="signal", name="said", payload=f'"{request}"', key=key)
    return r.StartOrSignal(new=NewRun(**fields), event=event, worker=worker)


class ReplacingTests(LimitTests):
    """What a store with workflows promises about a start whose id another run has."""

    def whole(self, run: str) -> Claim:
        """A run with its journal and its inbox."""
        claim = self.ask(r.ReadRun(run=run, history=True), RunSeen).claim
        assert claim is not None
        return claim

    def ended_run(self, run: str = "r", *events: r.PostEvent, **more: Any) -> Run:
        """A run that has received these events, recorded two entries and ended."""
        begun = self.ask(start(run, worker=self.add_worker(), **more), Started).run
        for event in events:
            self.ask(event, Posted)
        self.ask(record(begun, "a", "b", seen=len(events), then=DONE), Recorded)
        return self.run_seen(run)

    def test_a_start_may_use_the_run_that_is_there_living_or_ended(self) -> None:
        first = self.ask(start(worker=self.add_worker()), Started).run
        used = self.ask(start(request="2", on_existing="use", type="order@2"), Started)
        assert (used.run, used.fresh) == (first, False)
        self.ask(record(first, then=DONE), Recorded)
        used = self.ask(start(request="3", on_existing="use"), Started)
        assert (used.run.status, used.fresh) == ("completed", False)
        assert self.ask(start(request="4", on_existing="use", type="mail"), RunTaken).why == "workflow"
        assert self.ask(start("other", request="5", on_existing="use"), Started).fresh

    def test_an_ended_run_is_replaced_and_kept_whole_under_another_id(self) -> None:
        before = self.ended_run("r", signal(key="k1"), signal(), key="once", attributes={"n": 1})
        history = self.whole("r")
        self.advance(0.01)
        after = self.ask(new("2", input="2", attributes={"n": 2}), Started)
        assert after.fresh
        run = after.run
        assert (run.id, run.status, run.generation, run.first, run.replaces) == ("r", "pending", 2, 2, "r~1")
        assert (run.length, run.posted, run.key, run.fence > before.fence) == (1, 0, "", True)
        seen = self.whole("r")
        assert (seen.run, seen.entries, seen.events) == (run, ("2",), ())
        kept = self.whole("r~1")
        assert (kept.entries, kept.events) == (history.entries, history.events)
        assert (kept.run.status, kept.run.result, kept.run.replaced_by) == ("completed", "1", "r")
        assert (kept.run.created_at, kept.run.ended_at) == (before.created_at, before.ended_at)
        assert [one.id for one in self.ask(r.ListRuns(), RunPage).runs] == ["r", "r~1"]
        for n, name in ((1, "r~1"), (2, "r")):
            found = self.ask(r.ListRuns(wanted=RunFilter(attributes={"n": n})), RunPage).runs
            assert [one.id for one in found] == [name]
        assert [run.id for run in self.claim()] == ["r"]

    def test_the_idempotency_key_of_a_replaced_run_finds_the_kept_one(self) -> None:
        self.ended_run(key="once")
        self.ask(new("2", key="twice"), Started)
        found = self.ask(start("another", request="3", key="once"), Started)
        assert (found.run.id, found.fresh) == ("r~1", False)
        found = self.ask(new("4", key="once"), Started)
        assert (found.run.id, found.fresh) == ("r~1", False)
        assert self.ask(new("5", key="twice"), Started).run.id == "r"

    def test_runs_are_replaced_one_after_another(self) -> None:
        self.ended_run()
        for generation in (2, 3, 4):
            run = self.ask(new(str(generation), worker="w.1", key=f"k{generation}"), Started).run
            assert (run.generation, run.first, run.replaces) == (generation, generation, f"r~{generation - 1}")
            self.ask(record(run, str(generation), then=DONE), Recorded)
        assert [self.whole(f"r~{n}").entries for n in (1, 2, 3)] == [("1", "a", "b"), ("1", "2"), ("1", "3")]
        assert [self.ask(start(request=f"x{n}", key=f"k{n}"), Started).run.id for n in (2, 3, 4)] == ["r~2", "r~3", "r"]

    def test_a_run_may_be_replaced_by_one_of_another_workflow(self) -> None:
        self.ended_run(key="once")
        assert self.ask(new("2", type="mail", key="once"), Started).run.workflow == "mail"
        by_name = self.ask(r.ListRuns(wanted=RunFilter(workflow="order")), RunPage).runs
        assert [run.id for run in by_name] == ["r~1"]
        found = [self.ask(start("y", request=f"y{n}", type=n, key="once"), Started).run.id for n in ("order", "mail")]
        assert found == ["r~1", "r"]

    def test_a_start_sent_again_returns_its_run_also_after_that_was_replaced(self) -> None:
        self.ended_run()
        first = self.ask(new("2", worker="w.1"), Started).run
        assert self.ask(new("2", worker="w.1"), Started).run == first
        self.ask(record(first, then=DONE), Recorded)
        again = self.ask(new("2", worker="w.1"), Started)
        assert (again.run.id, again.run.status, again.fresh) == ("r", "completed", True)
        second = self.ask(new("3", worker="w.1"), Started).run
        self.ask(record(second, then=DONE), Recorded)
        for request, name in (("start r", "r~1"), ("2", "r~2"), ("3", "r")):
            assert self.ask(new(request), Started).run.id == name
        assert self.run_seen().generation == 3

    def test_a_living_run_is_not_replaced(self) -> None:
        run = self.ask(start(worker=self.add_worker()), Started).run
        assert self.ask(new("2"), RunTaken).why == "living"
        self.ask(record(run, "a", then=Park(None)), Recorded)
        assert self.ask(new("3"), RunTaken).why == "living"
        assert self.whole("r").entries == ("1", "a")

    def test_a_child_of_a_living_parent_is_not_replaced(self) -> None:
        parent = self.ask(start("p", worker=self.add_worker()), Started).run
        child = NewRun(id="c", type="order", input="2", request="child", parent="p", root="p")
        self.ask(record(parent, "a", children=(child,)), Recorded)
        (born,) = self.claim()
        self.ask(record(born, then=DONE), Recorded)
        assert self.ask(new("2", "c"), RunTaken).why == "child"
        assert self.ask(say("3", run="c"), RunTaken).why == "child"
        self.ask(record(parent, at=2, seen=1, then=DONE), Recorded)
        run = self.ask(new("4", "c"), Started).run
        assert (run.parent, run.root, run.generation) == ("", "c", 2)
        assert (self.run_seen("c~1").parent, self.run_seen("c~1").root) == ("p", "p")

    def test_a_child_that_was_replaced_is_not_taken_for_the_one_that_its_restarted_parent_starts(self) -> None:
        """The request of a child is its place in its parent, so it is the same after a restart."""
        parent = self.ask(start("p", worker=self.add_worker()), Started).run
        child = NewRun(id="c", type="order", input="2", request="child", parent="p", root="p")
        self.ask(record(parent, "a", children=(child,)), Recorded)
        (born,) = self.claim()
        self.ask(record(born, then=DONE), Recorded)
        self.ask(record(parent, at=2, seen=1, then=Finish("failed", "null")), Recorded)
        self.ask(new("2", "c"), Started)
        self.ask(r.ReviveRun(run="p", fence=parent.fence, keep=1, request="again", fresh=True), Posted)
        (again,) = self.claim(runs=("p",))
        assert self.ask(record(again, "a", children=(child,)), Recorded).taken == ("c",)

    def test_the_end_of_a_child_is_no_event_for_the_run_that_replaced_its_parent(self) -> None:
        parent = self.ask(start("p", worker=self.add_worker()), Started).run
        child = NewRun(id="c", type="order", input="2", request="child", parent="p", root="p")
        self.ask(record(parent, "a", children=(child,), then=DONE), Recorded)
        (born,) = self.claim()
        later = self.ask(new("2", "p", worker="w.1"), Started).run
        again = NewRun(id="p~2/c", type="order", input="2", request="again", parent="p", root="p")
        self.ask(record(later, "a", children=(again,)), Recorded)
        self.ask(record(born, then=DONE), Recorded)
        assert self.run_seen("p").posted == 0
        (mine,) = self.claim()
        self.ask(record(mine, then=DONE), Recorded)
        assert [event.name for event in self.whole("p").events] == ["p~2/c"]

    def test_a_kept_run_neither_continues_nor_receives_anything(self) -> None:
        self.ended_run()
        self.ask(new("2"), Started)
        kept = self.run_seen("r~1")
        self.ask(r.ReviveRun(run="r~1", fence=kept.fence, keep=1, request="again"), RunRefused)
        self.ask(signal("r~1"), RunRefused)
        assert self.run_seen("r~1") == kept

    def test_events_keep_their_numbers_where_some_were_removed(self) -> None:
        failed = Finish("failed", "null")
        run = self.ask(start(worker=self.add_worker()), Started).run
        self.send(signal(), signal(key="k2"), signal())
        self.ask(record(run, "a", then=failed, seen=3), Recorded)
        self.ask(r.ReviveRun(run="r", fence=run.fence, keep=1, request="again", forget=(1, 3)), Posted)
        (again,) = self.claim()
        self.ask(record(again, then=failed, seen=3), Recorded)
        self.ask(new("2"), Started)
        kept = self.whole("r~1")
        assert ([(event.number, event.key) for event in kept.events], kept.run.posted) == ([(2, "k2")], 3)

    def test_a_run_is_replaced_only_where_its_limits_admit_the_new_one(self) -> None:
        self.add_worker()
        terms = self.limited(1, "reject")
        first = self.begin("r", terms).run
        self.end(first)
        other = self.begin("o", terms).run
        places: dict[str, Any] = {"places": (LimitKey("all"),), "terms": terms.digest}
        before = self.whole("r")
        assert self.ask(new("2", **places), Limited).verdict.what == "reject"
        assert self.ask(say("3", "k", **places), Limited).verdict.what == "reject"
        assert self.whole("r") == before
        assert self.ask(r.ReadRun(run="r~1"), RunSeen).claim is None
        self.end(other)
        assert self.ask(new("4", **places), Started).run.generation == 2

    def test_a_start_that_is_queued_replaces_and_waits_for_its_turn(self) -> None:
        self.add_worker()
        terms = self.limited(1, "queue")
        self.end(self.begin("r", terms).run)
        other = self.begin("o", terms).run
        run = self.ask(say("2", "k", places=(LimitKey("all"),), terms=terms.digest), Started).run
        assert (run.status, run.posted, run.generation) == ("queued", 1, 2)
        self.end(other)
        (claimed,) = self.claim()
        assert (claimed.id, [event.key for event in self.whole("r").events]) == ("r", ["k"])

    def test_a_signal_that_begins_no_run_is_not_sent(self) -> None:
        self.add_worker()
        terms = self.limited(1, "cancel_newest")
        self.begin("o", terms)
        sent = say("2", "k", places=(LimitKey("all"),), terms=terms.digest)
        for _ in range(2):
            refused = self.ask(sent, Started)
            assert (refused.verdict.what, refused.verdict.limit, refused.run.status) == (
                "cancel_newest",
                "all",
                "cancelled",
            )
        assert (self.run_seen().posted, self.run_seen().cancelled_by) == (0, LimitCancel("all"))

    def test_a_run_that_a_limit_cancels_names_the_limit_and_the_newer_run(self) -> None:
        self.add_worker()
        terms = self.limited(1, "cancel_oldest")
        self.begin("old", terms)
        self.begin("new", terms)
        assert self.run_seen("old").cancelled_by == LimitCancel("all", "new")
        (event,) = self.whole("old").events
        assert (event.kind, event.payload) == ("cancel", '{"limit":"all","run":"new"}')

    def test_a_run_that_a_limit_cancels_before_it_began_says_why(self) -> None:
        terms = self.limited(1, "cancel_oldest")
        self.ask(self.asked("old", terms, worker=""), Started)
        self.ask(self.asked("new", terms, worker=""), Started)
        old = self.run_seen("old")
        assert (old.status, old.cancelled_by) == ("cancelled", LimitCancel("all", "new"))
        assert old.result is not None
        assert "the limit all was full when the run 'new' started" in old.result

    # -- start or signal ---------------------------------------------------------------------------------------

    def test_a_signal_starts_a_run_whose_first_event_it_is(self) -> None:
        began = self.ask(say("1", "k1"), Started)
        assert (began.fresh, began.run.status, began.run.posted) == (True, "pending", 1)
        seen = self.whole("r")
        assert (seen.run, seen.entries) == (began.run, ('"1"',))
        assert [(event.number, event.kind, event.name, event.payload, event.key) for event in seen.events] == [
            (1, "signal", "said", '"1"', "k1")
        ]

    def test_a_signal_goes_to_the_run_that_is_living(self) -> None:
        self.ask(say("1", "k1"), Started)
        posted = self.ask(say("2", "k2"), Posted)
        assert (posted.number, posted.fresh, posted.run.request) == (2, True, "1")
        again = self.ask(say("3", "k2"), Posted)
        assert (again.number, again.fresh) == (2, False)
        assert self.ask(say("4", "k4", type="mail"), RunTaken).why == "workflow"
        assert [event.key for event in self.whole("r").events] == ["k1", "k2"]

    def test_a_signal_to_a_run_that_has_ended_begins_the_next_one(self) -> None:
        run = self.ask(say("1", "k1", worker=self.add_worker()), Started).run
        assert (run.status, run.worker) == ("running", "w.1")
        self.ask(record(run, then=DONE, seen=1), Recorded)
        began = self.ask(say("2", "k2", worker="w.1"), Started).run
        assert (began.generation, began.replaces, began.worker, began.posted) == (2, "r~1", "w.1", 1)
        assert [[event.key for event in self.whole(name).events] for name in ("r~1", "r")] == [["k1"], ["k2"]]

    def test_a_signal_that_an_ended_run_knows_begins_nothing(self) -> None:
        run = self.ask(say("1", "k1", worker=self.add_worker()), Started).run
        self.ask(signal(key="k2"), Posted)
        self.ask(record(run, then=DONE, seen=2), Recorded)
        for key in ("k1", "k2"):
            known = self.ask(say(f"again {key}", key), Posted)
            assert (known.fresh, known.run.status, known.run.generation) == (False, "completed", 1)
        run = self.ask(say("3", "k3", worker="w.1"), Started).run
        for key in ("k1", "k2"):
            assert not self.ask(say(f"living {key}", key), Posted).fresh
            assert not self.ask(signal(key=key), Posted).fresh
        self.ask(record(run, then=DONE, seen=1), Recorded)
        for key in ("k1", "k2", "k3"):
            known = self.ask(say(f"ended {key}", key), Posted)
            assert (known.fresh, known.run.generation) == (False, 2)
        assert [event.key for event in self.whole("r").events] == ["k3"]

    @pytest.mark.parametrize("key", ["", "k1"])
    def test_a_start_or_signal_sent_again_starts_one_run_with_one_signal(self, key: str) -> None:
        first = self.ask(say("1", key), Started)
        again = self.ask(say("1", key), Started)
        assert (again.run, again.fresh) == (first.run, True)
        assert len(self.whole("r").events) == 1
        self.add_worker()
        (run,) = self.claim()
        self.ask(record(run, then=DONE, seen=1), Recorded)
        assert self.ask(say("1", key), Started).run.status == "completed"
        self.ask(say("2", "k2"), Started)
        assert self.ask(say("1", key), Started).run.id == "r~1"
        assert self.run_seen().generation == 2

    def test_signals_of_one_batch_start_one_run(self) -> None:
        sent = self.send(*(say(str(n), f"k{n}") for n in range(5)))
        assert [type(outcome) for outcome in sent] == [Started, *[Posted] * 4]
        assert [event.key for event in self.whole("r").events] == [f"k{n}" for n in range(5)]

    def test_a_run_may_begin_end_and_begin_again_in_one_batch(self) -> None:
        cancel = r.PostEvent(run="r", event=RunEvent(kind="cancel"))
        sent = self.send(start(key="a"), cancel, new("2", key="b"), cancel, new("3", key="c"), say("4", "k"))
        assert [type(outcome) for outcome in sent] == [Started, Posted, Started, Posted, Started, Posted]
        runs = [self.run_seen(name) for name in ("r~1", "r~2", "r")]
        assert [(run.key, run.status, run.posted) for run in runs] == [
            ("a", "cancelled", 1),
            ("b", "cancelled", 1),
            ("c", "pending", 1),
        ]
        assert rule.archive_id(runs[2]) == "r~3"
