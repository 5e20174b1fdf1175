"""What a run may do to the runs that it has started: send them events, and never to other runs that have their ids."""

from __future__ import annotations

from ...commands import purging as p
from ...commands import runs as r
from ...rules.runs.outcomes import EndedRuns, Posted, Purged, PurgeStep, Recorded, RunRefused, RunSeen, Started
from ...rules.runs.record import Continue, Finish, NewRun, OnParentEnd, Parent, Park, RunEvent
from .requests import DONE, RequestTests
from .runs import record, signal, start

CHILD = NewRun(id="c", type="order", input="2", request="child", parent="r", root="r")


def to_child(parent: Parent | None, kind: str = "signal", key: str = "k") -> r.PostEvent:
    """An event for the child, from this run."""
    event = RunEvent(kind="cancel" if kind == "cancel" else "signal", name="said", key=key)
    return r.PostEvent(run="c", event=event, parent=parent)


class ChildTests(RequestTests):
    """What a store with workflows promises about the children of runs."""

    def start_child(self) -> None:
        """Start a run that a worker drives, and its child."""
        parent = self.ask(start(worker=self.add_worker("w.0")), Started).run
        self.ask(record(parent, then=Park(None), children=(CHILD,)), Recorded)

    def test_an_event_of_a_parent_is_posted_to_its_child_once(self) -> None:
        self.start_child()
        assert self.ask(to_child(Parent("r")), Posted).fresh
        assert not self.ask(to_child(Parent("r")), Posted).fresh
        self.ask(to_child(Parent("r"), "cancel", "other"), Posted)
        assert not self.ask(to_child(Parent("r")), Posted).fresh, "also after its end"
        assert self.ask(to_child(Parent("r"), key="late"), RunRefused).run is not None

    def test_an_event_of_a_run_is_refused_by_a_run_that_it_has_not_started(self) -> None:
        self.start_child()
        for other in (Parent("x"), Parent("r", 2), Parent("")):
            for kind in ("signal", "cancel"):
                assert self.ask(to_child(other, kind), RunRefused).run is None
        assert (self.run_seen("c").status, self.run_seen("c").posted) == ("pending", 0)
        self.ask(signal("c"), Posted)

    def test_an_event_of_a_run_is_refused_after_its_child_was_replaced(self) -> None:
        self.start_child()
        (child, parent) = sorted(self.claim("w.0", runs=("c", "r")), key=lambda run: run.id)
        self.ask(record(child, then=DONE), Recorded)
        self.ask(record(parent, then=DONE, seen=1), Recorded)
        self.ask(start("c", on_existing="replace_ended", request="again"), Started)
        assert self.ask(to_child(Parent("r"), "cancel"), RunRefused).run is None
        assert self.run_seen("c").living

    def test_the_reason_of_the_first_cancel_is_kept_until_a_retry(self) -> None:
        run = self.ask(start(worker=self.add_worker()), Started).run
        for n, reason in enumerate(("first é \\u0000", "second")):
            event = RunEvent(kind="cancel", key=f"k{n}", payload=f'{{"reason":"{reason}"}}')
            assert (
                self.ask(r.PostEvent(run="r", event=event), Posted).run.cancel_reason
                == "first é \N{REPLACEMENT CHARACTER}"
            )
        self.ask(record(run, seen=2, then=Finish("cancelled", "null")), Recorded)
        assert self.run_seen().cancel_reason == "first é \N{REPLACEMENT CHARACTER}"
        self.ask(r.ReviveRun(run="r", fence=self.run_seen().fence, keep=1, request="again"), Posted)
        assert (self.run_seen().cancel_reason, self.run_seen().cancelling) == ("", False)

    def test_a_first_cancel_without_a_reason_counts_too_and_one_before_the_begin_has_its_reason(self) -> None:
        self.ask(start(worker=self.add_worker()), Started)
        self.ask(start("early"), Started)
        for payload in ("null", '{"reason":"second"}'):
            self.ask(r.PostEvent(run="r", event=RunEvent(kind="cancel", payload=payload)), Posted)
        assert self.run_seen().cancel_reason == ""
        self.ask(r.PostEvent(run="early", event=RunEvent(kind="cancel", payload='{"reason":"no"}')), Posted)
        early = self.run_seen("early")
        assert (early.status, early.cancel_reason, "began: no" in (early.result or "")) == ("cancelled", "no", True)

    def end_with_children(self, then: Finish) -> list[str]:
        """End a run with three living children, one of each policy, beside a run of another parent."""
        parent = self.ask(start(worker=self.add_worker("w.0")), Started).run
        policies: tuple[OnParentEnd, ...] = ("", "cancel", "abandon")
        children = tuple(
            NewRun(id=f"c{n}", type="order", input="2", request=f"c{n}", parent="r", root="r", on_parent_end=policy)
            for n, policy in enumerate(policies)
        )
        other = start("x", parent="y", root="x", on_parent_end="cancel")
        self.ask(other, Started)
        self.ask(record(parent, children=children), Recorded)
        self.claim("w.0", runs=("c1",))
        self.ask(record(parent, request="end", then=then), Recorded)
        again = self.ask(record(parent, request="end", then=then), Recorded)
        assert again.done, "sent again, it is the same end"
        return [self.run_seen(run).status for run in ("c0", "c1", "c2", "x")]

    def test_the_end_of_a_run_cancels_its_children_with_that_policy_and_no_other_run(self) -> None:
        statuses = self.end_with_children(Finish("completed", "1", cancels=("c0", "c1", "c2", "x", "nobody", "r")))
        assert statuses == ["pending", "running", "pending", "pending"]
        child = self.run_seen("c1")
        assert (child.cancelling, child.posted, child.cancel_reason) == (
            True, 1, "cancelled by the parent run r: it is completed",
        )  # fmt: skip
        assert not any(self.run_seen(run).cancelling for run in ("c0", "c2", "x"))

    def test_an_abandoned_child_is_the_first_run_of_its_tree(self) -> None:
        self.end_with_children(Finish("completed", "1"))
        assert [(self.run_seen(run).root, self.run_seen(run).parent) for run in ("c0", "c2")] == [
            ("r", "r"), ("c2", "r"),
        ]  # fmt: skip
        (ended,) = self.claim("w.0", runs=("c2",))
        self.ask(record(ended, then=Finish("completed", "2")), Recorded)
        found = self.ask(
            p.ListEndedRuns(workflow="order", status="completed", before=2**52, after=None, limit=9), EndedRuns
        )
        assert sorted(run for _, run in found.runs) == ["c2", "r"]
        purged = self.ask(p.PurgeRuns(roots=("c2", "r"), before=2**52), Purged)
        assert (purged.trees, purged.runs, purged.living) == (1, 1, 1), "the tree of r has c0, which has not ended"
        assert self.ask(r.ReadRun(run="c2"), RunSeen).claim is None

    def test_an_abandoned_child_that_ended_before_its_parent_has_continued_is_removed(self) -> None:
        worker = self.add_worker("w.0", seconds=3_000)
        parent = self.ask(start("r", worker=worker), Started).run
        child = NewRun(id="c", type="order", input="2", request="c", parent="r", root="r", on_parent_end="abandon")
        self.ask(record(parent, children=(child,)), Recorded)
        (ended,) = self.claim("w.0", runs=("c",))
        self.ask(record(ended, then=Finish("completed", "2")), Recorded)
        assert self.ask(p.PurgeRuns(roots=("c",), before=2**52), Purged).living == 1
        self.advance(0.01)
        now = self.run_seen()
        self.ask(record(now, then=Continue("3", "continued"), seen=now.posted), Recorded)
        assert self.ask(p.PurgeRuns(roots=("c",), before=2**52), Purged).trees == 1

    def test_an_abandoned_child_is_not_removed_while_its_parent_can_be_retried(self) -> None:
        self.end_with_children(Finish("failed", "null"))
        (ended,) = self.claim("w.0", runs=("c2",))
        self.ask(record(ended, then=Finish("completed", "2")), Recorded)
        assert self.ask(p.PurgeRuns(roots=("c2",), before=2**52), Purged).living == 1
        mark = p.PurgeTree(root="c2", before=2**52, purge="p", step="mark")
        assert self.ask(mark, PurgeStep).state == "refused"
