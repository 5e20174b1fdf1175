"""Looking at locks again and again: a table that redraws itself, or a line for each change.

A change is somebody else holding, waiting or leaving; that time passes, or that a lease was renewed, is none.
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
from .output import console, lock_document, lock_table, say, shown, tell, who

SOONEST = 0.05
"""Seconds: nobody sees more, and the store has other work."""


def watch_screen(hf: Client, prefix: str, every: float, lasting: float | None) -> None:
    """Redraw a table on the terminal."""
    with Live(console=console(), auto_refresh=False) as live:
        for found in _looks(hf, prefix, every, lasting):
            clock = datetime.now(UTC).astimezone().strftime("%H:%M:%S")
            count = "1 lock" if len(found) == 1 else f"{len(found)} locks"
            foot = shown(f"{clock}  {count} in {hf.url}, namespace {hf.namespace}; Ctrl-C ends", "dim")
            live.update(Group(lock_table(found), foot), refresh=True)


def watch_changes(hf: Client, prefix: str, every: float, lasting: float | None, *, as_json: bool) -> None:
    """Write a line for each change, beginning with what is there."""
    before: dict[str, LockInfo] = {}
    for found in _looks(hf, prefix, every, lasting):
        now = {info.key: info for info in found}
        for key in sorted({*before, *now}):
            change = _change(before.get(key), now.get(key))
            if change:
                _write(change, key, now.get(key), as_json=as_json)
        before = now


def _looks(hf: Client, prefix: str, every: float, lasting: float | None) -> Iterator[list[LockInfo]]:
    started = time.monotonic()
    while True:
        yield hf.locks.list(prefix)
        pause = max(SOONEST, every)
        if lasting is not None:
            rest = started + lasting - time.monotonic()
            if rest <= 0:
                return
            pause = min(pause, rest)
        time.sleep(pause)


def _change(before: LockInfo | None, now: LockInfo | None) -> str:
    if before is None:
        return "appeared"
    if now is None:
        return "gone"
    return "" if _essence(before) == _essence(now) else "changed"


def _essence(info: LockInfo) -> tuple[Any, ...]:
    """What makes a lock another one for those who watch: everything but the time."""
    return (
        info.kind,
        info.permits,
        [(holder.token, holder.offered, who(holder)) for holder in info.holders],
        [(waiter.since, who(waiter)) for waiter in info.waiters],
        info.waiting,
        info.forced,
        info.error,
    )


def _write(change: str, key: str, info: LockInfo | None, *, as_json: bool) -> None:
    at = datetime.now(UTC)
    if as_json:
        tell({"at": at, "change": change, "key": key, "lock": None if info is None else lock_document(info)})
        return
    say(f"{at.strftime('%H:%M:%S')} UTC  {key}  {'gone' if info is None else _words(info)}")


def _words(info: LockInfo) -> str:
    if info.error:
        return info.error
    holders = ", ".join(who(holder) + (" (offered)" if holder.offered else "") for holder in info.holders)
    waiters = ", ".join(who(waiter) for waiter in info.waiters)
    if info.waiting > len(info.waiters):
        waiters += f" and {info.waiting - len(info.waiters)} more runs"
    return f"held by {holders or 'nobody'}" + (f"; waiting: {waiters}" if waiters else "")
