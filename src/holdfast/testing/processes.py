"""Real processes for tests: each runs a script that reports on its standard output, line by line."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

PRELUDE = """
import sys
from holdfast import commands as c
from holdfast.stores import open_store
from holdfast.testing.builders import *
def report(*words): print(*words, flush=True)
"""


class Process:
    """A Python process that runs the prelude and a script, and exchanges lines with the test."""

    def __init__(self, script: str, *arguments: str) -> None:
        self.popen = subprocess.Popen(  # noqa: S603  (this interpreter, and the test's own script)
            [sys.executable, "-c", PRELUDE + script, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        """The process id."""
        return self.popen.pid

    def read_line(self) -> str:
        """The next line that the process prints; empty when it has ended."""
        assert self.popen.stdout is not None  # noqa: S101  (a pipe)
        return self.popen.stdout.readline().strip()

    def send_line(self, line: str = "") -> None:
        """Send a line to its standard input."""
        assert self.popen.stdin is not None  # noqa: S101  (a pipe)
        self.popen.stdin.write(line + "\n")
        self.popen.stdin.flush()

    def kill(self) -> None:
        """Send SIGKILL, and wait until the process has ended."""
        self.popen.kill()
        self.popen.wait()

    def end(self) -> None:
        """Kill the process and close the pipes."""
        self.kill()
        for pipe in (self.popen.stdin, self.popen.stdout):
            if pipe is not None:
                pipe.close()


@contextmanager
def running(script: str, *arguments: str) -> Iterator[Process]:
    """A process that is killed at the end of the block."""
    process = Process(script, *arguments)
    try:
        yield process
    finally:
        process.end()
