"""Runs, slots and members of limits as they are stored in Redis.

A run is a hash with one field for each field of `Run` that does not have its default value: texts as they are,
everything else as JSON. So a new field needs no code here. The length of a journal and the number of events are those
of their lists. Scores of sorted sets are whole numbers below 2^53, which a double represents exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Annotated, Any, get_type_hints

import msgspec
from msgspec.structs import fields

from ...errors import RecordUnreadable
from ...rules.lock_record import Holder, LockRecord, Tombstone, Waiter, decode, encode
from ...rules.runs.limits import WorkflowLimits
from ...rules.runs.record import Run, RunEvent, WorkerRecord
from ...rules.slot import Address, Slot, WriteHistory

MAX = 2**53 - 1
_COUNTED = ("id", "length", "posted")
_TEXTS = (str, str | None)

_json = msgspec.json.Encoder()
_HINTS = get_type_hints(Run)
_FIELDS = tuple(field for field in fields(Run) if field.name not in _COUNTED)
_DEFAULTS = {
    field.name: field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    for field in _FIELDS
    if not field.required
}
_IS_TEXT = {field.name: _HINTS[field.name] in _TEXTS or field.name == "status" for field in _FIELDS}
_REQUIRED = object()
_PLAN = tuple((name, is_text, _DEFAULTS.get(name, _REQUIRED)) for name, is_text in _IS_TEXT.items())
_values = attrgetter(*_IS_TEXT)
_WHOLE = Annotated[int, msgspec.Meta(ge=-MAX, le=MAX)]
_WITHIN = {int: _WHOLE, int | None: _WHOLE | None}
"""The types of fields whose stored values have a bound."""
_DECODERS = {
    name: msgspec.json.Decoder(_WITHIN.get(_HINTS[name], _HINTS[name]))
    for name, is_text in _IS_TEXT.items()
    if not is_text
}
_STATUSES = frozenset(_HINTS["status"].__args__)


def _text(value: object) -> str:
    if type(value) is not str:
        raise ValueError("it contains bytes that are not valid UTF-8")
    return value


_READERS: dict[str, Callable[[Any], Any]] = {
    name: _text if is_text else _DECODERS[name].decode for name, is_text in _IS_TEXT.items()
}

read_event = msgspec.json.Decoder(RunEvent).decode
read_worker = msgspec.json.Decoder(WorkerRecord).decode
read_terms = msgspec.json.Decoder(WorkflowLimits).decode
_INTEGERS = msgspec.json.Decoder(int)


class _StoredWriteHistory(WriteHistory, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    empty: bool = False


_past = msgspec.json.Decoder(_StoredWriteHistory)


def text(value: Any) -> str:
    """Anything as JSON."""
    return _json.encode(value).decode()


def fields_of(run: Run) -> dict[str, str]:
    """The fields of a run's hash."""
    return {
        name: value if is_text else text(value)
        for (name, is_text, default), value in zip(_PLAN, _values(run), strict=True)
        if value != default
    }


