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
from ..runtime.codec import encode_value
from .options import Settings, common, opened, pass_settings
from .output import say, tell


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
        if not hf.runtime.store.capabilities.shared:
            raise click.UsageError(
                f"{hf.url} ends with this command, and the value with it: give the address of a store that stays.",
                click.get_current_context(),
            )
        hf.state(key).set(parsed)
    if settings.json:
        tell({"key": key, "value": parsed})
    else:
        say(f"{key} is set.")


def _parsed(text: str) -> Any:
    """The value, checked before the store is opened: what is wrong later is the store's and not the argument's."""
    try:
        value = json.loads(_standard_input() if text == "-" else text, parse_constant=_no_constant)
        encode_value(value, what="a state")
    except InvalidValue as error:
        raise click.BadParameter(str(error), param_hint="JSON") from None
    except (ValueError, RecursionError) as error:
        raise click.BadParameter(
            f"this cannot be read as JSON ({error}). Text needs its own quotes: '\"text\"'", param_hint="JSON"
        ) from None
    return value


def _standard_input() -> str:
    why = "is closed"
    if sys.stdin is not None:
        try:
            return sys.stdin.read()
        except OSError as error:
            why = f"cannot be read ({error.strerror or error})"
    raise click.BadParameter(
        f"standard input {why}: give the value in the place of '-', or let it come from a file or a pipe.",
        param_hint="JSON",
    )


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"JSON has no {name}")
