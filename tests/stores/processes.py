"""Real processes for tests: a script that says what it does on its standard output, line by line."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PRELUDE = f"""
import sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from stores.asking import *
from holdfast import commands as c
from holdfast.stores import open_store
def say(*words): print(*words, flush=True)
"""


class Process:
    def __init__(self, script: str, *arguments: str) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-c", PRELUDE + script, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    @property
    def pid(self) -> int:
        return self.popen.pid

    def hear(self) -> str:
        """The next line that the process says; empty when it has ended."""
        return self.popen.stdout.readline().strip()

    def tell(self, line: str = "") -> None:
        self.popen.stdin.write(line + "\n")
        self.popen.stdin.flush()

    def end(self) -> None:
        self.popen.kill()
        self.popen.wait()
        self.popen.stdin.close()
        self.popen.stdout.close()


@contextmanager
def running(script: str, *arguments: str) -> Iterator[Process]:
    process = Process(script, *arguments)
    try:
        yield process
    finally:
        process.end()
