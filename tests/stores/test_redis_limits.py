"""Limits in a Redis: their layout, that nothing is left behind, and that damaged data affects no other run."""

from __future__ import annotations

import pytest
from providers import REDISES

from holdfast import commands as c
from holdfast.commands import runs as r
from holdfast.errors import RecordUnreadable
from holdfast.rules.runs.limits import Limit, LimitKey, WorkflowLimits, group_of
from holdfast.rules.runs.outcomes import (
    Claimed,
    Limited,
    LimitsDiffer,
    LimitsPublished,
    Posted,
    Recorded,
    RunSeen,
    Started,
)
from holdfast.rules.runs.record import Finish, NewRun, Park, RunEvent
from holdfast.testing.builders import SECOND, START
from holdfast.testing.limit_histories import LimitHistoryGenerator
from holdfast.testing.run_histories import RunModel
from holdfast.testing.suite.runs import record, start
from stores.runs_asking import add_worker, ask, claim, everything

WEEK = 7 * 24 * 3600
LARGEST = 2**53 - 1


@pytest.fixture(params=REDISES, ids=lambda provider: provider.name)
def provider(request):
    return request.param


def publish(connection, *limits, workflow="order", version=0):
    terms = WorkflowLimits(limits=limits, version=version)
    return ask(connection, r.PublishLimits(workflow=workflow, terms=terms), LimitsPublished).terms


def asked(run, terms, *, key='"ann"', worker="w.1", **more):
    places = tuple(LimitKey(limit.name, key if limit.path else "") for limit in terms.limits)
    return start(run, worker=worker, places=places, terms=terms.digest, **more)


def begun(connection, run, terms, **more):
    return ask(connection, asked(run, terms, **more), Started).run


def status(connection, *runs):
    return [ask(connection, r.ReadRun(run=run), RunSeen).claim.run.status for run in runs]


def of_limits(server, base):
    return {name: value for name, value in everything(server, base).items() if name.startswith("limits:")}


ONE = Limit(name="all", max=1, on_excess="queue")
EACH = Limit(name="each", max=1, path="customer", on_excess="queue")
PACE = Limit(name="pace", max=2, per=SECOND, on_excess="queue")


# ---------------------------------------------------------------- layout


def test_the_layout_of_limits_is_this_one(server, base, connection):
    """A stored format: changing it needs a migration."""
    add_worker(connection)
    terms = publish(connection, EACH, PACE)
    connection.execute([asked(run, terms, priority=priority) for run, priority in (("a", 0), ("b", 0), ("c", 5))])
    text = (
        '{"limits":[{"name":"each","max":1,"path":"customer","on_excess":"queue"},'
        '{"name":"pace","max":2,"per":1000000,"on_excess":"queue"}]}'
    )
    first, second = f"10000000000000000 1{START + 1:016} b", f"09007199254740986 1{START + 1:016} c"
    assert of_limits(server, base) == {
        "limits:terms": {"order": text},
        'limits:in:order/each/"ann"': [("a", START)],
        "limits:in:order/pace/": [("a", START)],
        'limits:queue:order/each/"ann"': [(second, 0), (first, 0)],
        "limits:queue:order/pace/": [(second, 0), (first, 0)],
        "limits:starts:order/pace/": [(f"{START} 0 a", START)],
        "limits:crowded:order": {'["each","\\"ann\\""]', '["pace",""]'},
    }
    run = server.hgetall(base + "run:c")
    assert (run["status"], run["places"]) == ("queued", '[["each","\\"ann\\""],["pace",""]]')
    assert (run["priority"], run["arrival"], run.get("due_at")) == ("5", str(START + 1), None)
    connection.execute([r.PostEvent(run="a", event=RunEvent(kind="cancel"))])
    assert server.hget(base + "run:a", "cancelling") == "true"
    assert server.smembers(base + "runs:living:order") == {"a", "b", "c"}


