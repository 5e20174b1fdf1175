"""Native forms: which commands are sent to a statement of fast_path.sql, and how its answers are decoded.

A form accepts commands of exactly the type that it was written for, without fields that it does not know; it may
decline any of them, and then the rules decide. If several commands are about one key or run, none uses a form: the
rules keep their order.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import cache
from itertools import groupby
from typing import Any, NamedTuple

import msgspec

from ...commands import Acquire, Command, LockCommand, Release, Renew, SlotCommand
from ...commands.runs import RecordRun, StartRun
from ...rules.lock_outcomes import Granted, Outcome, Released, Renewed
from ...rules.runs import record as rule
from ...rules.runs.outcomes import Recorded, Started
from ...rules.runs.record import Continue, Finish, NewRun, Park
from .. import batch_cost
from ..native_fields import KnownFields
from .answers import encoded
from .functions import source
from .records import row_of
from .session import Rows, Statement
from .statements import placed

MOST_PARTS = 4
"""A batch that alternates between forms and rules more often than this is left to the rules from its second part on."""
MOST = 10**17
"""Numbers below this can be incremented safely."""

_OF_AN_END = re.compile(r"/\*end\*/.*?/\*\*/", re.DOTALL)
_PLAIN_RECORD = ("run", "fence", "at", "request", "seen", "entries")

_numbers = msgspec.json.Decoder(tuple[int, ...])
_watched = msgspec.json.Decoder(tuple[int, tuple[str, ...]])

KNOWN: dict[type[msgspec.Struct], frozenset[str]] = {
    Acquire: frozenset({"key", "id", "label", "kind", "permits", "ttl", "queue", "waiter_ttl", "listens"}),
    Renew: frozenset({"key", "id", "token", "ttl"}),
    Release: frozenset({"key", "id", "token"}),
    RecordRun: frozenset({"run", "fence", "at", "request", "entries", "seen", "then"}),
    Finish: frozenset({"status", "result"}),
    Park: frozenset({"due_at"}),
    StartRun: frozenset({"new", "worker"}),
    NewRun: frozenset(
        {"id", "type", "input", "request", "key", "root", "attributes", "code"}
    ),  # no child: its tree has a record
}
_known = KnownFields(KNOWN)


class Form(NamedTuple):
    """One statement, and how its commands are encoded and its answers decoded."""

    send: Callable[[Any], Sequence[Any] | None]
    """Encodes a command; None where a value has the wrong type."""
    values: Callable[[Sequence[Any], Collection[str]], tuple[str, bytes, *tuple[bytes, ...]]]
    """Returns the name of the statement, the encoded commands, and further parameters."""
    outcome: Callable[[Any, bytes], Outcome]
    """Decodes the outcome of a command."""


class Part(NamedTuple):
    """Some commands of a batch, by their indexes, and their form; None: the rules decide."""

    form: Form | None
    places: list[int]
    sent: list[Any]
    """The encoded commands."""


def _hold(command: Acquire | Renew | Release) -> Sequence[Any] | None:
    if not _texts(command.key, command.id):
        return None
    if isinstance(command, Acquire):
        if not _number(command.ttl) or not _number(command.permits) or command.permits < 1:
            return None
        return ("Acquire", command.key, command.id, None, command.ttl, command.kind, command.permits, command.label)
    if not _number(command.token):
        return None
    if isinstance(command, Renew):
        return ("Renew", command.key, command.id, command.token, command.ttl) if _number(command.ttl) else None
    return ("Release", command.key, command.id, command.token)


def _held(command: Acquire | Renew | Release, reply: bytes) -> Outcome:
    found = _numbers.decode(reply)
    if isinstance(command, Acquire):
        token, since, expires_at = found
        return Granted(token=token, floor=token, since=since, expires_at=expires_at)
    if isinstance(command, Renew):
        floor, expires_at = found
        return Renewed(floor=floor, expires_at=expires_at)
    return Released()


def _record(command: RecordRun) -> Sequence[Any] | None:
    numbers = (command.fence, command.at, command.seen)
    if not _texts(command.run, command.request, *command.entries) or not all(type(n) is int for n in numbers):
        return None
    then = command.then
    if isinstance(then, Continue) or (then is not None and not _known.cover(then)):
        return None
    sent = (command.run, command.fence, command.at, command.request, command.seen, command.entries)
    return sent if then is None else (*sent, _then(then))


def _then(then: Park | Finish) -> tuple[object, ...]:
    return ("finish", then.status, then.result) if isinstance(then, Finish) else ("park", then.due_at)


def _recorded(_: RecordRun, reply: bytes) -> Outcome:
    now, watchers = _watched.decode(reply)
    return Recorded(done=True, events=(), now=now, woken=watchers)


def _start(command: StartRun) -> Sequence[Any] | None:
    new, worker = command.new, command.worker
    texts = (new.id, new.type, new.input, new.request, new.key, new.parent, new.root, worker)
    if not worker or not _texts(*texts) or not _known.cover(new):
        return None
    row = row_of(rule.start(new, 0))
    return (new.id, new.type, row["workflow"], worker, new.key, new.parent, row["attributes"], row["rest"], new.input)


def _started(command: StartRun, reply: bytes) -> Outcome:
    now = int(reply)
    return Started(run=rule.start(command.new, now, command.worker), fresh=True, now=now)


def _to_hold(sent: Sequence[Any], _: Collection[str]) -> tuple[str, bytes]:
    return "hold", encoded(sent)


def _to_record(sent: Sequence[Any], local_channels: Collection[str]) -> tuple[str, bytes, *tuple[bytes, ...]]:
    ends = any(len(one) > len(_PLAIN_RECORD) and one[-1][0] == "finish" for one in sent)
    return ("end", encoded(sent), encoded(list(local_channels))) if ends else ("record", encoded(sent))


def _to_start(sent: Sequence[Any], _: Collection[str]) -> tuple[str, bytes, bytes]:
    inputs = {one[0]: (place, one[-1]) for place, one in enumerate(sent, 1)}
    return "start", encoded(sorted(one[:-1] for one in sent)), encoded(inputs)


_HOLD = Form(_hold, _to_hold, _held)
_RECORD = Form(_record, _to_record, _recorded)
_START = Form(_start, _to_start, _started)
_FORMS: dict[type[Command], Form] = {
    Acquire: _HOLD, Renew: _HOLD, Release: _HOLD, RecordRun: _RECORD, StartRun: _START,
}  # fmt: skip


@cache
def _texts_of_forms() -> dict[str, str]:
    """The statements by their names. Comments are not sent."""
    found: dict[str, str] = {}
    for part in source("fast_path.sql").split("-- form: ")[1:]:
        name, _, text = part.partition("\n")
        lines = (line for line in text.splitlines() if not line.startswith("--"))
        found[name] = "\n".join(lines).strip().removesuffix(";")
    found["end"] = found["record"].replace("/*end*/", "").replace("/**/", "")
    found["record"] = _OF_AN_END.sub("", found["record"])
    return found


def statement_named(name: str) -> str:
    """One of the forms, before the name of the schema is inserted."""
    return _texts_of_forms()[name]


def parts_of(commands: Sequence[Command], crowded: Collection[str]) -> list[Part]:
    """The commands in the order in which they are carried out, in as few parts as possible.

    Commands about keys that are `crowded` are left to the rules. Commands about locks and slots with different keys may
    be reordered; no other commands may.
    """
    forms, sent = _forms(commands, crowded)
    kinds = [isinstance(command, LockCommand | SlotCommand) for command in commands]
    parts: list[Part] = []
    for apart, block in groupby(range(len(commands)), kinds.__getitem__):
        places = list(block)
        if apart:
            places.sort(key=lambda place: forms[place] is None)
        for form, some in groupby(places, forms.__getitem__):
            here = list(some)
            if parts and parts[-1].form is form:
                parts[-1].places.extend(here)
            else:
                parts.append(Part(form, here, []))
    if len(parts) > MOST_PARTS:
        behind = sorted(place for part in parts[1:] for place in part.places)
        parts = [parts[0], Part(None, behind, [])]
    for part in parts:
        part.sent.extend(sent[place] for place in part.places)
    return [smaller for part in parts for smaller in _cut(part, commands)]


def _cut(part: Part, commands: Sequence[Command]) -> Iterator[Part]:
    """Divide a part so that no statement takes long; the executor divides parts for the rules."""
    form, places, sent = part
    if form is None:
        yield part
        return
    for some in batch_cost.parts_of([commands[place] for place in places]):
        yield Part(form, places[some.start : some.stop], sent[some.start : some.stop])


def _forms(commands: Sequence[Command], crowded: Collection[str]) -> tuple[list[Form | None], list[Any]]:
    """The form of each command, and the encoded command.

    If several commands are about one key or run, none has a form: the rules keep their order.
    """
    found = [_form_of(command) for command in commands]
    forms, sent = [form for form, _ in found], [one for _, one in found]
    if crowded:
        keys = [getattr(command, "key", "") for command in commands]
        forms = [None if form is None or key in crowded else form for form, key in zip(forms, keys, strict=True)]
    if len(commands) > 1 and any(forms):
        names = [_name_of(command) for command in commands]
        count = Counter(names)
        forms = [form if count[name] == 1 else None for form, name in zip(forms, names, strict=True)]
    return forms, sent


def _form_of(command: Command) -> tuple[Form | None, Sequence[Any] | None]:
    form = _FORMS.get(type(command))
    if form is None or not _known.cover(command):
        return None, None
    sent = form.send(command)
    return (None, None) if sent is None else (form, sent)


def _name_of(command: Command) -> tuple[str, str] | None:
    """The record that a command is about, if it is known."""
    if isinstance(command, LockCommand):
        return ("lock", command.key) if type(command.key) is str else None
    name = command.new.id if isinstance(command, StartRun) else getattr(command, "run", None)
    return ("run", name) if type(name) is str else None


def statement_for(
    part: Part, *, schema: str, namespace: bytes, at: bytes | None, local_channels: Collection[str]
) -> Statement:
    """The statement that carries out a part."""
    assert part.form is not None  # noqa: S101  (called only for parts with a form)
    name, first, *more = part.form.values(part.sent, local_channels)
    return Statement(placed(statement_named(name), schema), (namespace, first, at, *more))


def outcomes_of(part: Part, commands: Sequence[Command], rows: Rows) -> list[Outcome | None]:
    """The outcomes; None where the form has left a command to the rules."""
    outcomes: list[Outcome | None] = [None] * len(commands)
    assert part.form is not None  # noqa: S101
    for place, reply in rows:
        at = int(place or b"0") - 1
        outcomes[at] = part.form.outcome(commands[at], reply or b"")
    return outcomes


def _texts(*values: object) -> bool:
    return all(type(value) is str for value in values)


def _number(value: object) -> bool:
    return type(value) is int and 0 < value < MOST
