"""Keys and durations as people write them."""

import re
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import InvalidDuration, InvalidKey, InvalidOption
from holdfast.validation import MAX_KEY_BYTES, checked_count, checked_key, checked_ttl, seconds


@pytest.mark.parametrize("key", ["a", "invoice:42", "with space", "ключ", "鍵", "🔒", "x" * MAX_KEY_BYTES, "é" * 256])
def test_a_key_of_1_to_512_bytes_is_returned_as_it_is(key):
    assert checked_key(key) == key


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("", "must not be empty"),
        ("x" * 513, "has 513 bytes, more than 512"),
        ("é" * 257, "has 514 bytes"),
        ("a\nb", r"control character '\\n'"),
        ("a\x00", r"control character '\\x00'"),
        ("\x7f", "control character"),
        ("\x85", "control character"),
        ("\ud800", "lone surrogate"),
        (b"bytes", "must be text, not bytes"),
        (None, "must be text, not NoneType"),
        (42, "must be text, not int"),
    ],
)
def test_another_key_is_refused_with_the_reason(key, reason):
    with pytest.raises(InvalidKey, match=reason) as caught:
        checked_key(key)
    assert isinstance(caught.value, ValueError)


def test_a_long_key_is_not_repeated_in_full_in_its_error():
    with pytest.raises(InvalidKey) as caught:
        checked_key("x" * 100_000)
    assert len(str(caught.value)) < 300


@given(st.text(max_size=600))
def test_any_text_is_accepted_or_refused_as_documented(text):
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        size = 0
    fine = 1 <= size <= 512 and not re.search(r"[\x00-\x1f\x7f-\x9f]", text)
    try:
        assert checked_key(text) == text
        assert fine
    except InvalidKey:
        assert not fine


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (0, 0.0),
        (30, 30.0),
        (0.5, 0.5),
        (timedelta(minutes=2), 120.0),
        ("30", 30.0),
        ("0.5", 0.5),
        ("5 minutes", 300.0),
        ("5minutes", 300.0),
        ("1 minute", 60.0),
        ("1h30m", 5_400.0),
        ("1 h 30 m", 5_400.0),
        ("1 hour, 30 minutes", 5_400.0),
        ("1 hour and 30 minutes", 5_400.0),
        ("250 ms", 0.25),
        ("1.5 h", 5_400.0),
        ("2 Days", 172_800.0),
        ("1 week", 604_800.0),
        (" 10 s ", 10.0),
    ],
)
def test_a_duration_is_seconds_a_timedelta_or_text(value, expected):
    assert seconds(value) == expected


@pytest.mark.parametrize(
    "value",
    [
        "",
        " ",
        "soon",
        "5 parsecs",
        "five minutes",
        "5 minutes ago",
        "-5 minutes",
        "5 5 minutes",
        "minutes",
        "nan",
        "inf",
        -1,
        -0.001,
        float("nan"),
        float("inf"),
        timedelta(seconds=-1),
        True,
        False,
        None,
        [30],
        b"30",
    ],
)
def test_a_value_that_is_no_duration_is_refused_with_the_accepted_forms(value):
    with pytest.raises(InvalidDuration, match="a lease cannot be") as caught:
        seconds(value, what="a lease")
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, InvalidOption)


@given(st.floats(min_value=0, max_value=1e9))
def test_seconds_as_number_text_and_timedelta_are_equal(number):
    assert seconds(number) == seconds(repr(number)) == number
    assert seconds(timedelta(seconds=number)) == pytest.approx(number, abs=1e-6)


@pytest.mark.parametrize(
    ("value", "microseconds"),
    [(0.1, 100_000), (30, 30_000_000), ("366 days", 31_622_400_000_000), (0.1234567, 123_457)],
)
def test_a_ttl_is_stored_in_microseconds(value, microseconds):
    assert checked_ttl(value) == microseconds
    assert isinstance(checked_ttl(value), int)


@pytest.mark.parametrize("value", [0, 0.099, "366 days 1 s", timedelta(days=367), 1e300])
def test_a_ttl_lies_between_a_tenth_of_a_second_and_366_days(value):
    with pytest.raises(InvalidDuration, match=r"ttl cannot be .* between 0\.1 seconds and 366 days"):
        checked_ttl(value)


def test_a_count_is_a_whole_number_of_at_least_one():
    assert checked_count(3, what="permits") == 3
    for wrong in (0, -1, 1.0, True, "3", None):
        with pytest.raises(InvalidOption, match="permits cannot be"):
            checked_count(wrong, what="permits")
