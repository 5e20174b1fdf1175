"""Cases for stores that compare and swap: another client changes one thing between the read and the write.

Then the rules decide again: the outcome is the one that they give when the other client came first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from holdfast import commands as c
from holdfast.commands import purging as p
from holdfast.commands import runs as r
from holdfast.rules.runs.limits import Limit, LimitKey, WorkflowLimits
from holdfast.rules.runs.outcomes import (
    Limited,
    LimitsDiffer,
    Purged,
    PurgeStep,
    Recorded,
    RunTaken,
    Started,
    WorkerGone,
)
from holdfast.rules.runs.record import Finish, Park
from holdfast.rules.slot import Conflict
from holdfast.testing.builders import SECOND, START, acquire, release, swap
from holdfast.testing.suite.runs import signal, start
from holdfast.testing.tally import CountRun, LeaveTally, SeeTally, add
from stores.runs_asking import claim

ONE = WorkflowLimits(limits=(Limit(name="all", max=1, on_excess="queue"),))
TEN = WorkflowLimits(limits=(Limit(name="all", max=10, on_excess="queue"),))
PACE = WorkflowLimits(limits=(Limit(name="pace", max=1, per=SECOND),))


def limited(run, terms, *, limit="all", **more):
    return start(run, places=(LimitKey(limit),), terms=terms.digest, **more)


def publish(terms):
    return r.PublishLimits(workflow="order", terms=terms)


def fence_of(run, at=1, **more):
    return r.RecordRun(run=run, fence=START, at=at, request=f"{run} {more}", **more)


class Case(NamedTuple):
    """What is stored, the command, the change in between, and whether an outcome is right."""

    before: list[c.Command]
    asked: c.Command
    meanwhile: list[c.Command]
    right: Callable[[Any, Callable[[c.Command], Any]], bool]


def run_now(see, run):
    return see(r.ReadRun(run=run)).claim.run


LATER = START + 3_600 * SECOND


def purge_step(step):
    return p.PurgeTree(root="r", before=LATER, purge="p", step=step)


def ended(run, **more):
    return [start(run, **more), r.FailRun(run=run, fence=0, reason="null", request=f"end {run}")]


def revive(run):
    return r.ReviveRun(run=run, fence=0, keep=1, request=f"again {run}")


CASES = {
    "a run that is purged": Case(
        ended("r"),
        p.PurgeRuns(roots=("r",), before=LATER),
        [revive("r")],
        lambda answer, see: answer == Purged(trees=0, runs=0, living=1) and run_now(see, "r").living,
    ),
    "a run below one that is purged": Case(
        [*ended("r"), *ended("r/1", parent="r", root="r")],
        p.PurgeRuns(roots=("r",), before=LATER),
        [revive("r/1")],
        lambda answer, see: answer == Purged(trees=0, runs=0, living=1) and run_now(see, "r/1").living,
    ),
    "a run below one that is hidden": Case(
        [*ended("r"), *ended("r/1", parent="r", root="r"), purge_step("mark")],
        purge_step("hide"),
        [revive("r/1")],
        lambda answer, see: answer == PurgeStep(state="refused") and run_now(see, "r").status == "failed",
    ),
    "the state of a run that is purged": Case(
        ended("r"),
        p.PurgeRuns(roots=("r",), before=LATER),
        [c.SwapSlot(address=("execution", "r", "k"), request="a.1", expected="", version=0, value="1")],
        lambda answer, see: answer.runs == 1 and see(c.ReadSlot(address=("execution", "r", "k"))).value is None,
    ),
    "the number of admitted runs": Case(
        [publish(TEN), *(limited(f"r{n}", TEN, worker="w.1") for n in range(10))],
        limited("new", TEN),
        [fence_of("r0", then=Finish("completed", "1"))],
        lambda answer, _: isinstance(answer, Started) and answer.run.status == "pending",
    ),
    "the position of another run in the queue": Case(
        [publish(ONE), limited("a", ONE)],
        limited("new", ONE),
        [limited("other", ONE)],
        lambda answer, see: answer.run.arrival == run_now(see, "other").arrival + 1,
    ),
    "the first run of a queue": Case(
        [publish(ONE), limited("a", ONE, worker="w.1"), limited("b", ONE)],
        fence_of("a", then=Finish("completed", "1")),
        [limited("urgent", ONE, priority=5)],
        lambda _, see: [run_now(see, run).status for run in ("urgent", "b")] == ["pending", "queued"],
    ),
    "a limit key under which a run begins to wait": Case(
        [publish(ONE), limited("a", ONE)],
        publish(WorkflowLimits(version=1)),
        [limited("b", ONE)],
        lambda _, see: run_now(see, "b").status == "pending",
    ),
    "a start that a limit on starts counts": Case(
        [publish(PACE)],
        limited("new", PACE, limit="pace"),
        [limited("other", PACE, limit="pace", worker="w.1"), fence_of("other", then=Finish("completed", "1"))],
        lambda answer, _: isinstance(answer, Limited),
    ),
    "the published limits": Case([], start("new"), [publish(ONE)], lambda answer, _: isinstance(answer, LimitsDiffer)),
    "a run with the same id": Case(
        [], start("new"), [start("new", request="another")], lambda answer, _: isinstance(answer, RunTaken)
    ),
    "a run with the same key": Case(
        [], start("new", key="k"), [start("other", key="k")], lambda answer, _: answer.run.id == "other"
    ),
    "the worker unregisters": Case(
        [start("due")],
        claim(),
        [r.UnregisterWorker(worker="w.1")],
        lambda answer, see: isinstance(answer, WorkerGone) and run_now(see, "due").worker == "",
    ),
    "the lease of the worker ends": Case(
        [start("due")],
        claim(),
        [c.ForceRelease(key="worker/w.1", by="me", reason="why not")],
        lambda answer, see: isinstance(answer, WorkerGone) and run_now(see, "due").worker == "",
    ),
    "a worker that unregisters gets another run": Case(
        [],
        r.UnregisterWorker(worker="w.1"),
        [start("late", worker="w.1")],
        lambda _, see: run_now(see, "late").worker == "",
    ),
    "an event that a run has not seen": Case(
        [start("r", worker="w.1")],
        fence_of("r", then=Park(None)),
        [signal("r")],
        lambda answer, _: isinstance(answer, Recorded) and not answer.done,
    ),
    "an event with the same key": Case(
        [start("r", worker="w.1")],
        signal("r", key="k"),
        [signal("r", key="k")],
        lambda answer, _: not answer.fresh,
    ),
    "the fence of a run": Case(
        [start("r", worker="w.1")],
        fence_of("r", entries=("x",), attributes={"a": 1}),
        [fence_of("r", then=Park(0)), claim()],
        lambda _, see: run_now(see, "r").length == 1,
    ),
    "an entry of the journal": Case(
        [start("r", worker="w.1")],
        fence_of("r", entries=("x",), attributes={"a": 1}),
        [fence_of("r", entries=("y",))],
        lambda _, see: run_now(see, "r").length == 2,
    ),
    "a state": Case(
        [swap("a.1")],
        swap("b.1", "a.1", 1, "2"),
        [swap("c.1", "a.1", 1, "3")],
        lambda answer, _: isinstance(answer, Conflict),
    ),
    "a record": Case(
        [add()],
        LeaveTally(key="k", id="a.1"),
        [add("b.1", by=5)],
        lambda answer, see: answer.total == 5 and see(SeeTally(key="k")).tally.total == 5,
    ),
    "a record that is new": Case(
        [],
        add(),
        [add("b.1", by=5)],
        lambda answer, see: answer.total == 6 and see(SeeTally(key="k")).tally.total == 6,
    ),
    "a record of a command about runs": Case(
        [start("r"), add()],
        CountRun(run="r", key="k"),
        [add("b.1", by=5)],
        lambda answer, see: answer.total == 7 and run_now(see, "r").attributes == {"total": 7},
    ),
    "a lock": Case(
        [acquire(), acquire(id="b.1", queue=True)],
        c.ForceRelease(key="k", by="me", reason="why not"),
        [release(token=START)],
        lambda answer, _: [holder.id for holder in answer.holders] == ["b.1"],
    ),
}  # fmt: skip
