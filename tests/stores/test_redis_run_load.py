"""Many runs at once in a Redis: each is claimed once, no command is too long, and no page blocks the server for
long."""

from __future__ import annotations

import threading

import pytest
from providers import REDISES

from holdfast.commands import runs as r
from holdfast.errors import StoreUnusable
from holdfast.rules.runs import record as rule
from holdfast.rules.runs.outcomes import Claimed, Posted, Recorded, RunPage, Started
from holdfast.rules.runs.record import Park
from holdfast.rules.runs.repository import RunFilter
from holdfast.stores.redis import writing as redis_writing
from holdfast.testing.builders import START
from holdfast.testing.suite.runs import record, signal, start
from stores.runs_asking import add_worker, ask, claim

AT_ONCE = START - rule.LONG_AGO


@pytest.fixture(params=REDISES, ids=lambda provider: provider.name)
def provider(request):
    return request.param


def test_two_concurrent_workers_claim_each_due_run_once(opened, url):
    store = opened(url)
    connection = store.connect("commands")
    for first in range(0, 2_000, 500):
        connection.execute([start(f"run-{n:04}") for n in range(first, first + 500)])
    found, together = {}, threading.Barrier(2)

    def work(worker):
        mine = store.connect("commands")
        add_worker(mine, worker)
        taken = found[worker] = []
        together.wait(30)
        while claims := ask(mine, claim(worker, limit=37), Claimed).claims:
            if not taken:
                together.wait(30)  # on a busy machine one worker might claim all of them before the other begins
            taken += [(one.run.id, one.run.worker, one.entries) for one in claims]

    threads = [threading.Thread(target=work, args=(worker,)) for worker in ("w.1", "v.1")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(found.values()), "both had a part"
    everyone = found["w.1"] + found["v.1"]
    assert sorted(run for run, _, _ in everyone) == [f"run-{n:04}" for n in range(2_000)]
    assert all(worker in found and entries == ("1",) for _, worker, entries in everyone)


def test_more_keyed_events_than_one_redis_command_takes_are_removed_at_once(connection, server, base):
    """A script sends at most about 8,000 values with one command."""
    ask(connection, start("r"), Started)
    many = 8_100
    for first in range(0, many, 100):
        connection.execute([signal("r", key=f"k{n}") for n in range(first, first + 100)])
    revive = r.ReviveRun(run="r", fence=0, keep=1, request="again", forget=tuple(range(1, many + 1)))
    (outcome,) = connection.execute([revive])
    assert isinstance(outcome, Posted), outcome
    assert not server.exists(base + "inbox-keys:r")
    assert set(server.lrange(base + "inbox:r", 0, -1)) <= {""} | {server.lindex(base + "inbox:r", -1)}


def test_a_command_that_is_too_long_for_a_script_is_refused_before_the_first_write(
    connection, server, base, monkeypatch
):
    monkeypatch.setattr(redis_writing, "AT_ONCE", 10_000)
    add_worker(connection)
    run = ask(connection, start("r", worker="w.1"), Started).run
    before = {name: server.dump(name) for name in server.keys(base + "run*")}
    (failed,) = connection.execute([record(run, *map(str, range(9_000)), then=Park(0))])
    assert isinstance(failed.error, StoreUnusable)
    assert "TOOLONG" in str(failed.error)
    assert {name: server.dump(name) for name in server.keys(base + "run*")} == before


def test_a_thousand_runs_with_journals_and_inboxes_are_claimed_in_one_batch(connection):
    add_worker(connection)
    entries = tuple(f'["step {n}"]' for n in range(1_200))
    runs = [outcome.run for outcome in connection.execute([start(f"r{n:04}", worker="w.1") for n in range(1_000)])]
    done = connection.execute([record(run, *entries[:3], then=Park(0)) for run in runs])
    assert all(outcome.done for outcome in done)
    connection.execute([signal(run.id) for run in runs])
    claimed = ask(connection, claim(limit=5_000), Claimed)
    assert [one.run.id for one in claimed.claims] == [run.id for run in runs]
    assert {(one.entries, one.events[0].payload) for one in claimed.claims} == {(("1", *entries[:3]), "7")}
    assert len(connection.execute([r.ListOwnedRuns(worker="w.1")])[0].runs) == 1_000
    long = claimed.claims[0].run
    for request, at in (("a", 4), ("b", 1_204)):  # without and with something to do afterwards
        last = Park(0) if request == "b" else None
        outcome = ask(connection, record(long, *entries, at=at, request=request, then=last), Recorded)
        assert outcome.done
    (again,) = ask(connection, claim(), Claimed).claims
    assert again.entries == ("1", *entries[:3], *entries, *entries)
    freed = connection.execute([r.UnregisterWorker(worker="w.1"), r.CountRuns(), r.ListOwnedRuns(worker="w.1")])
    assert (freed[1].counts, freed[2].runs) == ({"order": 1_000}, {})


def test_orphans_are_released_a_thousand_at_a_time_in_order_of_their_ids(connection, clock):
    add_worker(connection, "w.1", seconds=1)
    names = [f"r{n:04}" for n in range(1_100)]
    for name in reversed(names):
        clock.now += 1
        connection.execute([start(name, worker="w.1")])
    clock.pass_by(2)
    add_worker(connection, "v.1")
    assert [one.run.id for one in ask(connection, claim("v.1", limit=5_000), Claimed).claims] == names[:1_000]
    assert [one.run.id for one in ask(connection, claim("v.1", limit=5_000), Claimed).claims] == names[1_000:]


def test_an_empty_page_among_many_runs_returns_a_cursor(connection, clock):
    """No script blocks the server for long: it reads two thousand runs, and is called again."""
    for first in range(0, 5_000, 1_000):
        block = range(first, first + 1_000)
        connection.execute([start(f"r{n:04}", attributes={"a": n <= 2_500, "b": n >= 2_500}) for n in block])
        clock.now += 1
    wanted, after, pages, found = RunFilter(attributes={"a": True, "b": True}), None, 0, []
    while pages == 0 or after is not None:
        page = ask(connection, r.ListRuns(wanted=wanted, after=after), RunPage)
        pages, after, found = pages + 1, page.next, found + [run.id for run in page.runs]
    assert (found, pages) == (["r2500"], 2)
    ids, after = [], None
    while not ids or after is not None:
        page = ask(connection, r.ListRuns(after=after, limit=999), RunPage)
        ids, after = ids + [run.id for run in page.runs], page.next
    blocks = [range(first + 999, first - 1, -1) for first in range(4_000, -1, -1_000)]
    assert ids == [f"r{n:04}" for block in blocks for n in block]


def test_a_page_begins_after_any_cursor_even_one_without_a_run(connection, clock):
    connection.execute([start(f"r{n}") for n in range(10)])
    for cursor, first in (((START, "r5x"), "r5"), ((START, "r5"), "r4"), ((START, ""), None), ((START + 1, ""), "r9")):
        page = ask(connection, r.ListRuns(after=cursor, limit=1), RunPage)
        assert [run.id for run in page.runs] == ([first] if first else [])
