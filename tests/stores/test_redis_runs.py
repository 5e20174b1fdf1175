"""Runs in a Redis: their layout, and that texts and numbers are kept exactly."""

from __future__ import annotations

import json

import pytest
from providers import REDISES

from holdfast import commands as c
from holdfast.commands import runs as r
from holdfast.rules.runs import record as rule
from holdfast.rules.runs.outcomes import Claimed, Recorded, RunPage, RunRefused, RunSeen, Started
from holdfast.rules.runs.record import Finish, NewRun, Park, RunEvent
from holdfast.rules.runs.repository import RunFilter
from holdfast.rules.runs.tree import tree_key
from holdfast.rules.slot import SlotSeen, Swap
from holdfast.testing.builders import ME, SECOND, SLOT, START, read, swap
from holdfast.testing.run_histories import RunHistoryGenerator, RunModel
from holdfast.testing.suite.runs import record, signal, start
from stores.runs_asking import add_worker, ask, claim, driven, everything

AT_ONCE = START - rule.LONG_AGO


@pytest.fixture(params=REDISES, ids=lambda provider: provider.name)
def provider(request):
    return request.param


# ---------------------------------------------------------------- layout


MEMBER = f"record:tree-member:{tree_key('p', 'p/1')}"


def test_the_layout_of_runs_is_this_one(server, base, connection):
    """A stored format: changing it needs a migration."""
    add_worker(connection)
    parent = driven(connection, "p", key="k:1", attributes={"customer": "acme", "n": 1})
    child = NewRun(id="p/1", type="mail@*", input="[1.50]", request="q.1", parent="p", root="p")
    connection.execute(
        [
            record(parent, '{"a": 1}', children=(child,), request="q.2"),
            r.WatchRun(run="p", id="x.7"),
            signal("p", key="e"),
        ]
    )
    connection.execute([start("z", type="mail"), r.PostEvent(run="z", event=RunEvent(kind="cancel"))])
    stored = everything(server, base)
    assert set(stored) == {
        "keys", "lock:worker/w.1", "workers", "run:p", "run:p/1", "run:z", "journal:p", "journal:p/1", "journal:z",
        "inbox:p", "inbox:z", "inbox-keys:p", "runs:age", "runs:due:mail@*", "runs:of:w.1", "runs:living:order",
        "runs:living:mail@*", "runs:types", "runs:keys", "runs:ids", "runs:in:running:order", "runs:in:pending:mail",
        "runs:in:cancelled:mail", "runs:ended:cancelled:mail", "records:keys:tree-member", MEMBER,
        'runs:with:"customer"="acme"', 'runs:with:"n"=1',
    }  # fmt: skip
    assert stored["run:p"] == {
        "type": "order", "status": "running", "created_at": str(START), "worker": "w.1",
        "fence": str(START), "claims": "1", "request": "start p", "last": "q.2", "key": "k:1",
        "root": "p", "started_at": str(START), "attributes": '{"customer":"acme","n":1}',
        "watchers": '["x.7"]',
    }  # fmt: skip
    assert stored["run:p/1"] == {
        "type": "mail@*", "created_at": str(START), "due_at": str(AT_ONCE), "request": "q.1",
        "parent": "p", "root": "p",
    }  # fmt: skip
    assert stored["run:z"]["status"] == "cancelled"
    assert stored["journal:p"] == ["1", '{"a": 1}']
    assert stored["journal:p/1"] == ["[1.50]"]
    assert stored["inbox:p"] == [f'{{"number":1,"kind":"signal","name":"paid","payload":"7","key":"e","at":{START}}}']
    assert stored["inbox-keys:p"] == {"e": "1"}
    assert stored["runs:age"] == [("p", START), ("p/1", START), ("z", START)]
    assert stored["runs:ids"] == [("p", 0), ("p/1", 0), ("z", 0)]
    assert stored["runs:in:running:order"] == stored['runs:with:"n"=1'] == [("p", START)]
    assert stored["runs:in:cancelled:mail"] == [("z", START)]
    assert stored["runs:due:mail@*"] == [("p/1", AT_ONCE)]
    assert stored["runs:of:w.1"] == [("p", 0)]
    assert stored["runs:living:order"] == {"p"}
    assert stored["runs:living:mail@*"] == {"p/1"}
    assert stored["runs:types"] == {"order", "mail", "mail@*"}
    assert stored["runs:keys"] == {"order:k:1": "p"}
    assert stored["workers"] == {"w.1": f'{{"id":"w.1","name":"worker w.1","types":["order"],"since":{START}}}'}


