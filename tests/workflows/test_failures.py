"""An exception of a step is raised in the workflow as that type, or as its nearest base that can be created from a
message."""

from __future__ import annotations

import builtins
import importlib
import json
import pickle

import pytest
from inspect_runs import suspended
from waiting import eventually_async

from holdfast import Context, Retry, StepFailed, WorkflowFailed, step, workflow
from holdfast.workflow.failures import failure_of, step_failed
from holdfast.workflow.journal import Failure


class OwnError(KeyError):
    """A user's own exception."""


class TwiceRemoved(OwnError, ValueError):
    """Another one, with two builtin bases."""


def raised(error):
    """An exception as a workflow gets it."""
    return step_failed("work", failure_of(error), 1)


CASES = [
    (ValueError("no"), ValueError),
    (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no"), UnicodeError),
    (ModuleNotFoundError("no"), ModuleNotFoundError),
    (SyntaxError("no"), SyntaxError),
    (json.JSONDecodeError("no", "", 0), ValueError),
    (OwnError("no"), KeyError),
    (TwiceRemoved("no"), KeyError),
    (TwiceRemoved("no"), ValueError),
    (type("Requests", (ConnectionError, json.JSONDecodeError), {})("no", "", 0), ValueError),
    (ConnectionResetError("no"), ConnectionError),
    (type("Local", (TimeoutError,), {})("no"), TimeoutError),
]


@pytest.mark.parametrize(("error", "kind"), CASES, ids=lambda value: getattr(value, "__name__", type(value).__name__))
def test_an_exception_is_raised_as_its_nearest_known_base_class(error, kind):
    back = raised(error)
    assert isinstance(back, StepFailed)
    assert isinstance(back, kind)
    assert back.kind.rpartition(".")[2].removeprefix("<locals>.") == type(error).__qualname__.rpartition(".")[2]
    assert isinstance(raised(back), kind), "a workflow that lets it through fails with the same"
    assert isinstance(pickle.loads(pickle.dumps(back)), kind)


def test_every_builtin_exception_is_raised_as_itself_or_as_its_nearest_base():
    """Except those that no coroutine can raise, and groups."""
    for name, kind in vars(builtins).items():
        if isinstance(kind, type) and issubclass(kind, Exception):
            back = step_failed("work", Failure(name, "no"), 1)
            mine = [base for base in type(back).__mro__ if base.__module__ == "builtins"]
            expected = next(base for base in kind.__mro__ if base in mine)
            assert isinstance(back, expected)
            apart = (ExceptionGroup, StopIteration, StopAsyncIteration)
            assert expected is kind or issubclass(kind, (UnicodeError, *apart)), name
            assert "no" in str(back)


def test_an_exception_without_such_a_base_is_only_a_failed_step():
    class Plain(Exception):
        pass

    assert type(raised(Plain("no"))) is StepFailed
    assert type(raised(ExceptionGroup("no", [ValueError()]))) is StepFailed
    assert failure_of(Plain("no")).bases == ()


def from_itself(error):
    raise error from error


def from_each_other(error):
    error.__cause__ = KeyError("the other")
    error.__cause__.__context__ = error
    raise error


@pytest.mark.parametrize("fail", [from_itself, from_each_other])
def test_an_error_that_is_its_own_cause_fails_the_attempt_like_any_other(played, engine_on, fail):
    attempts = []

    @workflow(retry=Retry(max_attempts=2, initial=0))
    async def failing(ctx: Context) -> None:
        attempts.append(ctx.attempt)
        fail(ValueError("its own"))

    async def scenario():
        async with engine_on("memory://", [failing]) as engine:
            with pytest.raises(WorkflowFailed, match="its own") as failed:
                await (await engine.start(failing)).result(timeout=20)
            assert failed.value.kind == "ValueError"

    played(scenario)
    assert attempts == [1, 2]


def test_workflow_code_catches_the_base_in_every_replay(url, played, engine_on):
    @step
    def parse(text: str) -> object:
        return json.loads(text)

    @step
    def load() -> None:
        importlib.import_module("no_such_module_of_anybody")

    @workflow
    async def catching(ctx: Context) -> list[str]:
        found = []
        for call, kind in ((parse("{"), ValueError), (load(), ImportError)):
            try:
                await call
            except kind as error:
                found.append(error.kind)
        await ctx.wait_for_signal("go")
        return found

    async def scenario():
        async with engine_on(url, [catching], park_after=0.01) as engine:
            handle = await engine.start(catching)
            await eventually_async(lambda: suspended(handle))
            await handle.signal("go")
            assert await handle.result(timeout=20) == ["json.decoder.JSONDecodeError", "ModuleNotFoundError"]

    played(scenario)


@pytest.mark.parametrize("number", [-(2**63), 2**63 - 1])
def test_the_largest_and_smallest_64_bit_numbers_can_be_stored(url, played, engine_on, number):
    @step
    def give(n: int) -> object:
        return [n]

    @workflow
    async def numbers(ctx: Context, n: int) -> int:
        return (await give(n))[0]

    async def scenario():
        async with engine_on(url, [numbers]) as engine:
            assert await (await engine.start(numbers, number)).result(timeout=20) == number

    played(scenario)
