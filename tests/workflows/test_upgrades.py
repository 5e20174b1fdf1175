"""@workflow(upgrade=...): an input that older code has stored is converted when it is read."""

from dataclasses import dataclass, field

import msgspec
import pydantic
import pytest
from inspect_runs import suspended
from waiting import eventually_async, until_blocked

from holdfast import Context, workflow
from holdfast.errors import InvalidWorkflow


@dataclass
class Order:
    id: str
    cents: int
    country: str


class Model(pydantic.BaseModel):
    id: str
    cents: int
    country: str


def instance(raw):
    return Order(raw["id"], raw["cents"], "DE")


def plain(raw):
    return {**raw, "country": "DE"}


def model(raw):
    return Model(country="DE", **raw)


def of(type, upgrade):
    @workflow(name="order", upgrade=upgrade)
    async def order(ctx: Context, order: type) -> str:
        await ctx.wait_for_signal("go")
        return f"{order.__class__.__name__} {order.id} {order.cents} {order.country}"

    return order


@workflow(name="order")
async def old(ctx: Context, order: dict[str, str | int]) -> None:
    await ctx.wait_for_signal("go")


async def waiting_with_old_input(engine_on, url):
    async with engine_on(url, [old], park_after=0.02) as engine:
        handle = await engine.start(old, {"id": "o-1", "cents": 4900}, id="r")
        await eventually_async(lambda: suspended(handle))


@pytest.mark.parametrize(("type", "upgrade"), [(Order, instance), (Order, plain), (Model, model), (Model, plain)])
def test_an_input_of_an_older_shape_is_converted(tmp_path, played, engine_on, type, upgrade):
    url = f"sqlite:///{tmp_path}/runs.db"

    async def scenario():
        await waiting_with_old_input(engine_on, url)
        async with engine_on(url, [of(type, upgrade)]) as engine:
            await engine.signal("r", "go")
            assert await engine.handle("r").result(timeout=20) == f"{type.__name__} o-1 4900 DE"

    played(scenario)


def test_an_input_that_can_be_read_is_not_converted(played, engine_on):
    def never(raw):
        raise AssertionError(raw)

    async def scenario():
        order = of(Order, never)
        async with engine_on("memory://", [order]) as engine:
            handle = await engine.start(order, Order("o-1", 1, "FR"))
            await handle.signal("go")
            assert await handle.result(timeout=20) == "Order o-1 1 FR"

    played(scenario)


def refused(raw):
    raise KeyError("nothing is known")


@pytest.mark.parametrize(
    ("upgrade", "reason"),
    [(refused, "KeyError: 'nothing is known'"), (lambda raw: raw, "missing required field `country`")],
)
def test_where_the_conversion_fails_too_the_error_names_both_reasons(tmp_path, played, engine_on, upgrade, reason):
    url = f"sqlite:///{tmp_path}/runs.db"

    async def scenario():
        await waiting_with_old_input(engine_on, url)
        async with engine_on(url, [of(Order, upgrade)]) as engine:
            await engine.signal("r", "go")
            why = (await until_blocked(engine, "r")).reason
        assert why.type == "holdfast.errors.InvalidValue"
        before, _, after = why.message.partition(" The function upgrade= could not convert it: ")
        assert "the input of the run 'r' holds something that is not Order" in before
        assert reason in after

    played(scenario)


async def later(raw):
    return raw


@pytest.mark.parametrize("upgrade", ["text", 7, later])
def test_the_conversion_is_a_plain_function(upgrade):
    with pytest.raises(InvalidWorkflow, match="must be a plain function"):
        of(Order, upgrade)


def test_the_conversion_needs_a_type_of_the_input():
    async def untyped(ctx, order):
        pass

    async def without(ctx):
        pass

    for function in (untyped, without):
        with pytest.raises(InvalidWorkflow, match="annotate its second parameter"):
            workflow(upgrade=plain)(function)


@dataclass
class Old:
    id: str
    cents: int


@dataclass
class WithFactory(Old):
    tags: list[str] = field(default_factory=list)


class OldStruct(msgspec.Struct):
    id: str
    cents: int


class NewStruct(OldStruct):
    country: str = "DE"


@pytest.mark.parametrize(
    "types",
    [(Old, WithFactory, None), (OldStruct, NewStruct, None), (Old, Order, plain), (Old, Order, instance)],
)
def test_an_input_that_has_got_fields_since_is_the_same_argument_of_a_recorded_step(tmp_path, played, engine_on, types):
    before, after, upgrade = types
    url = f"sqlite:///{tmp_path}/runs.db"
    charged = []

    def charge(order, *, again=None):
        charged.append(order.cents)
        return again is None

    def release(kind, upgrade=None):
        @workflow(name="order", upgrade=upgrade)
        async def flow(ctx: Context, order: kind) -> int:
            await ctx.step("charge", charge, order)
            await ctx.step("again", charge, order, again=order)
            await ctx.wait_for_signal("go")
            return order.cents

        return flow

    async def scenario():
        old, new = release(before), release(after, upgrade)
        async with engine_on(url, [old], park_after=0.02) as engine:
            handle = await engine.start(old, before("o-1", 4900), id="r")
            await eventually_async(lambda: suspended(handle))
        async with engine_on(url, [new]) as engine:
            await engine.signal("r", "go")
            assert await engine.handle("r").result(timeout=20) == 4900
        assert charged == [4900, 4900]

    played(scenario)


def test_another_argument_than_the_input_is_still_detected(tmp_path, played, engine_on):
    url = f"sqlite:///{tmp_path}/runs.db"

    def release(cents):
        @workflow(name="order")
        async def flow(ctx: Context, order: Old) -> None:
            await ctx.step("charge", str, order if cents is None else Old(order.id, cents))
            await ctx.wait_for_signal("go")

        return flow

    async def scenario():
        async with engine_on(url, [release(None)], park_after=0.02) as engine:
            handle = await engine.start("order", Old("o-1", 4900), id="r")
            await eventually_async(lambda: suspended(handle))
        async with engine_on(url, [release(50)]) as engine:
            await engine.signal("r", "go")
            await until_blocked(engine, "r")

    played(scenario)
