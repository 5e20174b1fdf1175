"""How a command ends: 0 fine, 1 held or failed, 2 not understood; one clear line, and never a traceback.

The line is on stderr. With `--json` there is an error document on stdout as well, so that stdout always
holds JSON. `HOLDFAST_DEBUG=1` shows the traceback of what should not have happened. Where stdout is closed nothing is
begun, for nobody would hear what became of it; where it cannot be written, the line on stderr and the exit code tell.
"""

from __future__ import annotations

import errno
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import click

from .. import HoldfastError
from ..errors import InvalidKey, InvalidOption, StoreNotInstalled
from .output import harmless, tell

FAILED = 1
USAGE = 2

_NO_ARGUMENTS: Any = getattr(click.exceptions, "NoArgsIsHelpError", ())


class App(click.Group):
    """A group of commands that ends as this page says."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,  # noqa: FBT001, FBT002  (click's signature)
        windows_expand_args: bool = True,  # noqa: FBT001, FBT002
        **extra: Any,
    ) -> Any:
        """Run, say what went wrong, and exit."""
        options = {**extra, "windows_expand_args": windows_expand_args}
        run: Callable[[], Any] = partial(super().main, args, prog_name, complete_var, standalone_mode=False, **options)
        if not standalone_mode:
            return run()
        _fill_closed_streams()
        if sys.stdout is None:
            _say_line("standard output is closed, so there is no place for an answer. Nothing was done.")
            sys.exit(FAILED)
        for stream in (sys.stdout, sys.stderr):
            with suppress(AttributeError):  # an old encoding must not break what is shown
                stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
        given = list(sys.argv[1:] if args is None else args)
        try:
            code = run()
            sys.stdout.flush()
        except Exception as error:
            code = _told(error, as_json="--json" in given)
        for stream in (sys.stdout, sys.stderr):  # what cannot be written would change the exit code at the very end
            try:
                stream.flush()
            except (OSError, ValueError):
                _discard(stream)
        sys.exit(code if isinstance(code, int) else 0)


def _told(error: Exception, *, as_json: bool) -> int:
    """Say what happened, and return the exit code."""
    if isinstance(error, OSError) and error.errno == errno.EPIPE:
        return _nobody_reads()
    if isinstance(error, _NO_ARGUMENTS) and not as_json:
        with suppress(OSError):
            click.echo(str(error), err=True)
        return USAGE
    kind, message, code = _explained(error)
    message = " ".join(message.split())
    if as_json:
        try:
            tell({"error": {"type": kind, "message": message}})
        except OSError:
            _nobody_reads()
    _say_line(message)
    return code


def _say_line(message: str) -> None:
    with suppress(OSError):  # then the exit code must do
        click.echo(f"holdfast: {harmless(message)}", err=True)


def _explained(error: Exception) -> tuple[str, str, int]:
    if isinstance(error, click.UsageError):
        path = error.ctx.command_path if error.ctx else "holdfast"
        message = "a command is missing." if isinstance(error, _NO_ARGUMENTS) else error.format_message()
        return "UsageError", f"{message.rstrip('.')}. See '{path} --help'.", USAGE
    if isinstance(error, click.ClickException):
        return type(error).__name__, error.format_message(), FAILED
    if isinstance(error, click.Abort):
        return "Aborted", "interrupted.", FAILED
    if isinstance(error, HoldfastError):
        usage = isinstance(error, InvalidKey | InvalidOption | StoreNotInstalled)
        return type(error).__name__, str(error), USAGE if usage else FAILED
    if isinstance(error, OSError) and error.filename is None:  # files are named; streams have no name
        _nobody_reads()
        reason = error.strerror or str(error)
        return "OutputFailed", f"the answer could not be written ({reason}). What was asked for may be done.", FAILED
    if os.environ.get("HOLDFAST_DEBUG"):
        traceback.print_exception(error)
    kind = type(error).__name__
    what = f"this should not have happened ({kind}: {error}). HOLDFAST_DEBUG=1 shows where; please report it."
    return kind, what, FAILED


def _nobody_reads() -> int:
    """The reader of a pipe has gone, or the disk is full. Nothing may be flushed at the interpreter's end either."""
    _discard(sys.stdout)
    return FAILED


def _discard(stream: Any) -> None:
    """Let what is still to be written there go nowhere."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _fill_closed_streams() -> None:
    """Give the numbers of closed streams to nothing: else the store's files get them, and are written to as streams."""
    if None not in (sys.stdin, sys.stdout, sys.stderr):
        return
    while (file := os.open(os.devnull, os.O_RDWR)) <= 2:  # noqa: PLR2004  (the number of stderr)
        os.set_inheritable(file, True)  # noqa: FBT003
    os.close(file)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123  (it is for the whole process)
