"""What people and machines get to see.

Keys, owners, hosts and reasons come from whoever wrote them into the store. `harmless` shows everything in
them that a terminal would obey or that would turn the text around, and rich never gets to read them as
markup. Machines get JSON in plain ASCII, one document a line. Colours only go to a terminal.
"""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..locks.admin import HolderInfo, LockInfo, WaiterInfo

WIDE = 10_000
"""Columns of what is no terminal: lines in a file or a pipe are never folded."""

_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def harmless(text: str) -> str:
    r"""The text with every control, formatting and invisible character written out.

    >>> print(harmless("evil\x1b[2J\u202e name"))
    evil\x1b[2J\u202e name
    """
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii") for letter in text
    )


def shown(text: str, style: str = "") -> Text:
    """Text for rich: harmless, and never read as markup."""
    return Text(harmless(text), style=style)


def console(*, err: bool = False) -> Console:
    """Where people look. What is no terminal gets no escape codes, whatever the environment says."""
    stream = sys.stderr if err else sys.stdout
    terminal = stream.isatty()
    return Console(
        file=stream,
        force_terminal=terminal,
        width=None if terminal else WIDE,
        highlight=False,
        markup=False,
        emoji=False,
    )


def say(text: str | Text, *, err: bool = False) -> None:
    """One line for people, folded by nobody but their terminal."""
    console(err=err).print(shown(text) if isinstance(text, str) else text, soft_wrap=True)


def tell(document: Any) -> None:
    """One JSON document on a line of its own, for machines."""
    click.echo(json.dumps(msgspec.to_builtins(document), allow_nan=False))


def lock_document(info: LockInfo) -> dict[str, Any]:
    """A lock as machines get it."""
    fields: dict[str, Any] = msgspec.to_builtins(info)
    return {"key": fields.pop("key"), "held": info.held, **fields}


def length(seconds: float) -> str:
    """A length of time in its two largest units.

    >>> length(0.42), length(75), length(7_260)
    ('0.4 s', '1 min 15 s', '2 h 1 min')
    """
    if seconds < 10:  # noqa: PLR2004  (below that, the tenths are what one looks for)
        return f"{seconds:.1f} s"
    whole = int(seconds)
    place = next(place for place, (_, size) in enumerate(_UNITS) if whole >= size)
    (unit, size), *smaller = _UNITS[place:]
    text = f"{whole // size} {unit}"
    if smaller and (rest := whole % size // smaller[0][1]):
        text += f" {rest} {smaller[0][0]}"
    return text


def moment(at: datetime) -> str:
    """A moment, to the second, in UTC."""
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def who(one: HolderInfo | WaiterInfo) -> str:
    """Who it is, as far as a label can tell."""
    return f"{one.owner} ({one.host}:{one.pid})" if one.host else one.owner


def left(time_left: float | None) -> str:
    """How long still."""
    return "no end" if time_left is None else length(time_left)


def lock_table(locks: list[LockInfo]) -> Table:
    """Locks for people, a line for each holder."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("KEY", "HOLDER", "FOR", "LEFT", "WAITING", "NOTE"):
        table.add_column(name, overflow="fold")
    for info in locks:
        key, waiting = info.key, str(info.waiting) if info.waiting else ""
        if info.error:
            table.add_row(shown(key), shown("?"), "", "", "", shown(info.error, "red"))
        elif not info.holders:
            table.add_row(shown(key), shown("nobody", "dim"), "", "", waiting, "")
        for holder in info.holders:
            table.add_row(
                shown(key), shown(who(holder)), length(holder.age), left(holder.time_left), waiting, _note(info, holder)
            )
            key = waiting = ""
    return table


def _note(info: LockInfo, holder: HolderInfo) -> Text:
    notes = [] if info.kind == "mutex" else [info.kind]
    if info.permits > 1:
        notes.append(f"{holder.weight} of {info.permits} permits")
    if holder.offered:
        notes.append("offered")
    return shown(", ".join(notes))
