"""The whole lifecycle of a run in a few commands, to test whether a role or a schema permits all of it."""

from __future__ import annotations

from msgspec.structs import replace

from holdfast import commands as c
from holdfast.commands import runs as r
from holdfast.rules.runs.limits import Limit, LimitKey, WorkflowLimits
from holdfast.rules.runs.record import Finish, NewRun, RunEvent
from holdfast.testing.builders import ME


def assert_that_runs_can_be_driven(connection):
    """Check that this connection can execute every command in the lifecycle of a run."""
    lease = c.Acquire(key="worker/w.1", id="w.1", label=ME, kind="worker", ttl=60_000_000)
    new = NewRun(id="r", type="order", input="1", request="q.1")
    outcomes = connection.execute(
        [
            lease,
            r.RegisterWorker(worker="w.1", name="w", types=("order",)),
            r.StartRun(new=new),
            r.PostEvent(run="r", event=RunEvent(kind="signal")),
            r.ClaimRuns(worker="w.1", types=(("order", "order"),)),
        ]
    )
    run = outcomes[-1].claims[0].run
    end = {"seen": 1, "then": Finish("completed", "1")}
    outcomes = connection.execute(
        [
            r.RecordRun(run="r", fence=run.fence, at=1, entries=("a",), request="q.2", **end),
            r.ReviveRun(run="r", fence=run.fence, keep=1, request="q.3", forget=(1,)),
            r.UnregisterWorker(worker="w.1"),
            r.ReadRun(run="r", history=True),
        ]
    )
    assert [type(one).__name__ for one in outcomes] == ["Recorded", "Posted", "WorkerRegistered", "RunSeen"]
    assert (outcomes[-1].claim.run.status, outcomes[-1].claim.events) == ("pending", ())
    terms = WorkflowLimits(limits=(Limit(name="all", max=1, on_excess="queue"), Limit(name="pace", max=1, per=1)))
    places = tuple(LimitKey(limit.name) for limit in terms.limits)
    first, second = (
        NewRun(id=name, type="mail", input="1", request=name, places=places, terms=terms.digest) for name in "st"
    )
    outcomes = connection.execute(
        [
            r.PublishLimits(workflow="mail", terms=terms),
            r.StartRun(new=first),
            r.PublishLimits(workflow="mail", terms=WorkflowLimits(limits=terms.limits[:1])),
            r.StartRun(new=replace(second, terms=WorkflowLimits(limits=terms.limits[:1]).digest)),
            r.PostEvent(run="s", event=RunEvent(kind="cancel")),
            r.ReadRun(run="t"),
        ]
    )
    assert [outcomes[place].run.status for place in (1, 3, 4)] == ["pending", "queued", "cancelled"]
    assert outcomes[-1].claim.run.status == "pending"
