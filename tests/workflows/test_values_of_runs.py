"""Stored values of a run: typed by the annotations, the same in every replay, refused at the call with their path."""

import asyncio
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import attrs
import msgspec
import pydantic
import pytest
from waiting import eventually_async, until_blocked

from holdfast import AsyncClient, Client, Context, Retry, StepFailed, WorkflowFailed, step, workflow
from holdfast.commands import ForceRelease
from holdfast.commands.runs import ReadRun
from holdfast.errors import InvalidOption, InvalidValue
from holdfast.rules.runs.record import worker_key
from holdfast.testing import TestEngine

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


class Colour(Enum):
    RED = "red"


@dataclass
class Line:
    item: str
    price: Any = "1.50"


@dataclass
class Order:
    id: UUID
    when: datetime
    total: Decimal
    colour: Colour
    blob: bytes
    lines: list[Line] = field(default_factory=list)
    notes: dict[str, Line | None] = field(default_factory=dict)
    code: int | str | None = None


class Card(msgspec.Struct, tag=True):
    number: str


class Cash(msgspec.Struct, tag=True):
    cents: int


class Payment(msgspec.Struct):
    means: Card | Cash
    at: datetime | None = None


@attrs.define
class Parcel:
    weight: Decimal
    sent: datetime | None = None
    inside: list[Line] = attrs.Factory(list)


class Address(pydantic.BaseModel):
    street: str = pydantic.Field(alias="theStreet")
    since: datetime | None = None


class Customer(pydantic.BaseModel):
    name: str
    addresses: list[Address] = []
    credit: Decimal = Decimal(0)
    colour: Colour | None = None


ORDER = Order(
    UUID(int=7), NOON, Decimal("1.10"), Colour.RED, b"\x00\xff", [Line("a", "2")], {"x": Line("b"), "y": None}, "c"
)
CUSTOMER = Customer(name="ann", addresses=[Address(theStreet="x", since=NOON)], credit=Decimal("1.5"), colour="red")
KINDS = {
    "dataclass": (Order, ORDER),
    "struct": (Payment, Payment(Card("1"), NOON)),
    "attrs": (Parcel, Parcel(Decimal("0.5"), NOON, [Line("a")])),
    "pydantic": (Customer, CUSTOMER),
    "datetime": (datetime, NOON),
    "date": (date, date(2026, 1, 2)),
    "timedelta": (timedelta, timedelta(days=1, microseconds=1)),
    "uuid": (UUID, UUID(int=7)),
    "decimal": (Decimal, Decimal("1.10")),
    "enum": (Colour, Colour.RED),
    "bytes": (bytes, b"\x00\xff"),
    "list": (list[Order], [ORDER]),
    "dict": (dict[UUID, Parcel], {UUID(int=7): Parcel(Decimal(1))}),
    "tuple": (tuple[Decimal, datetime], (Decimal("1.10"), NOON)),
    "optional": (Customer | None, CUSTOMER),
    "nothing": (Order | None, None),
    "union": (list[Card | Cash | None], [Card("1"), None, Cash(5)]),
    "plain union": (int | str | None, "a"),
    "plain": (Any, {"n": [1, 2.5, None, True, "x"]}),
}


def carrying(name, kind):
    """A workflow that gets a value of this type by every way, and its child."""

    @step
    async def hand_back(value: kind) -> kind:
        return value

    @workflow(name=f"{name} child")
    async def child(ctx, value: kind) -> kind:
        return value

    @workflow(name=name)
    async def carries(ctx, value: kind) -> kind:
        got = [value, await hand_back(value), await ctx.child(child, value)]
        got.append(await ctx.wait_for_signal("go", type=kind))
        for other in got:
            assert type(other) is type(value)
            assert other == value
        return got[-1]

    return carries, child


