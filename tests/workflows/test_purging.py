"""Ended runs that are removed: by hand, by the limits of engines and workflows, and beside other commands."""

from __future__ import annotations

import asyncio
import secrets
import threading
from datetime import UTC, datetime
from functools import wraps

import pytest
from providers import PROVIDERS, WITH_WORKFLOWS

from holdfast import Client, Context, Engine, workflow
from holdfast.commands import Command, Failed
from holdfast.commands import purging as p
from holdfast.commands import runs as r
from holdfast.errors import InvalidDuration, InvalidOption, RunExists, StoreContended, UnknownRun
from holdfast.rules.runs.outcomes import Posted, Purged, RunRefused, Started
from holdfast.rules.runs.record import NewRun
from holdfast.stores.contract import Connection
from holdfast.testing import TestEngine
from holdfast.workflow import PurgeReport, start
from holdfast.workflow.purging import Purge, checked_request


def on_a_loop(test):
    """Run an async test."""

    @wraps(test)
    def run(*given, **named):
        asyncio.run(test(*given, **named))

    return run


@workflow
async def short(ctx: Context, number: int) -> int:
    await ctx.state.execution("seen", 0).set(number)
    return await ctx.step("double", lambda: 2 * number)


@workflow
async def kept(ctx: Context) -> None:
    """Its runs are kept."""


@workflow
async def fails(ctx: Context) -> None:
    raise ValueError("no")


@workflow
async def family(ctx: Context, children: int) -> None:
    for number in range(children):
        await ctx.child(short, number)


@workflow
async def waits(ctx: Context) -> str:
    return await ctx.wait_for_signal("go")


@workflow
async def leaves_a_child(ctx: Context) -> None:
    await ctx.start_child(waits)


@pytest.fixture(params=WITH_WORKFLOWS)
def url(request, tmp_path):
    address = f"memory://{secrets.token_hex(4)}"
    if request.param != "memory":
        address = PROVIDERS[request.param].url(tmp_path)
    with Client(address) as open_all_the_time:  # the last one that is closed removes the records of memory
        open_all_the_time.runs.list()
        yield address


# -- purge ----------------------------------------------------------------------------------------------------


@on_a_loop
async def test_a_purge_removes_what_ended_long_ago_with_its_state_and_frees_its_id(url):
    async with Engine(url, workflows=[short, fails]) as engine:
        for number in range(3):
            await (await engine.start(short, number, id=f"s{number}", idempotency_key=f"k{number}")).result()
        with pytest.raises(Exception, match="no"):
            await (await engine.start(fails, id="f")).result()
        with Client(url) as hf:
            assert hf.runs.purge(older_than="1 day") == PurgeReport()
            assert hf.runs.purge(older_than=0, dry_run=True) == PurgeReport(trees=4, runs=4)
            assert hf.runs.purge(older_than=0, status="failed", dry_run=True).runs == 1
            assert hf.runs.purge(older_than=0, status=["failed", "cancelled"], workflow="short").runs == 0
            assert hf.state.execution("s1", "seen", 0).get() == 1
            seen = []
            hf.events.subscribe(seen.append)
            assert hf.runs.purge(older_than=0, workflow=short) == PurgeReport(trees=3, runs=3)
            assert [(event.name, event.fields) for event in seen if event.name == "runs_purged"] == [
                ("runs_purged", {"workflow": "short", "count": 3})
            ]
            assert [run.id for run in hf.runs.list().runs] == ["f"]
            assert hf.state.execution("s1", "seen", 0).get() == 0
            with pytest.raises(UnknownRun):
                hf.runs.retry("s1")
        assert await engine.purge(older_than=0) == PurgeReport(trees=1, runs=1)
        again = await engine.start(short, 7, id="s1", idempotency_key="k1")
        assert await again.result() == 14


@on_a_loop
async def test_a_tree_with_a_living_run_stays_as_a_whole(url):
    async with Engine(url, workflows=[leaves_a_child, waits, family, short]) as engine:
        await (await engine.start(leaves_a_child, id="p")).result()
        await (await engine.start(family, 3, id="f")).result()
        report = await engine.purge(older_than=0)
        living = [run for run in (await engine.list()).runs if run.living]
        assert report.runs == 4
        if living:  # the child outlives its parent
            assert report.kept_living == 1
            await engine.signal(living[0].id, "go", "on")
            await engine.handle(living[0].id).result()
            assert await engine.purge(older_than=0) == PurgeReport(trees=1, runs=2)
        assert (await engine.list()).runs == ()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"older_than": -1}, InvalidDuration),
        ({"older_than": None}, InvalidOption),
        ({"older_than": "soon"}, InvalidDuration),
        ({"older_than": 1, "status": "running"}, InvalidOption),
        ({"older_than": 1, "status": "purged"}, InvalidOption),
        ({"older_than": 1, "status": ()}, InvalidOption),
    ],
)
def test_nonsense_is_refused(options, error):
    with Client("memory://") as hf, pytest.raises(error):
        hf.runs.purge(**options)
    with Client("memory://") as hf, pytest.raises(TypeError):
        hf.runs.purge()


