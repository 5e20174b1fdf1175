"""Workflows as type checkers see them: mypy and pyright read this module; it is never run.

`assert_type` must hold. A line with ignores must be an error to both: an ignore that is not needed is one itself.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from datetime import timedelta
from decimal import Decimal
from typing import Any, assert_type
from uuid import UUID

from holdfast import AsyncClient, Client, Context, Engine, Retry, current_step, step, workflow
from holdfast.testing import TestEngine, replay
from holdfast.workflow import ChildHandle, ReplayReport, RunHandle, RunHistory, RunInfo, RunsPage, StepInfo, Workflow


@dataclass
class Order:
    """What is ordered."""

    id: int


@dataclass
class Receipt:
    """What is had for it."""

    total: Decimal


@step
async def charge(order: Order, *, twice: bool = False) -> Receipt:
    """An async step."""
    return Receipt(Decimal(order.id + twice))


@step("count", retry=Retry(max_attempts=2, give_up_on=(ValueError,)), timeout="1 minute")
def count(order: Order) -> int:
    """A plain step."""
    return order.id


@workflow
async def buy(ctx: Context, order: Order) -> Receipt:
    """A workflow with an input."""
    return await charge(order)


@workflow(name="tidy", timeout=timedelta(hours=1), retry=Retry(max_attempts=2), version="2")
async def tidy(ctx: Context) -> int:
    """A workflow without an input."""
    return 1


@workflow
async def maybe(ctx: Context, order: Order | None) -> None:
    """A workflow whose input may be nothing."""


async def slow() -> float:
    """Not a step by itself."""
    return 1.5


def move(db: sqlite3.Connection, amount: int) -> str:
    """Write something."""
    return f"{db} {amount}"


assert_type(buy, Workflow[Order, Receipt])
assert_type(tidy, Workflow[None, int])


@workflow
async def parent(ctx: Context, order: Order) -> str:
    """Everything that a context has."""
    assert_type(await charge(order, twice=True), Receipt)
    await charge(order.id)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    assert_type(await count(order), int)
    await count(order.id)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await charge(order, thrice=True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    assert_type(await ctx.step("charge", charge, order), Receipt)
    assert_type(await ctx.step("count", count, order, timeout=5), int)
    assert_type(await ctx.step("plain", len, [1], retry=Retry(jitter=False)), int)
    assert_type(await ctx.step("slow", slow), float)
    await ctx.step(charge, order)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]
    assert_type(await ctx.transaction("move", move, 7), str)

    assert_type(await ctx.child(buy, order), Receipt)
    assert_type(await ctx.child(tidy), int)
    assert_type(await ctx.child(maybe, None, id="c"), None)
    await ctx.child(buy, order.id)  # type: ignore[misc]  # pyright: ignore[reportArgumentType]
    await ctx.child(buy)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await ctx.child(buy, None)  # type: ignore[misc]  # pyright: ignore[reportArgumentType]
    child = await ctx.start_child(buy, order)
    assert_type(child, ChildHandle[Receipt])
    assert_type(await child.result(), Receipt)
    assert_type(await child.signal("go", {"at": 7}), None)
    assert_type(await child.cancel(), None)
    await ctx.start_child(tidy, 7)  # type: ignore[misc]  # pyright: ignore[reportArgumentType]

    assert_type(await ctx.wait_for_signal("any"), Any)
    assert_type(await ctx.wait_for_signal("paid", type=Receipt, timeout="1 day"), Receipt)
    assert_type(await ctx.wait_for_signal("list", type=list[Receipt]), list[Receipt])
    assert_type(await ctx.sleep("1 day"), None)
    await ctx.set_attributes(customer="ann", vip=True, count=3)
    await ctx.set_attributes(price=1.5)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    ctx.sleep(1)  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
    ctx.step("count", count, order)  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
    charge(order)  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]
    assert_type(ctx.random(), float)
    assert_type(ctx.uuid4(), UUID)
    assert_type(current_step(), StepInfo)
    return "done"


def outside(order: Order) -> int:
    """A plain step outside a workflow is the function itself: its result fits where the function's would."""
    total: int = count(order)
    return total


