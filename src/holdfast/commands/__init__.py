"""Commands that stores execute, and their outcomes.

A command is a frozen value. Its docstring is its specification: what must hold before, what the outcomes are, and what
sending it again after a lost reply does ("Again: ..."). Commands about runs are in `commands.runs`.
"""

from __future__ import annotations

from .base import PAGE, Command, Failed
from .locks import (
    Abandon,
    Acquire,
    Cleanup,
    ForceRelease,
    Inspect,
    ListedLock,
    ListLocks,
    LockCommand,
    LockPage,
    PassOver,
    Release,
    Renew,
    Settle,
    SettleDue,
    Swept,
    Transfer,
    decide_all,
)
from .records import (
    ListDueRecords,
    ListedRecord,
    ListRecords,
    RecordCommand,
    RecordPage,
    RecordQuery,
    RecordsDue,
)
from .slots import ReadSlot, SlotCommand, SwapSlot

__all__ = [
    "PAGE",
    "READS",
    "Abandon",
    "Acquire",
    "Cleanup",
    "Command",
    "Failed",
    "ForceRelease",
    "Inspect",
    "ListDueRecords",
    "ListLocks",
    "ListRecords",
    "ListedLock",
    "ListedRecord",
    "LockCommand",
    "LockPage",
    "PassOver",
    "ReadSlot",
    "RecordCommand",
    "RecordPage",
    "RecordQuery",
    "RecordsDue",
    "Release",
    "Renew",
    "Settle",
    "SettleDue",
    "SlotCommand",
    "SwapSlot",
    "Swept",
    "Transfer",
    "decide_all",
]

READS: tuple[type[Command], ...] = (Inspect, ListLocks, ReadSlot, RecordQuery, ListRecords, ListDueRecords)
"""Commands that never write: a store may answer them without waiting for the write lock."""
