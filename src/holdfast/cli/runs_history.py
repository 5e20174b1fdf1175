"""The journal of a run, as entries that people and programs read: its history and its unread signals."""

from __future__ import annotations

import json
from typing import Any

from ..rules.runs.cancel_reasons import reason_in
from ..rules.runs.outcomes import Claim
from ..rules.runs.record import RunEvent
from ..workflow import journal as j
from .runs_reading import time_of


def history_of(claim: Claim) -> list[dict[str, Any]]:  # noqa: C901, PLR0912, PLR0915  (a case for each kind of entry)
    """The entries of the journal after the input."""
    events = {event.number: event for event in claim.events}
    keys: dict[int, str] = {}  # the keys of the acquired locks, by the number of the request
    found: list[dict[str, Any]] = []
    for text in claim.entries[1:]:
        entry = j.decode_entry(text)
        name, value = "", None
        match entry:
            case j.Begun():
                kind = "begun"
            case j.StepDone():
                kind, name, value = "step", entry.id, stored_value(bytes(entry.value).decode())
            case j.StepLost():
                kind, name, value = "failed", entry.id, _failure(entry.error, entry.attempts)
            case j.Attempted():
                kind, name, value = "attempt", entry.id, _failure(entry.error, entry.attempts)
            case j.TimerEnded():
                kind, name = "timer", str(entry.number)
            case j.Signalled():
                kind, _, name = entry.id.partition(":")
                value = stored_value(events[entry.event].payload) if entry.event in events else None
            case j.Unread():
                kind, name = "unread", entry.id.partition(":")[2]
            case j.Replied():
                kind, name, value = _reply(entry, events)
            case j.ApprovalAsked():
                kind, name, value = "asks", entry.id, stored_value(entry.data)
            case j.ChildEnded():
                kind, name = "child", entry.id
                value = stored_value(events[entry.event].payload) if entry.event in events else None
            case j.CancelAsked():
                kind, name = "cancel", "requested" if entry.event else "timeout of the workflow"
                value = (reason_in(events[entry.event].payload) or None) if entry.event in events else None
            case j.LockGranted():
                kind, name, value = "lock", entry.key, {"token": entry.token}
                keys[entry.number] = entry.key
            case j.LockRefused():
                kind, name, value = "no lock", str(entry.number), f"{entry.why}: {entry.detail}"
            case j.LockLost():
                kind, name = "lost", keys.get(entry.number, "")
            case j.LockGiven():
                kind, name = "given", keys.get(entry.number, "")
            case j.Left():
                kind, name = "left", ", ".join(entry.children)
            case j.BegunAgain():
                kind, value = "again", _failure(entry.error, None)
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
        found.append({"at": time_of(entry.at), "kind": kind, "name": name, "value": value})
    return found


def _reply(entry: j.Replied, events: dict[int, RunEvent]) -> tuple[str, str, Any]:
    name = events[entry.event].name if entry.event in events else ""
    return ("refused", name, entry.answer) if entry.refused else ("replied", name, stored_value(entry.answer))


def origin_of(claim: Claim) -> str | None:
    """Of which run this one is a fork; None: of none."""
    entry = j.decode_entry(claim.entries[1]) if len(claim.entries) > 1 else None
    if not isinstance(entry, j.Forked):
        return None
    return f"forked from {entry.origin}" + (f" at the step {entry.step}" if entry.step else "")


def unread_signals(claim: Claim) -> list[dict[str, Any]]:
    """The signals that the workflow has not read; a new attempt of the workflow can read all of them again."""
    read: set[int] = set()
    for text in claim.entries[1:]:
        entry = j.decode_entry(text)
        if isinstance(entry, j.BegunAgain):
            read.clear()
        elif isinstance(entry, j.Signalled):
            read.add(entry.event)
    return [
        {"at": time_of(event.at), "name": event.name, "payload": stored_value(event.payload)}
        for event in claim.events
        if event.kind in ("signal", "update") and event.number not in read
    ]


def carried_locks(claim: Claim) -> set[str]:
    """The keys of the locks that the run has kept from an earlier generation, and that this one has not asked for."""
    continued = j.continued_entry(claim.entries)
    if continued is None:
        return set()
    entries = [j.decode_entry(text) for text in claim.entries[2:]]
    asked = {entry.number for entry in entries if isinstance(entry, j.LockGranted)}
    held = {number for number, _ in claim.run.locks}
    return {lock.key for lock in continued.locks if lock.number in held - asked}


def stored_value(text: str) -> Any:
    """A stored value; text that is not JSON is returned as it is."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _failure(error: j.Failure, attempts: int | None) -> dict[str, Any]:
    described: dict[str, Any] = {"type": error.type, "message": error.message}
    return described if attempts is None else {**described, "attempts": attempts}
