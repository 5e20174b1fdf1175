"""The options that every command takes, and the client that is opened with them.

They may stand before the group, before the command or after it; the last one counts. Commands that only read change no
data: they are refused where opening the store would create or change a database. (The empty companion file `<db>-turn`
is created where it is missing, for the database's owner.)
"""

from __future__ import annotations

import getpass
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from .. import Client, __version__
from ..errors import InvalidKey, StoreUnusable
from ..runtime.base import DEFAULT_URL
from ..stores import unready
from ..validation import checked_key, seconds
from .output import print_line

F = TypeVar("F", bound=Callable[..., Any])


@dataclass
class Settings:
    """The common options that were given so far."""

    url: str | None = None
    namespace: str = "default"
    json: bool = False

    @property
    def address(self) -> str:
        """The store's URL, determined as a client does."""
        return self.url or os.environ.get("HOLDFAST_URL") or DEFAULT_URL


pass_settings = click.make_pass_decorator(Settings, ensure=True)


def _keep(context: click.Context, option: click.Parameter, value: Any) -> None:
    settings = context.find_root().ensure_object(Settings)
    if value == "":
        raise click.BadParameter("it is empty: give a name, or leave the option out.", context, option)
    if value and option.name:
        setattr(settings, option.name, value)


def common(command: F) -> F:
    """Add the options that every command takes."""
    return _with_options(command, takes_store=True)


def common_without_store(command: F) -> F:
    """Add the options that every command takes, for a command that refuses `--url` and `--namespace`."""
    return _with_options(command, takes_store=False)


def _with_options(command: F, *, takes_store: bool) -> F:
    for add in (
        click.version_option(__version__, message="%(prog)s %(version)s", prog_name="holdfast"),
        click.option("--json", is_flag=True, expose_value=False, callback=_keep, help="Print JSON."),
        click.option(
            "--namespace",
            expose_value=False,
            callback=_keep,
            hidden=not takes_store,
            help="The namespace in the store.  [default]",
        ),
        click.option(
            "--url",
            expose_value=False,
            callback=_keep,
            hidden=not takes_store,
            help=f"The store's address.  [$HOLDFAST_URL, else {DEFAULT_URL}]",
        ),
    ):
        command = add(command)
    return command


def as_seconds(_context: click.Context, option: click.Parameter, value: str | None) -> float | None:
    """Parse a duration as the library does; the callback of an option."""
    return None if value is None else seconds(value, what=option.opts[0])


@contextmanager
def open_client(
    settings: Settings, *, create: bool = False, store_options: Mapping[str, object] | None = None
) -> Iterator[Client]:
    """A client for one command. Unless the command may `create` the store, it must exist already."""
    reason = None if create else unready(settings.address)
    if reason is not None:
        raise StoreUnusable(reason)
    # The library's log lines are for applications; here they would only repeat, unescaped, what the command prints.
    logging.getLogger("holdfast").addHandler(logging.NullHandler())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RuntimeWarning)
        client = Client(settings.url, namespace=settings.namespace, name=_user(), store_options=store_options)
    with client:
        for warning in caught:
            print_line(f"holdfast: {warning.message}", err=True)
        yield client


def _user() -> str:
    """The name of the user, for the record of a forced release."""
    try:
        return checked_key(getpass.getuser())
    except (InvalidKey, OSError, KeyError, ImportError):  # a container without users, an unusable $LOGNAME
        return "holdfast"
