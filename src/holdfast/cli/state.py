"""`holdfast state`: durable values under a key, as JSON.

`get` prints the current value; `set` replaces it, whatever it was. `set` and `runs import` may create a store's
file.
"""

from __future__ import annotations

import json
import sys
from typing import Any, NoReturn

import click

from .. import HoldfastError
from ..errors import InvalidValue
from ..runtime.codec import encode_value
from .options import Settings, common, open_client, pass_settings
from .output import print_json, print_line


class NoValue(HoldfastError):
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
    """Print the value under KEY as JSON. Exits with 1 if there is none; with --json, prints null and exits with 0."""
    with open_client(settings) as hf:
        value = hf.state(key).get()
        where = f"{hf.url}, namespace {hf.namespace}"
    if settings.json:
        print_json(value)
        return
    if value is None:
        raise NoValue(f"there is no value under {key} in {where}.")
    for line in json.dumps(value, indent=2, ensure_ascii=False).splitlines():
        print_line(line)


# A negative number is a value, not an option.
@state.command("set", context_settings={"ignore_unknown_options": True})
@click.argument("key")
@click.argument("value", metavar="JSON")
@common
@pass_settings
def set_(settings: Settings, key: str, value: str) -> None:
    """Replace the value under KEY by JSON ('-': read the JSON from standard input)."""
    parsed = _parsed(value)
    with open_client(settings, create=True) as hf:
        if not hf.runtime.store.capabilities.shared:
            raise click.UsageError(
                f"{hf.url} ends with this command, and so would the value: give the address of a persistent store.",
                click.get_current_context(),
            )
        hf.state(key).set(parsed)
    if settings.json:
        print_json({"key": key, "value": parsed})
    else:
        print_line(f"{key} is set.")


def _parsed(text: str) -> Any:
    """The value, checked before the store is opened: so a later error is the store's, not the argument's."""
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
        f"standard input {why}: give the value instead of '-', or redirect standard input from a file or a pipe.",
        param_hint="JSON",
    )


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"JSON has no {name}")
