"""What a run may do to the runs that it has started: send them events, and never to other runs that have their ids."""

from __future__ import annotations

from ...commands import runs as r
from ...rules.runs.outcomes import Posted, Recorded, RunRefused, Started
from ...rules.runs.record import NewRun, Parent, Park, RunEvent
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
