"""Purges: which runs are found and removed, what goes with them, and what each command answers afterwards."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from ... import commands as c
from ...commands import purging as p
from ...commands import runs as r
from ...rules.lock_outcomes import Outcome
from ...rules.record_type import RecordStruct, RecordType
from ...rules.runs import purging as rules
from ...rules.runs.outcomes import (
    EndedRuns,
    EndedWorkflows,
    Posted,
    Purged,
    PurgeStep,
    Recorded,
    RunCounts,
    RunPage,
    RunRefused,
    RunSeen,
    RunTaken,
    Started,
    TreeSeen,
)
from ...rules.runs.record import Finish, NewRun, Park, Run
from ...rules.runs.repository import RunFilter, RunRepository
from ...rules.runs.transitions import see
from ...rules.runs.tree import TREE_MEMBER, tree_prefix
from ...rules.slot import Address, SlotSeen, Swapped
from .base import names
from .runs import RunTests, record, signal, start

DONE = Finish("completed", '"done"')


class Note(RecordStruct, frozen=True):
    """A record about a run."""

    text: str


NOTE = RecordType("purge-note", Note)


class PutNote(c.RecordCommand, frozen=True, kw_only=True):
    """Write a note."""

    record_type = NOTE

    def apply(self, record: Any, now: int) -> tuple[Any, Any]:
        """Write it."""
        return Note(text=self.key), RunCounts(counts={})


class Renumber(r.RunCommand, frozen=True, kw_only=True):
    """Give a run the number of a later one with its id."""

    run: str
    generation: int

    def apply(self, repo: RunRepository, now: int) -> Outcome:
        """Write it."""
        run = repo.run(self.run)
        assert run is not None
        repo.save(replace(run, generation=self.generation))
        return see(repo, now, self.run, history=False)


class PurgeTests(RunTests):
    """What the commands about purges promise, on a store with workflows."""

    def ended(self, run: str = "r", end: Finish = DONE, **more: Any) -> Run:
        """A run that has ended."""
        began = self.ask(start(run, worker=self.add_worker(seconds=3_000), **more), Started).run
        self.ask(record(began, "a", then=end), Recorded)
        return self.run_seen(run)

    def later(self) -> int:
        """A moment after everything that has happened until now."""
        return self.ask(p.ListEndedWorkflows(), EndedWorkflows).now + 1

    def purge(self, *roots: str, before: int | None = None) -> Purged:
        """Purge these runs."""
        return self.ask(p.PurgeRuns(roots=roots, before=self.later() if before is None else before), Purged)

    def exists(self, run: str) -> bool:
        """Whether a run can be read."""
        return self.ask(r.ReadRun(run=run, history=True), RunSeen).claim is not None

    def tree(self, *children: str) -> Run:
        """A run `r` that is driven, with these children, which are due."""
        parent = self.ask(start(worker=self.add_worker(seconds=3_000)), Started).run
        new = tuple(
            NewRun(id=child, type="order", input="2", request=f"start {child}", parent="r", root="r")
            for child in children
        )
        self.ask(record(parent, children=new), Recorded)
        return self.run_seen()

    def found(self, status: str = "completed", **more: Any) -> list[str]:
        """The ids of ended runs that a purge would look at."""
        wanted: dict[str, Any] = {"workflow": "order", "status": status, "before": self.later()} | more
        command = p.ListEndedRuns(**wanted)
        return [name for _, name in self.ask(command, EndedRuns).runs]

    # -- finding ------------------------------------------------------------------------------------------------

    def test_ended_runs_are_found_by_their_end_and_not_by_their_start(self) -> None:
        early = self.ask(start("early", worker=self.add_worker(seconds=3_000)), Started).run
        self.advance(0.01)
        late = self.ended("late")
        self.advance(0.01)
        self.ask(record(early, then=DONE), Recorded)
        assert self.found() == ["late", "early"]
        assert late.ended_at is not None
        assert self.found(before=late.ended_at + 1) == ["late"]
        assert self.purge("early", "late", before=late.ended_at + 1).trees == 1
        assert self.exists("early")
        assert not self.exists("late")

    def test_ended_runs_are_found_in_pages_by_workflow_and_status(self) -> None:
        for n in range(5):
            self.ended(f"r{n}")
        self.ended("no", Finish("failed", "null"))
        self.ask(start("lives"), Started)
        page = self.ask(p.ListEndedRuns(workflow="order", status="completed", before=self.later(), limit=2), EndedRuns)
        assert [name for _, name in page.runs] == ["r0", "r1"]
        assert self.found(after=page.next) == ["r2", "r3", "r4"]
        assert self.found("failed") == ["no"]
        assert self.found(workflow="mail") == []
        assert self.ask(p.ListEndedWorkflows(), EndedWorkflows).names == ("order",)
        assert self.ask(p.ListEndedWorkflows(after="order"), EndedWorkflows).names == ()

    def test_a_child_is_found_only_through_its_first_run(self) -> None:
        parent = self.tree("child")
        self.finish("child")
        assert self.found() == []
        self.ask(record(parent, then=DONE, seen=9), Recorded)
        assert self.found() == ["r"]
        assert self.purge("child").trees == 0
        assert self.exists("child")

    def test_a_replaced_run_stays_while_a_run_below_it_lives(self) -> None:
        parent = self.tree("child", "other")
        (child,) = self.claim(runs=("child",))
        below = NewRun(id="below", type="order", input="2", request="start below", parent="child", root="r")
        self.ask(record(child, children=(below,), then=DONE), Recorded)
        self.finish("other")
        self.ask(record(parent, then=DONE, seen=9), Recorded)
        self.ask(start("r", request="again", on_existing="replace_ended"), Started)
        assert self.purge("r~1") == Purged(trees=0, runs=0, living=1)
        self.finish("below")
        assert self.purge("r~1") == Purged(trees=1, runs=1)
        assert self.exists("r")
        assert self.exists("child")

    def test_a_replaced_run_does_not_wait_for_the_children_of_its_successor(self) -> None:
        self.ended()
        worker = self.add_worker(seconds=3_000)
        successor = self.ask(start("r", request="again", on_existing="replace_ended", worker=worker), Started).run
        child = NewRun(id="child", type="order", input="2", request="start child", parent="r", root="r")
        self.ask(record(successor, children=(child,)), Recorded)
        assert self.purge("r~1") == Purged(trees=1, runs=1)

    def finish(self, *runs: str) -> None:
        """Claim and end runs."""
        for run in self.claim(runs=runs, limit=100):
            self.ask(record(run, then=DONE, seen=run.posted), Recorded)

    # -- removing -----------------------------------------------------------------------------------------------

    def test_a_child_that_is_started_for_a_worker_is_in_the_tree_of_its_root(self) -> None:
        self.add_worker()
        self.ask(start("p", worker="w.1"), Started)
        self.ask(start("c", worker="w.1", parent="p", root="p"), Started)
        assert self.ask(p.LookAtTree(root="p", before=self.later()), TreeSeen).runs == 1

    def test_a_purged_run_is_absent_for_every_command_and_its_id_and_key_are_free(self) -> None:
        run = self.ended(key="k", attributes={"n": 1})
        assert self.purge("r") == Purged(trees=1, runs=1)
        assert not self.exists("r")
        assert self.ask(r.WatchRun(run="r", id="w.2"), RunSeen).claim is None
        assert self.ask(signal(), RunRefused).run is None
        again = r.ReviveRun(run="r", fence=run.fence, keep=1, request="again")
        assert self.ask(again, RunRefused).run is None
        assert self.ask(record(run, "late"), RunRefused).run is None
        assert self.ask(r.ListRuns(), RunPage).runs == ()
        assert self.ask(r.ListRuns(wanted=RunFilter(attributes={"n": 1})), RunPage).runs == ()
        assert self.ask(r.ListRuns(wanted=RunFilter(prefix="r")), RunPage).runs == ()
        assert self.found() == []
        assert self.ask(start("s", key="k", request="other"), Started).fresh
        fresh = self.ask(start("r", request="third"), Started).run
        assert (fresh.generation, fresh.length) == (1, 1)
        seen = self.ask(r.ReadRun(run="r", history=True), RunSeen).claim
        assert seen is not None
        assert (seen.entries, seen.events) == (("1",), ())

    def test_events_and_their_keys_go_with_a_run(self) -> None:
        self.ask(start(), Started)
        self.ask(signal(key="k"), Posted)
        run = self.claim(self.add_worker(seconds=3_000))[0]
        self.ask(record(run, then=DONE, seen=1), Recorded)
        assert self.purge("r").runs == 1
        self.ask(start(request="other"), Started)
        assert self.ask(signal(key="k"), Posted).fresh

    def test_state_of_the_tree_goes_with_it_and_all_other_state_stays(self) -> None:
        self.ended("other")
        self.ended()
        kept: list[Address] = [
            ("global", "", "r"),
            ("workflow", "r", "x"),
            ("execution", "other", "x"),
            ("execution", "rr", "x"),
        ]
        gone: list[Address] = [("execution", "r", "x"), ("execution", "r", "y: é")]
        for address in (*kept, *gone):
            self.ask(c.SwapSlot(address=address, request="a.1", expected="", version=0, value="1"), Swapped)
        assert self.purge("r").runs == 1
        for address in kept:
            assert self.ask(c.ReadSlot(address=address), SlotSeen).value == "1"
        for address in gone:
            assert self.ask(c.ReadSlot(address=address), SlotSeen) == SlotSeen(version=0, last="", value=None)

    def test_a_tree_goes_as_a_whole_when_its_last_run_has_ended_long_ago(self) -> None:
        parent = self.tree("child", "other")
        self.finish("other")
        self.ask(record(parent, then=DONE, seen=9), Recorded)
        assert self.purge("r") == Purged(trees=0, runs=0, living=1)
        self.advance(0.01)
        moment = self.later()
        self.advance(0.01)
        self.finish("child")
        assert self.purge("r", before=moment) == Purged(trees=0, runs=0, young=1)
        assert self.exists("other")
        counted = self.ask(p.CountPurgeable(roots=("r", "r", "nobody"), before=self.later()), Purged)
        assert counted == Purged(trees=1, runs=3)
        assert self.exists("r")
        assert self.purge("r", "nobody") == Purged(trees=1, runs=3)
        assert not any(map(self.exists, ("r", "child", "other")))
        records = self.ask(c.ListRecords(kind=TREE_MEMBER.name, prefix=tree_prefix("r")), c.RecordPage)
        assert records.items == ()
        assert self.purge("r") == Purged(trees=0, runs=0)

    def test_a_run_that_is_retried_before_a_purge_stays(self) -> None:
        run = self.ended(end=Finish("failed", "null"))
        before = self.later()
        self.ask(r.ReviveRun(run="r", fence=run.fence, keep=1, request="again"), Posted)
        assert self.purge("r", before=before).living == 1
        assert self.claim()[0].id == "r"

    def test_of_an_id_that_had_several_runs_the_number_stays(self) -> None:
        """The keys of the steps of a later run must differ from those of the earlier ones."""
        self.ended(attributes={"n": 1})
        self.ask(Renumber(run="r", generation=7), RunSeen)
        assert self.purge("r").runs == 1
        assert not self.exists("r")
        assert self.found() == self.found("purged") == []
        assert self.purge("r") == Purged(trees=0, runs=0)
        for wanted in (RunFilter(), RunFilter(prefix="r"), RunFilter(workflow="order"), RunFilter(attributes={"n": 1})):
            assert self.ask(r.ListRuns(wanted=wanted), RunPage).runs == ()
        assert self.ask(r.CountRuns(), RunCounts).counts == {}
        self.advance(0.01)
        worker = self.add_worker("w.2", "mail", seconds=3_000)
        fresh = self.ask(start(worker=worker, request="new", type="mail", key="k"), Started)
        assert (fresh.fresh, fresh.run.generation, fresh.run.worker) == (True, 8, worker)
        assert self.run_seen() == fresh.run
        assert [run.id for run in self.ask(r.ListRuns(wanted=RunFilter(workflow="mail")), RunPage).runs] == ["r"]
        assert not self.ask(start("s", request="other", type="mail", key="k"), Started).fresh
        self.ask(record(fresh.run, "a", then=DONE), Recorded)
        assert self.purge("r").runs == 1
        assert self.ask(start(request="newest"), Started).run.generation == 9

    def test_a_run_is_imported_under_an_id_that_was_purged_and_keeps_the_higher_number(self) -> None:
        for name, generation in (("r", 7), ("s", 2)):
            self.ended(name)
            self.ask(Renumber(run=name, generation=generation), RunSeen)
            ended = replace(self.run_seen(name), generation=3)
            assert self.purge(name).runs == 1
            command = r.ImportRun(imported=ended, entries=("1", "a"), events=())
            began = self.ask(command, Started)
            assert (began.run, began.fresh) == (replace(ended, generation=max(3, generation)), True)
            assert self.run_seen(name) == began.run
            assert not self.ask(command, Started).fresh
        assert self.found() == ["r", "s"]

    def test_an_imported_child_is_a_first_run_and_is_purged_alone(self) -> None:
        """Its root is not here, or is another run with this id."""
        parent = self.tree("child")
        self.finish("child")
        ended = replace(self.run_seen("child"), id="copy")
        self.ask(r.ImportRun(imported=ended, entries=("2",), events=()), Started)
        self.ask(record(parent, then=DONE, seen=9), Recorded)
        assert self.run_seen("copy").root == "copy"
        assert self.purge("r").runs == 2
        assert self.found() == ["copy"]
        assert self.purge("copy").runs == 1

    def test_a_step_removes_a_limited_number_of_runs(self) -> None:
        self.add_worker(seconds=3_000)
        roots = [f"r{n}" for n in range(rules.RUNS_AT_ONCE + 5)]
        outcomes = self.send(*(start(run, worker="w.1") for run in roots))
        self.send(*(record(one.run, then=DONE) for one in outcomes if isinstance(one, Started)))
        first = self.purge(*roots)
        assert (first.trees, first.rest) == (rules.RUNS_AT_ONCE, tuple(roots[-5:]))
        assert self.purge(*first.rest) == Purged(trees=5, runs=5)

    def test_records_about_a_run_go_with_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(rules, "record_prefixes", lambda run: ((NOTE, f"{run.id}/"),))
        self.ended()
        self.send(*(PutNote(key=key) for key in ("r/1", "r/2", "s/1")))
        assert self.purge("r").runs == 1
        page = self.ask(c.ListRecords(kind=NOTE.name), c.RecordPage)
        assert [item.key for item in page.items] == ["s/1"]

    # -- large trees --------------------------------------------------------------------------------------------

    def step(self, step: Any, *, purge: str = "p", before: int | None = None) -> PurgeStep:
        """One step of the purge of the large tree `r`."""
        moment = self.later() if before is None else before
        return self.ask(p.PurgeTree(root="r", before=moment, purge=purge, step=step), PurgeStep)

    def large_tree(self, many: int = rules.RUNS_AT_ONCE + 30) -> list[str]:
        """An ended tree that is too large for one step."""
        children = [f"r/{n}" for n in range(many)]
        parent = self.tree(*children)
        for run in self.claim(limit=many + 1):
            self.send(record(run, then=DONE))
        self.ask(record(parent, then=DONE, seen=10_000), Recorded)
        return children

    def test_a_large_tree_is_removed_in_steps_and_absent_from_the_second_one_on(self) -> None:
        children = self.large_tree()
        assert self.purge("r") == Purged(trees=0, runs=0, large=("r",))
        page = self.ask(p.LookAtTree(root="r", before=self.later(), limit=90), TreeSeen)
        assert (page.runs, page.living, page.young) == (90, 0, 0)
        page = self.ask(p.LookAtTree(root="r", before=self.later(), after=page.next or ""), TreeSeen)
        assert (page.runs, page.next) == (len(children) - 90, None)
        assert self.step("mark").state == "marked"
        assert self.exists("r")
        assert self.found() == ["r"]
        assert self.step("hide").state == self.step("hide").state == "hidden"
        assert not self.exists("r")
        assert self.ask(r.ListRuns(wanted=RunFilter(prefix="r"), limit=1), RunPage).runs[0].id != "r"
        self.ask(start(request="too early"), RunTaken)
        assert self.found("purged") == ["r"]
        seen = self.run_seen(children[0])
        revive = r.ReviveRun(run=seen.id, fence=seen.fence, keep=1, request="again")
        assert self.ask(revive, RunRefused).run is None
        first = self.step("remove")
        assert (first.state, first.runs) == ("hidden", rules.RUNS_AT_ONCE)
        assert self.found("purged") == ["r"]  # where the next purge finds it, if this one ends here
        assert self.step("remove") == PurgeStep(state="removed", runs=31)
        assert self.step("remove") == PurgeStep(state="removed", runs=0)
        assert not any(map(self.exists, children[::10]))
        assert self.found("purged") == []
        assert self.ask(start(request="now"), Started).fresh

    def test_a_run_of_an_announced_tree_that_is_retried_ends_the_purge(self) -> None:
        parent = self.tree("child")
        self.finish("child")
        self.ask(record(parent, then=DONE, seen=9), Recorded)
        for name in ("child", "r"):
            before = self.later()
            assert self.step("mark", before=before).state == "marked"
            seen = self.run_seen(name)
            self.ask(r.ReviveRun(run=name, fence=seen.fence, keep=1, request=f"again {name}"), Posted)
            assert self.step("hide", before=before).state == "refused"
            assert self.exists("r")
            self.finish(name)

    def test_of_two_purges_of_one_tree_the_later_one_continues(self) -> None:
        self.ended()
        assert self.step("mark", purge="p").state == "marked"
        assert self.step("mark", purge="q").state == "marked"
        assert self.step("hide", purge="p").state == "refused"
        assert self.step("hide", purge="q").state == "hidden"

    def test_a_purge_of_a_large_tree_is_refused_for_a_run_that_lives_or_is_too_young(self) -> None:
        self.ask(start(), Started)
        assert self.step("mark").state == "refused"
        self.ended("child", parent="r", root="r")
        run = self.claim(runs=("r",))[0]
        moment = self.later() - 2
        self.ask(record(run, then=DONE, seen=9), Recorded)
        assert self.step("mark", before=moment).state == "refused"
        assert self.step("hide").state == "refused"
        assert names(self.send(p.PurgeTree(root="nobody", before=moment, purge="p", step="hide"))) == ["PurgeStep"]

    def test_a_long_journal_is_removed_in_parts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(rules, "WORK_AT_ONCE", 10)
        run = self.ask(start(worker=self.add_worker(seconds=3_000)), Started).run
        self.ask(Renumber(run="r", generation=3), RunSeen)
        self.ask(record(run, *map(str, range(25)), then=DONE), Recorded)
        assert self.purge("r").large == ("r",)
        assert self.step("mark").state == "marked"
        assert self.step("hide").state == "hidden"
        states = [self.step("remove").state for _ in range(4)]
        assert states == ["hidden", "hidden", "removed", "removed"]
        assert self.ask(start(request="new"), Started).run.generation == 4

    def test_a_parked_tree_of_two_levels_stays_until_its_deepest_run_has_ended(self) -> None:
        parent = self.tree("child")
        (child,) = self.claim(runs=("child",))
        grandchild = NewRun(id="deep", type="order", input="3", request="start deep", parent="child", root="r")
        self.ask(record(child, children=(grandchild,), then=DONE), Recorded)
        self.ask(record(parent, then=DONE, seen=9), Recorded)
        (deep,) = self.claim(runs=("deep",))
        self.ask(record(deep, then=Park(None)), Recorded)
        assert self.purge("r").living == 1
        self.ask(r.FailRun(run="deep", fence=deep.fence, reason="null", request="no"), Posted)
        assert self.purge("r").runs == 3