def test_the_layout_of_a_slot_that_was_written_with_a_record_is_this_one(server, base, connection):
    add_worker(connection)
    run = driven(connection)
    connection.execute([swap("a.1"), swap("b.1", reserve=SECOND)])
    ask(connection, record(run, "x", request="3.2", swap=Swap(SLOT, "a.1", 1, '{"n": 1}')), Recorded)
    past = '{"last":"r:3.2","writers":[["a",0,[1],1]]}'
    assert server.hgetall(base + "slot:global::k") == {"version": "2", "value": '{"n": 1}', "past": past}
    ask(connection, record(run, "y", at=2, request="3.3", swap=Swap(SLOT, "r:3.2", 2, None)), Recorded)
    past = '{"last":"r:3.3","writers":[["a",0,[1],1]],"empty":true}'
    assert server.hgetall(base + "slot:global::k") == {"version": "3", "value": "", "past": past}


@pytest.mark.parametrize("seed", range(12))
def test_every_index_matches_the_runs(server, base, connection, clock, seed):
    model, generator, sent = RunModel(), RunHistoryGenerator(seed), 0
    while sent < 200:
        clock.pass_by(generator.time_passes() + generator.clock_jumps())
        commands = generator.batch()
        expected = model.execute(commands, clock.now)
        assert connection.execute(commands) == expected
        generator.observe(commands, expected)
        sent += len(commands)
    stored = everything(server, base)
    runs = {name.removeprefix("run:"): value for name, value in stored.items() if name.startswith("run:")}
    due, owned, living, keys, groups, attributes = {}, {}, {}, {}, {}, {}
    for id, run in runs.items():
        known = model.repo.run(id)
        if run.get("due_at"):
            due.setdefault(run["type"], {})[id] = int(run["due_at"])
        if run.get("worker"):
            owned.setdefault(run["worker"], {})[id] = 0
        status = run.get("status", "pending")
        if status in rule.LIVING:
            living.setdefault(run["type"], set()).add(id)
        moment = {id: int(run["created_at"])}
        groups.setdefault(f"{status}:{rule.workflow_of(run['type'])}", {}).update(moment)
        for name, value in known.attributes.items():
            attributes.setdefault(f"{json.dumps(name)}={json.dumps(value)}", {}).update(moment)
        if run.get("key"):
            keys[f"{rule.workflow_of(run['type'])}:{run['key']}"] = id
        assert stored[f"journal:{id}"] == list(model.repo.entries(id, None))
        events = {str(event.number): event.key for event in model.repo.events(id, 0) if event.key}
        assert stored.get(f"inbox-keys:{id}", {}) == {key: number for number, key in events.items()}
        assert len(stored.get(f"inbox:{id}", ())) == known.posted
    assert {id: int(run["created_at"]) for id, run in runs.items()} == dict(stored["runs:age"])
    assert stored.get("runs:keys", {}) == keys

    def index(name):
        return {key.removeprefix(name): dict(value) for key, value in stored.items() if key.startswith(name)}

    assert stored["runs:ids"] == [(id, 0) for id in sorted(runs)]
    assert index("runs:in:") == groups
    assert index("runs:with:") == attributes
    assert stored["runs:types"] >= {run["type"] for run in runs.values()}
    assert index("runs:due:") == due
    assert index("runs:of:") == owned
    assert {key.removeprefix("runs:living:"): value for key, value in stored.items() if "living" in key} == living
    assert set(stored.get("workers", ())) == {worker.id for worker in model.repo.workers()}


def test_no_two_idempotency_keys_share_a_name(connection):
    for run, kind, key in (("a", "x", "y:z"), ("b", "x:y", "z"), ("c", "x%3Ay", "z")):
        assert ask(connection, start(run, type=kind, key=key), Started).run.id == run


# ---------------------------------------------------------------- texts


TEXTS = ["", "1.50", "1e400", '"\\u0000\\ud83d\\ude00"', "\x00", "\x7f\n\r\t", "é😀\u2028", '{"a":1,"a":2}', "[]",
         "{}", "null", "9007199254740993", " 1 ", '"', "\\", "%d%s", "]]", "x" * 100_000]  # fmt: skip


