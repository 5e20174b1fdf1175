"""Runs in a Redis when something is wrong, sent again, or many: nothing is half done, nothing is done twice."""

from __future__ import annotations

import pytest
import real_servers
import redis
from providers import REDISES
from waiting import eventually

from holdfast import commands as c
from holdfast.commands import runs as r
from holdfast.errors import RecordUnreadable
from holdfast.rules.runs import record as rule
from holdfast.rules.runs.limits import Limit, LimitKey, WorkflowLimits
from holdfast.rules.runs.outcomes import Claimed, LimitsPublished, Posted, Recorded, RunRefused, Started
from holdfast.rules.runs.record import Finish, NewRun, Park, RunEvent
from holdfast.rules.runs.repository import RunFilter
from holdfast.rules.slot import Swap
from holdfast.stores.redis.record_source import RedisSource
from holdfast.testing.builders import SECOND, SLOT, START, acquire, read, renew, swap
from holdfast.testing.proxy import Proxy
from holdfast.testing.suite.run_locks import take
from holdfast.testing.suite.runs import record, signal, start
from stores.runs_asking import add_worker, ask, by_the_rules, claim, driven, everything, lease
from stores.test_redis_faults import last_call, refused, user

AT_ONCE = START - rule.LONG_AGO


@pytest.fixture(params=REDISES, ids=lambda provider: provider.name)
def provider(request):
    return request.param


# ---------------------------------------------------------------- one bad command


def test_an_unreadable_run_does_not_affect_others_and_is_unchanged(server, base, connection):
    add_worker(connection)
    parent, run, other = driven(connection, "p"), driven(connection, parent="p"), driven(connection, "o")
    server.hset(base + "run:p", "fence", "many")
    before = everything(server, base)
    child = NewRun(id="c", type="order", input="1", request="q.1", key="k")
    outcomes = connection.execute(
        [
            record(run, "lost", children=(child,), then=Finish("completed", "1")),
            record(other, "kept"),
            r.PostEvent(run="p", event=RunEvent(kind="signal", key="k")),
            record(parent, "lost", then=Park(None)),
            r.ReviveRun(run="p", fence=parent.fence, keep=1, request="q"),
            r.ReadRun(run="p"),
            acquire(),
        ]
    )
    names = [type(outcome).__name__ for outcome in outcomes]
    assert names == ["Failed", "Recorded", "Failed", "Failed", "Failed", "Failed", "Granted"]
    for outcome in outcomes:
        if isinstance(outcome, c.Failed):
            assert isinstance(outcome.error, RecordUnreadable)
            assert "run 'p'" in str(outcome.error)
    after = everything(server, base)
    assert after.pop("journal:o") == ["1", "kept"]
    changed = {name for name in after if after[name] != before.get(name)} | (before.keys() - after.keys())
    assert changed == {"run:o", "journal:o", "lock:k", "keys"}


@pytest.mark.parametrize(
    ("part", "value"),
    [("run", None), ("journal", None), ("inbox", None), ("status", "dancing"), ("due_at", "soon"), ("type", None),
     ("created_at", ""), ("attributes", "{"), ("watchers", "7"), ("claims", "1.5"), ("fence", str(2**53)),
     ("last", b"\xff")],
)  # fmt: skip
def test_any_damage_in_a_run_is_refused_and_unchanged(server, base, connection, part, value):
    add_worker(connection)
    run = driven(connection)
    if part in ("run", "journal", "inbox"):
        server.delete(base + f"{part}:r")
        server.set(base + f"{part}:r", "mine")
    elif value is None:
        server.hdel(base + "run:r", part)
    else:
        server.hset(base + "run:r", part, value)
    commands = [
        record(run, "x", then=Park(None)),
        r.PostEvent(run="r", event=RunEvent(kind="signal")),
        r.ReviveRun(run="r", fence=run.fence, keep=0, request="q"),
        r.WatchRun(run="r", id="x.1"),
        start(request="another"),
    ]
    before = server.dump(base + "run:r"), server.dump(base + "journal:r"), server.dump(base + "inbox:r")
    for outcome in connection.execute(commands):
        assert isinstance(outcome, c.Failed)
        assert isinstance(outcome.error, RecordUnreadable)
        assert "'r'" in str(outcome.error)
    assert (server.dump(base + "run:r"), server.dump(base + "journal:r"), server.dump(base + "inbox:r")) == before


