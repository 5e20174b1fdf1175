"""`holdfast doctor`: checks the store, and prints how to fix each problem.

It reads the store and changes nothing. The checks of one kind of store are in that store (`Store.diagnose`). The checks
that need only the records (a clock that was set back, waiters that do not poll, records that cannot be read) are here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import click
from rich.text import Text

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
from .options import Settings, common, open_client, pass_settings
from .output import escaped_text, format_duration, print_json, print_line, print_rows

EARLIEST = 1_735_689_600 * MICROSECONDS
"""1 January 2025: a clock that shows an earlier time was never set."""
TOLERANCE = 1 * MICROSECONDS
"""Other clients write between the reading of the clock and of the records; tokens may be slightly ahead, too."""
MAX_DIFFERENCE = 5 * MICROSECONDS
"""A larger difference between the store's clock and this host's is reported."""
MAX_NAMED = 5
"""How many names one finding lists."""

_STYLES: dict[Level, str] = {"ok": "green", "warning": "yellow", "problem": "bold red"}
_SUMMARIES: dict[Level, str] = {
    "ok": "No problems found.",
    "warning": "The store works; read the warnings.",
    "problem": "There is a problem.",
}


@click.command()
@common
@pass_settings
@click.pass_context
def doctor(context: click.Context, settings: Settings) -> None:
    """Check the store: schema, clock, waiters, durability. Exits with 1 if there is a problem."""
    findings = tuple(_findings(settings))
    worst = _worst(findings)
    if settings.json:
        url = redacted(settings.address)
        print_json({"url": url, "namespace": settings.namespace, "level": worst, "findings": findings})
    else:
        _show(findings, worst)
    context.exit(FAILED if worst == "problem" else 0)


def _findings(settings: Settings) -> Iterator[Finding]:
    """Every finding; that a store cannot be read is one of them."""
    try:
        with open_client(settings) as hf:
            yield Finding(check="store", level="ok", detail=f"{hf.url}, namespace {hf.namespace}")
            known = hf.runtime.store.diagnose()
            yield from known
            page = run(_all_records(), hf.runtime.batchers)
            made = {finding.check for finding in known}
            yield from (finding for finding in (check(hf, page) for check in _CHECKS) if finding.check not in made)
    except StoreNotInstalled:
        raise
    except StoreError as error:
        yield Finding(
            check="store", level="problem", detail=str(error), advice="The other checks need the store: fix this first."
        )


def _all_records() -> Flow[LockPage]:
    """All records of the namespace, unused ones too, with the time of the last page."""
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
    """Whether the store's clock was set, and agrees with this host's."""
    difference = abs(page.now - host_clock())
    if page.now < EARLIEST:
        return Finding(
            check="clock",
            level="problem",
            detail=f"the store's clock was never set: it shows {page.now / MICROSECONDS:.0f} seconds since 1970",
            advice="Set the clock (NTP) before locks are used: tokens follow it.",
        )
    if not hf.runtime.store.capabilities.server_clock:
        return Finding(
            check="clock", level="ok", detail="the store's clock is this host's clock: there is nothing to compare"
        )
    if difference > MAX_DIFFERENCE:
        return Finding(
            check="clock",
            level="warning",
            detail=f"the store's clock and this host's differ by {format_duration(difference / MICROSECONDS)}",
            advice="Leases do not depend on it, but times in logs do not match. Set both clocks by NTP.",
        )
    return Finding(check="clock", level="ok", detail="the store's clock and this host's agree")


def _clock_set_back(_hf: Client, page: LockPage) -> Finding:
    """Whether a record has a time in the future."""
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
        detail=f"the clock was set back by {format_duration(max(ahead.values()) / MICROSECONDS)} or more: "
        f"{len(ahead)} records are ahead of it ({_some(sorted(ahead))})",
        advice="Tokens of these keys still increase. A key whose record was removed may get lower tokens than before, "
        "and fences refuse those. Correct the clock (NTP).",
    )


def _newest(record: LockRecord) -> int:
    """The latest time in the record. A token is a time, too: it is never behind the clock."""
    return max(
        record.fence,
        *(holder.since for holder in record.holders),
        *(waiter.since for waiter in record.waiters),
        0 if record.forced is None else record.forced.at,
    )


def _dead_waiters(_hf: Client, page: LockPage) -> Finding:
    """Waiters that have missed two of the three polls within the time for which a position is kept."""
    silent = [
        f"{item.key}: {waiter.label}, kept for {format_duration((waiter.expires_at - page.now) / MICROSECONDS)} more"
        for item in page.items
        if item.record is not None
        for waiter in item.record.waiters
        if waiter.ttl is not None
        and waiter.expires_at is not None
        and (waiter.expires_at - page.now) * SIGNS_OF_LIFE < waiter.ttl
    ]
    if not silent:
        waiting = sum(item.record.waiting for item in page.items if item.record is not None)
        return Finding(check="dead_waiters", level="ok", detail=f"{waiting} waiting, and all of them poll")
    return Finding(
        check="dead_waiters",
        level="warning",
        detail=f"{len(silent)} waiters have missed two polls ({_some(silent)})",
        advice="A crashed waiter loses its position automatically. A waiter that is reported repeatedly is stopped or "
        "gets no CPU time: inspect its process.",
    )


def _unreadable(_hf: Client, page: LockPage) -> Finding:
    """Records that this version cannot read."""
    broken = [item.key for item in page.items if item.error]
    if not broken:
        return Finding(check="records", level="ok", detail=f"all {len(page.items)} can be read")
    return Finding(
        check="records",
        level="problem",
        detail=f"{len(broken)} of {len(page.items)} cannot be read ({_some(broken)}): these locks are refused",
        advice="A newer version wrote them, or they are damaged. Upgrade Holdfast, or see 'holdfast locks list'.",
    )


def _blocked_runs(hf: Client, _page: LockPage) -> Finding:
    """Runs that no code that was tried can continue."""
    if not hf.runtime.store.capabilities.workflows:
        return Finding(check="blocked_runs", level="ok", detail="this store does not run workflows")
    found = hf.runs.list(status="blocked")
    if not found.runs:
        return Finding(check="blocked_runs", level="ok", detail="no run is blocked")
    count = len(found.runs)
    many = "1 run is blocked" if count == 1 else f"{count}{' or more' if found.next else ''} runs are blocked"
    return Finding(
        check="blocked_runs",
        level="warning",
        detail=f"{many} ({_some([run.id for run in found.runs])}): no code that was tried can "
        "continue. Locks and places in limits are kept",
        advice="See 'holdfast runs show RUN' for the reason. Deploy code that fits their histories, or give them up "
        "with 'holdfast runs fail RUN --reason ...'.",
    )


_CHECKS: tuple[Callable[[Client, LockPage], Finding], ...] = (
    _clock,
    _clock_set_back,
    _dead_waiters,
    _unreadable,
    _blocked_runs,
)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return "; ".join(names[:MAX_NAMED]) + more


def _worst(findings: Sequence[Finding]) -> Level:
    order: tuple[Level, ...] = ("ok", "warning", "problem")
    return max((finding.level for finding in findings), key=order.index)


def _show(findings: Sequence[Finding], worst: Level) -> None:
    rows = []
    for finding in findings:
        level = escaped_text(finding.level, _STYLES[finding.level])
        rows.append([level, escaped_text(finding.check), escaped_text(finding.detail)])
        if finding.advice:
            rows.append([Text(), Text(), escaped_text(f"-> {finding.advice}", "italic")])
    print_rows(rows, unfolded=2)
    print_line(_SUMMARIES[worst])
