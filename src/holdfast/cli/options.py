"""Where to look and how to answer: the options that every command takes, and the client that follows from them.

They may stand before the group, before the command or after it; the last word counts. Looking changes no data: a
client for a command that only looks is refused where opening it would make or change a database. (The empty companion
`<db>-turn` is made where it is missing, for the database's owner.)
"""

from __future__ import annotations

import getpass
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from .. import Client, __version__
from ..errors import InvalidKey, StoreUnusable
from ..runtime.base import DEFAULT_URL
from ..stores import unready
from ..validation import checked_key, seconds
from .output import say

F = TypeVar("F", bound=Callable[..., Any])


@dataclass
class Settings:
    """What was asked for so far."""

    url: str | None = None
    namespace: str = "default"
    json: bool = False

    @property
    def address(self) -> str:
        """The store's URL, found as a client finds it."""
        return self.url or os.environ.get("HOLDFAST_URL") or DEFAULT_URL


pass_settings = click.make_pass_decorator(Settings, ensure=True)


def _remember(context: click.Context, option: click.Parameter, value: Any) -> None:
    settings = context.find_root().ensure_object(Settings)
    if value == "":
        raise click.BadParameter("it is empty: give a name, or leave the option out.", context, option)
    if value and option.name:
        setattr(settings, option.name, value)


def common(command: F) -> F:
    """Add the options that every command takes."""
    return _with_options(command, placed=True)


def common_elsewhere(command: F) -> F:
    """Add the options that every command takes, for one that cannot be told where the store is; it refuses those."""
    return _with_options(command, placed=False)


def _with_options(command: F, *, placed: bool) -> F:
    for add in (
        click.version_option(__version__, message="%(prog)s %(version)s", prog_name="holdfast"),
        click.option("--json", is_flag=True, expose_value=False, callback=_remember, help="Answer in JSON."),
        click.option(
            "--namespace",
            expose_value=False,
            callback=_remember,
            hidden=not placed,
            help="The part of the store to look at.  [default]",
        ),
        click.option(
            "--url",
            expose_value=False,
            callback=_remember,
            hidden=not placed,
            help=f"The store's address.  [$HOLDFAST_URL, else {DEFAULT_URL}]",
        ),
    ):
        command = add(command)
    return command


def as_seconds(_context: click.Context, option: click.Parameter, value: str | None) -> float | None:
    """Read a length of time as the library does; the callback of an option."""
    return None if value is None else seconds(value, what=option.opts[0])


@contextmanager
def opened(settings: Settings, *, make: bool = False) -> Iterator[Client]:
    """A client for one command. Unless it may `make` one, there must be a store already."""
    why = None if make else not_there(settings)
    if why is not None:
        raise StoreUnusable(why)
    # What the library logs is for applications; here it would only repeat, unescaped, what the command says.
    logging.getLogger("holdfast").addHandler(logging.NullHandler())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", RuntimeWarning)
        client = Client(settings.url, namespace=settings.namespace, name=_user())
    with client:
        for warning in caught:
            say(f"holdfast: {warning.message}", err=True)
        yield client


def not_there(settings: Settings) -> str | None:
    """Why looking at this store would make or change it; None where it would not."""
    return unready(settings.address)


def _user() -> str:
    """Who is at the keyboard, for the record of a forced release."""
    try:
        return checked_key(getpass.getuser())
    except (InvalidKey, OSError, KeyError, ImportError):  # a container without users, a strange $LOGNAME
        return "holdfast"
