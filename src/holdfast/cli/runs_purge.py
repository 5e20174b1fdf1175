"""`holdfast runs purge`: counts the ended runs that are older than a limit, asks, and removes them in small steps."""

from __future__ import annotations

import sys

import click
import msgspec

from ..errors import HoldfastError
from ..events import Events
from ..rules.runs.record import ENDS
from ..runtime.runners import Batchers
from ..runtime.runners import run as run_flow
from ..workflow.purging import Purge, PurgeReport, PurgeRequest, checked_request
from .exit_codes import FAILED
from .options import Settings, common, pass_settings
from .output import print_json, print_line
from .runs_reading import open_runs

PROGRESS_EVERY = 1_000
"""After so many runs a line is printed."""


class PurgeDeclined(HoldfastError):
    """The purge was declined. Nothing was changed."""


@click.command("purge")
@click.option("--older-than", required=True, help='How long ago the runs ended, at least: "30 days", "12 h".')
@click.option(
    "--status", "statuses", multiple=True, type=click.Choice(ENDS), help="How they ended; may be repeated. All."
)
@click.option("--workflow", help="Only runs of this workflow, with all runs below them.")
@click.option("--dry-run", is_flag=True, help="Only count.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@common
@pass_settings
@click.pass_context
def purge_runs(
    context: click.Context,
    settings: Settings,
    *,
    older_than: str,
    statuses: tuple[str, ...],
    workflow: str | None,
    dry_run: bool,
    yes: bool,
) -> None:
    """Remove ended runs for good: their input, history, signals, result and state, and all runs below them.

    It counts first, and asks. What was removed when it is interrupted stays removed; run it again for the rest.
    """
    request = checked_request(older_than=older_than, status=statuses or None, workflow=workflow)
    if not (yes or dry_run) and (sys.stdin is None or not sys.stdin.isatty() or not sys.stderr.isatty()):
        raise click.UsageError(
            "There is no terminal to ask for confirmation on: use --yes. 'holdfast runs list --status completed' shows "
            "ended runs.",
            context,
        )
    with open_runs(settings) as hf:
        if dry_run or not yes:
            counted = Purge(msgspec.structs.replace(request, dry_run=True))
            run_flow(counted.run(), hf.runtime.batchers)
            if dry_run or not counted.report.runs:
                what = "Can be removed" if counted.report.runs else "Nothing to remove"
                _print(settings, counted.report, what)
                return
            print_line(f"{_counts(counted.report)} can be removed. {_kept(counted.report)}".strip(), err=True)
            if not click.confirm("Remove them for good?", err=True):
                raise PurgeDeclined
        _remove(context, settings, hf.runtime.batchers, request, hf.events)


def _remove(
    context: click.Context, settings: Settings, batchers: Batchers, request: PurgeRequest, events: Events
) -> None:
    """Remove, with a line of progress now and then."""
    printed = 0

    def progress() -> None:
        nonlocal printed
        if purge.report.runs >= printed + PROGRESS_EVERY:
            printed = purge.report.runs
            print_line(f"{_counts(purge.report)} removed ...", err=True)

    purge = Purge(request, events=events, progress=progress)
    try:
        run_flow(purge.run(), batchers)
    except KeyboardInterrupt:
        _print(settings, purge.report, "Interrupted; removed")
        print_line("Run the command again for the rest.", err=True)
        context.exit(FAILED)
    _print(settings, purge.report, "Removed")


def _counts(report: PurgeReport) -> str:
    runs = "1 run" if report.runs == 1 else f"{report.runs} runs"
    trees = "1 tree" if report.trees == 1 else f"{report.trees} trees"
    return runs if report.trees == report.runs else f"{runs} in {trees}"


def _kept(report: PurgeReport) -> str:
    """What stays though its first run is old enough."""
    reasons = (
        (report.kept_living, "because a run below the first one has not ended"),
        (report.kept_young, "because a run below the first one ended later"),
        (report.kept_unreadable, "because a record cannot be read"),
    )
    found = [f"{count} {'tree stays' if count == 1 else 'trees stay'} {why}." for count, why in reasons if count]
    return " ".join(found)


def _print(settings: Settings, report: PurgeReport, what: str) -> None:
    if settings.json:
        print_json(report)
    else:
        text = f"{what}." if not report.runs and what.startswith("Nothing") else f"{what}: {_counts(report)}."
        print_line(f"{text} {_kept(report)}".strip())