def test_a_damaged_run_does_not_hide_due_runs_after_it(server, base, connection, clock):
    add_worker(connection)
    connection.execute([start(name) for name in "abc"])
    server.hset(base + "run:a", "status", "dancing")
    server.delete(base + "run:b", base + "journal:b")
    for _ in range(2):
        assert ask(connection, claim(limit=1), Claimed).claims == ()
    assert [one.run.id for one in ask(connection, claim(limit=1), Claimed).claims] == ["c"]
    assert server.hget(base + "run:a", "status") == "dancing"
    assert server.zrange(base + "runs:due:order", 0, -1, withscores=True) == [("a", clock.now + SECOND)]
    assert isinstance(connection.execute([claim(runs=("a",))])[0], c.Failed)


def test_a_run_that_is_no_text_does_not_hide_due_runs_after_it(server, base, connection):
    add_worker(connection)
    connection.execute([start(name) for name in "ab"])
    server.hset(base + "run:a", "last", b"\xff")
    assert [one.run.id for one in ask(connection, claim(), Claimed).claims] == ["b"]
    assert ask(connection, claim(), Claimed).claims == ()


def test_a_damaged_orphan_does_not_prevent_the_release_of_others(server, base, connection, clock):
    add_worker(connection, "w.1", seconds=1)
    add_worker(connection, "v.1")
    for name in "abc":
        driven(connection, name)
    server.hdel(base + "run:a", "fence")
    server.hset(base + "run:b", "claims", "x")
    clock.pass_by(2)
    assert [one.run.id for one in ask(connection, claim("v.1"), Claimed).claims] == ["a", "c"]


def test_a_run_with_an_unreadable_run_lock_is_not_claimed_and_hides_no_other(server, base, connection):
    add_worker(connection)
    connection.execute([start("a"), start("b")])
    server.set(base + "lock:run/order/a", "{")
    assert [one.run.id for one in ask(connection, claim(), Claimed).claims] == ["b"]
    (named,) = connection.execute([claim(runs=("a",))])
    assert "run/order/a" in str(named.error)


def test_the_end_of_a_child_with_an_unreadable_parent_changes_nothing(server, base, connection, clock):
    add_worker(connection)
    connection.execute([start("p", type="mail"), start("c", parent="p"), start("d")])
    server.set(base + "inbox-keys:p", "mine")
    before = everything(server, base)
    (outcome,) = connection.execute([r.FailRun(run="c", fence=0, reason="{}", request="f")])
    assert isinstance(outcome.error, RecordUnreadable)
    assert everything(server, base) == before
    server.delete(base + "inbox-keys:p")
    server.set(base + "lock:worker/v.1", "{")
    server.hset(base + "workers", "v.1", '{"id":"v.1","name":"v","types":["mail"],"since":1}')
    clock.pass_by(2)
    before = everything(server, base)
    (outcome,) = connection.execute([claim()])
    assert "worker/v.1" in str(outcome.error)
    assert everything(server, base) == before


@pytest.mark.parametrize(("field", "value"), [(None, "mine"), ("past", "7"), ("past", "{"), ("version", "many")])
def test_a_record_whose_slot_cannot_be_read_is_refused_and_changes_nothing(server, base, connection, field, value):
    add_worker(connection)
    run, other = driven(connection), driven(connection, "o")
    if field is None:
        server.set(base + "slot:global::k", value)
    else:
        server.hset(base + "slot:global::k", mapping={"version": "1", "value": "1", "past": "{}", field: value})
    before = everything(server, base)
    bad, alike = record(run, "x", then=Park(None), swap=Swap(SLOT, "", 0, "1")), swap("a.1")
    outcomes = connection.execute([bad, record(run, at=7, swap=bad.swap), alike, record(other, "kept")])
    assert [type(outcome).__name__ for outcome in outcomes] == ["Failed", "RunRefused", "Failed", "Recorded"]
    assert isinstance(outcomes[0].error, RecordUnreadable)
    assert str(outcomes[0].error) == str(outcomes[2].error)
    assert "state 'k'" in str(outcomes[0].error)
    after = everything(server, base)
    assert {name for name in after if after[name] != before.get(name)} == {"run:o", "journal:o"}


def test_a_journal_without_its_run_is_not_written_to(server, base, connection):
    server.rpush(base + "journal:r", "old")
    (outcome,) = connection.execute([start()])
    assert isinstance(outcome, c.Failed)
    assert isinstance(outcome.error, RecordUnreadable)
    assert set(everything(server, base)) == {"journal:r"}


