"""The journal of a run as documents for people and programs: its history and its unread signals."""

from __future__ import annotations

from typing import Any

from ..rules.runs.outcomes import Claim
from ..validation import time_of
from ..workflow import journal as j
from ..workflow.entries import RunEntry, entries_of, stored_value


def history_of(claim: Claim) -> list[dict[str, Any]]:
    """The entries of the journal after the input."""
    return [
        {"at": entry.at, "kind": entry.kind, "name": entry.name, "value": _value(entry)} for entry in entries_of(claim)
    ]


def _value(entry: RunEntry) -> Any:
    if entry.error is None:
        return entry.value
    described: dict[str, Any] = {"type": entry.error.type, "message": entry.error.message}
    return described if entry.attempts is None else {**described, "attempts": entry.attempts}


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
