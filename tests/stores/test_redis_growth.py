"""The cost of lists, queries and records in a Redis as runs and journals grow: counted in Redis commands, never in
time."""

from __future__ import annotations

import os
import random

import pytest
from providers import REDISES

from holdfast.commands import runs as r
from holdfast.rules.runs.outcomes import Recorded, RunPage, RunSeen
from holdfast.rules.runs.record import Finish, Park
from holdfast.rules.runs.repository import RunFilter
from holdfast.stores.redis import lists as redis_lists
from holdfast.testing.builders import START
from holdfast.testing.run_histories import RunModel
from holdfast.testing.suite.runs import record, start
from stores.runs_asking import add_worker, ask, claim, driven, lease

BLOCK = 500
MOST_TRIPS = 5
FULL = os.environ.get("HOLDFAST_GROWTH") == "full"
FEW, MANY = 1_000, 1_000_000 if FULL else 20_000
ENDED_PER_PARKED = 10 if FULL else 2
LENGTHS = (10_000, 100_000) if FULL else (2_000, 10_000)


@pytest.fixture(params=REDISES, ids=lambda provider: provider.name)
def provider(request):
    return request.param


def commands_of(server, connection, command):
    """How often each Redis command was called by the scripts that execute this command, and how many scripts were."""
    server.config_resetstat()
    connection.execute([command])
    stats = server.info("commandstats")
    counts = {name.removeprefix("cmdstat_"): stat["calls"] for name, stat in stats.items()}
    assert counts["evalsha"] <= MOST_TRIPS, command
    return {name: calls for name, calls in counts.items() if name not in ("config|resetstat", "config", "info")}


def fill(connection, clock, first, last):
    """Runs that were completed, and others that are parked."""
    for start_at in range(first, last, BLOCK):
        names = [f"run-{n:07}" for n in range(start_at, start_at + BLOCK)]
        clock.now += 1
        begun = connection.execute([start(name, worker="w.1", attributes={"region": "eu"}) for name in names])
        ends = [record(one.run, then=Finish("completed", "1")) for one in begun]
        assert all(outcome.done for outcome in connection.execute(ends))
        begun = connection.execute([start(f"parked-{name}", worker="w.1") for name in names[::ENDED_PER_PARKED]])
        parks = [record(one.run, then=Park(None)) for one in begun]
        assert all(outcome.done for outcome in connection.execute(parks))


def rare(connection, clock):
    """A few runs that filters look for, in the middle of all."""
    clock.now += 1
    for n in range(3):
        run = driven(connection, f"rare-{n}", type="mail", attributes={"customer": "acme"})
        ask(connection, record(run, then=Finish("failed", "1")), Recorded)


NOTHING = {
    "status": RunFilter(statuses=("timed_out", "cancelled")),
    "workflow": RunFilter(workflow="nobody's"),
    "prefix": RunFilter(prefix="run-x"),
    "attribute": RunFilter(attributes={"customer": "nobody"}),
    "status and workflow": RunFilter(statuses=("failed",), workflow="order"),
    "time": RunFilter(until=START),
}
RARE = {
    "status": RunFilter(statuses=("failed",)),
    "workflow": RunFilter(workflow="mail"),
    "prefix": RunFilter(prefix="rare-"),
    "attribute": RunFilter(attributes={"customer": "acme"}),
    "all of them": RunFilter(statuses=("failed",), workflow="mail", prefix="rare-", attributes={"customer": "acme"}),
    "a common attribute": RunFilter(statuses=("failed",), attributes={"region": "eu"}),
}
LOOKS = {
    "no filter": r.ListRuns(limit=10),
    "a common status": r.ListRuns(wanted=RunFilter(statuses=("completed",)), limit=10),
    "a cursor": r.ListRuns(after=(START + 1, "run-0000100"), limit=10),
    "ListOwnedRuns": r.ListOwnedRuns(worker="w.1"),
    "ReadNextDue": r.ReadNextDue(types=("order", "mail")),
    "CountRuns": r.CountRuns(),
    "ClaimRuns": claim(),
    "ListWorkers": r.ListWorkers(),
}


