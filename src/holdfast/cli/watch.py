"""Polling of locks for `holdfast locks watch`: a table that is redrawn, or a line for each change.

A change is a change of holders or waiters; the passing of time and the renewal of a lease are not.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from rich.console import Group
from rich.live import Live

from .. import Client
from ..locks import LockInfo
from .output import (
    LOCK_COLUMNS,
    as_table,
    console,
    escaped_text,
    format_caller,
    lock_document,
    lock_rows,
    print_json,
    print_line,
)

MIN_INTERVAL = 0.05
"""Seconds between two queries at least: people do not see more, and the store has other work."""


def watch_screen(hf: Client, prefix: str, every: float, lasting: float | None) -> None:
    """Redraw a table on the terminal."""
    with Live(console=console(), auto_refresh=False) as live:
        for found in _poll(hf, prefix, every, lasting):
            clock = datetime.now(UTC).astimezone().strftime("%H:%M:%S")
            count = "1 lock" if len(found) == 1 else f"{len(found)} locks"
            footer = escaped_text(f"{clock}  {count} in {hf.url}, namespace {hf.namespace}; Ctrl-C ends", "dim")
            live.update(Group(as_table(lock_rows(found), LOCK_COLUMNS), footer), refresh=True)


def watch_changes(hf: Client, prefix: str, every: float, lasting: float | None, *, as_json: bool) -> None:
    """Print a line for each change, beginning with the locks that exist."""
    before: dict[str, LockInfo] = {}
    for found in _poll(hf, prefix, every, lasting):
        now = {info.key: info for info in found}
        for key in sorted({*before, *now}):
            change = _change(before.get(key), now.get(key))
            if change:
                _print(change, key, now.get(key), as_json=as_json)
        before = now


def _poll(hf: Client, prefix: str, every: float, lasting: float | None) -> Iterator[list[LockInfo]]:
    started = time.monotonic()
    while True:
        yield hf.locks.list(prefix)
        pause = max(MIN_INTERVAL, every)
        if lasting is not None:
            remaining = started + lasting - time.monotonic()
            if remaining <= 0:
                return
            pause = min(pause, remaining)
        time.sleep(pause)


def _change(before: LockInfo | None, now: LockInfo | None) -> str:
    if before is None:
        return "appeared"
    if now is None:
        return "gone"
    return "" if _compared(before) == _compared(now) else "changed"


def _compared(info: LockInfo) -> tuple[Any, ...]:
    """The parts of a lock whose difference is a change: everything but times."""
    return (
        info.kind,
        info.permits,
        [(holder.token, holder.offered, format_caller(holder)) for holder in info.holders],
        [(waiter.since, format_caller(waiter)) for waiter in info.waiters],
        info.waiting,
        info.forced,
        info.error,
    )


def _print(change: str, key: str, info: LockInfo | None, *, as_json: bool) -> None:
    at = datetime.now(UTC)
    if as_json:
        print_json({"at": at, "change": change, "key": key, "lock": None if info is None else lock_document(info)})
        return
    described = "not held or waited for any more" if info is None else _describe(info)
    print_line(f"{at.strftime('%H:%M:%S')} UTC  {key}  {described}")


def _describe(info: LockInfo) -> str:
    if info.error:
        return info.error
    holders = ", ".join(format_caller(holder) + (" (offered)" if holder.offered else "") for holder in info.holders)
    waiters = ", ".join(format_caller(waiter) for waiter in info.waiters)
    if info.waiting > len(info.waiters):
        waiters += f" and {info.waiting - len(info.waiters)} more runs"
    return (f"held by {holders}" if holders else "not held") + (f"; waiting: {waiters}" if waiters else "")
