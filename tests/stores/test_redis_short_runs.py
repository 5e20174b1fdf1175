"""The native form of a plain start and a plain end on Redis (runs.lua): when it is taken, and that it is equal.

Each case is executed twice, with the native form and without it. Outcomes and everything that is stored must be
identical.
"""

from __future__ import annotations

import pytest
from providers import REDISES, redis_layout

from holdfast import commands as c
from holdfast.commands import runs as r
from holdfast.rules.runs.limits import Limit, LimitKey, WorkflowLimits
from holdfast.rules.runs.outcomes import Recorded, Started
from holdfast.rules.runs.record import Finish, NewRun
from holdfast.stores.redis import fast_path as redis_fast
from holdfast.stores.redis.record_source import RedisSource
from holdfast.testing.builders import START, ManualClock
from holdfast.testing.suite.run_locks import take
from holdfast.testing.suite.runs import signal, start
from stores.runs_asking import add_worker, ask, by_the_rules, everything

ONE = WorkflowLimits(limits=(Limit(name="all", max=1, on_excess="queue"),))
DONE = Finish("completed", '{"n":1}')


@pytest.fixture(params=REDISES, ids=lambda provider: provider.name)
def provider(request):
    return request.param


@pytest.fixture
def stored_in(url, server):
    return lambda namespace: everything(server, redis_layout(url, namespace).base)


def mine(run="r", **more):
    return start(run, worker="w.1", **more)


def recorded(run="r", *entries, at=1, fence=START, then=DONE, request="q.1", **more):
    return r.RecordRun(run=run, fence=fence, at=at, entries=entries, request=request, then=then, **more)


def child(parent, run="c"):
    return NewRun(id=run, type="mail", input="1", request=f"child {run}", parent=parent, root=parent)


def test_a_plain_start_and_a_plain_end_are_one_round_trip_each(opened, url, monkeypatch):
    connection = opened(url).connect()
    add_worker(connection)
    connection.execute([r.PublishLimits(workflow="mail", terms=WorkflowLimits())])
    with monkeypatch.context() as patch:
        patch.setattr(RedisSource, "read", by_the_rules)
        new = NewRun(id="m", type="mail@2", input="1", request="q", root="m", attributes={"a": 1, "b": "é"})
        ask(connection, r.StartRun(new=new, worker="w.1"), Started)
        run = ask(connection, mine(), Started).run
        assert ask(connection, recorded("r", "x", "", fence=run.fence), Recorded).done
        fences = [one.run.fence for one in connection.execute([mine(f"r{n}") for n in range(100)])]
        ends = connection.execute([recorded(f"r{n}", fence=fence) for n, fence in enumerate(fences)])
        assert all(isinstance(end, Recorded) and end.done for end in ends)


CASES = {
    "a start": [mine()],
    "a start with attributes and a version": [
        r.StartRun(new=NewRun(id="r", type="m@2", input="é", request="q", attributes={"a": 1, "b": "x"}), worker="w.1")
    ],
    "a start with a key": [mine(key="k"), mine("s", key="k")],
    "a start with a parent": [r.StartRun(new=child("r"), worker="w.1")],
    "a start for nobody": [start("r")],
    "a start for a worker that nobody knows": [start("r", worker="v.1")],
    "a start for a worker that has gone": [r.UnregisterWorker(worker="w.1"), mine()],
    "a start for a worker that was put out": [c.ForceRelease(key="worker/w.1", by="me", reason="why not"), mine()],
    "a start for a worker that is put out in the same batch": [
        [c.ForceRelease(key="worker/w.1", by="me", reason="why not"), mine()]
    ],
    "a start for a worker that gives its lease back in the same batch": [
        [c.Release(key="worker/w.1", id="w.1", token=START), mine()]
    ],
    "a start of a run that is there": [mine(), mine(), mine(request="another"), mine(request="another", type="mail")],
    "two starts of one run": [[mine(), mine(request="another"), mine()]],
    "a start under a limit": [
        r.PublishLimits(workflow="order", terms=ONE),
        mine(),
        mine("s", places=(LimitKey("all"),), terms=ONE.digest),
        mine("t", places=(LimitKey("all"),), terms=ONE.digest),
        recorded("s"),
    ],
    "a start after its limits were taken away": [
        r.PublishLimits(workflow="order", terms=ONE),
        r.PublishLimits(workflow="order", terms=WorkflowLimits(version=1)),
        mine(),
    ],
    "an end": [mine(), recorded("r", "x", "y"), recorded("r", "x", "y"), recorded("r", at=3, request="q.2")],
    "an end that failed": [mine(), recorded(then=Finish("failed", '"é"'))],
    "an end under another fence": [mine(), recorded(fence=START + 1), recorded(fence=START - 1)],
    "an end elsewhere": [mine(), recorded(at=0), recorded(at=2)],
    "an end that is none": [mine(), recorded(then=Finish("running", "1")), recorded(then=Finish("ended", "1"))],
    "an end of nobody": [recorded()],
    "an end with an event": [mine(), signal("r"), recorded(seen=0), recorded(seen=1, request="q.2")],
    "an end of a parent": [mine(), recorded(then=None, children=(child("r"),)), recorded(request="q.2")],
    "an end of a child": [
        mine(),
        recorded(then=None, children=(child("r"),)),
        r.ClaimRuns(worker="w.1", types=(("mail", "mail"),)),
        recorded("c"),
    ],
    "an end that somebody watches": [mine(), r.WatchRun(run="r", id="x.1"), recorded()],
    "an end of a run with a lock": [mine(), recorded(then=None, lock_requests=(take(),)), recorded(request="q.2")],
    "an end of a run that was stuck": [mine(), recorded(then=None, stuck=()), recorded(request="q.2")],
    "an end and what comes after it": [[mine(), recorded(), signal("r"), r.ReadRun(run="r", history=True)]],
    "an end after it was cancelled": [mine(), r.PostEvent(run="r", event=signal("r").event), recorded(seen=5)],
}  # fmt: skip


@pytest.mark.parametrize("case", CASES.values(), ids=[name.replace(" ", "-") for name in CASES])
def test_the_native_form_has_the_outcomes_and_records_of_the_rules(opened, url, stored_in, monkeypatch, case):
    """Each batch uses a new connection, which has cached nothing about the run that the form might decline."""
    clock, found = ManualClock(), []
    for namespace in ("native", "rules"):
        store = opened(url, clock=clock, namespace=namespace)
        add_worker(store.connect())
        if namespace == "rules":
            monkeypatch.setattr(redis_fast, "asked", lambda *_: None)
        batches = [batch if isinstance(batch, list) else [batch] for batch in case]
        outcomes = [store.connect().execute(batch) for batch in batches]
        answers = [str(one.error) if isinstance(one, c.Failed) else one for some in outcomes for one in some]
        found.append((answers, stored_in(namespace)))
    native, rules = found
    assert native[0] == rules[0]
    assert native[1] == rules[1]


@pytest.mark.parametrize("name", ["run:r", "journal:r", "inbox:r"])
def test_a_start_over_the_remains_of_another_run_is_left_to_the_rules(opened, url, server, base, name):
    connection = opened(url).connect()
    add_worker(connection)
    server.rpush(base + name, "left")
    before = everything(server, base)
    assert isinstance(connection.execute([mine()])[0], c.Failed)
    assert everything(server, base) == before
