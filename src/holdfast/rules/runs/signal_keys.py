"""The keys of signals that earlier generations of a run have read: such a signal is recognised when it is sent again.

Each key is a record of its own, so that one signal reads one record. For each generation there is also a record (a
page) with the list of the keys that it has read, so that old keys are found and removed. At most `KEPT` keys are
remembered, for at most `KEPT_FOR`.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..record_type import RecordStruct, RecordType
from .record import RememberedKeys, Run
from .repository import RunRepository
from .tree import digest

KEPT = 10_000
"""How many keys are remembered for a run, besides those of the last generation."""
KEPT_FOR = 24 * 60 * 60 * 1_000_000
"""Microseconds for which a key is remembered after the generation that has read its signal."""
PAGES_REMOVED = 3
"""How many pages are removed in one step, at most: the step stays short after a long pause."""


class SignalKey(RecordStruct, frozen=True):
    """A signal with this key was read by this generation."""

    generation: int


class SignalKeyPage(RecordStruct, frozen=True):
    """The digests of the keys that one generation has read, until the time `at`."""

    at: int
    keys: tuple[str, ...]


SIGNAL_KEY = RecordType("signal-key", SignalKey)
SIGNAL_KEY_PAGE = RecordType("signal-keys", SignalKeyPage)


def key_prefix(run: str) -> str:
    """The beginning of the keys of all these records of a run."""
    return f"{digest(run)}/"


def record_key(run: str, key: str) -> str:
    """The key of the record of a signal's key."""
    return key_prefix(run) + digest(key)


def page_key(run: str, number: int) -> str:
    """The key of a page."""
    return f"{key_prefix(run)}{number}"


def is_remembered(repo: RunRepository, run: Run, key: str) -> bool:
    """Whether an earlier generation of this run has read a signal with this key."""
    return run.remembered is not None and repo.record(SIGNAL_KEY, record_key(run.id, key)) is not None


def remember(repo: RunRepository, now: int, run: Run, keys: Iterable[str]) -> RememberedKeys | None:
    """Note the keys that this generation has read, and forget the oldest ones. Returns what the run then remembers."""
    digests = tuple(digest(key) for key in keys)
    first, last, count = (1, 0, 0) if run.remembered is None else run.remembered.parts
    if digests:
        last, count = last + 1, count + len(digests)
        for one in digests:
            repo.put_record(SIGNAL_KEY, key_prefix(run.id) + one, SignalKey(generation=run.generation))
        repo.put_record(SIGNAL_KEY_PAGE, page_key(run.id, last), SignalKeyPage(at=now, keys=digests))
    for _ in range(PAGES_REMOVED):
        page = repo.record(SIGNAL_KEY_PAGE, page_key(run.id, first)) if first < last else None
        if page is None or (count - len(page.keys) < KEPT and page.at > now - KEPT_FOR):
            break
        for one in page.keys:
            repo.put_record(SIGNAL_KEY, key_prefix(run.id) + one, None)
        repo.put_record(SIGNAL_KEY_PAGE, page_key(run.id, first), None)
        first, count = first + 1, count - len(page.keys)
    return RememberedKeys(first, last, count) if count else None