def test_outcomes_of_commands_of_every_kind_are_in_order(connection):
    outcomes = connection.execute(
        [
            claim(),
            lease(),
            r.RegisterWorker(worker="w.1", name="w", types=("order",)),
            swap("a.1"),
            start(),
            claim(),
            read(),
            record(rule.Run(id="r", type="order", created_at=0, fence=START, length=1), "x"),
            acquire(),
            r.ReadRun(run="r", history=True),
            renew(token=START),
            c.Release(key=rule.worker_key("w.1"), id="w.1", token=START),
            claim(),
            c.ListLocks(),
        ]
    )
    assert [type(outcome).__name__ for outcome in outcomes] == [
        "WorkerGone", "Granted", "WorkerRegistered", "Swapped", "Started", "Claimed", "SlotSeen", "Recorded", "Granted",
        "RunSeen", "Renewed", "Released", "WorkerGone", "LockPage",
    ]  # fmt: skip
    assert outcomes[9].claim.entries == ("1", "x")
    assert outcomes[9].holder == "w"


def test_a_lease_of_a_newer_version_counts_and_keeps_its_fields(server, base, connection, clock):
    add_worker(connection)
    name = base + "lock:worker/w.1"
    planted = server.get(name).replace('"fence"', '"newer":[1],"fence"', 1)
    server.set(name, planted)
    batch = [c.Renew(key="worker/w.1", id="w.1", token=START, ttl=30 * SECOND), start(worker="w.1"), claim()]
    assert [type(outcome).__name__ for outcome in connection.execute(batch)] == ["Renewed", "Started", "Claimed"]
    clock.pass_by(31)
    assert type(connection.execute([claim()])[0]).__name__ == "WorkerGone"
    add_worker(connection, "v.1")
    assert [one.run.id for one in ask(connection, claim("v.1"), Claimed).claims] == ["r"]
    assert '"newer":[1]' in server.get(name)


def test_a_command_about_runs_sees_a_newer_lease_that_the_client_has_written(server, base, connection):
    add_worker(connection)
    name = base + "lock:worker/w.1"
    server.set(name, server.get(name).replace('"fence"', '"newer":[1],"fence"', 1))
    release = c.Release(key="worker/w.1", id="w.1", token=START)
    outcomes = connection.execute([release, claim(), lease(), claim(), start(worker="w.1")])
    names = [type(outcome).__name__ for outcome in outcomes]
    assert names == ["Released", "WorkerGone", "Granted", "Claimed", "Started"]


def test_a_start_does_not_need_a_readable_worker(server, base, connection):
    server.hset(base + "workers", "v.1", "{")
    ask(connection, start(), Started)
    (outcome,) = connection.execute([r.ListWorkers()])
    assert "worker 'v.1'" in str(outcome.error)


def test_a_damaged_lease_is_named(server, base, connection):
    add_worker(connection)
    server.set(base + "lock:worker/w.1", "{")
    (outcome,) = connection.execute([claim()])
    assert isinstance(outcome.error, RecordUnreadable)
    assert "worker/w.1" in str(outcome.error)


# ---------------------------------------------------------------- sent again


LIMITED = WorkflowLimits(limits=(Limit(name="all", max=1, on_excess="queue"), Limit(name="pace", max=1, per=SECOND)))
AGAIN = {
    "StartRun": lambda _: start("new", worker="w.1", key="k"),
    "RecordRun": lambda run: record(run, "x", attributes={"a": 1}),
    "RecordRun-only-entries": lambda run: record(run, "x", "y"),
    "RecordRun-Park": lambda run: record(run, "x", then=Park(0)),
    "RecordRun-Finish": lambda run: record(run, "x", then=Finish("failed", "{}")),
    "RecordRun-children": lambda run: record(
        run, "x", children=(NewRun(id="c", type="order", input="2", request="q.2", parent="r"),)
    ),
    "RecordRun-asks": lambda run: record(run, "x", lock_requests=(take(1), take(2), take(3, "free")), stuck=()),
    "RecordRun-asks-Finish": lambda run: record(
        run, lock_requests=(take(), take(3, "free")), then=Finish("failed", "1")
    ),
    "RecordRun-swap": lambda run: record(run, "x", swap=Swap(SLOT, "", 0, "1")),
    "PostEvent": lambda _: signal(key="k"),
    "PostEvent-cancel": lambda _: r.PostEvent(run="idle", event=RunEvent(kind="cancel", key="cancel")),
    "ReviveRun": lambda _: r.ReviveRun(run="ended", fence=START, keep=1, request="q.3", forget=(1,)),
    "StartRun-limited": lambda _: start("waits", type="mail", places=(LimitKey("all"),), terms=LIMITED.digest),
    "PublishLimits": lambda _: r.PublishLimits(workflow="import", terms=LIMITED),
    "PublishTerms-again": lambda _: r.PublishLimits(workflow="mail", terms=WorkflowLimits(version=1)),
    "WatchRun": lambda _: r.WatchRun(run="r", id="x.1"),
    "RegisterWorker": lambda _: r.RegisterWorker(worker="w.1", name="w", types=("order",)),
    "UnregisterWorker": lambda _: r.UnregisterWorker(worker="w.1"),
    "ClaimRuns-named": lambda _: claim(runs=("r", "idle")),
    "ReadRun": lambda _: r.ReadRun(run="r", history=True),
    "ListRuns": lambda _: r.ListRuns(),
    "CountRuns": lambda _: r.CountRuns(),
    "ListOwnedRuns": lambda _: r.ListOwnedRuns(worker="w.1"),
    "ReadNextDue": lambda _: r.ReadNextDue(types=("order",)),
    "ListWorkers": lambda _: r.ListWorkers(),
    "ReadLimits": lambda _: r.ReadLimits(workflow="mail"),
}


