"""`holdfast runs`: what runs there are, what happened to each, and how to stop one or set one going again.

Nothing here drives a run: that needs its code, and `holdfast worker` has it. What a run holds (names, values, errors)
comes from applications and is shown harmless, like everything from the store.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import click
import msgspec
from rich.table import Table

from .. import Client, HoldfastError
from ..errors import InvalidOption, RunEnded, StoreUnusable
from ..rules.runs import record as rule
from ..rules.runs.outcomes import Claim
from ..runtime.codec import MAX_BYTES
from ..runtime.runners import run as carry_out
from ..validation import MICROSECONDS, seconds
from ..workflow import RunInfo
from ..workflow import journal as j
from ..workflow.queries import RunQueries, info
from .exit_codes import FAILED
from .options import Settings, common, opened, pass_settings
from .output import console, length, moment, say, shown, tell

SHORT = 60
"""Characters of a value in a list."""
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_STYLES = {"completed": "green", "failed": "bold red", "timed_out": "red", "cancelled": "yellow", "running": "cyan"}


class NotRetried(HoldfastError):
    """Only a run that failed, was cancelled or timed out can be retried. Nothing was changed."""


class RestartDeclined(HoldfastError):
    """Nothing was restarted."""


@click.group()
@common
def runs() -> None:
    """What runs there are, what happened to each, and how to stop one or set one going again."""


# -- list -------------------------------------------------------------------------------------------------------


def _as_moment(_context: click.Context, option: click.Parameter, value: str | None) -> datetime | None:
    """A date or time (UTC unless it says otherwise), or how long ago."""
    if value is None:
        return None
    if not re.match(r"\d{4}-", value):
        return datetime.now(UTC) - timedelta(seconds=seconds(value, what=option.opts[0]))
    try:
        when = datetime.fromisoformat(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is no time such as 2026-11-16T02:17, and no '2 hours' ago.") from None
    return when if when.tzinfo else when.replace(tzinfo=UTC)


def _as_attributes(_context: click.Context, _option: click.Parameter, value: tuple[str, ...]) -> dict[str, Any]:
    """Pairs NAME=VALUE; numbers, true and false are what they look like, and quotes make them text."""
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


@runs.command("list")
@click.option("--status", multiple=True, help="Only those with this status; may be given several times.")
@click.option("--workflow", help="Only those of this workflow.")
@click.option("--since", callback=_as_moment, help="Only those created since: a time in UTC, or '2 hours' ago.")
@click.option("--until", callback=_as_moment, help="Only those created before.")
@click.option("--attribute", multiple=True, callback=_as_attributes, help="NAME=VALUE; may be given several times.")
@click.option("--prefix", default="", help="Only those whose id begins so.")
@click.option("--limit", default=100, show_default=True, help="At most so many.")
@click.option("--after", help="Go on after this place: the 'next' of the page before.")
@common
@pass_settings
def list_(
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
    """Runs, the newest first."""
    with _opened(settings) as hf:
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
            tell({"runs": [run_document(found) for found in page.runs], "next": page.next})
            return
        if page.runs:
            console().print(_table(page.runs))
        else:
            say(f"There is no such run in {hf.url}, namespace {hf.namespace}.")
    if page.next is not None:
        say(f"There are more: --after {page.next}", err=True)


def _table(found: tuple[RunInfo, ...]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("RUN", "WORKFLOW", "STATUS", "CREATED", "FOR", "NOTE"):
        table.add_column(name, overflow="fold")
    now = datetime.now(UTC)
    for one in found:
        lasted = ((one.ended_at or now) - one.created_at).total_seconds()
        table.add_row(
            shown(one.id),
            shown(_kind(one)),
            shown(one.status, _STYLES.get(one.status, "")),
            moment(one.created_at),
            length(max(0.0, lasted)),
            shown(_note(one)),
        )
    return table


class _Waits(NamedTuple):
    """The locks that a run waits for, and the children, where it is known for which."""

    locks: Sequence[str]
    children: Sequence[str]


def _kind(one: RunInfo) -> str:
    return one.workflow if one.version is None else f"{one.workflow}@{one.version}"


def _note(one: RunInfo) -> str:
    if one.error is not None:
        return _short(f"{one.error.type}: {one.error.message}")
    if one.due_at is not None:
        return f"until {moment(one.due_at)}"
    return ", ".join(f"{name}={value}" for name, value in one.attributes.items())


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= SHORT else f"{line[: SHORT - 1]}…"


# -- show -------------------------------------------------------------------------------------------------------


@runs.command()
@click.argument("run_id", metavar="RUN")
@common
@pass_settings
def show(settings: Settings, run_id: str) -> None:
    """One run: how it is, who drives it, its history, its unread signals, and what it failed with."""
    with _opened(settings) as hf:
        found, claim, _ = _seen(hf, run_id, history=True)
        waits = _waits(hf, claim.run)
        workers = _who_can(hf, claim.run.type) if found.living else []
    history, unread = _history(claim), _unread(claim)
    if settings.json:
        more = {"input": _value(claim.entries[0]), "history": history, "signals": unread, "workers": workers}
        tell({**run_document(found), **more})
        return
    _show(found, claim, waits)
    if found.living and found.holder is None and not workers:
        say(f"  no living worker knows {_plainly(claim.run.type)}: the run waits until one is started")
    say("  history:" if history else "  history: nothing yet")
    for entry in history:
        value = "" if entry["value"] is None else f"  {_short(json.dumps(entry['value'], ensure_ascii=False))}"
        say(f"    {moment(entry['at'])}  {entry['kind']:<8}  {entry['name']}{value}".rstrip())
    for one in unread:
        payload = _short(json.dumps(one["payload"], ensure_ascii=False))
        say(f"  unread signal: {one['name']}  {payload}  since {moment(one['at'])}")
    if found.error is not None:
        say(f"  {found.error}")
        for line in found.error.traceback.splitlines():
            say(f"    {line}")


def _show(found: RunInfo, claim: Claim, waits: _Waits) -> None:
    run = claim.run
    say(shown(found.id, "bold").append(f" of {_kind(found)} is ").append(found.status, _STYLES.get(found.status, "")))
    ended = "" if found.ended_at is None else f", ended {moment(found.ended_at)}"
    started = "" if found.started_at is None else f", first driven {moment(found.started_at)}"
    say(f"  created {moment(found.created_at)}{started}{ended}")
    if found.holder is not None:
        say(f"  driven by {found.holder}, fence {run.fence}")
    elif found.status == "running":
        say("  nobody drives it: its worker is dead, and the next one takes it over")
    if found.status == "queued":
        limits = ", ".join(f"{place.limit} {place.key}".strip() for place in run.places)
        say(f"  waits to be let in by its limits: {limits}")
    if found.due_at is not None:
        say(f"  sleeps until {moment(found.due_at)}, unless something comes")
    if run.crashes:
        say(f"  workers that died in a row while they drove it: {run.crashes} (stopped at {rule.POISONED})")
    if found.parent is not None:
        say(f"  child of {found.parent}")
    if found.idempotency_key is not None:
        say(f"  started with the idempotency key {found.idempotency_key}")
    for name, value in found.attributes.items():
        say(f"  attribute {name} = {json.dumps(value, ensure_ascii=False)}")
    for key in found.locks:
        say(f"  {'waits for' if key in waits.locks else 'has'} the lock {key} (see: holdfast locks show)")
    for child in waits.children:
        say(f"  waits for the child {child}")
    say(f"  input: {_short(claim.entries[0])}")
    if found.status == "completed":
        say(f"  result: {_short(run.result or 'null')}")


def _history(claim: Claim) -> list[dict[str, Any]]:  # noqa: C901, PLR0912  (one for each kind of entry)
    """The entries of the journal as people read them."""
    events = {event.number: event for event in claim.events}
    keys: dict[int, str] = {}  # of the locks that it took
    found: list[dict[str, Any]] = []
    for text in claim.entries[1:]:
        entry = j.decode_entry(text)
        name, value = "", None
        match entry:
            case j.Begun():
                kind = "begun"
            case j.StepDone():
                kind, name, value = "step", entry.id, _value(bytes(entry.value).decode())
            case j.StepLost():
                kind, name, value = "failed", entry.id, _failure(entry.error, entry.attempts)
            case j.Attempted():
                kind, name, value = "attempt", entry.id, _failure(entry.error, entry.attempts)
            case j.TimerEnded():
                kind, name = "timer", str(entry.number)
            case j.Signalled():
                kind, name = "signal", entry.id.removeprefix("signal:")
                value = _value(events[entry.event].payload) if entry.event in events else None
            case j.ChildEnded():
                kind, name = "child", entry.id
                value = _value(events[entry.event].payload) if entry.event in events else None
            case j.CancelAsked():
                kind, name = "cancel", "asked for" if entry.event else "its time is over"
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
        found.append({"at": _time(entry.at), "kind": kind, "name": name, "value": value})
    return found


def _unread(claim: Claim) -> list[dict[str, Any]]:
    """The signals that nothing has read; what was read before a workflow began again can be read again."""
    read: set[int] = set()
    for text in claim.entries[1:]:
        entry = j.decode_entry(text)
        if isinstance(entry, j.BegunAgain):
            read.clear()
        elif isinstance(entry, j.Signalled):
            read.add(entry.event)
    return [
        {"at": _time(event.at), "name": event.name, "payload": _value(event.payload)}
        for event in claim.events
        if event.kind == "signal" and event.number not in read
    ]


def _failure(error: j.Failure, attempts: int | None) -> dict[str, Any]:
    told: dict[str, Any] = {"type": error.type, "message": error.message}
    return told if attempts is None else {**told, "attempts": attempts}


def _value(text: str) -> Any:
    """A stored value; what is no JSON is shown as the text that it is."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def _time(microseconds: int) -> datetime:
    return EPOCH + timedelta(microseconds=microseconds)


