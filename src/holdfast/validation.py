"""Keys and durations as users write them, checked once in the public methods.

Internally a duration is an integer number of microseconds and a key is a checked string; this module is the only place
where other forms are converted or refused.
"""

from __future__ import annotations

import math
import re
import unicodedata
from datetime import UTC, datetime, timedelta

from .errors import InvalidDuration, InvalidKey, InvalidOption

Duration = float | int | timedelta | str

MICROSECONDS = 1_000_000
MAX_KEY_BYTES = 512
MIN_TTL_SECONDS = 0.1
LONGEST_SECONDS = 36_525 * 86_400.0
"""The longest duration: a hundred years. The sum of a time and a duration then fits into every store."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
LATEST = datetime.max.replace(tzinfo=UTC)
MAX_TTL_SECONDS = 366 * 86_400.0

_UNITS = {
    "ms": 0.001, "millisecond": 0.001, "milliseconds": 0.001,
    "s": 1, "sec": 1, "secs": 1, "second": 1, "seconds": 1,
    "m": 60, "min": 60, "mins": 60, "minute": 60, "minutes": 60,
    "h": 3_600, "hour": 3_600, "hours": 3_600,
    "d": 86_400, "day": 86_400, "days": 86_400,
    "w": 604_800, "week": 604_800, "weeks": 604_800,
}  # fmt: skip
_PART = re.compile(r"\s*(?:and\s+)?(\d+(?:\.\d+)?)\s*([a-z]+)\s*,?", re.IGNORECASE)
_FORMS = 'pass seconds (30, 0.5), a timedelta, or text such as "5 minutes" or "1 h 30 m"'


def checked_key(key: str, *, what: str = "key") -> str:
    """Return the key, or raise `InvalidKey` with the reason.

    >>> checked_key("invoice:42")
    'invoice:42'
    >>> checked_key("", what="owner")
    Traceback (most recent call last):
    holdfast.errors.InvalidKey: an owner must not be empty: pass a text such as 'invoice:42'.
    """
    if not isinstance(key, str):
        raise InvalidKey(f"{_a(what)} must be text, not {type(key).__name__}: {key!r}")
    try:
        size = len(key.encode())
    except UnicodeEncodeError:
        raise InvalidKey(f"the {what} {key!r} is not valid Unicode text (a lone surrogate)") from None
    if not size:
        raise InvalidKey(f"{_a(what)} must not be empty: pass a text such as 'invoice:42'")
    if size > MAX_KEY_BYTES:
        raise InvalidKey(
            f"the {what} {key[:40]!r}... has {size} bytes, more than {MAX_KEY_BYTES}: use a hash of the long part"
        )
    if not key.isprintable():
        for character in key:
            if unicodedata.category(character) == "Cc":
                raise InvalidKey(f"the {what} {key!r} contains the control character {character!r}")
    return key


def _a(what: str) -> str:
    return f"{'an' if what[0] in 'aeiou' else 'a'} {what}"


def seconds(value: Duration, *, what: str = "a duration") -> float:
    """Return a duration in seconds; at most a hundred years.

    >>> seconds("5 minutes"), seconds(0.5), seconds(timedelta(hours=1)), seconds("1 h 30 m")
    (300.0, 0.5, 3600.0, 5400.0)
    """
    result = _finite_seconds(value, what)
    if result > LONGEST_SECONDS:
        raise InvalidDuration(f"{what} cannot be {value!r}: it must be at most 100 years")
    return result


def _finite_seconds(value: Duration, what: str) -> float:
    if isinstance(value, timedelta):
        result = value.total_seconds()
    elif isinstance(value, str):
        result = _parse(value, what)
    elif isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidDuration(f"{what} cannot be {value!r}: {_FORMS}")
    else:
        try:
            result = float(value)
        except OverflowError:
            result = math.inf
    if math.isnan(result) or math.isinf(result) or result < 0:
        raise InvalidDuration(f"{what} cannot be {value!r}: it must be a finite number that is not negative")
    return result


def time_of(microseconds: int) -> datetime:
    """A stored time, which is in microseconds since 1970. One that no `datetime` can hold is the latest that one can.

    >>> time_of(0).year, time_of(2**62).year
    (1970, 9999)
    """
    try:
        return EPOCH + timedelta(microseconds=microseconds)
    except OverflowError:
        return LATEST


def microseconds_of_time(when: datetime) -> int:
    """A time with a time zone, as it is stored."""
    return (when - EPOCH) // timedelta(microseconds=1)


def _parse(text: str, what: str) -> float:
    try:
        return float(text)
    except ValueError:
        pass
    total, end = 0.0, 0
    for part in _PART.finditer(text):
        unit = _UNITS.get(part[2].lower())
        if part.start() != end or unit is None:
            break
        total += float(part[1]) * unit
        end = part.end()
    if end == 0 or text[end:].strip():
        raise InvalidDuration(f"{what} cannot be {text!r}: {_FORMS}")
    return total


def checked_ttl(value: Duration, *, what: str = "ttl") -> int:
    """Return a time to live in microseconds, between 0.1 s and 366 days.

    >>> checked_ttl(30)
    30000000
    """
    length = _finite_seconds(value, what)
    if not MIN_TTL_SECONDS <= length <= MAX_TTL_SECONDS:
        raise InvalidDuration(f"{what} cannot be {value!r}: it must be between 0.1 seconds and 366 days")
    return round(length * MICROSECONDS)


def checked_count(value: int, *, what: str) -> int:
    """Return a whole number of at least one."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InvalidOption(f"{what} cannot be {value!r}: it must be a whole number of at least 1")
    return value