def setting(connection):
    """A run that is driven, one that waits, one that has ended with an event; and one that fills a limit."""
    add_worker(connection)
    ask(connection, r.PublishLimits(workflow="mail", terms=LIMITED), LimitsPublished)
    places = (LimitKey("all"), LimitKey("pace"))
    ask(connection, start("limited", type="mail", places=places, terms=LIMITED.digest), Started)
    run, ended = driven(connection), driven(connection, "ended")
    connection.execute([signal("ended", key="k")])
    assert ask(connection, record(ended, "a", seen=1, then=Finish("failed", "1")), Recorded).done
    ask(connection, start("idle"), Started)
    return run


@pytest.mark.parametrize("command", AGAIN.values(), ids=AGAIN)
def test_a_lost_reply_changes_no_effect_on_runs(*, kind, server, opened, clock, url, base, command):
    shared = real_servers.shared(kind)
    with Proxy(shared.host, shared.port) as proxy:
        store = opened(proxy.url_for(url), clock=clock)
        rehearsal = opened(url, namespace="rehearsal", clock=clock)
        last = last_call(rehearsal, lambda connection: command(setting(connection)))
        connection = store.connect("commands")
        asked = command(setting(connection))
        proxy.drop_next_reply(last)
        with refused("failed", ambiguous=True):
            connection.execute([asked])
        assert proxy.replies_dropped == 1
        after_lost = everything(server, base)
        (again,) = store.connect("commands").execute([asked])
    assert not isinstance(again, c.Failed | RunRefused)
    assert getattr(again, "done", True)
    if isinstance(asked, r.PostEvent):
        assert not again.fresh
    assert everything(server, base) == after_lost


@pytest.mark.parametrize("command", AGAIN.values(), ids=AGAIN)
def test_a_command_is_executed_once_after_the_server_has_lost_its_scripts(opened, tmp_path, command, quiet):
    own, operator, clock = quiet
    connection = opened(f"{own.url}?prefix={tmp_path.name}", clock=clock).connect("commands")
    asked = command(setting(connection))
    operator.script_flush()
    (outcome,) = connection.execute([asked])
    assert not isinstance(outcome, c.Failed | RunRefused)
    if isinstance(asked, r.RecordRun):
        assert operator.llen(f"{tmp_path.name}:{{default}}:journal:r") == 1 + len(asked.entries)


@pytest.fixture(scope="module", params=REDISES, ids=lambda provider: provider.name)
def own_server(request):
    with real_servers.server(request.param.name, settings={"appendonly": "no"}) as server:
        yield server


@pytest.fixture
def quiet(own_server, clock):
    with redis.Redis(port=own_server.port, decode_responses=True) as client:
        yield own_server, client, clock
        client.flushall()


# ---------------------------------------------------------------- hints


def test_workers_and_clients_that_wait_for_a_result_are_notified_by_name(opened, url):
    """A worker that could drive it, its driver, and a client that waits for its end."""
    store = opened(url)
    connection, received = store.connect("commands"), {"w": [], "x": []}
    watches = [store.watch(channel, notified.append) for channel, notified in received.items()]
    try:
        eventually(lambda: all(received.values()))  # the subscriptions have begun
        add_worker(connection)
        ask(connection, start(), Started)
        eventually(lambda: received["w"][1:] == [["w.run/r"]])
        (one,) = ask(connection, claim(), Claimed).claims
        connection.execute([r.WatchRun(run="r", id="x.7"), signal()])
        eventually(lambda: received["w"][2:] == [["w.run/r"]])
        ask(connection, record(one.run, seen=1, then=Finish("completed", "1")), Recorded)
        eventually(lambda: received["x"][1:] == [["x.7"]])
    finally:
        for watch in watches:
            watch.close()


# ---------------------------------------------------------------- what it costs


