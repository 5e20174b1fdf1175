"""Exit codes and error messages: 0 success, 1 held or failed, 2 usage error; one line, and never a traceback.

The line is on stderr. With `--json` there is an error document on stdout as well, so that stdout always contains JSON.
`HOLDFAST_DEBUG=1` prints the traceback of an internal error. If stdout is closed nothing is done, because the outcome
could not be reported; if stdout cannot be written, the line on stderr and the exit code report it.
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
from .output import escaped, print_json

FAILED = 1
USAGE = 2

_NO_ARGUMENTS: Any = getattr(click.exceptions, "NoArgsIsHelpError", ())


class App(click.Group):
    """A group of commands with these exit codes and error messages."""

    def main(
        self,
        args: Sequence[str] | None = None,
        prog_name: str | None = None,
        complete_var: str | None = None,
        standalone_mode: bool = True,  # noqa: FBT001, FBT002  (click's signature)
        windows_expand_args: bool = True,  # noqa: FBT001, FBT002
        **extra: Any,
    ) -> Any:
        """Run, report an error, and exit."""
        options = {**extra, "windows_expand_args": windows_expand_args}
        run: Callable[[], Any] = partial(super().main, args, prog_name, complete_var, standalone_mode=False, **options)
        if not standalone_mode:
            return run()
        _fill_closed_streams()
        if sys.stdout is None:
            _print_error("standard output is closed, so the result could not be printed. Nothing was done.")
            sys.exit(FAILED)
        for stream in (sys.stdout, sys.stderr):
            with suppress(AttributeError):  # an encoding without the characters must not break the output
                stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
        given = list(sys.argv[1:] if args is None else args)
        try:
            code = run()
            sys.stdout.flush()
        except Exception as error:
            code = _report(error, as_json="--json" in given)
        for stream in (sys.stdout, sys.stderr):  # a failed flush at the interpreter's exit would change the exit code
            try:
                stream.flush()
            except (OSError, ValueError):
                _discard(stream)
        sys.exit(code if isinstance(code, int) else 0)


def _report(error: Exception, *, as_json: bool) -> int:
    """Report the error, and return the exit code."""
    if isinstance(error, OSError) and error.errno == errno.EPIPE:
        return _discard_stdout()
    if isinstance(error, _NO_ARGUMENTS) and not as_json:
        with suppress(OSError):
            click.echo(str(error), err=True)
        return USAGE
    kind, message, code = _describe(error)
    message = " ".join(message.split())
    if as_json:
        try:
            print_json({"error": {"type": kind, "message": message}})
        except OSError:
            _discard_stdout()
    _print_error(message)
    return code


def _print_error(message: str) -> None:
    with suppress(OSError):  # then only the exit code reports it
        click.echo(f"holdfast: {escaped(message)}", err=True)


def _describe(error: Exception) -> tuple[str, str, int]:
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
    if isinstance(error, OSError) and error.filename is None:  # of a stream: the error of a file names the file
        _discard_stdout()
        reason = error.strerror or str(error)
        what = f"the output could not be written ({reason}). The operation may have been carried out: check."
        return "OutputFailed", what, FAILED
    if os.environ.get("HOLDFAST_DEBUG"):
        traceback.print_exception(error)
    kind = type(error).__name__
    what = f"internal error ({kind}: {error}). HOLDFAST_DEBUG=1 prints the traceback; please report it."
    return kind, what, FAILED


def _discard_stdout() -> int:
    """Stop writing: the pipe has no reader, or the disk is full. The interpreter's last flush must not fail either."""
    _discard(sys.stdout)
    return FAILED


def _discard(stream: Any) -> None:
    """Send the buffered output of this stream to the null device."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _fill_closed_streams() -> None:
    """Open the null device for closed streams: otherwise a file of the store gets the number of a stream."""
    if None not in (sys.stdin, sys.stdout, sys.stderr):
        return
    while (file := os.open(os.devnull, os.O_RDWR)) <= 2:  # noqa: PLR2004  (the number of stderr)
        os.set_inheritable(file, True)  # noqa: FBT003
    os.close(file)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123  (it stays open)
