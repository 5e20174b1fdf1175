"""Values as JSON and back: a decoded value equals the original, and any other value is refused with its path."""

import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from functools import partial
from typing import Any, Literal, TypedDict
from uuid import UUID

import attrs
import msgspec
import pydantic
import pytest

from holdfast.errors import InvalidValue
from holdfast.runtime.codec import MAX_BYTES, decode_value, encode_message, encode_value, hints_of

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


class Colour(Enum):
    RED = "red"


class Size(IntEnum):
    LARGE = 3


@dataclass
class Line:
    item: str
    price: Any = Decimal("1.50")


@dataclass
class Other:
    number: int


@dataclass
class Order:
    lines: list[Line] = field(default_factory=list)
    note: str | None = None


class Card(msgspec.Struct, tag=True):
    number: str


class Cash(msgspec.Struct, tag=True):
    cents: int
    given: Any = None


@attrs.define
class Parcel:
    weight: float
    sent: datetime | None = None
    inside: Any = None


class Model(pydantic.BaseModel):
    number: int
    when: datetime = NOON
    price: Decimal = Decimal("2.50")
    inside: Any = None


class Aliased(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True, alias_generator=lambda name: f"the-{name}")

    when: datetime
    colour: Colour


class Fields(TypedDict):
    n: int


VALUES = [
    (Order, Order([Line("a", "2"), Line("b", 3)], "now")),
    (list[Card | Cash], [Card("1"), Cash(5)]),
    (Parcel, Parcel(1.5, NOON)),
    (Model, Model(number=1)),
    (Aliased, Aliased.model_validate({"the-when": NOON, "the-colour": Colour.RED})),
    (dict[str, list[Model | None]], {"a": [Model(number=1), None]}),
    (datetime, NOON),
    (date, date(2026, 1, 2)),
    (timedelta, timedelta(days=1, microseconds=1)),
    (UUID, UUID(int=7)),
    (Decimal, Decimal("1.10")),
    (Colour, Colour.RED),
    (Size, Size.LARGE),
    (bytes, b"\x00\xff"),
    (Literal["a", "b"], "b"),
    (Fields, {"n": 1}),
    (tuple[int, str], (1, "a")),
    (set[str], {"a", "b"}),
    (dict[int, str], {1: "a"}),
    (dict[float, str], {1.5: "a"}),
    (dict[UUID, Line], {UUID(int=7): Line("a", "1")}),
    (dict[Size, int], {Size.LARGE: 1}),
    (list[dict[str, dict[int, int]]], [{"a": {1: 2}}]),
    (Line | None, None),
    (int | str | None, "a"),
    (Any, {"n": [1, 2.5, None, True, "x"]}),
    (Any, Counter("aab")),
]


@pytest.mark.parametrize(("type", "value"), VALUES)
def test_a_decoded_value_equals_the_encoded_one(type, value):
    assert decode_value(encode_value(value, type, what="it"), type, what="it") == value


def itself():
    value: list = []
    value.append(value)
    return value


REFUSED = [
    (Order, Order([Line("a"), Line("b"), Line("c", object())]), "$.lines[2].price is of type object"),
    (Any, {"items": [{}, {"price": object()}]}, "$.items[1].price is of type object"),
    (Any, [Colour.RED], "$[0] is of type Colour, which JSON does not have: convert it, or annotate its type"),
    (Cash, Cash(1, {1, 1j}), "is of type complex"),
    (list[Parcel], [Parcel(1.0, None, {"a": object})], "$[0].inside.a is of type type"),
    (Model, Model(number=1, inside=[object()]), "$.inside[0] is of type object"),
    (list[Line], [{"item": 5}], "Expected `str`, got `int` - at `$[0].item`"),
    (dict[str, list[Model]], {"a": [{"number": 1}, {"number": "x"}]}, "an integer - at `$[...][1].number`"),
    (Model, {"when": "soon"}, "Field required - at `$.number`"),
    (float, float("nan"), "it is nan, which JSON does not have"),
    (Order, Order([Line("a", float("inf"))]), "$.lines[0].price is inf"),
    (Any, {"a": 2**64}, "$.a is a number beyond 64 bits"),
    (Any, ["\ud800"], "$[0] is not valid Unicode text"),
    (Any, {"a": {"\ud800": 1}}, "of $.a is not valid Unicode text"),
    (Any, {"a": {1: 2}}, "$.a[1] has a key that is not text"),
    (dict, {"a": {1: 2}}, "$.a[1] has a key that is not text and would be read back as text: give the type"),
    (dict[str, Any], {1: 2}, "such as dict[int, ...]"),
    (list[dict[str, int]], [{}, {7: 2}], "$[1][7] has a key that is not text"),
    (dict[tuple[int, int], int], {(1, 2): 3}, "$[(1, 2)] has a key that is not text"),
    (dict[bool, int], {True: 3}, "$[True] has a key that is not text"),
    (Any, itself(), "$[0][0][0]"),
    (list, itself(), "levels deep, or contains itself"),
    (Line | Other, Line("a"), "more than one dataclass"),
    (str | datetime, NOON, "more than one str-like type"),
    (complex, 1j, "it is of type complex"),
]  # fmt: skip