@pytest.mark.parametrize("seed", range(12))
def test_the_indexes_of_limits_match_the_runs(server, base, connection, clock, seed):
    model, generator, sent = RunModel(), LimitHistoryGenerator(seed), 0
    while sent < 250:
        clock.pass_by(generator.time_passes() + generator.clock_jumps())
        commands = generator.batch()
        expected = model.execute(commands, clock.now)
        assert connection.execute(commands) == expected
        generator.observe(commands, expected)
        sent += len(commands)
    let_in, waiting, crowded = {}, {}, {}
    for id in generator.ids:
        run = model.repo.run(id)
        for place in run.places if run is not None and run.living else ():
            group = group_of(run.workflow, place)
            if run.status == "queued":
                waiting.setdefault(group, []).append((-run.priority, run.arrival, id))
                crowded.setdefault(run.workflow, set()).add(place)
            else:
                let_in.setdefault(group, []).append((run.arrival, id))
    stored = of_limits(server, base)

    def index(name):
        return {key.removeprefix(name): value for key, value in stored.items() if key.startswith(name)}

    in_order = {group: [(arrival, id) for id, arrival in runs] for group, runs in index("limits:in:").items()}
    assert in_order == {group: sorted(runs) for group, runs in let_in.items()}
    queues = {group: [name.split(" ", 2)[2] for name, _ in runs] for group, runs in index("limits:queue:").items()}
    assert queues == {group: [id for _, _, id in sorted(runs)] for group, runs in waiting.items()}
    assert {name: len(places) for name, places in index("limits:crowded:").items()} == {
        name: len(places) for name, places in crowded.items()
    }
    starts = {group: [at for _, at in made] for group, made in index("limits:starts:").items()}
    assert starts == {group: [at for at, _ in made] for group, made in model.repo._starts.items()}


def test_when_all_runs_have_ended_the_indexes_of_limits_are_empty(server, base, connection, clock):
    add_worker(connection)
    terms = publish(connection, ONE, EACH, PACE)
    names = [f"run {n}" for n in range(12)]
    connection.execute([asked(run, terms, key=f"{n % 3}", priority=n % 2) for n, run in enumerate(names)])
    ask(connection, r.PostEvent(run="run 5", event=RunEvent(kind="cancel")), Posted)
    while any(one.startswith(("limits:in", "limits:queue", "limits:crowded")) for one in of_limits(server, base)):
        for run in connection.execute([r.ListRuns(limit=100)])[0].runs:
            if run.worker:
                ask(connection, record(run, then=Finish("completed", "1")), Recorded)
        clock.pass_by(1)
        ask(connection, claim(), Claimed)
    assert set(status(connection, *names)) == {"completed", "cancelled"}
    assert set(of_limits(server, base)) == {"limits:terms", "limits:starts:order/pace/"}
    assert server.zcard(base + "limits:starts:order/pace/") == PACE.max
    assert WEEK - 60 <= server.ttl(base + "limits:starts:order/pace/") <= WEEK + 60


def test_starts_of_a_rate_over_a_long_period_are_kept_for_all_of_it(server, base, connection):
    terms = publish(connection, Limit(name="pace", max=1, per=100 * WEEK * SECOND, on_excess="queue"))
    connection.execute([asked(run, terms, worker="") for run in "abc"])
    assert [at for _, at in server.zrange(base + "limits:starts:order/pace/", 0, -1, withscores=True)] == [
        START + n * 100 * WEEK * SECOND for n in range(3)
    ]
    assert server.ttl(base + "limits:starts:order/pace/") >= 300 * WEEK


# ---------------------------------------------------------------- order and numbers


def test_arrival_numbers_of_one_moment_are_distinct_to_the_last_digit(server, base, connection, clock):
    """Fourteen digits, as Lua writes numbers by itself, would make them equal."""
    clock.now += 123_457
    add_worker(connection)
    terms = publish(connection, ONE)
    connection.execute([asked(run, terms) for run in ("m", "z", "b", "a")])
    arrivals = [server.hget(base + f"run:{run}", "arrival") for run in ("m", "z", "b", "a")]
    assert arrivals == [str(START + 123_457 + n) for n in range(4)]


