"""`holdfast schema`: the tables and functions of a PostgreSQL store.

Each release of Holdfast calls functions of its own, and none removes another's. So old ones gather in the database
until somebody removes them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ..errors import InvalidOption
from ..stores import open_store
from ..stores.urls import scheme_of
from .options import Settings, as_seconds, common, pass_settings
from .output import length, say, tell

if TYPE_CHECKING:
    from ..stores.postgresql.functions import KnownSet

WEEK = "7 days"


@click.group()
@common
def schema() -> None:
    """Tables and functions in a PostgreSQL database."""


@schema.command("list")
@common
@pass_settings
def list_(settings: Settings) -> None:
    """Show the version of the tables and every set of functions, the last used first."""
    url, maintenance = _maintained(settings)
    version, known = maintenance.sets_of(url)
    own = maintenance.own_set(url).digest
    if settings.json:
        tell({"version": version, "own": own, "sets": [_document(one) for one in known]})
        return
    say(f"tables: version {version}")
    for one in known:
        say(f"functions: {_line(one)}{'  <- this release' if one.digest == own else ''}")


@schema.command()
@common
@pass_settings
def install(settings: Settings) -> None:
    """Make the tables and functions of this release where they are missing, as any client that opens the store does."""
    url, maintenance = _maintained(settings)
    maintenance.install(url)
    own = maintenance.own_set(url).digest
    if settings.json:
        tell({"own": own})
    else:
        say(f"The tables and the functions of this release ({own}) are there.")


@schema.command("sql")
@common
@pass_settings
def sql_(settings: Settings) -> None:
    """Print the SQL that makes what is missing, for an owner of the database to run. Empty where nothing is missing."""
    url, maintenance = _maintained(settings)
    text = maintenance.statements(url)
    if settings.json:
        tell({"sql": text})
    else:
        click.echo(text, nl=False)


@schema.command()
@click.option(
    "--unused-for", default=WEEK, show_default=True, callback=as_seconds, help="Remove what no client used for so long."
)
@click.option("--force", is_flag=True, help="Remove also what was used since; its clients make it again, if they may.")
@common
@pass_settings
def prune(settings: Settings, unused_for: float, force: bool) -> None:  # noqa: FBT001  (click's way)
    """Remove the functions of releases that no client uses any more. Those of this release stay."""
    url, maintenance = _maintained(settings)
    gone, kept = maintenance.prune(url, unused_for=unused_for, force=force)
    if settings.json:
        tell({"removed": [_document(one) for one in gone], "kept": [_document(one) for one in kept]})
        return
    for one in gone:
        say(f"removed: {_line(one)}")
    for one in kept:
        say(f"kept: {_line(one)}")


def _maintained(settings: Settings) -> tuple[str, Any]:
    """The address of the store and what can be done there; raises where that is another kind of store."""
    if scheme_of(settings.address).partition("+")[0] not in ("postgresql", "postgres"):
        raise InvalidOption("only a PostgreSQL store has a schema with functions: give a postgresql:// URL")
    open_store(settings.address, namespace=settings.namespace).close()
    from ..stores.postgresql import maintenance  # noqa: PLC0415  (its driver is there, as the line above shows)

    return settings.address, maintenance


def _line(one: KnownSet) -> str:
    return f"{one.digest}, made by Holdfast {one.release}, last used {length(max(0.0, one.idle))} ago"


def _document(one: KnownSet) -> dict[str, object]:
    return {
        "digest": one.digest,
        "version": one.version,
        "release": one.release,
        "made_at": one.made_at.isoformat(),
        "used_at": one.used_at.isoformat(),
    }
