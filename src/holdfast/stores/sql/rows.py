"""Records as the tables hold them: JSON text, next to the columns that are indexed."""

from __future__ import annotations

from typing import Any

import msgspec

from ...errors import RecordUnreadable
from ...rules.lock_record import LockRecord, decode, encode
from ...rules.runs.limits import LimitKey, WorkflowLimits
from ...rules.runs.record import Run, RunEvent, Scalar, WorkerRecord
from ...rules.slot import Slot

LARGEST = 2**63 - 1
"""The largest number of a column."""

_json = msgspec.json.Encoder()
_runs = msgspec.json.Decoder(Run)
_events = msgspec.json.Decoder(RunEvent)
_workers = msgspec.json.Decoder(WorkerRecord)
_slots = msgspec.json.Decoder(Slot)
_limits = msgspec.json.Decoder(WorkflowLimits)
_place = msgspec.json.Decoder(LimitKey)


def text_of(value: Any) -> str:
    """Anything as JSON."""
    return _json.encode(value).decode()


def whole(number: int | None) -> int | None:
    """A number that a column can hold, or raise."""
    if number is not None and not -LARGEST <= number <= LARGEST:
        raise OverflowError(f"{number} is too large to be stored")
    return number


def unreadable(what: str, name: str, error: Exception) -> RecordUnreadable:
    """The error for a row that cannot be read."""
    return RecordUnreadable(
        f"the stored {what} {name!r} cannot be read ({error}). It was left untouched. It may come from a newer "
        "version, or be damaged: upgrade, or inspect it by hand.",
        key=name,
    )


def run_of(id: str, text: str) -> Run | RecordUnreadable:
    """A run, or why it cannot be read."""
    try:
        run = _runs.decode(text)
    except (msgspec.MsgspecError, UnicodeError) as error:
        return unreadable("run", id, error)
    return run


def lock_of(key: str, text: str) -> LockRecord | RecordUnreadable:
    """The record of a lock, or why it cannot be read."""
    try:
        return decode(key, text)
    except RecordUnreadable as error:
        return error


def lock_text(record: LockRecord) -> str:
    """The record of a lock as text. Raises if it could not be read again."""
    text = encode(record).decode()
    decode("", text)
    return text


def slot_of(key: str, text: str) -> Slot | RecordUnreadable:
    """A state slot, or why it cannot be read."""
    try:
        return _slots.decode(text)
    except (msgspec.MsgspecError, UnicodeError) as error:
        return unreadable("state", key, error)


def events_of(run: str, texts: list[str]) -> tuple[RunEvent, ...] | RecordUnreadable:
    """The events of a run in their order, or why one of them cannot be read."""
    try:
        return tuple(map(_events.decode, texts))
    except (msgspec.MsgspecError, UnicodeError) as error:
        return unreadable("event of the run", run, error)


def worker_of(id: str, text: str) -> WorkerRecord:
    """A worker. An unreadable one has no types: it is never notified, and its runs are released with its lease."""
    try:
        return _workers.decode(text)
    except (msgspec.MsgspecError, UnicodeError):
        return WorkerRecord(id=id, name=id, types=(), since=0)


def limits_of(workflow: str, text: str) -> WorkflowLimits | RecordUnreadable:
    """The limits of a workflow, or why they cannot be read."""
    try:
        return _limits.decode(text)
    except (msgspec.MsgspecError, UnicodeError) as error:
        return unreadable("limits of the workflow", workflow, error)


def place_of(text: str) -> LimitKey:
    """A limit key."""
    return _place.decode(text)


def attribute_term(name: str, value: Scalar) -> tuple[str, str]:
    """The parts of the digest under which an attribute is found: True is not 1, and 1 is not "1"."""
    return name, text_of(value)


def checked_run(run: Run) -> str:
    """A run as text. Raises for values that could not be stored, or could not be read again."""
    for number in (run.created_at, run.due_at, run.arrival, run.priority, run.fence):
        whole(number)
    text = text_of(run)
    _runs.decode(text)
    return text


def checked_event(event: RunEvent) -> str:
    """An event as text; likewise."""
    whole(event.number)
    text = text_of(event)
    _events.decode(text)
    return text


def checked_worker(worker: WorkerRecord) -> str:
    """A worker as text; likewise."""
    text = text_of(worker)
    _workers.decode(text)
    return text


def checked_slot(slot: Slot) -> str:
    """A state slot as text; likewise."""
    whole(slot.version)
    text = text_of(slot)
    _slots.decode(text)
    return text


def checked_limits(limits: WorkflowLimits) -> str:
    """The limits of a workflow as text; likewise."""
    text = text_of(limits)
    _limits.decode(text)
    return text
