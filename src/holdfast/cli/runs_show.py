"""`holdfast runs list` and `holdfast runs show`: the commands that print runs.

Names, values and errors in a run come from applications, and are escaped like everything from the store.
"""

from __future__ import annotations

import json
import re
import sys
from datetime import UTC, datetime, timedelta
from typing import Any

import click

from ..errors import InvalidDuration, NonDeterminismError
from ..rules.runs import record as rule
from ..validation import MICROSECONDS, seconds
from ..workflow import HeartbeatInfo, RunInfo
from ..workflow.entries import stored_value
from ..workflow.journal import Failure
from .options import Settings, common, pass_settings
from .output import escaped_text, format_duration, format_time, format_token, print_json, print_line, print_rows
from .runs_history import carried_locks, history_of, origin_of, unread_signals
from .runs_reading import (
    RunSnapshot,
    Waits,
    blocked_at_limits,
    blocking_text,
    open_runs,
    pause_info,
    read_run,
    run_document,
    starts_at,
    type_text,
    waits_of,
    workers_for,
    workflow_text,
)

SHORT = 60
"""Characters of a value in a line of text."""
COLUMNS = ("RUN", "WORKFLOW", "STATUS", "CREATED", "FOR", "NOTE")
_STYLES = {"completed": "green", "failed": "bold red", "timed_out": "red", "cancelled": "yellow", "running": "cyan"}
_CAUSE = "\nThe above exception was the direct cause of the following exception:\n"
_TIME_FORMS = (
    "a date or time in UTC (2026-11-16, 2026-11-16T02:17, or 2026-11-16T02:17+01:00 with an offset), or how long ago "
    '(seconds, or "30 minutes", "2 hours", "1 day")'
)


# -- list -------------------------------------------------------------------------------------------------------


def _as_time(_context: click.Context, _option: click.Parameter, value: str | None) -> datetime | None:
    """Parse a date or time (in UTC unless it has an offset), or how long ago."""
    if value is None:
        return None
    try:
        if not re.match(r"\d{4}-", value):
            return datetime.now(UTC) - timedelta(seconds=seconds(value))
        when = datetime.fromisoformat(value)
    except (ValueError, OverflowError, InvalidDuration):
        raise click.BadParameter(f"{value!r} is not a time. Give {_TIME_FORMS}.") from None
    return when if when.tzinfo else when.replace(tzinfo=UTC)


def _as_attributes(_context: click.Context, _option: click.Parameter, value: tuple[str, ...]) -> dict[str, Any]:
    """Parse pairs NAME=VALUE; numbers, true and false are read as such, and quotes make them text."""
    found: dict[str, Any] = {}
    for pair in value:
        name, separator, text = pair.partition("=")
        if not name or not separator:
            raise click.BadParameter(f"{pair!r} is not NAME=VALUE.")
        try:
            read = json.loads(text)
        except ValueError:
            read = text
        found[name] = read if isinstance(read, str | int) else text
    return found


@click.command("list")
@click.option("--status", multiple=True, help="Only runs with this status; may be given several times.")
@click.option("--workflow", help="Only runs of this workflow.")
@click.option("--since", callback=_as_time, help="Only runs created since: a time in UTC, or how long ago ('2 hours').")
@click.option("--until", callback=_as_time, help="Only runs created before: a time in UTC, or how long ago.")
@click.option("--attribute", multiple=True, callback=_as_attributes, help="NAME=VALUE; may be given several times.")
@click.option("--prefix", default="", help="Only runs whose id begins with this text.")
@click.option("--limit", default=100, show_default=True, help="At most this many runs.")
@click.option("--after", help="Continue a list: the 'next' of the page before.")
@common
@pass_settings
def list_runs(
    settings: Settings,
    *,
    status: tuple[str, ...],
    workflow: str | None,
    since: datetime | None,
    until: datetime | None,
    attribute: dict[str, Any],
    prefix: str,
    limit: int,
    after: str | None,
) -> None:
    """List runs, the newest first."""
    with open_runs(settings) as hf:
        page = hf.runs.list(
            status=status or None,
            workflow=workflow,
            since=since,
            until=until,
            attributes=attribute,
            prefix=prefix,
            after=after,
            limit=limit,
        )
        if settings.json:
            print_json({"runs": [run_document(found) for found in page.runs], "next": page.next})
            return
        if page.runs:
            print_rows([_row(one) for one in page.runs], COLUMNS)
        elif status or workflow or since or until or attribute or prefix or after:
            print_line(f"No run in {hf.url}, namespace {hf.namespace}, matches these options.")
        else:
            print_line(f"There are no runs in {hf.url}, namespace {hf.namespace}.")
    if page.next is not None:
        print_line(f"There are more runs: --after {page.next}", err=True)


