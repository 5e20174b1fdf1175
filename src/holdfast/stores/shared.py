"""What every store that runs the rules in Python does alike: failures, listings, hints."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

from ..commands import Command, Failed, Listed
from ..errors import HoldfastError, RecordUnreadable
from ..rules import lock
from ..rules.asks import MARK
from ..rules.outcomes import Outcome
from ..rules.record import LockRecord
from ..rules.slot import client_of

_LAST = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)


def failed(command: Command, error: Exception) -> Failed:
    """The answer to a command that broke: it fails alone, and nothing was changed for it."""
    if isinstance(error, HoldfastError):
        return Failed(error=error)
    key = getattr(command, "key", None)
    place = f" on {key!r}" if key is not None else ""
    wrapped = HoldfastError(
        f"{type(command).__name__}{place} could not be carried out ({type(error).__name__}: {error}). "
        "Nothing was changed for it. One of its values is not of the kind that it should be."
    )
    wrapped.__cause__ = error
    return Failed(error=wrapped)


def listed(key: str, record: LockRecord | RecordUnreadable, now: int) -> Listed:
    """One row of a page: settled for the eye only, or with the reason why it cannot be read."""
    if isinstance(record, RecordUnreadable):
        return Listed(key=key, record=None, error=str(record))
    shown, _ = lock.settle(record, now, offers=False)
    return Listed(key=key, record=shown)


def at_least_one(limit: int) -> int:
    """A page has room for one row, whatever was asked for: without any, paging would never end."""
    return max(1, limit)


def end_of_prefix(prefix: str) -> str | None:
    """The first text after all those that begin with the prefix, in the order of code points.

    None: there is no such text. UTF-8 bytes sort as code points do, so this holds for stored keys too.

    >>> end_of_prefix("invoice:")
    'invoice;'
    """
    while prefix:
        point = ord(prefix[-1]) + 1
        if point in _SURROGATES:
            point = _SURROGATES.stop
        if point <= _LAST:
            return prefix[:-1] + chr(point)
        prefix = prefix[:-1]
    return None


def woken_by_channel(outcomes: Sequence[Outcome], hints: Sequence[str] = ()) -> dict[str, list[str]]:
    """Who was granted by these steps, and who else is to be told, once each, by the channel that hears of it."""
    channels: dict[str, list[str]] = {}
    for attempt in dict.fromkeys(chain(_woken(outcomes), hints)):
        if not attempt.startswith(MARK):  # a run hears of it by an event
            channels.setdefault(client_of(attempt), []).append(attempt)
    return channels


def _woken(outcomes: Iterable[Outcome]) -> Iterable[str]:
    return (attempt for outcome in outcomes if outcome.woken for attempt in outcome.woken)