def test_the_queue_is_ordered_by_priority(connection):
    add_worker(connection)
    terms = publish(connection, ONE)
    begun(connection, "first", terms)
    priorities = [0, -1, 1, LARGEST, -LARGEST, 10, 9, -10, -9, 2**31, 0]
    for n, priority in enumerate(priorities):
        assert begun(connection, f"run {n}", terms, priority=priority).priority == priority
    expected = sorted(range(len(priorities)), key=lambda n: (-priorities[n], n))
    order, driven = [], ask(connection, r.ReadRun(run="first"), RunSeen).claim.run
    for _ in priorities:
        ask(connection, record(driven, then=Finish("completed", "1")), Recorded)
        (driven,) = (one.run for one in ask(connection, claim(), Claimed).claims)
        order.append(int(driven.id.removeprefix("run ")))
    assert order == expected


def test_an_admissible_run_is_found_behind_many_that_are_not(connection):
    add_worker(connection)
    terms = publish(connection, Limit(name="all", max=2, on_excess="queue"), EACH)
    begun(connection, "ann", terms, key='"ann"')
    cid = begun(connection, "cid", terms, key='"cid"')
    connection.execute([asked(f"ann {n:03}", terms, key='"ann"') for n in range(300)])
    connection.execute([asked(f"bob {n}", terms, key='"bob"') for n in range(3)])
    ask(connection, record(cid, then=Finish("completed", "1")), Recorded)
    assert [one.run.id for one in ask(connection, claim(), Claimed).claims] == ["bob 0"]
    assert status(connection, "ann 000", "ann 299", "bob 1") == ["queued"] * 3


def test_newly_published_limits_admit_a_run_behind_an_admitted_one(server, base, connection):
    add_worker(connection)
    terms = publish(connection, ONE)
    run = begun(connection, "a", terms)
    connection.execute([asked(name, terms, worker="") for name in "bc"])
    ask(connection, record(run, then=Finish("completed", "1")), Recorded)
    assert status(connection, "b", "c") == ["pending", "queued"]
    publish(connection, version=1)
    assert status(connection, "c") == ["pending"]


def test_removing_a_limit_admits_thousands_of_runs(server, base, connection):
    add_worker(connection)
    terms = publish(connection, ONE)
    names = [f"run {n:04}" for n in range(2_500)]
    connection.execute([asked(run, terms, worker="") for run in names])
    assert server.zcard(base + "limits:queue:order/all/") == 2_499
    publish(connection)
    assert [one.run.id for one in ask(connection, claim(limit=5_000), Claimed).claims] == names
    assert set(of_limits(server, base)) == {"limits:terms", "limits:in:order/all/"}