def run_document(found: RunInfo) -> dict[str, Any]:
    """A run as machines get it."""
    return {
        "id": found.id,
        "workflow": found.workflow,
        "version": found.version,
        "status": found.status,
        "holder": found.holder,
        "created_at": found.created_at,
        "started_at": found.started_at,
        "ended_at": found.ended_at,
        "due_at": found.due_at,
        "parent": found.parent,
        "idempotency_key": found.idempotency_key,
        "attributes": found.attributes,
        "locks": list(found.locks),
        "entries": found.entries,
        "result": found.result,
        "error": None if found.error is None else msgspec.structs.asdict(found.error),
    }


# -- what changes something ---------------------------------------------------------------------------------------


@runs.command()
@click.argument("run_id", metavar="RUN")
@common
@pass_settings
def cancel(settings: Settings, run_id: str) -> None:
    """Ask a run to stop, wherever it is. Its `finally` blocks have half a minute."""
    with _opened(settings) as hf:
        hf.runs.cancel(run_id)
        found, claim, _ = _seen(hf, run_id)
        workers = _able(hf, claim.run)
    if found.status == "cancelled":
        words = f"{run_id} is cancelled."
    elif found.holder is not None:
        words = f"{run_id} was asked to stop; {found.holder} drives it, and its finally blocks have 30 s."
    elif not found.living:
        words = f"{run_id} had been asked to stop and is {found.status}."
    else:
        words = f"{run_id} was asked to stop; it will be by the next worker that takes it. {workers}"
    _answer(settings, found, words)


