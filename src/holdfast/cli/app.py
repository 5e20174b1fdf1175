"""The command group `holdfast` with all its commands."""

from __future__ import annotations

import sys

import click
from rich.console import Console

from .approvals import approvals
from .demo import Demo
from .doctor import doctor
from .exit_codes import App
from .locks import locks
from .options import Settings, common, pass_settings
from .runs import runs
from .schema import schema
from .state import state
from .worker import worker


@click.group(cls=App, context_settings={"help_option_names": ["-h", "--help"]})
@common
def app() -> None:
    """Durable concurrency for Python.

    Exit codes: 0 success, 1 held or failed, 2 usage error.
    """


@app.command()
@click.option(
    "--ttl", default=2.0, show_default=True, help="The lease in seconds: how soon a killed worker is replaced."
)
@pass_settings
def demo(settings: Settings, ttl: float) -> None:
    """Real processes on a SQLite file: a queue, a kill -9, a pause with a refused write, a workflow that survives."""
    if settings.json:
        raise click.UsageError("The demo prints text for people; it has no --json.", click.get_current_context())
    console = Console(highlight=False)
    sys.exit(0 if Demo(console, ttl).run() else 1)


for command in (locks, state, runs, approvals, worker, doctor, schema):
    app.add_command(command)
