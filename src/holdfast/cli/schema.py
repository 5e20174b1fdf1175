"""`holdfast schema`: the tables and functions of a PostgreSQL store.

Each release of Holdfast calls its own functions, and no release removes those of another. So functions of old releases
stay in the database until `prune` removes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from ..errors import InvalidOption, StoreUnusable
from ..stores import open_store, redacted
from ..stores.urls import scheme_of
from .options import Settings, as_seconds, common, pass_settings
from .output import format_duration, print_json, print_line

if TYPE_CHECKING:
    from ..stores.postgresql.functions import KnownSet

WEEK = "7 days"


class _Schema(NamedTuple):
    """The schema of a store, and the functions of the package that maintain it."""

    url: str
    maintenance: Any

    @property
    def own(self) -> str:
        """The digest of this release's functions."""
        digest: str = self.maintenance.own_set(self.url).digest
        return digest

    def require_tables(self) -> None:
        """Raise if the database has no tables of Holdfast."""
        from ..stores.postgresql.schema import tables_of  # noqa: PLC0415  (its driver is an extra)

        with self.maintenance._session(self.url) as (session, name):  # noqa: SLF001
            if not tables_of(session, name).version:
                raise StoreUnusable(
                    f"{redacted(self.url)} has no schema {name!r} of Holdfast: no client has used this store yet. "
                    "Check the URL and its ?schema=, or create the schema: holdfast schema install"
                )


@click.group()
@common
def schema() -> None:
    """Show, create and clean up the tables and functions in a PostgreSQL database."""


@schema.command("list")
@common
@pass_settings
def list_(settings: Settings) -> None:
    """Show the version of the tables and every set of functions, the last used first."""
    with _opened(settings) as at:
        at.require_tables()
        version, known = at.maintenance.sets_of(at.url)
        own = at.own
    if settings.json:
        print_json({"version": version, "own": own, "sets": [_document(one) for one in known]})
        return
    print_line(f"tables: version {version}")
    for one in known:
        print_line(f"functions: {_line(one)}{'  <- this release' if one.digest == own else ''}")


@schema.command()
@common
@pass_settings
def install(settings: Settings) -> None:
    """Create the tables and functions of this release if they are missing, as any client that opens the store does."""
    with _opened(settings) as at:
        at.maintenance.install(at.url)
        own = at.own
    if settings.json:
        print_json({"own": own})
    else:
        print_line(f"The tables and the functions of this release ({own}) are installed.")


@schema.command("sql")
@common
@pass_settings
def sql_(settings: Settings) -> None:
    """Print the SQL that creates what is missing, for an owner of the database. Empty if nothing is missing."""
    with _opened(settings) as at:
        text = at.maintenance.statements(at.url)
    if settings.json:
        print_json({"sql": text})
    else:
        click.echo(text, nl=False)


@schema.command()
@click.option(
    "--unused-for",
    default=WEEK,
    show_default=True,
    callback=as_seconds,
    help="Remove functions that no client has used for this long.",
)
@click.option(
    "--force",
    is_flag=True,
    help="Also remove functions in use; their clients create them again if they have the rights.",
)
@common
@pass_settings
def prune(settings: Settings, unused_for: float, force: bool) -> None:  # noqa: FBT001  (click's signature)
    """Remove the functions of releases that no client uses any more. The functions of this release are kept."""
    with _opened(settings) as at:
        at.require_tables()
        removed, kept = at.maintenance.prune(at.url, unused_for=unused_for, force=force)
        own = at.own
    if settings.json:
        print_json({"removed": [_document(one) for one in removed], "kept": [_document(one) for one in kept]})
        return
    for one in removed:
        print_line(f"removed: {_line(one)}")
    for one in kept:
        limit = format_duration(unused_for)
        reason = "this release uses it" if one.digest == own else f"a client has used it within the last {limit}"
        print_line(f"kept: {_line(one)}: {reason}")
    if not removed:
        print_line("Nothing was removed.")


@contextmanager
def _opened(settings: Settings) -> Iterator[_Schema]:
    """The schema at the store's address. Raises if the store is not PostgreSQL; errors about it say what to do."""
    if scheme_of(settings.address).partition("+")[0] not in ("postgresql", "postgres"):
        raise InvalidOption("only a PostgreSQL store has a schema with functions: give a postgresql:// URL")
    open_store(settings.address, namespace=settings.namespace).close()
    from ..stores.postgresql import maintenance  # noqa: PLC0415  (the driver exists: the line above needs it)
    from ..stores.postgresql.session import LacksRights  # noqa: PLC0415

    try:
        yield _Schema(settings.address, maintenance)
    except StoreUnusable as error:
        if isinstance(error.__cause__, LacksRights):  # one message in place of two, of which one quotes the other
            raise StoreUnusable(_NO_RIGHTS.format(database_error=_first_sentence(error.__cause__))) from error
        raise


_NO_RIGHTS = (
    "this role may not create the tables and functions that this version of Holdfast needs ({database_error}). Nothing "
    "was changed. Run 'holdfast schema install' with the role that owns the database or the schema, or have its owner "
    "run the SQL that 'holdfast schema sql' prints: docs/stores/postgresql.md."
)


def _first_sentence(error: BaseException) -> str:
    return str(error).partition(". ")[0].rstrip(".")


def _line(one: KnownSet) -> str:
    return f"{one.digest}, created by Holdfast {one.release}, last used {format_duration(max(0.0, one.idle))} ago"


def _document(one: KnownSet) -> dict[str, object]:
    return {
        "digest": one.digest,
        "version": one.version,
        "release": one.release,
        "made_at": one.made_at.isoformat(),
        "used_at": one.used_at.isoformat(),
    }