@pytest.mark.parametrize("text", TEXTS, ids=lambda text: repr(text[:20]))
def test_every_text_is_read_back_byte_for_byte(connection, text):
    add_worker(connection)
    run = driven(connection, input=text, attributes={"a": text})
    assert run.attributes == {"a": text}
    event = RunEvent(kind="signal", name=text, payload=text, key=f"k{text}")
    (recorded, posted, again) = connection.execute(
        [record(run, text, text), r.PostEvent(run="r", event=event), r.PostEvent(run="r", event=event)]
    )
    assert (recorded.done, posted.fresh, again.fresh) == (True, True, False)
    child = NewRun(id=f"child{text[:50]}", type="order", input=text, request="q.1", parent="r")
    ask(connection, record(run, at=3, seen=1, children=(child,)), Recorded)
    (born,) = ask(connection, claim(), Claimed).claims
    assert born.entries == (text,)
    ask(connection, record(born.run, then=Finish("failed", text)), Recorded)
    seen = ask(connection, r.ReadRun(run="r", history=True), RunSeen).claim
    assert seen.entries == (text, text, text)
    assert (seen.events[0].name, seen.events[0].payload, seen.events[0].key) == (text, text, f"k{text}")
    assert seen.events[1].payload == '{"status":"failed","result":' + text + "}"
    assert ask(connection, r.ReadRun(run=child.id), RunSeen).claim.run.result == text


@pytest.mark.parametrize("name", ["", '"', "\\", "{", "}", "*", "é😀", "\n", "\x00", "%", "/", ":", "a:b"])
def test_any_text_may_be_an_id_a_type_a_worker_and_a_key(connection, name):
    worker = f"w.{name}"
    add_worker(connection, worker, name)
    run = ask(connection, start(f"r{name}", type=name, key=f"k{name}", worker=worker), Started).run
    assert (run.id, run.type, run.worker, run.key) == (f"r{name}", name, worker, f"k{name}")
    assert ask(connection, r.ReadRun(run=run.id), RunSeen).holder == f"worker {worker}"
    ask(connection, record(run, then=Park(0), request=f"q{name}", swap=Swap(SLOT, "", 0, f'"{name}"')), Recorded)
    assert ask(connection, read(), SlotSeen) == SlotSeen(version=1, last=f"r{name}:q{name}", value=f'"{name}"')
    claimed = ask(connection, r.ClaimRuns(worker=worker, types=((name, name),)), Claimed)
    assert [one.run.id for one in claimed.claims] == [run.id]
    assert connection.execute([r.CountRuns()])[0].counts == {name: 1}
    page = ask(connection, r.ListRuns(wanted=RunFilter(prefix=run.id, workflow=rule.workflow_of(name))), RunPage)
    assert [one.id for one in page.runs] == [run.id]


def test_a_run_lock_with_a_slash_or_a_percent_in_its_key_is_respected_too(connection):
    add_worker(connection, "w.1", "a/b%")
    ask(connection, start("x/y%", type="a/b%"), Started)
    key = rule.run_key("a/b%", "x/y%")
    connection.execute([c.Acquire(key=key, id="z.1", label=ME, kind="run", ttl=SECOND)])
    assert ask(connection, r.ClaimRuns(worker="w.1", types=(("a/b%", "a/b%"),)), Claimed).claims == ()


# ---------------------------------------------------------------- numbers


ENLIST = r.RegisterWorker(worker="w.1", name="w", types=("order",))


def test_fences_of_one_moment_are_distinct_to_the_last_digit(connection, clock, server, base):
    """Fourteen digits, as Lua writes numbers by itself, would make them equal."""
    clock.now += 123_457
    add_worker(connection)
    ask(connection, start(), Started)
    fences = []
    for _ in range(5):
        claimed, *_ = connection.execute([claim(), r.UnregisterWorker(worker="w.1"), ENLIST])
        assert isinstance(claimed, Claimed)
        fences += [one.run.fence for one in claimed.claims]
        clock.now -= 1
    assert fences == [START + 123_457 + n for n in range(5)]
    assert server.hget(base + "run:r", "fence") == str(fences[-1])
    (run,) = (one.run for one in ask(connection, claim(), Claimed).claims)
    for fence in (run.fence - 1, run.fence + 1):
        ask(connection, r.RecordRun(run="r", fence=fence, at=1, request="no", entries=("x",)), RunRefused)
        ask(connection, r.RecordRun(run="r", fence=fence, at=1, request="no", then=Park(None)), RunRefused)
        assert isinstance(connection.execute([r.ReviveRun(run="r", fence=fence, keep=1, request="n")])[0], RunRefused)
    assert connection.execute([r.ListOwnedRuns(worker="w.1")])[0].runs == {"r": (run.fence, 0)}