async def engine_code(engine: Engine) -> None:
    """What an engine has."""
    async with Engine("memory://", workflows=[buy, tidy, maybe, parent]) as entered:
        assert_type(entered, Engine)
    handle = await engine.start(buy, Order(1), id="b", attributes={"n": 1})
    assert_type(handle, RunHandle[Receipt])
    assert_type(await handle.result(5), Receipt)
    assert_type(await handle.info(), RunInfo)
    assert_type(await engine.start(buy, Order(1), id="b", on_existing="use"), RunHandle[Receipt])
    await engine.start(buy, "one")  # type: ignore[misc]  # pyright: ignore[reportCallIssue, reportArgumentType]
    await engine.start(buy, None)  # type: ignore[misc]  # pyright: ignore[reportCallIssue, reportArgumentType]
    await engine.start(buy)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
    assert_type(await engine.start(tidy), RunHandle[int])
    assert_type(await engine.start(tidy, None), RunHandle[int])
    await engine.start(tidy, 7)  # type: ignore[misc]  # pyright: ignore[reportCallIssue, reportArgumentType]
    assert_type(await engine.start(maybe, None), RunHandle[None])
    assert_type(await engine.start(maybe, Order(1)), RunHandle[None])
    assert_type(await engine.start("by name", {"any": "thing"}), RunHandle[Any])
    assert_type(engine.handle("b", buy), RunHandle[Receipt])
    assert_type(engine.handle("b"), RunHandle[Any])
    assert_type(await engine.start_or_signal(buy, Order(1), id="b", name="go"), RunHandle[Receipt])
    assert_type(await engine.start_or_signal(tidy, id="b", name="go", payload=1), RunHandle[int])
    assert_type(await engine.start_or_signal("any", 1, id="b", name="go"), RunHandle[Any])
    await engine.start_or_signal(buy, 1, id="b", name="go")  # type: ignore[misc]  # pyright: ignore[reportCallIssue, reportArgumentType]
    assert_type(await engine.list(workflow=buy, status=["failed", "running"]), RunsPage)
    assert_type(await engine.retry("b"), RunInfo)
    assert_type(await engine.export("b"), RunHistory)
    assert_type(replay(buy, await engine.export("b")), ReplayReport)
    len(await handle.result())  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


class Provider:
    """Steps that are methods."""

    @step
    async def charge(self, order: Order) -> Receipt:
        """An async one."""
        raise NotImplementedError

    @step(retry=None)
    def refund(self, order: Order) -> int:
        """A plain one."""
        raise NotImplementedError


async def method_code(ctx: Context, provider: Provider) -> None:
    """A bound step takes what its method takes after `self`."""
    assert_type(await provider.charge(Order(1)), Receipt)
    assert_type(await ctx.step("refund", provider.refund, Order(1)), int)
    assert_type(await ctx.signals("word", type=Order), list[Order])
    assert_type(await ctx.signals("word"), list[Any])
    await provider.charge()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


async def test_code(engine: TestEngine) -> None:
    """An engine for tests is an engine."""
    engine.mock(charge, Receipt(Decimal(1)))
    assert_type(await (await engine.start(buy, Order(1))).result(), Receipt)
    await engine.start(buy, 1)  # type: ignore[misc]  # pyright: ignore[reportCallIssue, reportArgumentType]


def client_code(hf: Client) -> None:
    """What `client.runs` has."""
    assert_type(hf.runs.start(buy, Order(1), attributes={"vip": True}), str)
    assert_type(hf.runs.start(tidy), str)
    assert_type(hf.runs.start("by name", {"any": "thing"}, connection=object()), str)
    assert_type(hf.runs.start(buy, Order(1), id="b", on_existing="replace_ended"), str)
    assert_type(hf.runs.start_or_signal(buy, Order(1), id="b", name="go"), str)
    assert_type(hf.runs.start_or_signal("any", id="b", name="go", payload=1), str)
    hf.runs.start_or_signal(buy, 1, id="b", name="go")  # type: ignore[misc]  # pyright: ignore[reportCallIssue, reportArgumentType]
    hf.runs.start(buy, 1)  # type: ignore[misc]  # pyright: ignore[reportCallIssue, reportArgumentType]
    hf.runs.start(buy)  # type: ignore[arg-type]  # pyright: ignore[reportCallIssue, reportArgumentType]
    hf.runs.start(tidy, 1)  # type: ignore[misc]  # pyright: ignore[reportCallIssue, reportArgumentType]
    assert_type(hf.runs.result("b", 5, workflow=buy), Receipt)
    assert_type(hf.runs.result("b", timeout="1 minute"), Any)
    assert_type(hf.runs.get("b"), RunInfo)
    assert_type(hf.runs.list(workflow=buy).runs, tuple[RunInfo, ...])
    assert_type(hf.runs.restart("b"), RunInfo)
    hf.runs.signal("b", "go", {"any": "thing"}, idempotency_key="k")


async def async_client_code(hf: AsyncClient) -> None:
    """The same with an async client."""
    assert_type(await hf.runs.start(buy, Order(1)), str)
    assert_type(await hf.runs.start(tidy), str)
    assert_type(await hf.runs.start("by name"), str)
    assert_type(await hf.runs.start_or_signal(tidy, id="b", name="go"), str)
    await hf.runs.start(buy, 1)  # type: ignore[misc]  # pyright: ignore[reportCallIssue, reportArgumentType]
    assert_type(await hf.runs.result("b", workflow=buy), Receipt)
    assert_type(await hf.runs.result("b", 5), Any)
    assert_type(await hf.runs.get("b"), RunInfo)
    assert_type(await hf.runs.list(), RunsPage)
    assert_type(await hf.runs.export("b"), RunHistory)