@pytest.mark.parametrize("retain", [-1, 0, 0.5, "never"])
def test_a_limit_that_makes_no_sense_is_refused(retain):
    with pytest.raises((InvalidOption, InvalidDuration)):
        Engine("memory://", retain=retain)
    with pytest.raises((InvalidOption, InvalidDuration)):
        workflow(retain=retain)(kept.function)


# -- large trees, and purges that stop in between -------------------------------------------------------------


def ended_tree(connection, root: str, children: int) -> None:
    """A tree that has ended, without an engine."""
    (started,) = connection.execute([r.StartRun(new=NewRun(id=root, type="t", input="1", request=f"start {root}"))])
    assert isinstance(started, Started)
    for first in range(0, children, 50):
        some = [
            NewRun(id=f"{root}/{n}", type="t", input="1", request=f"q {root} {n}", parent=root, root=root)
            for n in range(first, min(first + 50, children))
        ]
        connection.execute([r.StartRun(new=new) for new in some])
        connection.execute([r.FailRun(run=new.id, fence=0, reason="null", request=f"end {new.id}") for new in some])
    (posted,) = connection.execute([r.FailRun(run=root, fence=0, reason="null", request=f"end {root}")])
    assert isinstance(posted, Posted)


def test_a_purge_that_stopped_within_a_large_tree_is_continued_by_the_next_one(url):
    """It may stop after each of its commands."""
    for stop in range(1, 12):
        with Client(url, namespace=f"stop{stop}") as hf:
            connection = hf.runtime.store.connect("commands")
            ended_tree(connection, "r", 150)
            ended_tree(connection, "s", 2)
            flow = Purge(checked_request(older_than=0)).run()
            outcome = None
            sent = 0
            with pytest.raises((RuntimeError, StopIteration)):
                while True:
                    request = flow.send(outcome)
                    command = getattr(request, "command", None)
                    if command is None:
                        outcome = False
                        continue
                    if sent == stop:
                        raise RuntimeError("killed")
                    (outcome,) = connection.execute([command])
                    sent += 1
            flow.close()
            left = hf.runs.list(limit=1_000).runs
            if any(run.id == "r" for run in left):
                assert len([run for run in left if run.id.startswith("r")]) == 151
            hf.runs.purge(older_than=0)
            assert hf.runs.list(limit=1_000).runs == ()
            assert hf.runs.start("t", id="r") == "r"
            connection.close()


def hidden_tree(connection, root: str, children: int) -> None:
    """A tree whose purge was stopped after it had hidden the first run."""
    ended_tree(connection, root, children)
    for step in ("mark", "hide"):
        connection.execute([p.PurgeTree(root=root, before=2**53 - 1, purge="p", step=step)])


def test_a_hidden_tree_is_removed_by_any_later_purge_whatever_its_age_is(url):
    with Client(url) as hf:
        connection = hf.runtime.store.connect("commands")
        hidden_tree(connection, "r", 120)
        with pytest.raises(UnknownRun):
            hf.runs.get("r")
        assert hf.runs.purge(older_than="300 days").runs == 121
        hf.runs.start("t", id="r")
        connection.close()


def test_a_start_finishes_the_purge_that_was_stopped_under_its_id(url):
    with Client(url) as hf:
        connection = hf.runtime.store.connect("commands")
        hidden_tree(connection, "r", 120)
        assert hf.runs.start("t", id="r") == "r"
        hidden_tree(connection, "s", 120)
        assert hf.runs.start_or_signal("t", id="s", name="go") == "s"
        hidden_tree(connection, "u", 120)
        assert hf.runs.start("t", id="u", on_existing="replace_ended") == "u"
        assert sorted(run.id for run in hf.runs.list(limit=1_000).runs) == ["r", "s", "u"]
        assert hf.runs.purge(older_than="300 days") == PurgeReport()
        connection.close()