def test_every_kind_of_value_has_its_type_also_after_a_replay(url, played, engine_on):
    """The first engine is discarded when each run has completed a step and a child; another one replays and continues
    them."""
    flows = {name: carrying(name, kind) for name, (kind, _) in KINDS.items()}
    known = [flow for pair in flows.values() for flow in pair]

    async def scenario():
        async with AsyncClient(url) as hf:
            first = engine_on(url, known, worker_ttl=60)
            await first.open()
            for name, (_, value) in KINDS.items():
                await first.start(flows[name][0], value, id=name)
            for name in KINDS:
                await eventually_async(lambda name=name: _has_entries(hf, name, 3))
            worker = first._worker
            await worker.execute(ForceRelease(key=worker_key(worker.id), by="test", reason="it dies"))
            await first.close(0)
            async with engine_on(url, known, worker_ttl=60) as second:
                for name, (_, value) in KINDS.items():
                    await hf.runs.signal(name, "go", value)
                    result = await second.handle(name, flows[name][0]).result(20)
                    assert (type(result), result) == (type(value), value), name
                    assert await hf.runs.result(name, workflow=flows[name][0]) == value, name

    played(scenario)


async def _has_entries(hf, run, many):
    return (await hf.runs.get(run)).entries == many


@workflow
async def orders(ctx: Context, order: Order) -> Order:
    return await ctx.wait_for_signal("order", type=Order)


UNFIT = Order(UUID(int=1), NOON, Decimal(1), Colour.RED, b"", [Line("a"), Line("b"), Line("c", object())])
PLACE = r"\$\.lines\[2\]\.price is of type object, which JSON does not have"


def test_a_value_that_cannot_be_encoded_is_refused_with_its_path_and_changes_nothing(url, played, engine_on):
    async def scenario():
        async with engine_on(url, [orders]) as engine, AsyncClient(url) as hf:
            with pytest.raises(InvalidValue, match=rf"^the input of 'orders' cannot hold this value: {PLACE}"):
                await engine.start(orders, UNFIT)
            with pytest.raises(InvalidValue, match=PLACE):
                await engine.start("elsewhere", UNFIT)
            with pytest.raises(InvalidValue, match=PLACE):
                await hf.runs.start(orders, UNFIT)
            with pytest.raises(InvalidValue, match=PLACE):
                await asyncio.to_thread(_start, url, UNFIT)
            with pytest.raises(InvalidValue, match=PLACE):
                await engine.start_or_signal(orders, UNFIT, id="x", name="order")
            with pytest.raises(InvalidValue, match=r"not Order .*`array`, got `int` - at `\$.lines`"):
                await engine.start(orders, msgspec.to_builtins(ORDER) | {"lines": 1})
            assert (await engine.list()).runs == ()
            handle = await engine.start(orders, ORDER)
            for signal in (handle.signal, _to(engine.signal, handle.id), _to(hf.runs.signal, handle.id)):
                with pytest.raises(InvalidValue, match=rf"^the signal 'order' cannot hold this value: {PLACE}"):
                    await signal("order", UNFIT)
            seen = await engine._worker.execute(ReadRun(run=handle.id, history=True))
            assert (seen.claim.events, len(seen.claim.entries)) == ((), 1)
            await handle.signal("order", ORDER)
            assert await handle.result() == ORDER

    played(scenario)


def test_a_result_without_an_annotation_is_refused_with_where_to_add_it(played):
    @workflow
    async def flow(ctx: Context, place: str):
        if place == "step":
            return await ctx.step("look", lambda: NOON)
        return NOON

    async def scenario():
        async with TestEngine([flow]) as engine:
            for place in ("step", "workflow"):
                with pytest.raises(WorkflowFailed, match="convert it, or annotate its type") as caught:
                    await (await engine.start(flow, place)).result()
                assert "type=" not in caught.value.detail

    played(scenario)


def _start(url, value):
    with Client(url) as hf:
        hf.runs.start("orders", value)


def _to(function, run):
    return lambda *args: function(run, *args)