@pytest.mark.parametrize(("type", "value", "words"), REFUSED)
def test_a_value_that_would_not_decode_equally_is_refused_with_its_path(type, value, words):
    with pytest.raises(InvalidValue) as caught:
        encode_value(value, type, what="the input of 'f'")
    assert str(caught.value).startswith("the input of 'f' cannot hold this value: ")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_message_is_encoded_by_its_runtime_type_and_number_keys_are_refused():
    assert encode_message([Line("a"), Colour.RED, NOON], what="it") == (
        '[{"item":"a","price":"1.50"},"red","2026-01-02T12:00:00Z"]'
    )
    with pytest.raises(InvalidValue, match=r"\$\.a\[1\] has a key"):
        encode_message({"a": {1: 2}}, what="it")
    with pytest.raises(InvalidValue, match=r"\$\.lines\[0\]\.price is of type object"):
        encode_message(Order([Line("a", object())]), what="it")


@pytest.mark.parametrize("write", [encode_value, encode_message])
def test_an_error_about_size_contains_the_size_and_the_limit(write):
    write("x" * (MAX_BYTES - 2), what="it")
    with pytest.raises(InvalidValue, match="it has 1,048,577 bytes, and the limit is 1,048,576"):
        write("x" * (MAX_BYTES - 1), what="it")
    write("xx", what="it", max_bytes=4)
    with pytest.raises(InvalidValue, match="it has 5 bytes, and the limit is 4 "):
        write("xxx", what="it", max_bytes=4)


class RaisingDump:
    """A model whose methods raise exceptions."""

    def model_dump(self, **_options):
        raise KeyError("sulks")


@dataclass
class RaisingInit:
    n: int

    def __post_init__(self):
        if self.n < 0:
            raise LookupError("below nothing")


@dataclass
class Unfinished:
    n: "Missing"  # noqa: F821


def test_any_exception_of_a_users_class_is_an_invalid_value():
    with pytest.raises(InvalidValue, match=r"\$\[0\] cannot be written: 'sulks'"):
        encode_message([RaisingDump()], what="it")
    broken = RaisingInit(1)
    broken.n = -1
    with pytest.raises(InvalidValue, match="LookupError: below nothing"):
        encode_value(broken, RaisingInit, what="it")
    with pytest.raises(InvalidValue, match="LookupError: below nothing"):
        decode_value('{"n":-1}', RaisingInit, what="it")
    with pytest.raises(InvalidValue, match="NameError: name 'Missing'"):
        encode_value(Unfinished(1), Unfinished, what="it")
    with pytest.raises(InvalidValue, match="NameError: name 'Missing'"):
        decode_value('{"n":1}', Unfinished, what="it")
    with pytest.raises(InvalidValue, match="more than one dataclass"):
        decode_value("{}", Line | Other, what="it")


def test_annotations_of_bound_methods_and_partials_are_used():
    def add(a: int, b: int) -> Decimal: ...

    assert hints_of(partial(partial(add, 1), b=2))["return"] is Decimal


def test_arguments_have_the_same_hash_in_every_process():
    """The order of a set of strings differs between processes."""
    script = "from holdfast.workflow.journal import arguments_hash as h; print(h(({'a', 'b', 'c', 'd'},), {}))"
    found = {
        subprocess.run(
            [sys.executable, "-c", script], env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True, text=True, check=True,
        ).stdout
        for seed in "123"
    }  # fmt: skip
    assert len(found) == 1
