"""runs.import_: an exported run in another store, inert unless it is to continue."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace
from providers import PROVIDERS
from waiting import until_status

from holdfast import Client, Context, WorkflowFailed, current_step, workflow
from holdfast.errors import InvalidOption, InvalidValue, RunExists
from holdfast.testing import replay
from holdfast.workflow import RunHistory

keys = []


def note(value):
    keys.append(current_step().idempotency_key)
    if value == "bad":
        raise ValueError("bad")
    return value


@workflow
async def below(ctx: Context) -> float:
    return ctx.random()


@workflow
async def order(ctx: Context, name: str) -> list:
    seen = [ctx.random(), await ctx.child(below)]
    await ctx.step("reserve", note, name)
    seen.append(await ctx.wait_for_signal("paid"))
    async with ctx.mutex("till", scope="global"):
        await ctx.step("charge", note, name)
        seen.append(await ctx.wait_for_signal("sent"))
    return seen


@pytest.fixture
def source(tmp_path):
    home = tmp_path / "source"
    home.mkdir()
    return PROVIDERS["sqlite"].url(home)


@pytest.fixture
def histories(source, played, engine_on):
    """A run that has completed, one that has failed, and one that waits inside of a lock."""
    keys.clear()

    async def scenario():
        async with engine_on(source, [order, below], park_after=0.05) as engine:
            for run, name in (("done", "ann"), ("failed", "bad"), ("living", "ann")):
                handle = await engine.start(order, name, id=run, idempotency_key=f"key of {run}")
                await handle.signal("paid", 7)
                if run == "done":
                    await handle.signal("sent", 8)
                    await handle.result(20)
                await until_status(engine, run, {"done": "completed", "living": "suspended"}.get(run, run))
            await engine.signal("living", "other", "unread")
            await until_status(engine, "living", "suspended")
            return [await engine.export(run) for run in ("done", "failed", "living")]

    found = played(scenario)
    keys.clear()
    return found


def test_what_is_imported_is_exported_again_as_it_was(url, tmp_path, histories):
    *ended, living = histories
    with Client(url) as hf:
        for history in ended:
            file = tmp_path / "run.json"
            file.write_text(history.to_json())
            assert hf.runs.import_(file).status == history.run.status
            again = hf.runs.export(history.run.id)
            assert again == history
            assert again.to_json() == history.to_json()
            with pytest.raises(RunExists, match="Import it under another id"):
                hf.runs.import_(history)
        assert hf.runs.import_(living).error.type == "RunImported"
        again = hf.runs.export("living")
        assert (again.entries, again.events) == (living.entries, living.events)
        assert replay(order, again).waits_for == ("the signal 'sent'",)
        with pytest.raises(RunExists, match="idempotency key"):
            hf.runs.import_(replace(living, run=replace(living.run, id="other", request="x")))


def test_nothing_of_an_imported_run_is_executed(url, played, engine_on, histories):
    async def scenario():
        async with engine_on(url, [order, below]) as engine:
            for history in histories:
                await engine.import_(history)
                await engine.import_(history, id=f"copy of {history.run.id}")
            assert await engine.sweep() == 0
            assert {run.status for run in (await engine.list()).runs} == {"completed", "failed", "cancelled"}
            assert keys == []
            assert (await engine.get("copy of living")).locks == ()

    played(scenario)


@pytest.mark.parametrize("name", ["living", "copy"])
def test_a_run_that_is_to_continue_keeps_what_was_recorded_and_executes_the_rest(
    url, played, engine_on, histories, name
):
    async def scenario():
        async with engine_on(url, [order, below]) as engine:
            await engine.import_(histories[2], id=name, run=True)
            await engine.signal(name, "sent", "here")
            result = await engine.handle(name, order).result(20)
            assert result[2:] == [7, "here"]
            assert keys == [f"{name}:charge"], "the lock was open, so the block begins again"
            with pytest.raises(InvalidOption, match="has completed"):
                await engine.import_(histories[0], id="x", run=True)
            await engine.import_(histories[1], id="y", run=True)
            with pytest.raises(WorkflowFailed, match="bad"):
                await engine.handle("y").result(20)
            assert keys[1:] == ["y:reserve"]

    played(scenario)


def damaged(text, **changes):
    file = json.loads(text)
    for name, value in changes.items():
        file[name] = value(file[name])
    return json.dumps(file)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": lambda _: 2}, "has the format 2"),
        ({"entries": lambda entries: entries[:-1]}, "entries, and the file"),
        ({"entries": lambda entries: [*entries[:-1], {"kind": "from the future", "at": 1}]}, "cannot be read"),
        ({"events": lambda events: events[::-1]}, "are not in order"),
        ({"events": lambda events: [{**event, "number": event["number"] + 99} for event in events]}, "not in order"),
        ({"run": lambda run: {**run, "status": "lost"}}, "not the history of a run"),
        ({"run": lambda run: {**run, "status": "pending"}}, "it is pending, and ended at"),
        ({"run": lambda run: {**run, "fence": 2**70}}, "not the history of a run|too large"),
        ({"run": lambda run: {**run, "id": ""}}, "is damaged"),
        *(({"run": lambda run, text=text: {**run, "details": text}}, "is damaged") for text in ("x", "", "{")),
        ({"run": lambda run: {**run, "result": "x"}}, "is damaged"),
        *(
            ({"run": lambda run, name=name: {**run, name: 253402300800000000}}, "is damaged")
            for name in ("created_at", "started_at", "ended_at", "continued_at", "not_before")
        ),
        ({"run": lambda run: {**run, "created_at": -1}}, "a time is before 1970"),
        ({"entries": lambda entries: [{**entries[0], "at": 253402300800000000}, *entries[1:]]}, "9998"),
        ({"events": lambda events: [{**events[0], "at": 253402300800000000}, *events[1:]]}, "9998"),
    ],
)
def test_a_damaged_file_is_refused_with_one_error_and_nothing_is_changed(url, tmp_path, histories, changes, message):
    file = tmp_path / "run.json"
    file.write_text(damaged(histories[0].to_json(), **changes))
    with Client(url) as hf:
        with pytest.raises(InvalidValue, match=message):
            hf.runs.import_(file)
        assert hf.runs.list().runs == ()


def test_what_is_no_history_is_refused(source):
    with Client(source) as hf:
        with pytest.raises(InvalidOption, match="is no history"):
            hf.runs.import_(7)
        for name in ("/nonexistent", "a\0b"):
            with pytest.raises(InvalidValue, match=r"cannot be read .*: nothing was imported"):
                hf.runs.import_(name)
        with pytest.raises(InvalidValue, match="is damaged"):
            hf.runs.import_(replace(RunHistory.from_json(json.dumps(EMPTY)), entries=()))


EMPTY = {
    "format": 1,
    "run": {"id": "r", "type": "order", "status": "completed", "created_at": 1, "ended_at": 2, "length": 1},
    "input": None,
    "entries": [],
    "events": [],
}


def test_the_import_of_a_replaced_run_shares_nothing_with_the_run_of_that_id(url, tmp_path, played, engine_on):
    @workflow
    async def noisy(ctx: Context, text: str) -> str:
        ctx.stream("said").write(text)
        if text == "waits":
            await ctx.wait_for_signal("go")
        return text

    async def items(engine, run):
        return [item.value async for item in engine.stream(run, "said")]

    async def scenario():
        async with engine_on(f"sqlite:///{tmp_path}/other.db", [noisy]) as engine:
            for text in ("one", "two"):
                await (await engine.start(noisy, text, id="r", on_existing="replace_ended")).result(20)
            history = await engine.export("r~1")
        async with engine_on(url, [noisy]) as engine:
            handle = await engine.start(noisy, "waits", id="r")
            await engine.import_(history)
            assert await items(engine, "r~1") == []
            await engine.purge(older_than=0)
            await handle.signal("go")
            await handle.result(20)
            assert await items(engine, "r") == ["waits"]

    played(scenario)
