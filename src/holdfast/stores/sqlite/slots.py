"""State slots inside one SQLite transaction: read once, decided by the rules, written once.

Many writes of one slot in one batch cost one row read and one row written. The caller begins and ends the transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import msgspec

from ...commands import SlotCommand
from ...errors import RecordUnreadable
from ...rules.lock_outcomes import Outcome
from ...rules.slot import EMPTY_SLOT, Address, Slot, WriteHistory
from ..common import failed

LOAD = "SELECT version, value, past FROM slots WHERE namespace = ? AND scope = ? AND owner = ? AND key = ?"
SAVE = (
    "INSERT INTO slots (namespace, scope, owner, key, version, value, past) VALUES (?, ?, ?, ?, ?, ?, ?) "
    "ON CONFLICT (namespace, scope, owner, key) DO UPDATE SET "
    "version = excluded.version, value = excluded.value, past = excluded.past"
)

_encoder = msgspec.json.Encoder()
_past = msgspec.json.Decoder(WriteHistory)


def run_slots(
    db: sqlite3.Connection, namespace: str, now: int, commands: Sequence[SlotCommand]
) -> tuple[list[Outcome], bool]:
    """Answer the commands, in order, and return whether anything was written."""
    outcomes: list[Outcome] = []
    slots: dict[Address, Slot] = {}
    changed: set[Address] = set()
    for command in commands:
        try:
            address = command.address
            before = slots.get(address)
            if before is None:
                before = slots[address] = load_slot(db, namespace, address)
            after, outcome = command.apply(before, now)
            if after is not before:
                _encoder.encode(after)  # a command with text that no store can hold fails alone
                slots[address] = after
                changed.add(address)
        except sqlite3.Error:
            raise
        except Exception as error:  # a bad command fails alone
            outcome = failed(command, error)
        outcomes.append(outcome)
    for address in changed:
        save_slot(db, namespace, address, slots[address])
    return outcomes, bool(changed)


def save_slot(db: sqlite3.Connection, namespace: str, address: Address, slot: Slot) -> None:
    """Write a slot."""
    db.execute(SAVE, (namespace, *address, slot.version, slot.value, _encoder.encode(slot.past).decode()))


def load_slot(db: sqlite3.Connection, namespace: str, address: Address) -> Slot:
    """Read a slot."""
    found = db.execute(LOAD, (namespace, *address)).fetchone()
    if found is None:
        return EMPTY_SLOT
    version, value, past = found
    try:
        return Slot(version, value, _past.decode(past))
    except msgspec.MsgspecError as error:
        raise RecordUnreadable(
            f"the stored state {address[2]!r} cannot be read ({error}). It was left untouched. It may be damaged: "
            "inspect it by hand.",
            key=address[2],
        ) from error