def _row(one: RunInfo) -> list[Any]:
    lasted = ((one.ended_at or datetime.now(UTC)) - one.created_at).total_seconds()
    return [
        escaped_text(one.id),
        escaped_text(workflow_text(one)),
        escaped_text(one.status, _STYLES.get(one.status, "")),
        escaped_text(format_time(one.created_at)),
        escaped_text(format_duration(max(0.0, lasted))),
        escaped_text(_note(one)),
    ]


def _note(one: RunInfo) -> str:
    if one.blocked is not None:
        note = " ".join(str(one.blocked.reason).split())
        return _short(note) if sys.stdout.isatty() else note
    if one.error is not None:
        note = " ".join(f"{one.error.type}: {one.error.message}".split())
        return _short(note) if sys.stdout.isatty() else note
    if one.starts_at is not None:
        return f"starts at {format_time(one.starts_at)}"
    if one.due_at is not None:
        return f"until {format_time(one.due_at)}"
    return ", ".join(f"{name}={value}" for name, value in one.attributes.items())


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= SHORT else f"{line[: SHORT - 1]}…"


# -- show -------------------------------------------------------------------------------------------------------


@click.command("show")
@click.argument("run_id", metavar="RUN")
@common
@pass_settings
def show_run(settings: Settings, run_id: str) -> None:
    """Show one run: its status, its worker, its history, its unread signals, and its error."""
    with open_runs(settings) as hf:
        found = read_run(hf, run_id, history=True)
        info, claim = found.info, found.claim
        waits = waits_of(hf, claim.run)
        workers = workers_for(hf, claim.run.type) if info.living else []
        ahead = blocked_at_limits(hf, claim.run) if info.status == "queued" else []
    history, unread = history_of(claim), unread_signals(claim)
    if settings.json:
        more = {"input": stored_value(claim.entries[0]), "history": history, "signals": unread, "workers": workers}
        print_json({**run_document(info), **more})
        return
    _show_status(found)
    for name in ahead:
        print_line(f"  {name}, which its limits count, is blocked: see 'holdfast runs show {name}'")
    _show_details(found, waits)
    if info.living and info.holder is None and not workers:
        kind = type_text(claim.run.type)
        print_line(f"  no living worker has the workflow {kind} registered: the run waits until one is started")
    _show_history(history)
    for one in unread:
        payload = _short(json.dumps(one["payload"], ensure_ascii=False))
        print_line(f"  unread signal: {one['name']}  {payload}  since {format_time(one['at'])}")
    if info.error is not None:
        print_line(f"  {info.error}")
        for line in info.error.traceback.splitlines():
            print_line(f"    {line}")


def _show_status(found: RunSnapshot) -> None:
    info, run = found.info, found.claim.run
    title = escaped_text(info.id, "bold").append(f" of {workflow_text(info)} is ")
    print_line(title.append(info.status, _STYLES.get(info.status, "")))
    ended = "" if info.ended_at is None else f", ended {format_time(info.ended_at)}"
    first = "first driven" if info.generation == 1 else f"generation {info.generation} since"
    started = "" if info.started_at is None else f", {first} {format_time(info.started_at)}"
    print_line(f"  created {format_time(info.created_at)}{started}{ended}")
    if info.holder is not None:
        print_line(f"  driven by {info.holder}, token {format_token(run.fence)}")
    elif info.status == "running":
        print_line("  not driven: its worker crashed, and the next worker that polls for runs claims it")
    if (begins := starts_at(found)) is not None:
        print_line(
            f"  starts at {begins}, at the earliest; until then its signals are kept, and a cancel ends it at once"
        )
    if info.status == "queued":
        limits = ", ".join(f"{place.limit} {place.key}".strip() for place in run.places)
        print_line(f"  queued: waits until its limits admit it ({limits})")
    if (pause := pause_info(found)) is not None:
        if pause.over:
            print_line(f"  the pause before {pause.attempt} ended at {pause.until}")
        else:
            print_line(
                f"  pauses until {pause.until}, then {pause.attempt} of the workflow begins; only a cancel or the "
                "workflow's timeout ends the pause earlier"
            )
        if pause.children:
            print_line(
                f"  {pause.attempt} does not begin before the cancelled children of the failed attempt have ended: "
                f"{pause.children}"
            )
    elif info.due_at is not None and info.status == "suspended":
        print_line(f"  sleeps until {format_time(info.due_at)}; a signal or another event wakes it earlier")
    elif info.due_at is not None and info.status == "blocked":
        print_line(f"  is tried again at {format_time(info.due_at)}")
    elif info.due_at is not None and info.due_at != info.starts_at:
        print_line(f"  can be claimed by a worker from {format_time(info.due_at)} on")
    if info.blocked is not None:
        print_line(f"  {blocking_text(info.blocked)}")
        for line in _raised_by_the_code(info.blocked.reason):
            print_line(f"    {line}")
        print_line(
            "  it keeps its locks, its signals and its places in limits. Every engine that opens tries it once; "
            "'holdfast runs retry' tries it at once, 'holdfast runs fail' gives it up"
        )
    if run.crashes:
        print_line(
            f"  {run.crashes} workers in a row crashed while they drove it (after {rule.POISONED} crashes it is "
            "blocked)"
        )


