"""The kinds of records that the compare-and-swap core decides on: locks, state slots, and records of a `RecordType`.

A subject is one record: its name at the service, how its text is read, and what the commands of a batch about it make
of it. Everything here is free of I/O. A command that raises fails alone, and nothing of it is written.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import msgspec

from ..commands import Command, LockCommand, RecordCommand, SlotCommand
from ..commands.runs import RunCommand
from ..errors import InvalidValue, RecordUnreadable, StoreUnusable
from ..rules.lock_outcomes import Outcome
from ..rules.lock_record import EMPTY, LockRecord, decode, encode
from ..rules.record_type import MAX_MOMENT, RecordType, unreadable
from ..rules.slot import EMPTY_SLOT, Address, Slot
from .cas_adapter import LOCKS, RECORDS, SLOTS, CasName, CasService, StampedText
from .common import decided, failed
from .records import Written, decided_record


class Change(NamedTuple):
    """What the commands about a record make of it: its new text (None: it is removed), and when it is due."""

    text: str | None
    due_at: int | None
    lock: LockRecord | None = None
    """The record, if it is the record of a lock."""


class Decision(NamedTuple):
    """The change (None: nothing is written), and the outcomes of the commands."""

    change: Change | None
    outcomes: list[Outcome]


class Subject(Protocol):
    """One record, and the rules for it."""

    name: CasName

    def decide(self, found: StampedText | None, commands: Sequence[Any], now: int) -> Decision:
        """Decide on the commands, in their order, by the record as it is stored (None: there is none)."""


class LockSubject:
    """The record of a lock."""

    def __init__(self, service: CasService, key: str) -> None:
        self._service, self._key = service, key
        self.name = CasName(LOCKS, key)

    def decide(self, found: StampedText | None, commands: Sequence[LockCommand], now: int) -> Decision:
        """Decide by the rules of locks."""
        try:
            stored = EMPTY if found is None else decode(self._key, found.text)
        except RecordUnreadable as error:
            return _all_failed(commands, error)
        shown = stored if found is None else self._service.observed(self._key, stored, found.stamp, now)

        def changed(after: LockRecord) -> Change:
            return self._changed(self._service.written_back(stored, shown, after))

        return Decision(*decided(shown, commands, now, changed))

    def _changed(self, record: LockRecord) -> Change:
        text = encode(record).decode()
        check_size(self._service, self.name, text)
        if record.due_at is not None and abs(record.due_at) > MAX_MOMENT:
            raise OverflowError(f"{record.due_at} is a time that cannot be stored: only those up to {MAX_MOMENT} can")
        return Change(text, record.due_at, record)


class SlotSubject:
    """A state slot."""

    def __init__(self, service: CasService, address: Address) -> None:
        self._service = service
        self.name = CasName(SLOTS, json.dumps(list(address), ensure_ascii=False))

    def decide(self, found: StampedText | None, commands: Sequence[SlotCommand], now: int) -> Decision:
        """Decide by the rules of slots, each command by itself: one that raises changes nothing."""
        try:
            slot = before = EMPTY_SLOT if found is None else _decoded_slot(self.name.key, found.text)
        except RecordUnreadable as error:
            return _all_failed(commands, error)
        change: Change | None = None
        outcomes: list[Outcome] = []
        for command in commands:
            try:
                after, outcome = command.apply(slot, now)
                if after is not slot:
                    text = _encoder.encode(after).decode()
                    check_size(self._service, self.name, text)
                    slot, change = after, Change(text, None)
            except Exception as error:
                outcome = failed(command, error)
            outcomes.append(outcome)
        return Decision(None if slot is before else change, outcomes)


class RecordSubject:
    """A record of a `RecordType`."""

    def __init__(self, service: CasService, type: RecordType[Any], key: str) -> None:
        self._service, self._type, self._key = service, type, key
        self.name = CasName(RECORDS + type.name, key)

    def decide(self, found: StampedText | None, commands: Sequence[RecordCommand], now: int) -> Decision:
        """Decide by the rules of the type."""
        try:
            before = None if found is None else self._type.decode(self._key, found.text)
        except RecordUnreadable as error:
            return _all_failed(commands, error)
        written, outcomes = decided_record(self._type, before, commands, now)
        try:
            return Decision(None if written is None else self._changed(written), outcomes)
        except InvalidValue:  # one command made the record too large: deciding one by one shows which
            return self._decided_apart(before, commands, now)

    def _decided_apart(self, before: Any, commands: Sequence[RecordCommand], now: int) -> Decision:
        change: Change | None = None
        outcomes: list[Outcome] = []
        record = before
        for command in commands:
            written, (outcome,) = decided_record(self._type, record, [command], now)
            try:
                if written is not None:
                    change, record = self._changed(written), written.record
            except InvalidValue as error:
                outcome = failed(command, error)
            outcomes.append(outcome)
        return Decision(None if record is before else change, outcomes)

    def _changed(self, written: Written) -> Change:
        if written.stored is None:
            return Change(None, None)
        check_size(self._service, self.name, written.stored.text)
        return Change(*written.stored)


def subject_of(service: CasService, command: Command) -> Subject:
    """The record that a command is about. Raises for a command that this store does not support, and for bad names."""
    subject: Subject
    if isinstance(command, LockCommand):
        subject = LockSubject(service, command.key)
    elif isinstance(command, SlotCommand):
        subject = SlotSubject(service, command.address)
    elif isinstance(command, RecordCommand):
        subject = RecordSubject(service, command.record_type, command.key)
    elif isinstance(command, RunCommand):
        raise StoreUnusable(
            "this store cannot run workflows: use SQLite, PostgreSQL, Redis, Valkey, MySQL or MariaDB for them. "
            "Nothing was changed."
        )
    else:
        raise TypeError(f"{type(command).__name__} is not a command that this store supports")
    check_text(subject.name.key)
    return subject


def lock_of(service: CasService, key: str, found: StampedText | None, now: int) -> LockRecord:
    """The record of a lock as the rules are to see it. Raises `RecordUnreadable`."""
    if found is None:
        return EMPTY
    return service.observed(key, decode(key, found.text), found.stamp, now)


def check_text(*texts: str) -> None:
    """Raise for what cannot be part of a name: anything but text, NUL, and half of a surrogate pair."""
    for text in texts:
        if type(text) is not str:
            raise TypeError(f"{text!r:.50} is not text")
        text.encode()
        if "\0" in text:
            raise ValueError(f"{text!r:.50} contains NUL")


def check_size(service: CasService, name: CasName, text: str) -> None:
    """Raise for a record that the service cannot hold."""
    size = len(text.encode())
    if size > service.max_bytes:
        shown = msgspec.json.decode(name.key)[-1] if name.kind == SLOTS else name.key
        raise InvalidValue(
            f"the record of {shown!r} would be {size:,} bytes, and this store holds at most {service.max_bytes:,} in "
            "one record. Nothing was changed for this command. Store a smaller value, or let fewer callers wait."
        )


def _decoded_slot(key: str, text: str) -> Slot:
    try:
        return _decoder.decode(text)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise unreadable("slot", key, str(error)) from error


def _all_failed(commands: Sequence[Command], error: Exception) -> Decision:
    return Decision(None, [failed(command, error) for command in commands])


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Slot)