@pytest.mark.parametrize(
    ("limits", "why"),
    [
        ([Limit(name="all", max=2**53)], "cannot be stored"),
        ([Limit(name="all", max=1, per=2**53)], "cannot be stored"),
        ([Limit(name="all", max=1, max_queue=2**53)], "cannot be stored"),
        ([Limit(name="pace", max=0, per=SECOND)], "cannot be stored"),
        ([Limit(name="all", max=1.5)], "int"),
        ([Limit(name="all", max=1, on_excess="dance")], "dance"),
        ([Limit(name=None, max=1)], "str"),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else None,
)
def test_published_limits_that_cannot_be_stored_are_refused(server, base, connection, limits, why):
    bad = r.PublishLimits(workflow="order", terms=WorkflowLimits(limits=tuple(limits)))
    failed, kept = connection.execute([bad, r.PublishLimits(workflow="mail", terms=WorkflowLimits(limits=(ONE,)))])
    assert isinstance(failed, c.Failed)
    assert why in str(failed.error)
    assert isinstance(kept, LimitsPublished)
    assert set(server.hgetall(base + "limits:terms")) == {"mail"}


def test_starts_that_cannot_be_stored_are_refused(server, base, connection):
    terms = publish(connection, ONE)
    before = everything(server, base)
    bad = [
        asked("a", terms, worker="", priority=2**53),
        asked("a", terms, worker="", priority=0.5),
        asked("a", terms, worker="", priority=None),
        start("a", places=(LimitKey("all", None),), terms=terms.digest),
        start("a", places=(LimitKey(7, ""),), terms=terms.digest),
        start("a", places=(("all", "", ""),), terms=terms.digest),
        start("a", terms=None),
    ]
    assert [type(outcome).__name__ for outcome in connection.execute(bad)] == ["Failed"] * len(bad)
    assert everything(server, base) == before
    assert connection.execute([bad[0], asked("b", terms, worker="")])[1].run.status == "pending", "it takes no place"


@pytest.mark.parametrize("name", ["", '"', "\\", "{", "}", "é😀", "\n", "\x00", "%s", "%", "/", ":", "a:b", " ", "["])
def test_any_text_may_be_a_workflow_a_limit_and_a_key(connection, name):
    add_worker(connection, "w.1", name)
    limits = (Limit(name=name, max=1, path="x", on_excess="queue"), Limit(name=f"2{name}", max=1, per=SECOND))
    terms = publish(connection, *limits, workflow=name)
    places = (LimitKey(name, name), LimitKey(f"2{name}", name))
    command = start("a", type=name, places=places, terms=terms.digest, worker="w.1")
    run = ask(connection, command, Started).run
    assert run.places == places
    verdict = ask(connection, start(f"b{name}", type=name, places=places, terms=terms.digest), Limited).verdict
    assert (verdict.limit, verdict.key) == (f"2{name}", name)
    terms = publish(connection, *limits[:1], workflow=name)
    waits = ask(connection, start(f"b{name}", type=name, places=places[:1], terms=terms.digest), Started)
    assert (waits.run.status, waits.verdict.limit, waits.verdict.key) == ("queued", name, name)
    ask(connection, record(run, then=Finish("completed", "1")), Recorded)
    assert status(connection, f"b{name}") == ["pending"]
    assert ask(connection, r.ReadLimits(workflow=name), LimitsDiffer).terms == terms


# ---------------------------------------------------------------- within one command


def test_children_of_one_record_are_counted_together_and_events_of_the_parent_are_returned(connection):
    add_worker(connection)
    add_worker(connection, "v.1", "mail")
    oldest = publish(connection, Limit(name="all", max=2, on_excess="cancel_oldest"))
    parent = begun(connection, "parent", oldest)
    children = tuple(asked(run, oldest, worker="", parent="parent").new for run in ("x", "y", "z"))
    recorded = ask(connection, record(parent, "e", children=children, then=Park(None)), Recorded)
    events = [(event.number, event.kind, event.name) for event in recorded.events]
    assert (recorded.done, events) == (False, [(1, "cancel", ""), (2, "child", "x")])
    assert status(connection, "parent", "x", "y", "z") == ["running", "cancelled", "queued", "pending"]
    newest = publish(connection, Limit(name="all", max=1, on_excess="cancel_newest"), workflow="mail")
    other = ask(connection, start("other", type="mail", worker="v.1", places=(LimitKey("all"),), terms=newest.digest),
                Started).run  # fmt: skip
    child = NewRun(id="c", type="mail", input="1", request="q", parent="other", places=(LimitKey("all"),))
    recorded = ask(connection, record(other, children=(child,), then=Park(None)), Recorded)
    assert (recorded.done, [(event.kind, event.name) for event in recorded.events]) == (False, [("child", "c")])


def test_a_command_that_fails_after_its_first_child_has_changed_nothing(server, base, connection):
    add_worker(connection)
    terms = publish(connection, Limit(name="all", max=2, on_excess="queue"), PACE)
    run = begun(connection, "parent", terms)
    before = everything(server, base)
    children = tuple(asked(child, terms, worker="", parent="parent").new for child in "ab")
    bad = NewRun(id="c", type="order", input=7, request="q", parent="parent")
    (failed,) = connection.execute([record(run, "x", children=(*children, bad))])
    assert isinstance(failed, c.Failed)
    assert everything(server, base) == before


def test_a_run_whose_retry_is_rejected_is_unchanged_byte_for_byte(server, base, connection):
    add_worker(connection)
    terms = publish(connection, Limit(name="all", max=1))
    run = begun(connection, "a", terms)
    ask(connection, r.PostEvent(run="a", event=RunEvent(kind="signal", key="k")), Posted)
    ask(connection, record(run, "x", seen=1, then=Finish("failed", "1")), Recorded)
    begun(connection, "b", terms)
    before = everything(server, base)
    ask(connection, r.ReviveRun(run="a", fence=run.fence, keep=1, request="again", forget=(1,)), Limited)
    assert everything(server, base) == before


def test_a_run_that_starts_twice_at_one_moment_is_counted_twice(connection):
    """It was admitted, ended, and was admitted again: that is two starts."""
    add_worker(connection)
    terms = publish(connection, Limit(name="pace", max=2, per=SECOND))
    run = begun(connection, "a", terms)
    ask(connection, record(run, then=Finish("failed", "1")), Recorded)
    ask(connection, r.ReviveRun(run="a", fence=run.fence, keep=1, request="again"), Posted)
    ask(connection, asked("b", terms), Limited)


# ---------------------------------------------------------------- what is damaged


@pytest.mark.parametrize("text", ["{", "7", '{"limits":7}', '{"limits":[{"name":"all","max":"x"}]}'])
def test_unreadable_limits_are_named_and_do_not_affect_other_workflows(server, base, connection, text):
    add_worker(connection)
    terms = publish(connection, ONE)
    server.hset(base + "limits:terms", "mail", text)
    outcomes = connection.execute(
        [
            start("m", type="mail"),
            r.ReadLimits(workflow="mail"),
            r.PublishLimits(workflow="mail", terms=terms),
            asked("a", terms),
        ]
    )
    assert [type(outcome).__name__ for outcome in outcomes] == ["Failed", "Failed", "Failed", "Started"]
    for outcome in outcomes[:3]:
        assert isinstance(outcome.error, RecordUnreadable)
        assert "terms of the workflow 'mail'" in str(outcome.error)
    assert server.hget(base + "limits:terms", "mail") == text


@pytest.mark.parametrize("limits", ['[{"name":"all"}]', "[7]", "7", '[{"name":"all","max":1,"on_excess":"dance"}]'])
def test_a_run_with_unreadable_limits_is_neither_admitted_nor_ended(server, base, connection, limits):
    add_worker(connection)
    terms = publish(connection, ONE)
    run = begun(connection, "a", terms)
    server.hset(base + "limits:terms", "order", f'{{"limits":{limits}}}')
    before = everything(server, base)
    for outcome in connection.execute([asked("b", terms), record(run, "x", then=Finish("completed", "1"))]):
        assert isinstance(outcome.error, RecordUnreadable)
        assert "terms of the workflow 'order'" in str(outcome.error)
    assert everything(server, base) == before
    assert ask(connection, record(run, "x", request="y"), Recorded).done


def test_an_unreadable_queued_run_does_not_delay_others(server, base, connection):
    add_worker(connection)
    terms = publish(connection, ONE)
    run = begun(connection, "a", terms)
    connection.execute([asked(name, terms) for name in "bcd"])
    server.hset(base + "run:b", "claims", "many")
    server.delete(base + "run:c", base + "journal:c")
    ask(connection, record(run, then=Finish("completed", "1")), Recorded)
    assert status(connection, "d") == ["pending"]
    waiting = [name.split(" ", 2)[2] for name in server.zrange(base + "limits:queue:order/all/", 0, -1)]
    assert waiting == ["b"]


@pytest.mark.parametrize("places", ["7", "{", "[[]]", "[7]", '[["all",7]]'])
def test_a_run_with_unreadable_limit_keys_is_refused_and_unchanged(server, base, connection, places):
    add_worker(connection)
    run = begun(connection, "a", publish(connection, ONE))
    server.hset(base + "run:a", "places", places)
    before = everything(server, base)
    (outcome,) = connection.execute([record(run, "x", then=Finish("completed", "1"))])
    assert isinstance(outcome.error, RecordUnreadable)
    assert "run 'a'" in str(outcome.error)
    assert everything(server, base) == before


def test_queries_about_limits_write_nothing(server, connection):
    add_worker(connection)
    terms = publish(connection, Limit(name="all", max=1))
    begun(connection, "a", terms)
    before = server.info("persistence")["aof_current_size"]
    looks = [r.ReadLimits(workflow="order"), r.ReadLimits(workflow="mail"), asked("b", terms), start("c"),
             r.PublishLimits(workflow="order", terms=terms)]  # fmt: skip
    assert [type(one).__name__ for one in connection.execute(looks)] == [
        "LimitsDiffer", "LimitsDiffer", "Limited", "LimitsDiffer", "LimitsPublished",
    ]  # fmt: skip
    assert server.info("persistence")["aof_current_size"] == before
