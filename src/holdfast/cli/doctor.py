"""`holdfast doctor`: whether the store is in order, and what to do where it is not.

It looks and changes nothing. What only the store can know it asks the store (`Store.diagnose`); what can be
seen in the records (a clock that was set back, waiters that are dead, records that nobody can read) is
checked here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import click
from rich.table import Table

from .. import Client
from ..commands import ListedLock, ListLocks, LockPage
from ..errors import StoreError, StoreNotInstalled
from ..platform import host_clock
from ..rules.lock_record import LockRecord
from ..runtime.flows import SIGNS_OF_LIFE, Flow, send
from ..runtime.runners import run
from ..stores import redacted
from ..stores.contract import Finding, Level
from ..validation import MICROSECONDS
from .exit_codes import FAILED
from .options import Settings, common, opened, pass_settings
from .output import console, length, say, shown, tell

EARLIEST = 1_735_689_600 * MICROSECONDS
"""The first of January 2025: a clock that shows less was never set."""
TOLERANCE = 1 * MICROSECONDS
"""Between the reading of the clock and of the records others go on; tokens may run ahead by a little, too."""
APART = 5 * MICROSECONDS
"""How far the store's clock and this host's may be apart before it is worth a word."""
NAMED = 5
"""How many are named in one finding."""

_STYLES: dict[Level, str] = {"ok": "green", "warning": "yellow", "problem": "bold red"}


@click.command()
@common
@pass_settings
@click.pass_context
def doctor(context: click.Context, settings: Settings) -> None:
    """Check the store: schema, clock, waiters, durability. Exits with 1 if there is a problem."""
    findings = tuple(_examined(settings))
    worst = _worst(findings)
    if settings.json:
        url = redacted(settings.address)
        tell({"url": url, "namespace": settings.namespace, "level": worst, "findings": findings})
    else:
        _show(findings, worst)
    context.exit(FAILED if worst == "problem" else 0)


def _examined(settings: Settings) -> Iterator[Finding]:
    """Every finding; a store that cannot be looked at is one of them."""
    try:
        with opened(settings) as hf:
            yield Finding(check="store", level="ok", detail=f"{hf.url}, namespace {hf.namespace}")
            yield from hf.runtime.store.diagnose()
            page = run(_everything(), hf.runtime.batchers)
            for check in _CHECKS:
                yield check(hf, page)
    except StoreNotInstalled:
        raise
    except StoreError as error:
        yield Finding(
            check="store", level="problem", detail=str(error), advice="Without the store nothing more can be checked."
        )


def _everything() -> Flow[LockPage]:
    """All records of the namespace, idle ones too, as of the time of the last page."""
    items: list[ListedLock] = []
    after: str | None = ""
    while True:
        page, _ = yield from send(ListLocks(after=after or ""), role="queries")
        assert isinstance(page, LockPage)  # noqa: S101  (the command's only answer)
        items += page.items
        if page.next is None:
            return LockPage(items=tuple(items), next=None, now=page.now)
        after = page.next


def _clock(hf: Client, page: LockPage) -> Finding:
    """Whether the store's clock can be believed."""
    host = host_clock()
    if page.now < EARLIEST:
        return Finding(
            check="clock",
            level="problem",
            detail=f"the store's clock was never set: it shows {page.now / MICROSECONDS:.0f} seconds since 1970",
            advice="Set it (NTP) before locks are used: tokens follow the clock.",
        )
    if not hf.runtime.store.capabilities.server_clock:
        return Finding(
            check="clock", level="ok", detail="the store's clock is this host's clock; there is no other to compare"
        )
    if abs(page.now - host) > APART:
        return Finding(
            check="clock",
            level="warning",
            detail=f"the store's clock and this host's are {length(abs(page.now - host) / MICROSECONDS)} apart",
            advice="Leases do not rest on it, but times in logs do not match. Set both by NTP.",
        )
    return Finding(check="clock", level="ok", detail="the store's clock and this host's agree")


def _clock_set_back(_hf: Client, page: LockPage) -> Finding:
    """Whether something in the records happened in the clock's future."""
    ahead = {
        item.key: _newest(item.record) - page.now
        for item in page.items
        if item.record is not None and _newest(item.record) > page.now + TOLERANCE
    }
    if not ahead:
        return Finding(check="clock_set_back", level="ok", detail="no record is ahead of the store's clock")
    return Finding(
        check="clock_set_back",
        level="problem",
        detail=f"the clock was set back by {length(max(ahead.values()) / MICROSECONDS)} or more: "
        f"{len(ahead)} records are ahead of it ({_some(sorted(ahead))})",
        advice="Tokens of these keys go on rising, but a key whose record is gone may issue lower ones than before, "
        "which its fences refuse. Set the clock right (NTP).",
    )


def _newest(record: LockRecord) -> int:
    """The latest moment that the record knows of. A token is one, too: it never is behind the clock."""
    return max(
        record.fence,
        *(holder.since for holder in record.holders),
        *(waiter.since for waiter in record.waiters),
        0 if record.forced is None else record.forced.at,
    )


def _dead_waiters(_hf: Client, page: LockPage) -> Finding:
    """Who has missed two signs of life: with three within the time of a place, less than a third of it is left."""
    silent = [
        f"{item.key}: {waiter.label}, its place ends in {length((waiter.expires_at - page.now) / MICROSECONDS)}"
        for item in page.items
        if item.record is not None
        for waiter in item.record.waiters
        if waiter.ttl is not None
        and waiter.expires_at is not None
        and (waiter.expires_at - page.now) * SIGNS_OF_LIFE < waiter.ttl
    ]
    if not silent:
        waiting = sum(item.record.waiting for item in page.items if item.record is not None)
        return Finding(check="dead_waiters", level="ok", detail=f"{waiting} waiting, all of them show signs of life")
    return Finding(
        check="dead_waiters",
        level="warning",
        detail=f"{len(silent)} waiters have missed two signs of life ({_some(silent)})",
        advice="A dead one loses its place by itself. One that is seen here again and again is starved or stopped: "
        "look at its process.",
    )


def _unreadable(_hf: Client, page: LockPage) -> Finding:
    """Which records this version cannot read."""
    broken = [item.key for item in page.items if item.error]
    if not broken:
        return Finding(check="records", level="ok", detail=f"all {len(page.items)} can be read")
    return Finding(
        check="records",
        level="problem",
        detail=f"{len(broken)} of {len(page.items)} cannot be read ({_some(broken)}): these locks are refused",
        advice="They come from a newer version, or are damaged. Upgrade Holdfast, or see 'holdfast locks list'.",
    )


_CHECKS: tuple[Callable[[Client, LockPage], Finding], ...] = (_clock, _clock_set_back, _dead_waiters, _unreadable)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return "; ".join(names[:NAMED]) + more


def _worst(findings: Sequence[Finding]) -> Level:
    order: tuple[Level, ...] = ("ok", "warning", "problem")
    return max((finding.level for finding in findings), key=order.index)


def _show(findings: Sequence[Finding], worst: Level) -> None:
    table = Table.grid(padding=(0, 2))
    for _ in range(2):
        table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        table.add_row(shown(finding.level, _STYLES[finding.level]), shown(finding.check), shown(finding.detail))
        if finding.advice:
            table.add_row("", "", shown(f"-> {finding.advice}", "italic"))
    console().print(table)
    words = {"ok": "All is well.", "warning": "It works, but look at the warnings.", "problem": "There is a problem."}
    say(words[worst])
