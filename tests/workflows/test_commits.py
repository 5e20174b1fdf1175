"""What a run costs: n steps, one after the other, are n + 1 commits, its start and its end included."""

from __future__ import annotations

import asyncio
import importlib
import pkgutil
import sqlite3

import pytest

from holdfast import AsyncClient, Context, commands, step, workflow
from holdfast.commands import purging as purge_commands
from holdfast.commands import runs as run_commands
from holdfast.commands.answers import AnswerApproval
from holdfast.runtime import failpoints
from holdfast.workflow.driver import Driver


@step
async def add(a: int, b: int) -> int:
    return a + b


@workflow
async def chain(ctx: Context, n: int) -> int:
    total = 0
    for _ in range(n):
        total = await add(total, 1)
    return total


@workflow(timeout="1 hour")
async def limited(ctx: Context, n: int) -> int:
    return await chain.function(ctx, n)


@workflow
async def spread(ctx: Context, n: int) -> int:
    return sum(await asyncio.gather(*(add(k, 0) for k in range(n))))


async def driven_to_its_end(engine, flow, n):
    """No client waits for the result meanwhile: a watch of the result would be one more commit."""
    handle = await engine.start(flow, n, id="counted")
    if (driver := engine._worker.drivers.get("counted")) is not None:
        await driver.finished.wait()
    return await handle.result()


@pytest.fixture
def sqlite(tmp_path, engine_on):
    return lambda workflows: engine_on(f"sqlite:///{tmp_path}/runs.db", workflows)


@pytest.fixture
def commits(monkeypatch):
    """The transactions of SQLite that wrote something about the run `counted` and were committed."""
    found = []

    def connect(*args, **options):
        db = connected(*args, **options)
        statements = []

        def traced(statement):
            if statement.startswith("BEGIN"):
                statements.clear()
            elif statement == "COMMIT" and any(_writes(one) and "'counted'" in one for one in statements):
                found.append(list(statements))
            statements.append(statement)

        db.set_trace_callback(traced)
        return db

    connected = sqlite3.connect
    monkeypatch.setattr(sqlite3, "connect", connect)
    return found


def _writes(statement):
    return statement.lstrip().upper().startswith(("INSERT", "UPDATE", "DELETE", "REPLACE", "WITH"))


@pytest.mark.parametrize(("flow", "n"), [(flow, n) for flow in (chain, limited, spread) for n in (0, 1, 10)])
def test_a_run_of_n_steps_is_at_most_n_plus_1_commits_of_sqlite(sqlite, played, commits, flow, n):
    async def scenario():
        async with sqlite([flow]) as engine:
            return await driven_to_its_end(engine, flow, n)

    assert played(scenario) == (sum(range(n)) if flow is spread else n)
    assert 2 <= len(commits) <= max(n, 1) + 1
    if flow is not spread:
        assert len(commits) == max(n, 1) + 1, "each result is durable before the next step begins"


@pytest.mark.parametrize("n", [1, 10])
def test_a_run_of_n_steps_is_n_plus_1_commands_on_every_store(url, played, engine_on, monkeypatch, n):
    points = []

    async def scenario():
        async with engine_on(url, [chain]) as engine:
            monkeypatch.setattr(failpoints, "reached", points.append)
            return await driven_to_its_end(engine, chain, n)

    assert played(scenario) == n
    made = [point for point in points if point.startswith("after") and "watch" not in point and "dismiss" not in point]
    assert made == ["after start", *["after record"] * (n - 1), "after finish"]


def test_a_generation_ends_with_one_command_that_also_records_its_last_result_on_every_store(
    url, played, engine_on, monkeypatch
):
    points = []

    @workflow
    async def rounds(ctx: Context, n: int) -> int:
        await add(await add(n, 1), 1)
        if n < 3:
            raise ctx.continue_as_new(n + 1)
        return n

    async def scenario():
        async with engine_on(url, [rounds]) as engine:
            monkeypatch.setattr(failpoints, "reached", points.append)
            return await driven_to_its_end(engine, rounds, 1)

    assert played(scenario) == 3
    made = [point for point in points if point in ("after start", "after record", "after continue", "after finish")]
    generation = ["after record", "after continue"]
    assert made == ["after start", *generation, *generation, "after record", "after finish"]


@pytest.mark.parametrize("timeout", [None, "1 hour"])
def test_a_result_is_durable_before_the_next_step_begins(url, played, engine_on, timeout):
    async def scenario():
        async with AsyncClient(url) as hf:

            async def entries() -> int:
                return (await hf.runs.get("r")).entries

            @workflow(timeout=timeout)
            async def looks(ctx: Context) -> list[int]:
                return [await ctx.step("look", entries) for _ in range(5)]

            async with engine_on(url, [looks]) as engine:
                return await (await engine.start(looks, id="r")).result()

    begun = timeout is not None  # an entry that goes with the first result
    assert played(scenario) == [1, *(n + begun for n in range(2, 6))]


def run_command_types(base: type = run_commands.RunCommand) -> list[type]:
    """All types of commands about runs, whichever module of the package defines them."""
    for module in pkgutil.iter_modules(commands.__path__, commands.__name__ + "."):
        importlib.import_module(module.name)
    below = [one for kind in base.__subclasses__() for one in (kind, *run_command_types(kind))]
    return [kind for kind in below if kind.__module__.startswith(commands.__name__ + ".")]


def test_every_command_about_runs_that_writes_is_a_commit_with_a_name():
    kinds = run_command_types()
    writes = [kind for kind in kinds if kind not in (*run_commands.RUN_READS, *purge_commands.PURGE_READS)]
    assert AnswerApproval in writes
    nameless = {run_commands.RecordRun, run_commands.PostEvent}  # these have several, by what they carry
    assert {failpoints._PLAIN.get(kind) for kind in writes if kind not in nameless} <= set(failpoints.KINDS)
    named = {
        *failpoints._PLAIN.values(),
        "record",
        "record children",
        "take",
        "give",
        "park",
        "continue",
        "finish",
        "signal",
        "cancel",
        "state",
    }
    assert named == {*failpoints.KINDS} - {"transaction"}


def test_a_step_makes_its_driver_check_for_deliveries_twice(sqlite, played, monkeypatch):
    """Once for the result of the step, and once for the outcome of its record."""
    looks = []
    advance = Driver._advance
    monkeypatch.setattr(Driver, "_advance", lambda self: (looks.append(1), advance(self))[1])

    async def scenario():
        async with sqlite([chain]) as engine:
            return await driven_to_its_end(engine, chain, 10)

    assert played(scenario) == 10
    assert len(looks) <= 2 * 10 + 2
