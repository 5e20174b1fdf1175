"""Record types: what they read and write, what they keep of newer versions, and which definitions are refused."""

from __future__ import annotations

import msgspec
import pytest

from holdfast.errors import RecordUnreadable
from holdfast.rules.record_type import MAX_MOMENT, RecordStruct, RecordType, StoredRecord, type_named


class Page(RecordStruct, frozen=True):
    number: int


class Book(RecordStruct, frozen=True):
    title: str = ""
    pages: tuple[Page, ...] = ()
    cover: Page | None = None
    by_name: dict[str, Page] = msgspec.field(default_factory=dict)
    pair: tuple[int, Page] | None = None
    back_by: int | None = None


BOOK = RecordType("test-book", Book, due="back_by")
NEWER = (
    '{"pages":[{"number":1,"colour":"red"}],"cover":{"number":2},"by_name":{"unknown":{"number":3,"x":[1]}},'
    '"pair":[1,{"number":4,"y":{}}],"shelf":{"row":1}}'
)


def test_a_record_is_read_as_it_was_written():
    book = Book(title="\x00 é 😀", pages=(Page(number=1),), back_by=7)
    stored = BOOK.stored(book)
    assert stored == StoredRecord('{"title":"\\u0000 é 😀","pages":[{"number":1}],"back_by":7}', 7)
    assert BOOK.decode("k", stored.text) == book
    assert BOOK.stored(Book()) == StoredRecord("{}", None)


def test_fields_that_a_struct_does_not_have_are_kept_wherever_they_are():
    book = BOOK.decode("k", NEWER)
    assert book.unknown == {"shelf": {"row": 1}}
    assert book.by_name["unknown"].unknown == {"x": [1]}
    assert BOOK.stored(book).text == NEWER


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "null", "7", '{"title":7}', '{"pages":[7]}', '{"pages":[{}]}', '{"back_by":"x"}', b"\xff"]
)
def test_an_unreadable_record_is_refused_by_name(text):
    with pytest.raises(RecordUnreadable, match="the stored test-book record 'k' cannot be read") as caught:
        BOOK.decode("k", text)
    assert caught.value.key == "k"


@pytest.mark.parametrize(
    "book",
    [
        Book(title="\ud800"),
        Book(title=7),
        Book(pages=(Page(number="x"),)),
        Book(back_by=MAX_MOMENT + 1),
        Book(back_by=-MAX_MOMENT - 1),
        Book(back_by=1.5),
        Page(number=1),
        object(),
    ],
)
def test_a_record_that_could_not_be_read_back_is_not_stored(book):
    with pytest.raises((TypeError, OverflowError, UnicodeError)):
        BOOK.stored(book)


@pytest.mark.parametrize("name", ["", "A", "a:b", "a b", "1a", "x" * 64, "é"])
def test_a_name_that_would_not_fit_into_every_store_is_refused(name):
    with pytest.raises(ValueError, match="the name of a record type"):
        RecordType(name, Book)


def test_a_name_can_be_used_for_one_type_only():
    assert type_named("test-book") is BOOK
    assert type_named("nobody-defined-this") is None
    with pytest.raises(ValueError, match="there is a record type 'test-book' already, made of Book"):
        RecordType("test-book", Page)
    assert type_named("test-book") is BOOK


def test_a_struct_that_would_drop_fields_of_a_newer_version_is_refused():
    class Loose(msgspec.Struct):
        text: str = ""

    class Outer(RecordStruct, frozen=True):
        loose: tuple[Loose, ...] = ()

    Outer.__annotations__["loose"] = tuple[Loose, ...]
    for struct in (Loose, Outer):
        with pytest.raises(TypeError, match="Loose must be a RecordStruct"):
            RecordType("test-loose", struct)


def test_a_field_of_one_of_several_structs_is_refused():
    class Either(RecordStruct, frozen=True):
        one: object = None

    Either.__annotations__["one"] = Page | Book
    with pytest.raises(TypeError, match=r"Either\.one may be one of several structs"):
        RecordType("test-either", Either)


@pytest.mark.parametrize("options", [{"array_like": True}, {"rename": "upper"}])
def test_a_struct_that_is_not_stored_under_the_names_of_its_fields_is_refused(options):
    struct = msgspec.defstruct("Odd", [("text", str, "")], bases=(RecordStruct,), frozen=True, **options)
    with pytest.raises(TypeError, match="Odd must be stored as an object with the names of its fields"):
        RecordType("test-odd", struct)


def test_a_due_field_must_exist():
    with pytest.raises(ValueError, match="Book has no field 'due_at'"):
        RecordType("test-book", Book, due="due_at")