def test_steps_children_and_attributes_with_unencodable_values_raise_in_the_workflow(url, played, engine_on):
    tries = []

    @step(retry=Retry(max_attempts=3, initial=0.001))
    def unfit() -> Order:
        tries.append(1)
        return UNFIT

    @workflow
    async def flow(ctx: Context) -> list[str]:
        notified = []
        try:
            await unfit()
        except StepFailed as error:
            notified += [error.kind, error.detail]
        for start in (ctx.child, ctx.start_child):
            try:
                await start(orders, UNFIT)
            except InvalidValue as error:
                notified.append(str(error))
        for bad in (2**64, "\ud800", 1.5, None):
            try:
                await ctx.set_attributes(bad=bad)
            except InvalidValue as error:
                notified.append(f"attributes: {str(error).encode(errors='replace').decode()}")
        return notified

    async def scenario():
        async with engine_on(url, [flow, orders]) as engine:
            notified = await (await engine.start(flow)).result()
            assert [run.workflow for run in (await engine.list()).runs] == ["flow"]
            assert (await engine.list()).runs[0].attributes == {}
            return notified

    notified = played(scenario)
    assert notified[0] == "holdfast.errors.InvalidValue"
    assert notified[1].startswith("the result of the step 'unfit' cannot hold this value: $.lines[2].price is of type ")
    for text in notified[2:4]:
        assert text.startswith("the input of 'orders' cannot hold this value: $.lines[2].price is of type object")
    assert len(notified) == 8
    assert all(text.startswith("attributes: the attribute") for text in notified[4:])
    assert len(tries) == 1, "it would not come out otherwise if it were tried again"


def test_a_run_whose_result_cannot_be_encoded_has_failed_with_the_path(url, played, engine_on):
    @workflow
    async def flow(ctx: Context) -> Order:
        return UNFIT

    async def scenario():
        async with engine_on(url, [flow]) as engine:
            with pytest.raises(WorkflowFailed) as caught:
                await (await engine.start(flow)).result()
            return caught.value

    error = played(scenario)
    assert (error.status, error.kind) == ("failed", "holdfast.errors.InvalidValue")
    assert error.detail.startswith("the result of 'flow' cannot hold this value: $.lines[2].price is of type object")


# -- how large ------------------------------------------------------------------------------------------------


def test_the_limit_is_a_mebibyte_and_can_be_set(url, played, engine_on):
    @workflow
    async def echo(ctx: Context, text: str) -> str:
        assert await ctx.step("same", lambda: text) == text
        assert await ctx.wait_for_signal("text") == text
        return text

    large = "x" * 1_500_000

    async def scenario():
        async with engine_on(url, [echo]) as engine, AsyncClient(url, max_bytes=2_000_000) as hf:
            with pytest.raises(InvalidValue, match="it has 1,500,002 bytes, and the limit is 1,048,576 "):
                await engine.start(echo, large)
            run = await hf.runs.start(echo, "small")
            with pytest.raises(InvalidValue, match=r"the signal 'text'.*1,500,002 bytes, and the limit is 1,048,576 "):
                await engine.signal(run, "text", large)
            await engine.signal(run, "text", "small")
            assert await engine.handle(run).result(10) == "small"
        async with engine_on(url, [echo], max_bytes=2_000_000) as engine, AsyncClient(url, max_bytes=2_000_000) as hf:
            run = await hf.runs.start(echo, large)
            await hf.runs.signal(run, "text", large)
            assert await engine.handle(run).result(20) == large

    played(scenario)


@pytest.mark.parametrize("what", ["step", "child", "state", "session", "result"])
def test_values_of_a_workflow_have_a_maximum_size_too(played, engine_on, what):
    @workflow
    async def flow(ctx: Context) -> str:
        if what == "step":
            await ctx.step("large", lambda: "x" * 999)
        elif what == "child":
            await ctx.child(orders, ORDER.__class__(**{**vars(ORDER), "code": "x" * 999}))
        elif what == "state":
            await ctx.state.workflow("s").set("x" * 999)
        elif what == "session":
            ctx.state.session("s").set("x" * 999)
        return "x" * 999

    async def scenario():
        async with engine_on("memory://", [flow, orders], max_bytes=1_000) as engine:
            with pytest.raises(WorkflowFailed) as caught:
                await (await engine.start(flow)).result()
            assert [run.workflow for run in (await engine.list()).runs] == ["flow"]
            return caught.value

    error = played(scenario)
    assert error.kind == "holdfast.errors.InvalidValue"
    assert "bytes, and the limit is 1,000 (max_bytes)" in error.detail