@runs.command()
@click.argument("run_id", metavar="RUN")
@common
@pass_settings
def retry(settings: Settings, run_id: str) -> None:
    """Let a run that failed, was cancelled or timed out go on from where it did. What is recorded is kept."""
    with _opened(settings) as hf:
        try:
            revived = hf.runs.retry(run_id)
        except InvalidOption as error:  # it says how the run is: that is no mistake in the command
            raise NotRetried(str(error)) from None
        found, claim, _ = _seen(hf, run_id)
        workers = _able(hf, claim.run)
    _answer(settings, found, f"{run_id} goes on after {revived.entries - 1} entries of its history. {workers}")


@runs.command()
@click.argument("run_id", metavar="RUN")
@click.option("--yes", is_flag=True, help="Do not ask.")
@common
@pass_settings
def restart(settings: Settings, run_id: str, *, yes: bool) -> None:
    """Let a run begin anew. Its history is removed, and every step is carried out once more."""
    if not yes and (sys.stdin is None or not sys.stdin.isatty() or not sys.stderr.isatty()):
        raise click.UsageError(
            "There is no terminal to ask on: look with 'holdfast runs show', then say --yes.",
            click.get_current_context(),
        )
    with _opened(settings) as hf:
        if not yes:
            before = hf.runs.get(run_id)
            say(f"{run_id} of {_kind(before)} is {before.status}, with {before.entries - 1} entries.", err=True)
            if not click.confirm("Remove them and carry out every step once more?", err=True):
                raise RestartDeclined
        hf.runs.restart(run_id)
        found, claim, _ = _seen(hf, run_id)
        workers = _able(hf, claim.run)
    _answer(settings, found, f"{run_id} begins anew. {workers}")


def _answer(settings: Settings, found: RunInfo, words: str) -> None:
    if settings.json:
        tell(run_document(found))
    else:
        say(words.strip())


# -- resume -----------------------------------------------------------------------------------------------------


