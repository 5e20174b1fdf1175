"""The journal of a run as a list that people and programs read: `runs.history(run_id)`, and what `runs show` prints.

The journal has what was delivered to the code, in order, each at the time of its delivery. When a step has begun is not
recorded: only its end is, and the ends of its failed attempts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Literal

import msgspec

from ..rules.runs.cancel_reasons import reason_in
from ..rules.runs.outcomes import Claim
from ..rules.runs.record import RunEvent
from ..runtime.flows import Flow
from ..validation import time_of
from . import journal as j
from .queries import RunQueries

EntryKind = Literal[
    "begun", "step", "failed", "attempt", "timer", "signal", "update", "approval", "unread", "replied", "refused",
    "approval requested", "child", "cancel", "lock", "lock refused", "lock lost", "lock released", "children left",
    "attempt failed", "attempt begun", "continued", "patch", "streamed", "forked",
]  # fmt: skip


class RunEntry(msgspec.Struct, frozen=True, kw_only=True, repr_omit_defaults=True):
    """An entry of the history of a run: what it received or did, and when this was recorded.

    `number` is its place, from 1 on. `name` is the id of a step with its count (`charge#2`), the name of a signal, the
    id of a child or the key of a lock. `value` is the result of a step or of a child, the payload of a signal, or what
    else is known. `error` is why a step or an attempt has failed; `attempts` is how often a step was tried.
    `arrived_at` is when an event was put into the inbox of the run: a signal, the end of a child, a cancel.
    """

    number: int
    at: datetime
    kind: EntryKind
    name: str = ""
    value: Any = None
    error: j.Failure | None = None
    attempts: int | None = None
    arrived_at: datetime | None = None


def history(queries: RunQueries, run_id: str) -> Flow[tuple[RunEntry, ...]]:
    """Read the history of a run, or raise `UnknownRun`."""
    claim, _ = yield from queries.see(run_id, history=True)
    return entries_of(claim)


def entries_of(claim: Claim) -> tuple[RunEntry, ...]:
    """The entries of a journal after the input."""
    return tuple(_entries(claim))


def _entries(claim: Claim) -> Iterator[RunEntry]:  # noqa: C901, PLR0912, PLR0915  (a case for each kind of entry)
    events = {event.number: event for event in claim.events}
    keys: dict[int, str] = {}  # the keys of the acquired locks, by the number of the request
    tries: dict[str, int] = {}  # how often each step has failed, in this attempt of the workflow
    for number, text in enumerate(claim.entries[1:], 1):
        entry = j.decode_entry(text)
        kind: Any
        name, value, error, attempts = "", None, None, None
        event = events.get(getattr(entry, "event", 0))
        match entry:
            case j.Begun():
                kind = "begun"
            case j.StepDone():
                kind, name, value = "step", entry.id, stored_value(bytes(entry.value).decode())
                attempts = tries.pop(entry.id, 0) + 1
            case j.StepLost():
                kind, name, error, attempts = "failed", entry.id, entry.error, entry.attempts
            case j.Attempted():
                kind, name, error, attempts = "attempt", entry.id, entry.error, entry.attempts
                tries[entry.id] = entry.attempts
            case j.TimerEnded():
                kind, name = "timer", str(entry.number)
            case j.Signalled():
                kind, _, name = entry.id.partition(":")
                value = None if event is None else stored_value(event.payload)
            case j.Unread():
                kind, name = "unread", entry.id.partition(":")[2]
            case j.Replied():
                kind, name, value = _reply(entry, events)
            case j.ApprovalAsked():
                kind, name, value = "approval requested", entry.id, stored_value(entry.data)
            case j.ChildEnded():
                kind, name = "child", entry.id
                value = None if event is None else stored_value(event.payload)
            case j.CancelAsked():
                kind, name = "cancel", "requested" if entry.event else "timeout of the workflow"
                value = None if event is None else reason_in(event.payload) or None
            case j.LockGranted():
                kind, name, value = "lock", entry.key, {"token": entry.token}
                keys[entry.number] = entry.key
            case j.LockRefused():
                kind, name, value = "lock refused", str(entry.number), f"{entry.why}: {entry.detail}"
            case j.LockLost():
                kind, name = "lock lost", keys.get(entry.number, "")
            case j.LockGiven():
                kind, name = "lock released", keys.get(entry.number, "")
            case j.Left():
                kind, name = "children left", ", ".join(entry.children)
            case j.BegunAgain():
                kind, error = "attempt failed", entry.error
                tries.clear()
            case j.AttemptBegun():
                kind = "attempt begun"
            case j.Continued():
                kind, name = "continued", "the workflow asked for it" if entry.because == "asked" else "unread signals"
                value = [lock.key for lock in entry.locks] or None
            case j.Patched():
                kind, name = "patch", entry.name
            case j.Streamed():
                kind, name, value = "streamed", entry.name, {"items": entry.count}
            case j.Forked():
                kind, name, value = "forked", entry.origin, {"step": entry.step or None, "entries": entry.kept}
        arrived = None if event is None or not event.at else time_of(event.at)
        yield RunEntry(
            number=number,
            at=time_of(entry.at),
            kind=kind,
            name=name,
            value=value,
            error=error,
            attempts=attempts,
            arrived_at=arrived,
        )


def _reply(entry: j.Replied, events: dict[int, RunEvent]) -> tuple[str, str, Any]:
    name = events[entry.event].name if entry.event in events else ""
    return ("refused", name, entry.answer) if entry.refused else ("replied", name, stored_value(entry.answer))


def stored_value(text: str) -> Any:
    """A stored value; text that is not JSON is returned as it is."""
    try:
        return json.loads(text)
    except ValueError:
        return text
