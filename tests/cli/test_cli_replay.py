"""`holdfast runs export` and `holdfast runs replay`: histories as files, and the check of code before a deploy."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
import textwrap
from types import SimpleNamespace

import pytest
from commandline import answer, failure, holdfast, process
from providers import PROVIDERS
from waiting import eventually_async

from holdfast import Client, Context, Engine, workflow
from holdfast.testing import replay
from holdfast.workflow import RunHistory

RELEASES = """
    from holdfast import Client, Context, Engine, workflow

    executed = []


    @workflow
    async def order(ctx: Context, item: str) -> str:
        await ctx.step("reserve", executed.append, item)
        await ctx.wait_for_signal("paid")
        return "shipped"


    @workflow(name="order")
    async def changed(ctx: Context, item: str) -> str:
        await ctx.step("check", executed.append, item)
        await ctx.step("reserve", executed.append, item)
        await ctx.wait_for_signal("paid")
        return "shipped"


    @workflow(name="order")
    async def other_input(ctx: Context, item: int) -> str:
        return "shipped"


    @workflow
    async def other(ctx: Context) -> None:
        pass


    same = Engine("URL", workflows=[order])
    bad = Engine("URL", workflows=[changed, other])
    nowhere = Engine("sqlite:///not-there.db", workflows=[order])
    client = Client("memory://")
    client.close()
    on_client = Engine(client, workflows=[order])
    both = [order, changed]


    def factory():
        return same