@runs.command()
@click.argument("run_id", metavar="RUN")
@common
@pass_settings
@click.pass_context
def resume(context: click.Context, settings: Settings, run_id: str) -> None:
    """Say what a run waits for, and who will take it up. Exits with 1 if nobody can.

    It changes nothing: runs that are due are taken up by workers, by themselves.
    """
    with _opened(settings) as hf:
        found, claim, now = _seen(hf, run_id)
        if not found.living:
            raise RunEnded(
                f"the run {run_id!r} has ended ({found.status}): 'holdfast runs retry' lets one that failed go on, "
                "'holdfast runs restart' begins anew.",
                run_id=run_id,
                status=found.status,
            )
        state, words = _prospect(hf, claim.run, found, now)
    if settings.json:
        tell({"run": run_document(found), "state": state, "detail": words})
    else:
        say(words)
    context.exit(FAILED if state in {"locked", "no_worker"} else 0)


def _prospect(hf: Client, run: rule.Run, found: RunInfo, now: int) -> tuple[str, str]:
    """How it goes on with a living run, in a word and in a sentence."""
    if found.holder is not None:
        return "driven", f"{run.id} is driven by {found.holder}: there is nothing to do."
    if run.status in ("queued", "suspended") and run.due_at is None:
        return _waits_for_others(hf, run)
    lock = hf.locks.inspect(rule.run_key(run.workflow, run.id))
    if lock.held:
        holder = ", ".join(one.owner for one in lock.holders)
        return "locked", f"{run.id} waits: {holder} has locked it from outside ({lock.key}): see 'locks show'."
    if run.due_at is not None and run.due_at > now:
        return "sleeping", f"{run.id} sleeps until {moment(_time(run.due_at))}: a worker takes it up then."
    able = _who_can(hf, run.type)
    since = "its last one died" if run.worker else f"for {length(max(0, now - rule.due_since(run)) / MICROSECONDS)}"
    if able:
        return "in_line", f"{run.id} waits for a worker ({since}): {', '.join(able)} can take it up."
    return "no_worker", f"{run.id} waits for a worker ({since}), and no living worker knows {_plainly(run.type)}."


def _waits(hf: Client, run: rule.Run) -> _Waits:
    keys = dict.fromkeys(key for _, key in run.locks)
    unlisted = {wait.key for wait in run.waits}
    waited = [
        key
        for key in keys
        if key in unlisted or any(one.owner == f"run {run.id}" for one in hf.locks.inspect(key).waiters)
    ]
    return _Waits(waited, () if run.stuck is None else run.stuck.children)


def _waits_for_others(hf: Client, run: rule.Run) -> tuple[str, str]:
    if run.status == "queued":
        limits = ", ".join(sorted({place.limit for place in run.places}))
        return "queued", f"{run.id} waits to be let in ({limits}): that happens when another run ends."
    if run.stuck is None:
        return "waiting", f"{run.id} waits for a signal or a child: a worker takes it up when that comes."
    waits = _waits(hf, run)
    told = [*(f"the lock {key}" for key in waits.locks), *(f"the end of the child {child}" for child in waits.children)]
    return "waiting", f"{run.id} waits for {' and '.join(told) or 'a worker'}: a worker takes it up when that comes."


def _able(hf: Client, run: rule.Run) -> str:
    """Who will take a run up that is due."""
    if not run.living:
        return ""
    if able := _who_can(hf, run.type):
        return f"It can be taken up by {', '.join(able)}."
    return f"No living worker knows {_plainly(run.type)}: start one."


def _who_can(hf: Client, kind: str) -> list[str]:
    return carry_out(RunQueries(hf, max_bytes=MAX_BYTES).who_can(kind), hf.runtime.batchers)


def _plainly(kind: str) -> str:
    return f"{kind.removesuffix(rule.ANY_VERSION)} in any version" if kind.endswith(rule.ANY_VERSION) else kind


# -- parts ------------------------------------------------------------------------------------------------------


@contextmanager
def _opened(settings: Settings) -> Iterator[Client]:
    with opened(settings) as hf:
        if not hf.runtime.store.capabilities.workflows:
            raise StoreUnusable(f"{hf.url} cannot run workflows: there are no runs in it.")
        yield hf


def _seen(hf: Client, run_id: str, *, history: bool = False) -> tuple[RunInfo, Claim, int]:
    """A run as it is now: for people, as it is stored, and what time it is there."""
    claim, seen = carry_out(RunQueries(hf, max_bytes=MAX_BYTES).see(run_id, history=history), hf.runtime.batchers)
    return info(claim.run, holder=seen.holder), claim, seen.now
