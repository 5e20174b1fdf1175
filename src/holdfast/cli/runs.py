"""`holdfast runs`: list, show (runs_show.py), check (runs_replay.py), fork and import (runs_fork.py), purge, end them.

Nothing here drives a run: that needs its code, which `holdfast worker` imports.
"""

from __future__ import annotations

import sys

import click

from .. import Client, HoldfastError
from ..errors import InvalidOption, RunEnded
from ..rules.runs import record as rule
from ..validation import MICROSECONDS, time_of
from ..workflow import RunInfo
from .exit_codes import FAILED
from .options import Settings, common, pass_settings
from .output import format_duration, format_time, print_json, print_line
from .runs_fork import fork_run, import_run
from .runs_purge import purge_runs
from .runs_reading import (
    RunSnapshot,
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
from .runs_replay import export_run, replay_runs
from .runs_show import list_runs, show_run


class NotRetried(HoldfastError):
    """Only a run that failed, was cancelled or timed out can be retried. Nothing was changed."""


class NotRestarted(HoldfastError):
    """A run that was replaced by another run cannot be restarted. Nothing was changed."""


class RestartDeclined(HoldfastError):
    """The restart was declined. Nothing was changed."""


@click.group()
@common
def runs() -> None:
    """List, show, export, import, check and purge workflow runs, and cancel, retry, restart, fork or give up one."""


runs.add_command(list_runs)
runs.add_command(show_run)
runs.add_command(export_run)
runs.add_command(replay_runs)
runs.add_command(fork_run)
runs.add_command(import_run)
runs.add_command(purge_runs)


# -- cancel, retry, restart -------------------------------------------------------------------------------------


@runs.command()
@click.argument("run_id", metavar="RUN")
@click.option("--reason", help="Why it is cancelled: shown with the run, to its code, and to callers that wait for it.")
@common
@pass_settings
def cancel(settings: Settings, run_id: str, *, reason: str | None) -> None:
    """Request that a run stops, in whichever process it is driven. Its `finally` blocks have 30 s."""
    with open_runs(settings) as hf:
        hf.runs.cancel(run_id, reason=reason)
        found = read_run(hf, run_id)
        workers = _next_worker(hf, found.claim.run)
    info = found.info
    if info.status == "cancelled":
        message = f"{run_id} is cancelled."
    elif info.holder is not None:
        message = f"The cancellation of {run_id} is requested; {info.holder} drives it. Its finally blocks have 30 s."
    elif not info.living:
        message = f"The cancellation of {run_id} was requested before; it is {info.status}."
    elif info.blocked is not None:
        message = (
            f"The cancellation of {run_id} is requested, but the run is blocked: it is cancelled when an engine has "
            "code that fits its history. 'holdfast runs fail' gives it up now."
        )
    else:
        message = f"The cancellation of {run_id} is requested; the next worker that claims it cancels it. {workers}"
    _print_run(settings, info, message)


@runs.command()
@click.argument("run_id", metavar="RUN")
@common
@pass_settings
def retry(settings: Settings, run_id: str) -> None:
    """Continue a run that failed, was cancelled or timed out, or try a blocked one at once.

    Its history up to the failure is kept; of a blocked run, all of it.
    """
    with open_runs(settings) as hf:
        try:
            revived = hf.runs.retry(run_id)
        except InvalidOption as error:  # its text names the status of the run: not a usage error
            raise NotRetried(str(error)) from None
        found = read_run(hf, run_id)
        workers = _next_worker(hf, found.claim.run)
    kept = revived.entries - 1
    entries = "1 entry of its history is" if kept == 1 else f"{kept} entries of its history are"
    _print_run(settings, found.info, f"{run_id} continues: {entries} kept. {workers}")


@runs.command()
@click.argument("run_id", metavar="RUN")
@click.option("--reason", required=True, help="Why it is given up: shown with the run, and to its parent.")
@common
@pass_settings
def fail(settings: Settings, run_id: str, *, reason: str) -> None:
    """Give up a run that no worker drives, such as a blocked one: it ends as failed, and its locks are released."""
    with open_runs(settings) as hf:
        info = hf.runs.fail(run_id, reason)
    _print_run(settings, info, f"{run_id} is failed: {reason}")


@runs.command()
@click.argument("run_id", metavar="RUN")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@common
@pass_settings
def restart(settings: Settings, run_id: str, *, yes: bool) -> None:
    """Start a run again from the beginning. Its history is removed, and every step is executed again."""
    if not yes and (sys.stdin is None or not sys.stdin.isatty() or not sys.stderr.isatty()):
        raise click.UsageError(
            "There is no terminal to ask for confirmation on: check with 'holdfast runs show', then use --yes.",
            click.get_current_context(),
        )
    with open_runs(settings) as hf:
        if not yes:
            before = hf.runs.get(run_id)
            entries = before.entries - 1
            print_line(
                f"{run_id} of {workflow_text(before)} is {before.status}, with {entries} entries in its history.",
                err=True,
            )
            if not click.confirm("Remove the history and execute every step again?", err=True):
                raise RestartDeclined
        try:
            hf.runs.restart(run_id)
        except InvalidOption as error:  # its text names the run: not a usage error
            raise NotRestarted(str(error)) from None
        found = read_run(hf, run_id)
        workers = _next_worker(hf, found.claim.run)
    _print_run(settings, found.info, f"{run_id} is restarted without its history. {workers}")


def _print_run(settings: Settings, info: RunInfo, message: str) -> None:
    if settings.json:
        print_json(run_document(info))
    else:
        print_line(message.strip())


def _next_worker(hf: Client, run: rule.Run) -> str:
    """A sentence about the workers that can claim a living run; empty if it has ended."""
    if not run.living:
        return ""
    if workers := workers_for(hf, run.type):
        return f"It can be claimed by {', '.join(workers)}."
    return f"No living worker has the workflow {type_text(run.type)} registered: start one."


# -- resume -----------------------------------------------------------------------------------------------------


@runs.command()
@click.argument("run_id", metavar="RUN")
@common
@pass_settings
@click.pass_context
def resume(context: click.Context, settings: Settings, run_id: str) -> None:
    """Say what a run waits for, and which worker can claim it. Exits with 1 if none can.

    It changes nothing: workers claim due runs without being asked.
    """
    with open_runs(settings) as hf:
        found = read_run(hf, run_id, history=True)
        if not found.info.living:
            raise RunEnded(
                f"the run {run_id!r} has ended ({found.info.status}): 'holdfast runs retry' continues a run that "
                "failed, 'holdfast runs restart' starts it again without its history.",
                run_id=run_id,
                status=found.info.status,
            )
        state, message = _next_event(hf, found)
    if settings.json:
        print_json({"run": run_document(found.info), "state": state, "detail": message})
    else:
        print_line(message)
    context.exit(FAILED if state in {"blocked", "locked", "no_worker"} else 0)


def _next_event(hf: Client, found: RunSnapshot) -> tuple[str, str]:
    """What a living run waits for: the `state` of the JSON document, and a sentence."""
    run = found.claim.run
    if found.info.holder is not None:
        return "driven", f"{run.id} is driven by {found.info.holder}: nothing has to be done."
    if found.info.blocked is not None:
        again = "" if run.due_at is None else f" It is tried again at {format_time(time_of(run.due_at))}."
        return "blocked", f"{run.id} is {blocking_text(found.info.blocked)}{again}"
    return _next_claim(hf, found)


def _next_claim(hf: Client, found: RunSnapshot) -> tuple[str, str]:
    """When a run that nobody drives will be claimed, and by which workers."""
    run, now = found.claim.run, found.now
    if run.status in ("queued", "suspended") and run.due_at is None:
        return _awaited_event(hf, found)
    lock = hf.locks.inspect(rule.run_key(run.workflow, run.id))
    if lock.held:
        holder = ", ".join(one.owner for one in lock.holders)
        return "locked", f"{run.id} is locked from outside by {holder}: see 'holdfast locks show {lock.key}'."
    if run.due_at is not None and run.due_at > now and run.status != "running":
        return "sleeping", _sleep_text(found, format_time(time_of(run.due_at)))
    workers = workers_for(hf, run.type)
    due = format_duration(max(0, now - rule.due_since(run)) / MICROSECONDS)
    since = "its last worker crashed" if run.worker else f"for {due}"
    if workers:
        return "in_line", f"{run.id} waits for a worker ({since}): {', '.join(workers)} can claim it."
    kind = type_text(run.type)
    return "no_worker", f"{run.id} waits for a worker ({since}), and no living worker has the workflow {kind}."


def _sleep_text(found: RunSnapshot, due: str) -> str:
    run = found.claim.run
    if (pause := pause_info(found)) is not None and not pause.over:
        return (
            f"{run.id} pauses until {pause.until}, then a worker begins {pause.attempt} of the workflow; only a cancel "
            "or the workflow's timeout ends the pause earlier."
        )
    if (begins := starts_at(found)) is not None:
        return f"{run.id} starts at {begins}: its start was delayed. A worker claims it then."
    if run.status == "suspended":
        return f"{run.id} sleeps until {due}; a worker claims it then."
    return f"{run.id} can be claimed by a worker from {due} on."


def _awaited_event(hf: Client, found: RunSnapshot) -> tuple[str, str]:
    run = found.claim.run
    if run.status == "queued":
        limits = ", ".join(sorted({place.limit for place in run.places}))
        return "queued", f"{run.id} is queued for its limits ({limits}): it is admitted when another run ends."
    if (pause := pause_info(found)) is not None:
        children = f"the end of the cancelled children {pause.children}"
        return "waiting", f"{run.id} waits for {children}: {pause.attempt} of the workflow begins after that."
    if run.stuck is None:
        return "waiting", f"{run.id} waits for a signal or a child: a worker claims it when one arrives."
    waits = waits_of(hf, run)
    awaited = [f"the lock {key}" for key in waits.locks]
    awaited += [f"the end of the child {child}" for child in waits.children]
    return "waiting", f"{run.id} waits for {' and '.join(awaited) or 'a worker'}: a worker claims it after that."
