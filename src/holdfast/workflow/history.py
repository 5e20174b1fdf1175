"""The history of a run as a file: readable JSON, which `replay` checks against other code.

A file contains the run, the entries of its journal and its events, as they are stored. Inputs, results and signals are
in it in plain text.
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Self

import msgspec

from ..errors import InvalidValue
from ..rules.runs.record import Run, RunEvent
from ..runtime.flows import Flow
from . import journal as j
from .queries import RunQueries

FORMAT = 1
"""The number of the format that is written and read here."""


class _Format(msgspec.Struct):
    format: int


class _File(msgspec.Struct, kw_only=True):
    """The content of a file: entries are JSON, and not text that contains JSON."""

    format: int
    run: Run
    input: msgspec.Raw
    entries: list[msgspec.Raw]
    events: tuple[RunEvent, ...]


class RunHistory(msgspec.Struct, frozen=True, kw_only=True):
    """A run with its journal and its events, as they were when they were read. The first entry is the input."""

    run: Run
    entries: tuple[str, ...]
    events: tuple[RunEvent, ...] = ()
    format: int = FORMAT

    def to_json(self) -> str:
        """The text of a file."""
        for entry in self.entries[1:]:
            j.decode_entry(entry)  # a damaged entry would damage the whole file
        first, *rest = (msgspec.Raw(entry.encode()) for entry in self.entries)
        file = _File(format=self.format, run=self.run, input=first, entries=rest, events=self.events)
        return msgspec.json.format(msgspec.json.encode(file), indent=2).decode() + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """Read the text of a file. Raises `InvalidValue` if it is not a history, or of another format."""
        try:
            found = msgspec.json.decode(text, type=_Format).format
            if found != FORMAT:
                raise InvalidValue(
                    f"this history has the format {found}, and this version of Holdfast reads the format {FORMAT}: "
                    "use the version of Holdfast that wrote it, or export the run again"
                )
            file = msgspec.json.decode(text, type=_File)
            texts = tuple(_compact(entry) for entry in (file.input, *file.entries))
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise InvalidValue(
                f"this is not the history of a run ({error}). A history is written by 'holdfast runs export RUN -o "
                "FILE', or by RunHistory.to_json()"
            ) from error
        return cls(run=file.run, entries=texts, events=file.events)

    @classmethod
    def read(cls, path: str | Path) -> Self:
        """Read a file. Raises `InvalidValue`, with the name of the file, or `OSError`."""
        try:
            return cls.from_json(Path(path).read_bytes())
        except InvalidValue as error:
            raise InvalidValue(f"{path}: {error}") from error


def history_of(found: RunHistory | str | PathLike[str]) -> RunHistory:
    """A history, read from its file, or from the text of a file, if it is not one already."""
    if isinstance(found, str) and found.lstrip().startswith("{"):
        return RunHistory.from_json(found)
    if not isinstance(found, str | PathLike):
        return found
    try:
        return RunHistory.read(Path(found))
    except (OSError, ValueError) as error:  # of a path with a NUL, too
        if isinstance(error, InvalidValue):
            raise
        why = error.strerror if isinstance(error, OSError) else None
        raise InvalidValue(f"{str(found)!r} cannot be read ({why or error}): nothing was imported") from error


def _compact(value: msgspec.Raw) -> str:
    return msgspec.json.format(bytes(value), indent=-1).decode()


def export(queries: RunQueries, run_id: str) -> Flow[RunHistory]:
    """Read the history of a run, or raise `UnknownRun`."""
    claim, _ = yield from queries.see(run_id, history=True)
    return RunHistory(run=claim.run, entries=claim.entries, events=claim.events)
