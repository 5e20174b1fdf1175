"""`holdfast state`: durable values under a key, as JSON.

`get` shows the value as it is now; `set` replaces it, whatever was there. Setting is the one command that may
make a store's file.
"""

from __future__ import annotations

import json
import sys
from typing import Any, NoReturn

import click

from .. import HoldfastError
from ..errors import InvalidValue
from .output import say, tell
from .settings import Settings, common, opened, pass_settings


class NothingThere(HoldfastError):
    """There is no value under this key."""


@click.group()
@common
def state() -> None:
    """Durable values under a key."""


@state.command()
@click.argument("key")
@common
@pass_settings
def get(settings: Settings, key: str) -> None:
    """Show the value under KEY as JSON. Exits with 1 if there is none; with --json that is null."""
    with opened(settings) as hf:
        value = hf.state(key).get()
        where = f"{hf.url}, namespace {hf.namespace}"
    if settings.json:
        tell(value)
        return
    if value is None:
        raise NothingThere(f"there is no value under {key} in {where}.")
    for line in json.dumps(value, indent=2, ensure_ascii=False).splitlines():
        say(line)


# A negative number is a value, not an option.
@state.command("set", context_settings={"ignore_unknown_options": True})
@click.argument("key")
@click.argument("value", metavar="JSON")
@common
@pass_settings
def set_(settings: Settings, key: str, value: str) -> None:
    """Replace the value under KEY by JSON ('-': read it from standard input)."""
    parsed = _parsed(value)
    with opened(settings, make=True) as hf:
        try:
            hf.state(key).set(parsed)
        except InvalidValue as error:
            raise click.BadParameter(str(error), param_hint="JSON") from None
    if settings.json:
        tell({"key": key, "value": parsed})
    else:
        say(f"{key} is set.")


def _parsed(text: str) -> Any:
    try:
        return json.loads(sys.stdin.read() if text == "-" else text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise click.BadParameter(
            f"this cannot be read as JSON ({error}). Text needs its own quotes: '\"text\"'", param_hint="JSON"
        ) from None


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"JSON has no {name}")