def test_lists_and_queries_cost_the_same_among_few_runs_and_among_many(server, connection, clock):
    add_worker(connection, seconds=10**6)
    fill(connection, clock, 0, FEW // 2)
    rare(connection, clock)
    fill(connection, clock, FEW // 2, FEW)
    lists = {f"{name}, {text}": r.ListRuns(wanted=wanted, limit=10) for text, filters in
             (("nothing", NOTHING), ("rare", RARE)) for name, wanted in filters.items()}  # fmt: skip
    commands = lists | LOOKS
    for command in commands.values():
        connection.execute([command])  # what a connection remembers of workers and runs is known from here on
    before = {name: commands_of(server, connection, command) for name, command in commands.items()}
    fill(connection, clock, FEW, MANY)
    after = {name: commands_of(server, connection, command) for name, command in commands.items()}
    assert after == before
    assert max(sum(counts.values()) for counts in after.values()) < 150
    common = r.ListRuns(wanted=RunFilter(prefix="parked-"), limit=10)
    assert sum(commands_of(server, connection, common).values()) < 150
    for wanted in NOTHING.values():
        assert ask(connection, r.ListRuns(wanted=wanted), RunPage).runs == ()
    for name, wanted in RARE.items():
        ids = [run.id for run in ask(connection, r.ListRuns(wanted=wanted), RunPage).runs]
        assert ids == ([] if name == "a common attribute" else ["rare-2", "rare-1", "rare-0"]), name


def started(connection, clock, *names):
    """Runs that are due, all of a block at one moment."""
    for first in range(0, len(names), BLOCK):
        clock.now += 1
        connection.execute(
            [start(name, attributes={"old": name.startswith("old-")}) for name in names[first : first + BLOCK]]
        )


def pages(connection, wanted, limit):
    """The ids on each page of a list."""
    found, after = [], None
    while not found or after is not None:
        page = ask(connection, r.ListRuns(wanted=wanted, after=after, limit=limit), RunPage)
        found, after = [*found, [run.id for run in page.runs]], page.next
    return found


def newest_first(names):
    """In the order of a list: by start time, and runs of the same time by id."""
    blocks = [sorted(names[first : first + BLOCK], reverse=True) for first in range(0, len(names), BLOCK)]
    return [name for block in reversed(blocks) for name in block]


def test_runs_whose_ids_begin_with_a_common_prefix_are_on_the_first_page_however_many_others_are_newer(
    server, connection, clock
):
    old = [f"old-{n:04}" for n in range(6_000)]
    started(connection, clock, *old, *[f"new-{n:05}" for n in range(25_000)])
    started(connection, clock, *[f"one-{n:05}" for n in range(3)])
    expected = newest_first(old)
    for wanted, looked_up in (
        (RunFilter(prefix="old-", since=START), len(old)),
        (RunFilter(prefix="old-", workflow="order"), 0),
    ):
        server.config_resetstat()
        page = ask(connection, r.ListRuns(wanted=wanted, limit=10), RunPage)
        stats = server.info("commandstats")
        assert [run.id for run in page.runs] == expected[:10]
        assert stats["cmdstat_evalsha"]["calls"] <= 12
        assert stats.get("cmdstat_hget", {"calls": 0})["calls"] == looked_up, "none of the newer ones"
    server.config_resetstat()
    page = ask(connection, r.ListRuns(wanted=RunFilter(prefix="old-"), after=page.next, limit=10), RunPage)
    assert [run.id for run in page.runs] == expected[10:20]
    assert "cmdstat_hget" not in server.info("commandstats"), "the next page is found by time"
    found = pages(connection, RunFilter(prefix="old-"), 1_000)
    assert [len(page) for page in found] == [1_000] * 6
    assert [name for page in found for name in page] == expected
    few = RunFilter(prefix="o", attributes={"old": False})
    assert pages(connection, few, 10) == [["one-00002", "one-00001", "one-00000"]]


SMALL = {"PREFIXED": 20, "NAMES": 10, "MOST_NAMES_AT_ONCE": 80, "IN_VAIN": 50, "MOST_NAMES": 100}


@pytest.mark.parametrize("most", [60, 59], ids=["by_id", "by_time"])
def test_of_very_many_ids_with_a_prefix_the_newest_are_searched_by_time_up_to_a_bound(
    connection, clock, monkeypatch, most
):
    """With small bounds: the real sizes would take a minute."""
    for name, bound in (SMALL | {"MOST_PREFIXED": most}).items():
        monkeypatch.setattr(redis_lists, name, bound)
    old = [f"old-{n:02}" for n in range(60)]
    started(connection, clock, *old)
    started(connection, clock, *[f"new-{n:03}" for n in range(95)])
    assert [len(page) for page in pages(connection, RunFilter(prefix="old-"), 25)] == [25, 25, 10]
    started(connection, clock, *[f"new-{n:03}" for n in range(95, 155)])
    found = pages(connection, RunFilter(prefix="old-"), 25)
    assert [len(page) for page in found] == [*([] if most == 60 else [0]), 25, 25, 10], "empty beyond the bound only"
    assert [name for page in found for name in page] == newest_first(old)


def test_of_ids_with_a_prefix_only_those_of_the_requested_time_are_read(connection, clock, monkeypatch):
    monkeypatch.setattr(redis_lists, "MOST_LOOKS", 30)
    old, new = ([f"old-{n}" for n in some] for some in (range(10, 30), range(30, 70)))
    started(connection, clock, *old, *[f"new-{n:03}" for n in range(100)])
    between = clock.now + 1
    started(connection, clock, *new)
    (page,) = pages(connection, RunFilter(prefix="old-", until=between), 100)
    assert page == newest_first(old)
    (page, _) = pages(connection, RunFilter(prefix="old-", since=between), 39)
    assert page == newest_first(new)[:39]


@pytest.mark.parametrize("seed", range(3))
def test_every_list_equals_that_of_the_rules(connection, clock, seed):
    """Filters, cursors and limits of every kind, over runs whose statuses and attributes change."""
    pick, model, runs = random.Random(seed), RunModel(), []

    def listed(command):
        (expected,) = model.execute([command], clock.now)
        assert connection.execute([command]) == [expected], command
        return expected

    listed(lease(seconds=10**6))
    listed(r.RegisterWorker(worker="w.1", name="w", types=("order",)))
    for n in range(150):
        clock.now += pick.choice([0, 0, 1, 1_000])
        kind = pick.choice(["order", "mail@2", "mail", "x:y"])
        attributes = pick.choice([{}, {"n": pick.randrange(3)}, {"n": True, "s": "1"}, {"s": 'é"x'}])
        name = f"{pick.choice('ab')}{pick.randrange(10)}{n}"
        runs.append(listed(start(name, type=kind, worker="w.1", attributes=attributes)).run)
        then = pick.choice([Finish("completed", "1"), Finish("failed", "1"), Park(None), None])
        attributes = pick.choice([None, None, {"n": 1}, {}])
        listed(record(pick.choice(runs), "e", request=f"q{n}", then=then, attributes=attributes))
    for _ in range(200):
        moments = [None, None, pick.choice(runs).created_at]
        wanted = RunFilter(
            statuses=pick.choice([(), ("completed",), ("failed", "running"), ("unheard of",)]),
            workflow=pick.choice(["", "", "order", "mail", "x:y", "z"]),
            prefix=pick.choice(["", "", "a", "b", "a1", "b2", "b3", "b10", "z"]),
            since=pick.choice(moments),
            until=pick.choice(moments),
            attributes=pick.choice([{}, {}, {"n": 1}, {"n": True}, {"n": 1, "s": "1"}, {"s": 'é"x'}, {"s": 1}]),
        )
        run, limit = pick.choice(runs), pick.choice([1, 7, 50, 1_000])
        page = listed(r.ListRuns(wanted=wanted, after=pick.choice([None, (run.created_at, run.id)]), limit=limit))
        if page.next:
            listed(r.ListRuns(wanted=wanted, after=page.next, limit=limit))


def test_a_list_from_several_sets_is_in_order_although_most_entries_do_not_match(connection, clock):
    """The newest of one set are older than all of another: no matching run is left out."""
    add_worker(connection, seconds=10**6)
    for n in range(70):
        clock.now += 1
        run = driven(connection, f"r{n:02}", attributes={} if 55 <= n < 60 else {"a": 1})
        if n < 60:
            status = "failed" if n < 30 else "completed"
            ask(connection, record(run, then=Finish(status, "1")), Recorded)
    wanted = RunFilter(statuses=("completed", "failed"), attributes={"a": 1})
    found, after = [], None
    while not found or after is not None:
        page = ask(connection, r.ListRuns(wanted=wanted, after=after, limit=1), RunPage)
        found, after = found + [run.id for run in page.runs], page.next
    assert found == [f"r{n:02}" for n in reversed(range(55))]


def test_a_record_and_a_read_of_the_history_cost_the_same_for_every_length_of_journal(server, connection):
    """The history is read in one round trip: only the size of the answer grows."""
    add_worker(connection, seconds=10**6)
    run, length, costs = driven(connection), 1, {}
    entry = '["an entry of the usual kind"]'
    for most in (100, *LENGTHS):  # what a connection remembers of a run is known after the first
        while length < most:
            count = min(1_000, most - length)
            ask(connection, record(run, *[entry] * count, at=length, request=f"q{length}"), Recorded)
            length += count
        commands = {
            "entry": record(run, entry, at=length, request="one more"),
            "park": record(run, entry, at=length + 1, request="park", then=Park(0)),
            "claim": claim(),
            "look": r.ReadRun(run="r"),
            "history": r.ReadRun(run="r", history=True),
        }
        costs[most] = {name: commands_of(server, connection, command) for name, command in commands.items()}
        length += 2
        seen = ask(connection, r.ReadRun(run="r", history=True), RunSeen).claim
        assert (len(seen.entries), seen.run.worker) == (length, "w.1")
        run = seen.run
    assert costs[LENGTHS[0]] == costs[LENGTHS[1]]
    assert costs[LENGTHS[0]]["entry"] == {"evalsha": 1, "hmget": 1, "llen": 2, "hset": 1, "rpush": 1}, (
        "no index is written for an entry"
    )
