"""The command line in tests: within this process, as a separate process, and on a terminal."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from click.testing import CliRunner, Result
from waiting import PATIENCE

from holdfast.cli.app import app

COMMAND = [sys.executable, "-W", "error", "-m", "holdfast.cli"]


def holdfast(*arguments: str, input: str | None = None, url: str | None = None) -> Result:
    """Run a command within this process."""
    return CliRunner().invoke(app, list(arguments), input=input, env={"HOLDFAST_URL": url}, prog_name="holdfast")


def answer(result: Result) -> Any:
    """The one JSON document on stdout."""
    assert result.stdout.count("\n") == 1, result.stdout
    return json.loads(result.stdout)


def failure(result: Result, code: int) -> str:
    """The one error line of a command that ended with this exit code."""
    assert result.exit_code == code, result.output
    assert result.stderr.startswith("holdfast: ")
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr
    return result.stderr


def shape(value: Any) -> Any:
    """A document with the names of types instead of values."""
    if isinstance(value, dict):
        return {name: shape(item) for name, item in value.items()}
    if isinstance(value, list):
        return [shape(item) for item in value]
    return type(value).__name__


def environment(**more: str) -> dict[str, str]:
    return {**{name: value for name, value in os.environ.items() if name != "HOLDFAST_URL"}, **more}


def process(*arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
    """Run a command as a separate process, with its output in pipes."""
    return subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        encoding="utf-8",
        env=environment(**more),
        timeout=60,
        check=False,
    )


@contextmanager
def started(command: list[str], **options: Any) -> Iterator[subprocess.Popen[Any]]:
    """A process that is killed at the end of the block."""
    popen = subprocess.Popen(command, env=environment(), **options)
    try:
        yield popen
    finally:
        popen.kill()
        popen.wait()
        for pipe in (popen.stdin, popen.stdout, popen.stderr):
            if pipe is not None:
                pipe.close()


@contextmanager
def other(url: str, script: str) -> Iterator[subprocess.Popen[str]]:
    """Another process with a client `hf`. It has printed "ready" when the block is entered."""
    source = f"from holdfast import Client\nwith Client({url!r}, name='other') as hf:\n"
    body = textwrap.indent(textwrap.dedent(script), "    ")
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with started([sys.executable, "-c", source + body], **options) as popen:
        assert popen.stdout.readline() == "ready\n"
        yield popen


class Terminal:
    """A command whose input and output are a terminal."""

    def __init__(self, popen: subprocess.Popen[bytes], master: int) -> None:
        self.popen, self._master, self.seen = popen, master, ""

    def until(self, text: str = "\0") -> str:
        """Read until the text was printed, or to the end."""
        while text not in self.seen:
            try:
                more = os.read(self._master, 65_536)
            except OSError:  # the other side is closed
                break
            self.seen += more.decode()
        return self.seen

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def end(self) -> int:
        self.until()
        return self.popen.wait(PATIENCE)


@contextmanager
def terminal(*arguments: str) -> Iterator[Terminal]:
    """Run a command on a terminal."""
    master, slave = pty.openpty()
    try:
        with started([*COMMAND, *arguments], stdin=slave, stdout=slave, stderr=slave) as popen:
            os.close(slave)
            yield Terminal(popen, master)
    finally:
        os.close(master)
