"""The commands of `holdfast`."""

from __future__ import annotations

import sys

import click
from rich.console import Console

from .. import __version__
from .demo import Demo


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
def app() -> None:
    """Durable concurrency for Python."""


@app.command()
@click.option("--ttl", default=2.0, show_default=True, help="The lease in seconds: how soon a dead worker is replaced.")
def demo(ttl: float) -> None:
    """Real worker processes on one SQLite file: turns, a kill -9, a pause, and a write that is refused."""
    console = Console(highlight=False)
    sys.exit(0 if Demo(console, ttl).run() else 1)
