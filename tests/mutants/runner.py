"""Applies one mutant to a copy of the package, and runs the tests that should detect it.

A mutant is caught when one of its tests *fails*. A mutant that cannot be applied, that breaks the import or the
collection, that only raises an error such as NameError or TypeError, or that the tests do not import, is invalid: it
proves nothing. The package itself is not changed; the copy is in a temporary folder.
"""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

from .fork_server import NOT_THE_COPY

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "holdfast"
PATIENCE_SECONDS = 120

SHORT_WAITS = {"HOLDFAST_TEST_PATIENCE": "4", "HOLDFAST_HISTORIES": "400"}
"""Many mutants show as an event that never happens, so tests wait less; some show in one of many histories only."""

PASSED, FAILED = 0, 1

CRASHES = re.compile(r"(Name|Syntax|Indentation|Import|ModuleNotFound|Attribute|Type|UnboundLocal)Error\b")


class Mutant(NamedTuple):
    name: str  # the fault, in words
    file: str  # under src/holdfast
    old: str  # must occur there exactly once
    new: str
    caught_by: tuple[str, ...]  # pytest node ids, from the root of the project


class Useless(Exception):
    """The mutant is invalid: it proves nothing."""


class ForkServer:
    """A process that has imported what all tests import, and forks one child per mutant."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(Path(__file__).with_name("fork_server.py"))],
            cwd=ROOT,
            env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "400", **SHORT_WAITS},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, home: Path, arguments: list[str], printed: Path) -> int:
        """Run pytest on the package in `home`; what it prints goes into a file. Returns its exit code."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        environment = {"PYTHONPATH": str(home)}
        request = {"home": str(home), "arguments": arguments, "printed": str(printed), "environment": environment}
        print(json.dumps(request), file=self._process.stdin, flush=True)
        answered, _, _ = select.select([self._process.stdout], [], [], PATIENCE_SECONDS)
        if not answered:
            os.killpg(self._process.pid, signal.SIGKILL)
            self.end()
            raise TimeoutError(f"the tests did not end within {PATIENCE_SECONDS} s: {arguments}\n{printed.read_text()}")
        return int(self._process.stdout.readline())

    def end(self) -> None:
        """End the process."""
        self._process.communicate()


_idle: list[ForkServer] = []


def end_servers() -> None:
    """End all processes that wait for a mutant."""
    while _idle:
        _idle.pop().end()


def copy_package(folder: Path) -> Path:
    """A copy of the whole package with its compiled files, to be put on the path."""
    shutil.copytree(PACKAGE, folder / "holdfast")
    return folder


def apply(mutant: Mutant, home: Path) -> None:
    target = home / "holdfast" / mutant.file
    text = target.read_text()
    count = text.count(mutant.old)
    if count != 1:
        raise Useless(f"{mutant.name}: its old text occurs {count} times in {mutant.file} instead of once")
    target.write_text(text.replace(mutant.old, mutant.new))
    for compiled in target.parent.glob(f"__pycache__/{target.stem}.*.pyc"):
        compiled.unlink()


def run_tests(home: Path, nodes: tuple[str, ...]) -> tuple[int, str]:
    """Run some tests against the package in `home`. Returns pytest's exit code and what it printed."""
    options = ["-x", "-rf", "--tb=short", "--assert=plain", "-p", "no:cacheprovider"]
    printed = home / "printed"
    server = _idle.pop() if _idle else ForkServer()
    code = server.run(home, [*options, *nodes], printed)
    _idle.append(server)
    return code, printed.read_text()


def caught(mutant: Mutant, folder: Path) -> bool:
    """Whether the tests detect the mutant. Raises `Useless` if the mutant is invalid."""
    home = copy_package(folder)
    apply(mutant, home)
    code, printed = run_tests(home, mutant.caught_by)
    if code == PASSED:
        return False
    if code == NOT_THE_COPY:
        raise Useless(f"{mutant.name}: the tests imported another package than the mutated copy")
    failures = re.findall(r"^FAILED (\S+)(?: - (.*))?$", printed, flags=re.MULTILINE)
    if code != FAILED or not failures:
        raise Useless(f"{mutant.name}: no test failed, something else did (exit code {code}):\n{printed}")
    node, reason = failures[0]
    if not any(node.startswith(expected) for expected in mutant.caught_by):
        raise Useless(f"{mutant.name}: {node} failed, which is not one of its tests")
    if CRASHES.match(reason):
        raise Useless(f"{mutant.name}: it does not run far enough to be wrong ({reason}):\n{printed}")
    return True
