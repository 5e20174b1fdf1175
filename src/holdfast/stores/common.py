"""Functions shared by all stores that run the rules in Python: failures, lists, hints."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import chain
from typing import TypeVar

import msgspec

from ..commands import Command, Failed, Inspect, ListedLock, LockCommand, PassOver, Swept, decide_all
from ..errors import HoldfastError, RecordUnreadable
from ..rules import lock
from ..rules.lock_outcomes import LockSeen, Outcome
from ..rules.lock_record import LockRecord
from ..rules.runs.lock_queue import OverflowReader
from ..rules.runs.lock_requests import RUN_PREFIX
from ..rules.slot import client_of

Row = TypeVar("Row")

_LAST = 0x10FFFF
_SURROGATES = range(0xD800, 0xE000)


class Undecided(Exception):
    """A rule cannot decide with the records that were read. The command is not at fault."""


def failed(command: Command, error: Exception) -> Failed:
    """The answer to a command that raised an exception: it fails alone, and nothing was changed for it."""
    if isinstance(error, HoldfastError):
        return Failed(error=error)
    key = getattr(command, "key", None)
    place = f" on {key!r}" if key is not None else ""
    wrapped = HoldfastError(
        f"{type(command).__name__}{place} could not be carried out ({type(error).__name__}: {error}). "
        "Nothing was changed for it. One of its values is invalid."
    )
    wrapped.__cause__ = error
    return Failed(error=wrapped)


def flaw(command: Command) -> Failed | None:
    """The answer to a command with a value of the wrong type, which could not be read again once stored."""
    try:
        msgspec.convert(msgspec.to_builtins(command), type(command))
    except Exception as error:  # any error that a value of the wrong type causes
        return failed(command, error)
    return None


def by_key(commands: Iterable[LockCommand]) -> dict[str, list[tuple[int, LockCommand]]]:
    """Commands about locks by their key, each with its index in the batch."""
    keys: dict[str, list[tuple[int, LockCommand]]] = {}
    for place, command in enumerate(commands):
        keys.setdefault(command.key, []).append((place, command))
    return keys


def decided(
    before: LockRecord,
    commands: Sequence[LockCommand],
    now: int,
    write: Callable[[LockRecord], Row],
    reader: OverflowReader | None = None,
) -> tuple[Row | None, list[Outcome]]:
    """Decide on the commands of a batch about one key. Returns what to write, None if nothing changed.

    `write` encodes a record, and raises where the store cannot hold it. A bad command fails alone. `reader` is given
    where runs wait that the record does not list.
    """
    if reader is not None:
        return _decided_apart(before, commands, now, write, reader)
    try:
        after, outcomes = decide_all(before, commands, now)
        return None if after is before else write(after), outcomes
    except Exception:  # one command raised: deciding one by one shows which
        return _decided_apart(before, commands, now, write)


def _decided_apart(
    record: LockRecord,
    commands: Sequence[LockCommand],
    now: int,
    write: Callable[[LockRecord], Row],
    reader: OverflowReader | None = None,
) -> tuple[Row | None, list[Outcome]]:
    row: Row | None = None
    outcomes: list[Outcome] = []
    for command in commands:
        try:
            after, outcome = decided_alone(record, command, now, reader)
            if after is not record:
                row = write(after)
                record = after
            if reader is not None:
                reader.save()
        except Undecided:
            raise
        except Exception as error:
            outcome = failed(command, error)
            if reader is not None:
                reader.forget()
        outcomes.append(outcome)
    return row, outcomes


def decided_alone(
    record: LockRecord, command: LockCommand, now: int, reader: OverflowReader | None
) -> tuple[LockRecord, Outcome]:
    """Decide on one command. The runs that the reader took must be saved with the record."""
    if reader is None:
        return command.apply(record, now)
    after, outcomes = decide_all(record, [command], now, reader)
    return after, outcomes[0]


def swept(outcomes: Sequence[Outcome], changed: int, following: str | None) -> Swept:
    """The answer to `SettleDue`, from the outcomes of each key."""
    return Swept(
        seen=len(outcomes),
        changed=changed,
        next=following,
        woken=tuple(one for outcome in outcomes for one in outcome.woken),
        hinted=tuple(one for outcome in outcomes for one in outcome.hinted),
    )


def listed(key: str, record: LockRecord | RecordUnreadable, now: int) -> ListedLock:
    """One row of a page: settled without being written, or with the reason why it cannot be read."""
    if isinstance(record, RecordUnreadable):
        return ListedLock(key=key, record=None, error=str(record))
    shown, _ = lock.settle(record, now, offers=False)
    return ListedLock(key=key, record=shown)


def at_least_one(limit: int) -> int:
    """The limit of a page, at least one: with an empty page, paging would never end."""
    return max(1, limit)


def end_of_prefix(prefix: str) -> str | None:
    """The first text after all texts that begin with the prefix, in the order of code points.

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
    """The attempts that these outcomes granted or hinted, and those in `hints`, once each, by their channel."""
    return woken_among(chain(_woken(outcomes), hints))


def woken_among(attempts: Iterable[str]) -> dict[str, list[str]]:
    """These attempts, once each, by the channel on which their process listens."""
    channels: dict[str, list[str]] = {}
    for attempt in dict.fromkeys(attempts):
        if not attempt.startswith(RUN_PREFIX):  # a run is notified by an event
            channels.setdefault(client_of(attempt), []).append(attempt)
    return channels


def offers_to(unheard: Collection[str], commands: Sequence[Command], outcomes: Sequence[Outcome]) -> list[Inspect]:
    """The `Inspect` commands for the keys on which these commands made offers to attempts whose process has ended."""
    keys = [
        command.key
        for command, outcome in zip(commands, outcomes, strict=True)
        if isinstance(command, LockCommand) and not set(unheard).isdisjoint(outcome.woken)
    ]
    return [Inspect(key=key) for key in dict.fromkeys(keys)]


def pass_overs(unheard: Collection[str], looks: Sequence[Inspect], seen: Sequence[Outcome]) -> list[PassOver]:
    """The commands that end offers which no process can receive; only for waiters that are known to listen."""
    return [
        PassOver(key=look.key, id=holder.id, token=holder.token)
        for look, outcome in zip(looks, seen, strict=True)
        if isinstance(outcome, LockSeen) and outcome.record is not None
        for holder in outcome.record.holders
        if holder.id in unheard and holder.place is not None and holder.place.listens
    ]


def _woken(outcomes: Iterable[Outcome]) -> Iterable[str]:
    return (
        attempt
        for outcome in outcomes
        if outcome.woken or outcome.hinted
        for attempt in chain(outcome.woken, outcome.hinted)
    )