def test_the_limit_of_a_client_holds_for_its_states_and_for_an_engine_on_it(played, engine_on):
    with Client("memory://", max_bytes=10) as hf:
        hf.state("s").set("x" * 8)
        with pytest.raises(InvalidValue, match="11 bytes, and the limit is 10 "):
            hf.state("s").set("x" * 9)

        async def scenario():
            async with engine_on(hf, [orders]) as engine:
                with pytest.raises(InvalidValue, match="and the limit is 10 "):
                    await engine.start(orders, ORDER)
            async with engine_on(hf, [orders], max_bytes=1_000) as engine:
                await engine.start(orders, ORDER)

        played(scenario)
    for wrong in (0, -1, 1.5, True, "1"):
        with pytest.raises(InvalidOption, match="max_bytes"):
            Client("memory://", max_bytes=wrong)
        with pytest.raises(InvalidOption, match="max_bytes"):
            TestEngine([orders], max_bytes=wrong)


# -- what does not fit where it is read ---------------------------------------------------------------------------


@workflow
async def confused(ctx: Context, order: Line | Order) -> None:
    """A type that msgspec cannot read: nothing in the value says which of the two it is."""


@dataclass
class Refuses:
    n: int

    def __post_init__(self):
        raise LookupError("never made")


@workflow
async def refusing(ctx: Context, value: Refuses) -> None:
    pass


@workflow
async def makes(ctx: Context) -> str:
    def unreadable() -> Line | Order:
        return Line("a")

    def refused() -> Refuses:
        value = Refuses.__new__(Refuses)
        value.n = 1
        return value

    notified = []
    for body in (unreadable, refused):
        try:
            await ctx.step(body.__name__, body)
        except StepFailed as error:
            notified.append(f"{error.kind} {error.detail}")
    return "\n".join(notified)


def test_an_input_of_a_wrong_type_blocks_the_run_and_a_result_of_a_wrong_type_fails_it(url, played, engine_on):
    async def scenario():
        async with engine_on(url, [confused, refusing, makes]) as engine, AsyncClient(url) as hf:
            for name, words in (("confused", "more than one dataclass"), ("refusing", "LookupError: never made")):
                run = await hf.runs.start(name, {"n": 1})
                blocked = await until_blocked(hf.runs, run)
                assert blocked.reason.type == "holdfast.errors.InvalidValue"
                assert words in blocked.reason.message
            with pytest.raises(InvalidValue, match="more than one dataclass"):
                await engine.start(confused, Line("a"))
            return await (await engine.start(makes)).result(10)

    notified = played(scenario).splitlines()
    assert "more than one dataclass" in notified[0]
    assert "LookupError: never made" in notified[1]


def test_a_signal_that_is_not_of_the_type_is_an_error_where_it_is_read(url, played, engine_on):
    @workflow
    async def reads(ctx: Context) -> list[str]:
        try:
            await ctx.wait_for_signal("pay", type=Decimal)
        except InvalidValue as error:
            notified = str(error)
        return [notified, str(await ctx.wait_for_signal("pay", type=Decimal)), await ctx.wait_for_signal("pay")]

    async def scenario():
        async with engine_on(url, [reads]) as engine:
            handle = await engine.start(reads)
            for payload in ("much", Decimal("1.50"), Decimal("2.50")):
                await handle.signal("pay", payload)
            return await handle.result(10)

    notified, typed, plain = played(scenario)
    assert notified.startswith("the signal 'pay' holds something that is not Decimal: ")
    assert (typed, plain) == ("1.50", "2.50")


def test_an_exception_whose_text_cannot_be_computed_is_recorded_anyway(url, played, engine_on):
    class NoTextError(Exception):
        def __str__(self):
            raise LookupError("mute")

    def fails():
        raise NoTextError

    @workflow
    async def flow(ctx: Context) -> str:
        try:
            await ctx.step("fails", fails)
        except StepFailed as error:
            return f"{error.kind.rpartition('.')[2]}: {error.detail}"

    async def scenario():
        async with engine_on(url, [flow]) as engine:
            return await (await engine.start(flow)).result(10)

    assert played(scenario) == "NoTextError: (its message cannot be read: LookupError)"