def changed_fields(old: Mapping[str, object], new: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """The fields of a run's hash to write, names and values alternating; and the names to remove.

    Fields of a newer version, which this version does not know, stay.
    """
    put = [part for name, value in new.items() if old.get(name) != value for part in (name, value)]
    return put, [name for name in old if name not in new and name in _IS_TEXT]


def run_of(id: str, stored: Mapping[str, str], length: int, posted: int) -> Run:
    """The run of a hash. Raises `RecordUnreadable`."""
    try:
        values: dict[str, Any] = {name: _READERS[name](value) for name, value in stored.items() if name in _READERS}
        run = Run(id=id, length=length, posted=posted, **values)
    except (KeyError, TypeError, ValueError, msgspec.MsgspecError) as error:
        raise unreadable("run", id, str(error)) from error
    if run.status not in _STATUSES:
        raise unreadable("run", id, f"its status is {run.status!r}")
    return run


def unreadable(what: str, name: str, why: str) -> RecordUnreadable:
    """The error for a stored record that cannot be read."""
    return RecordUnreadable(
        f"the stored {what} {name!r} cannot be read ({why}). It was left untouched. It may be damaged: inspect it by "
        "hand.",
        key=name,
    )


def slot_of(key: str, version: str | None, value: str | None, past: str | None) -> Slot | None:
    """The slot of a hash; None: there is none."""
    if version is None and past is None:
        return None
    try:
        known = _past.decode(past or "{}")
        number = _INTEGERS.decode(version or "0")
    except msgspec.MsgspecError as error:
        raise unreadable("state", key, str(error)) from error
    rest = WriteHistory(known.last, known.writers, known.forgotten, known.reserved_by, known.reserved_until)
    return Slot(number, None if known.empty else value, rest)


def slot_fields(slot: Slot) -> tuple[str, ...]:
    """The fields of a slot's hash, for one HSET; the field `past` shows whether there is a value."""
    past = msgspec.structs.asdict(slot.past)
    stored = _StoredWriteHistory(**past, empty=slot.value is None)
    return "version", str(slot.version), "past", text(stored), "value", slot.value or ""


def check_texts(*values: object) -> None:
    """Raise for values that are not text, or cannot be encoded as UTF-8."""
    for value in values:
        if type(value) is not str:
            raise TypeError(f"{value!r:.50} is not str")
        if not value.isascii():
            value.encode()


def check_run(run: Run, stored: Mapping[str, str]) -> None:
    """Raise for a run that could not be stored as these fields, or could not be read again."""
    for number in (run.created_at, run.due_at or 0, run.fence, run.arrival, run.priority, run.started_at or 0):
        score(number)
    for number, _ in run.locks:
        score(number)
    check_texts(run.id, run.result or "", run.request, run.last, run.key, run.parent, run.root)
    run_of(run.id, stored, 0, 0)


def check_record(record: LockRecord) -> None:
    """Likewise for the record of a lock. Its fence and version come from the rule, which continues the stored ones."""
    for number in (record.permits, record.due_at or 0, record.closed_until):
        score(number)
    ends: tuple[Holder | Waiter | Tombstone, ...] = (*record.holders, *record.waiters, *record.tombstones)
    for one in ends:
        score(one.expires_at or 0)
        score(one.ttl or 0)
    decode("", encode(record))


def check_options(terms: WorkflowLimits) -> None:
    """Likewise for the limits of a workflow."""
    for limit in terms.limits:
        for number in (limit.max, limit.per, limit.max_queue or 0):
            score(number)
        if limit.per and limit.max < 1:
            raise OverflowError(f"a limit of {limit.max} starts in a span cannot be stored")
    read_terms(text(terms))


def check_slot(address: Address, slot: Slot) -> None:
    """Likewise for a state slot."""
    score(slot.version)
    check_texts(*address, slot.value or "", slot.past.last)


def ordinal(number: int) -> str:
    """Seventeen digits, whose byte order is the order of the numbers.

    >>> ordinal(-2) < ordinal(-1) < ordinal(0) < ordinal(7) < ordinal(10)
    True
    """
    return f"0{MAX + number:016d}" if number < 0 else f"1{number:016d}"


def number_of(digits: str) -> int:
    """The number of an ordinal.

    >>> number_of(ordinal(-7)), number_of(ordinal(7))
    (-7, 7)
    """
    number = int(digits[1:])
    return number - MAX if digits[0] == "0" else number


def queue_member(rank: int, arrival: int, run: str) -> str:
    """A run in the queue of a limit; the byte order of members is the order of the queue."""
    return f"{ordinal(rank)} {ordinal(arrival)} {run}"


def queue_place(member: str) -> tuple[int, int, str]:
    """The rank, arrival and id of a member.

    >>> queue_place(queue_member(-3, 12, "a b"))
    (-3, 12, 'a b')
    """
    return number_of(member[:17]), number_of(member[18:35]), member[36:]


def score(number: int) -> str:
    """A number as the score of a sorted set. Raises `OverflowError` where a double would not represent it exactly."""
    if type(number) is not int or abs(number) > MAX:
        raise OverflowError(f"{number!r} cannot be stored: only whole numbers up to {MAX} can")
    return str(number)
