"""A step may be a method: its instance is not recorded, and a replay uses the instance that exists then."""

from __future__ import annotations

import asyncio
from types import MethodType
from typing import Any

import pytest
from inspect_runs import suspended
from waiting import eventually_async

from holdfast import Context, Retry, step, workflow
from holdfast.errors import InvalidWorkflow
from holdfast.testing import TestEngine
from holdfast.workflow import journal


class Provider:
    """A user's object that cannot be stored, for example one with a connection."""

    def __init__(self, calls):
        self.calls = calls

    @step
    async def charge(self, cents: int) -> int:
        self.calls.append(("charge", cents))
        return cents

    @step("send mail")
    def mail(self, *, to: str) -> str:
        self.calls.append(("mail", to))
        return f"to {to}"

    @classmethod
    @step
    def shared(cls, n: int) -> str:
        return f"{cls.__name__} {n}"

    @classmethod
    @step(retry=Retry(max_attempts=2, initial=0))
    async def shared_at_last(cls, failures: list[str], n: int) -> str:
        if not failures:
            failures.append("once")
            raise OSError
        return f"{cls.__name__} {n}"

    @staticmethod
    @step
    def alone(n: int) -> int:
        return n + 1

    @step
    @staticmethod
    def alone_too(n: int) -> int:
        return n + 2


def test_methods_are_recorded_steps(url, played, engine_on):
    calls = []

    @workflow
    async def paying(ctx: Context) -> list[Any]:
        provider = Provider(calls)  # a new one in every replay
        found = [await provider.charge(7), await ctx.step("mail again", provider.mail, to="bob")]
        found.append(await provider.mail(to="ann"))
        found += [await Provider.shared(1), await provider.alone(1), await provider.alone_too(1)]
        await ctx.wait_for_signal("go")
        found.append(await provider.charge(8))
        return found

    async def scenario():
        async with engine_on(url, [paying], park_after=0.01) as engine:
            handle = await engine.start(paying)
            await eventually_async(lambda: suspended(handle))
            await handle.signal("go")
            assert await handle.result(timeout=20) == [7, "to bob", "to ann", "Provider 1", 2, 3, 8]

    played(scenario)
    assert calls == [("charge", 7), ("mail", "bob"), ("mail", "ann"), ("charge", 8)]


class SubProvider(Provider):
    """It inherits its class methods from `Provider`."""


def bound_by_python(owner, name):
    return getattr(owner, name)


def bound_by_python_3_13(owner, name):
    return MethodType(vars(Provider)[name].__func__, owner)


@pytest.fixture
def recorded(monkeypatch):
    """The arguments of all steps, as they are recorded."""
    seen = []
    hashed = journal.arguments_hash

    def seeing(args, options):
        seen.append((args, options))
        return hashed(args, options)

    monkeypatch.setattr(journal, "arguments_hash", seeing)
    return seen


@pytest.mark.parametrize("bound", [bound_by_python, bound_by_python_3_13])
def test_neither_instance_nor_class_is_among_the_recorded_arguments(played, engine_on, recorded, bound):
    """Since Python 3.13 a class method is a plain method around the step; before, the step itself is bound."""
    failures: dict[str, list[str]] = {"called": [], "by ctx": []}

    @workflow
    async def paying(ctx: Context) -> list[Any]:
        provider = Provider([])
        return [
            await provider.charge(1),
            await ctx.step("mail", provider.mail, to="ann"),
            await bound(Provider, "shared")(2),
            await bound(SubProvider, "shared")(3),
            await bound(SubProvider, "shared_at_last")(failures["called"], 4),
            await ctx.step("again", bound(SubProvider, "shared"), 5),
            await ctx.step("at last", bound(SubProvider, "shared_at_last"), failures["by ctx"], 6),
        ]

    async def scenario():
        async with engine_on("memory://", [paying]) as engine:
            found = await (await engine.start(paying)).result(timeout=20)
            assert found == [
                1,
                "to ann",
                "Provider 2",
                "SubProvider 3",
                "SubProvider 4",
                "SubProvider 5",
                "SubProvider 6",
            ]

    played(scenario)
    assert recorded == [
        ((1,), {}),
        ((), {"to": "ann"}),
        ((2,), {}),
        ((3,), {}),
        ((["once"], 4), {}),
        ((5,), {}),
        ((["once"], 6), {}),
    ]


def test_a_class_that_is_an_argument_is_recorded(played, engine_on, recorded):
    @step
    def name_of(kind: type, n: int) -> str:
        return f"{kind.__name__} {n}"

    @workflow
    async def naming(ctx: Context) -> list[str]:
        return [await name_of(Provider, 1), await ctx.step("again", name_of, Provider, 2)]

    async def scenario():
        async with engine_on("memory://", [naming]) as engine:
            assert await (await engine.start(naming)).result(timeout=20) == ["Provider 1", "Provider 2"]

    played(scenario)
    assert recorded == [((Provider, 1), {}), ((Provider, 2), {})]


@pytest.mark.parametrize("bound", [bound_by_python, bound_by_python_3_13])
def test_a_class_method_can_be_replaced_in_a_test(played, bound):
    @workflow
    async def paying(ctx: Context) -> str:
        return await bound(Provider, "shared")(7)

    async def scenario():
        async with TestEngine([paying]) as engine:
            engine.mock(bound(Provider, "shared"), "instead")
            assert await (await engine.start(paying)).result() == "instead"

    played(scenario)


def test_a_step_method_called_outside_a_run_is_the_plain_method():
    calls = []
    provider = Provider(calls)
    assert asyncio.run(provider.charge(1)) == 1
    assert provider.mail(to="ann") == "to ann"
    assert Provider.mail(provider, to="bob") == "to bob"
    assert [bound(SubProvider, "shared")(1) for bound in (bound_by_python, bound_by_python_3_13)] == [
        "SubProvider 1",
        "SubProvider 1",
    ]
    assert calls == [("charge", 1), ("mail", "ann"), ("mail", "bob")]


def test_a_method_can_be_replaced_in_a_test(played):
    provider = Provider([])

    @workflow
    async def paying(ctx: Context) -> int:
        return await provider.charge(7)

    async def scenario():
        async with TestEngine([paying]) as engine:
            engine.mock(Provider.charge, 99)
            assert await (await engine.start(paying)).result() == 99

    played(scenario)
    assert provider.calls == []


def test_a_step_around_a_class_method_is_refused_with_how_to_write_it():
    with pytest.raises(InvalidWorkflow, match="put @classmethod above @step"):

        class _Wrong:
            @step
            @classmethod
            def made(cls) -> None: ...