def test_a_start_sends_a_limited_number_of_steps_of_a_purge(monkeypatch):
    monkeypatch.setattr(start, "PURGE_STEPS", 1)
    with Client(f"memory://{secrets.token_hex(4)}") as hf:
        connection = hf.runtime.store.connect("commands")
        hidden_tree(connection, "r", 120)
        with pytest.raises(RunExists, match="is being purged"):
            hf.runs.start("t", id="r")
        assert hf.runs.start("t", id="r") == "r"
        connection.close()


# -- beside other commands ------------------------------------------------------------------------------------


def answer(connection: Connection, command: Command) -> object:
    """The outcome of a command; while the other connection has its rows for long, it is sent again, as clients do."""
    while isinstance(outcome := connection.execute([command])[0], Failed) and isinstance(outcome.error, StoreContended):
        pass
    return outcome


def raced(url: str, first: list[Command], second: list[Command]) -> tuple[list[object], list[object]]:
    """The outcomes of two batches that are sent at once by two connections."""
    with Client(url) as hf:
        connections = [hf.runtime.store.connect("commands") for _ in range(2)]
        barrier, outcomes = threading.Barrier(2), {}

        def send(place: int, commands: list[Command]) -> None:
            barrier.wait()
            outcomes[place] = [answer(connections[place], command) for command in commands]

        threads = [threading.Thread(target=send, args=pair) for pair in enumerate((first, second))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for connection in connections:
            connection.close()
        return outcomes[0], outcomes[1]


def test_a_retry_beside_a_purge_wins_or_finds_no_run(url):
    """A run that was revived is never removed, and one that was removed is never revived."""
    wins = []
    for n in range(25):
        with Client(url) as hf:
            connection = hf.runtime.store.connect("commands")
            ended_tree(connection, f"r{n}", 2)
            connection.close()
        name = f"r{n}" if n % 2 else f"r{n}/1"
        revive = r.ReviveRun(run=name, fence=0, keep=1, request=f"again {n}")
        (purged,), (revived,) = raced(url, [p.PurgeRuns(roots=(f"r{n}",), before=2**53 - 1)], [revive])
        assert isinstance(purged, Purged)
        with Client(url) as hf:
            there = [
                run.id for run in hf.runs.list(prefix=f"r{n}", limit=100).runs if run.id.partition("/")[0] == f"r{n}"
            ]
        if isinstance(revived, Posted):
            assert (purged.trees, purged.living, len(there)) == (0, 1, 3)
        else:
            assert isinstance(revived, RunRefused)
            assert revived.run is None
            assert (purged.runs, there) == (3, [])
        wins.append(isinstance(revived, Posted))


def test_a_start_that_replaces_a_run_beside_a_purge_keeps_the_number_of_the_purged_one(url):
    """Either the ended run is kept as `r~1`, or it was purged; in both cases the new one is there."""
    for n in range(15):
        with Client(url) as hf:
            connection = hf.runtime.store.connect("commands")
            ended_tree(connection, f"r{n}", 1)
            connection.close()
        new = NewRun(id=f"r{n}", type="t", input="2", request=f"new {n}", on_existing="replace_ended")
        purge = p.PurgeRuns(roots=(f"r{n}",), before=2**53 - 1)
        (purged,), (started,) = raced(url, [purge], [r.StartRun(new=new)])
        assert isinstance(purged, Purged)
        assert isinstance(started, Started)
        assert started.fresh
        with Client(url) as hf:
            assert hf.runs.get(f"r{n}").living
            there = {run.id for run in hf.runs.list(prefix=f"r{n}", limit=100).runs}
        if started.run.generation == 1:
            assert (purged.runs, there) == (2, {f"r{n}"})
        else:
            assert (purged.runs, f"r{n}~1" in there) == (0, True)


def test_a_start_with_the_key_of_a_purged_run_finds_it_or_begins_anew(url):
    for n in range(25):
        new = NewRun(id=f"a{n}", type="t", input="1", request=f"a {n}", key=f"k{n}")
        with Client(url) as hf:
            connection = hf.runtime.store.connect("commands")
            connection.execute([r.StartRun(new=new)])
            connection.execute([r.FailRun(run=new.id, fence=0, reason="null", request="end")])
            connection.close()
        other = NewRun(id=f"b{n}", type="t", input="2", request=f"b {n}", key=f"k{n}")
        (purged,), (started,) = raced(url, [p.PurgeRuns(roots=(new.id,), before=2**53 - 1)], [r.StartRun(new=other)])
        assert isinstance(purged, Purged)
        assert isinstance(started, Started)
        assert purged.runs == 1
        with Client(url) as hf:
            there = [run.id for run in hf.runs.list(limit=100).runs if run.id in (new.id, other.id)]
        assert there == ([other.id] if started.fresh else [])


def test_a_child_that_is_started_beside_a_purge_keeps_its_tree(url):
    """Its parent has not ended, so nothing of the tree may go, at whatever moment the purge reads it."""
    for n in range(25):
        root = f"r{n}"
        new = NewRun(id=root, type="t", input="1", request=f"start {n}")
        with Client(url) as hf:
            connection = hf.runtime.store.connect("commands")
            connection.execute([r.StartRun(new=new)])
            connection.close()
        child = NewRun(id=f"{root}/c", type="t", input="1", request=f"c {n}", parent=root, root=root)
        end = r.FailRun(run=root, fence=0, reason="null", request=f"end {n}")
        purge = p.PurgeRuns(roots=(root,), before=2**53 - 1)
        purges, (started, _) = raced(url, [purge, purge, purge], [r.StartRun(new=child), end])
        assert isinstance(started, Started)
        assert all(isinstance(one, Purged) and one.trees == 0 for one in purges)
        with Client(url) as hf:
            assert hf.runs.get(child.id).living


# -- limits of engines and workflows --------------------------------------------------------------------------


@on_a_loop
async def test_an_engine_removes_the_old_runs_of_its_workflows():
    forever = workflow(name="forever", retain="forever")(kept.function)
    brief = workflow(name="brief", retain="2 days")(kept.function)
    async with TestEngine([short, forever, brief, kept], retain="30 days") as engine:
        for one in (forever, brief, kept):
            await (await engine.start(one, id=one.name)).result()
        await engine.advance("1 day")
        assert len((await engine.list()).runs) == 3
        await engine.advance("2 days")
        assert {run.id for run in (await engine.list()).runs} == {"forever", "kept"}
        await engine.advance("40 days")
        assert {run.id for run in (await engine.list()).runs} == {"forever"}


@pytest.mark.parametrize("error", [StoreContended("busy"), ZeroDivisionError("a defect")])
@on_a_loop
async def test_a_workflow_whose_runs_cannot_be_purged_does_not_keep_the_others(monkeypatch, caplog, error):
    purge = Purge._purge

    def fails_for_the_first(self, name, status):
        if name == "short":
            raise error
        return purge(self, name, status)

    async with TestEngine([short, kept], retain="1 day") as engine:
        await (await engine.start(short, 1, id="short")).result()
        await (await engine.start(kept, id="kept")).result()
        with monkeypatch.context() as patch, caplog.at_level("INFO", "holdfast.workflow"):
            patch.setattr(Purge, "_purge", fails_for_the_first)
            await engine.advance("2 days")
        assert {run.id for run in (await engine.list()).runs} == {"short"}
        assert "ended runs of 'short' could not be purged" in caplog.text
        await engine.advance("1 day")
        assert (await engine.list()).runs == ()


@on_a_loop
async def test_without_a_limit_runs_are_kept():
    async with TestEngine([kept]) as engine:
        await (await engine.start(kept, id="a")).result()
        await engine.advance("3000 days")
        assert len((await engine.list()).runs) == 1


@on_a_loop
async def test_an_open_engine_purges_by_itself(url):
    async with Engine(url, workflows=[short, waits], retain=1) as engine:
        living = await engine.start(waits, id="w")
        await (await engine.start(short, 1, id="s")).result()
        async with asyncio.timeout(60):
            while len((await engine.list()).runs) > 1:
                await asyncio.sleep(0.05)
        await living.signal("go", "on")
        assert await living.result() == "on"


@on_a_loop
async def test_a_year_under_a_limit_leaves_a_constant_number_of_rows():
    async with TestEngine([family, short], start=datetime(2026, 1, 1, tzinfo=UTC), retain="30 days") as engine:
        counts = []
        for day in range(365):
            await (await engine.start(family, 1, id=f"d{day}", idempotency_key=f"k{day}")).result()
            await engine.advance("1 day")
            counts.append(len((await engine.list(limit=1_000)).runs))
        space = engine._client.runtime.store._space
        assert max(counts) == counts[-1] == counts[40] <= 2 * 31
        runs = space.runs
        for kind in (runs._runs, runs._journals, runs._by_key, runs._by_age):
            assert len(kind) <= 2 * 31
        assert len(space.slots) <= 31
        assert len(runs._records.keys_after("tree-member", "", "", None)) <= 31