"""


@workflow
async def order(ctx: Context, item: str) -> str:
    await ctx.step("reserve", str, item)
    await ctx.wait_for_signal("paid")
    return "shipped"


@workflow
async def nap(ctx: Context) -> None:
    await ctx.sleep("1 hour")


@pytest.fixture(params=["sqlite", "postgres", "valkey"])
def url(request, tmp_path):
    return PROVIDERS[request.param].url(tmp_path)


@pytest.fixture
def store(url, tmp_path, monkeypatch):
    """A store with two suspended runs of "order", one that has ended, and one of "nap"; and releases of the code."""

    async def fill():
        async with Engine(url, workflows=[order, nap], park_after=0.02, grace=1) as engine:
            handles = [await engine.start(order, "é\u202e", id=name) for name in ("first", "second", "ended")]
            handles.append(await engine.start(nap, id="nap"))
            await handles[2].signal("paid")
            await handles[2].result(timeout=20)

            async def parked():
                return [await one.status() for one in handles] == ["suspended"] * 2 + ["completed", "suspended"]

            await eventually_async(parked)

    asyncio.run(fill())
    (tmp_path / "releases.py").write_text(textwrap.dedent(RELEASES).replace("URL", url))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield SimpleNamespace(url=url, folder=tmp_path)
    sys.modules.pop("releases", None)


def checked(store, target, *arguments):
    done = holdfast("runs", "replay", f"releases:{target}", "--json", *arguments)
    return done.exit_code, answer(done)


# -- export -------------------------------------------------------------------------------------------------


def test_an_export_is_a_file_that_can_be_replayed_and_is_not_overwritten(store):
    path = store.folder / "first.json"
    done = holdfast("runs", "export", "first", "-o", str(path), "--url", store.url)
    assert (done.exit_code, done.stdout) == (0, f"{path}: first of order, 1 entry.\n")
    assert replay(order, path).waits_for == ("the signal 'paid'",)
    before = path.read_bytes()
    done = holdfast("runs", "export", "second", "-o", str(path), "--url", store.url)
    assert "exists already. Nothing was written: use --force" in failure(done, 1)
    assert path.read_bytes() == before
    done = holdfast("runs", "export", "second", "-o", str(path), "--force", "--json", "--url", store.url)
    assert answer(done) == {"run": "second", "file": str(path), "entries": 1}
    assert RunHistory.read(path).run.id == "second"


def test_an_export_without_a_file_prints_ascii_that_can_be_read_back(store):
    with Client(store.url) as hf:
        found = hf.runs.export("first")
    for options in ((), ("--json",)):
        done = holdfast("runs", "export", "first", *options, "--url", store.url)
        assert done.stdout.isascii()
        assert json.loads(RunHistory.from_json(done.stdout).to_json()) == json.loads(found.to_json())


def test_an_export_of_an_unknown_run_or_to_an_unusable_file_fails(store):
    done = holdfast("runs", "export", "nothing", "-o", "x.json", "--url", store.url)
    assert "there is no run with the id 'nothing'" in failure(done, 1)
    assert not (store.folder / "x.json").exists()
    done = holdfast("runs", "export", "first", "-o", "no/such/folder.json", "--url", store.url)
    assert "cannot be written (No such file or directory)" in failure(done, 1)


# -- replay -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["same", "factory", "order"])
def test_code_that_fits_all_living_runs_exits_with_0(store, target):
    done = holdfast("runs", "replay", f"releases:{target}", url=store.url)
    assert done.exit_code == 0
    assert done.stdout.splitlines() == [
        "2 runs were checked; all of them fit.",
        f"1 run was not checked, because releases:{target} does not have the workflow: nap (1).",
    ]


def test_code_that_differs_exits_with_1_and_prints_both_sides_of_each_run(store):
    done = holdfast("runs", "replay", "releases:bad")
    assert done.exit_code == 1
    sides = "history: the step 'reserve' ended; code: waits for the steps ['check']"
    lines = done.stdout.splitlines()
    assert sorted(lines[:2]) == [f"first (order): {sides}", f"second (order): {sides}"]
    assert lines[2] == "2 runs were checked; 2 of them differ."


def test_the_document_contains_both_sides_and_the_error(store):
    code, found = checked(store, "bad", "--status", "suspended", "--status", "completed")
    assert (code, found["checked"], found["unknown"]) == (1, 3, {"nap": 1})
    assert sorted(one["run"] for one in found["differ"]) == ["ended", "first", "second"]
    one = found["differ"][0]
    assert set(one) == {"run", "name", "workflow", "status", "recorded", "code", "error"}
    assert one["recorded"] == "the step 'reserve' ended"
    assert one["error"].startswith("NonDeterminismError: the run ")


def test_an_input_that_the_code_cannot_read_is_a_difference(store):
    code, found = checked(store, "other_input", "--url", store.url)
    assert (code, len(found["differ"])) == (1, 2)
    assert found["differ"][0]["error"].startswith("InvalidValue: the input of the run ")
    done = holdfast("runs", "replay", "releases:other_input", "--url", store.url)
    assert "InvalidValue: the input of the run" in done.stdout


def test_options_choose_the_runs(store):
    assert checked(store, "same", "--status", "completed")[1]["checked"] == 1
    assert checked(store, "same", "--workflow", "order")[1] == {"checked": 2, "differ": [], "unknown": {}}
    assert checked(store, "same", "--workflow", "order", "--limit", "1")[1]["checked"] == 1
    assert checked(store, "same", "--status", "failed") == (0, {"checked": 0, "differ": [], "unknown": {}})
    done = holdfast("runs", "replay", "releases:same", "--status", "failed")
    assert done.stdout == "0 runs were checked.\n"


def test_files_are_checked_instead_of_the_store(store):
    for run in ("first", "ended", "nap"):
        holdfast("runs", "export", run, "-o", f"{run}.json", "--url", store.url)
    code, found = checked(store, "nowhere", "first.json", "ended.json", "nap.json")
    assert (code, found) == (1, {"checked": 2, "differ": [], "unknown": {"nap": 1}}), "a named file was not checked"
    assert checked(store, "nowhere", "first.json", "ended.json")[0] == 0
    alone = holdfast("runs", "replay", "releases:nowhere", "nap.json")
    assert alone.exit_code == 1
    assert "1 run was not checked, because releases:nowhere does not have the workflow: nap (1)." in alone.stdout
    done = holdfast("runs", "replay", "releases:changed", "first.json")
    assert done.exit_code == 1
    assert done.stdout.startswith("first.json: first (order): history: the step 'reserve' ended; code: waits for")
    assert "for runs in the store" in failure(
        holdfast("runs", "replay", "releases:order", "first.json", "--limit=1"), 2
    )
    assert "cannot be read" in failure(holdfast("runs", "replay", "releases:order", "none.json"), 1)
    (store.folder / "bad.json").write_text('{"format": 9}')
    assert "bad.json: this history has the format 9" in failure(
        holdfast("runs", "replay", "releases:order", "bad.json"), 1
    )


def test_no_step_is_executed_and_the_store_is_unchanged(store):
    def content():
        with Client(store.url) as hf:
            return [(hf.runs.get(one.id), hf.runs.export(one.id)) for one in hf.runs.list().runs]

    def dump():
        if not store.url.startswith("sqlite:///"):
            return None
        with sqlite3.connect(store.url.removeprefix("sqlite:///")) as database:
            return list(database.iterdump())

    before, file = content(), dump()
    for target in ("same", "bad"):
        checked(store, target, "--status", "suspended", "--status", "completed")
    assert sys.modules["releases"].executed == []
    assert dump() == file
    assert content() == before


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("both", "releases:both is a list, not an Engine or a workflow"),
        ("nothing", "there is no 'nothing' in releases"),
        ("on_client", "give its store with --url"),
    ],
)
def test_a_target_that_cannot_be_checked_is_a_usage_error(store, target, reason):
    assert reason in failure(holdfast("runs", "replay", f"releases:{target}"), 2)


def test_a_store_that_does_not_exist_is_refused_and_not_created(store):
    failure(holdfast("runs", "replay", "releases:nowhere"), 1)
    assert not (store.folder / "not-there.db").exists()


def test_it_runs_as_a_process_of_its_own(store):
    done = process("runs", "replay", "releases:bad", "--json")
    assert (done.returncode, done.stderr) == (1, "")
    assert json.loads(done.stdout)["checked"] == 2


def test_the_history_shows_patches(tmp_path):
    url = PROVIDERS["sqlite"].url(tmp_path)

    @workflow
    async def patched(ctx: Context) -> bool:
        return ctx.patched("new-invoice")

    async def drive():
        async with Engine(url, workflows=[patched], grace=1) as engine:
            await (await engine.start(patched, id="p")).result(timeout=20)

    asyncio.run(drive())
    shown = holdfast("runs", "show", "p", "--url", url)
    assert "  patch     new-invoice\n" in shown.stdout
    (entry,) = answer(holdfast("runs", "show", "p", "--json", "--url", url))["history"]
    assert (entry["kind"], entry["name"], entry["value"]) == ("patch", "new-invoice", None)