def _raised_by_the_code(reason: Failure) -> list[str]:
    """The traceback of the error with which the code has ended, where its history goes on."""
    raised, chained, _ = reason.traceback.partition(_CAUSE)
    return raised.rstrip().splitlines() if chained and reason.type.endswith(NonDeterminismError.__name__) else []


def _show_details(found: RunSnapshot, waits: Waits) -> None:
    info, claim = found.info, found.claim
    _show_generation(info)
    if info.cancel_reason is not None:
        by = "was cancelled by a limit" if info.cancelled_by is not None else "its cancellation was requested"
        print_line(f"  {by}: {info.cancel_reason}")
    if info.parent is not None:
        print_line(f"  child of {info.parent}")
    if (origin := origin_of(claim)) is not None:
        print_line(f"  {origin}")
    if info.idempotency_key is not None:
        print_line(f"  started with the idempotency key {info.idempotency_key}")
    if info.timeout is not None:
        print_line(f"  times out {format_duration(info.timeout)} after its begin")
    for name, value in info.attributes.items():
        print_line(f"  attribute {name} = {json.dumps(value, ensure_ascii=False)}")
    if info.details is not None:
        print_line(f"  details: {_short(json.dumps(info.details, ensure_ascii=False))}")
    for request in claim.run.approvals:
        print_line(f"  waits for the approval {request} (see: holdfast approvals list)")
    _show_heartbeats(found)
    carried = carried_locks(claim)
    for key in info.locks:
        how = "waits for" if key in waits.locks else "keeps from an earlier generation" if key in carried else "has"
        print_line(f"  {how} the lock {key} (see: holdfast locks show)")
    for child in waits.children:
        print_line(f"  waits for the child {child}")
    print_line(f"  input: {_short(claim.entries[0])}")
    if info.status == "completed":
        print_line(f"  result: {_short(claim.run.result or 'null')}")


def _show_heartbeats(found: RunSnapshot) -> None:
    for beat in found.info.heartbeats:
        print_line(f"  {_heartbeat_text(found, beat)}")


def _heartbeat_text(found: RunSnapshot, beat: HeartbeatInfo) -> str:
    """When a step sent its last heartbeat, and what it contained."""
    since = max(0, found.now - round(beat.at.timestamp() * MICROSECONDS)) / MICROSECONDS
    text = f"last heartbeat of the step {beat.step}, attempt {beat.attempt}: {format_duration(since)} ago"
    if beat.details is not None:
        text += f", {_short(json.dumps(beat.details, ensure_ascii=False))}"
    if beat.expires_at is not None:
        text += f"; another worker takes the run over {format_time(beat.expires_at)} if none comes before"
    return text


def _show_generation(info: RunInfo) -> None:
    if info.continued_at is not None:
        print_line(f"  generation {info.generation}, which began {format_time(info.continued_at)}")
    if info.replaces is not None:
        print_line(f"  replaces an ended run, which is kept as {info.replaces}")
    if info.replaced_by is not None:
        print_line(f"  was replaced: the run {info.replaced_by} began in its place, so it cannot be retried")


def _show_history(history: list[dict[str, Any]]) -> None:
    print_line("  history:" if history else "  history: no entries yet")
    width = max((len(entry["kind"]) for entry in history), default=0)
    for entry in history:
        value = entry["value"]
        if entry["kind"] == "lock":
            text = f"  token {format_token(value['token'])}"
        else:
            text = "" if value is None else f"  {_short(json.dumps(value, ensure_ascii=False))}"
        print_line(f"    {format_time(entry['at'])}  {entry['kind']:<{max(8, width)}}  {entry['name']}{text}".rstrip())