def test_entries_of_a_driven_run_use_the_fast_path(url, server, opened, clock, monkeypatch):
    """Otherwise no test would notice that it is never used: the rules have the same outcomes."""
    connection = opened(url, clock=clock).connect("commands")
    add_worker(connection)
    run = driven(connection)
    monkeypatch.setattr(RedisSource, "read", by_the_rules)
    for n in range(3):
        assert ask(connection, record(run, "x", "", at=1 + 2 * n, request=f"q.{n}"), Recorded).done
    assert ask(connection, record(run, at=7, request="q.9"), Recorded).done


def test_new_entries_reset_the_crash_count_of_a_run(connection, clock):
    add_worker(connection, seconds=1)
    driven(connection)
    clock.pass_by(2)
    add_worker(connection, "v.1")
    (claimed,) = ask(connection, claim("v.1"), Claimed).claims
    assert claimed.run.crashes == 1
    ask(connection, record(claimed.run, "x"), Recorded)
    (seen,) = connection.execute([r.ReadRun(run="r")])
    assert seen.claim.run.crashes == 0


def test_a_driver_that_adds_entries_gets_the_events_that_arrived_meanwhile(connection):
    add_worker(connection)
    run = driven(connection)
    ask(connection, signal(), Posted)
    recorded = ask(connection, record(run, "x", seen=0), Recorded)
    assert (recorded.done, [event.name for event in recorded.events]) == (True, ["paid"])
    assert ask(connection, record(run, "y", at=2, seen=1), Recorded).events == ()
    ask(connection, signal(), Posted)
    recorded = ask(connection, record(run, "z", at=3, seen=1), Recorded)
    assert [event.number for event in recorded.events] == [2]


def test_queries_about_runs_write_nothing(server, connection):
    run = setting(connection)
    before = server.info("persistence")["aof_current_size"]
    looks = [r.ReadRun(run="r", history=True), r.ListRuns(), r.CountRuns(), r.ListOwnedRuns(worker="w.1")]
    connection.execute([*looks, r.ReadNextDue(types=("order",)), record(run, "x", at=9), start("r")])
    assert server.info("persistence")["aof_current_size"] == before


def test_a_full_memory_refuses_a_record_and_changes_nothing(quiet, opened):
    own, operator, clock = quiet
    store = opened(own.url, clock=clock)
    connection = store.connect("commands")
    run = setting(connection)
    before = everything(operator, "holdfast:{default}:")
    operator.config_set("maxmemory", "1")
    try:
        written = record(run, "x", swap=Swap(SLOT, "", 0, "1"))
        asked = record(run, lock_requests=(take(),))
        for command in (record(run, "x"), record(run, "x", then=Park(0)), start("more"), written, asked):
            with refused("memory is full.*maxmemory"):
                store.connect("commands").execute([command])
    finally:
        operator.config_set("maxmemory", "0")
    assert everything(operator, "holdfast:{default}:") == before


def test_the_rights_of_the_documentation_are_sufficient_for_runs_too(quiet, opened):
    own, operator, clock = quiet
    user(operator, "app")
    connection = opened(own.url.replace("redis://", "redis://app:pw@"), clock=clock).connect("commands")
    run = setting(connection)
    child = NewRun(id="c", type="order@*", input="2", request="q.2", parent="r", key="k")
    outcomes = connection.execute(
        [
            *(command(run) for command in AGAIN.values()),
            record(run, "z", at=2, seen=1, children=(child,), then=Finish("completed", "1"), request="end"),
            r.ListRuns(after=(START, "r"), wanted=RunFilter(until=START + 1)),
        ]
    )
    assert not [outcome for outcome in outcomes if isinstance(outcome, c.Failed)]
    paced = WorkflowLimits(limits=(Limit(name="pace", max=1, per=1),))
    ask(connection, r.PublishLimits(workflow="order", terms=paced), LimitsPublished)
    for name in ("one", "two", "three"):
        clock.pass_by(1)
        ask(connection, start(name, places=(LimitKey("pace"),), terms=paced.digest), Started)
    add_worker(connection)
    user(operator, "viewer")
    viewer = opened(own.url.replace("redis://", "redis://viewer:pw@"), clock=clock).connect("queries")
    looks = [r.ReadRun(run="r", history=True), r.ListRuns(), r.ListRuns(after=(START, "r"), wanted=RunFilter(until=1)),
             r.CountRuns(), r.ListOwnedRuns(worker="w.1"), r.ReadNextDue(types=("order",)), r.ListWorkers(),
             r.ReadLimits(workflow="mail")]  # fmt: skip
    assert not [outcome for outcome in viewer.execute(looks) if isinstance(outcome, c.Failed)]
