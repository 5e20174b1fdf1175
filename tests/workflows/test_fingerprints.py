"""Arguments of steps that cannot be hashed are compared by what `fingerprint=` makes of them."""

from __future__ import annotations

import pytest
from inspect_runs import suspended
from waiting import eventually_async

from holdfast import StepFailed, step, workflow
from holdfast.errors import InvalidOption, InvalidValue


class Document:
    """An argument that no encoder knows."""

    def __init__(self, digest):
        self.digest = digest

    __slots__ = ("digest",)


def by_digest(document, *, page=1):
    return [document.digest, page]


@step(fingerprint=by_digest)
def index(document, *, page=1) -> str:
    return f"{document.digest}, page {page}"


def reading(digest, page=1, how="decorator"):
    """A workflow that gives such a document to a step, and then waits."""

    @workflow(name="read")
    async def read(ctx, _none: None) -> str:
        document = Document(digest)
        if how == "decorator":
            result = await index(document, page=page)
        elif how == "ctx.step with the step":
            result = await ctx.step("index", index, document, page=page)
        else:
            result = await ctx.step("index", index.function, document, page=page, fingerprint=[digest, page])
        await ctx.wait_for_signal("go")
        return result

    return read


def outcome_of(played, engine_on, url, before, after):
    """What a run does that was begun by one workflow and is continued by the other."""

    async def scenario():
        async with engine_on(url, [before], park_after="10 ms") as engine:
            handle = await engine.start(before)
            await eventually_async(lambda: suspended(handle))
        async with engine_on(url, [after]) as engine:
            handle = engine.handle(handle.id)
            await handle.signal("go")
            await eventually_async(lambda: settled(engine, handle.id))
            return (await engine.get(handle.id)).status

    async def settled(engine, run):
        return (await engine.get(run)).status in ("blocked", "completed")

    return played(scenario)


@pytest.mark.parametrize("how", ["decorator", "ctx.step with the step", "ctx.step with a value"])
def test_a_replay_with_another_fingerprint_blocks_the_run(played, engine_on, tmp_path, how):
    url = f"sqlite:///{tmp_path}/a.db"
    assert outcome_of(played, engine_on, url, reading("a", how=how), reading("b", how=how)) == "blocked"


@pytest.mark.parametrize("how", ["decorator", "ctx.step with the step", "ctx.step with a value"])
def test_a_replay_with_the_same_fingerprint_continues(played, engine_on, tmp_path, how):
    url = f"sqlite:///{tmp_path}/a.db"
    assert outcome_of(played, engine_on, url, reading("a", how=how), reading("a", how=how)) == "completed"


def test_a_fingerprint_for_a_step_that_had_none_is_accepted_and_no_removal_of_one(played, engine_on, tmp_path):
    def reads(**options):
        @workflow(name="read")
        async def read(ctx, _none: None) -> str:
            found = await ctx.step("index", index.function, Document("a"), page=1, **options)
            await ctx.wait_for_signal("go")
            return found

        return read

    without, with_one = reads(), reads(fingerprint="a")
    assert outcome_of(played, engine_on, f"sqlite:///{tmp_path}/a.db", without, with_one) == "completed"
    assert outcome_of(played, engine_on, f"sqlite:///{tmp_path}/b.db", with_one, without) == "blocked"


def test_options_of_the_step_are_given_to_the_fingerprint(played, engine_on, tmp_path):
    url = f"sqlite:///{tmp_path}/a.db"
    assert outcome_of(played, engine_on, url, reading("a", page=1), reading("a", page=2)) == "blocked"


def test_a_fingerprint_that_is_no_json_value_is_refused_and_nothing_is_executed(played, engine_on):
    executed = []

    @step(fingerprint=lambda document: document)
    def show(document) -> None:
        executed.append(document)

    @workflow
    async def flow(ctx, _none: None) -> str:
        try:
            await show(Document("a"))
        except InvalidValue as error:
            return str(error)
        raise AssertionError

    async def scenario():
        async with engine_on("memory://", [flow]) as engine:
            return await (await engine.start(flow)).result(timeout=20)

    assert "fingerprint of the arguments of the step 'show'" in played(scenario)
    assert executed == []


def test_an_exception_of_the_fingerprint_is_raised_at_the_call(played, engine_on):
    @step(fingerprint=lambda document: document.missing)
    def show(document) -> None: ...

    @workflow
    async def flow(ctx, _none: None) -> str:
        try:
            await show(Document("a"))
        except StepFailed:
            return "the step failed"
        except AttributeError:
            return "raised"
        raise AssertionError

    async def scenario():
        async with engine_on("memory://", [flow]) as engine:
            return await (await engine.start(flow)).result(timeout=20)

    assert played(scenario) == "raised"


def test_a_fingerprint_that_is_no_function_is_refused():
    with pytest.raises(InvalidOption, match="plain function"):
        step(fingerprint="digest")(lambda: None)