def test_due_times_are_kept_to_the_microsecond_and_come_in_their_order(connection, clock, server, base):
    add_worker(connection)
    for n in (2, 0, 1):
        run = driven(connection, f"r{n}")
        ask(connection, record(run, then=Park(START + SECOND + n)), Recorded)
    assert server.zrange(base + "runs:due:order", 0, -1, withscores=True) == [
        (f"r{n}", START + SECOND + n) for n in range(3)
    ]
    clock.now = START + SECOND + 1
    claimed = ask(connection, claim(), Claimed)
    assert [one.run.id for one in claimed.claims] == ["r0", "r1"]
    assert claimed.next_due == START + SECOND + 2
    assert connection.execute([r.ReadNextDue(types=("order",))])[0].next_due == START + SECOND + 2


def test_numbers_that_are_too_large_or_not_whole_are_refused(connection):
    add_worker(connection)
    run = driven(connection)
    before = ask(connection, r.ReadRun(run="r", history=True), RunSeen)
    bad = [
        record(run, then=Park(2**53)),
        record(run, "x", at=1.5),
        record(run, "x", seen=None),
        record(run, "x", 7),
        record(run, "x", then=Finish("ended", "1")),
        r.ReviveRun(run="r", fence=run.fence, keep=1.5, request="q"),
        claim(limit=1.5),
        start(7),
        r.ListRuns(after=(1.5, "r")),
        record(run, None, "x"),
        record(run, b"x"),
        r.PostEvent(run="r", event=RunEvent(kind="dance")),
        r.PostEvent(run="r", event=RunEvent(kind="signal", payload=None)),
        r.RegisterWorker(worker="w.1", name=None, types=("order",)),
        r.RegisterWorker(worker="w.1", name="w", types=(7,)),
        claim(runs=(None, "r")),
        start("s", attributes={"a": 1.5}),
        start("s", attributes={"a": None}),
        record(run, "x", swap=Swap(SLOT, "", 0, 7)),
        record(run, "x", swap=Swap(SLOT, "", 0.5, "1")),
        record(run, "x", swap=Swap(SLOT, None, 0, "1")),
        record(run, "x", swap=Swap(("global", "", 7), "", 0, "1")),
        record(run, "x", swap=Swap(SLOT, "", 0, "1"), children=(NewRun(id="c", type="order", input=7, request="q"),)),
    ]
    wrong = [  # of the right type, and different from the stored ones: decided by the rules
        (r.RecordRun(run="r", fence=2**53, at=1, request="q", entries=("x",)), "RunRefused"),
        (record(run, "x", swap=Swap(SLOT, "", 2**53 - 1, "1")), "Conflict"),
    ]
    for command in bad:
        (outcome,) = connection.execute([command])
        assert type(outcome).__name__ == "Failed", command
    assert {type(outcome).__name__ for outcome in connection.execute(bad)} == {"Failed"}
    for command, answer in wrong:
        assert type(connection.execute([command])[0]).__name__ == answer
    assert ask(connection, r.ReadRun(run="r", history=True), RunSeen) == before
    assert ask(connection, read(), SlotSeen).version == 0
    ask(connection, record(run, then=Park(2**53 - 1)), Recorded)
    assert connection.execute([r.ReadNextDue(types=("order",))])[0].next_due == 2**53 - 1


def test_a_batch_sees_a_journal_that_it_has_shortened(connection):
    add_worker(connection)
    run = driven(connection)
    ask(connection, record(run, "x", "y", then=Finish("failed", "1")), Recorded)
    again = r.ReviveRun(run="r", fence=run.fence, keep=2, request="q")
    _, seen = connection.execute([again, r.ReadRun(run="r", history=True)])
    assert seen.claim.entries == ("1", "x")


def test_numbers_in_attributes_beyond_the_precision_of_lua_are_distinguished(connection):
    for n in range(3):
        ask(connection, start(f"r{n}", attributes={"n": 2**60 + n, "yes": n == 1, "s": str(n)}), Started)
    for wanted, found in (
        ({"n": 2**60 + 1}, ["r1"]),
        ({"yes": True}, ["r1"]),
        ({"yes": 1}, []),
        ({"s": "1", "n": 2**60 + 1}, ["r1"]),
        ({"s": 1}, []),
        ({"nobody": ""}, []),
    ):
        page = ask(connection, r.ListRuns(wanted=RunFilter(attributes=wanted)), RunPage)
        assert [run.id for run in page.runs] == found, wanted
