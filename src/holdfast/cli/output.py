"""Output of the commands: text for people, JSON for programs.

Keys, owners, hosts and reasons come from applications through the store. `escaped` writes out every character in them
that a terminal would interpret or that would reverse the text, and rich never parses them as markup. JSON is plain
ASCII, one document per line. Colours and folded columns are only for terminals.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import click
import msgspec
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ..locks.admin import HolderInfo, LockInfo, WaiterInfo

WIDE = 10_000
"""Columns of a stream that is not a terminal: its lines are not folded."""
TOKEN_DIGITS = 9
"""Digits of a token that are shown to people. Tokens follow the clock in microseconds: within a quarter of an hour
(10^9 microseconds) these digits show which of two tokens is the newer one."""
LOCK_COLUMNS = ("KEY", "HOLDER", "FOR", "LEFT", "WAITING", "NOTE")

_UNITS = (("d", 86_400), ("h", 3_600), ("min", 60), ("s", 1))


def escaped(text: str) -> str:
    r"""The text with every control, formatting and invisible character written out.

    >>> print(escaped("evil\x1b[2J\u202e name"))
    evil\x1b[2J\u202e name
    """
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode("ascii") for letter in text
    )


def escaped_text(text: str, style: str = "") -> Text:
    """Escaped text for rich, which never parses it as markup."""
    return Text(escaped(text), style=style)


def console(*, err: bool = False) -> Console:
    """The console for people. A stream that is not a terminal gets no escape codes, whatever the environment."""
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


def print_line(text: str | Text, *, err: bool = False) -> None:
    """Print one line for people; only their terminal folds it."""
    console(err=err).print(escaped_text(text) if isinstance(text, str) else text, soft_wrap=True)


def print_json(document: Any) -> None:
    """Print one JSON document on one line."""
    click.echo(json.dumps(msgspec.to_builtins(document), allow_nan=False))


def print_rows(rows: Sequence[Sequence[Text]], headers: Sequence[str] = (), *, unfolded: int = 0) -> None:
    """Print rows in columns: folded to the width of a terminal, else one line per row, whatever its length."""
    if sys.stdout.isatty():
        console().print(as_table(rows, headers, unfolded=unfolded))
        return
    lines = [*([headers] if headers else []), *([cell.plain for cell in row] for row in rows)]
    widths = [max(map(cell_len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = (cell + " " * (width - cell_len(cell)) for cell, width in zip(line, widths, strict=True))
        sys.stdout.write("  ".join(cells).rstrip() + "\n")


def as_table(rows: Sequence[Sequence[Text]], headers: Sequence[str] = (), *, unfolded: int = 0) -> Table:
    """Rows as a table of rich's; the first `unfolded` columns keep their width."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold", show_header=bool(headers))
    for index, name in enumerate(headers or [""] * max((len(row) for row in rows), default=0)):
        table.add_column(name, overflow="fold", no_wrap=index < unfolded)
    for row in rows:
        table.add_row(*row)
    return table


def lock_document(info: LockInfo) -> dict[str, Any]:
    """A lock as JSON."""
    fields: dict[str, Any] = msgspec.to_builtins(info)
    return {"key": fields.pop("key"), "held": info.held, **fields}


def format_duration(seconds: float) -> str:
    """A duration in its two largest units.

    >>> format_duration(0.42), format_duration(75), format_duration(7_260)
    ('0.4 s', '1 min 15 s', '2 h 1 min')
    """
    if seconds < 10:  # noqa: PLR2004  (only below that are tenths of interest)
        return f"{seconds:.1f} s"
    whole = int(seconds)
    largest = next(index for index, (_, size) in enumerate(_UNITS) if whole >= size)
    (unit, size), *smaller = _UNITS[largest:]
    text = f"{whole // size} {unit}"
    if smaller and (remainder := whole % size // smaller[0][1]):
        text += f" {remainder} {smaller[0][0]}"
    return text


def format_time(at: datetime) -> str:
    """A time in UTC, to the second."""
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def format_caller(one: HolderInfo | WaiterInfo) -> str:
    """A holder or waiter by its label: owner, host and process."""
    return f"{one.owner} ({one.host}:{one.pid})" if one.host else one.owner


def format_token(token: int) -> str:
    """A token for people: its last digits.

    >>> format_token(1763466500123456), format_token(42)
    ('…500123456', '42')
    """
    digits = str(token)
    return digits if len(digits) <= TOKEN_DIGITS else f"…{digits[-TOKEN_DIGITS:]}"


def lock_rows(locks: list[LockInfo]) -> list[list[Text]]:
    """Locks for people under `LOCK_COLUMNS`, a row for each holder."""
    rows: list[list[str | Text]] = []
    for info in locks:
        key, waiting = info.key, str(info.waiting) if info.waiting else ""
        if info.error:
            rows.append([info.key, "?", "", "", "", escaped_text(info.error, "red")])
        elif not info.holders:
            rows.append([info.key, escaped_text("none", "dim"), "", "", waiting, ""])
        for holder in info.holders:
            left = "no expiry" if holder.time_left is None else format_duration(holder.time_left)
            note = _note(info, holder)
            rows.append([key, format_caller(holder), format_duration(holder.age), left, waiting, note])
            key = waiting = ""
    return [[cell if isinstance(cell, Text) else escaped_text(cell) for cell in row] for row in rows]


def _note(info: LockInfo, holder: HolderInfo) -> str:
    notes = [] if info.kind == "mutex" else [info.kind]
    if info.permits > 1:
        notes.append(f"{holder.weight} of {info.permits} permits")
    if holder.offered:
        notes.append("offered")
    return ", ".join(notes)
